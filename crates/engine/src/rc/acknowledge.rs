//! Responses at the requester: acknowledgements, NAKs, READ responses, results of atomics; and timeouts when no
//! response comes (IBTA vol. 1, 9.7.5, 9.9.2).

use verbs::{Opcode, Psn, QpState, QpType, WcStatus};
use wire::{Env, Nanos, Packet, PacketOp, packet_flags as flag};

use crate::Engine;
use crate::copies::Source;
use crate::modify::{rnr_nanos, timeout_nanos};
use crate::qp::Qp;
use crate::rc::refused;
use crate::wq::inflight::Carrier;

/// How long timeouts are not counted as retries because a living peer has not taken our packets, or this process has
/// not taken the peer's.
const PATIENCE: Nanos = 20_000_000_000;

impl<P: Env> Engine<P> {
    // ---- responses ----

    /// Takes an Ack, a READ response or an atomic's result.
    pub(crate) fn response(&mut self, qp: &mut Qp, packet: &Packet, rx: Source<P::Rx>, now: Nanos) {
        if !matches!(qp.state, QpState::Rts | QpState::Sqd)
            || !matches!(qp.init.qp_type, QpType::Rc | QpType::XrcIni)
            || packet.src.get() != qp.attr.dest_qp_num
        {
            return;
        }
        let Some(oldest) = qp.inflight.iter().find(|e| e.psns > 0 && !e.done).map(|e| e.first_psn) else { return };
        // 9.7.5.1.1: responses outside the unacknowledged range are ghosts
        if packet.psn.since(oldest) < -1 || packet.psn.since(qp.rc.next_psn) >= 0 {
            return;
        }
        match packet.op {
            PacketOp::Ack => match packet.syndrome >> 5 {
                0 => self.acked(qp, packet.psn),
                1 => self.rnr_nak(qp, packet, now),
                3 => self.nak(qp, packet),
                _ => {}
            },
            PacketOp::ReadResponse => self.read_response(qp, packet, rx),
            PacketOp::AtomicAck => self.atomic_ack(qp, packet),
            _ => {}
        }
        self.answered(qp, now);
    }

    /// Marks everything up to `psn` as arrived.
    pub(crate) fn acknowledged(&mut self, qp: &mut Qp, psn: Psn, now: Nanos) {
        self.acked(qp, psn);
        self.answered(qp, now);
    }

    fn answered(&mut self, qp: &mut Qp, now: Nanos) {
        self.retire(qp, now);
        self.set_ack_timer(qp, now);
        self.check_drained(qp);
    }

    /// Marks everything up to `psn` as arrived; READs and atomics need their own response.
    fn acked(&mut self, qp: &mut Qp, psn: Psn) {
        // Progress inside a message counts too (9.7.5.1.2).
        let any = psn.since(qp.rc.unacked) >= 0;
        if any {
            qp.rc.unacked = psn.plus(1);
        }
        for e in qp.inflight.iter_mut().filter(|e| e.psns > 0 && !e.done) {
            if e.last_psn().since(psn) > 0 || e.is_read_like() {
                break;
            }
            (e.done, e.out) = (true, true);
        }
        if any {
            qp.progressed();
        }
    }

    fn rnr_nak(&mut self, qp: &mut Qp, packet: &Packet, now: Nanos) {
        self.acked(qp, packet.psn.plus(0xff_ffff));
        let Some(at) = self.entry_with(qp, packet.psn) else { return };
        qp.counts.not_ready(now);
        if qp.rc.rnr_retries == 0 {
            self.fail_entry(qp, at, WcStatus::RnrRetryExcErr);
            return;
        }
        if qp.attr.rnr_retry < 7 {
            qp.rc.rnr_retries -= 1;
        }
        self.rewind(qp, packet.psn);
        qp.rc.ack_deadline = None; // an RNR NAK is an answer; the next try is timed anew
        let until = now + rnr_nanos(packet.syndrome & 31);
        qp.rc.rnr_until = Some(until);
        self.arm_timer(qp, until);
    }

