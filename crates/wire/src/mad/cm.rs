//! Messages of communication management (IBTA vol. 1, chapter 12): the 232 bytes behind the common header, one file for
//! each attribute. [`Datagram`] is a whole datagram of the class.

use core::fmt;

use super::DATAGRAM_LEN;
use crate::{Error, Result};

/// Bytes of a message.
pub const LEN: usize = DATAGRAM_LEN - super::LEN;

/// The parts of a message that are alike in all files: `View` with its check of the length, and `Repr::read`.
macro_rules! message {
    ($name:literal) => {
        #[doc = concat!("A ", $name, " in place.")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct View<'a>(&'a [u8; super::LEN]);

        impl<'a> View<'a> {
            /// The message at the start of these bytes, and what follows it.
            ///
            /// # Errors
            /// [`Error::Truncated`](crate::Error::Truncated)
            pub fn new(bytes: &'a [u8]) -> crate::Result<(Self, &'a [u8])> {
                let (message, rest) = bytes.split_first_chunk().ok_or(crate::Error::Truncated)?;
                Ok((View(message), rest))
            }
        }

        impl<'a> Repr<'a> {
            /// Parses the message at the start of these bytes. Gives its fields, and the bytes behind it. Data have the
            /// length of their field.
            ///
            /// # Errors
            /// [`Error::Truncated`](crate::Error::Truncated), and those of [`Repr::parse`].
            pub fn read(bytes: &'a [u8]) -> crate::Result<(Self, &'a [u8])> {
                let (view, rest) = View::new(bytes)?;
                Ok((Repr::parse(&view)?, rest))
            }
        }
    };
}

/// The communication ids of both sides, which most messages begin with.
macro_rules! both_ids {
    () => {
        impl View<'_> {
            /// Communication id of the sender.
            pub fn local_id(&self) -> u32 {
                crate::bytes::u32_at(self.0, field::LOCAL_ID)
            }

            /// Communication id of the receiver.
            pub fn remote_id(&self) -> u32 {
                crate::bytes::u32_at(self.0, field::REMOTE_ID)
            }
        }
    };
}

/// A field of data: its length, and where `View` finds it.
macro_rules! data {
    ($name:ident: $at:expr, $len_name:ident = $len:literal, $what:literal) => {
        #[doc = concat!("Bytes of the ", $what, ": fewer are emitted with zeros behind them.")]
        pub const $len_name: usize = $len;

        impl<'a> View<'a> {
            #[doc = concat!("The ", $what, ".")]
            pub fn $name(&self) -> &'a [u8] {
                self.0.get($at..$at + $len_name).unwrap_or_default()
            }
        }
    };
}

/// A whole message of both communication ids and private data, and nothing else (12.6.9, 12.6.11).
macro_rules! ids_and_data {
    ($name:literal) => {
        /// Offsets in the part of the datagram behind its common header, as the specification's tables count them.
        mod field {
            pub const LOCAL_ID: usize = 0;
            pub const REMOTE_ID: usize = 4;
            pub const PRIVATE_DATA: usize = 8;
        }

        message!($name);
        both_ids!();
        data!(private_data: field::PRIVATE_DATA, PRIVATE_DATA_LEN = 224, "private data");

        #[doc = concat!("What a ", $name, " says.")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Repr<'a> {
            /// Communication id of the sender.
            pub local_id: u32,
            /// Communication id of the receiver.
            pub remote_id: u32,
            /// The private data.
            pub private_data: &'a [u8],
        }

        impl<'a> Repr<'a> {
            /// Parses a message.
            ///
            /// # Errors
            /// None: what a value without meaning is answered with is the connection manager's to say.
            pub fn parse(view: &View<'a>) -> crate::Result<Repr<'a>> {
                Ok(Repr { local_id: view.local_id(), remote_id: view.remote_id(), private_data: view.private_data() })
            }

            /// The bytes.
            ///
            /// # Errors
            /// [`Error::Length`](crate::Error::Length) for private data that do not fit.
            pub fn emit(&self) -> crate::Result<[u8; super::LEN]> {
                let mut out = [0; super::LEN];
                crate::bytes::put_u32(&mut out, field::LOCAL_ID, self.local_id);
                crate::bytes::put_u32(&mut out, field::REMOTE_ID, self.remote_id);
                super::put_data::<{ PRIVATE_DATA_LEN }>(&mut out, field::PRIVATE_DATA, self.private_data)?;
                Ok(out)
            }
        }

        impl core::fmt::Display for Repr<'_> {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!($name, " {:#x} > {:#x}"), self.local_id, self.remote_id)
            }
        }
    };
}

