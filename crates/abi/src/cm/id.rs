//! Ids and event channels: making and destroying them.

use core::cell::UnsafeCell;
use core::ptr::null_mut;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ::cm::{Channel, Cm, Ece, IdKey};
use libc::{c_int, c_void};
use nic::{Nic, Outlived, Waited as _};
use parking_lot::{Condvar, Mutex};
use report::Device;
use sys::cma::{ibv_sa_path_rec, rdma_cm_id, rdma_event_channel, rdma_ib_addr, rdma_port_space};
use verbs::limits::DEFAULT_PKEY;
use verbs::{Errno, Result};

use super::event::rdma_ack_cm_event;
use super::{device, manager, sockaddr};
use crate::context::alive;
use crate::entry::{minus_one, object, output, pointer, silent};
use crate::wait::Word;

/// An event channel.
#[repr(C)]
pub struct EventChannel {
    c: rdma_event_channel,
    inner: Mutex<Inside>,
    nic: &'static Nic,
}

/// What is in an event channel.
enum Inside {
    /// The channel of the manager.
    Live(Arc<Channel>),
    /// Nothing: it was destroyed. A thread that served it may be on its way back to wait for the next event
    /// (rdma-core 44's rping). With librdmacm it is mostly in its wait before the descriptor is closed, and then stays
    /// there. So it does here.
    Destroyed { server: Option<u32> },
}

/// The number of destroyed channels that are kept, so that a thread that uses one all the same gets an error, or waits
/// as said above.
const KEPT: usize = 64;

/// A channel that was destroyed.
struct Destroyed(*mut EventChannel);

// SAFETY: what it points to may be used from any thread.
unsafe impl Send for Destroyed {}

/// How long to wait for a lock that a fork may have left locked. In a forked child another thread of the parent may
/// have held it, and it is never released. No thread holds it for so long otherwise.
const FORKED: Duration = Duration::from_secs(1);

/// Channels that were destroyed while a thread waited at them.
static OUTLIVED: Outlived<Channel> = Outlived::new();

static DESTROYED: Mutex<VecDeque<Destroyed>> = Mutex::new(VecDeque::new());

impl EventChannel {
    fn create() -> Result<*mut rdma_event_channel> {
        let (nic, _) = manager()?;
        let inner = Channel::new()?;
        let c = rdma_event_channel { fd: inner.fd() };
        Ok(Box::into_raw(Box::new(EventChannel { c, inner: Mutex::new(Inside::Live(inner)), nic })).cast())
    }

    /// The channel behind a pointer of the program; ENODEV for a parent's in a forked child.
    ///
    /// # Safety
    /// `channel` is NULL or live.
    pub unsafe fn of<'a>(channel: *mut rdma_event_channel) -> Result<&'a EventChannel> {
        // SAFETY: the caller's promise.
        let this = unsafe { object::<EventChannel, _>(channel) }?;
        alive(this.nic)?;
        Ok(this)
    }

    /// The channel of the manager; EBADF if it was destroyed.
    pub fn inner(&self) -> Result<Arc<Channel>> {
        match &*self.inner.lock() {
            Inside::Live(channel) => Ok(channel.clone()),
            Inside::Destroyed { .. } => Err(used_destroyed()),
        }
    }

    /// Begin to wait for an event; the descriptor. EBADF if the channel was destroyed.
    pub fn wait(&self, word: &mut Word<Channel>) -> Result<c_int> {
        match &*self.inner.lock() {
            Inside::Live(channel) => Ok(word.enter(channel)),
            Inside::Destroyed { server } if *server == Some(nic::this_thread()) => never(),
            Inside::Destroyed { .. } => Err(used_destroyed()),
        }
    }

    /// # Safety
    /// `channel` is NULL or live, or was destroyed not long ago.
    unsafe fn destroy(channel: *mut rdma_event_channel) {
        let channel = channel.cast::<EventChannel>();
        // SAFETY: the caller's promise; a channel that was destroyed is kept for a while.
        let Some(this) = (unsafe { channel.as_ref() }) else { return };
        {
            let Some(mut inside) = this.inner.try_lock_for(FORKED) else { return };
            let Inside::Live(inner) = &*inside else { return };
            let inner = inner.clone();
            let server = inner.taker().filter(|thread| *thread != nic::this_thread() && !inner.nonblocking());
            *inside = Inside::Destroyed { server };
            OUTLIVED.keep(inner);
        }
        let oldest = {
            let Some(mut destroyed) = DESTROYED.try_lock_for(FORKED) else { return };
            destroyed.push_back(Destroyed(channel));
            if destroyed.len() > KEPT { destroyed.pop_front() } else { None }
        };
        if let Some(Destroyed(oldest)) = oldest {
            // SAFETY: made by `create`, and in the list once: destroying it again does nothing.
            drop(unsafe { Box::from_raw(oldest) });
        }
    }
}

