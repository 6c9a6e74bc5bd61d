//! Faults of packets, on their way between engine and wire.

use wire::{Fault, LinkId, Nanos, Packet, Payload, SendError, Span};

use super::{Arrival, Faults, Late, header};
use crate::{Tapped, Wire};

/// How long a late packet waits for room on its link, in nanoseconds, before it is tried again.
const RETRY: Nanos = 100_000;

/// The byte and the bit, in a payload of `len` bytes behind its header, for a number.
fn place(choice: u64, header: u32, len: u32) -> (u32, u8) {
    let data = len.saturating_sub(header).max(1);
    (header + (choice % u64::from(data)) as u32, 1 << (choice >> 61))
}

/// The number of packets that may wait at a time. Further ones are lost, as in a network with a full buffer.
const MOST_LATE: usize = 1 << 15;

impl Faults {
    fn put_off(&mut self, at: Nanos, late: Late) {
        if self.late.len() < MOST_LATE {
            self.serial += 1;
            self.late.insert((at, self.serial), late);
        } else if !std::mem::replace(&mut self.overflowed, true) {
            (self.tell)(&format!("more than {MOST_LATE} packets are late: those beyond are lost"));
        }
    }

    /// Count a packet that was sent on this link: those that it overtook may go now.
    fn overtaken(&mut self, link: LinkId) {
        let mut free = Vec::new();
        for (key, late) in self.late.iter_mut().filter(|(_, late)| late.link == link) {
            if let Some(left) = &mut late.behind {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    free.push(*key);
                }
            }
        }
        for key in free {
            if let Some(late) = self.late.remove(&key) {
                self.late.insert((0, key.1), Late { behind: None, ..late });
            }
        }
    }
}

impl<W: Wire> Tapped<W> {
    fn faults(&mut self) -> Option<&mut Faults> {
        self.taps.as_mut()?.faults.as_mut()
    }

    /// Send a packet of the engine.
    pub(crate) fn send_faulty(&mut self, link: LinkId, packet: &Packet, payload: Payload<'_>) -> Result<(), SendError> {
        let Some(faults) = self.faults() else { return self.transmit(link, packet, payload) };
        let len = payload.prefix.len() as u32 + payload.spans.iter().map(|span| span.len).sum::<u32>();
        let verdict = faults.outgoing(link, packet, len);
        let now = (faults.clock)();
        if verdict.lost {
            self.lost(packet, payload);
            return Ok(()); // for the engine it was sent, like any packet that a network loses
        }
        if verdict.is_plain() {
            self.transmit(link, packet, payload)?;
            self.let_overtaken_go(link, now);
            return Ok(());
        }
        let mut data = self.copy_out(payload).map_err(|Fault| SendError::Fault)?;
        if let Some(choice) = verdict.flip {
            let (byte, bit) = place(choice, header(packet.op), data.len() as u32);
            if let Some(byte) = data.get_mut(byte as usize) {
                *byte ^= bit;
            }
        }
        let copies = if verdict.again { 2 } else { 1 };
        if verdict.wait > 0 {
            for _ in 0..copies {
                let late = Late { link, packet: *packet, data: data.clone(), behind: verdict.behind };
                if let Some(faults) = self.faults() {
                    faults.put_off(now.saturating_add(verdict.wait), late);
                }
            }
            return Ok(());
        }
        let whole = Payload { prefix: &data, spans: &[] };
        self.transmit(link, packet, whole)?;
        if verdict.again {
            let _ = self.transmit(link, packet, whole); // without room for it, the second one is lost
        }
        self.let_overtaken_go(link, now);
        Ok(())
    }

    fn copy_out(&self, payload: Payload<'_>) -> Result<Vec<u8>, Fault> {
        let mut data = payload.prefix.to_vec();
        for span in payload.spans {
            let at = data.len();
            data.resize(at + span.len as usize, 0);
            self.wire.load(span.addr, span.guarded, &mut data[at..])?;
        }
        Ok(data)
    }

    fn let_overtaken_go(&mut self, link: LinkId, now: Nanos) {
        if let Some(faults) = self.faults()
            && !faults.late.is_empty()
        {
            faults.overtaken(link);
            self.send_late(now, |at| at == 0);
        }
    }

