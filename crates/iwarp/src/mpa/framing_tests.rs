//! FPDUs in both directions: the figures of RFC 5044; every segment size, every cut of the stream, every byte wrong.

use std::vec;
use std::vec::Vec;

use super::early::Search;
use super::receive::{Event, Fault, Receiver};
use super::send::{Sender, TooLong, mulpdu};
use crate::tests::{Gather, Random, agreed, frame, hex, seeds};

const WHOLE_ONLY: u32 = u32::MAX;

/// Takes a stream in pieces of these lengths. The segments that came to their end, and the error.
fn receive(
    receiver: &mut Receiver,
    stream: &[u8],
    mut piece: impl FnMut() -> usize,
) -> (Vec<Vec<u8>>, Result<(), Fault>) {
    let (mut whole, mut segment, mut held, mut at) = (Vec::new(), Vec::new(), Vec::new(), 0);
    loop {
        match receiver.next(&held) {
            Err(fault) => return (whole, Err(fault)),
            Ok((taken, event)) => {
                match event {
                    Some(Event::Start { len }) => segment = Vec::with_capacity(len.into()),
                    Some(Event::Bytes(bytes)) => segment.extend_from_slice(bytes),
                    Some(Event::End) => whole.push(core::mem::take(&mut segment)),
                    None => {
                        if at == stream.len() {
                            return (whole, Ok(()));
                        }
                        let end = stream.len().min(at + piece().max(1));
                        held.extend_from_slice(&stream[at..end]);
                        at = end;
                    }
                }
                held.drain(..taken);
            }
        }
    }
}

fn stream(sender: &mut Sender, segments: &[Vec<u8>]) -> Vec<u8> {
    let mut stream = Vec::new();
    for segment in segments {
        let (headers, payload) = segment.split_at(segment.len().min(14));
        frame(sender, headers, payload, &mut stream);
    }
    stream
}

#[test]
fn the_figures_of_rfc_5044() {
    let segment = hex(&std::format!("4143 {} 00000001 {}", "00".repeat(8), "00".repeat(28)));
    // Figure 5: the marker in front.
    let mut sender = Sender::new(&agreed(true, true), 1460);
    let wire = stream(&mut sender, core::slice::from_ref(&segment));
    assert_eq!(wire[..8], hex("00000000 002a4143"));
    assert_eq!(wire[48..], hex("52239983"));
    assert_eq!(sender.position(), 52);

    // Figure 6: the marker inside, after 0x14 bytes.
    let filler = vec![0; 482];
    let mut sender = Sender::new(&agreed(true, true), 1460);
    let first = stream(&mut sender, core::slice::from_ref(&filler));
    assert_eq!(first.len(), 512 - 0x14);
    let next = hex(&std::format!("4143 {} 00000002 {}", "00".repeat(8), "00".repeat(28)));
    let second = stream(&mut sender, core::slice::from_ref(&next));
    assert_eq!(second[0x10..0x1c], hex("00000000 00000014 00000000")[..]);
    assert_eq!(second[48..], hex("84925898"));
    let mut receiver = Receiver::new(&agreed(true, true), WHOLE_ONLY);
    let (segments, end) = receive(&mut receiver, &[first, second].concat(), || 1);
    assert_eq!((segments, end), (vec![filler, next], Ok(())));
}

#[test]
fn without_crcs_the_field_is_there_and_ignored() {
    let mut wire = stream(&mut Sender::new(&agreed(false, false), 1460), &[hex("aabbcc")]);
    assert_eq!(wire, hex("0003 aabbcc 000000 00000000"));
    wire[11] = 0x77;
    let (segments, end) = receive(&mut Receiver::new(&agreed(false, false), WHOLE_ONLY), &wire, || 3);
    assert_eq!((segments, end), (vec![hex("aabbcc")], Ok(())));
}

