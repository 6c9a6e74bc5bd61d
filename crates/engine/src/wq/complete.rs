//! Completing send requests, and flushing queues in error (IBTA vol. 1, 10.3.1, 11.6.2).

use verbs::{EventKind, EventSource, Opcode, QpState, QpType, SendFlags, WcFlags, WcOpcode, WcStatus};
use wire::{Env, Nanos};

use crate::Engine;
use crate::qp::Qp;
use crate::rc::state::Response;
use crate::wq::cq::{Cqe, Frees};

pub(crate) const fn wc_opcode(opcode: Opcode) -> WcOpcode {
    match opcode {
        Opcode::Send | Opcode::SendWithImm | Opcode::SendWithInv => WcOpcode::Send,
        Opcode::RdmaWrite | Opcode::RdmaWriteWithImm => WcOpcode::RdmaWrite,
        Opcode::RdmaRead => WcOpcode::RdmaRead,
        Opcode::CmpAndSwp => WcOpcode::CompSwap,
        Opcode::FetchAndAdd => WcOpcode::FetchAdd,
        Opcode::LocalInv => WcOpcode::LocalInv,
        Opcode::BindMw => WcOpcode::BindMw,
        Opcode::Flush => WcOpcode::Flush,
        Opcode::AtomicWrite => WcOpcode::AtomicWrite,
        Opcode::Nop | Opcode::Wait | Opcode::SendEn | Opcode::RecvEn => WcOpcode::Task,
    }
}

/// The rule that a failed send request shows broken by its program (IBTA vol. 1, 11.6.2).
const fn send_rule(status: WcStatus) -> &'static str {
    match status {
        WcStatus::LocLenErr => {
            "the message is longer than the service or the port allows, or an atomic's result is not 8 bytes"
        }
        WcStatus::LocQpOpErr => "the entry is no request that this queue pair can execute",
        WcStatus::LocProtErr => {
            "a scatter/gather entry is outside its region, has a wrong lkey or protection domain, or lacks LOCAL_WRITE"
        }
        WcStatus::MwBindErr => "the window cannot be bound or invalidated: key, domain, rights, bounds or state",
        WcStatus::BadRespErr => "the response does not fit the request",
        WcStatus::RemInvReqErr => {
            "the responder calls the request invalid: receive too short, misaligned atomic, too many reads, operation \
             not in the queue pair's qp_access_flags"
        }
        WcStatus::RemAccessErr => {
            "the rkey does not allow this access at the responder: key, bounds, rights of the region"
        }
        WcStatus::RemOpErr => {
            "the responder could not complete the request: its receive has a bad scatter/gather entry"
        }
        WcStatus::RetryExcErr => {
            "no acknowledgement within (retry_cnt + 1) timeouts: peer dead, stopped, in the wrong state, or wrong QPN \
             or PSN"
        }
        WcStatus::RnrRetryExcErr => "the responder had no receive posted for rnr_retry + 1 tries",
        _ => "the request failed",
    }
}

/// The completion of a SEND that succeeded.
#[inline]
pub(crate) fn sent(qp: &Qp, number: u64, wr_id: u64) -> Cqe {
    let wc = verbs::Completion {
        wr_id,
        status: WcStatus::Success,
        opcode: WcOpcode::Send,
        qp_num: qp.qpn,
        flags: WcFlags::empty(),
        ..Default::default()
    };
    Cqe { wc, qp: qp.id, frees: Frees::Sends(number + 1) }
}

impl<P: Env> Engine<P> {
    // ---- completion ----

    /// Completes finished requests, oldest first.
    pub(crate) fn retire(&mut self, qp: &mut Qp, now: Nanos) {
        while let Some(e) = qp.inflight.front() {
            if let Some(status) = e.error {
                self.revoke(qp); // before the program hears of the failure
                self.complete_send(qp, status, now);
                if matches!(qp.init.qp_type, QpType::Uc | QpType::Ud) {
                    // 10.3.1.6: the send queue is in error, receives go on
                    qp.state = QpState::Sqe;
                    self.flush_sends(qp, now);
                } else {
                    self.enter_error(qp, now);
                }
                return;
            }
            if !e.done {
                return;
            }
            self.complete_send(qp, WcStatus::Success, now);
        }
    }

    /// Completes a request with an error before those in front of it are done, which are flushed, and ends the queue
    /// pair.
    pub(crate) fn break_at(&mut self, qp: &mut Qp, number: u64, status: WcStatus, now: Nanos) {
        self.retire(qp, now);
        while let Some(e) = qp.inflight.front()
            && e.number <= number
        {
            let status = if e.number == number { status } else { WcStatus::WrFlushErr };
            self.complete_send(qp, status, now);
        }
        if qp.state != QpState::Err {
            self.enter_error(qp, now);
        }
    }

