//! The side that appends records.

use std::collections::VecDeque;
use std::hint::cold_path;

use wire::{Fault, Payload};

use super::{BODY, Broken, GRAIN, Position, PushError, RingMemory, Stamp, lower, raise, round_up};
use crate::store_policy::{StorePolicy, Stores};
use crate::sync::{Ordering, fence};

/// The appending side.
pub struct Producer<M> {
    memory: M,
    pub(super) at: Position,
    /// The line of the slot there.
    pub(super) line: u32,
    /// The consumer's count when last read: never more than `at.count`, never less than before.
    pub(super) consumed: u64,
    /// Bulk bytes ever given out, skipped ones included.
    pub(super) head: u64,
    /// Bulk bytes that are free again, of those.
    pub(super) tail: u64,
    /// Up to here, counted like `head`, lines were taken back, see [`Producer::claim_bulk`].
    claimed: u64,
    /// Of the records in the bulk area that are not known to have been taken: the count behind each, and `head` after
    /// it.
    pub(super) ends: VecDeque<(u64, u64)>,
    /// See [`Producer::call_for_room`].
    calls: bool,
    broken: bool,
    /// The stores by which payloads are best written to the bulk area.
    store_policy: StorePolicy,
}

impl<M: RingMemory> Producer<M> {
    /// The producer of a ring that is all zeros.
    pub fn new(memory: M) -> Self {
        const {
            assert!(M::SLOTS.is_power_of_two() && M::SLOTS >= 4 && M::SLOTS <= 1 << 16);
            assert!(M::CLAIM.is_power_of_two() && M::CLAIM < M::SLOTS);
            assert!(M::BULK.is_multiple_of(GRAIN) && M::BULK <= 4096 * GRAIN);
            assert!(round_up(M::SEGMENT) <= M::BULK / 8 && M::SEGMENT < 1 << 15);
        }
        Producer {
            memory,
            at: Position::START,
            line: M::line(0),
            consumed: 0,
            head: 0,
            tail: 0,
            claimed: 0,
            // For all that there may be: no message waits for memory.
            ends: VecDeque::with_capacity(M::SLOTS as usize),
            calls: true,
            broken: false,
            store_policy: StorePolicy::default(),
        }
    }

    /// Whether the consumer is to ring when it has made room, as it does at first. A producer that looks for room again
    /// and again saves it the system call, and itself the waking.
    pub fn call_for_room(&mut self, calls: bool) {
        self.calls = calls;
    }

    /// The memory under it.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Records appended so far.
    pub fn count(&self) -> u64 {
        self.at.count
    }

    /// True once the consumer has published nonsense.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Appends a record: a header of the first 3, 4, 5 or 7 of these words, and a payload. It is visible to the
    /// consumer at once; see [`Producer::must_ring`]. Gives the payload's length.
    ///
    /// # Errors
    /// [`PushError`]. Nothing has been appended then.
    #[inline]
    pub fn push(&mut self, header: &[u64; 7], words: usize, payload: &Payload<'_>) -> Result<u32, PushError> {
        let code = match words {
            3 => 0,
            4 => 1,
            5 => 2,
            7 => 3,
            _ => return Err(PushError::Length),
        };
        let mut total = payload.prefix.len() as u64;
        for span in payload.spans {
            total += u64::from(span.len);
        }
        if total > u64::from(M::SEGMENT) {
            return Err(PushError::Length);
        }
        let len = total as u32;
        let inside = len <= BODY - 8 * words as u32;
        let bulk = if inside { 0 } else { round_up(len) };
        if !self.fits(bulk) {
            self.wait_for(bulk)?;
        }

        let line = self.line;
        let mut stores = Stores::Through;
        let grain = if inside {
            if len > 0 {
                let data = gather(payload).map_err(|Fault| PushError::Fault)?;
                self.memory.store_body(line, words, &data[..len.div_ceil(8) as usize]);
            }
            self.memory.store_body(line, 0, &header[..words]);
            None
        } else {
            let start = self.place(bulk);
            let at = (start % u64::from(M::BULK)) as u32;
            stores = self.store_policy.stores(len, || self.memory.nanos());
            self.memory.store_bulk(at, payload, stores).map_err(|Fault| PushError::Fault)?;
            self.head = start + u64::from(bulk);
            self.ends.push_back((self.at.count + 1, self.head));
            self.memory.store_body(line, 0, &header[..words]);
            Some(at / GRAIN)
        };
        self.publish(code, len, grain);
        // Not behind a whole segment: most are parts of a long message, the next is written at once, and nothing is
        // won.
        if grain.is_some() && stores == Stores::Through && len < M::SEGMENT {
            self.claim_bulk(bulk);
        }
        Ok(len)
    }

