//! LAP, "load alternate path": another path for a connection (IBTA vol. 1, 12.8.1).

use core::fmt;

use verbs::{Gid, Qpn};

use super::{LEN, put_data};
use crate::Result;
use crate::bytes::{array, put, put_u8, put_u16, put_u24, put_u32, u8_at, u16_at, u24_at};

/// Offsets in the part of the datagram behind its common header, as the specification's tables count them.
mod field {
    pub const LOCAL_ID: usize = 0;
    pub const REMOTE_ID: usize = 4;
    pub const REMOTE_QPN: usize = 12;
    /// Response timeout 7-3.
    pub const RESPONSE_TIMEOUT: usize = 15;
    pub const LOCAL_LID: usize = 20;
    pub const REMOTE_LID: usize = 22;
    pub const LOCAL_GID: usize = 24;
    pub const REMOTE_GID: usize = 40;
    /// Flow label 23-4.
    pub const FLOW_LABEL: usize = 56;
    pub const TRAFFIC_CLASS: usize = 59;
    pub const HOP_LIMIT: usize = 60;
    /// Rate 5-0.
    pub const RATE: usize = 61;
    /// Service level 7-4, subnet local 3.
    pub const SERVICE_LEVEL: usize = 62;
    /// Acknowledgement timeout 7-3.
    pub const ACK_TIMEOUT: usize = 63;
    pub const PRIVATE_DATA: usize = 64;
}

/// The attribute of the datagram.
pub const ATTRIBUTE: u16 = 0x19;

message!("LAP");
both_ids!();
data!(private_data: field::PRIVATE_DATA, PRIVATE_DATA_LEN = 168, "private data");

/// The fields of a LAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr<'a> {
    /// Communication id of the sender.
    pub local_id: u32,
    /// Communication id of the receiver.
    pub remote_id: u32,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// How long the receiver may take to answer: 4.096 us * 2^n.
    pub response_timeout: u8,
    /// The new path's LID of the sender.
    pub local_lid: u16,
    /// The new path's LID of the receiver.
    pub remote_lid: u16,
    /// The new path's GID of the sender.
    pub local_gid: Gid,
    /// The new path's GID of the receiver.
    pub remote_gid: Gid,
    /// The new path's flow label; 20 bits.
    pub flow_label: u32,
    /// The new path's traffic class.
    pub traffic_class: u8,
    /// The new path's hop limit.
    pub hop_limit: u8,
    /// The new path's static rate, as address vectors code it.
    pub rate: u8,
    /// The new path's service level.
    pub service_level: u8,
    /// The new path crosses no router.
    pub subnet_local: bool,
    /// The new path's acknowledgement timeout: 4.096 us * 2^n.
    pub ack_timeout: u8,
    /// The private data.
    pub private_data: &'a [u8],
}

impl<'a> View<'a> {
    /// The receiver's queue pair.
    pub fn remote_qpn(&self) -> Qpn {
        Qpn::new(u24_at(self.0, field::REMOTE_QPN))
    }

    /// How long the receiver may take to answer: 4.096 us * 2^n.
    pub fn response_timeout(&self) -> u8 {
        u8_at(self.0, field::RESPONSE_TIMEOUT) >> 3
    }

    /// The new path's LID of the sender.
    pub fn local_lid(&self) -> u16 {
        u16_at(self.0, field::LOCAL_LID)
    }

    /// The new path's LID of the receiver.
    pub fn remote_lid(&self) -> u16 {
        u16_at(self.0, field::REMOTE_LID)
    }

    /// The new path's GID of the sender.
    pub fn local_gid(&self) -> Gid {
        Gid(array(self.0, field::LOCAL_GID))
    }

    /// The new path's GID of the receiver.
    pub fn remote_gid(&self) -> Gid {
        Gid(array(self.0, field::REMOTE_GID))
    }

    /// The new path's flow label; 20 bits.
    pub fn flow_label(&self) -> u32 {
        u24_at(self.0, field::FLOW_LABEL) >> 4
    }

