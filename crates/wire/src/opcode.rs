//! The opcode of the base transport header: which service, which operation, and so which headers follow (IBTA vol. 1,
//! 9.2, table 35; annex A14 for XRC, A17 for congestion notification, A19 for FLUSH and ATOMIC WRITE).

use core::fmt;

use crate::{Error, Result};

/// The transport service: the upper three bits. Reliable datagrams (2) are not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Unreliable datagram.
    Ud = 3,
    /// Extended reliable connection.
    Xrc = 5,
}

/// The operation: the lower five bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // the names are the specification's
pub enum Operation {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastImm = 0x03,
    SendOnly = 0x04,
    SendOnlyImm = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastImm = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyImm = 0x0b,
    ReadRequest = 0x0c,
    ReadResponseFirst = 0x0d,
    ReadResponseMiddle = 0x0e,
    ReadResponseLast = 0x0f,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareSwap = 0x13,
    FetchAdd = 0x14,
    SendLastInvalidate = 0x16,
    SendOnlyInvalidate = 0x17,
    Flush = 0x1c,
    AtomicWrite = 0x1d,
}

/// A header behind the base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names are the specification's
pub enum Extension {
    Xrceth,
    Deth,
    Feth,
    Reth,
    AtomicEth,
    Aeth,
    AtomicAckEth,
    ImmDt,
    Ieth,
}

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// A packet of a transport service.
    Transport(Service, Operation),
    /// Congestion notification packet (A17.9.3): 16 bytes of zero follow, and no payload.
    CongestionNotification,
}

/// [`Opcode::CongestionNotification`] as a byte.
const CNP: u8 = 0x81;

impl Operation {
    /// The operation with this number.
    pub const fn from_raw(raw: u8) -> Option<Operation> {
        use Operation::*;
        Some(match raw {
            0x00 => SendFirst,
            0x01 => SendMiddle,
            0x02 => SendLast,
            0x03 => SendLastImm,
            0x04 => SendOnly,
            0x05 => SendOnlyImm,
            0x06 => WriteFirst,
            0x07 => WriteMiddle,
            0x08 => WriteLast,
            0x09 => WriteLastImm,
            0x0a => WriteOnly,
            0x0b => WriteOnlyImm,
            0x0c => ReadRequest,
            0x0d => ReadResponseFirst,
            0x0e => ReadResponseMiddle,
            0x0f => ReadResponseLast,
            0x10 => ReadResponseOnly,
            0x11 => Acknowledge,
            0x12 => AtomicAcknowledge,
            0x13 => CompareSwap,
            0x14 => FetchAdd,
            0x16 => SendLastInvalidate,
            0x17 => SendOnlyInvalidate,
            0x1c => Flush,
            0x1d => AtomicWrite,
            _ => return None,
        })
    }

    /// True for what goes from responder to requester.
    pub const fn is_response(self) -> bool {
        matches!(self as u8, 0x0d..=0x12)
    }

    /// The headers that follow those of the service, in their order (table 35).
    const fn extensions(self) -> &'static [Extension] {
        use Extension::*;
        use Operation::*;
        match self {
            SendFirst | SendMiddle | SendLast | SendOnly | WriteMiddle | WriteLast | ReadResponseMiddle => &[],
            SendLastImm | SendOnlyImm | WriteLastImm => &[ImmDt],
            SendLastInvalidate | SendOnlyInvalidate => &[Ieth],
            WriteFirst | WriteOnly | ReadRequest | AtomicWrite => &[Reth],
            WriteOnlyImm => &[Reth, ImmDt],
            Flush => &[Feth, Reth],
            CompareSwap | FetchAdd => &[AtomicEth],
            ReadResponseFirst | ReadResponseLast | ReadResponseOnly | Acknowledge => &[Aeth],
            AtomicAcknowledge => &[Aeth, AtomicAckEth],
        }
    }
}

