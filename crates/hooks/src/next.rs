//! The definition of a function that would be called without this library.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// One function of the next object in the search order, looked up when first called.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

/// The thread that is looking up a function, or 0. A `malloc` that is not set up yet may itself open a file while
/// `dlsym` allocates for the first time; that thread must not look up again. Thread-local storage could not be used
/// here: it allocates in a preloaded library.
static RESOLVER: AtomicI32 = AtomicI32::new(0);

/// Versions under which glibc keeps functions that new programs no longer link to (`__xstat` since 2.33): plain `dlsym`
/// does not see those. The oldest version of each architecture.
const OLDEST: [&CStr; 2] = [c"GLIBC_2.2.5", c"GLIBC_2.17"];

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Next { name, found: AtomicPtr::new(null_mut()) }
    }

    /// The function's address, or null: it is not in this libc, or the call comes while it is being looked up.
    #[inline]
    pub(crate) fn get(&self) -> *mut c_void {
        // Acquire is not needed: the address was valid before this library was.
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() { found } else { self.look_up() }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        let me = rustix::thread::gettid().as_raw_nonzero().get();
        if RESOLVER.load(Ordering::Relaxed) == me {
            return null_mut();
        }
        // A second thread that looks up meanwhile goes unguarded: by then `malloc` works.
        let guard = RESOLVER.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // SAFETY: the name is a C string; RTLD_NEXT is a valid handle.
        let mut found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        for version in OLDEST {
            if found.is_null() {
                // SAFETY: both are C strings.
                found = unsafe { libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), version.as_ptr()) };
            }
        }
        if guard {
            RESOLVER.store(0, Ordering::Relaxed);
        }
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Set errno.
pub(crate) fn set_errno(value: i32) {
    // SAFETY: the address of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = value };
}
