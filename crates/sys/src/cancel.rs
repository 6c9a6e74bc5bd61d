//! Protection of this library against the cancellation of threads (pthread_cancel(3)).
//!
//! A cancelled thread leaves at a cancellation point (pthreads(7)), by unwinding that must not cross frames of Rust,
//! and without running the code that would release locks. So the library reaches no such point, in two ways:
//!
//! * Cancellation is off ([`Uncancelled`]) in every call that may open files, resolve names, or otherwise use functions
//!   of the C library that make their system calls themselves.
//! * Posting and polling do not pay for that. The finished library's own calls of the C library's cancellation points
//!   go to plain system calls instead (`abi/src/syscalls.rs`).

use libc::c_int;

/// `PTHREAD_CANCEL_DISABLE`.
const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// A guard while which the thread that made it is not cancelled. It belongs on the stack: it must be dropped by that
/// thread, and in the reverse order of making.
pub struct Uncancelled {
    before: c_int,
    /// The guard belongs to one thread.
    _here: core::marker::PhantomData<*const ()>,
}

impl Uncancelled {
    /// Turn cancellation off.
    #[must_use]
    #[allow(clippy::new_without_default)] // its point is when it is made
    pub fn new() -> Self {
        let mut before = 0;
        // SAFETY: a state that exists, and a variable to fill in.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Uncancelled { before, _here: core::marker::PhantomData }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut now = 0;
        // SAFETY: the state as it was, and a variable to fill in. A cancellation that has come meanwhile waits for the
        // next cancellation point; a thread whose type is asynchronous may not call this library (pthreads(7)).
        unsafe { pthread_setcancelstate(self.before, &raw mut now) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> c_int {
        let (mut before, mut now) = (0, 0);
        // SAFETY: as in the functions under test.
        unsafe {
            pthread_setcancelstate(DISABLE, &raw mut before);
            pthread_setcancelstate(before, &raw mut now);
        }
        before
    }

    #[test]
    fn the_state_comes_back_from_within_another() {
        let at_first = state();
        let outer = Uncancelled::new();
        drop(Uncancelled::new());
        assert_eq!(state(), DISABLE);
        drop(outer);
        assert_eq!(state(), at_first);
        assert_ne!(at_first, DISABLE);
    }
}
