//! Conversion from the clock of completions (CLOCK_MONOTONIC) to the wall clock.
//!
//! The two run alike, and differ by a number that changes only when the wall clock is set. They cannot be read at one
//! time, so each reading gives bounds of that number. A difference that is computed anew each time would vary by some
//! nanoseconds, or, where the thread was stopped between the two readings, by far more: times would go back.

use core::sync::atomic::{AtomicI64, Ordering};

/// The greatest known lower bound of the difference, in nanoseconds.
static OFFSET: AtomicI64 = AtomicI64::new(i64::MIN);

/// The error of a reading, in nanoseconds: the kernel rounds each clock by itself.
const ROUNDING: i64 = 2;

/// The difference now, in nanoseconds. It is never more than the true one, and never less than at the call before,
/// unless the wall clock was set back.
pub fn offset() -> i64 {
    let before = read(libc::CLOCK_MONOTONIC);
    let wall = read(libc::CLOCK_REALTIME);
    let after = read(libc::CLOCK_MONOTONIC);
    let (least, most) = (wall - after, wall - before);
    let next = |known| Some(refined(known, least, most));
    match OFFSET.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) {
        Ok(known) | Err(known) => refined(known, least, most),
    }
}

/// The known bound after a reading that shows at least `least` and at most `most`.
fn refined(known: i64, least: i64, most: i64) -> i64 {
    if known > most.saturating_add(ROUNDING) { least } else { known.max(least) }
}

fn read(clock: libc::clockid_t) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a structure to fill in.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec.wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_back_only_with_the_wall() {
        let mut known = i64::MIN;
        // The true difference is 1000. The first reading has a long pause, later ones short pauses.
        for (least, most, expected) in [
            (400, 1000, 400),
            (990, 1005, 990),
            (985, 1000, 990),
            (995, 1010, 995),
            (980, 994, 995),    // rounded
            (2990, 3005, 2990), // set forward
            (480, 505, 480),    // set back
            (490, 500, 490),
        ] {
            known = refined(known, least, most);
            assert_eq!(known, expected);
        }
    }

    #[test]
    fn two_readings_agree() {
        let first = offset();
        for _ in 0..100 {
            let second = offset();
            assert!(second >= first && second - first < 1_000_000_000, "{first} {second}");
        }
    }
}