impl Opcode {
    /// The opcode that this byte is.
    ///
    /// # Errors
    /// [`Error::Opcode`] for what table 35 reserves, and for reliable datagrams.
    pub const fn parse(raw: u8) -> Result<Opcode> {
        if raw == CNP {
            return Ok(Opcode::CongestionNotification);
        }
        let Some(operation) = Operation::from_raw(raw & 0x1f) else { return Err(Error::Opcode) };
        let low = raw & 0x1f;
        let (service, defined) = match raw >> 5 {
            0 => (Service::Rc, true),
            // Unreliable connections have SEND and WRITE, without invalidation; datagrams have SEND Only.
            1 => (Service::Uc, low <= 0x0b),
            3 => (Service::Ud, low == 0x04 || low == 0x05),
            5 => (Service::Xrc, true),
            _ => return Err(Error::Opcode),
        };
        if defined { Ok(Opcode::Transport(service, operation)) } else { Err(Error::Opcode) }
    }

    /// The byte.
    pub const fn emit(self) -> u8 {
        match self {
            Opcode::Transport(service, operation) => (service as u8) << 5 | operation as u8,
            Opcode::CongestionNotification => CNP,
        }
    }

    /// The headers behind the base transport header, in their order: those of the service (A14: requests of XRC name
    /// their shared receive queue; UD has a DETH), then those of the operation.
    pub fn extensions(self) -> impl Iterator<Item = Extension> {
        let (of_service, of_operation): (&[Extension], &[Extension]) = match self {
            Opcode::Transport(Service::Xrc, operation) if !operation.is_response() => {
                (&[Extension::Xrceth], operation.extensions())
            }
            Opcode::Transport(Service::Ud, operation) => (&[Extension::Deth], operation.extensions()),
            Opcode::Transport(_, operation) => (&[], operation.extensions()),
            Opcode::CongestionNotification => (&[], &[]),
        };
        of_service.iter().chain(of_operation).copied()
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Opcode::Transport(service, operation) => write!(f, "{service:?} {operation:?}"),
            Opcode::CongestionNotification => f.write_str("CNP"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn what_is_defined_is_emitted_as_it_was_parsed() {
        let defined: Vec<u8> = (0..=255).filter(|raw| Opcode::parse(*raw).is_ok()).collect();
        // Table 35, A14, A19: 25 for RC and as many for XRC, 12 for UC, 2 for UD; and the CNP.
        assert_eq!(defined.len(), 25 + 25 + 12 + 2 + 1);
        for raw in defined {
            assert_eq!(Opcode::parse(raw).map(Opcode::emit), Ok(raw));
        }
    }

    #[test]
    fn what_is_reserved_is_refused() {
        // Reliable datagram; UC with READ; UD with SEND First; 15h, 18h; manufacturer specific.
        for raw in [0x44, 0x2c, 0x36, 0x60, 0x15, 0x18, 0x80, 0xc0, 0xff] {
            assert_eq!(Opcode::parse(raw), Err(Error::Opcode), "{raw:#x}");
        }
    }

    #[test]
    fn headers_are_those_of_table_35() {
        let of = |raw| Opcode::parse(raw).map(|opcode| opcode.extensions().collect::<Vec<_>>());
        assert_eq!(of(0x04), Ok([].to_vec()));
        assert_eq!(of(0x0b), Ok([Extension::Reth, Extension::ImmDt].to_vec()));
        assert_eq!(of(0x0e), Ok([].to_vec()));
        assert_eq!(of(0x12), Ok([Extension::Aeth, Extension::AtomicAckEth].to_vec()));
        assert_eq!(of(0x65), Ok([Extension::Deth, Extension::ImmDt].to_vec()));
        assert_eq!(of(0xac), Ok([Extension::Xrceth, Extension::Reth].to_vec()));
        assert_eq!(of(0xb1), Ok([Extension::Aeth].to_vec()));
        assert_eq!(of(0x1c), Ok([Extension::Feth, Extension::Reth].to_vec()));
        assert_eq!(of(0x81), Ok([].to_vec()));
    }

    #[test]
    fn names() {
        assert_eq!(std::format!("{}", Opcode::Transport(Service::Rc, Operation::SendOnly)), "Rc SendOnly");
    }
}
