//! An end of a connection of kind STREAM: the machines of [`crate::stream`], one for each direction, and the operations
//! of the program.

use std::collections::VecDeque;

use super::connection::{Output, Write};
use super::table::{Buffer, Done, Op, Outcome, Refused, Remote, Reset, Transferred};
use super::wire::{Hello, Immediate, Message, Settings};
use crate::stream::{Action, Advert, Breach, Ended, Receiver, Sender, Shape, Transfer};

impl From<Breach> for Reset {
    fn from(_: Breach) -> Reset {
        Reset::Protocol
    }
}

#[derive(Debug)]
struct Send {
    op: Op,
    buffer: Buffer,
    /// Bytes that are in WRITEs.
    handed: u64,
    /// WRITEs that are not completed.
    flights: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fin {
    No,
    /// After the last byte.
    Wanted,
    Sent,
}

/// An end of a connection.
#[derive(Debug)]
pub(super) struct Bytes {
    places: usize,
    /// The peer's ring.
    ring: Remote,
    sender: Sender<Remote>,
    receiver: Receiver,
    sends: VecDeque<Send>,
    /// Bytes of them that are in no WRITE.
    waiting: u64,
    /// The sends of WRITEs that are not completed.
    flights: VecDeque<Op>,
    fin: Fin,
    receives: VecDeque<(Op, Buffer)>,
    /// Bytes of transfers that were handed out.
    pub(super) transferred: Transferred,
    dead: Option<Reset>,
    pub(super) outputs: VecDeque<Output>,
}

impl Bytes {
    /// See [`super::Connection::new`].
    pub fn new(ours: Settings, theirs: Hello, places: usize) -> Bytes {
        let credits = ours.credits.min(theirs.settings.credits);
        Bytes {
            places,
            ring: theirs.ring,
            sender: Sender::new(Shape::new(theirs.settings.ring, credits)),
            receiver: Receiver::new(Shape::new(ours.ring, credits)),
            sends: VecDeque::new(),
            waiting: 0,
            flights: VecDeque::new(),
            fin: Fin::No,
            receives: VecDeque::new(),
            transferred: Transferred::default(),
            dead: None,
            outputs: VecDeque::new(),
        }
    }

    pub fn is_flushed(&self) -> bool {
        self.sends.is_empty() && self.fin != Fin::Wanted
    }

    pub fn dead(&self) -> Option<Reset> {
        self.dead
    }

    /// Pending receives.
    pub fn receiving(&self) -> Vec<Op> {
        self.receives.iter().map(|(op, _)| *op).collect()
    }

    pub fn is_writable(&self) -> bool {
        self.dead.is_none() && self.fin == Fin::No && self.sends.len() < self.places
    }

    pub fn is_readable(&self) -> bool {
        self.receiver.has_data()
    }

    fn check(&self, op: Op, pending: usize) -> Result<(), Refused> {
        let known = self.sends.iter().any(|send| send.op == op) || self.receives.iter().any(|(other, _)| *other == op);
        if known {
            return Err(Refused::Twice);
        }
        if pending >= self.places { Err(Refused::Full) } else { Ok(()) }
    }

    /// Begin a send.
    pub fn send(&mut self, op: Op, buffer: Buffer) -> Result<(), Refused> {
        if self.fin != Fin::No {
            return Err(Refused::Shut);
        }
        if self.dead.is_some() {
            return Err(Refused::Gone);
        }
        self.check(op, self.sends.len())?;
        self.waiting += buffer.len;
        self.sends.push_back(Send { op, buffer, handed: 0, flights: 0 });
        self.transfer();
        Ok(())
    }

    /// Begin a receive.
    pub fn receive(&mut self, op: Op, buffer: Buffer, wait_all: bool) -> Result<(), Refused> {
        // All data of the peer are here, also those that are in the ring.
        if self.dead.is_some() && !self.receiver.has_fin() {
            return Err(Refused::Gone);
        }
        self.check(op, self.receives.len())?;
        self.receives.push_back((op, buffer));
        // Bounded by MAX_LEN.
        self.receiver.post(op.0, buffer.len as u32, wait_all);
        self.act();
        Ok(())
    }

