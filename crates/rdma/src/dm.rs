//! Memory of the device (`ibv_alloc_dm(3)`).

use std::mem::{size_of, zeroed};
use std::ptr::{NonNull, null};
use std::sync::Arc;

use sys::*;
use verbs::{Access, Errno};

use crate::device::extended;
use crate::error::{Error, Result, number, pointer};
use crate::memory::entry_length;
use crate::{Context, Pd, Sge};

/// Memory of the device. The processor reaches it by [`Dm::write`] and [`Dm::read`] only, requests reach it by regions
/// of [`Pd::reg_dm_mr`].
pub struct Dm {
    context: Arc<Context>,
    raw: NonNull<ibv_dm>,
    len: usize,
}

// SAFETY: verbs are thread-safe.
unsafe impl Send for Dm {}
// SAFETY: verbs are thread-safe.
unsafe impl Sync for Dm {}

impl Drop for Dm {
    fn drop(&mut self) {
        if let Some(free) = extended!(self.context.raw(), free_dm) {
            // SAFETY: live memory, freed once; every region of it holds it, so none remains.
            unsafe { free(self.raw.as_ptr()) };
        }
    }
}

impl Context {
    /// The bytes of device memory in all (`ibv_query_device_ex(3)`, `max_dm_size`); 0: the device has none.
    pub fn max_dm_size(&self) -> Result<u64> {
        let Some(query) = extended!(self.raw(), query_device_ex) else { return Ok(0) };
        // SAFETY: a live context and a structure of the stated size; zeroes are valid for it. An older library fills a
        // part.
        unsafe {
            let mut attr: ibv_device_attr_ex = zeroed();
            let ret = query(self.raw(), null(), &mut attr, size_of::<ibv_device_attr_ex>());
            match number("ibv_query_device_ex", ret) {
                // The header's function then asks ibv_query_device(3), which knows nothing of device memory.
                Err(Error { errno: Errno::EOPNOTSUPP | Errno(libc::ENOSYS), .. }) => Ok(0),
                other => other.map(|()| attr.max_dm_size),
            }
        }
    }

    /// `ibv_alloc_dm(3)`: `len` bytes, at a multiple of 2^`log_align`. Their content is undefined.
    ///
    /// EOPNOTSUPP: the device has none; ENOMEM: not so much.
    pub fn alloc_dm(self: &Arc<Self>, len: usize, log_align: u32) -> Result<Arc<Dm>> {
        const CALL: &str = "ibv_alloc_dm";
        let alloc = extended!(self.raw(), alloc_dm).ok_or(Error::new(CALL, libc::EOPNOTSUPP))?;
        let mut attr = ibv_alloc_dm_attr { length: len, log_align_req: log_align, comp_mask: 0 };
        // SAFETY: a live context and valid attributes.
        let raw = pointer(CALL, unsafe { alloc(self.raw(), &mut attr) })?;
        Ok(Arc::new(Dm { context: self.clone(), raw, len }))
    }
}

impl Dm {
    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Check that the part is inside; EINVAL if it is not.
    fn check(&self, call: &'static str, offset: usize, len: usize) -> Result<()> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if inside { Ok(()) } else { Err(Error::new(call, libc::EINVAL)) }
    }

    /// Copy bytes into the memory (`ibv_memcpy_to_dm(3)`). Devices may want offset and length to be multiples of 4;
    /// EINVAL if they are not, or if the part is not inside.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<()> {
        const CALL: &str = "ibv_memcpy_to_dm";
        self.check(CALL, offset, data.len())?;
        // SAFETY: live memory, whose functions do not change.
        let copy = unsafe { (*self.raw.as_ptr()).memcpy_to_dm }.ok_or(Error::new(CALL, libc::EOPNOTSUPP))?;
        // SAFETY: live memory; the part is inside, and the bytes are borrowed.
        number(CALL, unsafe { copy(self.raw.as_ptr(), offset as u64, data.as_ptr().cast(), data.len()) })
    }

    /// Copy bytes out of the memory (`ibv_memcpy_from_dm(3)`); the rules of [`Dm::write`] hold.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        const CALL: &str = "ibv_memcpy_from_dm";
        self.check(CALL, offset, out.len())?;
        // SAFETY: live memory, whose functions do not change.
        let copy = unsafe { (*self.raw.as_ptr()).memcpy_from_dm }.ok_or(Error::new(CALL, libc::EOPNOTSUPP))?;
        // SAFETY: live memory; the part is inside, and the bytes are borrowed.
        number(CALL, unsafe { copy(out.as_mut_ptr().cast(), self.raw.as_ptr(), offset as u64, out.len()) })
    }
}

/// A region over device memory. Addresses in it are offsets from its first byte, for this process and for peers.
pub struct DmMr {
    pd: Arc<Pd>,
    raw: NonNull<ibv_mr>,
    len: usize,
    // Freed after the deregistration in `drop`, because fields are dropped then.
    dm: Arc<Dm>,
}

// SAFETY: verbs are thread-safe.
unsafe impl Send for DmMr {}
// SAFETY: verbs are thread-safe.
unsafe impl Sync for DmMr {}

impl Drop for DmMr {
    fn drop(&mut self) {
        // SAFETY: a live region, deregistered once; no window can be bound to it.
        unsafe { (self.pd.context.library().api.dereg_mr)(self.raw.as_ptr()) };
    }
}

impl Pd {
    /// Register a part of device memory (`ibv_reg_dm_mr(3)`), with ZERO_BASED added, which the function requires.
    ///
    /// EINVAL: the part is not inside, or the memory is another device's.
    pub fn reg_dm_mr(self: &Arc<Self>, dm: &Arc<Dm>, offset: usize, len: usize, access: Access) -> Result<Arc<DmMr>> {
        const CALL: &str = "ibv_reg_dm_mr";
        dm.check(CALL, offset, len)?;
        if self.context.raw() != dm.context.raw() {
            return Err(Error::new(CALL, libc::EINVAL));
        }
        let reg = extended!(self.context.raw(), reg_dm_mr).ok_or(Error::new(CALL, libc::EOPNOTSUPP))?;
        let access = (access | Access::ZERO_BASED).bits();
        // SAFETY: a live domain and live memory of the same context; the region holds both.
        let raw = pointer(CALL, unsafe { reg(self.raw.as_ptr(), dm.raw.as_ptr(), offset as u64, len, access) })?;
        Ok(Arc::new(DmMr { pd: self.clone(), raw, len, dm: dm.clone() }))
    }
}

impl DmMr {
    /// The memory below it.
    pub fn dm(&self) -> &Arc<Dm> {
        &self.dm
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The key for this process's own requests.
    pub fn lkey(&self) -> u32 {
        // SAFETY: a live region; its key does not change.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    /// The key for peers, whose remote address is the offset.
    pub fn rkey(&self) -> u32 {
        // SAFETY: a live region; its key does not change.
        unsafe { (*self.raw.as_ptr()).rkey }
    }

    /// A scatter/gather entry for a part of it.
    ///
    /// # Panics
    /// If the part is not inside, or is longer than an entry can say (4 GiB - 1).
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(inside, "{len} bytes at {offset} are not inside {} bytes", self.len);
        Sge(ibv_sge { addr: offset as u64, length: entry_length(len), lkey: self.lkey() })
    }
}
