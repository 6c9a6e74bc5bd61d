//! The short way of a small SEND: what `requester`, `responder` and `respond` would do for it and its acknowledgement,
//! without what cannot be the case.
//!
//! **Out.** A request takes it at its post, if nothing stands before it: the connection is in RTS and has a link, everything posted
//! earlier has gone out, and no retry is waited for. Of its entry in the send queue only that is written which is asked
//! for once a request has been executed: number, flags, inline data. Its packet is the same.
//!
//! **In.** A packet takes it that is a whole message, and the expected one, for a receive with one entry, on a connection (in RTR
//! too, but for the first packet there) where nothing but an acknowledgement is owed, and nothing under way.
//!
//! **Acknowledging.** Nothing else is owed or to be sent.
//!
//! **Acknowledged.** What is acknowledged are SENDs, and all that is under way has gone out.
//!
//! Whatever is out of the ordinary (also a list that would have to grow, and others that wait for room on a
//! link) leaves it to the long way, having done nothing.

use std::hint::cold_path;

use verbs::{
    Completion, CqId, Opcode, Psn, QpId, QpState, QpType, SendBody, SendData, SendFlags, SendWr, WcOpcode, WcStatus,
};

use crate::Engine;
use crate::complete::sent;
use crate::cq::{Cqe, Frees};
use crate::modify::timeout_nanos;
use crate::platform::{
    Head, LinkId, Nanos, Packet, PacketOp, Payload, Platform, ShortPacket, Span, packet_flags as flag,
};
use crate::qp::{Qp, Response, Way};
use crate::receive::received;
use crate::region::NULL_ADDR;
use crate::requester::MOST_PSNS;
use crate::responder::ACK;
use crate::rq::set_list;
use crate::run::arm;

/// The longest message, in bytes: no longer than the shortest MTU, so that it is one packet.
const LONGEST: u32 = 256;

/// Whether the short way may be taken, asked [`Engine::has_express`]. A build with `--cfg without_taps`, which is to show
/// what asking costs, does not ask.
#[inline(always)]
fn may(has_express: bool) -> bool {
    cfg!(without_taps) || has_express
}

/// What became of a packet that was given to [`Engine::receive_short`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Short {
    /// Nothing: it is not for the short way.
    LongWay,
    /// It has been dealt with.
    Taken,
    /// And a completion was handed out.
    Completed {
        /// [`Engine::expects_completions`], as far as the same queue pair tells: true, or not known.
        expects: bool,
    },
}

/// The payload of a packet that comes in.
#[derive(Clone, Copy)]
enum Body<Rx> {
    /// Where the wire has it.
    Rx(Rx),
    /// Here, in the order of memory, and how many bytes of it.
    Word(u64, u32),
}

impl<Rx: Copy> Body<Rx> {
    #[inline(always)]
    fn len(self, platform: &impl Platform<Rx = Rx>) -> u32 {
        match self {
            Body::Rx(rx) => platform.rx_len(rx),
            Body::Word(_, len) => len,
        }
    }

    /// Copies it to memory. False if that is not there.
    #[inline(always)]
    fn put(self, platform: &mut impl Platform<Rx = Rx>, span: &Span) -> bool {
        let stored = match self {
            Body::Rx(rx) => platform.rx_scatter(rx, 0, std::slice::from_ref(span)),
            // Apart, because what is known to be 8 bytes long is one store.
            Body::Word(word, 8) => platform.store(span.addr, span.guarded, &word.to_ne_bytes()),
            Body::Word(word, len) => {
                let bytes = word.to_ne_bytes();
                platform.store(span.addr, span.guarded, bytes.get(..len as usize).unwrap_or_default())
            }
        };
        stored.is_ok()
    }
}

