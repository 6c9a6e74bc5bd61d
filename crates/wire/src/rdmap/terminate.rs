//! The payload of a terminate message: why a stream ends (RFC 5040, section 4.8): four bytes of control, and then
//! what of the segment that was wrong the control says.

use core::fmt;

use super::read_request;
use crate::bytes::{put_u8, put_u16, u8_at, u16_at};
use crate::{Error, Result, ddp};

mod field {
    /// Layer 7-4, type of error 3-0.
    pub const LAYER: usize = 0;
    pub const CODE: usize = 1;
    /// Segment length 7, DDP header 6, RDMAP header 5, reserved.
    pub const INCLUDED: usize = 2;
    // A reserved byte.
}

header!("terminate control", 4);

/// Bytes of the longest payload: control, segment length, untagged header, READ request.
pub const MAX_LEN: usize = LEN + SEGMENT_LEN + ddp::untagged::LEN + read_request::LEN;

/// Bytes of the length of the segment.
const SEGMENT_LEN: usize = 2;

/// The layer that found the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names are the specification's
pub enum Layer {
    Rdmap = 0,
    Ddp = 1,
    /// The layer below DDP: MPA.
    Llp = 2,
}

/// The fields of the control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The layer that found the error.
    pub layer: Layer,
    /// The type of the error, of the layer; 4 bits (figure 9).
    pub kind: u8,
    /// The error, of the type.
    pub code: u8,
    /// The length of the segment that was wrong follows; its place is there if only its header follows, too.
    pub segment_len: bool,
    /// The DDP header of the segment that was wrong follows.
    pub ddp: bool,
    /// The rest of a READ request's headers, behind that DDP header, follows.
    pub rdmap: bool,
}

/// A whole payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// The layer that found the error.
    pub layer: Layer,
    /// The type of the error, of the layer; 4 bits.
    pub kind: u8,
    /// The error, of the type.
    pub code: u8,
    /// Length of the DDP segment that was wrong.
    pub segment_len: Option<u16>,
    /// Its DDP header.
    pub ddp: Option<ddp::Header>,
    /// What follows the DDP header, if it is a READ request. It is emitted only with that header.
    pub read_request: Option<read_request::Repr>,
}

impl View<'_> {
    /// The layer.
    pub fn layer(&self) -> u8 {
        u8_at(self.0, field::LAYER) >> 4
    }

    /// The type of the error.
    pub fn kind(&self) -> u8 {
        u8_at(self.0, field::LAYER) & 0x0f
    }

    /// The error.
    pub fn code(&self) -> u8 {
        u8_at(self.0, field::CODE)
    }

    /// The bits that say what follows.
    pub fn included(&self) -> u8 {
        u8_at(self.0, field::INCLUDED) >> 5
    }
}

impl Repr {
    /// Parses a control.
    ///
    /// # Errors
    /// [`Error::Value`] for a layer that is not defined.
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        let layer = match view.layer() {
            0 => Layer::Rdmap,
            1 => Layer::Ddp,
            2 => Layer::Llp,
            _ => return Err(Error::Value("layer")),
        };
        let included = view.included();
        let [segment_len, ddp, rdmap] = [4, 2, 1].map(|bit| included & bit != 0);
        Ok(Repr { layer, kind: view.kind(), code: view.code(), segment_len, ddp, rdmap })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u8(&mut out, field::LAYER, (self.layer as u8) << 4 | self.kind & 0x0f);
        put_u8(&mut out, field::CODE, self.code);
        let included = u8::from(self.segment_len) << 7 | u8::from(self.ddp) << 6 | u8::from(self.rdmap) << 5;
        put_u8(&mut out, field::INCLUDED, included);
        out
    }
}

impl Payload {
    /// Parses a payload. Bytes behind it are ignored.
    ///
    /// # Errors
    /// Those of the headers in it.
    pub fn read(bytes: &[u8]) -> Result<Payload> {
        let (control, mut rest) = Repr::read(bytes)?;
        let Repr { layer, kind, code, .. } = control;
        let mut payload = Payload { layer, kind, code, segment_len: None, ddp: None, read_request: None };
        if control.segment_len || control.ddp {
            let (len, after) = rest.split_at_checked(SEGMENT_LEN).ok_or(Error::Truncated)?;
            payload.segment_len = control.segment_len.then(|| u16_at(len, 0));
            rest = after;
        }
        if control.ddp {
            let (header, after) = ddp::Header::read(rest)?;
            payload.ddp = Some(header);
            if control.rdmap {
                payload.read_request = Some(read_request::Repr::read(after)?.0);
            }
        }
        Ok(payload)
    }

