//! A queue pair: its state and its queues.

use std::hint::cold_path;

use verbs::{CqId, CtxId, Psn, QpAttr, QpId, QpInit, QpState, QpType, Qpn};
use wire::{LinkId, Nanos, Packet, PacketOp};

use crate::counts::Counts;
use crate::rc::state::{RcState, Response};
use crate::rdmap::state::StreamState;
use crate::same_host::state::SameHostState;
use crate::ud::state::Unreliable;
use crate::wq::in_place_ring::InPlaceRing;
use crate::wq::inflight::Inflight;
use crate::wq::rq::{RecvProgress, RecvQueue};
use crate::wq::sq::SendQueue;

/// Number of requests with taken places in front of a request, from which on the request counts as queued.
const QUEUE: u64 = 2;

/// No link has this name.
const NOWHERE: LinkId = LinkId(u32::MAX);

/// Conditions of the fast path (`fast`) for a queue pair. They are computed from its other fields when they are first
/// needed, and forgotten whenever the queue pair is taken for a change ([`crate::qps::Qps`]). Each is a link, or
/// nothing while that path is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gates {
    /// The link over which requests go out at their post.
    out: LinkId,
    /// The link over which SENDs come in.
    sends: LinkId,
    /// The link over which acknowledgements come in.
    acks: LinkId,
    /// The link over which acknowledgements go out, if nothing else is owed.
    answers: LinkId,
}

impl Gates {
    /// All gates shut.
    pub const SHUT: Gates = Gates { out: NOWHERE, sends: NOWHERE, acks: NOWHERE, answers: NOWHERE };
}

/// Counters of completions that were handed to a poll, and never lay in a queue. The queue pair counts them, and not
/// the queue: the queue pair is at hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Handed {
    pub sends: u64,
    pub receives: u64,
}

/// A queue pair: what all services share, and the state of each.
pub(crate) struct Qp {
    pub id: QpId,
    pub ctx: CtxId,
    pub user: u64,
    pub qpn: Qpn,
    pub init: QpInit,
    pub state: QpState,
    pub attr: QpAttr,
    /// Bytes of one packet for counting sequence numbers.
    pub mtu: u32,
    /// The way to the peer.
    pub link: Option<LinkId>,
    /// The link over which the peer's packets come. Two processes that looked for each other at once have two links,
    /// and each process sends over its own.
    pub from: Option<LinkId>,
    pub gates: Gates,
    /// When to look for the peer again, and the last pause before that (`seek`).
    pub seek_at: Option<Nanos>,
    pub seek_pause: Nanos,
    pub sq: SendQueue,
    pub rq: RecvQueue,

    // ---- requests ----
    pub inflight: InPlaceRing<Inflight>,
    /// Number of newest requests that took the fast path. They have no entries in `inflight` until the slow path needs
    /// them ([`Qp::list_unlisted`]). `inflight` has room for them. The send queue holds their attributes, and each has
    /// one sequence number.
    pub unlisted: usize,
    /// The first entry of `inflight` that is not fully sent.
    pub cursor: usize,
    /// A fetched entry failed: nothing behind it goes out.
    pub halted: bool,
    /// The earliest entry for this queue pair in the timer heap.
    pub timer_at: Option<Nanos>,

    /// The queue pair is in the engine's list of queue pairs with timers that were set since the clock was last read.
    pub timed: bool,

    // ---- the message being received ----
    pub recv: Option<RecvProgress>,
    pub last_wqe_told: bool,

    // ---- state of the transport, the host and the service ----
    /// Sequence numbers, retries and responses of the connected services.
    pub rc: RcState,
    /// State for the services of one host.
    pub same_host: SameHostState,
    /// Losses and waiting packets of unreliable services.
    pub unreliable: Unreliable,
    /// The TCP connection of a queue pair of iWARP.
    pub stream: Option<Box<StreamState>>,
    /// The queue pair is one of iWARP: packets do not reach it.
    pub is_iwarp: bool,

    // ---- scheduling ----
    pub queued: bool,
    pub parked: bool,

    pub counts: Counts,
    pub handed: Handed,

