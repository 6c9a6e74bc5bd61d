//! What a stream asks and tells of this side's memory and receives.

use verbs::RKey;
use wire::rdmap::read_request;

use super::terminate::Terminated;
use crate::ddp::TagFault;

/// The place of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A region of this side: a WRITE of the peer, or what the peer answers to a READ.
    Tagged {
        /// Names the region.
        stag: RKey,
        /// The offset in the region.
        offset: u64,
    },
    /// The receive that has been taken last.
    Receive {
        /// The offset in the receive.
        offset: u32,
    },
}

impl Place {
    /// The place behind so many bytes.
    pub(super) fn plus(self, bytes: usize) -> Place {
        match self {
            Place::Tagged { stag, offset } => Place::Tagged { stag, offset: offset.wrapping_add(bytes as u64) },
            Place::Receive { offset } => Place::Receive { offset: offset.wrapping_add(bytes as u32) },
        }
    }
}

/// An effect of the peer's messages. Effects are delivered in the order in which the messages were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// A SEND is whole, in the receive that was taken for it.
    Send {
        /// Its bytes.
        len: u32,
        /// The receiver is to have an event.
        solicited: bool,
        /// The region that has been invalidated.
        invalidated: Option<RKey>,
    },
    /// A WRITE is whole. The verbs raise no completion for it (RFC 5040, section 5.1).
    Write {
        /// The region of its last segment.
        stag: RKey,
        /// The offset behind that segment.
        end: u64,
    },
    /// The oldest READ of this side is whole.
    Read,
    /// The peer's READ is to be answered with [`Work::Response`](super::Work::Response); its source has been checked.
    Request {
        /// The number of the request, for [`Stream::refuse`](super::Stream::refuse).
        message: u32,
        /// The request.
        request: read_request::Repr,
    },
    /// The peer has ended the stream.
    Terminated(Terminated),
}

/// This side's memory and receives. All of it is asked and told in the order of the stream, but for WRITEs and answers
/// to READs in TCP segments that came early.
pub trait Target {
    /// Checks whether the peer may write so many bytes there. Not asked for 0 bytes (RFC 5041, section 5.2).
    ///
    /// # Errors
    /// Why the peer may not.
    fn check_write(&mut self, stag: RKey, offset: u64, len: u32) -> Result<(), TagFault>;

    /// Checks whether the peer's answer to a READ of this side may be placed there. The place is inside what the READ
    /// names.
    ///
    /// # Errors
    /// Why the answer may not: the region has gone, for example.
    fn check_sink(&mut self, stag: RKey, offset: u64, len: u32) -> Result<(), TagFault>;

    /// Checks whether the peer may read so many bytes there. Not asked for 0 bytes (RFC 5040, section 5.2.1).
    ///
    /// # Errors
    /// Why the peer may not.
    fn check_source(&mut self, stag: RKey, offset: u64, len: u32) -> Result<(), TagFault>;

    /// Takes the next receive for a SEND that starts; its bytes. `None` if there is none.
    fn take_receive(&mut self) -> Option<u32>;

    /// Invalidates a region for a SEND that is whole.
    ///
    /// # Errors
    /// Why that is not possible.
    fn invalidate(&mut self, stag: RKey) -> Result<(), TagFault>;

    /// Puts bytes where they belong. If they have been read directly to their place, nothing is to be done.
    ///
    /// # Errors
    /// The place has gone since it was checked.
    fn place(&mut self, place: Place, bytes: &[u8]) -> Result<(), TagFault>;

    /// Takes what is complete.
    fn deliver(&mut self, delivery: Delivery);
}