    /// Send the packets that have waited long enough, in order. A packet for which a full link has no room waits on,
    /// and so do all behind it.
    fn send_late(&mut self, now: Nanos, goes: impl Fn(Nanos) -> bool) {
        let mut full: Vec<LinkId> = Vec::new();
        let Some(faults) = self.faults() else { return };
        let due: Vec<(Nanos, u64)> = faults.late.keys().copied().take_while(|(at, _)| goes(*at)).collect();
        for key in due {
            let Some(faults) = self.faults() else { return };
            let Some(late) = faults.late.remove(&key) else { continue };
            if faults.is_dark(late.link, now) {
                continue;
            }
            let blocked = full.contains(&late.link);
            let payload = Payload { prefix: &late.data, spans: &[] };
            if blocked || self.transmit(late.link, &late.packet, payload) == Err(SendError::Full) {
                full.push(late.link);
                if let Some(faults) = self.faults() {
                    faults.late.insert(key, late);
                    faults.retry_at = now + RETRY;
                }
            }
        }
    }

    /// Handle the passing of time.
    #[cold]
    #[inline(never)]
    pub(crate) fn pass_faulty(&mut self, now: Nanos) {
        if let Some(faults) = self.faults() {
            faults.expire(now);
            if now >= faults.retry_at {
                self.send_late(now, |at| at <= now);
            }
        }
    }

    /// Send all that waits: the process may have ended when its time comes.
    #[cold]
    #[inline(never)]
    pub(crate) fn flush_faulty(&mut self) -> Option<Nanos> {
        let now = (self.faults()?.clock)();
        self.send_late(now, |_| true);
        self.faults()?.late.last_key_value().map(|((at, _), _)| *at)
    }

    /// The next packet of a link that is not lost.
    pub(crate) fn peek_faulty(&mut self, link: LinkId) -> Option<(Packet, W::Rx)> {
        loop {
            let (packet, rx) = self.wire.peek(link)?;
            let len = self.wire.rx_len(rx);
            let Some(faults) = self.faults() else { return Some((packet, rx)) };
            if faults.arrived.contains_key(&link) {
                return Some((packet, rx)); // shown again before it was released
            }
            match faults.incoming(link, &packet, len) {
                Arrival::Lost => self.wire.release(link),
                arrival => {
                    faults.arrived.insert(link, arrival);
                    return Some((packet, rx));
                }
            }
        }
    }

    /// True if the packet of this link is to be given once more, and so must not be released.
    pub(crate) fn stays(&mut self, link: LinkId) -> bool {
        let Some(faults) = self.faults() else { return false };
        faults.flip = None;
        if faults.arrived.get(&link) == Some(&Arrival::Again) {
            faults.arrived.insert(link, Arrival::Passes);
            return true;
        }
        faults.arrived.remove(&link);
        false
    }

    /// Flip a bit of data that have come to local memory: they are those from `offset` on of a payload of `len` bytes.
    #[cold]
    #[inline(never)]
    pub(crate) fn spoil(&mut self, offset: u32, len: u32, spans: &[Span]) -> Result<(), Fault> {
        let Some((choice, header)) = self.faults().and_then(|faults| faults.flip) else { return Ok(()) };
        let (byte, bit) = place(choice, header, len);
        let Some(mut at) = byte.checked_sub(offset) else { return Ok(()) };
        for span in spans {
            if at < span.len {
                let mut value = [0u8];
                self.wire.load(span.addr + u64::from(at), span.guarded, &mut value)?;
                value[0] ^= bit;
                return self.wire.store(span.addr + u64::from(at), span.guarded, &value);
            }
            at -= span.len;
        }
        Ok(())
    }

    /// Flip a bit of data that were fetched from the packet.
    #[cold]
    #[inline(never)]
    pub(crate) fn spoil_bytes(&mut self, offset: u32, len: u32, bytes: &mut [u8]) {
        let Some((choice, header)) = self.faults().and_then(|faults| faults.flip) else { return };
        let (byte, bit) = place(choice, header, len);
        if let Some(byte) = byte.checked_sub(offset).and_then(|at| bytes.get_mut(at as usize)) {
            *byte ^= bit;
        }
    }

    /// See [`wire::Observer::withholds_receive`].
    #[cold]
    #[inline(never)]
    pub(crate) fn withholds_faulty(&mut self, packet: &Packet) -> bool {
        self.faults().is_some_and(|faults| faults.withholds_receive(packet))
    }

    /// True if data must be in packets, for a fault to reach them.
    #[cold]
    #[inline(never)]
    pub(crate) fn needs_data(&self) -> bool {
        self.taps.as_ref().and_then(|taps| taps.faults.as_ref()).is_some_and(Faults::needs_data)
    }
}
