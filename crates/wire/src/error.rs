//! Why bytes are not the header that they were taken for.

use core::fmt;

/// Why bytes were refused, or why a value cannot be emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// There are fewer bytes than the header has.
    Truncated,
    /// A length field disagrees with the bytes that are there, or data are longer than their field.
    Length,
    /// A version that this crate does not know.
    Version,
    /// An opcode, an attribute or a class that is not defined.
    Opcode,
    /// A checksum or CRC is wrong.
    Checksum,
    /// A field, named here, has a value without meaning.
    Value(&'static str),
}

/// The result of parsing or emitting.
pub type Result<T> = core::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Truncated => f.write_str("truncated"),
            Error::Length => f.write_str("a length does not fit"),
            Error::Version => f.write_str("unknown version"),
            Error::Opcode => f.write_str("unknown opcode"),
            Error::Checksum => f.write_str("wrong checksum"),
            Error::Value(field) => write!(f, "{field} has a value without meaning"),
        }
    }
}

impl core::error::Error for Error {}
