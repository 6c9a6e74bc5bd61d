//! The turns of queue pairs: the list of queue pairs with something to send, those that wait for room, and the timers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::cold_path;

use verbs::{QpId, QpState, QpType, WcStatus};
use wire::{Env, LinkId, Nanos, Packet, PacketOp, packet_flags as flag};

use crate::Engine;
use crate::copies::Source;
use crate::modify::timeout_nanos;
use crate::qp::Qp;
use crate::rc::refused::{NAK, NAK_SINGLE_COPY, NAK_SOURCE_FAULT};

/// When queue pairs' timers may be due; index and generation of each.
pub(crate) type Timers = BinaryHeap<Reverse<(Nanos, u32, u32)>>;

/// Bytes of single copies in one turn. After them, acknowledgements go out, other queue pairs have their turn, and the
/// clock is read again.
pub(crate) const BURST: u64 = 2 << 20;

/// Bytes that one queue pair sends through a link while others wait.
const TURN: u64 = 64 << 10;

/// Entries of timers for each queue pair, and in all, above which entries that no queue pair waits for are removed.
const TIMERS_EACH: usize = 10;
const TIMERS_MORE: usize = 64;

/// True for a packet that only processes of one host send each other: references to memory, and the NAK codes about
/// copies by them, which the specification reserves. A peer on another host must not be believed about either. This
/// function is the one place that drops such packets.
fn is_for_one_host(packet: &Packet) -> bool {
    let about_copies = [NAK | NAK_SOURCE_FAULT, NAK | NAK_SINGLE_COPY].contains(&packet.syndrome);
    packet.has(flag::BY_REF) || packet.op == PacketOp::Ack && about_copies
}

impl<P: Env> Engine<P> {
    /// True if enough was copied that acknowledgements should go out now: call [`Engine::run`], with a new time.
    pub fn burst_exhausted(&self) -> bool {
        self.moved > BURST
    }

    /// Takes a packet that has come over a link. `rx` names its payload until this returns.
    pub fn receive(&mut self, link: LinkId, packet: &Packet, rx: P::Rx, now: Nanos) {
        self.arrival = link;
        if packet.op == PacketOp::Datagram {
            cold_path();
            self.datagram(packet, Source::Wire(rx), now);
            return;
        }
        let Some(id) = self.qpns.find(packet.dst) else {
            cold_path();
            return;
        };
        if !self.receive_fast(id, link, packet, rx, now) {
            self.receive_slow(id, link, packet, rx, now);
        }
    }

    // A function of its own, so that the fast path pays nothing for it.
    #[inline(never)]
    fn receive_slow(&mut self, id: QpId, link: LinkId, packet: &Packet, rx: P::Rx, now: Nanos) {
        let straight = match packet.op {
            PacketOp::Send => self.receive_straight(id, link, packet, rx, now),
            PacketOp::Ack => self.acknowledged_straight(id, link, packet),
            _ => false,
        };
        if straight || is_for_one_host(packet) && !self.env.is_same_host(link) {
            return;
        }
        let Some(mut qp) = self.checkout_qp(id) else { return };
        if self.comes_from_peer(&mut qp, link, packet, now) {
            let rx = Source::Wire(rx);
            if packet.op.is_response() {
                self.response(&mut qp, packet, rx, now);
            } else {
                self.request(&mut qp, packet, rx, now);
            }
            self.schedule(&mut qp);
        }
        self.qps.put_back(id, qp);
    }

    /// IBTA vol. 1, 9.6.1: a packet for a connected queue pair comes from the address that it is connected
    /// to, or is dropped. The address here is the link: the numbers in a packet can be guessed, the process behind a
    /// link cannot be feigned.
    fn comes_from_peer(&mut self, qp: &mut Qp, link: LinkId, packet: &Packet, now: Nanos) -> bool {
        if qp.link == Some(link) || qp.from == Some(link) {
            qp.from = Some(link);
            return true;
        }
        let is_apart = qp.init.qp_type == QpType::Ud || qp.is_iwarp; // datagrams went another way
        if is_apart || matches!(qp.state, QpState::Reset | QpState::Init | QpState::Err) {
            return false;
        }
        self.find_link(qp);
        if qp.init.qp_type == QpType::Uc && qp.same_host.exported.is_none() {
            self.publish_qp(qp);
        }
        match qp.link {
            Some(own) if self.env.same_peer(own, link) => {
                qp.from = Some(link);
                true
            }
            Some(_) => {
                self.strangers += 1;
                if self.strangers.is_power_of_two() {
                    let rule = "a packet came from another process than the peer of the connection, and was dropped";
                    self.done.broken(qp.qpn, None, WcStatus::GeneralErr, rule);
                }
                false
            }
            None => {
                // The packet's sender cannot be found out: the packet counts as lost.
                if !packet.op.is_response() {
                    self.seek_requester(qp, now);
                }
                false
            }
        }
    }