/// Holds a message against literal bytes at some offsets: it is emitted with them, and emitted anew when it has been
/// parsed.
#[cfg(test)]
macro_rules! assert_message {
    ($repr:expr, $parts:expr) => {{
        let bytes = $repr.emit().unwrap();
        for (at, text) in $parts {
            let part = crate::header::hex(text);
            assert_eq!(bytes[at..at + part.len()], part[..], "at {at}: {:02x?}", &bytes[at..at + part.len()]);
        }
        let (parsed, rest) = Repr::read(&bytes).unwrap();
        assert_eq!((parsed.emit(), rest), (Ok(bytes), &[][..]));
        assert_eq!(std::format!("{parsed}"), std::format!("{}", $repr));
        assert_eq!(Repr::read(&bytes[1..]), Err(crate::Error::Truncated));
        // Nothing is written to what is reserved, whatever is read there.
        let dirty = [0xff; crate::mad::cm::LEN];
        let clean = Repr::read(&dirty).and_then(|(parsed, _)| parsed.emit()).unwrap();
        let again = Repr::read(&clean).and_then(|(parsed, _)| parsed.emit()).unwrap();
        assert_eq!(clean, again);
    }};
}

pub mod apr;
pub mod drep;
pub mod dreq;
pub mod ip_addressing;
pub mod lap;
pub mod mra;
pub mod path;
pub mod rej;
pub mod rep;
pub mod req;
pub mod rtu;
pub mod sidr_rep;
pub mod sidr_req;

/// The class of communication management (13.4.4).
pub const CLASS: u8 = 0x07;
/// The only version of the class (12.6.1).
pub const CLASS_VERSION: u8 = 2;
/// The only method of the class: Send (16.7.2).
pub const METHOD: u8 = 0x03;

/// Writes data, with zeros behind them, into a field of `N` bytes.
fn put_data<const N: usize>(out: &mut [u8; LEN], at: usize, data: &[u8]) -> Result<()> {
    if data.len() > N {
        return Err(Error::Length);
    }
    crate::bytes::put(out, at, data);
    Ok(())
}

