//! The packets of a request: the kind of each, and the part of the message that it carries (IBTA vol. 1, 9.2, 9.7.2).

use verbs::{Opcode, QpType, SendBody, SendFlags, WcStatus};
use wire::{Env, LinkCaps, LinkId, PIECE, Packet, PacketOp, SingleCopyCaps, packet_flags as flag};

use crate::Engine;
use crate::modify::timeout_nanos;
use crate::qp::Qp;
use crate::wq::inflight::{Carrier, Inflight};

/// The part of the message that a packet carries.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    /// Bytes of a SEND or WRITE; 0 of any other operation.
    pub len: u32,
    /// The bytes are not in the packet: the packet says where the initiator has them.
    pub by_ref: bool,
}

impl Piece {
    const NONE: Piece = Piece { len: 0, by_ref: false };
}

/// A request that is one packet, and is answered.
const SINGLE: u8 = flag::FIRST | flag::LAST | flag::ACK_REQ;

impl<P: Env> Engine<P> {
    /// The fields that all packets of an entry have in common, as a SEND.
    pub(crate) fn first_of(&self, qp: &Qp, at: usize) -> Packet {
        let e = &qp.inflight[at];
        let mut packet = Packet::new(PacketOp::Send, verbs::Qpn::new(qp.attr.dest_qp_num), qp.qpn, e.first_psn);
        packet.dma_len = e.len - e.executed;
        if qp.init.qp_type == QpType::XrcIni {
            packet.flags |= flag::XRC;
        }
        if let SendBody::Rdma { remote_addr, rkey } | SendBody::Atomic { remote_addr, rkey, .. } = e.body {
            (packet.remote_addr, packet.rkey) = (remote_addr, rkey.0);
        }
        packet
    }

    /// Makes the next packet of an entry. Its payload is in `bytes` and `spans`. The status of the request if its
    /// memory is not there, or if its entry makes no sense. `gathered`: the entry's memory is in `spans` already.
    pub(super) fn make_packet(
        &mut self,
        qp: &mut Qp,
        at: usize,
        link: LinkId,
        caps: &LinkCaps,
        gathered: bool,
        packet: &mut Packet,
    ) -> Result<Piece, WcStatus> {
        let e = &qp.inflight[at];
        let whole = gathered && !e.flags.contains(SendFlags::INLINE) && e.carries_data();
        if !whole {
            self.spans.clear();
        }
        self.bytes.clear();
        let piece = match (e.opcode, &e.body) {
            (Opcode::CmpAndSwp, &SendBody::Atomic { compare_add, swap, .. }) => {
                (packet.op, packet.compare, packet.swap) = (PacketOp::CompareSwap, compare_add, swap);
                Piece::NONE
            }
            (Opcode::FetchAndAdd, &SendBody::Atomic { compare_add, .. }) => {
                (packet.op, packet.swap) = (PacketOp::FetchAdd, compare_add);
                Piece::NONE
            }
            (Opcode::AtomicWrite, _) => {
                packet.op = PacketOp::AtomicWrite;
                packet.swap = self.eight_bytes(qp, at)?;
                Piece::NONE
            }
            (Opcode::Flush, &SendBody::Flush { remote_addr, rkey, length, placement, level }) => {
                packet.op = PacketOp::Flush;
                (packet.remote_addr, packet.rkey, packet.dma_len) = (remote_addr, rkey.0, length);
                packet.syndrome = placement & 3 | (level & 1) << 4;
                Piece::NONE
            }
            (Opcode::CmpAndSwp | Opcode::FetchAndAdd | Opcode::Flush, _) => return Err(WcStatus::LocQpOpErr),
            (Opcode::RdmaRead, _) => self.read_request(qp, at, link, caps, packet)?,
            _ => return self.data_packet(qp, at, link, caps, whole, packet),
        };
        packet.flags |= SINGLE | if piece.by_ref { flag::BY_REF } else { 0 };
        Ok(piece)
    }

    /// The data of an ATOMIC WRITE.
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

    fn read_request(
        &mut self,
        qp: &mut Qp,
        at: usize,
        link: LinkId,
        caps: &LinkCaps,
        packet: &mut Packet,
    ) -> Result<Piece, WcStatus> {
        let e = &qp.inflight[at];
        packet.op = PacketOp::ReadRequest;
        // Data that arrived before a retry are not asked for again (9.7.3.1).
        let got = e.received;
        packet.psn = e.first_psn.plus((got - e.executed) / qp.mtu);
        packet.remote_addr = packet.remote_addr.wrapping_add(u64::from(got));
        packet.dma_len = e.len - got;
        packet.imm = got;
        if !self.gather(qp, at, got, e.len - got, true) {
            return Err(WcStatus::LocProtErr);
        }
        let mut by_ref = false;
        if let Some(copies) = caps.single_copy.filter(|_| !qp.same_host.no_single_copy) {
            let either = packet.dma_len >= copies.either_from && self.best_by_ref(link, &qp.inflight[at]);
            by_ref = (packet.dma_len > copies.above || either) && self.list_spans(qp);
        }
        self.spans.clear();
        Ok(Piece { len: 0, by_ref })
    }

