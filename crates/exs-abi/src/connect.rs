//! `exs_accept` and `exs_connect`.

use std::net::SocketAddr;

use libc::{c_int, sockaddr, socklen_t};
use rdma::Errno;

use crate::address;
use crate::ctypes::*;
use crate::device::device;
use crate::entry::{call, refuse};
use crate::queue::{Cancel, Fill, Limit, Op, run};
use crate::socket::{Stage, get};
use crate::tcp_calls as tcp;
use crate::transfer::limit;

impl Fill {
    /// Fill the addresses of a TCP connection in, as the kernel has them.
    pub fn addresses_of(&self, fd: c_int) {
        let Fill::Addresses(to) = *self else { return };
        // SAFETY: the program gave the structure and what it names to the operation until its event.
        unsafe {
            let (local, peer) = ((&raw const (*to).local).read_unaligned(), (&raw const (*to).peer).read_unaligned());
            if !local.is_null() {
                libc::getsockname(fd, local, &raw mut (*to).local_len);
            }
            if !peer.is_null() {
                libc::getpeername(fd, peer, &raw mut (*to).peer_len);
            }
        }
    }

    /// Fill the addresses of an accepted connection in.
    pub fn addresses(&self, local: Option<SocketAddr>, peer: Option<SocketAddr>) {
        let Fill::Addresses(to) = *self else { return };
        // SAFETY: the program gave the structure and what it names to the operation until its event.
        unsafe {
            for (addr, at, len) in [
                (local, (&raw const (*to).local).read_unaligned(), &raw mut (*to).local_len),
                (peer, (&raw const (*to).peer).read_unaligned(), &raw mut (*to).peer_len),
            ] {
                if let (Some(addr), false) = (addr, at.is_null()) {
                    // Neither pointer is null.
                    let _ = address::write(addr, at, len);
                }
            }
        }
    }
}

/// `exs_accept`: with a queue, an ACCEPT event brings the descriptor; without, it is the result. EINVAL: not listening,
/// or a flag other than 0 and MSG_DONTWAIT.
///
/// # Safety
/// `addresses` is null, or points to its structure until the event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_accept(
    fd: c_int,
    addresses: *mut exs_acceptaddr,
    flags: c_int,
    queue: i32,
    ahandle: isize,
) -> c_int {
    call(|| {
        if flags & !libc::MSG_DONTWAIT != 0 {
            return refuse(libc::EINVAL);
        }
        let fill = if addresses.is_null() { Fill::None } else { Fill::Addresses(addresses) };
        let mut op = Op { fill, ..Op::new(EVT_ACCEPT, fd, ahandle) };
        let Some(sock) = get(fd) else { return tcp::accept(op, flags, queue) };
        let (listener, time) = match sock.state() {
            state if matches!(state.stage, Stage::Closing) => return refuse(libc::EBADF),
            state => match &state.stage {
                Stage::Listening(listener) => (listener.clone(), state.receive_time),
                _ => return refuse(libc::EINVAL),
            },
        };
        let limit = limit(flags, sock.is_nonblocking(), time);
        op.sock = Some(sock);
        let event = run(queue, op, limit, |queue, key| {
            listener.accept(queue, key)?;
            Ok(Cancel::Accept(listener.clone()))
        })?;
        Ok(event.map_or(0, |event| event.newfd))
    })
}

/// `exs_connect`: with a queue, a CONNECT event tells how it ends. EISCONN, EALREADY, EOPNOTSUPP: it listens.
///
/// # Safety
/// `to` is null or points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_connect(
    fd: c_int,
    to: *const sockaddr,
    len: socklen_t,
    flags: c_int,
    queue: i32,
    ahandle: isize,
) -> c_int {
    call(|| {
        if flags != 0 {
            return refuse(libc::EINVAL);
        }
        let Some(sock) = get(fd) else {
            // SAFETY: the caller's promise.
            return unsafe { tcp::connect(Op::new(EVT_CONNECT, fd, ahandle), to, len, queue) };
        };
        // SAFETY: the caller's promise.
        let to = unsafe { address::read(to, len, sock.domain)? };
        let mut op = Op::new(EVT_CONNECT, fd, ahandle);
        op.sock = Some(sock.clone());
        run(queue, op, Limit::End, |queue, key| {
            let mut state = sock.state();
            let errno = match &state.stage {
                Stage::New(_) => None,
                Stage::Listening(_) => Some(libc::EOPNOTSUPP),
                Stage::Connecting(_) => Some(libc::EALREADY),
                Stage::Connected(_) => Some(libc::EISCONN),
                Stage::Closing => Some(libc::EBADF),
            };
            if let Some(errno) = errno {
                return Err(Errno(errno));
            }
            let Stage::New(from) = std::mem::replace(&mut state.stage, Stage::New(None)) else {
                return refuse(libc::EINVAL);
            };
            let socket = device()?.connect_from(from, to, state.options, queue, key)?;
            state.stage = Stage::Connecting(socket);
            Ok(Cancel::None)
        })?;
        Ok(0)
    })
}