impl<P: Platform> Engine<P> {
    /// Posts a request and sends it, if that is all there is to do.
    ///
    /// What `check` would refuse, and what would find no place in the queue, is not for here.
    #[inline]
    pub(crate) fn express(&mut self, id: QpId, wr: &SendWr<'_>, now: Nanos) -> bool {
        let asked = matches!(wr.opcode, Opcode::Send | Opcode::SendWithImm)
            && !matches!(wr.body, SendBody::Datagram { .. })
            && !wr.flags.contains(SendFlags::IP_CSUM)
            && may(self.has_express)
            && self.parked.is_empty();
        if !asked {
            return false;
        }
        let Some(qp) = self.qps.get_mut(id).map(Box::as_mut) else { return long_way() };
        let plain = qp.init.qp_type == QpType::Rc
            && qp.state == QpState::Rts
            && !qp.sq.is_full()
            && qp.sq.fetched == qp.sq.posted
            && qp.cursor == qp.inflight.len()
            && !qp.inflight.is_full()
            && !qp.halted
            && qp.rnr_until.is_none()
            && !(qp.reads_out > 0 && wr.flags.contains(SendFlags::FENCE))
            && qp.next_psn.since(qp.unacked).unsigned_abs() < MOST_PSNS;
        if !plain {
            return long_way();
        }
        let Some(link) = qp.link else { return long_way() };
        let mut flags = wr.flags;
        if qp.init.sq_sig_all {
            flags.insert(SendFlags::SIGNALED);
        }
        let (mut prefix, mut span): (&[u8], Option<Span>) = (&[], None);
        let mut listed = None;
        let len = match wr.data {
            SendData::Inline(pieces) => {
                flags.insert(SendFlags::INLINE);
                match pieces {
                    [] => {}
                    [piece] => prefix = piece,
                    _ => return false,
                }
                if prefix.len() > LONGEST.min(qp.sq.max_inline) as usize {
                    return false;
                }
                prefix.len() as u32
            }
            SendData::Sges(&[sge]) => {
                flags.remove(SendFlags::INLINE);
                if sge.length > LONGEST || qp.sq.max_sge == 0 {
                    return false;
                }
                if sge.length > 0 {
                    let Ok(found) = self.mem.local_here(qp.init.pd, &sge, false) else { return long_way() };
                    if found.addr == NULL_ADDR {
                        return long_way();
                    }
                    span = Some(found);
                }
                listed = Some(sge);
                sge.length
            }
            SendData::Sges(_) => return false,
        };
        let (dst, src, psn, imm) = (verbs::Qpn::new(qp.attr.dest_qp_num), qp.qpn, qp.next_psn, wr.imm_or_rkey);
        let mut bits = flag::FIRST | flag::LAST | flag::ACK_REQ;
        if flags.contains(SendFlags::SOLICITED) {
            bits |= flag::SOLICITED;
        }
        if wr.opcode == Opcode::SendWithImm {
            bits |= flag::IMM;
        }
        // For each that sends a packet of its own: most need it in registers only.
        let packet = || {
            let mut packet = Packet::new(PacketOp::Send, dst, src, psn);
            (packet.flags, packet.imm, packet.len, packet.dma_len) = (bits, imm, len, len);
            packet
        };
        // The packet first: while its cache line is on its way, there is time for the rest.
        let mut word = [0; 8];
        let sent = match &span {
            None if len <= 8 => self.platform.send_short(link, &packet(), prefix),
            // Apart, because what is known to be 8 bytes long is one load.
            Some(span) if len == 8 => {
                let loaded = self.platform.load(span.addr, span.guarded, &mut word).is_ok();
                if loaded { self.platform.send_short(link, &packet(), &word) } else { None }
            }
            span => {
                let payload = Payload { prefix, spans: span.as_slice() };
                self.platform.send(link, &packet(), payload).is_ok().then(|| self.platform.sent_mark(link))
            }
        };
        let Some(mark) = sent else { return long_way() };
        match &listed {
            Some(sge) => qp.sq.write_sge(wr.opcode, flags, wr.imm_or_rkey, wr.wr_id, sge),
            None => qp.sq.write_inline(wr.opcode, flags, wr.imm_or_rkey, wr.wr_id, prefix),
        }
        // There is room, see above: the packet does not go out twice.
        let Some(e) = qp.inflight.place() else { return long_way() };
        e.number = qp.sq.fetched;
        e.wr_id = wr.wr_id;
        e.opcode = wr.opcode;
        e.flags = flags;
        e.imm = wr.imm_or_rkey;
        e.srqn = 0;
        e.body = SendBody::Plain;
        set_list(&mut e.sges, listed.as_slice());
        e.inline_len = prefix.len() as u32;
        e.len = len;
        e.first_psn = qp.next_psn;
        e.psns = 1;
        e.sent = len;
        e.received = 0;
        (e.out, e.done, e.by_ref, e.way) = (true, false, false, Way::Free);
        e.error = None;
        e.since = now;
        (qp.lossy, qp.give_up_at) = (false, None);
        qp.sent_mark = mark;
        qp.sq.posted += 1;
        qp.sq.fetched += 1;
        qp.cursor += 1;
        qp.next_psn = qp.next_psn.plus(1);
        if qp.ack_deadline.is_none()
            && let Some(timeout) = timeout_nanos(qp.attr.timeout)
        {
            qp.ack_deadline = Some(now + timeout);
            arm(&mut self.timed, &mut self.timers, qp, now + timeout);
        }
        #[cfg(test)]
        (self.short_ways[0] += 1);
        true
    }

