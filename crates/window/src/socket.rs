//! System calls of the rendezvous, none of which blocks.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use verbs::Errno;

use crate::rendezvous::{self, Message, PROOF_BYTES};

pub(crate) fn errno(e: rustix::io::Errno) -> Errno {
    Errno(e.raw_os_error())
}

/// A SOCK_SEQPACKET socket: ordered, connected, and messages keep their bounds.
fn seqpacket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(errno)
}

fn address(name: &str) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(errno)
}

/// Binds an abstract name; listens if `backlog` is not 0.
pub(crate) fn bind(name: &str, backlog: i32) -> Result<OwnedFd, Errno> {
    let socket = seqpacket()?;
    rustix::net::bind(&socket, &address(name)?).map_err(errno)?;
    if backlog > 0 {
        rustix::net::listen(&socket, backlog).map_err(errno)?;
    }
    Ok(socket)
}

/// Connects to an abstract name. Unix sockets connect at once or not at all: `ECONNREFUSED` if nobody listens,
/// `EAGAIN` if the backlog is full.
pub(crate) fn connect(name: &str) -> Result<OwnedFd, Errno> {
    let socket = seqpacket()?;
    rustix::net::connect(&socket, &address(name)?).map_err(errno)?;
    Ok(socket)
}

/// The next connection, if there is one.
pub(crate) fn accept(listener: impl AsFd) -> Result<OwnedFd, Errno> {
    rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).map_err(errno)
}

/// Sends a message with descriptors (at most 3).
pub(crate) fn send(socket: impl AsFd, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let bytes = rendezvous::emit(message);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::EINVAL);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags).map_err(errno)?;
    if sent == bytes.len() { Ok(()) } else { Err(Errno::EIO) }
}

/// What came from a socket.
pub(crate) enum Received {
    /// A message and its descriptors.
    Message(Message, Vec<OwnedFd>),
    /// Nothing now.
    Nothing,
    /// The other side has closed.
    Closed,
    /// A message whose descriptors did not all come through: there is none left here, or there were too many. Those that
    /// came are closed. The message itself, if it is one.
    Cut(Option<Message>),
    /// Something that is no message. Its descriptors are closed.
    Garbage,
}

/// Receives a message. There is room for the 3 descriptors that a message may have, and for a few more where the kernel's
/// sizes are rounded up; those beyond are closed by the kernel.
pub(crate) fn receive(socket: impl AsFd) -> Received {
    // One byte more than the longest message, so that a longer one shows.
    let mut bytes = [0u8; PROOF_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = loop {
        match rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            Ok(got) => break got,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return Received::Nothing,
            Err(_) => return Received::Closed,
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    // An empty packet looks like an end; nobody who keeps to the protocol sends one.
    if got.bytes == 0 {
        return Received::Closed;
    }
    let whole = !got.flags.contains(ReturnFlags::TRUNC);
    let message = bytes.get(..got.bytes).filter(|_| whole).and_then(|bytes| rendezvous::parse(bytes).ok());
    if got.flags.contains(ReturnFlags::CTRUNC) {
        return Received::Cut(message);
    }
    message.map_or(Received::Garbage, |message| Received::Message(message, fds))
}

/// True if the descriptor is an eventfd, as far as can be told. Writing to something else might block, or do harm.
pub(crate) fn is_eventfd(fd: impl AsFd) -> bool {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    std::fs::read_link(path).is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]")
}
