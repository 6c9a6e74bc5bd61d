//! The short way of a small SEND: what `requester`, `responder` and `respond` would do for it and its acknowledgement,
//! without what cannot be the case.
//!
//! **Out.** A request takes it at its post, if nothing stands before it: the connection is in RTS and has a link, everything posted
//! earlier has gone out, and no retry is waited for. It is written to the send queue like any other, and its packet is
//! the same.
//!
//! **In.** A packet takes it that is a whole message, and the expected one, for a receive with one entry, on a connection where
//! nothing but an acknowledgement is owed, and nothing under way.
//!
//! **Acknowledged.** Nothing else is owed or to be sent.
//!
//! Whatever is out of the ordinary (also a list that would have to grow, and others that wait for room on a
//! link) leaves it to the long way, having done nothing.

use verbs::{Opcode, QpState, QpType, SendBody, SendData, SendFlags, SendWr, WcOpcode};

use crate::Engine;
use crate::modify::timeout_nanos;
use crate::platform::{LinkId, Nanos, Packet, PacketOp, Payload, Platform, packet_flags as flag};
use crate::qp::{Inflight, Qp, Response};
use crate::region::NULL_ADDR;
use crate::requester::MOST_PSNS;
use crate::responder::ACK;

/// The longest message, in bytes: no longer than the shortest MTU, so that it is one packet.
const LONGEST: u32 = 256;

impl<P: Platform> Engine<P> {
    /// Sends the request that was just written as the last one to the queue of this lent queue pair, if that is all there
    /// is to do.
    #[inline]
    pub(crate) fn express(&mut self, qp: &mut Qp, wr: &SendWr<'_>, flags: SendFlags, now: Nanos) -> bool {
        let plain = matches!(wr.opcode, Opcode::Send | Opcode::SendWithImm)
            && qp.init.qp_type == QpType::Rc
            && qp.state == QpState::Rts
            && qp.has_one_request()
            && !qp.halted
            && self.parked.is_empty()
            && self.has_express
            && qp.inflight.len() < qp.inflight.capacity()
            && qp.rnr_until.is_none()
            && !(qp.reads_out > 0 && flags.contains(SendFlags::FENCE))
            && qp.next_psn.since(qp.unacked).unsigned_abs() < MOST_PSNS;
        let Some(link) = qp.link.filter(|_| plain) else { return false };
        self.spans.clear();
        let mut prefix: &[u8] = &[];
        let (len, inline_len, sges) = match wr.data {
            SendData::Inline(pieces) => {
                prefix = match pieces {
                    [] => &[],
                    [piece] => piece,
                    _ => return false,
                };
                if prefix.len() > LONGEST as usize {
                    return false;
                }
                (prefix.len() as u32, prefix.len() as u32, &[][..])
            }
            SendData::Sges(list) => {
                let total: u64 = list.iter().map(|sge| u64::from(sge.length)).sum();
                if total > u64::from(LONGEST) {
                    return false;
                }
                let found = self.mem.local_spans(qp.init.pd, list, 0, total as u32, false, &mut self.spans);
                if found.is_err() || self.spans.iter().any(|span| span.addr == NULL_ADDR) {
                    return false;
                }
                (total as u32, 0, list)
            }
        };
        let mut packet = Packet::new(PacketOp::Send, verbs::Qpn::new(qp.attr.dest_qp_num), qp.qpn, qp.next_psn);
        packet.flags = flag::FIRST | flag::LAST | flag::ACK_REQ;
        if flags.contains(SendFlags::SOLICITED) {
            packet.flags |= flag::SOLICITED;
        }
        if wr.opcode == Opcode::SendWithImm {
            packet.flags |= flag::IMM;
        }
        (packet.imm, packet.len, packet.dma_len) = (wr.imm_or_rkey, len, len);
        // Before the packet, whose cache line the peer holds: what is stored behind it is slow to be read again.
        qp.inflight.push_back(Inflight {
            number: qp.sq.fetched,
            wr_id: wr.wr_id,
            opcode: wr.opcode,
            flags,
            imm: wr.imm_or_rkey,
            srqn: 0,
            body: SendBody::Plain,
            sges: sges.into(),
            inline_len,
            len,
            first_psn: qp.next_psn,
            psns: 1,
            sent: len,
            received: 0,
            out: true,
            done: false,
            by_ref: false,
            error: None,
            since: now,
        });
        if self.platform.send(link, &packet, Payload { prefix, spans: &self.spans }).is_err() {
            qp.inflight.pop_back();
            return false;
        }
        (qp.lossy, qp.give_up_at) = (false, None);
        qp.sent_mark = self.platform.sent_mark(link);
        qp.sq.advance();
        qp.cursor += 1;
        qp.next_psn = qp.next_psn.plus(1);
        if qp.ack_deadline.is_none()
            && let Some(timeout) = timeout_nanos(qp.attr.timeout)
        {
            qp.ack_deadline = Some(now + timeout);
            self.arm_timer(qp, now + timeout);
        }
        #[cfg(test)]
        (self.short_ways[0] += 1);
        true
    }

