//! Events: getting and acknowledging them, and the library's own work at each.

use core::ptr::null_mut;

use ::cm::channel::Channel;
use ::cm::manager::View;
use ::cm::{Cm, ConnParams, Event, EventKind, Got, Params, UdParams};
use libc::{c_char, c_int, c_void};
use sys::cma::{
    rdma_cm_event, rdma_cm_event_param, rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_event_channel,
    rdma_ud_param,
};
use verbs::{Errno, Qpn, Result};

use super::id::{EventChannel, Id};
use super::{attr, qp};
use crate::entry::{Zeroed as _, minus_one, output};
use crate::wait::{AGAIN, Word, rung, waits};

/// An event that the program holds. The member that C sees comes first.
#[repr(C)]
struct CmEvent {
    c: rdma_cm_event,
    /// The id that counts the event: for a request, the listener.
    counted: *mut rdma_cm_id,
    group: Option<u64>,
    data: [u8; 256],
}

/// A queue number that stands for a multicast group (IBTA vol. 1, 10.5.2).
const MULTICAST_QPN: u32 = 0xff_ffff;

fn conn(p: &ConnParams) -> rdma_conn_param {
    rdma_conn_param {
        private_data: null_mut::<c_void>(),
        private_data_len: 0,
        responder_resources: p.responder_resources,
        initiator_depth: p.initiator_depth,
        flow_control: p.flow_control,
        retry_count: p.retry_count,
        rnr_retry_count: p.rnr_retry_count,
        srq: p.srq.into(),
        qp_num: p.qpn,
    }
}

/// Continue on the active side: the response came, and the id has a queue pair.
fn responded(id: &Id, p: &ConnParams) -> Result<()> {
    {
        let mut inner = id.inner.lock();
        if p.ece.vendor_id != 0 && p.ece.vendor_id != inner.local_ece.vendor_id {
            drop(inner);
            let _ = qp::to_err(id);
            return Err(Errno::EINVAL);
        }
        inner.remote_ece.vendor_id = p.ece.vendor_id;
    }
    let ready = || {
        qp::to_rtr(id, None)?;
        qp::to_rts(id, None)?;
        id.cm.established(id.key)
    };
    ready().inspect_err(|_| {
        let _ = qp::to_err(id);
    })
}

