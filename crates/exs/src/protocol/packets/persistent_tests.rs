//! EXS_PERSISTENT.

use super::*;

#[test]
fn a_persistent_send_is_read_again_and_again() {
    let mut connection = end();
    let advert = |seq| Message::Advert { seq, addr: 0x1000, rkey: 1, len: 9, persistent: seq == 0 }.emit();
    arrive(&mut connection, 0, &advert(0)).expect("a persistent advertisement");
    arrive(&mut connection, 0, &advert(1)).expect("another one");
    for op in 1..=3 {
        connection.receive(Op(op), buffer(4)).expect("room");
        let from = Remote { addr: 0x1000, rkey: 1 };
        assert_eq!(connection.outputs.pop_front(), Some(Output::Read(Read { from, to: buffer(4) })));
        connection.read_done();
        let outcome = Outcome::Received { len: 4, truncated: true, end: false };
        assert_eq!(connection.outputs.pop_front(), Some(Output::Done(Done { op: Op(op), outcome })));
        assert_eq!(connection.outputs.pop_front(), None, "no ACK");
    }
    // It is given back when the READ under way has ended, and the next one is served.
    connection.receive(Op(4), buffer(9)).expect("room");
    arrive(&mut connection, 0, &Message::Withdraw { seq: 0 }.emit()).expect("a WITHDRAW");
    assert_eq!(messages(&mut connection), []);
    let twice = arrive(&mut connection, 0, &Message::Withdraw { seq: 0 }.emit());
    assert_eq!(twice, Err(Reset::Protocol), "one question at a time");
    connection.read_done();
    assert_eq!(messages(&mut connection), [Message::Withdrawn { seq: 0, dropped: true }]);
    connection.receive(Op(5), buffer(9)).expect("room");
    connection.read_done();
    assert_eq!(messages(&mut connection), [Message::Ack { seq: 1 }]);
}

#[test]
fn a_persistent_send_ends_when_it_is_given_back() {
    let mut connection = end();
    connection.send(Op(1), buffer(1), true).expect("room");
    connection.send(Op(2), buffer(1), false).expect("room");
    let sent = messages(&mut connection);
    assert!(matches!(sent[..], [Message::Advert { persistent: true, .. }, Message::Small { .. }]), "{sent:?}");
    let ack = |seq| Message::Ack { seq }.emit();
    assert!(connection.cancel(Op(1)));
    assert_eq!(messages(&mut connection), [Message::Withdraw { seq: 0 }]);
    arrive(&mut connection, 0, &Message::Withdrawn { seq: 0, dropped: true }.emit()).expect("the answer");
    let outcome = Outcome::Cancelled;
    assert_eq!(connection.outputs.pop_front(), Some(Output::Done(Done { op: Op(1), outcome })));
    arrive(&mut connection, 0, &ack(1)).expect("an ACK");
    for seq in 0..2 {
        let mut connection = end();
        connection.send(Op(1), buffer(1), true).expect("room");
        connection.send(Op(2), buffer(1), false).expect("room");
        assert_eq!(arrive(&mut connection, 0, &ack(seq)), Err(Reset::Protocol), "ACK {seq} with a persistent send");
    }
}
