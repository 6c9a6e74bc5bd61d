//! Header of a tagged segment: its place is in memory that the receiver has advertised (RFC 5041, section 4.2).

use core::fmt;

use verbs::RKey;

use crate::Result;
use crate::bytes::{put_u8, put_u32, put_u64, u8_at, u32_at, u64_at};

mod field {
    /// Tagged 7, last 6, reserved, version 1-0.
    pub const CONTROL: usize = 0;
    /// The byte of the protocol above.
    pub const UPPER: usize = 1;
    pub const STAG: usize = 2;
    pub const OFFSET: usize = 6;
}

header!("tagged header", 14);

/// The fields of a tagged header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The message's last segment.
    pub last: bool,
    /// The byte of RDMAP in the header: its [control byte](crate::rdmap::control).
    pub upper: u8,
    /// Steering tag: names the receiver's region. A segment without payload may have any (RFC 5041, section 5.2).
    pub stag: RKey,
    /// Tagged offset: where in it.
    pub offset: u64,
}

impl View<'_> {
    /// The first byte.
    pub fn control(&self) -> u8 {
        u8_at(self.0, field::CONTROL)
    }

    /// The byte of the protocol above.
    pub fn upper(&self) -> u8 {
        u8_at(self.0, field::UPPER)
    }

    /// The steering tag.
    pub fn stag(&self) -> RKey {
        RKey(u32_at(self.0, field::STAG))
    }

    /// The tagged offset.
    pub fn offset(&self) -> u64 {
        u64_at(self.0, field::OFFSET)
    }
}

impl Repr {
    /// Parses a header.
    ///
    /// # Errors
    /// [`Error::Value`](crate::Error::Value) for an untagged header; [`Error::Version`](crate::Error::Version).
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        let last = super::check(view.control(), true)?;
        Ok(Repr { last, upper: view.upper(), stag: view.stag(), offset: view.offset() })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u8(&mut out, field::CONTROL, super::control(true, self.last));
        put_u8(&mut out, field::UPPER, self.upper);
        put_u32(&mut out, field::STAG, self.stag.0);
        put_u64(&mut out, field::OFFSET, self.offset);
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stag={:#x} offset={:#x}", self.stag.0, self.offset)?;
        if self.last { f.write_str(" last") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::hex;

    #[test]
    fn literal_bytes() {
        let header = Repr { last: true, upper: 0x40, stag: RKey(0xdead_be00), offset: 0x0102_0304_0506_0708 };
        assert_wire!(header, "c1 40 deadbe00 0102030405060708");
        assert_wire!(Repr { last: false, upper: 0x42, ..header }, "81 42 deadbe00 0102030405060708");
        let reserved = hex("fd 40 deadbe00 0102030405060708");
        assert_eq!(Repr::read(&reserved), Ok((header, &[][..])), "reserved bits");
        assert_eq!(std::format!("{header}"), "stag=0xdeadbe00 offset=0x102030405060708 last");
    }
}
