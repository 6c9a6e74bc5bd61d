//! Whole connections: every pair of wishes over a bad network, placement before order, spoilt bytes.

use std::vec::Vec;

use verbs::RKey;
use wire::rdmap::read_request;

use super::memory::Memory;
use super::world::{BASE, Net, Post, SINK, SOURCE, WRITTEN, World};
use super::{Gather, Random, agreed, seeds};
use crate::mpa::{Ready, ReadyKinds, Role, Wishes, start};
use crate::rdmap::{Config, Delivery, End, Stream, Work};

/// Bytes of each region.
const LEN: usize = 200_000;

fn wishes(random: &mut Random, role: Role) -> Wishes {
    let kinds = ReadyKinds { send: true, write: random.one_in(2), read: random.one_in(2) };
    let (revision, depth) = match random.below(4) {
        // Revision 1 negotiates no depth: both programs know the other one's.
        0 => (start::Revision::One, 4),
        _ => (start::Revision::Two, 1 + random.below(4) as u16),
    };
    Wishes {
        revision,
        markers: random.one_in(2),
        crc: random.one_in(2),
        ready: random.one_in(2).then_some(kinds),
        ..Wishes::new(role, depth)
    }
}

/// Posts with places that do not overlap: RFC 5040, section 5.5 leaves the outcome open if they do.
fn posts(random: &mut Random, count: usize, longest: usize) -> Vec<Post> {
    let (mut written, mut read) = (0, 0);
    let post = |_| {
        let len = if random.one_in(5) { 0 } else { random.below(longest) };
        match random.below(3) {
            0 => Post::Send { bytes: random.bytes(len), solicited: random.one_in(2) },
            1 => {
                written += len as u64;
                Post::Write { at: written - len as u64, bytes: random.bytes(len) }
            }
            _ => {
                read += len as u64;
                let source = random.below(LEN - len) as u64;
                Post::Read { sink: read - len as u64, source, len: len as u32 }
            }
        }
    };
    (0..count).map(post).collect()
}

fn world(seed: u64) -> (World, [Vec<Post>; 2]) {
    let mut random = Random::new(seed);
    let emss = [536, 1460, 8960][random.below(3)];
    let net = Net {
        lose: [0, 3, 20][random.below(3)],
        double: [0, 5][random.below(2)],
        delay: [1, 1000, 1_000_000][random.below(3)],
        aligned: random.one_in(2),
        emss,
        shows_early: !random.one_in(4),
        forgets: random.one_in(2),
    };
    let mut config =
        || Config { emss, early_from: [0, 500, u32::MAX][random.below(3)], early_fpdus: [0, 2, 64][random.below(3)] };
    let configs = [config(), config()];
    let mut theirs = wishes(&mut random, Role::Responder);
    theirs.revision = start::Revision::Two;
    let mut ours = wishes(&mut random, Role::Initiator);
    if theirs.ready.is_none()
        && let Some(kinds) = &mut ours.ready
    {
        // A responder without wishes takes WRITE and READ.
        kinds.write |= !kinds.read;
    }
    let posts = [posts(&mut random, 25, 6000), posts(&mut random, 25, 6000)];
    let mut world = World::new([ours, theirs], configs, net, LEN, random);
    for (side, posts) in world.sides.iter_mut().zip(&posts) {
        side.todo.extend(posts.iter().cloned());
        side.memory.receives.extend([6000; 26]);
    }
    (world, posts)
}

/// What the peer of a side that posts this sees, without its own READs.
fn expected(posts: &[Post], ready: Option<Ready>) -> Vec<(Delivery, Vec<u8>)> {
    let send = |bytes: &[u8], solicited| {
        (Delivery::Send { len: bytes.len() as u32, solicited, invalidated: None }, bytes.to_vec())
    };
    let first = match ready {
        Some(Ready::Send) => Some(send(&[], false)),
        _ => None,
    };
    let rest = posts.iter().filter_map(|post| match post {
        Post::Send { bytes, solicited } => Some(send(bytes, *solicited)),
        Post::Write { at, bytes } => {
            let end = BASE + at + bytes.len() as u64;
            Some((Delivery::Write { stag: RKey(WRITTEN), end }, Vec::new()))
        }
        Post::Read { .. } => None,
    });
    first.into_iter().chain(rest).collect()
}

/// SENDs and WRITEs that were delivered, but for the WRITE that says "ready to receive".
fn delivered(memory: &Memory) -> Vec<(Delivery, Vec<u8>)> {
    let ours = |delivery: &Delivery| match delivery {
        Delivery::Send { .. } => true,
        Delivery::Write { stag, .. } => *stag == RKey(WRITTEN),
        _ => false,
    };
    memory.delivered.iter().filter(|(delivery, _)| ours(delivery)).cloned().collect()
}

