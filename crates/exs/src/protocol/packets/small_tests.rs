//! Small data: when their sends end, when credits come back, and what a connection leaves behind.

use super::super::*;
use crate::protocol::Taken;
use crate::protocol::wire::Kind;

fn end(credits: u16) -> Packets {
    let settings = Settings { kind: Kind::SeqPacket, credits, small: 8, ring: 0 };
    Packets::new(settings, settings, 1, 16)
}

fn buffer(len: u64) -> Buffer {
    Buffer { region: 0, offset: 0, len }
}

fn outputs(packets: &mut Packets) -> Vec<Output> {
    std::iter::from_fn(|| packets.outputs.pop_front()).collect()
}

fn sent(op: u64) -> Output {
    Output::Done(Done { op: Op(op), outcome: Outcome::Sent })
}

fn received(op: u64, len: u64, end: bool) -> Output {
    Output::Done(Done { op: Op(op), outcome: Outcome::Received { len, truncated: false, end } })
}

#[test]
fn a_send_ends_when_the_device_has_its_data_and_in_order() {
    let mut packets = end(3);
    packets.send(Op(1), buffer(100), false).unwrap();
    packets.send(Op(2), buffer(4), false).unwrap();
    packets.send(Op(3), buffer(4), false).unwrap();
    packets.send(Op(4), buffer(4), false).unwrap();
    assert_eq!(outputs(&mut packets).len(), 3, "three credits");
    packets.small_done(Op(2));
    assert_eq!(outputs(&mut packets), [], "the send in front of it is not over");
    assert!(packets.cancel(Op(2)) && packets.cancel(Op(3)), "their events come");
    assert_eq!(outputs(&mut packets), [], "nothing is asked back that is on its way");
    packets.arrived(0, Message::Ack { seq: 0 }).unwrap();
    let fourth = Output::Send(Message::Small { seq: 3, len: 4 }, Some(buffer(4)));
    assert_eq!(outputs(&mut packets), [sent(1), sent(2), fourth], "and one credit is back");
    // The ACK may be faster than the completion.
    packets.arrived(0, Message::Ack { seq: 2 }).unwrap();
    assert_eq!(outputs(&mut packets), [sent(3)]);
    packets.small_done(Op(3));
    assert_eq!(outputs(&mut packets), [], "once");
    packets.small_done(Op(4));
    assert_eq!(outputs(&mut packets), [sent(4)]);
    assert!(packets.is_flushed());
    assert_eq!(packets.arrived(0, Message::Ack { seq: 2 }), Err(Reset::Protocol), "an ACK twice");
    packets.arrived(0, Message::Ack { seq: 3 }).unwrap();
}

#[test]
fn a_send_is_over_with_its_call_if_nothing_is_in_front_of_it() {
    let mut packets = end(2);
    assert_eq!(packets.send_at_once(9), None, "it is not small");
    assert_eq!(packets.send_at_once(8), Some(Message::Small { seq: 0, len: 8 }));
    packets.send(Op(1), buffer(8), false).unwrap();
    assert_eq!(packets.send_at_once(8), None, "another send is pending");
    assert_eq!(outputs(&mut packets).len(), 1);
    packets.small_done(Op(1));
    assert_eq!(packets.send_at_once(8), None, "the end of a send was not told");
    assert_eq!(outputs(&mut packets), [sent(1)]);
    assert_eq!(packets.send_at_once(8), None, "two credits");
    packets.arrived(0, Message::Ack { seq: 1 }).unwrap();
    assert_eq!(packets.send_at_once(0), Some(Message::Small { seq: 2, len: 0 }));
    packets.shutdown();
    assert_eq!(outputs(&mut packets), [Output::Send(Message::Fin { seq: 3 }, None)]);
    assert_eq!(packets.send_at_once(8), None, "behind the end of the data");
    let mut packets = end(2);
    packets.reset(Reset::Peer);
    assert_eq!(packets.send_at_once(8), None, "behind the end of the connection");
}

#[test]
fn credits_of_several_come_back_in_one_message() {
    let mut packets = end(8);
    for seq in 0..11 {
        packets.receive(Op(seq.into()), buffer(8)).unwrap();
        assert_eq!(packets.arrived(seq, Message::Small { seq, len: 4 }), Ok(true));
        let mut expected = vec![Output::Copy { slot: seq, to: buffer(4) }, Output::Free { slot: seq }];
        if seq == 5 {
            expected.push(Output::Send(Message::Ack { seq }, None));
        }
        expected.push(received(seq.into(), 4, false));
        assert_eq!(outputs(&mut packets), expected, "{seq}");
    }
    // Five are owed. With three more that no receive takes, the peer has no credit left.
    for seq in 11..14 {
        packets.arrived(seq, Message::Small { seq, len: 4 }).unwrap();
        let expected = if seq == 13 { vec![Output::Send(Message::Ack { seq: 10 }, None)] } else { vec![] };
        assert_eq!(outputs(&mut packets), expected, "{seq}");
    }
    assert_eq!(packets.arrived(14, Message::Small { seq: 14, len: 4 }), Ok(true), "five are back");
}

