//! The names by which ports are claimed: abstract unix sockets, one set of names per network namespace, and freed by
//! the kernel when their owner dies, however it dies.
//!
//! ```text
//! softrnic/1/cm/PORTSPACE/PORT/ADDRESS/listen        the SOCK_SEQPACKET listener there
//! softrnic/1/cm/PORTSPACE/PORT/ADDRESS/FLAGS-OWNER   bound, and not listening; OWNER makes the name unique
//! softrnic/1/cm/PORTSPACE/block/BLOCK                32 ephemeral ports, given out by their owner's process
//! softrnic/1/cm/PORTSPACE/PORT/lock                  held for the moment of looking and claiming
//! ```
//!
//! All but the second have variants, so that names that strangers hold can be passed over ([`memory::names`]).
//!
//! PORTSPACE and PORT are four hexadecimal digits. ADDRESS says the family, whether the id keeps to it (`o`: "only";
//! `d`: "dual"), the address and its scope: `4o0a000001`, `6d00..01.2`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use verbs::{Errno, Result};

/// Ports per block of ephemeral ports.
pub const BLOCK_PORTS: u16 = 32;

/// The flags of a listening socket in `/proc/net/unix` (`__SO_ACCEPTCON`).
const LISTENS: &str = "00010000";

const PREFIX: &str = "softrnic/1/cm";

/// A claim of a port, or the wish for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Address and port.
    pub addr: SocketAddr,
    /// True if the id keeps to its family (RDMA_OPTION_ID_AFONLY).
    pub only: bool,
    /// True if the id shares the port (RDMA_OPTION_ID_REUSEADDR).
    pub reuse: bool,
}

/// True for addresses that Linux takes for wildcards where ports are claimed: loopback addresses, too (`cma_any_addr`).
fn counts_as_wildcard(addr: &SocketAddr) -> bool {
    addr.ip().is_unspecified() || addr.ip().is_loopback()
}

/// True for 0.0.0.0 and ::.
pub fn is_wildcard(addr: &SocketAddr) -> bool {
    addr.ip().is_unspecified()
}

/// The scope, which matters only for link-local addresses.
fn scope(addr: &SocketAddr) -> u32 {
    match addr {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => v6.scope_id(),
        _ => 0,
    }
}

/// True if both are the same address, whatever their ports.
pub fn same_address(a: &SocketAddr, b: &SocketAddr) -> bool {
    a.ip() == b.ip() && scope(a) == scope(b)
}

/// Check that a new claim can stand beside an existing one (`cma_check_port` of Linux). The port is the same.
///
/// # Errors
/// EADDRNOTAVAIL: one of them is for all addresses, or for loopback. EADDRINUSE: the same address.
pub fn check(new: &Claim, old: &Claim) -> Result<()> {
    if new.reuse && old.reuse {
        return Ok(());
    }
    if new.only && old.only && new.addr.is_ipv4() != old.addr.is_ipv4() {
        return Ok(());
    }
    if counts_as_wildcard(&new.addr) || counts_as_wildcard(&old.addr) {
        return Err(Errno::EADDRNOTAVAIL);
    }
    if same_address(&new.addr, &old.addr) { Err(Errno::EADDRINUSE) } else { Ok(()) }
}

/// True if a listener gets requests to this address (`cma_match_private_data` of Linux).
pub fn hears(listener: &SocketAddr, only: bool, dst: &SocketAddr) -> bool {
    if is_wildcard(listener) {
        return !only || listener.is_ipv4() == dst.is_ipv4();
    }
    same_address(listener, dst)
}

fn address(addr: &SocketAddr, only: bool) -> String {
    let how = if only { 'o' } else { 'd' };
    match addr {
        SocketAddr::V4(v4) => format!("4{how}{:08x}", u32::from(*v4.ip())),
        SocketAddr::V6(v6) => format!("6{how}{:032x}.{}", u128::from(*v6.ip()), scope(addr)),
    }
}

