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
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use sys::cma::*;
use sys::*;
use verbs::{Access, QpState};

use crate::api::CmApi;
use crate::error::{Error, Result, number, pointer};
use crate::{Context, Library, Qp};

/// A channel at which the events of connections arrive (rdma_create_event_channel(3)).
pub struct EventChannel {
    library: Arc<Library>,
    raw: NonNull<rdma_event_channel>,
}

// SAFETY: rdma_cm is thread-safe.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: a live channel, destroyed once; every id on it holds it, so none remains.
        unsafe { (self.cm().destroy_event_channel)(self.raw.as_ptr()) };
    }
}

impl AsFd for EventChannel {
    /// Readable when an event waits; for the caller's own poll or epoll.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel owns the descriptor and closes it when dropped; it is not -1.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }
}

/// An event, copied and acknowledged.
pub struct CmEvent {
    /// `enum rdma_cm_event_type`, e.g. [`sys::cma::RDMA_CM_EVENT_ESTABLISHED`].
    pub kind: u32,
    /// 0, a negated errno, or for REJECTED the reason (IBTA vol. 1, 12.6.7.2); rdma_get_cm_event(3).
    pub status: i32,
    /// The cookie of the id that it belongs to; for CONNECT_REQUEST, of the listener.
    pub cookie: u64,
    /// The private data that the peer sent with it. It may be longer than what was given, by zeroes
    /// (rdma_get_cm_event(3)).
    pub private_data: Vec<u8>,
    /// READs and atomics that the peer wants to have outstanding towards this side.
    pub responder_resources: u8,
    /// READs and atomics that the peer can answer at a time.
    pub initiator_depth: u8,
    /// The new id of a CONNECT_REQUEST, on the listener's channel.
    pub id: Option<Arc<CmId>>,
}

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
    /// Retries after RNR NAKs, 0 to 7; 7 means for ever.
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

impl Library {
    /// rdma_create_event_channel(3). ENOSYS: this library has no connections.
    pub fn create_event_channel(self: &Arc<Self>) -> Result<Arc<EventChannel>> {
        // SAFETY: the function takes nothing.
        let raw = pointer("rdma_create_event_channel", unsafe { (self.cm()?.create_event_channel)() })?;
        Ok(Arc::new(EventChannel { library: self.clone(), raw }))
    }
}

impl EventChannel {
    fn cm(&self) -> &CmApi {
        self.library.cm().expect("a channel exists, so its functions do")
    }

    /// Make [`EventChannel::event`] return EAGAIN instead of waiting.
    pub fn set_nonblocking(&self) -> Result<()> {
        crate::device::set_nonblocking(self.as_fd())
    }

    /// Make an id in the TCP port space. Its events give `cookie` back.
    pub fn create_id(self: &Arc<Self>, cookie: u64) -> Result<Arc<CmId>> {
        let mut raw = null_mut();
        // SAFETY: a live channel and a place for the result; the cookie is only handed back.
        let ret = unsafe { (self.cm().create_id)(self.raw.as_ptr(), &mut raw, cookie as *mut _, RDMA_PS_TCP) };
        number("rdma_create_id", ret)?;
        Ok(Arc::new(CmId { channel: self.clone(), raw: pointer("rdma_create_id", raw)? }))
    }

    /// The next event. The call waits for one, unless [`EventChannel::set_nonblocking`].
    pub fn event(self: &Arc<Self>) -> Result<CmEvent> {
        let mut raw = null_mut();
        // SAFETY: a live channel and a place for the result.
        number("rdma_get_cm_event", unsafe { (self.cm().get_cm_event)(self.raw.as_ptr(), &mut raw) })?;
        let raw = pointer("rdma_get_cm_event", raw)?.as_ptr();
        // SAFETY: the event, what it points at and its ids live until it is acknowledged: destroying an id waits for
        // that. Port space TCP, so the union holds `conn`, which is plain numbers for every kind.
        unsafe {
            let (kind, conn) = ((*raw).event, (*raw).param.conn);
            let carries = matches!(
                kind,
                RDMA_CM_EVENT_CONNECT_REQUEST
                    | RDMA_CM_EVENT_CONNECT_RESPONSE
                    | RDMA_CM_EVENT_REJECTED
                    | RDMA_CM_EVENT_ESTABLISHED
            );
            let private_data = match carries && !conn.private_data.is_null() {
                true => {
                    std::slice::from_raw_parts(conn.private_data.cast::<u8>(), conn.private_data_len.into()).to_vec()
                }
                false => Vec::new(),
            };
            let request = kind == RDMA_CM_EVENT_CONNECT_REQUEST;
            let of = if request { (*raw).listen_id } else { (*raw).id };
            let event = CmEvent {
                kind,
                status: (*raw).status,
                cookie: AtomicPtr::from_ptr(&raw mut (*of).context).load(Ordering::Relaxed) as u64,
                private_data,
                responder_resources: if carries { conn.responder_resources } else { 0 },
                initiator_depth: if carries { conn.initiator_depth } else { 0 },
                id: match NonNull::new((*raw).id) {
                    Some(raw) if request => Some(Arc::new(CmId { channel: self.clone(), raw })),
                    _ => None,
                },
            };
            number("rdma_ack_cm_event", (self.cm().ack_cm_event)(raw))?;
            Ok(event)
        }
    }

    /// The next event, which must be of this kind; for one connection at a time. Another kind is an error with its
    /// status: ECONNREFUSED for REJECTED, ECONNRESET for DISCONNECTED, else the event's errno or EPROTO.
    pub fn expect(self: &Arc<Self>, kind: u32) -> Result<CmEvent> {
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
}

/// A listener, or one end of a connection (`struct rdma_cm_id`).
pub struct CmId {
    channel: Arc<EventChannel>,
    raw: NonNull<rdma_cm_id>,
}

// SAFETY: rdma_cm is thread-safe.
unsafe impl Send for CmId {}
// SAFETY: as above.
unsafe impl Sync for CmId {}

impl Drop for CmId {
    fn drop(&mut self) {
        // SAFETY: a live id without a queue pair, destroyed once. Its events were acknowledged when they were taken.
        unsafe { (self.cm().destroy_id)(self.raw.as_ptr()) };
    }
}

impl CmId {
    fn cm(&self) -> &CmApi {
        self.channel.cm()
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
        unsafe { Context::of_cm(&self.channel.library, raw) }
    }

    /// Move a queue pair to `state` with the attributes that the connection has for it (rdma_init_qp_attr(3)).
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

    /// Moves a queue pair to `state` with the attributes that the connection has for it (rdma_init_qp_attr(3)).
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

    /// Move the queue pair to RTS after CONNECT_RESPONSE, and tell the peer (rdma_establish(3)).
    pub fn establish(&self, qp: &Qp, param: &CmParam<'_>) -> Result<()> {
        self.ready(qp, param)?;
        // SAFETY: a live id.
        number("rdma_establish", unsafe { (self.cm().establish)(self.raw.as_ptr()) })
    }

    fn ready(&self, qp: &Qp, param: &CmParam<'_>) -> Result<()> {
        self.modify(qp, QpState::Rtr, |attr| {
            attr.qp_access_flags |= param.access.bits();
            attr.max_dest_rd_atomic = param.responder_resources;
        })?;
        self.modify(qp, QpState::Rts, |attr| attr.max_rd_atomic = param.initiator_depth)
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
