//! A peer that sends any packets, and a program that writes into its send queue: neither can crash an engine, block a
//! connection for ever, or bring the engine's counts into disorder.
//!
//! Each world is made by a seed, which a failure names: `SOFTRNIC_WORLD` repeats it, `SOFTRNIC_WORLDS` says how many.

use verbs::{
    AhId, MwId, Opcode, QpAttrMask as M, QpId, QpState, QpType, Qpn, RKey, SendBody, SendData, SendFlags, SendWr,
};
use wire::*;

use super::mock::*;
use super::random::Random;

const WORLDS: u64 = if cfg!(miri) { 1 } else { 300 };
const STEPS: u64 = 120;

/// The steps of a world.
struct Habits {
    /// Requests stay within the region.
    gentle: bool,
    forges: bool,
    pokes: bool,
    modifies: bool,
}

struct Play {
    w: World,
    r: Random,
    habits: Habits,
    ty: QpType,
    /// The node of the other end: another node, or our own.
    peer: usize,
    ours: QpId,
    theirs: QpId,
    ah: AhId,
    mw: (MwId, RKey),
}

impl Play {
    fn new(seed: u64) -> Play {
        let mut r = Random::new(seed);
        let mut w = World::new(2, seed);
        {
            let mut net = w.net.borrow_mut();
            (net.single_copy, net.deny_single_copy) = (r.coin(), r.below(4) == 0);
            net.single_copy_above = r.pick(&[0, 16384]);
            net.segment = r.pick(&[4096, 16384]);
            net.room = r.pick(&[1, 2, 8, 64]);
            (net.lose, net.repeat) = (r.pick(&[0, 0, 100]), r.pick(&[0, 100]));
        }
        let ty = r.pick(&[QpType::Rc, QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud]);
        let peer = r.below(2) as usize;
        let (ours, theirs) = w.pair(0, peer, ty);
        let pd = w.nodes[0].pd;
        let ah = w.nodes[0].engine.create_ah(pd, &World::attr(Qpn::new(0), 0, 0).ah).unwrap();
        let mw = w.nodes[0].engine.alloc_mw(pd, crate::MwKind::Type2).unwrap();
        let one_in_three = |r: &mut Random| r.below(3) == 0;
        let habits = Habits {
            gentle: r.coin(),
            forges: one_in_three(&mut r),
            pokes: one_in_three(&mut r),
            modifies: one_in_three(&mut r),
        };
        Play { w, r, habits, ty, peer, ours, theirs, ah, mw }
    }

    fn step(&mut self, number: u64) {
        match self.r.below(12) {
            0..=3 => self.post(number),
            4..=5 => self.receive(number),
            6 => _ = self.w.deliver(0, self.peer, self.r.below(5) as usize),
            7 => _ = self.w.deliver(self.peer, 0, self.r.below(5) as usize),
            8 => self.w.run_all(),
            9 => {
                self.w.run_for(self.r.below(100_000_000));
                let _ = (self.w.poll(0), self.w.poll(1));
            }
            10 if self.habits.forges => self.forge(),
            11 if self.habits.modifies => self.modify(),
            _ => {
                for _ in 0..3 {
                    let sges = [self.w.sge(self.peer, 0, 2_000_000)];
                    let _ = self.w.recv(self.peer, self.theirs, &sges, 1000 + number);
                }
            }
        }
    }

