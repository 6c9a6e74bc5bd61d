//! A trial of two ways, made while data flow: which of them is faster.
//!
//! The faster way depends on the machine, on where the system runs the two ends, and on what the ends do. It changes
//! while the ends run. So most data go by the way that was faster, and now and then a little goes by the other.

/// Stretches in a row of the way that is tried.
const TRIES: u32 = 4;
/// Stretches before the first trial.
const FIRST: u32 = 4;
/// A higher ratio tells of a program that has paused, and counts as none.
const WORST: u64 = 8;
/// The way that is tried has to take less than so many hundredths of the other one's time.
const BETTER: u64 = 92;

/// The times that the last stretches took.
#[derive(Clone, Copy, Debug, Default)]
struct Recent([u64; 5]);

impl Recent {
    fn took(&mut self, nanos: u64) {
        self.0.rotate_right(1);
        self.0[0] = nanos.max(1);
    }

    /// The median of the times; `None` if there was none yet. Some times are long because the program paused, and some
    /// are short because a reader had caught up.
    fn typical(self) -> Option<u64> {
        let mut known = self.0;
        known.sort_unstable();
        let known = &known[known.partition_point(|nanos| *nanos == 0)..];
        known.get(known.len().saturating_sub(1) / 2).copied()
    }
}

/// Two ways, and how long a stretch of each takes. The first is the better one until the other has been tried.
#[derive(Clone, Debug)]
pub struct AbTrial {
    /// The second way is taken, except in trials.
    second: bool,
    /// The other way is being tried.
    trying: bool,
    /// Stretches until `trying` changes.
    left: u32,
    /// Stretches of the better way between two trials, before they are multiplied by the ratio of the two ways' times.
    /// The time that a trial costs is to be a small part of all.
    apart: u32,
    /// Value of `apart` while the outcome is new, since a trial may have been disturbed. `apart` rises when the outcome
    /// is the same again and again.
    least_apart: u32,
    most_apart: u32,
    /// Times by the better way, and by the other one when it was last tried.
    recent: [Recent; 2],
}

impl AbTrial {
    /// A trial with `apart` stretches between two trials at first. The number doubles each time that the outcome is the
    /// same, up to `most_apart`. It is higher if one of the ways is much slower.
    pub const fn new(apart: u32, most_apart: u32) -> Self {
        let least_apart = apart;
        AbTrial {
            second: false,
            trying: false,
            left: FIRST,
            apart,
            least_apart,
            most_apart,
            recent: [Recent([0; 5]); 2],
        }
    }

    /// True if the second way is the next to be taken.
    #[inline]
    pub fn second(&self) -> bool {
        self.second != self.trying
    }

    /// Ends a stretch by the way that [`AbTrial::second`] names. `took` is its time in nanoseconds, if that was
    /// measured. True if a trial begins or ends with the stretch.
    pub fn over(&mut self, took: Option<u64>) -> bool {
        if let Some(nanos) = took {
            self.recent[usize::from(self.trying)].took(nanos);
        }
        self.left -= 1;
        if self.left > 0 {
            return false;
        }
        if self.trying {
            let [best, other] = self.recent.map(|recent| recent.typical().unwrap_or(u64::MAX));
            let ratio = best.max(other) / best.min(other);
            self.left = self.apart * if ratio > WORST { 1 } else { ratio as u32 };
            if other < best / 100 * BETTER {
                self.second = !self.second;
                self.recent.swap(0, 1);
                // The times of the way before may have come from a program that was slow itself.
                self.apart = self.least_apart;
                self.left = self.apart;
            } else {
                self.apart = (2 * self.apart).min(self.most_apart);
            }
        } else {
            self.recent[1] = Recent::default();
            self.left = TRIES;
        }
        self.trying = !self.trying;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of so many stretches that went by the second way, in hundredths, for each hundred of them.
    fn parts(hundreds: u64, mut takes: impl FnMut(u64, bool) -> u64) -> Vec<u64> {
        let mut ab_trial = AbTrial::new(100, 100);
        let mut hundred = |at: u64| {
            (0..100)
                .filter(|i| {
                    let second = ab_trial.second();
                    ab_trial.over(Some(takes(at * 100 + i, second)));
                    second
                })
                .count() as u64
        };
        (0..hundreds).map(&mut hundred).collect()
    }

    #[test]
    fn the_faster_way_is_taken_nearly_always() {
        let first = parts(20, |_, second| if second { 2000 } else { 1000 });
        assert!(first.iter().all(|part| *part <= 4), "{first:?}");
        let second = parts(20, |_, second| if second { 1000 } else { 2000 });
        assert!(second.iter().all(|part| *part >= 92), "{second:?}");
        // The two ways are nearly alike: nothing is changed.
        let alike = parts(20, |_, second| if second { 950 } else { 1000 });
        assert!(alike.iter().all(|part| *part <= 4), "{alike:?}");
    }

    #[test]
    fn an_outcome_is_looked_at_again_soon() {
        let mut ab_trial = AbTrial::new(10, 80);
        let mut trials = Vec::new();
        for stretch in 0..1000 {
            // Disturbed, the first time: the first way seems slow.
            let took = if ab_trial.second() || stretch < 8 { 2000 } else { 1000 };
            let second = ab_trial.second();
            if ab_trial.over(Some(took)) && ab_trial.second() != second {
                trials.push(stretch);
            }
        }
        let apart: Vec<u32> = trials.windows(2).map(|two| two[1] - two[0]).filter(|apart| *apart > 4).collect();
        // The first time they seemed alike; then one takes twice as long.
        assert!(apart.starts_with(&[10, 40, 80, 160, 160]), "{apart:?}");
    }

    #[test]
    fn what_changes_is_followed() {
        let both = parts(20, |i, second| if second == (i < 1000) { 1000 } else { 2000 });
        assert!(both[1..10].iter().all(|part| *part >= 92) && both[13..].iter().all(|part| *part <= 4), "{both:?}");
    }
}
