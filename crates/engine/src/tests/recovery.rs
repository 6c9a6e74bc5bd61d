//! Mishaps between two well-behaved queue pairs: packets that are lost or come twice, links without room, late
//! receives; and how the queue pairs recover.

use verbs::{EventKind, LKey, Opcode, QpAttrMask as M, QpState, QpType, RKey, SendBody, Sge, WcStatus as St};

use super::mock::*;
use crate::Notice;

pub(super) const MS: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1_000 * MS;

pub(super) fn statuses(w: &mut World, node: usize) -> Vec<St> {
    w.poll(node).iter().map(|c| c.status).collect()
}

/// Both ends with other attributes than usual.
pub(super) fn pair_with(w: &mut World, change: impl Fn(&mut verbs::QpAttr)) -> (verbs::QpId, verbs::QpId) {
    let ((qa, na), (qb, nb)) = (w.qp(0, QpType::Rc), w.qp(1, QpType::Rc));
    for (node, qp, mut attr) in [(0, qa, World::attr(nb, 0xff_fff0, 100)), (1, qb, World::attr(na, 100, 0xff_fff0))] {
        change(&mut attr);
        w.connect(node, qp, attr);
    }
    (qa, qb)
}

/// 9.7.6.1.3, 9.7.5.2.8: after the wait that an RNR NAK asks for, the request is timed like any other.
#[test]
fn timer_after_receiver_not_ready() {
    let mut w = World::new(2, 5);
    let (qa, _) = w.pair(0, 1, QpType::Rc);
    let from = [w.sge(0, 0, 8)];
    w.post(0, qa, Opcode::Send, SendBody::Plain, &from, 1).unwrap();
    w.run_for(150 * MS); // longer than the acknowledgement timeout
    assert!(w.poll(0).is_empty());
    w.net.borrow_mut().lose = 1000; // the peer dies
    w.run_for(10 * SECOND);
    assert_eq!(statuses(&mut w, 0), [St::RetryExcErr]);
}

/// The time of a post may be old: the timer runs from the reading of the clock, and not from long before.
#[test]
fn timer_set_by_a_time_past() {
    for (read, wanted) in [(true, None), (false, Some(St::RetryExcErr))] {
        let mut w = World::new(2, 5);
        let (qa, _) = pair_with(&mut w, |attr| attr.retry_cnt = 0);
        w.net.borrow_mut().lose = 1000;
        let from = [w.sge(0, 0, 8)];
        w.post(0, qa, Opcode::Send, SendBody::Plain, &from, 1).unwrap();
        // The true time of the post is so much later.
        w.now += SECOND;
        if read {
            w.nodes[0].engine.catch_up(SECOND);
        } else {
            w.nodes[0].engine.catch_up(0);
        }
        w.run_for(MS);
        assert_eq!(w.poll(0).first().map(|c| c.status), wanted, "{read}");
        // Nothing is moved twice.
        w.nodes[0].engine.catch_up(100 * SECOND);
        w.run_for(10 * SECOND);
        let late = if read { vec![St::RetryExcErr] } else { vec![] };
        assert_eq!(statuses(&mut w, 0), late, "{read}");
    }
}

/// A timeout that is set in SQD (table 91) holds for requests under way, too, though nothing else happens.
#[test]
fn timeout_set_while_requests_are_under_way() {
    let mut w = World::new(2, 5);
    let (qa, _) = pair_with(&mut w, |attr| (attr.timeout, attr.retry_cnt) = (0, 0));
    w.net.borrow_mut().lose = 1000;
    let from = [w.sge(0, 0, 8)];
    w.post(0, qa, Opcode::Send, SendBody::Plain, &from, 1).unwrap();
    let mut attr = World::attr(verbs::Qpn::new(0), 0, 0);
    for (state, mask) in [(QpState::Sqd, M::empty()), (QpState::Sqd, M::TIMEOUT), (QpState::Rts, M::empty())] {
        attr.state = state;
        w.modify(0, qa, &attr, mask).unwrap();
    }
    w.run_for(SECOND);
    assert_eq!(statuses(&mut w, 0), [St::RetryExcErr]);
}

