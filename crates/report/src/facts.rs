//! The facts of a report. Times are in nanoseconds: ages and remaining times, but for [`Report::now_ns`]. Counters
//! count since the object was made and never go back.

use serde::{Deserialize, Serialize};
use verbs::{Opcode, QpState, QpType};

use crate::streams::{Ended, Starting, Stream};

/// The version of the layout.
pub const VERSION: u32 = 1;

/// The report of one process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// The number of the process.
    pub pid: u32,
    /// The name of the process (`comm`).
    pub program: String,
    /// The time of CLOCK_MONOTONIC, which is the same for all processes of the host.
    pub now_ns: u64,
    /// Why there are no facts about the adapter: its lock was held all the time.
    pub locked: Option<String>,
    /// The deliberate faults, as they were specified.
    pub faults: Option<String>,
    /// The lines on standard error about what keeps the process from peers.
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
    /// True if the program polls and moves its own data; else the NIC thread does.
    pub polled: bool,
    /// The number of open contexts.
    pub contexts: u32,
    /// The number of protection domains.
    pub pds: u32,
    /// The number of memory regions.
    pub mrs: u32,
    /// The bytes in them; an implicit or a null region counts as nothing.
    pub mr_bytes: u64,
    /// The number of memory windows.
    pub mws: u32,
    /// The number of address handles.
    pub ahs: u32,
    /// The number of XRC domains.
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
    /// The paths to other processes, and to this one.
    pub links: Vec<Link>,
    /// The asynchronous events that the program has not got yet.
    pub unread_events: Vec<String>,
    /// The objects whose destruction waits until events are acknowledged.
    pub destroys: Vec<Destroy>,
    /// The number of packets dropped because they came from another process than the connection's peer.
    pub strangers: u64,
    /// The TCP connections of softiw0.
    #[serde(default)]
    pub streams: Vec<Stream>,
    /// Those that an error has ended, the last ones.
    #[serde(default)]
    pub ended: Vec<Ended>,
    /// The names of the process's devices.
    #[serde(default)]
    pub devices: Vec<String>,
    /// Which of the objects are softiw0's; all others are softrnic0's.
    #[serde(default)]
    pub softiw0: Softiw0,
    /// The port.
    pub port: Port,
}

/// The objects of softiw0, by handle or number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Softiw0 {
    /// The number of open contexts.
    pub contexts: u32,
    /// Protection domains.
    pub pds: Vec<u32>,
    /// Memory regions.
    pub mrs: Vec<u32>,
    /// Queue pairs.
    pub qps: Vec<u32>,
    /// Completion queues.
    pub cqs: Vec<u32>,
    /// Shared receive queues.
    pub srqs: Vec<u32>,
}

/// A protection domain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pd {
    /// Its handle (`ibv_pd.handle`).
    pub handle: u32,
    /// The number of objects that belong to it.
    pub users: u32,
}

/// A memory region.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mr {
    /// Its handle (`ibv_mr.handle`).
    pub handle: u32,
    /// The bytes in it; an implicit or a null region counts as nothing.
    pub bytes: u64,
    /// The handle of its protection domain.
    pub pd: u32,
}

/// A queue pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Qp {
    /// Its number.
    pub number: u32,
    /// Its transport service.
    pub qp_type: QpType,
    /// Its state.
    pub state: QpState,
    /// The handle of its protection domain; XRC targets have none.
    #[serde(default)]
    pub pd: Option<u32>,
    /// The handle of the completion queue of its sends.
    pub send_cq: Option<u32>,
    /// The handle of the completion queue of its receives.
    pub recv_cq: Option<u32>,
    /// The handle of its shared receive queue.
    pub srq: Option<u32>,
    /// The other end of its connection.
    pub peer: Option<Peer>,
    /// Its send queue; XRC targets have none.
    pub sq: Option<Sq>,
    /// Its own receive queue.
    pub rq: Option<Rq>,
    /// The events that it waits for.
    pub waits: Waits,
    /// Its counters.
    pub counters: QpCounters,
}

/// The other end of a connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// The destination GID.
    pub gid: String,
    /// The destination queue pair.
    pub qpn: u32,
    /// The link, if there is one.
    pub link: Option<u32>,
    /// Without a link: whether a process of this host has claimed the number's block. `None`: not looked up.
    pub owned: Option<bool>,
    /// True if the peer has answered on this connection.
    pub answered: bool,
}

