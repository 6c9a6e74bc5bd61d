//! A WAIT and the count that it waits for, in every order in which threads may hold the lock of the adapter.
//!
//! A waiter is registered, and a count is raised, under that lock only. So the interleavings of the threads are the
//! orders of their holds, and all of them are tried.

use verbs::{Count, Opcode, SendBody, SendData, SendFlags, SendWr};

use super::managed::Bench;

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
