//! ACKs of packets as notices.

use super::*;
use crate::protocol::table::Outcome;

const PLACES: Remote = Remote { addr: 0x4000, rkey: 7 };

fn end(ours: u16, theirs: u16, mapped: bool) -> Connection {
    let of = |credits| Settings { kind: Kind::SeqPacket, credits, small: 0, ring: 0 };
    let hello = Hello { settings: of(theirs), ring: PLACES, windows: true, mapped };
    Connection::new(of(ours), hello, 4, 8).expect("one kind")
}

fn say(connection: &mut Connection, message: Message) -> Result<bool, Reset> {
    connection.arrived(0, &message.emit(), HEADER)
}

fn outputs(connection: &mut Connection) -> Vec<Output> {
    std::iter::from_fn(|| connection.poll()).collect()
}

#[test]
fn a_notice_is_an_ack() {
    let mut connection = end(4, 4, true);
    let buffer = Buffer { region: 0, offset: 0, len: 9 };
    (1..=3).for_each(|op| connection.send(Op(op), buffer, false).expect("room"));
    outputs(&mut connection);
    assert!(!connection.was_read());
    connection.noticed(1, 0).expect("two have a number that is not behind it");
    let sent = |op| Output::Done(Done { op: Op(op), outcome: Outcome::Sent });
    assert_eq!(outputs(&mut connection), [sent(1), sent(2)]);
    assert!(connection.was_read() && !connection.was_read(), "one answer for each time");
    assert_eq!(connection.noticed(1, 0), Err(Reset::Protocol), "twice");
    assert_eq!(connection.noticed(3, 0), Err(Reset::Protocol), "an advertisement that was not sent");
    assert_eq!(connection.noticed(2, 1), Err(Reset::Protocol), "an ACK has no length");
    connection.noticed(2, 0).expect("the last one");
    assert_eq!(outputs(&mut connection), [sent(3)]);
    assert_eq!(connection.transferred(3, 0), Err(Reset::Protocol), "SEQPACKET has no transfers");
}

#[test]
fn places_are_written_while_the_peer_looks() {
    let mut connection = end(4, 4, true);
    assert_eq!(connection.place_of_notice(1), None);
    say(&mut connection, Message::Looks).expect("it has places");
    assert_eq!(connection.place_of_notice(5), Some(Remote { addr: 0x4000 + 32, rkey: 7 }), "the second of four");
    say(&mut connection, Message::Sleeps).expect("it looks");
    assert_eq!(connection.place_of_notice(1), None);
    assert_eq!(outputs(&mut connection), [Output::Send(Message::Slept, None)]);
    // They are as many as the peer says, whatever this end has.
    for ours in [1, 3, 16] {
        let mut connection = end(ours, 4, true);
        say(&mut connection, Message::Looks).expect("it has places");
        assert_eq!(connection.place_of_notice(7), Some(Remote { addr: 0x4000 + 3 * 32, rkey: 7 }), "{ours}");
    }
    assert_eq!(say(&mut end(4, 4, false), Message::Looks), Err(Reset::Protocol), "it has none");
}
