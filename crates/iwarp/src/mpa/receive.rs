//! The TCP stream on its way in: where FPDUs start and end, their markers and CRCs (RFC 5044, section 4).
//!
//! Input comes in pieces of any size: FPDUs are found by their lengths (RFC 5044, section 5.2), and need not be aligned
//! with TCP segments (RFC 5044, section 5.1; RFC 5044, section 10).
//!
//! RFC 5044, section 6 has an FPDU checked before its segment is passed on: an FPDU that is whole in the input is
//! checked first. Segments from [`Receiver::new`]'s `early_from` bytes on are passed on while they come in, so that
//! their payload can be read directly to its place: they are *placed* before their CRC is checked, and *delivered*
//! after it. That is the one exception to RFC 5044, section 6; with `early_from` above 65535 there is none.

use wire::mpa::fpdu::{self, Crc};
use wire::mpa::marker;

use super::start::Agreed;

/// Why a stream cannot be understood any longer (RFC 5044, section 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The CRC is wrong.
    Crc,
    /// A marker does not point to where the FPDU starts according to the lengths before it.
    Marker,
}

/// The next event of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// An FPDU starts, with a segment of this length.
    Start {
        /// Bytes of the segment.
        len: u16,
    },
    /// Bytes of its segment.
    Bytes(&'a [u8]),
    /// The FPDU is whole, and its CRC right.
    End,
}

/// The part of an FPDU that the stream is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Length,
    Segment,
    Pad,
    Crc,
}

/// The receiving half of a connection in full operation.
#[derive(Clone, Debug)]
pub struct Receiver {
    markers: bool,
    crc_on: bool,
    early_from: u32,
    /// Bytes of the stream before the next one, counted from the first byte of full operation (RFC 5044, section 4.3).
    position: u64,
    /// Where the length field of the FPDU under way is.
    start: u64,
    part: Part,
    /// Bytes of the part under way that have come.
    got: usize,
    /// The bytes of the length or of the CRC.
    field: [u8; 4],
    /// The bytes of the marker under way.
    marker: [u8; marker::LEN],
    header: fpdu::Repr,
    crc: Crc,
    /// The FPDU under way has been seen whole, and its CRC is right.
    checked: bool,
    /// The FPDU under way is passed on while it comes in.
    early: bool,
}

/// The FPDU at the front of some input.
enum Front {
    /// So much of it is there that its length is not known, or it is to be taken only when it is whole.
    Short,
    /// Its segment may be passed on while it comes in.
    Early,
    Whole,
}

impl Receiver {
    /// A stream from its first byte of full operation. Segments of at least `early_from` bytes are passed on before
    /// they are whole.
    pub fn new(agreed: &Agreed, early_from: u32) -> Receiver {
        Receiver {
            markers: agreed.markers_in,
            crc_on: agreed.crc,
            early_from,
            position: 0,
            start: 0,
            part: Part::Length,
            got: 0,
            field: [0; 4],
            marker: [0; marker::LEN],
            header: fpdu::Repr { segment_len: 0 },
            crc: Crc::new(),
            checked: false,
            early: false,
        }
    }

    /// The place of the next byte in the stream.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// True if the stream is between two FPDUs: a connection that ends elsewhere has lost data (RFC 5044, section 8).
    pub fn is_between(&self) -> bool {
        self.part == Part::Length && self.got == 0 && !self.in_marker()
    }

    /// True if the next byte belongs to a marker of which some bytes are there.
    fn in_marker(&self) -> bool {
        self.markers && (1..marker::LEN as u64).contains(&(self.position % marker::INTERVAL))
    }

    /// A receiver between two FPDUs at this place of the stream, with all else as in this one.
    pub(super) fn at(&self, position: u64) -> Receiver {
        let mut other = self.clone();
        other.restart(position);
        other
    }

    /// Continues the stream with an FPDU at this place.
    fn restart(&mut self, position: u64) {
        self.position = position;
        self.part = Part::Length;
        self.got = 0;
        self.crc = Crc::new();
        self.checked = false;
        self.early = false;
    }

    /// Passes over FPDUs that have been taken out of order. The stream is between two FPDUs here.
    pub fn skip_to(&mut self, position: u64) {
        if self.is_between() && position >= self.position {
            self.restart(position);
        }
    }

    /// True if markers are expected.
    pub(super) fn has_markers(&self) -> bool {
        self.markers
    }

    /// Where the FPDU under way ends, if its length is known.
    pub fn end(&self) -> Option<u64> {
        (self.part != Part::Length).then(|| self.end_of(self.start, self.header))
    }

