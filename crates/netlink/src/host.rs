//! The kernel's own answers.

use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, sockopt};

use crate::message::{self, ACK, DONE, DUMP, ERROR, MULTI};

/// How long the kernel may take. It answers at once, but for a driver that asks its adapter.
const PATIENCE: Duration = Duration::from_secs(1);
/// Room for a datagram, in bytes, as the kernel fills it at most.
const ROOM: usize = 32 << 10;

/// The thread for which the kernel is to answer, or 0.
static HOST_ONLY: AtomicI32 = AtomicI32::new(0);

/// Run a function that must see the kernel's devices and not this one: rdma-core's own library, when it looks for real
/// adapters. Sockets that this thread opens meanwhile are the kernel's. If two threads do so at once, the second one's
/// are not.
pub fn host_only<R>(run: impl FnOnce() -> R) -> R {
    let me = rustix::thread::gettid().as_raw_nonzero().get();
    let mine = HOST_ONLY.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    let result = run();
    if mine {
        HOST_ONLY.store(0, Ordering::Relaxed);
    }
    result
}

/// True on a thread inside [`host_only`].
pub fn is_host_only() -> bool {
    let thread = HOST_ONLY.load(Ordering::Relaxed);
    thread != 0 && thread == rustix::thread::gettid().as_raw_nonzero().get()
}

/// Ask the kernel; `None` if it has no RDMA, or does not answer.
pub(crate) fn ask(request: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (header, _) = message::messages(request).next()?;
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::RDMA)).ok()?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE)).ok()?;
    rustix::net::send(&socket, request, SendFlags::empty()).ok()?;
    let mut answers = Vec::new();
    loop {
        let mut room = vec![0; ROOM];
        let (len, _) = rustix::net::recv(&socket, room.as_mut_slice(), RecvFlags::empty()).ok()?;
        room.truncate(len);
        let more = message::messages(&room).all(|(answer, _)| match answer.kind {
            DONE | ERROR => false,
            _ => header.flags & (ACK | DUMP) != 0 || answer.flags & MULTI != 0,
        });
        answers.push(room);
        if !more || len == 0 {
            return Some(answers);
        }
    }
}
