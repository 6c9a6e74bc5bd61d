//! The expected results: a row for every fault (IBTA vol. 1, 9.9.2.4, 9.9.3, 11.6.2, 11.6.3; `ibv_poll_cq(3)`,
//! `ibv_get_async_event(3)`).

use std::fmt;

use rdma::{Access, Status};

/// Transport service and kind of receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Rc,
    /// RC, where the target has a shared receive queue.
    RcSrq,
    Xrc,
    Uc,
    Ud,
}

impl Kind {
    pub const ALL: [Kind; 5] = [Kind::Rc, Kind::RcSrq, Kind::Xrc, Kind::Uc, Kind::Ud];

    pub fn is_reliable(self) -> bool {
        !matches!(self, Kind::Uc | Kind::Ud)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Send,
    SendImm,
    SendInv,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
    AtomicWrite,
    /// FLUSH of a range.
    Flush,
    /// FLUSH of a whole region: addresses do not count.
    FlushRegion,
    /// `ibv_bind_mw(3)`: a window of type 1.
    BindOne,
    /// A work request that binds a window of type 2.
    BindTwo,
    LocalInv,
}

impl Op {
    /// True if it works on one 64-bit word.
    pub fn is_word(self) -> bool {
        matches!(self, Op::CompareSwap | Op::FetchAdd | Op::AtomicWrite)
    }

    pub fn is_flush(self) -> bool {
        matches!(self, Op::Flush | Op::FlushRegion)
    }

    /// True if it takes a receive of the target.
    pub fn takes_receive(self) -> bool {
        matches!(self, Op::Send | Op::SendImm | Op::SendInv | Op::WriteImm)
    }

    /// True if it changes memory that the target granted.
    pub fn writes(self) -> bool {
        self.is_word() || matches!(self, Op::Write | Op::WriteImm)
    }

    /// The right that the target must have granted.
    pub fn right(self) -> Access {
        match self {
            Op::Write | Op::WriteImm | Op::AtomicWrite => Access::REMOTE_WRITE,
            Op::Read => Access::REMOTE_READ,
            Op::CompareSwap | Op::FetchAdd => Access::REMOTE_ATOMIC,
            Op::Flush | Op::FlushRegion => Access::FLUSH_GLOBAL,
            _ => Access::empty(),
        }
    }

    /// True if the service has it (`ibv_post_send(3)`, `ibv_wr_post(3)`).
    fn exists(self, kind: Kind) -> bool {
        match kind {
            Kind::Rc | Kind::RcSrq | Kind::Xrc => true,
            Kind::Uc => matches!(
                self,
                Op::Send | Op::SendImm | Op::Write | Op::WriteImm | Op::BindOne | Op::BindTwo | Op::LocalInv
            ),
            Kind::Ud => matches!(self, Op::Send | Op::SendImm),
        }
    }
}

/// The fault of the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// No fault.
    Nothing,
    // The initiator's list:
    LocalKey,
    LocalDomain,
    /// The entry ends one byte beyond the region.
    LocalBounds,
    LocalDeregistered,
    /// The region has no LOCAL_WRITE, though the operation writes there.
    LocalReadOnly,
    /// The word of an atomic has fewer than 8 bytes.
    LocalShort,
    /// The word of an atomic has more than 8 bytes.
    LocalLong,
    /// The initiator has no resources for READs and atomics.
    NoReadsHere,
    /// The message is longer than `max_msg_sz`; a datagram, one byte longer than the MTU.
    TooLong,
    // The initiator's window:
    BindUnbindable,
    /// The window has write access on a region that may not be written.
    BindReadOnly,
    BindDomain,
    BindWindowDomain,
    /// The window ends one byte beyond the region.
    BindBeyond,
    /// The window begins one byte before the region.
    BindBefore,
    BindNothing,
    /// The window is bound already.
    BindBound,
    InvalidateRegion,
    InvalidateNothing,
    InvalidateUnbound,
    InvalidateTypeOne,
    InvalidateOfAnotherQp,
    // The target's receive:
    RecvKey,
    RecvDomain,
    RecvBounds,
    RecvDeregistered,
    RecvReadOnly,
    /// The receive is one byte too short.
    RecvShort,
    /// No receive is posted.
    RecvNone,
    // What the target grants:
    Key,
    Domain,
    /// The request ends one byte beyond the region (atomics: one word).
    Beyond,
    /// The request begins one byte before the region (atomics: one word).
    Before,
    Deregistered,
    RegionRight,
    QpRight,
    /// FLUSH asks for persistence, where only global visibility was granted.
    Placement,
    // What it grants by a window of type 2:
    WindowGood,
    WindowInvalidated,
    WindowRebound,
    WindowFreed,
    WindowBeyond,
    WindowBefore,
    WindowRight,
    WindowOfAnotherQp,
    // By a window of type 1:
    OneGood,
    OneUnbound,
    OneRebound,
    OneFreed,
    OneBeyond,
    OneBefore,
    OneRight,
    OneDomain,
    /// The key to invalidate belongs to no window.
    InvalidateKey,
    // The rules of the transport:
    Misaligned,
    /// The target has no resources for READs and atomics.
    NoReads,
    /// For XRC: no shared receive queue has this number.
    SrqNobody,
    /// For XRC: the shared receive queue is of another domain.
    SrqDomain,
    WrongQkey,
    /// The datagram goes to a number that no queue pair has.
    Nobody,
}

