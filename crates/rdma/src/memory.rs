//! Registered memory.

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use sys::*;
use verbs::Access;

use crate::error::{Error, Result, number, pointer};
use crate::pages::Pages;
use crate::{Errno, Pd};

/// What [`Mr::catch_faults`] gives a handler: `softrnic_dv_fault`.
pub type FaultAnswer = unsafe extern "C" fn(*mut c_void) -> c_int;

/// A memory region.
///
/// [`Pd::reg_mr`] makes one with a buffer of its own: page-aligned, zeroed. [`Pd::reg_mr_caller`] makes one over memory
/// that the caller owns.
pub struct Mr {
    pd: Arc<Pd>,
    raw: NonNull<ibv_mr>,
    start: NonNull<u8>,
    len: usize,
    writable: bool,
    // Dropped after the deregistration in `drop`, because fields are. None: the memory is the caller's.
    pages: Option<Arc<Pages>>,
}

// SAFETY: the bytes are reached by volatile and atomic operations only, and live as long as the region (they are its
// own, or it is the contract of `reg_mr_caller`); verbs are thread-safe.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

/// A scatter/gather entry. [`Mr::sge`] makes one; it is only numbers, which the adapter checks.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Sge(pub(crate) ibv_sge);

impl Sge {
    /// An entry with any content, for tests of what the adapter refuses.
    pub fn raw(addr: u64, length: u32, lkey: u32) -> Self {
        Sge(ibv_sge { addr, length, lkey })
    }

    /// The number of bytes.
    pub fn length(&self) -> u32 {
        self.0.length
    }
}

impl Pd {
    /// Allocate `len` bytes and register them (`ibv_reg_mr(3)`).
    pub fn reg_mr(self: &Arc<Self>, len: usize, access: Access) -> Result<Arc<Mr>> {
        self.register_pages(Arc::new(Pages::new(len)?), len, access)
    }

    /// As [`Pd::reg_mr`], in memory that peers of the same host map too, if the device has such memory (that of
    /// softrnic has: `softrnic/dv.h`) and some is left: a WRITE or READ of theirs is then a copy in memory. Otherwise
    /// it is ordinary memory.
    pub fn reg_mr_mapped(self: &Arc<Self>, len: usize, access: Access) -> Result<Arc<Mr>> {
        let pages = Pages::mapped_by_peers(&self.context, len).map_or_else(|| Pages::new(len), Ok)?;
        self.register_pages(Arc::new(pages), len, access)
    }

    /// Map the first `len` bytes of a file, shared, and register them (`ibv_reg_mr(3)`): what peers write is in the
    /// file, for all processes that read or map it. If the file becomes shorter, an access ends the process (SIGBUS,
    /// `mmap(2)`).
    ///
    /// EINVAL: the file has fewer bytes.
    pub fn reg_mr_file(self: &Arc<Self>, file: BorrowedFd<'_>, len: usize, access: Access) -> Result<Arc<Mr>> {
        let stat = rustix::fs::fstat(file).map_err(|errno| Error::new("fstat", errno.raw_os_error()))?;
        if u64::try_from(stat.st_size).unwrap_or(0) < len as u64 {
            return Err(Error::new("ibv_reg_mr", libc::EINVAL));
        }
        self.register_pages(Arc::new(Pages::of_file(file, len)?), len, access)
    }

    /// Register the buffer of another region once more: both regions have the same bytes, and each ends by itself.
    ///
    /// EINVAL: the other region lies over memory of the caller, which [`Pd::reg_mr_caller`] may register again.
    pub fn reg_mr_again(self: &Arc<Self>, other: &Mr, access: Access) -> Result<Arc<Mr>> {
        let pages = other.pages.clone().ok_or(Error::new("ibv_reg_mr", libc::EINVAL))?;
        self.register_pages(pages, other.len, access)
    }

    fn register_pages(self: &Arc<Self>, pages: Arc<Pages>, len: usize, access: Access) -> Result<Arc<Mr>> {
        let start = pages.start();
        // SAFETY: the region holds the pages, which nothing but regions uses.
        unsafe { self.register(start, len, access, true, Some(pages)) }
    }

