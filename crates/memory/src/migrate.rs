//! Ordinary private memory of the program moved into a file in memory, where other processes can map it too: in place,
//! while other threads go on to read and write it, and back.
//!
//! ```text
//! migrate                                          migrate_back
//! every page is made present                       private memory is made elsewhere, every page present
//! write-protect: a write waits from now on         write-protect: a write waits from now on
//! copy the memory into the file                    copy the file into the private memory
//! map the file over the memory                     move the private memory over the mapping
//! wake the waiting threads: they try again, and now write to what lies there
//! ```
//!
//! Reads go on all the time: old and new have the same content, and one replaces the other in one step.
//!
//! What the program can notice, and what its caller has to see to:
//!
//! * A system call that is to write to the range while it moves waits; in a process that may not have that (neither
//!   CAP_SYS_PTRACE nor `vm.unprivileged_userfaultfd`) it fails with EFAULT, or stops short. The same holds for
//!   `process_vm_writev` of other processes.
//! * Pages that the kernel has pinned (io_uring's registered buffers, O_DIRECT on its way) stay behind: what is still
//!   written to them is lost.
//! * Memory shared so stays shared over fork ([`copy_for_child`]), MADV_DONTNEED does not zero it, and a process that
//!   can map the file can write all of it.
//! * Its mappings are no longer one with those around it, given back or not: mremap(2) over such a border fails.
//! * Moves of one process must not overlap in time with each other, nor with fork: the caller holds a lock over them.

use core::ops::ControlFlow;
use core::ptr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::OnceLock;

use rustix::fs::FallocateFlags;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use verbs::Errno;

use crate::backing;
use crate::local;
use crate::maps::{self, Detail, Mapping, Name};
use crate::protection::{self, Protection, Whose};

/// True if this process can move memory: its userfaultfd(2) can write-protect private and shared memory (Linux 5.19),
/// and nothing forbids it. Asks the kernel once.
pub fn possible() -> bool {
    static POSSIBLE: OnceLock<bool> = OnceLock::new();
    *POSSIBLE.get_or_init(|| [Whose::All, Whose::Programs].into_iter().any(|whose| protection::open(whose).is_ok()))
}

/// Moves `len` bytes of private memory at `addr` into `file` at `offset`, and maps that in their place, all whole
/// pages. The file, a memfd, must be that long already, and hold nothing there.
///
/// Nothing has changed if it fails, and the file holds nothing there. The memory is that of a region being registered:
/// the program has promised to leave it mapped.
///
/// # Errors
/// `EINVAL` unless all are whole pages (and at least one) that lie in the file. `EFAULT` if part of the memory is not
/// mapped. `EOPNOTSUPP` if part of it is anything but plain private anonymous memory, readable and writable: files,
/// shared memory, huge pages, the main stack, and what is locked, kept from children or has a protection key. `EBUSY`
/// if this thread itself runs on it, or if it belongs to a userfaultfd of the program. `EFBIG` beyond RLIMIT_FSIZE.
/// Else the kernel's errno.
pub fn migrate(file: BorrowedFd<'_>, offset: u64, addr: u64, len: usize) -> Result<(), Errno> {
    let end = pages(file, offset, len).and_then(|()| end_of_pages(addr, len))?;
    if runs_on(addr, end) {
        return Err(Errno::EBUSY);
    }
    plain(addr, end)?;
    backing::permitted(offset + len as u64)?;
    local::populate(addr, len as u64, true)?;
    let held = Protection::new(addr, len)?;
    let moved = copy_in(file, offset, addr, len).and_then(|()| {
        // SAFETY: the memory that is replaced was found to be ordinary memory, and no thread could write to it since it
        // was copied. So the new mapping has the same content and the same rights. That the memory is still the same
        // since that check is the program's promise.
        unsafe {
            let (rights, how) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
            rustix::mm::mmap(place(addr), len, rights, how, file, offset)
        }
        .map(drop)
        .map_err(errno)
    });
    drop(held);
    match moved {
        // Registered memory is present, so that using it costs no page fault. It works without, too.
        Ok(()) => drop(local::populate(addr, len as u64, true)),
        Err(_) => drop(punch(file, offset, len)),
    }
    moved
}

