//! The NIC thread's watch for a peer that needs this processor again and again.
//!
//! The initiator cannot execute atomics and flushes of a passive target itself, and waking the NIC thread takes many
//! times longer than such a request. A peer that sends a stream of data fills the window while the NIC thread wakes up,
//! and then waits for it.
//!
//! A NIC thread that has served such a request watches for the next, if the last two came close together, or many came
//! at once. It looks at the rings as a program that polls would, for at most [`SPAN`] after the last one; then it
//! sleeps as before. A watch that was in vain, or on whose processor another thread has much to do, is not tried again
//! for a while. So an idle process uses no processor time, and one with few requests at most a fiftieth of a processor.
//!
//! A watch that has served [`MANY_SERVED`] requests has saved as many wake-ups, which take longer than [`LONG_SPAN`].
//! Therefore it looks for that long, and its end in vain is followed by no pause. Otherwise each interruption of the
//! peer, or of this thread, that lasts longer than [`SPAN`] would let the requests of the whole pause need wake-ups. A
//! virtual processor has hundreds of such interruptions in a second.

use std::sync::atomic::Ordering;

use wire::Nanos;

use crate::core::{Guard, Mode};
use crate::{Nic, now};

/// How long the NIC thread waits for the next request, in nanoseconds.
const SPAN: Nanos = 30_000;
/// The number of requests that a watch must serve to have paid for its end in vain, and how long it waits for the next
/// request then, in nanoseconds.
const MANY_SERVED: u64 = 16;
const LONG_SPAN: Nanos = 100_000;
/// How close together two requests must come, in nanoseconds. It is longer than a round trip with a wake-up in it, also
/// of a chain of replicas on a processor that is not idle, or no watch would ever begin.
const CLOSE: Nanos = 2 * SPAN;
/// The number of requests at once that makes a stream. 64 KiB come in as many pieces.
const MANY: u64 = 4;
/// The pause after a watch in vain, in nanoseconds.
const PAUSE: Nanos = 1_500_000;
/// The pause after a watch that kept other threads from this processor, in nanoseconds.
const LONG_PAUSE: Nanos = 20_000_000;
/// The duration of a yield, in nanoseconds, beyond which this processor is shared with a thread that has much to do. It
/// is far longer than a yield alone, interrupts, and the threads of the kernel.
const ALONE: Nanos = 200_000;
/// The duration of a yield, in nanoseconds, beyond which another thread, or an interrupt, has run meanwhile.
const SHARED: Nanos = 1_000;
/// The number of looks between two yields while this processor has nothing else to do.
const ROUNDS_BEFORE_YIELD: u32 = 256;
/// The number of looks in vain between two readings of the clock.
const ROUNDS_BEFORE_CLOCK: u32 = 16;
/// The length of a turn, in nanoseconds. After it the thread checks all else that could have happened, and goes on
/// watching if there is reason to.
const TURN: Nanos = 1_000_000;

/// The state that decides whether to watch.
#[derive(Default)]
pub(crate) struct IdleMonitor {
    /// The time at which the last such request was served.
    last: Option<Nanos>,
    /// The time before which no watch begins.
    not_before: Nanos,
    /// The requests that the watch has served in all its turns.
    served: u64,
    /// It lasts from one watch to the next: the neighbours mostly stay.
    rounds: Rounds,
    /// The time at which the watch ended only for a turn of the thread that checks everything else.
    goes_on_at: Option<Nanos>,
}

impl IdleMonitor {
    /// Note that `served` requests were served ([`engine::Engine::served`]). True if a watch for more is to begin.
    pub fn begins(&mut self, now: Nanos, served: u64) -> bool {
        // It goes on also if no request has come during the thread's turn: most turns are shorter than the time from
        // one request to the next.
        if self.goes_on_at.take().is_some_and(|at| now.saturating_sub(at) <= SPAN) {
            self.last = Some(now);
            self.served += served;
            return true;
        }
        if served == 0 {
            return false;
        }
        let before = self.last.replace(now);
        let close = before.is_some_and(|before| now.saturating_sub(before) <= CLOSE);
        self.served = 0;
        now >= self.not_before && (close || served >= MANY)
    }

