//! Nodes over the network of mocks, and the steps that move them on.

use super::*;

/// A process: an engine with a context, a domain, a completion queue and one region over its memory.
pub struct Node {
    pub engine: Engine<Mock>,
    pub ctx: CtxId,
    pub pd: PdId,
    pub cq: CqId,
    pub key: u32,
    pub notices: Vec<Notice>,
}

pub struct World {
    pub net: Rc<RefCell<Net>>,
    pub nodes: Vec<Node>,
    pub now: Nanos,
    /// The queue that a node polls while packets come to it.
    pub polled: Vec<Option<CqId>>,
    /// Completions that the polled queues gave: node and completion.
    pub handed: Vec<(usize, Completion)>,
    /// Number of these completions that were never in the queue.
    pub directly: u64,
    /// Packets that were taken behind others, by the same poll.
    pub in_runs: u64,
}

pub const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

pub fn gid() -> Gid {
    let mut g = Gid::ZERO;
    g.0[15] = 1;
    g
}

pub fn cap() -> QpCap {
    QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 128 }
}

impl World {
    pub fn new(count: usize, seed: u64) -> World {
        let net = Rc::new(RefCell::new(Net {
            memory: vec![vec![0; ARENA]; count],
            queues: BTreeMap::new(),
            sent: HashMap::new(),
            writable: vec![Vec::new(); count],
            rng: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            lose: 0,
            repeat: 0,
            room: 64,
            single_copy: false,
            either_from: u32::MAX,
            same_host: true,
            single_copy_above: 16384,
            flowing_above: None,
            shared_above: None,
            fickle: false,
            maps: true,
            segment: 16384,
            deny_single_copy: false,
            offer: None,
            followed: None,
            late_writer: false,
            groups: HashMap::new(),
            lost: 0,
            exported: vec![HashMap::new(); count],
            one_sided: false,
            shares: false,
            quiet: 0,
            tried: 0,
            executed: 0,
            one_sided_bytes: 0,
            answered: Vec::new(),
            twin: false,
            dead: Vec::new(),
            lonely: Vec::new(),
            arrived: false,
            quiesced: Vec::new(),
            tickets: HashMap::new(),
        }));
        let nodes = (0..count)
            .map(|me| {
                let mut engine = Engine::new(Mock { me, net: net.clone(), current: Vec::new(), read: 0 });
                engine.set_gids(vec![gid()]);
                engine.add_qpns((me as u32 + 1) * crate::QPN_BLOCK);
                let ctx = engine.open_ctx().unwrap();
                let pd = engine.alloc_pd(ctx).unwrap();
                let (cq, _) = engine.create_cq(ctx, 4096, 7, CqOpts::default()).unwrap();
                let (_, key, _) = engine.reg_mr(pd, BASE, ARENA as u64, BASE, ALL).unwrap();
                Node { engine, ctx, pd, cq, key: key.0, notices: Vec::new() }
            })
            .collect();
        World { net, nodes, now: 1_000_000, polled: vec![None; count], handed: Vec::new(), directly: 0, in_runs: 0 }
    }

    pub fn qp(&mut self, node: usize, ty: QpType) -> (QpId, Qpn) {
        self.qp_with(node, ty, None, cap(), false)
    }

    pub fn qp_with(&mut self, node: usize, ty: QpType, srq: Option<SrqId>, cap: QpCap, sig: bool) -> (QpId, Qpn) {
        let n = &self.nodes[node];
        let init = QpInit {
            pd: Some(n.pd),
            qp_type: ty,
            send_cq: Some(n.cq),
            recv_cq: Some(n.cq),
            srq,
            xrcd: None,
            cap,
            sq_sig_all: sig,
        };
        self.qp_of(node, &init)
    }

    pub fn qp_of(&mut self, node: usize, init: &QpInit) -> (QpId, Qpn) {
        let n = &mut self.nodes[node];
        let (id, created) = n.engine.create_qp(n.ctx, init, 1).unwrap();
        let ticket = n.engine.ticket(id);
        let first = ticket.load(std::sync::atomic::Ordering::SeqCst);
        self.net.borrow_mut().tickets.insert(std::ptr::from_ref(ticket) as u64, (ticket, first));
        (id, created.qpn)
    }

    pub fn modify(&mut self, node: usize, qp: QpId, attr: &QpAttr, mask: M) -> Result<()> {
        let now = self.now;
        self.nodes[node].engine.modify_qp(qp, attr, mask | M::STATE, now)
    }

