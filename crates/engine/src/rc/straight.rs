//! The straight run of a managed queue: entries that this process executes by itself are executed to their end, one
//! after the other.
//!
//! Such entries are NOP and WAIT, an RDMA WRITE into memory that is mapped here, and a SEND to a managed receive of
//! this process: the rounds of a group of replicas consist of them. While nothing is under way, such an entry needs no
//! place among the requests under way, no sequence number and no timer. A short SEND to another process has all three,
//! and ends the run. Everything else is left to the ordinary way ([`super::requester`]) before anything has happened
//! for it: other entries, entries that break a rule or a limit, memory that may be gone, a peer that is not ready,
//! captures and faults. So errors have one place.
//!
//! No program can tell one way from the other: `tests::managed_straight` and `tests::managed_wire` run programs of
//! entries both ways.

use verbs::{Completion, Opcode, QpId, QpState, QpType, Qpn, SendFlags, Sge, WcFlags, WcOpcode, WcStatus};
use wire::{Env, LinkId, Nanos, OneSidedOp, Packet, PacketOp, Payload, SHORTEST, Span, packet_flags as flag};

use crate::Engine;
use crate::objects::managed::Met;
use crate::qp::Qp;
use crate::rc::fast::post::is_one_packet;
use crate::rc::requester::Ran;
use crate::rc::responder::MOST_OWED;
use crate::region::{NULL_ADDR, Regions};
use crate::same_host::deliver::AS_TASKS;
use crate::same_host::one_sided::Piece;
use crate::wq::cq::{Completions, Frees};
use crate::wq::sq::Head;

/// What became of the entry at the head.
enum Step {
    /// It was executed, and changed nothing that ends the run.
    Next,
    /// It was executed, and the next one follows unless the run ends.
    Done,
    /// It is under way.
    Sent,
    /// The queue waits or rests.
    Over,
    /// It takes the ordinary way: nothing happened, or it is listed among the requests under way.
    Ordinary,
}

impl<P: Env> Engine<P> {
    /// Executes the entries at the head of a managed queue.
    #[inline(always)] // the only call
    pub(crate) fn run_straight(&mut self, qp: &mut Qp, now: Nanos) -> Ran {
        let alone = qp.inflight.is_empty() && qp.state == QpState::Rts && !qp.halted;
        if !alone || !self.has_fast_path || !self.env.delivers_here() {
            return Ran::Ordinary;
        }
        while qp.sq.is_runnable() {
            let Some(head) = qp.sq.head() else { return Ran::Ordinary };
            let step = match head.opcode() {
                Some(Opcode::Nop | Opcode::Wait) => self.straight_task(qp, &head, now),
                Some(Opcode::RdmaWrite) => self.straight_write(qp, &head, now),
                Some(Opcode::Send) => self.straight_send(qp, &head, now),
                _ => Step::Ordinary,
            };
            match step {
                Step::Next => {}
                // A completion that finds its queue full ends the queue pair (10.2.6.3).
                Step::Done if qp.state != QpState::Rts || self.turn_is_over() || self.burst_exhausted() => {
                    return Ran::Over;
                }
                Step::Done => {}
                // One packet ends no turn.
                Step::Sent if self.waits_behind(qp) => return Ran::Sent,
                Step::Sent => return Ran::Ordinary,
                Step::Over => return Ran::Over,
                Step::Ordinary => return Ran::Ordinary,
            }
        }
        Ran::Over
    }

    /// True if the entry behind a SEND that is under way is a WAIT that is not met: then the queue waits. The other
    /// entries are left to the ordinary way ([`Engine::run_tasks`]).
    #[inline(always)] // the only call
    fn waits_behind(&mut self, qp: &mut Qp) -> bool {
        let plain = qp.sq.is_cyclic() && qp.sq.depth > 1 && qp.sq.is_runnable();
        let Some(head) = qp.sq.head().filter(|_| plain) else { return false };
        let passes = !head.flags().intersects(SendFlags::SIGNALED | SendFlags::FENCE);
        passes && head.opcode() == Some(Opcode::Wait) && matches!(self.try_wait(qp, &head.wait()), Met::No)
    }

    #[inline(always)] // the only call
    fn straight_task(&mut self, qp: &mut Qp, head: &Head, now: Nanos) -> Step {
        let mut step = 0;
        if head.opcode() == Some(Opcode::Wait) {
            match self.try_wait(qp, &head.wait()) {
                Met::Yes => step = head.step(),
                Met::No => return Step::Over,
                Met::Never => return Step::Ordinary,
            }
        }
        if !self.may_begin(qp, now) {
            return Step::Over;
        }
        let number = qp.sq.advance();
        qp.sq.count_on(number, step);
        self.straight_end(qp, head, number, WcOpcode::Task, 0, now);
        if head.flags().contains(SendFlags::SIGNALED) { Step::Done } else { Step::Next }
    }

