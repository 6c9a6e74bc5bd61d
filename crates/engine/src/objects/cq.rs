//! Completion queues, and taking completions out of them; the queue itself is in `cq`.

use verbs::{CqId, CtxId, Errno, Result, limits};
use wire::{Env, Nanos};

use crate::Engine;
use crate::qps::Qps;
use crate::wq::cq::{CqOpts, Cqe, Frees};

impl<P: Env> Engine<P> {
    /// `ibv_create_cq(3)`. Gives the real number of entries.
    pub fn create_cq(&mut self, ctx: CtxId, cqe: u32, user: u64, opts: CqOpts) -> Result<(CqId, u32)> {
        self.ctxs.get(ctx).ok_or(Errno::EINVAL)?;
        if cqe == 0 || cqe > limits::MAX_CQE {
            return Err(Errno::EINVAL);
        }
        let id = self.done.create(ctx, cqe, user, opts).ok_or(Errno::ENOMEM)?;
        Ok((id, cqe))
    }

    /// `ibv_resize_cq(3)`: EINVAL when the waiting completions would not fit.
    pub fn resize_cq(&mut self, cq: CqId, cqe: u32) -> Result<u32> {
        if cqe == 0 || cqe > limits::MAX_CQE {
            return Err(Errno::EINVAL);
        }
        match self.done.resize(cq, cqe) {
            Some(true) => Ok(cqe),
            _ => Err(Errno::EINVAL),
        }
    }

    /// `ibv_modify_cq(3)`: at most one event for `count` completions or `period_us` microseconds.
    pub fn moderate_cq(&mut self, cq: CqId, count: u16, period_us: u16) -> Result<()> {
        if self.done.moderate(cq, count, period_us) { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// `ibv_destroy_cq(3)`: EBUSY while queue pairs or shared receive queues complete here, or a WAIT waits for it.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<()> {
        if self.done.cqs.get(cq).ok_or(Errno::EINVAL)?.users > 0 {
            return Err(Errno::EBUSY);
        }
        if self.is_waited_on(cq) {
            return Err(Errno::EBUSY);
        }
        self.done.cqs.remove(cq);
        Ok(())
    }

    pub(super) fn use_cq(&mut self, cq: CqId, by: i32) {
        if let Some(cq) = self.done.cqs.get_mut(cq) {
            cq.users = cq.users.wrapping_add_signed(by);
        }
    }

    /// Takes at most `most` completions out, and frees the places that they held. Gives their number. `out` is called
    /// with the number of each, from 0 on.
    #[inline]
    pub fn poll(&mut self, cq: CqId, most: usize, mut out: impl FnMut(usize, &verbs::Completion)) -> usize {
        let mut n = 0;
        while n < most {
            let Some(ring) = self.done.look(cq) else { break };
            let Some(cqe) = ring.front() else { break };
            Self::free_place(&mut self.qps, cqe);
            out(n, &cqe.wc);
            ring.drop_front(1);
            n += 1;
        }
        n
    }

    /// How many completions of the queue pair with this number report success and have not been polled.
    pub fn unpolled(&self, qpn: verbs::Qpn) -> usize {
        let Some(id) = self.qpns.find(qpn) else { return 0 };
        let Some(qp) = self.qps.get(id) else { return 0 };
        let (send, recv) = (qp.init.send_cq, qp.init.recv_cq.filter(|cq| Some(*cq) != qp.init.send_cq));
        [send, recv].into_iter().flatten().map(|cq| self.done.successes(cq, id)).sum()
    }

    /// Frees the places of completions that were overwritten before a poll.
    pub(crate) fn free_overwritten(&mut self) {
        while let Some(cqe) = self.done.overwritten.pop() {
            Self::free_place(&mut self.qps, &cqe);
        }
    }

    #[inline]
    fn free_place(qps: &mut Qps, cqe: &Cqe) {
        let Some(qp) = qps.fast(cqe.qp) else { return };
        match cqe.frees {
            Frees::Sends(count) => qp.sq.retired = qp.sq.retired.max(count),
            Frees::Recv => qp.rq.held = qp.rq.held.saturating_sub(1),
            Frees::Nothing => {}
        }
    }

    /// True if the queue exists.
    pub fn has_cq(&self, cq: CqId) -> bool {
        self.done.cqs.get(cq).is_some()
    }

    /// True if a poll would find nothing.
    pub fn cq_is_empty(&self, cq: CqId) -> bool {
        self.done.is_empty(cq)
    }

    /// True if new completions of this queue may be handed to the poll directly. False if they must be put into the
    /// queue: others are before them, or an event is asked for.
    #[inline(always)]
    pub fn hands_over(&self, cq: CqId) -> bool {
        self.done.hands_over(cq)
    }

    /// Counts a poll that found nothing, made without a call of [`Engine::poll`].
    #[inline]
    pub fn count_poll(&mut self, cq: CqId) {
        self.done.count_poll(cq);
    }

    /// Number of completions that wait in the queue.
    #[inline]
    pub fn completions(&self, cq: CqId) -> usize {
        self.done.len(cq)
    }

    /// `ibv_req_notify_cq(3)`.
    pub fn arm_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<()> {
        if self.done.arm(cq, solicited_only) { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// True while an event is asked for.
    pub fn cq_is_armed(&self, cq: CqId) -> bool {
        self.done.is_armed(cq)
    }

    /// The earliest time at which [`Engine::expire`] has something to do.
    pub fn next_deadline(&mut self) -> Option<Nanos> {
        let timer = self.timers.peek().map(|t| t.0.0);
        let owed = self.done.fire_due(0);
        let next = match (timer, owed) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        match self.resting.peek() {
            None => next,
            Some(rest) => Some(next.map_or(rest.0.0, |next| next.min(rest.0.0))),
        }
    }
}
