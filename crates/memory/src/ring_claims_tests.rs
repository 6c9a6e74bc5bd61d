//! Lines that a ring claims ahead of their use, and where its slots lie.

use super::*;

/// Lines are taken back only of slots that have been read: a full ring loses no word, wherever in a lap it becomes
/// full.
#[test]
fn what_is_claimed_has_been_read() {
    let (_, mut producer, mut consumer) = ring();
    let none = Payload { prefix: &[], spans: &[] };
    let mut pushed = 0;
    let mut taken = 0;
    let rounds = if cfg!(miri) { 1 } else { 3 * Half::CLAIM };
    for some in 0..rounds {
        while push(&mut producer, &[pushed; 7], &none).is_ok() {
            pushed += 1;
        }
        for left in [some, 0] {
            while taken + u64::from(left) < pushed {
                let record = peek(&mut consumer).expect("a sound ring").expect("a record");
                assert_eq!(record.header(), [taken; 7]);
                let _ = consumer.release();
                taken += 1;
            }
            if left > 0 {
                let _ = consumer.publish();
                while push(&mut producer, &[pushed; 7], &none).is_ok() {
                    pushed += 1;
                }
            }
        }
        assert_eq!(peek(&mut consumer).expect("a sound ring").map(|record| record.len), None);
    }
    assert!(pushed >= u64::from(rounds * Half::SLOTS));
}

/// After eight records of the second lap the lines of the eight slots behind the next are taken back, no fewer and no
/// more.
#[test]
fn eight_lines_are_claimed_at_once() {
    let (half, mut producer, mut consumer) = ring();
    let none = Payload { prefix: &[], spans: &[] };
    for _ in 0..Half::SLOTS {
        assert!(push(&mut producer, &[7; 7], &none).is_ok());
    }
    while peek(&mut consumer).expect("a sound ring").is_some() {
        let _ = consumer.release();
    }
    for _ in 0..8 {
        assert!(push(&mut producer, &[7; 3], &none).is_ok());
    }
    let claimed: Vec<u32> = (0..40).filter(|&slot| half.load_body(Half::line(slot))[6] == 0).collect();
    assert_eq!(claimed, (9..17).collect::<Vec<u32>>());
}

/// Behind a payload eight lines of the bulk area are taken back, if the next one, as long, needs no more.
#[test]
fn eight_lines_of_bulk_are_claimed_at_once() {
    let (half, mut producer, mut consumer) = ring();
    let whole = [0xff; Half::SEGMENT as usize];
    while push(&mut producer, &[1; 3], &Payload { prefix: &whole, spans: &[] }).is_ok() {}
    while peek(&mut consumer).expect("a sound ring").is_some() {
        let _ = consumer.release();
    }
    assert!(push(&mut producer, &[1; 3], &Payload { prefix: &whole[..100], spans: &[] }).is_ok());
    let is_claimed = |grain: &u32| {
        let mut word = [1; 8];
        half.fetch(grain * GRAIN, &mut word);
        word == [0; 8]
    };
    assert_eq!((0..40).filter(is_claimed).collect::<Vec<u32>>(), (2..10).collect::<Vec<u32>>());
}

/// Of the bulk area only what has been read is taken back.
#[test]
fn claimed_bulk_has_been_read() {
    let header = [1; 3];
    let bytes = |n: u64, len: usize| vec![(n % 255) as u8 + 1; len];
    for len in if cfg!(miri) { &[4000][..] } else { &[100, 1000, 4000, 4096, 12_000, 16 * 1024] } {
        let len = *len;
        let (_, mut producer, mut consumer) = ring();
        let mut sent = 0;
        let mut taken = 0;
        for some in 0..if cfg!(miri) { 1 } else { 40 } {
            while push(&mut producer, &header, &Payload { prefix: &bytes(sent, len), spans: &[] }).is_ok() {
                sent += 1;
            }
            while taken + some % 7 < sent {
                let record = peek(&mut consumer).expect("a sound ring").expect("a record");
                assert!(payload(&consumer, &record) == bytes(taken, len), "{len}: {taken} of {sent}");
                let _ = consumer.release();
                taken += 1;
            }
            let _ = consumer.publish();
        }
    }
}

/// The claims are right to the line: with a full area of which so many bytes were read at its beginning, one line is
/// written, and those behind it are claimed if all of them have been read.
#[test]
fn no_line_too_many_is_claimed() {
    for (read, claims) in [(512, 0), (576, 8)] {
        let (half, mut producer, mut consumer) = ring();
        let full = [0xff; Half::SEGMENT as usize];
        let mut send = |len: u32| push(&mut producer, &[1; 3], &Payload { prefix: &full[..len as usize], spans: &[] });
        // The last one fills the area.
        let segments = Half::BULK / Half::SEGMENT - 1;
        assert!((0..=segments).all(|i| send(if i == 0 { read } else { Half::SEGMENT }).is_ok()));
        assert!(send(Half::SEGMENT - read).is_ok());
        assert!(peek(&mut consumer).expect("a sound ring").is_some());
        let _ = consumer.release();
        let _ = consumer.publish();
        assert!(send(64).is_ok());
        let is_claimed = |grain: &u32| {
            let mut word = [1; 8];
            half.fetch(grain * GRAIN, &mut word);
            word == [0; 8]
        };
        assert_eq!(
            (0..Half::BULK / GRAIN).filter(is_claimed).collect::<Vec<u32>>(),
            (1..9).take(claims).collect::<Vec<u32>>()
        );
    }
}

/// Slots that are in use at the same time lie in different sets of a first-level cache of 64 sets.
#[test]
fn slots_in_a_row_do_not_compete() {
    let (half, _, _) = ring();
    let set = |slot: u32| std::ptr::from_ref(half.stamp(Half::line(slot % Half::SLOTS))).addr() / 64 % 64;
    for slot in (0..Half::SLOTS).step_by(if cfg!(miri) { 100 } else { 1 }) {
        let mut sets: Vec<usize> = (slot..slot + 60).map(set).collect();
        sets.sort_unstable();
        assert!(sets.windows(2).all(|pair| pair[0] != pair[1]), "{slot}");
    }
}

/// Every slot has a cache line of its own.
#[test]
fn slots_do_not_overlap() {
    let (half, _, _) = ring();
    let mut places: Vec<usize> = (0..Half::SLOTS).map(|slot| std::ptr::from_ref(half.stamp(slot)).addr()).collect();
    places.sort_unstable();
    assert!(places.windows(2).all(|pair| pair[1] - pair[0] == 64));
}

#[test]
fn halves_do_not_overlap() {
    let heap: Arc<dyn Backing> = Arc::new(Heap::new(Half::WINDOW));
    assert!(Half::new(&heap, 2).is_err() && Half::new(&heap, usize::MAX).is_err());
    let (a, b) = (Half::new(&heap, 0).unwrap(), Half::new(&heap, 1).unwrap());
    let mut to_b = Producer::new(a.clone());
    while push(&mut to_b, &[u64::MAX; 3], &Payload { prefix: &[255; 300], spans: &[] }).is_ok() {}
    let mut nothing = [1; 64];
    b.fetch(0, &mut nothing);
    assert_eq!(nothing, [0; 64]);
    assert_eq!(peek(&mut Consumer::new(b)).unwrap().map(|_| ()), None);
    const { assert!(!Half::WINDOW.is_multiple_of(2 << 20), "see Memfd::open") };
}
