//! Event queues, and the operations that are pending in them.

use std::cell::OnceCell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use exs::socket::{self as core, EventKind, WaitMode};
use libc::{c_int, c_void};
use rdma::Errno;
use rustix::event::{EventfdFlags, eventfd};

use crate::ctypes::*;
use crate::device::device;
use crate::entry::{call, duration, read, refuse};
use crate::memory::Hold;
use crate::service::service;
use crate::slab::Slab;
use crate::socket::Sock;
use crate::tcp::Tcp;

/// How an operation is cancelled.
#[derive(Clone)]
pub enum Cancel {
    /// The operation is being begun.
    Unknown,
    /// It is too late, or is not possible.
    None,
    /// An accept.
    Accept(Arc<core::Listener>),
    /// A send or a receive of this number.
    Transfer(Arc<core::Socket>, u64),
    /// An operation of a TCP socket.
    Tcp(Arc<Tcp>),
    /// A poll.
    Poll,
}

/// What an operation fills in at its end.
pub enum Fill {
    /// Nothing.
    None,
    /// Addresses of an accepted connection.
    Addresses(*mut exs_acceptaddr),
    /// Flags of a message.
    Message(*mut exs_msghdr),
    /// Nothing: the event names the list of a poll.
    List(*mut exs_fdvec),
}

/// A pending operation.
pub struct Op {
    /// The type of its event.
    pub kind: c_int,
    pub fd: c_int,
    pub ahandle: isize,
    /// The socket, for what its end changes.
    pub sock: Option<Arc<Sock>>,
    pub hold: Hold,
    pub fill: Fill,
    pub cancel: Cancel,
    /// The time at which it is cancelled, and whether it was for that.
    pub deadline: Option<Instant>,
    pub late: bool,
}

// SAFETY: the pointers are the program's, which gives them to the operation until its event; they are used by the one
// thread that takes the event.
unsafe impl Send for Op {}

impl Op {
    /// An operation that holds and fills nothing.
    pub fn new(kind: c_int, fd: c_int, ahandle: isize) -> Op {
        let (hold, fill, cancel) = (Hold::None, Fill::None, Cancel::Unknown);
        Op { kind, fd, ahandle, sock: None, hold, fill, cancel, deadline: None, late: false }
    }
}

/// Who is told that events wait.
#[derive(Default)]
struct Notice {
    threshold: usize,
    signal: Option<(c_int, usize)>,
    bell: Option<Arc<OwnedFd>>,
}

/// A queue: the events are in that of the crate `exs`.
pub struct Queue {
    pub core: Arc<core::Queue>,
    ops: Mutex<Slab<Op>>,
    notice: Mutex<Notice>,
}

static QUEUES: RwLock<Slab<Arc<Queue>>> = RwLock::new(Slab::new());

/// The queue of a handle. EINVAL: there is none.
pub fn find(handle: i32) -> Result<Arc<Queue>, Errno> {
    let queues = QUEUES.read().unwrap_or_else(PoisonError::into_inner);
    queues.get(handle).cloned().ok_or(Errno(libc::EINVAL))
}

/// For how long a call without a queue waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Until its operation has ended; a signal does not change that.
    End,
    /// That long, for ever if it is `None`, or until a signal comes.
    Time(Option<Duration>),
}

/// Begin an operation. With a queue: `None`. With EXS_QHANDLE_INVALID the call waits: the event.
pub fn run(
    queue: i32,
    op: Op,
    limit: Limit,
    start: impl FnOnce(&Arc<core::Queue>, u64) -> Result<Cancel, Errno>,
) -> Result<Option<exs_event>, Errno> {
    if queue != INVALID {
        let queue = find(queue)?;
        let deadline = op.deadline;
        // The thread is there before the operation, which cannot be taken back.
        let service = deadline.map(|deadline| Ok((service()?, deadline))).transpose()?;
        queue.begin(op, start)?;
        if let Some((service, deadline)) = service {
            service.add_deadline(&queue, deadline);
        }
        return Ok(None);
    }
    thread_local! {
        static OWN: OnceCell<Arc<Queue>> = const { OnceCell::new() };
    }
    let make = || Queue::create(1);
    let own = OWN.try_with(|own| match own.get() {
        Some(own) => Ok(own.clone()),
        None => make().map(|made| own.get_or_init(|| made).clone()),
    });
    let own = own.unwrap_or_else(|_| make())?;
    let key = own.begin(op, start)?;
    let event = own.wait(key, limit)?;
    if event.errno == 0 { Ok(Some(event)) } else { refuse(event.errno) }
}