    /// An RDMA WRITE, in one piece: see [`Engine::one_sided_next`].
    #[inline(always)] // the only call
    fn straight_write(&mut self, qp: &mut Qp, head: &Head, now: Nanos) -> Step {
        let (Some(link), Some(sge)) = (qp.link, head.only_sge()) else { return Step::Ordinary };
        let len = sge.length;
        if len == 0 || len > self.piece || self.executed > 0 && self.executed + len > self.piece {
            return Step::Ordinary;
        }
        // Where the WRITE before was not executed from here, this one is hardly: it is not to be tried in both ways.
        if !qp.same_host.proven || !qp.same_host.reached {
            return Step::Ordinary;
        }
        let Some(span) = self.straight_span(qp, &sge) else { return Step::Ordinary };
        if !self.may_begin(qp, now) {
            return Step::Over;
        }
        let number = qp.sq.fetched;
        self.bytes.clear();
        self.spans.clear();
        self.spans.push(span);
        let piece = Piece {
            op: OneSidedOp::Write,
            addr: head.remote_addr(),
            rkey: head.rkey(),
            before: 0,
            len,
            after: 0,
            queued: qp.queues(number),
        };
        let here = link == LinkId::LOOPBACK && qp.cross_channel;
        let done = if here { self.execute_here(qp, &piece) } else { self.execute_piece(qp, link, &piece) };
        let Some(done) = done else {
            self.has_not_begun(qp); // the ordinary way counts it
            return Step::Ordinary;
        };
        qp.sq.advance();
        (qp.same_host.peer_epoch, qp.same_host.reached) = (Some(done.epoch), true);
        qp.unreliable.lossy = false;
        self.moved += u64::from(len);
        self.executed += len;
        self.executed_here(link, len, false, now);
        self.straight_end(qp, head, number, WcOpcode::RdmaWrite, len, now);
        Step::Done
    }

    /// The memory of an entry. `None` if the entry takes the ordinary way.
    #[inline(always)]
    fn straight_span(&self, qp: &Qp, sge: &Sge) -> Option<Span> {
        let span = self.mem.local_here(qp.init.pd, sge, false).ok()?;
        (!span.guarded && span.addr != NULL_ADDR).then_some(span)
    }

    /// A SEND: to a managed receive of this process ([`Engine::deliver_here`]), or to another process.
    #[inline(always)] // the only call
    fn straight_send(&mut self, qp: &mut Qp, head: &Head, now: Nanos) -> Step {
        let Some(sge) = head.only_sge().filter(|sge| sge.length <= qp.mtu) else { return Step::Ordinary };
        let (true, Some(link)) = (qp.same_host.proven, qp.link) else { return Step::Ordinary };
        let Some(span) = self.straight_span(qp, &sge) else { return Step::Ordinary };
        if link != LinkId::LOOPBACK {
            return self.straight_packet(qp, head, sge, span, link, now);
        }
        let Some(id) = self.qpns.find(Qpn::new(qp.attr.dest_qp_num)).filter(|id| *id != qp.id) else {
            return Step::Ordinary;
        };
        let Some(mut peer) = self.checkout_qp(id) else { return Step::Ordinary };
        let step = if self.expects(&peer, qp, sge.length)
            && next_receive(&self.mem, &mut self.remote_spans, &mut peer, sge.length)
        {
            if self.may_begin(qp, now) {
                self.straight_place(&mut peer, qp, head, span, now);
                Step::Done
            } else {
                Step::Over
            }
        } else {
            Step::Ordinary
        };
        self.schedule(&mut peer);
        self.qps.put_back(id, peer);
        if matches!(step, Step::Done) {
            let number = qp.sq.advance();
            self.executed_here(LinkId::LOOPBACK, sge.length, false, now);
            self.straight_end(qp, head, number, WcOpcode::Send, sge.length, now);
        }
        step
    }

