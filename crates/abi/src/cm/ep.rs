//! Endpoints: ids in synchronous mode, made in one call (rdma_create_ep(3)), and their shared receive queues.

use core::ptr::null_mut;

use ::cm::{Channel, EventKind};
use libc::c_int;
use sys::cma::{RAI_PASSIVE, rdma_addrinfo, rdma_cm_id};
use sys::{ibv_pd, ibv_qp_init_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex};
use verbs::{Errno, Result};

use super::event::{await_next, drop_event, take};
use super::id::Id;
use super::{address, device, last_errno, option, qp};
use crate::entry::{Zeroed, argument, minus_one, output, silent};
use crate::hardware::is_object_of_ours;
use crate::srq;
use crate::wait::{AGAIN, Word, rung, waits};

fn passive(id: &Id, res: &rdma_addrinfo, pd: *mut ibv_pd, init: *const ibv_qp_init_attr) -> Result<()> {
    address::bind(id, res.ai_src_addr)?;
    if !pd.is_null() {
        // SAFETY: a new id, which no other thread has.
        unsafe { id.fields() }.pd = pd;
    }
    // SAFETY: the caller's structure or NULL.
    if let Some(init) = unsafe { init.as_ref() } {
        let init = ibv_qp_init_attr { qp_type: res.ai_qp_type as u32, ..*init };
        id.inner.lock().qp_init = Some(Box::new(init));
    }
    Ok(())
}

fn active(id: &Id, res: &rdma_addrinfo, pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> Result<()> {
    address::resolve(id, res.ai_src_addr, res.ai_dst_addr)?;
    if res.ai_route_len > 0 {
        option::set_path(id, res.ai_route, res.ai_route_len)?;
        super::event::complete(id)?;
    } else {
        address::route(id)?;
    }
    if !init.is_null() {
        // SAFETY: the caller's structure.
        unsafe { (*init).qp_type = res.ai_qp_type as u32 };
        qp::create_basic(id, pd, init)?;
    }
    if res.ai_connect_len > 0 && !res.ai_connect.is_null() {
        // SAFETY: as long as it says (rdma_getaddrinfo(3)).
        let data = unsafe { core::slice::from_raw_parts(res.ai_connect.cast::<u8>(), res.ai_connect_len) };
        id.inner.lock().connect_data = data.to_vec();
    }
    Ok(())
}

/// Destroy an endpoint.
///
/// # Safety
/// `id` is live, and not used afterwards.
unsafe fn destroy(id: *mut rdma_cm_id) -> Result<()> {
    // SAFETY: the caller's promise.
    let this = unsafe { Id::of(id) }?;
    // SAFETY: as above.
    unsafe {
        if !this.fields().qp.is_null() {
            qp::rdma_destroy_qp(id);
        }
        if !this.fields().srq.is_null() {
            rdma_destroy_srq(id);
        }
        Id::destroy(id)
    }
}

/// `rdma_create_ep(3)`.
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's variable and structure, or NULL.
        let (out, res) = unsafe { (output(id)?, argument(res)?) };
        let made = Id::create(null_mut(), null_mut(), res.ai_port_space as u32, res.ai_qp_type as u32)?;
        // SAFETY: just made.
        let this = unsafe { Id::of(made) }?;
        let result = if res.ai_flags as u32 & RAI_PASSIVE != 0 {
            passive(this, res, pd, init)
        } else {
            active(this, res, pd, init)
        };
        if let Err(e) = result {
            // SAFETY: just made; no other thread has it.
            let _ = unsafe { destroy(made) };
            return Err(e);
        }
        *out = made;
        Ok(0)
    })
}

/// `rdma_destroy_ep(3)`.
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    silent(|| {
        // SAFETY: live or NULL, not used afterwards (man page).
        let _ = unsafe { destroy(id) };
    });
}

waits! {
    /// `rdma_get_request(3)`: EINVAL for a listener that has a channel of the program's.
    rdma_get_request(*mut rdma_cm_id, *mut *mut rdma_cm_id): begin_wait, end_wait;
}

unsafe extern "C" fn begin_wait(word: &mut Word<Channel>, listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    minus_one(|| {
        if let Some(fd) = word.again() {
            return Ok(fd);
        }
        // SAFETY: live or NULL; the caller's variable or NULL (man page).
        let (this, _) = unsafe { (Id::of(listen)?, output(id)?) };
        if !this.inner.lock().sync {
            return Err(Errno::EINVAL);
        }
        drop_event(this);
        // SAFETY: the listener's calls are made one at a time in this mode.
        await_next(word, unsafe { this.fields() }.channel)
    })
}