    /// A packet of a SEND or WRITE. `whole`: the memory of all of the message is in `spans`.
    fn data_packet(
        &mut self,
        qp: &mut Qp,
        at: usize,
        link: LinkId,
        caps: &LinkCaps,
        whole: bool,
        packet: &mut Packet,
    ) -> Result<Piece, WcStatus> {
        let e = &qp.inflight[at];
        let write = matches!(e.opcode, Opcode::RdmaWrite | Opcode::RdmaWriteWithImm);
        if write {
            packet.op = PacketOp::Write;
        }
        let (offset, inline) = (e.sent, e.flags.contains(SendFlags::INLINE));
        let rest = e.len - offset;
        // A message that begins costs no division.
        let begun = offset - e.executed;
        packet.psn = if begun == 0 { e.first_psn } else { e.first_psn.plus(begun / qp.mtu) };
        packet.remote_addr = if write { packet.remote_addr.wrapping_add(u64::from(offset)) } else { 0 };
        if qp.init.qp_type == QpType::XrcIni {
            packet.swap = u64::from(e.srqn);
        }
        // Whether a message goes by reference is asked of its memory, in `spans`.
        let kept = caps.single_copy.is_none_or(|copies| rest <= copies.shared_above);
        let single_copy = caps.single_copy.is_some_and(|copies| self.goes_by_ref(qp, at, link, &copies));
        if !single_copy && !inline && qp.init.qp_type.is_reliable() && qp.inflight[at].carrier == Carrier::Free {
            qp.inflight[at].carrier = Carrier::Mixed;
        }
        // At any sequence number that the requester goes back to, the pieces end where those before ended.
        let most = |most: u32| rest.min(if offset == 0 { most } else { most - offset % most });
        let mut piece = Piece { len: most(if single_copy { PIECE } else { caps.segment }), by_ref: false };
        if inline {
            self.bytes.resize(piece.len as usize, 0);
            qp.sq.inline_bytes(qp.inflight[at].number, offset, &mut self.bytes);
        } else if whole && kept && piece.len == qp.inflight[at].len {
            debug_assert!(self.is_gathered(qp, at, false));
        } else if !self.gather(qp, at, offset, piece.len, false) {
            return Err(WcStatus::LocProtErr);
        }
        if single_copy && self.list_spans(qp) {
            // Each piece is acknowledged: a long copy must not look like a dead peer.
            packet.flags |= flag::BY_REF | flag::ACK_REQ;
            piece.by_ref = true;
            self.spans.clear();
        } else if single_copy {
            piece.len = most(caps.segment);
            self.gather(qp, at, offset, piece.len, false);
        }
        let e = &qp.inflight[at];
        if offset == e.executed {
            packet.flags |= flag::FIRST;
        }
        if e.opcode == Opcode::RdmaWriteWithImm {
            packet.flags |= flag::IMM;
        }
        if piece.len == rest {
            let quiet = Self::ends_quietly(qp, e);
            packet.flags |= if quiet { flag::LAST } else { flag::LAST | flag::ACK_REQ };
            if e.flags.contains(SendFlags::SOLICITED) {
                packet.flags |= flag::SOLICITED;
            }
            match e.opcode {
                Opcode::SendWithImm => packet.flags |= flag::IMM,
                Opcode::SendWithInv => packet.flags |= flag::INV,
                _ => {}
            }
            packet.imm = e.imm;
        } else if qp.init.qp_type.is_reliable() && (offset + piece.len).is_multiple_of(PIECE) {
            packet.flags |= flag::ACK_REQ; // a long message must not look like a dead peer
        }
        (packet.len, packet.mtu) = (piece.len, qp.cut(e.len - e.executed));
        self.fill_null_spans();
        Ok(piece)
    }

    /// True if the acknowledgement of this request need not wake the process. Only the request's place in the circle
    /// waits for it, and the queue looks for that by itself (`Engine::look_again`). The timer of the queue pair looks
    /// for all else that has to do with the acknowledgement.
    pub(super) fn ends_quietly(qp: &Qp, e: &Inflight) -> bool {
        let timed = || timeout_nanos(qp.attr.timeout).is_some();
        e.opcode == Opcode::Send && !e.flags.contains(SendFlags::SIGNALED) && qp.sq.managed.is_some() && timed()
    }

    /// True if what is left of a SEND or WRITE should go by reference: the target copies it itself.
    fn goes_by_ref(&mut self, qp: &Qp, at: usize, link: LinkId, copies: &SingleCopyCaps) -> bool {
        let e = &qp.inflight[at];
        let rest = e.len - e.sent;
        let may = !qp.same_host.no_single_copy
            && !e.flags.contains(SendFlags::INLINE)
            && qp.init.qp_type.is_reliable()
            && rest > copies.shared_above
            && e.carrier != Carrier::Link;
        if !may {
            return false;
        }
        // The peer is awake if it has earlier requests to handle, or earlier pieces of this one.
        let waited_for = |e: &Inflight| e.psns > 0 && !e.done;
        let flows = e.carrier == Carrier::Mixed || qp.inflight.iter().take(at).any(waited_for);
        let above = if flows { copies.flowing_above } else { copies.above };
        let either = rest >= copies.either_from && self.best_by_ref(link, e);
        rest > above || either || self.is_shared(qp, at)
    }
}
