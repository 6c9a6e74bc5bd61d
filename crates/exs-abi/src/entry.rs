//! What every function does: errno, the child of a fork, memory of the program.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;
use rdma::Errno;

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
pub fn refuse<T>(errno: c_int) -> Result<T, Errno> {
    Err(Errno(errno))
}

/// Make a function's result: -1 and errno for an error. In a child of fork(2) the parent's sockets, queues and memory
/// mean nothing: EBADF. A call that succeeds leaves errno as it was.
pub fn call<T: TryFrom<i8>>(body: impl FnOnce() -> Result<T, Errno>) -> T {
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
            *errno = number;
            // The types of results are signed, and have it.
            T::try_from(-1).unwrap_or_else(|_| std::process::abort())
        }
    }
}

/// Copy a structure of the program.
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

/// The time of a `struct timeval`; `None` for a null pointer. EINVAL: it is negative or not normal.
///
/// # Safety
/// `at` is null or points to the structure.
pub unsafe fn duration(at: *const libc::timeval) -> Result<Option<std::time::Duration>, Errno> {
    if at.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let time = unsafe { read(at)? };
    let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno(libc::EINVAL))?;
    match u32::try_from(time.tv_usec) {
        Ok(micros @ 0..1_000_000) => Ok(Some(std::time::Duration::new(seconds, micros * 1000))),
        _ => refuse(libc::EINVAL),
    }
}
