//! Requests that fail: status on both sides, state, flush order, events.

use verbs::{
    Access, EventKind, LKey, MrId, Opcode, QpAttr, QpAttrMask, QpState, QpType, RKey, SendBody, Sge, WcStatus as St,
};

use super::mock::*;
use super::twins;
use crate::{Engine, Notice};

const SECOND: u64 = 1_000_000_000;

fn events(w: &World, node: usize) -> Vec<EventKind> {
    w.nodes[node]
        .notices
        .iter()
        .filter_map(|n| if let Notice::Async { kind, .. } = n { Some(*kind) } else { None })
        .filter(|k| *k != EventKind::CommEst)
        .collect()
}

fn statuses(w: &mut World, node: usize) -> Vec<St> {
    w.poll(node).iter().map(|c| c.status).collect()
}

/// Runs one failing request with one more behind it, over each path.
fn matrix(check: impl Fn(&mut World, usize, usize)) {
    for (single_copy, above, peer) in [(false, 0, 1), (true, 0, 1), (true, 16384, 1), (true, 0, 0)] {
        let mut w = World::new(2, 5);
        (w.net.borrow_mut().single_copy, w.net.borrow_mut().single_copy_above) = (single_copy, above);
        check(&mut w, 0, peer);
    }
}

#[test]
fn remote_access() {
    for opcode in [Opcode::RdmaWrite, Opcode::RdmaRead, Opcode::FetchAndAdd] {
        matrix(|w, a, b| {
            let (qa, qb) = w.pair(a, b, QpType::Rc);
            let at = BASE + ARENA as u64 - 63; // one byte too far
            let rkey = RKey(w.nodes[b].key);
            let body = if opcode == Opcode::FetchAndAdd {
                SendBody::Atomic { remote_addr: BASE + ARENA as u64, rkey, compare_add: 1, swap: 0 }
            } else {
                SendBody::Rdma { remote_addr: at, rkey }
            };
            let from = [w.sge(a, 0, 64)];
            let first = [w.sge(a, 0, if opcode == Opcode::FetchAndAdd { 8 } else { 64 })];
            w.post(a, qa, opcode, body, &first, 1).unwrap();
            let _ = w.post(a, qa, Opcode::RdmaWrite, w.rdma(b, 0), &from, 2);
            w.run_for(SECOND);
            assert_eq!(statuses(w, a)[..2], [St::RemAccessErr, St::WrFlushErr]);
            assert_eq!(w.nodes[a].engine.qp_state(qa), Ok(QpState::Err));
            assert_eq!(w.nodes[b].engine.qp_state(qb), Ok(QpState::Err));
            assert_eq!(events(w, b), [EventKind::QpAccessErr]);
        });
    }
}

/// The log names the rule that a refused access broke, where the wire has one NAK for all of them.
#[test]
fn a_refused_access_names_its_reason() {
    use crate::region::RemoteFault::{Bounds, Domain, Key, Rights, Wrap};
    for fault in [Key, Domain, Rights, Bounds, Wrap] {
        for opcode in [Opcode::RdmaWrite, Opcode::RdmaRead] {
            let mut w = World::new(2, 5);
            let (qa, _) = w.pair(0, 1, QpType::Rc);
            let n = &mut w.nodes[1];
            n.engine.set_diagnostics(true);
            let other = n.engine.alloc_pd(n.ctx).unwrap();
            let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::LOCAL_WRITE;
            let (pd, access) = match fault {
                Domain => (other, remote),
                Rights => (n.pd, Access::LOCAL_WRITE),
                _ => (n.pd, remote),
            };
            let (_, key, _) = n.engine.reg_mr(pd, BASE, 64, BASE, access).unwrap();
            let rkey = if fault == Key { RKey(key.0 ^ 1) } else { RKey(key.0) };
            let remote_addr = match fault {
                Bounds => BASE + 1,
                Wrap => u64::MAX - 1,
                _ => BASE,
            };
            let sges = [w.sge(0, 0, 64)];
            w.post(0, qa, opcode, SendBody::Rdma { remote_addr, rkey }, &sges, 1).unwrap();
            w.run_for(SECOND);
            assert_eq!(statuses(&mut w, 0), [St::RemAccessErr]);
            let rules = w.nodes[1].notices.iter().filter_map(|notice| match notice {
                Notice::Broken { rule, .. } => Some(*rule),
                _ => None,
            });
            assert_eq!(rules.collect::<Vec<_>>(), [fault.rule()], "{opcode:?}");
        }
    }
}

