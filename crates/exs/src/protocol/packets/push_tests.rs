//! PUSH: when the recipient asks, what the sender does, and how both find out a hostile peer.

use super::super::*;
use super::LARGE;
use crate::protocol::wire::Kind;

const LEN: u32 = LARGE as u32;

fn end(pushes: bool) -> Packets {
    let settings = Settings { kind: Kind::SeqPacket, credits: 16, small: 8, ring: 0 };
    let mut packets = Packets::new(settings, settings, 8, 16);
    packets.push = Pushes::new(pushes);
    packets
}

fn buffer(region: u64, len: u32) -> Buffer {
    Buffer { region, offset: 0, len: len.into() }
}

fn outputs(packets: &mut Packets) -> Vec<Output> {
    std::iter::from_fn(|| packets.outputs.pop_front()).collect()
}

fn advert(seq: u32, len: u32, persistent: bool) -> Message {
    Message::Advert { seq, addr: 0x1000, rkey: 1, len, persistent }
}

/// What an end does that has so many receives when as many advertisements come: the numbers of the packets that it asks
/// for, and how many READs it begins.
fn ways(packets: &mut Packets, count: u32, len: u32) -> (Vec<u32>, usize) {
    for seq in 0..count {
        packets.receive(Op(seq.into()), buffer(seq.into(), len)).unwrap();
    }
    for seq in 0..count {
        packets.arrived(0, advert(seq, len, false)).unwrap();
    }
    let outputs = outputs(packets);
    let asks =
        |output: &Output| if let Output::Send(Message::Push { seq, .. }, _) = output { Some(*seq) } else { None };
    let asked: Vec<u32> = outputs.iter().map_while(asks).collect();
    let reads = outputs.iter().skip(asked.len()).filter(|output| matches!(output, Output::Read(_))).count();
    assert_eq!(asked.len() + reads, outputs.len(), "PUSH is in front of the READs: {outputs:?}");
    (asked, reads)
}

#[test]
fn both_ends_copy_a_row() {
    assert_eq!(ways(&mut end(true), 2, 16 * LEN), (vec![1], 1));
    let mut packets = end(true);
    assert_eq!(ways(&mut packets, 4, LEN), (vec![1, 2], 2));
    let taken = Outcome::Received { len: LEN.into(), truncated: false, end: false };
    let done = |op| Output::Done(Done { op: Op(op), outcome: taken });
    packets.arrived(0, Message::Pushed { seq: 1 }).unwrap();
    assert_eq!(outputs(&mut packets), [], "the READ in front of it is not done");
    packets.read_done();
    let ack = |seq| Output::End(Message::Ack { seq }, 1);
    assert_eq!(outputs(&mut packets), [ack(1), done(0), done(1)]);
    packets.read_done();
    assert!(!packets.cancel(Op(2)), "the peer may be writing there");
    packets.arrived(0, Message::Pushed { seq: 2 }).unwrap();
    assert_eq!(outputs(&mut packets), [ack(3), done(2), done(3)]);
    let moved = LongPackets { count: 4, bytes: 4 * LARGE, pushed: 2 };
    assert_eq!(packets.long_packets(), moved);
}

#[test]
fn what_is_alone_or_short_or_persistent_is_read() {
    assert_eq!(ways(&mut end(true), 1, LEN), (vec![], 1));
    assert_eq!(ways(&mut end(true), 4, LEN - 1), (vec![], 4));
    assert_eq!(ways(&mut end(false), 4, LEN), (vec![], 4), "the peer takes no PUSH");
    let mut packets = end(true);
    packets.ask_for_pushes(false);
    assert_eq!(ways(&mut packets, 4, LEN), (vec![], 4));
    let mut packets = end(false);
    packets.ask_for_pushes(true);
    assert_eq!(ways(&mut packets, 4, LEN), (vec![], 4));
    let mut packets = end(true);
    for seq in 0..3 {
        packets.receive(Op(seq), buffer(seq, LEN)).unwrap();
    }
    packets.arrived(0, advert(0, LEN, true)).unwrap();
    let outputs = outputs(&mut packets);
    let reads = outputs.iter().filter(|output| matches!(output, Output::Read(_)));
    assert_eq!((reads.count(), outputs.len()), (3, 3), "{outputs:?}");
}

