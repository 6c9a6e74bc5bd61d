//! A send request: what was copied of it out of the array of the send queue, and how far it is.

use smallvec::SmallVec;
use verbs::{Opcode, Psn, SendBody, SendFlags, Sge, WcStatus};
use wire::Nanos;

/// The way of the pieces of a message that may go by reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Carrier {
    /// Each piece goes as is best at the time.
    #[default]
    Free,
    /// Each piece goes as is best at the time; some have gone through the link.
    Mixed,
    /// All pieces go through the link. They go again, and must not be larger than before: the peer would drop a piece
    /// that begins with bytes that it has had.
    Link,
}

/// A send request under way. The fields that the fast path of an acknowledgement reads lie together in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Inflight {
    /// The number of the request in the send queue.
    pub number: u64,
    pub wr_id: u64,
    /// When the execution of the request began.
    pub since: Nanos,
    pub flags: SendFlags,
    /// Bytes of the message.
    pub len: u32,
    pub first_psn: Psn,
    /// Sequence numbers of the request; 0 for a request that stays local.
    pub psns: u32,
    /// Bytes sent since the last rewind (for reads: 1 when the request is out).
    pub sent: u32,
    /// Bytes of a READ that have arrived.
    pub received: u32,
    pub opcode: Opcode,
    /// The request is executed here (`one_sided`).
    pub one_sided: bool,
    /// It was to be executed here, with nothing outstanding in front of it, and had to be sent.
    pub refused: bool,
    /// The request is fully sent.
    pub out: bool,
    /// The request is finished, and may complete when it is the oldest.
    pub done: bool,
    /// The request went by reference: the peer can reach its regions.
    pub by_ref: bool,
    /// The request was posted behind several requests with completions that were not polled.
    pub queued: bool,
    pub carrier: Carrier,
    /// Status of a request that failed before it went out.
    pub error: Option<WcStatus>,
    pub inline_len: u32,
    pub sges: SmallVec<[Sge; 2]>,
    /// Bytes that have been executed here. If the rest had to be sent, the rest is a message that begins behind them.
    pub executed: u32,
    pub imm: u32,
    pub srqn: u32,
    pub body: SendBody,
}

const _: () = assert!(std::mem::offset_of!(Inflight, sges) <= 64);

impl Default for Inflight {
    fn default() -> Self {
        Inflight::failed(0, 0, WcStatus::LocQpOpErr, Psn::default())
    }
}

impl Inflight {
    /// A request that failed before it went out.
    pub fn failed(number: u64, wr_id: u64, status: WcStatus, psn: Psn) -> Self {
        Inflight {
            number,
            wr_id,
            opcode: Opcode::Send,
            flags: SendFlags::SIGNALED,
            imm: 0,
            srqn: 0,
            body: SendBody::Plain,
            sges: Default::default(),
            inline_len: 0,
            len: 0,
            first_psn: psn,
            psns: 0,
            sent: 0,
            received: 0,
            one_sided: false,
            refused: false,
            executed: 0,
            out: true,
            done: false,
            by_ref: false,
            queued: false,
            carrier: Carrier::Free,
            error: Some(status),
            since: 0,
        }
    }

    pub fn last_psn(&self) -> Psn {
        self.first_psn.plus(self.psns.saturating_sub(1))
    }

    /// SENDs and WRITEs: the packets carry the bytes of the list.
    pub fn carries_data(&self) -> bool {
        !self.is_read_like() && !matches!(self.opcode, Opcode::LocalInv | Opcode::BindMw) && !self.opcode.is_task()
    }

    /// READs, atomics, FLUSH and ATOMIC WRITE use one of `max_rd_atomic`.
    pub fn is_read_like(&self) -> bool {
        matches!(
            self.opcode,
            Opcode::RdmaRead | Opcode::CmpAndSwp | Opcode::FetchAndAdd | Opcode::AtomicWrite | Opcode::Flush
        )
    }
}
