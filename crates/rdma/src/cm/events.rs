//! Event channels of connections.

use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use sys::cma::*;
use verbs::Errno;

use super::CmId;
use crate::Library;
use crate::api::CmApi;
use crate::error::{Error, Result, number, pointer};

/// A channel at which the events of connections arrive (rdma_create_event_channel(3)).
///
/// [`EventChannel::event`] takes the next event of any id, [`CmId::event`] the next of one id; the channel keeps what
/// belongs to others. Several threads may wait, each for its own.
///
/// In an event loop: make it nonblocking, wait for the descriptor, then call [`EventChannel::try_event`] until `None`.
/// Events that [`CmId::event`] has left for others do not make the descriptor readable; [`EventChannel::queued`] counts
/// them.
pub struct EventChannel {
    library: Arc<Library>,
    raw: NonNull<rdma_event_channel>,
    state: Mutex<State>,
    /// Notified when the thread that reads has read.
    read: Condvar,
}

#[derive(Default)]
struct State {
    /// Ids that are not being destroyed, those of requests in the queue included.
    live: HashSet<NonNull<rdma_cm_id>>,
    /// Events of live ids that were not taken yet, the oldest first.
    queue: VecDeque<Queued>,
    /// A thread is in rdma_get_cm_event(3). Others wait for what it reads: it may be theirs.
    reading: bool,
}

/// An event, copied and acknowledged.
struct Queued {
    of: NonNull<rdma_cm_id>,
    /// The new id of a CONNECT_REQUEST. Only what is handed out holds the channel, which holds this.
    request: Option<NonNull<rdma_cm_id>>,
    kind: u32,
    status: i32,
    private_data: Vec<u8>,
    responder_resources: u8,
    initiator_depth: u8,
}

// SAFETY: rdma_cm is thread-safe; the pointers lead to its objects.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: a live channel, destroyed once; every id on it holds it, so none remains. None is in the queue
        // either: it left it with its listener.
        unsafe { (self.cm().destroy_event_channel)(self.raw.as_ptr()) };
    }
}

impl AsFd for EventChannel {
    /// Readable when an event waits in the kernel or the library; for the caller's own poll or epoll.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel owns the descriptor and closes it when dropped; it is not -1.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }
}

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// An event, copied and acknowledged.
pub struct CmEvent {
    /// `enum rdma_cm_event_type`, e.g. [`sys::cma::RDMA_CM_EVENT_ESTABLISHED`].
    pub kind: u32,
    /// 0, a negated errno, or for REJECTED the reason (IBTA vol. 1, 12.6.7.2); rdma_get_cm_event(3).
    pub status: i32,
    /// The cookie of the id that it belongs to; for CONNECT_REQUEST, of the listener.
    pub cookie: u64,
    /// The private data that the peer sent with it. It may be longer than what was given, by zeroes
    /// (rdma_get_cm_event(3)).
    pub private_data: Vec<u8>,
    /// READs and atomics that the peer wants to have outstanding towards this side.
    pub responder_resources: u8,
    /// READs and atomics that the peer can answer at a time.
    pub initiator_depth: u8,
    /// The new id of a CONNECT_REQUEST, on the listener's channel.
    pub id: Option<Arc<CmId>>,
}

impl Library {
    /// rdma_create_event_channel(3). ENOSYS: this library has no connections.
    pub fn create_event_channel(self: &Arc<Self>) -> Result<Arc<EventChannel>> {
        // SAFETY: the function takes nothing.
        let raw = pointer("rdma_create_event_channel", unsafe { (self.cm()?.create_event_channel)() })?;
        Ok(Arc::new(EventChannel { library: self.clone(), raw, state: Mutex::default(), read: Condvar::new() }))
    }
}

impl EventChannel {
    pub(super) fn cm(&self) -> &CmApi {
        self.library.cm().expect("a channel exists, so its functions do")
    }

