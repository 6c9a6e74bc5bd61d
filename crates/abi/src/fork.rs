//! fork(2): the child owns nothing of the parent's device, and no page is pinned, so there is nothing to protect.

use libc::{c_int, c_void, size_t};

extern "C" fn start() {
    nic::fork::watch();
}

/// Registers the handlers of fork(2) when the library is loaded. If the first verb did, another thread could fork in
/// the middle of that verb.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// `ibv_fork_init(3)`: for real adapters, if there are any.
pub extern "C" fn ibv_fork_init() -> c_int {
    crate::hardware::fork_init()
}

/// `ibv_is_fork_initialized(3)`: copy-on-write cannot take memory away from this device.
pub extern "C" fn ibv_is_fork_initialized() -> sys::ibv_fork_status {
    sys::IBV_FORK_UNNEEDED
}

/// Mark memory as not to be copied to a child. This device does not need it.
pub extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: size_t) -> c_int {
    0
}

/// Undo [`ibv_dontfork_range`].
pub extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: size_t) -> c_int {
    0
}
