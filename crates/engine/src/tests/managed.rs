//! Managed queues: tasks, counts, patched entries, circles.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use verbs::{
    Completion, Count, CqId, Errno, Opcode, QpCap, QpId, QpInit, QpState, QpType, Result, SendBody, SendData,
    SendFlags, SendWr, WcOpcode, WcStatus,
};
use wire::EntryArray;

use super::mock::*;
use crate::{CqOpts, Managed, Notice, QueueRules, Side, array_bytes};

/// Memory for entries that a test can write to, as a peer would.
pub struct Array(Arc<[AtomicU64]>);

impl Array {
    pub fn new(wr: u32, sge: u32) -> Arc<Array> {
        Arc::new(Array((0..array_bytes(wr, sge) / 8).map(|_| AtomicU64::new(0)).collect()))
    }

    pub fn entries(&self) -> EntryArray {
        EntryArray::own(self.0.clone())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn put(&self, at: usize, value: u64) {
        self.0[at].store(value, Ordering::Relaxed);
    }

    pub fn get(&self, at: usize) -> u64 {
        self.0[at].load(Ordering::Relaxed)
    }
}

/// Words of an entry with one scatter/gather entry.
const ENTRY: usize = 8;
/// All bytes may be patched.
const ANY: [u64; 2] = [u64::MAX; 2];

/// A queue pair of node 0 with managed queues, connected to an ordinary one of node 1.
pub struct Bench {
    pub w: World,
    pub qp: QpId,
    pub peer: QpId,
    pub sends: Arc<Array>,
    pub receives: Arc<Array>,
    /// Completions of the managed queue pair's sends, and of its receives. They count.
    pub cq: CqId,
    pub arrivals: CqId,
}

pub fn counting(w: &mut World, node: usize, cqe: u32, first_count: u64) -> CqId {
    let n = &mut w.nodes[node];
    let opts = CqOpts { ignore_overrun: true, cross_channel: true, first_count, ..CqOpts::default() };
    n.engine.create_cq(n.ctx, cqe, 0, opts).unwrap().0
}

impl Bench {
    pub fn new(depth: u32, send: Option<QueueRules>, recv: Option<QueueRules>) -> Bench {
        Self::seeded(1, depth, send, recv)
    }

