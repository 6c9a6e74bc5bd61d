//! The facts. Times are in nanoseconds: ages and what is left, but for [`Report::now_ns`]. Counters count since the
//! object was made and never go back.

use serde::{Deserialize, Serialize};
use verbs::{Opcode, QpState, QpType};

/// Version of the layout.
pub const VERSION: u32 = 1;

/// All that one process tells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// The process.
    pub pid: u32,
    /// Its name (`comm`).
    pub program: String,
    /// CLOCK_MONOTONIC: the same for all processes of the host.
    pub now_ns: u64,
    /// Why there are no facts about the adapter: its lock was held all the time.
    pub locked: Option<String>,
    /// Faults that were asked for, as they were specified.
    pub faults: Option<String>,
    /// What keeps the process from peers, as it was told on standard error.
    #[serde(default)]
    pub told: Vec<String>,
    /// The adapter.
    pub adapter: Adapter,
    /// The connection manager, where the program uses one.
    pub cm: Option<Cm>,
}

/// The adapter of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Adapter {
    /// The program polls and moves its own data; else the NIC thread does.
    pub polled: bool,
    /// Open contexts.
    pub contexts: u32,
    /// Protection domains.
    pub pds: u32,
    /// Memory regions.
    pub mrs: u32,
    /// Bytes in them; an implicit or a null region counts as nothing.
    pub mr_bytes: u64,
    /// Memory windows.
    pub mws: u32,
    /// Address handles.
    pub ahs: u32,
    /// XRC domains.
    pub xrcds: u32,
    /// The protection domains one by one.
    #[serde(default)]
    pub pd_list: Vec<Pd>,
    /// The memory regions one by one.
    #[serde(default)]
    pub mr_list: Vec<Mr>,
    /// Queue pairs.
    pub qps: Vec<Qp>,
    /// Completion queues.
    pub cqs: Vec<Cq>,
    /// Shared receive queues.
    pub srqs: Vec<Srq>,
    /// Paths to other processes, and to this one.
    pub links: Vec<Link>,
    /// Asynchronous events that nobody has got.
    pub unread_events: Vec<String>,
    /// Objects whose destruction waits until events are acknowledged.
    pub destroys: Vec<Destroy>,
    /// Packets dropped because they came from another process than the connection's peer.
    pub strangers: u64,
    /// The port.
    pub port: Port,
}

/// A protection domain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pd {
    /// Its handle (`ibv_pd.handle`).
    pub handle: u32,
    /// Objects that belong to it.
    pub users: u32,
}

/// A memory region.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mr {
    /// Its handle (`ibv_mr.handle`).
    pub handle: u32,
    /// Bytes in it; an implicit or a null region counts as nothing.
    pub bytes: u64,
    /// Handle of its protection domain.
    pub pd: u32,
}

/// A queue pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Qp {
    /// Its number.
    pub number: u32,
    /// Transport service.
    pub qp_type: QpType,
    /// State.
    pub state: QpState,
    /// Handle of its protection domain; not of XRC targets.
    #[serde(default)]
    pub pd: Option<u32>,
    /// Handle of the completion queue of its sends.
    pub send_cq: Option<u32>,
    /// Handle of the completion queue of its receives.
    pub recv_cq: Option<u32>,
    /// Handle of its shared receive queue.
    pub srq: Option<u32>,
    /// Whom it is connected to.
    pub peer: Option<Peer>,
    /// Its send queue; not of XRC targets.
    pub sq: Option<Sq>,
    /// Its own receive queue.
    pub rq: Option<Rq>,
    /// What it waits for.
    pub waits: Waits,
    /// What has happened.
    pub counters: QpCounters,
}

/// The other end of a connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// Destination GID.
    pub gid: String,
    /// Destination queue pair.
    pub qpn: u32,
    /// The link, if there is one.
    pub link: Option<u32>,
    /// Without a link: a process of this host has claimed the number's block. `None`: not looked at.
    pub owned: Option<bool>,
    /// The peer has answered on this connection.
    pub answered: bool,
}

/// A send queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sq {
    /// Work requests it can hold.
    pub depth: u32,
    /// Work requests posted since the queue pair was made.
    pub posted: u64,
    /// Places in use: a request keeps its place until a completion of it, or of one behind it, is polled.
    pub held: u32,
    /// How many of these were posted signaled.
    pub held_signaled: u32,
    /// Requests that are being executed.
    pub executing: u32,
    /// Requests that have not begun.
    pub waiting: u32,
    /// The oldest request that is not finished.
    pub head: Option<Head>,
    /// Next sequence number.
    pub next_psn: u32,
    /// Oldest sequence number that is not acknowledged.
    pub unacked_psn: u32,
}