    /// Executes a SEND that has come over this link for a lent queue pair, if that is all there is to do.
    #[inline]
    pub(crate) fn express_in(&mut self, qp: &mut Qp, link: LinkId, packet: &Packet, rx: P::Rx, now: Nanos) -> bool {
        let whole = packet.flags & !(flag::ACK_REQ | flag::SOLICITED | flag::IMM) == flag::FIRST | flag::LAST;
        let plain = whole
            && qp.init.qp_type == QpType::Rc
            && qp.state == QpState::Rts
            && qp.link == Some(link)
            && packet.src.get() == qp.attr.dest_qp_num
            && packet.psn == qp.epsn
            && packet.len <= LONGEST
            && matches!((qp.responses.len(), qp.responses.front()), (0, _) | (1, Some(Response::Ack { .. })))
            && qp.recv.is_none()
            && qp.write.is_none()
            && qp.init.srq.is_none()
            && self.has_express;
        if !plain || self.platform.rx_len(rx) != packet.len {
            return false;
        }
        let Some(wqe) = qp.rq.wqes.front() else { return false };
        let [sge] = wqe.sges[..] else { return false };
        if sge.length < packet.len {
            return false;
        }
        let Ok(mut span) = self.mem.local(qp.init.pd, &sge, true) else { return false };
        span.len = packet.len;
        if span.addr == NULL_ADDR || self.platform.rx_scatter(rx, 0, std::slice::from_ref(&span)).is_err() {
            return false;
        }
        let wr_id = wqe.wr_id;
        qp.rq.wqes.pop_front();
        qp.fed_at = Some(now);
        qp.nak_sent = false;
        qp.msn = qp.msn.wrapping_add(1) & 0xff_ffff;
        qp.epsn = packet.psn.plus(1);
        self.complete_recv(qp, packet, wr_id, None, WcOpcode::Recv, packet.len, now);
        if packet.has(flag::ACK_REQ) {
            Self::owe_ack(qp, packet.psn);
        }
        #[cfg(test)]
        (self.short_ways[1] += 1);
        true
    }

    /// Sends the acknowledgement that a lent queue pair owes, if that is all there is to do for it.
    #[inline]
    pub(crate) fn express_ack(&mut self, qp: &mut Qp) -> bool {
        let plain = qp.responses.len() == 1
            && qp.state == QpState::Rts
            && qp.cursor == qp.inflight.len()
            && qp.sq.fetched == qp.sq.posted
            && self.has_express;
        let Some(link) = qp.link.filter(|_| plain) else { return false };
        let Some(&Response::Ack { psn, msn }) = qp.responses.front() else { return false };
        let mut packet = Packet::new(PacketOp::Ack, verbs::Qpn::new(qp.attr.dest_qp_num), qp.qpn, psn);
        (packet.syndrome, packet.imm) = (ACK, msn);
        if self.platform.send(link, &packet, Payload::default()).is_err() {
            return false;
        }
        qp.responses.pop_front();
        #[cfg(test)]
        (self.short_ways[2] += 1);
        true
    }
}