unsafe extern "C" fn end_wait(
    got: isize,
    word: &mut Word<Channel>,
    listen: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    let read = rung(got);
    minus_one(|| {
        let Some(event) = word.leave(read, take)? else { return Ok(AGAIN) };
        // SAFETY: the listener, which lives until its event is acknowledged; the caller's variable (man page).
        let (this, out) = unsafe { (Id::of(listen)?, output(id)?) };
        // SAFETY: the listener's calls are made one at a time in this mode.
        let c = unsafe { this.fields() };
        let request = || {
            // SAFETY: an event of this library, just got.
            let (kind, status, child) = unsafe { ((*event).event, (*event).status, (*event).id) };
            if kind == EventKind::Rejected as u32 {
                return Err(Errno::ECONNREFUSED);
            }
            if status != 0 {
                return Err(Errno(status.abs()));
            }
            if kind != EventKind::ConnectRequest as u32 {
                return Err(Errno::EINVAL);
            }
            let init = this.inner.lock().qp_init.as_deref().copied();
            if let Some(mut init) = init {
                // SAFETY: the id that the request has made.
                let child = unsafe { Id::of(child) }?;
                // A request of the other device has that device's default domain, as the listener has its own's.
                let pd = if device::is_default(this.kind(), c.pd) { null_mut() } else { c.pd };
                qp::create_basic(child, pd, &raw mut init)?;
            }
            Ok(child)
        };
        match request() {
            Ok(child) => {
                // SAFETY: the id that the request has made; the program gets it now.
                unsafe { (*child).event = event };
                *out = child;
                Ok(0)
            }
            Err(e) => {
                // SAFETY: an event of this library, just got, and the id that its request has made: no thread has it.
                unsafe {
                    if (*event).event == EventKind::ConnectRequest as u32 {
                        // The program never gets this id: its end refuses the request.
                        let _ = destroy((*event).id);
                        (*event).id = null_mut();
                    }
                }
                c.event = event;
                Err(e)
            }
        }
    })
}

fn create_srq(id: &Id, attr: &mut ibv_srq_init_attr_ex) -> Result<()> {
    if attr.comp_mask & sys::IBV_SRQ_INIT_ATTR_TYPE == 0 {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the call that makes a queue may change these members.
    let c = unsafe { id.fields() };
    if c.verbs.is_null() || !c.srq.is_null() {
        return Err(Errno::EINVAL);
    }
    if attr.comp_mask & sys::IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.pd = c.pd;
        attr.comp_mask |= sys::IBV_SRQ_INIT_ATTR_PD;
    }
    if attr.srq_type == sys::IBV_SRQT_XRC {
        if attr.comp_mask & sys::IBV_SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
            attr.xrcd = device::xrc_domain(id.kind())?;
        }
        if attr.comp_mask & sys::IBV_SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null() {
            qp::create_cqs(id, 0, attr.attr.max_wr)?;
            attr.cq = c.recv_cq;
        }
        attr.comp_mask |= sys::IBV_SRQ_INIT_ATTR_XRCD | sys::IBV_SRQ_INIT_ATTR_CQ;
    }
    // SAFETY: live objects or NULL (man page).
    let ours =
        unsafe { is_object_of_ours(attr.pd) && (attr.srq_type != sys::IBV_SRQT_XRC || is_object_of_ours(attr.cq)) };
    if !ours {
        return Err(Errno::EINVAL); // an adapter's queue, beside which there are no ids
    }
    // SAFETY: a live context and a complete structure.
    let made = unsafe { srq::create_srq_ex(c.verbs, attr) };
    if made.is_null() {
        let errno = last_errno();
        qp::destroy_cqs(c);
        return Err(errno);
    }
    if c.pd.is_null() {
        c.pd = attr.pd;
    }
    c.srq = made;
    Ok(())
}

/// `rdma_create_srq_ex(3)`.
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL; the caller's structure or NULL. One whose mask names none of the later members may be
        // shorter than ours, but none has been shorter than `cq`.
        unsafe { create_srq(Id::of(id)?, output(attr)?) }?;
        Ok(0)
    })
}

/// `rdma_create_srq(3)`.
pub unsafe extern "C" fn rdma_create_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL; the caller's structure or NULL.
        let (id, attr) = unsafe { (Id::of(id)?, output(attr)?) };
        let mut ex = ibv_srq_init_attr_ex::zeroed();
        (ex.srq_context, ex.attr) = (attr.srq_context, attr.attr);
        ex.comp_mask = sys::IBV_SRQ_INIT_ATTR_TYPE | sys::IBV_SRQ_INIT_ATTR_PD;
        // SAFETY: a member that no thread writes after creation.
        let xrc = unsafe { id.fields() }.qp_type == sys::IBV_QPT_XRC_RECV;
        ex.srq_type = if xrc { sys::IBV_SRQT_XRC } else { sys::IBV_SRQT_BASIC };
        ex.pd = pd;
        let result = create_srq(id, &mut ex);
        attr.attr = ex.attr;
        result?;
        Ok(0)
    })
}

/// `rdma_destroy_srq(3)`.
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    silent(|| {
        // SAFETY: live or NULL (man page).
        let Ok(id) = (unsafe { Id::of(id) }) else { return };
        // SAFETY: the call that destroys the queue may change these members.
        let c = unsafe { id.fields() };
        if !c.srq.is_null() {
            // SAFETY: the id's live queue.
            unsafe { srq::ibv_destroy_srq(c.srq) };
            c.srq = null_mut();
        }
        qp::destroy_cqs(c);
    });
}
