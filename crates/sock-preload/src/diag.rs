//! What the kernel tells of TCP sockets of this network namespace, whoever has them, by their addresses:
//! `NETLINK_SOCK_DIAG` (sock_diag(7)). It needs no privilege, and nothing is allocated: a signal's handler may ask.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// `linux/sock_diag.h`, `linux/inet_diag.h`, `linux/netlink.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const TCP_LISTEN: u8 = 10;
const HEADER: usize = 16;
/// Bytes of `struct inet_diag_req_v2`, and where fields of `struct inet_diag_msg` lie.
const REQUEST: usize = 56;
const COOKIE: usize = 44;
const INODE: usize = 68;

/// A socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// SO_COOKIE.
    pub cookie: u64,
    /// 0: no process has it.
    pub inode: u32,
    /// It waits for connections.
    pub listens: bool,
}

/// The question for the socket that has these addresses: `local` is its own.
fn question(local: SocketAddr, remote: SocketAddr) -> [u8; HEADER + REQUEST] {
    const V4: u8 = libc::AF_INET as u8;
    const V6: u8 = libc::AF_INET6 as u8;
    let scope = |address: SocketAddr| match address {
        SocketAddr::V6(address) => address.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let scope = scope(remote).max(scope(local));
    let (local, remote) = (sock::hello::canonical(local), sock::hello::canonical(remote));
    let address = |address: SocketAddr| {
        let mut field = [0; 16];
        match address.ip() {
            IpAddr::V4(ip) => field[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => field = ip.octets(),
        }
        field
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
    let mut bytes = [0; HEADER + REQUEST];
    bytes.iter_mut().zip(parts.iter().copied().flatten()).for_each(|(to, from)| *to = *from);
    bytes
}

/// What an answer says; `None`: nothing.
fn answer(bytes: &[u8]) -> Option<Option<Found>> {
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let body = bytes.get(HEADER..)?;
    if kind == NLMSG_ERROR {
        let error = i32::from_ne_bytes(*body.first_chunk()?);
        return (error == -libc::ENOENT).then_some(None);
    }
    if kind != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    Some(Some(Found {
        cookie: u64::from_ne_bytes(*body.get(COOKIE..)?.first_chunk()?),
        inode: u32::from_ne_bytes(*body.get(INODE..)?.first_chunk()?),
        listens: *body.get(1)? == TCP_LISTEN,
    }))
}

/// The socket that has these addresses, `local` being its own; without one, the socket that a SYN from `remote` to
/// `local` would come to. The outer `None`: the kernel does not say.
pub fn socket(local: SocketAddr, remote: SocketAddr) -> Option<Option<Found>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let protocol = Some(netlink::SOCK_DIAG);
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol).ok()?;
    let to = netlink::SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(&socket, &question(local, remote), SendFlags::empty(), &to).ok()?;
    let mut bytes = [0u8; 512];
    // The kernel answers before sendto(2) returns.
    let (got, _) = rustix::net::recv(&socket, &mut bytes[..], RecvFlags::empty()).ok()?;
    answer(bytes.get(..got)?)
}

/// The socket that waits for connections to an address.
pub fn listener(address: SocketAddr) -> Option<Found> {
    let anybody: IpAddr = match sock::hello::canonical(address) {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    socket(address, SocketAddr::new(anybody, 0)).flatten().filter(|found| found.listens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn sockets_are_found_by_their_addresses() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(server) = TcpListener::bind(host) else { continue };
            let at = server.local_addr().unwrap();
            let cookie = |fd: i32| {
                let cookie = crate::kernel::cookie(fd);
                assert_ne!(cookie, 0);
                Some(cookie)
            };
            assert_eq!(listener(at).map(|found| found.cookie), cookie(server.as_raw_fd()));
            let near = TcpStream::connect(at).unwrap();
            let found = socket(near.local_addr().unwrap(), at).flatten().unwrap();
            assert_eq!((Some(found.cookie), found.listens), (cookie(near.as_raw_fd()), false));
            drop(server);
            assert_eq!(listener(at), None);
        }
    }

    #[test]
    fn answers_that_say_nothing_are_not_believed() {
        assert_eq!((answer(&[]), answer(&[0; 200]), answer(&[0; 16])), (None, None, None));
    }
}
