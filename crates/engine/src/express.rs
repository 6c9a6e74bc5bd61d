//! The short way of a small SEND: what `requester`, `responder` and `respond` would do for it and its acknowledgement,
//! without what cannot be the case.
//!
//! **Out.** A request takes it at its post, if it is no longer than the path MTU, and so one packet, and nothing stands before it: the
//! connection is in RTS and has a link, everything posted earlier has gone out, and no retry is waited for. Its entry in the send queue is all
//! that is kept of it: it is counted, and only listed among the requests under way ([`Qp::list_shorts`]) when something but its acknowledgement asks. Its packet is the same.
//!
//! **In.** A packet takes it that is a whole message, no longer than the path MTU, and the expected one, for a receive with one entry,
//! on a connection (in RTR too, but for the first packet there) where nothing but an acknowledgement is owed, and nothing under way.
//!
//! **Acknowledging.** Nothing else is owed or to be sent.
//!
//! **Acknowledged.** What is acknowledged are SENDs, and all that is under way has gone out.
//!
//! Whatever is out of the ordinary (also a list that would have to grow, and others that wait for room on a
//! link) leaves it to the long way, having done nothing.

mod alone;

use std::collections::VecDeque;
use std::hint::cold_path;

use verbs::{Completion, CqId, Opcode, Psn, QpId, QpState, SendBody, SendData, SendFlags, SendWr, Sge, WcOpcode};

use crate::Engine;
use crate::complete::sent;
use crate::cq::{Completions, Cqe, Frees};
use crate::help::SHORTEST;
use crate::modify::timeout_nanos;
use crate::platform::{
    Head, LinkId, Nanos, Packet, PacketOp, Payload, Platform, ShortPacket, Span, packet_flags as flag,
};
use crate::qp::{Qp, Response};
use crate::receive::received;
use crate::region::NULL_ADDR;
use crate::requester::MOST_PSNS;
use crate::responder::ACK;
use crate::run::arm;
use crate::sq::Executed;

/// No longer than the shortest MTU, in bytes: one packet on every connection.
const SHORT: u32 = 256;

/// Whether a message is one packet, and the wire has its data in that and nowhere else. (No segment is shorter than an MTU.)
#[inline(always)]
fn is_one_packet<P: Platform>(platform: &P, link: LinkId, qp: &Qp, len: u32, inline: bool) -> bool {
    len <= SHORT || len <= qp.mtu && (inline || len <= platform.caps(link).shared_above)
}

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

/// Who polls, and has short packets taken from a link meanwhile.
pub trait Poller<P> {
    /// A completion for it.
    fn completed(&mut self, completion: &Completion);
    /// A packet has been dealt with: its place on the link is free.
    fn taken(&mut self, platform: &mut P, packet: ShortPacket);
    /// The packet behind it, if that is there already, and short.
    fn next(&mut self, platform: &P) -> Option<ShortPacket>;
}

/// Nobody: packets are taken one by one.
struct Nobody;

impl<P> Poller<P> for Nobody {
    #[inline(always)]
    fn completed(&mut self, _completion: &Completion) {}
    #[inline(always)]
    fn taken(&mut self, _platform: &mut P, _packet: ShortPacket) {}
    #[inline(always)]
    fn next(&mut self, _platform: &P) -> Option<ShortPacket> {
        None
    }
}

/// What a SEND is asked to do, but for its data. By itself, so that it stays in registers.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// The program's name for it.
    pub wr_id: u64,
    /// What to do.
    pub opcode: Opcode,
    /// How.
    pub flags: SendFlags,
    /// Immediate data.
    pub imm: u32,
}

