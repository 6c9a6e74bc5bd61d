//! Managed queues: made, enabled, asked about; tasks: checked and executed.

use std::cmp::Reverse;

use verbs::{Count, CqId, CtxId, Errno, Opcode, QpCreated, QpId, QpInit, QpState, QpType, Result, SendBody, SendWr};
use wire::{Env, Nanos};

use crate::Engine;
use crate::qp::Qp;
use crate::wq::cq::{Completions, Notice};
use crate::wq::inflight::Inflight;
use crate::wq::managed::{Base, Managed, Waiting};
use crate::wq::sq::SendQueue;

/// Which queue of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The send queue.
    Send,
    /// The receive queue.
    Recv,
}

/// A managed queue as its program may ask about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueState {
    /// The address of the array of entries in this process; 0: there is none.
    pub addr: u64,
    /// Bytes from one request to the next.
    pub stride: u32,
    /// Requests that the array holds.
    pub count: u32,
    /// Requests posted since the last reset.
    pub posted: u64,
    /// Requests enabled.
    pub enabled: u64,
    /// Requests whose execution has begun.
    pub begun: u64,
}

/// What a WAIT finds.
pub(crate) enum Met {
    Yes,
    No,
    /// It is no WAIT that this queue pair can execute.
    Never,
}

impl<P: Env> Engine<P> {
    /// Creates a queue pair that WAIT and ENABLE may be posted to, with managed queues as asked for.
    ///
    /// # Errors
    /// EINVAL: as `ibv_create_qp(3)`; another service than RC; a managed receive queue that is shared; an array of
    /// another size than [`crate::array_bytes`]. ENOMEM.
    pub fn create_managed_qp(
        &mut self,
        ctx: CtxId,
        init: &QpInit,
        user: u64,
        managed: &Managed,
    ) -> Result<(QpId, QpCreated)> {
        let mut init = *init;
        self.not_in_iwarp(ctx)?;
        if init.qp_type != QpType::Rc || managed.recv.is_some() && init.srq.is_some() {
            return Err(Errno::EINVAL);
        }
        if managed.send.is_some() {
            init.cap.max_inline_data = 0;
            init.cap.max_send_wr = init.cap.max_send_wr.max(1).next_power_of_two();
            init.cap.max_send_sge = init.cap.max_send_sge.max(1);
        }
        if managed.recv.is_some() {
            init.cap.max_recv_wr = init.cap.max_recv_wr.max(1).next_power_of_two();
            init.cap.max_recv_sge = init.cap.max_recv_sge.max(1);
        }
        let (id, created) = self.create_qp(ctx, &init, user)?;
        let Some(qp) = self.qps.get_mut(id) else { return Err(Errno::EINVAL) };
        qp.cross_channel = true;
        let mut manage = || {
            if let Some(send) = &managed.send {
                qp.sq = SendQueue::new_managed(created.cap.max_send_wr, created.cap.max_send_sge, send)?;
            }
            managed.recv.as_ref().map_or(Ok(()), |recv| qp.rq.manage(recv))
        };
        match manage() {
            Ok(()) => Ok((id, created)),
            Err(errno) => {
                self.drop_qp(id);
                Err(errno)
            }
        }
    }

    /// Enables the entries of a managed queue below this count, as an ENABLE does; with a relative count of 0, all that
    /// is posted.
    ///
    /// # Errors
    /// EINVAL: no managed queue, or one that has no entries that far.
    pub fn enable(&mut self, id: QpId, side: Side, count: Count) -> Result<()> {
        let count = self.resolve_enable(id, side, count)?;
        self.enable_to(id, side, count)?;
        if let Some(qp) = self.qps.get_mut(id) {
            qp.sq.refresh();
        }
        Ok(())
    }

    /// The array and the counts of a queue.
    pub fn queue_state(&self, id: QpId, side: Side) -> Result<QueueState> {
        let qp = self.qps.get(id).ok_or(Errno::EINVAL)?;
        Ok(match side {
            Side::Send => {
                let (addr, stride) = qp.sq.array().unwrap_or_default();
                let enabled = qp.sq.managed.as_ref().map_or(qp.sq.posted, |managed| managed.enabled);
                let (count, posted, begun) = (qp.sq.depth, qp.sq.posted, qp.sq.fetched);
                QueueState { addr, stride, count, posted, enabled, begun }
            }
            Side::Recv => {
                let (posted, depth) = (qp.rq.total, qp.rq.depth);
                let managed = qp.rq.managed.as_ref();
                QueueState {
                    addr: managed.map_or(0, |managed| managed.entries.array().addr()),
                    stride: managed.map_or(0, |managed| managed.entries.stride()),
                    count: depth,
                    posted,
                    enabled: managed.map_or(posted, |managed| managed.enabled),
                    begun: managed.map_or(posted - qp.rq.wqes.len() as u64, |managed| managed.taken),
                }
            }
        })
    }

