//! Queue pairs: created, asked about, destroyed. Their states are in `modify`.

use std::hint::cold_path;

use verbs::{
    CqId, CtxId, Errno, Gid, QpAttr, QpCap, QpCreated, QpId, QpInit, QpState, QpType, Qpn, Result, XrcdId, limits,
};
use wire::{Env, Nanos};

use crate::Engine;
use crate::counts::Counts;
use crate::objects::managed::Side;
use crate::qp::{Gates, Handed, Qp};
use crate::rc::state::RcState;
use crate::same_host::state::{SameHostState, Ticket};
use crate::ud::state::Unreliable;
use crate::wq::in_place_ring::InPlaceRing;
use crate::wq::rq::RecvQueue;
use crate::wq::sq::SendQueue;

/// Requests under way for which every queue pair has room from the beginning.
const INFLIGHT: usize = 8;

impl<P: Env> Engine<P> {
    /// `ibv_create_qp(3)`.
    pub fn create_qp(&mut self, ctx: CtxId, init: &QpInit, user: u64) -> Result<(QpId, QpCreated)> {
        let cap = self.check_init(ctx, init)?;
        let sq = SendQueue::new(cap.max_send_wr, cap.max_send_sge, cap.max_inline_data)?;
        let rq = RecvQueue::new(cap.max_recv_wr, cap.max_recv_sge)?;
        let (block, qpn) = self.qpns.claim().ok_or(Errno::ENOMEM)?;
        let init = QpInit { cap, ..*init };
        let is_iwarp = self.is_iwarp(ctx);
        // A new queue pair of iWARP is found in INIT (Linux: siw_query_qp): there is nothing to be set before.
        let state = if is_iwarp { QpState::Init } else { QpState::Reset };
        // Words of destroyed queue pairs serve again: as many live as there were queue pairs at one time.
        // They begin at random, so that another process's word at the same address does not pass for one.
        let first = self.env.random();
        let ticket = self.tickets.pop().unwrap_or_else(|| Box::leak(Box::new((first >> 16).into())));
        let id = self
            .qps
            .insert_with(|id| {
                Box::new(Qp {
                    id,
                    ctx,
                    user,
                    qpn,
                    init,
                    state,
                    attr: QpAttr::default(),
                    mtu: 4096,
                    link: None,
                    from: None,
                    gates: Gates::SHUT,
                    handed: Handed::default(),
                    seek_at: None,
                    seek_pause: 0,
                    sq,
                    rq,
                    inflight: InPlaceRing::with_capacity(INFLIGHT),
                    unlisted: 0,
                    cursor: 0,
                    halted: false,
                    rc: RcState::default(),
                    same_host: SameHostState::new(Ticket::new(ticket)),
                    unreliable: Unreliable::default(),
                    stream: None,
                    is_iwarp,
                    timed: false,
                    timer_at: None,
                    recv: None,
                    last_wqe_told: false,
                    queued: false,
                    parked: false,
                    counts: Counts::default(),
                    cross_channel: false,
                })
            })
            .ok_or(Errno::ENOMEM)?;
        self.qpns.set(block, qpn, id);
        self.count_users(&init, 1);
        Ok((id, QpCreated { qpn, cap }))
    }

