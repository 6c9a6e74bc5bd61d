//! The port: its link layer, and the addresses that belong to it.
//!
//! On Ethernet (the default) the port is a RoCE port, and its GIDs are the host's IP addresses. As an InfiniBand port
//! it has the addresses that a subnet manager would have given it: a LID, and one GID, which is the subnet prefix and
//! the GUID. The port of the iWARP device has one GID, too: a hardware address, as Linux's drivers give it.

use report::Device;
use verbs::{Gid, LinkLayer};

use crate::hostaddr::{self, HostGid};

/// The LID of the subnet manager, which no program needs to ask.
pub const SM_LID: u16 = 1;
/// The default subnet prefix (IBTA vol. 1, 4.1.1).
const SUBNET_PREFIX: u64 = 0xfe80 << 48;
/// The largest unicast LID (IBTA vol. 1, 4.1.3).
const LAST_LID: u16 = 0xbfff;

/// The link layer that the settings ask for.
pub fn link_layer(settings: &report::Settings) -> LinkLayer {
    if settings.infiniband { infiniband() } else { LinkLayer::Ethernet }
}

/// InfiniBand with the LID of this host's port. The LID is made from the GUID, so all processes have the same, and
/// other hosts most likely others.
pub fn infiniband() -> LinkLayer {
    LinkLayer::InfiniBand { lid: lid(hostaddr::guid()) }
}

/// The port's GID table.
pub fn gids(device: Device, link_layer: LinkLayer) -> Vec<HostGid> {
    match device {
        Device::Iwarp => vec![hardware_gid(hostaddr::mac())],
        Device::Roce if link_layer.is_infiniband() => vec![own_gid(hostaddr::guid())],
        Device::Roce => hostaddr::gids(),
    }
}

/// The entries of the GID table of a port with this many GIDs. A port of iWARP has room for its own one only.
pub fn table_len(device: Device, gids: usize) -> usize {
    if device.is_iwarp() { gids } else { hostaddr::table_len(gids) }
}

/// The GID of a port of iWARP (Linux: `siw_query_gid`): a hardware address and zeros. Connections have IP addresses.
fn hardware_gid(mac: [u8; 6]) -> HostGid {
    let mut gid = Gid::ZERO;
    gid.0[..6].copy_from_slice(&mac);
    HostGid { gid, ifname: String::new(), ifindex: 0 }
}

/// A LID for a GUID: any but 0 and the subnet manager's.
fn lid(guid: u64) -> u16 {
    let room = u64::from(LAST_LID - SM_LID);
    SM_LID + 1 + (hostaddr::fnv1a(&guid.to_be_bytes()) % room) as u16
}

/// The GID that a port has by itself (IBTA vol. 1, 4.1.1). No network interface stands behind it.
fn own_gid(guid: u64) -> HostGid {
    let mut gid = Gid::ZERO;
    gid.0[..8].copy_from_slice(&SUBNET_PREFIX.to_be_bytes());
    gid.0[8..].copy_from_slice(&guid.to_be_bytes());
    HostGid { gid, ifname: String::new(), ifindex: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lids_are_unicast_and_nobody_elses() {
        for guid in (0..1 << 20).chain([u64::MAX]) {
            assert!((SM_LID + 1..=LAST_LID).contains(&lid(guid)), "{guid:#x}");
        }
    }

    #[test]
    fn the_gid_of_iwarp_is_a_hardware_address() {
        let gid = hardware_gid([2, 0x42, 0xac, 0x11, 0, 3]).gid;
        assert_eq!(gid.to_string(), "0242:ac11:0003:0000:0000:0000:0000:0000");
        let table = gids(Device::Iwarp, LinkLayer::Ethernet);
        assert_eq!((table.len(), table_len(Device::Iwarp, 1)), (1, 1));
        assert_eq!(table[0].gid, hardware_gid(hostaddr::mac()).gid);
        assert_ne!(table[0].gid, Gid::ZERO);
    }

    #[test]
    fn the_gid_is_prefix_and_guid() {
        assert_eq!(own_gid(0x0002_c903_00ab_cdef).gid.to_string(), "fe80:0000:0000:0000:0002:c903:00ab:cdef");
    }
}
