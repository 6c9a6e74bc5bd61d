//! The C library's cancellation points (pthreads(7)) as this library calls them: plain system calls, at which no thread
//! is cancelled.
//!
//! Posting and polling take the adapter's lock, and now and then close a descriptor, read a file or sleep under it,
//! mostly by Rust's standard library. Turning cancellation off in each of these calls would cost a noticeable part of a
//! small message's time. Instead the linker redirects every reference of this library to one of these names (`--wrap`,
//! see build.rs, which has the names). The program's own calls do not come here. A test checks that the finished
//! library imports no other cancellation point.

use libc::{c_int, c_long, c_void, iovec, off64_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timespec};

/// Define such functions: name, arguments, and the system call.
macro_rules! plain {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $number:ident($($value:expr),*);)*) => {$(
        /// The system call of this name.
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
            // SAFETY: as for the C library's function, whose caller this one has; the kernel checks every address.
            unsafe { libc::syscall(libc::$number, $($value),*) as $ret }
        }
    )*};
}

plain! {
    close(fd: c_int) -> c_int = SYS_close(fd);
    read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t = SYS_read(fd, buf, len);
    write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t = SYS_write(fd, buf, len);
    readv(fd: c_int, list: *const iovec, n: c_int) -> ssize_t = SYS_readv(fd, list, n);
    writev(fd: c_int, list: *const iovec, n: c_int) -> ssize_t = SYS_writev(fd, list, n);
    pread64(fd: c_int, buf: *mut c_void, len: size_t, at: off64_t) -> ssize_t = SYS_pread64(fd, buf, len, at);
    pwrite64(fd: c_int, buf: *const c_void, len: size_t, at: off64_t) -> ssize_t = SYS_pwrite64(fd, buf, len, at);
    connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int = SYS_connect(fd, addr, len);
    fsync(fd: c_int) -> c_int = SYS_fsync(fd);
    fdatasync(fd: c_int) -> c_int = SYS_fdatasync(fd);
}

/// poll(2). Not every architecture has the call of this name.
pub unsafe extern "C" fn poll(fds: *mut pollfd, n: libc::nfds_t, timeout_ms: c_int) -> c_int {
    let time = timespec { tv_sec: i64::from(timeout_ms) / 1000, tv_nsec: i64::from(timeout_ms) % 1000 * 1_000_000 };
    let limit: *const timespec = if timeout_ms < 0 { core::ptr::null() } else { &raw const time };
    // SAFETY: as for poll(2); no signal mask is given.
    unsafe { libc::syscall(libc::SYS_ppoll, fds, n, limit, core::ptr::null::<c_void>(), 0 as c_long) as c_int }
}

/// clock_nanosleep(2), which returns the errno.
pub unsafe extern "C" fn clock_nanosleep(
    clock: libc::clockid_t,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    // SAFETY: as for clock_nanosleep(2).
    let result = unsafe { libc::syscall(libc::SYS_clock_nanosleep, clock, flags, time, left) };
    if result == 0 { 0 } else { crate::entry::last_errno().0 }
}
