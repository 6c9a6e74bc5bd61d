//! Shared receive queues.

use core::cell::UnsafeCell;

use libc::c_int;
use nic::Nic;
use sys::{ibv_context, ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex};
use verbs::{Errno, Result, SrqId, SrqInit};

use crate::context::{Context, alive};
use crate::cq::Cq;
use crate::entry::{Handled, Zeroed, looked_up, number, object, output, pointer};
use crate::pd::Pd;
use crate::xrcd::Xrcd;

/// A shared receive queue.
#[repr(C)]
pub struct Srq {
    c: UnsafeCell<ibv_srq>,
    /// The NIC.
    pub nic: &'static Nic,
    id: SrqId,
    /// The context in which it was made. The program may write the one in the C structure.
    home: *mut ibv_context,
}

impl Handled for Srq {
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

impl Srq {
    /// The engine's id.
    pub fn id(&self) -> SrqId {
        self.id
    }

    /// The queue behind a pointer of the program.
    ///
    /// # Safety
    /// `srq` is NULL or live.
    pub unsafe fn of<'a>(srq: *mut ibv_srq) -> Result<&'a Srq> {
        // SAFETY: the caller's promise; an Srq begins with its ibv_srq.
        unsafe { object::<Srq, _>(srq) }
    }

    /// [`Srq::of`] for a call that leads through the kernel with an adapter; ENOENT if its handle or its context was
    /// changed.
    ///
    /// # Safety
    /// As [`Srq::of`].
    pub unsafe fn named<'a>(srq: *mut ibv_srq) -> Result<&'a Srq> {
        // SAFETY: the caller's promise; as above.
        unsafe { looked_up::<Srq, _>(srq) }
    }

    /// Make a queue; its real sizes are written to `attr`.
    fn create(
        pd: *mut ibv_pd,
        user: *mut libc::c_void,
        attr: &mut ibv_srq_attr,
        xrc: Option<(&Xrcd, &Cq)>,
    ) -> Result<*mut ibv_srq> {
        // SAFETY: live or NULL (man page).
        let domain = unsafe { Pd::of(pd) }?;
        let context = domain.context()?;
        let nic = context.nic()?;
        let init = SrqInit {
            pd: domain.id,
            max_wr: attr.max_wr,
            max_sge: attr.max_sge,
            limit: attr.srq_limit,
            xrc: xrc.map(|(xrcd, cq)| (xrcd.id, cq.id())),
        };
        let mut c = ibv_srq::zeroed();
        (c.context, c.srq_context, c.pd) = (context.c(), user, pd);
        let id = SrqId { index: u32::MAX, generation: 0 };
        let srq = Box::into_raw(Box::new(Srq { c: UnsafeCell::new(c), nic, id, home: context.c() }));
        // The token of its events is the address of its structure.
        let made = nic.lock().create_srq(context.id(), &init, srq as u64);
        let (id, real) = match made {
            Ok(made) => made,
            Err(errno) => {
                // SAFETY: made above; no other thread has it.
                drop(unsafe { Box::from_raw(srq) });
                return Err(errno);
            }
        };
        // SAFETY: no other thread has it yet.
        unsafe {
            (*srq).id = id;
            (*(*srq).c.get()).handle = id.index;
        }
        (attr.max_wr, attr.max_sge) = (real.max_wr, real.max_sge);
        domain.hold();
        Ok(srq.cast())
    }
}

/// `ibv_create_srq(3)`.
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    pointer(|| {
        // SAFETY: the caller's structure or NULL.
        let init = unsafe { output(init) }?;
        Srq::create(pd, init.srq_context, &mut init.attr, None)
    })
}

/// `ibv_create_srq_ex(3)`: basic and XRC.
pub unsafe extern "C" fn create_srq_ex(context: *mut ibv_context, init: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq {
    pointer(|| {
        // SAFETY: live or NULL (man page).
        let ctx = unsafe { Context::of(context) }?;
        ctx.nic()?;
        // SAFETY: the caller's structure or NULL.
        let init = unsafe { output(init) }?;
        let has = |bit| init.comp_mask & bit != 0;
        if init.comp_mask >= sys::IBV_SRQ_INIT_ATTR_RESERVED {
            return Err(Errno::EOPNOTSUPP);
        }
        let kind = if has(sys::IBV_SRQ_INIT_ATTR_TYPE) { init.srq_type } else { sys::IBV_SRQT_BASIC };
        if !has(sys::IBV_SRQ_INIT_ATTR_PD) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: live or NULL (man page).
        if unsafe { Pd::of(init.pd) }?.context()?.id() != ctx.id() {
            return Err(Errno::EINVAL);
        }
        match kind {
            sys::IBV_SRQT_BASIC => Srq::create(init.pd, init.srq_context, &mut init.attr, None),
            sys::IBV_SRQT_XRC if has(sys::IBV_SRQ_INIT_ATTR_XRCD) && has(sys::IBV_SRQ_INIT_ATTR_CQ) => {
                // SAFETY: live or NULL (man page).
                let both = unsafe { (object::<Xrcd, _>(init.xrcd)?, Cq::named(init.cq)?) };
                Srq::create(init.pd, init.srq_context, &mut init.attr, Some(both))
            }
            sys::IBV_SRQT_TM => Err(Errno::EOPNOTSUPP),
            _ => Err(Errno::EINVAL),
        }
    })
}

/// `ibv_modify_srq(3)`.
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let this = unsafe { Srq::named(srq) }?;
        // SAFETY: the caller's structure or NULL.
        let attr = unsafe { output(attr) }?;
        let mask = mask as u32;
        if mask & !(sys::IBV_SRQ_MAX_WR | sys::IBV_SRQ_LIMIT) != 0 {
            return Err(Errno::EINVAL);
        }
        let max_wr = (mask & sys::IBV_SRQ_MAX_WR != 0).then_some(attr.max_wr);
        let limit = (mask & sys::IBV_SRQ_LIMIT != 0).then_some(attr.srq_limit);
        alive(this.nic)?.lock().modify_srq(this.id, max_wr, limit)
    })
}

/// `ibv_query_srq(3)`.
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let this = unsafe { Srq::named(srq) }?;
        // SAFETY: the caller's structure or NULL.
        let attr = unsafe { output(attr) }?;
        let now = alive(this.nic)?.lock().query_srq(this.id)?;
        *attr = ibv_srq_attr { max_wr: now.max_wr, max_sge: now.max_sge, srq_limit: now.limit };
        Ok(())
    })
}

/// `ibv_get_srq_num(3)`.
pub unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number_out: *mut u32) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let this = unsafe { Srq::of(srq) }?;
        // SAFETY: the caller's variable or NULL.
        *unsafe { output(number_out) }? = alive(this.nic)?.lock().srq_number(this.id)?;
        Ok(())
    })
}

/// `ibv_destroy_srq(3)`: EBUSY while queue pairs take from it. It waits for the acknowledgement of the queue's events.
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let this = unsafe { Srq::named(srq) }?;
        // SAFETY: fields that no thread writes; a context outlives its objects (ibv_close_device(3)).
        let (context, pd) = unsafe { ((*this.c.get()).context, (*this.c.get()).pd) };
        // SAFETY: as above.
        let ctx = unsafe { Context::of(context) }?.id();
        alive(this.nic)?.destroy_srq(ctx, this.id)?;
        // SAFETY: held since creation; the queue was made by Box::into_raw and is not used afterwards (man page).
        unsafe {
            Pd::release(pd);
            drop(Box::from_raw(srq.cast::<Srq>()));
        }
        Ok(())
    })
}
