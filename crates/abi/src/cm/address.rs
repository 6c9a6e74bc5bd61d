//! Binding, resolving, listening.

use libc::{c_int, sockaddr};
use sys::cma::rdma_cm_id;
use verbs::{Errno, Result};

use super::event::complete;
use super::id::Id;
use super::sockaddr as address;
use crate::entry::{minus_one, shielded};

/// Bind an id.
pub fn bind(id: &Id, addr: *const sockaddr) -> Result<()> {
    // SAFETY: an address or NULL (man page).
    let addr = unsafe { address::read(addr) }?.ok_or(Errno::EINVAL)?;
    id.cm.bind(id.key, &addr)?;
    id.refresh()
}

/// Find the way; in synchronous mode wait for the result.
pub fn resolve(id: &Id, src: *const sockaddr, dst: *const sockaddr) -> Result<()> {
    // SAFETY: addresses or NULL (man page).
    let (src, dst) = unsafe { (address::read(src)?, address::read(dst)?.ok_or(Errno::EINVAL)?) };
    id.cm.resolve_addr(id.key, src.as_ref(), &dst)?;
    // SAFETY: the call that resolves may change this member.
    unsafe { id.fields() }.route.addr.dst.dst_storage = address::storage(&dst);
    complete(id)
}

/// Find the route; in synchronous mode wait for the result.
pub fn route(id: &Id) -> Result<()> {
    id.cm.resolve_route(id.key)?;
    complete(id)
}

/// `rdma_bind_addr(3)`.
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL (man page).
        bind(unsafe { Id::of(id) }?, addr)?;
        Ok(0)
    })
}

/// `rdma_resolve_addr(3)`. The answer is known at once: the timeout never passes.
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut sockaddr,
    dst: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL (man page).
        resolve(unsafe { Id::of(id) }?, src, dst)?;
        Ok(0)
    })
}

/// `rdma_resolve_route(3)`.
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL (man page).
        route(unsafe { Id::of(id) }?)?;
        Ok(0)
    })
}

/// `rdma_listen(3)`.
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL (man page).
        let id = unsafe { Id::of(id) }?;
        id.cm.listen(id.key, backlog)?;
        id.refresh()?;
        Ok(0)
    })
}

/// `rdma_get_src_port(3)`: in network byte order; 0 if the id has none.
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    shielded(|| {
        // SAFETY: live or NULL (man page); an address that we have written, or zeros.
        Ok(unsafe { address::port(&raw const Id::of(id)?.fields().route.addr.src.src_addr) })
    })
    .unwrap_or(0)
}

/// `rdma_get_dst_port(3)`: in network byte order; 0 if the id has none.
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16 {
    shielded(|| {
        // SAFETY: live or NULL (man page); an address that we have written, or zeros.
        Ok(unsafe { address::port(&raw const Id::of(id)?.fields().route.addr.dst.dst_addr) })
    })
    .unwrap_or(0)
}
