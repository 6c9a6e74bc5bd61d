//! Connections: rdma_cm(7), with events that the caller takes from a channel.
//!
//! A [`CmId`] here never owns a queue pair. Queue pairs are created on [`CmId::context`], and their number goes with
//! [`CmId::connect`] and [`CmId::accept`] (rdma_connect(3), "qp_num"). So either may be dropped first.
//!
//! The active side: [`CmId::resolve_addr`], ADDR_RESOLVED, [`CmId::resolve_route`], ROUTE_RESOLVED, [`CmId::connect`],
//! CONNECT_RESPONSE, [`CmId::establish`].
//! The passive side: [`CmId::bind`], [`CmId::listen`], CONNECT_REQUEST (whose event has the new id),
//! [`CmId::accept`] or [`CmId::reject`], ESTABLISHED. Either side: [`CmId::disconnect`], DISCONNECTED.

use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use sys::cma::*;
use sys::*;
use verbs::{Access, QpState};

use crate::api::CmApi;
use crate::error::{Error, Result, number, pointer};
use crate::{Context, Library, Qp};

mod events;

pub use events::{CmEvent, EventChannel};

/// Parameters of a connection (`struct rdma_conn_param`).
#[derive(Clone, Copy, Debug)]
pub struct CmParam<'a> {
    /// At most 56 bytes for a request, 196 for a reply (rdma_connect(3), rdma_accept(3)); EINVAL if longer.
    pub private_data: &'a [u8],
    /// READs and atomics that the peer may have outstanding towards this side.
    pub responder_resources: u8,
    /// READs and atomics that this side may have outstanding.
    pub initiator_depth: u8,
    /// Retries after no answer, 0 to 7; the active side's counts.
    pub retry_count: u8,
    /// Retries after RNR NAKs, 0 to 7; 7 means for ever. It is sent to the peer, and limits the peer's number here.
    pub rnr_retry_count: u8,
    /// The access of the peer to this side's memory.
    pub access: Access,
}

impl Default for CmParam<'_> {
    fn default() -> Self {
        CmParam {
            private_data: &[],
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            access: Access::empty(),
        }
    }
}

impl CmParam<'_> {
    fn raw(&self, call: &'static str, qp: &Qp) -> Result<rdma_conn_param> {
        let len = u8::try_from(self.private_data.len()).map_err(|_| Error::new(call, libc::EINVAL))?;
        Ok(rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: len,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 0,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: 0,
            qp_num: qp.number(),
        })
    }
}

/// A listener, or one end of a connection (`struct rdma_cm_id`).
pub struct CmId {
    pub(super) channel: Arc<EventChannel>,
    pub(super) raw: NonNull<rdma_cm_id>,
}

// SAFETY: rdma_cm is thread-safe.
unsafe impl Send for CmId {}
// SAFETY: as above.
unsafe impl Sync for CmId {}

impl Drop for CmId {
    fn drop(&mut self) {
        let requests = self.channel.forget(self.raw);
        for raw in requests.into_iter().chain([self.raw]) {
            // SAFETY: a live id without a queue pair, destroyed once. Its events are acknowledged where they are read.
            unsafe { (self.cm().destroy_id)(raw.as_ptr()) };
        }
    }
}

impl CmId {
    fn cm(&self) -> &CmApi {
        self.channel.cm()
    }

    /// The next event of this id; those of other ids on the channel stay there, in order. The call waits for one,
    /// unless [`EventChannel::set_nonblocking`].
    pub fn event(&self) -> Result<CmEvent> {
        self.channel.next(Some(self.raw))
    }

    /// The next event of this id, which must be of this kind. Another kind is an error with its status: ECONNREFUSED
    /// for REJECTED, ECONNRESET for DISCONNECTED, else the event's errno or EPROTO.
    pub fn expect(&self, kind: u32) -> Result<CmEvent> {
        let event = self.event()?;
        if event.kind == kind {
            return Ok(event);
        }
        let errno = match event.kind {
            RDMA_CM_EVENT_REJECTED => libc::ECONNREFUSED,
            RDMA_CM_EVENT_DISCONNECTED => libc::ECONNRESET,
            _ if event.status < 0 => event.status.saturating_neg(),
            _ => libc::EPROTO,
        };
        Err(Error::new("rdma_get_cm_event", errno))
    }

    /// Set the cookie that its events give back; for an id that a CONNECT_REQUEST brought, which has its listener's.
    pub fn set_cookie(&self, cookie: u64) {
        // SAFETY: a live id; this crate reads the member atomically, and librdmacm leaves it to its user.
        let at = unsafe { AtomicPtr::from_ptr(&raw mut (*self.raw.as_ptr()).context) };
        at.store(cookie as *mut _, Ordering::Relaxed);
    }

