//! The link over which a packet comes, and times without a link.

use verbs::{Opcode, QpId, QpState, QpType, SendBody, WcStatus as St};
use wire::{Packet, PacketOp, packet_flags as flag};

use super::mock::*;

const SECOND: u64 = 1_000_000_000;

fn statuses(w: &mut World, node: usize) -> Vec<St> {
    w.poll(node).iter().map(|c| c.status).collect()
}

/// A packet that fits the connection of this queue pair, as its peer would send it.
fn forged(w: &World, node: usize, qp: QpId, op: PacketOp) -> Packet {
    let qp = w.nodes[node].engine.qps.get(qp).unwrap();
    let oldest = qp.inflight.front().map_or(qp.first_unlisted(), |e| e.first_psn);
    let response = matches!(op, PacketOp::Ack | PacketOp::ReadResponse | PacketOp::AtomicAck);
    let psn = if response { oldest } else { qp.rc.epsn };
    let mut packet = Packet::new(op, qp.qpn, verbs::Qpn::new(qp.attr.dest_qp_num), psn);
    packet.flags = flag::FIRST | flag::LAST | flag::ACK_REQ;
    packet
}

/// A process that is not the peer cannot send in the peer's name, even if it knows all numbers.
#[test]
fn strangers_are_not_heard() {
    for ty in [QpType::Rc, QpType::Uc] {
        let mut w = World::new(3, 5);
        let (qa, qb) = w.pair(0, 1, ty);
        let into = [w.sge(1, 0, 100)];
        w.recv(1, qb, &into, 7).unwrap();

        let mut send = forged(&w, 1, qb, PacketOp::Send);
        send.len = 8;
        w.inject(2, 1, send, vec![0xee; 8]);
        let mut write = forged(&w, 1, qb, PacketOp::Write);
        (write.remote_addr, write.rkey, write.len, write.dma_len) = (BASE + 64, w.nodes[1].key, 8, 8);
        w.inject(2, 1, write, vec![0xee; 8]);
        w.run_all();
        assert_eq!(w.read(1, 0, 128), [0; 128], "{ty:?}");
        assert!(w.poll(1).is_empty(), "{ty:?}");
        assert!(w.net.borrow().queues.get(&(1, 2)).is_none_or(|q| q.is_empty()), "{ty:?}: no answer to it");
        assert_eq!(w.nodes[1].engine.strangers(), 2, "{ty:?}");

        w.write(0, 0, &[5; 8]);
        let from = [w.sge(0, 0, 8)];
        w.post(0, qa, Opcode::Send, SendBody::Plain, &from, 1).unwrap();
        w.run_for(SECOND);
        assert_eq!(statuses(&mut w, 0), [St::Success], "{ty:?}");
        assert_eq!(statuses(&mut w, 1), [St::Success], "{ty:?}");
        assert_eq!(w.read(1, 0, 8), [5; 8], "{ty:?}");
    }
}

/// Acknowledgements, NAKs and READ data of a stranger change nothing.
#[test]
fn strangers_answer_nothing() {
    let mut w = World::new(3, 5);
    let (qa, _) = w.pair(0, 1, QpType::Rc);
    w.write(1, 0, &[3; 100]);
    let (body, into) = (w.rdma(1, 0), [w.sge(0, 0, 100)]);
    w.post(0, qa, Opcode::RdmaRead, body, &into, 1).unwrap();

    let mut data = forged(&w, 0, qa, PacketOp::ReadResponse);
    data.len = 100;
    w.inject(2, 0, data, vec![0xee; 100]);
    let mut nak = forged(&w, 0, qa, PacketOp::Ack);
    nak.syndrome = 3 << 5 | 2; // remote access error
    w.inject(2, 0, nak, Vec::new());
    w.run_all();
    assert!(w.poll(0).is_empty());
    assert_eq!(w.nodes[0].engine.query_qp(qa).unwrap().0.state, QpState::Rts);

    w.run_for(SECOND);
    assert_eq!(statuses(&mut w, 0), [St::Success]);
    assert_eq!(w.read(0, 0, 100), [3; 100]);
}

/// Answers to a READ that bring nothing, or less than a packet, do not keep it from its end (IBTA vol. 1, 9.7.5).
#[test]
fn a_response_without_data_is_none() {
    for (len, last) in [(0, false), (1, false), (100, true)] {
        let mut w = World::new(2, 5);
        let (qa, _) = w.pair(0, 1, QpType::Rc);
        let (body, into) = (w.rdma(1, 0), [w.sge(0, 0, 4096)]);
        w.post(0, qa, Opcode::RdmaRead, body, &into, 1).unwrap();
        let mut data = forged(&w, 0, qa, PacketOp::ReadResponse);
        (data.len, data.flags) = (len, if last { flag::FIRST | flag::LAST } else { flag::FIRST });
        w.inject(1, 0, data, vec![0xee; len as usize]);
        w.run_all();
        assert_eq!(statuses(&mut w, 0), [St::BadRespErr], "{len} bytes, last: {last}");
    }
}

