//! The responder: executes a peer's requests and owes it responses (IBTA vol. 1, 9.7.4, 9.7.5, 9.9.3).
//!
//! Whatever a packet says is from outside: each value is checked where it is used, against our own state.

use verbs::{Access, EventKind, EventSource, Psn, QpState, QpType, RKey, WcOpcode, WcStatus, limits};
use wire::{AtomicOp, Env, Nanos, PIECE, Packet, PacketOp, packet_flags as flag};

use crate::Engine;
use crate::copies::Source;
use crate::qp::Qp;
use crate::rc::refused::{
    INVALID, NAK, NAK_INVALID_REQUEST, NAK_REMOTE_ACCESS, NAK_REMOTE_OPERATIONAL, NAK_SEQUENCE, NAK_SINGLE_COPY,
    RNR_NAK, Refused, refusal_rule, refused_copy,
};
use crate::rc::state::{Into, Response, WriteProgress};
use crate::region::{LocalFault, NULL_ADDR, RemoteFault};

/// Responses that may be owed. Requests of a peer that does not take them are not heard any further.
pub(super) const MOST_OWED: usize = 1024;

/// 9.9.3: an operation for which the queue pair is not set up (`qp_access_flags` of `ibv_modify_qp(3)`) is an
/// unsupported OpCode. As such it is an invalid request, whatever the region permits, and also where there are no bytes
/// and no key is looked at. Linux's rxe does the same (`check_op_valid`).
fn supports(qp: &Qp, need: Access) -> Result<(), Refused> {
    if qp.attr.access.contains(need) { Ok(()) } else { Err(INVALID) }
}

impl<P: Env> Engine<P> {
    /// Takes a request for a connected queue pair.
    pub(crate) fn request(&mut self, qp: &mut Qp, packet: &Packet, rx: Source<P::Rx>, now: Nanos) {
        let receives = matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        let legal = match qp.init.qp_type {
            QpType::Rc => !packet.has(flag::XRC),
            QpType::XrcTgt => packet.has(flag::XRC),
            QpType::Uc => matches!(packet.op, PacketOp::Send | PacketOp::Write) && !packet.has(flag::XRC | flag::INV),
            QpType::Ud | QpType::XrcIni => false,
        };
        if !receives || !legal || packet.src.get() != qp.attr.dest_qp_num {
            return; // 9.6: packets for another service, state or connection are dropped silently
        }
        if qp.init.qp_type == QpType::Uc {
            self.unreliable_request(qp, packet, rx, now);
            return;
        }
        if qp.rc.responses.len() >= MOST_OWED {
            return; // the packet counts as lost
        }
        let ahead = packet.psn.since(qp.rc.epsn);
        if ahead > 0 {
            // 9.7.4.1.2: one NAK for a gap, then silence until the gap is closed
            if !qp.rc.nak_sent {
                qp.rc.nak_sent = true;
                let (psn, msn) = (qp.rc.epsn, qp.rc.msn);
                qp.rc.responses.push_back(Response::Nak { psn, syndrome: NAK | NAK_SEQUENCE, msn });
                qp.counts.counters.seq_naks_out += 1;
            }
            return;
        }
        if ahead < 0 {
            self.duplicate(qp, packet);
            return;
        }
        self.established(qp);
        match self.execute(qp, packet, rx, now) {
            Ok(()) => {
                qp.rc.nak_sent = false;
                let psns =
                    if packet.op == PacketOp::ReadRequest { qp.psns(packet.dma_len) } else { qp.psns(packet.len) };
                qp.rc.epsn = packet.psn.plus(psns);
                let answered = flag::LAST | flag::ACK_REQ;
                if packet.flags & answered != 0 && matches!(packet.op, PacketOp::Send | PacketOp::Write) {
                    let psn = qp.rc.epsn.plus(0xff_ffff);
                    Self::owe_ack(qp, psn, qp.rc.msn, !packet.has(flag::ACK_REQ));
                }
            }
            Err(refused) => self.refuse(qp, packet, refused, now),
        }
    }

    /// 11.6.3.1: notes the first packet in RTR.
    pub(crate) fn established(&mut self, qp: &mut Qp) {
        if qp.state == QpState::Rtr && !qp.rc.comm_est {
            qp.rc.comm_est = true;
            self.done.async_event(qp.ctx, EventKind::CommEst, EventSource::Qp(qp.id), qp.user);
            if qp.init.qp_type == QpType::Uc {
                self.publish_qp(qp);
            }
        }
    }