/// The request at the head of a send queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// As posted.
    pub wr_id: u64,
    /// Operation; `None`: the entry was overwritten with what is none.
    pub opcode: Option<Opcode>,
    /// Bytes of the message.
    pub len: u32,
    /// Bytes sent, or (READ) received, since the last try began.
    pub moved: u32,
    /// Signaled.
    pub signaled: bool,
    /// Since its execution began; `None`: it has not.
    pub age_ns: Option<u64>,
}

/// A receive queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rq {
    /// Receives it can hold.
    pub depth: u32,
    /// Receives that wait for a message.
    pub posted: u32,
    /// Places in use: a receive keeps its place until its completion is polled.
    pub held: u32,
    /// Receives posted since it was made.
    pub total: u64,
    /// Next sequence number that is accepted.
    pub expected_psn: u32,
}

/// What a queue pair waits for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Waits {
    /// An acknowledgement.
    pub ack: Option<AckWait>,
    /// The end of an RNR wait.
    pub rnr: Option<RnrWait>,
    /// A link to its peer.
    pub link: bool,
    /// Room in the ring to its peer.
    pub room: bool,
    /// The next request waits for READs and atomics: outstanding, and `max_rd_atomic`.
    pub reads: Option<(u32, u32)>,
    /// The next request waits behind a fence.
    pub fence: bool,
    /// Datagrams and messages of UC that wait for a receive.
    pub backlog: u32,
}

/// A wait for an acknowledgement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AckWait {
    /// Since the oldest unacknowledged request was sent first.
    pub age_ns: u64,
    /// The timeout; `None`: none, it waits for ever.
    pub timeout_ns: Option<u64>,
    /// Until the timer runs out.
    pub left_ns: Option<u64>,
    /// Retries used of `retry_cnt`.
    pub retries: u8,
    /// `retry_cnt`.
    pub retry_cnt: u8,
    /// The peer has not even taken what was sent.
    pub untaken: bool,
}

/// A receiver that is not ready.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RnrWait {
    /// Since its first RNR NAK of this series.
    pub age_ns: u64,
    /// RNR NAKs of this series.
    pub naks: u64,
    /// Tries used of `rnr_retry`.
    pub retries: u8,
    /// `rnr_retry`; 7: for ever.
    pub rnr_retry: u8,
    /// Until the next try; `None`: it is under way.
    pub left_ns: Option<u64>,
}

/// Counters of a queue pair; of the port, their sums, queue pairs that are gone included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names say it
pub struct QpCounters {
    /// Send requests completed with success.
    pub sent: u64,
    /// Receives completed with success.
    pub received: u64,
    // What is counted together is not neighbours: compilers would make one addition of two, which takes more
    // instructions.
    /// Bytes of the messages of these send requests.
    pub sent_bytes: u64,
    /// Bytes of messages, and of RDMA that this process executed for its peer.
    pub received_bytes: u64,
    /// RNR NAKs received and sent.
    pub rnr_naks_in: u64,
    pub rnr_naks_out: u64,
    /// Times that the acknowledgement timer ran out.
    pub timeouts: u64,
    /// Sequence error NAKs received and sent.
    pub seq_naks_in: u64,
    pub seq_naks_out: u64,
    /// Requests received again.
    pub duplicates: u64,
    /// Send requests that failed, by the peer's word (access, invalid request, operation).
    pub remote_errors: u64,
    /// Send requests that failed, any status but a flush.
    pub send_errors: u64,
    /// Times that the ring to the peer was full.
    pub ring_full: u64,
    /// UC and UD: messages lost because no receive was posted.
    pub dropped: u64,
    /// UD: datagrams lost because they were longer than the receive.
    #[serde(default)]
    pub too_long: u64,
    /// UD: datagrams lost because they came with another Q_Key.
    #[serde(default)]
    pub wrong_qkey: u64,
    /// UC and UD: copies of messages that were not sent because the way to their peer was full for too long.
    #[serde(default)]
    pub no_room: u64,
}

impl QpCounters {
    /// Messages of UC and UD lost, for whatever reason.
    pub fn lost(&self) -> u64 {
        self.dropped + self.too_long + self.wrong_qkey + self.no_room
    }
}

impl std::ops::AddAssign<&QpCounters> for QpCounters {
    fn add_assign(&mut self, other: &QpCounters) {
        self.sent += other.sent;
        self.sent_bytes += other.sent_bytes;
        self.received += other.received;
        self.received_bytes += other.received_bytes;
        self.rnr_naks_in += other.rnr_naks_in;
        self.rnr_naks_out += other.rnr_naks_out;
        self.timeouts += other.timeouts;
        self.seq_naks_in += other.seq_naks_in;
        self.seq_naks_out += other.seq_naks_out;
        self.duplicates += other.duplicates;
        self.remote_errors += other.remote_errors;
        self.send_errors += other.send_errors;
        self.ring_full += other.ring_full;
        self.dropped += other.dropped;
        self.too_long += other.too_long;
        self.wrong_qkey += other.wrong_qkey;
        self.no_room += other.no_room;
    }
}

