//! Requests of UC and XRC that the initiator executes.

use verbs::{
    Opcode, QpAttr, QpAttrMask, QpId, QpInit, QpState, QpType, Qpn, RKey, SendBody, SendData, SendFlags, SendWr,
    WcStatus as St,
};

use super::mock::*;

const SECOND: u64 = 1_000_000_000;

fn statuses(w: &mut World, node: usize) -> Vec<St> {
    w.poll(node).iter().map(|c| c.status).collect()
}

fn quiet(w: &World) -> bool {
    w.net.borrow().queues.values().all(|q| q.is_empty())
}

fn executed(w: &World) -> u64 {
    w.net.borrow().executed
}

fn fresh() -> World {
    let w = World::new(2, 9);
    w.net.borrow_mut().one_sided = true;
    w
}

/// Two nodes that reach each other's memory, and an unreliable connection.
fn unreliable() -> (World, QpId, QpId) {
    let mut w = fresh();
    let (qa, qb) = w.pair(0, 1, QpType::Uc);
    w.write(0, 0, &[7; 64]);
    (w, qa, qb)
}

fn write(w: &mut World, qp: QpId, at: u64, rkey: RKey, id: u64) {
    let from = [w.sge(0, 0, 8)];
    w.post(0, qp, Opcode::RdmaWrite, SendBody::Rdma { remote_addr: BASE + at, rkey }, &from, id).unwrap();
}

#[test]
fn uc() {
    let (mut w, qa, _) = unreliable();
    let key = RKey(w.nodes[1].key);
    for n in 1..=3 {
        write(&mut w, qa, 64 * n, key, n);
        assert_eq!((w.read(1, 64 * n, 8), executed(&w), quiet(&w)), (vec![7; 8], n, true), "without the peer");
    }
    assert_eq!(statuses(&mut w, 0), [St::Success; 3]);
}

/// IBTA vol. 1, 9.8.2.2.7: a request that is not allowed is dropped without a notice. The next is executed.
#[test]
fn uc_that_is_not_allowed_is_dropped() {
    let (mut w, qa, qb) = unreliable();
    let key = RKey(w.nodes[1].key);
    write(&mut w, qa, 64, RKey(key.0 ^ 1), 1);
    write(&mut w, qa, ARENA as u64 - 7, key, 2);
    w.run_for(SECOND);
    assert_eq!((statuses(&mut w, 0), statuses(&mut w, 1)), (vec![St::Success; 2], vec![]));
    assert_eq!((w.read(1, 64, 8), executed(&w)), (vec![0; 8], 0));
    assert!([(0, qa), (1, qb)].iter().all(|(node, qp)| w.nodes[*node].engine.qp_state(*qp) == Ok(QpState::Rts)));
    write(&mut w, qa, 64, key, 3);
    assert_eq!((w.read(1, 64, 8), executed(&w), statuses(&mut w, 0)), (vec![7; 8], 1, vec![St::Success]));
}

/// No request passes a message that was sent before and has not been taken, nor one that was taken and waits for a
/// receive.
#[test]
fn uc_in_order() {
    let (mut w, qa, qb) = unreliable();
    let key = RKey(w.nodes[1].key);
    let (from, into) = ([w.sge(0, 0, 8)], [w.sge(1, 1000, 8)]);
    w.recv(1, qb, &into, 1).unwrap();
    w.post(0, qa, Opcode::Send, SendBody::Plain, &from, 1).unwrap();
    write(&mut w, qa, 64, key, 2);
    assert_eq!((executed(&w), w.read(1, 64, 8)), (0, vec![0; 8]));
    w.settle();
    assert_eq!((w.read(1, 64, 8), w.read(1, 1000, 8)), (vec![7; 8], vec![7; 8]));
    write(&mut w, qa, 128, key, 3);
    assert_eq!((executed(&w), w.read(1, 128, 8)), (1, vec![7; 8]));
    // Without a receive the message waits, and so do those behind it.
    w.post(0, qa, Opcode::Send, SendBody::Plain, &from, 4).unwrap();
    w.settle();
    write(&mut w, qa, 192, key, 5);
    w.settle();
    assert_eq!((executed(&w), w.read(1, 192, 8)), (1, vec![0; 8]));
    w.recv(1, qb, &into, 2).unwrap();
    assert_eq!(w.read(1, 192, 8), [7; 8]);
    write(&mut w, qa, 256, key, 6);
    assert_eq!((executed(&w), w.read(1, 256, 8)), (2, vec![7; 8]));
    assert_eq!((statuses(&mut w, 0), statuses(&mut w, 1)), (vec![St::Success; 6], vec![St::Success; 2]));
}

