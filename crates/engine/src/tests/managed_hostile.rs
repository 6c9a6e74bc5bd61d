//! A peer that patches entries at random: it gains nothing, and the engine goes on.
//!
//! Each world is made by a seed, which a failure names: `SOFTRNIC_WORLD` repeats it.

use verbs::{Count, Opcode, SendBody, WcStatus};

use super::managed::*;
use super::random::Random;
use super::twins;
use crate::{QueueRules, Side};

const WORLDS: u64 = if cfg!(miri) { 2 } else { 400 };
const DEPTH: u32 = 8;

/// The bytes of each node that belong to no entry of the managed queue are those of the beginning, whatever is patched
/// within the rules. A WRITE may land anywhere in the peer's region: that is what the peer has granted.
#[test]
fn random_patches_stay_within_the_rules() {
    let one = std::env::var("SOFTRNIC_WORLD").ok().and_then(|seed| seed.parse().ok());
    let worlds = one.map_or(1..WORLDS + 1, |seed: u64| seed..seed + 1);
    for seed in worlds {
        let mut r = Random::new(seed);
        let all = r.coin();
        let rules = QueueRules {
            opcodes: if r.coin() { u64::MAX } else { 0 },
            patchable: if all { [u64::MAX; 2] } else { [r.next(), r.next()] },
            cyclic: r.coin(),
        };
        let recv = QueueRules { opcodes: 0, patchable: [r.next() | 0xff << 48, r.next()], cyclic: r.coin() };
        let mut b = Bench::seeded(seed, DEPTH, Some(rules), r.coin().then_some(recv));
        let (cq, arrivals, qp) = (b.cq, b.arrivals, b.qp);
        for n in 0..u64::from(DEPTH) {
            let sge = b.w.sge(0, 0x5000 + 8 * n, 8);
            let _ = b.w.recv(0, qp, &[sge], n);
            let step = if rules.cyclic { r.below(9) as u32 } else { 0 };
            let _ = match r.below(5) {
                0 => b.wait(if r.coin() { cq } else { arrivals }, Count::Absolute(r.below(4)), step),
                1 => {
                    let side = if r.coin() { Opcode::SendEn } else { Opcode::RecvEn };
                    b.task(side, SendBody::Enable { qp, count: Count::Absolute(r.below(9)), step }, n)
                }
                2 => b.task(Opcode::Nop, SendBody::Plain, n),
                _ => b.write(8 * n, 8 * n, n),
            };
        }
        let _ = b.enable(Side::Recv, Count::Absolute(if r.coin() { 1 << 40 } else { r.below(9) }));
        for _ in 0..40 {
            for _ in 0..r.below(4) {
                let (sends, receives) = (b.sends.clone(), b.receives.clone());
                let array = if r.coin() { sends } else { receives };
                let at = r.next() as usize % array.len();
                let value = match r.below(4) {
                    0 => r.next(),
                    1 => array.get(at) ^ 1 << r.below(64),
                    2 => array.get(r.next() as usize % array.len()),
                    _ => array.get(at) & !0xff | 0x80 | r.below(6),
                };
                array.put(at, value);
            }
            let now = b.w.now;
            let count = Count::Absolute(if r.coin() { r.below(60) } else { 1 << 60 });
            let _ = b.w.nodes[0].engine.enable(qp, Side::Send, count);
            let sge = b.w.sge(1, 0, 8);
            let _ = b.w.post(1, b.peer, Opcode::Send, SendBody::Plain, &[sge], 5);
            for _ in 0..20 {
                b.w.nodes[0].engine.next_hold();
                b.w.nodes[0].engine.run(now);
                b.w.run_all();
                b.w.deliver(0, 1, 8);
                b.w.deliver(1, 0, 8);
            }
            let engine = &mut b.w.nodes[0].engine;
            engine.poll(cq, 1024, |_, wc| {
                // Whatever fails, fails by a rule of this side or the peer's.
                assert_ne!(wc.status, WcStatus::GeneralErr, "SOFTRNIC_WORLD={seed}");
            });
            let q = engine.qps.get(qp).unwrap();
            assert!(q.inflight.len() <= DEPTH as usize + 1, "SOFTRNIC_WORLD={seed}: {}", q.inflight.len());
            assert!(q.cursor <= q.inflight.len(), "SOFTRNIC_WORLD={seed}");
            assert!(!q.queued || engine.ready.contains(&qp), "SOFTRNIC_WORLD={seed}");
        }
        // The queue pair can always be taken back, and its queues with it.
        b.w.nodes[0].engine.destroy_qp(qp).unwrap();
        assert!(b.w.nodes[0].engine.done.due.is_empty() || b.w.nodes[0].engine.has_ready());
        b.w.nodes[0].engine.destroy_cq(cq).unwrap();
        b.w.nodes[0].engine.destroy_cq(arrivals).unwrap();
    }
}