    /// WAIT and ENABLE may be posted (`wq::managed`).
    pub cross_channel: bool,
}

/// [`Qp::psns`] for this path MTU, which is a power of two.
pub(crate) fn psns(len: u32, mtu: u32) -> u32 {
    if len <= mtu { 1 } else { ((u64::from(len) + u64::from(mtu) - 1) >> mtu.trailing_zeros()) as u32 }
}

impl Qp {
    /// True if this request was posted behind several requests with completions that were not polled.
    pub fn queues(&self, number: u64) -> bool {
        number.saturating_sub(self.sq.retired) >= QUEUE
    }

    /// Sequence numbers of a message of `len` bytes (IBTA vol. 1, 9.7.2: one per packet, at least one).
    pub fn psns(&self, len: u32) -> u32 {
        psns(len, self.mtu)
    }

    /// Forgets all work and all connection state: the RESET state.
    pub fn clear(&mut self) {
        self.sq.reset();
        self.rq.reset();
        self.inflight.clear();
        self.unlisted = 0;
        self.cursor = 0;
        self.halted = false;
        self.recv = None;
        self.last_wqe_told = false;
        self.rc.clear();
        self.same_host.clear();
        self.unreliable.clear();
        self.stream = None;
        self.leave_link();
        (self.seek_at, self.seek_pause) = (None, 0);
        self.counts.rnr_since = None;
    }

    /// Forgets the way to the peer.
    pub fn leave_link(&mut self) {
        (self.link, self.from) = (None, None);
    }

    /// The queues to which completions were handed over, and their numbers.
    pub fn handed_to(&self) -> impl Iterator<Item = (CqId, u64)> {
        let queues = [(self.init.send_cq, self.handed.sends), (self.init.recv_cq, self.handed.receives)];
        queues.into_iter().filter_map(|(cq, n)| Some((cq?, n)))
    }

    /// An acknowledgement, positive or not (IBTA vol. 1, 9.7.5.1): syndrome and message sequence number.
    #[inline(always)]
    pub fn acknowledgement(&self, psn: Psn, syndrome: u8, msn: u32) -> Packet {
        let mut packet = Packet::new(PacketOp::Ack, Qpn::new(self.attr.dest_qp_num), self.qpn, psn);
        (packet.syndrome, packet.imm) = (syndrome, msn);
        packet
    }

    /// The link over which a request goes out at its post, if nothing stands in front of the request.
    #[inline(always)]
    pub fn gate_out(&mut self) -> Option<LinkId> {
        self.gate(Qp::is_managed, |gates| gates.out != NOWHERE).then_some(self.gates.out)
    }

    /// [`Packet::mtu`] of a message of so many bytes.
    pub fn cut(&self, len: u32) -> u32 {
        if len > self.mtu { self.mtu } else { 0 }
    }

    /// The link over which an acknowledgement goes out, if nothing stands in front of it and nothing else is owed.
    #[inline(always)]
    pub fn gate_of_answers(&mut self) -> Option<LinkId> {
        self.gate(|_| false, |gates| gates.answers != NOWHERE).then_some(self.gates.answers)
    }

    /// True if SENDs over this link may be taken: it is the peer's link, and no message or WRITE is being received.
    #[inline(always)]
    pub fn takes_sends(&mut self, link: LinkId) -> bool {
        self.gate(|qp| qp.rq.managed.is_some(), |gates| gates.sends == link)
    }

    /// True if acknowledgements over this link may be taken: it is the peer's link, and all posted requests have gone
    /// out.
    #[inline(always)]
    pub fn takes_acks(&mut self, link: LinkId) -> bool {
        self.gate(Qp::is_managed, |gates| gates.acks == link)
    }

    fn is_managed(&self) -> bool {
        self.sq.managed.is_some()
    }

    /// `never`: the gate is not open in any state. So packets of a managed queue do not pay for the others.
    #[inline(always)]
    fn gate(&mut self, never: impl Fn(&Qp) -> bool, is_open: impl Fn(&Gates) -> bool) -> bool {
        if !is_open(&self.gates) {
            cold_path();
            if never(self) {
                return false;
            }
            self.gates = self.look_at_gates();
        }
        debug_assert!(self.gates == Gates::SHUT || self.gates == self.look_at_gates(), "{:?}", self.gates);
        is_open(&self.gates)
    }

