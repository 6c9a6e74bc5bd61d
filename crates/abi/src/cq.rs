//! Completion queues.

use core::cell::UnsafeCell;

use libc::{c_int, c_void};
use nic::RawBiased;
use nic::{CqOpts, Nic};
use parking_lot::lock_api::RawMutex as _;
use sys::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_modify_cq_attr};
use verbs::{Completion, CqId, Errno, Result};

use crate::channel::Channel;
use crate::context::{COMP_VECTORS, Context, alive};
use crate::entry::{Handled, Zeroed, argument, looked_up, number, object, pointer};
use crate::pd::Pd;

/// A completion queue. All are extended ones inside; `ibv_create_cq` gives out the front of the structure.
#[repr(C)]
pub struct Cq {
    c: UnsafeCell<ibv_cq_ex>,
    /// The NIC.
    pub nic: &'static Nic,
    id: CqId,
    /// The context in which it was made. The program may write the one in the C structure.
    home: *mut ibv_context,
    channel: *mut ibv_comp_channel,
    parent_domain: *mut sys::ibv_pd,
    /// Held from start_poll to end_poll, unless the program promised to use one thread.
    pub polling: RawBiased,
    /// True if the program promised to use one thread.
    pub single_threaded: bool,
    /// The completion at which the extended poll stands.
    pub current: UnsafeCell<Completion>,
}

/// The parameters of a new queue.
pub struct CqInit {
    /// The number of entries asked for.
    pub cqe: u32,
    /// The program's pointer.
    pub user: *mut c_void,
    /// The channel, or NULL.
    pub channel: *mut ibv_comp_channel,
    /// The completion vector, below [`COMP_VECTORS`].
    pub vector: i64,
    /// Options.
    pub opts: CqOpts,
    /// The parent domain, or NULL.
    pub parent_domain: *mut sys::ibv_pd,
}

impl Handled for Cq {
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

impl Cq {
    /// The engine's id.
    pub fn id(&self) -> CqId {
        self.id
    }

    /// The queue behind a pointer of the program.
    ///
    /// # Safety
    /// `cq` is NULL or live.
    pub unsafe fn of<'a>(cq: *mut ibv_cq) -> Result<&'a Cq> {
        // SAFETY: the caller's promise; a Cq begins with its C structure.
        unsafe { object::<Cq, _>(cq) }
    }

    /// [`Cq::of`] for a call that leads through the kernel with an adapter; ENOENT if its handle or its context was
    /// changed.
    ///
    /// # Safety
    /// As [`Cq::of`].
    pub unsafe fn named<'a>(cq: *mut ibv_cq) -> Result<&'a Cq> {
        // SAFETY: the caller's promise; as above.
        unsafe { looked_up::<Cq, _>(cq) }
    }

    /// The C structure.
    pub fn c(&self) -> *mut ibv_cq_ex {
        self.c.get()
    }

    fn context(&self) -> Result<&Context> {
        // SAFETY: a field that no thread writes; a context outlives its objects (ibv_close_device(3)).
        unsafe { Context::of((*self.c()).context) }
    }

    /// `ibv_ack_cq_events(3)`.
    pub fn acknowledge(&self, count: u32) {
        if self.nic.alive() {
            self.nic.ack_cq_events(self.id, count);
        }
    }

