//! Posting several RDMA WRITEs or READs of a list that are executed here at once, by one copy: a copy between processes
//! is a system call, which takes about as long as the copy of 16 KiB.

use std::array::from_fn;

use verbs::{Opcode, QpId, Qpn, RKey, SendBody, SendData, SendFlags, SendWr, WcOpcode, WcStatus};
use wire::{Env, LinkId, Nanos, OneSided, OneSidedOp, Payload, SHORTEST, Span, TOGETHER};

use super::may;
use crate::Engine;
use crate::region::NULL_ADDR;
use crate::wq::complete::sent;
use crate::wq::sq::Executed;

/// Shorter requests are executed one by one: they may take another way than a system call.
const LEAST: u32 = if cfg!(test) { 1 } else { 4096 };

impl<P: Env> Engine<P> {
    /// Posts the first requests of a list, WRITEs or READs of one entry each, and executes them, under the conditions
    /// of [`Engine::post_send`]'s fast path. The result is their number. It is 0 if nothing was done, also for any
    /// error: the caller posts what is left one by one.
    #[inline(never)] // lists of other requests do not pay for its registers
    pub fn post_together(&mut self, id: QpId, wrs: &[SendWr<'_>], now: Nanos) -> usize {
        let (Some(first), Some(qp)) = (wrs.first(), self.qps.fast(id)) else { return 0 };
        let reads = first.opcode == Opcode::RdmaRead;
        if !(reads || first.opcode == Opcode::RdmaWrite) || !*qp.same_host.reached_by(reads) {
            return 0;
        }
        let Some(link) = qp.gate_out() else { return 0 };
        let plain = may(self.has_fast_path)
            && self.done.overwritten.is_empty()
            && self.parked.is_empty()
            && qp.same_host.proven
            && (!reads || qp.attr.max_rd_atomic > 0)
            && link != LinkId::LOOPBACK
            && qp.inflight.is_empty()
            && qp.unlisted == 0
            && qp.sq.max_sge > 0;
        if !plain {
            return 0;
        }
        let (mut count, mut bytes) = (0, 0);
        let (mut spans, mut places) = ([Span::default(); TOGETHER], [(0, RKey(0)); TOGETHER]);
        for wr in wrs.iter().take(TOGETHER.min(qp.sq.room() as usize)) {
            let (SendData::Sges([sge]), SendBody::Rdma { remote_addr, rkey }) = (wr.data, *wr.body) else { break };
            let fits = wr.opcode == first.opcode
                && !wr.flags.contains(SendFlags::IP_CSUM)
                && (LEAST..SHORTEST).contains(&sge.length)
                && self.executed + bytes + sge.length <= self.piece;
            let Some(span) = fits.then(|| self.mem.local_here(qp.init.pd, sge, reads).ok()).flatten() else { break };
            if span.addr == NULL_ADDR {
                break;
            }
            (spans[count], places[count]) = (span, (remote_addr, rkey));
            bytes += sge.length;
            count += 1;
        }
        if count < 2 {
            return 0;
        }
        let requests: [OneSided<'_>; TOGETHER] = from_fn(|at| {
            let ((addr, rkey), span) = (places[at], &spans[at..=at]);
            OneSided {
                service: qp.init.qp_type,
                src: qp.qpn,
                dst: Qpn::new(qp.attr.dest_qp_num),
                epoch: qp.same_host.peer_epoch,
                op: if reads { OneSidedOp::Read } else { OneSidedOp::Write },
                rkey,
                addr,
                len: span[0].len,
                before: 0,
                after: 0,
                mtu: qp.mtu,
                queues: qp.queues(qp.sq.posted),
                local: Payload { prefix: &[], spans: span },
            }
        });
        let Some((epoch, count)) = self.env.one_sided_together(link, &requests[..count]) else { return 0 };
        qp.same_host.peer_epoch = Some(epoch);
        self.executed += spans[..count].iter().map(|span| span.len).sum::<u32>();
        #[cfg(test)]
        {
            self.executed_at_post[usize::from(reads)] += count as u64;
            self.executed_together += count as u64;
        }
        for (at, wr) in wrs[..count].iter().enumerate() {
            let SendData::Sges([sge]) = wr.data else { return at };
            let mut flags = wr.flags - SendFlags::INLINE;
            if qp.init.sq_sig_all {
                flags.insert(SendFlags::SIGNALED);
            }
            let number = qp.sq.posted;
            // The entry is read for nothing but the queue's facts.
            qp.sq.write_sge(Executed { wr_id: wr.wr_id, opcode: wr.opcode, flags, imm: 0, since: now }, sge);
            qp.sq.posted += 1;
            qp.sq.fetched += 1;
            qp.counts.completed(wr.opcode, sge.length, WcStatus::Success);
            if flags.contains(SendFlags::SIGNALED)
                && let Some(cq) = qp.init.send_cq
            {
                let pushed = self.done.push_with(cq, false, now, |cqe| {
                    *cqe = sent(qp, number, wr.wr_id);
                    (cqe.wc.opcode, cqe.wc.byte_len) =
                        if reads { (WcOpcode::RdmaRead, sge.length) } else { (WcOpcode::RdmaWrite, 0) };
                });
                if !pushed {
                    self.finish(id, now, |engine, qp, now| engine.overrun(qp, now));
                    return at + 1;
                }
            }
        }
        count
    }
}
