//! UDP header (RFC 768).

use core::fmt;

use crate::bytes::{put_u16, u16_at};
use crate::{Error, Result};

mod field {
    pub const SOURCE: usize = 0;
    pub const DEST: usize = 2;
    pub const LEN: usize = 4;
    pub const CHECKSUM: usize = 6;
}

header!("UDP header", 8);

/// UDP's number as a protocol of IPv4 and as a next header of IPv6.
pub const PROTOCOL: u8 = 17;

/// The fields of a UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The sender's port.
    pub source: u16,
    /// The receiver's port.
    pub dest: u16,
    /// Bytes behind the header, at most 65527: a longer payload is emitted as that.
    pub payload_len: u16,
    /// Checksum over pseudo header, header and payload; 0 is none.
    pub checksum: u16,
}

impl View<'_> {
    /// The sender's port.
    pub fn source(&self) -> u16 {
        u16_at(self.0, field::SOURCE)
    }

    /// The receiver's port.
    pub fn dest(&self) -> u16 {
        u16_at(self.0, field::DEST)
    }

    /// Bytes of header and payload.
    pub fn len(&self) -> u16 {
        u16_at(self.0, field::LEN)
    }

    /// True if there is not even a header: such a length is refused.
    pub fn is_empty(&self) -> bool {
        usize::from(self.len()) < LEN
    }

    /// The checksum.
    pub fn checksum(&self) -> u16 {
        u16_at(self.0, field::CHECKSUM)
    }
}

impl Repr {
    /// Parses a header. The caller verifies the checksum, as the caller knows the pseudo header.
    ///
    /// # Errors
    /// [`Error::Length`] for a length that is shorter than the header.
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        let payload_len = view.len().checked_sub(LEN as u16).ok_or(Error::Length)?;
        Ok(Repr { source: view.source(), dest: view.dest(), payload_len, checksum: view.checksum() })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u16(&mut out, field::SOURCE, self.source);
        put_u16(&mut out, field::DEST, self.dest);
        put_u16(&mut out, field::LEN, self.payload_len.saturating_add(LEN as u16));
        put_u16(&mut out, field::CHECKSUM, self.checksum);
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {} len={}", self.source, self.dest, self.payload_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::hex;

    #[test]
    fn literal_bytes() {
        let header = Repr { source: 0xc000, dest: 4791, payload_len: 36, checksum: 0xaca2 };
        assert_wire!(header, "c000 12b7 002c aca2");
        assert_eq!(std::format!("{header}"), "49152 > 4791 len=36");
    }

    #[test]
    fn a_length_below_its_own_is_refused() {
        assert_eq!(Repr::read(&hex("c000 12b7 0007 aca2")), Err(Error::Length));
    }
}
