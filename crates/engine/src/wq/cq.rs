//! Completion queues: the ring, arming, moderation, overrun (IBTA vol. 1, 10.8).

use std::hint::cold_path;

use verbs::{Completion, CqId, CtxId, EventKind, EventSource, QpId, WcOpcode, WcStatus, limits};
use wire::Nanos;

use crate::slab::Slab;
use crate::wq::in_place_ring::InPlaceRing;
use crate::wq::managed::{Base, Credit};

/// A notice of the engine to the process, to be delivered outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// An armed completion queue has a completion.
    Completion {
        /// The queue.
        cq: CqId,
        /// The token it was created with.
        user: u64,
    },
    /// A WAIT is met ([`crate::Engine::has_due`]).
    Met,
    /// An asynchronous event.
    Async {
        /// The context it belongs to.
        ctx: CtxId,
        /// The kind of event.
        kind: EventKind,
        /// The object of the event.
        source: EventSource,
        /// The token of that object.
        user: u64,
    },
    /// A rule was broken: for the log, when [`crate::Engine::set_diagnostics`] asked for it.
    Broken {
        /// The queue pair.
        qpn: verbs::Qpn,
        /// The work request of the queue pair, if one was concerned.
        wr_id: Option<u64>,
        /// The status of the request.
        status: WcStatus,
        /// The broken rule, in words.
        rule: &'static str,
    },
}

/// Options of a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CqOpts {
    /// A full queue overwrites its oldest entry instead of failing.
    pub ignore_overrun: bool,
    /// Only one thread will use the queue. No meaning here.
    pub single_threaded: bool,
    /// Send queues may wait for the queue's count of completions.
    pub cross_channel: bool,
    /// The count of completions to begin with.
    pub first_count: u64,
}

/// The place that a polled completion frees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Frees {
    /// All entries of the send queue below this count.
    Sends(u64),
    /// One entry of the queue pair's own receive queue.
    Recv,
    /// Nothing (a shared receive queue frees at consumption).
    Nothing,
}

#[derive(Clone, Copy)]
pub(crate) struct Cqe {
    pub wc: Completion,
    pub qp: QpId,
    pub frees: Frees,
}

impl Cqe {
    fn is_receive(&self) -> bool {
        matches!(self.wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm)
    }
}

