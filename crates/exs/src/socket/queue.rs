//! Event queues.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use memory::biased::{Mutex, MutexGuard};
use rdma::Errno;
use rustix::thread::futex;
use rustix::time::Timespec;

use super::lead::Leads;
use super::patience::{Look, Patience};
use super::shared::{Shared, Sleeps};
use super::{Socket, not_in_child};

/// Looks between two readings of the clock.
const TURNS: u32 = 128;
/// The longest sleep. A sleep with a limit ends at every signal that has a handler; one without goes on if the handler
/// has SA_RESTART (signal(7), futex(2)).
const LONGEST: Duration = Duration::from_secs(3600);

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
    /// An operation of the holder of the queue ([`Queue::put`]), which knows its kind by the handle.
    Other,
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
    /// An event of an operation with this handle, without a mark and without a connection.
    pub fn new(kind: EventKind, handle: u64, result: Result<u64, Errno>) -> Event {
        Event { kind, handle, result, truncated: false, end: false, socket: None }
    }
}

/// An [`Event`] in its queue. It has four words, so it lies within a cache line. What an event has in single bytes is
/// one word here: a copy by words soon after the bytes were stored one by one waits for the stores, and an event is
/// mostly taken at once.
struct Kept {
    handle: u64,
    /// The bytes, or the number of the error.
    value: u64,
    /// Bits 0-7 are the kind; then the marks.
    word: u64,
    socket: Option<Arc<Socket>>,
}

const FAILED: u64 = 1 << 8;
const TRUNCATED: u64 = 1 << 9;
const END: u64 = 1 << 10;

impl Kept {
    #[inline(always)]
    fn new(event: Event) -> Kept {
        let Event { kind, handle, result, truncated, end, socket } = event;
        let (value, failed) = match result {
            Ok(bytes) => (bytes, false),
            Err(Errno(errno)) => (errno as u64, true),
        };
        let mark = |is: bool, mark: u64| if is { mark } else { 0 };
        let word = kind as u64 | mark(failed, FAILED) | mark(truncated, TRUNCATED) | mark(end, END);
        Kept { handle, value, word, socket }
    }

    #[inline(always)]
    fn event(self) -> Event {
        const KINDS: [EventKind; 6] = [
            EventKind::Connect,
            EventKind::Accept,
            EventKind::Send,
            EventKind::Receive,
            EventKind::Close,
            EventKind::Other,
        ];
        let Kept { handle, value, word, socket } = self;
        let kind = KINDS.get(word as usize & 0xff).copied().unwrap_or(EventKind::Other);
        let result = if word & FAILED == 0 { Ok(value) } else { Err(Errno(value as i32)) };
        Event { kind, handle, result, truncated: word & TRUNCATED != 0, end: word & END != 0, socket }
    }
}

/// How a thread waits for events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum WaitMode {
    /// Look at the wire for a short time, then sleep.
    #[default]
    Adaptive,
    /// Sleep at once.
    Notify,
    /// Look at the wire until the wait is over.
    BusyPoll,
}

/// A function that is told of a change: true when as many events wait as [`Queue::set_bell`] says, false when fewer do.
/// It is called with the queue's lock, and must not call the queue.
pub type Bell = Box<dyn Fn(bool) + Send + Sync>;

#[derive(Default)]
struct State {
    events: VecDeque<Kept>,
    /// Operations that will bring an event, and events that are there.
    places: usize,
    depth: usize,
    /// Threads that sleep, whether one of them leads, and the fewest events that one of them waits for.
    sleepers: usize,
    leads: bool,
    wanted: usize,
    bell: Option<Bell>,
    /// There while the bell is.
    bell_sleeps: Option<Sleeps>,
    /// The number of events at which the bell rings.
    threshold: usize,
    /// The last word of the bell.
    rung: bool,
}

/// The list of a thread that takes events of a queue, and looks at the wire meanwhile. An event that comes by this look
/// goes there directly, if none is in front of it: it need not be put into the queue, and taken from there.
pub(super) struct Taker<'a> {
    queue: &'a Queue,
    out: &'a mut Vec<Event>,
    /// Events for which there is room.
    room: usize,
    taken: usize,
}

