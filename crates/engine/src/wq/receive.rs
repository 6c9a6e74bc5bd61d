//! Taking receives out of their queues, giving them back, and completing them.

use verbs::{EventKind, EventSource, QpType, SrqId, WcFlags, WcOpcode, WcStatus};
use wire::{Env, Head, Nanos, Packet, packet_flags as flag};

use crate::Engine;
use crate::qp::Qp;
use crate::rc::refused::{INVALID, Refused};
use crate::wq::cq::{Cqe, Frees};
use crate::wq::rq::RecvProgress;

/// The completion of a receive that succeeded.
#[inline(always)]
pub(crate) fn received(qp: &Qp, head: impl Head, wr_id: u64, opcode: WcOpcode, byte_len: u32) -> verbs::Completion {
    let mut flags = WcFlags::empty();
    flags.set(WcFlags::WITH_IMM, head.has(flag::IMM));
    flags.set(WcFlags::WITH_INV, head.has(flag::INV));
    verbs::Completion {
        wr_id,
        status: WcStatus::Success,
        opcode,
        byte_len,
        imm_or_rkey: head.imm(),
        qp_num: qp.qpn,
        src_qp: head.src(),
        flags,
        pkey_index: 0,
        sl: qp.attr.ah.sl,
        ..Default::default()
    }
}

impl<P: Env> Engine<P> {
    /// Takes the receive for a message out of the message's queue.
    pub(crate) fn take_recv(&mut self, qp: &mut Qp, packet: &Packet) -> Result<RecvProgress, Refused> {
        if qp.init.qp_type.is_reliable() && self.env.withholds_receive(packet) {
            return Err(Refused::NotReady);
        }
        let srq = match qp.init.qp_type {
            QpType::XrcTgt => Some(self.xrc_srq(qp, packet).ok_or(INVALID)?),
            _ => qp.init.srq,
        };
        match qp.same_host.kept.take() {
            Some(kept) if kept.srq == srq => return Ok(RecvProgress { offset: 0, ..kept }),
            Some(kept) => self.give_back(qp, kept),
            None => {}
        }
        let Some(id) = srq else {
            let wqe = qp.rq.take().ok_or(Refused::NotReady)?;
            if let Some(rule) = qp.rq.broken() {
                self.done.broken(qp.qpn, None, WcStatus::LocProtErr, rule);
            }
            return Ok(RecvProgress { wqe, srq: None, offset: 0 });
        };
        let queue = self.srqs.get_mut(id).ok_or(INVALID)?;
        let (wqe, limit) = queue.take().ok_or(Refused::NotReady)?;
        if limit {
            let (ctx, user) = (queue.ctx, queue.user);
            self.done.async_event(ctx, EventKind::SrqLimitReached, EventSource::Srq(id), user);
        }
        Ok(RecvProgress { wqe, srq: Some(id), offset: 0 })
    }

    /// The shared receive queue that an XRC request names; it must belong to the target's domain.
    fn xrc_srq(&self, qp: &Qp, packet: &Packet) -> Option<SrqId> {
        let id = *self.srqns.get(&u32::try_from(packet.swap).ok()?)?;
        let (xrcd, _) = self.srqs.get(id)?.xrc?;
        (qp.init.xrcd == Some(xrcd)).then_some(id)
    }

    /// Gives an unused receive back to the head of its queue. A receive of a shared queue is kept while a peer that was
    /// to help may still copy to it. The peer will have done so when it sends the message again: until then no other
    /// queue pair may have the receive.
    pub(crate) fn give_back_recv(&mut self, qp: &mut Qp) {
        let Some(progress) = qp.recv.take() else { return };
        // Unreliable messages never went by reference.
        let by_ref = qp.init.qp_type.is_reliable() && progress.srq.is_some();
        if by_ref && self.env.has_late_writer(self.arrival) {
            self.give_back_kept(qp);
            qp.same_host.kept = Some(progress);
        } else {
            self.give_back(qp, progress);
        }
    }

    /// Gives back the receive that was kept for the next message.
    pub(crate) fn give_back_kept(&mut self, qp: &mut Qp) {
        if let Some(kept) = qp.same_host.kept.take() {
            self.give_back(qp, kept);
        }
    }

    fn give_back(&mut self, qp: &mut Qp, progress: RecvProgress) {
        let Some(id) = progress.srq else {
            qp.rq.untake(progress.wqe);
            return;
        };
        // The queue may be gone: XRC targets do not hold theirs.
        if let Some(srq) = self.srqs.get_mut(id) {
            srq.queue.held += 1;
            srq.queue.wqes.push_front(progress.wqe);
        }
    }

    pub(crate) fn recv_pd(&self, qp: &Qp, srq: Option<SrqId>) -> Option<verbs::PdId> {
        match srq {
            Some(id) => self.srqs.get(id).map(|s| s.pd),
            None => qp.init.pd,
        }
    }

    #[allow(clippy::too_many_arguments)] // the fields of a completion
    pub(crate) fn complete_recv(
        &mut self,
        qp: &mut Qp,
        packet: &Packet,
        wr_id: u64,
        srq: Option<SrqId>,
        opcode: WcOpcode,
        byte_len: u32,
        now: Nanos,
    ) {
        let wc = received(qp, packet, wr_id, opcode, byte_len);
        self.push_recv(qp, srq, wc, packet.has(flag::SOLICITED), now);
    }

    pub(crate) fn push_recv(
        &mut self,
        qp: &mut Qp,
        srq: Option<SrqId>,
        wc: verbs::Completion,
        solicited: bool,
        now: Nanos,
    ) {
        let cq = match srq.and_then(|id| self.srqs.get(id)).and_then(|s| s.xrc) {
            Some((_, cq)) => Some(cq),
            None => qp.init.recv_cq,
        };
        let Some(cq) = cq else { return };
        qp.counts.received(&wc);
        let managed = srq.is_none() && qp.rq.managed.is_some();
        if managed {
            qp.rq.held = qp.rq.held.saturating_sub(1); // its place is free, polled or not
        }
        let frees = if srq.is_some() || managed { Frees::Nothing } else { Frees::Recv };
        if !self.done.push(cq, Cqe { wc, qp: qp.id, frees }, solicited, now) {
            self.overrun(qp, now);
        }
    }

    pub(crate) fn push_recv_error(
        &mut self,
        qp: &mut Qp,
        wr_id: u64,
        srq: Option<SrqId>,
        status: WcStatus,
        now: Nanos,
    ) {
        let wc = verbs::Completion {
            wr_id,
            status,
            opcode: WcOpcode::Recv,
            vendor_err: status as u32,
            qp_num: qp.qpn,
            ..Default::default()
        };
        self.push_recv(qp, srq, wc, false, now);
    }

    /// Completes the receive under way with an error.
    pub(crate) fn fail_recv(&mut self, qp: &mut Qp, status: WcStatus, now: Nanos) {
        if let Some(progress) = qp.recv.take() {
            self.push_recv_error(qp, progress.wqe.wr_id, progress.srq, status, now);
        }
    }
}
