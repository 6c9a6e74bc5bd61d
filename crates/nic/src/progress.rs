//! Who moves data when: a program that polls does it itself, on its own core; where nobody polls, the NIC thread does.
//!
//! Two modes. *Polled*: peers do not ring our doorbell; the NIC thread looks at growing intervals (at most
//! [`TICK_MAX`]) whether the program still polls, and takes over when it does not. *Armed*: our links say that we
//! sleep, peers ring, and the NIC thread sleeps on the doorbell without limit: an idle program uses no CPU. It stays
//! awake a little longer for peers that need it again and again ([`crate::idle_monitor`]). `ibv_req_notify_cq` arms at
//! once, and so does, now and then ([`ARM_PAUSE`]), a poll after which no completion can be expected: then peers may
//! still read and write our memory, and must find somebody awake.

use std::sync::atomic::Ordering;

use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use ::verbs::{CqId, Result};
use memory::biased;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::AsFd;

use engine::env::{Env, LinkId, Packet};

use crate::core::{Core, Guard, Mode};
use crate::fast_poll::Finds;
use crate::idle_monitor::IdleMonitor;
use crate::{Nic, now, thread};

/// Polls in armed mode before polled mode begins: a loop of events polls once or twice per event and should not pay for
/// the change. Those that find completions count where nobody waits for events.
const POLLS_BEFORE_POLLED: u32 = 16;
/// Polls in armed mode after which a program that has once asked for an event no longer counts as one that waits for
/// them: more than one event brings to most.
const POLLS_UNASKED: u32 = 64;
/// Shortest and longest time, in nanoseconds, between two looks of the NIC thread in polled mode.
const TICK_MIN: u64 = 100_000;
const TICK_MAX: u64 = 1_000_000;
/// The longest while a request waits for room in a window.
const TICK_PARKED: u64 = 200_000;
/// The shortest time between two armings that nobody asked for: each costs a few microseconds, and the polls until it
/// is over. Who computes longer than that between his messages has the NIC thread serve his peers meanwhile.
const ARM_PAUSE: u64 = TICK_MAX;
/// Who polls reads the clock every few microseconds ([`crate::adaptive_interval`]). If that was so long ago, he polls
/// seldom, or does something else between bursts of polls, and his peers wait meanwhile: that shows at a second look as
/// long after the first.
const PAUSE: u64 = 50_000;
/// Empty polls in a row before a poller offers its processor to others, and how often it does so from then on. On an
/// idle machine the first is some 20 us, longer than any round trip, and the offer costs a system call.
const POLLS_BEFORE_YIELD: u32 = 1024;
const YIELD_EVERY: u32 = 128;
/// How often arming takes in what came in the meantime before it leaves that to the NIC thread.
const ARM_ROUNDS: u32 = 8;
/// How long the NIC thread waits for the lock before it looks whether somebody asks for a report.
pub(crate) const LOCK_PATIENCE: Duration = Duration::from_millis(200);
/// Turns in which a link is emptied that was full; a ring has room for fewer packets than that.
const TAKE_IN_ROUNDS: u32 = 256;
/// Packets taken from one link in one turn, so that one busy peer does not starve the others.
pub(crate) const BUDGET: u32 = 64;

/// Which link a poll looks at first: the one over which the last packet came, since the next mostly does, too. But who
/// always gets what he wants there would hardly come to the others, so it is another's turn after [`BUDGET`] polls.
#[derive(Debug, Default)]
pub(crate) struct RoundRobin {
    /// The link's index.
    link: usize,
    /// How many polls in a row were content with it.
    polls: u32,
}

impl RoundRobin {
    /// The index of the first of so many links.
    #[inline]
    pub(crate) fn first(&mut self, links: usize) -> usize {
        if self.polls >= BUDGET || self.link >= links {
            self.polls = 0;
            self.link = if self.link + 1 < links { self.link + 1 } else { 0 };
        }
        self.link
    }

    /// Another one is to be looked at first next time.
    #[inline]
    pub(crate) fn next_is_anothers(&mut self) {
        self.polls = BUDGET;
    }

