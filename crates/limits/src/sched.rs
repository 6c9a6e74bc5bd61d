//! How the scheduler treats the calling thread, and the threads that it starts later.

use std::io;

/// `struct sched_attr` (sched_setattr(2)), as of its first version.
#[repr(C)]
struct Attr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const _: () = assert!(size_of::<Attr>() == 48);

const ZERO: Attr = Attr {
    size: size_of::<Attr>() as u32,
    policy: libc::SCHED_OTHER as u32,
    flags: 0,
    nice: 0,
    priority: 0,
    runtime: 0,
    deadline: 0,
    period: 0,
};

fn set(attr: &Attr) -> io::Result<()> {
    // SAFETY: the call reads as many bytes as `size` says, which is the struct's, and changes no memory of the process.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, std::ptr::from_ref(attr), 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Have slices of so many microseconds: a thread with shorter ones runs earlier after it was woken (`sched_runtime` of
/// an ordinary thread, Linux 6.12). `nice` is -20 to 19; below the present one it needs a privilege.
///
/// # Errors
/// EPERM: the nice value is not permitted. EINVAL: the system knows no slices of threads.
pub fn slice(microseconds: u64, nice: i32) -> io::Result<()> {
    set(&Attr { runtime: microseconds.saturating_mul(1000), nice, ..ZERO })
}

/// Run before every ordinary thread (`SCHED_FIFO`, sched(7)).
///
/// # Errors
/// EPERM without the privilege (`CAP_SYS_NICE`, `RLIMIT_RTPRIO`).
pub fn fifo(priority: u32) -> io::Result<()> {
    set(&Attr { policy: libc::SCHED_FIFO as u32, priority, ..ZERO })
}
