//! Packets on the window wire: sending, receiving, and what became of what was sent.

use std::hint::cold_path;
use std::sync::Arc;

use memory::Half;
use memory::fds::TrackedFd;
use memory::ring::{PushError, RingMemory as _, wake_fence};
use verbs::{Errno, Gid, Qpn};
use wire::{Fault, LinkCaps, LinkId, Packet, PacketWire, Payload, SendError, ShortPacket, Span};

use super::WindowEnv;
use crate::codec;
use crate::link::{Rx, State};

impl PacketWire for WindowEnv {
    type Rx = Rx;

    fn resolve(&mut self, gid: &Gid, qpn: Qpn) -> Option<LinkId> {
        if self.is_local(gid) {
            return self.resolve_block((qpn.get() >> 12) as u16);
        }
        report::log_once(
            report::Matter::OtherHost,
            format_args!(
                "no way to {}: it is no address of this network namespace. softrnic connects processes of one host \
                 that share a network namespace (for containers: the host's, or one of a pod)",
                gid.ip()
            ),
        );
        None
    }

    fn resolve_multicast(&mut self, gid: &Gid, links: &mut Vec<LinkId>) {
        self.find_members(gid, links);
    }

    fn announce_multicast(&mut self, gid: &Gid, attached: bool) -> Result<(), Errno> {
        self.announce_member(gid, attached)
    }

    fn same_peer(&self, a: LinkId, b: LinkId) -> bool {
        let remote = |id| self.link(id).and_then(|link| link.remote.as_ref());
        a == b || matches!((remote(a), remote(b)), (Some(a), Some(b)) if a.is_same(b))
    }

    fn caps(&self, link: LinkId) -> LinkCaps {
        self.caps_of(link)
    }

    #[inline]
    fn caps_for(&self, link: LinkId, len: u32) -> LinkCaps {
        if len <= self.config.least_single_copy() {
            return LinkCaps { segment: Half::SEGMENT, single_copy: None };
        }
        self.caps_of(link)
    }

    #[inline]
    fn send(&mut self, id: LinkId, packet: &Packet, payload: Payload<'_>) -> Result<(), SendError> {
        if id == LinkId::LOOPBACK {
            self.looped = true;
        }
        let link = self.link_mut(id).ok_or(SendError::Down)?;
        if link.state != State::Up {
            return Err(SendError::Down);
        }
        let (words, used) = codec::encode(packet);
        match link.producer.push(&words, used, &payload) {
            Ok(_) => {
                let (clean, sleeps) = (!std::mem::replace(&mut link.dirty, true), link.producer.peer_sleeps());
                if clean {
                    self.dirty.push(id);
                }
                self.urgent |= sleeps;
                self.stats.sent_packets += 1;
                Ok(())
            }
            Err(PushError::Full) => {
                if !std::mem::replace(&mut link.full, true) {
                    self.full.push(id);
                }
                Err(SendError::Full)
            }
            Err(PushError::Broken) => {
                self.bury(id);
                Err(SendError::Down)
            }
            Err(PushError::Fault | PushError::Length) => Err(SendError::Fault),
        }
    }

    fn send_quietly(&mut self, id: LinkId, packet: &Packet, payload: Payload<'_>) -> Result<(), SendError> {
        let (owed, urgent) = (self.dirty.len(), self.urgent);
        self.send(id, packet, payload)?;
        if self.dirty.len() > owed {
            // Nothing but this packet is new on the link.
            self.dirty.pop();
            if let Some(link) = self.link_mut(id) {
                link.dirty = false;
            }
        }
        self.urgent = urgent;
        Ok(())
    }

    // Inlined always: what is constant in the packet costs nothing then. And the packet is given to no other function,
    // which would have to see it in memory, so it is made in registers. (In memory it would be written by words of 4
    // bytes and read by words of 8, which wait for all stores before them, also for those to the ring.)
    #[inline(always)]
    fn send_short(&mut self, id: LinkId, packet: &Packet, prefix: &[u8]) -> Option<u64> {
        if prefix.len() <= 8
            && let Some((words, four)) = codec::encode_short(packet, word_of(prefix))
            && let Some(link) = self.link_mut(id).filter(|link| link.state == State::Up)
            && link.producer.push_short(&words, four, prefix.len() as u32)
        {
            let (clean, sleeps) = (!std::mem::replace(&mut link.dirty, true), link.producer.peer_sleeps());
            let mark = link.producer.count();
            if clean {
                self.dirty.push(id);
            }
            self.urgent |= sleeps;
            self.stats.sent_packets += 1;
            return Some(mark);
        }
        cold_path();
        None
    }

    #[inline(always)]
    fn expect_send(&self, id: LinkId) {
        if let Some(link) = self.link(id) {
            link.producer.expect_push();
        }
    }

    #[inline]
    fn ring_doorbells(&mut self) {
        self.ring_doorbells_later(|_| false);
    }

    #[inline]
    fn sent_mark(&self, link: LinkId) -> u64 {
        self.link(link).map_or(0, |l| l.producer.count())
    }