    /// A poll found on this link all that it wanted.
    #[inline]
    pub(crate) fn took(&mut self, at: usize) {
        if at != self.link {
            *self = RoundRobin { link: at, polls: 0 };
        }
        self.polls += 1;
    }
}

impl Core {
    /// A poll found nothing. True if the poller should offer its processor to others.
    #[inline]
    pub(crate) fn found_nothing(&mut self) -> bool {
        self.empty_polls = self.empty_polls.saturating_add(1);
        self.empty_polls >= POLLS_BEFORE_YIELD && self.empty_polls.is_multiple_of(YIELD_EVERY)
    }

    /// Rings for what was sent by those who left that to a poll with nothing else to do.
    ///
    /// In polled mode a peer that is seen to sleep is rung at once. One that was falling asleep just then is found only
    /// behind a fence, which takes as long as writing all of the message: waiting for an answer there is time for that,
    /// and while messages follow one another there need be one for many. Who neither polls nor sends any more leaves it
    /// to the NIC thread's next look: that is within [`TICK_MAX`], if nothing holds that thread up, and takes a peer
    /// that fell asleep in the same tenth of a microsecond.
    #[inline]
    pub(crate) fn ring_late(&mut self) {
        if self.engine.env().owes_ring() {
            self.ring_doorbells();
        }
    }

    #[inline(never)]
    fn ring_doorbells(&mut self) {
        self.engine.env_mut().ring_doorbells();
    }

    /// What a poll does that finds no completions: a look at each link costs one load, and all else that could have
    /// happened (deaths, deadlines, room on a full link) is looked at now and then, since reading the clock costs more
    /// than that. It stops as soon as the poll has its completions: what comes behind them is for the next.
    #[inline(always)]
    pub(crate) fn poll_slow(&mut self, cq: CqId, wanted: usize, finds: Finds) {
        let thorough = self.polls >= self.full_check_at;
        if thorough {
            self.clock_uses = 0;
        } else if finds != Finds::Nothing && !self.engine.env().any_ready() && !self.engine.has_ready() {
            return;
        }
        let mut now = self.time();
        if thorough {
            let adaptive_interval = u64::from(self.check_interval.next(now));
            // Who may help is to see it soon.
            self.full_check_at = self.polls + if self.engine.expects_offers() { 1 } else { adaptive_interval };
        }
        if !thorough && self.mode == Mode::Polled {
            self.take_packets(&mut now, Some((cq, wanted)));
            if !self.engine.cq_is_empty(cq) {
                return;
            }
        }
        self.progress(now);
    }

    /// Takes packets from the links, until this queue has so many completions.
    #[inline(always)]
    fn take_packets(&mut self, now: &mut u64, until: Option<(CqId, usize)>) {
        let mut packet = Packet::NONE;
        // Who wants one completion mostly gets it with the next packet: no acknowledgement can be spared by waiting for
        // others.
        self.engine.set_prompt(until.is_some_and(|(_, wanted)| wanted == 1));
        // By index: handling a packet may add links.
        let links = self.engine.env().links().len();
        let first = self.round_robin.first(links);
        let mut gave = None;
        for at in (first..links).chain(0..first) {
            let Some(&link) = self.engine.env().links().get(at) else { break };
            for _ in 0..BUDGET {
                let Some(rx) = self.engine.env_mut().peek_into(link, &mut packet) else { break };
                gave = Some(at);
                self.engine.receive(link, &packet, rx, *now);
                self.engine.env_mut().release(link);
                if self.engine.burst_exhausted() {
                    self.engine.run(*now);
                    self.engine.env_mut().ring_doorbells();
                    *now = self.read_time();
                }
                if until.is_some_and(|(cq, wanted)| self.engine.completions(cq) >= wanted) {
                    self.round_robin.took(at);
                    return;
                }
            }
        }
        if let (Some(at), Some(_)) = (gave, until) {
            // Not all that was wanted, but the next mostly comes there, too: the fast path looks at no other link.
            self.round_robin.took(at);
        }
    }

