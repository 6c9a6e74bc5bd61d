//! Asynchronous events (IBTA vol. 1, 11.6.3).

use crate::{CqId, QpId, SrqId};

/// The kind of an event (`enum ibv_event_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum EventKind {
    /// A completion queue overran.
    CqErr = 0,
    /// A queue pair cannot complete its work.
    QpFatal = 1,
    /// The peer's request was invalid, seen by the responder.
    QpReqErr = 2,
    /// The peer's request violated access rights, seen by the responder.
    QpAccessErr = 3,
    /// The first message came while the queue pair was in RTR.
    CommEst = 4,
    /// The send queue has drained.
    SqDrained = 5,
    /// The path has migrated.
    PathMig = 6,
    /// The path could not migrate.
    PathMigErr = 7,
    /// The device is broken.
    DeviceFatal = 8,
    /// The port is active.
    PortActive = 9,
    /// The port is down.
    PortErr = 10,
    /// The LID changed.
    LidChange = 11,
    /// The partition key table changed.
    PkeyChange = 12,
    /// The subnet manager changed.
    SmChange = 13,
    /// A shared receive queue is broken.
    SrqErr = 14,
    /// A shared receive queue fell below its limit.
    SrqLimitReached = 15,
    /// A queue pair with a shared receive queue took its last receive.
    QpLastWqeReached = 16,
    /// The subnet manager asks to register anew.
    ClientReregister = 17,
    /// The GID table changed.
    GidChange = 18,
}

/// The object of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventSource {
    /// A queue pair.
    Qp(QpId),
    /// A completion queue.
    Cq(CqId),
    /// A shared receive queue.
    Srq(SrqId),
    /// The port, by number.
    Port(u8),
    /// The device.
    Device,
}
