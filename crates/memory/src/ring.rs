//! A ring of records from one producer to one consumer, over memory that both can write.
//!
//! ```text
//!  control   consumed: u64       written by the consumer, read by the producer when its credit runs out
//!            sleeping: u32       set by the consumer, taken by the producer, which then rings
//!            waiting:  u32       set by the producer (no room), taken by the consumer, which then rings
//!            copying:  u64       the producer's side marks single copies here, see [`crate::copying`]
//!            co_copy:  7 x u64   single copies that the other side may join, see [`crate::co_copy`]
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
//! **Waking.** Both hand-shakes (consumer sleeps, producer waits) are of Dekker's kind: write the own word,
//! sequentially consistent fence, read the other's. The consumer publishes its count without a fence when
//! [`Consumer::peek`] finds the ring empty, and with fence and check of `waiting` whenever a quarter of the ring has
//! passed since it last did so. That is enough: a producer that waits has more than a quarter in flight beyond any
//! count that such a fence ordered before its own.

use std::hint::cold_path;

use wire::{Fault, Payload};

use crate::store_policy::Stores;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

mod consumer;
mod producer;

pub use consumer::{Consumer, Place, Record, Short};
pub use producer::Producer;

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
    /// So many slots' lines are taken back at once from the consumer that has read them: a power of two, below `SLOTS`.
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
    /// Takes a cache line of the bulk area back from the consumer, as [`Producer`] does with slots' lines: writes
    /// anything there. `at` is below `BULK`, and a multiple of [`GRAIN`].
    fn claim_bulk(&self, _at: u32) {}
    /// This slot will be written soon: a good moment to fetch its cache line from the consumer.
    fn expect_write(&self, _line: u32) {}
    /// This slot will be read next: if the producer has written it, its cache line may come while something else is
    /// done.
    fn expect_read(&self, _line: u32) {}
    /// Writes a payload to the bulk area, so that it is there before what is written next. The caller keeps `at` + its
    /// length within `BULK`.
    fn store_bulk(&self, at: u32, payload: &Payload<'_>, stores: Stores) -> Result<(), Fault>;
    /// Some time in nanoseconds, not 0, for [`crate::store_policy::StorePolicy`].
    fn nanos(&self) -> u64 {
        1
    }
}

/// The peer broke the ring's rules: nothing in it can be believed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// The reason why a record could not be appended.
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

/// The position of a side in the ring: the count of records so far, and the lap of the slot they have come to.
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

#[cfg(all(test, not(loom)))]
#[path = "ring_tests.rs"]
mod tests;
