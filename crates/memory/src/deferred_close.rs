//! The closing of descriptors that another process has filled.
//!
//! What lies in a socket unread is closed with it, descriptors included, and may take as long as the sender of the
//! descriptors likes: a TCP connection with SO_LINGER and a peer that does not read (socket(7)) holds up the thread
//! that closes it last, O_NONBLOCK or not. Any user of the machine can connect to a socket with an abstract name and
//! send one before the credentials of the connection are looked at. So what may take long is closed on threads that
//! have nothing else to do: at most `CLOSERS`, made when they are needed, gone when they are not.
//!
//! Where all of them are held up, what is to be closed waits, with its descriptor: that costs others nothing. Only when
//! a quarter of the process's descriptors waits so ([`has_room`]) is no peer let in until some are closed.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Threads that close, at most.
const CLOSERS: usize = 8;
/// The time for which a closer without work stays.
const IDLE: Duration = Duration::from_secs(2);
/// The bounds of how many descriptors may wait to be closed before no peer is let in.
const LEAST_ROOM: usize = 128;
const MOST_ROOM: usize = 4096;

/// The descriptors that wait, and the counts of threads that take them.
#[derive(Default)]
struct Queue {
    fds: VecDeque<OwnedFd>,
    threads: usize,
    idle: usize,
}

#[derive(Default)]
struct Closers {
    queue: Mutex<Queue>,
    come: Condvar,
    /// The number of descriptors that are not closed yet: those that wait, and those at which a thread is held up.
    open: AtomicUsize,
}

/// Made when it is first needed, and never freed.
static CLOSERS_OF_PROCESS: AtomicPtr<Closers> = AtomicPtr::new(ptr::null_mut());

fn closers() -> Option<&'static Closers> {
    // SAFETY: null, or from Box::leak in `made`.
    unsafe { CLOSERS_OF_PROCESS.load(Ordering::Acquire).as_ref() }
}

fn made() -> &'static Closers {
    if let Some(closers) = closers() {
        return closers;
    }
    let new = Box::into_raw(Box::<Closers>::default());
    match CLOSERS_OF_PROCESS.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: from Box::into_raw just now, and never freed.
        Ok(_) => unsafe { &*new },
        Err(other) => {
            // SAFETY: the pointer is from Box::into_raw just now, and no other thread has seen it.
            drop(unsafe { Box::from_raw(new) });
            // SAFETY: not null, and another thread's Box::into_raw, never freed.
            unsafe { &*other }
        }
    }
}

impl Closers {
    fn run(&self) {
        deaf();
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(fd) = queue.fds.pop_front() {
                drop(queue);
                drop(fd);
                self.open.fetch_sub(1, Ordering::Relaxed);
                queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            queue.idle += 1;
            let (again, waited) = self.come.wait_timeout(queue, IDLE).unwrap_or_else(PoisonError::into_inner);
            queue = again;
            queue.idle -= 1;
            if waited.timed_out() && queue.fds.is_empty() {
                queue.threads -= 1;
                return;
            }
        }
    }

    /// One thread more, if those that are there are held up. True if there is one at all.
    fn staffed(&'static self, queue: &mut Queue) -> bool {
        if queue.idle < queue.fds.len() && queue.threads < CLOSERS {
            let thread = std::thread::Builder::new().name("softrnic-close".into()).stack_size(64 << 10);
            if thread.spawn(|| self.run()).is_ok() {
                queue.threads += 1;
            }
        }
        queue.threads > 0
    }
}

/// Closes a descriptor without waiting for it. Where no thread can be made: at once.
pub fn close(fd: OwnedFd) {
    let closers = made();
    let mut queue = closers.queue.lock().unwrap_or_else(PoisonError::into_inner);
    queue.fds.push_back(fd);
    closers.open.fetch_add(1, Ordering::Relaxed);
    if closers.staffed(&mut queue) {
        drop(queue);
        closers.come.notify_one();
    } else {
        let fds = std::mem::take(&mut queue.fds);
        drop(queue);
        closers.open.fetch_sub(fds.len(), Ordering::Relaxed);
    }
}

/// A quarter of the descriptors that the process may have.
fn room() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let quarter = limit.map_or(MOST_ROOM, |limit| usize::try_from(limit / 4).unwrap_or(MOST_ROOM));
    quarter.clamp(LEAST_ROOM, MOST_ROOM)
}

/// False while so much waits to be closed that no possible stranger should be let in.
pub fn has_room() -> bool {
    closers().is_none_or(|closers| {
        let open = closers.open.load(Ordering::Relaxed);
        open < LEAST_ROOM || open < room()
    })
}

/// In a forked child, which has no such threads. Async-signal-safe.
pub fn forget() {
    CLOSERS_OF_PROCESS.store(ptr::null_mut(), Ordering::Release);
}

/// Blocks all signals for the calling thread: handlers of the program must not run on a thread of the library's.
pub fn deaf() {
    // SAFETY: an all-zero sigset_t is a valid value to be filled; both calls only touch it and the thread's mask.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut set);
        libc::pthread_sigmask(libc::SIG_SETMASK, &set, ptr::null_mut());
    }
}

#[cfg(all(test, not(loom), not(miri)))]
pub(crate) mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::time::{Duration, Instant};

    use super::*;

    /// A connection that takes seconds to close: its buffers are full, and its reader does not read.
    pub(crate) fn slow_to_close(seconds: i32) -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        near.set_nonblocking(true).unwrap();
        while near.write(&[0; 1 << 16]).is_ok() {}
        let linger = libc::linger { l_onoff: 1, l_linger: seconds };
        // SAFETY: reads a live local of the size given.
        let done = unsafe {
            let (at, len) = ((&raw const linger).cast(), size_of::<libc::linger>() as libc::socklen_t);
            libc::setsockopt(near.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, at, len)
        };
        assert_eq!(done, 0);
        (near.into(), far)
    }

    #[test]
    fn nobody_waits_for_what_is_slow_to_close() {
        let began = Instant::now();
        let (slow, far): (Vec<_>, Vec<_>) = (0..LEAST_ROOM + 12).map(|_| slow_to_close(60)).unzip();
        slow.into_iter().for_each(close);
        let quick = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        close(quick);
        assert!(has_room(), "140 that are slow to close shut the door");
        let threads = closers().unwrap().queue.lock().unwrap().threads;
        assert!((1..=CLOSERS).contains(&threads), "{threads} threads");
        assert!(began.elapsed() < Duration::from_secs(30), "it was waited for");
        drop(far); // a reset: there is nothing left to wait for
        while closers().unwrap().open.load(Ordering::Relaxed) > 0 {
            assert!(began.elapsed() < Duration::from_secs(50), "it is still not closed");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