    /// Register `len` bytes at `start` that the caller owns (`ibv_reg_mr(3)`). Neither address nor length needs an
    /// alignment.
    ///
    /// With [`Access::LOCAL_WRITE`] the memory is written by the adapter, by peers with the key, and by the methods of
    /// [`Mr`]. Without it, nothing writes, and those methods of [`Mr`] that write, and [`Mr::word`], panic.
    ///
    /// ```no_run
    /// # use std::{cell::UnsafeCell, ptr::NonNull, sync::Arc};
    /// # use rdma::{Access, Mr, Pd, Result};
    /// /// A buffer that is deregistered before it is freed: fields are dropped in the order of their declaration.
    /// struct Buffer {
    ///     mr: Arc<Mr>,
    ///     bytes: Box<[UnsafeCell<u8>]>,
    /// }
    ///
    /// fn buffer(pd: &Arc<Pd>, len: usize) -> Result<Buffer> {
    ///     let bytes: Box<[UnsafeCell<u8>]> = (0..len).map(|_| UnsafeCell::new(0)).collect();
    ///     let start = NonNull::from(&*bytes).cast::<u8>();
    ///     // SAFETY: `mr` is private and never cloned, so the region ends before the bytes are freed; no window is
    ///     // bound to it. The bytes are initialised, and cells, to whose content nothing makes a reference.
    ///     let mr = unsafe { pd.reg_mr_caller(start, len, Access::LOCAL_WRITE) }?;
    ///     Ok(Buffer { mr, bytes })
    /// }
    /// ```
    ///
    /// # Safety
    /// The region ends when its last [`Arc`] is dropped without a window bound to it, or when [`Mr::deregister`]
    /// succeeds. Until then:
    ///
    /// * Lifetime. The `len` bytes at `start` stay mapped and initialised, at the same address. They are not freed,
    ///   unmapped, moved or returned to an allocator, also not by unwinding. `std::mem::forget` of the region must not
    ///   end the promise: a region that is forgotten is registered for ever.
    /// * Rights. `start` is valid for reads of `len` bytes, and with LOCAL_WRITE for writes. `ibv_reg_mr(3)` requires
    ///   LOCAL_WRITE for REMOTE_WRITE and REMOTE_ATOMIC.
    /// * Aliasing. With LOCAL_WRITE the bytes change at any time, by requests of this process and of peers, and by
    ///   [`Mr::write`], all of which are safe to call. So no `&mut` reference, and no `&` reference except to cells or
    ///   atomics, is used for them while any of these may happen, and `start` is not derived from a reference that is
    ///   used later. Without LOCAL_WRITE the bytes are read at any time: `&` references are allowed, writes are not.
    ///   References are allowed whenever the caller knows that nothing writes (for `&`) or accesses (for `&mut`) the
    ///   bytes meanwhile: no request that names them is outstanding, no peer has a key, no other code has the region.
    ///   Accesses of the caller itself that may coincide with others are volatile or atomic.
    /// * Fork. A child of fork(2) does not use the region, and `ibv_fork_init(3)` has its say about the pages.
    pub unsafe fn reg_mr_caller(self: &Arc<Self>, start: NonNull<u8>, len: usize, access: Access) -> Result<Arc<Mr>> {
        // SAFETY: the caller's promise.
        unsafe { self.register(start, len, access, access.contains(Access::LOCAL_WRITE), None) }
    }