impl Fault {
    /// True if the target grants a window of type 2.
    pub fn is_type_two(self) -> bool {
        use Fault::*;
        matches!(
            self,
            WindowGood
                | WindowInvalidated
                | WindowRebound
                | WindowFreed
                | WindowBeyond
                | WindowBefore
                | WindowRight
                | WindowOfAnotherQp
        )
    }

    /// True if the fault can be made for this kind of queue pair.
    fn exists(self, kind: Kind) -> bool {
        match kind {
            Kind::Xrc => {
                // An XRC target has no domain of its own, and windows are bound by queue pairs that send.
                !self.is_type_two()
                    && !matches!(self, Fault::Domain | Fault::OneDomain | Fault::WrongQkey | Fault::Nobody)
            }
            _ if matches!(self, Fault::SrqNobody | Fault::SrqDomain) => false,
            Kind::Ud => true,
            _ => !matches!(self, Fault::WrongQkey | Fault::Nobody),
        }
    }
}

/// The outcome at the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// No effect: the target goes on.
    Quiet,
    /// The receive of the message ends with this, and the queue pair with it. There is no event: the completion shows
    /// the error.
    Recv(Status),
    /// An event, and the queue pair is in error.
    Event(u32),
    /// Success.
    Success,
}

const QP_REQ_ERR: u32 = rdma::sys::IBV_EVENT_QP_REQ_ERR;
const QP_ACCESS_ERR: u32 = rdma::sys::IBV_EVENT_QP_ACCESS_ERR;

/// One fault of one operation on one kind of queue pair.
pub struct Case {
    pub kind: Kind,
    pub op: Op,
    pub fault: Fault,
    /// The status of the failing request.
    pub ours: Status,
    pub theirs: Seen,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} {:?}", self.kind, self.op, self.fault)
    }
}

impl Case {
    /// True if the data can be inline. Inline data are not checked against regions, and results cannot be inline.
    pub fn can_be_inline(&self) -> bool {
        use Fault::*;
        matches!(self.op, Op::Send | Op::SendImm | Op::SendInv | Op::Write | Op::WriteImm | Op::AtomicWrite)
            && !matches!(
                self.fault,
                LocalKey | LocalDomain | LocalBounds | LocalDeregistered | LocalShort | LocalLong | TooLong
            )
    }
}

struct Row {
    fault: Fault,
    ops: &'static [Op],
    ours: Status,
    theirs: Seen,
}

const fn row(fault: Fault, ops: &'static [Op], ours: Status, theirs: Seen) -> Row {
    Row { fault, ops, ours, theirs }
}

