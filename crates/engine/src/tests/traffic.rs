//! Operations that succeed, on quiet and on bad networks.

use verbs::{Opcode, QpType, RKey, SendBody, SendData, SendFlags, SendWr, WcOpcode, WcStatus};

use super::mock::*;

const SECOND: u64 = 1_000_000_000;

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

/// Sends, writes and reads of many sizes, checked byte for byte.
fn exchange(w: &mut World, a: usize, b: usize, label: &str) {
    let (qa, qb) = w.pair(a, b, QpType::Rc);
    let same = a == b;
    for (i, len) in [0usize, 1, 7, 64, 1000, 1024, 1025, 4096, 16384, 16385, 70_000, 300_001].into_iter().enumerate() {
        let data = pattern(len, i as u8);
        w.write(a, 0, &data);
        let landing = 0x8_0000;
        w.write(b, landing, &vec![0xEE; len + 1]);
        let split = (len / 3) as u32;
        let sges = [w.sge(a, 0, split), w.sge(a, u64::from(split), len as u32 - split)];
        let into = [w.sge(b, landing, split / 2), w.sge(b, landing + u64::from(split / 2), len as u32 + 1)];
        w.recv(b, qb, &into, 100 + i as u64).unwrap();
        w.post(a, qa, Opcode::SendWithImm, SendBody::Plain, &sges, i as u64).unwrap();
        w.run_for(20 * SECOND);
        let mut got = w.poll(a);
        if !same {
            got.extend(w.poll(b));
        }
        let send = got.iter().find(|c| c.opcode == WcOpcode::Send).unwrap_or_else(|| panic!("{label} {len}: {got:?}"));
        assert_eq!((send.status, send.wr_id), (WcStatus::Success, i as u64), "{label} send {len}");
        let recv = got.iter().find(|c| c.opcode == WcOpcode::Recv).unwrap_or_else(|| panic!("{label} {len}: {got:?}"));
        assert_eq!((recv.status, recv.byte_len as usize), (WcStatus::Success, len), "{label} recv {len}");
        assert_eq!(recv.imm_or_rkey, 0x1234_5678);
        assert_eq!(w.read(b, landing, len), data, "{label} send {len}");
        assert_eq!(w.read(b, landing + len as u64, 1), [0xEE], "{label} send {len} wrote too far");

        w.write(b, landing, &vec![0xEE; len + 1]);
        let body = w.rdma(b, landing);
        w.post(a, qa, Opcode::RdmaWrite, body, &sges, 1).unwrap();
        let back = [w.sge(a, 0x10_0000, len as u32)];
        w.post(a, qa, Opcode::RdmaRead, body, &back, 2).unwrap();
        w.run_for(20 * SECOND);
        let got = w.poll(a);
        assert_eq!(
            got.iter().map(|c| c.status).collect::<Vec<_>>(),
            [WcStatus::Success; 2],
            "{label} rdma {len}: {got:?}"
        );
        assert_eq!(w.read(b, landing, len), data, "{label} write {len}");
        assert_eq!(w.read(a, 0x10_0000, len), data, "{label} read {len}");
    }
}

#[test]
fn quiet_network() {
    for single_copy in [false, true] {
        let mut w = World::new(2, 1);
        w.net.borrow_mut().single_copy = single_copy;
        exchange(&mut w, 0, 1, "two nodes");
        exchange(&mut w, 1, 1, "loopback");
    }
}

#[test]
fn single_copy_denied_falls_back() {
    let mut w = World::new(2, 1);
    (w.net.borrow_mut().single_copy, w.net.borrow_mut().deny_single_copy) = (true, true);
    exchange(&mut w, 0, 1, "denied");
}

#[test]
fn narrow_link() {
    let mut w = World::new(2, 3);
    (w.net.borrow_mut().room, w.net.borrow_mut().segment) = (2, 4096);
    exchange(&mut w, 0, 1, "narrow");
}

#[test]
fn bad_network() {
    let mut lost = 0;
    for seed in 1..300 {
        let mut w = World::new(2, seed);
        (w.net.borrow_mut().lose, w.net.borrow_mut().repeat) = (60, 60);
        w.net.borrow_mut().segment = 8192;
        w.net.borrow_mut().single_copy = seed % 2 == 0;
        (w.net.borrow_mut().fickle, w.net.borrow_mut().maps) = (seed % 4 == 0, false);
        exchange(&mut w, 0, 1, &format!("seed {seed}"));
        lost += w.net.borrow().lost;
    }
    assert!(lost > 1000, "the network was not bad");
}

