//! Receiving small SENDs.

use verbs::{Completion, CqId, QpId, RKey, WcOpcode};
use wire::{Env, Head, LinkId, Nanos, Packet, PacketOp, ShortPacket, Span, packet_flags as flag};

use super::{Fast, Poller, cold, may};
use crate::Engine;
use crate::region::{NULL_ADDR, Regions};
use crate::wq::cq::{Cqe, Frees};
use crate::wq::receive::received;

/// The payload of a packet that comes in.
#[derive(Clone, Copy)]
enum Body<Rx> {
    /// In the place where the wire has it.
    Rx(Rx),
    /// In this word, in the order of memory; and the number of bytes.
    Word(u64, u32),
}

impl<Rx: Copy> Body<Rx> {
    #[inline(always)]
    fn len(self, env: &impl Env<Rx = Rx>) -> u32 {
        match self {
            Body::Rx(rx) => env.rx_len(rx),
            Body::Word(_, len) => len,
        }
    }

    /// Copies the payload to memory. False if the memory is not there.
    #[inline(always)]
    fn put(self, env: &mut impl Env<Rx = Rx>, span: &Span) -> bool {
        let stored = match self {
            Body::Rx(rx) => env.rx_scatter(rx, 0, std::slice::from_ref(span)),
            // A case of its own, because a word known to be 8 bytes long is one store.
            Body::Word(word, 8) => env.store(span.addr, span.guarded, &word.to_ne_bytes()),
            Body::Word(word, len) => {
                let bytes = word.to_ne_bytes();
                env.store(span.addr, span.guarded, bytes.get(..len as usize).unwrap_or_default())
            }
        };
        stored.is_ok()
    }
}

impl<P: Env> Engine<P> {
    /// Handles [`Engine::receive`] of a SEND or of an acknowledgement. True if nothing else was to be done.
    #[inline]
    pub(crate) fn receive_fast(&mut self, id: QpId, link: LinkId, packet: &Packet, rx: P::Rx, now: Nanos) -> bool {
        if !may(self.has_fast_path) {
            return false;
        }
        let outcome = match packet.op {
            PacketOp::Send => {
                if self.prompt {
                    self.env.expect_send(link); // answers mostly go over this link
                }
                self.take_sends(id, link, (packet, Body::Rx(rx)), now, None, (&mut (), |_| None))
            }
            PacketOp::Ack => self.take_ack(id, link, packet, now, None, &mut ()),
            _ => return false,
        };
        outcome != Fast::Refused
    }

    /// Takes a short packet that has come over a link while this queue is polled, for so many completions at most (but
    /// for one at least). Its completions are handed out, if the queue is one that hands over ([`Engine::hands_over`]);
    /// other completions go into their queues. SENDs that lie behind the first one, for the same queue pair, are taken,
    /// too. [`Fast::Refused`]: nothing was done, and the caller calls [`Engine::receive`].
    #[inline(always)]
    pub fn receive_short(
        &mut self,
        link: LinkId,
        short: ShortPacket,
        now: Nanos,
        (polled, most): (CqId, usize),
        poller: &mut impl Poller<P>,
    ) -> Fast {
        if !may(self.has_fast_path) || !self.hands_over(polled) {
            return cold(Fast::Refused);
        }
        self.arrival = link;
        let Some(id) = self.qpns.find(short.dst()) else { return cold(Fast::Refused) };
        if short.is_ack() {
            return self.take_ack(id, link, short, now, Some(polled), poller);
        }
        let body = |short: ShortPacket| (short, Body::Word(short.payload(), short.received()));
        let follower = |next: ShortPacket| next.follows(&short).then(|| body(next));
        self.take_sends(id, link, body(short), now, Some((polled, most)), (poller, follower))
    }