/// 9.7.5.1: the response of one READ is not taken for another's.
#[test]
fn lost_response_of_one_read() {
    let mut w = World::new(2, 5);
    let (qa, _) = w.pair(0, 1, QpType::Rc);
    w.write(1, 0, &[1; 3000]);
    w.write(1, 3000, &[2; 3000]);
    for i in 0..2 {
        let (body, into) = (w.rdma(1, 3000 * i), [w.sge(0, 3000 * i, 3000)]);
        w.post(0, qa, Opcode::RdmaRead, body, &into, i).unwrap();
    }
    w.deliver(0, 1, 2);
    w.run_all();
    assert_eq!(w.drop_packets(1, 0, 0, 1), 1);
    w.run_for(SECOND);
    assert_eq!(statuses(&mut w, 0), [St::Success; 2]);
    assert_eq!(w.read(0, 0, 3000), [1; 3000]);
    assert_eq!(w.read(0, 3000, 3000), [2; 3000]);
}

/// Several READs that the peer may not answer by single copy: all are asked for again, in order, and without a retry.
#[test]
fn reads_denied_single_copy_in_one_batch() {
    let mut w = World::new(2, 5);
    (w.net.borrow_mut().single_copy, w.net.borrow_mut().deny_single_copy) = (true, true);
    let (qa, _) = pair_with(&mut w, |attr| attr.retry_cnt = 0);
    for i in 0..3u64 {
        w.write(1, 20_000 * i, &[1 + i as u8; 20_000]);
        let (body, into) = (w.rdma(1, 20_000 * i), [w.sge(0, 20_000 * i, 20_000)]);
        w.post(0, qa, Opcode::RdmaRead, body, &into, i).unwrap();
    }
    w.deliver(0, 1, 3);
    w.run_all();
    w.deliver(1, 0, 3);
    w.run_all();
    w.run_for(SECOND);
    assert_eq!(statuses(&mut w, 0), [St::Success; 3]);
    for i in 0..3u64 {
        assert_eq!(w.read(0, 20_000 * i, 20_000), [1 + i as u8; 20_000]);
    }
}

/// A receive of which a part is discarded (`ibv_alloc_null_mr(3)`): the first piece of the message went by single copy,
/// the rest cannot.
#[test]
fn single_copy_send_into_null_region() {
    let mut w = World::new(2, 5);
    w.net.borrow_mut().single_copy = true;
    let (qa, qb) = w.pair(0, 1, QpType::Rc);
    let pd = w.nodes[1].pd;
    let (_, null) = w.nodes[1].engine.reg_null_mr(pd).unwrap();
    let len = 3 << 19;
    w.write(0, 0, &vec![9; len]);
    let into = [w.sge(1, 0, 1 << 20), Sge { addr: 0, length: 1 << 20, lkey: null }];
    w.recv(1, qb, &into, 7).unwrap();
    let from = [w.sge(0, 0, len as u32)];
    w.post(0, qa, Opcode::Send, SendBody::Plain, &from, 1).unwrap();
    w.run_for(SECOND);
    assert_eq!(statuses(&mut w, 0), [St::Success]);
    let got = w.poll(1);
    assert_eq!((got[0].status, got[0].byte_len as usize), (St::Success, len));
    assert_eq!(w.read(1, 0, 1 << 20), vec![9; 1 << 20]);
}

