//! What queues with tasks execute without a packet and without a list: NOPs, WAITs, and RDMA and messages to their own
//! process.

use verbs::{
    Access, Completion, Count, Opcode, QpInit, QpState, QpType, SendBody, SendData, SendFlags, SendWr, WcStatus,
};

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

/// A request that was patched to a NOP has a list, of which nothing is sent: also where it completes behind a message
/// that is not acknowledged.
#[test]
fn a_patched_nop_sends_no_bytes() {
    for behind in [false, true] {
        let rules = QueueRules { patchable: [0xff, 0], ..QueueRules::default() };
        let mut b = Bench::new(8, Some(rules), None);
        (0..2).for_each(|id| b.write(0, 0x100, id).unwrap());
        b.sends.put(8, b.sends.get(8) & !0xff | Opcode::Nop as u64);
        if !behind {
            b.enable(Side::Send, Count::Absolute(1)).unwrap();
        }
        b.enable(Side::Send, ALL).unwrap();
        assert_eq!(b.good(), [0, 1]);
        let counters = &b.w.nodes[0].engine.qps.get(b.qp).unwrap().counts.counters;
        assert_eq!((counters.sent, counters.sent_bytes), (2, 8), "behind a message: {behind}");
    }
}

/// Two queue pairs of node 0 that are connected to each other; the first one's sends are managed.
fn within_one_process() -> Bench {
    with_receives(QueueRules::default(), None, cap().max_send_sge)
}

/// As [`within_one_process`], with rules for the sends, and for the receives of the second queue pair. Sends have lists
/// of so many members at most: those of one may run straight.
fn with_receives(rules: QueueRules, receives: Option<QueueRules>, sges: u32) -> Bench {
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
        cap: verbs::QpCap { max_send_sge: sges, ..cap() },
        sq_sig_all: false,
    };
    let sends = super::managed::Array::new(cap().max_send_wr, sges);
    let managed = Managed { send: Some((sends.entries(), rules)), recv: None };
    let (first, created) = n.engine.create_managed_qp(n.ctx, &init, 1, &managed).unwrap();
    let (second, number) = match receives {
        None => b.w.qp_of(0, &init),
        Some(rules) => {
            let array = super::managed::Array::new(cap().max_recv_wr, cap().max_recv_sge);
            let managed = Managed { send: None, recv: Some((array.entries(), rules)) };
            let (id, created) = n.engine.create_managed_qp(n.ctx, &init, 2, &managed).unwrap();
            (id, created.qpn)
        }
    };
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

/// A WRITE that the peer's side does not show to be allowed is tried once, and counts as one entry: trying costs time,
/// and the platform learns from it. When WRITEs reach the peer again, they run straight again.
#[test]
fn a_write_that_has_to_be_sent_is_tried_once() {
    let mut b = Bench::new(8, Some(QueueRules::default()), None);
    b.w.net.borrow_mut().one_sided = true;
    (0..6).for_each(|id| b.write(0, 0x100, id).unwrap());
    let next = |b: &mut Bench| {
        let now = b.w.now;
        let before = (b.w.net.borrow().tried, b.w.nodes[0].engine.ran_straight);
        b.w.nodes[0].engine.next_hold();
        b.w.nodes[0].engine.enable(b.qp, Side::Send, Count::Relative { count: 1, last: true }).unwrap();
        b.w.nodes[0].engine.run(now);
        let (tried, begun) = (b.w.net.borrow().tried - before.0, b.w.nodes[0].engine.tasks);
        assert_eq!(b.good().len(), 1);
        (tried, begun, b.w.nodes[0].engine.ran_straight - before.1)
    };
    assert_eq!(next(&mut b), (0, 1, 0), "nobody has answered yet");
    let shown = std::mem::take(&mut b.w.net.borrow_mut().exported[1]);
    assert_eq!([next(&mut b), next(&mut b)], [(1, 1, 0); 2], "a packet");
    b.w.net.borrow_mut().exported[1] = shown;
    assert_eq!([next(&mut b), next(&mut b)], [(1, 1, 0), (1, 1, 1)], "one by the ordinary way, then straight");
    b.w.net.borrow_mut().exported[1].clear();
    assert_eq!(
        next(&mut b),
        (2, 1, 0),
        "the first that does not reach the peer is tried in both ways, and begins once"
    );
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
    // By the ordinary way one circle is executed, and what made room for the next; then its completions find no place.
    assert_eq!(overrun(cap().max_send_sge), (QpState::Err, 9, 8));
    // A straight run completes each entry at once. The first WRITE that is executed here takes the ordinary way.
    assert_eq!(overrun(1), (QpState::Err, 8, 1 + 3));
}