/// The errno for a channel that was destroyed.
fn used_destroyed() -> Errno {
    if report::logs() {
        report::log(format_args!("an rdma_cm event channel is used that was destroyed"));
    }
    Errno::EBADF
}

/// A descriptor at which no event ever comes.
fn never() -> Result<c_int> {
    static NEVER: OnceLock<Arc<Channel>> = OnceLock::new();
    if let Some(never) = NEVER.get() {
        return Ok(never.fd());
    }
    let made = Channel::new()?;
    Ok(NEVER.get_or_init(|| made).fd())
}

/// A multicast group of an id.
#[derive(Clone)]
pub struct Group {
    /// Its number among the id's groups.
    pub number: u64,
    /// The address that was joined.
    pub addr: std::net::SocketAddr,
    /// The program's own context.
    pub context: usize,
    /// True if it was joined for sending only: no queue pair is attached.
    pub send_only: bool,
    /// True if the queue pair is attached.
    pub attached: bool,
    /// True while it is being left and only waits for its events.
    pub left: bool,
    /// The number of events that the program has got.
    pub reported: u32,
    /// The number of events that it has acknowledged.
    pub completed: u32,
}

/// The state of an id that changes.
#[derive(Default)]
pub struct Inner {
    /// The number of events that were acknowledged.
    pub completed: u32,
    /// True if the id has its own channel, and its calls wait for their events.
    pub sync: bool,
    /// True if the queue pair could not follow the handshake: the events that result are not reported.
    pub connect_error: bool,
    /// The number of completions that were not polled when a disconnection was last held back for them.
    pub unpolled: Option<usize>,
    /// The READs and atomics that this side will have outstanding.
    pub initiator_depth: u8,
    /// The READs and atomics that this side accepts.
    pub responder_resources: u8,
    /// The ECE options of this side.
    pub local_ece: Ece,
    /// The ECE options of the peer.
    pub remote_ece: Ece,
    /// The attributes with which queue pairs of requests are made (rdma_create_ep(3)).
    pub qp_init: Option<Box<sys::ibv_qp_init_attr>>,
    /// Private data that goes in front of the program's (`ai_connect`).
    pub connect_data: Vec<u8>,
    /// Multicast groups.
    pub groups: Vec<Group>,
    /// The last group's number.
    pub last_group: u64,
    /// The device that the id uses.
    pub device: Option<Device>,
    /// True while rdma_resolve_addrinfo(3) is under way, or done and its result not queried.
    pub resolving: bool,
    /// The result, a `rdma_addrinfo`.
    pub resolved: usize,
}

// SAFETY: the pointers in `qp_init` are the program's own, and are only handed back to it.
unsafe impl Send for Inner {}

/// An id. The member that C sees comes first.
#[repr(C)]
pub struct Id {
    c: UnsafeCell<rdma_cm_id>,
    /// The adapter.
    pub nic: &'static Nic,
    /// The manager.
    pub cm: &'static Cm,
    /// The id's key in the manager.
    pub key: IdKey,
    /// The state that changes.
    pub inner: Mutex<Inner>,
    /// Signalled when an event was acknowledged.
    pub acked: Condvar,
}

impl Id {
    /// The id behind a pointer of the program. EINVAL for NULL; ENODEV for a parent's in a forked child.
    ///
    /// # Safety
    /// `id` is NULL or live.
    pub unsafe fn of<'a>(id: *mut rdma_cm_id) -> Result<&'a Id> {
        // SAFETY: the caller's promise; an Id begins with its C structure.
        let this = unsafe { object::<Id, _>(id) }?;
        alive(this.nic)?;
        Ok(this)
    }

    /// The C structure.
    pub fn c(&self) -> *mut rdma_cm_id {
        self.c.get()
    }

    /// The structure's members, for reading and writing.
    ///
    /// # Safety
    /// The program does not use the id in another thread in a way that the man pages forbid; the reference does not
    /// outlive the statement.
    #[allow(clippy::mut_from_ref)] // C's structure has no owner but the protocol of its calls
    pub unsafe fn fields(&self) -> &mut rdma_cm_id {
        // SAFETY: within our own structure; the caller's promise.
        unsafe { &mut *self.c.get() }
    }

