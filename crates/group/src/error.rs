//! Why a group cannot do what was asked.

use std::fmt;

/// A failure.
#[derive(Debug)]
pub enum Error {
    /// The operation or an option is invalid; nothing was sent.
    Invalid(&'static str),
    /// The window is full, or an operation under way conflicts: take a completion first.
    Full,
    /// A verb failed.
    Verb(rdma::Error),
    /// A socket failed.
    Io(std::io::Error),
    /// A replica refused the group.
    Refused(String),
    /// The group ended; the text names the hop.
    Broken(String),
}

/// The result of a group's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Invalid(why) => write!(f, "invalid: {why}"),
            Error::Full => write!(f, "the window is full"),
            Error::Verb(error) => write!(f, "{error}"),
            Error::Io(error) => write!(f, "{error}"),
            Error::Refused(why) => write!(f, "refused: {why}"),
            Error::Broken(why) => write!(f, "the group ended: {why}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<rdma::Error> for Error {
    fn from(error: rdma::Error) -> Self {
        Error::Verb(error)
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Error::Io(error)
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(errno: rustix::io::Errno) -> Self {
        Error::Io(errno.into())
    }
}
