//! The thread for what no thread of the program waits for: TCP sockets that are not ready, polls, and times that end
//! operations. It sleeps in poll(2), and is started by the first operation that needs it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use rdma::Errno;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::entry::without_signals;
use crate::pages::let_faults_in;
use crate::poll::Poll;
use crate::queue::Queue;
use crate::tcp::Tcp;

/// The thread, and what it looks after.
pub struct Service {
    wake: OwnedFd,
    /// The descriptor is readable, or the thread is about to look.
    woken: AtomicBool,
    /// Polls of sockets of this library.
    polls: AtomicUsize,
    /// Held while the thread looks at the polls, which are not in `work` meanwhile: a poll that is to be cancelled is
    /// found in `work`, or it has ended.
    looking: Mutex<()>,
    work: Mutex<Work>,
}

#[derive(Default)]
struct Work {
    tcps: Vec<Arc<Tcp>>,
    polls: Vec<Poll>,
    /// Queues that have operations with a deadline.
    timed: Vec<Weak<Queue>>,
    /// The time at which the thread looks at them; `None`: it has not looked yet.
    next: Option<Instant>,
}

static SERVICE: OnceLock<Service> = OnceLock::new();

/// The thread. EAGAIN, EMFILE: it cannot be started.
pub fn service() -> Result<&'static Service, Errno> {
    static STARTING: Mutex<()> = Mutex::new(());
    if let Some(service) = SERVICE.get() {
        return Ok(service);
    }
    let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(service) = SERVICE.get() {
        return Ok(service);
    }
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let wake = wake.map_err(|errno| Errno(errno.raw_os_error()))?;
    let made = Service {
        wake,
        woken: AtomicBool::new(false),
        polls: AtomicUsize::new(0),
        looking: Mutex::default(),
        work: Mutex::default(),
    };
    let service = SERVICE.get_or_init(|| made);
    // A time that ends an operation may move what waits behind it.
    let run = || {
        let_faults_in();
        service.run();
    };
    let started = without_signals(|| std::thread::Builder::new().name("exs-service".into()).spawn(run));
    started.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EAGAIN)))?;
    Ok(service)
}

/// Look at the polls again, if there are any: something may be ready.
pub fn changed() {
    if let Some(service) = SERVICE.get()
        && service.polls.load(Ordering::SeqCst) > 0
    {
        service.kick();
    }
}

impl Service {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kick(&self) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            // A counter that is full is readable.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Look after a TCP socket that has operations.
    pub fn add_tcp(&self, tcp: Arc<Tcp>) {
        self.work().tcps.push(tcp);
        self.kick();
    }

    /// The interest of a TCP socket that is looked after has changed.
    pub fn renew(&self) {
        self.kick();
    }

    /// A TCP socket has no operation left.
    pub fn remove_tcp(&self, tcp: &Arc<Tcp>) {
        self.work().tcps.retain(|other| !Arc::ptr_eq(other, tcp));
        // The thread has the second descriptor while it waits, and a connection ends with its last one.
        self.kick();
    }

    /// Look after a poll.
    pub fn add_poll(&self, poll: Poll) {
        self.polls.fetch_add(1, Ordering::SeqCst);
        self.work().polls.push(poll);
        self.kick();
    }

    /// End polls without a result; how many.
    pub fn cancel_poll(&self, queue: &Arc<exs::socket::Queue>, key: u64) -> usize {
        // Nothing waits under it: the thread asks the kernel and the sockets how they are.
        let looking = self.looking();
        let mut work = self.work();
        let before = work.polls.len();
        let (ended, rest) = std::mem::take(&mut work.polls).into_iter().partition(|poll| poll.is(queue, key));
        work.polls = rest;
        drop(work);
        drop(looking);
        let ended: Vec<Poll> = ended;
        self.polls.fetch_sub(ended.len(), Ordering::SeqCst);
        let count = ended.len();
        debug_assert!(count <= before);
        for poll in ended {
            poll.cancel();
        }
        count
    }