/// One packet brings a megabyte at most, whatever a peer says: it is copied in one go.
#[test]
fn more_than_a_packet_may_bring_is_refused() {
    for (len, refused) in [(1 << 20, false), ((1 << 20) + 1, true), (1 << 30, true)] {
        let mut w = World::new(2, 5);
        w.net.borrow_mut().single_copy = true;
        let (_, qb) = w.pair(0, 1, QpType::Rc);
        let n = &mut w.nodes[1];
        let (_, key, _) = n.engine.reg_mr(n.pd, BASE, 1 << 31, BASE, ALL).unwrap();
        let mut write = forged(&w, 1, qb, PacketOp::Write);
        (write.remote_addr, write.rkey, write.len, write.dma_len) = (BASE, key.0, len, len);
        (write.flags, write.mtu) = (write.flags | flag::BY_REF, 1024);
        let place = [BASE.to_le_bytes(), u64::from(len).to_le_bytes()].concat();
        w.inject(0, 1, write, [vec![0; 16], place].concat());
        let said = w.nodes[1].engine.query_qp(qb).unwrap().0.state;
        // A copy that is permitted fails here, too, for want of memory, and with another error.
        w.run_all();
        let nak = w.net.borrow().queues[&(1, 0)].back().map(|msg| msg.packet.syndrome);
        assert_eq!(nak == Some(3 << 5 | 1), refused, "{len} bytes: {nak:?}, {said:?}");
    }
}

/// A wire to another host brings no references to memory and no NAKs about them, whatever a peer sends.
#[test]
fn references_from_another_host_are_dropped() {
    for same_host in [true, false] {
        let mut w = World::new(2, 5);
        (w.net.borrow_mut().single_copy, w.net.borrow_mut().same_host) = (true, same_host);
        let (_, qb) = w.pair(0, 1, QpType::Rc);
        let mut write = forged(&w, 1, qb, PacketOp::Write);
        (write.remote_addr, write.rkey, write.len, write.dma_len) = (BASE, 1 << 30, 64, 64);
        (write.flags, write.mtu) = (write.flags | flag::BY_REF, 1024);
        w.inject(0, 1, write, vec![0; 32]);
        w.run_all();
        let answers = w.net.borrow().queues.get(&(1, 0)).map_or(0, |queue| queue.len());
        assert_eq!(answers > 0, same_host, "the answer to a key that is none");

        let mut w = World::new(2, 5);
        w.net.borrow_mut().same_host = same_host;
        let (qa, qb) = w.pair(0, 1, QpType::Rc);
        let sges = [w.sge(1, 0, 8)];
        w.recv(1, qb, &sges, 7).unwrap();
        let sges = [w.sge(0, 0, 8)];
        w.post(0, qa, Opcode::Send, SendBody::Plain, &sges, 1).unwrap();
        let mut nak = forged(&w, 0, qa, PacketOp::Ack);
        nak.syndrome = 3 << 5 | 30;
        w.inject(1, 0, nak, vec![]);
        w.settle();
        let status = if same_host { St::LocProtErr } else { St::Success };
        assert_eq!(statuses(&mut w, 0), [status], "the source of a copy is not there");
    }
}

/// Two processes that connect to each other at once have two links, and each sends over its own.
#[test]
fn a_second_link_of_the_peer_is_the_peer() {
    let mut w = World::new(2, 5);
    w.net.borrow_mut().twin = true;
    let (qa, qb) = w.pair(0, 1, QpType::Rc);
    let into = [w.sge(1, 0, 100)];
    w.recv(1, qb, &into, 7).unwrap();
    let from = [w.sge(0, 0, 8)];
    w.post(0, qa, Opcode::Send, SendBody::Plain, &from, 1).unwrap();
    w.run_for(SECOND);
    assert_eq!(statuses(&mut w, 0), [St::Success]);
    assert_eq!(statuses(&mut w, 1), [St::Success]);
    assert_eq!(w.nodes[1].engine.strangers(), 0);
}

/// An entry of the send queue that was overwritten with nonsense fails, and nothing else happens.
#[test]
fn a_poked_entry_fails() {
    let mut w = World::new(2, 5);
    let (qa, _) = w.pair(0, 1, QpType::Rc);
    let from = [w.sge(0, 0, 8)];
    let body = w.rdma(1, 0);
    w.nodes[0].engine.qps.get_mut(qa).unwrap().rc.rnr_until = Some(u64::MAX); // nothing is fetched meanwhile
    w.post(0, qa, Opcode::RdmaWrite, body, &from, 9).unwrap();
    let qp = w.nodes[0].engine.qps.get_mut(qa).unwrap();
    qp.sq.poke(0, 0xff);
    qp.rc.rnr_until = None;

    w.post(0, qa, Opcode::RdmaWrite, body, &from, 10).unwrap();
    assert_eq!(statuses(&mut w, 0), [St::LocQpOpErr, St::WrFlushErr]);
}