    fn post(&mut self, wr_id: u64) {
        const OPS: [Opcode; 12] = [
            Opcode::Send,
            Opcode::SendWithImm,
            Opcode::RdmaWrite,
            Opcode::RdmaWriteWithImm,
            Opcode::RdmaRead,
            Opcode::CmpAndSwp,
            Opcode::FetchAndAdd,
            Opcode::AtomicWrite,
            Opcode::Flush,
            Opcode::SendWithInv,
            Opcode::LocalInv,
            Opcode::BindMw,
        ];
        let r = &mut self.r;
        let opcode = r.pick(if self.habits.gentle { &OPS[..9] } else { &OPS });
        let rkey = RKey(self.w.nodes[self.peer].key);
        let remote_addr = BASE + 8 * r.below(if self.habits.gentle { 1 << 10 } else { 1 << 17 });
        let node = &self.w.nodes[0];
        let body = match opcode {
            Opcode::Send | Opcode::SendWithImm if self.ty == QpType::Ud => {
                let remote_qpn = self.w.nodes[self.peer].engine.qps.get(self.theirs).unwrap().qpn;
                SendBody::Datagram { ah: self.ah, remote_qpn, remote_qkey: 0x11 }
            }
            Opcode::Send | Opcode::SendWithImm | Opcode::SendWithInv | Opcode::LocalInv => SendBody::Plain,
            Opcode::CmpAndSwp | Opcode::FetchAndAdd => SendBody::Atomic { remote_addr, rkey, compare_add: 1, swap: 2 },
            Opcode::Flush => SendBody::Flush { remote_addr, rkey, length: 8, placement: 1, level: r.below(2) as u8 },
            Opcode::BindMw => SendBody::BindMw {
                mw: self.mw.0,
                rkey: RKey(self.mw.1.0 + 1),
                mr: node.engine.find_mr(node.key),
                addr: BASE,
                length: 100,
                access: ALL,
            },
            _ => SendBody::Rdma { remote_addr, rkey },
        };
        let eight = matches!(opcode, Opcode::CmpAndSwp | Opcode::FetchAndAdd | Opcode::AtomicWrite);
        let len = if eight { 8 } else { r.pick(&[0u32, 8, 8, 100, 5000, 100_000, 1_200_000]) };
        let from = if self.habits.gentle { 8 } else { 8 * r.below(1 << 17) };
        let sges = [self.w.sge(0, from, len / 2), self.w.sge(0, 0, len - len / 2)];
        let sges = &sges[if r.below(3) == 0 { 1.. } else { 0.. }];
        let inline = vec![7; r.below(129) as usize];
        let pieces = [&inline[..]];
        let data = if r.below(4) == 0 && len < 129 {
            SendData::Inline(&pieces)
        } else if matches!(opcode, Opcode::LocalInv | Opcode::BindMw | Opcode::Flush) {
            SendData::Sges(&[])
        } else {
            SendData::Sges(sges)
        };
        let flags = SendFlags::from_bits_truncate(r.next() as u32 & 7);
        let wr = SendWr { wr_id, opcode, flags, imm_or_rkey: r.next() as u32, remote_srqn: 0, body: &body, data };
        let (now, engine) = (self.w.now, &mut self.w.nodes[0].engine);
        let _ = engine.post_send(self.ours, &wr, now);
        if self.habits.pokes && r.below(12) == 0 {
            let value = match r.below(3) {
                0 => r.next(),
                1 => r.below(256),
                _ => r.below(1 << 20),
            };
            engine.qps.get_mut(self.ours).unwrap().sq.poke(r.next() as usize >> 1, value);
        }
        if r.below(3) > 0 {
            engine.run(now);
        }
    }

    fn receive(&mut self, wr_id: u64) {
        let (at, len) =
            if self.habits.gentle { (0, 1_500_000) } else { (8 * self.r.below(1 << 17), self.r.below(200_000) as u32) };
        let sges = [self.w.sge(self.peer, at, len), self.w.sge(self.peer, 0, 900_000)];
        let _ = self.w.recv(self.peer, self.theirs, &sges, wr_id);
    }

    /// Forges a packet: a request to the other end, or an answer to a request of ours.
    fn forge(&mut self) {
        let theirs = self.w.nodes[self.peer].engine.qps.get(self.theirs).unwrap();
        let ours = self.w.nodes[0].engine.qps.get(self.ours).unwrap();
        let r = &mut self.r;
        let op = PacketOp::from_raw(r.below(11) as u8).unwrap();
        let (node, mut p) = if r.coin() {
            let oldest = ours.inflight.front().map_or(ours.first_unlisted(), |request| request.first_psn);
            (0, Packet::new(op, ours.qpn, theirs.qpn, oldest.plus(r.below(3) as u32)))
        } else {
            let near = theirs.rc.epsn.plus((r.below(5) as u32).wrapping_sub(3));
            (self.peer, Packet::new(op, theirs.qpn, ours.qpn, near))
        };
        use packet_flags::{ACK_REQ, BY_REF, FIRST, LAST};
        p.flags = if r.coin() { FIRST | LAST | ACK_REQ } else { r.next() as u8 & 0x7f };
        (p.syndrome, p.imm, p.len) = (r.next() as u8, r.any() as u32, r.any() as u32);
        p.rkey = if r.below(3) > 0 { self.w.nodes[node].key } else { r.next() as u32 };
        (p.remote_addr, p.dma_len, p.swap, p.compare) = (r.any(), r.any() as u32, r.any(), r.any());
        let len = r.below(64) * r.pick(&[1, 16]);
        let mut payload: Vec<u8> = (0..len).map(|_| r.next() as u8).collect();
        if r.coin() {
            p.len = payload.len() as u32;
        }
        if payload.len() >= 32 && r.coin() {
            // A ticket of no request, then places in the initiator.
            p.flags |= BY_REF;
            for place in payload[16..].chunks_exact_mut(16) {
                place[..8].copy_from_slice(&(BASE + 8).to_le_bytes());
                place[8..].copy_from_slice(&100u64.to_le_bytes());
            }
            p.len = (payload.len() as u32 - 16) / 16 * 100;
            p.dma_len = p.len;
        }
        let from = if self.peer == 0 { 0 } else { 1 - node };
        self.w.inject(from, node, p, payload);
    }