    /// The end of an FPDU with its length field at `start`.
    fn end_of(&self, start: u64, header: fpdu::Repr) -> u64 {
        let len = header.fpdu_len() as u64;
        let before_first = marker::to_next(start);
        let between = marker::INTERVAL - marker::LEN as u64;
        // A marker that would come right behind the FPDU is the next one's.
        let markers = match len.checked_sub(before_first + 1) {
            Some(beyond) if self.markers => 1 + beyond / between,
            _ => 0,
        };
        start + len + markers * marker::LEN as u64
    }

    /// How many bytes of the segment come next in the stream, without anything in between: they may be read straight
    /// to their place, see [`Receiver::pass`].
    pub fn direct(&self) -> usize {
        let rest = match self.part {
            Part::Segment if !self.in_marker() => usize::from(self.header.segment_len) - self.got,
            _ => 0,
        };
        rest.min(self.to_marker())
    }

    /// Bytes to the next marker: 0 where one starts.
    fn to_marker(&self) -> usize {
        if self.markers { marker::to_next(self.position) as usize } else { usize::MAX }
    }

    /// Passes over bytes of the segment that have been read directly to their place, at most [`Receiver::direct`] many;
    /// `crc` takes them into the CRC.
    pub fn pass(&mut self, len: usize, crc: impl FnOnce(Crc) -> Crc) {
        let len = len.min(self.direct());
        if self.sums() {
            self.crc = crc(core::mem::take(&mut self.crc));
        }
        self.go(len);
    }

    /// True if the CRC of the FPDU under way is still to be computed.
    fn sums(&self) -> bool {
        self.crc_on && !self.checked
    }

    fn go(&mut self, len: usize) {
        self.position += len as u64;
        self.got += len;
    }

