//! Memory of this process that its peers map too: what the device allocates (`ibv_alloc_dm(3)`), and registered memory
//! that was moved here. A WRITE, READ or atomic operation on it is plain stores and loads of the initiator.
//!
//! Each process has one sealed memfd. It is sparse, and large enough never to grow. Pieces of it are mapped where the
//! process wants them, and where its peers need them. A piece that is given back loses its memory, and its place is
//! used again.
//!
//! **Trust.** A process that has it mapped can write to all of it, as a process that may trace another can write to all
//! of its memory: it is given to those only ([`Peer::attach`] asks the kernel for the descriptor by the right to
//! trace). What a peer says about places in its arena is checked against the arena's size before anything is touched,
//! so it concerns that peer's own memory and no other.

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use verbs::Errno;
use wire::{AtomicOp, Fault, Span};

use crate::backing::{self, SEALS};
use crate::fds::{FdSet, TrackedFd};
use crate::local::{self, Cursor};

/// Bytes of an arena: virtual, until they are used. No multiple of a huge page's size, see [`backing::Memfd::open`].
pub const BYTES: u64 = (64 << 30) + 4096;

const PAGE: u64 = 4096;

/// This process's arena.
pub struct Arena {
    fd: TrackedFd,
    inode: u64,
    /// Places that are free, by offset; neighbours are one.
    free: Vec<(u64, u64)>,
}

impl Arena {
    /// An empty one.
    ///
    /// # Errors
    /// `EMFILE`, `EFBIG` (RLIMIT_FSIZE) or what else the kernel answers.
    pub fn create(fds: &Arc<FdSet>) -> Result<Self, Errno> {
        let fd = rustix::fs::memfd_create(c"softrnic-memory", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(backing::errno)?;
        backing::resize(&fd, BYTES)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(backing::errno)?;
        let inode = rustix::fs::fstat(&fd).map_err(backing::errno)?.st_ino;
        Ok(Arena { fd: TrackedFd::new(fd, fds), inode, free: vec![(0, BYTES)] })
    }

    /// The file. `None` if a program that closes descriptors which are not its own has closed this one, too: the number
    /// may be that of one of its files by now.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        let stat = rustix::fs::fstat(&self.fd).ok()?;
        (stat.st_ino == self.inode && u64::try_from(stat.st_size) == Ok(BYTES)).then(|| self.fd.as_fd())
    }

    /// The numbers of its descriptor and of its inode, by which peers find it.
    pub fn name(&self) -> (u64, u64) {
        (self.fd.as_fd().as_raw_fd() as u64, self.inode)
    }

    /// A place for `len` bytes, in whole pages.
    pub fn allocate(&mut self, len: u64) -> Option<u64> {
        let len = len.max(1).checked_next_multiple_of(PAGE)?;
        let index = self.free.iter().position(|&(_, size)| size >= len)?;
        let (at, size) = self.free[index];
        if size == len {
            self.free.remove(index);
        } else {
            self.free[index] = (at + len, size - len);
        }
        Some(at)
    }

    /// Makes sure that a place has its memory: no later call could fail for want of it.
    ///
    /// # Errors
    /// `ENOMEM` or what else the kernel answers.
    pub fn reserve(&self, at: u64, len: u64) -> Result<(), Errno> {
        let len = len.max(1).next_multiple_of(PAGE);
        let file = self.file().ok_or(Errno::EBADF)?;
        rustix::fs::fallocate(file, FallocateFlags::empty(), at, len).map_err(backing::errno)
    }

    /// Gives a place back, and its memory to the system. No process may be using it any more; if one might
    /// (`late_writer`), it is not given out again.
    pub fn release(&mut self, at: u64, len: u64, late_writer: bool) {
        let len = len.max(1).next_multiple_of(PAGE);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let emptied = self.file().is_some_and(|file| rustix::fs::fallocate(file, flags, at, len).is_ok());
        if !emptied || late_writer {
            return; // the next user must not see the old content: the place is lost
        }
        let index = self.free.partition_point(|&(start, _)| start < at);
        self.free.insert(index, (at, len));
        if let Some(&(next, size)) = self.free.get(index + 1)
            && at + len == next
        {
            self.free[index].1 += size;
            self.free.remove(index + 1);
        }
        if index > 0 && self.free[index - 1].0 + self.free[index - 1].1 == at {
            self.free[index - 1].1 += self.free[index].1;
            self.free.remove(index);
        }
    }

