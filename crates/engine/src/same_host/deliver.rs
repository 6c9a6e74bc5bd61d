//! SENDs from a managed queue to a queue pair of the same process: the replicas of a chain in one server. The message
//! is taken in where it is sent, so that no packet goes through the process's own link, and no acknowledgement comes
//! back.
//!
//! As for RDMA ([`super::one_sided`]), only the plain case goes this way: everything before has been acknowledged, and
//! the peer is a connected queue pair that expects this message. The message takes no sequence number then. A message
//! that cannot be taken in takes one, and is answered as its packet would be (IBTA vol. 1, 9.7.5.2).

use verbs::{Opcode, QpState, QpType, Qpn, SendFlags};
use wire::{Env, LinkId, Nanos, packet_flags as flag};

use crate::Engine;
use crate::copies::Source;
use crate::qp::Qp;

/// What a message counts among the entries that begin under one hold of the lock, beside its own entry: it is as much
/// work as so many tasks.
pub(crate) const AS_TASKS: u32 = 8;

impl<P: Env> Engine<P> {
    /// Brings the last request to its receive, if it is such a SEND; it has been admitted, and its memory is in
    /// `self.spans`. False if the request has to be sent: then nothing has happened.
    pub(crate) fn deliver_here(&mut self, qp: &mut Qp, at: usize, now: Nanos) -> bool {
        let e = &qp.inflight[at];
        let plain = e.opcode == Opcode::Send && !e.flags.contains(SendFlags::INLINE) && e.len <= qp.mtu;
        let own = qp.link == Some(LinkId::LOOPBACK) && qp.init.qp_type == QpType::Rc && qp.same_host.proven;
        if !plain || !own || !self.env.delivers_here() {
            return false;
        }
        if !qp.inflight.iter().take(at).all(|e| e.done && e.error.is_none()) {
            return false;
        }
        let Some(id) = self.qpns.find(Qpn::new(qp.attr.dest_qp_num)).filter(|id| *id != qp.id) else { return false };
        let Some(mut peer) = self.checkout_qp(id) else { return false };
        let taken = self.expects(&peer, qp, qp.inflight[at].len) && self.take_in_here(qp, &mut peer, at, now);
        self.schedule(&mut peer);
        self.qps.put_back(id, peer);
        taken
    }

    /// True if the next packet that this queue pair expects is the next one of `from`, which is in this process, too: a
    /// message of so many bytes. The path MTU of either side may be the smaller one.
    #[inline]
    pub(crate) fn expects(&self, peer: &Qp, from: &Qp, len: u32) -> bool {
        matches!(peer.state, QpState::Rtr | QpState::Rts | QpState::Sqd)
            && peer.init.qp_type == QpType::Rc
            && peer.attr.dest_qp_num == from.qpn.get()
            && [peer.link, peer.from].contains(&Some(LinkId::LOOPBACK))
            && peer.rc.epsn == from.rc.next_psn
            && !peer.rc.nak_sent
            && len <= peer.mtu
            && peer.recv.is_none()
            && peer.rc.write.is_none()
    }

    fn take_in_here(&mut self, qp: &mut Qp, peer: &mut Qp, at: usize, now: Nanos) -> bool {
        let (len, flags) = (qp.inflight[at].len, qp.inflight[at].flags);
        let mut message = std::mem::take(&mut self.held);
        message.clear();
        message.resize(len as usize, 0);
        let loaded = self.load_spans(&mut message);
        self.held = message;
        if loaded.is_err() {
            return false;
        }
        let mut packet = self.first_of(qp, at);
        (packet.psn, packet.len, packet.imm) = (qp.rc.next_psn, len, qp.inflight[at].imm);
        packet.flags |= flag::FIRST | flag::LAST | flag::ACK_REQ;
        packet.flags |= if flags.contains(SendFlags::SOLICITED) { flag::SOLICITED } else { 0 };
        self.established(peer);
        let taken = self.execute_send(peer, &packet, Source::Held, now);
        self.moved += u64::from(len);
        self.tasks += AS_TASKS;
        if let Err(refused) = taken {
            Self::number(qp, at);
            self.refuse(peer, &packet, refused, now);
        }
        let e = &mut qp.inflight[at];
        (e.sent, e.out, e.done) = (len, true, e.psns == 0);
        true
    }
}
