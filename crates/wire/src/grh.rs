//! Global route header (IBTA vol. 1, 8.3). It stands in front of what a UD queue pair receives, too (10.2.5).

use core::fmt;

use verbs::Gid;

use crate::bytes::{array, put, put_u8, put_u16, put_u32, u8_at, u16_at, u32_at};
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

header!("global route header", 40);

/// The base transport header follows (8.3.4).
pub const NEXT_IBA: u8 = 0x1b;

const VERSION: u32 = 6;

/// What a global route header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The class of service from end to end.
    pub traffic_class: u8,
    /// Names the packet's flow to routers; 20 bits.
    pub flow_label: u32,
    /// Bytes from the header to the variant CRC (8.3.3).
    pub payload_len: u16,
    /// What follows.
    pub next_header: u8,
    /// Hops that are left.
    pub hop_limit: u8,
    /// The sender.
    pub source: Gid,
    /// The receiver.
    pub dest: Gid,
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
    pub fn source(&self) -> Gid {
        Gid(array(self.0, field::SOURCE))
    }

    /// The receiver.
    pub fn dest(&self) -> Gid {
        Gid(array(self.0, field::DEST))
    }
}

impl Repr {
    /// What a header means.
    ///
    /// # Errors
    /// [`Error::Version`]: the version is 6 (8.3.1).
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
        put(&mut out, field::SOURCE, &self.source.0);
        put(&mut out, field::DEST, &self.dest.0);
        out
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
