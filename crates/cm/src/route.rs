//! The wire that leads to an address, and the local address that it leaves from.

use std::net::SocketAddr;

use nic::GidEntry;
use verbs::{Errno, Gid, Result};

use crate::names::is_wildcard;
use crate::socket;

/// A wire that can carry a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wire {
    /// Shared windows: the peer is a process of this host.
    Host,
    /// TCP: the device is one of iWARP.
    Tcp,
    /// No wire: the address is another host's.
    None,
}

/// The way to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The wire.
    pub wire: Wire,
    /// This host's address on the way.
    pub src: SocketAddr,
    /// The peer's address; never a wildcard.
    pub dst: SocketAddr,
}

/// Find the way. The wildcard as destination means this host, as it does for sockets.
///
/// # Errors
/// ENETUNREACH, EHOSTUNREACH: there is none. EADDRNOTAVAIL: `src` is not an address of this host.
pub fn find(src: &SocketAddr, dst: &SocketAddr) -> Result<Route> {
    let mut dst = *dst;
    if is_wildcard(&dst) {
        let loopback =
            if dst.is_ipv4() { std::net::Ipv4Addr::LOCALHOST.into() } else { std::net::Ipv6Addr::LOCALHOST.into() };
        dst = SocketAddr::new(loopback, dst.port());
    }
    if src.is_ipv4() != dst.is_ipv4() {
        return Err(Errno::EINVAL);
    }
    let mut from = if is_wildcard(src) { socket::source(src, &dst)? } else { *src };
    from.set_port(src.port());
    // The way to an address of this host leaves from that address, or from another one of this host.
    let local = dst.ip().is_loopback() || from.ip() == dst.ip() || socket::is_local(&dst)?;
    let wire = if local { Wire::Host } else { Wire::None };
    Ok(Route { wire, src: from, dst })
}

/// The row of the GID table that stands for an address of this host: its own, or the first one for an address that
/// has none (loopback). Any GID of the host leads to any process on it.
pub fn gid_of(gids: &[GidEntry], addr: &SocketAddr) -> (u8, Gid) {
    let gid = Gid::from_ip(addr.ip());
    let scope = match addr {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let found = gids.iter().position(|g| g.gid == gid && (scope == 0 || g.ifindex == scope));
    let index = found.unwrap_or(0);
    (index as u8, gids.get(index).map_or(Gid::ZERO, |g| g.gid))
}