/// The state behind an overrun, and how many entries were taken out of the queue, and executed here. Sends have lists
/// of so many members at most: those of one may run straight.
fn overrun(sges: u32) -> (QpState, u64, u64) {
    let mut b = Bench::new(8, Some(QueueRules::default()), None);
    b.w.net.borrow_mut().one_sided = true;
    let n = &mut b.w.nodes[0];
    let small = n.engine.create_cq(n.ctx, 2, 0, crate::CqOpts::default()).unwrap().0;
    let (cq, pd) = (Some(small), Some(n.pd));
    let cap = verbs::QpCap { max_send_wr: 8, max_send_sge: sges, max_inline_data: 0, ..cap() };
    let init =
        QpInit { pd, qp_type: QpType::Rc, send_cq: cq, recv_cq: cq, srq: None, xrcd: None, cap, sq_sig_all: true };
    let sends = super::managed::Array::new(cap.max_send_wr, cap.max_send_sge);
    let rules = QueueRules { cyclic: true, ..QueueRules::default() };
    let managed = Managed { send: Some((sends.entries(), rules)), recv: None };
    let (first, created) = n.engine.create_managed_qp(n.ctx, &init, 1, &managed).unwrap();
    let (second, number) = b.w.qp_of(0, &init);
    b.w.connect(0, first, World::attr(number, 0, 0));
    b.w.connect(0, second, World::attr(created.qpn, 0, 0));
    (b.qp, b.peer, b.sends) = (first, second, sends);
    for i in 0..8u64 {
        let (body, sge) = (b.w.rdma(0, 0x200 + 8 * i), b.w.sge(0, 0, 8));
        b.w.post(0, b.qp, Opcode::RdmaWrite, body, &[sge], i).unwrap();
    }
    // The first is answered: only then both sides are known to be connected.
    for enabled in 1..=if sges == 1 { 2 } else { 1 } {
        b.enable(Side::Send, Count::Absolute(enabled)).unwrap();
        b.w.nodes[0].engine.poll(small, 8, |_, _: &verbs::Completion| {});
    }
    b.enable(Side::Send, Count::Absolute(60)).unwrap();
    let qp = b.w.nodes[0].engine.qps.get(b.qp).unwrap();
    (qp.state, qp.sq.fetched, b.w.net.borrow().executed)
}

/// Posts a message of so many bytes, and lets the queue execute it.
fn send(b: &mut Bench, from: u64, len: u32, wr_id: u64) {
    let sge = [b.w.sge(0, from, len)];
    b.w.post(0, b.qp, Opcode::Send, SendBody::Plain, &sge, wr_id).unwrap();
    let now = b.w.now;
    b.w.nodes[0].engine.enable(b.qp, Side::Send, ALL).unwrap();
    b.w.nodes[0].engine.run(now);
}

/// What completed: wr_id, status, bytes, immediate value.
fn completions(b: &mut Bench) -> Vec<(u64, WcStatus, u32, u32)> {
    let mut all = Vec::new();
    let found = |_, wc: &Completion| all.push((wc.wr_id, wc.status, wc.byte_len, wc.imm_or_rkey));
    b.w.nodes[0].engine.poll(b.cq, 1024, found);
    all
}

