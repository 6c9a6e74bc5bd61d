//! The kernel's socket under a connection, asked without this library's own entries and without waiting.

use std::net::{SocketAddr, SocketAddrV6};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvFlags, SendFlags};
use sock::end::Kernel;
use verbs::Errno;

use crate::next;
use crate::status::{self, Count};
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

/// `asm-generic/sockios.h`.
pub const SIOCATMARK: u32 = 0x8905;

/// How often a receiver that finds the ring empty looks at the socket, if nothing says that it should, in nanoseconds.
const LOOK_EVERY: u64 = 1_000_000;

/// `struct tcp_info` of `linux/tcp.h` as far as its fields are used, from Linux 4.19 on.
const INFO: usize = 216;
const STATE: usize = 0;
const BYTES_RECEIVED: usize = 128;
const NOTSENT_BYTES: usize = 144;
const BYTES_SENT: usize = 200;
const BYTES_RETRANS: usize = 208;

/// States behind this end's FIN: FIN_WAIT1, FIN_WAIT2, TIME_WAIT, CLOSE, LAST_ACK, CLOSING.
const SHUT: [u8; 6] = [4, 5, 6, 7, 9, 11];

/// Which of its two directions this end has shut down: reading, and writing.
pub fn shut_down(fd: i32) -> (bool, bool) {
    /// ESTABLISHED, FIN_WAIT1, FIN_WAIT2: the other end has not finished.
    const PEER_SENDS: [u8; 3] = [1, 4, 5];
    let state = info(fd).map_or(0, |info| info[STATE]);
    let is_over = look(fd, libc::POLLRDHUP) & libc::POLLRDHUP != 0;
    (is_over && PEER_SENDS.contains(&state), SHUT.contains(&state))
}

/// Whether a TCP socket has no connection, nor one that is coming about.
pub fn is_closed(fd: i32) -> bool {
    const CLOSE: u8 = 7;
    info(fd).is_some_and(|info| info[STATE] == CLOSE)
}

fn info(fd: i32) -> Option<[u8; INFO]> {
    let mut bytes = [0u8; INFO];
    let mut len = INFO as libc::socklen_t;
    // SAFETY: both pointers are to live locals of the size that `len` says.
    let failed = unsafe {
        next::getsockopt()(fd, libc::IPPROTO_TCP, libc::TCP_INFO, bytes.as_mut_ptr().cast(), &raw mut len) != 0
    };
    (!failed && len as usize == INFO).then_some(bytes)
}

fn u64_at(bytes: &[u8; INFO], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_ne_bytes(*word))
}

fn u32_at(bytes: &[u8; INFO], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from(u32::from_ne_bytes(*word)))
}

