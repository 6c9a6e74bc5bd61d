//! The ring over the heap; these run under miri as well (`cargo +nightly miri test -p softrnic-memory ring`).

#[path = "ring_claims_tests.rs"]
mod claims;

use std::collections::VecDeque;
use std::sync::Arc;

use wire::Span;

use super::*;
use crate::Half;
use crate::backing::{Backing, Heap};

/// Fewer rounds where each costs much.
const ROUNDS: u64 = if cfg!(miri) { 60 } else { 20_000 };

fn ring() -> (Half, Producer<Half>, Consumer<Half>) {
    let heap: Arc<dyn Backing> = Arc::new(Heap::new(Half::BYTES));
    let half = Half::new(&heap, 0).unwrap();
    (half.clone(), Producer::new(half.clone()), Consumer::new(half))
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 8) % n
    }
}

fn bytes(n: u64, len: usize) -> Vec<u8> {
    let mut random = Random(n.wrapping_mul(77) | 1);
    (0..len).map(|_| random.next() as u8).collect()
}

/// [`Producer::push`] with a header of any length.
fn push(producer: &mut Producer<Half>, header: &[u64], payload: &Payload<'_>) -> Result<u32, PushError> {
    let mut words = [0xdead; 7];
    for (to, from) in words.iter_mut().zip(header) {
        *to = *from;
    }
    producer.push(&words, header.len(), payload)
}

/// Short records are like others, and end where there is no room.
#[test]
fn short_records() {
    let (_, mut producer, mut consumer) = ring();
    let mut short = 0;
    for n in 0..3 * u64::from(Half::SLOTS) {
        let (four, len) = (n % 3 == 0, n as u32 % 9);
        let used = 3 + usize::from(four);
        let words: [u64; 7] = std::array::from_fn(|i| if i <= used { n << 8 | i as u64 } else { 0 });
        let before = producer.count();
        if n % 2 == 0 && producer.push_short(&std::array::from_fn(|i| words[i]), four, len) {
            short += 1;
        } else {
            // The other half; and where the consumer's count must be looked at again.
            let data = words[used].to_ne_bytes();
            let payload = Payload { prefix: &data[..len as usize], spans: &[] };
            assert_eq!(producer.push(&words, used, &payload), Ok(len));
        }
        assert_eq!(producer.count(), before + 1);
        if n % 5 < 2 {
            let found = consumer.peek_short().unwrap();
            assert_eq!((found.four, found.len, &found.words[..used]), (four, len, &words[..used]));
            assert_eq!(found.words[used].to_ne_bytes()[..len as usize], words[used].to_ne_bytes()[..len as usize]);
        }
        if n % 5 == 0 {
            let _ = consumer.release_short();
            continue;
        }
        let record = peek(&mut consumer).unwrap().unwrap();
        assert_eq!((record.header(), record.len), (&words[..used], len));
        assert_eq!(payload(&consumer, &record), words[used].to_ne_bytes()[..len as usize]);
        assert!(consumer.peek_short().is_none(), "it is peeked already");
        let _ = consumer.release();
    }
    assert!(short > Half::SLOTS, "{short} records were short");
    while producer.push(&[1; 7], 3, &Payload::default()).is_ok() {}
    assert!(!producer.push_short(&[1; 5], false, 8));
    assert_eq!(producer.count() - consumer.count(), u64::from(Half::SLOTS), "it is full");
    while peek(&mut consumer).unwrap().is_some() {
        let _ = consumer.release();
    }
    assert!(producer.push_short(&[1; 5], false, 8), "it finds the room that the consumer has made");
    assert!(!producer.push_short(&[1; 5], false, 9), "that is not short");
}

/// A record that is not short stays for [`Consumer::peek`]. A consumer that takes only short ones makes room too.
#[test]
fn not_all_records_are_short() {
    let (_, mut producer, mut consumer) = ring();
    assert!(consumer.peek_short().is_none(), "nothing is there");
    for (words, len) in [(3, 9), (4, 9), (3, 33), (5, 0), (7, 0)] {
        push(&mut producer, &vec![6; words], &Payload { prefix: &bytes(1, len), spans: &[] }).unwrap();
        assert!(consumer.peek_short().is_none(), "{words} {len}");
        assert_eq!(peek(&mut consumer).unwrap().unwrap().len, len as u32);
        let _ = consumer.release();
    }
    for n in 0..5 * u64::from(Half::SLOTS) {
        assert!(producer.push_short(&[n; 5], false, 8), "{n}");
        assert_eq!(consumer.peek_short().unwrap().words[..4], [n; 4]);
        assert!(!consumer.release_short(), "nobody waits");
    }
    while producer.push(&[1; 7], 3, &Payload::default()).is_ok() {}
    let rings = (0..Half::SLOTS).filter(|_| consumer.peek_short().is_some() && consumer.release_short()).count();
    assert_eq!(rings, 1, "who waits for room is rung");
}

