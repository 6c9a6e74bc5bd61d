//! A queue of untagged buffers at the receiver (RFC 5041, section 5.1.2).

use wire::ddp::untagged;

use super::fault::Fault;

/// What the receiver knows of a queue. The messages of a queue come one after the other, each from its start to its
/// end, as the stream is in order (RFC 5041, section 5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The message under way, or the next one. RFC 5041, section 4.3: the first one is 1.
    message: u32,
    /// Bytes of the message that have come.
    offset: u32,
    /// Bytes of the buffer that has been taken for the message.
    room: Option<u32>,
}

impl Default for Queue {
    fn default() -> Self {
        Queue { message: 1, offset: 0, room: None }
    }
}

impl Queue {
    /// Checks where a segment with so many bytes of payload goes, and takes a buffer if it is the first one of its
    /// message (RFC 5041, section 7.1: all of this before anything is placed).
    ///
    /// # Errors
    /// What the sender has done wrong, or that there is no buffer.
    pub fn check(
        &mut self,
        header: &untagged::Repr,
        len: u32,
        buffer: impl FnOnce() -> Option<u32>,
    ) -> Result<(), Fault> {
        if header.message != self.message {
            return Err(Fault::Message);
        }
        if header.offset != self.offset {
            return Err(Fault::Offset);
        }
        let room = match self.room {
            Some(room) => room,
            None => buffer().ok_or(Fault::NoBuffer)?,
        };
        self.room = Some(room);
        // RFC 5041, section 7.1: the end of the segment is inside of the buffer.
        match self.offset.checked_add(len) {
            Some(end) if end <= room => Ok(()),
            _ => Err(Fault::TooLong),
        }
    }

    /// Ends a segment that has been checked and is whole. Gives the length of the message if the segment was its last
    /// one. RFC 5041, section 4.3: numbers rise by one and wrap through 0.
    pub fn take(&mut self, len: u32, last: bool) -> Option<u32> {
        self.offset = self.offset.saturating_add(len);
        if !last {
            return None;
        }
        let len = self.offset;
        *self = Queue { message: self.message.wrapping_add(1), offset: 0, room: None };
        Some(len)
    }

    /// True if a message of the queue is under way.
    pub fn is_within(&self) -> bool {
        self.room.is_some()
    }

    /// A queue with this number for its next message.
    #[cfg(test)]
    pub(crate) fn at(message: u32) -> Queue {
        Queue { message, ..Queue::default() }
    }
}
