//! Connecting, accepting, rejecting, disconnecting.

use libc::{c_int, c_void};
use sys::cma::{RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES, RDMA_PS_TCP, rdma_cm_id, rdma_conn_param};
use verbs::limits::MAX_RD_ATOMIC;
use verbs::{Errno, Result};

use ::cm::ConnectParams;
use ::cm::conn::reason;

use super::event::{complete, drop_event};
use super::id::Id;
use super::qp;
use crate::entry::minus_one;

/// The private data of the program.
///
/// # Safety
/// `data` is NULL or points to `len` bytes.
unsafe fn private(data: *const c_void, len: u8) -> Vec<u8> {
    if data.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts(data.cast::<u8>(), len.into()) }.to_vec()
}

fn is_datagram(id: &Id) -> bool {
    // SAFETY: a member that no thread writes after creation.
    unsafe { id.fields() }.qp_type == sys::IBV_QPT_UD
}

/// Check parameters: EINVAL for what the device cannot do, and for a connection without a queue pair.
fn check(id: &Id, param: Option<&rdma_conn_param>) -> Result<()> {
    // SAFETY: members that no thread writes meanwhile.
    let c = unsafe { id.fields() };
    if c.ps != RDMA_PS_TCP {
        return Ok(());
    }
    let Some(param) = param else {
        return if c.qp.is_null() { Err(Errno::EINVAL) } else { Ok(()) };
    };
    let most = |value: u8, all: u32| u32::from(value) == all || value <= MAX_RD_ATOMIC;
    if most(param.responder_resources, RDMA_MAX_RESP_RES) && most(param.initiator_depth, RDMA_MAX_INIT_DEPTH) {
        Ok(())
    } else {
        Err(Errno::EINVAL)
    }
}

/// The parameters for the message.
fn params(id: &Id, param: Option<&rdma_conn_param>, before: Vec<u8>) -> Result<ConnectParams> {
    // SAFETY: members that no thread writes meanwhile; the id's live queue pair.
    let (qpn, srq) = unsafe {
        match id.fields().qp.as_ref() {
            Some(qp) => (qp.qp_num, !qp.srq.is_null()),
            None => param.map_or((0, false), |p| (p.qp_num, p.srq != 0)),
        }
    };
    let inner = id.inner.lock();
    let mut out = ConnectParams {
        qpn,
        srq,
        responder_resources: inner.responder_resources,
        initiator_depth: inner.initiator_depth,
        flow_control: 0,
        retry_count: 7,
        rnr_retry_count: 7,
        ece: inner.local_ece,
        data: before,
    };
    if let Some(p) = param {
        (out.flow_control, out.retry_count, out.rnr_retry_count) = (p.flow_control, p.retry_count, p.rnr_retry_count);
        // SAFETY: the program's data (man page).
        out.data.extend(unsafe { private(p.private_data, p.private_data_len) });
    }
    Ok(out)
}

fn connect(id: &Id, param: Option<&rdma_conn_param>) -> Result<()> {
    check(id, param)?;
    // SAFETY: a member that only resolving changes.
    if unsafe { id.fields() }.verbs.is_null() {
        return Err(Errno::EINVAL);
    }
    let own = |value: Option<u8>, all: u32| value.filter(|&v| u32::from(v) != all).unwrap_or(MAX_RD_ATOMIC);
    let before = {
        let mut inner = id.inner.lock();
        inner.initiator_depth = own(param.map(|p| p.initiator_depth), RDMA_MAX_INIT_DEPTH);
        inner.responder_resources = own(param.map(|p| p.responder_resources), RDMA_MAX_RESP_RES);
        inner.connect_data.clone()
    };
    id.cm.connect(id.key, params(id, param, before)?)?;
    id.inner.lock().connect_data.clear();
    complete(id)
}

fn accept(id: &Id, param: Option<&rdma_conn_param>) -> Result<()> {
    check(id, param)?;
    let (resources, depth) = {
        let mut inner = id.inner.lock();
        let own = |value: Option<u8>, all: u32, asked: u8| {
            value.filter(|&v| u32::from(v) != all).unwrap_or(asked.min(MAX_RD_ATOMIC))
        };
        inner.initiator_depth = own(param.map(|p| p.initiator_depth), RDMA_MAX_INIT_DEPTH, inner.initiator_depth);
        inner.responder_resources =
            own(param.map(|p| p.responder_resources), RDMA_MAX_RESP_RES, inner.responder_resources);
        (inner.responder_resources, inner.initiator_depth)
    };
    let datagram = is_datagram(id);
    // On iWARP the connection manager brings the queue pair to RTS, when the connection is there.
    if !datagram && !id.is_iwarp() {
        qp::to_rtr(id, Some(resources))?;
        qp::to_rts(id, Some(depth))?;
    }
    let mut params = params(id, param, Vec::new())?;
    // The vendor that the peer named, with the options of this side (librdmacm's part of ECE).
    params.ece.vendor_id = id.inner.lock().remote_ece.vendor_id;
    if let Err(errno) = id.cm.accept(id.key, params) {
        let _ = qp::to_err(id);
        return Err(errno);
    }
    if datagram {
        drop_event(id);
        return Ok(());
    }
    complete(id)
}

fn reject(id: *mut rdma_cm_id, data: *const c_void, len: u8, reason: u16) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL (man page).
        let id = unsafe { Id::of(id) }?;
        // SAFETY: the program's data (man page).
        id.cm.reject(id.key, reason, unsafe { private(data, len) })?;
        Ok(0)
    })
}

/// `rdma_connect(3)`.
pub unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL; the caller's structure or NULL (man page).
        unsafe { connect(Id::of(id)?, param.as_ref()) }?;
        Ok(0)
    })
}

/// `rdma_accept(3)`.
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL; the caller's structure or NULL (man page).
        unsafe { accept(Id::of(id)?, param.as_ref()) }?;
        Ok(0)
    })
}

/// `rdma_reject(3)`.
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    reject(id, data, len, reason::CONSUMER)
}

/// `rdma_reject_ece(3)`.
pub unsafe extern "C" fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    reject(id, data, len, reason::VENDOR_OPTION)
}

/// `rdma_establish(3)`: for ids without a queue pair of their own.
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL (man page).
        let id = unsafe { Id::of(id) }?;
        // SAFETY: a member that changes with the queue pair only.
        if !unsafe { id.fields() }.qp.is_null() {
            return Err(Errno::EINVAL);
        }
        id.cm.established(id.key)?;
        Ok(0)
    })
}

/// `rdma_notify(3)`.
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: sys::ibv_event_type) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL (man page).
        let id = unsafe { Id::of(id) }?;
        match event {
            sys::IBV_EVENT_COMM_EST => id.cm.data_came(id.key)?,
            _ => return Err(Errno::EINVAL),
        }
        Ok(0)
    })
}

/// `rdma_disconnect(3)`: the queue pair goes to ERR.
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL (man page).
        let id = unsafe { Id::of(id) }?;
        // SAFETY: a member that only resolving changes.
        if unsafe { id.fields() }.verbs.is_null() {
            return Err(Errno::EINVAL);
        }
        if !id.is_iwarp() {
            qp::to_err(id)?; // on iWARP, what was posted before is still sent
        }
        id.cm.disconnect(id.key)?;
        complete(id)?;
        Ok(0)
    })
}
