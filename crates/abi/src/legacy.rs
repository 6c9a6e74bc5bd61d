//! Version IBVERBS_1.0 of the functions whose meaning changed in 2006: their structures had another layout.
//!
//! Programs of that time cannot run on any library that is still maintained by more than its name. So the answer is
//! that of a kernel without RDMA (ENOSYS, `ibv_get_device_list(3)`): no device list, hence no object that another
//! function could be called with. The functions take any arguments and look at none.

use core::ptr::null_mut;

use libc::{ENOSYS, c_int, c_void};
use verbs::Errno;

use crate::entry::set_errno;

/// The answer of functions that return a pointer.
pub extern "C" fn null() -> *mut c_void {
    set_errno(Errno(ENOSYS));
    null_mut()
}

/// The answer of functions that return a number that is never an error.
pub extern "C" fn zero() -> u64 {
    0
}

/// The answer of functions that return an errno.
pub extern "C" fn errno() -> c_int {
    ENOSYS
}

/// The answer of functions that return -1 and set errno.
pub extern "C" fn minus_one() -> c_int {
    set_errno(Errno(ENOSYS));
    -1
}

/// The answer of functions that return nothing. Also `ibv_register_driver`, by which providers of that time announced
/// themselves: this library needs no providers.
pub extern "C" fn nothing() {}
