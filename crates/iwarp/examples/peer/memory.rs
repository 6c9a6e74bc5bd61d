//! Regions and receives of this side, in ordinary memory.

use std::collections::VecDeque;

use iwarp::ddp::TagFault;
use iwarp::rdmap::{Delivery, Place, Target};
use verbs::RKey;

/// A region that the peer may read and write.
pub struct Region {
    pub stag: RKey,
    pub base: u64,
    pub bytes: Vec<u8>,
}

/// All that the peer may reach, and what has come from it.
#[derive(Default)]
pub struct Memory {
    pub regions: Vec<Region>,
    /// The lengths of the posted receives.
    pub receives: VecDeque<usize>,
    /// The receive that was taken last.
    taken: Vec<u8>,
    /// Deliveries, with the bytes of SENDs.
    pub delivered: VecDeque<(Delivery, Vec<u8>)>,
}

impl Memory {
    /// The place of so many bytes in a region.
    fn find(&mut self, stag: RKey, offset: u64, len: usize) -> Result<&mut [u8], TagFault> {
        let region = self.regions.iter_mut().find(|region| region.stag == stag).ok_or(TagFault::Invalid)?;
        let at = offset.checked_sub(region.base).and_then(|at| usize::try_from(at).ok()).ok_or(TagFault::Bounds)?;
        let end = at.checked_add(len).ok_or(TagFault::Bounds)?;
        region.bytes.get_mut(at..end).ok_or(TagFault::Bounds)
    }

    /// A copy of so many bytes of a region.
    pub fn read(&mut self, stag: RKey, offset: u64, len: usize) -> Result<Vec<u8>, TagFault> {
        if len == 0 {
            return Ok(Vec::new());
        }
        self.find(stag, offset, len).map(|bytes| bytes.to_vec())
    }
}

impl Target for Memory {
    fn check_write(&mut self, stag: RKey, offset: u64, len: u32) -> Result<(), TagFault> {
        self.find(stag, offset, len as usize).map(|_| ())
    }

    fn check_sink(&mut self, stag: RKey, offset: u64, len: u32) -> Result<(), TagFault> {
        self.find(stag, offset, len as usize).map(|_| ())
    }

    fn check_source(&mut self, stag: RKey, offset: u64, len: u32) -> Result<(), TagFault> {
        self.find(stag, offset, len as usize).map(|_| ())
    }

    fn take_receive(&mut self) -> Option<u32> {
        let len = self.receives.pop_front()?;
        self.taken = vec![0; len];
        u32::try_from(len).ok()
    }

    fn invalidate(&mut self, stag: RKey) -> Result<(), TagFault> {
        let at = self.regions.iter().position(|region| region.stag == stag).ok_or(TagFault::NotInvalidated)?;
        self.regions.remove(at);
        Ok(())
    }

    fn place(&mut self, place: Place, bytes: &[u8]) -> Result<(), TagFault> {
        match place {
            Place::Tagged { stag, offset } => self.find(stag, offset, bytes.len())?.copy_from_slice(bytes),
            Place::Receive { offset } => {
                let at = offset as usize;
                self.taken.get_mut(at..at + bytes.len()).ok_or(TagFault::Bounds)?.copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    fn deliver(&mut self, delivery: Delivery) {
        let bytes = match delivery {
            Delivery::Send { len, .. } => self.taken.get(..len as usize).unwrap_or_default().to_vec(),
            _ => Vec::new(),
        };
        self.delivered.push_back((delivery, bytes));
    }
}