    /// The open device that it is bound to, and librdmacm keeps open. ENODEV: it is not bound to one.
    pub fn context(&self) -> Result<Arc<Context>> {
        // SAFETY: a live id; volatile, for an event that another thread takes may set it.
        let raw = unsafe { (&raw const (*self.raw.as_ptr()).verbs).read_volatile() };
        let raw = NonNull::new(raw).ok_or(Error::new("rdma_cm_id.verbs", libc::ENODEV))?;
        // SAFETY: librdmacm's context, over this library.
        unsafe { Context::of_cm(self.channel.library(), raw) }
    }

    /// True if it is bound to an adapter of iWARP, whose connection manager moves queue pairs to RTS itself.
    fn is_iwarp(&self) -> bool {
        self.context().is_ok_and(|context| context.device().is_iwarp())
    }

    /// Bind the id to an address (rdma_bind_addr(3)); port 0 lets the library choose.
    pub fn bind(&self, addr: SocketAddr) -> Result<()> {
        let mut addr = raw_addr(addr);
        // SAFETY: a live id and a whole address.
        number("rdma_bind_addr", unsafe { (self.cm().bind_addr)(self.raw.as_ptr(), (&raw mut addr).cast()) })
    }

    /// The address that it is bound to; `None` before.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        // SAFETY: a live id; the union is plain data.
        our_addr(unsafe { &(*self.raw.as_ptr()).route.addr.src.src_storage })
    }

    /// The peer's address; `None` if there is none.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        // SAFETY: a live id; the union is plain data.
        our_addr(unsafe { &(*self.raw.as_ptr()).route.addr.dst.dst_storage })
    }

    /// rdma_listen(3); `backlog` requests may wait.
    pub fn listen(&self, backlog: u16) -> Result<()> {
        // SAFETY: a live id.
        number("rdma_listen", unsafe { (self.cm().listen)(self.raw.as_ptr(), backlog.into()) })
    }

    /// Begin rdma_resolve_addr(3), within `timeout` milliseconds; ADDR_RESOLVED or ADDR_ERROR ends it.
    pub fn resolve_addr(&self, to: SocketAddr, timeout: u16) -> Result<()> {
        let mut to = raw_addr(to);
        // SAFETY: a live id and a whole address.
        number("rdma_resolve_addr", unsafe {
            (self.cm().resolve_addr)(self.raw.as_ptr(), null_mut(), (&raw mut to).cast(), timeout.into())
        })
    }

    /// Begin rdma_resolve_route(3), within `timeout` milliseconds; ROUTE_RESOLVED or ROUTE_ERROR ends it.
    pub fn resolve_route(&self, timeout: u16) -> Result<()> {
        // SAFETY: a live id.
        number("rdma_resolve_route", unsafe { (self.cm().resolve_route)(self.raw.as_ptr(), timeout.into()) })
    }

    /// Move a queue pair to `state` with the attributes that the connection has for it (rdma_init_qp_attr(3)).
    fn modify(&self, qp: &Qp, state: QpState, set: impl FnOnce(&mut ibv_qp_attr)) -> Result<()> {
        // SAFETY: plain data, for which zeroes are valid; then a live id and places for the results.
        unsafe {
            let (mut attr, mut mask): (ibv_qp_attr, _) = (zeroed(), 0);
            attr.qp_state = state as u32;
            number("rdma_init_qp_attr", (self.cm().init_qp_attr)(self.raw.as_ptr(), &mut attr, &mut mask))?;
            set(&mut attr);
            qp.modify_raw(&mut attr, mask)
        }
    }

    /// Move a queue pair of [`CmId::context`] from RESET to INIT: receives may be posted before the peer can send.
    pub fn init_qp(&self, qp: &Qp, access: Access) -> Result<()> {
        self.modify(qp, QpState::Init, |attr| attr.qp_access_flags |= access.bits())
    }

    /// Begin rdma_connect(3) for a queue pair in state INIT. After CONNECT_RESPONSE the caller calls
    /// [`CmId::establish`]; REJECTED, UNREACHABLE or CONNECT_ERROR end the attempt.
    pub fn connect(&self, qp: &Qp, param: &CmParam<'_>) -> Result<()> {
        let mut raw = param.raw("rdma_connect", qp)?;
        // SAFETY: a live id and parameters whose private data live during the call.
        number("rdma_connect", unsafe { (self.cm().connect)(self.raw.as_ptr(), &mut raw) })
    }

    /// Move the queue pair to RTS after CONNECT_RESPONSE, and tell the peer (rdma_establish(3)). iWARP has no such
    /// event: ESTABLISHED brings the reply instead, and the queue pair is in RTS then.
    pub fn establish(&self, qp: &Qp, param: &CmParam<'_>) -> Result<()> {
        self.ready(qp, param)?;
        // SAFETY: a live id.
        number("rdma_establish", unsafe { (self.cm().establish)(self.raw.as_ptr()) })
    }

    fn ready(&self, qp: &Qp, param: &CmParam<'_>) -> Result<()> {
        if self.is_iwarp() {
            return Ok(());
        }
        self.modify(qp, QpState::Rtr, |attr| {
            attr.qp_access_flags |= param.access.bits();
            attr.max_dest_rd_atomic = param.responder_resources;
        })?;
        self.modify(qp, QpState::Rts, |attr| {
            attr.max_rd_atomic = param.initiator_depth;
            // rdma_accept(3) and rdma_connect(3): each side's number is for the sends of the other one. A peer that
            // says "for ever" does not bind this side.
            attr.rnr_retry = attr.rnr_retry.min(param.rnr_retry_count);
        })
    }

    /// Move a queue pair in state INIT to RTS and answer a request (rdma_accept(3)); ESTABLISHED follows.
    pub fn accept(&self, qp: &Qp, param: &CmParam<'_>) -> Result<()> {
        let mut raw = param.raw("rdma_accept", qp)?;
        self.ready(qp, param)?;
        // SAFETY: a live id and parameters whose private data live during the call.
        number("rdma_accept", unsafe { (self.cm().accept)(self.raw.as_ptr(), &mut raw) })
    }

    /// rdma_reject(3), with at most 148 bytes for the peer.
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        let len = u8::try_from(private_data.len()).map_err(|_| Error::new("rdma_reject", libc::EINVAL))?;
        // SAFETY: a live id and private data that live during the call.
        number("rdma_reject", unsafe { (self.cm().reject)(self.raw.as_ptr(), private_data.as_ptr().cast(), len) })
    }

    /// End the connection (rdma_disconnect(3)). Its queue pair goes to ERR, so posted requests are flushed;
    /// DISCONNECTED comes to both sides. The peer moves its queue pair itself, with [`Qp::set_state`].
    pub fn disconnect(&self, qp: &Qp) -> Result<()> {
        qp.set_state(QpState::Err)?;
        // SAFETY: a live id.
        number("rdma_disconnect", unsafe { (self.cm().disconnect)(self.raw.as_ptr()) })
    }
}

