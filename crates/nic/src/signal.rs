//! SIGUSR1: a report on stderr, where the signal would otherwise have ended the process.
//!
//! The handler is installed when the device is opened, and only where the disposition is SIG_DFL, so only where SIGUSR1
//! was deadly. A program that has a handler, or ignores the signal, keeps what it has. A program that installs its own
//! handler later replaces this one. A program that blocks the signal and takes it with sigwait(3) or signalfd(2)
//! notices nothing, for a blocked signal calls no handler. When the device is closed the disposition is SIG_DFL again,
//! unless it has been changed since. A forked child, which owns no device, dies of the signal as before. Programs that
//! are executed get SIG_DFL (execve(2)). `SOFTRNIC_SIGNAL=0` leaves the signal alone.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{NIC, fork};

/// True if the handler is installed.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// The handler. Async-signal-safe: an atomic load, a store, a write; or sigaction and raise.
extern "C" fn handler(signal: libc::c_int) {
    // SAFETY: the C library gives this thread's own variable, which the interrupted code may be about to read.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: valid for this thread.
    let before = unsafe { *errno };
    match fork::load(&NIC).filter(|nic| nic.alive()) {
        Some(nic) => nic.ask_to_print(),
        None => {
            // A forked child: when this handler returns, the signal has the effect that it has without the library.
            set(libc::SIG_DFL, 0);
            // SAFETY: async-signal-safe; the signal is blocked while its handler runs, so it comes afterwards.
            unsafe { libc::raise(signal) };
        }
    }
    // SAFETY: as above.
    unsafe { *errno = before };
}

fn set(handler: libc::sighandler_t, flags: libc::c_int) {
    // SAFETY: zeroed is an empty mask and no flags; sigaction reads the structure.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
}

/// The present disposition of SIGUSR1.
fn current() -> libc::sighandler_t {
    // SAFETY: sigaction fills the structure and changes nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGUSR1, std::ptr::null(), &raw mut action);
        action.sa_sigaction
    }
}

fn ours() -> libc::sighandler_t {
    handler as extern "C" fn(libc::c_int) as libc::sighandler_t
}

/// Install the handler if the signal would end the process.
pub(crate) fn offer() {
    if current() != libc::SIG_DFL {
        return;
    }
    // Calls are restarted: the signal interrupts a program no more than need be.
    set(ours(), libc::SA_RESTART | libc::SA_ONSTACK);
    INSTALLED.store(true, Ordering::Relaxed);
}

/// Restore the disposition from before; the device is closed.
pub(crate) fn give_up() {
    if INSTALLED.swap(false, Ordering::Relaxed) && current() == ours() {
        set(libc::SIG_DFL, 0);
    }
}
