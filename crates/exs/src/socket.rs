//! Sockets with registered memory and event queues, over `crates/rdma`.
//!
//! [`Exs`] is the beginning: it makes queues, memory, listeners and connections. Every operation is asynchronous. It is
//! given a [`Queue`] and a number, and brings one [`Event`]. A call that fails brings none.
//!
//! Bytes move in [`Queue::dequeue`], and in one thread of [`Exs`], which sleeps until something comes while no program
//! thread looks.
//!
//! The child of a fork(2) has none of it: its calls are EBADF, and the parent's connections go on.

mod completions;
mod device;
mod end;
mod keys;
mod lead;
mod options;
mod patience;
mod pending;
mod queue;
mod region;
mod shared;
mod tick;

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use memory::biased;
use rdma::{Access, CmId, Errno, Library, Pd};

use crate::protocol::{Reset, Transferred};
use end::{End, Part};
pub use options::Options;
pub use queue::{Bell, Event, EventKind, Queue, WaitMode};
pub use region::{By, Look, Memory};
use shared::Shared;

/// EXS over one verbs library, and one device of it: the one of 127.0.0.1.
pub struct Exs {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// In the child of a fork(2) the device, its thread and the locks are the parent's: EBADF, before anything of them is
/// touched.
fn not_in_child() -> Result<(), Errno> {
    if rdma::is_child() { Err(Errno(libc::EBADF)) } else { Ok(()) }
}

impl Drop for Exs {
    fn drop(&mut self) {
        if rdma::is_child() {
            // The thread does not exist here, and keeps what it shares for good.
            std::mem::forget(self.thread.take());
            return;
        }
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.shared.abandon();
    }
}

impl Exs {
    /// Begin. ENODEV: the library has no device at 127.0.0.1.
    pub fn new(library: &Arc<Library>) -> Result<Exs, Errno> {
        Exs::begin(library, || {})
    }