#[test]
fn a_message_to_the_own_process_needs_no_packet() {
    let mut b = within_one_process();
    for n in 0..3u8 {
        b.w.write(0, 0, &[n + 1; 8]);
        let into = [b.w.sge(0, 0x300, 8)];
        b.w.recv(0, b.peer, &into, 100).unwrap();
        send(&mut b, 0, 8, 1);
        let under_way = b.w.net.borrow().queues.values().any(|queue| !queue.is_empty());
        // The first one is answered by a packet: before that, the sides are not known to be connected.
        assert_eq!(under_way, n == 0, "message {n}");
        b.w.settle();
        let ids: Vec<_> = completions(&mut b).iter().map(|wc| (wc.0, wc.1)).collect();
        assert_eq!(ids, [(100, WcStatus::Success), (1, WcStatus::Success)], "the receive is first");
        assert_eq!(b.w.read(0, 0x300, 8), [n + 1; 8]);
    }
}

/// A queue pair that was connected anew expects other numbers: the message is sent, and counts as lost.
#[test]
fn a_message_to_another_connection_is_not_taken_in() {
    let mut b = within_one_process();
    let into = [b.w.sge(0, 0x300, 8)];
    b.w.recv(0, b.peer, &into, 100).unwrap();
    send(&mut b, 0, 8, 1);
    b.w.settle();
    let attr = b.w.nodes[0].engine.qps.get(b.peer).unwrap().attr;
    let reset = verbs::QpAttr { state: QpState::Reset, ..attr };
    b.w.modify(0, b.peer, &reset, verbs::QpAttrMask::empty()).unwrap();
    b.w.connect(0, b.peer, verbs::QpAttr { rq_psn: 70, ..attr });
    b.w.recv(0, b.peer, &into, 101).unwrap();
    completions(&mut b);
    send(&mut b, 0, 8, 2);
    b.w.run_for(100_000_000_000);
    let ended: Vec<_> = completions(&mut b).iter().map(|wc| (wc.0, wc.1)).collect();
    assert_eq!(ended, [(2, WcStatus::RetryExcErr)]);
}

/// The peer's path MTU is smaller: it refuses the packet, and so the message (IBTA vol. 1, 9.7.4.1.6).
#[test]
fn a_message_longer_than_the_peers_packets_is_refused() {
    let mut b = within_one_process();
    let attr = b.w.nodes[0].engine.qps.get(b.peer).unwrap().attr;
    let reset = verbs::QpAttr { state: QpState::Reset, ..attr };
    b.w.modify(0, b.peer, &reset, verbs::QpAttrMask::empty()).unwrap();
    b.w.connect(0, b.peer, verbs::QpAttr { path_mtu: 1, ..attr });
    for (id, len, expected) in [
        (1, 256, [(100, WcStatus::Success), (1, WcStatus::Success)]),
        (2, 256, [(100, WcStatus::Success), (2, WcStatus::Success)]),
        (3, 257, [(100, WcStatus::WrFlushErr), (3, WcStatus::RemInvReqErr)]),
    ] {
        let into = [b.w.sge(0, 0x1000, 512)];
        b.w.recv(0, b.peer, &into, 100).unwrap();
        send(&mut b, 0, len, id);
        b.w.settle();
        let ended: Vec<_> = completions(&mut b).iter().map(|wc| (wc.0, wc.1)).collect();
        assert_eq!(ended, expected, "{len} bytes");
    }
}

