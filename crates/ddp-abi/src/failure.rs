//! Failures: an errno for the program, and a text for a reader.

use std::ffi::c_char;

pub use cabi::failure::fail;
use cabi::failure::{keep, text};
use ddp::{End, Error};
use verbs::Errno;

/// The errno of an error; its text is kept.
pub fn of(error: &Error) -> Errno {
    keep(&error.to_string());
    Errno(match error {
        Error::Range | Error::NoTag => libc::EINVAL,
        Error::TooLong => libc::EMSGSIZE,
        Error::Taken => libc::EBUSY,
        Error::NotYet => libc::ENOTCONN,
        Error::NoReads => libc::EOPNOTSUPP,
        Error::Start(_) => libc::EPROTO,
        Error::Rejected => libc::ECONNREFUSED,
        Error::Timeout => libc::ETIMEDOUT,
        Error::Ended(End::Fault(_)) => libc::EPROTO,
        Error::Ended(End::Terminated(_)) => libc::EREMOTEIO,
        Error::Ended(End::Closed) => libc::EPIPE,
        Error::Ended(End::Torn) => libc::ECONNRESET,
        Error::Ended(End::Timeout) => libc::ETIMEDOUT,
        Error::Io(error) => error.raw_os_error().unwrap_or(libc::EIO),
    })
}

/// `ddp_error`.
#[unsafe(no_mangle)]
pub extern "C" fn ddp_error() -> *const c_char {
    text()
}
