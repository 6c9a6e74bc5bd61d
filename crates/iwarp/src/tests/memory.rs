//! Regions and receives of one side, as a target of a stream.

use std::collections::VecDeque;
use std::vec::Vec;

use verbs::RKey;

use crate::ddp::TagFault;
use crate::rdmap::{Delivery, Place, Target};

/// A region: what it may be used for, and what is in it.
pub(crate) struct Region {
    pub(crate) stag: RKey,
    pub(crate) base: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) writable: bool,
    pub(crate) readable: bool,
}

/// All that one side has.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) regions: Vec<Region>,
    /// Posted receives, by their lengths.
    pub(crate) receives: VecDeque<usize>,
    /// The receive that was taken last.
    pub(crate) taken: Vec<u8>,
    /// The deliveries, with the bytes of SENDs.
    pub(crate) delivered: Vec<(Delivery, Vec<u8>)>,
    /// Bytes that were placed.
    pub(crate) placed: usize,
    /// A region of another stream.
    pub(crate) foreign: Option<RKey>,
}

impl Memory {
    /// One region that the peer may write and read, from offset `base` on.
    pub(crate) fn new(stag: u32, base: u64, len: usize) -> Memory {
        let region = Region { stag: RKey(stag), base, bytes: std::vec![0; len], writable: true, readable: true };
        Memory { regions: Vec::from([region]), ..Memory::default() }
    }

    fn find(&self, stag: RKey, offset: u64, len: u32, may: impl Fn(&Region) -> bool) -> Result<(), TagFault> {
        if self.foreign == Some(stag) {
            return Err(TagFault::Stream);
        }
        let region = self.regions.iter().find(|region| region.stag == stag).ok_or(TagFault::Invalid)?;
        let inside = offset.checked_sub(region.base).and_then(|at| at.checked_add(len.into()));
        match inside {
            Some(end) if end <= region.bytes.len() as u64 => {}
            _ => return Err(TagFault::Bounds),
        }
        if may(region) { Ok(()) } else { Err(TagFault::Rights) }
    }

    /// The bytes that were put into a region.
    pub(crate) fn bytes(&self, stag: u32) -> &[u8] {
        &self.regions.iter().find(|region| region.stag == RKey(stag)).expect("a region").bytes
    }

    /// The deliveries without the bytes.
    pub(crate) fn deliveries(&self) -> Vec<Delivery> {
        self.delivered.iter().map(|(delivery, _)| *delivery).collect()
    }
}

impl Target for Memory {
    fn check_write(&mut self, stag: RKey, offset: u64, len: u32) -> Result<(), TagFault> {
        assert!(len > 0, "asked for nothing");
        self.find(stag, offset, len, |region| region.writable)
    }

    fn check_sink(&mut self, stag: RKey, offset: u64, len: u32) -> Result<(), TagFault> {
        assert!(len > 0, "asked for nothing");
        self.find(stag, offset, len, |_| true)
    }

    fn check_source(&mut self, stag: RKey, offset: u64, len: u32) -> Result<(), TagFault> {
        assert!(len > 0, "asked for nothing");
        self.find(stag, offset, len, |region| region.readable)
    }

    fn take_receive(&mut self) -> Option<u32> {
        let len = self.receives.pop_front()?;
        self.taken = std::vec![0; len];
        Some(len as u32)
    }

    fn invalidate(&mut self, stag: RKey) -> Result<(), TagFault> {
        if self.foreign == Some(stag) {
            return Err(TagFault::Stream);
        }
        let at = self.regions.iter().position(|region| region.stag == stag).ok_or(TagFault::NotInvalidated)?;
        self.regions.remove(at);
        Ok(())
    }

    fn place(&mut self, place: Place, bytes: &[u8]) -> Result<(), TagFault> {
        assert!(!bytes.is_empty());
        self.placed += bytes.len();
        let (room, at) = match place {
            Place::Tagged { stag, offset } => {
                let region = self.regions.iter_mut().find(|region| region.stag == stag).ok_or(TagFault::Invalid)?;
                (&mut region.bytes, (offset - region.base) as usize)
            }
            Place::Receive { offset } => (&mut self.taken, offset as usize),
        };
        room[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn deliver(&mut self, delivery: Delivery) {
        let bytes = match delivery {
            Delivery::Send { len, .. } => self.taken[..len as usize].to_vec(),
            _ => Vec::new(),
        };
        self.delivered.push((delivery, bytes));
    }
}
