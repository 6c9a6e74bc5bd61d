//! An end of a connection, of either kind.
//!
//! The surroundings call [`Connection::send`], [`Connection::receive`], [`Connection::cancel`] and
//! [`Connection::shutdown`] for the program, [`Connection::arrived`], [`Connection::transferred`],
//! [`Connection::transfers_done`], [`Connection::small_done`] and [`Connection::reset`] for the
//! wire, [`Connection::tick`] for the clock, and do what [`Connection::poll`] says, in that order.
//!
//! Room for messages. The peer has one receive posted for everything that this end may send, so the wire never has to
//! wait for one. SEQPACKET: as many advertisements as the peer gives credits, an ACK for each advertisement that the
//! peer has outstanding, one WITHDRAW, one WITHDRAWN, one FIN. STREAM: transfers and offers by the credits, the ROOMs
//! that may be under way for them ([`crate::stream::acks`]), two SEEN, one RETRACT, one RETRACTED, one FIN. Both: one
//! PING, one PONG, one LOOKS, one SLEEPS, one SLEPT. The slot of SMALL stays in use until its data are consumed; every
//! other slot is posted again before anything else is done.

use std::time::Duration;

use super::bytes::Bytes;
use super::notice::{Looking, NoticePlaces};
use super::packets::Packets;
use super::pulse::{Beat, Pulse};
use super::table::{Buffer, Done, Op, Refused, Remote, Reset, Taken, Transferred};
use super::wire::{HEADER, Hello, Immediate, Kind, MAX_LEN, Message, Settings, TOGETHER};
use crate::stream::acks;

/// An RDMA READ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// The bytes of the peer.
    pub from: Remote,
    /// The place for them.
    pub to: Buffer,
}

/// An RDMA WRITE with immediate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// The bytes.
    pub from: Buffer,
    /// The place for them, at the peer.
    pub to: Remote,
    /// The immediate value.
    pub imm: u32,
    /// It is the last one with this key.
    pub ends: bool,
    /// It goes into the ring of a peer that is late.
    pub late: bool,
}

/// Something that the surroundings have to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// SEND a message. The bytes of the buffer follow its header if it is SMALL. If it is ADVERT or OFFER, the peer is
    /// given access to the buffer, and the message its place ([`Message::named`]).
    Send(Message, Option<Buffer>),
    /// SEND a message; this end is done with that key of the peer.
    End(Message, u32),
    /// READ. [`Connection::transfers_done`] is called at its completion.
    Read(Read),
    /// WRITE. [`Connection::transfers_done`] is called at its completion, or [`Connection::write_dropped`].
    Write(Write),
    /// Copy the data of the SMALL in a slot.
    Copy {
        /// The slot.
        slot: u32,
        /// The place for them.
        to: Buffer,
    },
    /// Copy data of the ring.
    CopyRing {
        /// The first byte of the ring.
        at: u32,
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

#[derive(Debug)]
enum End {
    Packets(Packets),
    Bytes(Bytes),
}

/// The question whether the peer has all that this end has sent: a PING behind FIN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Last {
    No,
    /// Not sent: FIN, or the answer to another PING, comes first.
    Wanted,
    Asked,
    Answered,
}

/// An end of a connection.
#[derive(Debug)]
pub struct Connection {
    kind: Kind,
    end: End,
    pulse: Pulse,
    last: Last,
    looking: Looking,
    windows: bool,
    /// The peer's places for notices, and their ring.
    places: Option<(NoticePlaces, Remote)>,
}

/// Call the same function of either kind.
macro_rules! of {
    ($self:ident, $end:ident => $call:expr) => {
        match &$self.end {
            End::Packets($end) => $call,
            End::Bytes($end) => $call,
        }
    };
    (mut $self:ident, $end:ident => $call:expr) => {
        match &mut $self.end {
            End::Packets($end) => $call,
            End::Bytes($end) => $call,
        }
    };
}

impl Connection {
    /// An end whose peer says `theirs`. `reads` READs may be outstanding, at least 1, and `places` operations pending
    /// in each direction. `None`: the two kinds differ.
    pub fn new(ours: Settings, theirs: Hello, reads: usize, places: usize) -> Option<Connection> {
        let Hello { windows, mapped, ring, settings } = theirs;
        let notice_places = mapped.then(|| (NoticePlaces::new(settings.ring, settings.credits), ring));
        // This end has posted receives for the answers to that many. The peer's places are as many as it says.
        let settings = Settings { credits: settings.credits.min(ours.credits), ..settings };
        let end = match ours.kind {
            Kind::SeqPacket => End::Packets(Packets::new(ours, settings, reads, places)),
            Kind::Stream => End::Bytes(Bytes::new(ours, Hello { settings, ..theirs }, places)),
        };
        let (pulse, last, looking) = (Pulse::default(), Last::No, Looking::default());
        let connection = Connection { kind: ours.kind, end, pulse, last, looking, windows, places: notice_places };
        (ours.kind == settings.kind).then_some(connection)
    }

