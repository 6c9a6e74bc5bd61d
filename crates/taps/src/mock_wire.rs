//! A wire for tests, which records what it gets.

use std::collections::VecDeque;

use std::result::Result;

use verbs::{Errno, Gid, Qpn};
use wire::*;

use crate::Wire;

/// A wire with memory of its own, in which addresses are offsets.
#[derive(Default)]
pub(crate) struct MockWire {
    pub sent: Vec<(LinkId, Packet, Vec<u8>)>,
    pub room: Option<usize>,
    pub coming: VecDeque<(Packet, Vec<u8>)>,
    pub memory: std::cell::RefCell<Vec<u8>>,
    pub exported: u32,
    /// The random bits of the process at the other end.
    pub peer: Option<[u8; 16]>,
}

impl Wire for MockWire {
    fn peek_into(&mut self, _link: LinkId, packet: &mut Packet) -> Option<u32> {
        let (next, data) = self.coming.front()?;
        *packet = *next;
        Some(data.len() as u32)
    }
    fn release(&mut self, _link: LinkId) {
        self.coming.pop_front();
    }
    fn room(&mut self, _link: LinkId) -> Result<(), SendError> {
        if self.room == Some(0) { Err(SendError::Full) } else { Ok(()) }
    }
    fn device(&self) -> [u8; 16] {
        [0; 16]
    }
    fn peer_device(&mut self, _link: LinkId) -> Option<[u8; 16]> {
        self.peer
    }
}

impl Memory for MockWire {
    fn load(&self, addr: u64, _guarded: bool, dst: &mut [u8]) -> Result<(), Fault> {
        let from = addr as usize;
        dst.copy_from_slice(self.memory.borrow().get(from..from + dst.len()).ok_or(Fault)?);
        Ok(())
    }

    fn store(&self, addr: u64, _guarded: bool, src: &[u8]) -> Result<(), Fault> {
        let to = addr as usize;
        self.memory.borrow_mut().get_mut(to..to + src.len()).ok_or(Fault)?.copy_from_slice(src);
        Ok(())
    }

    fn atomic(&self, _addr: u64, _guarded: bool, _op: AtomicOp) -> Result<u64, Fault> {
        Err(Fault)
    }
}

impl Entropy for MockWire {
    fn random(&mut self) -> u64 {
        4
    }
}

impl PacketWire for MockWire {
    type Rx = u32;

    fn resolve(&mut self, _gid: &Gid, _qpn: Qpn) -> Option<LinkId> {
        None
    }

    fn resolve_multicast(&mut self, _gid: &Gid, _links: &mut Vec<LinkId>) {}

    fn announce_multicast(&mut self, _gid: &Gid, _attached: bool) -> Result<(), Errno> {
        Ok(())
    }

    fn same_peer(&self, a: LinkId, b: LinkId) -> bool {
        a == b
    }

    fn caps(&self, _link: LinkId) -> LinkCaps {
        LinkCaps {
            segment: 16384,
            single_copy: Some(SingleCopyCaps {
                above: 16384,
                flowing_above: 16384,
                either_from: u32::MAX,
                shared_above: 16384,
            }),
        }
    }

    fn send(&mut self, link: LinkId, packet: &Packet, payload: Payload<'_>) -> Result<(), SendError> {
        if let Some(room) = &mut self.room {
            *room = room.checked_sub(1).ok_or(SendError::Full)?;
        }
        let mut data = payload.prefix.to_vec();
        for span in payload.spans {
            let mut piece = vec![0; span.len as usize];
            self.load(span.addr, span.guarded, &mut piece).map_err(|Fault| SendError::Fault)?;
            data.extend(piece);
        }
        self.sent.push((link, *packet, data));
        Ok(())
    }

    fn ring_doorbells(&mut self) {}

    fn sent_mark(&self, _link: LinkId) -> u64 {
        0
    }

    fn taken(&self, _link: LinkId, _mark: u64) -> bool {
        true
    }

    fn unread(&self, _link: LinkId) -> Option<u64> {
        None
    }

    fn read(&self, _link: LinkId) -> u64 {
        0
    }

    fn lives(&self, _link: LinkId) -> bool {
        true
    }

    fn take_writable(&mut self, _links: &mut Vec<LinkId>) {}

    fn rx_len(&self, rx: u32) -> u32 {
        rx
    }

    fn rx_fetch(&mut self, _rx: u32, offset: u32, dst: &mut [u8]) {
        let from = offset as usize;
        dst.copy_from_slice(&self.coming[0].1[from..from + dst.len()]);
    }

    fn rx_scatter(&mut self, _rx: u32, offset: u32, spans: &[Span]) -> Result<(), Fault> {
        let mut from = offset as usize;
        for span in spans {
            self.store(span.addr, span.guarded, &self.coming[0].1[from..from + span.len as usize])?;
            from += span.len as usize;
        }
        Ok(())
    }
}

impl SameHost for MockWire {
    fn pull(&mut self, _l: LinkId, _t: TicketRef, _remote: &[Span], _local: &[Span]) -> Result<(), SingleCopyError> {
        Ok(())
    }

    fn push(&mut self, _l: LinkId, _t: TicketRef, _local: &[Span], _remote: &[Span]) -> Result<(), SingleCopyError> {
        Ok(())
    }

    fn quiesce(&mut self, _link: Option<LinkId>) {}

    fn publish(&mut self, _exported: &Export) {
        self.exported += 1;
    }

    fn one_sided(&mut self, _link: LinkId, _request: &OneSided<'_>) -> Option<OneSidedDone> {
        Some(OneSidedDone { epoch: 1, before: 0 })
    }
}

impl Observer for MockWire {}
