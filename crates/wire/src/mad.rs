//! Management datagrams (IBTA vol. 1, 13.4): 256 bytes in a SEND of a datagram, between the queue pairs 0 or 1 of two
//! ports. Here is the header that all classes have; [`cm`] is the class of communication management.

use core::fmt;

use crate::bytes::{put_u8, put_u16, put_u32, put_u64, u8_at, u16_at, u32_at, u64_at};
use crate::{Error, Result};

pub mod cm;

mod field {
    pub const BASE_VERSION: usize = 0;
    pub const CLASS: usize = 1;
    pub const CLASS_VERSION: usize = 2;
    /// Response 7, method 6-0.
    pub const METHOD: usize = 3;
    pub const STATUS: usize = 4;
    pub const CLASS_SPECIFIC: usize = 6;
    pub const TRANSACTION: usize = 8;
    pub const ATTRIBUTE: usize = 16;
    // Two reserved bytes.
    pub const MODIFIER: usize = 20;
}

header!("common management datagram header", 24);

/// Bytes of every management datagram (13.4.2).
pub const DATAGRAM_LEN: usize = 256;

/// The only base version (13.4.3).
const BASE_VERSION: u8 = 1;

/// The fields of a common management datagram header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Management class.
    pub class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Method, with the bit of responses.
    pub method: u8,
    /// How a request went; 0 in requests.
    pub status: u16,
    /// The class's own.
    pub class_specific: u16,
    /// Tells which request an answer belongs to.
    pub transaction: u64,
    /// The attribute to be got, set or sent.
    pub attribute: u16,
    /// More of the attribute.
    pub modifier: u32,
}

impl View<'_> {
    /// The base version.
    pub fn base_version(&self) -> u8 {
        u8_at(self.0, field::BASE_VERSION)
    }

    /// The class.
    pub fn class(&self) -> u8 {
        u8_at(self.0, field::CLASS)
    }

    /// The version of the class.
    pub fn class_version(&self) -> u8 {
        u8_at(self.0, field::CLASS_VERSION)
    }

    /// The method, with the bit of responses.
    pub fn method(&self) -> u8 {
        u8_at(self.0, field::METHOD)
    }

    /// How a request went.
    pub fn status(&self) -> u16 {
        u16_at(self.0, field::STATUS)
    }

    /// The class's own field.
    pub fn class_specific(&self) -> u16 {
        u16_at(self.0, field::CLASS_SPECIFIC)
    }

    /// The transaction.
    pub fn transaction(&self) -> u64 {
        u64_at(self.0, field::TRANSACTION)
    }

    /// The attribute.
    pub fn attribute(&self) -> u16 {
        u16_at(self.0, field::ATTRIBUTE)
    }

    /// The modifier of the attribute.
    pub fn modifier(&self) -> u32 {
        u32_at(self.0, field::MODIFIER)
    }
}

impl Repr {
    /// Parses a header.
    ///
    /// # Errors
    /// [`Error::Version`] for another base version (13.4.4: status "bad version").
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        if view.base_version() != BASE_VERSION {
            return Err(Error::Version);
        }
        Ok(Repr {
            class: view.class(),
            class_version: view.class_version(),
            method: view.method(),
            status: view.status(),
            class_specific: view.class_specific(),
            transaction: view.transaction(),
            attribute: view.attribute(),
            modifier: view.modifier(),
        })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u8(&mut out, field::BASE_VERSION, BASE_VERSION);
        put_u8(&mut out, field::CLASS, self.class);
        put_u8(&mut out, field::CLASS_VERSION, self.class_version);
        put_u8(&mut out, field::METHOD, self.method);
        put_u16(&mut out, field::STATUS, self.status);
        put_u16(&mut out, field::CLASS_SPECIFIC, self.class_specific);
        put_u64(&mut out, field::TRANSACTION, self.transaction);
        put_u16(&mut out, field::ATTRIBUTE, self.attribute);
        put_u32(&mut out, field::MODIFIER, self.modifier);
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Repr { class, method, attribute, transaction, status, .. } = self;
        write!(f, "class={class:#x} method={method:#x} attribute={attribute:#x} transaction={transaction:#x}")?;
        if *status == 0 { Ok(()) } else { write!(f, " status={status:#x}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let header = Repr {
            class: 7,
            class_version: 2,
            method: 3,
            status: 0,
            class_specific: 0,
            transaction: 0x0a0b_0c0d,
            attribute: 0x10,
            modifier: 0x1c,
        };
        assert_wire!(header, "01 07 02 03 0000 0000 000000000a0b0c0d 0010 0000 0000001c");
        assert_eq!(std::format!("{header}"), "class=0x7 method=0x3 attribute=0x10 transaction=0xa0b0c0d");
    }

    #[test]
    fn other_base_versions_are_refused() {
        assert_eq!(Repr::read(&[2; LEN]), Err(Error::Version));
    }
}
