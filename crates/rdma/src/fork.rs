//! The child of a fork(2), to which nothing of its parent's device belongs.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// This process was forked from one that has called [`watch_forks`].
static CHILD: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    CHILD.store(true, Ordering::Relaxed);
}

/// Remember every fork(2) from now on, for [`is_child`].
pub fn watch_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: the function stores a number, which may be done between fork and exec (pthread_atfork(3)).
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}

/// True in a process that was forked after [`watch_forks`]. Objects that were made before are the parent's, and their
/// verbs are refused. The check is one load, without a system call.
pub fn is_child() -> bool {
    CHILD.load(Ordering::Relaxed)
}
