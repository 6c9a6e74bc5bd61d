//! Memory windows.

use core::cell::UnsafeCell;

use libc::c_int;
use nic::MwKind;
use sys::{ibv_context, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_mw_type, ibv_pd, ibv_qp};
use verbs::{Access, Errno, MwId, Opcode, RKey, Result, SendBody, SendData, SendFlags, SendWr};

use crate::context::Context;
use crate::entry::{Handled, argument, looked_up, number, object, pointer};
use crate::mr::Mr;
use crate::pd::Pd;
use crate::qp::Qp;

/// A memory window.
#[repr(C)]
pub struct Mw {
    c: UnsafeCell<ibv_mw>,
    /// The engine's id.
    pub id: MwId,
    /// The context in which it was made. The program may write the one in the C structure.
    home: *mut ibv_context,
}

impl Handled for Mw {
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

impl Mw {
    /// The type of the window, which never changes.
    pub fn kind(&self) -> ibv_mw_type {
        // SAFETY: a field that no thread writes after creation.
        unsafe { (*self.c.get()).type_ }
    }
}

/// `ibv_alloc_mw(3)`.
pub unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    pointer(|| {
        // SAFETY: live or NULL (man page).
        let domain = unsafe { Pd::of(pd) }?;
        let context = domain.context()?;
        let which = match kind {
            sys::IBV_MW_TYPE_1 => MwKind::Type1,
            sys::IBV_MW_TYPE_2 => MwKind::Type2,
            _ => return Err(Errno::EINVAL),
        };
        let (id, rkey) = context.nic()?.lock().alloc_mw(domain.id, which)?;
        domain.hold();
        let c = ibv_mw { context: context.c(), pd, rkey: rkey.0, handle: id.index, type_: kind };
        Ok(Box::into_raw(Box::new(Mw { c: UnsafeCell::new(c), id, home: context.c() })).cast())
    })
}

/// `ibv_dealloc_mw(3)`.
pub unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let this = unsafe { looked_up::<Mw, _>(mw) }?;
        // SAFETY: fields that no thread writes; the context outlives its objects (ibv_close_device(3)).
        let (context, pd) = unsafe { ((*this.c.get()).context, (*this.c.get()).pd) };
        // SAFETY: as above.
        unsafe { Context::of(context) }?.nic()?.lock().dealloc_mw(this.id)?;
        // SAFETY: held since alloc_mw; the window was made by Box::into_raw and is not used afterwards (man page).
        unsafe {
            Pd::release(pd);
            drop(Box::from_raw(mw.cast::<Mw>()));
        }
        Ok(())
    })
}

/// The body of a bind request.
///
/// # Safety
/// `mw` and the region of `info` are NULL or live, and no other thread binds the window.
pub unsafe fn bind_body(mw: *mut ibv_mw, rkey: u32, info: &ibv_mw_bind_info) -> Result<SendBody> {
    // SAFETY: the caller's promise.
    let mw = unsafe { object::<Mw, _>(mw) }?;
    let mr = if info.mr.is_null() {
        None
    } else {
        // SAFETY: the caller's promise.
        Some(unsafe { object::<Mr, _>(info.mr) }?.id)
    };
    Ok(SendBody::BindMw {
        mw: mw.id,
        // SAFETY: the caller's promise.
        rkey: RKey(unsafe { new_key(mw, rkey) }),
        mr,
        addr: info.addr,
        length: info.length,
        access: Access::from_bits(info.mw_access_flags).ok_or(Errno::EINVAL)?,
    })
}

/// The key of a window that is bound with this one (IBTA vol. 1, 11.4.1.1): the low 8 bits are the program's choice,
/// the others the window's.
///
/// # Safety
/// No other thread binds it (IBTA vol. 1, 10.6.7.2.4: binds of one window are ordered).
unsafe fn new_key(mw: &Mw, rkey: u32) -> u32 {
    // SAFETY: the caller's promise.
    unsafe { (*mw.c.get()).rkey & !0xff | rkey & 0xff }
}

/// Give a window its new key: a request that binds it was posted.
///
/// # Safety
/// `mw` is NULL or live, and no other thread binds it.
#[cold]
pub unsafe fn set_key(mw: *mut ibv_mw, rkey: u32) {
    // SAFETY: the caller's promise.
    if let Ok(this) = unsafe { object::<Mw, _>(mw) } {
        // SAFETY: the caller's promise.
        unsafe { (*this.c.get()).rkey = new_key(this, rkey) };
    }
}

/// `ibv_bind_mw(3)`: windows of type 1. The new key, with the next value of its consumer byte, is in `mw->rkey` on
/// return.
pub unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let (qp, this) = unsafe { (object::<Qp, _>(qp)?, object::<Mw, _>(mw)?) };
        // SAFETY: the caller's structure or NULL.
        let bind = unsafe { argument(bind) }?;
        if this.kind() != sys::IBV_MW_TYPE_1 || bind.send_flags & sys::IBV_SEND_INLINE != 0 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: one thread at a time binds a window (IBTA vol. 1, 10.6.7.2.4: binds of one window are ordered).
        let old = unsafe { (*this.c.get()).rkey };
        let new = sys::inline::ibv_inc_rkey(old);
        let wr = SendWr {
            wr_id: bind.wr_id,
            opcode: Opcode::BindMw,
            flags: SendFlags::from_bits_truncate(bind.send_flags),
            imm_or_rkey: 0,
            remote_srqn: 0,
            // SAFETY: live or NULL (man page).
            body: &unsafe { bind_body(mw, new, &bind.bind_info) }?,
            data: SendData::Sges(&[]),
        };
        qp.nic.post_send(qp.id, &wr)?;
        // SAFETY: as above.
        unsafe { set_key(mw, new) };
        Ok(())
    })
}
