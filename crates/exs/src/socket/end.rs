//! The part of a connection that moves bytes: its queue pair, its slots, and the protocol between them.

mod begin;
mod last;
mod notice;
mod place;
mod post;
mod row;
mod small;
mod word;
mod write;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rdma::sys::IBV_WC_RECV_RDMA_WITH_IMM;
use rdma::{Access, CmId, Data, Errno, Mr, Qp, QpCap, QpOptions, QpType, RecvWr, SendOp, Status, Wc};

use super::completions::Places;
use super::device::Device;
use super::keys::Keys;
use super::pending::Pending;
use super::queue::{Event, EventKind, Queue, Taker};
use super::{Memory, Options};
use crate::protocol::{
    Buffer, Connection, Done, HEADER, Hello, Kind, Message, NOTICE, NoticePlaces, Op, Outcome, Output, ROW, Remote,
    Reset, TOGETHER, Transferred,
};
pub(super) use begin::Part;
use notice::Notices;
use place::of_status;
use row::Row;
use word::Words;
use write::Waiting;

/// Bits 56-63 of a wr_id: what was posted. Bits 0-31 are the slot, bits 32-39 the requests in front of it that have no
/// completion of their own, bits 40-55 the WRITEs in front of it ([`Words::mark`]).
const RECEIVE: u64 = 1 << 56;
const SEND: u64 = 2 << 56;
const READ: u64 = 3 << 56;
const WRITE: u64 = 4 << 56;
/// A key is taken back.
const TAKE: u64 = 5 << 56;
/// A key is given; it completes only with an error.
const GIVE: u64 = 6 << 56;
/// A SEND with small data that do not go with the request.
const SMALL: u64 = 7 << 56;
const KINDS: u64 = 0xff << 56;

/// Of a WRITE: a later request says that it is completed ([`word`]).
const LATER: u64 = 1 << 40;

/// The slot of a request that has none.
const NO_SLOT: u64 = u32::MAX as u64;
/// A transfer of a stream into a receive, or into a ring that the peer maps, is from this length on a WRITE and a SEND:
/// a device may execute a WRITE without an immediate value at once, which is one copy. A shorter one is a WRITE with
/// immediate: one request.
const LONG: u64 = 64 << 10;

/// The number of an operation that was over with its call.
const AT_ONCE: u64 = u64::MAX;

/// Requests that one output may need: a key is taken back and given, and a message sent.
const FEW: usize = 3;

/// The bytes of a message that go with the request, if the device has room for them: no more than the shortest packet
/// of a device takes (IBTA vol. 1, 9.6.2).
const INLINE: usize = 256;
/// The most bytes of a message with small data that do, where the data may be that long. To copy them once more takes
/// less time than a second entry of the request, and its completion.
const MOST_INLINE: usize = 1024;
/// Receives beyond those that the protocol needs: so many slots may wait to be posted again.
const SPARE: usize = 8;
/// The most requests in a row without a completion of their own; not more than a wr_id can say.
const SILENT: usize = 64;
/// The most pairs in [`End::idle`].
const IDLE: usize = 16;

/// An operation that is not done.
struct Operation {
    queue: Arc<Queue>,
    handle: u64,
    kind: EventKind,
    at: Buffer,
    /// Registered as long as it is in use.
    memory: Arc<Memory>,
    /// The memory was not there when bytes went there.
    lost: bool,
}

/// An event that waits until the peer's key is taken back, or for one in front of it.
struct Leaving {
    queue: Arc<Queue>,
    event: Event,
    waits: bool,
}

