//! A peer writes anything into a window while both ends of it on this side are in use.
//!
//! The input is a list of 10-byte steps: an operation, a place, and 8 bytes to write there.
#![no_main]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use libfuzzer_sys::fuzz_target;
use memory::Half;
use memory::backing::{Backing, Heap};
use memory::ring::{Consumer, Place, Producer, RingMemory};
use wire::{Payload, Span};

fuzz_target!(|input: &[u8]| {
    let heap: Arc<dyn Backing> = Arc::new(Heap::new(Half::WINDOW));
    let (Ok(inward), Ok(out)) = (Half::new(&heap, 0), Half::new(&heap, 1)) else {
        return;
    };
    let mut consumer = Consumer::new(inward.clone());
    let mut producer = Producer::new(out.clone());
    let mut bytes = vec![0xa5u8; Half::SEGMENT as usize];
    for step in input.chunks_exact(10) {
        let (what, place) = (step[0], u32::from(step[1]));
        let line = Half::line(place);
        let value = u64::from_le_bytes([step[2], step[3], step[4], step[5], step[6], step[7], step[8], step[9]]);
        match what % 12 {
            0 => inward.stamp(line).store(value, Ordering::Release),
            // The lap that the consumer waits for, and any lengths and places.
            1 => inward.stamp(line).store(1 << 32 | value & 0xffff_ffff, Ordering::Release),
            2 => inward.store_body(line, 0, &[value; 7]),
            3 => out.consumed().store(value, Ordering::Release),
            4 => out.consumed().store(value % 2048, Ordering::Release),
            5 => out.sleeping().store(value as u32, Ordering::Release),
            6 => inward.waiting().store(value as u32, Ordering::Release),
            7 => {
                let len = (value % u64::from(Half::SEGMENT + 1)) as usize;
                let words = [3, 4, 5, 7][place as usize % 4];
                let _ = producer.push(&[value; 7], words, &Payload { prefix: &bytes[..len], spans: &[] });
                let _ = producer.must_ring();
            }
            8 => {
                let _ = producer.has_room();
                let _ = producer.taken(value);
            }
            9 => {
                consumer.announce_sleep();
                let _ = consumer.settle();
                let _ = consumer.ready();
                consumer.retract_sleep();
            }
            10 if place % 2 == 0 => {
                if let Some(short) = consumer.peek_short() {
                    assert!(short.len <= 8);
                    let _ = consumer.release_short();
                }
            }
            _ => {
                if let Ok(Some(record)) = consumer.peek().map(|record| record.copied()) {
                    assert!(record.len <= Half::SEGMENT);
                    match record.place {
                        Place::Body(at) => assert!(at + record.len <= 56),
                        Place::Bulk(at) => {
                            assert!(at + record.len <= Half::BULK);
                            inward.fetch(at, &mut bytes[..record.len as usize]);
                            let addr = bytes.as_mut_ptr().expose_provenance() as u64;
                            let _ = inward.scatter(at, &[Span { addr, len: record.len, guarded: false }]);
                        }
                    }
                }
                let _ = consumer.release();
            }
        }
    }
});
