//! An end of a connection.
//!
//! The surroundings call [`Connection::send`], [`Connection::receive`], [`Connection::cancel`] and
//! [`Connection::shutdown`] for the program, [`Connection::arrived`], [`Connection::read_done`] and
//! [`Connection::reset`] for the wire, and do what [`Connection::poll`] says, in that order.
//!
//! Room for messages. The peer has one receive posted for everything that this end may send, so the wire never has to
//! wait for one: as many advertisements as the peer gives credits, an ACK for each advertisement that the peer has
//! outstanding, one WITHDRAW, one WITHDRAWN, one FIN ([`Connection::slots`]). The slot of SMALL stays in use until its
//! data are consumed; every other slot is posted again before anything else is done.

use std::collections::VecDeque;

use super::table::{Buffer, Done, Op, Outcome, Refused, Remote, Reset};
use super::wire::{HEADER, Kind, MAX_LEN, Message, Settings};

/// An RDMA READ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// The bytes of the peer.
    pub from: Remote,
    /// The place for them.
    pub to: Buffer,
}

/// Something that the surroundings have to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// SEND a message, with the bytes of a buffer behind its header if it is SMALL.
    Send(Message, Option<Buffer>),
    /// READ. [`Connection::read_done`] is called at its completion.
    Read(Read),
    /// Copy the data of the SMALL in a slot, from byte `skip` on.
    Copy {
        /// The slot.
        slot: u32,
        /// Bytes of the message's data in front of those that are copied.
        skip: u64,
        /// The place for them.
        to: Buffer,
    },
    /// Post the slot as a receive again.
    Free {
        /// The slot.
        slot: u32,
    },
    /// Tell the program.
    Done(Done),
}

/// A send of this end. Those with a number are in front of those without.
#[derive(Debug)]
struct Send {
    op: Op,
    buffer: Buffer,
    place: Remote,
    /// Number of its advertisement.
    seq: Option<u32>,
}

/// A receive of this end.
#[derive(Debug)]
struct Receive {
    op: Op,
    buffer: Buffer,
    wait_all: bool,
    /// Bytes that are on their way into the buffer or in it.
    assigned: u64,
    /// Bytes that are in the buffer.
    landed: u64,
    /// Nothing more goes into it.
    closed: bool,
    truncated: bool,
    end: bool,
}

/// An advertisement of the peer.
#[derive(Debug)]
struct Incoming {
    seq: u32,
    len: u64,
    from: Source,
    assigned: u64,
    landed: u64,
    /// All that will be taken has been assigned.
    closed: bool,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Slot(u32),
    Memory(Remote),
}

/// A READ that is not completed.
#[derive(Debug)]
struct Flight {
    seq: u32,
    op: Op,
    len: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fin {
    No,
    /// After the last advertisement.
    Wanted,
    Sent,
}

/// An end of a connection.
#[derive(Debug)]
pub struct Connection {
    ours: Settings,
    theirs: Settings,
    /// READs that may be outstanding.
    reads: usize,
    /// Pending operations of a direction.
    places: usize,
    sends: VecDeque<Send>,
    /// Sends that have a number.
    advertised: usize,
    next_seq: u32,
    /// Advertisements that the program wants back. The first was asked for if `asked`.
    withdrawals: VecDeque<u32>,
    asked: bool,
    fin: Fin,
    receives: VecDeque<Receive>,
    incoming: VecDeque<Incoming>,
    /// Number of the peer's next advertisement.
    expected: u32,
    flights: VecDeque<Flight>,
    peer_fin: bool,
    dead: Option<Reset>,
    outputs: VecDeque<Output>,
}

impl Connection {
    /// An end whose peer has the settings `theirs`. `reads` READs may be outstanding, at least 1, and `places`
    /// operations pending in each direction. `None`: the two kinds differ.
    pub fn new(ours: Settings, theirs: Settings, reads: usize, places: usize) -> Option<Connection> {
        (ours.kind == theirs.kind).then(|| Connection {
            ours,
            theirs,
            reads: reads.max(1),
            places,
            sends: VecDeque::new(),
            advertised: 0,
            next_seq: 0,
            withdrawals: VecDeque::new(),
            asked: false,
            fin: Fin::No,
            receives: VecDeque::new(),
            incoming: VecDeque::new(),
            expected: 0,
            flights: VecDeque::new(),
            peer_fin: false,
            dead: None,
            outputs: VecDeque::new(),
        })
    }

