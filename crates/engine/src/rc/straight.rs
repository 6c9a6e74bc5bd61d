//! The straight run of a managed queue: entries that this process executes by itself are executed to their end, one
//! after the other.
//!
//! Such entries are NOP and WAIT, an RDMA WRITE into memory that is mapped here, and a SEND to a managed receive of
//! this process: the rounds of a group of replicas consist of them. While nothing is under way, such an entry needs no
//! place among the requests under way, no sequence number and no timer. Everything else is left to the ordinary way
//! ([`super::requester`]) before anything has happened for it: other entries, entries that break a rule or a limit,
//! memory that may be gone, a peer that is not ready, captures and faults. So errors have one place.
//!
//! No program can tell one way from the other: `tests::managed_straight` runs programs of entries both ways.

use verbs::{Completion, Opcode, QpState, Qpn, SendFlags, WcOpcode, WcStatus};
use wire::{Env, LinkId, Nanos, OneSidedOp, Span};

use crate::Engine;
use crate::objects::managed::Met;
use crate::qp::Qp;
use crate::region::NULL_ADDR;
use crate::same_host::deliver::AS_TASKS;
use crate::same_host::one_sided::Piece;
use crate::wq::sq::Head;

/// What became of the entry at the head.
enum Step {
    /// It was executed, and the next one follows.
    Done,
    /// The queue waits or rests.
    Over,
    /// Nothing happened: it takes the ordinary way.
    Ordinary,
}

impl<P: Env> Engine<P> {
    /// Executes the entries at the head of a managed queue. False if the entry at the head now takes the ordinary way.
    pub(crate) fn run_straight(&mut self, qp: &mut Qp, now: Nanos) -> bool {
        let alone = qp.inflight.is_empty() && qp.state == QpState::Rts && !qp.halted;
        if !alone || !self.has_fast_path || !self.env.delivers_here() {
            return false;
        }
        while qp.sq.is_runnable() {
            let Some(head) = qp.sq.head() else { return false };
            let step = match head.opcode() {
                Some(Opcode::Nop | Opcode::Wait) => self.straight_task(qp, &head, now),
                Some(Opcode::RdmaWrite) => self.straight_write(qp, &head, now),
                Some(Opcode::Send) => self.straight_send(qp, &head, now),
                _ => Step::Ordinary,
            };
            match step {
                Step::Done => {}
                Step::Over => return true,
                Step::Ordinary => return false,
            }
            // A completion that finds its queue full ends the queue pair (10.2.6.3).
            if qp.state != QpState::Rts || self.turn_is_over() || self.burst_exhausted() {
                return true;
            }
        }
        true
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
        Step::Done
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
        if !qp.same_host.proven || !qp.same_host.reached || !self.straight_span(qp, head) {
            return Step::Ordinary;
        }
        if !self.may_begin(qp, now) {
            return Step::Over;
        }
        let number = qp.sq.fetched;
        self.bytes.clear();
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
        let Some(done) = done else { return Step::Ordinary };
        qp.sq.advance();
        (qp.same_host.peer_epoch, qp.same_host.reached) = (Some(done.epoch), true);
        qp.unreliable.lossy = false;
        self.moved += u64::from(len);
        self.executed += len;
        self.executed_here(link, len, false, now);
        self.straight_end(qp, head, number, WcOpcode::RdmaWrite, len, now);
        Step::Done
    }

    /// Puts the memory of an entry into `self.spans`. False if the entry takes the ordinary way.
    #[inline(always)]
    fn straight_span(&mut self, qp: &Qp, head: &Head) -> bool {
        let Some(Ok(span)) = head.only_sge().map(|sge| self.mem.local_here(qp.init.pd, &sge, false)) else {
            return false;
        };
        self.spans.clear();
        self.spans.push(span);
        !span.guarded && span.addr != NULL_ADDR
    }

    /// A SEND to a managed receive of this process: see [`Engine::deliver_here`].
    #[inline(always)] // the only call
    fn straight_send(&mut self, qp: &mut Qp, head: &Head, now: Nanos) -> Step {
        let Some(sge) = head.only_sge().filter(|sge| sge.length <= qp.mtu) else { return Step::Ordinary };
        if qp.link != Some(LinkId::LOOPBACK) || !qp.same_host.proven || !self.straight_span(qp, head) {
            return Step::Ordinary;
        }
        let Some(id) = self.qpns.find(Qpn::new(qp.attr.dest_qp_num)).filter(|id| *id != qp.id) else {
            return Step::Ordinary;
        };
        let Some(mut peer) = self.checkout_qp(id) else { return Step::Ordinary };
        let step = if self.expects(&peer, qp, sge.length) && self.straight_receive(&mut peer, sge.length) {
            if self.may_begin(qp, now) {
                self.straight_place(&mut peer, qp, head, sge.length, now);
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

    /// Puts the memory of the next receive, as much of it as a message of `len` bytes takes, into `self.remote_spans`.
    /// False if the message takes the ordinary way.
    #[inline(always)]
    fn straight_receive(&mut self, peer: &mut Qp, len: u32) -> bool {
        let pd = peer.init.pd;
        if peer.same_host.kept.is_some() {
            return false;
        }
        let Some(managed) = peer.rq.managed.as_mut().filter(|managed| managed.taken < managed.enabled) else {
            return false;
        };
        self.remote_spans.clear();
        let (mem, spans, mut left) = (&self.mem, &mut self.remote_spans, len);
        let sound = managed.peek(|sge| {
            let take = sge.length.min(left);
            left -= take;
            if take == 0 {
                return true;
            }
            let Ok(span) = mem.local_here(pd, &sge, true) else { return false };
            spans.push(Span { len: take, ..span });
            !span.guarded && span.addr != NULL_ADDR
        });
        sound && left == 0
    }

    /// Copies the message, and completes its receive.
    #[inline(always)]
    fn straight_place(&mut self, peer: &mut Qp, qp: &Qp, head: &Head, len: u32, now: Nanos) {
        // The receive may lie in the memory that is sent: the message is taken as it was.
        let mut message = std::mem::take(&mut self.held);
        message.clear();
        message.resize(len as usize, 0);
        // Memory that is not guarded is there.
        let _ = self.load_spans(&mut message);
        std::mem::swap(&mut self.spans, &mut self.remote_spans);
        let _ = self.store_spans(&message);
        self.held = message;
        self.moved += u64::from(len);
        self.tasks += AS_TASKS;
        self.served += 1;
        self.established(peer);
        peer.unreliable.fed_at = Some(now);
        peer.rc.msn = peer.rc.msn.wrapping_add(1) & 0xff_ffff;
        let Some(wr_id) = peer.rq.managed.as_mut().map(|managed| managed.take_peeked()) else { return };
        let wc = Completion {
            wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            byte_len: len,
            imm_or_rkey: head.imm(),
            qp_num: peer.qpn,
            src_qp: qp.qpn,
            sl: peer.attr.ah.sl,
            ..Default::default()
        };
        self.push_recv(peer, None, wc, head.flags().contains(SendFlags::SOLICITED), now);
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
