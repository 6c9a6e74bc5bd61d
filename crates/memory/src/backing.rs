//! The memory in which a window's bytes lie: a memfd shared between processes of one host, or the heap (a process's
//! link to itself, tests, miri). Later it may be a PCI BAR.

use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use verbs::Errno;

/// Memory that two parties can reach.
///
/// # Safety
/// `base()` is aligned to 64 bytes and valid for reads and writes of `len()` bytes for as long as the value lives,
/// whatever the other party does, and both never change. Nothing makes a reference to it other than to atomics.
pub unsafe trait Backing: Send + Sync {
    /// The first byte.
    fn base(&self) -> NonNull<u8>;
    /// Bytes.
    fn len(&self) -> usize;
    /// True if there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Zeroed memory of this process.
pub struct Heap {
    base: NonNull<u8>,
    layout: Layout,
}

impl Heap {
    /// Allocates `len` bytes, at least 1.
    pub fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), 4096).expect("windows are far smaller than isize::MAX");
        // SAFETY: the layout's size is not 0.
        let raw = unsafe { alloc_zeroed(layout) };
        Heap { base: NonNull::new(raw).unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed only here.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

// SAFETY: an allocation is owned by no thread, and all access goes through atomics or raw copies ordered by them.
unsafe impl Send for Heap {}
// SAFETY: as for Send; `Heap` itself has no interior state.
unsafe impl Sync for Heap {}

// SAFETY: the allocation has this size and an alignment of 4096, and lives until drop.
unsafe impl Backing for Heap {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn len(&self) -> usize {
        self.layout.size()
    }
}

/// A sealed memfd, mapped.
pub struct Memfd {
    base: NonNull<u8>,
    len: usize,
}

/// The seals that a window must have: a peer that could truncate the file could make our accesses a SIGBUS.
pub(crate) const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl Memfd {
    /// Makes a window of `len` bytes, zeroed, and maps it; the descriptor is for the peer. A forked child does not
    /// inherit the mapping.
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM`, `EFBIG` (RLIMIT_FSIZE) or what else the kernel answers.
    pub fn create(len: usize) -> Result<(Self, OwnedFd), Errno> {
        Self::create_named(c"softrnic-window", len)
    }

    /// [`Memfd::create`] under another name, which `/proc/PID/fd` shows.
    ///
    /// # Errors
    /// As there.
    pub fn create_named(name: &core::ffi::CStr, len: usize) -> Result<(Self, OwnedFd), Errno> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(errno)?;
        resize(&fd, len as u64)?;
        filled(&fd, len as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(errno)?;
        let map = Self::map(&fd, len)?;
        Ok((map, fd))
    }

    /// Maps a window that a peer made, after checking that it is exactly `len` bytes long and can never be otherwise.
    ///
    /// # Errors
    /// `EPROTO` if it is no such window (wrong kind of file, size or seals); else the kernel's errno.
    pub fn open(fd: impl AsFd, len: usize) -> Result<Self, Errno> {
        // Only memfds (and tmpfs files) have seals; anything else fails here.
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|_| Errno::EPROTO)?;
        if !seals.contains(SEALS) || seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Err(Errno::EPROTO);
        }
        // The size last: from the seals on it cannot change. Ours is no multiple of a huge page, which keeps out
        // hugetlb files, whose pages may be missing (SIGBUS).
        let stat = rustix::fs::fstat(&fd).map_err(errno)?;
        if u64::try_from(stat.st_size) != Ok(len as u64) {
            return Err(Errno::EPROTO);
        }
        filled(&fd, len as u64)?;
        Self::map(fd, len)
    }

    /// Makes memory of `len` bytes, zeroed, that only this process can write; the descriptor is for peers, which can
    /// map it for reading ([`Foreign::open`]).
    ///
    /// # Errors
    /// As [`Memfd::create`]; `EINVAL` where the kernel (before 5.1) does not know the seal.
    pub fn create_export_table(len: usize) -> Result<(Self, OwnedFd), Errno> {
        let fd = rustix::fs::memfd_create(c"softrnic-exports", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(errno)?;
        resize(&fd, len as u64)?;
        filled(&fd, len as u64)?;
        let map = Self::map(&fd, len)?;
        // Our mapping stays writable. No process that holds the descriptor can make another writable mapping.
        rustix::fs::fcntl_add_seals(&fd, SEALS | SealFlags::FUTURE_WRITE).map_err(errno)?;
        Ok((map, fd))
    }

    /// Lets children that are forked from now on have the mapping, too.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn inherit(&self) -> Result<(), Errno> {
        // SAFETY: the range is the mapping made in `map`; DOFORK changes nothing in this process.
        unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxDoFork) }.map_err(errno)
    }

    fn map(fd: impl AsFd, len: usize) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
        let base = unsafe {
            rustix::mm::mmap(core::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0)
        }
        .map_err(errno)?;
        let map = Memfd { base: NonNull::new(base.cast()).ok_or(Errno::ENOMEM)?, len };
        // SAFETY: the range is the mapping just made; DONTFORK changes nothing in this process. A child that kept the
        // window would keep it alive for nothing.
        unsafe { rustix::mm::madvise(base, len, Advice::LinuxDontFork) }.map_err(errno)?;
        Ok(map)
    }
}

impl Drop for Memfd {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `map`. No code can name it any more: users of a Backing keep it alive.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

// SAFETY: a mapping is owned by no thread.
unsafe impl Send for Memfd {}
// SAFETY: as for Send; `Memfd` itself has no interior state.
unsafe impl Sync for Memfd {}

// SAFETY: page-aligned, and sealed against shrinking before it was mapped, so every page of it exists or can be made.
unsafe impl Backing for Memfd {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn len(&self) -> usize {
        self.len
    }
}

/// Memory that a peer made with [`Memfd::create_export_table`], mapped for reading. Not a [`Backing`]: it cannot be
/// written.
pub struct Foreign {
    base: NonNull<u8>,
    len: usize,
}

impl Foreign {
    /// Maps it, after checking that it is exactly `len` bytes long and can never be otherwise.
    ///
    /// # Errors
    /// `EPROTO` if it is not; else the kernel's errno.
    pub fn open(fd: impl AsFd, len: usize) -> Result<Self, Errno> {
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|_| Errno::EPROTO)?;
        let stat = rustix::fs::fstat(&fd).map_err(errno)?; // after the seals, as in `Memfd::open`
        if !seals.contains(SEALS) || u64::try_from(stat.st_size) != Ok(len as u64) {
            return Err(Errno::EPROTO);
        }
        filled(&fd, len as u64)?;
        // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
        let base = unsafe { rustix::mm::mmap(core::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, fd, 0) }
            .map_err(errno)?;
        let map = Foreign { base: NonNull::new(base.cast()).ok_or(Errno::ENOMEM)?, len };
        // SAFETY: the range is the mapping just made; DONTFORK changes nothing in this process.
        unsafe { rustix::mm::madvise(base, len, Advice::LinuxDontFork) }.map_err(errno)?;
        Ok(map)
    }

    /// The first byte. Valid for reads of `len()` bytes for as long as the value lives; the peer writes to it.
    #[cfg(not(loom))]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    #[cfg(not(loom))]
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `open`. No code can name it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

// SAFETY: a mapping is owned by no thread.
unsafe impl Send for Foreign {}
// SAFETY: as for Send; there is no interior state.
unsafe impl Sync for Foreign {}

/// Gives a new memfd its size.
pub(crate) fn resize(fd: &OwnedFd, len: u64) -> Result<(), Errno> {
    permitted(len)?;
    rustix::fs::ftruncate(fd, len).map_err(errno)
}

/// Allocates all of a file's memory now where the kernel counts memory when it is touched, and refuses what it has not
/// (`vm.overcommit_memory` = 2). Later the refusal would be a SIGBUS, in the middle of a message. Elsewhere untouched
/// pages cost nothing, and the kernel does not refuse pages one by one.
fn filled(fd: impl AsFd, len: u64) -> Result<(), Errno> {
    static COUNTED: OnceLock<bool> = OnceLock::new();
    let read = || crate::files::contents("/proc/sys/vm/overcommit_memory").starts_with(b"2");
    if !*COUNTED.get_or_init(read) {
        return Ok(());
    }
    match rustix::io::retry_on_intr(|| rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, len)) {
        Err(rustix::io::Errno::NOSPC) => Err(Errno::ENOMEM),
        done => done.map_err(errno),
    }
}

/// `EFBIG` if this process may not write files up to `end`. The limit holds for memfds too, and a process that goes
/// beyond it gets a signal, which ends programs that do not expect it: so it is looked at before.
pub(crate) fn permitted(end: u64) -> Result<(), Errno> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    if limit.is_some_and(|limit| limit < end) { Err(errno(rustix::io::Errno::FBIG)) } else { Ok(()) }
}

pub(crate) fn errno(e: rustix::io::Errno) -> Errno {
    Errno(e.raw_os_error())
}
