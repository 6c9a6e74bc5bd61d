//! The side that has accepted a TCP connection (RFC 5044, section 7.1.2; RFC 6581, section 9).

use wire::mpa::{enhanced, start as wire_start};

use super::frame::{Incoming, Outgoing};
use super::start::{Agreed, Failure, LEFT_TO_PROGRAM, ReadyKinds, Role, TooLong, Wishes};
use crate::Nanos;

/// A responder until full operation.
#[derive(Clone, Debug)]
pub struct Responder {
    wishes: Wishes,
    request: Incoming,
    frame: Option<wire_start::Repr>,
    reply: Outgoing,
    deadline: Nanos,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The request is not whole yet.
    Waiting,
    /// The program has to accept or reject it.
    Asked,
    Answered,
    Failed,
}

/// The wishes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// READ requests that the initiator takes at a time; `None` if it does not say.
    pub ird: Option<u16>,
    /// READ requests that the initiator wants to have outstanding.
    pub ord: Option<u16>,
    /// The initiator wants the peer-to-peer model.
    pub peer_to_peer: bool,
}

impl Responder {
    /// The side that has just accepted a TCP connection.
    pub fn new(wishes: Wishes, now: Nanos) -> Responder {
        Responder {
            wishes,
            request: Incoming::EMPTY,
            frame: None,
            reply: Outgoing::EMPTY,
            deadline: now.saturating_add(wishes.timeout),
            state: State::Waiting,
        }
    }

    /// When [`Responder::timeout`] is to be called. The program may take its time to answer.
    pub fn deadline(&self) -> Option<Nanos> {
        (self.state == State::Waiting).then_some(self.deadline)
    }

    /// Takes note of the time.
    ///
    /// # Errors
    /// [`Failure::Timeout`] if the request is late.
    pub fn timeout(&mut self, now: Nanos) -> Result<(), Failure> {
        if self.state != State::Waiting || now < self.deadline {
            return Ok(());
        }
        self.state = State::Failed;
        Err(Failure::Timeout)
    }

    /// Bytes from the initiator, in pieces of any size; what they ask for, when the request is whole.
    ///
    /// # Errors
    /// The connection is to be closed.
    pub fn input(&mut self, bytes: &[u8]) -> Result<Option<Asked>, Failure> {
        let asked = match self.state {
            State::Waiting => self.ask(bytes),
            _ if bytes.is_empty() => Ok(None),
            // RFC 5044, section 7.1.2: the initiator sends no FPDU before it has the reply.
            _ => Err(Failure::Early),
        };
        match asked {
            Ok(None) => {}
            Ok(Some(_)) => self.state = State::Asked,
            Err(_) => self.state = State::Failed,
        }
        asked
    }

    fn ask(&mut self, bytes: &[u8]) -> Result<Option<Asked>, Failure> {
        let Some(frame) = self.request.take(bytes)? else { return Ok(None) };
        if frame.reply {
            return Err(Failure::Key);
        }
        // RFC 5044, section 7.1.1, and RFC 6581, section 10: the connection is closed.
        if frame.revision > self.wishes.revision as u8 {
            return Err(Failure::Revision);
        }
        self.frame = Some(frame);
        let (said, _) = self.request.data(&frame);
        Ok(Some(Asked {
            ird: said.map(|said| said.ird),
            ord: said.map(|said| said.ord),
            peer_to_peer: said.is_some_and(|said| said.peer_to_peer),
        }))
    }

    /// The private data of the program at the other side, once the request is there.
    pub fn private_data(&self) -> &[u8] {
        self.frame.as_ref().map_or(&[], |frame| self.request.data(frame).1)
    }

