//! What all sockets of an [`super::Exs`] have in common: the device, the events of connections, and the thread.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use memory::biased;
use rdma::sys::cma::*;
use rdma::{CmEvent, CmId, CmParam, Errno, EventChannel, Library};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::time::Timespec;

use super::completions::How;
use super::device::Device;
use super::end::End;
use super::lead::Lead;
use super::queue::{Event, EventKind, Taker};
use super::{Bound, Inner, Listener, Memory, Options, Socket, Stage, To, Waiting, nanos, tick};
use crate::protocol::{Connection, Hello, Reset};

/// Retries of a SEND that finds no receive. By the protocol there always is one, so the peer has gone wrong.
const RNR_RETRIES: u8 = 2;
/// Pieces of time in a connection's timeout.
const BEATS: u32 = 8;
/// For each step of resolving an address, in milliseconds.
const RESOLVE: u16 = 2000;

pub(super) struct Shared {
    pub device: Device,
    channel: Arc<EventChannel>,
    sockets: Mutex<HashMap<u64, Arc<Socket>>>,
    listeners: Mutex<HashMap<u64, Arc<Listener>>>,
    /// The cookie of the next socket or listener.
    next: AtomicU64,
    /// Changes with every look of a thread of the program. Two that look at once may count one look: only the change
    /// matters, and an exact count would be a locked instruction, which waits for the stores before it.
    looks: AtomicU64,
    /// The thread looks now and then ([`tick`]) whether the program still does. To arm for each look would cost more.
    watching: AtomicBool,
    /// [`Sleeps`] that live.
    sleepers: AtomicUsize,
    /// A piece of time of the shortest timeout of a connection, in nanoseconds; u64::MAX: there is none.
    beat: AtomicU64,
    stopped: AtomicBool,
    wake: OwnedFd,
    pub lead: Lead,
    /// See [`super::Exs::watch`].
    pub changed: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// A thread looks at the wire as long as this lives.
pub(super) struct Polls<'a>(&'a Shared);

impl Drop for Polls<'_> {
    fn drop(&mut self) {
        let shared = self.0;
        if shared.is_awaited() {
            // Nothing came since the last look, or this one finds it; what comes later wakes the thread.
            shared.progress();
        } else {
            // A thread that begins to sleep at this moment is seen by the next look, or the thread of `Exs` arms in its
            // place at its next one: it watches as long as the program looks.
            shared.watch();
        }
    }
}

/// Events are awaited without a look at the wire as long as this lives.
pub(super) struct Sleeps(Arc<Shared>);

