//! Segments that came before those in front of them: placed at once (RFC 5041, section 5.3), delivered in their turn
//! (RFC 5041, section 5.4).
//!
//! Only tagged segments are placed early: their header says all that is needed. What is wrong with an early segment is
//! an error in its turn only, so it is left to its turn.

use wire::ddp::{Header, tagged};
use wire::rdmap::control::Opcode;

use super::inbound::{check_wrap, read_header};
use super::stream::{Phase, Stream};
use super::target::{Place, Target};
use super::terminate::Headers;
use crate::mpa::early::{Found, Search};
use crate::mpa::receive::Event;

/// How far beyond the next byte early ones may lie: TCP's largest window (RFC 7323, section 2.3).
const FURTHEST: u64 = 1 << 30;

/// An FPDU that has been placed early.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    begin: u64,
    end: u64,
    opcode: Opcode,
    header: tagged::Repr,
    len: u32,
}

impl Stream {
    /// Bytes of a TCP segment that came early.
    pub(super) fn early(&mut self, position: u64, bytes: &[u8], target: &mut impl Target) {
        if self.most_kept == 0 || position - self.position() > FURTHEST {
            return;
        }
        let receiver = self.receiver.clone();
        let known = self.receiver.end().into_iter().chain(self.kept.iter().map(|kept| kept.end));
        let mut search = Search::new(&receiver, position, bytes, known);
        while self.kept.len() < self.most_kept
            && let Some(found) = search.next()
        {
            let at = self.kept.partition_point(|kept| kept.begin < found.begin);
            // Where two FPDUs overlap, one of them is no FPDU.
            let before = at.checked_sub(1).and_then(|before| self.kept.get(before));
            let is_free = before.is_none_or(|kept| kept.end <= found.begin)
                && self.kept.get(at).is_none_or(|kept| found.end <= kept.begin);
            if is_free && let Some(kept) = self.place_early(&search, &found, target) {
                self.kept.insert(at, kept);
            }
        }
    }

    /// The parts of the stream beyond [`Stream::position`] that have been placed: their bytes are not needed again.
    pub fn placed(&self) -> impl Iterator<Item = core::ops::Range<u64>> {
        self.kept.iter().map(|kept| kept.begin..kept.end)
    }

    /// Places an FPDU, if it is tagged and nothing is wrong with it.
    fn place_early(&self, search: &Search<'_>, found: &Found, target: &mut impl Target) -> Option<Kept> {
        let (mut receiver, mut rest) = search.open(found)?;
        let (mut headers, mut kept) = (Headers::new(0), None);
        let mut done = 0;
        loop {
            let (taken, event) = receiver.next(rest).ok()?;
            rest = rest.get(taken..)?;
            let mut payload = match event? {
                Event::Start { len } => {
                    headers = Headers::new(len);
                    continue;
                }
                Event::Bytes(bytes) => bytes,
                Event::End => return kept,
            };
            if kept.is_none() {
                payload = headers.fill(payload);
                let Some(header) = headers.ddp() else { continue };
                let len = u32::from(headers.segment_len).checked_sub(header.len() as u32)?;
                kept = Some(self.check_early(header, len, found, target)?);
            }
            if let Some(Kept { header, .. }) = &kept
                && !payload.is_empty()
            {
                let place = Place::Tagged { stag: header.stag, offset: header.offset };
                target.place(place.plus(done), payload).ok()?;
                done += payload.len();
            }
        }
    }

    /// Checks an early segment as in its turn, but for what depends on those in front of it.
    fn check_early(&self, header: &[u8], len: u32, found: &Found, target: &mut impl Target) -> Option<Kept> {
        let (Header::Tagged(header), opcode) = read_header(header).ok()? else { return None };
        if len > 0 {
            check_wrap(header.offset, len).ok()?;
            match opcode {
                Opcode::Write => target.check_write(header.stag, header.offset, len).ok()?,
                Opcode::ReadResponse if self.reads.covers(&header, len) => {
                    target.check_sink(header.stag, header.offset, len).ok()?;
                }
                _ => return None,
            }
        } else if !matches!(opcode, Opcode::Write | Opcode::ReadResponse) {
            return None;
        }
        Some(Kept { begin: found.begin, end: found.end, opcode, header, len })
    }

    /// Passes over FPDUs that were placed before and are next in the stream now. Gives how many bytes of the stream
    /// they have.
    pub(super) fn close_gap(&mut self, target: &mut impl Target) -> usize {
        let start = self.position();
        while self.phase == Phase::Open
            && let Some(kept) = self.kept.first().copied().filter(|kept| kept.begin <= self.position())
        {
            self.kept.remove(0);
            // An FPDU that does not start where an FPDU of the stream starts was none.
            if kept.begin != self.position() {
                continue;
            }
            self.receiver.skip_to(kept.end);
            self.hear();
            if kept.opcode == Opcode::ReadResponse
                && let Err(fault) = self.reads.check(&kept.header, kept.len)
            {
                let mut headers = Headers::new((tagged::LEN + kept.len as usize) as u16);
                headers.fill(&kept.header.emit());
                self.fault(fault, Some(&headers));
                break;
            }
            self.tagged(kept.opcode, &kept.header, kept.len, target);
        }
        usize::try_from(self.position() - start).unwrap_or(usize::MAX)
    }
}