impl Queue {
    fn create(depth: usize) -> Result<Arc<Queue>, Errno> {
        let core = match device() {
            Ok(device) => device.queue(depth)?,
            // Descriptors of socket(2) need no device.
            Err(_) => core::Queue::alone(depth)?,
        };
        let notice = Mutex::new(Notice { threshold: 1, ..Notice::default() });
        Ok(Arc::new(Queue { core, ops: Mutex::new(Slab::new()), notice }))
    }

    fn ops(&self) -> MutexGuard<'_, Slab<Op>> {
        self.ops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enter an operation, and start it; its key.
    fn begin(&self, op: Op, start: impl FnOnce(&Arc<core::Queue>, u64) -> Result<Cancel, Errno>) -> Result<i32, Errno> {
        let key = self.ops().insert(op).ok_or(Errno(libc::EAGAIN))?;
        match start(&self.core, key as u64) {
            Ok(cancel) => {
                // Its event may be gone already.
                if let Some(op) = self.ops().get_mut(key) {
                    op.cancel = cancel;
                }
                Ok(key)
            }
            Err(errno) => {
                let op = self.ops().remove(key);
                drop(op);
                Err(errno)
            }
        }
    }

    /// Wait for the one operation of this queue.
    fn wait(&self, key: i32, limit: Limit) -> Result<exs_event, Errno> {
        let waited = match limit {
            Limit::End => Ok(self.core.dequeue(1, 1, None)),
            Limit::Time(time) => self.core.take(1, 1, time),
        };
        let why = match waited {
            Ok(mut events) => match events.pop() {
                Some(event) => return Ok(self.end(event)),
                None => libc::EAGAIN,
            },
            Err(Errno(errno)) => errno,
        };
        self.cancel(|at, _| at == key);
        let mut events = self.core.dequeue(1, 1, None);
        let event = events.pop().map(|event| self.end(event)).ok_or(Errno(libc::EIO))?;
        if event.errno == libc::ECANCELED { refuse(why) } else { Ok(event) }
    }

    /// Ask for the end of operations; of how many.
    fn cancel(&self, wanted: impl Fn(i32, &Op) -> bool) -> usize {
        let found: Vec<(u64, Cancel)> = self
            .ops()
            .iter()
            .filter(|(key, op)| wanted(*key, op))
            .map(|(key, op)| (key as u64, op.cancel.clone()))
            .collect();
        let end = |(key, cancel)| match cancel {
            Cancel::Unknown | Cancel::None => 0,
            Cancel::Accept(listener) => listener.cancel(&self.core, key),
            Cancel::Transfer(socket, number) => usize::from(socket.cancel(number)),
            Cancel::Tcp(tcp) => tcp.cancel(&self.core, key),
            Cancel::Poll => service().map_or(0, |service| service.cancel_poll(&self.core, key)),
        };
        found.into_iter().map(end).sum()
    }

    /// Cancel operations whose time is over; the next deadline.
    pub fn expire(&self, now: Instant) -> Option<Instant> {
        let (mut over, mut next) = (Vec::new(), None);
        {
            let mut ops = self.ops();
            for (key, op) in ops.iter() {
                let Some(deadline) = op.deadline else { continue };
                let later = match op.cancel {
                    // It cannot be cancelled yet: soon.
                    Cancel::Unknown => deadline.max(now + Duration::from_millis(1)),
                    _ => deadline,
                };
                match later <= now {
                    true => over.push(key),
                    false => next = Some(next.map_or(later, |next: Instant| next.min(later))),
                }
            }
            for key in &over {
                if let Some(op) = ops.get_mut(*key) {
                    (op.late, op.deadline) = (true, None);
                }
            }
        }
        self.cancel(|key, _| over.contains(&key));
        next
    }