    /// See [`super::Connection::peek`].
    pub fn peek(&mut self, op: Op, buffer: Buffer) -> Result<(), Refused> {
        if self.dead.is_some() && !self.receiver.has_fin() {
            return Err(Refused::Gone);
        }
        self.check(op, 0)?;
        // Bounded by MAX_LEN.
        let pieces = self.receiver.look(buffer.len as u32).ok_or(Refused::Nothing)?;
        let mut len = 0;
        for (at, piece) in pieces.into_iter().filter(|(_, piece)| *piece > 0) {
            self.outputs.push_back(Output::CopyRing { at, to: buffer.part(len, piece.into()) });
            len += u64::from(piece);
        }
        self.done(op, Outcome::Received { len, truncated: false, end: len == 0 });
        Ok(())
    }

    /// See [`super::Connection::cancel`]. A send of which a byte is handed out is sent to its end.
    pub fn cancel(&mut self, op: Op) -> bool {
        if let Some(at) = self.sends.iter().position(|send| send.op == op) {
            if self.sends[at].handed == 0
                && let Some(send) = self.sends.remove(at)
            {
                self.waiting -= send.buffer.len;
                self.done(op, Outcome::Cancelled);
                self.transfer();
            }
            return true;
        }
        let asked = self.receiver.cancel(op.0);
        self.act();
        asked
    }

    /// Send nothing more.
    pub fn shutdown(&mut self) {
        if self.fin == Fin::No {
            self.fin = Fin::Wanted;
            self.transfer();
        }
    }

    /// Take a message in.
    pub fn arrived(&mut self, message: Message) -> Result<(), Reset> {
        match message {
            Message::Data { imm, len } => return self.transferred(Immediate::parse(imm), len),
            Message::Offer { phase, seq, first, wait_all, len, place, ack } => {
                // The WRITE would run past the end of the peer's addresses.
                place.addr.checked_add(len.into()).ok_or(Reset::Protocol)?;
                self.sender.ack(ack)?;
                self.sender.advert(Advert { phase, seq, first, wait_all, len, place })?;
            }
            Message::Room(ack) => self.sender.ack(ack)?,
            Message::Retract(phase) => {
                self.sender.retract(phase)?;
                self.outputs.push_back(Output::Send(Message::Retracted(phase), None));
            }
            Message::Retracted(phase) => self.receiver.retracted(phase)?,
            Message::Seen(count) => self.receiver.seen(count)?,
            Message::Fin { seq } => self.receiver.fin(seq)?,
            _ => return Err(Reset::Protocol),
        }
        self.transfer();
        self.act();
        Ok(())
    }

    /// Take a WRITE of the peer in.
    pub fn transferred(&mut self, imm: Immediate, len: u32) -> Result<(), Reset> {
        if self.dead.is_some() {
            return Ok(());
        }
        let Immediate { direct, released, more, seq } = imm;
        if direct {
            self.receiver.direct(len, seq, released)?;
        } else {
            self.receiver.indirect(len, seq, released, more)?;
        }
        self.act();
        Ok(())
    }

    /// The oldest WRITE is completed.
    pub fn write_done(&mut self) {
        let op = self.flights.pop_front();
        self.landed(op);
    }

    /// The newest WRITE that was handed out was not posted. [`Bytes::reset`] has taken back those that were not handed
    /// out.
    pub fn write_dropped(&mut self) {
        let op = self.flights.pop_back();
        self.landed(op);
    }

    /// A WRITE of this send is not under way any more.
    fn landed(&mut self, op: Option<Op>) {
        let Some(op) = op else { return };
        if let Some(send) = self.sends.iter_mut().find(|send| send.op == op) {
            send.flights -= 1;
        }
        self.settle();
    }

    /// See [`super::Connection::reset`].
    pub fn reset(&mut self, why: Reset) {
        if self.dead.is_some() {
            return;
        }
        self.dead = Some(why);
        // WRITEs that the caller has not seen are the last ones, and it will not complete them.
        let unseen = self.outputs.iter().filter(|output| matches!(output, Output::Write(_))).count();
        for op in self.flights.drain(self.flights.len() - unseen..) {
            if let Some(send) = self.sends.iter_mut().find(|send| send.op == op) {
                send.flights -= 1;
            }
        }
        let told = |output: &Output| matches!(output, Output::Done(_) | Output::Copy { .. } | Output::CopyRing { .. });
        self.outputs.retain(told);
        // After the peer's last byte the receives go on, from the ring.
        let goes_on = self.receiver.has_fin() && matches!(why, Reset::Peer | Reset::Stopped);
        let failed: Vec<u64> = if goes_on { vec![] } else { self.receiver.drain().collect() };
        for op in failed {
            self.receives.retain(|(other, _)| other.0 != op);
            self.done(Op(op), Outcome::Failed(why));
        }
        self.settle();
    }

