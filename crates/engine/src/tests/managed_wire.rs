//! Two worlds in which managed queues of two processes send each other messages: in one they run straight, and messages
//! and acknowledgements are taken straight.

use std::sync::atomic::Ordering;

use verbs::{
    Completion, Count, CqId, Opcode, QpAttr, QpCap, QpId, QpInit, QpType, Qpn, RecvWr, SendBody, SendData, SendFlags,
    SendWr, Sge,
};

use super::fast_path::seeds;
use super::managed::{Array, counting};
use super::mock::*;
use super::random::Random;
use super::twins::Twins;
use crate::{Managed, QueueRules, Side};

const WORLDS: u64 = if cfg!(miri) { 1 } else { 300 };
const DEPTH: u32 = 8;

/// One end of the connection: its queue pair, and what completions of sends and of receives are in.
#[derive(Clone, Copy, PartialEq, Debug)]
struct End {
    qp: QpId,
    qpn: Qpn,
    cqs: [CqId; 2],
}

fn end(w: &mut World, node: usize, rules: [QueueRules; 2]) -> End {
    let cqs = [counting(w, node, 64, 0), counting(w, node, 2, 0)];
    let n = &mut w.nodes[node];
    let init = QpInit {
        pd: Some(n.pd),
        qp_type: QpType::Rc,
        send_cq: Some(cqs[0]),
        recv_cq: Some(cqs[1]),
        srq: None,
        xrcd: None,
        cap: QpCap { max_send_wr: DEPTH, max_recv_wr: DEPTH, max_send_sge: 1, max_recv_sge: 3, max_inline_data: 0 },
        sq_sig_all: false,
    };
    let (sends, receives) = (Array::new(DEPTH, 1).entries(), Array::new(DEPTH, 3).entries());
    let managed = Managed { send: Some((sends, rules[0])), recv: Some((receives, rules[1])) };
    let (qp, created) = n.engine.create_managed_qp(n.ctx, &init, 1, &managed).unwrap();
    End { qp, qpn: created.qpn, cqs }
}

fn list(r: &mut Random, w: &World, node: usize, most: u64, wild: bool) -> Vec<Sge> {
    let place = |r: &mut Random| 8 * r.below(0x1000);
    let length = |r: &mut Random| r.pick(&[0, 8, 24, 40, 256, 300]);
    let mut list: Vec<Sge> = (0..1 + r.below(most)).map(|_| w.sge(node, place(r), length(r))).collect();
    match r.below(if wild { 20 } else { 200 }) {
        0 => list[0].addr = 1 << 40,
        1 => list[0].lkey.0 ^= 0x100,
        _ => {}
    }
    list
}

/// Fills the queues of an end.
fn fill(r: &mut Random, t: &mut Twins, node: usize, it: End, wild: bool) {
    for wr_id in 0..u64::from(DEPTH) {
        let mut into = list(r, &t.fast, node, 3, wild);
        if !wild || r.below(4) > 0 {
            into[0].length = 304;
        }
        let wr = RecvWr { wr_id, sges: &into };
        let _ = t.both(|w| w.nodes[node].engine.post_recv(it.qp, &wr, w.now));
        let from = list(r, &t.fast, node, 1, wild);
        let signaled = if r.below(3) == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
        let solicited = if r.below(4) == 0 { SendFlags::SOLICITED } else { SendFlags::empty() };
        let (opcode, body) = match r.below(10) {
            0 => (Opcode::Nop, SendBody::Plain),
            1 => {
                let (cq, count) = (it.cqs[1], Count::Absolute(r.below(4)));
                (Opcode::Wait, SendBody::Wait { cq, count, step: 0 })
            }
            2 => (Opcode::RdmaWrite, t.fast.rdma(1 - node, 0x9000 + 8 * r.below(0x100))),
            3 => (Opcode::SendWithImm, SendBody::Plain),
            _ => (Opcode::Send, SendBody::Plain),
        };
        let data = SendData::Sges(if matches!(opcode, Opcode::Nop | Opcode::Wait) { &[] } else { &from });
        let flags = signaled | solicited;
        let wr = SendWr { wr_id, opcode, flags, imm_or_rkey: 7, remote_srqn: 0, body: &body, data };
        let _ = t.both(|w| w.nodes[node].engine.post_send(it.qp, &wr, w.now));
    }
}