    /// `quiet`: the requester does not have to be woken for it.
    #[inline]
    pub(crate) fn owe_ack(qp: &mut Qp, psn: Psn, msn: u32, quiet: bool) {
        if let Some(Response::Ack { psn: last, msn: last_msn, quiet: all_quiet }) = qp.rc.responses.back_mut() {
            (*last, *last_msn) = (psn, msn); // acknowledgements are cumulative (9.7.5.1)
            *all_quiet &= quiet;
        } else {
            qp.rc.responses.push_back(Response::Ack { psn, msn, quiet });
        }
    }

    pub(crate) fn refuse(&mut self, qp: &mut Qp, packet: &Packet, refused: Refused, now: Nanos) {
        let (psn, msn) = (packet.psn, qp.rc.msn);
        let nak = |code: u8| Response::Nak { psn, syndrome: NAK | code, msn };
        match refused {
            Refused::NotReady => {
                qp.rc.nak_sent = true; // packets that follow before the retry are dropped (9.7.5.2.8)
                qp.counts.counters.rnr_naks_out += 1;
                let syndrome = RNR_NAK | qp.attr.min_rnr_timer & 31;
                qp.rc.responses.push_back(Response::Nak { psn, syndrome, msn });
            }
            Refused::Access(fault) => {
                let says = (WcStatus::LocAccessErr, EventKind::QpAccessErr, fault.rule());
                self.fail_request(qp, nak(NAK_REMOTE_ACCESS), says, now);
            }
            Refused::Nak(code, status, event) => {
                self.fail_request(qp, nak(code), (status, event, refusal_rule(code)), now);
            }
            Refused::Local(code, status) => {
                let wr_id = qp.recv.as_ref().map(|r| r.wqe.wr_id);
                self.done.broken(qp.qpn, wr_id, status, refusal_rule(code));
                qp.rc.responses.push_back(nak(code));
                self.fail_recv(qp, status, now);
                self.enter_error(qp, now);
            }
            Refused::Unanswered(status) => {
                let wr_id = qp.recv.as_ref().map(|r| r.wqe.wr_id);
                let rule = "responder: the key to invalidate is not that of a window bound by this queue pair";
                self.done.broken(qp.qpn, wr_id, status, rule);
                self.fail_recv(qp, status, now);
                // Earlier requests were executed, and their answers are owed still.
                let owed = std::mem::take(&mut qp.rc.responses);
                self.enter_error(qp, now);
                qp.rc.responses = owed;
            }
            Refused::Source(code) => {
                qp.rc.nak_sent = true;
                qp.rc.responses.push_back(nak(code));
            }
        }
    }

