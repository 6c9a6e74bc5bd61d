//! A ring of records from one producer to one consumer, over memory that both can write.
//!
//! ```text
//!  control   consumed: u64       written by the consumer, read by the producer when its credit runs out
//!            sleeping: u32       set by the consumer, taken by the producer, who then rings
//!            waiting:  u32       set by the producer (no room), taken by the consumer, who then rings
//!            copying:  u64       the producer's side marks straight copies here, see [`crate::copying`]
//!            joint:    7 x u64   straight copies of the producer's side that the other may help with, see [`crate::joint`]
//!  slots     SLOTS x 64 bytes    stamp (u64), then 56 bytes of body: header, then payload if it fits (in no order)
//!  bulk      BULK bytes          payloads that do not fit, each contiguous and 64-byte aligned
//! ```
//!
//! The stamp is written last: lap number (32 bits), header words, payload length, and where the payload is. Stamps
//! only ever sit at fixed places, so no payload can be taken for one, and a slot never needs to be cleared. A message
//! of 8 bytes with its header is one cache line.
//!
//! **Trust.** Both sides treat what the other wrote as input: copied once, then checked. A stamp or a count that makes
//! no sense is [`Broken`]; never a panic, never an access outside of the window.
//!
//! **Waking.** Both hand-shakes (consumer sleeps, producer waits) are of Dekker's kind: write the own word, sequentially
//! consistent fence, read the other's. The consumer publishes its count without a fence when [`Consumer::peek`] finds the ring empty,
//! and with fence and check of `waiting` whenever a quarter of the ring has passed since it last did so. That is enough:
//! a producer that waits has more than a quarter in flight beyond any count that such a fence ordered before its own.

use std::collections::VecDeque;
use std::hint::cold_path;

use engine::platform::{Fault, Payload};

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::way::{Trial, Way};

/// Bytes of a slot's body.
pub const BODY: u32 = 56;
/// Alignment of payloads in the bulk area.
pub const GRAIN: u32 = 64;

/// The memory under a ring. Implementations: [`crate::Half`], and a model for loom.
pub trait RingMemory {
    /// Number of slots: a power of two, 4 to 65536.
    const SLOTS: u32;
    /// Bytes of the bulk area: a multiple of 64, at most 256 KiB.
    const BULK: u32;
    /// Most bytes of one payload; at most an eighth of `BULK`, and at most 32767.
    const SEGMENT: u32;
    /// So many slots' lines are taken back at once from the consumer who has read them: a power of two, below `SLOTS`.
    const CLAIM: u32 = 8;

    /// In which line a slot lies, a number of its own below `SLOTS`: what the other functions want to know of a slot.
    #[inline(always)]
    fn line(slot: u32) -> u32 {
        slot
    }
    /// The stamp of the slot in this line. `line` is below `SLOTS`.
    fn stamp(&self, line: u32) -> &AtomicU64;
    /// Records taken by the consumer.
    fn consumed(&self) -> &AtomicU64;
    /// Not 0 while the consumer sleeps.
    fn sleeping(&self) -> &AtomicU32;
    /// Not 0 while the producer waits for room.
    fn waiting(&self) -> &AtomicU32;
    /// Copies a slot's body out, once.
    fn load_body(&self, line: u32) -> [u64; 7];
    /// Copies the first words of a slot's body out, once.
    #[inline(always)]
    fn load_short(&self, line: u32) -> [u64; 5] {
        let [a, b, c, d, e, ..] = self.load_body(line);
        [a, b, c, d, e]
    }
    /// Writes words of a slot's body, from the `first` on.
    fn store_body(&self, line: u32, first: usize, words: &[u64]);
    /// Takes a cache line of the bulk area back from the consumer, as [`Producer`] does with slots' lines: writes anything there. `at` is
    /// below `BULK`, and a multiple of [`GRAIN`].
    fn claim_bulk(&self, _at: u32) {}
    /// This slot will be written soon: a good moment to fetch its cache line from the consumer.
    fn expect_write(&self, _line: u32) {}
    /// This slot will be read next: if the producer has written it, its cache line may come while something else is done.
    fn expect_read(&self, _line: u32) {}
    /// Writes a payload to the bulk area, so that it is there before what is written next. The caller keeps `at` + its length
    /// within `BULK`.
    fn store_bulk(&self, at: u32, payload: &Payload<'_>, way: Way) -> Result<(), Fault>;
    /// Some time in nanoseconds, not 0, for [`Trial`].
    fn nanos(&self) -> u64 {
        1
    }
}

/// The peer broke the ring's rules: nothing in it can be believed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// Why a record could not be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// No room. The consumer will ring when there is, unless it need not ([`Producer::call_for_room`]).
    Full,
    /// See [`Broken`].
    Broken,
    /// The payload's memory is not there.
    Fault,
    /// The payload is longer than a segment, or the header has no such length.
    Length,
}

