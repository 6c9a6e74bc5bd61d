//! `ibv_modify_qp(3)`: the state machine of IBTA vol. 1, 10.3.1, driven by `verbs::state`.

use verbs::{
    Errno, EventKind, EventSource, Psn, QpAttr, QpAttrMask as M, QpId, QpState as S, QpType, Result, limits, state,
};
use wire::{Env, Nanos, Path};

use crate::Engine;
use crate::qp::Qp;

/// 2^n * 4.096 us (IBTA vol. 1, 9.7.6.1.3); 0 means for ever.
pub(crate) fn timeout_nanos(exponent: u8) -> Option<Nanos> {
    (exponent != 0).then(|| 4096u64 << (exponent & 31))
}

/// RNR NAK timer values in units of 10 us (IBTA vol. 1, 9.7.5.2.8, table 45).
const RNR_10US: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

pub(crate) fn rnr_nanos(timer: u8) -> Nanos {
    u64::from(RNR_10US[usize::from(timer & 31)]) * 10_000
}

impl<P: Env> Engine<P> {
    /// Changes attributes and state. EINVAL for a transition that does not exist, an attribute that is missing, not
    /// permitted or out of range.
    pub fn modify_qp(&mut self, id: QpId, attr: &QpAttr, mask: M, now: Nanos) -> Result<()> {
        let mut qp = self.checkout_qp(id).ok_or(Errno::EINVAL)?;
        let result = self.modify(&mut qp, attr, mask, now);
        self.schedule(&mut qp);
        self.qps.put_back(id, qp);
        result
    }

    fn modify(&mut self, qp: &mut Qp, attr: &QpAttr, mask: M, now: Nanos) -> Result<()> {
        if qp.is_iwarp {
            return self.modify_iwarp(qp, attr, mask, now);
        }
        // Programs set both sides of an XRC connection alike. Linux removes attributes without a meaning for a side
        // before it asks the table (uverbs, `modify_qp_mask`).
        let mask = match qp.init.qp_type {
            QpType::XrcIni => mask - (M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER),
            QpType::XrcTgt => mask - (M::MAX_QP_RD_ATOMIC | M::RETRY_CNT | M::RNR_RETRY),
            _ => mask,
        };
        let from = if mask.contains(M::CUR_STATE) {
            // The caller may state the state that it believes in; only between RTS and SQE can that be ahead of the
            // true one.
            let ahead = qp.state == S::Sqe && attr.cur_state == S::Rts;
            if attr.cur_state != qp.state && !ahead {
                return Err(Errno::EINVAL);
            }
            qp.state
        } else {
            qp.state
        };
        let to = if mask.contains(M::STATE) { attr.state } else { from };
        if !state::allows(qp.init.qp_type, from, to, mask) {
            return Err(Errno::EINVAL);
        }
        self.check_values(attr, mask)?;
        if to == S::Reset || mask.contains(M::AV) {
            self.unpark_one(qp); // the link that the queue pair waits for is no longer its link
        }
        Self::assign(qp, attr, mask);
        match to {
            S::Reset => self.reset(qp),
            S::Err => self.enter_error(qp, now),
            _ => {
                qp.state = to;
                self.enter(qp, from, to, attr, mask);
                if mask.contains(M::TIMEOUT) {
                    // Requests under way are timed from now on, or no longer, also if nothing else happens.
                    self.set_ack_timer(qp, now);
                }
                self.publish_qp(qp);
                if to == S::Rtr || mask.contains(M::AV) {
                    self.tell_path(qp);
                }
            }
        }
        Ok(())
    }

    fn check_values(&self, attr: &QpAttr, mask: M) -> Result<()> {
        let bad = (mask.contains(M::PKEY_INDEX) && attr.pkey_index >= limits::PKEYS)
            || (mask.contains(M::PORT) && attr.port_num != 1)
            || (mask.contains(M::AV) && !self.takes_path(&attr.ah))
            || (mask.contains(M::AV) && attr.ah.port_num > 1)
            || (mask.contains(M::PATH_MTU) && !(1..=5).contains(&attr.path_mtu))
            || (mask.contains(M::TIMEOUT) && attr.timeout > 31)
            || (mask.contains(M::RETRY_CNT) && attr.retry_cnt > 7)
            || (mask.contains(M::RNR_RETRY) && attr.rnr_retry > 7)
            || (mask.contains(M::MIN_RNR_TIMER) && attr.min_rnr_timer > 31)
            || (mask.contains(M::MAX_QP_RD_ATOMIC) && attr.max_rd_atomic > limits::MAX_RD_ATOMIC)
            || (mask.contains(M::MAX_DEST_RD_ATOMIC) && attr.max_dest_rd_atomic > limits::MAX_RD_ATOMIC)
            || (mask.contains(M::ALT_PATH) && (attr.alt_port_num > 1 || attr.alt_pkey_index >= limits::PKEYS))
            || (mask.contains(M::PATH_MIG_STATE) && attr.path_mig_state > 2);
        if bad { Err(Errno::EINVAL) } else { Ok(()) }
    }

