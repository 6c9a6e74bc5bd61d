//! Protection domains, thread domains, and parent domains, which join the two.

use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;
use sys::{ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use verbs::{CtxId, Errno, PdId, Result};

use crate::context::Context;
use crate::entry::{Handled, argument, by_handle, looked_up, number, object, pointer, silent};

/// A protection domain, or a parent domain around one.
#[repr(C)]
pub struct Pd {
    c: ibv_pd,
    /// The engine's id.
    pub id: PdId,
    /// The context in which it was made. The program may write the one in the C structure.
    home: *mut ibv_context,
    /// The number of objects and parent domains that were made with this very structure.
    users: AtomicU32,
    /// The domains that a parent domain joins.
    joined: Option<Joined>,
}

struct Joined {
    pd: *const Pd,
    td: *const Td,
}

/// A thread domain: the program's promise that one thread at a time uses the objects made with it. The device needs no
/// such promise; only the objects' life is counted.
#[repr(C)]
pub struct Td {
    c: UnsafeCell<ibv_td>,
    /// The context in which it was made.
    home: CtxId,
    users: AtomicU32,
}

impl Handled for Pd {
    fn is_itself(&self) -> bool {
        self.c.handle == self.id.index
    }

    fn is_at_home(&self) -> bool {
        // SAFETY: our structure; contexts outlive their objects, and one that the program has put there is live
        // (ibv_close_device(3)).
        unsafe { Context::of(self.home).is_ok_and(|home| home.shares(self.c.context)) }
    }
}

impl Pd {
    fn create(context: *mut ibv_context, id: PdId, joined: Option<Joined>) -> *mut ibv_pd {
        let c = ibv_pd { context, handle: id.index };
        Box::into_raw(Box::new(Pd { c, id, home: context, users: AtomicU32::new(0), joined })).cast()
    }

    /// The domain behind a pointer of the program; ENOENT if its handle or its context was changed.
    ///
    /// # Safety
    /// `pd` is NULL or live.
    pub unsafe fn of<'a>(pd: *mut ibv_pd) -> Result<&'a Pd> {
        // SAFETY: the caller's promise; a Pd begins with its ibv_pd.
        unsafe { looked_up::<Pd, _>(pd) }
    }

    /// [`Pd::of`] for an argument of a call that is about another object.
    ///
    /// # Safety
    /// As [`Pd::of`].
    pub unsafe fn argument<'a>(pd: *mut ibv_pd) -> Result<&'a Pd> {
        // SAFETY: the caller's promise; as above.
        unsafe { by_handle::<Pd, _>(pd) }
    }

    /// The context that the domain belongs to.
    pub fn context(&self) -> Result<&Context> {
        // SAFETY: a context outlives its objects (ibv_close_device(3)).
        unsafe { Context::of(self.c.context) }
    }

    /// Count an object that was made with the domain.
    pub fn hold(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// Uncount an object.
    ///
    /// # Safety
    /// `pd` is live: it was held.
    pub unsafe fn release(pd: *mut ibv_pd) {
        // SAFETY: the caller's promise.
        if let Ok(pd) = unsafe { object::<Pd, _>(pd) } {
            pd.users.fetch_sub(1, Ordering::Release);
        }
    }
}

/// `ibv_alloc_pd(3)`.
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    pointer(|| {
        // SAFETY: live or NULL (man page).
        let ctx = unsafe { Context::of(context) }?;
        let id = ctx.nic()?.lock().alloc_pd(ctx.id())?;
        ctx.shared.handles.lock().pds.insert(id.index, id);
        Ok(Pd::create(context, id, None))
    })
}

/// `ibv_dealloc_pd(3)`, for parent domains, too: EBUSY while an object belongs to it.
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let this = unsafe { Pd::of(pd) }?;
        let ctx = this.context()?;
        let nic = ctx.nic()?;
        if this.users.load(Ordering::Acquire) > 0 {
            return Err(Errno::EBUSY);
        }
        if let Some(joined) = &this.joined {
            // SAFETY: both were held by this parent domain, so they are live; the thread domain is optional.
            unsafe {
                (*joined.pd).users.fetch_sub(1, Ordering::Release);
                if let Some(td) = joined.td.as_ref() {
                    td.users.fetch_sub(1, Ordering::Release);
                }
            }
        } else {
            nic.lock().dealloc_pd(this.id)?;
            ctx.shared.handles.lock().pds.remove(&this.id.index);
        }
        // SAFETY: made by Box::into_raw; not used afterwards (man page).
        drop(unsafe { Box::from_raw(pd.cast::<Pd>()) });
        Ok(())
    })
}

