//! `exs_fcntl`, options of sockets, and addresses.

use std::sync::atomic::Ordering;
use std::time::Duration;

use exs::protocol::{Kind, MAX_SMALL};
use libc::{c_int, c_void, sockaddr, socklen_t};
use rdma::Errno;

use crate::address;
use crate::ctypes::*;
use crate::entry::{call, read, refuse};
use crate::socket::{Sock, Stage, find, get, kernel};

/// `exs_fcntl`. EINVAL: an unknown command, or a value out of range. EISCONN: EXS_F_SETSMALL or EXS_F_SETCREDITS after
/// connecting or listening, EXS_F_SETTIMEOUT after listening.
///
/// The header declares the argument as variable; on the machines of this library it is passed like a named one.
#[unsafe(no_mangle)]
pub extern "C" fn exs_fcntl(fd: c_int, command: c_int, argument: c_int) -> c_int {
    call(|| {
        let Some(sock) = get(fd) else {
            if matches!(command, F_GETSMALL..=F_SETTIMEOUT) {
                // A TCP socket has none of these.
                // SAFETY: no memory is involved.
                return kernel(unsafe { libc::fcntl(fd, libc::F_GETFD) }).and_then(|_| refuse(libc::EOPNOTSUPP));
            }
            // SAFETY: the commands of the header take numbers; the kernel checks pointers of others.
            return kernel(unsafe { libc::fcntl(fd, command, argument) });
        };
        let mut state = sock.state();
        match command {
            libc::F_GETFL => {
                let nonblock = if sock.nonblock.load(Ordering::Relaxed) { libc::O_NONBLOCK } else { 0 };
                Ok(libc::O_RDWR | nonblock)
            }
            libc::F_SETFL => {
                sock.nonblock.store(argument & libc::O_NONBLOCK != 0, Ordering::Relaxed);
                Ok(0)
            }
            // SAFETY: no memory is involved.
            libc::F_GETFD => kernel(unsafe { libc::fcntl(fd, libc::F_GETFD) }),
            // SAFETY: no memory is involved.
            libc::F_SETFD => kernel(unsafe { libc::fcntl(fd, libc::F_SETFD, argument) }),
            F_GETSMALL => Ok(state.options.small as c_int),
            F_GETCREDITS => Ok(state.options.credits.into()),
            F_GETTIMEOUT => {
                let timeout = match &state.stage {
                    Stage::Connecting(socket) | Stage::Connected(socket) => socket.timeout(),
                    _ => state.options.timeout,
                };
                Ok(c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX))
            }
            F_SETTIMEOUT => {
                let timeout = u64::try_from(argument).map_err(|_| Errno(libc::EINVAL))?;
                let timeout = Duration::from_millis(timeout);
                match &state.stage {
                    Stage::New(_) => state.options.timeout = timeout,
                    Stage::Connecting(socket) | Stage::Connected(socket) => socket.set_timeout(timeout),
                    Stage::Listening(_) => return refuse(libc::EISCONN),
                    Stage::Closing => return refuse(libc::EBADF),
                }
                Ok(0)
            }
            F_SETSMALL | F_SETCREDITS => {
                if !matches!(state.stage, Stage::New(_)) {
                    return refuse(libc::EISCONN);
                }
                let value = u32::try_from(argument).map_err(|_| Errno(libc::EINVAL))?;
                match command {
                    F_SETSMALL if value <= MAX_SMALL => state.options.small = value,
                    F_SETCREDITS if (1..=1024).contains(&value) => state.options.credits = value as u16,
                    _ => return refuse(libc::EINVAL),
                }
                Ok(0)
            }
            _ => refuse(libc::EINVAL),
        }
    })
}

/// The value of an option.
enum Value {
    Number(c_int),
    Time(Option<Duration>),
}

fn option(sock: &Sock, level: c_int, name: c_int) -> Result<Value, Errno> {
    let mut state = sock.state();
    if matches!(state.stage, Stage::Closing) {
        return refuse(libc::EBADF);
    }
    if level != libc::SOL_SOCKET {
        return refuse(libc::ENOPROTOOPT);
    }
    Ok(match name {
        libc::SO_TYPE => Value::Number(match state.options.kind {
            Kind::Stream => libc::SOCK_STREAM,
            Kind::SeqPacket => libc::SOCK_SEQPACKET,
        }),
        libc::SO_DOMAIN => Value::Number(sock.domain),
        libc::SO_PROTOCOL => Value::Number(0),
        libc::SO_ERROR => Value::Number(std::mem::take(&mut state.error)),
        libc::SO_ACCEPTCONN => Value::Number(matches!(state.stage, Stage::Listening(_)).into()),
        libc::SO_RCVTIMEO => Value::Time(state.receive_time),
        libc::SO_SNDTIMEO => Value::Time(state.send_time),
        _ => return refuse(libc::ENOPROTOOPT),
    })
}

