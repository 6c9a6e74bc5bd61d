//! Messages that share a SEND.
//!
//! What the protocol says in a row goes out in one SEND: it takes the device as long as a message alone, at both ends.
//! A row waits for nothing: it goes out behind the last thing that the protocol has to say, and before anything that it
//! must not follow.

use rdma::{Data, SendOp};

use super::{End, NO_SLOT, SEND};
use crate::protocol::{HEADER, Message, ROW};

/// Messages of one type.
pub(super) struct Row {
    bytes: [u8; ROW],
    len: usize,
}

impl Default for Row {
    fn default() -> Row {
        Row { bytes: [0; ROW], len: 0 }
    }
}

impl Row {
    /// True for a message that goes with those that follow it. A connection has only one of the two types.
    pub fn takes(message: &Message) -> bool {
        matches!(message, Message::Advert { .. } | Message::Offer { .. })
    }

    /// Add one, for which there is room.
    pub fn push(&mut self, message: Message) {
        self.bytes[self.len..self.len + HEADER].copy_from_slice(&message.emit());
        self.len += HEADER;
    }

    pub fn is_full(&self) -> bool {
        self.len == ROW
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The queue pair is in state ERR.
    pub fn clear(&mut self) {
        self.len = 0;
    }
}

impl End {
    /// Send a message with those of its type that follow it.
    pub(super) fn join(&mut self, message: Message) -> rdma::Result<()> {
        self.row.push(message);
        if self.row.is_full() { self.send_row() } else { Ok(()) }
    }

    /// Send what has joined.
    #[inline(always)]
    pub(super) fn send_row(&mut self) -> rdma::Result<()> {
        if self.row.is_empty() { Ok(()) } else { self.send_row_by(SendOp::Send) }
    }

    /// As [`End::send_row`], by a SEND that may invalidate a key of the peer.
    pub(super) fn send_row_by(&mut self, op: SendOp<'_>) -> rdma::Result<()> {
        let (bytes, len) = (self.row.bytes, std::mem::take(&mut self.row.len));
        self.post(SEND | NO_SLOT, op, Data::Inline(&[&bytes[..len]]))
    }
}
