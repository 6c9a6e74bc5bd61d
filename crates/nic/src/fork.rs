//! fork: the child owns nothing of its parent's adapter. It closes the sockets, so that the parent's death is still
//! seen by its peers, and forgets the adapter; its own first verb makes a new one.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::{NIC, Nic};

/// The adapter behind the pointer.
pub(crate) fn load(at: &AtomicPtr<Nic>) -> Option<&'static Nic> {
    // SAFETY: the pointer is null or came from Box::leak in `Nic::get`; adapters are never freed.
    unsafe { at.load(Ordering::Acquire).as_ref() }
}

/// Runs in the child, between fork and whatever the program does next: only loads, stores, close() and mappings.
extern "C" fn in_child() {
    if let Some(nic) = load(&NIC) {
        nic.alive.store(false, Ordering::Relaxed);
        NIC.store(std::ptr::null_mut(), Ordering::Release);
        if let Some(file) = nic.moved.file() {
            // SAFETY: the child inherited it, and has closed nothing yet; its parent's copy of it was open at the fork.
            nic.moved.part(unsafe { BorrowedFd::borrow_raw(file) });
        }
        nic.fds.close_all();
    }
}

/// Asks to be called in forked children. Once in a process's life: the children inherit it.
pub(crate) fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: `in_child` is async-signal-safe: atomics, close() of descriptors that the child inherited and
        // that nobody in the child uses, because `alive` is false and `NIC` is null, and mappings.
        unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
        }
    });
}