    pub(super) fn library(&self) -> &Arc<Library> {
        &self.library
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Make [`EventChannel::event`] and [`CmId::event`] return EAGAIN instead of waiting.
    pub fn set_nonblocking(&self) -> Result<()> {
        crate::device::set_nonblocking(self.as_fd())
    }

    /// Make an id in the TCP port space. Its events give `cookie` back.
    pub fn create_id(self: &Arc<Self>, cookie: u64) -> Result<Arc<CmId>> {
        let mut raw = null_mut();
        // SAFETY: a live channel and a place for the result; the cookie is only handed back.
        let ret = unsafe { (self.cm().create_id)(self.raw.as_ptr(), &mut raw, cookie as *mut _, RDMA_PS_TCP) };
        number("rdma_create_id", ret)?;
        let raw = pointer("rdma_create_id", raw)?;
        self.state().live.insert(raw);
        Ok(Arc::new(CmId { channel: self.clone(), raw }))
    }

    /// The next event of any id. The call waits for one, unless [`EventChannel::set_nonblocking`].
    pub fn event(self: &Arc<Self>) -> Result<CmEvent> {
        self.next(None)
    }

    /// The next event of any id; `None` instead of EAGAIN, for a channel that is nonblocking.
    pub fn try_event(self: &Arc<Self>) -> Result<Option<CmEvent>> {
        match self.event() {
            Err(Error { errno: Errno(libc::EAGAIN), .. }) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Events that [`CmId::event`] has read and left for other ids.
    pub fn queued(&self) -> usize {
        self.state().queue.len()
    }

    /// The next event, of one id or of any.
    pub(super) fn next(self: &Arc<Self>, of: Option<NonNull<rdma_cm_id>>) -> Result<CmEvent> {
        let mut state = self.state();
        loop {
            let at = state.queue.iter().position(|event| of.is_none_or(|of| of == event.of));
            if let Some(event) = at.and_then(|at| state.queue.remove(at)) {
                return Ok(self.hand_out(event, &state));
            }
            if state.reading {
                state = self.read.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.reading = true;
            drop(state);
            let outcome = self.read_one();
            state = self.state();
            state.reading = false;
            self.read.notify_all();
            outcome?;
        }
    }

    /// Move one event into the queue, and acknowledge it.
    fn read_one(&self) -> Result<()> {
        let mut raw = null_mut();
        // SAFETY: a live channel and a place for the result.
        number("rdma_get_cm_event", unsafe { (self.cm().get_cm_event)(self.raw.as_ptr(), &mut raw) })?;
        let raw = pointer("rdma_get_cm_event", raw)?.as_ptr();
        // SAFETY: the event, what it points at and its ids live until it is acknowledged: destroying an id waits for
        // that.
        let (queued, ret) = unsafe { (self.queue(copy(raw)), (self.cm().ack_cm_event)(raw)) };
        if let Err(Some(request)) = queued {
            // SAFETY: a live id without a queue pair, destroyed once, for it was not handed out.
            unsafe { (self.cm().destroy_id)(request.as_ptr()) };
        }
        number("rdma_ack_cm_event", ret)
    }

    /// Queue an event of a live id. Otherwise the error is the new id that it brought.
    fn queue(&self, event: Option<Queued>) -> std::result::Result<(), Option<NonNull<rdma_cm_id>>> {
        let event = event.ok_or(None)?;
        let mut state = self.state();
        if !state.live.contains(&event.of) {
            return Err(event.request);
        }
        state.live.extend(event.request);
        state.queue.push_back(event);
        Ok(())
    }

    /// The event for its taker. `_state` is locked, so the event's id, which was in it, is not destroyed meanwhile.
    fn hand_out(self: &Arc<Self>, event: Queued, _state: &State) -> CmEvent {
        // SAFETY: a live id; this crate writes the member atomically, and librdmacm leaves it to its user.
        let cookie =
            unsafe { AtomicPtr::from_ptr(&raw mut (*event.of.as_ptr()).context) }.load(Ordering::Relaxed) as u64;
        CmEvent {
            kind: event.kind,
            status: event.status,
            cookie,
            private_data: event.private_data,
            responder_resources: event.responder_resources,
            initiator_depth: event.initiator_depth,
            id: event.request.map(|raw| Arc::new(CmId { channel: self.clone(), raw })),
        }
    }

    /// Take an id that is about to be destroyed out of the state, with its events. Returned are the ids of requests
    /// that waited for it: they have no owner and are to be destroyed too.
    pub(super) fn forget(&self, id: NonNull<rdma_cm_id>) -> Vec<NonNull<rdma_cm_id>> {
        let mut state = self.state();
        let requests: Vec<_> =
            state.queue.iter().filter(|event| event.of == id).filter_map(|event| event.request).collect();
        let gone = |of: &NonNull<rdma_cm_id>| *of == id || requests.contains(of);
        state.queue.retain(|event| !gone(&event.of));
        state.live.retain(|of| !gone(of));
        requests
    }
}

/// A copy of an event; `None` if it has no id.
///
/// # Safety
/// The event is live, and of an id in the TCP port space.
unsafe fn copy(raw: *const rdma_cm_event) -> Option<Queued> {
    // SAFETY: a live event, whose private data live as long. Port space TCP, so the union holds `conn`, which is plain
    // numbers for every kind.
    unsafe {
        let (kind, conn) = ((*raw).event, (*raw).param.conn);
        let carries = matches!(
            kind,
            RDMA_CM_EVENT_CONNECT_REQUEST
                | RDMA_CM_EVENT_CONNECT_RESPONSE
                | RDMA_CM_EVENT_REJECTED
                | RDMA_CM_EVENT_ESTABLISHED
        );
        let private_data = match carries && !conn.private_data.is_null() {
            true => std::slice::from_raw_parts(conn.private_data.cast::<u8>(), conn.private_data_len.into()).to_vec(),
            false => Vec::new(),
        };
        let request = kind == RDMA_CM_EVENT_CONNECT_REQUEST;
        Some(Queued {
            of: NonNull::new(if request { (*raw).listen_id } else { (*raw).id })?,
            request: if request { NonNull::new((*raw).id) } else { None },
            kind,
            status: (*raw).status,
            private_data,
            responder_resources: if carries { conn.responder_resources } else { 0 },
            initiator_depth: if carries { conn.initiator_depth } else { 0 },
        })
    }
}