#[test]
fn an_fpdu_fits_into_a_tcp_segment_wherever_it_starts() {
    assert_eq!([536, 1460, 8960, 64776].map(|emss| mulpdu(emss, false)), [530, 1454, 8954, 64768]);
    assert_eq!([536, 1460, 8960, 1 << 20].map(|emss| mulpdu(emss, true)), [522, 1442, 8882, 64768]);
    assert_eq!([0, 100, 134].map(|emss| mulpdu(emss, false)), [128; 3]);
    // RFC 5044, section 3: the longest segment.
    assert_eq!([65535, 1 << 20].map(|emss| mulpdu(emss, false)), [64768; 2]);
    for emss in (200..1600).chain([8960, 64776, 65535, 1 << 17]) {
        for (markers, before) in [(false, 0), (true, 0), (true, 8), (true, 400), (true, 498)] {
            let mut sender = Sender::new(&agreed(markers, false), emss);
            let mut wire = Vec::new();
            frame(&mut sender, &vec![1; before], &[], &mut wire);
            let start = wire.len();
            frame(&mut sender, &vec![1; mulpdu(emss, markers).into()], &[], &mut wire);
            let len = wire.len() - start;
            assert!(len <= emss, "{len} bytes for {emss}, markers: {markers}, {before} before");
            let longest = if markers { 12 + 4 } else { 8 };
            assert!(
                emss > 64776 || len + longest > emss || markers && emss == 64776,
                "{len} bytes for {emss}: one more would fit"
            );
        }
    }
    for markers in [false, true] {
        let mut sender = Sender::new(&agreed(markers, false), 1 << 20);
        let mut sink = Vec::new();
        let long = vec![0; 64769];
        let mut gather = Gather { stream: &mut sink, payload: &long };
        assert_eq!(sender.frame(&[], &long[..], 0..64769, &mut gather), Err(TooLong));
        assert_eq!((sink.len(), sender.position()), (0, 0));
    }
}

#[test]
fn segments_come_through_however_the_stream_is_cut() {
    seeds(400, |seed| {
        let mut random = Random::new(seed);
        let terms = agreed(random.one_in(2), random.one_in(2));
        let early_from = [0, 1, 100, 5000, WHOLE_ONLY][random.below(5)];
        let longest = [40, 600, 9000][random.below(3)];
        let segments: Vec<Vec<u8>> = (0..30)
            .map(|_| {
                let len = random.below(longest);
                random.bytes(len)
            })
            .collect();
        let wire = stream(&mut Sender::new(&terms, 1460), &segments);
        let mut receiver = Receiver::new(&terms, early_from);
        let most = [1, 5, 700, 20000][random.below(4)];
        let (got, end) = receive(&mut receiver, &wire, || 1 + random.below(most));
        assert_eq!(end, Ok(()));
        assert!(got == segments, "{} of {} segments", got.len(), segments.len());
        assert!(receiver.is_between());
        assert_eq!(receiver.position(), wire.len() as u64);
    });
}

#[test]
fn the_length_of_an_fpdu_is_known_from_its_first_bytes() {
    seeds(200, |seed| {
        let mut random = Random::new(seed);
        let terms = agreed(random.one_in(2), true);
        let (mut sender, mut receiver) = (Sender::new(&terms, 1460), Receiver::new(&terms, WHOLE_ONLY));
        for _ in 0..20 {
            let len = random.below(2000);
            let wire = stream(&mut sender, &[random.bytes(len)]);
            let known = (0..wire.len()).find_map(|have| receiver.fpdu_len(&wire[..have]));
            assert_eq!(known, Some(wire.len()));
            assert_eq!(receiver.next(&wire[..wire.len() - 1]), Ok((0, None)), "nothing is taken before it is whole");
            let mut rest = &wire[..];
            while !rest.is_empty() {
                let (taken, _) = receiver.next(rest).expect("valid");
                rest = &rest[taken..];
                assert!(rest.is_empty() || receiver.end() == Some(sender.position()), "{:?}", receiver.end());
            }
        }
    });
}

#[test]
fn payload_is_read_single_copy_to_its_place() {
    for markers in [false, true] {
        let terms = agreed(markers, true);
        let segment: Vec<u8> = (0..2000_u32).map(|at| at as u8).collect();
        let mut wire = stream(&mut Sender::new(&terms, 9000), core::slice::from_ref(&segment));
        let run = |wire: &[u8]| {
            let (mut receiver, mut place, mut at) = (Receiver::new(&terms, 1), Vec::new(), 0);
            loop {
                let direct = receiver.direct();
                if direct > 0 {
                    let bytes = &wire[at..at + direct];
                    receiver.pass(direct, |crc| crc.bytes(bytes));
                    place.extend_from_slice(bytes);
                    at += direct;
                    continue;
                }
                // A look at one byte more after the other, until something can be taken.
                let (taken, event) = (1..)
                    .find_map(|have| match receiver.next(&wire[at..at + have]) {
                        Ok((0, None)) => None,
                        other => Some(other),
                    })
                    .expect("progress")?;
                at += taken;
                if event == Some(Event::End) {
                    return Ok(place);
                }
            }
        };
        assert_eq!(run(&wire), Ok(segment));
        wire[700] ^= 4;
        assert_eq!(run(&wire), Err(Fault::Crc));
    }
}

