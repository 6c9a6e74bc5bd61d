//! An end of a connection of kind SEQPACKET.
//!
//! The surroundings call [`Packets::send`], [`Packets::receive`], [`Packets::cancel`] and
//! [`Packets::shutdown`] for the program, [`Packets::arrived`], [`Packets::reads_done`], [`Packets::small_done`] and
//! [`Packets::reset`] for the wire, and do what `outputs` says, in that order.
//!
//! The send of a SMALL ends when the device has taken the data. So its ACK gives a credit back and nothing else, and
//! one ACK is enough for several. It goes out when more than half of the credits are to be given back, or when the
//! peer can have no other left.
//!
//! Room for messages. The peer has one receive posted for everything that this end may send, so the wire never has to
//! wait for one: as many advertisements as the peer gives credits, an ACK for each advertisement that the peer has
//! outstanding, one WITHDRAW, one WITHDRAWN, one FIN, and the messages of both kinds
//! ([`super::Connection::slots`]). The slot of SMALL stays in use until its data are consumed; every other slot is
//! posted again before anything else is done.

mod small;
mod withdraw;

use std::collections::VecDeque;

use super::connection::{Output, Read};
use super::table::{Buffer, Done, Op, Outcome, Refused, Remote, Reset};
use super::wire::{Message, Settings, TOGETHER};

/// A send of this end. Those with a number are in front of those without.
#[derive(Debug)]
struct Send {
    op: Op,
    buffer: Buffer,
    /// EXS_PERSISTENT.
    persistent: bool,
    /// Number of its advertisement.
    seq: Option<u32>,
    /// It went as SMALL.
    small: bool,
    /// The data are not needed any more; the send ends when those in front of it have.
    ended: bool,
}

/// A receive of this end.
#[derive(Debug)]
struct Receive {
    op: Op,
    buffer: Buffer,
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
    persistent: bool,
    /// Bytes that receives take or have taken, and those that are there; of a persistent one, of all receives.
    assigned: u64,
    landed: u64,
    /// No receive takes it any more.
    closed: bool,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Slot(u32),
    Memory(Remote),
}

/// No READ is begun while so many bytes are under way. A device may execute each at once, in the thread that posts it:
/// then the peer hears of none before the last one is done, and its sends wait that long.
const AHEAD: u64 = 256 << 10;

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
pub(super) struct Packets {
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
    /// Numbers of advertisements whose credits are not given back.
    unacked: VecDeque<u32>,
    /// Advertisements that the program wants back. The first was asked for if `asked`.
    withdrawals: VecDeque<u32>,
    asked: bool,
    fin: Fin,
    receives: VecDeque<Receive>,
    incoming: VecDeque<Incoming>,
    /// Number of the peer's next advertisement.
    expected: u32,
    /// The last SMALL that is consumed and not acknowledged, and how many are.
    owed: Option<u32>,
    owed_count: u16,
    flights: VecDeque<Flight>,
    /// Their bytes.
    in_flight: u64,
    /// A persistent advertisement that the peer wants back, and from which a READ is under way.
    leaving: Option<u32>,
    peer_fin: bool,
    /// An ACK has ended a send whose data the peer has READ.
    pub(super) was_read: bool,
    dead: Option<Reset>,
    pub(super) outputs: VecDeque<Output>,
}