#[test]
fn a_packet_that_is_cut_is_pushed_in_part() {
    let mut packets = end(true);
    packets.receive(Op(0), buffer(0, LEN)).unwrap();
    packets.receive(Op(1), buffer(1, LEN)).unwrap();
    packets.arrived(0, advert(0, LEN, false)).unwrap();
    packets.arrived(0, advert(1, LEN + 1, false)).unwrap();
    let push = Message::Push { seq: 1, addr: 0, rkey: 0, len: LEN };
    assert_eq!(outputs(&mut packets)[0], Output::Send(push, Some(buffer(1, LEN))));
    packets.read_done();
    packets.arrived(0, Message::Pushed { seq: 1 }).unwrap();
    let cut = Outcome::Received { len: LEN.into(), truncated: true, end: false };
    assert_eq!(outputs(&mut packets).pop(), Some(Output::Done(Done { op: Op(1), outcome: cut })));
}

const TO: Remote = Remote { addr: 0x5000, rkey: 7 };

fn push(seq: u32, len: u32) -> Message {
    Message::Push { seq, addr: TO.addr, rkey: TO.rkey, len }
}

/// An end that has advertised two long packets, one with EXS_PERSISTENT, and small data.
fn sender() -> Packets {
    let mut packets = end(true);
    for op in 0..3 {
        packets.send(Op(op), buffer(op, LEN), op == 2).unwrap();
    }
    packets.send(Op(3), buffer(3, 4), false).unwrap();
    assert_eq!(outputs(&mut packets).len(), 4);
    packets
}

fn pushed(seq: u32) -> Output {
    Output::End(Message::Pushed { seq }, TO.rkey)
}

fn sent(op: u64) -> Output {
    Output::Done(Done { op: Op(op), outcome: Outcome::Sent })
}

#[test]
fn a_sender_writes_first_and_tells_then() {
    let mut packets = sender();
    packets.arrived(0, push(0, LEN)).unwrap();
    packets.arrived(0, push(1, 9)).unwrap();
    let write = |op, len| Output::Push { from: buffer(op, len), to: TO };
    assert_eq!(outputs(&mut packets), [write(0, LEN), write(1, 9), pushed(0), pushed(1)]);
    // The ACK may be faster than the completion.
    packets.arrived(0, Message::Ack { seq: 0 }).unwrap();
    assert_eq!(outputs(&mut packets), [], "the device may still read the data");
    packets.write_done();
    assert_eq!(outputs(&mut packets), [sent(0)]);
    packets.write_done();
    assert_eq!(outputs(&mut packets), []);
    packets.arrived(0, Message::Ack { seq: 1 }).unwrap();
    assert_eq!(outputs(&mut packets), [sent(1)]);
}

#[test]
fn a_withdraw_that_crosses_a_push_is_too_late() {
    let mut packets = sender();
    assert!(packets.cancel(Op(0)));
    assert_eq!(outputs(&mut packets), [Output::Send(Message::Withdraw { seq: 0 }, None)]);
    packets.arrived(0, push(0, LEN)).unwrap();
    packets.arrived(0, Message::Withdrawn { seq: 0, dropped: false }).unwrap();
    assert_eq!(outputs(&mut packets), [Output::Push { from: buffer(0, LEN), to: TO }, pushed(0)]);
    packets.write_done();
    packets.arrived(0, Message::Ack { seq: 0 }).unwrap();
    assert_eq!(outputs(&mut packets), [sent(0)]);
    // The other end.
    let mut packets = end(true);
    assert_eq!(ways(&mut packets, 2, LEN), (vec![1], 1));
    packets.arrived(0, Message::Withdraw { seq: 1 }).unwrap();
    let late = Message::Withdrawn { seq: 1, dropped: false };
    assert_eq!(outputs(&mut packets), [Output::Send(late, None)]);
}

