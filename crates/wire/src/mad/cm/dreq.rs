//! DREQ: a connection is to be released (IBTA vol. 1, 12.6.10).

use core::fmt;

use verbs::Qpn;

use super::{LEN, put_data};
use crate::Result;
use crate::bytes::{put_u24, put_u32, u24_at};

/// Offsets in the part of the datagram behind its common header, as the specification's tables count them.
mod field {
    pub const LOCAL_ID: usize = 0;
    pub const REMOTE_ID: usize = 4;
    pub const REMOTE_QPN: usize = 8;
    pub const PRIVATE_DATA: usize = 12;
}

/// The attribute of the datagram.
pub const ATTRIBUTE: u16 = 0x15;

message!("DREQ");
both_ids!();
data!(private_data: field::PRIVATE_DATA, PRIVATE_DATA_LEN = 220, "private data");

/// The fields of a DREQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr<'a> {
    /// Communication id of the sender.
    pub local_id: u32,
    /// Communication id of the receiver.
    pub remote_id: u32,
    /// The receiver's queue pair, or its end-to-end context of reliable datagrams.
    pub remote_qpn: Qpn,
    /// The private data.
    pub private_data: &'a [u8],
}

impl<'a> View<'a> {
    /// The receiver's queue pair, or its end-to-end context of reliable datagrams.
    pub fn remote_qpn(&self) -> Qpn {
        Qpn::new(u24_at(self.0, field::REMOTE_QPN))
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
            remote_qpn: view.remote_qpn(),
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
        put_u24(&mut out, field::REMOTE_QPN, self.remote_qpn.get());
        put_data::<{ PRIVATE_DATA_LEN }>(&mut out, field::PRIVATE_DATA, self.private_data)?;
        Ok(out)
    }
}

impl fmt::Display for Repr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DREQ {:#x} > {:#x} qpn={:#x}", self.local_id, self.remote_id, self.remote_qpn.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let message = Repr { local_id: 5, remote_id: 9, remote_qpn: Qpn::new(0x777), private_data: b"hi" };
        assert_message!(message, [(0, "00000005 00000009 000777 00 6869 00")]);
        assert_eq!(std::format!("{message}"), "DREQ 0x5 > 0x9 qpn=0x777");
    }
}
