//! Posting a request that no packet carries, which is executed at once: the bind of a window, or LOCAL_INV.

use verbs::{Opcode, QpId, RKey, SendBody, SendFlags, SendWr, WcStatus};
use wire::{Env, Nanos};

use super::{cold, may};
use crate::Engine;
use crate::qp::Qp;
use crate::rc::requester::MOST_PSNS;
use crate::wq::complete::wc_opcode;
use crate::wq::inflight::Inflight;

impl<P: Env> Engine<P> {
    /// Posts such a request and executes it, behind requests that have gone out.
    #[inline(never)] // SENDs do not pay for its registers
    pub(super) fn local_fast(&mut self, id: QpId, wr: &SendWr<'_>, now: Nanos) -> bool {
        let Some(qp) = self.qps.fast(id) else { return cold(false) };
        let plain = may(self.has_fast_path)
            && self.parked.is_empty()
            && qp.gate_out().is_some()
            && !qp.cross_channel
            && !qp.sq.is_full()
            && !wr.flags.intersects(SendFlags::FENCE | SendFlags::IP_CSUM)
            && qp.inflight.len() + qp.unlisted < qp.inflight.capacity()
            && qp.rc.next_psn.since(qp.rc.unacked).unsigned_abs() < MOST_PSNS;
        if !plain {
            return false;
        }
        let Some(mut qp) = self.checkout_qp(id) else { return false };
        let executed = self.local_now(&mut qp, wr, now);
        if executed {
            self.schedule(&mut qp);
        }
        self.qps.put_back(id, qp);
        executed
    }

    fn local_now(&mut self, qp: &mut Qp, wr: &SendWr<'_>, now: Nanos) -> bool {
        if qp.halted {
            return false; // the entry of a request in front was overwritten
        }
        self.env.wait_for_late_writers();
        match *wr.body {
            SendBody::BindMw { mw, rkey, mr, addr, length, access } if wr.opcode == Opcode::BindMw => {
                if self.mem.bind(qp.id, qp.init.pd, mw, rkey, mr, addr, length, access).is_err() {
                    return false;
                }
                self.publish_mw(qp, mw);
            }
            SendBody::Plain if wr.opcode == Opcode::LocalInv => {
                if self.invalidate(qp.id, RKey(wr.imm_or_rkey)).is_err() {
                    return false;
                }
            }
            _ => return false,
        }
        let mut flags = wr.flags - SendFlags::INLINE;
        if qp.init.sq_sig_all {
            flags.insert(SendFlags::SIGNALED);
        }
        // The entry is read for nothing but the queue's facts.
        qp.sq.push(wr, flags);
        let number = qp.sq.advance();
        let (wr_id, opcode) = (wr.wr_id, wr.opcode);
        if qp.inflight.is_empty() {
            qp.counts.completed(opcode, 0, WcStatus::Success);
            if flags.contains(SendFlags::SIGNALED) {
                self.push_send(qp, number, wr_id, wc_opcode(opcode), WcStatus::Success, 0, now);
            }
        } else if let Some(place) = qp.inflight.place() {
            // It completes when the requests in front have. Nothing else of the entry is needed for that.
            let (imm, first_psn) = (wr.imm_or_rkey, qp.rc.next_psn);
            let over = Inflight { out: true, done: true, error: None, ..Inflight::default() };
            *place = Inflight { number, wr_id, opcode, flags, imm, first_psn, since: now, ..over };
            qp.cursor += 1;
        }
        #[cfg(test)]
        (self.executed_at_post[2 + usize::from(opcode == Opcode::LocalInv)] += 1);
        true
    }
}