    /// As [`Exs::new`]; the thread runs `first` before all else.
    pub fn begin(library: &Arc<Library>, first: fn()) -> Result<Exs, Errno> {
        rdma::watch_forks();
        not_in_child()?;
        let shared = Arc::new(Shared::new(library)?);
        let of_thread = shared.clone();
        let run = move || {
            first();
            of_thread.run()
        };
        let thread = std::thread::Builder::new().name("exs".into()).spawn(run);
        let thread = thread.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EAGAIN)))?;
        Ok(Exs { shared, thread: Some(thread) })
    }

    /// Make a queue of `depth` places (exs_qcreate). EINVAL: 0.
    pub fn queue(&self, depth: usize) -> Result<Arc<Queue>, Errno> {
        not_in_child()?;
        let shared = Some(self.shared.clone());
        if depth == 0 { Err(Errno(libc::EINVAL)) } else { Ok(Arc::new(Queue::new(shared, depth))) }
    }

    /// Allocate `len` bytes and register them, for many transfers. EINVAL: 0.
    pub fn memory(&self, len: usize) -> Result<Arc<Memory>, Errno> {
        self.allocate(len, true)
    }

    /// As [`Exs::memory`], for one transfer.
    pub fn passing_memory(&self, len: usize) -> Result<Arc<Memory>, Errno> {
        self.allocate(len, false)
    }

    fn allocate(&self, len: usize, lasting: bool) -> Result<Arc<Memory>, Errno> {
        not_in_child()?;
        if len == 0 {
            return Err(Errno(libc::EINVAL));
        }
        let mr = self.shared.device.pd.reg_mr(len, self.access()).map_err(|error| error.errno)?;
        Ok(Memory::own(mr, lasting))
    }

    /// Deregister. EBUSY: an operation uses it, or it has another holder; it is given back.
    pub fn deregister(&self, memory: Arc<Memory>) -> Result<(), (Arc<Memory>, Errno)> {
        let owned = Arc::try_unwrap(memory).or_else(|memory| {
            // Connections may keep it from one operation to the next.
            self.shared.release(&memory);
            Arc::try_unwrap(memory)
        });
        owned.map_err(|memory| (memory, Errno(libc::EBUSY)))?.deregister()
    }

    /// The rights with which memory is registered for [`Memory::adopt`]. With memory windows, peers get keys of
    /// transfers, and the key of the region gives them nothing.
    pub fn access(&self) -> Access {
        let peers =
            if self.shared.device.windows { Access::MW_BIND } else { Access::REMOTE_READ | Access::REMOTE_WRITE };
        Access::LOCAL_WRITE | peers
    }

    /// The rights for a region whose memory the program may unmap: [`Exs::access`] with ON_DEMAND. An access to memory
    /// that is gone is then an error of the request. None: the device keeps the pages (ibv_reg_mr(3)), or may bind no
    /// window to such a region.
    pub fn careful(&self) -> Option<Access> {
        self.shared.device.vanishing.then(|| self.access() | Access::ON_DEMAND)
    }

    /// The protection domain of the device.
    pub fn domain(&self) -> &Arc<Pd> {
        &self.shared.device.pd
    }

    /// Have a function called when [`Socket::ready`] or [`Listener::waiting`] may have changed. There is one, for good;
    /// it is called with locks, and must not call this crate.
    pub fn watch(&self, changed: Box<dyn Fn() + Send + Sync>) {
        let _ = self.shared.changed.set(changed);
    }

    /// Take an address, for [`Exs::listen_at`] or [`Exs::connect_from`]. EADDRINUSE, EADDRNOTAVAIL, EINVAL.
    pub fn bind(&self, at: SocketAddr) -> Result<Bound, Errno> {
        not_in_child()?;
        let bind = || {
            let bound = self.shared.id()?;
            bound.id.bind(at)?;
            Ok(bound)
        };
        bind().map_err(|error: rdma::Error| error.errno)
    }

    /// Listen at an address; `backlog` connections may wait for an accept.
    pub fn listen(&self, at: SocketAddr, backlog: u16, options: Options) -> Result<Arc<Listener>, Errno> {
        options.check()?;
        self.listen_at(self.bind(at)?, backlog, options)
    }

    /// As [`Exs::listen`], at an address that is taken.
    pub fn listen_at(&self, at: Bound, backlog: u16, options: Options) -> Result<Arc<Listener>, Errno> {
        not_in_child()?;
        options.check()?;
        self.shared.listen(at, backlog, options).map_err(|error| error.errno)
    }

    /// Begin a connection; a CONNECT event tells how it ends. ECONNREFUSED: nothing listens there, or no EXS of this
    /// version, or the other kind of socket.
    pub fn connect(
        &self,
        to: SocketAddr,
        options: Options,
        queue: &Arc<Queue>,
        handle: u64,
    ) -> Result<Arc<Socket>, Errno> {
        self.connect_from(None, to, options, queue, handle)
    }

    /// As [`Exs::connect`], from an address that is taken.
    pub fn connect_from(
        &self,
        from: Option<Bound>,
        to: SocketAddr,
        options: Options,
        queue: &Arc<Queue>,
        handle: u64,
    ) -> Result<Arc<Socket>, Errno> {
        options.check()?;
        queue.reserve()?;
        self.shared.connect(from, to, options, (queue.clone(), handle)).map_err(|error| {
            queue.release();
            error.errno
        })
    }
}

/// An address that is taken.
pub struct Bound {
    number: u64,
    id: Arc<CmId>,
}

impl Bound {
    /// The address.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.local_addr()
    }
}

/// A queue and the number of the operation.
type To = (Arc<Queue>, u64);

/// A listener.
pub struct Listener {
    number: u64,
    addr: Option<SocketAddr>,
    /// None: closed.
    id: Mutex<Option<Arc<CmId>>>,
    state: Mutex<Waiting>,
    backlog: usize,
    options: Options,
    shared: Weak<Shared>,
}

/// Either is empty.
#[derive(Default)]
struct Waiting {
    requests: std::collections::VecDeque<rdma::CmEvent>,
    accepts: std::collections::VecDeque<To>,
}

