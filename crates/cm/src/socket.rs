//! System calls of the host wire. None of them blocks.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use memory::fds::{FdSet, TrackedFd, peer_credentials};
use memory::names;
use memory::received_fds;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use verbs::{Errno, Result};

use crate::message::{Body, MAX_BYTES, Message, emit, parse};

pub(crate) fn errno(e: rustix::io::Errno) -> Errno {
    Errno(e.raw_os_error())
}

fn seqpacket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(errno)
}

fn address(name: &str) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(errno)
}

/// Claim a name. EADDRINUSE: another socket has it.
pub(crate) fn claim(name: &str) -> Result<OwnedFd> {
    let socket = seqpacket()?;
    rustix::net::bind(&socket, &address(name)?).map_err(errno)?;
    Ok(socket)
}

/// Claim a name and listen there ([`names`]).
pub(crate) fn listen(name: &str, over_strangers: bool) -> Result<OwnedFd> {
    let socket = names::claim(name, 4096, over_strangers)?;
    // Messages of the connection manager carry no descriptors.
    received_fds::refuse_fds(&socket);
    Ok(socket)
}

/// Connect to the holder of a name, if this process may talk to it. The result has the holder's process, 0 for one of a
/// foreign PID namespace. ECONNREFUSED: no process listens there. EACCES: only strangers do. EAGAIN: too many
/// connections wait there already.
pub(crate) fn connect(name: &str, any_user: bool) -> Result<(OwnedFd, u32)> {
    let (socket, pid, _) = names::seek(name, any_user)?;
    received_fds::refuse_fds(&socket);
    Ok((socket, pid))
}

/// Close a socket that listens. The descriptors that peers have left in their connections would be closed with the
/// socket: each connection is closed as any other ([`received_fds`]) instead.
pub(crate) fn close_listener(listener: TrackedFd, fds: &Arc<FdSet>) {
    // No connection comes from now on; those that wait can still be accepted.
    let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
    while let Ok(visitor) = accept(&listener) {
        drop(TrackedFd::connection(visitor, fds));
    }
}

/// The next connection. `None`: there is none now, or it is one of a process that this one does not talk to.
pub(crate) fn accept(listener: impl AsFd) -> Result<OwnedFd> {
    rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).map_err(errno)
}

/// The process at the other end, if this process may talk to it: it is of the same user, or any user is allowed. 0 for
/// a process of a foreign PID namespace.
pub(crate) fn peer(socket: impl AsFd, any_user: bool) -> Option<u32> {
    let (pid, uid) = peer_credentials(socket).ok()?;
    (any_user || uid == rustix::process::geteuid().as_raw()).then_some(pid)
}

pub(crate) fn send(socket: impl AsFd, bytes: &[u8]) -> Result<()> {
    rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(|_| ()).map_err(errno)
}

/// How long another process may take to answer.
const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Ask the process that listens at a name, and wait a moment for the answer. ECONNREFUSED: no process listens.
pub(crate) fn ask(name: &str, question: &Message, any_user: bool) -> Result<Option<Body>> {
    let (socket, _) = connect(name, any_user)?;
    let answer = send(&socket, &emit(question)).map(|()| {
        let _ = poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&PATIENCE));
        receive(&socket)
    });
    received_fds::close_connection(socket);
    match answer? {
        Received::Message(answer) => Ok(Some(answer.body)),
        Received::Nothing | Received::Closed => Ok(None),
    }
}

/// The result of a read from a link.
pub(crate) enum Received {
    Message(Message),
    Nothing,
    /// The other side is gone, or has sent what is no message.
    Closed,
}

pub(crate) fn receive(socket: impl AsFd) -> Received {
    // One byte more than the longest message, so that a longer one shows.
    let mut bytes = [0u8; MAX_BYTES + 1];
    loop {
        match received_fds::receive(&socket, &mut bytes) {
            Ok(heard) => {
                let told = bytes.get(..heard.len).filter(|_| heard.len > 0 && heard.received_fds.is_empty());
                return told.and_then(|b| parse(b).ok()).map_or(Received::Closed, Received::Message);
            }
            // Linux reports this once, if the other side closed without having read all: the messages that it had sent
            // lie behind it.
            Err(rustix::io::Errno::CONNRESET) => {}
            Err(rustix::io::Errno::AGAIN) => return Received::Nothing,
            Err(_) => return Received::Closed,
        }
    }
}

fn with_port(addr: &SocketAddr, port: u16) -> SocketAddr {
    let mut addr = *addr;
    addr.set_port(port);
    addr
}

/// A UDP socket at this address, with a port that the kernel chooses.
fn datagram_at(addr: &SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &with_port(addr, 0))?;
    Ok(socket)
}

/// True if the address is one of this host's.
pub(crate) fn is_local(addr: &SocketAddr) -> Result<bool> {
    match datagram_at(addr) {
        Ok(_) => Ok(true),
        Err(rustix::io::Errno::ADDRNOTAVAIL) => Ok(false),
        Err(e) => Err(errno(e)),
    }
}

/// The local address from which packets to `dst` go out. ENETUNREACH, EHOSTUNREACH: there is no way.
pub(crate) fn source(src: &SocketAddr, dst: &SocketAddr) -> Result<SocketAddr> {
    let socket = datagram_at(src).map_err(errno)?;
    // No packet is sent to this port: connecting a UDP socket only chooses the way.
    rustix::net::connect(&socket, &with_port(dst, 9)).map_err(errno)?;
    let name = rustix::net::getsockname(&socket).map_err(errno)?;
    SocketAddr::try_from(name).map_err(errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux reports such an end first, before the messages in the queue.
    #[test]
    #[cfg_attr(miri, ignore = "system calls")]
    fn what_was_said_is_heard_although_the_other_side_has_not_read_all() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let said = Message { from: 1, to: 2, body: Body::Dreq };
        send(&ours, &emit(&said)).unwrap();
        send(&theirs, &emit(&said)).unwrap();
        drop(theirs);
        assert!(matches!(receive(&ours), Received::Message(message) if message == said));
        assert!(matches!(receive(&ours), Received::Closed));
    }
}
