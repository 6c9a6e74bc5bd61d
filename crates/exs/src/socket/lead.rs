//! A thread of the program that waits for completions in the channel itself.
//!
//! The thread of [`super::Exs`] would take each completion and then wake the thread that waits for its event: two
//! threads awake for one event. So a thread that waits while no other does *leads*: it sleeps in poll(2) on the
//! channel, and the thread of `Exs` leaves the channel to it, also between two such waits. Other threads sleep in
//! futex(2), and the thread of `Exs` serves the channel for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rdma::Errno;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::io;
use rustix::time::Timespec;

use super::completions::How;
use super::shared::Shared;

/// Whether a thread leads.
pub(super) struct Lead {
    leads: AtomicBool,
    /// The last thread that waited led.
    led: AtomicBool,
    /// The thread of `Exs` sleeps in the channel, or is about to.
    serves: AtomicBool,
    /// The waits of threads that led, since the thread of `Exs` last asked.
    waits: AtomicU32,
    /// A sleep was ended by an event of the channel, which has not been taken from there.
    untaken: AtomicBool,
    /// Wakes the thread that leads.
    wake: OwnedFd,
}

impl Lead {
    pub fn new() -> Result<Lead, Errno> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = wake.map_err(|errno| Errno(errno.raw_os_error()))?;
        let flag = || AtomicBool::new(false);
        Ok(Lead { leads: flag(), led: flag(), serves: flag(), waits: AtomicU32::new(0), untaken: flag(), wake })
    }

    /// True if a thread leads.
    pub fn leads(&self) -> bool {
        self.leads.load(Ordering::SeqCst)
    }

    /// For the thread of `Exs`, before it sleeps: true if it has to sleep in the channel. `watching`: it only looks now
    /// and then whether the program still does.
    pub fn begin_serving(&self, watching: bool, is_awaited: impl Fn() -> bool) -> bool {
        // False before `is_awaited` is read: a thread that begins to wait is seen, or sees this.
        self.serves.store(false, Ordering::SeqCst);
        let left = self.led.load(Ordering::SeqCst) && (watching || self.leads());
        let serves = is_awaited() || !left;
        self.serves.store(serves, Ordering::SeqCst);
        serves
    }

    /// A thread waits that does not lead. True: the thread of `Exs` must be woken to serve the channel.
    pub fn follow(&self) -> bool {
        self.led.store(false, Ordering::SeqCst);
        !self.serves.load(Ordering::SeqCst)
    }

    /// The waits that have ended since the last question.
    pub fn take_waits(&self) -> u32 {
        self.waits.swap(0, Ordering::Relaxed)
    }

    /// Wake the thread that leads.
    pub fn wake(&self) {
        // It fails only if it would block: then the thread is being woken.
        let _ = io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// The calling thread leads as long as this lives.
pub(super) struct Leads(Arc<Shared>);

impl Leads {
    /// None: another thread waits, and the calling one is to follow.
    pub fn begin(shared: &Arc<Shared>) -> Option<Leads> {
        if shared.is_awaited() || shared.lead.leads.swap(true, Ordering::SeqCst) {
            return None;
        }
        shared.lead.led.store(true, Ordering::SeqCst);
        Some(Leads(shared.clone()))
    }

    /// Sleep until the next completion after [`Leads::arm`], until [`Lead::wake`], or so long. EINTR: a signal has
    /// ended the sleep.
    pub fn sleep(&self, longest: &Timespec) -> io::Result<()> {
        let (lead, channel) = (&self.0.lead, &self.0.device.completions.channel);
        let mut fds = [PollFd::new(channel, PollFlags::IN), PollFd::new(&lead.wake, PollFlags::IN)];
        poll(&mut fds, Some(longest))?;
        let [came, woken] = [0, 1].map(|at| !fds[at].revents().is_empty());
        if woken {
            let _ = io::read(&lead.wake, &mut [0; 8]);
        }
        if came {
            lead.untaken.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Hand on what has come; what comes from now on ends the next sleep.
    pub fn arm(&self) {
        let shared = &self.0;
        // The event that ended the last sleep is taken only now: the program answers a message first, and the system
        // calls for it pass while the answer travels. It is taken before the queue is armed: if the thread of `Exs` has
        // taken it meanwhile, this takes a later one, whose completion the look finds. Another event of another queue
        // ends the next sleep. No event is taken without arming: if another thread gets all that a look has found, this
        // one sleeps again, and only an event that is still there, or an armed queue, ends that.
        if shared.lead.untaken.swap(false, Ordering::Relaxed) {
            let _ = shared.device.completions.channel.try_event();
        }
        shared.progress();
    }

    /// Hand on what has come.
    pub fn look(&self) {
        self.0.look(How::All, None);
    }
}

impl Drop for Leads {
    fn drop(&mut self) {
        let shared = &self.0;
        // Before `watching` and `is_awaited` are read: the thread of `Exs`, or one that waits, sees this or is seen.
        shared.lead.leads.store(false, Ordering::SeqCst);
        shared.lead.waits.fetch_add(1, Ordering::Relaxed);
        shared.looked();
        if shared.is_awaited() {
            shared.follow();
        }
    }
}