    pub(crate) fn assign(qp: &mut Qp, new: &QpAttr, mask: M) {
        let a = &mut qp.attr;
        macro_rules! take {
            ($($flag:ident: $($field:ident),+;)*) => {
                $(if mask.contains(M::$flag) { $(a.$field = new.$field;)+ })*
            };
        }
        take! {
            EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
            ACCESS_FLAGS: access;
            PKEY_INDEX: pkey_index;
            PORT: port_num;
            QKEY: qkey;
            AV: ah;
            PATH_MTU: path_mtu;
            TIMEOUT: timeout;
            RETRY_CNT: retry_cnt;
            RNR_RETRY: rnr_retry;
            RQ_PSN: rq_psn;
            SQ_PSN: sq_psn;
            MAX_QP_RD_ATOMIC: max_rd_atomic;
            MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            ALT_PATH: alt_ah, alt_pkey_index, alt_port_num, alt_timeout;
            PATH_MIG_STATE: path_mig_state;
            MIN_RNR_TIMER: min_rnr_timer;
            DEST_QPN: dest_qp_num;
            RATE_LIMIT: rate_limit;
        }
        a.dest_qp_num &= 0xff_ffff;
        if mask.contains(M::RQ_PSN) {
            qp.rc.epsn = Psn::new(new.rq_psn);
        }
        if mask.contains(M::SQ_PSN) {
            qp.rc.next_psn = Psn::new(new.sq_psn);
            qp.rc.unacked = qp.rc.next_psn;
        }
        if mask.contains(M::PATH_MTU) {
            qp.mtu = 128 << new.path_mtu;
        }
        if mask.contains(M::AV) {
            qp.unreliable.astray |= qp.init.qp_type == QpType::Uc && qp.link.is_some();
            qp.leave_link(); // found anew for the new path
            qp.same_host.unprove();
        }
        qp.rc.retries = qp.attr.retry_cnt;
        qp.rc.rnr_retries = qp.attr.rnr_retry;
    }

    fn enter(&mut self, qp: &mut Qp, from: S, to: S, attr: &QpAttr, mask: M) {
        match to {
            S::Rtr if qp.init.qp_type != QpType::Ud => {
                // The first message should not pay for the connection.
                self.find_link(qp);
            }
            S::Sqd if from == S::Rts => {
                qp.attr.en_sqd_async_notify = mask.contains(M::EN_SQD_ASYNC_NOTIFY) && attr.en_sqd_async_notify;
                self.check_drained(qp);
            }
            S::Rts if from == S::Sqe => qp.halted = false,
            _ => {}
        }
    }

    /// In SQD: tells once that the send queue has drained (IBTA vol. 1, 10.3.1.5).
    pub(crate) fn check_drained(&mut self, qp: &mut Qp) {
        if qp.state == S::Sqd && qp.inflight.is_empty() && qp.attr.en_sqd_async_notify {
            qp.attr.en_sqd_async_notify = false;
            self.done.async_event(qp.ctx, EventKind::SqDrained, EventSource::Qp(qp.id), qp.user);
        }
    }

    pub(crate) fn reset(&mut self, qp: &mut Qp) {
        self.hide_qp(qp);
        self.release_single_copy(qp);
        self.give_back_kept(qp);
        for cq in [qp.init.send_cq, qp.init.recv_cq].into_iter().flatten() {
            self.done.forget(cq, qp.id);
        }
        self.invalidate_all(qp.id);
        qp.clear();
        qp.state = S::Reset;
        qp.attr = QpAttr::default();
        (qp.rc.epsn, qp.rc.next_psn, qp.mtu) = (Psn::default(), Psn::default(), 4096);
    }

    fn tell_path(&mut self, qp: &Qp) {
        let ah = &qp.attr.ah;
        self.env.routed(&Path {
            qpn: qp.qpn,
            service: qp.init.qp_type,
            mtu: qp.mtu,
            source: self.gids.get(usize::from(ah.sgid_index)).copied().unwrap_or_default(),
            dest: self.destination(ah).unwrap_or(ah.dgid),
            traffic_class: ah.traffic_class,
            hop_limit: ah.hop_limit,
            flow_label: ah.flow_label,
        });
    }

    /// Finds the link of a connected queue pair, if there is one now.
    pub(crate) fn find_link(&mut self, qp: &mut Qp) {
        if qp.link.is_none() {
            let to = self.destination(&qp.attr.ah);
            qp.link = to.and_then(|gid| self.env.resolve(&gid, verbs::Qpn::new(qp.attr.dest_qp_num)));
            qp.from = qp.link.or(qp.from); // mostly
            (qp.rc.sent_mark, qp.rc.answered.0) = (0, 0); // marks of the link before it mean nothing here
            if let (QpType::Uc, Some(link)) = (qp.init.qp_type, qp.link) {
                qp.rc.sent_mark = self.env.sent_mark(link); // packets that were sent before an earlier connection ended
            }
        }
    }
}
