//! The verbs engine: protection domains, regions, windows, queue pairs, completion queues and what happens between
//! them, as the InfiniBand Architecture Specification says. The engine knows no socket, no thread and no clock: the
//! surroundings are a [`wire::Env`], time is an argument.
//!
//! A message's way: [`Engine::post_send`] writes an entry into the send queue (`wq::sq`), [`Engine::run`] fetches it
//! and sends packets (`rc::requester`); the peer's [`Engine::receive`] executes them (`rc::responder`, `ud::datagram`)
//! and owes a response; the response comes back through `receive` and completes the request into a completion queue
//! (`wq::cq`).
//!
//! # Folders
//!
//! | folder | what |
//! |---|---|
//! | `wq` | send, receive and completion queues, posts, completions |
//! | `rc` | the connected services: requester, responder, acknowledgements, and the fast path |
//! | `rdmap` | the service of iWARP, over TCP connections |
//! | `ud` | datagrams, and messages that wait for a receive |
//! | `same_host` | what two processes of one host do for each other beside packets |
//! | `objects` | creating, changing and destroying verbs objects |
//!
//! Beside them: `region` (memory and its rights), `qp` (a queue pair's state), `copies` (between packets and memory),
//! `run` (which queue pair runs when).
//!
//! The files name each other in one direction only (a test of xtask holds that). The *methods* of [`Engine`] do call
//! each other across folders: a packet leads to a completion, a completion to room in a queue, room to a request, and a
//! request to packets. That circle is the protocol's own. It is broken at [`Engine::run`]: what a method leaves to be
//! done it puts on a list (`ready`, `parked`, `timers`), and `run` takes it from there, so no method calls itself by
//! way of others.
#![forbid(unsafe_code)]

mod copies;
mod counts;
mod facts;
mod incident;
mod modify;
mod objects;
mod path;
mod qp;
mod qpn;
mod qps;
mod rc;
mod rdmap;
mod region;
mod run;
mod same_host;
mod slab;
#[cfg(test)]
mod tests;
mod ud;
mod wq;

use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};

use verbs::{AhAttr, AhId, CtxId, Gid, LinkLayer, PdId, QpId, SrqId, XrcdId};
use wire::{Env, LinkId, Span};

pub use objects::managed::{QueueState, Side};
pub use qpn::BLOCK as QPN_BLOCK;
pub use rc::fast::{Fast, Poller};
pub use region::{MrInfo, MwKind};
pub use wq::cq::{CqOpts, Notice};
pub use wq::managed::{Managed, ManagedQueue, QueueRules, array_bytes};

use qpn::QpnTable;
use qps::Qps;
use region::Regions;
use slab::Slab;
use wq::cq::Completions;
use wq::rq::Srq;

/// A context.
#[derive(Default)]
pub(crate) struct Ctx {
    /// Its queue pairs are those of iWARP.
    is_iwarp: bool,
}

pub(crate) struct Pd {
    ctx: CtxId,
    /// Objects that belong to the domain.
    users: u32,
}

pub(crate) struct Ah {
    pd: PdId,
    attr: AhAttr,
}

pub(crate) struct Xrcd {
    ctx: CtxId,
    inode: Option<(u64, u64)>,
    /// Handles that were given out for the domain.
    opens: u32,
    users: u32,
}

