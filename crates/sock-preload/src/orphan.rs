//! Whether a connection's other end has been given up by all processes, as the kernel knows it.
//!
//! A FIN is behind all that was sent before it. So an end that does not read does not see it come, while the other
//! end's socket is an orphan already: the kernel has it, and no process. `NETLINK_SOCK_DIAG` (sock_diag(7)) tells of
//! any TCP socket of this network namespace by its addresses, and needs no privilege.

use std::net::{IpAddr, SocketAddr};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// `linux/sock_diag.h`, `linux/inet_diag.h`, `linux/netlink.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const TCP_LISTEN: u8 = 10;
const HEADER: usize = 16;
/// Bytes of `struct inet_diag_req_v2`, and where `idiag_inode` lies in `struct inet_diag_msg`.
const REQUEST: usize = 56;
const INODE: usize = 68;

/// The question for the socket that has these addresses: `local` is its own.
fn question(local: SocketAddr, remote: SocketAddr) -> [u8; HEADER + REQUEST] {
    const V4: u8 = libc::AF_INET as u8;
    const V6: u8 = libc::AF_INET6 as u8;
    let (local, remote) = (sock::hello::canonical(local), sock::hello::canonical(remote));
    let address = |address: SocketAddr| {
        let mut field = [0; 16];
        match address.ip() {
            IpAddr::V4(ip) => field[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => field = ip.octets(),
        }
        field
    };
    let scope = match remote {
        SocketAddr::V6(remote) => remote.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let family = if local.is_ipv4() { V4 } else { V6 };
    let parts: [&[u8]; 12] = [
        &((HEADER + REQUEST) as u32).to_ne_bytes(),
        &SOCK_DIAG_BY_FAMILY.to_ne_bytes(),
        &NLM_F_REQUEST.to_ne_bytes(),
        &[0; 8],
        &[family, libc::IPPROTO_TCP as u8, 0, 0],
        &u32::MAX.to_ne_bytes(),
        &local.port().to_be_bytes(),
        &remote.port().to_be_bytes(),
        &address(local),
        &address(remote),
        &scope.to_ne_bytes(),
        // INET_DIAG_NOCOOKIE.
        &[0xFF; 8],
    ];
    // No allocation: a signal's handler may ask.
    let mut bytes = [0; HEADER + REQUEST];
    bytes.iter_mut().zip(parts.iter().copied().flatten()).for_each(|(to, from)| *to = *from);
    bytes
}

/// What an answer says; `None`: nothing.
fn answer(bytes: &[u8]) -> Option<bool> {
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let body = bytes.get(HEADER..)?;
    if kind == NLMSG_ERROR {
        let error = i32::from_ne_bytes(*body.first_chunk()?);
        return (error == -libc::ENOENT).then_some(true);
    }
    if kind != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let inode = u32::from_ne_bytes(*body.get(INODE..)?.first_chunk()?);
    // Without a socket of these addresses the kernel names the listener that a SYN would come to.
    Some(inode == 0 || *body.get(1)? == TCP_LISTEN)
}

/// Whether no process has the other end of the connection between these addresses. False as well if the kernel does
/// not say.
pub fn is_orphan(local: SocketAddr, remote: SocketAddr) -> bool {
    let ask = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let protocol = Some(netlink::SOCK_DIAG);
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol).ok()?;
        let to = netlink::SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&socket, &question(remote, local), SendFlags::empty(), &to).ok()?;
        let mut bytes = [0u8; 512];
        // The kernel answers before sendto(2) returns.
        let (got, _) = rustix::net::recv(&socket, &mut bytes[..], RecvFlags::empty()).ok()?;
        answer(bytes.get(..got)?)
    };
    ask().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn an_end_is_an_orphan_once_it_is_closed_though_its_fin_is_behind_much() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else { continue };
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut far, _) = listener.accept().unwrap();
            let (local, remote) = (near.local_addr().unwrap(), near.peer_addr().unwrap());
            assert!(!is_orphan(local, remote), "{host}");
            far.set_nonblocking(true).unwrap();
            while far.write(&[0; 8192]).is_ok() {}
            assert!(!is_orphan(local, remote), "{host}");
            drop(far);
            assert!(is_orphan(local, remote), "{host}");
        }
    }

    #[test]
    fn answers_that_say_nothing_are_not_believed() {
        assert_eq!((answer(&[]), answer(&[0; 200]), answer(&[0; 16])), (None, None, None));
    }
}
