//! `socket(AF_NETLINK, ..., NETLINK_RDMA)`: the program gets one end of a pair of connected sockets, and a thread at
//! the other end answers (crate `netlink`). The socket can be written, read, polled, inherited and closed as any other.
//! The functions that give or take netlink's addresses are interposed, for the pair has none. Sending is not:
//! SOCK_SEQPACKET ignores the address that a message is sent to (`unix_seqpacket_sendmsg` in Linux).
//!
//! Such sockets are few, and most programs have none: for those, every function here is one load and a jump. recvmsg
//! and recvfrom are cancellation points, through which a thread that is cancelled is unwound. So they hold nothing, and
//! are of the ABI that can be unwound.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::{msghdr, size_t, sockaddr, socklen_t, ssize_t};
use rustix::fs::{FileType, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::calls::Missing;
use crate::next::{Next, set_errno};

/// `NETLINK_RDMA`.
const NETLINK_RDMA: c_int = 20;
/// The size of `struct sockaddr_nl`, in bytes.
const ADDRESS: usize = 12;
/// The greatest number of such sockets that one process can have at a time.
const MOST: usize = 64;

/// One such socket of the program.
struct Slot {
    /// Its inode, or 0. The number of a descriptor does not identify a socket once the descriptor has been closed.
    inode: AtomicU64,
    /// Its port; 0: not bound yet.
    port: AtomicU32,
}

static SLOTS: [Slot; MOST] = [const { Slot { inode: AtomicU64::new(0), port: AtomicU32::new(0) } }; MOST];
/// The number of slots in use.
static OPEN: AtomicU32 = AtomicU32::new(0);

impl Slot {
    /// The port, which a socket gets by itself at the latest at its first message.
    fn port(&self) -> u32 {
        let known = self.port.load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        // The kernel does this, too: the first socket has the process's number, further ones have numbers of no
        // process.
        let pid = std::process::id();
        let taken = SLOTS.iter().any(|slot| slot.port.load(Ordering::Relaxed) == pid);
        let place = SLOTS.iter().position(|slot| std::ptr::eq(slot, self)).unwrap_or(0) as u32;
        let port = if taken { 0xffff_0000 | place } else { pid };
        self.port.store(port, Ordering::Relaxed);
        port
    }

    fn free(&self) {
        self.port.store(0, Ordering::Relaxed);
        self.inode.store(0, Ordering::Relaxed);
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The slot of a descriptor, if it is such a socket.
fn slot(fd: RawFd) -> Option<&'static Slot> {
    if OPEN.load(Ordering::Relaxed) == 0 || fd < 0 {
        return None;
    }
    let inode = inode(fd)?;
    SLOTS.iter().find(|slot| slot.inode.load(Ordering::Relaxed) == inode)
}

/// The inode of a socket.
fn inode(fd: RawFd) -> Option<u64> {
    // SAFETY: not negative; used for one call, which fails if it is not open.
    let stat = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) }).ok()?;
    let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
    (is_socket && stat.st_ino != 0).then_some(stat.st_ino)
}

/// Make a socket whose requests a thread of this process answers.
fn open(kind: c_int) -> Result<OwnedFd, Errno> {
    if !matches!(kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK), libc::SOCK_RAW | libc::SOCK_DGRAM) {
        return Err(Errno::SOCKTNOSUPPORT);
    }
    let (theirs, ours) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    if kind & libc::SOCK_CLOEXEC == 0 {
        rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
    }
    if kind & libc::SOCK_NONBLOCK != 0 {
        rustix::fs::fcntl_setfl(&theirs, OFlags::NONBLOCK)?;
    }
    let inode = inode(theirs.as_fd().as_raw_fd()).ok_or(Errno::PROTONOSUPPORT)?;
    let place = |slot: &&Slot| slot.inode.compare_exchange(0, inode, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    let slot = SLOTS.iter().find(place).ok_or(Errno::MFILE)?;
    OPEN.fetch_add(1, Ordering::Relaxed);
    let answer = move || {
        ::netlink::serve(&ours, || slot.port());
        slot.free();
    };
    match deaf(|| std::thread::Builder::new().name("softrnic-netlink".into()).stack_size(256 << 10).spawn(answer)) {
        Ok(_) => Ok(theirs),
        Err(_) => {
            slot.free();
            Err(Errno::NOMEM)
        }
    }
}

/// Start a thread on which no handler of the program runs: the thread inherits the mask.
fn deaf<R>(start: impl FnOnce() -> R) -> R {
    // SAFETY: an all-zero sigset_t is a valid value to be filled; the calls only touch both sets and the thread's mask.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let started = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        started
    }
}

/// `struct sockaddr_nl`.
fn address(port: u32) -> [u8; ADDRESS] {
    let mut bytes = [0; ADDRESS];
    bytes[..2].copy_from_slice(&(libc::AF_NETLINK as u16).to_ne_bytes());
    bytes[4..8].copy_from_slice(&port.to_ne_bytes());
    bytes
}

