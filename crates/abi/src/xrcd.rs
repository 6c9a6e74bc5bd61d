//! XRC domains, and the queue pairs that processes share in them.

use core::cell::UnsafeCell;

use libc::c_int;
use sys::{ibv_context, ibv_qp, ibv_qp_open_attr, ibv_xrcd, ibv_xrcd_init_attr};
use verbs::{Errno, Qpn, XrcdId};

use crate::context::Context;
use crate::entry::{argument, number, object, pointer};
use crate::qp::Qp;

/// An XRC domain.
#[repr(C)]
pub struct Xrcd {
    c: UnsafeCell<ibv_xrcd>,
    /// The engine's id.
    pub id: XrcdId,
}

/// `ibv_open_xrcd(3)`: a descriptor names a domain by its inode, within this process.
pub unsafe extern "C" fn open_xrcd(context: *mut ibv_context, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd {
    const NEEDED: u32 = sys::IBV_XRCD_INIT_ATTR_FD | sys::IBV_XRCD_INIT_ATTR_OFLAGS;
    pointer(|| {
        // SAFETY: live or NULL (man page).
        let ctx = unsafe { Context::of(context) }?;
        let nic = ctx.nic()?;
        // SAFETY: the caller's structure or NULL.
        let attr = unsafe { argument(attr) }?;
        if attr.comp_mask >= sys::IBV_XRCD_INIT_ATTR_RESERVED {
            return Err(Errno::EOPNOTSUPP);
        }
        if attr.comp_mask & NEEDED != NEEDED || attr.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return Err(Errno::EINVAL);
        }
        let create = attr.oflags & libc::O_CREAT != 0;
        let inode = if attr.fd == -1 {
            // Without an inode there is nothing to find the domain by again, so it can only be created.
            if !create {
                return Err(Errno::EINVAL);
            }
            None
        } else {
            let mut stat = core::mem::MaybeUninit::<libc::stat>::uninit();
            // SAFETY: a structure to fill in; any number is allowed for the descriptor.
            if unsafe { libc::fstat(attr.fd, stat.as_mut_ptr()) } < 0 {
                return Err(Errno::EBADF);
            }
            // SAFETY: filled in.
            let stat = unsafe { stat.assume_init() };
            Some((stat.st_dev, stat.st_ino))
        };
        let id = nic.lock().open_xrcd(ctx.id(), inode, create, attr.oflags & libc::O_EXCL != 0)?;
        let c = UnsafeCell::new(ibv_xrcd { context });
        Ok(Box::into_raw(Box::new(Xrcd { c, id })).cast())
    })
}

/// `ibv_close_xrcd(3)`: EBUSY while an object belongs to it and this is the last handle.
pub unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let this = unsafe { object::<Xrcd, _>(xrcd) }?;
        // SAFETY: a field that no thread writes; a context outlives its objects (ibv_close_device(3)).
        unsafe { Context::of((*this.c.get()).context) }?.nic()?.lock().close_xrcd(this.id)?;
        // SAFETY: made by Box::into_raw; not used afterwards (man page).
        drop(unsafe { Box::from_raw(xrcd.cast::<Xrcd>()) });
        Ok(())
    })
}

/// `ibv_open_qp(3)`: another handle of an XRC target. EINVAL when the domain has none with this number.
pub unsafe extern "C" fn open_qp(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    const NEEDED: u32 = sys::IBV_QP_OPEN_ATTR_NUM | sys::IBV_QP_OPEN_ATTR_XRCD | sys::IBV_QP_OPEN_ATTR_TYPE;
    pointer(|| {
        // SAFETY: live or NULL (man page).
        let ctx = unsafe { Context::of(context) }?;
        let nic = ctx.nic()?;
        // SAFETY: the caller's structure or NULL.
        let attr = unsafe { argument(attr) }?;
        if attr.comp_mask >= sys::IBV_QP_OPEN_ATTR_RESERVED {
            return Err(Errno::EOPNOTSUPP);
        }
        if attr.comp_mask & NEEDED != NEEDED || attr.qp_type != sys::IBV_QPT_XRC_RECV {
            return Err(Errno::EINVAL);
        }
        // SAFETY: live or NULL (man page).
        let xrcd = unsafe { object::<Xrcd, _>(attr.xrcd) }?;
        // SAFETY: a field that no thread writes; a context outlives its objects (ibv_close_device(3)).
        if unsafe { Context::of((*xrcd.c.get()).context) }?.id() != ctx.id() {
            return Err(Errno::EINVAL);
        }
        let core = nic.lock();
        let id = core.find_xrc_tgt(xrcd.id, Qpn::new(attr.qp_num)).ok_or(Errno::EINVAL)?;
        let state = core.qp_state(id)?;
        drop(core);
        let user =
            if attr.comp_mask & sys::IBV_QP_OPEN_ATTR_CONTEXT != 0 { attr.qp_context } else { core::ptr::null_mut() };
        Qp::reopen(ctx, nic, id, attr.qp_num, state, user)
    })
}
