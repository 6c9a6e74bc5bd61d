//! `exs_send`, `exs_recv` and their forms with a message.

use std::time::{Duration, Instant};

use exs::socket::{Event, EventKind};
use libc::{c_int, c_void};
use rdma::Errno;

use crate::ctypes::*;
use crate::entry::{call, read, read_array, refuse};
use crate::memory;
use crate::queue::{Cancel, Fill, Limit, Op, run};
use crate::socket::get;
use crate::tcp_calls as tcp;

/// Pieces of a message (IOV_MAX).
const PIECES: usize = 1024;

/// The limit of a call without a queue.
pub fn limit(flags: c_int, nonblocking: bool, time: Option<Duration>) -> Limit {
    if flags & libc::MSG_DONTWAIT != 0 || nonblocking { Limit::Time(Some(Duration::ZERO)) } else { Limit::Time(time) }
}

/// Flags of a send that change nothing here: no call raises SIGPIPE, and every packet is a record.
const SEND_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_EOR;
const RECEIVE_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;

/// Begin a transfer; the number of bytes if the call waits.
fn transfer(iovs: &[exs_iovec], flags: c_int, queue: i32, mut op: Op) -> Result<isize, Errno> {
    let receive = matches!(op.kind, EVT_RECV | EVT_RECVMSG);
    let sock = get(op.fd);
    let others = match sock {
        Some(_) if receive && flags & libc::MSG_WAITALL == 0 => libc::MSG_PEEK,
        Some(_) if !receive => PERSISTENT,
        _ => 0,
    };
    if flags & !(others | if receive { RECEIVE_FLAGS } else { SEND_FLAGS }) != 0 {
        return refuse(libc::EOPNOTSUPP);
    }
    let Some(sock) = sock else { return tcp::transfer(iovs, flags, queue, op) };
    let socket = sock.connection()?;
    let memory::Span { memory, range, hold } = memory::span(iovs, receive)?;
    op.hold = hold;
    let time = {
        let state = sock.state();
        if receive { state.receive_time } else { state.send_time }
    };
    op.deadline = time.and_then(|time| Instant::now().checked_add(time)).filter(|_| queue != INVALID);
    let limit = limit(flags, sock.is_nonblocking(), time);
    let event = run(queue, op, limit, |queue, key| {
        let number = match receive {
            true if sock.is_deaf() => {
                queue.reserve()?;
                queue.put(Event { end: true, ..Event::new(EventKind::Receive, key, Ok(0)) });
                return Ok(Cancel::None);
            }
            true if flags & libc::MSG_PEEK != 0 => socket.peek(&memory, range, queue, key)?,
            true => socket.receive(&memory, range, flags & libc::MSG_WAITALL != 0, queue, key)?,
            false if flags & PERSISTENT != 0 => socket.send_persistent(&memory, range, queue, key)?,
            false => socket.send(&memory, range, queue, key)?,
        };
        Ok(Cancel::Transfer(socket.clone(), number))
    })?;
    Ok(event.map_or(0, |event| event.length as isize))
}

/// Check a descriptor, before anything else is looked at. EBADF, ENOTSOCK.
pub fn known(fd: c_int) -> Result<(), Errno> {
    if get(fd).is_some() { Ok(()) } else { crate::tcp::find(fd).map(drop) }
}

fn one(buffer: *mut c_void, len: usize, memory: i32) -> [exs_iovec; 1] {
    [exs_iovec { base: buffer, len, memory, reserved: 0 }]
}

/// `exs_send`. EINVAL: no such handle, the buffer is not inside it, 0 bytes on a stream. EMSGSIZE: more than 2^31
/// bytes. EAGAIN: too much is pending. EBADF, ENOTCONN, EPIPE, ECONNRESET; EOPNOTSUPP for a flag.
#[unsafe(no_mangle)]
pub extern "C" fn exs_send(
    fd: c_int,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
    queue: i32,
    ahandle: isize,
    memory: i32,
) -> isize {
    call(|| transfer(&one(buffer.cast_mut(), len, memory), flags, queue, Op::new(EVT_SEND, fd, ahandle)))
}

/// `exs_recv`; errors as those of `exs_send`. With MSG_PEEK the bytes stay, and EAGAIN says that it would wait.
#[unsafe(no_mangle)]
pub extern "C" fn exs_recv(
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    flags: c_int,
    queue: i32,
    ahandle: isize,
    memory: i32,
) -> isize {
    call(|| transfer(&one(buffer, len, memory), flags, queue, Op::new(EVT_RECV, fd, ahandle)))
}

/// A message with its pieces. EISCONN: it names an address. EOPNOTSUPP: it has control data. EMSGSIZE: more than 1024
/// pieces.
///
/// # Safety
/// `at` is null or points to a message, whose array has as many pieces as it says.
unsafe fn message(at: *const exs_msghdr) -> Result<Vec<exs_iovec>, Errno> {
    // SAFETY: the caller's promise.
    let message = unsafe { read(at)? };
    if !message.name.is_null() && message.name_len > 0 {
        return refuse(libc::EISCONN);
    }
    if !message.control.is_null() && message.control_len > 0 {
        return refuse(libc::EOPNOTSUPP);
    }
    if message.iov_len > PIECES as c_int {
        return refuse(libc::EMSGSIZE);
    }
    if message.iov_len == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the caller's promise.
    unsafe { read_array(message.iov.cast_const(), message.iov_len, PIECES) }
}

/// `exs_sendmsg`: the pieces are one packet, or follow each other in the stream.
///
/// # Safety
/// `at` is null or points to a message until the event; its array has as many pieces as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_sendmsg(
    fd: c_int,
    at: *const exs_msghdr,
    flags: c_int,
    queue: i32,
    ahandle: isize,
) -> isize {
    call(|| {
        known(fd)?;
        // SAFETY: the caller's promise.
        let pieces = unsafe { message(at)? };
        let fill = Fill::Message(at.cast_mut());
        transfer(&pieces, flags, queue, Op { fill, ..Op::new(EVT_SENDMSG, fd, ahandle) })
    })
}

/// `exs_recvmsg`: one packet, or bytes of the stream, into the pieces one after the other.
///
/// # Safety
/// As [`exs_sendmsg`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_recvmsg(
    fd: c_int,
    at: *mut exs_msghdr,
    flags: c_int,
    queue: i32,
    ahandle: isize,
) -> isize {
    call(|| {
        known(fd)?;
        // SAFETY: the caller's promise.
        let pieces = unsafe { message(at)? };
        let fill = Fill::Message(at);
        transfer(&pieces, flags, queue, Op { fill, ..Op::new(EVT_RECVMSG, fd, ahandle) })
    })
}
