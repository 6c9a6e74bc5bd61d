//! Ethernet addresses of GIDs (`ibv_resolve_eth_l2_from_gid`). This device sends no frame, but programs that fill in
//! a frame's header themselves ask.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use libc::c_int;
use nic::Nic;
use report::Device;
use sys::{ibv_ah_attr, ibv_context};
use verbs::{Errno, Gid, Result};

use crate::attr;
use crate::context::Context;
use crate::entry::{argument, minus_one};
use crate::query::check_port;

/// No VLAN.
const NO_VLAN: u16 = 0xffff;

/// Resolve the address of the next hop, and the VLAN, which is 0xffff for "no VLAN". EHOSTUNREACH when the neighbour is
/// not known.
pub unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    c_attr: *mut ibv_ah_attr,
    eth_mac: *mut u8,
    vid: *mut u16,
) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL.
        let context = unsafe { Context::of(context) }?;
        let (nic, kind) = (context.nic()?, context.kind());
        // SAFETY: the caller's structure or NULL.
        let to = attr::ah(unsafe { argument(c_attr) }?);
        check_port(to.port_num.into())?;
        if nic.link_layer(kind).is_infiniband() {
            return Err(Errno::EINVAL);
        }
        let from = nic.gids(kind).get(usize::from(to.sgid_index)).ok_or(Errno::EINVAL)?;
        if eth_mac.is_null() {
            return Err(Errno::EINVAL);
        }
        let mac = resolve(nic, &to.dgid, &from.ifname)?;
        // SAFETY: the caller has 6 bytes there, and a variable or NULL.
        unsafe {
            eth_mac.cast::<[u8; 6]>().write(mac);
            if !vid.is_null() {
                *vid = NO_VLAN;
            }
        }
        Ok(0)
    })
}

fn resolve(nic: &Nic, gid: &Gid, ifname: &str) -> Result<[u8; 6]> {
    let ip = gid.ip();
    if gid.is_multicast() {
        return Ok(multicast(ip));
    }
    if let Some(own) = nic.gids(Device::Roce).iter().find(|g| g.gid == *gid) {
        return mac_of(&own.ifname).ok_or(Errno::EHOSTUNREACH);
    }
    match ip {
        IpAddr::V4(v4) => arp(v4, ifname).ok_or(Errno::EHOSTUNREACH),
        IpAddr::V6(v6) if v6.is_unicast_link_local() => Ok(from_eui64(&v6.octets())),
        IpAddr::V6(_) => Err(Errno::EHOSTUNREACH),
    }
}

/// The Ethernet address of a group (RFC 1112 section 6.4; RFC 2464 section 7).
fn multicast(ip: IpAddr) -> [u8; 6] {
    match ip {
        IpAddr::V4(v4) => {
            let o = v4.octets();
            [0x01, 0x00, 0x5e, o[1] & 0x7f, o[2], o[3]]
        }
        IpAddr::V6(v6) => {
            let o = v6.octets();
            [0x33, 0x33, o[12], o[13], o[14], o[15]]
        }
    }
}

/// The Ethernet address in an interface identifier: the opposite of RFC 4291, appendix A.
fn from_eui64(ip: &[u8; 16]) -> [u8; 6] {
    [ip[8] ^ 2, ip[9], ip[10], ip[13], ip[14], ip[15]]
}

fn parse(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.trim().split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

fn mac_of(ifname: &str) -> Option<[u8; 6]> {
    parse(&fs::read_to_string(format!("/sys/class/net/{ifname}/address")).ok()?)
}

/// The kernel's table of IPv4 neighbours: address, type, flags, hardware address, mask, device.
fn arp(ip: Ipv4Addr, ifname: &str) -> Option<[u8; 6]> {
    let table = fs::read_to_string("/proc/net/arp").ok()?;
    let known = table.lines().skip(1).find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let hit = words.len() == 6 && words[0].parse() == Ok(ip) && words[5] == ifname && words[2] != "0x0";
        hit.then(|| parse(words[3])).flatten()
    });
    known.or_else(|| if ip.is_loopback() { mac_of("lo") } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_addresses() {
        assert_eq!(multicast("239.129.2.3".parse().unwrap()), [1, 0, 0x5e, 1, 2, 3]);
        assert_eq!(multicast("ff02::1:2".parse().unwrap()), [0x33, 0x33, 0, 1, 0, 2]);
    }

    #[test]
    fn link_local() {
        let ip: std::net::Ipv6Addr = "fe80::5054:ff:fe12:3456".parse().unwrap();
        assert_eq!(from_eui64(&ip.octets()), [0x52, 0x54, 0, 0x12, 0x34, 0x56]);
    }

    #[test]
    fn hardware_addresses() {
        assert_eq!(parse("52:54:00:12:34:56\n"), Some([0x52, 0x54, 0, 0x12, 0x34, 0x56]));
        assert_eq!(parse("52:54:00:12:34"), None);
        assert_eq!(parse("52:54:00:12:34:56:78"), None);
    }
}
