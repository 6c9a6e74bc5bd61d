//! Middleware on the message path, between the engine and any wire: it observes packets, and interferes with them.
//!
//! [`Tapped`] wraps a wire's [`Env`]. Without taps it costs one predictable branch for each packet. With taps, every
//! packet that the engine sends and receives passes through [`Taps`], and requests that the initiator would execute by
//! itself ([`SameHost::one_sided`]) become packets, so that the taps see them.
#![forbid(unsafe_code)]

pub mod fault;
#[cfg(test)]
mod mock_wire;
pub mod pcap;
mod stream;

use std::ops::{Deref, DerefMut};

use verbs::{Errno, Gid, Qpn, RKey};
use wire::{
    AtomicOp, Entropy, Env, Export, ExportId, Fault, LinkCaps, LinkId, Memory, Nanos, Observer, Offer, OneSided,
    OneSidedDone, OneSidedOp, Packet, PacketWire, Path, Payload, SameHost, SendError, ShortPacket, SingleCopyError,
    Span, TicketRef,
};

use pcap::Pcap;

pub use stream::{Act, StreamTap};

/// A wire from which packets are taken one by one.
pub trait Wire: Env {
    /// Write the next packet of a link to `packet`; the same one again until [`Wire::release`].
    fn peek_into(&mut self, link: LinkId, packet: &mut Packet) -> Option<Self::Rx>;
    /// The next packet of a link as a value; see [`Wire::peek_into`].
    fn peek(&mut self, link: LinkId) -> Option<(Packet, Self::Rx)> {
        let mut packet = Packet::NONE;
        self.peek_into(link, &mut packet).map(|rx| (packet, rx))
    }
    /// Give back the packet that [`Wire::peek`] showed on this link.
    fn release(&mut self, link: LinkId);
    /// The next packet of a link, if it is there and short; a wire that has no quicker way for those has none. `prompt`
    /// is a hint that the polling thread goes on with the acknowledgement.
    fn peek_short(&self, _link: LinkId, _prompt: bool) -> Option<ShortPacket> {
        None
    }
    /// Give back the packet that [`Wire::peek_short`] showed on this link.
    fn release_short(&mut self, link: LinkId) {
        self.release(link);
    }
    /// Check that a packet of any size could be sent on this link now. Like a [`PacketWire::send`] that fails, a
    /// failure requests a report of room ([`PacketWire::take_writable`]).
    ///
    /// # Errors
    /// [`SendError::Full`], [`SendError::Down`].
    fn room(&mut self, link: LinkId) -> Result<(), SendError>;
    /// 128 random bits that name this process's device.
    fn device(&self) -> [u8; 16];
    /// The random bits of the process at the other end, once it has named them. Called when a packet of it is there: it
    /// has named them before that packet, so the wire must read that message first.
    fn peer_device(&mut self, link: LinkId) -> Option<[u8; 16]>;
}

/// The middleware on the path of packets.
#[derive(Default)]
pub struct Taps {
    /// Faults of packets.
    pub faults: Option<fault::Faults>,
    /// A capture of packets.
    pub pcap: Option<Pcap>,
}

impl Taps {
    /// The taps that the settings ask for, if they do. A tap that cannot be made is reported on stderr. Faults are the
    /// process's.
    pub fn of(settings: &report::Settings, wire: &impl Wire, faults: Option<fault::Faults>) -> Option<Taps> {
        let pcap = Pcap::of(settings, &wire.device()).unwrap_or_else(|why| {
            report::log(format_args!("{why}"));
            None
        });
        (pcap.is_some() || faults.is_some()).then_some(Taps { faults, pcap })
    }
}

/// A wire with taps, or without.
pub struct Tapped<W> {
    wire: W,
    taps: Option<Box<Taps>>,
}

impl<W: Wire> Tapped<W> {
    /// Wrap this wire; without taps packets pass as they are.
    pub fn new(wire: W, taps: Option<Taps>) -> Self {
        Tapped { wire, taps: taps.map(Box::new) }
    }