/// Write an address where the program wants one; an address that does not fit is cut off (getsockname(2)).
///
/// # Safety
/// `to` is null or has `room` bytes.
unsafe fn put(to: *mut c_void, room: socklen_t, port: u32) -> socklen_t {
    if !to.is_null() {
        let len = (room as usize).min(ADDRESS);
        // SAFETY: the caller's promise; `len` is at most both.
        unsafe { std::ptr::copy_nonoverlapping(address(port).as_ptr(), to.cast::<u8>(), len) };
    }
    ADDRESS as socklen_t
}

/// Define interposers: the work that is done instead if the descriptor is such a socket, and behind `then` the work
/// after the next definition has been called.
macro_rules! sockets {
    ($(fn $name:ident($fd:ident $(, $arg:ident: $ty:ty)*) -> $ret:ty {
        $slot:ident, $next:ident => $ours:expr
    })*) => {$(
        /// libc's function of this name, and netlink's addresses for sockets that this crate answers.
        ///
        /// # Safety
        /// As for libc's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($fd: c_int $(, $arg: $ty)*) -> $ret {
            static NEXT: Next = Next::new(match std::ffi::CStr::from_bytes_with_nul(
                concat!(stringify!($name), "\0").as_bytes()) { Ok(name) => name, Err(_) => panic!() });
            let next = NEXT.get();
            if next.is_null() {
                return <$ret as Missing>::missing();
            }
            // SAFETY: `next` is the libc function of this signature.
            let next: unsafe extern "C-unwind" fn(c_int $(, $ty)*) -> $ret = unsafe { std::mem::transmute(next) };
            // SAFETY: the caller passes what the libc function demands.
            let $next = || unsafe { next($fd $(, $arg)*) };
            match slot($fd) {
                None => $next(),
                Some($slot) => $ours,
            }
        }
    )*};
}

sockets! {
    fn bind(fd, addr: *const sockaddr, len: socklen_t) -> c_int { slot, _next => {
        if addr.is_null() || (len as usize) < ADDRESS {
            set_errno(libc::EINVAL);
            return -1;
        }
        let mut bytes = [0u8; ADDRESS];
        // SAFETY: the caller passes `len` bytes, which are enough.
        unsafe { std::ptr::copy_nonoverlapping(addr.cast::<u8>(), bytes.as_mut_ptr(), ADDRESS) };
        let port = u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        if port != 0 {
            slot.port.store(port, Ordering::Relaxed);
        }
        slot.port();
        0
    } }

    // The peer is the kernel, to which every message is sent anyway.
    fn connect(fd, _addr: *const sockaddr, _len: socklen_t) -> c_int { _slot, _next => 0 }

    fn getsockname(fd, addr: *mut sockaddr, len: *mut socklen_t) -> c_int { slot, _next => {
        // SAFETY: the caller passes a length, and as many bytes.
        unsafe { *len = put(addr.cast(), *len, slot.port.load(Ordering::Relaxed)) };
        0
    } }

    // Options of netlink are about reports of errors and about groups; there is nothing to set.
    fn setsockopt(fd, level: c_int, _name: c_int, _value: *const c_void, _len: socklen_t) -> c_int { _slot, next => {
        if level == libc::SOL_NETLINK { 0 } else { next() }
    } }

    fn recvmsg(fd, message: *mut msghdr, _flags: c_int) -> ssize_t { _slot, next => {
        // SAFETY: the caller passes a header, with room for a name as it says. The messages that come are the kernel's:
        // port 0.
        unsafe {
            let (name, room) = if message.is_null() { (std::ptr::null_mut(), 0) } else {
                ((*message).msg_name, (*message).msg_namelen)
            };
            let got = next();
            if got >= 0 && !name.is_null() {
                (*message).msg_namelen = put(name, room, 0);
            }
            got
        }
    } }

    fn recvfrom(
        fd, _buf: *mut c_void, _len: size_t, _flags: c_int, addr: *mut sockaddr, room: *mut socklen_t
    ) -> ssize_t {
        _slot, next => {
            // SAFETY: the caller passes both or none.
            unsafe {
                let before = if addr.is_null() || room.is_null() { 0 } else { *room };
                let got = next();
                if got >= 0 && !addr.is_null() && !room.is_null() {
                    *room = put(addr.cast(), before, 0);
                }
                got
            }
        }
    }
}

/// libc's `socket`, with NETLINK_RDMA answered here.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    static NEXT: Next = Next::new(c"socket");
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA && !::netlink::is_host_only() {
        return match open(kind) {
            Ok(socket) => socket.into_raw_fd(),
            Err(errno) => {
                set_errno(errno.raw_os_error());
                -1
            }
        };
    }
    let next = NEXT.get();
    if next.is_null() {
        // SAFETY: the system call checks its arguments itself.
        return unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) } as c_int;
    }
    // SAFETY: `next` is libc's socket.
    let next: unsafe extern "C-unwind" fn(c_int, c_int, c_int) -> c_int = unsafe { std::mem::transmute(next) };
    // SAFETY: the caller's arguments.
    unsafe { next(domain, kind, protocol) }
}

#[cfg(test)]
#[path = "netlink_tests.rs"]
mod tests;