    fn nak(&mut self, qp: &mut Qp, packet: &Packet) {
        self.acked(qp, packet.psn.plus(0xff_ffff));
        let Some(at) = self.entry_with(qp, packet.psn) else { return };
        let status = match packet.syndrome & 31 {
            refused::NAK_SINGLE_COPY if qp.same_host.refused.is_none_or(|last| packet.psn.since(last) > 0) => {
                // The segments go through the window. No packet was lost, so it is no retry.
                (qp.same_host.no_single_copy, qp.same_host.refused) = (true, Some(packet.psn));
                self.rewind(qp, packet.psn);
                return;
            }
            // A reference is refused once. As any other repetition, this one is a retry (IBTA vol. 1, 9.7.5.1.2).
            code @ (refused::NAK_SINGLE_COPY | refused::NAK_SEQUENCE) => {
                qp.counts.counters.seq_naks_in += u64::from(code == refused::NAK_SEQUENCE);
                if qp.rc.retries == 0 {
                    WcStatus::RetryExcErr
                } else {
                    qp.rc.retries -= 1;
                    self.rewind(qp, packet.psn);
                    return;
                }
            }
            refused::NAK_INVALID_REQUEST => WcStatus::RemInvReqErr,
            refused::NAK_REMOTE_ACCESS => WcStatus::RemAccessErr,
            refused::NAK_SOURCE_FAULT => WcStatus::LocProtErr,
            _ => WcStatus::RemOpErr,
        };
        self.fail_entry(qp, at, status);
    }

    fn entry_with(&self, qp: &Qp, psn: Psn) -> Option<usize> {
        qp.inflight
            .iter()
            .position(|e| e.psns > 0 && !e.done && psn.since(e.first_psn) >= 0 && e.last_psn().since(psn) >= 0)
    }

    /// Goes back to a sequence number: the packets behind it are sent again.
    fn rewind(&mut self, qp: &mut Qp, psn: Psn) {
        let Some(first) = self.entry_with(qp, psn) else { return };
        let mtu = qp.mtu;
        for (i, e) in qp.inflight.iter_mut().enumerate().skip(first) {
            if e.error.is_some() {
                break; // nothing behind the request goes out
            }
            if e.done || e.psns == 0 {
                continue;
            }
            e.out = false;
            if e.carrier == Carrier::Mixed {
                e.carrier = Carrier::Link;
            }
            e.sent = match e.opcode {
                Opcode::Send
                | Opcode::SendWithImm
                | Opcode::SendWithInv
                | Opcode::RdmaWrite
                | Opcode::RdmaWriteWithImm
                    if i == first =>
                {
                    (psn.since(e.first_psn) as u32).saturating_mul(mtu).saturating_add(e.executed).min(e.len)
                }
                _ => e.executed,
            };
        }
        // An earlier request may have to go out again too.
        qp.cursor = qp.cursor.min(first);
    }

    fn read_response(&mut self, qp: &mut Qp, packet: &Packet, rx: Source<P::Rx>) {
        // A READ's response acknowledges what was before it (9.7.5.1).
        self.acked(qp, packet.psn.plus(0xff_ffff));
        let Some(at) = qp.inflight.iter().position(|e| e.psns > 0 && !e.done) else { return };
        let e = &qp.inflight[at];
        // The response belongs to another READ, is a duplicate of an earlier try, or lies behind a gap: the timer
        // repairs it.
        if e.opcode != Opcode::RdmaRead || packet.psn != e.first_psn.plus((e.received - e.executed) / qp.mtu) {
            return;
        }
        // All but the last are full packets (9.7.5). None is without data, since such packets could keep a READ from
        // its end. And they are as long as our path MTU, not as the responder's.
        let whole =
            packet.is_cut_by(qp.mtu) && (packet.has(flag::LAST) || packet.len > 0 && packet.len.is_multiple_of(qp.mtu));
        let bad = if !whole {
            Some(WcStatus::BadRespErr)
        } else if packet.has(flag::BY_REF) {
            // The data have been put in place.
            if packet.remote_addr != u64::from(e.received) {
                return;
            }
            (!e.by_ref || packet.len > e.len - e.received).then_some(WcStatus::BadRespErr)
        } else {
            let offset = packet.remote_addr;
            if offset != u64::from(e.received) {
                return; // a duplicate of an earlier try, or a gap: the timer repairs it
            }
            let carried = self.payload_len(rx);
            if packet.len != carried || packet.len > e.len - e.received {
                Some(WcStatus::BadRespErr)
            } else if !self.gather(qp, at, offset as u32, packet.len, true) {
                Some(WcStatus::LocProtErr)
            } else {
                self.scatter(rx, 0).is_err().then_some(WcStatus::LocProtErr)
            }
        };
        if let Some(status) = bad {
            self.fail_entry(qp, at, status);
            return;
        }
        let e = &mut qp.inflight[at];
        e.received += packet.len;
        if packet.has(flag::LAST) && e.received != e.len {
            self.fail_entry(qp, at, WcStatus::BadRespErr);
            return;
        }
        if e.received == e.len && packet.has(flag::LAST) {
            (e.done, e.out) = (true, true);
            qp.rc.unacked = e.last_psn().plus(1);
            qp.rc.reads_out -= 1;
        }
        qp.progressed();
    }

