//! Requests that the initiator executes: they do nothing that packets would not have done, and in no other order.

use verbs::{
    Access, Opcode, QpState, QpType, RKey, RecvWr, SendBody, SendData, SendFlags, SendWr, WcOpcode, WcStatus as St,
};

use super::mock::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

fn statuses(w: &mut World, node: usize) -> Vec<St> {
    w.poll(node).iter().map(|c| c.status).collect()
}

/// Two nodes that reach each other's memory, and a connection.
fn fresh() -> (World, verbs::QpId, verbs::QpId) {
    let mut w = World::new(2, 9);
    w.net.borrow_mut().one_sided = true;
    let (qa, qb) = w.pair(0, 1, QpType::Rc);
    (w, qa, qb)
}

/// A fresh connection on which one request has been answered.
fn proven() -> (World, verbs::QpId, verbs::QpId) {
    let (mut w, qa, qb) = fresh();
    let (body, from) = (w.rdma(1, 0), [w.sge(0, 0, 8)]);
    w.post(0, qa, Opcode::RdmaWrite, body, &from, 0).unwrap();
    assert_eq!(w.net.borrow().executed, 0, "nobody has answered yet");
    w.settle();
    assert_eq!(statuses(&mut w, 0), [St::Success]);
    (w, qa, qb)
}

/// The time of a lone request that was sent is reported to the wire. The times of several requests, of requests
/// executed here and of SENDs are not.
#[test]
fn how_soon_requests_are_answered_is_told() {
    let mut w = World::new(2, 9);
    let (qa, qb) = w.pair(0, 1, QpType::Rc);
    let (body, one) = (w.rdma(1, 0), [w.sge(0, 0, 8)]);
    let later = |w: &mut World, time| {
        w.now += time;
        w.settle();
        std::mem::take(&mut w.net.borrow_mut().answered)
    };
    w.post(0, qa, Opcode::RdmaWrite, body, &one, 0).unwrap();
    assert_eq!(later(&mut w, 500), [(8, 500, false)], "nobody has answered yet");
    w.post(0, qa, Opcode::RdmaRead, body, &one, 1).unwrap();
    assert_eq!(later(&mut w, 20_000), [(8, 20_000, true)]);
    let into = [w.sge(1, 0, 8)];
    w.recv(1, qb, &into, 7).unwrap();
    w.post(0, qa, Opcode::Send, SendBody::Plain, &one, 2).unwrap();
    assert_eq!(later(&mut w, 500), []);
    for id in 3..5 {
        w.post(0, qa, Opcode::RdmaWrite, body, &one, id).unwrap();
    }
    assert_eq!(later(&mut w, 500), [(8, 500, false)], "the last of two");
    w.net.borrow_mut().one_sided = true;
    w.post(0, qa, Opcode::RdmaWrite, body, &one, 5).unwrap();
    assert_eq!((later(&mut w, 500), w.net.borrow().executed), (vec![], 1));
}

#[test]
fn writes_and_reads() {
    let (mut w, qa, _) = proven();
    w.write(0, 100, b"to be written");
    w.write(1, 500, b"to be read");
    let (body, from) = (w.rdma(1, 1000), [w.sge(0, 100, 6), w.sge(0, 106, 7)]);
    w.post(0, qa, Opcode::RdmaWrite, body, &from, 1).unwrap();
    assert_eq!(w.read(1, 1000, 13), b"to be written", "without the peer");
    let (body, into) = (w.rdma(1, 500), [w.sge(0, 2000, 10)]);
    w.post(0, qa, Opcode::RdmaRead, body, &into, 2).unwrap();
    assert_eq!(w.read(0, 2000, 10), b"to be read");
    let done = w.poll(0);
    assert_eq!(done.iter().map(|c| (c.wr_id, c.status)).collect::<Vec<_>>(), [(1, St::Success), (2, St::Success)]);
    assert_eq!(done[1].byte_len, 10);
    let wr = SendWr {
        wr_id: 3,
        opcode: Opcode::RdmaWrite,
        flags: SendFlags::SIGNALED | SendFlags::INLINE,
        imm_or_rkey: 0,
        remote_srqn: 0,
        body: &w.rdma(1, 3000),
        data: SendData::Inline(&[b"inl", b"ine"]),
    };
    w.post_wr(0, qa, &wr).unwrap();
    assert_eq!(w.read(1, 3000, 6), b"inline");
    assert_eq!(w.net.borrow().executed, 3);
    assert!(w.net.borrow().queues.values().all(|q| q.is_empty()), "no packet");
}

