//! The division of work between threads: a program that polls moves data itself, on its own core; otherwise the NIC
//! thread does.
//!
//! There are two modes. *Polled*: peers do not ring the doorbell. The NIC thread checks at growing intervals (at most
//! [`TICK_MAX`], or [`TICK_CALM`]) whether the program still polls, and takes over when it does not. *Armed*: the links
//! say that this process sleeps, peers ring, and the NIC thread sleeps on the doorbell without limit: an idle program
//! uses no processor time. The NIC thread stays awake a little longer for peers that need it again and again
//! ([`crate::idle_monitor`]). `ibv_req_notify_cq` arms at once. A poll after which no completion can be expected arms,
//! too, now and then ([`ARM_PAUSE`]): peers may still read and write registered memory then, and must find a thread
//! awake.

use std::sync::atomic::Ordering;

use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use ::verbs::{CqId, Result};
use memory::biased;
use rustix::fd::AsFd;
use wire::prelude::*;
use wire::{LinkId, Packet};

use crate::core::{Core, Guard, Mode};
use crate::fast_poll::Finds;
use crate::idle_monitor::IdleMonitor;
use crate::sleep::Sleeper;
use crate::{Nic, now, thread};

/// Polls in armed mode before polled mode begins: a loop of events polls once or twice per event and should not pay for
/// the change. Polls that find completions count where the program waits for no events.
const POLLS_BEFORE_POLLED: u32 = 16;
/// Polls in armed mode after which a program that has once asked for an event no longer counts as one that waits for
/// events: most programs poll less often per event.
const POLLS_UNASKED: u32 = 64;
/// Shortest time, in nanoseconds, between two checks of the NIC thread in polled mode; the longest stands below.
const TICK_MIN: u64 = 100_000;
const TICK_MAX: u64 = 1_000_000;
/// The longest such time, in nanoseconds, behind [`CALM`] checks in a row that have found a program which does nothing
/// but poll and copy: a check takes a virtual processor up to 40 us of its time, and another one as well that copies.
const TICK_CALM: u64 = 4_000_000;
/// The number of those checks.
const CALM: u32 = 8;
/// So many polls since the last check are those of a program that does nothing else; so is a thread of it that holds
/// the lock at the time of a check.
const ALL_THE_TIME: u64 = 512;
/// The longest such time while a request waits for room in a window, in nanoseconds.
const TICK_PARKED: u64 = 200_000;
/// The shortest time, in nanoseconds, between two armings that the program did not ask for: each costs a few
/// microseconds, and the polls until armed mode is over. While a program computes for longer than that between its
/// messages, the NIC thread serves its peers.
const ARM_PAUSE: u64 = TICK_MAX;
/// The age of the last reading of the clock, in nanoseconds, that shows that a program polls seldom, or does something
/// else between bursts of polls, so that its peers wait. A program that polls all the time reads the clock far more
/// often ([`crate::adaptive_interval`]). The NIC thread checks again as long after the first check to make sure.
const PAUSE: u64 = 50_000;
/// Empty polls in a row before a poller offers its processor to other threads, and how often it does so from then on.
/// The first offer comes later than any round trip on an idle machine takes, because an offer costs a system call.
const POLLS_BEFORE_YIELD: u32 = 1024;
const YIELD_EVERY: u32 = 128;
/// How often arming takes in packets that came in the meantime before it leaves them to the NIC thread.
const ARM_ROUNDS: u32 = 8;
/// How many checks in a row the NIC thread leaves out because a thread of the program holds the lock at that moment.
const PASSED_OVER: u32 = 8;
/// How long the NIC thread waits for the lock before it checks whether a report is asked for.
pub(crate) const LOCK_PATIENCE: Duration = Duration::from_millis(200);
/// The rounds in which a full link is emptied; a ring has room for fewer packets than that.
const TAKE_IN_ROUNDS: u32 = 256;
/// How often a turn takes in what queues with tasks have sent to this process itself. A message takes a round for each
/// replica, and its acknowledgement another one.
const CHAIN_ROUNDS: u32 = 32;
/// Packets taken from one link in one turn, so that one busy peer does not starve the others.
pub(crate) const BUDGET: u32 = 64;