fn parse_address(text: &str, port: u16) -> Option<(SocketAddr, bool)> {
    let only = match text.get(1..2)? {
        "o" => true,
        "d" => false,
        _ => return None,
    };
    let (family, rest) = (text.get(..1)?, text.get(2..)?);
    let addr = match family {
        "4" => SocketAddr::new(IpAddr::V4(Ipv4Addr::from(u32::from_str_radix(rest, 16).ok()?)), port),
        "6" => {
            let (digits, scope) = rest.split_once('.')?;
            let ip = Ipv6Addr::from(u128::from_str_radix(digits, 16).ok()?);
            SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope.parse().ok()?))
        }
        _ => return None,
    };
    Some((addr, only))
}

/// The name of the listener at an address.
pub fn listener(port_space: u16, addr: &SocketAddr, only: bool) -> String {
    format!("{PREFIX}/{port_space:04x}/{:04x}/{}/listen", addr.port(), address(addr, only))
}

/// The name of an id that is bound to an address.
pub fn bound(port_space: u16, claim: &Claim, owner: u128, serial: u32) -> String {
    let share = if claim.reuse { 'r' } else { '-' };
    let Claim { addr, only, .. } = claim;
    format!("{PREFIX}/{port_space:04x}/{:04x}/{}/{share}{owner:032x}{serial:08x}", addr.port(), address(addr, *only))
}

/// The name of a block of ephemeral ports.
pub fn block(port_space: u16, block: u16) -> String {
    format!("{PREFIX}/{port_space:04x}/block/{block:04x}")
}

/// The name that is held while the claims of a port are looked at and changed.
pub fn lock(port_space: u16, port: u16) -> String {
    format!("{PREFIX}/{port_space:04x}/{port:04x}/lock")
}

/// The names at which a listener for this address may be found, the most specific first.
pub fn listeners(port_space: u16, dst: &SocketAddr) -> [String; 5] {
    let any4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), dst.port());
    let any6 = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), dst.port());
    let (mine, other, usual) = if dst.is_ipv4() { (any4, any6, true) } else { (any6, any4, false) };
    let at = |addr: SocketAddr, only| listener(port_space, &addr, only);
    [at(*dst, usual), at(*dst, !usual), at(mine, true), at(mine, false), at(other, false)]
}

/// The claims in a text like `/proc/net/unix`.
pub fn claims<'a>(proc_net_unix: &'a str, port_space: u16) -> impl Iterator<Item = Claim> + 'a {
    claims_and_kinds(proc_net_unix, port_space).map(|(claim, _)| claim)
}

/// The claims of [`claims`], each with whether it is a listener's.
pub(crate) fn claims_and_kinds<'a>(
    proc_net_unix: &'a str,
    port_space: u16,
) -> impl Iterator<Item = (Claim, bool)> + 'a {
    let prefix = format!("@{PREFIX}/{port_space:04x}/");
    proc_net_unix.lines().filter_map(move |line| {
        let name = line.rsplit_once(' ')?.1.strip_prefix(prefix.as_str())?;
        // Connections that a listener has accepted show its name, too, even when it is gone.
        if is_listener(name) && !listens(line) {
            return None;
        }
        let mut parts = name.split('/');
        let port = u16::from_str_radix(parts.next()?, 16).ok()?;
        let (addr, only) = parse_address(parts.next()?, port)?;
        let reuse = parts.next()?.starts_with('r');
        Some((Claim { addr, only, reuse }, is_listener(name)))
    })
}

/// True for the name of a listener, or a variant of it ([`memory::names`]).
pub(crate) fn is_listener(name: &str) -> bool {
    memory::names::base(name).ends_with("/listen")
}

/// True for a line of `/proc/net/unix` about a socket that listens.
pub(crate) fn listens(line: &str) -> bool {
    line.split_whitespace().nth(3) == Some(LISTENS)
}

/// The beginning of the names of a port's claims in `/proc/net/unix`.
pub(crate) fn port_prefix(port_space: u16, port: u16) -> String {
    format!("@{PREFIX}/{port_space:04x}/{port:04x}/")
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod tests;
