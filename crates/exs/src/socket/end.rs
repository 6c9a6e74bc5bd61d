//! The part of a connection that moves bytes: its queue pair, its slots, and the protocol between them.

use std::collections::HashMap;
use std::sync::Arc;

use rdma::{Access, CmId, Cq, Data, Errno, Mr, Qp, QpCap, QpOptions, QpType, RecvWr, SendFlags, SendOp, SendWr, Sge};
use rdma::{Status, Wc};

use super::queue::{Event, EventKind, Queue};
use super::shared::Device;
use super::{Memory, Options};
use crate::protocol::{Buffer, Connection, Done, HEADER, Op, Outcome, Output, Refused, Remote, Reset};

/// The upper half of a wr_id: what was posted. The lower half is the slot.
const RECEIVE: u64 = 1 << 32;
const SEND: u64 = 2 << 32;
const READ: u64 = 3 << 32;

/// An operation that is not done.
struct Pending {
    queue: Arc<Queue>,
    handle: u64,
    kind: EventKind,
    len: u64,
    /// Registered as long as it is in use.
    memory: Arc<Memory>,
}

/// A queue pair with its memory; [`End::start`] adds the protocol.
pub(super) struct End {
    pub qp: Arc<Qp>,
    cq: Arc<Cq>,
    slots: Arc<Mr>,
    /// Bytes of a receive slot. Send slots, of a header each, are behind the receive slots.
    slot: usize,
    receive_slots: usize,
    free_sends: Vec<usize>,
    /// Requests in the send queue, and how many it takes.
    posted: usize,
    room: usize,
    protocol: Option<Connection>,
    pending: HashMap<u64, Pending>,
    next: u64,
}

fn errno(why: Reset) -> Errno {
    Errno(match why {
        Reset::Peer => libc::ECONNRESET,
        Reset::Protocol => libc::EPROTO,
        Reset::Memory => libc::EFAULT,
        Reset::Closed => libc::ECANCELED,
    })
}

fn refused(why: Refused) -> Errno {
    Errno(match why {
        Refused::Full => libc::EAGAIN,
        Refused::Shut => libc::EPIPE,
        Refused::Gone => libc::ECONNRESET,
        Refused::Empty | Refused::Twice => libc::EINVAL,
        Refused::Long => libc::EMSGSIZE,
    })
}

