//! Acknowledgements of small SENDs, both ways.

use std::collections::VecDeque;

use verbs::{Completion, CqId, Opcode, Psn, QpId, SendFlags};
use wire::{Env, Head, LinkId, Nanos, Payload, SHORTEST};

use super::{Fast, Poller, cold, may};
use crate::Engine;
use crate::modify::timeout_nanos;
use crate::qp::Qp;
use crate::rc::refused::ACK;
use crate::rc::state::Response;
use crate::run::arm;
use crate::wq::complete::sent;

/// The attributes of the oldest request under way that an acknowledgement needs.
struct Oldest {
    number: u64,
    wr_id: u64,
    flags: SendFlags,
    /// Bytes of the message.
    len: u32,
    /// The acknowledgement of this number ends the request.
    last: Psn,
    /// The request is a small SEND, or a local one that wishes for no completion; the slow path ends others.
    small: bool,
}

impl Qp {
    #[inline(always)]
    fn oldest(&self) -> Option<Oldest> {
        if let Some(e) = self.inflight.front() {
            // A request that is done, or has no sequence number, ends with the request before it.
            let ends = e.psns == 0 || e.done || e.error.is_some();
            let local = matches!(e.opcode, Opcode::BindMw | Opcode::LocalInv) && e.done && e.error.is_none();
            // Long requests are timed, by reference or not.
            let sends = matches!(e.opcode, Opcode::Send | Opcode::SendWithImm | Opcode::SendWithInv);
            let small = sends && !e.by_ref && e.len < SHORTEST;
            return Some(Oldest {
                number: e.number,
                wr_id: e.wr_id,
                flags: e.flags,
                len: e.len,
                last: if ends { e.first_psn.plus(0xff_ffff) } else { e.last_psn() },
                small: small && !ends || local && !e.flags.contains(SendFlags::SIGNALED),
            });
        }
        let number = self.sq.fetched - self.unlisted as u64;
        (self.unlisted > 0).then(|| {
            let (wr_id, flags, len) = self.sq.executed(number);
            Oldest { number, wr_id, flags, len: len.min(self.mtu), last: self.first_unlisted(), small: true }
        })
    }

    #[inline(always)]
    fn drop_oldest(&mut self) {
        if self.inflight.is_empty() {
            self.unlisted -= 1;
        } else {
            self.inflight.drop_first();
            self.cursor -= 1;
        }
    }
}

impl<P: Env> Engine<P> {
    /// Takes an acknowledgement in that ends the oldest requests under way. The first completion may be one for the
    /// queue that is polled.
    #[inline(always)]
    pub(super) fn take_ack(
        &mut self,
        id: QpId,
        link: LinkId,
        packet: impl Head,
        now: Nanos,
        mut polled: Option<CqId>,
        poller: &mut impl Poller<P>,
    ) -> Fast {
        let Some(qp) = self.qps.fast(id) else { return cold(Fast::Refused) };
        let psn = packet.psn();
        let plain = packet.syndrome() >> 5 == 0
            && qp.takes_acks(link)
            && packet.src().get() == qp.attr.dest_qp_num
            && psn.since(qp.rc.next_psn) < 0;
        if !plain {
            return cold(Fast::Refused);
        }
        let (mut ended, mut bytes, mut lost, mut rest, mut handed) = (0, 0, false, false, false);
        while let Some(oldest) = qp.oldest() {
            if oldest.last.since(psn) > 0 {
                break;
            }
            if !oldest.small {
                rest = true; // the request ends, too, when it is the oldest
                break;
            }
            ended += 1;
            bytes += u64::from(oldest.len);
            qp.drop_oldest();
            let Oldest { number, wr_id, flags, .. } = oldest;
            let Some(cq) = qp.init.send_cq.filter(|_| flags.contains(SendFlags::SIGNALED)) else { continue };
            if polled.take_if(|polled| *polled == cq).is_some() {
                handed = true;
                qp.handed.sends += 1;
                qp.sq.retired = qp.sq.retired.max(number + 1);
                poller.completed(&Completion { timestamp: now, ..sent(qp, number, wr_id).wc });
            } else if !self.done.push_with(cq, false, now, |cqe| *cqe = sent(qp, number, wr_id)) {
                lost = true;
                break;
            }
        }
        if ended == 0 {
            return cold(Fast::Refused);
        }
        qp.counts.sent(ended, bytes);
        qp.rc.unacked = psn.plus(1);
        qp.progressed();
        let waits = !qp.inflight.is_empty() || qp.unlisted > 0;
        let expects = !(lost || rest) && (waits || !qp.rq.wqes.is_empty());
        if lost {
            self.finish(id, now, |engine, qp, now| engine.overrun(qp, now));
        } else if rest {
            self.finish(id, now, |engine, qp, now| engine.acknowledged(qp, psn, now));
        } else if waits && let Some(timeout) = timeout_nanos(qp.attr.timeout) {
            // The oldest of the remaining requests waits for an answer.
            qp.rc.ack_deadline = Some(now + timeout);
            arm(&mut self.timed, &mut self.timers, qp, now + timeout);
        }
        #[cfg(test)]
        (self.fast_paths[2] += 1);
        poller.taken(&mut self.env);
        if handed { Fast::Completed { expects } } else { Fast::Taken }
    }

