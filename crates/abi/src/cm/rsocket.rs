//! rsocket(7): not yet. Every function fails with EOPNOTSUPP, the errno for a socket type that is not supported.

use verbs::Errno;

use crate::entry::set_errno;

/// -1 and EOPNOTSUPP, for functions that give an int, a length or an offset, whatever their arguments.
pub extern "C" fn unsupported() -> isize {
    set_errno(Errno::EOPNOTSUPP);
    -1
}
