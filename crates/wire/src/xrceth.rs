//! XRC extended transport header (IBTA vol. 1, annex A14.4.2): the shared receive queue of a request.

use core::fmt;

use crate::Result;
use crate::bytes::{put_u24, u24_at};

mod field {
    // A reserved byte.
    pub const SRQN: usize = 1;
}

header!("XRC extended transport header", 4);

/// The fields of an XRC extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Number of the shared receive queue; 24 bits.
    pub srqn: u32,
}

impl View<'_> {
    /// The number of the shared receive queue.
    pub fn srqn(&self) -> u32 {
        u24_at(self.0, field::SRQN)
    }
}

impl Repr {
    /// Parses a header.
    ///
    /// # Errors
    /// None: every value has a meaning.
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        Ok(Repr { srqn: view.srqn() })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u24(&mut out, field::SRQN, self.srqn);
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "srqn={:#x}", self.srqn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let header = Repr { srqn: 0x77 };
        assert_wire!(header, "00 000077");
        assert_eq!(Repr::read(&crate::header::hex("ff 000077")), Ok((header, &[][..])), "reserved bits");
        assert_eq!(std::format!("{header}"), "srqn=0x77");
    }
}
