//! Data come whole and in order.

use conformance::Random;
use exs::protocol::Kind;
use exs::socket::EventKind;

use super::common::{SLOT, Talk, some};

fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.below(256) as u8).collect()
}

#[test]
fn packets_of_any_size_come_back() {
    // All by READ; small ones in the advertisement, with the request or by the device.
    for small in [0, 256, 4096] {
        let talk = Talk::new("echo", Kind::SeqPacket, small);
        let mut random = Random::new(1);
        for len in [0, 1, 8, 32, 33, 224, 225, 255, 256, 257, 992, 993, 4096, 65537, SLOT] {
            let data = bytes(&mut random, len);
            talk.memory.bytes().write(3, &data);
            talk.socket.receive(&talk.memory, SLOT + 64..3 * SLOT, false, &talk.queue, 1).expect("a receive");
            talk.socket.send(&talk.memory, 3..3 + len, &talk.queue, 2).expect("a send");
            let mut events = some(&talk.queue, 1);
            events.extend(some(&talk.queue, 1));
            events.sort_by_key(|event| event.handle);
            assert!(events.iter().all(|event| event.result == Ok(len as u64)), "{len} bytes: {events:?}");
            assert_eq!([events[0].kind, events[1].kind], [EventKind::Receive, EventKind::Send]);
            assert!(!events[0].truncated && !events[0].end);
            let mut back = vec![0; len];
            talk.memory.bytes().read(SLOT + 64, &mut back);
            assert!(back == data, "{len} bytes, small data up to {small}");
        }
        talk.finish();
    }
}

#[test]
fn a_send_of_few_bytes_is_over_with_its_call() {
    for (small, most) in [(256, 256), (1024, 992), (4096, 992)] {
        let talk = Talk::new("echo", Kind::SeqPacket, small);
        for len in [0, 224, 225, most] {
            talk.socket.receive(&talk.memory, SLOT..2 * SLOT, false, &talk.queue, 1).expect("a receive");
            assert!(talk.queue.is_empty());
            talk.socket.send(&talk.memory, 0..len, &talk.queue, 2).expect("a send");
            assert_eq!(talk.queue.len(), 1, "{len} bytes, small data up to {small}");
            let mut events = some(&talk.queue, 1);
            events.extend(some(&talk.queue, 1));
            events.sort_by_key(|event| event.handle);
            assert!(events.iter().all(|event| event.result == Ok(len as u64)), "{len} bytes: {events:?}");
        }
        talk.finish();
    }
}

#[test]
fn a_packet_that_does_not_fit_is_cut() {
    for len in [100, 1000] {
        let talk = Talk::new("echo", Kind::SeqPacket, 256);
        talk.memory.bytes().write(0, &vec![7; len]);
        talk.socket.receive(&talk.memory, SLOT..SLOT + 10, false, &talk.queue, 1).expect("a receive");
        talk.socket.send(&talk.memory, 0..len, &talk.queue, 2).expect("a send");
        let mut events = some(&talk.queue, 1);
        events.extend(some(&talk.queue, 1));
        let receive = events.iter().find(|event| event.kind == EventKind::Receive).expect("a receive");
        assert!(receive.truncated && receive.result == Ok(10), "{receive:?}");
        let mut back = [0; 12];
        talk.memory.bytes().read(SLOT, &mut back);
        assert_eq!(back, [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0, 0], "nothing is written behind the buffer");
        talk.finish();
    }
}
