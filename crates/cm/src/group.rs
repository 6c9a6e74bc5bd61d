//! The GID and the LID of a multicast group that programs know by its IP address.

use std::net::IpAddr;

use verbs::limits::DEFAULT_PKEY;
use verbs::{Gid, LinkLayer};

/// The scope of IPoIB's broadcast group: link-local (RFC 4391 section 4).
const SCOPE: u8 = 2;

/// The group's GID. On Ethernet it is made from the address (IBTA annex A17.5.1), on InfiniBand as IPoIB maps addresses
/// (RFC 4391 section 4), but with the connection manager's own signature for the datagrams of its UDP port space, as
/// Linux does (`cma_set_mgid`).
pub fn gid(link_layer: LinkLayer, ip: IpAddr, udp_port_space: bool) -> Gid {
    if !link_layer.is_infiniband() {
        return Gid::from_ip(ip);
    }
    let mut gid = Gid::ZERO;
    let signature = if udp_port_space { 0x01 } else { 0x1b };
    match ip {
        IpAddr::V4(v4) => {
            let [a, rest @ ..] = v4.octets();
            gid.0[2..4].copy_from_slice(&[0x40, signature]);
            gid.0[12] = a & 0x0f;
            gid.0[13..].copy_from_slice(&rest);
        }
        IpAddr::V6(v6) => {
            let octets = v6.octets();
            if octets[0] == 0xff && octets[1] & 0xf0 == 0x10 && octets[2..4] == [0xa0, 0x1b] {
                return Gid(octets); // a GID that a subnet administrator made
            }
            gid.0[2..4].copy_from_slice(&[0x60, signature]);
            gid.0[6..].copy_from_slice(&octets[6..]);
        }
    }
    gid.0[..2].copy_from_slice(&[0xff, 0x10 | SCOPE]);
    gid.0[4..6].copy_from_slice(&DEFAULT_PKEY.to_be_bytes());
    gid
}

/// The group's LID, which a subnet administrator would choose; 0 on Ethernet. Any multicast LID leads to the group of
/// the GID.
pub fn lid(link_layer: LinkLayer, group: &Gid) -> u16 {
    if !link_layer.is_infiniband() {
        return 0;
    }
    let lids = LinkLayer::MULTICAST_LIDS;
    let sum = group.0.iter().fold(0u16, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
    lids.start() + sum % (lids.end() - lids.start())
}

#[cfg(test)]
mod tests {
    use super::*;

    const IB: LinkLayer = LinkLayer::InfiniBand { lid: 7 };

    #[test]
    fn groups_of_ethernet_are_their_addresses() {
        let ip = "239.1.2.3".parse().unwrap();
        assert_eq!(gid(LinkLayer::Ethernet, ip, true), Gid::from_ip(ip));
        assert_eq!(lid(LinkLayer::Ethernet, &Gid::from_ip(ip)), 0);
    }

    #[test]
    fn groups_of_infiniband_are_mapped() {
        let text = |ip: &str, udp| gid(IB, ip.parse().unwrap(), udp).to_string();
        assert_eq!(text("239.1.2.3", false), "ff12:401b:ffff:0000:0000:0000:0f01:0203");
        assert_eq!(text("239.1.2.3", true), "ff12:4001:ffff:0000:0000:0000:0f01:0203");
        assert_eq!(text("ff02:1:2:3:4:5:6:7", false), "ff12:601b:ffff:0003:0004:0005:0006:0007");
        assert_eq!(text("ff1e:a01b:2:3:4:5:6:7", true), "ff1e:a01b:0002:0003:0004:0005:0006:0007");
        assert!(LinkLayer::MULTICAST_LIDS.contains(&lid(IB, &gid(IB, "239.1.2.3".parse().unwrap(), true))));
    }
}