    /// Accepts the request, with these depths in place of those of the wishes. Full operation starts when the output is
    /// sent; nothing comes in before that. `None` if there is no request to accept.
    ///
    /// # Errors
    /// [`TooLong`]: at most 512 bytes, or 508 if the request has enhanced data.
    pub fn accept(&mut self, ird: u16, ord: u16, private_data: &[u8]) -> Result<Option<Agreed>, TooLong> {
        let Some(frame) = self.frame.filter(|_| self.state == State::Asked) else { return Ok(None) };
        let mut agreed = Agreed {
            role: Role::Responder,
            // RFC 5044, section 7.1.1: CRCs are used if either side asks; markers where the receiver asks.
            crc: self.wishes.crc || frame.crc,
            markers_in: self.wishes.markers,
            markers_out: frame.markers,
            ird,
            ord,
            ready: None,
            awaits_ready: false,
            unmet: None,
        };
        let said = self.request.data(&frame).0.map(|asked| self.negotiate(&asked, &mut agreed));
        self.reply = Outgoing::new(self.reply_frame(&frame, false), said, private_data)?;
        self.state = State::Answered;
        Ok(Some(agreed))
    }

    /// The enhanced data of the reply (RFC 6581, section 9).
    fn negotiate(&self, asked: &enhanced::Repr, agreed: &mut Agreed) -> enhanced::Repr {
        // RFC 6581, section 9.1: the responder's ORD is at most the initiator's IRD.
        if asked.ird != LEFT_TO_PROGRAM && agreed.ord != LEFT_TO_PROGRAM {
            agreed.ord = agreed.ord.min(asked.ird);
        }
        let offered = offered(asked);
        // RFC 6581, section 9.2: the reply has the peer-to-peer flag if and only if the request has it.
        let kinds = asked.peer_to_peer.then(|| ReadyKinds::answer(self.wishes.ready, offered));
        agreed.awaits_ready = kinds.is_some();
        if kinds.is_some_and(|kinds| kinds.read) {
            agreed.ird = agreed.ird.max(1);
        }
        let mut said = Wishes { ird: agreed.ird, ord: agreed.ord, ready: kinds, ..self.wishes }.enhanced();
        // RFC 6581, section 9.1: what the initiator leaves to the programs is left to them in the reply's crossed
        // field.
        if asked.ird == LEFT_TO_PROGRAM {
            said.ord = LEFT_TO_PROGRAM;
        }
        if asked.ord == LEFT_TO_PROGRAM {
            said.ird = LEFT_TO_PROGRAM;
        }
        said
    }

    /// Refuses the request. The TCP connection is closed when the output is sent. `false` if there is no request.
    ///
    /// # Errors
    /// [`TooLong`]: at most 512 bytes, or 508 if the request has enhanced data.
    pub fn reject(&mut self, private_data: &[u8]) -> Result<bool, TooLong> {
        let Some(frame) = self.frame.filter(|_| self.state == State::Asked) else { return Ok(false) };
        let enhanced = self.request.data(&frame).0.map(|asked| {
            // RFC 6581, section 9.1: the depths that this side would have wanted, whatever the initiator has.
            let offered = offered(&asked);
            let ready = asked.peer_to_peer.then(|| ReadyKinds::answer(self.wishes.ready, offered));
            Wishes { ready, ..self.wishes }.enhanced()
        });
        self.reply = Outgoing::new(self.reply_frame(&frame, true), enhanced, private_data)?;
        self.state = State::Answered;
        Ok(true)
    }

    /// A reply to this request. RFC 6581, section 10: it has enhanced data if and only if the request has. It has the
    /// request's revision.
    fn reply_frame(&self, request: &wire_start::Repr, rejected: bool) -> wire_start::Repr {
        wire_start::Repr {
            reply: true,
            markers: self.wishes.markers,
            crc: self.wishes.crc || request.crc,
            rejected,
            enhanced: request.enhanced,
            revision: request.revision,
            private_data_len: 0,
        }
    }

    /// Bytes to be sent now.
    pub fn output(&self) -> &[u8] {
        self.reply.rest()
    }

    /// Drops so many bytes of the output: TCP has taken them.
    pub fn sent(&mut self, bytes: usize) {
        self.reply.advance(bytes);
    }

    /// Ends the start: the TCP connection has ended.
    pub fn closed(&mut self) -> Failure {
        self.state = State::Failed;
        Failure::Closed
    }
}

/// The messages that say "ready to receive" in enhanced data.
fn offered(asked: &enhanced::Repr) -> ReadyKinds {
    ReadyKinds { send: asked.ready_by_send, write: asked.ready_by_write, read: asked.ready_by_read }
}