/// Many requests in flight on a bad network: atomics count exactly, messages keep their order.
#[test]
fn bad_network_pipelined() {
    for seed in 1..200 {
        let mut w = World::new(2, seed * 77);
        (w.net.borrow_mut().lose, w.net.borrow_mut().repeat) = (40, 40);
        let (qa, qb) = w.pair(0, 1, QpType::Rc);
        let atomic =
            SendBody::Atomic { remote_addr: BASE + 0x1_0000, rkey: RKey(w.nodes[1].key), compare_add: 3, swap: 0 };
        let (mut sent, mut received, mut done) = (0u64, Vec::new(), 0);
        for round in 0..8u64 {
            for i in 0..16 {
                let into = [w.sge(1, 0x2_0000 + 8 * i, 8)];
                w.recv(1, qb, &into, round * 16 + i).unwrap();
                let n = round * 16 + i;
                w.write(0, 8 * n, &n.to_ne_bytes());
                let from = [w.sge(0, 8 * n, 8)];
                w.post(0, qa, Opcode::Send, SendBody::Plain, &from, n).unwrap();
                let result = [w.sge(0, 0x4_0000 + 8 * n, 8)];
                w.post(0, qa, Opcode::FetchAndAdd, atomic, &result, n).unwrap();
                sent += 1;
            }
            w.run_for(30 * SECOND);
            for c in w.poll(1) {
                assert_eq!(c.status, WcStatus::Success, "seed {seed}");
                let at = 0x2_0000 + 8 * (c.wr_id % 16);
                received.push(u64::from_ne_bytes(w.read(1, at, 8).try_into().unwrap()));
            }
            for c in w.poll(0) {
                assert_eq!(c.status, WcStatus::Success, "seed {seed}: {c:?}");
                if c.opcode == WcOpcode::FetchAdd {
                    let old = u64::from_ne_bytes(w.read(0, 0x4_0000 + 8 * c.wr_id, 8).try_into().unwrap());
                    assert_eq!(old, 3 * c.wr_id, "seed {seed}: each atomic runs once");
                    done += 1;
                }
            }
        }
        assert_eq!(received, (0..sent).collect::<Vec<_>>(), "seed {seed}");
        assert_eq!(done, sent, "seed {seed}");
    }
}

#[test]
fn inline_write_imm_and_unsignaled() {
    let mut w = World::new(2, 9);
    let (qa, qb) = w.pair(0, 1, QpType::Rc);
    w.recv(1, qb, &[], 5).unwrap();
    let wr = SendWr {
        wr_id: 1,
        opcode: Opcode::RdmaWriteWithImm,
        flags: SendFlags::empty(),
        imm_or_rkey: 0xabcd,
        remote_srqn: 0,
        body: &w.rdma(1, 64),
        data: SendData::Inline(&[b"hel", b"", b"lo world, this is longer than one entry of the queue is wide, really"]),
    };
    w.post_wr(0, qa, &wr).unwrap();
    w.run_for(SECOND);
    assert!(w.poll(0).is_empty());
    let got = w.poll(1);
    assert_eq!((got[0].opcode, got[0].byte_len, got[0].imm_or_rkey), (WcOpcode::RecvRdmaWithImm, 71, 0xabcd));
    assert!(w.read(1, 64, 71).starts_with(b"hello world, this"));
}

#[test]
fn unreliable_connection_and_datagrams() {
    let mut w = World::new(2, 4);
    let (qa, qb) = w.pair(0, 1, QpType::Uc);
    let data = pattern(50_000, 3);
    w.write(0, 0, &data);
    let (from, into) = ([w.sge(0, 0, 50_000)], [w.sge(1, 0, 50_000)]);
    w.post(0, qa, Opcode::Send, SendBody::Plain, &from, 1).unwrap(); // no receive is posted: lost
    w.settle();
    assert_eq!(w.poll(0)[0].status, WcStatus::Success);
    assert!(w.poll(1).is_empty());
    w.recv(1, qb, &into, 2).unwrap();
    w.post(0, qa, Opcode::Send, SendBody::Plain, &from, 3).unwrap();
    w.settle();
    assert_eq!(w.poll(1)[0].byte_len, 50_000);
    assert_eq!(w.read(1, 0, 50_000), data);

    let ((ua, _), (ub, nb)) = (w.qp(0, QpType::Ud), w.qp(1, QpType::Ud));
    for (node, qp) in [(0, ua), (1, ub)] {
        w.connect(node, qp, World::attr(nb, 0, 0));
    }
    let pd = w.nodes[0].pd;
    let ah_attr = World::attr(nb, 0, 0).ah;
    let ah = w.nodes[0].engine.create_ah(pd, &ah_attr).unwrap();
    let body = |qkey| SendBody::Datagram { ah, remote_qpn: nb, remote_qkey: qkey };
    let (from, into) = ([w.sge(0, 0, 100)], [w.sge(1, 0x1000, 140)]);
    w.recv(1, ub, &into, 9).unwrap();
    w.post(0, ua, Opcode::Send, body(0x999), &from, 1).unwrap(); // wrong key: dropped
    w.post(0, ua, Opcode::Send, body(0x11), &from, 2).unwrap();
    w.settle();
    let got = w.poll(1);
    assert_eq!((got.len(), got[0].byte_len, got[0].wr_id), (1, 140, 9));
    assert_eq!(w.read(1, 0x1028, 100), data[..100]);
    // Which header it is: UCX reads it from `sl`, as ConnectX adapters have it.
    assert_eq!((got[0].sl, w.read(1, 0x1000, 1)[0] >> 4), (9, 6));
    let v4 = verbs::Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1]);
    w.nodes[0].engine.set_gids(vec![v4]);
    let ah = w.nodes[0].engine.create_ah(pd, &verbs::AhAttr { dgid: v4, ..ah_attr }).unwrap();
    let body = SendBody::Datagram { ah, remote_qpn: nb, remote_qkey: 0x11 };
    w.recv(1, ub, &into, 9).unwrap();
    w.post(0, ua, Opcode::Send, body, &from, 3).unwrap();
    w.settle();
    assert_eq!((w.poll(1)[0].sl, w.read(1, 0x1014, 1)), (10, vec![0x45]));
}