/// Where the peer's regions are in shared memory, atomics are executed here, too; otherwise they are sent.
#[test]
fn atomics() {
    for shares in [false, true] {
        let (mut w, qa, _) = proven();
        w.net.borrow_mut().shares = shares;
        w.write(1, 64, &5u64.to_ne_bytes());
        let to = |compare_add, swap| {
            let SendBody::Rdma { remote_addr, rkey } = w.rdma(1, 64) else { unreachable!() };
            SendBody::Atomic { remote_addr, rkey, compare_add, swap }
        };
        let bodies = [(Opcode::FetchAndAdd, to(3, 0)), (Opcode::CmpAndSwp, to(8, 20)), (Opcode::CmpAndSwp, to(8, 30))];
        for (i, (opcode, body)) in bodies.into_iter().enumerate() {
            let into = [w.sge(0, 1000 + 8 * i as u64, 8)];
            w.post(0, qa, opcode, body, &into, i as u64).unwrap();
        }
        assert_eq!(w.net.borrow().queues.values().all(|q| q.is_empty()), shares);
        w.settle();
        let done: Vec<_> = w.poll(0).iter().map(|c| (c.wr_id, c.status, c.opcode, c.byte_len)).collect();
        let of = |wr_id, opcode| (wr_id, St::Success, opcode, 8);
        assert_eq!(done, [of(0, WcOpcode::FetchAdd), of(1, WcOpcode::CompSwap), of(2, WcOpcode::CompSwap)]);
        let before = [5u64, 8, 20].map(u64::to_ne_bytes).concat();
        assert_eq!((w.read(0, 1000, 24), w.read(1, 64, 8)), (before, 20u64.to_ne_bytes().to_vec()));
        assert_eq!(w.net.borrow().executed, if shares { 3 } else { 0 });
    }
}

/// Requests to a shared region are executed here as soon as those that had to be sent are answered. A request does not
/// wait behind a SEND, as the SEND's answer may take long.
#[test]
fn shared_regions_are_worth_waiting_for() {
    for behind_send in [false, true] {
        let (mut w, qa, qb) = fresh();
        w.net.borrow_mut().shares = true;
        w.write(0, 0, &[7; 8]);
        let from = [w.sge(0, 0, 8)];
        if behind_send {
            let into = [w.sge(1, 4096, 8)];
            w.recv(1, qb, &into, 2).unwrap();
            w.post(0, qa, Opcode::Send, SendBody::Plain, &from, 0).unwrap();
        } else {
            let body = w.rdma(1, 32);
            w.post(0, qa, Opcode::RdmaWrite, body, &from, 0).unwrap();
        }
        for i in 1..=10 {
            let body = w.rdma(1, 64 * i);
            w.post(0, qa, Opcode::RdmaWrite, body, &from, i).unwrap();
        }
        assert_eq!(w.read(1, 64, 8), [0; 8], "not before what stands in front");
        w.settle();
        let done: Vec<_> = w.poll(0).iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(done, (0..=10).map(|i| (i, St::Success)).collect::<Vec<_>>());
        assert!((1..=10).all(|i| w.read(1, 64 * i, 8) == [7; 8]));
        assert_eq!(w.net.borrow().executed, if behind_send { 0 } else { 10 });
    }
}

/// The peer refuses atomics: a wrong place, a right that it has not given.
#[test]
fn refused_atomics() {
    for (at, access, status) in [
        (68, ALL, St::RemInvReqErr),
        (ARENA as u64, ALL, St::RemAccessErr),
        (64, ALL - Access::REMOTE_ATOMIC, St::RemAccessErr),
    ] {
        let (mut w, qa, _) = proven();
        w.net.borrow_mut().shares = true;
        let n = &mut w.nodes[1];
        let (_, _, rkey) = n.engine.reg_mr(n.pd, BASE, ARENA as u64, BASE, access).unwrap();
        let body = SendBody::Atomic { remote_addr: BASE + at, rkey, compare_add: 1, swap: 0 };
        let into = [w.sge(0, 1000, 8)];
        w.post(0, qa, Opcode::FetchAndAdd, body, &into, 1).unwrap();
        w.run_for(SECOND);
        assert_eq!((statuses(&mut w, 0), w.net.borrow().executed), (vec![status], 0));
        assert_eq!(w.read(1, 64, 16), [0; 16]);
    }
}