/// A channel adapter: all verbs objects of one process.
pub struct Engine<P: Env> {
    env: P,
    ctxs: Slab<CtxId, Ctx>,
    pds: Slab<PdId, Pd>,
    mem: Regions,
    done: Completions,
    srqs: Slab<SrqId, Srq>,
    srqns: HashMap<u32, SrqId>,
    next_srqn: u32,
    qps: Qps,
    qpns: QpnTable,
    ahs: Slab<AhId, Ah>,
    xrcds: Slab<XrcdId, Xrcd>,
    groups: HashMap<Gid, Vec<QpId>>,
    /// The port's GID table: sources of datagrams.
    gids: Vec<Gid>,
    link_layer: LinkLayer,
    /// Queue pairs with something to send.
    ready: VecDeque<QpId>,
    /// Queue pairs of `ready` that have to wait for the next hold of the lock ([`Engine::next_hold`]), while others are
    /// run.
    for_next_hold: VecDeque<QpId>,
    /// True if the queue pair that runs now belongs to `for_next_hold`.
    goes_on: bool,
    /// Bytes of requests that were executed here under this hold of the lock.
    executed: u32,
    /// True if a part of such a request has been left for the next hold.
    is_in_pieces: bool,
    /// Most bytes that are copied at once: [`wire::PIECE`], less in tests.
    piece: u32,
    /// Queue pairs that wait for room on a link.
    parked: BTreeMap<LinkId, Vec<QpId>>,
    timers: run::Timers,
    /// Queue pairs whose timers were set since the clock was last read.
    timed: Vec<QpId>,
    /// Requests by reference with copies that this process may help with.
    lent: same_host::co_copy::Lenders,
    copy_policies: same_host::copy_policy::CopyPolicies,
    // reused lists, so that the message path does not allocate
    spans: Vec<Span>,
    remote_spans: Vec<Span>,
    bytes: Vec<u8>,
    links: Vec<LinkId>,
    /// The link of the packet being received.
    arrival: LinkId,
    /// Small SENDs take the fast path (`rc::fast`).
    has_fast_path: bool,
    /// Acknowledgements of small SENDs do not wait for others.
    prompt: bool,
    /// How often each fast path was taken: posting, receiving, being acknowledged, acknowledging.
    #[cfg(test)]
    fast_paths: [u64; 4],
    /// WRITEs, READs, binds and LOCAL_INVs that were executed at their post.
    #[cfg(test)]
    executed_at_post: [u64; 4],
    /// Of these, WRITEs and READs that were executed by one copy with others.
    #[cfg(test)]
    executed_together: u64,
    /// Entries of managed queues that ran straight.
    #[cfg(test)]
    ran_straight: u64,
    /// Messages that managed receives have taken straight, and acknowledgements of managed sends.
    #[cfg(test)]
    came_straight: [u64; 2],
    /// Bytes copied directly since the last reset, mostly by [`Engine::run`].
    moved: u64,
    /// Bytes sent by the queue pair that runs now.
    turn: u64,
    /// Entries of queue pairs with tasks that began under this hold of the lock.
    tasks: u32,
    /// Queue pairs whose send queue rests, and until when.
    resting: run::Timers,
    /// Payload of a packet that had waited and is being received now.
    held: Vec<u8>,
    /// Queue pairs for which packets wait.
    starving: Vec<QpId>,
    /// Packets dropped because they came from another process than the peer.
    strangers: u64,
    /// See [`Engine::served`].
    served: u64,
    /// Counters of queue pairs that were destroyed.
    gone: report::facts::QpCounters,
    /// Words for new queue pairs' tickets.
    tickets: Vec<&'static std::sync::atomic::AtomicU64>,
    /// Some context is one of iWARP (`rdmap`), or was.
    has_iwarp: bool,
    /// Queue pairs over TCP connections that have something to send, or have ended.
    streams: VecDeque<QpId>,
    /// The buffer of the connection that sends next.
    spare_output: rdmap::Output,
    /// See [`Engine::set_streams_copied`].
    streams_copied: bool,
}

