//! Failures: an errno for the program, and a text for a reader.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

use group::Error;
use rdma::Errno;

thread_local! {
    static TEXT: RefCell<CString> = RefCell::default();
}

/// Keep the text of a failure for [`compat_hyperclient_error`].
pub fn keep(text: &str) {
    // A text of a peer may have a zero in it.
    let bytes = text.bytes().filter(|byte| *byte != 0).collect::<Vec<_>>();
    TEXT.with(|kept| *kept.borrow_mut() = CString::new(bytes).unwrap_or_default());
}

/// An errno with a text.
pub fn fail<T>(errno: i32, text: &str) -> Result<T, Errno> {
    keep(text);
    Err(Errno(errno))
}

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
    TEXT.with(|kept| kept.borrow().as_ptr())
}