/// A request that was executed here takes no sequence number: packets before and after fit together.
#[test]
fn packets_between_them() {
    let (mut w, qa, qb) = proven();
    for i in 0..20u8 {
        w.write(0, 0, &[i; 64]);
        let (body, from) = (w.rdma(1, 64), [w.sge(0, 0, 64)]);
        w.post(0, qa, Opcode::RdmaWrite, body, &from, 1).unwrap();
        let into = [w.sge(1, 4096, 64)];
        w.recv(1, qb, &into, 2).unwrap();
        w.post(0, qa, Opcode::Send, SendBody::Plain, &from, 3).unwrap();
        w.settle();
        assert_eq!((w.read(1, 64, 64), w.read(1, 4096, 64)), (vec![i; 64], vec![i; 64]));
        assert_eq!(statuses(&mut w, 0), [St::Success; 2]);
        assert_eq!(statuses(&mut w, 1), [St::Success]);
    }
    assert_eq!(w.net.borrow().executed, 20);
}

/// 10.8.3.3: requests are executed in order. Behind a SEND that found no receive, a WRITE changes nothing yet.
#[test]
fn nothing_overtakes() {
    let (mut w, qa, qb) = proven();
    w.write(0, 0, &[7; 8]);
    let (body, from) = (w.rdma(1, 64), [w.sge(0, 0, 8)]);
    w.post(0, qa, Opcode::Send, SendBody::Plain, &from, 1).unwrap();
    w.post(0, qa, Opcode::RdmaWrite, body, &from, 2).unwrap();
    w.run_for(5 * MS);
    assert_eq!(w.read(1, 64, 8), [0; 8]);
    let into = [w.sge(1, 4096, 8)];
    let wr = RecvWr { wr_id: 3, sges: &into };
    let now = w.now;
    w.nodes[1].engine.post_recv(qb, &wr, now).unwrap();
    w.run_for(SECOND);
    assert_eq!(w.read(1, 64, 8), [7; 8]);
    assert_eq!(statuses(&mut w, 0), [St::Success; 2]);
    assert_eq!(w.net.borrow().executed, 0);
}

/// Refused requests fail as sent ones do: the peer decides, and its memory is as it was.
#[test]
fn refused() {
    type Change = fn(&mut World, verbs::QpId) -> SendBody;
    let end = ARENA as u64;
    let cases: [(&str, Opcode, Change); 7] = [
        ("bounds", Opcode::RdmaWrite, |w, _| w.rdma(1, ARENA as u64 - 7)),
        ("below", Opcode::RdmaRead, |w, _| SendBody::Rdma { remote_addr: BASE - 1, rkey: RKey(w.nodes[1].key) }),
        ("key", Opcode::RdmaWrite, |w, _| SendBody::Rdma { remote_addr: BASE, rkey: RKey(w.nodes[1].key ^ 1) }),
        ("right of the region", Opcode::RdmaWrite, |w, _| {
            let n = &mut w.nodes[1];
            let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
            let (_, _, rkey) = n.engine.reg_mr(n.pd, BASE, 4096, BASE, access).unwrap();
            SendBody::Rdma { remote_addr: BASE, rkey }
        }),
        ("domain", Opcode::RdmaRead, |w, _| {
            let n = &mut w.nodes[1];
            let pd = n.engine.alloc_pd(n.ctx).unwrap();
            let (_, _, rkey) = n.engine.reg_mr(pd, BASE, 4096, BASE, ALL).unwrap();
            SendBody::Rdma { remote_addr: BASE, rkey }
        }),
        ("deregistered", Opcode::RdmaRead, |w, _| {
            let n = &mut w.nodes[1];
            let (mr, _, rkey) = n.engine.reg_mr(n.pd, BASE, 4096, BASE, ALL).unwrap();
            n.engine.dereg_mr(mr, false).unwrap();
            SendBody::Rdma { remote_addr: BASE, rkey }
        }),
        ("right of the queue pair", Opcode::RdmaRead, |w, qb| {
            let mut attr = w.nodes[1].engine.query_qp(qb).unwrap().0;
            (attr.state, attr.access) = (QpState::Rts, Access::REMOTE_WRITE);
            w.modify(1, qb, &attr, verbs::QpAttrMask::ACCESS_FLAGS).unwrap();
            w.rdma(1, 0)
        }),
    ];
    for (name, opcode, change) in cases {
        let (mut w, qa, qb) = proven();
        let body = change(&mut w, qb);
        let before = w.read(1, 0, end as usize);
        w.write(0, 0, &[9; 8]);
        let sges = [w.sge(0, 0, 8)];
        w.post(0, qa, opcode, body, &sges, 1).unwrap();
        w.run_for(SECOND);
        let refused = if name == "right of the queue pair" { St::RemInvReqErr } else { St::RemAccessErr };
        assert_eq!(statuses(&mut w, 0), [refused], "{name}");
        assert!(w.read(1, 0, end as usize) == before, "{name}");
        assert_eq!(w.net.borrow().executed, 0, "{name}");
    }
}