/// 9.4.5, 11.6.2: the list of an atomic has 8 bytes, however many entries.
#[test]
fn atomic_list_not_of_eight_bytes() {
    for opcode in [Opcode::CmpAndSwp, Opcode::FetchAndAdd] {
        for (lengths, expected) in [
            (&[7][..], St::LocLenErr),
            (&[9], St::LocLenErr),
            (&[8, 1], St::LocLenErr),
            (&[], St::LocLenErr),
            (&[8], St::Success),
            (&[3, 5], St::Success),
        ] {
            let mut w = World::new(2, 5);
            let (qa, _) = w.pair(0, 1, QpType::Rc);
            let rkey = RKey(w.nodes[1].key);
            let body = SendBody::Atomic { remote_addr: BASE, rkey, compare_add: 1, swap: 0 };
            let list: Vec<_> = lengths.iter().map(|len| w.sge(0, 64, *len)).collect();
            w.post(0, qa, opcode, body, &list, 1).unwrap();
            w.run_for(SECOND);
            assert_eq!(statuses(&mut w, 0), [expected], "{opcode:?} {lengths:?}");
        }
    }
}

/// 11.6.2: the receive that a WRITE with immediate data would have taken ends with a local access error, however long
/// the message is, and whichever of its packets is refused.
#[test]
fn write_with_immediate_and_a_bad_key() {
    for (len, posted) in [(64, true), (40_000, true), (64, false)] {
        matrix(|w, a, b| {
            let (qa, qb) = w.pair(a, b, QpType::Rc);
            if posted {
                for id in [7, 8] {
                    w.recv(b, qb, &[], id).unwrap();
                }
            }
            let body = SendBody::Rdma { remote_addr: BASE, rkey: RKey(w.nodes[b].key ^ 1) };
            let from = [w.sge(a, 0, len)];
            w.post(a, qa, Opcode::RdmaWriteWithImm, body, &from, 1).unwrap();
            w.run_for(SECOND);
            if a == b {
                return;
            }
            assert_eq!(statuses(w, a), [St::RemAccessErr]);
            let wanted: &[St] = if posted { &[St::LocAccessErr, St::WrFlushErr] } else { &[] };
            assert_eq!(statuses(w, b), wanted);
            assert_eq!(events(w, b), [EventKind::QpAccessErr]);
        });
    }
}

/// 11.4.1.1: the other bits are the window's.
#[test]
fn of_a_new_key_only_the_low_byte_counts() {
    let mut w = World::new(2, 5);
    let (qa, qb) = w.pair(0, 1, QpType::Rc);
    let n = &mut w.nodes[1];
    let (mw, old) = n.engine.alloc_mw(n.pd, crate::MwKind::Type2).unwrap();
    let mr = n.engine.mem.find_mr(n.key);
    let access = Access::REMOTE_WRITE;
    let bind = SendBody::BindMw { mw, rkey: RKey(0x12_3456), mr, addr: BASE, length: 64, access };
    w.post(1, qb, Opcode::BindMw, bind, &[], 1).unwrap();
    w.settle();
    assert_eq!(statuses(&mut w, 1), [St::Success]);
    let from = [w.sge(0, 0, 8)];
    for (rkey, wanted) in [(old.0 & !0xff | 0x56, St::Success), (0x12_3456, St::RemAccessErr)] {
        w.post(0, qa, Opcode::RdmaWrite, SendBody::Rdma { remote_addr: BASE, rkey: RKey(rkey) }, &from, 2).unwrap();
        w.run_for(SECOND);
        assert_eq!(statuses(&mut w, 0), [wanted]);
    }
}

