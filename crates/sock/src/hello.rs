//! How the two ends of a connection find each other.
//!
//! Whichever end has seen its second message looks for an abstract unix socket whose name is made of the connection's
//! two addresses. If nobody listens there it listens itself, for a while; else it makes the memory and sends it
//! there ([`Hello`]). With it go the page of the link between the two processes (`memory::link`) and a pair of bells,
//! if the other process may not have them yet. Abstract names belong to a network namespace, as do the addresses; so
//! the two are ends of one connection, or one of them is another process of the same user that pretends to be. No
//! byte is sent by the connection itself.

use std::net::{IpAddr, SocketAddr};

/// An address as it is compared: an IPv4 address that is written as an IPv6 one is the same address.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The name, the same for both ends; and whether `local` is the end that receives what goes by the first of the two
/// streams. `None`: a connection to itself, whose ends cannot be told apart.
pub fn name(local: SocketAddr, remote: SocketAddr) -> Option<(String, bool)> {
    let (local, remote) = (canonical(local), canonical(remote));
    if local == remote {
        return None;
    }
    let (low, high) = if local < remote { (local, remote) } else { (remote, local) };
    Some((format!("softrnic/sock/3/{}-{}", digits(low), digits(high)), local < remote))
}

fn digits(address: SocketAddr) -> String {
    let port = address.port();
    match address.ip() {
        IpAddr::V4(ip) => format!("{:08x}.{port:04x}", ip.to_bits()),
        IpAddr::V6(ip) => format!("{:032x}.{port:04x}", ip.to_bits()),
    }
}

/// What comes with the files: the memory, the link's page, and for each of `bells` one that wakes the receiver and one
/// that wakes the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The sender's address, as it sees it.
    pub local: SocketAddr,
    /// Its peer's.
    pub remote: SocketAddr,
    /// The link between the two processes, a number at random.
    pub link: u64,
    /// Whether the sender has made the link.
    pub is_maker: bool,
    /// Whether the sender keeps the socket by which this message goes, so that its end tells the receiver that no
    /// process has the sender's end of the link any more.
    pub is_kept: bool,
    /// The connection's number on the link. The one that has made the link counts with even numbers, the other with odd
    /// ones; bells likewise.
    pub number: u32,
    /// The bells that come along, one bit each.
    pub bells: u32,
}

/// Bytes of a [`Hello`].
pub const LEN: usize = 8 + 2 * 18 + 20;
const MAGIC: [u8; 8] = *b"srsock\x00\x03";

impl Hello {
    /// The message.
    pub fn emit(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        let (magic, rest) = bytes.split_at_mut(MAGIC.len());
        magic.copy_from_slice(&MAGIC);
        let (addresses, link) = rest.split_at_mut(2 * 18);
        let flags = u32::from(self.is_maker) | u32::from(self.is_kept) << 1;
        let numbers = [flags, self.number, self.bells].map(u32::to_be_bytes).concat();
        link.copy_from_slice(&[&self.link.to_be_bytes()[..], &numbers].concat());
        for (field, address) in addresses.chunks_exact_mut(18).zip([self.local, self.remote].map(canonical)) {
            let ip = match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            field.copy_from_slice(&[&ip.octets()[..], &address.port().to_be_bytes()].concat());
        }
        bytes
    }

    /// Reads a message; `None` if it is none.
    pub fn parse(bytes: &[u8]) -> Option<Hello> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (local, rest) = rest.split_at_checked(18)?;
        let (remote, rest) = rest.split_at_checked(18)?;
        let (link, rest) = rest.split_first_chunk()?;
        let &[flags, number, bells] = rest.as_chunks::<4>().0 else { return None };
        Some(Hello {
            local: address(local)?,
            remote: address(remote)?,
            link: u64::from_be_bytes(*link),
            is_maker: u32::from_be_bytes(flags) & 1 != 0,
            is_kept: u32::from_be_bytes(flags) & 2 != 0,
            number: u32::from_be_bytes(number),
            bells: u32::from_be_bytes(bells),
        })
    }
}

fn address(bytes: &[u8]) -> Option<SocketAddr> {
    let (ip, port) = bytes.split_first_chunk::<16>()?;
    let port = u16::from_be_bytes(port.try_into().ok()?);
    Some(canonical(SocketAddr::new(std::net::Ipv6Addr::from(*ip).into(), port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_make_one_name_and_different_sides() {
        let (a, b) = ("127.0.0.1:40000".parse().unwrap(), "127.0.0.1:80".parse().unwrap());
        let mapped = "[::ffff:127.0.0.1]:80".parse().unwrap();
        let (name_a, side_a) = name(a, b).unwrap();
        let (name_b, side_b) = name(mapped, a).unwrap();
        assert_eq!(name_a, name_b);
        assert!(name_a.len() < 100 && side_a != side_b);
        assert_eq!(name(a, a), None);
        assert_ne!(name("[::1]:1".parse().unwrap(), "[::1]:2".parse().unwrap()).unwrap().0, name_a);
    }

    #[test]
    fn a_message_is_read_as_it_was_written_and_no_other() {
        let hello = Hello {
            local: "[::1]:443".parse().unwrap(),
            remote: "10.0.0.1:5".parse().unwrap(),
            link: 0x0123_4567_89AB_CDEF,
            is_maker: true,
            is_kept: true,
            number: 4094,
            bells: 1 << 15,
        };
        let bytes = hello.emit();
        assert_eq!(Hello::parse(&bytes), Some(hello));
        assert_eq!((Hello::parse(&bytes[1..]), Hello::parse(&bytes[..LEN - 1])), (None, None));
    }
}
