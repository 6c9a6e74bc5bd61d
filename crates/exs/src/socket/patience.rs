//! How long a thread that waits looks at the wire itself before it sleeps.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::queue::WaitMode;

/// The time for which a thread that waits looks at the wire itself, and nothing comes, before it sleeps.
const SHORT: Duration = Duration::from_micros(150);
/// That time where the last sleep was too short to be worth the wake-up at its end. Before anything comes, the time of
/// a large transfer is on top of it, up to [`LONGEST`]: a wake-up after that is a small part of the transfer.
const LONG: Duration = Duration::from_micros(500);
const LONGEST: Duration = Duration::from_micros(2_500);
/// Bytes that are copied in a nanosecond, about, where both processes share memory.
const BYTES_A_NANOSECOND: u64 = 8;
const NOTIFY: u8 = WaitMode::Notify as u8;
const BUSY_POLL: u8 = WaitMode::BusyPoll as u8;

/// How the threads wait that take events from a queue.
pub(super) struct Patience {
    /// A [`WaitMode`].
    mode: AtomicU8,
    /// The last wait that became a sleep was over within [`Patience::long`]. A hint: any thread writes it.
    patient: AtomicBool,
    /// The bytes of the last operation, or of a larger one before it, of which each one behind it has taken half. A
    /// hint, too.
    bytes: AtomicU64,
}

impl Patience {
    pub fn new() -> Patience {
        let mode = AtomicU8::new(WaitMode::default() as u8);
        Patience { mode, patient: AtomicBool::new(false), bytes: AtomicU64::new(0) }
    }

    pub fn set_mode(&self, mode: WaitMode) {
        self.mode.store(mode as u8, Ordering::Relaxed);
    }

    /// An operation has moved so many bytes. A large one counts half with each of those behind it, which may be of the
    /// other direction. What was asked for is no measure: the buffer of a receive may be far larger than what comes.
    #[inline]
    pub fn moved(&self, bytes: u64) {
        let before = self.bytes.load(Ordering::Relaxed);
        if bytes != before {
            self.bytes.store(bytes.max(before / 2), Ordering::Relaxed);
        }
    }

    /// The longest wait that should not become a sleep.
    fn long(&self) -> Duration {
        LONGEST.min(LONG + Duration::from_nanos(self.bytes.load(Ordering::Relaxed) / BYTES_A_NANOSECOND))
    }

    /// See [`Look::quiet`].
    pub fn quiet(&self) -> Option<Duration> {
        match self.mode.load(Ordering::Relaxed) {
            NOTIFY => Some(Duration::ZERO),
            BUSY_POLL => None,
            _ if self.patient.load(Ordering::Relaxed) => Some(self.long()),
            _ => Some(SHORT),
        }
    }

    /// A wait of this time became a sleep, and had what it was for.
    pub fn slept(&self, waited: Duration) {
        self.patient.store(waited < self.long(), Ordering::Relaxed);
    }

    /// A wait has ended without what it was for: a look that is longer would have been in vain, too.
    pub fn in_vain(&self) {
        self.patient.store(false, Ordering::Relaxed);
    }
}

/// How long a thread looks at the wire itself before it sleeps.
#[derive(Clone, Copy)]
pub(super) struct Look {
    /// The time in which nothing comes, and no more than [`LONG`] once something has. A large transfer brings a
    /// completion for each of its pieces, so a thread that waits for its end would sleep, and be woken, between the
    /// pieces. None: it does not sleep.
    pub quiet: Option<Duration>,
    /// The time in all, if it has an end.
    pub all: Option<Duration>,
}

impl Look {
    /// True if a thread does not look again.
    pub fn is_none(self) -> bool {
        self.quiet == Some(Duration::ZERO) || self.all == Some(Duration::ZERO)
    }

    /// True if the time is over, of a look that began at `began`, and to which something came last at `came`; that is
    /// `began` if nothing came.
    pub fn is_over(self, began: Instant, came: Instant, now: Instant) -> bool {
        let is_quiet = |quiet: Duration| now - began >= quiet && now - came >= quiet.min(LONG);
        self.quiet.is_some_and(is_quiet) || self.all.is_some_and(|all| now - began >= all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_nanos(1);

    #[test]
    fn a_thread_looks_longer_after_a_sleep_that_was_short() {
        let patience = Patience::new();
        assert_eq!(patience.quiet(), Some(SHORT));
        patience.slept(LONG - LEAST);
        assert_eq!(patience.quiet(), Some(LONG));
        patience.set_mode(WaitMode::Notify);
        assert_eq!(patience.quiet(), Some(Duration::ZERO), "the program has said how it waits");
        patience.set_mode(WaitMode::Adaptive);
        patience.slept(LONG);
        assert_eq!(patience.quiet(), Some(SHORT));
        patience.slept(SHORT);
        patience.in_vain();
        assert_eq!(patience.quiet(), Some(SHORT));
    }

    #[test]
    fn a_thread_looks_as_long_as_a_large_transfer_takes() {
        let patience = Patience::new();
        patience.moved(8_000_000);
        patience.slept(LONG + Duration::from_millis(1) - LEAST);
        assert_eq!(patience.quiet(), Some(LONG + Duration::from_millis(1)));
        // A short answer is to come.
        patience.moved(8);
        assert_eq!(patience.quiet(), Some(LONG + Duration::from_micros(500)));
        (0..40).for_each(|_| patience.moved(8));
        assert_eq!(patience.quiet(), Some(LONG + LEAST));
        patience.moved(u64::MAX);
        assert_eq!(patience.quiet(), Some(LONGEST));
        patience.slept(LONGEST);
        assert_eq!(patience.quiet(), Some(SHORT));
    }

    #[test]
    fn a_thread_looks_on_while_something_comes() {
        let began = Instant::now();
        let after = |shorts: u32| began + SHORT * shorts;
        let adaptive = Look { quiet: Some(SHORT), all: None };
        assert!(adaptive.is_over(began, began, after(1)));
        assert!(!adaptive.is_over(began, after(9), after(9)) && adaptive.is_over(began, after(9), after(10)));
        let large = Look { quiet: Some(LONG * 3), all: None };
        assert!(!large.is_over(began, began, began + LONG * 2) && large.is_over(began, began, began + LONG * 3));
        let came = began + LONG * 5;
        assert!(!large.is_over(began, came, came + LONG - LEAST) && large.is_over(began, came, came + LONG));
        let busy = Look { quiet: None, all: None };
        assert!(!busy.is_over(began, began, after(1000)));
        let notify = Look { quiet: Some(Duration::ZERO), all: None };
        assert!(notify.is_none() && notify.is_over(began, began, began));
    }

    #[test]
    fn what_comes_does_not_make_a_limited_wait_longer() {
        let began = Instant::now();
        let after = |shorts: u32| began + SHORT * shorts;
        for quiet in [None, Some(SHORT)] {
            let look = Look { quiet, all: Some(SHORT * 3) };
            assert!(!look.is_over(began, after(2), after(2)) && look.is_over(began, after(3), after(3)));
            let none = Look { quiet, all: Some(Duration::ZERO) };
            assert!(none.is_none() && none.is_over(began, began, began));
        }
    }
}