    /// True if there are taps. Always false in a build with `--cfg without_taps`: `cargo xtask taps-cost` measures the
    /// cost of this test against such a build.
    #[inline(always)]
    fn tapped(&self) -> bool {
        !cfg!(without_taps) && self.taps.is_some()
    }

    /// The next packet of a link; the same one again until [`Tapped::release`].
    pub fn peek(&mut self, link: LinkId) -> Option<(Packet, W::Rx)> {
        let mut packet = Packet::NONE;
        self.peek_into(link, &mut packet).map(|rx| (packet, rx))
    }

    /// Write the next packet of a link to `packet`: a packet is large. See [`Tapped::peek`].
    #[inline]
    pub fn peek_into(&mut self, link: LinkId, packet: &mut Packet) -> Option<W::Rx> {
        if self.tapped() {
            return self.peek_tapped(link, packet);
        }
        self.wire.peek_into(link, packet)
    }

    /// Give back the packet that [`Tapped::peek`] showed on this link.
    #[inline]
    pub fn release(&mut self, link: LinkId) {
        if self.tapped() {
            return self.release_tapped(link);
        }
        self.wire.release(link);
    }

    /// The next packet of a link, if it is there and short: [`Tapped::peek`] gives the others. `prompt`: see
    /// [`Wire::peek_short`].
    ///
    /// Not for wires with taps: the caller knows that there are none, so that the test costs the fast path nothing.
    #[inline(always)]
    pub fn peek_short(&self, link: LinkId, prompt: bool) -> Option<ShortPacket> {
        debug_assert!(self.taps.is_none());
        self.wire.peek_short(link, prompt)
    }

    /// Give back the packet that [`Tapped::peek_short`] showed on this link.
    #[inline(always)]
    pub fn release_short(&mut self, link: LinkId) {
        self.wire.release_short(link);
    }

    // The functions that follow are kept out of those of the message path: without taps they cost it one branch, and no
    // room.

    #[cold]
    #[inline(never)]
    fn peek_tapped(&mut self, link: LinkId, packet: &mut Packet) -> Option<W::Rx> {
        let (found, rx) = self.peek_faulty(link)?;
        *packet = found;
        Some(rx)
    }

    #[cold]
    #[inline(never)]
    fn release_tapped(&mut self, link: LinkId) {
        if let Some(pcap) = self.taps.as_mut().and_then(|taps| taps.pcap.as_mut())
            && let Some((packet, rx)) = self.wire.peek(link)
        {
            pcap.received(&mut self.wire, link, &packet, rx);
        }
        if !self.stays(link) {
            self.wire.release(link);
        }
    }

    #[cold]
    #[inline(never)]
    fn scatter_tapped(&mut self, rx: W::Rx, offset: u32, spans: &[Span]) -> Result<(), Fault> {
        self.wire.rx_scatter(rx, offset, spans)?;
        let len = self.wire.rx_len(rx);
        self.spoil(offset, len, spans)
    }

    #[cold]
    #[inline(never)]
    fn send_tapped(&mut self, link: LinkId, packet: &Packet, payload: Payload<'_>) -> Result<(), SendError> {
        self.send_faulty(link, packet, payload)
    }

    /// Send a packet to the wire, and capture it before the peer can see it, so that a capture has every answer behind
    /// its question.
    fn transmit(&mut self, link: LinkId, packet: &Packet, payload: Payload<'_>) -> Result<(), SendError> {
        if let Some(pcap) = self.taps.as_mut().and_then(|taps| taps.pcap.as_mut()) {
            self.wire.room(link)?;
            pcap.sent(&self.wire, packet, payload, None);
        }
        self.wire.send(link, packet, payload)
    }

