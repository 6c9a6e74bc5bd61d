//! rsocket(7), which is not there yet. Every function fails with EOPNOTSUPP, the errno for a socket type that is not
//! supported.

use verbs::Errno;

use crate::entry::set_errno;

/// The result -1 with EOPNOTSUPP, for functions that return an int, a length or an offset, whatever their arguments.
pub extern "C" fn unsupported() -> isize {
    set_errno(Errno::EOPNOTSUPP);
    -1
}
