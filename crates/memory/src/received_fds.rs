//! Descriptors that other processes send (unix(7), SCM_RIGHTS): one way for all sockets of the library.
//!
//! A descriptor can be anything, also one that takes minutes to close ([`crate::deferred_close`]). So:
//!
//! * The peer's credentials (SO_PEERCRED) are looked at before the first message is received; the socket of a peer that
//!   is turned away is closed unread ([`close_connection`]).
//! * There is room for as many descriptors as one message can carry. Those that found no room would be closed by the
//!   kernel, in the call that receives. It still does so where the process may have no more descriptors
//!   (RLIMIT_NOFILE).
//! * What is received is a [`ReceivedFd`] until it is known for an eventfd or a memfd. It is closed by another thread.
//! * Sockets at which no descriptor is wanted say so, where the kernel has SO_PASSRIGHTS (Linux 6.16): then none can be
//!   sent.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, Shutdown};

use crate::deferred_close;

/// `SCM_MAX_FD` of Linux: a message carries no more.
const MOST: usize = 253;

/// SO_PASSRIGHTS (asm-generic/socket.h).
const SO_PASSRIGHTS: libc::c_int = 83;

/// A descriptor that another process has sent. Dropped, it is closed without waiting for it.
pub struct ReceivedFd(Option<OwnedFd>);

impl ReceivedFd {
    /// The descriptor, for a caller that knows what it is.
    pub fn keep(mut self) -> OwnedFd {
        match self.0.take() {
            Some(fd) => fd,
            None => unreachable!("taken only by keep and drop"),
        }
    }

    /// True if it is an eventfd. Writing to something else might block, or do harm.
    pub fn is_eventfd(&self) -> bool {
        let path = format!("/proc/self/fd/{}", self.as_fd().as_raw_fd());
        std::fs::read_link(path).is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]")
    }

    /// True if it is a memfd, or a file of the same kind (tmpfs): no other file has seals (fcntl(2)).
    pub fn is_memfd(&self) -> bool {
        rustix::fs::fcntl_get_seals(self).is_ok()
    }
}

impl From<OwnedFd> for ReceivedFd {
    fn from(fd: OwnedFd) -> ReceivedFd {
        ReceivedFd(Some(fd))
    }
}

impl AsFd for ReceivedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Some(fd) => fd.as_fd(),
            None => unreachable!("taken only by keep and drop"),
        }
    }
}

impl Drop for ReceivedFd {
    fn drop(&mut self) {
        if self.0.is_some()
            && !self.is_memfd()
            && !self.is_eventfd()
            && let Some(fd) = self.0.take()
        {
            deferred_close::close(fd);
        }
    }
}

/// The content of one message.
pub struct Heard {
    /// Bytes of it that were stored. None: the end, or an empty message.
    pub len: usize,
    /// It was longer than the buffer.
    pub longer: bool,
    /// Descriptors that came with it are missing.
    pub cut: bool,
    /// Its descriptors.
    pub received_fds: Vec<ReceivedFd>,
}

/// The next message of a connection, without waiting.
///
/// # Errors
/// The kernel's: `EAGAIN` if there is none now; `ECONNRESET` once, where the other side closed without having read all.
pub fn receive(socket: impl AsFd, bytes: &mut [u8]) -> Result<Heard, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)
    })?;
    let mut received_fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            received_fds.extend(rights.map(ReceivedFd::from));
        }
    }
    let is = |flag| got.flags.contains(flag);
    Ok(Heard { len: got.bytes, longer: is(ReturnFlags::TRUNC), cut: is(ReturnFlags::CTRUNC), received_fds })
}

fn set_option(socket: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) {
    let (value, len) = (&raw const value, size_of::<libc::c_int>());
    // Not rustix's: it does not know SO_PASSRIGHTS. Nor the C library's, which another library may stand in front of.
    // SAFETY: reads a live local of the size that `len` says.
    unsafe { libc::syscall(libc::SYS_setsockopt, socket.as_raw_fd(), libc::SOL_SOCKET, option, value, len) };
}

/// No descriptors can be sent to this socket, nor to those that it accepts. Kernels before 6.16 do not know that.
pub fn refuse_fds(socket: impl AsFd) {
    set_option(socket.as_fd(), SO_PASSRIGHTS, 0);
}

/// Closes a connected unix socket: here if nothing lies in it unread, else apart.
pub fn close_connection(socket: OwnedFd) {
    if !is_empty_for_good(&socket) {
        deferred_close::close(socket);
    }
}

/// True if nothing lies in a connected unix socket. Nothing can come any more then.
fn is_empty_for_good(socket: &OwnedFd) -> bool {
    // With credentials wanted, even an empty message has something for which there is no room below, and so differs
    // from the end.
    set_option(socket.as_fd(), libc::SO_PASSCRED, 1);
    if rustix::net::shutdown(socket, Shutdown::Both).is_err() {
        return false;
    }
    let mut byte = [0];
    let mut peek = || {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let mut control = RecvAncillaryBuffer::default();
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)
    };
    let got = match peek() {
        Err(Errno::CONNRESET | Errno::INTR) => peek(),
        got => got,
    };
    got.is_ok_and(|got| got.bytes == 0 && !got.flags.contains(ReturnFlags::CTRUNC))
}

#[cfg(all(test, not(loom), not(miri)))]
#[path = "received_fds_tests.rs"]
mod tests;