/// `ibv_import_pd(3)`: ENOENT for an unknown handle.
pub unsafe extern "C" fn ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    pointer(|| {
        // SAFETY: live or NULL (man page).
        let ctx = unsafe { Context::of(context) }?;
        ctx.nic()?;
        let id = *ctx.shared.handles.lock().pds.get(&handle).ok_or(Errno::ENOENT)?;
        Ok(Pd::create(context, id, None))
    })
}

/// `ibv_unimport_pd(3)`: the domain itself stays.
pub unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    silent(|| {
        if !pd.is_null() {
            // SAFETY: made by Box::into_raw; not used afterwards (man page).
            drop(unsafe { Box::from_raw(pd.cast::<Pd>()) });
        }
    });
}

/// `ibv_alloc_td(3)`.
pub unsafe extern "C" fn alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
    pointer(|| {
        // SAFETY: live or NULL (man page).
        let ctx = unsafe { Context::of(context) }?;
        ctx.nic()?;
        // SAFETY: the caller's structure or NULL.
        if unsafe { argument(attr) }?.comp_mask != 0 {
            return Err(Errno::EINVAL);
        }
        let c = UnsafeCell::new(ibv_td { context });
        Ok(Box::into_raw(Box::new(Td { c, home: ctx.id(), users: AtomicU32::new(0) })).cast())
    })
}

/// `ibv_dealloc_td(3)`: EBUSY while a parent domain has it.
pub unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let this = unsafe { object::<Td, _>(td) }?;
        // SAFETY: its context outlives it (ibv_close_device(3)); no thread writes the field.
        unsafe { Context::of((*this.c.get()).context) }?.nic()?;
        if this.users.load(Ordering::Acquire) > 0 {
            return Err(Errno::EBUSY);
        }
        // SAFETY: made by Box::into_raw; not used afterwards (man page).
        drop(unsafe { Box::from_raw(td.cast::<Td>()) });
        Ok(())
    })
}

/// `ibv_alloc_parent_domain(3)`. Custom allocators are accepted and never called: they are for buffers that a provider
/// shares with its hardware, and this device has none outside its own memory.
pub unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const KNOWN: u32 = sys::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        | sys::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
        | sys::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
    pointer(|| {
        // SAFETY: live or NULL (man page).
        let ctx = unsafe { Context::of(context) }?;
        ctx.nic()?;
        // SAFETY: the caller's structure or NULL.
        let attr = unsafe { argument(attr) }?;
        if attr.comp_mask & !KNOWN != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let allocators = attr.alloc.is_some() && attr.free.is_some();
        if attr.comp_mask & sys::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0 && !allocators {
            return Err(Errno::EINVAL);
        }
        // SAFETY: live or NULL (man page).
        let pd = unsafe { Pd::argument(attr.pd) }?;
        // A parent domain of a parent domain joins what that one joins.
        let base: *const Pd = pd.joined.as_ref().map_or(pd, |j| j.pd);
        let td: *const Td = if attr.td.is_null() { null_mut() } else { attr.td.cast() };
        // SAFETY: live or NULL (man page).
        let is_its = unsafe { td.as_ref() }.is_none_or(|td| td.home == ctx.id());
        if !is_its || pd.context()?.id() != ctx.id() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: live (man page); held until the parent domain is gone.
        unsafe {
            (*base).hold();
            if let Some(td) = td.as_ref() {
                td.users.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(Pd::create(context, pd.id, Some(Joined { pd: base, td })))
    })
}
