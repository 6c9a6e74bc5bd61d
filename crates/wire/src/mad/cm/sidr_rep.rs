//! SIDR REP: the answer to a SIDR REQ (IBTA vol. 1, 12.11.2).

use core::fmt;

use verbs::Qpn;

use super::{LEN, put_data};
use crate::Result;
use crate::bytes::{put_u8, put_u24, put_u32, put_u64, u8_at, u24_at, u32_at, u64_at};

/// Offsets in the part of the datagram behind its common header, as the specification's tables count them.
mod field {
    pub const REQUEST_ID: usize = 0;
    pub const STATUS: usize = 4;
    pub const INFO_LEN: usize = 5;
    pub const QPN: usize = 8;
    pub const SERVICE_ID: usize = 12;
    pub const QKEY: usize = 20;
    pub const INFO: usize = 24;
    pub const PRIVATE_DATA: usize = 96;
}

/// The attribute of the datagram.
pub const ATTRIBUTE: u16 = 0x18;

message!("SIDR REP");
data!(info: field::INFO, INFO_LEN = 72, "additional information of the status");
data!(private_data: field::PRIVATE_DATA, PRIVATE_DATA_LEN = 136, "private data");

/// The fields of a SIDR REP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr<'a> {
    /// That of the request.
    pub request_id: u32,
    /// 0: the queue pair is valid; else why there is none.
    pub status: u8,
    /// Bytes of the additional information that are valid.
    pub info_len: u8,
    /// The queue pair.
    pub qpn: Qpn,
    /// The service.
    pub service_id: u64,
    /// The queue pair's queue key.
    pub qkey: u32,
    /// The additional information of the status.
    pub info: &'a [u8],
    /// The private data.
    pub private_data: &'a [u8],
}

impl<'a> View<'a> {
    /// That of the request.
    pub fn request_id(&self) -> u32 {
        u32_at(self.0, field::REQUEST_ID)
    }

    /// 0: the queue pair is valid; else why there is none.
    pub fn status(&self) -> u8 {
        u8_at(self.0, field::STATUS)
    }

    /// Bytes of the additional information that are valid.
    pub fn info_len(&self) -> u8 {
        u8_at(self.0, field::INFO_LEN)
    }

    /// The queue pair.
    pub fn qpn(&self) -> Qpn {
        Qpn::new(u24_at(self.0, field::QPN))
    }

    /// The service.
    pub fn service_id(&self) -> u64 {
        u64_at(self.0, field::SERVICE_ID)
    }

    /// The queue pair's queue key.
    pub fn qkey(&self) -> u32 {
        u32_at(self.0, field::QKEY)
    }
}

impl<'a> Repr<'a> {
    /// Parses a message.
    ///
    /// # Errors
    /// None: what a value without meaning is answered with is the connection manager's to say.
    pub fn parse(view: &View<'a>) -> Result<Repr<'a>> {
        Ok(Repr {
            request_id: view.request_id(),
            status: view.status(),
            info_len: view.info_len(),
            qpn: view.qpn(),
            service_id: view.service_id(),
            qkey: view.qkey(),
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
        put_u32(&mut out, field::REQUEST_ID, self.request_id);
        put_u8(&mut out, field::STATUS, self.status);
        put_u8(&mut out, field::INFO_LEN, self.info_len);
        put_u24(&mut out, field::QPN, self.qpn.get());
        put_u64(&mut out, field::SERVICE_ID, self.service_id);
        put_u32(&mut out, field::QKEY, self.qkey);
        put_data::<{ INFO_LEN }>(&mut out, field::INFO, self.info)?;
        put_data::<{ PRIVATE_DATA_LEN }>(&mut out, field::PRIVATE_DATA, self.private_data)?;
        Ok(out)
    }
}

impl fmt::Display for Repr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Repr { request_id, status, qpn, qkey, .. } = self;
        write!(f, "SIDR REP {request_id:#x} status={status} qpn={:#x} qkey={qkey:#x}", qpn.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let message = Repr {
            request_id: 5,
            status: 0,
            info_len: 2,
            qpn: Qpn::new(0xabcdef),
            service_id: 0x0111_4853,
            qkey: 0x0123_4567,
            info: &[0xaa, 0xbb],
            private_data: b"d",
        };
        assert_message!(
            message,
            [(0, "00000005 00 02 0000 abcdef 00 0000000001114853 01234567 aabb 00"), (96, "64 00")]
        );
        assert_eq!(std::format!("{message}"), "SIDR REP 0x5 status=0 qpn=0xabcdef qkey=0x1234567");
    }
}
