//! Device memory: zeroed pages that only the device hands out.
//!
//! The pages lie in memory that peers of the same user map too, so that the peers' RDMA operations are plain stores and
//! loads. Where that is not possible, the pages are the process's own. A forked child can allocate them, too, through a
//! context of its parent's (but not register them); those are always the child's own.

use core::cell::UnsafeCell;
use core::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_uint, c_void, size_t};
use nic::{Mapped, Nic};
use sys::{ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};
use verbs::{Access, Errno, Result};

use crate::context::Context;
use crate::entry::{Zeroed, argument, number, object, pointer, silent};
use crate::mr::{Made, Mr};
use crate::pd::Pd;

/// The amount of device memory, in bytes, for the whole process.
pub const MAX_SIZE: usize = 256 << 20;

static USED: AtomicUsize = AtomicUsize::new(0);

/// Mapped pages. Freed with the last `ibv_dm` and the last region upon them.
pub struct Memory {
    start: *mut c_void,
    mapped: usize,
    /// The bytes that the program asked for.
    len: usize,
    /// The start of the usable part, which an alignment beyond a page's moves.
    offset: usize,
    /// The shared memory of this adapter in which the pages lie, if they do.
    shared: Option<(&'static Nic, Mapped)>,
}

// SAFETY: plain memory; the program decides which thread uses it when, as with any registered memory.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub fn new(nic: Option<&'static Nic>, len: usize, align: usize) -> Result<Arc<Memory>> {
        let page = 4096;
        let extra = if align > page { align } else { 0 };
        let mapped = len.next_multiple_of(page).checked_add(extra).ok_or(Errno::EINVAL)?;
        if USED.fetch_add(len, Ordering::Relaxed) + len > MAX_SIZE {
            USED.fetch_sub(len, Ordering::Relaxed);
            return Err(Errno::ENOMEM);
        }
        let shared = nic.and_then(|nic| Some((nic, nic.lock().env_mut().allocate_shared(mapped as u64)?)));
        if let Some((_, memory)) = &shared {
            let start = core::ptr::with_exposed_provenance_mut(memory.addr() as usize);
            return Ok(Arc::new(Self::at(start, mapped, len, align, shared)));
        }
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe { libc::mmap(null_mut(), mapped, prot, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            USED.fetch_sub(len, Ordering::Relaxed);
            return Err(Errno::ENOMEM);
        }
        Ok(Arc::new(Self::at(start, mapped, len, align, None)))
    }

    fn at(
        start: *mut c_void,
        mapped: usize,
        len: usize,
        align: usize,
        shared: Option<(&'static Nic, Mapped)>,
    ) -> Memory {
        let offset = (start as usize).next_multiple_of(align.max(1)) - start as usize;
        Memory { start, mapped, len, offset, shared }
    }

    /// As [`Memory::range`], for a copy by the processor: in words of 4 bytes, as on the adapters that have such
    /// memory.
    fn words(&self, offset: u64, length: usize) -> Result<*mut c_void> {
        if !offset.is_multiple_of(4) || !length.is_multiple_of(4) {
            return Err(Errno::EINVAL);
        }
        self.range(offset, length)
    }

    /// The start and the bytes of the whole pages.
    pub fn whole(&self) -> (*mut c_void, usize) {
        (self.start, self.mapped)
    }

    /// Address of `[offset, offset + length)`; EINVAL beyond the end.
    pub fn range(&self, offset: u64, length: usize) -> Result<*mut c_void> {
        let offset = usize::try_from(offset).map_err(|_| Errno::EINVAL)?;
        if offset.checked_add(length).is_none_or(|end| end > self.len) {
            return Err(Errno::EINVAL);
        }
        Ok(self.start.wrapping_byte_add(self.offset + offset))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.shared.take() {
            // In a forked child the place is still its parent's; only the child's mapping is removed.
            Some((nic, memory)) if nic.alive() => nic.lock().env_mut().free_shared(memory),
            Some((_, memory)) => drop(memory),
            // SAFETY: this process's own mapping; the last user is gone.
            None => drop(unsafe { libc::munmap(self.start, self.mapped) }),
        }
        USED.fetch_sub(self.len, Ordering::Relaxed);
    }
}

/// An `ibv_dm`.
#[repr(C)]
pub struct Dm {
    c: UnsafeCell<ibv_dm>,
    memory: Arc<Memory>,
}

impl Dm {
    fn create(context: *mut ibv_context, handle: u32, memory: Arc<Memory>) -> *mut ibv_dm {
        let mut c = ibv_dm::zeroed();
        c.context = context;
        c.memcpy_to_dm = Some(memcpy_to_dm);
        c.memcpy_from_dm = Some(memcpy_from_dm);
        c.comp_mask = sys::IBV_DM_MASK_HANDLE;
        c.handle = handle;
        Box::into_raw(Box::new(Dm { c: UnsafeCell::new(c), memory })).cast()
    }
}

/// `ibv_alloc_dm(3)`.
pub unsafe extern "C" fn alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm {
    pointer(|| {
        // SAFETY: live or NULL (man page).
        let ctx = unsafe { Context::of(context) }?;
        if ctx.kind().is_iwarp() {
            return Err(Errno::EOPNOTSUPP); // its max_dm_size is 0
        }
        // SAFETY: the caller's structure or NULL.
        let attr = unsafe { argument(attr) }?;
        if attr.comp_mask != 0 || attr.length == 0 || attr.log_align_req > 30 {
            return Err(Errno::EINVAL);
        }
        if attr.length > MAX_SIZE {
            return Err(Errno::ENOMEM);
        }
        let memory = Memory::new(ctx.nic().ok(), attr.length, 1 << attr.log_align_req)?;
        let mut handles = ctx.shared.handles.lock();
        handles.last_dm += 1;
        let handle = handles.last_dm;
        handles.dms.insert(handle, memory.clone());
        Ok(Dm::create(context, handle, memory))
    })
}

/// `ibv_free_dm(3)`: EBUSY while a region lies upon it.
pub unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let this = unsafe { object::<Dm, _>(dm) }?;
        // SAFETY: fields that no thread writes; the context outlives its objects (ibv_close_device(3)).
        let (context, handle) = unsafe { ((*this.c.get()).context, (*this.c.get()).handle) };
        // SAFETY: as above.
        let ctx = unsafe { Context::of(context) }?;
        let mut handles = ctx.shared.handles.lock();
        // Regions hold the memory too; so do imports, which are told apart by being fewer than what is left.
        if Arc::strong_count(&this.memory) > 2 {
            return Err(Errno::EBUSY);
        }
        handles.dms.remove(&handle);
        drop(handles);
        // SAFETY: made by Box::into_raw; not used afterwards (man page).
        drop(unsafe { Box::from_raw(dm.cast::<Dm>()) });
        Ok(())
    })
}