    /// True if the queue pair that runs now has sent its share, and others wait for theirs. Otherwise a queue pair with
    /// much to send would fill the link at every turn, and the peers of the other queue pairs would take them for dead.
    pub(crate) fn turn_is_over(&self) -> bool {
        self.turn >= TURN && !self.ready.is_empty()
    }

    /// Puts a queue pair on the list if it has something to do. A queue pair that waits for room is put there, too, if
    /// its wait leaves a request without a timer: a request that is under way has one.
    pub(crate) fn schedule(&mut self, qp: &mut Qp) {
        if qp.parked && lacks_timer(qp) {
            self.unpark_one(qp);
        }
        if !qp.queued && !qp.parked && qp.has_work() {
            qp.queued = true;
            self.ready.push_back(qp.id);
        }
    }

    /// Sends what can be sent: responses first, then requests. The caller calls this after posts, after packets, after
    /// time, and again while [`Engine::has_ready`].
    pub fn run(&mut self, now: Nanos) {
        self.unpark();
        self.moved = 0;
        // Completions that are never polled are overwritten again and again.
        self.free_overwritten();
        if !self.done.due.is_empty() {
            self.wake_due();
        }
        while self.acknowledge_first() {}
        // A queue pair that has had a piece executed comes behind those that wait for theirs.
        let mut last = None;
        while !self.burst_exhausted()
            && let Some(id) = self.ready.pop_front()
        {
            let Some(mut qp) = self.checkout_qp(id) else { continue };
            qp.queued = false;
            if qp.stream.is_some() {
                self.streams.push_back(id);
                self.qps.put_back(id, qp);
                continue;
            }
            self.turn = 0;
            let executed = self.executed;
            let mut blocked = self.run_responses(&mut qp, now).is_err();
            // Requests run also where responses found no room. A request finds no room then either, but the time for
            // the peer's answer begins (IBTA vol. 1, 9.7.6.1.3). The two directions of a connection have no order
            // between them.
            blocked |= self.run_requests(&mut qp, now).is_err();
            // A request that ends the queue pair has nothing to find room for.
            blocked &= qp.has_work();
            if std::mem::take(&mut self.goes_on) {
                // The queue pair is not parked, although its responses may find no room: its requests need none.
                qp.queued = true;
                if self.executed > executed {
                    last = Some(id);
                } else {
                    self.for_next_hold.push_back(id);
                }
                self.qps.put_back(id, qp);
                continue;
            }
            if blocked && let Some(link) = qp.link {
                qp.counts.counters.ring_full += 1;
                qp.parked = true;
                self.parked.entry(link).or_default().push(id);
            }
            let exhausted = !qp.rc.responses.is_empty() && qp.link.is_some();
            if !blocked && (exhausted || self.turn_is_over() || self.burst_exhausted() && qp.has_work()) {
                qp.queued = true;
                self.ready.push_back(id);
            }
            self.qps.put_back(id, qp);
            if !self.done.due.is_empty() {
                self.wake_due();
            }
        }
        if !self.for_next_hold.is_empty() {
            self.ready.append(&mut self.for_next_hold);
        }
        if let Some(id) = last {
            self.ready.push_back(id);
        }
    }

    /// Runs the part of [`Engine::run`] that has mostly to be done: acknowledgements, by queue pairs with nothing else
    /// to send.
    #[inline]
    pub fn acknowledge(&mut self) {
        while self.has_ready() && self.acknowledge_first() {}
    }

    /// Takes a queue pair out of those that wait for room.
    pub(crate) fn unpark_one(&mut self, qp: &mut Qp) {
        if let Some(waiting) = qp.link.and_then(|link| self.parked.get_mut(&link)) {
            waiting.retain(|id| *id != qp.id);
            self.parked.retain(|_, waiting| !waiting.is_empty());
        }
        qp.parked = false;
    }

    #[inline]
    fn unpark(&mut self) {
        if self.env.has_full() || !self.parked.is_empty() {
            self.unpark_some();
        }
    }

    #[inline(never)]
    fn unpark_some(&mut self) {
        // Also when no queue pair waits any more: the platform remembers full links until this call.
        let mut links = std::mem::take(&mut self.links);
        links.clear();
        self.env.take_writable(&mut links);
        for link in &links {
            let mut waiting = self.parked.remove(link).unwrap_or_default();
            if !waiting.is_empty() {
                // The queue pair that came first the last time comes last now: each has its turn at the room that there
                // is.
                waiting.rotate_left(1);
            }
            for id in waiting {
                if let Some(qp) = self.qps.get_mut(id) {
                    qp.parked = false;
                    qp.queued = true;
                    self.ready.push_back(id);
                }
            }
        }
        self.links = links;
    }

    /// True while a queue pair waits for room on a link.
    pub fn is_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// True if [`Engine::run`] has something to do.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Corrects timers after the clock was read. The clock is so much later than the time last passed in: `now` in the
    /// calls since then may have been that old. Timers that were set in these calls are moved, so that none runs out
    /// early.
    #[inline]
    pub fn catch_up(&mut self, late: Nanos) {
        if !self.timed.is_empty() {
            self.move_timers(late);
        }
    }

