//! A WAIT and the count that it waits for, in every order in which threads may hold the lock of the adapter.
//!
//! A waiter is registered, and a count is raised, under that lock only. So the interleavings of the threads are the
//! orders of their holds, and all of them are tried.

use verbs::{Count, Opcode, QpInit, QpType, SendBody, SendData, SendFlags, SendWr, WcStatus};

use super::managed::Bench;
use super::mock::{World, cap};

/// What a thread does while it holds the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hold {
    /// Post the WAIT; or what is behind it.
    Wait,
    Behind,
    /// Take one of the two messages.
    Take,
    /// Execute what is ready.
    Run,
}

/// Calls `each` with every order of these holds.
fn orders(left: &mut Vec<Hold>, begun: &mut Vec<Hold>, each: &mut impl FnMut(&[Hold])) {
    if left.is_empty() {
        return each(begun);
    }
    for at in 0..left.len() {
        let hold = left[at];
        // Equal holds are tried once, and what is behind the WAIT is posted behind it.
        if left[..at].contains(&hold) || hold == Hold::Behind && left.contains(&Hold::Wait) {
            continue;
        }
        left.remove(at);
        begun.push(hold);
        orders(left, begun, each);
        begun.pop();
        left.insert(at, hold);
    }
}

/// Posts to the queue pair, and runs nothing.
fn post(b: &mut Bench, opcode: Opcode, body: &SendBody, data: SendData<'_>, wr_id: u64) {
    let (flags, now) = (SendFlags::SIGNALED, b.w.now);
    let wr = SendWr { wr_id, opcode, flags, imm_or_rkey: 0, remote_srqn: 0, body, data };
    b.w.nodes[0].engine.post_send(b.qp, &wr, now).unwrap();
}

fn hold(b: &mut Bench, hold: Hold) {
    match hold {
        Hold::Wait => {
            let body = SendBody::Wait { cq: b.arrivals, count: Count::Absolute(2), step: 0 };
            post(b, Opcode::Wait, &body, SendData::Sges(&[]), 900);
        }
        Hold::Behind => {
            let (body, sge) = (b.w.rdma(1, 0x100), [b.w.sge(0, 0, 8)]);
            post(b, Opcode::RdmaWrite, &body, SendData::Sges(&sge), 1);
        }
        Hold::Take => assert_eq!(b.w.deliver(1, 0, 1), 1),
        Hold::Run => {
            let now = b.w.now;
            b.w.nodes[0].engine.run(now);
        }
    }
}

/// Two messages are under way, and not taken.
fn two_under_way() -> Bench {
    let mut b = Bench::new(8, None, None);
    for _ in 0..2 {
        let into = b.w.sge(0, 0x5000, 8);
        b.w.recv(0, b.qp, &[into], 0).unwrap();
        let from = b.w.sge(1, 0x9000, 8);
        b.w.post(1, b.peer, Opcode::Send, SendBody::Plain, &[from], 5).unwrap();
    }
    b
}

#[test]
fn a_waiter_and_its_count_meet_in_every_order() {
    let mut tried = 0;
    let all = [Hold::Wait, Hold::Behind, Hold::Take, Hold::Take, Hold::Run, Hold::Run];
    orders(&mut all.to_vec(), &mut Vec::new(), &mut |order| {
        tried += 1;
        let mut b = two_under_way();
        let mut taken = 0;
        for step in order {
            hold(&mut b, *step);
            taken += u32::from(*step == Hold::Take);
            let ended = b.w.nodes[0].engine.cq_count(b.cq).unwrap();
            assert!(ended == 0 || taken == 2, "{order:?}: nothing passes the WAIT after {taken} messages");
        }
        assert_eq!(b.good(), [900, 1], "{order:?}: the WAIT is met");
    });
    assert_eq!(tried, 90);
}

/// The caller that breaks a queue pair takes the notices, and runs the engine only while queue pairs are ready: those
/// that waited for the completions of the broken one are.
#[test]
fn a_broken_queue_pair_lets_those_go_on_that_wait_for_its_completions() {
    for all in [false, true] {
        let mut b = Bench::new(8, None, None);
        let (cq, arrivals, n) = (Some(b.cq), Some(b.arrivals), &b.w.nodes[0]);
        let init = QpInit {
            pd: Some(n.pd),
            qp_type: QpType::Rc,
            send_cq: cq,
            recv_cq: arrivals,
            srq: None,
            xrcd: None,
            cap: cap(),
            sq_sig_all: false,
        };
        let ((other, number), (_, theirs)) = (b.w.qp_of(0, &init), b.w.qp(1, QpType::Rc));
        b.w.connect(0, other, World::attr(theirs, 0, 0));
        let into = [b.w.sge(0, 0x5000, 8)];
        b.w.recv(0, other, &into, 0).unwrap();
        let body = SendBody::Wait { cq: b.arrivals, count: Count::Absolute(1), step: 0 };
        post(&mut b, Opcode::Wait, &body, SendData::Sges(&[]), 900);
        b.w.settle();
        let (now, n) = (b.w.now, &mut b.w.nodes[0]);
        assert!(!n.engine.has_ready(), "it waits");
        if all {
            n.engine.fail_qps(true, now);
        } else {
            n.engine.fail_qp(number, now);
        }
        n.engine.take_notices(&mut n.notices);
        assert_eq!(n.engine.has_ready(), !all, "broken itself, it has nothing to do");
        assert!(!n.engine.has_due());
        b.w.settle();
        let status = if all { WcStatus::WrFlushErr } else { WcStatus::Success };
        assert_eq!(b.ended(), [(900, status)]);
    }
}

/// Two threads and the lock, with loom's own lock: one registers the waiter and what is behind it, the other raises the
/// count, and each executes at the end of a hold what is ready, as the release of the adapter's lock does.
#[cfg(loom)]
#[test]
fn loom_a_waiter_is_registered_while_its_count_rises() {
    use loom::sync::{Arc, Mutex};
    loom::model(|| {
        let b = two_under_way();
        let adapter = Arc::new(Mutex::new(b));
        let holds = |adapter: Arc<Mutex<Bench>>, all: [Hold; 2]| {
            for step in all {
                let mut b = adapter.lock().unwrap();
                hold(&mut b, step);
                hold(&mut b, Hold::Run);
            }
        };
        let other = Arc::clone(&adapter);
        let counts = loom::thread::spawn(move || holds(other, [Hold::Take, Hold::Take]));
        holds(Arc::clone(&adapter), [Hold::Wait, Hold::Behind]);
        counts.join().unwrap();
        assert_eq!(adapter.lock().unwrap().good(), [900, 1], "the WAIT is met");
    });
}
