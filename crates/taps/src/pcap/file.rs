//! The capture file: one section that any number of processes add to while they run, and that is readable at every
//! moment.
//!
//! A process that adds blocks holds the file's lock (flock(2)), writes them behind the end of the section, and then
//! moves the end, which the section header has as the section's length: 8 bytes, written at once. So a process that is
//! killed leaves at most bytes behind the end, and the next one cuts them off. The kernel releases the lock of a
//! process that has died. If a process is stopped while it has the lock, the others do not wait for long: packets go
//! unrecorded then, and the file says so.
//!
//! A process that adds to the file holds a read lock on it as well (fcntl(2)), which shows that the file is in use:
//! `softrnic run` replaces a file that no process uses, and joins the others at one that is in use.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::{Resource, getrlimit};

use super::pcapng;

/// How long to wait for the lock while other processes have it; an addition takes microseconds.
pub(super) const PATIENCE: Duration = Duration::from_millis(200);

/// The number of bytes of a file that are read together in search of interfaces.
const LOOK: usize = 64 << 10;

/// A capture that this process adds to.
#[derive(Debug)]
pub(super) struct Capture {
    file: File,
    /// The number of this process's interface in the section.
    pub interface: u32,
    /// The number of packets that were not added because the lock was not to be had.
    missed: u64,
    /// The limit of RLIMIT_FSIZE, in bytes: going beyond it would kill the program.
    limit: u64,
    /// The place up to which interfaces have been searched.
    looked: u64,
    /// The devices of the interfaces that were found.
    devices: Vec<u64>,
}

/// The result of [`prepare`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prepared {
    /// The file is new, or its content was thrown away.
    Empty,
    /// Processes are writing to it; another one may join them.
    InUse,
    /// The file has no positions: a pipe, a terminal.
    Stream,
}

/// Make a capture file, in place of the present one unless programs are writing to that.
///
/// # Errors
/// The reason why it cannot be written; [`io::ErrorKind::InvalidData`] if it is in use as something else.
pub fn prepare(path: &Path) -> io::Result<Prepared> {
    // Opening a pipe would wait for its reader.
    let kind = path.metadata().map(|meta| meta.file_type());
    if kind.is_ok_and(|kind| kind.is_fifo() || kind.is_char_device() || kind.is_socket()) {
        return Ok(Prepared::Stream);
    }
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    lock(&file, PATIENCE)?;
    if fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        head(&file)?;
        return Ok(Prepared::InUse);
    }
    file.set_len(0)?;
    begin(&file)?;
    Ok(Prepared::Empty)
}

/// Write the section header of an empty file.
fn begin(file: &File) -> io::Result<()> {
    let mut header = Vec::new();
    pcapng::section(&mut header);
    file.write_all_at(&header, 0)
}

/// Take the lock; give up after a while.
pub(super) fn lock(file: &File, patience: Duration) -> io::Result<()> {
    let mut until = None;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            Err(_) => {}
        }
        if Instant::now() >= *until.get_or_insert_with(|| Instant::now() + patience) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::yield_now();
    }
}

/// Where the blocks of the section begin and end; checks that the file is such a capture.
pub(super) fn head(file: &File) -> io::Result<(u64, u64)> {
    let mut bytes = [0u8; 24];
    let strange = || io::Error::new(io::ErrorKind::InvalidData, "it is not a capture of softrnic");
    file.read_exact_at(&mut bytes, 0).map_err(|_| strange())?;
    let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let length = u64::from(word(16)) | u64::from(word(20)) << 32;
    let start = u64::from(word(4));
    let end = start.checked_add(length).ok_or_else(strange)?;
    if word(0) != pcapng::SECTION || word(8) != pcapng::MAGIC || !(28..=4096).contains(&start) {
        return Err(strange());
    }
    Ok((start, end))
}

