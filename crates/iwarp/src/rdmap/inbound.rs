//! Segments as they come: checked, placed, delivered (RFC 5040, section 7.2; RFC 5041, section 7.1).

use verbs::RKey;
use wire::rdmap::control::{self, Opcode};
use wire::rdmap::read_request;
use wire::{Error, ddp};

use super::fault::Fault;
use super::reads::Step;
use super::stream::{End, Phase, SMALL, Stream};
use super::target::{Delivery, Place, Target};
use super::terminate::{Headers, Terminated};
use crate::ddp::{Fault as DdpFault, TagFault};
use crate::mpa::Role;
use crate::mpa::receive::Event;

/// The segment that is coming in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming {
    headers: Headers,
    route: Route,
    /// Bytes of payload that have come.
    done: usize,
}

/// The destination of a segment's payload.
#[derive(Clone, Copy, Debug)]
enum Route {
    /// The header is not whole.
    Unknown,
    To(Opcode, ddp::Header, Dest),
    /// Nowhere. The error counts when the FPDU is whole: a wrong CRC may have caused it.
    Bad(Fault),
}

#[derive(Clone, Copy, Debug)]
enum Dest {
    Program(Place),
    /// A message for this crate: from here on in [`Stream::small`].
    Small(usize),
}

impl Incoming {
    /// The place of the next byte, if the program's memory has it.
    pub(super) fn place(&self) -> Option<Place> {
        match self.route {
            Route::To(_, _, Dest::Program(place)) => Some(place.plus(self.done)),
            _ => None,
        }
    }

    /// Notes that the place of the payload has gone. A receive is this side's own matter; a region, the peer has named.
    pub(super) fn lose(&mut self, why: TagFault) {
        if let Route::To(_, _, Dest::Program(place)) = self.route {
            self.route = Route::Bad(match place {
                Place::Tagged { .. } => Fault::Ddp(DdpFault::Tag(why)),
                Place::Receive { .. } => Fault::Local,
            });
        }
    }

    /// Counts bytes that have been read directly to their place.
    pub(super) fn pass(&mut self, len: usize) {
        self.done += len;
    }
}

/// Parses a DDP header and the control byte in it.
///
/// # Errors
/// Another version, or no opcode.
pub(super) fn read_header(bytes: &[u8]) -> Result<(ddp::Header, Opcode), Fault> {
    let (header, _) = ddp::Header::read(bytes).map_err(|e| match (e, bytes.first()) {
        (Error::Version, Some(first)) if first & 0x80 != 0 => Fault::Ddp(DdpFault::TaggedVersion),
        (Error::Version, _) => Fault::Ddp(DdpFault::UntaggedVersion),
        _ => Fault::Ddp(DdpFault::Short),
    })?;
    let upper = match &header {
        ddp::Header::Tagged(header) => header.upper,
        ddp::Header::Untagged(header) => header.upper,
    };
    match control::Repr::read(&[upper]) {
        Ok((control, _)) => Ok((header, control.opcode)),
        Err(Error::Version) => Err(Fault::Version),
        Err(_) => Err(Fault::Opcode),
    }
}

/// RFC 5041, section 7.1: the sum of the offset and the length must not wrap, so the last byte below 2^64 cannot be
/// reached.
pub(super) fn check_wrap(offset: u64, len: u32) -> Result<(), TagFault> {
    offset.checked_add(len.into()).map(|_| ()).ok_or(TagFault::Wrap)
}

impl Stream {
    /// Bytes of the TCP stream, from this place on, counted from the first byte of full operation. What lies behind
    /// [`Stream::position`] afterwards has to be given again, with more. Bytes that came early, beyond that place, are
    /// looked through for FPDUs that can be placed.
    pub fn input(&mut self, position: u64, bytes: &[u8], target: &mut impl Target) {
        let Some(behind) = self.position().checked_sub(position) else {
            if self.phase == Phase::Open {
                self.early(position, bytes, target);
            }
            return;
        };
        let mut rest = usize::try_from(behind).ok().and_then(|behind| bytes.get(behind..)).unwrap_or_default();
        while self.phase == Phase::Open {
            let (taken, event) = match self.receiver.next(rest) {
                Ok(step) => step,
                Err(fault) => return self.fault(Fault::Mpa(fault), None),
            };
            rest = rest.get(taken..).unwrap_or_default();
            match event {
                None => return,
                Some(Event::Start { len }) => {
                    self.incoming = Some(Incoming { headers: Headers::new(len), route: Route::Unknown, done: 0 });
                }
                Some(Event::Bytes(bytes)) => self.bytes(bytes, target),
                Some(Event::End) => {
                    self.fpdus_in += 1;
                    self.segment(target);
                    let skipped = self.close_gap(target);
                    rest = rest.get(skipped..).unwrap_or_default();
                }
            }
        }
    }

