//! The structures of `libhyperclient/hyperclient_compat.h`. The program's bytes are no Rust values yet: the type is a
//! number and the map is bytes until they are checked.

use group::{MOST_REPLICAS, Operation};

pub const GWRITE: u32 = 0;
pub const GMEMCPY: u32 = 1;
pub const GFLUSH: u32 = 2;
pub const GCAS: u32 = 3;

/// `struct compat_hyperloop_operation`: the union as the longest of its members, gCas.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct COperation {
    pub kind: u32,
    pub words: [u64; 3],
    pub map: [u8; MOST_REPLICAS],
}

// As in the header; tests/c/arguments.c asserts it for C.
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<COperation>() == 96 && offset_of!(COperation, words) == 8 && offset_of!(COperation, map) == 32);
};

impl COperation {
    /// The operation; `None`: a type that is none.
    pub fn operation(&self) -> Option<Operation> {
        let [a, b, c] = self.words;
        Some(match self.kind {
            GWRITE => Operation::Write { offset: a, size: b },
            GMEMCPY => Operation::Copy { from: a, to: b, size: c },
            GFLUSH => Operation::Flush { offset: a, size: b },
            GCAS => {
                let bit = |i: usize| u64::from(self.map[i] != 0) << i;
                let execute = (0..MOST_REPLICAS).fold(0, |map, i| map | bit(i));
                Operation::CompareSwap { offset: a, old: b, new: c, execute }
            }
            _ => return None,
        })
    }

    /// A gCAS of C; `None`: another operation.
    pub fn of_cas(op: &Operation) -> Option<COperation> {
        let Operation::CompareSwap { offset, old, new, execute } = *op else { return None };
        let map = std::array::from_fn(|i| u8::from(execute >> i & 1 != 0));
        Some(COperation { kind: GCAS, words: [offset, old, new], map })
    }
}