    pub fn attr(dest: Qpn, my_psn: u32, peer_psn: u32) -> QpAttr {
        QpAttr {
            path_mtu: 3,
            qkey: 0x11,
            rq_psn: peer_psn,
            sq_psn: my_psn,
            dest_qp_num: dest.get(),
            access: ALL,
            ah: AhAttr { dgid: gid(), is_global: true, port_num: 1, ..AhAttr::default() },
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            port_num: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        }
    }

    /// Brings a queue pair to RTS.
    pub fn connect(&mut self, node: usize, qp: QpId, attr: QpAttr) {
        self.connect_up_to(QpState::Rts, node, qp, attr);
    }

    /// Brings a queue pair to RTR or RTS.
    pub fn connect_up_to(&mut self, last: QpState, node: usize, qp: QpId, mut attr: QpAttr) {
        let ty = self.nodes[node].engine.query_qp(qp).unwrap().1.qp_type;
        for (from, to) in [(QpState::Reset, QpState::Init), (QpState::Init, QpState::Rtr), (QpState::Rtr, QpState::Rts)]
        {
            attr.state = to;
            let (required, _) = verbs::state::transition(ty, from, to).unwrap();
            self.modify(node, qp, &attr, required).unwrap();
            if to == last {
                return;
            }
        }
    }

    /// Two connected queue pairs on two nodes (or on one).
    pub fn pair(&mut self, a: usize, b: usize, ty: QpType) -> (QpId, QpId) {
        let ((qa, na), (qb, nb)) = (self.qp(a, ty), self.qp(b, ty));
        self.connect(a, qa, Self::attr(nb, 0xff_fff0, 100));
        self.connect(b, qb, Self::attr(na, 100, 0xff_fff0));
        (qa, qb)
    }

    pub fn write(&mut self, node: usize, at: u64, bytes: &[u8]) {
        slice(&mut self.net.borrow_mut().memory[node], BASE + at, bytes.len()).unwrap().copy_from_slice(bytes);
    }

    pub fn read(&self, node: usize, at: u64, len: usize) -> Vec<u8> {
        slice(&mut self.net.borrow_mut().memory[node], BASE + at, len).unwrap().to_vec()
    }

    pub fn sge(&self, node: usize, at: u64, length: u32) -> Sge {
        Sge { addr: BASE + at, length, lkey: LKey(self.nodes[node].key) }
    }

    pub fn rdma(&self, node: usize, at: u64) -> SendBody {
        SendBody::Rdma { remote_addr: BASE + at, rkey: RKey(self.nodes[node].key) }
    }

    pub fn post(&mut self, node: usize, qp: QpId, opcode: Opcode, body: SendBody, sges: &[Sge], id: u64) -> Result<()> {
        let wr = SendWr {
            wr_id: id,
            opcode,
            flags: SendFlags::SIGNALED,
            imm_or_rkey: 0x1234_5678,
            remote_srqn: 0,
            body: &body,
            data: SendData::Sges(sges),
        };
        self.post_wr(node, qp, &wr)
    }

    pub fn post_wr(&mut self, node: usize, qp: QpId, wr: &SendWr<'_>) -> Result<()> {
        let now = self.now;
        self.nodes[node].engine.post_send(qp, wr, now)?;
        self.run(node);
        Ok(())
    }

    pub fn recv(&mut self, node: usize, qp: QpId, sges: &[Sge], id: u64) -> Result<()> {
        let now = self.now;
        self.nodes[node].engine.post_recv(qp, &RecvWr { wr_id: id, sges }, now)
    }

    /// Delivers everything that is under way; time stands still.
    pub fn settle(&mut self) {
        loop {
            let next = self.net.borrow().queues.iter().find(|(_, q)| !q.is_empty()).map(|(&ends, _)| ends);
            let Some((from, to)) = next else {
                if self.nodes.iter().any(|n| n.engine.has_ready()) {
                    self.run_all();
                    continue;
                }
                return;
            };
            self.deliver(from, to, 1);
            self.run_all();
        }
    }

    /// Delivers up to so many packets of one link, as one batch: nothing runs in between. Gives how many.
    pub fn deliver(&mut self, from: usize, to: usize, most: usize) -> usize {
        let mut n = 0;
        while n < most {
            let back = self.nodes[from].engine.env().link(to);
            let Some(msg) = self.net.borrow_mut().pop(from, to, back) else { return n };
            self.nodes[to].engine.env_mut().read += 1;
            n += self.take(from, to, msg.packet, msg.payload, most - n);
        }
        most
    }

