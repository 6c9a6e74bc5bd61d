//! exit(3): packets that a fault has delayed are still under way, and a network would deliver them though their sender
//! is gone.
#![allow(unsafe_code)]

use std::sync::Once;
use std::time::Duration;

use crate::core::Guard;
use crate::progress::LOCK_PATIENCE;
use crate::{NIC, faults, fork};

/// How long to wait for room on a full link, in nanoseconds: its peer may be stopped.
const LONGEST: u64 = 1_000_000_000;
/// How long to sleep between two attempts.
const RETRY: Duration = Duration::from_micros(100);

/// Deliver delayed packets, on the thread that ends the process; the other threads still run. A forked child has no
/// adapter, and so nothing to do.
extern "C" fn at_exit() {
    let Some(nic) = fork::load(&NIC).filter(|nic| nic.alive()) else { return };
    let mut until = None;
    // The wait has a limit: a signal handler may end the process while its thread holds the lock.
    while let Some(core) = nic.core.try_lock_for(LOCK_PATIENCE) {
        let mut core = Guard::new(nic, core);
        let (due, now) = (core.engine.env_mut().flush(), core.read_time());
        if due.is_none_or(|due| *until.get_or_insert(due.min(now + LONGEST)) <= now) {
            core.engine.env().sum_up();
            faults::sum_up();
            return;
        }
        drop(core);
        std::thread::sleep(RETRY);
    }
}

/// Register `at_exit`, once in the life of a process: forked children inherit it. The system does not call it when the
/// process is killed or calls _exit(2).
pub(crate) fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: a function that may be called at any time. An unload of the library would call it before.
        unsafe {
            libc::atexit(at_exit);
        }
    });
}
