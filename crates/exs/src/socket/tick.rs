//! The times at which the thread of `Exs` looks whether the program still looks.

use std::num::NonZeroU64;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// After so many nanoseconds without a look by the program, the thread serves the wire.
pub(super) const LENGTH: i64 = 1_000_000;

/// Have this thread's waits end on time, and not up to 50 us later (PR_SET_TIMERSLACK(2const)).
pub(super) fn be_exact() {
    // It fails nowhere, and a later end does no harm.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// The time until the next look. It comes at a whole millisecond of the system's clock, as the checks of the device do:
/// then a processor has one interrupt for all of them, which costs a virtual one tens of microseconds.
pub(super) fn until_next() -> Timespec {
    after(clock_gettime(ClockId::Monotonic).tv_nsec)
}

fn after(now: i64) -> Timespec {
    // Not so soon that the program has only not come to its next look yet.
    let (half, now) = (LENGTH / 2, now % LENGTH);
    Timespec { tv_sec: 0, tv_nsec: if now <= half { LENGTH - now } else { 2 * LENGTH - now } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_come_at_whole_milliseconds() {
        for now in [0, 1, LENGTH / 2, LENGTH - 1, LENGTH, 7 * LENGTH + 5, 999_999_999] {
            let left = after(now).tv_nsec;
            assert!((LENGTH / 2..3 * LENGTH / 2).contains(&left) && (now + left) % LENGTH == 0, "{now}");
        }
    }
}
