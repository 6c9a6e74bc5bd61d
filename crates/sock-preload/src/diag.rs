//! What the kernel tells of sockets of this network namespace, whoever has them: of TCP sockets by their addresses, of
//! unix sockets by their names. `NETLINK_SOCK_DIAG` (sock_diag(7)) needs no privilege, and nothing is allocated: a
//! signal's handler may ask.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// `linux/sock_diag.h`, `linux/inet_diag.h`, `linux/netlink.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
/// NLM_F_ROOT and NLM_F_MATCH: all of them.
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const TCP_LISTEN: u8 = 10;
/// TCP_CLOSE: the state of a unix socket that is neither connected nor listens.
const UNCONNECTED: u8 = 7;
const HEADER: usize = 16;
/// Bytes of `struct inet_diag_req_v2`, and where fields of `struct inet_diag_msg` lie.
const REQUEST: usize = 56;
const COOKIE: usize = 44;
const INODE: usize = 68;
/// The sockets of one group (SO_REUSEPORT, socket(7)) have the same bytes here: `idiag_sport`, `idiag_src`, `idiag_if`.
const PLACE: [core::ops::Range<usize>; 3] = [4..6, 8..24, 40..44];
/// Bytes that the kernel sends at once at most, where the receiver offers as many (`netlink_dump`).
const PART: usize = 8192;

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
    let states = u32::MAX.to_ne_bytes();
    let (from, to) = (address(local), address(remote));
    request(
        NLM_F_REQUEST,
        [family, libc::IPPROTO_TCP as u8],
        states,
        (local.port(), &from),
        (remote.port(), &to),
        scope,
    )
}

/// A message with an `inet_diag_req_v2`.
fn request(
    flags: u16,
    [family, protocol]: [u8; 2],
    states: [u8; 4],
    (source, from): (u16, &[u8; 16]),
    (target, to): (u16, &[u8; 16]),
    scope: u32,
) -> [u8; HEADER + REQUEST] {
    let parts: [&[u8]; 12] = [
        &((HEADER + REQUEST) as u32).to_ne_bytes(),
        &SOCK_DIAG_BY_FAMILY.to_ne_bytes(),
        &flags.to_ne_bytes(),
        &[0; 8],
        &[family, protocol, 0, 0],
        &states,
        &source.to_be_bytes(),
        &target.to_be_bytes(),
        from,
        to,
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
    found(body).map(Some)
}

/// What an `inet_diag_msg` says.
fn found(body: &[u8]) -> Option<Found> {
    Some(Found {
        cookie: u64::from_ne_bytes(*body.get(COOKIE..)?.first_chunk()?),
        inode: u32::from_ne_bytes(*body.get(INODE..)?.first_chunk()?),
        listens: *body.get(1)? == TCP_LISTEN,
    })
}

/// Sends a question. `None`: the kernel answers none.
fn ask(question: &[u8]) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let protocol = Some(netlink::SOCK_DIAG);
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol).ok()?;
    let to = netlink::SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(&socket, question, SendFlags::empty(), &to).ok()?;
    Some(socket)
}

