//! fork(2): the child owns nothing of its parent's adapter. It closes the sockets, so that the peers still see the
//! parent's death, and forgets the adapter. The child's own first verb makes a new one.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::{NIC, Nic};

/// How long fork waits for what must not be cut in two by it: a move of memory, or what a process makes once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// The thread that makes what a process makes once, or that forks; 0: none. A child would find half made what another
/// thread makes, and wait for ever for that thread. This is no mutex with a queue: in the child, that queue would have
/// the parent's threads in it.
static MAKING: AtomicUsize = AtomicUsize::new(0);

/// Make what a process makes once: no thread forks meanwhile. Not to be called from `make`.
///
/// A thread that waited for 3 s (`PATIENCE`) makes it beside the other one: that may wait for a lock of this thread,
/// such as the loader's, or one that a program's own handlers of fork(2) take.
pub fn whole<T>(make: impl FnOnce() -> T) -> T {
    watch();
    let _making = start_making().then(|| Making);
    make()
}

/// How long a thread sleeps that finds another one in [`MAKING`]: it happens to a few threads, once.
const MOMENT: Duration = Duration::from_micros(50);

/// Enter this thread into [`MAKING`]; false if another one stays there, or if this one is there.
fn start_making() -> bool {
    let (me, until) = (DEPTH.with(|depth| std::ptr::from_ref(depth).addr()), Instant::now() + PATIENCE);
    loop {
        match MAKING.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(other) if other == me || Instant::now() > until => return false,
            Err(_) => std::thread::sleep(MOMENT),
        }
    }
}

/// True if this thread is in [`MAKING`].
fn is_making() -> bool {
    DEPTH.with(|depth| MAKING.load(Ordering::Relaxed) == std::ptr::from_ref(depth).addr())
}

/// Clears [`MAKING`] at its end, also if what was to be made panics.
struct Making;

impl Drop for Making {
    fn drop(&mut self) {
        // Only this thread's: a handler of a signal that forked in the child has let another thread of it enter.
        let me = DEPTH.with(|depth| std::ptr::from_ref(depth).addr());
        let _ = MAKING.compare_exchange(me, 0, Ordering::Release, Ordering::Relaxed);
    }
}

/// The adapter behind the pointer.
pub(crate) fn load(at: &AtomicPtr<Nic>) -> Option<&'static Nic> {
    // SAFETY: the pointer is null or came from Box::leak in `Nic::get`; adapters are never freed.
    unsafe { at.load(Ordering::Acquire).as_ref() }
}

/// Detach the child, between fork(2) and whatever the program does next: only loads, stores, close(2) and mappings.
extern "C" fn in_child() {
    // The thread that made something, if there was one, does not exist here.
    DEPTH.with(|depth| depth.set(0));
    MAKING.store(0, Ordering::Release);
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

/// Stop in the parent, before fork(2), what happens before or after it: the making of the adapter, and moves to and
/// from shared memory. A signal handler that has interrupted either forks without.
extern "C" fn before() {
    DEPTH.with(|depth| {
        if !is_making() {
            depth.set(u32::from(start_making()));
        } else if depth.get() > 0 {
            // A signal handler has interrupted a fork of this thread, and forks.
            depth.set(depth.get() + 1);
        }
    });
    let held = load(&NIC).is_some_and(|nic| nic.moved.hold());
    HELD.with(|flag| flag.set(held));
}

/// Go on in the parent behind fork(2).
extern "C" fn in_parent() {
    DEPTH.with(|depth| {
        let forks = depth.get();
        depth.set(forks.saturating_sub(1));
        if forks == 1 {
            drop(Making);
        }
    });
    if HELD.with(|flag| flag.replace(false))
        && let Some(nic) = load(&NIC)
    {
        // SAFETY: this thread took it in `before`, and has forgotten its guard.
        unsafe { nic.moved.held().force_unlock() };
    }
}

std::thread_local! {
    /// The forks under way, one in another, for which this thread is in [`MAKING`]. Its address stands for the thread.
    static DEPTH: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    /// True while this thread holds the lock on moves over fork(2).
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

/// Register the handlers of fork(2), once in a process's life: the children inherit them. A library that is loaded
/// calls it then, because a child that is forked in the middle of this very call waits for ever at its own.
pub fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        // SAFETY: `in_child` is async-signal-safe. It uses atomics, mappings, and close() of descriptors that the child
        // inherited and that nothing in the child uses, because `alive` is false and `NIC` is null.
        unsafe {
            libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A signal's handler may fork while its thread forks, or while it makes the adapter. One test, for one flag.
    #[test]
    fn a_fork_within_a_fork_or_within_the_making_leaves_the_flag_to_that() {
        before();
        before();
        in_parent();
        assert!(is_making(), "the outer fork is still under way");
        in_parent();
        assert!(!is_making());
        whole(|| {
            before();
            in_parent();
            assert!(is_making(), "the making is still under way");
        });
        assert!(!is_making());
        assert_eq!(MAKING.load(Ordering::Relaxed), 0);
        whole(|| {
            whole(|| ());
            assert!(is_making(), "who was refused the flag has cleared it");
        });
        before();
        before();
        in_child();
        // The child returns from the handler into its parent's outer fork.
        in_parent();
        assert!(start_making(), "another thread of the child can make its adapter");
        drop(Making);
    }
}
