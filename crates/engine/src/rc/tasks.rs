//! Tasks of a cross-channel queue pair ([`crate::wq::managed`]): when an entry may begin, and the execution of tasks.

use std::cmp::Reverse;

use verbs::{Opcode, SendBody, SendFlags, WcOpcode, WcStatus};
use wire::{Env, Nanos};

use crate::Engine;
use crate::objects::managed::Met;
use crate::qp::Qp;
use crate::wq::inflight::Inflight;

/// Entries that one queue with tasks begins without a wait, beside those that messages from outside give credit for
/// ([`crate::wq::managed::Credit`]), and how many all such queues begin under one hold of the device's lock. Then a
/// queue rests: queues that enable each other, or themselves, for ever must not keep the processor and the lock from
/// others. Each rest without a wait between them is twice as long as the one before, up to a limit.
const IN_A_ROW: u32 = 64;
const IN_A_HOLD: u32 = 4096;
const REST: Nanos = 10_000;
const LONGEST_REST: u32 = 6;
/// The time after which a queue that waits for room looks for the acknowledgement again.
const LOOK_AGAIN: Nanos = 500_000;

impl<P: Env> Engine<P> {
    /// True if entries of queues with tasks have begun under this hold of the lock ([`Engine::next_hold`]).
    pub fn has_begun_tasks(&self) -> bool {
        self.tasks > 0
    }

    /// Executes the NOPs and WAITs at the head of the send queue, up to the first entry of another kind, or up to a
    /// WAIT that is not met. These entries send nothing, and a queue that runs in a circle has several of them for each
    /// message: here they are not listed as requests under way. An entry that could complete before an earlier one, or
    /// that breaks a rule, is left to [`Engine::fetch`].
    pub(crate) fn run_tasks(&mut self, qp: &mut Qp, now: Nanos) {
        while let Some(task) = qp.sq.peek_task() {
            let alone = qp.inflight.is_empty();
            // A queue that is filled again and again frees the places of its requests in their order.
            let may_pass = qp.sq.is_cyclic() && !task.flags.contains(SendFlags::SIGNALED);
            if !(alone || may_pass) || task.flags.contains(SendFlags::FENCE) && qp.rc.reads_out > 0 {
                return;
            }
            if !self.may_go_on(qp, now) {
                return;
            }
            let step = match task.body {
                SendBody::Wait { step, .. } => match self.try_wait(qp, &task.body) {
                    Met::Yes => step,
                    Met::No | Met::Never => return,
                },
                _ => 0,
            };
            let number = qp.sq.advance();
            qp.sq.count_on(number, step);
            qp.counts.completed(Opcode::Nop, 0, WcStatus::Success);
            qp.sq.completed(number);
            if task.flags.contains(SendFlags::SIGNALED) {
                self.push_send(qp, number, task.wr_id, WcOpcode::Task, WcStatus::Success, 0, now);
            }
        }
    }

    /// True if the last of the requests under way is no WAIT, or one that is met. A WAIT that names no queue fails.
    pub(crate) fn is_met(&mut self, qp: &mut Qp) -> bool {
        let last = qp.inflight.len().checked_sub(1).map(|at| &qp.inflight[at]);
        let wait = last.filter(|e| e.opcode == Opcode::Wait).map(|e| e.body);
        wait.is_none_or(|body| !matches!(self.try_wait(qp, &body), Met::No))
    }

    /// True if an entry of a queue pair with tasks may begin: within the budget, and the request a circle before has
    /// left its place.
    pub(crate) fn may_go_on(&mut self, qp: &mut Qp, now: Nanos) -> bool {
        let over =
            |qp: &Qp| qp.inflight.front().is_some_and(|oldest| qp.sq.fetched - oldest.number >= u64::from(qp.sq.depth));
        if over(qp) {
            self.retire(qp, now);
            if over(qp) {
                self.look_again(qp, now);
                return false; // a response runs the queue pair again
            }
        }
        self.may_begin(qp, now)
    }

    /// True if one more entry is within the budget. Otherwise the queue rests.
    #[inline(always)]
    pub(super) fn may_begin(&mut self, qp: &mut Qp, now: Nanos) -> bool {
        self.tasks += 1;
        let many = qp.sq.begin() > IN_A_ROW && !self.done.credit.use_up();
        if many || self.tasks > IN_A_HOLD {
            self.rest(qp, now);
            return false;
        }
        true
    }

    /// Takes back what [`Engine::may_begin`] has counted for an entry that did not begin.
    #[cold]
    pub(super) fn has_not_begun(&mut self, qp: &mut Qp) {
        self.tasks = self.tasks.saturating_sub(1);
        if qp.sq.unbegin() > IN_A_ROW {
            self.done.credit.take_back();
        }
    }

    #[cold]
    fn rest(&mut self, qp: &mut Qp, now: Nanos) {
        let rest = REST << qp.sq.rest().min(LONGEST_REST);
        self.resting.push(Reverse((now.saturating_add(rest), qp.id.index, qp.id.generation)));
    }

    /// Looks after a while for a response that the queue pair waits for: a quiet one wakes no process.
    fn look_again(&mut self, qp: &mut Qp, now: Nanos) {
        if qp.sq.look_again() {
            self.resting.push(Reverse((now.saturating_add(LOOK_AGAIN), qp.id.index, qp.id.generation)));
        }
    }

    /// Executes a task. False if this queue pair cannot.
    pub(crate) fn execute_task(&mut self, qp: &mut Qp, e: &Inflight) -> bool {
        let (done, step) = match e.body {
            SendBody::Wait { step, .. } => (matches!(self.try_wait(qp, &e.body), Met::Yes), step),
            SendBody::Enable { step, .. } => (self.execute_enable(qp, e), step),
            _ => (true, 0),
        };
        if done {
            qp.sq.count_on(e.number, step);
        }
        done && qp.cross_channel
    }
}
