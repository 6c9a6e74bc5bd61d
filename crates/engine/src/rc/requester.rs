//! The requester: fetches send requests and sends their packets (IBTA vol. 1, 9.7.3, 10.8.3). What comes back is in
//! `acknowledge`, the end of a request in `complete`.

use verbs::{Opcode, QpState, QpType, RKey, SendBody, SendFlags, WcStatus, limits};
use wire::{Env, LinkId, Nanos, Packet, PacketOp, Payload, SHORTEST, SendError, packet_flags as flag};

use crate::Engine;
use crate::qp::{Qp, psns};
use crate::rc::packets::Piece;
use crate::region::LocalFault;
use crate::same_host::co_copy::LIST_OF_ONE;
use crate::wq::inflight::Inflight;

/// Sequence numbers that may be outstanding: numbers further apart cannot be told apart (IBTA vol. 1, 9.7.2).
pub(crate) const MOST_PSNS: u32 = (1 << 23) - 1;

/// The link has no room: the rest waits until it has.
pub(crate) struct NoRoom;

/// Why a straight run ([`super::straight`]) ended.
pub(crate) enum Ran {
    /// Nothing is left to do.
    Over,
    /// A SEND is under way, and no other entry may begin.
    Sent,
    /// The entry at the head takes the ordinary way.
    Ordinary,
}

/// True for requests that no packet carries: they are executed when they are fetched.
fn is_local(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::LocalInv | Opcode::BindMw) || opcode.is_task()
}

/// Whether another entry may be fetched.
enum Fetched {
    Yes,
    No,
}

impl<P: Env> Engine<P> {
    /// Sends what a queue pair may send now.
    pub(crate) fn run_requests(&mut self, qp: &mut Qp, now: Nanos) -> Result<(), NoRoom> {
        if !matches!(qp.state, QpState::Rts | QpState::Sqd) || qp.rc.rnr_until.is_some() {
            return Ok(());
        }
        let ran = if qp.sq.managed.is_some() { self.run_straight(qp, now) } else { Ran::Ordinary };
        let result = match ran {
            Ran::Over => return Ok(()),
            Ran::Sent => Ok(()),
            Ran::Ordinary => self.run_entries(qp, now),
        };
        self.retire(qp, now);
        self.set_ack_timer(qp, now);
        self.check_drained(qp);
        result
    }

    #[inline(always)] // the only call
    fn run_entries(&mut self, qp: &mut Qp, now: Nanos) -> Result<(), NoRoom> {
        // The memory of the whole request at the cursor is in `self.spans`: it was fetched, and thus checked, just now.
        let mut gathered = false;
        loop {
            while qp.cursor < qp.inflight.len() {
                let gathered = std::mem::take(&mut gathered);
                let e = &qp.inflight[qp.cursor];
                let (mut out, one_sided) = (e.out, e.one_sided && !e.out);
                if one_sided {
                    if !self.one_sided_next(qp, gathered) {
                        return Ok(()); // the request goes on under the next hold of the lock
                    }
                    out = qp.inflight[qp.cursor].out;
                }
                if !out {
                    if qp.init.qp_type == QpType::Ud {
                        self.send_datagram(qp, qp.cursor, gathered, now)?;
                    } else {
                        // A piece that could not be executed here has left its own memory in `self.spans`.
                        self.send_entry(qp, gathered && !one_sided, now)?;
                        if !qp.inflight[qp.cursor].out {
                            return Ok(()); // its turn is over, the rest of the message follows
                        }
                    }
                }
                qp.cursor += 1;
                if self.turn_is_over() || self.burst_exhausted() {
                    return Ok(());
                }
            }
            // 10.3.1.5: in SQD, requests that have not begun stay where they are
            if qp.state != QpState::Rts || qp.halted {
                return Ok(());
            }
            match self.fetch(qp, now) {
                Fetched::Yes => gathered = true,
                Fetched::No => return Ok(()),
            }
        }
    }

