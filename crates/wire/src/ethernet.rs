//! Ethernet header, without tags (IEEE 802.3).

use core::fmt;

use crate::Result;
use crate::bytes::{array, put, put_u16, u16_at};

mod field {
    pub const DEST: usize = 0;
    pub const SOURCE: usize = 6;
    pub const ETHERTYPE: usize = 12;
}

header!("Ethernet header", 14);

/// IPv4 follows.
pub const IPV4: u16 = 0x0800;
/// IPv6 follows.
pub const IPV6: u16 = 0x86dd;

/// The fields of an Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The receiving station.
    pub dest: [u8; 6],
    /// The sending station.
    pub source: [u8; 6],
    /// What follows.
    pub ethertype: u16,
}

impl View<'_> {
    /// The receiving station.
    pub fn dest(&self) -> [u8; 6] {
        array(self.0, field::DEST)
    }

    /// The sending station.
    pub fn source(&self) -> [u8; 6] {
        array(self.0, field::SOURCE)
    }

    /// What follows.
    pub fn ethertype(&self) -> u16 {
        u16_at(self.0, field::ETHERTYPE)
    }
}

impl Repr {
    /// Parses a header.
    ///
    /// # Errors
    /// None: the type is for the caller to judge.
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        Ok(Repr { dest: view.dest(), source: view.source(), ethertype: view.ethertype() })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put(&mut out, field::DEST, &self.dest);
        put(&mut out, field::SOURCE, &self.source);
        put_u16(&mut out, field::ETHERTYPE, self.ethertype);
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let station = |f: &mut fmt::Formatter<'_>, [a, b, c, d, e, g]: [u8; 6]| {
            write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
        };
        station(f, self.source)?;
        f.write_str(" > ")?;
        station(f, self.dest)?;
        write!(f, " type={:#06x}", self.ethertype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let header = Repr { dest: [2, 0, 0xc0, 0xa8, 0, 9], source: [2, 0, 0xc0, 0xa8, 0, 7], ethertype: IPV4 };
        assert_wire!(header, "0200c0a80009 0200c0a80007 0800");
        assert_eq!(std::format!("{header}"), "02:00:c0:a8:00:07 > 02:00:c0:a8:00:09 type=0x0800");
    }
}