#[test]
fn receive_too_short() {
    matrix(|w, a, b| {
        let (qa, qb) = w.pair(a, b, QpType::Rc);
        let (from, into) = ([w.sge(a, 0, 40_000)], [w.sge(b, 0, 39_999)]);
        w.recv(b, qb, &into, 7).unwrap();
        w.recv(b, qb, &into, 8).unwrap();
        w.post(a, qa, Opcode::Send, SendBody::Plain, &from, 1).unwrap();
        w.run_for(SECOND);
        let mut got = w.poll(a);
        if a != b {
            got.extend(w.poll(b));
        }
        let of = |id| got.iter().find(|c| c.wr_id == id).unwrap().status;
        assert_eq!((of(1), of(7), of(8)), (St::RemInvReqErr, St::LocLenErr, St::WrFlushErr));
    });
}

#[test]
fn receive_not_ours() {
    matrix(|w, a, b| {
        let (qa, qb) = w.pair(a, b, QpType::Rc);
        let from = [w.sge(a, 0, 40_000)];
        let into = [Sge { lkey: LKey(w.nodes[b].key ^ 1), ..w.sge(b, 0, 40_000) }];
        w.recv(b, qb, &into, 7).unwrap();
        w.post(a, qa, Opcode::Send, SendBody::Plain, &from, 1).unwrap();
        w.run_for(SECOND);
        let mut got = w.poll(a);
        if a != b {
            got.extend(w.poll(b));
        }
        let of = |id| got.iter().find(|c| c.wr_id == id).unwrap().status;
        assert_eq!((of(1), of(7)), (St::RemOpErr, St::LocProtErr));
    });
}

#[test]
fn local_errors() {
    matrix(|w, a, b| {
        let (qa, qb) = w.pair(a, b, QpType::Rc);
        let good = [w.sge(a, 0, 8)];
        let into = [w.sge(b, 0, 8)];
        w.recv(b, qb, &into, 7).unwrap();
        let bad = [Sge { addr: BASE + ARENA as u64 - 7, ..good[0] }];
        w.post(a, qa, Opcode::Send, SendBody::Plain, &good, 1).unwrap();
        w.post(a, qa, Opcode::Send, SendBody::Plain, &bad, 2).unwrap();
        let _ = w.post(a, qa, Opcode::Send, SendBody::Plain, &good, 3);
        w.run_for(SECOND);
        let got: Vec<_> = w.poll(a).into_iter().filter(|c| c.wr_id < 7).map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(got, [(1, St::Success), (2, St::LocProtErr), (3, St::WrFlushErr)]);
    });
}

#[test]
fn receiver_not_ready() {
    matrix(|w, a, b| {
        let (qa, qb) = w.pair(a, b, QpType::Rc);
        let mut attr = World::attr(verbs::Qpn::new(0), 0, 0);
        attr.state = QpState::Sqd;
        w.modify(a, qa, &attr, verbs::QpAttrMask::empty()).unwrap();
        attr.rnr_retry = 2;
        w.modify(a, qa, &attr, verbs::QpAttrMask::RNR_RETRY).unwrap();
        attr.state = QpState::Rts;
        w.modify(a, qa, &attr, verbs::QpAttrMask::empty()).unwrap();
        let (from, into) = ([w.sge(a, 0, 20_000)], [w.sge(b, 0, 20_000)]);
        w.post(a, qa, Opcode::Send, SendBody::Plain, &from, 1).unwrap();
        w.settle();
        w.recv(b, qb, &into, 7).unwrap();
        w.run_for(SECOND);
        let mut got = w.poll(a);
        if a != b {
            got.extend(w.poll(b));
        }
        assert!(got.len() == 2 && got.iter().all(|c| c.status == St::Success), "{got:?}");
        w.post(a, qa, Opcode::Send, SendBody::Plain, &from, 2).unwrap();
        w.run_for(10 * SECOND);
        assert_eq!(statuses(w, a), [St::RnrRetryExcErr]);
    });
}