    /// Takes the next entry out of the send queue, if it may begin.
    fn fetch(&mut self, qp: &mut Qp, now: Nanos) -> Fetched {
        if qp.cross_channel {
            self.run_tasks(qp, now);
            // A request that completes may find its completion queue full, which ends the queue pair (10.2.6.3).
            if !qp.sq.is_runnable() || !self.may_go_on(qp, now) || qp.state != QpState::Rts {
                return Fetched::No;
            }
        }
        if !qp.sq.is_runnable() {
            return Fetched::No;
        }
        // The list grows with the most requests under way at one time, which is mostly far less than the queue holds.
        if qp.inflight.is_full() && qp.inflight.try_reserve(1).is_err() {
            // Without memory for more, the next waits for one to finish.
            self.retire(qp, now);
            if qp.inflight.is_full() || qp.state != QpState::Rts {
                return Fetched::No;
            }
        }
        let at = qp.inflight.len();
        let Some(place) = qp.inflight.place() else { return Fetched::No };
        if !qp.sq.peek_into(place) {
            // The entry was overwritten, and is no request any more.
            qp.inflight.drop_last();
            let number = qp.sq.advance();
            if let Some(rule) = qp.sq.broken(number) {
                self.done.broken(qp.qpn, None, WcStatus::LocQpOpErr, rule);
            }
            let wr_id = qp.sq.wr_id(number);
            qp.inflight.push_back(Inflight::failed(number, wr_id, WcStatus::LocQpOpErr, qp.rc.next_psn));
            qp.halted = true;
            return Fetched::Yes;
        }
        (place.since, place.first_psn) = (now, qp.rc.next_psn);
        let local = is_local(place.opcode);
        if self.must_wait(qp, at) {
            qp.inflight.drop_last();
            return Fetched::No;
        }
        let number = qp.sq.advance();
        qp.inflight[at].queued = qp.queues(number);
        let admitted = if local {
            let mut entry = std::mem::take(&mut qp.inflight[at]);
            qp.inflight.drop_last();
            let admitted = self.admit(qp, &mut entry);
            qp.inflight.push_back(entry);
            admitted
        } else {
            self.check_entry(qp, &qp.inflight[at])
        };
        match admitted {
            // The request takes no sequence number: for the peer's queue pair, nothing has come.
            Ok(()) if self.may_go_one_sided(qp, at) => {
                let e = &mut qp.inflight[at];
                (e.psns, e.one_sided) = (0, true);
            }
            Ok(()) if qp.cross_channel && self.deliver_here(qp, at, now) => {}
            Ok(()) => Self::number(qp, at),
            Err(status) => {
                let e = &mut qp.inflight[at];
                (e.error, e.out) = (Some(status), true);
                qp.halted = true;
            }
        }
        Fetched::Yes
    }

    /// True if the last of the requests under way, which has been copied out of the queue, may not begin yet.
    #[inline(always)]
    fn must_wait(&mut self, qp: &mut Qp, at: usize) -> bool {
        if qp.cross_channel && !self.is_met(qp) {
            return true;
        }
        let e = &qp.inflight[at];
        // 10.8.3.3 (fence) and 9.4.4 (outstanding READs and atomics): the request waits
        if qp.rc.reads_out > 0
            && (e.flags.contains(SendFlags::FENCE)
                || (e.is_read_like() && qp.rc.reads_out >= u32::from(qp.attr.max_rd_atomic)))
        {
            return true;
        }
        if !qp.init.qp_type.is_reliable() {
            return false;
        }
        let outstanding = qp.rc.next_psn.since(qp.rc.unacked).unsigned_abs();
        // Where the request waits for one that is executed here, a response runs the queue pair again.
        outstanding + qp.psns(e.len.min(limits::MAX_MSG)) > MOST_PSNS || self.waits_for_one_sided(qp, at)
    }

