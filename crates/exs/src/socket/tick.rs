//! The times at which the thread of `Exs` looks whether the program still looks.

use std::num::NonZeroU64;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// After so many nanoseconds without a look by the program, the thread serves the wire.
pub(super) const LENGTH: i64 = 1_000_000;
/// After so many, if the program was found looking so often in a row: it moves long data then, and each look of this
/// thread takes a virtual processor some 40 us of it.
const CALM_LENGTH: i64 = 4 * LENGTH;
const CALM: u32 = 8;

/// Have this thread's waits end on time, and not up to 50 us later (PR_SET_TIMERSLACK(2const)).
pub(super) fn be_exact() {
    // It fails nowhere, and a later end does no harm.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// So many waits of the program's that ended between two looks of this thread are those of a program that does nothing
/// else. The looks of a program that polls do not count: one that has begun to stream is to be looked at often.
const OFTEN: u32 = 8;

/// How often in a row the program was found at work, with this look: it looks at this moment, or so many of its waits
/// have ended since the last one. A timeout that is counted in pieces of `beat` nanoseconds is kept as well: if they
/// are short, looks do not become rare.
pub(super) fn found(before: u32, looking: bool, waits: u32, beat: u64) -> u32 {
    let found = (looking || waits >= OFTEN) && beat >= 4 * CALM_LENGTH as u64;
    if found { before.saturating_add(1) } else { 0 }
}

/// The time until the next look, if the program was found looking so often in a row. It comes at a whole millisecond,
/// or at four, of the system's clock, as the checks of the device do: then a processor has one interrupt for all of
/// them, which costs a virtual one tens of microseconds.
pub(super) fn until_next(found: u32) -> Timespec {
    let now = clock_gettime(ClockId::Monotonic);
    after(now.tv_sec % 4 * 1_000_000_000 + now.tv_nsec, if found < CALM { LENGTH } else { CALM_LENGTH })
}

fn after(now: i64, length: i64) -> Timespec {
    // Not so soon that the program has only not come to its next look yet.
    let (half, now) = (length / 2, now % length);
    Timespec { tv_sec: 0, tv_nsec: if now <= half { length - now } else { 2 * length - now } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_become_rare_where_the_program_was_found_looking() {
        let found = |waits, beat| (0..CALM).fold(0, |before, _| found(before, waits == 0, waits, beat));
        assert_eq!((found(0, u64::MAX), found(0, 3 * CALM_LENGTH as u64)), (CALM, 0));
        assert_eq!((found(OFTEN, u64::MAX), found(OFTEN, 3 * CALM_LENGTH as u64)), (CALM, 0));
        assert_eq!(super::found(CALM, false, OFTEN - 1, u64::MAX), 0);
        let longest = |found| (0..3).map(|_| until_next(found).tv_nsec).max();
        assert!(longest(CALM - 1) < Some(3 * LENGTH / 2) && longest(CALM) >= Some(CALM_LENGTH / 2));
    }

    #[test]
    fn looks_come_at_whole_milliseconds() {
        for length in [LENGTH, CALM_LENGTH] {
            for now in [0, 1, length / 2, length - 1, length, 7 * length + 5, 999_999_999] {
                let left = after(now, length).tv_nsec;
                assert!((length / 2..3 * length / 2).contains(&left) && (now + left) % length == 0, "{now}");
            }
        }
    }
}
