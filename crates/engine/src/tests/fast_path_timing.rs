//! The fast path may change when a packet goes out: a request is on the wire when its post returns, before the
//! responses that are owed to the peer. So the network's mishaps strike other packets, and timers run out at other
//! times. The programs' view of requests that all succeed must not change.

use verbs::{
    Completion, Opcode, QpAttr, QpCap, QpId, QpState, QpType, Qpn, RKey, RecvWr, SendBody, SendData, SendFlags, SendWr,
};
use wire::*;

use super::fast_path::seeds;
use super::mock::*;
use super::random::Random;
use super::twins::{fast_paths, world};
use crate::Fast;

const WORLDS: u64 = if cfg!(miri) { 1 } else { 100 };
const STEPS: u64 = 400;
/// Requests of one end. All find room, so that no post depends on completions.
const MOST: u64 = 40;
/// Bytes between the places of two requests.
const PLACE: u64 = 2048;
const SECOND: Nanos = 1_000_000_000;

/// One end of a connection, and the requests that were posted there.
struct End {
    node: usize,
    qp: QpId,
    sent: u64,
    received: u64,
}

impl End {
    /// The place of a request's data: `what` tells receives, results and targets of WRITEs apart.
    fn place(which: usize, what: u64, number: u64) -> u64 {
        0x2_0000 + ((which as u64 * 3 + what) * (MOST + 24) + number) * PLACE
    }

    fn receive(&mut self, w: &mut World, which: usize) {
        if self.received < MOST + 20 {
            let sges = [w.sge(self.node, End::place(which, 0, self.received), PLACE as u32)];
            let (wr, now) = (RecvWr { wr_id: self.received, sges: &sges }, w.now);
            w.nodes[self.node].engine.post_recv(self.qp, &wr, now).unwrap();
            self.received += 1;
        }
    }

    fn post(&mut self, w: &mut World, r: &mut Random, which: usize, peer: usize) {
        const OPCODES: [Opcode; 9] = [
            Opcode::Send,
            Opcode::Send,
            Opcode::Send,
            Opcode::Send,
            Opcode::SendWithImm,
            Opcode::RdmaWrite,
            Opcode::RdmaWriteWithImm,
            Opcode::RdmaRead,
            Opcode::FetchAndAdd,
        ];
        let opcode = r.pick(&OPCODES);
        let (rkey, there) = (RKey(w.nodes[peer].key), BASE + End::place(which, 1, self.sent));
        let body = match opcode {
            Opcode::Send | Opcode::SendWithImm => SendBody::Plain,
            Opcode::RdmaRead => SendBody::Rdma { remote_addr: BASE + r.below(0x8000), rkey },
            Opcode::FetchAndAdd => {
                SendBody::Atomic { remote_addr: BASE + 0x1_0000 + 8 * which as u64, rkey, compare_add: 3, swap: 0 }
            }
            _ => SendBody::Rdma { remote_addr: there, rkey },
        };
        let reads = matches!(opcode, Opcode::RdmaRead | Opcode::FetchAndAdd);
        let len = if opcode == Opcode::FetchAndAdd { 8 } else { r.pick(&[0, 1, 8, 8, 64, 256, 257, 1025, 2000]) };
        let at = if reads { End::place(which, 2, self.sent) } else { r.below(0x8000) };
        let (sges, inline) = ([w.sge(self.node, at, len)], vec![r.next() as u8; len.min(128) as usize]);
        let pieces = [&inline[..]];
        let data = if !reads && len <= 128 && r.coin() { SendData::Inline(&pieces) } else { SendData::Sges(&sges) };
        let flags = SendFlags::from_bits_truncate(r.next() as u32 & 7);
        let wr =
            SendWr { wr_id: self.sent, opcode, flags, imm_or_rkey: r.next() as u32, remote_srqn: 0, body: &body, data };
        if self.sent < MOST {
            let now = w.now;
            w.nodes[self.node].engine.post_send(self.qp, &wr, now).unwrap();
            self.sent += 1;
        }
    }
}

