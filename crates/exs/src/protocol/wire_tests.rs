//! The bytes of the messages.

use super::*;

const NOWHERE: Remote = Remote { addr: 0, rkey: 0 };
const STREAM: Hello = Hello {
    settings: Settings { kind: Kind::Stream, credits: 0x0102, small: 0, ring: 0x8000 },
    ring: Remote { addr: 0x1122_3344_5566_7788, rkey: 0xa1a2_a3a4 },
    windows: true,
    mapped: true,
};
const PACKETS: Hello = Hello {
    settings: Settings { kind: Kind::SeqPacket, credits: 3, small: 0x8000, ring: 0 },
    ring: NOWHERE,
    windows: false,
    mapped: false,
};

#[test]
fn a_greeting_has_its_bytes() {
    let bytes = *b"exs!\x08\x02\x01\x02\0\0\0\0\0\0\x80\0\x11\x22\x33\x44\x55\x66\x77\x88\xa1\xa2\xa3\xa4\x01\x01\0\0";
    assert_eq!(STREAM.emit(), bytes);
    assert_eq!(Hello::parse(&bytes), Ok(STREAM));
    // librdmacm hands out more than was sent (rdma_get_cm_event(3)).
    assert_eq!(Hello::parse(&[&bytes[..], &[0; 24]].concat()), Ok(STREAM));
    let bytes = [&b"exs!\x08\x01\0\x03\0\0\x80\0"[..], &[0; 20]].concat();
    assert_eq!(PACKETS.emit(), bytes[..]);
    assert_eq!(Hello::parse(&bytes), Ok(PACKETS));
    let places = Hello { ring: STREAM.ring, mapped: true, ..PACKETS };
    let bytes = *b"exs!\x08\x01\0\x03\0\0\x80\0\0\0\0\0\x11\x22\x33\x44\x55\x66\x77\x88\xa1\xa2\xa3\xa4\0\x01\0\0";
    assert_eq!((places.emit(), Hello::parse(&bytes)), (bytes, Ok(places)));
}

#[test]
fn other_greetings_are_refused() {
    let with = |good: Hello, at: usize, byte: u8| {
        let mut bytes = good.emit();
        bytes[at] = byte;
        Hello::parse(&bytes)
    };
    assert_eq!(Hello::parse(&[]), Err(HelloError::NoExs));
    assert_eq!(Hello::parse(b"exs"), Err(HelloError::NoExs));
    assert_eq!(Hello::parse(&STREAM.emit()[..31]), Err(HelloError::Content));
    assert_eq!(with(STREAM, 0, b'E'), Err(HelloError::NoExs));
    assert_eq!(with(PACKETS, 4, 2), Err(HelloError::Version(2)), "version 2 had no PING");
    assert_eq!(with(PACKETS, 4, 3), Err(HelloError::Version(3)), "version 3 had no DATA");
    assert_eq!(
        with(PACKETS, 4, 4),
        Err(HelloError::Version(4)),
        "version 4 had an ACK for each SMALL, and did not say what its keys are"
    );
    assert_eq!(with(PACKETS, 4, 5), Err(HelloError::Version(5)), "version 5 did not say that more follows");
    assert_eq!(with(PACKETS, 4, 7), Err(HelloError::Version(7)), "version 7 had no notices of packets");
    // Version 1 had 16 bytes.
    assert_eq!(Hello::parse(b"exs!\x01\x02\x01\x02\0\0\x80\0\0\0\0\0"), Err(HelloError::Version(1)));
    for (at, byte) in [(5, 0), (5, 3), (6, 0xff), (8, 1), (11, 1), (12, 0x80), (28, 2), (29, 2), (30, 1), (31, 1)] {
        assert_eq!(with(STREAM, at, byte), Err(HelloError::Content), "byte {at} = {byte}");
    }
    for (at, byte) in [(5, 2), (7, 0), (8, 1), (12, 1), (16, 1), (27, 1), (28, 2), (31, 1)] {
        assert_eq!(with(PACKETS, at, byte), Err(HelloError::Content), "byte {at} = {byte}");
    }
    let none = Hello { settings: Settings { ring: 0, ..STREAM.settings }, ..STREAM };
    assert_eq!(Hello::parse(&none.emit()), Err(HelloError::Content), "a stream has a ring");
    let wraps = Hello { ring: Remote { addr: u64::MAX - 5, rkey: 0 }, ..STREAM };
    assert_eq!(Hello::parse(&wraps.emit()), Err(HelloError::Content), "a ring behind the last address");
    // Three credits are four places of 32 bytes.
    let places = |addr| Hello { ring: Remote { addr, rkey: 1 }, mapped: true, ..PACKETS };
    assert_eq!(Hello::parse(&places(u64::MAX - 128).emit()), Ok(places(u64::MAX - 128)));
    assert_eq!(
        Hello::parse(&places(u64::MAX - 127).emit()),
        Err(HelloError::Content),
        "places behind the last address"
    );
}

