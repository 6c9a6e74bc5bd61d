//! Posting an RDMA WRITE or READ that is executed here at once, as [`crate::same_host::one_sided`] does it.

use verbs::{Opcode, QpId, SendBody, SendFlags, SendWr, Sge, WcOpcode, WcStatus};
use wire::{Env, LinkId, Nanos, OneSided, OneSidedOp, Payload, SHORTEST};

use super::{cold, may};
use crate::Engine;
use crate::region::NULL_ADDR;
use crate::wq::complete::sent;
use crate::wq::sq::Executed;

impl<P: Env> Engine<P> {
    /// Posts a WRITE or READ of one entry and executes it, if nothing is under way on the connection and the last one
    /// of its kind was executed here, too. So a connection whose requests are sent pays for one comparison.
    #[inline(never)] // SENDs do not pay for its registers
    pub(super) fn rdma_fast(&mut self, id: QpId, wr: &SendWr<'_>, sge: &Sge, now: Nanos) -> bool {
        let Some(qp) = self.qps.fast(id) else { return cold(false) };
        let reads = wr.opcode == Opcode::RdmaRead;
        if !*qp.same_host.reached_by(reads) {
            return false;
        }
        let SendBody::Rdma { remote_addr, rkey } = *wr.body else { return cold(false) };
        let Some(link) = qp.gate_out() else { return false };
        let len = sge.length;
        let plain = may(self.has_fast_path)
            && self.parked.is_empty()
            && qp.same_host.proven
            && (!reads || qp.attr.max_rd_atomic > 0)
            && link != LinkId::LOOPBACK
            && !wr.flags.contains(SendFlags::IP_CSUM)
            && qp.inflight.is_empty()
            && qp.unlisted == 0
            && !qp.sq.is_full()
            && qp.sq.max_sge > 0
            // A long one is timed (`time_copy`), and one hold of the lock has room for so many bytes.
            && (1..SHORTEST).contains(&len)
            && self.executed + len <= self.piece;
        if !plain {
            return false;
        }
        let span = match self.mem.local_here(qp.init.pd, sge, reads) {
            Ok(span) if span.addr != NULL_ADDR => span,
            _ => return cold(false),
        };
        let request = OneSided {
            service: qp.init.qp_type,
            src: qp.qpn,
            dst: verbs::Qpn::new(qp.attr.dest_qp_num),
            epoch: qp.same_host.peer_epoch,
            op: if reads { OneSidedOp::Read } else { OneSidedOp::Write },
            rkey,
            addr: remote_addr,
            len,
            before: 0,
            after: 0,
            mtu: qp.mtu,
            queues: qp.queues(qp.sq.posted),
            local: Payload { prefix: &[], spans: &[span] },
        };
        let Some(executed) = self.env.one_sided(link, &request) else {
            *qp.same_host.reached_by(reads) = false;
            return cold(false);
        };
        qp.same_host.peer_epoch = Some(executed.epoch);
        qp.unreliable.lossy = false; // the peer has taken all packets that were sent
        self.executed += len;
        let mut flags = wr.flags - SendFlags::INLINE;
        if qp.init.sq_sig_all {
            flags.insert(SendFlags::SIGNALED);
        }
        let number = qp.sq.posted;
        // The entry is read for nothing but the queue's facts.
        let first = Executed { wr_id: wr.wr_id, opcode: wr.opcode, flags, imm: 0, since: now };
        qp.sq.write_sge(first, sge);
        qp.sq.posted += 1;
        qp.sq.fetched += 1;
        qp.counts.completed(wr.opcode, len, WcStatus::Success);
        #[cfg(test)]
        (self.executed_at_post[usize::from(reads)] += 1);
        if flags.contains(SendFlags::SIGNALED)
            && let Some(cq) = qp.init.send_cq
        {
            let pushed = self.done.push_with(cq, false, now, |cqe| {
                *cqe = sent(qp, number, wr.wr_id);
                (cqe.wc.opcode, cqe.wc.byte_len) =
                    if reads { (WcOpcode::RdmaRead, len) } else { (WcOpcode::RdmaWrite, 0) };
            });
            if !pushed {
                self.finish(id, now, |engine, qp, now| engine.overrun(qp, now));
            }
        }
        true
    }
}