impl Default for Cqe {
    fn default() -> Self {
        Cqe { wc: Completion::default(), qp: QpId { index: 0, generation: 0 }, frees: Frees::Nothing }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Armed {
    No,
    Solicited,
    Any,
}

pub(crate) struct Cq {
    pub ctx: CtxId,
    pub user: u64,
    pub capacity: u32,
    pub opts: CqOpts,
    /// Queue pairs and shared receive queues that complete here.
    pub users: u32,
    ring: InPlaceRing<Cqe>,
    armed: Armed,
    /// True if each completion has to be announced: an event is asked for, or send queues may wait for the count. No
    /// completion is handed to a poll then.
    is_watched: bool,
    /// Send queues that wait for a count, also of queue pairs that are gone ([`crate::wq::managed`]).
    pub waiters: Vec<(QpId, u64)>,
    /// The counts of WAITs.
    pub base: Base,
    overrun: bool,
    moderate_count: u16,
    moderate_period: Nanos,
    /// The event that is owed: completions since, and when the event is due at the latest.
    owed: Option<(u16, Nanos)>,
    /// Completions that the queue ever got, without those of `handed`.
    pushed: u64,
    /// The value of `pushed` when the last event was raised. An event covered the completions up to there, whether they
    /// were polled or not.
    covered: u64,
    /// The value of `pushed` after the last completion that counts as solicited.
    solicited: u64,
    /// Polls of the queue so far, without those that found a completion of `handed`.
    polls: u64,
    /// Completions that were handed to a poll, of queue pairs that are gone ([`crate::qp::Qp::handed`]).
    handed: u64,
}

impl Cq {
    /// The count of completions that a WAIT compares with. It has every completion of a queue that send queues may wait
    /// for, lost ones, too: none is handed over.
    pub fn count(&self) -> u64 {
        self.opts.first_count + self.pushed
    }

    /// Drops the oldest entry of a full queue that was created so, if nothing is freed by that: a queue for counts is
    /// always full.
    #[inline(always)]
    fn drop_oldest(&mut self) -> bool {
        let may = self.opts.ignore_overrun
            && self.ring.len() >= self.capacity as usize
            && self.ring.front().is_some_and(|oldest| oldest.frees == Frees::Nothing);
        if may {
            self.ring.drop_first();
        }
        may
    }

    /// Puts the send queues whose count has come on the list of those that go on.
    #[inline(always)]
    fn meet(&mut self, due: &mut Vec<QpId>, notices: &mut Vec<Notice>) {
        let (count, before) = (self.count(), due.len());
        match self.waiters[..] {
            [] => return,
            // Mostly one queue waits.
            [(_, wanted)] if wanted > count => return,
            [(qp, _)] => {
                self.waiters.clear();
                due.push(qp);
            }
            _ => self.waiters.retain(|&(qp, wanted)| {
                if wanted <= count {
                    due.push(qp);
                }
                wanted > count
            }),
        }
        // One notice is enough for all that are due: the call that takes it lets all of them go on.
        if before == 0 && !due.is_empty() {
            notices.push(Notice::Met);
        }
    }

    /// Completions that wait and that no event has covered: the youngest ones.
    fn fresh(&self) -> usize {
        usize::try_from(self.pushed - self.covered).map_or(self.ring.len(), |n| n.min(self.ring.len()))
    }

    /// Takes the completions of a queue pair out.
    fn forget(&mut self, qp: QpId) {
        let (fresh, solicited) = (self.fresh(), self.solicited > self.covered);
        let covered = self.ring.len() - fresh;
        let stays = self.ring.iter().skip(covered).filter(|cqe| cqe.qp != qp).count();
        self.ring.retain(|cqe| cqe.qp != qp);
        // The remaining completions have other numbers now, and which of them is solicited is not known any more. An
        // event too many does no harm.
        self.covered = self.pushed - stays as u64;
        self.solicited = if solicited && stays > 0 { self.pushed } else { self.covered };
    }
}

/// All completion queues, and the notices that arise.
pub(crate) struct Completions {
    pub cqs: Slab<CqId, Cq>,
    pub notices: Vec<Notice>,
    /// Queues with a moderated event that is owed.
    pub owing: Vec<CqId>,
    /// Completions that a full queue lost on demand: their places are still to be freed.
    pub overwritten: Vec<Cqe>,
    /// Send queues whose WAIT is met.
    pub due: Vec<QpId>,
    /// Entries that queues with tasks may begin for the messages that have come.
    pub credit: Credit,
    /// Broken rules are reported.
    pub diagnose: bool,
}

impl Completions {
    pub fn new() -> Self {
        Completions {
            cqs: Slab::new(limits::MAX_CQ),
            notices: Vec::new(),
            owing: Vec::new(),
            overwritten: Vec::new(),
            due: Vec::new(),
            credit: Credit::default(),
            diagnose: false,
        }
    }

    pub fn create(&mut self, ctx: CtxId, capacity: u32, user: u64, opts: CqOpts) -> Option<CqId> {
        self.cqs.insert(Cq {
            ctx,
            user,
            capacity,
            opts,
            users: 0,
            ring: InPlaceRing::default(),
            armed: Armed::No,
            is_watched: opts.cross_channel,
            waiters: Vec::new(),
            base: Base::new(opts.first_count),
            overrun: false,
            moderate_count: 0,
            moderate_period: 0,
            owed: None,
            pushed: 0,
            covered: 0,
            solicited: 0,
            polls: 0,
            handed: 0,
        })
    }

    pub fn async_event(&mut self, ctx: CtxId, kind: EventKind, source: EventSource, user: u64) {
        self.notices.push(Notice::Async { ctx, kind, source, user });
    }

    /// Notes a broken rule, if diagnostics are on.
    pub fn broken(&mut self, qpn: verbs::Qpn, wr_id: Option<u64>, status: WcStatus, rule: &'static str) {
        if self.diagnose {
            self.notices.push(Notice::Broken { qpn, wr_id, status, rule });
        }
    }

    /// Adds a completion. False when the queue has overrun: the completion is lost, and the queue pair with it (IBTA
    /// vol. 1, 10.10.2.3: the affiliated error event; C10-91).
    #[inline]
    #[must_use]
    pub fn push(&mut self, id: CqId, cqe: Cqe, solicited: bool, now: Nanos) -> bool {
        // 11.4.2.2: an unsuccessful completion counts as solicited
        let solicited = solicited || cqe.wc.status != WcStatus::Success;
        self.push_with(id, solicited, now, |place| *place = cqe)
    }

    /// [`crate::Engine::hands_over`].
    #[inline(always)]
    pub fn hands_over(&self, id: CqId) -> bool {
        let may = self.cqs.get(id).is_some_and(|cq| !cq.is_watched && cq.ring.is_empty());
        if !may {
            cold_path();
        }
        may
    }

    /// Adds completions that were handed over for a queue pair that goes.
    pub fn handed_over(&mut self, id: CqId, n: u64) {
        if let Some(cq) = self.cqs.get_mut(id) {
            cq.handed += n;
        }
    }

    /// [`Completions::push`], written in place.
    #[inline(always)]
    #[must_use]
    pub fn push_with(&mut self, id: CqId, solicited: bool, now: Nanos, fill: impl FnOnce(&mut Cqe)) -> bool {
        let Some(mut cq) = self.cqs.get_mut(id) else { return true };
        if cq.ring.is_full() || cq.ring.len() >= cq.capacity as usize {
            cold_path();
            if !cq.drop_oldest() {
                if !self.make_room(id) {
                    return false;
                }
                match self.cqs.get_mut(id) {
                    Some(found) => cq = found,
                    None => return true,
                }
            }
        }
        let Some(cqe) = cq.ring.place() else {
            cold_path();
            return false;
        };
        fill(cqe);
        cqe.wc.timestamp = now;
        cq.pushed += 1;
        if solicited {
            cq.solicited = cq.pushed;
        }
        if cq.is_watched {
            cold_path();
            if cq.opts.cross_channel {
                if cqe.is_receive() {
                    self.credit.give();
                }
                cq.meet(&mut self.due, &mut self.notices);
            }
            if cq.armed != Armed::No {
                self.announce(id, solicited, now);
            }
        }
        true
    }

    /// Lets a queue grow, or drops its oldest entry if the queue was created so. False if the queue has overrun.
    #[cold]
    fn make_room(&mut self, id: CqId) -> bool {
        let Some(cq) = self.cqs.get_mut(id) else { return true };
        // The ring grows with the most completions that ever waited at one time. Without memory for one more, the queue
        // is as good as full. A queue for counts is always full.
        let is_full = cq.ring.len() >= cq.capacity as usize;
        if !is_full && cq.ring.try_reserve(1).is_ok() {
            return true;
        }
        if cq.opts.ignore_overrun {
            self.overwritten.extend(cq.ring.pop_front());
            return true;
        }
        if !cq.overrun {
            cq.overrun = true;
            let (ctx, user) = (cq.ctx, cq.user);
            self.async_event(ctx, EventKind::CqErr, EventSource::Cq(id), user);
        }
        false
    }

    /// Raises the event that is asked for, after a completion.
    #[inline(never)]
    fn announce(&mut self, id: CqId, solicited: bool, now: Nanos) {
        let Some(cq) = self.cqs.get_mut(id) else { return };
        if cq.armed == Armed::No || cq.armed == Armed::Solicited && !solicited {
            return;
        }
        if cq.moderate_count > 1 && cq.moderate_period > 0 {
            let first = cq.owed.is_none();
            let (n, due) = cq.owed.unwrap_or((0, now + cq.moderate_period));
            if n + 1 < cq.moderate_count {
                cq.owed = Some((n + 1, due));
                if first {
                    self.owing.push(id);
                }
                return;
            }
        }
        Self::fire(cq, id, &mut self.notices);
    }

    fn fire(cq: &mut Cq, id: CqId, notices: &mut Vec<Notice>) {
        (cq.armed, cq.is_watched) = (Armed::No, cq.opts.cross_channel);
        cq.owed = None;
        cq.covered = cq.pushed;
        notices.push(Notice::Completion { cq: id, user: cq.user });
    }

    /// Fires the moderated events that are due; gives the time of the next.
    pub fn fire_due(&mut self, now: Nanos) -> Option<Nanos> {
        let mut next = None;
        let (cqs, notices) = (&mut self.cqs, &mut self.notices);
        self.owing.retain(|&id| {
            let Some(cq) = cqs.get_mut(id) else { return false };
            let Some((_, due)) = cq.owed else { return false };
            if due <= now {
                Self::fire(cq, id, notices);
                return false;
            }
            next = Some(next.map_or(due, |n: Nanos| n.min(due)));
            true
        });
        next
    }

    /// Asks for an event. The event comes at once if a completion waits that would have raised one, and that no event
    /// has covered. So a program that has read an event need not poll once more after asking for the next one. An
    /// adapter, which is given the consumer's index with the request, does not lose such a completion either.
    /// Completions that an event has covered raise no other one, though they were not polled.
    pub fn arm(&mut self, id: CqId, solicited_only: bool) -> bool {
        let Some(cq) = self.cqs.get_mut(id) else { return false };
        // 11.4.2.2: asking for any completion is not weakened by asking for solicited ones later
        if !(solicited_only && cq.armed == Armed::Any) {
            cq.armed = if solicited_only { Armed::Solicited } else { Armed::Any };
        }
        cq.is_watched = true;
        let fresh = cq.fresh();
        let matches = match cq.armed {
            Armed::Any => fresh > 0,
            _ => cq.solicited > cq.pushed - fresh as u64,
        };
        // An owed moderated event comes when it is due anyway.
        if !matches || cq.owed.is_some() {
            return true;
        }
        if cq.moderate_count > 1 && cq.moderate_period > 0 && fresh < usize::from(cq.moderate_count) {
            let first = cq.ring.get(cq.ring.len() - fresh).map_or(0, |cqe| cqe.wc.timestamp);
            cq.owed = Some((fresh as u16, first.saturating_add(cq.moderate_period)));
            self.owing.push(id);
            return true;
        }
        Self::fire(cq, id, &mut self.notices);
        true
    }

    pub fn moderate(&mut self, id: CqId, count: u16, period_us: u16) -> bool {
        let Some(cq) = self.cqs.get_mut(id) else { return false };
        cq.moderate_count = count;
        cq.moderate_period = u64::from(period_us) * 1_000;
        true
    }

    /// Counts a poll, and gives the ring.
    #[inline]
    pub fn look(&mut self, id: CqId) -> Option<&mut InPlaceRing<Cqe>> {
        let cq = self.cqs.get_mut(id)?;
        cq.polls += 1;
        Some(&mut cq.ring)
    }

    /// Facts about a queue. So many completions of living queue pairs were handed over from it.
    pub fn facts(id: CqId, cq: &Cq, handed: u64, now: Nanos) -> report::facts::Cq {
        let handed = cq.handed + handed;
        report::facts::Cq {
            handle: id.index,
            depth: cq.capacity,
            inside: cq.ring.len() as u32,
            pushed: cq.pushed + handed,
            polls: cq.polls + handed,
            armed: match cq.armed {
                Armed::No => report::facts::Armed::No,
                Armed::Solicited => report::facts::Armed::Solicited,
                Armed::Any => report::facts::Armed::Any,
            },
            overrun: cq.overrun,
            overwrites: cq.opts.ignore_overrun,
            counts: cq.opts.cross_channel,
            moderated_ns: cq.owed.map(|(_, due)| due.saturating_sub(now)),
            users: cq.users,
            ..Default::default()
        }
    }

    /// Completions of a queue pair that report success.
    pub fn successes(&self, id: CqId, qp: QpId) -> usize {
        let good = |cqe: &&Cqe| cqe.qp == qp && cqe.wc.status == WcStatus::Success;
        self.cqs.get(id).map_or(0, |cq| cq.ring.iter().filter(good).count())
    }

    pub fn is_empty(&self, id: CqId) -> bool {
        self.cqs.get(id).is_none_or(|cq| cq.ring.is_empty())
    }

    /// Counts a poll that found nothing.
    pub fn count_poll(&mut self, id: CqId) {
        if let Some(cq) = self.cqs.get_mut(id) {
            cq.polls += 1;
        }
    }

    pub fn len(&self, id: CqId) -> usize {
        self.cqs.get(id).map_or(0, |cq| cq.ring.len())
    }

    pub fn is_armed(&self, id: CqId) -> bool {
        self.cqs.get(id).is_some_and(|cq| cq.armed != Armed::No)
    }

    /// Resizes; fails when more completions wait than would fit.
    pub fn resize(&mut self, id: CqId, capacity: u32) -> Option<bool> {
        let cq = self.cqs.get_mut(id)?;
        if cq.ring.len() > capacity as usize {
            return Some(false);
        }
        cq.capacity = capacity;
        Some(true)
    }

    /// Takes the completions of a queue pair out (it is destroyed or reset).
    pub fn forget(&mut self, id: CqId, qp: QpId) {
        if let Some(cq) = self.cqs.get_mut(id) {
            cq.forget(qp);
        }
        // The places of their completions belong to the queues before.
        self.overwritten.retain(|cqe| cqe.qp != qp);
    }
}

#[cfg(test)]
mod tests;
