//! A path between two ports as a REQ describes it, twice (IBTA vol. 1, 12.6.5: primary and alternate path).

use core::fmt;

use verbs::Gid;

use crate::Result;
use crate::bytes::{array, put, put_u8, put_u16, put_u24, u8_at, u16_at, u24_at};

mod field {
    pub const LOCAL_LID: usize = 0;
    pub const REMOTE_LID: usize = 2;
    pub const LOCAL_GID: usize = 4;
    pub const REMOTE_GID: usize = 20;
    /// Flow label 23-4, reserved.
    pub const FLOW_LABEL: usize = 36;
    /// Rate 5-0.
    pub const RATE: usize = 39;
    pub const TRAFFIC_CLASS: usize = 40;
    pub const HOP_LIMIT: usize = 41;
    /// Service level 7-4, subnet local 3.
    pub const SERVICE_LEVEL: usize = 42;
    /// Acknowledgement timeout 7-3.
    pub const ACK_TIMEOUT: usize = 43;
}

header!("description of a path", 44);

/// The permissive LID, which stands where LIDs have no meaning: behind routers, and in RoCE.
pub const PERMISSIVE_LID: u16 = 0xffff;

/// The fields of a description of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// The sender's LID.
    pub local_lid: u16,
    /// The receiver's LID.
    pub remote_lid: u16,
    /// The sender's GID.
    pub local_gid: Gid,
    /// The receiver's GID; zero in an alternate path that is not given.
    pub remote_gid: Gid,
    /// 20 bits.
    pub flow_label: u32,
    /// Static rate, as address vectors code it; 6 bits.
    pub rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// 4 bits.
    pub service_level: u8,
    /// The path crosses no router.
    pub subnet_local: bool,
    /// Acknowledgement timeout: 4.096 us * 2^n; 5 bits.
    pub ack_timeout: u8,
}

impl View<'_> {
    /// The sender's LID.
    pub fn local_lid(&self) -> u16 {
        u16_at(self.0, field::LOCAL_LID)
    }

    /// The receiver's LID.
    pub fn remote_lid(&self) -> u16 {
        u16_at(self.0, field::REMOTE_LID)
    }

    /// The sender's GID.
    pub fn local_gid(&self) -> Gid {
        Gid(array(self.0, field::LOCAL_GID))
    }

    /// The receiver's GID.
    pub fn remote_gid(&self) -> Gid {
        Gid(array(self.0, field::REMOTE_GID))
    }

    /// The flow label.
    pub fn flow_label(&self) -> u32 {
        u24_at(self.0, field::FLOW_LABEL) >> 4
    }

    /// The static rate.
    pub fn rate(&self) -> u8 {
        u8_at(self.0, field::RATE) & 0x3f
    }

    /// The traffic class.
    pub fn traffic_class(&self) -> u8 {
        u8_at(self.0, field::TRAFFIC_CLASS)
    }

    /// The hop limit.
    pub fn hop_limit(&self) -> u8 {
        u8_at(self.0, field::HOP_LIMIT)
    }

    /// The service level.
    pub fn service_level(&self) -> u8 {
        u8_at(self.0, field::SERVICE_LEVEL) >> 4
    }

    /// The bit of paths that cross no router.
    pub fn subnet_local(&self) -> bool {
        u8_at(self.0, field::SERVICE_LEVEL) & 8 != 0
    }

    /// The acknowledgement timeout.
    pub fn ack_timeout(&self) -> u8 {
        u8_at(self.0, field::ACK_TIMEOUT) >> 3
    }
}

impl Repr {
    /// Parses a description.
    ///
    /// # Errors
    /// None: what a value without meaning is answered with is the connection manager's to say.
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        Ok(Repr {
            local_lid: view.local_lid(),
            remote_lid: view.remote_lid(),
            local_gid: view.local_gid(),
            remote_gid: view.remote_gid(),
            flow_label: view.flow_label(),
            rate: view.rate(),
            traffic_class: view.traffic_class(),
            hop_limit: view.hop_limit(),
            service_level: view.service_level(),
            subnet_local: view.subnet_local(),
            ack_timeout: view.ack_timeout(),
        })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u16(&mut out, field::LOCAL_LID, self.local_lid);
        put_u16(&mut out, field::REMOTE_LID, self.remote_lid);
        put(&mut out, field::LOCAL_GID, &self.local_gid.0);
        put(&mut out, field::REMOTE_GID, &self.remote_gid.0);
        put_u24(&mut out, field::FLOW_LABEL, self.flow_label << 4);
        put_u8(&mut out, field::RATE, self.rate & 0x3f);
        put_u8(&mut out, field::TRAFFIC_CLASS, self.traffic_class);
        put_u8(&mut out, field::HOP_LIMIT, self.hop_limit);
        put_u8(&mut out, field::SERVICE_LEVEL, (self.service_level & 0x0f) << 4 | u8::from(self.subnet_local) << 3);
        put_u8(&mut out, field::ACK_TIMEOUT, (self.ack_timeout & 0x1f) << 3);
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {} timeout={}", self.local_gid, self.remote_gid, self.ack_timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let path = Repr {
            local_lid: PERMISSIVE_LID,
            remote_lid: 2,
            local_gid: Gid([1; 16]),
            remote_gid: Gid([2; 16]),
            flow_label: 0x12345,
            rate: 16,
            traffic_class: 7,
            hop_limit: 64,
            service_level: 3,
            subnet_local: true,
            ack_timeout: 18,
        };
        let gids = std::format!("{}{}", "01".repeat(16), "02".repeat(16));
        assert_wire!(path, &std::format!("ffff 0002 {gids} 123450 10 07 40 38 90"));
        let [local, remote] = [path.local_gid, path.remote_gid];
        assert_eq!(std::format!("{path}"), std::format!("{local} > {remote} timeout=18"));
    }
}
