//! Marks around single copies, so that a process that wants its memory back can wait for those that are under way.
//!
//! The target of a request copies directly from or to the initiator's memory, at a time of its choosing. The initiator
//! can give the request up at any time. It makes the request's ticket void, and the target looks at the ticket before
//! it copies; but between that look and the end of the copy the initiator's program must not get its memory back. So
//! the target *marks* that time in a word of the window, odd while it copies:
//!
//! ```text
//! target                          initiator
//! mark = odd                      ticket = void
//! fence                           fence
//! look at the ticket, copy        look at the mark: if odd, wait until it is another
//! mark = even
//! ```
//!
//! Either the target sees that the ticket is void, or the initiator sees the mark (Dekker). The look at the ticket is a
//! system call (`process_vm_readv`), which reads at some time after the fence. No process waits while a copy of its own
//! is marked, so two that wait for each other both go on. The mark is input like everything in the window: a peer may
//! write nonsense there, so no wait for it is without end.
//!
//! Bits 0-31 of the mark are its number, and bits 32-63 the key by which the copy goes: an initiator that takes back
//! one key waits for no copy that goes by another one. Key 0 is that of copies that go by no key, and concerns every
//! wait.

use crate::sync::{AtomicU64, Ordering, fence};

/// The target's side: what it has marked so far. One for each window.
#[derive(Default)]
pub struct Copier {
    /// The number of the mark: even while nothing is copied.
    number: u32,
}

impl Copier {
    /// Runs `copy` marked: it looks at the ticket, and copies if that is not void.
    pub fn marked<R>(&mut self, word: &AtomicU64, copy: impl FnOnce() -> R) -> R {
        self.marked_by(word, 0, copy)
    }

    /// As [`Copier::marked`], for a copy that goes by a key.
    pub fn marked_by<R>(&mut self, word: &AtomicU64, key: u32, copy: impl FnOnce() -> R) -> R {
        self.number = self.number.wrapping_add(1);
        // Release: an initiator that waits for the copy before this one may see only this mark, and not the even one
        // before it.
        word.store(u64::from(key) << 32 | u64::from(self.number), Ordering::Release);
        // With the fence in `under_way`.
        fence(Ordering::SeqCst);
        let result = copy();
        self.number = self.number.wrapping_add(1);
        // Release: an initiator that sees this mark sees the copy done.
        word.store(self.number.into(), Ordering::Release);
        result
    }
}

/// The initiator's side, after it has made a ticket void: a copy that may be under way still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnderWay(u64);

/// The copy that the peer has marked, if there is one. One that begins later sees that the ticket is void.
pub fn under_way(word: &AtomicU64) -> Option<UnderWay> {
    // With the fence in `Copier::marked`.
    fence(Ordering::SeqCst);
    let mark = word.load(Ordering::Acquire);
    (mark % 2 == 1).then_some(UnderWay(mark))
}

impl UnderWay {
    /// True if the copy may go by this key.
    pub fn concerns(self, key: u32) -> bool {
        let of = (self.0 >> 32) as u32;
        of == 0 || of == key
    }

    /// True while it is.
    pub fn lasts(self, word: &AtomicU64) -> bool {
        // Acquire: its writes are over before ours.
        word.load(Ordering::Acquire) == self.0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_begun_is_under_way() {
        let word = AtomicU64::new(0);
        let mut copier = Copier::default();
        assert_eq!(under_way(&word), None);
        let first = copier.marked(&word, || {
            let seen = under_way(&word).expect("marked");
            assert!(seen.lasts(&word));
            seen
        });
        assert!(!first.lasts(&word));
        assert_eq!(under_way(&word), None);
        let by_key = copier.marked_by(&word, 7, || under_way(&word).expect("marked"));
        assert!(by_key.concerns(7) && !by_key.concerns(8) && first.concerns(8));
        assert!(!by_key.lasts(&word) && !first.lasts(&word));
        // The next one is not waited for: it began after the ticket was void.
        copier.marked(&word, || assert!(!first.lasts(&word)));
    }
}