#[test]
fn every_pair_of_wishes_over_a_bad_network() {
    seeds(200, |seed| {
        let (mut world, posts) = world(seed);
        world.run();
        for at in 0..2 {
            let (side, peer) = (&world.sides[at], &world.sides[1 - at]);
            assert_eq!(side.stream().end(), None);
            assert!(side.is_done(), "side {at}: {} of its posts are left", side.todo.len());
            let ready = peer.agreed.expect("agreed").ready;
            assert!(delivered(&side.memory) == expected(&posts[1 - at], ready), "deliveries at side {at}");
            let mut written = std::vec![0; LEN];
            for post in &posts[1 - at] {
                if let Post::Write { at, bytes } = post {
                    written[*at as usize..*at as usize + bytes.len()].copy_from_slice(bytes);
                }
            }
            assert!(side.memory.bytes(WRITTEN) == written, "what was written at side {at}");
            let reads = side.memory.deliveries().iter().filter(|delivery| **delivery == Delivery::Read).count();
            let mut posted = 0;
            for post in &posts[at] {
                if let Post::Read { sink, source, len } = post {
                    posted += 1;
                    let got = &side.memory.bytes(SINK)[*sink as usize..][..*len as usize];
                    assert!(got == &peer.memory.bytes(SOURCE)[*source as usize..][..*len as usize], "a READ");
                }
            }
            assert_eq!(reads, posted);
        }
        for side in &mut world.sides {
            side.stream_mut().expect("open").closed(0);
            assert_eq!(side.stream().end(), Some(&End::Closed));
        }
    });
}

#[test]
fn a_spoilt_byte_ends_the_connection_and_nothing_wrong_is_delivered() {
    seeds(200, |seed| {
        let (mut world, posts) = world(seed);
        // The frames at the start have no CRC.
        world.spoil = Some(6 + seed as usize % 50);
        world.run();
        let [Some(agreed), Some(_)] = [world.sides[0].agreed, world.sides[1].agreed] else { return };
        if !agreed.crc {
            return;
        }
        let (mut faults, mut told) = (0, 0);
        for at in 0..2 {
            let side = &mut world.sides[at];
            let Some(stream) = side.stream_mut() else { return };
            match stream.end() {
                Some(End::Fault(_)) => faults += 1,
                Some(End::Terminated(_)) => told += 1,
                _ => {}
            }
            let ready = world.sides[1 - at].agreed.and_then(|agreed| agreed.ready);
            let (got, all) = (delivered(&world.sides[at].memory), expected(&posts[1 - at], ready));
            assert!(got == all[..got.len()], "side {at}");
        }
        // A length that has grown is waited for, and the other side may have been told before it had an FPDU.
        assert!(faults <= 1 && told <= faults, "{faults} faults, {told} told");
    });
}

#[test]
fn a_spoilt_byte_without_crcs_does_no_harm() {
    seeds(120, |seed| {
        let (mut world, _) = world(seed);
        world.spoil = Some(1 + seed as usize % 60);
        let outcome = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| world.run()));
        // The one thing that may happen to a whole connection is that it waits for what does not come.
        if let Err(e) = outcome {
            let text = e.downcast_ref::<&str>().copied().unwrap_or_default();
            assert_eq!(text, "a side has waited too long");
        }
    });
}

/// A WRITE of 100 segments, of which one is held back.
#[test]
fn placement_comes_before_order() {
    for (markers, crc) in [(true, true), (true, false), (false, true)] {
        for held in [1, 42, 98, 99] {
            let terms = agreed(markers, crc);
            let config = Config { early_fpdus: 128, ..Config::new(1460) };
            let (mut sends, mut receives) = (Stream::new(&terms, &config, 0), Stream::new(&terms, &config, 0));
            let segment_len = if markers { 1442 } else { 1454 } - 14;
            let data: Vec<u8> = (0..100 * segment_len as u32).map(|at| (at % 251 + 1) as u8).collect();
            let mut memory = Memory::new(0x77, 0, data.len());
            sends.start(Work::Write { stag: RKey(0x77), offset: 0, len: data.len() as u32 }).expect("may be sent");
            let mut segments = Vec::new();
            loop {
                let (from, mut stream) = (sends.sent(), Vec::new());
                let last = sends.send(&data[..], &mut Gather { stream: &mut stream, payload: &data });
                assert!(stream.len() <= 1460);
                segments.push((from, stream));
                if last == Some(true) {
                    break;
                }
            }
            assert_eq!(segments.len(), 100);
            let late = segments.remove(held);
            // The first ones in order, then all behind the gap. Without markers nothing says where an FPDU starts
            // there.
            let mut rest = segments.split_off(held);
            if markers {
                rest.reverse();
            }
            for (from, bytes) in segments.iter().chain(&rest) {
                receives.input(*from, bytes, &mut memory);
            }
            assert_eq!(receives.position(), late.0);
            assert_eq!(memory.delivered, []);
            let hole = held * segment_len..(held + 1) * segment_len;
            if markers {
                for (at, (byte, wanted)) in memory.bytes(0x77).iter().zip(&data).enumerate() {
                    assert_eq!(*byte, if hole.contains(&at) { 0 } else { *wanted }, "byte {at} of {held}");
                }
                assert_eq!(memory.placed, 99 * segment_len);
            } else {
                assert_eq!(memory.placed, held * segment_len, "nothing is known of what is behind the gap");
                continue;
            }
            receives.input(late.0, &late.1, &mut memory);
            assert_eq!(memory.deliveries(), [Delivery::Write { stag: RKey(0x77), end: data.len() as u64 }]);
            assert_eq!((memory.bytes(0x77), memory.placed), (&data[..], data.len()), "once each");
            assert_eq!(receives.position(), sends.sent(), "nothing is wanted again");
        }
    }
}

