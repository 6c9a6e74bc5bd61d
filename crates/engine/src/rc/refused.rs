//! What the responder refuses, and the codes with which it answers (IBTA vol. 1, tables 45 and 46).

use verbs::{EventKind, WcStatus};
use wire::SingleCopyError;

use crate::region::RemoteFault;

/// NAK codes (IBTA vol. 1, table 46).
pub(crate) const NAK_SEQUENCE: u8 = 0;
pub(crate) const NAK_INVALID_REQUEST: u8 = 1;
pub(crate) const NAK_REMOTE_ACCESS: u8 = 2;
pub(crate) const NAK_REMOTE_OPERATIONAL: u8 = 3;
/// Window wire only: the initiator's own memory of a request by reference was not there.
pub(crate) const NAK_SOURCE_FAULT: u8 = 30;
/// Window wire only: this process may not reach the initiator's memory; the initiator shall send the data themselves.
pub(crate) const NAK_SINGLE_COPY: u8 = 31;

/// Syndrome: 0b011 in the upper three bits marks a NAK, 0b001 an RNR NAK (table 45).
pub(crate) const NAK: u8 = 3 << 5;
pub(super) const RNR_NAK: u8 = 1 << 5;
/// Positive acknowledgement without credits (0b000, 31: invalid credit count).
pub(crate) const ACK: u8 = 31;

/// The rule that a refused request shows broken, by the peer or by our receives.
pub(super) const fn refusal_rule(code: u8) -> &'static str {
    match code {
        NAK_INVALID_REQUEST => {
            "responder: the request is invalid: too long for the receive, wrong sequence of packets, misaligned \
             atomic, more reads than max_dest_rd_atomic, not permitted by the queue pair's qp_access_flags"
        }
        _ => "responder: the receive cannot take the data: bad scatter/gather entry",
    }
}

/// Why a request cannot be done.
pub(crate) enum Refused {
    /// No receive is posted.
    NotReady,
    /// The request names memory that it may not reach: a remote access error (9.7.5.2.8).
    Access(RemoteFault),
    /// The request is at fault: NAK code, the status of the receive that it was going into, and the event for our side.
    Nak(u8, WcStatus, EventKind),
    /// A receive has the fault: NAK, the receive's status; no event (class A: locally detected).
    Local(u8, WcStatus),
    /// The key that a SEND names cannot be invalidated: the receive's status; the requester is not answered (class J).
    Unanswered(WcStatus),
    /// The initiator's side has the fault; this side's state stays as it is.
    Source(u8),
}

/// The refusal of a request by reference after a failed copy.
pub(crate) fn refused_copy(error: SingleCopyError) -> Refused {
    match error {
        SingleCopyError::Local => Refused::Local(NAK_REMOTE_OPERATIONAL, WcStatus::LocProtErr),
        SingleCopyError::Remote | SingleCopyError::Void => Refused::Source(NAK_SOURCE_FAULT),
        SingleCopyError::Denied => Refused::Source(NAK_SINGLE_COPY),
    }
}

pub(crate) const INVALID: Refused = Refused::Nak(NAK_INVALID_REQUEST, WcStatus::RemInvReqErr, EventKind::QpReqErr);