/// Header lengths in words, by their code in the stamp.
const HEADER_WORDS: [u8; 4] = [3, 4, 5, 7];

/// A stamp, taken apart: `lap:32 | bulk:1 spare:2 grain:12 code:2 len:15`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    lap: u32,
    /// Code of the header's length.
    code: u32,
    /// Payload bytes.
    len: u32,
    /// The payload's place in the bulk area, in grains; `None` if it is in the slot.
    grain: Option<u32>,
}

impl Stamp {
    fn pack(self) -> u64 {
        let place = self.grain.map_or(0, |g| 1 << 31 | g << 17);
        u64::from(self.lap) << 32 | u64::from(place | self.code << 15 | self.len)
    }

    fn unpack(raw: u64) -> Stamp {
        let low = raw as u32;
        Stamp {
            lap: (raw >> 32) as u32,
            code: low >> 15 & 3,
            len: low & 0x7fff,
            grain: (low >> 31 != 0).then_some(low >> 17 & 0xfff),
        }
    }
}

/// Where in the ring a side stands: the count of records so far, and the lap of the slot they have come to.
#[derive(Clone, Copy, Debug)]
struct Position {
    count: u64,
    lap: u32,
}

impl Position {
    /// Slots never written hold lap 0, so laps begin at 1 and skip 0 when they wrap.
    const START: Position = Position { count: 0, lap: 1 };

    fn slot(self, slots: u32) -> u32 {
        (self.count & u64::from(slots - 1)) as u32
    }

    fn step(&mut self, slots: u32) {
        self.count += 1;
        if self.slot(slots) == 0 {
            cold_path();
            self.lap = self.lap.checked_add(1).unwrap_or(1);
        }
    }
}

const fn round_up(len: u32) -> u32 {
    (len + GRAIN - 1) & !(GRAIN - 1)
}

/// The appending side.
pub struct Producer<M> {
    memory: M,
    at: Position,
    /// The consumer's count when last read: never more than `at.count`, never less than before.
    consumed: u64,
    /// Bulk bytes ever given out, skipped ones included.
    head: u64,
    /// Bulk bytes that are free again, of those.
    tail: u64,
    /// Up to here, counted like `head`, lines were taken back, see [`Producer::claim_bulk`].
    claimed: u64,
    /// Of the records in the bulk area that are not known to have been taken: the count behind each, and `head` after it.
    ends: VecDeque<(u64, u64)>,
    /// See [`Producer::call_for_room`].
    calls: bool,
    broken: bool,
    /// How payloads are best written to the bulk area.
    trial: Trial,
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
            consumed: 0,
            head: 0,
            tail: 0,
            claimed: 0,
            // For all that there may be: no message waits for memory.
            ends: VecDeque::with_capacity(M::SLOTS as usize),
            calls: true,
            broken: false,
            trial: Trial::default(),
        }
    }

    /// Whether the consumer is to ring when it has made room, as it does at first. Whoever looks for room again and again saves it
    /// the system call, and itself the waking.
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

        let line = self.line();
        let mut way = Way::Through;
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
            way = self.trial.way(len, || self.memory.nanos());
            self.memory.store_bulk(at, payload, way).map_err(|Fault| PushError::Fault)?;
            self.head = start + u64::from(bulk);
            self.ends.push_back((self.at.count + 1, self.head));
            self.memory.store_body(line, 0, &header[..words]);
            Some(at / GRAIN)
        };
        self.publish(code, len, grain);
        // Not behind a whole segment: most are parts of a long message, the next is written at once, and nothing is won.
        if grain.is_some() && way == Way::Through && len < M::SEGMENT {
            self.claim_bulk(bulk);
        }
        Ok(len)
    }

    /// Appends a record with a header of 3 or 4 words and at most 8 bytes of payload, the word behind it. False if
    /// there is no room, or something is wrong: [`Producer::push`] says which.
    #[inline(always)]
    pub fn push_short(&mut self, body: &[u64; 5], four: bool, len: u32) -> bool {
        if !self.fits(0) || len > 8 {
            cold_path();
            return false;
        }
        self.memory.store_body(self.line(), 0, body);
        self.publish(u32::from(four), len, None);
        true
    }

    /// A record will be appended very soon: a good moment to take the next slot's cache line from the consumer, who waits at it.
    #[inline(always)]
    pub fn expect_push(&self) {
        self.memory.expect_write(self.line());
    }

    /// The line of the next slot.
    #[inline(always)]
    fn line(&self) -> u32 {
        M::line(self.at.slot(M::SLOTS))
    }

    /// Shows the record in the next slot to the consumer.
    #[inline(always)]
    fn publish(&mut self, code: u32, len: u32, grain: Option<u32>) {
        let stamp = Stamp { lap: self.at.lap, code, len, grain };
        // Release: whoever sees the stamp sees the body and the payload.
        self.memory.stamp(self.line()).store(stamp.pack(), Ordering::Release);
        self.at.step(M::SLOTS);
        if self.at.count.is_multiple_of(u64::from(M::CLAIM)) {
            self.claim();
        }
    }

    /// Takes the cache lines of some slots back from the consumer, who has read them, all at once: behind the next slot, at which
    /// the consumer waits.
    ///
    /// By stores, because on some processors (AMD's of family 25) the hint to do so, `prefetchw`, does nothing for a line that is still here, if only
    /// to be read, as all of these are. Each store would then wait for its line to come back when a record is written, one
    /// after the other: stores become visible in order, and what waits for one record fills the processor's queue of stores. Those here wait together.
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

    /// The same for the lines of the bulk area: those of the next payload, if it is as long as the last one.
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
    fn refresh(&mut self) -> Result<(), Broken> {
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

    /// True if there is room for a record of any size. If not, the consumer will ring when it has made some, unless it need not
    /// ([`Producer::call_for_room`]).
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

/// To be called between [`Producer::push`] and [`Producer::must_ring`], once for any number of rings: orders the stamps
/// before the look at `sleeping`. Its counterpart is in [`Consumer::announce_sleep`].
#[inline]
pub fn wake_fence() {
    fence(Ordering::SeqCst);
}

// Both sides change the flags, and a flag that is taken down late must not undo the next one: every change is a
// read-modify-write, which has one place in the flag's history. All of them are off the fast path.

fn raise(flag: &AtomicU32) {
    flag.swap(1, Ordering::AcqRel);
}

/// True if it was up.
fn lower(flag: &AtomicU32) -> bool {
    flag.swap(0, Ordering::AcqRel) != 0
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

/// Where a record's payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the body that [`Record`] holds, from this byte on.
    Body(u32),
    /// In the bulk area, from this byte on; checked to lie within it.
    Bulk(u32),
}

/// A record, copied out of its slot.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Words of the header at the beginning of `body`: 3, 4, 5 or 7.
    pub header_words: u8,
    /// Header, then the payload if it is here.
    pub body: [u64; 7],
    /// Payload bytes.
    pub len: u32,
    /// Where they are.
    pub place: Place,
}

