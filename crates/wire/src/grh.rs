//! Global route header (IBTA vol. 1, 8.3). It stands in front of what a UD queue pair receives, too (10.2.5).

use verbs::Gid;

use crate::version6::{self, Address};

pub use crate::version6::LEN;

/// The base transport header follows (8.3.4).
pub const NEXT_IBA: u8 = 0x1b;

/// A global route header in place.
pub type View<'a> = version6::View<'a, Gid>;
/// The fields of a global route header. Its payload reaches to the variant CRC (8.3.3), and its version is 6 (8.3.1).
pub type Repr = version6::Repr<Gid>;

impl Address for Gid {
    fn from_octets(octets: [u8; 16]) -> Self {
        Gid(octets)
    }

    fn to_octets(self) -> [u8; 16] {
        self.0
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
            Gid(octets)
        };
        let header = Repr {
            traffic_class: 0x12,
            flow_label: 0x34567,
            payload_len: 0x1c,
            next_header: NEXT_IBA,
            hop_limit: 64,
            source: address(1),
            dest: address(2),
        };
        let addresses = "fe80000000000000 0000000000000001 fe80000000000000 0000000000000002";
        assert_wire!(header, &std::format!("61234567 001c 1b 40 {addresses}"));
        assert_eq!(
            std::format!("{header}"),
            "fe80:0000:0000:0000:0000:0000:0000:0001 > fe80:0000:0000:0000:0000:0000:0000:0002 next=27 len=28 hops=64"
        );
    }

    #[test]
    fn other_versions_are_refused() {
        assert_eq!(Repr::read(&[0x45; LEN]), Err(Error::Version));
    }
}