/// A message that has waited too long is lost; then the way is free again.
#[test]
fn uc_behind_what_is_lost() {
    let (mut w, qa, qb) = unreliable();
    let key = RKey(w.nodes[1].key);
    let (from, into) = ([w.sge(0, 0, 8)], [w.sge(1, 1000, 8)]);
    w.recv(1, qb, &into, 1).unwrap();
    for id in 1..3 {
        w.post(0, qa, Opcode::Send, SendBody::Plain, &from, id).unwrap();
        w.settle();
    }
    w.now += SECOND;
    write(&mut w, qa, 64, key, 3);
    assert_eq!(executed(&w), 0, "something waits");
    w.settle();
    write(&mut w, qa, 128, key, 4);
    assert_eq!((executed(&w), w.read(1, 128, 8), w.read(1, 1000, 8)), (1, vec![7; 8], vec![7; 8]));
}

/// 11.6.3.1: the first message in RTR is an event, so the request is sent.
#[test]
fn uc_before_rts() {
    let mut w = fresh();
    let ((qa, na), (qb, nb)) = (w.qp(0, QpType::Uc), w.qp(1, QpType::Uc));
    w.connect(0, qa, World::attr(nb, 0, 0));
    w.connect_up_to(QpState::Rtr, 1, qb, World::attr(na, 0, 0));
    let key = RKey(w.nodes[1].key);
    write(&mut w, qa, 64, key, 1);
    w.settle();
    let established = |n: &crate::Notice| matches!(n, crate::Notice::Async { kind: verbs::EventKind::CommEst, .. });
    assert_eq!((executed(&w), w.nodes[1].notices.iter().filter(|n| established(n)).count()), (0, 1));
    write(&mut w, qa, 128, key, 2);
    assert_eq!(executed(&w), 1);
}

/// A queue pair that has left its connection; rights that it has not; one of another service, or connected elsewhere.
#[test]
fn uc_out_of_reach() {
    for case in ["error", "reset", "rights", "service", "peer"] {
        let (mut w, qa, qb) = unreliable();
        let key = RKey(w.nodes[1].key);
        let to = |state| QpAttr { state, ..Default::default() };
        match case {
            "error" => w.modify(1, qb, &to(QpState::Err), QpAttrMask::STATE).unwrap(),
            "reset" => w.modify(1, qb, &to(QpState::Reset), QpAttrMask::STATE).unwrap(),
            "rights" => w.modify(1, qb, &to(QpState::Rts), QpAttrMask::ACCESS_FLAGS).unwrap(),
            _ => {
                let service = if case == "peer" { QpType::Uc } else { QpType::Rc };
                let ((new, _), (other, number)) = (w.qp(0, QpType::Uc), w.qp(1, service));
                let own = w.nodes[0].engine.query_qp(qb).unwrap().0.dest_qp_num;
                w.connect(1, other, World::attr(Qpn::new(own + 77), 5, 5));
                w.connect(0, new, World::attr(number, 0, 0));
                write(&mut w, new, 64, key, 1);
            }
        }
        if !matches!(case, "service" | "peer") {
            write(&mut w, qa, 64, key, 1);
        }
        w.run_for(SECOND);
        assert_eq!((statuses(&mut w, 0), w.read(1, 64, 8), executed(&w)), (vec![St::Success], vec![0; 8], 0), "{case}");
    }
}