    /// Capture a packet that the engine sent and the wire never got.
    fn lost(&mut self, packet: &Packet, payload: Payload<'_>) {
        if let Some(pcap) = self.taps.as_mut().and_then(|taps| taps.pcap.as_mut()) {
            pcap.sent(&self.wire, packet, payload, Some("lost on purpose, on its way to the wire"));
        }
    }

    /// Let time pass for packets that wait in the taps.
    #[inline]
    pub fn pass(&mut self, now: Nanos) {
        if self.tapped() {
            self.pass_faulty(now);
        }
    }

    /// Send at once the packets that wait in the taps, for the process may be gone later. The result is the time of the
    /// last packet that found no room: until then the caller should try again.
    #[inline]
    pub fn flush(&mut self) -> Option<Nanos> {
        if !self.tapped() {
            return None;
        }
        self.flush_faulty()
    }

    /// Log how often those faults struck that were logged only once, and those that have not happened.
    pub fn sum_up(&self) {
        if let Some(faults) = self.taps.as_ref().and_then(|taps| taps.faults.as_ref()) {
            faults.sum_up();
        }
    }

    /// The time at which [`Tapped::pass`] has something to do, if nothing else happens.
    #[inline]
    pub fn tap_deadline(&self) -> Option<Nanos> {
        if !self.tapped() {
            return None;
        }
        self.taps.as_ref()?.faults.as_ref()?.deadline()
    }

    /// True if [`Tapped::take_orders`] has orders.
    #[inline]
    pub fn has_orders(&self) -> bool {
        self.tapped() && self.has_orders_tapped()
    }

    #[cold]
    #[inline(never)]
    fn has_orders_tapped(&self) -> bool {
        self.taps.as_ref().and_then(|taps| taps.faults.as_ref()).is_some_and(fault::Faults::has_orders)
    }

    /// The orders of faults for the device.
    #[cold]
    #[inline(never)]
    pub fn take_orders(&mut self) -> Vec<fault::Order> {
        self.taps.as_mut().and_then(|taps| taps.faults.as_mut()).map(fault::Faults::take_orders).unwrap_or_default()
    }

    /// Capture a management datagram that is being sent, by another way than this wire.
    pub fn managed(&mut self, source: &Gid, dest: &Gid, mad: &[u8]) {
        if let Some(pcap) = self.pcap() {
            pcap.managed(source, dest, mad);
        }
    }

    #[inline]
    fn pcap(&mut self) -> Option<&mut Pcap> {
        if !self.tapped() {
            return None;
        }
        self.taps.as_mut()?.pcap.as_mut()
    }
}

impl<W> Deref for Tapped<W> {
    type Target = W;
    #[inline]
    fn deref(&self) -> &W {
        &self.wire
    }
}

impl<W> DerefMut for Tapped<W> {
    #[inline]
    fn deref_mut(&mut self) -> &mut W {
        &mut self.wire
    }
}

impl<W: Wire> Memory for Tapped<W> {
    #[inline]
    fn load(&self, addr: u64, guarded: bool, dst: &mut [u8]) -> Result<(), Fault> {
        self.wire.load(addr, guarded, dst)
    }

    #[inline]
    fn store(&self, addr: u64, guarded: bool, src: &[u8]) -> Result<(), Fault> {
        self.wire.store(addr, guarded, src)
    }

    #[inline]
    fn atomic(&self, addr: u64, guarded: bool, op: AtomicOp) -> Result<u64, Fault> {
        self.wire.atomic(addr, guarded, op)
    }
}

impl<W: Wire> Entropy for Tapped<W> {
    #[inline]
    fn random(&mut self) -> u64 {
        self.wire.random()
    }
}

impl<W: Wire> PacketWire for Tapped<W> {
    type Rx = W::Rx;

    #[inline]
    fn resolve(&mut self, gid: &Gid, qpn: Qpn) -> Option<LinkId> {
        self.wire.resolve(gid, qpn)
    }

