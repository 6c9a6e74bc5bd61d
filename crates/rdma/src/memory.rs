//! Registered memory.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use sys::*;
use verbs::Access;

use crate::error::{Error, Result, pointer};
use crate::{Errno, Pd};

/// Whole pages from the system.
struct Pages {
    start: NonNull<u8>,
    mapped: usize,
}

impl Pages {
    fn new(len: usize) -> Result<Self> {
        let mapped = len.max(1).next_multiple_of(rustix::param::page_size());
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice. Populated, so that the first access by an adapter
        // does not pay for the pages.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, rights, MapFlags::PRIVATE | MapFlags::POPULATE) };
        match start {
            Ok(start) => Ok(Pages { start: NonNull::new(start.cast()).expect("not at address 0"), mapped }),
            Err(errno) => Err(Error::new("mmap", errno.raw_os_error())),
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping; whoever holds the Pages has deregistered it before.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.mapped) };
    }
}

/// A memory region, and the buffer that it registers: page-aligned, zeroed.
pub struct Mr {
    pd: Arc<Pd>,
    raw: NonNull<ibv_mr>,
    len: usize,
    // Dropped after the deregistration in `drop`, because fields are.
    pages: Arc<Pages>,
}

// SAFETY: a mapping is not tied to a thread; what is in it is reached by volatile and atomic operations only.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

// SAFETY: the buffer is reached by volatile and atomic operations only; verbs are thread-safe.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

/// A scatter/gather entry. Made by [`Mr::sge`]; plain numbers otherwise, which the adapter checks.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Sge(pub(crate) ibv_sge);

impl Sge {
    /// An entry with any content, for tests of what the adapter refuses.
    pub fn raw(addr: u64, length: u32, lkey: u32) -> Self {
        Sge(ibv_sge { addr, length, lkey })
    }

    /// Bytes.
    pub fn length(&self) -> u32 {
        self.0.length
    }
}

impl Pd {
    /// Allocates `len` bytes and registers them (`ibv_reg_mr(3)`).
    pub fn reg_mr(self: &Arc<Self>, len: usize, access: Access) -> Result<Arc<Mr>> {
        self.register(Arc::new(Pages::new(len)?), len, access)
    }

    /// Registers the buffer of another region once more: both show the same bytes, and each goes by itself.
    pub fn reg_mr_again(self: &Arc<Self>, other: &Mr, access: Access) -> Result<Arc<Mr>> {
        self.register(other.pages.clone(), other.len, access)
    }

    fn register(self: &Arc<Self>, pages: Arc<Pages>, len: usize, access: Access) -> Result<Arc<Mr>> {
        // SAFETY: a live domain and `len` bytes of memory that live until the region is deregistered.
        let raw = unsafe {
            (self.context.library().api.reg_mr)(
                self.raw.as_ptr(),
                pages.start.as_ptr().cast(),
                len,
                access.bits() as i32,
            )
        };
        Ok(Arc::new(Mr { pd: self.clone(), raw: pointer("ibv_reg_mr", raw)?, len, pages }))
    }

    /// `ibv_alloc_mw(3)`.
    pub fn alloc_mw(self: &Arc<Self>, kind: MwKind) -> Result<Arc<Mw>> {
        // SAFETY: the tables of a live context.
        let alloc = unsafe { (*self.context.raw()).ops.alloc_mw };
        let alloc = alloc.ok_or(Error { call: "ibv_alloc_mw", errno: Errno::EOPNOTSUPP })?;
        // SAFETY: a live domain.
        let raw = pointer("ibv_alloc_mw", unsafe { alloc(self.raw.as_ptr(), kind as ibv_mw_type) })?;
        Ok(Arc::new(Mw { pd: self.clone(), raw }))
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: a live region, deregistered once.
        let ret = unsafe { (self.pd.context.library().api.dereg_mr)(self.raw.as_ptr()) };
        if ret != 0 {
            // A window is still bound to it, so a peer may still write: the pages must stay.
            std::mem::forget(self.pages.clone());
        }
    }
}

