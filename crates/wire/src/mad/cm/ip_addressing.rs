//! The addresses in front of the private data of a REQ or a SIDR REQ for a service of IP: those of the requesting and
//! of the requested end (IBTA annex A11.4).

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{array, put, put_u8, put_u16, u8_at, u16_at};
use crate::{Error, Result};

mod field {
    /// Major version 7-4, minor version 3-0.
    pub const VERSION: usize = 0;
    /// Version of IP 7-4.
    pub const IP_VERSION: usize = 1;
    pub const SOURCE_PORT: usize = 2;
    /// An IPv4 address is in the last four bytes.
    pub const SOURCE: usize = 4;
    pub const DEST: usize = 20;
}

header!("header of IP addressing", 36);

/// The fields of a header of IP addressing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The port of the requesting end.
    pub source_port: u16,
    /// The address of the requesting end.
    pub source: IpAddr,
    /// The address of the requested end. `emit` writes it in the family of `source`.
    pub dest: IpAddr,
}

/// The service id of a port of a port space (A11.6, `enum rdma_port_space`).
pub fn service_id(port_space: u16, port: u16) -> u64 {
    u64::from(port_space) << 16 | u64::from(port)
}

impl View<'_> {
    /// Major and minor version.
    pub fn version(&self) -> u8 {
        u8_at(self.0, field::VERSION)
    }

    /// The version of IP.
    pub fn ip_version(&self) -> u8 {
        u8_at(self.0, field::IP_VERSION) >> 4
    }

    /// The port of the requesting end.
    pub fn source_port(&self) -> u16 {
        u16_at(self.0, field::SOURCE_PORT)
    }

    /// The bytes of the address of the requesting end.
    pub fn source(&self) -> [u8; 16] {
        array(self.0, field::SOURCE)
    }

    /// The bytes of the address of the requested end.
    pub fn dest(&self) -> [u8; 16] {
        array(self.0, field::DEST)
    }
}

impl Repr {
    /// Parses a header.
    ///
    /// # Errors
    /// [`Error::Version`] for another version than 0.0 (A11.4.1), [`Error::Value`] for neither IPv4 nor IPv6.
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        if view.version() != 0 {
            return Err(Error::Version);
        }
        let address: fn([u8; 16]) -> IpAddr = match view.ip_version() {
            // Twelve bytes in front are reserved.
            4 => |octets| IpAddr::V4(Ipv4Addr::from(array::<4>(&octets, 12))),
            6 => |octets| IpAddr::V6(Ipv6Addr::from(octets)),
            _ => return Err(Error::Value("IP version")),
        };
        Ok(Repr { source_port: view.source_port(), source: address(view.source()), dest: address(view.dest()) })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u8(&mut out, field::IP_VERSION, if self.source.is_ipv4() { 4 << 4 } else { 6 << 4 });
        put_u16(&mut out, field::SOURCE_PORT, self.source_port);
        for (at, address) in [(field::SOURCE, self.source), (field::DEST, self.dest)] {
            match address {
                IpAddr::V4(address) => put(&mut out, at + 12, &address.octets()),
                IpAddr::V6(address) => put(&mut out, at, &address.octets()),
            }
        }
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {} > {}", self.source, self.source_port, self.dest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::hex;

    #[test]
    fn literal_bytes() {
        let [source, dest] = [1, 2].map(|last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)));
        let header = Repr { source_port: 4660, source, dest };
        let zeros = "00".repeat(12);
        assert_wire!(header, &std::format!("00 40 1234 {zeros} 0a000001 {zeros} 0a000002"));
        assert_eq!(std::format!("{header}"), "10.0.0.1 port 4660 > 10.0.0.2");
        let [source, dest] = ["fe80::1", "fe80::2"].map(|text| text.parse().unwrap());
        let addresses = "fe80000000000000 0000000000000001 fe80000000000000 0000000000000002";
        assert_wire!(Repr { source_port: 4660, source, dest }, &std::format!("00 60 1234 {addresses}"));
    }

    #[test]
    fn what_a_receiver_refuses() {
        let with = |head: &str| Repr::read(&hex(&std::format!("{head} {}", "00".repeat(34)))).map(|_| ());
        assert_eq!(with("10 40"), Err(Error::Version));
        assert_eq!(with("00 50"), Err(Error::Value("IP version")));
    }

    #[test]
    fn services_are_numbered_as_annex_a11_has_it() {
        assert_eq!(service_id(0x0106, 18515), 0x0106_4853);
    }
}