#[test]
fn who_looks_for_room_himself_is_not_rung() {
    let (_, mut producer, mut consumer) = ring();
    let mut rings_when_full = |calls, asked: fn(&mut Producer<Half>) -> bool| {
        while producer.push(&[1; 7], 3, &Payload::default()).is_ok() {}
        producer.call_for_room(calls);
        assert!(!asked(&mut producer));
        let mut rings = 0;
        while peek(&mut consumer).unwrap().is_some() {
            rings += u32::from(consumer.release());
        }
        assert_eq!(producer.has_room(), Ok(true), "he finds it");
        rings + u32::from(consumer.settle())
    };
    let again = |producer: &mut Producer<Half>| producer.push(&[1; 7], 3, &Payload::default()).is_ok();
    let look = |producer: &mut Producer<Half>| producer.has_room() == Ok(true);
    // This wait is from the push before, which was the first in vain.
    assert_eq!(rings_when_full(false, again), 1);
    assert_eq!(rings_when_full(false, again), 0);
    assert_eq!(rings_when_full(false, look), 0);
    assert_eq!(rings_when_full(true, look), 1, "who goes to sleep looks once more");
}

/// [`Consumer::peek`], copied.
fn peek(consumer: &mut Consumer<Half>) -> Result<Option<Record>, Broken> {
    consumer.peek().map(|record| record.copied())
}

fn span(bytes: &mut [u8]) -> Span {
    Span { addr: bytes.as_mut_ptr().expose_provenance() as u64, len: bytes.len() as u32, guarded: false }
}

/// The payload of a record.
fn payload(consumer: &Consumer<Half>, record: &Record) -> Vec<u8> {
    let len = record.len as usize;
    match record.place {
        Place::Body(at) => {
            let all: Vec<u8> = record.body.iter().flat_map(|w| w.to_ne_bytes()).collect();
            all[at as usize..at as usize + len].to_vec()
        }
        Place::Bulk(at) => {
            let mut out = vec![0; len];
            consumer.memory().fetch(at, &mut out);
            out
        }
    }
}

fn header(random: &mut Random, n: u64) -> Vec<u64> {
    let words = [3, 4, 5, 7][random.below(4) as usize];
    (0..words).map(|i| n << 8 | i).collect()
}

fn some_len(random: &mut Random) -> usize {
    match random.below(if cfg!(miri) { 2 } else { 4 }) {
        0 => 0,
        1 => random.below(80) as usize,
        2 => random.below(3000) as usize,
        _ => random.below(u64::from(Half::SEGMENT) + 1) as usize,
    }
}

