//! The kernel's socket under a connection, asked without this library's own entries and without waiting.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvFlags, SendFlags};
use sock::end::Kernel;
use verbs::Errno;

use crate::table::Slot;

/// A descriptor that the caller of this library has passed, or one of the library's own.
pub fn borrow(fd: i32) -> BorrowedFd<'static> {
    // SAFETY: it is used for system calls only, which check the number; -1 is passed by nobody.
    unsafe { BorrowedFd::borrow_raw(fd.max(0)) }
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}

/// The socket `fd` of a connection.
pub struct Tcp {
    pub fd: i32,
    pub slot: &'static Slot,
}

/// Whether the kernel's socket was not looked at for so many nanoseconds.
pub fn is_time(slot: &Slot, nanos: u64) -> bool {
    now().saturating_sub(slot.looked.load(Ordering::Relaxed)) > nanos
}

/// How often a receiver that finds the ring empty looks at the socket, if nothing says that it should, in nanoseconds.
const LOOK_EVERY: u64 = 1_000_000;

/// `struct tcp_info` of `linux/tcp.h` as far as its fields are used, from Linux 4.19 on.
const INFO: usize = 216;
const STATE: usize = 0;
const BYTES_RECEIVED: usize = 128;
const NOTSENT_BYTES: usize = 144;
const BYTES_SENT: usize = 200;
const BYTES_RETRANS: usize = 208;

fn info(fd: i32) -> Option<[u8; INFO]> {
    let mut bytes = [0u8; INFO];
    let mut len = INFO as libc::socklen_t;
    // SAFETY: both pointers are to live locals of the size that `len` says.
    let failed = unsafe {
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, bytes.as_mut_ptr().cast(), &raw mut len) != 0
    };
    (!failed && len as usize == INFO).then_some(bytes)
}

fn u64_at(bytes: &[u8; INFO], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_ne_bytes(*word))
}

fn u32_at(bytes: &[u8; INFO], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from(u32::from_ne_bytes(*word)))
}

impl Kernel for Tcp {
    fn send(&self, from: &[u8]) -> Result<usize, Errno> {
        rustix::net::send(borrow(self.fd), from, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map_err(errno)
    }

    fn recv(&self, to: &mut [u8], peek: bool) -> Result<usize, Errno> {
        let flags = if peek { RecvFlags::DONTWAIT | RecvFlags::PEEK } else { RecvFlags::DONTWAIT };
        rustix::net::recv(borrow(self.fd), to, flags).map(|(some, _)| some).map_err(errno)
    }

    fn written(&self) -> Option<u64> {
        let info = info(self.fd)?;
        let sent = u64_at(&info, BYTES_SENT).checked_sub(u64_at(&info, BYTES_RETRANS))?;
        Some(sent + u32_at(&info, NOTSENT_BYTES))
    }

    fn arrived(&self) -> Option<(u64, u64)> {
        // The peer's FIN is counted as a byte: TIME_WAIT, CLOSE_WAIT, LAST_ACK, CLOSING.
        const FIN_RECEIVED: [u8; 4] = [6, 8, 9, 11];
        let mut before = info(self.fd)?;
        for _ in 0..1000 {
            let unread = rustix::io::ioctl_fionread(borrow(self.fd)).ok()?;
            let after = info(self.fd)?;
            let (old, new) = (u64_at(&before, BYTES_RECEIVED), u64_at(&after, BYTES_RECEIVED));
            if old == new && before.get(STATE) == after.get(STATE) {
                let fin = u64::from(after.get(STATE).is_some_and(|state| FIN_RECEIVED.contains(state)));
                return Some((new.saturating_sub(fin), unread));
            }
            before = after;
        }
        None
    }

    fn tell(&self, bells: u32) {
        if let Some(link) = self.slot.link() {
            link.tell(self.slot.number.load(Ordering::Relaxed), bells);
        }
    }

    fn is_due(&self) -> bool {
        is_time(self.slot, LOOK_EVERY)
    }
}

/// What poll(2) says of a socket now.
pub fn look(fd: i32, events: i16) -> i16 {
    let flags = PollFlags::from_bits_truncate(events.cast_unsigned());
    let fd = borrow(fd);
    let mut fds = [PollFd::new(&fd, flags)];
    match rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(1..) => fds.first().map_or(0, |fd| fd.revents().bits().cast_signed()),
        _ => 0,
    }
}

/// An option that is an int.
pub fn option(fd: i32, level: i32, name: i32) -> Option<i32> {
    let mut value = 0i32;
    let mut len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: both pointers are to live locals of the size that `len` says.
    let failed = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) != 0 };
    (!failed).then_some(value)
}

/// SO_COOKIE: tells sockets apart that have had the same number. 0: no socket.
pub fn cookie(fd: i32) -> u64 {
    let mut value = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: as in `option`.
    let failed =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, (&raw mut value).cast(), &raw mut len) != 0 };
    if failed { 0 } else { value }
}

/// A timeout option (SO_RCVTIMEO, SO_SNDTIMEO) in nanoseconds.
pub fn timeout(fd: i32, name: i32) -> Option<u64> {
    let mut value = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut len = size_of::<libc::timeval>() as libc::socklen_t;
    // SAFETY: as in `option`.
    let failed = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len) != 0 };
    let nanos = value.tv_sec.cast_unsigned() * 1_000_000_000 + value.tv_usec.cast_unsigned() * 1000;
    (!failed && nanos > 0).then_some(nanos)
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
