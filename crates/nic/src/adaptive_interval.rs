//! The interval, in steps, between two checks that each cost more than the step beside which they are made.
//!
//! A program that polls without pause would check everything else that can have happened (deaths, deadlines; the clock
//! itself) far more often than anything can happen, if it did so once in a fixed number of polls. A message that comes
//! during such a check waits. A program that polls now and then must check at each few polls. So the interval follows
//! the time that the steps took.

use wire::Nanos;

/// The aim for the time between two checks, in nanoseconds: less than the shortest timer (RNR timers, 10 us).
const WANTED: Nanos = 8_000;
/// The least number of steps between two checks, which is also the first, and the greatest number.
pub(crate) const LEAST: u32 = 32;
const MOST: u32 = 512;

/// The number of steps from one check to the next.
#[derive(Debug)]
pub(crate) struct AdaptiveInterval {
    steps: u32,
    /// The time of the last check.
    since: Nanos,
}

impl AdaptiveInterval {
    pub(crate) const NEW: AdaptiveInterval = AdaptiveInterval { steps: LEAST, since: 0 };

    /// The interval that the last check gave.
    pub(crate) fn steps(&self) -> u32 {
        self.steps
    }

    /// Notes a check at `now`, and returns the number of steps until the next one.
    #[inline]
    pub(crate) fn next(&mut self, now: Nanos) -> u32 {
        let took = now.saturating_sub(self.since);
        self.since = now;
        self.steps = if took < WANTED / 2 {
            (self.steps * 2).min(MOST)
        } else if took > 4 * WANTED {
            LEAST // steps that are slow now may be slower still
        } else if took > WANTED {
            (self.steps / 2).max(LEAST)
        } else {
            self.steps
        };
        self.steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The interval after many steps that each take `step`.
    fn settles(adaptive_interval: &mut AdaptiveInterval, now: &mut Nanos, step: Nanos) -> u32 {
        for _ in 0..20 {
            *now += u64::from(adaptive_interval.steps) * step;
            adaptive_interval.next(*now);
        }
        adaptive_interval.steps
    }

    #[test]
    fn looks_are_as_far_apart_as_they_should_be() {
        let (mut adaptive_interval, mut now) = (AdaptiveInterval::NEW, 1_000_000);
        for step in [1, 10, 15, 60, 100, 300, 2_000, 15, 1_000_000] {
            let steps = settles(&mut adaptive_interval, &mut now, step);
            assert!((LEAST..=MOST).contains(&steps));
            let deferred_close = u64::from(steps) * step;
            assert!(steps == MOST || deferred_close >= WANTED / 2, "{step} ns: {steps}");
            assert!(steps == LEAST || deferred_close <= WANTED, "{step} ns: {steps}");
        }
    }

    #[test]
    fn who_becomes_slow_is_late_once() {
        let (mut adaptive_interval, mut now) = (AdaptiveInterval::NEW, 1_000_000);
        assert_eq!(settles(&mut adaptive_interval, &mut now, 1), MOST);
        now += u64::from(MOST) * 100_000;
        assert_eq!(adaptive_interval.next(now), LEAST);
    }
}
