//! What the C libraries above verbs share (libexs.so, libhyperclient.so, libsoftrnic-ddp.so): errno, the child of a
//! fork, memory of the program, threads without signals.

pub mod failure;

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;
use verbs::Errno;

/// This process was forked from one that has used the library.
static CHILD: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    CHILD.store(true, Ordering::Relaxed);
}

/// Remember every fork(2) from now on.
pub fn watch_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: the function stores a number, which may be done between fork and exec.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}

/// An errno as an error.
///
/// # Errors
/// Always.
pub fn refuse<T>(errno: c_int) -> Result<T, Errno> {
    Err(Errno(errno))
}

/// Make a function's result: -1 and errno for an error. In a child of fork(2) the parent's objects mean nothing:
/// EBADF. A call that succeeds leaves errno as it was.
pub fn call<T: TryFrom<i8>>(body: impl FnOnce() -> Result<T, Errno>) -> T {
    // The types of these results are signed, and have -1.
    call_or(|| T::try_from(-1).unwrap_or_else(|_| std::process::abort()), body)
}

/// Make a function's result as [`call`] does; `failed` gives what stands for an error.
pub fn call_or<T>(failed: impl FnOnce() -> T, body: impl FnOnce() -> Result<T, Errno>) -> T {
    // SAFETY: the address of this thread's errno.
    let errno = unsafe { &mut *libc::__errno_location() };
    let before = *errno;
    let result = if CHILD.load(Ordering::Relaxed) { refuse(libc::EBADF) } else { body() };
    match result {
        Ok(value) => {
            *errno = before;
            value
        }
        Err(Errno(number)) => {
            let value = failed();
            *errno = number;
            value
        }
    }
}

/// Copy a structure of the program.
///
/// # Errors
/// EFAULT: the pointer is null.
///
/// # Safety
/// `at` is null or points to a `T`.
pub unsafe fn read<T: Copy>(at: *const T) -> Result<T, Errno> {
    if at.is_null() {
        return refuse(libc::EFAULT);
    }
    // SAFETY: the caller's promise; it may be unaligned.
    Ok(unsafe { at.read_unaligned() })
}

/// Copy an array of the program, of at most `most` entries.
///
/// # Errors
/// EINVAL: a number that is negative or more than `most`. EFAULT: the pointer is null.
///
/// # Safety
/// `at` is null or points to `count` values.
pub unsafe fn read_array<T: Copy>(at: *const T, count: c_int, most: usize) -> Result<Vec<T>, Errno> {
    let count = usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?;
    if count > most {
        return refuse(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    (0..count).map(|index| unsafe { read(at.wrapping_add(index)) }).collect()
}

/// Run a function that starts threads: they inherit that all signals are blocked. Those of the program go to the
/// program's threads, one of which may wait in a call of the library.
pub fn without_signals<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: sets of signals on the stack, filled before they are used.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = body();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signals of these that this thread blocks.
    fn blocked(signals: &[c_int]) -> Vec<c_int> {
        // SAFETY: a set of signals on the stack, which the call fills; it changes nothing.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut set);
            signals.iter().copied().filter(|signal| libc::sigismember(&raw const set, *signal) == 1).collect()
        }
    }

    /// Faults, too: a program may have blocked them for a signalfd(2).
    #[test]
    fn a_thread_blocks_all_signals() {
        let signals = [libc::SIGSEGV, libc::SIGBUS, libc::SIGTERM, libc::SIGCHLD, libc::SIGUSR1];
        let before = blocked(&signals);
        let thread = without_signals(|| std::thread::spawn(move || blocked(&signals)));
        assert_eq!(thread.join().expect("a thread"), signals);
        assert_eq!(blocked(&signals), before);
    }
}
