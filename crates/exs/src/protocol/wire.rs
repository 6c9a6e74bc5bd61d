//! The messages, byte by byte. Numbers are big-endian.
//!
//! The private data of the request and of the reply of a connection, 16 bytes; librdmacm may append zeroes:
//!
//! | byte | |
//! |---|---|
//! | 0-3 | magic, `exs!` |
//! | 4 | version, 1 |
//! | 5 | kind: 1 SEQPACKET, 2 STREAM |
//! | 6-7 | credits: advertisements that this end holds at a time, 1 to 1024 |
//! | 8-11 | bytes of small data that this end takes in an advertisement, at most 65536 |
//! | 12-15 | zero |
//!
//! A message is one SEND. Its header has 32 bytes:
//!
//! | byte | ADVERT 1 | SMALL 2 | ACK 3 | WITHDRAW 4 | WITHDRAWN 5 | FIN 6 |
//! |---|---|---|---|---|---|---|
//! | 0 | type | type | type | type | type | type |
//! | 1 | 0 | 0 | 0 | 0 | 1: dropped, 0: too late | 0 |
//! | 2-3 | 0 | 0 | 0 | 0 | 0 | 0 |
//! | 4-7 | its number | its number | last consumed | to be dropped | that of WITHDRAW | the next |
//! | 8-15 | address | 0 | 0 | 0 | 0 | 0 |
//! | 16-23 | length | length | 0 | 0 | 0 | 0 |
//! | 24-27 | key | 0 | 0 | 0 | 0 | 0 |
//! | 28-31 | 0 | 0 | 0 | 0 | 0 | 0 |
//!
//! The data of SMALL follow its header. Bytes that are zero here are checked, so that a later version may use them.

/// Version of the protocol.
pub const VERSION: u8 = 1;
/// Bytes of the private data.
pub const HELLO: usize = 16;
/// Bytes of a message's header.
pub const HEADER: usize = 32;
/// Bytes of the longest send: a READ has at most 2^31 (IBTA vol. 1, 9.4.4).
pub const MAX_LEN: u64 = 1 << 31;

const MAGIC: [u8; 4] = *b"exs!";
const MAX_CREDITS: u16 = 1024;
/// The most small data of an advertisement.
pub const MAX_SMALL: u32 = 65536;

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
    /// Bytes of small data that it takes in an advertisement.
    pub small: u32,
}

/// The private data of a connection's request or reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello(pub Settings);

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
        let Settings { kind, credits, small } = self.0;
        let mut out = [0; HELLO];
        out[..4].copy_from_slice(&MAGIC);
        out[4] = VERSION;
        out[5] = kind as u8;
        out[6..8].copy_from_slice(&credits.to_be_bytes());
        out[8..12].copy_from_slice(&small.to_be_bytes());
        out
    }

    /// The settings of the peer.
    pub fn parse(bytes: &[u8]) -> Result<Hello, HelloError> {
        let (hello, rest) = bytes.split_first_chunk::<HELLO>().ok_or(HelloError::NoExs)?;
        if hello[..4] != MAGIC {
            return Err(HelloError::NoExs);
        }
        if hello[4] != VERSION {
            return Err(HelloError::Version(hello[4]));
        }
        let kind = match hello[5] {
            1 => Kind::SeqPacket,
            2 => Kind::Stream,
            _ => return Err(HelloError::Content),
        };
        let credits = u16::from_be_bytes([hello[6], hello[7]]);
        let small = be32(hello, 8);
        let sound = (1..=MAX_CREDITS).contains(&credits) && small <= MAX_SMALL;
        if !sound || hello[12..].iter().chain(rest).any(|byte| *byte != 0) {
            return Err(HelloError::Content);
        }
        Ok(Hello(Settings { kind, credits, small }))
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
        len: u64,
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
        /// The number that its next advertisement would have.
        seq: u32,
    },
}

/// A message that is not one of this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

impl Message {
    /// The header's bytes.
    pub fn emit(&self) -> [u8; HEADER] {
        let (kind, flag, seq, addr, len, key) = match *self {
            Message::Advert { seq, addr, rkey, len } => (1, 0, seq, addr, len, rkey),
            Message::Small { seq, len } => (2, 0, seq, 0, u64::from(len), 0),
            Message::Ack { seq } => (3, 0, seq, 0, 0, 0),
            Message::Withdraw { seq } => (4, 0, seq, 0, 0, 0),
            Message::Withdrawn { seq, dropped } => (5, u8::from(dropped), seq, 0, 0, 0),
            Message::Fin { seq } => (6, 0, seq, 0, 0, 0),
        };
        let mut out = [0; HEADER];
        out[0] = kind;
        out[1] = flag;
        out[4..8].copy_from_slice(&seq.to_be_bytes());
        out[8..16].copy_from_slice(&addr.to_be_bytes());
        out[16..24].copy_from_slice(&len.to_be_bytes());
        out[24..28].copy_from_slice(&key.to_be_bytes());
        out
    }