/// A queue pair with its memory; [`End::start`] adds the protocol.
pub(super) struct End {
    pub qp: Arc<Qp>,
    /// The most bytes of a message that go with the request itself; 0 if not even a header may.
    inline: usize,
    /// A transfer of a stream of fewer bytes is a WRITE with immediate.
    imm_below: u64,
    /// So is one into a ring that no peer maps, and one to a peer that is not known to be late. By packets it goes no
    /// faster than the peer takes it: a ring that is filled by single copies is never empty, and nothing is offered
    /// then.
    imm_into_ring: bool,
    /// See [`End::ask_for_all`].
    asks: bool,
    slots: Arc<Mr>,
    /// The ring of a stream, with the places for notices behind it if peers map it; of packets, those places.
    ring: Option<Arc<Mr>>,
    /// It counts among the rings that peers map.
    _mapped: Option<Arc<()>>,
    /// Bytes of a receive slot. Send slots, of a header each, are behind the receive slots.
    slot: usize,
    receive_slots: usize,
    /// Receive slots that are to be posted again, not more than the peer can do without.
    spare: Vec<u32>,
    free_sends: Vec<usize>,
    /// Requests in the send queue, and how many it takes.
    posted: usize,
    room: usize,
    /// Those behind the last one that has a completion of its own.
    silent: usize,
    /// From now on each has one: the end waits for all.
    shut: bool,
    protocol: Option<Connection>,
    pending: Pending<Operation>,
    /// The sends of small data that the device has not taken.
    smalls: VecDeque<Op>,
    /// What the peer is to hear of WRITEs.
    words: Words,
    /// WRITEs that wait for each other, and READs that are to be posted.
    writes: Vec<Waiting>,
    reads: Vec<Waiting>,
    notices: Notices,
    /// Messages that are to share the next SEND.
    row: Row,
    peer_has_windows: bool,
    keys: Keys,
    leaving: VecDeque<Leaving>,
    /// Completions that came before the protocol began.
    early: Vec<Wc>,
    /// What receives that are over had, for the next ones. The count of an `Arc` is a locked instruction, which waits
    /// for the stores before it, and so for the cache lines that the device shares with the peer.
    idle: Vec<(Arc<Queue>, Arc<Memory>)>,
    /// Behind the queue pair: its completions have places until it is gone.
    _places: Places,
}

fn errno(why: Reset) -> Errno {
    Errno(match why {
        Reset::Peer => libc::ECONNRESET,
        Reset::Protocol => libc::EPROTO,
        Reset::Memory => libc::EFAULT,
        Reset::Closed => libc::ECANCELED,
        Reset::Stopped => libc::ETIMEDOUT,
    })
}

