//! The messages, byte by byte. Numbers are big-endian.
//!
//! The private data of the request and of the reply of a connection, 32 bytes; librdmacm may append zeroes:
//!
//! | byte | |
//! |---|---|
//! | 0-3 | magic, `exs!` |
//! | 4 | version, 8 |
//! | 5 | kind: 1 SEQPACKET, 2 STREAM |
//! | 6-7 | credits: advertisements and transfers that this end holds at a time, 1 to 1024 |
//! | 8-11 | SEQPACKET: bytes of small data that this end takes in an advertisement, at most 65536 |
//! | 12-15 | STREAM: bytes of the ring, 1 to 2^30 |
//! | 16-23 | address of the ring; SEQPACKET: of the places for notices, or 0 |
//! | 24-27 | its key; SEQPACKET: theirs, or 0 |
//! | 28 | 1: the keys of advertisements and offers are those of windows of type 2; else 0 |
//! | 29 | 1: there are places for notices in memory that peers of the host map, where a STREAM has its ring; else 0 |
//! | 30-31 | zero |
//!
//! A message is one SEND, or shares one with others. Its header has 32 bytes. Byte 0 is the type. SEQPACKET has:
//!
//! | byte | ADVERT 1 | SMALL 2 | ACK 3 | WITHDRAW 4 | WITHDRAWN 5 | FIN 6 |
//! |---|---|---|---|---|---|---|
//! | 1 | 1: persistent | 0 | 0 | 0 | 1: dropped, 0: too late | 0 |
//! | 2-3 | 0 | 0 | 0 | 0 | 0 | 0 |
//! | 4-7 | its number | its number | last consumed | to be dropped | that of WITHDRAW | the next |
//! | 8-15 | address | 0 | 0 | 0 | 0 | 0 |
//! | 16-19 | 0 | 0 | 0 | 0 | 0 | 0 |
//! | 20-23 | length | length | 0 | 0 | 0 | 0 |
//! | 24-27 | key | 0 | 0 | 0 | 0 | 0 |
//! | 28-31 | 0 | 0 | 0 | 0 | 0 | 0 |
//!
//! The data of SMALL follow its header. An ACK may be a SEND with invalidate, with the key of the last advertisement
//! that it consumes, if the keys of its recipient are those of windows.
//!
//! STREAM has FIN, with the number of the next byte, and:
//!
//! | byte | OFFER 7 | ROOM 8 | RETRACT 9 | RETRACTED 10 | SEEN 11 |
//! |---|---|---|---|---|---|
//! | 1 | 1: first of its phase, 2: MSG_WAITALL | 1: late | 0 | 0 | 0 |
//! | 2-3 | phase | 0 | phase | that of RETRACT | 0 |
//! | 4-7 | number of the first byte | 0 | 0 | 0 | offers that are done with |
//! | 8-15 | address | 0 | 0 | 0 | 0 |
//! | 16-19 | bytes of the ring that are free | bytes of the ring that are free | 0 | 0 | 0 |
//! | 20-23 | length | 0 | 0 | 0 | 0 |
//! | 24-27 | key | 0 | 0 | 0 | 0 |
//! | 28-31 | transfers that have arrived | transfers that have arrived | 0 | 0 | 0 |
//!
//! Both kinds have PING, 12, and its answer PONG, 13. Bytes 1-31 of both are zero.
//!
//! The data of STREAM go by RDMA WRITE with an immediate value, or by RDMA WRITE and then DATA, 14. DATA has the
//! value in bytes 4-7, and the length of the WRITE in bytes 20-23; its other bytes are zero. Bit 31 of the value
//! says that the data went into an offered receive, not into the ring; bits 20-30 are the number of offers that the
//! sender is done with since it last said so; bit 19 says that the data went into the ring, and that the next transfer
//! does, at once; bits 0-18 are those of the number of the first byte. The DATA that ends an offer may be a SEND with
//! invalidate, with the offer's key, if the keys of its recipient are those of windows.
//!
//! LOOKS, 15, says that this end looks at notices, SLEEPS, 16, that it does no more, and SLEPT, 17, is the answer to
//! SLEEPS. Bytes 1-31 of each are zero. Only an end with places for notices sends LOOKS, and again only after SLEPT.
//! Between LOOKS and SLEPT its peer may WRITE a notice in place of DATA (STREAM) or ACK (SEQPACKET). The places are the
//! least power of two that is not less than the credits that the end has told. Those of a STREAM begin at the next
//! multiple of 32 bytes from the start of the ring behind its end. An end has no more transfers or advertisements under
//! way than either end has credits, so they are enough. A notice goes into the place of its number modulo their number:
//!
//! | byte | |
//! |---|---|
//! | 0-3 | its number, from 1 on |
//! | 4-7 | messages, SENDs that several share counted once, and WRITEs with immediate that the sender has sent before |
//! | 8-11 | the value of DATA; SEQPACKET: bytes 4-7 of ACK |
//! | 12-15 | the length of the WRITE; SEQPACKET: 0 |
//! | 16-23 | the sum of bytes 0-15 ([`super::Notice`]) |
//! | 24-31 | zero |
//!
//! The recipient takes a notice in behind so many messages, and before the next one.
//!
//! Two to four messages of one type may share a SEND, one header behind the other: ADVERT, OFFER or DATA. They mean
//! what they would mean in as many SENDs. A SEND with invalidate then has the key of one of them. So each receive that
//! an end posts has room for four headers.
//!
//! Bytes that are zero here are checked, so that a later version may use them.