impl Drop for Sleeps {
    fn drop(&mut self) {
        self.0.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(library: &Arc<Library>) -> Result<Shared, Errno> {
        let start = || -> rdma::Result<_> {
            let channel = library.create_event_channel()?;
            channel.set_nonblocking()?;
            let device = Device::open(library, &channel)?;
            Ok((channel, device))
        };
        let (channel, device) = start().map_err(|error| error.errno)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = wake.map_err(|errno| Errno(errno.raw_os_error()))?;
        Ok(Shared {
            device,
            channel,
            sockets: Mutex::default(),
            listeners: Mutex::default(),
            next: AtomicU64::new(1),
            looks: AtomicU64::new(0),
            watching: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            beat: AtomicU64::new(u64::MAX),
            stopped: AtomicBool::new(false),
            wake,
            lead: Lead::new()?,
            changed: OnceLock::new(),
        })
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Wait for the wire, and serve it while no thread of the program does.
    pub fn run(self: &Arc<Self>) {
        // The locks of the data path lean to the thread of the program that moves bytes.
        biased::permit();
        tick::be_exact();
        let (mut seen, mut last, mut found) = (0, Instant::now(), 0);
        while !self.stopped.load(Ordering::SeqCst) {
            let watching = self.watching.load(Ordering::SeqCst);
            let serves = self.lead.begin_serving(watching, || self.is_awaited());
            let mut fds = [
                PollFd::new(&self.wake, PollFlags::IN),
                PollFd::new(&self.channel, PollFlags::IN),
                PollFd::new(&self.device.completions.channel, PollFlags::IN),
            ];
            let fds = if serves { &mut fds[..] } else { &mut fds[..2] };
            let limit = if watching { Some(tick::until_next(found)) } else { self.next_beat(last) };
            let ready = poll(fds, limit.as_ref());
            let mut came = false;
            if ready.is_err_and(|errno| errno != rustix::io::Errno::INTR) {
                return;
            } else if ready != Ok(0) {
                let _ = rustix::io::read(&self.wake, &mut [0; 8]); // mostly it was not written to
                while serves && matches!(self.device.completions.channel.try_event(), Ok(Some(_))) {
                    came = true;
                }
                while let Ok(Some(event)) = self.channel.try_event() {
                    self.event(event);
                    self.tell_of_change();
                }
            }
            let looks = self.looks.load(Ordering::Relaxed);
            let looked_at = self.device.completions.is_looked_at();
            found = tick::found(found, looked_at, self.lead.take_waits(), self.beat.load(Ordering::Relaxed));
            let quiet = !looked_at && (self.is_awaited() || looks == seen);
            // Before arming: a look that ends from now on starts the watch again.
            self.watching.store(!quiet, Ordering::SeqCst);
            // A thread that leads arms for itself, and starts the watch when it does not any more. An event that was
            // taken from it is handed on.
            if if self.lead.leads() { came } else { quiet } {
                self.progress();
            }
            seen = looks;
            last = self.beat(last);
        }
    }

    /// Have the thread look at a connection with this timeout in time.
    pub fn pace(&self, timeout: Duration) {
        let beat = nanos(timeout / BEATS).max(1);
        if !timeout.is_zero() && self.beat.fetch_min(beat, Ordering::SeqCst) > beat {
            self.wake_up();
        }
    }

    /// The time until the next piece of time ends; None: no connection has a timeout.
    fn next_beat(&self, last: Instant) -> Option<Timespec> {
        let beat = self.beat.load(Ordering::SeqCst);
        let left = Duration::from_nanos(beat).saturating_sub(last.elapsed());
        let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        (beat != u64::MAX).then_some(time)
    }

    /// Tell all connections of a piece of time, if one has passed since `last`; the time from which the next one is
    /// counted.
    fn beat(&self, last: Instant) -> Instant {
        let beat = self.beat.load(Ordering::SeqCst);
        let (now, beat) = (Instant::now(), Duration::from_nanos(beat));
        if now - last < beat {
            return last;
        }
        // What came before the piece's end is no silence.
        self.look(How::All, None);
        let sockets: Vec<_> = {
            let sockets = lock(&self.sockets);
            // Under the lock: a socket that comes later changes it again.
            let timeouts = sockets.values().map(|socket| socket.timeout()).filter(|timeout| !timeout.is_zero());
            let next = timeouts.min().map_or(u64::MAX, |timeout| nanos(timeout / BEATS).max(1));
            self.beat.store(next, Ordering::SeqCst);
            sockets.values().cloned().collect()
        };
        // A longer time is one in which this process was stopped, or had no connection.
        let passed = (now - last).min(beat);
        for socket in sockets {
            self.tick(&socket, passed);
        }
        self.tell_of_change();
        now
    }

    fn tick(&self, socket: &Arc<Socket>, passed: Duration) {
        let timeout = socket.timeout();
        if timeout.is_zero() {
            return;
        }
        let mut inner = socket.inner();
        match inner.stage {
            Stage::Connecting(_) | Stage::Accepting(_) => {
                let waited = inner.waited.map_or(Duration::ZERO, |waited| waited + passed);
                inner.waited = Some(waited);
                if waited >= timeout {
                    self.lost(socket, &mut inner, Errno(libc::ETIMEDOUT));
                }
            }
            _ => {
                if let Some(end) = &mut inner.end {
                    end.tick(passed, timeout);
                }
                socket.step(&mut inner);
            }
        }
        drop(inner);
        self.sweep(socket);
    }

    /// True if events must wake the thread even while the program looks now and then.
    pub fn is_awaited(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) > 0 || self.changed.get().is_some()
    }

    /// Have events brought by the thread until the result is dropped. No queue and no socket may be locked.
    pub fn begin_sleep(self: &Arc<Self>) -> Sleeps {
        // Before the looks are: one that ends later sees it, and arms; or see [`Polls`].
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        self.follow();
        Sleeps(self.clone())
    }

    /// A thread sleeps that does not lead: what comes wakes the thread of `Exs`.
    pub fn follow(&self) {
        if !self.device.completions.is_looked_at() {
            self.progress();
        }
        if self.lead.follow() {
            self.wake_up();
        }
    }

    /// A thread of the program has looked at the wire, and will not for some time.
    pub fn looked(&self) {
        self.count_look();
        self.watch();
    }

    /// Have the thread look whether the program still looks.
    fn watch(&self) {
        if !self.watching.load(Ordering::SeqCst) && !self.watching.swap(true, Ordering::SeqCst) {
            // A thread that is about to store false looks after that, and arms.
            self.wake_up();
        }
    }

    fn wake_up(&self) {
        // It fails only if it would block: then the thread is being woken.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.wake_up();
    }

    /// End all connections and listeners, after [`Shared::run`] has ended.
    pub fn abandon(&self) {
        let sockets: Vec<_> = lock(&self.sockets).drain().map(|(_, socket)| socket).collect();
        for socket in sockets {
            let mut inner = socket.inner();
            if let Some(end) = &mut inner.end {
                end.reset(Reset::Closed);
            }
            socket.finish(&mut inner);
        }
        lock(&self.listeners).clear();
    }

    pub fn begin_poll(&self) -> Polls<'_> {
        Polls(self)
    }