/// Whether a FIN has arrived behind the unread bytes of a socket that was reset since: 1 or 0. TCP_INQ counts it with
/// them (tcp_inq_hint), FIONREAD does not.
fn fin_unread(fd: i32, unread: u64) -> Option<u64> {
    let inq = |on: i32| {
        // SAFETY: a live int.
        unsafe { next::setsockopt()(fd, libc::IPPROTO_TCP, libc::TCP_INQ, (&raw const on).cast(), 4) }
    };
    let before = option(fd, libc::IPPROTO_TCP, libc::TCP_INQ)?;
    if inq(1) != 0 {
        return None;
    }
    let (mut byte, mut control) = (0u8, [0u64; 16]);
    let mut piece = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: a header of zeroes is an empty one, and is filled with pointers to live locals of the sizes that it says.
    let counted = unsafe {
        let mut header: libc::msghdr = core::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
        (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
        let got = next::recvmsg()(fd, &raw mut header, libc::MSG_PEEK | libc::MSG_DONTWAIT);
        let mut at = if got > 0 { libc::CMSG_FIRSTHDR(&raw const header) } else { core::ptr::null_mut() };
        while !at.is_null() && ((*at).cmsg_level, (*at).cmsg_type) != (libc::IPPROTO_TCP, libc::TCP_INQ) {
            at = libc::CMSG_NXTHDR(&raw const header, at);
        }
        (!at.is_null()).then(|| libc::CMSG_DATA(at).cast::<i32>().read_unaligned())
    };
    inq(before);
    Some(u64::from(u64::from(counted?.unsigned_abs()) > unread))
}

/// The events with which a descriptor is in an epoll set, as `/proc/self/fdinfo` has them (proc(5)): none beside
/// EPOLLONESHOT and its like are left of an entry that has reported.
pub fn events_in_set(set: i32, fd: i32) -> Option<u32> {
    use core::fmt::Write;
    let mut path = Line { bytes: [0; 256], len: 0 };
    write!(path, "/proc/self/fdinfo/{set}\0").ok()?;
    let path = core::ffi::CStr::from_bytes_with_nul(path.bytes.get(..path.len)?).ok()?;
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).ok()?;
    let (mut line, mut part) = (Line { bytes: [0; 256], len: 0 }, [0u8; 1024]);
    loop {
        let got = rustix::io::read(&file, &mut part).ok().filter(|got| *got > 0)?;
        for byte in part.get(..got)? {
            if *byte != b'\n' {
                let _ = line.write_char(char::from(*byte));
                continue;
            }
            // tfd:        7 events: 40000001 data: ...
            let mut words = core::str::from_utf8(line.bytes.get(..line.len)?).ok()?.split_ascii_whitespace();
            let is_it = words.next() == Some("tfd:") && words.next().and_then(|word| word.parse().ok()) == Some(fd);
            if is_it {
                return u32::from_str_radix(words.nth(1)?, 16).ok();
            }
            line.len = 0;
        }
    }
}

/// A short text, without an allocation.
struct Line {
    bytes: [u8; 256],
    len: usize,
}

impl core::fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let to = self.bytes.get_mut(self.len..self.len + text.len()).ok_or(core::fmt::Error)?;
        to.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
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
        // A socket whose sending direction was shut down before it had memory takes nothing.
        if info.first().is_some_and(|state| SHUT.contains(state)) {
            return None;
        }
        let sent = u64_at(&info, BYTES_SENT).checked_sub(u64_at(&info, BYTES_RETRANS))?;
        Some(sent + u32_at(&info, NOTSENT_BYTES))
    }

    fn arrived(&self) -> Option<(u64, u64)> {
        self.arrived_of(u64::MAX)
    }

    fn arrived_of(&self, most: u64) -> Option<(u64, u64)> {
        // The peer's FIN is counted as a byte: TIME_WAIT, CLOSE_WAIT, LAST_ACK, CLOSING.
        const FIN_RECEIVED: [u8; 4] = [6, 8, 9, 11];
        const CLOSED: u8 = 7;
        let mut before = info(self.fd)?;
        for _ in 0..1000 {
            let unread = rustix::io::ioctl_fionread(borrow(self.fd)).ok()?;
            let after = info(self.fd)?;
            let (old, new) = (u64_at(&before, BYTES_RECEIVED), u64_at(&after, BYTES_RECEIVED));
            if old == new && before.get(STATE) == after.get(STATE) {
                let fin = match after.get(STATE) {
                    Some(state) if FIN_RECEIVED.contains(state) => 1,
                    Some(&CLOSED) if new > most && unread > 0 => fin_unread(self.fd, unread)?,
                    _ => 0,
                };
                return Some((new.saturating_sub(fin), unread));
            }
            before = after;
        }
        None
    }

    fn tell(&self, bells: u32) {
        if let Some(link) = self.slot.link() {
            let rung = link.tell(self.slot.number.load(Ordering::Relaxed), bells);
            if rung > 0 {
                status::add(self.slot.index(), Count::Rings, rung);
            }
        }
    }

    fn is_due(&self) -> bool {
        is_time(self.slot, LOOK_EVERY)
    }
}