impl Capture {
    /// Join the capture in this file; begin it if the file is not there or empty.
    ///
    /// # Errors
    /// The reason why it cannot be written; [`io::ErrorKind::InvalidData`] if there is something else in it.
    pub fn join(path: &Path, name: &str, description: &str, device: u64, snaplen: u32) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        let mut capture = Capture { file, interface: 0, missed: 0, limit, looked: 0, devices: Vec::new() };
        lock(&capture.file, PATIENCE)?;
        let joined = capture.join_locked(name, description, device, snaplen);
        capture.file.unlock()?;
        joined.map(|()| capture)
    }

    fn join_locked(&mut self, name: &str, description: &str, device: u64, snaplen: u32) -> io::Result<()> {
        if self.file.metadata()?.len() == 0 {
            begin(&self.file)?;
        }
        // On a file system without such locks no process can tell that the file is in use; it is written all the same.
        let _ = fcntl_lock(&self.file, FlockOperation::NonBlockingLockShared);
        let (_, end) = head(&self.file)?;
        self.look(end)?;
        self.interface = self.devices.len() as u32;
        let mut block = Vec::new();
        pcapng::interface(&mut block, name, description, device, snaplen);
        self.add_locked(&block)
    }

    /// The number of packets that could not be added since the last call.
    pub fn take_missed(&mut self) -> u64 {
        std::mem::take(&mut self.missed)
    }

    /// Add `packets` whole packets.
    ///
    /// # Errors
    /// Errors after which it makes no sense to try again: no space, the file is gone. The file is whole.
    pub fn add(&mut self, blocks: &[u8], packets: u64) -> io::Result<()> {
        // After a lock that was not to be had the next attempt does not wait.
        let patience = if self.missed > 0 { Duration::ZERO } else { PATIENCE };
        match lock(&self.file, patience) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                self.missed += packets;
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        let added = self.add_locked(blocks);
        self.file.unlock()?;
        added
    }

    fn add_locked(&mut self, blocks: &[u8]) -> io::Result<()> {
        // The program may have closed this descriptor, which it does not know, and the number may have become another
        // file's.
        let (start, end) = head(&self.file)?;
        let size = self.file.metadata()?.len();
        if size > end {
            self.file.set_len(end)?; // a process died while it was writing
        } else if size < end {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file has been shortened"));
        }
        let after = end + blocks.len() as u64;
        if after > self.limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if let Err(error) = self.file.write_all_at(blocks, end) {
            let _ = self.file.set_len(end);
            return Err(error);
        }
        self.file.write_all_at(&(after - start).to_ne_bytes(), pcapng::SECTION_LENGTH_AT)
    }

    /// True if the process with this device adds to this file, too.
    pub fn has(&mut self, device: u64) -> bool {
        if !self.devices.contains(&device) {
            // The lock is not needed: the blocks before the end stay as they are.
            let _ = head(&self.file).and_then(|(_, end)| self.look(end));
        }
        self.devices.contains(&device)
    }

    /// Search for interfaces up to here.
    fn look(&mut self, end: u64) -> io::Result<()> {
        let from = self.looked.max(head(&self.file)?.0);
        let devices = &mut self.devices;
        self.looked = scan(&self.file, from, end, |kind, block| {
            let eui = pcapng::EUI_AT as usize;
            if let (pcapng::INTERFACE, Some(device)) = (kind, block.get(eui..).and_then(|at| at.first_chunk())) {
                devices.push(u64::from_be_bytes(*device));
            }
        })?;
        Ok(())
    }

    /// The place behind the last block.
    pub fn end(&self) -> u64 {
        head(&self.file).map_or(0, |(_, end)| end)
    }

    /// Show the beginnings of the packets from this place on (0: all), and give the place behind the last one.
    pub fn packets(&self, from: u64, mut each: impl FnMut(&[u8])) -> u64 {
        // The lock is not needed: the blocks before the end stay as they are.
        let found = head(&self.file).and_then(|(start, end)| {
            scan(&self.file, from.max(start), end, |kind, block| {
                if let (pcapng::PACKET, Some(frame)) = (kind, block.get(pcapng::FRAME_AT..)) {
                    each(frame);
                }
            })
        });
        found.unwrap_or(from)
    }
}

/// Bytes of a block that [`scan`] shows at least, if it has so many: the headers of a packet.
const SHOWN: usize = 160;

/// Show the types and beginnings of the blocks between two places, and give the place behind the last one.
fn scan(file: &File, from: u64, end: u64, mut each: impl FnMut(u32, &[u8])) -> io::Result<u64> {
    let mut bytes = vec![0u8; LOOK];
    let mut at = from;
    while at < end {
        let n = file.read_at(&mut bytes, at)?;
        let mut read = bytes.get(..n).unwrap_or_default();
        let before = at;
        while at < end
            && let Some(&[a, b, c, d, e, f, g, h]) = read.first_chunk()
        {
            let (kind, len) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]) as usize);
            if len < 12 {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let block = read.get(..len.min(read.len())).unwrap_or_default();
            if block.len() < len.min(SHOWN) {
                break; // it is read again, from its beginning
            }
            each(kind, block);
            at += len as u64;
            read = read.get(len..).unwrap_or_default();
        }
        if at == before {
            break;
        }
    }
    Ok(at)
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