impl Record {
    /// The header.
    pub fn header(&self) -> &[u64] {
        &self.body[..self.header_words as usize]
    }
}

/// A short record, copied out of its slot: one that is taken without having been in memory in between.
#[derive(Clone, Copy, Debug)]
pub struct Short {
    /// The header has 4 words, not 3.
    pub four: bool,
    /// Payload bytes, at most 8.
    pub len: u32,
    /// Header, then payload.
    pub words: [u64; 5],
}

/// The taking side.
pub struct Consumer<M> {
    memory: M,
    at: Position,
    /// The line of the slot there.
    line: u32,
    /// The count that the producer can see.
    published: u64,
    /// Records and bulk bytes taken since the last publication with a fence.
    unfenced: u32,
    unfenced_bulk: u32,
    /// The record that was peeked last. It is handed out by reference: it is larger than a cache line.
    record: Record,
    /// There is one.
    peeked: bool,
    broken: bool,
}

impl<M: RingMemory> Consumer<M> {
    /// The consumer of a ring that has had none so far.
    pub fn new(memory: M) -> Self {
        Consumer {
            memory,
            at: Position::START,
            line: M::line(0),
            published: 0,
            unfenced: 0,
            unfenced_bulk: 0,
            record: Record { header_words: 3, body: [0; 7], len: 0, place: Place::Body(24) },
            peeked: false,
            broken: false,
        }
    }

    /// The memory under it.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Records taken so far.
    pub fn count(&self) -> u64 {
        self.at.count
    }

    /// True if a record is there. One load.
    #[inline]
    pub fn ready(&self) -> bool {
        (self.memory.stamp(self.line).load(Ordering::Acquire) >> 32) as u32 == self.at.lap
    }

