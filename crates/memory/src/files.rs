//! Files below registered memory: whether a process could cut one off (truncate(2)). And what small files of the kernel
//! say.
//!
//! An adapter pins the pages of a region. Here the processor copies, and an access to a page that its file has lost is
//! a SIGBUS, in whichever process makes it. So memory of files that can become shorter is reached through the kernel,
//! which answers EFAULT ([`crate::local`], `guarded`). All other memory is not: what has no file, files that no process
//! can name or open, sealed ones.

use core::mem::size_of;
use core::ops::ControlFlow;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{FileType, Mode, OFlags, SealFlags};

use crate::maps;

/// True if a file below these addresses may become shorter. False where `/proc` is not mounted, since nothing is known
/// there.
///
/// A mapping that the program puts there later is not seen: that is as if it unmapped what it has registered.
#[must_use]
pub fn may_shrink(addr: u64, len: u64) -> bool {
    let Some(end) = addr.checked_add(len.max(1)) else { return false };
    by_query(addr, end).unwrap_or_else(|| by_list(addr, end))
}

/// The content of a file, for calls that may hold locks: `std::fs::read` opens it by a function at which a thread can
/// be cancelled (pthreads(7)). What of it cannot be read is left out.
#[must_use]
pub fn contents(path: &str) -> Vec<u8> {
    let mut all = Vec::new();
    let Ok(file) = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return all };
    let mut some = [0u8; 4096];
    while let Ok(n @ 1..) = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut some)) {
        all.extend_from_slice(some.get(..n).unwrap_or_default());
    }
    all
}

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    addr: u64,
    start: u64,
    end: u64,
    rights: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

const _: () = assert!(size_of::<Query>() == 104);

/// `PROCMAP_QUERY`: `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: u64 = 3 << 30 | (size_of::<Query>() as u64) << 16 | (b'f' as u64) << 8 | 17;
/// `PROCMAP_QUERY_VMA_SHARED`.
const SHARED: u64 = 8;
/// `PROCMAP_QUERY_COVERING_OR_NEXT_VMA`, `PROCMAP_QUERY_FILE_BACKED_VMA`.
const NEXT_OF_A_FILE: u64 = 0x10 | 0x20;
/// Longer than any name but those that were made long on purpose: then the list is read.
const NAME: usize = 1024;

/// Asks the kernel for the mappings of files among these addresses, which takes one call where there are none. `None`
/// if it cannot be asked (before Linux 6.11).
fn by_query(addr: u64, end: u64) -> Option<bool> {
    let maps = rustix::fs::open(c"/proc/self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut name = [0u8; NAME];
    let mut at = addr;
    while at < end {
        let mut query = Query {
            size: size_of::<Query>() as u64,
            flags: NEXT_OF_A_FILE,
            addr: at,
            name_size: NAME as u32,
            name: name.as_mut_ptr().expose_provenance() as u64,
            ..Query::default()
        };
        // SAFETY: an open descriptor, and a structure as the call demands it, with a place for the name of the size
        // that it says.
        if unsafe { libc::syscall(libc::SYS_ioctl, maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) } < 0 {
            return match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::ENOENT) => Some(false),
                _ => None,
            };
        }
        if query.start >= end || query.end <= at {
            return Some(false);
        }
        let name = name.get(..(query.name_size as usize).saturating_sub(1)).unwrap_or_default();
        if can_shrink(query.rights & SHARED != 0, name, (query.major, query.minor), query.inode) {
            return Some(true);
        }
        at = query.end;
    }
    Some(false)
}

/// Looks the mapping up in `/proc/self/maps`, as far as its lines are read (see [`maps`]): a name that is cut off is
/// none that is known.
fn by_list(addr: u64, end: u64) -> bool {
    let mut shrinks = false;
    let read = maps::each(maps::Detail::Places, |mapping| {
        if mapping.start >= end {
            return ControlFlow::Break(());
        }
        if mapping.end > addr && mapping.inode != 0 {
            shrinks = can_shrink(mapping.shared, mapping.label(), mapping.device, mapping.inode);
        }
        if shrinks { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    read.is_ok() && shrinks
}

/// The kernel's names for memory with a file of its own that no process can open: MAP_SHARED | MAP_ANONYMOUS, huge
/// pages likewise.
const KERNELS: [&[u8]; 2] = [b"/dev/zero (deleted)", b"/anon_hugepage (deleted)"];

fn can_shrink(shared: bool, name: &[u8], device: (u32, u32), inode: u64) -> bool {
    // `[heap]`, `anon_inode:[io_uring]`, `socket:[1]` and so on have no length that a process could set. Memory of
    // shmget(2) and that of a dma-buf have none either.
    let lasts = !name.starts_with(b"/")
        || KERNELS.contains(&name)
        || name.starts_with(b"/SYSV") && name.ends_with(b" (deleted)")
        || name.starts_with(b"/dmabuf:");
    if lasts {
        return false;
    }
    if name.starts_with(b"/memfd:") {
        return !is_sealed(device, inode);
    }
    let path = Path::new(OsStr::from_bytes(name));
    if name.starts_with(b"/dev/")
        && rustix::fs::stat(path).is_ok_and(|stat| {
            matches!(FileType::from_raw_mode(stat.st_mode), FileType::CharacterDevice | FileType::BlockDevice)
        })
    {
        return false;
    }
    // The program's own variables. Its file cannot be written to while it runs (ETXTBSY, truncate(2)).
    let program =
        !shared && rustix::fs::readlink(c"/proc/self/exe", Vec::new()).is_ok_and(|own| own.as_bytes() == name);
    !program
}

/// True if this process has a descriptor of the memfd, and it is sealed against becoming shorter. Seals cannot be asked
/// for without one (fcntl(2)). A descriptor that is not found costs speed alone: the memory is reached through the
/// kernel.
fn is_sealed(device: (u32, u32), inode: u64) -> bool {
    any_descriptor(|number| {
        // SAFETY: another thread may close the descriptor or give its number to another file meanwhile. Then an answer
        // is about that file. Its inode is looked at after its seals, and seals are never taken away. Nothing is
        // written or closed here.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        match rustix::fs::fcntl_get_seals(fd) {
            Ok(seals) if seals.contains(SealFlags::SHRINK) => Some(rustix::fs::fstat(fd).is_ok_and(|stat| {
                stat.st_ino == inode && (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev)) == device
            })),
            Err(rustix::io::Errno::BADF) => None,
            _ => Some(false),
        }
    })
}

/// The count of numbers that are tried: a program that registers thousands of regions may have as many descriptors, and
/// the time for all of them must not grow with the square. As many as a process may have unless it asks for more
/// (getrlimit(2)).
const NUMBERS: i32 = 1024;

/// The count of free numbers in a row after which the rest is taken for free: the kernel gives out the lowest one.
const GAP: u32 = 64;

/// True if `is_it` says so of a descriptor; it answers `None` where the number is free.
fn any_descriptor(mut is_it: impl FnMut(i32) -> Option<bool>) -> bool {
    let mut free = 0;
    for number in 0..NUMBERS {
        match is_it(number) {
            Some(true) => return true,
            Some(false) => free = 0,
            None => free += 1,
        }
        if free == GAP {
            break;
        }
    }
    false
}

#[cfg(all(test, not(loom), not(miri)))]
#[path = "files_tests.rs"]
mod tests;
