//! REJ: a request or a reply is refused (IBTA vol. 1, 12.6.7).

use core::fmt;

use super::{LEN, put_data};
use crate::Result;
use crate::bytes::{put_u8, put_u16, put_u32, u8_at, u16_at};

/// Offsets in the part of the datagram behind its common header, as the specification's tables count them.
mod field {
    pub const LOCAL_ID: usize = 0;
    pub const REMOTE_ID: usize = 4;
    /// Message 7-6.
    pub const MESSAGE: usize = 8;
    /// Length 7-1.
    pub const INFO_LEN: usize = 9;
    pub const REASON: usize = 10;
    pub const INFO: usize = 12;
    pub const PRIVATE_DATA: usize = 84;
}

/// The attribute of the datagram.
pub const ATTRIBUTE: u16 = 0x12;

message!("REJ");
both_ids!();
data!(info: field::INFO, INFO_LEN = 72, "additional information of the reason");
data!(private_data: field::PRIVATE_DATA, PRIVATE_DATA_LEN = 148, "private data");

/// The fields of a REJ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr<'a> {
    /// Communication id of the sender.
    pub local_id: u32,
    /// Communication id of the receiver.
    pub remote_id: u32,
    /// What is refused: 0 a REQ, 1 a REP, 2 no message.
    pub message: u8,
    /// Bytes of the additional information that are valid.
    pub info_len: u8,
    /// Why (12.6.7.2).
    pub reason: u16,
    /// The additional information of the reason.
    pub info: &'a [u8],
    /// The private data.
    pub private_data: &'a [u8],
}

impl<'a> View<'a> {
    /// What is refused: 0 a REQ, 1 a REP, 2 no message.
    pub fn message(&self) -> u8 {
        u8_at(self.0, field::MESSAGE) >> 6
    }

    /// Bytes of the additional information that are valid.
    pub fn info_len(&self) -> u8 {
        u8_at(self.0, field::INFO_LEN) >> 1
    }

    /// Why (12.6.7.2).
    pub fn reason(&self) -> u16 {
        u16_at(self.0, field::REASON)
    }
}

impl<'a> Repr<'a> {
    /// Parses a message.
    ///
    /// # Errors
    /// None: what a value without meaning is answered with is the connection manager's to say.
    pub fn parse(view: &View<'a>) -> Result<Repr<'a>> {
        Ok(Repr {
            local_id: view.local_id(),
            remote_id: view.remote_id(),
            message: view.message(),
            info_len: view.info_len(),
            reason: view.reason(),
            info: view.info(),
            private_data: view.private_data(),
        })
    }

    /// The bytes.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) for private data or other data that do not fit.
    pub fn emit(&self) -> Result<[u8; LEN]> {
        let mut out = [0; LEN];
        put_u32(&mut out, field::LOCAL_ID, self.local_id);
        put_u32(&mut out, field::REMOTE_ID, self.remote_id);
        put_u8(&mut out, field::MESSAGE, (self.message & 0x03) << 6);
        put_u8(&mut out, field::INFO_LEN, (self.info_len & 0x7f) << 1);
        put_u16(&mut out, field::REASON, self.reason);
        put_data::<{ INFO_LEN }>(&mut out, field::INFO, self.info)?;
        put_data::<{ PRIVATE_DATA_LEN }>(&mut out, field::PRIVATE_DATA, self.private_data)?;
        Ok(out)
    }
}

impl fmt::Display for Repr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "REJ {:#x} > {:#x} of={} reason={}", self.local_id, self.remote_id, self.message, self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let message = Repr {
            local_id: 9,
            remote_id: 5,
            message: 1,
            info_len: 2,
            reason: 28,
            info: &[0xaa, 0xbb],
            private_data: b"no",
        };
        assert_message!(message, [(0, "00000009 00000005 40 04 001c aabb 00"), (84, "6e6f 00")]);
        assert_eq!(std::format!("{message}"), "REJ 0x9 > 0x5 of=1 reason=28");
    }
}