    /// How long the watch waits for the next request, in nanoseconds.
    fn span(&self) -> Nanos {
        if self.served >= MANY_SERVED { LONG_SPAN } else { SPAN }
    }

    fn ends(&mut self, how: End, now: Nanos) {
        match how {
            End::Vain if self.served >= MANY_SERVED => {}
            End::Vain => self.not_before = now + PAUSE,
            End::Disturbs => self.not_before = now + LONG_PAUSE,
            End::Turn => self.goes_on_at = Some(now),
            End::Relieved => {}
        }
    }
}

/// The number of looks between two yields.
///
/// The threads that run in one yield after the other mostly have the same kind of work, as the servers of a chain on
/// one processor have. Then each look in vain delays the one whose turn it is, and a message comes no sooner than that
/// one has run. So there is one look between two yields, which takes less time than a peer's wake-up and needs no
/// doorbell. A single long yield is an interrupt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rounds(u32);

impl Default for Rounds {
    fn default() -> Self {
        Rounds(ROUNDS_BEFORE_YIELD)
    }
}

impl Rounds {
    /// The number after a yield of this duration.
    fn after(self, away: Nanos) -> Rounds {
        Rounds(if away > SHARED { (self.0 / 16).max(1) } else { (4 * self.0).min(ROUNDS_BEFORE_YIELD) })
    }

    /// True if others run on this processor, too.
    fn are_shared(self) -> bool {
        self.0 < ROUNDS_BEFORE_YIELD / 16
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// No request came.
    Vain,
    /// Another thread wants this processor.
    Disturbs,
    /// The turn is over.
    Turn,
    /// The program moves its data itself, or has armed the adapter, and the watch was of use before.
    Relieved,
}

impl Nic {
    /// Watch, in polled mode, until the watch ends for a reason of [`End`]. `polls` is the program's count of polls.
    pub(crate) fn watch(&self, watch: &mut IdleMonitor, polls: u64) {
        let how = self.look_out(watch, polls);
        watch.ends(how, now());
    }

