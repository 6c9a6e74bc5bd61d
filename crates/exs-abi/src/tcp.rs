//! Descriptors of socket(2): operations that end when the kernel's socket is ready.
//!
//! An operation is tried at once, and waits for the thread of [`crate::service`] only if the kernel says EAGAIN. Those
//! of a direction end in order. While some wait, the socket has a second descriptor: close(2) of the program does not
//! end them.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exs::socket::{Event, EventKind, Queue};
use libc::{c_int, c_void};
use rdma::Errno;
use rustix::event::PollFlags;
use rustix::net::{SocketType, sockopt};

use crate::entry::refuse;
use crate::service::service;
use crate::socket::kernel;

/// Operations of a direction that may be pending; then EAGAIN.
const PLACES: usize = 1024;
/// Pieces of one call of the kernel.
const PIECES: usize = 64;

/// What an operation does.
pub enum Work {
    Send,
    Receive {
        /// MSG_WAITALL.
        all: bool,
    },
    /// Bytes of a file, behind those of the places before it and in front of those after it.
    File {
        file: OwnedFd,
        offset: i64,
        left: usize,
        /// Places in front of the file.
        before: usize,
    },
    Accept,
    Connect,
}

/// An operation.
pub struct Job {
    pub work: Work,
    /// Addresses and lengths of the program's bytes that are left.
    pub places: VecDeque<(usize, usize)>,
    pub done: usize,
    pub queue: Arc<Queue>,
    pub key: u64,
}

#[derive(Default)]
struct Directions {
    /// Receives and accepts.
    input: VecDeque<Job>,
    /// Sends and connects.
    output: VecDeque<Job>,
    /// The second descriptor, while something waits.
    second: Option<Arc<OwnedFd>>,
}

/// A socket of the kernel.
pub struct Tcp {
    /// The kernel's number of the socket: another one may get its descriptor.
    cookie: u64,
    pub stream: bool,
    directions: Mutex<Directions>,
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}

/// The socket of a descriptor that is not of `exs_socket`. EBADF, ENOTSOCK.
pub fn find(fd: c_int) -> Result<Arc<Tcp>, Errno> {
    static KNOWN: Mutex<Option<HashMap<c_int, Arc<Tcp>>>> = Mutex::new(None);
    if fd < 0 {
        return refuse(libc::EBADF);
    }
    // SAFETY: not -1. The program keeps it open during the call, or the kernel says EBADF.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let cookie = sockopt::socket_cookie(socket).map_err(errno)?;
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    if let Some(tcp) = known.get(&fd).filter(|tcp| tcp.cookie == cookie) {
        return Ok(tcp.clone());
    }
    let stream = sockopt::socket_type(socket).map_err(errno)? == SocketType::STREAM;
    let tcp = Arc::new(Tcp { cookie, stream, directions: Mutex::default() });
    known.insert(fd, tcp.clone());
    Ok(tcp)
}

impl Tcp {
    fn directions(&self) -> MutexGuard<'_, Directions> {
        self.directions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begin an operation, whose place in its queue this takes. EAGAIN: too many are pending, or the queue is full.
    pub fn begin(self: &Arc<Self>, fd: c_int, mut job: Job) -> Result<(), Errno> {
        job.queue.reserve()?;
        let queue = job.queue.clone();
        // Held all the time: what comes later stays behind.
        let mut directions = self.directions();
        let line = if job.is_input() { &directions.input } else { &directions.output };
        if line.len() >= PLACES {
            queue.release();
            return refuse(libc::EAGAIN);
        }
        if line.is_empty() && job.attempt(fd) {
            return Ok(());
        }
        let new = directions.second.is_none();
        if new {
            // SAFETY: the number is the program's, and the kernel checks it.
            let socket = unsafe { BorrowedFd::borrow_raw(fd) };
            match rustix::io::fcntl_dupfd_cloexec(socket, 3).map_err(errno).and_then(|fd| Ok((fd, service()?))) {
                Ok((second, _)) => directions.second = Some(Arc::new(second)),
                // Bytes have gone, so it has begun.
                Err(_) if job.done > 0 => {
                    job.end(Ok(job.done as u64));
                    return Ok(());
                }
                Err(errno) => {
                    queue.release();
                    return Err(errno);
                }
            }
        }
        let line = if job.is_input() { &mut directions.input } else { &mut directions.output };
        let first = line.is_empty();
        line.push_back(job);
        let service = service()?;
        match (new, first) {
            (true, _) => service.add_tcp(self.clone()),
            (false, true) => service.renew(),
            // The thread waits for this direction already.
            (false, false) => {}
        }
        Ok(())
    }

