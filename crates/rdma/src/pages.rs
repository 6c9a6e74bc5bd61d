//! Memory of regions that have their own.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::Context;
use crate::error::{Error, Result};

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
    /// Fresh pages, zeroed.
    pub fn new(len: usize) -> Result<Self> {
        let mapped = len.max(1).next_multiple_of(rustix::param::page_size());
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice. Populated, so that the first access by an
        // adapter does not pay for the pages.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, rights, MapFlags::PRIVATE | MapFlags::POPULATE) };
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
