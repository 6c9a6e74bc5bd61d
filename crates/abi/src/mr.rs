//! Memory regions.

use core::cell::UnsafeCell;
use core::ptr::null_mut;
use std::sync::Arc;

use libc::{c_int, c_uint, c_void, size_t};
use sys::{ibv_context, ibv_mr, ibv_mr_init_attr, ibv_pd, ibv_sge};
use verbs::{Access, Errno, MrId, Result};

use crate::buf;
use crate::context::Context;
use crate::dm::Memory;
use crate::entry::{Handled, argument, looked_up, number, object, pointer, set_errno, shielded, silent};
use crate::pd::Pd;

/// A memory region.
#[repr(C)]
pub struct Mr {
    c: UnsafeCell<ibv_mr>,
    /// The engine's id.
    pub id: MrId,
    /// The context in which it was made. The program may write the one in the C structure.
    home: *mut ibv_context,
    /// The device memory below it, kept as long as the region is.
    _memory: Option<Arc<Memory>>,
    /// True if it was made by `ibv_import_mr`: its protection domain does not count it.
    imported: bool,
}

/// The result of a registration.
pub struct Made {
    /// The engine's id.
    pub id: MrId,
    /// The local key.
    pub lkey: u32,
    /// The remote key.
    pub rkey: u32,
    /// The start, as the program gave it.
    pub addr: *mut c_void,
    /// The length, in bytes.
    pub length: usize,
}

impl Handled for Mr {
    fn is_itself(&self) -> bool {
        // SAFETY: our structure; the field is the program's to write, between its calls.
        unsafe { (*self.c.get()).handle == self.id.index }
    }

    fn is_at_home(&self) -> bool {
        // SAFETY: our structure; contexts outlive their objects, and one that the program has put there is live
        // (ibv_close_device(3)).
        unsafe { Context::of(self.home).is_ok_and(|home| home.shares((*self.c.get()).context)) }
    }
}

impl Mr {
    /// Make the C structure for a region that was just registered.
    pub fn create(pd: *mut ibv_pd, made: Made, memory: Option<Arc<Memory>>) -> Result<*mut ibv_mr> {
        // SAFETY: live: the registration used it.
        let domain = unsafe { object::<Pd, _>(pd) }?;
        let context = domain.context()?;
        domain.hold();
        let entry = (made.id, made.lkey, made.rkey, made.length);
        context.shared.handles.lock().mrs.insert(made.id.index, entry);
        Ok(Self::wrap(pd, context, made, memory, false))
    }

    fn wrap(
        pd: *mut ibv_pd,
        context: &Context,
        made: Made,
        memory: Option<Arc<Memory>>,
        imported: bool,
    ) -> *mut ibv_mr {
        let c = UnsafeCell::new(ibv_mr {
            context: context.c(),
            pd,
            addr: made.addr,
            length: made.length,
            handle: made.id.index,
            lkey: made.lkey,
            rkey: made.rkey,
        });
        Box::into_raw(Box::new(Mr { c, id: made.id, home: context.c(), _memory: memory, imported })).cast()
    }

    pub(crate) fn context(&self) -> Result<&Context> {
        // SAFETY: a field that no thread writes; a context outlives its objects (ibv_close_device(3)).
        unsafe { Context::of((*self.c.get()).context) }
    }
}

/// The rights in `access`. Unknown bits of the optional range are ignored, which is what makes them optional; other
/// unknown bits are EINVAL.
pub fn access(access: c_uint) -> Result<Access> {
    let known = access & !(sys::IBV_ACCESS_OPTIONAL_RANGE & !Access::all().bits());
    Access::from_bits(known).ok_or(Errno::EINVAL)
}

fn register(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, rights: c_uint) -> Result<*mut ibv_mr> {
    // SAFETY: live or NULL (man page).
    let domain = unsafe { Pd::of(pd) }?;
    let nic = domain.context()?.nic()?;
    let rights = access(rights)?;
    if length == usize::MAX && (!rights.contains(Access::ON_DEMAND) || !addr.is_null()) {
        return Err(Errno::EINVAL);
    }
    if rights.contains(Access::HUGETLB) && !rights.contains(Access::ON_DEMAND) {
        return Err(Errno::EINVAL);
    }
    let (id, lkey, rkey) = nic.reg_mr(domain.id, addr as u64, length as u64, iova, rights)?;
    Mr::create(pd, Made { id, lkey: lkey.0, rkey: rkey.0, addr, length }, None)
}

