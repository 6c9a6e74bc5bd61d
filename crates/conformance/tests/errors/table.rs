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
}

impl Op {
    pub fn is_atomic(self) -> bool {
        matches!(self, Op::CompareSwap | Op::FetchAdd)
    }

    /// The right that the target must have granted.
    pub fn right(self) -> Access {
        match self {
            Op::Write | Op::WriteImm => Access::REMOTE_WRITE,
            Op::Read => Access::REMOTE_READ,
            Op::CompareSwap | Op::FetchAdd => Access::REMOTE_ATOMIC,
            Op::Send | Op::SendImm | Op::SendInv => Access::empty(),
        }
    }
}

/// What is wrong with the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing.
    None,
    // The initiator's list:
    LocalKey,
    LocalDomain,
    /// One byte too far.
    LocalBounds,
    LocalDeregistered,
    /// Without LOCAL_WRITE, for what writes here.
    LocalReadOnly,
    /// An atomic's result has fewer than 8 bytes.
    LocalShort,
    /// The message is longer than `max_msg_sz`.
    TooLong,
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
    WindowInvalidated,
    WindowBeyond,
    WindowRight,
    WindowOfAnotherQp,
    /// The key to invalidate belongs to no window.
    InvalidateKey,
    // The rules of the transport:
    Misaligned,
    /// The target has no resources for READs and atomics.
    NoReads,
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
        !matches!(self.op, Op::Read | Op::CompareSwap | Op::FetchAdd)
            && !matches!(self.fault, LocalKey | LocalDomain | LocalBounds | LocalDeregistered | TooLong)
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

const EVERY: &[Op] = &[Op::Send, Op::SendImm, Op::Write, Op::WriteImm, Op::Read, Op::CompareSwap, Op::FetchAdd];
const RESULTS: &[Op] = &[Op::Read, Op::CompareSwap, Op::FetchAdd];
const ATOMICS: &[Op] = &[Op::CompareSwap, Op::FetchAdd];
const LONG: &[Op] = &[Op::Send, Op::Write, Op::Read];
const SENDS: &[Op] = &[Op::Send, Op::SendImm];
const TAKES_RECEIVE: &[Op] = &[Op::Send, Op::SendImm, Op::WriteImm];
const REMOTE: &[Op] = &[Op::Write, Op::WriteImm, Op::Read, Op::CompareSwap, Op::FetchAdd];

const LENGTH: Status = Status::LOCAL_LENGTH;
const PROTECTION: Status = Status::LOCAL_PROTECTION;
const INVALID: Status = Status::REMOTE_INVALID_REQUEST;
const ACCESS: Status = Status::REMOTE_ACCESS;
const BIND: Status = Status(rdma::sys::IBV_WC_MW_BIND_ERR);
const OPERATION: Status = Status(rdma::sys::IBV_WC_REM_OP_ERR);

#[rustfmt::skip]
const ROWS: &[Row] = {
    use Fault::*;
    &[
        row(None,              EVERY,         Status::SUCCESS, Seen::Success),
        // 10.8.3, 11.6.2: found before anything is sent; the target does not learn of it.
        row(LocalKey,          EVERY,         PROTECTION, Seen::Quiet),
        row(LocalDomain,       EVERY,         PROTECTION, Seen::Quiet),
        row(LocalBounds,       EVERY,         PROTECTION, Seen::Quiet),
        row(LocalDeregistered, EVERY,         PROTECTION, Seen::Quiet),
        row(LocalReadOnly,     RESULTS,       PROTECTION, Seen::Quiet),
        row(LocalShort,        ATOMICS,       LENGTH,     Seen::Quiet),
        row(TooLong,           LONG,          LENGTH,     Seen::Quiet),
        // 9.9.3, table 59: the receive tells what is wrong with it.
        row(RecvKey,           SENDS,         OPERATION,  Seen::Recv(PROTECTION)),
        row(RecvDomain,        SENDS,         OPERATION,  Seen::Recv(PROTECTION)),
        row(RecvBounds,        SENDS,         OPERATION,  Seen::Recv(PROTECTION)),
        row(RecvDeregistered,  SENDS,         OPERATION,  Seen::Recv(PROTECTION)),
        row(RecvReadOnly,      SENDS,         OPERATION,  Seen::Recv(PROTECTION)),
        row(RecvShort,         SENDS,         INVALID,    Seen::Recv(LENGTH)),
        // 9.7.5.2.8: the target's queue pair goes on.
        row(RecvNone,          TAKES_RECEIVE, Status::RNR_RETRIES, Seen::Quiet),
        // 9.7.4.1.5, 10.6.3.2, 10.6.7.2
        row(Key,               REMOTE,        ACCESS,     Seen::Event(QP_ACCESS_ERR)),
        row(Domain,            REMOTE,        ACCESS,     Seen::Event(QP_ACCESS_ERR)),
        row(Beyond,            REMOTE,        ACCESS,     Seen::Event(QP_ACCESS_ERR)),
        row(Before,            REMOTE,        ACCESS,     Seen::Event(QP_ACCESS_ERR)),
        row(Deregistered,      REMOTE,        ACCESS,     Seen::Event(QP_ACCESS_ERR)),
        row(RegionRight,       REMOTE,        ACCESS,     Seen::Event(QP_ACCESS_ERR)),
        row(QpRight,           REMOTE,        ACCESS,     Seen::Event(QP_ACCESS_ERR)),
        row(WindowInvalidated, REMOTE,        ACCESS,     Seen::Event(QP_ACCESS_ERR)),
        row(WindowBeyond,      REMOTE,        ACCESS,     Seen::Event(QP_ACCESS_ERR)),
        row(WindowRight,       REMOTE,        ACCESS,     Seen::Event(QP_ACCESS_ERR)),
        row(WindowOfAnotherQp, REMOTE,        ACCESS,     Seen::Event(QP_ACCESS_ERR)),
        // 9.9.6.3, class J; 11.6.2: the receive fails with a memory management operation error, and the requester is not
        // answered.
        row(InvalidateKey,     &[Op::SendInv], Status::RETRIES, Seen::Recv(BIND)),
        // 9.4.5, 9.7.4.1.7
        row(Misaligned,        ATOMICS,       INVALID,    Seen::Event(QP_REQ_ERR)),
        row(NoReads,           RESULTS,       INVALID,    Seen::Event(QP_REQ_ERR)),
    ]
};

/// Every case.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for kind in [Kind::Rc, Kind::RcSrq, Kind::Xrc] {
        for row in ROWS {
            for &op in row.ops {
                // An XRC target has no domain of its own, and windows are bound by queue pairs that send.
                let foreign = matches!(
                    row.fault,
                    Fault::Domain
                        | Fault::WindowInvalidated
                        | Fault::WindowBeyond
                        | Fault::WindowRight
                        | Fault::WindowOfAnotherQp
                );
                if kind == Kind::Xrc && foreign {
                    continue;
                }
                cases.push(Case { kind, op, fault: row.fault, ours: row.ours, theirs: row.theirs });
            }
        }
    }
    cases
}