    /// Takes in what has come, runs what it set free, lets time pass.
    #[inline(never)]
    pub(crate) fn progress(&mut self, mut now: u64) {
        self.engine.env_mut().pass(now);
        self.take_packets(&mut now, None);
        if self.engine.lends() {
            self.engine.co_copy();
        }
        self.engine.env_mut().take_dead_links(&mut self.dead);
        for (link, other) in self.dead.drain(..) {
            self.engine.link_down(link, other);
        }
        if self.engine.next_deadline().is_some_and(|at| at <= now) {
            self.engine.expire(now);
        }
        self.flush();
    }

    /// Takes in all that has come until now. Peers that go on sending are not waited for.
    pub(crate) fn take_in(&mut self) {
        for _ in 0..TAKE_IN_ROUNDS {
            let now = self.read_time();
            self.progress(now);
            if !self.engine.env().any_ready() {
                break;
            }
        }
    }

    /// A poll finds completions. True if the program polls while peers ring for it, and does not wait for events: then
    /// such polls show that as well, since it may be the NIC thread that brings the completions, and both would go on
    /// at one another's cost.
    #[inline]
    pub(crate) fn only_polls(&mut self) -> bool {
        self.mode == Mode::Armed && !self.may_await_events()
    }

    /// True if the program may be waiting for events. Who polls again and again without asking for one does not, unless
    /// one that was asked for has not come yet: then another thread may sleep until it does.
    fn may_await_events(&mut self) -> bool {
        if self.awaits_events {
            self.polls_unasked += 1;
            if self.polls_unasked >= POLLS_UNASKED {
                let asked = self.channels.keys().any(|&cq| self.engine.cq_is_armed(cq));
                self.await_events(asked);
                // Even if one thread does wait: this one is awake, and moves the data.
                self.engine.env_mut().set_awaits_events(false);
            }
        }
        self.awaits_events
    }

    /// The program has asked for an event, or cannot be waiting for one.
    pub(crate) fn await_events(&mut self, may: bool) {
        self.polls_unasked = 0;
        self.awaits_events = may;
        self.engine.env_mut().set_awaits_events(may);
    }

    /// True if the program has polled since that count. One that may wait for events must have done so several times:
    /// it polls once or twice, and then sleeps without arming anew if it did so before.
    pub(crate) fn polls_since(&self, polls: u64) -> bool {
        let few = if self.awaits_events { u64::from(POLLS_BEFORE_POLLED) } else { 1 };
        self.polls.wrapping_sub(polls) >= few
    }

    /// The program polls: it has found nothing, or does nothing else ([`Core::only_polls`]).
    pub(crate) fn polled(&mut self, nic: &Nic) {
        self.polls += 1;
        if self.mode == Mode::Polled {
            return;
        }
        self.may_await_events();
        self.polls_armed += 1;
        if self.polls_armed < POLLS_BEFORE_POLLED {
            return;
        }
        self.mode = Mode::Polled;
        self.engine.env_mut().suppress_doorbells();
        nic.wake_thread(self);
    }

    /// Completions were taken. If no more can come, nobody will poll for the peers' sake. Not again and again: who
    /// sends at such a rate is back soon, and if not the NIC thread finds out at its second turn, within twice
    /// [`TICK_MAX`].
    pub(crate) fn after_completions(&mut self, nic: &Nic) {
        if self.mode == Mode::Polled && self.clock >= self.arm_not_before && !self.engine.expects_completions() {
            self.arm_for(nic);
            self.arm_not_before = self.clock + ARM_PAUSE;
        }
    }

    /// Arms on a thread of the program.
    pub(crate) fn arm_for(&mut self, nic: &Nic) {
        let now = self.read_time();
        self.polls_armed = 0;
        if !self.go_armed(now) {
            nic.wake_thread(self);
        }
    }