    /// Takes the oldest request out and completes it.
    fn complete_send(&mut self, qp: &mut Qp, status: WcStatus, now: Nanos) {
        let Some(e) = qp.inflight.front() else { return };
        qp.cursor = qp.cursor.saturating_sub(1);
        if e.by_ref {
            self.hold_single_copy(e, -1);
        }
        if e.is_read_like() && !e.done && e.psns > 0 {
            qp.rc.reads_out = qp.rc.reads_out.saturating_sub(1);
        }
        qp.counts.completed(e.opcode, e.len, status);
        let (number, wr_id, opcode, len) = (e.number, e.wr_id, wc_opcode(e.opcode), e.len);
        let silent = status == WcStatus::Success && !e.flags.contains(SendFlags::SIGNALED);
        if let (Some(link), WcStatus::Success, true) = (qp.link, status, qp.init.qp_type.is_reliable()) {
            self.time_copy(link, e, qp.inflight.len() == 1, now);
        }
        qp.inflight.drop_front(1);
        qp.sq.completed(number);
        if silent {
            return;
        }
        if !matches!(status, WcStatus::Success | WcStatus::WrFlushErr) {
            self.done.broken(qp.qpn, Some(wr_id), status, send_rule(status));
        }
        let byte_len =
            if matches!(opcode, WcOpcode::RdmaRead | WcOpcode::CompSwap | WcOpcode::FetchAdd) { len } else { 0 };
        self.push_send(qp, number, wr_id, opcode, status, byte_len, now);
    }

    #[allow(clippy::too_many_arguments)] // the fields of a completion
    pub(crate) fn push_send(
        &mut self,
        qp: &mut Qp,
        number: u64,
        wr_id: u64,
        opcode: WcOpcode,
        status: WcStatus,
        byte_len: u32,
        now: Nanos,
    ) {
        let Some(cq) = qp.init.send_cq else { return };
        let mut cqe = sent(qp, number, wr_id);
        (cqe.wc.status, cqe.wc.opcode, cqe.wc.byte_len) = (status, opcode, byte_len);
        cqe.wc.vendor_err = if status == WcStatus::Success { 0 } else { status as u32 };
        if qp.sq.managed.is_some() {
            cqe.frees = Frees::Nothing; // the place was freed when the request completed
        }
        if !self.done.push(cq, cqe, false, now) {
            self.overrun(qp, now);
        }
    }

    /// Ends a queue pair after the loss of a completion (IBTA vol. 1, C10-91, 11.6.3.2).
    pub(crate) fn overrun(&mut self, qp: &mut Qp, now: Nanos) {
        if qp.state != QpState::Err {
            self.done.async_event(qp.ctx, EventKind::QpFatal, EventSource::Qp(qp.id), qp.user);
            self.enter_error(qp, now);
        }
    }

    /// Completes all send requests with a flush error, in order (10.3.1.7: also those that were not signaled).
    pub(crate) fn flush_sends(&mut self, qp: &mut Qp, now: Nanos) {
        self.revoke(qp);
        // A request that was executed behind one that was not is flushed, too: no request completes well behind a
        // failure.
        while !qp.inflight.is_empty() {
            self.complete_send(qp, WcStatus::WrFlushErr, now);
        }
        (qp.cursor, qp.rc.reads_out, qp.halted) = (0, 0, false);
        self.stop_waiting(qp);
        qp.unreliable.full_links.clear();
        (qp.rc.ack_deadline, qp.rc.rnr_until) = (None, None);
        while let Some((number, wqe)) = qp.sq.fetch() {
            let (wr_id, opcode) = match wqe {
                Some(wqe) => (wqe.wr_id, wc_opcode(wqe.opcode)),
                None => (qp.sq.wr_id(number), WcOpcode::Send),
            };
            self.push_send(qp, number, wr_id, opcode, WcStatus::WrFlushErr, 0, now);
        }
    }

    /// Completes all receives of the queue pair's own queue with a flush error.
    pub(crate) fn flush_recvs(&mut self, qp: &mut Qp, now: Nanos) {
        for progress in [qp.same_host.kept.take(), qp.recv.take()].into_iter().flatten() {
            self.push_recv_error(qp, progress.wqe.wr_id, progress.srq, WcStatus::WrFlushErr, now);
        }
        while let Some(wqe) = qp.rq.flush() {
            self.push_recv_error(qp, wqe.wr_id, None, WcStatus::WrFlushErr, now);
        }
    }

    /// Goes to the error state: all posted requests are flushed, sends first (10.3.1.7).
    pub(crate) fn enter_error(&mut self, qp: &mut Qp, now: Nanos) {
        qp.state = QpState::Err;
        if let Some(stream) = &mut qp.stream {
            stream.over = true;
            self.streams.push_back(qp.id);
        }
        self.hide_qp(qp);
        // 9.7.5.1: responses go out in order, and a NAK tells that all requests before it were executed. So the
        // responses that are owed for those requests go out before the NAK: without its result, an earlier READ or
        // atomic would be tried until it fails. Without a NAK, the responses go out that need no more of this queue
        // pair: the peer would try the executed requests until they fail.
        let refused =
            qp.rc.responses.iter().rposition(|r| matches!(r, Response::Nak { .. })).map_or(0, |last| last + 1);
        let short = |r: &&Response| matches!(r, Response::Ack { .. } | Response::Atomic { .. });
        let executed = qp.rc.responses.iter().take_while(short).count();
        qp.rc.responses.truncate(refused.max(executed));
        if qp.parked && qp.rc.responses.is_empty() {
            self.unpark_one(qp); // the queue pair has nothing to find room for
        }
        qp.rc.write = None;
        self.flush_sends(qp, now);
        self.flush_recvs(qp, now);
        if qp.init.srq.is_some() && !qp.last_wqe_told {
            // 10.3.1.7, 11.6.3.1: from now on the queue pair takes nothing from the shared queue
            qp.last_wqe_told = true;
            self.done.async_event(qp.ctx, EventKind::QpLastWqeReached, EventSource::Qp(qp.id), qp.user);
        }
    }
}
