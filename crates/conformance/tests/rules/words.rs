//! Atomics are atomic, against other queue pairs and against the owner's processor (IBTA vol. 1, 9.4.5: `IBV_ATOMIC_GLOB`).

use std::sync::atomic::{AtomicBool, Ordering};

use conformance::{Bed, Joint};
use rdma::{Data, Mr, QpType, SendOp, SendWr, Status};

use crate::pair::{End, pair, region};

const ADDS: u64 = 1000;
const SWAPS: u64 = 100;

/// Executes an atomic on a queue pair of its own; gives what was there before.
fn run(a: &End, op: SendOp<'_>, result: &Mr) -> u64 {
    a.qp.post_send(&SendWr::new(1, op, Data::Sges(&[result.sge(0, 8)]))).expect("ibv_post_send");
    assert_eq!(a.completions(1), [(1, Status::SUCCESS)]);
    result.word(0).load(Ordering::Relaxed)
}

#[test]
fn nothing_is_lost_between_adapters_and_processor() {
    let bed = Bed::open();
    let target = region(&bed, 8);
    let (addr, rkey) = (target.addr(), target.rkey());
    let added = AtomicBool::new(false);
    let own = std::thread::scope(|scope| {
        let owner = scope.spawn(|| {
            let mut count = 0u64;
            while !added.load(Ordering::Relaxed) {
                target.word(0).fetch_add(1, Ordering::Relaxed);
                count += 1;
            }
            count
        });
        let adder = scope.spawn(|| {
            let (a, _b) = pair(&bed, QpType::Rc, &Joint::default());
            let result = region(&bed, 8);
            for _ in 0..ADDS {
                run(&a, SendOp::FetchAdd { addr, rkey, add: 1 }, &result);
            }
        });
        // Succeeds rarely before the others have ended, but must not destroy what they do.
        let swapper = scope.spawn(|| {
            let (a, _b) = pair(&bed, QpType::Rc, &Joint::default());
            let result = region(&bed, 8);
            let (mut seen, mut swaps) = (0u64, 0);
            while swaps < SWAPS {
                let before = run(&a, SendOp::CompareSwap { addr, rkey, compare: seen, swap: seen + 1 }, &result);
                swaps += u64::from(before == seen);
                seen = if before == seen { seen + 1 } else { before };
            }
        });
        adder.join().expect("who adds");
        added.store(true, Ordering::Relaxed);
        swapper.join().expect("who swaps");
        owner.join().expect("the owner")
    });
    assert_eq!(target.word(0).load(Ordering::Relaxed), own + ADDS + SWAPS);
}

/// An atomic write is seen whole (A19.5).
#[test]
fn an_atomic_write_is_seen_whole() {
    let bed = Bed::open();
    let target = region(&bed, 8);
    let (addr, rkey) = (target.addr(), target.rkey());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let now = target.word(0).load(Ordering::Relaxed);
                assert!(now == 0 || now == u64::MAX, "{now:#x}");
            }
        });
        let (a, _b) = pair(&bed, QpType::Rc, &Joint::default());
        let source = region(&bed, 8);
        for round in 0..ADDS {
            source.word(0).store(if round % 2 == 0 { u64::MAX } else { 0 }, Ordering::Relaxed);
            run(&a, SendOp::AtomicWrite { addr, rkey }, &source);
        }
        done.store(true, Ordering::Relaxed);
    });
}
