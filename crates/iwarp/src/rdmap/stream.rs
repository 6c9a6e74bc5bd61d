//! A connection in full operation: its state, and how it ends.

use alloc::vec::Vec;

use verbs::RKey;
use wire::ddp::untagged;
use wire::mpa::fpdu::Crc;
use wire::rdmap::control::{self, Opcode};
use wire::rdmap::{queue, read_request};

use super::early::Kept;
use super::fault::Fault;
use super::inbound::Incoming;
use super::outbound::Outgoing;
use super::reads::Reads;
use super::target::Place;
use super::terminate::{Bytes, Headers, Terminated};
use crate::Nanos;
use crate::ddp::{Queue, TagFault};
use crate::mpa::start::REQUEST_TIMEOUT;
use crate::mpa::{Agreed, Receiver, Role, Sender};

/// Facts about a stream's surroundings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of TCP's segments, or more for longer FPDUs.
    pub emss: usize,
    /// Segments of at least so many bytes are placed while they come in, before their CRC is checked.
    /// [`crate::mpa::receive`] says what that means.
    pub early_from: u32,
    /// How many FPDUs are remembered that were placed before those in front of them. Each takes 48 bytes.
    pub early_fpdus: usize,
}

impl Config {
    /// For TCP segments of this size: checks come before placements, and 64 early FPDUs are remembered.
    pub const fn new(emss: usize) -> Config {
        Config { emss, early_from: u32::MAX, early_fpdus: 64 }
    }
}

/// Why nothing comes from a stream any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// This side has found an error. [`Stream::urgent`] tells the peer, if it may be told.
    Fault(Fault),
    /// The peer has ended the stream.
    Terminated(Terminated),
    /// The TCP connection was closed between two messages.
    Closed,
    /// The TCP connection was closed inside of a message (RFC 5041, section 6.2.2).
    Torn,
    /// The message that says "ready to receive" did not come in time.
    Timeout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// A Terminate message is to be sent, and nothing else.
    Ending(Bytes),
    Over,
}

/// The queues of untagged messages (RFC 5040, section 4.1).
#[derive(Clone, Debug, Default)]
pub(super) struct Queues {
    pub(super) send: Queue,
    pub(super) request: Queue,
    pub(super) terminate: Queue,
}

/// A connection in full operation.
///
/// Its bounds: one message under way in each direction, as many READs as were agreed upon, so many early FPDUs as the
/// configuration says. What was allocated when it was made is all that it allocates.
#[derive(Clone, Debug)]
pub struct Stream {
    pub(super) agreed: Agreed,
    pub(super) receiver: Receiver,
    pub(super) sender: Sender,
    /// The segment that is coming in.
    pub(super) incoming: Option<Incoming>,
    pub(super) queues: Queues,
    /// The READ request or the Terminate message that is coming in.
    pub(super) small: [u8; SMALL],
    pub(super) reads: Reads,
    /// READ requests of the peer that have not been answered.
    pub(super) asked: u16,
    /// FPDUs that were placed before those in front of them, in the order of the stream.
    pub(super) kept: Vec<Kept>,
    pub(super) most_kept: usize,
    /// A valid FPDU has come.
    pub(super) heard: bool,
    /// FPDUs that have come.
    pub(super) fpdus_in: u64,
    pub(super) outgoing: Outgoing,
    pub(super) phase: Phase,
    end: Option<End>,
    deadline: Option<Nanos>,
}

/// Bytes of a READ request, or of a Terminate message and a little more.
pub(super) const SMALL: usize = 64;

impl Stream {
    /// A connection with this outcome of its start.
    pub fn new(agreed: &Agreed, config: &Config, now: Nanos) -> Stream {
        let mut stream = Stream {
            agreed: *agreed,
            receiver: Receiver::new(agreed, config.early_from),
            sender: Sender::new(agreed, config.emss),
            incoming: None,
            queues: Queues::default(),
            small: [0; SMALL],
            reads: Reads::new(agreed.ord),
            asked: 0,
            kept: Vec::with_capacity(config.early_fpdus),
            most_kept: config.early_fpdus,
            heard: false,
            fpdus_in: 0,
            outgoing: Outgoing::new(agreed.ready),
            phase: Phase::Open,
            end: None,
            deadline: agreed.awaits_ready.then(|| now.saturating_add(REQUEST_TIMEOUT)),
        };
        if let Some(unmet) = agreed.unmet {
            stream.fault(Fault::Start(unmet), None);
        }
        stream
    }

    /// The place in the stream of the next byte that is wanted. Bytes of FPDUs that were placed early are not wanted
    /// again.
    pub fn position(&self) -> u64 {
        self.receiver.position()
    }

    /// FPDUs and bytes of FPDUs so far: made, and come.
    pub fn progress(&self) -> [(u64, u64); 2] {
        [(self.sender.fpdus(), self.sender.position()), (self.fpdus_in, self.receiver.position())]
    }

    /// Most bytes of a segment, with its headers, that this side sends.
    pub fn mulpdu(&self) -> u16 {
        self.sender.mulpdu()
    }