    /// Receives that an end posts before it is connected, and keeps posted: see the module.
    pub fn slots(ours: &Settings, theirs_credits: u16) -> u32 {
        let (ours_credits, theirs) = (u32::from(ours.credits), u32::from(theirs_credits));
        match ours.kind {
            Kind::SeqPacket => ours_credits + theirs + 8,
            Kind::Stream => {
                let credits = ours_credits.min(theirs);
                2 * credits + acks(credits) + 10
            }
        }
    }

    /// See [`Hello::windows`], of the peer.
    pub fn peer_has_windows(&self) -> bool {
        self.windows
    }

    /// See [`Hello::mapped`], of the peer.
    pub fn peer_ring_is_mapped(&self) -> bool {
        self.places.is_some()
    }

    /// The place for a notice with this number. `None`: the peer does not look at notices.
    pub fn place_of_notice(&self, number: u32) -> Option<Remote> {
        let (places, ring) = self.places.filter(|_| self.looking.peer)?;
        // The end of the last one was checked when it came.
        Some(Remote { addr: ring.addr + places.of(number), ..ring })
    }

    /// True if the peer may write notices: from LOOKS to SLEPT.
    #[inline(always)]
    pub fn looks(&self) -> bool {
        !self.looking.may_begin()
    }

    /// True if [`Connection::look`] would say something.
    pub fn may_look(&self) -> bool {
        self.looking.may_begin() && self.dead().is_none()
    }

    /// Tell the peer that this end looks at notices. It has places for them.
    pub fn look(&mut self) {
        let message = self.looking.begin();
        self.say(message);
    }

    /// Tell the peer, if it was told so before, that this end looks no more.
    pub fn stop_looking(&mut self) {
        let message = self.looking.end();
        self.say(message);
    }

    fn say(&mut self, message: Option<Message>) {
        if let Some(message) = message.filter(|_| self.dead().is_none()) {
            of!(mut self, end => end.outputs.push_back(Output::Send(message, None)));
        }
    }

    /// True when no send is pending and FIN, if it was wanted, has been handed out.
    pub fn is_flushed(&self) -> bool {
        of!(self, end => end.is_flushed())
    }

    /// The reason why the connection ended.
    pub fn dead(&self) -> Option<Reset> {
        of!(self, end => end.dead())
    }

    /// True if a send would be taken.
    pub fn is_writable(&self) -> bool {
        of!(self, end => end.is_writable())
    }

    /// True if a receive would have an end: data that no receive takes are there, or no more will come.
    pub fn is_readable(&self) -> bool {
        self.dead().is_some() || of!(self, end => end.is_readable())
    }

