//! Version IBVERBS_1.0 of the functions whose meaning changed in 2006: their structures had another layout.
//!
//! Programs of that time cannot run on any library that is still maintained by more than its name, so the answer is
//! that of a kernel without RDMA (ENOSYS, `ibv_get_device_list(3)`): no device list, hence no object that another
//! function could be called with. All take whatever arguments they are called with and look at none.

use core::ptr::null_mut;

use libc::{ENOSYS, c_int, c_void};
use verbs::Errno;

use crate::entry::set_errno;

/// For functions that return a pointer.
pub extern "C" fn null() -> *mut c_void {
    set_errno(Errno(ENOSYS));
    null_mut()
}

/// For functions that return a number that is never an error.
pub extern "C" fn zero() -> u64 {
    0
}

/// For functions that return an errno.
pub extern "C" fn errno() -> c_int {
    ENOSYS
}

/// For functions that return -1 and set errno.
pub extern "C" fn minus_one() -> c_int {
    set_errno(Errno(ENOSYS));
    -1
}

/// For functions that return nothing. Also `ibv_register_driver`, by which providers of that time announced
/// themselves: there is nothing to be announced to.
pub extern "C" fn nothing() {}