/// Do the library's work at an event, and make the event for the program. `None`: the program gets none.
fn process(listener_or_id: &Id, got: Got) -> Result<Option<Box<CmEvent>>> {
    let Event { mut kind, mut status, params, data } = got.event;
    let mut id = listener_or_id;
    // SAFETY: integers and pointers; zeros are valid.
    let mut c: rdma_cm_event = unsafe { core::mem::zeroed() };
    let mut group = None;
    let mut context = null_mut();
    match kind {
        EventKind::AddrResolved | EventKind::RouteResolved => {
            if let Err(e) = id.refresh() {
                status = -e.0;
                id.cm.unresolve(id.key, id.held());
                kind = if kind == EventKind::AddrResolved { EventKind::AddrError } else { EventKind::RouteError };
            }
        }
        EventKind::ConnectRequest => {
            let child = listener_or_id.adopt(got.child.ok_or(Errno::EIO)?);
            c.listen_id = listener_or_id.c();
            if let Params::Conn(p) = &params {
                let mut inner = child.inner.lock();
                (inner.initiator_depth, inner.responder_resources) = (p.initiator_depth, p.responder_resources);
                inner.remote_ece = p.ece;
            }
            let sync = listener_or_id.inner.lock().sync;
            // SAFETY: our new id, which the program does not have yet.
            let ready = if sync { unsafe { super::id::rdma_migrate_id(child.c(), null_mut()) } } else { 0 };
            if ready != 0 || child.refresh().is_err() {
                // SAFETY: as above.
                let _ = unsafe { Id::destroy(child.c()) };
                return Ok(None);
            }
            id = child;
        }
        EventKind::ConnectResponse => {
            if let Params::Conn(p) = &params {
                // SAFETY: a member that changes with the queue pair only.
                if unsafe { id.fields() }.qp.is_null() {
                    id.inner.lock().remote_ece = p.ece;
                } else if let Err(e) = responded(id, p) {
                    (kind, status) = (EventKind::ConnectError, -e.0);
                    id.inner.lock().connect_error = true;
                } else {
                    kind = EventKind::Established;
                }
            }
        }
        EventKind::Rejected | EventKind::Disconnected => {
            if id.inner.lock().connect_error {
                return Ok(None);
            }
            if kind == EventKind::Rejected {
                let _ = qp::to_err(id);
            }
        }
        EventKind::MulticastJoin | EventKind::MulticastError => {
            if let Params::Group(number) = params {
                group = Some(number);
                match super::multicast::joined(id, number, &mut kind, &mut status) {
                    Some(own) => context = own,
                    None => return Ok(None),
                }
            }
        }
        _ => {}
    }
    (c.id, c.event, c.status) = (id.c(), kind as u32, status);
    // SAFETY: a member that no thread writes after creation.
    let datagram = unsafe { id.fields() }.qp_type == sys::IBV_QPT_UD;
    c.param = match &params {
        Params::Conn(p) => rdma_cm_event_param { conn: conn(p) },
        Params::Ud(UdParams { qpn, qkey }) => {
            let ah_attr = match kind {
                EventKind::Established => attr::ah(&id.cm.view(id.key)?),
                _ => sys::ibv_ah_attr::zeroed(),
            };
            rdma_cm_event_param {
                ud: rdma_ud_param { private_data: null_mut(), private_data_len: 0, ah_attr, qp_num: *qpn, qkey: *qkey },
            }
        }
        Params::Group(number) => {
            let ah_attr = super::multicast::ah(id, *number);
            let (qp_num, qkey) = (MULTICAST_QPN, ::cm::manager::UDP_QKEY);
            rdma_cm_event_param {
                ud: rdma_ud_param { private_data: context, private_data_len: 0, ah_attr, qp_num, qkey },
            }
        }
        Params::User(arg) => rdma_cm_event_param { arg: *arg },
        Params::None => c.param,
    };
    let mut event = Box::new(CmEvent { c, counted: listener_or_id.c(), group, data: [0; 256] });
    let len = data.len().min(event.data.len());
    if len > 0 {
        event.data[..len].copy_from_slice(&data[..len]);
        let at: *const c_void = event.data.as_ptr().cast();
        let len = len as u8;
        if datagram {
            (event.c.param.ud.private_data, event.c.param.ud.private_data_len) = (at, len);
        } else {
            (event.c.param.conn.private_data, event.c.param.conn.private_data_len) = (at, len);
        }
    }
    Ok(Some(event))
}

/// True if a disconnection is not to be handed out yet.
///
/// A disconnection comes behind all that the peer had sent: an adapter has completed it before the message of the
/// connection manager has made its way through the kernel. Here it is possible that no thread has looked at the link in
/// the meantime, so this call takes in the packets first.
///
/// The event is held back for programs that poll in turn their completions and, without waiting, this channel
/// (libfabric does). Such a program, if it polled before the last message came, would get the disconnection first, and
/// destroy the queue pair with the message. So it gets the event when it has polled the completions that had come, or
/// when it asks twice without polling.
fn overtakes(id: &Id, channel: &Channel) -> bool {
    let qpn = match id.cm.view(id.key) {
        Ok(View { conn: Some((_, local, _)), .. }) => Qpn::new(local.qpn),
        _ => return false,
    };
    let waiting = id.nic.arrived(qpn);
    let before = id.inner.lock().unpolled.replace(waiting);
    waiting > 0 && before.is_none_or(|n| waiting < n) && channel.nonblocking()
}

/// Make the program's event from the manager's; `None`: the program gets none.
fn hand_out(cm: &Cm, channel: &Channel, got: Got) -> Result<Option<*mut rdma_cm_event>> {
    // SAFETY: the token of an id is the address of its structure, which lives until its events are acknowledged.
    let id = unsafe { &*(got.token as usize as *const Id) };
    if got.event.kind == EventKind::Disconnected && overtakes(id, channel) {
        if !cm.give_back(channel, got) {
            // A thread that destroys the id waits for it.
            id.acknowledge(None);
        }
        return Err(Errno::EAGAIN);
    }
    match process(id, got) {
        Ok(Some(event)) => Ok(Some(Box::into_raw(event).cast())),
        Ok(None) | Err(_) => {
            id.acknowledge(None);
            Ok(None)
        }
    }
}

