//! The fast path of small SENDs and their acknowledgements: what `requester`, `responder`, `respond` and `acknowledge`,
//! the slow path, would do for them, without what cannot be the case.
//!
//! **Posting** (`post`). A request takes the fast path at its post, if it is no longer than the path MTU, and so one
//! packet, and nothing stands before it: the connection is in RTS and has a link, everything posted earlier has gone
//! out, and no retry is waited for. Its entry in the send queue is all that is kept of it: it is counted, and only
//! listed among the requests under way ([`Qp::list_unlisted`]) when something but its acknowledgement asks. Its packet
//! is that of the slow path.
//!
//! **Receiving** (`receive`). A packet takes it that is a whole message, no longer than the path MTU, and the expected
//! one, for a receive with one entry, on a connection (in RTR too, but for the first packet there) where nothing but an
//! acknowledgement is owed, and nothing under way.
//!
//! **Acknowledging, and being acknowledged** (`ack`). Nothing else is owed or to be sent; what is acknowledged are
//! SENDs, and all that was posted has gone out.
//!
//! Whatever is out of the ordinary (also a list that would have to grow, and others that wait for room on a link) is
//! left to the slow path; nothing was done then. What is taken for granted of a queue pair ([`crate::qp::Gates`]) is
//! worked out from its own state, and holds until that state may change: see [`crate::qps::Qps`].

mod ack;
mod post;
mod receive;

use std::hint::cold_path;

use verbs::{Completion, QpId};
use wire::{Env, Nanos, ShortPacket};

use crate::Engine;
use crate::qp::Qp;

/// Whether the fast path may be taken, asked `Engine::has_fast_path`. A build with `--cfg without_taps`, which is to
/// show what asking costs, does not ask.
#[inline(always)]
fn may(has_fast_path: bool) -> bool {
    cfg!(without_taps) || has_fast_path
}

/// What became of a packet that was given to [`Engine::receive_short`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fast {
    /// Nothing: the packet is for the slow path.
    Refused,
    /// The packet has been dealt with.
    Taken,
    /// The packet has been dealt with, and a completion was handed out.
    Completed {
        /// [`Engine::expects_completions`], as far as the packet's queue pair tells: true, or not known.
        expects: bool,
    },
}

/// A poll, during which short packets are taken from a link.
pub trait Poller<P> {
    /// A completion for the poll.
    fn completed(&mut self, completion: &Completion);
    /// A packet has been dealt with: its place on the link is free.
    fn taken(&mut self, env: &mut P);
    /// The packet behind it, if that is there already, and short.
    fn next(&mut self, env: &P) -> Option<ShortPacket>;
}

/// No poll: packets are taken one by one.
struct NoPoll;

impl<P> Poller<P> for NoPoll {
    #[inline(always)]
    fn completed(&mut self, _completion: &Completion) {}
    #[inline(always)]
    fn taken(&mut self, _env: &mut P) {}
    #[inline(always)]
    fn next(&mut self, _env: &P) -> Option<ShortPacket> {
        None
    }
}

impl<P: Env> Engine<P> {
    /// What the fast path leaves over is done with the queue pair out of its table.
    #[cold]
    fn finish(&mut self, id: QpId, now: Nanos, act: impl FnOnce(&mut Self, &mut Qp, Nanos)) {
        let Some(mut qp) = self.checkout_qp(id) else { return };
        act(self, &mut qp, now);
        self.schedule(&mut qp);
        self.qps.put_back(id, qp);
    }
}

/// Nothing was done. What nothing is known against stays on the fast path, and the processor meets the code of that in
/// a row.
#[inline(always)]
fn refused() -> Fast {
    cold_path();
    Fast::Refused
}
