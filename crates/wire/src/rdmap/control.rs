//! Control byte of RDMAP (RFC 5040, section 4.1; RFC 7306, section 4.1): what a message is.

use core::fmt;

use crate::bytes::{put_u8, u8_at};
use crate::{Error, Result};

mod field {
    /// Version 7-6, reserved, opcode 3-0.
    pub const CONTROL: usize = 0;
}

header!("control byte", 1);

/// The only version (RFC 5040, section 4.1).
const VERSION: u8 = 1;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // the names are the specification's
pub enum Opcode {
    Write = 0,
    ReadRequest = 1,
    ReadResponse = 2,
    Send = 3,
    SendInvalidate = 4,
    SendSolicited = 5,
    SendSolicitedInvalidate = 6,
    Terminate = 7,
    Immediate = 8,
    ImmediateSolicited = 9,
    AtomicRequest = 10,
    AtomicResponse = 11,
}

/// The fields of a control byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The kind of the message.
    pub opcode: Opcode,
}

impl Opcode {
    /// The opcode with this number.
    pub const fn from_raw(raw: u8) -> Option<Opcode> {
        Some(match raw {
            0 => Opcode::Write,
            1 => Opcode::ReadRequest,
            2 => Opcode::ReadResponse,
            3 => Opcode::Send,
            4 => Opcode::SendInvalidate,
            5 => Opcode::SendSolicited,
            6 => Opcode::SendSolicitedInvalidate,
            7 => Opcode::Terminate,
            8 => Opcode::Immediate,
            9 => Opcode::ImmediateSolicited,
            10 => Opcode::AtomicRequest,
            11 => Opcode::AtomicResponse,
            _ => return None,
        })
    }

    /// The queue of an untagged message; `None` for a tagged one (RFC 5040, section 4.1).
    pub const fn queue(self) -> Option<u32> {
        Some(match self {
            Opcode::Write | Opcode::ReadResponse => return None,
            Opcode::ReadRequest | Opcode::AtomicRequest => super::queue::REQUEST,
            Opcode::Terminate => super::queue::TERMINATE,
            Opcode::AtomicResponse => super::queue::ATOMIC_RESPONSE,
            Opcode::Send
            | Opcode::SendInvalidate
            | Opcode::SendSolicited
            | Opcode::SendSolicitedInvalidate
            | Opcode::Immediate
            | Opcode::ImmediateSolicited => super::queue::SEND,
        })
    }
}

impl View<'_> {
    /// The version.
    pub fn version(&self) -> u8 {
        u8_at(self.0, field::CONTROL) >> 6
    }

    /// The opcode.
    pub fn opcode(&self) -> u8 {
        u8_at(self.0, field::CONTROL) & 0x0f
    }
}

impl Repr {
    /// Parses a control byte.
    ///
    /// # Errors
    /// [`Error::Version`], [`Error::Opcode`]: a receiver ends the stream with "remote operation error"
    /// (RFC 5040, section 7.2).
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        if view.version() != VERSION {
            return Err(Error::Version);
        }
        Ok(Repr { opcode: Opcode::from_raw(view.opcode()).ok_or(Error::Opcode)? })
    }

    /// The byte.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u8(&mut out, field::CONTROL, VERSION << 6 | self.opcode as u8);
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.opcode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        assert_wire!(Repr { opcode: Opcode::Write }, "40");
        assert_wire!(Repr { opcode: Opcode::AtomicResponse }, "4b");
        assert_eq!(Repr::read(&[0x73]), Ok((Repr { opcode: Opcode::Send }, &[][..])), "reserved bits");
        assert_eq!(Repr::read(&[0x03]), Err(Error::Version));
        assert_eq!(Repr::read(&[0xc3]), Err(Error::Version));
        assert_eq!(Repr::read(&[0x4c]), Err(Error::Opcode));
        assert_eq!(std::format!("{}", Repr { opcode: Opcode::SendInvalidate }), "SendInvalidate");
    }

    #[test]
    fn queues_are_those_of_the_figure() {
        let queues = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11].map(|raw| Opcode::from_raw(raw).map(Opcode::queue));
        let expected =
            [None, Some(1), None, Some(0), Some(0), Some(0), Some(0), Some(2), Some(0), Some(0), Some(1), Some(3)];
        assert_eq!(queues, expected.map(Some));
        assert_eq!(Opcode::from_raw(12), None);
    }
}