    /// Appends a record with a header of 3 or 4 words and at most 8 bytes of payload, the word behind it. False if
    /// there is no room, or something is wrong: [`Producer::push`] says which.
    #[inline(always)]
    pub fn push_short(&mut self, body: &[u64; 5], four: bool, len: u32) -> bool {
        if len > 8 || !self.fits(0) && !self.finds_room() {
            cold_path();
            return false;
        }
        self.memory.store_body(self.line, 0, body);
        self.publish(u32::from(four), len, None);
        true
    }

    /// A record will be appended very soon: a good moment to take the next slot's cache line from the consumer, which
    /// waits at it.
    #[inline(always)]
    pub fn expect_push(&self) {
        self.memory.expect_write(self.line);
    }

    /// Shows the record in the next slot to the consumer.
    #[inline(always)]
    fn publish(&mut self, code: u32, len: u32, grain: Option<u32>) {
        let stamp = Stamp { lap: self.at.lap, code, len, grain };
        // Release: a consumer that sees the stamp sees the body and the payload.
        self.memory.stamp(self.line).store(stamp.pack(), Ordering::Release);
        self.at.step(M::SLOTS);
        self.line = M::line(self.at.slot(M::SLOTS));
        if self.at.count.is_multiple_of(u64::from(M::CLAIM)) {
            self.claim();
        }
    }

    /// Takes the cache lines of some slots back from the consumer, which has read them, all at once: behind the next
    /// slot, at which the consumer waits.
    ///
    /// By stores, because on some processors (AMD's of family 25) the hint to do so, `prefetchw`, does nothing for a
    /// line that is still here, if only to be read, as all of these are. Each store would then wait for its line to
    /// come back when a record is written, one after the other: stores become visible in order, and what waits for one
    /// record fills the processor's queue of stores. Those here wait together.
    #[inline]
    fn claim(&self) {
        let next = self.at.count;
        if next + u64::from(M::CLAIM) - self.consumed >= u64::from(M::SLOTS) {
            return; // the last of them may still be to be read
        }
        for slot in self.at.slot(M::SLOTS) + 1..=self.at.slot(M::SLOTS) + M::CLAIM {
            // A word that a record which needs it writes again, before its stamp.
            self.memory.store_body(M::line(slot & (M::SLOTS - 1)), 6, &[0]);
        }
    }

    /// Takes back the lines of the bulk area that the next payload needs, if it is as long as the last one.
    #[inline]
    fn claim_bulk(&mut self, bulk: u32) {
        let start = self.place(bulk);
        if start + u64::from(bulk) <= self.claimed {
            return;
        }
        let size = u64::from(M::BULK);
        let from = start.max(self.claimed);
        let to = (start + u64::from(bulk)).max(from + u64::from(M::CLAIM * GRAIN)).min(start - start % size + size);
        if to - self.tail > size {
            return; // the last of them may still be to be read
        }
        for at in (from..to).step_by(GRAIN as usize) {
            self.memory.claim_bulk((at % size) as u32);
        }
        self.claimed = to;
    }

    /// Where the next `bulk` contiguous bytes begin, counted like `head`.
    fn place(&self, bulk: u32) -> u64 {
        let size = u64::from(M::BULK);
        let left = size - self.head % size;
        if u64::from(bulk) > left { self.head + left } else { self.head }
    }

    fn fits(&self, bulk: u32) -> bool {
        self.at.count - self.consumed < u64::from(M::SLOTS)
            && (bulk == 0 || self.place(bulk) + u64::from(bulk) - self.tail <= u64::from(M::BULK))
    }

