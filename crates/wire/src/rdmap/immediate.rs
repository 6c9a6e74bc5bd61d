//! The payload of an immediate message: exactly eight bytes (RFC 7306, section 6).

use core::fmt;

use crate::Result;
use crate::bytes::{array, put};

mod field {
    pub const DATA: usize = 0;
}

header!("payload of an immediate message", 8);

/// What an immediate message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The bytes as the sender's program has put them.
    pub data: [u8; 8],
}

impl View<'_> {
    /// The bytes.
    pub fn data(&self) -> [u8; 8] {
        array(self.0, field::DATA)
    }
}

impl Repr {
    /// What a payload means. That nothing follows it is for the receiver to check.
    ///
    /// # Errors
    /// None: every value has a meaning.
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        Ok(Repr { data: view.data() })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put(&mut out, field::DATA, &self.data);
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "imm={:#018x}", u64::from_be_bytes(self.data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let payload = Repr { data: [1, 2, 3, 4, 5, 6, 7, 8] };
        assert_wire!(payload, "0102030405060708");
        assert_eq!(std::format!("{payload}"), "imm=0x0102030405060708");
    }
}
