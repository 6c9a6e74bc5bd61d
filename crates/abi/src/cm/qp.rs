//! Queue pairs of ids, and the completion queues and channels that an id makes for them.

use core::ptr::null_mut;

use libc::c_int;
use sys::cma::rdma_cm_id;
use sys::{ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex};
use verbs::{Errno, Result};

use super::id::Id;
use super::{attr, checked, device, last_errno};
use crate::entry::{Zeroed, minus_one, silent};
use crate::hardware::is_object_of_ours;
use crate::{channel, cq, qp};

/// Move the id's queue pair to a state; do nothing if it has none.
fn go(id: &Id, state: u32, change: impl FnOnce(&mut ibv_qp_attr)) -> Result<()> {
    // SAFETY: a member that changes with the queue pair only.
    let qp = unsafe { id.fields() }.qp;
    if qp.is_null() {
        return Ok(());
    }
    let (mut attr, mask) = attr::init(id, state)?;
    change(&mut attr);
    // SAFETY: the id's live queue pair, our own structure.
    checked(unsafe { qp::ibv_modify_qp(qp, &raw mut attr, mask as c_int) })
}

/// Move to RTR. `resources`: READs and atomics that are accepted, if not as the handshake says.
pub fn to_rtr(id: &Id, resources: Option<u8>) -> Result<()> {
    // The handshake may have changed the rights that INIT gave.
    go(id, sys::IBV_QPS_INIT, |_| {})?;
    go(id, sys::IBV_QPS_RTR, |a| a.max_dest_rd_atomic = resources.unwrap_or(a.max_dest_rd_atomic))
}

/// Move to RTS. `depth`: READs and atomics under way, if not as the handshake says.
pub fn to_rts(id: &Id, depth: Option<u8>) -> Result<()> {
    go(id, sys::IBV_QPS_RTS, |a| a.max_rd_atomic = depth.unwrap_or(a.max_rd_atomic))
}

/// Move to ERR.
pub fn to_err(id: &Id) -> Result<()> {
    // SAFETY: a member that changes with the queue pair only.
    let qp = unsafe { id.fields() }.qp;
    if qp.is_null() {
        return Ok(());
    }
    let mut attr = ibv_qp_attr { qp_state: sys::IBV_QPS_ERR, ..ibv_qp_attr::zeroed() };
    // SAFETY: the id's live queue pair, our own structure.
    checked(unsafe { qp::ibv_modify_qp(qp, &raw mut attr, sys::IBV_QP_STATE as c_int) })
}

fn first_states(id: &Id, qp: *mut ibv_qp) -> Result<()> {
    let (mut attr, mask) = attr::init(id, sys::IBV_QPS_INIT)?;
    // SAFETY: a live queue pair, our own structure.
    let modify = |attr: &mut ibv_qp_attr, mask: u32| checked(unsafe { qp::ibv_modify_qp(qp, attr, mask as c_int) });
    modify(&mut attr, mask)?;
    // SAFETY: a member that no thread writes after creation.
    if unsafe { id.fields() }.qp_type == sys::IBV_QPT_UD {
        attr.qp_state = sys::IBV_QPS_RTR;
        modify(&mut attr, sys::IBV_QP_STATE)?;
        attr.qp_state = sys::IBV_QPS_RTS;
        attr.sq_psn = 0;
        modify(&mut attr, sys::IBV_QP_STATE | sys::IBV_QP_SQ_PSN)?;
    }
    Ok(())
}

/// Destroy the completion queues that the id has made.
pub fn destroy_cqs(c: &mut rdma_cm_id) {
    if c.qp_type == sys::IBV_QPT_XRC_RECV && !c.srq.is_null() {
        return;
    }
    // SAFETY: made by `create_cqs`; the queue pair that used them is gone.
    unsafe {
        let (send, recv) = (c.send_cq, c.recv_cq);
        (c.send_cq, c.recv_cq) = (null_mut(), null_mut());
        if !recv.is_null() {
            cq::ibv_destroy_cq(recv);
        }
        if !send.is_null() && send != recv {
            cq::ibv_destroy_cq(send);
        }
        let (send, recv) = (c.send_cq_channel, c.recv_cq_channel);
        (c.send_cq_channel, c.recv_cq_channel) = (null_mut(), null_mut());
        if !recv.is_null() {
            channel::ibv_destroy_comp_channel(recv);
        }
        if !send.is_null() && send != recv {
            channel::ibv_destroy_comp_channel(send);
        }
    }
}

/// Make completion queues of these sizes, each with a channel; none for 0.
pub fn create_cqs(id: &Id, send: u32, recv: u32) -> Result<()> {
    // SAFETY: the call that makes a queue pair may change these members.
    let c = unsafe { id.fields() };
    let one = |size: u32| {
        // SAFETY: a live context; the id outlives its queues.
        unsafe {
            let channel = channel::ibv_create_comp_channel(c.verbs);
            if channel.is_null() {
                return Err(last_errno());
            }
            let size = c_int::try_from(size).map_err(|_| Errno::EINVAL)?;
            let cq = cq::ibv_create_cq(c.verbs, size, id.c().cast(), channel, 0);
            if cq.is_null() {
                let errno = last_errno();
                channel::ibv_destroy_comp_channel(channel);
                return Err(errno);
            }
            Ok((channel, cq))
        }
    };
    let mut made = || {
        if recv > 0 {
            (c.recv_cq_channel, c.recv_cq) = one(recv)?;
        }
        if send > 0 {
            (c.send_cq_channel, c.send_cq) = one(send)?;
        }
        Ok(())
    };
    let result = made();
    if result.is_err() {
        // SAFETY: as above.
        destroy_cqs(unsafe { id.fields() });
    }
    result
}

