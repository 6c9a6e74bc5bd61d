//! Managed queues: queues whose entries are executed only when they have been enabled, by an ENABLE of another queue or
//! by the program, and whose entries may be patched in memory until then.
//!
//! Four operations, the *tasks*, concern queues of the device, and send nothing:
//!
//! | task | effect |
//! |---|---|
//! | NOP | none; it completes like any request |
//! | WAIT | holds back the entries behind it until a completion queue has had a number of completions |
//! | SEND_EN | enables entries of a managed send queue, up to a count |
//! | RECV_EN | enables receives of a managed receive queue, up to a count |
//!
//! **Rules for a patched entry.** An entry is copied once, when it is executed, and checked like one that a stranger
//! wrote: against the queue's [`SendRules`], then as any request is (list, keys, bounds, domain). A patch must
//! be complete before the entry is enabled, or before the WAIT in front of it is met: a message that arrives is in
//! memory before its completion is counted.
//!
//! **A cyclic queue** is filled once, and runs in a circle: entry `n` is executed from place `n % depth`, and an ENABLE
//! may name any count. Entry `n` begins when entry `n - depth` has completed. Counts in tasks are absolute, so each
//! task says what is added to its count per turn of the circle (`step`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use verbs::{CqId, Errno, Opcode, Result};
use wire::EntryArray;

/// Bytes of the first entry of a request, and of each following one.
const ENTRY: usize = 64;
const WORDS: usize = ENTRY / 8;

/// What a send queue executes of what was written over its entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendRules {
    /// Operations ([`Opcode::bit`]) that a patched entry may have beside the one that was posted. NOP is always
    /// allowed.
    pub opcodes: u64,
    /// Bytes that may be patched, one bit for each: of the first 64 bytes of a request, and of each further 64.
    pub patchable: [u64; 2],
    /// The queue runs in a circle.
    pub cyclic: bool,
}

/// The managed queues of a new queue pair.
#[derive(Clone, Default)]
pub struct Managed {
    /// The send queue is managed: its memory, of [`array_bytes`], and its rules.
    pub send: Option<(Arc<dyn EntryArray>, SendRules)>,
    /// The receive queue is managed; true: it runs in a circle.
    pub recv: Option<bool>,
}

impl std::fmt::Debug for Managed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Managed").field("send", &self.send.as_ref().map(|s| s.1)).field("recv", &self.recv).finish()
    }
}

/// Places of a request of so many scatter/gather entries, of 64 bytes each.
pub(crate) fn stride(max_sge: u32) -> usize {
    1 + (max_sge.max(1) as usize * 16).saturating_sub(16).div_ceil(ENTRY)
}

/// Bytes of the array of a managed send queue that is created with these sizes.
pub fn array_bytes(max_send_wr: u32, max_send_sge: u32) -> usize {
    max_send_wr.max(1).next_power_of_two() as usize * stride(max_send_sge) * ENTRY
}

/// The counts by which an ENABLE or a WAIT is made absolute ([`verbs::Count`]).
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Base {
    from: u64,
    most: u64,
}

impl Base {
    pub fn new(from: u64) -> Self {
        Base { from, most: 0 }
    }

    /// The absolute count of a relative one.
    pub fn place(self, count: u64) -> u64 {
        self.from.saturating_add(count)
    }

    pub fn used(&mut self, count: u64, last: bool) {
        self.most = self.most.max(count);
        if last {
            self.from = self.from.saturating_add(self.most);
            self.most = 0;
        }
    }
}

/// The part of a managed send queue that an ordinary one does not have.
pub(crate) struct ManagedSend {
    pub array: Arc<dyn EntryArray>,
    pub rules: SendRules,
    /// The entries as they were posted.
    template: Box<[u64]>,
    /// Entries that may be executed, counted from the first one.
    pub enabled: u64,
    pub base: Base,
}

impl ManagedSend {
    /// # Errors
    /// EINVAL: the array has not the size of the queue; ENOMEM.
    pub fn new(array: Arc<dyn EntryArray>, rules: SendRules, words: usize) -> Result<Self> {
        if array.words().len() < words {
            return Err(Errno::EINVAL);
        }
        let mut template = Vec::new();
        template.try_reserve_exact(words).map_err(|_| Errno::ENOMEM)?;
        template.resize(words, 0);
        Ok(ManagedSend { array, rules, template: template.into(), enabled: 0, base: Base::default() })
    }

    /// Keeps the words of an entry as they were posted.
    pub fn keep(&mut self, base: usize, words: usize) {
        for (kept, word) in self.template.iter_mut().zip(self.array.words()).skip(base).take(words) {
            *kept = word.load(Ordering::Relaxed);
        }
    }

    /// Adds to a word of the entry that the device itself counts on.
    pub fn count_on(&mut self, at: usize, step: u32) {
        if let (Some(kept), Some(word)) = (self.template.get_mut(at), self.array.words().get(at)) {
            *kept = kept.wrapping_add(step.into());
            word.fetch_add(step.into(), Ordering::Relaxed);
        }
    }

    /// The rule that these words of an entry at `base` break.
    pub fn broken(&self, base: usize, words: &[u64]) -> Option<&'static str> {
        let template = self.template.get(base..base + words.len())?;
        for (i, (word, posted)) in words.iter().zip(template).enumerate() {
            let bits = self.rules.patchable[usize::from(i >= WORDS)] >> (i % WORDS * 8) & 0xff;
            if (word ^ posted) & !bytes_of(bits as u8) != 0 {
                return Some("the entry was patched in bytes that its queue does not allow to be patched");
            }
        }
        let (posted, now) = (*template.first()? as u8, *words.first()? as u8);
        let allowed = Opcode::from_entry(now).is_some_and(|op| op == Opcode::Nop || self.rules.opcodes & op.bit() != 0);
        (posted != now && !allowed).then_some("the entry was patched to an operation that its queue does not allow")
    }
}

/// A word with all bits of the bytes for which `bits` has one.
const fn bytes_of(bits: u8) -> u64 {
    let (mut word, mut i) = (0, 0);
    while i < 8 {
        if bits >> i & 1 != 0 {
            word |= 0xff << (i * 8);
        }
        i += 1;
    }
    word
}

/// The completion queue that a WAIT at the head of a send queue waits for, and the count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waiting {
    pub cq: CqId,
    pub count: u64,
}

/// The part of a managed receive queue that an ordinary one does not have.
#[derive(Clone, Copy, Default)]
pub(crate) struct ManagedRecv {
    pub cyclic: bool,
    /// Receives that may be taken, counted from the first one.
    pub enabled: u64,
    /// Receives that were taken.
    pub taken: u64,
    pub base: Base,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_cover_their_bytes() {
        assert_eq!(bytes_of(0), 0);
        assert_eq!(bytes_of(0xff), u64::MAX);
        assert_eq!(bytes_of(0b1000_0001), 0xff00_0000_0000_00ff);
    }

    /// Several tasks without `last` begin at one place; the place moves on to the greatest of them.
    #[test]
    fn relative_counts_move_on_with_the_last() {
        let mut base = Base::new((1 << 32) - 2);
        for (count, last, expected) in [(1, false, 0), (3, false, 0), (2, true, 0), (1, false, 3)] {
            assert_eq!(base.place(count), (1 << 32) - 2 + expected + count);
            base.used(count, last);
        }
    }
}
