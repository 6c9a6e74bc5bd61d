//! A request or reply frame on its way out, and on its way in.

use wire::Error;
use wire::mpa::{enhanced, start};

use super::start::{Failure, MAX_PRIVATE_DATA, TooLong};

/// Bytes of the longest frame.
const MAX_LEN: usize = start::LEN + MAX_PRIVATE_DATA;

/// A frame to be sent.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    bytes: [u8; MAX_LEN],
    len: usize,
    sent: usize,
}

impl Outgoing {
    pub(super) const EMPTY: Outgoing = Outgoing { bytes: [0; MAX_LEN], len: 0, sent: 0 };

    /// A frame with its enhanced data, if any, and the program's private data. The length of the private data in
    /// `frame` does not matter. RFC 5044, section 7.1.1: at most 512 bytes; RFC 6581, section 6: enhanced data
    /// count.
    pub(super) fn new(
        mut frame: start::Repr,
        enhanced: Option<enhanced::Repr>,
        private_data: &[u8],
    ) -> Result<Outgoing, TooLong> {
        let enhanced = enhanced.map(|enhanced| enhanced.emit());
        let enhanced = enhanced.as_ref().map_or(&[][..], |bytes| &bytes[..]);
        let private_len = enhanced.len() + private_data.len();
        frame.private_data_len = u16::try_from(private_len).map_err(|_| TooLong)?;
        let mut out = Outgoing::EMPTY;
        out.len = start::LEN + private_len;
        let room = out.bytes.get_mut(..out.len).ok_or(TooLong)?;
        let (head, rest) = room.split_at_mut(start::LEN);
        head.copy_from_slice(&frame.emit());
        let (first, second) = rest.split_at_mut(enhanced.len());
        first.copy_from_slice(enhanced);
        second.copy_from_slice(private_data);
        Ok(out)
    }

    /// The bytes that are still to be sent.
    pub(super) fn rest(&self) -> &[u8] {
        self.bytes.get(self.sent..self.len).unwrap_or_default()
    }

    /// Drops so many bytes from the front: TCP has taken them.
    pub(super) fn advance(&mut self, taken: usize) {
        self.sent = self.len.min(self.sent + taken);
    }
}

/// A frame that comes in, in pieces of any size.
#[derive(Clone, Debug)]
pub(super) struct Incoming {
    bytes: [u8; MAX_LEN],
    have: usize,
}

impl Incoming {
    pub(super) const EMPTY: Incoming = Incoming { bytes: [0; MAX_LEN], have: 0 };

    /// Takes input. The frame, when it is whole: input that is left over then is an error, as neither side may send
    /// anything behind its frame before it has heard the other one (RFC 5044, section 7.1.2).
    pub(super) fn take(&mut self, mut input: &[u8]) -> Result<Option<start::Repr>, Failure> {
        self.fill(&mut input, start::LEN);
        let Some(head) = self.bytes.get(..start::LEN).filter(|_| self.have >= start::LEN) else { return Ok(None) };
        // RFC 5044, section 7.1.1: another key, revision or a length above 512: the connection is closed.
        let (frame, _) = start::Repr::read(head).map_err(|e| match e {
            Error::Version => Failure::Revision,
            Error::Length => Failure::Length,
            _ => Failure::Key,
        })?;
        let len = start::LEN + usize::from(frame.private_data_len);
        self.fill(&mut input, len);
        match (self.have == len, input) {
            (false, _) => Ok(None),
            (true, []) => Ok(Some(frame)),
            (true, _) => Err(Failure::Early),
        }
    }

    /// Takes input until this many bytes are there.
    fn fill(&mut self, input: &mut &[u8], until: usize) {
        let count = until.saturating_sub(self.have).min(input.len());
        let (now, later) = input.split_at(count);
        if let Some(room) = self.bytes.get_mut(self.have..self.have + count) {
            room.copy_from_slice(now);
            self.have += count;
        }
        *input = later;
    }

    /// The enhanced data of a whole frame, and the program's private data.
    pub(super) fn data(&self, frame: &start::Repr) -> (Option<enhanced::Repr>, &[u8]) {
        let data = self.bytes.get(start::LEN..self.have).unwrap_or_default();
        if !frame.enhanced {
            return (None, data);
        }
        match enhanced::Repr::read(data) {
            Ok((enhanced, rest)) => (Some(enhanced), rest),
            Err(_) => (None, data),
        }
    }
}