    /// The bytes.
    pub fn emit(&self) -> Bytes {
        let mut out = Bytes { room: [0; MAX_LEN], len: 0 };
        let control = Repr {
            layer: self.layer,
            kind: self.kind,
            code: self.code,
            segment_len: self.segment_len.is_some(),
            ddp: self.ddp.is_some(),
            rdmap: self.ddp.is_some() && self.read_request.is_some(),
        };
        out.push(&control.emit());
        if control.segment_len || control.ddp {
            let mut len = [0; SEGMENT_LEN];
            put_u16(&mut len, 0, self.segment_len.unwrap_or_default());
            out.push(&len);
        }
        match &self.ddp {
            Some(ddp::Header::Tagged(header)) => out.push(&header.emit()),
            Some(ddp::Header::Untagged(header)) => out.push(&header.emit()),
            None => return out,
        }
        if let Some(request) = &self.read_request {
            out.push(&request.emit());
        }
        out
    }
}

/// An emitted payload.
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    room: [u8; MAX_LEN],
    len: usize,
}

impl Bytes {
    /// Adds a part. All parts together fit.
    fn push(&mut self, part: &[u8]) {
        crate::bytes::put(&mut self.room, self.len, part);
        self.len += part.len();
    }
}

impl core::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.room.get(..self.len).unwrap_or_default()
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "terminate {:?} type={} code={}", self.layer, self.kind, self.code)
    }
}

#[cfg(test)]
mod tests {
    use verbs::RKey;

    use super::*;
    use crate::header::hex;

    #[test]
    fn literal_bytes() {
        let control = Repr { layer: Layer::Ddp, kind: 1, code: 0, segment_len: true, ddp: true, rdmap: false };
        assert_wire!(control, "11 00 c0 00");
        assert_eq!(Repr::read(&hex("11 00 df ff")), Ok((control, &[][..])), "reserved bits");
        assert_eq!(Repr::read(&hex("30 00 00 00")), Err(Error::Value("layer")));
        assert_eq!(std::format!("{control}"), "terminate Ddp type=1 code=0");
    }

    #[track_caller]
    fn both(payload: &Payload, text: &str) {
        let bytes = hex(text);
        assert_eq!(payload.emit()[..], bytes);
        assert_eq!(Payload::read(&bytes), Ok(*payload));
        for short in 0..bytes.len() {
            assert_eq!(Payload::read(&bytes[..short]), Err(Error::Truncated));
        }
    }

    #[test]
    fn a_write_without_its_region() {
        let header = ddp::tagged::Repr { last: true, upper: 0x40, stag: RKey(0xdead_be00), offset: 0 };
        let ddp = Some(ddp::Header::Tagged(header));
        let payload = Payload { layer: Layer::Ddp, kind: 1, code: 0, segment_len: Some(8), ddp, read_request: None };
        both(&payload, "11 00 c0 00 0008 c140 deadbe00 0000000000000000");
        both(&Payload { layer: Layer::Llp, kind: 0, code: 2, segment_len: None, ddp: None, ..payload }, "20 02 00 00");
    }

    #[test]
    fn a_read_beyond_its_region() {
        let header = ddp::untagged::Repr { last: true, upper: 0x41, invalidate: 0, queue: 1, message: 1, offset: 0 };
        let request =
            read_request::Repr { sink_stag: RKey(1), sink_offset: 2, size: 3, source_stag: RKey(4), source_offset: 5 };
        let payload = Payload {
            layer: Layer::Rdmap,
            kind: 1,
            code: 1,
            segment_len: Some(46),
            ddp: Some(ddp::Header::Untagged(header)),
            read_request: Some(request),
        };
        let text = "01 01 e0 00 002e 41 41 00000000 00000001 00000001 00000000 \
                    00000001 0000000000000002 00000003 00000004 0000000000000005";
        both(&payload, text);
        assert_eq!(payload.emit().len(), MAX_LEN);
    }
}
