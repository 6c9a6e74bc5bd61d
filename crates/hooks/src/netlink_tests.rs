//! Netlink sockets in this program, whose functions of these names are the interposers.

use std::time::{Duration, Instant};

use super::*;

/// A dump of all devices.
fn request() -> [u8; 16] {
    let mut bytes = [0u8; 16];
    bytes[..4].copy_from_slice(&16u32.to_ne_bytes());
    bytes[4..6].copy_from_slice(&(5u16 << 10 | 1).to_ne_bytes());
    bytes[6..8].copy_from_slice(&0x301u16.to_ne_bytes());
    bytes
}

/// The test opens, binds, asks and reads as libmnl does.
#[test]
fn a_socket_of_netlink_is_answered() {
    // SAFETY: descriptors of this test's own, and buffers as long as is said.
    unsafe {
        let fd = libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, NETLINK_RDMA);
        assert!(fd >= 0);
        let one = 1i32;
        assert_eq!(libc::setsockopt(fd, libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, (&raw const one).cast(), 4), 0);
        assert_eq!(libc::bind(fd, address(0).as_ptr().cast(), 12), 0);
        let (mut name, mut len) = ([0u8; 16], 16);
        assert_eq!(libc::getsockname(fd, name.as_mut_ptr().cast(), &mut len), 0);
        let port = u32::from_ne_bytes(name[4..8].try_into().unwrap());
        assert!((len, name[0]) == (12, 16) && port != 0);
        let sent = libc::sendto(fd, request().as_ptr().cast(), 16, 0, address(0).as_ptr().cast(), 12);
        assert_eq!(sent, 16);
        let mut text = Vec::new();
        for _ in 0..2 {
            let mut room = [0u8; 4096];
            let mut iov = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
            let mut from = [0xffu8; 12];
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_name, message.msg_namelen) = (from.as_mut_ptr().cast(), 12);
            (message.msg_iov, message.msg_iovlen) = (&mut iov, 1);
            let got = libc::recvmsg(fd, &mut message, 0);
            assert!(got >= 16);
            assert_eq!((message.msg_namelen, from), (12, address(0)));
            assert_eq!(room[12..16], port.to_ne_bytes());
            text.extend_from_slice(&room[..got as usize]);
        }
        assert!(text.windows(9).any(|part| part == b"softrnic0"));
        libc::close(fd);
    }
    let until = Instant::now() + Duration::from_secs(5);
    while OPEN.load(Ordering::Relaxed) > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(OPEN.load(Ordering::Relaxed), 0, "nothing is left of a socket that was closed");
}

#[test]
fn other_sockets_are_the_systems() {
    let listener = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
    let (other, mut room) = (std::net::UdpSocket::bind("127.0.0.1:0").expect("bind"), [0u8; 8]);
    other.connect(listener.local_addr().expect("getsockname")).expect("connect");
    other.send(b"abc").expect("send");
    let (len, from) = listener.recv_from(&mut room).expect("recvfrom");
    assert_eq!((len, from), (3, other.local_addr().expect("getsockname")));
    // SAFETY: the call makes no descriptor.
    assert_eq!(unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_STREAM, NETLINK_RDMA) }, -1);
}
