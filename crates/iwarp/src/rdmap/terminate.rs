//! Terminate messages (RFC 5040, section 4.8): written as the RFC has them, read also as Linux's siw writes them.
//!
//! On a little-endian host siw puts the layer into the low half of its byte and the type of the error into the high
//! half, and the three bits that say what follows at the low end of theirs, where the RFC has reserved bits.

use core::fmt;

use wire::rdmap::{read_request, terminate};
use wire::{ddp, rdmap::terminate::Layer};

use super::fault::{Fault, Reason, Repeats};

/// Bytes of a segment's headers as they came: those of DDP, and what a READ request has behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Headers {
    /// Length of the whole segment.
    pub(super) segment_len: u16,
    bytes: [u8; MAX_HEADERS],
    len: usize,
    ddp_len: usize,
}

/// Bytes of the longest headers.
pub(super) const MAX_HEADERS: usize = ddp::untagged::LEN + read_request::LEN;

impl Headers {
    /// None yet, of a segment of this length.
    pub(super) fn new(segment_len: u16) -> Headers {
        Headers { segment_len, bytes: [0; MAX_HEADERS], len: 0, ddp_len: 0 }
    }

    /// Bytes of the DDP header of this segment: the first byte tells its model (RFC 5041, section 4.1). `None` before
    /// it is there.
    pub(super) fn expects(&self) -> Option<usize> {
        self.bytes.first().filter(|_| self.len > 0).map(|first| match first & 0x80 {
            0 => ddp::untagged::LEN,
            _ => ddp::tagged::LEN,
        })
    }

    /// Takes bytes of the segment until the DDP header is whole. What is left of them.
    pub(super) fn fill<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let rest = self.take(bytes, 1);
        let until = self.expects().unwrap_or_default();
        let rest = self.take(rest, until);
        self.ddp_len = if self.len == until { until } else { 0 };
        rest
    }

    fn take<'a>(&mut self, bytes: &'a [u8], until: usize) -> &'a [u8] {
        let count = until.saturating_sub(self.len).min(bytes.len());
        let (now, later) = bytes.split_at(count);
        if let Some(room) = self.bytes.get_mut(self.len..self.len + count) {
            room.copy_from_slice(now);
            self.len += count;
        }
        later
    }

    /// The DDP header, once it is whole.
    pub(super) fn ddp(&self) -> Option<&[u8]> {
        self.bytes.get(..self.ddp_len).filter(|header| !header.is_empty())
    }

    /// These headers, with those of a READ request behind the DDP header.
    pub(super) fn with_request(mut self, request: &read_request::Repr) -> Headers {
        self.len = self.ddp_len;
        self.take(&request.emit(), self.ddp_len + read_request::LEN);
        self
    }
}

/// The payload of a Terminate message of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bytes {
    bytes: [u8; terminate::MAX_LEN],
    len: usize,
}

impl Bytes {
    /// The payload for a fault that was found in a segment with these headers.
    pub(super) fn new(fault: Fault, headers: Option<&Headers>) -> Bytes {
        let Reason { layer, kind, code } = fault.reason();
        let headers = headers.filter(|headers| fault.repeats() == Repeats::Headers && headers.ddp().is_some());
        let rdmap = headers.is_some_and(|headers| headers.len > headers.ddp_len);
        let control =
            terminate::Repr { layer, kind, code, segment_len: headers.is_some(), ddp: headers.is_some(), rdmap };
        let mut out = Bytes { bytes: [0; terminate::MAX_LEN], len: 0 };
        out.push(&control.emit());
        if let Some(headers) = headers {
            out.push(&headers.segment_len.to_be_bytes());
            out.push(headers.bytes.get(..headers.len).unwrap_or_default());
        }
        out
    }

    fn push(&mut self, part: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + part.len()) {
            room.copy_from_slice(part);
            self.len += part.len();
        }
    }
}

impl core::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// The contents of the peer's Terminate message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminated {
    /// Why the peer ends the stream; `None` if the message names no layer that there is.
    pub reason: Option<Reason>,
    /// The message was written in siw's form.
    pub swapped: bool,
    /// Length of the segment that was wrong.
    pub segment_len: Option<u16>,
    /// DDP header of that segment.
    pub ddp: Option<ddp::Header>,
    /// The headers of a READ request behind that DDP header.
    pub request: Option<read_request::Repr>,
}

impl Terminated {
    /// Parses a payload, as far as it can be understood: a peer that sends nonsense has ended the stream, too.
    /// `is_first`: an initiator's first message, which may be about the terms of the connection.
    pub fn read(payload: &[u8], is_first: bool) -> Terminated {
        let mut said = Terminated { reason: None, swapped: false, segment_len: None, ddp: None, request: None };
        let Some((&[first, code, included, _], rest)) = payload.split_first_chunk() else { return said };
        // The length valid, a DDP header, a READ request: at the high end by the RFC, in rising order in siw's form.
        let (high, low) = (included >> 5, included & 7);
        said.swapped = if high == 0 && low == 0 { is_swapped(first, code, is_first) } else { high == 0 };
        let (length, header, request) =
            if high == 0 { (low & 1, low & 2, low & 4) } else { (high & 4, high & 2, high & 1) };
        let first = if said.swapped { first.rotate_left(4) } else { first };
        said.reason = reason(first, code);
        if length == 0 && header == 0 {
            return said;
        }
        let Some((len, rest)) = rest.split_first_chunk() else { return said };
        said.segment_len = (length != 0).then_some(u16::from_be_bytes(*len));
        if header != 0
            && let Ok((ddp, rest)) = ddp::Header::read(rest)
        {
            said.ddp = Some(ddp);
            said.request = read_request::Repr::read(rest).ok().map(|(said, _)| said).filter(|_| request != 0);
        }
        said
    }
}

/// Layer and type of the error in the RFC's order.
fn reason(first: u8, code: u8) -> Option<Reason> {
    let layer = match first >> 4 {
        0 => Layer::Rdmap,
        1 => Layer::Ddp,
        2 => Layer::Llp,
        _ => return None,
    };
    Some(Reason { layer, kind: first & 0x0f, code })
}

/// True if a message without headers has its layer in the low half: the errors of the RFC that have no headers are
/// those of this side and of the layer below, 0 0 and 2 0. Layer 2, type 0, with the codes of RFC 6581, section 8 comes
/// from an initiator that cannot meet the responder's terms, before it sends anything else. Later, or from a
/// responder, siw means layer 0, type 2.
fn is_swapped(first: u8, code: u8, is_first: bool) -> bool {
    match first {
        0x20 => code > 4 && !(is_first && code <= 7),
        0x02 | 0x21 => true,
        _ => first >> 4 > 2 && first & 0x0f <= 2,
    }
}

impl fmt::Display for Terminated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Some(reason) => reason.fmt(f),
            None => f.write_str("an error of no known layer"),
        }
    }
}
