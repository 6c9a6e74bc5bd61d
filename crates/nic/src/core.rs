//! The state that the adapter's lock protects.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ::verbs::{CqId, CtxId};
use engine::{Engine, Notice};
use memory::biased::MutexGuard;
use taps::Tapped;
use taps::fault::spec::DeviceFault;
use window::{Unquiet, WindowEnv};
use wire::LinkId;
use wire::prelude::*;

use crate::adaptive_interval::AdaptiveInterval;
use crate::channel::CompChannel;
use crate::context::ContextQueue;
use crate::migrate::Migration;
use crate::progress::RoundRobin;
use crate::rings::Rings;
use crate::streams::{Ends, Streams};
use crate::{Nic, now};

/// The wire under the engine.
pub(crate) type Wire = Tapped<WindowEnv>;

/// The thread that moves data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// The program polls: peers need not ring, and the NIC thread only checks now and then whether the program still
    /// polls.
    Polled,
    /// No thread polls: the NIC thread sleeps on the doorbell.
    Armed,
}

/// The engine and the state that the adapter keeps beside it.
pub struct Core {
    pub(crate) engine: Engine<Wire>,
    pub(crate) channels: HashMap<CqId, Arc<CompChannel>>,
    pub(crate) contexts: HashMap<CtxId, Arc<ContextQueue>>,
    pub(crate) mode: Mode,
    /// The number of calls of poll so far.
    pub(crate) polls: u64,
    /// The count of polls at which a poll that finds nothing checks everything.
    pub(crate) full_check_at: u64,
    pub(crate) check_interval: AdaptiveInterval,
    /// The time before which the adapter is not armed for the only reason that no completion is expected.
    pub(crate) arm_not_before: u64,
    /// The polls that count towards the next change to polled mode.
    pub(crate) polls_armed: u32,
    /// True if the program may be waiting for completion events: it has asked for one, and since then it has not both
    /// got it and polled often.
    pub(crate) awaits_events: bool,
    /// The polls in armed mode since the program asked for an event.
    pub(crate) polls_unasked: u32,
    /// The polls in a row that found nothing.
    pub(crate) empty_polls: u32,
    pub(crate) round_robin: RoundRobin,
    /// When the NIC thread will wake by itself; `u64::MAX`: only when it is woken.
    pub(crate) thread_wakes_at: u64,
    /// True if the NIC thread was woken and has not run yet.
    pub(crate) thread_woken: bool,
    pub(crate) thread_runs: bool,
    pub(crate) migration: Migration,
    /// The TCP connections of iWARP.
    pub(crate) streams: Streams,
    /// The list of their ends.
    pub(crate) ends: Option<Arc<Ends>>,
    notices: Vec<Notice>,
    /// Rings that wait for the release of the lock.
    rings: Rings,
    pub(crate) dead: Vec<(LinkId, Option<LinkId>)>,
    /// Incidents of the device that [`Nic::on_incident`]'s function has not been told yet.
    pub(crate) incidents: Vec<DeviceFault>,
    /// The time as last read.
    pub(crate) clock: u64,
    /// How many times `clock` may be used before the clock is read again; see [`Core::time`].
    pub(crate) clock_uses: u32,
    readings: AdaptiveInterval,
    /// True if the clock was read under this hold of the lock.
    pub(crate) clock_fresh: bool,
    /// True if the program or a capture sees the time of completions or of packets. Then the clock is always read, and
    /// no poll takes the fast path ([`Core::finds`]), which therefore need not ask for taps.
    pub(crate) exact_time: bool,
}

impl Core {
    pub(crate) fn new(engine: Engine<Wire>) -> Self {
        Core {
            engine,
            channels: HashMap::new(),
            contexts: HashMap::new(),
            mode: Mode::Armed,
            polls: 0,
            full_check_at: 0,
            check_interval: AdaptiveInterval::NEW,
            arm_not_before: 0,
            polls_armed: 0,
            awaits_events: false,
            polls_unasked: 0,
            empty_polls: 0,
            round_robin: RoundRobin::default(),
            thread_wakes_at: u64::MAX,
            thread_woken: false,
            thread_runs: false,
            migration: Migration::default(),
            streams: Streams::new(),
            ends: None,
            notices: Vec::new(),
            rings: Rings::default(),
            dead: Vec::new(),
            incidents: Vec::new(),
            clock: 0,
            clock_uses: 0,
            readings: AdaptiveInterval::NEW,
            clock_fresh: false,
            exact_time: false,
        }
    }