/// The port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names say it
pub struct Port {
    pub packets_out: u64,
    pub packets_in: u64,
    /// Doorbells rung.
    pub doorbells: u64,
    /// Bytes that this process copied directly.
    pub single_copy_bytes: u64,
    /// Of those that peers count as theirs, copied by this process for them.
    pub co_copied_bytes: u64,
    /// All queue pairs together.
    pub qps: QpCounters,
}

/// What a completion queue asks to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Armed {
    /// Nothing.
    #[default]
    No,
    /// The next solicited completion, or one with an error.
    Solicited,
    /// The next completion.
    Any,
}

/// A completion queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cq {
    /// Its handle (`ibv_cq.handle`).
    pub handle: u32,
    /// Completions it can hold.
    pub depth: u32,
    /// Completions that wait to be polled.
    pub inside: u32,
    /// Completions it ever got.
    pub pushed: u64,
    /// Looks for a completion: each call of `ibv_poll_cq` makes one at least.
    pub polls: u64,
    /// What it asks to be told.
    pub armed: Armed,
    /// A completion was lost.
    pub overrun: bool,
    /// An event is held back for moderation: until then.
    pub moderated_ns: Option<u64>,
    /// It has a completion channel.
    pub channel: Option<Channel>,
    /// Events got and not acknowledged.
    pub unacked: u32,
    /// Queue pairs and shared receive queues that complete here.
    pub users: u32,
}

/// A completion channel, as one queue sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Channel {
    /// Its descriptor.
    pub fd: i32,
    /// Events of the queue that nobody has got.
    pub unread: u32,
    /// Threads in `ibv_get_cq_event`.
    pub waiters: u32,
}

/// A shared receive queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Srq {
    /// Its handle (`ibv_srq.handle`).
    pub handle: u32,
    /// Its number, for XRC.
    pub number: u32,
    /// Receives it can hold.
    pub depth: u32,
    /// Receives that wait for a message.
    pub posted: u32,
    /// Receives posted since it was made.
    pub total: u64,
    /// The limit at which an event is due; 0: none.
    pub limit: u32,
    /// Queue pairs that take from it.
    pub users: u32,
}

/// What a process is doing, as the kernel shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    /// It runs, or waits for something.
    #[default]
    Runs,
    /// Somebody has stopped it (SIGSTOP, a debugger).
    Stopped,
    /// It is dead.
    Gone,
}

/// A path to a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Names it in [`Peer::link`].
    pub id: u32,
    /// The process at the other end; 0: one of another PID namespace.
    pub pid: u32,
    /// The other end is this process.
    pub loopback: bool,
    /// What that process does.
    pub life: Life,
    /// Packets can go.
    pub up: bool,
    /// Large messages go in one copy.
    pub single_copy: bool,
    /// The ring to it had no room when something was to be sent last.
    pub full: bool,
}

/// A destruction that waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Destroy {
    /// What is destroyed, for instance `CQ 3`.
    pub object: String,
    /// Events about it that were got and not acknowledged.
    pub unacked: u32,
}

/// The connection manager of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cm {
    /// Why there are no ids: its lock was held all the time.
    pub locked: Option<String>,
    /// Its ids.
    pub ids: Vec<CmId>,
}

/// An id of the connection manager.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CmId {
    /// Its number.
    pub number: u32,
    /// Its port space (`enum rdma_port_space` in rdma_cma.h).
    #[serde(default)]
    pub port_space: u16,
    /// How far it has come: `idle`, `bound`, `address resolved`, `route resolved`, `listen`, `connect`.
    pub phase: String,
    /// The handshake's state (IBTA vol. 1, 12.9), for instance `REQ sent`.
    pub handshake: Option<CmState>,
    /// Our address.
    pub src: Option<String>,
    /// The peer's.
    pub dst: Option<String>,
    /// Our queue pair, once it was named to the peer.
    pub qpn: u32,
    /// The peer's process, once there is a link.
    pub pid: Option<u32>,
    /// Since the request that waits for an answer was sent first.
    pub age_ns: Option<u64>,
    /// Until a message is repeated or the attempt given up.
    pub left_ns: Option<u64>,
    /// Repetitions of the last message that are left.
    pub repeats_left: u8,
    /// The peer has no listener now; it is asked again for so long.
    pub retrying_ns: Option<u64>,
    /// Of a listener: requests that the program has not got yet may be so many more.
    pub backlog_room: Option<u32>,
    /// Of a listener: requests that wait for room in the backlog.
    pub parked: u32,
    /// Events that the program has not got yet, by name.
    pub unread: Vec<String>,
    /// Its event (CONNECT_REQUEST) has been got, and it was neither accepted nor rejected.
    pub undecided: bool,
}

/// States of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // the names are the specification's
pub enum CmState {
    Idle,
    ReqSent,
    ReqRcvd,
    RepSent,
    RepRcvd,
    Established,
    DreqSent,
    DreqRcvd,
    TimeWait,
    SidrSent,
    SidrRcvd,
}