    /// The event of the next bytes, and the number of bytes that it took. `None`: more input is needed; the bytes that
    /// were not taken have to be given again then.
    ///
    /// # Errors
    /// The stream is over: no later byte of it can be understood.
    pub fn next<'a>(&mut self, input: &'a [u8]) -> Result<(usize, Option<Event<'a>>), Fault> {
        if self.is_between() && !self.checked && !self.early {
            match self.front(input)? {
                Front::Short => return Ok((0, None)),
                Front::Early => self.early = true,
                Front::Whole => self.checked = true,
            }
        }
        self.step(input)
    }

    /// How much of the FPDU at the front of this input is there.
    fn front(&self, input: &[u8]) -> Result<Front, Fault> {
        if self.early_from == 0 {
            return Ok(Front::Early);
        }
        match self.peek(input) {
            None => Ok(Front::Short),
            Some((header, _)) if u32::from(header.segment_len) >= self.early_from => Ok(Front::Early),
            Some((_, len)) => match input.get(..len) {
                None => Ok(Front::Short),
                Some(fpdu) => self.check(fpdu).map(|()| Front::Whole),
            },
        }
    }

    /// The header of the FPDU at the front of this input, and how many bytes of the stream the FPDU has, with the
    /// marker in front of it.
    fn peek(&self, input: &[u8]) -> Option<(fpdu::Repr, usize)> {
        let lead = if self.to_marker() == 0 { marker::LEN } else { 0 };
        let (header, _) = fpdu::Repr::read(input.get(lead..)?).ok()?;
        let end = self.end_of(self.position + lead as u64, header);
        Some((header, usize::try_from(end - self.position).ok()?))
    }

    /// How many bytes of input the FPDU at the front of it takes, with markers: an input of that length brings it to
    /// its end. `None` while its length is not there.
    pub fn fpdu_len(&self, input: &[u8]) -> Option<usize> {
        match self.end() {
            Some(end) => usize::try_from(end - self.position).ok(),
            None if self.is_between() => self.peek(input).map(|(_, len)| len),
            None => None,
        }
    }

    /// RFC 5044, section 6: markers and CRC of a whole FPDU, before any of it is passed on.
    fn check(&self, mut fpdu: &[u8]) -> Result<(), Fault> {
        let mut trial = self.clone();
        loop {
            match trial.step(fpdu)? {
                (_, Some(Event::End) | None) => return Ok(()),
                (taken, Some(_)) => fpdu = fpdu.get(taken..).unwrap_or_default(),
            }
        }
    }

    /// The whole and valid FPDU at the front of this input: how many bytes of the stream it has. `None` if it is not
    /// whole.
    pub(super) fn whole(&self, input: &[u8]) -> Result<Option<usize>, Fault> {
        match self.peek(input).and_then(|(_, len)| input.get(..len)) {
            None => Ok(None),
            Some(fpdu) => self.check(fpdu).map(|()| Some(fpdu.len())),
        }
    }

    /// Goes on with an FPDU that has been found whole and valid at the front of the input.
    pub(super) fn trust(&mut self) {
        self.checked = true;
    }

    /// [`Receiver::next`], whatever of the FPDU is there.
    fn step<'a>(&mut self, input: &'a [u8]) -> Result<(usize, Option<Event<'a>>), Fault> {
        let mut rest = input;
        let event = loop {
            if rest.is_empty() {
                break None;
            }
            if self.to_marker() == 0 || self.in_marker() {
                self.take_marker(&mut rest)?;
                continue;
            }
            if let Some(event) = self.take_part(&mut rest)? {
                break Some(event);
            }
        };
        Ok((input.len() - rest.len(), event))
    }

    /// Bytes of a marker. RFC 5044, section 4.3: it is checked against the lengths; RFC 5044, section 4.4: it is under
    /// the CRC of the FPDU around it or behind it.
    fn take_marker(&mut self, rest: &mut &[u8]) -> Result<(), Fault> {
        let at = (self.position % marker::INTERVAL) as usize;
        let (now, later) = rest.split_at(rest.len().min(marker::LEN - at));
        if let Some(room) = self.marker.get_mut(at..at + now.len()) {
            room.copy_from_slice(now);
        }
        if self.sums() {
            self.crc = core::mem::take(&mut self.crc).bytes(now);
        }
        self.position += now.len() as u64;
        *rest = later;
        if self.in_marker() {
            return Ok(());
        }
        // RFC 5044, section 8: a marker that points to another start of the FPDU than the lengths ends the connection.
        let (said, _) = marker::Repr::read(&self.marker).map_err(|_| Fault::Marker)?;
        let place = self.position - marker::LEN as u64;
        let distance = if self.part == Part::Length && self.got == 0 { 0 } else { place - self.start };
        if u64::from(said.distance) == distance { Ok(()) } else { Err(Fault::Marker) }
    }

    /// Bytes of the part under way, up to the next marker at most.
    fn take_part<'a>(&mut self, rest: &mut &'a [u8]) -> Result<Option<Event<'a>>, Fault> {
        let len = match self.part {
            Part::Length => fpdu::LEN,
            Part::Segment => self.header.segment_len.into(),
            Part::Pad => self.header.pad(),
            Part::Crc => fpdu::CRC_LEN,
        };
        if self.part == Part::Length && self.got == 0 {
            self.start = self.position;
        }
        let count = rest.len().min(len - self.got).min(self.to_marker());
        let (now, later) = rest.split_at(count);
        *rest = later;
        if self.part != Part::Crc && self.sums() {
            self.crc = core::mem::take(&mut self.crc).bytes(now);
        }
        if let Part::Length | Part::Crc = self.part
            && let Some(room) = self.field.get_mut(self.got..self.got + count)
        {
            room.copy_from_slice(now);
        }
        let part = self.part;
        self.go(count);
        let whole = self.got == len;
        if whole {
            self.got = 0;
        }
        match part {
            Part::Length if whole => {
                let [high, low, ..] = self.field;
                self.header = fpdu::Repr { segment_len: u16::from_be_bytes([high, low]) };
                self.part = self.behind(Part::Length);
                return Ok(Some(Event::Start { len: self.header.segment_len }));
            }
            Part::Segment => {
                if whole {
                    self.part = self.behind(Part::Segment);
                }
                return Ok(Some(Event::Bytes(now)));
            }
            // Padding is not looked at (RFC 5044, section 4.1 has it as zero for the sender only).
            Part::Pad if whole => self.part = Part::Crc,
            Part::Crc if whole => return self.finish().map(Some),
            _ => {}
        }
        Ok(None)
    }

    /// The part with at least one byte behind this one.
    fn behind(&self, part: Part) -> Part {
        match part {
            Part::Length if self.header.segment_len > 0 => Part::Segment,
            _ if self.header.pad() > 0 => Part::Pad,
            _ => Part::Crc,
        }
    }

    /// The FPDU is over. RFC 5044, section 4.4: a wrong CRC ends the connection; without CRCs the field has no meaning.
    fn finish<'a>(&mut self) -> Result<Event<'a>, Fault> {
        if self.sums() && core::mem::take(&mut self.crc).finish() != self.field {
            return Err(Fault::Crc);
        }
        self.restart(self.position);
        Ok(Event::End)
    }
}
