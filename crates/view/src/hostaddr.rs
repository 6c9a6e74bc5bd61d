//! The host's addresses, as GIDs, and an identity for the node.
//!
//! A RoCE adapter has one GID for every IP address of its network interface. This device serves all interfaces of the
//! host, so it has a GID for every usable address of the network namespace.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use report::Device;
use verbs::Gid;

/// The greatest number of GIDs; further addresses are left out, because `sgid_index` is eight bits wide in an address
/// vector.
pub const MAX_GIDS: usize = 255;

/// The number of entries of the port's GID table (`ibv_port_attr.gid_tbl_len`) with this many addresses. Like an
/// adapter's, the table has room for more; the last entries are zero.
pub fn table_len(gids: usize) -> usize {
    (gids + 1).next_power_of_two().max(16)
}

/// One entry of the GID table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostGid {
    /// The identifier.
    pub gid: Gid,
    /// The network interface that has the address.
    pub ifname: String,
    /// The index of that interface.
    pub ifindex: u32,
}

/// One address of one interface, or its hardware address.
#[derive(Clone, Debug)]
struct Found {
    ifname: String,
    ifindex: u32,
    up: bool,
    loopback: bool,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Ip(IpAddr),
    Mac([u8; 6]),
}

/// The GID table of this network namespace: IPv4 addresses first (programs that take index 0 without asking can use
/// these everywhere), then global IPv6, then link-local. Loopback appears only when there is nothing else; the table is
/// never empty.
pub fn gids() -> Vec<HostGid> {
    table(&interfaces())
}

/// Names of the interfaces that have a GID in the table of [`gids`].
pub fn interfaces_with_address() -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for HostGid { ifname, .. } in gids() {
        if !names.contains(&ifname) {
            names.push(ifname);
        }
    }
    names
}

/// The hardware address that stands in the GID of the iWARP device: that of the GUID, or one that is made of it, with
/// the bit for "local".
pub fn mac() -> [u8; 6] {
    hardware_address(&interfaces()).unwrap_or_else(|| {
        let [a, b, c, _, _, d, e, f] = guid().to_be_bytes();
        [a & !1 | 2, b, c, d, e, f]
    })
}

/// The node GUID, as the number whose big-endian bytes are the GUID. It is the EUI-64 of the first hardware address, or
/// a hash of the machine's or the host's name where there is none. All processes of a host have the same.
pub fn guid() -> u64 {
    hardware_address(&interfaces()).map(eui64).unwrap_or_else(|| {
        let name = ["/etc/machine-id", "/proc/sys/kernel/hostname"]
            .iter()
            .find_map(|path| std::fs::read(path).ok().filter(|bytes| !bytes.trim_ascii().is_empty()));
        // The universal/local bit is set to "local": no registry assigned this number. It is never zero.
        (fnv1a(name.as_deref().unwrap_or(b"softrnic")) & !(3 << 56)) | 0x0200_0000_0000_0001
    })
}

/// The node GUID of a device: [`guid`] for softrnic0. softiw0 is another adapter of the host, and has another one, as
/// Linux's adapters of iWARP form it: the hardware address and zeros, which begin its GID, too.
pub fn guid_of(device: Device) -> u64 {
    if !device.is_iwarp() {
        return guid();
    }
    let [a, b, c, d, e, f] = mac();
    u64::from_be_bytes([a, b, c, d, e, f, 0, 0])
}

fn table(found: &[Found]) -> Vec<HostGid> {
    let mut ranked: Vec<(u8, HostGid)> = Vec::new();
    for entry in found.iter().filter(|entry| entry.up) {
        let What::Ip(ip) = entry.what else { continue };
        let Some(rank) = rank(ip, entry.loopback) else { continue };
        let gid = Gid::from_ip(ip);
        if ranked.iter().any(|(_, other)| other.gid == gid && other.ifindex == entry.ifindex) {
            continue;
        }
        ranked.push((rank, HostGid { gid, ifname: entry.ifname.clone(), ifindex: entry.ifindex }));
    }
    // A stable sort: within a rank the kernel's order of interfaces remains.
    ranked.sort_by_key(|(rank, entry)| (*rank, entry.ifindex));
    let mut gids: Vec<HostGid> = ranked.into_iter().map(|(_, entry)| entry).take(MAX_GIDS).collect();
    if gids.is_empty() {
        // A namespace with no network at all still has loopback, if only by name.
        let lo = found.iter().find(|entry| entry.loopback);
        gids.push(HostGid {
            gid: Gid::from_ip(Ipv4Addr::LOCALHOST.into()),
            ifname: lo.map_or_else(|| "lo".into(), |lo| lo.ifname.clone()),
            ifindex: lo.map_or(1, |lo| lo.ifindex),
        });
    }
    gids
}

/// The rank of an address in the table, or `None` if it has no place there.
fn rank(ip: IpAddr, loopback: bool) -> Option<u8> {
    if loopback && ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() {
        return None;
    }
    Some(match ip {
        IpAddr::V4(_) => 0,
        IpAddr::V6(v6) if v6.is_unicast_link_local() => 2,
        IpAddr::V6(_) => 1,
    })
}

/// The first hardware address; one of an interface that is up, if there is one.
fn hardware_address(found: &[Found]) -> Option<[u8; 6]> {
    let macs = |only_up: bool| {
        found.iter().find_map(|entry| match entry.what {
            What::Mac(mac) if !entry.loopback && (entry.up || !only_up) && mac != [0; 6] => Some(mac),
            _ => None,
        })
    };
    macs(true).or_else(|| macs(false))
}