use super::notice::NoticePlaces;
use super::table::Remote;
use crate::stream::{Ack, LOW};

/// Version of the protocol.
pub const VERSION: u8 = 8;
/// Bytes of the private data.
pub const HELLO: usize = 32;
/// Bytes of a message's header.
pub const HEADER: usize = 32;
/// The most messages of a SEND, and their bytes.
pub const TOGETHER: usize = 4;
/// See [`TOGETHER`].
pub const ROW: usize = TOGETHER * HEADER;
/// Bytes of the longest send: a READ has at most 2^31 (IBTA vol. 1, 9.4.4).
pub const MAX_LEN: u64 = 1 << 31;

const MAGIC: [u8; 4] = *b"exs!";
const MAX_CREDITS: u16 = 1024;
/// The most small data of an advertisement.
pub const MAX_SMALL: u32 = 65536;
/// The most bytes of a ring.
pub const MAX_RING: u32 = 1 << 30;

/// The kind of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// SOCK_SEQPACKET: a receive takes one send; what does not fit is lost.
    SeqPacket = 1,
    /// SOCK_STREAM: bytes without boundaries.
    Stream = 2,
}

/// The parameters of an end, which its peer must know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The kind of the socket.
    pub kind: Kind,
    /// Advertisements that this end holds at a time.
    pub credits: u16,
    /// Bytes of small data that it takes in an advertisement; not for a stream.
    pub small: u32,
    /// Bytes of the ring of a stream.
    pub ring: u32,
}

/// The private data of a connection's request or reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The settings of this end.
    pub settings: Settings,
    /// The place of its ring; of a SEQPACKET with `mapped`, of its places for notices.
    pub ring: Remote,
    /// Its keys are those of windows, which this peer may invalidate when it is done with them.
    pub windows: bool,
    /// Its ring lies in memory that peers map, with places for notices behind it. A SEQPACKET has no ring before them.
    pub mapped: bool,
}

/// The reason why private data are no greeting of a peer that this end can talk to; all are ECONNREFUSED.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HelloError {
    /// They are not of EXS.
    NoExs,
    /// Another version.
    Version(u8),
    /// A number that is not allowed.
    Content,
}

impl Hello {
    /// The bytes.
    pub fn emit(&self) -> [u8; HELLO] {
        let Settings { kind, credits, small, ring } = self.settings;
        let mut out = [0; HELLO];
        out[..4].copy_from_slice(&MAGIC);
        out[4] = VERSION;
        out[5] = kind as u8;
        out[6..8].copy_from_slice(&credits.to_be_bytes());
        if kind == Kind::SeqPacket {
            out[8..12].copy_from_slice(&small.to_be_bytes());
        } else {
            out[12..16].copy_from_slice(&ring.to_be_bytes());
        }
        if kind == Kind::Stream || self.mapped {
            out[16..24].copy_from_slice(&self.ring.addr.to_be_bytes());
            out[24..28].copy_from_slice(&self.ring.rkey.to_be_bytes());
        }
        (out[28], out[29]) = (self.windows.into(), self.mapped.into());
        out
    }

    /// The settings of the peer.
    pub fn parse(bytes: &[u8]) -> Result<Hello, HelloError> {
        let start = bytes.first_chunk::<5>().ok_or(HelloError::NoExs)?;
        if start[..4] != MAGIC {
            return Err(HelloError::NoExs);
        }
        if start[4] != VERSION {
            return Err(HelloError::Version(start[4]));
        }
        let (hello, rest) = bytes.split_first_chunk::<HELLO>().ok_or(HelloError::Content)?;
        let kind = match hello[5] {
            1 => Kind::SeqPacket,
            2 => Kind::Stream,
            _ => return Err(HelloError::Content),
        };
        let credits = u16::from_be_bytes([hello[6], hello[7]]);
        let (small, ring) = (be32(hello, 8), be32(hello, 12));
        let hello = Hello {
            settings: Settings { kind, credits, small, ring },
            ring: Remote { addr: be64(hello, 16), rkey: be32(hello, 24) },
            windows: hello[28] == 1,
            mapped: hello[29] == 1,
        };
        let end = if hello.mapped { NoticePlaces::new(ring, credits).end() } else { ring.into() };
        let has_ring = kind == Kind::SeqPacket && ring == 0 || kind == Kind::Stream && (1..=MAX_RING).contains(&ring);
        let sound = has_ring
            && (1..=MAX_CREDITS).contains(&credits)
            && small <= MAX_SMALL
            && hello.ring.addr.checked_add(end).is_some();
        // What the kind does not have is zero.
        if !sound || bytes[..HELLO] != hello.emit() || rest.iter().any(|byte| *byte != 0) {
            return Err(HelloError::Content);
        }
        Ok(hello)
    }
}

