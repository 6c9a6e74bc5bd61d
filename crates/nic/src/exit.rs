//! exit(3): what a fault has made late is still under way, and a network would deliver it though its sender is gone.
#![allow(unsafe_code)]

use std::sync::Once;
use std::time::Duration;

use crate::core::Guard;
use crate::progress::LOCK_PATIENCE;
use crate::{NIC, faults, fork};

/// How long to wait for room on a link that is full, in nanoseconds: its peer may be stopped.
const LONGEST: u64 = 1_000_000_000;
/// How often to try.
const RETRY: Duration = Duration::from_micros(100);

/// On the thread that ends the process; the others still run. A forked child has no adapter, and so nothing to do.
extern "C" fn at_exit() {
    let Some(nic) = fork::load(&NIC).filter(|nic| nic.alive()) else { return };
    let mut until = None;
    // Not for ever: a signal handler may end the process while its thread holds the lock.
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

/// Asks to be called when the process ends, unless it is killed or calls _exit(2). Once in its life: forked children
/// inherit it.
pub(crate) fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: a function that may be called at any time. Were the library unloaded, it would be called before.
        unsafe {
            libc::atexit(at_exit);
        }
    });
}
