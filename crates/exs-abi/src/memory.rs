//! Registered memory, and memory for a transfer that has none.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use exs::protocol::MAX_LEN;
use exs::socket::Memory;
use libc::{c_int, c_void};
use rdma::{Access, Errno};

use crate::ctypes::{INVALID, UNREGISTERED, exs_iovec};
use crate::device::device;
use crate::entry::{call, refuse};
use crate::file::Mapping;
use crate::pages;
use crate::slab::Slab;

/// Up to this many bytes without a handle are copied through memory of the library; more are registered for the time of
/// their transfer, which costs more than to copy these.
const BOUNCE: usize = 16 << 10;

/// What a program has registered.
struct Region {
    start: usize,
    len: usize,
    /// None: there is no device, so no operation can need it. TCP takes the bytes where they are.
    memory: Option<Arc<Memory>>,
    /// False: the program can only read it.
    writable: bool,
    /// Operations over TCP hold it.
    users: Arc<()>,
}

static REGIONS: RwLock<Slab<Region>> = RwLock::new(Slab::new());

/// Register memory of the program: to be read and written, or only to be read. `lasting`: for more than one transfer,
/// so that a second region is worth its time.
fn adopt(start: usize, len: usize, lasting: bool) -> Result<(Arc<Memory>, bool), Errno> {
    let device = device()?;
    pages::watch();
    let (domain, access) = (device.domain(), device.access());
    let start = NonNull::new(start as *mut u8).ok_or(Errno(libc::EFAULT))?;
    let register = |access: Access| {
        // SAFETY: the program keeps the memory until it deregisters it, or until its transfer has ended; that is the
        // contract of exs_mregister and of exs_send. All access by this library is volatile or by the adapter.
        unsafe { domain.reg_mr_caller(start, len, access) }
    };
    let adopted = |access: Access| -> rdma::Result<Arc<Memory>> {
        let mr = register(access)?;
        pages::catch_faults(&mr);
        // If this fails, the plain region serves all transfers.
        let careful = device.careful().filter(|_| lasting);
        let careful = careful.and_then(|careful| register(access | careful & Access::ON_DEMAND).ok());
        Ok(Memory::adopt(mr, careful, pages::look, lasting))
    };
    let all = adopted(access).map(|memory| (memory, true));
    let remote = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    all.or_else(|error| match error.errno.0 {
        // The program may not write there.
        libc::EFAULT | libc::EPERM | libc::EACCES => {
            let access = access.difference(Access::LOCAL_WRITE | remote);
            adopted(access).map(|memory| (memory, false)).map_err(|_| error)
        }
        _ => Err(error),
    })
    .map_err(|error| error.errno)
}

/// `exs_mregister`: a handle. EINVAL: no byte, flags other than 0, or an end beyond the address space. EFAULT: the
/// memory is not there. ENOMEM.
#[unsafe(no_mangle)]
pub extern "C" fn exs_mregister(start: *mut c_void, len: usize, flags: c_int) -> i32 {
    call(|| {
        let start = start as usize;
        if len == 0 || isize::try_from(len).is_err() || start.checked_add(len).is_none() || flags != 0 {
            return refuse(libc::EINVAL);
        }
        if start == 0 {
            return refuse(libc::EFAULT);
        }
        let (memory, writable) = match adopt(start, len, true) {
            Ok((memory, writable)) => (Some(memory), writable),
            Err(Errno(libc::ENODEV | libc::ENOSYS)) => (None, true),
            Err(error) => return Err(error),
        };
        let region = Region { start, len, memory, writable, users: Arc::new(()) };
        REGIONS.write().unwrap_or_else(PoisonError::into_inner).insert(region).ok_or(Errno(libc::ENOMEM))
    })
}

/// `exs_mderegister`. EINVAL: no such handle. EBUSY: an operation uses it.
#[unsafe(no_mangle)]
pub extern "C" fn exs_mderegister(handle: i32) -> c_int {
    call(|| {
        let mut regions = REGIONS.write().unwrap_or_else(PoisonError::into_inner);
        let region = regions.get_mut(handle).ok_or(Errno(libc::EINVAL))?;
        if Arc::strong_count(&region.users) > 1 {
            return refuse(libc::EBUSY);
        }
        if let Some(memory) = region.memory.take()
            && let Err((memory, errno)) = device()?.deregister(memory)
        {
            region.memory = Some(memory);
            return Err(errno);
        }
        regions.remove(handle);
        Ok(0)
    })
}

