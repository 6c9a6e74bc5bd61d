//! One end of the connections, and the messages between the two ends.

use std::cell::Cell;
use std::sync::Arc;

use limits::Place;
use rdma::{
    Access, Ah, AhAttr, CompChannel, Cq, Data, Gid, Mr, Qp, QpCap, QpOptions, QpType, RecvWr, SendFlags, SendOp, SendWr,
};
use serde::{Deserialize, Serialize};

use super::case::{Case, Transport, Waiting};
use super::wait::{await_event, has_event, sleep_for};
use crate::fixture::{DeviceOptions, Endpoint, Fixture, PORT, text};

/// The largest message, in bytes.
pub const LARGEST: usize = 8 << 20;
/// The number of bytes through which walking messages walk.
pub const SPAN: usize = 64 << 20;
/// The bytes of a message that walks.
pub const WALKED: usize = 1 << 20;
/// The bytes of the global route header that the receiver finds in front of a datagram (IBTA vol. 1, 11.4.1.2).
const GRH: usize = 40;

/// The number of requests of a queue.
pub const DEPTH: u32 = 512;
/// The number of receives that the target keeps posted.
pub const RECEIVES: u64 = 256;
/// The numbers of inline bytes to ask for; a device that refuses one is asked for the next.
const INLINE: [u32; 4] = [220, 128, 64, 0];
/// The first sequence number of both sides.
const PSN: u32 = 0x5_0f7;
/// The Q_Key of datagrams.
const QKEY: u32 = 0x1111_1111;

/// The layout of the region: bytes to send from its start on, then the place of the peer's data, then a word.
#[derive(Clone, Copy, Serialize, Deserialize, Debug)]
pub struct Room {
    /// The bytes of each half.
    half: usize,
}

impl Room {
    /// A layout for messages up to `largest`, and for walks if `walking`.
    pub fn new(largest: usize, walking: bool) -> Self {
        let half = if walking { SPAN.max(largest) } else { largest };
        Room { half: (half + GRH).next_multiple_of(4096) }
    }

    /// The place of the data to send.
    pub const SOURCE: usize = 0;

    /// The place of the peer's data.
    pub fn sink(self) -> usize {
        self.half
    }

    /// The place of the word for atomics.
    pub fn word(self) -> usize {
        2 * self.half
    }

    /// The place of a byte that becomes 1 when the initiator has sent everything.
    pub fn over(self) -> usize {
        self.word() + 16
    }

    /// The size in whole pages: only those can be moved to memory that peers map (docs/migrate.md).
    pub fn bytes(self) -> usize {
        (2 * self.half + 64).next_multiple_of(4096)
    }
}

/// The first message to the target's process.
#[derive(Serialize, Deserialize)]
pub struct Hello {
    /// The core that the process is pinned to.
    pub core: Option<usize>,
    /// The layout of its memory.
    pub room: Room,
}

/// The purpose of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// RC, polling.
    Rc,
    /// UC, polling.
    Uc,
    /// UD, polling.
    Ud,
    /// RC, with completion channels.
    Events,
    /// UC, with completion channels.
    UcEvents,
    /// UD, with completion channels.
    UdEvents,
    /// RC, polling; its receives walk.
    Walk,
}

impl Use {
    /// All purposes, in the order in which endpoints are exchanged.
    const ALL: [Use; 7] = [Use::Rc, Use::Uc, Use::Ud, Use::Events, Use::UcEvents, Use::UdEvents, Use::Walk];

    /// The purpose that serves a case; `None` if there is none.
    pub fn of(case: &Case) -> Option<Use> {
        match (case.transport, case.waiting, case.walking) {
            (Transport::Rc, Waiting::Polling, false) => Some(Use::Rc),
            (Transport::Rc, Waiting::Polling, true) => Some(Use::Walk),
            (Transport::Rc, Waiting::Events, false) => Some(Use::Events),
            (Transport::Uc, Waiting::Polling, false) => Some(Use::Uc),
            (Transport::Ud, Waiting::Polling, false) => Some(Use::Ud),
            (Transport::Uc, Waiting::Events, false) => Some(Use::UcEvents),
            (Transport::Ud, Waiting::Events, false) => Some(Use::UdEvents),
            _ => None,
        }
    }