    /// True if timers were set since the last [`Engine::catch_up`].
    #[inline]
    pub fn has_timed(&self) -> bool {
        !self.timed.is_empty()
    }

    fn move_timers(&mut self, late: Nanos) {
        while let Some(id) = self.timed.pop() {
            let Some(qp) = self.qps.fast(id) else { continue };
            qp.timed = false;
            for deadline in
                [&mut qp.rc.ack_deadline, &mut qp.rc.rnr_until, &mut qp.unreliable.give_up_at, &mut qp.seek_at]
            {
                *deadline = deadline.map(|at| at.saturating_add(late));
            }
        }
    }

    pub(crate) fn arm_timer(&mut self, qp: &mut Qp, at: Nanos) {
        arm(&mut self.timed, &mut self.timers, qp, at);
    }

    /// Enters a deadline into the list of timers that was set before.
    pub(crate) fn rearm_timer(&mut self, qp: &mut Qp, at: Nanos) {
        rearm(&mut self.timers, qp, at);
    }

    /// Removes timer entries that no queue pair waits for. A timer that is set earlier than the one before leaves the
    /// earlier entry behind until it is due, as does a queue pair that is destroyed. With timeouts of hours, and a peer
    /// that says every 10 us that it is not ready, such entries would fill the memory.
    #[cold]
    fn sweep_timers(&mut self) {
        self.timers.clear();
        for (id, qp) in self.qps.iter() {
            let deadlines = [qp.timer_at, qp.rc.ack_deadline, qp.rc.rnr_until, qp.unreliable.give_up_at, qp.seek_at];
            let mut deadlines: Vec<Nanos> = deadlines.into_iter().flatten().collect();
            deadlines.sort_unstable();
            deadlines.dedup();
            self.timers.extend(deadlines.into_iter().map(|at| Reverse((at, id.index, id.generation))));
        }
    }

    /// Does what is due: acknowledgement timeouts, RNR waits, moderated events.
    pub fn expire(&mut self, now: Nanos) {
        self.done.fire_due(now);
        self.end_rests(now);
        while let Some(&Reverse((at, index, generation))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            let id = verbs::QpId { index, generation };
            let Some(mut qp) = self.checkout_qp(id) else { continue };
            if qp.timer_at == Some(at) {
                qp.timer_at = None;
            }
            self.qp_timer(&mut qp, now);
            self.schedule(&mut qp);
            self.qps.put_back(id, qp);
        }
        self.mind_timers();
    }

    /// Sweeps timer entries when there are many. The caller calls this where entries may have been left behind, and
    /// while no queue pair is lent out.
    pub(crate) fn mind_timers(&mut self) {
        // After a sweep each queue pair has 5 entries at most: the next sweep is at least as many settings away.
        if self.timers.len() > TIMERS_EACH * self.qps.len() + TIMERS_MORE {
            self.sweep_timers();
        }
    }

    /// True if a poller can expect anything: a send that is not complete, or a receive that is posted. With many queue
    /// pairs the answer is true without a check.
    pub fn expects_completions(&self) -> bool {
        const LOOK: usize = 16;
        let busy = |qp: &Qp| qp.expects_sends() || !qp.rq.wqes.is_empty();
        let mut seen = 0;
        for (_, qp) in self.qps.iter() {
            seen += 1;
            if seen > LOOK || busy(qp) {
                return true;
            }
        }
        self.srqs.iter().any(|(_, srq)| !srq.queue.wqes.is_empty())
    }
}

/// True if a request waits for its turn, or for room, without a timer that would tell that its peer is gone (IBTA vol.
/// 1, 9.7.6.1.3).
fn lacks_timer(qp: &Qp) -> bool {
    let waits = qp.cursor < qp.inflight.len() || qp.state == QpState::Rts && qp.sq.is_runnable();
    waits
        && matches!(qp.init.qp_type, QpType::Rc | QpType::XrcIni)
        && timeout_nanos(qp.attr.timeout).is_some()
        && [qp.rc.ack_deadline, qp.rc.rnr_until, qp.unreliable.give_up_at].iter().all(Option::is_none)
}

/// Sets a queue pair's timer.
#[inline]
pub(crate) fn arm(timed: &mut Vec<QpId>, timers: &mut Timers, qp: &mut Qp, at: Nanos) {
    if !std::mem::replace(&mut qp.timed, true) {
        timed.push(qp.id);
    }
    rearm(timers, qp, at);
}

#[inline]
fn rearm(timers: &mut Timers, qp: &mut Qp, at: Nanos) {
    // One entry per queue pair is enough when the entry is early enough: the queue pair looks at the true deadline when
    // the entry fires.
    if qp.timer_at.is_some_and(|armed| armed <= at) {
        return;
    }
    qp.timer_at = Some(at);
    timers.push(Reverse((at, qp.id.index, qp.id.generation)));
}