    /// The descriptor, and what is waited for.
    pub fn interest(&self) -> Option<(Arc<OwnedFd>, PollFlags)> {
        let directions = self.directions();
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, !directions.input.is_empty());
        flags.set(PollFlags::OUT, !directions.output.is_empty());
        Some((directions.second.clone()?, flags))
    }

    /// Go on with what waits.
    pub fn ready(self: &Arc<Self>) {
        let mut directions = self.directions();
        let Some(second) = directions.second.clone() else { return };
        let Directions { input, output, .. } = &mut *directions;
        for line in [input, output] {
            while line.front_mut().is_some_and(|job| job.attempt(second.as_raw_fd())) {
                line.pop_front();
            }
        }
        self.rest(directions);
    }

    /// Give the second descriptor up if nothing waits.
    fn rest(self: &Arc<Self>, mut directions: MutexGuard<'_, Directions>) {
        if directions.input.is_empty()
            && directions.output.is_empty()
            && directions.second.take().is_some()
            && let Ok(service) = service()
        {
            service.remove_tcp(self);
        }
    }

    /// End an operation that waits and has moved no byte, with ECANCELED; how many.
    pub fn cancel(self: &Arc<Self>, queue: &Arc<Queue>, key: u64) -> usize {
        self.end_some(|job| job.done == 0 && job.key == key && Arc::ptr_eq(&job.queue, queue))
    }

    /// End all that waits, with ECANCELED.
    pub fn cancel_all(self: &Arc<Self>) {
        self.end_some(|_| true);
    }

    fn end_some(self: &Arc<Self>, wanted: impl Fn(&Job) -> bool) -> usize {
        let mut directions = self.directions();
        let mut ended = 0;
        let Directions { input, output, .. } = &mut *directions;
        for line in [input, output] {
            line.retain(|job| {
                let end = wanted(job);
                if end {
                    ended += 1;
                    job.end(refuse(libc::ECANCELED));
                }
                !end
            });
        }
        self.rest(directions);
        ended
    }
}

impl Job {
    fn is_input(&self) -> bool {
        matches!(self.work, Work::Receive { .. } | Work::Accept)
    }

    fn end(&self, result: Result<u64, Errno>) {
        let end = matches!(self.work, Work::Receive { .. }) && result == Ok(0);
        self.queue.put(Event { end, ..Event::new(EventKind::Other, self.key, result) });
    }

    /// Do as much as the kernel lets; true if it has ended.
    fn attempt(&mut self, fd: c_int) -> bool {
        loop {
            let result = match self.step(fd) {
                Err(Errno(libc::EINTR)) => continue,
                Err(Errno(libc::EAGAIN | libc::EINPROGRESS)) => return false,
                Ok(false) => continue,
                Ok(true) => Ok(self.done as u64),
                // Bytes that went before an error are told; the next operation finds the error.
                Err(_) if self.done > 0 && !matches!(self.work, Work::Connect) => Ok(self.done as u64),
                Err(errno) => Err(errno),
            };
            self.end(result);
            return true;
        }
    }

