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
//! wrote: against the queue's [`QueueRules`], then as any request is (list, keys, bounds, domain). A patch must
//! be complete before the entry is enabled, or before the WAIT in front of it is met: a message that arrives is in
//! memory before its completion is counted.
//!
//! **A cyclic queue** is filled once, and runs in a circle: entry `n` is executed from place `n % depth`, and an ENABLE
//! may name any count. Entry `n` begins when entry `n - depth` has completed. Counts in tasks are absolute, so each
//! task says what is added to its count per turn of the circle (`step`).

use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;
use verbs::{CqId, Errno, LKey, Opcode, PdId, RecvWr, Result, Sge};
use wire::{EntryArray, Span};

use crate::region::{NULL_ADDR, Regions};

/// Bytes of the first entry of a request, and of each following one.
const ENTRY: usize = 64;
const WORDS: usize = ENTRY / 8;
/// The first word of the scatter/gather list.
const LIST: usize = 6;
/// The operation of a receive's entry: bits 0..8 of its first word.
const RECV: u64 = 0x84;

/// The words of an entry as it was posted, or bits for each of them. They are compared with the words of the array two
/// at a time: aligned, they take no loads of their own.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u64; WORDS]);

/// The words of a request, copied.
pub(crate) type Words = SmallVec<[u64; 4 * WORDS]>;

/// A request as it is in the array, and as it was posted.
type Request<'a> = (&'a [[AtomicU64; WORDS]], &'a [Line]);

/// What a managed queue executes of what was written over its entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueRules {
    /// Operations ([`Opcode::bit`]) that a patched entry may have beside the one that was posted. NOP is always
    /// allowed. No meaning for receives.
    pub opcodes: u64,
    /// Bytes that may be patched, one bit for each: of the first 64 bytes of a request, and of each further 64.
    pub patchable: [u64; 2],
    /// The queue runs in a circle.
    pub cyclic: bool,
}

/// A managed queue of a new queue pair: its memory, of [`array_bytes`], and its rules.
pub type ManagedQueue = (EntryArray, QueueRules);

/// The managed queues of a new queue pair.
#[derive(Clone, Default)]
pub struct Managed {
    /// The send queue, if it is managed.
    pub send: Option<ManagedQueue>,
    /// The receive queue, if it is managed.
    pub recv: Option<ManagedQueue>,
}

impl std::fmt::Debug for Managed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rules = |queue: &Option<ManagedQueue>| queue.as_ref().map(|queue| queue.1);
        f.debug_struct("Managed").field("send", &rules(&self.send)).field("recv", &rules(&self.recv)).finish()
    }
}

/// Places of a request of so many scatter/gather entries, of 64 bytes each.
pub(crate) fn stride(max_sge: u32) -> usize {
    1 + (max_sge.max(1) as usize * 16).saturating_sub(16).div_ceil(ENTRY)
}