    /// Checks a fetched request, and executes it if it is local.
    pub(crate) fn admit(&mut self, qp: &mut Qp, e: &mut Inflight) -> Result<(), WcStatus> {
        if !is_local(e.opcode) || !crate::wq::post::legal(qp.init.qp_type, e.opcode) {
            return self.check_entry(qp, e);
        }
        (e.out, e.done) = (true, true);
        if e.opcode.is_task() {
            return if self.execute_task(qp, e) { Ok(()) } else { Err(WcStatus::LocQpOpErr) };
        }
        self.env.wait_for_late_writers();
        if e.opcode == Opcode::LocalInv {
            return self.invalidate(qp.id, RKey(e.imm)).map_err(|()| WcStatus::MwBindErr);
        }
        let SendBody::BindMw { mw, rkey, mr, addr, length, access } = e.body else {
            (e.out, e.done) = (false, false);
            return Err(WcStatus::LocQpOpErr);
        };
        let bound = self.mem.bind(qp.id, qp.init.pd, mw, rkey, mr, addr, length, access);
        bound.map_err(|()| WcStatus::MwBindErr)?;
        self.publish_mw(qp, mw);
        Ok(())
    }

    /// Checks a fetched request that is to be sent. Then its memory is in `self.spans`, unless its data are inline.
    #[inline]
    fn check_entry(&mut self, qp: &Qp, e: &Inflight) -> Result<(), WcStatus> {
        if !crate::wq::post::legal(qp.init.qp_type, e.opcode) {
            return Err(WcStatus::LocQpOpErr);
        }
        if e.is_read_like() && qp.attr.max_rd_atomic == 0 {
            return Err(WcStatus::LocQpOpErr); // C9-... no initiator resources: it could never begin
        }
        if e.len > limits::MAX_MSG {
            return Err(WcStatus::LocLenErr);
        }
        match e.opcode {
            // 9.4.5: the operand and the result are 8 bytes; a list of another length is a Local Length Error (11.6.2).
            Opcode::CmpAndSwp | Opcode::FetchAndAdd | Opcode::AtomicWrite if e.len != 8 => {
                return Err(WcStatus::LocLenErr);
            }
            _ => {}
        }
        if qp.init.qp_type == QpType::Ud {
            return self.check_datagram(qp, e);
        }
        if e.inline_len == 0 && !e.flags.contains(SendFlags::INLINE) {
            let writes = matches!(e.opcode, Opcode::RdmaRead | Opcode::CmpAndSwp | Opcode::FetchAndAdd);
            self.spans.clear();
            self.mem.local_spans(qp.init.pd, &e.sges, 0, e.len, writes, &mut self.spans).map_err(
                |fault| match fault {
                    LocalFault::Length => WcStatus::LocLenErr,
                    LocalFault::Protection => WcStatus::LocProtErr,
                },
            )?;
        }
        Ok(())
    }

    /// Gives a request that will be sent its sequence numbers.
    pub(crate) fn number(qp: &mut Qp, at: usize) {
        let (mtu, is_datagram, next) = (qp.mtu, qp.init.qp_type == QpType::Ud, qp.rc.next_psn);
        let e = &mut qp.inflight[at];
        e.first_psn = next;
        e.psns = match e.opcode {
            Opcode::LocalInv | Opcode::BindMw | Opcode::Nop | Opcode::Wait | Opcode::SendEn | Opcode::RecvEn => 0,
            Opcode::CmpAndSwp | Opcode::FetchAndAdd | Opcode::AtomicWrite | Opcode::Flush => 1,
            _ if is_datagram => 1,
            _ => psns(e.len - e.executed, mtu),
        };
        qp.rc.reads_out += u32::from(e.is_read_like());
        qp.rc.next_psn = next.plus(e.psns);
    }