impl Mr {
    pub(crate) fn as_ptr(&self) -> *mut ibv_mr {
        self.raw.as_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    pub fn addr(&self) -> u64 {
        self.pages.start.as_ptr() as u64
    }

    /// Key for this process's own requests.
    pub fn lkey(&self) -> u32 {
        // SAFETY: a live region; its key does not change.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    /// Key for peers.
    pub fn rkey(&self) -> u32 {
        // SAFETY: a live region; its key does not change.
        unsafe { (*self.raw.as_ptr()).rkey }
    }

    /// A scatter/gather entry for a part of it.
    ///
    /// # Panics
    /// If the part is not inside.
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        self.at(offset, len);
        Sge(ibv_sge { addr: self.addr() + offset as u64, length: len as u32, lkey: self.lkey() })
    }

    /// Address of a part, checked.
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{len} bytes at {offset} are not inside {} bytes", self.len);
        // SAFETY: inside the mapping.
        unsafe { self.pages.start.as_ptr().add(offset) }
    }

    /// Reads one byte; for polling.
    #[inline]
    pub fn load(&self, offset: usize) -> u8 {
        // SAFETY: inside the mapping; volatile because peers write there.
        unsafe { self.at(offset, 1).read_volatile() }
    }

    /// Writes one byte.
    #[inline]
    pub fn store(&self, offset: usize, byte: u8) {
        // SAFETY: inside the mapping; volatile because peers read there.
        unsafe { self.at(offset, 1).write_volatile(byte) }
    }

    /// The aligned 64-bit word at `offset`, in host order: what atomics work on.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        let at = self.at(offset, 8).cast::<AtomicU64>();
        assert!(at.is_aligned(), "offset {offset} is not a multiple of 8");
        // SAFETY: inside the mapping, aligned, lives as long as `self`; atomics may be shared with other writers.
        unsafe { &*at }
    }

    /// Copies out.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        let from = self.at(offset, out.len());
        // SAFETY: both are inside their memory; see `copy`.
        unsafe { copy(from, out.as_mut_ptr(), out.len()) }
    }

    /// Copies in.
    pub fn write(&self, offset: usize, data: &[u8]) {
        let to = self.at(offset, data.len());
        // SAFETY: both are inside their memory; see `copy`.
        unsafe { copy(data.as_ptr(), to, data.len()) }
    }
}

/// Copies by volatile words: the other side may touch one of the ranges at the same time.
///
/// # Safety
/// Both ranges are valid for `len` bytes and do not overlap.
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    let words = len / 8;
    // SAFETY: all accesses lie inside the ranges; unaligned words are allowed on the byte arrays of
    // `read_unaligned`, and aligned volatile access is used where both sides permit it.
    unsafe {
        let mut done = 0;
        if from.cast::<u64>().is_aligned() && to.cast::<u64>().is_aligned() {
            for i in 0..words {
                to.cast::<u64>().add(i).write_volatile(from.cast::<u64>().add(i).read_volatile());
            }
            done = words * 8;
        }
        for i in done..len {
            to.add(i).write_volatile(from.add(i).read_volatile());
        }
    }
    // What was read belongs to the completion that the caller saw before.
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// Type of a memory window (`enum ibv_mw_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum MwKind {
    /// Bound by `ibv_bind_mw(3)`, which chooses the key.
    Type1 = 1,
    /// Bound by a send work request that chooses the key.
    Type2 = 2,
}

/// A memory window.
pub struct Mw {
    pd: Arc<Pd>,
    raw: NonNull<ibv_mw>,
}

// SAFETY: verbs are thread-safe.
unsafe impl Send for Mw {}
// SAFETY: verbs are thread-safe.
unsafe impl Sync for Mw {}

impl Drop for Mw {
    fn drop(&mut self) {
        // SAFETY: the tables of a live context; it had alloc_mw, so it has this. The window is freed once.
        unsafe {
            if let Some(dealloc) = (*self.pd.context.raw()).ops.dealloc_mw {
                dealloc(self.raw.as_ptr());
            }
        }
    }
}

impl Mw {
    pub(crate) fn as_ptr(&self) -> *mut ibv_mw {
        self.raw.as_ptr()
    }

    /// Its key. A type 1 window gets a new one with every bind.
    pub fn rkey(&self) -> u32 {
        // SAFETY: a live window; volatile, for binding in another thread may change it.
        unsafe { (&raw const (*self.raw.as_ptr()).rkey).read_volatile() }
    }
}
