//! A stream of bytes from one end of a connection to the other, over memory that both can write.
//!
//! ```text
//!  sender    tail:     u62    bytes put into the ring, and in the same word
//!            mode:     u2     see [`Mode`]
//!            switched: u64    bytes that had gone another way before the first one in the ring
//!            finished: u32    the sender has shut its direction down, or closed: the kernel's FIN is on its way
//!            wanting:  u32    set by the sender that found no room, taken by the receiver, which then rings
//!            taking_from, written_before: u64    what a sender needs that comes after one which died while it took
//!                             bytes back
//!  receiver  head:     u64    bytes taken out of the ring; bit 63: the last ones by a sender that takes them back
//!            ready:    u32    the receiver reads the ring
//!            retract:  u32    the receiver asks for the other way
//!            bells:    u32    by which bells of the receiver's the sender wakes it, one bit each: see [`crate::link`]
//!            drained:  u32    the receiver has read all that went another way before the ring
//!  data      ROOM bytes       byte number n lies at n modulo ROOM
//! ```
//!
//! **Several receivers.** An end may be held by several threads, and after fork(2) by several processes. A receiver
//! copies first and then moves `head` by compare-and-exchange; one that lost copies again. So a receiver that is
//! killed, or left by longjmp(3), in the middle has taken nothing, and no lock exists that it could keep.
//!
//! **Several senders.** They exclude each other by a lock of the caller's. A sender copies first, and publishes by a
//! compare-and-exchange that fails if the mode is not [`Mode::Ring`] any more. So a thread that cannot have the lock,
//! such as one in a signal's handler that has interrupted the lock's holder, may take the stream off the ring
//! ([`Stream::leave`]): the interrupted sender then has sent nothing, and learns it.
//!
//! **Taking back.** The sender can take bytes out again that no receiver has read ([`Stream::take_back`]), as a
//! receiver would. It changes the mode before; a receiver looks at the mode after `head`, so one that saw the old mode
//! cannot win against the sender's own exchange, nor see a `head` that was moved since.
//!
//! **Trust.** Whatever the other end wrote is input: counts that make no sense are [`Broken`]. The bytes themselves
//! are copied and not looked at.
//!
//! **Waking.** That there are bytes, and that there is room, is told by the link of the two processes
//! ([`crate::link`]). The sender that waits for room says so here: write the own word, sequentially consistent fence,
//! read the other's.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The way by which the bytes of a direction go. Only the sender changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Another way (TCP), and never yet by the ring.
    Before,
    /// By the ring, from byte `switched` on.
    Ring,
    /// What is in the ring is being taken back; it and all later bytes go the other way.
    Retracting,
    /// By the ring up to `tail`, and the other way again from there on.
    After,
}

impl Mode {
    /// Bits of the word that has the tail and the mode.
    const BITS: u32 = 2;

    fn of(word: u64) -> Mode {
        match word & 3 {
            0 => Mode::Before,
            1 => Mode::Ring,
            2 => Mode::Retracting,
            _ => Mode::After,
        }
    }

    fn with(self, tail: u64) -> u64 {
        tail << Self::BITS | self as u64
    }
}

/// The other end broke the rules: nothing in the stream can be believed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// The words of a stream. All are 0 at the beginning.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Words {
    tail: AtomicU64,
    switched: AtomicU64,
    finished: AtomicU32,
    wanting: AtomicU32,
    taking_from: AtomicU64,
    written_before: AtomicU64,
    _sender: [u64; 3],
    head: AtomicU64,
    ready: AtomicU32,
    retract: AtomicU32,
    bells: AtomicU32,
    drained: AtomicU32,
    _receiver: [u64; 5],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Words>() == 128 && core::mem::offset_of!(Words, head) == 64);

impl Words {
    /// The words of 64 bits, and the others but for the bells.
    fn all(&self) -> ([&AtomicU64; 5], [&AtomicU32; 5]) {
        (
            [&self.tail, &self.switched, &self.head, &self.taking_from, &self.written_before],
            [&self.finished, &self.wanting, &self.ready, &self.retract, &self.drained],
        )
    }

    /// The values of all words, for a model that keeps states and goes back to them.
    pub fn values(&self) -> ([u64; 5], [u32; 5]) {
        let (wide, flags) = self.all();
        (wide.map(|word| word.load(Ordering::Relaxed)), flags.map(|word| word.load(Ordering::Relaxed)))
    }

    /// Words with these [`Words::values`], and no bells.
    pub fn with((wide, flags): ([u64; 5], [u32; 5])) -> Words {
        let words = Words::default();
        let all = words.all();
        all.0.into_iter().zip(wide).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        all.1.into_iter().zip(flags).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        words
    }
}