/// What a request sends.
#[derive(Clone, Copy)]
enum Data<'a> {
    /// Inline data of 8 bytes. Apart, because what is known to be that long need not be asked for its length.
    Word(&'a [u8; 8]),
    Inline(&'a [u8]),
    Listed(Sge),
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
        if matches!(wr.body, SendBody::Datagram { .. }) {
            return false;
        }
        let ask = Ask { wr_id: wr.wr_id, opcode: wr.opcode, flags: wr.flags, imm: wr.imm_or_rkey };
        // One for each kind: what it need not ask and keep is not asked and kept.
        match wr.data {
            SendData::Sges(&[sge]) => self.express_out(id, ask, Data::Listed(sge), now),
            SendData::Inline([piece]) => self.express_out(id, ask, Data::Inline(piece), now),
            SendData::Inline([]) => self.express_out(id, ask, Data::Inline(&[]), now),
            _ => false,
        }
    }

    /// Posts a SEND of 8 bytes of inline data, and sends it, if that is all there is to do. If not (also for any error), nothing was
    /// done, not even the bytes were looked at, and [`Engine::post_send`] is to be asked.
    #[inline(always)]
    pub fn post_word(&mut self, id: QpId, ask: Ask, word: &[u8; 8], now: Nanos) -> bool {
        self.done.overwritten.is_empty() && self.express_out(id, ask, Data::Word(word), now)
    }

    #[inline(always)]
    fn express_out(&mut self, id: QpId, ask: Ask, data: Data<'_>, now: Nanos) -> bool {
        let asked = matches!(ask.opcode, Opcode::Send | Opcode::SendWithImm)
            && !ask.flags.contains(SendFlags::IP_CSUM)
            && may(self.has_express)
            && self.parked.is_empty();
        if !asked {
            return false;
        }
        let Some(qp) = self.qps.get_mut(id).map(Box::as_mut) else { return long_way() };
        let Some(link) = qp.gate_out() else { return long_way() };
        let plain = !qp.sq.is_full()
            && qp.inflight.len() + qp.shorts < qp.inflight.capacity()
            && !(qp.reads_out > 0 && ask.flags.contains(SendFlags::FENCE))
            // A few SENDs have no more than a few; larger requests are all in the list.
            && (qp.inflight.is_empty() || qp.next_psn.since(qp.unacked).unsigned_abs() < MOST_PSNS);
        if !plain {
            return long_way();
        }
        let mut flags = ask.flags;
        if qp.init.sq_sig_all {
            flags.insert(SendFlags::SIGNALED);
        }
        // Each by itself: what is put together in memory is read by wider loads than it was written, and these wait for all stores before
        // them, the last packet's to a cache line that the peer has included.
        let (mut addr, mut guarded) = (0, false);
        let len = match data {
            Data::Word(_) => {
                flags.insert(SendFlags::INLINE);
                if qp.sq.max_inline < 8 {
                    return false;
                }
                8
            }
            Data::Inline(bytes) => {
                flags.insert(SendFlags::INLINE);
                let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                if len > qp.sq.max_inline || !is_one_packet(&self.platform, link, qp, len, true) {
                    return false;
                }
                len
            }
            Data::Listed(sge) => {
                flags.remove(SendFlags::INLINE);
                if qp.sq.max_sge == 0 || !is_one_packet(&self.platform, link, qp, sge.length, false) {
                    return false;
                }
                if sge.length > 0 {
                    let Ok(found) = self.mem.local_here(qp.init.pd, &sge, false) else { return long_way() };
                    if found.addr == NULL_ADDR {
                        return long_way();
                    }
                    (addr, guarded) = (found.addr, found.guarded);
                }
                sge.length
            }
        };
        let (dst, src, psn, imm) = (verbs::Qpn::new(qp.attr.dest_qp_num), qp.qpn, qp.next_psn, ask.imm);
        let mut bits = flag::FIRST | flag::LAST | flag::ACK_REQ;
        if flags.contains(SendFlags::SOLICITED) {
            bits |= flag::SOLICITED;
        }
        if ask.opcode == Opcode::SendWithImm {
            bits |= flag::IMM;
        }
        // For each that sends a packet of its own: most need it in registers only.
        let packet = || {
            let mut packet = Packet::new(PacketOp::Send, dst, src, psn);
            (packet.flags, packet.imm, packet.len, packet.dma_len) = (bits, imm, len, len);
            packet
        };
        // The packet first: while its cache line is on its way, there is time for the rest.
        let sent = match data {
            Data::Word(word) => self.platform.send_short(link, &packet(), word),
            Data::Inline(bytes) if len <= 8 => self.platform.send_short(link, &packet(), bytes),
            Data::Listed(_) if len == 0 => self.platform.send_short(link, &packet(), &[]),
            // Apart, because what is known to be 8 bytes long is one load.
            Data::Listed(_) if len == 8 => {
                let mut word = [0; 8];
                let loaded = self.platform.load(addr, guarded, &mut word).is_ok();
                if loaded { self.platform.send_short(link, &packet(), &word) } else { None }
            }
            Data::Inline(prefix) => {
                Self::send_payload(&mut self.platform, link, &packet(), Payload { prefix, spans: &[] })
            }
            Data::Listed(_) => {
                let span = Span { addr, len, guarded };
                Self::send_payload(&mut self.platform, link, &packet(), Payload { prefix: &[], spans: &[span] })
            }
        };
        let Some(mark) = sent else { return long_way() };
        let first = Executed { wr_id: ask.wr_id, opcode: ask.opcode, flags, imm: ask.imm, since: now };
        match &data {
            Data::Word(word) => qp.sq.write_inline(first, *word),
            Data::Listed(sge) => qp.sq.write_sge(first, sge),
            Data::Inline(bytes) => qp.sq.write_inline(first, bytes),
        }
        qp.shorts += 1;
        qp.sent_mark = mark;
        qp.sq.posted += 1;
        qp.sq.fetched += 1;
        qp.next_psn = psn.plus(1);
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

    fn send_payload(platform: &mut P, link: LinkId, packet: &Packet, payload: Payload<'_>) -> Option<u64> {
        platform.send(link, packet, payload).is_ok().then(|| platform.sent_mark(link))
    }

    /// Executes a SEND that has come over this link, or an acknowledgement, if that is all there is to do.
    #[inline]
    pub(crate) fn express_in(&mut self, id: QpId, link: LinkId, packet: &Packet, rx: P::Rx, now: Nanos) -> bool {
        if !may(self.has_express) {
            return false;
        }
        let outcome = match packet.op {
            PacketOp::Send => {
                if self.prompt {
                    self.platform.expect_send(link); // mostly it is his and ours
                }
                self.express_send_in(id, link, (packet, Body::Rx(rx)), now, None, (&mut Nobody, |_| None))
            }
            PacketOp::Ack => self.express_ack_in(id, link, packet, now, None, &mut Nobody),
            _ => return false,
        };
        outcome != Short::LongWay
    }

    /// A short packet has come over a link, and this queue is being polled, which hands completions over ([`Engine::hands_over`]), for
    /// so many at most (but for one at least). What completes there is handed out; other completions go into their queues. SENDs that lie
    /// behind the first one, for the same queue pair, are taken, too. [`Short::LongWay`]: nothing was done, and [`Engine::receive`] is
    /// to be asked.
    ///
    /// Not for engines without the short ways ([`Engine::set_express`]), which is not asked here.
    #[inline(always)]
    pub fn receive_short(
        &mut self,
        link: LinkId,
        short: ShortPacket,
        now: Nanos,
        polled: (CqId, usize),
        poller: &mut impl Poller<P>,
    ) -> Short {
        debug_assert!(self.has_express && self.hands_over(polled.0));
        let Some(id) = self.arrives(link, &short) else { return the_long_way() };
        if short.is_ack() {
            let outcome = self.express_ack_in(id, link, short, now, Some(polled.0), poller);
            if outcome != Short::LongWay {
                poller.taken(&mut self.platform, short);
            }
            return outcome;
        }
        let body = |short: ShortPacket| (short, Body::Word(short.payload(), short.received()));
        let next = |next: ShortPacket| next.follows(&short).then(|| body(next));
        self.express_send_in(id, link, body(short), now, Some(polled), (poller, next))
    }

    /// A short packet has come over a link: for whom.
    #[inline(always)]
    fn arrives(&mut self, link: LinkId, short: &ShortPacket) -> Option<QpId> {
        self.arrival = link;
        self.qpns.find(short.dst())
    }

    /// Takes a SEND in, and those behind it that come to the same queue pair, if who polls is handed their completions and wants more.
    /// What they change together is written once.
    #[inline(always)]
    fn express_send_in<H: Head>(
        &mut self,
        id: QpId,
        link: LinkId,
        (mut packet, mut body): (H, Body<P::Rx>),
        now: Nanos,
        polled: Option<(CqId, usize)>,
        (poller, follower): (&mut impl Poller<P>, impl Fn(ShortPacket) -> Option<(H, Body<P::Rx>)>),
    ) -> Short {
        let Some(qp) = self.qps.get_mut(id).map(Box::as_mut) else { return the_long_way() };
        if !qp.takes_sends(link) || packet.src().get() != qp.attr.dest_qp_num {
            return the_long_way();
        }
        let Some(cq) = qp.init.recv_cq else { return the_long_way() };
        let most = match polled {
            Some((polled, most)) if polled == cq => most,
            _ => 0,
        };
        // So many have been taken, of so many bytes; the acknowledgement that is owed; the last one's place is still to be freed.
        let (mut n, mut bytes, mut owed, mut holds) = (0, 0, None, false);
        let (mut lost, mut _sent) = (false, false);
        loop {
            let fits = packet.flags() & !(flag::ACK_REQ | flag::SOLICITED | flag::IMM) == flag::FIRST | flag::LAST
                && packet.psn() == qp.epsn
                && packet.len() <= qp.mtu
                && body.len(&self.platform) == packet.len();
            let Some(wqe) = qp.rq.wqes.get(n).filter(|_| fits) else { break };
            let [sge] = wqe.sges[..] else { break };
            if sge.length < packet.len() {
                break;
            }
            let Ok(mut span) = self.mem.local_here(qp.init.pd, &sge, true) else { break };
            span.len = packet.len();
            if span.addr == NULL_ADDR || !body.put(&mut self.platform, &span) {
                break;
            }
            #[cfg(test)]
            (self.short_ways[1] += 1);
            let wr_id = wqe.wr_id;
            n += 1;
            bytes += u64::from(packet.len());
            qp.epsn = packet.psn().plus(1);
            if packet.has(flag::ACK_REQ) {
                owed = Some((packet.psn(), n as u32));
            }
            holds = true;
            if most == 0 {
                let fill = |cqe: &mut Cqe| {
                    cqe.wc = received(qp, packet, wr_id, WcOpcode::Recv, packet.len());
                    (cqe.qp, cqe.frees) = (id, Frees::Recv);
                };
                lost = !self.done.push_with(cq, packet.has(flag::SOLICITED), now, fill);
                break;
            }
            poller
                .completed(&Completion { timestamp: now, ..received(qp, packet, wr_id, WcOpcode::Recv, packet.len()) });
            if n >= most {
                break;
            }
            packet.taken(&mut self.platform, poller);
            holds = false;
            let Some(next) = poller.next(&self.platform).and_then(&follower) else { break };
            (packet, body) = next;
        }
        if n == 0 {
            return the_long_way();
        }
        qp.rq.wqes.drop_front(n);
        qp.fed_at = Some(now);
        qp.nak_sent = false;
        let before = qp.msn;
        qp.msn = before.wrapping_add(n as u32) & 0xff_ffff;
        qp.tally.received_bytes(n as u64, bytes);
        let mut outcome = Short::Taken;
        if most > 0 {
            qp.handed.receives += n as u64;
            qp.rq.held = qp.rq.held.saturating_sub(n as u32);
            outcome = Short::Completed { expects: !qp.rq.wqes.is_empty() || qp.expects_sends() };
        }
        let owed = owed.map(|(psn, nth)| (psn, before.wrapping_add(nth) & 0xff_ffff));
        if lost {
            cold_path();
            self.lost_completion(id, owed.map(|(psn, _)| psn), now);
        } else if let Some(owed) = owed {
            _sent |= Self::answer(&mut self.platform, &mut self.ready, self.prompt, qp, owed);
        }
        #[cfg(test)]
        (self.short_ways[3] += u64::from(_sent));
        if holds {
            packet.taken(&mut self.platform, poller);
        }
        outcome
    }

    /// Acknowledges a message up to this PSN, with this MSN: at once, if who polls is prompt and that is all there is to be sent. True if
    /// it was; else it is owed.
    #[inline(always)]
    fn answer(platform: &mut P, ready: &mut VecDeque<QpId>, prompt: bool, qp: &mut Qp, (psn, msn): (Psn, u32)) -> bool {
        let alone = prompt && qp.responses.is_empty() && !qp.queued && !qp.parked;
        // Behind whatever else was sent to the peer: over our own link, which may be another than his.
        if alone
            && let Some(link) = qp.gate_of_answers()
            && platform.send_short(link, &acknowledgement(qp, psn, msn), &[]).is_some()
        {
            return true;
        }
        Self::owe_ack(qp, psn, msn);
        if !qp.queued && !qp.parked {
            qp.queued = true;
            ready.push_back(qp.id);
        }
        false
    }

    #[cold]
    fn lost_completion(&mut self, id: QpId, ack: Option<Psn>, now: Nanos) {
        let Some(mut qp) = self.lend_qp(id) else { return };
        self.overrun(&mut qp, now);
        if let Some(psn) = ack {
            let msn = qp.msn;
            Self::owe_ack(&mut qp, psn, msn);
        }
        self.schedule(&mut qp);
        self.qps.put_back(id, qp);
    }

    /// What an acknowledgement means to other requests than those that the short way has ended.
    #[cold]
    fn acked_beyond(&mut self, id: QpId, psn: Psn, now: Nanos) {
        let Some(mut qp) = self.lend_qp(id) else { return };
        self.acknowledged(&mut qp, psn, now);
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
        mut polled: Option<CqId>,
        poller: &mut impl Poller<P>,
    ) -> Short {
        let Some(qp) = self.qps.get_mut(id).map(Box::as_mut) else { return the_long_way() };
        let plain = packet.syndrome() >> 5 == 0
            && qp.takes_acks(link)
            && packet.src().get() == qp.attr.dest_qp_num
            && packet.psn().since(qp.next_psn) < 0;
        if !plain {
            return the_long_way();
        }
        if qp.inflight.is_empty()
            && packet.psn() == qp.first_short()
            && let Some(polled) = polled
            && let Some(completion) = qp.end_first_short(polled, now)
        {
            if let Some(completion) = &completion {
                poller.completed(completion);
            }
            if qp.shorts > 0
                && let Some(timeout) = timeout_nanos(qp.attr.timeout)
            {
                qp.ack_deadline = Some(now + timeout);
                arm(&mut self.timed, &mut self.timers, qp, now + timeout);
            }
            #[cfg(test)]
            (self.short_ways[2] += 1);
            return match completion {
                Some(_) => Short::Completed { expects: qp.shorts > 0 || !qp.rq.wqes.is_empty() },
                None => Short::Taken,
            };
        }
        let (mut ended, mut bytes) = (0, 0);
        let (mut lost, mut rest) = (false, false);
        let mut outcome = Short::Taken;
        // What is done with one that ends: false if its completion was lost.
        let mut end = |qp: &mut Qp, done: &mut Completions, number, wr_id, flags: SendFlags| {
            let Some(cq) = qp.init.send_cq.filter(|_| flags.contains(SendFlags::SIGNALED)) else { return true };
            if polled.take_if(|polled| *polled == cq).is_some() {
                qp.handed.sends += 1;
                poller.completed(&Completion { timestamp: now, ..sent(qp, number, wr_id).wc });
                qp.sq.retired = qp.sq.retired.max(number + 1);
                outcome = Short::Completed { expects: false };
                return true;
            }
            done.push_with(cq, false, now, |cqe| *cqe = sent(qp, number, wr_id))
        };
        while let Some(e) = qp.inflight.get(ended) {
            if e.psns == 0 || e.done || e.error.is_some() {
                rest = true; // it ends, too, when it is the oldest
                break;
            }
            if e.last_psn().since(packet.psn()) > 0 {
                break;
            }
            // Long ones are timed, by reference or not.
            if !matches!(e.opcode, Opcode::Send | Opcode::SendWithImm) || e.by_ref || e.len >= SHORTEST {
                rest = true;
                break;
            }
            ended += 1;
            bytes += u64::from(e.len);
            let (number, wr_id, flags) = (e.number, e.wr_id, e.flags);
            if !end(qp, &mut self.done, number, wr_id, flags) {
                cold_path();
                lost = true;
                break;
            }
        }
        let listed = ended;
        if listed == qp.inflight.len() && !lost {
            let first = qp.first_short();
            // So many at most: what it acknowledges was sent, see above.
            let acked = packet.psn().plus(1).since(first).max(0) as u64;
            let number = qp.sq.fetched - qp.shorts as u64;
            for number in number..number + acked {
                let (wr_id, flags, len) = qp.sq.executed(number);
                ended += 1;
                bytes += u64::from(len.min(qp.mtu));
                if !end(qp, &mut self.done, number, wr_id, flags) {
                    cold_path();
                    lost = true;
                    break;
                }
            }
        }
        if ended == 0 {
            return the_long_way();
        }
        qp.inflight.drop_front(listed);
        qp.cursor -= listed;
        qp.shorts -= ended - listed;
        qp.tally.sent(ended as u64, bytes);
        qp.unacked = packet.psn().plus(1);
        qp.progressed();
        // What is left was looked at above, if there was no more to be done: the oldest of it waits for an answer.
        let waits = !qp.inflight.is_empty() || qp.shorts > 0;
        if waits
            && !(lost || rest)
            && let Some(timeout) = timeout_nanos(qp.attr.timeout)
        {
            qp.ack_deadline = Some(now + timeout);
            arm(&mut self.timed, &mut self.timers, qp, now + timeout);
        }
        if lost {
            cold_path();
            self.lost_completion(id, None, now);
        } else if rest {
            cold_path();
            self.acked_beyond(id, packet.psn(), now);
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