    /// Make the C side of an id. The caller sets the key.
    fn allocate(
        nic: &'static Nic,
        cm: &'static Cm,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        port_space: rdma_port_space,
        qp_type: u32,
    ) -> Box<Id> {
        // SAFETY: integers and pointers; zeros are valid.
        let mut c: rdma_cm_id = unsafe { core::mem::zeroed() };
        (c.channel, c.context, c.ps, c.qp_type) = (channel, context, port_space, qp_type);
        let (inner, acked) = (Mutex::default(), Condvar::new());
        Box::new(Id { c: UnsafeCell::new(c), nic, cm, key: IdKey(0), inner, acked })
    }

    /// Make an id; with a channel of its own if there is none given.
    pub fn create(
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        port_space: rdma_port_space,
        qp_type: u32,
    ) -> Result<*mut rdma_cm_id> {
        let (nic, cm) = manager()?;
        let own = if channel.is_null() { Some(EventChannel::create()?) } else { None };
        let mut id = Self::allocate(nic, cm, own.unwrap_or(channel), context, port_space, qp_type);
        id.inner.get_mut().sync = own.is_some();
        // SAFETY: made above, or the program's live one (rdma_create_id(3)).
        let inner = unsafe { EventChannel::of(own.unwrap_or(channel)) }?.inner()?;
        match cm.create_id(&inner, (&raw const *id) as u64, port_space, qp_type) {
            Ok(key) => id.key = key,
            Err(e) => {
                if let Some(own) = own {
                    // SAFETY: made above; no other thread has it.
                    unsafe { EventChannel::destroy(own) };
                }
                return Err(e);
            }
        }
        Ok(Box::into_raw(id).cast())
    }