#[test]
fn what_goes_in_comes_out_in_order() {
    let (_, mut producer, mut consumer) = ring();
    let mut random = Random(1);
    let mut inside: VecDeque<(Vec<u64>, Vec<u8>)> = VecDeque::new();
    let (mut full, mut taken) = (0, 0);
    for n in 0..ROUNDS {
        // Phases in which the ring fills, and phases in which it empties.
        if random.below(4) < if n / 2000 % 2 == 0 { 3 } else { 1 } {
            let (head, data) = (header(&mut random, n), some_len(&mut random));
            let mut data = bytes(n, data);
            let cut = random.below(data.len() as u64 + 1) as usize;
            let result = {
                let (prefix, rest) = data.split_at_mut(cut);
                let (a, b) = rest.split_at_mut(rest.len() / 2);
                push(&mut producer, &head, &Payload { prefix, spans: &[span(a), span(b)] })
            };
            match result {
                Ok(len) => {
                    assert_eq!(len as usize, data.len());
                    inside.push_back((head, data));
                }
                Err(e) => {
                    assert_eq!(e, PushError::Full);
                    full += 1;
                    // Not without reason: no slot, or little of the bulk area.
                    let bulk: usize = inside.iter().map(|(_, d)| d.len().div_ceil(64) * 64).sum();
                    let unseen = Half::SLOTS as usize / 4;
                    assert!(
                        inside.len() + unseen >= Half::SLOTS as usize
                            || bulk + 64 * 1024 + 32 * 1024 + unseen * 64 > 200 * 1024,
                        "{} records, {bulk} bytes",
                        inside.len()
                    );
                }
            }
        } else {
            assert_eq!(consumer.ready(), !inside.is_empty());
            let record = peek(&mut consumer).unwrap();
            assert_eq!(record.is_some(), !inside.is_empty());
            if let Some(record) = record {
                let (head, data) = inside.pop_front().unwrap();
                assert_eq!(record.header(), head);
                assert!(payload(&consumer, &record) == data, "payload of record {taken}");
                let again = peek(&mut consumer).unwrap().unwrap();
                assert_eq!(again.body, record.body);
                let _ = consumer.release();
                taken += 1;
                assert_eq!(consumer.count(), taken);
            }
        }
    }
    if !cfg!(miri) {
        assert!(full > 100, "{full}");
    }
}

#[test]
fn a_small_message_is_one_cache_line() {
    let (half, mut producer, mut consumer) = ring();
    for (words, room) in [(3, 32), (4, 24), (5, 16), (7, 0)] {
        let head = vec![5; words];
        for (len, inside) in [(room, true), (room + 1, false)] {
            push(&mut producer, &head, &Payload { prefix: &bytes(1, len), spans: &[] }).unwrap();
            let record = peek(&mut consumer).unwrap().unwrap();
            assert_eq!(matches!(record.place, Place::Body(_)), inside);
            assert_eq!(payload(&consumer, &record), bytes(1, len));
            let _ = consumer.release();
        }
    }
    let line = |slot| half.stamp(Half::line(slot)) as *const AtomicU64 as usize;
    assert_eq!(line(0) % 64, 0);
    assert!(line(1).abs_diff(line(0)) >= 4096, "neighbours in one page are fetched together");
}

