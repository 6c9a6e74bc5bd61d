//! Queue pairs: making, changing, querying, destroying.

use core::cell::UnsafeCell;
use core::ptr::null_mut;
use std::collections::HashMap;

use libc::{c_int, c_void};
use nic::{Managed, Nic};
use parking_lot::Mutex;
use sys::{ibv_context, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_wr_opcode};
use verbs::{Errno, QpAttrMask, QpCap, QpId, QpInit, QpState, QpType, Result};

use crate::attr;
use crate::context::{Context, alive};
use crate::cq::Cq;
use crate::dv_queues::{Arrays, Wanted};
use crate::entry::{Handled, Zeroed, argument, by_handle_if_any, looked_up, number, object, output, pointer};
use crate::pd::Pd;
use crate::per_nic::PerNic;
use crate::qp_ex::{self, Batch};
use crate::srq::Srq;
use crate::xrcd::Xrcd;

/// A queue pair. All are extended ones inside.
#[repr(C)]
pub struct Qp {
    c: UnsafeCell<ibv_qp_ex>,
    /// The NIC.
    pub nic: &'static Nic,
    /// The engine's id.
    pub id: QpId,
    /// The context in which it was made. The program may write the one in the C structure.
    home: *mut ibv_context,
    /// The transport service.
    pub ty: QpType,
    /// The real sizes.
    pub cap: QpCap,
    sq_sig_all: bool,
    /// The memory of the entries of managed queues. The device has it, too, and must not be the last to let go: it
    /// would do so under its lock, which giving memory back takes.
    pub arrays: Arrays,
    /// The operations that `ibv_wr_*` may build (`enum ibv_qp_create_send_ops_flags`); `None`: made without that
    /// interface.
    pub send_ops: Option<u64>,
    /// The requests under construction by `ibv_wr_*`.
    pub batch: Batch,
}

/// The handles of an XRC target: the last one to be closed destroys it.
struct Target {
    handles: u32,
    /// The handle that events name. It outlives the others even when it is destroyed first.
    first: usize,
    first_closed: bool,
}

static TARGETS: PerNic<Mutex<HashMap<QpId, Target>>> = PerNic::new();

/// The optional attributes of a new queue pair.
#[derive(Default)]
struct Extra {
    xrcd: Option<verbs::XrcdId>,
    send_ops: Option<u64>,
    is_managed: bool,
    managed: Managed,
    arrays: Arrays,
}

impl Handled for Qp {
    fn is_itself(&self) -> bool {
        // SAFETY: our structure; the field is the program's to write, between its calls.
        unsafe { (*self.c.get()).qp_base.handle == self.id.index }
    }

    fn is_at_home(&self) -> bool {
        // SAFETY: our structure; contexts outlive their objects, and one that the program has put there is live
        // (ibv_close_device(3)).
        unsafe { Context::of(self.home).is_ok_and(|home| home.shares((*self.c.get()).qp_base.context)) }
    }
}

impl Qp {
    /// The engine's id.
    pub fn id(&self) -> QpId {
        self.id
    }

    /// The queue pair behind a pointer of the program.
    ///
    /// # Safety
    /// `qp` is NULL or live.
    pub unsafe fn of<'a>(qp: *mut ibv_qp) -> Result<&'a Qp> {
        // SAFETY: the caller's promise; a Qp begins with its C structure.
        unsafe { object::<Qp, _>(qp) }
    }

    /// [`Qp::of`] for a call that leads through the kernel with an adapter; ENOENT if its handle or its context was
    /// changed.
    ///
    /// # Safety
    /// As [`Qp::of`].
    pub unsafe fn named<'a>(qp: *mut ibv_qp) -> Result<&'a Qp> {
        // SAFETY: the caller's promise; as above.
        unsafe { looked_up::<Qp, _>(qp) }
    }

    /// The C structure.
    pub fn c(&self) -> *mut ibv_qp_ex {
        self.c.get()
    }

    fn new(
        nic: &'static Nic,
        home: *mut ibv_context,
        id: QpId,
        ty: QpType,
        send_ops: Option<u64>,
        sq_sig_all: bool,
    ) -> *mut Qp {
        let mut c = ibv_qp_ex::zeroed();
        c.qp_base.qp_type = ty as u32;
        qp_ex::fill(&mut c);
        Box::into_raw(Box::new(Qp {
            c: UnsafeCell::new(c),
            nic,
            id,
            home,
            ty,
            cap: QpCap::default(),
            sq_sig_all,
            arrays: Arrays::default(),
            send_ops,
            batch: Batch::default(),
        }))
    }