    #[inline(never)]
    fn look_at_gates(&self) -> Gates {
        let rc = self.init.qp_type == QpType::Rc;
        let sends = self.state == QpState::Rts;
        let connected = sends || self.state == QpState::Rtr;
        // The fast path owes nothing but one acknowledgement.
        let owes_little =
            matches!((self.rc.responses.len(), self.rc.responses.front()), (0, _) | (1, Some(Response::Ack { .. })));
        // Requests that are held back wait for no acknowledgement, but nothing posted may overtake them.
        let idle = self.cursor == self.inflight.len() && !self.sq.is_runnable();
        let all_out = idle && self.sq.unfetched() == 0;
        let managed = self.sq.managed.is_some();
        let receives = (sends || self.state == QpState::Rtr && self.rc.comm_est)
            && owes_little
            && self.recv.is_none()
            && self.rc.write.is_none()
            && self.init.srq.is_none()
            && self.rq.managed.is_none();
        let over = |link: Option<LinkId>, open: bool| link.filter(|_| rc && open).unwrap_or(NOWHERE);
        Gates {
            out: over(self.link, sends && all_out && !managed && !self.halted && self.rc.rnr_until.is_none()),
            sends: over(self.from, receives),
            acks: over(self.from, sends && idle && !managed && owes_little && self.rc.rnr_until.is_none()),
            answers: self.link.filter(|_| connected && idle).unwrap_or(NOWHERE),
        }
    }

    /// True if a request could be fetched or continued, or a response is owed.
    pub fn has_work(&self) -> bool {
        let owes = !self.rc.responses.is_empty() || self.stream.as_ref().is_some_and(|stream| stream.owes());
        owes || self.cursor < self.inflight.len() || self.sq.is_runnable()
    }

    /// True if a completion of a send is still to come.
    pub fn expects_sends(&self) -> bool {
        !self.inflight.is_empty() || self.unlisted > 0 || self.sq.is_runnable()
    }

    /// The sequence number of the oldest request that is not listed.
    #[inline(always)]
    pub fn first_unlisted(&self) -> Psn {
        Psn::new(self.rc.next_psn.get().wrapping_sub(self.unlisted as u32))
    }

    /// Starts the retry counters and the timer anew, after an answer to a request (IBTA vol. 1, 9.7.5.1.2).
    #[inline]
    pub fn progressed(&mut self) {
        self.same_host.proven = true;
        self.rc.retries = self.attr.retry_cnt;
        self.rc.rnr_retries = self.attr.rnr_retry;
        self.rc.ack_deadline = None;
        self.rc.patient_since = None;
        self.counts.rnr_since = None;
    }

    /// Lists the requests that took the fast path like all others. True if an entry of one has become invalid.
    #[inline(always)]
    #[must_use]
    pub fn list_unlisted(&mut self) -> bool {
        if self.unlisted == 0 {
            return false;
        }
        cold_path();
        self.list_them()
    }

    #[inline(never)]
    fn list_them(&mut self) -> bool {
        let mut broken = false;
        let (first, first_psn) = (self.sq.fetched - self.unlisted as u64, self.first_unlisted());
        for n in 0..self.unlisted {
            // Made in its place: there can be hundreds, each larger than what one copy of it should cost.
            let Some(place) = self.inflight.place() else { break };
            self.sq.list(first + n as u64, first_psn.plus(n as u32), self.mtu, place);
            broken |= place.error.is_some();
        }
        self.unlisted = 0;
        self.cursor = self.inflight.len();
        broken
    }
    /// An unlisted request; the oldest is number 0.
    #[cfg(test)]
    pub(crate) fn unlisted(&self, n: usize) -> Inflight {
        let mut request = Inflight::default();
        let number = self.sq.fetched - self.unlisted as u64 + n as u64;
        self.sq.list(number, self.first_unlisted().plus(n as u32), self.mtu, &mut request);
        request
    }
}
