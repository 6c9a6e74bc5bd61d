//! Data come whole and in order.

use std::collections::VecDeque;

use conformance::Random;
use exs::protocol::Kind;
use exs::socket::EventKind;

use super::common::{SLOT, Talk, expect, some};

fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    (0..len).map(|_| random.below(256) as u8).collect()
}

#[test]
fn packets_of_any_size_come_back() {
    // All by READ; small ones in the advertisement.
    for small in [0, 256] {
        let talk = Talk::new("echo", Kind::SeqPacket, small);
        let mut random = Random::new(1);
        for len in [0, 1, 8, 255, 256, 257, 4096, 65537, SLOT] {
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

#[test]
fn a_stream_with_many_operations_outstanding_keeps_its_bytes() {
    const TOTAL: usize = 8 << 20;
    const PIECE: usize = 64 << 10;
    const DEEP: usize = 8;
    let talk = Talk::new("echo", Kind::Stream, 256);
    let mut random = Random::new(2);
    let whole = bytes(&mut random, TOTAL);
    let (mut sent, mut got) = (0, Vec::new());
    let mut free_sends: VecDeque<u64> = (0..DEEP as u64).collect();
    let mut free_receives: VecDeque<u64> = (DEEP as u64..2 * DEEP as u64).collect();
    // The parts of the receives; those with MSG_WAITALL are full at their end.
    let mut lens = [(0, false); 2 * DEEP];
    let place = |handle: u64| handle as usize * PIECE;
    while got.len() < TOTAL {
        while sent < TOTAL
            && let Some(handle) = free_sends.pop_front()
        {
            let most = if random.coin() { 300 } else { PIECE as u64 };
            let len = (1 + random.below(most) as usize).min(TOTAL - sent);
            talk.memory.bytes().write(place(handle), &whole[sent..sent + len]);
            let part = place(handle)..place(handle) + len;
            talk.socket.send(&talk.memory, part, &talk.queue, handle).expect("a send");
            sent += len;
        }
        while let Some(handle) = free_receives.pop_front() {
            let len = 1 + random.below(PIECE as u64) as usize;
            // The last bytes would not fill one that waits for all.
            let wait_all = random.below(4) == 0 && got.len() + 2 * DEEP * PIECE < TOTAL;
            lens[handle as usize] = (len, wait_all);
            let part = place(handle)..place(handle) + len;
            talk.socket.receive(&talk.memory, part, wait_all, &talk.queue, handle).expect("a receive");
        }
        for event in some(&talk.queue, 16) {
            let len = event.result.unwrap_or_else(|errno| panic!("{errno:?}")) as usize;
            if event.kind == EventKind::Send {
                free_sends.push_back(event.handle);
                continue;
            }
            let (posted, wait_all) = lens[event.handle as usize];
            assert!(len > 0 && len <= posted && (!wait_all || len == posted), "{event:?}");
            let mut piece = vec![0; len];
            talk.memory.bytes().read(place(event.handle), &mut piece);
            got.extend_from_slice(&piece);
            free_receives.push_back(event.handle);
        }
    }
    assert!(got == whole, "the bytes differ");
    // The peer's end ends the receives that wait.
    talk.socket.shutdown().expect("it is connected");
    let (mut ends, mut sends) = (0, DEEP - free_sends.len());
    while ends < DEEP - free_receives.len() || sends > 0 {
        for event in some(&talk.queue, 16) {
            assert!(event.result.is_ok(), "{event:?}");
            if event.kind == EventKind::Receive { ends += 1 } else { sends -= 1 }
        }
    }
    talk.socket.close(&talk.queue, 99).expect("close");
    expect(&talk.queue, EventKind::Close, 99);
}
