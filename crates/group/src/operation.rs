//! The operations, and what they touch.

use std::ops::Range;

use crate::error::{Error, Result};

/// Replicas of the longest chain.
pub const MOST_REPLICAS: usize = 64;

/// An operation on the memory of all replicas. Offsets are those of the client's buffer and of the replicas' regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// gWRITE: the client's bytes to every replica.
    Write {
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        size: u64,
    },
    /// gMEMCPY: bytes of each replica to another place of its own.
    Copy {
        /// The first byte to read.
        from: u64,
        /// The first byte to write.
        to: u64,
        /// The number of bytes.
        size: u64,
    },
    /// gCAS: compare 8 bytes, and swap them if they are equal.
    CompareSwap {
        /// The first byte; a multiple of 8.
        offset: u64,
        /// The expected value.
        old: u64,
        /// The value that takes its place.
        new: u64,
        /// Bit i: replica i executes it. Replica 0 is the one that the client is connected to.
        execute: u64,
    },
    /// gFLUSH: earlier operations of the group are in each replica's memory. It is a message behind theirs.
    Flush {
        /// The first byte.
        offset: u64,
        /// The number of bytes.
        size: u64,
    },
}

fn range(offset: u64, size: u64) -> Range<u64> {
    offset..offset.saturating_add(size)
}

fn meet(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Operation {
    /// Check against the sizes of the regions and of the client's buffer, and the number of replicas.
    ///
    /// # Errors
    /// [`Error::Invalid`], which says why.
    pub fn check(&self, region: u64, buffer: u64, replicas: usize) -> Result<()> {
        let within = |offset: u64, size: u64, limit: u64, why| {
            let inside = offset.checked_add(size).is_some_and(|end| end <= limit);
            if inside { Ok(()) } else { Err(Error::Invalid(why)) }
        };
        let size = self.size();
        if size == 0 || size > u64::from(u32::MAX >> 1) {
            return Err(Error::Invalid("a size of 0, or of 2 GiB or more"));
        }
        match *self {
            Operation::Write { offset, .. } => {
                within(offset, size, buffer, "outside the client's buffer")?;
                within(offset, size, region, "outside the region")
            }
            Operation::Flush { offset, .. } => within(offset, size, region, "outside the region"),
            Operation::Copy { from, to, .. } => {
                within(from, size, region, "the source is outside the region")?;
                within(to, size, region, "the destination is outside the region")?;
                // One WRITE moves the bytes in an order of its own.
                let overlap = meet(&range(from, size), &range(to, size));
                if overlap { Err(Error::Invalid("source and destination overlap")) } else { Ok(()) }
            }
            Operation::CompareSwap { offset, execute, .. } => {
                within(offset, size, region, "outside the region")?;
                if !offset.is_multiple_of(8) {
                    return Err(Error::Invalid("a compare and swap beside a multiple of 8"));
                }
                let strange = execute.checked_shr(replicas as u32).unwrap_or(0) != 0;
                if strange { Err(Error::Invalid("a map that names a replica that does not exist")) } else { Ok(()) }
            }
        }
    }

    /// True if each replica executes it on its own memory: it needs a full round ([`crate::rounds`]).
    pub(crate) fn uses_own(&self) -> bool {
        matches!(self, Operation::Copy { .. } | Operation::CompareSwap { .. })
    }

    /// The number of bytes.
    pub fn size(&self) -> u64 {
        match *self {
            Operation::Write { size, .. } | Operation::Copy { size, .. } | Operation::Flush { size, .. } => size,
            Operation::CompareSwap { .. } => 8,
        }
    }

    /// What it reads at a replica, and what it writes there.
    fn touches(&self) -> [Range<u64>; 2] {
        match *self {
            // Replicas read what they pass on.
            Operation::Write { offset, size } => [range(offset, size), range(offset, size)],
            Operation::Copy { from, to, size } => [range(from, size), range(to, size)],
            Operation::CompareSwap { offset, .. } => [range(offset, 8), range(offset, 8)],
            Operation::Flush { offset, size } => [range(offset, size), 0..0],
        }
    }

    /// True if the outcome may depend on how far the other one has come on each replica. Two gWRITEs never conflict:
    /// each replica gets the later one last.
    pub(crate) fn conflicts(&self, other: &Operation) -> bool {
        if let (Operation::Write { .. }, Operation::Write { .. }) = (self, other) {
            return false;
        }
        let ([reads, writes], [their_reads, their_writes]) = (self.touches(), other.touches());
        meet(&writes, &their_writes) || meet(&writes, &their_reads) || meet(&reads, &their_writes)
    }

    /// The operation that takes a gCAS back where it succeeded, given what the replicas had; `None` if it succeeded
    /// nowhere, or is no gCAS.
    pub fn undo(&self, values: &[u64]) -> Option<Operation> {
        let Operation::CompareSwap { offset, old, new, execute } = *self else { return None };
        let succeeded = |i: usize| execute >> i & 1 != 0 && values.get(i) == Some(&old);
        let execute = (0..MOST_REPLICAS).filter(|i| succeeded(*i)).fold(0, |map, i| map | 1 << i);
        (execute != 0).then_some(Operation::CompareSwap { offset, old: new, new: old, execute })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_operations_are_refused() {
        let cas = |offset, execute| Operation::CompareSwap { offset, old: 0, new: 1, execute };
        let bad = [
            Operation::Write { offset: 0, size: 0 },
            Operation::Write { offset: 60, size: 5 },
            Operation::Write { offset: 30, size: 3 },
            Operation::Write { offset: u64::MAX, size: 2 },
            Operation::Copy { from: 0, to: 60, size: 5 },
            Operation::Copy { from: 60, to: 0, size: 5 },
            Operation::Copy { from: 0, to: 3, size: 4 },
            Operation::Flush { offset: 64, size: 1 },
            cas(4, 1),
            cas(64, 1),
            cas(0, 8),
        ];
        for op in bad {
            assert!(matches!(op.check(64, 32, 3), Err(Error::Invalid(_))), "{op:?}");
        }
        for op in [cas(56, 7), Operation::Copy { from: 0, to: 4, size: 4 }, Operation::Write { offset: 0, size: 32 }] {
            op.check(64, 32, 3).unwrap();
        }
        cas(0, u64::MAX).check(64, 32, 64).unwrap();
    }

    #[test]
    fn a_copy_waits_for_the_write_of_its_source() {
        let write = Operation::Write { offset: 0, size: 8 };
        let copy = Operation::Copy { from: 4, to: 32, size: 8 };
        assert!(copy.conflicts(&write) && write.conflicts(&copy) && !write.conflicts(&write));
        assert!(!copy.conflicts(&Operation::Write { offset: 64, size: 8 }));
    }

    #[test]
    fn undo_names_the_replicas_that_swapped() {
        let cas = Operation::CompareSwap { offset: 8, old: 5, new: 6, execute: 0b1011 };
        let undo = Operation::CompareSwap { offset: 8, old: 6, new: 5, execute: 0b1001 };
        assert_eq!(cas.undo(&[5, 7, 5, 5]), Some(undo));
        assert_eq!(cas.undo(&[1, 7, 5, 1]), None);
    }
}
