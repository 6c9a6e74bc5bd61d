//! Event channels: a descriptor that a program can wait on, and the events that wait.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nic::{Bell, Waited, Waiters};
use parking_lot::Mutex;
use verbs::Result;

use crate::event::Event;
use crate::ids::IdKey;

/// An event that waits in a channel.
pub(crate) struct Queued {
    /// The id that the event is counted for; for a request: the listener.
    pub id: IdKey,
    /// The id that was made for a request.
    pub child: Option<IdKey>,
    pub event: Event,
}

/// An event that the program has got. It must be acknowledged.
pub struct Got {
    /// The id that the event is counted for.
    pub(crate) id: IdKey,
    /// The token with which the id was created; for a request: the listener's.
    pub token: u64,
    /// The id that was made for a request.
    pub child: Option<IdKey>,
    /// The event.
    pub event: Event,
}

/// An event channel (rdma_create_event_channel(3)).
pub struct Channel {
    pub(crate) bell: Bell,
    pub(crate) queue: Mutex<VecDeque<Queued>>,
    /// The thread that has taken the last event; 0: none.
    taker: AtomicU32,
    waiters: Waiters,
}

impl Waited for Channel {
    fn fd(&self) -> i32 {
        self.bell.0.as_raw_fd()
    }

    fn waiters(&self) -> &Waiters {
        &self.waiters
    }
}

impl Channel {
    /// Make a channel without events.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM: as eventfd2(2).
    pub fn new() -> Result<Arc<Self>> {
        let (queue, taker, waiters) = (Mutex::default(), AtomicU32::new(0), Waiters::default());
        Ok(Arc::new(Channel { bell: Bell::new()?, queue, taker, waiters }))
    }

    /// True if the program has set O_NONBLOCK on the descriptor.
    pub fn nonblocking(&self) -> bool {
        self.bell.nonblocking()
    }

    /// The system's number of the thread that has taken the last event. Where one thread serves a channel, as in most
    /// programs, that one will come for the next event.
    pub fn taker(&self) -> Option<u32> {
        Some(self.taker.load(Ordering::Relaxed)).filter(|thread| *thread != 0)
    }

    /// Take the first event.
    pub(crate) fn take(&self) -> Option<Queued> {
        let queued = self.queue.lock().pop_front()?;
        self.taker.store(nic::this_thread(), Ordering::Relaxed);
        Some(queued)
    }

    pub(crate) fn push(&self, queued: Queued) {
        self.queue.lock().push_back(queued);
        self.bell.ring();
    }

    /// Put an event before all others.
    pub(crate) fn push_front(&self, queued: Queued) {
        self.queue.lock().push_front(queued);
        self.bell.ring();
    }

    /// Take out the events that the test selects; the others keep their order.
    pub(crate) fn take_out(&self, mut which: impl FnMut(&Queued) -> bool) -> Vec<Queued> {
        let mut queue = self.queue.lock();
        let (out, stay): (VecDeque<_>, VecDeque<_>) = queue.drain(..).partition(|q| which(q));
        *queue = stay;
        for _ in &out {
            self.bell.take_back();
        }
        out.into()
    }
}