    /// Bytes that a stream has sent, by their way; none for SEQPACKET.
    pub fn transferred_by_way(&self) -> Transferred {
        match &self.end {
            End::Packets(_) => Transferred::default(),
            End::Bytes(end) => end.transferred,
        }
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Output> {
        of!(mut self, end => end.outputs.pop_front())
    }

    /// True if there is something to do.
    #[inline]
    pub fn has_outputs(&self) -> bool {
        of!(self, end => !end.outputs.is_empty())
    }

    /// True if the next thing to do goes to the wire; the surroundings may leave it until the send queue has room.
    pub fn next_needs_wire(&self) -> bool {
        let next = of!(self, end => end.outputs.front());
        matches!(next, Some(Output::Send(..) | Output::End(..) | Output::Read(_) | Output::Write(_)))
    }

    fn check(&self, len: u64) -> Result<(), Refused> {
        if len > MAX_LEN {
            return Err(Refused::Long);
        }
        if len == 0 && self.kind == Kind::Stream { Err(Refused::Empty) } else { Ok(()) }
    }

    /// Begin a send of a buffer, which belongs to the connection until the operation is done. `persistent`
    /// (EXS_PERSISTENT, not for a stream): it stays until it is cancelled, and each receive of the peer reads it.
    pub fn send(&mut self, op: Op, buffer: Buffer, persistent: bool) -> Result<(), Refused> {
        self.check(buffer.len)?;
        match &mut self.end {
            End::Packets(end) => end.send(op, buffer, persistent),
            End::Bytes(_) if persistent => Err(Refused::NotSupported),
            End::Bytes(end) => end.send(op, buffer),
        }
    }

    /// Begin a receive into a buffer, which belongs to the connection until the operation is done. `wait_all`
    /// (MSG_WAITALL): a receive of a stream is done when its buffer is full, or at the end of the peer's data.
    pub fn receive(&mut self, op: Op, buffer: Buffer, wait_all: bool) -> Result<(), Refused> {
        self.check(buffer.len)?;
        match &mut self.end {
            End::Packets(end) => end.receive(op, buffer),
            End::Bytes(end) => end.receive(op, buffer, wait_all),
        }
    }

    /// Copy what a receive would get now, and leave it there (MSG_PEEK): bytes of the ring, or small data. It waits for
    /// nothing, and ends at once.
    pub fn peek(&mut self, op: Op, buffer: Buffer) -> Result<(), Refused> {
        self.check(buffer.len)?;
        of!(mut self, end => end.peek(op, buffer))
    }

    /// Ask for an operation's end. True: its event will come, which may be [`super::Outcome::Cancelled`], or another
    /// one if it was too late. False: it is too late for a receive, or there is no such operation.
    pub fn cancel(&mut self, op: Op) -> bool {
        of!(mut self, end => end.cancel(op))
    }

    /// Cancel all receives into which nothing goes yet.
    pub fn cancel_receives(&mut self) {
        let ops = match &self.end {
            End::Packets(end) => end.receiving(),
            End::Bytes(end) => end.receiving(),
        };
        for op in ops {
            self.cancel(op);
        }
    }

    /// Send nothing more, after what is pending (SHUT_WR).
    pub fn shutdown(&mut self) {
        of!(mut self, end => end.shutdown());
    }

    /// Take a message in, which a SEND of `len` bytes has brought into a slot, the header first. True: the slot stays
    /// in use until [`Output::Free`]; false: it is to be posted now.
    ///
    /// An error is a breach of the protocol. The caller ends the connection, then calls [`Connection::reset`].
    pub fn arrived(&mut self, slot: u32, header: &[u8; HEADER], len: usize) -> Result<bool, Reset> {
        if self.dead().is_some() {
            return Ok(false);
        }
        let message = Message::parse(header, len)?;
        self.pulse.hear();
        match message {
            Message::Ping => return self.asked().map(|()| false),
            Message::Pong => {
                self.pulse.answered()?;
                if self.last == Last::Asked {
                    self.last = Last::Answered;
                }
                return Ok(false);
            }
            Message::Looks if self.places.is_none() => return Err(Reset::Protocol),
            Message::Looks | Message::Sleeps | Message::Slept => {
                let answer = self.looking.take(message)?;
                self.say(answer);
                return Ok(false);
            }
            _ => {}
        }
        match &mut self.end {
            End::Packets(end) => end.arrived(slot, message),
            End::Bytes(end) => end.arrived(message).map(|()| false),
        }
    }

    /// Take the messages of a SEND in that has more bytes than a header, and begins with one that may share it
    /// ([`Message::may_share`]). The slot is to be posted now. An error is as that of [`Connection::arrived`].
    pub fn arrived_together(&mut self, slot: u32, bytes: &[u8]) -> Result<(), Reset> {
        let (headers, rest) = bytes.as_chunks::<HEADER>();
        let of_one_type = headers.windows(2).all(|pair| pair[0][0] == pair[1][0]);
        if !rest.is_empty() || headers.len() > TOGETHER || !of_one_type {
            return Err(Reset::Protocol);
        }
        for header in headers {
            // None of these stays in its slot.
            self.arrived(slot, header, HEADER)?;
        }
        Ok(())
    }

    /// Take a message in that needs nothing but the next receive: small data. The caller copies them to their place,
    /// ends the receive, and posts the slot. `None`: [`Connection::arrived`] is to take it in.
    #[inline(always)]
    pub fn take_at_once(&mut self, header: &[u8; HEADER], len: usize) -> Option<Taken> {
        let End::Packets(end) = &mut self.end else { return None };
        let (seq, len) = Message::parse_small(header, len)?;
        let taken = end.take_at_once(seq, len)?;
        self.pulse.hear();
        Some(taken)
    }

    /// Take a notice in: the value of DATA and the number of bytes, or the number of an ACK and 0. An error is a
    /// breach, as that of [`Connection::arrived`].
    pub fn noticed(&mut self, value: u32, len: u32) -> Result<(), Reset> {
        match &mut self.end {
            End::Bytes(_) => self.transferred(value, len),
            End::Packets(_) if len > 0 => Err(Reset::Protocol),
            End::Packets(end) => {
                self.pulse.hear();
                // It is in no slot.
                end.arrived(0, Message::Ack { seq: value }).map(drop)
            }
        }
    }

    /// True if a message since the last question has ended a send whose data the peer has READ.
    pub fn was_read(&mut self) -> bool {
        if let End::Packets(end) = &mut self.end { std::mem::take(&mut end.was_read) } else { false }
    }

    /// Take the completion of a WRITE of the peer in, with its immediate value and the number of bytes. An error is a
    /// breach, as that of [`Connection::arrived`].
    pub fn transferred(&mut self, imm: u32, len: u32) -> Result<(), Reset> {
        self.pulse.hear();
        match &mut self.end {
            _ if self.kind == Kind::SeqPacket => Err(Reset::Protocol),
            End::Bytes(end) => end.transferred(Immediate::parse(imm), len),
            End::Packets(_) => Err(Reset::Protocol),
        }
    }

    /// So many of the oldest READs (SEQPACKET) or WRITEs (STREAM) are completed; after [`Connection::reset`], also
    /// without success.
    pub fn transfers_done(&mut self, count: usize) {
        match &mut self.end {
            End::Packets(end) => end.reads_done(count),
            End::Bytes(end) => (0..count).for_each(|_| end.write_done()),
        }
    }

    /// The WRITE that was handed out last was not posted, and [`Connection::reset`] was called. Older ones may be under
    /// way.
    pub fn write_dropped(&mut self) {
        if let End::Bytes(end) = &mut self.end {
            end.write_dropped();
        }
    }

    /// Answer a PING. The peer asks again only after an answer.
    fn asked(&mut self) -> Result<(), Reset> {
        let outputs = of!(mut self, end => &mut end.outputs);
        if outputs.iter().any(|output| matches!(output, Output::Send(Message::Pong, _))) {
            return Err(Reset::Protocol);
        }
        outputs.push_back(Output::Send(Message::Pong, None));
        Ok(())
    }

    /// Ask the peer, after [`Connection::shutdown`], whether it has all. The peer takes messages in their order, so its
    /// PONG says so. To be called again until [`Connection::has_all`].
    pub fn ask_for_all(&mut self) {
        if self.last == Last::No {
            self.last = Last::Wanted;
        }
        if self.last == Last::Wanted && self.dead().is_none() && self.is_flushed() && self.pulse.ask() {
            self.last = Last::Asked;
            of!(mut self, end => end.outputs.push_back(Output::Send(Message::Ping, None)));
        }
    }

    /// True if [`Connection::ask_for_all`] has no answer yet.
    pub fn asks_for_all(&self) -> bool {
        matches!(self.last, Last::Wanted | Last::Asked)
    }

    /// True if the peer has answered [`Connection::ask_for_all`].
    pub fn has_all(&self) -> bool {
        self.last == Last::Answered
    }

    /// A piece of time has passed, in which everything was taken in that came. `waits`: this end waits for the peer. An
    /// error: the peer has said nothing for `timeout`, and has not answered; then as with [`Connection::arrived`]. The
    /// caller's clock goes in pieces of at most a quarter of the timeout.
    pub fn tick(&mut self, passed: Duration, timeout: Duration, waits: bool) -> Result<(), Reset> {
        if self.dead().is_some() {
            return Ok(());
        }
        match self.pulse.tick(passed, timeout, waits) {
            Beat::Nothing => {}
            Beat::Ask => of!(mut self, end => end.outputs.push_back(Output::Send(Message::Ping, None))),
            Beat::Stopped => return Err(Reset::Stopped),
        }
        Ok(())
    }

    /// The data of a SMALL are not needed any more: the device has taken them.
    pub fn small_done(&mut self, op: Op) {
        if let End::Packets(end) = &mut self.end {
            end.small_done(op);
        }
    }

    /// Begin and end a send of data that the device takes at once: the message, which is to be sent before anything
    /// else is done. `None`: [`Connection::send`] is to begin it.
    #[inline(always)]
    pub fn send_at_once(&mut self, len: u64) -> Option<Message> {
        match &mut self.end {
            End::Packets(end) => end.send_at_once(len),
            End::Bytes(_) => None,
        }
    }

    /// The message of [`Connection::send_at_once`] is sent. True: there is something to do behind it.
    #[inline(always)]
    pub fn sent_at_once(&mut self) -> bool {
        match &mut self.end {
            End::Packets(end) => end.give_back_behind(),
            End::Bytes(_) => false,
        }
    }

    /// The connection is gone. The caller has moved the queue pair to ERR before: the peer reaches no buffer of this
    /// end any more. An operation is done when its READs and WRITEs are.
    pub fn reset(&mut self, why: Reset) {
        of!(mut self, end => end.reset(why));
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
