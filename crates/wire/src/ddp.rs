//! DDP: where the bytes of a segment go (RFC 5041). A segment starts with a [`tagged`] header, which names memory of
//! the receiver, or an [`untagged`] one, which names a receive queue. The first byte says which; the bytes that DDP
//! leaves to the protocol above it are those of RDMAP ([`crate::rdmap::control`]).

use crate::bytes::u8_at;
use crate::{Error, Result};

pub mod tagged;
pub mod untagged;

/// Tagged.
const TAGGED: u8 = 0x80;
/// Last segment of a message.
const LAST: u8 = 0x40;
/// The bits of the version.
const VERSION_BITS: u8 = 0x03;
/// The only version (section 4.1).
const VERSION: u8 = 1;

/// Writes the first byte.
fn control(tagged: bool, last: bool) -> u8 {
    (if tagged { TAGGED } else { 0 }) | (if last { LAST } else { 0 }) | VERSION
}

/// True if the first byte is that of the last segment.
///
/// # Errors
/// [`Error::Value`] if it is of the other model; [`Error::Version`] (section 7.1: another version is an error).
/// Reserved bits are ignored (section 4.1).
fn check(first: u8, tagged: bool) -> Result<bool> {
    if (first & TAGGED != 0) != tagged {
        return Err(Error::Value("DDP model"));
    }
    if first & VERSION_BITS != VERSION {
        return Err(Error::Version);
    }
    Ok(first & LAST != 0)
}

/// The header at the start of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Header {
    Tagged(tagged::Repr),
    Untagged(untagged::Repr),
}

impl Header {
    /// The header of either model at the start of these bytes, and what follows it.
    ///
    /// # Errors
    /// Those of the headers.
    pub fn read(segment: &[u8]) -> Result<(Header, &[u8])> {
        let first = segment.get(..1).ok_or(Error::Truncated)?;
        Ok(if u8_at(first, 0) & TAGGED != 0 {
            let (header, rest) = tagged::Repr::read(segment)?;
            (Header::Tagged(header), rest)
        } else {
            let (header, rest) = untagged::Repr::read(segment)?;
            (Header::Untagged(header), rest)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::hex;

    #[test]
    fn the_first_byte_tells_the_model() {
        let tagged = hex("c1 40 deadbe00 0000000000000000");
        let untagged = hex("41 43 00000000 00000000 00000001 00000000");
        assert!(matches!(Header::read(&tagged), Ok((Header::Tagged(_), []))));
        assert!(matches!(Header::read(&untagged), Ok((Header::Untagged(_), []))));
        assert_eq!(Header::read(&[]), Err(Error::Truncated));
        assert_eq!(tagged::Repr::read(&untagged), Err(Error::Value("DDP model")));
        assert_eq!(untagged::Repr::read(&[0x81; 18]), Err(Error::Value("DDP model")));
        assert_eq!(Header::read(&[0x80; 18]), Err(Error::Version));
        assert_eq!(Header::read(&[0x02; 18]), Err(Error::Version));
    }
}
