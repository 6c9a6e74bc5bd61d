//! The memory of an export table at raw addresses: our own, and a peer's.

use core::sync::atomic::AtomicU64;
use std::os::fd::{AsFd, OwnedFd};

use verbs::Errno;

use crate::backing::{Backing, Foreign, Memfd};
use crate::export_table::{ROW, TableMemory};

const ROWS: usize = 32 * 1024;
/// 2 MiB of rows, and a page: no multiple of a huge page's size, see [`Memfd::open`]. Pages never written cost nothing.
const BYTES: usize = ROWS * ROW * 8 + 4096;

/// The export table of this process.
pub struct OwnTable(Memfd);

impl OwnTable {
    /// An empty export table; the descriptor is for peers.
    ///
    /// # Errors
    /// As [`Memfd::create_export_table`].
    pub fn create() -> Result<(Self, OwnedFd), Errno> {
        let (memory, fd) = Memfd::create_export_table(BYTES)?;
        Ok((OwnTable(memory), fd))
    }
}

impl TableMemory for OwnTable {
    const ROWS: usize = ROWS;

    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        let index = index % (ROWS * ROW);
        debug_assert!(index * 8 + 8 <= self.0.len());
        // SAFETY: within the mapping and aligned, which live as long as `self`; peers can only read.
        unsafe { AtomicU64::from_ptr(self.0.base().as_ptr().cast::<u64>().add(index)) }
    }
}

/// A peer's export table, mapped for reading.
pub struct PeerTable(Foreign);

impl PeerTable {
    /// Maps it.
    ///
    /// # Errors
    /// As [`Foreign::open`].
    pub fn open(fd: impl AsFd) -> Result<Self, Errno> {
        Foreign::open(fd, BYTES).map(PeerTable)
    }
}

impl TableMemory for PeerTable {
    const ROWS: usize = ROWS;

    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        let index = index % (ROWS * ROW);
        debug_assert!(index * 8 + 8 <= self.0.len());
        // SAFETY: within the mapping and aligned, which live as long as `self`. It is mapped without the right to
        // write: `Reader`, the only one that gets this type, only loads, and plain atomic loads of 64 bits do not
        // write.
        unsafe { AtomicU64::from_ptr(self.0.base().as_ptr().cast::<u64>().add(index)) }
    }
}