/// Bytes of the array of a managed queue that is created with these sizes.
pub fn array_bytes(max_wr: u32, max_sge: u32) -> usize {
    max_wr.max(1).next_power_of_two() as usize * stride(max_sge) * ENTRY
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

/// Entries that queues with tasks may begin for the messages that have come.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Credit(u32);

impl Credit {
    /// Notes a message.
    pub fn give(&mut self) {
        const EACH: u32 = 32;
        const MOST: u32 = 1 << 16;
        self.0 = (self.0 + EACH).min(MOST);
    }

    /// Takes back what was used up for an entry.
    pub fn take_back(&mut self) {
        self.0 += 1;
    }

    /// Uses credit for one entry up, if there is any.
    pub fn use_up(&mut self) -> bool {
        let some = self.0 > 0;
        self.0 = self.0.saturating_sub(1);
        some
    }
}

/// The entries of a managed queue.
pub(crate) struct Entries {
    array: EntryArray,
    pub rules: QueueRules,
    /// The entries as they were posted.
    template: Box<[Line]>,
    /// The bits that may not be patched: of the first 64 bytes of a request, and of each further 64.
    fixed: [Line; 2],
    /// Words of a request.
    stride: usize,
    /// Places, less 1.
    mask: u64,
}

impl Entries {
    /// # Errors
    /// EINVAL: the array is too small; ENOMEM.
    pub fn new(queue: &ManagedQueue, depth: u32, max_sge: u32) -> Result<Self> {
        let (array, rules) = queue;
        let words = array_bytes(depth, max_sge) / 8;
        if array.words().len() < words {
            return Err(Errno::EINVAL);
        }
        let mut template = Vec::new();
        template.try_reserve_exact(words / WORDS).map_err(|_| Errno::ENOMEM)?;
        template.resize(words / WORDS, Line([0; WORDS]));
        let mask = u64::from(depth.max(1).next_power_of_two()) - 1;
        Ok(Entries {
            array: array.clone(),
            rules: *rules,
            template: template.into(),
            fixed: rules.patchable.map(|bits| Line(std::array::from_fn(|i| !bytes_of((bits >> (i * 8)) as u8)))),
            stride: stride(max_sge) * WORDS,
            mask,
        })
    }

    pub fn array(&self) -> &EntryArray {
        &self.array
    }

    /// Bytes of a request.
    pub fn stride(&self) -> u32 {
        (self.stride * 8) as u32
    }

    /// The first word of a request.
    pub fn base(&self, number: u64) -> usize {
        (number & self.mask) as usize * self.stride
    }

    /// Keeps the words of a request as they were posted.
    pub fn keep(&mut self, number: u64) {
        let base = self.base(number);
        let template = self.template.iter_mut().flat_map(|line| &mut line.0);
        for (kept, word) in template.zip(self.array.words()).skip(base).take(self.stride) {
            *kept = word.load(Ordering::Relaxed);
        }
    }

    /// A copy of the words of a request, which is all that is used of them; `None` if they break a rule.
    pub fn checked(&self, number: u64) -> Option<Words> {
        let mut words = Words::new();
        self.check(number, |chunk| words.extend_from_slice(chunk)).is_none().then_some(words)
    }

    /// Such a copy of a request of 64 bytes. `None` for longer ones, too.
    #[inline(always)]
    pub fn only(&self, number: u64) -> Option<[u64; WORDS]> {
        if self.stride != WORDS {
            return None;
        }
        let at = (number & self.mask) as usize;
        let words = self.array.words().as_chunks().0.get(at)?;
        let template = self.template.get(at)?;
        let (chunk, changed) = self.compare(words, template, 0);
        (changed == 0 && self.may_be(template.0[0] as u8, chunk[0] as u8)).then_some(chunk)
    }

    /// The first 64 bytes of such a copy.
    #[inline(always)]
    pub fn first(&self, number: u64) -> Option<[u64; WORDS]> {
        if self.stride == WORDS {
            return self.only(number);
        }
        let mut first = None;
        self.check(number, |chunk| _ = first.get_or_insert(*chunk)).is_none().then_some(())?;
        first
    }

    /// A copy of 64 bytes, and the bits that were patched in it and must not be.
    #[inline(always)]
    fn compare(&self, words: &[AtomicU64; WORDS], template: &Line, kind: usize) -> ([u64; WORDS], u64) {
        // A patch is complete before the entry is enabled, or its WAIT is met: what does either orders these loads
        // behind the patch.
        let chunk = words.each_ref().map(|word| word.load(Ordering::Relaxed));
        let mut changed = 0;
        for ((word, kept), fixed) in chunk.iter().zip(&template.0).zip(&self.fixed[kind].0) {
            changed |= (word ^ kept) & fixed;
        }
        (chunk, changed)
    }

    /// True if an entry that was posted with one operation may have another one now.
    #[inline(always)]
    fn may_be(&self, posted: u8, now: u8) -> bool {
        posted == now
            || Opcode::Nop as u8 == now
            || Opcode::from_entry(now).is_some_and(|op| self.rules.opcodes & op.bit() != 0)
    }

    /// The rule that a request breaks.
    pub fn broken(&self, number: u64) -> Option<&'static str> {
        self.check(number, |_| ())
    }

    /// A request as it is in the array, and as it was posted, 64 bytes at a time.
    #[inline(always)]
    fn request(&self, number: u64) -> Option<Request<'_>> {
        let chunks = self.stride / WORDS;
        let at = (number & self.mask) as usize * chunks;
        let words = self.array.words().as_chunks().0.get(at..at + chunks)?;
        Some((words, self.template.get(at..at + chunks)?))
    }

    /// Copies a request, 64 bytes at a time, for `take`; the rule that the copy breaks.
    #[inline(always)]
    fn check(&self, number: u64, mut take: impl FnMut(&[u64; WORDS])) -> Option<&'static str> {
        let Some(([words, more @ ..], [template, others @ ..])) = self.request(number) else {
            return Some("the queue has no such entry");
        };
        let (chunk, mut patched) = self.compare(words, template, 0);
        let (posted, now) = (template.0[0] as u8, chunk[0] as u8);
        take(&chunk);
        for (words, template) in more.iter().zip(others) {
            let (chunk, changed) = self.compare(words, template, 1);
            patched |= changed;
            take(&chunk);
        }
        if patched != 0 {
            return Some("the entry was patched in bytes that its queue does not allow to be patched");
        }
        (!self.may_be(posted, now)).then_some("the entry was patched to an operation that its queue does not allow")
    }

    /// Adds to the count of an executed task, which the device counts on itself.
    pub fn count_on(&mut self, number: u64, step: u32) {
        let at = self.base(number) + 2;
        if let (Some(Line(kept)), Some(word)) = (self.template.get_mut(at / WORDS), self.array.words().get(at)) {
            let kept = &mut kept[at % WORDS];
            *kept = kept.wrapping_add(step.into());
            // A patch is complete before its entry begins, so that no locked addition is needed.
            word.store(word.load(Ordering::Relaxed).wrapping_add(step.into()), Ordering::Relaxed);
        }
    }
}

