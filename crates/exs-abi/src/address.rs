//! Addresses of the program.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{c_int, sockaddr, sockaddr_in, sockaddr_in6, socklen_t};
use rdma::Errno;

use crate::entry::refuse;

/// Copy an address. EINVAL: too short. EAFNOSUPPORT: of another family than `domain`.
///
/// # Safety
/// `at` is null or points to `len` bytes.
pub unsafe fn read(at: *const sockaddr, len: socklen_t, domain: c_int) -> Result<SocketAddr, Errno> {
    if at.is_null() {
        return refuse(libc::EFAULT);
    }
    let len = len as usize;
    if len < size_of::<libc::sa_family_t>() {
        return refuse(libc::EINVAL);
    }
    // SAFETY: the length says that the member is there.
    let family = c_int::from(unsafe { (&raw const (*at).sa_family).read_unaligned() });
    match family {
        _ if family != domain => refuse(libc::EAFNOSUPPORT),
        libc::AF_INET if len >= size_of::<sockaddr_in>() => {
            // SAFETY: the length says that all of it is there.
            let at = unsafe { at.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(at.sin_addr.s_addr.to_ne_bytes());
            Ok(SocketAddrV4::new(ip, u16::from_be(at.sin_port)).into())
        }
        libc::AF_INET6 if len >= size_of::<sockaddr_in6>() => {
            // SAFETY: the length says that all of it is there.
            let at = unsafe { at.cast::<sockaddr_in6>().read_unaligned() };
            let (ip, port) = (Ipv6Addr::from(at.sin6_addr.s6_addr), u16::from_be(at.sin6_port));
            Ok(SocketAddrV6::new(ip, port, 0, at.sin6_scope_id).into())
        }
        _ => refuse(libc::EINVAL),
    }
}

/// Copy as much of an address as the program has room for, and tell its whole length, as getsockname(2) does.
///
/// # Safety
/// `len` points to a length, and `to` to as many bytes.
pub unsafe fn write(addr: SocketAddr, to: *mut sockaddr, len: *mut socklen_t) -> Result<(), Errno> {
    if to.is_null() || len.is_null() {
        return refuse(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    let room = unsafe { len.read_unaligned() } as usize;
    let put = |from: *const u8, size: usize| {
        // SAFETY: `from` has `size` bytes, and `to` has `room`; the caller's promise.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to.cast::<u8>(), room.min(size));
            len.write_unaligned(size as socklen_t);
        }
    };
    match addr {
        SocketAddr::V4(addr) => {
            let raw = sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: addr.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(addr.ip().octets()) },
                sin_zero: [0; 8],
            };
            put((&raw const raw).cast(), size_of_val(&raw));
        }
        SocketAddr::V6(addr) => {
            let raw = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: addr.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: addr.ip().octets() },
                sin6_scope_id: addr.scope_id(),
            };
            put((&raw const raw).cast(), size_of_val(&raw));
        }
    }
    Ok(())
}

/// The address of no interface in particular, with a port of the system's choice.
pub fn any(domain: c_int) -> SocketAddr {
    match domain {
        libc::AF_INET6 => (Ipv6Addr::UNSPECIFIED, 0).into(),
        _ => (Ipv4Addr::UNSPECIFIED, 0).into(),
    }
}