    /// Executes a SEND that has come over this link, or an acknowledgement, if that is all there is to do.
    #[inline]
    pub(crate) fn express_in(&mut self, id: QpId, link: LinkId, packet: &Packet, rx: P::Rx, now: Nanos) -> bool {
        let nobody = None::<(CqId, fn(&Completion))>;
        let outcome = match packet.op {
            PacketOp::Send => self.express_send_in(id, link, packet, Body::Rx(rx), now, nobody),
            PacketOp::Ack => self.express_ack_in(id, link, packet, now, nobody),
            _ => return false,
        };
        outcome != Short::LongWay
    }

    /// A short packet has come over a link, and this queue is being polled, in which there is nothing. What completes there is handed
    /// out, once at most; other completions go into their queues. [`Short::LongWay`]: nothing was done, and [`Engine::receive`] is to be
    /// asked.
    #[inline(always)]
    pub fn receive_short(
        &mut self,
        link: LinkId,
        short: ShortPacket,
        now: Nanos,
        polled: CqId,
        out: impl FnMut(&Completion),
    ) -> Short {
        self.arrival = link;
        let Some(id) = self.qpns.find(short.dst()) else {
            cold_path();
            return Short::LongWay;
        };
        if short.is_ack() {
            return self.express_ack_in(id, link, short, now, Some((polled, out)));
        }
        let body = Body::Word(short.payload(), short.received());
        self.express_send_in(id, link, short, body, now, Some((polled, out)))
    }

