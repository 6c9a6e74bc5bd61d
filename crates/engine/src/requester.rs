//! The requester: fetches send requests, sends their packets, takes acknowledgements, retries, completes
//! (IBTA vol. 1, 9.7.3 - 9.7.5, 9.9.2).

use verbs::{
    EventKind, EventSource, Opcode, Psn, QpState, QpType, RKey, SendBody, SendFlags, WcFlags, WcOpcode, WcStatus,
    limits,
};

use crate::cq::{Cqe, Frees};
use crate::modify::{rnr_nanos, timeout_nanos};
use crate::platform::{Nanos, Packet, PacketOp, Payload, Platform, SendError, Span, packet_flags as flag};
use crate::qp::{Inflight, Qp};
use crate::region::{LocalFault, NULL_ADDR};
use crate::{Engine, responder};

/// The link has no room: the rest waits until it has.
pub(crate) struct NoRoom;

/// Whether another entry may be fetched.
enum Fetched {
    Yes,
    No,
}

const fn wc_opcode(opcode: Opcode) -> WcOpcode {
    match opcode {
        Opcode::Send | Opcode::SendWithImm | Opcode::SendWithInv => WcOpcode::Send,
        Opcode::RdmaWrite | Opcode::RdmaWriteWithImm => WcOpcode::RdmaWrite,
        Opcode::RdmaRead => WcOpcode::RdmaRead,
        Opcode::CmpAndSwp => WcOpcode::CompSwap,
        Opcode::FetchAndAdd => WcOpcode::FetchAdd,
        Opcode::LocalInv => WcOpcode::LocalInv,
        Opcode::BindMw => WcOpcode::BindMw,
        Opcode::Flush => WcOpcode::Flush,
        Opcode::AtomicWrite => WcOpcode::AtomicWrite,
    }
}

/// What a failed send request says of its program (IBTA vol. 1, 11.6.2).
const fn send_rule(status: WcStatus) -> &'static str {
    match status {
        WcStatus::LocLenErr => "the message is longer than the service or the port allows, or an atomic's result is not 8 bytes",
        WcStatus::LocQpOpErr => "the entry is no request that this queue pair can execute",
        WcStatus::LocProtErr => {
            "a scatter/gather entry is outside its region, has a wrong lkey or protection domain, or lacks LOCAL_WRITE"
        }
        WcStatus::MwBindErr => "the window cannot be bound or invalidated: key, domain, rights, bounds or state",
        WcStatus::BadRespErr => "the response does not fit the request",
        WcStatus::RemInvReqErr => {
            "the responder calls the request invalid: receive too short, misaligned atomic, too many reads, operation not allowed"
        }
        WcStatus::RemAccessErr => "the rkey does not allow this access at the responder: key, bounds, rights, queue pair's access flags",
        WcStatus::RemOpErr => "the responder could not complete the request: its receive has a bad scatter/gather entry",
        WcStatus::RetryExcErr => "no acknowledgement within (retry_cnt + 1) timeouts: peer dead, stopped, in the wrong state, or wrong QPN or PSN",
        WcStatus::RnrRetryExcErr => "the responder had no receive posted for rnr_retry + 1 tries",
        _ => "the request failed",
    }
}

impl<P: Platform> Engine<P> {
    /// Sends what a queue pair may send now.
    pub(crate) fn run_requests(&mut self, qp: &mut Qp, now: Nanos) -> Result<(), NoRoom> {
        if !matches!(qp.state, QpState::Rts | QpState::Sqd) || qp.rnr_until.is_some() {
            return Ok(());
        }
        let result = self.run_entries(qp, now);
        self.retire(qp, now);
        self.set_ack_timer(qp, now);
        self.check_drained(qp);
        result
    }

    fn run_entries(&mut self, qp: &mut Qp, now: Nanos) -> Result<(), NoRoom> {
        loop {
            while qp.cursor < qp.inflight.len() {
                if !qp.inflight[qp.cursor].out {
                    self.send_entry(qp)?;
                }
                qp.cursor += 1;
            }
            // 10.3.1.5: in SQD, requests that have not begun stay where they are
            if qp.state == QpState::Sqd || qp.halted {
                return Ok(());
            }
            match self.fetch(qp, now) {
                Fetched::Yes => {}
                Fetched::No => return Ok(()),
            }
        }
    }

