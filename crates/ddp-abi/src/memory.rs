//! Memory of the program: buffers, and the receives that are made of them.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ddp::{Buffer, Memory, Receive};
use verbs::Errno;

use crate::failure::fail;

/// Memory that the program keeps as long as a socket may use it.
#[derive(Debug)]
struct Program {
    /// The address of the first byte.
    start: usize,
}

impl Program {
    fn at(&self, offset: usize) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.start.wrapping_add(offset))
    }
}

impl Memory for Program {
    fn get(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = Vec::<u8>::with_capacity(range.len());
        // SAFETY: the range is inside what the program has named (`buffer` checks its length), which it keeps until
        // the registration has ended. The vector has room for as many bytes, and is the library's own. A program that
        // writes these bytes meanwhile gets some of either value, as with write(2).
        unsafe {
            std::ptr::copy_nonoverlapping(self.at(range.start), bytes.as_mut_ptr(), range.len());
            bytes.set_len(range.len());
        }
        bytes
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        // SAFETY: as above; these bytes are the library's own, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(at), bytes.len()) }
    }
}

/// A buffer of the program. EFAULT: null. EINVAL: more bytes than there can be from there on.
///
/// # Safety
/// The memory is the program's, and stays so until no socket has the buffer.
pub unsafe fn buffer(start: *const c_void, len: usize) -> Result<Buffer, Errno> {
    let address = start.expose_provenance();
    if isize::try_from(len).is_err() || address.checked_add(len).is_none() {
        return fail(libc::EINVAL, "a buffer that ends beyond the address space");
    }
    if start.is_null() && len > 0 {
        return fail(libc::EFAULT, "the buffer is null");
    }
    Ok(Buffer::of(Arc::new(Program { start: address }), len))
}

/// A copy of a message of the program. As [`buffer`]; EMSGSIZE: 4 GiB or more.
///
/// # Safety
/// As [`buffer`], for the time of this call.
pub unsafe fn message(start: *const c_void, len: usize) -> Result<Vec<u8>, Errno> {
    if u32::try_from(len).is_err() {
        return fail(libc::EMSGSIZE, "a message of 4 GiB or more");
    }
    // SAFETY: the caller's promise.
    let buffer = unsafe { buffer(start, len) }?;
    // The peer's bytes may be placed there while the message is sent, so it is sent from a copy.
    buffer.get(0..len).map_err(|_| Errno(libc::EINVAL))
}

type Table = HashMap<usize, Receive>;

/// The receives that sockets have, by the addresses of their buffers: a buffer that is posted on several sockets is one
/// receive.
fn table() -> MutexGuard<'static, Table> {
    static TABLE: OnceLock<Mutex<Table>> = OnceLock::new();
    TABLE.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// The receive of a buffer. EBUSY: it is posted with another length. As [`buffer`].
///
/// # Safety
/// As [`buffer`].
pub unsafe fn receive(start: *mut c_void, len: usize) -> Result<Receive, Errno> {
    // SAFETY: the caller's promise.
    let buffer = unsafe { buffer(start, len) }?;
    let mut table = table();
    match table.get(&start.addr()) {
        Some(posted) if posted.buffer().len() == len => return Ok(posted.clone()),
        Some(posted) if posted.is_shared() => return fail(libc::EBUSY, "the buffer is posted with another length"),
        _ => {}
    }
    let made = Receive::named(buffer, start.addr());
    table.insert(start.addr(), made.clone());
    Ok(made)
}

/// The address of a receive that a message has taken; its buffer is posted nowhere any more.
pub fn delivered(receive: &Receive) -> *mut c_void {
    let mut table = table();
    if table.get(&receive.name()).is_some_and(|known| known.is(receive)) {
        table.remove(&receive.name());
    }
    std::ptr::with_exposed_provenance_mut(receive.name())
}

/// Forget the receives that no socket has.
pub fn prune() {
    table().retain(|_, receive| receive.is_shared());
}