    #[inline]
    fn resolve_multicast(&mut self, gid: &Gid, links: &mut Vec<LinkId>) {
        self.wire.resolve_multicast(gid, links);
    }

    #[inline]
    fn announce_multicast(&mut self, gid: &Gid, attached: bool) -> Result<(), Errno> {
        self.wire.announce_multicast(gid, attached)
    }

    #[inline]
    fn same_peer(&self, a: LinkId, b: LinkId) -> bool {
        self.wire.same_peer(a, b)
    }

    #[inline]
    fn caps(&self, link: LinkId) -> LinkCaps {
        self.caps_for(link, u32::MAX)
    }

    #[inline]
    fn caps_for(&self, link: LinkId, len: u32) -> LinkCaps {
        let caps = self.wire.caps_for(link, len);
        if self.tapped() && self.needs_data() {
            return LinkCaps { single_copy: None, ..caps };
        }
        caps
    }

    #[inline]
    fn send(&mut self, link: LinkId, packet: &Packet, payload: Payload<'_>) -> Result<(), SendError> {
        if self.tapped() {
            // A copy, so that without taps the packet need not be in memory for the taps to see.
            let (packet, payload) = (*packet, payload);
            return self.send_tapped(link, &packet, payload);
        }
        self.wire.send(link, packet, payload)
    }

    fn send_quietly(&mut self, link: LinkId, packet: &Packet, payload: Payload<'_>) -> Result<(), SendError> {
        if self.tapped() {
            return self.send_tapped(link, packet, payload);
        }
        self.wire.send_quietly(link, packet, payload)
    }

    #[inline(always)]
    fn send_short(&mut self, link: LinkId, packet: &Packet, prefix: &[u8]) -> Option<u64> {
        // With taps the engine has no fast path (`Engine::set_fast_path`), and without one it does not call this.
        debug_assert!(self.taps.is_none());
        self.wire.send_short(link, packet, prefix)
    }

    #[inline(always)]
    fn expect_send(&self, link: LinkId) {
        self.wire.expect_send(link);
    }

    #[inline]
    fn ring_doorbells(&mut self) {
        self.wire.ring_doorbells();
    }

    #[inline]
    fn sent_mark(&self, link: LinkId) -> u64 {
        self.wire.sent_mark(link)
    }

    #[inline]
    fn taken(&self, link: LinkId, mark: u64) -> bool {
        self.wire.taken(link, mark)
    }

    #[inline]
    fn unread(&self, link: LinkId) -> Option<u64> {
        self.wire.unread(link)
    }

    #[inline]
    fn read(&self, link: LinkId) -> u64 {
        self.wire.read(link)
    }

    #[inline]
    fn lives(&self, link: LinkId) -> bool {
        self.wire.lives(link)
    }

    #[inline]
    fn has_full(&self) -> bool {
        self.tapped() || self.wire.has_full()
    }

    #[inline]
    fn take_writable(&mut self, links: &mut Vec<LinkId>) {
        self.wire.take_writable(links);
    }

    #[inline]
    fn rx_len(&self, rx: Self::Rx) -> u32 {
        self.wire.rx_len(rx)
    }

    #[inline]
    fn rx_fetch(&mut self, rx: Self::Rx, offset: u32, dst: &mut [u8]) {
        self.wire.rx_fetch(rx, offset, dst);
        if self.tapped() {
            let len = self.wire.rx_len(rx);
            self.spoil_bytes(offset, len, dst);
        }
    }

    #[inline]
    fn rx_scatter(&mut self, rx: Self::Rx, offset: u32, spans: &[Span]) -> Result<(), Fault> {
        if self.tapped() {
            return self.scatter_tapped(rx, offset, spans);
        }
        self.wire.rx_scatter(rx, offset, spans)
    }
}

impl<W: Wire> SameHost for Tapped<W> {
    fn is_same_host(&self, link: LinkId) -> bool {
        self.wire.is_same_host(link)
    }