/// The part of a managed send queue that an ordinary one does not have.
pub(crate) struct ManagedSend {
    pub entries: Entries,
    /// Entries that may be executed, counted from the first one.
    pub enabled: u64,
    pub base: Base,
    /// A look at the room of the queue is to come.
    pub looks_again: bool,
}

/// The part of a managed receive queue that an ordinary one does not have.
pub(crate) struct ManagedRecv {
    pub entries: Entries,
    /// Receives that may be taken, counted from the first one.
    pub enabled: u64,
    /// Receives that were taken.
    pub taken: u64,
    /// The list of an earlier receive, for the next one.
    spare: SmallVec<[Sge; 2]>,
    /// The `wr_id` of the receive that was looked at last.
    peeked: u64,
    /// The rule that the receive taken last breaks.
    pub broken: Option<&'static str>,
    pub base: Base,
}

impl ManagedRecv {
    pub fn new(entries: Entries) -> Self {
        ManagedRecv {
            entries,
            enabled: 0,
            taken: 0,
            spare: SmallVec::new(),
            peeked: 0,
            broken: None,
            base: Base::default(),
        }
    }

    /// Writes a receive into its place.
    pub fn write(&mut self, number: u64, wr: &RecvWr<'_>) {
        let at = self.entries.base(number);
        let put = |offset: usize, value: u64| {
            if let Some(word) = self.entries.array().words().get(at + offset) {
                word.store(value, Ordering::Relaxed);
            }
        };
        put(0, RECV | (wr.sges.len() as u64) << 16);
        put(1, wr.wr_id);
        (2..LIST).for_each(|offset| put(offset, 0));
        for (i, sge) in wr.sges.iter().enumerate() {
            put(LIST + 2 * i, sge.addr);
            put(LIST + 2 * i + 1, u64::from(sge.length) | u64::from(sge.lkey.0) << 32);
        }
        self.entries.keep(number);
    }