/// Random messages, also to receives that are too short, not there yet, or not in any region: completions and memory
/// are as if packets had been sent.
#[test]
fn a_message_to_the_own_process_ends_as_its_packet_would() {
    let mut kinds = std::collections::BTreeSet::new();
    for seed in 1..300u64 {
        let outcome = |here: bool| {
            let mut b = within_one_process();
            b.w.net.borrow_mut().one_sided = here;
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut random = |n: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % n
            };
            let bytes: Vec<u8> = (0..0x800u32).map(|i| (i * 7 + i / 251) as u8).collect();
            b.w.write(0, 0, &bytes);
            let mut all = Vec::new();
            for step in 0..20 {
                let (len, room, place) = (random(40) as u32, random(12), random(0x100) * 8);
                let mut list = vec![b.w.sge(0, 0x1000 + place, 40)];
                match room {
                    0 => list[0].length = 20,
                    1 => list[0].addr = 1 << 40,
                    2..6 => list = vec![b.w.sge(0, 0x1000 + place, 3), b.w.sge(0, 0x2000 + place, 40)],
                    _ => {}
                }
                // Now and then the receive comes behind its message.
                let late = random(6) == 0;
                if !late && b.w.recv(0, b.peer, &list, 100 + step).is_err() {
                    break;
                }
                let sge = [b.w.sge(0, random(0x700), len)];
                if b.w.post(0, b.qp, Opcode::Send, SendBody::Plain, &sge, step).is_err() {
                    break;
                }
                b.enable(Side::Send, ALL).unwrap();
                if late {
                    b.w.recv(0, b.peer, &list, 100 + step).unwrap();
                }
                b.w.run_for(1_000_000_000);
                all.extend(completions(&mut b));
                if all.iter().any(|wc| wc.1 != WcStatus::Success) {
                    break;
                }
            }
            let state = |id| b.w.nodes[0].engine.qps.get(id).unwrap().state;
            (all, state(b.qp), state(b.peer), b.w.read(0, 0, 0x4000))
        };
        let (with, without) = (outcome(true), outcome(false));
        assert_eq!((&with.0, with.1, with.2), (&without.0, without.1, without.2), "seed {seed}");
        assert!(with.3 == without.3, "seed {seed}: memory");
        kinds.extend(with.0.iter().map(|wc| wc.1 as u32));
    }
    let expected =
        [WcStatus::Success, WcStatus::LocLenErr, WcStatus::LocProtErr, WcStatus::RemInvReqErr, WcStatus::RemOpErr];
    assert!(expected.iter().all(|status| kinds.contains(&(*status as u32))), "{kinds:?}");
}

/// Messages of a process to itself that never end leave the lock, and the processor, to others.
#[test]
fn messages_to_the_own_process_have_a_budget() {
    [cap().max_send_sge, 1].into_iter().for_each(have_a_budget);
}

fn have_a_budget(sges: u32) {
    let rules = QueueRules { cyclic: true, ..QueueRules::default() };
    let mut b = with_receives(rules, Some(rules), sges);
    let (sends, receives) = (cap().max_send_wr, cap().max_recv_wr);
    for id in 0..u64::from(receives) {
        let into = [b.w.sge(0, 0x300, 8)];
        b.w.recv(0, b.peer, &into, id).unwrap();
    }
    for id in 0..u64::from(sends) {
        let wr = SendWr {
            wr_id: id,
            opcode: Opcode::Send,
            flags: SendFlags::empty(),
            imm_or_rkey: 0,
            remote_srqn: 0,
            body: &SendBody::Plain,
            data: SendData::Sges(&[b.w.sge(0, 0, 8)]),
        };
        b.w.post_wr(0, b.qp, &wr).unwrap();
    }
    let engine = &mut b.w.nodes[0].engine;
    engine.enable(b.peer, Side::Recv, Count::Absolute(1 << 50)).unwrap();
    // The answer to the first message shows that both sides are connected.
    b.enable(Side::Send, Count::Absolute(1)).unwrap();
    let engine = &mut b.w.nodes[0].engine;
    engine.enable(b.qp, Side::Send, Count::Absolute(1 << 50)).unwrap();
    for _ in 0..20 {
        let before = engine.queue_state(b.qp, Side::Send).unwrap().begun;
        engine.next_hold();
        engine.run(b.w.now);
        let ran = engine.queue_state(b.qp, Side::Send).unwrap().begun - before;
        assert!((64..=456).contains(&ran), "{ran}: as much work as 4096 tasks at most");
        assert!(b.w.net.borrow().queues.values().all(|queue| queue.is_empty()), "no packet");
        b.w.now = engine.next_deadline().unwrap();
        engine.expire(b.w.now);
    }
}