    /// Reads the consumer's count and frees what it has passed.
    pub(super) fn refresh(&mut self) -> Result<(), Broken> {
        // Acquire: the consumer's reads of a slot are over before we write it again.
        let consumed = self.memory.consumed().load(Ordering::Acquire);
        if self.broken || consumed < self.consumed || consumed > self.at.count {
            self.broken = true;
            return Err(Broken);
        }
        if consumed > self.consumed {
            self.consumed = consumed;
            while let Some((_, tail)) = self.ends.pop_front_if(|&mut (count, _)| count <= consumed) {
                self.tail = tail;
            }
        }
        Ok(())
    }

    /// True if the consumer has passed a slot since its count was read last.
    #[cold]
    fn finds_room(&mut self) -> bool {
        self.refresh().is_ok() && self.fits(0)
    }

    /// Looks for room; if there is none, says so to the consumer and looks once more.
    #[cold]
    fn wait_for(&mut self, bulk: u32) -> Result<(), PushError> {
        self.refresh().map_err(|Broken| PushError::Broken)?;
        if self.fits(bulk) {
            return Ok(());
        }
        if !self.calls {
            return Err(PushError::Full);
        }
        raise(self.memory.waiting());
        // With the fence in `Consumer::publish`: either we see its count, or it sees that we wait.
        fence(Ordering::SeqCst);
        self.refresh().map_err(|Broken| PushError::Broken)?;
        if self.fits(bulk) {
            lower(self.memory.waiting());
            return Ok(());
        }
        Err(PushError::Full)
    }

    /// True if there is room for a record of any size. If not, the consumer will ring when it has made some, unless it
    /// need not ([`Producer::call_for_room`]).
    ///
    /// # Errors
    /// [`Broken`].
    pub fn has_room(&mut self) -> Result<bool, Broken> {
        let bulk = round_up(M::SEGMENT);
        if self.fits(bulk) {
            return Ok(true);
        }
        match self.wait_for(bulk) {
            Ok(()) => Ok(true),
            Err(PushError::Broken) => Err(Broken),
            Err(_) => Ok(false),
        }
    }

    /// Bytes of the bulk area that are free by what the consumer says now.
    pub fn bulk_left(&self) -> u32 {
        let consumed = self.memory.consumed().load(Ordering::Acquire);
        let taken =
            if consumed <= self.at.count { self.ends.partition_point(|&(count, _)| count <= consumed) } else { 0 };
        let tail = taken.checked_sub(1).and_then(|last| self.ends.get(last)).map_or(self.tail, |&(_, tail)| tail);
        M::BULK.saturating_sub((self.head - tail) as u32)
    }

    /// True if the consumer has taken the first `count` records.
    pub fn taken(&self, count: u64) -> bool {
        if self.consumed >= count {
            return true;
        }
        let now = self.memory.consumed().load(Ordering::Acquire);
        now >= count && now <= self.at.count
    }

    /// True if the consumer has announced that it sleeps. It may have changed its mind meanwhile.
    #[inline]
    pub fn peer_sleeps(&self) -> bool {
        self.memory.sleeping().load(Ordering::Relaxed) != 0
    }

    /// True if the consumer sleeps and must be rung for what was pushed before `wake_fence` was called. Says so once
    /// per sleep.
    #[inline]
    pub fn must_ring(&self) -> bool {
        let sleeping = self.memory.sleeping();
        sleeping.load(Ordering::Relaxed) != 0 && lower(sleeping)
    }
}

/// Copies a payload that fits into a body; as words, for the body is written word by word.
fn gather(payload: &Payload<'_>) -> Result<[u64; 4], Fault> {
    let mut bytes = [0u8; 32];
    let mut at = payload.prefix.len();
    bytes[..at].copy_from_slice(payload.prefix);
    for span in payload.spans {
        let end = at + span.len as usize;
        crate::local::load(span.addr, span.guarded, &mut bytes[at..end])?;
        at = end;
    }
    let (words, _) = bytes.as_chunks::<8>();
    Ok(core::array::from_fn(|i| u64::from_ne_bytes(words[i])))
}