    /// Takes the next packet of a link as a short one, by a poll of the node's queue for one completion. Gives what the
    /// poll found, and how many answers were under way then.
    pub fn take_short(&mut self, from: usize, to: usize) -> (Fast, Option<Completion>, usize) {
        let msg = self.net.borrow_mut().queues.get_mut(&(from, to)).and_then(VecDeque::pop_front).unwrap();
        let short = short_packet(&msg.packet, &msg.payload).unwrap();
        let mut poller = Polls::new(self, from, to);
        let node = &mut self.nodes[to];
        let link = node.engine.env().inward(from);
        let outcome = node.engine.receive_short(link, short, self.now, (node.cq, 1), &mut poller);
        assert!(poller.taken == usize::from(outcome != Fast::Refused) && poller.found.len() <= 1);
        (outcome, poller.found.pop(), poller.answers)
    }

    /// Has a node take a packet. If the node polls, it does so as a poll with room for so many completions, and takes
    /// the packets behind it, too. Gives how many packets the node took.
    fn take(&mut self, from: usize, to: usize, packet: Packet, payload: Vec<u8>, most: usize) -> usize {
        let mut poller = Polls::new(self, from, to);
        let link = self.nodes[to].engine.env().inward(from);
        let engine = &mut self.nodes[to].engine;
        // Not where an acknowledgement may end more requests than the queue holds. The queue holds one completion more
        // if the first is taken out before the others come.
        let small = |cq: CqId| packet.op == PacketOp::Ack && engine.done.cqs.get(cq).is_some_and(|cq| cq.capacity < 64);
        let polled = self.polled[to].filter(|&cq| engine.hands_over(cq) && !small(cq));
        let outcome = match (polled.filter(|_| engine.has_fast_path), short_packet(&packet, &payload)) {
            (Some(cq), Some(short)) => engine.receive_short(link, short, self.now, (cq, most), &mut poller),
            _ => Fast::Refused,
        };
        let Polls { mut found, taken, .. } = poller;
        assert_eq!(matches!(outcome, Fast::Completed { .. }), !found.is_empty());
        assert_eq!(outcome == Fast::Refused, taken == 0);
        assert!(found.len() <= most && (taken <= 1 || taken == found.len()));
        self.directly += found.len() as u64;
        self.in_runs += taken.saturating_sub(1) as u64;
        if outcome == Fast::Refused {
            engine.env_mut().current = payload;
            engine.receive(link, &packet, (), self.now);
        }
        if let Some(cq) = polled {
            if found.is_empty() {
                engine.poll(cq, 1, |_, completion| found.push(*completion));
            }
            self.handed.extend(found.into_iter().map(|completion| (to, completion)));
        }
        taken.max(1)
    }

    /// Delivers a packet that no engine sent, over the link between two nodes.
    pub fn inject(&mut self, from: usize, to: usize, packet: Packet, payload: Vec<u8>) {
        self.take(from, to, packet, payload, 1);
    }

    /// Drops packets under way on a link, from the packet at `skip` on. Gives how many.
    pub fn drop_packets(&mut self, from: usize, to: usize, skip: usize, most: usize) -> usize {
        let mut net = self.net.borrow_mut();
        let Some(queue) = net.queues.get_mut(&(from, to)) else { return 0 };
        let end = queue.len().min(skip + most);
        queue.drain(skip.min(end)..end).count()
    }

    pub fn run_all(&mut self) {
        for node in 0..self.nodes.len() {
            self.run(node);
            let n = &mut self.nodes[node];
            n.engine.take_notices(&mut n.notices);
        }
    }

    /// Lets an engine run once, under a hold of the lock of its own.
    fn run(&mut self, node: usize) {
        let before = self.net.borrow().one_sided_bytes;
        let engine = &mut self.nodes[node].engine;
        engine.next_hold();
        engine.run(self.now);
        if engine.is_in_pieces() {
            engine.run(self.now); // a second time does not copy more
        }
        assert!(self.net.borrow().one_sided_bytes - before <= u64::from(engine.piece));
        assert!(!engine.is_in_pieces() || engine.has_ready());
    }

    /// Lets time pass until nothing is left to happen, or this much has passed.
    pub fn run_for(&mut self, limit: Nanos) {
        let end = self.now + limit;
        loop {
            self.settle();
            let next = self.nodes.iter_mut().filter_map(|n| n.engine.next_deadline()).min();
            match next {
                Some(at) if at <= end => {
                    self.now = self.now.max(at);
                    for n in &mut self.nodes {
                        n.engine.expire(self.now);
                    }
                    self.run_all();
                }
                _ => {
                    self.now = end;
                    return;
                }
            }
        }
    }

    pub fn poll(&mut self, node: usize) -> Vec<Completion> {
        let n = &mut self.nodes[node];
        let mut out = Vec::new();
        n.engine.poll(n.cq, 4096, |_, completion| out.push(*completion));
        out
    }
}
