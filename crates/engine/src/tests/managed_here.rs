//! What queues with tasks execute without a packet and without a list: NOPs, WAITs, and RDMA to their own process.

use verbs::{Access, Count, Opcode, QpInit, QpState, QpType, SendBody, SendData, SendFlags, SendWr, WcStatus};

use super::managed::Bench;
use super::mock::{World, cap};
use crate::{Managed, QueueRules, Side};

const ALL: Count = Count::Relative { count: 0, last: true };

fn post(b: &mut Bench, opcode: Opcode, flags: SendFlags, wr_id: u64) {
    let sge = [b.w.sge(0, 0, 8)];
    let data = SendData::Sges(if opcode == Opcode::Send { &sge } else { &[] });
    let wr = SendWr { wr_id, opcode, flags, imm_or_rkey: 0, remote_srqn: 0, body: &SendBody::Plain, data };
    b.w.post_wr(0, b.qp, &wr).unwrap();
}

/// NOPs of a circle are executed in their places, also behind a message that is not acknowledged. One that completes
/// does so in its turn.
#[test]
fn nops_pass_and_completions_do_not() {
    let rules = QueueRules { cyclic: true, ..QueueRules::default() };
    let mut b = Bench::new(8, Some(rules), None);
    let into = [b.w.sge(1, 0x100, 8)];
    b.w.recv(1, b.peer, &into, 0).unwrap();
    let none = SendFlags::empty();
    for (opcode, flags) in [
        (Opcode::Nop, none),
        (Opcode::Send, none),
        (Opcode::Nop, none),
        (Opcode::Nop, SendFlags::SIGNALED),
        (Opcode::Nop, none),
    ] {
        post(&mut b, opcode, flags, 7);
    }
    let now = b.w.now;
    b.w.nodes[0].engine.enable(b.qp, Side::Send, ALL).unwrap();
    b.w.nodes[0].engine.run(now);
    let listed = |b: &Bench| {
        let qp = b.w.nodes[0].engine.qps.get(b.qp).unwrap();
        (qp.sq.fetched, qp.inflight.iter().map(|e| e.number).collect::<Vec<_>>())
    };
    assert_eq!(listed(&b), (5, vec![1, 3]), "the message, and what completes behind it");
    assert!(b.w.nodes[0].engine.done.is_empty(b.cq), "no completion passes the message");
    assert_eq!(b.good(), [7]);
    assert_eq!(listed(&b), (5, vec![]));
}

/// Two queue pairs of node 0 that are connected to each other; the first one's sends are managed.
fn within_one_process() -> Bench {
    let mut b = Bench::new(8, Some(QueueRules::default()), None);
    b.w.net.borrow_mut().one_sided = true;
    let n = &mut b.w.nodes[0];
    let (cq, pd) = (Some(b.cq), Some(n.pd));
    let init = QpInit {
        pd,
        qp_type: QpType::Rc,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        xrcd: None,
        cap: cap(),
        sq_sig_all: false,
    };
    let sends = super::managed::Array::new(cap().max_send_wr, cap().max_send_sge);
    let managed = Managed { send: Some((sends.clone(), QueueRules::default())), recv: None };
    let (first, created) = n.engine.create_managed_qp(n.ctx, &init, 1, &managed).unwrap();
    let (second, number) = b.w.qp_of(0, &init);
    b.w.connect(0, first, World::attr(number, 0, 0));
    b.w.connect(0, second, World::attr(created.qpn, 0, 0));
    (b.qp, b.peer, b.sends) = (first, second, sends);
    b
}

/// WRITEs to each of these places, one after the other: how many were executed without a packet, and what completed.
/// An answered request comes first: only then both sides are known to be connected.
fn writes(b: &mut Bench, places: [u64; 2]) -> (u64, Vec<(u64, WcStatus)>) {
    let mut ended = Vec::new();
    for (n, place) in (1..).zip(places) {
        b.w.write(0, 0, &[n as u8; 8]);
        let (body, sge) = (b.w.rdma(0, place), b.w.sge(0, 0, 8));
        b.w.post(0, b.qp, Opcode::RdmaWrite, body, &[sge], n).unwrap();
        b.enable(Side::Send, ALL).unwrap();
        ended.extend(b.ended());
    }
    (b.w.net.borrow().executed, ended)
}