    fn taken(&self, link: LinkId, mark: u64) -> bool {
        // On a dead link nothing will ever be taken, but sending again makes sense: it finds that out.
        self.link(link).is_none_or(|l| l.state != State::Up || l.producer.taken(mark))
    }

    fn unread(&self, link: LinkId) -> Option<u64> {
        let link = self.link(link).filter(|link| link.ready())?;
        Some(link.consumer.count() + u64::from(<Half as memory::ring::RingMemory>::SLOTS))
    }

    fn read(&self, link: LinkId) -> u64 {
        self.link(link).map_or(u64::MAX, |link| link.consumer.count())
    }

    fn lives(&self, link: LinkId) -> bool {
        let up = self.link(link).filter(|link| link.state == State::Up);
        up.is_some_and(|link| link.remote.as_ref().is_none_or(|remote| !remote.gone() && !remote.is_stopped()))
    }

    #[inline]
    fn has_full(&self) -> bool {
        !self.full.is_empty()
    }

    fn take_writable(&mut self, links: &mut Vec<LinkId>) {
        let mut i = 0;
        while let Some(&id) = self.full.get(i) {
            let room = match self.link_mut(id) {
                Some(link) if link.state == State::Up => link.producer.has_room(),
                _ => Ok(true),
            };
            match room {
                Ok(false) => i += 1,
                room => {
                    if room.is_err() {
                        self.bury(id);
                    }
                    if let Some(link) = self.link_mut(id) {
                        link.full = false;
                    }
                    self.full.swap_remove(i);
                    links.push(id);
                }
            }
        }
    }

    #[inline]
    fn rx_len(&self, rx: Rx) -> u32 {
        rx.len()
    }

    fn rx_fetch(&mut self, rx: Rx, offset: u32, dst: &mut [u8]) {
        if let Some(link) = self.link(rx.link()) {
            link.fetch(rx, offset, dst);
        }
    }

    #[inline]
    fn rx_scatter(&mut self, rx: Rx, offset: u32, spans: &[Span]) -> Result<(), Fault> {
        self.link(rx.link()).map_or(Err(Fault), |link| link.scatter(rx, offset, spans))
    }
}

impl WindowEnv {
    /// As [`PacketWire::ring_doorbells`], but a doorbell that `later` takes is left to the caller, who writes to it.
    /// The write may wake a thread that takes this one's processor.
    #[inline]
    pub fn ring_doorbells_later(&mut self, mut later: impl FnMut(&Arc<TrackedFd>) -> bool) {
        if self.dirty.is_empty() {
            return;
        }
        wake_fence();
        for at in 0..self.dirty.len() {
            let Some(link) = self.link_mut(self.dirty[at]) else {
                continue;
            };
            link.dirty = false;
            let Some(remote) = link.remote.as_ref().filter(|_| link.producer.must_ring()) else {
                continue;
            };
            if !remote.doorbell.as_ref().is_some_and(&mut later) {
                link.ring();
            }
            self.stats.rings += 1;
        }
        self.dirty.clear();
        self.urgent = false;
    }
}

/// At most 8 bytes, as a word.
#[inline]
fn word_of(bytes: &[u8]) -> u64 {
    if let Some(whole) = bytes.as_array::<8>() {
        return u64::from_ne_bytes(*whole);
    }
    let mut word = [0u8; 8];
    for (to, from) in word.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_ne_bytes(word)
}

impl taps::Wire for WindowEnv {
    #[inline(always)]
    fn peek_short(&self, link: LinkId, prompt: bool) -> Option<ShortPacket> {
        WindowEnv::peek_short(self, link, prompt)
    }

    #[inline(always)]
    fn release_short(&mut self, link: LinkId) {
        WindowEnv::release_short(self, link);
    }

    #[inline]
    fn peek_into(&mut self, link: LinkId, packet: &mut Packet) -> Option<Rx> {
        WindowEnv::peek_into(self, link, packet)
    }

    #[inline]
    fn release(&mut self, link: LinkId) {
        WindowEnv::release(self, link);
    }

    fn device(&self) -> [u8; 16] {
        self.instance
    }

    fn peer_device(&mut self, link: LinkId) -> Option<[u8; 16]> {
        let known = |env: &Self| match &env.link(link)?.remote {
            Some(remote) => remote.instance,
            None => Some(env.instance),
        };
        known(self).or_else(|| {
            // WELCOME lies in the socket. It is sent before anything is put into the window, but a poll looks into the
            // window more often than at the socket.
            self.hear_greeting(link);
            known(self)
        })
    }

    fn room(&mut self, id: LinkId) -> Result<(), SendError> {
        let link = self.link_mut(id).filter(|link| link.state == State::Up).ok_or(SendError::Down)?;
        match link.producer.has_room() {
            Ok(true) => Ok(()),
            Ok(false) => {
                if !std::mem::replace(&mut link.full, true) {
                    self.full.push(id);
                }
                Err(SendError::Full)
            }
            Err(_) => {
                self.bury(id);
                Err(SendError::Down)
            }
        }
    }
}