/// A message of any attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the specification's
pub enum Message<'a> {
    Req(req::Repr<'a>),
    Mra(mra::Repr<'a>),
    Rej(rej::Repr<'a>),
    Rep(rep::Repr<'a>),
    Rtu(rtu::Repr<'a>),
    Dreq(dreq::Repr<'a>),
    Drep(drep::Repr<'a>),
    SidrReq(sidr_req::Repr<'a>),
    SidrRep(sidr_rep::Repr<'a>),
    Lap(lap::Repr<'a>),
    Apr(apr::Repr<'a>),
}

/// A whole management datagram of the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Which exchange the message belongs to (12.6.5).
    pub transaction: u64,
    /// The attribute modifier: of REQ and REP the options of enhanced connection establishment, else 0.
    pub modifier: u32,
    /// The message.
    pub message: Message<'a>,
}

impl<'a> Message<'a> {
    /// The attribute that the datagram's header names.
    pub const fn attribute(&self) -> u16 {
        match self {
            Message::Req(_) => req::ATTRIBUTE,
            Message::Mra(_) => mra::ATTRIBUTE,
            Message::Rej(_) => rej::ATTRIBUTE,
            Message::Rep(_) => rep::ATTRIBUTE,
            Message::Rtu(_) => rtu::ATTRIBUTE,
            Message::Dreq(_) => dreq::ATTRIBUTE,
            Message::Drep(_) => drep::ATTRIBUTE,
            Message::SidrReq(_) => sidr_req::ATTRIBUTE,
            Message::SidrRep(_) => sidr_rep::ATTRIBUTE,
            Message::Lap(_) => lap::ATTRIBUTE,
            Message::Apr(_) => apr::ATTRIBUTE,
        }
    }

    /// The message of this attribute in the bytes behind the common header.
    ///
    /// # Errors
    /// [`Error::Opcode`] for another attribute, and those of the messages.
    pub fn read(attribute: u16, bytes: &'a [u8]) -> Result<Message<'a>> {
        Ok(match attribute {
            req::ATTRIBUTE => Message::Req(req::Repr::read(bytes)?.0),
            mra::ATTRIBUTE => Message::Mra(mra::Repr::read(bytes)?.0),
            rej::ATTRIBUTE => Message::Rej(rej::Repr::read(bytes)?.0),
            rep::ATTRIBUTE => Message::Rep(rep::Repr::read(bytes)?.0),
            rtu::ATTRIBUTE => Message::Rtu(rtu::Repr::read(bytes)?.0),
            dreq::ATTRIBUTE => Message::Dreq(dreq::Repr::read(bytes)?.0),
            drep::ATTRIBUTE => Message::Drep(drep::Repr::read(bytes)?.0),
            sidr_req::ATTRIBUTE => Message::SidrReq(sidr_req::Repr::read(bytes)?.0),
            sidr_rep::ATTRIBUTE => Message::SidrRep(sidr_rep::Repr::read(bytes)?.0),
            lap::ATTRIBUTE => Message::Lap(lap::Repr::read(bytes)?.0),
            apr::ATTRIBUTE => Message::Apr(apr::Repr::read(bytes)?.0),
            _ => return Err(Error::Opcode),
        })
    }

    /// The bytes behind the common header.
    ///
    /// # Errors
    /// [`Error::Length`] for data that do not fit.
    pub fn emit(&self) -> Result<[u8; LEN]> {
        match self {
            Message::Req(message) => message.emit(),
            Message::Mra(message) => message.emit(),
            Message::Rej(message) => message.emit(),
            Message::Rep(message) => message.emit(),
            Message::Rtu(message) => message.emit(),
            Message::Dreq(message) => message.emit(),
            Message::Drep(message) => message.emit(),
            Message::SidrReq(message) => message.emit(),
            Message::SidrRep(message) => message.emit(),
            Message::Lap(message) => message.emit(),
            Message::Apr(message) => message.emit(),
        }
    }
}

impl<'a> Datagram<'a> {
    /// Parses a datagram.
    ///
    /// # Errors
    /// [`Error::Length`] if it has not [`DATAGRAM_LEN`] bytes; [`Error::Opcode`] for another class, method or
    /// attribute; [`Error::Version`]; those of the messages.
    pub fn read(bytes: &'a [u8]) -> Result<Datagram<'a>> {
        if bytes.len() != DATAGRAM_LEN {
            return Err(Error::Length);
        }
        let (header, rest) = super::Repr::read(bytes)?;
        if header.class != CLASS || header.method != METHOD {
            return Err(Error::Opcode);
        }
        if header.class_version != CLASS_VERSION {
            return Err(Error::Version);
        }
        let message = Message::read(header.attribute, rest)?;
        Ok(Datagram { transaction: header.transaction, modifier: header.modifier, message })
    }

    /// The bytes.
    ///
    /// # Errors
    /// [`Error::Length`] for data that do not fit.
    pub fn emit(&self) -> Result<[u8; DATAGRAM_LEN]> {
        let mut out = [0; DATAGRAM_LEN];
        let header = super::Repr {
            class: CLASS,
            class_version: CLASS_VERSION,
            method: METHOD,
            status: 0,
            class_specific: 0,
            transaction: self.transaction,
            attribute: self.message.attribute(),
            modifier: self.modifier,
        };
        crate::bytes::put(&mut out, 0, &header.emit());
        crate::bytes::put(&mut out, super::LEN, &self.message.emit()?);
        Ok(out)
    }
}

impl fmt::Display for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Message::Req(message) => message.fmt(f),
            Message::Mra(message) => message.fmt(f),
            Message::Rej(message) => message.fmt(f),
            Message::Rep(message) => message.fmt(f),
            Message::Rtu(message) => message.fmt(f),
            Message::Dreq(message) => message.fmt(f),
            Message::Drep(message) => message.fmt(f),
            Message::SidrReq(message) => message.fmt(f),
            Message::SidrRep(message) => message.fmt(f),
            Message::Lap(message) => message.fmt(f),
            Message::Apr(message) => message.fmt(f),
        }
    }
}

impl fmt::Display for Datagram<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} transaction={:#x}", self.message, self.transaction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_of_each_attribute() {
        let body = [0; LEN];
        for attribute in 0x10..=0x1a {
            let message = Message::read(attribute, &body).unwrap();
            assert_eq!(message.attribute(), attribute);
            let datagram = Datagram { transaction: 5, modifier: 6, message };
            let bytes = datagram.emit().unwrap();
            assert_eq!(bytes[..4], [1, 7, 2, 3]);
            assert_eq!(bytes[16..18], attribute.to_be_bytes());
            assert_eq!(Datagram::read(&bytes), Ok(datagram));
        }
        assert_eq!(Message::read(0x1b, &body), Err(Error::Opcode));
    }

    #[test]
    fn what_is_not_of_the_class_is_refused() {
        let message = Message::Rtu(rtu::Repr { local_id: 1, remote_id: 2, private_data: &[] });
        let bytes = Datagram { transaction: 5, modifier: 0, message }.emit().unwrap();
        let with = |at: usize, value: u8| {
            let mut bytes = bytes;
            bytes[at] = value;
            Datagram::read(&bytes).map(|_| ())
        };
        assert_eq!(with(0, 2), Err(Error::Version));
        assert_eq!(with(1, 3), Err(Error::Opcode));
        assert_eq!(with(2, 1), Err(Error::Version));
        assert_eq!(with(3, 0x83), Err(Error::Opcode));
        assert_eq!(with(17, 0x30), Err(Error::Opcode));
        assert_eq!(Datagram::read(&bytes[..255]), Err(Error::Length));
    }

    #[test]
    fn data_that_do_not_fit_are_refused() {
        let long = [7; rtu::PRIVATE_DATA_LEN + 1];
        let rtu = |data| rtu::Repr { local_id: 1, remote_id: 2, private_data: data };
        assert_eq!(rtu(&long).emit(), Err(Error::Length));
        let longest = rtu(&long[1..]).emit().unwrap();
        assert_eq!(longest[LEN - 1], 7);
    }
}
