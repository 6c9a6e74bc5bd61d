//! The fast path of small SENDs leads where the slow path does.
//!
//! A failure names its seed: `SOFTRNIC_WORLD` repeats it, `SOFTRNIC_WORLDS` says how many there are.

mod disturbances;

use verbs::{
    CqId, LKey, MrId, Opcode, QpAttr, QpAttrMask as M, QpCap, QpId, QpInit, QpState, QpType, Qpn, RKey, RecvWr,
    SendBody, SendData, SendFlags, SendWr, Sge, SrqId, SrqInit,
};
use wire::*;

use super::mock::*;
use super::random::Random;
use super::twins::Twins;
use crate::CqOpts;

const WORLDS: u64 = if cfg!(miri) { 1 } else { 300 };
const STEPS: u64 = 150;
/// Lengths around the limits of the fast path, and around the MTUs.
const LENGTHS: [u32; 18] = [0, 1, 8, 8, 8, 64, 64, 255, 256, 257, 600, 1000, 1024, 1025, 4096, 4097, 5000, 5000];

pub(super) fn seeds(worlds: u64) -> std::ops::Range<u64> {
    let setting = |name: &str| std::env::var(name).ok()?.parse().ok();
    match setting("SOFTRNIC_WORLD") {
        Some(seed) => seed..seed + 1,
        None => 1..setting("SOFTRNIC_WORLDS").unwrap_or(worlds) + 1,
    }
}

/// A work request that outlives its lists.
#[derive(Clone, Debug)]
struct Request {
    opcode: Opcode,
    flags: SendFlags,
    imm: u32,
    body: SendBody,
    sges: Vec<Sge>,
    inline: Option<Vec<Vec<u8>>>,
}

impl Request {
    fn wr<'a>(&'a self, wr_id: u64, pieces: &'a [&'a [u8]]) -> SendWr<'a> {
        let data = if self.inline.is_some() { SendData::Inline(pieces) } else { SendData::Sges(&self.sges) };
        let (opcode, flags, body) = (self.opcode, self.flags, &self.body);
        SendWr { wr_id, opcode, flags, imm_or_rkey: self.imm, remote_srqn: 0, body, data }
    }

    fn post(&self, w: &mut World, node: usize, qp: QpId, wr_id: u64) -> verbs::Result<()> {
        let pieces: Vec<&[u8]> = self.inline.iter().flatten().map(Vec::as_slice).collect();
        let (now, engine) = (w.now, &mut w.nodes[node].engine);
        engine.post_send(qp, &self.wr(wr_id, &pieces), now)
    }

    /// Post requests as a list; those of which nothing was posted with others have their results.
    fn post_list(list: &[Request], w: &mut World, node: usize, qp: QpId, wr_id: u64) -> Vec<verbs::Result<()>> {
        let (mut results, mut at) = (Vec::new(), 0);
        while at < list.len() {
            // What is inline is not asked for together, as the caller of the engine has it.
            let wrs: Vec<_> =
                list[at..].iter().zip(wr_id + at as u64..).map(|(request, id)| request.wr(id, &[])).collect();
            let several = list[at..].iter().take_while(|request| request.inline.is_none()).count();
            let (now, engine) = (w.now, &mut w.nodes[node].engine);
            let posted = engine.post_together(qp, &wrs[..several], now);
            results.extend((0..posted).map(|_| Ok(())));
            at += posted;
            if posted == 0 {
                results.push(list[at].post(w, node, qp, wr_id + at as u64));
                at += 1;
            }
        }
        results
    }
}

/// One end of a connection.
#[derive(Clone, Copy)]
struct End {
    node: usize,
    qp: QpId,
    qpn: Qpn,
    srq: Option<SrqId>,
}

/// State of a node beside that of every node. The handles and keys are the same in both worlds.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Extras {
    cqs: [CqId; 3],
    srq: SrqId,
    /// Regions: an ordinary one, a read-only one, one without memory behind it, one that discards.
    mrs: [(MrId, u32, u64); 3],
    null: LKey,
}

struct Program {
    t: Twins,
    r: Random,
    extras: Vec<Extras>,
    pairs: Vec<[End; 2]>,
    attrs: QpAttr,
    /// No step can bring a queue pair into error.
    gentle: bool,
    /// Requests may be executed here, and mostly WRITEs and READs are posted.
    one_sided: bool,
}