/// The modified EUI-64 of a hardware address (RFC 4291, appendix A), as RoCE adapters make their GUID.
fn eui64(m: [u8; 6]) -> u64 {
    u64::from_be_bytes([m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]])
}

pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// The addresses of all interfaces; none when the kernel refuses.
fn interfaces() -> Vec<Found> {
    let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `head` is a valid place for the result.
    if unsafe { libc::getifaddrs(&mut head) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next = head;
    while !next.is_null() {
        // SAFETY: a non-null element of the list that getifaddrs made; the list lives until freeifaddrs below.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        if entry.ifa_addr.is_null() || entry.ifa_name.is_null() {
            continue;
        }
        // SAFETY: getifaddrs gives NUL-terminated names.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        // SAFETY: `ifa_addr` is not null and has at least the common header of all socket addresses.
        let Some(what) = (unsafe { address(entry.ifa_addr) }) else { continue };
        // SAFETY: `name` is a NUL-terminated string.
        let ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) };
        found.push(Found {
            ifname: name.to_string_lossy().into_owned(),
            ifindex,
            up: entry.ifa_flags & libc::IFF_UP as u32 != 0,
            loopback: entry.ifa_flags & libc::IFF_LOOPBACK as u32 != 0,
            what,
        });
    }
    // SAFETY: `head` came from getifaddrs and is freed once; nothing borrowed from it remains.
    unsafe { libc::freeifaddrs(head) };
    found
}

/// # Safety
/// `addr` must point to a socket address as long as its family says.
unsafe fn address(addr: *const libc::sockaddr) -> Option<What> {
    // SAFETY: every socket address starts with its family.
    match i32::from(unsafe { (*addr).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says that this is a sockaddr_in; read without assuming alignment.
            let v4 = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(What::Ip(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into()))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that this is a sockaddr_in6; read without assuming alignment.
            let v6 = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(What::Ip(Ipv6Addr::from(v6.sin6_addr.s6_addr).into()))
        }
        libc::AF_PACKET => {
            // SAFETY: the family says that this is a sockaddr_ll; read without assuming alignment.
            let ll = unsafe { addr.cast::<libc::sockaddr_ll>().read_unaligned() };
            (ll.sll_halen == 6).then(|| What::Mac(*ll.sll_addr.first_chunk().expect("eight bytes")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(ifname: &str, ifindex: u32, up: bool, text: &str) -> Found {
        let loopback = ifname == "lo";
        Found { ifname: ifname.into(), ifindex, up, loopback, what: What::Ip(text.parse().unwrap()) }
    }

    fn addresses(found: &[Found]) -> Vec<String> {
        table(found).iter().map(|entry| format!("{} {}", entry.gid.ip(), entry.ifname)).collect()
    }

    #[test]
    fn order_is_ipv4_then_global_then_link_local() {
        let found = [
            ip("lo", 1, true, "127.0.0.1"),
            ip("lo", 1, true, "::1"),
            ip("eth1", 3, true, "fe80::1"),
            ip("eth1", 3, true, "2001:db8::1"),
            ip("eth1", 3, true, "192.0.2.2"),
            ip("eth0", 2, true, "192.0.2.1"),
            ip("eth2", 4, false, "192.0.2.3"),
        ];
        assert_eq!(addresses(&found), ["192.0.2.1 eth0", "192.0.2.2 eth1", "2001:db8::1 eth1", "fe80::1 eth1"]);
    }

    #[test]
    fn loopback_only_when_there_is_nothing_else() {
        assert_eq!(addresses(&[ip("lo", 1, true, "127.0.0.1"), ip("lo", 1, true, "::1")]), ["127.0.0.1 lo"]);
        assert_eq!(addresses(&[]), ["127.0.0.1 lo"]);
        // An address that an administrator put on the loopback interface is an address like any other.
        assert_eq!(addresses(&[ip("lo", 1, true, "198.51.100.1")]), ["198.51.100.1 lo"]);
    }

    #[test]
    fn guid_is_the_eui64_of_the_first_interface_that_is_up() {
        let mac = |ifname: &str, up, mac| Found {
            ifname: ifname.into(),
            ifindex: 1,
            up,
            loopback: ifname == "lo",
            what: What::Mac(mac),
        };
        let found = [mac("lo", true, [0; 6]), mac("ifb0", false, [9; 6]), mac("eth0", true, [0x02, 0xfc, 0, 0, 0, 1])];
        let identity = |found: &[Found]| hardware_address(found).map(eui64);
        assert_eq!(identity(&found), Some(0x00fc_00ff_fe00_0001));
        assert_eq!(identity(&found[..2]), Some(0x0b09_09ff_fe09_0909));
        assert_eq!(identity(&found[..1]), None);
    }

    #[test]
    fn every_index_fits_into_eight_bits() {
        assert_eq!(table_len(1), 16);
        assert_eq!(table_len(16), 32);
        assert_eq!(table_len(MAX_GIDS), 256);
    }

    #[test]
    fn this_host_has_an_identity() {
        assert!(!gids().is_empty());
        assert_ne!(guid(), 0);
        assert_eq!(guid_of(Device::Roce), guid());
        assert_ne!(guid_of(Device::Iwarp), guid());
        assert_eq!(guid_of(Device::Iwarp).to_be_bytes()[..6], mac());
        assert_eq!(guid(), guid());
    }
}
