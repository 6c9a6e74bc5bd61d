//! What two processes tell each other of the connections between them: which have news, and by which bell a sleeping
//! thread is woken.
//!
//! ```text
//!  sleeping  u32 each  one for each bell: set by a thread that is about to sleep by it, taken by the one that rings it
//!  knows     u32       which of the bells the other process has received: one bit each
//!  forked    u32       the other process has forked: a connection of it may be a child's, and end with the child
//!  summary   u64       which of the words of `news` may have a bit set
//!  news      u64 each  one bit for each connection: something has changed since its owner looked
//! ```
//!
//! A page has a [`Side`] for each of the two processes. The words of a side are about its process: the other process
//! tells it the news there. A teller writes the connection's own memory first, then calls [`Side::tell`]. The owner
//! passes each bit on before it clears it ([`Side::take`]), and looks at the connection only afterwards: a teller that
//! still sees the bit needs to do nothing more. Before it sleeps the owner announces that ([`Side::announce`]) and
//! looks for news once more. Both are hand-shakes of Dekker's kind: own word, sequentially consistent fence, the
//! other's word.
//!
//! **Trust.** The other process can write anything here. It then causes looks in vain, or sleeps that are too long, on
//! connections with itself: no third process uses the page.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Bells of a process by which the other one can wake its threads.
#[cfg(not(loom))]
pub const BELLS: usize = 16;
#[cfg(loom)]
pub const BELLS: usize = 1;

#[cfg(not(loom))]
const WORDS: usize = 64;
#[cfg(loom)]
const WORDS: usize = 1;

/// Connections that a link can have at the same time.
pub const CONNECTIONS: u32 = WORDS as u32 * 64;

/// What the other process tells one process. All words are 0 at the beginning.
#[repr(C, align(64))]
pub struct Side {
    sleeping: [AtomicU32; BELLS],
    knows: AtomicU32,
    forked: AtomicU32,
    summary: AtomicU64,
    news: [AtomicU64; WORDS],
}

/// Bytes of the memory that two sides lie in.
pub const LEN: usize = 4096;

#[cfg(not(loom))]
const _: () = assert!(2 * size_of::<Side>() <= LEN);

impl Default for Side {
    fn default() -> Self {
        Side {
            sleeping: core::array::from_fn(|_| AtomicU32::new(0)),
            knows: AtomicU32::new(0),
            forked: AtomicU32::new(0),
            summary: AtomicU64::new(0),
            news: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

fn set(word: &AtomicU64, bit: u64) -> bool {
    let is_new = word.load(Ordering::Relaxed) & bit == 0;
    if is_new {
        word.fetch_or(bit, Ordering::AcqRel);
    }
    is_new
}

impl Side {
    /// The other process: says that a connection has news, which are written already, before a sequentially consistent
    /// fence. `ring` is called for each of the bells `bells`, one bit each, by which a thread sleeps.
    pub fn tell(&self, connection: u32, bells: u32, mut ring: impl FnMut(usize)) {
        let at = (connection % CONNECTIONS) as usize / 64;
        let Some(word) = self.news.get(at) else { return };
        if set(word, 1 << (connection % 64)) {
            fence(Ordering::SeqCst);
        }
        if set(&self.summary, 1 << at) {
            fence(Ordering::SeqCst);
        }
        let mut left = bells;
        while left != 0 {
            let bell = left.trailing_zeros() as usize;
            left &= left - 1;
            if let Some(word) = self.sleeping.get(bell)
                && word.load(Ordering::Relaxed) != 0
                && word.swap(0, Ordering::Relaxed) != 0
            {
                ring(bell);
            }
        }
    }

    /// The owner: whether there may be news.
    pub fn has_news(&self) -> bool {
        self.summary.load(Ordering::Relaxed) != 0
    }

    /// The owner: takes all news. `pass_on` is called for each connection, and may be called twice. What it does makes
    /// a thread look at the connection, but no sooner than this function has returned, or has called it again.
    pub fn take(&self, mut pass_on: impl FnMut(u32)) {
        let mut words = self.summary.swap(0, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        while words != 0 {
            let at = words.trailing_zeros();
            words &= words - 1;
            let Some(word) = self.news.get(at as usize) else { continue };
            let bits = word.load(Ordering::Acquire);
            let each = |pass_on: &mut dyn FnMut(u32)| {
                let mut left = bits;
                while left != 0 {
                    pass_on(at * 64 + left.trailing_zeros());
                    left &= left - 1;
                }
            };
            // A thread that is left by longjmp(3) here has lost nothing.
            each(&mut pass_on);
            word.fetch_and(!bits, Ordering::AcqRel);
            fence(Ordering::SeqCst);
            // Another thread may have looked between the two: before the bit was cleared, so perhaps too early.
            each(&mut pass_on);
        }
    }

    /// The owner: a thread is about to sleep by this bell. It has to look once more before it does. The announcement
    /// stays until the bell is rung.
    pub fn announce(&self, bell: usize) {
        if let Some(word) = self.sleeping.get(bell) {
            word.store(1, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// The other process: it has received these bells of the owner's.
    pub fn set_known(&self, bells: u32) {
        self.knows.fetch_or(bells, Ordering::AcqRel);
    }

    /// The other process: it is about to fork.
    pub fn set_forked(&self) {
        self.forked.store(1, Ordering::Release);
    }

    /// The owner: whether the other process has forked since there is the link.
    pub fn has_forked(&self) -> bool {
        self.forked.load(Ordering::Acquire) != 0
    }

    /// The owner: which of its bells the other process has received.
    pub fn known(&self) -> u32 {
        self.knows.load(Ordering::Acquire)
    }
}

#[cfg(all(test, loom))]
#[path = "link_loom_tests.rs"]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn news_are_passed_on_once_and_a_bell_is_rung_only_for_a_sleeper() {
        let side = Side::default();
        let mut rung = Vec::new();
        side.tell(5, 1 << 3, |bell| rung.push(bell));
        side.tell(4095, 0, |bell| rung.push(bell));
        assert!(side.has_news());
        side.announce(3);
        side.tell(5, 1 << 3 | 1 << 4, |bell| rung.push(bell));
        side.tell(6, 1 << 3, |bell| rung.push(bell));
        assert_eq!(rung, [3]);
        let mut news = Vec::new();
        side.take(|connection| news.push(connection));
        news.sort_unstable();
        news.dedup();
        assert_eq!((news, side.has_news()), (vec![5, 6, 4095], false));
        side.take(|_| unreachable!());
    }

    #[test]
    fn numbers_that_make_no_sense_do_no_harm() {
        let side = Side::default();
        side.tell(u32::MAX, u32::MAX, |_| unreachable!());
        side.announce(77);
        side.summary.store(u64::MAX, Ordering::Relaxed);
        side.take(|connection| assert_eq!(connection, CONNECTIONS - 1));
        side.set_known(5);
        assert_eq!((side.known(), side.has_forked()), (5, false));
        side.set_forked();
        assert!(side.has_forked());
    }
}
