//! IPv4 header, without options (RFC 791). RoCEv2 knows no options (A17.3.1.2.1: IHL is 5) and no fragments.

use core::fmt;
use core::net::Ipv4Addr;

use crate::bytes::{array, put, put_u8, put_u16, u8_at, u16_at};
use crate::checksum::Sum;
use crate::{Error, Result};

mod field {
    /// Version 7-4, header length in words 3-0.
    pub const VERSION: usize = 0;
    pub const TYPE_OF_SERVICE: usize = 1;
    pub const TOTAL_LEN: usize = 2;
    pub const IDENTIFICATION: usize = 4;
    /// Don't fragment 14, more fragments 13, offset 12-0.
    pub const FRAGMENT: usize = 6;
    pub const TIME_TO_LIVE: usize = 8;
    pub const PROTOCOL: usize = 9;
    pub const CHECKSUM: usize = 10;
    pub const SOURCE: usize = 12;
    pub const DEST: usize = 16;
}

header!("IPv4 header", 20);

const VERSION_AND_WORDS: u8 = 0x45;
const DONT_FRAGMENT: u16 = 0x4000;
/// More fragments, or an offset.
const FRAGMENTED: u16 = 0x3fff;

/// The fields of an IPv4 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Differentiated services and congestion marks (RFC 2474, RFC 3168).
    pub type_of_service: u8,
    /// Bytes behind the header, at most 65515: a longer payload is emitted as that.
    pub payload_len: u16,
    /// Without a meaning in a packet that may not be fragmented (RFC 6864), and then mostly 0.
    pub identification: u16,
    /// Routers must not fragment the packet.
    pub dont_fragment: bool,
    /// Hops that are left.
    pub time_to_live: u8,
    /// What follows.
    pub protocol: u8,
    /// The sender.
    pub source: Ipv4Addr,
    /// The receiver.
    pub dest: Ipv4Addr,
}

impl View<'_> {
    /// Version and header length.
    pub fn version_and_words(&self) -> u8 {
        u8_at(self.0, field::VERSION)
    }

    /// The type of service.
    pub fn type_of_service(&self) -> u8 {
        u8_at(self.0, field::TYPE_OF_SERVICE)
    }

    /// Bytes of header and payload.
    pub fn total_len(&self) -> u16 {
        u16_at(self.0, field::TOTAL_LEN)
    }

    /// The identification.
    pub fn identification(&self) -> u16 {
        u16_at(self.0, field::IDENTIFICATION)
    }

    /// Flags and fragment offset.
    pub fn fragment(&self) -> u16 {
        u16_at(self.0, field::FRAGMENT)
    }

    /// Hops that are left.
    pub fn time_to_live(&self) -> u8 {
        u8_at(self.0, field::TIME_TO_LIVE)
    }

    /// What follows.
    pub fn protocol(&self) -> u8 {
        u8_at(self.0, field::PROTOCOL)
    }

    /// The checksum of the header.
    pub fn checksum(&self) -> u16 {
        u16_at(self.0, field::CHECKSUM)
    }

    /// The sender.
    pub fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from(array(self.0, field::SOURCE))
    }

    /// The receiver.
    pub fn dest(&self) -> Ipv4Addr {
        Ipv4Addr::from(array(self.0, field::DEST))
    }
}

impl Repr {
    /// Parses a header.
    ///
    /// # Errors
    /// [`Error::Version`] for another version or options, [`Error::Checksum`], [`Error::Length`] for a total length
    /// that is shorter than the header, [`Error::Value`] for a fragment.
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        if view.version_and_words() != VERSION_AND_WORDS {
            return Err(Error::Version);
        }
        if Sum::default().bytes(view.0).finish() != 0 {
            return Err(Error::Checksum);
        }
        if view.fragment() & FRAGMENTED != 0 {
            return Err(Error::Value("fragment"));
        }
        Ok(Repr {
            type_of_service: view.type_of_service(),
            payload_len: view.total_len().checked_sub(LEN as u16).ok_or(Error::Length)?,
            identification: view.identification(),
            dont_fragment: view.fragment() & DONT_FRAGMENT != 0,
            time_to_live: view.time_to_live(),
            protocol: view.protocol(),
            source: view.source(),
            dest: view.dest(),
        })
    }

    /// The bytes, with their checksum.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u8(&mut out, field::VERSION, VERSION_AND_WORDS);
        put_u8(&mut out, field::TYPE_OF_SERVICE, self.type_of_service);
        put_u16(&mut out, field::TOTAL_LEN, self.payload_len.saturating_add(LEN as u16));
        put_u16(&mut out, field::IDENTIFICATION, self.identification);
        put_u16(&mut out, field::FRAGMENT, if self.dont_fragment { DONT_FRAGMENT } else { 0 });
        put_u8(&mut out, field::TIME_TO_LIVE, self.time_to_live);
        put_u8(&mut out, field::PROTOCOL, self.protocol);
        put(&mut out, field::SOURCE, &self.source.octets());
        put(&mut out, field::DEST, &self.dest.octets());
        let checksum = Sum::default().bytes(&out).finish();
        put_u16(&mut out, field::CHECKSUM, checksum);
        out
    }

    /// The sum over the pseudo header of UDP (RFC 768) and TCP (RFC 9293, section 3.1) for `len` bytes of them.
    pub fn pseudo_header(&self, len: u16) -> Sum {
        let sum = Sum::default().bytes(&self.source.octets()).bytes(&self.dest.octets());
        sum.word(u16::from(self.protocol)).word(len)
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Repr { source, dest, protocol, payload_len, time_to_live, .. } = self;
        write!(f, "{source} > {dest} protocol={protocol} len={payload_len} ttl={time_to_live}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::hex;

    /// Of a congestion notification that a ConnectX-4 Lx sent (from scapy's tests of RoCE).
    const CNP: &str = "45c2003c 718c4000 40119161 0a001101 0a001201";

    #[test]
    fn literal_bytes() {
        let header = Repr {
            type_of_service: 0xc2,
            payload_len: 40,
            identification: 0x718c,
            dont_fragment: true,
            time_to_live: 64,
            protocol: 17,
            source: Ipv4Addr::new(10, 0, 17, 1),
            dest: Ipv4Addr::new(10, 0, 18, 1),
        };
        // The capture has a total length of 60: header, UDP, BTH, 16 bytes, ICRC.
        assert_wire!(header, CNP);
        assert_eq!(std::format!("{header}"), "10.0.17.1 > 10.0.18.1 protocol=17 len=40 ttl=64");
    }

    #[test]
    fn what_a_receiver_refuses() {
        let with = |at: usize, value: u8| {
            let mut bytes = hex(CNP);
            bytes[at] = value;
            bytes[10..12].fill(0);
            let sum = Sum::default().bytes(&bytes).finish();
            bytes[10..12].copy_from_slice(&sum.to_be_bytes());
            Repr::read(&bytes).map(|(header, _)| header)
        };
        assert_eq!(with(0, 0x46), Err(Error::Version));
        assert_eq!(with(0, 0x65), Err(Error::Version));
        assert_eq!(with(3, 19), Err(Error::Length));
        assert_eq!(with(6, 0x20), Err(Error::Value("fragment")));
        assert_eq!(with(7, 1), Err(Error::Value("fragment")));
        let mut bytes = hex(CNP);
        bytes[8] -= 1;
        assert_eq!(Repr::read(&bytes), Err(Error::Checksum));
    }
}
