//! Messages of this side (RFC 5040, section 5).

use verbs::RKey;
use wire::ddp::untagged;
use wire::rdmap::control::{self, Opcode};
use wire::rdmap::{queue, read_request, terminate};

use super::inbound::check_wrap;
use super::stream::{Phase, READY_STAG, Stream};
use crate::ddp::{Message, Model, Segment};
use crate::mpa::Ready;
use crate::mpa::send::{Payload, Sink};

/// A message to be sent. There is none for what RFC 7306 adds: this side does not have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A SEND of any kind.
    Send {
        /// Its bytes.
        len: u32,
        /// The receiver is to have an event.
        solicited: bool,
        /// The receiver's region that is to be invalidated.
        invalidate: Option<RKey>,
    },
    /// A WRITE.
    Write {
        /// The receiver's region.
        stag: RKey,
        /// The offset in the region.
        offset: u64,
        /// Its bytes.
        len: u32,
    },
    /// A READ request; it has no payload.
    Read(read_request::Repr),
    /// The answer to this request of the peer. RFC 5040, section 5.2.2: requests are answered in their order.
    Response(read_request::Repr),
}

/// Why a message cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The stream has ended.
    Over,
    /// A responder waits for the first FPDU.
    NotYet,
    /// [`Stream::urgent`] has something to send first.
    Urgent,
    /// Another message is being sent.
    Busy,
    /// So many READs as were agreed upon are outstanding.
    Depth,
    /// The end of the place wraps.
    Wrap,
    /// The peer has no READ outstanding.
    NotAsked,
}

/// The messages that are being sent.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    /// The message that says "ready to receive", until it is sent.
    ready: Option<Ready>,
    work: Option<(Work, Message)>,
    /// The number of the next message of a queue.
    next_send: u32,
    next_request: u32,
}

impl Outgoing {
    pub(super) fn new(ready: Option<Ready>) -> Outgoing {
        // RFC 5041, section 4.3: the first message of a queue is number 1.
        Outgoing { ready, work: None, next_send: 1, next_request: 1 }
    }

    pub(super) fn drop_work(&mut self) {
        self.work = None;
        self.ready = None;
    }

    /// A message with the next number of its queue.
    fn message(&mut self, work: &Work) -> Message {
        match *work {
            Work::Send { len, solicited, invalidate } => {
                let opcode = match (solicited, invalidate) {
                    (false, None) => Opcode::Send,
                    (false, Some(_)) => Opcode::SendInvalidate,
                    (true, None) => Opcode::SendSolicited,
                    (true, Some(_)) => Opcode::SendSolicitedInvalidate,
                };
                // RFC 5040, section 4.1: the field is zero in a message that invalidates nothing.
                let invalidate = invalidate.map_or(0, |stag| stag.0);
                let model = Model::Untagged { queue: queue::SEND, message: self.next_send, invalidate };
                self.next_send = self.next_send.wrapping_add(1);
                Message::new(model, upper(opcode), len)
            }
            Work::Write { stag, offset, len } => {
                Message::new(Model::Tagged { stag, offset }, upper(Opcode::Write), len)
            }
            Work::Read(_) => {
                let model = Model::Untagged { queue: queue::REQUEST, message: self.next_request, invalidate: 0 };
                self.next_request = self.next_request.wrapping_add(1);
                Message::new(model, upper(Opcode::ReadRequest), 0)
            }
            // RFC 5040, section 4.4: the response names the sink as the request does.
            Work::Response(read_request::Repr { sink_stag: stag, sink_offset: offset, size, .. }) => {
                Message::new(Model::Tagged { stag, offset }, upper(Opcode::ReadResponse), size)
            }
        }
    }
}

/// The control byte.
fn upper(opcode: Opcode) -> u8 {
    let [byte] = control::Repr { opcode }.emit();
    byte
}

/// Headers that are one behind the other.
struct Joined {
    bytes: [u8; untagged::LEN + terminate::MAX_LEN],
    len: usize,
}