/// A queue pair that has left its connection is out of reach, also when it comes back to the same peer.
#[test]
fn left_connections() {
    for to in [QpState::Err, QpState::Reset] {
        for back in [false, true] {
            let (mut w, qa, qb) = proven();
            let (body, from) = (w.rdma(1, 64), [w.sge(0, 0, 8)]);
            w.write(0, 0, &[5; 8]);
            w.post(0, qa, Opcode::RdmaWrite, body, &from, 1).unwrap();
            assert_eq!((statuses(&mut w, 0), w.net.borrow().executed), (vec![St::Success], 1));
            let old = w.nodes[1].engine.query_qp(qb).unwrap().0;
            let state = verbs::QpAttr { state: to, ..Default::default() };
            w.modify(1, qb, &state, verbs::QpAttrMask::STATE).unwrap();
            if back {
                let reset = verbs::QpAttr { state: QpState::Reset, ..Default::default() };
                w.modify(1, qb, &reset, verbs::QpAttrMask::STATE).unwrap();
                // The peer has another sequence number: a peer that goes on as before is not heard.
                w.connect(1, qb, verbs::QpAttr { rq_psn: 77, max_dest_rd_atomic: 4, ..old });
            }
            let body = w.rdma(1, 128);
            w.post(0, qa, Opcode::RdmaWrite, body, &from, 2).unwrap();
            w.run_for(100 * SECOND);
            assert_eq!(statuses(&mut w, 0), [St::RetryExcErr], "{to:?} {back}");
            assert_eq!(w.read(1, 128, 8), [0; 8], "{to:?} {back}");
        }
    }
}

/// Traffic that the NIC thread stays awake for: RDMA, and data that come piece by piece.
#[test]
fn served_are_those_who_may_send_more() {
    let mut w = World::new(2, 9);
    let (qa, qb) = w.pair(0, 1, QpType::Rc);
    let mut served = |opcode, len| {
        let before = w.nodes[1].engine.served();
        let into = [w.sge(1, 0, 50_000)];
        w.recv(1, qb, &into, 0).unwrap();
        let sends = matches!(opcode, Opcode::Send);
        let (body, from) = (if sends { SendBody::Plain } else { w.rdma(1, 0) }, [w.sge(0, 0, len)]);
        w.post(0, qa, opcode, body, &from, 0).unwrap();
        w.settle();
        assert!(statuses(&mut w, 0).iter().chain(&statuses(&mut w, 1)).all(|s| *s == St::Success));
        w.nodes[1].engine.served() - before
    };
    assert_eq!([8, 4096, 16384].map(|len| served(Opcode::RdmaWrite, len)), [1, 1, 1]);
    assert_eq!(
        [8, 16384, 40_000].map(|len| served(Opcode::RdmaRead, len)),
        [1, 1, 3],
        "a request, and pieces of the answer"
    );
    assert_eq!([8, 16384, 40_000].map(|len| served(Opcode::Send, len)), [0, 0, 2]);
    assert_eq!([8, 16384].map(|len| served(Opcode::RdmaWriteWithImm, len)), [0, 0], "the program hears of it");
}

