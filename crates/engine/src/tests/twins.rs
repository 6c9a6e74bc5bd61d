//! Two worlds with the same steps: in one, small SENDs take the fast path, in the other they do not.

use std::fmt::Debug;

use super::mock::*;
use crate::Engine;
use crate::qp::Qp;

pub struct Twins {
    pub fast: World,
    slow: World,
    /// The seed that a failure names.
    pub seed: u64,
    pub step: u64,
}

/// A world of two nodes.
pub fn world(seed: u64, fast: bool) -> World {
    let mut w = World::new(2, seed);
    for node in 0..2 {
        w.nodes[node].engine.set_fast_path(fast);
        w.nodes[node].engine.set_diagnostics(true);
        let bytes: Vec<u8> = (0..0x1_0000u32).map(|i| (i * 7 + i / 251) as u8 ^ node as u8).collect();
        w.write(node, 0, &bytes);
    }
    w
}

/// How often each fast path was taken: posting, receiving, being acknowledged, acknowledging.
pub fn fast_paths(w: &World) -> [u64; 4] {
    std::array::from_fn(|carrier| w.nodes.iter().map(|node| node.engine.fast_paths[carrier]).sum())
}

impl Twins {
    pub fn new(seed: u64) -> Twins {
        Twins { fast: world(seed, true), slow: world(seed, false), seed, step: 0 }
    }

    /// Does the same in both worlds, lets the engines run, and compares everything.
    ///
    /// The engines run after every step, as they do in a process, where a call into the adapter ends with a run. So no
    /// response is owed when a request is posted, and the packets of both worlds are the same ones in the same order.
    pub fn both<T: PartialEq + Debug>(&mut self, act: impl Fn(&mut World) -> T) -> T {
        let [fast, slow] = [&mut self.fast, &mut self.slow].map(|w| {
            let result = act(w);
            while {
                w.run_all();
                w.nodes.iter().any(|node| node.engine.has_ready())
            } {}
            // The place of a completion that was overwritten is free at the next run or post. Behind a request that is
            // executed at its post, that is one run earlier.
            w.nodes.iter_mut().for_each(|node| node.engine.free_overwritten());
            result
        });
        self.same("results", &fast, &slow);
        self.compare();
        fast
    }

    fn same<T: PartialEq + Debug + ?Sized>(&self, what: &str, fast: &T, slow: &T) {
        let (seed, step) = (self.seed, self.step);
        assert!(
            fast == slow,
            "SOFTRNIC_WORLD={seed}, step {step}: {what}\n the fast path: {fast:?}\n the slow path: {slow:?}"
        );
    }

    fn compare(&mut self) {
        let handed = (std::mem::take(&mut self.fast.handed), std::mem::take(&mut self.slow.handed));
        self.same("what polls got", &handed.0, &handed.1);
        for node in 0..self.fast.nodes.len() {
            let (a, b) = (&mut self.fast.nodes[node], &mut self.slow.nodes[node]);
            let notices = (std::mem::take(&mut a.notices), std::mem::take(&mut b.notices));
            self.same("notices", &notices.0, &notices.1);
            let (a, b) = (&self.fast.nodes[node].engine, &self.slow.nodes[node].engine);
            self.compare_engines(a, b);
        }
        let (a, b) = (self.fast.net.borrow(), self.slow.net.borrow());
        self.same("packets under way", &a.queues, &b.queues);
        self.same("what was sent ever", &(a.rng, a.lost, a.quiet, a.executed), &(b.rng, b.lost, b.quiet, b.executed));
        self.same("links with room", &a.writable, &b.writable);
        self.same("what is shown", &a.exported, &b.exported);
    }