/// The entry of a small SEND is overwritten while the SEND is under way: what would be sent again is no request. If it
/// is acknowledged before the entry is read again, it has been executed.
#[test]
fn a_poked_entry_under_way_fails() {
    for looked_at in [false, true] {
        let mut w = World::new(2, 5);
        w.nodes[0].engine.set_fast_path(true);
        // The timer is off: nothing else looks at the entry.
        let (qa, qb) = pair_with_timeout(&mut w, if looked_at { 0 } else { 14 });
        let (from, into) = ([w.sge(0, 0, 8)], [w.sge(1, 0, 8)]);
        for id in 0..2 {
            w.recv(1, qb, &into, id).unwrap();
        }
        w.post(0, qa, Opcode::Send, SendBody::Plain, &from, 0).unwrap();
        w.nodes[0].engine.qps.get_mut(qa).unwrap().sq.poke(0, 0xff | u64::from(verbs::SendFlags::SIGNALED.bits()) << 8);
        w.settle();
        assert_eq!(statuses(&mut w, 0), [St::Success]);
        w.post(0, qa, Opcode::Send, SendBody::Plain, &from, 1).unwrap();
        let qp = w.nodes[0].engine.qps.get_mut(qa).unwrap();
        assert_eq!((qp.unlisted, qp.inflight.len()), (1, 0));
        (0..16).for_each(|entry| qp.sq.poke(8 * entry, 0xff));
        w.net.borrow_mut().queues.clear(); // lost
        if looked_at {
            let now = w.now;
            w.nodes[0].engine.facts(now);
            w.run_all();
        } else {
            w.run_for(SECOND);
        }
        assert_eq!(statuses(&mut w, 0), [St::LocQpOpErr]);
        assert_eq!(w.nodes[0].engine.qp_state(qa), Ok(QpState::Err));
    }
}

/// Two connected queue pairs with a timeout of so much (0: wait for ever).
fn pair_with_timeout(w: &mut World, timeout: u8) -> (QpId, QpId) {
    let ((qa, na), (qb, nb)) = (w.qp(0, QpType::Rc), w.qp(1, QpType::Rc));
    for (node, qp, mut attr) in [(0, qa, World::attr(nb, 0xff_fff0, 100)), (1, qb, World::attr(na, 100, 0xff_fff0))] {
        attr.timeout = timeout;
        w.connect(node, qp, attr);
    }
    (qa, qb)
}

/// A peer without a link is as good as a dead peer: the retries run out.
#[test]
fn no_link_and_a_timeout() {
    let mut w = World::new(2, 5);
    w.net.borrow_mut().lonely = vec![0];
    let (qa, _) = pair_with_timeout(&mut w, 14);
    let (body, from) = (w.rdma(1, 0), [w.sge(0, 0, 8)]);
    w.post(0, qa, Opcode::RdmaWrite, body, &from, 1).unwrap();
    w.run_for(10 * SECOND);
    assert_eq!(statuses(&mut w, 0), [St::RetryExcErr]);
}

/// `timeout` 0 waits for ever (ibv_modify_qp(3)): nothing fails, and the request goes out once there is a way.
#[test]
fn no_link_and_no_timeout() {
    let mut w = World::new(2, 5);
    w.net.borrow_mut().lonely = vec![0];
    let (qa, _) = pair_with_timeout(&mut w, 0);
    let (body, from) = (w.rdma(1, 0), [w.sge(0, 0, 8)]);
    w.write(0, 0, &[5; 8]);
    for id in 0..3 {
        w.post(0, qa, Opcode::RdmaWrite, body, &from, id).unwrap();
    }
    w.run_for(100 * SECOND);
    assert!(w.poll(0).is_empty());
    w.net.borrow_mut().lonely.clear();
    w.run_for(2 * SECOND);
    assert_eq!(statuses(&mut w, 0), [St::Success; 3]);
    assert_eq!(w.read(1, 0, 8), [5; 8]);
    assert_eq!(w.nodes[0].engine.next_deadline(), None, "an idle queue pair wakes nobody");
}

