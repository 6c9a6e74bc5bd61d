//! Processes of which the kernel gives no number: those of other PID namespaces.

use std::os::fd::AsFd;
use std::sync::Arc;

use memory::backing::Memfd;
use memory::{Half, names};
use verbs::{Gid, Psn, Qpn};
use wire::prelude::*;
use wire::{Packet, PacketOp, Payload};

use super::*;
use crate::Config;
use crate::link::{Link, Side};
use crate::peers::{Route, monotonic};
use crate::rendezvous;

/// A process that knows no numbers of others.
fn nameless() -> WindowEnv {
    let mut env = WindowEnv::new(Config::default()).unwrap();
    env.nameless = true;
    env
}

fn localhost() -> Gid {
    let mut gid = Gid::ZERO;
    gid.0[15] = 1;
    gid
}

fn settle(envs: &mut [&mut WindowEnv]) {
    for _ in 0..8 {
        envs.iter_mut().for_each(|env| env.handle_events(monotonic()));
    }
}

fn claim(env: &mut WindowEnv) -> Qpn {
    Qpn::new(env.claim_block().unwrap())
}

/// Sends a packet from one to the other over a link of the first. True if the other finds one.
fn arrives(from: &mut WindowEnv, over: LinkId, to: &mut WindowEnv, link: LinkId) -> bool {
    let packet = Packet::new(PacketOp::Send, Qpn::new(9), Qpn::new(8), Psn::new(0));
    from.send(over, &packet, Payload::default()).unwrap();
    to.peek(link).is_some()
}

/// Each side has a link of its own and one of the peer's, and both lead to the peer; also if but one side connects at
/// first.
#[test]
fn links_of_one_process() {
    for both in [true, false] {
        let (mut a, mut b) = (nameless(), nameless());
        let (ours, theirs) = (claim(&mut a), claim(&mut b));
        let own = a.resolve(&localhost(), theirs).unwrap();
        if both {
            b.resolve(&localhost(), ours).unwrap();
        }
        settle(&mut [&mut a, &mut b]);
        let back = b.resolve(&localhost(), ours).unwrap();
        settle(&mut [&mut a, &mut b]);
        let [_, first, second] = a.links()[..] else { panic!("{:?}", a.links()) };
        assert_eq!(first, own);
        assert!(a.same_peer(first, second) && b.same_peer(b.links()[1], b.links()[2]));
        assert!(arrives(&mut b, back, &mut a, second));
    }
}

/// Links to different blocks of one process lead to it, however they came.
#[test]
fn several_blocks() {
    let (mut a, mut b) = (nameless(), nameless());
    let (_, second) = (claim(&mut a), claim(&mut a));
    let (_, other) = (claim(&mut b), claim(&mut b));
    let to_second = b.resolve(&localhost(), second).unwrap();
    let to_other = a.resolve(&localhost(), other).unwrap();
    settle(&mut [&mut a, &mut b]);
    for (env, own) in [(&a, to_other), (&b, to_second)] {
        for &link in &env.links()[1..] {
            assert!(env.same_peer(own, link) && env.link(link).unwrap().state == State::Up, "{link:?}");
        }
    }
}

/// One side knows the other's number, as a parent namespace knows those of its children.
#[test]
fn one_side_knows_numbers() {
    for (a_first, b_first) in [(true, true), (true, false), (false, true)] {
        let (mut a, mut b) = (nameless(), nameless());
        a.nameless = false;
        let (ours, theirs) = (claim(&mut a), claim(&mut b));
        if a_first {
            a.resolve(&localhost(), theirs).unwrap();
        }
        if b_first {
            b.resolve(&localhost(), ours).unwrap();
        }
        settle(&mut [&mut a, &mut b]);
        let (there, back) = (a.resolve(&localhost(), theirs).unwrap(), b.resolve(&localhost(), ours).unwrap());
        settle(&mut [&mut a, &mut b]);
        for &link in &b.links()[1..] {
            assert!(b.same_peer(back, link) && b.link(link).unwrap().state == State::Up, "{link:?}");
        }
        assert!(a.links()[1..].iter().all(|&link| a.same_peer(there, link)));
    }
}

/// A process that says what another one says, and names its block, is not taken for it.
#[test]
fn what_is_copied_does_not_help() {
    let (mut a, mut b, mut m) = (nameless(), nameless(), nameless());
    let (ours, theirs) = (claim(&mut a), claim(&mut b));
    let own = a.resolve(&localhost(), theirs).unwrap();
    b.resolve(&localhost(), ours).unwrap();
    settle(&mut [&mut a, &mut b]);
    let before = a.links().len();

    let (socket, ..) = names::seek(&rendezvous::block_name((ours.get() >> 12) as u16), false).unwrap();
    let (window, memfd) = Memfd::create(Half::WINDOW).unwrap();
    let greeting = Greeting {
        instance: b.instance,
        nonce_addr: 0,
        single_copy: true,
        secret: [5; SECRET],
        block: (theirs.get() >> 12) as u16,
    };
    socket::send(&socket, &Message::Hello(greeting), &[memfd.as_fd()]).unwrap();
    // Something to take a remote from: its own link to the victim.
    let its_own = m.resolve(&localhost(), ours).unwrap();
    let remote = m.link_mut(its_own).unwrap().remote.take().unwrap();
    let mut its = Link::new(Arc::new(window), Side::Maker, remote).unwrap();
    assert!(its.producer.push_short(&[0; 5], false, 0));
    socket::send(&socket, &Message::Echo { secret: [5; SECRET], block: 1 }, &[]).unwrap();
    socket::send(&socket, &Message::Echo { secret: [0; SECRET], block: (theirs.get() >> 12) as u16 }, &[]).unwrap();
    settle(&mut [&mut a, &mut b, &mut m]);
    let forged = *a
        .links()
        .iter()
        .skip(before)
        .find(|id| a.remote_of(**id).is_some_and(|r| r.instance == Some(b.instance)))
        .unwrap();
    assert!(!a.same_peer(own, forged) && a.peek(forged).is_none());
    assert!(a.link(forged).unwrap().state == State::Held);
    // The victim's peer does not take it for the victim either.
    assert!(b.links()[1..].iter().all(|&link| b.same_peer(b.links()[1], link)));
}