    /// Answers a request of the peer that is at fault, and tells this side.
    fn fail_request(&mut self, qp: &mut Qp, answer: Response, says: (WcStatus, EventKind, &'static str), now: Nanos) {
        let (status, event, rule) = says;
        self.done.broken(qp.qpn, None, status, rule);
        qp.rc.responses.push_back(answer);
        self.fail_recv(qp, status, now);
        self.done.async_event(qp.ctx, event, EventSource::Qp(qp.id), qp.user);
        self.enter_error(qp, now);
    }

    /// Handles a packet from before the expected one (9.7.5.1.3): acknowledges again, reads again, answers atomics from
    /// memory.
    fn duplicate(&mut self, qp: &mut Qp, packet: &Packet) {
        qp.counts.counters.duplicates += 1;
        match packet.op {
            PacketOp::Send | PacketOp::Write if packet.flags & (flag::LAST | flag::ACK_REQ) != 0 => {
                let psn = qp.rc.epsn.plus(0xff_ffff);
                Self::owe_ack(qp, psn, qp.rc.msn, false);
            }
            PacketOp::ReadRequest => {
                let again = Response::Read {
                    psn: packet.psn,
                    addr: packet.remote_addr,
                    rkey: packet.rkey,
                    len: packet.dma_len,
                    sent: 0,
                    msn: qp.rc.msn,
                    first_offset: packet.imm,
                    again: true,
                    into: None,
                };
                let limit = usize::from(qp.attr.max_dest_rd_atomic).max(1) * 2;
                let end = packet.psn.plus(qp.psns(packet.dma_len));
                // Data that are still to be sent, or have been sent and not taken, come without a new request. Sending
                // them twice would make a slow link slower, until nothing but repetitions came through.
                let comes = qp.rc.responses.iter().any(|response| match response {
                    Response::Read { psn, len, sent, .. } => {
                        psn.plus(sent / qp.mtu).since(packet.psn) <= 0 && psn.plus(qp.psns(*len)).since(end) >= 0
                    }
                    _ => false,
                });
                let (mark, behind) = qp.rc.answered;
                let on_its_way =
                    packet.psn.since(behind) < 0 && qp.link.is_some_and(|link| !self.env.taken(link, mark));
                if end.since(qp.rc.epsn) <= 0 && qp.rc.responses.len() < limit && !comes && !on_its_way {
                    qp.rc.responses.push_back(again);
                }
            }
            PacketOp::CompareSwap | PacketOp::FetchAdd | PacketOp::AtomicWrite | PacketOp::Flush => {
                if let Some(&(psn, value)) = qp.rc.atomics.iter().rev().find(|(psn, _)| *psn == packet.psn) {
                    let again = Response::Atomic { psn, value, msn: qp.rc.msn, again: true };
                    if !qp.rc.responses.contains(&again) {
                        qp.rc.responses.push_back(again);
                    }
                }
            }
            _ => {}
        }
    }

    /// Executes the expected packet.
    fn execute(&mut self, qp: &mut Qp, packet: &Packet, rx: Source<P::Rx>, now: Nanos) -> Result<(), Refused> {
        // 9.7.4.1.3: the sequence of first, middle and last
        let in_message = qp.recv.is_some() || qp.rc.write.is_some();
        let continues = !packet.has(flag::FIRST);
        let fits = match packet.op {
            PacketOp::Send => continues == qp.recv.is_some() && qp.rc.write.is_none(),
            PacketOp::Write => continues == qp.rc.write.is_some() && qp.recv.is_none(),
            _ => !in_message,
        };
        // 9.7.4.1.6: the lengths of first and middle packets
        let carries = matches!(packet.op, PacketOp::Send | PacketOp::Write);
        if carries && !packet.is_cut_by(qp.mtu) {
            return Err(INVALID);
        }
        // Only a SEND invalidates, and then it carries no immediate value.
        let invalidates = packet.has(flag::INV) && (packet.op != PacketOp::Send || packet.has(flag::IMM));
        if !fits || invalidates {
            return Err(INVALID);
        }
        let done = match packet.op {
            PacketOp::Send => self.execute_send(qp, packet, rx, now),
            PacketOp::Write => self.execute_write(qp, packet, rx, now),
            PacketOp::ReadRequest => self.execute_read(qp, packet, rx),
            PacketOp::CompareSwap | PacketOp::FetchAdd | PacketOp::AtomicWrite => self.execute_atomic(qp, packet),
            PacketOp::Flush => self.execute_flush(qp, packet),
            _ => Err(INVALID),
        };
        // The program is at work on a message that ends a receive. It does not notice pieces before that, and RDMA.
        let unseen = match packet.op {
            PacketOp::Send => !packet.has(flag::LAST) && !packet.has(flag::BY_REF),
            _ => !packet.has(flag::IMM) || !packet.has(flag::LAST),
        };
        self.served += u64::from(done.is_ok() && unseen);
        done
    }

    // ---- SEND ----

    pub(crate) fn execute_send(
        &mut self,
        qp: &mut Qp,
        packet: &Packet,
        rx: Source<P::Rx>,
        now: Nanos,
    ) -> Result<(), Refused> {
        if packet.has(flag::FIRST) {
            qp.recv = Some(self.take_recv(qp, packet)?);
            qp.unreliable.fed_at = Some(now);
        }
        let Some(progress) = &qp.recv else { return Err(INVALID) };
        let (srq, offset) = (progress.srq, progress.offset);
        if u64::from(offset) + u64::from(packet.len) > u64::from(limits::MAX_MSG) {
            return Err(INVALID);
        }
        let pd = self.recv_pd(qp, srq);
        self.spans.clear();
        self.mem.local_spans(pd, &progress.wqe.sges, offset, packet.len, true, &mut self.spans).map_err(|fault| {
            match fault {
                // 9.9.3, table 59: the message is too long for the receive
                LocalFault::Length => Refused::Local(NAK_INVALID_REQUEST, WcStatus::LocLenErr),
                LocalFault::Protection => Refused::Local(NAK_REMOTE_OPERATIONAL, WcStatus::LocProtErr),
            }
        })?;
        let placed = self.place(qp, packet, rx);
        if let Err(refused) = placed {
            // The packet will come again: a first packet must find the state as it was.
            if packet.has(flag::FIRST) && matches!(refused, Refused::Source(_)) {
                self.give_back_recv(qp);
            }
            return Err(refused);
        }
        let Some(progress) = &mut qp.recv else { return Err(INVALID) };
        progress.offset += packet.len;
        if !packet.has(flag::LAST) {
            return Ok(());
        }
        if packet.has(flag::INV) {
            self.env.wait_for_late_writers();
        }
        if packet.has(flag::INV) && self.invalidate(qp.id, RKey(packet.imm)).is_err() {
            // 9.9.6.3, class J; 11.6.2: a memory management operation error, which verbs.h calls MW_BIND_ERR
            return Err(Refused::Unanswered(WcStatus::MwBindErr));
        }
        qp.rc.msn = qp.rc.msn.wrapping_add(1) & 0xff_ffff;
        let Some(progress) = qp.recv.take() else { return Err(INVALID) };
        let wr_id = progress.wqe.wr_id;
        if let Some(managed) = &mut qp.rq.managed {
            // Queues that wait for the message take it up, not the program, which may sleep.
            self.served += 1;
            managed.reuse(progress.wqe.sges);
        }
        self.complete_recv(qp, packet, wr_id, srq, WcOpcode::Recv, progress.offset, now);
        Ok(())
    }

    /// Brings the data of a SEND or WRITE packet to `self.spans`.
    fn place(&mut self, qp: &Qp, packet: &Packet, rx: Source<P::Rx>) -> Result<(), Refused> {
        if !packet.has(flag::BY_REF) {
            if self.payload_len(rx) != packet.len {
                return Err(INVALID);
            }
            return self.scatter(rx, 0).map_err(|_| Refused::Local(NAK_REMOTE_OPERATIONAL, WcStatus::LocProtErr));
        }
        // A reference has no more data than one packet may bring: the copy is made in one go. An unreliable packet may
        // have waited, so that its link is not known any more.
        if packet.len > PIECE || !qp.init.qp_type.is_reliable() {
            return Err(INVALID);
        }
        let ticket = self.referenced(rx, packet.len).ok_or(INVALID)?;
        if self.spans.iter().any(|s| s.addr == NULL_ADDR) {
            // A null region cannot be the target of a single copy: the initiator shall send the data themselves.
            return Err(Refused::Source(NAK_SINGLE_COPY));
        }
        self.moved += u64::from(packet.len);
        // The copy goes by the link of the packet: the initiator has seen that single copies are permitted there.
        self.env.pull(self.arrival, ticket, &self.remote_spans, &self.spans).map_err(refused_copy)
    }

    // ---- RDMA WRITE ----

    fn execute_write(&mut self, qp: &mut Qp, packet: &Packet, rx: Source<P::Rx>, now: Nanos) -> Result<(), Refused> {
        let progress = if packet.has(flag::FIRST) {
            if packet.dma_len > limits::MAX_MSG {
                return Err(INVALID);
            }
            WriteProgress { rkey: packet.rkey, addr: packet.remote_addr, total: packet.dma_len, offset: 0 }
        } else {
            qp.rc.write.ok_or(INVALID)?
        };
        let end = progress.offset.checked_add(packet.len).ok_or(INVALID)?;
        if end > progress.total || packet.has(flag::LAST) != (end == progress.total) {
            return Err(INVALID); // 9.7.4.1.6: the lengths must add up
        }
        supports(qp, Access::REMOTE_WRITE)?;
        self.spans.clear();
        // C9-88: a message of no bytes needs no key
        if progress.total > 0 {
            let whole = self.mem.remote(
                qp.ctx,
                qp.init.pd,
                qp.id,
                RKey(progress.rkey),
                progress.addr,
                progress.total,
                Access::REMOTE_WRITE,
            );
            let mut span = match whole {
                Ok(span) => span,
                // 11.6.2: a protection error of a WRITE with immediate data is a local access error of the receive that
                // the WRITE would have taken. Each of its packets shows which receive that is.
                Err(fault) => {
                    if packet.has(flag::IMM)
                        && let Ok(recv) = self.take_recv(qp, packet)
                    {
                        qp.recv = Some(recv);
                    }
                    return Err(Refused::Access(fault));
                }
            };
            span.addr = span.addr.wrapping_add(u64::from(progress.offset));
            span.len = packet.len;
            self.spans.push(span);
        }
        let immediate = packet.has(flag::LAST) && packet.has(flag::IMM);
        if immediate {
            // The receive is taken first: without a receive nothing of this packet happens.
            qp.recv = Some(self.take_recv(qp, packet)?);
            qp.unreliable.fed_at = Some(now);
        }
        if packet.len > 0
            && let Err(refused) = self.place(qp, packet, rx)
        {
            if matches!(refused, Refused::Source(_)) {
                self.give_back_recv(qp);
            }
            return Err(refused);
        }
        qp.counts.counters.received_bytes += u64::from(packet.len);
        qp.rc.write = (!packet.has(flag::LAST)).then_some(WriteProgress { offset: end, ..progress });
        if packet.has(flag::LAST) {
            qp.rc.msn = qp.rc.msn.wrapping_add(1) & 0xff_ffff;
        }
        if let Some(recv) = qp.recv.take() {
            let total = progress.total;
            self.complete_recv(qp, packet, recv.wqe.wr_id, recv.srq, WcOpcode::RecvRdmaWithImm, total, now);
        }
        Ok(())
    }

    // ---- RDMA READ ----

    fn reads_owed(qp: &Qp) -> usize {
        qp.rc
            .responses
            .iter()
            .filter(|r| matches!(r, Response::Read { again: false, .. } | Response::Atomic { again: false, .. }))
            .count()
    }

    fn execute_read(&mut self, qp: &mut Qp, packet: &Packet, rx: Source<P::Rx>) -> Result<(), Refused> {
        let len = packet.dma_len;
        if len > limits::MAX_MSG || Self::reads_owed(qp) >= usize::from(qp.attr.max_dest_rd_atomic) {
            return Err(INVALID); // 9.7.4.1.7: more than were agreed on
        }
        self.check_read(qp, packet.rkey, packet.remote_addr, len)?;
        let mut into = None;
        if packet.has(flag::BY_REF) && len > 0 {
            let ticket = self.referenced(rx, len).ok_or(INVALID)?;
            into = Some(Into { spans: self.remote_spans.as_slice().into(), ticket, link: self.arrival });
        }
        qp.rc.msn = qp.rc.msn.wrapping_add(1) & 0xff_ffff;
        qp.rc.responses.push_back(Response::Read {
            psn: packet.psn,
            addr: packet.remote_addr,
            rkey: packet.rkey,
            len,
            sent: 0,
            msn: qp.rc.msn,
            first_offset: packet.imm,
            again: false,
            into,
        });
        Ok(())
    }

    pub(crate) fn check_read(&self, qp: &Qp, rkey: u32, addr: u64, len: u32) -> Result<Option<wire::Span>, Refused> {
        supports(qp, Access::REMOTE_READ)?;
        if len == 0 {
            return Ok(None); // C9-88
        }
        let need = Access::REMOTE_READ;
        let span = self.mem.remote(qp.ctx, qp.init.pd, qp.id, RKey(rkey), addr, len, need);
        span.map(Some).map_err(Refused::Access)
    }

    // ---- atomics, FLUSH ----

    fn execute_atomic(&mut self, qp: &mut Qp, packet: &Packet) -> Result<(), Refused> {
        if Self::reads_owed(qp) >= usize::from(qp.attr.max_dest_rd_atomic) {
            return Err(INVALID);
        }
        let (need, op) = match packet.op {
            PacketOp::CompareSwap => (Access::REMOTE_ATOMIC, AtomicOp::CompareSwap(packet.compare, packet.swap)),
            PacketOp::FetchAdd => (Access::REMOTE_ATOMIC, AtomicOp::FetchAdd(packet.swap)),
            _ => (Access::REMOTE_WRITE, AtomicOp::Write(packet.swap)),
        };
        supports(qp, need)?;
        if !packet.remote_addr.is_multiple_of(8) {
            return Err(INVALID); // 9.4.5: naturally aligned, else an invalid request
        }
        let rkey = RKey(packet.rkey);
        let span = self.mem.remote(qp.ctx, qp.init.pd, qp.id, rkey, packet.remote_addr, 8, need);
        let span = span.map_err(Refused::Access)?;
        if !span.addr.is_multiple_of(8) || span.addr == NULL_ADDR {
            return Err(INVALID);
        }
        let value = self
            .env
            .atomic(span.addr, span.guarded, op)
            .map_err(|_| Refused::Nak(NAK_REMOTE_OPERATIONAL, WcStatus::LocProtErr, EventKind::QpFatal))?;
        Self::owe_result(qp, packet.psn, (packet.op != PacketOp::AtomicWrite).then_some(value));
        Ok(())
    }

    fn owe_result(qp: &mut Qp, psn: Psn, value: Option<u64>) {
        qp.rc.msn = qp.rc.msn.wrapping_add(1) & 0xff_ffff;
        let msn = qp.rc.msn;
        // 9.4.5, 9.7.5.1.3: the results of as many as may be outstanding are kept for duplicates
        if qp.rc.atomics.len() >= usize::from(qp.attr.max_dest_rd_atomic.max(1)) {
            qp.rc.atomics.pop_front();
        }
        qp.rc.atomics.push_back((psn, value));
        qp.rc.responses.push_back(Response::Atomic { psn, value, msn, again: false });
    }

    /// Executes a FLUSH (IBTA vol. 1, A19): memory here is visible at once; the requested placement must have been
    /// granted.
    fn execute_flush(&mut self, qp: &mut Qp, packet: &Packet) -> Result<(), Refused> {
        if Self::reads_owed(qp) >= usize::from(qp.attr.max_dest_rd_atomic) {
            return Err(INVALID);
        }
        let (placement, level) = (packet.syndrome & 3, packet.syndrome >> 4 & 1);
        let mut need = Access::empty();
        need.set(Access::FLUSH_GLOBAL, placement & 1 != 0);
        need.set(Access::FLUSH_PERSISTENT, placement & 2 != 0);
        if need.is_empty() {
            return Err(INVALID);
        }
        supports(qp, need)?;
        let rkey = RKey(packet.rkey);
        if level == 1 {
            let mr = self.mem.find_mr(packet.rkey).and_then(|id| self.mr_info(id));
            let mr = mr.ok_or(Refused::Access(RemoteFault::Key))?;
            if qp.init.pd.is_some_and(|pd| pd != mr.pd) {
                return Err(Refused::Access(RemoteFault::Domain));
            }
            if !mr.access.contains(need) {
                return Err(Refused::Access(RemoteFault::Rights));
            }
        } else {
            let found = self.mem.remote(qp.ctx, qp.init.pd, qp.id, rkey, packet.remote_addr, packet.dma_len, need);
            found.map_err(Refused::Access)?;
        }
        Self::owe_result(qp, packet.psn, None);
        Ok(())
    }

    // ---- unreliable connection ----

    /// UC (IBTA vol. 1, 9.8.2): no acknowledgements; a message with a gap or without a receive is dropped whole.
    pub(crate) fn unreliable_request(&mut self, qp: &mut Qp, packet: &Packet, rx: Source<P::Rx>, now: Nanos) {
        if matches!(rx, Source::Wire(_)) && !qp.unreliable.backlog.is_empty() {
            // The packet goes behind those that already wait, to keep the order; without room it is lost.
            self.hold(qp, packet, rx, now);
            return;
        }
        self.established(qp);
        let before = qp.rc.epsn;
        let expected = packet.psn == before;
        qp.rc.epsn = packet.psn.plus(qp.psns(packet.len));
        if packet.has(flag::FIRST) {
            qp.unreliable.dropping = false;
            self.abandon(qp);
        } else if !expected || qp.unreliable.dropping {
            qp.unreliable.dropping = true;
            self.abandon(qp);
            return;
        }
        match self.execute(qp, packet, rx, now) {
            Ok(()) => {}
            Err(Refused::Local(_, status)) => {
                // Table 59, class A: a receive that is too short or not ours fails, and the queue pair with it.
                self.fail_recv(qp, status, now);
                self.enter_error(qp, now);
            }
            Err(Refused::NotReady) if self.hold(qp, packet, rx, now) => qp.rc.epsn = before,
            Err(_) => {
                qp.unreliable.dropping = true;
                self.abandon(qp);
            }
        }
    }

    /// Drops the message under way; its receive serves the next.
    fn abandon(&mut self, qp: &mut Qp) {
        qp.rc.write = None;
        self.give_back_recv(qp);
    }
}
