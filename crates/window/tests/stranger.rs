//! Connections of another user.

mod common;

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use common::Node;
use memory::Half;
use memory::backing::Memfd;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use window::rendezvous::{self, Greeting, Message};

fn connect(block: u16) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let name = rendezvous::block_name(block);
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    socket
}

/// Says HELLO with these descriptors.
fn send(socket: &OwnedFd, fds: &[BorrowedFd<'_>]) -> bool {
    let greeting =
        Greeting { instance: [9; 16], nonce_addr: 0, single_copy: true, secret: [3; rendezvous::SECRET], block: 0 };
    let bytes = rendezvous::emit(&Message::Hello(greeting));
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags).is_ok()
}

/// A connection that takes a minute to close: its buffers are full, its peer does not read, and it lingers.
fn slow_to_close() -> (std::net::TcpStream, std::net::TcpStream) {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    near.set_nonblocking(true).unwrap();
    while near.write(&[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&near, Some(Duration::from_secs(60))).unwrap();
    (near, far)
}

/// Each of 140 connections of another user has something in it that is slow to close. The others are let in, and at
/// once.
#[test]
fn a_stranger_does_not_shut_the_door() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: this test acts as another user, and needs to be root");
        return;
    }
    let mut node = Node::with(window::Config::default());
    let block = (node.qpn.get() >> 12) as u16;
    let kept = std::thread::spawn(move || {
        // Of this thread alone (the system call knows no others).
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65533)).unwrap();
        let mut kept = Vec::new();
        for _ in 0..140 {
            let (near, far) = slow_to_close();
            let socket = connect(block);
            assert!(send(&socket, &[near.as_fd()]));
            // This copy must not be the last one.
            kept.push((socket, far));
            drop(near);
        }
        kept
    })
    .join()
    .unwrap();
    let start = Instant::now();
    for _ in 0..6 {
        node.env.handle_events(node.now());
    }
    let socket = connect(block);
    let (_window, fd) = Memfd::create(Half::WINDOW).unwrap();
    assert!(send(&socket, &[fd.as_fd()]));
    node.until("a friend", |node| node.env.stats().links == 2);
    let told = report::logged();
    assert!(told.iter().any(|line| line.contains("of user 65533") && line.contains("SOFTRNIC_PEERS=any")), "{told:?}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    drop(kept);
}
