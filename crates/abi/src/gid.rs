//! The GID table.

use core::mem::size_of;

use libc::{c_int, size_t, ssize_t};
use sys::{IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V2, ibv_context, ibv_gid, ibv_gid_entry};
use verbs::{Errno, Result};

use crate::context::Context;
use crate::entry::{minus_one, number, output, set_errno, shielded};
use crate::query::check_port;

/// The GIDs of the context's device.
fn gids(context: &Context) -> &'static [nic::GidEntry] {
    context.facts().gids(context.kind())
}

fn entry(context: &Context, port: u32, index: u32) -> Result<ibv_gid_entry> {
    check_port(port)?;
    let gids = gids(context);
    match gids.get(index as usize) {
        Some(found) => Ok(convert(context, found, index)),
        None if (index as usize) < table_len(context) => Err(ENODATA),
        None => Err(Errno::EINVAL),
    }
}

/// The error for an index of the table without a GID.
const ENODATA: Errno = Errno(libc::ENODATA);

/// Entries of the port's GID table: like an adapter's, it has room for more than the host has addresses.
pub(crate) fn table_len(context: &Context) -> usize {
    view::port::table_len(context.kind(), gids(context).len())
}

/// True for GIDs of RoCE; those of InfiniBand and iWARP are of the first type (`rdma_gid_attr` in Linux).
fn is_roce(context: &Context) -> bool {
    !context.kind().is_iwarp() && !context.facts().link_layer(context.kind()).is_infiniband()
}

fn convert(context: &Context, found: &nic::GidEntry, index: u32) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: found.gid.0 },
        gid_index: index,
        port_num: 1,
        gid_type: if is_roce(context) { IBV_GID_TYPE_ROCE_V2 } else { IBV_GID_TYPE_IB },
        ndev_ifindex: found.ifindex,
    }
}

/// `ibv_query_gid(3)`.
pub unsafe extern "C" fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL (man page).
        let context = unsafe { Context::of(context) }?;
        let index = u32::try_from(index).map_err(|_| Errno::EINVAL)?;
        let found = match entry(context, port.into(), index) {
            // libibverbs gives the zero GID of an empty entry, not an error.
            Err(ENODATA) => ibv_gid { raw: [0; 16] },
            other => other?.gid,
        };
        // SAFETY: the caller's structure or NULL.
        *unsafe { output(gid) }? = found;
        Ok(0)
    })
}

/// `ibv_query_gid_ex(3)`. ENODATA for an empty entry; EINVAL beyond the table's end.
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    out: *mut ibv_gid_entry,
    flags: u32,
    entry_size: size_t,
) -> c_int {
    number(|| {
        if flags != 0 || entry_size < size_of::<ibv_gid_entry>() {
            return Err(if flags != 0 { Errno::EOPNOTSUPP } else { Errno::EINVAL });
        }
        // SAFETY: live or NULL (man page).
        let context = unsafe { Context::of(context) }?;
        let found = entry(context, port, index)?;
        // SAFETY: the caller's structure or NULL.
        *unsafe { output(out) }? = found;
        Ok(())
    })
}

/// `ibv_query_gid_table(3)`: the number of entries, or a negative errno; EINVAL when there are more than fit.
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: size_t,
    flags: u32,
    entry_size: size_t,
) -> ssize_t {
    let result = shielded(|| {
        if flags != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // SAFETY: live or NULL (man page).
        let context = unsafe { Context::of(context) }?;
        let gids = gids(context);
        if entries.is_null() || entry_size < size_of::<ibv_gid_entry>() || gids.len() > max_entries {
            return Err(Errno::EINVAL);
        }
        for (i, gid) in gids.iter().enumerate() {
            // SAFETY: the caller has `max_entries` of `entry_size` bytes each; a newer header's entries are larger than
            // these.
            unsafe { entries.byte_add(i * entry_size).write(convert(context, gid, i as u32)) };
        }
        Ok(gids.len() as ssize_t)
    });
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        -(errno.0 as ssize_t)
    })
}

/// `enum ibv_gid_type_sysfs` of rdma-core's private interface: InfiniBand or RoCE v1, which share a name there.
const SYSFS_IB_ROCE_V1: u32 = 0;
/// RoCE v2, in that interface.
const SYSFS_ROCE_V2: u32 = 1;

/// The type of a GID as sysfs has it. The function is private, but other libraries use it.
pub unsafe extern "C" fn ibv_query_gid_type(context: *mut ibv_context, port: u8, index: u32, kind: *mut u32) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL.
        let context = unsafe { Context::of(context) }?;
        entry(context, port.into(), index).map_err(|e| if e == Errno::EINVAL { Errno::ENOENT } else { e })?;
        // SAFETY: the caller's variable or NULL.
        *unsafe { output(kind) }? = if is_roce(context) { SYSFS_ROCE_V2 } else { SYSFS_IB_ROCE_V1 };
        Ok(0)
    })
}