/// The link that a poll looks at first: the one over which the last packet came, since the next mostly comes there,
/// too. A program that always finds there all that it wants would hardly come to the other links, so another one is
/// first after [`BUDGET`] polls.
#[derive(Debug, Default)]
pub(crate) struct RoundRobin {
    /// The link's index.
    link: usize,
    /// The number of polls in a row that found there all that they wanted.
    polls: u32,
}

impl RoundRobin {
    /// The index of the first link, of `links` many.
    #[inline]
    pub(crate) fn first(&mut self, links: usize) -> usize {
        if self.polls >= BUDGET || self.link >= links {
            self.polls = 0;
            self.link = if self.link + 1 < links { self.link + 1 } else { 0 };
        }
        self.link
    }

    /// Make another link the first one next time.
    #[inline]
    pub(crate) fn next_is_anothers(&mut self) {
        self.polls = BUDGET;
    }

    /// Note that a poll found on this link all that it wanted.
    #[inline]
    pub(crate) fn took(&mut self, at: usize) {
        if at != self.link {
            *self = RoundRobin { link: at, polls: 0 };
        }
        self.polls += 1;
    }
}

impl Core {
    /// Note that a poll found nothing. True if the poller should offer its processor to other threads.
    #[inline]
    pub(crate) fn found_nothing(&mut self) -> bool {
        self.empty_polls = self.empty_polls.saturating_add(1);
        self.empty_polls >= POLLS_BEFORE_YIELD && self.empty_polls.is_multiple_of(YIELD_EVERY)
    }

    /// Ring the doorbells that senders have left to a poll with nothing else to do.
    ///
    /// In polled mode a peer that is seen to sleep is rung at once. A peer that was falling asleep at that moment is
    /// found only behind a fence, which takes as long as writing all of the message. A program that waits for an answer
    /// has time for the fence, and one fence serves many messages that follow one another. A program that neither polls
    /// nor sends any more leaves the fence to the NIC thread's next check. That comes within [`TICK_CALM`], if nothing
    /// delays that thread, and concerns only a peer that fell asleep at the very moment of the message.
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