    /// # Safety
    /// `len` bytes at `start` that are valid until the region is deregistered, for writes if `writable`, and that
    /// `pages` holds, or the contract of [`Pd::reg_mr_caller`].
    unsafe fn register(
        self: &Arc<Self>,
        start: NonNull<u8>,
        len: usize,
        access: Access,
        writable: bool,
        pages: Option<Arc<Pages>>,
    ) -> Result<Arc<Mr>> {
        let reg_mr = self.context.library().api.reg_mr;
        // SAFETY: a live domain and `len` bytes of memory that live until the region is deregistered.
        let raw = unsafe { reg_mr(self.raw.as_ptr(), start.as_ptr().cast(), len, access.bits() as i32) };
        Ok(Arc::new(Mr { pd: self.clone(), raw: pointer("ibv_reg_mr", raw)?, start, len, writable, pages }))
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
    /// End the region (`ibv_dereg_mr(3)`): after `Ok`, nothing accesses its memory any more. An error gives the region
    /// back.
    ///
    /// EBUSY: the region has other holders, or (from the library) a window is bound to it.
    pub fn deregister(mr: Arc<Mr>) -> std::result::Result<(), (Arc<Mr>, Error)> {
        const CALL: &str = "ibv_dereg_mr";
        let mr = Arc::try_unwrap(mr).map_err(|mr| (mr, Error::new(CALL, libc::EBUSY)))?;
        // SAFETY: a live region, deregistered once: on success its destructor does not run.
        let ret = unsafe { (mr.pd.context.library().api.dereg_mr)(mr.raw.as_ptr()) };
        if let Err(error) = number(CALL, ret) {
            return Err((Arc::new(mr), error));
        }
        let mr = ManuallyDrop::new(mr);
        // SAFETY: the fields are taken once, out of a value that is not dropped.
        drop(unsafe { (std::ptr::read(&mr.pages), std::ptr::read(&mr.pd)) });
        Ok(())
    }

    /// For memory that the caller may unmap, in a program with a handler of SIGSEGV and SIGBUS: have an access to
    /// memory that is gone end its request, without a system call for small copies (`softrnic_dv_catch_faults`).
    /// `install` has the handler call this function with its third argument: 1 says that a copy of the device has
    /// faulted, and nothing is left to be done. False: the device does not; `install` may have been called.
    pub fn catch_faults(&self, install: impl FnOnce(FaultAnswer)) -> bool {
        let Some(faults) = &self.pd.context.library().faults else { return false };
        install(faults.fault);
        // SAFETY: a live region.
        unsafe { (faults.catch)(self.raw.as_ptr()) == 0 }
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_mr {
        self.raw.as_ptr()
    }

    /// True if it has memory of [`Pd::reg_mr_mapped`] that is not ordinary.
    pub fn is_mapped(&self) -> bool {
        self.pages.as_ref().is_some_and(|pages| pages.is_the_devices())
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte.
    pub fn addr(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// The key for this process's own requests.
    pub fn lkey(&self) -> u32 {
        // SAFETY: a live region; its key does not change.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    /// The key for peers.
    pub fn rkey(&self) -> u32 {
        // SAFETY: a live region; its key does not change.
        unsafe { (*self.raw.as_ptr()).rkey }
    }

    /// A scatter/gather entry for a part of it.
    ///
    /// # Panics
    /// If the part is not inside, or is longer than an entry can say (4 GiB - 1).
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        self.at(offset, len);
        Sge(ibv_sge { addr: self.addr() + offset as u64, length: entry_length(len), lkey: self.lkey() })
    }

    /// The address of a part, checked.
    #[inline(always)]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            outside(offset, len, self.len);
        }
        // SAFETY: inside the region.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// The address of a part that is going to be written, checked.
    #[inline(always)]
    fn at_mut(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(self.writable, "the region was registered for reading only");
        self.at(offset, len)
    }

    /// Read one byte; for polling.
    #[inline]
    pub fn load(&self, offset: usize) -> u8 {
        // SAFETY: inside the region; volatile because peers write there.
        unsafe { self.at(offset, 1).read_volatile() }
    }

    /// Write one byte.
    ///
    /// # Panics
    /// If it is not inside, or the region is over memory of the caller and without LOCAL_WRITE. All methods
    /// that write panic so.
    #[inline]
    pub fn store(&self, offset: usize, byte: u8) {
        // SAFETY: inside the region, which is writable; volatile because peers read there.
        unsafe { self.at_mut(offset, 1).write_volatile(byte) }
    }

    /// The aligned 64-bit word at `offset`, in host order, as atomics use it.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        let at = self.at_mut(offset, 8).cast::<AtomicU64>();
        assert!(at.is_aligned(), "the address at offset {offset} is not a multiple of 8");
        // SAFETY: inside the region, which is writable, aligned, lives as long as `self`; atomics may be shared with
        // other writers.
        unsafe { &*at }
    }

    /// Copy bytes out of the region.
    #[inline(always)]
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        let from = self.at(offset, out.len());
        // SAFETY: both are inside their memory; see `copy`.
        unsafe { copy(from, out.as_mut_ptr(), out.len()) }
    }

    /// The `N` bytes at `offset`.
    #[inline(always)]
    pub fn read_array<const N: usize>(&self, offset: usize) -> [u8; N] {
        let from = self.at(offset, N).cast_const();
        let mut out = [0; N];
        // The bytes belong to the completion that the caller saw before.
        fence(Ordering::Acquire);
        let (words, rest) = out.as_chunks_mut::<8>();
        let bytes = words.len() * 8;
        for (i, word) in words.iter_mut().enumerate() {
            // SAFETY: inside the region; volatile because peers write there. A packed word may lie at any address.
            *word = unsafe { from.cast::<Word>().add(i).read_volatile() }.0.to_ne_bytes();
        }
        for (i, byte) in rest.iter_mut().enumerate() {
            // SAFETY: as above.
            *byte = unsafe { from.add(bytes + i).read_volatile() };
        }
        // What is posted next may give the place to a peer.
        fence(Ordering::Release);
        out
    }

    /// Copy `len` bytes from `offset` of this region to `to_offset` of another one. If the two parts overlap, any
    /// mixture of both may come out.
    #[inline(always)]
    pub fn copy_to(&self, offset: usize, to: &Mr, to_offset: usize, len: usize) {
        let (from, to) = (self.at(offset, len), to.at_mut(to_offset, len));
        // SAFETY: both are inside their memory; see `copy`.
        unsafe { copy(from, to, len) }
    }

    /// Copy bytes into the region.
    pub fn write(&self, offset: usize, data: &[u8]) {
        let to = self.at_mut(offset, data.len());
        // SAFETY: both are inside their memory; see `copy`.
        unsafe { copy(data.as_ptr(), to, data.len()) }
    }
}

/// A length for a scatter/gather entry.
///
/// # Panics
/// If it is longer than an entry can say (4 GiB - 1).
pub(crate) fn entry_length(len: usize) -> u32 {
    u32::try_from(len).unwrap_or_else(|_| panic!("{len} bytes are more than an entry can have"))
}

/// The end of a program that reaches beyond a region. The numbers come in registers.
#[cold]
#[inline(never)]
#[track_caller]
fn outside(offset: usize, len: usize, have: usize) -> ! {
    panic!("{len} bytes at {offset} are not inside {have} bytes")
}

/// A word at any address.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Word(u64);

/// From here on the C library's copy is faster than one by words.
const LONG: usize = 256;

/// Copy by volatile words, or by the C library, whose code the compiler does not see: the other side may touch one of
/// the ranges at the same time.
///
/// # Safety
/// Both ranges are valid for `len` bytes.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // The bytes belong to the completion that the caller saw before.
    fence(Ordering::Acquire);
    let words = if len < LONG { len / 8 } else { 0 };
    if len >= LONG {
        // SAFETY: the caller's promise.
        unsafe { libc::memmove(to.cast(), from.cast(), len) };
        fence(Ordering::Release);
        return;
    }
    // SAFETY: all accesses lie inside the ranges, and a packed word may lie at any address.
    unsafe {
        if (8..=16).contains(&len) {
            // The first word and the last one, which may overlap.
            let last = len - 8;
            let ends = (from.cast::<Word>().read_volatile(), from.add(last).cast::<Word>().read_volatile());
            to.cast::<Word>().write_volatile(ends.0);
            to.add(last).cast::<Word>().write_volatile(ends.1);
            fence(Ordering::Release);
            return;
        }
        for i in 0..words {
            to.cast::<Word>().add(i).write_volatile(from.cast::<Word>().add(i).read_volatile());
        }
        for i in words * 8..len {
            to.add(i).write_volatile(from.add(i).read_volatile());
        }
    }
    // What is posted or stored next says that the bytes are there.
    fence(Ordering::Release);
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

    /// The key of the window. A type 1 window gets a new one with every bind.
    pub fn rkey(&self) -> u32 {
        // SAFETY: a live window; volatile, for binding in another thread may change it.
        unsafe { (&raw const (*self.raw.as_ptr()).rkey).read_volatile() }
    }
}
