//! The requests of an end: messages, with what they name or carry.

use rdma::{Access, Data, Mr, SendFlags, SendOp, SendWr, Sge};

use super::row::Row;
use super::{End, GIVE, INLINE, LATER, MOST_INLINE, NO_SLOT, SEND, SILENT, SMALL};
use crate::protocol::{Buffer, HEADER, Message, Op, ROW};

impl End {
    /// Send a message, with what it names.
    pub(super) fn send_message(&mut self, message: Message, buffer: Option<Buffer>) -> rdma::Result<()> {
        // Those that are not of the other direction go behind what the peer is to hear of the transfers.
        if !matches!(message, Message::Offer { .. } | Message::Room(_) | Message::Retract(_)) {
            self.tell()?;
        }
        if !Row::takes(&message) {
            self.send_row()?;
        }
        let (mut message, mut data, mut before) = (message, None, 0);
        let small = matches!(message, Message::Small { .. });
        let kind = if small { SMALL } else { SEND };
        if let Some(buffer) = buffer {
            let access = match message {
                Message::Advert { .. } => Some(Access::REMOTE_READ),
                Message::Offer { .. } => Some(Access::REMOTE_WRITE),
                _ => None,
            };
            if let Some(access) = access {
                let Some(memory) = self.memory(buffer).cloned() else { return Ok(()) };
                let mr = memory.region(buffer.len as usize);
                let (place, posted) = self.keys.give(&self.qp, mr, buffer, access, GIVE)?;
                (message, before) = (message.named(place), posted);
            } else if !self.serves(buffer) {
                return Ok(());
            } else if HEADER + buffer.len as usize <= self.inline {
                let Some(memory) = self.memory(buffer).cloned() else { return Ok(()) };
                self.send_inline(message, &memory.mr, buffer.offset as usize, buffer.len as usize)?;
                if let Some(protocol) = &mut self.protocol {
                    protocol.small_done(Op(buffer.region));
                }
                return Ok(());
            } else if buffer.len > 0 {
                // By the adapter, which finds out if the program has unmapped it.
                data = self.sge(buffer);
            }
        }
        self.posted += before;
        self.silent += before;
        if small {
            self.smalls.extend(buffer.map(|buffer| Op(buffer.region)));
        }
        if Row::takes(&message) && self.inline >= ROW {
            return self.join(message);
        }
        self.send_header(kind, SendOp::Send, message, data)
    }

    /// The SEND that is the last one for this key of the peer.
    pub(super) fn ending(&self, key: Option<u32>) -> SendOp<'static> {
        key.filter(|_| self.peer_has_windows).map_or(SendOp::Send, SendOp::SendInv)
    }

    /// SEND a header, from a slot unless it goes with the request, and data behind it.
    pub(super) fn send_header(
        &mut self,
        kind: u64,
        op: SendOp<'_>,
        message: Message,
        data: Option<Sge>,
    ) -> rdma::Result<()> {
        if data.is_none() && self.inline >= HEADER {
            return self.post(kind | NO_SLOT, op, Data::Inline(&[&message.emit()]));
        }
        let Some(slot) = self.free_sends.pop() else { return Ok(()) };
        let at = self.receive_slots * self.slot + slot * HEADER;
        self.slots.write(at, &message.emit());
        let header = self.slots.sge(at, HEADER);
        let sges = [header, data.unwrap_or(header)];
        self.post(kind | slot as u64, op, Data::Sges(&sges[..1 + usize::from(data.is_some())]))
    }

    /// Send a message with its few data, which the device takes at once.
    #[inline(always)]
    pub(super) fn send_inline(&mut self, message: Message, mr: &Mr, offset: usize, len: usize) -> rdma::Result<()> {
        // An array of the size that most messages need: it is zeroed before.
        if HEADER + len <= 64 {
            self.send_bytes::<64>(message, mr, offset, len)
        } else {
            self.send_more(message, mr, offset, len)
        }
    }

    /// Apart, so that the few bytes of most messages need no large frame.
    #[inline(never)]
    fn send_more(&mut self, message: Message, mr: &Mr, offset: usize, len: usize) -> rdma::Result<()> {
        if HEADER + len <= INLINE {
            self.send_bytes::<INLINE>(message, mr, offset, len)
        } else {
            self.send_bytes::<MOST_INLINE>(message, mr, offset, len)
        }
    }

    #[inline(always)]
    fn send_bytes<const MOST: usize>(
        &mut self,
        message: Message,
        mr: &Mr,
        offset: usize,
        len: usize,
    ) -> rdma::Result<()> {
        let mut bytes = [0; MOST];
        let (header, rest) = bytes.split_at_mut(HEADER);
        header.copy_from_slice(&message.emit());
        mr.read(offset, &mut rest[..len]);
        self.post_here(SEND | NO_SLOT, SendOp::Send, Data::Inline(&[&bytes[..HEADER + len]]))
    }

    /// Post a request. A message without a slot has seldom a completion of its own: nothing waits for it.
    #[inline(never)]
    pub(super) fn post(&mut self, wr_id: u64, op: SendOp<'_>, data: Data<'_>) -> rdma::Result<()> {
        self.post_here(wr_id, op, data)
    }

    /// As [`End::post`]; a part of its caller, which knows what it posts.
    #[inline(always)]
    fn post_here(&mut self, wr_id: u64, op: SendOp<'_>, data: Data<'_>) -> rdma::Result<()> {
        let (wr_id, flags) = self.number(wr_id);
        if matches!(op, SendOp::Send | SendOp::SendInv(_) | SendOp::WriteImm { .. }) {
            self.notices.sent();
        }
        self.qp.post_send(&SendWr { flags, ..SendWr::new(wr_id, op, data) })?;
        self.count(flags);
        Ok(())
    }

    /// The whole number of a request that is posted next, and whether it has a completion.
    #[inline(always)]
    pub(super) fn number(&self, wr_id: u64) -> (u64, SendFlags) {
        let may = wr_id & LATER != 0 || wr_id == SEND | NO_SLOT && !self.words.are_due();
        let quiet = may && self.silent < SILENT.min(self.room / 4) && !self.shut;
        let wr_id = wr_id & !LATER | self.words.mark();
        if quiet {
            return (wr_id, SendFlags::empty());
        }
        (wr_id | (self.silent as u64) << 32, SendFlags::SIGNALED)
    }

    /// A request is posted.
    #[inline(always)]
    pub(super) fn count(&mut self, flags: SendFlags) {
        self.posted += 1;
        self.silent = if flags.is_empty() {
            self.silent + 1
        } else {
            self.words.asked();
            0
        };
    }
}
