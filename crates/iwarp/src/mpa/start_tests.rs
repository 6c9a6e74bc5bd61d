//! The start of a connection: literal frames, every combination of wishes, every way to fail.

use std::format;
use std::string::String;
use std::vec::Vec;

use super::initiator::Answer;
use super::start::*;
use super::*;
use crate::tests::hex;

const REQ: &str = "4d504120494420526571204672616d65";
const REP: &str = "4d504120494420526570204672616d65";

fn initiator(wishes: Wishes, data: &[u8]) -> Initiator {
    Initiator::new(wishes, data, 0).expect("short data")
}

/// A responder that has read this request.
#[track_caller]
fn asked(wishes: Wishes, request: &str) -> Responder {
    let mut responder = Responder::new(wishes, 0);
    assert!(responder.input(&hex(request)).expect("a request").is_some());
    responder
}

#[track_caller]
fn accepted(initiator: &mut Initiator, reply: &[u8]) -> Agreed {
    let len = initiator.output().len();
    initiator.sent(len);
    match initiator.input(reply) {
        Ok(Answer::Accepted(agreed)) => agreed,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_request_of_siw_is_answered() {
    let mut responder = asked(Wishes::new(Role::Responder, 8), &format!("{REQ} 10 02 0006 0001 0001 abcd"));
    assert_eq!(responder.private_data(), [0xab, 0xcd]);
    let agreed = responder.accept(8, 8, b"ok").expect("short").expect("a request");
    assert_eq!(responder.output(), hex(&format!("{REP} 50 02 0006 0008 0001 6f6b")));
    assert_eq!((agreed.ird, agreed.ord, agreed.crc), (8, 1, true));
    assert_eq!((agreed.markers_in, agreed.markers_out, agreed.awaits_ready), (false, false, false));
    assert_eq!(responder.accept(8, 8, b""), Ok(None), "once");
}

#[test]
fn a_request_as_it_is_sent() {
    let wishes = Wishes { markers: true, ready: Some(ReadyKinds::QUIET), ..Wishes::new(Role::Initiator, 4) };
    let mut side = initiator(wishes, b"x");
    assert_eq!(side.output(), hex(&format!("{REQ} d0 02 0005 8004 c004 78")));
    side.sent(3);
    assert_eq!(side.output().len(), 20 + 5 - 3);
    let one = Wishes { revision: Revision::One, crc: false, ..Wishes::new(Role::Initiator, 4) };
    assert_eq!(initiator(one, b"x").output(), hex(&format!("{REQ} 00 01 0001 78")));
}

#[test]
fn private_data_up_to_512_bytes() {
    let one = Wishes { revision: Revision::One, ..Wishes::new(Role::Initiator, 1) };
    let two = Wishes::new(Role::Initiator, 1);
    assert!(Initiator::new(one, &[7; 512], 0).is_ok());
    assert!(Initiator::new(one, &[7; 513], 0).is_err());
    assert!(Initiator::new(two, &[7; 508], 0).is_ok());
    assert!(Initiator::new(two, &[7; 509], 0).is_err());
    let mut responder = Responder::new(Wishes::new(Role::Responder, 1), 0);
    assert!(matches!(responder.input(initiator(two, &[7; 508]).output()), Ok(Some(_))));
    assert_eq!(responder.private_data(), [7; 508]);
    assert!(responder.accept(1, 1, &[8; 509]).is_err());
    assert!(matches!(responder.accept(1, 1, &[8; 508]), Ok(Some(_))), "after one that was too long");
    let mut side = initiator(two, b"");
    accepted(&mut side, responder.output());
    assert_eq!(side.private_data(), [8; 508]);
}

#[test]
fn a_rejection_carries_data() {
    let mut responder = asked(Wishes::new(Role::Responder, 1), &format!("{REQ} 10 02 0004 0001 0001"));
    assert_eq!(responder.reject(b"no"), Ok(true));
    assert_eq!(responder.output(), hex(&format!("{REP} 70 02 0006 0001 0001 6e6f")));
    let mut side = initiator(Wishes::new(Role::Initiator, 1), b"");
    side.sent(24);
    assert_eq!(side.input(responder.output()), Ok(Answer::Rejected));
    assert_eq!(side.private_data(), b"no");
    assert_eq!(side.deadline(), None);
    assert_eq!(side.depths(), Some((1, 1)), "RFC 6581, section 9.1: also of a refusal");

    let mut responder = asked(Wishes::new(Role::Responder, 3), &format!("{REQ} 10 02 0004 8001 8001"));
    assert_eq!(responder.reject(b""), Ok(true));
    assert_eq!(
        responder.output(),
        hex(&format!("{REP} 70 02 0004 8003 8003")),
        "RFC 6581, section 9.2: the same model"
    );
}

#[test]
fn what_closes_the_connection() {
    let to_responder = |wishes: Wishes, text: &str| Responder::new(wishes, 0).input(&hex(text)).map(|_| ());
    let wishes = Wishes::new(Role::Responder, 1);
    assert_eq!(to_responder(wishes, &format!("{REP} 00 01 0000")), Err(Failure::Key));
    assert_eq!(to_responder(wishes, &"00".repeat(20)), Err(Failure::Key));
    assert_eq!(to_responder(wishes, &format!("{REQ} 00 03 0000")), Err(Failure::Revision));
    assert_eq!(to_responder(wishes, &format!("{REQ} 00 01 0201")), Err(Failure::Length));
    assert_eq!(to_responder(wishes, &format!("{REQ} 10 02 0003 000000")), Err(Failure::Length));
    assert_eq!(to_responder(wishes, &format!("{REQ} 00 01 0000 00")), Err(Failure::Early));
    let one = Wishes { revision: Revision::One, ..wishes };
    assert_eq!(to_responder(one, &format!("{REQ} 10 02 0004 0001 0001")), Err(Failure::Revision));

    let to_initiator = |text: &str| {
        let mut side = initiator(Wishes::new(Role::Initiator, 1), b"");
        side.sent(24);
        side.input(&hex(text)).map(|_| ())
    };
    assert_eq!(to_initiator(&format!("{REQ} 10 02 0004 0001 0001")), Err(Failure::Key), "two initiators");
    assert_eq!(to_initiator(&format!("{REP} 00 01 0000")), Err(Failure::Revision));
    assert_eq!(to_initiator(&format!("{REP} 10 02 0004 0001 0001 77")), Err(Failure::Early));
    let mut unsent = initiator(Wishes::new(Role::Initiator, 1), b"");
    let early = unsent.input(&hex(&format!("{REP} 10 02 0004 0001 0001")));
    assert_eq!(early, Err(Failure::Key), "a reply to what has not been sent");

    // A responder that knows revision 1 only closes; a new attempt is up to the initiator.
    assert!(initiator(Wishes::new(Role::Initiator, 1), b"").closed().suggests_revision_1());
    assert!(!Failure::Timeout.suggests_revision_1());
}

#[test]
fn an_initiator_that_sends_before_the_reply() {
    let mut responder = asked(Wishes::new(Role::Responder, 1), &format!("{REQ} 00 01 0000"));
    assert_eq!(responder.input(&[]), Ok(None));
    assert_eq!(responder.input(&[0]), Err(Failure::Early));
    assert_eq!(responder.accept(1, 1, b""), Ok(None), "after a failure");
}

#[test]
fn both_sides_have_their_timeouts() {
    let mut side = Initiator::new(Wishes::new(Role::Initiator, 1), b"", 100).expect("short");
    assert_eq!(side.deadline(), Some(100 + REPLY_TIMEOUT));
    assert_eq!(side.timeout(99 + REPLY_TIMEOUT), Ok(()));
    assert_eq!(side.timeout(100 + REPLY_TIMEOUT), Err(Failure::Timeout));
    assert_eq!((side.timeout(u64::MAX), side.deadline()), (Ok(()), None), "once");

    let mut responder = Responder::new(Wishes::new(Role::Responder, 1), 0);
    assert_eq!(responder.input(&hex(REQ)), Ok(None), "half of it");
    assert_eq!(responder.timeout(REQUEST_TIMEOUT), Err(Failure::Timeout));
    let mut responder = asked(Wishes::new(Role::Responder, 1), &format!("{REQ} 00 01 0000"));
    assert_eq!((responder.timeout(u64::MAX), responder.deadline()), (Ok(()), None), "the program may take its time");
}

#[test]
fn depths_are_negotiated() {
    let reply = |text: &str| {
        let mut side = initiator(Wishes::new(Role::Initiator, 4), b"");
        accepted(&mut side, &hex(&format!("{REP} 50 02 0004 {text}")))
    };
    assert_eq!((reply("0002 0003").ord, reply("0002 0003").unmet), (2, None), "lowered to what the responder takes");
    assert_eq!(reply("0009 0004").ord, 4);
    assert_eq!(reply("0009 0005").unmet, Some(Unmet::Ird));
    assert_eq!((reply("3fff 3fff").ord, reply("3fff 3fff").unmet), (4, None), "left to the programs");

    let answer = |text: &str| {
        let mut responder = asked(Wishes::new(Role::Responder, 4), &format!("{REQ} 10 02 0004 {text}"));
        let agreed = responder.accept(4, 4, b"").expect("short").expect("a request");
        let said: String = responder.output()[20..].iter().map(|byte| format!("{byte:02x}")).collect();
        (said, agreed.ird, agreed.ord)
    };
    assert_eq!(answer("0001 0009"), ("00040001".into(), 4, 1));
    assert_eq!(answer("3fff 0009"), ("00043fff".into(), 4, 4));
    assert_eq!(answer("0009 3fff"), ("3fff0004".into(), 4, 4));
}

#[test]
fn a_message_that_says_ready_is_chosen() {
    let all = ReadyKinds { send: true, write: true, read: true };
    let reply = |ours: ReadyKinds, text: &str| {
        let wishes = Wishes { ready: Some(ours), ..Wishes::new(Role::Initiator, 0) };
        let agreed = accepted(&mut initiator(wishes, b""), &hex(&format!("{REP} 50 02 0004 {text}")));
        (agreed.ready, agreed.ord, agreed.unmet)
    };
    assert_eq!(reply(all, "8001 c000"), (Some(Ready::Write), 0, None));
    assert_eq!(reply(all, "8001 4000"), (Some(Ready::Read), 1, None), "a READ has a place in any case");
    assert_eq!(reply(all, "c000 0000"), (Some(Ready::Send), 0, None));
    assert_eq!(reply(ReadyKinds::QUIET, "c000 0000"), (None, 0, Some(Unmet::Ready)));
    assert_eq!(reply(all, "0000 0000"), (None, 0, None), "a responder that knows client and server only");

    let answer = |ours: Option<ReadyKinds>, text: &str| {
        let wishes = Wishes { ready: ours, ..Wishes::new(Role::Responder, 0) };
        let mut responder = asked(wishes, &format!("{REQ} 10 02 0004 {text}"));
        let agreed = responder.accept(0, 0, b"").expect("short").expect("a request");
        (Vec::from(&responder.output()[20..]), agreed.awaits_ready, agreed.ird)
    };
    assert_eq!(answer(Some(ReadyKinds::QUIET), "c000 c000"), (hex("8001 c000"), true, 1));
    assert_eq!(answer(Some(ReadyKinds::QUIET), "8000 8000"), (hex("8000 8000"), true, 0));
    // RFC 6581, section 9.2: the responder takes up the initiator's model, and names a kind that it takes in any case.
    assert_eq!(answer(None, "c000 c000"), (hex("8001 c000"), true, 1));
    assert_eq!(answer(Some(ReadyKinds::default()), "c000 8000"), (hex("8000 8000"), true, 0));
    assert_eq!(answer(Some(ReadyKinds::QUIET), "c000 0000"), (hex("8001 c000"), true, 1));
    assert_eq!(answer(None, "4000 c000"), (hex("0000 0000"), false, 0), "kinds without the model are ignored");
    assert_eq!(answer(Some(ReadyKinds::QUIET), "0000 0000"), (hex("0000 0000"), false, 0));
}

#[test]
fn every_pair_of_wishes_in_every_segmentation() {
    let flags = [false, true];
    for bits in 0..256_u32 {
        let bit = |at: u32| flags[(bits >> at & 1) as usize];
        let revision = if bit(0) { Revision::One } else { Revision::Two };
        let ready = |yes: bool| yes.then_some(ReadyKinds::QUIET);
        let ours =
            Wishes { revision, markers: bit(1), crc: bit(2), ready: ready(bit(3)), ..Wishes::new(Role::Initiator, 3) };
        let theirs = Wishes { markers: bit(4), crc: bit(5), ready: ready(bit(6)), ..Wishes::new(Role::Responder, 2) };
        let (mut a, mut b) = (initiator(ours, b"question"), Responder::new(theirs, 0));
        let step = if bit(7) { 1 } else { 7 };
        let mut asked = None;
        while !a.output().is_empty() {
            let len = step.min(a.output().len());
            assert_eq!(asked, None);
            asked = b.input(&a.output()[..len]).expect("a request");
            a.sent(len);
        }
        assert!(asked.is_some());
        assert_eq!(b.private_data(), b"question");
        let at_b = b.accept(2, 2, b"answer").expect("short").expect("a request");
        let mut answer = Answer::None;
        while !b.output().is_empty() {
            let len = step.min(b.output().len());
            answer = a.input(&b.output()[..len]).expect("a reply");
            b.sent(len);
        }
        let Answer::Accepted(at_a) = answer else { panic!("{answer:?}") };
        assert_eq!(a.private_data(), b"answer");
        assert_eq!((at_a.crc, at_a.crc), (at_b.crc, ours.crc || theirs.crc));
        assert_eq!((at_a.markers_in, at_a.markers_out), (at_b.markers_out, at_b.markers_in));
        assert_eq!((at_a.markers_in, at_a.markers_out), (ours.markers, theirs.markers));
        let peer_to_peer = revision == Revision::Two && bit(3);
        assert_eq!((at_a.ready.is_some(), at_b.awaits_ready), (peer_to_peer, peer_to_peer));
        if revision == Revision::Two {
            assert!(at_a.ord <= at_b.ird && at_b.ord <= at_a.ird);
        }
        assert_eq!(at_a.unmet, None);
    }
}
