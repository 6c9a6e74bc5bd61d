//! Functions of the C library as this library calls them: plain system calls. No thread is cancelled in them, and no
//! other library intercepts them.
//!
//! Posting and polling take the adapter's lock, and now and then close a descriptor, read a file or sleep under it,
//! mostly by Rust's standard library. Turning cancellation off in each of these calls would cost a noticeable part of a
//! small message's time. Instead the linker redirects every reference of this library to one of these names (`--wrap`,
//! see build.rs, which has the names). The program's own calls do not come here.
//!
//! A library in front of the C library that takes over the program's sockets is not to see this library's descriptors
//! either. Most calls on those are made by rustix, which makes system calls itself. `close`, above all, comes from
//! std's `OwnedFd`: it needs no wrapper type, because it ends here. Such a library knows nothing of a descriptor that a
//! system call has opened, so nothing is amiss if a system call closes it.
//!
//! A test checks that the finished library refers to no cancellation point of the C library, and to no function for
//! sockets, but for the one that `wait.rs` needs.

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
    // Variadic in C. Both architectures pass an argument behind the dots as they pass any other; where a caller gives
    // none, the kernel ignores what the register has.
    fcntl(fd: c_int, command: c_int, arg: c_long) -> c_int = SYS_fcntl(fd, command, arg);
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