/// 9.7.4.1.1: requests before a bad one are answered before its NAK.
#[test]
fn reads_before_a_bad_request_are_answered() {
    let mut w = World::new(2, 5);
    let (qa, qb) = w.pair(0, 1, QpType::Rc);
    w.write(1, 0, &[3; 64]);
    let (body, into) = (w.rdma(1, 0), [w.sge(0, 0, 64)]);
    w.post(0, qa, Opcode::RdmaRead, body, &into, 1).unwrap();
    let body = SendBody::Rdma { remote_addr: BASE, rkey: RKey(w.nodes[1].key ^ 1) };
    w.post(0, qa, Opcode::RdmaWrite, body, &into, 2).unwrap();
    w.deliver(0, 1, 2);
    w.run_for(SECOND);
    assert_eq!(statuses(&mut w, 0), [St::Success, St::RemAccessErr]);
    assert_eq!(w.read(0, 0, 64), [3; 64]);
    assert_eq!(w.nodes[1].engine.qp_state(qb), Ok(QpState::Err));
}

/// 9.7.4.1.7: a READ that is asked for again takes no more resources than it had.
#[test]
fn repeated_read_is_not_one_too_many() {
    let mut w = World::new(2, 5);
    let (qa, qb) = pair_with(&mut w, |attr| (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (1, 1));
    let (body, into) = (w.rdma(1, 0), [w.sge(0, 0, 64)]);
    w.post(0, qa, Opcode::RdmaRead, body, &into, 1).unwrap();
    w.post(0, qa, Opcode::RdmaRead, body, &into, 2).unwrap();
    w.deliver(0, 1, 1);
    w.run_all();
    // The answer is late: the request goes out again, then the answer comes.
    w.now += 70 * MS;
    let now = w.now;
    w.nodes[0].engine.expire(now);
    w.nodes[0].engine.run(now);
    w.deliver(1, 0, 1);
    w.nodes[0].engine.run(now);
    assert_eq!(w.deliver(0, 1, 2), 2);
    w.run_for(SECOND);
    assert_eq!(w.nodes[1].engine.qp_state(qb), Ok(QpState::Rts));
    assert_eq!(statuses(&mut w, 0), [St::Success; 2]);
}

/// A queue pair that waited for room on the link to one peer, and is connected to another.
#[test]
fn reset_while_waiting_for_room() {
    let mut w = World::new(3, 5);
    w.net.borrow_mut().room = 1;
    let (qa, _) = w.pair(0, 1, QpType::Rc);
    let from = [w.sge(0, 0, 8)];
    for i in 0..3 {
        let body = w.rdma(1, 0);
        w.post(0, qa, Opcode::RdmaWrite, body, &from, i).unwrap();
    }
    let mut attr = World::attr(verbs::Qpn::new(0), 0, 0);
    attr.state = QpState::Reset;
    w.modify(0, qa, &attr, verbs::QpAttrMask::empty()).unwrap();
    let na = w.nodes[0].engine.qps.get(qa).unwrap().qpn;
    let (qc, nc) = w.qp(2, QpType::Rc);
    w.connect(0, qa, World::attr(nc, 5, 6));
    w.connect(2, qc, World::attr(na, 6, 5));
    let body = w.rdma(2, 0);
    w.post(0, qa, Opcode::RdmaWrite, body, &from, 7).unwrap();
    assert_eq!(w.deliver(0, 2, 1), 1);
    w.nodes[2].engine.run(0);
    w.deliver(2, 0, 1);
    assert_eq!(statuses(&mut w, 0), [St::Success]);
}

/// Two queue pairs that wait for room on one link take turns.
#[test]
fn turns_on_a_full_link() {
    let mut w = World::new(2, 5);
    w.net.borrow_mut().room = 2;
    let ((qa, _), (qb, peer)) = (w.pair(0, 1, QpType::Rc), w.pair(0, 1, QpType::Rc));
    let (from, body) = ([w.sge(0, 0, 8)], w.rdma(1, 0));
    for i in 0..60 {
        w.post(0, qa, Opcode::RdmaWrite, body, &from, i).unwrap();
    }
    w.post(0, qb, Opcode::RdmaWrite, body, &from, 100).unwrap();
    let now = w.now;
    for _ in 0..6 {
        assert_eq!(w.deliver(0, 1, 1), 1);
        w.nodes[0].engine.run(now);
    }
    assert_eq!(w.nodes[1].engine.qps.get(peer).unwrap().rc.msn, 1);
}

/// 9.7.2: no more than half of the sequence numbers are outstanding.
#[test]
fn sequence_numbers_do_not_overtake_themselves() {
    let mut w = World::new(2, 5);
    w.net.borrow_mut().single_copy = true;
    w.net.borrow_mut().room = 1 << 20;
    let cap = verbs::QpCap { max_send_wr: 4000, ..cap() };
    let ((qa, na), (qb, nb)) = (w.qp_with(0, QpType::Rc, None, cap, true), w.qp(1, QpType::Rc));
    for (node, qp, mut attr) in [(0, qa, World::attr(nb, 1, 2)), (1, qb, World::attr(na, 2, 1))] {
        attr.path_mtu = 1; // 256 bytes
        w.connect(node, qp, attr);
    }
    let (from, body) = ([w.sge(0, 0, 1 << 21)], w.rdma(1, 0));
    for i in 0..3000 {
        w.post(0, qa, Opcode::RdmaWrite, body, &from, i).unwrap();
    }
    let qp = w.nodes[0].engine.qps.get(qa).unwrap();
    let outstanding: u64 = qp.inflight.iter().map(|e| u64::from(e.psns)).sum();
    assert!(outstanding < 1 << 23, "{outstanding}");
    w.net.borrow_mut().queues.clear(); // all are lost
    w.run_for(100 * SECOND);
    assert!(w.poll(0).iter().all(|c| c.status == St::Success));
    assert!(w.nodes[0].engine.qps.get(qa).unwrap().inflight.is_empty());
}

/// The memory for owed responses does not grow with the requests that a peer repeats without taking the answers.
#[test]
fn answers_that_nobody_takes() {
    let mut w = World::new(2, 5);
    w.net.borrow_mut().room = 1;
    let (qa, qb) = w.pair(0, 1, QpType::Rc);
    let from = [w.sge(0, 0, 8)];
    w.post(0, qa, Opcode::Send, SendBody::Plain, &from, 1).unwrap();
    let again = w.net.borrow().queues[&(0, 1)][0].clone();
    for _ in 0..100_000 {
        w.net.borrow_mut().queues.entry((0, 1)).or_default().push_front(again.clone());
        w.deliver(0, 1, 1);
    }
    assert!(w.nodes[1].engine.qps.get(qb).unwrap().rc.responses.len() < 10_000);
}

/// Has time pass for node 1, and not for its peer. Gives the completions there.
fn alone_for_seconds(w: &mut World) -> Vec<(u64, St)> {
    for _ in 0..100 {
        w.now += 67_200_000;
        let now = w.now;
        w.nodes[1].engine.run(now);
        w.nodes[1].engine.expire(now);
    }
    w.poll(1).into_iter().map(|c| (c.wr_id, c.status)).collect()
}

/// A peer that is stopped makes no room, so responses to it stay here. Its silence is found out all the same by the
/// requests that are posted behind them.
#[test]
fn a_request_behind_an_answer_without_room_times_out() {
    for posted_before in [false, true] {
        let mut w = World::new(2, 5);
        let (qa, qb) = w.pair(0, 1, QpType::Rc);
        let (_, other) = w.pair(0, 1, QpType::Rc);
        let (at_0, at_1) = ([w.sge(0, 0, 8)], [w.sge(1, 0, 8)]);
        w.recv(1, qb, &at_1, 9).unwrap();
        w.post(0, qa, Opcode::Send, SendBody::Plain, &at_0, 1).unwrap();
        // From here on node 0 does nothing.
        w.net.borrow_mut().room = 1;
        w.net.borrow_mut().dead.push(0);
        for id in 2..4 {
            w.post(1, other, Opcode::Send, SendBody::Plain, &at_1, id).unwrap();
        }
        let reply = |w: &mut World| w.post(1, qb, Opcode::Send, SendBody::Plain, &at_1, 1).unwrap();
        if posted_before {
            reply(&mut w);
        }
        w.deliver(0, 1, 1);
        let now = w.now;
        w.nodes[1].engine.run(now);
        assert_eq!(w.nodes[1].engine.qps.get(qb).unwrap().rc.responses.len(), 1, "the acknowledgement is owed still");
        if !posted_before {
            reply(&mut w);
        }
        let found = alone_for_seconds(&mut w);
        assert!(found.contains(&(9, St::Success)) && found.contains(&(1, St::RetryExcErr)), "{found:?}");
    }
}

/// A request is posted while one is under way. The acknowledgement of that one stops the timer: the timer is set again
/// for the new request.
#[test]
fn a_request_behind_an_answered_one_times_out() {
    let mut w = World::new(2, 5);
    let (qa, qb) = w.pair(0, 1, QpType::Rc);
    let (_, other) = w.pair(0, 1, QpType::Rc);
    let (at_0, at_1) = ([w.sge(0, 0, 8)], [w.sge(1, 0, 8)]);
    w.recv(0, qa, &at_0, 8).unwrap();
    w.recv(1, qb, &at_1, 9).unwrap();
    w.post(0, qa, Opcode::Send, SendBody::Plain, &at_0, 1).unwrap();
    w.post(1, qb, Opcode::Send, SendBody::Plain, &at_1, 1).unwrap();
    w.deliver(1, 0, 1);
    let now = w.now;
    w.nodes[0].engine.run(now); // the acknowledgement, behind the message
    w.net.borrow_mut().room = 1;
    w.net.borrow_mut().dead.push(0);
    for id in 2..4 {
        w.post(1, other, Opcode::Send, SendBody::Plain, &at_1, id).unwrap();
    }
    w.deliver(0, 1, 1);
    w.nodes[1].engine.run(now);
    w.post(1, qb, Opcode::Send, SendBody::Plain, &at_1, 4).unwrap();
    w.deliver(0, 1, 1);
    assert_eq!(w.net.borrow().queues[&(0, 1)].len(), 0);
    let found = alone_for_seconds(&mut w);
    assert!(found.contains(&(1, St::Success)) && found.contains(&(4, St::RetryExcErr)), "{found:?}");
}

/// Requests that a queue pair has executed and told its program of are acknowledged before the queue pair forgets them,
/// and also where an error of its own requests ends it. Otherwise the peer would try them again until that fails.
#[test]
fn what_was_executed_is_answered() {
    for end in ["destroy", "reset", "own error"] {
        let mut w = World::new(2, 5);
        let (qa, qb) = w.pair(0, 1, QpType::Rc);
        let (at_0, at_1) = ([w.sge(0, 0, 8)], [w.sge(1, 0, 8)]);
        w.recv(1, qb, &at_1, 9).unwrap();
        let now = w.now;
        w.post(0, qa, Opcode::Send, SendBody::Plain, &at_0, 1).unwrap();
        w.deliver(0, 1, 1); // taken in, and nothing has run since
        let engine = &mut w.nodes[1].engine;
        assert_eq!(engine.qps.get(qb).unwrap().rc.responses.len(), 1, "{end}");
        match end {
            "destroy" => {
                engine.send_owed(qb, now);
                engine.destroy_qp(qb).unwrap();
            }
            "reset" => {
                engine.send_owed(qb, now);
                let attr = verbs::QpAttr { state: QpState::Reset, ..Default::default() };
                w.modify(1, qb, &attr, verbs::QpAttrMask::STATE).unwrap();
            }
            _ => {
                let mut qp = engine.checkout_qp(qb).unwrap();
                engine.enter_error(&mut qp, now);
                engine.schedule(&mut qp);
                engine.qps.put_back(qb, qp);
            }
        }
        w.run_for(SECOND);
        assert_eq!(statuses(&mut w, 0), [St::Success], "{end}");
    }
}

/// A region that is deregistered by force while the peer has not taken the request: the request is dead.
#[test]
fn forced_deregistration_kills_requests() {
    let mut w = World::new(2, 5);
    w.net.borrow_mut().single_copy = true;
    let (qa, _) = w.pair(0, 1, QpType::Rc);
    w.write(1, 0, &[7; 20_000]);
    let (into, body) = ([w.sge(0, 0, 20_000)], w.rdma(1, 0));
    w.post(0, qa, Opcode::RdmaRead, body, &into, 1).unwrap();
    let mr = w.nodes[0].engine.find_mr(w.nodes[0].key).unwrap();
    assert_eq!(w.nodes[0].engine.dereg_mr(mr, false), Err(verbs::Errno::EAGAIN));
    w.nodes[0].engine.dereg_mr(mr, true).unwrap();
    w.run_for(SECOND);
    assert_eq!(statuses(&mut w, 0), [St::LocProtErr]);
    assert_eq!(w.read(0, 0, 20_000), [0; 20_000]);
}

/// Before a program hears that a request by reference is over, or gets its memory back, the peer is kept from the
/// memory: the request is void, and copies that the peer had begun have been waited for.
#[test]
fn peers_are_waited_for() {
    type End = fn(&mut World, verbs::QpId);
    let ends: [(&str, End); 6] = [
        ("error", |w, qp| {
            let mut attr = World::attr(verbs::Qpn::new(0), 0, 0);
            attr.state = QpState::Err;
            w.modify(0, qp, &attr, verbs::QpAttrMask::empty()).unwrap();
        }),
        ("reset", |w, qp| {
            let mut attr = World::attr(verbs::Qpn::new(0), 0, 0);
            attr.state = QpState::Reset;
            w.modify(0, qp, &attr, verbs::QpAttrMask::empty()).unwrap();
        }),
        ("destroy", |w, qp| w.nodes[0].engine.destroy_qp(qp).unwrap()),
        ("retries", |w, _| {
            w.net.borrow_mut().lose = 1000;
            w.net.borrow_mut().queues.clear();
            w.run_for(10 * SECOND);
        }),
        ("deregister", |w, _| {
            let mr = w.nodes[0].engine.find_mr(w.nodes[0].key).unwrap();
            w.nodes[0].engine.dereg_mr(mr, true).unwrap();
        }),
        ("register again", |w, _| {
            let mr = w.nodes[0].engine.find_mr(w.nodes[0].key).unwrap();
            w.nodes[0].engine.rereg_mr(mr, Some((BASE + 4096, 4096, BASE)), None, None).unwrap();
        }),
    ];
    for (name, end) in ends {
        for opcode in [Opcode::RdmaRead, Opcode::RdmaWrite, Opcode::Send] {
            let mut w = World::new(2, 5);
            w.net.borrow_mut().single_copy = true;
            let (qa, _) = w.pair(0, 1, QpType::Rc);
            let (into, body) = ([w.sge(0, 0, 20_000)], w.rdma(1, 0));
            let body = if opcode == Opcode::Send { SendBody::Plain } else { body };
            w.post(0, qa, opcode, body, &into, 1).unwrap();
            assert!(w.net.borrow().quiesced.is_empty());
            end(&mut w, qa);
            // The first call counts: it came after the ticket had changed, and was for the right peer.
            let first = w.net.borrow().quiesced.first().copied();
            assert_eq!(first, Some((0, Some(1), 1)), "{name} {opcode:?}");
        }
    }
    // A request that is done is not waited for.
    let mut w = World::new(2, 5);
    w.net.borrow_mut().single_copy = true;
    let (qa, _) = w.pair(0, 1, QpType::Rc);
    let (into, body) = ([w.sge(0, 0, 20_000)], w.rdma(1, 0));
    w.post(0, qa, Opcode::RdmaRead, body, &into, 1).unwrap();
    w.run_for(SECOND);
    assert_eq!(statuses(&mut w, 0), [St::Success]);
    w.nodes[0].engine.destroy_qp(qa).unwrap();
    assert!(w.net.borrow().quiesced.is_empty());
}

/// 9.9.3: a READ whose region goes away while it is answered ends both queue pairs.
#[test]
fn region_gone_under_a_read() {
    let mut w = World::new(2, 5);
    let (qa, qb) = w.pair(0, 1, QpType::Rc);
    let (into, body) = ([w.sge(0, 0, 64)], w.rdma(1, 0));
    w.post(0, qa, Opcode::RdmaRead, body, &into, 1).unwrap();
    w.deliver(0, 1, 1);
    let mr = w.nodes[1].engine.find_mr(w.nodes[1].key).unwrap();
    w.nodes[1].engine.dereg_mr(mr, true).unwrap();
    w.run_for(SECOND);
    assert_eq!(statuses(&mut w, 0), [St::RemAccessErr]);
    assert_eq!(w.nodes[1].engine.qp_state(qb), Ok(QpState::Err));
    assert!(w.nodes[1].notices.iter().any(|n| matches!(n, Notice::Async { kind: EventKind::QpAccessErr, .. })));
}

/// The engine asks for links with room also when no queue pair waits for one any more: the platform keeps them until
/// then.
#[test]
fn room_that_nobody_waits_for() {
    let mut w = World::new(2, 5);
    w.net.borrow_mut().room = 1;
    let (qa, _) = w.pair(0, 1, QpType::Rc);
    let (from, body) = ([w.sge(0, 0, 8)], w.rdma(1, 0));
    w.post(0, qa, Opcode::RdmaWrite, body, &from, 1).unwrap();
    w.post(0, qa, Opcode::RdmaWrite, body, &from, 2).unwrap();
    let (link, now) = (wire::LinkId(2), w.now);
    w.nodes[0].engine.link_down(link, None);
    w.net.borrow_mut().writable[0].push(link);
    w.nodes[0].engine.destroy_qp(qa).unwrap();
    w.nodes[0].engine.run(now);
    assert!(w.net.borrow().writable[0].is_empty());
}

/// `ibv_alloc_null_mr(3)`: there is nothing that could be registered anew.
#[test]
fn null_region_stays_null() {
    let mut w = World::new(1, 5);
    let pd = w.nodes[0].pd;
    let (null, key) = w.nodes[0].engine.reg_null_mr(pd).unwrap();
    assert_ne!(key, LKey(0));
    assert_eq!(w.nodes[0].engine.rereg_mr(null, None, None, Some(ALL)), Err(verbs::Errno::EINVAL));
}

/// A peer that refuses a reference again and again, though nothing goes by reference any more, spends the retries.
#[test]
fn refusals_of_references_come_to_an_end() {
    let mut w = World::new(2, 5);
    let (qa, qb) = w.pair(0, 1, QpType::Rc);
    let (from, body) = ([w.sge(0, 0, 100)], w.rdma(1, 0));
    w.post(0, qa, Opcode::RdmaWrite, body, &from, 1).unwrap();
    let [ours, theirs] = [(0, qa), (1, qb)].map(|(node, qp): (usize, _)| w.nodes[node].engine.qps.get(qp).unwrap().qpn);
    let psn = w.nodes[0].engine.checkout_qp(qa).map(|qp| {
        let psn = qp.inflight.front().map_or(qp.rc.next_psn, |request| request.first_psn);
        w.nodes[0].engine.qps.put_back(qa, qp);
        psn
    });
    let mut refusal = wire::Packet::new(wire::PacketOp::Ack, ours, theirs, psn.unwrap());
    refusal.syndrome = crate::rc::refused::NAK | crate::rc::refused::NAK_SINGLE_COPY;
    let mut ended = Vec::new();
    for _ in 0..20 {
        w.drop_packets(0, 1, 0, 99);
        w.inject(1, 0, refusal, Vec::new());
        w.deliver(1, 0, 99);
        ended.extend(statuses(&mut w, 0));
    }
    assert_eq!(ended, [St::RetryExcErr]);
}