/// A program by a seed: how many entries ran straight, and how many messages and acknowledgements were taken so.
fn program(seed: u64) -> [u64; 3] {
    let mut r = Random::new(seed);
    let mut t = Twins::new(seed);
    let (wild, cyclic) = (r.below(3) == 0, r.below(3) > 0);
    let (lose, repeat, room) = (r.pick(&[0, 0, 100]), r.pick(&[0, 0, 100]), r.pick(&[1, 4, 64, 64]));
    let opcodes = if r.coin() { u64::MAX } else { 0 };
    let patchable = if r.coin() { [u64::MAX; 2] } else { [r.next(), r.next()] };
    let rules = [opcodes, 0].map(|opcodes| QueueRules { opcodes, patchable, cyclic });
    let (path_mtu, timeout, first) = (r.pick(&[1, 3]), r.pick(&[0, 8, 14]), r.next() as u32 & 0xff_ffff);
    let (rnr_retry, one_sided) = (r.pick(&[1, 7]), r.below(4) > 0);
    let ends = [0, 1].map(|node| {
        t.both(|w| {
            let mut net = w.net.borrow_mut();
            (net.lose, net.repeat, net.room, net.one_sided) = (lose, repeat, room, one_sided);
            drop(net);
            end(w, node, rules)
        })
    });
    for node in 0..2 {
        let attr = World::attr(ends[1 - node].qpn, first, first);
        t.both(|w| w.connect(node, ends[node].qp, QpAttr { path_mtu, timeout, rnr_retry, min_rnr_timer: 14, ..attr }));
    }
    (0..2).for_each(|node| fill(&mut r, &mut t, node, ends[node], wild));
    let mut enabled = [[0u64; 2]; 2];
    for step in 0..80 {
        t.step = step;
        let (node, side) = (r.below(2) as usize, r.below(2) as usize);
        let End { qp, cqs, .. } = ends[node];
        match r.below(if wild { 10 } else { 9 }) {
            0..3 => {
                let more = r.below(4);
                enabled[node][side] += more;
                let count = Count::Absolute(enabled[node][side]);
                let which = [Side::Send, Side::Recv][side];
                let _ = t.both(|w| w.nodes[node].engine.enable(qp, which, count));
            }
            3..6 => {
                let most = 1 + r.below(3) as usize;
                t.both(|w| w.deliver(node, 1 - node, most));
            }
            6 => {
                let most = r.below(2) as usize;
                t.both(|w| w.drop_packets(node, 1 - node, 0, most));
            }
            7 => {
                let limit = r.pick(&[10_000, 2_000_000, 100_000_000]);
                t.both(|w| w.run_for(limit));
            }
            8 => {
                let _ = t.both(|w| {
                    let mut found = Vec::new();
                    let engine = &mut w.nodes[node].engine;
                    engine.poll(cqs[side], 64, |_, wc: &Completion| found.push(*wc));
                    (found, engine.cq_count(cqs[side]))
                });
            }
            _ => {
                let (at, bit) = (r.next() as usize, r.below(64));
                t.both(|w| {
                    let it = w.nodes[node].engine.qps.get(qp).unwrap();
                    let entries = match side {
                        0 => &it.sq.managed.as_ref().unwrap().entries,
                        _ => &it.rq.managed.as_ref().unwrap().entries,
                    };
                    let words = entries.array().words();
                    words[at % words.len()].fetch_xor(1 << bit, Ordering::Relaxed);
                });
            }
        }
    }
    t.both(|w| w.run_for(400_000_000));
    let engines = [0, 1].map(|node| &t.fast.nodes[node].engine);
    let straight = engines.map(|e| [e.ran_straight, e.came_straight[0], e.came_straight[1]]);
    t.finish();
    std::array::from_fn(|i| straight[0][i] + straight[1][i])
}

#[test]
fn messages_of_two_processes_go_straight_to_the_same_end() {
    let (mut straight, seeds) = ([0; 3], seeds(WORLDS));
    let all = seeds.end - seeds.start;
    for seed in seeds {
        let ran = program(seed);
        straight.iter_mut().zip(ran).for_each(|(sum, n)| *sum += n);
    }
    if all >= 100 {
        let least = [all / 2, 2 * all, all / 3];
        assert!(straight.iter().zip(least).all(|(n, least)| *n > least), "{straight:?} in {all} worlds");
    }
}
