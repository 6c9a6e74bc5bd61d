//! A message on its way out, cut into segments (RFC 5041, section 5.2), each with a header
//! (RFC 5041, section 4.4).

use core::ops::Range;

use verbs::RKey;
use wire::ddp::{tagged, untagged};

/// The destination of a message at the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// Into a region, from this offset on.
    Tagged {
        /// Names the region.
        stag: RKey,
        /// The offset in the region.
        offset: u64,
    },
    /// Into the next buffer of a queue.
    Untagged {
        /// The queue.
        queue: u32,
        /// The message's number in it.
        message: u32,
        /// The bytes that DDP leaves to the protocol above: the steering tag to be invalidated.
        invalidate: u32,
    },
}

/// A message of which some segments have been cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    model: Model,
    upper: u8,
    len: u32,
    cut: u32,
    over: bool,
}

/// The headers of a segment: as long as the longer of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    bytes: [u8; untagged::LEN],
    len: usize,
}

/// A segment to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its header.
    pub header: Header,
    /// The part of the message that follows.
    pub range: Range<usize>,
    /// The segment is the last one of its message.
    pub last: bool,
}

impl core::ops::Deref for Header {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl Header {
    fn new(bytes: &[u8]) -> Header {
        let mut header = Header { bytes: [0; untagged::LEN], len: bytes.len() };
        if let Some(room) = header.bytes.get_mut(..bytes.len()) {
            room.copy_from_slice(bytes);
        }
        header
    }
}

impl Message {
    /// A message of so many bytes; `upper` is the control byte of the protocol above.
    pub fn new(model: Model, upper: u8, len: u32) -> Message {
        Message { model, upper, len, cut: 0, over: false }
    }

    /// The next segment, of at most `mulpdu` bytes with its header; `None` after the last. RFC 5041, section 5.3:
    /// the segments of a message are in rising order; RFC 5041, section 4.1: the last one says so;
    /// RFC 5041, section 5.2: none is longer than the limit, and a message without data is one segment.
    pub fn next(&mut self, mulpdu: u16) -> Option<Segment> {
        if self.over {
            return None;
        }
        let header_len = match self.model {
            Model::Tagged { .. } => tagged::LEN,
            Model::Untagged { .. } => untagged::LEN,
        };
        let room = usize::from(mulpdu).saturating_sub(header_len).max(1);
        let (start, rest) = (self.cut, self.len - self.cut);
        let count = rest.min(u32::try_from(room).unwrap_or(u32::MAX));
        let last = count == rest;
        let header = self.header(last);
        self.cut += count;
        self.over = last;
        Some(Segment { header, range: start as usize..self.cut as usize, last })
    }

    fn header(&self, last: bool) -> Header {
        match self.model {
            Model::Tagged { stag, offset } => {
                let offset = offset.wrapping_add(self.cut.into());
                Header::new(&tagged::Repr { last, upper: self.upper, stag, offset }.emit())
            }
            Model::Untagged { queue, message, invalidate } => {
                let header = untagged::Repr { last, upper: self.upper, invalidate, queue, message, offset: self.cut };
                Header::new(&header.emit())
            }
        }
    }
}
