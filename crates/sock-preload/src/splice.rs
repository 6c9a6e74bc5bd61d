//! splice(2) between a connection's memory and a pipe, and sendfile(2) from a connection into a pipe.
//!
//! What Linux does (`fs/splice.c`, `net/ipv4/tcp.c`): into a pipe, the call waits for room first and for bytes then,
//! and takes what is there. From a pipe, it waits for bytes, and sends until the pipe is empty. SPLICE_F_NONBLOCK, or
//! O_NONBLOCK of the pipe, is about waiting for the pipe; O_NONBLOCK of the socket about waiting for the connection.

use core::ffi::c_void;
use core::mem::MaybeUninit;

use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT};
use rustix::fs::{FileType, OFlags};
use sock::end::Writable;
use verbs::Errno;

use crate::cancel::{point_at, points_if};
use crate::data::{one, receive, send_all, with};
use crate::kernel::{self, borrow};
use crate::next::{self, fail};
use crate::table::{self, Tag};
use crate::work::{self, Use, handlers_restart, nap};

/// Bytes that are moved at once: a pipe that has room takes as many, all or none of them (PIPE_BUF, pipe(7)).
const CHUNK: usize = 4096;
/// Bytes that are sent at once, as Linux does it: what sixteen pages of a pipe have. A connection whose other end has
/// gone takes the first of two sends.
const MOST: usize = 16 * 4096;
/// Bytes that are sent from the stack.
const FEW: usize = 8192;
/// Flags that splice(2) knows: MOVE, NONBLOCK, MORE, GIFT.
const KNOWN: u32 = 15;

/// Whether a descriptor is a pipe's end that may be used so; the second: it does not wait.
fn pipe(fd: i32, way: OFlags) -> Option<bool> {
    let kind = rustix::fs::fstat(borrow(fd)).ok().map(|stat| FileType::from_raw_mode(stat.st_mode));
    let flags = rustix::fs::fcntl_getfl(borrow(fd)).ok().filter(|_| kind == Some(FileType::Fifo))?;
    let is_way = [way, OFlags::RDWR].contains(&(flags & (OFlags::ACCMODE | OFlags::PATH)));
    is_way.then(|| flags.contains(OFlags::NONBLOCK))
}

/// What poll(2) says of a pipe, now or after a wait.
fn poll(fd: i32, events: i16, waits: bool) -> Result<i16, i32> {
    loop {
        let mut asked = libc::pollfd { fd, events, revents: 0 };
        let now = work::timespec(0);
        let time = if waits { core::ptr::null() } else { &raw const now };
        // SAFETY: an element and a time that live until the call returns; no mask.
        let n = unsafe { point_at!(ppoll, &raw mut asked, 1, time, 0) as i32 };
        match n {
            0.. => return Ok(asked.revents),
            _ if next::errno() == libc::EINTR && handlers_restart() => {}
            _ => return Err(next::errno()),
        }
    }
}

fn broken_pipe() -> isize {
    // SAFETY: a signal to this very thread, as the kernel sends it.
    unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE) };
    fail(libc::EPIPE)
}

/// From a connection into a pipe. `None`: the kernel has to do it.
fn into_pipe(connection: &Use, to: i32, len: usize, waits: bool) -> Option<isize> {
    let mut buffer = MaybeUninit::<[u8; CHUNK]>::uninit();
    let mut done = 0;
    while done < len {
        let events = match poll(to, POLLOUT, false) {
            Ok(0) if done > 0 => break,
            Ok(0) if waits => poll(to, POLLOUT, true),
            other => other,
        };
        match events {
            Ok(events) if events & POLLERR != 0 => return Some(if done > 0 { done as isize } else { broken_pipe() }),
            Ok(events) if events & POLLOUT != 0 => {}
            Ok(_) => return Some(fail(libc::EAGAIN)),
            Err(error) => return Some(if done > 0 { done as isize } else { fail(error) }),
        }
        let flags = if done > 0 { libc::MSG_DONTWAIT } else { 0 };
        let some = match receive(connection, &one(buffer.as_mut_ptr().cast(), CHUNK.min(len - done)), flags) {
            None if done > 0 => break,
            None => return None,
            Some(0) => break,
            Some(some) if some > 0 => some as usize,
            Some(failed) if done == 0 => return Some(failed),
            Some(_) => {
                let error = next::errno();
                if error != libc::EAGAIN && error != libc::EINTR {
                    connection.end().keep(Errno(error));
                }
                break;
            }
        };
        // SAFETY: `receive` has written so many bytes.
        let bytes = unsafe { core::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), some) };
        if !give(to, bytes) {
            return Some(if done > 0 { done as isize } else { fail(libc::EPIPE) });
        }
        done += some;
    }
    Some(done as isize)
}