    /// Takes the next entry out of the send queue, if it may begin.
    fn fetch(&mut self, qp: &mut Qp, now: Nanos) -> Fetched {
        let Some(next) = qp.sq.peek() else { return Fetched::No };
        if let Some(wqe) = &next {
            let read_like = matches!(
                wqe.opcode,
                Opcode::RdmaRead | Opcode::CmpAndSwp | Opcode::FetchAndAdd | Opcode::AtomicWrite | Opcode::Flush
            );
            // 10.8.3.3 (fence) and 9.4.4 (outstanding READs and atomics): it waits
            if qp.reads_out > 0
                && (wqe.flags.contains(SendFlags::FENCE)
                    || (read_like && qp.reads_out >= u32::from(qp.attr.max_rd_atomic)))
            {
                return Fetched::No;
            }
        }
        let Some((number, _)) = qp.sq.fetch() else { return Fetched::No };
        let Some(wqe) = next else {
            // The entry was overwritten with what is no request.
            let wr_id = qp.sq.wr_id(number);
            qp.inflight.push_back(Inflight::failed(number, wr_id, WcStatus::LocQpOpErr, qp.next_psn));
            qp.halted = true;
            return Fetched::Yes;
        };
        let total: u64 = wqe.sges.iter().map(|s| u64::from(s.length)).sum();
        let len = if wqe.flags.contains(SendFlags::INLINE) { u64::from(wqe.inline_len) } else { total };
        let mut entry = Inflight {
            number,
            wr_id: wqe.wr_id,
            opcode: wqe.opcode,
            flags: wqe.flags,
            imm: wqe.imm,
            srqn: wqe.srqn,
            body: wqe.body,
            sges: wqe.sges,
            inline_len: wqe.inline_len,
            len: len.min(u64::from(u32::MAX)) as u32,
            first_psn: qp.next_psn,
            psns: 0,
            sent: 0,
            received: 0,
            out: false,
            done: false,
            by_ref: false,
            error: None,
        };
        match self.admit(qp, &mut entry, len, now) {
            Ok(()) => {
                qp.next_psn = qp.next_psn.plus(entry.psns);
                if entry.is_read_like() {
                    qp.reads_out += 1;
                }
            }
            Err(status) => {
                entry.error = Some(status);
                entry.out = true;
                qp.halted = true;
            }
        }
        qp.inflight.push_back(entry);
        Fetched::Yes
    }