    /// The work of a poll that finds no completions. A look at each link costs one load. All else that could have
    /// happened (deaths, deadlines, room on a full link) is checked now and then, since reading the clock costs more
    /// than that. The poll stops as soon as it has its completions, and leaves the packets behind them to the next.
    #[inline(always)]
    pub(crate) fn poll_slow(&mut self, cq: CqId, wanted: usize, finds: Finds) {
        let thorough = self.polls >= self.full_check_at;
        if thorough {
            self.clock_uses = 0;
        } else if finds != Finds::Nothing
            && !self.engine.env().any_ready()
            && !self.engine.has_ready()
            && self.streams.is_empty()
        {
            return;
        }
        let mut now = self.time();
        if thorough {
            let adaptive_interval = u64::from(self.check_interval.next(now));
            // A process that may follow in a cooperative copy must see the offer soon.
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

    /// Take packets from the links until this queue has so many completions.
    #[inline(always)]
    fn take_packets(&mut self, now: &mut u64, until: Option<(CqId, usize)>) {
        let mut packet = Packet::NONE;
        // A poll for one completion mostly gets it with the next packet: waiting for others would save no
        // acknowledgement.
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
            // The poll has not found all that it wanted, but the next packet mostly comes there, too: the fast path
            // looks at no other link.
            self.round_robin.took(at);
        }
    }

    /// Take in the packets that have come, run what they set free, and let time pass.
    #[inline(never)]
    pub(crate) fn progress(&mut self, mut now: u64) {
        self.ring_kept();
        self.engine.env_mut().pass(now);
        self.take_packets(&mut now, None);
        if !self.streams.is_empty() {
            self.serve_streams(now);
        }
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
        self.go_along_chains(&mut now);
    }

    /// Take in what queues with tasks have sent to queue pairs of this process: a chain of replicas in one process is
    /// gone along in one turn.
    fn go_along_chains(&mut self, now: &mut u64) {
        for _ in 0..CHAIN_ROUNDS {
            let goes_on = self.engine.has_begun_tasks() && !self.engine.burst_exhausted();
            if !goes_on || self.engine.env_mut().peek(LinkId::LOOPBACK).is_none() {
                break;
            }
            self.take_packets(now, None);
            self.flush();
        }
    }

    /// Take in all packets that have come until now. The call does not wait for peers that go on sending.
    pub(crate) fn take_in(&mut self) {
        for _ in 0..TAKE_IN_ROUNDS {
            let now = self.read_time();
            self.progress(now);
            if !self.engine.env().any_ready() {
                break;
            }
        }
    }

    /// Note a poll that finds completions. True if the program polls while peers ring for it, and does not wait for
    /// events. Then such polls show that as well: it may be the NIC thread that brings the completions, and both
    /// threads would go on at one another's cost.
    #[inline]
    pub(crate) fn only_polls(&mut self) -> bool {
        self.mode == Mode::Armed && !self.may_await_events()
    }

    /// True if the program may be waiting for events. A program that polls again and again without asking for an event
    /// does not, unless one that was asked for has not come yet: then another thread may sleep until it does.
    fn may_await_events(&mut self) -> bool {
        if self.awaits_events {
            self.polls_unasked += 1;
            if self.polls_unasked >= POLLS_UNASKED {
                let asked = self.channels.keys().any(|&cq| self.engine.cq_is_armed(cq));
                self.await_events(asked);
                // This holds even if one thread does wait: the polling thread is awake, and moves the data.
                self.engine.env_mut().set_awaits_events(false);
            }
        }
        self.awaits_events
    }

    /// Note that the program has asked for an event, or cannot be waiting for one.
    pub(crate) fn await_events(&mut self, may: bool) {
        self.polls_unasked = 0;
        self.awaits_events = may;
        self.engine.env_mut().set_awaits_events(may);
    }

    /// True if the program has polled since its count was `polls`. A program that may wait for events must have polled
    /// several times: it polls once or twice, and then sleeps without arming anew if it has armed before.
    pub(crate) fn polls_since(&self, polls: u64) -> bool {
        let few = if self.awaits_events { u64::from(POLLS_BEFORE_POLLED) } else { 1 };
        self.polls.wrapping_sub(polls) >= few
    }

    /// Note that the program polls: it has found nothing, or it does nothing else ([`Core::only_polls`]).
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

    /// Note that completions were taken. If no more can come, the program will not poll for its peers' sake, so this
    /// arms. It does not do so again and again: a program that sends at such a rate polls again soon, and if it does
    /// not, the NIC thread finds out at its second turn, within [`TICK_CALM`] and [`TICK_MAX`].
    pub(crate) fn after_completions(&mut self, nic: &Nic) {
        if self.mode == Mode::Polled && self.clock >= self.arm_not_before && !self.engine.expects_completions() {
            self.arm_for(nic);
            self.arm_not_before = self.clock + ARM_PAUSE;
        }
    }

    /// Arm, on a thread of the program.
    pub(crate) fn arm_for(&mut self, nic: &Nic) {
        let now = self.read_time();
        self.polls_armed = 0;
        if !self.go_armed(now) {
            nic.wake_thread(self);
        }
    }

    /// Enter armed mode, in which peers ring: announce sleep, and take in the packets that came before the peers could
    /// know.
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
            self.ring_kept();
            self.engine.run(now); // forgets links that were full and that no request waits for
            self.progress(now);
            now = self.read_time();
        }
        false
    }
}

/// The NIC thread's view of the program's polls in polled mode, and the time of its next check.
struct PollCheck {
    tick: u64,
    /// True if the last check left open whether the program is at work at all.
    doubted: bool,
    /// The program's count of polls at the last check.
    polls: u64,
    /// The time at which that count was last found to have grown.
    grown_at: u64,
    /// The checks that may be left out before the next one; 0: the program was not at work at the last one.
    spare: u32,
    /// The checks in a row that have found the program at nothing else.
    calm: u32,
}