impl Listener {
    /// The address.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.addr
    }

    fn id(&self) -> MutexGuard<'_, Option<Arc<CmId>>> {
        self.id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accept a connection, the next one if none waits; an ACCEPT event brings it. Several may be posted. EBADF: the
    /// listener is closed.
    pub fn accept(&self, queue: &Arc<Queue>, handle: u64) -> Result<(), Errno> {
        not_in_child()?;
        let shared = self.shared.upgrade().ok_or(Errno(libc::EBADF))?;
        // Held until the accept is in its place: a close ends it, or comes before.
        let id = self.id();
        if id.is_none() {
            return Err(Errno(libc::EBADF));
        }
        queue.reserve()?;
        self.state().accepts.push_back((queue.clone(), handle));
        drop(id);
        shared.match_up(self);
        Ok(())
    }

    /// Connections that wait for an accept.
    pub fn waiting(&self) -> usize {
        self.state().requests.len()
    }

    /// End the accepts that were posted with this queue and handle, with ECANCELED; how many.
    pub fn cancel(&self, queue: &Arc<Queue>, handle: u64) -> usize {
        let wanted = |(of, number): &To| Arc::ptr_eq(of, queue) && *number == handle;
        let mut state = self.state();
        let before = state.accepts.len();
        state.accepts.retain(|accept| !wanted(accept));
        let ended = before - state.accepts.len();
        drop(state);
        for _ in 0..ended {
            queue.put(Event::new(EventKind::Accept, handle, Err(Errno(libc::ECANCELED))));
        }
        ended
    }

    /// Listen no more: posted accepts end with ECANCELED, and connections that wait are refused. EBADF: it is closed.
    pub fn close(&self) -> Result<(), Errno> {
        not_in_child()?;
        let id = self.id().take().ok_or(Errno(libc::EBADF))?;
        if let Some(shared) = self.shared.upgrade() {
            shared.forget(self.number);
        }
        let Waiting { requests, accepts } = std::mem::take(&mut *self.state());
        for id in requests.into_iter().filter_map(|event| event.id) {
            // It fails if the peer is gone.
            let _ = id.reject(&[]);
        }
        drop(id);
        for (queue, handle) in accepts {
            queue.put(Event::new(EventKind::Accept, handle, Err(Errno(libc::ECANCELED))));
        }
        Ok(())
    }
}

/// How far a connection is.
enum Stage {
    /// An address, then a route is looked for, then the peer is asked.
    Connecting(To),
    /// The peer was answered, and its last word is missing.
    Accepting(To),
    Up,
    /// CLOSE follows as soon as all that was sent has arrived, or with the end of the connection.
    Closing(To),
    /// The connection is gone; [`Socket::close`] was not called yet.
    Gone,
    Closed,
}

struct Inner {
    stage: Stage,
    /// None: no route yet, or closed.
    end: Option<End>,
    /// The time for which the connection has not been made; None: the clock has not come by.
    waited: Option<Duration>,
}

/// What a connection is ready for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ready {
    /// A receive would not wait for the peer.
    pub readable: bool,
    /// A send would not be EAGAIN.
    pub writable: bool,
    /// The connection has ended.
    pub gone: bool,
}

/// A connection. [`Socket::close`] ends it; without it, it lives as long as its [`Exs`].
pub struct Socket {
    number: u64,
    options: Options,
    /// The number of its queue pair, once it has one.
    qp: AtomicU32,
    /// In nanoseconds; 0: none.
    timeout: AtomicU64,
    shared: Weak<Shared>,
    inner: biased::Mutex<Inner>,
    // Behind `inner`: the queue pair goes before the id.
    id: Arc<CmId>,
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Socket({})", self.number)
    }
}

