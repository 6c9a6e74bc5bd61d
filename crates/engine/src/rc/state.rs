//! State of a queue pair of a connected service beside its queues: sequence numbers, timers of retries, and responses
//! that are owed to the peer (IBTA vol. 1, 9.7).

use std::collections::VecDeque;
use std::sync::Arc;

use verbs::Psn;
use wire::{LinkId, Nanos, Span, TicketRef};

/// An RDMA WRITE of several packets being received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteProgress {
    pub rkey: u32,
    pub addr: u64,
    pub total: u32,
    pub offset: u32,
}

/// Where the data of a READ go in the initiator, and its ticket.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Into {
    pub spans: Arc<[Span]>,
    pub ticket: TicketRef,
    /// The link that the request came over.
    pub link: LinkId,
}

/// A response that the responder owes its peer, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Response {
    Ack {
        psn: Psn,
        msn: u32,
        /// The requester is not woken for it.
        quiet: bool,
    },
    Nak {
        psn: Psn,
        syndrome: u8,
        msn: u32,
    },
    /// With `into`, the data are put directly to the place that the list names.
    Read {
        psn: Psn,
        addr: u64,
        rkey: u32,
        len: u32,
        sent: u32,
        msn: u32,
        first_offset: u32,
        /// The READ was asked for again: it takes no more of the agreed number.
        again: bool,
        into: Option<Into>,
    },
    /// `value`: the value before the operation; ATOMIC WRITE and FLUSH have no result except that they were executed.
    Atomic {
        psn: Psn,
        value: Option<u64>,
        msn: u32,
        again: bool,
    },
}

/// The state of RC, UC and XRC. UD numbers its packets by it, too.
#[derive(Debug, Default)]
pub(crate) struct RcState {
    pub next_psn: Psn,
    /// The first sequence number that is not acknowledged.
    pub unacked: Psn,
    pub reads_out: u32,
    pub retries: u8,
    pub rnr_retries: u8,
    pub rnr_until: Option<Nanos>,
    pub ack_deadline: Option<Nanos>,
    /// The link's mark after the last request.
    pub sent_mark: u64,
    /// The link's mark after the last packet of READ data, and the sequence number behind that packet.
    pub answered: (u64, Psn),
    /// Since when the timer has run out only because the peer does not get to take what was sent.
    pub patient_since: Option<Nanos>,
    /// The link over which packets had come at a timeout that were not taken yet; the count at which they are taken
    /// ([`wire::PacketWire::unread`]); and the first unacknowledged sequence number at that time.
    pub unread: Option<(LinkId, u64, Psn)>,
    pub epsn: Psn,
    pub msn: u32,
    pub nak_sent: bool,
    pub write: Option<WriteProgress>,
    pub responses: VecDeque<Response>,
    /// Results of the latest atomics, for duplicates.
    pub atomics: VecDeque<(Psn, Option<u64>)>,
    pub comm_est: bool,
}

impl RcState {
    /// Forgets the connection. The numbers that a transition sets stay.
    pub fn clear(&mut self) {
        self.reads_out = 0;
        (self.rnr_until, self.ack_deadline) = (None, None);
        (self.patient_since, self.unread) = (None, None);
        (self.msn, self.nak_sent) = (0, false);
        self.write = None;
        self.responses.clear();
        self.atomics.clear();
        self.comm_est = false;
    }
}