    fn done(&mut self, op: Op, outcome: Outcome) {
        self.outputs.push_back(Output::Done(Done { op, outcome }));
    }

    /// Hand out as many bytes as the peer has room for, then FIN.
    fn transfer(&mut self) {
        if self.dead.is_some() {
            return;
        }
        while let Some(send) = self.sends.iter_mut().find(|send| send.handed < send.buffer.len) {
            let Some(transfer) = self.sender.next(send.buffer.len - send.handed, self.waiting) else { break };
            let (place, skip) = transfer.direct.unwrap_or((self.ring, transfer.at));
            let Transfer { released, more, seq, .. } = transfer;
            let imm = Immediate { direct: transfer.direct.is_some(), released, more, seq }.emit();
            let from = send.buffer.part(send.handed, transfer.len.into());
            // The end of the place was checked when it came.
            let to = Remote { addr: place.addr + u64::from(skip), ..place };
            self.outputs.push_back(Output::Write(Write { from, to, imm, ends: transfer.ends, late: transfer.late }));
            send.handed += u64::from(transfer.len);
            send.flights += 1;
            let way =
                if transfer.direct.is_some() { &mut self.transferred.direct } else { &mut self.transferred.indirect };
            *way += u64::from(transfer.len);
            self.waiting -= u64::from(transfer.len);
            self.flights.push_back(send.op);
        }
        if let Some(count) = self.sender.seen() {
            self.outputs.push_back(Output::Send(Message::Seen(count), None));
        }
        if self.fin == Fin::Wanted && self.waiting == 0 {
            self.fin = Fin::Sent;
            self.outputs.push_back(Output::Send(Message::Fin { seq: self.sender.seq() }, None));
        }
    }

    /// End sends whose bytes are at the peer, in order.
    fn settle(&mut self) {
        while let Some(first) = self.sends.front()
            && first.flights == 0
            && (first.handed == first.buffer.len || self.dead.is_some())
        {
            let op = first.op;
            self.sends.pop_front();
            self.done(op, self.dead.map_or(Outcome::Sent, Outcome::Failed));
        }
    }

    /// Do what the receiver says.
    fn act(&mut self) {
        while let Some(action) = self.receiver.poll() {
            match action {
                Action::Copy { id, offset, at, len } => {
                    if let Some(to) = self.buffer(id) {
                        self.outputs.push_back(Output::CopyRing { at, to: to.part(offset.into(), len.into()) });
                    }
                    // What says so to the peer comes behind it.
                    self.receiver.copied();
                }
                Action::Advert(Advert { phase, seq, first, wait_all, len, place: (id, offset) }, ack) => {
                    let place = Remote { addr: 0, rkey: 0 };
                    let buffer = self.buffer(id).map(|buffer| buffer.part(offset.into(), len.into()));
                    let offer = Message::Offer { phase, seq, first, wait_all, len, place, ack };
                    self.outputs.push_back(Output::Send(offer, buffer));
                }
                Action::Ack(_) | Action::Retract(_) if self.dead.is_some() => {}
                Action::Ack(ack) => self.outputs.push_back(Output::Send(Message::Room(ack), None)),
                Action::Retract(phase) => self.outputs.push_back(Output::Send(Message::Retract(phase), None)),
                Action::Ended { id, how } => {
                    self.receives.retain(|(op, _)| op.0 != id);
                    let outcome = match how {
                        Ended::Bytes(len) => Outcome::Received { len: len.into(), truncated: false, end: len == 0 },
                        Ended::Cancelled => Outcome::Cancelled,
                    };
                    self.done(Op(id), outcome);
                }
            }
        }
    }

    fn buffer(&self, id: u64) -> Option<Buffer> {
        self.receives.iter().find(|(op, _)| op.0 == id).map(|(_, buffer)| *buffer)
    }
}

#[cfg(test)]
#[path = "bytes_tests.rs"]
mod tests;