/// `exs_getsockopt`: SO_TYPE, SO_DOMAIN, SO_PROTOCOL, SO_ERROR, SO_ACCEPTCONN, SO_RCVTIMEO, SO_SNDTIMEO. ENOPROTOOPT
/// for all others.
///
/// # Safety
/// `len` is null or points to the number of bytes at `value`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    call(|| {
        let Some(sock) = get(fd) else {
            // SAFETY: the caller's promise.
            return kernel(unsafe { libc::getsockopt(fd, level, name, value, len) });
        };
        let found = option(&sock, level, name)?;
        if value.is_null() {
            return refuse(libc::EFAULT);
        }
        // SAFETY: the caller's promise.
        let room = unsafe { read(len)? } as usize;
        let put = |from: *const u8, size: usize| {
            // SAFETY: `from` has `size` bytes, and `value` has `room`: the caller's promise. `read` has found `len`.
            unsafe {
                std::ptr::copy_nonoverlapping(from, value.cast::<u8>(), room.min(size));
                len.write_unaligned(room.min(size) as socklen_t);
            }
        };
        match found {
            Value::Number(number) => put((&raw const number).cast(), size_of::<c_int>()),
            Value::Time(time) => {
                let time = time.unwrap_or_default();
                let time =
                    libc::timeval { tv_sec: time.as_secs() as libc::time_t, tv_usec: time.subsec_micros().into() };
                put((&raw const time).cast(), size_of_val(&time));
            }
        }
        Ok(0)
    })
}

/// `exs_setsockopt`: SO_RCVTIMEO and SO_SNDTIMEO; SO_REUSEADDR, SO_KEEPALIVE and SO_LINGER are taken and mean nothing
/// here. ENOPROTOOPT for all others.
///
/// # Safety
/// `value` is null or points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    call(|| {
        let Some(sock) = get(fd) else {
            // SAFETY: the caller's promise.
            return kernel(unsafe { libc::setsockopt(fd, level, name, value, len) });
        };
        let mut state = sock.state();
        if matches!(state.stage, Stage::Closing) {
            return refuse(libc::EBADF);
        }
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => {
                if (len as usize) < size_of::<libc::timeval>() {
                    return refuse(libc::EINVAL);
                }
                if value.is_null() {
                    return refuse(libc::EFAULT);
                }
                // SAFETY: the caller's promise. EDOM is setsockopt(2)'s answer to a time that is not normal.
                let time = unsafe { crate::entry::duration(value.cast()) }.map_err(|_| Errno(libc::EDOM))?;
                // No time is no limit.
                let time = time.filter(|time| !time.is_zero());
                *if name == libc::SO_RCVTIMEO { &mut state.receive_time } else { &mut state.send_time } = time;
                Ok(0)
            }
            (libc::SOL_SOCKET, libc::SO_REUSEADDR | libc::SO_KEEPALIVE | libc::SO_LINGER) => Ok(0),
            _ => refuse(libc::ENOPROTOOPT),
        }
    })
}

/// `exs_getsockname`: the address, or that of no interface before there is one.
///
/// # Safety
/// `len` is null or points to the number of bytes at `to`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_getsockname(fd: c_int, to: *mut sockaddr, len: *mut socklen_t) -> c_int {
    call(|| {
        let Some(sock) = get(fd) else {
            // SAFETY: the caller's promise.
            return kernel(unsafe { libc::getsockname(fd, to, len) });
        };
        let addr = match &sock.state().stage {
            Stage::New(bound) => bound.as_ref().and_then(exs::socket::Bound::local_addr),
            Stage::Listening(listener) => listener.local_addr(),
            Stage::Connecting(socket) | Stage::Connected(socket) => socket.local_addr(),
            Stage::Closing => return refuse(libc::EBADF),
        };
        // SAFETY: the caller's promise.
        unsafe { address::write(addr.unwrap_or_else(|| address::any(sock.domain)), to, len)? };
        Ok(0)
    })
}

/// `exs_getpeername`. ENOTCONN.
///
/// # Safety
/// `len` is null or points to the number of bytes at `to`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_getpeername(fd: c_int, to: *mut sockaddr, len: *mut socklen_t) -> c_int {
    call(|| {
        if get(fd).is_none() {
            // SAFETY: the caller's promise.
            return kernel(unsafe { libc::getpeername(fd, to, len) });
        }
        let addr = find(fd)?.connection()?.peer_addr().ok_or(Errno(libc::ENOTCONN))?;
        // SAFETY: the caller's promise.
        unsafe { address::write(addr, to, len)? };
        Ok(0)
    })
}