    fn atomic_ack(&mut self, qp: &mut Qp, packet: &Packet) {
        self.acked(qp, packet.psn.plus(0xff_ffff));
        let Some(at) = qp.inflight.iter().position(|e| e.psns > 0 && !e.done) else { return };
        let e = &qp.inflight[at];
        if e.first_psn != packet.psn || !e.is_read_like() || e.opcode == Opcode::RdmaRead {
            return;
        }
        if matches!(e.opcode, Opcode::CmpAndSwp | Opcode::FetchAndAdd) {
            let ok = self.gather(qp, at, 0, 8, true) && self.store_spans(&packet.swap.to_ne_bytes()).is_ok();
            if !ok {
                self.fail_entry(qp, at, WcStatus::LocProtErr);
                return;
            }
        }
        let e = &mut qp.inflight[at];
        (e.done, e.out) = (true, true);
        qp.rc.unacked = packet.psn.plus(1);
        qp.rc.reads_out -= 1;
        qp.progressed();
    }

    // ---- timers ----

    pub(crate) fn set_ack_timer(&mut self, qp: &mut Qp, now: Nanos) {
        if !matches!(qp.init.qp_type, QpType::Rc | QpType::XrcIni) || qp.rc.rnr_until.is_some() {
            return;
        }
        // The timer runs also for a request that finds no room on the link: a peer that makes no room gives no answer
        // either.
        let waiting = qp.inflight.iter().any(|e| e.psns > 0 && !e.done && e.error.is_none());
        match timeout_nanos(qp.attr.timeout) {
            Some(timeout) if waiting => {
                if qp.rc.ack_deadline.is_none() {
                    qp.rc.ack_deadline = Some(now + timeout);
                    self.arm_timer(qp, now + timeout);
                }
            }
            _ => qp.rc.ack_deadline = None,
        }
    }

    /// Handles the timer of a queue pair that is due. The deadline may have been moved since.
    pub(crate) fn qp_timer(&mut self, qp: &mut Qp, now: Nanos) {
        self.seek_timer(qp, now);
        if let Some(until) = qp.rc.rnr_until {
            if until <= now {
                qp.rc.rnr_until = None;
            } else {
                self.rearm_timer(qp, until);
            }
            return;
        }
        if let Some(until) = qp.unreliable.give_up_at {
            if until > now {
                self.rearm_timer(qp, until);
            } else if qp.parked {
                // The request is tried once more, and then lost.
                self.unpark_one(qp);
            }
            return;
        }
        let Some(deadline) = qp.rc.ack_deadline else { return };
        if deadline > now {
            self.rearm_timer(qp, deadline);
            return;
        }
        qp.rc.ack_deadline = None;
        let Some(at) = qp.inflight.iter().position(|e| e.psns > 0 && !e.done) else { return };
        qp.counts.counters.timeouts += 1;
        // Packets that a living peer has not even taken are not lost, and need not be sent again. The peer is waiting
        // for its turn on the processor, and will find them. An adapter's peer would have answered by itself meanwhile.
        let pending = |link| qp.parked || !self.env.taken(link, qp.rc.sent_mark);
        // An answer is not late if it may lie behind packets that have come and that this process has not taken. With
        // much to copy in both directions that takes as long as the timeouts. Packets that came later do not count, or
        // the engine would wait for a peer that sends without end.
        let unacked = qp.rc.unacked;
        let marked = qp.rc.unread.filter(|(.., at)| *at == unacked);
        let unread = match marked {
            Some((link, until, _)) => self.env.read(link) < until && self.env.unread(link).is_some(),
            None => {
                let mark = |link| Some((link, self.env.unread(link)?, unacked));
                qp.rc.unread = [qp.from, qp.link].into_iter().flatten().find_map(mark);
                qp.rc.unread.is_some()
            }
        };
        let waits = qp.link.is_some_and(|link| pending(link) && self.env.lives(link));
        if (waits || unread) && now < *qp.rc.patient_since.get_or_insert(now) + PATIENCE {
            self.set_ack_timer(qp, now);
            return;
        }
        if qp.rc.retries == 0 {
            self.fail_entry(qp, at, WcStatus::RetryExcErr);
            self.retire(qp, now);
            return;
        }
        qp.rc.retries -= 1;
        qp.rc.unread = None;
        if !waits {
            self.retransmit(qp);
        }
        self.set_ack_timer(qp, now);
    }

    /// Sends everything again that is not acknowledged.
    pub(crate) fn retransmit(&mut self, qp: &mut Qp) {
        let Some(e) = qp.inflight.iter().find(|e| e.psns > 0 && !e.done) else { return };
        let part = !e.is_read_like() && qp.rc.unacked.since(e.first_psn) > 0 && e.last_psn().since(qp.rc.unacked) >= 0;
        let from = if part { qp.rc.unacked } else { e.first_psn };
        self.rewind(qp, from);
    }
}