/// What a transfer has beside its bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Plain,
    /// MSG_WAITALL.
    All,
    /// EXS_PERSISTENT.
    Persistent,
    /// MSG_PEEK.
    Peek,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Socket {
    fn inner(&self) -> biased::MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    #[inline(always)]
    fn begin(
        &self,
        kind: EventKind,
        memory: &Arc<Memory>,
        part: Range<usize>,
        how: How,
        to: (&Arc<Queue>, u64),
    ) -> Result<u64, Errno> {
        if part.start > part.end || part.end > memory.mr.len() {
            return Err(Errno(libc::EINVAL));
        }
        let (wait_all, persistent, peek) = (how == How::All, how == How::Persistent, how == How::Peek);
        let part = Part { offset: part.start, len: part.end - part.start, wait_all, persistent, peek };
        to.0.reserve()?;
        let mut inner = self.inner();
        let Inner { stage, end, .. } = &mut *inner;
        let begun = match (stage, end) {
            (Stage::Connecting(_) | Stage::Accepting(_), _) => Err(Errno(libc::ENOTCONN)),
            (Stage::Up | Stage::Gone, Some(end)) => end.begin(kind, memory, part, to),
            _ => Err(Errno(libc::EBADF)),
        };
        if begun.is_err() {
            to.0.release();
        }
        begun
    }

    /// [`Options::timeout`] of this connection.
    pub fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout.load(Ordering::Relaxed))
    }

    /// Change [`Options::timeout`] of this connection.
    pub fn set_timeout(&self, timeout: Duration) {
        self.timeout.store(nanos(timeout), Ordering::Relaxed);
        if let Some(shared) = self.shared.upgrade() {
            shared.pace(timeout);
        }
    }

    /// The address of this end; `None` before there is a route.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.local_addr()
    }

    /// The address of the peer.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.id.peer_addr()
    }

    /// Bytes that a stream has sent, by their way.
    pub fn transferred(&self) -> Transferred {
        self.inner().end.as_ref().map_or(Transferred::default(), End::transferred)
    }

    /// What the connection is ready for.
    pub fn ready(&self) -> Ready {
        let inner = self.inner();
        let (readable, writable) = inner.end.as_ref().map_or((false, false), End::ready);
        match inner.stage {
            Stage::Connecting(_) | Stage::Accepting(_) => Ready::default(),
            Stage::Up => Ready { readable, writable, gone: false },
            Stage::Gone | Stage::Closing(_) | Stage::Closed => Ready { readable: true, writable: false, gone: true },
        }
    }

    /// Send a part of a memory, which belongs to the connection until the event. The result is the operation's number,
    /// for [`Socket::cancel`].
    ///
    /// EAGAIN: too many are pending, or the queue is full. EINVAL: the part is not inside the memory, or is empty on a
    /// stream. EMSGSIZE: more than 2^31 bytes. EPIPE: after [`Socket::shutdown`]. ENOTCONN, ECONNRESET, EBADF.
    pub fn send(
        &self,
        memory: &Arc<Memory>,
        part: Range<usize>,
        queue: &Arc<Queue>,
        handle: u64,
    ) -> Result<u64, Errno> {
        self.begin(EventKind::Send, memory, part, How::Plain, (queue, handle))
    }

    /// As [`Socket::send`], with EXS_PERSISTENT: the send stays, and each receive of the peer reads the memory as it is
    /// then. Sends behind it wait. It ends when it is cancelled, with ECANCELED. EOPNOTSUPP: on a stream.
    pub fn send_persistent(
        &self,
        memory: &Arc<Memory>,
        part: Range<usize>,
        queue: &Arc<Queue>,
        handle: u64,
    ) -> Result<u64, Errno> {
        self.begin(EventKind::Send, memory, part, How::Persistent, (queue, handle))
    }

    /// Receive into a part of a memory. `wait_all` is MSG_WAITALL of a stream. Errors as those of [`Socket::send`].
    pub fn receive(
        &self,
        memory: &Arc<Memory>,
        part: Range<usize>,
        wait_all: bool,
        queue: &Arc<Queue>,
        handle: u64,
    ) -> Result<u64, Errno> {
        let how = if wait_all { How::All } else { How::Plain };
        self.begin(EventKind::Receive, memory, part, how, (queue, handle))
    }

    /// Copy what [`Socket::receive`] would get now, and leave it there (MSG_PEEK). EAGAIN: it would wait. EOPNOTSUPP:
    /// the next packet is not within its advertisement.
    pub fn peek(
        &self,
        memory: &Arc<Memory>,
        part: Range<usize>,
        queue: &Arc<Queue>,
        handle: u64,
    ) -> Result<u64, Errno> {
        self.begin(EventKind::Receive, memory, part, How::Peek, (queue, handle))
    }

    /// Ask for the end of an operation. True: its event will come, with ECANCELED if it was not too late. False: it is
    /// too late.
    pub fn cancel(&self, operation: u64) -> bool {
        not_in_child().is_ok() && self.inner().end.as_mut().is_some_and(|end| end.cancel(operation))
    }

    /// Send nothing more, after what is pending (SHUT_WR). ENOTCONN: there is no connection.
    pub fn shutdown(&self) -> Result<(), Errno> {
        not_in_child()?;
        self.inner().end.as_mut().ok_or(Errno(libc::ENOTCONN))?.shutdown()
    }

    /// Close. Pending operations end with ECANCELED, then the CLOSE event comes. EBADF: it is closed.
    pub fn close(&self, queue: &Arc<Queue>, handle: u64) -> Result<(), Errno> {
        queue.reserve()?;
        let mut inner = self.inner();
        if matches!(inner.stage, Stage::Accepting(_) | Stage::Closing(_) | Stage::Closed) {
            queue.release();
            return Err(Errno(libc::EBADF));
        }
        let closing = Stage::Closing((queue.clone(), handle));
        if let Stage::Connecting((queue, handle)) = std::mem::replace(&mut inner.stage, closing) {
            queue.put(Event::new(EventKind::Connect, handle, Err(Errno(libc::ECANCELED))));
            self.finish(&mut inner);
            drop(inner);
            self.sweep();
            return Ok(());
        }
        if let Some(end) = &mut inner.end {
            // What the peer sends now, its end as well, goes into none of them.
            end.cancel_receives();
            // The peer sees the end of the data if it has all of them; else a reset.
            if end.has_sends() || end.shutdown().is_err() {
                end.reset(Reset::Closed);
            }
        }
        self.step(&mut inner);
        drop(inner);
        self.sweep();
        Ok(())
    }

    fn sweep(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.sweep(self);
        }
    }

    /// Go on with what waits for bytes that have moved.
    #[inline]
    fn step(&self, inner: &mut Inner) {
        let goes_on = matches!(inner.stage, Stage::Up) && inner.end.as_ref().is_some_and(|end| !end.is_dead());
        if !goes_on {
            self.step_on(inner);
        }
    }

    #[inline(never)]
    fn step_on(&self, inner: &mut Inner) {
        let Some(end) = &mut inner.end else { return };
        if matches!(inner.stage, Stage::Up) && end.is_dead() {
            // The peer hears of it now, not with the close. It fails if the peer is gone.
            let _ = self.id.disconnect(&end.qp);
            inner.stage = Stage::Gone;
        }
        let closing = matches!(inner.stage, Stage::Closing(_));
        if closing {
            end.ask_for_all();
        }
        if closing && end.is_quiet() {
            end.reset(Reset::Closed);
            // READs that are under way end before their receives do, and those before CLOSE.
            if end.is_done() {
                self.finish(inner);
            }
        }
    }

    /// Leave the connection, and tell the program if it has closed.
    fn finish(&self, inner: &mut Inner) {
        if let Some(end) = inner.end.take() {
            // It fails if the peer has disconnected before.
            let _ = self.id.disconnect(&end.qp);
        }
        match std::mem::replace(&mut inner.stage, Stage::Closed) {
            Stage::Closing((queue, handle)) => queue.put(Event::new(EventKind::Close, handle, Ok(0))),
            stage => inner.stage = stage,
        }
    }
}