    /// Maps a place, for the program: a forked child sees it too, as it would see a device's memory.
    ///
    /// # Errors
    /// The kernel's.
    pub fn map(&self, at: u64, len: u64) -> Result<Mapped, Errno> {
        let len = usize::try_from(len.max(1).next_multiple_of(PAGE)).map_err(|_| Errno::ENOMEM)?;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let file = self.file().ok_or(Errno::EBADF)?;
        // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
        let start = unsafe { rustix::mm::mmap(ptr::null_mut(), len, rights, MapFlags::SHARED, file, at) }
            .map_err(backing::errno)?;
        Ok(Mapped { start: NonNull::new(start.cast()).ok_or(Errno::ENOMEM)?, len })
    }
}

/// A piece of the arena, mapped; unmapped when dropped.
pub struct Mapped {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is owned by no thread.
unsafe impl Send for Mapped {}
// SAFETY: as for Send; there is no interior state, and what is in it is reached by raw copies and atomics only.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Address of the first byte.
    pub fn addr(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    /// Bytes, whole pages.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// False.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `map`. Its owner drops it, and thereby says that no code uses it any
        // more.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Pieces of a peer's arena that are mapped at one time.
const PIECES: usize = 64;

/// A peer's arena. A piece of it is mapped when it is needed, and nothing else is mapped. So a process that locks all
/// its memory (mlockall(2)) locks no more than there is.
pub struct Peer {
    number: i32,
    inode: u64,
    pieces: Vec<Piece>,
}

struct Piece {
    /// Where it begins in the arena, and its bytes: whole pages.
    at: u64,
    len: u64,
    base: NonNull<u8>,
}

// SAFETY: a mapping is owned by no thread.
unsafe impl Send for Peer {}
// SAFETY: as for Send; what is in it is reached by raw copies and atomics only.
unsafe impl Sync for Peer {}

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `Peer::map`. No code can name it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len as usize) };
    }
}

impl Peer {
    /// The arena that has this descriptor in the peer, and this inode. Nothing is asked for yet.
    ///
    /// # Errors
    /// `EPROTO` if there can be no such descriptor.
    pub fn new(number: u64, inode: u64) -> Result<Self, Errno> {
        let number = i32::try_from(number).map_err(|_| Errno::EPROTO)?;
        Ok(Peer { number, inode, pieces: Vec::new() })
    }

    /// Makes `len` bytes at `at` reachable. The descriptor is that of the process behind `pidfd`; the kernel permits it
    /// to processes that may trace that one (pidfd_getfd(2)).
    ///
    /// # Errors
    /// `EPROTO` if they are not in the arena, or it is none: the inode says so, and the seals. Else the kernel's.
    #[inline]
    pub fn attach(&mut self, pidfd: impl AsFd, at: u64, len: u64) -> Result<(), Errno> {
        if self.pieces.iter().any(|piece| piece.holds(at, len)) { Ok(()) } else { self.map(pidfd, at, len) }
    }

    #[cold]
    fn map(&mut self, pidfd: impl AsFd, at: u64, len: u64) -> Result<(), Errno> {
        let fd = pidfd_getfd(pidfd, self.number, PidfdGetfdFlags::empty()).map_err(backing::errno)?;
        self.map_file(&fd, at, len)
    }