impl Taker<'_> {
    /// End an operation of a queue, by the thread that has the lock of its connection.
    #[inline(always)]
    pub fn put(taker: Option<&mut Self>, queue: &Queue, event: Event) {
        match taker {
            // Those before it of this connection were put with the lock of the connection, so they count.
            Some(taker) if std::ptr::eq(taker.queue, queue) && taker.taken < taker.room && queue.is_empty() => {
                taker.out.push(event);
                taker.taken += 1;
            }
            _ => queue.put(event),
        }
    }
}

/// How a thread waits for the wire.
enum Waits {
    Leads(Leads),
    /// The thread of `Exs` brings events as long as this lives.
    Follows {
        _sleeps: Sleeps,
    },
}

impl Waits {
    /// What comes from now on ends the wait.
    fn begin(shared: &Arc<Shared>) -> Waits {
        let Some(leads) = Leads::begin(shared) else { return Waits::Follows { _sleeps: shared.begin_sleep() } };
        leads.arm();
        Waits::Leads(leads)
    }
}

impl State {
    /// Tell the bell of a change. `again`: events were taken, and it rings for those that are left.
    fn ring(&mut self, again: bool) {
        let due = self.events.len() >= self.threshold;
        if due != self.rung || due && again {
            self.rung = due;
            if let Some(bell) = &self.bell {
                bell(due);
            }
        }
    }
}

/// A queue of events. An operation reserves a place, so no event is lost.
pub struct Queue {
    /// None: it moves no bytes.
    shared: Option<Arc<Shared>>,
    state: Mutex<State>,
    /// How its threads wait.
    pub(super) patience: Patience,
    /// The number of events; written with the lock.
    count: AtomicUsize,
    /// There is a bell; written with the lock.
    has_bell: AtomicBool,
    /// Changes with every event: the word on which threads sleep.
    came: AtomicU32,
}

