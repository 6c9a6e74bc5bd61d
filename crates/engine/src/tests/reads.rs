//! Many READs under way, between two nodes that run only now and then. On a machine with more processes than processors
//! each side finds a pile of packets when its turn comes, and timers that have run out meanwhile.

use verbs::{Opcode, QpId, QpState, QpType, WcStatus as St};

use super::mock::*;

const MS: u64 = 1_000_000;
const QPS: usize = 4;
const DEPTH: u64 = 16;
const EACH: u64 = 96;
const LEN: u32 = 5 << 10;

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// The place of a READ of a queue pair: the latest READs of one queue pair do not overlap.
fn slot(qp: u64, n: u64) -> u64 {
    (qp * 48 + n % 48) * 8192
}

fn pairs(w: &mut World) -> Vec<QpId> {
    (0..QPS)
        .map(|_| {
            let ((qa, na), (qb, nb)) = (w.qp(0, QpType::Rc), w.qp(1, QpType::Rc));
            for (node, qp, mut attr) in
                [(0, qa, World::attr(nb, 0xff_fff0, 100)), (1, qb, World::attr(na, 100, 0xff_fff0))]
            {
                (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (DEPTH as u8, DEPTH as u8);
                w.connect(node, qp, attr);
            }
            qa
        })
        .collect()
}

/// Has all READs complete. `turn`: the longest time that a side does not run, in milliseconds. `loss`, `repeat`: of
/// 1000 packets.
fn read_all(seed: u64, turn: u64, loss: u64, repeat: u64, single_copy: bool) {
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut w = World::new(2, seed);
    {
        let mut net = w.net.borrow_mut();
        (net.lose, net.repeat, net.single_copy) = (loss, repeat, single_copy);
        (net.room, net.segment, net.single_copy_above) = ([16, 64][dice.below(2) as usize], 4096, 4096);
    }
    let qps = pairs(&mut w);
    let data: Vec<u8> = (0..1 << 20).map(|i: u32| (i / 5) as u8).collect();
    w.write(1, 0, &data);
    let (mut posted, mut done) = ([0u64; QPS], 0);
    // How long each side will not run.
    let mut asleep = [0u64; 2];
    let give_up = w.now + 600_000 * MS;
    while done < QPS as u64 * EACH {
        assert!(w.now < give_up, "seed {seed}: {done} done");
        for (i, qp) in qps.iter().enumerate() {
            let room = w.nodes[0].engine.qps.get(*qp).unwrap().sq.room();
            if posted[i] < EACH && u64::from(room) >= DEPTH && asleep[0] <= w.now {
                for _ in 0..DEPTH {
                    let n = posted[i];
                    let (body, into) = (w.rdma(1, n * 4096), [w.sge(0, slot(i as u64, n), LEN)]);
                    w.post(0, *qp, Opcode::RdmaRead, body, &into, n).unwrap();
                    posted[i] += 1;
                }
            }
        }
        for (node, asleep) in asleep.iter_mut().enumerate() {
            if *asleep > w.now {
                continue;
            }
            // The side runs: it takes in some of the packets that have come, and lets time pass.
            let most = 1 + dice.below(80) as usize;
            w.deliver(1 - node, node, most);
            let now = w.now;
            let n = &mut w.nodes[node];
            n.engine.expire(now);
            n.engine.run(now);
            n.engine.take_notices(&mut n.notices);
            if dice.below(4) == 0 {
                *asleep = now + dice.below(turn * MS);
            }
        }
        for c in w.poll(0) {
            assert_eq!(c.status, St::Success, "seed {seed}, {done} done: {c:?}");
            done += 1;
        }
        w.now += dice.below(2 * MS);
    }
    for qp in qps {
        assert_eq!(w.nodes[0].engine.qp_state(qp), Ok(QpState::Rts), "seed {seed}");
    }
    // The last READ of each queue pair, byte for byte.
    for i in 0..QPS as u64 {
        let (n, len) = (EACH - 1, LEN as usize);
        let at = (n * 4096) as usize;
        assert!(w.read(0, slot(i, n), len) == data[at..at + len], "seed {seed}, queue pair {i}");
    }
}

/// Nothing is lost; both sides are slow, but not as slow as the retries last (8 times 67 ms).
#[test]
fn slow_sides() {
    for seed in 1..25 {
        read_all(seed, 200, 0, 0, seed % 2 == 0);
    }
}

/// And a network that loses and repeats.
#[test]
fn slow_sides_on_a_bad_network() {
    for seed in 1..20 {
        read_all(seed, 20, 20, 50, seed % 2 == 0);
    }
}

/// A peer that lives but has no time to take its packets: its adapter would have answered. The timeouts are not counted
/// as retries, for so long as that is likely. For a dead peer they are counted, also if only this timer has noticed the
/// death yet.
#[test]
fn a_peer_that_waits_for_its_turn() {
    let cases = [(15_000, false, St::Success), (30_000, false, St::RetryExcErr), (700, true, St::RetryExcErr)];
    for (asleep, dead, status) in cases {
        let mut w = World::new(2, 5);
        let qa = pairs(&mut w)[0];
        if dead {
            w.net.borrow_mut().dead.push(1);
        }
        let (body, into) = (w.rdma(1, 0), [w.sge(0, 0, LEN)]);
        w.post(0, qa, Opcode::RdmaRead, body, &into, 1).unwrap();
        let end = w.now + asleep * MS;
        while w.now < end {
            w.now += 10 * MS;
            let now = w.now;
            w.nodes[0].engine.expire(now);
            w.nodes[0].engine.run(now);
        }
        if !dead {
            w.run_for(MS);
        }
        let got: Vec<_> = w.poll(0).iter().map(|c| c.status).collect();
        assert_eq!(got, [status], "{asleep} ms");
    }
}

/// Each queue pair that has something to send gets a share of a link without much room, whatever the others have.
#[test]
fn a_share_for_each() {
    for (opcode, from, to) in [(Opcode::RdmaRead, 1, 0), (Opcode::RdmaWrite, 0, 1)] {
        let mut w = World::new(2, 5);
        (w.net.borrow_mut().room, w.net.borrow_mut().segment) = (16, 16384);
        let qps = pairs(&mut w);
        for (i, qp) in qps.iter().enumerate() {
            for n in 0..8 {
                let (body, list) = (w.rdma(1, 0), [w.sge(0, (i as u64 * 8 + n) << 16, 1 << 16)]);
                let now = w.now;
                let flags = verbs::SendFlags::SIGNALED;
                let data = verbs::SendData::Sges(&list);
                let wr = verbs::SendWr { wr_id: n, opcode, flags, imm_or_rkey: 0, remote_srqn: 0, body: &body, data };
                w.nodes[0].engine.post_send(*qp, &wr, now).unwrap();
            }
        }
        w.run_all();
        if opcode == Opcode::RdmaRead {
            for _ in 0..2 {
                w.deliver(0, 1, 16);
                let now = w.now;
                w.nodes[0].engine.run(now);
            }
            w.run_all();
        }
        let mut seen: Vec<_> = w.net.borrow().queues[&(from, to)].iter().map(|m| m.packet.src).collect();
        assert_eq!(seen.len(), 16);
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), QPS, "{opcode:?}");
    }
}
