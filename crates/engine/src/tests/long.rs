//! Long messages: on slow and bad networks, and with pieces that change their way.

use verbs::{Opcode, QpType, SendBody, WcStatus as St};

use super::mock::*;
use super::recovery::{MS, SECOND, pair_with, statuses};

/// 9.7.5.1.2: a long message is acknowledged on its way. Otherwise its sender would take a slow link for a dead peer.
#[test]
fn long_message_on_a_slow_link() {
    let mut w = World::new(2, 5);
    w.net.borrow_mut().room = 4;
    let (qa, _) = pair_with(&mut w, |attr| (attr.timeout, attr.retry_cnt) = (14, 0));
    let (from, body) = ([w.sge(0, 0, 1 << 21)], w.rdma(1, 0));
    w.post(0, qa, Opcode::RdmaWrite, body, &from, 1).unwrap();
    for _ in 0..400 {
        // A packet in a millisecond: 128 in all, the timeout is 67.
        w.now += MS;
        let now = w.now;
        w.deliver(0, 1, 1);
        w.nodes[0].engine.expire(now);
        w.run_all();
        w.deliver(1, 0, 64);
        w.run_all();
    }
    assert_eq!(statuses(&mut w, 0), [St::Success]);
}

/// Memory that peers map goes by single copy where other memory goes through the link, and the way may change within a
/// message.
#[test]
fn large_messages_go_as_the_link_wants() {
    for (above, shared, by_ref) in [(16384, None, true), (u32::MAX, None, false), (u32::MAX, Some(16384), true)] {
        let mut w = World::new(2, 5);
        {
            let mut net = w.net.borrow_mut();
            (net.single_copy, net.single_copy_above, net.shared_above) = (true, above, shared);
        }
        let (qa, qb) = w.pair(0, 1, QpType::Rc);
        let (data, into) = ((0..50_000).map(|i| (i % 251) as u8).collect::<Vec<_>>(), [w.sge(1, 0, 50_000)]);
        w.write(0, 0, &data);
        w.recv(1, qb, &into, 7).unwrap();
        w.post(0, qa, Opcode::Send, SendBody::Plain, &[w.sge(0, 0, 50_000)], 1).unwrap();
        let queued =
            w.net.borrow().queues[&(0, 1)].iter().map(|m| m.packet.has(wire::packet_flags::BY_REF)).collect::<Vec<_>>();
        assert!(!queued.is_empty() && queued.iter().all(|single_copy| *single_copy == by_ref), "{queued:?}");
        w.settle();
        assert_eq!(statuses(&mut w, 0), [St::Success]);
        assert!(w.read(1, 0, 50_000) == data);
    }
    // The peer falls asleep while the message fills the link.
    let mut w = World::new(2, 5);
    {
        let mut net = w.net.borrow_mut();
        (net.single_copy, net.single_copy_above, net.shared_above, net.maps) = (true, u32::MAX, Some(16384), false);
        net.room = 2;
    }
    let (qa, qb) = w.pair(0, 1, QpType::Rc);
    let (data, into) = ((0..200_000).map(|i| (i % 241) as u8).collect::<Vec<_>>(), [w.sge(1, 0, 200_000)]);
    w.write(0, 0, &data);
    w.recv(1, qb, &into, 7).unwrap();
    w.post(0, qa, Opcode::Send, SendBody::Plain, &[w.sge(0, 0, 200_000)], 1).unwrap();
    w.net.borrow_mut().single_copy_above = 16384;
    w.settle();
    assert_eq!(statuses(&mut w, 0), [St::Success]);
    assert!(w.read(1, 0, 200_000) == data);
}

/// A peer that sleeps gets a lone message by single copy; a message behind one under way finds it awake.
#[test]
fn what_follows_a_large_message_may_go_another_way() {
    let mut w = World::new(2, 5);
    {
        let mut net = w.net.borrow_mut();
        (net.single_copy, net.single_copy_above, net.flowing_above) = (true, 16384, Some(u32::MAX));
        (net.shared_above, net.maps) = (Some(16384), false);
    }
    let (qa, qb) = w.pair(0, 1, QpType::Rc);
    let data = (0..100_000).map(|i| (i % 251) as u8).collect::<Vec<_>>();
    w.write(0, 0, &data);
    for (at, id) in [(0, 1), (50_000, 2)] {
        w.recv(1, qb, &[w.sge(1, at, 50_000)], id).unwrap();
        w.post(0, qa, Opcode::Send, SendBody::Plain, &[w.sge(0, at, 50_000)], id).unwrap();
    }
    let by_ref = |w: &World| {
        let single_copy = |m: &Msg| m.packet.has(wire::packet_flags::BY_REF);
        w.net.borrow().queues[&(0, 1)].iter().map(single_copy).collect::<Vec<_>>()
    };
    assert_eq!(by_ref(&w), [true, false, false, false, false]);
    w.settle();
    assert_eq!(statuses(&mut w, 0), [St::Success; 2]);
    assert!(w.read(1, 0, 100_000) == data);
}

