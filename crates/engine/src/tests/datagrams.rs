//! Datagrams that are dropped, and requests that a queue pair for datagrams cannot execute.

use verbs::{AhId, Opcode, QpId, QpState, QpType, Qpn, RecvWr, SendBody, SrqId, SrqInit, WcStatus as St};

use super::mock::*;

const QKEY: u32 = 0x11;

fn ah(w: &mut World, pd: verbs::PdId) -> AhId {
    w.nodes[0].engine.create_ah(pd, &World::attr(Qpn::new(0), 0, 0).ah).unwrap()
}

/// Two queue pairs, and the way of the first one's datagrams to the other.
fn two(srq: Option<SrqId>, w: &mut World) -> (QpId, QpId, SendBody) {
    let ((a, _), (b, nb)) = (w.qp(0, QpType::Ud), w.qp_with(1, QpType::Ud, srq, cap(), false));
    w.connect(0, a, World::attr(nb, 0, 0));
    w.connect(1, b, World::attr(nb, 0, 0));
    let pd = w.nodes[0].pd;
    (a, b, SendBody::Datagram { ah: ah(w, pd), remote_qpn: nb, remote_qkey: QKEY })
}

/// 9.9.3, class D: the receive stays, and takes the next datagram that fits.
#[test]
fn one_that_is_too_long_is_dropped_and_takes_no_receive() {
    for shared in [false, true] {
        let mut w = World::new(2, 4);
        let srq = shared.then(|| {
            let n = &mut w.nodes[1];
            let init = SrqInit { pd: n.pd, max_wr: 4, max_sge: 2, limit: 0, xrc: None };
            n.engine.create_srq(n.ctx, &init, 3).unwrap().0
        });
        let (a, b, body) = two(srq, &mut w);
        let into = [w.sge(1, 0, 100), w.sge(1, 100, 39)];
        match srq {
            Some(srq) => w.nodes[1].engine.post_srq_recv(srq, &RecvWr { wr_id: 9, sges: &into }, 0).unwrap(),
            None => w.recv(1, b, &into, 9).unwrap(),
        }
        for (id, len) in [(1, 100), (2, 4096), (3, 99)] {
            let from = [w.sge(0, 0, len)];
            w.post(0, a, Opcode::Send, body, &from, id).unwrap();
        }
        w.settle();
        assert_eq!(w.poll(0).len(), 3);
        let got = w.poll(1);
        assert_eq!((got.len(), got[0].wr_id, got[0].status, got[0].byte_len), (1, 9, St::Success, 139));
        let engine = &w.nodes[1].engine;
        assert_eq!(engine.qp_state(b), Ok(QpState::Rts));
        assert_eq!(engine.qps.get(b).unwrap().counts.counters.too_long, 2);
    }
}

/// 11.6.2, 10.3.1.6: posted, completed with a local operation error; the send queue stops, receives go on.
#[test]
fn what_the_service_has_not_completes_in_error() {
    let rdma = |w: &mut World| (Opcode::RdmaRead, w.rdma(1, 0));
    let foreign = |w: &mut World| {
        let ctx = w.nodes[0].ctx;
        let pd = w.nodes[0].engine.alloc_pd(ctx).unwrap();
        let body = SendBody::Datagram { ah: ah(w, pd), remote_qpn: Qpn::new(2 * crate::QPN_BLOCK), remote_qkey: QKEY };
        (Opcode::Send, body)
    };
    type Bad = fn(&mut World) -> (Opcode, SendBody);
    for bad in [rdma as Bad, foreign] {
        let mut w = World::new(2, 4);
        let (a, b, good) = two(None, &mut w);
        let (list, into) = ([w.sge(0, 0, 8)], [w.sge(1, 0, 48)]);
        w.recv(1, b, &into, 9).unwrap();
        let (opcode, body) = bad(&mut w);
        w.post(0, a, opcode, body, &list, 1).unwrap();
        w.post(0, a, Opcode::Send, good, &list, 2).unwrap();
        w.settle();
        let got: Vec<_> = w.poll(0).iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(got, [(1, St::LocQpOpErr), (2, St::WrFlushErr)]);
        assert_eq!(w.nodes[0].engine.qp_state(a), Ok(QpState::Sqe));
        assert!(w.poll(1).is_empty());
    }
}

/// Each member of a group gets a datagram. A member is waited for like a lone peer: for a while, and not again before
/// it takes something.
#[test]
fn members_of_a_group_whose_links_are_full_are_waited_for() {
    const GROUP: verbs::Gid = verbs::Gid([0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    let mut w = World::new(3, 4);
    w.net.borrow_mut().room = 4;
    let qps: Vec<_> = (0..3).map(|node| w.qp(node, QpType::Ud)).collect();
    for (node, (id, _)) in qps.iter().enumerate() {
        w.connect(node, *id, World::attr(Qpn::new(0), 0, 0));
    }
    for node in [1, 2] {
        let into = [w.sge(node, 0, 48)];
        w.nodes[node].engine.attach_mcast(qps[node].0, &GROUP).unwrap();
        for id in 0..20 {
            w.recv(node, qps[node].0, &into, id).unwrap();
        }
    }
    let pd = w.nodes[0].pd;
    let attr = verbs::AhAttr { dgid: GROUP, ..World::attr(Qpn::new(0), 0, 0).ah };
    let ah = w.nodes[0].engine.create_ah(pd, &attr).unwrap();
    let body = SendBody::Datagram { ah, remote_qpn: Qpn::MULTICAST, remote_qkey: QKEY };
    let list = [w.sge(0, 0, 8)];
    for id in 0..10 {
        w.post(0, qps[0].0, Opcode::Send, body, &list, id).unwrap();
    }
    assert_eq!(w.poll(0).len(), 4);
    // One member makes room, the other does not: datagrams to the first wait for the second, for a while.
    w.deliver(0, 1, usize::MAX);
    w.run_all();
    assert_eq!((w.poll(0).len(), w.poll(1).len()), (0, 4));
    w.deliver(0, 1, usize::MAX);
    assert_eq!(w.poll(1).len(), 1, "the fifth, and only once");
    let no_room = |w: &World| w.nodes[0].engine.qps.get(qps[0].0).unwrap().counts.counters.no_room;
    assert_eq!(no_room(&w), 0);
    w.now += 1_000_000_000;
    for _ in 0..3 {
        let now = w.now;
        w.nodes[0].engine.expire(now);
        w.run_all();
        w.deliver(0, 1, usize::MAX);
    }
    assert_eq!((w.poll(0).len(), w.poll(1).len()), (6, 5), "the rest waits for the second no more");
    assert_eq!(no_room(&w), 6);
    // The second member makes room, and is waited for again.
    w.deliver(0, 2, usize::MAX);
    assert_eq!(w.poll(2).len(), 4);
    for id in 0..5 {
        w.post(0, qps[0].0, Opcode::Send, body, &list, id).unwrap();
        w.deliver(0, 1, usize::MAX);
    }
    assert_eq!((w.poll(0).len(), no_room(&w)), (4, 6));
}
