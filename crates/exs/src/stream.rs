//! One direction of a stream: bytes go straight into a receive, or through a hidden ring, as the state of both ends has
//! it at each transfer.
//!
//! The receiver has the [`Receiver`], the sender the [`Sender`]. Both are pure: a message or a call goes in, and what
//! is to be sent, copied or told comes out. The model (`stream/model.rs`) visits every state that two of them and the
//! wire between them can reach.
//!
//! * The receiver ADVERTises receives, in order. The sender WRITEs into the first one that is open: *direct*. With none
//!   it WRITEs into the ring, and the receiver copies: *indirect*.
//! * Phases number the changes between the two. An even phase is direct, an odd one indirect, and phases only grow.
//! * Rule 1: an ADVERT goes out only while the ring is empty and all copies are done. The first one of a phase carries
//!   the number of the byte that it is for. The others follow it in order.
//! * Rule 2: the sender takes the first ADVERT of a later phase if its number is that of the sender's next byte, and
//!   others if they are of the phase that it has taken. It drops all the rest.
//! * Rule 3: a WRITE into a receive without MSG_WAITALL ends it, so both ends know what is open without a word.
//! * Rule 4: without an open receive the sender goes to the next odd phase. When its bytes arrive in an even phase, all
//!   open adverts are void: the sender has seen none of them, or has used those that it saw.
//! * Rule 5: when the ring is drained the receiver goes to the next even phase.
//! * Hold: a sender that drops an ADVERT for its number alone knows that a receiver waits. It leaves the ring alone
//!   until the receiver has copied everything, or has said that it is late. Without this rule a fast sender would stay
//!   indirect. A large transfer into the ring makes the sender wait in this way as well, unless the receiver was late
//!   and has advertised nothing since. A receiver that may advertise as soon as the sender is done with earlier adverts
//!   does so before it gives the ring back, for that would end the wait.
//! * A sender whose last transfer was direct and large, and that has no open receive left, waits as well: until the
//!   receiver has got everything, and has offered a receive or said that it has none.
//! * Row: while the sender has receives enough, adverts wait until several can go in one message. They do not wait
//!   while fewer are open, so those that are open let them go when they end.
//! * A transfer into the ring of a receiver that is late says whether more of them follow at once: then an advert is
//!   void. The receiver does not advertise the rest of its only receive while more follow.
//! * RETRACT voids all adverts of a phase, so that a receive can be cancelled. Nothing is advertised until the answer.

use crate::protocol::TOGETHER;

mod receiver;
mod sender;

#[cfg(test)]
mod model;

pub use receiver::{Action, Ended, Receiver};
pub use sender::{Sender, Transfer};

/// The sizes of a direction, which both ends know.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shape {
    /// Bytes of the ring, at least 1.
    pub ring: u32,
    /// The most bytes of one transfer into the ring, at least 1.
    pub chunk: u32,
    /// Transfers whose arrival the receiver has not acknowledged, at most; at least 1.
    pub data: u32,
    /// Adverts of which the sender has not said that it is done with them, at most; at least 1.
    pub adverts: u32,
    /// While so many adverts are open, others wait for each other: see [`Receiver`].
    pub keep: u32,
    /// The most adverts that go together, at least 1.
    pub row: u32,
    /// A transfer of so many bytes is large: it is worth waiting for a receive.
    pub large: u32,
    /// Numbers of bytes wrap behind it: a power of two less one.
    pub seq_mask: u32,
    /// Phases wrap behind it.
    pub phase_mask: u16,
    /// For the model.
    #[cfg(test)]
    pub mutant: Option<Mutant>,
}

/// A rule that is left out, so that the model can show that it is needed.
#[cfg(test)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mutant {
    /// Rule 2 without the number.
    AnyNumber,
    /// Rule 4 without making adverts void.
    KeepAdverts,
    /// Rule 1 without waiting for copies.
    AdvertBeforeCopy,
    /// Bytes of the ring are free before they are copied.
    AckBeforeCopy,
}

impl Shape {
    /// The sizes for a ring and a number of credits.
    pub fn new(ring: u32, credits: u16) -> Shape {
        Shape {
            ring: ring.max(1),
            // Several transfers fill the ring, so copies begin before it is full.
            chunk: (ring / 4).clamp(1, CHUNK),
            data: u32::from(credits).max(1),
            adverts: u32::from(credits).max(1),
            keep: KEEP,
            row: TOGETHER as u32,
            large: LARGE,
            seq_mask: u32::MAX,
            phase_mask: u16::MAX,
            #[cfg(test)]
            mutant: None,
        }
    }

    fn seq(&self, seq: u32, len: u32) -> u32 {
        seq.wrapping_add(len) & self.seq_mask
    }

    fn phase(&self, phase: u16, step: u16) -> u16 {
        phase.wrapping_add(step) & self.phase_mask
    }

    /// True if `phase` is behind `other`. The two are never far apart: the sender follows with each advert that it
    /// gets.
    fn later(&self, phase: u16, other: u16) -> bool {
        let ahead = phase.wrapping_sub(other) & self.phase_mask;
        ahead != 0 && ahead <= self.phase_mask / 2
    }

    /// The part of a number that a transfer carries.
    fn low(&self, seq: u32) -> u32 {
        seq & self.seq_mask & LOW
    }

    #[cfg(test)]
    fn lacks(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}

/// Standalone ACKs that may be under way, with `data` credits: see [`Receiver`].
pub fn acks(data: u32) -> u32 {
    2 * data + 4
}

/// The receiver copies one transfer out of the ring while the next one comes. With longer ones the two mostly wait for
/// each other, and a device may move each by one system call of the sender, which is slower than packets on two
/// processors.
const CHUNK: u32 = 64 << 10;

/// A sender that has so many open receives does not wait for the next ones: they are a row, while the next one is under
/// way.
const KEEP: u32 = TOGETHER as u32;

/// From here on a copy costs more than the wait for a message.
const LARGE: u32 = 8192;

/// Bits of the number of a byte that go with a transfer.
pub const LOW: u32 = (1 << 19) - 1;

/// A breach of the protocol by the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Breach;

/// A receive that the sender may WRITE into.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Advert<P> {
    /// Its phase, which is even.
    pub phase: u16,
    /// The number of its first byte. Checked only for the first advert of a phase.
    pub seq: u32,
    /// The first advert of its phase.
    pub first: bool,
    /// The receive ends when it is full, not with the first transfer.
    pub wait_all: bool,
    /// The number of bytes.
    pub len: u32,
    /// The place of the first byte.
    pub place: P,
}

/// What the receiver gives back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ack {
    /// Bytes of the ring.
    pub freed: u32,
    /// Transfers that have arrived.
    pub data: u32,
    /// Bytes are in the ring, and no receive is there for them: the sender may use the rest of the ring.
    pub late: bool,
}