/// A peer that is never ready leaves no trace of each of its answers, though the timer of the request in between runs
/// for hours; nor does a queue pair that is destroyed.
#[test]
fn timers_that_nobody_waits_for_are_swept() {
    let mut w = World::new(2, 5);
    let made = w.nodes[0].engine.qps.len();
    let mut pairs = Vec::new();
    for _ in 0..3 {
        let (qa, qb) = w.pair(0, 1, QpType::Rc);
        for (node, qp) in [(0, qa), (1, qb)] {
            let mut attr = World::attr(verbs::Qpn::new(0), 0, 0);
            attr.state = QpState::Sqd;
            w.modify(node, qp, &attr, verbs::QpAttrMask::empty()).unwrap();
            (attr.rnr_retry, attr.min_rnr_timer, attr.timeout) = (7, 1, 31);
            let mask = verbs::QpAttrMask::RNR_RETRY | verbs::QpAttrMask::MIN_RNR_TIMER | verbs::QpAttrMask::TIMEOUT;
            w.modify(node, qp, &attr, mask).unwrap();
            attr.state = QpState::Rts;
            w.modify(node, qp, &attr, verbs::QpAttrMask::empty()).unwrap();
        }
        let from = [w.sge(0, 0, 8)];
        w.post(0, qa, Opcode::Send, SendBody::Plain, &from, 1).unwrap();
        pairs.push((qa, qb));
    }
    w.run_for(SECOND / 20);
    let tries = w.nodes[0].engine.qps.get(pairs[0].0).unwrap().counts.counters.rnr_naks_in;
    assert!(tries > 1000, "{tries}");
    let most = 10 * (made + pairs.len()) + 64;
    assert!(w.nodes[0].engine.timers.len() <= most, "{}", w.nodes[0].engine.timers.len());
    // Timers that are still waited for go on.
    let into = [w.sge(1, 0, 8)];
    for &(_, qb) in &pairs {
        w.recv(1, qb, &into, 7).unwrap();
    }
    w.run_for(SECOND / 20);
    assert_eq!(statuses(&mut w, 0), [St::Success; 3]);
    for _ in 0..100 {
        let (qa, qb) = w.pair(0, 1, QpType::Rc);
        let from = [w.sge(0, 0, 8)];
        w.post(0, qa, Opcode::Send, SendBody::Plain, &from, 1).unwrap();
        w.nodes[0].engine.destroy_qp(qa).unwrap();
        w.nodes[1].engine.destroy_qp(qb).unwrap();
    }
    assert!(w.nodes[0].engine.timers.len() <= most, "{}", w.nodes[0].engine.timers.len());
}

#[test]
fn nobody_there() {
    let mut w = World::new(2, 5);
    let (qa, qb) = w.pair(0, 1, QpType::Rc);
    w.nodes[1].engine.destroy_qp(qb).unwrap();
    let from = [w.sge(0, 0, 8)];
    w.post(0, qa, Opcode::Send, SendBody::Plain, &from, 1).unwrap();
    w.run_for(7 * 67_000_000);
    assert!(w.poll(0).is_empty());
    w.run_for(2 * 67_200_000);
    assert_eq!(statuses(&mut w, 0), [St::RetryExcErr]);
}

