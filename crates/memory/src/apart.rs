//! Closing what somebody else has filled.
//!
//! What lies in a socket unread is closed with it, descriptors included, and may take as long as who put them there likes: a TCP
//! connection with SO_LINGER and a peer that does not read (socket(7)) holds up whoever closes it last, O_NONBLOCK or not. Any user
//! of the machine can connect to a socket with an abstract name and send one before he is found to be a stranger. So strangers'
//! sockets are closed on a thread that has nothing else to do; while that one has too much to do ([`has_room`]), nobody is let in.

use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

/// So many may wait to be closed before nobody is let in: a small part of the descriptors that most processes may have.
const MOST: usize = 128;

/// The thread, as others see it.
struct Closer {
    to: Sender<OwnedFd>,
    /// How many it has not closed yet.
    waiting: Arc<AtomicUsize>,
}

/// Made when it is first needed, and never freed.
static CLOSER: AtomicPtr<Closer> = AtomicPtr::new(ptr::null_mut());

fn closer() -> Option<&'static Closer> {
    // SAFETY: null, or from Box::leak in `made`.
    unsafe { CLOSER.load(Ordering::Acquire).as_ref() }
}

fn made() -> Option<&'static Closer> {
    if let Some(closer) = closer() {
        return Some(closer);
    }
    let (to, from) = channel::<OwnedFd>();
    let waiting = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&waiting);
    let run = move || {
        deaf();
        for fd in from {
            drop(fd);
            count.fetch_sub(1, Ordering::Relaxed);
        }
    };
    std::thread::Builder::new().name("softrnic-close".into()).stack_size(64 << 10).spawn(run).ok()?;
    let new = Box::leak(Box::new(Closer { to, waiting }));
    match CLOSER.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(new),
        Err(_) => {
            // Somebody else was quicker.
            // SAFETY: leaked just now, and shown to nobody. Its thread ends with its sender.
            drop(unsafe { Box::from_raw(ptr::from_mut(new)) });
            closer()
        }
    }
}

/// Closes a stranger's descriptor, without waiting for it. Where no thread can be made: at once.
pub fn close(fd: OwnedFd) {
    let Some(closer) = made() else { return };
    closer.waiting.fetch_add(1, Ordering::Relaxed);
    let _ = closer.to.send(fd);
}

/// False while so much waits to be closed that nobody should be let in who may be a stranger.
pub fn has_room() -> bool {
    closer().is_none_or(|closer| closer.waiting.load(Ordering::Relaxed) < MOST)
}

/// In a forked child, which has no such thread. Async-signal-safe.
pub fn forget() {
    CLOSER.store(ptr::null_mut(), Ordering::Release);
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
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::time::{Duration, Instant};

    use super::*;

    /// A connection whose close takes seconds: its buffers are full, and who should read does not.
    fn slow_to_close(seconds: i32) -> (OwnedFd, TcpStream) {
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
        let (slow, far) = slow_to_close(60);
        close(slow);
        assert!(has_room());
        for _ in 0..MOST {
            close(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap());
        }
        assert!(!has_room());
        assert!(began.elapsed() < Duration::from_secs(30), "it was waited for");
        drop(far); // a reset: there is nothing left to wait for
        while !has_room() {
            assert!(began.elapsed() < Duration::from_secs(50), "it is still not closed");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