/// In pieces, with the end of the way in the middle.
#[test]
fn uc_in_pieces() {
    for breaks in [false, true] {
        let (mut w, qa, _) = unreliable();
        w.nodes[0].engine.piece = 4096;
        let len = 3 * 4096 + 1;
        w.write(0, 0, &vec![5; len]);
        let (body, from) = (w.rdma(1, 8192), [w.sge(0, 0, len as u32)]);
        w.post(0, qa, Opcode::RdmaWrite, body, &from, 1).unwrap();
        assert_eq!((executed(&w), w.poll(0).len()), (1, 0));
        w.net.borrow_mut().one_sided = !breaks;
        w.settle();
        assert_eq!((statuses(&mut w, 0), w.read(1, 8192, len)), (vec![St::Success], vec![5; len]));
        assert_eq!(executed(&w), if breaks { 1 } else { 4 });
    }
}

/// An initiator and a target, which has no domain: it reaches the regions of its context.
#[test]
fn xrc() {
    let mut w = fresh();
    w.net.borrow_mut().shares = true;
    let (qa, na) = w.qp(0, QpType::XrcIni);
    let n = &mut w.nodes[1];
    let xrcd = n.engine.open_xrcd(n.ctx, None, true, false).unwrap();
    let init = QpInit {
        pd: None,
        qp_type: QpType::XrcTgt,
        send_cq: None,
        recv_cq: None,
        srq: None,
        xrcd: Some(xrcd),
        cap: cap(),
        sq_sig_all: false,
    };
    // Another domain of the same context, and a domain of another context.
    let pd = n.engine.alloc_pd(n.ctx).unwrap();
    let (_, _, key) = n.engine.reg_mr(pd, BASE, 4096, BASE, ALL).unwrap();
    let ctx = n.engine.open_ctx().unwrap();
    let pd = n.engine.alloc_pd(ctx).unwrap();
    let (_, _, foreign) = n.engine.reg_mr(pd, BASE, 4096, BASE, ALL).unwrap();
    let (qb, nb) = w.qp_of(1, &init);
    w.connect(0, qa, World::attr(nb, 0, 0));
    w.connect(1, qb, World::attr(na, 0, 0));
    w.write(0, 0, &[7; 64]);
    write(&mut w, qa, 64, key, 1);
    assert_eq!(executed(&w), 0, "nobody has answered yet");
    w.settle();
    write(&mut w, qa, 128, key, 2);
    assert_eq!((executed(&w), w.read(1, 128, 8), quiet(&w)), (1, vec![7; 8], true));
    let into = [w.sge(0, 512, 8)];
    let body = SendBody::Rdma { remote_addr: BASE + 128, rkey: key };
    w.post(0, qa, Opcode::RdmaRead, body, &into, 3).unwrap();
    let body = SendBody::Atomic { remote_addr: BASE + 256, rkey: key, compare_add: 5, swap: 0 };
    let wr = SendWr {
        wr_id: 4,
        opcode: Opcode::FetchAndAdd,
        flags: SendFlags::SIGNALED,
        imm_or_rkey: 0,
        remote_srqn: 0,
        body: &body,
        data: SendData::Sges(&into[..]),
    };
    assert_eq!((executed(&w), w.read(0, 512, 8)), (2, vec![7; 8]));
    w.post_wr(0, qa, &wr).unwrap();
    assert_eq!((executed(&w), w.read(1, 256, 8), quiet(&w)), (3, 5u64.to_ne_bytes().to_vec(), true));
    assert_eq!(statuses(&mut w, 0), [St::Success; 4]);
    write(&mut w, qa, 64, foreign, 5);
    w.run_for(SECOND);
    assert_eq!((statuses(&mut w, 0), executed(&w)), (vec![St::RemAccessErr], 3));
    assert_eq!(w.nodes[1].engine.qp_state(qb), Ok(QpState::Err));
}
