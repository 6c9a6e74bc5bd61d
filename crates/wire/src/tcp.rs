//! TCP header (RFC 9293, section 3.1), as captures show it. Options follow it, in whole words.

use core::fmt;

use crate::bytes::{put_u8, put_u16, put_u32, u8_at, u16_at, u32_at};
use crate::{Error, Result};

mod field {
    pub const SOURCE: usize = 0;
    pub const DEST: usize = 2;
    pub const SEQUENCE: usize = 4;
    pub const ACKNOWLEDGMENT: usize = 8;
    /// Length of header and options in words 7-4.
    pub const WORDS: usize = 12;
    pub const FLAGS: usize = 13;
    pub const WINDOW: usize = 14;
    pub const CHECKSUM: usize = 16;
    pub const URGENT: usize = 18;
}

header!("TCP header", 20);

/// TCP's number as a protocol of IPv4 and as a next header of IPv6.
pub const PROTOCOL: u8 = 6;

/// The control bits.
pub mod flag {
    /// The sender sends nothing behind this.
    pub const FIN: u8 = 1;
    /// The sequence numbers begin here.
    pub const SYN: u8 = 2;
    /// The connection is reset.
    pub const RST: u8 = 4;
    /// The data are for the receiver's program now.
    pub const PSH: u8 = 8;
    /// The acknowledgment number counts.
    pub const ACK: u8 = 16;
}

/// The fields of a TCP header, without the urgent pointer, which is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The sender's port.
    pub source: u16,
    /// The receiver's port.
    pub dest: u16,
    /// The number of the first byte of data.
    pub sequence: u32,
    /// The number of the byte that the sender expects.
    pub acknowledgment: u32,
    /// Words of options; at most 10: more are emitted as that.
    pub option_words: u8,
    /// Control bits ([`flag`]).
    pub flags: u8,
    /// Bytes that the sender has room for, scaled.
    pub window: u16,
    /// Checksum over pseudo header, header, options and data.
    pub checksum: u16,
}

impl View<'_> {
    /// The sender's port.
    pub fn source(&self) -> u16 {
        u16_at(self.0, field::SOURCE)
    }

    /// The receiver's port.
    pub fn dest(&self) -> u16 {
        u16_at(self.0, field::DEST)
    }

    /// The number of the first byte of data.
    pub fn sequence(&self) -> u32 {
        u32_at(self.0, field::SEQUENCE)
    }

    /// The number of the byte that the sender expects.
    pub fn acknowledgment(&self) -> u32 {
        u32_at(self.0, field::ACKNOWLEDGMENT)
    }

    /// Words of header and options.
    pub fn words(&self) -> u8 {
        u8_at(self.0, field::WORDS) >> 4
    }

    /// The control bits.
    pub fn flags(&self) -> u8 {
        u8_at(self.0, field::FLAGS)
    }

    /// Bytes that the sender has room for, scaled.
    pub fn window(&self) -> u16 {
        u16_at(self.0, field::WINDOW)
    }

    /// The checksum.
    pub fn checksum(&self) -> u16 {
        u16_at(self.0, field::CHECKSUM)
    }
}

impl Repr {
    /// Parses a header. The caller verifies the checksum, as the caller knows the pseudo header.
    ///
    /// # Errors
    /// [`Error::Length`] for a length that is shorter than the header.
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        Ok(Repr {
            source: view.source(),
            dest: view.dest(),
            sequence: view.sequence(),
            acknowledgment: view.acknowledgment(),
            option_words: view.words().checked_sub(LEN as u8 / 4).ok_or(Error::Length)?,
            flags: view.flags(),
            window: view.window(),
            checksum: view.checksum(),
        })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u16(&mut out, field::SOURCE, self.source);
        put_u16(&mut out, field::DEST, self.dest);
        put_u32(&mut out, field::SEQUENCE, self.sequence);
        put_u32(&mut out, field::ACKNOWLEDGMENT, self.acknowledgment);
        put_u8(&mut out, field::WORDS, (LEN as u8 / 4 + self.option_words.min(10)) << 4);
        put_u8(&mut out, field::FLAGS, self.flags);
        put_u16(&mut out, field::WINDOW, self.window);
        put_u16(&mut out, field::CHECKSUM, self.checksum);
        put_u16(&mut out, field::URGENT, 0);
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Repr { source, dest, sequence, acknowledgment, flags, .. } = self;
        write!(f, "{source} > {dest} seq={sequence} ack={acknowledgment} flags={flags:#04x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::hex;

    #[test]
    fn literal_bytes() {
        let header = Repr {
            source: 0xc000,
            dest: 7174,
            sequence: 0x0102_0304,
            acknowledgment: 0x0506_0708,
            option_words: 2,
            flags: flag::SYN | flag::ACK,
            window: 65535,
            checksum: 0xaca2,
        };
        assert_wire!(header, "c000 1c06 01020304 05060708 7012 ffff aca2 0000");
        assert_eq!(std::format!("{header}"), "49152 > 7174 seq=16909060 ack=84281096 flags=0x12");
    }

    #[test]
    fn a_length_below_its_own_is_refused() {
        assert_eq!(Repr::read(&hex("c000 1c06 01020304 05060708 4012 ffff aca2 0000")), Err(Error::Length));
    }
}
