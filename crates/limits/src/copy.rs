//! Copies: by the processor within a process, and by the kernel between two. Nobody answers; far's memory lies still.

use std::io;
use std::time::{Duration, Instant};

use crate::{Buffer, Place, Remote};

/// Which bytes are copied, over and over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Walk {
    /// Bytes of one copy.
    pub size: usize,
    /// The copies go through this many bytes, each beginning where the last one ended; then from the start again.
    /// [`Walk::size`] for one buffer that is used again and again.
    pub span: usize,
}

impl Walk {
    /// Where the copies begin, from the `first`th on, one after the other, for ever.
    fn offsets(self, first: u64) -> impl Iterator<Item = usize> {
        let places = (self.span / self.size.max(1)).max(1);
        let begin = (first % places as u64) as usize;
        (begin..places).chain((0..places).cycle()).map(move |place| place * self.size)
    }

    /// Bytes that the memory must have.
    pub fn bytes(self) -> usize {
        self.span.max(self.size)
    }
}

/// Time for `count` copies within this process, the `first`th being the first.
pub fn memcpy(from: &Buffer, to: &Buffer, walk: Walk, first: u64, count: u32) -> Duration {
    let start = Instant::now();
    for offset in walk.offsets(first).take(count as usize) {
        from.copy_to(to, offset, walk.size);
    }
    start.elapsed()
}

/// Time for `count` copies from our memory to the other process's by `process_vm_writev(2)`, the `first`th being the
/// first.
///
/// # Errors
/// The system's: `PermissionDenied` where a process may not copy from or to another one.
pub fn write(from: Place, to: &Remote, walk: Walk, first: u64, count: u32) -> io::Result<Duration> {
    let start = Instant::now();
    for offset in walk.offsets(first).take(count as usize) {
        to.write(from, offset, walk.size)?;
    }
    Ok(start.elapsed())
}

/// As [`write()`], from the other process's memory to ours, by `process_vm_readv(2)`.
///
/// # Errors
/// As [`write()`].
pub fn read(to: &Buffer, from: &Remote, walk: Walk, first: u64, count: u32) -> io::Result<Duration> {
    let start = Instant::now();
    for offset in walk.offsets(first).take(count as usize) {
        from.read(to, offset, walk.size)?;
    }
    Ok(start.elapsed())
}
