//! What only processes of one host can do for each other: single copies, cooperative copies, one-sided requests by an
//! export table.

use verbs::{Access, CtxId, PdId, QpType, Qpn, RKey};

use crate::link::{AtomicOp, Payload, Span};

/// Bytes of one piece of a message that goes by single copy, whichever process copies it: a fraction of the shortest
/// sensible timeout. A multiple of every MTU.
pub const PIECE: u32 = 1 << 20;

/// Bytes of the shortest copy that both processes make together: the peer would hardly have heard of a shorter one
/// before it ends.
pub const SHORTEST: u32 = 128 << 10;

/// The most requests that are executed by one copy.
pub const TOGETHER: usize = 8;

/// Why a single copy between processes failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SingleCopyError {
    /// Our memory is not there.
    Local,
    /// The peer's memory is not there.
    Remote,
    /// The kernel forbids it, or the peer is gone.
    Denied,
    /// The initiator has given its request up: nothing was copied.
    Void,
}

/// A word in the initiator's memory that holds this value for as long as its requests live. A target that was held up
/// and comes to the copy late must not touch memory that the initiator's program has taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TicketRef {
    /// Address of the word; a multiple of 8.
    pub addr: u64,
    /// The value that the word must hold.
    pub value: u64,
}

/// A single copy that the target makes for a request of ours, and of which we may make a part. All of it is the peer's
/// claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The ticket of the request.
    pub ticket: TicketRef,
    /// The part of our memory.
    pub span: Span,
    /// Our memory is written (a READ); else it is read.
    pub to_us: bool,
}

/// Memory and queue pairs that peers of the same user may know, so that they can execute RDMA requests by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Export {
    /// A region with remote rights, or a bound memory window of type 2.
    Region {
        /// Its rkey.
        key: u32,
        /// The only queue pair through which it may be reached (a window of type 2B: IBTA vol. 1, 10.6.7.2.3).
        through: Option<Qpn>,
        /// Its context.
        ctx: CtxId,
        /// Its protection domain.
        pd: PdId,
        /// Its rights.
        access: Access,
        /// Start in this process.
        addr: u64,
        /// Bytes.
        length: u64,
        /// Start in the space of the key.
        iova: u64,
    },
    /// A connected queue pair that takes requests.
    Qp {
        /// Its number.
        qpn: Qpn,
        /// Its service.
        service: QpType,
        /// The peer's queue pair that this one is connected to.
        peer: Qpn,
        /// Its context.
        ctx: CtxId,
        /// Its protection domain. An XRC target has none and reaches the regions of its context.
        pd: Option<PdId>,
        /// The rights of its peer.
        access: Access,
        /// Its path MTU in bytes.
        mtu: u32,
        /// Differs between this connection and earlier ones of the same number.
        epoch: u64,
    },
}

/// Names an [`Export`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExportId {
    /// A region, by rkey.
    Region(u32),
    /// A queue pair, by number.
    Qp(Qpn),
}

impl Export {
    /// Its name.
    pub const fn id(&self) -> ExportId {
        match self {
            Export::Region { key, .. } => ExportId::Region(*key),
            Export::Qp { qpn, .. } => ExportId::Qp(*qpn),
        }
    }
}

/// An operation that the initiator is to execute by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OneSidedOp {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// An atomic operation on 8 bytes.
    Atomic(AtomicOp),
}

/// The result of a request that the initiator has executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OneSidedDone {
    /// The connection's epoch.
    pub epoch: u64,
    /// The value before an atomic operation; else 0.
    pub before: u64,
}

/// A request to be executed by the initiator.
#[derive(Clone, Copy, Debug)]
pub struct OneSided<'a> {
    /// Our queue pair's service.
    pub service: QpType,
    /// Our queue pair.
    pub src: Qpn,
    /// The peer's queue pair.
    pub dst: Qpn,
    /// The connection, as [`crate::SameHost::one_sided`] gave it the last time. `None` where the peer would take
    /// packets of an earlier connection, too.
    pub epoch: Option<u64>,
    /// The operation.
    pub op: OneSidedOp,
    /// Remote key.
    pub rkey: RKey,
    /// Remote address.
    pub addr: u64,
    /// Bytes; not 0, and at most [`PIECE`].
    pub len: u32,
    /// Bytes of the request in front of these, which have been executed.
    pub before: u32,
    /// Bytes of the request behind these. They must be allowed, too: a request is refused as a whole, as far as that is
    /// known beforehand.
    pub after: u32,
    /// Our queue pair's path MTU in bytes.
    pub mtu: u32,
    /// The request is posted behind several requests with completions that the program has not polled: perhaps the
    /// program waits for none of them.
    pub queues: bool,
    /// Local memory of `len` bytes: the spans, or (WRITE) the prefix alone. An atomic's result is the caller's to
    /// place.
    pub local: Payload<'a>,
}

/// Checks a request against what the peer shows of its queue pair and of its region, as the peer itself would (IBTA
/// vol. 1, 9.7.4.1.5, 10.6.3.2). Gives the address in the peer, and the connection's epoch. `None`: not plainly
/// allowed.
#[inline(always)] // what was just made of both is not written to memory
pub fn check_one_sided(qp: Export, region: Export, request: &OneSided<'_>) -> Option<(u64, u64)> {
    let Export::Qp { qpn, service, peer, ctx, pd, access: may, mtu, epoch } = qp else { return None };
    let Export::Region { key, through, ctx: owner, pd: of, access, addr, length, iova } = region else { return None };
    let need = match request.op {
        OneSidedOp::Write => Access::REMOTE_WRITE,
        OneSidedOp::Read => Access::REMOTE_READ,
        // 9.4.5: naturally aligned, by the address that the request names
        OneSidedOp::Atomic(_) if request.addr.is_multiple_of(8) => Access::REMOTE_ATOMIC,
        OneSidedOp::Atomic(_) => return None,
    };
    let fits = match request.service {
        QpType::XrcIni => service == QpType::XrcTgt,
        ours => service == ours,
    };
    let whole = u64::from(request.before) + u64::from(request.len) + u64::from(request.after);
    let right = fits
        && qpn == request.dst
        && peer == request.src
        && key == request.rkey.0
        && through.is_none_or(|owner| owner == qpn)
        && pd.map_or(ctx == owner, |pd| pd == of)
        && may.contains(need)
        && access.contains(need)
        // 9.7.4.1.6, 9.7.5.1.6: both cut it into the same packets
        && (mtu == request.mtu || whole <= u64::from(mtu.min(request.mtu)))
        && request.epoch.is_none_or(|known| known == epoch);
    let offset = request.addr.checked_sub(iova).filter(|_| right)?;
    let end = offset.checked_add(u64::from(request.len) + u64::from(request.after))?;
    (end <= length).then_some((addr.wrapping_add(offset), epoch))
}