#[rustfmt::skip]
mod groups {
    use super::Op::{self, *};
    pub const EVERY: &[Op] = &[
        Send, SendImm, Write, WriteImm, Read, CompareSwap, FetchAdd, AtomicWrite, Flush, FlushRegion, BindOne, BindTwo,
        LocalInv,
    ];
    pub const LISTS: &[Op] = &[Send, SendImm, Write, WriteImm, Read, CompareSwap, FetchAdd, AtomicWrite];
    pub const RESULTS: &[Op] = &[Read, CompareSwap, FetchAdd];
    pub const WORDS: &[Op] = &[CompareSwap, FetchAdd, AtomicWrite];
    pub const LONG: &[Op] = &[Send, Write, Read];
    pub const SENDS: &[Op] = &[Send, SendImm];
    pub const TAKES_RECEIVE: &[Op] = &[Send, SendImm, WriteImm];
    pub const RANGES: &[Op] = &[Write, WriteImm, Read, CompareSwap, FetchAdd, AtomicWrite, Flush];
    pub const REMOTE: &[Op] = &[Write, WriteImm, Read, CompareSwap, FetchAdd, AtomicWrite, Flush, FlushRegion];
    pub const ANSWERED: &[Op] = &[Read, CompareSwap, FetchAdd, AtomicWrite, Flush, FlushRegion];
    pub const FLUSHES: &[Op] = &[Flush, FlushRegion];
    pub const BINDS: &[Op] = &[BindOne, BindTwo];
    pub const BIND_TWO: &[Op] = &[BindTwo];
    pub const LOCAL_INV: &[Op] = &[LocalInv];
    pub const SEND_INV: &[Op] = &[SendInv];
}

const LENGTH: Status = Status::LOCAL_LENGTH;
const PROTECTION: Status = Status::LOCAL_PROTECTION;
const INVALID: Status = Status::REMOTE_INVALID_REQUEST;
const ACCESS: Status = Status::REMOTE_ACCESS;
const BIND: Status = Status(rdma::sys::IBV_WC_MW_BIND_ERR);
const HERE: Status = Status(rdma::sys::IBV_WC_LOC_QP_OP_ERR);
const OPERATION: Status = Status(rdma::sys::IBV_WC_REM_OP_ERR);