/// A responder that cannot find the requester asks for the request again when it can: nothing else would.
#[test]
fn a_responder_without_a_link() {
    let mut w = World::new(2, 5);
    w.net.borrow_mut().lonely = vec![1];
    let (qa, _) = pair_with_timeout(&mut w, 0);
    let (body, from) = (w.rdma(1, 0), [w.sge(0, 0, 8)]);
    w.write(0, 0, &[5; 8]);
    for id in 0..3 {
        w.post(0, qa, Opcode::RdmaWrite, body, &from, id).unwrap();
    }
    w.run_for(100 * SECOND);
    assert!(w.poll(0).is_empty());
    w.net.borrow_mut().lonely.clear();
    w.run_for(2 * SECOND);
    assert_eq!(statuses(&mut w, 0), [St::Success; 3]);
    assert_eq!(w.read(1, 0, 8), [5; 8]);
}

/// With much to copy both ways, an answer may lie behind packets that have come and were not taken yet: it is not late.
#[test]
fn an_answer_that_was_not_taken_yet_is_no_timeout() {
    for arrived in [true, false] {
        let mut w = World::new(2, 5);
        w.net.borrow_mut().arrived = arrived;
        let (qa, _) = pair_with_timeout(&mut w, 10);
        let from = [w.sge(0, 0, 8)];
        let body = w.rdma(1, 0);
        w.post(0, qa, Opcode::RdmaWrite, body, &from, 1).unwrap();
        for _ in 0..20 {
            let now = w.now;
            w.nodes[0].engine.expire(now);
            w.nodes[0].engine.run(now);
            w.deliver(0, 1, 10);
            w.nodes[1].engine.run(now);
            w.now += 4096 << 10;
        }
        w.run_for(SECOND);
        let wanted = if arrived { St::Success } else { St::RetryExcErr };
        assert_eq!(statuses(&mut w, 0), [wanted], "arrived: {arrived}");
    }
}

/// A peer that never stops sending is not waited for: only packets that had come when the time was over count.
#[test]
fn an_answer_that_is_lost_in_a_flood_is_missed() {
    let mut w = World::new(2, 5);
    w.net.borrow_mut().arrived = true;
    let (qa, qb) = pair_with_timeout(&mut w, 10);
    let (to, back) = (w.rdma(1, 0), w.rdma(0, 64));
    let (from, theirs) = ([w.sge(0, 0, 8)], [w.sge(1, 0, 8)]);
    w.post(0, qa, Opcode::RdmaWrite, to, &from, 1).unwrap();
    for round in 0..200 {
        let _ = w.post(1, qb, Opcode::RdmaWrite, back, &theirs, round); // as many as there is room for
        let now = w.now;
        w.nodes[0].engine.expire(now);
        w.nodes[0].engine.run(now);
        w.deliver(0, 1, 10);
        w.nodes[1].engine.run(now);
        if round < 4 {
            continue; // some packet lies there for ever after
        }
        w.net.borrow_mut().queues.get_mut(&(1, 0)).unwrap().retain(|message| message.packet.op != PacketOp::Ack);
        w.deliver(1, 0, 1);
        w.now += 4096 << 10;
    }
    assert_eq!(statuses(&mut w, 0), [St::RetryExcErr]);
}

/// Requests under way on a link that broke go out again over the next one, without a timer too.
#[test]
fn a_link_that_breaks() {
    for timeout in [0, 14] {
        let mut w = World::new(2, 5);
        let (qa, _) = pair_with_timeout(&mut w, timeout);
        let from = [w.sge(0, 0, 8)];
        let body = w.rdma(1, 0);
        for id in 0..3 {
            w.post(0, qa, Opcode::RdmaWrite, body, &from, id).unwrap();
        }
        assert_eq!(w.drop_packets(0, 1, 0, 3), 3);
        let link = w.nodes[0].engine.env().link(1);
        w.nodes[0].engine.link_down(link, None);
        w.run_for(2 * SECOND);
        assert_eq!(statuses(&mut w, 0), [St::Success; 3], "timeout {timeout}");
    }
}

/// A queue pair that waits for a link, and is reset or destroyed meanwhile.
#[test]
fn gone_while_it_seeks() {
    let mut w = World::new(2, 5);
    w.net.borrow_mut().lonely = vec![0];
    let (qa, _) = pair_with_timeout(&mut w, 0);
    let (qc, _) = pair_with_timeout(&mut w, 0);
    let (body, from) = (w.rdma(1, 0), [w.sge(0, 0, 8)]);
    for qp in [qa, qc] {
        w.post(0, qp, Opcode::RdmaWrite, body, &from, 1).unwrap();
    }
    let mut attr = World::attr(verbs::Qpn::new(0), 0, 0);
    attr.state = QpState::Reset;
    w.modify(0, qa, &attr, verbs::QpAttrMask::empty()).unwrap();
    w.nodes[0].engine.destroy_qp(qc).unwrap();
    w.run_for(10 * SECOND);
    assert!(w.poll(0).is_empty());
    assert_eq!(w.nodes[0].engine.next_deadline(), None);
}
