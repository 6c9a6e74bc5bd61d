//! A busy machine: two runnable threads per core in the background, so that code shows that spins, or relies on getting
//! a core soon.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crate::report::Suite;
use crate::{Options, interop, rust};

/// Run the suite: a sample of the others.
pub fn busy(suite: &mut Suite, options: &Options) {
    let _busy = (!options.busy).then(Busy::start);
    let options = Options { busy: true, quick: true, filter: options.filter.clone(), ..Options::default() };
    interop::busy_sample(suite, &options);
    rust::test_load(suite, &options, "test-load", interop::SINGLE_COPY_ALWAYS);
}

/// Runnable threads for each core.
const PER_CORE: usize = 2;

/// Threads that only run, until this is dropped.
#[derive(Debug)]
pub struct Busy {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Busy {
    pub fn start() -> Self {
        let cores = thread::available_parallelism().map_or(2, usize::from);
        let over = Arc::new(AtomicBool::new(false));
        let spin = |over: Arc<AtomicBool>| {
            while !over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        let start = |_| {
            thread::spawn({
                let over = Arc::clone(&over);
                move || spin(over)
            })
        };
        let threads: Vec<JoinHandle<()>> = (0..PER_CORE * cores).map(start).collect();
        println!("{} threads keep {cores} cores busy", threads.len());
        Self { over, threads }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