/// What an operation keeps until its event is taken.
pub enum Hold {
    /// Nothing.
    None,
    /// Memory that is registered for this transfer only.
    Registered {
        /// Deregistered when it is dropped.
        _memory: Arc<Memory>,
    },
    /// Memory of the library, whose bytes go to these places of the program.
    Bounce {
        /// The memory.
        memory: Arc<Memory>,
        /// Addresses and lengths; none for a send.
        to: Vec<(usize, usize)>,
    },
    /// A mapping of a file.
    Mapping {
        /// Unmapped when it is dropped.
        _mapping: Mapping,
    },
    /// Registered memory that TCP uses.
    User {
        /// See [`Region::users`].
        _users: Vec<Arc<()>>,
    },
}

impl Hold {
    /// Put the first `len` bytes that have come where they belong. EFAULT: the place is not there any more.
    pub fn deliver(&self, mut len: usize) -> Result<(), Errno> {
        let Hold::Bounce { memory, to } = self else { return Ok(()) };
        let mut from = memory.bytes().addr() as usize;
        for (place, room) in to {
            let part = len.min(*room);
            copy(from, *place, part, false)?;
            (from, len) = (from + part, len - part);
        }
        Ok(())
    }
}

/// Copy bytes between memory of the program and of the library, whichever way. EFAULT: the program's are not there.
///
/// The kernel makes the copy, because it finds out what is mapped. Where it is forbidden to (a filter of system calls),
/// the processor does, and a bad address is a SIGSEGV.
fn copy(from: usize, to: usize, len: usize, from_program: bool) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    let [source, target] = [from, to].map(|at| libc::iovec { iov_base: at as *mut c_void, iov_len: len });
    let (own, theirs) = if from_program { (&target, &source) } else { (&source, &target) };
    // SAFETY: the library's range is live, and the kernel checks the program's. No reference is made to either.
    let done = unsafe {
        let pid = libc::getpid();
        if from_program {
            libc::process_vm_readv(pid, own, 1, theirs, 1, 0)
        } else {
            libc::process_vm_writev(pid, own, 1, theirs, 1, 0)
        }
    };
    let errno = std::io::Error::last_os_error().raw_os_error();
    match usize::try_from(done) {
        Ok(done) if done == len => Ok(()),
        Err(_) if errno != Some(libc::EFAULT) => {
            // SAFETY: the library's range is live; the program has named the other one as its own.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len) };
            Ok(())
        }
        _ => refuse(libc::EFAULT),
    }
}

/// Check that registered memory is still mapped: EFAULT. A device in software could find that out by SIGSEGV. What is
/// unmapped later is found before it is used, or is left to the device.
fn check_mapped(start: usize, len: usize) -> Result<(), Errno> {
    if len <= BOUNCE {
        // A system call costs as much as the transfer.
        return if pages::are_there(start, len) { Ok(()) } else { refuse(libc::EFAULT) };
    }
    let page = start % rustix::param::page_size();
    // SAFETY: the call looks at mappings and changes nothing: no bytes are written that would not be (msync(2)).
    let looked = unsafe { libc::msync((start - page) as *mut c_void, len + page, libc::MS_ASYNC) };
    let errno = std::io::Error::last_os_error().raw_os_error();
    if looked != 0 && errno == Some(libc::ENOMEM) { refuse(libc::EFAULT) } else { Ok(()) }
}

/// The place of a transfer.
pub struct Span {
    pub memory: Arc<Memory>,
    pub range: Range<usize>,
    pub hold: Hold,
}

/// A piece of the program's memory, inside its handle.
struct Piece {
    start: usize,
    len: usize,
    of: Option<(Arc<Memory>, usize)>,
    users: Option<Arc<()>>,
}

/// Check a piece. EINVAL: it is too long, not inside its handle, or there is no such handle; or it is to be written and
/// the handle is of memory that can only be read. EFAULT: a null pointer, or a large piece that was unmapped.
fn piece(iov: &exs_iovec, receive: bool) -> Result<Piece, Errno> {
    let (start, len) = (iov.base as usize, iov.len);
    let end = start.checked_add(len).filter(|_| isize::try_from(len).is_ok()).ok_or(Errno(libc::EINVAL))?;
    if iov.memory == UNREGISTERED {
        return if start == 0 && len > 0 {
            refuse(libc::EFAULT)
        } else {
            Ok(Piece { start, len, of: None, users: None })
        };
    }
    let regions = REGIONS.read().unwrap_or_else(PoisonError::into_inner);
    let region = regions.get(iov.memory).filter(|_| iov.memory != INVALID).ok_or(Errno(libc::EINVAL))?;
    let inside = start >= region.start && end <= region.start + region.len || len == 0;
    if !inside || receive && !region.writable {
        return refuse(libc::EINVAL);
    }
    check_mapped(start, len)?;
    let of = region.memory.clone().map(|memory| (memory, start.wrapping_sub(region.start)));
    Ok(Piece { start, len, of, users: Some(region.users.clone()) })
}