/// Two worlds with the same requests: a managed queue that is enabled at each post does what an ordinary queue does.
#[test]
fn an_enabled_queue_is_like_an_ordinary_one() {
    for seed in 1..if cfg!(miri) { 2 } else { 60 } {
        let run = |managed: bool| {
            let mut r = Random::new(seed);
            let mut b = Bench::seeded(seed, 64, managed.then(QueueRules::default), None);
            let bytes: Vec<u8> = (0..0x1_0000u32).map(|i| (i * 7 + i / 251) as u8).collect();
            b.w.write(0, 0, &bytes);
            {
                let mut net = b.w.net.borrow_mut();
                (net.lose, net.repeat) = (r.pick(&[0, 0, 100]), r.pick(&[0, 100]));
                net.room = r.pick(&[2, 8, 64]);
            }
            let (qp, peer, mut ended) = (b.qp, b.peer, Vec::new());
            for n in 0..120 {
                let sge = b.w.sge(1, 0x8000 + 64 * n, 5000);
                let _ = b.w.recv(1, peer, &[sge], n);
                let len = r.pick(&[0u32, 8, 8, 100, 3000]);
                let (from, to) = (8 * r.below(4096), 8 * r.below(4096));
                let opcode = r.pick(&[Opcode::Send, Opcode::RdmaWrite, Opcode::RdmaRead, Opcode::FetchAndAdd]);
                let len = if opcode == Opcode::FetchAndAdd { 8 } else { len };
                let body = match (opcode, b.w.rdma(1, to)) {
                    (Opcode::Send, _) => SendBody::Plain,
                    (Opcode::FetchAndAdd, SendBody::Rdma { remote_addr, rkey }) => {
                        SendBody::Atomic { remote_addr, rkey, compare_add: n, swap: 0 }
                    }
                    (_, body) => body,
                };
                let sge = b.w.sge(0, from, len);
                let posted = b.w.post(0, qp, opcode, body, &[sge], n);
                if managed {
                    let _ = b.enable(Side::Send, Count::Relative { count: 0, last: true });
                }
                b.w.settle();
                b.w.run_for(r.below(3) * 100_000_000);
                ended.push((n, posted));
                ended.extend(b.ended().into_iter().map(|(id, status)| {
                    assert_eq!(status, WcStatus::Success);
                    (1000 + id, Ok(()))
                }));
            }
            b.w.run_for(30_000_000_000);
            ended.extend(b.ended().into_iter().map(|(id, _)| (1000 + id, Ok(()))));
            let ours = b.w.poll(1).into_iter().map(|wc| (wc.wr_id, wc.byte_len)).collect::<Vec<_>>();
            (ended, ours, b.w.read(0, 0, 0x1_0000), b.w.read(1, 0, 0x1_0000), twins::fast_paths(&b.w)[0])
        };
        let (a, b) = (run(false), run(true));
        assert_eq!(b.4, 0, "a managed queue has no short way");
        assert_eq!((a.0, a.1), (b.0, b.1), "seed {seed}");
        assert!(a.2 == b.2 && a.3 == b.3, "seed {seed}: memory");
    }
}
