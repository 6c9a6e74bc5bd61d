//! `exs_sendfile`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use exs::protocol::MAX_LEN;
use exs::socket::Memory;
use libc::c_int;
use rdma::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::ctypes::*;
use crate::entry::{call, read, read_array, refuse};
use crate::memory::{self, Hold, Span};
use crate::queue::{Cancel, Op, run};
use crate::socket::get;
use crate::tcp_calls::{self as tcp, Parts};
use crate::transfer::{known, limit};

/// Entries of a header or trailer (IOV_MAX).
const PIECES: usize = 1024;
/// Up to this many bytes are read into memory of the library; a longer file without header and trailer is mapped.
const READ: usize = 1 << 20;

/// A mapping of a file, registered for a transfer.
pub struct Mapping {
    memory: Option<Arc<Memory>>,
    start: usize,
    len: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Deregistered first: no operation has it any more.
        self.memory = None;
        // SAFETY: this value's own mapping.
        let _ = unsafe { munmap(self.start as *mut _, self.len) };
    }
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}

/// Map a part of a file; `None`: it cannot be mapped or registered.
fn map(file: &OwnedFd, offset: u64, len: usize) -> Option<Span> {
    let page = rustix::param::page_size() as u64;
    let skip = (offset % page) as usize;
    let whole = len.checked_add(skip)?;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start =
        unsafe { mmap(std::ptr::null_mut(), whole, ProtFlags::READ, MapFlags::SHARED, file, offset - skip as u64) };
    let start = start.ok()? as usize;
    let mut mapping = Mapping { memory: None, start, len: whole };
    let memory = memory::read_only(start, whole).ok()?;
    mapping.memory = Some(memory.clone());
    Some(Span { memory, range: skip..whole, hold: Hold::Mapping { _mapping: mapping } })
}

/// Read header, file and trailer into memory of the library.
fn gather(parts: &Parts, total: usize) -> Result<Span, Errno> {
    let mut at = 0;
    let Span { memory, .. } = memory::room(total)?;
    at += memory::put(&memory, at, &parts.header)?;
    let mut block = vec![0; parts.len.min(READ)];
    let mut left = parts.len;
    while left > 0 {
        let want = left.min(block.len());
        let offset = parts.offset as u64 + (parts.len - left) as u64;
        let came = match rustix::io::pread(&parts.file, &mut block[..want], offset) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other.map_err(errno)?,
        };
        if came == 0 {
            // It has become shorter.
            break;
        }
        memory.bytes().write(at, &block[..came]);
        (at, left) = (at + came, left - came);
    }
    at += memory::put(&memory, at, &parts.trailer)?;
    Ok(Span { range: 0..at, hold: Hold::Bounce { memory: memory.clone(), to: Vec::new() }, memory })
}

/// Check the file: its part, as many bytes as there are.
///
/// # Safety
/// `at` is null, or points to a structure whose arrays have as many entries as it says.
unsafe fn parts(at: *const exs_xferfile) -> Result<Parts, Errno> {
    // SAFETY: the caller's promise.
    let file = unsafe { read(at)? };
    let array = |at: *mut exs_iovec, count| match count {
        0 => Ok(Vec::new()),
        // SAFETY: the caller's promise.
        count => unsafe { read_array(at.cast_const(), count, PIECES) },
    };
    let (header, trailer) = (array(file.header, file.header_len)?, array(file.trailer, file.trailer_len)?);
    if file.fd < 0 {
        return refuse(libc::EBADF);
    }
    // SAFETY: not -1; the kernel checks the number.
    let source = unsafe { BorrowedFd::borrow_raw(file.fd) };
    // The program may close its descriptor before the event.
    let source = rustix::io::fcntl_dupfd_cloexec(source.as_fd(), 3).map_err(errno)?;
    let size = rustix::fs::fstat(&source).map_err(errno)?;
    if rustix::fs::FileType::from_raw_mode(size.st_mode) != rustix::fs::FileType::RegularFile {
        return refuse(libc::EINVAL);
    }
    let there = size.st_size.checked_sub(file.offset).filter(|_| file.offset >= 0).ok_or(Errno(libc::EINVAL))?;
    let there = usize::try_from(there).map_err(|_| Errno(libc::EINVAL))?;
    let len = if file.length == 0 { there } else { there.min(file.length) };
    Ok(Parts { file: source, offset: file.offset, len, header, trailer })
}

/// `exs_sendfile`: header, a part of a file, trailer; the event's length says how many bytes. At most 2^31 bytes go by
/// one call over verbs: EMSGSIZE. EINVAL: no regular file, an offset beyond its end, nothing to send on a stream.
///
/// # Safety
/// `at` is null, or points to a structure whose arrays have as many entries as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_sendfile(
    fd: c_int,
    at: *const exs_xferfile,
    flags: c_int,
    queue: i32,
    ahandle: isize,
) -> isize {
    call(|| {
        known(fd)?;
        if flags & !libc::MSG_NOSIGNAL != 0 {
            return refuse(libc::EOPNOTSUPP);
        }
        // SAFETY: the caller's promise.
        let parts = unsafe { parts(at)? };
        let mut op = Op::new(EVT_SENDFILE, fd, ahandle);
        let Some(sock) = get(fd) else { return tcp::sendfile(parts, queue, op) };
        let socket = sock.connection()?;
        let around = memory::total(&parts.header)?.saturating_add(memory::total(&parts.trailer)?);
        let total = parts.len.saturating_add(around);
        if total as u64 > MAX_LEN {
            return refuse(libc::EMSGSIZE);
        }
        let large = parts.len > READ && around == 0;
        let mapped = if large { map(&parts.file, parts.offset as u64, parts.len) } else { None };
        let Span { memory, range, hold } = mapped.map_or_else(|| gather(&parts, total), Ok)?;
        op.hold = hold;
        let limit = limit(0, sock.is_nonblocking(), sock.state().send_time);
        let event = run(queue, op, limit, |queue, key| {
            let number = socket.send(&memory, range, queue, key)?;
            Ok(Cancel::Transfer(socket.clone(), number))
        })?;
        Ok(event.map_or(0, |event| event.length as isize))
    })
}