    #[inline(always)]
    fn express_send_in(
        &mut self,
        id: QpId,
        link: LinkId,
        packet: impl Head,
        body: Body<P::Rx>,
        now: Nanos,
        polled: Option<(CqId, impl FnMut(&Completion))>,
    ) -> Short {
        let whole = packet.flags() & !(flag::ACK_REQ | flag::SOLICITED | flag::IMM) == flag::FIRST | flag::LAST;
        if !(whole && may(self.has_express)) {
            return Short::LongWay;
        }
        let Some(qp) = self.qps.get_mut(id).map(Box::as_mut) else { return the_long_way() };
        let plain = qp.init.qp_type == QpType::Rc
            && (qp.state == QpState::Rts || qp.state == QpState::Rtr && qp.comm_est)
            && qp.from == Some(link)
            && packet.src().get() == qp.attr.dest_qp_num
            && packet.psn() == qp.epsn
            && packet.len() <= LONGEST
            && matches!((qp.responses.len(), qp.responses.front()), (0, _) | (1, Some(Response::Ack { .. })))
            && qp.recv.is_none()
            && qp.write.is_none()
            && qp.init.srq.is_none();
        if !plain || body.len(&self.platform) != packet.len() {
            return the_long_way();
        }
        if self.prompt
            && let Some(link) = qp.link
        {
            self.platform.expect_send(link);
        }
        let (Some(wqe), Some(cq)) = (qp.rq.wqes.front(), qp.init.recv_cq) else { return the_long_way() };
        let [sge] = wqe.sges[..] else { return the_long_way() };
        if sge.length < packet.len() {
            return the_long_way();
        }
        let Ok(mut span) = self.mem.local_here(qp.init.pd, &sge, true) else { return the_long_way() };
        span.len = packet.len();
        if span.addr == NULL_ADDR || !body.put(&mut self.platform, &span) {
            return the_long_way();
        }
        #[cfg(test)]
        (self.short_ways[1] += 1);
        let wr_id = wqe.wr_id;
        qp.rq.wqes.drop_front();
        qp.fed_at = Some(now);
        qp.nak_sent = false;
        qp.msn = qp.msn.wrapping_add(1) & 0xff_ffff;
        qp.epsn = packet.psn().plus(1);
        qp.tally.received_bytes(packet.len());
        let ack = packet.has(flag::ACK_REQ);
        let mut outcome = Short::Taken;
        if let Some((polled, mut out)) = polled
            && polled == cq
            && self.done.hand_over(cq)
        {
            out(&Completion { timestamp: now, ..received(qp, packet, wr_id, WcOpcode::Recv, packet.len()) });
            qp.rq.held = qp.rq.held.saturating_sub(1);
            outcome = Short::Completed { expects: !qp.rq.wqes.is_empty() || qp.expects_sends() };
        } else {
            let fill = |cqe: &mut Cqe| {
                cqe.wc = received(qp, packet, wr_id, WcOpcode::Recv, packet.len());
                (cqe.qp, cqe.frees) = (id, Frees::Recv);
            };
            if !self.done.push_with(cq, packet.has(flag::SOLICITED), now, fill) {
                cold_path();
                self.lost_completion(id, ack.then_some(packet.psn()), now);
                return Short::Taken;
            }
        }
        if ack {
            let alone = self.prompt
                && qp.responses.is_empty()
                && !qp.queued
                && !qp.parked
                && qp.cursor == qp.inflight.len()
                && qp.sq.fetched == qp.sq.posted;
            // Behind whatever else was sent to the peer: over our own link, which may be another than his.
            if let Some(link) = qp.link.filter(|_| alone)
                && self.platform.send_short(link, &acknowledgement(qp, packet.psn(), qp.msn), &[]).is_some()
            {
                #[cfg(test)]
                (self.short_ways[3] += 1);
                return outcome;
            }
            Self::owe_ack(qp, packet.psn());
            if !qp.queued && !qp.parked {
                qp.queued = true;
                self.ready.push_back(id);
            }
        }
        outcome
    }

    #[cold]
    fn lost_completion(&mut self, id: QpId, ack: Option<Psn>, now: Nanos) {
        let Some(mut qp) = self.qps.lend(id) else { return };
        self.overrun(&mut qp, now);
        if let Some(psn) = ack {
            Self::owe_ack(&mut qp, psn);
        }
        self.schedule(&mut qp);
        self.qps.put_back(id, qp);
    }

