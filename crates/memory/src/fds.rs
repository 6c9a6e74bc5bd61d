//! The descriptors that a forked child must close at once.
//!
//! A child that keeps its parent's sockets open would hide the parent's death from its peers. The child of a
//! multi-threaded process may only use async-signal-safe functions, so the list is one that can be read without locks.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::received_fds::close_connection;

/// Highest descriptor number that can be kept, plus one (the kernel's default `fs.nr_open`).
pub const LIMIT: usize = 1 << 20;

/// A set of descriptor numbers: one bit each.
pub struct FdSet {
    words: Box<[AtomicU64]>,
    /// One more than the highest word ever used.
    used: AtomicU64,
}

impl FdSet {
    /// An empty set.
    pub fn new() -> Arc<Self> {
        let words = (0..LIMIT / 64).map(|_| AtomicU64::new(0)).collect();
        Arc::new(FdSet { words, used: AtomicU64::new(0) })
    }

    fn set(&self, fd: RawFd, present: bool) -> bool {
        let Some(word) = usize::try_from(fd).ok().and_then(|fd| self.words.get(fd / 64)) else {
            return false;
        };
        let bit = 1u64 << (fd % 64);
        if present {
            self.used.fetch_max(fd as u64 / 64 + 1, Ordering::Relaxed);
            word.fetch_or(bit, Ordering::Relaxed);
        } else {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
        true
    }

    /// Closes all of them. For a forked child only, which must not use (or drop) their owners afterwards: it inherited
    /// copies of the descriptors, and the parent keeps its own. Async-signal-safe.
    pub fn close_all(&self) {
        let used = self.used.load(Ordering::Relaxed) as usize;
        for (i, word) in self.words.iter().take(used).enumerate() {
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                let fd = i as RawFd * 64 + bits.trailing_zeros() as RawFd;
                bits &= bits - 1;
                // SAFETY: the number was registered by its owner, which by this function's contract is not used any
                // more in this process: the descriptor table is the child's own.
                unsafe { libc::syscall(libc::SYS_close, fd) };
            }
        }
    }
}

/// A descriptor that is in an [`FdSet`] for as long as it is open.
pub struct TrackedFd {
    fd: Option<OwnedFd>,
    set: Arc<FdSet>,
    /// It is a connection: what its peer has left in it unread is closed with it.
    connected: bool,
}

impl TrackedFd {
    /// Takes a descriptor. One above [`LIMIT`] is kept open but not tracked.
    pub fn new(fd: OwnedFd, set: &Arc<FdSet>) -> Self {
        set.set(fd.as_raw_fd(), true);
        TrackedFd { fd: Some(fd), set: Arc::clone(set), connected: false }
    }

    /// Takes a connected unix socket, see [`TrackedFd::is_connected`].
    pub fn connection(fd: OwnedFd, set: &Arc<FdSet>) -> Self {
        let mut connection = TrackedFd::new(fd, set);
        connection.is_connected();
        connection
    }

    /// It is a unix socket, and now connected: it is closed as [`close_connection`] does it.
    pub fn is_connected(&mut self) {
        self.connected = true;
    }
}

impl AsFd for TrackedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Some(fd) => fd.as_fd(),
            None => unreachable!("taken only by drop"),
        }
    }
}

impl Drop for TrackedFd {
    fn drop(&mut self) {
        // The number leaves the set first: once closed, it may be given to another file.
        if let Some(fd) = self.fd.take() {
            self.set.set(fd.as_raw_fd(), false);
            if self.connected {
                close_connection(fd);
            }
        }
    }
}

/// The process and user at the other end of a connected unix socket (for the side that connected: the one that
/// listened). The process is 0 if it has no number in our PID namespace.
///
/// # Errors
/// The kernel's errno if it is no unix socket.
pub fn peer_credentials(socket: impl AsFd) -> Result<(u32, u32), verbs::Errno> {
    // Not rustix's: its `Pid` cannot hold the 0 that the kernel gives for a process of a foreign namespace. Nor the C
    // library's, which another library may stand in front of.
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: both pointers are to live locals of the size that `len` says.
    let failed = unsafe {
        libc::syscall(
            libc::SYS_getsockopt,
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            &raw mut credentials,
            &raw mut len,
        ) != 0
    };
    if failed || len as usize != size_of::<libc::ucred>() {
        return Err(verbs::Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)));
    }
    Ok((u32::try_from(credentials.pid).unwrap_or(0), credentials.uid))
}

#[cfg(all(test, not(loom), not(miri)))]
#[path = "fds_tests.rs"]
mod tests;
