//! fork(2): the child owns nothing of its parent's adapter. It closes the sockets, so that the peers still see the
//! parent's death, and forgets the adapter. The child's own first verb makes a new one.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::{NIC, Nic};

/// The adapter behind the pointer.
pub(crate) fn load(at: &AtomicPtr<Nic>) -> Option<&'static Nic> {
    // SAFETY: the pointer is null or came from Box::leak in `Nic::get`; adapters are never freed.
    unsafe { at.load(Ordering::Acquire).as_ref() }
}

/// Detach the child, between fork(2) and whatever the program does next: only loads, stores, close(2) and mappings.
extern "C" fn in_child() {
    if let Some(nic) = load(&NIC) {
        nic.alive.store(false, Ordering::Relaxed);
        NIC.store(std::ptr::null_mut(), Ordering::Release);
        if let Some(file) = nic.moved.file() {
            // SAFETY: the child inherited it, and has closed nothing yet; its parent's copy of it was open at the fork.
            nic.moved.part(unsafe { BorrowedFd::borrow_raw(file) });
        }
        memory::deferred_close::forget();
        crate::faults::begin_anew();
        nic.fds.close_all();
    }
}

/// Stop moves to and from shared memory, in the parent before fork(2): they happen before or after it.
extern "C" fn before() {
    let held = load(&NIC).is_some_and(|nic| nic.moved.hold());
    HELD.with(|flag| flag.set(held));
}

/// Allow moves again, in the parent behind fork(2).
extern "C" fn in_parent() {
    if HELD.with(|flag| flag.replace(false))
        && let Some(nic) = load(&NIC)
    {
        // SAFETY: this thread took it in `before`, and has forgotten its guard.
        unsafe { nic.moved.held().force_unlock() };
    }
}

std::thread_local! {
    /// True while this thread holds the lock over fork(2).
    static HELD: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Log that a child shares memory with its parent that should be its own. Async-signal-safe.
pub(crate) fn complain() {
    let text =
        b"softrnic: fork: registered memory is shared with the parent, no copy could be made (SOFTRNIC_MIGRATE)\n";
    // SAFETY: write(2) of a string that lives for ever.
    let _ = unsafe { libc::syscall(libc::SYS_write, 2, text.as_ptr(), text.len()) };
}

/// A number that parent and children share.
pub(crate) struct Parted(NonNull<AtomicU32>);

// SAFETY: it points to memory that lives for ever and is reached by atomics only.
unsafe impl Send for Parted {}
// SAFETY: as above.
unsafe impl Sync for Parted {}

impl Parted {
    /// A counter at 0; `None`: no memory. It is never unmapped: an adapter lives as long as its process.
    pub fn new() -> Option<Self> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, prot, flags, -1, 0) };
        if page == libc::MAP_FAILED { None } else { NonNull::new(page.cast()).map(Parted) }
    }

    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page of `new`, zeroed and never unmapped; all access to it is atomic.
        unsafe { self.0.as_ref() }
    }

    /// The number of calls of [`Parted::add`], in all processes.
    pub fn count(&self) -> u32 {
        self.word().load(Ordering::Acquire)
    }

    /// Count one more.
    pub fn add(&self) {
        self.word().fetch_add(1, Ordering::Release);
    }
}

/// Register the handlers of fork(2), once in a process's life: the children inherit them.
pub(crate) fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: `in_child` is async-signal-safe. It uses atomics, mappings, and close() of descriptors that the child
        // inherited and that nothing in the child uses, because `alive` is false and `NIC` is null.
        unsafe {
            libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
        }
    });
}