    fn map_file(&mut self, fd: &OwnedFd, at: u64, len: u64) -> Result<(), Errno> {
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| Errno::EPROTO)?;
        let refused = SealFlags::WRITE | SealFlags::FUTURE_WRITE;
        let stat = rustix::fs::fstat(fd).map_err(backing::errno)?; // after the seals, as in `Memfd::open`
        let right = u64::try_from(stat.st_size) == Ok(BYTES) && stat.st_ino == self.inode;
        if !right || !seals.contains(SEALS) || seals.intersects(refused) {
            return Err(Errno::EPROTO);
        }
        let end = at.checked_add(len).filter(|end| len > 0 && *end <= BYTES).ok_or(Errno::EPROTO)?;
        let at = at & !(PAGE - 1);
        let len = end.next_multiple_of(PAGE) - at;
        let size = usize::try_from(len).map_err(|_| Errno::ENOMEM)?;
        if self.pieces.len() >= PIECES {
            self.pieces.clear(); // those that are needed come again
        }
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
        let base = unsafe { rustix::mm::mmap(ptr::null_mut(), size, rights, MapFlags::SHARED, fd, at) }
            .map_err(backing::errno)?;
        let piece = Piece { at, len, base: NonNull::new(base.cast()).ok_or(Errno::ENOMEM)? };
        for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
            // SAFETY: the range is the mapping just made; neither changes anything in this process.
            unsafe { rustix::mm::madvise(base, size, advice) }.map_err(backing::errno)?;
        }
        self.pieces.push(piece);
        Ok(())
    }

    /// The place of `len` bytes at `at`, if it has been made reachable.
    fn place(&self, at: u64, len: u32) -> Option<*mut u8> {
        let piece = self.pieces.iter().find(|piece| piece.holds(at, u64::from(len)))?;
        // SAFETY: within the mapping, which cannot lose any of its bytes (sealed).
        Some(unsafe { piece.base.as_ptr().add((at - piece.at) as usize) })
    }

    /// Writes local memory to `at`, `len` bytes. The last word is written last: programs wait for it.
    ///
    /// # Errors
    /// [`Fault`] if it is not inside, or local memory is not there.
    pub fn write(&self, at: u64, len: u32, from: &[Span]) -> Result<(), Fault> {
        let to = self.place(at, len).ok_or(Fault)?;
        let mut from = Cursor::new(from);
        let mut done = 0u32;
        while done < len {
            let piece = from.piece().ok_or(Fault)?;
            let now = piece.len.min(len - done);
            // SAFETY: within the `len` bytes at `to`, see `place`.
            let to = unsafe { to.add(done as usize) };
            let end = (to as usize + now as usize) & !7;
            // Where the last whole word begins, counted from `to`; what follows are fewer than 8 bytes.
            let last = (end.wrapping_sub(to as usize)).checked_sub(8).filter(|last| *last < now as usize);
            match last {
                Some(last) => {
                    // A copy of many bytes may write the last of them first, so this copy is made in three parts.
                    // SAFETY: `to` is valid for writes of `now` bytes. The peer may write there too, and no reference
                    // to these bytes exists.
                    unsafe { local::load_raw(piece.addr, piece.guarded, to, last)? };
                    let mut word = [0u8; 8];
                    local::load(piece.addr + last as u64, piece.guarded, &mut word)?;
                    // SAFETY: the 8 bytes at `last` are within those at `to`, and aligned, for `end` is.
                    let at = unsafe { AtomicU64::from_ptr(to.add(last).cast()) };
                    at.store(u64::from_ne_bytes(word), Ordering::Release);
                    fence(Ordering::Release);
                    let rest = now as usize - last - 8;
                    // SAFETY: as above: `last + 8 + rest` is `now`.
                    unsafe { local::load_raw(piece.addr + last as u64 + 8, piece.guarded, to.add(last + 8), rest)? };
                }
                // SAFETY: as above.
                None => unsafe { local::load_raw(piece.addr, piece.guarded, to, now as usize)? },
            }
            from.advance(now);
            done += now;
        }
        Ok(())
    }

    /// Reads `len` bytes at `at` to local memory.
    ///
    /// # Errors
    /// [`Fault`] if it is not inside, or local memory is not there.
    pub fn read(&self, at: u64, len: u32, to: &[Span]) -> Result<(), Fault> {
        self.read_on(at, len, &mut Cursor::new(to))
    }

    /// Reads several places, one behind the other.
    ///
    /// # Errors
    /// [`Fault`] if one is not known or not inside, or local memory is not there. Some may have been read then.
    pub fn gather(&self, from: impl Iterator<Item = Option<(u64, u32)>>, to: &[Span]) -> Result<(), Fault> {
        let mut to = Cursor::new(to);
        for place in from {
            let (at, len) = place.ok_or(Fault)?;
            self.read_on(at, len, &mut to)?;
        }
        Ok(())
    }

    fn read_on(&self, at: u64, len: u32, to: &mut Cursor<'_>) -> Result<(), Fault> {
        let from = self.place(at, len).ok_or(Fault)?;
        let mut done = 0u32;
        while done < len {
            let piece = to.piece().ok_or(Fault)?;
            let now = piece.len.min(len - done);
            // SAFETY: within the `len` bytes at `from`, see `place`. The peer may write them at the same time: then
            // they are any bytes.
            unsafe { local::store_raw(piece.addr, piece.guarded, from.add(done as usize), now as usize)? };
            to.advance(now);
            done += now;
        }
        Ok(())
    }

    /// An atomic operation on the 8 bytes at `at`; gives the value before.
    ///
    /// # Errors
    /// [`Fault`] if they are not inside, or `at` is not a multiple of 8.
    pub fn atomic(&self, at: u64, op: AtomicOp) -> Result<u64, Fault> {
        let place = self.place(at, 8).ok_or(Fault)?;
        local::atomic(place.expose_provenance() as u64, false, op)
    }
}

impl Piece {
    #[inline]
    fn holds(&self, at: u64, len: u64) -> bool {
        at.checked_sub(self.at).and_then(|offset| offset.checked_add(len)).is_some_and(|end| end <= self.len)
    }
}

#[cfg(all(test, not(loom), not(miri)))]
#[path = "arena_tests.rs"]
mod tests;