    /// The new path's traffic class.
    pub fn traffic_class(&self) -> u8 {
        u8_at(self.0, field::TRAFFIC_CLASS)
    }

    /// The new path's hop limit.
    pub fn hop_limit(&self) -> u8 {
        u8_at(self.0, field::HOP_LIMIT)
    }

    /// The new path's static rate, as address vectors code it.
    pub fn rate(&self) -> u8 {
        u8_at(self.0, field::RATE) & 0x3f
    }

    /// The new path's service level.
    pub fn service_level(&self) -> u8 {
        u8_at(self.0, field::SERVICE_LEVEL) >> 4
    }

    /// The new path crosses no router.
    pub fn subnet_local(&self) -> bool {
        u8_at(self.0, field::SERVICE_LEVEL) & 0x08 != 0
    }

    /// The new path's acknowledgement timeout: 4.096 us * 2^n.
    pub fn ack_timeout(&self) -> u8 {
        u8_at(self.0, field::ACK_TIMEOUT) >> 3
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
            response_timeout: view.response_timeout(),
            local_lid: view.local_lid(),
            remote_lid: view.remote_lid(),
            local_gid: view.local_gid(),
            remote_gid: view.remote_gid(),
            flow_label: view.flow_label(),
            traffic_class: view.traffic_class(),
            hop_limit: view.hop_limit(),
            rate: view.rate(),
            service_level: view.service_level(),
            subnet_local: view.subnet_local(),
            ack_timeout: view.ack_timeout(),
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
        put_u8(&mut out, field::RESPONSE_TIMEOUT, (self.response_timeout & 0x1f) << 3);
        put_u16(&mut out, field::LOCAL_LID, self.local_lid);
        put_u16(&mut out, field::REMOTE_LID, self.remote_lid);
        put(&mut out, field::LOCAL_GID, &self.local_gid.0);
        put(&mut out, field::REMOTE_GID, &self.remote_gid.0);
        put_u24(&mut out, field::FLOW_LABEL, self.flow_label << 4);
        put_u8(&mut out, field::TRAFFIC_CLASS, self.traffic_class);
        put_u8(&mut out, field::HOP_LIMIT, self.hop_limit);
        put_u8(&mut out, field::RATE, self.rate & 0x3f);
        put_u8(&mut out, field::SERVICE_LEVEL, (self.service_level & 0x0f) << 4 | u8::from(self.subnet_local) << 3);
        put_u8(&mut out, field::ACK_TIMEOUT, (self.ack_timeout & 0x1f) << 3);
        put_data::<{ PRIVATE_DATA_LEN }>(&mut out, field::PRIVATE_DATA, self.private_data)?;
        Ok(out)
    }
}

impl fmt::Display for Repr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Repr { local_id, remote_id, local_gid, remote_gid, .. } = self;
        write!(f, "LAP {local_id:#x} > {remote_id:#x} path={local_gid} > {remote_gid}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let message = Repr {
            local_id: 5,
            remote_id: 9,
            remote_qpn: Qpn::new(0x777),
            response_timeout: 20,
            local_lid: 1,
            remote_lid: 2,
            local_gid: Gid([1; 16]),
            remote_gid: Gid([2; 16]),
            flow_label: 0x12345,
            traffic_class: 7,
            hop_limit: 64,
            rate: 16,
            service_level: 3,
            subnet_local: true,
            ack_timeout: 18,
            private_data: b"hi",
        };
        assert_message!(
            message,
            [
                (0, "00000005 00000009 00000000 000777 a0 00000000 0001 0002 01010101"),
                (40, "0202020202020202 0202020202020202 123450 07 40 10 38 90 6869 00"),
            ]
        );
        assert_eq!(
            std::format!("{message}"),
            "LAP 0x5 > 0x9 path=0101:0101:0101:0101:0101:0101:0101:0101 > 0202:0202:0202:0202:0202:0202:0202:0202"
        );
    }
}