    fn transport(self) -> Transport {
        match self {
            Use::Uc | Use::UcEvents => Transport::Uc,
            Use::Ud | Use::UdEvents => Transport::Ud,
            Use::Rc | Use::Events | Use::Walk => Transport::Rc,
        }
    }

    fn by_events(self) -> bool {
        matches!(self, Use::Events | Use::UcEvents | Use::UdEvents)
    }
}

/// A queue pair and the objects that belong to it.
pub struct Lane {
    /// Its purpose.
    pub purpose: Use,
    /// The queue pair.
    pub qp: Arc<Qp>,
    /// The completion queue of its sends.
    pub sends: Arc<Cq>,
    /// The completion queue of its receives.
    pub receives: Arc<Cq>,
    /// The channels of the events of sends and of receives, if there are any. All lanes with events share these
    /// channels, and the queues.
    channels: Option<[Arc<CompChannel>; 2]>,
    /// The destination of datagrams.
    to: Option<(Arc<Ah>, u32)>,
    /// The number of bytes up to which messages are sent inline.
    inline: usize,
    /// The endpoint of the other side.
    pub peer: Endpoint,
    /// The number of receives that are posted.
    pub ready: Cell<u64>,
    /// The number of receives that were ever posted.
    filled: Cell<u64>,
}

impl Lane {
    /// Sleep until `wanted` sends are done. Their queue is armed; with `last` it need not be armed any more.
    pub fn sleep_for_sends(&self, last: bool, done: u64, wanted: u64) -> Result<u64, String> {
        let [channel, _] = self.channels.as_ref().ok_or("no completion channel")?;
        // Messages that are lost have been sent, too.
        sleep_for(channel, &self.sends, false, last, done, wanted)
    }

    /// Sleep until `wanted` receives are done; see [`Lane::sleep_for_sends`].
    pub fn sleep_for_receives(&self, last: bool, done: u64, wanted: u64) -> Result<u64, String> {
        let [_, channel] = self.channels.as_ref().ok_or("no completion channel")?;
        let loses = self.purpose.transport() != Transport::Rc;
        sleep_for(channel, &self.receives, loses, last, done, wanted)
    }

    /// Take an event of receives that has come already.
    pub fn take_event(&self) -> Result<(), String> {
        let [_, channel] = self.channels.as_ref().ok_or("no completion channel")?;
        if has_event(channel)? { channel.event().map(|_| ()).map_err(text) } else { Ok(()) }
    }

    /// Sleep until the next event of receives, for which their queue is armed.
    pub fn next_event(&self) -> Result<(), String> {
        let [_, channel] = self.channels.as_ref().ok_or("no completion channel")?;
        await_event(channel)?;
        channel.event().map(|_| ()).map_err(text)
    }
}

/// One end.
pub struct End {
    /// The device that it stands on.
    pub fixture: Fixture,
    /// Its memory.
    pub mr: Arc<Mr>,
    /// The layout of its memory.
    pub room: Room,
    /// True if the device has atomics.
    pub atomics: bool,
    /// The connections that have nothing to do.
    idle: Vec<Arc<Qp>>,
    cqs: [Arc<Cq>; 2],
    lanes: Vec<Lane>,
}

/// A lane that is not connected yet.
struct Loose {
    purpose: Use,
    qp: Arc<Qp>,
    cqs: [Arc<Cq>; 2],
    channels: Option<[Arc<CompChannel>; 2]>,
    inline: usize,
}