    /// Checks a fetched request, executes it if it is local, and numbers its packets.
    fn admit(&mut self, qp: &mut Qp, e: &mut Inflight, len: u64, now: Nanos) -> Result<(), WcStatus> {
        if !crate::post::legal(qp.init.qp_type, e.opcode) {
            return Err(WcStatus::LocQpOpErr);
        }
        match e.opcode {
            Opcode::LocalInv => {
                (e.out, e.done) = (true, true);
                return self.mem.invalidate(qp.id, RKey(e.imm)).map_err(|()| WcStatus::MwBindErr);
            }
            Opcode::BindMw => {
                let SendBody::BindMw { mw, rkey, mr, addr, length, access } = e.body else {
                    return Err(WcStatus::LocQpOpErr);
                };
                (e.out, e.done) = (true, true);
                return self
                    .mem
                    .bind(qp.id, qp.init.pd, mw, rkey, mr, addr, length, access)
                    .map_err(|()| WcStatus::MwBindErr);
            }
            _ => {}
        }
        if e.is_read_like() && qp.attr.max_rd_atomic == 0 {
            return Err(WcStatus::LocQpOpErr); // C9-... no initiator resources: it could never begin
        }
        if len > u64::from(limits::MAX_MSG) {
            return Err(WcStatus::LocLenErr);
        }
        match e.opcode {
            // 9.4.5: the result takes 8 bytes
            Opcode::CmpAndSwp | Opcode::FetchAndAdd if len < 8 => return Err(WcStatus::LocLenErr),
            Opcode::CmpAndSwp | Opcode::FetchAndAdd => e.len = 8,
            Opcode::AtomicWrite if len != 8 => return Err(WcStatus::LocLenErr),
            _ => {}
        }
        if qp.init.qp_type == QpType::Ud {
            return self.send_datagram(qp, e, now);
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
        e.psns = match e.opcode {
            Opcode::CmpAndSwp | Opcode::FetchAndAdd | Opcode::AtomicWrite | Opcode::Flush => 1,
            _ => qp.psns(e.len),
        };
        Ok(())
    }

    /// Sends the packets of the entry at the cursor, from where it stopped.
    fn send_entry(&mut self, qp: &mut Qp) -> Result<(), NoRoom> {
        self.find_link(qp);
        let at = qp.cursor;
        let Some(link) = qp.link else {
            // No way to the peer: as if all packets were lost. The timer decides.
            self.mark_out(qp, at);
            return Ok(());
        };
        let caps = self.platform.caps(link);
        loop {
            let e = &qp.inflight[at];
            let dst = verbs::Qpn::new(qp.attr.dest_qp_num);
            let mut packet = Packet::new(PacketOp::Send, dst, qp.qpn, e.first_psn);
            packet.dma_len = e.len;
            if qp.init.qp_type == QpType::XrcIni {
                packet.flags |= flag::XRC;
            }
            match e.body {
                SendBody::Rdma { remote_addr, rkey } | SendBody::Atomic { remote_addr, rkey, .. } => {
                    (packet.remote_addr, packet.rkey) = (remote_addr, rkey.0);
                }
                _ => {}
            }
            self.spans.clear();
            self.bytes.clear();
            let mut chunk = 0;
            let mut by_ref = false;
            match e.opcode {
                Opcode::CmpAndSwp | Opcode::FetchAndAdd => {
                    let SendBody::Atomic { compare_add, swap, .. } = e.body else { return Ok(()) };
                    packet.flags |= flag::FIRST | flag::LAST | flag::ACK_REQ;
                    if e.opcode == Opcode::CmpAndSwp {
                        packet.op = PacketOp::CompareSwap;
                        (packet.compare, packet.swap) = (compare_add, swap);
                    } else {
                        packet.op = PacketOp::FetchAdd;
                        packet.swap = compare_add;
                    }
                }
                Opcode::AtomicWrite => {
                    packet.op = PacketOp::AtomicWrite;
                    packet.flags |= flag::FIRST | flag::LAST | flag::ACK_REQ;
                    match self.eight_bytes(qp, at) {
                        Ok(value) => packet.swap = value,
                        Err(status) => {
                            self.fail_entry(qp, at, status);
                            return Ok(());
                        }
                    }
                }
                Opcode::Flush => {
                    let SendBody::Flush { remote_addr, rkey, length, placement, level } = e.body else { return Ok(()) };
                    packet.op = PacketOp::Flush;
                    packet.flags |= flag::FIRST | flag::LAST | flag::ACK_REQ;
                    (packet.remote_addr, packet.rkey, packet.dma_len) = (remote_addr, rkey.0, length);
                    packet.syndrome = placement & 3 | (level & 1) << 4;
                }
                Opcode::RdmaRead => {
                    packet.op = PacketOp::ReadRequest;
                    packet.flags |= flag::FIRST | flag::LAST | flag::ACK_REQ;
                    // What has arrived before a retry is not asked for again (9.7.3.1).
                    let got = e.received;
                    packet.psn = e.first_psn.plus(got / qp.mtu);
                    packet.remote_addr = packet.remote_addr.wrapping_add(u64::from(got));
                    packet.dma_len = e.len - got;
                    packet.imm = got;
                    if !self.gather(qp, at, got, e.len - got, true) {
                        self.fail_entry(qp, at, WcStatus::LocProtErr);
                        return Ok(());
                    }
                    by_ref = caps.straight
                        && !qp.no_straight
                        && packet.dma_len > caps.straight_above
                        && self.list_spans();
                    self.spans.clear();
                }
                _ => {
                    let write = matches!(e.opcode, Opcode::RdmaWrite | Opcode::RdmaWriteWithImm);
                    if write {
                        packet.op = PacketOp::Write;
                    }
                    let offset = e.sent;
                    packet.psn = e.first_psn.plus(offset / qp.mtu);
                    packet.remote_addr =
                        if write { packet.remote_addr.wrapping_add(u64::from(offset)) } else { 0 };
                    if qp.init.qp_type == QpType::XrcIni {
                        packet.swap = u64::from(e.srqn);
                    }
                    let inline = e.flags.contains(SendFlags::INLINE);
                    let rest = e.len - offset;
                    let straight = caps.straight
                        && !qp.no_straight
                        && !inline
                        && qp.init.qp_type.is_reliable()
                        && rest > caps.straight_above;
                    chunk = if straight { rest } else { rest.min(caps.segment) };
                    if inline {
                        self.bytes.resize(chunk as usize, 0);
                        qp.sq.inline_bytes(e.number, offset, &mut self.bytes);
                    } else if !self.gather(qp, at, offset, chunk, false) {
                        self.fail_entry(qp, at, WcStatus::LocProtErr);
                        return Ok(());
                    }
                    if straight && self.list_spans() {
                        by_ref = true;
                        self.spans.clear();
                    } else if straight {
                        chunk = rest.min(caps.segment);
                        self.gather(qp, at, offset, chunk, false);
                    }
                    let e = &qp.inflight[at];
                    if offset == 0 {
                        packet.flags |= flag::FIRST;
                    }
                    if chunk == rest {
                        packet.flags |= flag::LAST | flag::ACK_REQ;
                        if e.flags.contains(SendFlags::SOLICITED) {
                            packet.flags |= flag::SOLICITED;
                        }
                        match e.opcode {
                            Opcode::SendWithImm | Opcode::RdmaWriteWithImm => packet.flags |= flag::IMM,
                            Opcode::SendWithInv => packet.flags |= flag::INV,
                            _ => {}
                        }
                        packet.imm = e.imm;
                    }
                    packet.len = chunk;
                    self.fill_null_spans();
                }
            }
            if by_ref {
                packet.flags |= flag::BY_REF;
            }
            let payload = Payload { prefix: &self.bytes, spans: &self.spans };
            match self.platform.send(link, &packet, payload) {
                Ok(()) => {}
                Err(SendError::Full) => return Err(NoRoom),
                Err(SendError::Fault) => {
                    self.fail_entry(qp, at, WcStatus::LocProtErr);
                    return Ok(());
                }
                Err(SendError::Down) => {
                    qp.link = None;
                    // A new process may have the number by now: the timer tries it.
                    self.mark_out(qp, at);
                    return Ok(());
                }
            }
            qp.sent_mark = self.platform.sent_mark(link);
            if by_ref && !qp.inflight[at].by_ref {
                qp.inflight[at].by_ref = true;
                self.hold_straight(&qp.inflight[at], 1);
            }
            let e = &mut qp.inflight[at];
            e.sent += chunk;
            if packet.has(flag::LAST) {
                self.mark_out(qp, at);
                return Ok(());
            }
        }
    }

    /// The entry has been sent; without acknowledgements that is all.
    fn mark_out(&mut self, qp: &mut Qp, at: usize) {
        let reliable = qp.init.qp_type.is_reliable();
        let e = &mut qp.inflight[at];
        e.out = true;
        if !reliable {
            e.done = true;
        }
    }

    fn fail_entry(&mut self, qp: &mut Qp, at: usize, status: WcStatus) {
        let e = &mut qp.inflight[at];
        (e.error, e.out) = (Some(status), true);
        qp.halted = true;
        // What was fetched behind it must not go out either.
        for e in qp.inflight.iter_mut().skip(at + 1) {
            e.out = true;
        }
    }

    /// The memory of bytes `offset..offset+len` of an entry, into `self.spans`; false when it is not (any more) ours.
    fn gather(&mut self, qp: &Qp, at: usize, offset: u32, len: u32, write: bool) -> bool {
        self.spans.clear();
        self.mem
            .local_spans(qp.init.pd, &qp.inflight[at].sges, offset, len, write, &mut self.spans)
            .is_ok()
    }

    /// Turns `self.spans` into the list that a packet by reference carries, in `self.bytes`. False when it cannot.
    fn list_spans(&mut self) -> bool {
        if self.spans.iter().any(|s| s.addr == NULL_ADDR) {
            return false;
        }
        self.bytes.clear();
        for span in &self.spans {
            self.bytes.extend_from_slice(&span.addr.to_le_bytes());
            self.bytes.extend_from_slice(&span.len.to_le_bytes());
            self.bytes.extend_from_slice(&[0; 4]);
        }
        true
    }

    /// Spans of the null region are sent as zeros: the whole payload becomes bytes of our own.
    fn fill_null_spans(&mut self) {
        if self.spans.iter().all(|s| s.addr != NULL_ADDR) {
            return;
        }
        for span in std::mem::take(&mut self.spans) {
            let start = self.bytes.len();
            self.bytes.resize(start + span.len as usize, 0);
            if span.addr != NULL_ADDR {
                // A fault here leaves zeros; the region was checked a moment ago.
                let _ = self.platform.load(span.addr, span.guarded, &mut self.bytes[start..]);
            }
        }
    }

    fn eight_bytes(&mut self, qp: &Qp, at: usize) -> Result<u64, WcStatus> {
        let mut value = [0u8; 8];
        let e = &qp.inflight[at];
        if e.flags.contains(SendFlags::INLINE) {
            qp.sq.inline_bytes(e.number, 0, &mut value);
            return Ok(u64::from_ne_bytes(value));
        }
        if !self.gather(qp, at, 0, 8, false) {
            return Err(WcStatus::LocProtErr);
        }
        self.load_spans(&mut value).map_err(|()| WcStatus::LocProtErr)?;
        Ok(u64::from_ne_bytes(value))
    }

    /// Copies from `self.spans` into a buffer of the same size.
    fn load_spans(&mut self, out: &mut [u8]) -> Result<(), ()> {
        let mut at = 0;
        for span in &self.spans {
            let end = at + span.len as usize;
            if span.addr != NULL_ADDR {
                self.platform.load(span.addr, span.guarded, &mut out[at..end]).map_err(|_| ())?;
            }
            at = end;
        }
        Ok(())
    }

    /// Counts a request by reference in or out of its regions.
    fn hold_straight(&mut self, e: &Inflight, by: i32) {
        for sge in &e.sges {
            if let Some(mr) = self.mem.mr_by_lkey(sge.lkey) {
                mr.straight = mr.straight.saturating_add_signed(by);
            }
        }
    }

    /// All requests of a queue pair are over: no peer reaches our memory for them.
    pub(crate) fn release_straight(&mut self, qp: &mut Qp) {
        for e in &mut qp.inflight {
            if std::mem::take(&mut e.by_ref) {
                for sge in &e.sges {
                    if let Some(mr) = self.mem.mr_by_lkey(sge.lkey) {
                        mr.straight = mr.straight.saturating_sub(1);
                    }
                }
            }
        }
    }

    // ---- responses ----

    /// An Ack, a READ response or an atomic's result has come.
    pub(crate) fn response(&mut self, qp: &mut Qp, packet: &Packet, rx: P::Rx, now: Nanos) {
        if !matches!(qp.state, QpState::Rts | QpState::Sqd)
            || !matches!(qp.init.qp_type, QpType::Rc | QpType::XrcIni)
            || packet.src.get() != qp.attr.dest_qp_num
        {
            return;
        }
        let Some(oldest) = qp.inflight.iter().find(|e| e.psns > 0 && !e.done).map(|e| e.first_psn) else { return };
        // 9.7.5.1.1: responses outside what is unacknowledged are ghosts
        if packet.psn.since(oldest) < -1 || packet.psn.since(qp.next_psn) >= 0 {
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
        self.retire(qp, now);
        self.set_ack_timer(qp, now);
        self.check_drained(qp);
    }

    /// Everything up to `psn` has arrived; READs and atomics need their own response.
    fn acked(&mut self, qp: &mut Qp, psn: Psn) {
        // Progress inside a message counts too (9.7.5.1.2).
        let any = psn.since(qp.unacked) >= 0;
        if any {
            qp.unacked = psn.plus(1);
        }
        for e in qp.inflight.iter_mut().filter(|e| e.psns > 0 && !e.done) {
            if e.last_psn().since(psn) > 0 || e.is_read_like() {
                break;
            }
            (e.done, e.out) = (true, true);
        }
        if any {
            Self::progressed(qp);
        }
    }

    /// A request was answered: the retry counters and the timer start anew (9.7.5.1.2).
    fn progressed(qp: &mut Qp) {
        qp.retries = qp.attr.retry_cnt;
        qp.rnr_retries = qp.attr.rnr_retry;
        qp.ack_deadline = None;
    }

    fn rnr_nak(&mut self, qp: &mut Qp, packet: &Packet, now: Nanos) {
        self.acked(qp, packet.psn.plus(0xff_ffff));
        let Some(at) = self.entry_with(qp, packet.psn) else { return };
        if qp.rnr_retries == 0 {
            self.fail_entry(qp, at, WcStatus::RnrRetryExcErr);
            return;
        }
        if qp.attr.rnr_retry < 7 {
            qp.rnr_retries -= 1;
        }
        self.rewind(qp, packet.psn);
        let until = now + rnr_nanos(packet.syndrome & 31);
        qp.rnr_until = Some(until);
        self.arm_timer(qp, until);
    }

    fn nak(&mut self, qp: &mut Qp, packet: &Packet) {
        self.acked(qp, packet.psn.plus(0xff_ffff));
        let Some(at) = self.entry_with(qp, packet.psn) else { return };
        let status = match packet.syndrome & 31 {
            responder::NAK_SEQUENCE | responder::NAK_STRAIGHT => {
                if packet.syndrome & 31 == responder::NAK_STRAIGHT {
                    qp.no_straight = true; // the segments go through the window
                }
                if qp.retries == 0 {
                    WcStatus::RetryExcErr
                } else {
                    qp.retries -= 1;
                    self.rewind(qp, packet.psn);
                    return;
                }
            }
            responder::NAK_INVALID_REQUEST => WcStatus::RemInvReqErr,
            responder::NAK_REMOTE_ACCESS => WcStatus::RemAccessErr,
            responder::NAK_SOURCE_FAULT => WcStatus::LocProtErr,
            _ => WcStatus::RemOpErr,
        };
        self.fail_entry(qp, at, status);
    }

    fn entry_with(&self, qp: &Qp, psn: Psn) -> Option<usize> {
        qp.inflight
            .iter()
            .position(|e| e.psns > 0 && !e.done && psn.since(e.first_psn) >= 0 && e.last_psn().since(psn) >= 0)
    }

    /// Goes back to a sequence number: what is behind it is sent again.
    fn rewind(&mut self, qp: &mut Qp, psn: Psn) {
        let Some(first) = self.entry_with(qp, psn) else { return };
        let mtu = qp.mtu;
        for (i, e) in qp.inflight.iter_mut().enumerate().skip(first) {
            if e.done || e.psns == 0 || e.error.is_some() {
                continue;
            }
            e.out = false;
            e.sent = match e.opcode {
                Opcode::Send
                | Opcode::SendWithImm
                | Opcode::SendWithInv
                | Opcode::RdmaWrite
                | Opcode::RdmaWriteWithImm
                    if i == first =>
                {
                    (psn.since(e.first_psn) as u32).saturating_mul(mtu).min(e.len)
                }
                _ => 0,
            };
        }
        qp.cursor = first;
    }

    fn read_response(&mut self, qp: &mut Qp, packet: &Packet, rx: P::Rx) {
        // A READ's response acknowledges what was before it (9.7.5.1).
        self.acked(qp, packet.psn.plus(0xff_ffff));
        let Some(at) = qp.inflight.iter().position(|e| e.psns > 0 && !e.done) else { return };
        let e = &qp.inflight[at];
        if e.opcode != Opcode::RdmaRead {
            return;
        }
        let bad = if packet.has(flag::BY_REF) {
            // The data have been put in place; the whole rest at once.
            (!e.by_ref || packet.len != e.len - e.received).then_some(WcStatus::BadRespErr)
        } else {
            let offset = packet.remote_addr;
            if offset != u64::from(e.received) {
                return; // a duplicate of an earlier try, or a gap: the timer repairs it
            }
            let carried = self.platform.rx_len(rx);
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
            qp.reads_out -= 1;
        }
        Self::progressed(qp);
    }

    /// Copies the payload of the packet being received from `offset` on to `self.spans`.
    pub(crate) fn scatter(&mut self, rx: P::Rx, offset: u32) -> Result<(), crate::platform::Fault> {
        if self.spans.iter().all(|s| s.addr != NULL_ADDR) {
            return self.platform.rx_scatter(rx, offset, &self.spans);
        }
        let mut at = offset;
        for span in &self.spans {
            if span.addr != NULL_ADDR {
                self.platform.rx_scatter(rx, at, std::slice::from_ref(span))?;
            }
            at += span.len;
        }
        Ok(())
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
        qp.reads_out -= 1;
        Self::progressed(qp);
    }

    /// Copies a buffer to `self.spans`, which have room for it.
    pub(crate) fn store_spans(&mut self, bytes: &[u8]) -> Result<(), crate::platform::Fault> {
        let mut at = 0;
        for span in &self.spans {
            let end = (at + span.len as usize).min(bytes.len());
            if span.addr != NULL_ADDR {
                self.platform.store(span.addr, span.guarded, &bytes[at..end])?;
            }
            at = end;
        }
        Ok(())
    }

    // ---- timers ----

    fn set_ack_timer(&mut self, qp: &mut Qp, now: Nanos) {
        if !matches!(qp.init.qp_type, QpType::Rc | QpType::XrcIni) || qp.rnr_until.is_some() {
            return;
        }
        let waiting = qp.inflight.iter().any(|e| e.psns > 0 && !e.done && e.error.is_none() && (e.out || e.sent > 0));
        match timeout_nanos(qp.attr.timeout) {
            Some(timeout) if waiting => {
                if qp.ack_deadline.is_none() {
                    qp.ack_deadline = Some(now + timeout);
                    self.arm_timer(qp, now + timeout);
                }
            }
            _ => qp.ack_deadline = None,
        }
    }

    /// The time of a queue pair has come (or an earlier deadline was moved).
    pub(crate) fn qp_timer(&mut self, qp: &mut Qp, now: Nanos) {
        if let Some(until) = qp.rnr_until {
            if until <= now {
                qp.rnr_until = None;
            } else {
                self.arm_timer(qp, until);
            }
            return;
        }
        let Some(deadline) = qp.ack_deadline else { return };
        if deadline > now {
            self.arm_timer(qp, deadline);
            return;
        }
        qp.ack_deadline = None;
        let Some(at) = qp.inflight.iter().position(|e| e.psns > 0 && !e.done) else { return };
        if qp.retries == 0 {
            self.fail_entry(qp, at, WcStatus::RetryExcErr);
            self.retire(qp, now);
            return;
        }
        qp.retries -= 1;
        // What the peer has not even taken need not be sent again: it will find it.
        let waits = qp.link.is_some_and(|link| !self.platform.taken(link, qp.sent_mark));
        if !waits {
            let e = &qp.inflight[at];
            self.rewind(qp, e.first_psn);
        }
        self.set_ack_timer(qp, now);
    }

    // ---- completion ----

    /// Completes what is finished, oldest first.
    pub(crate) fn retire(&mut self, qp: &mut Qp, now: Nanos) {
        while let Some(e) = qp.inflight.front() {
            if let Some(status) = e.error {
                self.complete_send(qp, status, now);
                if matches!(qp.init.qp_type, QpType::Uc | QpType::Ud) {
                    // 10.3.1.6: the send queue is in error, receives go on
                    qp.state = QpState::Sqe;
                    self.flush_sends(qp, now);
                } else {
                    self.enter_error(qp, now);
                }
                return;
            }
            if !e.done {
                return;
            }
            self.complete_send(qp, WcStatus::Success, now);
        }
    }

    /// Takes the oldest request out and completes it.
    fn complete_send(&mut self, qp: &mut Qp, status: WcStatus, now: Nanos) {
        let Some(e) = qp.inflight.pop_front() else { return };
        qp.cursor = qp.cursor.saturating_sub(1);
        if e.by_ref {
            self.hold_straight(&e, -1);
        }
        if e.is_read_like() && !e.done && e.psns > 0 {
            qp.reads_out = qp.reads_out.saturating_sub(1);
        }
        if status == WcStatus::Success && !e.flags.contains(SendFlags::SIGNALED) {
            return;
        }
        if !matches!(status, WcStatus::Success | WcStatus::WrFlushErr) {
            self.done.broken(qp.qpn, Some(e.wr_id), status, send_rule(status));
        }
        let opcode = wc_opcode(e.opcode);
        let byte_len = if matches!(opcode, WcOpcode::RdmaRead | WcOpcode::CompSwap | WcOpcode::FetchAdd) {
            e.len
        } else {
            0
        };
        self.push_send(qp, e.number, e.wr_id, opcode, status, byte_len, now);
    }

    #[allow(clippy::too_many_arguments)] // the fields of a completion
    fn push_send(
        &mut self,
        qp: &mut Qp,
        number: u64,
        wr_id: u64,
        opcode: WcOpcode,
        status: WcStatus,
        byte_len: u32,
        now: Nanos,
    ) {
        let Some(cq) = qp.init.send_cq else { return };
        let wc = verbs::Completion {
            wr_id,
            status,
            opcode,
            byte_len,
            qp_num: qp.qpn,
            flags: WcFlags::empty(),
            vendor_err: if status == WcStatus::Success { 0 } else { status as u32 },
            ..Default::default()
        };
        let cqe = Cqe { wc, qp: qp.id, frees: Frees::Sends(number + 1) };
        if !self.done.push(cq, cqe, false, now) {
            self.overrun(qp, now);
        }
    }

    /// A completion was lost: the queue pair cannot go on (IBTA vol. 1, C10-91, 11.6.3.2).
    pub(crate) fn overrun(&mut self, qp: &mut Qp, now: Nanos) {
        if qp.state != QpState::Err {
            self.done.async_event(qp.ctx, EventKind::QpFatal, EventSource::Qp(qp.id), qp.user);
            self.enter_error(qp, now);
        }
    }

    /// Completes all send requests with a flush error, in order (10.3.1.7: also those that were not signaled).
    pub(crate) fn flush_sends(&mut self, qp: &mut Qp, now: Nanos) {
        while !qp.inflight.is_empty() {
            self.complete_send_flushed(qp, now);
        }
        (qp.cursor, qp.reads_out, qp.halted) = (0, 0, false);
        (qp.ack_deadline, qp.rnr_until) = (None, None);
        while let Some((number, wqe)) = qp.sq.fetch() {
            let (wr_id, opcode) = match wqe {
                Some(wqe) => (wqe.wr_id, wc_opcode(wqe.opcode)),
                None => (qp.sq.wr_id(number), WcOpcode::Send),
            };
            self.push_send(qp, number, wr_id, opcode, WcStatus::WrFlushErr, 0, now);
        }
    }

    fn complete_send_flushed(&mut self, qp: &mut Qp, now: Nanos) {
        let Some(e) = qp.inflight.front() else { return };
        // What had finished before the error completes as it is.
        let status = if e.done && e.error.is_none() { WcStatus::Success } else { WcStatus::WrFlushErr };
        self.complete_send(qp, status, now);
    }

    /// Completes all receives of the queue pair's own queue with a flush error.
    pub(crate) fn flush_recvs(&mut self, qp: &mut Qp, now: Nanos) {
        if let Some(progress) = qp.recv.take() {
            self.push_recv_error(qp, progress.wqe.wr_id, progress.srq, WcStatus::WrFlushErr, now);
        }
        while let Some(wqe) = qp.rq.wqes.pop_front() {
            self.push_recv_error(qp, wqe.wr_id, None, WcStatus::WrFlushErr, now);
        }
    }

    /// Goes to the error state: everything that is posted is flushed, sends first (10.3.1.7).
    pub(crate) fn enter_error(&mut self, qp: &mut Qp, now: Nanos) {
        qp.state = QpState::Err;
        qp.responses.retain(|r| matches!(r, crate::qp::Response::Nak { .. }));
        qp.write = None;
        self.flush_sends(qp, now);
        self.flush_recvs(qp, now);
        if qp.init.srq.is_some() && !qp.last_wqe_told {
            // 10.3.1.7, 11.6.3.1: from now on it takes nothing from the shared queue
            qp.last_wqe_told = true;
            self.done.async_event(qp.ctx, EventKind::QpLastWqeReached, EventSource::Qp(qp.id), qp.user);
        }
    }

    /// Spans of a list that a packet by reference carried; `None` when it is malformed or does not have `len` bytes.
    pub(crate) fn referenced(&mut self, rx: P::Rx, len: u32) -> Option<()> {
        let bytes = self.platform.rx_len(rx);
        self.remote_spans.clear();
        if bytes % 16 != 0 || bytes / 16 > limits::MAX_SGE {
            return None;
        }
        let mut total = 0u64;
        for i in 0..bytes / 16 {
            let mut entry = [0u8; 16];
            self.platform.rx_fetch(rx, i * 16, &mut entry);
            let addr = u64::from_le_bytes(entry[..8].try_into().ok()?);
            let len = u32::from_le_bytes(entry[8..12].try_into().ok()?);
            total += u64::from(len);
            self.remote_spans.push(Span { addr, len, guarded: true });
        }
        (total == u64::from(len)).then_some(())
    }
}

impl Inflight {
    fn failed(number: u64, wr_id: u64, status: WcStatus, psn: Psn) -> Self {
        Inflight {
            number,
            wr_id,
            opcode: Opcode::Send,
            flags: SendFlags::SIGNALED,
            imm: 0,
            srqn: 0,
            body: SendBody::Plain,
            sges: Default::default(),
            inline_len: 0,
            len: 0,
            first_psn: psn,
            psns: 0,
            sent: 0,
            received: 0,
            out: true,
            done: false,
            by_ref: false,
            error: Some(status),
        }
    }
}