/// The memory under a stream.
pub trait StreamMemory {
    /// Bytes of the ring: a power of two.
    const ROOM: u64;
    /// The words.
    fn words(&self) -> &Words;
    /// Copies bytes out of the ring. `at` + the length are at most `ROOM`.
    fn load(&self, at: usize, to: &mut [u8]);
    /// Copies bytes into the ring. `at` + the length are at most `ROOM`.
    fn store(&self, at: usize, from: &[u8]);
}

/// A stream. Both ends use the same type. Each function says which end calls it.
pub struct Stream<M>(pub M);

/// The number of times that counts may change while they are read, before that is taken for the other end's malice.
const TRIES: u32 = 1 << 16;

/// In the word of the head: a sender has taken the last bytes back, and they have not all gone the other way yet.
const CLAIMED: u64 = 1 << 63;

impl<M: StreamMemory> Stream<M> {
    /// The way by which bytes go.
    pub fn mode(&self) -> Mode {
        Mode::of(self.0.words().tail.load(Ordering::Acquire))
    }

    /// Changes the mode, if it is still `from`.
    fn change(&self, from: Mode, to: Mode) -> bool {
        let word = &self.0.words().tail;
        let mut old = word.load(Ordering::Relaxed);
        while Mode::of(old) == from {
            let new = to.with(old >> Mode::BITS);
            match word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) => old = other,
            }
        }
        false
    }

    /// Head and tail, the mode as it was after the head was read.
    fn counts(&self) -> Result<(u64, u64, Mode), Broken> {
        let words = self.0.words();
        for _ in 0..TRIES {
            let head_word = words.head.load(Ordering::Acquire);
            let (head, word) = (head_word & !CLAIMED, words.tail.load(Ordering::Acquire));
            let (tail, mode) = (word >> Mode::BITS, Mode::of(word));
            let is_claim_right = head_word & CLAIMED == 0 || mode == Mode::Retracting;
            if tail.wrapping_sub(head) <= M::ROOM && is_claim_right {
                return Ok((head, tail, mode));
            }
            // Others may have moved both ends since the head was read: then it is another one by now.
            if words.head.load(Ordering::Acquire) == head_word {
                return Err(Broken);
            }
        }
        Err(Broken)
    }

    /// Bytes in the ring that the receiver may read.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn readable(&self) -> Result<u64, Broken> {
        let (head, tail, mode) = self.counts()?;
        Ok(if mode == Mode::Retracting { 0 } else { tail.wrapping_sub(head) })
    }

    /// Bytes that the sender may put into the ring.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn room(&self) -> Result<u64, Broken> {
        let (head, tail, _) = self.counts()?;
        Ok(M::ROOM - tail.wrapping_sub(head))
    }

    /// Receiver: copies bytes out of the ring; with `peek` they stay there. 0: there is none to be read.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn read(&self, to: &mut [u8], peek: bool) -> Result<usize, Broken> {
        for _ in 0..TRIES {
            let (head, tail, mode) = self.counts()?;
            let there = if mode == Mode::Retracting { 0 } else { tail.wrapping_sub(head) };
            let some = to.len().min(there as usize);
            if some == 0 {
                return Ok(0);
            }
            let Some(to) = to.get_mut(..some) else { return Err(Broken) };
            self.copy_out(head, to);
            // A copy that another receiver's exchange has overtaken may have been written over meanwhile: even one
            // that only looks must see that the head is still there.
            let next = if peek { head } else { head.wrapping_add(some as u64) };
            if self.0.words().head.compare_exchange(head, next, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return Ok(some);
            }
        }
        Err(Broken)
    }

    fn copy_out(&self, from: u64, to: &mut [u8]) {
        let at = (from % M::ROOM) as usize;
        let (first, second) = to.split_at_mut(to.len().min(M::ROOM as usize - at));
        self.0.load(at, first);
        self.0.load(0, second);
    }

    /// Sender, under the senders' lock: copies as many bytes into the ring as there is room for. 0: there is none, or
    /// the mode is not [`Mode::Ring`].
    ///
    /// # Errors
    /// [`Broken`].
    pub fn write(&self, from: &[u8]) -> Result<usize, Broken> {
        let (head, tail, mode) = self.counts()?;
        if mode != Mode::Ring {
            return Ok(0);
        }
        let some = from.len().min((M::ROOM - tail.wrapping_sub(head)) as usize);
        let at = (tail % M::ROOM) as usize;
        let from = from.get(..some).unwrap_or_default();
        let (first, second) = from.split_at(some.min(M::ROOM as usize - at));
        self.0.store(at, first);
        self.0.store(0, second);
        let (old, new) = (Mode::Ring.with(tail), Mode::Ring.with(tail.wrapping_add(some as u64)));
        let published = self.0.words().tail.compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed);
        Ok(if published.is_ok() { some } else { 0 })
    }

    /// Sender, under the senders' lock: from now on bytes go by the ring; `before` have gone another way.
    pub fn switch(&self, before: u64) {
        self.0.words().switched.store(before, Ordering::Relaxed);
        self.change(Mode::Before, Mode::Ring);
    }

    /// Receiver, once the mode is not [`Mode::Before`]: how many bytes go another way before the ring's first.
    pub fn switched(&self) -> u64 {
        self.0.words().switched.load(Ordering::Relaxed)
    }

    /// Sender: from now on bytes go the other way again, behind those in the ring. It needs no lock.
    pub fn leave(&self) {
        self.change(Mode::Ring, Mode::After);
    }

    /// Sender, under the senders' lock: begins to take back what is in the ring.
    pub fn start_retracting(&self) {
        self.change(Mode::Ring, Mode::Retracting);
    }

    /// Sender: its direction ends, and the kernel will say so, too.
    pub fn set_finished(&self) {
        self.0.words().finished.store(1, Ordering::Release);
    }

    /// Receiver: whether the kernel says, or is about to say, that the direction has ended.
    pub fn is_finished(&self) -> bool {
        self.0.words().finished.load(Ordering::Acquire) != 0
    }

    /// Sender, under the senders' lock, while the mode is [`Mode::Retracting`]: gives the next bytes of the ring to
    /// `away`, which says how many of them went. Ends with [`Mode::After`] when the ring is empty, and then says so.
    ///
    /// `written` says how many bytes have gone the other way so far. The lock's last holder may have died between
    /// taking bytes out of the ring and sending them, or behind that: this number says which of them have gone, and
    /// the rest is put back first. `None`: it is not known, and they are taken for gone.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn take_back(
        &self,
        scratch: &mut [u8],
        written: impl Fn() -> Option<u64>,
        mut away: impl FnMut(&[u8]) -> usize,
    ) -> Result<bool, Broken> {
        let words = self.0.words();
        let left = words.head.load(Ordering::Acquire);
        if left & CLAIMED != 0 {
            let from = words.taking_from.load(Ordering::Relaxed);
            let taken = (left & !CLAIMED).wrapping_sub(from);
            if taken == 0 || taken > M::ROOM {
                return Err(Broken);
            }
            let went = written().map_or(taken, |now| now.wrapping_sub(words.written_before.load(Ordering::Relaxed)));
            let head = from.wrapping_add(went.min(taken));
            words.head.store(head, Ordering::Release);
        }
        for _ in 0..TRIES {
            let (head, tail, _) = self.counts()?;
            let some = scratch.len().min(tail.wrapping_sub(head) as usize);
            if some == 0 {
                self.change(Mode::Retracting, Mode::After);
                return Ok(true);
            }
            let Some(bytes) = scratch.get_mut(..some) else { return Err(Broken) };
            self.copy_out(head, bytes);
            let words = self.0.words();
            let before = written();
            words.taking_from.store(head, Ordering::Relaxed);
            words.written_before.store(before.unwrap_or(0), Ordering::Relaxed);
            let claim = if before.is_some() { CLAIMED } else { 0 };
            let claimed = head.wrapping_add(some as u64) | claim;
            if words.head.compare_exchange(head, claimed, Ordering::AcqRel, Ordering::Acquire).is_err() {
                continue;
            }
            let went = away(bytes).min(some);
            // Receivers stay away in this mode, so the rest can be put back.
            self.0.words().head.store(head.wrapping_add(went as u64), Ordering::Release);
            if went < some {
                return Ok(false);
            }
        }
        Err(Broken)
    }

    /// Receiver: says that it reads the ring from now on.
    pub fn set_ready(&self) {
        self.0.words().ready.store(1, Ordering::Release);
    }

    /// Bytes that were ever put into the ring, if the sender is to be believed: another number is news.
    pub fn written(&self) -> u64 {
        self.0.words().tail.load(Ordering::Acquire) >> Mode::BITS
    }

    /// Bytes that were ever taken out of the ring, if the receiver is to be believed: another number is a sign of life.
    pub fn taken(&self) -> u64 {
        self.0.words().head.load(Ordering::Relaxed)
    }

    /// Whether the receiver reads the ring.
    pub fn is_ready(&self) -> bool {
        self.0.words().ready.load(Ordering::Acquire) != 0
    }

    /// Receiver: asks for the other way.
    pub fn ask_to_retract(&self) {
        self.0.words().retract.store(1, Ordering::SeqCst);
    }

    /// Sender: whether the receiver has asked for the other way.
    pub fn is_asked_to_retract(&self) -> bool {
        self.0.words().retract.load(Ordering::Relaxed) != 0
    }

    /// Receiver: all that went another way before the ring is read.
    pub fn set_drained(&self) {
        self.0.words().drained.store(1, Ordering::Release);
    }

    /// Receiver: whether all that went another way before the ring is read.
    pub fn is_drained(&self) -> bool {
        self.0.words().drained.load(Ordering::Acquire) != 0
    }

    /// Receiver: it may sleep by these bells from now on.
    pub fn add_bells(&self, bells: u32) {
        let word = &self.0.words().bells;
        if word.load(Ordering::Relaxed) & bells != bells {
            word.fetch_or(bells, Ordering::SeqCst);
        }
    }

    /// Sender, after a change: by which bells the receiver sleeps, if it does.
    pub fn bells(&self) -> u32 {
        fence(Ordering::SeqCst);
        self.0.words().bells.load(Ordering::Relaxed)
    }

    /// Sender: announces that it waits for room. It has to try once more before it sleeps.
    pub fn announce_want(&self) {
        self.0.words().wanting.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Receiver, after a read: whether a waiting sender has to be rung for. It is once a quarter of the ring is free.
    pub fn must_make_room_known(&self) -> bool {
        fence(Ordering::SeqCst);
        let word = &self.0.words().wanting;
        word.load(Ordering::Relaxed) != 0
            && self.room().is_ok_and(|room| room >= M::ROOM / 4)
            && word.swap(0, Ordering::Relaxed) != 0
    }
}