/// A window of type 2 over 64 bytes of node 1 from offset 128 on, bound by this queue pair; its key.
fn window(w: &mut World, qb: verbs::QpId) -> (verbs::MwId, RKey) {
    let n = &mut w.nodes[1];
    let (mw, rkey) = n.engine.alloc_mw(n.pd, crate::MwKind::Type2).unwrap();
    let mr = n.engine.mem.find_mr(n.key);
    w.net.borrow_mut().maps = true;
    let bind = SendBody::BindMw { mw, rkey, mr, addr: BASE + 128, length: 64, access: Access::REMOTE_WRITE };
    w.post(1, qb, Opcode::BindMw, bind, &[], 1).unwrap();
    w.settle();
    assert_eq!(statuses(w, 1), [St::Success]);
    (mw, rkey)
}

/// The status of a WRITE of 8 bytes at this offset of node 1, and whether it was executed here.
fn write_by(w: &mut World, qa: verbs::QpId, rkey: RKey, at: u64) -> (St, bool) {
    let before = w.net.borrow().executed;
    let (body, from) = (SendBody::Rdma { remote_addr: BASE + at, rkey }, [w.sge(0, 0, 8)]);
    w.post(0, qa, Opcode::RdmaWrite, body, &from, 1).unwrap();
    w.run_for(SECOND);
    (statuses(w, 0)[0], w.net.borrow().executed > before)
}

/// A request by the key of a window is executed here, inside its bounds, through its queue pair (IBTA vol. 1,
/// 10.6.7.2.3), until it is invalid.
#[test]
fn windows_are_reached_until_they_are_invalid() {
    let (mut w, qa, qb) = proven();
    w.write(0, 0, &[7; 8]);
    let (_, rkey) = window(&mut w, qb);
    assert_eq!(write_by(&mut w, qa, rkey, 128 + 56), (St::Success, true));
    assert_eq!(w.read(1, 128 + 56, 8), [7; 8]);
    let invalidate = SendWr {
        wr_id: 2,
        opcode: Opcode::LocalInv,
        flags: SendFlags::SIGNALED,
        imm_or_rkey: rkey.0,
        remote_srqn: 0,
        body: &SendBody::Plain,
        data: SendData::Sges(&[]),
    };
    w.post_wr(1, qb, &invalidate).unwrap();
    w.settle();
    assert_eq!(statuses(&mut w, 1), [St::Success]);
    assert_eq!(write_by(&mut w, qa, rkey, 128), (St::RemAccessErr, false));
    assert_eq!(w.read(1, 128, 8), [0; 8]);
}

#[test]
fn windows_end_with_their_bounds_their_queue_pair_and_themselves() {
    type Case = fn(&mut World, verbs::QpId, verbs::MwId) -> u64;
    let cases: [(&str, Case); 4] = [
        ("beyond it", |_, _, _| 128 + 57),
        ("deallocated", |w, _, mw| {
            w.nodes[1].engine.dealloc_mw(mw).unwrap();
            128
        }),
        ("its queue pair is reset", |w, qb, _| {
            let attr = verbs::QpAttr { state: QpState::Reset, ..Default::default() };
            w.modify(1, qb, &attr, verbs::QpAttrMask::STATE).unwrap();
            128
        }),
        ("its queue pair is gone", |w, qb, _| {
            w.nodes[1].engine.destroy_qp(qb).unwrap();
            128
        }),
    ];
    for (what, case) in cases {
        let (mut w, qa, qb) = proven();
        w.write(0, 0, &[7; 8]);
        let (mw, rkey) = window(&mut w, qb);
        let at = case(&mut w, qb, mw);
        let shown = w.net.borrow().exported[1].contains_key(&wire::ExportId::Region(rkey.0));
        assert_eq!(shown, what == "beyond it", "{what}");
        assert!(!write_by(&mut w, qa, rkey, at).1, "{what}");
        assert_eq!(w.read(1, 128, 64), [0; 64], "{what}");
    }
}

