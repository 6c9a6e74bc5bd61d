//! The detection of streams: whether a program waits for each of its requests, or posts one right behind the other.
//!
//! An initiator that executes a WRITE or READ itself needs a system call for each, and the peer's processor has no
//! part: best for a request that is waited for, or of which the peer watches for the effect. The window moves several
//! times as much of a stream: two processors share the work, and a small request is one cache line.
//!
//! A program that polls for each completion before it posts the next request has no queue ([`wire::OneSided::queues`]).
//! But a program that asks for few completions has a queue, although it may wait for what its peer writes to it. In a
//! stream, call after call begins soon after the one before. Where an answer is waited for, there mostly lies a call of
//! the peer's between two of this process: also if only some requests of a group are answered, it lies behind one of
//! them. An answer that comes by no call of the device's (TCP, memory that the programs share) may be quicker, and is
//! taken for none. So what counts is the longest time between two calls, and not their sum.

use wire::{Nanos, PIECE};

/// The calls in a row without a break that are a stream, by the size of the requests: more where each is short, because
/// a wrong verdict costs as much as waking the peer. And the time from the end of one call to the end of the next, in
/// hundredths of what the call alone takes, beyond which there is a break. In streams of short requests less passes,
/// and an answer of the peer's by a call takes at least 200 (docs/lab/constants.md), if it is about as long. Beside a
/// longer call a short answer takes less, the two sides' calls differ more, and a post is nothing. Bytes, calls,
/// hundredths.
const CLASSES: [(u32, u32, u64); 4] = [(1024, 16, 185), (4096, 4, 185), (32768, 4, 135), (u32::MAX, 2, 135)];
/// That bound where an answer may have come that takes the peer no call: as a packet, or by a copy in shared
/// memory.
const QUICK_BREAK: u64 = 135;

/// The observations of the requests of a queue that are executed here.
#[derive(Default)]
pub(crate) struct StreamDetector {
    /// Which of [`CLASSES`].
    class: usize,
    /// Bytes of the first of them: much longer and much shorter ones do not count together.
    len: u32,
    /// Calls in a row without a break, since the last verdict.
    run: u32,
    /// The time at which the last call ended; 0: there was none.
    ended: Nanos,
    /// The packets that had been taken from all peers at that time: two processes may have two links.
    taken: u64,
    /// The number of calls until one is measured.
    unmeasured: u32,
    /// The time at which the measured call began.
    began: Nanos,
    /// The time of the last measured call; 0: there was none.
    measured: Nanos,
    /// The shorter time of the last two measured calls: an interrupted call would make the others look short.
    alone: Nanos,
    /// The last calls are a stream, and the next one belongs to it if it comes until this time; 0: they are no stream.
    until: Nanos,
}

impl StreamDetector {
    /// A detector with a stream of calls that took so long as its last verdict.
    #[cfg(test)]
    pub fn stream(len: u32, call: Nanos) -> Self {
        StreamDetector { class: class_of(len), len, alone: call, until: Nanos::MAX, ..StreamDetector::default() }
    }

    /// A request of this length is about to be executed.
    #[inline]
    pub fn begins(&mut self, len: u32, now: impl Fn() -> Nanos) {
        if !self.alike(len) {
            *self = StreamDetector { class: class_of(len), len, ..StreamDetector::default() };
        }
        self.until = 0;
        if self.unmeasured == 0 {
            self.began = now();
        }
    }

    /// Notes that the request has been executed. `taken`: packets that have been taken from all peers. `shares`:
    /// the peer may write to this process's memory without a call and without a packet.
    #[inline]
    pub fn ends(&mut self, taken: u64, shares: bool, now: impl Fn() -> Nanos) {
        let (now, (_, calls, most)) = (now(), CLASSES[self.class]);
        if self.unmeasured == 0 {
            let took = now.saturating_sub(self.began);
            // The second one as well, so that an interrupted first one is found out.
            let first = self.measured == 0;
            self.alone = if first { took } else { took.min(self.measured) };
            (self.measured, self.unmeasured) = (took, if first { 0 } else { calls - 1 });
        } else {
            self.unmeasured -= 1;
        }
        let most = if shares || taken != self.taken { QUICK_BREAK } else { most };
        let follows = now.saturating_sub(self.ended).saturating_mul(100) <= self.alone.saturating_mul(most);
        self.run = if follows { self.run + 1 } else { 1 };
        (self.ended, self.taken) = (now, taken);
        if self.run >= calls {
            // Until then there is no break.
            (self.run, self.until) = (0, now + self.alone * (most - 100) / 100);
        }
    }

