//! Attributes of a queue pair by the state of the handshake: `rdma_init_qp_attr`, and the path record.

use ::cm::conn::{ACK_TIMEOUT, State};
use ::cm::manager::{UDP_QKEY, View};
use libc::c_int;
use report::Device;
use sys::cma::{ibv_sa_path_rec, rdma_cm_id};
use sys::{ibv_ah_attr, ibv_qp_attr};
use verbs::limits::DEFAULT_PKEY;
use verbs::{Errno, Result};

use super::id::Id;
use crate::entry::{Zeroed, minus_one, output};

/// The hops that a packet may take, as RoCEv2 adapters set them.
const HOP_LIMIT: u8 = 64;
/// The hops of a path inside an InfiniBand subnet, which needs no GRH.
const NO_HOPS: u8 = 0;
/// `IBV_RATE_100_GBPS`, for the path record.
const RATE_100_GBPS: u8 = 16;
/// Packet life time of a RoCE path (`CMA_IBOE_PACKET_LIFETIME` of Linux).
const PACKET_LIFE_TIME: u8 = 16;
/// "Exactly", of a path record's selectors.
const EXACTLY: u8 = 2;

/// The path, as the kernel makes it up for RoCE, and as a subnet administrator would answer.
pub fn path(view: &View) -> ibv_sa_path_rec {
    let lid = view.link_layer.lid().to_be();
    let infiniband = view.link_layer.is_infiniband();
    ibv_sa_path_rec {
        dgid: sys::ibv_gid { raw: view.dgid.0 },
        sgid: sys::ibv_gid { raw: view.sgid.0 },
        dlid: lid,
        slid: lid,
        raw_traffic: 0,
        flow_label: 0,
        hop_limit: if infiniband { NO_HOPS } else { HOP_LIMIT },
        traffic_class: view.options.tos,
        reversible: 1,
        numb_path: 1,
        pkey: DEFAULT_PKEY.to_be(),
        sl: service_level(view),
        mtu_selector: EXACTLY,
        mtu: sys::IBV_MTU_4096 as u8,
        rate_selector: EXACTLY,
        rate: RATE_100_GBPS,
        packet_life_time_selector: EXACTLY,
        packet_life_time: view.options.ack_timeout.filter(|&n| n > 0).map_or(PACKET_LIFE_TIME, |n| n - 1),
        preference: 0,
    }
}

/// The service level. On Ethernet it is the priority of the type of service; on InfiniBand all traffic has one level.
fn service_level(view: &View) -> u8 {
    if view.link_layer.is_infiniband() { 0 } else { view.options.tos >> 5 }
}

/// The address vector that leads to the id's peer: on InfiniBand within the subnet, without a GRH.
pub fn ah(view: &View) -> ibv_ah_attr {
    if view.link_layer.is_infiniband() {
        return ibv_ah_attr { dlid: view.link_layer.lid(), port_num: 1, ..ibv_ah_attr::zeroed() };
    }
    global(view)
}

/// The address vector to the id's peer with a GRH.
pub fn global(view: &View) -> ibv_ah_attr {
    let mut ah = ibv_ah_attr::zeroed();
    ah.dlid = view.link_layer.lid();
    ah.grh.dgid = sys::ibv_gid { raw: view.dgid.0 };
    ah.grh.sgid_index = view.sgid_index;
    ah.grh.hop_limit = HOP_LIMIT;
    ah.grh.traffic_class = view.options.tos;
    ah.sl = service_level(view);
    ah.is_global = 1;
    ah.port_num = 1;
    ah
}