impl Program {
    fn new(seed: u64) -> Program {
        let mut r = Random::new(seed);
        let mut t = Twins::new(seed);
        let (lose, repeat) = (r.pick(&[0, 0, 0, 100]), r.pick(&[0, 0, 100]));
        let (room, segment, twin) = (r.pick(&[1, 2, 4, 64, 64]), r.pick(&[4096, 4096, 16384]), r.below(8) == 0);
        let (one_sided, ignore_overrun, depth) = (r.below(4) == 0, r.coin(), r.pick(&[2, 4, 8]));
        // Some of the node's requests are longer.
        let piece = r.pick(&[4096, PIECE]);
        let extras = (0..2)
            .map(|node| {
                t.both(|w| {
                    {
                        let mut net = w.net.borrow_mut();
                        (net.lose, net.repeat, net.room, net.segment) = (lose, repeat, room, segment);
                        (net.twin, net.one_sided) = (twin, one_sided);
                    }
                    let n = &mut w.nodes[node];
                    n.engine.piece = piece;
                    let opts = CqOpts { ignore_overrun, ..CqOpts::default() };
                    let small = n.engine.create_cq(n.ctx, depth, 8, opts).unwrap().0;
                    let other = n.engine.create_cq(n.ctx, 1000, 9, CqOpts::default()).unwrap().0;
                    let init = SrqInit { pd: n.pd, max_wr: 32, max_sge: 2, limit: 0, xrc: None };
                    let srq = n.engine.create_srq(n.ctx, &init, 3).unwrap().0;
                    let read_only = verbs::Access::REMOTE_READ;
                    let regions = [(0x1_0000, ALL), (0x2_0000, read_only), (ARENA as u64, ALL)];
                    let mrs = regions.map(|(at, access)| {
                        let (mr, key, _) = n.engine.reg_mr(n.pd, BASE + at, 0x1_0000, BASE + at, access).unwrap();
                        (mr, key.0, BASE + at)
                    });
                    let null = n.engine.reg_null_mr(n.pd).unwrap().1;
                    Extras { cqs: [n.cq, small, other], srq, mrs, null }
                })
            })
            .collect();
        let attrs = QpAttr {
            path_mtu: r.pick(&[1, 3, 5]),
            timeout: r.pick(&[0, 8, 14, 14]),
            retry_cnt: r.pick(&[0, 1, 7, 7]),
            rnr_retry: r.pick(&[0, 1, 7, 7]),
            min_rnr_timer: r.pick(&[1, 12]),
            max_rd_atomic: r.pick(&[1, 4]),
            max_dest_rd_atomic: 4,
            ..World::attr(Qpn::new(0), 0, 0)
        };
        let gentle = r.coin();
        let mut program = Program { t, r, extras, pairs: Vec::new(), attrs, gentle, one_sided };
        for _ in 0..=program.r.below(2) {
            program.make_pair();
        }
        program
    }

    fn make_pair(&mut self) {
        let r = &mut self.r;
        let ty = if r.below(8) == 0 { QpType::Uc } else { QpType::Rc };
        let nodes = if r.below(8) == 0 { [0, 0] } else { [0, 1] };
        let ends = nodes.map(|node| {
            let extras = self.extras[node];
            let recv_cq = if self.gentle { extras.cqs[0] } else { r.pick(&extras.cqs) };
            // Small queues overrun, also in the middle of the requests that one acknowledgement ends.
            let small = !self.gentle && r.below(4) == 0;
            let srq = (r.below(6) == 0).then_some(extras.srq);
            let sq_sig_all = r.coin();
            let (qp, qpn) = self.t.both(|w| {
                let n = &w.nodes[node];
                let (pd, send_cq) = (Some(n.pd), Some(if small { recv_cq } else { n.cq }));
                let init = QpInit {
                    pd,
                    qp_type: ty,
                    send_cq,
                    recv_cq: Some(recv_cq),
                    srq,
                    xrcd: None,
                    cap: QpCap { max_inline_data: 1024, ..cap() },
                    sq_sig_all,
                };
                w.qp_of(node, &init)
            });
            End { node, qp, qpn, srq }
        });
        self.pairs.push(ends);
        self.connect(self.pairs.len() - 1);
    }

