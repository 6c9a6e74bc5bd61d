//! Names of errnos, as programs and their manual pages use them.

use verbs::Errno;

/// Linux's numbers (errno(3)): the errnos that verbs and librdmacm's calls are known to return, and those that a kernel
/// may add.
const NAMES: [(&str, i32); 45] = [
    ("EPERM", 1),
    ("ENOENT", 2),
    ("EINTR", 4),
    ("EIO", 5),
    ("ENXIO", 6),
    ("EBADF", 9),
    ("EAGAIN", 11),
    ("ENOMEM", 12),
    ("EACCES", 13),
    ("EFAULT", 14),
    ("EBUSY", 16),
    ("EEXIST", 17),
    ("ENODEV", 19),
    ("EINVAL", 22),
    ("ENFILE", 23),
    ("EMFILE", 24),
    ("ENOSPC", 28),
    ("ERANGE", 34),
    ("ENOSYS", 38),
    ("ENODATA", 61),
    ("EREMOTEIO", 121),
    ("EPROTO", 71),
    ("EBADMSG", 74),
    ("EOVERFLOW", 75),
    ("EMSGSIZE", 90),
    ("EPROTONOSUPPORT", 93),
    ("EOPNOTSUPP", 95),
    ("ENOTSUP", 95),
    ("EAFNOSUPPORT", 97),
    ("EADDRINUSE", 98),
    ("EADDRNOTAVAIL", 99),
    ("ENETDOWN", 100),
    ("ENETUNREACH", 101),
    ("ENETRESET", 102),
    ("ECONNABORTED", 103),
    ("ECONNRESET", 104),
    ("ENOBUFS", 105),
    ("EISCONN", 106),
    ("ENOTCONN", 107),
    ("ETIMEDOUT", 110),
    ("ECONNREFUSED", 111),
    ("EHOSTDOWN", 112),
    ("EHOSTUNREACH", 113),
    ("EALREADY", 114),
    ("EINPROGRESS", 115),
];

/// The errno of this name.
pub fn number(name: &str) -> Option<Errno> {
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| Errno(*number))
}

/// The name of an errno, or its number.
pub fn name(errno: Errno) -> String {
    let found = NAMES.iter().find(|(_, number)| *number == errno.0);
    found.map_or_else(|| errno.0.to_string(), |(name, _)| (*name).to_owned())
}
