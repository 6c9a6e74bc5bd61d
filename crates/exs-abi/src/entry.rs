//! What every function does: [`cabi`], and times of the program.

pub use cabi::{call, read, read_array, refuse, watch_forks, without_signals};
use rdma::Errno;

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
