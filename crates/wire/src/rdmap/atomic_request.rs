//! What an atomic request has behind its untagged header (RFC 7306, section 5.2.1).

use core::fmt;

use verbs::RKey;

use crate::bytes::{put_u32, put_u64, u32_at, u64_at};
use crate::{Error, Result};

mod field {
    /// Reserved but for the operation 3-0.
    pub const OPERATION: usize = 0;
    pub const REQUEST_ID: usize = 4;
    pub const STAG: usize = 8;
    pub const OFFSET: usize = 12;
    pub const SWAP_ADD: usize = 20;
    pub const SWAP_ADD_MASK: usize = 28;
    pub const COMPARE: usize = 36;
    pub const COMPARE_MASK: usize = 44;
}

header!("atomic request header", 52);

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names are the specification's
pub enum Operation {
    FetchAdd = 0,
    CompareSwap = 2,
}

/// The fields of an atomic request header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The operation.
    pub operation: Operation,
    /// Tells which request a response belongs to.
    pub request_id: u32,
    /// The responder's memory.
    pub stag: RKey,
    /// The offset in that memory. The responder checks that it is a multiple of 8.
    pub offset: u64,
    /// The operand: the value to be stored, or added.
    pub swap_add: u64,
    /// The bits of `swap_add` that are stored; of an addition: the carries that end a field.
    pub swap_add_mask: u64,
    /// The value that the memory must hold; unused by fetch-and-add.
    pub compare: u64,
    /// The bits of `compare` that are compared.
    pub compare_mask: u64,
}

impl View<'_> {
    /// The number of the operation.
    pub fn operation(&self) -> u8 {
        u32_at(self.0, field::OPERATION) as u8 & 0x0f
    }

    /// The request's id.
    pub fn request_id(&self) -> u32 {
        u32_at(self.0, field::REQUEST_ID)
    }

    /// The steering tag.
    pub fn stag(&self) -> RKey {
        RKey(u32_at(self.0, field::STAG))
    }

    /// The tagged offset.
    pub fn offset(&self) -> u64 {
        u64_at(self.0, field::OFFSET)
    }

    /// The swap or add operand.
    pub fn swap_add(&self) -> u64 {
        u64_at(self.0, field::SWAP_ADD)
    }

    /// The mask of the swap or add operand.
    pub fn swap_add_mask(&self) -> u64 {
        u64_at(self.0, field::SWAP_ADD_MASK)
    }

    /// The compare operand.
    pub fn compare(&self) -> u64 {
        u64_at(self.0, field::COMPARE)
    }

    /// The mask of the compare operand.
    pub fn compare_mask(&self) -> u64 {
        u64_at(self.0, field::COMPARE_MASK)
    }
}

impl Repr {
    /// Parses a header.
    ///
    /// # Errors
    /// [`Error::Opcode`] for an operation that RFC 7306 does not define.
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        let operation = match view.operation() {
            0 => Operation::FetchAdd,
            2 => Operation::CompareSwap,
            _ => return Err(Error::Opcode),
        };
        Ok(Repr {
            operation,
            request_id: view.request_id(),
            stag: view.stag(),
            offset: view.offset(),
            swap_add: view.swap_add(),
            swap_add_mask: view.swap_add_mask(),
            compare: view.compare(),
            compare_mask: view.compare_mask(),
        })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u32(&mut out, field::OPERATION, self.operation as u32);
        put_u32(&mut out, field::REQUEST_ID, self.request_id);
        put_u32(&mut out, field::STAG, self.stag.0);
        put_u64(&mut out, field::OFFSET, self.offset);
        put_u64(&mut out, field::SWAP_ADD, self.swap_add);
        put_u64(&mut out, field::SWAP_ADD_MASK, self.swap_add_mask);
        put_u64(&mut out, field::COMPARE, self.compare);
        put_u64(&mut out, field::COMPARE_MASK, self.compare_mask);
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Repr { operation, request_id, stag, offset, swap_add, compare, .. } = self;
        write!(f, "{operation:?} id={request_id:#x} {:#x}+{offset:#x}", stag.0)?;
        write!(f, " swap_add={swap_add:#x} compare={compare:#x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::hex;

    #[test]
    fn literal_bytes() {
        let header = Repr {
            operation: Operation::CompareSwap,
            request_id: 7,
            stag: RKey(0x0102_0304),
            offset: 0x1112_1314_1516_1718,
            swap_add: 1,
            swap_add_mask: u64::MAX,
            compare: 2,
            compare_mask: 3,
        };
        let rest = "00000007 01020304 1112131415161718 0000000000000001 ffffffffffffffff 0000000000000002 \
                    0000000000000003";
        assert_wire!(header, &std::format!("00000002 {rest}"));
        assert_wire!(Repr { operation: Operation::FetchAdd, ..header }, &std::format!("00000000 {rest}"));
        let reserved = hex(&std::format!("fffffff2 {rest}"));
        assert_eq!(Repr::read(&reserved), Ok((header, &[][..])), "reserved bits");
        assert_eq!(Repr::read(&hex(&std::format!("00000001 {rest}"))), Err(Error::Opcode));
        let line = "CompareSwap id=0x7 0x1020304+0x1112131415161718 swap_add=0x1 compare=0x2";
        assert_eq!(std::format!("{header}"), line);
    }
}