    /// From now on peers ring: says that we sleep, and takes in what came before they could know.
    ///
    /// False when packets still come in faster than they are taken: then the NIC thread must not sleep yet.
    #[must_use]
    pub(crate) fn go_armed(&mut self, mut now: u64) -> bool {
        if self.mode == Mode::Polled {
            self.polls_armed = 0;
        }
        self.mode = Mode::Armed;
        for _ in 0..ARM_ROUNDS {
            if self.engine.env_mut().announce_sleep() {
                return true;
            }
            self.engine.run(now); // forgets links that were full and that nobody waits for any more
            self.progress(now);
            now = self.read_time();
        }
        false
    }
}

/// What the NIC thread has seen of the program's polls in polled mode, and when it looks again.
struct PollCheck {
    tick: u64,
    /// The last look left open whether it is at work at all.
    doubted: bool,
    /// The program's count of polls at the last look.
    polls: u64,
    /// When it was last found to have grown.
    grown_at: u64,
}

impl PollCheck {
    /// For a program that has polled so often, and does not now.
    fn at_rest(polls: u64) -> Self {
        PollCheck { tick: TICK_MIN, doubted: false, polls, grown_at: 0 }
    }

    /// True if the program moves its data itself: it has polled since the last look (`polled`), or that was so short a
    /// time ago that nothing can be said (a doorbell may have woken us).
    fn at_work(&self, polled: bool, now: u64) -> bool {
        polled || now.saturating_sub(self.grown_at) < PAUSE
    }

    /// When to look again at a program that is at work. `seldom`: the clock was read longer than [`PAUSE`] ago, and
    /// nobody was in the library. `parked`: something waits for room in a window, for which peers ring nobody who
    /// polls.
    fn next(&mut self, polls: u64, now: u64, seldom: bool, parked: bool) -> u64 {
        if polls == self.polls {
            return self.grown_at + PAUSE;
        }
        (self.polls, self.grown_at) = (polls, now);
        // Not twice in a row: who has polled since the first look polls seldom, and need not be looked at more often.
        self.doubted = seldom && !self.doubted;
        if self.doubted {
            return now + PAUSE;
        }
        self.tick = if parked { TICK_PARKED } else { (self.tick * 2).min(TICK_MAX) };
        now + self.tick
    }
}