/// The attributes that lead to a state, and which of them are to be set.
///
/// # Errors
/// EINVAL: the handshake is not that far, or the state is none of INIT, RTR and RTS.
pub fn init(id: &Id, state: u32) -> Result<(ibv_qp_attr, u32)> {
    let view = id.cm.view(id.key)?;
    let mut a = ibv_qp_attr::zeroed();
    a.qp_state = state;
    // SAFETY: a member that no thread writes after creation.
    let qp_type = unsafe { id.fields() }.qp_type;
    let begun = view.conn.as_ref().filter(|(s, ..)| *s != State::Idle && qp_type != sys::IBV_QPT_UD);
    let Some((conn, local, remote)) = begun else {
        // Attributes for INIT, before the handshake, and for datagrams always.
        if view.device.is_none() || state > sys::IBV_QPS_RTS {
            return Err(Errno::EINVAL);
        }
        a.port_num = 1;
        let mut mask = sys::IBV_QP_STATE | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT;
        if qp_type == sys::IBV_QPT_UD {
            a.qkey = UDP_QKEY;
            mask |= sys::IBV_QP_QKEY;
        } else {
            mask |= sys::IBV_QP_ACCESS_FLAGS;
        }
        return Ok((a, mask));
    };
    let halves = !matches!(conn, State::ReqSent);
    if view.device.is_some_and(Device::is_iwarp) {
        return Ok(of_iwarp(a));
    }
    match state {
        sys::IBV_QPS_INIT => {
            a.port_num = 1;
            a.qp_access_flags = sys::IBV_ACCESS_REMOTE_WRITE;
            if local.responder_resources > 0 {
                a.qp_access_flags |= sys::IBV_ACCESS_REMOTE_READ | sys::IBV_ACCESS_REMOTE_ATOMIC;
            }
            let mask = sys::IBV_QP_STATE | sys::IBV_QP_ACCESS_FLAGS | sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT;
            Ok((a, mask))
        }
        sys::IBV_QPS_RTR if halves => {
            a.ah_attr = ah(&view);
            a.path_mtu = sys::IBV_MTU_4096;
            (a.dest_qp_num, a.rq_psn) = (remote.qpn, remote.psn);
            let mut mask =
                sys::IBV_QP_STATE | sys::IBV_QP_AV | sys::IBV_QP_PATH_MTU | sys::IBV_QP_DEST_QPN | sys::IBV_QP_RQ_PSN;
            if matches!(qp_type, sys::IBV_QPT_RC | sys::IBV_QPT_XRC_RECV) {
                a.max_dest_rd_atomic = local.responder_resources;
                mask |= sys::IBV_QP_MAX_DEST_RD_ATOMIC | sys::IBV_QP_MIN_RNR_TIMER;
            }
            Ok((a, mask))
        }
        sys::IBV_QPS_RTS if halves => {
            a.sq_psn = view.psn;
            let mut mask = sys::IBV_QP_STATE | sys::IBV_QP_SQ_PSN;
            if matches!(qp_type, sys::IBV_QPT_RC | sys::IBV_QPT_XRC_SEND) {
                (a.retry_cnt, a.rnr_retry) = (remote.retry_count, remote.rnr_retry_count);
                a.max_rd_atomic = local.initiator_depth;
                mask |= sys::IBV_QP_RETRY_CNT | sys::IBV_QP_RNR_RETRY | sys::IBV_QP_MAX_QP_RD_ATOMIC;
            }
            if matches!(qp_type, sys::IBV_QPT_RC | sys::IBV_QPT_XRC_SEND | sys::IBV_QPT_XRC_RECV) {
                a.timeout = view.options.ack_timeout.unwrap_or(ACK_TIMEOUT);
                mask |= sys::IBV_QP_TIMEOUT;
            }
            Ok((a, mask))
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Attributes of a queue pair of iWARP: the connection manager sets all others (Linux: `iw_cm_init_qp_attr`).
fn of_iwarp(mut a: ibv_qp_attr) -> (ibv_qp_attr, u32) {
    a.port_num = 1;
    if a.qp_state != sys::IBV_QPS_INIT {
        return (a, sys::IBV_QP_PORT);
    }
    a.qp_access_flags = sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_REMOTE_READ;
    (a, sys::IBV_QP_STATE | sys::IBV_QP_ACCESS_FLAGS | sys::IBV_QP_PORT)
}

/// `rdma_init_qp_attr(3)`: the state is asked for in the structure.
pub unsafe extern "C" fn rdma_init_qp_attr(id: *mut rdma_cm_id, attr: *mut ibv_qp_attr, mask: *mut c_int) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL (man page).
        let id = unsafe { Id::of(id) }?;
        if attr.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller's structure; a header older than ours has no `rate_limit`, its last member, so the
        // members before it are written one by one.
        let (attr, mask) = unsafe { (attr, output(mask)?) };
        // SAFETY: as above.
        let (made, made_mask) = init(id, unsafe { (*attr).qp_state })?;
        // SAFETY: as above.
        unsafe {
            let bytes = core::mem::offset_of!(ibv_qp_attr, rate_limit);
            core::ptr::copy_nonoverlapping((&raw const made).cast::<u8>(), attr.cast::<u8>(), bytes);
        }
        *mask = made_mask as c_int;
        Ok(0)
    })
}