    /// Acknowledges a message up to this PSN, with this MSN. The acknowledgement goes out at once, if each packet is
    /// acknowledged by itself (`prompt`) and nothing else is to be sent. True if it went out; else it is owed. `quiet`:
    /// the peer does not have to be woken for it.
    #[inline(always)]
    pub(super) fn acknowledge_fast(
        env: &mut P,
        ready: &mut VecDeque<QpId>,
        prompt: bool,
        qp: &mut Qp,
        (psn, msn): (Psn, u32),
        quiet: bool,
    ) -> bool {
        let idle = !qp.queued && !qp.parked;
        if prompt && idle && qp.rc.responses.is_empty() && Self::send_ack(env, qp, psn, msn, quiet) {
            return true;
        }
        Self::owe_ack(qp, psn, msn, quiet);
        if idle {
            qp.queued = true;
            ready.push_back(qp.id);
        }
        false
    }

    /// Sends the acknowledgement that the first queue pair with something to send owes, if that is all there is to do
    /// for it.
    #[inline]
    pub(crate) fn acknowledge_first(&mut self) -> bool {
        let Some(&id) = self.ready.front().filter(|_| may(self.has_fast_path)) else { return false };
        let Some(qp) = self.qps.fast(id) else { return false };
        let (1, Some(&Response::Ack { psn, msn, quiet })) = (qp.rc.responses.len(), qp.rc.responses.front()) else {
            return false;
        };
        if !Self::send_ack(&mut self.env, qp, psn, msn, quiet) {
            return false;
        }
        std::mem::forget(qp.rc.responses.pop_front()); // it has nothing to drop, which the compiler does not see
        qp.queued = false;
        self.ready.pop_front();
        #[cfg(test)]
        (self.fast_paths[3] += 1);
        true
    }

    /// Sends an acknowledgement behind all other packets to the peer: over our own link, which may differ from the
    /// peer's.
    #[inline(always)]
    fn send_ack(env: &mut P, qp: &mut Qp, psn: Psn, msn: u32, quiet: bool) -> bool {
        let Some(link) = qp.gate_of_answers() else { return false };
        if quiet {
            return Self::send_quiet_ack(env, qp, link, (psn, msn));
        }
        env.send_short(link, &qp.acknowledgement(psn, ACK, msn), &[]).is_some()
    }

    // A function of its own, so that other acknowledgements pay nothing for it.
    #[cold]
    fn send_quiet_ack(env: &mut P, qp: &Qp, link: LinkId, (psn, msn): (Psn, u32)) -> bool {
        env.send_quietly(link, &qp.acknowledgement(psn, ACK, msn), Payload::default()).is_ok()
    }
}
