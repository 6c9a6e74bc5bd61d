//! Header of an untagged segment: its place is in the next buffer of a queue of the receiver (RFC 5041, section 4.3).

use core::fmt;

use crate::Result;
use crate::bytes::{put_u8, put_u32, u8_at, u32_at};

mod field {
    /// Tagged 7, last 6, reserved, version 1-0.
    pub const CONTROL: usize = 0;
    /// The first of the five bytes of the protocol above.
    pub const UPPER: usize = 1;
    /// The other four: RDMAP has a steering tag there.
    pub const INVALIDATE: usize = 2;
    pub const QUEUE: usize = 6;
    pub const MESSAGE: usize = 10;
    pub const OFFSET: usize = 14;
}

header!("untagged header", 18);

/// The fields of an untagged header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The message's last segment.
    pub last: bool,
    /// The byte of RDMAP in the header: its [control byte](crate::rdmap::control).
    pub upper: u8,
    /// The rest that RDMAP has in the header: the steering tag that a SEND invalidates, 0 in other messages.
    pub invalidate: u32,
    /// Number of the queue ([`crate::rdmap::queue`]).
    pub queue: u32,
    /// Message sequence number: the first one of a queue is 1, and it wraps through 0.
    pub message: u32,
    /// Offset of the payload in the message.
    pub offset: u32,
}

impl View<'_> {
    /// The first byte.
    pub fn control(&self) -> u8 {
        u8_at(self.0, field::CONTROL)
    }

    /// The first byte of the protocol above.
    pub fn upper(&self) -> u8 {
        u8_at(self.0, field::UPPER)
    }

    /// The other bytes of the protocol above.
    pub fn invalidate(&self) -> u32 {
        u32_at(self.0, field::INVALIDATE)
    }

    /// The number of the queue.
    pub fn queue(&self) -> u32 {
        u32_at(self.0, field::QUEUE)
    }

    /// The message sequence number.
    pub fn message(&self) -> u32 {
        u32_at(self.0, field::MESSAGE)
    }

    /// The offset in the message.
    pub fn offset(&self) -> u32 {
        u32_at(self.0, field::OFFSET)
    }
}

impl Repr {
    /// Parses a header. The receiver checks queue, message and offset against those that it expects
    /// (RFC 5041, section 7.1).
    ///
    /// # Errors
    /// [`Error::Value`](crate::Error::Value) for a tagged header; [`Error::Version`](crate::Error::Version).
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        let last = super::check(view.control(), false)?;
        Ok(Repr {
            last,
            upper: view.upper(),
            invalidate: view.invalidate(),
            queue: view.queue(),
            message: view.message(),
            offset: view.offset(),
        })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u8(&mut out, field::CONTROL, super::control(false, self.last));
        put_u8(&mut out, field::UPPER, self.upper);
        put_u32(&mut out, field::INVALIDATE, self.invalidate);
        put_u32(&mut out, field::QUEUE, self.queue);
        put_u32(&mut out, field::MESSAGE, self.message);
        put_u32(&mut out, field::OFFSET, self.offset);
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue={} message={} offset={}", self.queue, self.message, self.offset)?;
        if self.last { f.write_str(" last") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::hex;

    #[test]
    fn literal_bytes() {
        let header = Repr { last: true, upper: 0x43, invalidate: 0, queue: 0, message: 1, offset: 0 };
        assert_wire!(header, "41 43 00000000 00000000 00000001 00000000");
        let other = Repr { last: false, invalidate: 0xdead_be00, queue: 2, message: 3, offset: 4, ..header };
        assert_wire!(other, "01 43 deadbe00 00000002 00000003 00000004");
        let reserved = hex("7d 43 00000000 00000000 00000001 00000000");
        assert_eq!(Repr::read(&reserved), Ok((header, &[][..])), "reserved bits");
        assert_eq!(std::format!("{header}"), "queue=0 message=1 offset=0 last");
    }
}