/// A receiver that is late loses no message that a wire would still carry. A receiver that posts no receives loses its
/// messages.
#[test]
fn late_receiver() {
    for ty in [QpType::Uc, QpType::Ud] {
        let mut w = World::new(2, 4);
        let (qa, qb) = if ty == QpType::Uc {
            w.pair(0, 1, ty)
        } else {
            let ((a, _), (b, nb)) = (w.qp(0, ty), w.qp(1, ty));
            w.connect(0, a, World::attr(nb, 0, 0));
            w.connect(1, b, World::attr(nb, 0, 0));
            (a, b)
        };
        let body = if ty == QpType::Uc {
            SendBody::Plain
        } else {
            let attr = World::attr(verbs::Qpn::new(0), 0, 0).ah;
            let pd = w.nodes[0].pd;
            let ah = w.nodes[0].engine.create_ah(pd, &attr).unwrap();
            let remote_qpn = verbs::Qpn::new(2 * crate::QPN_BLOCK);
            SendBody::Datagram { ah, remote_qpn, remote_qkey: 0x11 }
        };
        let into = [w.sge(1, 0x1000, 4200)];
        w.recv(1, qb, &into, 0).unwrap();
        for i in 0..10u8 {
            w.write(0, u64::from(i) * 100, &[i; 100]);
            let from = [w.sge(0, u64::from(i) * 100, 100)];
            w.post(0, qa, Opcode::Send, body, &from, u64::from(i)).unwrap();
        }
        w.settle();
        assert_eq!(w.poll(1).len(), 1, "{ty:?}");
        for i in 1..10u8 {
            w.recv(1, qb, &into, u64::from(i)).unwrap();
            let got = w.poll(1);
            assert_eq!(got.len(), 1, "{ty:?} {i}");
            assert_eq!(w.read(1, 0x1000 + if ty == QpType::Ud { 40 } else { 0 }, 100), [i; 100], "{ty:?}");
        }
        let from = [w.sge(0, 0, 100)];
        w.post(0, qa, Opcode::Send, body, &from, 0).unwrap();
        w.run_for(SECOND); // too late for the next one
        w.recv(1, qb, &into, 0).unwrap();
        assert!(w.poll(1).is_empty(), "{ty:?}");
    }
}

/// A datagram waits for room on a full link, and is lost when none comes.
#[test]
fn full_link_of_a_stopped_peer() {
    let mut w = World::new(2, 4);
    w.net.borrow_mut().room = 4;
    let ((a, _), (b, nb)) = (w.qp(0, QpType::Ud), w.qp(1, QpType::Ud));
    w.connect(0, a, World::attr(nb, 0, 0));
    w.connect(1, b, World::attr(nb, 0, 0));
    let (pd, attr) = (w.nodes[0].pd, World::attr(nb, 0, 0).ah);
    let ah = w.nodes[0].engine.create_ah(pd, &attr).unwrap();
    let body = SendBody::Datagram { ah, remote_qpn: nb, remote_qkey: 0x11 };
    let from = [w.sge(0, 0, 100)];
    for i in 0..10 {
        w.post(0, a, Opcode::Send, body, &from, i).unwrap();
    }
    assert_eq!(w.poll(0).len(), 4);
    w.now += SECOND;
    let now = w.now;
    w.nodes[0].engine.expire(now);
    w.nodes[0].engine.run(now);
    assert_eq!(w.poll(0).len(), 6);
}
