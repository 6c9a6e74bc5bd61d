//! Copies: by the processor within a process, and by the kernel between two. The far process does nothing meanwhile.

use std::io;
use std::time::{Duration, Instant};

use crate::{Buffer, Place, Remote};

/// The bytes that are copied, over and over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Walk {
    /// The number of bytes of one copy.
    pub size: usize,
    /// The number of bytes that the copies go through, each beginning where the last one ended; then they begin again.
    /// It is [`Walk::size`] for one buffer that is used again and again.
    pub span: usize,
}

impl Walk {
    /// The offsets at which the copies begin, from the `first`th on, one after the other, for ever.
    fn offsets(self, first: u64) -> impl Iterator<Item = usize> {
        let places = (self.span / self.size.max(1)).max(1);
        let begin = (first % places as u64) as usize;
        (begin..places).chain((0..places).cycle()).map(move |place| place * self.size)
    }

    /// The number of bytes that the memory must have.
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

/// Time for `count` copies from this process's memory to the other's by `process_vm_writev(2)`, the `first`th being the
/// first.
///
/// # Errors
/// The system's errors: `PermissionDenied` where a process may not copy from or to another one.
pub fn write(from: Place, to: &Remote, walk: Walk, first: u64, count: u32) -> io::Result<Duration> {
    let start = Instant::now();
    for offset in walk.offsets(first).take(count as usize) {
        to.write(from, offset, walk.size)?;
    }
    Ok(start.elapsed())
}

/// Time for `count` copies from the other process's memory to this one's, by `process_vm_readv(2)`; see [`write()`].
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