/// The programs' view in the end: completions by queue, in order; state, sequence numbers and counts of the queue
/// pairs; memory.
#[derive(PartialEq, Debug)]
struct Outcome {
    completions: Vec<Vec<Completion>>,
    qps: Vec<(QpState, u32, u32, u32, u64, u64, u64)>,
    events: usize,
    memory: Vec<Vec<u8>>,
}

fn play(seed: u64, fast: bool) -> (Outcome, [u64; 5]) {
    let mut r = Random::new(seed);
    let mut w = world(seed, fast);
    {
        let mut net = w.net.borrow_mut();
        (net.lose, net.repeat) = (r.pick(&[0, 0, 30, 60]), r.pick(&[0, 60]));
        (net.room, net.single_copy) = (r.pick(&[1, 3, 64]), r.coin());
    }
    let mut ends = Vec::new();
    for _ in 0..2 {
        let [a, b] = [w.qp(0, QpType::Rc), w.qp(1, QpType::Rc)];
        for (node, (qp, _), peer, psns) in [(0, a, b.1, (5, 0xff_fff0)), (1, b, a.1, (0xff_fff0, 5))] {
            let attr = verbs::QpAttr { timeout: 17, min_rnr_timer: 1, ..World::attr(peer, psns.0, psns.1) };
            w.connect(node, qp, attr);
            ends.push(End { node, qp, sent: 0, received: 0 });
        }
    }
    for _ in 0..STEPS {
        let which = r.below(4) as usize;
        let (end, peer) = (&mut ends[which], 1 - which % 2);
        let prompt = r.coin();
        w.nodes.iter_mut().for_each(|node| node.engine.set_prompt(prompt));
        for node in 0..2 {
            w.polled[node] = r.coin().then_some(w.nodes[node].cq);
        }
        match r.below(20) {
            0..5 => end.post(&mut w, &mut r, which, peer),
            5..9 => end.receive(&mut w, which),
            9..14 => _ = w.deliver(peer, 1 - peer, r.below(4) as usize),
            14..17 => w.nodes[peer].engine.run(w.now),
            17 => w.run_all(),
            18 => {
                w.now += r.pick(&[1000, 100_000, 20_000_000]);
                w.nodes.iter_mut().for_each(|node| node.engine.expire(w.now));
            }
            _ => {
                if let Some(queue) = w.net.borrow_mut().queues.get_mut(&(1 - peer, peer)).filter(|q| q.len() > 1) {
                    queue.swap(0, 1);
                }
            }
        }
    }
    for (which, end) in ends.iter_mut().enumerate() {
        while end.received < MOST {
            end.receive(&mut w, which);
        }
    }
    {
        let mut net = w.net.borrow_mut();
        (net.lose, net.repeat) = (0, 0);
        net.writable.iter_mut().for_each(|writable| writable.extend((0..3).map(LinkId)));
    }
    w.run_for(100 * SECOND);
    let mut completions = vec![Vec::new(); 8];
    for node in 0..2 {
        let handed = w.handed.iter().filter(|(to, _)| *to == node).map(|(_, completion)| *completion);
        for mut completion in handed.collect::<Vec<_>>().into_iter().chain(w.poll(node)) {
            completion.timestamp = 0;
            let which = ends.iter().position(|end| {
                let qp = w.nodes[end.node].engine.qps.get(end.qp);
                qp.is_some_and(|qp| qp.qpn == Qpn::new(completion.qp_num.get()))
            });
            let receive = completion.opcode as u32 & 128 != 0;
            completions[which.unwrap() * 2 + usize::from(receive)].push(completion);
        }
    }
    let look = |end: &End| {
        let qp = w.nodes[end.node].engine.qps.get(end.qp).unwrap();
        assert!(qp.inflight.is_empty() && qp.rc.responses.is_empty(), "SOFTRNIC_WORLD={seed}: {:?} hangs", qp.inflight);
        let counters = qp.counts.counters;
        let seen = (counters.sent, counters.received, counters.send_errors);
        (qp.state, qp.rc.next_psn.get(), qp.rc.epsn.get(), qp.rc.msn, seen.0, seen.1, seen.2)
    };
    let qps = ends.iter().map(look).collect();
    let events = w.nodes.iter().map(|node| node.notices.len()).sum();
    let memory = w.net.borrow().memory.clone();
    let [out, inward, acknowledged, acknowledging] = fast_paths(&w);
    (Outcome { completions, qps, events, memory }, [out, inward, acknowledged, acknowledging, w.directly])
}

