//! `exs_init`.

use libc::c_int;

use crate::ctypes::VERSION;
use crate::entry::{call, refuse};

/// `exs_init`: the requested version if it is this one; for a later one, this one. EINVAL: it is no version. Nothing
/// else needs to be called first.
#[unsafe(no_mangle)]
pub extern "C" fn exs_init(requested: c_int) -> c_int {
    call(|| {
        crate::entry::watch_forks();
        if requested < VERSION { refuse(libc::EINVAL) } else { Ok(VERSION) }
    })
}
