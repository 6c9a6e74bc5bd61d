//! Failures: an errno for the program, and a text for a reader.

use std::ffi::c_char;

use cabi::failure::text;
pub use cabi::failure::{fail, keep};
use group::Error;
use rdma::Errno;

/// The errno of a group's error; its text is kept.
pub fn of(error: &Error) -> Errno {
    keep(&error.to_string());
    Errno(match error {
        Error::Invalid(_) => libc::EINVAL,
        Error::Full => libc::EAGAIN,
        Error::Verb(error) => error.errno.0,
        Error::Io(error) => error.raw_os_error().unwrap_or(libc::EIO),
        Error::Refused(_) => libc::ECONNREFUSED,
        Error::Broken(_) => libc::EIO,
    })
}

/// `compat_hyperclient_error`.
#[unsafe(no_mangle)]
pub extern "C" fn compat_hyperclient_error() -> *const c_char {
    text()
}