    /// Receives that an end posts before it is connected, and keeps posted: see the module.
    pub fn slots(ours: &Settings, theirs_credits: u16) -> u32 {
        u32::from(ours.credits) + u32::from(theirs_credits) + 3
    }

    /// Bytes up to which a send goes as SMALL.
    pub fn small(&self) -> u64 {
        self.ours.small.min(self.theirs.small).into()
    }

    /// True when no send is pending and FIN, if it was wanted, has been handed out.
    pub fn is_flushed(&self) -> bool {
        self.sends.is_empty() && self.fin != Fin::Wanted
    }

    /// The reason why the connection ended.
    pub fn dead(&self) -> Option<Reset> {
        self.dead
    }

    /// True if a receive would have an end: data that no receive takes are there, or no more will come.
    pub fn is_readable(&self) -> bool {
        self.dead.is_some() || self.peer_fin || self.incoming.iter().any(|incoming| !incoming.closed)
    }

    /// True if a send would be taken.
    pub fn is_writable(&self) -> bool {
        self.dead.is_none() && self.fin == Fin::No && self.sends.len() < self.places
    }

    /// READs that are not completed.
    pub fn reads_in_flight(&self) -> usize {
        self.flights.len()
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// True if the next thing to do goes to the wire; the surroundings may leave it until the send queue has room.
    pub fn next_needs_wire(&self) -> bool {
        matches!(self.outputs.front(), Some(Output::Send(..) | Output::Read(_)))
    }

    fn check(&self, op: Op, len: u64, pending: usize) -> Result<(), Refused> {
        if len > MAX_LEN {
            return Err(Refused::Long);
        }
        if len == 0 && self.ours.kind == Kind::Stream {
            return Err(Refused::Empty);
        }
        if self.sends.iter().any(|send| send.op == op) || self.receives.iter().any(|receive| receive.op == op) {
            return Err(Refused::Twice);
        }
        if pending >= self.places { Err(Refused::Full) } else { Ok(()) }
    }

    /// Begin a send of a buffer, which lies at `place` for the peer. The buffer belongs to the connection until the
    /// operation is done.
    pub fn send(&mut self, op: Op, buffer: Buffer, place: Remote) -> Result<(), Refused> {
        if self.fin != Fin::No {
            return Err(Refused::Shut);
        }
        if self.dead.is_some() {
            return Err(Refused::Gone);
        }
        self.check(op, buffer.len, self.sends.len())?;
        self.sends.push_back(Send { op, buffer, place, seq: None });
        self.advertise();
        Ok(())
    }

    /// Begin a receive into a buffer, which belongs to the connection until the operation is done. `wait_all`
    /// (MSG_WAITALL): a receive of a stream is done when its buffer is full, or at the end of the peer's data.
    pub fn receive(&mut self, op: Op, buffer: Buffer, wait_all: bool) -> Result<(), Refused> {
        let ended = self.peer_fin && self.incoming.is_empty();
        if self.dead.is_some() && !ended {
            return Err(Refused::Gone);
        }
        self.check(op, buffer.len, self.receives.len())?;
        if self.dead.is_some() {
            self.done(op, Outcome::Received { len: 0, truncated: false, end: true });
            return Ok(());
        }
        self.receives.push_back(Receive {
            op,
            buffer,
            wait_all,
            assigned: 0,
            landed: 0,
            closed: false,
            truncated: false,
            end: false,
        });
        self.transfer();
        Ok(())
    }

    /// Ask for an operation's end. True: its event will come, which may be [`Outcome::Cancelled`] or, if the peer has
    /// taken the data, [`Outcome::Sent`]. False: it is too late for a receive, or there is no such operation.
    pub fn cancel(&mut self, op: Op) -> bool {
        if let Some(at) = self.sends.iter().position(|send| send.op == op) {
            match self.sends[at].seq {
                Some(seq) if self.withdrawals.contains(&seq) => {}
                Some(seq) => {
                    self.withdrawals.push_back(seq);
                    self.withdraw();
                }
                None => {
                    self.sends.remove(at);
                    self.done(op, Outcome::Cancelled);
                    self.advertise();
                }
            }
            return true;
        }
        let free = |receive: &Receive| receive.op == op && receive.assigned == 0 && !receive.closed;
        let Some(at) = self.receives.iter().position(free) else { return false };
        self.receives.remove(at);
        self.done(op, Outcome::Cancelled);
        true
    }

    /// Send nothing more, after what is pending (SHUT_WR).
    pub fn shutdown(&mut self) {
        if self.fin == Fin::No {
            self.fin = Fin::Wanted;
            self.advertise();
        }
    }

    /// Take a message in, which a SEND of `len` bytes has brought into a slot, the header first. True: the slot stays
    /// in use until [`Output::Free`]; false: it is to be posted now.
    ///
    /// An error is a breach of the protocol. The caller ends the connection, then calls [`Connection::reset`].
    pub fn arrived(&mut self, slot: u32, header: &[u8; HEADER], len: usize) -> Result<bool, Reset> {
        if self.dead.is_some() {
            return Ok(false);
        }
        let message = Message::parse(header, len)?;
        match message {
            Message::Advert { seq, addr, rkey, len } => {
                // The READ would run past the end of the peer's addresses.
                addr.checked_add(len).ok_or(Reset::Protocol)?;
                self.advertisement(seq, len, Source::Memory(Remote { addr, rkey }))?;
            }
            Message::Small { seq, len } => {
                if len > self.ours.small {
                    return Err(Reset::Protocol);
                }
                self.advertisement(seq, len.into(), Source::Slot(slot))?;
                return Ok(true);
            }
            Message::Ack { seq } => self.acknowledged(seq)?,
            Message::Withdraw { seq } => self.asked_back(seq)?,
            Message::Withdrawn { seq, dropped } => self.given_back(seq, dropped)?,
            Message::Fin { seq } => {
                if self.peer_fin || seq != self.expected {
                    return Err(Reset::Protocol);
                }
                self.peer_fin = true;
                self.transfer();
            }
        }
        Ok(false)
    }

    /// The oldest READ is completed; after [`Connection::reset`], also without success.
    pub fn read_done(&mut self) {
        let Some(flight) = self.flights.pop_front() else { return };
        if self.dead.is_some() {
            self.fail_receives();
            return;
        }
        self.land(flight.op, flight.seq, flight.len);
        self.transfer();
    }

    /// The connection is gone. The caller has moved the queue pair to ERR before: the peer reads no buffer of this end
    /// any more. Receives are done when their READs are.
    pub fn reset(&mut self, why: Reset) {
        if self.dead.is_some() {
            return;
        }
        self.dead = Some(why);
        // READs that the caller has not seen are the last ones, and it will not complete them.
        let unseen = self.outputs.iter().filter(|output| matches!(output, Output::Read(_))).count();
        self.flights.truncate(self.flights.len() - unseen);
        self.outputs.retain(|output| matches!(output, Output::Done(_) | Output::Copy { .. }));
        self.advertised = 0;
        self.withdrawals.clear();
        while let Some(send) = self.sends.pop_front() {
            self.done(send.op, Outcome::Failed(why));
        }
        self.fail_receives();
    }

    fn fail_receives(&mut self) {
        let Some(why) = self.dead else { return };
        while self.flights.is_empty()
            && let Some(receive) = self.receives.pop_front()
        {
            self.done(receive.op, Outcome::Failed(why));
        }
    }

    fn done(&mut self, op: Op, outcome: Outcome) {
        self.outputs.push_back(Output::Done(Done { op, outcome }));
    }

    /// Advertise as many sends as there are credits for, then FIN.
    fn advertise(&mut self) {
        let small = self.small();
        while self.advertised < usize::from(self.theirs.credits) && self.advertised < self.sends.len() {
            let send = &mut self.sends[self.advertised];
            let (seq, len) = (self.next_seq, send.buffer.len);
            send.seq = Some(seq);
            let output = if len <= small {
                Output::Send(Message::Small { seq, len: len as u32 }, Some(send.buffer))
            } else {
                Output::Send(Message::Advert { seq, addr: send.place.addr, rkey: send.place.rkey, len }, None)
            };
            self.outputs.push_back(output);
            self.next_seq = seq.wrapping_add(1);
            self.advertised += 1;
        }
        if self.fin == Fin::Wanted && self.advertised == self.sends.len() {
            self.fin = Fin::Sent;
            self.outputs.push_back(Output::Send(Message::Fin { seq: self.next_seq }, None));
        }
    }

    /// The place of an outstanding advertisement among the sends.
    fn outstanding(&self, seq: u32) -> Option<usize> {
        self.sends.iter().take(self.advertised).position(|send| send.seq == Some(seq))
    }

    fn acknowledged(&mut self, seq: u32) -> Result<(), Reset> {
        let last = self.outstanding(seq).ok_or(Reset::Protocol)?;
        for _ in 0..=last {
            let Some(send) = self.sends.pop_front() else { break };
            self.advertised -= 1;
            // A WITHDRAW that is under way will be answered; one that is not is needless now.
            let first = self.asked.then(|| self.withdrawals.front().copied()).flatten();
            self.withdrawals.retain(|withdrawn| Some(*withdrawn) != send.seq || Some(*withdrawn) == first);
            self.done(send.op, Outcome::Sent);
        }
        self.advertise();
        Ok(())
    }

    /// Ask for the first advertisement that the program wants back, unless one is asked for.
    fn withdraw(&mut self) {
        if let (false, Some(seq)) = (self.asked, self.withdrawals.front()) {
            self.outputs.push_back(Output::Send(Message::Withdraw { seq: *seq }, None));
            self.asked = true;
        }
    }

    fn given_back(&mut self, seq: u32, dropped: bool) -> Result<(), Reset> {
        if !self.asked || self.withdrawals.front() != Some(&seq) {
            return Err(Reset::Protocol);
        }
        self.asked = false;
        self.withdrawals.pop_front();
        if dropped {
            let at = self.outstanding(seq).ok_or(Reset::Protocol)?;
            self.advertised -= 1;
            if let Some(send) = self.sends.remove(at) {
                self.done(send.op, Outcome::Cancelled);
            }
            self.advertise();
        }
        self.withdraw();
        Ok(())
    }

    /// The peer wants an advertisement back: it is dropped if nothing of it is taken.
    fn asked_back(&mut self, seq: u32) -> Result<(), Reset> {
        // The peer asks once at a time, so it has had the answer to its last question.
        if self.outputs.iter().any(|output| matches!(output, Output::Send(Message::Withdrawn { .. }, _))) {
            return Err(Reset::Protocol);
        }
        let free = |incoming: &Incoming| incoming.seq == seq && incoming.assigned == 0 && !incoming.closed;
        let at = self.incoming.iter().position(free);
        if let Some(Incoming { from: Source::Slot(slot), .. }) = at.and_then(|at| self.incoming.remove(at)) {
            self.outputs.push_back(Output::Free { slot });
        }
        self.outputs.push_back(Output::Send(Message::Withdrawn { seq, dropped: at.is_some() }, None));
        self.transfer();
        Ok(())
    }

    fn advertisement(&mut self, seq: u32, len: u64, from: Source) -> Result<(), Reset> {
        let over = self.incoming.len() >= usize::from(self.ours.credits);
        let empty = len == 0 && self.ours.kind == Kind::Stream;
        if self.peer_fin || seq != self.expected || over || empty {
            return Err(Reset::Protocol);
        }
        self.expected = seq.wrapping_add(1);
        self.incoming.push_back(Incoming { seq, len, from, assigned: 0, landed: 0, closed: false });
        self.transfer();
        Ok(())
    }

    /// Bytes have reached the buffer of a receive.
    fn land(&mut self, op: Op, seq: u32, len: u64) {
        if let Some(receive) = self.receives.iter_mut().find(|receive| receive.op == op) {
            receive.landed += len;
        }
        if let Some(incoming) = self.incoming.iter_mut().find(|incoming| incoming.seq == seq) {
            incoming.landed += len;
        }
    }

    /// Move bytes from advertisements to receives, both in order, then end what is complete.
    fn transfer(&mut self) {
        while self.dead.is_none() && self.transfer_one() {}
        self.settle();
    }

    /// One step; false if there is none.
    fn transfer_one(&mut self) -> bool {
        let stream = self.ours.kind == Kind::Stream;
        let Some(receive) = self.receives.iter_mut().find(|receive| !receive.closed) else { return false };
        let Some(incoming) = self.incoming.iter_mut().find(|incoming| !incoming.closed) else {
            let short = stream && receive.assigned > 0 && !receive.wait_all;
            receive.end = self.peer_fin && receive.assigned == 0;
            receive.closed = short || self.peer_fin;
            return receive.closed;
        };
        let len = (incoming.len - incoming.assigned).min(receive.buffer.len - receive.assigned);
        let to = receive.buffer.part(receive.assigned, len);
        let (seq, op, skip) = (incoming.seq, receive.op, incoming.assigned);
        let from = incoming.from;
        if len > 0 && matches!(from, Source::Memory(_)) && self.flights.len() >= self.reads {
            return false;
        }
        incoming.assigned += len;
        receive.assigned += len;
        incoming.closed = !stream || incoming.assigned == incoming.len;
        receive.closed = !stream || receive.assigned == receive.buffer.len;
        receive.truncated = incoming.closed && incoming.assigned < incoming.len;
        match from {
            _ if len == 0 => {}
            Source::Slot(slot) => {
                self.outputs.push_back(Output::Copy { slot, skip, to });
                self.land(op, seq, len);
            }
            Source::Memory(remote) => {
                let from = Remote { addr: remote.addr + skip, ..remote };
                self.outputs.push_back(Output::Read(Read { from, to }));
                self.flights.push_back(Flight { seq, op, len });
            }
        }
        true
    }

    /// Acknowledge advertisements that are consumed, and end receives, both in order.
    fn settle(&mut self) {
        let mut last = None;
        while let Some(first) = self.incoming.front()
            && first.closed
            && first.landed == first.assigned
            && self.dead.is_none()
        {
            last = Some(first.seq);
            if let Source::Slot(slot) = first.from {
                self.outputs.push_back(Output::Free { slot });
            }
            self.incoming.pop_front();
        }
        if let Some(seq) = last {
            // One that waits for room is taken in by this one.
            self.outputs.retain(|output| !matches!(output, Output::Send(Message::Ack { .. }, _)));
            self.outputs.push_back(Output::Send(Message::Ack { seq }, None));
        }
        while let Some(first) = self.receives.front()
            && first.closed
            && first.landed == first.assigned
        {
            let outcome = Outcome::Received { len: first.landed, truncated: first.truncated, end: first.end };
            let op = first.op;
            self.receives.pop_front();
            self.done(op, outcome);
        }
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
