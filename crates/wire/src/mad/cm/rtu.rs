//! RTU, "ready to use": the initiator has the reply (IBTA vol. 1, 12.6.9).

use core::fmt;

use super::{LEN, put_data};
use crate::Result;
use crate::bytes::{put_u32, u32_at};

/// Offsets in the part of the datagram behind its common header, as the specification's tables count them.
mod field {
    pub const LOCAL_ID: usize = 0;
    pub const REMOTE_ID: usize = 4;
    pub const PRIVATE_DATA: usize = 8;
}

/// The attribute of the datagram.
pub const ATTRIBUTE: u16 = 0x14;
/// Bytes of the private data: fewer are emitted with zeros behind them.
pub const PRIVATE_DATA_LEN: usize = 224;

message!("RTU");

/// What a RTU says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr<'a> {
    /// Communication id of the sender.
    pub local_id: u32,
    /// Communication id of the receiver.
    pub remote_id: u32,
    /// The private data.
    pub private_data: &'a [u8],
}

impl<'a> View<'a> {
    /// Communication id of the sender.
    pub fn local_id(&self) -> u32 {
        u32_at(self.0, field::LOCAL_ID)
    }

    /// Communication id of the receiver.
    pub fn remote_id(&self) -> u32 {
        u32_at(self.0, field::REMOTE_ID)
    }

    /// The private data.
    pub fn private_data(&self) -> &'a [u8] {
        self.0.get(field::PRIVATE_DATA..field::PRIVATE_DATA + PRIVATE_DATA_LEN).unwrap_or_default()
    }
}

impl<'a> Repr<'a> {
    /// What a message means.
    ///
    /// # Errors
    /// None: what a value without meaning is answered with is the connection manager's to say.
    pub fn parse(view: &View<'a>) -> Result<Repr<'a>> {
        Ok(Repr { local_id: view.local_id(), remote_id: view.remote_id(), private_data: view.private_data() })
    }

    /// The bytes.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) for private data or other data that do not fit.
    pub fn emit(&self) -> Result<[u8; LEN]> {
        let mut out = [0; LEN];
        put_u32(&mut out, field::LOCAL_ID, self.local_id);
        put_u32(&mut out, field::REMOTE_ID, self.remote_id);
        put_data::<{ PRIVATE_DATA_LEN }>(&mut out, field::PRIVATE_DATA, self.private_data)?;
        Ok(out)
    }
}

impl fmt::Display for Repr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RTU {:#x} > {:#x}", self.local_id, self.remote_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let message = Repr { local_id: 5, remote_id: 9, private_data: b"hi" };
        assert_message!(message, [(0, "00000005 00000009 6869 00")]);
        assert_eq!(std::format!("{message}"), "RTU 0x5 > 0x9");
    }
}
