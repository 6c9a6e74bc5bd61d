//! Event channels: a descriptor that a program can wait on, and the events that wait.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use nic::Bell;
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
}

impl Channel {
    /// Make a channel without events.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM: as eventfd2(2).
    pub fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Channel { bell: Bell::new()?, queue: Mutex::default() }))
    }

    /// The descriptor: readable while an event waits. The program may set O_NONBLOCK on it, poll it, add it to epoll.
    pub fn fd(&self) -> i32 {
        self.bell.0.as_raw_fd()
    }

    /// True if the program has set O_NONBLOCK on the descriptor.
    pub fn nonblocking(&self) -> bool {
        self.bell.nonblocking()
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
