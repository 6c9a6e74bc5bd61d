//! Socket addresses, between C's structures and Rust's.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use verbs::{Errno, Result};

/// The address behind a pointer; `None` for NULL. EINVAL for a family that is neither IPv4 nor IPv6.
///
/// # Safety
/// `addr` is NULL or points to an address that is as long as its family says.
pub unsafe fn read(addr: *const sockaddr) -> Result<Option<SocketAddr>> {
    if addr.is_null() {
        return Ok(None);
    }
    // SAFETY: every address begins with its family (caller); programs do not always align them.
    match i32::from(unsafe { (&raw const (*addr).sa_family).read_unaligned() }) {
        AF_INET => {
            // SAFETY: as long as its family says (caller).
            let c = unsafe { addr.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(c.sin_addr.s_addr));
            Ok(Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(c.sin_port)))))
        }
        AF_INET6 => {
            // SAFETY: as long as its family says (caller).
            let c = unsafe { addr.cast::<sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(c.sin6_addr.s6_addr);
            let v6 = SocketAddrV6::new(ip, u16::from_be(c.sin6_port), c.sin6_flowinfo, c.sin6_scope_id);
            Ok(Some(SocketAddr::V6(v6)))
        }
        _ => Err(Errno::EINVAL),
    }
}

/// The C form, in the storage that fits every family.
pub fn storage(addr: &SocketAddr) -> sockaddr_storage {
    // SAFETY: integers only; zeros are the empty address.
    let mut out: sockaddr_storage = unsafe { core::mem::zeroed() };
    let to = &raw mut out;
    match addr {
        SocketAddr::V4(v4) => {
            let c = sockaddr_in {
                sin_family: AF_INET as _,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is larger than, and aligned for, every address.
            unsafe { to.cast::<sockaddr_in>().write(c) };
        }
        SocketAddr::V6(v6) => {
            let c = sockaddr_in6 {
                sin6_family: AF_INET6 as _,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { to.cast::<sockaddr_in6>().write(c) };
        }
    }
    out
}

/// The port of an address in C's form, in network byte order; 0 for a foreign family.
///
/// # Safety
/// As for [`read`].
pub unsafe fn port(addr: *const sockaddr) -> u16 {
    // SAFETY: the caller's promise.
    unsafe { read(addr) }.ok().flatten().map_or(0, |a| a.port().to_be())
}
