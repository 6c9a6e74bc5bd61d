//! Two worlds with the same programs of entries: in one, managed queues run straight, in the other they do not.

use std::sync::Arc;

use verbs::{
    Access, Completion, Count, CqId, LKey, Opcode, QpCap, QpId, QpInit, QpState, QpType, SendBody, SendData, SendFlags,
    SendWr, Sge,
};

use super::fast_path::seeds;
use super::managed::{Array, counting};
use super::mock::*;
use super::random::Random;
use crate::{CqOpts, Managed, Notice, QueueRules, Side};

const SEEDS: u64 = if cfg!(miri) { 2 } else { 400 };
const DEPTH: u32 = 8;
const PAIRS: usize = 2;

/// A connection of node 0 to itself in one direction: `from` has a managed send queue, `to` managed receives.
struct Pair {
    from: QpId,
    to: QpId,
    sends: Arc<Array>,
    receives: Arc<Array>,
    ended: CqId,
    arrivals: CqId,
}

/// How the queue pairs of the pairs are connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    /// Each pair has two, one that sends and one that receives.
    Apart,
    /// Two in all, each of which sends to the other one.
    Crosswise,
    /// One for each pair, which is connected to itself.
    Alone,
}

struct Chain {
    w: World,
    pairs: Vec<Pair>,
}

fn qp(w: &mut World, [send, recv]: [CqId; 2], managed: &Managed) -> (QpId, verbs::Qpn) {
    let n = &mut w.nodes[0];
    let (pd, qp_type) = (Some(n.pd), QpType::Rc);
    let cap = QpCap { max_send_wr: DEPTH, max_recv_wr: DEPTH, max_send_sge: 1, max_recv_sge: 3, max_inline_data: 0 };
    let (send_cq, recv_cq) = (Some(send), Some(recv));
    let init = QpInit { pd, qp_type, send_cq, recv_cq, srq: None, xrcd: None, cap, sq_sig_all: false };
    let (id, created) = n.engine.create_managed_qp(n.ctx, &init, 1, managed).unwrap();
    (id, created.qpn)
}

/// A completion queue that is soon full.
fn few(w: &mut World) -> CqId {
    let opts = CqOpts { cross_channel: true, ..CqOpts::default() };
    let n = &mut w.nodes[0];
    n.engine.create_cq(n.ctx, 4, 0, opts).unwrap().0
}