    /// One call of the kernel; true if nothing is left.
    fn step(&mut self, fd: c_int) -> Result<bool, Errno> {
        match &mut self.work {
            Work::Send => {
                let moved = self.message(fd, false)?;
                self.advance(moved);
                Ok(self.places.is_empty())
            }
            Work::Receive { all } => {
                let all = *all;
                let moved = self.message(fd, true)?;
                self.advance(moved);
                Ok(moved == 0 || self.places.is_empty() || !all)
            }
            Work::File { before: 1.., .. } => {
                let moved = self.message(fd, false)?;
                let gone = self.advance(moved);
                if let Work::File { before, .. } = &mut self.work {
                    *before = before.saturating_sub(gone);
                }
                Ok(false)
            }
            Work::File { left: 0, .. } if self.places.is_empty() => Ok(true),
            Work::File { left: 0, .. } => {
                let moved = self.message(fd, false)?;
                self.advance(moved);
                Ok(self.places.is_empty())
            }
            Work::File { file, offset, left, .. } => {
                let room = (*left).min(1 << 20);
                let moved = nonblocking(fd, || {
                    // SAFETY: both descriptors are numbers that the kernel checks, and the offset is this job's.
                    kernel_size(unsafe { libc::sendfile(fd, file.as_raw_fd(), offset, room) })
                })?;
                *left = if moved == 0 { 0 } else { *left - moved };
                self.done += moved;
                Ok(*left == 0 && self.places.is_empty())
            }
            Work::Accept => {
                let made = nonblocking(fd, || {
                    // SAFETY: no memory is involved.
                    kernel(unsafe { libc::accept4(fd, std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC) })
                })?;
                self.done = made as usize;
                Ok(true)
            }
            Work::Connect => {
                // SAFETY: a number that the kernel checks.
                let socket = unsafe { BorrowedFd::borrow_raw(fd) };
                sockopt::socket_error(socket).map_err(errno)?.map_err(errno)?;
                let mut fds = [rustix::event::PollFd::new(&socket, PollFlags::OUT)];
                let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
                let ready = rustix::event::poll(&mut fds, Some(&none)).map_err(errno)?;
                if ready == 0 { refuse(libc::EAGAIN) } else { Ok(true) }
            }
        }
    }

    /// Send or receive at the first places; the number of bytes.
    fn message(&self, fd: c_int, receive: bool) -> Result<usize, Errno> {
        let mut pieces = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES];
        let limit = match self.work {
            Work::File { before, .. } if before > 0 => before.min(PIECES),
            _ => PIECES,
        };
        let mut count = 0;
        for (piece, (start, len)) in pieces.iter_mut().zip(self.places.iter().take(limit)) {
            *piece = libc::iovec { iov_base: *start as *mut c_void, iov_len: *len };
            count += 1;
        }
        let more = if matches!(self.work, Work::File { left: 1.., .. }) { libc::MSG_MORE } else { 0 };
        // SAFETY: a message without an address or control data, whose array is on the stack; the kernel checks the
        // places, which the program has given to the operation.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = pieces.as_mut_ptr();
            message.msg_iovlen = count;
            kernel_size(match receive {
                true => libc::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT),
                false => libc::sendmsg(fd, &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | more),
            })
        }
    }

    /// Go on behind `moved` bytes; the number of places that are done with.
    fn advance(&mut self, mut moved: usize) -> usize {
        self.done += moved;
        let mut gone = 0;
        while let Some((start, len)) = self.places.front_mut() {
            let part = moved.min(*len);
            (*start, *len, moved) = (*start + part, *len - part, moved - part);
            if *len > 0 {
                break;
            }
            self.places.pop_front();
            gone += 1;
        }
        gone
    }
}

/// The result of a call of the kernel that gives a number of bytes.
fn kernel_size(result: isize) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)))
}

/// Make a call that has no flag for it without waiting.
pub fn nonblocking<T>(fd: c_int, body: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    // SAFETY: a number that the kernel checks.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let flags = fcntl_getfl(socket.as_fd()).map_err(errno)?;
    if flags.contains(OFlags::NONBLOCK) {
        return body();
    }
    fcntl_setfl(socket.as_fd(), flags | OFlags::NONBLOCK).map_err(errno)?;
    let result = body();
    fcntl_setfl(socket.as_fd(), flags).map_err(errno)?;
    result
}