    /// Takes an acknowledgement in that ends the oldest requests under way.
    #[inline(always)]
    fn express_ack_in(
        &mut self,
        id: QpId,
        link: LinkId,
        packet: impl Head,
        now: Nanos,
        mut polled: Option<(CqId, impl FnMut(&Completion))>,
    ) -> Short {
        if !may(self.has_express) {
            return Short::LongWay;
        }
        let Some(qp) = self.qps.get_mut(id).map(Box::as_mut) else { return the_long_way() };
        let plain = packet.syndrome() >> 5 == 0
            && qp.init.qp_type == QpType::Rc
            && qp.state == QpState::Rts
            && qp.from == Some(link)
            && packet.src().get() == qp.attr.dest_qp_num
            && qp.cursor == qp.inflight.len()
            && qp.sq.fetched == qp.sq.posted
            && packet.psn().since(qp.next_psn) < 0
            && qp.responses.is_empty()
            && qp.rnr_until.is_none();
        if !plain {
            return the_long_way();
        }
        let mut ended = 0;
        while ended < qp.inflight.len() {
            let e = &qp.inflight[ended];
            if e.psns == 0 || e.done || e.error.is_some() {
                return the_long_way(); // it ends, too, when it is the oldest
            }
            if e.last_psn().since(packet.psn()) > 0 {
                break;
            }
            if !matches!(e.opcode, Opcode::Send | Opcode::SendWithImm) || e.by_ref {
                return the_long_way();
            }
            ended += 1;
        }
        if ended == 0 {
            return the_long_way();
        }
        let mut lost = false;
        let mut outcome = Short::Taken;
        for _ in 0..ended {
            let Some(e) = qp.inflight.front() else { break };
            qp.tally.completed(e, WcStatus::Success);
            let done = e.flags.contains(SendFlags::SIGNALED).then_some((e.number, e.wr_id));
            qp.inflight.drop_front();
            qp.cursor -= 1;
            let (Some((number, wr_id)), Some(cq)) = (done, qp.init.send_cq) else { continue };
            if let Some((_, mut out)) = polled.take_if(|(polled, _)| *polled == cq)
                && self.done.hand_over(cq)
            {
                out(&Completion { timestamp: now, ..sent(qp, number, wr_id).wc });
                qp.sq.retired = qp.sq.retired.max(number + 1);
                outcome = Short::Completed { expects: false };
            } else if !self.done.push_with(cq, false, now, |cqe| *cqe = sent(qp, number, wr_id)) {
                cold_path();
                lost = true;
                break;
            }
        }
        qp.unacked = packet.psn().plus(1);
        Self::progressed(qp);
        // What is left was looked at above: the oldest of it waits for an answer.
        if !lost
            && !qp.inflight.is_empty()
            && let Some(timeout) = timeout_nanos(qp.attr.timeout)
        {
            qp.ack_deadline = Some(now + timeout);
            arm(&mut self.timed, &mut self.timers, qp, now + timeout);
        }
        if lost {
            cold_path();
            self.lost_completion(id, None, now);
        }
        #[cfg(test)]
        (self.short_ways[2] += 1);
        if let Short::Completed { expects } = &mut outcome {
            *expects = self.qps.get(id).is_some_and(|qp| !qp.rq.wqes.is_empty() || qp.expects_sends());
        }
        outcome
    }

    /// Sends the acknowledgement that the first of those who have something to send owes, if that is all there is to do for it.
    #[inline]
    pub(crate) fn express_ack(&mut self) -> bool {
        let Some(&id) = self.ready.front().filter(|_| may(self.has_express)) else { return false };
        let Some(qp) = self.qps.get_mut(id).map(Box::as_mut) else { return long_way() };
        let plain = qp.responses.len() == 1
            && matches!(qp.state, QpState::Rts | QpState::Rtr)
            && qp.cursor == qp.inflight.len()
            && qp.sq.fetched == qp.sq.posted;
        let Some(link) = qp.link.filter(|_| plain) else { return false };
        let Some(&Response::Ack { psn, msn }) = qp.responses.front() else { return false };
        if self.platform.send_short(link, &acknowledgement(qp, psn, msn), &[]).is_none() {
            return false;
        }
        qp.responses.pop_front();
        qp.queued = false;
        self.ready.pop_front();
        #[cfg(test)]
        (self.short_ways[3] += 1);
        true
    }
}

/// What nothing is known against goes the short way, and the processor meets the code of that in a row.
#[inline(always)]
fn long_way() -> bool {
    cold_path();
    false
}

/// The same, on the way in.
#[inline(always)]
fn the_long_way() -> Short {
    cold_path();
    Short::LongWay
}

#[inline(always)]
fn acknowledgement(qp: &Qp, psn: Psn, msn: u32) -> Packet {
    let mut packet = Packet::new(PacketOp::Ack, verbs::Qpn::new(qp.attr.dest_qp_num), qp.qpn, psn);
    (packet.syndrome, packet.imm) = (ACK, msn);
    packet
}
