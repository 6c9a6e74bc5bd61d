//! Atomic extended transport header (IBTA vol. 1, 9.3.4): an atomic request's address and operands.

use core::fmt;

use verbs::RKey;

use crate::Result;
use crate::bytes::{put_u32, put_u64, u32_at, u64_at};

mod field {
    pub const REMOTE_ADDR: usize = 0;
    pub const RKEY: usize = 8;
    pub const SWAP_ADD: usize = 12;
    pub const COMPARE: usize = 20;
}

header!("atomic extended transport header", 28);

/// The fields of an atomic extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Virtual address in the responder. That it is a multiple of 8 is for the responder to check (9.4.5).
    pub remote_addr: u64,
    /// Key of the region or window.
    pub rkey: RKey,
    /// The operand: the value to be stored, or added.
    pub swap_add: u64,
    /// The value that the memory must hold; unused by fetch-and-add.
    pub compare: u64,
}

impl View<'_> {
    /// The virtual address.
    pub fn remote_addr(&self) -> u64 {
        u64_at(self.0, field::REMOTE_ADDR)
    }

    /// The remote key.
    pub fn rkey(&self) -> RKey {
        RKey(u32_at(self.0, field::RKEY))
    }

    /// The swap or add operand.
    pub fn swap_add(&self) -> u64 {
        u64_at(self.0, field::SWAP_ADD)
    }

    /// The compare operand.
    pub fn compare(&self) -> u64 {
        u64_at(self.0, field::COMPARE)
    }
}

impl Repr {
    /// Parses a header.
    ///
    /// # Errors
    /// None: every value has a meaning.
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        Ok(Repr {
            remote_addr: view.remote_addr(),
            rkey: view.rkey(),
            swap_add: view.swap_add(),
            compare: view.compare(),
        })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u64(&mut out, field::REMOTE_ADDR, self.remote_addr);
        put_u32(&mut out, field::RKEY, self.rkey.0);
        put_u64(&mut out, field::SWAP_ADD, self.swap_add);
        put_u64(&mut out, field::COMPARE, self.compare);
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Repr { remote_addr, rkey, swap_add, compare } = self;
        write!(f, "addr={remote_addr:#x} rkey={:#x} swap_add={swap_add:#x} compare={compare:#x}", rkey.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let header = Repr {
            remote_addr: 0x1122_3344_5566_7788,
            rkey: RKey(0x99aa_bbcc),
            swap_add: 0x0102_0304_0506_0708,
            compare: 0x1112_1314_1516_1718,
        };
        assert_wire!(header, "1122334455667788 99aabbcc 0102030405060708 1112131415161718");
        let line = "addr=0x1122334455667788 rkey=0x99aabbcc swap_add=0x102030405060708 compare=0x1112131415161718";
        assert_eq!(std::format!("{header}"), line);
    }
}
