use std::io::IoSlice;
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, socketpair,
};

use super::*;
use crate::deferred_close::tests::slow_to_close;

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
}

fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

#[test]
fn all_that_a_message_can_carry_is_received() {
    let ((near, far), fd) = (pair(), eventfd());
    send(&far, b"many", &[fd.as_fd(); MOST]).unwrap();
    let mut bytes = [0; 3];
    let heard = receive(&near, &mut bytes).unwrap();
    assert_eq!((heard.len, heard.longer, heard.cut, heard.received_fds.len()), (3, true, false, MOST));
    assert!(heard.received_fds.iter().all(ReceivedFd::is_eventfd));
    assert!(matches!(receive(&near, &mut bytes), Err(Errno::AGAIN)));
}

#[test]
fn a_connection_is_closed_here_only_if_nothing_lies_in_it() {
    let (near, _remote) = pair();
    assert!(is_empty_for_good(&near));
    let (near, far) = pair();
    drop(far);
    assert!(is_empty_for_good(&near));
    // Bytes, nothing at all but a descriptor, and an empty message.
    let fd = eventfd();
    for (bytes, fds) in [(&b"x"[..], &[][..]), (b"", &[fd.as_fd()]), (b"", &[])] {
        let (near, far) = pair();
        send(&far, bytes, fds).unwrap();
        assert!(!is_empty_for_good(&near), "{bytes:?}, {} descriptors", fds.len());
        assert!(send(&far, b"more", &[]).is_err());
    }
    // What the other side has not read yet does not count.
    let (near, far) = pair();
    send(&near, b"x", &[]).unwrap();
    drop(far);
    assert!(is_empty_for_good(&near));
}

#[test]
fn a_socket_can_refuse_descriptors_where_the_kernel_knows_how() {
    let ((near, far), fd) = (pair(), eventfd());
    refuse_fds(&near);
    let (mut value, mut len) = (1 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: both pointers are to live locals of the size that `len` says.
    let known = unsafe {
        let value = (&raw mut value).cast();
        libc::getsockopt(near.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, value, &raw mut len) == 0
    };
    assert_eq!(send(&far, b"x", &[fd.as_fd()]).is_err(), known);
    send(&far, b"x", &[]).unwrap();
}

/// What is slow to close is closed by another thread: a descriptor that was received, and a connection in which one
/// lies.
#[test]
fn nobody_waits_for_what_others_have_sent() {
    for is_received in [true, false] {
        let began = Instant::now();
        let (slow, reader) = slow_to_close(20);
        let (near, far) = pair();
        send(&far, b"x", &[slow.as_fd()]).unwrap();
        drop(slow); // the thread that closes the other descriptor waits
        let heard = is_received.then(|| receive(&near, &mut [0]).unwrap());
        assert_eq!(heard.as_ref().map_or(0, |heard| heard.received_fds.len()), usize::from(is_received));
        close_connection(near);
        drop(heard);
        assert!(began.elapsed() < Duration::from_secs(10), "it was waited for ({is_received})");
        drop(reader); // a reset: there is nothing left to wait for
    }
}
