//! Options, ECE, and events that the program writes.

use core::mem::size_of;

use ::cm::{Ece, Event, EventKind, Params};
use libc::{c_int, c_void, size_t};
use sys::cma::{
    IBV_PATH_FLAG_BIDIRECTIONAL, IBV_PATH_FLAG_GMP, IBV_PATH_FLAG_PRIMARY, RDMA_CM_EVENT_USER, RDMA_OPTION_IB,
    RDMA_OPTION_IB_PATH, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR,
    RDMA_OPTION_ID_TOS, ibv_path_data, rdma_cm_event_type, rdma_cm_id,
};
use sys::ibv_ece;
use verbs::{Errno, Result};

use super::id::Id;
use crate::entry::{argument, minus_one, output};

/// A value of an option; EINVAL for one of another length.
///
/// # Safety
/// `value` is NULL or points to `len` bytes.
unsafe fn value<T: Copy>(value: *const c_void, len: size_t) -> Result<T> {
    if value.is_null() {
        return Err(Errno::EFAULT);
    }
    if len != size_of::<T>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: as long as the caller says; integers only.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

fn set_id(id: &Id, name: u32, data: *const c_void, len: size_t) -> Result<()> {
    // SAFETY: the program's value (man page).
    let (byte, int) = unsafe { (|| value::<u8>(data, len), || value::<c_int>(data, len).map(|v| v != 0)) };
    match name {
        RDMA_OPTION_ID_TOS => {
            let tos = byte()?;
            id.cm.set_options(id.key, |o| o.tos = tos)
        }
        RDMA_OPTION_ID_REUSEADDR => {
            let reuse = int()?;
            id.cm.set_reuse(id.key, reuse)
        }
        RDMA_OPTION_ID_AFONLY => {
            let only = int()?;
            id.cm.set_only(id.key, only)
        }
        RDMA_OPTION_ID_ACK_TIMEOUT => {
            let timeout = byte()?;
            // SAFETY: a member that no thread writes after creation.
            match unsafe { id.fields() }.qp_type {
                sys::IBV_QPT_RC | sys::IBV_QPT_XRC_SEND if timeout < 32 => {
                    id.cm.set_options(id.key, |o| o.ack_timeout = Some(timeout))
                }
                _ => Err(Errno::EINVAL),
            }
        }
        _ => Err(Errno::ENOSYS),
    }
}

/// RDMA_OPTION_IB_PATH: the program gives the route. There is one path only, so just the form is checked.
pub fn set_path(id: &Id, data: *const c_void, len: size_t) -> Result<()> {
    const WANTED: u32 = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
    if data.is_null() {
        return Err(Errno::EFAULT);
    }
    let size = size_of::<ibv_path_data>();
    if len == 0 || !len.is_multiple_of(size) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: as long as the caller says.
    let flags =
        (0..len / size).map(|i| unsafe { (&raw const (*data.cast::<ibv_path_data>().add(i)).flags).read_unaligned() });
    if !flags.into_iter().any(|flags| flags == WANTED) {
        return Err(Errno::EINVAL);
    }
    id.cm.resolve_route(id.key)
}

/// `rdma_set_option(3)`. ENOSYS for an unknown option.
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: size_t,
) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL (man page).
        let id = unsafe { Id::of(id) }?;
        match (level as u32, name as u32) {
            (RDMA_OPTION_ID, name) => set_id(id, name, value, len)?,
            (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => set_path(id, value, len)?,
            _ => return Err(Errno::ENOSYS),
        }
        Ok(0)
    })
}

fn without_qp(id: &Id) -> Result<()> {
    // SAFETY: a member that changes with the queue pair only.
    if unsafe { id.fields() }.qp.is_null() { Ok(()) } else { Err(Errno::EINVAL) }
}

/// `rdma_set_local_ece(3)`: for ids without a queue pair of their own.
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL; the caller's structure or NULL (man page).
        let (id, ece) = unsafe { (Id::of(id)?, argument(ece)?) };
        without_qp(id)?;
        if ece.vendor_id == 0 || ece.comp_mask != 0 {
            return Err(Errno::EINVAL);
        }
        id.inner.lock().local_ece = Ece { vendor_id: ece.vendor_id, options: ece.options };
        Ok(0)
    })
}

/// `rdma_get_remote_ece(3)`: for ids without a queue pair of their own.
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL; the caller's structure or NULL (man page).
        let (id, out) = unsafe { (Id::of(id)?, output(ece)?) };
        without_qp(id)?;
        let Ece { vendor_id, options } = id.inner.lock().remote_ece;
        *out = ibv_ece { vendor_id, options, comp_mask: 0 };
        Ok(0)
    })
}

/// `rdma_write_cm_event(3)`: RDMA_CM_EVENT_USER only.
pub unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: rdma_cm_event_type,
    status: c_int,
    arg: u64,
) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL (man page).
        let id = unsafe { Id::of(id) }?;
        if event != RDMA_CM_EVENT_USER {
            return Err(Errno::EINVAL);
        }
        id.cm
            .write_event(id.key, Event { params: Params::User(arg), ..Event::with_status(EventKind::User, status) })?;
        Ok(0)
    })
}
