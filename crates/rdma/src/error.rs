//! The error of a verb.

use std::fmt;

use verbs::Errno;

/// A verb that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Error {
    /// The C function.
    pub call: &'static str,
    /// Its errno.
    pub errno: Errno,
}

/// The result of a verb.
pub type Result<T> = std::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, std::io::Error::from_raw_os_error(self.errno.0))
    }
}

impl std::error::Error for Error {}

impl Error {
    pub(crate) fn new(call: &'static str, errno: i32) -> Self {
        Error { call, errno: Errno(errno) }
    }

    /// The errno that the C function left behind. Some functions forget to set it; that is an EIO.
    pub(crate) fn last(call: &'static str) -> Self {
        let errno = std::io::Error::last_os_error().raw_os_error().filter(|errno| *errno != 0);
        Error::new(call, errno.unwrap_or(libc::EIO))
    }
}

/// The result of a function that returns a pointer and sets errno.
pub(crate) fn pointer<T>(call: &'static str, found: *mut T) -> Result<std::ptr::NonNull<T>> {
    std::ptr::NonNull::new(found).ok_or_else(|| Error::last(call))
}

/// The result of a function that returns an errno, or -1 and sets errno; verbs know both customs.
pub(crate) fn number(call: &'static str, ret: i32) -> Result<()> {
    match ret {
        0 => Ok(()),
        errno if errno > 0 => Err(Error::new(call, errno)),
        -1 => Err(Error::last(call)),
        negative => Err(Error::new(call, -negative)),
    }
}
