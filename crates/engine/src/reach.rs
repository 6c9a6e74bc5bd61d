//! RDMA requests that the initiator executes, without the peer's processor: process to process, on what the peer shows
//! of its regions and queue pairs.
//!
//! Only the plain case goes this way: an RDMA WRITE, READ or atomic operation on a reliable connection that has been answered before,
//! with nothing outstanding in front of it. So order, sequence numbers and path are as if it had been sent: whatever came
//! before it has been executed, and what comes after it is sent after the copy. Everything else, and every request that the
//! peer's side does not plainly allow, is sent as a packet; so errors have one place, the responder.

use verbs::{Access, MrId, Opcode, QpState, QpType, RKey, SendBody, SendFlags};

use crate::Engine;
use crate::platform::{AtomicOp, Payload, Platform, Reach, ReachOp, Shown, ShownId};
use crate::qp::{Inflight, Qp};
use crate::region::{Backing, NULL_ADDR};
use crate::requester::STRAIGHT_CHUNK;
use crate::sq::Wqe;

impl<P: Platform> Engine<P> {
    /// Executes a request here, if that is possible. The entry has been admitted: `self.spans` is its local memory.
    pub(crate) fn reach(&mut self, qp: &mut Qp, e: &Inflight) -> bool {
        let Some((op, remote_addr, rkey)) = operation(e.opcode, &e.body) else { return false };
        let atomic = matches!(op, ReachOp::Atomic(_));
        let plain = qp.init.qp_type == QpType::Rc
            && qp.proven
            && (1..=STRAIGHT_CHUNK).contains(&e.len)
            && qp.inflight.iter().all(|e| e.done && e.error.is_none());
        let Some(link) = qp.link.filter(|_| plain) else { return false };
        self.bytes.clear();
        if e.flags.contains(SendFlags::INLINE) {
            self.spans.clear();
            self.bytes.resize(e.len as usize, 0);
            qp.sq.inline_bytes(e.number, 0, &mut self.bytes);
        } else if self.spans.iter().any(|s| s.addr == NULL_ADDR || atomic && s.guarded) {
            return false; // an atomic's result must find its place: it cannot be had a second time
        }
        let request = Reach {
            src: qp.qpn,
            dst: verbs::Qpn::new(qp.attr.dest_qp_num),
            epoch: qp.peer_epoch,
            op,
            rkey,
            addr: remote_addr,
            len: e.len,
            queues: qp.queues(e),
            local: Payload { prefix: &self.bytes, spans: &self.spans },
        };
        let Some(reached) = self.platform.reach(link, &request) else { return false };
        if atomic {
            let _ = self.store_spans(&reached.before.to_ne_bytes());
        }
        qp.peer_epoch = Some(reached.epoch);
        self.moved += u64::from(e.len);
        true
    }

    /// True if a request should wait until it can be executed here: the peer's region is in shared memory, and what
    /// stands in front is RDMA too, whose acknowledgement will not be long in coming.
    pub(crate) fn waits_to_reach(&mut self, qp: &Qp, wqe: &Wqe) -> bool {
        let Some((_, addr, rkey)) = operation(wqe.opcode, &wqe.body) else { return false };
        let len = wqe.len();
        let mut outstanding = qp.inflight.iter().filter(|e| !e.done).peekable();
        let rdma = |e: &Inflight| matches!(e.body, SendBody::Rdma { .. } | SendBody::Atomic { .. });
        outstanding.peek().is_some()
            && qp.init.qp_type == QpType::Rc
            && (1..=u64::from(STRAIGHT_CHUNK)).contains(&len)
            && qp.link.is_some_and(|link| self.platform.shares(link, rkey, addr, len as u32))
            && outstanding.all(|e| e.error.is_none() && rdma(e))
    }

    /// Shows a queue pair to its peer, or what has changed about it.
    pub(crate) fn show_qp(&mut self, qp: &mut Qp) {
        let (QpType::Rc, Some(pd), QpState::Rtr | QpState::Rts | QpState::Sqd) =
            (qp.init.qp_type, qp.init.pd, qp.state)
        else {
            return;
        };
        let mut access = qp.attr.access & (Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC);
        if qp.attr.max_dest_rd_atomic == 0 {
            // Such a request is refused, which is the responder's part.
            access -= Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        }
        let epoch = *qp.shown.get_or_insert_with(|| self.platform.random());
        let peer = verbs::Qpn::new(qp.attr.dest_qp_num);
        self.platform.show(&Shown::Qp { qpn: qp.qpn, peer, pd, access, epoch });
    }

    /// Ends what peers may do through a queue pair by themselves.
    pub(crate) fn hide_qp(&mut self, qp: &mut Qp) {
        if qp.shown.take().is_some() {
            self.platform.take_back(ShownId::Qp(qp.qpn));
        }
    }

    /// Shows a region to peers if they have rights on it.
    pub(crate) fn show_mr(&mut self, id: MrId) {
        let Some(mr) = self.mem.mrs.get(id) else { return };
        let info = &mr.info;
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        if mr.backing == Backing::Null || !info.access.intersects(remote) {
            return;
        }
        self.platform.show(&Shown::Region {
            key: info.key,
            pd: info.pd,
            access: info.access,
            addr: info.addr,
            length: info.length,
            iova: info.iova,
        });
    }

    /// Ends what peers may do with a region by themselves, and waits for it.
    pub(crate) fn hide_mr(&mut self, key: u32) {
        self.platform.take_back(ShownId::Region(key));
    }
}

/// What a request is to the initiator that executes it itself, and where; `None` for those that are always sent.
fn operation(opcode: Opcode, body: &SendBody) -> Option<(ReachOp, u64, RKey)> {
    match (opcode, *body) {
        (Opcode::RdmaWrite, SendBody::Rdma { remote_addr, rkey }) => Some((ReachOp::Write, remote_addr, rkey)),
        (Opcode::RdmaRead, SendBody::Rdma { remote_addr, rkey }) => Some((ReachOp::Read, remote_addr, rkey)),
        (Opcode::FetchAndAdd, SendBody::Atomic { remote_addr, rkey, compare_add, .. }) => {
            Some((ReachOp::Atomic(AtomicOp::FetchAdd(compare_add)), remote_addr, rkey))
        }
        (Opcode::CmpAndSwp, SendBody::Atomic { remote_addr, rkey, compare_add, swap }) => {
            Some((ReachOp::Atomic(AtomicOp::CompareSwap(compare_add, swap)), remote_addr, rkey))
        }
        _ => None,
    }
}