/// Wait for the next event of a channel.
fn get(channel: *mut rdma_event_channel) -> Result<*mut rdma_cm_event> {
    let (_, cm) = super::manager()?;
    // SAFETY: live or NULL (man page).
    let inner = unsafe { EventChannel::of(channel) }?.inner()?;
    loop {
        let got = cm.get_event(&inner)?;
        if let Some(event) = hand_out(cm, &inner, got)? {
            return Ok(event);
        }
    }
}

/// Begin to wait for the next event of a channel; the descriptor.
pub fn await_next(word: &mut Word<Channel>, channel: *mut rdma_event_channel) -> Result<c_int> {
    super::manager()?;
    // SAFETY: live or NULL (man page), or destroyed not long ago.
    unsafe { EventChannel::of(channel) }?.wait(word)
}

/// Take the next event of a channel whose descriptor was read from; `None` if there is none for the program after all.
pub fn take(channel: &Channel) -> Result<Option<*mut rdma_cm_event>> {
    let (_, cm) = super::manager()?;
    match cm.take_event(channel) {
        Some(got) => hand_out(cm, channel, got),
        None => Ok(None),
    }
}

/// Drop the event that the id holds, in synchronous mode.
pub fn drop_event(id: &Id) {
    if !id.inner.lock().sync {
        return;
    }
    // SAFETY: the id's calls are made one at a time in this mode.
    let c = unsafe { id.fields() };
    if !c.event.is_null() {
        // SAFETY: an event of this library that was not acknowledged.
        unsafe { rdma_ack_cm_event(c.event) };
        c.event = null_mut();
    }
}

/// Wait for the outcome of a call, in synchronous mode (rdma_create_id(3)).
pub fn complete(id: &Id) -> Result<()> {
    if !id.inner.lock().sync {
        return Ok(());
    }
    drop_event(id);
    // SAFETY: the id's calls are made one at a time in this mode.
    let c = unsafe { id.fields() };
    let event = get(c.channel)?;
    c.event = event;
    // SAFETY: an event of this library, just got.
    let (kind, status) = unsafe { ((*event).event, (*event).status) };
    match status {
        0 => Ok(()),
        _ if kind == EventKind::Rejected as u32 => Err(Errno::ECONNREFUSED),
        _ => Err(Errno(status.abs())),
    }
}

waits! {
    /// `rdma_get_cm_event(3)`.
    rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event): begin_wait, end_wait;
}

unsafe extern "C" fn begin_wait(
    word: &mut Word<Channel>,
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    minus_one(|| match word.again() {
        Some(fd) => Ok(fd),
        None if event.is_null() => Err(Errno::EINVAL),
        None => await_next(word, channel),
    })
}

unsafe extern "C" fn end_wait(
    got: isize,
    word: &mut Word<Channel>,
    _channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    let read = rung(got);
    minus_one(|| {
        let Some(made) = word.leave(read, take)? else { return Ok(AGAIN) };
        // SAFETY: the caller's variable.
        *unsafe { output(event) }? = made;
        Ok(0)
    })
}

/// `rdma_ack_cm_event(3)`: frees the event.
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    minus_one(|| {
        if event.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: made by `get`, acknowledged once (man page).
        let event = unsafe { Box::from_raw(event.cast::<CmEvent>()) };
        // SAFETY: an id outlives its unacknowledged events.
        let id = unsafe { Id::of(event.counted) }?;
        id.acknowledge(event.group);
        Ok(0)
    })
}

/// `rdma_event_str(3)`.
pub extern "C" fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char {
    let name = match event {
        0 => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        1 => c"RDMA_CM_EVENT_ADDR_ERROR",
        2 => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        3 => c"RDMA_CM_EVENT_ROUTE_ERROR",
        4 => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        5 => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        6 => c"RDMA_CM_EVENT_CONNECT_ERROR",
        7 => c"RDMA_CM_EVENT_UNREACHABLE",
        8 => c"RDMA_CM_EVENT_REJECTED",
        9 => c"RDMA_CM_EVENT_ESTABLISHED",
        10 => c"RDMA_CM_EVENT_DISCONNECTED",
        11 => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        12 => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        13 => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        14 => c"RDMA_CM_EVENT_ADDR_CHANGE",
        15 => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        16 => c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        17 => c"RDMA_CM_EVENT_ADDRINFO_ERROR",
        _ => c"UNKNOWN EVENT",
    };
    name.as_ptr()
}