impl End {
    /// A queue pair in state INIT for a connection of `id`.
    pub fn new(device: &Device, id: &CmId, options: &Options, cookie: u64) -> rdma::Result<End> {
        let receive_slots = Connection::slots(&options.settings(), options.credits) as usize;
        let sends = receive_slots + 8;
        let room = sends + usize::from(options.reads);
        let entries = (room + receive_slots) as u32;
        let cq = device.context.create_cq(entries, Some(&device.completions), cookie)?;
        let cap = QpCap {
            max_send_wr: room as u32,
            max_recv_wr: receive_slots as u32,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let (send_cq, recv_cq) = (Some(&cq), Some(&cq));
        let options_of_qp =
            QpOptions { qp_type: QpType::Rc, send_cq, recv_cq, srq: None, xrcd: None, cap, sq_sig_all: true };
        let qp = device.pd.create_qp(&options_of_qp)?;
        id.init_qp(&qp, Access::REMOTE_READ)?;
        let slot = HEADER + options.small as usize;
        let slots = device.pd.reg_mr(receive_slots * slot + sends * HEADER, Access::LOCAL_WRITE)?;
        let free_sends = (0..sends).collect();
        let (pending, next, posted) = (HashMap::new(), 1, 0);
        Ok(End { qp, cq, slots, slot, receive_slots, free_sends, posted, room, protocol: None, pending, next })
    }

    /// Begin the protocol: receives are posted, and completions make events from now on.
    pub fn start(&mut self, protocol: Connection) -> rdma::Result<()> {
        for slot in 0..self.receive_slots {
            self.post_receive(slot as u32)?;
        }
        self.protocol = Some(protocol);
        self.cq.arm(false)
    }

    /// Ask for an event with the next completion.
    pub fn arm(&self) {
        // A device that is gone: the connection's own end comes by rdma_cm.
        let _ = self.cq.arm(false);
    }

    fn post_receive(&self, slot: u32) -> rdma::Result<()> {
        let sges = [self.slots.sge(slot as usize * self.slot, self.slot)];
        self.qp.post_recv(&RecvWr { wr_id: RECEIVE | u64::from(slot), sges: &sges })
    }

    /// Begin an operation on a part of a memory.
    pub fn begin(
        &mut self,
        kind: EventKind,
        memory: &Arc<Memory>,
        buffer: Part,
        to: (&Arc<Queue>, u64),
    ) -> Result<u64, Errno> {
        let protocol = self.protocol.as_mut().ok_or(Errno(libc::ENOTCONN))?;
        let op = self.next;
        let at = Buffer { region: op, offset: buffer.offset as u64, len: buffer.len as u64 };
        let begun = match kind {
            EventKind::Send => {
                let addr = memory.mr.addr() + at.offset;
                protocol.send(Op(op), at, Remote { addr, rkey: memory.mr.rkey() })
            }
            _ => protocol.receive(Op(op), at, buffer.wait_all),
        };
        begun.map_err(refused)?;
        self.next += 1;
        let (queue, handle) = (to.0.clone(), to.1);
        self.pending.insert(op, Pending { queue, handle, kind, len: at.len, memory: memory.clone() });
        self.act();
        Ok(op)
    }

    /// See [`Connection::cancel`].
    pub fn cancel(&mut self, op: u64) -> bool {
        let asked = self.protocol.as_mut().is_some_and(|protocol| protocol.cancel(Op(op)));
        self.act();
        asked
    }

    /// Send nothing more. ENOTCONN: there is no connection.
    pub fn shutdown(&mut self) -> Result<(), Errno> {
        self.protocol.as_mut().ok_or(Errno(libc::ENOTCONN))?.shutdown();
        self.act();
        Ok(())
    }

    /// True if a send of this end is pending.
    pub fn has_sends(&self) -> bool {
        self.pending.values().any(|pending| pending.kind == EventKind::Send)
    }

    /// True if all that this end has sent is at the peer, or the connection is gone.
    pub fn is_quiet(&self) -> bool {
        let flushed = |protocol: &Connection| protocol.dead().is_some() || protocol.is_flushed() && self.posted == 0;
        self.protocol.as_ref().is_none_or(flushed)
    }

    /// True if the connection ended by [`End::reset`].
    pub fn is_dead(&self) -> bool {
        self.protocol.as_ref().is_some_and(|protocol| protocol.dead().is_some())
    }

    /// What could be done now: a receive, a send.
    pub fn ready(&self) -> (bool, bool) {
        self.protocol.as_ref().map_or((false, false), |protocol| (protocol.is_readable(), protocol.is_writable()))
    }

    /// True if no operation is pending.
    pub fn is_done(&self) -> bool {
        self.pending.is_empty()
    }

    /// End the connection: the queue pair goes to ERR, then operations end.
    pub fn reset(&mut self, why: Reset) {
        // The peer's READs fail from here on. A queue pair that is in ERR already, or gone, cannot be read either.
        let _ = self.qp.set_state(rdma::QpState::Err);
        if let Some(protocol) = &mut self.protocol {
            protocol.reset(why);
        }
        self.act();
    }

    /// Take completions in, and do what follows; true if there was one.
    pub fn progress(&mut self) -> bool {
        if self.protocol.is_none() {
            return false;
        }
        let mut wcs = [Wc::default(); 16];
        let mut any = false;
        loop {
            let Ok(count) = self.cq.poll(&mut wcs) else {
                self.reset(Reset::Peer);
                return any;
            };
            for wc in &wcs[..count] {
                if let Err(why) = self.completed(wc) {
                    self.reset(why);
                }
            }
            self.act();
            any |= count > 0;
            if count < wcs.len() {
                return any;
            }
        }
    }

    fn completed(&mut self, wc: &Wc) -> Result<(), Reset> {
        let Some(protocol) = &mut self.protocol else { return Ok(()) };
        let slot = wc.wr_id() & u64::from(u32::MAX);
        let good = wc.status() == Status::SUCCESS;
        match wc.wr_id() & !u64::from(u32::MAX) {
            READ => {
                self.posted -= 1;
                if !good && protocol.dead().is_none() {
                    // Its receive ends with the others, and no READ of it is under way.
                    self.reset(of_status(wc.status()));
                }
                if let Some(protocol) = &mut self.protocol {
                    protocol.read_done();
                }
                return Ok(());
            }
            SEND => {
                self.posted -= 1;
                self.free_sends.push(slot as usize);
            }
            _ if good => {
                let len = wc.byte_len() as usize;
                let mut header = [0; HEADER];
                self.slots.read(slot as usize * self.slot, &mut header);
                if !protocol.arrived(slot as u32, &header, len)? {
                    self.post_receive(slot as u32).map_err(|_| Reset::Peer)?;
                }
            }
            _ => {}
        }
        if good { Ok(()) } else { Err(of_status(wc.status())) }
    }

    /// Do what the protocol says, as far as the send queue has room.
    fn act(&mut self) {
        while let Some(protocol) = &mut self.protocol {
            let full = self.posted >= self.room || self.free_sends.is_empty();
            if full && protocol.next_needs_wire() {
                return;
            }
            let Some(output) = protocol.poll() else { return };
            if self.act_one(output).is_err() {
                self.reset(Reset::Peer);
            }
        }
    }

    fn memory(&self, buffer: Buffer) -> Option<&Arc<Memory>> {
        self.pending.get(&buffer.region).map(|pending| &pending.memory)
    }

    fn sge(&self, buffer: Buffer) -> Option<Sge> {
        Some(self.memory(buffer)?.mr.sge(buffer.offset as usize, buffer.len as usize))
    }

    fn act_one(&mut self, output: Output) -> rdma::Result<()> {
        match output {
            Output::Send(message, data) => {
                let Some(slot) = self.free_sends.pop() else { return Ok(()) };
                let at = self.receive_slots * self.slot + slot * HEADER;
                self.slots.write(at, &message.emit());
                let header = self.slots.sge(at, HEADER);
                let data = data.filter(|data| data.len > 0).and_then(|data| self.sge(data));
                let sges = [header, data.unwrap_or(header)];
                let sges = &sges[..1 + usize::from(data.is_some())];
                self.posted += 1;
                let sent = self.post(SEND | slot as u64, SendOp::Send, sges);
                if sent.is_err() {
                    self.free_sends.push(slot);
                }
                sent
            }
            Output::Read(read) => {
                let Some(sge) = self.sge(read.to) else { return Ok(()) };
                self.posted += 1;
                let posted = self.post(READ, SendOp::Read { addr: read.from.addr, rkey: read.from.rkey }, &[sge]);
                if let (Err(_), Some(protocol)) = (posted, &mut self.protocol) {
                    // It will not complete. Those behind it have not been posted.
                    protocol.reset(Reset::Peer);
                    protocol.read_done();
                }
                posted
            }
            Output::Copy { slot, skip, to } => {
                let from = slot as usize * self.slot + HEADER + skip as usize;
                if let Some(memory) = self.memory(to) {
                    copy(&self.slots, from, &memory.mr, to.offset as usize, to.len as usize);
                }
                Ok(())
            }
            Output::Free { slot } => self.post_receive(slot),
            Output::Done(done) => {
                self.done(done);
                Ok(())
            }
        }
    }

    fn post(&mut self, wr_id: u64, op: SendOp<'_>, sges: &[Sge]) -> rdma::Result<()> {
        let wr = SendWr { flags: SendFlags::SIGNALED, ..SendWr::new(wr_id, op, Data::Sges(sges)) };
        let posted = self.qp.post_send(&wr);
        if posted.is_err() {
            self.posted -= 1;
        }
        posted
    }

    fn done(&mut self, Done { op, outcome }: Done) {
        let Some(pending) = self.pending.remove(&op.0) else { return };
        let mut event = Event::new(pending.kind, pending.handle, Ok(0));
        match outcome {
            Outcome::Sent => event.result = Ok(pending.len),
            Outcome::Received { len, truncated, end } => {
                (event.result, event.truncated, event.end) = (Ok(len), truncated, end);
            }
            Outcome::Cancelled => event.result = Err(Errno(libc::ECANCELED)),
            Outcome::Failed(why) => event.result = Err(errno(why)),
        }
        pending.queue.put(event);
    }
}

/// A part of a memory, and whether a receive waits for all of it.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub offset: usize,
    pub len: usize,
    pub wait_all: bool,
}

fn of_status(status: Status) -> Reset {
    if status == Status::LOCAL_PROTECTION { Reset::Memory } else { Reset::Peer }
}

fn copy(from: &Mr, mut at: usize, to: &Mr, mut place: usize, len: usize) {
    let mut bytes = [0; 4096];
    let mut left = len;
    while left > 0 {
        let part = left.min(bytes.len());
        from.read(at, &mut bytes[..part]);
        to.write(place, &bytes[..part]);
        (at, place, left) = (at + part, place + part, left - part);
    }
}