#[cfg(not(loom))]
mod pair {
    use super::{StreamMemory, Words};
    use crate::backing::Backing;

    /// Two streams in one piece of memory, one for each direction.
    pub struct Pair<B> {
        backing: B,
    }

    /// Bytes of one direction's ring.
    const ROOM: usize = 256 << 10;
    /// Where the rings begin: the words have a page of their own.
    const DATA: usize = 4096;

    impl<B: Backing> Pair<B> {
        /// Bytes that are needed.
        pub const LEN: usize = DATA + 2 * ROOM;

        /// `None` if the memory has another size.
        pub fn new(backing: B) -> Option<Self> {
            (backing.len() == Self::LEN).then_some(Pair { backing })
        }

        /// One direction.
        pub fn way(&self, second: bool) -> Way<'_, B> {
            Way { pair: self, second }
        }
    }

    /// The memory of one direction of a [`Pair`].
    pub struct Way<'a, B> {
        pair: &'a Pair<B>,
        second: bool,
    }

    impl<B: Backing> Way<'_, B> {
        fn data(&self, at: usize, len: usize) -> *mut u8 {
            assert!(at <= ROOM && len <= ROOM - at, "the caller keeps to the ring");
            let start = DATA + if self.second { ROOM } else { 0 };
            self.pair.backing.base().as_ptr().wrapping_add(start + at)
        }
    }

    impl<B: Backing> StreamMemory for Way<'_, B> {
        const ROOM: u64 = ROOM as u64;

        fn words(&self) -> &Words {
            let at = if self.second { 128 } else { 0 };
            // SAFETY: the backing is aligned to 64 bytes, longer than both, and lives as long as the pair; `Words` is
            // nothing but atomics and padding that no code reads.
            unsafe { &*self.pair.backing.base().as_ptr().add(at).cast::<Words>() }
        }

        fn load(&self, at: usize, to: &mut [u8]) {
            // SAFETY: `data` has checked that the range lies in the ring, which lies in the backing, and `to` is our
            // own memory, which does not overlap it. The other end may write meanwhile: the bytes are then any bytes,
            // and are not looked at.
            unsafe { core::ptr::copy_nonoverlapping(self.data(at, to.len()), to.as_mut_ptr(), to.len()) }
        }

        fn store(&self, at: usize, from: &[u8]) {
            // SAFETY: as in `load`.
            unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), self.data(at, from.len()), from.len()) }
        }
    }
}

#[cfg(not(loom))]
pub use pair::{Pair, Way as PairWay};

#[cfg(all(test, loom))]
#[path = "stream_loom_tests.rs"]
mod loom_tests;

#[cfg(all(test, not(loom)))]
#[path = "stream_tests.rs"]
mod tests;