    /// How many bytes of input, from [`Stream::position`] on, bring the FPDU at the front to its end, if that is known.
    pub fn fpdu_len(&self, input: &[u8]) -> Option<usize> {
        self.receiver.fpdu_len(input)
    }

    /// The next bytes of the stream may be read directly to this place, at most so many. [`Stream::pass`] is called
    /// then in place of [`Stream::input`].
    pub fn direct(&self) -> Option<(Place, usize)> {
        let place = self.incoming.as_ref().filter(|_| self.phase == Phase::Open)?.place()?;
        let len = self.receiver.direct();
        (len > 0).then_some((place, len))
    }

    /// Counts bytes of the stream that have been read directly to their place; `crc` takes them into a CRC.
    pub fn pass(&mut self, len: usize, crc: impl FnOnce(Crc) -> Crc) {
        let Some((_, most)) = self.direct() else { return };
        let len = len.min(most);
        self.receiver.pass(len, crc);
        if let Some(incoming) = &mut self.incoming {
            incoming.pass(len);
        }
    }

    /// Notes that the place of [`Stream::direct`] has gone. The segment's other bytes are passed over; the error counts
    /// when its FPDU is whole.
    pub fn lose_place(&mut self, why: TagFault) {
        if let Some(incoming) = &mut self.incoming {
            incoming.lose(why);
        }
    }

    /// True if this side may send. RFC 5044, section 7.1.2: a responder sends no FPDU before it has received a valid
    /// one.
    pub fn may_send(&self) -> bool {
        self.agreed.role == Role::Initiator || self.heard
    }

    /// Why nothing comes from this stream any longer. Its TCP connection is closed: after the output of
    /// [`Stream::urgent`] has been sent, with FIN, and what still comes is read and thrown away, as TCP would answer it
    /// with RST, which may overtake a Terminate message.
    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    pub(super) fn set_end(&mut self, end: End) {
        self.end.get_or_insert(end);
        self.phase = Phase::Over;
        self.outgoing.drop_work();
        self.kept.clear();
        self.incoming = None;
        self.deadline = None;
    }

    /// Ends the stream for an error of the peer, or of this side. RFC 5041, section 7.1: nothing is placed or delivered
    /// any longer. RFC 5040, section 5.4: nothing is sent any longer but a Terminate message. RFC 5040, section 7.1: it
    /// is about the first error. The connection goes with its one stream (RFC 5040, section 7), and it is RDMAP that
    /// ends it, never DDP by itself (RFC 5041, section 6.2).
    pub(super) fn fault(&mut self, fault: Fault, headers: Option<&Headers>) {
        if self.phase != Phase::Open {
            return;
        }
        self.set_end(End::Fault(fault));
        if self.may_send() {
            self.phase = Phase::Ending(Bytes::new(fault, headers));
        }
    }

    /// Notes that an FPDU was valid.
    pub(super) fn hear(&mut self) {
        self.heard = true;
        self.deadline = None;
    }

    /// When [`Stream::timeout`] is to be called.
    pub fn deadline(&self) -> Option<Nanos> {
        self.deadline
    }

    /// Takes note of the time.
    pub fn timeout(&mut self, now: Nanos) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.set_end(End::Timeout);
        }
    }

    /// Notes that the peer sends nothing any more: TCP's FIN has come, and behind [`Stream::position`] there were so
    /// many bytes.
    pub fn closed(&mut self, unread: usize) {
        if self.phase != Phase::Open {
            return;
        }
        let Queues { send, request, terminate } = &self.queues;
        let within = [send, request, terminate].iter().any(|queue| queue.is_within());
        let torn = unread > 0 || within || !self.receiver.is_between();
        self.set_end(if torn { End::Torn } else { End::Closed });
    }

    /// Ends the stream: this side cannot go on, for a reason of its own.
    pub fn fail(&mut self) {
        self.fault(Fault::Local, None);
    }

    /// Refuses a READ of the peer that was delivered before: it cannot be answered any longer, or not beyond so many
    /// bytes.
    pub fn refuse(&mut self, message: u32, request: &read_request::Repr, done: u32, why: TagFault) {
        let upper = control::Repr { opcode: Opcode::ReadRequest }.emit()[0];
        let header = untagged::Repr { last: true, upper, invalidate: 0, queue: queue::REQUEST, message, offset: 0 };
        let mut headers = Headers::new((untagged::LEN + read_request::LEN) as u16);
        headers.fill(&header.emit());
        // RFC 5040, section 4.8: offsets and size as they were when the error was found.
        let request = read_request::Repr {
            sink_offset: request.sink_offset.wrapping_add(done.into()),
            size: request.size.saturating_sub(done),
            source_offset: request.source_offset.wrapping_add(done.into()),
            ..*request
        };
        self.fault(Fault::Tag(why), Some(&headers.with_request(&request)));
    }

    /// The terms that were agreed upon at the start.
    pub fn agreed(&self) -> &Agreed {
        &self.agreed
    }
}

/// The steering tag in a message that says "ready to receive": it names no region, which is not
/// looked at (RFC 5041, section 5.2). Linux has this number, too.
pub(super) const READY_STAG: RKey = RKey(1);

const _: () = assert!(SMALL >= wire::rdmap::terminate::MAX_LEN);