impl PollCheck {
    /// The view of a program that has polled `polls` times, and does not now.
    fn at_rest(polls: u64) -> Self {
        PollCheck { tick: TICK_MIN, doubted: false, polls, grown_at: 0, spare: 0, calm: 0 }
    }

    /// True if the program moves its data itself: it has polled since the last check (`polled`), or that check was so
    /// short a time ago that its silence tells nothing (a doorbell may have woken this thread).
    fn at_work(&self, polled: bool, now: u64) -> bool {
        polled || now.saturating_sub(self.grown_at) < PAUSE
    }

    /// The time of the next check of a program that is at work. `seldom`: the clock was read longer than [`PAUSE`]
    /// before this one was due, and no thread was in the library. `parked`: a request waits for room in a window, for
    /// which peers do not ring a process that polls, or there are TCP connections, of which this thread hears nothing
    /// while the program polls.
    fn next(&mut self, polls: u64, now: u64, seldom: bool, parked: bool) -> u64 {
        if polls == self.polls {
            return self.grown_at + PAUSE;
        }
        // While checks come seldom, the next one that is not left out comes as soon as before.
        let spare = if self.calm < CALM { PASSED_OVER } else { 1 };
        (self.polls, self.grown_at, self.spare) = (polls, now, spare);
        // Never twice in a row: a program that has polled since the first check polls seldom, and needs no closer
        // check.
        self.doubted = seldom && !self.doubted;
        if self.doubted {
            return now + PAUSE;
        }
        self.tick = if parked { TICK_PARKED } else { (self.tick * 2).min(TICK_MAX) };
        if parked {
            self.calm = 0;
        }
        self.due(now)
    }

    /// True if a check is left out for which only the timer has woken this thread, while another thread holds the lock.
    fn passes_over(&mut self, only_timer: bool) -> bool {
        let passes = only_timer && self.spare > 0;
        self.spare -= u32::from(passes);
        self.calm += u32::from(passes);
        passes
    }

    /// Note whether a check that is made has found the program at nothing but polls and copies.
    fn found_at_nothing_else(&mut self, polls: u64, held: bool) {
        let all = held || polls.wrapping_sub(self.polls) >= ALL_THE_TIME;
        self.calm = if all { self.calm.saturating_add(1) } else { 0 };
    }

    /// The time of a check after a tick.
    fn due(&self, now: u64) -> u64 {
        if self.tick < TICK_MAX {
            return now + self.tick;
        }
        // The nearest whole one, for all threads of a host: then a processor has one interrupt for all of them, which
        // costs a virtual one tens of microseconds.
        let tick = if self.calm < CALM { TICK_MAX } else { TICK_CALM };
        let next = now + tick + tick / 2;
        next - next % tick
    }
}