impl Chain {
    fn new(seed: u64, straight: bool, shape: Shape, rules: [QueueRules; 2]) -> Chain {
        let mut w = World::new(1, seed);
        w.net.borrow_mut().one_sided = true;
        w.nodes[0].engine.set_fast_path(straight);
        w.nodes[0].engine.set_diagnostics(true);
        w.nodes[0].engine.piece = [16, 40, wire::PIECE][seed as usize % 3];
        let bytes: Vec<u8> = (0..0x1_0000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        w.write(0, 0, &bytes);
        let mut pairs: Vec<Pair> = Vec::new();
        let mut ends = Vec::new();
        for _ in 0..PAIRS {
            let (sends, receives) = (Array::new(DEPTH, 1), Array::new(DEPTH, 3));
            // One queue holds every completion of the test. The other one only counts, or overruns now and then.
            let ended = counting(&mut w, 0, 4096, 0);
            let arrivals = if seed.is_multiple_of(4) { few(&mut w) } else { counting(&mut w, 0, 2, 0) };
            let (send, recv) = (Some((sends.entries(), rules[0])), Some((receives.entries(), rules[1])));
            let (from, to) = if shape == Shape::Apart {
                let (from, number) = qp(&mut w, [ended, arrivals], &Managed { send, recv: None });
                let (to, other) = qp(&mut w, [ended, arrivals], &Managed { send: None, recv });
                w.connect(0, from, World::attr(other, 0, 0));
                w.connect(0, to, World::attr(number, 0, 0));
                (from, to)
            } else {
                let (both, number) = qp(&mut w, [ended, arrivals], &Managed { send, recv });
                ends.push((both, number));
                (both, both)
            };
            pairs.push(Pair { from, to, sends, receives, ended, arrivals });
        }
        for (n, &(id, _)) in ends.iter().enumerate() {
            let peer = if shape == Shape::Crosswise { ends.len() - 1 - n } else { n };
            w.connect(0, id, World::attr(ends[peer].1, 0, 0));
        }
        if shape == Shape::Crosswise {
            let receives = pairs[0].receives.clone();
            pairs[0].receives = std::mem::replace(&mut pairs[1].receives, receives);
            (pairs[0].to, pairs[1].to) = (pairs[1].from, pairs[0].from);
        }
        Chain { w, pairs }
    }

    fn settle(&mut self) {
        for _ in 0..10 {
            self.w.nodes[0].engine.next_hold();
            self.w.settle();
        }
        self.w.run_for(100_000_000);
    }

    fn post(&mut self, pair: usize, opcode: Opcode, flags: SendFlags, body: SendBody, list: &[Sge], wr_id: u64) {
        let data = SendData::Sges(list);
        let wr = SendWr { wr_id, opcode, flags, imm_or_rkey: 0x55, remote_srqn: 0, body: &body, data };
        let _ = self.w.post_wr(0, self.pairs[pair].from, &wr);
    }

    /// What the programs can see: completions, counts, states, memory.
    fn seen(&mut self) -> Vec<String> {
        let mut seen = Vec::new();
        let engine = &mut self.w.nodes[0].engine;
        for (n, pair) in self.pairs.iter().enumerate() {
            for cq in [pair.ended, pair.arrivals] {
                let count = engine.cq_count(cq).unwrap();
                let mut all = Vec::new();
                engine.poll(cq, 4096, |_, wc: &Completion| all.push(Completion { timestamp: 0, ..*wc }));
                // The two ends of a connection complete in an order of their own.
                all.sort_by_key(|wc| wc.qp_num.get());
                seen.push(format!("pair {n}: {count} {all:?}"));
            }
            for id in [pair.from, pair.to] {
                let qp = engine.qps.get(id).unwrap();
                let taken = qp.rq.managed.as_ref().map(|managed| managed.taken);
                let begun = (qp.sq.fetched, qp.sq.waiting(), taken, qp.rq.held, qp.inflight.len());
                seen.push(format!("{:?} {begun:?} {:?} {:?}", qp.state, qp.counts.counters, (qp.rc.msn, qp.rc.epsn)));
                seen.push(format!("{:?}", (qp.rc.comm_est, qp.same_host.peer_epoch, qp.rc.ack_deadline)));
            }
            let words = |array: &Array| (0..array.len()).map(|at| array.get(at)).collect::<Vec<_>>();
            seen.push(format!("{:?} {:?}", words(&pair.sends), words(&pair.receives)));
        }
        let notices: Vec<_> = std::mem::take(&mut self.w.nodes[0].notices);
        seen.extend(notices.iter().filter(|notice| **notice != Notice::Met).map(|notice| format!("{notice:?}")));
        seen
    }
}

fn shape_of(seed: u64) -> Shape {
    [Shape::Apart, Shape::Crosswise, Shape::Apart, Shape::Alone, Shape::Apart][seed as usize % 5]
}

/// A program of entries by a seed: what its steps show, and how many entries ran straight.
fn outcome(seed: u64, straight: bool) -> (Vec<String>, Vec<u8>, u64, Vec<u32>) {
    let mut r = Random::new(seed);
    let wild = r.below(3) == 0;
    let opcodes = if r.coin() { u64::MAX } else { 0 };
    let patchable = if r.coin() { [u64::MAX; 2] } else { [r.next(), r.next()] };
    let cyclic = r.below(3) > 0;
    let sends = QueueRules { opcodes, patchable, cyclic };
    let shape = shape_of(seed);
    let mut c = Chain::new(seed, straight, shape, [sends, QueueRules { opcodes: 0, patchable, cyclic }]);
    let n = &mut c.w.nodes[0];
    let null = n.engine.reg_null_mr(n.pd).unwrap().1;
    let (guarded, lkey, rkey) = n.engine.reg_mr(n.pd, BASE, 0x1_0000, BASE, ALL).unwrap();
    n.engine.guard_mr(guarded).unwrap();
    let keys = [null, lkey];
    let place = |r: &mut Random| 0x1000 + 8 * r.below(0x1000);
    let list = |r: &mut Random, w: &World, most: u64, least: u64| {
        let span = |r: &mut Random| w.sge(0, place(r), 8 * (least + r.below(6)) as u32);
        let mut list: Vec<Sge> = (0..1 + r.below(most)).map(|_| span(r)).collect();
        if r.below(if wild { 12 } else { 100 }) == 0 {
            match r.below(5) {
                0 => list[0].addr = 1 << 40,
                1 => list[0].lkey = LKey(list[0].lkey.0 ^ 0x100),
                n @ (2 | 3) => list[0].lkey = keys[n as usize - 2],
                _ => list[0].length = u32::MAX - 4,
            }
        }
        list
    };
    for pair in 0..PAIRS {
        for n in 0..u64::from(DEPTH) {
            let into = list(&mut r, &c.w, 3, if wild { 2 } else { 5 });
            let to = c.pairs[pair].to;
            let _ = c.w.recv(0, to, &into, 100 + n);
        }
        // The first message is answered by a packet: only then both sides are known to be connected.
        let sge = [c.w.sge(0, 0, 0)];
        c.post(pair, Opcode::Send, SendFlags::SIGNALED, SendBody::Plain, &sge, 1);
        for n in 1..u64::from(DEPTH) {
            let signaled = if r.coin() { SendFlags::SIGNALED } else { SendFlags::empty() };
            let flags = signaled | if r.below(8) == 0 { SendFlags::FENCE } else { SendFlags::empty() };
            let flags = flags | if r.below(8) == 0 { SendFlags::SOLICITED } else { SendFlags::empty() };
            let sges = list(&mut r, &c.w, 1, 0);
            let step = if cyclic { DEPTH * r.below(2) as u32 } else { 0 };
            let body = match c.w.rdma(0, place(&mut r)) {
                SendBody::Rdma { rkey, .. } if r.below(if wild { 10 } else { 80 }) == 0 => {
                    SendBody::Rdma { remote_addr: 1 << 41, rkey }
                }
                SendBody::Rdma { remote_addr, .. } if r.below(5) == 0 => SendBody::Rdma { remote_addr, rkey },
                body => body,
            };
            let other = r.below(PAIRS as u64) as usize;
            // By the ordinary way, completions of a turn come at its end, and a WAIT for the queue's own ones lets the
            // peer's queue run first: its message may end the queue pair.
            let early = shape == Shape::Crosswise && other == pair;
            let cq = if r.coin() && !early { c.pairs[other].ended } else { c.pairs[other].arrivals };
            let (wait, count) = (r.below(4) == 0, Count::Absolute(r.below(3)));
            match r.below(8) {
                0 => c.post(pair, Opcode::Nop, flags, SendBody::Plain, &[], n),
                1 | 2 if wait => c.post(pair, Opcode::Wait, flags, SendBody::Wait { cq, count, step }, &[], n),
                3 | 4 => c.post(pair, Opcode::RdmaWrite, flags, body, &sges, n),
                5 if r.below(3) == 0 => c.post(pair, Opcode::RdmaRead, flags, body, &sges, n),
                6 if r.below(3) == 0 => c.post(pair, Opcode::SendWithImm, flags, SendBody::Plain, &sges, n),
                _ => c.post(pair, Opcode::Send, flags, SendBody::Plain, &sges, n),
            }
        }
    }
    let mut seen = Vec::new();
    let (mut enabled, mut receives) = ([1u64; PAIRS], [2u64; PAIRS]);
    for step in 0..16 {
        for pair in 0..PAIRS {
            if step > 0 {
                (enabled[pair], receives[pair]) = (enabled[pair] + r.below(6), receives[pair] + r.below(5));
            }
            let (from, to) = (c.pairs[pair].from, c.pairs[pair].to);
            let [sent, taken] = [enabled[pair], receives[pair]].map(Count::Absolute);
            let engine = &mut c.w.nodes[0].engine;
            let both = [engine.enable(to, Side::Recv, taken), engine.enable(from, Side::Send, sent)];
            seen.push(format!("{both:?}"));
            if wild && r.below(3) == 0 {
                let array = if r.coin() { &c.pairs[pair].sends } else { &c.pairs[pair].receives };
                let at = r.below(array.len() as u64) as usize;
                let value = match r.below(3) {
                    0 => r.next(),
                    1 => array.get(at) ^ 1 << r.below(64),
                    _ => array.get(at) & !0xff | 0x80 | r.below(3),
                };
                array.put(at, value);
            }
            if step > 0 && r.below(40) == 0 {
                let attr = c.w.nodes[0].engine.qps.get(to).unwrap().attr;
                let access = if r.coin() { Access::REMOTE_READ } else { attr.access };
                let attr = verbs::QpAttr { access, state: QpState::Rts, ..attr };
                let _ = c.w.modify(0, to, &attr, verbs::QpAttrMask::ACCESS_FLAGS);
            }
        }
        let engine = &mut c.w.nodes[0].engine;
        engine.next_hold();
        engine.run(c.w.now);
        seen.push(format!("{:?}", (engine.executed, engine.moved, engine.served)));
        c.settle();
        seen.extend(c.seen());
    }
    let statuses = c.pairs.iter().map(|pair| c.w.nodes[0].engine.qps.get(pair.from).unwrap().state as u32).collect();
    (seen, c.w.read(0, 0, 0x1_0000), c.w.nodes[0].engine.ran_straight, statuses)
}

#[test]
fn a_straight_run_does_what_the_ordinary_way_does() {
    let (mut straight, mut ended, seeds) = ([0; 3], [0; 2], seeds(SEEDS));
    let all = seeds.end - seeds.start;
    for seed in seeds {
        let (with, without) = (outcome(seed, true), outcome(seed, false));
        assert_eq!(without.2, 0);
        for (n, (a, b)) in with.0.iter().zip(&without.0).enumerate() {
            assert!(a == b, "SOFTRNIC_WORLD={seed}, line {n}\n straight: {a}\n ordinary: {b}");
        }
        assert!(with.1 == without.1, "SOFTRNIC_WORLD={seed}: memory");
        straight[shape_of(seed) as usize] += with.2;
        with.3.iter().for_each(|state| ended[usize::from(*state == QpState::Err as u32)] += 1);
    }
    if all >= 100 {
        // A message of a queue pair to itself is a packet.
        let least = [9 * all, 2 * all, all / 2];
        assert!(straight.iter().zip(least).all(|(n, least)| *n > least), "{straight:?} entries ran straight");
        assert!(ended.iter().all(|n| *n > all / 10), "{ended:?}: queue pairs that go on, and that have ended");
    }
}