#[test]
fn what_does_not_fit_the_rules_is_refused() {
    let (_, mut producer, mut consumer) = ring();
    let long = vec![0; Half::SEGMENT as usize + 1];
    assert_eq!(push(&mut producer, &[0; 3], &Payload { prefix: &long, spans: &[] }), Err(PushError::Length));
    let endless = [Span { addr: 0, len: u32::MAX, guarded: false }; 3];
    assert_eq!(push(&mut producer, &[0; 3], &Payload { prefix: &[], spans: &endless }), Err(PushError::Length));
    for words in [0, 1, 2, 6, 8] {
        assert_eq!(push(&mut producer, &vec![0; words], &Payload::default()), Err(PushError::Length));
    }
    assert_eq!(peek(&mut consumer).unwrap().map(|r| r.len), None);
    assert!(!consumer.release(), "nothing was peeked");
    assert_eq!(consumer.count(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "system calls")]
fn a_payload_that_is_not_there_leaves_no_trace() {
    let (_, mut producer, mut consumer) = ring();
    for len in [8, 5000] {
        let nowhere = [Span { addr: 4096, len, guarded: true }];
        assert_eq!(push(&mut producer, &[1; 3], &Payload { prefix: b"x", spans: &nowhere }), Err(PushError::Fault));
    }
    assert!(!consumer.ready());
    push(&mut producer, &[2; 3], &Payload { prefix: &bytes(9, 5000), spans: &[] }).unwrap();
    let record = peek(&mut consumer).unwrap().unwrap();
    assert_eq!((record.header(), record.place), (&[2; 3][..], Place::Bulk(0)));
}

/// Bytes of the bulk area are free when the last record that has some there was taken, whatever follows it.
#[test]
fn the_bulk_area_is_free_when_all_of_it_was_taken() {
    let (_, mut producer, mut consumer) = ring();
    let long = [7; 3000];
    // The area is gone through twice.
    for n in 0..if cfg!(miri) { 10 } else { u64::from(Half::BULK) / 2000 } {
        for (payload, times) in [(&long[..], 1 + n % 2), (&[], n % 3)] {
            for _ in 0..times {
                push(&mut producer, &[n, 0, 0], &Payload { prefix: payload, spans: &[] }).unwrap();
            }
        }
        assert!(producer.bulk_left() < Half::BULK);
        while peek(&mut consumer).unwrap().is_some() {
            let _ = consumer.release();
        }
        let _ = consumer.settle();
        assert_eq!(producer.bulk_left(), Half::BULK);
        producer.refresh().unwrap();
        assert_eq!((producer.tail, producer.bulk_left(), producer.ends.len()), (producer.head, Half::BULK, 0));
    }
}

/// Sending needs no memory: where the bulk area ends is kept for as many records as there are slots.
#[test]
fn a_full_ring_has_not_grown() {
    let (_, mut producer, mut consumer) = ring();
    let room = producer.ends.capacity();
    let long = [7; 100];
    for _ in 0..if cfg!(miri) { 1 } else { 3 } {
        let mut pushed = 0;
        while push(&mut producer, &[pushed, 0, 0], &Payload { prefix: &long, spans: &[] }).is_ok() {
            pushed += 1;
        }
        assert_eq!(pushed, u64::from(Half::SLOTS));
        assert_eq!((producer.ends.len(), producer.ends.capacity()), (Half::SLOTS as usize, room));
        while peek(&mut consumer).unwrap().is_some() {
            let _ = consumer.release();
        }
        let _ = consumer.settle();
    }
}

#[test]
fn stamps_survive_packing() {
    for lap in [0, 1, u32::MAX] {
        for code in 0..4 {
            for len in [0, 1, 16384, 32767] {
                for grain in [None, Some(0), Some(4095)] {
                    let stamp = Stamp { lap, code, len, grain };
                    assert_eq!(Stamp::unpack(stamp.pack()), stamp);
                }
            }
        }
    }
}

#[test]
fn laps_wrap_and_skip_zero() {
    let (half, mut producer, mut consumer) = ring();
    let count = u64::from(u32::MAX - 1) * u64::from(Half::SLOTS) - 2;
    let late = Position { count, lap: u32::MAX - 1 };
    (producer.at, producer.consumed, consumer.at, consumer.published) = (late, count, late, count);
    (producer.line, consumer.line) = (Half::line(count as u32 % Half::SLOTS), Half::line(count as u32 % Half::SLOTS));
    half.consumed().store(count, Ordering::Relaxed);
    let mut seen = Vec::new();
    for n in 0..if cfg!(miri) { 6 } else { 3000 } {
        push(&mut producer, &[n, 0, 0], &Payload::default()).unwrap();
        assert_eq!(peek(&mut consumer).unwrap().unwrap().header()[0], n);
        let _ = consumer.release();
        seen.push(consumer.at.lap);
    }
    assert!(!seen.contains(&0));
    if !cfg!(miri) {
        seen.dedup();
        assert_eq!(seen, [u32::MAX - 1, u32::MAX, 1, 2]);
    }
}

#[test]
fn a_consumer_that_lies_breaks_the_ring() {
    for lie in [1025, u64::MAX, 1 << 63] {
        let (half, mut producer, _) = ring();
        while push(&mut producer, &[0; 3], &Payload::default()).is_ok() {}
        half.consumed().store(lie, Ordering::Relaxed);
        assert!(!producer.taken(1024));
        assert_eq!(producer.has_room(), Err(Broken));
        assert_eq!(push(&mut producer, &[0; 3], &Payload::default()), Err(PushError::Broken));
        // It stays so, even if the count becomes good again.
        half.consumed().store(10, Ordering::Relaxed);
        assert_eq!(producer.has_room(), Err(Broken));
        assert!(producer.is_broken());
    }
    // A count must not go back.
    let (half, mut producer, _) = ring();
    while push(&mut producer, &[0; 3], &Payload::default()).is_ok() {}
    half.consumed().store(100, Ordering::Relaxed);
    assert_eq!(producer.has_room(), Ok(true));
    while push(&mut producer, &[0; 3], &Payload::default()).is_ok() {}
    half.consumed().store(99, Ordering::Relaxed);
    assert_eq!(producer.has_room(), Err(Broken));
}

#[test]
fn a_producer_that_lies_breaks_the_ring() {
    let good = Stamp { lap: 1, code: 0, len: 0, grain: None };
    for bad in [
        Stamp { len: 33, ..good },
        Stamp { code: 3, len: 1, ..good },
        Stamp { len: 16385, grain: Some(0), ..good },
        Stamp { len: 32767, grain: Some(0), ..good },
        Stamp { len: 65, grain: Some(4095), ..good },
    ] {
        let (half, _, mut consumer) = ring();
        half.stamp(0).store(bad.pack(), Ordering::Relaxed);
        assert!(consumer.peek_short().is_none());
        assert_eq!(peek(&mut consumer).map(|_| ()), Err(Broken), "{bad:?}");
        // It stays so.
        half.stamp(0).store(0, Ordering::Relaxed);
        assert_eq!(peek(&mut consumer).map(|_| ()), Err(Broken));
    }
    for fine in [good, Stamp { len: 32, ..good }, Stamp { len: 64, grain: Some(4095), ..good }] {
        let (half, _, mut consumer) = ring();
        half.stamp(0).store(fine.pack(), Ordering::Relaxed);
        assert_eq!(peek(&mut consumer).unwrap().unwrap().len, fine.len);
    }
}

#[test]
fn copies_stay_within_the_bulk_area() {
    let (half, ..) = ring();
    let mut out = [7; 100];
    half.fetch(Half::BULK - 10, &mut out);
    assert_eq!((out[9], out[10]), (0, 7));
    half.fetch(u32::MAX, &mut out);
    assert_eq!(out[10], 7);
    assert_eq!(half.scatter(Half::BULK - 10, &[span(&mut out)]), Ok(()));
    assert_eq!(half.store_bulk(Half::BULK, &Payload { prefix: &out, spans: &[] }, Stores::Through), Ok(()));
}

#[test]
fn around_the_caches_comes_the_same() {
    let (half, ..) = ring();
    let bytes: Vec<u8> = (0..20_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
    // Spans that begin and end anywhere, and so do their places.
    for (first, second) in [(0, 16384), (1, 1), (63, 1000), (64, 63), (65, 8191), (300, 9), (12_345, 4000)] {
        let mut parts = [bytes[..first].to_vec(), bytes[first..first + second].to_vec()];
        let spans = parts.each_mut().map(|part| span(part));
        for prefix in [&[][..], &[1, 2, 3]] {
            let (mut through, mut around) = (vec![0; 20_000], vec![0; 20_000]);
            for (stores, out) in [(Stores::Through, &mut through), (Stores::Around, &mut around)] {
                half.store_bulk(0, &Payload { prefix: &vec![stores as u8; 20_000], spans: &[] }, Stores::Through)
                    .unwrap();
                half.store_bulk(64, &Payload { prefix, spans: &spans }, stores).unwrap();
                half.fetch(64, &mut out[..prefix.len() + first + second]);
            }
            assert_eq!(through, around, "{first} {second}");
            assert_eq!(around[prefix.len()..][..first + second], bytes[..first + second]);
        }
    }
}

/// A window's half on which plain stores take long.
struct Slow {
    half: Half,
    now: std::cell::Cell<u64>,
    around: std::cell::Cell<u32>,
}

impl RingMemory for Slow {
    const SLOTS: u32 = Half::SLOTS;
    const BULK: u32 = Half::BULK;
    const SEGMENT: u32 = Half::SEGMENT;
    fn line(slot: u32) -> u32 {
        Half::line(slot)
    }
    fn stamp(&self, line: u32) -> &AtomicU64 {
        self.half.stamp(line)
    }
    fn consumed(&self) -> &AtomicU64 {
        self.half.consumed()
    }
    fn sleeping(&self) -> &AtomicU32 {
        self.half.sleeping()
    }
    fn waiting(&self) -> &AtomicU32 {
        self.half.waiting()
    }
    fn load_body(&self, line: u32) -> [u64; 7] {
        self.half.load_body(line)
    }
    fn store_body(&self, line: u32, first: usize, words: &[u64]) {
        self.half.store_body(line, first, words);
    }
    fn nanos(&self) -> u64 {
        self.now.get()
    }
    fn store_bulk(&self, at: u32, payload: &Payload<'_>, stores: Stores) -> Result<(), Fault> {
        self.now.set(self.now.get() + if stores == Stores::Through { 7600 } else { 1000 });
        self.around.set(self.around.get() + u32::from(stores == Stores::Around));
        self.half.store_bulk(at, payload, stores)
    }
}

#[test]
#[cfg_attr(miri, ignore = "moves megabytes")]
fn a_ring_changes_its_way_and_loses_nothing() {
    let (half, _, mut consumer) = ring();
    let slow = Slow { half: half.clone(), now: std::cell::Cell::new(1), around: std::cell::Cell::new(0) };
    let mut producer = Producer::new(slow);
    let mut out = vec![0; Half::SEGMENT as usize];
    for n in 0..2000u32 {
        let mut data: Vec<u8> = (0..Half::SEGMENT).map(|i| (i.wrapping_mul(n + 1) >> 3) as u8).collect();
        producer.push(&[0; 7], 3, &Payload { prefix: &[], spans: &[span(&mut data)] }).unwrap();
        let Place::Bulk(at) = peek(&mut consumer).unwrap().unwrap().place else { panic!("not in the bulk area") };
        half.fetch(at, &mut out);
        assert!(out == data, "record {n}");
        let _ = consumer.release();
    }
    let around = producer.memory().around.get();
    assert!((1500..2000).contains(&around), "{around}");
}

#[test]
fn flags_are_taken_once() {
    let (_, mut producer, mut consumer) = ring();
    assert!(!producer.must_ring());
    consumer.announce_sleep();
    push(&mut producer, &[0; 3], &Payload::default()).unwrap();
    wake_fence();
    assert!(producer.must_ring());
    assert!(!producer.must_ring());
    consumer.announce_sleep();
    consumer.retract_sleep();
    assert!(!producer.must_ring());

    while push(&mut producer, &[0; 3], &Payload::default()).is_ok() {}
    assert_eq!(producer.has_room(), Ok(false));
    let mut rings = 0;
    while peek(&mut consumer).unwrap().is_some() {
        rings += u32::from(consumer.release());
    }
    assert_eq!(rings, 1);
    assert_eq!(producer.has_room(), Ok(true));
    assert!(!consumer.settle());
}

#[test]
fn two_threads() {
    let (_, mut producer, mut consumer) = ring();
    let count = if cfg!(miri) { 40 } else { 200_000 };
    let writer = std::thread::spawn(move || {
        let mut random = Random(3);
        for n in 0..count {
            let (head, len) = (header(&mut random, n), some_len(&mut random) / 8);
            let data = bytes(n, len);
            while let Err(e) = push(&mut producer, &head, &Payload { prefix: &data, spans: &[] }) {
                assert_eq!(e, PushError::Full);
                std::thread::yield_now();
            }
        }
        producer
    });
    let mut random = Random(3);
    for n in 0..count {
        let (head, len) = (header(&mut random, n), some_len(&mut random) / 8);
        let record = loop {
            match peek(&mut consumer).unwrap() {
                Some(record) => break record,
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(record.header(), head);
        assert!(payload(&consumer, &record) == bytes(n, len));
        let _ = consumer.release();
    }
    assert!(peek(&mut consumer).unwrap().is_none());
    let producer = writer.join().unwrap();
    assert!(producer.taken(count));
}

#[test]
fn anything_in_the_window_is_survived() {
    let mut random = Random(99);
    for _ in 0..if cfg!(miri) { 3 } else { 2000 } {
        let (half, mut producer, mut consumer) = ring();
        for slot in 0..if cfg!(miri) { 4 } else { 32 } {
            let lap = if random.below(8) == 0 { random.next() } else { 1 };
            let low = if random.below(2) == 0 { random.below(40) } else { random.next() >> 32 };
            half.stamp(Half::line(slot)).store(lap << 32 | low, Ordering::Relaxed);
            half.store_body(Half::line(slot), 0, &[random.next(); 7]);
        }
        while random.below(3) > 0
            && let Some(short) = consumer.peek_short()
        {
            assert!(short.len <= 8);
            let _ = consumer.release_short();
        }
        half.consumed().store(random.below(20), Ordering::Relaxed);
        while let Ok(Some(record)) = peek(&mut consumer) {
            assert_eq!(payload(&consumer, &record).len(), record.len as usize);
            let _ = consumer.release();
        }
        let _ = push(&mut producer, &[1; 3], &Payload { prefix: &[1; 100], spans: &[] });
        let _ = producer.has_room();
    }
}