    fn create(ctx: &Context, pd: *mut ibv_pd, init: &mut ibv_qp_init_attr, extra: Extra) -> Result<*mut ibv_qp> {
        let nic = ctx.nic()?;
        let ty = match init.qp_type {
            sys::IBV_QPT_RAW_PACKET | sys::IBV_QPT_DRIVER => return Err(Errno::EOPNOTSUPP),
            other => QpType::from_raw(other).ok_or(Errno::EINVAL)?,
        };
        let domain = if pd.is_null() {
            None
        } else {
            // SAFETY: live (man page).
            Some(unsafe { Pd::argument(pd) }?)
        };
        let mut cap = attr::cap(&init.cap);
        if extra.send_ops.is_some_and(|ops| ops & u64::from(sys::IBV_QP_EX_WITH_ATOMIC_WRITE) != 0) {
            // The 8 bytes of an atomic write are inline data.
            cap.max_inline_data = cap.max_inline_data.max(8);
        }
        // Attributes that an XRC queue pair has no use for are ignored (ibv_create_qp_ex(3)).
        // SAFETY: live or NULL (man page).
        let (send_cq, recv_cq, srq) = unsafe {
            (
                if ty.sends() { by_handle_if_any::<Cq, _>(init.send_cq)? } else { None },
                if ty.receives() { by_handle_if_any::<Cq, _>(init.recv_cq)? } else { None },
                if ty.receives() { by_handle_if_any::<Srq, _>(init.srq)? } else { None },
            )
        };
        let request = QpInit {
            pd: domain.map(|d| d.id),
            qp_type: ty,
            send_cq: send_cq.map(Cq::id),
            recv_cq: recv_cq.map(Cq::id),
            srq: srq.map(Srq::id),
            xrcd: extra.xrcd.filter(|_| ty == QpType::XrcTgt),
            cap,
            sq_sig_all: init.sq_sig_all != 0,
        };
        let nobody = QpId { index: u32::MAX, generation: 0 };
        let qp = Self::new(nic, ctx.c(), nobody, ty, extra.send_ops, init.sq_sig_all != 0);
        // The token of its events is the address of its structure.
        let made = if extra.is_managed {
            nic.lock_for_qp().and_then(|mut core| core.create_managed_qp(ctx.id(), &request, qp as u64, &extra.managed))
        } else {
            nic.create_qp(ctx.id(), &request, qp as u64)
        };
        let (id, created) = match made {
            Ok(made) => made,
            Err(errno) => {
                // SAFETY: made above; no other thread has it.
                drop(unsafe { Box::from_raw(qp) });
                return Err(errno);
            }
        };
        init.cap = attr::c_cap(&created.cap);
        // SAFETY: no other thread has it yet.
        unsafe {
            (*qp).id = id;
            (*qp).cap = created.cap;
            (*qp).arrays = extra.arrays;
            let base = &mut (*(*qp).c.get()).qp_base;
            base.context = ctx.c();
            base.qp_context = init.qp_context;
            base.pd = pd;
            (base.send_cq, base.recv_cq, base.srq) = (init.send_cq, init.recv_cq, init.srq);
            (base.handle, base.qp_num) = (id.index, created.qpn.get());
        }
        if let Some(domain) = domain {
            domain.hold();
        }
        if ty == QpType::XrcTgt {
            let target = Target { handles: 1, first: qp as usize, first_closed: false };
            TARGETS.of(nic).lock().insert(id, target);
        }
        Ok(qp.cast())
    }

    /// Make a queue pair that takes tasks (`dv_queues`).
    pub fn create_managed(
        ctx: &Context,
        pd: *mut ibv_pd,
        init: &mut ibv_qp_init_attr,
        wanted: &Wanted,
    ) -> Result<*mut ibv_qp> {
        let (managed, arrays) = wanted.queues(ctx.nic()?, &attr::cap(&init.cap))?;
        Self::create(ctx, pd, init, Extra { is_managed: true, managed, arrays, ..Extra::default() })
    }

    /// Make another handle of an XRC target.
    pub fn reopen(
        ctx: &Context,
        nic: &'static Nic,
        id: QpId,
        qp_num: u32,
        state: QpState,
        user: *mut c_void,
    ) -> Result<*mut ibv_qp> {
        let mut targets = TARGETS.of(nic).lock();
        targets.get_mut(&id).ok_or(Errno::EINVAL)?.handles += 1;
        let qp = Self::new(nic, ctx.c(), id, QpType::XrcTgt, None, false);
        // SAFETY: just made; no other thread has it.
        unsafe {
            let base = &mut (*(*qp).c.get()).qp_base;
            (base.context, base.qp_context) = (ctx.c(), user);
            (base.handle, base.qp_num, base.state) = (id.index, qp_num, state as u32);
        }
        Ok(qp.cast())
    }

    fn destroy(&self, ctx: &Context) -> Result<()> {
        let nic = alive(self.nic)?;
        let this = core::ptr::from_ref(self).cast_mut();
        let mut leftover = null_mut();
        if self.ty == QpType::XrcTgt {
            let mut targets = TARGETS.of(nic).lock();
            let target = targets.get_mut(&self.id).ok_or(Errno::EINVAL)?;
            if target.handles > 1 {
                target.handles -= 1;
                if target.first == this as usize {
                    target.first_closed = true;
                } else {
                    // SAFETY: made by Box::into_raw; not used afterwards (man page), and no event names it.
                    drop(unsafe { Box::from_raw(this) });
                }
                return Ok(());
            }
            if target.first_closed {
                leftover = target.first as *mut Qp;
            }
            targets.remove(&self.id);
        }
        nic.destroy_qp(ctx.id(), self.id)?;
        // SAFETY: the domain was held at creation; both structures were made by Box::into_raw, are not used afterwards
        // (man page), and no event can name them any more.
        unsafe {
            Pd::release((*self.c()).qp_base.pd);
            drop(Box::from_raw(this));
            if !leftover.is_null() {
                drop(Box::from_raw(leftover));
            }
        }
        Ok(())
    }
}

