//! Segments on their way into the TCP stream: FPDUs, their markers and CRCs (RFC 5044, section 4).
//!
//! Payload is not copied here: what a message carries is named by ranges, which the caller gathers.

use core::ops::Range;

use wire::mpa::fpdu::Crc;
use wire::mpa::{fpdu, marker};

use super::start::Agreed;

/// The data of a message, in memory that may not be borrowed.
pub trait Payload {
    /// Takes these bytes of the message into a CRC.
    fn crc(&self, range: Range<usize>, crc: Crc) -> Crc;
}

impl Payload for [u8] {
    fn crc(&self, range: Range<usize>, crc: Crc) -> Crc {
        crc.bytes(self.get(range).unwrap_or_default())
    }
}

/// Where the bytes of FPDUs go, in the order of the stream.
pub trait Sink {
    /// Bytes that this crate has made.
    fn own(&mut self, bytes: &[u8]);

    /// Bytes of the message.
    fn payload(&mut self, range: Range<usize>);
}

/// The sending half of a connection in full operation.
#[derive(Clone, Debug)]
pub struct Sender {
    markers: bool,
    crc: bool,
    /// Bytes of the stream before the next one, counted from the first byte of full operation (RFC 5044, section 4.3).
    position: u64,
    fpdus: u64,
    mulpdu: u16,
}

/// Shortest limit of a segment that DDP may count on (RFC 5044, section 4.5).
const MIN_MULPDU: usize = 128;

/// Longest segment: what an IP datagram can hold with all headers (RFC 5044, section 3).
const MAX_MULPDU: usize = 64768;

/// The longest segment that makes an FPDU which fits into one TCP segment of `emss` bytes, with as many markers as it
/// can get (RFC 5044, section 4.5). A larger `emss` than TCP's makes longer FPDUs, which is allowed.
pub const fn mulpdu(emss: usize, markers: bool) -> u16 {
    let markers = if markers { 4 * emss.div_ceil(marker::INTERVAL as usize) } else { 0 };
    let len = emss.saturating_sub(6 + markers + emss % 4);
    if len < MIN_MULPDU {
        MIN_MULPDU as u16
    } else if len > MAX_MULPDU {
        MAX_MULPDU as u16
    } else {
        len as u16
    }
}

/// A segment is longer than an FPDU can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl Sender {
    /// A stream from its first byte of full operation, for TCP segments of this size.
    pub fn new(agreed: &Agreed, emss: usize) -> Sender {
        let Agreed { markers_out: markers, crc, .. } = *agreed;
        Sender { markers, crc, position: 0, fpdus: 0, mulpdu: mulpdu(emss, markers) }
    }

    /// Sets another size of TCP's segments.
    pub fn set_emss(&mut self, emss: usize) {
        self.mulpdu = mulpdu(emss, self.markers);
    }

    /// Most bytes of a segment, with its headers.
    pub fn mulpdu(&self) -> u16 {
        self.mulpdu
    }

    /// FPDUs so far.
    pub fn fpdus(&self) -> u64 {
        self.fpdus
    }

    /// Bytes of the stream so far.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Sends one segment as an FPDU: its headers, and this range of the message's payload.
    ///
    /// # Errors
    /// [`TooLong`], and nothing is sent.
    pub fn frame<P: Payload + ?Sized>(
        &mut self,
        headers: &[u8],
        payload: &P,
        range: Range<usize>,
        sink: &mut impl Sink,
    ) -> Result<(), TooLong> {
        let len = headers.len() + range.len();
        let segment_len = u16::try_from(len).ok().filter(|_| len <= MAX_MULPDU).ok_or(TooLong)?;
        let frame = fpdu::Repr { segment_len };
        let mut fpdu = Fpdu { sender: self, crc: Crc::new(), start: None, sink };
        fpdu.own(&frame.emit());
        fpdu.own(headers);
        fpdu.payload(payload, range);
        // RFC 5044, section 4.1: padding is zero.
        fpdu.own([0; 3].get(..frame.pad()).unwrap_or_default());
        fpdu.finish();
        self.fpdus += 1;
        Ok(())
    }
}

/// An FPDU under way.
struct Fpdu<'a, S> {
    sender: &'a mut Sender,
    crc: Crc,
    /// Where the length field is.
    start: Option<u64>,
    sink: &'a mut S,
}

impl<S: Sink> Fpdu<'_, S> {
    /// Writes a marker if the stream is where one has to be. Bytes to the next one.
    fn mark(&mut self) -> usize {
        if !self.sender.markers {
            return usize::MAX;
        }
        let position = self.sender.position;
        if marker::to_next(position) == 0 {
            // RFC 5044, section 4.3: a marker between two FPDUs is the following one's, and points nowhere.
            let distance = self.start.map_or(0, |start| position - start);
            let bytes = marker::Repr { distance: distance as u16 }.emit();
            self.take(&bytes);
        }
        marker::to_next(self.sender.position) as usize
    }

    /// Takes bytes of this crate, with no marker due in between. RFC 5044, section 4.4: markers are under the CRC, too.
    fn take(&mut self, bytes: &[u8]) {
        if self.sender.crc {
            self.crc = core::mem::take(&mut self.crc).bytes(bytes);
        }
        self.sink.own(bytes);
        self.sender.position += bytes.len() as u64;
    }

    fn own(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = self.mark();
            self.start.get_or_insert(self.sender.position);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.take(now);
            bytes = later;
        }
    }

    fn payload<P: Payload + ?Sized>(&mut self, payload: &P, mut range: Range<usize>) {
        while !range.is_empty() {
            let room = self.mark();
            let end = range.start + room.min(range.len());
            let now = range.start..end;
            if self.sender.crc {
                self.crc = payload.crc(now.clone(), core::mem::take(&mut self.crc));
            }
            self.sender.position += now.len() as u64;
            self.sink.payload(now);
            range.start = end;
        }
    }

    /// The CRC's bytes, which are there in any case (RFC 5044, section 4.1). A marker in front of them is under the
    /// CRC.
    fn finish(mut self) {
        self.mark();
        let bytes = if self.sender.crc { core::mem::take(&mut self.crc).finish() } else { [0; fpdu::CRC_LEN] };
        self.sink.own(&bytes);
        self.sender.position += bytes.len() as u64;
    }
}
