//! The functions of `sys/exs.h` for descriptors of socket(2). A call without a queue is the kernel's own.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use exs::socket::{Event, EventKind};
use libc::{c_int, c_void, sockaddr, socklen_t};
use rdma::Errno;

use crate::ctypes::*;
use crate::entry::refuse;
use crate::memory;
use crate::queue::{Cancel, Limit, Op, run};
use crate::socket::kernel;
use crate::tcp::{Job, Tcp, Work, find, nonblocking};

/// Begin an operation of a socket.
fn begin(
    tcp: &Arc<Tcp>,
    op: Op,
    queue: i32,
    work: Work,
    places: VecDeque<(usize, usize)>,
) -> Result<Option<exs_event>, Errno> {
    let fd = op.fd;
    run(queue, op, Limit::Time(None), |queue, key| {
        tcp.begin(fd, Job { work, places, done: 0, queue: queue.clone(), key })?;
        Ok(Cancel::Tcp(tcp.clone()))
    })
}

/// `exs_accept`.
pub fn accept(op: Op, flags: c_int, queue: i32) -> Result<c_int, Errno> {
    let tcp = find(op.fd)?;
    if queue == INVALID {
        let call = || {
            // SAFETY: no memory is involved.
            kernel(unsafe { libc::accept4(op.fd, std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC) })
        };
        let made = if flags & libc::MSG_DONTWAIT != 0 { nonblocking(op.fd, call)? } else { call()? };
        op.fill.addresses_of(made);
        return Ok(made);
    }
    begin(&tcp, op, queue, Work::Accept, VecDeque::new()).map(|_| 0)
}

/// `exs_connect`.
///
/// # Safety
/// `to` is null or points to `len` bytes.
pub unsafe fn connect(op: Op, to: *const sockaddr, len: socklen_t, queue: i32) -> Result<c_int, Errno> {
    let tcp = find(op.fd)?;
    // SAFETY: the caller's promise.
    let call = || kernel(unsafe { libc::connect(op.fd, to, len) });
    if queue == INVALID {
        return call();
    }
    // Before the connection begins, which cannot be taken back. `begin` checks again.
    let place = crate::queue::find(queue)?;
    if place.core.in_use() >= place.core.depth() {
        return refuse(libc::EAGAIN);
    }
    match nonblocking(op.fd, call) {
        Ok(_) | Err(Errno(libc::EINPROGRESS)) => {}
        Err(errno) => return Err(errno),
    }
    begin(&tcp, op, queue, Work::Connect, VecDeque::new()).map(|_| 0)
}

/// Put the event of an operation that has ended.
fn ended(op: Op, queue: i32) -> Result<c_int, Errno> {
    run(queue, op, Limit::End, |queue, key| {
        queue.reserve()?;
        queue.put(Event::new(EventKind::Other, key, Ok(0)));
        Ok(Cancel::None)
    })
    .map(|_| 0)
}

/// `exs_close`.
pub fn close(op: Op, queue: i32) -> Result<c_int, Errno> {
    let (tcp, fd) = (find(op.fd)?, op.fd);
    let end = || {
        tcp.cancel_all();
        // SAFETY: the program has given the descriptor up.
        kernel(unsafe { libc::close(fd) })
    };
    if queue == INVALID {
        return end();
    }
    run(queue, op, Limit::End, |queue, key| {
        queue.reserve()?;
        if let Err(errno) = end() {
            queue.release();
            return Err(errno);
        }
        queue.put(Event::new(EventKind::Other, key, Ok(0)));
        Ok(Cancel::None)
    })
    .map(|_| 0)
}

/// `exs_shutdown`.
pub fn shutdown(op: Op, how: c_int, queue: i32) -> Result<c_int, Errno> {
    find(op.fd)?;
    // SAFETY: no memory is involved.
    kernel(unsafe { libc::shutdown(op.fd, how) })?;
    if queue == INVALID { Ok(0) } else { ended(op, queue) }
}

/// `exs_send`, `exs_recv` and their forms with a message.
pub fn transfer(iovs: &[exs_iovec], flags: c_int, queue: i32, mut op: Op) -> Result<isize, Errno> {
    let tcp = find(op.fd)?;
    let receive = matches!(op.kind, EVT_RECV | EVT_RECVMSG);
    let (places, hold) = memory::places(iovs, receive)?;
    if tcp.stream && places.is_empty() {
        return refuse(libc::EINVAL);
    }
    op.hold = hold;
    if queue == INVALID {
        return at_once(&places, flags, receive, op.fd);
    }
    let all = flags & libc::MSG_WAITALL != 0;
    let work = if receive { Work::Receive { all } } else { Work::Send };
    begin(&tcp, op, queue, work, places.into()).map(|_| 0)
}

/// The kernel's own call.
fn at_once(places: &[(usize, usize)], flags: c_int, receive: bool, fd: c_int) -> Result<isize, Errno> {
    let mut pieces: Vec<libc::iovec> =
        places.iter().map(|(start, len)| libc::iovec { iov_base: *start as *mut c_void, iov_len: *len }).collect();
    // SAFETY: a message without an address or control data; the kernel checks the places.
    let done = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = pieces.len() as _;
        match receive {
            true => libc::recvmsg(fd, &raw mut message, flags & !libc::MSG_NOSIGNAL),
            false => libc::sendmsg(fd, &raw const message, flags | libc::MSG_NOSIGNAL),
        }
    };
    if done >= 0 { Ok(done) } else { refuse(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)) }
}

/// A part of a file, and what goes before and behind it.
pub struct Parts {
    pub file: OwnedFd,
    pub offset: i64,
    pub len: usize,
    pub header: Vec<exs_iovec>,
    pub trailer: Vec<exs_iovec>,
}

/// `exs_sendfile`; the number of bytes if the call waits.
pub fn sendfile(parts: Parts, queue: i32, mut op: Op) -> Result<isize, Errno> {
    let tcp = find(op.fd)?;
    let Parts { file, offset, len, mut header, trailer } = parts;
    let (places, _) = memory::places(&header, false)?;
    let before = places.len();
    header.extend(trailer);
    let (places, hold) = memory::places(&header, false)?;
    op.hold = hold;
    let work = Work::File { file, offset, left: len, before };
    let event = begin(&tcp, op, queue, work, places.into())?;
    Ok(event.map_or(0, |event| event.length as isize))
}