    fn look_out(&self, watch: &mut IdleMonitor, polls: u64) -> End {
        let began = now();
        // The watch ends then; after a request, not known before the clock is read.
        let mut until = Some(began + watch.span());
        let over = |until: &mut Option<Nanos>, span: Nanos, now: Nanos| now >= *until.get_or_insert(now + span);
        let (mut looks, mut vain, mut served, mut last) = (0u32, 0u32, false, false);
        let mut until_yield = watch.rounds.0;
        while self.alive.load(Ordering::Relaxed) {
            if until_yield == 0 {
                let before = now();
                std::thread::yield_now();
                let now = now();
                let away = now.saturating_sub(before);
                if away > ALONE {
                    return End::Disturbs;
                }
                if now - began >= TURN {
                    return End::Turn;
                }
                // With few looks between two yields, many looks take longer than a watch. One more look comes first:
                // what others sent in this yield has not been seen yet.
                last = over(&mut until, watch.span(), now);
                watch.rounds = watch.rounds.after(away);
                until_yield = watch.rounds.0;
            }
            until_yield -= 1;
            looks = looks.wrapping_add(1);
            // A thread of the program that holds the lock does this thread's work when it releases it.
            if let Some(mut core) = self.core.try_lock() {
                if core.mode != Mode::Polled || core.polls_since(polls) {
                    return if served { End::Relieved } else { End::Vain };
                }
                let engine = &core.engine;
                let own = || looks.is_multiple_of(ROUNDS_BEFORE_CLOCK) && (engine.has_ready() || engine.is_parked());
                if engine.env().any_ready() || own() {
                    let mut core = Guard::new(self, core);
                    let before = core.engine.served();
                    let now = core.time();
                    core.progress(now);
                    let more = core.engine.served().wrapping_sub(before);
                    if more != 0 {
                        watch.served += more;
                        (vain, served, last, until) = (0, true, false, None);
                        if watch.rounds.are_shared() {
                            until_yield = 0; // what was sent may be for a thread that waits for this processor
                        }
                        continue;
                    }
                } else {
                    core.ring_late();
                }
            }
            vain += 1;
            if last || vain.is_multiple_of(ROUNDS_BEFORE_CLOCK) && over(&mut until, watch.span(), now()) {
                return End::Vain;
            }
            std::hint::spin_loop();
        }
        End::Relieved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_comes_often_is_watched_for() {
        let mut watch = IdleMonitor::default();
        assert!(!watch.begins(1_000_000, 1), "the first one tells nothing");
        assert!(watch.begins(1_000_000 + CLOSE, 1));
        assert!(!watch.begins(2_000_000, 1), "a long time has passed");
        assert!(watch.begins(2_010_000, 1));
        watch.ends(End::Vain, 2_040_000);
        assert!(!watch.begins(2_050_000, 1) && !watch.begins(2_060_000, 1), "not again so soon");
        assert!(!watch.begins(2_040_000 + PAUSE, 1), "and then only if there is reason");
        assert!(watch.begins(2_040_000 + PAUSE + 1, 1));
        watch.ends(End::Disturbs, 5_000_000);
        assert!(!watch.begins(5_000_000 + LONG_PAUSE - 1, 1));
        assert!(watch.begins(5_000_000 + LONG_PAUSE, 1));
    }

    #[test]
    fn yields_are_frequent_while_others_run_in_them() {
        let alone = Rounds::default();
        let once = alone.after(SHARED + 1);
        assert!(!once.are_shared(), "a single one is an interrupt");
        let shared = once.after(SHARED + 1);
        assert!(shared.are_shared());
        assert_eq!(shared, Rounds(1));
        assert_eq!(shared.after(SHARED + 1), shared);
        let free = (0..4).fold(shared, |rounds, _| rounds.after(SHARED));
        assert_eq!((free, free.after(0)), (alone, alone));
    }

    #[test]
    fn a_stream_is_watched_at_once() {
        let mut watch = IdleMonitor::default();
        assert!(!watch.begins(1_000_000, 0) && !watch.begins(1_000_001, MANY - 1));
        let mut watch = IdleMonitor::default();
        assert!(watch.begins(1_000_000, MANY));
        watch.ends(End::Vain, 1_030_000);
        assert!(!watch.begins(1_030_000 + PAUSE - 1, 100) && watch.begins(1_030_000 + PAUSE, MANY));
    }

    #[test]
    fn a_watch_that_is_interrupted_goes_on() {
        let mut watch = IdleMonitor::default();
        watch.begins(1_000_000, 1);
        assert!(watch.begins(1_010_000, 1));
        watch.ends(End::Turn, 2_010_000);
        assert!(watch.begins(2_011_000, 0), "also if no request came meanwhile");
        watch.ends(End::Vain, 2_041_000);
        assert!(!watch.begins(2_042_000, 0) && !watch.begins(2_043_000, 1), "it ends once");
        let mut watch = IdleMonitor::default();
        watch.ends(End::Turn, 2_010_000);
        assert!(!watch.begins(2_010_001 + SPAN, 0), "the program has moved its data meanwhile");
    }

    #[test]
    fn a_watch_that_was_of_use_may_begin_again_at_once() {
        let mut watch = IdleMonitor::default();
        watch.begins(1_000_000, 1);
        assert!(watch.begins(1_010_000, 1));
        assert_eq!(watch.span(), SPAN);
        watch.served += MANY_SERVED - 1;
        watch.ends(End::Turn, 2_010_000);
        assert!(watch.begins(2_011_000, 1));
        assert_eq!(watch.span(), LONG_SPAN, "the requests of all turns count, and of the thread's own turn");
        watch.ends(End::Vain, 2_111_000);
        assert!(!watch.begins(2_120_000, 0) && !watch.begins(2_200_000, 1), "not without a reason");
        assert!(watch.begins(2_201_000, 1), "but without a pause");
        assert_eq!(watch.span(), SPAN, "its own requests count");
        watch.ends(End::Vain, 2_250_000);
        assert!(!watch.begins(2_251_000, MANY_SERVED));
    }
}