    /// True if the next request, of this length, comes as another of a stream. Once for each verdict.
    #[inline]
    pub fn streams(&mut self, len: u32, now: impl Fn() -> Nanos) -> bool {
        let until = std::mem::take(&mut self.until);
        until != 0 && self.alike(len) && now() <= until
    }

    /// The time that a call takes.
    pub fn call(&self) -> Nanos {
        self.alone
    }

    /// True if a request of this length counts together with those before it.
    fn alike(&self, len: u32) -> bool {
        class_of(len) == self.class && (self.class == 0 || len / 2 <= self.len && self.len / 2 <= len)
    }
}

/// The observations of how soon small requests are taken that go as packets. A peer that is awake polls, or has polled
/// a moment ago and now watches its memory, or computes: then no thread takes what comes until its NIC thread looks,
/// within a millisecond, and a system call would have been better.
#[derive(Default)]
pub(crate) struct Small {
    /// The last packet was late, and none is to be sent until this time.
    until: Nanos,
    /// The length of that pause; 0: the last packet was not late.
    pause: Nanos,
}

impl Small {
    /// Longer than a poll needs, by more than a clock is behind that is read every 8 us.
    const LATE: Nanos = 12_000;
    /// The first pause, and the longest. One late packet ends each, and may take a millisecond.
    const PAUSES: std::ops::RangeInclusive<Nanos> = 4_000_000..=256_000_000;

    /// A packet has been answered after this time.
    pub fn answered(&mut self, took: Nanos, now: impl Fn() -> Nanos) {
        self.are_in_time(took < Self::LATE, now);
    }

    /// The last packets were answered in time, or not.
    pub fn are_in_time(&mut self, in_time: bool, now: impl Fn() -> Nanos) {
        if in_time {
            *self = Small::default();
            return;
        }
        self.pause = (2 * self.pause).clamp(*Self::PAUSES.start(), *Self::PAUSES.end());
        self.until = now() + self.pause;
    }

    /// True if the next packet would be late, too.
    #[inline]
    pub fn are_late(&self, now: impl Fn() -> Nanos) -> bool {
        self.pause > 0 && now() < self.until
    }
}

/// The choice for requests of more than [`PIECE`]: pieces that are executed here, or packets, so that both sides copy.
/// Pieces need nothing of the peer. Packets are faster where the peer's thread is there at once, and much slower where
/// it has to be woken or has other things to do. So now and then a request is sent as packets. If its answer takes
/// longer than the pieces would have, no request is sent so for a while.
#[derive(Default)]
pub(crate) struct Long {
    /// The time that a piece takes here, among the shortest of the last ones; 0: there was none.
    piece: Nanos,
    /// As in [`Small`].
    until: Nanos,
    pause: Nanos,
}

impl Long {
    /// Shorter pieces tell more of the call than of the copy.
    const TELLING: u32 = 128 << 10;
    /// The pause after a late request is at least so many times as long as the request took: a target that only watches
    /// its memory hardly notices that packets are tried.
    const REST: Nanos = 16;

    /// A piece of this length was executed here in this time.
    pub fn executed(&mut self, len: u32, took: Nanos) {
        if len < Self::TELLING {
            return;
        }
        let took = (took.saturating_mul(u64::from(PIECE)) / u64::from(len)).max(1);
        // A piece that was interrupted hardly counts.
        self.piece = if self.piece == 0 { took } else { took.min(self.piece + self.piece / 16 + 1) };
    }

    /// True if the next request is to be sent as packets, as far as is known. Both sides do a part of a queue in any
    /// case, unless packets were late.
    #[inline]
    pub fn are_sent(&self, queues: bool, now: impl Fn() -> Nanos) -> bool {
        if self.piece == 0 { queues } else { self.pause == 0 || now() >= self.until }
    }

    /// A request of this length that was sent as packets has been answered after this time.
    pub fn answered(&mut self, len: u32, took: Nanos, now: impl Fn() -> Nanos) {
        let mine = u128::from(self.piece) * u128::from(len) / u128::from(PIECE);
        if self.piece == 0 || u128::from(took) <= mine + mine / 8 {
            (self.until, self.pause) = (0, 0);
            return;
        }
        let rest = took.saturating_mul(Self::REST);
        self.pause = (2 * self.pause).clamp(*Small::PAUSES.start(), *Small::PAUSES.end()).max(rest);
        self.until = now() + self.pause;
    }
}