    /// The time, or in polled mode a time not long past: a reading is no small part of a post (docs/lab/constants.md).
    /// Timers that were set by a past time are moved at the next reading ([`Engine::catch_up`]), so none expires early.
    /// Only a moderated completion event (`ibv_modify_cq(3)`) may come early by that much.
    #[inline]
    pub fn time(&mut self) -> u64 {
        if self.clock_uses == 0 { self.read_time() } else { self.use_time() }
    }

    #[inline]
    pub(crate) fn use_time(&mut self) -> u64 {
        self.clock_uses -= 1;
        self.clock
    }

    /// Read the clock.
    pub(crate) fn read_time(&mut self) -> u64 {
        let now = now();
        self.note_time(now);
        now
    }

    /// Note that the clock was read.
    pub(crate) fn note_time(&mut self, now: u64) {
        self.engine.catch_up(now.saturating_sub(self.clock));
        self.clock = now;
        // The second reading under one hold of the lock does not count: it tells nothing about the program.
        self.clock_uses = if self.clock_fresh { self.readings.steps() } else { self.readings.next(now) };
        self.clock_fresh = true;
    }

    /// Give completions the time at which they came, to the nanosecond, from now on.
    pub fn want_exact_time(&mut self) {
        self.exact_time = true;
        self.clock_uses = 0;
    }

    /// Hand completions and events to the threads that wait for them.
    fn deliver(&mut self) {
        let mut notices = std::mem::take(&mut self.notices);
        self.engine.take_notices(&mut notices);
        for notice in notices.drain(..) {
            match notice {
                Notice::Completion { cq, user } => {
                    if let Some(channel) = self.channels.get(&cq) {
                        channel.push(cq, user);
                        if !self.rings.keep_channel(channel) {
                            channel.ring();
                        }
                    }
                }
                Notice::Met => {} // `flush` has let the queue go on
                Notice::Broken { qpn, wr_id, status, rule } => {
                    let request = wr_id.map(|id| format!(" wr_id {id:#x}")).unwrap_or_default();
                    report::log(format_args!("QP {:#08x}{request}: {status:?}: {rule}", qpn.get()));
                }
                Notice::Async { ctx, kind, source, user } => {
                    if let Some(queue) = self.contexts.get(&ctx) {
                        queue.push(kind, source, user);
                    }
                }
            }
        }
        self.notices = notices;
    }

    /// True if a hold of the lock has left nothing to be done by [`Core::flush`] and what follows it.
    #[inline]
    pub(crate) fn is_flushed(&self) -> bool {
        self.mode == Mode::Polled
            && !self.clock_fresh
            && !self.engine.has_ready()
            && !self.engine.env().must_ring_now()
            && !self.engine.has_notices()
            && !self.engine.is_parked()
            && self.incidents.is_empty()
            && self.rings.is_empty()
            && !self.engine.env().is_unquiet()
        // Orders of faults need no check here: each has a time, and the clock is always read while there are any
        // ([`Core::want_exact_time`]), so that `clock_fresh` is set.
    }

    /// [`Core::is_flushed`] behind a poll on the fast path, which has checked the other conditions before. A message
    /// that takes a key back may have come by it, whose copies are to be waited for.
    #[inline]
    pub(crate) fn is_flushed_behind_fast_path(&self) -> bool {
        !self.engine.has_ready()
            && !self.engine.env().must_ring_now()
            && !self.engine.has_notices()
            && !self.engine.env().is_unquiet()
    }

    /// Make the rings that wait for the release of the lock: more work under it comes first.
    #[inline]
    pub(crate) fn ring_kept(&mut self) {
        if !self.rings.is_empty() {
            self.rings.ring();
        }
    }

