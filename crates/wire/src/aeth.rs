//! ACK extended transport header (IBTA vol. 1, 9.3.5): how a request went.

use core::fmt;

use crate::Result;
use crate::bytes::{put_u8, put_u24, u8_at, u24_at};

mod field {
    pub const SYNDROME: usize = 0;
    pub const MSN: usize = 1;
}

header!("ACK extended transport header", 4);

/// The fields of an ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The syndrome as it is on the wire; [`Repr::meaning`] decodes it.
    pub syndrome: u8,
    /// Message sequence number: requests that the responder has completed, modulo 2^24.
    pub msn: u32,
}

/// A syndrome (9.7.5.2, table 44).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// The request was executed. 5 bits: the code of the credits for end-to-end flow control, 31 for none.
    Ack(u8),
    /// No receive request was posted. 5 bits: the code of the time to wait (table 46).
    RnrNak(u8),
    /// The request was refused. 5 bits: 0 sequence, 1 invalid request, 2 remote access, 3 remote operation, 4 invalid
    /// RD request (table 45).
    Nak(u8),
}

impl View<'_> {
    /// The syndrome.
    pub fn syndrome(&self) -> u8 {
        u8_at(self.0, field::SYNDROME)
    }

    /// The message sequence number.
    pub fn msn(&self) -> u32 {
        u24_at(self.0, field::MSN)
    }
}

impl Repr {
    /// Parses a header.
    ///
    /// # Errors
    /// None: a reserved syndrome is for the requester to ignore (9.7.5.2.8).
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        Ok(Repr { syndrome: view.syndrome(), msn: view.msn() })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u8(&mut out, field::SYNDROME, self.syndrome);
        put_u24(&mut out, field::MSN, self.msn);
        out
    }

    /// The meaning of the syndrome; `None` if it is reserved.
    pub const fn meaning(&self) -> Option<Syndrome> {
        let value = self.syndrome & 0x1f;
        match self.syndrome >> 5 {
            0 => Some(Syndrome::Ack(value)),
            1 => Some(Syndrome::RnrNak(value)),
            3 => Some(Syndrome::Nak(value)),
            _ => None,
        }
    }
}

impl Syndrome {
    /// The syndrome as it is on the wire.
    pub const fn emit(self) -> u8 {
        match self {
            Syndrome::Ack(credits) => credits & 0x1f,
            Syndrome::RnrNak(timer) => 1 << 5 | timer & 0x1f,
            Syndrome::Nak(code) => 3 << 5 | code & 0x1f,
        }
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.meaning() {
            Some(Syndrome::Ack(31)) => f.write_str("ACK")?,
            Some(Syndrome::Ack(credits)) => write!(f, "ACK credits={credits}")?,
            Some(Syndrome::RnrNak(timer)) => write!(f, "RNR NAK timer={timer}")?,
            Some(Syndrome::Nak(code)) => write!(f, "NAK code={code}")?,
            None => write!(f, "reserved syndrome={:#x}", self.syndrome)?,
        }
        write!(f, " msn={:#x}", self.msn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        assert_wire!(Repr { syndrome: 0x1f, msn: 0xabcdef }, "1f abcdef");
        assert_wire!(Repr { syndrome: 0x62, msn: 7 }, "62 000007");
    }

    #[test]
    fn syndromes_are_those_of_table_44() {
        let meaning = |syndrome| Repr { syndrome, msn: 0 }.meaning();
        assert_eq!(meaning(0x1f), Some(Syndrome::Ack(31)));
        assert_eq!(meaning(0x2e), Some(Syndrome::RnrNak(14)));
        assert_eq!(meaning(0x60), Some(Syndrome::Nak(0)));
        assert_eq!([meaning(0x40), meaning(0x9f), meaning(0xff)], [None; 3]);
        for syndrome in (0..=255).filter(|raw| meaning(*raw).is_some()) {
            assert_eq!(meaning(syndrome).map(Syndrome::emit), Some(syndrome));
        }
    }

    #[test]
    fn one_line() {
        assert_eq!(std::format!("{}", Repr { syndrome: 0x61, msn: 2 }), "NAK code=1 msn=0x2");
        assert_eq!(std::format!("{}", Repr { syndrome: 0x1f, msn: 2 }), "ACK msn=0x2");
    }
}
