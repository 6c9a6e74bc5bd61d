//! membarrier(2) is forbidden, as by a sandbox, when a mutex leans already. Alone in its process: no mutex there leans
//! again.
#![cfg(not(any(loom, miri)))]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memory::biased::{Mutex, permit};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

/// From here on, for this thread.
fn forbid() {
    let rules = BTreeMap::from([(libc::SYS_membarrier, Vec::new())]);
    let arch = std::env::consts::ARCH.try_into().expect("a known processor");
    let answer = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, answer, arch).expect("a filter");
    let program: BpfProgram = filter.try_into().expect("a filter");
    seccompiler::apply_filter(&program).expect("seccomp(2)");
}

#[test]
fn a_mutex_that_leans_can_be_taken_without_membarrier() {
    permit();
    let mutex = Mutex::new((0u64, 0u64));
    let over = AtomicBool::new(false);
    let count = || {
        let mut pair = mutex.lock();
        assert_eq!(pair.0, pair.1);
        pair.0 += 1;
        std::hint::black_box(&mut *pair);
        pair.1 += 1;
    };
    thread::scope(|scope| {
        for _ in 0..1000 {
            count();
        }
        let other = scope.spawn(|| {
            forbid();
            let began = Instant::now();
            count();
            let waited = began.elapsed();
            assert!(
                waited >= Duration::from_millis(10),
                "it did not lean, or the barrier was not forbidden: {waited:?}"
            );
            for _ in 0..1000 {
                count();
            }
            over.store(true, Ordering::Relaxed);
        });
        let mut n = 1000;
        while !over.load(Ordering::Relaxed) && !other.is_finished() {
            count();
            n += 1;
        }
        other.join().expect("no panic");
        let (one, two) = *mutex.lock();
        assert_eq!((one, two), (n + 1001, n + 1001));
    });
}
