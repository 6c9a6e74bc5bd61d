//! Memory of regions that have their own.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::Context;
use crate::error::{Error, Result};

/// The bytes of a huge page of most machines. A device may move memory into huge pages, as far as the memory has whole
/// ones in it. A copy from or to another process takes longer where its bytes are in small pages: the kernel looks each
/// of them up.
const HUGE: usize = 2 << 20;

/// Whole pages.
pub(crate) struct Pages {
    start: NonNull<u8>,
    from: From,
}

/// Where they come from, and go back to.
enum From {
    /// The system: so many bytes.
    System(usize),
    /// The device: peers map them, too.
    Device(Arc<Context>),
}

// SAFETY: a mapping is not tied to a thread; what is in it is reached by volatile and atomic operations only.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Fresh pages, zeroed. From [`HUGE`] bytes on they begin where a huge page may begin.
    pub fn new(len: usize) -> Result<Self> {
        let mapped = len.max(1).next_multiple_of(rustix::param::page_size());
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        if mapped < HUGE {
            // SAFETY: a fresh mapping at an address of the kernel's choice. Populated, so that the first access by an
            // adapter does not pay for the pages.
            let start = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, rights, flags) };
            return Self::mapping(start, mapped);
        }
        let reserved = mapped + HUGE;
        // SAFETY: as above; without rights, it is a range of addresses only.
        let range = unsafe { mmap_anonymous(std::ptr::null_mut(), reserved, ProtFlags::empty(), MapFlags::PRIVATE) };
        let range = range.map_err(|errno| Error::new("mmap", errno.raw_os_error()))?;
        let before = range.addr().wrapping_neg() % HUGE;
        let at = range.wrapping_byte_add(before);
        // SAFETY: a part of the range, which nothing else uses.
        let start = unsafe { mmap_anonymous(at, mapped, rights, flags | MapFlags::FIXED) };
        let behind = at.wrapping_byte_add(mapped);
        // SAFETY: the rest of the range, or all of it. It fails only for want of memory for the kernel's lists, and
        // then addresses are left over.
        unsafe {
            if start.is_err() {
                let _ = munmap(range, reserved);
            } else {
                let _ = (before > 0).then(|| munmap(range, before));
                let _ = (before < HUGE).then(|| munmap(behind, HUGE - before));
            }
        }
        Self::mapping(start, mapped)
    }

    /// The first `len` bytes of a file, shared.
    pub fn of_file(file: BorrowedFd<'_>, len: usize) -> Result<Self> {
        let mapped = len.max(1).next_multiple_of(rustix::param::page_size());
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe { mmap(std::ptr::null_mut(), mapped, rights, MapFlags::SHARED, file, 0) };
        Self::mapping(start, mapped)
    }

    fn mapping(start: rustix::io::Result<*mut std::ffi::c_void>, mapped: usize) -> Result<Self> {
        let start = start.map_err(|errno| Error::new("mmap", errno.raw_os_error()))?;
        Ok(Pages { start: NonNull::new(start.cast()).expect("not at address 0"), from: From::System(mapped) })
    }

    /// Zeroed memory of the device that peers map, too. None: the device has no such memory, or none is left.
    pub fn mapped_by_peers(context: &Arc<Context>, len: usize) -> Option<Self> {
        let near = context.library().near.as_ref()?;
        // SAFETY: a live context.
        let start = unsafe { (near.alloc)(context.raw(), len.max(1)) };
        Some(Pages { start: NonNull::new(start.cast())?, from: From::Device(context.clone()) })
    }

    /// True if they are the device's.
    pub fn is_the_devices(&self) -> bool {
        matches!(self.from, From::Device(_))
    }

    /// The first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let start = self.start.as_ptr().cast();
        match &self.from {
            // SAFETY: this value's own mapping; the holder of the Pages has deregistered it before.
            From::System(mapped) => drop(unsafe { munmap(start, *mapped) }),
            From::Device(context) => {
                if let Some(near) = &context.library().near {
                    // SAFETY: a live context, and memory that it gave, which is given back once; no region is upon it.
                    unsafe { (near.free)(context.raw(), start) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_memory_begins_with_a_huge_page() {
        for len in [HUGE, HUGE + 1, 3 * HUGE - 1] {
            // Several, so that none is there by chance.
            let several: Vec<_> = (0..3).map(|_| Pages::new(len).unwrap()).collect();
            for pages in &several {
                assert_eq!(pages.start().addr().get() % HUGE, 0, "{len}");
                // SAFETY: the first byte and the last one of memory that this test has.
                unsafe {
                    assert_eq!(pages.start().read() + pages.start().add(len - 1).read(), 0);
                    pages.start().write(1);
                    pages.start().add(len - 1).write(1);
                }
            }
        }
    }

    #[test]
    fn nothing_else_stays_mapped() {
        let mapped = || std::fs::read_to_string("/proc/self/statm").unwrap();
        let size = || mapped().split(' ').next().unwrap().parse::<usize>().unwrap();
        let before = size();
        for _ in 0..2048 {
            let _ = Pages::new(HUGE + 1).unwrap();
        }
        // Half of what would be left over. Threads of other tests take ranges of addresses meanwhile, of 128 MiB each.
        assert!(size() < before + 1024 * HUGE / rustix::param::page_size(), "{before} {}", size());
    }
}