impl Library {
    /// The open devices of librdmacm, which are those of its ids (rdma_get_devices(3)). ENOSYS: there is no librdmacm.
    pub fn cm_contexts(self: &Arc<Self>) -> Result<Vec<Arc<Context>>> {
        let cm = self.cm()?;
        let mut count = 0;
        // SAFETY: `count` is a place for the result.
        let list = pointer("rdma_get_devices", unsafe { (cm.get_devices)(&mut count) })?;
        let contexts = (0..usize::try_from(count).unwrap_or(0)).map_while(|i| {
            // SAFETY: the library put `count` pointers into the list.
            let raw = NonNull::new(unsafe { *list.as_ptr().add(i) })?;
            // SAFETY: librdmacm's context, over this library. It stays open without the list.
            unsafe { Context::of_cm(self, raw) }.ok()
        });
        let contexts = contexts.collect();
        // SAFETY: the list of rdma_get_devices, freed once.
        unsafe { (cm.free_devices)(list.as_ptr()) };
        Ok(contexts)
    }
}

fn raw_addr(addr: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: plain data, for which zeroes are valid; the storage has room and alignment for any kind of address.
    unsafe {
        let mut storage: libc::sockaddr_storage = zeroed();
        match addr {
            SocketAddr::V4(addr) => {
                let at = &mut *(&raw mut storage).cast::<libc::sockaddr_in>();
                at.sin_family = libc::AF_INET as libc::sa_family_t;
                at.sin_port = addr.port().to_be();
                at.sin_addr.s_addr = u32::from_ne_bytes(addr.ip().octets());
            }
            SocketAddr::V6(addr) => {
                let at = &mut *(&raw mut storage).cast::<libc::sockaddr_in6>();
                at.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                at.sin6_port = addr.port().to_be();
                at.sin6_addr.s6_addr = addr.ip().octets();
                at.sin6_scope_id = addr.scope_id();
            }
        }
        storage
    }
}

fn our_addr(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    const { assert!(size_of::<libc::sockaddr_storage>() >= size_of::<libc::sockaddr_in6>()) };
    // SAFETY: the storage has room and alignment for any kind of address; all kinds are plain data.
    unsafe {
        match i32::from(storage.ss_family) {
            libc::AF_INET => {
                let at = &*(&raw const *storage).cast::<libc::sockaddr_in>();
                let ip = Ipv4Addr::from(at.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddrV4::new(ip, u16::from_be(at.sin_port)).into())
            }
            libc::AF_INET6 => {
                let at = &*(&raw const *storage).cast::<libc::sockaddr_in6>();
                let ip = Ipv6Addr::from(at.sin6_addr.s6_addr);
                Some(SocketAddrV6::new(ip, u16::from_be(at.sin6_port), 0, at.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}