    #[inline]
    fn pull(
        &mut self,
        link: LinkId,
        ticket: TicketRef,
        remote: &[Span],
        local: &[Span],
    ) -> Result<(), SingleCopyError> {
        self.wire.pull(link, ticket, remote, local)?;
        if self.tapped() {
            if let Some(pcap) = self.pcap() {
                pcap.pulled(local);
            }
            let len = local.iter().map(|span| span.len).sum();
            return self.spoil(0, len, local).map_err(|Fault| SingleCopyError::Local);
        }
        Ok(())
    }

    #[inline]
    fn peers_map(&self, span: &Span) -> bool {
        self.wire.peers_map(span)
    }

    #[inline]
    fn push(
        &mut self,
        link: LinkId,
        ticket: TicketRef,
        local: &[Span],
        remote: &[Span],
    ) -> Result<(), SingleCopyError> {
        self.wire.push(link, ticket, local, remote)?;
        if let Some(pcap) = self.pcap() {
            pcap.pushed(local);
        }
        Ok(())
    }

    #[inline]
    fn offered(&self, link: LinkId) -> Option<Offer> {
        self.wire.offered(link)
    }

    #[inline]
    fn co_copy(&mut self, link: LinkId, offer: &Offer) {
        self.wire.co_copy(link, offer);
    }

    #[inline]
    fn has_late_writer(&mut self, link: LinkId) -> bool {
        self.wire.has_late_writer(link)
    }

    #[inline]
    fn wait_for_late_writers(&mut self) {
        self.wire.wait_for_late_writers();
    }

    #[inline]
    fn quiesce(&mut self, link: Option<LinkId>) {
        self.wire.quiesce(link);
    }

    #[inline]
    fn publish(&mut self, exported: &Export) {
        // With taps peers may not execute their requests unseen either.
        if !self.tapped() {
            self.wire.publish(exported);
        }
    }

    #[inline]
    fn retract(&mut self, id: ExportId) {
        self.wire.retract(id);
    }

    #[inline]
    fn one_sided(&mut self, link: LinkId, request: &OneSided<'_>) -> Option<OneSidedDone> {
        // The taps could neither see nor change a request that is executed without a packet.
        if self.tapped() { None } else { self.wire.one_sided(link, request) }
    }

    #[inline]
    fn one_sided_together(&mut self, link: LinkId, requests: &[OneSided<'_>]) -> Option<(u64, usize)> {
        if self.tapped() { None } else { self.wire.one_sided_together(link, requests) }
    }

    #[inline]
    fn one_sided_here(&mut self, op: OneSidedOp, local: &[Span], remote: Span) -> Option<u64> {
        if self.tapped() { None } else { self.wire.one_sided_here(op, local, remote) }
    }

    #[inline]
    fn delivers_here(&self) -> bool {
        !self.tapped() && self.wire.delivers_here()
    }

    #[inline]
    fn may_follow(&self, link: LinkId, mark: u64, queues: bool) -> bool {
        self.wire.may_follow(link, mark, queues)
    }

    fn maps_peer(&mut self, link: LinkId) -> bool {
        self.wire.maps_peer(link)
    }

    fn shares(&mut self, link: LinkId, rkey: RKey, addr: u64, len: u32) -> bool {
        !self.tapped() && self.wire.shares(link, rkey, addr, len)
    }

    #[inline]
    fn answered(&mut self, link: LinkId, len: u32, took: Nanos, refused: bool) {
        self.wire.answered(link, len, took, refused);
    }
}

impl<W: Wire> Observer for Tapped<W> {
    #[inline]
    fn routed(&mut self, path: &Path) {
        if let Some(pcap) = self.pcap() {
            pcap.routed(path);
        }
    }

    #[inline]
    fn withholds_receive(&mut self, packet: &Packet) -> bool {
        self.tapped() && self.withholds_faulty(packet)
    }
}