impl<P: Env> Engine<P> {
    /// An adapter without objects.
    pub fn new(env: P) -> Self {
        Engine {
            env,
            ctxs: Slab::new(1 << 16),
            pds: Slab::new(verbs::limits::MAX_PD),
            mem: Regions::new(),
            done: Completions::new(),
            srqs: Slab::new(verbs::limits::MAX_SRQ),
            srqns: HashMap::new(),
            next_srqn: 1,
            qps: Qps::new(),
            qpns: QpnTable::default(),
            ahs: Slab::new(verbs::limits::MAX_AH),
            xrcds: Slab::new(verbs::limits::MAX_XRCD),
            groups: HashMap::new(),
            gids: Vec::new(),
            link_layer: LinkLayer::default(),
            ready: VecDeque::new(),
            for_next_hold: VecDeque::new(),
            goes_on: false,
            executed: 0,
            is_in_pieces: false,
            piece: wire::PIECE,
            parked: BTreeMap::new(),
            timers: BinaryHeap::new(),
            timed: Vec::new(),
            lent: Default::default(),
            copy_policies: Vec::new(),
            spans: Vec::new(),
            remote_spans: Vec::new(),
            bytes: Vec::new(),
            links: Vec::new(),
            arrival: LinkId::LOOPBACK,
            has_fast_path: true,
            prompt: false,
            #[cfg(test)]
            fast_paths: [0; 4],
            #[cfg(test)]
            executed_at_post: [0; 4],
            #[cfg(test)]
            executed_together: 0,
            #[cfg(test)]
            ran_straight: 0,
            #[cfg(test)]
            came_straight: [0; 2],
            moved: 0,
            turn: 0,
            tasks: 0,
            resting: BinaryHeap::new(),
            held: Vec::new(),
            starving: Vec::new(),
            strangers: 0,
            served: 0,
            gone: Default::default(),
            tickets: Vec::new(),
            has_iwarp: false,
            streams: VecDeque::new(),
            spare_output: rdmap::Output::default(),
            streams_copied: false,
        }
    }

    /// The surroundings.
    pub fn env(&self) -> &P {
        &self.env
    }

    /// The surroundings.
    pub fn env_mut(&mut self) -> &mut P {
        &mut self.env
    }

    /// Packets dropped so far because they came over a link that does not lead to the connection's peer.
    pub fn strangers(&self) -> u64 {
        self.strangers
    }

    /// Number of packets so far that the program does not notice: executed RDMA, pieces of SENDs that are not the last,
    /// and pieces of answers to READs that are not the last. More of the kind may follow while the program sleeps.
    pub fn served(&self) -> u64 {
        self.served
    }

    /// Sets the port's GID table.
    pub fn set_gids(&mut self, gids: Vec<Gid>) {
        self.gids = gids;
    }

    /// Sets the port's link layer; Ethernet at first.
    pub fn set_link_layer(&mut self, link_layer: LinkLayer) {
        self.link_layer = link_layer;
    }

    /// Sets whether a small SEND is acknowledged at once, and not in the next [`Engine::run`] together with all SENDs
    /// before. A poll that takes packets in one by one switches it on. Off at first.
    #[inline]
    pub fn set_prompt(&mut self, on: bool) {
        self.prompt = on;
    }

    /// Sets whether small SENDs may take the fast path; if not, all take the slow one (on at first). Both lead to one
    /// result, except for calls to the platform. On the fast path a packet may be tried twice at a full link, and
    /// [`wire::Observer::withholds_receive`] is not called. A platform that counts full links or answers that call
    /// switches the fast path off.
    pub fn set_fast_path(&mut self, on: bool) {
        self.has_fast_path = on;
    }

    /// Asks for [`Notice::Broken`] (off at first).
    pub fn set_diagnostics(&mut self, on: bool) {
        self.done.diagnose = on;
    }

    /// Adds a block of queue pair numbers that this process has claimed.
    pub fn add_qpns(&mut self, first: u32) {
        self.qpns.add_block(first);
    }

    /// Number of free queue pair numbers.
    pub fn free_qpns(&self) -> u32 {
        self.qpns.free()
    }

    /// Takes the notices for the process.
    pub fn take_notices(&mut self, out: &mut Vec<Notice>) {
        out.append(&mut self.done.notices);
    }

    /// True if there are notices.
    pub fn has_notices(&self) -> bool {
        !self.done.notices.is_empty()
    }
}