    /// End the operation of an event.
    fn end(&self, event: core::Event) -> exs_event {
        let op = self.ops().remove(event.handle as i32);
        // An event of no operation cannot be: keys are given out by `begin`.
        let op = op.unwrap_or_else(|| Op::new(0, -1, 0));
        let (errno, length) = match event.result {
            Ok(length) => (0, length as usize),
            Err(Errno(errno)) => (errno, 0),
        };
        let truncated = if event.truncated { libc::MSG_TRUNC } else { 0 };
        let flags = truncated | if event.end { EOF } else { 0 };
        let Op { mut kind, fd, ahandle, sock, hold, fill, late, .. } = op;
        let mut errno = errno;
        if late && errno == libc::ECANCELED {
            let receive = matches!(kind, EVT_RECV | EVT_RECVMSG);
            (kind, errno) = (if receive { EVT_RECVTIMEOUT } else { EVT_SENDTIMEOUT }, libc::ETIMEDOUT);
        }
        let data = std::ptr::null_mut();
        let mut made = exs_event { kind, fd, ahandle, errno, flags, length, newfd: -1, reserved: 0, data };
        if let Err(Errno(errno)) = hold.deliver(length) {
            (made.errno, made.length) = (errno, 0);
        }
        drop(hold);
        match event.kind {
            EventKind::Connect => {
                if let Some(sock) = &sock {
                    sock.connected(errno);
                }
            }
            EventKind::Accept => {
                if let (Some(connection), Some(listener)) = (event.socket, &sock) {
                    match listener.accepted(connection, &fill) {
                        Ok(fd) => made.newfd = fd,
                        Err(Errno(errno)) => made.errno = errno,
                    }
                }
            }
            EventKind::Close => {
                if let Some(sock) = &sock {
                    sock.closed();
                }
            }
            // An accept of a TCP socket.
            EventKind::Other if kind == EVT_ACCEPT && errno == 0 => {
                (made.newfd, made.length) = (length as c_int, 0);
                fill.addresses_of(made.newfd);
            }
            EventKind::Send | EventKind::Receive | EventKind::Other => {}
        }
        match fill {
            Fill::Message(message) => {
                made.data = message.cast();
                if kind == EVT_RECVMSG {
                    // SAFETY: the program gave the structure to the operation until this event.
                    unsafe { (&raw mut (*message).flags).write_unaligned(flags) };
                }
            }
            Fill::List(list) => made.data = list.cast(),
            Fill::None | Fill::Addresses(_) => {}
        }
        made
    }

    /// Have the bell rung for the descriptor and the signal.
    fn renew(&self, notice: &Notice) {
        let (fd, signal) = (notice.bell.clone(), notice.signal);
        let ring: core::Bell = Box::new(move |due| {
            if let Some(fd) = &fd {
                let mut count = [0; 8];
                // A full counter is readable, and an empty one is not.
                let _ = match due {
                    true => rustix::io::write(fd, &1u64.to_ne_bytes()),
                    false => rustix::io::read(fd, &mut count),
                };
            }
            if let (true, Some((number, value))) = (due, signal) {
                let value = libc::sigval { sival_ptr: value as *mut c_void };
                // SAFETY: no memory is involved. It fails when too many signals wait: one of them is this one's, too.
                unsafe { libc::sigqueue(libc::getpid(), number, value) };
            }
        });
        let wanted = notice.bell.is_some() || notice.signal.is_some();
        self.core.set_bell(notice.threshold, wanted.then_some(ring));
    }
}

/// `exs_qcreate`: a handle. EINVAL: no depth. EAGAIN: too many queues.
#[unsafe(no_mangle)]
pub extern "C" fn exs_qcreate(depth: c_int) -> i32 {
    call(|| {
        let depth = usize::try_from(depth).ok().filter(|depth| *depth > 0).ok_or(Errno(libc::EINVAL))?;
        crate::entry::watch_forks();
        let queue = Queue::create(depth)?;
        QUEUES.write().unwrap_or_else(PoisonError::into_inner).insert(queue).ok_or(Errno(libc::EAGAIN))
    })
}

/// `exs_qdelete`. EINVAL: no such queue. EBUSY: operations are pending, events wait, or a thread uses it.
#[unsafe(no_mangle)]
pub extern "C" fn exs_qdelete(handle: i32) -> c_int {
    call(|| {
        let mut queues = QUEUES.write().unwrap_or_else(PoisonError::into_inner);
        let queue = queues.get(handle).ok_or(Errno(libc::EINVAL))?;
        // A thread that has found it, but not used it yet, has it.
        if Arc::strong_count(queue) > 1 || queue.core.in_use() > 0 {
            return refuse(libc::EBUSY);
        }
        // Connections may keep the inner queue until they end: nothing is awaited for it any more.
        queue.core.set_bell(0, None);
        queues.remove(handle);
        Ok(0)
    })
}

