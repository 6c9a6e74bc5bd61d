//! The way in which a payload is written to where another processor reads it, tried out while data flow.
//!
//! What plain stores have written stays in the caches of the processor that wrote it, and the one that reads fetches it
//! from there: on some machines the fastest way of all, on others several times slower than the way through memory
//! (docs/lab/constants.md). So both ways are timed.

use trial::AbTrial;

/// The way in which a payload is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stores {
    /// By plain stores.
    Through,
    /// By stores that go around the caches, to memory.
    Around,
}

/// Shorter payloads are written by plain stores: the reader may wait for them, and they are no stream.
const SHORTEST: u32 = 8 << 10;
/// The bytes that are timed at once: four times what there is room for. The first of that takes only the writer's time,
/// if the reader has caught up before.
const STRETCH: u32 = 1 << 20;
/// Stretches between two trials.
const APART: u32 = 128;

/// The trial.
pub struct StorePolicy {
    /// Between plain stores, which are taken at first, and those around the caches.
    ab_trial: AbTrial,
    /// Bytes of the stretch so far.
    bytes: u32,
    /// When it began; 0: it is not timed.
    began: u64,
}

impl Default for StorePolicy {
    fn default() -> Self {
        StorePolicy { ab_trial: AbTrial::new(APART, APART), bytes: 0, began: 0 }
    }
}

impl StorePolicy {
    /// The way for the next payload, of this length. `now`: in nanoseconds, asked once for many payloads.
    #[inline]
    pub fn stores(&mut self, len: u32, now: impl FnOnce() -> u64) -> Stores {
        if len < SHORTEST {
            return Stores::Through;
        }
        self.bytes += len;
        if self.bytes > STRETCH {
            self.next(now());
            self.bytes = len;
        }
        if self.ab_trial.second() { Stores::Around } else { Stores::Through }
    }

    /// Ends a stretch.
    #[cold]
    fn next(&mut self, now: u64) {
        let took = (self.began != 0).then(|| now.saturating_sub(self.began));
        // What comes after a change waits for what went before it.
        self.began = if self.ab_trial.over(took) { 0 } else { now };
    }
}

// Arithmetic, and much of it: not for miri.
#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// A stream of segments on a machine where a segment takes so long by either way; gives the parts of those that
    /// went around the caches, in thousandths, of every `every`.
    fn stream(segments: u64, every: u64, mut takes: impl FnMut(u64, Stores) -> u64) -> Vec<u64> {
        let (mut store_policy, mut now, mut around, mut parts) = (StorePolicy::default(), 1, 0, Vec::new());
        for i in 0..segments {
            let stores = store_policy.stores(16 << 10, || now);
            now += takes(i, stores);
            around += u64::from(stores == Stores::Around);
            if (i + 1).is_multiple_of(every) {
                parts.push(around * 1000 / every);
                around = 0;
            }
        }
        parts
    }

    fn by(through: u64, around: u64) -> impl Fn(Stores) -> u64 {
        move |stores| if stores == Stores::Through { through } else { around }
    }

    #[test]
    fn the_faster_way_is_found_and_the_other_costs_little() {
        let slow_line = by(7600, 1000);
        let parts = stream(100_000, 10_000, |_, stores| slow_line(stores));
        assert!(parts.iter().all(|part| *part > 930), "{parts:?}");
        let fast_line = by(500, 1000);
        let parts = stream(100_000, 10_000, |_, stores| fast_line(stores));
        assert!(parts.iter().all(|part| *part < 60), "{parts:?}");
        // Both ways are nearly alike: nothing is changed.
        let alike = by(1000, 950);
        let parts = stream(100_000, 10_000, |_, stores| alike(stores));
        assert!(parts.iter().all(|part| *part < 60), "{parts:?}");
    }

    #[test]
    fn a_machine_that_changes_is_followed() {
        let (fast, slow) = (by(600, 1000), by(7600, 1000));
        let parts = stream(100_000, 10_000, |i, stores| if i / 50_000 == 0 { fast(stores) } else { slow(stores) });
        assert!(parts[..5].iter().all(|part| *part < 60), "{parts:?}");
        assert!(parts[6..].iter().all(|part| *part > 930), "{parts:?}");
        let parts = stream(400_000, 100_000, |i, stores| if i / 50_000 == 0 { slow(stores) } else { fast(stores) });
        assert!(parts[3] < 60, "{parts:?}");
    }

    #[test]
    fn what_was_once_is_forgotten() {
        // The other way was once nearly as good, and would be the better one now if it still were.
        let parts = stream(100_000, 10_000, |i, stores| match (stores, i < 50_000) {
            (Stores::Through, true) => 1000,
            (Stores::Around, true) => 950,
            (Stores::Through, false) => 1100,
            (Stores::Around, false) => 7600,
        });
        assert!(parts.iter().all(|part| *part < 60), "{parts:?}");
    }

    #[test]
    fn who_reads_is_behind() {
        // A segment takes as long as the earlier segment of which it gets the place.
        let mut all_stores = std::collections::VecDeque::from([Stores::Through; 16]);
        let (fast, slow) = (by(600, 1000), by(7600, 1000));
        let parts = stream(100_000, 10_000, |i, stores| {
            all_stores.push_back(stores);
            let freed = all_stores.pop_front().unwrap();
            if i < 50_000 { slow(freed) } else { fast(freed) }
        });
        assert!(parts[..5].iter().all(|part| *part > 930), "{parts:?}");
        assert!(parts[7..].iter().all(|part| *part < 60), "{parts:?}");
    }

    #[test]
    fn pauses_are_no_sign_of_a_slow_way() {
        let all_stores = by(1000, 2000);
        let parts = stream(100_000, 10_000, |i, stores| all_stores(stores) + if i % 161 == 0 { 1_000_000 } else { 0 });
        assert!(parts.iter().all(|part| *part < 60), "{parts:?}");
    }

    #[test]
    fn a_program_that_was_slow_itself_is_not_believed_for_long() {
        let (slow, fast) = (by(7600, 1000), by(500, 1000));
        // Until the first trial it does little; after that, as much as it can.
        let parts = stream(100_000, 10_000, |i, stores| fast(stores) + if i < 260 { 10_000_000 } else { 0 });
        assert!(parts[2..].iter().all(|part| *part < 60), "{parts:?}");
        // It pauses just when the better way is tried.
        let parts = stream(100_000, 10_000, |i, stores| slow(stores) + if i / 300 == 1 { 10_000_000 } else { 0 });
        assert!(parts[2..].iter().all(|part| *part > 930), "{parts:?}");
    }

    #[test]
    fn a_reader_that_catches_up_is_no_sign_of_a_fast_way() {
        // Messages of 1 MiB, each waited for: its first 256 KiB take only what writing takes, the others what reading
        // takes.
        let writing = by(500, 1200);
        let reading = by(7600, 1000);
        let parts = stream(100_000, 10_000, |i, stores| if i % 64 < 16 { writing(stores) } else { reading(stores) });
        assert!(parts.iter().all(|part| *part > 930), "{parts:?}");
    }

    #[test]
    fn short_payloads_take_no_part() {
        let mut store_policy = StorePolicy::default();
        for i in 0..100_000 {
            assert_eq!(store_policy.stores(8191, || unreachable!("{i}")), Stores::Through);
        }
    }
}
