//! The wire's buffer in front of unreliable queue pairs.
//!
//! A message for UC or UD that finds no receive posted is lost (IBTA vol. 1, 9.8.2, 9.8.3). On an adapter the speed of
//! the wire holds the sender back, and the receiver has a core of its own. Here a receiver that is only waiting for its
//! turn on the processor would lose messages that a wire would still be carrying. So a message for a queue pair that
//! had receives a moment ago waits for the next one, for at most [`HOLD`] and within [`MOST_PACKETS`] and
//! [`MOST_BYTES`]. A queue pair that gets no receives loses its messages at once.

use verbs::{QpId, QpState, QpType};
use wire::{Env, Nanos, Packet, PacketOp, packet_flags as flag};

use crate::Engine;
use crate::copies::Source;
use crate::qp::Qp;
use crate::ud::state::Held;

/// How long a packet waits, and how long ago the last receive may have been taken.
pub(crate) const HOLD: Nanos = 200_000_000;
const MOST_PACKETS: usize = 1024;
const MOST_BYTES: usize = 4 << 20;

impl<P: Env> Engine<P> {
    fn has_receive(&self, qp: &Qp) -> bool {
        match qp.init.srq {
            Some(id) => self.srqs.get(id).is_some_and(|srq| !srq.queue.wqes.is_empty()),
            None => !qp.rq.wqes.is_empty(),
        }
    }

    /// Keeps a packet that found no receive. False when the packet is lost.
    pub(crate) fn hold(&mut self, qp: &mut Qp, packet: &Packet, rx: Source<P::Rx>, now: Nanos) -> bool {
        let Source::Wire(_) = rx else { return false };
        let waited = !qp.unreliable.backlog.is_empty();
        while qp.unreliable.backlog.front().is_some_and(|h| h.since + HOLD < now) {
            qp.unreliable.backlog.pop_front();
            qp.counts.counters.dropped += 1;
        }
        if waited && qp.unreliable.backlog.is_empty() && qp.same_host.exported.is_some() {
            self.publish_qp(qp);
        }
        let len = self.payload_len(rx);
        let held: usize = qp.unreliable.backlog.iter().map(|h| h.bytes.len()).sum();
        let fed = qp.unreliable.fed_at.is_some_and(|at| now <= at + HOLD);
        if !fed || qp.unreliable.backlog.len() >= MOST_PACKETS || held + len as usize > MOST_BYTES {
            qp.counts.counters.dropped += 1;
            return false;
        }
        let mut bytes = Vec::new();
        // Without memory the packet is lost, as these transports permit: the peer must not make this process ask for
        // memory that does not exist.
        if bytes.try_reserve_exact(len as usize).is_err() || qp.unreliable.backlog.try_reserve(1).is_err() {
            qp.counts.counters.dropped += 1;
            return false;
        }
        bytes.resize(len as usize, 0);
        self.payload_fetch(rx, 0, &mut bytes);
        if qp.unreliable.backlog.is_empty() {
            self.starving.retain(|id| *id != qp.id);
            self.starving.push(qp.id);
        }
        qp.unreliable.backlog.push_back(Held { packet: *packet, bytes, since: now });
        if qp.unreliable.backlog.len() == 1 && qp.same_host.exported.is_some() {
            // Packets behind it wait, too. The state is published before the packet is given back, so that no peer
            // takes it for executed.
            self.publish_qp(qp);
        }
        true
    }

    /// Delivers waiting packets after receives were posted.
    #[inline]
    pub(crate) fn feed(&mut self, now: Nanos) {
        if !self.starving.is_empty() {
            self.feed_all(now);
        }
    }

    #[inline(never)]
    fn feed_all(&mut self, now: Nanos) {
        for id in std::mem::take(&mut self.starving) {
            self.feed_one(id, now);
        }
    }

    fn feed_one(&mut self, id: QpId, now: Nanos) {
        let Some(mut qp) = self.checkout_qp(id) else { return };
        if !matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe) {
            qp.unreliable.backlog.clear();
        }
        while let Some(front) = qp.unreliable.backlog.front() {
            let needs = match front.packet.op {
                PacketOp::Write => front.packet.has(flag::LAST) && front.packet.has(flag::IMM),
                _ => front.packet.has(flag::FIRST),
            };
            let expired = front.since + HOLD < now;
            if !expired && needs && !self.has_receive(&qp) {
                break;
            }
            let Some(held) = qp.unreliable.backlog.pop_front() else { break };
            if expired {
                qp.counts.counters.dropped += 1;
                continue;
            }
            self.held = held.bytes;
            if qp.init.qp_type == QpType::Ud {
                self.datagram_to(&mut qp, &held.packet, Source::Held, now);
            } else {
                self.unreliable_request(&mut qp, &held.packet, Source::Held, now);
            }
        }
        if !qp.unreliable.backlog.is_empty() {
            self.starving.push(id);
        } else if qp.init.qp_type == QpType::Uc {
            self.publish_qp(&mut qp);
        }
        self.qps.put_back(id, qp);
    }
}
