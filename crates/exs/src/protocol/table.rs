//! What an end and its surroundings tell each other.

use super::wire::Malformed;

/// The number of an operation. The caller chooses it; no two pending operations of a connection have one number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op(pub u64);

/// A part of a registered region. The protocol looks at the length only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// The region, as the caller numbers them.
    pub region: u64,
    /// The first byte, counted from the region's start.
    pub offset: u64,
    /// The number of bytes.
    pub len: u64,
}

impl Buffer {
    /// The `len` bytes after the first `skip`, which are inside.
    pub(super) fn part(self, skip: u64, len: u64) -> Buffer {
        debug_assert!(skip.checked_add(len).is_some_and(|end| end <= self.len));
        Buffer { offset: self.offset + skip, len, ..self }
    }
}

/// A place in the memory of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// Address in the space of the peer's region.
    pub addr: u64,
    /// The peer's key.
    pub rkey: u32,
}

/// The reason why a call is refused; the operation has not begun, and there will be no event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// As many operations of this direction are pending as the connection has places for: EAGAIN.
    Full,
    /// This end has shut its sending direction: EPIPE.
    Shut,
    /// The connection is gone: ECONNRESET.
    Gone,
    /// A length of 0 on a stream: EINVAL.
    Empty,
    /// A send or receive longer than [`super::MAX_LEN`]: EMSGSIZE.
    Long,
    /// Another pending operation has this number: EINVAL.
    Twice,
    /// EXS_PERSISTENT on a stream, or a look at a packet whose bytes are at the peer: EOPNOTSUPP.
    NotSupported,
    /// There is nothing to look at: EAGAIN.
    Nothing,
}

/// The reason why a connection ended before its operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reset {
    /// The peer is gone, or the wire failed: ECONNRESET.
    Peer,
    /// The peer broke the protocol: EPROTO.
    Protocol,
    /// Memory of an operation is not registered any more: EFAULT.
    Memory,
    /// This end has closed: ECANCELED.
    Closed,
    /// The peer has not answered: ETIMEDOUT.
    Stopped,
}

impl From<Malformed> for Reset {
    fn from(_: Malformed) -> Reset {
        Reset::Protocol
    }
}

/// Small data that end a receive with their arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The receive.
    pub op: Op,
    /// The place for the data, and how many they are.
    pub to: Buffer,
    /// The packet was longer than the buffer, and the rest is lost.
    pub truncated: bool,
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The peer has all bytes of the send.
    Sent,
    /// A receive has bytes.
    Received {
        /// How many. On a stream, 0 is the end of the peer's data.
        len: u64,
        /// The packet was longer than the buffer, and the rest is lost (MSG_TRUNC).
        truncated: bool,
        /// The peer will send nothing more, and the receive has no bytes for that reason.
        end: bool,
    },
    /// The operation was cancelled; no byte was transferred.
    Cancelled,
    /// The connection ended. Bytes may have been transferred.
    Failed(Reset),
}

/// The end of an operation. Each operation has exactly one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// The operation.
    pub op: Op,
    /// How it ended.
    pub outcome: Outcome,
}

/// Bytes that the sending direction of a stream has transferred, by their way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Transferred {
    /// Into receives.
    pub direct: u64,
    /// Into the peer's ring.
    pub indirect: u64,
}