#[test]
fn queues_full_and_bad_posts() {
    use verbs::Errno;
    let mut w = World::new(2, 5);
    let (qa, _) = w.pair(0, 1, QpType::Rc);
    let sge = w.sge(0, 0, 8);
    assert_eq!(w.post(0, qa, Opcode::Send, SendBody::Plain, &[sge; 5], 1), Err(Errno::EINVAL));
    for i in 0..64 {
        w.recv(0, qa, &[sge], i).unwrap();
        w.post(0, qa, Opcode::RdmaWrite, w.rdma(1, 0), &[sge], i).unwrap();
    }
    assert_eq!(w.recv(0, qa, &[sge], 1), Err(Errno::ENOMEM));
    assert_eq!(w.recv(0, qa, &[sge; 5], 1), Err(Errno::EINVAL));
    assert_eq!(w.post(0, qa, Opcode::RdmaWrite, w.rdma(1, 0), &[sge], 1), Err(Errno::ENOMEM));
    w.settle();
    // A complete request that is not polled still holds its place (ibv_post_send(3), mlx5 and others).
    assert_eq!(w.post(0, qa, Opcode::RdmaWrite, w.rdma(1, 0), &[sge], 1), Err(Errno::ENOMEM));
    assert_eq!(w.poll(0).len(), 64);
    w.post(0, qa, Opcode::RdmaWrite, w.rdma(1, 0), &[sge], 1).unwrap();
    let (fresh, _) = w.qp(0, QpType::Rc);
    assert_eq!(w.post(0, fresh, Opcode::Send, SendBody::Plain, &[sge], 1), Err(Errno::EINVAL));
    assert_eq!(w.recv(0, fresh, &[sge], 1), Err(Errno::EINVAL));
}

#[test]
fn completion_queue_overrun() {
    let mut w = World::new(2, 5);
    w.nodes[0].cq = {
        let ctx = w.nodes[0].ctx;
        w.nodes[0].engine.create_cq(ctx, 3, 0, crate::CqOpts::default()).unwrap().0
    };
    let (qa, _) = w.pair(0, 1, QpType::Rc);
    let sge = w.sge(0, 0, 8);
    for i in 0..5 {
        w.post(0, qa, Opcode::RdmaWrite, w.rdma(1, 0), &[sge], i).unwrap();
    }
    w.settle();
    assert_eq!(events(&w, 0), [EventKind::CqErr, EventKind::QpFatal]);
    assert_eq!(w.nodes[0].engine.qp_state(qa), Ok(QpState::Err));
    assert_eq!(w.poll(0).len(), 3);
}

/// A target that comes late (it was stopped) must not write into memory that the program has taken back, nor deliver
/// the present contents of that memory as a message.
#[test]
fn late_target_leaves_dead_requests_alone() {
    let mut w = World::new(2, 5);
    w.net.borrow_mut().single_copy = true;
    let (qa, qb) = w.pair(0, 1, QpType::Rc);
    w.write(1, 0, &[7; 20_000]);
    let back = [w.sge(0, 0, 20_000)];
    let body = w.rdma(1, 0);
    w.post(0, qa, Opcode::RdmaRead, body, &back, 1).unwrap();
    let into = [w.sge(1, 0x10_0000, 20_000)];
    w.recv(1, qb, &into, 7).unwrap();
    w.post(0, qa, Opcode::Send, SendBody::Plain, &back, 2).unwrap();
    let mut attr = World::attr(verbs::Qpn::new(0), 0, 0);
    attr.state = QpState::Err;
    w.modify(0, qa, &attr, verbs::QpAttrMask::empty()).unwrap();
    w.settle();
    assert_eq!(statuses(&mut w, 0), [St::WrFlushErr, St::WrFlushErr]);
    assert_eq!(w.read(0, 0, 20_000), [0; 20_000]);
    assert!(w.poll(1).is_empty());
}

/// A queue that overwrites its completions frees the places of the lost ones.
#[test]
fn overwritten_completions_free_their_places() {
    let mut w = World::new(2, 5);
    let ctx = w.nodes[1].ctx;
    let opts = crate::CqOpts { ignore_overrun: true, ..Default::default() };
    w.nodes[1].cq = w.nodes[1].engine.create_cq(ctx, 2, 0, opts).unwrap().0;
    let (qa, qb) = w.pair(0, 1, QpType::Rc);
    let (from, into) = (w.sge(0, 0, 8), w.sge(1, 0, 8));
    for i in 0..200 {
        w.recv(1, qb, &[into], i).unwrap();
        w.post(0, qa, Opcode::Send, SendBody::Plain, &[from], i).unwrap();
        w.settle();
        w.poll(0);
    }
    assert_eq!(w.poll(1).len(), 2);
    assert_eq!(events(&w, 1), []);
}