    /// Make the C side of an id that a request has made.
    pub fn adopt(&self, key: IdKey) -> &'static Id {
        // SAFETY: fields that do not change while events are got.
        let c = unsafe { self.fields() };
        let mut id = Self::allocate(self.nic, self.cm, c.channel, c.context, c.ps, c.qp_type);
        id.key = key;
        let id: &'static Id = Box::leak(id);
        self.cm.set_token(key, core::ptr::from_ref(id) as u64);
        id
    }

    /// Bring C's structure up to date with the manager's: addresses, device, path.
    pub fn refresh(&self) -> Result<()> {
        let view = self.cm.view(self.key)?;
        if let Some(kind) = view.device {
            self.take_device(kind)?;
        }
        // SAFETY: as above.
        let addr = unsafe { &mut self.fields().route.addr };
        if let Some(src) = view.src {
            addr.src.src_storage = sockaddr::storage(&src);
            let mut none = src;
            none.set_ip(if src.is_ipv4() { [0; 4].into() } else { [0; 16].into() });
            none.set_port(0);
            addr.dst.dst_storage = sockaddr::storage(&view.dst.unwrap_or(none));
        }
        if view.device.is_some() {
            let (sgid, dgid) = (sys::ibv_gid { raw: view.sgid.0 }, sys::ibv_gid { raw: view.dgid.0 });
            addr.ibaddr = rdma_ib_addr { sgid, dgid, pkey: DEFAULT_PKEY.to_be() };
        }
        // SAFETY: as above.
        let route = unsafe { &mut self.fields().route };
        if view.routed && route.path_rec.is_null() {
            let path = super::attr::path(&view);
            (route.path_rec, route.num_paths) = (Box::into_raw(Box::new(path)), 1);
        }
        Ok(())
    }

    /// Hold a device in place of the one that the id holds, if it is another: an id that was bound to an address
    /// changes to softiw0 when it resolves the address of another host.
    ///
    /// # Errors
    /// EINVAL: the id has a queue pair of the other device; as [`device::hold`].
    fn take_device(&self, kind: Device) -> Result<()> {
        let held = self.inner.lock().device;
        if held == Some(kind) {
            return Ok(());
        }
        // SAFETY: the calls that come here are the ones that may change these members.
        let c = unsafe { self.fields() };
        if !c.qp.is_null() || !c.srq.is_null() {
            return Err(Errno::EINVAL);
        }
        let (context, pd) = device::hold(kind)?;
        self.inner.lock().device = Some(kind);
        (c.verbs, c.port_num) = (context, 1);
        // A domain of the device before does not go with this one. It may be gone, too: a domain of the program's that
        // a queue pair has left here. A domain that came before any device is rdma_create_ep's, for its requests.
        if c.pd.is_null() || held.is_some() {
            c.pd = pd;
        }
        if let Some(held) = held {
            device::release(held);
        }
        Ok(())
    }

    /// The device that the id holds.
    pub fn held(&self) -> Option<Device> {
        self.inner.lock().device
    }

    /// The device of the id: softrnic0 if it has none yet.
    pub fn kind(&self) -> Device {
        self.inner.lock().device.unwrap_or_default()
    }

    /// True if the id is on softiw0.
    pub fn is_iwarp(&self) -> bool {
        self.kind().is_iwarp()
    }

    /// Wait until `reported` events are acknowledged.
    fn wait_acked(&self, reported: u32) {
        let mut inner = self.inner.lock();
        while inner.completed < reported {
            self.acked.wait(&mut inner);
        }
    }

    /// Count an acknowledged event.
    pub fn acknowledge(&self, group: Option<u64>) {
        let mut inner = self.inner.lock();
        inner.completed += 1;
        if let Some(group) = group.and_then(|n| inner.groups.iter_mut().find(|g| g.number == n)) {
            group.completed += 1;
        }
        // The lock is held still: as soon as it is free, the thread that destroys the id may free this structure.
        self.acked.notify_all();
    }

    /// Destroy an id.
    ///
    /// # Safety
    /// As for [`Id::of`]; the pointer is dead afterwards.
    pub unsafe fn destroy(id: *mut rdma_cm_id) -> Result<()> {
        // SAFETY: the caller's promise.
        let this = unsafe { Id::of(id) }?;
        let reported = this.cm.destroy_id(this.key)?;
        // SAFETY: no thread uses the id any more (man page), but for those that acknowledge its events.
        let c = unsafe { this.fields() };
        if !c.event.is_null() {
            // SAFETY: an event of this library that the program has not acknowledged.
            unsafe { rdma_ack_cm_event(c.event) };
            c.event = null_mut();
        }
        this.wait_acked(reported);
        super::multicast::detach_all(this);
        super::addrinfo::forget(this);
        if !c.route.path_rec.is_null() {
            // SAFETY: made by `refresh`.
            drop(unsafe { Box::from_raw(c.route.path_rec.cast::<ibv_sa_path_rec>()) });
        }
        let (sync, channel, device) = {
            let inner = this.inner.lock();
            (inner.sync, c.channel, inner.device)
        };
        if let Some(device) = device {
            device::release(device);
        }
        if sync {
            // SAFETY: the id's own channel.
            unsafe { EventChannel::destroy(channel) };
        }
        // SAFETY: made by `create` or `adopt`; not used afterwards.
        drop(unsafe { Box::from_raw(id.cast::<Id>()) });
        Ok(())
    }

    fn migrate(&self, channel: *mut rdma_event_channel) -> Result<()> {
        let was_sync = self.inner.lock().sync;
        if was_sync && channel.is_null() {
            return Err(Errno::EINVAL);
        }
        let own = if channel.is_null() { Some(EventChannel::create()?) } else { None };
        let to = own.unwrap_or(channel);
        // SAFETY: made above, or the program's live one (man page).
        let inner = unsafe { EventChannel::of(to) }?.inner()?;
        let reported = match self.cm.migrate(self.key, &inner) {
            Ok(reported) => reported,
            Err(e) => {
                if let Some(own) = own {
                    // SAFETY: made above; no other thread has it.
                    unsafe { EventChannel::destroy(own) };
                }
                return Err(e);
            }
        };
        // SAFETY: programs do not use the id while they migrate it, but to acknowledge its events.
        let c = unsafe { self.fields() };
        if was_sync {
            if !c.event.is_null() {
                // SAFETY: an event of this library that the program has not acknowledged.
                unsafe { rdma_ack_cm_event(c.event) };
                c.event = null_mut();
            }
            // SAFETY: the id's own channel, at which no thread waits now.
            unsafe { EventChannel::destroy(c.channel) };
        }
        self.inner.lock().sync = own.is_some();
        c.channel = to;
        self.wait_acked(reported);
        Ok(())
    }
}

/// `rdma_create_event_channel(3)`.
pub unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(EventChannel::create)
}

/// `rdma_destroy_event_channel(3)`.
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: live or NULL, not used afterwards (man page).
    silent(|| unsafe { EventChannel::destroy(channel) });
}

/// `rdma_create_id(3)`.
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    port_space: rdma_port_space,
) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's variable or NULL.
        let out = unsafe { output(id) }?;
        let datagram = matches!(port_space, sys::cma::RDMA_PS_IPOIB | sys::cma::RDMA_PS_UDP);
        *out = Id::create(channel, context, port_space, if datagram { sys::IBV_QPT_UD } else { sys::IBV_QPT_RC })?;
        Ok(0)
    })
}

/// `rdma_destroy_id(3)`: waits for the acknowledgement of the id's events.
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL, not used afterwards (man page).
        unsafe { Id::destroy(id) }?;
        Ok(0)
    })
}

/// `rdma_migrate_id(3)`: waits for the acknowledgement of the events that were got.
pub unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL (man page).
        unsafe { Id::of(id) }?.migrate(channel)?;
        Ok(0)
    })
}