    /// Checks the attributes of a new queue pair; gives the sizes that it gets.
    fn check_init(&self, ctx: CtxId, init: &QpInit) -> Result<QpCap> {
        self.ctxs.get(ctx).ok_or(Errno::EINVAL)?;
        let mut cap = init.cap;
        let ty = init.qp_type;
        // Sizes of queues that do not exist are not checked: receives with a shared queue (ibv_create_qp(3)), and the
        // halves that XRC queue pairs lack.
        if !ty.sends() {
            (cap.max_send_wr, cap.max_send_sge, cap.max_inline_data) = (0, 0, 0);
        }
        if !ty.receives() || init.srq.is_some() {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        if ty != QpType::Rc {
            self.not_in_iwarp(ctx)?;
        }
        if cap.max_send_wr > limits::MAX_QP_WR
            || cap.max_recv_wr > limits::MAX_QP_WR
            || cap.max_send_sge > limits::MAX_SGE
            || cap.max_recv_sge > limits::MAX_SGE
            || cap.max_inline_data > limits::MAX_INLINE
        {
            return Err(Errno::EINVAL);
        }
        if let Some(pd) = init.pd
            && self.pd_ctx(pd)? != ctx
        {
            return Err(Errno::EINVAL);
        }
        let cq_ok = |cq: Option<CqId>| cq.is_some_and(|cq| self.done.cqs.get(cq).is_some_and(|cq| cq.ctx == ctx));
        if ty == QpType::XrcTgt {
            let xrcd = init.xrcd.ok_or(Errno::EINVAL)?;
            if self.xrcds.get(xrcd).is_none_or(|xrcd| xrcd.ctx != ctx) {
                return Err(Errno::EINVAL);
            }
        } else if init.pd.is_none() || !cq_ok(init.send_cq) {
            return Err(Errno::EINVAL);
        }
        if ty.receives() && !cq_ok(init.recv_cq) {
            return Err(Errno::EINVAL);
        }
        if let Some(srq) = init.srq {
            let srq = self.srqs.get(srq).ok_or(Errno::EINVAL)?;
            if srq.ctx != ctx || srq.xrc.is_some() || !ty.receives() {
                return Err(Errno::EINVAL);
            }
        }
        if ty.sends() {
            cap.max_send_sge = cap.max_send_sge.max(1);
        }
        if ty.receives() && init.srq.is_none() {
            cap.max_recv_sge = cap.max_recv_sge.max(1);
        }
        Ok(cap)
    }

    fn count_users(&mut self, init: &QpInit, by: i32) {
        for cq in [init.send_cq, init.recv_cq].into_iter().flatten() {
            self.use_cq(cq, by);
        }
        if let Some(pd) = init.pd.and_then(|pd| self.pds.get_mut(pd)) {
            pd.users = pd.users.wrapping_add_signed(by);
        }
        if let Some(srq) = init.srq.and_then(|srq| self.srqs.get_mut(srq)) {
            srq.users = srq.users.wrapping_add_signed(by);
        }
        if let Some(xrcd) = init.xrcd.and_then(|x| self.xrcds.get_mut(x)) {
            xrcd.users = xrcd.users.wrapping_add_signed(by);
        }
    }

    /// `ibv_destroy_qp(3)`: EBUSY while it is attached to a multicast group, or a region lies upon its entries. Its
    /// completions vanish from the queues.
    pub fn destroy_qp(&mut self, id: QpId) -> Result<()> {
        self.qps.get(id).ok_or(Errno::EINVAL)?;
        if self.groups.values().any(|qps| qps.contains(&id)) {
            return Err(Errno::EBUSY);
        }
        if [Side::Send, Side::Recv].into_iter().any(|side| self.is_exported(id, side)) {
            return Err(Errno::EBUSY);
        }
        self.drop_qp(id);
        Ok(())
    }

    /// Sends what a queue pair owes its peer, as far as there is room, before the queue pair is destroyed or leaves its
    /// connection. This program has been told of the executed requests. Without an answer, the peer would try them
    /// until they fail.
    pub fn send_owed(&mut self, id: QpId, now: Nanos) {
        let Some(mut qp) = self.checkout_qp(id) else { return };
        (self.moved, self.turn) = (0, 0);
        let _ = self.run_responses(&mut qp, now);
        self.qps.put_back(id, qp);
    }

    pub(super) fn drop_qp(&mut self, id: QpId) {
        let groups: Vec<Gid> = self.groups.iter().filter(|(_, qps)| qps.contains(&id)).map(|(gid, _)| *gid).collect();
        for gid in groups {
            let _ = self.detach_mcast(id, &gid);
        }
        let Some(mut qp) = self.qps.remove(id) else { return };
        if qp.parked {
            self.unpark_one(&mut qp);
        }
        self.stop_waiting(&mut qp);
        self.hide_qp(&mut qp);
        self.release_single_copy(&mut qp);
        self.give_back_kept(&mut qp);
        self.tickets.push(qp.same_host.ticket.word());
        self.gone += &qp.counts.counters;
        for cq in [qp.init.send_cq, qp.init.recv_cq].into_iter().flatten() {
            self.done.forget(cq, id);
        }
        for (cq, n) in qp.handed_to() {
            self.done.handed_over(cq, n);
        }
        self.invalidate_all(id);
        self.qpns.release(qp.qpn);
        self.count_users(&qp.init, -1);
        self.mind_timers();
    }

    /// Lends a queue pair out of the table, all its requests listed; [`crate::slab::Slab::put_back`] must follow.
    #[inline]
    pub(crate) fn checkout_qp(&mut self, id: QpId) -> Option<Box<Qp>> {
        let mut qp = self.qps.checkout(id)?;
        if qp.list_unlisted() {
            // A program or peer with access to the send queue has overwritten the entry. The request completes when it
            // is the oldest.
            cold_path();
            qp.halted = true;
            if !qp.queued && !qp.parked {
                qp.queued = true;
                self.ready.push_back(id);
            }
        }
        Some(qp)
    }

    /// `ibv_query_qp(3)`.
    pub fn query_qp(&self, id: QpId) -> Result<(QpAttr, QpInit)> {
        let qp = self.qps.get(id).ok_or(Errno::EINVAL)?;
        let mut attr = qp.attr;
        attr.state = qp.state;
        attr.cur_state = qp.state;
        attr.cap = qp.init.cap;
        attr.sq_draining = qp.state == QpState::Sqd && !qp.inflight.is_empty();
        if qp.state != QpState::Reset {
            attr.sq_psn =
                if matches!(qp.state, QpState::Rts | QpState::Sqd) { qp.rc.next_psn.get() } else { attr.sq_psn };
            attr.rq_psn = qp.rc.epsn.get();
        }
        Ok((attr, qp.init))
    }

    /// The state that a queue pair is in.
    pub fn qp_state(&self, id: QpId) -> Result<QpState> {
        self.qps.get(id).map(|qp| qp.state).ok_or(Errno::EINVAL)
    }

    /// The XRC target with this number in this domain (`ibv_open_qp(3)`).
    pub fn find_xrc_tgt(&self, xrcd: XrcdId, qpn: Qpn) -> Option<QpId> {
        let id = self.qpns.find(qpn)?;
        let qp = self.qps.get(id)?;
        (qp.init.qp_type == QpType::XrcTgt && qp.init.xrcd == Some(xrcd)).then_some(id)
    }
}
