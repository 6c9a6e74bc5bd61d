//! Messages that share a SEND: when an end says several in a row, and which rows are taken.

use super::{
    Buffer, Connection, HEADER, Hello, Immediate, Kind, Message, Op, Output, Remote, Reset, Settings, TOGETHER,
};
use crate::stream::Ack;

const LEN: u32 = 1 << 16;

/// An end with many credits.
fn end(kind: Kind) -> Connection {
    let (small, ring) = if kind == Kind::Stream { (0, 1 << 20) } else { (8, 0) };
    let settings = Settings { kind, credits: 32, small, ring };
    let ring = Remote { addr: 0x1000, rkey: 7 };
    Connection::new(settings, Hello { settings, ring, windows: false, mapped: false }, 8, 32).expect("one kind")
}

/// What an end has to say.
fn said(connection: &mut Connection) -> Vec<Message> {
    let message = |output| if let Output::Send(message, _) = output { Some(message) } else { None };
    std::iter::from_fn(|| connection.poll()).filter_map(message).collect()
}

fn send(connection: &mut Connection, op: u64, len: u64) -> usize {
    connection.send(Op(op), Buffer { region: op, offset: 0, len }, false).expect("room");
    said(connection).len()
}

fn receive(connection: &mut Connection, op: u64) -> usize {
    connection.receive(Op(op), Buffer { region: op, offset: 0, len: LEN.into() }, false).expect("room");
    said(connection).len()
}

fn advert(seq: u32) -> Message {
    Message::Advert { seq, addr: 0, rkey: 1, len: LEN, persistent: false }
}

fn data(number: u32, released: u32) -> Message {
    Message::Data { imm: Immediate { direct: true, released, more: false, seq: number * LEN }.emit(), len: LEN }
}

fn together(messages: &[Message]) -> Vec<u8> {
    messages.iter().flat_map(Message::emit).collect()
}

#[test]
fn offers_go_in_rows_while_the_sender_has_enough() {
    let mut connection = end(Kind::Stream);
    let offers: Vec<usize> = (0..16).map(|op| receive(&mut connection, op)).collect();
    assert_eq!(offers, [1, 1, 1, 1, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4]);
    let told = |connection: &mut Connection, row: u32| {
        let row: Vec<Message> = (4 * row..4 * row + 4).map(|number| data(number, 1)).collect();
        connection.arrived_together(0, &together(&row)).expect("DATA");
        said(connection).into_iter().filter(|message| matches!(message, Message::Offer { .. })).count()
    };
    assert_eq!(told(&mut connection, 0), 0);
    assert_eq!([16, 17, 18, 19, 20, 21].map(|op| receive(&mut connection, op)), [0, 0, 0, 4, 0, 0]);
    // Two wait. With no call of the program they go when others have ended.
    assert_eq!([1, 2, 3, 4].map(|row| told(&mut connection, row)), [0, 0, 0, 2]);
}

#[test]
fn offers_go_in_rows_though_receives_end_one_by_one() {
    let mut connection = end(Kind::Stream);
    (0..16).for_each(|op| _ = receive(&mut connection, op));
    let next = |number: u32| {
        connection.arrived(0, &data(number, 1).emit(), HEADER).expect("DATA");
        said(&mut connection);
        receive(&mut connection, 16 + u64::from(number))
    };
    assert_eq!((0..12).map(next).collect::<Vec<_>>(), [0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4]);
}

#[test]
fn offers_that_wait_go_before_the_sender_has_none() {
    let mut connection = end(Kind::Stream);
    (0..11).for_each(|op| _ = receive(&mut connection, op));
    for number in 0..8 {
        connection.arrived(0, &data(number, 1).emit(), HEADER).expect("DATA");
        let offers = said(&mut connection).into_iter().filter(|message| matches!(message, Message::Offer { .. }));
        assert_eq!(offers.count(), if number == 4 { 3 } else { 0 }, "{number}");
    }
}

#[test]
fn advertisements_go_in_rows_while_the_peer_has_enough() {
    let mut connection = end(Kind::SeqPacket);
    let adverts: Vec<usize> = (0..11).map(|op| send(&mut connection, op, LEN.into())).collect();
    assert_eq!(adverts, [1, 1, 1, 1, 0, 0, 0, 4, 0, 0, 0]);
    // The ACK of four leaves four at the peer, that of a fifth leaves three: those that wait go.
    connection.arrived(0, &Message::Ack { seq: 3 }.emit(), HEADER).expect("an ACK");
    assert_eq!(said(&mut connection), []);
    connection.arrived(0, &Message::Ack { seq: 4 }.emit(), HEADER).expect("an ACK");
    assert_eq!(said(&mut connection).len(), 3);
}

#[test]
fn what_is_small_or_the_last_waits_for_no_row() {
    for last in [false, true] {
        let mut connection = end(Kind::SeqPacket);
        (0..6).for_each(|op| _ = send(&mut connection, op, LEN.into()));
        if last {
            connection.shutdown();
            assert!(matches!(said(&mut connection)[..], [_, _, Message::Fin { seq: 6 }]));
        } else {
            assert_eq!(send(&mut connection, 6, 1), 3, "the two that wait go in front of it");
        }
    }
}

#[test]
fn credits_of_small_data_hold_nothing_back() {
    let mut connection = end(Kind::SeqPacket);
    for op in 0..6 {
        assert_eq!(send(&mut connection, op, 1), 1);
        connection.small_done(Op(op));
    }
    assert_eq!(send(&mut connection, 6, LEN.into()), 1, "no ACK of the others comes before that of this one");
}

#[test]
fn a_row_means_what_its_messages_mean() {
    let mut connection = end(Kind::SeqPacket);
    (0..3).for_each(|op| _ = receive(&mut connection, op));
    connection.arrived_together(0, &together(&[advert(0), advert(1), advert(2)])).expect("a row");
    let reads = std::iter::from_fn(|| connection.poll()).filter(|output| matches!(output, Output::Read(_)));
    assert_eq!(reads.count(), 3);
    let mut connection = end(Kind::Stream);
    let (place, ack) = (Remote { addr: 0, rkey: 1 }, Ack::default());
    let offer = |first| Message::Offer { phase: 2, seq: 0, first, wait_all: false, len: LEN, place, ack };
    connection.arrived_together(0, &together(&[offer(true), offer(false)])).expect("a row");
    assert_eq!(send(&mut connection, 0, 3 * u64::from(LEN)), 0);
    assert_eq!(connection.transferred_by_way().direct, 2 * u64::from(LEN));
}

#[test]
fn a_row_that_is_none_is_a_breach() {
    let small = Message::Small { seq: 1, len: 0 };
    let cases: [(&str, Vec<u8>); 5] = [
        ("two types", together(&[advert(0), Message::Ack { seq: 0 }])),
        ("SMALL in a row", together(&[advert(0), small])),
        ("more than a row", together(&std::array::from_fn::<_, { TOGETHER + 1 }, _>(|seq| advert(seq as u32)))),
        ("a part of a header", [&advert(0).emit()[..], &[0; 8]].concat()),
        ("a number twice", together(&[advert(0), advert(0)])),
    ];
    for (what, bytes) in cases {
        assert!(Message::may_share(bytes.first_chunk().expect("a header")));
        let mut connection = end(Kind::SeqPacket);
        connection.send(Op(1), Buffer { region: 1, offset: 0, len: 100 }, false).expect("room");
        assert_eq!(connection.arrived_together(0, &bytes), Err(Reset::Protocol), "{what}");
    }
}
