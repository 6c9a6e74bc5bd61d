//! Request and reply frames, with which a connection starts (RFC 5044, section 7.1.1; RFC 6581, section 6 for
//! revision 2).

use core::fmt;

use crate::bytes::{array, put, put_u8, put_u16, u8_at, u16_at};
use crate::{Error, Result};

mod field {
    pub const KEY: usize = 0;
    /// Markers 7, CRC 6, rejected 5, enhanced 4, reserved.
    pub const FLAGS: usize = 16;
    pub const REVISION: usize = 17;
    pub const PRIVATE_DATA_LEN: usize = 18;
}

header!("request or reply frame", 20);

/// Most bytes of private data (RFC 5044, section 7.1.1).
pub const MAX_PRIVATE_DATA_LEN: u16 = 512;

const REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const REPLY: &[u8; 16] = b"MPA ID Rep Frame";

/// The fields of a request or reply frame. Its private data follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The frame is a reply.
    pub reply: bool,
    /// The sender wants markers in what it receives.
    pub markers: bool,
    /// The sender wants CRCs; they are used if either side wants them.
    pub crc: bool,
    /// The connection is refused. Replies only: a request has it as zero, and a receiver ignores it there.
    pub rejected: bool,
    /// Private data start with [`enhanced`](super::enhanced) data; revision 2 only.
    pub enhanced: bool,
    /// Revision of MPA: 1 or 2.
    pub revision: u8,
    /// Bytes of private data behind the frame, with the enhanced ones.
    pub private_data_len: u16,
}

impl View<'_> {
    /// The key, which says what the frame is.
    pub fn key(&self) -> [u8; 16] {
        array(self.0, field::KEY)
    }

    /// The bit that asks for markers.
    pub fn markers(&self) -> bool {
        u8_at(self.0, field::FLAGS) & 0x80 != 0
    }

    /// The bit that asks for CRCs.
    pub fn crc(&self) -> bool {
        u8_at(self.0, field::FLAGS) & 0x40 != 0
    }

    /// The bit of a refusal.
    pub fn rejected(&self) -> bool {
        u8_at(self.0, field::FLAGS) & 0x20 != 0
    }

    /// The bit of enhanced data.
    pub fn enhanced(&self) -> bool {
        u8_at(self.0, field::FLAGS) & 0x10 != 0
    }

    /// The revision.
    pub fn revision(&self) -> u8 {
        u8_at(self.0, field::REVISION)
    }

    /// Bytes of private data.
    pub fn private_data_len(&self) -> u16 {
        u16_at(self.0, field::PRIVATE_DATA_LEN)
    }
}

impl Repr {
    /// Parses a frame.
    ///
    /// # Errors
    /// A receiver closes the connection (RFC 5044, section 7.1.1) at another key, [`Error::Value`], or revision,
    /// [`Error::Version`]; at more than 512 bytes of private data, or fewer than the enhanced data have
    /// (RFC 6581, section 6), [`Error::Length`].
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        let reply = match &view.key() {
            REQUEST => false,
            REPLY => true,
            _ => return Err(Error::Value("MPA key")),
        };
        let revision = view.revision();
        if !matches!(revision, 1 | 2) {
            return Err(Error::Version);
        }
        // The bit of enhanced data is reserved in revision 1.
        let enhanced = revision == 2 && view.enhanced();
        let private_data_len = view.private_data_len();
        let least = if enhanced { super::enhanced::LEN } else { 0 };
        if private_data_len > MAX_PRIVATE_DATA_LEN || usize::from(private_data_len) < least {
            return Err(Error::Length);
        }
        Ok(Repr {
            reply,
            markers: view.markers(),
            crc: view.crc(),
            rejected: reply && view.rejected(),
            enhanced,
            revision,
            private_data_len,
        })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put(&mut out, field::KEY, if self.reply { REPLY } else { REQUEST });
        let flags = u8::from(self.markers) << 7
            | u8::from(self.crc) << 6
            | u8::from(self.reply && self.rejected) << 5
            | u8::from(self.revision == 2 && self.enhanced) << 4;
        put_u8(&mut out, field::FLAGS, flags);
        put_u8(&mut out, field::REVISION, self.revision);
        put_u16(&mut out, field::PRIVATE_DATA_LEN, self.private_data_len);
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.reply { "reply" } else { "request" };
        write!(f, "MPA {name} revision={} data={}", self.revision, self.private_data_len)?;
        let flags = [(self.markers, " M"), (self.crc, " C"), (self.rejected, " R"), (self.enhanced, " S")];
        flags.iter().filter(|(set, _)| *set).try_for_each(|(_, name)| f.write_str(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::hex;

    const KEY: &str = "4d504120494420526571204672616d65";

    const REQUEST: Repr = Repr {
        reply: false,
        markers: false,
        crc: false,
        rejected: false,
        enhanced: true,
        revision: 2,
        private_data_len: 4,
    };

    #[test]
    fn literal_bytes() {
        // The flags and revision of siw's request.
        assert_wire!(REQUEST, &std::format!("{KEY} 10 02 0004"));
        let reply = Repr { reply: true, crc: true, rejected: true, ..REQUEST };
        assert_wire!(reply, "4d504120494420526570204672616d65 70 02 0004");
        assert_eq!(std::format!("{reply}"), "MPA reply revision=2 data=4 C R S");
        let old = Repr { markers: true, enhanced: false, revision: 1, private_data_len: 512, ..REQUEST };
        assert_wire!(old, &std::format!("{KEY} 80 01 0200"));
    }

    #[test]
    fn reserved_bits_are_ignored() {
        let with = |rest: &str| Repr::read(&hex(&std::format!("{KEY} {rest}"))).map(|(frame, _)| frame);
        assert_eq!(with("1f 02 0004"), Ok(REQUEST));
        assert_eq!(with("30 02 0004"), Ok(REQUEST), "a request rejects nothing");
        assert_eq!(with("10 01 0000").map(|frame| frame.enhanced), Ok(false), "revision 1 has no enhanced data");
    }

    #[test]
    fn what_a_receiver_refuses() {
        let with = |rest: &str| Repr::read(&hex(&std::format!("{KEY} {rest}"))).map(|_| ());
        assert_eq!(with("00 00 0000"), Err(Error::Version));
        assert_eq!(with("00 03 0000"), Err(Error::Version));
        assert_eq!(with("00 01 0201"), Err(Error::Length));
        assert_eq!(with("10 02 0003"), Err(Error::Length));
        assert_eq!(Repr::read(&[0; LEN]), Err(Error::Value("MPA key")));
    }
}
