//! Attributes of queue pairs and address vectors, between C's structures and those of `verbs`: by value, member by
//! member.

use sys::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_cap};
use verbs::{Access, AhAttr, Errno, Gid, QpAttr, QpAttrMask, QpCap, QpState, Result};

/// Capacities from C.
pub fn cap(c: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: c.max_send_wr,
        max_recv_wr: c.max_recv_wr,
        max_send_sge: c.max_send_sge,
        max_recv_sge: c.max_recv_sge,
        max_inline_data: c.max_inline_data,
    }
}

/// Capacities to C.
pub fn c_cap(cap: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// The bytes of a C GID.
pub fn gid(c: &ibv_gid) -> Gid {
    // SAFETY: every bit pattern of the union is 16 bytes.
    Gid(unsafe { c.raw })
}

/// An address vector from C.
pub fn ah(c: &ibv_ah_attr) -> AhAttr {
    AhAttr {
        dgid: gid(&c.grh.dgid),
        flow_label: c.grh.flow_label,
        sgid_index: c.grh.sgid_index,
        hop_limit: c.grh.hop_limit,
        traffic_class: c.grh.traffic_class,
        dlid: c.dlid,
        sl: c.sl,
        src_path_bits: c.src_path_bits,
        static_rate: c.static_rate,
        is_global: c.is_global != 0,
        port_num: c.port_num,
    }
}

/// An address vector to C.
pub fn c_ah(a: &AhAttr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: a.dgid.0 },
            flow_label: a.flow_label,
            sgid_index: a.sgid_index,
            hop_limit: a.hop_limit,
            traffic_class: a.traffic_class,
        },
        dlid: a.dlid,
        sl: a.sl,
        src_path_bits: a.src_path_bits,
        static_rate: a.static_rate,
        is_global: a.is_global.into(),
        port_num: a.port_num,
    }
}

fn byte(value: u32) -> Result<u8> {
    u8::try_from(value).map_err(|_| Errno::EINVAL)
}

/// Attributes of a queue pair from C. Only members in the mask are read, since the others need not be initialised.
pub fn qp(c: &ibv_qp_attr, mask: QpAttrMask) -> Result<QpAttr> {
    use QpAttrMask as M;
    let mut a = QpAttr::default();
    if mask.contains(M::STATE) {
        a.state = QpState::from_raw(c.qp_state).ok_or(Errno::EINVAL)?;
    }
    if mask.contains(M::CUR_STATE) {
        a.cur_state = QpState::from_raw(c.cur_qp_state).ok_or(Errno::EINVAL)?;
    }
    if mask.contains(M::PATH_MTU) {
        a.path_mtu = byte(c.path_mtu)?;
    }
    if mask.contains(M::PATH_MIG_STATE) {
        a.path_mig_state = byte(c.path_mig_state)?;
    }
    if mask.contains(M::ACCESS_FLAGS) {
        a.access = Access::from_bits_truncate(c.qp_access_flags);
    }
    if mask.contains(M::AV) {
        a.ah = ah(&c.ah_attr);
    }
    if mask.contains(M::ALT_PATH) {
        a.alt_ah = ah(&c.alt_ah_attr);
    }
    a.qkey = c.qkey;
    a.rq_psn = c.rq_psn;
    a.sq_psn = c.sq_psn;
    a.dest_qp_num = c.dest_qp_num;
    a.cap = cap(&c.cap);
    a.pkey_index = c.pkey_index;
    a.alt_pkey_index = c.alt_pkey_index;
    a.en_sqd_async_notify = c.en_sqd_async_notify != 0;
    a.max_rd_atomic = c.max_rd_atomic;
    a.max_dest_rd_atomic = c.max_dest_rd_atomic;
    a.min_rnr_timer = c.min_rnr_timer;
    a.port_num = c.port_num;
    a.timeout = c.timeout;
    a.retry_cnt = c.retry_cnt;
    a.rnr_retry = c.rnr_retry;
    a.alt_port_num = c.alt_port_num;
    a.alt_timeout = c.alt_timeout;
    if mask.contains(M::RATE_LIMIT) {
        // The last member, which the oldest headers do not have.
        a.rate_limit = c.rate_limit;
    }
    Ok(a)
}

/// Attributes of a queue pair to C.
pub fn c_qp(a: &QpAttr) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: a.state as u32,
        cur_qp_state: a.cur_state as u32,
        path_mtu: a.path_mtu.into(),
        path_mig_state: a.path_mig_state.into(),
        qkey: a.qkey,
        rq_psn: a.rq_psn,
        sq_psn: a.sq_psn,
        dest_qp_num: a.dest_qp_num,
        qp_access_flags: a.access.bits(),
        cap: c_cap(&a.cap),
        ah_attr: c_ah(&a.ah),
        alt_ah_attr: c_ah(&a.alt_ah),
        pkey_index: a.pkey_index,
        alt_pkey_index: a.alt_pkey_index,
        en_sqd_async_notify: a.en_sqd_async_notify.into(),
        sq_draining: a.sq_draining.into(),
        max_rd_atomic: a.max_rd_atomic,
        max_dest_rd_atomic: a.max_dest_rd_atomic,
        min_rnr_timer: a.min_rnr_timer,
        port_num: a.port_num,
        timeout: a.timeout,
        retry_cnt: a.retry_cnt,
        rnr_retry: a.rnr_retry,
        alt_port_num: a.alt_port_num,
        alt_timeout: a.alt_timeout,
        rate_limit: a.rate_limit,
    }
}