    /// Connects a pair, anew if need be: earlier packets are still under way then. One end may stay in RTR for a while.
    fn connect(&mut self, pair: usize) {
        let ends = self.pairs[pair];
        let psns = [(); 2].map(|()| if self.r.coin() { 0xff_fff0 } else { self.r.next() as u32 & 0xff_ffff });
        let (attrs, late, msn) = (self.attrs, self.r.below(4) == 0, self.r.pick(&[0, 0xff_fffd]));
        // Mostly the MTU is the same at both ends.
        let mtus = [attrs.path_mtu, if self.r.below(8) == 0 { self.r.pick(&[1, 3, 5]) } else { attrs.path_mtu }];
        self.t.both(|w| {
            let reset = QpAttr { state: QpState::Reset, ..attrs };
            for (a, b) in [(0, 1), (1, 0)] {
                let (node, qp) = (ends[a].node, ends[a].qp);
                w.modify(node, qp, &reset, M::empty()).unwrap();
                let (dest_qp_num, path_mtu) = (ends[b].qpn.get(), mtus[a]);
                let attr = QpAttr { dest_qp_num, path_mtu, sq_psn: psns[a], rq_psn: psns[b], ..attrs };
                w.connect_up_to(if late && a == 1 { QpState::Rtr } else { QpState::Rts }, node, qp, attr);
                w.nodes[node].engine.qps.get_mut(qp).unwrap().rc.msn = msn;
            }
        });
        for end in ends {
            let many = self.r.below(16);
            self.receive(end, 0..many);
        }
    }

    fn end(&mut self) -> (End, End) {
        let pair = self.pairs[self.r.below(self.pairs.len() as u64) as usize];
        let side = self.r.below(2) as usize;
        (pair[side], pair[1 - side])
    }

    fn step(&mut self, number: u64) {
        self.t.step = number;
        match self.r.below(100) {
            0..24 if self.one_sided && self.r.coin() => self.reach(number * 10),
            0..24 => self.post(number * 10),
            24..30 if !self.gentle && self.r.coin() => self.take_back(number * 10),
            24..30 => self.stream(number * 10),
            30..42 => {
                let (end, _) = self.end();
                let many = 1 + self.r.below(6);
                self.receive(end, number * 10..number * 10 + many);
            }
            42..60 => self.deliver(),
            60..72 => self.answer(number * 10),
            72..79 => self.poll(),
            79..86 => self.pass(),
            86..88 => self.disturb(),
            88..94 if !self.gentle => self.forge(),
            94..96 => self.ask(),
            96..99 => self.modify(),
            99 if !self.gentle => self.break_something(),
            _ => self.deliver(),
        }
        self.interrupt();
        let age = self.r.below(1000);
        self.t.both(|w| w.now += age);
        self.mend();
    }

    /// Delivers some of the packets under way, as one batch.
    fn deliver(&mut self) {
        let net = self.t.fast.net.borrow();
        let busy: Vec<_> = net.queues.iter().filter(|(_, queue)| !queue.is_empty()).map(|(ends, _)| *ends).collect();
        drop(net);
        if !busy.is_empty() {
            let ((from, to), most) = (self.r.pick(&busy), self.r.pick(&[1, 1, 1, 2, 8]));
            let polled = self.polled(to);
            self.arrive((from, to), polled, most);
        }
    }

    fn arrive(&mut self, (from, to): (usize, usize), polled: Option<CqId>, most: usize) {
        let act = |w: &mut World| {
            w.polled[to] = polled;
            let taken = w.deliver(from, to, most);
            w.polled[to] = None;
            taken
        };
        self.t.both(act);
    }