/// Makes the `len` bytes of `file` at `offset` private again wherever this process maps them, at the addresses where
/// they are by now, with the rights that they have by now; then frees the file's memory. What the program has unmapped,
/// or mapped over, it has taken back itself.
///
/// No other process may write to these bytes of the file any more. The process must have no mapping of them other than
/// that of [`migrate`] (or the one to which the program has moved it), and must not unmap or move it at the same time.
///
/// If it fails, the file keeps its content, and what is not yet private still is that file: it can be tried again.
///
/// # Errors
/// `EINVAL` unless all are whole pages (and at least one) that lie in the file. `EBUSY` if this thread itself runs on
/// that memory. Else the kernel's errno: `ENOMEM` if there is no room for both copies.
pub fn migrate_back(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<(), Errno> {
    pages(file, offset, len)?;
    while let Some(part) = find(file, offset, len)? {
        if runs_on(part.addr, part.addr + part.len as u64) {
            return Err(Errno::EBUSY);
        }
        make_private(file, &part, || Protection::new(part.addr, part.len))?;
    }
    punch(file, offset, len)
}

/// Gives a forked child a copy of its own of what its parent has migrated: the `len` bytes of `file` at `offset`,
/// wherever it has them mapped. Its content is that of now: what others write to it between fork and this call is seen.
///
/// For the only thread of a child, before it runs anything else. Async-signal-safe.
///
/// # Errors
/// As [`migrate_back`]; the child then still shares what has not been copied.
pub fn copy_for_child(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<(), Errno> {
    pages(file, offset, len)?;
    while let Some(part) = find(file, offset, len)? {
        make_private(file, &part, || Ok(()))?;
    }
    Ok(())
}

/// A piece of the file that this process has mapped.
struct Part {
    addr: u64,
    len: usize,
    /// In the file.
    offset: u64,
    rights: ProtFlags,
}

/// The first piece of these bytes that is mapped.
fn find(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Option<Part>, Errno> {
    let stat = rustix::fs::fstat(file).map_err(errno)?;
    let device = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let (mut found, end) = (None, offset + len as u64);
    maps::each(Detail::Places, |mapping| {
        if !mapping.shared || mapping.inode != stat.st_ino || mapping.device != device {
            return ControlFlow::Continue(());
        }
        let first = offset.max(mapping.offset);
        let last = end.min(mapping.offset + (mapping.end - mapping.start));
        if first >= last {
            return ControlFlow::Continue(());
        }
        let addr = mapping.start + (first - mapping.offset);
        found = Some(Part { addr, len: (last - first) as usize, offset: first, rights: rights(mapping) });
        ControlFlow::Break(())
    })?;
    Ok(found)
}

fn rights(mapping: &Mapping) -> ProtFlags {
    [(mapping.read, ProtFlags::READ), (mapping.write, ProtFlags::WRITE), (mapping.execute, ProtFlags::EXEC)]
        .into_iter()
        .fold(ProtFlags::empty(), |all, (has, right)| if has { all | right } else { all })
}

/// Replaces a mapping of the file by private memory with the same content, while `protect`'s result lives.
fn make_private<T>(file: BorrowedFd<'_>, part: &Part, protect: impl FnOnce() -> Result<T, Errno>) -> Result<(), Errno> {
    let copy = Replacement::new(part.len)?;
    let held = protect()?;
    let moved = copy.fill(file, part.offset).and_then(|()| copy.move_to(part));
    drop(held);
    moved
}

/// Private memory that is to lie elsewhere. Unmapped when dropped, unless it has gone there.
struct Replacement {
    base: *mut u8,
    len: usize,
}

impl Replacement {
    fn new(len: usize) -> Result<Self, Errno> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
        let base =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, rights, MapFlags::PRIVATE) }.map_err(errno)?;
        let copy = Replacement { base: base.cast(), len };
        // The pages are made before any thread waits, and while a lack of memory is still an error.
        // SAFETY: populating changes no contents, and the range is the mapping just made.
        match unsafe { rustix::mm::madvise(base, len, Advice::LinuxPopulateWrite) } {
            Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Ok(copy),
            Err(error) => Err(errno(error)),
        }
    }

    fn fill(&self, file: BorrowedFd<'_>, offset: u64) -> Result<(), Errno> {
        let mut done = 0;
        while done < self.len {
            // SAFETY: this is the mapping made in `new`. It is readable, writable and zeroed, and no other code knows
            // it.
            let rest = unsafe { core::slice::from_raw_parts_mut(self.base.add(done), self.len - done) };
            match rustix::io::pread(file, rest, offset + done as u64) {
                Ok(0) => return Err(Errno::EIO),
                Ok(n) => done += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(errno(error)),
            }
        }
        Ok(())
    }

    fn move_to(self, part: &Part) -> Result<(), Errno> {
        let rights = MprotectFlags::from_bits_truncate(part.rights.bits());
        // SAFETY: this is the mapping made in `new`, and no code uses it. It then replaces a mapping of the file of the
        // same length, rights and content, to which no thread could write since it was copied.
        unsafe {
            rustix::mm::mprotect(self.base.cast(), self.len, rights).map_err(errno)?;
            rustix::mm::mremap_fixed(self.base.cast(), self.len, self.len, MremapFlags::MAYMOVE, place(part.addr))
                .map_err(errno)?;
        }
        core::mem::forget(self); // it is no longer there
        Ok(())
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`. It is still there, and no other code has it.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
    }
}

/// `EINVAL` unless that is at least one page, whole ones, within the file.
fn pages(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<(), Errno> {
    let end = end_of_pages(offset, len)?;
    let size = rustix::fs::fstat(file).map_err(errno)?.st_size;
    if u64::try_from(size).unwrap_or(0) < end {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

fn end_of_pages(start: u64, len: usize) -> Result<u64, Errno> {
    let page = rustix::param::page_size() as u64;
    let end = start.checked_add(len as u64).ok_or(Errno::EINVAL)?;
    if len == 0 || !start.is_multiple_of(page) || !end.is_multiple_of(page) { Err(Errno::EINVAL) } else { Ok(end) }
}

/// True if this thread would need memory of the range to do its work: its stack at this place, or what the C library
/// knows about it (which on Linux lies where `pthread_self` points to; the kernel writes to it, rseq(2)).
fn runs_on(addr: u64, end: u64) -> bool {
    /// More than the functions here and the kernel's signal frames use, and what of the caller's frame is theirs.
    const BELOW: u64 = 256 << 10;
    const ABOVE: u64 = 64 << 10;
    /// About the size of glibc's `struct pthread`, at whose beginning the thread pointer is.
    const AFTER: u64 = 4 << 10;
    let here = 0u8;
    let stack = (&raw const here).expose_provenance() as u64;
    // SAFETY: always succeeds.
    let thread = unsafe { libc::pthread_self() } as u64;
    // SAFETY: the C library gives a valid pointer to this thread's own variable.
    let variable = unsafe { libc::__errno_location() }.expose_provenance() as u64;
    let touches = |from: u64, to: u64| from < end && addr < to;
    // No wider: ordinary memory lies next to the main thread's, page to page.
    touches(stack.saturating_sub(BELOW), stack.saturating_add(ABOVE))
        || touches(thread, thread.saturating_add(AFTER))
        || touches(variable, variable.saturating_add(1))
}

/// Whether all of it is memory that can be replaced without the program's noticing.
fn plain(addr: u64, end: u64) -> Result<(), Errno> {
    let (mut at, mut verdict) = (addr, Err(Errno::EFAULT));
    maps::each(Detail::All, |mapping| {
        if mapping.end <= at {
            return ControlFlow::Continue(());
        }
        if mapping.start > at {
            return ControlFlow::Break(());
        }
        let rights = mapping.read && mapping.write && !mapping.execute && !mapping.shared;
        if !rights || mapping.inode != 0 || mapping.name == Name::Other || !mapping.usual {
            verdict = Err(Errno::EOPNOTSUPP);
            return ControlFlow::Break(());
        }
        at = mapping.end;
        if at < end {
            return ControlFlow::Continue(());
        }
        verdict = Ok(());
        ControlFlow::Break(())
    })?;
    verdict
}

/// Writes the program's memory to the file.
fn copy_in(file: BorrowedFd<'_>, offset: u64, addr: u64, len: usize) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        // Not rustix's, which wants a reference to memory that is the program's; nor libc's, at which the thread could
        // be cancelled. SAFETY: the kernel checks the address, and nothing of ours is written.
        let written = unsafe {
            let (from, at) = (place(addr + done as u64), (offset + done as u64) as libc::off_t);
            libc::syscall(libc::SYS_pwrite64, file.as_raw_fd(), from, len - done, at)
        };
        match usize::try_from(written) {
            Ok(0) => return Err(Errno::EIO),
            Ok(n) => done += n,
            Err(_) => match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                error => return Err(Errno(error.unwrap_or(libc::EIO))),
            },
        }
    }
    Ok(())
}

/// Frees the file's memory there; it reads as zeroes then.
fn punch(file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<(), Errno> {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(file.as_fd(), how, offset, len as u64)).map_err(errno)
}

fn place(addr: u64) -> *mut core::ffi::c_void {
    ptr::with_exposed_provenance_mut(addr as usize)
}

fn errno(e: rustix::io::Errno) -> Errno {
    Errno(e.raw_os_error())
}

#[cfg(all(test, not(loom), not(miri)))]
#[path = "migrate_tests.rs"]
mod tests;
