//! Contexts, asynchronous events, and acknowledgements. An object's destruction waits until the program has
//! acknowledged every event about the object that it has got (`ibv_get_async_event(3)`, `ibv_get_cq_event(3)`).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ::verbs::{CqId, CtxId, Errno, EventKind, EventSource, QpId, Result, SrqId};
use parking_lot::Mutex;
use report::Device;
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::channel::Bell;
use crate::waiters::{Waited, Waiters};
use crate::{Nic, errno, signal};

/// The object of an event, with the token that it was created with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventTarget {
    /// A queue pair.
    Qp(QpId, u64),
    /// A completion queue.
    Cq(CqId, u64),
    /// A shared receive queue.
    Srq(SrqId, u64),
    /// The port.
    Port(u8),
    /// The device.
    Device,
}

/// Events that the program has got and not acknowledged.
#[derive(Default)]
pub(crate) struct Unacked {
    pub cqs: HashMap<CqId, u32>,
    pub objects: HashMap<Object, u32>,
    /// Objects whose destruction waits for acknowledgements.
    pub destroys: Vec<Object>,
}

impl Unacked {
    /// The number of events about an object that the program has got and not acknowledged.
    pub fn of(&self, object: Object) -> u32 {
        let completions = match object {
            Object::Cq(cq) => self.cqs.get(&cq).copied().unwrap_or(0),
            _ => 0,
        };
        completions + self.objects.get(&object).copied().unwrap_or(0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Object {
    Qp(QpId),
    Cq(CqId),
    Srq(SrqId),
}

impl EventTarget {
    fn object(&self) -> Option<Object> {
        match *self {
            EventTarget::Qp(id, _) => Some(Object::Qp(id)),
            EventTarget::Cq(id, _) => Some(Object::Cq(id)),
            EventTarget::Srq(id, _) => Some(Object::Srq(id)),
            EventTarget::Port(_) | EventTarget::Device => None,
        }
    }
}

pub(crate) struct ContextQueue {
    bell: Bell,
    queue: Mutex<VecDeque<(EventKind, EventTarget)>>,
}

impl ContextQueue {
    pub fn push(&self, kind: EventKind, source: EventSource, user: u64) {
        let target = match source {
            EventSource::Qp(id) => EventTarget::Qp(id, user),
            EventSource::Cq(id) => EventTarget::Cq(id, user),
            EventSource::Srq(id) => EventTarget::Srq(id, user),
            EventSource::Port(n) => EventTarget::Port(n),
            EventSource::Device => EventTarget::Device,
        };
        self.queue.lock().push_back((kind, target));
        self.bell.ring();
    }

    /// The events that the program has not got yet.
    pub fn unread(&self) -> Vec<EventKind> {
        self.queue.lock().iter().map(|(kind, _)| *kind).collect()
    }

    fn forget(&self, object: Object) {
        let mut queue = self.queue.lock();
        let before = queue.len();
        queue.retain(|(_, target)| target.object() != Some(object));
        for _ in queue.len()..before {
            self.bell.take_back();
        }
    }
}

/// An open device.
pub struct Context {
    /// The context's name in the engine.
    pub id: CtxId,
    /// The device.
    pub device: Device,
    queue: Arc<ContextQueue>,
    /// A descriptor that stands for the context: its identity survives dup (`ibv_import_device(3)`).
    cmd: OwnedFd,
    waiters: Waiters,
}

/// The descriptor is that of asynchronous events.
impl Waited for Context {
    fn fd(&self) -> i32 {
        self.queue.bell.0.as_raw_fd()
    }

    fn waiters(&self) -> &Waiters {
        &self.waiters
    }
}

impl Context {
    /// The command descriptor of the context.
    pub fn cmd_fd(&self) -> i32 {
        self.cmd.as_raw_fd()
    }

    /// True if a descriptor is (a duplicate of) this context's command descriptor.
    pub fn is_cmd_fd(&self, fd: BorrowedFd<'_>) -> bool {
        let same = |a: rustix::fs::Stat, b: rustix::fs::Stat| a.st_ino == b.st_ino && a.st_dev == b.st_dev;
        match (rustix::fs::fstat(&self.cmd), rustix::fs::fstat(fd)) {
            (Ok(a), Ok(b)) => same(a, b),
            _ => false,
        }
    }
}

impl Nic {
    /// Open a device.
    ///
    /// # Errors
    /// ENODEV: it is none of this process's; EMFILE, ENOMEM.
    pub fn open(&'static self, device: Device) -> Result<Arc<Context>> {
        if !self.settings.devices.has(device) {
            return Err(Errno::ENODEV);
        }
        let queue = Arc::new(ContextQueue { bell: Bell::new()?, queue: Mutex::default() });
        // Every memfd has an inode of its own, which is what makes the descriptor recognisable.
        let cmd = rustix::fs::memfd_create(device.name(), rustix::fs::MemfdFlags::CLOEXEC).map_err(errno)?;
        let mut core = self.lock();
        let id = core.open_ctx()?;
        if device.is_iwarp() {
            core.set_iwarp(id)?;
        }
        core.contexts.insert(id, queue.clone());
        drop(core);
        self.start_doctor();
        Ok(Arc::new(Context { id, device, queue, cmd, waiters: Waiters::default() }))
    }

    /// Close a context; the objects that its program left in it are destroyed.
    pub fn close(&self, context: &Arc<Context>) -> Result<()> {
        let mut core = self.lock();
        core.contexts.remove(&context.id);
        if core.contexts.is_empty() {
            signal::give_up();
        }
        let result = core.close_ctx(context.id);
        if core.contexts.is_empty() {
            core.env_mut().flush(); // the process may end now, in a way that no handler sees
        }
        // Queues that the program left behind are gone, so their channels are free.
        let gone: Vec<CqId> = core.channels.keys().copied().filter(|&cq| !core.has_cq(cq)).collect();
        drop(core);
        for cq in gone {
            self.unbind_cq_channel(cq);
        }
        self.outlived.1.keep(context.clone());
        result
    }

    /// Wait for an asynchronous event. The program must acknowledge it.
    ///
    /// # Errors
    /// EAGAIN: O_NONBLOCK is set and no event waits; EINTR: a signal handler ran.
    pub fn get_async_event(&self, context: &Context) -> Result<(EventKind, EventTarget)> {
        loop {
            context.queue.bell.wait()?;
            if let Some(event) = self.take_async_event(context) {
                return Ok(event);
            }
        }
    }

    /// Take the next event of a context whose descriptor the caller has read. `None`: the event has gone with its
    /// object.
    pub fn take_async_event(&self, context: &Context) -> Option<(EventKind, EventTarget)> {
        let mut unacked = self.unacked.lock();
        let (kind, target) = context.queue.queue.lock().pop_front()?;
        if let Some(object) = target.object() {
            *unacked.objects.entry(object).or_default() += 1;
        }
        Some((kind, target))
    }

    /// Acknowledge an asynchronous event.
    pub fn ack_async_event(&self, target: EventTarget) {
        let Some(object) = target.object() else { return };
        let mut unacked = self.unacked.lock();
        if let Some(n) = unacked.objects.get_mut(&object) {
            *n -= 1;
            if *n == 0 {
                unacked.objects.remove(&object);
            }
        }
        self.acked.notify_all();
    }

    /// Acknowledge `n` events of a completion queue.
    pub fn ack_cq_events(&self, cq: CqId, n: u32) {
        let mut unacked = self.unacked.lock();
        if let Some(open) = unacked.cqs.get_mut(&cq) {
            *open = open.saturating_sub(n);
            if *open == 0 {
                unacked.cqs.remove(&cq);
            }
        }
        self.acked.notify_all();
    }

    /// Drop the events about an object that is gone, and wait until those that the program got are acknowledged.
    pub(crate) fn await_event_acks(&self, ctx: CtxId, object: Object) {
        let queue = self.lock().contexts.get(&ctx).cloned();
        if let Some(queue) = queue {
            queue.forget(object);
        }
        let mut unacked = self.unacked.lock();
        if unacked.of(object) == 0 {
            return;
        }
        unacked.destroys.push(object);
        while unacked.of(object) > 0 {
            self.acked.wait(&mut unacked);
        }
        unacked.destroys.retain(|other| *other != object);
    }
}

/// The error for handles that do not exist.
pub(crate) const UNKNOWN: Errno = Errno::EINVAL;