impl Packets {
    /// An end whose peer has the settings `theirs`. `reads` READs may be outstanding, at least 1, and `places`
    /// operations pending in each direction.
    pub fn new(ours: Settings, theirs: Settings, reads: usize, places: usize) -> Packets {
        Packets {
            ours,
            theirs,
            reads: reads.max(1),
            places,
            sends: VecDeque::new(),
            advertised: 0,
            next_seq: 0,
            unacked: VecDeque::new(),
            withdrawals: VecDeque::new(),
            asked: false,
            fin: Fin::No,
            receives: VecDeque::new(),
            incoming: VecDeque::new(),
            expected: 0,
            owed: None,
            owed_count: 0,
            flights: VecDeque::new(),
            in_flight: 0,
            leaving: None,
            peer_fin: false,
            was_read: false,
            dead: None,
            outputs: VecDeque::new(),
        }
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

    fn check(&self, op: Op, pending: usize) -> Result<(), Refused> {
        if self.sends.iter().any(|send| send.op == op) || self.receives.iter().any(|receive| receive.op == op) {
            return Err(Refused::Twice);
        }
        if pending >= self.places { Err(Refused::Full) } else { Ok(()) }
    }

    /// Pending receives.
    pub fn receiving(&self) -> Vec<Op> {
        self.receives.iter().map(|receive| receive.op).collect()
    }

    /// True if a send would be taken.
    pub fn is_writable(&self) -> bool {
        self.dead.is_none() && self.fin == Fin::No && self.sends.len() < self.places
    }

    /// True if a receive would be served, or the data have ended.
    pub fn is_readable(&self) -> bool {
        self.peer_fin || self.incoming.iter().any(|incoming| !incoming.closed)
    }

    /// Begin a send of a buffer, which belongs to the connection until the operation is done.
    pub fn send(&mut self, op: Op, buffer: Buffer, persistent: bool) -> Result<(), Refused> {
        if self.fin != Fin::No {
            return Err(Refused::Shut);
        }
        if self.dead.is_some() {
            return Err(Refused::Gone);
        }
        self.check(op, self.sends.len())?;
        self.sends.push_back(Send { op, buffer, persistent, seq: None, small: false, ended: false });
        self.advertise();
        Ok(())
    }

    /// Begin a receive into a buffer, which belongs to the connection until the operation is done.
    pub fn receive(&mut self, op: Op, buffer: Buffer) -> Result<(), Refused> {
        if self.dead.is_some() {
            return self.receive_late(op, buffer);
        }
        self.check(op, self.receives.len())?;
        let (assigned, landed, closed, truncated, end) = (0, 0, false, false, false);
        self.receives.push_back(Receive { op, buffer, assigned, landed, closed, truncated, end });
        // Without either it waits for the peer.
        if !self.incoming.is_empty() || self.peer_fin {
            self.transfer();
        }
        Ok(())
    }

    /// See [`super::Connection::peek`].
    pub fn peek(&mut self, op: Op, buffer: Buffer) -> Result<(), Refused> {
        if self.dead.is_some() && !self.peer_fin {
            return Err(Refused::Gone);
        }
        self.check(op, 0)?;
        if self.receives.iter().any(|receive| !receive.closed) {
            return Err(Refused::Nothing);
        }
        let Some(first) = self.incoming.iter().find(|incoming| !incoming.closed) else {
            if !self.peer_fin {
                return Err(Refused::Nothing);
            }
            self.done(op, Outcome::Received { len: 0, truncated: false, end: true });
            return Ok(());
        };
        let len = first.len.min(buffer.len);
        let truncated = len < first.len;
        match first.from {
            _ if len == 0 => {}
            Source::Slot(slot) => self.outputs.push_back(Output::Copy { slot, to: buffer.part(0, len) }),
            // A READ would hold the packet, which its sender may want back.
            Source::Memory(_) => return Err(Refused::NotSupported),
        }
        self.done(op, Outcome::Received { len, truncated, end: false });
        Ok(())
    }

    /// Ask for an operation's end. True: its event will come, which may be [`Outcome::Cancelled`] or, if the peer has
    /// taken the data, [`Outcome::Sent`]. False: it is too late for a receive, or there is no such operation.
    pub fn cancel(&mut self, op: Op) -> bool {
        if let Some(at) = self.sends.iter().position(|send| send.op == op) {
            match self.sends[at].seq {
                // The data are on their way, and the send ends with their arrival.
                Some(_) if self.sends[at].small => {}
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

    /// See [`super::Connection::arrived`].
    pub fn arrived(&mut self, slot: u32, message: Message) -> Result<bool, Reset> {
        if self.dead.is_some() {
            return Ok(false);
        }
        match message {
            Message::Advert { seq, addr, rkey, len, persistent } => {
                // The READ would run past the end of the peer's addresses.
                addr.checked_add(len.into()).ok_or(Reset::Protocol)?;
                self.advertisement(seq, len, Source::Memory(Remote { addr, rkey }), persistent)?;
            }
            Message::Small { seq, len } => {
                if len > self.ours.small {
                    return Err(Reset::Protocol);
                }
                self.advertisement(seq, len, Source::Slot(slot), false)?;
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
            Message::Offer { .. }
            | Message::Room(_)
            | Message::Retract(_)
            | Message::Retracted(_)
            | Message::Seen(_)
            | Message::Data { .. }
            | Message::Ping
            | Message::Pong
            | Message::Looks
            | Message::Sleeps
            | Message::Slept => {
                return Err(Reset::Protocol);
            }
        }
        Ok(false)
    }

    /// The oldest READs are completed; after [`Packets::reset`], also without success. The peer hears of them together.
    pub fn reads_done(&mut self, count: usize) {
        for _ in 0..count {
            let Some(flight) = self.flights.pop_front() else { break };
            self.in_flight -= flight.len;
            self.land(flight.op, flight.seq, flight.len);
        }
        if self.dead.is_some() {
            self.fail_receives();
            return;
        }
        // The peer hears of these before the next READ: a device may execute that at once, in the caller's thread.
        self.settle();
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
        self.in_flight = self.flights.iter().map(|flight| flight.len).sum();
        self.outputs.retain(|output| matches!(output, Output::Done(_) | Output::Copy { .. }));
        self.advertised = 0;
        self.withdrawals.clear();
        self.owed = None;
        self.keep_packets(why);
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
        if self.waits_for_a_row(small) {
            return;
        }
        while self.unacked.len() < usize::from(self.theirs.credits) && self.advertised < self.sends.len() {
            let send = &mut self.sends[self.advertised];
            let (seq, len) = (self.next_seq, send.buffer.len);
            send.seq = Some(seq);
            // Bounded by MAX_LEN.
            let len = len as u32;
            let message = if u64::from(len) <= small && !send.persistent {
                send.small = true;
                Message::Small { seq, len }
            } else {
                Message::Advert { seq, addr: 0, rkey: 0, len, persistent: send.persistent }
            };
            self.outputs.push_back(Output::Send(message, Some(send.buffer)));
            self.unacked.push_back(seq);
            self.next_seq = seq.wrapping_add(1);
            self.advertised += 1;
        }
        if self.fin == Fin::Wanted && self.advertised == self.sends.len() {
            self.fin = Fin::Sent;
            self.outputs.push_back(Output::Send(Message::Fin { seq: self.next_seq }, None));
        }
    }

    /// True while the peer has several advertisements to READ, and those that follow are too few to share a SEND. Each
    /// ACK asks again. What is small, or ends the data, waits for nothing.
    fn waits_for_a_row(&self, small: u64) -> bool {
        let (told, rest) = (self.sends.iter().take(self.advertised), self.sends.iter().skip(self.advertised));
        self.fin == Fin::No
            && self.sends.len() - self.advertised < TOGETHER
            && told.filter(|send| !send.small && !send.persistent && !send.ended).count() >= TOGETHER
            && rest.filter(|send| send.buffer.len <= small || send.persistent).count() == 0
    }

    /// The place of an outstanding advertisement among the sends.
    fn outstanding(&self, seq: u32) -> Option<usize> {
        self.sends.iter().take(self.advertised).position(|send| send.seq == Some(seq))
    }

    fn acknowledged(&mut self, seq: u32) -> Result<(), Reset> {
        let count = 1 + self.unacked.iter().position(|unacked| *unacked == seq).ok_or(Reset::Protocol)?;
        let first = self.unacked.front().copied().unwrap_or(seq);
        self.unacked.drain(..count);
        for send in self.sends.iter_mut().take(self.advertised) {
            // The numbers in between are all acknowledged, or were given back before.
            if send.seq.is_some_and(|number| number.wrapping_sub(first) <= seq.wrapping_sub(first)) {
                // Those that stay are given back, and what is behind one is not consumed before.
                if send.persistent {
                    return Err(Reset::Protocol);
                }
                send.ended = true;
                self.was_read |= !send.small;
            }
        }
        self.end_sends();
        self.advertise();
        Ok(())
    }

    fn advertisement(&mut self, seq: u32, len: u32, from: Source, persistent: bool) -> Result<(), Reset> {
        let over = self.incoming.len() >= usize::from(self.ours.credits);
        if self.peer_fin || seq != self.expected || over {
            return Err(Reset::Protocol);
        }
        self.expected = seq.wrapping_add(1);
        let (len, assigned, landed, closed) = (len.into(), 0, 0, false);
        self.incoming.push_back(Incoming { seq, len, from, persistent, assigned, landed, closed });
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
        if self.dead.is_none() {
            self.leave();
        }
        self.settle();
    }

    /// One step; false if there is none.
    fn transfer_one(&mut self) -> bool {
        let Some(receive) = self.receives.iter_mut().find(|receive| !receive.closed) else { return false };
        let Some(incoming) = self.incoming.iter_mut().find(|incoming| !incoming.closed) else {
            receive.end = self.peer_fin;
            receive.closed = self.peer_fin;
            return receive.closed;
        };
        let len = incoming.len.min(receive.buffer.len);
        let to = receive.buffer.part(0, len);
        let (seq, op, from) = (incoming.seq, receive.op, incoming.from);
        let full = self.flights.len() >= self.reads || self.in_flight >= AHEAD;
        if len > 0 && matches!(from, Source::Memory(_)) && full {
            return false;
        }
        incoming.assigned += len;
        receive.assigned = len;
        incoming.closed = !incoming.persistent;
        receive.closed = true;
        receive.truncated = len < incoming.len;
        match from {
            _ if len == 0 => {}
            Source::Slot(slot) => {
                self.outputs.push_back(Output::Copy { slot, to });
                self.land(op, seq, len);
            }
            Source::Memory(remote) => {
                self.outputs.push_back(Output::Read(Read { from: remote, to }));
                self.flights.push_back(Flight { seq, op, len });
                self.in_flight += len;
            }
        }
        true
    }

    /// Acknowledge advertisements that are consumed, and end receives, both in order.
    fn settle(&mut self) {
        let (mut urgent, mut key) = (false, None);
        while let Some(first) = self.incoming.front()
            && first.closed
            && first.landed == first.assigned
            && !first.persistent
            && self.leaving != Some(first.seq)
            && self.dead.is_none()
        {
            self.owed = Some(first.seq);
            self.owed_count += 1;
            key = None;
            match first.from {
                Source::Slot(slot) => self.outputs.push_back(Output::Free { slot }),
                Source::Memory(remote) => {
                    // It ends the send.
                    urgent = true;
                    // Nothing has a key.
                    key = (first.len > 0).then_some(remote.rkey);
                }
            }
            self.incoming.pop_front();
        }
        if urgent || self.is_due() {
            self.give_back(key);
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
#[path = "packets_tests.rs"]
mod tests;
