//! What must happen: a row for every fault (IBTA vol. 1, 9.9.2.4, 9.9.3, 11.6.2, 11.6.3; `ibv_poll_cq(3)`,
//! `ibv_get_async_event(3)`).

use std::fmt;

use rdma::{Access, Status};

/// Transport service and kind of receive queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Rc,
    /// RC, the target with a shared receive queue.
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
    /// A work request binds a window of type 2.
    BindTwo,
    LocalInv,
}

impl Op {
    /// Works on one 64-bit word.
    pub fn is_word(self) -> bool {
        matches!(self, Op::CompareSwap | Op::FetchAdd | Op::AtomicWrite)
    }

    pub fn is_flush(self) -> bool {
        matches!(self, Op::Flush | Op::FlushRegion)
    }

    /// Takes a receive of the target.
    pub fn takes_receive(self) -> bool {
        matches!(self, Op::Send | Op::SendImm | Op::SendInv | Op::WriteImm)
    }

    /// Changes memory of the target that was granted to it.
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

    /// The services that have it (`ibv_post_send(3)`, `ibv_wr_post(3)`).
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

/// What is wrong with the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// All is right.
    Nothing,
    // The initiator's list:
    LocalKey,
    LocalDomain,
    /// One byte too far.
    LocalBounds,
    LocalDeregistered,
    /// Without LOCAL_WRITE, for what writes here.
    LocalReadOnly,
    /// An atomic's word has fewer than 8 bytes.
    LocalShort,
    /// It has more.
    LocalLong,
    /// The initiator has no resources for READs and atomics.
    NoReadsHere,
    /// The message is longer than `max_msg_sz`; a datagram, one byte longer than the MTU.
    TooLong,
    // The initiator's window:
    BindUnbindable,
    /// Write access on a region that may not be written.
    BindReadOnly,
    BindDomain,
    BindWindowDomain,
    /// One byte too far.
    BindBeyond,
    /// One byte too early.
    BindBefore,
    BindNothing,
    /// It is bound already.
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
    /// One byte too short.
    RecvShort,
    /// None is posted.
    RecvNone,
    // What the target grants:
    Key,
    Domain,
    /// One byte too far (atomics: one word).
    Beyond,
    /// One byte too early (atomics: one word).
    Before,
    Deregistered,
    RegionRight,
    QpRight,
    /// FLUSH to persistence, where only global visibility was granted.
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
    /// XRC: no shared receive queue has this number.
    SrqNobody,
    /// XRC: the shared receive queue is of another domain.
    SrqDomain,
    WrongQkey,
    /// The datagram goes to a number that nobody has.
    Nobody,
}

impl Fault {
    /// The target grants a window of type 2.
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

    /// Can be made for this kind of queue pair.
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

/// What the target sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// Nothing at all: it goes on.
    Quiet,
    /// The receive of the message ends with this, and the queue pair with it. No event: the completion tells.
    Recv(Status),
    /// An event, and the queue pair is in error.
    Event(u32),
    /// All is well.
    Success,
}

const QP_REQ_ERR: u32 = rdma::sys::IBV_EVENT_QP_REQ_ERR;
const QP_ACCESS_ERR: u32 = rdma::sys::IBV_EVENT_QP_ACCESS_ERR;

/// One fault of one operation on one kind of queue pair.
pub struct Case {
    pub kind: Kind,
    pub op: Op,
    pub fault: Fault,
    /// The failing request's status.
    pub ours: Status,
    pub theirs: Seen,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} {:?}", self.kind, self.op, self.fault)
    }
}

impl Case {
    /// Inline data are not checked against regions, and results cannot be inline.
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
        // 10.8.3, 11.6.2: found before anything is sent; the target does not learn of it.
        row(LocalKey,              LISTS,     PROTECTION, NOTHING),
        row(LocalDomain,           LISTS,     PROTECTION, NOTHING),
        row(LocalBounds,           LISTS,     PROTECTION, NOTHING),
        row(LocalDeregistered,     LISTS,     PROTECTION, NOTHING),
        row(LocalReadOnly,         RESULTS,   PROTECTION, NOTHING),
        row(LocalShort,            WORDS,     LENGTH,     NOTHING),
        row(LocalLong,             WORDS,     LENGTH,     NOTHING),
        row(TooLong,               LONG,      LENGTH,     NOTHING),
        row(NoReadsHere,           ANSWERED,  HERE,       NOTHING),
        // 10.6.6.2, 10.6.7.2, 11.6.2: a memory management operation error.
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
        // 9.9.3, table 59: the receive tells what is wrong with it.
        row(RecvKey,               SENDS,     OPERATION,  Seen::Recv(PROTECTION)),
        row(RecvDomain,            SENDS,     OPERATION,  Seen::Recv(PROTECTION)),
        row(RecvBounds,            SENDS,     OPERATION,  Seen::Recv(PROTECTION)),
        row(RecvDeregistered,      SENDS,     OPERATION,  Seen::Recv(PROTECTION)),
        row(RecvReadOnly,          SENDS,     OPERATION,  Seen::Recv(PROTECTION)),
        row(RecvShort,             SENDS,     INVALID,    Seen::Recv(LENGTH)),
        // 9.7.5.2.8: the target's queue pair goes on.
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
        // 9.9.6.3, class J; 11.6.2: the receive fails with a memory management operation error, and the requester is
        // not answered.
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
                    // 9.8.2.3, 9.8.3.2: the sender learns nothing; what is wrong with the message itself drops it.
                    ours = Status::SUCCESS;
                    theirs = if matches!(theirs, Seen::Event(_)) { Seen::Quiet } else { theirs };
                }
                if (kind, row.fault) == (Kind::Ud, Fault::RecvShort) {
                    theirs = Seen::Quiet; // 9.9.3, class D: dropped silently, and the receive is there for the next
                }
                cases.push(Case { kind, op, fault: row.fault, ours, theirs });
            }
        }
    }
    cases
}