impl Joined {
    fn new(header: &[u8], rest: &[u8]) -> Joined {
        let mut joined = Joined { bytes: [0; untagged::LEN + terminate::MAX_LEN], len: header.len() + rest.len() };
        for (room, byte) in joined.bytes.iter_mut().zip(header.iter().chain(rest)) {
            *room = *byte;
        }
        joined
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl Stream {
    /// Starts a message. [`Stream::send`] sends its segments, one after the other. RFC 5040, section 5.5: messages are
    /// sent in the order in which the program has posted them.
    ///
    /// # Errors
    /// Why it cannot be sent, now or at all.
    pub fn start(&mut self, work: Work) -> Result<(), Refused> {
        if self.phase != Phase::Open {
            return Err(Refused::Over);
        }
        if !self.may_send() {
            return Err(Refused::NotYet);
        }
        if self.outgoing.ready.is_some() {
            return Err(Refused::Urgent);
        }
        if self.outgoing.work.is_some() {
            return Err(Refused::Busy);
        }
        let wraps = |offset, len| check_wrap(offset, len).map_err(|_| Refused::Wrap);
        match &work {
            Work::Send { .. } => {}
            Work::Write { offset, len, .. } => wraps(*offset, *len)?,
            Work::Read(request) => {
                wraps(request.sink_offset, request.size)?;
                wraps(request.source_offset, request.size)?;
                // RFC 5040, section 6.1: no more than the responder takes.
                if !self.reads.has_room() {
                    return Err(Refused::Depth);
                }
            }
            Work::Response(_) if self.asked == 0 => return Err(Refused::NotAsked),
            Work::Response(_) => {}
        }
        let message = self.outgoing.message(&work);
        self.outgoing.work = Some((work, message));
        Ok(())
    }

    /// Sends the next segment of the message that was started; `payload` is that message's. True if it was the last
    /// one. `None` if there is none.
    pub fn send<P: Payload + ?Sized>(&mut self, payload: &P, sink: &mut impl Sink) -> Option<bool> {
        let (work, mut message) = self.outgoing.work.filter(|_| self.phase == Phase::Open)?;
        let Segment { header, range, last } = message.next(self.sender.mulpdu())?;
        // Segments fit: the sender has said how long they may be.
        let framed = match &work {
            Work::Read(request) => {
                self.reads.push(request, false);
                self.sender.frame(Joined::new(&header, &request.emit()).bytes(), &[][..], 0..0, sink)
            }
            _ => self.sender.frame(&header, payload, range, sink),
        };
        if framed.is_err() {
            self.fail();
            return None;
        }
        self.outgoing.work = (!last).then_some((work, message));
        if last && matches!(work, Work::Response(_)) {
            self.asked = self.asked.saturating_sub(1);
        }
        Some(last)
    }

    /// Sends what comes before all else, if anything does: a message that says "ready to receive"
    /// (RFC 6581, section 5), or the Terminate message at the end. To be called whenever something may be sent.
    pub fn urgent(&mut self, sink: &mut impl Sink) -> bool {
        if let Phase::Ending(bytes) = self.phase {
            self.phase = Phase::Over;
            // RFC 5040, section 5.4: a message of queue 2, the only one, so its number is 1.
            let model = Model::Untagged { queue: queue::TERMINATE, message: 1, invalidate: 0 };
            return self.single(model, Opcode::Terminate, &bytes, sink);
        }
        let Some(ready) = self.outgoing.ready.take() else { return false };
        match ready {
            Ready::Write => self.single(Model::Tagged { stag: READY_STAG, offset: 0 }, Opcode::Write, &[], sink),
            Ready::Send => {
                let model = Model::Untagged { queue: queue::SEND, message: self.outgoing.next_send, invalidate: 0 };
                self.outgoing.next_send = self.outgoing.next_send.wrapping_add(1);
                self.single(model, Opcode::Send, &[], sink)
            }
            Ready::Read => {
                let request = read_request::Repr {
                    sink_stag: READY_STAG,
                    sink_offset: 0,
                    size: 0,
                    source_stag: READY_STAG,
                    source_offset: 0,
                };
                self.reads.push(&request, true);
                let message = self.outgoing.next_request;
                self.outgoing.next_request = message.wrapping_add(1);
                let model = Model::Untagged { queue: queue::REQUEST, message, invalidate: 0 };
                self.single(model, Opcode::ReadRequest, &request.emit(), sink)
            }
        }
    }

    /// Sends a message of one segment with a payload of ours.
    fn single(&mut self, model: Model, opcode: Opcode, payload: &[u8], sink: &mut impl Sink) -> bool {
        let Some(segment) = Message::new(model, upper(opcode), 0).next(self.sender.mulpdu()) else { return false };
        self.sender.frame(Joined::new(&segment.header, payload).bytes(), &[][..], 0..0, sink).is_ok()
    }

    /// True if a message has been started and is not sent.
    pub fn is_sending(&self) -> bool {
        self.outgoing.work.is_some()
    }

    /// Sets another size of TCP's segments.
    pub fn set_emss(&mut self, emss: usize) {
        self.sender.set_emss(emss);
    }

    /// Bytes of the stream that have been sent.
    pub fn sent(&self) -> u64 {
        self.sender.position()
    }
}