fn look_at(fds: &mut [PollFd<'_>]) {
    for fd in &mut *fds {
        fd.clear_revents();
    }
    // One that fails has written nothing.
    let _ = rustix::event::poll(fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
}

/// What poll(2) says of a socket now.
pub fn look(fd: i32, events: i16) -> i16 {
    let fd = borrow(fd);
    let mut fds = [PollFd::new(&fd, PollFlags::from_bits_truncate(events.cast_unsigned()))];
    look_at(&mut fds);
    fds.map(|fd| fd.revents().bits().cast_signed())[0]
}

/// As [`look`], and whether another descriptor that is there has hung up.
pub fn look_at_both(fd: i32, events: i16, other: i32) -> (i16, bool) {
    let (fd, other) = (borrow(fd), borrow(other));
    let mut fds = [
        PollFd::new(&fd, PollFlags::from_bits_truncate(events.cast_unsigned())),
        PollFd::new(&other, PollFlags::empty()),
    ];
    look_at(&mut fds);
    let [fd, other] = fds;
    (fd.revents().bits().cast_signed(), other.revents().contains(PollFlags::HUP))
}

/// An option that is an int.
pub fn option(fd: i32, level: i32, name: i32) -> Option<i32> {
    let mut value = 0i32;
    let mut len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: both pointers are to live locals of the size that `len` says.
    let failed = unsafe { next::getsockopt()(fd, level, name, (&raw mut value).cast(), &raw mut len) != 0 };
    (!failed).then_some(value)
}

/// SO_COOKIE: tells sockets apart that have had the same number. 0: no socket.
pub fn cookie(fd: i32) -> u64 {
    let mut value = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: as in `option`.
    let failed = unsafe {
        next::getsockopt()(fd, libc::SOL_SOCKET, libc::SO_COOKIE, (&raw mut value).cast(), &raw mut len) != 0
    };
    if failed { 0 } else { value }
}

/// A timeout option (SO_RCVTIMEO, SO_SNDTIMEO) in nanoseconds.
pub fn timeout(fd: i32, name: i32) -> Option<u64> {
    let mut value = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut len = size_of::<libc::timeval>() as libc::socklen_t;
    // SAFETY: as in `option`.
    let failed = unsafe { next::getsockopt()(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len) != 0 };
    let nanos = value.tv_sec.cast_unsigned() * 1_000_000_000 + value.tv_usec.cast_unsigned() * 1000;
    (!failed && nanos > 0).then_some(nanos)
}

/// Whether the next byte that came by TCP is behind urgent data: SIOCATMARK of tcp(7).
pub fn is_at_mark(fd: i32) -> bool {
    let mut mark = 0i32;
    // SAFETY: the kernel writes an int, to a live local.
    let failed = unsafe { next::ioctl()(fd, u64::from(SIOCATMARK), (&raw mut mark).expose_provenance()) } != 0;
    !failed && mark != 0
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// The address of a `sockaddr_in` or `sockaddr_in6` (ip(7), ipv6(7)). `None`: it is another one, or too short.
///
/// # Safety
///
/// `len` bytes at `address` can be read.
pub unsafe fn ip_address(address: *const core::ffi::c_void, len: u32) -> Option<SocketAddr> {
    let mut bytes = [0u8; size_of::<libc::sockaddr_in6>()];
    let len = bytes.len().min(len as usize);
    // SAFETY: the caller's; the copy is as long as the array at most.
    unsafe { core::ptr::copy_nonoverlapping(address.cast::<u8>(), bytes.as_mut_ptr(), len) };
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    match i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
        libc::AF_INET if len >= size_of::<libc::sockaddr_in>() => {
            let ip: [u8; 4] = bytes[4..8].try_into().ok()?;
            Some((ip, port).into())
        }
        // Without sin6_scope_id, the last word, it is an address, too (RFC 2133).
        libc::AF_INET6 if len >= 24 => {
            let ip: [u8; 16] = bytes[8..24].try_into().ok()?;
            let scope = if len < bytes.len() { 0 } else { u32::from_ne_bytes(bytes[24..28].try_into().ok()?) };
            Some(SocketAddrV6::new(ip.into(), port, 0, scope).into())
        }
        _ => None,
    }
}