    /// Look after a queue, one of whose operations has a deadline.
    pub fn add_deadline(&self, queue: &Arc<Queue>, deadline: Instant) {
        let mut work = self.work();
        if !work.timed.iter().any(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(queue))) {
            work.timed.push(Arc::downgrade(queue));
        }
        // A later one is found when the thread looks at the earlier one.
        if work.next.is_none_or(|next| deadline < next) {
            work.next = Some(deadline);
            drop(work);
            self.kick();
        }
    }

    fn run(&self) {
        loop {
            let (tcps, foreign, until) = self.gather();
            let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
            let sockets: Vec<_> = tcps.iter().filter_map(|tcp| tcp.interest().map(|found| (tcp, found))).collect();
            fds.extend(sockets.iter().map(|(_, (fd, flags))| PollFd::new(fd, *flags)));
            // SAFETY: a number that the program has named: the kernel says what it is (POLLNVAL), and nothing else is
            // done with it.
            let borrowed = |fd: i32| unsafe { BorrowedFd::borrow_raw(fd) };
            fds.extend(foreign.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(borrowed(*fd), *flags)));
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            // Rounded up: a wait that ends too early would be followed by others of no length.
            let left = left.map(|left| left + Duration::from_micros(1));
            let time = left.map(|left| Timespec {
                tv_sec: left.as_secs().min(1 << 30) as i64,
                tv_nsec: left.subsec_nanos().into(),
            });
            // It fails for want of memory only. Then all is looked at, and the wait is tried again.
            if poll(&mut fds, time.as_ref()).is_err() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let ready: Vec<bool> = fds[1..=sockets.len()].iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            // In this order: a kick behind the read would find `woken`, and leave the descriptor as it is, for ever if
            // its own write were the one that is read.
            let _ = rustix::io::read(self.wake.as_fd(), &mut [0; 8]);
            self.woken.store(false, Ordering::SeqCst);
            let ready: Vec<Arc<Tcp>> =
                sockets.iter().zip(ready).filter(|(_, ready)| *ready).map(|((tcp, _), _)| (*tcp).clone()).collect();
            drop(sockets);
            for tcp in ready {
                tcp.ready();
            }
            self.look_at_polls();
            self.look_at_deadlines();
        }
    }

    /// What is to be waited for: sockets, descriptors of polls, the next deadline.
    #[allow(clippy::type_complexity, reason = "three lists for one caller")]
    fn gather(&self) -> (Vec<Arc<Tcp>>, Vec<(i32, PollFlags)>, Option<Instant>) {
        let work = self.work();
        let foreign = work.polls.iter().flat_map(Poll::foreign).collect();
        let ends = work.polls.iter().filter_map(Poll::deadline).chain(work.next);
        (work.tcps.clone(), foreign, ends.min())
    }

    fn looking(&self) -> MutexGuard<'_, ()> {
        self.looking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look_at_polls(&self) {
        let _looking = self.looking();
        let polls = std::mem::take(&mut self.work().polls);
        if polls.is_empty() {
            return;
        }
        let now = Instant::now();
        // Those that are added meanwhile kick the thread.
        for poll in polls {
            match poll.look(now) {
                None => {
                    self.polls.fetch_sub(1, Ordering::SeqCst);
                }
                Some(poll) => self.work().polls.push(poll),
            }
        }
    }

    fn look_at_deadlines(&self) {
        let now = Instant::now();
        let queues = {
            let mut work = self.work();
            if work.next.is_none_or(|next| next > now) {
                return;
            }
            work.next = None;
            std::mem::take(&mut work.timed)
        };
        for queue in queues.iter().filter_map(Weak::upgrade) {
            if let Some(next) = queue.expire(now) {
                self.add_deadline(&queue, next);
            }
        }
    }
}
