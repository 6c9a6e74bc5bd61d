//! IPv6 header (RFC 8200, section 3).

use core::net::Ipv6Addr;

use crate::checksum::Sum;
use crate::version6::{self, Address};

pub use crate::version6::LEN;

/// An IPv6 header in place.
pub type View<'a> = version6::View<'a, Ipv6Addr>;
/// The fields of an IPv6 header. Its traffic class has differentiated services and congestion marks (RFC 2474, RFC
/// 3168).
pub type Repr = version6::Repr<Ipv6Addr>;

impl Address for Ipv6Addr {
    fn from_octets(octets: [u8; 16]) -> Self {
        Ipv6Addr::from(octets)
    }

    fn to_octets(self) -> [u8; 16] {
        self.octets()
    }
}

impl Repr {
    /// The sum over the pseudo header of UDP and TCP (RFC 8200, 8.1) for `len` bytes of them.
    pub fn pseudo_header(&self, len: u16) -> Sum {
        let sum = Sum::default().bytes(&self.source.octets()).bytes(&self.dest.octets());
        sum.word(u16::from(self.next_header)).word(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

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
