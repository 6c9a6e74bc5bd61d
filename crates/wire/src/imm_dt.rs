//! Immediate data extended transport header (IBTA vol. 1, 9.3.6): four bytes for the receive completion.

use core::fmt;

use crate::Result;
use crate::bytes::{array, put};

mod field {
    pub const DATA: usize = 0;
}

header!("immediate data extended transport header", 4);

/// What an immediate data extended transport header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The bytes as the sender's program has put them: the transport gives them no byte order.
    pub data: [u8; 4],
}

impl View<'_> {
    /// The immediate data.
    pub fn data(&self) -> [u8; 4] {
        array(self.0, field::DATA)
    }
}

impl Repr {
    /// What a header means.
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
        write!(f, "imm={:#010x}", u32::from_be_bytes(self.data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let header = Repr { data: [0xde, 0xad, 0xbe, 0xef] };
        assert_wire!(header, "deadbeef");
        assert_eq!(std::format!("{header}"), "imm=0xdeadbeef");
    }
}
