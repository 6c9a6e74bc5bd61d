//! Atomics are atomic, against other queue pairs and against the owner's processor (IBTA vol. 1, 9.4.5:
//! `IBV_ATOMIC_GLOB`).
//!
//! An operation that is not atomic shows only while both sides really run at once. So each test goes on until it has
//! seen that often enough; on a machine with other work, at most for a while.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use conformance::{Fixture, Joined};
use rdma::{Data, Mr, QpType, SendOp, SendWr, Status};

use crate::pair::{End, pair, region};

/// The number of meetings to see.
const ENOUGH: u32 = 500;
const LONGEST: Duration = Duration::from_secs(5);
const WRITES: u64 = 1000;

/// Execute an atomic on a queue pair of its own; the result is the value from before.
fn run(a: &End, op: SendOp<'_>, result: &Mr) -> u64 {
    a.qp.post_send(&SendWr::new(1, op, Data::Sges(&[result.sge(0, 8)]))).expect("ibv_post_send");
    assert_eq!(a.completions(1), [(1, Status::SUCCESS)]);
    result.word(0).load(Ordering::Relaxed)
}

/// Two queue pairs and the processor add; nothing is lost.
#[test]
fn sums_are_right() {
    let fixture = Fixture::open();
    let target = region(&fixture, 8);
    let (addr, rkey) = (target.addr(), target.rkey());
    let done = AtomicBool::new(false);
    let add = || {
        let (a, _b) = pair(&fixture, QpType::Rc, &Joined::default());
        let result = region(&fixture, 8);
        let (mut sum, mut met, mut before, start) = (0, 0, 0, Instant::now());
        while met < ENOUGH && start.elapsed() < LONGEST {
            let now = run(&a, SendOp::FetchAdd { addr, rkey, add: 1 }, &result);
            sum += 1;
            // The processor has been at work in between, and was not asleep for long.
            met += u32::from((2..10_000).contains(&(now - before)));
            before = now;
        }
        sum
    };
    let sum: u64 = std::thread::scope(|scope| {
        let owner = scope.spawn(|| {
            let mut sum = 0u64;
            while !done.load(Ordering::Relaxed) {
                target.word(0).fetch_add(1, Ordering::Relaxed);
                sum += 1;
            }
            sum
        });
        let adders = [scope.spawn(add), scope.spawn(add)];
        let sum: u64 = adders.map(|adder| adder.join().expect("who adds")).iter().sum();
        done.store(true, Ordering::Relaxed);
        sum + owner.join().expect("the owner")
    });
    assert_eq!(target.word(0).load(Ordering::Relaxed), sum);
}

/// The word is a lock: 0 is free, 1 is the processor's, 2 the queue pair's. Both never have it at once.
#[test]
fn a_lock_has_one_owner() {
    let fixture = Fixture::open();
    let target = region(&fixture, 8);
    let (addr, rkey) = (target.addr(), target.rkey());
    let done = AtomicBool::new(false);
    let word = target.word(0);
    let take = |from, to| word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    std::thread::scope(|scope| {
        let owner = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if take(0, 1).is_ok() {
                    assert_eq!(take(1, 0), Ok(1), "the processor's lock was taken");
                }
            }
        });
        let (a, _b) = pair(&fixture, QpType::Rc, &Joined::default());
        let result = region(&fixture, 8);
        let (mut turns, mut mine, start) = (0, false, Instant::now());
        while turns < ENOUGH && start.elapsed() < LONGEST && !owner.is_finished() {
            let taken = run(&a, SendOp::CompareSwap { addr, rkey, compare: 0, swap: 2 }, &result) == 0;
            if taken {
                assert_eq!(take(2, 0), Ok(2), "the queue pair's lock was taken");
            }
            // The processor has been at work in between.
            turns += u32::from(taken != mine);
            mine = taken;
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// An atomic write is seen whole (A19.5).
#[test]
fn an_atomic_write_is_seen_whole() {
    let fixture = Fixture::open();
    let target = region(&fixture, 8);
    let (addr, rkey) = (target.addr(), target.rkey());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let now = target.word(0).load(Ordering::Relaxed);
                assert!(now == 0 || now == u64::MAX, "{now:#x}");
            }
        });
        let (a, _b) = pair(&fixture, QpType::Rc, &Joined::default());
        let source = region(&fixture, 8);
        for round in 0..WRITES {
            source.word(0).store(if round % 2 == 0 { u64::MAX } else { 0 }, Ordering::Relaxed);
            run(&a, SendOp::AtomicWrite { addr, rkey }, &source);
        }
        done.store(true, Ordering::Relaxed);
    });
}