#[test]
fn the_outcome_does_not_depend_on_the_way() {
    let mut taken = 0;
    for seed in seeds(WORLDS) {
        let ((fast, ways), (slow, _)) = (play(seed, true), play(seed, false));
        let when = format!("SOFTRNIC_WORLD={seed}");
        assert_eq!(fast.completions, slow.completions, "{when}");
        assert!(fast.completions.iter().flatten().all(|c| c.status == verbs::WcStatus::Success), "{when}");
        assert_eq!((fast.qps, fast.events), (slow.qps, slow.events), "{when}");
        assert!(fast.memory == slow.memory, "{when}: memory");
        taken += ways.iter().min().unwrap();
    }
    assert!(taken > 0, "no fast path was taken");
}

/// A program that takes packets in one by one acknowledges them at once; acknowledgements that are owed already go out
/// with them, later.
#[test]
fn prompt_acknowledgements() {
    let mut w = world(1, true);
    let (a, b) = w.pair(0, 1, QpType::Rc);
    let acks = |w: &World| {
        let net = w.net.borrow();
        let queue = net.queues.get(&(1, 0)).into_iter().flatten();
        queue.filter(|msg| msg.packet.op == PacketOp::Ack).map(|msg| msg.packet.psn.get()).collect::<Vec<_>>()
    };
    let send = |w: &mut World, id: u64, prompt: bool| {
        let sge = [w.sge(1, BASE, 8)];
        w.recv(1, b, &sge, id).unwrap();
        let sge = [w.sge(0, BASE, 8)];
        w.post(0, a, Opcode::Send, SendBody::Plain, &sge, id).unwrap();
        let now = w.now;
        w.nodes[0].engine.run(now);
        w.nodes[1].engine.set_prompt(prompt);
        w.deliver(0, 1, 1);
    };
    send(&mut w, 1, true);
    let first = acks(&w);
    assert_eq!(first.len(), 1);
    send(&mut w, 2, false);
    assert_eq!(acks(&w), first);
    send(&mut w, 3, true);
    assert_eq!(acks(&w), first);
    let now = w.now;
    w.nodes[1].engine.run(now);
    assert_eq!(acks(&w), [first[0], first[0] + 2], "acknowledgements are cumulative");
}

/// A program that sends one message after the other waits for the acknowledgement: that is on its way before the
/// completion is made.
#[test]
fn a_message_is_acknowledged_before_it_completes() {
    let mut w = world(1, true);
    let (a, b) = w.pair(0, 1, QpType::Rc);
    let (from, into) = ([w.sge(0, BASE, 8)], [w.sge(1, BASE, 8)]);
    for id in 0..2 {
        w.recv(1, b, &into, id).unwrap();
        w.post(0, a, Opcode::Send, SendBody::Plain, &from, id).unwrap();
        if id == 0 {
            w.settle(); // the first packet is looked at more closely
            assert_eq!(w.poll(1).len(), 1);
        }
    }
    w.nodes[1].engine.set_prompt(true);
    let (outcome, found, answers) = w.take_short(0, 1);
    assert_eq!((outcome, found.map(|c| c.wr_id), answers), (Fast::Completed { expects: false }, Some(1), 1));
}

