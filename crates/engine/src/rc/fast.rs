//! The fast path of small SENDs and their acknowledgements: what `requester`, `responder`, `respond` and `acknowledge`,
//! the slow path, would do for them, without what cannot be the case.
//!
//! **Posting** (`post`). A request takes the fast path at its post, if it is no longer than the path MTU, and so one
//! packet, and nothing stands before it: the connection is in RTS and has a link, everything posted earlier has gone
//! out, and no retry is waited for. Only its entry in the send queue is kept: the request is counted. It is listed
//! among the requests under way ([`Qp::list_unlisted`]) only when something but its acknowledgement needs it. Its
//! packet is that of the slow path.
//!
//! **Writing and reading** (`rdma`). An RDMA WRITE or READ takes the fast path at its post, too, if it is executed
//! here: nothing is under way on the connection, and the last request of its kind was executed here. It is over then.
//! Several of one list are executed by one copy (`together`).
//!
//! **Windows** (`local`). The bind of a window, and LOCAL_INV, take the fast path at their post if all in front of them
//! has gone out. They are over then, or are listed if something is under way. Without a completion, they end with the
//! SEND in front of them.
//!
//! **Receiving** (`receive`). A packet takes the fast path if it is a whole message, no longer than the path MTU, and
//! the expected one, for a receive with one entry. Its connection owes nothing but an acknowledgement, and has nothing
//! under way. (RTR is enough, except for the first packet there.)
//!
//! **Acknowledging, and being acknowledged** (`ack`). Nothing else is owed or to be sent; the acknowledged requests are
//! SENDs, and all posted requests have gone out.
//!
//! The slow path takes whatever is out of the ordinary (also a list that would have to grow, and other queue pairs that
//! wait for room on a link); the fast path has done nothing then. The conditions of a queue pair ([`crate::qp::Gates`])
//! are computed from its own state, and hold until that state may change: see [`crate::qps::Qps`].

mod ack;
mod local;
pub(super) mod post;
mod rdma;
mod receive;
mod together;

use std::hint::cold_path;

use verbs::{Completion, QpId};
use wire::{Env, Nanos, ShortPacket};

use crate::Engine;
use crate::qp::Qp;

/// True if the fast path may be taken: `Engine::has_fast_path`. A build with `--cfg without_taps` does not read it, to
/// show what reading it costs.
#[inline(always)]
fn may(has_fast_path: bool) -> bool {
    cfg!(without_taps) || has_fast_path
}

/// The outcome of a packet that was given to [`Engine::receive_short`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fast {
    /// Nothing: the packet is for the slow path.
    Refused,
    /// The packet has been dealt with.
    Taken,
    /// The packet has been dealt with, and a completion was handed out.
    Completed {
        /// [`Engine::expects_completions`], as far as the packet's queue pair shows: true, or not known.
        expects: bool,
    },
}

/// A poll, during which short packets are taken from a link.
pub trait Poller<P> {
    /// Takes a completion for the poll.
    fn completed(&mut self, _completion: &Completion) {}
    /// Notes that a packet has been dealt with: its place on the link is free.
    fn taken(&mut self, _env: &mut P) {}
    /// The packet behind it, if that is there already, and short.
    fn next(&mut self, _env: &P) -> Option<ShortPacket> {
        None
    }
}

/// No poll: packets are taken one by one.
impl<P> Poller<P> for () {}

impl<P: Env> Engine<P> {
    /// Leaves the rest to the slow path, with the queue pair out of its table.
    #[cold]
    pub(super) fn finish(&mut self, id: QpId, now: Nanos, act: impl FnOnce(&mut Self, &mut Qp, Nanos)) {
        let Some(mut qp) = self.checkout_qp(id) else { return };
        act(self, &mut qp, now);
        self.schedule(&mut qp);
        self.qps.put_back(id, qp);
    }
}

/// The outcome of a call that did nothing. It is cold, so that the code of the fast path lies in a row for the
/// processor.
#[inline(always)]
fn cold<T>(outcome: T) -> T {
    cold_path();
    outcome
}