#[test]
fn a_window_is_that_of_one_queue_pair() {
    let (mut w, _, qb) = proven();
    let (_, rkey) = window(&mut w, qb);
    let (other, _) = w.pair(0, 1, QpType::Rc);
    let (body, from) = (w.rdma(1, 0), [w.sge(0, 0, 8)]);
    w.post(0, other, Opcode::RdmaWrite, body, &from, 0).unwrap();
    w.settle();
    assert_eq!(statuses(&mut w, 0), [St::Success]);
    assert_eq!(write_by(&mut w, other, rkey, 128), (St::RemAccessErr, false));
}

/// The system call of a copy would take longer than the answer.
#[test]
fn short_windows_are_shown_only_in_memory_that_peers_map() {
    for (maps, length, shown) in [(false, (64 << 10) - 1, false), (false, 64 << 10, true), (true, 1, true)] {
        let (mut w, _, qb) = proven();
        w.net.borrow_mut().maps = maps;
        let n = &mut w.nodes[1];
        let (mw, rkey) = n.engine.alloc_mw(n.pd, crate::MwKind::Type2).unwrap();
        let mr = n.engine.mem.find_mr(n.key);
        for access in [Access::REMOTE_READ, Access::empty()] {
            let bind = SendBody::BindMw { mw, rkey, mr, addr: BASE, length, access };
            w.post(1, qb, Opcode::BindMw, bind, &[], 1).unwrap();
            w.settle();
            let found = w.net.borrow().exported[1].contains_key(&wire::ExportId::Region(rkey.0));
            assert_eq!(found, shown && !access.is_empty(), "{maps} {length} {access:?}");
            let (wr_id, flags, data) = (2, SendFlags::empty(), SendData::Sges(&[]));
            let (opcode, imm_or_rkey, body) = (Opcode::LocalInv, rkey.0, &SendBody::Plain);
            w.post_wr(1, qb, &SendWr { wr_id, opcode, flags, imm_or_rkey, remote_srqn: 0, body, data }).unwrap();
            w.settle();
        }
    }
}

/// A long request waits for the answer to a short SEND, where single copies are permitted.
#[test]
fn a_long_request_waits_for_a_short_send() {
    for permitted in [false, true] {
        let (mut w, qa, qb) = proven();
        w.net.borrow_mut().single_copy = permitted;
        let (body, from, short) = (w.rdma(1, 0), [w.sge(0, 0, 64 << 10)], [w.sge(0, 0, 8)]);
        let into = [w.sge(1, 4096, 8)];
        for i in 0..3 {
            w.recv(1, qb, &into, 2).unwrap();
            w.post(0, qa, Opcode::Send, SendBody::Plain, &short, 2 * i).unwrap();
            w.post(0, qa, Opcode::RdmaWrite, body, &from, 2 * i + 1).unwrap();
        }
        assert_eq!(w.net.borrow().executed, 0, "not before what stands in front");
        w.settle();
        assert_eq!(w.net.borrow().executed, if permitted { 3 } else { 0 });
        let done: Vec<_> = w.poll(0).iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(done, (0..6).map(|i| (i, St::Success)).collect::<Vec<_>>());
    }
}

/// A READ behind one that was executed here is executed at its post, with all its checks.
#[test]
fn reads_at_their_post() {
    let (mut w, qa, _) = proven();
    let at_post = |w: &World| w.nodes[0].engine.executed_at_post[1];
    w.write(1, 500, b"to be read");
    let (body, into) = (w.rdma(1, 500), [w.sge(0, 2000, 10)]);
    for id in 1..4 {
        w.write(0, 2000, &[0; 10]);
        w.post(0, qa, Opcode::RdmaRead, body, &into, id).unwrap();
        assert_eq!((at_post(&w), w.read(0, 2000, 10)), (id - 1, b"to be read".to_vec()));
    }
    let done = w.poll(0);
    let found = done.iter().map(|c| (c.wr_id, c.status, c.opcode, c.byte_len));
    assert!(found.eq((1..4).map(|id| (id, St::Success, WcOpcode::RdmaRead, 10))), "{done:?}");
    // 9.7.3.1: a requester without resources for READs has none executed.
    let set = |w: &mut World, max_rd_atomic| {
        let state = |state| verbs::QpAttr { state, max_rd_atomic, ..World::attr(verbs::Qpn::new(0), 0, 0) };
        let mask = verbs::QpAttrMask::MAX_QP_RD_ATOMIC;
        for (state, mask) in [(state(QpState::Sqd), mask & !mask), (state(QpState::Sqd), mask)] {
            w.modify(0, qa, &state, mask).unwrap();
        }
        w.modify(0, qa, &state(QpState::Rts), mask & !mask).unwrap();
    };
    set(&mut w, 4);
    w.post(0, qa, Opcode::RdmaRead, body, &into, 4).unwrap();
    assert_eq!((at_post(&w), statuses(&mut w, 0)), (3, vec![St::Success]));
    set(&mut w, 0);
    w.post(0, qa, Opcode::RdmaRead, body, &into, 5).unwrap();
    assert_eq!((at_post(&w), statuses(&mut w, 0)), (3, vec![St::LocQpOpErr]));
}