    /// A SEND to another process, in one packet. It is under way then, so that what follows takes the ordinary way.
    #[inline(always)] // the only call
    fn straight_packet(&mut self, qp: &mut Qp, head: &Head, sge: Sge, span: Span, link: LinkId, now: Nanos) -> Step {
        if !is_one_packet(&self.env, link, qp, sge.length, false) || qp.inflight.is_full() {
            return Step::Ordinary;
        }
        if !self.may_begin(qp, now) {
            return Step::Over;
        }
        let (number, psn) = (qp.sq.fetched, qp.rc.next_psn);
        let queued = qp.queues(number);
        let Some(e) = qp.inflight.place() else { return Step::Ordinary };
        head.list_send(number, sge, e);
        (e.since, e.first_psn, e.queued) = (now, psn, queued);
        qp.sq.advance();
        qp.rc.next_psn = psn.plus(1);
        let mut packet = Packet::new(PacketOp::Send, Qpn::new(qp.attr.dest_qp_num), qp.qpn, psn);
        packet.flags = flag::FIRST | flag::LAST;
        if !Self::ends_quietly(qp, &qp.inflight[0]) {
            packet.flags |= flag::ACK_REQ;
        }
        if head.flags().contains(SendFlags::SOLICITED) {
            packet.flags |= flag::SOLICITED;
        }
        (packet.imm, packet.len, packet.dma_len) = (head.imm(), sge.length, sge.length);
        let payload = Payload { prefix: &[], spans: std::slice::from_ref(&span) };
        if self.env.send(link, &packet, payload).is_err() {
            return Step::Ordinary; // it has not been sent, and is tried again
        }
        #[cfg(test)]
        {
            self.ran_straight += 1;
        }
        (qp.unreliable.lossy, qp.unreliable.give_up_at) = (false, None);
        qp.rc.sent_mark = self.env.sent_mark(link);
        self.turn += u64::from(sge.length);
        let e = &mut qp.inflight[0];
        (e.sent, e.out) = (sge.length, true);
        qp.cursor = 1;
        Step::Sent
    }

    /// Takes an acknowledgement of the only request under way, if that is such a SEND. False if it takes the ordinary
    /// way ([`Engine::response`]): then nothing has happened. Of the queue pair nothing changes that a gate depends on.
    #[inline(always)] // the only call
    pub(crate) fn acknowledged_straight(&mut self, id: QpId, link: LinkId, packet: &Packet) -> bool {
        let has_fast_path = self.has_fast_path;
        let Some(qp) = self.qps.fast(id).filter(|qp| has_fast_path && qp.sq.managed.is_some()) else { return false };
        let fits = packet.syndrome >> 5 == 0
            && packet.src.get() == qp.attr.dest_qp_num
            && qp.from == Some(link)
            && qp.init.qp_type == QpType::Rc
            && qp.state == QpState::Rts
            && (qp.inflight.len(), qp.cursor) == (1, 1)
            && qp.rc.rnr_until.is_none()
            && !qp.parked;
        let Some(e) = qp.inflight.front().filter(|_| fits) else { return false };
        let plain = e.opcode == Opcode::Send
            && (e.first_psn, e.psns, e.out, e.done) == (packet.psn, 1, true, false)
            && e.error.is_none()
            && !e.by_ref
            && e.len < SHORTEST
            && !e.flags.contains(SendFlags::SIGNALED);
        if !plain {
            return false;
        }
        #[cfg(test)]
        {
            self.came_straight[1] += 1;
        }
        let (number, len) = (e.number, e.len);
        qp.counts.sent(1, len.into());
        qp.inflight.drop_front(1);
        qp.cursor = 0;
        qp.sq.completed(number);
        qp.rc.unacked = packet.psn.plus(1);
        qp.progressed();
        if !qp.queued && qp.has_work() {
            qp.queued = true;
            self.ready.push_back(id);
        }
        true
    }

    /// Copies the message, and completes its receive.
    #[inline(always)]
    fn straight_place(&mut self, peer: &mut Qp, qp: &Qp, head: &Head, from: Span, now: Nanos) {
        let len = from.len;
        // The receive may lie in the memory that is sent: the message is taken as it was. Memory that is not guarded is
        // there.
        if self.held.len() < len as usize {
            self.held.resize(len as usize, 0);
        }
        let mut rest = self.held.get_mut(..len as usize).unwrap_or_default();
        let _ = self.env.load(from.addr, false, rest);
        for span in &self.remote_spans {
            let Some(part) = rest.split_off_mut(..span.len as usize) else { break };
            let _ = self.env.store(span.addr, false, part);
        }
        self.moved += u64::from(len);
        self.tasks += AS_TASKS;
        self.served += 1;
        self.established(peer);
        let solicited = head.flags().contains(SendFlags::SOLICITED);
        let arrival = Arrival { len, imm: head.imm(), src: qp.qpn, flags: WcFlags::empty(), solicited };
        if !arrive(&mut self.done, peer, arrival, now) {
            self.overrun(peer, now);
        }
    }

