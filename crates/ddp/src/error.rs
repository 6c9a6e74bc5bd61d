//! Errors of the calls.

use std::fmt;
use std::io;

use iwarp::mpa::start;
use iwarp::rdmap::End;

/// The reason why a call has failed.
#[derive(Debug)]
pub enum Error {
    /// A range that is not inside its buffer.
    Range,
    /// A message of 4 GiB or more (RFC 5041, section 4.3: offsets of untagged messages have 32 bits).
    TooLong,
    /// The receive has a message that the program has not got yet.
    Taken,
    /// No such registration on this socket.
    NoTag,
    /// The peer has not sent its first message: the side that has accepted waits for it (RFC 5044, section 7.1.2).
    NotYet,
    /// The terms of the connection permit no READ.
    NoReads,
    /// The connection did not start.
    Start(start::Failure),
    /// The peer has refused the connection.
    Rejected,
    /// The peer did nothing for too long.
    Timeout,
    /// The connection has ended by an error: of this side, or one that the peer has told.
    Ended(End),
    /// A system call.
    Io(io::Error),
}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Error {
        Error::Io(e)
    }
}

impl From<start::Failure> for Error {
    fn from(e: start::Failure) -> Error {
        Error::Start(e)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Range => f.write_str("a range outside of its buffer"),
            Error::TooLong => f.write_str("a message of 4 GiB or more"),
            Error::Taken => f.write_str("the receive has a message that nobody has got"),
            Error::NoTag => f.write_str("no such registration on this socket"),
            Error::NotYet => f.write_str("the peer has to send first"),
            Error::NoReads => f.write_str("the terms of the connection permit no READ"),
            Error::Start(failure) => failure.fmt(f),
            Error::Rejected => f.write_str("the peer has refused the connection"),
            Error::Timeout => f.write_str("the peer did nothing for too long"),
            Error::Ended(End::Fault(fault)) => write!(f, "ended by this side: {}", fault.reason()),
            Error::Ended(End::Terminated(said)) => write!(f, "ended by the peer: {said}"),
            Error::Ended(End::Closed) => f.write_str("closed by the peer"),
            Error::Ended(End::Torn) => f.write_str("closed inside of a message"),
            Error::Ended(End::Timeout) => f.write_str("the peer's first message did not come"),
            Error::Io(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for Error {}
