//! The layout that the IPv6 header (RFC 8200, section 3) and the global route header (IBTA vol. 1, 8.3) share. The type
//! of the addresses tells them apart.

use core::fmt;
use core::marker::PhantomData;

use crate::bytes::{array, put, put_u8, put_u16, put_u32, u8_at, u16_at, u32_at};
use crate::{Error, Result};

mod field {
    /// Version 31-28, traffic class 27-20, flow label 19-0.
    pub const FIRST: usize = 0;
    pub const PAYLOAD_LEN: usize = 4;
    pub const NEXT_HEADER: usize = 6;
    pub const HOP_LIMIT: usize = 7;
    pub const SOURCE: usize = 8;
    pub const DEST: usize = 24;
}

/// Bytes of the header.
pub const LEN: usize = 40;

const VERSION: u32 = 6;

/// An address of 128 bits.
pub trait Address: Copy {
    /// The address of these bytes.
    fn from_octets(octets: [u8; 16]) -> Self;

    /// The bytes.
    fn to_octets(self) -> [u8; 16];
}

/// A header in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View<'a, A>(&'a [u8; LEN], PhantomData<A>);

/// The fields of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr<A> {
    /// The class of service from end to end.
    pub traffic_class: u8,
    /// Names the packet's flow to routers; 20 bits.
    pub flow_label: u32,
    /// Bytes behind the header.
    pub payload_len: u16,
    /// What follows.
    pub next_header: u8,
    /// Hops that are left.
    pub hop_limit: u8,
    /// The sender.
    pub source: A,
    /// The receiver.
    pub dest: A,
}

impl<'a, A: Address> View<'a, A> {
    /// The header at the start of these bytes, and what follows it.
    ///
    /// # Errors
    /// [`Error::Truncated`]
    pub fn new(bytes: &'a [u8]) -> Result<(Self, &'a [u8])> {
        let (header, rest) = bytes.split_first_chunk().ok_or(Error::Truncated)?;
        Ok((View(header, PhantomData), rest))
    }

    /// The version.
    pub fn version(&self) -> u8 {
        (u32_at(self.0, field::FIRST) >> 28) as u8
    }

    /// The traffic class.
    pub fn traffic_class(&self) -> u8 {
        (u32_at(self.0, field::FIRST) >> 20) as u8
    }

    /// The flow label.
    pub fn flow_label(&self) -> u32 {
        u32_at(self.0, field::FIRST) & 0xf_ffff
    }

    /// Bytes behind the header.
    pub fn payload_len(&self) -> u16 {
        u16_at(self.0, field::PAYLOAD_LEN)
    }

    /// What follows.
    pub fn next_header(&self) -> u8 {
        u8_at(self.0, field::NEXT_HEADER)
    }

    /// Hops that are left.
    pub fn hop_limit(&self) -> u8 {
        u8_at(self.0, field::HOP_LIMIT)
    }

    /// The sender.
    pub fn source(&self) -> A {
        A::from_octets(array(self.0, field::SOURCE))
    }

    /// The receiver.
    pub fn dest(&self) -> A {
        A::from_octets(array(self.0, field::DEST))
    }
}

impl<A: Address> Repr<A> {
    /// Parses the header at the start of these bytes. Gives its fields, and the bytes behind it.
    ///
    /// # Errors
    /// [`Error::Truncated`], and those of [`Repr::parse`].
    pub fn read(bytes: &[u8]) -> Result<(Self, &[u8])> {
        let (view, rest) = View::new(bytes)?;
        Ok((Repr::parse(&view)?, rest))
    }

    /// Parses a header.
    ///
    /// # Errors
    /// [`Error::Version`]: the version is 6.
    pub fn parse(view: &View<'_, A>) -> Result<Self> {
        if u32::from(view.version()) != VERSION {
            return Err(Error::Version);
        }
        Ok(Repr {
            traffic_class: view.traffic_class(),
            flow_label: view.flow_label(),
            payload_len: view.payload_len(),
            next_header: view.next_header(),
            hop_limit: view.hop_limit(),
            source: view.source(),
            dest: view.dest(),
        })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        let first = VERSION << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        put_u32(&mut out, field::FIRST, first);
        put_u16(&mut out, field::PAYLOAD_LEN, self.payload_len);
        put_u8(&mut out, field::NEXT_HEADER, self.next_header);
        put_u8(&mut out, field::HOP_LIMIT, self.hop_limit);
        put(&mut out, field::SOURCE, &self.source.to_octets());
        put(&mut out, field::DEST, &self.dest.to_octets());
        out
    }
}

impl<A: fmt::Display> fmt::Display for Repr<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Repr { source, dest, next_header, payload_len, hop_limit, .. } = self;
        write!(f, "{source} > {dest} next={next_header} len={payload_len} hops={hop_limit}")
    }
}