#[rustfmt::skip]
const ROWS: &[Row] = {
    use Fault::*;
    use groups::*;
    const NOTHING: Seen = Seen::Quiet;
    const REFUSED: Seen = Seen::Event(QP_ACCESS_ERR);
    const BAD: Seen = Seen::Event(QP_REQ_ERR);
    &[
        row(Nothing,               EVERY,     Status::SUCCESS, Seen::Success),
        // Found before anything is sent (10.8.3, 11.6.2); the target does not see the request.
        row(LocalKey,              LISTS,     PROTECTION, NOTHING),
        row(LocalDomain,           LISTS,     PROTECTION, NOTHING),
        row(LocalBounds,           LISTS,     PROTECTION, NOTHING),
        row(LocalDeregistered,     LISTS,     PROTECTION, NOTHING),
        row(LocalReadOnly,         RESULTS,   PROTECTION, NOTHING),
        row(LocalShort,            WORDS,     LENGTH,     NOTHING),
        row(LocalLong,             WORDS,     LENGTH,     NOTHING),
        row(TooLong,               LONG,      LENGTH,     NOTHING),
        row(NoReadsHere,           ANSWERED,  HERE,       NOTHING),
        // A memory management operation error (10.6.6.2, 10.6.7.2, 11.6.2).
        row(BindUnbindable,        BINDS,     BIND,       NOTHING),
        row(BindReadOnly,          BINDS,     BIND,       NOTHING),
        row(BindDomain,            BINDS,     BIND,       NOTHING),
        row(BindWindowDomain,      BINDS,     BIND,       NOTHING),
        row(BindBeyond,            BINDS,     BIND,       NOTHING),
        row(BindBefore,            BINDS,     BIND,       NOTHING),
        row(BindNothing,           BIND_TWO,  BIND,       NOTHING),
        row(BindBound,             BIND_TWO,  BIND,       NOTHING),
        row(InvalidateRegion,      LOCAL_INV, BIND,       NOTHING),
        row(InvalidateNothing,     LOCAL_INV, BIND,       NOTHING),
        row(InvalidateUnbound,     LOCAL_INV, BIND,       NOTHING),
        row(InvalidateTypeOne,     LOCAL_INV, BIND,       NOTHING),
        row(InvalidateOfAnotherQp, LOCAL_INV, BIND,       NOTHING),
        // The receive completes with the error (9.9.3, table 59).
        row(RecvKey,               SENDS,     OPERATION,  Seen::Recv(PROTECTION)),
        row(RecvDomain,            SENDS,     OPERATION,  Seen::Recv(PROTECTION)),
        row(RecvBounds,            SENDS,     OPERATION,  Seen::Recv(PROTECTION)),
        row(RecvDeregistered,      SENDS,     OPERATION,  Seen::Recv(PROTECTION)),
        row(RecvReadOnly,          SENDS,     OPERATION,  Seen::Recv(PROTECTION)),
        row(RecvShort,             SENDS,     INVALID,    Seen::Recv(LENGTH)),
        // The target's queue pair goes on (9.7.5.2.8).
        row(RecvNone,              TAKES_RECEIVE, Status::RNR_RETRIES, NOTHING),
        // 9.7.4.1.5, 10.6.3.2, 10.6.7.2
        row(Key,                   REMOTE,    ACCESS,     REFUSED),
        row(Domain,                REMOTE,    ACCESS,     REFUSED),
        row(Beyond,                RANGES,    ACCESS,     REFUSED),
        row(Before,                RANGES,    ACCESS,     REFUSED),
        row(Deregistered,          REMOTE,    ACCESS,     REFUSED),
        row(RegionRight,           REMOTE,    ACCESS,     REFUSED),
        row(QpRight,               REMOTE,    INVALID,    BAD),
        row(Placement,             FLUSHES,   INVALID,    BAD),
        row(WindowGood,            RANGES,    Status::SUCCESS, Seen::Success),
        row(WindowInvalidated,     RANGES,    ACCESS,     REFUSED),
        row(WindowRebound,         RANGES,    ACCESS,     REFUSED),
        row(WindowFreed,           RANGES,    ACCESS,     REFUSED),
        row(WindowBeyond,          RANGES,    ACCESS,     REFUSED),
        row(WindowBefore,          RANGES,    ACCESS,     REFUSED),
        row(WindowRight,           RANGES,    ACCESS,     REFUSED),
        row(WindowOfAnotherQp,     RANGES,    ACCESS,     REFUSED),
        row(OneGood,               RANGES,    Status::SUCCESS, Seen::Success),
        row(OneUnbound,            RANGES,    ACCESS,     REFUSED),
        row(OneRebound,            RANGES,    ACCESS,     REFUSED),
        row(OneFreed,              RANGES,    ACCESS,     REFUSED),
        row(OneBeyond,             RANGES,    ACCESS,     REFUSED),
        row(OneBefore,             RANGES,    ACCESS,     REFUSED),
        row(OneRight,              RANGES,    ACCESS,     REFUSED),
        row(OneDomain,             RANGES,    ACCESS,     REFUSED),
        // The receive fails with a memory management operation error, and the requester gets no answer (9.9.6.3, class
        // J; 11.6.2).
        row(InvalidateKey,         SEND_INV,  Status::RETRIES, Seen::Recv(BIND)),
        // 9.4.5, 9.7.4.1.7, A19.4
        row(Misaligned,            WORDS,     INVALID,    BAD),
        row(NoReads,               ANSWERED,  INVALID,    BAD),
        // A14.5.2
        row(SrqNobody,             TAKES_RECEIVE, INVALID, BAD),
        row(SrqDomain,             TAKES_RECEIVE, INVALID, BAD),
        // 9.6.1.4, 9.8.3
        row(WrongQkey,             SENDS,     Status::SUCCESS, NOTHING),
        row(Nobody,                SENDS,     Status::SUCCESS, NOTHING),
    ]
};

/// Every case.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in Kind::ALL {
        for row in ROWS.iter().filter(|row| row.fault.exists(kind)) {
            for &op in row.ops.iter().filter(|op| op.exists(kind)) {
                let (mut ours, mut theirs) = (row.ours, row.theirs);
                let found_here = theirs == Seen::Quiet && row.fault != Fault::RecvNone;
                if !kind.is_reliable() && !found_here {
                    // The sender sees no error; a message with an error in itself is dropped (9.8.2.3, 9.8.3.2).
                    ours = Status::SUCCESS;
                    theirs = if matches!(theirs, Seen::Event(_)) { Seen::Quiet } else { theirs };
                }
                if (kind, row.fault) == (Kind::Ud, Fault::RecvShort) {
                    theirs = Seen::Quiet; // 9.9.3, class D: dropped silently; the receive stays for the next
                }
                cases.push(Case { kind, op, fault: row.fault, ours, theirs });
            }
        }
    }
    cases
}
