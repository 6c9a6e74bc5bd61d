//! A capture as a stream, for programs that read it while it grows.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FlockOperation, fcntl_lock};

use super::file::{PATIENCE, head, lock};
use super::pcapng::SECTION_LENGTH_AT;

/// A reader of a capture that programs are writing to.
#[derive(Debug)]
pub struct Stream {
    file: File,
    /// The place up to which it has been read.
    at: u64,
}

impl Stream {
    /// Open the capture in this file.
    ///
    /// # Errors
    /// The reason why it cannot be opened for reading and writing.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Stream { file: OpenOptions::new().read(true).write(true).open(path)?, at: 0 })
    }

    /// Copy the blocks that have come since the last call.
    ///
    /// # Errors
    /// Those of reading and writing; [`io::ErrorKind::InvalidData`] if the file is no capture any more.
    pub fn copy(&mut self, to: &mut impl Write) -> io::Result<()> {
        let (start, end) = head(&self.file)?;
        if self.at == 0 {
            let mut header = vec![0u8; start as usize];
            self.file.read_exact_at(&mut header, 0)?;
            // The length of the section of a stream is not known in advance.
            header[SECTION_LENGTH_AT as usize..][..8].fill(0xff);
            to.write_all(&header)?;
            self.at = start;
        }
        let mut bytes = vec![0u8; 256 << 10];
        while self.at < end {
            let n = (end - self.at).min(bytes.len() as u64) as usize;
            self.file.read_exact_at(&mut bytes[..n], self.at)?;
            to.write_all(&bytes[..n])?;
            self.at += n as u64;
        }
        to.flush()
    }

    /// True if no program writes to the file at the moment.
    pub fn is_idle(&self) -> bool {
        // A process that joins holds this lock, and must not find the other one taken by this process.
        if lock(&self.file, PATIENCE).is_err() {
            return false;
        }
        let idle = fcntl_lock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok();
        let _ = fcntl_lock(&self.file, FlockOperation::Unlock);
        let _ = self.file.unlock();
        idle
    }

    /// End the capture: programs that write to it find that out, and stop.
    ///
    /// # Errors
    /// Those of truncation.
    pub fn close(self) -> io::Result<()> {
        self.file.set_len(0)
    }
}
