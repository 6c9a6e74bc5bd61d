//! The biased mutex under loom. Here a thread has earned the bias by calling `lock` once, so that all have it by turns.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicUsize};
use loom::thread;

use super::os::{Bell, Inner};
use super::{NOBODY, RawBiased, Until};

/// Threads.
const A: usize = 16;
const B: usize = 32;
const C: usize = 48;

/// The mutex, and a number that loom reports every race on.
struct Shared {
    mutex: RawBiased,
    number: UnsafeCell<u32>,
}

impl Shared {
    fn new() -> Arc<Self> {
        let seqs = std::array::from_fn(|_| AtomicU32::new(0));
        let mutex = RawBiased::assemble(AtomicUsize::new(NOBODY), seqs, Inner::default(), Bell::default());
        Arc::new(Shared { mutex, number: UnsafeCell::new(0) })
    }

    /// With the mutex held.
    fn inside(&self) {
        // SAFETY: what the model is to show: loom reports a race.
        self.number.with_mut(|number| unsafe { *number += 1 });
        // SAFETY: taken by the caller.
        unsafe { self.mutex.release() };
    }

    fn lock(&self, me: usize, times: u32) {
        for _ in 0..times {
            self.mutex.lock_as(me);
            self.inside();
        }
    }

    fn try_lock(&self, me: usize) -> u32 {
        let held = self.mutex.try_lock_as(me, Until::Now);
        if held {
            self.inside();
        }
        held.into()
    }

    fn number(&self) -> u32 {
        self.mutex.lock_as(1 << 10);
        // SAFETY: held.
        let number = self.number.with(|number| unsafe { *number });
        // SAFETY: taken above.
        unsafe { self.mutex.release() };
        number
    }
}

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    if builder.preemption_bound.is_none() {
        builder.preemption_bound = Some(preemptions);
    }
    builder.max_branches = 100_000;
    builder.check(model);
}

fn spawn(shared: &Arc<Shared>, run: impl FnOnce(&Shared) + 'static) -> thread::JoinHandle<()> {
    let shared = shared.clone();
    thread::spawn(move || run(&shared))
}

#[test]
fn loom_an_owner_and_another_exclude_each_other() {
    explore(5, || {
        let shared = Shared::new();
        let owner = spawn(&shared, |shared| shared.lock(A, 3));
        shared.lock(B, 2);
        owner.join().expect("no panic");
        assert_eq!(shared.number(), 5);
    });
}

/// One of them may stand still between its first look and its odd number until another one is the owner.
#[test]
fn loom_three_that_are_owners_by_turns_exclude_each_other() {
    explore(3, || {
        let shared = Shared::new();
        shared.lock(A, 1);
        let others = [spawn(&shared, |shared| shared.lock(A, 1)), spawn(&shared, |shared| shared.lock(B, 2))];
        shared.lock(C, 1);
        for other in others {
            other.join().expect("no panic");
        }
        assert_eq!(shared.number(), 5);
    });
}

#[test]
fn loom_a_revocation_outlives_who_gives_up() {
    explore(3, || {
        let shared = Shared::new();
        shared.lock(A, 1);
        let owner = spawn(&shared, |shared| shared.lock(A, 1));
        let third = spawn(&shared, |shared| shared.lock(B, 1));
        let got = shared.try_lock(C);
        owner.join().expect("no panic");
        third.join().expect("no panic");
        assert_eq!(shared.number(), 3 + got);
    });
}

/// The revocation comes while the owner holds the mutex. A thread that gives up must leave it revoked, and not held.
#[test]
fn loom_who_gives_up_in_the_midst_takes_nothing() {
    explore(5, || {
        let shared = Shared::new();
        shared.lock(A, 1);
        shared.mutex.lock_as(A);
        let other = spawn(&shared, |shared| {
            assert_eq!(shared.try_lock(B), 0);
            let soon = Until::At(std::time::Instant::now());
            assert!(!shared.mutex.try_lock_as(B, soon));
            assert_eq!(shared.mutex.leans_to(), None);
            assert_eq!(shared.try_lock(B), 0);
        });
        other.join().expect("no panic");
        let third = spawn(&shared, |shared| shared.lock(C, 1));
        shared.inside();
        third.join().expect("no panic");
        assert_eq!(shared.number(), 3);
    });
}

/// The next thread has the pointer of one that has ended, and so its bias.
#[test]
fn loom_a_thread_may_come_in_the_place_of_another() {
    explore(5, || {
        let shared = Shared::new();
        spawn(&shared, |shared| shared.lock(A, 2)).join().expect("no panic");
        let heir = spawn(&shared, |shared| shared.lock(A, 2));
        shared.lock(B, 1);
        heir.join().expect("no panic");
        assert_eq!(shared.number(), 5);
    });
}