/// The inline bytes that every queue pair of an id has. Adapters give the rest of a send queue's entry, whatever was
/// asked for, and programs (rdma_xclient among them) send inline without asking.
const INLINE: u32 = 64;

/// Make the id's queue pair.
pub fn create(id: &Id, attr: *mut ibv_qp_init_attr_ex) -> Result<()> {
    // SAFETY: the call that makes a queue pair may change these members.
    let c = unsafe { id.fields() };
    if !c.qp.is_null() || attr.is_null() || c.verbs.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the caller's structure; what lies behind `comp_mask` is touched only where its bits say that it is
    // there, and `pd` and `xrcd`, which every version has.
    unsafe {
        if (*attr).comp_mask & sys::IBV_QP_INIT_ATTR_PD == 0 || (*attr).pd.is_null() {
            (*attr).comp_mask |= sys::IBV_QP_INIT_ATTR_PD;
            (*attr).pd = c.pd;
        } else if (*(*attr).pd).context != c.verbs {
            return Err(Errno::EINVAL);
        }
        let (send, recv, srq) = ((*attr).send_cq, (*attr).recv_cq, (*attr).srq);
        if !(is_object_of_ours(send) && is_object_of_ours(recv) && is_object_of_ours(srq)) {
            return Err(Errno::EINVAL); // an adapter's domain, beside which there are no ids
        }
        let other = |own: *mut sys::ibv_cq, given: *mut sys::ibv_cq| !own.is_null() && !given.is_null() && own != given;
        if other(c.recv_cq, (*attr).recv_cq) || other(c.send_cq, (*attr).send_cq) {
            return Err(Errno::EINVAL);
        }
        let none = (*attr).comp_mask & sys::IBV_QP_INIT_ATTR_XRCD == 0 || (*attr).xrcd.is_null();
        if c.qp_type == sys::IBV_QPT_XRC_RECV && none {
            (*attr).xrcd = device::xrc_domain(id.kind())?;
            (*attr).comp_mask |= sys::IBV_QP_INIT_ATTR_XRCD;
        }
        let size = |own: *mut sys::ibv_cq, given: *mut sys::ibv_cq, wanted: u32| {
            if own.is_null() && given.is_null() { wanted } else { 0 }
        };
        let send = size(c.send_cq, (*attr).send_cq, (*attr).cap.max_send_wr);
        let recv = size(c.recv_cq, (*attr).recv_cq, (*attr).cap.max_recv_wr);
        create_cqs(id, send, recv)?;
        if (*attr).send_cq.is_null() {
            (*attr).send_cq = c.send_cq;
        }
        if (*attr).recv_cq.is_null() {
            (*attr).recv_cq = c.recv_cq;
        }
        if !c.srq.is_null() && (*attr).srq.is_null() {
            (*attr).srq = c.srq;
        }
        (*attr).cap.max_inline_data = (*attr).cap.max_inline_data.max(INLINE);
        let made = qp::create_qp_ex(c.verbs, attr);
        if made.is_null() {
            let errno = last_errno();
            destroy_cqs(c);
            return Err(errno);
        }
        if let Err(errno) = first_states(id, made) {
            qp::ibv_destroy_qp(made);
            destroy_cqs(c);
            return Err(errno);
        }
        (c.pd, c.qp) = ((*made).pd, made);
    }
    Ok(())
}

/// Make the id's queue pair from the smaller structure.
pub fn create_basic(id: &Id, pd: *mut sys::ibv_pd, attr: *mut ibv_qp_init_attr) -> Result<()> {
    if attr.is_null() {
        return Err(Errno::EINVAL);
    }
    let mut ex = ibv_qp_init_attr_ex::zeroed();
    // SAFETY: the larger structure begins with the smaller one; the caller's structure.
    unsafe { (&raw mut ex).cast::<ibv_qp_init_attr>().write(*attr) };
    ex.comp_mask = sys::IBV_QP_INIT_ATTR_PD;
    // SAFETY: a member that only calls like this one change.
    ex.pd = if pd.is_null() { unsafe { id.fields() }.pd } else { pd };
    let result = create(id, &raw mut ex);
    // SAFETY: as above.
    unsafe { *attr = *(&raw const ex).cast::<ibv_qp_init_attr>() };
    result
}

/// `rdma_create_qp(3)`.
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut sys::ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL (man page).
        create_basic(unsafe { Id::of(id) }?, pd, attr)?;
        Ok(0)
    })
}

/// `rdma_create_qp_ex(3)`.
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL (man page).
        create(unsafe { Id::of(id) }?, attr)?;
        Ok(0)
    })
}

/// `rdma_destroy_qp(3)`.
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    silent(|| {
        // SAFETY: live or NULL (man page).
        let Ok(id) = (unsafe { Id::of(id) }) else { return };
        super::multicast::detach_all(id);
        // SAFETY: the call that destroys the queue pair may change these members.
        let c = unsafe { id.fields() };
        if !c.qp.is_null() {
            // SAFETY: the id's live queue pair.
            unsafe { qp::ibv_destroy_qp(c.qp) };
            c.qp = null_mut();
        }
        destroy_cqs(c);
    });
}
