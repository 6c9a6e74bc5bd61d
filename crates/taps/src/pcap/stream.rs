//! A capture as a stream, for those who look on while it grows.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FlockOperation, fcntl_lock};

use super::file::{PATIENCE, head, lock};
use super::pcapng::SECTION_LENGTH_AT;

/// Reads a capture that programs are writing to.
#[derive(Debug)]
pub struct Stream {
    file: File,
    /// As far as it has been read.
    at: u64,
}

impl Stream {
    /// Reads the capture in this file.
    ///
    /// # Errors
    /// Why it cannot be opened for reading and writing.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Stream { file: OpenOptions::new().read(true).write(true).open(path)?, at: 0 })
    }

    /// Copies what has come since the last time.
    ///
    /// # Errors
    /// Those of reading and writing; [`io::ErrorKind::InvalidData`] if the file is no capture any more.
    pub fn copy(&mut self, to: &mut impl Write) -> io::Result<()> {
        let (start, end) = head(&self.file)?;
        if self.at == 0 {
            let mut header = vec![0u8; start as usize];
            self.file.read_exact_at(&mut header, 0)?;
            // Nobody can say how long the section of a stream will be.
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

    /// True if no program writes to it at the moment.
    pub fn is_idle(&self) -> bool {
        // Who joins holds this lock, and must not find the other one taken by us.
        if lock(&self.file, PATIENCE).is_err() {
            return false;
        }
        let idle = fcntl_lock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok();
        let _ = fcntl_lock(&self.file, FlockOperation::Unlock);
        let _ = self.file.unlock();
        idle
    }

    /// Nobody looks on any more: programs that write to it find that out, and stop.
    ///
    /// # Errors
    /// Those of truncation.
    pub fn close(self) -> io::Result<()> {
        self.file.set_len(0)
    }
}
