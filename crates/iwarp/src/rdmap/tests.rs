//! Messages as literal bytes, and the answer to everything that may be wrong.

use std::format;
use std::string::String;
use std::vec;
use std::vec::Vec;

use verbs::RKey;
use wire::rdmap::read_request;
use wire::rdmap::terminate::Layer;

use super::terminate::Terminated;
use super::*;
use crate::ddp::TagFault;
use crate::mpa::start::{REQUEST_TIMEOUT, Unmet};
use crate::mpa::{Agreed, Ready, Role, Sender};
use crate::tests::memory::Memory;
use crate::tests::{Gather, agreed, frame, hex};

fn stream(terms: Agreed) -> Stream {
    Stream::new(&terms, &Config::new(1460), 0)
}

/// No markers, no CRCs: what follows is easily read.
fn plain() -> Stream {
    stream(agreed(false, false))
}

fn hexed(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What the stream sends for this work.
#[track_caller]
fn sent(stream: &mut Stream, work: Work, payload: &[u8]) -> Vec<u8> {
    stream.start(work).expect("may be sent");
    let mut out = Vec::new();
    while let Some(last) = stream.send(payload, &mut Gather { stream: &mut out, payload }) {
        if last {
            break;
        }
    }
    assert!(!stream.is_sending());
    out
}

fn urgent(stream: &mut Stream) -> Vec<u8> {
    let mut out = Vec::new();
    stream.urgent(&mut Gather { stream: &mut out, payload: &[] });
    out
}

/// FPDUs of segments in hexadecimal digits.
fn fpdus(segments: &[&str]) -> Vec<u8> {
    let (mut sender, mut out) = (Sender::new(&agreed(false, false), 9000), Vec::new());
    for segment in segments {
        frame(&mut sender, &hex(segment), &[], &mut out);
    }
    out
}

/// What a stream answers to these segments: the payload of its Terminate message.
#[track_caller]
fn answer(stream: &mut Stream, memory: &mut Memory, segments: &[&str]) -> String {
    stream.input(0, &fpdus(segments), memory);
    let out = urgent(stream);
    let Some(head) = out.get(..20) else { return String::new() };
    assert_eq!(hexed(&head[2..]), "414700000000000000020000000100000000", "a Terminate message");
    let len = usize::from(u16::from_be_bytes([out[0], out[1]]));
    assert!(urgent(stream).is_empty(), "one Terminate message");
    hexed(&out[20..2 + len])
}

fn request(size: u32, source: u32) -> read_request::Repr {
    read_request::Repr {
        sink_stag: RKey(0x11),
        sink_offset: 0x22,
        size,
        source_stag: RKey(source),
        source_offset: 0x1000,
    }
}

#[test]
fn messages_as_they_are_sent() {
    let mut stream = plain();
    let send = |solicited, invalidate| Work::Send { len: 3, solicited, invalidate };
    let wire = hexed(&sent(&mut stream, send(false, None), b"abc"));
    assert_eq!(wire, "00154143000000000000000000000001000000006162630000000000");
    let wire = hexed(&sent(&mut stream, send(false, Some(RKey(0x77))), b"abc"));
    assert_eq!(wire[..36], *"001541440000007700000000000000020000");
    assert_eq!(hexed(&sent(&mut stream, send(true, None), b"abc"))[4..8], *"4145");
    assert_eq!(hexed(&sent(&mut stream, send(true, Some(RKey(0x77))), b"abc"))[4..8], *"4146");
    let wire = hexed(&sent(&mut stream, Work::Write { stag: RKey(0xdead_be00), offset: 8, len: 0 }, b""));
    assert_eq!(wire, "000ec140deadbe00000000000000000800000000");
    let wire = sent(&mut stream, Work::Read(request(5, 0x33)), b"");
    let header = "002e4141000000000000000100000001000000000000001100000000000000220000000500000033";
    assert_eq!((hexed(&wire), wire.len()), (format!("{header}000000000000100000000000"), 52));
    let long = vec![7; 4000];
    let wire = sent(&mut stream, Work::Send { len: 4000, solicited: false, invalidate: None }, &long);
    assert_eq!(wire.len(), 4000 + 3 * (2 + 18 + 4), "three segments of at most 1454 bytes");
    assert_eq!(stream.sent() as usize, 4 * 28 + 20 + 52 + wire.len());
}

#[test]
fn what_cannot_be_sent() {
    let mut stream = plain();
    let write = |offset, len| Work::Write { stag: RKey(1), offset, len };
    assert_eq!(stream.start(write(u64::MAX, 2)), Err(Refused::Wrap));
    assert_eq!(stream.start(write(u64::MAX, 1)), Err(Refused::Wrap));
    assert_eq!(stream.start(write(u64::MAX - 1, 1)), Ok(()));
    assert_eq!(stream.start(write(0, 1)), Err(Refused::Busy));
    let mut stream = plain();
    for _ in 0..4 {
        sent(&mut stream, Work::Read(request(5, 0x33)), b"");
    }
    assert_eq!(stream.start(Work::Read(request(5, 0x33))), Err(Refused::Depth));
    assert_eq!(stream.start(Work::Response(request(5, 0x33))), Err(Refused::NotAsked));
    stream.fail();
    assert_eq!(stream.start(write(0, 1)), Err(Refused::Over));
    assert_eq!(hexed(&urgent(&mut stream))[40..48], *"00000000", "layer 0, type 0");

    let mut responder = stream_of(Role::Responder);
    assert_eq!(responder.start(write(0, 1)), Err(Refused::NotYet));
    responder.input(0, &fpdus(&["c140 00000000 0000000000000000"]), &mut Memory::default());
    assert_eq!(responder.start(write(0, 1)), Ok(()));
    let mut silent = stream_of(Role::Responder);
    silent.fail();
    assert!(urgent(&mut silent).is_empty(), "not even that");
}

fn stream_of(role: Role) -> Stream {
    stream(Agreed { role, ..agreed(false, false) })
}

#[test]
fn sends_are_delivered() {
    let mut memory = Memory::new(0x77, 0, 8);
    memory.receives.extend([8, 8, 0]);
    let mut stream = plain();
    let bytes = fpdus(&[
        "0143 00000000 00000000 00000001 00000000 616263",
        "4143 00000000 00000000 00000001 00000003 6465",
        "4146 00000077 00000000 00000002 00000000 66",
        "4145 00000000 00000000 00000003 00000000",
    ]);
    // However the stream is cut: what is not taken is given again.
    for end in 0..=bytes.len() {
        let from = stream.position() as usize;
        stream.input(from as u64, &bytes[from..end], &mut memory);
    }
    let send = |len, solicited, invalidated| Delivery::Send { len, solicited, invalidated };
    let expected = [
        (send(5, false, None), b"abcde".to_vec()),
        (send(1, true, Some(RKey(0x77))), b"f".to_vec()),
        (send(0, true, None), Vec::new()),
    ];
    assert_eq!(memory.delivered, expected);
    assert!(memory.regions.is_empty(), "invalidated");
    stream.closed(0);
    assert_eq!(stream.end(), Some(&End::Closed));
}

#[test]
fn a_read_and_its_answer() {
    let (mut asks, mut answers) = (plain(), plain());
    let mut source = Memory::new(0x33, 0x1000, 3000);
    source.regions[0].bytes = (0..3000_u32).map(|at| at as u8).collect();
    let mut sink = Memory::new(0x11, 0x22, 3000);
    answers.input(0, &sent(&mut asks, Work::Read(request(3000, 0x33)), b""), &mut source);
    assert_eq!(source.deliveries(), [Delivery::Request { message: 1, request: request(3000, 0x33) }]);
    let data = source.bytes(0x33).to_vec();
    let wire = sent(&mut answers, Work::Response(request(3000, 0x33)), &data);
    assert_eq!(hexed(&wire)[..32], *"05ae8142000000110000000000000022");
    assert_eq!(answers.start(Work::Response(request(1, 0x33))), Err(Refused::NotAsked));
    asks.input(0, &wire, &mut sink);
    assert_eq!((sink.deliveries(), sink.bytes(0x11)), (vec![Delivery::Read], &data[..]));
    // A READ of no bytes names nothing.
    let from = answers.position();
    answers.input(from, &sent(&mut asks, Work::Read(request(0, 0xbad)), b""), &mut source);
    let wire = sent(&mut answers, Work::Response(request(0, 0xbad)), b"");
    let from = asks.position();
    asks.input(from, &wire, &mut sink);
    assert_eq!(sink.deliveries(), [Delivery::Read; 2]);
}

#[test]
fn an_initiator_says_that_it_is_ready() {
    let ready = |ready| stream(Agreed { ready: Some(ready), ..agreed(false, false) });
    let mut side = ready(Ready::Write);
    assert_eq!(side.start(Work::Read(request(0, 0))), Err(Refused::Urgent));
    assert_eq!(hexed(&urgent(&mut side)), "000ec14000000001000000000000000000000000");
    assert_eq!((urgent(&mut side).len(), side.start(Work::Read(request(0, 0)))), (0, Ok(())));
    assert_eq!(hexed(&urgent(&mut ready(Ready::Send)))[..40], *"0012414300000000000000000000000100000000");

    let mut side = ready(Ready::Read);
    let mut other = stream(Agreed { role: Role::Responder, awaits_ready: true, ..agreed(false, false) });
    assert_eq!(other.deadline(), Some(REQUEST_TIMEOUT));
    let mut memory = Memory::default();
    other.input(0, &urgent(&mut side), &mut memory);
    assert_eq!(other.deadline(), None);
    let [Delivery::Request { request, .. }] = memory.deliveries()[..] else { panic!("no request") };
    side.input(0, &sent(&mut other, Work::Response(request), b""), &mut memory);
    assert_eq!((memory.delivered.len(), side.end()), (1, None), "the program knows nothing of it");
    let wire = sent(&mut side, Work::Read(request), b"");
    assert_eq!(hexed(&wire)[24..32], *"00000002", "it was the first request");

    let mut late = stream(Agreed { role: Role::Responder, awaits_ready: true, ..agreed(false, false) });
    late.timeout(REQUEST_TIMEOUT - 1);
    assert_eq!(late.end(), None);
    late.timeout(REQUEST_TIMEOUT);
    assert_eq!(late.end(), Some(&End::Timeout));
    assert!(urgent(&mut late).is_empty());
}

#[test]
fn a_reply_that_cannot_be_met() {
    for (unmet, payload) in [(Unmet::Ird, "20060000"), (Unmet::Ready, "20070000")] {
        let mut side = stream(Agreed { unmet: Some(unmet), ready: Some(Ready::Read), ..agreed(false, false) });
        assert_eq!(side.end(), Some(&End::Fault(Fault::Start(unmet))));
        assert_eq!(hexed(&urgent(&mut side))[40..48], *payload);
        assert!(urgent(&mut side).is_empty());
    }
}

/// Each error by its segment and the payload of the answer.
#[test]
fn every_error_has_its_answer() {
    let write = |place: &str| format!("c140 {place} 6162636465666768");
    let read = |place: &str| format!("4141 00000000 00000001 00000001 00000000 00000011 0000000000000022 {place}");
    let send = |rest: &str| format!("4143 00000000 {rest}");
    // A region 0x77 at 0x1000 of 8 bytes, 0x78 without rights, 0x79 of another stream; one receive of 4 bytes.
    let tagged = |segment: String, code: &str| (segment.clone(), format!("{code} c000 0016 {}", &segment[..31]));
    let untagged =
        |segment: String, code: &str, len: &str| (segment.clone(), format!("{code} c000 {len} {}", &segment[..41]));
    let read_back = |segment: String, code: &str| (segment.clone(), format!("{code} e000 002e {segment}"));
    let cases = [
        tagged(write("00000001 0000000000001000"), "1100"),
        tagged(write("00000077 0000000000001001"), "1101"),
        tagged(write("00000077 0000000000000fff"), "1101"),
        tagged(write("00000078 0000000000001000"), "1100"),
        tagged(write("00000079 0000000000001000"), "1102"),
        tagged(write("00000077 fffffffffffffff9"), "1103"),
        tagged(write("00000077 fffffffffffffff8"), "1103"),
        tagged(write("00000077 fffffffffffffff7"), "1101"),
        tagged(format!("c240{}", &write("00000077 0000000000001000")[4..]), "1104"),
        tagged(format!("c142{}", &write("00000077 0000000000001000")[4..]), "0206"),
        tagged(format!("c143{}", &write("00000077 0000000000001000")[4..]), "0206"),
        tagged(format!("c180{}", &write("00000077 0000000000001000")[4..]), "0205"),
        tagged(format!("c14f{}", &write("00000077 0000000000001000")[4..]), "0206"),
        untagged(send("00000007 00000001 00000000 61"), "1201", "0013"),
        untagged(send("00000001 00000001 00000000 61"), "1201", "0013"),
        untagged(send("00000000 00000002 00000000 61"), "1203", "0013"),
        untagged(send("00000000 00000001 00000001 61"), "1204", "0013"),
        untagged(send("00000000 00000001 00000000 6162636465"), "1205", "0017"),
        untagged(format!("4043{}", &send("00000000 00000001 00000000 61")[4..]), "1206", "0013"),
        untagged(format!("4140{}", &send("00000000 00000001 00000000 61")[4..]), "0206", "0013"),
        untagged(format!("4144 00000055 {}", "00000000 00000001 00000000 61"), "0109", "0013"),
        untagged(format!("4146 00000079 {}", "00000000 00000001 00000000 61"), "0109", "0013"),
        // RFC 7306: immediate data, an atomic request, an atomic response.
        untagged(send("00000000 00000001 00000000 0102030405060708").replace("4143", "4148"), "0206", "001a"),
        untagged(send("00000000 00000001 00000000 0102030405060708").replace("4143", "4149"), "0206", "001a"),
        untagged(send("00000001 00000001 00000000 00").replace("4143", "414a"), "0206", "0013"),
        untagged(send("00000003 00000001 00000000 00").replace("4143", "414b"), "0206", "0013"),
        untagged(read("00000008 00000077 00000000000010")[..58].into(), "02ff", "001a"),
        untagged(read("00000008 00000077 0000000000001000 00"), "1205", "002f"),
        read_back(read("00000008 00000001 0000000000001000"), "0100"),
        read_back(read("00000009 00000077 0000000000001000"), "0101"),
        read_back(read("00000008 00000078 0000000000001000"), "0102"),
        read_back(read("00000008 00000079 0000000000001000"), "0103"),
        read_back(read("00000008 00000077 fffffffffffffff8"), "0104"),
        ("41".into(), "1000 0000".into()),
        ("4143 00000000 00000000 00000001 000000".into(), "1000 0000".into()),
        (String::new(), "1000 0000".into()),
    ];
    for (segment, payload) in cases {
        let mut memory = Memory::new(0x77, 0x1000, 8);
        let closed = region(0x78);
        memory.regions.push(closed);
        memory.foreign = Some(RKey(0x79));
        memory.receives.extend([4]);
        let mut stream = plain();
        let got = answer(&mut stream, &mut memory, &[&segment]);
        assert_eq!(got, hexed(&hex(&payload)), "answer to {segment}");
        assert!(matches!(stream.end(), Some(End::Fault(_))), "{segment}");
        assert_eq!((memory.delivered.len(), memory.placed), (0, usize::from(payload.starts_with("0109"))), "{segment}");
    }
}

fn region(stag: u32) -> crate::tests::memory::Region {
    crate::tests::memory::Region { stag: RKey(stag), base: 0x1000, bytes: vec![0; 8], writable: false, readable: false }
}

#[test]
fn no_buffer() {
    let mut memory = Memory::default();
    let segment = "4143 00000000 00000000 00000001 00000000 61";
    assert_eq!(answer(&mut plain(), &mut memory, &[segment])[..8], *"1202c000");
    // One READ request more than was agreed upon.
    let mut memory = Memory::new(0x77, 0x1000, 8);
    let text = |message: u32| {
        format!(
            "4141 00000000 00000001 {message:08x} 00000000 00000011 0000000000000022 00000008 00000077 0000000000001000"
        )
    };
    let segments: Vec<String> = (1..=5).map(text).collect();
    let segments: Vec<&str> = segments.iter().map(|text| &text[..]).collect();
    let mut stream = plain();
    assert_eq!(answer(&mut stream, &mut memory, &segments)[..8], *"1202c000");
    assert_eq!(memory.delivered.len(), 4);
    assert_eq!(stream.start(Work::Response(request(8, 0x77))), Err(Refused::Over), "no answers after that");
}

#[test]
fn answers_to_reads_are_held_against_the_request() {
    let outcome = |segments: &[&str]| {
        let mut stream = plain();
        sent(&mut stream, Work::Read(request(8, 0x33)), b"");
        let mut sink = Memory::new(0x11, 0x22, 100);
        let answer = answer(&mut stream, &mut sink, segments);
        (answer.get(..4).map(String::from), sink.delivered.len())
    };
    let good = ["8142 00000011 0000000000000022 61626364", "c142 00000011 0000000000000026 61626364"];
    assert_eq!(outcome(&good), (None, 1));
    let wrong = [
        ("c142 00000012 0000000000000022 6162636461626364", "1100"),
        ("c142 00000011 0000000000000023 6162636461626364", "1101"),
        ("c142 00000011 0000000000000022 616263646162636465", "1101"),
        ("c142 00000011 0000000000000022 61626364616263", "1101"),
        ("8142 00000011 0000000000000022 6162636461626364", "1101"),
    ];
    for (segment, code) in wrong {
        assert_eq!(outcome(&[segment]), (Some(code.into()), 0), "{segment}");
    }
    assert_eq!(outcome(&[good[0], good[1], good[1]]), (Some("0206".into()), 1), "an answer to nothing");
}

#[test]
fn after_the_first_error_nothing_happens() {
    let mut memory = Memory::new(0x77, 0x1000, 8);
    memory.receives.push_back(8);
    let mut stream = plain();
    let bad = "c140 00000001 0000000000001000 61";
    let good = "c140 00000077 0000000000001000 61";
    assert_eq!(
        answer(&mut stream, &mut memory, &[bad, good, "4143 00000000 00000000 00000001 00000000 61"])[..4],
        *"1100"
    );
    assert_eq!((memory.placed, memory.delivered.len()), (0, 0));
    stream.closed(0);
    assert!(matches!(stream.end(), Some(End::Fault(_))), "the first reason stays");
}

#[test]
fn a_terminate_message_is_delivered_and_not_answered() {
    let mut memory = Memory::default();
    let mut stream = plain();
    let text = "4147 00000000 00000002 00000001 00000000 1100c000 0016 c140 00000001 0000000000001000";
    assert_eq!(answer(&mut stream, &mut memory, &[text, "4143"]), "");
    let [Delivery::Terminated(said)] = memory.deliveries()[..] else { panic!("not delivered") };
    assert_eq!(stream.end(), Some(&End::Terminated(said)));
    assert_eq!(said.reason, Some(Reason { layer: Layer::Ddp, kind: 1, code: 0 }));
    assert_eq!(format!("{said}"), "tagged: invalid STag (1 1 0)");
    assert_eq!((said.segment_len, said.swapped, said.ddp.is_some()), (Some(0x16), false, true));
}

#[test]
fn the_terminate_messages_of_siw() {
    let read = |text: &str| {
        let said = Terminated::read(&hex(text), false);
        (said.reason.map(|reason| (reason.layer as u8, reason.kind, reason.code)), said.swapped, said.ddp.is_some())
    };
    // Seen: a WRITE to a bad STag.
    let seen = "11 00 03 00 0008 c140 deadbe00 0000000000000000";
    assert_eq!(read(seen), (Some((1, 1, 0)), true, true));
    assert_eq!(read("10 01 07 00 002e"), (Some((0, 1, 1)), true, false));
    assert_eq!(read("02 02 00 00"), (Some((2, 0, 2)), true, false), "a CRC error has no headers");
    assert_eq!(read("20 02 00 00"), (Some((2, 0, 2)), false, false));
    assert_eq!(read("21 02 00 00"), (Some((1, 2, 2)), true, false));
    assert_eq!(read("00 00 00 00"), (Some((0, 0, 0)), false, false));
    assert_eq!(read("12 02 c0 00 0016 4143 00000000 00000000 00000001 00000000"), (Some((1, 2, 2)), false, true));
    assert_eq!(read("f0 02 80 00 0000"), (None, false, false));
    assert_eq!(read("12 02 c0"), (None, false, false));
    // Seen: another version of RDMAP, an opcode that is not defined. The first message of an initiator is about terms.
    assert_eq!(read("20 05 00 00"), (Some((0, 2, 5)), true, false));
    assert_eq!(read("20 06 00 00"), (Some((0, 2, 6)), true, false));
    let first = Terminated::read(&hex("20 06 00 00"), true);
    assert_eq!((first.reason.map(|reason| reason.layer), first.swapped), (Some(Layer::Llp), false));
    let request = "01 00 e0 00 002e 4141 00000000 00000001 00000001 00000000 \
                   00000011 0000000000000022 00000008 00000033 0000000000001000";
    assert_eq!(Terminated::read(&hex(request), false).request, Some(self::request(8, 0x33)));
}

#[test]
fn a_read_that_cannot_be_answered_any_longer() {
    let mut memory = Memory::new(0x33, 0x1000, 8);
    let mut stream = plain();
    let text = "4141 00000000 00000001 00000001 00000000 00000011 0000000000000022 00000008 00000033 0000000000001000";
    stream.input(0, &fpdus(&[text]), &mut memory);
    let [Delivery::Request { message, request }] = memory.deliveries()[..] else { panic!("no request") };
    stream.refuse(message, &request, 3, TagFault::Invalid);
    let sent = hexed(&urgent(&mut stream));
    let told = "4141000000000000000100000001000000000000001100000000000000250000000500000033000000000000100300000000";
    assert_eq!(sent[40..], *(format!("0100e000002e{told}")));
}

#[test]
fn errors_of_the_stream_itself() {
    let mut crc = stream(agreed(false, true));
    let mut wire = Vec::new();
    frame(&mut Sender::new(&agreed(false, true), 1460), &hex("c140 00000001 0000000000001000"), &[], &mut wire);
    wire[9] ^= 1;
    crc.input(0, &wire, &mut Memory::default());
    assert_eq!(hexed(&urgent(&mut crc))[40..48], *"20020000");

    // A responder that has heard nothing valid says nothing.
    let mut silent = stream(Agreed { role: Role::Responder, ..agreed(false, true) });
    silent.input(0, &wire, &mut Memory::default());
    assert!(matches!(silent.end(), Some(End::Fault(Fault::Mpa(_)))));
    assert!(urgent(&mut silent).is_empty());

    // The CRC is wrong, and so is the header, because of it: the CRC counts, also if headers are looked at first.
    let terms = agreed(false, true);
    let mut early = Stream::new(&terms, &Config { early_from: 0, ..Config::new(1460) }, 0);
    early.input(0, &wire, &mut Memory::default());
    assert_eq!(hexed(&urgent(&mut early))[40..48], *"20020000");
}

#[test]
fn a_connection_that_is_torn() {
    let bytes = fpdus(&["0143 00000000 00000000 00000001 00000000 61"]);
    let closed = |taken: usize, early_from: u32| {
        let mut memory = Memory::default();
        memory.receives.push_back(9);
        let mut stream = Stream::new(&agreed(false, false), &Config { early_from, ..Config::new(1460) }, 0);
        stream.input(0, &bytes[..taken], &mut memory);
        stream.closed(taken - stream.position() as usize);
        *stream.end().expect("the end")
    };
    assert_eq!(closed(0, u32::MAX), End::Closed);
    assert_eq!(closed(5, u32::MAX), End::Torn);
    assert_eq!(closed(5, 0), End::Torn);
    assert_eq!(closed(bytes.len(), 0), End::Torn, "between two segments of one message");
}

#[test]
fn sizes_are_those_of_the_documentation() {
    assert!(size_of::<Stream>() <= 700, "{}", size_of::<Stream>());
    assert!(size_of::<early::Kept>() <= 48, "{}", size_of::<early::Kept>());
    let frames = 2 * 532 + 100;
    assert!(size_of::<crate::mpa::Initiator>() <= frames && size_of::<crate::mpa::Responder>() <= frames);
}
