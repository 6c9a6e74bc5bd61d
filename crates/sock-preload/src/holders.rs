//! How many processes have a connection that has no shared memory yet, where fork(2) has given it to several.
//!
//! Two processes that read one socket know nothing of each other's calls, so such a connection moves only when one of
//! them has it alone. The count lies in a page that all of them share. It goes up before each fork, and down only where
//! this library sees a process close its descriptor. A descriptor that goes in another way (exec, exit, a close that
//! passes this library by), or is copied, leaves the count too high: then the connection stays with TCP.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use crate::table::{self, LIMIT};
use crate::work::locked;

const PAGE: usize = 4096;

/// The counts, by descriptor. Null: there was no fork.
static PAGES: [AtomicPtr<AtomicU32>; LIMIT] = [const { AtomicPtr::new(core::ptr::null_mut()) }; LIMIT];
/// Held while a page is used: another thread could unmap it.
static LOCK: AtomicU32 = AtomicU32::new(0);

fn page(fd: i32) -> Option<&'static AtomicPtr<AtomicU32>> {
    usize::try_from(fd).ok().and_then(|fd| PAGES.get(fd))
}

fn with<R>(work: impl FnOnce() -> R) -> R {
    locked(&LOCK, || {}, work)
}

/// Whether a fork has given the connection to another process.
pub fn is_shared(fd: i32) -> bool {
    page(fd).is_some_and(|page| !page.load(Ordering::Acquire).is_null())
}

/// Before fork(2): the child will have the connection, too. False: it cannot be counted.
pub fn share(fd: i32) -> bool {
    let Some(page) = page(fd) else { return false };
    with(|| {
        if page.load(Ordering::Acquire).is_null() {
            let (all, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
            // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
            let Ok(new) = (unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), PAGE, all, shared) }) else {
                return false;
            };
            page.store(new.cast(), Ordering::Release);
            count(page).inspect(|count| count.store(1, Ordering::SeqCst));
        }
        count(page).is_some_and(|count| count.fetch_add(1, Ordering::SeqCst) < u32::MAX / 2)
    })
}

/// Under the lock.
fn count(page: &AtomicPtr<AtomicU32>) -> Option<&AtomicU32> {
    // SAFETY: null, or a page of zeroes and of this module's counts, which stays mapped while the lock is held.
    unsafe { page.load(Ordering::Acquire).as_ref() }
}

/// Whether this process alone has the connection.
pub fn is_alone(fd: i32) -> bool {
    page(fd).is_none_or(|page| with(|| count(page).is_none_or(|count| count.load(Ordering::SeqCst) == 1)))
}

/// The descriptor is about to be closed, or is another file's by now. `closes`: this is known of every copy of it that
/// this process has, and no thread is inside the kernel with one.
pub fn leave(fd: i32, closes: bool) {
    let Some(page) = page(fd).filter(|_| is_shared(fd)) else { return };
    with(|| {
        if closes
            && table::nobody_inside(fd)
            && let Some(count) = count(page)
        {
            count.fetch_sub(1, Ordering::SeqCst);
        }
        let old = page.swap(core::ptr::null_mut(), Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: the page that `share` has mapped, or the parent's; nobody uses it without the lock.
            let _ = unsafe { rustix::mm::munmap(old.cast(), PAGE) };
        }
    });
}

/// In the child of fork(2): the lock's holder has not come along.
pub fn in_child() {
    LOCK.store(0, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_alone_again_once_the_others_have_closed_it() {
        let fd = LIMIT as i32 - 1;
        assert!(is_alone(fd) && !is_shared(fd));
        assert!(share(fd) && share(fd));
        assert!(is_shared(fd) && !is_alone(fd));
        let count = |less| {
            with(|| count(page(fd).unwrap()).unwrap().fetch_sub(less, Ordering::SeqCst));
        };
        // As two children do.
        count(1);
        assert!(!is_alone(fd));
        count(1);
        assert!(is_alone(fd));
        leave(fd, true);
        assert!(!is_shared(fd));
    }
}