    /// A message from its header and the length of its SEND, header included. The only accepted headers are those that
    /// [`Message::emit`] makes, and only SMALL has data behind it.
    pub fn parse(header: &[u8; HEADER], sent: usize) -> Result<Message, Malformed> {
        let (seq, len) = (be32(header, 4), be64(header, 16));
        let message = match header[0] {
            1 => Message::Advert { seq, addr: be64(header, 8), rkey: be32(header, 24), len },
            2 => Message::Small { seq, len: u32::try_from(len).map_err(|_| Malformed)? },
            3 => Message::Ack { seq },
            4 => Message::Withdraw { seq },
            5 => Message::Withdrawn { seq, dropped: header[1] == 1 },
            6 => Message::Fin { seq },
            _ => return Err(Malformed),
        };
        let data_len = if let Message::Small { len, .. } = message { len as usize } else { 0 };
        if message.emit() != *header || sent != HEADER + data_len || len > MAX_LEN {
            return Err(Malformed);
        }
        Ok(message)
    }
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings = Settings { kind: Kind::Stream, credits: 0x0102, small: 0x8000 };

    #[test]
    fn a_greeting_has_its_bytes() {
        let bytes = *b"exs!\x01\x02\x01\x02\0\0\x80\0\0\0\0\0";
        assert_eq!(Hello(SETTINGS).emit(), bytes);
        assert_eq!(Hello::parse(&bytes), Ok(Hello(SETTINGS)));
        // librdmacm hands out more than was sent (rdma_get_cm_event(3)).
        assert_eq!(Hello::parse(&[&bytes[..], &[0; 40]].concat()), Ok(Hello(SETTINGS)));
    }

    #[test]
    fn other_greetings_are_refused() {
        let good = Hello(SETTINGS).emit();
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            Hello::parse(&bytes)
        };
        assert_eq!(Hello::parse(&[]), Err(HelloError::NoExs));
        assert_eq!(Hello::parse(&good[..15]), Err(HelloError::NoExs));
        assert_eq!(with(0, b'E'), Err(HelloError::NoExs));
        assert_eq!(with(4, 2), Err(HelloError::Version(2)));
        for (at, byte) in [(5, 0), (5, 3), (6, 0xff), (8, 1), (12, 1), (15, 1)] {
            assert_eq!(with(at, byte), Err(HelloError::Content), "byte {at} = {byte}");
        }
        let none = Hello(Settings { credits: 0, ..SETTINGS });
        assert_eq!(Hello::parse(&none.emit()), Err(HelloError::Content));
    }

    #[test]
    fn messages_have_their_bytes() {
        let advert = Message::Advert { seq: 0x0102_0304, addr: 0x1122_3344_5566_7788, rkey: 0xa1a2_a3a4, len: 0x1000 };
        let mut bytes = [0; HEADER];
        bytes[0] = 1;
        bytes[4..8].copy_from_slice(&[1, 2, 3, 4]);
        bytes[8..16].copy_from_slice(&[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        bytes[22] = 0x10;
        bytes[24..28].copy_from_slice(&[0xa1, 0xa2, 0xa3, 0xa4]);
        assert_eq!(advert.emit(), bytes);
        let all = [
            advert,
            Message::Ack { seq: 5 },
            Message::Withdraw { seq: 6 },
            Message::Withdrawn { seq: 7, dropped: true },
            Message::Withdrawn { seq: 7, dropped: false },
            Message::Fin { seq: u32::MAX },
        ];
        for message in all {
            assert_eq!(Message::parse(&message.emit(), HEADER), Ok(message));
            assert_eq!(Message::parse(&message.emit(), HEADER + 1), Err(Malformed), "{message:?}");
        }
        let small = Message::Small { seq: 9, len: 3 };
        assert_eq!(Message::parse(&small.emit(), HEADER + 3), Ok(small));
        assert_eq!(Message::parse(&small.emit(), HEADER + 2), Err(Malformed));
    }

    #[test]
    fn bytes_that_mean_nothing_are_refused() {
        // Each byte that a message has no use for.
        let used: [&[(usize, usize)]; 3] = [&[(4, 16), (20, 28)], &[(4, 8)], &[(4, 8)]];
        for (kind, used) in [1u8, 3, 6].into_iter().zip(used) {
            for at in (1..HEADER).filter(|at| !used.iter().any(|(start, end)| (*start..*end).contains(at))) {
                let mut bytes = [0; HEADER];
                bytes[0] = kind;
                bytes[at] = 2;
                assert_eq!(Message::parse(&bytes, HEADER), Err(Malformed), "message {kind}, byte {at}");
            }
        }
        for kind in [0, 7, 255] {
            let mut bytes = [0; HEADER];
            bytes[0] = kind;
            assert_eq!(Message::parse(&bytes, HEADER), Err(Malformed));
        }
        let long = Message::Advert { seq: 0, addr: 0, rkey: 0, len: MAX_LEN + 1 };
        assert_eq!(Message::parse(&long.emit(), HEADER), Err(Malformed));
        assert_eq!(Message::parse(&Message::Ack { seq: 0 }.emit(), HEADER - 1), Err(Malformed));
    }
}
