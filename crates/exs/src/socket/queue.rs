//! Event queues.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rdma::Errno;

use super::Socket;
use super::shared::Shared;

/// The time for which a thread that waits looks at the wire itself before it sleeps.
const LOOK: Duration = Duration::from_micros(50);

/// The kind of operation that an event ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventKind {
    /// EXS_EVT_CONNECT.
    Connect,
    /// EXS_EVT_ACCEPT.
    Accept,
    /// EXS_EVT_SEND.
    Send,
    /// EXS_EVT_RECV.
    Receive,
    /// EXS_EVT_CLOSE.
    Close,
}

/// The end of an operation.
#[derive(Debug)]
pub struct Event {
    /// The operation.
    pub kind: EventKind,
    /// The number that the program gave to it.
    pub handle: u64,
    /// Bytes that were transferred, or the reason why it failed.
    pub result: Result<u64, Errno>,
    /// A packet was longer than the buffer (MSG_TRUNC).
    pub truncated: bool,
    /// A receive found the end of the peer's data.
    pub end: bool,
    /// The connection of an ACCEPT.
    pub socket: Option<Arc<Socket>>,
}

impl Event {
    pub(super) fn new(kind: EventKind, handle: u64, result: Result<u64, Errno>) -> Event {
        Event { kind, handle, result, truncated: false, end: false, socket: None }
    }
}

#[derive(Default)]
struct State {
    events: VecDeque<Event>,
    /// Operations that will bring an event, and events that are there.
    places: usize,
}

/// A queue of events. An operation reserves a place, so no event is lost.
pub struct Queue {
    shared: Weak<Shared>,
    depth: usize,
    state: Mutex<State>,
    came: Condvar,
}

impl Queue {
    pub(super) fn new(shared: &Arc<Shared>, depth: usize) -> Queue {
        Queue { shared: Arc::downgrade(shared), depth, state: Mutex::default(), came: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take a place. EAGAIN: there is none.
    pub(super) fn reserve(&self) -> Result<(), Errno> {
        let mut state = self.state();
        if state.places >= self.depth {
            return Err(Errno(libc::EAGAIN));
        }
        state.places += 1;
        Ok(())
    }

    /// Give a place back whose operation was refused.
    pub(super) fn release(&self) {
        self.state().places -= 1;
    }

    /// Put an event into its place.
    pub(super) fn put(&self, event: Event) {
        self.state().events.push_back(event);
        self.came.notify_all();
    }

    /// Events that wait.
    pub fn len(&self) -> usize {
        self.state().events.len()
    }

    /// True if no event waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Wait until `least` events are there or the time is over (`None`: for ever), and take up to `most`. Without
    /// `least` the call does not wait.
    pub fn dequeue(&self, most: usize, least: usize, timeout: Option<Duration>) -> Vec<Event> {
        let since = Instant::now();
        let least = least.min(most);
        let shared = self.shared.upgrade();
        if let Some(shared) = &shared {
            let _polls = shared.begin_poll();
            loop {
                shared.progress(false);
                if self.len() >= least || since.elapsed() >= timeout.unwrap_or(LOOK).min(LOOK) {
                    break;
                }
                std::hint::spin_loop();
            }
        }
        let mut state = self.state();
        while state.events.len() < least {
            let left = timeout.map(|timeout| timeout.saturating_sub(since.elapsed()));
            if left == Some(Duration::ZERO) {
                break;
            }
            state = match left {
                None => self.came.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) => self.came.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        let count = most.min(state.events.len());
        state.places -= count;
        state.events.drain(..count).collect()
    }
}
