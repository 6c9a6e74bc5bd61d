//! Datagram extended transport header (IBTA vol. 1, 9.3.2): the sender of a datagram, and its right to arrive.

use core::fmt;

use verbs::Qpn;

use crate::Result;
use crate::bytes::{put_u24, put_u32, u24_at, u32_at};

mod field {
    pub const QKEY: usize = 0;
    // A reserved byte.
    pub const SOURCE_QPN: usize = 5;
}

header!("datagram extended transport header", 8);

/// The fields of a datagram extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Must be that of the destination queue pair, which checks it (9.6.1.5).
    pub qkey: u32,
    /// The sender's queue pair.
    pub source: Qpn,
}

impl View<'_> {
    /// The queue key.
    pub fn qkey(&self) -> u32 {
        u32_at(self.0, field::QKEY)
    }

    /// The source queue pair.
    pub fn source(&self) -> Qpn {
        Qpn::new(u24_at(self.0, field::SOURCE_QPN))
    }
}

impl Repr {
    /// Parses a header.
    ///
    /// # Errors
    /// None: every value has a meaning.
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        Ok(Repr { qkey: view.qkey(), source: view.source() })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u32(&mut out, field::QKEY, self.qkey);
        put_u24(&mut out, field::SOURCE_QPN, self.source.get());
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qkey={:#x} source={:#x}", self.qkey, self.source.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let header = Repr { qkey: 0x8001_0000, source: Qpn::new(0x55) };
        assert_wire!(header, "80010000 00 000055");
        assert_eq!(Repr::read(&crate::header::hex("80010000 ff 000055")), Ok((header, &[][..])), "reserved bits");
        assert_eq!(std::format!("{header}"), "qkey=0x80010000 source=0x55");
    }
}