/// `exs_qmodify`. EINVAL: no such queue, attribute, or value. EFAULT: a null pointer. EBUSY: a depth below what is
/// pending.
///
/// # Safety
/// `value` is null, or points to the type of the attribute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_qmodify(handle: i32, attribute: c_int, value: *const c_void) -> c_int {
    call(|| {
        let queue = find(handle)?;
        // SAFETY: the caller's promise: it is an int, as all attributes but one are.
        let number = || unsafe { read(value.cast::<c_int>()) };
        let positive =
            || number().and_then(|value| usize::try_from(value).ok().filter(|v| *v > 0).ok_or(Errno(libc::EINVAL)));
        let mut notice = queue.notice.lock().unwrap_or_else(PoisonError::into_inner);
        match attribute {
            QATTR_DEPTH => queue.core.set_depth(positive()?)?,
            QATTR_WAIT => queue.core.set_waiting(match number()? {
                WAIT_ADAPTIVE => WaitMode::Adaptive,
                WAIT_NOTIFY => WaitMode::Notify,
                WAIT_BUSY_POLL => WaitMode::BusyPoll,
                _ => return refuse(libc::EINVAL),
            }),
            QATTR_EVENTS => {
                let threshold = positive()?;
                if threshold > queue.core.depth() {
                    return refuse(libc::EINVAL);
                }
                notice.threshold = threshold;
                queue.renew(&notice);
            }
            QATTR_SIGNAL => {
                // SAFETY: the caller's promise.
                let signal = unsafe { read(value.cast::<exs_signal>())? };
                if !(0..=libc::SIGRTMAX()).contains(&signal.signo) {
                    return refuse(libc::EINVAL);
                }
                // SAFETY: a pointer is the larger one of the union's two members, and any bytes are one.
                notice.signal = (signal.signo > 0).then_some((signal.signo, signal.value.sival_ptr as usize));
                queue.renew(&notice);
            }
            _ => return refuse(libc::EINVAL),
        }
        Ok(0)
    })
}

/// `exs_qfd`: a descriptor that is readable while events wait. EMFILE, ENFILE.
#[unsafe(no_mangle)]
pub extern "C" fn exs_qfd(handle: i32) -> c_int {
    call(|| {
        let queue = find(handle)?;
        let mut notice = queue.notice.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bell) = &notice.bell {
            return Ok(bell.as_raw_fd());
        }
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = Arc::new(bell.map_err(|errno| Errno(errno.raw_os_error()))?);
        let fd = bell.as_raw_fd();
        notice.bell = Some(bell);
        queue.renew(&notice);
        Ok(fd)
    })
}

/// `exs_qdequeue`: the number of events. `count` events at most; a negative one is a threshold: as many are waited for.
/// EINVAL: no such queue, a bad time, more than EXS_EVTVEC_MAX, a threshold that is more than the depth. EFAULT: a null
/// pointer. EINTR: a signal came before there were enough.
///
/// # Safety
/// `events` points to room for `count` events, and `timeout` is null or points to its structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_qdequeue(
    handle: i32,
    events: *mut exs_event,
    count: c_int,
    timeout: *const libc::timeval,
) -> c_int {
    call(|| {
        let queue = find(handle)?;
        // SAFETY: the caller's promise.
        let timeout = unsafe { duration(timeout)? };
        let most = count.unsigned_abs() as usize;
        if most == 0 {
            return Ok(0);
        }
        let threshold = count < 0;
        if threshold && (most > queue.core.depth() || most > EVTVEC_MAX) {
            return refuse(libc::EINVAL);
        }
        if events.is_null() {
            return refuse(libc::EFAULT);
        }
        let least = if threshold { most } else { 1 };
        let taken = queue.core.take(most.min(EVTVEC_MAX), least, timeout)?;
        let number = taken.len() as c_int;
        for (index, event) in taken.into_iter().enumerate() {
            let event = queue.end(event);
            // SAFETY: the caller's promise; there are not more than `count`.
            unsafe { events.add(index).write_unaligned(event) };
        }
        Ok(number)
    })
}

/// `exs_cancel`: the number of operations that will end for it, each with its event. Those that are meant were begun
/// with this descriptor (-1: polls), queue and handle. EBADF, EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn exs_cancel(fd: c_int, handle: i32, ahandle: isize) -> c_int {
    call(|| {
        let queue = find(handle)?;
        // A poll has no descriptor.
        if fd != -1 && crate::socket::get(fd).is_none() {
            crate::tcp::find(fd)?;
        }
        Ok(queue.cancel(|_, op| op.fd == fd && op.ahandle == ahandle) as c_int)
    })
}
