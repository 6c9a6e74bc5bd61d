//! The receiving end of a direction.

use std::collections::VecDeque;

use super::{Ack, Advert, Breach, Shape};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Receive {
    pub(super) id: u64,
    len: u32,
    filled: u32,
    wait_all: bool,
    cancel: bool,
}

impl Receive {
    fn is_full(&self) -> bool {
        self.filled == self.len
    }
}

/// What the surroundings have to do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Copy from the ring, then call [`Receiver::copied`].
    Copy {
        /// The receive.
        id: u64,
        /// The first byte of the receive.
        offset: u32,
        /// The first byte of the ring.
        at: u32,
        /// The number of bytes.
        len: u32,
    },
    /// Send an ADVERT; its place is the receive and the first byte of it.
    Advert(Advert<(u64, u32)>, Ack),
    /// Send an ACK.
    Ack(Ack),
    /// Send a RETRACT of a phase.
    Retract(u16),
    /// Tell the program.
    Ended {
        /// The receive.
        id: u64,
        /// How it ended.
        how: Ended,
    },
}

/// How a receive ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ended {
    /// With this many bytes; 0 is the end of the peer's data.
    Bytes(u32),
    /// Cancelled, and nothing was written.
    Cancelled,
}

/// The receiving end: see the module.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Receiver {
    pub(super) shape: Shape,
    /// The number of the next byte that arrives.
    pub(super) seq: u32,
    pub(super) phase: u16,
    /// In this phase nothing is advertised yet.
    pub(super) fresh: bool,
    pub(super) receives: VecDeque<Receive>,
    /// The first ones, which are advertised.
    pub(super) open: usize,
    /// Adverts that are to go out with the last one.
    pub(super) row: u32,
    /// Adverts of which the sender has not said that it is done with them.
    pub(super) unseen: u32,
    /// Bytes in the ring, and the place of the first one.
    pub(super) used: u32,
    pub(super) at: u32,
    /// Bytes of the copy that is under way, from `at` on.
    pub(super) copying: u32,
    /// What the sender was not told.
    pub(super) freed: u32,
    pub(super) data: u32,
    pub(super) told_late: bool,
    /// The last transfer went into the ring, and the next one does, at once.
    pub(super) more: bool,
    /// The last transfer was direct and large: the sender may wait for the answer.
    pub(super) asked: bool,
    /// The phase whose RETRACT has no answer, and whether it was handed out.
    pub(super) retract: Option<(u16, bool)>,
    pub(super) fin: bool,
}

impl Receiver {
    /// A receiver that has got nothing.
    pub fn new(shape: Shape) -> Receiver {
        Receiver {
            shape,
            seq: 0,
            phase: 2 & shape.phase_mask,
            fresh: true,
            receives: VecDeque::new(),
            open: 0,
            row: 0,
            unseen: 0,
            used: 0,
            at: 0,
            copying: 0,
            freed: 0,
            data: 0,
            told_late: false,
            more: false,
            asked: false,
            retract: None,
            fin: false,
        }
    }

    /// Receives that are pending.
    pub fn pending(&self) -> usize {
        self.receives.len()
    }

    /// True if all data of the peer have arrived; some may be in the ring.
    pub fn has_fin(&self) -> bool {
        self.fin
    }