    /// Acts as a program that waits for an answer: another packet comes, or another step is done, first.
    fn answer(&mut self, wr_id: u64) {
        let (end, peer) = self.end();
        self.receive(end, wr_id..wr_id + 1);
        let requests: Vec<Request> = (0..self.r.pick(&[0, 1, 1, 2])).map(|_| self.small_request(peer, end)).collect();
        let cq = self.t.fast.nodes[end.node].engine.qps.get(end.qp).and_then(|qp| qp.init.recv_cq);
        // Packets that came before are taken.
        self.arrive((peer.node, end.node), None, 8);
        if let Some(cq) = cq {
            self.t.both(|w| w.nodes[end.node].engine.poll(cq, 1000, |_, _| ()));
        }
        self.ask_for(peer, &requests, wr_id);
        match self.r.below(8) {
            0 => self.receive(end, wr_id + 1..wr_id + 3),
            1 => self.modify(),
            2 if !self.gentle => self.break_something(),
            3 if !self.gentle => self.forge_for(end, peer),
            _ => {}
        }
        for _ in 0..self.r.pick(&[1, 1, 2, 4]) {
            self.arrive((peer.node, end.node), cq, 1);
        }
        if let Some(cq) = cq
            && self.r.below(4) == 0
        {
            self.repeat_to_nobody(end, peer, cq);
        }
    }

    /// Sends the last packet once more, to no queue pair, and with a first word that could stand for something here.
    fn repeat_to_nobody(&mut self, end: End, peer: End, cq: CqId) {
        use packet_flags::{ACK_REQ, FIRST, LAST};
        let Some(qp) = self.t.fast.nodes[end.node].engine.qps.get(end.qp) else { return };
        let r = &mut self.r;
        let mut packet = Packet::new(PacketOp::Send, Qpn::new(0), peer.qpn, qp.rc.epsn.plus(0xff_ffff));
        packet.flags = r.pick(&[0, 0, 1, FIRST | LAST]) | r.pick(&[0, ACK_REQ]);
        let payload = vec![r.next() as u8; r.pick(&[0, 8])];
        packet.len = payload.len() as u32;
        self.t.both(|w| {
            w.polled[end.node] = Some(cq);
            w.inject(peer.node, end.node, packet, payload.clone());
            w.polled[end.node] = None;
        });
    }

    /// The queue that a node polls meanwhile, if it polls one.
    fn polled(&mut self, node: usize) -> Option<CqId> {
        let [ordinary, small, other] = self.extras[node].cqs;
        self.r.coin().then(|| self.r.pick(&[ordinary, ordinary, ordinary, small, other]))
    }

    fn sge(&mut self, node: usize, write: bool, length: u32) -> Sge {
        let (r, extras) = (&mut self.r, self.extras[node]);
        let key = self.t.fast.nodes[node].key;
        let at = if write { 0x8_0000 + r.below(0x8_0000) } else { r.below(0x8000) };
        let good = Sge { addr: BASE + at, length, lkey: LKey(key) };
        let (_, ordinary, start) = extras.mrs[0];
        match r.below(40) {
            0 if !self.gentle => Sge { lkey: LKey(r.next() as u32), ..good },
            1 if !self.gentle => {
                let (_, key, start) = extras.mrs[1 + r.below(2) as usize];
                Sge { addr: start, length, lkey: LKey(key) }
            }
            2 => Sge { lkey: extras.null, ..good },
            3..8 => Sge { addr: start + r.below(0x8000), length, lkey: LKey(ordinary) },
            _ => good,
        }
    }

    fn request(&mut self, end: End, peer: End) -> Request {
        const OTHERS: [Opcode; 6] = [
            Opcode::RdmaWrite,
            Opcode::RdmaWriteWithImm,
            Opcode::RdmaRead,
            Opcode::FetchAndAdd,
            Opcode::AtomicWrite,
            Opcode::SendWithInv,
        ];
        let opcode = match self.r.below(12) {
            0..7 => Opcode::Send,
            7..10 => Opcode::SendWithImm,
            _ => self.r.pick(&OTHERS[..if self.gentle { 5 } else { 6 }]),
        };
        let rkey = RKey(self.t.fast.nodes[peer.node].key);
        let remote_addr = BASE + 0x10_0000 + 8 * self.r.below(1000);
        let body = match opcode {
            Opcode::Send | Opcode::SendWithImm | Opcode::SendWithInv => SendBody::Plain,
            Opcode::FetchAndAdd => SendBody::Atomic { remote_addr, rkey, compare_add: 3, swap: 0 },
            _ => SendBody::Rdma { remote_addr, rkey },
        };
        let eight = matches!(opcode, Opcode::FetchAndAdd | Opcode::AtomicWrite);
        let len = match opcode {
            _ if eight => 8,
            // The WRITE takes several pieces.
            Opcode::RdmaWrite | Opcode::RdmaWriteWithImm if self.r.coin() => 9000,
            _ => self.r.pick(&LENGTHS),
        };
        let flags = SendFlags::from_bits_truncate(self.r.next() as u32 & 7);
        let imm = self.r.next() as u32;
        let reads = matches!(opcode, Opcode::RdmaRead | Opcode::FetchAndAdd);
        let inline = (!reads && len <= 1024 && self.r.below(3) == 0).then(|| {
            let bytes: Vec<u8> = (0..len).map(|_| self.r.next() as u8).collect();
            let cut = self.r.below(u64::from(len) + 1) as usize;
            match self.r.below(4) {
                0 => vec![bytes[..cut].to_vec(), bytes[cut..].to_vec()],
                1 if len == 0 => vec![],
                _ => vec![bytes],
            }
        });
        let sges = match self.r.below(4) {
            0 => vec![self.sge(end.node, reads, len / 3), self.sge(end.node, reads, len - len / 3)],
            1 if len == 0 => vec![],
            _ => vec![self.sge(end.node, reads, len)],
        };
        Request { opcode, flags, imm, body, sges, inline }
    }

