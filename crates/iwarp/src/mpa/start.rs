//! What both sides of the start of a connection have in common (RFC 5044, section 7.1; RFC 6581, section 9).
//!
//! ```text
//!  initiator:  send REQ -> wait for REP -> [send "ready to receive"] -> full operation
//!  responder:  wait for REQ -> ask the program -> send REP -> receive an FPDU -> send FPDUs, too
//! ```

use core::fmt;

use wire::mpa::enhanced;

use crate::{Nanos, SECOND};

/// Most bytes of private data of a program with revision 1. Enhanced data take 4 of them.
pub const MAX_PRIVATE_DATA: usize = wire::mpa::start::MAX_PRIVATE_DATA_LEN as usize;

/// A depth that the programs negotiate themselves (RFC 6581, section 9.1).
pub const LEFT_TO_PROGRAM: u16 = enhanced::LEFT_TO_PROGRAM;

/// How long an initiator waits for the reply. RFC 5044, section 7.1.2 leaves the time open; this is that of Linux.
pub const REPLY_TIMEOUT: Nanos = 10 * SECOND;

/// How long a responder waits for the request, and for the message that says "ready to receive": some limit is asked
/// for (RFC 5044, section 7.1.2).
pub const REQUEST_TIMEOUT: Nanos = 5 * SECOND;

/// A side of a connection. Only the initiator may send the first FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the specification's
pub enum Role {
    Initiator,
    Responder,
}

/// The revision of MPA that is asked for, or the highest that is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Revision {
    One = 1,
    Two = 2,
}

/// The message of no bytes by which an initiator says that it is ready to receive (RFC 6581, section 9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Ready {
    Send,
    Write,
    Read,
}

/// The kinds of these messages that a side sends or takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ReadyKinds {
    pub send: bool,
    pub write: bool,
    pub read: bool,
}

impl ReadyKinds {
    /// Those that need nothing of the receiver's program.
    pub const QUIET: ReadyKinds = ReadyKinds { send: false, write: true, read: true };

    /// Those of a responder. RFC 6581, section 9.2: it takes at least one kind, and names at least one, also if none of
    /// the offered ones is among them.
    pub(super) fn answer(wishes: Option<ReadyKinds>, offered: ReadyKinds) -> ReadyKinds {
        let ours = wishes.filter(|kinds| *kinds != ReadyKinds::default()).unwrap_or(ReadyKinds::QUIET);
        match ours.and(offered) {
            none if none == ReadyKinds::default() => ours,
            both => both,
        }
    }

    /// Those that both have.
    pub(super) fn and(self, other: ReadyKinds) -> ReadyKinds {
        ReadyKinds { send: self.send && other.send, write: self.write && other.write, read: self.read && other.read }
    }

    /// The one to send: WRITE leaves nothing behind at the receiver, READ takes one place of its depth, SEND takes a
    /// receive of its program.
    pub(super) fn choose(self) -> Option<Ready> {
        let order = [(self.write, Ready::Write), (self.read, Ready::Read), (self.send, Ready::Send)];
        order.iter().find(|(has, _)| *has).map(|(_, kind)| *kind)
    }
}

/// The wishes of one side for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wishes {
    /// Initiator: the revision of the request. Responder: the highest revision that is answered.
    pub revision: Revision,
    /// This side wants markers in what it receives.
    pub markers: bool,
    /// This side wants CRCs. They are used if either side wants them (RFC 5044, section 7.1.1).
    pub crc: bool,
    /// READ requests that this side takes at a time, 14 bits, or [`LEFT_TO_PROGRAM`].
    pub ird: u16,
    /// READ requests that this side wants to have outstanding, 14 bits, or [`LEFT_TO_PROGRAM`].
    pub ord: u16,
    /// The messages that say "ready to receive" that this side sends or takes. Initiator: `None` is the model of client
    /// and server, in which its program sends first. Responder: `None` is [`ReadyKinds::QUIET`]; the initiator chooses
    /// the model.
    pub ready: Option<ReadyKinds>,
    /// How long this side waits for the other one's frame.
    pub timeout: Nanos,
}

impl Wishes {
    /// Revision 2, no markers, CRCs, client and server, the given depth in both directions.
    pub const fn new(role: Role, depth: u16) -> Wishes {
        let timeout = match role {
            Role::Initiator => REPLY_TIMEOUT,
            Role::Responder => REQUEST_TIMEOUT,
        };
        Wishes { revision: Revision::Two, markers: false, crc: true, ird: depth, ord: depth, ready: None, timeout }
    }

    /// The enhanced data of these wishes.
    pub(super) fn enhanced(&self) -> enhanced::Repr {
        let kinds = self.ready.unwrap_or_default();
        enhanced::Repr {
            peer_to_peer: self.ready.is_some(),
            ready_by_send: kinds.send,
            ird: self.ird,
            ready_by_write: kinds.write,
            ready_by_read: kinds.read,
            ord: self.ord,
        }
    }
}

/// The terms that both sides know when the frames have been exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The side that this is.
    pub role: Role,
    /// FPDUs have CRCs, in both directions.
    pub crc: bool,
    /// FPDUs that arrive here have markers.
    pub markers_in: bool,
    /// FPDUs that are sent from here have markers.
    pub markers_out: bool,
    /// READ requests that this side takes at a time.
    pub ird: u16,
    /// READ requests that this side may have outstanding.
    pub ord: u16,
    /// Initiator: the message that it sends before all else.
    pub ready: Option<Ready>,
    /// Responder: a message that says "ready to receive" will come before all else.
    pub awaits_ready: bool,
    /// Initiator: the reply cannot be met. A Terminate message that says so goes out, and nothing else.
    pub unmet: Option<Unmet>,
}

/// Why an initiator ends a connection that the responder has accepted (RFC 6581, section 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmet {
    /// The responder will have more READ requests outstanding than this side takes.
    Ird,
    /// The responder takes none of the messages by which this side can say "ready to receive".
    Ready,
}

/// Why a connection did not start. The TCP connection is closed; no message says why (RFC 5044, section 7.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The other side's frame did not come in time.
    Timeout,
    /// The TCP connection ended first.
    Closed,
    /// The bytes that came are no frame, or a frame of the same side.
    Key,
    /// A revision that this side does not speak, or a reply with another one than the request.
    Revision,
    /// The length of the private data is out of range.
    Length,
    /// Bytes came behind the frame, which the sender must not send yet.
    Early,
}

impl Failure {
    /// The initiator may try again with revision 1: the peer did not understand revision 2 (RFC 6581, section 10: such
    /// a peer closes the connection).
    pub const fn suggests_revision_1(self) -> bool {
        matches!(self, Failure::Closed | Failure::Revision)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Failure::Timeout => "no MPA frame in time",
            Failure::Closed => "closed before the MPA frame came",
            Failure::Key => "not the MPA frame that was expected",
            Failure::Revision => "a revision of MPA that this side does not speak",
            Failure::Length => "the private data have a wrong length",
            Failure::Early => "bytes behind the MPA frame",
        })
    }
}

impl core::error::Error for Failure {}

/// The private data do not fit into a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the private data do not fit into an MPA frame")
    }
}

impl core::error::Error for TooLong {}