impl End {
    /// A queue pair in state INIT for a connection of `id`.
    pub fn new(device: &Device, id: &CmId, options: &Options) -> rdma::Result<End> {
        let settings = options.settings();
        let receive_slots = Connection::slots(&settings, options.credits) as usize + SPARE;
        let sends = receive_slots + 8;
        let room = FEW * sends + usize::from(options.reads).max(options.credits.into());
        // One is for [`End::reset`].
        let places = device.completions.places(&device.context, room + 1 + receive_slots)?;
        let cap = QpCap {
            max_send_wr: room as u32 + 1,
            max_recv_wr: receive_slots as u32,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let (send_cq, recv_cq) = (Some(places.cq()), Some(places.cq()));
        let options_of_qp =
            |cap| QpOptions { qp_type: QpType::Rc, send_cq, recv_cq, srq: None, xrcd: None, cap, sq_sig_all: false };
        // A device may have less inline data, or none.
        let make = |inline: usize| {
            let cap = QpCap { max_inline_data: inline as u32, ..cap };
            device.pd.create_qp(&options_of_qp(cap)).map(|qp| (qp, inline))
        };
        let small = (HEADER + settings.small as usize).clamp(INLINE, MOST_INLINE);
        let made = make(small).or_else(|_| make(INLINE)).or_else(|_| make(HEADER));
        let (qp, inline) = made.or_else(|_| make(0))?;
        let stream = settings.kind == Kind::Stream;
        let slot = (HEADER + settings.small as usize).max(ROW);
        let behind = NoticePlaces::new(settings.ring, settings.credits);
        let from = receive_slots * slot + sends * HEADER;
        let slots = device.pd.reg_mr(from + behind.count() as usize * NOTICE, Access::LOCAL_WRITE)?;
        let (ring, mapped) = notice::ring(device, &settings, &behind)?;
        let notices = Notices::new(ring.as_deref().filter(|ring| ring.is_mapped()), behind, from);
        // Packets are READ. WRITE is permitted only with places for notices: on a device without windows, a peer has
        // the keys of whole regions, which permit both (docs/exs.md).
        let writes = if ring.is_some() { Access::REMOTE_WRITE } else { Access::default() };
        id.init_qp(&qp, if stream { writes } else { writes | Access::REMOTE_READ })?;
        let keys = Keys::new(device.windows.then(|| device.pd.clone()));
        let end = End {
            qp,
            inline,
            imm_below: if device.iwarp { 0 } else { LONG },
            imm_into_ring: !device.iwarp,
            asks: device.iwarp,
            slots,
            ring,
            _mapped: mapped,
            slot,
            receive_slots,
            spare: Vec::with_capacity(SPARE),
            free_sends: (0..sends).collect(),
            posted: 0,
            room,
            silent: 0,
            shut: false,
            protocol: None,
            pending: Pending::new(),
            smalls: VecDeque::new(),
            words: Words::default(),
            writes: Vec::with_capacity(TOGETHER),
            reads: Vec::with_capacity(TOGETHER),
            notices,
            row: Row::default(),
            peer_has_windows: false,
            keys,
            leaving: VecDeque::new(),
            early: Vec::new(),
            idle: Vec::with_capacity(IDLE),
            _places: places,
        };
        // Before the connection: a peer of iWARP may send before the reply has been looked at.
        for slot in 0..receive_slots {
            end.post_receive(slot as u32)?;
        }
        Ok(end)
    }

    fn ring(&self) -> Remote {
        self.ring.as_ref().map_or(Remote { addr: 0, rkey: 0 }, |mr| Remote { addr: mr.addr(), rkey: mr.rkey() })
    }

    /// What the peer is told of this end.
    pub fn hello(&self, options: &Options, device: &Device) -> Hello {
        let mapped = self.ring.as_ref().is_some_and(|ring| ring.is_mapped());
        Hello { settings: options.settings(), ring: self.ring(), windows: device.windows, mapped }
    }

    /// Begin the protocol, with what has come.
    pub fn start(&mut self, protocol: Connection) {
        self.peer_has_windows = protocol.peer_has_windows();
        self.imm_into_ring &= !protocol.peer_ring_is_mapped();
        self.protocol = Some(protocol);
        let early = std::mem::take(&mut self.early);
        self.take(&early, None);
    }

    fn post_receive(&self, slot: u32) -> rdma::Result<()> {
        let sges = [self.slots.sge(slot as usize * self.slot, self.slot)];
        self.qp.post_recv(&RecvWr { wr_id: RECEIVE | u64::from(slot), sges: &sges })
    }

    /// See [`Connection::cancel`].
    pub fn cancel(&mut self, op: u64) -> bool {
        let asked = self.protocol.as_mut().is_some_and(|protocol| protocol.cancel(Op(op)));
        self.act();
        asked
    }

    /// See [`Connection::cancel_receives`].
    pub fn cancel_receives(&mut self) {
        if let Some(protocol) = &mut self.protocol {
            protocol.cancel_receives();
        }
        self.act();
    }

    /// Post the slots of consumed messages again.
    fn post_spare(&mut self) {
        while let Some(slot) = self.spare.pop() {
            if self.post_receive(slot).is_err() {
                self.reset(Reset::Peer);
                return;
            }
        }
    }

    /// Send nothing more. ENOTCONN: there is no connection.
    pub fn shutdown(&mut self) -> Result<(), Errno> {
        self.shut = true;
        self.protocol.as_mut().ok_or(Errno(libc::ENOTCONN))?.shutdown();
        self.act();
        Ok(())
    }

    /// True if the connection ended by [`End::reset`].
    pub fn is_dead(&self) -> bool {
        self.protocol.as_ref().is_some_and(|protocol| protocol.dead().is_some())
    }

    /// What could be done now: a receive, a send.
    pub fn ready(&self) -> (bool, bool) {
        self.protocol.as_ref().map_or((false, false), |protocol| (protocol.is_readable(), protocol.is_writable()))
    }

    /// See [`Connection::transferred_by_way`].
    pub fn transferred(&self) -> Transferred {
        self.protocol.as_ref().map_or(Transferred::default(), Connection::transferred_by_way)
    }

    /// True if every operation has its event.
    pub fn is_done(&self) -> bool {
        self.pending.is_empty() && self.leaving.is_empty()
    }

    /// End the connection: the queue pair goes to ERR, then operations end.
    #[cold]
    pub fn reset(&mut self, why: Reset) {
        if matches!(why, Reset::Peer | Reset::Stopped) {
            // These transfers have come, as those have of which a message told.
            let _ = self.take_notices(self.notices.most());
        }
        // The peer's READs fail from here on. A queue pair that is in ERR already, or gone, cannot be read either.
        let _ = self.qp.set_state(rdma::QpState::Err);
        self.keys.drop_all();
        self.words.clear();
        self.row.clear();
        if let Some(protocol) = &mut self.protocol {
            protocol.reset(why);
            self.writes.drain(..).for_each(|_| protocol.write_dropped());
            protocol.transfers_done(self.reads.drain(..).count());
        }
        if self.words.are_due() && self.post(SEND | NO_SLOT, SendOp::Send, Data::Sges(&[])).is_err() {
            // Nothing will say that these are done, and they are: the device is gone.
            self.written_all();
        }
        // No key works any more, and no completion will say so.
        self.leaving.iter_mut().for_each(|leaving| leaving.waits = false);
        self.leave();
        self.act();
    }

    /// A piece of time has passed: see [`Connection::tick`].
    pub fn tick(&mut self, passed: Duration, timeout: Duration) {
        // What has no completion of its own is waited for by no operation.
        let waits = !self.is_done() || self.posted > self.silent;
        let Some(protocol) = &mut self.protocol else { return };
        let waits = waits || protocol.asks_for_all();
        match protocol.tick(passed, timeout, waits) {
            Ok(()) => self.act(),
            Err(why) => self.reset(why),
        }
    }

    /// Take completions in, and do what follows.
    pub fn take(&mut self, wcs: &[Wc], mut taker: Option<&mut Taker<'_>>) {
        for wc in wcs {
            if !self.take_small(wc, taker.as_deref_mut()) {
                self.take_other(wc);
            }
        }
        self.act();
        self.tell_when_written();
    }

    /// As [`End::take`], of one.
    #[inline(always)]
    pub fn take_one(&mut self, wc: &Wc, taker: Option<&mut Taker<'_>>) {
        if self.take_small(wc, taker) {
            // It is no WRITE.
            self.act();
            return;
        }
        self.take_other(wc);
        self.act();
        self.tell_when_written();
    }

    #[inline(never)]
    fn take_other(&mut self, wc: &Wc) {
        if let Err(why) = self.completed(wc) {
            self.reset(why);
        }
    }

    fn completed(&mut self, wc: &Wc) -> Result<(), Reset> {
        let Some(protocol) = &mut self.protocol else {
            self.early.push(*wc);
            return Ok(());
        };
        let (kind, slot) = (wc.wr_id() & KINDS, wc.wr_id() & u64::from(u32::MAX));
        let good = wc.status() == Status::SUCCESS;
        if kind != RECEIVE {
            // After an error those without a completion of their own complete too, and nothing more is posted.
            let count = 1 + (wc.wr_id() >> 32 & 0xff) as usize;
            self.posted = self.posted.saturating_sub(count);
        }
        if matches!(kind, SEND | SMALL | WRITE) && slot != NO_SLOT {
            self.free_sends.push(slot as usize);
        }
        if matches!(kind, SEND | SMALL | READ | WRITE) {
            let own = u16::from(matches!(kind, READ | WRITE) && !good);
            let count = self.words.completed(wc.wr_id()).saturating_sub(own);
            if count > 0 {
                protocol.transfers_done(count.into());
            }
        }
        match kind {
            READ | WRITE => {
                if !good && protocol.dead().is_none() {
                    // Its operation ends with the others, and no transfer of it is under way.
                    self.reset(of_status(wc.status()));
                }
                if let (false, Some(protocol)) = (good, &mut self.protocol) {
                    protocol.transfers_done(1);
                }
                return Ok(());
            }
            SMALL if good => {
                if let Some(op) = self.smalls.pop_front() {
                    protocol.small_done(op);
                }
            }
            TAKE if good => {
                self.keys.taken();
                if let Some(leaving) = self.leaving.iter_mut().find(|leaving| leaving.waits) {
                    leaving.waits = false;
                }
                self.leave();
            }
            RECEIVE if good => {
                if self.notices.are_there() {
                    self.take_notices(self.notices.most())?;
                    self.notices.heard();
                }
                let Some(protocol) = &mut self.protocol else { return Ok(()) };
                if let Some(rkey) = wc.invalidated_rkey() {
                    self.keys.invalidated(rkey);
                }
                let len = wc.byte_len();
                if let (true, Some(imm)) = (wc.opcode() == IBV_WC_RECV_RDMA_WITH_IMM, wc.imm()) {
                    protocol.transferred(imm, len)?;
                    return self.post_receive(slot as u32).map_err(|_| Reset::Peer);
                }
                let mut header = [0; HEADER];
                self.slots.read(slot as usize * self.slot, &mut header);
                if len as usize > HEADER && Message::may_share(&header) {
                    let mut row = [0; ROW];
                    let bytes = row.get_mut(..len as usize).ok_or(Reset::Protocol)?;
                    self.slots.read(slot as usize * self.slot, bytes);
                    protocol.arrived_together(slot as u32, bytes)?;
                    self.post_receive(slot as u32).map_err(|_| Reset::Peer)?;
                } else if !protocol.arrived(slot as u32, &header, len as usize)? {
                    self.post_receive(slot as u32).map_err(|_| Reset::Peer)?;
                }
                if Message::is_data(&header) || self.protocol.as_mut().is_some_and(Connection::was_read) {
                    self.notices.long_came();
                }
            }
            _ => {}
        }
        if good { Ok(()) } else { Err(of_status(wc.status())) }
    }

    /// Post a slot again, soon.
    #[inline]
    fn free(&mut self, slot: u32) {
        self.spare.push(slot);
        if self.spare.len() == SPARE {
            self.post_spare();
        }
    }

    /// Do what the protocol says, as far as the send queue has room.
    #[inline]
    fn act(&mut self) {
        // Mostly it says nothing.
        if self.protocol.as_ref().is_some_and(Connection::has_outputs) {
            self.act_all();
        }
    }

    #[inline(never)]
    fn act_all(&mut self) {
        self.act_each();
        if self.send_row().and_then(|()| self.post_reads()).is_err() {
            self.reset(Reset::Peer);
        }
    }

    fn act_each(&mut self) {
        while let Some(protocol) = &mut self.protocol {
            let held = self.words.len() + self.writes.len() + self.reads.len() + usize::from(!self.row.is_empty());
            let full = self.posted + held + FEW > self.room || self.free_sends.len() <= held;
            if full && protocol.dead().is_none() && (protocol.next_needs_wire() || !self.keys.is_unused()) {
                return;
            }
            let Some(output) = protocol.poll() else { return };
            if self.act_one(output).is_err() {
                self.reset(Reset::Peer);
            }
        }
    }

    /// Hand out events that wait for no key.
    #[inline(never)]
    fn leave(&mut self) {
        while let Some(Leaving { queue, event, .. }) = self.leaving.pop_front_if(|leaving| !leaving.waits) {
            queue.put(event);
        }
    }

    #[inline(never)]
    fn act_one(&mut self, output: Output) -> rdma::Result<()> {
        match output {
            Output::Send(message, buffer) => self.send_message(message, buffer),
            Output::End(Message::Ack { seq }, _) if self.peer_looks() => self.notify_ack(seq),
            Output::End(message, key) => {
                self.send_row()?;
                let op = self.ending(Some(key));
                self.send_header(SEND, op, message, None)
            }
            Output::Read(read) => self.read(read),
            Output::Write(write) => {
                if !self.serves(write.from) {
                    if let Some(protocol) = &mut self.protocol {
                        protocol.write_dropped();
                    }
                    return Ok(());
                }
                let posted = self.write(write);
                if let (Err(_), Some(protocol)) = (posted, &mut self.protocol) {
                    protocol.reset(Reset::Peer);
                    protocol.write_dropped();
                }
                posted
            }
            Output::Copy { slot, to } => {
                let from = slot as usize * self.slot + HEADER;
                if self.takes(to)
                    && let Some(memory) = self.memory(to)
                {
                    self.slots.copy_to(from, &memory.mr, to.offset as usize, to.len as usize);
                }
                Ok(())
            }
            Output::CopyRing { at, to } => {
                if self.takes(to)
                    && let (Some(ring), Some(memory)) = (&self.ring, self.memory(to))
                {
                    ring.copy_to(at as usize, &memory.mr, to.offset as usize, to.len as usize);
                }
                Ok(())
            }
            Output::Free { slot } => {
                self.free(slot);
                Ok(())
            }
            Output::Done(done) => self.done(done),
        }
    }

    /// Tell the program, as soon as the peer has no key of the operation any more.
    fn done(&mut self, Done { op, outcome }: Done) -> rdma::Result<()> {
        let waits = self.keys.take(&self.qp, op.0, TAKE)?;
        if waits {
            self.posted += 1;
        }
        let Some(operation) = self.pending.remove(op.0) else { return Ok(()) };
        let Operation { queue, handle, kind, at, memory, lost } = operation;
        let mut event = Event::new(kind, handle, Ok(0));
        match outcome {
            Outcome::Sent => event.result = Ok(at.len),
            Outcome::Received { len, truncated, end } => {
                (event.result, event.truncated, event.end) = (Ok(len), truncated, end);
            }
            Outcome::Cancelled => event.result = Err(Errno(libc::ECANCELED)),
            Outcome::Failed(why) => event.result = Err(errno(why)),
        }
        if lost || matches!(outcome, Outcome::Failed(Reset::Peer)) && memory.is_gone(at) {
            event.result = Err(Errno(libc::EFAULT));
        }
        if self.leaving.is_empty() && !waits {
            self.tell_program(queue, memory, event, None);
            return Ok(());
        }
        drop(memory);
        self.leaving.push_back(Leaving { queue, event, waits });
        self.leave();
        Ok(())
    }
}