/// An answer to two READs of which the first segment is held back.
#[test]
fn answers_to_reads_are_placed_early_where_the_reads_want_them() {
    let terms = agreed(true, true);
    let config = Config::new(600);
    let (mut asks, mut answers) = (Stream::new(&terms, &config, 0), Stream::new(&terms, &config, 0));
    let mut memory = Memory::new(SINK, BASE, 3000);
    let mut source = Memory::new(SOURCE, BASE, 3000);
    let (mut requests, mut stream, mut places) = (Vec::new(), Vec::new(), Vec::new());
    for at in [0, 1000] {
        let request = read_request::Repr {
            sink_stag: RKey(SINK),
            sink_offset: BASE + at,
            size: 1000,
            source_stag: RKey(SOURCE),
            source_offset: BASE,
        };
        asks.start(Work::Read(request)).expect("may be sent");
        asks.send(&[][..], &mut Gather { stream: &mut requests, payload: &[] });
    }
    answers.input(0, &requests, &mut source);
    // The second answer is for a place that no READ has named.
    for (delivery, sink) in source.deliveries().into_iter().zip([BASE, BASE + 1500]) {
        let Delivery::Request { request, .. } = delivery else { panic!("{delivery:?}") };
        answers.start(Work::Response(read_request::Repr { sink_offset: sink, ..request })).expect("was asked");
        let mut last = Some(false);
        while last == Some(false) {
            places.push(stream.len());
            last = answers.send(&[3; 1000][..], &mut Gather { stream: &mut stream, payload: &[3; 1000] });
        }
    }
    assert_eq!(places.len(), 4);
    asks.input(places[1] as u64, &stream[places[1]..], &mut memory);
    let rest = memory.placed;
    assert!((1..1000).contains(&rest), "{rest}: what the first READ wants, and no more");
    assert_eq!(&memory.bytes(SINK)[1000 - rest..1000], &[3; 1000][..rest]);
    assert_eq!(memory.delivered, []);
    asks.input(0, &stream, &mut memory);
    assert_eq!(memory.deliveries(), [Delivery::Read]);
    assert!(matches!(asks.end(), Some(End::Fault(_))));
    assert_eq!(memory.placed, 1000);
}

#[test]
fn the_end_of_a_known_fpdu_finds_the_next_one_without_markers() {
    let terms = agreed(false, true);
    let config = Config { early_from: 0, ..Config::new(1460) };
    let (mut sends, mut receives) = (Stream::new(&terms, &config, 0), Stream::new(&terms, &config, 0));
    let data = std::vec![5; 4000];
    let mut memory = Memory::new(0x77, 0, 4000);
    sends.start(Work::Write { stag: RKey(0x77), offset: 0, len: 4000 }).expect("may be sent");
    let mut stream = Vec::new();
    while sends.send(&data[..], &mut Gather { stream: &mut stream, payload: &data }) == Some(false) {}
    // Half of the first FPDU is there, so its end is known.
    receives.input(0, &stream[..700], &mut memory);
    receives.input(1460, &stream[1460..], &mut memory);
    let placed = memory.placed;
    assert!(placed > 2500, "{placed}");
    assert_eq!(memory.delivered, []);
    receives.input(700, &stream[700..1460], &mut memory);
    assert_eq!((memory.placed, memory.delivered.len()), (4000, 1));
}

#[test]
fn early_fpdus_are_bounded_and_errors_wait_for_their_turn() {
    let terms = agreed(true, true);
    let config = Config { early_fpdus: 3, ..Config::new(600) };
    let (mut sends, mut receives) = (Stream::new(&terms, &config, 0), Stream::new(&terms, &config, 0));
    let mut memory = Memory::new(0x77, 0, 3000);
    let mut stream = Vec::new();
    let mut places = Vec::new();
    for at in 0..6_u64 {
        // The third one goes to a region that is not there.
        let stag = RKey(if at == 3 { 0x78 } else { 0x77 });
        sends.start(Work::Write { stag, offset: at * 500, len: 500 }).expect("may be sent");
        places.push(stream.len());
        sends.send(&[9; 500][..], &mut Gather { stream: &mut stream, payload: &[9; 500] });
    }
    receives.input(places[1] as u64, &stream[places[1]..], &mut memory);
    assert_eq!((memory.placed, receives.placed().count()), (1500, 3));
    assert_eq!(receives.end(), None);
    receives.input(0, &stream, &mut memory);
    assert_eq!((memory.placed, memory.delivered.len()), (2000, 3), "not one byte twice");
    assert!(matches!(receives.end(), Some(End::Fault(_))));
    assert_eq!(receives.placed().count(), 0);
}