    /// Posts one request, or several by one call.
    fn post(&mut self, wr_id: u64) {
        let (end, peer) = self.end();
        let requests: Vec<Request> = (0..self.r.pick(&[1, 1, 1, 2, 3])).map(|_| self.request(end, peer)).collect();
        self.ask_for(end, &requests, wr_id);
    }

    fn ask_for(&mut self, end: End, requests: &[Request], wr_id: u64) {
        self.t.both(|w| {
            let posted = requests.iter().zip(wr_id..).map(|(request, id)| request.post(w, end.node, end.qp, id));
            posted.collect::<Vec<_>>()
        });
    }

    /// A request that is mostly a small SEND.
    fn small_request(&mut self, end: End, peer: End) -> Request {
        let mut request = self.request(end, peer);
        if self.r.below(8) > 0 {
            let (len, inline) = (self.r.pick(&[0, 3, 8, 8]), self.r.coin());
            (request.opcode, request.body) = (self.r.pick(&[Opcode::Send, Opcode::SendWithImm]), SendBody::Plain);
            request.sges = vec![self.sge(end.node, false, len)];
            request.inline = inline.then(|| vec![self.r.next().to_le_bytes()[..len as usize].to_vec()]);
        }
        request
    }

    /// Sends small messages that come as one batch to a program that polls for them.
    fn stream(&mut self, wr_id: u64) {
        let (end, peer) = self.end();
        self.receive(peer, wr_id..wr_id + 8);
        let requests: Vec<Request> = (0..8).map(|_| self.small_request(end, peer)).collect();
        let cq = self.t.fast.nodes[peer.node].engine.qps.get(peer.qp).and_then(|qp| qp.init.recv_cq);
        let (way, wanted) = ((end.node, peer.node), self.r.pick(&[2, 8, 8]));
        self.ask_for(end, &requests, wr_id);
        self.t.both(|w| {
            let mut polled = Vec::new();
            if let Some(cq) = cq {
                w.nodes[peer.node].engine.poll(cq, 1000, |_, completion| polled.push(*completion));
            }
            w.polled[peer.node] = cq;
            let taken = w.deliver(way.0, way.1, wanted);
            w.polled[peer.node] = None;
            (polled, taken)
        });
    }

    /// Posts WRITEs or READs to a connection on which little is under way.
    fn reach(&mut self, wr_id: u64) {
        let (end, peer) = self.end();
        for _ in 0..2 {
            self.arrive((end.node, peer.node), None, 8);
            self.arrive((peer.node, end.node), None, 8);
        }
        let (mostly_reads, list) = (self.r.coin(), self.r.coin());
        let mut requests = Vec::new();
        for _ in 0..self.r.pick(&[3, 4, 4, 5]) {
            let mut request = self.request(end, peer);
            let wrong = !self.gentle && self.r.below(24) == 0;
            let rkey = RKey(if wrong { self.r.next() as u32 } else { self.t.fast.nodes[peer.node].key });
            let remote_addr = BASE + 0x10_0000 + 8 * self.r.below(1000);
            (request.opcode, request.body) = (Opcode::RdmaWrite, SendBody::Rdma { remote_addr, rkey });
            if mostly_reads != (!list && self.r.below(8) == 0) {
                let len = self.r.pick(&LENGTHS);
                (request.opcode, request.inline) = (Opcode::RdmaRead, None);
                request.sges = vec![self.sge(end.node, true, len)];
            }
            requests.push(request);
        }
        // A list is executed together only behind a request that was.
        let alone = if list { 1 } else { requests.len() };
        for (request, id) in requests.iter().zip(wr_id..).take(alone) {
            self.ask_for(end, std::slice::from_ref(request), id);
        }
        self.t.both(|w| Request::post_list(&requests[alone..], w, end.node, end.qp, wr_id + alone as u64));
    }