/// A message. `seq` numbers the advertisements of a direction, from 0, and wraps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// Data that the recipient may READ.
    Advert {
        /// Its number.
        seq: u32,
        /// Address in the space of the sender's region.
        addr: u64,
        /// The sender's key.
        rkey: u32,
        /// The number of bytes.
        len: u32,
        /// EXS_PERSISTENT: it stays, and is not acknowledged.
        persistent: bool,
    },
    /// Data that follow the header.
    Small {
        /// Its number.
        seq: u32,
        /// The number of bytes.
        len: u32,
    },
    /// All advertisements up to this one are consumed.
    Ack {
        /// Number of the last one.
        seq: u32,
    },
    /// The sender wants an advertisement back.
    Withdraw {
        /// Its number.
        seq: u32,
    },
    /// The answer to WITHDRAW.
    Withdrawn {
        /// Its number.
        seq: u32,
        /// True: the recipient has dropped it. False: its data are taken, or are being taken.
        dropped: bool,
    },
    /// The sender will send nothing more.
    Fin {
        /// The number that its next advertisement, or byte, would have.
        seq: u32,
    },
    /// A receive that the peer may WRITE into. Its place is that of the driver.
    Offer {
        /// As in [`crate::stream::Advert`].
        phase: u16,
        /// As there.
        seq: u32,
        /// As there.
        first: bool,
        /// As there.
        wait_all: bool,
        /// The number of bytes.
        len: u32,
        /// The first byte.
        place: Remote,
        /// What the peer gets back.
        ack: Ack,
    },
    /// What the peer gets back.
    Room(Ack),
    /// Offers of a phase are to be forgotten.
    Retract(u16),
    /// The answer.
    Retracted(u16),
    /// The sender is done with so many offers.
    Seen(u32),
    /// A WRITE without an immediate value has put so many bytes where this value says.
    Data {
        /// See [`Immediate`].
        imm: u32,
        /// The number of bytes.
        len: u32,
    },
    /// The sender waits, and has heard nothing for some time.
    Ping,
    /// The answer.
    Pong,
    /// This end looks at notices.
    Looks,
    /// This end looks at notices no more.
    Sleeps,
    /// The answer to it: no notice follows.
    Slept,
}

/// A message that is not one of this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

impl Message {
    /// The header's bytes.
    #[inline(always)]
    pub fn emit(&self) -> [u8; HEADER] {
        let (mut flags, mut phase, mut seq, mut freed, mut size, mut data) = (0u8, 0u16, 0u32, 0u32, 0u32, 0u32);
        let mut place = Remote { addr: 0, rkey: 0 };
        let mut give_back = |ack: &Ack| (freed, data) = (ack.freed, ack.data);
        let kind = match *self {
            Message::Advert { seq: number, addr, rkey, len, persistent } => {
                (seq, size, flags, place) = (number, len, u8::from(persistent), Remote { addr, rkey });
                1
            }
            Message::Small { seq: number, len } => {
                (seq, size) = (number, len);
                2
            }
            Message::Ack { seq: number } => {
                seq = number;
                3
            }
            Message::Withdraw { seq: number } => {
                seq = number;
                4
            }
            Message::Withdrawn { seq: number, dropped } => {
                (seq, flags) = (number, u8::from(dropped));
                5
            }
            Message::Fin { seq: number } => {
                seq = number;
                6
            }
            Message::Offer { phase: of, seq: number, first, wait_all, len, place: at, ack } => {
                (phase, seq, size, place) = (of, number, len, at);
                flags = u8::from(first) | u8::from(wait_all) << 1;
                give_back(&ack);
                7
            }
            Message::Room(ack) => {
                flags = u8::from(ack.late);
                give_back(&ack);
                8
            }
            Message::Retract(of) => {
                phase = of;
                9
            }
            Message::Retracted(of) => {
                phase = of;
                10
            }
            Message::Seen(count) => {
                seq = count;
                11
            }
            Message::Ping => 12,
            Message::Pong => 13,
            Message::Looks => 15,
            Message::Sleeps => 16,
            Message::Slept => 17,
            Message::Data { imm, len } => {
                (seq, size) = (imm, len);
                14
            }
        };
        let pair = |first: u32, second: u32| u64::from(first) << 32 | u64::from(second);
        let head = kind << 56 | u64::from(flags) << 48 | u64::from(phase) << 32 | u64::from(seq);
        let mut out = [0; HEADER];
        // By whole words: a device copies the header at once, and a load waits for stores that are narrower.
        let words = [head, place.addr, pair(freed, size), pair(place.rkey, data)];
        for (to, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_be_bytes();
        }
        out
    }

