//! What a queue pair knows of a peer on the same host.

use std::sync::atomic::{AtomicU64, Ordering};

use verbs::Psn;
use wire::TicketRef;

use crate::wq::rq::RecvProgress;

/// Tells targets of requests by reference whether the requests still live, see [`TicketRef`]. The word is never freed,
/// so that a late look finds it.
pub(crate) struct Ticket(&'static AtomicU64);

impl Ticket {
    pub fn new(word: &'static AtomicU64) -> Self {
        Ticket(word)
    }

    pub fn word(&self) -> &'static AtomicU64 {
        self.0
    }

    /// What requests carry.
    pub fn name(&self) -> TicketRef {
        TicketRef { addr: std::ptr::from_ref(self.0) as u64, value: self.0.load(Ordering::Relaxed) }
    }

    /// All requests that carry the present name are dead. [`wire::SameHost::quiesce`] must follow.
    pub fn void(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// The state of what processes of one host do for each other.
pub(crate) struct SameHostState {
    pub ticket: Ticket,
    /// It is in the engine's list of those that have requests by reference.
    pub lender: bool,
    /// The peer may not read our memory for this queue pair.
    pub no_single_copy: bool,
    /// The last reference that was refused.
    pub refused: Option<Psn>,
    /// The peer has answered on this connection: number and path are right, and requests may be executed from here.
    pub proven: bool,
    /// The peer's epoch of this connection, once known.
    pub peer_epoch: Option<u64>,
    /// Peers can see it on our export table, as this connection.
    pub exported: Option<u64>,
    /// The receive of a shared queue that was to be given back while a peer might still be copying to it: for this
    /// one's next message.
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
            peer_epoch: None,
            exported: None,
            kept: None,
        }
    }

    /// Forgets the connection. The ticket, what is exported and a receive that is kept have an end of their own.
    pub fn clear(&mut self) {
        (self.no_single_copy, self.refused) = (false, None);
        (self.proven, self.peer_epoch) = (false, None);
    }
}
