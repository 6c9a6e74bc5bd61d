//! Atomic ACK extended transport header (IBTA vol. 1, 9.3.5.3): what was there before the operation.

use core::fmt;

use crate::Result;
use crate::bytes::{put_u64, u64_at};

mod field {
    pub const ORIGINAL: usize = 0;
}

header!("atomic ACK extended transport header", 8);

/// The fields of an atomic ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The value before the operation.
    pub original: u64,
}

impl View<'_> {
    /// The value before the operation.
    pub fn original(&self) -> u64 {
        u64_at(self.0, field::ORIGINAL)
    }
}

impl Repr {
    /// Parses a header.
    ///
    /// # Errors
    /// None: every value has a meaning.
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        Ok(Repr { original: view.original() })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u64(&mut out, field::ORIGINAL, self.original);
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "original={:#x}", self.original)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let header = Repr { original: 0x0102_0304_0506_0708 };
        assert_wire!(header, "0102030405060708");
        assert_eq!(std::format!("{header}"), "original=0x102030405060708");
    }
}