/// Writes bytes to a pipe that had room for them. Another writer may have taken it: then this one waits. False: the
/// pipe has no reader any more.
fn give(to: i32, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        match rustix::io::write(borrow(to), bytes) {
            Ok(some) => bytes = bytes.get(some..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => nap(),
            Err(_) => return false,
        }
    }
    true
}

/// Bytes that a connection surely takes at once.
fn room(connection: &Use) -> usize {
    let end = connection.end();
    if end.sends_by_ring_alone() {
        return end.out.room().map_or(0, |room| MOST.min(room as usize));
    }
    let is_full = end.writable() == Writable::AsKernel && connection.ask(POLLOUT) & (POLLOUT | POLLERR | POLLHUP) == 0;
    if is_full { 0 } else { MOST }
}

/// Memory for many bytes, for a while.
struct Mapping(*mut c_void, usize);

impl Mapping {
    fn new(len: usize) -> Option<Mapping> {
        let all = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
        let private = rustix::mm::MapFlags::PRIVATE;
        // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
        let memory = unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), len, all, private) };
        memory.ok().map(|memory| Mapping(memory, len))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping of this value, to which there is no reference any more.
        let _ = unsafe { rustix::mm::munmap(self.0, self.1) };
    }
}

/// From a pipe into a connection. `None`: the kernel has to do it.
fn from_pipe(connection: &Use, from: i32, len: usize, waits: bool) -> Option<isize> {
    let mut few = MaybeUninit::<[u8; FEW]>::uninit();
    let (mut done, mut until) = (0, None);
    let ends = |done: usize, failed: isize| Some(if done > 0 { done as isize } else { failed });
    while done < len {
        let events = match poll(from, POLLIN, false) {
            Ok(0) if done > 0 => break,
            Ok(0) if waits => poll(from, POLLIN, true),
            other => other,
        };
        match events {
            Ok(events) if events & POLLIN != 0 => {}
            // Empty, and without a writer.
            Ok(events) if events & (POLLHUP | POLLERR) != 0 => break,
            Ok(_) => return Some(fail(libc::EAGAIN)),
            Err(error) => return ends(done, fail(error)),
        }
        // A connection that takes nothing any more takes nothing out of the pipe.
        match send_all(connection, &one(few.as_ptr().cast(), 0), 0) {
            None => return if done > 0 { Some(done as isize) } else { None },
            Some(failed @ ..0) => return ends(done, failed),
            Some(_) => {}
        }
        let room = room(connection);
        if room == 0 {
            if !connection.blocks() {
                return ends(done, fail(libc::EAGAIN));
            }
            if until.is_none() {
                until = connection.most_wait(false).map(|most| kernel::now() + most);
            }
            match connection.wait(false, until) {
                Ok(true) => continue,
                Ok(false) => return ends(done, fail(libc::EAGAIN)),
                Err(error) => return ends(done, fail(error)),
            }
        }
        let there = rustix::io::ioctl_fionread(borrow(from)).map_or(0, |there| there as usize);
        let wanted = room.min(len - done).min(there.max(1));
        let mut many = if wanted > FEW { Mapping::new(wanted) } else { None };
        // SAFETY: bytes may be uninitialized here, and there are so many.
        let place = unsafe {
            match &mut many {
                Some(many) => core::slice::from_raw_parts_mut(many.0.cast::<MaybeUninit<u8>>(), wanted),
                None => core::slice::from_raw_parts_mut(few.as_mut_ptr().cast(), wanted.min(FEW)),
            }
        };
        let bytes = match take(from, place) {
            Ok([]) => break,
            Ok(bytes) => &*bytes,
            // Another reader was faster: the wait at the loop's begin is for bytes, and ends with a signal.
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => continue,
            Err(error) => return ends(done, fail(error.raw_os_error())),
        };
        if !send_rest(connection, bytes) {
            return ends(done, -1);
        }
        done += bytes.len();
    }
    Some(done as isize)
}

/// Takes bytes out of a pipe, without waiting for any.
fn take(from: i32, place: &mut [MaybeUninit<u8>]) -> rustix::io::Result<&mut [u8]> {
    /// The place of a file that has none (preadv2(2)).
    const NOWHERE: i64 = -1;
    let mut piece = libc::iovec { iov_base: place.as_mut_ptr().cast(), iov_len: place.len() };
    // SAFETY: a piece of memory that lives until the call returns. The number is used, as the C library's function is a
    // cancellation point.
    let got =
        unsafe { libc::syscall(libc::SYS_preadv2, from, &raw mut piece, 1usize, NOWHERE, 0usize, libc::RWF_NOWAIT) };
    let got = match usize::try_from(got) {
        Ok(got) => got,
        // Pipes before Linux 6.5, and those with a name.
        Err(_) if next::errno() == libc::EOPNOTSUPP => return take_by_pipe(from, place),
        Err(_) => return Err(rustix::io::Errno::from_raw_os_error(next::errno())),
    };
    // SAFETY: the kernel has written so many bytes.
    Ok(unsafe { core::slice::from_raw_parts_mut(place.as_mut_ptr().cast(), got.min(place.len())) })
}