    /// Takes a message in that is whole in its packet, for a managed receive. False if the message takes the ordinary
    /// way ([`Engine::request`]): then nothing has happened. Of the queue pair nothing changes that a gate depends on.
    #[inline(always)] // the only call
    pub(crate) fn receive_straight(&mut self, id: QpId, link: LinkId, packet: &Packet, rx: P::Rx, now: Nanos) -> bool {
        let has_fast_path = self.has_fast_path;
        let Some(qp) = self.qps.fast(id).filter(|qp| has_fast_path && qp.rq.managed.is_some()) else { return false };
        let whole = packet.flags & !(flag::SOLICITED | flag::IMM | flag::ACK_REQ) == flag::FIRST | flag::LAST;
        let fits = packet.op == PacketOp::Send
            && whole
            && packet.psn == qp.rc.epsn
            && packet.len <= qp.mtu
            && packet.mtu == 0
            && packet.src.get() == qp.attr.dest_qp_num
            && self.env.rx_len(rx) == packet.len;
        let ready = qp.from == Some(link)
            && qp.init.qp_type == QpType::Rc
            && (qp.state == QpState::Rts || qp.state == QpState::Rtr && qp.rc.comm_est)
            && qp.rc.responses.len() < MOST_OWED
            && qp.recv.is_none()
            && qp.rc.write.is_none()
            && qp.unlisted == 0
            && !qp.parked;
        if !fits || !ready || !next_receive(&self.mem, &mut self.remote_spans, qp, packet.len) {
            return false;
        }
        if self.env.rx_scatter(rx, 0, &self.remote_spans).is_err() {
            return false;
        }
        #[cfg(test)]
        {
            self.came_straight[0] += 1;
        }
        // Queues that wait for the message take it up, not the program, which may sleep.
        self.served += 1;
        (qp.rc.epsn, qp.rc.nak_sent) = (packet.psn.plus(1), false);
        let mut flags = WcFlags::empty();
        flags.set(WcFlags::WITH_IMM, packet.has(flag::IMM));
        let solicited = packet.has(flag::SOLICITED);
        let arrival = Arrival { len: packet.len, imm: packet.imm, src: packet.src, flags, solicited };
        let lost = !arrive(&mut self.done, qp, arrival, now);
        let (msn, quiet) = (qp.rc.msn, !packet.has(flag::ACK_REQ));
        if lost {
            self.finish(id, now, |engine, qp, now| {
                engine.overrun(qp, now);
                Self::owe_ack(qp, packet.psn, msn, quiet);
            });
            return true;
        }
        Self::owe_ack(qp, packet.psn, msn, quiet);
        if !std::mem::replace(&mut qp.queued, true) {
            self.ready.push_back(id);
        }
        true
    }

    /// Completes an entry that was executed.
    #[inline(always)]
    fn straight_end(&mut self, qp: &mut Qp, head: &Head, number: u64, opcode: WcOpcode, len: u32, now: Nanos) {
        #[cfg(test)]
        {
            self.ran_straight += 1;
        }
        qp.counts.sent(1, len.into());
        qp.sq.completed(number);
        if head.flags().contains(SendFlags::SIGNALED) {
            self.push_send(qp, number, head.wr_id(), opcode, WcStatus::Success, 0, now);
        }
    }
}

/// A message that has come to a managed receive.
struct Arrival {
    len: u32,
    imm: u32,
    src: Qpn,
    flags: WcFlags,
    solicited: bool,
}

/// Puts the memory of the next receive, as much of it as a message of `len` bytes takes, into `spans`. False if the
/// message takes the ordinary way.
#[inline(always)]
fn next_receive(mem: &Regions, spans: &mut Vec<Span>, peer: &mut Qp, len: u32) -> bool {
    if peer.same_host.kept.is_some() {
        return false;
    }
    let managed = peer.rq.managed.as_mut().filter(|managed| managed.taken < managed.enabled);
    managed.is_some_and(|managed| managed.peek(mem, peer.init.pd, len, spans))
}

/// Takes the receive that was looked at last, and completes it, in the place of the completion. False if the completion
/// is lost.
#[inline(always)]
fn arrive(done: &mut Completions, peer: &mut Qp, arrival: Arrival, now: Nanos) -> bool {
    peer.unreliable.fed_at = Some(now);
    peer.rc.msn = peer.rc.msn.wrapping_add(1) & 0xff_ffff;
    let Some(wr_id) = peer.rq.managed.as_mut().map(|managed| managed.take_peeked()) else { return true };
    let Some(cq) = peer.init.recv_cq else { return true };
    let Arrival { len, imm, src, flags, solicited } = arrival;
    peer.counts.received_bytes(1, len.into());
    peer.rq.held = peer.rq.held.saturating_sub(1);
    done.push_with(cq, solicited, now, |cqe| {
        cqe.wc = Completion {
            wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            byte_len: len,
            imm_or_rkey: imm,
            qp_num: peer.qpn,
            src_qp: src,
            flags,
            sl: peer.attr.ah.sl,
            ..Default::default()
        };
        (cqe.qp, cqe.frees) = (peer.id, Frees::Nothing);
    })
}