impl End {
    /// Open the device, and connect with the other side, which does so at the same time. `talk` sends this side's
    /// endpoints and receives the other's. The region lies over the bytes of `memory`, which are at least
    /// [`Room::bytes`], or over its own.
    pub fn open(
        options: &DeviceOptions,
        room: Room,
        memory: Option<&Mr>,
        talk: impl FnOnce(Vec<Endpoint>) -> Result<Vec<Endpoint>, String>,
    ) -> Result<Self, String> {
        let fixture = options.open()?;
        let atomics = fixture.context.query_device().map_err(text)?.atomic_cap != 0;
        let mut access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        if atomics {
            access |= Access::REMOTE_ATOMIC;
        }
        let mr = match memory {
            Some(memory) => fixture.pd.reg_mr_again(memory, access),
            None => fixture.pd.reg_mr(room.bytes(), access),
        }
        .map_err(text)?;
        let cq = |channel: Option<&Arc<CompChannel>>| fixture.context.create_cq(2 * DEPTH, channel, 0).map_err(text);
        let cqs = [cq(None)?, cq(None)?];
        let channel = || fixture.context.create_comp_channel().map_err(text);
        let channels = [channel()?, channel()?];
        let event_cqs = [cq(Some(&channels[0]))?, cq(Some(&channels[1]))?];
        let mut loose = Vec::new();
        for purpose in Use::ALL {
            let (cqs, channels) = match purpose.by_events() {
                true => (event_cqs.clone(), Some(channels.clone())),
                false => (cqs.clone(), None),
            };
            let (qp, inline) = queue_pair(&fixture, purpose.transport().qp_type(), &cqs, DEPTH)?;
            let access = if purpose.transport() == Transport::Rc {
                access
            } else {
                access - Access::REMOTE_ATOMIC - Access::REMOTE_READ
            };
            qp.init(purpose.transport().qp_type(), PORT, access, QKEY).map_err(text)?;
            loose.push(Loose { purpose, qp, cqs, channels, inline });
        }
        let mut end = End { fixture, mr, room, atomics, idle: Vec::new(), cqs, lanes: Vec::new() };
        let peers = talk(loose.iter().map(|lane| end.endpoint(&lane.qp)).collect())?;
        if peers.len() != loose.len() {
            return Err(format!("the other process has {} queue pairs, not {}", peers.len(), loose.len()));
        }
        for (lane, peer) in loose.into_iter().zip(peers) {
            let lane = end.join(lane, peer).map_err(|error| format!("cannot connect: {error}"))?;
            end.lanes.push(lane);
        }
        Ok(end)
    }

    fn join(&self, lane: Loose, peer: Endpoint) -> Result<Lane, String> {
        let Loose { purpose, qp, cqs: [sends, receives], channels, inline } = lane;
        let mut to = None;
        if purpose.transport() == Transport::Ud {
            qp.activate_ud(PSN).map_err(text)?;
            let dgid = Gid(peer.gid);
            let attr = AhAttr {
                dgid,
                dlid: peer.lid,
                sgid_index: self.fixture.gid_index,
                hop_limit: 64,
                is_global: dgid != Gid::ZERO,
                port_num: PORT,
                ..AhAttr::default()
            };
            to = Some((self.fixture.pd.create_ah(&attr).map_err(text)?, peer.qpn));
        } else {
            qp.connect(purpose.transport().qp_type(), &self.fixture.connect(PSN, &peer)).map_err(text)?;
        }
        let (ready, filled) = (Cell::new(0), Cell::new(0));
        Ok(Lane { purpose, qp, sends, receives, channels, to, inline, peer, ready, filled })
    }

    fn endpoint(&self, qp: &Qp) -> Endpoint {
        Endpoint {
            qpn: qp.number(),
            sender_qpn: qp.number(),
            gid: self.fixture.gid.0,
            lid: self.fixture.lid,
            psn: PSN,
            addr: self.mr.addr(),
            rkey: self.mr.rkey(),
            srqn: 0,
        }
    }

    /// The lane for a case.
    pub fn lane(&self, case: &Case) -> Result<&Lane, String> {
        let purpose = Use::of(case).ok_or_else(|| format!("{case}: this is not measured"))?;
        self.lanes.iter().find(|lane| lane.purpose == purpose).ok_or_else(|| "no such queue pair".into())
    }

    /// The place of the messages, and the place to which they go in the other process.
    pub fn places(&self) -> Result<(Place, Place), String> {
        let lane = self.lanes.first().ok_or("no queue pair")?;
        let len = self.room.half;
        let ours = Place { addr: self.mr.addr() + Room::SOURCE as u64, len };
        Ok((ours, Place { addr: lane.peer.addr + self.room.sink() as u64, len }))
    }

    /// The largest message of a transport, in bytes.
    pub fn largest(&self, transport: Transport) -> usize {
        match transport {
            Transport::Ud => 128 << self.fixture.mtu,
            _ => LARGEST,
        }
    }

    /// The number of idle queue pairs.
    pub fn idle_count(&self) -> usize {
        self.idle.len()
    }