    /// A message from its header and the length of its SEND, header included. The only accepted headers are those that
    /// [`Message::emit`] makes, and only SMALL has data behind it.
    pub fn parse(header: &[u8; HEADER], sent: usize) -> Result<Message, Malformed> {
        let (phase, seq) = (u16::from_be_bytes([header[2], header[3]]), be32(header, 4));
        let (addr, len, rkey) = (be64(header, 8), be32(header, 20), be32(header, 24));
        let ack = |late| Ack { freed: be32(header, 16), data: be32(header, 28), late };
        let flag = |bit: u8| header[1] & bit != 0;
        let message = match header[0] {
            1 => Message::Advert { seq, addr, rkey, len, persistent: flag(1) },
            2 => Message::Small { seq, len },
            3 => Message::Ack { seq },
            4 => Message::Withdraw { seq },
            5 => Message::Withdrawn { seq, dropped: flag(1) },
            6 => Message::Fin { seq },
            7 => {
                let (first, wait_all, place) = (flag(1), flag(2), Remote { addr, rkey });
                Message::Offer { phase, seq, first, wait_all, len, place, ack: ack(false) }
            }
            8 => Message::Room(ack(flag(1))),
            9 => Message::Retract(phase),
            10 => Message::Retracted(phase),
            11 => Message::Seen(seq),
            12 => Message::Ping,
            13 => Message::Pong,
            14 => Message::Data { imm: seq, len },
            15 => Message::Looks,
            16 => Message::Sleeps,
            17 => Message::Slept,
            _ => return Err(Malformed),
        };
        let data_len = if let Message::Small { len, .. } = message { len as usize } else { 0 };
        if message.emit() != *header || sent != HEADER + data_len || u64::from(len) > MAX_LEN {
            return Err(Malformed);
        }
        Ok(message)
    }

    /// Number and length of a SMALL; `None`: it is another message, or means nothing. As [`Message::parse`], for the
    /// message that comes most often.
    pub fn parse_small(header: &[u8; HEADER], sent: usize) -> Option<(u32, u32)> {
        let (seq, len) = (be32(header, 4), be32(header, 20));
        let zero = be32(header, 0) == 2 << 24 && be64(header, 8) == 0 && be32(header, 16) == 0 && be64(header, 24) == 0;
        let right = zero && sent == HEADER + len as usize && u64::from(len) <= MAX_LEN;
        right.then_some((seq, len))
    }

    /// True for the header of DATA.
    pub fn is_data(header: &[u8; HEADER]) -> bool {
        header[0] == 14
    }

    /// True for the header of a message that may share a SEND with others of its type.
    pub fn may_share(header: &[u8; HEADER]) -> bool {
        matches!(header[0], 1 | 7 | 14)
    }

    /// The message with the place of the memory that it names.
    pub fn named(self, at: Remote) -> Message {
        match self {
            Message::Advert { seq, len, persistent, .. } => {
                Message::Advert { seq, addr: at.addr, rkey: at.rkey, len, persistent }
            }
            Message::Offer { phase, seq, first, wait_all, len, ack, .. } => {
                Message::Offer { phase, seq, first, wait_all, len, place: at, ack }
            }
            other => other,
        }
    }
}

/// The immediate value of a transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Immediate {
    /// Into an offered receive, not into the ring.
    pub direct: bool,
    /// Offers that the sender is done with, fewer than 2048.
    pub released: u32,
    /// Into the ring, and so does the next one, at once.
    pub more: bool,
    /// The low bits of the number of the first byte.
    pub seq: u32,
}

impl Immediate {
    /// The value.
    pub fn emit(self) -> u32 {
        u32::from(self.direct) << 31 | self.released << 20 | u32::from(self.more) << 19 | self.seq & LOW
    }

    /// Any value is one.
    pub fn parse(value: u32) -> Immediate {
        Immediate {
            direct: value >> 31 == 1,
            released: value >> 20 & 0x7ff,
            more: value >> 19 & 1 == 1,
            seq: value & LOW,
        }
    }
}

pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(std::array::from_fn(|i| bytes[at + i]))
}

pub(super) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
