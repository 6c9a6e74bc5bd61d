//! Completion channels: a descriptor that a program can wait on, and the completion queues that have an event.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use ::verbs::{CqId, Errno, Result};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
#[cfg(test)]
use rustix::fd::BorrowedFd;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::{IoSliceMut, ReadWriteFlags};

use crate::waiters::{FORKED, Waited, Waiters};
use crate::{Nic, errno};

/// An eventfd that counts the elements of the queue beside it: a read takes one.
pub struct Bell(pub OwnedFd);

impl Bell {
    /// Make a bell that has not rung.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM: as eventfd2(2).
    pub fn new() -> Result<Self> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE).map(Bell).map_err(errno)
    }

    /// Count one more element of the queue.
    pub fn ring(&self) {
        // The count cannot overflow: the queue beside it would have to hold 2^64 entries.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Wait for one ring.
    ///
    /// # Errors
    /// EAGAIN: O_NONBLOCK is set on the descriptor and no ring is there; EINTR: as read(2) gives it.
    pub fn wait(&self) -> Result<()> {
        let mut count = [0u8; 8];
        rustix::io::read(&self.0, &mut count).map(|_| ()).map_err(errno)
    }

    /// Take a ring back whose element was removed, if the ring is still there. This never waits, also where the
    /// descriptor would: another thread may take the ring at any moment, and the caller holds locks.
    pub fn take_back(&self) {
        let mut count = [0u8; 8];
        let mut into = [IoSliceMut::new(&mut count)];
        let _ = rustix::io::preadv2(&self.0, &mut into, u64::MAX, ReadWriteFlags::NOWAIT);
    }

    /// True if the program has set O_NONBLOCK on the descriptor.
    pub fn nonblocking(&self) -> bool {
        rustix::fs::fcntl_getfl(self.0.as_fd()).is_ok_and(|f| f.contains(rustix::fs::OFlags::NONBLOCK))
    }
}

/// A completion channel (`ibv_create_comp_channel(3)`).
pub struct CompChannel {
    bell: Bell,
    queue: Mutex<VecDeque<(CqId, u64)>>,
    users: AtomicU32,
    /// Events that were added whose rings are still to be made ([`CompChannel::ring`]).
    owed: AtomicU32,
    waiters: Waiters,
}

impl Waited for CompChannel {
    fn fd(&self) -> i32 {
        self.bell.0.as_raw_fd()
    }

    fn waiters(&self) -> &Waiters {
        &self.waiters
    }
}

impl CompChannel {
    /// Add an event, under the adapter's lock. The caller rings ([`CompChannel::ring`]), also behind the lock.
    pub(crate) fn push(&self, cq: CqId, user: u64) {
        self.owed.fetch_add(1, Ordering::Relaxed);
        self.queue.lock().push_back((cq, user));
    }

    /// Wake a thread for an event that was added.
    pub(crate) fn ring(&self) {
        self.bell.ring();
        self.owed.fetch_sub(1, Ordering::Release);
    }

    /// Wait until all events have their rings. A queue whose events are to be taken back adds no more. In the child of
    /// a fork the thread that was about to ring may be missing.
    fn await_rings(&self) {
        let until = Instant::now() + FORKED;
        while self.owed.load(Ordering::Acquire) > 0 && Instant::now() < until {
            std::thread::yield_now();
        }
    }

    /// The part of the report that is about the channel and one of its queues.
    pub(crate) fn facts(&self, cq: CqId) -> report::facts::Channel {
        report::facts::Channel {
            fd: self.fd(),
            unread: self.queue.lock().iter().filter(|(id, _)| *id == cq).count() as u32,
            waiters: self.waiters.count(),
        }
    }

    fn forget(&self, cq: CqId) {
        let mut queue = self.queue.lock();
        let before = queue.len();
        queue.retain(|(id, _)| *id != cq);
        for _ in queue.len()..before {
            self.bell.take_back();
        }
    }
}

impl Nic {
    /// Make a channel.
    pub fn create_channel(&self) -> Result<Arc<CompChannel>> {
        Ok(Arc::new(CompChannel {
            bell: Bell::new()?,
            queue: Mutex::default(),
            users: AtomicU32::new(0),
            owed: AtomicU32::new(0),
            waiters: Waiters::default(),
        }))
    }

    /// Destroy a channel: EBUSY while completion queues use it (`ibv_destroy_comp_channel(3)`).
    pub fn destroy_channel(&self, channel: &Arc<CompChannel>) -> Result<()> {
        if channel.users.load(Ordering::Relaxed) > 0 {
            return Err(Errno::EBUSY);
        }
        self.outlived.0.keep(channel.clone());
        Ok(())
    }

    /// Send the events of this queue to this channel.
    pub fn bind_cq_channel(&self, cq: CqId, channel: &Arc<CompChannel>) {
        channel.users.fetch_add(1, Ordering::Relaxed);
        self.lock().channels.insert(cq, channel.clone());
    }

    pub(crate) fn unbind_cq_channel(&self, cq: CqId) {
        let mut core = self.lock();
        let channel = core.channels.remove(&cq);
        if core.channels.is_empty() {
            core.await_events(false);
        }
        drop(core);
        if let Some(channel) = channel {
            channel.await_rings();
            channel.forget(cq);
            channel.users.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Wait for an event (`ibv_get_cq_event(3)`), and return the token of its queue. The program must acknowledge the
    /// event.
    ///
    /// # Errors
    /// EAGAIN: O_NONBLOCK is set and no event waits; EINTR: a signal handler ran.
    pub fn get_cq_event(&self, channel: &CompChannel) -> Result<u64> {
        loop {
            channel.waiters.enter();
            let rung = channel.bell.wait();
            channel.waiters.leave();
            rung?;
            if let Some(user) = self.take_cq_event(channel) {
                return Ok(user);
            }
        }
    }

    /// Take the next event of a channel whose descriptor the caller has read. `None`: the event has gone with its
    /// queue.
    pub fn take_cq_event(&self, channel: &CompChannel) -> Option<u64> {
        let mut unacked = self.unacked.lock();
        let (cq, user) = channel.queue.lock().pop_front()?;
        *unacked.cqs.entry(cq).or_default() += 1;
        Some(user)
    }
}

#[cfg(test)]
impl CompChannel {
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.0.as_fd()
    }
}

#[cfg(test)]
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else a channel would stay readable, or its descriptor open, behind the destruction of its queue.
    #[test]
    fn rings_that_are_owed_are_awaited() {
        let nic = Nic::new(report::Settings::of_process()).unwrap();
        let (channel, cq) = (nic.create_channel().unwrap(), CqId { index: 3, generation: 1 });
        nic.bind_cq_channel(cq, &channel);
        channel.push(cq, 7);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(20));
                channel.ring();
            });
            nic.unbind_cq_channel(cq);
            assert_eq!(channel.owed.load(Ordering::Relaxed), 0);
        });
        assert!(!is_readable(channel.bell()) && channel.facts(cq).unread == 0);
    }

    #[test]
    fn rings_are_taken_back_without_waiting() {
        let bell = Bell::new().unwrap();
        bell.ring();
        bell.ring();
        bell.take_back();
        bell.wait().unwrap();
        bell.take_back(); // nothing is there: another thread may have been faster
        bell.ring();
        bell.take_back();
        assert!(!is_readable(bell.0.as_fd()));
    }
}