    /// Make or destroy queue pairs until `count` are idle, on the completion queues that are polled. The result is the
    /// new ones.
    pub fn make_idle(&mut self, count: usize) -> Result<Vec<Endpoint>, String> {
        self.idle.truncate(count);
        let first = self.idle.len();
        while self.idle.len() < count {
            let (qp, _) = queue_pair(&self.fixture, QpType::Rc, &self.cqs, 16)?;
            qp.init(QpType::Rc, PORT, Access::REMOTE_WRITE | Access::LOCAL_WRITE, 0).map_err(text)?;
            self.idle.push(qp);
        }
        Ok(self.idle[first..].iter().map(|qp| self.endpoint(qp)).collect())
    }

    /// Connect the newest idle queue pairs.
    pub fn connect_idle(&self, peers: &[Endpoint]) -> Result<(), String> {
        let first = self.idle.len().checked_sub(peers.len()).ok_or("more queue pairs than there are")?;
        for (qp, peer) in self.idle[first..].iter().zip(peers) {
            qp.connect(QpType::Rc, &self.fixture.connect(PSN, peer)).map_err(text)?;
        }
        Ok(())
    }

    /// Post receives until `wanted` are there. A receive that no message has taken stays for the next case, so all of a
    /// lane are of one size: those that walk of [`WALKED`] bytes, the others as large as there is room.
    #[inline]
    pub fn fill(&self, lane: &Lane, wanted: u64) -> Result<(), String> {
        while lane.ready.get() < wanted {
            let (offset, size) = match lane.purpose {
                Use::Walk => (walk(lane.filled.get()), WALKED),
                _ => (0, self.room.half),
            };
            let sges = [self.mr.sge(self.room.sink() + offset, size)];
            lane.qp.post_recv(&RecvWr { wr_id: 1, sges: &sges }).map_err(text)?;
            lane.filled.set(lane.filled.get() + 1);
            lane.ready.set(lane.ready.get() + 1);
        }
        Ok(())
    }

    /// Post a request with `size` bytes of memory at `offset`; `stands_for` is the number of requests that its
    /// completion is for, 0 for none.
    #[inline]
    pub fn post(&self, lane: &Lane, op: SendOp<'_>, offset: usize, size: usize, stands_for: u32) -> Result<(), String> {
        let flags = if stands_for > 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
        let to = lane.to.as_ref().map(|(ah, qpn)| (&**ah, *qpn, QKEY));
        let takes_data = matches!(op, SendOp::Read { .. } | SendOp::FetchAdd { .. } | SendOp::CompareSwap { .. });
        let inline = |data: &[u8]| {
            let pieces = [data];
            let wr = SendWr { flags, to, ..SendWr::new(stands_for.into(), op, Data::Inline(&pieces)) };
            lane.qp.post_send(&wr).map_err(text)
        };
        if !takes_data && size <= lane.inline {
            // A path of its own for small messages, so that a figure of some hundred nanoseconds is not that of
            // clearing memory for more.
            if size == 8 {
                let mut data = [0u8; 8];
                self.mr.read(offset, &mut data);
                return inline(&data);
            }
            let mut data = [0u8; INLINE[0] as usize];
            self.mr.read(offset, &mut data[..size]);
            return inline(&data[..size]);
        }
        let sges = [self.mr.sge(offset, size)];
        let wr = SendWr { flags, to, ..SendWr::new(stands_for.into(), op, Data::Sges(&sges)) };
        lane.qp.post_send(&wr).map_err(text)
    }

    /// Both completion queues that are polled.
    pub fn polled(&self) -> &[Arc<Cq>; 2] {
        &self.cqs
    }
}

fn queue_pair(fixture: &Fixture, qp_type: QpType, cqs: &[Arc<Cq>; 2], depth: u32) -> Result<(Arc<Qp>, usize), String> {
    let mut made = Err(String::new());
    for max_inline_data in INLINE {
        let cap = fixture.cap(QpCap {
            max_send_wr: depth,
            max_recv_wr: depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data,
        })?;
        let options = QpOptions {
            qp_type,
            send_cq: Some(&cqs[0]),
            recv_cq: Some(&cqs[1]),
            srq: None,
            xrcd: None,
            cap,
            sq_sig_all: false,
        };
        made = fixture.pd.create_qp(&options).map(|qp| (qp, max_inline_data as usize)).map_err(text);
        if made.is_ok() {
            break;
        }
    }
    made
}

/// The place where the `turn`th of the messages that walk begins.
#[inline]
pub fn walk(turn: u64) -> usize {
    (turn % (SPAN / WALKED) as u64) as usize * WALKED
}
