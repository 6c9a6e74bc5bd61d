//! A table of regions and queue pairs that one process writes and others read. A process shows it to its peers of the
//! same user, so that they can execute RDMA requests by themselves.
//!
//! ```text
//!  row (64 bytes)   version u64      odd while the row is being changed
//!                   tag     u64      what the row is about; 0: nothing
//!                   values  6 x u64
//! ```
//!
//! Rows are found by hashing the tag; a row lies within [`TableMemory::PROBES`] places of its tag's. A row that finds
//! no place is not shown, and a peer that finds no row asks the process itself: the export table only makes things
//! faster.
//!
//! **Taking back.** A process that acts on rows marks that time, from before the look at them until after the copy, as
//! every single copy is marked ([`crate::copying`]). The process that takes a row back empties it first, and then waits
//! for what is marked.
//!
//! **Trust.** A reader copies a row and uses the copy; what it says concerns the memory of the process that wrote it
//! and no other memory. The writer never reads what others could have written: peers get the export table without the
//! right to write.

use crate::sync::{AtomicU64, Ordering, fence};

/// Values of a row.
pub const VALUES: usize = 6;
/// Words of a row.
pub const ROW: usize = 2 + VALUES;

/// The memory under an export table: `ROWS * ROW` words, all zero at first.
pub trait TableMemory {
    /// Number of rows; a power of two.
    const ROWS: usize;
    /// Places where a tag's row may be; at most `ROWS`.
    const PROBES: usize = 8;
    /// A word, `index` below `ROWS * ROW`.
    fn word(&self, index: usize) -> &AtomicU64;
}

fn places<M: TableMemory>(tag: u64) -> impl Iterator<Item = usize> {
    let first = (tag.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize;
    (0..M::PROBES).map(move |i| (first + i) % M::ROWS * ROW)
}

/// The side that shows.
#[derive(Debug)]
pub struct Writer<M>(M);

impl<M: TableMemory> Writer<M> {
    /// The only writer of this memory.
    pub fn new(memory: M) -> Self {
        Writer(memory)
    }

    /// Shows a row, in place of what was shown under the tag before. False if there is no place for it.
    pub fn publish(&mut self, tag: u64, values: &[u64; VALUES]) -> bool {
        let holds = |row: usize, tag: u64| self.0.word(row + 1).load(Ordering::Relaxed) == tag;
        let mine = places::<M>(tag).find(|&row| holds(row, tag));
        let Some(row) = mine.or_else(|| places::<M>(tag).find(|&row| holds(row, 0))) else { return false };
        self.write(row, tag, values);
        true
    }

    /// Takes the tag's row back. True if there was one: then peers may be acting on it
    /// ([`crate::copying::under_way`]).
    pub fn retract(&mut self, tag: u64) -> bool {
        let found = places::<M>(tag).find(|&row| self.0.word(row + 1).load(Ordering::Relaxed) == tag);
        if let Some(row) = found {
            self.write(row, 0, &[0; VALUES]);
        }
        found.is_some()
    }

    fn write(&mut self, row: usize, tag: u64, values: &[u64; VALUES]) {
        let version = self.0.word(row);
        let before = version.load(Ordering::Relaxed);
        version.store(before.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release); // a reader that sees a new field sees the odd version
        self.0.word(row + 1).store(tag, Ordering::Relaxed);
        for (i, value) in values.iter().enumerate() {
            self.0.word(row + 2 + i).store(*value, Ordering::Relaxed);
        }
        version.store(before.wrapping_add(2), Ordering::Release);
    }
}

/// The side that looks.
#[derive(Debug)]
pub struct Reader<M>(M);

impl<M: TableMemory> Reader<M> {
    /// A reader of this memory.
    pub fn new(memory: M) -> Self {
        Reader(memory)
    }

    /// A copy of the tag's row; `None` if none is shown, or it is being changed.
    #[inline]
    pub fn find(&self, tag: u64) -> Option<[u64; VALUES]> {
        self.find_seen(tag).map(|(_, values)| values)
    }

    /// As [`Reader::find`], with what [`Reader::stands`] wants to know.
    #[inline]
    pub fn find_seen(&self, tag: u64) -> Option<(Seen, [u64; VALUES])> {
        places::<M>(tag).find_map(|row| {
            let version = self.0.word(row).load(Ordering::Acquire);
            if version % 2 != 0 || self.0.word(row + 1).load(Ordering::Relaxed) != tag {
                return None;
            }
            let values = core::array::from_fn(|i| self.0.word(row + 2 + i).load(Ordering::Relaxed));
            fence(Ordering::Acquire); // the second look at the version comes after the fields
            (self.0.word(row).load(Ordering::Relaxed) == version).then_some((Seen { row, version }, values))
        })
    }

    /// True while the row is shown as it was when it was found.
    #[inline]
    pub fn stands(&self, seen: Seen) -> bool {
        self.0.word(seen.row).load(Ordering::Acquire) == seen.version
    }
}

/// A row that was found, and its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    row: usize,
    version: u64,
}

#[cfg(all(test, not(loom)))]
#[path = "export_table_tests.rs"]
mod tests;