fn class_of(len: u32) -> usize {
    CLASSES.iter().position(|(most, ..)| len <= *most).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// How many requests of these lengths are executed until one is taken for part of a stream; `None`: that is never
    /// so. One takes so long for each byte and at least so long, but sometimes it is interrupted.
    fn until_stream(lens: &[u32], takes: Nanos, pause: impl Fn(usize) -> Nanos) -> Option<usize> {
        until_stream_from(lens, takes, pause, |_| (0, false))
    }

    /// [`until_stream`] with what comes from the peer: the packets taken from it, and whether it shares memory.
    fn until_stream_from(
        lens: &[u32],
        takes: Nanos,
        pause: impl Fn(usize) -> Nanos,
        from_peer: impl Fn(usize) -> (u64, bool),
    ) -> Option<usize> {
        let (mut detector, clock) = (StreamDetector::default(), Cell::new(1_000_000));
        let now = || clock.get();
        (0..1000).find(|i| {
            let len = lens[i % lens.len()];
            if detector.streams(len, now) {
                return true;
            }
            detector.begins(len, now);
            let interrupted = i % 50 == 31;
            clock.set(clock.get() + takes.max(u64::from(len) / 14) + if interrupted { 100_000 } else { 0 });
            let (taken, shares) = from_peer(*i);
            detector.ends(taken, shares, now);
            clock.set(clock.get() + pause(*i));
            false
        })
    }

    #[test]
    fn who_posts_one_behind_the_other_streams() {
        assert_eq!(until_stream(&[8], 1300, |_| 150), Some(16));
        assert_eq!(until_stream(&[8, 900, 64], 1300, |_| 150), Some(16));
        assert_eq!(until_stream(&[4096], 1400, |_| 150), Some(4));
        assert_eq!(until_stream(&[1 << 20], 1400, |_| 150), Some(2));
        // A pause begins the count anew.
        assert_eq!(until_stream(&[8], 1300, |i| if i == 5 { 20_000 } else { 150 }), Some(22));
        // Where each post takes its time, too.
        assert_eq!(until_stream(&[8], 1000, |_| 700), Some(16));
        assert_eq!(until_stream(&[4096], 1000, |_| 700), Some(4));
    }

    /// Requests that a shorter one answers, by a call that takes less. Beside requests of more than 32 KiB it cannot be
    /// told from the pauses of a stream; those take about as long by the window as by a call.
    #[test]
    fn short_answers_are_answers() {
        for len in [8 << 10, 16 << 10, 22 << 10, 32 << 10] {
            assert_eq!(until_stream(&[len], 1300, |_| 1300), None, "{len} bytes");
        }
    }

    /// An interrupted call says nothing about how long the others take.
    #[test]
    fn an_interruption_does_not_make_a_stream() {
        let (mut detector, clock) = (StreamDetector::default(), Cell::new(1_000_000));
        let now = || clock.get();
        for i in 0..200 {
            assert!(!detector.streams(8, now), "{i}");
            detector.begins(8, now);
            clock.set(clock.get() + if i % 64 == 0 { 100_000 } else { 1300 });
            detector.ends(0, false, now);
            clock.set(clock.get() + 1400);
        }
    }

    #[test]
    fn who_was_late_is_not_trusted_for_a_while_and_ever_longer() {
        const MS: Nanos = 1_000_000;
        let (mut small, clock) = (Small::default(), Cell::new(5 * MS));
        let now = || clock.get();
        assert!(!small.are_late(now));
        for pause in [4, 8, 16, 32, 64, 128, 256, 256] {
            small.answered(900_000, now);
            clock.set(clock.get() + pause * MS - 1);
            assert!(small.are_late(now), "{pause} ms");
            clock.set(clock.get() + 1);
            assert!(!small.are_late(now), "{pause} ms");
        }
        // Once in time, and all is forgotten.
        small.answered(8_000, now);
        small.answered(900_000, now);
        clock.set(clock.get() + 4 * MS);
        assert!(!small.are_late(now));
    }

    #[test]
    fn long_ones_are_sent_while_that_is_faster() {
        const MS: Nanos = 1_000_000;
        let (mut long, clock) = (Long::default(), Cell::new(5 * MS));
        let now = || clock.get();
        assert!(!long.are_sent(false, now) && long.are_sent(true, now), "nothing is known");
        long.answered(8 << 20, 5 * MS, now);
        assert!(!long.are_sent(false, now), "with what should it be compared");
        for took in [60_000, 4_000_000, 62_000] {
            long.executed(PIECE, took);
            long.executed(1, 10 * took);
        }
        assert!(long.are_sent(false, now), "one is tried");
        long.answered(2 << 20, 130_000, now);
        assert!(long.are_sent(false, now), "in time");
        for pause in [4, 8, 16, 32, 64, 128, 256, 256] {
            long.answered(2 << 20, 150_000, now);
            clock.set(clock.get() + pause * MS - 1);
            assert!(!long.are_sent(false, now) && !long.are_sent(true, now), "{pause} ms");
            clock.set(clock.get() + 1);
            assert!(long.are_sent(false, now), "{pause} ms");
        }
        // Longer ones may take longer.
        long.answered(8 << 20, 500_000, now);
        assert!(long.are_sent(false, now));
    }

    /// A target that only watches its memory: what is sent waits for its NIC thread, for up to a millisecond.
    #[test]
    #[cfg_attr(miri, ignore = "tens of thousands of steps")]
    fn a_target_that_watches_gets_pieces() {
        for (len, piece) in [(2 << 20, 70_000), (2 << 20, 120_000), (8 << 20, 190_000), (64 << 20, 400_000)] {
            let (mut long, clock) = (Long::default(), Cell::new(1_000_000));
            let now = || clock.get();
            let (mut sent, mut all, mut pieces) = (0, 0, 0);
            for i in 0..500u64 {
                let alone = u64::from(len / PIECE) * piece;
                let mut took = alone;
                if long.are_sent(false, now) {
                    sent += 1;
                    took += alone / 8 + 1_000_000 - i % 7 * 100_000;
                    clock.set(clock.get() + took);
                    long.answered(len, took, now);
                } else {
                    for _ in 0..len / PIECE {
                        clock.set(clock.get() + piece);
                        long.executed(PIECE, piece);
                    }
                }
                (all, pieces) = (all + took, pieces + alone);
            }
            assert!((1..=500 / Long::REST).contains(&sent), "{len} {piece}: {sent}");
            assert!(all <= pieces + pieces / 16, "{len} {piece}: {all} {pieces}");
        }
    }

    #[test]
    fn who_waits_for_an_answer_does_not() {
        for len in [8, 4096, 1 << 20] {
            let takes = 1300.max(u64::from(len) / 14);
            assert_eq!(until_stream(&[len], takes, |_| takes), None, "an answer of its kind");
            // Some, then an answer: one behind the other, but the next is long in coming.
            for burst in [2, 4, 16] {
                let pause = |i| if i % burst == burst - 1 { 5 * takes } else { 0 };
                let enough = CLASSES[class_of(len)].1 as usize;
                let expected = (enough < burst).then_some(enough);
                assert_eq!(until_stream(&[len], takes, pause), expected, "{len} {burst}");
            }
            // Data, and word that they are there.
            assert_eq!(until_stream(&[len, 8], takes, |i| if i % 2 == 1 { takes } else { 0 }), None);
        }
        for len in [4096, 1 << 20] {
            let takes = 1300.max(u64::from(len) / 14);
            assert_eq!(until_stream(&[len, len, 8], takes, |i| if i % 3 == 2 { takes } else { 0 }), None);
        }
        for burst in 2..16 {
            let pause = |i| if i % burst == burst - 1 { 1400 } else { 0 };
            assert_eq!(until_stream(&[8], 1300, pause), None, "an answer of its kind to each {burst}");
        }
        let quick = |from_peer: fn(usize) -> (u64, bool)| until_stream_from(&[8], 1300, |_| 600, from_peer);
        assert_eq!(quick(|i| (i as u64, false)), None, "an answer through the window");
        assert_eq!(quick(|_| (0, true)), None, "an answer through shared memory");
        assert_eq!(quick(|_| (0, false)), Some(16), "no answer comes so soon");
        // The time of a long one is no measure of short ones.
        assert_eq!(until_stream(&[40_000, 1 << 20], 1400, |_| 10_000), None);
    }
}