    /// The next record; the same one again until [`Consumer::release`]. When there is none, makes everything taken so
    /// far known to the producer.
    ///
    /// # Errors
    /// [`Broken`] if the producer wrote nonsense; from then on always.
    #[inline(always)]
    pub fn peek(&mut self) -> Result<Option<&Record>, Broken> {
        // Acquire: pairs with the producer's release of the stamp.
        let stamp = Stamp::unpack(self.memory.stamp(self.line).load(Ordering::Acquire));
        if stamp.lap != self.at.lap || self.broken {
            cold_path();
            if self.broken {
                return Err(Broken);
            }
            if self.published != self.at.count {
                self.published = self.at.count;
                // Release: our reads of the slots are over.
                self.memory.consumed().store(self.published, Ordering::Release);
            }
            return Ok(None);
        }
        let header_words = HEADER_WORDS[stamp.code as usize];
        let (place, room) = match stamp.grain {
            None => (Place::Body(u32::from(header_words) * 8), BODY - u32::from(header_words) * 8),
            Some(grain) => {
                let at = grain * GRAIN;
                (Place::Bulk(at), M::BULK.saturating_sub(at).min(M::SEGMENT))
            }
        };
        if stamp.len > room {
            cold_path();
            self.broken = true;
            return Err(Broken);
        }
        self.record = Record { header_words, body: self.memory.load_body(self.line), len: stamp.len, place };
        self.peeked = true;
        Ok(Some(&self.record))
    }

    /// The record that was peeked last, until it is released.
    #[inline]
    pub fn peeked(&self) -> Option<&Record> {
        self.peeked.then_some(&self.record)
    }

    /// Gives the peeked record's place back. True if the producer waits for room and must be rung now. Without a
    /// peeked record it does nothing.
    #[inline]
    #[must_use]
    pub fn release(&mut self) -> bool {
        if !std::mem::take(&mut self.peeked) {
            return false;
        }
        let bulk = match self.record.place {
            Place::Body(_) => 0,
            Place::Bulk(_) => round_up(self.record.len),
        };
        self.step();
        self.unfenced_bulk += bulk;
        (self.unfenced >= M::SLOTS / 4 || self.unfenced_bulk >= M::BULK / 4) && self.publish()
    }

    /// Goes on to the next slot.
    #[inline(always)]
    fn step(&mut self) {
        self.at.step(M::SLOTS);
        self.line = M::line(self.at.slot(M::SLOTS));
        self.memory.expect_read(self.line);
        self.unfenced += 1;
    }

    /// The next record, if it is there and short: a header of 3 or 4 words, and at most 8 bytes of payload in the word behind it.
    /// What else there may be (also nothing, or nonsense), [`Consumer::peek`] tells. To be followed by
    /// [`Consumer::release_short`], or not: then it is still there.
    #[inline(always)]
    pub fn peek_short(&self) -> Option<Short> {
        // Acquire: pairs with the producer's release of the stamp.
        let raw = self.memory.stamp(self.line).load(Ordering::Acquire);
        let Stamp { lap, code, len, grain } = Stamp::unpack(raw);
        if lap != self.at.lap || code > 1 || len > 8 || grain.is_some() || self.broken || self.peeked {
            return None;
        }
        Some(Short { four: code == 1, len, words: self.memory.load_short(self.line) })
    }

    /// The record behind the next one will be looked at very soon: it is mostly the answer to what the next one acknowledges.
    #[inline(always)]
    pub fn expect_next(&self) {
        let mut at = self.at;
        at.step(M::SLOTS);
        self.memory.expect_read(M::line(at.slot(M::SLOTS)));
    }

    /// Gives the place of a record back that [`Consumer::peek_short`] gave. True if the producer waits for room and must be rung now.
    #[inline(always)]
    #[must_use]
    pub fn release_short(&mut self) -> bool {
        self.step();
        self.unfenced >= M::SLOTS / 4 && self.publish()
    }

    /// Makes everything taken so far known to the producer. True if it waits for room and must be rung now.
    #[must_use]
    pub fn publish(&mut self) -> bool {
        self.published = self.at.count;
        self.unfenced = 0;
        self.unfenced_bulk = 0;
        self.memory.consumed().store(self.published, Ordering::Release);
        // With the fence in `Producer::wait_for`: either it sees our count, or we see that it waits.
        fence(Ordering::SeqCst);
        let waiting = self.memory.waiting();
        waiting.load(Ordering::Relaxed) != 0 && lower(waiting)
    }

    /// [`Consumer::publish`], if anything was taken since the last time. To be called before sleeping.
    #[must_use]
    pub fn settle(&mut self) -> bool {
        self.unfenced != 0 && self.publish()
    }

    /// Announces that this side is about to sleep: the producer's next push will ring. To be followed by a fence
    /// ([`wake_fence`], once for any number of rings) and a look at [`Consumer::ready`].
    pub fn announce_sleep(&self) {
        raise(self.memory.sleeping());
    }

    /// Takes the announcement back.
    pub fn retract_sleep(&self) {
        lower(self.memory.sleeping());
    }
}

#[cfg(all(test, not(loom)))]
#[path = "ring_tests.rs"]
mod tests;
