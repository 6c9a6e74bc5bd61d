//! Accounts of messages: each arrives once, whole, and in the order of its sender.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The bytes that identify a message: its sender, and its number.
pub const HEAD: usize = 16;

/// The byte at `at` of a message.
fn byte(from: u64, number: u64, at: usize) -> u8 {
    (from.wrapping_mul(0x9e37_79b9) ^ number.wrapping_mul(0x85eb_ca6b) ^ at as u64).to_le_bytes()[at % 3]
}

/// Write message `number` of `from`.
pub fn fill(out: &mut [u8], from: u64, number: u64) {
    let (head, rest) = out.split_at_mut(HEAD);
    head[..8].copy_from_slice(&from.to_ne_bytes());
    head[8..].copy_from_slice(&number.to_ne_bytes());
    for (at, to) in rest.iter_mut().enumerate() {
        *to = byte(from, number, at);
    }
}

/// The sender and the number of a message.
///
/// # Panics
/// If a byte of it is not the one that was sent.
pub fn read(message: &[u8]) -> (u64, u64) {
    let word = |at: usize| u64::from_ne_bytes(message[at..at + 8].try_into().expect("8 bytes"));
    let (from, number) = (word(0), word(8));
    let wrong = message[HEAD..].iter().enumerate().position(|(at, got)| *got != byte(from, number, at));
    assert_eq!(wrong, None, "message {number} of {from}, {} bytes", message.len());
    (from, number)
}

/// Messages of several senders, each of which counts its own from 0.
pub struct Ledger {
    what: &'static str,
    each: u64,
    seen: Vec<AtomicU8>,
    count: AtomicU64,
}

impl Ledger {
    /// A ledger for `senders`, each of which sends `each`.
    pub fn new(what: &'static str, senders: u64, each: u64) -> Ledger {
        let seen = (0..senders * each).map(|_| AtomicU8::new(0)).collect();
        Ledger { what, each, seen, count: AtomicU64::new(0) }
    }

    /// Enter a message.
    ///
    /// # Panics
    /// If it was there already, or is of no known sender.
    fn enter(&self, from: u64, number: u64) {
        assert!(number < self.each, "{}: {number} of {from}", self.what);
        let entry = self.seen.get((from * self.each + number) as usize);
        let entry = entry.unwrap_or_else(|| panic!("{}: from {from}, who is nobody", self.what));
        assert_eq!(entry.fetch_add(1, Ordering::AcqRel), 0, "{}: {number} of {from} for the second time", self.what);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// True if this message has come.
    pub fn has(&self, from: u64, number: u64) -> bool {
        self.seen[(from * self.each + number) as usize].load(Ordering::Acquire) > 0
    }

    /// The number of messages that have come.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// True if all have come, each once.
    pub fn is_complete(&self) -> bool {
        self.count() == self.seen.len() as u64
    }

    /// The view of a thread that polls.
    pub fn reader(&self) -> Reader<'_> {
        Reader { ledger: self, next: vec![0; self.seen.len().div_ceil(self.each as usize)] }
    }
}

/// One thread that takes completions. The messages that one thread takes are in the order of the queue, so for each
/// sender the numbers rise.
pub struct Reader<'a> {
    ledger: &'a Ledger,
    next: Vec<u64>,
}

impl Reader<'_> {
    /// Enter a message that this thread has taken.
    ///
    /// # Panics
    /// If a later one of the same sender was taken before.
    pub fn take(&mut self, from: u64, number: u64) {
        self.ledger.enter(from, number);
        let next = &mut self.next[from as usize];
        assert!(number >= *next, "{}: {number} of {from} behind {}", self.ledger.what, *next - 1);
        *next = number + 1;
    }
}