    pub fn seeded(seed: u64, depth: u32, send: Option<QueueRules>, recv: Option<QueueRules>) -> Bench {
        let mut w = World::new(2, seed);
        for node in 0..2 {
            w.nodes[node].engine.set_diagnostics(true);
        }
        let (cq, arrivals) = (counting(&mut w, 0, 1024, 0), counting(&mut w, 0, 2, 0));
        let (sends, receives) = (Array::new(depth, 1), Array::new(depth, 1));
        let cap =
            QpCap { max_send_wr: depth, max_recv_wr: depth, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let n = &mut w.nodes[0];
        let init = QpInit {
            pd: Some(n.pd),
            qp_type: QpType::Rc,
            send_cq: Some(cq),
            recv_cq: Some(arrivals),
            srq: None,
            xrcd: None,
            cap,
            sq_sig_all: false,
        };
        let managed = Managed {
            send: send.map(|rules| (sends.entries(), rules)),
            recv: recv.map(|rules| (receives.entries(), rules)),
        };
        let (qp, created) = n.engine.create_managed_qp(n.ctx, &init, 1, &managed).unwrap();
        let (peer, number) = w.qp(1, QpType::Rc);
        w.connect(0, qp, World::attr(number, 0, 0));
        w.connect(1, peer, World::attr(created.qpn, 0, 0));
        Bench { w, qp, peer, sends, receives, cq, arrivals }
    }

    pub fn task(&mut self, opcode: Opcode, body: SendBody, wr_id: u64) -> Result<()> {
        let data = SendData::Sges(&[]);
        let flags = SendFlags::SIGNALED;
        let wr = SendWr { wr_id, opcode, flags, imm_or_rkey: 0, remote_srqn: 0, body: &body, data };
        self.w.post_wr(0, self.qp, &wr)
    }

    pub fn wait(&mut self, cq: CqId, count: Count, step: u32) -> Result<()> {
        self.task(Opcode::Wait, SendBody::Wait { cq, count, step }, 900)
    }

    /// Posts a WRITE of 8 bytes from `from` of node 0 to `to` of node 1.
    pub fn write(&mut self, from: u64, to: u64, wr_id: u64) -> Result<()> {
        let (body, sge) = (self.w.rdma(1, to), self.w.sge(0, from, 8));
        self.w.post(0, self.qp, Opcode::RdmaWrite, body, &[sge], wr_id)
    }

    pub fn enable(&mut self, side: Side, count: Count) -> Result<()> {
        self.w.nodes[0].engine.enable(self.qp, side, count)?;
        self.w.settle();
        Ok(())
    }

    /// What completed on node 0: wr_id and status.
    pub fn ended(&mut self) -> Vec<(u64, WcStatus)> {
        self.w.settle();
        let mut out = Vec::new();
        let engine = &mut self.w.nodes[0].engine;
        engine.poll(self.cq, 1024, |_, wc: &Completion| out.push((wc.wr_id, wc.status)));
        out
    }

    pub fn good(&mut self) -> Vec<u64> {
        self.ended()
            .into_iter()
            .map(|(id, status)| {
                assert_eq!(status, WcStatus::Success, "{id}");
                id
            })
            .collect()
    }

    /// Has the peer send a message of 8 bytes.
    pub fn arrive(&mut self, bytes: &[u8; 8]) {
        self.w.write(1, 0x9000, bytes);
        let sge = self.w.sge(1, 0x9000, 8);
        self.w.post(1, self.peer, Opcode::Send, SendBody::Plain, &[sge], 5).unwrap();
        self.w.settle();
    }
}

fn patchable() -> QueueRules {
    QueueRules { patchable: ANY, ..QueueRules::default() }
}

const REST: Count = Count::Relative { count: 0, last: true };

fn some(count: u32, last: bool) -> Count {
    Count::Relative { count, last }
}

/// Requirement 6, 2: posting does not start execution. So many enabled entries run, and 0 enables the rest.
#[test]
fn entries_run_when_they_are_enabled() {
    let mut b = Bench::new(16, Some(QueueRules::default()), None);
    for n in 0..10 {
        b.write(8 * n, 0x100 + 8 * n, n).unwrap();
    }
    assert!(b.good().is_empty());
    let idle = |b: &Bench| !b.w.nodes[0].engine.has_ready() && !b.w.nodes[0].engine.qps.get(b.qp).unwrap().has_work();
    assert!(idle(&b));
    b.enable(Side::Send, some(3, true)).unwrap();
    assert_eq!(b.good(), [0, 1, 2]);
    assert!(idle(&b), "what waits for an ENABLE is no work");
    assert_eq!(b.enable(Side::Send, some(8, true)), Err(Errno::EINVAL));
    assert_eq!(b.enable(Side::Send, Count::Absolute(11)), Err(Errno::EINVAL));
    b.enable(Side::Send, REST).unwrap();
    assert_eq!(b.good(), [3, 4, 5, 6, 7, 8, 9]);
    let state = b.w.nodes[0].engine.queue_state(b.qp, Side::Send).unwrap();
    assert_eq!((state.posted, state.enabled, state.begun, state.count, state.stride), (10, 10, 10, 16, 64));
    // Places are free although the completions were polled late or never.
    for n in 0..16 {
        b.write(0, 0, n).unwrap();
    }
    assert_eq!(b.write(0, 0, 0), Err(Errno::ENOMEM));
}

/// Requirements 1 to 3: an entry is plain words; what is in them when it is enabled is executed.
#[test]
fn a_patched_entry_is_executed_as_patched() {
    let mut b = Bench::new(4, Some(patchable()), None);
    b.w.write(0, 0x40, b"patched!");
    b.write(0, 0x100, 1).unwrap();
    b.sends.put(2, BASE + 0x200);
    b.sends.put(6, BASE + 0x40);
    b.enable(Side::Send, REST).unwrap();
    assert_eq!(b.good(), [1]);
    assert_eq!((b.w.read(1, 0x100, 8), b.w.read(1, 0x200, 8)), (vec![0; 8], b"patched!".to_vec()));
}

/// Requirement 9: an entry that was patched where it must not be, or to an operation that is not allowed, fails.
#[test]
fn rules_hold_for_patched_entries() {
    let addr = QueueRules { patchable: [0xff << 16, 0], ..QueueRules::default() };
    let opcode = QueueRules { patchable: [0xff, 0], ..QueueRules::default() };
    let read = QueueRules { opcodes: Opcode::RdmaRead.bit(), ..opcode };
    // rules, word, its new value, whether it is executed
    let cases: [(QueueRules, usize, u64, bool); 8] = [
        (addr, 2, BASE + 8, true),
        (addr, 3, 7, false),
        (addr, 1, 99, false),
        (QueueRules::default(), 2, BASE + 8, false),
        (opcode, 0, Opcode::Nop as u64 | 2 << 8 | 1 << 16, true),
        (opcode, 0, Opcode::RdmaRead as u64 | 2 << 8 | 1 << 16, false),
        (read, 0, Opcode::RdmaRead as u64 | 2 << 8 | 1 << 16, true),
        (patchable(), 0, 77 | 2 << 8 | 1 << 16, false),
    ];
    for (i, (rules, at, value, good)) in cases.into_iter().enumerate() {
        let mut b = Bench::new(4, Some(rules), None);
        b.write(0, 0, 1).unwrap();
        b.write(0, 0, 2).unwrap();
        assert_eq!(b.sends.get(0) >> 32, 0x1234_5678);
        b.sends.put(at, if at == 0 { value | 0x1234_5678 << 32 } else { value });
        b.enable(Side::Send, REST).unwrap();
        let ended = b.ended();
        if good {
            assert_eq!(ended.iter().map(|e| e.1).collect::<Vec<_>>(), [WcStatus::Success; 2], "case {i}");
        } else {
            let statuses: Vec<_> = ended.iter().map(|e| e.1).collect();
            assert_eq!(statuses, [WcStatus::LocQpOpErr, WcStatus::WrFlushErr], "case {i}");
            assert_eq!(b.w.nodes[0].engine.qp_state(b.qp), Ok(QpState::Err));
            let told = |n: &Notice| matches!(n, Notice::Broken { rule, .. } if rule.contains("patched"));
            assert!(b.w.nodes[0].notices.iter().any(told), "case {i}");
        }
    }
    // Keys and bounds are checked as ever.
    let mut b = Bench::new(4, Some(patchable()), None);
    b.write(0, 0, 1).unwrap();
    b.sends.put(6, 0x1000);
    b.enable(Side::Send, REST).unwrap();
    assert_eq!(b.ended(), [(1, WcStatus::LocProtErr)]);
}

/// Requirement 4: a WAIT holds back what is behind it until its queue has so many completions; they need no poll.
#[test]
fn a_wait_holds_back_what_is_behind_it() {
    let mut b = Bench::new(16, None, None);
    let arrivals = b.arrivals;
    for _ in 0..6 {
        let sge = b.w.sge(0, 0x5000, 8);
        b.w.recv(0, b.qp, &[sge], 0).unwrap();
    }
    b.write(0, 0, 1).unwrap();
    b.wait(arrivals, some(2, true), 0).unwrap();
    b.write(0, 0, 2).unwrap();
    b.wait(arrivals, Count::Absolute(5), 0).unwrap();
    b.write(0, 0, 3).unwrap();
    assert_eq!(b.good(), [1]);
    assert_eq!(b.w.nodes[0].engine.destroy_cq(arrivals), Err(Errno::EBUSY));
    let now = b.w.now;
    let facts = b.w.nodes[0].engine.facts(now);
    let waits: Vec<_> = facts.qps.iter().filter_map(|qp| qp.waits.completions.clone()).collect();
    assert_eq!(waits, [report::facts::CountWait { cq: arrivals.index, count: 2, had: 0 }]);
    b.arrive(b"one     ");
    assert!(b.good().is_empty());
    b.arrive(b"two     ");
    assert_eq!(b.good(), [900, 2]);
    for _ in 2..5 {
        assert!(b.good().is_empty());
        b.arrive(b"more    ");
    }
    // The queue holds two completions, and was never polled.
    assert_eq!(b.good(), [900, 3]);
    assert_eq!(b.w.nodes[0].engine.cq_count(arrivals), Ok(5));
    // One that is met already holds nothing back.
    b.wait(arrivals, Count::Absolute(1), 0).unwrap();
    b.write(0, 0, 4).unwrap();
    assert_eq!(b.good(), [900, 4]);
}

/// Several WAITs without `last` wait for one completion; the counts pass 2^32.
#[test]
fn relative_counts_begin_behind_the_last() {
    let mut b = Bench::new(16, None, None);
    let first = u64::from(u32::MAX) - 1;
    let cq = counting(&mut b.w, 1, 4, first);
    assert_eq!(b.w.nodes[1].engine.cq_count(cq), Ok(first));
    let absolute = |b: &Bench, at: u64| {
        let wqe = b.w.nodes[0].engine.qps.get(b.qp).unwrap().sq.entry(at).unwrap();
        match wqe.body {
            SendBody::Wait { count: Count::Absolute(count), .. } => count,
            other => panic!("{other:?}"),
        }
    };
    let own = counting(&mut b.w, 0, 4, first);
    for (count, last) in [(1, false), (3, false), (2, true), (1, true)] {
        b.wait(own, some(count, last), 0).unwrap();
    }
    let counts: Vec<u64> = (0..4).map(|at| absolute(&b, at) - first).collect();
    assert_eq!(counts, [1, 3, 2, 4]);
}

/// A queue of two queue pairs counts the completions of both.
#[test]
fn two_queue_pairs_share_a_count() {
    let mut b = Bench::new(16, None, None);
    let arrivals = b.arrivals;
    let (n, cap) = (&b.w.nodes[0], cap());
    let init = QpInit {
        pd: Some(n.pd),
        qp_type: QpType::Rc,
        send_cq: Some(n.cq),
        recv_cq: Some(arrivals),
        srq: None,
        xrcd: None,
        cap,
        sq_sig_all: false,
    };
    let (other, number) = b.w.qp_of(0, &init);
    let (peer, theirs) = b.w.qp(1, QpType::Rc);
    b.w.connect(0, other, World::attr(theirs, 0, 0));
    b.w.connect(1, peer, World::attr(number, 0, 0));
    let sge = b.w.sge(0, 0x5000, 8);
    for qp in [b.qp, other, b.qp, other] {
        b.w.recv(0, qp, &[sge], 0).unwrap();
    }
    b.wait(arrivals, some(3, true), 0).unwrap();
    b.write(0, 0, 1).unwrap();
    b.arrive(b"a       ");
    for _ in 0..2 {
        assert!(b.good().is_empty());
        let sge = b.w.sge(1, 0, 8);
        b.w.post(1, peer, Opcode::Send, SendBody::Plain, &[sge], 5).unwrap();
        b.w.settle();
    }
    assert_eq!(b.good(), [900, 1]);
}

/// Requirement 5: ENABLE of another queue, by an entry; RECV_EN: a message waits for its receive to be enabled.
#[test]
fn an_entry_enables_other_queues() {
    let mut b = Bench::new(16, Some(QueueRules::default()), Some(QueueRules::default()));
    for n in 0..10 {
        let sge = b.w.sge(0, 0x5000 + 8 * n, 8);
        b.w.recv(0, b.qp, &[sge], n).unwrap();
    }
    // A second queue pair has the ENABLEs.
    let n = &b.w.nodes[0];
    let init = QpInit {
        pd: Some(n.pd),
        qp_type: QpType::Rc,
        send_cq: Some(b.cq),
        recv_cq: Some(b.cq),
        srq: None,
        xrcd: None,
        cap: cap(),
        sq_sig_all: false,
    };
    let ctx = n.ctx;
    let (control, created) = b.w.nodes[0].engine.create_managed_qp(ctx, &init, 1, &Managed::default()).unwrap();
    b.w.connect(0, control, World::attr(created.qpn, 0, 0));
    let managed = b.qp;
    let enable = |b: &mut Bench, opcode, count| {
        let body = SendBody::Enable { qp: managed, count, step: 0 };
        let qp = std::mem::replace(&mut b.qp, control);
        let result = b.task(opcode, body, 77);
        b.qp = qp;
        b.w.run_for(20_000_000);
        result
    };
    for _ in 0..5 {
        b.arrive(b"arrived ");
    }
    let sent = |b: &mut Bench| b.w.poll(1).len();
    assert_eq!(sent(&mut b), 0, "nothing is taken before RECV_EN");
    enable(&mut b, Opcode::RecvEn, some(3, true)).unwrap();
    assert_eq!((b.good(), sent(&mut b)), (vec![77], 3));
    enable(&mut b, Opcode::RecvEn, REST).unwrap();
    assert_eq!((b.good(), sent(&mut b)), (vec![77], 2));
    assert_eq!(enable(&mut b, Opcode::RecvEn, some(1, true)), Err(Errno::EINVAL));
    b.write(0, 0, 1).unwrap();
    enable(&mut b, Opcode::SendEn, some(1, true)).unwrap();
    assert_eq!(b.good(), [77, 1]);
    // A RECV_EN for its own queue pair does nothing.
    let sge = b.w.sge(0, 0x5000, 8);
    b.w.recv(0, managed, &[sge], 20).unwrap();
    for _ in 0..6 {
        b.arrive(b"arrived ");
    }
    b.w.run_for(20_000_000);
    let before = sent(&mut b);
    b.task(Opcode::RecvEn, SendBody::Enable { qp: managed, count: REST, step: 0 }, 78).unwrap();
    b.enable(Side::Send, REST).unwrap();
    b.w.run_for(20_000_000);
    assert_eq!((b.good(), before, sent(&mut b)), (vec![78], 5, 0));
}

/// Tasks for queue pairs that were not made for them.
#[test]
fn tasks_need_their_queues() {
    let mut b = Bench::new(8, None, None);
    let cq = b.w.nodes[0].cq;
    let (ordinary, _) = b.w.pair(0, 1, QpType::Rc);
    let arrivals = b.arrivals;
    assert_eq!(b.wait(cq, some(1, true), 0), Err(Errno::EINVAL), "a queue that does not count");
    assert_eq!(b.wait(arrivals, some(1, true), 1), Err(Errno::EINVAL), "a step without a circle");
    assert_eq!(b.wait(arrivals, Count::Absolute(u64::MAX), 0), Err(Errno::EINVAL));
    for (qp, opcode) in [(b.qp, Opcode::SendEn), (b.qp, Opcode::RecvEn), (ordinary, Opcode::SendEn)] {
        assert_eq!(b.task(opcode, SendBody::Enable { qp, count: REST, step: 0 }, 1), Err(Errno::EINVAL));
    }
    let own = std::mem::replace(&mut b.qp, ordinary);
    assert_eq!(b.wait(arrivals, some(1, true), 0), Err(Errno::EINVAL));
    assert_eq!(b.task(Opcode::Nop, SendBody::Plain, 0), Err(Errno::EINVAL));
    b.qp = own;
    b.task(Opcode::Nop, SendBody::Plain, 3).unwrap();
    assert_eq!(b.good(), [3]);
    assert_eq!(b.enable(Side::Recv, REST), Err(Errno::EINVAL));
}

/// Requirement 7: the array wraps without a post. The counts of the tasks move on by their steps.
#[test]
fn a_circle_runs_without_posts() {
    let rules = QueueRules { cyclic: true, ..patchable() };
    let mut b = Bench::new(4, Some(rules), Some(rules));
    let arrivals = b.arrivals;
    for n in 0..2 {
        let sge = b.w.sge(0, 0x5000 + 8 * n, 8);
        b.w.recv(0, b.qp, &[sge], n).unwrap();
    }
    assert_eq!(b.enable(Side::Recv, Count::Absolute(1 << 40)), Err(Errno::EINVAL), "half of a circle");
    for n in 2..4 {
        let sge = b.w.sge(0, 0x5000 + 8 * n, 8);
        b.w.recv(0, b.qp, &[sge], n).unwrap();
    }
    let sge = b.w.sge(0, 0x5000, 8);
    assert_eq!(b.w.recv(0, b.qp, &[sge], 9), Err(Errno::ENOMEM));
    for n in 0..2 {
        b.wait(arrivals, Count::Absolute(n + 1), 2).unwrap();
        b.write(0x5000 + 8 * n, 0x300 + 8 * n, n).unwrap();
    }
    assert_eq!(b.write(0, 0, 9), Err(Errno::ENOMEM));
    b.enable(Side::Recv, Count::Absolute(1 << 40)).unwrap();
    b.enable(Side::Send, Count::Absolute(1 << 40)).unwrap();
    for round in 0..23u64 {
        assert!(b.good().is_empty());
        // Receives have the even places of a circle of 4, writes those of a circle of 2: both are patched.
        let to = BASE + 0x300 + 8 * round;
        b.sends.put((round as usize % 2 * 2 + 1) * ENTRY + 2, to);
        b.sends.put((round as usize % 2 * 2 + 1) * ENTRY + 6, BASE + 0x6000 + 8 * round);
        b.receives.put(round as usize % 4 * ENTRY + 6, BASE + 0x6000 + 8 * round);
        b.arrive(&round.to_ne_bytes());
        assert_eq!(b.good(), [900, round % 2]);
        assert_eq!(b.w.read(1, 0x300 + 8 * round, 8), round.to_ne_bytes());
    }
    let state = b.w.nodes[0].engine.queue_state(b.qp, Side::Send).unwrap();
    assert_eq!((state.posted, state.begun), (4, 46));
}

/// A patched receive is checked like any other.
#[test]
fn rules_hold_for_patched_receives() {
    let addr = QueueRules { patchable: [0xff << 48, 0], ..QueueRules::default() };
    for (at, value, good) in [(6, BASE + 0x5008, true), (7, 1 << 20, false), (6, 3, false)] {
        let mut b = Bench::new(4, None, Some(addr));
        let sge = b.w.sge(0, 0x5000, 8);
        b.w.recv(0, b.qp, &[sge], 1).unwrap();
        b.enable(Side::Recv, REST).unwrap();
        b.receives.put(at, value);
        b.arrive(b"received");
        let mut found = Vec::new();
        let arrivals = b.arrivals;
        b.w.nodes[0].engine.poll(arrivals, 9, |_, wc| found.push(wc.status));
        assert_eq!(found, [if good { WcStatus::Success } else { WcStatus::LocProtErr }], "word {at}");
        assert_eq!(b.w.read(0, 0x5008, 8), if good { b"received".to_vec() } else { vec![0; 8] });
    }
}

/// Requirement 9: queues that enable themselves for ever leave their turns to others.
#[test]
fn a_loop_of_tasks_has_a_budget() {
    let rules = QueueRules { cyclic: true, ..QueueRules::default() };
    let mut b = Bench::new(4, Some(rules), None);
    let qp = b.qp;
    for n in 0..4 {
        let (opcode, body) = match n {
            0 => (Opcode::SendEn, SendBody::Enable { qp, count: Count::Absolute(1 << 50), step: 4 }),
            _ => (Opcode::Nop, SendBody::Plain),
        };
        let data = SendData::Sges(&[]);
        let flags = SendFlags::empty();
        let wr = SendWr { wr_id: n, opcode, flags, imm_or_rkey: 0, remote_srqn: 0, body: &body, data };
        // The queue is not full before the last one: then its ENABLE could not name a count beyond it.
        let result = b.w.post_wr(0, qp, &wr);
        if n == 0 {
            assert_eq!(result, Err(Errno::EINVAL));
            let body = SendBody::Plain;
            b.w.post_wr(0, qp, &SendWr { opcode: Opcode::Nop, body: &body, ..wr }).unwrap();
        }
    }
    let (a, _) = b.w.pair(0, 1, QpType::Rc);
    b.w.nodes[0].engine.enable(qp, Side::Send, Count::Absolute(1 << 50)).unwrap();
    let begun = |b: &Bench| b.w.nodes[0].engine.queue_state(qp, Side::Send).unwrap().begun;
    for round in 1..50u64 {
        let before = begun(&b);
        b.w.settle(); // it ends
        let ran = begun(&b) - before;
        assert_eq!(ran, 64, "so many in a row, and then a rest");
        assert!(!b.w.nodes[0].engine.has_ready());
        // Another queue pair has the processor meanwhile.
        let (body, sge) = (b.w.rdma(1, 8 * round), b.w.sge(0, 0, 8));
        b.w.post(0, a, Opcode::RdmaWrite, body, &[sge], round).unwrap();
        b.w.settle();
        let ended: Vec<u64> = b.w.poll(0).iter().map(|wc| wc.wr_id).collect();
        assert_eq!((ended, begun(&b)), (vec![round], before + 64));
        b.w.now = b.w.nodes[0].engine.next_deadline().unwrap();
        let now = b.w.now;
        b.w.nodes[0].engine.expire(now);
    }
    b.w.nodes[0].engine.destroy_qp(qp).unwrap();
    b.w.settle();
}

/// A task's completion has the opcode of tasks, and a signaled NOP completes: counts are equal in both branches of a
/// condition.
#[test]
fn a_nop_completes() {
    let mut b = Bench::new(4, Some(patchable()), None);
    b.write(0, 0, 1).unwrap();
    b.sends.put(0, b.sends.get(0) & !0xff | Opcode::Nop as u64);
    b.enable(Side::Send, REST).unwrap();
    let (mut found, cq) = (Vec::new(), b.cq);
    b.w.settle();
    b.w.nodes[0].engine.poll(cq, 9, |_, wc| found.push((wc.wr_id, wc.opcode)));
    assert_eq!(found, [(1, WcOpcode::Task)]);
    assert_eq!(b.w.read(1, 0, 8), vec![0; 8]);
}

/// A queue pair that is reset or destroyed while it waits leaves nothing behind.
#[test]
fn a_wait_ends_with_its_queue_pair() {
    let mut b = Bench::new(4, None, None);
    let arrivals = counting(&mut b.w, 0, 4, 0);
    b.wait(arrivals, some(1, true), 0).unwrap();
    assert_eq!(b.w.nodes[0].engine.destroy_cq(arrivals), Err(Errno::EBUSY));
    let attr = verbs::QpAttr { state: QpState::Err, ..World::attr(verbs::Qpn::new(0), 0, 0) };
    b.w.modify(0, b.qp, &attr, verbs::QpAttrMask::empty()).unwrap();
    assert_eq!(b.ended(), [(900, WcStatus::WrFlushErr)]);
    b.w.nodes[0].engine.destroy_cq(arrivals).unwrap();
    let mut b = Bench::new(4, None, None);
    let arrivals = counting(&mut b.w, 0, 4, 0);
    b.wait(arrivals, some(1, true), 0).unwrap();
    b.w.nodes[0].engine.destroy_qp(b.qp).unwrap();
    b.w.nodes[0].engine.destroy_cq(arrivals).unwrap();
}

/// Objects that went after a task was posted: the task fails.
#[test]
fn tasks_for_what_is_gone_fail() {
    let mut b = Bench::new(8, Some(QueueRules::default()), None);
    let gone = counting(&mut b.w, 0, 4, 0);
    b.wait(gone, some(0, true), 0).unwrap();
    b.w.nodes[0].engine.destroy_cq(gone).unwrap();
    b.enable(Side::Send, REST).unwrap();
    assert_eq!(b.ended(), [(900, WcStatus::LocQpOpErr)]);

    let mut b = Bench::new(8, None, None);
    let other = Bench::new(8, Some(QueueRules::default()), None);
    let n = &b.w.nodes[0];
    let init = other.w.nodes[0].engine.query_qp(other.qp).unwrap().1;
    let init = QpInit { pd: Some(n.pd), send_cq: Some(b.cq), recv_cq: Some(b.cq), ..init };
    let managed = Managed { send: Some((Array::new(8, 1).entries(), QueueRules::default())), recv: None };
    let ctx = n.ctx;
    let (target, created) = b.w.nodes[0].engine.create_managed_qp(ctx, &init, 1, &managed).unwrap();
    b.w.connect(0, target, World::attr(created.qpn, 0, 0));
    let arrivals = b.arrivals;
    b.wait(arrivals, some(1, true), 0).unwrap();
    b.task(Opcode::SendEn, SendBody::Enable { qp: target, count: REST, step: 0 }, 7).unwrap();
    let sge = b.w.sge(0, 0x5000, 8);
    b.w.recv(0, b.qp, &[sge], 0).unwrap();
    b.w.nodes[0].engine.destroy_qp(target).unwrap();
    b.arrive(b"go      ");
    assert_eq!(b.ended(), [(900, WcStatus::Success), (7, WcStatus::LocQpOpErr)]);
}
