//! MRA, "message receipt acknowledgement": an answer takes longer (IBTA vol. 1, 12.6.6).

use core::fmt;

use super::{LEN, put_data};
use crate::Result;
use crate::bytes::{put_u8, put_u32, u8_at};

/// Offsets in the part of the datagram behind its common header, as the specification's tables count them.
mod field {
    pub const LOCAL_ID: usize = 0;
    pub const REMOTE_ID: usize = 4;
    /// Message 7-6.
    pub const MESSAGE: usize = 8;
    /// Service timeout 7-3.
    pub const SERVICE_TIMEOUT: usize = 9;
    pub const PRIVATE_DATA: usize = 10;
}

/// The attribute of the datagram.
pub const ATTRIBUTE: u16 = 0x11;

message!("MRA");
both_ids!();
data!(private_data: field::PRIVATE_DATA, PRIVATE_DATA_LEN = 222, "private data");

/// The fields of an MRA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr<'a> {
    /// Communication id of the sender.
    pub local_id: u32,
    /// Communication id of the receiver.
    pub remote_id: u32,
    /// What was received: 0 a REQ, 1 a REP, 2 a LAP.
    pub message: u8,
    /// Time until the answer: 4.096 us * 2^n.
    pub service_timeout: u8,
    /// The private data.
    pub private_data: &'a [u8],
}

impl<'a> View<'a> {
    /// What was received: 0 a REQ, 1 a REP, 2 a LAP.
    pub fn message(&self) -> u8 {
        u8_at(self.0, field::MESSAGE) >> 6
    }

    /// Time until the answer: 4.096 us * 2^n.
    pub fn service_timeout(&self) -> u8 {
        u8_at(self.0, field::SERVICE_TIMEOUT) >> 3
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
            service_timeout: view.service_timeout(),
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
        put_u8(&mut out, field::SERVICE_TIMEOUT, (self.service_timeout & 0x1f) << 3);
        put_data::<{ PRIVATE_DATA_LEN }>(&mut out, field::PRIVATE_DATA, self.private_data)?;
        Ok(out)
    }
}

impl fmt::Display for Repr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "MRA {:#x} > {:#x} of={} timeout={}",
            self.local_id, self.remote_id, self.message, self.service_timeout
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let message = Repr { local_id: 5, remote_id: 9, message: 1, service_timeout: 20, private_data: b"hi" };
        assert_message!(message, [(0, "00000005 00000009 40 a0 6869 00")]);
        assert_eq!(std::format!("{message}"), "MRA 0x5 > 0x9 of=1 timeout=20");
    }
}