/// Pieces of a message that went small, and have been executed in part, do not come again as larger ones. The first
/// larger one would begin with bytes that the peer has had, and be taken for a repetition of them.
#[test]
fn pieces_do_not_grow() {
    let mut w = World::new(2, 5);
    {
        let mut net = w.net.borrow_mut();
        (net.single_copy, net.single_copy_above, net.shared_above) = (true, u32::MAX, Some(16384));
        net.maps = false;
    }
    let (qa, qb) = pair_with(&mut w, |attr| (attr.timeout, attr.retry_cnt) = (14, 1));
    let (data, into) = ((0..200_000).map(|i| (i % 241) as u8).collect::<Vec<_>>(), [w.sge(1, 0, 200_000)]);
    w.write(0, 0, &data);
    w.recv(1, qb, &into, 7).unwrap();
    w.post(0, qa, Opcode::Send, SendBody::Plain, &[w.sge(0, 0, 200_000)], 1).unwrap();
    w.deliver(0, 1, 3);
    w.net.borrow_mut().queues.clear();
    w.net.borrow_mut().single_copy_above = 16384;
    w.run_for(68 * MS);
    assert_eq!(statuses(&mut w, 0), [St::Success], "by the first timeout");
    assert!(w.read(1, 0, 200_000) == data);
}

/// Single copies become possible only after the first try, since the peer's answer about them was still on its way: the
/// pieces of the second try are no larger.
#[test]
fn pieces_do_not_grow_when_single_copies_become_possible() {
    let mut w = World::new(2, 5);
    let (qa, qb) = pair_with(&mut w, |attr| (attr.timeout, attr.retry_cnt) = (14, 1));
    let (data, into) = ((0..200_000).map(|i| (i % 241) as u8).collect::<Vec<_>>(), [w.sge(1, 0, 200_000)]);
    w.write(0, 0, &data);
    w.recv(1, qb, &into, 7).unwrap();
    w.post(0, qa, Opcode::Send, SendBody::Plain, &[w.sge(0, 0, 200_000)], 1).unwrap();
    w.deliver(0, 1, 3);
    w.net.borrow_mut().queues.clear();
    w.net.borrow_mut().single_copy = true;
    w.run_for(68 * MS);
    assert_eq!(statuses(&mut w, 0), [St::Success], "by the first timeout");
    assert!(w.read(1, 0, 200_000) == data);
}

/// Long messages, acknowledged on their way, on a bad network: also the tries again begin on the way.
#[test]
fn long_messages_on_a_bad_network() {
    for seed in 1..40 {
        let mut w = World::new(2, seed);
        (w.net.borrow_mut().lose, w.net.borrow_mut().repeat) = (30, 30);
        w.net.borrow_mut().single_copy = seed % 2 == 0;
        let (qa, qb) = w.pair(0, 1, QpType::Rc);
        let len = 1_900_001;
        let data: Vec<u8> = (0..len).map(|i| (i / 7) as u8).collect();
        w.write(0, 0, &data);
        let (from, body) = ([w.sge(0, 0, len as u32)], w.rdma(1, 9));
        for i in 0..2 {
            let into = [w.sge(1, 5, len as u32)];
            w.recv(1, qb, &into, i).unwrap();
            w.post(0, qa, Opcode::RdmaWrite, body, &from, i).unwrap();
            w.post(0, qa, Opcode::Send, SendBody::Plain, &from, i).unwrap();
        }
        w.run_for(100 * SECOND);
        assert_eq!(statuses(&mut w, 0), [St::Success; 4], "seed {seed}");
        assert_eq!(statuses(&mut w, 1), [St::Success; 2], "seed {seed}");
        assert!(w.read(1, 5, len) == data, "seed {seed}");
    }
}
