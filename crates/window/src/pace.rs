//! Whether a program waits for each of its requests, or posts one right behind the other.
//!
//! Who executes a WRITE or READ by himself needs a system call for each, and the peer's processor has no part in it: best for a
//! request that is waited for, or whose effect the peer watches for. Of a stream, the window moves several times as much: two
//! processors share the work, and a small request is one cache line.
//!
//! Both look alike at a single request. But in a stream some calls in a row take hardly longer than the calls themselves; between
//! two that are waited for there is at least what the peer does.

use engine::platform::Nanos;

/// The calls between two verdicts, by the size of the requests: more where each is short, since reading the clock three times
/// should not show, and a wrong verdict costs as much as waking the peer. Bytes, calls.
const CLASSES: [(u32, u32); 3] = [(1024, 16), (32768, 4), (u32::MAX, 2)];
/// So many hundredths of the calls' own time may pass in a stream: 108 to 140 are seen. Where each is answered by another it is 190
/// to 210, and where two are by one it cannot be less than 150.
const STREAM: u64 = 135;

/// The pace of the requests that are executed here.
#[derive(Default)]
pub(crate) struct Pace {
    /// Which of [`CLASSES`].
    class: usize,
    /// Calls of this class since the last verdict.
    calls: u32,
    /// When the first of them began.
    began: Nanos,
    /// When the last of them did.
    last: Nanos,
    /// How long it took the time before; 0: there was none. One that was interrupted makes the others look short.
    took: Nanos,
}

impl Pace {
    /// A request of this length is about to be executed.
    #[inline]
    pub fn begins(&mut self, len: u32, now: impl Fn() -> Nanos) {
        let class = CLASSES.iter().position(|(most, _)| len <= *most).unwrap_or_default();
        if class != self.class {
            *self = Pace { class, ..Pace::default() };
        }
        if self.calls == 0 {
            self.began = now();
        } else if self.calls + 1 == CLASSES[class].1 {
            self.last = now();
        }
        self.calls += 1;
    }

    /// It has been executed. True if the last ones are a stream.
    #[inline]
    pub fn ends(&mut self, now: impl Fn() -> Nanos) -> bool {
        let calls = CLASSES[self.class].1;
        if self.calls < calls {
            return false;
        }
        let now = now();
        self.calls = 0;
        let all = now.saturating_sub(self.began);
        let took = now.saturating_sub(self.last);
        let one = if self.took == 0 { took } else { took.min(self.took) };
        self.took = took;
        all.saturating_mul(100) <= one.saturating_mul(u64::from(calls) * STREAM)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// How many requests of these lengths are executed until it is a stream; `None`: it never is. One takes so long, but sometimes
    /// it is interrupted.
    fn until_stream(lens: &[u32], takes: Nanos, pause: impl Fn(usize) -> Nanos) -> Option<usize> {
        let (mut pace, clock) = (Pace::default(), Cell::new(1_000_000));
        let now = || clock.get();
        (0..1000).find(|i| {
            pace.begins(lens[i % lens.len()], now);
            let interrupted = i % 50 == 31;
            clock.set(clock.get() + takes + if interrupted { 100_000 } else { 0 });
            let stream = pace.ends(now);
            clock.set(clock.get() + pause(*i));
            stream
        })
    }

    #[test]
    fn who_posts_one_behind_the_other_streams() {
        assert_eq!(until_stream(&[8], 1300, |_| 150), Some(15));
        assert_eq!(until_stream(&[4096], 1400, |_| 150), Some(3));
        assert_eq!(until_stream(&[1 << 20], 75_000, |_| 150), Some(1));
        // Who has paused begins anew.
        assert_eq!(until_stream(&[8], 1300, |i| if i == 5 { 20_000 } else { 150 }), Some(47));
    }

    #[test]
    fn who_waits_for_an_answer_does_not() {
        for (len, takes) in [(8, 1300), (4096, 1400), (1 << 20, 75_000)] {
            assert_eq!(until_stream(&[len], takes, |_| takes), None, "an answer of its kind");
            // Two, then an answer: data, and word that they are there. (Two large ones are enough of a stream.)
            let pairs = until_stream(&[len], takes, |i| if i % 2 == 1 { 2 * takes } else { 0 });
            assert_eq!(pairs, (len > 32768).then_some(1));
            assert_eq!(until_stream(&[len, 8], takes, |i| if i % 2 == 1 { takes } else { 0 }), None);
        }
        assert_eq!(until_stream(&[8], 1300, |_| 600), None, "an answer through the window");
    }
}