#[test]
fn a_managed_queue_writes_to_its_own_process_without_a_packet() {
    let mut b = within_one_process();
    let good = WcStatus::Success;
    assert_eq!(writes(&mut b, [0x200, 0x200]), (1, vec![(1, good), (2, good)]), "the second one, by itself");
    assert_eq!(b.w.read(0, 0x200, 8), [2; 8]);
}

#[test]
fn what_the_own_process_does_not_allow_is_refused_by_the_responder() {
    let mut b = within_one_process();
    let ended = vec![(1, WcStatus::Success), (2, WcStatus::RemAccessErr)];
    assert_eq!(writes(&mut b, [0x200, 1 << 40]), (0, ended), "outside of the region");
    let mut b = within_one_process();
    let place = b.w.nodes[0].engine.qps.get(b.peer).unwrap().attr;
    assert_eq!(writes(&mut b, [0x200, 0x208]).0, 1);
    let attr = verbs::QpAttr { access: Access::REMOTE_READ, state: QpState::Rts, ..place };
    b.w.modify(0, b.peer, &attr, verbs::QpAttrMask::ACCESS_FLAGS).unwrap();
    let (executed, ended) = writes(&mut b, [0x210, 0x210]);
    assert_eq!((executed, ended[0]), (1, (1, WcStatus::RemInvReqErr)), "the queue pair allows READs only");
    assert_eq!(b.w.read(0, 0x210, 8), [0; 8]);
}

/// A completion queue that overruns while requests make room ends the queue pair: nothing is executed behind its end.
#[test]
fn nothing_is_executed_behind_an_overrun() {
    let mut b = Bench::new(8, Some(QueueRules::default()), None);
    b.w.net.borrow_mut().one_sided = true;
    let n = &mut b.w.nodes[0];
    let small = n.engine.create_cq(n.ctx, 2, 0, crate::CqOpts::default()).unwrap().0;
    let (cq, pd) = (Some(small), Some(n.pd));
    let cap = verbs::QpCap { max_send_wr: 8, max_inline_data: 0, ..cap() };
    let init =
        QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, xrcd: None, cap, sq_sig_all: true };
    let sends = super::managed::Array::new(cap.max_send_wr, cap.max_send_sge);
    let rules = QueueRules { cyclic: true, ..QueueRules::default() };
    let managed = Managed { send: Some((sends.clone(), rules)), recv: None };
    let (first, created) = n.engine.create_managed_qp(n.ctx, &init, 1, &managed).unwrap();
    let (second, number) = b.w.qp_of(0, &init);
    b.w.connect(0, first, World::attr(number, 0, 0));
    b.w.connect(0, second, World::attr(created.qpn, 0, 0));
    (b.qp, b.peer, b.sends) = (first, second, sends);
    for i in 0..8u64 {
        let (body, sge) = (b.w.rdma(0, 0x200 + 8 * i), b.w.sge(0, 0, 8));
        b.w.post(0, b.qp, Opcode::RdmaWrite, body, &[sge], i).unwrap();
    }
    b.enable(Side::Send, Count::Absolute(1)).unwrap(); // answered: only then both sides are known to be connected
    b.w.nodes[0].engine.poll(small, 8, |_, _: &verbs::Completion| {});
    b.enable(Side::Send, Count::Absolute(60)).unwrap();
    let qp = b.w.nodes[0].engine.qps.get(b.qp).unwrap();
    assert_eq!((qp.state, qp.sq.fetched), (QpState::Err, 9), "one circle, and what made room for the next");
    assert_eq!(b.w.net.borrow().executed, 8);
}