    fn modify(&mut self) {
        let r = &mut self.r;
        let (node, qp) = if r.coin() { (0, self.ours) } else { (self.peer, self.theirs) };
        let mut attr = World::attr(Qpn::new(0), 0, 0);
        let mild = [QpState::Sqd, QpState::Rts, QpState::Rts];
        attr.state = if r.below(6) == 0 { r.pick(&[QpState::Err, QpState::Reset]) } else { r.pick(&mild) };
        let mask = if r.below(4) == 0 { M::AV } else { M::empty() };
        let _ = self.w.modify(node, qp, &attr, mask);
    }

    /// Checks the conditions of any time.
    fn check(&self, when: &str) {
        for node in &self.w.nodes {
            for (_, q) in node.engine.qps.iter() {
                let reads = q.inflight.iter().filter(|e| e.is_read_like() && !e.done && e.psns > 0).count();
                assert_eq!(reads, q.rc.reads_out as usize, "{when}: READs under way");
                assert!(q.cursor <= q.inflight.len(), "{when}: cursor");
                assert!(
                    q.unlisted == 0 || q.cursor == q.inflight.len(),
                    "{when}: short requests behind what has not gone out"
                );
                assert!(
                    q.inflight.len() + q.unlisted <= q.inflight.capacity(),
                    "{when}: no room for requests that are not listed"
                );
                assert!(q.sq.retired <= q.sq.posted && q.sq.fetched <= q.sq.posted, "{when}: counts of the send queue");
                let taken = q.rq.wqes.len() + usize::from(q.recv.is_some());
                assert!(q.rq.held as usize >= taken, "{when}: places of receives");
                assert!(!q.queued || node.engine.ready.contains(&q.id), "{when}: to be run, and not on the list");
                let waits = || node.engine.parked.values().any(|waiting| waiting.contains(&q.id));
                assert!(!q.parked || waits(), "{when}: waits for a link, and not on the list");
                let deadlines = [q.rc.ack_deadline.filter(|_| q.rc.rnr_until.is_none()), q.rc.rnr_until];
                for deadline in deadlines.into_iter().flatten() {
                    assert!(q.timer_at.is_some_and(|at| at <= deadline), "{when}: no timer for a deadline");
                }
                assert!(q.queued || q.parked || q.rc.responses.is_empty(), "{when}: responses that nobody sends");
            }
        }
    }

    /// Ends a world on a good network, where everything comes to an end: only a receiver that is not ready may be
    /// waited for.
    fn finish(&mut self, when: &str) {
        {
            let mut net = self.w.net.borrow_mut();
            (net.lose, net.repeat, net.room) = (0, 0, 64);
            for writable in &mut net.writable {
                writable.extend((0..3).map(LinkId));
            }
        }
        let mut attr = World::attr(Qpn::new(0), 0, 0);
        attr.state = QpState::Rts;
        let _ = self.w.modify(0, self.ours, &attr, M::empty());
        self.w.run_all();
        self.w.run_for(3_000_000_000);
        let q = self.w.nodes[0].engine.qps.get(self.ours).unwrap();
        if q.rc.rnr_until.is_some() {
            return;
        }
        let busy = q.state == QpState::Rts && (q.has_work() || !q.inflight.is_empty() || q.unlisted > 0);
        assert!(!busy, "{when}: {:?} hangs with {:?}", self.ty, q.inflight);
        assert_eq!(q.rc.reads_out, 0, "{when}: READs without an end");
        for node in &self.w.nodes {
            for (_, region) in node.engine.mem.mrs.iter() {
                assert_eq!(region.single_copy, 0, "{when}: single copies without an end");
            }
        }
    }
}

#[test]
fn anything_may_come() {
    let setting = |name: &str| std::env::var(name).ok()?.parse().ok();
    let worlds = match setting("SOFTRNIC_WORLD") {
        Some(seed) => seed..seed + 1,
        None => 1..setting("SOFTRNIC_WORLDS").unwrap_or(WORLDS) + 1,
    };
    for seed in worlds {
        let mut play = Play::new(seed);
        for number in 0..STEPS {
            play.step(number);
            play.check(&format!("SOFTRNIC_WORLD={seed}, step {number}"));
        }
        play.finish(&format!("SOFTRNIC_WORLD={seed}"));
    }
}