    /// Make a queue.
    ///
    /// # Safety
    /// The pointers are NULL or live.
    pub unsafe fn create(context: *mut ibv_context, init: CqInit) -> Result<*mut Cq> {
        // SAFETY: the caller's promise.
        let ctx = unsafe { Context::of(context) }?;
        let nic = ctx.nic()?;
        if !(0..i64::from(COMP_VECTORS)).contains(&init.vector) {
            return Err(Errno::EINVAL);
        }
        // Linux looks for the channel's descriptor among those of the context (lookup_get_fd_uobject).
        // SAFETY: the caller's promise.
        if let Ok(channel) = unsafe { object::<Channel, _>(init.channel) }
            && channel.context()?.kind() != ctx.kind()
        {
            return Err(Errno::EBADF);
        }
        let mut c = ibv_cq_ex::zeroed();
        c.context = context;
        c.channel = init.channel;
        c.cq_context = init.user;
        crate::cq_ex::fill(&mut c);
        let cq = Box::into_raw(Box::new(Cq {
            c: UnsafeCell::new(c),
            nic,
            id: CqId { index: u32::MAX, generation: 0 },
            home: context,
            channel: init.channel,
            parent_domain: init.parent_domain,
            polling: RawBiased::INIT,
            single_threaded: init.opts.single_threaded,
            current: UnsafeCell::new(Completion::default()),
        }));
        // The token of its events is the address of its structure.
        let has_channel = !init.channel.is_null();
        let made = nic.lock().create_cq(ctx.id(), init.cqe, cq as u64, init.opts);
        let (id, cqe) = match made {
            Ok(made) => made,
            Err(errno) => {
                // SAFETY: made above; no other thread has it.
                drop(unsafe { Box::from_raw(cq) });
                return Err(errno);
            }
        };
        // SAFETY: no other thread has it yet; the channel and the domain are live (caller).
        unsafe {
            (*cq).id = id;
            let c = (*cq).c.get();
            (*c).handle = id.index;
            (*c).cqe = cqe as c_int;
            if has_channel {
                let channel = object::<Channel, _>(init.channel)?;
                nic.bind_cq_channel(id, &channel.inner);
                channel.count(1);
            }
            if let Some(domain) = init.parent_domain.as_mut() {
                Pd::argument(domain)?.hold();
            }
        }
        Ok(cq)
    }
}

/// `ibv_create_cq(3)`.
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    user: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    pointer(|| {
        let cqe = u32::try_from(cqe).map_err(|_| Errno::EINVAL)?;
        let (opts, parent_domain) = (CqOpts::default(), core::ptr::null_mut());
        let init = CqInit { cqe, user, channel, vector: vector.into(), opts, parent_domain };
        // SAFETY: live or NULL (man page).
        unsafe { Cq::create(context, init) }.map(|cq| cq.cast())
    })
}

/// `ibv_resize_cq(3)`.
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let this = unsafe { Cq::named(cq) }?;
        let cqe = u32::try_from(cqe).map_err(|_| Errno::EINVAL)?;
        let real = alive(this.nic)?.lock().resize_cq(this.id, cqe)?;
        // SAFETY: the public field; programs do not resize one queue from two threads.
        unsafe { (*this.c()).cqe = real as c_int };
        Ok(())
    })
}

/// `ibv_destroy_cq(3)`: EBUSY while queue pairs complete there. It waits for the acknowledgement of the queue's events.
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let this = unsafe { Cq::named(cq) }?;
        let ctx = this.context()?.id();
        alive(this.nic)?.destroy_cq(ctx, this.id)?;
        // SAFETY: both were counted at creation, and so are live; the queue was made by Box::into_raw and is not used
        // afterwards (man page).
        unsafe {
            if let Ok(channel) = object::<Channel, _>(this.channel) {
                channel.count(-1);
            }
            Pd::release(this.parent_domain);
            drop(Box::from_raw(cq.cast::<Cq>()));
        }
        Ok(())
    })
}

/// `ibv_req_notify_cq(3)`.
pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let this = unsafe { Cq::named(cq) }?;
        alive(this.nic)?.arm_cq(this.id, solicited_only != 0)
    })
}

/// `ibv_modify_cq(3)`: moderation.
pub unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let this = unsafe { Cq::named(cq) }?;
        // SAFETY: the caller's structure or NULL.
        let attr = unsafe { argument(attr) }?;
        if attr.attr_mask != sys::IBV_CQ_ATTR_MODERATE {
            return Err(if attr.attr_mask == 0 { Errno::EINVAL } else { Errno::EOPNOTSUPP });
        }
        let moderate = attr.moderate;
        alive(this.nic)?.lock().moderate_cq(this.id, moderate.cq_count, moderate.cq_period)
    })
}
