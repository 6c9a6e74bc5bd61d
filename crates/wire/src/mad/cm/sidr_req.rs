//! SIDR REQ: which queue pair serves datagrams of a service (IBTA vol. 1, 12.11.1).

use core::fmt;

use super::{LEN, put_data};
use crate::Result;
use crate::bytes::{put_u16, put_u32, put_u64, u16_at, u32_at, u64_at};

/// Offsets in the part of the datagram behind its common header, as the specification's tables count them.
mod field {
    pub const REQUEST_ID: usize = 0;
    pub const PKEY: usize = 4;
    pub const SERVICE_ID: usize = 8;
    pub const PRIVATE_DATA: usize = 16;
}

/// The attribute of the datagram.
pub const ATTRIBUTE: u16 = 0x17;

message!("SIDR REQ");
data!(
    private_data: field::PRIVATE_DATA,
    PRIVATE_DATA_LEN = 216,
    "private data; of a service of IP it starts with its addresses ([`super::ip_addressing`])"
);

/// The fields of a SIDR REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr<'a> {
    /// Names the request.
    pub request_id: u32,
    /// Partition.
    pub pkey: u16,
    /// The service.
    pub service_id: u64,
    /// The private data; of a service of IP it starts with its addresses ([`super::ip_addressing`]).
    pub private_data: &'a [u8],
}

impl<'a> View<'a> {
    /// Names the request.
    pub fn request_id(&self) -> u32 {
        u32_at(self.0, field::REQUEST_ID)
    }

    /// Partition.
    pub fn pkey(&self) -> u16 {
        u16_at(self.0, field::PKEY)
    }

    /// The service.
    pub fn service_id(&self) -> u64 {
        u64_at(self.0, field::SERVICE_ID)
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
            pkey: view.pkey(),
            service_id: view.service_id(),
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
        put_u16(&mut out, field::PKEY, self.pkey);
        put_u64(&mut out, field::SERVICE_ID, self.service_id);
        put_data::<{ PRIVATE_DATA_LEN }>(&mut out, field::PRIVATE_DATA, self.private_data)?;
        Ok(out)
    }
}

impl fmt::Display for Repr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SIDR REQ {:#x} service={:#x}", self.request_id, self.service_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let message = Repr { request_id: 5, pkey: 0xffff, service_id: 0x0111_4853, private_data: b"hi" };
        assert_message!(message, [(0, "00000005 ffff 0000 0000000001114853 6869 00")]);
        assert_eq!(std::format!("{message}"), "SIDR REQ 0x5 service=0x1114853");
    }
}