#[test]
fn a_breach_of_push_is_found_out() {
    let wraps = Message::Push { seq: 0, addr: u64::MAX - 5, rkey: 1, len: 9 };
    let withdrawn = Message::Withdrawn { seq: 0, dropped: true };
    let cases: [(&str, Vec<Message>, Message); 9] = [
        ("a number that is not outstanding", vec![], push(4, 9)),
        ("more than the packet has", vec![], push(0, LEN + 1)),
        ("nothing", vec![], push(0, 0)),
        ("an address that wraps", vec![], wraps),
        ("twice", vec![push(0, LEN)], push(0, LEN)),
        ("a persistent packet", vec![], push(2, LEN)),
        ("small data", vec![], push(3, 4)),
        ("a packet that is acknowledged", vec![push(0, 9), Message::Ack { seq: 1 }], push(1, 9)),
        ("dropped after PUSH", vec![push(0, LEN)], withdrawn),
    ];
    for (what, before, last) in cases {
        let mut packets = sender();
        packets.cancel(Op(0));
        for message in before {
            packets.arrived(0, message).expect(what);
        }
        assert_eq!(packets.arrived(0, last), Err(Reset::Protocol), "{what}");
    }
    let mut packets = end(false);
    packets.send(Op(0), buffer(0, LEN), false).unwrap();
    assert_eq!(packets.arrived(0, push(0, LEN)), Err(Reset::Protocol), "this end takes none");
}

#[test]
fn a_breach_of_pushed_is_found_out() {
    let cases: [(&str, &[u32], u32); 5] = [
        ("a packet that is READ", &[], 0),
        ("out of turn", &[], 2),
        ("no packet", &[], 4),
        ("twice", &[1], 1),
        ("behind the last one", &[1, 2], 3),
    ];
    for (what, before, last) in cases {
        let mut packets = end(true);
        assert_eq!(ways(&mut packets, 4, LEN), (vec![1, 2], 2));
        for seq in before {
            packets.arrived(0, Message::Pushed { seq: *seq }).expect(what);
        }
        assert_eq!(packets.arrived(0, Message::Pushed { seq: last }), Err(Reset::Protocol), "{what}");
    }
}

#[test]
fn after_a_reset_a_send_ends_behind_its_write() {
    let failed = |op| Output::Done(Done { op: Op(op), outcome: Outcome::Failed(Reset::Peer) });
    let mut packets = sender();
    packets.arrived(0, push(1, 9)).unwrap();
    packets.reset(Reset::Peer);
    assert_eq!(outputs(&mut packets), [0, 1, 2, 3].map(failed), "the WRITE was not made");
    let mut packets = sender();
    packets.arrived(0, push(1, 9)).unwrap();
    assert_eq!(outputs(&mut packets).len(), 2);
    packets.arrived(0, push(0, 9)).unwrap();
    packets.reset(Reset::Peer);
    assert_eq!(outputs(&mut packets), [failed(0)]);
    packets.write_done();
    assert_eq!(outputs(&mut packets), [1, 2, 3].map(failed));
    // Receives wait for the READs of this end only: no WRITE of the peer goes through after the reset.
    let mut packets = end(true);
    assert_eq!(ways(&mut packets, 4, LEN), (vec![1, 2], 2));
    packets.read_done();
    assert_eq!(outputs(&mut packets).len(), 2);
    packets.reset(Reset::Peer);
    assert_eq!(outputs(&mut packets), []);
    packets.read_done();
    assert_eq!(outputs(&mut packets), [1, 2, 3].map(failed));
}

#[test]
fn a_write_that_was_not_posted_holds_no_send() {
    let mut packets = sender();
    packets.arrived(0, push(0, 9)).unwrap();
    packets.arrived(0, push(1, 9)).unwrap();
    assert_eq!(outputs(&mut packets).len(), 4);
    packets.reset(Reset::Memory);
    packets.write_dropped();
    assert_eq!(outputs(&mut packets), [], "the first one is under way");
    packets.write_done();
    assert_eq!(outputs(&mut packets).len(), 4);
}
