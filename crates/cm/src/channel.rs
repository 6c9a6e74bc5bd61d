//! Event channels: a descriptor that a program can wait on, and the events that wait.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use nic::Bell;
use parking_lot::Mutex;
use verbs::Result;

use crate::event::Event;
use crate::ids::IdKey;

/// An event on its way.
pub(crate) struct Queued {
    /// The id that it is counted for; for a request: the listener.
    pub id: IdKey,
    /// The id that a request has made.
    pub child: Option<IdKey>,
    pub event: Event,
}

/// An event that the program has got. It must be acknowledged.
pub struct Got {
    /// The id that it is counted for.
    pub(crate) id: IdKey,
    /// What the id was created with: the listener's for a request.
    pub token: u64,
    /// The id that a request has made.
    pub child: Option<IdKey>,
    /// The event.
    pub event: Event,
}

/// An event channel (rdma_create_event_channel(3)).
pub struct Channel {
    pub(crate) bell: Bell,
    pub(crate) queue: Mutex<VecDeque<Queued>>,
}

impl Channel {
    /// A new one.
    ///
    /// # Errors
    /// EMFILE and its like.
    pub fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Channel { bell: Bell::new()?, queue: Mutex::default() }))
    }

    /// The descriptor: readable while an event waits. The program may set O_NONBLOCK on it, poll it, add it to epoll.
    pub fn fd(&self) -> i32 {
        self.bell.0.as_raw_fd()
    }

    /// The program has set O_NONBLOCK on the descriptor.
    pub fn nonblocking(&self) -> bool {
        self.bell.nonblocking()
    }

    pub(crate) fn push(&self, queued: Queued) {
        self.queue.lock().push_back(queued);
        self.bell.ring();
    }

    /// Puts it before all others.
    pub(crate) fn push_front(&self, queued: Queued) {
        self.queue.lock().push_front(queued);
        self.bell.ring();
    }

    /// Takes out what the test names; the rest keeps its order.
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
