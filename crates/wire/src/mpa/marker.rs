//! Marker: says every 512 bytes of the TCP stream where an FPDU starts (RFC 5044, section 4.3).

use core::fmt;

use crate::Result;
use crate::bytes::{put_u16, u16_at};

mod field {
    // Two reserved bytes.
    pub const DISTANCE: usize = 2;
}

header!("marker", 4);

/// Bytes from one marker's start to the next one's, counted from the first byte of full operation.
pub const INTERVAL: u64 = 512;

/// The fields of a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Bytes from the start of the FPDU around it to the marker, a multiple of 4; 0 if an FPDU starts behind it.
    pub distance: u16,
}

impl View<'_> {
    /// The distance from the start of the FPDU.
    pub fn distance(&self) -> u16 {
        u16_at(self.0, field::DISTANCE)
    }
}

impl Repr {
    /// Parses a marker. The receiver checks that it points to where an FPDU does start.
    ///
    /// # Errors
    /// None: the two low bits are taken as zero, whatever they are (RFC 5044, section 4.2), and the reserved bytes are
    /// ignored.
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        Ok(Repr { distance: view.distance() & !3 })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u16(&mut out, field::DISTANCE, self.distance);
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "marker distance={}", self.distance)
    }
}

/// Bytes from this place in the stream to the next marker: 0 where one starts.
pub const fn to_next(position: u64) -> u64 {
    position.wrapping_neg() % INTERVAL
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::hex;

    #[test]
    fn literal_bytes() {
        assert_wire!(Repr { distance: 0x14 }, "0000 0014");
        assert_eq!(Repr::read(&hex("ffff 0014")), Ok((Repr { distance: 0x14 }, &[][..])), "reserved bits");
        assert_eq!(Repr::read(&hex("0000 0017")), Ok((Repr { distance: 0x14 }, &[][..])), "low bits");
        assert_eq!(std::format!("{}", Repr { distance: 20 }), "marker distance=20");
    }

    #[test]
    fn one_every_512_bytes() {
        assert_eq!([0, 1, 508, 511, 512, 513].map(to_next), [0, 511, 4, 1, 0, 511]);
    }
}
