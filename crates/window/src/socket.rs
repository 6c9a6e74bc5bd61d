//! System calls of the rendezvous, none of which blocks.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use memory::received_fds::{self, ReceivedFd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags};
use verbs::Errno;

use crate::rendezvous::{self, GREETING_BYTES, Message};

pub(crate) fn errno(e: rustix::io::Errno) -> Errno {
    Errno(e.raw_os_error())
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
    Message(Message, Vec<ReceivedFd>),
    /// Nothing now.
    Nothing,
    /// The other side has closed.
    Closed,
    /// A message without some of its descriptors: there is no descriptor left here. Those that came are closed. The
    /// value is the message itself, if it is one.
    Cut(Option<Message>),
    /// Something that is no message. Its descriptors are closed.
    Garbage,
}

/// Receives a message. Descriptors go the way of all ([`received_fds`]).
pub(crate) fn receive(socket: impl AsFd) -> Received {
    // One byte more than the longest message, so that a longer one shows.
    let mut bytes = [0u8; GREETING_BYTES + 1];
    let heard = match received_fds::receive(socket, &mut bytes) {
        // An empty packet looks like an end. No peer that keeps to the protocol sends one.
        Ok(heard) if heard.len > 0 => heard,
        Err(rustix::io::Errno::AGAIN) => return Received::Nothing,
        _ => return Received::Closed,
    };
    let message = bytes.get(..heard.len).filter(|_| !heard.longer).and_then(|bytes| rendezvous::parse(bytes).ok());
    if heard.cut {
        return Received::Cut(message);
    }
    message.map_or(Received::Garbage, |message| Received::Message(message, heard.received_fds))
}
