//! FLUSH extended transport header (IBTA vol. 1, annex A19.4.1): how far data are to be flushed, and which.

use core::fmt;

use crate::Result;
use crate::bytes::{put_u8, u8_at};

mod field {
    /// Reserved but for the selectivity 5-4 and the placement type 3-0 of the last byte.
    pub const KIND: usize = 3;
}

header!("FLUSH extended transport header", 4);

/// The fields of a FLUSH extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Placement type, 4 bits: 1 global visibility, 2 persistence.
    pub placement: u8,
    /// Selectivity level, 2 bits: 0 the range of the RETH, 1 the whole region.
    pub selectivity: u8,
}

impl View<'_> {
    /// The placement type.
    pub fn placement(&self) -> u8 {
        u8_at(self.0, field::KIND) & 0x0f
    }

    /// The selectivity level.
    pub fn selectivity(&self) -> u8 {
        u8_at(self.0, field::KIND) >> 4 & 3
    }
}

impl Repr {
    /// Parses a header.
    ///
    /// # Errors
    /// None: what is reserved is an invalid request, which the responder answers with a NAK.
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        Ok(Repr { placement: view.placement(), selectivity: view.selectivity() })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u8(&mut out, field::KIND, (self.selectivity & 3) << 4 | self.placement & 0x0f);
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "placement={} selectivity={}", self.placement, self.selectivity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let header = Repr { placement: 2, selectivity: 1 };
        assert_wire!(header, "00000012");
        assert_eq!(Repr::read(&crate::header::hex("ffffffd2")), Ok((header, &[][..])), "reserved bits");
        assert_eq!(std::format!("{header}"), "placement=2 selectivity=1");
    }
}
