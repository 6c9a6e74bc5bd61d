//! Small data that end a receive with their arrival: most messages of SEQPACKET.

use rdma::{Errno, Status, Wc};

use super::super::queue::{Event, Taker};
use super::{End, Leaving, Operation, RECEIVE};
use crate::protocol::{Connection, HEADER, Reset, Taken};

impl End {
    /// Take a completion in if its message needs nothing but the next receive, and nothing is in front of it. False:
    /// nothing was done, and [`End::completed`] is to take it in.
    #[inline(always)]
    pub(super) fn take_small(&mut self, wc: &Wc, taker: Option<&mut Taker<'_>>) -> bool {
        // SMALL comes by a plain SEND. A completion in error has no length.
        let slot = wc.wr_id() ^ RECEIVE;
        if slot > u64::from(u32::MAX) || wc.status() != Status::SUCCESS || !wc.flags().is_empty() {
            return false;
        }
        // Notices in front of it are taken in first.
        if self.protocol.as_ref().is_some_and(Connection::looks) && self.notice().is_some() {
            return false;
        }
        let Some(protocol) = &mut self.protocol else { return false };
        let at = slot as usize * self.slot;
        let header: [u8; HEADER] = self.slots.read_array(at);
        let Some(taken) = protocol.take_at_once(&header, wc.byte_len() as usize) else { return false };
        self.notices.heard();
        let ended = self.taken(at, taken, taker);
        self.free(slot as u32);
        if let Err(why) = ended {
            self.reset(why);
        }
        true
    }

    /// End a receive with the small data of the slot at this place in the memory of the slots.
    #[inline(always)]
    fn taken(&mut self, at: usize, taken: Taken, taker: Option<&mut Taker<'_>>) -> Result<(), Reset> {
        let Taken { op, to, truncated } = taken;
        let Some(Operation { queue, handle, kind, memory, .. }) = self.pending.remove(op.0) else { return Ok(()) };
        let found = memory.is_there(to.offset, to.len).then_some(to.len).ok_or(Errno(libc::EFAULT));
        if to.len > 0 && found.is_ok() {
            self.slots.copy_to(at + HEADER, &memory.mr, to.offset as usize, to.len as usize);
        }
        let event = Event { truncated, ..Event::new(kind, handle, found) };
        if self.leaving.is_empty() {
            self.tell_program(queue, memory, event, taker);
        } else {
            drop(memory);
            self.leaving.push_back(Leaving { queue, event, waits: false });
        }
        found.map(drop).map_err(|_| Reset::Memory)
    }
}