/// Asks for all sockets of a kind, and calls a function with each message's body. `None`: the kernel does not say, or
/// not all.
fn dump(question: &[u8], mut each: impl FnMut(&[u8])) -> Option<()> {
    let socket = ask(question)?;
    let mut bytes = [0u8; PART];
    loop {
        let (got, _) = rustix::net::recv(&socket, &mut bytes[..], RecvFlags::empty()).ok()?;
        let mut rest = bytes.get(..got).filter(|part| !part.is_empty())?;
        while let Some(len) = rest.first_chunk().map(|len| u32::from_ne_bytes(*len) as usize) {
            let message = rest.get(..len)?;
            match u16::from_ne_bytes(*message.get(4..)?.first_chunk()?) {
                NLMSG_DONE => return Some(()),
                SOCK_DIAG_BY_FAMILY => each(message.get(HEADER..)?),
                _ => return None,
            }
            // Messages begin at multiples of four bytes (netlink(3)).
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

/// The user that has made the unix socket of this name, an abstract one: `unix_diag_req` and `unix_diag_msg` of
/// `linux/unix_diag.h`. `None`: there is none, or the kernel does not say (before Linux 5.3).
pub fn maker(name: &[u8]) -> Option<u32> {
    const LEN: usize = HEADER + 24;
    const MESSAGE: usize = 16;
    /// UDIAG_SHOW_NAME and UDIAG_SHOW_UID.
    const SHOW: u32 = 1 | 1 << 6;
    const NAME: u16 = 0;
    const USER: u16 = 7;
    let parts: [&[u8]; 9] = [
        &(LEN as u32).to_ne_bytes(),
        &SOCK_DIAG_BY_FAMILY.to_ne_bytes(),
        &(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes(),
        &[0; 8],
        &[libc::AF_UNIX as u8, 0, 0, 0],
        &u32::MAX.to_ne_bytes(),
        &[0; 4],
        &SHOW.to_ne_bytes(),
        // No cookie.
        &[0xFF; 8],
    ];
    let mut question = [0; LEN];
    question.iter_mut().zip(parts.into_iter().flatten()).for_each(|(to, from)| *to = *from);
    let mut maker = None;
    dump(&question, |body| {
        let (mut rest, mut is_it, mut user) = (body.get(MESSAGE..).unwrap_or_default(), false, None);
        // Attributes (netlink(7)): a length, a kind, and bytes; the next one begins at a multiple of four.
        while let (Some(len), Some(kind)) = (rest.first_chunk(), rest.get(2..).and_then(<[u8]>::first_chunk)) {
            let len = usize::from(u16::from_ne_bytes(*len));
            let Some(value) = rest.get(4..len) else { break };
            match u16::from_ne_bytes(*kind) {
                // The first byte of an abstract name is 0 (unix(7)).
                NAME => is_it = value.split_first() == Some((&0, name)),
                USER => user = value.first_chunk().map(|user| u32::from_ne_bytes(*user)),
                _ => {}
            }
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        }
        // A connection has the name of the socket that it came to, too, and maybe another maker.
        let listens_or_waits = body.get(2).is_some_and(|state| [TCP_LISTEN, UNCONNECTED].contains(state));
        if is_it && listens_or_waits {
            maker = user;
        }
    })?;
    maker
}

/// The socket that has these addresses, `local` being its own; without one, the socket that a SYN from `remote` to
/// `local` would come to. The outer `None`: the kernel does not say.
pub fn socket(local: SocketAddr, remote: SocketAddr) -> Option<Option<Found>> {
    let socket = ask(&question(local, remote))?;
    let mut bytes = [0u8; 512];
    // The kernel answers before sendto(2) returns.
    let (got, _) = rustix::net::recv(&socket, &mut bytes[..], RecvFlags::empty()).ok()?;
    answer(bytes.get(..got)?)
}

/// What a SYN to an address would find.
fn at(address: SocketAddr) -> SocketAddr {
    let anybody: IpAddr = match sock::hello::canonical(address) {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(anybody, 0)
}

/// The socket that waits for connections to an address.
#[cfg(test)]
fn listener(address: SocketAddr) -> Option<Found> {
    socket(address, at(address)).flatten().filter(|found| found.listens)
}

/// Whether the kernel tells of sockets at all: a filter of system calls (seccomp(2)) may forbid it.
pub fn says(address: SocketAddr) -> bool {
    socket(address, at(address)).is_some()
}

/// Calls a function with the cookie of each socket that waits for connections to an address: several share it with
/// SO_REUSEPORT, and which one a connection comes to is not known before. `None`: the kernel does not say.
pub fn listeners(address: SocketAddr, mut each: impl FnMut(u64)) -> Option<()> {
    let socket = ask(&question(address, at(address)))?;
    let mut bytes = [0u8; 512];
    let (got, _) = rustix::net::recv(&socket, &mut bytes[..], RecvFlags::empty()).ok()?;
    let Some(first) = answer(bytes.get(..got)?)?.filter(|found| found.listens) else { return Some(()) };
    each(first.cookie);
    let body = bytes.get(HEADER..got)?;
    let family = *body.first()?;
    // The kernel's dump leaves out what has another port.
    let (states, none) = ((1u32 << TCP_LISTEN).to_ne_bytes(), [0; 16]);
    let port = u16::from_be_bytes(*body.get(4..)?.first_chunk()?);
    let flags = NLM_F_REQUEST | NLM_F_DUMP;
    let all = request(flags, [family, libc::IPPROTO_TCP as u8], states, (port, &none), (0, &none), 0);
    dump(&all, |other| {
        let is_there = PLACE.into_iter().all(|part| other.get(part.clone()) == body.get(part));
        if let Some(other) = found(other).filter(|other| is_there && other.listens && other.cookie != first.cookie) {
            each(other.cookie);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, OwnedFd};

    fn cookie(socket: &impl AsRawFd) -> u64 {
        let cookie = crate::kernel::cookie(socket.as_raw_fd());
        assert_ne!(cookie, 0);
        cookie
    }

    /// A socket that does not listen, with SO_REUSEPORT.
    fn shared_port(at: SocketAddr) -> OwnedFd {
        let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = rustix::net::socket(family, SocketType::STREAM, None).unwrap();
        rustix::net::sockopt::set_socket_reuseport(&socket, true).unwrap();
        rustix::net::bind(&socket, &at).unwrap();
        socket
    }

    #[test]
    fn all_sockets_that_share_an_address_are_found() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let first = shared_port(host.parse().unwrap());
            let at = SocketAddr::try_from(rustix::net::getsockname(&first).unwrap()).unwrap();
            // The last one of them does not listen.
            let all: Vec<OwnedFd> = core::iter::once(first).chain((0..4).map(|_| shared_port(at))).collect();
            all[..4].iter().for_each(|one| rustix::net::listen(one, 5).unwrap());
            let mut expected: Vec<u64> = all[..4].iter().map(cookie).collect();
            let mut found = Vec::new();
            listeners(at, |cookie| found.push(cookie)).unwrap();
            expected.sort_unstable();
            found.sort_unstable();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn sockets_are_found_by_their_addresses() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(server) = TcpListener::bind(host) else { continue };
            let at = server.local_addr().unwrap();
            assert_eq!(listener(at).map(|found| found.cookie), Some(cookie(&server)));
            let near = TcpStream::connect(at).unwrap();
            let found = socket(near.local_addr().unwrap(), at).flatten().unwrap();
            assert_eq!((found.cookie, found.listens), (cookie(&near), false));
            // A socket that listens no more keeps its port: nobody else gets it.
            rustix::net::shutdown(&server, rustix::net::Shutdown::Both).unwrap();
            assert_eq!(listener(at), None);
        }
    }

    #[test]
    fn the_maker_of_a_name_is_found() {
        use rustix::net::SocketAddrUnix;
        let name = format!("softrnic-test-maker-{}", std::process::id());
        assert_eq!(maker(name.as_bytes()), None);
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        let own = Some(rustix::process::geteuid().as_raw());
        assert_eq!(maker(name.as_bytes()), own);
        rustix::net::listen(&socket, 1).unwrap();
        assert_eq!((maker(name.as_bytes()), maker(&name.as_bytes()[1..])), (own, None));
    }

    #[test]
    fn answers_that_say_nothing_are_not_believed() {
        assert_eq!((answer(&[]), answer(&[0; 200]), answer(&[0; 16])), (None, None, None));
    }
}