/// As [`take`], by way of a pipe that nobody else has: splice(2) between pipes need not wait.
fn take_by_pipe(from: i32, place: &mut [MaybeUninit<u8>]) -> rustix::io::Result<&mut [u8]> {
    let (out, into) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let flags = rustix::pipe::SpliceFlags::NONBLOCK;
    match rustix::pipe::splice(borrow(from), None, &into, None, place.len(), flags)? {
        // The other ends of `from` are closed.
        0 => Ok(&mut []),
        // What has come fits in one read: it is as long as the place at most, and nobody else reads.
        _ => rustix::io::read(&out, place).map(|(bytes, _)| bytes),
    }
}

/// Sends bytes for which there was room. Another sender may have taken it: then this one waits. False: the connection
/// takes none of them, and errno says why.
fn send_rest(connection: &Use, bytes: &[u8]) -> bool {
    let mut sent = 0;
    while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
        let result = send_all(connection, &one(rest.as_ptr().cast(), rest.len()), libc::MSG_DONTWAIT);
        match result.unwrap_or_else(|| by_tcp(connection.fd, rest)) {
            some @ 0.. => sent += some as usize,
            _ if next::errno() == libc::EAGAIN => nap(),
            _ => return sent > 0,
        }
    }
    true
}

fn by_tcp(fd: i32, bytes: &[u8]) -> isize {
    let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
    match rustix::net::send(borrow(fd), bytes, flags) {
        Ok(some) => some as isize,
        Err(error) => fail(error.raw_os_error()),
    }
}

/// Whether one of the two is a connection that is known.
unsafe extern "C" fn splice_needs_us(from: i32, _from_offset: *mut i64, to: i32) -> i32 {
    i32::from(table::tag(from) != Tag::Unknown || table::tag(to) != Tag::Unknown)
}

unsafe extern "C" fn splice_known(
    from: i32,
    from_offset: *mut i64,
    to: i32,
    to_offset: *mut i64,
    len: usize,
    flags: u32,
) -> isize {
    let by_kernel = || {
        let (from_offset, to_offset) = (from_offset.cast::<c_void>(), to_offset.cast::<c_void>());
        // SAFETY: the caller's arguments.
        unsafe { point_at!(splice, from, from_offset, to, to_offset, len, flags) }
    };
    // The kernel refuses all else where one of the two is a socket: two sockets, and places in them or in a pipe.
    let is_plain = from_offset.is_null() && to_offset.is_null() && len > 0 && flags & !KNOWN == 0;
    let waits = flags & libc::SPLICE_F_NONBLOCK == 0;
    if is_plain && let Some(never_waits) = pipe(to, OFlags::WRONLY) {
        let by_ring =
            |connection: &Use| into_pipe(connection, to, len, waits && !never_waits).unwrap_or_else(by_kernel);
        return with(from, by_ring, by_kernel);
    }
    if is_plain && let Some(never_waits) = pipe(from, OFlags::RDONLY) {
        let by_ring =
            |connection: &Use| from_pipe(connection, from, len, waits && !never_waits).unwrap_or_else(by_kernel);
        return with(to, by_ring, by_kernel);
    }
    by_kernel()
}

points_if! {
    splice splice splice_needs_us, splice_known;
}

/// sendfile(2) from a connection, which Linux takes where the other file is a pipe (`do_sendfile`). `None`: the kernel
/// has to refuse it, or it is none of ours.
pub fn send_connection(to: i32, connection: i32, count: usize) -> Option<isize> {
    let never_waits = pipe(to, OFlags::WRONLY)?;
    let connection = work::connection(connection)?;
    into_pipe(&connection, to, count, !never_waits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn nothing_is_waited_for_in_a_pipe() {
        let (from, to) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        for way in [take, take_by_pipe] {
            let mut place = [MaybeUninit::uninit(); 10];
            assert_eq!(way(from.as_raw_fd(), &mut place), Err(rustix::io::Errno::AGAIN));
            rustix::io::write(&to, b"abc").unwrap();
            assert_eq!(way(from.as_raw_fd(), &mut place[..2]).unwrap(), b"ab");
            assert_eq!(way(from.as_raw_fd(), &mut place).unwrap(), b"c");
        }
        drop(to);
        for way in [take, take_by_pipe] {
            let mut place = [MaybeUninit::uninit(); 10];
            assert_eq!(way(from.as_raw_fd(), &mut place).unwrap(), b"");
        }
    }
}