    fn receive(&mut self, end: End, wr_ids: std::ops::Range<u64>) {
        for id in wr_ids {
            let length = if self.gentle { 5000 } else { self.r.pick(&[5000, 5000, 5000, 5000, 256, 255, 257, 8, 0]) };
            let sges = match self.r.below(8) {
                0 => vec![self.sge(end.node, true, length / 5), self.sge(end.node, true, length - length / 5)],
                1 if !self.gentle => vec![],
                _ => vec![self.sge(end.node, true, length)],
            };
            _ = self.t.both(|w| {
                let (now, engine) = (w.now, &mut w.nodes[end.node].engine);
                let wr = RecvWr { wr_id: id, sges: &sges };
                if end.srq.is_none() && engine.has_fast_path && engine.post_recv_fast(end.qp, &wr) {
                    return Ok(());
                }
                match end.srq {
                    Some(srq) => engine.post_srq_recv(srq, &wr, now),
                    None => engine.post_recv(end.qp, &wr, now),
                }
            });
        }
    }

    fn poll(&mut self) {
        let (node, most) = (self.r.below(2) as usize, self.r.pick(&[1, 2, 16]));
        for cq in self.extras[node].cqs {
            self.t.both(|w| {
                let mut seen = Vec::new();
                w.nodes[node].engine.poll(cq, most, |_, completion| seen.push(*completion));
                seen
            });
        }
    }

    /// Lets time pass: a little, or until timers run out.
    fn pass(&mut self) {
        let (time, late) =
            (self.r.pick(&[1000, 700_000, 5_000_000, 80_000_000]), self.r.pick(&[None, Some(0), Some(9)]));
        self.t.both(|w| {
            w.now += time;
            for node in &mut w.nodes {
                match late {
                    Some(late) => node.engine.catch_up(late),
                    None => node.engine.catch_up(0),
                }
                node.engine.expire(w.now);
            }
        });
    }
}

/// Whatever is posted, lost, repeated, exchanged, forged and broken: state, completions, events, packets, timers and
/// memory are the same after every step.
#[test]
fn fast_and_slow_path() {
    let (mut taken, mut handed, mut in_runs, mut executed, mut together) = ([0; 4], 0, 0, [0; 4], 0);
    let seeds = seeds(WORLDS);
    let alone = seeds.end - seeds.start == 1;
    for seed in seeds {
        let mut program = Program::new(seed);
        for number in 0..STEPS {
            program.step(number);
        }
        for node in &program.t.fast.nodes {
            executed = std::array::from_fn(|kind| executed[kind] + node.engine.executed_at_post[kind]);
            together += node.engine.executed_together;
        }
        let (ways, [directly, behind]) = program.t.finish();
        handed += directly;
        in_runs += behind;
        for (sum, n) in taken.iter_mut().zip(ways) {
            *sum += n;
        }
    }
    // Acknowledgements of a lone request are rare here.
    let least = [1000, 1000, 200, 1000];
    assert!(
        alone || handed > 100 && in_runs > 100 && taken.iter().zip(least).all(|(n, least)| *n > least),
        "the fast paths were hardly taken: {taken:?}, {handed} completions handed over, {in_runs} packets behind others"
    );
    let least = [100, 100, 100, 50];
    assert!(
        alone || executed.iter().zip(least).all(|(n, least)| *n > least),
        "{executed:?} WRITEs, READs, binds, LOCAL_INVs were executed at their post"
    );
    assert!(alone || together > 50, "{together} WRITEs and READs were executed with others");
}
