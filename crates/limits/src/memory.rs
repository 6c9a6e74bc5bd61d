//! Memory: shared between two processes, private, and another process's.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// A mapping, unmapped when dropped.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is not tied to a thread; the types that hold one say how it is accessed.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value's own mapping, and no reference into it outlives its owner.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

const RIGHTS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

fn page_multiple(len: usize) -> usize {
    len.max(1).next_multiple_of(rustix::param::page_size())
}

/// Memory that processes share. Atomics reach its words, and copies its other bytes.
pub struct Shared {
    mapping: Mapping,
}

impl Shared {
    /// The number of bytes from one word to the next. It is two cache lines: processors fetch them in pairs.
    pub const LINE: usize = 128;

    /// Make shared memory, zeroed, and the descriptor by which the other process opens it.
    ///
    /// # Errors
    /// The system's.
    pub fn create(len: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = rustix::fs::memfd_create(c"softrnic-limits", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, page_multiple(len) as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        Ok((Self::open(&fd, len)?, fd))
    }

    /// Open the memory that the other process made.
    ///
    /// # Errors
    /// `InvalidInput` if it has fewer than `len` bytes or could lose some; the system's.
    pub fn open(fd: impl AsFd, len: usize) -> io::Result<Self> {
        let len = page_multiple(len);
        let sealed = rustix::fs::fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK);
        if !sealed || (rustix::fs::fstat(&fd)?.st_size as u64) < len as u64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a fresh mapping at an address of the kernel's choice; the file has that many bytes and is sealed
        // against losing them.
        let start = unsafe { mmap(ptr::null_mut(), len, RIGHTS, flags, fd, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Shared { mapping: Mapping { start, len } })
    }

    /// The first word of one of the first two lines.
    ///
    /// # Panics
    /// If it is another line, or the memory has none.
    pub fn word(&self, line: usize) -> &AtomicU64 {
        let at = line * Self::LINE;
        assert!(line < 2 && at + 8 <= self.mapping.len, "line {line} of {} bytes", self.mapping.len);
        // SAFETY: inside the mapping and aligned, for it begins at a page; it lives as long as `self`. All access of
        // either process is atomic, for copies stay behind the words.
        unsafe { AtomicU64::from_ptr(self.mapping.start.as_ptr().add(at).cast()) }
    }
}

impl Shared {
    /// Copy `len` bytes at `from` to `to`, by memcpy.
    ///
    /// # Panics
    /// If it has fewer bytes, if the two overlap, or if one of them has a part of the first two lines, which are for
    /// words.
    pub fn copy(&self, from: usize, to: usize, len: usize) {
        let inside = |at: usize| at >= 2 * Self::LINE && at.checked_add(len).is_some_and(|end| end <= self.mapping.len);
        assert!(inside(from) && inside(to) && from.abs_diff(to) >= len, "{len} bytes at {from} and {to}");
        let start = self.mapping.start.as_ptr();
        // SAFETY: inside the mapping, and apart. The other process may change the bytes meanwhile: any bytes will do.
        unsafe { ptr::copy_nonoverlapping(start.add(from), start.add(to), len) };
        std::hint::black_box(start);
    }
}

/// The place of memory, in any process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Address of the first byte.
    pub addr: u64,
    /// The number of bytes.
    pub len: usize,
}

/// Private memory, all of it present. Another process may write to it at any time, so it is only copied.
pub struct Buffer {
    mapping: Mapping,
}

impl Buffer {
    /// Make a buffer of at least `len` bytes. They are written once, so that they are memory and not the kernel's page
    /// of zeroes.
    ///
    /// # Errors
    /// The system's.
    pub fn new(len: usize) -> io::Result<Self> {
        let len = page_multiple(len);
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, RIGHTS, flags) }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: `len` bytes of a mapping that no other code knows yet.
        unsafe { ptr::write_bytes(start.as_ptr(), 1, len) };
        Ok(Buffer { mapping: Mapping { start, len } })
    }

    /// The place of the buffer.
    pub fn place(&self) -> Place {
        Place { addr: self.mapping.start.as_ptr().expose_provenance() as u64, len: self.mapping.len }
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.mapping.len);
        assert!(inside, "{len} bytes at {offset} of {}", self.mapping.len);
        // SAFETY: inside the mapping.
        unsafe { self.mapping.start.as_ptr().add(offset) }
    }

    /// Copy `len` bytes at `offset` to the same offset of another buffer, by memcpy.
    ///
    /// # Panics
    /// If either has fewer bytes, or both are the same.
    #[inline]
    pub fn copy_to(&self, other: &Buffer, offset: usize, len: usize) {
        assert!(!ptr::eq(self, other), "a buffer is not copied to itself");
        let (from, to) = (self.at(offset, len), other.at(offset, len));
        // SAFETY: inside two mappings, hence apart. Another process may change the bytes meanwhile: any bytes will do.
        unsafe { ptr::copy_nonoverlapping(from, to, len) };
        // Otherwise the compiler may leave out copies whose result is not used.
        std::hint::black_box(to);
    }
}

/// A buffer of another process.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    pid: rustix::process::Pid,
    place: Place,
}

impl Remote {
    /// A memory of the process `pid`.
    ///
    /// # Errors
    /// `InvalidInput` for a number that is not that of another process.
    pub fn new(pid: u32, place: Place) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
        match pid {
            Some(pid) if pid != rustix::process::getpid() => Ok(Remote { pid, place }),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Copy `len` bytes at `offset` of `from` to the same offset here, with one `process_vm_writev(2)`. The kernel
    /// reads this process's memory and checks it, so any memory will do: for instance memory that a device has
    /// registered.
    ///
    /// # Errors
    /// The system's.
    #[inline]
    pub fn write(&self, from: Place, offset: usize, len: usize) -> io::Result<()> {
        let (local, remote) = self.vectors(from, offset, len)?;
        // SAFETY: the call only reads this process's memory, and fails where there is none. The memory that it writes
        // belongs to another process.
        let moved = unsafe { libc::process_vm_writev(self.pid.as_raw_nonzero().get(), &local, 1, &remote, 1, 0) };
        whole(moved, len)
    }

    /// Copy `len` bytes at `offset` here to the same offset of `to`, with one `process_vm_readv(2)`.
    ///
    /// # Errors
    /// The system's.
    #[inline]
    pub fn read(&self, to: &Buffer, offset: usize, len: usize) -> io::Result<()> {
        let (local, remote) = self.vectors(to.place(), offset, len)?;
        // SAFETY: the call writes `len` bytes inside the buffer, to which no code holds a reference.
        let moved = unsafe { libc::process_vm_readv(self.pid.as_raw_nonzero().get(), &local, 1, &remote, 1, 0) };
        whole(moved, len)
    }

    #[inline]
    fn vectors(&self, ours: Place, offset: usize, len: usize) -> io::Result<(libc::iovec, libc::iovec)> {
        if offset.checked_add(len).is_none_or(|end| end > self.place.len || end > ours.len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let vector = |place: Place| libc::iovec {
            iov_base: ptr::with_exposed_provenance_mut((place.addr as usize).wrapping_add(offset)),
            iov_len: len,
        };
        Ok((vector(ours), vector(self.place)))
    }
}

#[inline]
fn whole(moved: isize, len: usize) -> io::Result<()> {
    match usize::try_from(moved) {
        Ok(moved) if moved == len => Ok(()),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}