/// A poll for several completions takes packet after packet. A completion that belongs behind others in its queue must
/// not overtake them.
#[test]
fn what_is_handed_over_overtakes_nothing() {
    let mut w = world(1, true);
    let (a, b) = w.pair(0, 1, QpType::Rc);
    let (from, into) = ([w.sge(0, BASE, 8)], [w.sge(1, BASE, 8)]);
    for id in 0..3 {
        w.recv(1, b, &into, id).unwrap();
        w.recv(0, a, &from, 10 + id).unwrap();
    }
    w.post(0, a, Opcode::Send, SendBody::Plain, &from, 0).unwrap();
    w.settle();
    assert_eq!((w.poll(0).len(), w.poll(1).len()), (1, 1), "the first packet is looked at more closely");
    // Two requests at once are acknowledged by one packet, and a message comes behind it.
    for id in 1..3 {
        w.post(0, a, Opcode::Send, SendBody::Plain, &from, id).unwrap();
    }
    w.deliver(0, 1, 2);
    let now = w.now;
    w.nodes[1].engine.run(now);
    w.post(1, b, Opcode::Send, SendBody::Plain, &into, 7).unwrap();
    let (outcome, found, _) = w.take_short(1, 0);
    assert_eq!((outcome, found.map(|c| c.wr_id)), (Fast::Completed { expects: true }, Some(1)));
    assert!(!w.nodes[0].engine.hands_over(w.nodes[0].cq), "the other one is in the queue");
    w.deliver(1, 0, 1);
    let ids = |w: &mut World| w.poll(0).iter().map(|c| c.wr_id).collect::<Vec<_>>();
    assert_eq!(ids(&mut w), [2, 10]);
    w.post(1, b, Opcode::Send, SendBody::Plain, &into, 8).unwrap();
    let (outcome, found, _) = w.take_short(1, 0);
    assert_eq!((outcome, found.map(|c| c.wr_id)), (Fast::Completed { expects: true }, Some(11)));
    assert!(ids(&mut w).is_empty());
}

/// More small requests than the list of requests under way has room for. The list grows: no other allocation may fail.
#[test]
fn there_is_room_for_all_that_is_under_way() {
    let mut w = world(1, true);
    let (a, b) = w.pair(0, 1, QpType::Rc);
    let (from, into) = ([w.sge(0, BASE, 8)], [w.sge(1, BASE, 8)]);
    for id in 0..60 {
        w.recv(1, b, &into, id).unwrap();
        w.post(0, a, Opcode::Send, SendBody::Plain, &from, id).unwrap();
        let qp = w.nodes[0].engine.qps.get(a).unwrap();
        assert_eq!(qp.inflight.len() + qp.unlisted, id as usize + 1);
        assert!(qp.inflight.len() + qp.unlisted <= qp.inflight.capacity());
    }
    assert!(w.nodes[0].engine.qps.get(a).unwrap().unlisted > 0);
    w.settle();
    assert_eq!(w.poll(0).iter().map(|c| c.wr_id).collect::<Vec<_>>(), (0..60).collect::<Vec<_>>());
}

/// One acknowledgement ends several requests, and the queue has no room for their completions: no request is waited for
/// then.
#[test]
fn an_overrun_leaves_no_timer() {
    let left = [true, false].map(|fast| {
        let mut w = world(1, fast);
        let ctx = w.nodes[0].ctx;
        w.nodes[0].cq = w.nodes[0].engine.create_cq(ctx, 1, 0, crate::CqOpts::default()).unwrap().0;
        let (a, b) = w.pair(0, 1, QpType::Rc);
        let (from, into) = ([w.sge(0, BASE, 8)], [w.sge(1, BASE, 8)]);
        for id in 0..4 {
            w.recv(1, b, &into, id).unwrap();
            w.post(0, a, Opcode::Send, SendBody::Plain, &from, id).unwrap();
        }
        let now = w.now;
        w.nodes[0].engine.run(now);
        w.deliver(0, 1, 4);
        w.nodes[1].engine.run(now);
        w.nodes[0].engine.catch_up(0);
        w.deliver(1, 0, 4);
        let engine = &w.nodes[0].engine;
        assert_eq!(engine.fast_paths[2] > 0, fast);
        (engine.qps.get(a).unwrap().state, engine.has_timed())
    });
    assert_eq!(left, [(QpState::Err, false); 2]);
}