    /// The receives that are pending, in order; for the end of a connection.
    pub fn drain(&mut self) -> impl Iterator<Item = u64> + '_ {
        (self.open, self.copying) = (0, 0);
        self.receives.drain(..).map(|receive| receive.id)
    }

    /// True if a receive behind those that are pending would be served now; also by the end of the data.
    pub fn has_data(&self) -> bool {
        self.receives.is_empty() && (self.used > 0 || self.fin)
    }

    /// The pieces of the ring that a receive of `len` bytes would get now, one or two of them. None: it would wait.
    pub fn look(&self, len: u32) -> Option<[(u32, u32); 2]> {
        if !self.has_data() {
            return None;
        }
        let len = len.min(self.used);
        let first = len.min(self.shape.ring - self.at);
        Some([(self.at, first), (0, len - first)])
    }

    /// Add a receive of `len` bytes, at least 1.
    pub fn post(&mut self, id: u64, len: u32, wait_all: bool) {
        self.receives.push_back(Receive { id, len, filled: 0, wait_all, cancel: false });
    }

    /// Ask for the end of a receive. True: it will end, and it is cancelled if it was not too late. False: it is too
    /// late, or there is none.
    pub fn cancel(&mut self, id: u64) -> bool {
        let Some(at) = self.receives.iter().position(|receive| receive.id == id) else { return false };
        let receive = &mut self.receives[at];
        if receive.filled > 0 || (at == 0 && self.copying > 0) {
            return false;
        }
        receive.cancel = true;
        if at < self.open && self.retract.is_none() {
            self.retract = Some((self.phase, false));
        }
        true
    }

    fn arrived(&mut self, len: u32, seq: u32, released: u32) -> Result<(), Breach> {
        let sound = len > 0 && !self.fin && seq == self.shape.low(self.seq);
        if !sound || self.data >= self.shape.data {
            return Err(Breach);
        }
        self.seen(released)?;
        self.seq = self.shape.seq(self.seq, len);
        self.data += 1;
        Ok(())
    }

    /// Take a direct transfer, whose bytes are in the first open receive.
    pub fn direct(&mut self, len: u32, seq: u32, released: u32) -> Result<(), Breach> {
        let fits = self.receives.front().is_some_and(|first| len <= first.len - first.filled);
        if self.open == 0 || !fits {
            return Err(Breach);
        }
        self.arrived(len, seq, released)?;
        self.asked = len >= self.shape.large;
        self.more = false;
        self.receives[0].filled += len;
        // It is too late.
        self.receives[0].cancel = false;
        if !self.receives[0].wait_all || self.receives[0].is_full() {
            self.open -= 1;
        }
        Ok(())
    }

    /// Take a transfer into the ring. `more`: the next one follows at once.
    pub fn indirect(&mut self, len: u32, seq: u32, released: u32, more: bool) -> Result<(), Breach> {
        let Shape { ring, chunk, .. } = self.shape;
        let place = (self.at + self.used) % ring;
        if self.used + self.freed > ring || len > ring - self.used - self.freed || len > ring - place || len > chunk {
            return Err(Breach);
        }
        self.arrived(len, seq, released)?;
        self.used += len;
        self.more = more;
        if self.phase.is_multiple_of(2) {
            self.phase = self.shape.phase(self.phase, 1);
            let void = true;
            #[cfg(test)]
            let void = void && !self.shape.lacks(super::Mutant::KeepAdverts);
            if void {
                self.open = 0;
            }
        }
        Ok(())
    }

    /// Take a SEEN, or the same number from a transfer.
    pub fn seen(&mut self, released: u32) -> Result<(), Breach> {
        self.unseen = self.unseen.checked_sub(released).ok_or(Breach)?;
        Ok(())
    }

    /// Take the answer to RETRACT.
    pub fn retracted(&mut self, phase: u16) -> Result<(), Breach> {
        if self.retract != Some((phase, true)) {
            return Err(Breach);
        }
        self.retract = None;
        if self.phase == phase {
            self.phase = self.shape.phase(phase, 1);
            self.open = 0;
        }
        Ok(())
    }

    /// Take a FIN.
    pub fn fin(&mut self, seq: u32) -> Result<(), Breach> {
        if self.fin || seq != self.seq {
            return Err(Breach);
        }
        self.fin = true;
        // The sender uses no advert any more.
        self.open = 0;
        Ok(())
    }

    /// The copy that was handed out is done.
    pub fn copied(&mut self) {
        let len = std::mem::take(&mut self.copying);
        self.at = (self.at + len) % self.shape.ring;
        self.used -= len;
        let free = len;
        #[cfg(test)]
        let free = if self.shape.lacks(super::Mutant::AckBeforeCopy) { 0 } else { free };
        self.freed += free;
        if let Some(first) = self.receives.front_mut() {
            first.filled += len;
        }
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Action> {
        self.ended().or_else(|| self.copy()).or_else(|| self.advertise()).or_else(|| self.acknowledge())
    }

    /// End a receive that is complete, or that is cancelled and not open.
    fn ended(&mut self) -> Option<Action> {
        if let Some(first) = self.receives.front()
            && self.copying == 0
        {
            // A direct transfer ends one without MSG_WAITALL; from the ring it takes what is there.
            let short = first.filled > 0 && !first.wait_all && self.used == 0;
            let end = self.fin && self.used == 0;
            if first.is_full() || short || end {
                let (id, how) = (first.id, Ended::Bytes(first.filled));
                self.receives.pop_front();
                return Some(Action::Ended { id, how });
            }
        }
        let gone = |receive: &Receive| receive.cancel && receive.filled == 0;
        let at = self.receives.iter().skip(self.open).position(gone)? + self.open;
        if at == 0 && self.copying > 0 {
            return None;
        }
        let id = self.receives.remove(at)?.id;
        Some(Action::Ended { id, how: Ended::Cancelled })
    }

    fn copy(&mut self) -> Option<Action> {
        let first = self.receives.front()?;
        if self.used == 0 || self.copying > 0 {
            return None;
        }
        let (id, offset, at) = (first.id, first.filled, self.at);
        let len = self.used.min(first.len - first.filled).min(self.shape.ring - at);
        self.copying = len;
        #[cfg(test)]
        if self.shape.lacks(super::Mutant::AckBeforeCopy) {
            self.freed += len;
        }
        Some(Action::Copy { id, offset, at, len })
    }

    fn advertise(&mut self) -> Option<Action> {
        if let Some((phase, handed)) = &mut self.retract {
            return (!std::mem::replace(handed, true)).then_some(Action::Retract(*phase));
        }
        let busy = self.used > 0;
        #[cfg(test)]
        let busy = self.used > self.copying || busy && !self.shape.lacks(super::Mutant::AdvertBeforeCopy);
        let next = self.receives.get(self.open).filter(|next| !next.cancel)?;
        // An advert would be void. With further receives it goes out all the same: the sender learns that this end is
        // not late, and waits (see Hold).
        let void = self.more && next.filled > 0 && self.receives.len() == 1;
        if busy || void || self.fin || self.unseen >= self.shape.adverts {
            return None;
        }
        // One that begins a row takes the others with it.
        if self.row == 0 {
            let more = (self.receives.len() - self.open).min(self.shape.row as usize) as u32;
            if self.open as u32 >= self.shape.keep && more < self.shape.row {
                return None;
            }
            self.row = more;
        }
        self.row -= 1;
        if !self.phase.is_multiple_of(2) {
            (self.phase, self.fresh) = (self.shape.phase(self.phase, 1), true);
        }
        let filled = next.filled;
        let len = next.len - filled;
        let first = std::mem::take(&mut self.fresh);
        let (phase, seq, wait_all, place) = (self.phase, self.seq, next.wait_all, (next.id, filled));
        self.open += 1;
        self.unseen += 1;
        // The sender takes it for one that is not late.
        self.told_late = false;
        Some(Action::Advert(Advert { phase, seq, first, wait_all, len, place }, self.take_ack()))
    }

    fn acknowledge(&mut self) -> Option<Action> {
        let late = self.used > 0 && self.receives.is_empty() && !self.told_late;
        let Shape { ring, data, adverts, .. } = self.shape;
        // An advert goes out when the sender has said that it is done with others, which it does by itself. An ACK
        // before that would end its wait for one (see Hold): its next bytes would go into the ring, and make the advert
        // void. This would go on for as long as both ends keep step.
        if self.used == 0 && self.open == 0 && !self.receives.is_empty() && self.unseen >= adverts {
            return None;
        }
        // A sender that knows that this end is late, or has more to send, goes on by itself.
        let drained = self.used == 0 && self.freed > 0 && !self.told_late && !self.more;
        let due = drained || self.data >= data.div_ceil(2) || self.freed >= ring.div_ceil(2);
        // With an open receive the sender goes on by itself.
        let answer = self.asked && self.open == 0 && self.data > 0;
        if !due && !late && !answer {
            return None;
        }
        self.told_late |= late;
        Some(Action::Ack(Ack { late, ..self.take_ack() }))
    }

    fn take_ack(&mut self) -> Ack {
        self.asked &= self.open > 0;
        Ack { freed: std::mem::take(&mut self.freed), data: std::mem::take(&mut self.data), ..Ack::default() }
    }
}