    /// The receive in a place: `wr_id` and list. The list leads nowhere if the entry breaks a rule.
    pub fn read(&mut self, number: u64) -> (u64, SmallVec<[Sge; 2]>) {
        let mut sges = std::mem::take(&mut self.spare);
        let most = (self.entries.stride - LIST) / 2;
        let (mut head, mut count, mut filled) = (None, 0, 0);
        // The list is made from each piece of the copy as it comes: it may have many entries, of which a second copy
        // would cost more than the first.
        self.broken = self.entries.check(number, |chunk| {
            let list = match head {
                None => {
                    (head, count) = (Some(chunk[1]), (chunk[0] >> 16) as u16 as usize);
                    // The list of the receive before is overwritten: mostly it is as long.
                    sges.resize(count.min(most), Sge::default());
                    &chunk[LIST..]
                }
                Some(_) => chunk,
            };
            let places = sges.iter_mut().skip(filled);
            for (place, &[addr, second]) in places.zip(list.as_chunks::<2>().0) {
                *place = Sge { addr, length: second as u32, lkey: LKey((second >> 32) as u32) };
            }
            filled += list.len() / 2;
        });
        if self.broken.is_some() || count > most {
            sges.clear();
            sges.push(Sge { addr: 0, length: u32::MAX, lkey: LKey(0) });
        }
        (head.unwrap_or_default(), sges)
    }

    /// Puts the memory of the next receive, as much of it as a message of `len` bytes takes, into `spans`. The receive
    /// is not taken. False if the entry breaks a rule, or if its list is no plain memory of that length.
    #[inline(always)]
    pub fn peek(&mut self, mem: &Regions, pd: Option<PdId>, len: u32, spans: &mut Vec<Span>) -> bool {
        let Some(([words, more @ ..], [template, others @ ..])) = self.entries.request(self.taken) else {
            return false;
        };
        let (chunk, mut patched) = self.entries.compare(words, template, 0);
        let may_be = self.entries.may_be(template.0[0] as u8, chunk[0] as u8);
        self.peeked = chunk[1];
        let (count, mut left) = ((chunk[0] >> 16) as u16 as usize, len);
        let mut sound = count <= (self.entries.stride - LIST) / 2;
        spans.clear();
        let mut to_come = count;
        let [.., addr, second] = chunk;
        if to_come > 0 {
            to_come -= 1;
            sound &= take(mem, pd, [addr, second], &mut left, spans);
        }
        for (words, template) in more.iter().zip(others) {
            let (chunk, changed) = self.entries.compare(words, template, 1);
            patched |= changed;
            for &words in chunk.as_chunks().0.iter().take(to_come) {
                sound &= take(mem, pd, words, &mut left, spans);
            }
            to_come = to_come.saturating_sub(ENTRY / 16);
        }
        patched == 0 && may_be && sound && left == 0
    }

    /// Takes the receive that was looked at last; its `wr_id`.
    pub fn take_peeked(&mut self) -> u64 {
        self.taken += 1;
        self.peeked
    }

    /// Takes the list of a receive back that is completed: the next one needs no memory then.
    pub fn reuse(&mut self, list: SmallVec<[Sge; 2]>) {
        self.spare = list;
    }
}

/// Adds the memory of a member of a list to `spans`, as much of it as is left of a message. False if it is no plain
/// memory.
#[inline(always)]
fn take(mem: &Regions, pd: Option<PdId>, [addr, second]: [u64; 2], left: &mut u32, spans: &mut Vec<Span>) -> bool {
    let sge = Sge { addr, length: second as u32, lkey: LKey((second >> 32) as u32) };
    let len = sge.length.min(*left);
    *left -= len;
    if len == 0 {
        return true;
    }
    let Ok(span) = mem.local_here(pd, &sge, true) else { return false };
    spans.push(Span { len, ..span });
    !span.guarded && span.addr != NULL_ADDR
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