/// Two processes that looked for each other at the same time have two links, and each sends over its own.
#[test]
fn the_fast_paths_lead_over_two_links() {
    let mut w = world(1, true);
    w.net.borrow_mut().twin = true;
    let (a, b) = w.pair(0, 1, QpType::Rc);
    w.nodes.iter_mut().for_each(|node| node.engine.set_prompt(true));
    for id in 0..100 {
        let (to, from) = if id % 2 == 0 { ((1, b), (0, a)) } else { ((0, a), (1, b)) };
        let sge = [w.sge(to.0, BASE, 8)];
        w.recv(to.0, to.1, &sge, id).unwrap();
        let sge = [w.sge(from.0, BASE, 8)];
        w.post(from.0, from.1, Opcode::Send, SendBody::Plain, &sge, id).unwrap();
        w.run_for(1000);
    }
    // The first packet to each side is looked at more closely.
    assert_eq!(fast_paths(&w), [100, 99, 99, 100]);
    let links = |w: &World, node: usize, qp| w.nodes[node].engine.qps.get(qp).map(|qp| (qp.link, qp.from)).unwrap();
    let (own, theirs) = links(&w, 0, a);
    assert_ne!(own, theirs);
    w.nodes[0].engine.link_down(theirs.unwrap(), None);
    assert_eq!(links(&w, 0, a), (own, own), "what is gone is forgotten");
    let (own, theirs) = links(&w, 1, b);
    w.nodes[1].engine.link_down(own.unwrap(), None);
    assert_eq!(links(&w, 1, b), (None, theirs), "the rest of what the peer has sent is taken");
    w.nodes[1].engine.link_down(theirs.unwrap(), None);
    assert_eq!(links(&w, 1, b), (None, None));
    // The same holds for a queue pair that has heard nothing yet: the peer's messages come over the peer's own link.
    let other = w.pair(0, 1, QpType::Rc).1;
    let (own, from) = links(&w, 1, other);
    assert_eq!(own, from);
    w.nodes[1].engine.link_down(own.unwrap(), theirs);
    assert_eq!(links(&w, 1, other), (None, theirs));
}

/// A queue pair that only receives may stay in RTR.
#[test]
fn the_fast_paths_lead_to_rtr_too() {
    let mut w = world(1, true);
    let ends = [w.qp(0, QpType::Rc), w.qp(1, QpType::Rc)];
    w.connect(0, ends[0].0, World::attr(ends[1].1, 0, 0));
    w.connect_up_to(QpState::Rtr, 1, ends[1].0, World::attr(ends[0].1, 0, 0));
    for (id, prompt) in [false, true, false, true, false].into_iter().enumerate() {
        w.nodes[1].engine.set_prompt(prompt);
        let sge = [w.sge(1, BASE, 8)];
        w.recv(1, ends[1].0, &sge, id as u64).unwrap();
        let sge = [w.sge(0, BASE, 8)];
        w.post(0, ends[0].0, Opcode::Send, SendBody::Plain, &sge, id as u64).unwrap();
        w.settle();
    }
    // The first packet raises an event.
    assert_eq!(fast_paths(&w), [5, 4, 5, 5]);
    assert_eq!(w.nodes[1].notices.len(), 1);
    assert_eq!(w.poll(1).len(), 5);
}

/// A message of the path MTU is one packet, and takes the fast path. A longer message does not, nor a message that the
/// wire would rather have by reference.
#[test]
fn the_fast_path_goes_as_far_as_a_packet() {
    for (path_mtu, shared_above, len, fast) in [
        (1, 16384, 256, [1, 1]),
        (1, 16384, 257, [0, 0]),
        (3, 16384, 1024, [1, 1]),
        (3, 16384, 1025, [0, 0]),
        (5, 16384, 4096, [1, 1]),
        (5, 16384, 4097, [0, 0]),
        (5, 1024, 1024, [1, 1]),
        (5, 1024, 1025, [0, 1]),
    ] {
        let mut w = world(1, true);
        let copies = (true, Some(shared_above), false);
        (w.net.borrow_mut().single_copy, w.net.borrow_mut().shared_above, w.net.borrow_mut().maps) = copies;
        let ((a, a_qpn), (b, b_qpn)) = (w.qp(0, QpType::Rc), w.qp(1, QpType::Rc));
        w.connect(0, a, QpAttr { path_mtu, ..World::attr(b_qpn, 0, 0) });
        w.connect(1, b, QpAttr { path_mtu, ..World::attr(a_qpn, 0, 0) });
        let mut ways = [0; 4];
        for id in 0..2 {
            // The first packet is for the slow path in any case.
            ways = fast_paths(&w);
            let sge = [w.sge(1, 0x8000, 5000)];
            w.recv(1, b, &sge, id).unwrap();
            let sge = [w.sge(0, 0, len)];
            w.post(0, a, Opcode::Send, SendBody::Plain, &sge, id).unwrap();
            w.settle();
        }
        let now = fast_paths(&w);
        assert_eq!([now[0] - ways[0], now[1] - ways[1]], fast, "{len} of {path_mtu}");
        assert_eq!(w.poll(1).iter().map(|c| c.byte_len).collect::<Vec<_>>(), [len; 2]);
    }
}