fn pieces(iovs: &[exs_iovec], receive: bool) -> Result<(Vec<Piece>, usize), Errno> {
    let mut found = Vec::with_capacity(iovs.len());
    let mut total = 0usize;
    for iov in iovs {
        let piece = piece(iov, receive)?;
        total = total.checked_add(piece.len).filter(|total| *total as u64 <= MAX_LEN).ok_or(Errno(libc::EMSGSIZE))?;
        if piece.len > 0 {
            found.push(piece);
        }
    }
    Ok((found, total))
}

/// Memory of no byte, for packets that have none.
fn nothing() -> Result<Arc<Memory>, Errno> {
    static NOTHING: OnceLock<Arc<Memory>> = OnceLock::new();
    match NOTHING.get() {
        Some(memory) => Ok(memory.clone()),
        None => device()?.memory(1).map(|memory| NOTHING.get_or_init(|| memory).clone()),
    }
}

/// The place of a transfer of these pieces over verbs: theirs if it is one and has a handle; else the library's, with a
/// copy; or theirs, registered until the transfer has ended.
pub fn span(iovs: &[exs_iovec], receive: bool) -> Result<Span, Errno> {
    // Most transfers have one piece with a handle.
    if let [iov] = iovs
        && iov.memory != UNREGISTERED
        && iov.len > 0
    {
        if iov.len as u64 > MAX_LEN && isize::try_from(iov.len).is_ok() {
            return refuse(libc::EMSGSIZE);
        }
        let (memory, offset) = piece(iov, receive)?.of.ok_or(Errno(libc::EINVAL))?;
        return Ok(Span { memory, range: offset..offset + iov.len, hold: Hold::None });
    }
    let (found, total) = pieces(iovs, receive)?;
    match &found[..] {
        [] => Ok(Span { memory: nothing()?, range: 0..0, hold: Hold::None }),
        [Piece { of: Some((memory, offset)), len, .. }] => {
            Ok(Span { memory: memory.clone(), range: *offset..offset + len, hold: Hold::None })
        }
        [Piece { start, len, .. }] if *len > BOUNCE => match adopt(*start, *len, false) {
            Ok((memory, writable)) if writable || !receive => {
                let hold = Hold::Registered { _memory: memory.clone() };
                Ok(Span { memory, range: 0..*len, hold })
            }
            Ok(_) => refuse(libc::EFAULT),
            Err(error) => Err(error),
        },
        _ => bounce(&found, total, receive),
    }
}

fn bounce(found: &[Piece], total: usize, receive: bool) -> Result<Span, Errno> {
    let memory = device()?.passing_memory(total)?;
    let mut to = Vec::new();
    let mut at = memory.bytes().addr() as usize;
    for piece in found {
        match receive {
            true => to.push((piece.start, piece.len)),
            false => copy(piece.start, at, piece.len, true)?,
        }
        at += piece.len;
    }
    Ok(Span { memory: memory.clone(), range: 0..total, hold: Hold::Bounce { memory, to } })
}

/// Register memory that is only read.
pub fn read_only(start: usize, len: usize) -> Result<Arc<Memory>, Errno> {
    adopt(start, len, false).map(|(memory, _)| memory)
}

/// Memory of the library for so many bytes.
pub fn room(len: usize) -> Result<Span, Errno> {
    let memory = if len == 0 { nothing()? } else { device()?.passing_memory(len)? };
    Ok(Span { hold: Hold::None, range: 0..len, memory })
}

/// The bytes of these pieces, which are checked.
pub fn total(iovs: &[exs_iovec]) -> Result<usize, Errno> {
    pieces(iovs, false).map(|(_, total)| total)
}

/// Copy pieces to `at` of a memory that has room; the number of bytes.
pub fn put(memory: &Memory, at: usize, iovs: &[exs_iovec]) -> Result<usize, Errno> {
    let (found, total) = pieces(iovs, false)?;
    if at.checked_add(total).is_none_or(|end| end > memory.bytes().len()) {
        return refuse(libc::EINVAL);
    }
    let mut to = memory.bytes().addr() as usize + at;
    for piece in found {
        copy(piece.start, to, piece.len, true)?;
        to += piece.len;
    }
    Ok(total)
}

/// The places of pieces for TCP, which takes the bytes where they are: addresses and lengths.
pub fn places(iovs: &[exs_iovec], receive: bool) -> Result<(Vec<(usize, usize)>, Hold), Errno> {
    let (found, _) = pieces(iovs, receive)?;
    let users = found.iter().filter_map(|piece| piece.users.clone()).collect();
    Ok((found.iter().map(|piece| (piece.start, piece.len)).collect(), Hold::User { _users: users }))
}