/// `ibv_import_dm(3)`.
pub unsafe extern "C" fn ibv_import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    pointer(|| {
        // SAFETY: live or NULL (man page).
        let ctx = unsafe { Context::of(context) }?;
        ctx.nic()?;
        let memory = ctx.shared.handles.lock().dms.get(&handle).ok_or(Errno::ENOENT)?.clone();
        Ok(Dm::create(context, handle, memory))
    })
}

/// `ibv_unimport_dm(3)`: the memory itself stays.
pub unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    silent(|| {
        if !dm.is_null() {
            // SAFETY: made by Box::into_raw; not used afterwards (man page).
            drop(unsafe { Box::from_raw(dm.cast::<Dm>()) });
        }
    });
}

/// `ibv_memcpy_to_dm(3)`.
unsafe extern "C" fn memcpy_to_dm(dm: *mut ibv_dm, offset: u64, from: *const c_void, length: size_t) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let to = unsafe { object::<Dm, _>(dm) }?.memory.words(offset, length)?;
        // SAFETY: both sides have `length` bytes: the device memory was checked, the other is the caller's.
        unsafe { libc::memmove(to, from, length) };
        Ok(())
    })
}

/// `ibv_memcpy_from_dm(3)`.
unsafe extern "C" fn memcpy_from_dm(to: *mut c_void, dm: *mut ibv_dm, offset: u64, length: size_t) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let from = unsafe { object::<Dm, _>(dm) }?.memory.words(offset, length)?;
        // SAFETY: both sides have `length` bytes: the device memory was checked, the other is the caller's.
        unsafe { libc::memmove(to, from, length) };
        Ok(())
    })
}

/// `ibv_reg_dm_mr(3)`: always zero-based.
pub unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: size_t,
    access: c_uint,
) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: live or NULL (man page).
        let (domain, dm) = unsafe { (Pd::of(pd)?, object::<Dm, _>(dm)?) };
        let access = crate::mr::access(access)?;
        if !access.contains(Access::ZERO_BASED) || access.contains(Access::ON_DEMAND) {
            return Err(Errno::EINVAL);
        }
        let ctx = domain.context()?;
        // SAFETY: a field that no thread writes; a context outlives its objects (ibv_close_device(3)).
        if unsafe { Context::of((*dm.c.get()).context) }?.id() != ctx.id() {
            return Err(Errno::EINVAL);
        }
        let addr = dm.memory.range(offset, length)? as u64;
        let nic = ctx.nic()?;
        // Directly to the engine: there is no need to check that this memory exists. The region may be empty, as on
        // adapters.
        let (id, lkey, rkey) = nic.lock().reg_mr(domain.id, addr, length as u64, 0, access)?;
        let made = Made { id, lkey: lkey.0, rkey: rkey.0, addr: null_mut(), length };
        Mr::create(pd, made, Some(dm.memory.clone()))
    })
}