impl Nic {
    /// Makes the NIC thread, which waits for its adapter; it ends if there will be none.
    ///
    /// # Errors
    /// EMFILE, EAGAIN: no more descriptors or threads.
    pub(crate) fn prepare(&self) -> Result<SyncSender<&'static Nic>> {
        // A duplicate, because the platform itself is behind the lock.
        let epoll =
            rustix::io::fcntl_dupfd_cloexec(self.core.lock().engine.env().epoll_fd(), 0).map_err(crate::errno)?;
        let (adapter, given) = sync_channel::<&'static Nic>(1);
        thread::spawn("softrnic", move || {
            if let Ok(nic) = given.recv() {
                nic.thread(epoll.as_fd());
            }
        })?;
        Ok(adapter)
    }

    /// Lets the NIC thread begin.
    pub(crate) fn start(&'static self, thread: &SyncSender<&'static Nic>) {
        // There is room for one, and the thread waits for it.
        self.core.lock().thread_runs = thread.send(self).is_ok();
    }

    /// Makes the NIC thread look now.
    pub(crate) fn wake_thread(&self, core: &mut Core) {
        if core.thread_runs && !core.thread_woken {
            core.thread_woken = true;
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// The NIC thread must not sleep past the next deadline, nor on packets that we sent to ourselves. In polled mode
    /// it wakes by itself often enough.
    pub(crate) fn mind_deadline(&self, core: &mut Core) {
        if !core.incidents.is_empty() {
            self.wake_thread(core);
        }
        if core.engine.env().has_orders() {
            self.wake_thread(core); // what a fault has ordered just now, behind `flush`
        }
        if core.engine.has_ready() {
            // More than one turn's work: if no poll continues it, the thread must.
            self.wake_thread(core);
        }
        if core.mode == Mode::Polled && core.engine.is_parked() && core.thread_wakes_at > core.clock + 2 * TICK_PARKED {
            self.wake_thread(core); // who does not poll now, but computes, has what he posted go on all the same
        }
        if core.mode == Mode::Armed && core.engine.env_mut().peek(LinkId::LOOPBACK).is_some() {
            self.wake_thread(core); // what goes to this process itself rings no doorbell
        }
        if core.mode == Mode::Armed
            && let Some(at) = core.next_deadline()
            && at < core.thread_wakes_at
        {
            core.thread_wakes_at = at;
            self.wake_thread(core);
        }
    }

    fn thread(&'static self, epoll: rustix::fd::BorrowedFd<'_>) {
        let mut poll_check = PollCheck::at_rest(0);
        let mut watch = IdleMonitor::default();
        while self.alive.load(Ordering::Relaxed) {
            let at_once = self.core.try_lock();
            let waited = at_once.is_none();
            let Some(core) = at_once.or_else(|| self.core.try_lock_for(LOCK_PATIENCE)) else {
                // A thread of the program is in the middle of something, perhaps for ever; who asks why shall hear of
                // it.
                self.answer_doctor();
                continue;
            };
            let incidents;
            let (mut watches, mut busy) = (false, false);
            let timeout = {
                let mut core = Guard::new(self, core);
                core.thread_woken = false;
                let last = core.clock;
                let now = core.read_time();
                core.engine.env_mut().handle_events(now);
                if core.mode == Mode::Polled && poll_check.at_work(core.polls_since(poll_check.polls), now) {
                    // The program is at work. It moves its own data.
                    busy = true;
                    let seldom = !waited && now.saturating_sub(last) > PAUSE;
                    let due = core.next_deadline().is_some_and(|at| at <= now);
                    // A program that polls may look at that much later.
                    if due || core.engine.env().has_ending_links() {
                        core.progress(now);
                    }
                    core.thread_wakes_at = poll_check.next(core.polls, now, seldom, core.engine.is_parked());
                } else {
                    poll_check = PollCheck::at_rest(core.polls);
                    let served = core.engine.served();
                    core.progress(now);
                    let served = core.engine.served().wrapping_sub(served);
                    if watch.begins(now, served) {
                        core.mode = Mode::Polled;
                        core.engine.env_mut().suppress_doorbells();
                        watches = true;
                    }
                    let quiet = !watches && core.go_armed(now);
                    let half_open = core.engine.env().deadline().unwrap_or(u64::MAX);
                    core.thread_wakes_at = if quiet && !core.engine.has_ready() {
                        core.next_deadline().unwrap_or(u64::MAX).min(half_open)
                    } else {
                        now
                    };
                }
                incidents = std::mem::take(&mut core.incidents);
                core.thread_wakes_at
            };
            for incident in incidents {
                self.attend(incident);
            }
            if busy {
                // Not earlier: it may take a while, and only who polls takes the lock so often that it matters.
                biased::permit();
            }
            if watches {
                self.watch(&mut watch, poll_check.polls);
            }
            self.sleep(epoll, timeout);
            self.answer_doctor();
        }
    }

    fn sleep(&self, epoll: rustix::fd::BorrowedFd<'_>, until: u64) {
        // The third, once the device is open: somebody asks for a report. Not looked at just after an answer.
        let not_before = self.doctor_not_before();
        let asked = self.doctor_socket().filter(|_| not_before.is_none());
        let until = not_before.map_or(until, |at| until.min(at));
        let mut fds = [
            PollFd::from_borrowed_fd(epoll, PollFlags::IN),
            PollFd::new(&self.wake, PollFlags::IN),
            PollFd::from_borrowed_fd(asked.unwrap_or(self.wake.as_fd()), PollFlags::IN),
        ];
        let limit = (until != u64::MAX).then(|| {
            let wait = until.saturating_sub(now());
            Timespec { tv_sec: (wait / 1_000_000_000) as i64, tv_nsec: (wait % 1_000_000_000) as i64 }
        });
        let _ = rustix::event::poll(&mut fds, limit.as_ref());
        if fds[1].revents().contains(PollFlags::IN) {
            let mut count = [0u8; 8];
            let _ = rustix::io::read(&self.wake, &mut count);
        }
    }
}

#[cfg(test)]
#[path = "poll_tests.rs"]
mod poll_tests;
#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
