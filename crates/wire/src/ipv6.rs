//! IPv6 header (RFC 8200, section 3).

use core::fmt;
use core::net::Ipv6Addr;

use crate::bytes::{array, put, put_u8, put_u16, put_u32, u8_at, u16_at, u32_at};
use crate::checksum::Sum;
use crate::{Error, Result};

mod field {
    /// Version 31-28, traffic class 27-20, flow label 19-0.
    pub const FIRST: usize = 0;
    pub const PAYLOAD_LEN: usize = 4;
    pub const NEXT_HEADER: usize = 6;
    pub const HOP_LIMIT: usize = 7;
    pub const SOURCE: usize = 8;
    pub const DEST: usize = 24;
}

header!("IPv6 header", 40);

const VERSION: u32 = 6;

/// What an IPv6 header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Differentiated services and congestion marks (RFC 2474, RFC 3168).
    pub traffic_class: u8,
    /// Names the packet's flow to routers; 20 bits.
    pub flow_label: u32,
    /// Bytes behind the header.
    pub payload_len: u16,
    /// What follows.
    pub next_header: u8,
    /// Hops that are left.
    pub hop_limit: u8,
    /// The sender.
    pub source: Ipv6Addr,
    /// The receiver.
    pub dest: Ipv6Addr,
}

impl View<'_> {
    /// The version.
    pub fn version(&self) -> u8 {
        (u32_at(self.0, field::FIRST) >> 28) as u8
    }

    /// The traffic class.
    pub fn traffic_class(&self) -> u8 {
        (u32_at(self.0, field::FIRST) >> 20) as u8
    }

    /// The flow label.
    pub fn flow_label(&self) -> u32 {
        u32_at(self.0, field::FIRST) & 0xf_ffff
    }

    /// Bytes behind the header.
    pub fn payload_len(&self) -> u16 {
        u16_at(self.0, field::PAYLOAD_LEN)
    }

    /// What follows.
    pub fn next_header(&self) -> u8 {
        u8_at(self.0, field::NEXT_HEADER)
    }

    /// Hops that are left.
    pub fn hop_limit(&self) -> u8 {
        u8_at(self.0, field::HOP_LIMIT)
    }

    /// The sender.
    pub fn source(&self) -> Ipv6Addr {
        Ipv6Addr::from(array::<16>(self.0, field::SOURCE))
    }

    /// The receiver.
    pub fn dest(&self) -> Ipv6Addr {
        Ipv6Addr::from(array::<16>(self.0, field::DEST))
    }
}

impl Repr {
    /// What a header means.
    ///
    /// # Errors
    /// [`Error::Version`]
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        if u32::from(view.version()) != VERSION {
            return Err(Error::Version);
        }
        Ok(Repr {
            traffic_class: view.traffic_class(),
            flow_label: view.flow_label(),
            payload_len: view.payload_len(),
            next_header: view.next_header(),
            hop_limit: view.hop_limit(),
            source: view.source(),
            dest: view.dest(),
        })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        let first = VERSION << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        put_u32(&mut out, field::FIRST, first);
        put_u16(&mut out, field::PAYLOAD_LEN, self.payload_len);
        put_u8(&mut out, field::NEXT_HEADER, self.next_header);
        put_u8(&mut out, field::HOP_LIMIT, self.hop_limit);
        put(&mut out, field::SOURCE, &self.source.octets());
        put(&mut out, field::DEST, &self.dest.octets());
        out
    }

    /// The sum over the pseudo header of UDP (RFC 8200, 8.1) for `len` bytes of UDP.
    pub fn pseudo_header(&self, len: u16) -> Sum {
        let sum = Sum::default().bytes(&self.source.octets()).bytes(&self.dest.octets());
        sum.word(u16::from(self.next_header)).word(len)
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Repr { source, dest, next_header, payload_len, hop_limit, .. } = self;
        write!(f, "{source} > {dest} next={next_header} len={payload_len} hops={hop_limit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let address = |last| {
            let mut octets = [0u8; 16];
            (octets[0], octets[1], octets[15]) = (0xfe, 0x80, last);
            Ipv6Addr::from(octets)
        };
        let header = Repr {
            traffic_class: 0x12,
            flow_label: 0x34567,
            payload_len: 0x1c,
            next_header: 17,
            hop_limit: 64,
            source: address(1),
            dest: address(2),
        };
        let addresses = "fe80000000000000 0000000000000001 fe80000000000000 0000000000000002";
        assert_wire!(header, &std::format!("61234567 001c 11 40 {addresses}"));
        assert_eq!(std::format!("{header}"), "fe80::1 > fe80::2 next=17 len=28 hops=64");
    }

    #[test]
    fn other_versions_are_refused() {
        assert_eq!(Repr::read(&[0x45; LEN]), Err(Error::Version));
    }
}
