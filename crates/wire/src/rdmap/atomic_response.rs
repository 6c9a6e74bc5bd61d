//! What an atomic response has behind its untagged header (RFC 7306, section 5.2.2). The figure has these 12 bytes; the
//! text of RFC 7306, section 4 speaks of 32, so what follows them is left to the caller to ignore.

use core::fmt;

use crate::Result;
use crate::bytes::{put_u32, put_u64, u32_at, u64_at};

mod field {
    pub const REQUEST_ID: usize = 0;
    pub const ORIGINAL: usize = 4;
}

header!("atomic response header", 12);

/// The fields of an atomic response header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// That of the request.
    pub request_id: u32,
    /// The value before the operation.
    pub original: u64,
}

impl View<'_> {
    /// The request's id.
    pub fn request_id(&self) -> u32 {
        u32_at(self.0, field::REQUEST_ID)
    }

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
        Ok(Repr { request_id: view.request_id(), original: view.original() })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u32(&mut out, field::REQUEST_ID, self.request_id);
        put_u64(&mut out, field::ORIGINAL, self.original);
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "id={:#x} original={:#x}", self.request_id, self.original)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let header = Repr { request_id: 7, original: 0x0102_0304_0506_0708 };
        assert_wire!(header, "00000007 0102030405060708");
        assert_eq!(std::format!("{header}"), "id=0x7 original=0x102030405060708");
    }
}