#[test]
fn credits_come_back_behind_a_message_of_this_end_if_there_is_one_in_time() {
    for credits in [1, 2, 3, 8, 9] {
        let mut packets = end(credits);
        let (more_than_half, most) = (u32::from(credits) / 2 + 1, u32::from(credits));
        let take = |packets: &mut Packets, seq: u32| {
            packets.receive(Op(seq.into()), buffer(8)).unwrap();
            packets.take_at_once(seq, 4).expect("the next packet");
        };
        for seq in 0..more_than_half {
            assert!(!packets.give_back_behind(), "{credits}: {seq} are not more than half");
            take(&mut packets, seq);
        }
        // Where the peer has another one, a send of this end may come before it.
        let last = Output::Send(Message::Ack { seq: more_than_half - 1 }, None);
        assert_eq!(outputs(&mut packets), if more_than_half == most { vec![last] } else { vec![] }, "{credits}");
        if more_than_half < most {
            assert!(packets.give_back_behind());
            assert_eq!(outputs(&mut packets), [last], "{credits}");
        }
        assert!(!packets.give_back_behind(), "{credits}: once");
        // None comes.
        let late = (more_than_half + 1).min(most);
        for seq in more_than_half..more_than_half + late {
            assert_eq!(outputs(&mut packets), [], "{credits}: {seq}");
            take(&mut packets, seq);
        }
        let last = Output::Send(Message::Ack { seq: more_than_half + late - 1 }, None);
        assert_eq!(outputs(&mut packets), [last], "{credits}");
    }
}

#[test]
fn packets_in_slots_outlive_the_peer_that_has_ended_its_data() {
    for (fin, why) in [(true, Reset::Peer), (false, Reset::Peer), (true, Reset::Protocol)] {
        let mut packets = end(4);
        packets.arrived(0, Message::Small { seq: 0, len: 4 }).unwrap();
        packets.arrived(1, Message::Small { seq: 1, len: 0 }).unwrap();
        if fin {
            packets.arrived(2, Message::Fin { seq: 2 }).unwrap();
        }
        packets.reset(why);
        let first = packets.receive(Op(1), buffer(8));
        if !fin || why != Reset::Peer {
            assert_eq!(first, Err(Refused::Gone), "{fin} {why:?}");
            continue;
        }
        for op in 2..4 {
            packets.receive(Op(op), buffer(8)).unwrap();
        }
        let copy = Output::Copy { slot: 0, to: buffer(4) };
        let expected = [copy, received(1, 4, false), received(2, 0, false), received(3, 0, true)];
        assert_eq!(outputs(&mut packets), expected);
    }
}

#[test]
fn a_receive_at_the_end_of_a_dead_connection_sees_the_end() {
    let mut packets = end(2);
    packets.arrived(0, Message::Fin { seq: 0 }).expect("FIN");
    packets.reset(Reset::Peer);
    packets.receive(Op(1), buffer(8)).expect("the end");
    assert_eq!(outputs(&mut packets), [received(1, 0, true)]);
}

#[test]
fn a_packet_is_taken_at_once_by_a_receive_that_waits_for_it() {
    let taken = |op, len, truncated| Some(Taken { op: Op(op), to: buffer(len), truncated });
    let mut packets = end(2);
    assert_eq!(packets.take_at_once(0, 4), None, "no receive waits");
    packets.receive(Op(1), buffer(3)).unwrap();
    packets.receive(Op(2), buffer(8)).unwrap();
    packets.receive(Op(3), buffer(8)).unwrap();
    assert_eq!(packets.take_at_once(1, 4), None, "it is not the next packet");
    assert_eq!(packets.take_at_once(0, 9), None, "it is longer than what this end takes");
    assert_eq!(packets.take_at_once(0, 4), taken(1, 3, true));
    assert_eq!(packets.take_at_once(1, 0), taken(2, 0, false));
    assert_eq!(packets.take_at_once(2, 4), None, "an ACK waits");
    assert_eq!(outputs(&mut packets), [Output::Send(Message::Ack { seq: 1 }, None)]);
    assert_eq!(packets.take_at_once(0, 4), None, "a number twice");
    packets.reset(Reset::Peer);
    outputs(&mut packets);
    assert_eq!(packets.take_at_once(2, 4), None, "behind the end of the connection");

    // A READ in front of it is not over.
    let mut packets = end(2);
    packets.receive(Op(1), buffer(8)).unwrap();
    packets.receive(Op(2), buffer(8)).unwrap();
    packets.arrived(0, Message::Advert { seq: 0, addr: 0, rkey: 1, len: 8, persistent: false }).unwrap();
    outputs(&mut packets);
    assert_eq!(packets.take_at_once(1, 4), None, "receives end in order");

    // A packet in front of it waits for a receive.
    let mut packets = end(2);
    packets.arrived(0, Message::Small { seq: 0, len: 4 }).unwrap();
    assert_eq!(packets.take_at_once(1, 4), None);
    let mut packets = end(2);
    packets.receive(Op(1), buffer(8)).unwrap();
    packets.arrived(0, Message::Fin { seq: 0 }).unwrap();
    assert_eq!(packets.take_at_once(0, 4), None, "behind the end of the data");
}
