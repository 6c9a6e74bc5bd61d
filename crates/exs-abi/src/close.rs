//! `exs_close` and `exs_shutdown`.

use exs::socket::{Event, EventKind, Queue};
use libc::c_int;
use rdma::Errno;

use crate::ctypes::*;
use crate::entry::{call, refuse};
use crate::queue::{Cancel, Limit, Op, run};
use crate::socket::{Stage, get};
use crate::tcp_calls as tcp;

/// Put an event of an operation that has ended.
pub fn ended(queue: &Queue, kind: EventKind, key: u64) -> Result<Cancel, Errno> {
    queue.reserve()?;
    queue.put(Event::new(kind, key, Ok(0)));
    Ok(Cancel::None)
}

/// `exs_close`: pending operations end with ECANCELED, then comes CLOSE, and the number is free when it is taken. With
/// EXS_QHANDLE_INVALID the call waits for that.
#[unsafe(no_mangle)]
pub extern "C" fn exs_close(fd: c_int, queue: i32, ahandle: isize) -> c_int {
    call(|| {
        let Some(sock) = get(fd) else { return tcp::close(Op::new(EVT_CLOSE, fd, ahandle), queue) };
        let mut op = Op::new(EVT_CLOSE, fd, ahandle);
        op.sock = Some(sock.clone());
        run(queue, op, Limit::End, |queue, key| {
            let mut state = sock.state();
            match &state.stage {
                Stage::Closing => return refuse(libc::EBADF),
                Stage::Connecting(socket) | Stage::Connected(socket) => socket.close(queue, key)?,
                Stage::New(_) => {
                    ended(queue, EventKind::Close, key)?;
                }
                Stage::Listening(listener) => {
                    // The place is taken first: the events of its accepts come before this one.
                    queue.reserve()?;
                    let _ = listener.close();
                    queue.put(Event::new(EventKind::Close, key, Ok(0)));
                }
            }
            state.stage = Stage::Closing;
            Ok(Cancel::None)
        })?;
        Ok(0)
    })
}

/// `exs_shutdown`: SHUT_WR sends the end of the data behind what is pending; after SHUT_RD receives find the end.
/// ENOTCONN, EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn exs_shutdown(fd: c_int, how: c_int, queue: i32, ahandle: isize) -> c_int {
    call(|| {
        let Some(sock) = get(fd) else { return tcp::shutdown(Op::new(EVT_SHUTDOWN, fd, ahandle), how, queue) };
        if !matches!(how, libc::SHUT_RD | libc::SHUT_WR | libc::SHUT_RDWR) {
            return refuse(libc::EINVAL);
        }
        let socket = sock.connection()?;
        let op = Op::new(EVT_SHUTDOWN, fd, ahandle);
        run(queue, op, Limit::End, |queue, key| {
            queue.reserve()?;
            if how != libc::SHUT_RD
                && let Err(errno) = socket.shutdown()
            {
                queue.release();
                return Err(errno);
            }
            sock.state().deaf |= how != libc::SHUT_WR;
            queue.put(Event::new(EventKind::Other, key, Ok(0)));
            Ok(Cancel::None)
        })?;
        Ok(0)
    })
}