impl Nic {
    /// Make the NIC thread, which waits for its adapter. The thread ends if there will be none.
    ///
    /// # Errors
    /// EMFILE, EAGAIN: no more descriptors or threads.
    pub(crate) fn prepare(&self) -> Result<SyncSender<&'static Nic>> {
        // The environment itself is behind the lock.
        let epoll = self.core.lock().engine.env().epoll_fd().clone();
        self.hear_wakes(epoll.as_fd())?;
        let (adapter, given) = sync_channel::<&'static Nic>(1);
        thread::spawn("softrnic", move || {
            if let Ok(nic) = given.recv() {
                nic.thread(epoll.as_fd());
            }
        })?;
        Ok(adapter)
    }

    /// Let the NIC thread begin.
    pub(crate) fn start(&'static self, thread: &SyncSender<&'static Nic>) {
        // One hold of the lock for both: the thread's first turn comes behind it. A thread of the program that changed
        // the mode or a deadline between that turn and the store would not wake the NIC thread, which sleeps without
        // limit. The channel has room for one, so that the send does not wait.
        let mut core = self.core.lock();
        core.thread_runs = thread.send(self).is_ok();
    }

    /// Make the NIC thread run its loop now.
    pub(crate) fn wake_thread(&self, core: &mut Core) {
        if core.thread_runs && !core.thread_woken {
            core.thread_woken = true;
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Wake the NIC thread if it would sleep past the next deadline, or on packets that this process sent to itself. In
    /// polled mode it wakes by itself often enough.
    pub(crate) fn mind_deadline(&self, core: &mut Core) {
        if !core.incidents.is_empty() {
            self.wake_thread(core);
        }
        if core.engine.env().has_orders() {
            self.wake_thread(core); // a fault has ordered something just now, behind `flush`
        }
        if core.engine.has_ready() {
            // This is more than one turn's work: if no poll continues it, the thread must.
            self.wake_thread(core);
        }
        if core.mode == Mode::Polled && core.engine.is_parked() && core.thread_wakes_at > core.clock + 2 * TICK_PARKED {
            self.wake_thread(core); // requests go on also while the program computes and does not poll
        }
        if core.mode == Mode::Armed && core.engine.env_mut().peek(LinkId::LOOPBACK).is_some() {
            self.wake_thread(core); // a packet to this process itself rings no doorbell
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
        let mut sleeper = Sleeper::default();
        while self.alive.load(Ordering::Relaxed) {
            let at_once = self.core.try_lock();
            let waited = at_once.is_none();
            // A thread that holds the lock now is at work, which is all that this check would find out. To wait for it
            // would take the lock from it until this thread has a processor.
            if waited && poll_check.passes_over(sleeper.events.only_timer()) {
                let asked = self.sleep(&mut sleeper, epoll, None, poll_check.due(now()));
                self.answer_doctor(asked);
                continue;
            }
            let Some(core) = at_once.or_else(|| self.core.try_lock_for(LOCK_PATIENCE)) else {
                // A thread of the program holds the lock for long, perhaps for ever; a report must show that to a
                // process that asks.
                self.answer_doctor(true);
                continue;
            };
            let (incidents, streams);
            let (mut watches, mut busy) = (false, false);
            let timeout = {
                let mut core = Guard::new(self, core);
                debug_assert!(core.thread_runs);
                core.thread_woken = false;
                let last = core.clock;
                let now = core.read_time();
                poll_check.found_at_nothing_else(core.polls, waited);
                core.engine.env_mut().handle_events_of(&mut sleeper.events, now);
                if core.mode == Mode::Polled && poll_check.at_work(core.polls_since(poll_check.polls), now) {
                    // The program is at work. It moves its own data.
                    busy = true;
                    // This thread may have taken the processor from the program at the time of the check.
                    let woken = now.min(core.thread_wakes_at);
                    let seldom = !waited && woken.saturating_sub(last) > PAUSE;
                    let due = core.next_deadline().is_some_and(|at| at <= now);
                    // A program that polls may check that much later.
                    if due || core.engine.env().has_ending_links() {
                        core.progress(now);
                    }
                    // Bytes of TCP wait for this thread, as a parked request does, if the program stops polling.
                    let waited_for = core.engine.is_parked() || !core.streams.is_empty();
                    core.thread_wakes_at = poll_check.next(core.polls, now, seldom, waited_for);
                } else {
                    poll_check = PollCheck::at_rest(core.polls);
                    let served = core.engine.served();
                    core.progress(now);
                    let served = core.engine.served().wrapping_sub(served);
                    // The watch is for rings: the system tells of bytes of TCP.
                    if core.streams.is_empty() && watch.begins(now, served) {
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
                streams = core.streams.epoll().filter(|_| core.mode == Mode::Armed);
                core.thread_wakes_at
            };
            for incident in incidents {
                self.attend(incident);
            }
            if busy {
                // Not earlier: it may take a while, and only a thread that polls takes the lock so often that it
                // matters.
                biased::permit();
            }
            if watches {
                self.watch(&mut watch, poll_check.polls);
            }
            let asked = self.sleep(&mut sleeper, epoll, streams, timeout);
            self.answer_doctor(asked);
        }
    }
}

#[cfg(test)]
#[path = "poll_tests.rs"]
mod poll_tests;
#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