    /// Sends the packets of the entry at the cursor, from where the last turn stopped: all that are left, unless others
    /// have their turn meanwhile. `gathered`: as [`Engine::one_sided_next`] has it.
    fn send_entry(&mut self, qp: &mut Qp, mut gathered: bool, now: Nanos) -> Result<(), NoRoom> {
        self.find_link(qp);
        let at = qp.cursor;
        let Some(link) = qp.link else {
            // The peer has no link: all packets count as lost. The timer decides.
            self.mark_out(qp, at);
            self.seek_without_timer(qp, now);
            return Ok(());
        };
        let caps = self.env.caps_for(link, qp.inflight[at].len);
        debug_assert!(caps.single_copy.is_none() || self.env.is_same_host(link), "copies need one host");
        loop {
            let mut packet = self.first_of(qp, at);
            let gathered = std::mem::take(&mut gathered);
            let piece = match self.make_packet(qp, at, link, &caps, gathered, &mut packet) {
                Ok(piece) => piece,
                Err(status) => {
                    self.fail_entry(qp, at, status);
                    return Ok(());
                }
            };
            let payload = Payload { prefix: &self.bytes, spans: &self.spans };
            match self.env.send(link, &packet, payload) {
                Ok(()) => (qp.unreliable.lossy, qp.unreliable.give_up_at) = (false, None),
                Err(SendError::Full) => {
                    if qp.init.qp_type == QpType::Uc && !self.waits_for_room(qp, now) {
                        qp.counts.counters.no_room += 1;
                        self.mark_out(qp, at); // the rest of the message is lost
                        return Ok(());
                    }
                    return Err(NoRoom);
                }
                Err(SendError::Fault) => {
                    self.fail_entry(qp, at, WcStatus::LocProtErr);
                    return Ok(());
                }
                Err(SendError::Down) => {
                    // Packets that the peer sent before it went are still received over this link, so the queue pair
                    // keeps the link until `link_down`. A new process may have the number then: the timer tries it.
                    self.mark_out(qp, at);
                    return Ok(());
                }
            }
            self.packet_sent(qp, at, link, &packet, piece);
            if packet.has(flag::LAST) || self.turn_is_over() {
                return Ok(());
            }
        }
    }

    /// Notes that a packet of the entry has been sent.
    fn packet_sent(&mut self, qp: &mut Qp, at: usize, link: LinkId, packet: &Packet, piece: Piece) {
        qp.rc.sent_mark = self.env.sent_mark(link);
        if piece.by_ref {
            if !qp.inflight[at].by_ref {
                qp.inflight[at].by_ref = true;
                self.hold_single_copy(&qp.inflight[at], 1);
            }
            let len = if packet.op == PacketOp::ReadRequest { packet.dma_len } else { packet.len };
            if len >= SHORTEST && self.bytes.len() == LIST_OF_ONE {
                self.lend(qp, link);
            }
        } else {
            self.turn += u64::from(piece.len);
        }
        qp.inflight[at].sent += piece.len;
        if packet.has(flag::LAST) {
            self.mark_out(qp, at);
        }
    }

    /// Notes that the entry has been sent; without acknowledgements the request is over then.
    fn mark_out(&mut self, qp: &mut Qp, at: usize) {
        let reliable = qp.init.qp_type.is_reliable();
        let e = &mut qp.inflight[at];
        e.out = true;
        if !reliable {
            e.done = true;
        }
    }

    pub(crate) fn fail_entry(&mut self, qp: &mut Qp, at: usize, status: WcStatus) {
        let e = &mut qp.inflight[at];
        (e.error, e.out) = (Some(status), true);
        qp.halted = true;
        // The requests that were fetched behind it must not go out either.
        for e in qp.inflight.iter_mut().skip(at + 1) {
            e.out = true;
        }
    }

    /// Counts a request by reference in or out of its regions.
    pub(crate) fn hold_single_copy(&mut self, e: &Inflight, by: i32) {
        for sge in &e.sges {
            if let Some(mr) = self.mem.mr_by_lkey(sge.lkey) {
                mr.single_copy = mr.single_copy.saturating_add_signed(by);
            }
        }
    }

    /// Gives up the requests by reference that are under way. When this returns, the peer does not reach our memory for
    /// them any more, nor does a peer that was to help with a copy of ours.
    pub(crate) fn revoke(&mut self, qp: &Qp) {
        if qp.inflight.iter().any(|e| e.by_ref) {
            qp.same_host.ticket.void();
            self.env.quiesce(qp.link);
        }
        self.env.wait_for_late_writers();
    }

    /// Ends the single copies of all requests of a queue pair.
    pub(crate) fn release_single_copy(&mut self, qp: &mut Qp) {
        self.revoke(qp);
        for e in qp.inflight.iter_mut() {
            if std::mem::take(&mut e.by_ref) {
                for sge in &e.sges {
                    if let Some(mr) = self.mem.mr_by_lkey(sge.lkey) {
                        mr.single_copy = mr.single_copy.saturating_sub(1);
                    }
                }
            }
        }
    }
}
