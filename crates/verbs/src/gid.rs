//! Global identifiers: 128 bits, as an IPv6 address (IBTA vol. 1, 4.1.1).

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A port's or a multicast group's global identifier, in network byte order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// No identifier.
    pub const ZERO: Gid = Gid([0; 16]);

    /// The identifier of an IP address; IPv4 is mapped into `::ffff:a.b.c.d` (IBTA annex A17, RoCEv2).
    pub fn from_ip(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Gid(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Gid(v6.octets()),
        }
    }

    /// The address that this identifier stands for.
    pub fn ip(&self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    /// The mapped IPv4 address, if it is one.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// True for a multicast group: `ff00::/8`, or a mapped IPv4 group (`::ffff:224.0.0.0/4`).
    pub fn is_multicast(&self) -> bool {
        self.0[0] == 0xff || self.ipv4().is_some_and(|v4| v4.is_multicast())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Gid {
    /// Format as eight groups of four hexadecimal digits, as sysfs does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, pair) in self.0.chunks_exact(2).enumerate() {
            if i > 0 {
                f.write_str(":")?;
            }
            write!(f, "{:02x}{:02x}", pair[0], pair[1])?;
        }
        Ok(())
    }
}