#[test]
fn messages_have_their_bytes() {
    let (addr, rkey) = (0x1122_3344_5566_7788, 0xa1a2_a3a4);
    let advert = Message::Advert { seq: 0x0102_0304, addr, rkey, len: 0x1000, persistent: false };
    let mut bytes = [0; HEADER];
    bytes[0] = 1;
    bytes[4..8].copy_from_slice(&[1, 2, 3, 4]);
    bytes[8..16].copy_from_slice(&[0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
    bytes[22] = 0x10;
    bytes[24..28].copy_from_slice(&[0xa1, 0xa2, 0xa3, 0xa4]);
    assert_eq!(advert.emit(), bytes);
    let ack = Ack { freed: 0xb1b2_b3b4, data: 0xc1c2_c3c4, late: false };
    let place = Remote { addr, rkey };
    let offer =
        Message::Offer { phase: 0x0506, seq: 0x0102_0304, first: true, wait_all: true, len: 0x1000, place, ack };
    (bytes[0], bytes[1]) = (7, 3);
    bytes[2..4].copy_from_slice(&[5, 6]);
    bytes[16..20].copy_from_slice(&[0xb1, 0xb2, 0xb3, 0xb4]);
    bytes[28..].copy_from_slice(&[0xc1, 0xc2, 0xc3, 0xc4]);
    assert_eq!(offer.emit(), bytes);
    let unnamed = Message::Offer { phase: 6, seq: 0, first: false, wait_all: true, len: 9, place: NOWHERE, ack };
    assert_eq!(unnamed.named(place), Message::parse(&unnamed.named(place).emit(), HEADER).expect("an OFFER"));
    assert_ne!(unnamed.named(place), unnamed);
    let all = [
        advert,
        offer,
        unnamed,
        Message::Advert { seq: 1, addr, rkey, len: 1, persistent: true },
        Message::Room(ack),
        Message::Room(Ack { late: true, ..ack }),
        Message::Retract(8),
        Message::Retracted(0xfffe),
        Message::Seen(3),
        Message::Ack { seq: 5 },
        Message::Withdraw { seq: 6 },
        Message::Withdrawn { seq: 7, dropped: true },
        Message::Withdrawn { seq: 7, dropped: false },
        Message::Fin { seq: u32::MAX },
        Message::Ping,
        Message::Pong,
        Message::Data { imm: 0x8000_0001, len: 9 },
        Message::Looks,
        Message::Sleeps,
        Message::Slept,
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
fn an_immediate_value_has_its_bits() {
    let immediate = Immediate { direct: true, released: 0x7ff, more: true, seq: 0x7_0f0f };
    assert_eq!(immediate.emit(), 0xffff_0f0f);
    assert_eq!(Immediate::parse(0xffff_0f0f), immediate);
    let indirect = Immediate { direct: false, released: 1, more: false, seq: 0 };
    assert_eq!((indirect.emit(), Immediate::parse(1 << 20)), (1 << 20, indirect));
}

#[test]
fn a_small_is_parsed_as_any_message() {
    let small = Message::Small { seq: 0x0102_0304, len: 7 }.emit();
    assert_eq!(Message::parse_small(&small, HEADER + 7), Some((0x0102_0304, 7)));
    for at in 0..HEADER {
        for bit in 0..8 {
            let mut header = small;
            header[at] ^= 1 << bit;
            for sent in [HEADER + 7, HEADER + 6, HEADER + (7 ^ 1 << bit)] {
                let both = Message::parse(&header, sent).ok().and_then(|message| match message {
                    Message::Small { seq, len } => Some((seq, len)),
                    _ => None,
                });
                assert_eq!(Message::parse_small(&header, sent), both, "{at} {bit} {sent}");
            }
        }
    }
}

#[test]
fn bytes_that_mean_nothing_are_refused() {
    // Each byte that a message has no use for.
    let used: [(u8, &[(usize, usize)]); 13] = [
        (1, &[(4, 16), (20, 28)]),
        (3, &[(4, 8)]),
        (6, &[(4, 8)]),
        (7, &[(2, 32)]),
        (8, &[(16, 20), (28, 32)]),
        (9, &[(2, 4)]),
        (11, &[(4, 8)]),
        (12, &[]),
        (13, &[]),
        (14, &[(4, 8), (20, 24)]),
        (15, &[]),
        (16, &[]),
        (17, &[]),
    ];
    for (kind, used) in used {
        for at in (1..HEADER).filter(|at| !used.iter().any(|(start, end)| (*start..*end).contains(at))) {
            let mut bytes = [0; HEADER];
            bytes[0] = kind;
            // A bit that no message has.
            bytes[at] = 0x80;
            assert_eq!(Message::parse(&bytes, HEADER), Err(Malformed), "message {kind}, byte {at}");
        }
    }
    for kind in [0, 18, 255] {
        let mut bytes = [0; HEADER];
        bytes[0] = kind;
        assert_eq!(Message::parse(&bytes, HEADER), Err(Malformed));
    }
    let long = Message::Advert { seq: 0, addr: 0, rkey: 0, len: (1 << 31) + 1, persistent: false };
    assert_eq!(Message::parse(&long.emit(), HEADER), Err(Malformed));
    assert_eq!(Message::parse(&Message::Ack { seq: 0 }.emit(), HEADER - 1), Err(Malformed));
}