/// A request that the fast path refuses for its length has not begun, and the slow path gives the reason.
#[test]
fn inline_data_are_posted_where_they_fit() {
    for (max_inline_data, fits) in [(4, false), (7, false), (8, true)] {
        let mut w = world(1, true);
        let (a, a_qpn) = w.qp_with(0, QpType::Rc, None, QpCap { max_inline_data, ..cap() }, false);
        let (b, b_qpn) = w.qp(1, QpType::Rc);
        w.connect(0, a, World::attr(b_qpn, 0, 0));
        w.connect(1, b, World::attr(a_qpn, 0, 0));
        let (sge, piece): (_, [&[u8]; 1]) = ([w.sge(1, 0x8000, 8)], [&[9; 8]]);
        w.recv(1, b, &sge, 1).unwrap();
        let wr = SendWr {
            wr_id: 7,
            opcode: Opcode::Send,
            flags: SendFlags::SIGNALED,
            imm_or_rkey: 0,
            remote_srqn: 0,
            body: &SendBody::Plain,
            data: SendData::Inline(&piece),
        };
        let expected = if fits { Ok(()) } else { Err(verbs::Errno::EINVAL) };
        assert_eq!(w.post_wr(0, a, &wr), expected, "{max_inline_data}");
        assert_eq!(fast_paths(&w)[0], u64::from(fits));
        w.settle();
        assert_eq!(w.poll(0).len(), usize::from(fits), "{max_inline_data}");
        assert_eq!(w.poll(1).len(), usize::from(fits), "{max_inline_data}");
    }
}

/// Any code that takes a queue pair for a change has the fast path compute its gates anew.
#[test]
fn what_was_taken_for_granted_is_forgotten_with_a_change() {
    let mut w = world(1, true);
    let (a, b) = w.pair(0, 1, QpType::Rc);
    let (from, into) = ([w.sge(0, BASE, 8)], [w.sge(1, BASE, 8)]);
    for (id, halted, posted) in [(0, false, 1), (1, false, 2), (2, true, 2)] {
        w.recv(1, b, &into, id).unwrap();
        if halted {
            w.nodes[0].engine.qps.get_mut(a).unwrap().halted = true;
        }
        w.post(0, a, Opcode::Send, SendBody::Plain, &from, id).unwrap();
        assert_eq!(fast_paths(&w)[0], posted, "request {id}");
        w.settle();
    }
    assert_eq!(w.poll(1).len(), 2);
}

/// A queue that is to raise an event gets its completions, though the caller would have them handed over.
#[test]
fn the_engine_asks_whether_a_queue_hands_over() {
    let mut w = world(1, true);
    let (a, b) = w.pair(0, 1, QpType::Rc);
    let (from, into) = ([w.sge(0, BASE, 8)], [w.sge(1, BASE, 8)]);
    for id in 0..2 {
        w.recv(1, b, &into, id).unwrap();
        w.post(0, a, Opcode::Send, SendBody::Plain, &from, id).unwrap();
        if id == 0 {
            w.settle(); // the first packet is looked at more closely
            assert_eq!(w.poll(1).len(), 1);
        }
    }
    let cq = w.nodes[1].cq;
    w.nodes[1].engine.arm_cq(cq, false).unwrap();
    let (outcome, found, _) = w.take_short(0, 1);
    assert_eq!((outcome, found), (Fast::Refused, None));
}
