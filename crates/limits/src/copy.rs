//! Copies: by the processor within a process, and by the kernel between two. Nobody answers; far's memory lies still.

use std::io;
use std::time::{Duration, Instant};

use crate::{Buffer, Remote};

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
    /// Where the copies begin, one after the other, for ever.
    fn offsets(self) -> impl Iterator<Item = usize> {
        let places = (self.span / self.size.max(1)).max(1);
        (0..places).cycle().map(move |place| place * self.size)
    }

    /// Bytes that the buffers must have.
    pub fn bytes(self) -> usize {
        self.span.max(self.size)
    }
}

/// Who copies between two processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// `process_vm_writev(2)`: from here to there.
    Write,
    /// `process_vm_readv(2)`: from there to here.
    Read,
}

/// Time for `count` copies within this process.
pub fn memcpy(from: &Buffer, to: &Buffer, walk: Walk, count: u32) -> Duration {
    let start = Instant::now();
    for offset in walk.offsets().take(count as usize) {
        from.copy_to(to, offset, walk.size);
    }
    start.elapsed()
}

/// Time for `count` copies between `buffer` and the other process's.
///
/// # Errors
/// The system's: `PermissionDenied` where a process may not copy from or to another one.
pub fn straight(
    buffer: &Buffer,
    remote: &Remote,
    direction: Direction,
    walk: Walk,
    count: u32,
) -> io::Result<Duration> {
    let start = Instant::now();
    for offset in walk.offsets().take(count as usize) {
        match direction {
            Direction::Write => remote.write(buffer, offset, walk.size)?,
            Direction::Read => remote.read(buffer, offset, walk.size)?,
        }
    }
    Ok(start.elapsed())
}