#[test]
fn a_wrong_byte_is_found_wherever_it_is() {
    for early_from in [0, WHOLE_ONLY] {
        for markers in [false, true] {
            let segments = [vec![1; 300], vec![2; 500], vec![3; 21]];
            let wire = stream(&mut Sender::new(&agreed(markers, true), 1460), &segments);
            for at in 0..wire.len() {
                // The two reserved bytes of a marker are under the CRC, too.
                let mut wrong = wire.clone();
                wrong[at] ^= 1 << (at % 8);
                let mut receiver = Receiver::new(&agreed(markers, true), early_from);
                let (got, end) = receive(&mut receiver, &wrong, || 64);
                assert!(got.len() < 3 && got == segments[..got.len()], "byte {at} of {}", wire.len());
                assert!(end.is_err() || !receiver.is_between() || receiver.position() < wire.len() as u64);
            }
        }
    }
}

#[test]
fn markers_that_disagree_with_lengths() {
    let terms = agreed(true, false);
    let wire = stream(&mut Sender::new(&terms, 1460), &[vec![1; 300], vec![2; 900]]);
    let run = |wire: &[u8]| receive(&mut Receiver::new(&terms, WHOLE_ONLY), wire, || 1460).1;
    assert_eq!(run(&wire), Ok(()));
    for (at, value) in [(3, 4), (515, wire[515] ^ 4), (514, 1)] {
        let mut wrong = wire.clone();
        wrong[at] = value;
        assert_eq!(run(&wrong), Err(Fault::Marker), "byte {at}");
    }
    // RFC 5044, section 4.2: low bits and reserved bytes are ignored.
    for at in [512, 513] {
        let mut other = wire.clone();
        other[at] = 0xff;
        other[515] ^= 3;
        assert_eq!(run(&other), Ok(()), "byte {at}");
    }
    let mut shorter = wire;
    shorter[5] ^= 4;
    assert_eq!(run(&shorter), Err(Fault::Marker), "a length that lies");
}

#[test]
fn early_segments_are_searched() {
    seeds(300, |seed| {
        let mut random = Random::new(seed);
        let terms = agreed(true, random.one_in(2));
        let segments: Vec<Vec<u8>> = (0..12)
            .map(|_| {
                let len = 20 + random.below(1400);
                random.bytes(len)
            })
            .collect();
        let mut sender = Sender::new(&terms, 1460);
        let (mut wire, mut edges) = (Vec::new(), vec![0]);
        for segment in &segments {
            frame(&mut sender, segment, &[], &mut wire);
            edges.push(sender.position());
        }
        let receiver = Receiver::new(&terms, WHOLE_ONLY);
        for _ in 0..20 {
            let from = random.below(wire.len());
            let to = wire.len().min(from + 1 + random.below(4000));
            let part = &wire[from..to];
            for found in Search::new(&receiver, from as u64, part, []) {
                let index = edges.iter().position(|edge| *edge == found.begin).expect("where an FPDU starts");
                assert_eq!(found.end, edges[index + 1]);
                let search = Search::new(&receiver, from as u64, part, []);
                let (mut opened, bytes) = search.open(&found).expect("its bytes");
                assert_eq!(receive(&mut opened, bytes, || 100).0, [segments[index].clone()]);
            }
            // All those are found that start behind a marker of this part, or have one inside that is in this part.
            let seen = Search::new(&receiver, from as u64, part, []).count();
            let whole = edges.windows(2).filter(|edge| edge[0] >= from as u64 && edge[1] <= to as u64);
            let marked = whole.clone().find(|edge| edge[0].div_ceil(512) * 512 < edge[1]);
            let expected = whole.filter(|edge| marked.is_some_and(|first| edge[0] >= first[0])).count();
            assert_eq!(seen, expected, "{from}..{to} of {edges:?}");
        }
    });
}

#[test]
fn without_markers_a_known_start_is_needed() {
    let terms = agreed(false, true);
    let mut sender = Sender::new(&terms, 1460);
    let wire = stream(&mut sender, &[vec![1; 100], vec![2; 100], vec![3; 100]]);
    let receiver = Receiver::new(&terms, WHOLE_ONLY);
    assert_eq!(Search::new(&receiver, 108, &wire[108..], []).count(), 0);
    assert_eq!(Search::new(&receiver, 108, &wire[108..], [108]).count(), 2);
    assert_eq!(Search::new(&receiver, 50, &wire[50..], [108]).count(), 2);
    assert_eq!(Search::new(&receiver, 108, &wire[108..], [112]).count(), 0, "what is not valid is not found");
    let mut wrong = wire;
    wrong[230] ^= 1;
    assert_eq!(Search::new(&receiver, 108, &wrong[108..], [108]).count(), 1);
}
