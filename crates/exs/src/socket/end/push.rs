//! PUSH: data that this end WRITEs because the peer asks for them, and whether this end asks.
//!
//! Which way is faster depends on the machine: two processors that write the same memory in turns may take longer for
//! it than one. And a peer whose program does not call the library WRITEs late. So an end tries both ways
//! ([`trial`]), and takes the faster one.

use std::time::Instant;

use rdma::{Data, SendOp};
use trial::AbTrial;

use super::{End, NO_SLOT, WRITE};
use crate::protocol::{Buffer, Connection, LongPackets, Remote, Reset};

/// Packets and bytes that are timed together.
const STRETCH: (u64, u64) = (4, 1 << 20);
/// Stretches between two trials, at first and later.
const APART: (u32, u32) = (128, 1024);
/// Nanoseconds without a packet from which on the program counts as pausing, unless the peer was late.
const PAUSE: u64 = 1_000_000;

/// The trial of the two ways: to ask the peer for WRITEs, or to READ everything.
pub(super) struct Asking {
    /// The device makes the copies of READs and WRITEs.
    allowed: bool,
    trial: AbTrial,
    /// Those at the start of the stretch, and at the last look.
    start: LongPackets,
    seen: LongPackets,
    last: Option<Instant>,
    nanos: u64,
}

impl Asking {
    pub fn new(allowed: bool) -> Asking {
        let none = LongPackets::default();
        Asking { allowed, trial: AbTrial::new(APART.0, APART.1), start: none, seen: none, last: None, nanos: 0 }
    }

    /// Before the protocol begins.
    pub fn agree(&self, protocol: &mut Connection) {
        if !self.allowed {
            protocol.forbid_pushes();
        }
    }

    /// So many have come, now. Says, after a stretch, whether the peer is to be asked from now on.
    fn came(&mut self, long: LongPackets, now: Instant) -> Option<bool> {
        let before = std::mem::replace(&mut self.seen, long);
        let nanos = self.last.replace(now).map(|last| (now - last).as_nanos() as u64);
        let counts = |nanos: &u64| *nanos <= PAUSE || long.pushed > before.pushed;
        let Some(nanos) = nanos.filter(counts) else {
            (self.start, self.nanos) = (long, 0);
            return None;
        };
        self.nanos += nanos;
        let (count, bytes) = (long.count - self.start.count, long.bytes - self.start.bytes);
        if count < STRETCH.0 || bytes < STRETCH.1 {
            return None;
        }
        let took = u128::from(self.nanos) * u128::from(STRETCH.1) / u128::from(bytes);
        self.trial.over(Some(took as u64));
        (self.start, self.nanos) = (long, 0);
        Some(!self.trial.second())
    }
}

impl End {
    /// WRITE what the peer has asked for. PUSHED follows.
    pub(super) fn push(&mut self, from: Buffer, to: Remote) -> rdma::Result<()> {
        if !self.serves(from) {
            if let Some(protocol) = &mut self.protocol {
                protocol.write_dropped();
            }
            return Ok(());
        }
        let Some(sge) = self.sge(from) else { return Ok(()) };
        let Remote { addr, rkey } = to;
        let posted =
            self.send_row().and_then(|()| self.post(WRITE | NO_SLOT, SendOp::Write { addr, rkey }, Data::Sges(&[sge])));
        if let (Err(_), Some(protocol)) = (posted, &mut self.protocol) {
            // It will not complete. Those behind it have not been posted.
            protocol.reset(Reset::Peer);
            protocol.write_dropped();
        }
        posted
    }

    /// Completions were taken in: see whether long packets have come.
    #[inline(always)]
    pub(super) fn time_long_packets(&mut self) {
        let long = self.protocol.as_ref().map_or(LongPackets::default(), Connection::long_packets);
        if long.count != self.asking.seen.count {
            self.long_packets_came(long);
        }
    }

    #[inline(never)]
    fn long_packets_came(&mut self, long: LongPackets) {
        if let Some(asks) = self.asking.came(long, Instant::now())
            && let Some(protocol) = &mut self.protocol
        {
            protocol.ask_for_pushes(asks);
        }
    }

    /// The connection ends. The peer's device cannot WRITE to memory that is not there any more, and says nothing else.
    pub(super) fn look_after_pushes(&mut self, why: Reset) {
        let protocol = self.protocol.as_ref().filter(|_| why == Reset::Peer);
        let places: Vec<Buffer> = protocol.into_iter().flat_map(Connection::places_of_pushes).collect();
        for to in places {
            let lost = self.memory(to).is_some_and(|memory| !memory.is_there(to.offset, to.len));
            if let Some(operation) = self.pending.get_mut(to.region).filter(|_| lost) {
                operation.lost = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LEN: u64 = 1 << 16;

    /// Packets that are WRITTEN of `count`, each of which takes so long by PUSH or by READ.
    fn pushed(asking: &mut Asking, count: u64, by_push: u64, by_read: u64) -> u64 {
        let (mut now, mut long, mut asks) = (Instant::now(), asking.seen, true);
        let before = long.pushed;
        for _ in 0..count {
            now += Duration::from_micros(if asks { by_push } else { by_read });
            (long.count, long.bytes) = (long.count + 1, long.bytes + LEN);
            long.pushed += u64::from(asks);
            asks = asking.came(long, now).unwrap_or(asks);
        }
        long.pushed - before
    }

    #[test]
    fn the_faster_way_is_found() {
        let count = 100_000;
        for (by_push, by_read, least, most) in [(5, 6, 95, 100), (10, 6, 0, 5), (3000, 6, 0, 5)] {
            let part = 100 * pushed(&mut Asking::new(true), count, by_push, by_read) / count;
            assert!((least..=most).contains(&part), "{by_push} {by_read}: {part} %");
        }
    }

    #[test]
    fn a_program_that_pauses_is_not_timed() {
        let mut asking = Asking::new(true);
        let now = Instant::now();
        let long = |count: u64| LongPackets { count, bytes: count * LEN, pushed: 0 };
        asking.came(long(1), now);
        asking.came(long(2), now + Duration::from_micros(5));
        assert_eq!(asking.nanos, 5000);
        asking.came(long(3), now + Duration::from_millis(20));
        assert_eq!((asking.nanos, asking.start), (0, long(3)));
    }
}