#[test]
fn overwritten_completions_do_not_outlive_a_reset() {
    let mut w = World::new(2, 5);
    let ctx = w.nodes[0].ctx;
    let opts = crate::CqOpts { ignore_overrun: true, ..Default::default() };
    w.nodes[0].cq = w.nodes[0].engine.create_cq(ctx, 2, 0, opts).unwrap().0;
    let (qa, _) = w.pair(0, 1, QpType::Rc);
    let from = w.sge(0, 0, 8);
    let room = w.nodes[0].engine.send_room(qa).unwrap();
    for i in 0..8 {
        w.post(0, qa, Opcode::Send, SendBody::Plain, &[from], i).unwrap();
    }
    for state in [QpState::Err, QpState::Reset] {
        w.modify(0, qa, &QpAttr { state, ..Default::default() }, QpAttrMask::empty()).unwrap();
    }
    assert!(w.recv(0, qa, &[from], 1).is_err());
    assert_eq!(w.nodes[0].engine.send_room(qa).unwrap(), room);
}

/// Memory that may go is reached with care for as long as a region stands on it.
#[test]
fn a_guarded_region_is_so_until_it_has_other_memory() {
    let mut w = World::new(1, 5);
    let Node { engine, ctx, pd, .. } = &mut w.nodes[0];
    let (mr, lkey, rkey) = engine.reg_mr(*pd, BASE, 64, BASE, ALL).unwrap();
    let entry = Sge { addr: BASE, length: 8, lkey };
    let is_guarded = |engine: &Engine<Mock>, pd| engine.mem.local(Some(pd), &entry, true).unwrap().guarded;
    assert!(!is_guarded(engine, *pd));
    engine.guard_mr(mr).unwrap();
    assert!(is_guarded(engine, *pd), "not as it is remembered");
    let other = engine.alloc_pd(*ctx).unwrap();
    engine.rereg_mr(mr, None, Some(other), None).unwrap();
    assert!(is_guarded(engine, other));
    engine.rereg_mr(mr, Some((BASE, 32, BASE)), None, None).unwrap();
    assert!(!is_guarded(engine, other));
    assert_eq!(lkey.0, rkey.0);
}

/// The region last used is remembered: but not as it was before a change.
#[test]
fn a_region_that_changes_is_looked_up_anew() {
    type Change = fn(&mut World, MrId);
    let changes: [Change; 4] = [
        |w, mr| w.nodes[1].engine.dereg_mr(mr, false).unwrap(),
        |w, mr| _ = w.nodes[1].engine.rereg_mr(mr, Some((BASE, 4, BASE)), None, None).unwrap(),
        |w, mr| _ = w.nodes[1].engine.rereg_mr(mr, None, None, Some(Access::empty())).unwrap(),
        |w, mr| {
            let ctx = w.nodes[1].ctx;
            let pd = w.nodes[1].engine.alloc_pd(ctx).unwrap();
            w.nodes[1].engine.rereg_mr(mr, None, Some(pd), None).unwrap();
        },
    ];
    for change in changes {
        let mut w = twins::world(1, true);
        let (a, b) = w.pair(0, 1, QpType::Rc);
        let from = [w.sge(0, BASE, 8)];
        let pd = w.nodes[1].pd;
        let (mr, lkey, _) = w.nodes[1].engine.reg_mr(pd, BASE, 64, BASE, Access::LOCAL_WRITE).unwrap();
        let into = [Sge { addr: BASE, length: 8, lkey }];
        for id in 0..3 {
            w.recv(1, b, &into, id).unwrap();
        }
        for id in 0..2 {
            w.post(0, a, Opcode::Send, SendBody::Plain, &from, id).unwrap();
            w.settle();
        }
        assert!(w.nodes[1].engine.fast_paths[1] > 0);
        assert_eq!(w.poll(1).len(), 2);
        change(&mut w, mr);
        w.post(0, a, Opcode::Send, SendBody::Plain, &from, 2).unwrap();
        w.settle();
        assert_eq!(statuses(&mut w, 1), [St::LocProtErr]);
    }
}