/// A send queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sq {
    /// The number of work requests that it can hold.
    pub depth: u32,
    /// Work requests posted since the queue pair was made.
    pub posted: u64,
    /// The number of places in use: a request keeps its place until a completion of it, or of one behind it, is polled.
    pub held: u32,
    /// The number of these that were posted signaled.
    pub held_signaled: u32,
    /// The number of requests that are being executed.
    pub executing: u32,
    /// The number of requests that have not begun.
    pub waiting: u32,
    /// The oldest request that is not finished.
    pub head: Option<Head>,
    /// The next sequence number.
    pub next_psn: u32,
    /// The oldest sequence number that is not acknowledged.
    pub unacked_psn: u32,
    /// Requests enabled since the last reset; `None`: the queue is not managed.
    #[serde(default)]
    pub enabled: Option<u64>,
    /// Requests that have begun since the last reset.
    #[serde(default)]
    pub begun: u64,
    /// True if the queue runs in a circle: it is filled once, and its places need not become free.
    #[serde(default)]
    pub cyclic: bool,
}

/// The request at the head of a send queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// The program's number of the request, as posted.
    pub wr_id: u64,
    /// Its operation; `None`: the entry was overwritten with an unknown one.
    pub opcode: Option<Opcode>,
    /// The bytes of the message.
    pub len: u32,
    /// The bytes sent, or (READ) received, since the last attempt began.
    pub moved: u32,
    /// True if it was posted signaled.
    pub signaled: bool,
    /// The time since its execution began; `None`: it has not begun.
    pub age_ns: Option<u64>,
}

/// A receive queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rq {
    /// The number of receives that it can hold.
    pub depth: u32,
    /// The number of receives that wait for a message.
    pub posted: u32,
    /// The number of places in use: a receive keeps its place until its completion is polled.
    pub held: u32,
    /// The number of receives posted since it was made.
    pub total: u64,
    /// The next sequence number that is accepted.
    pub expected_psn: u32,
}

/// The events that a queue pair waits for.
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
    /// For the next request, which waits for READs and atomics: the number outstanding, and `max_rd_atomic`.
    pub reads: Option<(u32, u32)>,
    /// True if the next request waits behind a fence.
    pub fence: bool,
    /// The number of datagrams and messages of UC that wait for a receive.
    pub backlog: u32,
    /// The count that the WAIT at the head of the send queue waits for.
    #[serde(default)]
    pub completions: Option<CountWait>,
}

/// A wait of a send queue for the completions of a completion queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CountWait {
    /// The handle of the completion queue.
    pub cq: u32,
    /// The number of completions that it waits for.
    pub count: u64,
    /// The number of completions that the queue has had.
    pub had: u64,
}

/// A wait for an acknowledgement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AckWait {
    /// The time since the oldest unacknowledged request was sent first.
    pub age_ns: u64,
    /// The timeout; `None`: the wait has no end.
    pub timeout_ns: Option<u64>,
    /// The time until the timer expires.
    pub left_ns: Option<u64>,
    /// The number of retries used, of `retry_cnt`.
    pub retries: u8,
    /// `retry_cnt`.
    pub retry_cnt: u8,
    /// True if the peer has not even taken the packets from the ring.
    pub untaken: bool,
}

/// A wait for a receiver that is not ready.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RnrWait {
    /// The time since its first RNR NAK of this series.
    pub age_ns: u64,
    /// The number of RNR NAKs of this series.
    pub naks: u64,
    /// The number of retries used, of `rnr_retry`.
    pub retries: u8,
    /// `rnr_retry`; 7: for ever.
    pub rnr_retry: u8,
    /// The time until the next attempt; `None`: it is under way.
    pub left_ns: Option<u64>,
}

/// The counters of a queue pair. Those of the port are the sums, with queue pairs that are gone included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names say it
pub struct QpCounters {
    /// Send requests completed with success.
    pub sent: u64,
    /// Receives completed with success.
    pub received: u64,
    // Counters that are incremented together are not neighbours: compilers would make one addition of two, which takes
    // more instructions.
    /// Bytes of the messages of these send requests.
    pub sent_bytes: u64,
    /// Bytes of received messages, and of RDMA that this process executed for its peer.
    pub received_bytes: u64,
    /// RNR NAKs received and sent.
    pub rnr_naks_in: u64,
    pub rnr_naks_out: u64,
    /// Times that the acknowledgement timer expired.
    pub timeouts: u64,
    /// Sequence error NAKs received and sent.
    pub seq_naks_in: u64,
    pub seq_naks_out: u64,
    /// Requests received again.
    pub duplicates: u64,
    /// Send requests that failed by an answer of the peer (access, invalid request, operation).
    pub remote_errors: u64,
    /// Send requests that failed with any status but a flush.
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
    /// The messages of UC and UD that were lost, for any reason.
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
    /// Bytes that peers count as theirs, copied by this process for them.
    pub co_copied_bytes: u64,
    /// The sums of all queue pairs.
    pub qps: QpCounters,
}

