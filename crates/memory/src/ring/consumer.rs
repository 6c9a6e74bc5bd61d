//! The side that takes records.

use std::hint::cold_path;

use super::{BODY, Broken, GRAIN, HEADER_WORDS, Position, RingMemory, Stamp, lower, raise, round_up};
use crate::sync::{Ordering, fence};

/// The place of a record's payload.
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
    pub(super) at: Position,
    /// The line of the slot there.
    pub(super) line: u32,
    /// The count that the producer can see.
    pub(super) published: u64,
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

    /// The next record, if it is there and short: a header of 3 or 4 words, and at most 8 bytes of payload in the word
    /// behind it. [`Consumer::peek`] tells what else there may be (also nothing, or nonsense).
    /// [`Consumer::release_short`] may follow. Otherwise the record is still there.
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

    /// Gives the place of a record back that [`Consumer::peek_short`] gave. True if the producer waits for room and
    /// must be rung now.
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
    /// ([`super::wake_fence`], once for any number of rings) and a look at [`Consumer::ready`].
    pub fn announce_sleep(&self) {
        raise(self.memory.sleeping());
    }

    /// Takes the announcement back.
    pub fn retract_sleep(&self) {
        lower(self.memory.sleeping());
    }
}