    /// Bytes of a segment.
    fn bytes(&mut self, bytes: &[u8], target: &mut impl Target) {
        let Some(mut incoming) = self.incoming else { return };
        let mut payload = bytes;
        if let Route::Unknown = incoming.route {
            payload = incoming.headers.fill(bytes);
            if let Some(header) = incoming.headers.ddp() {
                let len = u32::from(incoming.headers.segment_len).saturating_sub(header.len() as u32);
                incoming.route = self.route(header, len, target).unwrap_or_else(Route::Bad);
            }
        }
        if !payload.is_empty() {
            match incoming.route {
                Route::To(_, _, Dest::Program(place)) => {
                    if let Err(fault) = target.place(place.plus(incoming.done), payload) {
                        incoming.lose(fault);
                    }
                }
                Route::To(_, _, Dest::Small(at)) => {
                    let at = at + incoming.done;
                    if let Some(room) = self.small.get_mut(at..at + payload.len()) {
                        room.copy_from_slice(payload);
                    }
                }
                Route::Unknown | Route::Bad(_) => {}
            }
            incoming.done += payload.len();
        }
        self.incoming = Some(incoming);
    }

    /// Where a segment's payload goes: all that can be wrong with a header is found here, before anything is placed
    /// (RFC 5041, section 7.1).
    fn route(&mut self, header: &[u8], len: u32, target: &mut impl Target) -> Result<Route, Fault> {
        let (header, opcode) = read_header(header)?;
        let dest = match &header {
            ddp::Header::Tagged(header) => {
                let tag_fault = |fault| Fault::Ddp(DdpFault::Tag(fault));
                match opcode {
                    Opcode::Write => {
                        // RFC 5041, section 5.2: where a WRITE of no bytes goes is not looked at.
                        if len > 0 {
                            check_wrap(header.offset, len).map_err(tag_fault)?;
                            target.check_write(header.stag, header.offset, len).map_err(tag_fault)?;
                        }
                    }
                    Opcode::ReadResponse => {
                        self.reads.check(header, len)?;
                        if len > 0 {
                            check_wrap(header.offset, len).map_err(tag_fault)?;
                            target.check_sink(header.stag, header.offset, len).map_err(tag_fault)?;
                        }
                    }
                    // RFC 5040, section 4.1: each message has its model.
                    _ => return Err(Fault::Opcode),
                }
                Dest::Program(Place::Tagged { stag: header.stag, offset: header.offset })
            }
            ddp::Header::Untagged(header) => {
                let Some(queue) = opcode.queue() else { return Err(Fault::Opcode) };
                // RFC 5041, section 7.1: the queue is one of this stream, and the message's own.
                if queue != header.queue {
                    return Err(Fault::Ddp(DdpFault::Queue));
                }
                let (checked, dest) = match opcode {
                    Opcode::Send | Opcode::SendInvalidate | Opcode::SendSolicited | Opcode::SendSolicitedInvalidate => {
                        let checked = self.queues.send.check(header, len, || target.take_receive());
                        (checked, Dest::Program(Place::Receive { offset: header.offset }))
                    }
                    Opcode::ReadRequest => {
                        // RFC 5040, section 6.1: more requests than were agreed upon find no buffer.
                        let room = (self.asked < self.agreed.ird).then_some(read_request::LEN as u32);
                        (self.queues.request.check(header, len, || room), Dest::Small(header.offset as usize))
                    }
                    Opcode::Terminate => {
                        let checked = self.queues.terminate.check(header, len, || Some(SMALL as u32));
                        (checked, Dest::Small(header.offset as usize))
                    }
                    // RFC 7306, section 1.1: not supported here.
                    _ => return Err(Fault::Opcode),
                };
                checked.map_err(Fault::Ddp)?;
                dest
            }
        };
        Ok(Route::To(opcode, header, dest))
    }

