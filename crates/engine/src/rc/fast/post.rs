//! Posting a small SEND, which is sent at once.

use verbs::{Opcode, QpId, Qpn, SendBody, SendData, SendFlags, SendWr, Sge};
use wire::{Env, LinkId, Nanos, Packet, PacketOp, Payload, Span, packet_flags as flag};

use super::{cold, may};
use crate::Engine;
use crate::modify::timeout_nanos;
use crate::qp::Qp;
use crate::rc::requester::MOST_PSNS;
use crate::region::NULL_ADDR;
use crate::run::arm;
use crate::wq::sq::Executed;

/// No longer than the shortest MTU, in bytes: one packet on every connection.
const SHORT: u32 = 256;

/// The data of a request.
#[derive(Clone, Copy)]
enum Data<'a> {
    Inline(&'a [u8]),
    Listed(Sge),
}

/// True if a message is one packet, and the wire takes its data in that packet only. (No segment is shorter than an
/// MTU.)
#[inline(always)]
pub(in crate::rc) fn is_one_packet<P: Env>(env: &P, link: LinkId, qp: &Qp, len: u32, inline: bool) -> bool {
    len <= SHORT
        || len <= qp.mtu
            && (inline || env.caps_for(link, len).single_copy.is_none_or(|copies| len <= copies.shared_above))
}

impl<P: Env> Engine<P> {
    /// Posts a request and sends it, if nothing else is to be done. The slow path takes requests that the post's checks
    /// would refuse, and requests that would find no place in the queue.
    #[inline(always)]
    pub(crate) fn post_fast(&mut self, id: QpId, wr: &SendWr<'_>, now: Nanos) -> bool {
        // One call for each kind, so that each is compiled without the checks and values of the others.
        match wr.data {
            SendData::Sges([sge]) if matches!(wr.opcode, Opcode::RdmaWrite | Opcode::RdmaRead) => {
                self.rdma_fast(id, wr, sge, now)
            }
            SendData::Sges([]) if matches!(wr.opcode, Opcode::BindMw | Opcode::LocalInv) => {
                self.local_fast(id, wr, now)
            }
            SendData::Sges(&[sge]) => self.send_fast(id, wr, Data::Listed(sge), now),
            SendData::Inline([piece]) => self.send_fast(id, wr, Data::Inline(piece), now),
            _ => false,
        }
    }

    #[inline(always)]
    fn send_fast(&mut self, id: QpId, wr: &SendWr<'_>, data: Data<'_>, now: Nanos) -> bool {
        let has_body = match wr.opcode {
            Opcode::Send | Opcode::SendWithImm => !matches!(wr.body, SendBody::Datagram { .. }),
            Opcode::SendWithInv => matches!(wr.body, SendBody::Plain),
            _ => false,
        };
        let asked =
            has_body && !wr.flags.contains(SendFlags::IP_CSUM) && may(self.has_fast_path) && self.parked.is_empty();
        if !asked {
            return false;
        }
        let Some(qp) = self.qps.fast(id) else { return cold(false) };
        let Some(link) = qp.gate_out() else { return cold(false) };
        let plain = !qp.sq.is_full()
            && qp.inflight.len() + qp.unlisted < qp.inflight.capacity()
            && !(qp.rc.reads_out > 0 && wr.flags.contains(SendFlags::FENCE))
            // A few SENDs have no more than a few; larger requests are all in the list.
            && (qp.inflight.is_empty() || qp.rc.next_psn.since(qp.rc.unacked).unsigned_abs() < MOST_PSNS);
        if !plain {
            return cold(false);
        }
        let mut flags = wr.flags;
        flags.set(SendFlags::INLINE, matches!(data, Data::Inline(_)));
        if qp.init.sq_sig_all {
            flags.insert(SendFlags::SIGNALED);
        }
        // Separate variables: a structure in memory is read by wider loads than it was written. Such loads wait for all
        // stores before them, which include the last packet's to a cache line that the peer holds.
        let (mut addr, mut guarded) = (0, false);
        let (len, inline, fits) = match data {
            Data::Inline(bytes) => {
                let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                (len, true, len <= qp.sq.max_inline)
            }
            Data::Listed(sge) => (sge.length, false, qp.sq.max_sge > 0),
        };
        if !fits || !is_one_packet(&self.env, link, qp, len, inline) {
            return false;
        }
        if let Data::Listed(sge) = data
            && len > 0
        {
            match self.mem.local_here(qp.init.pd, &sge, false) {
                Ok(found) if found.addr != NULL_ADDR => (addr, guarded) = (found.addr, found.guarded),
                _ => return cold(false),
            }
        }
        let psn = qp.rc.next_psn;
        let mut bits = flag::FIRST | flag::LAST | flag::ACK_REQ;
        if flags.contains(SendFlags::SOLICITED) {
            bits |= flag::SOLICITED;
        }
        match wr.opcode {
            Opcode::SendWithImm => bits |= flag::IMM,
            Opcode::SendWithInv => bits |= flag::INV,
            _ => {}
        }
        let (dst, src, imm) = (Qpn::new(qp.attr.dest_qp_num), qp.qpn, wr.imm_or_rkey);
        // A closure for each kind that sends a packet of its own: most kinds need the packet in registers only.
        let packet = || {
            let mut packet = Packet::new(PacketOp::Send, dst, src, psn);
            (packet.flags, packet.imm, packet.len, packet.dma_len) = (bits, imm, len, len);
            packet
        };
        // The packet comes first: while its cache line is on its way, there is time for the rest.
        let (env, span) = (&mut self.env, Span { addr, len, guarded });
        let sent = match data {
            Data::Inline(bytes) if len <= 8 => env.send_short(link, &packet(), bytes),
            // A case of its own, because data known to be 8 bytes long are one load.
            Data::Listed(_) if len == 8 => {
                let mut word = [0; 8];
                let loaded = env.load(addr, guarded, &mut word).is_ok();
                if loaded { env.send_short(link, &packet(), &word) } else { None }
            }
            Data::Listed(_) if len == 0 => env.send_short(link, &packet(), &[]),
            Data::Inline(prefix) => Self::send_long(env, link, &packet(), Payload { prefix, spans: &[] }),
            Data::Listed(_) => Self::send_long(env, link, &packet(), Payload { prefix: &[], spans: &[span] }),
        };
        let Some(mark) = sent else { return cold(false) };
        let first = Executed { wr_id: wr.wr_id, opcode: wr.opcode, flags, imm, since: now };
        match &data {
            Data::Listed(sge) => qp.sq.write_sge(first, sge),
            Data::Inline(bytes) => qp.sq.write_inline(first, bytes),
        }
        qp.unlisted += 1;
        qp.rc.sent_mark = mark;
        qp.sq.posted += 1;
        qp.sq.fetched += 1;
        qp.rc.next_psn = psn.plus(1);
        if qp.rc.ack_deadline.is_none()
            && let Some(timeout) = timeout_nanos(qp.attr.timeout)
        {
            qp.rc.ack_deadline = Some(now + timeout);
            arm(&mut self.timed, &mut self.timers, qp, now + timeout);
        }
        #[cfg(test)]
        (self.fast_paths[0] += 1);
        true
    }

    fn send_long(env: &mut P, link: LinkId, packet: &Packet, payload: Payload<'_>) -> Option<u64> {
        env.send(link, packet, payload).is_ok().then(|| env.sent_mark(link))
    }
}