/// `ibv_reg_mr(3)`.
pub unsafe extern "C" fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: size_t, access: c_int) -> *mut ibv_mr {
    pointer(|| register(pd, addr, length, addr as u64, access as c_uint))
}

/// `ibv_reg_mr_iova(3)`.
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    pointer(|| register(pd, addr, length, iova, access as c_uint))
}

/// `ibv_reg_mr` and `ibv_reg_mr_iova` as the header calls them when optional access flags may be set.
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    pointer(|| register(pd, addr, length, iova, access))
}

/// `ibv_reg_mr_ex(3)`. EOPNOTSUPP for a dma-buf or a DMA handle.
pub unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    const IOVA: u64 = sys::IBV_REG_MR_MASK_IOVA as u64;
    const ADDR: u64 = sys::IBV_REG_MR_MASK_ADDR as u64;
    const FD: u64 = (sys::IBV_REG_MR_MASK_FD | sys::IBV_REG_MR_MASK_FD_OFFSET) as u64;
    const DMAH: u64 = sys::IBV_REG_MR_MASK_DMAH as u64;
    const BUF: u64 = sys::IBV_REG_MR_MASK_BUF as u64;
    pointer(|| {
        // SAFETY: the caller's structure or NULL. The newest member lies behind the others and is read only when its
        // mask bit says that the caller's header has it.
        let attr = if attr.is_null() { return Err(Errno::EINVAL) } else { attr };
        // SAFETY: as above.
        let (mask, length, rights, addr) = unsafe { ((*attr).comp_mask, (*attr).length, (*attr).access, (*attr).addr) };
        if mask & !(IOVA | ADDR | FD | DMAH | BUF) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if mask & FD != 0 && mask & (ADDR | BUF) != 0 || mask & (FD | ADDR) == 0 {
            return Err(Errno::EINVAL);
        }
        if mask & (FD | DMAH) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: as above.
        let iova = if mask & IOVA != 0 { unsafe { (*attr).iova } } else { addr as u64 };
        if mask & BUF != 0 {
            // SAFETY: as above; the handle is live (man page).
            unsafe { buf::check((*attr).buf, pd, addr, length) }?;
        }
        register(pd, addr, length, iova, rights as c_uint)
    })
}

/// `ibv_alloc_null_mr(3)`: its lkey discards what is written and reads as zeros.
pub unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: live or NULL (man page).
        let domain = unsafe { Pd::of(pd) }?;
        let (id, lkey) = domain.context()?.nic()?.lock().reg_null_mr(domain.id)?;
        Mr::create(pd, Made { id, lkey: lkey.0, rkey: 0, addr: null_mut(), length: 0 }, None)
    })
}

/// `ibv_rereg_mr(3)`: IBV_REREG_MR_ERR_INPUT leaves the region as it was; after IBV_REREG_MR_ERR_CMD it must not be
/// used.
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    rights: c_int,
) -> c_int {
    let flags = flags as c_uint;
    let checked = shielded(|| {
        // SAFETY: live or NULL (man page).
        let this = unsafe { looked_up::<Mr, _>(mr) }?;
        let nic = this.context()?.nic()?;
        if flags == 0 || flags & !sys::IBV_REREG_MR_FLAGS_SUPPORTED != 0 {
            return Err(Errno::EINVAL);
        }
        let translation =
            (flags & sys::IBV_REREG_MR_CHANGE_TRANSLATION != 0).then_some((addr as u64, length as u64, addr as u64));
        if translation.is_some() && (addr.is_null() || length == 0) {
            return Err(Errno::EINVAL);
        }
        let domain = if flags & sys::IBV_REREG_MR_CHANGE_PD != 0 {
            // SAFETY: live or NULL (man page).
            Some(unsafe { Pd::argument(pd) }?)
        } else {
            None
        };
        let rights = if flags & sys::IBV_REREG_MR_CHANGE_ACCESS != 0 { Some(access(rights as c_uint)?) } else { None };
        Ok((this, nic, translation, domain, rights))
    });
    let (this, nic, translation, domain, rights) = match checked {
        Ok(all) => all,
        Err(errno) => {
            set_errno(errno);
            return sys::IBV_REREG_MR_ERR_INPUT;
        }
    };
    let done = shielded(|| {
        let (lkey, rkey) = nic.rereg_mr(this.id, translation, domain.map(|d| d.id), rights)?;
        // SAFETY: the program changes a region from one thread at a time; the domains are live.
        unsafe {
            let c = this.c.get();
            ((*c).lkey, (*c).rkey) = (lkey.0, rkey.0);
            if translation.is_some() {
                ((*c).addr, (*c).length) = (addr, length);
            }
            if let Some(domain) = domain {
                if !this.imported {
                    domain.hold();
                    Pd::release((*c).pd);
                }
                (*c).pd = pd;
            }
            let entry = (this.id, lkey.0, rkey.0, (*c).length);
            this.context()?.shared.handles.lock().mrs.insert(this.id.index, entry);
        }
        Ok(())
    });
    match done {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            sys::IBV_REREG_MR_ERR_CMD
        }
    }
}

