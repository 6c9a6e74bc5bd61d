//! FPDUs in TCP segments that came before others (RFC 5044, section 6): where one starts is known from the end of
//! another one, or from a marker. Its position in the stream says where it belongs (RFC 5044, section 1.2).

use wire::mpa::marker;

use super::receive::Receiver;

/// A valid FPDU inside a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Start of the FPDU in the stream, with the marker in front of it.
    pub begin: u64,
    /// Start of the next FPDU.
    pub end: u64,
}

/// Looks for the FPDUs of one TCP segment.
#[derive(Clone, Debug)]
pub struct Search<'a> {
    receiver: &'a Receiver,
    position: u64,
    bytes: &'a [u8],
    /// Where the next FPDU starts.
    next: Option<u64>,
    over: bool,
}

impl<'a> Search<'a> {
    /// A search in bytes that start at this place of the stream. `known` says where an FPDU starts, in the order of the
    /// stream.
    pub fn new(
        receiver: &'a Receiver,
        position: u64,
        bytes: &'a [u8],
        known: impl IntoIterator<Item = u64>,
    ) -> Search<'a> {
        let end = position.saturating_add(bytes.len() as u64);
        let next = known.into_iter().find(|start| (position..end).contains(start));
        let mut search = Search { receiver, position, bytes, next, over: false };
        // The earlier of the two ways finds more. Both lead to the same FPDUs.
        if let Some(start) = search.by_marker()
            && next.is_none_or(|next| start < next)
        {
            search.next = Some(start);
        }
        search
    }

    /// RFC 5044, section 4.3: a marker says where the FPDU around it starts, or that one starts behind it.
    fn by_marker(&self) -> Option<u64> {
        if !self.receiver.has_markers() {
            return None;
        }
        let first = self.position.checked_add(marker::to_next(self.position))?;
        let mut place = first;
        loop {
            let (said, _) = wire::mpa::marker::Repr::read(self.from(place)?).ok()?;
            let start = place.checked_sub(u64::from(said.distance))?;
            // The marker in front of an FPDU is a part of it.
            let lead = if start % marker::INTERVAL == marker::LEN as u64 { marker::LEN as u64 } else { 0 };
            let begin = start.checked_sub(lead)?;
            if begin >= self.position {
                return Some(begin);
            }
            place = place.checked_add(marker::INTERVAL)?;
        }
    }

    /// The bytes from this place of the stream on.
    fn from(&self, place: u64) -> Option<&'a [u8]> {
        self.bytes.get(usize::try_from(place.checked_sub(self.position)?).ok()?..)
    }

    /// A receiver that stands before an FPDU that was found, and the bytes of that FPDU: all checks have been made.
    pub fn open(&self, found: &Found) -> Option<(Receiver, &'a [u8])> {
        let len = usize::try_from(found.end.checked_sub(found.begin)?).ok()?;
        let mut receiver = self.receiver.at(found.begin);
        receiver.trust();
        Some((receiver, self.from(found.begin)?.get(..len)?))
    }
}

impl Iterator for Search<'_> {
    type Item = Found;

    /// The next FPDU that is whole and valid. An FPDU that is not ends the search: its bytes come again in order.
    fn next(&mut self) -> Option<Found> {
        if self.over {
            return None;
        }
        let found = self.next.and_then(|begin| {
            let len = self.receiver.at(begin).whole(self.from(begin)?).ok()??;
            Some(Found { begin, end: begin.checked_add(len as u64)? })
        });
        self.next = found.map(|found| found.end);
        self.over = found.is_none();
        found
    }
}