/// A process that was given a secret does not get it returned by another process, which would be taken for it.
#[test]
fn a_secret_that_is_passed_on_does_not_help() {
    let (mut a, mut b, mut m) = (nameless(), nameless(), nameless());
    let [ours, theirs, its] = [&mut a, &mut b, &mut m].map(claim);
    a.resolve(&localhost(), theirs).unwrap();
    b.resolve(&localhost(), ours).unwrap();
    // What `b` gives to `m`.
    let given = b.resolve(&localhost(), its).unwrap();
    settle(&mut [&mut a, &mut b, &mut m]);
    let (secret, _) = b.remote_of(given).unwrap().identity.own.unwrap();
    let (socket, ..) = names::seek(&rendezvous::block_name((ours.get() >> 12) as u16), false).unwrap();
    let (_window, memfd) = Memfd::create(Half::WINDOW).unwrap();
    let block = (theirs.get() >> 12) as u16;
    let hello = Greeting { instance: b.instance, nonce_addr: 0, single_copy: true, secret, block };
    socket::send(&socket, &Message::Hello(hello), &[memfd.as_fd()]).unwrap();
    settle(&mut [&mut a, &mut b, &mut m]);
    let to_a = b.resolve(&localhost(), ours).unwrap();
    assert!(!b.same_peer(to_a, given), "another process was taken for the peer");
    let from_a = b.links()[1..].iter().filter(|&&link| b.same_peer(link, to_a)).count();
    assert_eq!(from_a, 2);
}

/// An ECHO that a peer repeats is not worked on again.
#[test]
fn what_is_repeated_changes_nothing() {
    let (mut a, mut b) = (nameless(), nameless());
    let (ours, theirs) = (claim(&mut a), claim(&mut b));
    let own = a.resolve(&localhost(), theirs).unwrap();
    b.resolve(&localhost(), ours).unwrap();
    settle(&mut [&mut a, &mut b]);
    let visitor = a.links()[2];
    let told = a.remote_of(own).unwrap().identity.own.unwrap();
    let known = |a: &mut WindowEnv| a.link_mut(visitor).unwrap().remote.as_mut().unwrap().identity.known;
    assert!(a.same_peer(own, visitor) && known(&mut a));
    // Going over the links would mark all of this peer's.
    a.link_mut(visitor).unwrap().remote.as_mut().unwrap().identity.known = false;
    a.hear_secret(visitor, &told);
    assert!(!known(&mut a));
}

/// A visitor to which no link back could be made at first; the block of its maker.
fn visitor_without_a_link_back(a: &mut WindowEnv, b: &mut WindowEnv) -> (LinkId, u16) {
    let (ours, theirs) = (claim(a), claim(b));
    let block = (theirs.get() >> 12) as u16;
    let at = monotonic() + PATIENCE / 2;
    // This is the state after an attempt that has failed for want of a descriptor.
    a.routes.insert(block, Route::Retry { at, pause: FIRST_PAUSE, met: false });
    b.resolve(&localhost(), ours).unwrap();
    settle(&mut [a, b]);
    let visitor = a.links()[1];
    assert!(a.link(visitor).unwrap().state == State::Held && a.route_to(block).is_none());
    (visitor, block)
}

#[test]
fn a_link_back_that_failed_is_tried_again() {
    let (mut a, mut b) = (nameless(), nameless());
    let (visitor, block) = visitor_without_a_link_back(&mut a, &mut b);
    let due = a.deadline().unwrap();
    a.routes.remove(&block);
    a.handle_events(due - 1);
    assert!(a.route_to(block).is_none(), "before its time");
    a.handle_events(due);
    assert!(a.route_to(block).is_some());
    settle(&mut [&mut a, &mut b]);
    assert!(a.link(visitor).unwrap().state == State::Up && a.deadline().is_none());
}

/// Each pause is longer than the one before, and in the end the visitor is turned away.
#[test]
fn a_visitor_without_a_link_back_is_turned_away() {
    let (mut a, mut b) = (nameless(), nameless());
    let (visitor, _) = visitor_without_a_link_back(&mut a, &mut b);
    let (began, mut attempts) = (monotonic(), 0);
    while let Some(due) = a.deadline() {
        a.handle_events(due);
        attempts += 1;
        assert!(due <= began + PATIENCE && attempts < 16, "{due} {began} {attempts}");
    }
    assert!(a.link(visitor).unwrap().state == State::Dead && attempts > 8, "{attempts}");
    settle(&mut [&mut a, &mut b]);
    assert!(b.has_ending_links(), "its maker sees that, and connects anew");
}
