//! The sending end of a direction.

use std::collections::VecDeque;

use super::{Ack, Advert, Breach, Shape};

/// A WRITE with immediate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Transfer<P> {
    /// The open receive and the bytes of it that are filled; `None`: the ring.
    pub direct: Option<(P, u32)>,
    /// It is the last one into this receive.
    pub ends: bool,
    /// The first byte of the ring, if it goes there.
    pub at: u32,
    /// The number of bytes.
    pub len: u32,
    /// It goes into the ring, and so does the next one, at once.
    pub more: bool,
    /// It goes into the ring of a receiver that is late.
    pub late: bool,
    /// The low bits of the number of the first byte.
    pub seq: u32,
    /// Adverts that the sender is done with, since it last said so.
    pub released: u32,
}

/// The sending end: see the module.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Sender<P> {
    pub(super) shape: Shape,
    /// The number of the next byte.
    pub(super) seq: u32,
    pub(super) phase: u16,
    /// Open adverts, and the bytes of the first one that are filled.
    pub(super) open: VecDeque<Advert<P>>,
    pub(super) filled: u32,
    /// Free bytes of the ring, and the place of the next one.
    pub(super) room: u32,
    pub(super) at: u32,
    pub(super) credits: u32,
    pub(super) released: u32,
    pub(super) hold: bool,
    /// The last transfer was direct and large, and the receiver has not said that it is late.
    pub(super) ahead: bool,
    /// The receiver has said that it is late, and has advertised nothing since.
    pub(super) late: bool,
}

impl<P: Copy> Sender<P> {
    /// A sender that has sent nothing.
    pub fn new(shape: Shape) -> Sender<P> {
        Sender {
            shape,
            seq: 0,
            phase: 1,
            open: VecDeque::new(),
            filled: 0,
            room: shape.ring,
            at: 0,
            credits: shape.data,
            released: 0,
            hold: false,
            ahead: false,
            late: false,
        }
    }

    /// The number of the next byte.
    pub fn seq(&self) -> u32 {
        self.seq
    }

    /// True if a receive is open, so that the next transfer is direct.
    pub fn is_direct(&self) -> bool {
        !self.open.is_empty()
    }

    /// Take an ADVERT.
    pub fn advert(&mut self, advert: Advert<P>) -> Result<(), Breach> {
        let over = self.open.len() as u32 + self.released >= self.shape.adverts;
        if over || advert.len == 0 || !advert.phase.is_multiple_of(2) || advert.phase & !self.shape.phase_mask != 0 {
            return Err(Breach);
        }
        self.late = false;
        let taken = if advert.first && self.shape.later(advert.phase, self.phase) {
            // The receiver leaves an even phase by bytes from the ring or by RETRACT, and either has made ours odd.
            if self.phase.is_multiple_of(2) {
                return Err(Breach);
            }
            let fits = advert.seq == self.seq;
            #[cfg(test)]
            let fits = fits || self.shape.lacks(super::Mutant::AnyNumber);
            if !fits {
                // Bytes on their way to the ring will make it void, and the receiver goes to the phase behind it.
                self.phase = self.shape.phase(advert.phase, 1);
                self.hold = self.room < self.shape.ring;
            }
            fits
        } else if advert.first && advert.phase == self.phase {
            return Err(Breach);
        } else {
            !advert.first && advert.phase == self.phase
        };
        if taken {
            self.phase = advert.phase;
            self.open.push_back(advert);
        } else {
            self.released += 1;
        }
        Ok(())
    }

    /// Take an ACK, which may come with an ADVERT, before it.
    pub fn ack(&mut self, ack: Ack) -> Result<(), Breach> {
        let sound = ack.freed <= self.shape.ring - self.room && ack.data <= self.shape.data - self.credits;
        if !sound {
            return Err(Breach);
        }
        self.room += ack.freed;
        self.credits += ack.data;
        if ack.late || self.room == self.shape.ring {
            self.hold = false;
        }
        self.late |= ack.late;
        self.ahead &= !ack.late;
        Ok(())
    }

    /// Take a RETRACT; the answer goes out behind the transfers that this end has handed out.
    pub fn retract(&mut self, phase: u16) -> Result<(), Breach> {
        if !phase.is_multiple_of(2) || phase & !self.shape.phase_mask != 0 {
            return Err(Breach);
        }
        if !self.shape.later(self.phase, phase) {
            self.released += self.open.len() as u32;
            self.open.clear();
            self.filled = 0;
            self.ahead = false;
            self.phase = self.shape.phase(phase, 1);
        }
        Ok(())
    }

    /// The next transfer, of at most `waiting` bytes. `all`: those and the bytes behind them; as long as there are any,
    /// the caller asks for the next one before it does anything else.
    pub fn next(&mut self, waiting: u64, all: u64) -> Option<Transfer<P>> {
        let shape = self.shape;
        let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
        if waiting == 0 || self.credits == 0 {
            return None;
        }
        let before = self.open.len();
        let (direct, at, len) = if let Some(first) = self.open.front() {
            let (place, filled) = (first.place, self.filled);
            let len = waiting.min(first.len - filled);
            self.filled += len;
            if !first.wait_all || self.filled == first.len {
                self.open.pop_front();
                self.filled = 0;
                self.released += 1;
            }
            self.ahead = len >= shape.large;
            (Some((place, filled)), 0, len)
        } else {
            let (at, len) = (self.at, waiting.min(self.room).min(shape.ring - self.at).min(shape.chunk));
            // The answer to direct transfers is under way, with a receive or without.
            let answered = !self.ahead || self.credits == shape.data;
            if self.hold || !answered || len == 0 {
                return None;
            }
            self.ahead = false;
            if self.phase.is_multiple_of(2) {
                self.phase = shape.phase(self.phase, 1);
            }
            // Its copy takes the receiver so long that a ring which is filled all the time would never be drained.
            self.hold = len >= shape.large && !self.late;
            self.room -= len;
            self.at = (at + len) % shape.ring;
            (None, at, len)
        };
        let ends = self.open.len() < before;
        let (seq, released) = (shape.low(self.seq), std::mem::take(&mut self.released));
        self.credits -= 1;
        self.seq = shape.seq(self.seq, len);
        let late = self.late && direct.is_none();
        let more = late && !self.hold && self.room > 0 && self.credits > 0 && all > len.into();
        let transfer = Transfer { direct, ends, at, len, more, late, seq, released };
        Some(transfer)
    }

    /// Adverts that the sender is done with, to be told in a message of its own (SEEN): when no transfer can tell it,
    /// and the receiver may lack them.
    pub fn seen(&mut self) -> Option<u32> {
        (self.released >= self.shape.adverts.div_ceil(2)).then(|| std::mem::take(&mut self.released))
    }
}