    /// Ends a segment that is whole, in a valid FPDU.
    fn segment(&mut self, target: &mut impl Target) {
        let is_first = self.agreed.role == Role::Responder && !self.heard;
        self.hear();
        let Some(incoming) = self.incoming.take() else { return };
        let len = incoming.done as u32;
        let delivered = match incoming.route {
            Route::Unknown => Err(Fault::Ddp(DdpFault::Short)),
            Route::Bad(fault) => Err(fault),
            Route::To(opcode, ddp::Header::Tagged(header), _) => {
                self.tagged(opcode, &header, len, target);
                Ok(())
            }
            Route::To(opcode, ddp::Header::Untagged(header), _) => {
                self.untagged(opcode, &header, len, &incoming.headers, is_first, target)
            }
        };
        if let Err(fault) = delivered {
            self.fault(fault, Some(&incoming.headers));
        }
    }

    /// Ends a tagged segment that is whole and next in the stream.
    pub(super) fn tagged(&mut self, opcode: Opcode, header: &ddp::tagged::Repr, len: u32, target: &mut impl Target) {
        if opcode == Opcode::ReadResponse {
            // RFC 5040, section 5.5: a READ is complete when its answer is delivered.
            if self.reads.take(len, header.last) == Step::Read {
                target.deliver(Delivery::Read);
            }
        } else if header.last {
            target.deliver(Delivery::Write { stag: header.stag, end: header.offset.wrapping_add(len.into()) });
        }
    }

    /// Ends an untagged segment that is whole. RFC 5041, section 5.4: the message is delivered if the segment was its
    /// last one.
    fn untagged(
        &mut self,
        opcode: Opcode,
        header: &ddp::untagged::Repr,
        len: u32,
        headers: &Headers,
        is_first: bool,
        target: &mut impl Target,
    ) -> Result<(), Fault> {
        let queue = match opcode {
            Opcode::ReadRequest => &mut self.queues.request,
            Opcode::Terminate => &mut self.queues.terminate,
            _ => &mut self.queues.send,
        };
        let Some(len) = queue.take(len, header.last) else { return Ok(()) };
        let small = self.small.get(..len as usize).unwrap_or_default();
        match opcode {
            Opcode::ReadRequest => {
                let Ok((request, [])) = read_request::Repr::read(small) else { return Err(Fault::Length) };
                if let Err(fault) = check_source(&request, target) {
                    self.fault(Fault::Tag(fault), Some(&headers.with_request(&request)));
                    return Ok(());
                }
                // RFC 5040, section 5.5: a READ is looked at when all before it has been placed.
                self.asked += 1;
                target.deliver(Delivery::Request { message: header.message, request });
            }
            Opcode::Terminate => {
                // RFC 5040, section 5.4: nothing follows a Terminate message, and nothing answers it.
                let said = Terminated::read(small, is_first);
                self.set_end(End::Terminated(said));
                target.deliver(Delivery::Terminated(said));
            }
            _ => {
                let invalidates = matches!(opcode, Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate);
                let invalidated = invalidates.then_some(RKey(header.invalidate));
                if let Some(stag) = invalidated {
                    // RFC 5040, section 5.3: a SEND is delivered after the invalidation. For a region of another stream
                    // the error has a code of its own.
                    target.invalidate(stag).map_err(|fault| match fault {
                        TagFault::Stream => Fault::Tag(TagFault::NotInvalidated),
                        other => Fault::Tag(other),
                    })?;
                }
                let solicited = matches!(opcode, Opcode::SendSolicited | Opcode::SendSolicitedInvalidate);
                target.deliver(Delivery::Send { len, solicited, invalidated });
            }
        }
        Ok(())
    }
}

/// RFC 5040, section 5.2.1: the source of a READ of no bytes is not looked at.
fn check_source(request: &read_request::Repr, target: &mut impl Target) -> Result<(), TagFault> {
    let read_request::Repr { source_stag, source_offset, size, .. } = *request;
    if size == 0 {
        return Ok(());
    }
    check_wrap(source_offset, size)?;
    target.check_source(source_stag, source_offset, size)
}