    /// True if a region lies upon the entries of a queue.
    pub(super) fn is_exported(&self, id: QpId, side: Side) -> bool {
        let Ok(QueueState { addr, stride, count, .. }) = self.queue_state(id, side) else { return false };
        addr != 0 && self.has_region_at(addr, u64::from(stride) * u64::from(count))
    }

    /// The count of completions that a WAIT compares with.
    ///
    /// # Errors
    /// EINVAL: no such queue, or one that nothing may wait for.
    pub fn cq_count(&self, cq: CqId) -> Result<u64> {
        let cq = self.done.cqs.get(cq).filter(|cq| cq.opts.cross_channel).ok_or(Errno::EINVAL)?;
        Ok(cq.count())
    }

    /// Checks a task at its post, and makes its count absolute.
    pub(crate) fn resolve_task(&mut self, qp: &mut Qp, wr: &SendWr<'_>) -> Result<SendBody> {
        let cyclic = qp.sq.managed.as_ref().is_some_and(|managed| managed.entries.rules.cyclic);
        match *wr.body {
            SendBody::Wait { cq, count, step } => {
                let found = self.done.cqs.get_mut(cq).ok_or(Errno::EINVAL)?;
                if !found.opts.cross_channel || found.ctx != qp.ctx || step > 0 && !cyclic {
                    return Err(Errno::EINVAL);
                }
                let absolute = resolve(&mut found.base, count);
                if absolute >> 63 != 0 {
                    return Err(Errno::EINVAL);
                }
                Ok(SendBody::Wait { cq, count: Count::Absolute(absolute), step })
            }
            SendBody::Enable { qp: target, count, step } => {
                if step > 0 && !cyclic {
                    return Err(Errno::EINVAL);
                }
                let side = side(wr.opcode);
                let count = if target == qp.id {
                    resolve_enable(qp, side, count)?
                } else {
                    let found = self.qps.get(target).ok_or(Errno::EINVAL)?;
                    if (found.ctx, found.init.pd) != (qp.ctx, qp.init.pd) {
                        return Err(Errno::EINVAL);
                    }
                    self.resolve_enable(target, side, count)?
                };
                Ok(SendBody::Enable { qp: target, count: Count::Absolute(count), step })
            }
            ref other => Ok(*other),
        }
    }

    fn resolve_enable(&mut self, id: QpId, side: Side, count: Count) -> Result<u64> {
        resolve_enable(self.qps.get_mut(id).ok_or(Errno::EINVAL)?, side, count)
    }

    fn enable_to(&mut self, id: QpId, side: Side, count: u64) -> Result<()> {
        let qp = self.qps.get_mut(id).ok_or(Errno::EINVAL)?;
        match side {
            Side::Recv => return qp.rq.enable(count),
            Side::Send => qp.sq.enable(count)?,
        }
        self.wake(id, |_| ());
        Ok(())
    }

    /// Executes an ENABLE. False: there is no such queue for this queue pair, or it has no entries that far.
    pub(crate) fn execute_enable(&mut self, qp: &mut Qp, e: &Inflight) -> bool {
        let SendBody::Enable { qp: target, count: Count::Absolute(count), .. } = e.body else { return false };
        let side = side(e.opcode);
        if target == qp.id {
            // A RECV_EN for the queue pair that executes it has no effect, as with the verbs that it comes from.
            return side == Side::Recv && qp.rq.managed.is_some() || qp.sq.enable(count).is_ok();
        }
        // The entry may have been patched: only queues of the same program and domain are within reach.
        let own = self.qps.get(target).is_some_and(|t| (t.ctx, t.init.pd) == (qp.ctx, qp.init.pd));
        own && self.enable_to(target, side, count).is_ok()
    }

    /// Looks whether a WAIT is met; if not, the queue waits.
    #[inline(always)]
    pub(crate) fn try_wait(&mut self, qp: &mut Qp, body: &SendBody) -> Met {
        let SendBody::Wait { cq, count: Count::Absolute(count), .. } = *body else { return Met::Never };
        let own = self.done.cqs.get_mut(cq).filter(|cq| cq.opts.cross_channel && cq.ctx == qp.ctx);
        let Some(found) = own.filter(|_| qp.cross_channel && count >> 63 == 0) else { return Met::Never };
        if found.count() >= count {
            return Met::Yes;
        }
        if !found.waiters.is_empty() {
            found.waiters.retain(|(id, _)| *id != qp.id);
        }
        found.waiters.push((qp.id, count));
        qp.sq.wait(Waiting { cq, count });
        Met::No
    }

