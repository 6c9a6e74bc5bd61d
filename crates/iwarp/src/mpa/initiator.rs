//! The side that opens the TCP connection (RFC 5044, section 7.1.2; RFC 6581, section 9).

use wire::mpa::{enhanced, start as wire_start};

use super::frame::{Incoming, Outgoing};
use super::start::{Agreed, Failure, LEFT_TO_PROGRAM, Ready, ReadyKinds, Revision, Role, TooLong, Unmet, Wishes};
use crate::Nanos;

/// An initiator until full operation.
#[derive(Clone, Debug)]
pub struct Initiator {
    wishes: Wishes,
    request: Outgoing,
    reply: Incoming,
    frame: Option<wire_start::Repr>,
    deadline: Nanos,
    over: bool,
}

/// The effect of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The reply is not whole yet.
    None,
    /// The responder has accepted: full operation starts. [`Initiator::private_data`] are those of the reply.
    Accepted(Agreed),
    /// The responder has refused, with private data. RFC 5044, section 7.1.2 leaves the TCP connection to the program;
    /// it is of no more use here, and is closed.
    Rejected,
}

impl Initiator {
    /// The side that has just opened a TCP connection.
    ///
    /// # Errors
    /// [`TooLong`]: at most 512 bytes, with revision 2 at most 508.
    pub fn new(wishes: Wishes, private_data: &[u8], now: Nanos) -> Result<Initiator, TooLong> {
        let enhanced = (wishes.revision == Revision::Two).then(|| Initiator::offer(&wishes));
        let frame = wire_start::Repr {
            reply: false,
            markers: wishes.markers,
            crc: wishes.crc,
            rejected: false,
            enhanced: enhanced.is_some(),
            revision: wishes.revision as u8,
            private_data_len: 0,
        };
        Ok(Initiator {
            wishes,
            request: Outgoing::new(frame, enhanced, private_data)?,
            reply: Incoming::EMPTY,
            frame: None,
            deadline: now.saturating_add(wishes.timeout),
            over: false,
        })
    }

    /// The enhanced data of the request. A READ that says "ready to receive" needs a place (RFC 6581, section 9.1).
    fn offer(wishes: &Wishes) -> enhanced::Repr {
        let mut offer = wishes.enhanced();
        if offer.ready_by_read {
            offer.ord = offer.ord.max(1);
        }
        offer
    }

    /// Bytes to be sent now.
    pub fn output(&self) -> &[u8] {
        self.request.rest()
    }

    /// Drops so many bytes of the output: TCP has taken them.
    pub fn sent(&mut self, bytes: usize) {
        self.request.advance(bytes);
    }

    /// When [`Initiator::timeout`] is to be called.
    pub fn deadline(&self) -> Option<Nanos> {
        (!self.over).then_some(self.deadline)
    }

    /// Takes note of the time.
    ///
    /// # Errors
    /// [`Failure::Timeout`] if the reply is late.
    pub fn timeout(&mut self, now: Nanos) -> Result<(), Failure> {
        if self.over || now < self.deadline {
            return Ok(());
        }
        self.over = true;
        Err(Failure::Timeout)
    }

    /// Bytes from the responder, in pieces of any size.
    ///
    /// # Errors
    /// The connection is to be closed. RFC 5044, section 7.1.2: a request in place of a reply means that both sides are
    /// initiators, which is an error.
    pub fn input(&mut self, bytes: &[u8]) -> Result<Answer, Failure> {
        if self.over {
            return if bytes.is_empty() { Ok(Answer::None) } else { Err(Failure::Early) };
        }
        let answer = self.answer(bytes);
        self.over = !matches!(answer, Ok(Answer::None));
        answer
    }

    fn answer(&mut self, bytes: &[u8]) -> Result<Answer, Failure> {
        let Some(frame) = self.reply.take(bytes)? else { return Ok(Answer::None) };
        if !frame.reply || !self.request.rest().is_empty() {
            return Err(Failure::Key);
        }
        // RFC 5044, section 7.1.1: a revision that was not asked for cannot be spoken.
        if frame.revision != self.wishes.revision as u8 {
            return Err(Failure::Revision);
        }
        self.frame = Some(frame);
        if frame.rejected {
            return Ok(Answer::Rejected);
        }
        let (said, _) = self.reply.data(&frame);
        Ok(Answer::Accepted(self.agree(&frame, said)))
    }

    fn agree(&self, frame: &wire_start::Repr, said: Option<enhanced::Repr>) -> Agreed {
        let Wishes { ird, ord, .. } = self.wishes;
        let mut agreed = Agreed {
            role: Role::Initiator,
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
        // A responder that answers without enhanced data has negotiated nothing (RFC 6581, section 10).
        let Some(said) = said else { return agreed };
        // RFC 6581, section 9.1: the initiator's ORD is at most the responder's IRD, and the other way round.
        if said.ird != LEFT_TO_PROGRAM && ord != LEFT_TO_PROGRAM {
            agreed.ord = ord.min(said.ird);
        }
        if said.ord != LEFT_TO_PROGRAM && ird != LEFT_TO_PROGRAM && said.ord > ird {
            agreed.unmet = Some(Unmet::Ird);
        }
        if let Some(ours) = self.wishes.ready
            && said.peer_to_peer
        {
            let theirs = ReadyKinds { send: said.ready_by_send, write: said.ready_by_write, read: said.ready_by_read };
            agreed.ready = ours.and(theirs).choose();
            match agreed.ready {
                // RFC 6581, section 9.2: the end of the connection, with a message that says why.
                None => agreed.unmet = agreed.unmet.or(Some(Unmet::Ready)),
                // RFC 6581, section 9.1: a READ needs a place although the program wants none.
                Some(Ready::Read) => agreed.ord = agreed.ord.max(1),
                Some(_) => {}
            }
        }
        agreed
    }

    /// Ends the start: the TCP connection has ended.
    pub fn closed(&mut self) -> Failure {
        self.over = true;
        Failure::Closed
    }

    /// The depths of the reply, accepted or not: READ requests that the responder takes, and those that it wants to
    /// have outstanding. RFC 6581, section 9.1: they are told to the program.
    pub fn depths(&self) -> Option<(u16, u16)> {
        let (said, _) = self.reply.data(self.frame.as_ref()?);
        said.map(|said| (said.ird, said.ord))
    }

    /// The private data of the program at the other side, once the reply is there.
    pub fn private_data(&self) -> &[u8] {
        self.frame.as_ref().map_or(&[], |frame| self.reply.data(frame).1)
    }
}