/// `ibv_dereg_mr(3)`: EBUSY while windows are bound to it.
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let this = unsafe { looked_up::<Mr, _>(mr) }?;
        let context = this.context()?;
        context.nic()?.dereg_mr(this.id)?;
        context.shared.handles.lock().mrs.remove(&this.id.index);
        if !this.imported {
            // SAFETY: held at registration.
            unsafe { Pd::release((*this.c.get()).pd) };
        }
        // SAFETY: made by Box::into_raw; not used afterwards (man page).
        drop(unsafe { Box::from_raw(mr.cast::<Mr>()) });
        Ok(())
    })
}

/// `ibv_import_mr(3)`: `addr` is NULL, as the man page says. ENOENT for an unknown handle.
pub unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: live or NULL (man page).
        let domain = unsafe { Pd::of(pd) }?;
        let context = domain.context()?;
        context.nic()?;
        let (id, lkey, rkey, length) = *context.shared.handles.lock().mrs.get(&handle).ok_or(Errno::ENOENT)?;
        Ok(Mr::wrap(pd, context, Made { id, lkey, rkey, addr: null_mut(), length }, None, true))
    })
}

/// `ibv_unimport_mr(3)`: the region itself stays.
pub unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    silent(|| {
        if !mr.is_null() {
            // SAFETY: made by Box::into_raw; not used afterwards (man page).
            drop(unsafe { Box::from_raw(mr.cast::<Mr>()) });
        }
    });
}

/// `ibv_advise_mr(3)`. The pages of an on-demand region are found when they are needed, and they are the process's own,
/// so a prefetch only says whether the range could be used.
pub unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: sys::ibv_advise_mr_advice,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let domain = unsafe { Pd::of(pd) }?;
        let core = domain.context()?.nic()?.lock();
        let write = match advice {
            sys::IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => true,
            sys::IBV_ADVISE_MR_ADVICE_PREFETCH | sys::IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => false,
            _ => return Err(Errno(libc::ENOTSUP)),
        };
        if flags & !sys::IBV_ADVISE_MR_FLAG_FLUSH != 0 || count == 0 {
            return Err(Errno::EINVAL);
        }
        for i in 0..count as usize {
            // SAFETY: the caller's array of `count` entries, or NULL.
            let sge = unsafe { argument(list.wrapping_add(if list.is_null() { 0 } else { i })) }?;
            let mr = core.find_mr(sge.lkey).and_then(|id| core.mr_info(id)).ok_or(Errno::EFAULT)?;
            let inside = sge.addr >= mr.iova
                && sge.addr.checked_add(sge.length.into()).is_some_and(|end| end - mr.iova <= mr.length);
            if mr.key != sge.lkey {
                return Err(Errno::ENOENT);
            } else if mr.pd != domain.id || (write && !mr.access.contains(Access::LOCAL_WRITE)) {
                return Err(Errno::EPERM);
            } else if !mr.access.contains(Access::ON_DEMAND) {
                return Err(Errno::EINVAL);
            } else if !inside {
                return Err(Errno::EFAULT);
            }
        }
        Ok(())
    })
}