    /// Send the packets that are ready, and report what happened. Threads are woken when the lock is released.
    #[inline(always)]
    pub(crate) fn flush(&mut self) {
        // One acknowledgement is mostly all that there is to send.
        self.engine.acknowledge();
        if self.engine.has_ready() || self.engine.is_parked() || self.engine.has_due() {
            self.ring_kept(); // what runs now may copy for long
            let now = self.time();
            self.engine.run(now);
            self.run_streams(now);
        }
        if self.mode == Mode::Armed || self.clock_fresh || self.engine.env().must_ring_now() {
            let rings = &mut self.rings;
            self.engine.env_mut().ring_doorbells_later(|doorbell| rings.keep_doorbell(doorbell));
        }
        if self.engine.env().has_orders() {
            self.obey();
        }
        if self.engine.has_notices() {
            self.deliver();
        }
    }
}

impl Deref for Core {
    type Target = Engine<Wire>;
    fn deref(&self) -> &Self::Target {
        &self.engine
    }
}

impl DerefMut for Core {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.engine
    }
}

/// The number of pieces of long requests, of its own or of others' requests, that one thread copies in a row before it
/// leaves the rest to a thread that polls and to the NIC thread. The thread releases the lock between any two pieces.
const PIECES: u32 = 16;

/// The adapter's lock, held. Its release runs what was queued and delivers what happened. Afterwards, without the lock,
/// it wakes threads and peers, and waits for peers that copy from or to memory which was deregistered.
pub struct Guard<'a> {
    nic: &'a Nic,
    core: MutexGuard<'a, Core>,
    // This member is dropped behind the lock: members are dropped in their order.
    then: Then<'a>,
}

/// What the release of the lock leaves to be done without it.
enum Then<'a> {
    Nothing,
    Ring { _rings: Rings },
    Wait { _copies: Box<Copies<'a>> },
}

/// The copies of peers that the release of the lock waits for.
struct Copies<'a> {
    nic: &'a Nic,
    under_way: Option<Unquiet>,
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        if let Some(under_way) = self.under_way.take() {
            let in_vain = under_way.wait();
            self.nic.core.lock().engine.env_mut().judge(&in_vain);
        }
    }
}

impl<'a> Guard<'a> {
    #[inline]
    pub(crate) fn new(nic: &'a Nic, mut core: MutexGuard<'a, Core>) -> Self {
        Self::begin(&mut core);
        Self::begun(nic, core)
    }

    /// The lock, whose state [`Guard::begin`] has prepared.
    #[inline]
    pub(crate) fn begun(nic: &'a Nic, core: MutexGuard<'a, Core>) -> Self {
        Guard { nic, core, then: Then::Nothing }
    }

    /// Prepare the state, directly after the lock was taken.
    #[inline]
    pub(crate) fn begin(core: &mut Core) {
        if core.mode == Mode::Armed || core.exact_time {
            core.clock_uses = 0; // one reading for each hold of the lock
        }
        core.clock_fresh = false;
        core.engine.next_hold();
    }
}

impl Deref for Guard<'_> {
    type Target = Core;
    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.core
    }
}

impl Guard<'_> {
    // Not inlined: a release with nothing to flush pays a few comparisons only.
    #[inline(never)]
    fn finish(&mut self) {
        for _ in 0..PIECES {
            let core = &mut *self.core;
            core.flush();
            if core.clock_fresh && core.engine.has_timed() {
                // The clock is read again: this thread may have been stopped between reading the clock and sending the
                // packets that the timers are for, and no timer may expire early (IBTA vol. 1, 9.7.6.1.3).
                core.read_time();
            }
            if !core.engine.is_in_pieces() {
                break;
            }
            // The next piece takes long.
            core.rings.ring();
            // Other threads may do anything in between, also with the request that is under way.
            MutexGuard::bump(&mut self.core);
            Self::begin(&mut self.core);
        }
        let core = &mut *self.core;
        self.nic.mind_deadline(core);
        if core.engine.env().is_unquiet() {
            // Peers that are to be rung must not wait for the copies.
            core.engine.env_mut().ring_doorbells();
            core.rings.ring();
            let copies = Copies { nic: self.nic, under_way: Some(core.engine.env().unquiet()) };
            self.then = Then::Wait { _copies: Box::new(copies) };
        } else if !core.rings.is_empty() {
            self.then = Then::Ring { _rings: std::mem::take(&mut core.rings) };
        }
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.core.is_flushed() {
            self.finish();
        }
    }
}