/// The completions for which a completion queue asks for an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Armed {
    /// No completion.
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
    /// The number of completions that it can hold.
    pub depth: u32,
    /// The number of completions that wait to be polled.
    pub inside: u32,
    /// The number of completions that it ever got.
    pub pushed: u64,
    /// The number of looks for a completion: each call of `ibv_poll_cq` makes one at least.
    pub polls: u64,
    /// The completions for which it asks for an event.
    pub armed: Armed,
    /// True if a completion was lost.
    pub overrun: bool,
    /// True if a completion for which there is no room takes the place of the oldest one.
    #[serde(default)]
    pub overwrites: bool,
    /// True if send queues may wait for its count of completions.
    #[serde(default)]
    pub counts: bool,
    /// The time until which an event is held back for moderation.
    pub moderated_ns: Option<u64>,
    /// Its completion channel.
    pub channel: Option<Channel>,
    /// The number of events that the program has got and not acknowledged.
    pub unacked: u32,
    /// The number of queue pairs and shared receive queues that complete here.
    pub users: u32,
}

/// A completion channel, as one queue sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Channel {
    /// Its descriptor.
    pub fd: i32,
    /// The number of events of the queue that the program has not got yet.
    pub unread: u32,
    /// The number of threads in `ibv_get_cq_event`.
    pub waiters: u32,
}

/// A shared receive queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Srq {
    /// Its handle (`ibv_srq.handle`).
    pub handle: u32,
    /// Its number, for XRC.
    pub number: u32,
    /// The number of receives that it can hold.
    pub depth: u32,
    /// The number of receives that wait for a message.
    pub posted: u32,
    /// The number of receives posted since it was made.
    pub total: u64,
    /// The limit at which an event is due; 0: none.
    pub limit: u32,
    /// The number of queue pairs that take from it.
    pub users: u32,
}

/// The state of a process, as the kernel shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    /// It runs, or waits for something.
    #[default]
    Runs,
    /// It is stopped (SIGSTOP, a debugger).
    Stopped,
    /// It is dead.
    Gone,
}

/// A path to a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// The number that [`Peer::link`] refers to.
    pub id: u32,
    /// The process at the other end; 0: one of another PID namespace.
    pub pid: u32,
    /// True if the other end is this process.
    pub loopback: bool,
    /// The state of that process.
    pub life: Life,
    /// True if packets can be sent.
    pub up: bool,
    /// True if large messages are sent by a single copy.
    pub single_copy: bool,
    /// True if the ring had no room at the last attempt to send.
    pub full: bool,
}

/// A destruction that waits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Destroy {
    /// The object that is destroyed, for instance `CQ 3`.
    pub object: String,
    /// The number of events about it that the program has got and not acknowledged.
    pub unacked: u32,
}

/// The connection manager of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cm {
    /// Why there are no ids: its lock was held all the time.
    pub locked: Option<String>,
    /// Its ids.
    pub ids: Vec<CmId>,
    /// The TCP connections of softiw0 that are being made.
    #[serde(default)]
    pub starting: Starting,
}

/// An id of the connection manager.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CmId {
    /// Its number.
    pub number: u32,
    /// True if it is on softiw0.
    #[serde(default)]
    pub iwarp: bool,
    /// Its port space (`enum rdma_port_space` in rdma_cma.h).
    #[serde(default)]
    pub port_space: u16,
    /// Its progress: `idle`, `bound`, `address resolved`, `route resolved`, `listen`, `connect`.
    pub phase: String,
    /// The handshake's state (IBTA vol. 1, 12.9), for instance `REQ sent`.
    pub handshake: Option<CmState>,
    /// Its own address.
    pub src: Option<String>,
    /// The peer's address.
    pub dst: Option<String>,
    /// The number of its own queue pair, once it was named to the peer.
    pub qpn: u32,
    /// The peer's process, once there is a link.
    pub pid: Option<u32>,
    /// The time since the request that waits for an answer was sent first.
    pub age_ns: Option<u64>,
    /// The time until a message is repeated or the attempt given up.
    pub left_ns: Option<u64>,
    /// The number of repetitions of the last message that are left.
    pub repeats_left: u8,
    /// The time for which the peer, which has no listener now, is asked again.
    pub retrying_ns: Option<u64>,
    /// Of a listener: how many more requests may wait until the program gets them.
    pub backlog_room: Option<u32>,
    /// Of a listener: the number of requests that wait for room in the backlog.
    pub parked: u32,
    /// Events that the program has not got yet, by name.
    pub unread: Vec<String>,
    /// True if the program has got its event (CONNECT_REQUEST), and has neither accepted nor rejected it.
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
