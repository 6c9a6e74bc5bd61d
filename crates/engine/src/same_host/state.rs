//! State of a queue pair about a peer on the same host.

use std::sync::atomic::{AtomicU64, Ordering};

use verbs::Psn;
use wire::TicketRef;

use crate::wq::rq::RecvProgress;

/// A word that tells targets of requests by reference whether the requests still live, see [`TicketRef`]. The word is
/// never freed, so that a late look finds it.
pub(crate) struct Ticket(&'static AtomicU64);

impl Ticket {
    pub fn new(word: &'static AtomicU64) -> Self {
        Ticket(word)
    }

    pub fn word(&self) -> &'static AtomicU64 {
        self.0
    }

    /// The name that requests carry.
    pub fn name(&self) -> TicketRef {
        TicketRef { addr: std::ptr::from_ref(self.0) as u64, value: self.0.load(Ordering::Relaxed) }
    }

    /// Voids all requests that carry the present name. [`wire::SameHost::quiesce`] must follow.
    pub fn void(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// The state of a queue pair for the services of one host.
pub(crate) struct SameHostState {
    pub ticket: Ticket,
    /// The queue pair is in the engine's list of queue pairs with requests by reference.
    pub lender: bool,
    /// The peer may not read our memory for this queue pair.
    pub no_single_copy: bool,
    /// The last reference that was refused.
    pub refused: Option<Psn>,
    /// The peer has answered on this connection: number and path are right, and requests may be executed from here.
    pub proven: bool,
    /// The last RDMA WRITE was executed from here: the next one is tried at its post, or runs straight.
    pub reached: bool,
    /// The last RDMA READ was executed from here: the next one is tried at its post.
    pub reached_by_read: bool,
    /// The peer's epoch of this connection, once known.
    pub peer_epoch: Option<u64>,
    /// The epoch under which peers can see the queue pair on our export table, as this connection.
    pub exported: Option<u64>,
    /// The receive of a shared queue that was to be given back while a peer might still be copying to it. It serves the
    /// next message of this queue pair.
    pub kept: Option<RecvProgress>,
}

impl SameHostState {
    /// The state before a connection.
    pub fn new(ticket: Ticket) -> Self {
        SameHostState {
            ticket,
            lender: false,
            no_single_copy: false,
            refused: None,
            proven: false,
            reached: false,
            reached_by_read: false,
            peer_epoch: None,
            exported: None,
            kept: None,
        }
    }

    /// Forgets the connection. The ticket, the export and a kept receive have an end of their own.
    pub fn clear(&mut self) {
        (self.no_single_copy, self.refused) = (false, None);
        self.unprove();
    }

    /// Forgets what answers have shown of the peer.
    pub fn unprove(&mut self) {
        (self.proven, self.peer_epoch) = (false, None);
        (self.reached, self.reached_by_read) = (false, false);
    }

    /// Whether the last RDMA READ, or the last WRITE, was executed from here.
    #[inline(always)]
    pub fn reached_by(&mut self, read: bool) -> &mut bool {
        if read { &mut self.reached_by_read } else { &mut self.reached }
    }
}
