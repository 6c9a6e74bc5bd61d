//! Invalidate extended transport header (IBTA vol. 1, 9.3.7): which remote key a SEND invalidates.

use core::fmt;

use verbs::RKey;

use crate::Result;
use crate::bytes::{put_u32, u32_at};

mod field {
    pub const RKEY: usize = 0;
}

header!("invalidate extended transport header", 4);

/// The fields of an invalidate extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The key that the responder invalidates.
    pub rkey: RKey,
}

impl View<'_> {
    /// The key.
    pub fn rkey(&self) -> RKey {
        RKey(u32_at(self.0, field::RKEY))
    }
}

impl Repr {
    /// Parses a header.
    ///
    /// # Errors
    /// None: every value has a meaning.
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        Ok(Repr { rkey: view.rkey() })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u32(&mut out, field::RKEY, self.rkey.0);
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalidate={:#x}", self.rkey.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let header = Repr { rkey: RKey(0xdead_beef) };
        assert_wire!(header, "deadbeef");
        assert_eq!(std::format!("{header}"), "invalidate=0xdeadbeef");
    }
}
