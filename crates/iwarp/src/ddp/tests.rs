//! Segments of both models, cut and checked.

use std::vec::Vec;

use verbs::RKey;
use wire::ddp::{Header, untagged};

use super::*;
use crate::tests::hex;

fn cut(mut message: Message, mulpdu: u16) -> Vec<(Vec<u8>, core::ops::Range<usize>)> {
    core::iter::from_fn(|| message.next(mulpdu)).map(|segment| (segment.header.to_vec(), segment.range)).collect()
}

#[test]
fn a_tagged_message_is_cut() {
    let model = Model::Tagged { stag: RKey(0xdead_be00), offset: 0x100 };
    let segments = cut(Message::new(model, 0x40, 250), 128);
    let expected = [
        (hex("81 40 deadbe00 0000000000000100"), 0..114),
        (hex("81 40 deadbe00 0000000000000172"), 114..228),
        (hex("c1 40 deadbe00 00000000000001e4"), 228..250),
    ];
    assert_eq!(segments, expected);
    assert_eq!(cut(Message::new(model, 0x40, 114), 128).len(), 1);
    assert_eq!(cut(Message::new(model, 0x40, 0), 128), [(hex("c1 40 deadbe00 0000000000000100"), 0..0)]);
}

#[test]
fn an_untagged_message_is_cut() {
    let model = Model::Untagged { queue: 0, message: 9, invalidate: 7 };
    let segments = cut(Message::new(model, 0x44, 111), 128);
    let expected = [
        (hex("01 44 00000007 00000000 00000009 00000000"), 0..110),
        (hex("41 44 00000007 00000000 00000009 0000006e"), 110..111),
    ];
    assert_eq!(segments, expected);
    let headers = segments.iter().map(|(header, _)| matches!(Header::read(header), Ok((Header::Untagged(_), []))));
    assert_eq!(headers.collect::<Vec<_>>(), [true; 2]);
}

#[test]
fn messages_of_a_queue_come_in_order() {
    let header =
        |message, offset| untagged::Repr { last: false, upper: 0x43, invalidate: 0, queue: 0, message, offset };
    let mut queue = Queue::default();
    assert_eq!(queue.check(&header(2, 0), 1, || Some(9)), Err(Fault::Message));
    assert_eq!(queue.check(&header(0, 0), 1, || Some(9)), Err(Fault::Message));
    assert_eq!(queue.check(&header(1, 4), 1, || Some(9)), Err(Fault::Offset));
    assert_eq!(queue.check(&header(1, 0), 1, || None), Err(Fault::NoBuffer));
    assert_eq!(queue.check(&header(1, 0), 10, || Some(9)), Err(Fault::TooLong));
    let mut queue = Queue::default();
    assert_eq!(queue.check(&header(1, 0), 5, || Some(9)), Ok(()));
    assert_eq!(queue.take(5, false), None);
    assert!(queue.is_within());
    let other = || unreachable!("a second buffer for a message");
    assert_eq!(queue.check(&header(1, 0), 4, other), Err(Fault::Offset));
    assert_eq!(queue.check(&header(1, 5), 5, other), Err(Fault::TooLong));
    assert_eq!(queue.check(&header(1, 5), u32::MAX, other), Err(Fault::TooLong));
    assert_eq!(queue.check(&header(1, 5), 4, other), Ok(()));
    assert_eq!(queue.take(4, true), Some(9));
    assert_eq!(queue.check(&header(2, 0), 0, || Some(0)), Ok(()), "a message without data takes a buffer, too");
    assert_eq!(queue.take(0, true), Some(0));

    let mut queue = Queue::at(u32::MAX);
    assert_eq!(queue.check(&header(u32::MAX, 0), 0, || Some(0)), Ok(()));
    assert_eq!(queue.take(0, true), Some(0));
    assert_eq!(queue.check(&header(0, 0), 0, || Some(0)), Ok(()), "numbers wrap through 0");
}

#[test]
fn the_numbers_of_errors() {
    let faults = [
        (Fault::Short, (0, 0)),
        (Fault::Tag(TagFault::Invalid), (1, 0)),
        (Fault::Tag(TagFault::Bounds), (1, 1)),
        (Fault::Tag(TagFault::Stream), (1, 2)),
        (Fault::Tag(TagFault::Wrap), (1, 3)),
        (Fault::TaggedVersion, (1, 4)),
        (Fault::Queue, (2, 1)),
        (Fault::NoBuffer, (2, 2)),
        (Fault::Message, (2, 3)),
        (Fault::Offset, (2, 4)),
        (Fault::TooLong, (2, 5)),
        (Fault::UntaggedVersion, (2, 6)),
    ];
    for (fault, numbers) in faults {
        assert_eq!(fault.numbers(), numbers, "{fault:?}");
    }
}