    fn count_look(&self) {
        self.looks.store(self.looks.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Move bytes of all connections. The next completion wakes the thread.
    pub fn progress(&self) {
        self.look(How::Arm, None);
    }

    /// Move bytes of all connections, looking up to `turns` times for the first completion. True if there was one.
    #[inline(always)]
    pub fn progress_soon(&self, turns: u32, taker: Option<&mut Taker<'_>>) -> bool {
        self.count_look();
        self.look(How::Look(turns), taker)
    }

    /// True if something has come.
    #[inline(always)]
    pub fn look(&self, how: How, taker: Option<&mut Taker<'_>>) -> bool {
        let mut closed = Vec::new();
        let alone = || !self.lead.leads() && !self.is_awaited();
        let came = self.device.completions.poll(how, &alone, &mut closed, taker);
        if came {
            self.tell_of_change();
        }
        for socket in closed {
            self.sweep(&socket);
        }
        came
    }

    /// Forget a connection that has closed.
    pub fn sweep(&self, socket: &Socket) {
        if matches!(socket.inner().stage, Stage::Closed) {
            self.device.completions.leave(socket.qp.load(Ordering::Relaxed));
            lock(&self.sockets).remove(&socket.number);
        }
    }

    fn tell_of_change(&self) {
        if let Some(changed) = self.changed.get() {
            changed();
        }
    }

    /// A new id, with the number that its events will have.
    pub fn id(&self) -> rdma::Result<Bound> {
        let number = self.number();
        Ok(Bound { number, id: self.channel.create_id(number)? })
    }

    pub fn listen(self: &Arc<Self>, at: Bound, backlog: u16, options: Options) -> rdma::Result<Arc<Listener>> {
        let Bound { number, id } = at;
        let listener = Arc::new(Listener {
            number,
            addr: id.local_addr(),
            id: Mutex::new(Some(id.clone())),
            state: Mutex::default(),
            backlog: backlog.into(),
            options,
            shared: Arc::downgrade(self),
        });
        lock(&self.listeners).insert(number, listener.clone());
        if let Err(error) = id.listen(backlog) {
            lock(&self.listeners).remove(&number);
            return Err(error);
        }
        Ok(listener)
    }

    /// Have no connection keep a memory that no operation uses.
    pub fn release(&self, memory: &Arc<Memory>) {
        let sockets: Vec<_> = lock(&self.sockets).values().cloned().collect();
        for socket in sockets {
            if let Some(end) = &mut socket.inner().end {
                end.release(memory);
            }
        }
    }

    /// Leave a listener that has closed.
    pub fn forget(&self, listener: u64) {
        lock(&self.listeners).remove(&listener);
    }

    pub fn connect(
        self: &Arc<Self>,
        from: Option<Bound>,
        to: SocketAddr,
        options: Options,
        tell: To,
    ) -> rdma::Result<Arc<Socket>> {
        let Bound { number, id } = from.map_or_else(|| self.id(), Ok)?;
        let inner = biased::Mutex::new(Inner { stage: Stage::Connecting(tell), end: None, waited: None });
        let socket = self.socket(number, options, inner, id);
        lock(&self.sockets).insert(number, socket.clone());
        self.pace(options.timeout);
        if let Err(error) = socket.id.resolve_addr(to, RESOLVE) {
            lock(&self.sockets).remove(&number);
            return Err(error);
        }
        Ok(socket)
    }

    fn socket(
        self: &Arc<Self>,
        number: u64,
        options: Options,
        inner: biased::Mutex<Inner>,
        id: Arc<CmId>,
    ) -> Arc<Socket> {
        let (qp, shared) = (AtomicU32::new(0), Arc::downgrade(self));
        let timeout = AtomicU64::new(nanos(options.timeout));
        Arc::new(Socket { number, options, qp, timeout, inner, id, shared })
    }

    /// The socket has a queue pair.
    fn enter(&self, socket: &Arc<Socket>, end: &End) {
        socket.qp.store(end.qp.number(), Ordering::Relaxed);
        self.device.completions.enter(end.qp.number(), socket);
    }

    /// Take an event of rdma_cm(7) in.
    fn event(self: &Arc<Self>, event: CmEvent) {
        if event.kind == RDMA_CM_EVENT_CONNECT_REQUEST {
            let listener = lock(&self.listeners).get(&event.cookie).cloned();
            if let Some(listener) = listener {
                let mut state = listener.state();
                if state.requests.len() < listener.backlog.max(1) && settings(&event, &listener.options).is_some() {
                    state.requests.push_back(event);
                } else if let Some(id) = event.id {
                    let _ = id.reject(&[]);
                }
                drop(state);
                self.match_up(&listener);
            }
            return;
        }
        let Some(socket) = lock(&self.sockets).get(&event.cookie).cloned() else { return };
        // What the peer has sent before it went is there.
        self.look(How::All, None);
        let mut inner = socket.inner();
        let failed = match event.kind {
            RDMA_CM_EVENT_ADDR_RESOLVED => socket.id.resolve_route(RESOLVE).err().map(|error| error.errno),
            RDMA_CM_EVENT_ROUTE_RESOLVED => self.ask(&socket, &mut inner).err().map(|error| error.errno),
            RDMA_CM_EVENT_CONNECT_RESPONSE => self.answered(&socket, &mut inner, &event).err(),
            RDMA_CM_EVENT_ESTABLISHED => match std::mem::replace(&mut inner.stage, Stage::Up) {
                Stage::Accepting((queue, handle)) => {
                    let mut event = Event::new(EventKind::Accept, handle, Ok(0));
                    event.socket = Some(socket.clone());
                    queue.put(event);
                    None
                }
                stage => {
                    inner.stage = stage;
                    // The active side of iWARP: this is the reply.
                    let asks = matches!(inner.stage, Stage::Connecting(_));
                    asks.then(|| self.answered(&socket, &mut inner, &event).err()).flatten()
                }
            },
            RDMA_CM_EVENT_REJECTED => Some(Errno(libc::ECONNREFUSED)),
            RDMA_CM_EVENT_ADDR_ERROR | RDMA_CM_EVENT_ROUTE_ERROR | RDMA_CM_EVENT_UNREACHABLE => {
                Some(Errno(if event.status < 0 { -event.status } else { libc::EHOSTUNREACH }))
            }
            RDMA_CM_EVENT_CONNECT_ERROR | RDMA_CM_EVENT_DISCONNECTED | RDMA_CM_EVENT_DEVICE_REMOVAL => {
                Some(Errno(libc::ECONNRESET))
            }
            _ => None,
        };
        if let Some(errno) = failed {
            self.lost(&socket, &mut inner, errno);
        }
        drop(inner);
        self.sweep(&socket);
    }

    /// Ask the peer, now that there is a route.
    fn ask(&self, socket: &Arc<Socket>, inner: &mut Inner) -> rdma::Result<()> {
        if !matches!(inner.stage, Stage::Connecting(_)) {
            // The program has closed it meanwhile.
            return Ok(());
        }
        self.device.check(&socket.id)?;
        let end = End::new(&self.device, &socket.id, &socket.options)?;
        let hello = end.hello(&socket.options, &self.device).emit();
        let reads = socket.options.reads;
        let param = CmParam {
            private_data: &hello,
            responder_resources: reads,
            initiator_depth: reads,
            rnr_retry_count: RNR_RETRIES,
            ..CmParam::default()
        };
        // The first message may come before connect returns: over iWARP the queue pair is in RTS with MPA's reply. It
        // waits for `inner`.
        self.enter(socket, &end);
        // The table is locked before a socket, never behind it: if connect fails, `sweep` takes the number out.
        socket.id.connect(&end.qp, &param)?;
        inner.end = Some(end);
        Ok(())
    }

    /// The peer has accepted.
    fn answered(&self, socket: &Arc<Socket>, inner: &mut Inner, event: &CmEvent) -> Result<(), Errno> {
        let refused = Errno(libc::ECONNREFUSED);
        let (protocol, param) = settings(event, &socket.options).ok_or(refused)?;
        let end = inner.end.as_mut().ok_or(refused)?;
        if !self.device.iwarp {
            socket.id.establish(&end.qp, &param).map_err(|error| error.errno)?;
        }
        end.start(protocol);
        if let Stage::Connecting((queue, handle)) = std::mem::replace(&mut inner.stage, Stage::Up) {
            queue.put(Event::new(EventKind::Connect, handle, Ok(0)));
        }
        Ok(())
    }

    /// The connection is gone, or was never made.
    fn lost(&self, socket: &Arc<Socket>, inner: &mut Inner, errno: Errno) {
        if let Some(end) = &mut inner.end {
            end.reset(Reset::Peer);
        }
        match std::mem::replace(&mut inner.stage, Stage::Gone) {
            Stage::Connecting((queue, handle)) => {
                inner.stage = Stage::Closed;
                socket.finish(inner);
                queue.put(Event::new(EventKind::Connect, handle, Err(errno)));
            }
            Stage::Accepting((queue, handle)) => {
                inner.stage = Stage::Closed;
                socket.finish(inner);
                queue.put(Event::new(EventKind::Accept, handle, Err(errno)));
            }
            stage @ (Stage::Closing(_) | Stage::Closed) => {
                inner.stage = stage;
                socket.step(inner);
            }
            Stage::Up | Stage::Gone => {}
        }
    }

    /// Give waiting connections to waiting accepts.
    pub fn match_up(self: &Arc<Self>, listener: &Listener) {
        loop {
            let mut state = listener.state();
            let Waiting { requests, accepts } = &mut *state;
            if requests.is_empty() {
                return;
            }
            let Some(to) = accepts.pop_front() else { return };
            let Some(event) = requests.pop_front() else { return };
            drop(state);
            // A peer that has gone meanwhile costs no accept.
            if self.accept(listener, &event, to.clone()).is_err() {
                listener.state().accepts.push_front(to);
            }
        }
    }

    fn accept(self: &Arc<Self>, listener: &Listener, event: &CmEvent, to: To) -> Result<(), Errno> {
        let errno = |error: rdma::Error| error.errno;
        let id: Arc<CmId> = event.id.clone().ok_or(Errno(libc::EPROTO))?;
        let options = listener.options;
        let (protocol, param) = settings(event, &options).ok_or(Errno(libc::ECONNREFUSED))?;
        self.device.check(&id).map_err(errno)?;
        let number = self.number();
        let mut end = End::new(&self.device, &id, &options).map_err(errno)?;
        id.set_cookie(number);
        let hello = end.hello(&options, &self.device).emit();
        let inner = biased::Mutex::new(Inner { stage: Stage::Accepting(to), end: None, waited: None });
        let socket = self.socket(number, options, inner, id);
        let mut inner = socket.inner();
        // Its events may come as soon as the peer is answered.
        lock(&self.sockets).insert(number, socket.clone());
        self.pace(options.timeout);
        self.enter(&socket, &end);
        end.start(protocol);
        let accepted = socket.id.accept(&end.qp, &CmParam { private_data: &hello, ..param }).map_err(errno);
        match accepted {
            Ok(()) => inner.end = Some(end),
            Err(_) => {
                // The table is locked before a socket, never behind it.
                drop(inner);
                self.device.completions.leave(end.qp.number());
                lock(&self.sockets).remove(&number);
            }
        }
        accepted
    }
}

/// The protocol and the parameters of a connection, by what the peer says in its request or its answer. `None`: it is
/// no EXS of this version, or cannot be read from.
fn settings(event: &CmEvent, options: &Options) -> Option<(Connection, CmParam<'static>)> {
    let (ours, theirs) = (options.settings(), Hello::parse(&event.private_data).ok()?);
    let initiator_depth = options.reads.min(event.initiator_depth);
    let responder_resources = options.reads.min(event.responder_resources);
    if initiator_depth == 0 || responder_resources == 0 {
        return None;
    }
    let protocol = Connection::new(ours, theirs, initiator_depth.into(), options.places)?;
    let rnr_retry_count = RNR_RETRIES;
    Some((protocol, CmParam { initiator_depth, responder_resources, rnr_retry_count, ..CmParam::default() }))
}