    /// Ends the wait of a queue pair that is flushed or goes.
    pub(crate) fn stop_waiting(&mut self, qp: &mut Qp) {
        if let Some(waiting) = qp.sq.end_wait() {
            self.done.stop_waiting(qp.id, waiting);
        }
    }

    /// True if a WAIT is met whose queue has to go on: the caller calls [`Engine::run`]. A notice tells of it, so that
    /// callers that look for notices need not look for this.
    pub fn has_due(&self) -> bool {
        !self.done.due.is_empty()
    }

    /// Puts queue pairs whose WAIT is met on the list of those with something to do.
    #[cold]
    pub(crate) fn wake_due(&mut self) {
        // The notice was for a caller that had to call `run`.
        self.done.notices.pop_if(|notice| *notice == Notice::Met);
        // In the order in which they began to wait: a queue that waits for another one comes behind it.
        let mut at = 0;
        while let Some(&id) = self.done.due.get(at) {
            self.wake(id, |qp| _ = qp.sq.end_wait());
            at += 1;
        }
        self.done.due.clear();
    }

    #[inline]
    fn wake(&mut self, id: QpId, change: impl FnOnce(&mut Qp)) {
        let Some(qp) = self.qps.get_mut(id) else { return };
        change(qp);
        if !qp.queued && !qp.parked && qp.has_work() {
            qp.queued = true;
            self.ready.push_back(id);
        }
    }

    /// Ends the rests that are over.
    pub(crate) fn end_rests(&mut self, now: Nanos) {
        while let Some(&Reverse((until, index, generation))) = self.resting.peek() {
            if until > now {
                break;
            }
            self.resting.pop();
            self.wake(QpId { index, generation }, |qp| qp.sq.end_rest());
        }
    }

    /// True if a send queue waits for this queue's count.
    pub(super) fn is_waited_on(&self, cq: CqId) -> bool {
        let Some(found) = self.done.cqs.get(cq) else { return false };
        let waits = |id| self.qps.get(id).and_then(|qp| qp.sq.waiting()).is_some_and(|waiting| waiting.cq == cq);
        found.waiters.iter().any(|(id, _)| waits(*id))
    }
}

impl Completions {
    /// Ends a wait before its count is reached.
    fn stop_waiting(&mut self, qp: QpId, waiting: Waiting) {
        if let Some(cq) = self.cqs.get_mut(waiting.cq) {
            cq.waiters.retain(|(id, _)| *id != qp);
        }
    }
}

fn side(opcode: Opcode) -> Side {
    if opcode == Opcode::RecvEn { Side::Recv } else { Side::Send }
}

fn resolve(base: &mut Base, count: Count) -> u64 {
    match count {
        Count::Absolute(count) => count,
        Count::Relative { count, last } => {
            let absolute = base.place(count.into());
            base.used(count.into(), last);
            absolute
        }
    }
}

fn resolve_enable(qp: &mut Qp, side: Side, count: Count) -> Result<u64> {
    if qp.state == QpState::Reset && side == Side::Send {
        return Err(Errno::EINVAL);
    }
    let (posted, full_circle, base) = match side {
        Side::Send => {
            let (posted, depth) = (qp.sq.posted, u64::from(qp.sq.depth));
            let managed = qp.sq.managed.as_mut().ok_or(Errno::EINVAL)?;
            (posted, managed.entries.rules.cyclic && posted >= depth, &mut managed.base)
        }
        Side::Recv => {
            let (posted, depth) = (qp.rq.total, u64::from(qp.rq.depth));
            let managed = qp.rq.managed.as_mut().ok_or(Errno::EINVAL)?;
            (posted, managed.entries.rules.cyclic && posted >= depth, &mut managed.base)
        }
    };
    let wanted = match count {
        Count::Relative { count: 0, .. } => posted,
        Count::Relative { count, .. } => base.place(count.into()),
        Count::Absolute(count) => count,
    };
    if wanted > posted && !full_circle || wanted >> 63 != 0 {
        return Err(Errno::EINVAL);
    }
    if let Count::Relative { last, .. } = count {
        base.used(wanted.saturating_sub(base.place(0)), last);
    }
    Ok(wanted)
}
