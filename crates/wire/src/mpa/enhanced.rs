//! The data of enhanced connection establishment in front of the private data of a request or reply
//! (RFC 6581, section 9): how many READs each side takes, and which side sends first.

use core::fmt;

use crate::Result;
use crate::bytes::{put_u16, u16_at};

mod field {
    /// Peer to peer 15, zero-length SEND 14, IRD 13-0.
    pub const IRD: usize = 0;
    /// Zero-length WRITE 15, zero-length READ 14, ORD 13-0.
    pub const ORD: usize = 2;
}

header!("header of enhanced connection establishment", 4);

/// In a depth: the program negotiates it itself.
pub const LEFT_TO_PROGRAM: u16 = 0x3fff;

/// The fields of a header of enhanced connection establishment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Peer-to-peer model: the initiator sends a "ready to receive" message before all else.
    pub peer_to_peer: bool,
    /// That message may be, or is, a SEND of no bytes.
    pub ready_by_send: bool,
    /// READ requests that the sender accepts at a time; 14 bits.
    pub ird: u16,
    /// The "ready to receive" message may be, or is, a WRITE of no bytes.
    pub ready_by_write: bool,
    /// The "ready to receive" message may be, or is, a READ of no bytes.
    pub ready_by_read: bool,
    /// READ requests that the sender will have outstanding; 14 bits.
    pub ord: u16,
}

impl View<'_> {
    /// The flags and the number of READ requests accepted.
    pub fn ird(&self) -> u16 {
        u16_at(self.0, field::IRD)
    }

    /// The flags and the number of READ requests outstanding.
    pub fn ord(&self) -> u16 {
        u16_at(self.0, field::ORD)
    }
}

impl Repr {
    /// Parses a header.
    ///
    /// # Errors
    /// None: which values go together is the connection manager's to say.
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        let (ird, ord) = (view.ird(), view.ord());
        Ok(Repr {
            peer_to_peer: ird & 0x8000 != 0,
            ready_by_send: ird & 0x4000 != 0,
            ird: ird & 0x3fff,
            ready_by_write: ord & 0x8000 != 0,
            ready_by_read: ord & 0x4000 != 0,
            ord: ord & 0x3fff,
        })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let word = |high: bool, low: bool, depth: u16| u16::from(high) << 15 | u16::from(low) << 14 | depth & 0x3fff;
        let mut out = [0; LEN];
        put_u16(&mut out, field::IRD, word(self.peer_to_peer, self.ready_by_send, self.ird));
        put_u16(&mut out, field::ORD, word(self.ready_by_write, self.ready_by_read, self.ord));
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ird={} ord={}", self.ird, self.ord)?;
        let flags = [
            (self.peer_to_peer, " p2p"),
            (self.ready_by_send, " SEND"),
            (self.ready_by_write, " WRITE"),
            (self.ready_by_read, " READ"),
        ];
        flags.iter().filter(|(set, _)| *set).try_for_each(|(_, name)| f.write_str(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let siw = Repr {
            peer_to_peer: false,
            ready_by_send: false,
            ird: 1,
            ready_by_write: false,
            ready_by_read: false,
            ord: 1,
        };
        assert_wire!(siw, "0001 0001");
        let other = Repr {
            peer_to_peer: true,
            ird: LEFT_TO_PROGRAM,
            ready_by_write: true,
            ready_by_read: true,
            ord: 128,
            ..siw
        };
        assert_wire!(other, "bfff c080");
        assert_wire!(Repr { ready_by_send: true, ..siw }, "4001 0001");
        assert_eq!(std::format!("{other}"), "ird=16383 ord=128 p2p WRITE READ");
    }
}
