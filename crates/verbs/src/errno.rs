//! Error numbers, with Linux's values (the verbs man pages state errors as errno).

use core::fmt;

/// A Linux errno.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Errno = Errno($value);)*
            /// The symbolic name, or `"errno"` for a number that no verb returns.
            pub const fn name(self) -> &'static str {
                match self.0 { $($value => stringify!($name),)* _ => "errno" }
            }
        }
    };
}

errnos! {
    EPERM = 1, "Operation not permitted.";
    ENOENT = 2, "No such object.";
    EINTR = 4, "Interrupted system call.";
    EIO = 5, "Input/output error.";
    ENXIO = 6, "No such device or address.";
    EBADF = 9, "Bad file descriptor.";
    EAGAIN = 11, "Try again.";
    ENOMEM = 12, "Out of memory, or a queue is full.";
    EACCES = 13, "Permission denied.";
    EFAULT = 14, "Bad address.";
    EBUSY = 16, "The object is in use.";
    EEXIST = 17, "The object exists.";
    ENODEV = 19, "No such device.";
    EINVAL = 22, "Invalid argument.";
    EMFILE = 24, "Too many open files.";
    ENOSPC = 28, "No space left.";
    ENOSYS = 38, "Function not implemented.";
    EPROTO = 71, "Protocol error.";
    EOVERFLOW = 75, "Value too large.";
    EMSGSIZE = 90, "Message too long.";
    EPROTONOSUPPORT = 93, "Protocol not supported.";
    EOPNOTSUPP = 95, "Operation not supported.";
    EADDRINUSE = 98, "Address already in use.";
    EADDRNOTAVAIL = 99, "Cannot assign requested address.";
    ENETUNREACH = 101, "Network is unreachable.";
    ETIMEDOUT = 110, "Timed out.";
    ECONNREFUSED = 111, "Connection refused.";
    EHOSTUNREACH = 113, "No route to host.";
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