    /// Takes a SEND, and those behind it that come to the same queue pair, if the poll is handed their completions and
    /// wants more. Fields that all of them change are written once.
    #[inline(always)]
    fn take_sends<H: Head>(
        &mut self,
        id: QpId,
        link: LinkId,
        (mut packet, mut body): (H, Body<P::Rx>),
        now: Nanos,
        polled: Option<(CqId, usize)>,
        (poller, follower): (&mut impl Poller<P>, impl Fn(ShortPacket) -> Option<(H, Body<P::Rx>)>),
    ) -> Fast {
        let Some(qp) = self.qps.fast(id) else { return cold(Fast::Refused) };
        if !qp.takes_sends(link) || packet.src().get() != qp.attr.dest_qp_num {
            return cold(Fast::Refused);
        }
        let Some(cq) = qp.init.recv_cq else { return cold(Fast::Refused) };
        let most = polled.map_or(1, |(_, most)| most);
        let hands_over = polled.is_some_and(|(polled, _)| polled == cq);
        // The number of packets taken, and of their bytes; the last packet's receive, while it has no completion and
        // its place on the link is not freed.
        let (mut n, mut bytes, mut last, mut lost) = (0, 0, None, false);
        // No message wishes for an acknowledgement: the peer need not be woken for the one that it has.
        let mut quiet = true;
        loop {
            let whole = flag::FIRST | flag::LAST;
            let fits = packet.flags() & !(flag::SOLICITED | flag::IMM | flag::ACK_REQ | flag::INV) == whole
                && packet.psn() == qp.rc.epsn
                && packet.len() <= qp.mtu
                && packet.mtu() == 0
                && body.len(&self.env) == packet.len();
            let Some(wqe) = qp.rq.wqes.get(n).filter(|_| fits) else { break };
            let [sge] = wqe.sges[..] else { break };
            if sge.length < packet.len() {
                break;
            }
            let Ok(mut span) = self.mem.local_here(qp.init.pd, &sge, true) else { break };
            span.len = packet.len();
            let takes_back = packet.has(flag::INV);
            if takes_back && (packet.has(flag::IMM) || !Self::may_take_back(&self.mem, id, packet.imm())) {
                break;
            }
            if span.addr == NULL_ADDR || !body.put(&mut self.env, &span) {
                break;
            }
            if takes_back && !Self::take_back_behind((&mut self.env, &mut self.mem), id, packet.imm()) {
                break;
            }
            #[cfg(test)]
            (self.fast_paths[1] += 1);
            let wr_id = wqe.wr_id;
            n += 1;
            bytes += u64::from(packet.len());
            qp.rc.epsn = packet.psn().plus(1);
            quiet &= !packet.has(flag::ACK_REQ);
            // A caller that wants one completion is known at compile time, and its code has no loop then.
            if !hands_over || most == 1 || n >= most {
                last = Some(wr_id);
                break;
            }
            let wc = received(qp, packet, wr_id, WcOpcode::Recv, packet.len());
            poller.completed(&Completion { timestamp: now, ..wc });
            poller.taken(&mut self.env);
            let Some(next) = poller.next(&self.env).and_then(&follower) else { break };
            (packet, body) = next;
        }
        if n == 0 {
            return cold(Fast::Refused);
        }
        qp.rc.msn = qp.rc.msn.wrapping_add(n as u32) & 0xff_ffff;
        // Every message has an acknowledgement.
        let owed = (qp.rc.epsn.plus(0xff_ffff), qp.rc.msn);
        if let (Some(wr_id), false) = (last, hands_over) {
            let fill = |cqe: &mut Cqe| {
                cqe.wc = received(qp, packet, wr_id, WcOpcode::Recv, packet.len());
                (cqe.qp, cqe.frees) = (id, Frees::Recv);
            };
            lost = !self.done.push_with(cq, packet.has(flag::SOLICITED), now, fill);
        }
        // The acknowledgement goes out before a completion is handed over: a peer that sends one message after the
        // other waits for it.
        if !lost {
            let _sent = Self::acknowledge_fast(&mut self.env, &mut self.ready, self.prompt, qp, owed, quiet);
            #[cfg(test)]
            (self.fast_paths[3] += u64::from(_sent));
        }
        if let (Some(wr_id), true) = (last, hands_over) {
            let wc = received(qp, packet, wr_id, WcOpcode::Recv, packet.len());
            poller.completed(&Completion { timestamp: now, ..wc });
        }
        qp.rq.wqes.drop_front(n);
        qp.unreliable.fed_at = Some(now);
        qp.rc.nak_sent = false;
        qp.counts.received_bytes(n as u64, bytes);
        let mut outcome = Fast::Taken;
        if hands_over {
            qp.handed.receives += n as u64;
            qp.rq.held = qp.rq.held.saturating_sub(n as u32);
            outcome = Fast::Completed { expects: !qp.rq.wqes.is_empty() || qp.expects_sends() };
        }
        if last.is_some() {
            poller.taken(&mut self.env);
        }
        if lost {
            self.finish(id, now, |engine, qp, now| {
                engine.overrun(qp, now);
                Self::owe_ack(qp, owed.0, owed.1, quiet);
            });
        }
        outcome
    }

    /// True if a SEND may invalidate this key. It is looked at before the payload is stored: the slow path answers for
    /// what may not be done.
    #[cold] // other SENDs do not pay for its registers
    #[inline(never)]
    fn may_take_back(mem: &Regions, id: QpId, key: u32) -> bool {
        mem.invalidable(id, RKey(key)).is_some()
    }

    /// Invalidates the key behind the payload.
    #[cold]
    #[inline(never)]
    fn take_back_behind((env, mem): (&mut P, &mut Regions), id: QpId, key: u32) -> bool {
        env.wait_for_late_writers();
        Self::take_back(env, mem, id, RKey(key)).is_ok()
    }
}