/// Memory that may not be written to here, or read there, gets the errors of any READ.
#[test]
fn reads_at_their_post_that_are_not_allowed() {
    for wrong in 0..3 {
        let (mut w, qa, _) = proven();
        let (mut body, mut into) = (w.rdma(1, 500), w.sge(0, 2000, 10));
        for id in 1..3 {
            w.post(0, qa, Opcode::RdmaRead, body, &[into], id).unwrap();
        }
        assert_eq!((w.nodes[0].engine.executed_at_post[1], statuses(&mut w, 0).len()), (1, 2));
        let status = match wrong {
            0 => {
                let n = &mut w.nodes[0];
                let to = n.engine.reg_mr(n.pd, BASE, 0x1000, BASE, Access::REMOTE_READ).unwrap();
                into = verbs::Sge { addr: BASE, lkey: verbs::LKey(to.1.0), ..into };
                St::LocProtErr
            }
            1 => {
                let SendBody::Rdma { remote_addr, rkey } = body else { unreachable!() };
                body = SendBody::Rdma { remote_addr, rkey: RKey(rkey.0 ^ 1) };
                St::RemAccessErr
            }
            _ => {
                let n = &mut w.nodes[1];
                let from =
                    n.engine.reg_mr(n.pd, BASE, 0x1000, BASE, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
                body = SendBody::Rdma { remote_addr: BASE, rkey: RKey(from.1.0) };
                St::RemAccessErr
            }
        };
        w.write(0, 2000, &[7; 10]);
        w.post(0, qa, Opcode::RdmaRead, body, &[into], 3).unwrap();
        w.settle();
        assert_eq!((statuses(&mut w, 0), w.read(0, 2000, 10)), (vec![status], vec![7; 10]));
    }
}

/// A SEND that invalidates takes the fast path, and the key ends before the program hears of the SEND.
#[test]
fn a_send_that_invalidates_takes_the_fast_path() {
    let (mut w, qa, qb) = proven();
    let (_, rkey) = window(&mut w, qb);
    let (from, into) = ([w.sge(0, 0, 8)], [w.sge(1, 0, 8)]);
    w.recv(1, qb, &into, 7).unwrap();
    let (flags, data) = (SendFlags::SIGNALED, SendData::Sges(&from));
    let (opcode, imm_or_rkey) = (Opcode::SendWithInv, rkey.0);
    let wr = SendWr { wr_id: 2, opcode, flags, imm_or_rkey, remote_srqn: 0, body: &SendBody::Plain, data };
    let before = super::twins::fast_paths(&w);
    w.post_wr(0, qa, &wr).unwrap();
    w.settle();
    let after = super::twins::fast_paths(&w);
    assert_eq!([0, 1, 2].map(|way| after[way] - before[way]), [1; 3], "posted, received, acknowledged");
    let done = w.poll(1);
    let found: Vec<_> = done.iter().map(|c| (c.status, c.flags, c.imm_or_rkey)).collect();
    assert_eq!(
        (found, statuses(&mut w, 0)),
        (vec![(St::Success, verbs::WcFlags::WITH_INV, rkey.0)], vec![St::Success])
    );
    assert_eq!(write_by(&mut w, qa, rkey, 128), (St::RemAccessErr, false));
}