    fn compare_engines(&self, a: &Engine<Mock>, b: &Engine<Mock>) {
        macro_rules! same {
            ($($field:ident)*) => { $(self.same(stringify!($field), &a.$field, &b.$field);)* };
        }
        same!(ready parked strangers served gone);
        if a.executed_at_post == [0; 4] {
            same!(moved); // a run counts its own bytes
        }
        self.same("completions to come", &a.expects_completions(), &b.expects_completions());
        for (x, y) in a.cqs_facts(0).iter().zip(&b.cqs_facts(0)) {
            self.same("completion queue", x, y);
        }
        for ((_, x), (_, y)) in a.mem.mws.iter().zip(b.mem.mws.iter()) {
            let look = |mw: &crate::region::Mw| (mw.key, mw.bound.is_some(), mw.shown);
            self.same("window", &look(x), &look(y));
        }
        for ((_, x), (_, y)) in a.srqs.iter().zip(b.srqs.iter()) {
            let look = |srq: &crate::wq::rq::Srq| (srq.queue.wqes.len(), srq.queue.held, srq.limit);
            self.same("shared receive queue", &look(x), &look(y));
        }
        self.same("queue pairs", &a.qps.iter().count(), &b.qps.iter().count());
        for ((_, x), (_, y)) in a.qps.iter().zip(b.qps.iter()) {
            self.compare_qps(x, y);
        }
    }

    fn compare_qps(&self, a: &Qp, b: &Qp) {
        macro_rules! same {
            ($($($field:ident).+),*) => { $(self.same(stringify!($($field).+), &a.$($field).+, &b.$($field).+);)* };
        }
        same!(id, qpn, state, attr, link, seek_at, seek_pause, queued, parked, counts.counters, counts.rnr_since);
        same!(
            rc.next_psn,
            rc.unacked,
            rc.reads_out,
            rc.retries,
            rc.rnr_retries,
            rc.rnr_until,
            rc.ack_deadline,
            rc.sent_mark,
            rc.answered
        );
        same!(
            rc.patient_since,
            rc.unread,
            halted,
            unreliable.lossy,
            unreliable.give_up_at,
            same_host.proven,
            same_host.peer_epoch,
            timer_at,
            timed,
            same_host.exported,
            rc.epsn,
            rc.msn,
            rc.nak_sent
        );
        same!(
            unreliable.dropping,
            unreliable.fed_at,
            rc.responses,
            rc.atomics,
            rc.comm_est,
            last_wqe_told,
            rq.held,
            rq.total
        );
        same!(sq.posted, sq.fetched, sq.retired);
        let queued = |q: &Qp| q.rq.wqes.iter().map(|wqe| wqe.wr_id).collect::<Vec<_>>();
        self.same("receives", &queued(a), &queued(b));
        let under_way = |q: &Qp| q.recv.as_ref().map(|recv| (recv.wqe.wr_id, recv.srq, recv.offset));
        self.same("message under way", &under_way(a), &under_way(b));
        self.same("cursor", &(a.cursor + a.unlisted), &(b.cursor + b.unlisted));
        self.same("inflight", &(a.inflight.len() + a.unlisted), &(b.inflight.len() + b.unlisted));
        let unlisted: Vec<_> = (0..a.unlisted).map(|n| a.unlisted(n)).collect();
        for (x, y) in a.inflight.iter().chain(&unlisted).zip(b.inflight.iter()) {
            // Not `body` and `srqn`: what the array holds there has no meaning for a SEND.
            self.same("number", &(x.number, x.wr_id, x.opcode, x.flags), &(y.number, y.wr_id, y.opcode, y.flags));
            self.same("data", &(x.imm, &x.sges, x.inline_len, x.len), &(y.imm, &y.sges, y.inline_len, y.len));
            self.same("place", &(x.first_psn, x.psns, x.sent, x.received), &(y.first_psn, y.psns, y.sent, y.received));
            self.same("executed here", &(x.one_sided, x.executed), &(y.one_sided, y.executed));
            self.same("fate", &(x.out, x.done, x.error, x.since), &(y.out, y.done, y.error, y.since));
        }
    }

    /// Ends the worlds. Gives how often the fast paths were taken, how many completions were handed out without having
    /// been in a queue, and how many packets polls took behind others.
    pub fn finish(self) -> ([u64; 4], [u64; 2]) {
        let (a, b) = (self.fast.net.borrow(), self.slow.net.borrow());
        assert!(a.memory == b.memory, "SOFTRNIC_WORLD={}: memory", self.seed);
        assert_eq!((fast_paths(&self.slow), self.slow.directly, self.slow.in_runs), ([0; 4], 0, 0));
        (fast_paths(&self.fast), [self.fast.directly, self.fast.in_runs])
    }
}