impl Queue {
    pub(super) fn new(shared: Option<Arc<Shared>>, depth: usize) -> Queue {
        let state = State { depth, threshold: 1, ..State::default() };
        let (count, has_bell, came) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicU32::new(0));
        Queue { shared, state: Mutex::new(state), patience: Patience::new(), count, has_bell, came }
    }

    /// A queue for operations of the holder alone, which moves no bytes. EINVAL: a depth of 0.
    pub fn alone(depth: usize) -> Result<Arc<Queue>, Errno> {
        if depth == 0 { Err(Errno(libc::EINVAL)) } else { Ok(Arc::new(Queue::new(None, depth))) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Take a place. EAGAIN: there is none. EBADF: this process is the child of a fork(2).
    #[inline]
    pub fn reserve(&self) -> Result<(), Errno> {
        not_in_child()?;
        let mut state = self.state();
        if state.places >= state.depth {
            return Err(Errno(libc::EAGAIN));
        }
        state.places += 1;
        Ok(())
    }

    /// Give a place back whose operation was refused.
    pub fn release(&self) {
        self.state().places -= 1;
    }

    /// Put an event into the place that its operation has reserved.
    #[inline]
    pub fn put(&self, event: Event) {
        let Kept { handle, value, word, socket } = Kept::new(event);
        self.keep(handle, value, word, socket);
    }

    /// The parts of a [`Kept`] come in registers.
    fn keep(&self, handle: u64, value: u64, word: u64, socket: Option<Arc<Socket>>) {
        let mut state = self.state();
        state.events.push_back(Kept { handle, value, word, socket });
        state.ring(false);
        self.count.store(state.events.len(), Ordering::Release);
        // No other thread writes: the lock is held.
        self.came.store(self.came.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if state.sleepers > 0 && state.events.len() >= state.wanted {
            let (leads, all) = (state.leads, state.sleepers == 1);
            drop(state);
            if let Some(shared) = self.shared.as_ref().filter(|_| leads) {
                shared.lead.wake();
            }
            if !(leads && all) {
                // It fails for no word that is mapped.
                let _ = futex::wake(&self.came, futex::Flags::PRIVATE, i32::MAX as u32);
            }
        }
    }

    /// Change the depth. EINVAL: 0. EBUSY: more places are in use.
    pub fn set_depth(&self, depth: usize) -> Result<(), Errno> {
        let mut state = self.state();
        if depth == 0 {
            return Err(Errno(libc::EINVAL));
        }
        if state.places > depth {
            return Err(Errno(libc::EBUSY));
        }
        state.depth = depth;
        Ok(())
    }

    /// The number of places.
    pub fn depth(&self) -> usize {
        self.state().depth
    }

    /// Places in use: operations that are pending, and events that wait.
    pub fn in_use(&self) -> usize {
        self.state().places
    }

    /// Change how threads wait that come from now on.
    pub fn set_waiting(&self, waiting: WaitMode) {
        self.patience.set_mode(waiting);
    }

    /// Have a bell rung when `threshold` events are there (0 counts as 1), and silenced when fewer are. After a call
    /// that takes events and leaves as many, it rings again.
    pub fn set_bell(&self, threshold: usize, bell: Option<Bell>) {
        // A program that waits for the bell need not look at the wire.
        let sleeps = self.shared.as_ref().filter(|_| bell.is_some()).map(Shared::begin_sleep);
        let mut state = self.state();
        self.has_bell.store(bell.is_some(), Ordering::Relaxed);
        (state.threshold, state.bell, state.rung) = (threshold.max(1), bell, false);
        let before = std::mem::replace(&mut state.bell_sleeps, sleeps);
        state.ring(false);
        drop(state);
        drop(before);
    }

    /// Events that wait.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// True if no event waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Wait until `least` events are there or the time is over (`None`: for ever), and take up to `most`. Without
    /// `least` the call does not wait. A signal does not end the wait. The child of a fork(2) gets none.
    pub fn dequeue(&self, most: usize, least: usize, timeout: Option<Duration>) -> Vec<Event> {
        let mut events = Vec::new();
        self.dequeue_into(&mut events, most, least, timeout);
        events
    }

    /// As [`Queue::dequeue`]; the events are added to a list.
    pub fn dequeue_into(&self, out: &mut Vec<Event>, most: usize, least: usize, timeout: Option<Duration>) {
        let mut began = None;
        while let Err(Errno(libc::EINTR)) = self.take_since(&mut began, out, most, least, timeout) {}
    }

    /// As [`Queue::dequeue`]. EINTR: a signal has ended the sleep before there were enough events, and none is taken.
    /// EBADF: as [`Queue::reserve`].
    pub fn take(&self, most: usize, least: usize, timeout: Option<Duration>) -> Result<Vec<Event>, Errno> {
        let mut events = Vec::new();
        self.take_into(&mut events, most, least, timeout)?;
        Ok(events)
    }

    /// As [`Queue::take`]; the events are added to a list.
    pub fn take_into(
        &self,
        out: &mut Vec<Event>,
        most: usize,
        least: usize,
        timeout: Option<Duration>,
    ) -> Result<(), Errno> {
        self.take_since(&mut None, out, most, least, timeout)
    }

    /// As [`Queue::take_into`]. `began`: the time of the first look that found too little. The reading of the clock
    /// costs as much as many looks.
    fn take_since(
        &self,
        began: &mut Option<Instant>,
        out: &mut Vec<Event>,
        most: usize,
        least: usize,
        timeout: Option<Duration>,
    ) -> Result<(), Errno> {
        not_in_child()?;
        let least = least.min(most);
        let mut taken = 0;
        let look = Look { quiet: self.patience.quiet(), all: timeout };
        if let Some(shared) = &self.shared {
            let _polls = shared.begin_poll();
            // A call that takes one event has what it waits for, and takes none that it would have to give back. The
            // bell is told of all.
            let direct = least <= 1 && !self.has_bell.load(Ordering::Relaxed);
            // A thread that need not wait looks once: a program that always finds events moves bytes, too.
            let turns = if self.len() < least && !look.is_none() { TURNS } else { 1 };
            let mut last = None;
            loop {
                let mut taker = direct.then_some(Taker { queue: self, out: &mut *out, room: most, taken: 0 });
                let came = shared.progress_soon(turns, taker.as_mut());
                taken = taker.map_or(0, |taker| taker.taken);
                if taken > 0 || self.len() >= least {
                    break;
                }
                let now = Instant::now();
                let since = *began.get_or_insert(now);
                if came {
                    last = Some(now);
                }
                if look.is_over(since, last.unwrap_or(since), now) {
                    break;
                }
            }
        }
        if taken > 0 {
            // Mostly there is no other one.
            let mut state = self.state();
            if state.events.is_empty() || taken == most {
                state.places -= taken;
                return Ok(());
            }
        }
        self.take_rest(began, out, (most, least, taken), timeout)
    }

    /// Take events behind those that have gone directly, and wait for them.
    #[inline(never)]
    fn take_rest(
        &self,
        began: &mut Option<Instant>,
        out: &mut Vec<Event>,
        (most, least, taken): (usize, usize, usize),
        timeout: Option<Duration>,
    ) -> Result<(), Errno> {
        let mut waits = None;
        let mut state = self.state();
        while taken + state.events.len() < least {
            let since = *began.get_or_insert_with(Instant::now);
            let left = timeout.map_or(LONGEST, |timeout| timeout.saturating_sub(since.elapsed()).min(LONGEST));
            if left.is_zero() {
                break;
            }
            if let (None, Some(shared)) = (&waits, &self.shared) {
                drop(state);
                waits = Some(Waits::begin(shared));
                state = self.state();
                continue;
            }
            let seen = self.came.load(Ordering::Relaxed);
            let leads = if let Some(Waits::Leads(leads)) = &waits { Some(leads) } else { None };
            state.wanted = if state.sleepers == 0 { least } else { least.min(state.wanted) };
            state.sleepers += 1;
            state.leads |= leads.is_some();
            drop(state);
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let slept = match leads {
                Some(leads) => leads.sleep(&left),
                None => futex::wait(&self.came, futex::Flags::PRIVATE, seen, Some(&left)),
            };
            state = self.state();
            state.sleepers -= 1;
            if let Some(leads) = leads {
                state.leads = false;
                drop(state);
                leads.look();
                if self.len() < least {
                    leads.arm();
                }
                state = self.state();
            }
            if slept == Err(rustix::io::Errno::INTR) && state.events.len() < least {
                return Err(Errno(libc::EINTR));
            }
        }
        if taken + state.events.len() < least {
            // A program that only looks does not wait.
            if timeout != Some(Duration::ZERO) {
                self.patience.in_vain();
            }
        } else if let (Some(_), Some(since)) = (&waits, *began) {
            // By reference: the end of the wait may look at the wire, which is not done under this lock.
            self.patience.slept(since.elapsed());
        }
        let count = (most - taken).min(state.events.len());
        state.places -= taken + count;
        match count {
            1 => out.extend(state.events.pop_front().map(Kept::event)),
            _ => out.extend(state.events.drain(..count).map(Kept::event)),
        }
        self.count.store(state.events.len(), Ordering::Release);
        if count > 0 {
            state.ring(true);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_goes_directly_only_if_none_is_in_front_of_it() {
        let (queue, other) = (Queue::alone(8).unwrap(), Queue::alone(8).unwrap());
        (0..4).for_each(|_| queue.reserve().unwrap());
        other.reserve().unwrap();
        let event = |handle| Event::new(EventKind::Receive, handle, Ok(1));
        let handles = |events: Vec<Event>| events.into_iter().map(|event| event.handle).collect::<Vec<_>>();
        let mut out = Vec::new();
        let mut taker = Taker { queue: &queue, out: &mut out, room: 2, taken: 0 };
        Taker::put(Some(&mut taker), &other, event(0));
        Taker::put(Some(&mut taker), &queue, event(1));
        Taker::put(None, &queue, event(2));
        Taker::put(Some(&mut taker), &queue, event(3));
        assert_eq!(taker.taken, 1);
        assert_eq!(handles(queue.dequeue(8, 0, None)), [2, 3]);
        assert_eq!(handles(other.dequeue(8, 0, None)), [0]);
        let mut full = Taker { queue: &queue, out: &mut out, room: 0, taken: 0 };
        Taker::put(Some(&mut full), &queue, event(4));
        assert_eq!(handles(out), [1]);
        assert_eq!(queue.len(), 1, "there was no room");
    }

    #[test]
    fn a_thread_that_waits_in_vain_does_not_look_longer_the_next_time() {
        let queue = Queue::alone(1).unwrap();
        let waits = || queue.patience.quiet();
        let short = waits();
        queue.patience.slept(Duration::ZERO);
        let long = waits();
        assert!(long > short);
        assert!(queue.take(1, 1, Some(Duration::ZERO)).unwrap().is_empty());
        assert_eq!(waits(), long, "that was no wait");
        assert!(queue.take(1, 1, Some(Duration::from_millis(1))).unwrap().is_empty());
        assert_eq!(waits(), short);
    }
}
