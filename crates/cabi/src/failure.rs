//! Failures: an errno for the program, and a text for a reader.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

use libc::c_int;
use verbs::Errno;

thread_local! {
    static TEXT: RefCell<CString> = RefCell::default();
}

/// Keep the text of a failure for [`text`].
pub fn keep(text: &str) {
    // A text of a peer may have a zero in it.
    let bytes = text.bytes().filter(|byte| *byte != 0).collect::<Vec<_>>();
    TEXT.with(|kept| *kept.borrow_mut() = CString::new(bytes).unwrap_or_default());
}

/// An errno with a text.
///
/// # Errors
/// Always.
pub fn fail<T>(errno: c_int, text: &str) -> Result<T, Errno> {
    keep(text);
    Err(Errno(errno))
}

/// The text of this thread's last failure; it stays until another one.
pub fn text() -> *const c_char {
    TEXT.with(|kept| kept.borrow().as_ptr())
}
