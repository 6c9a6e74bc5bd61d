//! READs: how many are under way, and what goes out between them.

use super::*;

/// The bytes of READs that a connection begins now, after as many advertisements and receives of `len` bytes.
fn begun(connection: &mut Packets, count: u32, len: u32) -> Vec<u64> {
    for seq in 0..count {
        connection.receive(Op(seq.into()), buffer(len.into())).expect("room");
        let advert = Message::Advert { seq, addr: 0x1000, rkey: seq, len, persistent: false };
        arrive(connection, 0, &advert.emit()).expect("an advertisement");
    }
    let outputs = std::iter::from_fn(|| connection.outputs.pop_front());
    outputs.filter_map(|output| if let Output::Read(read) = output { Some(read.to.len) } else { None }).collect()
}

fn end(reads: usize) -> Packets {
    let settings = Settings { kind: Kind::SeqPacket, credits: 16, small: 0, ring: 0 };
    Packets::new(settings, settings, reads, 16)
}

#[test]
fn so_many_bytes_are_under_way() {
    let count = |reads, len| begun(&mut end(reads), 10, len).len();
    assert_eq!([count(16, 1), count(4, 1)], [10, 4], "the READs that the peer takes");
    let part = (AHEAD / 4) as u32;
    assert_eq!([count(16, part), count(16, part + 1), count(16, 2 * part)], [4, 4, 2]);
    assert_eq!([count(16, 4 * part), count(16, 64 * part)], [1, 1], "one in any case");
}

#[test]
fn the_peer_hears_of_a_read_before_the_next_one() {
    let mut connection = end(16);
    assert_eq!(begun(&mut connection, 3, 1 << 20), [1 << 20]);
    for seq in 0..3 {
        connection.reads_done(1);
        let outputs: Vec<_> = std::iter::from_fn(|| connection.outputs.pop_front()).collect();
        let (ack, rest) = outputs.split_first().expect("an answer");
        assert!(
            matches!(ack, Output::Send(Message::Ack { seq: of }, None) | Output::End(Message::Ack { seq: of }, _)
            if *of == seq),
            "{ack:?}"
        );
        let reads = rest.iter().filter(|output| matches!(output, Output::Read(_))).count();
        assert_eq!(reads, usize::from(seq < 2), "{rest:?}");
    }
}

#[test]
fn what_was_under_way_does_not_count_after_a_reset() {
    let mut connection = end(16);
    assert_eq!(begun(&mut connection, 2, 100), [100; 2]);
    connection.reset(Reset::Peer);
    assert_eq!(connection.in_flight, 200, "READs end by their completions");
    connection.reads_done(1);
    connection.reads_done(1);
    connection.reads_done(1);
    assert_eq!(connection.in_flight, 0);
}