/// `ibv_create_qp(3)`.
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: live or NULL (man page).
        let ctx = unsafe { Pd::of(pd) }?.context()?;
        // SAFETY: the caller's structure or NULL.
        let init = unsafe { output(init) }?;
        Qp::create(ctx, pd, init, Extra::default())
    })
}

/// `ibv_create_qp_ex(3)`. EOPNOTSUPP for options of raw packets: creation flags, segmentation, hashing.
pub unsafe extern "C" fn create_qp_ex(context: *mut ibv_context, init: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    const KNOWN: u32 = sys::IBV_QP_INIT_ATTR_PD
        | sys::IBV_QP_INIT_ATTR_XRCD
        | sys::IBV_QP_INIT_ATTR_CREATE_FLAGS
        | sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    pointer(|| {
        // SAFETY: live or NULL (man page).
        let ctx = unsafe { Context::of(context) }?;
        if init.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller's structure. Members behind `comp_mask` are read only where its bits say that they are
        // there.
        let mask = unsafe { (*init).comp_mask };
        let has = |bit| mask & bit != 0;
        if mask & !KNOWN != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: as above.
        if has(sys::IBV_QP_INIT_ATTR_CREATE_FLAGS) && unsafe { (*init).create_flags } != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: as above; the pointer is live or NULL (man page).
        let pd = if has(sys::IBV_QP_INIT_ATTR_PD) { unsafe { (*init).pd } } else { null_mut() };
        let mut extra = Extra::default();
        if has(sys::IBV_QP_INIT_ATTR_XRCD) {
            // SAFETY: as above.
            extra.xrcd = Some(unsafe { object::<Xrcd, _>((*init).xrcd) }?.id);
        }
        // SAFETY: as above.
        let basic = unsafe { &mut *init.cast::<ibv_qp_init_attr>() };
        if has(sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) {
            // SAFETY: as above.
            let ops = unsafe { (*init).send_ops_flags };
            if ops & !qp_ex::possible(basic.qp_type) != 0 {
                return Err(Errno::EOPNOTSUPP);
            }
            extra.send_ops = Some(ops);
        }
        Qp::create(ctx, pd, basic, extra)
    })
}

/// `ibv_qp_to_qp_ex(3)`: NULL for a queue pair that was made without IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: live or NULL (man page).
    match unsafe { Qp::of(qp) } {
        Ok(this) if this.send_ops.is_some() => this.c(),
        _ => null_mut(),
    }
}

/// `ibv_modify_qp(3)`.
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let this = unsafe { Qp::named(qp) }?;
        // SAFETY: the caller's structure or NULL.
        let c = unsafe { argument(attr) }?;
        let mask = QpAttrMask::from_bits(mask as u32).ok_or(Errno::EINVAL)?;
        alive(this.nic)?.modify_qp(this.id, &attr::qp(c, mask)?, mask)?;
        if mask.contains(QpAttrMask::STATE) {
            // SAFETY: the public field; programs do not modify one queue pair from two threads.
            unsafe { (*this.c()).qp_base.state = c.qp_state };
        }
        Ok(())
    })
}

/// `ibv_query_qp(3)`: all attributes, whatever the mask says (it is a hint).
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let this = unsafe { Qp::named(qp) }?;
        // SAFETY: the caller's structures or NULL.
        let (attr, init) = unsafe { (output(attr)?, output(init)?) };
        let (now, _) = alive(this.nic)?.lock().query_qp(this.id)?;
        *attr = attr::c_qp(&now);
        // SAFETY: the public fields; see ibv_modify_qp.
        let base = unsafe { &mut (*this.c()).qp_base };
        base.state = attr.qp_state;
        *init = ibv_qp_init_attr {
            qp_context: base.qp_context,
            send_cq: base.send_cq,
            recv_cq: base.recv_cq,
            srq: base.srq,
            cap: attr.cap,
            qp_type: base.qp_type,
            sq_sig_all: this.sq_sig_all.into(),
        };
        Ok(())
    })
}

/// `ibv_query_qp_data_in_order(3)`: no order is promised; the processor decides in which order a copy moves its bytes.
pub unsafe extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: ibv_wr_opcode, _flags: u32) -> c_int {
    0
}

/// `ibv_destroy_qp(3)`: EBUSY while attached to a multicast group. It waits for the acknowledgement of the events.
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let this = unsafe { Qp::named(qp) }?;
        // SAFETY: a field that no thread writes; a context outlives its objects (ibv_close_device(3)).
        let ctx = unsafe { Context::of((*this.c()).qp_base.context) }?;
        this.destroy(ctx)
    })
}
