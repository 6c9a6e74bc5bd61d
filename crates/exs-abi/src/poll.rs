//! `exs_poll`.

use std::sync::Arc;
use std::time::Instant;

use exs::socket::{Event, EventKind, Queue};
use libc::{c_int, c_short};
use rdma::Errno;
use rustix::event::PollFlags;

use crate::ctypes::*;
use crate::entry::{call, duration, read, read_array, refuse};
use crate::queue::{Cancel, Fill, Limit, Op, run};
use crate::service::service;
use crate::socket::{Sock, Stage, get};

/// Entries of one poll.
const MOST: usize = 4096;

/// An entry: its descriptor, and what is asked.
struct Entry {
    fd: c_int,
    events: c_short,
    /// None: the kernel's.
    sock: Option<Arc<Sock>>,
}

/// A poll that waits.
pub struct Poll {
    entries: Vec<Entry>,
    /// The program's entries, whose `revents` are filled in.
    to: *mut exs_pollfd,
    deadline: Option<Instant>,
    queue: Arc<Queue>,
    key: u64,
}

// SAFETY: the array is the program's, which gives it to the operation until its event; one thread has the poll.
unsafe impl Send for Poll {}

impl Sock {
    /// What poll(2) would say.
    fn revents(&self) -> c_short {
        let state = self.state();
        match &state.stage {
            Stage::New(_) => libc::POLLHUP | libc::POLLOUT,
            Stage::Closing => libc::POLLNVAL,
            Stage::Listening(listener) => {
                if listener.waiting() > 0 {
                    libc::POLLIN
                } else {
                    0
                }
            }
            Stage::Connecting(socket) | Stage::Connected(socket) => {
                let ready = socket.ready();
                let readable = if ready.readable || state.deaf { libc::POLLIN | libc::POLLRDNORM } else { 0 };
                let writable = if ready.writable { libc::POLLOUT | libc::POLLWRNORM } else { 0 };
                readable | writable | if ready.gone { libc::POLLHUP } else { 0 }
            }
        }
    }
}

/// What is told without being asked.
const ALWAYS: c_short = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;

impl Poll {
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// True if it is this operation.
    pub fn is(&self, queue: &Arc<Queue>, key: u64) -> bool {
        self.key == key && Arc::ptr_eq(&self.queue, queue)
    }

    /// The kernel's descriptors in it.
    pub fn foreign(&self) -> impl Iterator<Item = (c_int, PollFlags)> + '_ {
        let kernels = self.entries.iter().filter(|entry| entry.fd >= 0 && entry.sock.is_none());
        kernels.map(|entry| (entry.fd, PollFlags::from_bits_retain(entry.events as u16)))
    }

    /// End it if something is ready, or its time is over; else it is given back.
    pub fn look(self, now: Instant) -> Option<Poll> {
        let mut fds: Vec<libc::pollfd> = self
            .entries
            .iter()
            .map(|entry| {
                let fd = if entry.sock.is_some() { -1 } else { entry.fd };
                libc::pollfd { fd, events: entry.events, revents: 0 }
            })
            .collect();
        // SAFETY: an array with its length. A failure (no memory) leaves it as it is: nothing is ready.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, 0) };
        let mut count = 0;
        for (entry, fd) in self.entries.iter().zip(&mut fds) {
            if let Some(sock) = &entry.sock {
                fd.revents = sock.revents() & (entry.events | ALWAYS);
            }
            count += u64::from(fd.revents != 0);
        }
        if count == 0 && self.deadline.is_none_or(|deadline| deadline > now) {
            return Some(self);
        }
        for (index, fd) in fds.iter().enumerate() {
            // SAFETY: the program gave the array to the operation until its event, which comes behind this.
            unsafe { (&raw mut (*self.to.add(index)).revents).write_unaligned(fd.revents) };
        }
        self.queue.put(Event::new(EventKind::Other, self.key, Ok(count)));
        None
    }

    /// End it without a result.
    pub fn cancel(self) {
        self.queue.put(Event::new(EventKind::Other, self.key, Err(Errno(libc::ECANCELED))));
    }
}

/// `exs_poll`: with a queue, a POLL event comes when a descriptor of the list is ready or the time is over, and its
/// length is the number of those that are; without, the call waits and returns it. Descriptors of exs_socket and of the
/// kernel may be mixed; negative ones are left out. EINVAL: a bad time or number. EFAULT: a null pointer.
///
/// # Safety
/// `list` and its array are null, or are what they say until the event; `timeout` is null or points to its structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_poll(
    list: *mut exs_fdvec,
    flags: c_int,
    timeout: *const libc::timeval,
    queue: i32,
    ahandle: isize,
) -> c_int {
    call(|| {
        if flags != 0 {
            return refuse(libc::EINVAL);
        }
        // SAFETY: the caller's promise.
        let (vec, timeout) = unsafe { (read(list.cast_const())?, duration(timeout)?) };
        // SAFETY: the caller's promise.
        let asked = unsafe { read_array(vec.fds.cast_const(), vec.count, MOST)? };
        let entry = |asked: &exs_pollfd| Entry { fd: asked.fd, events: asked.events, sock: get(asked.fd) };
        let now = Instant::now();
        // A time beyond what the clock can say is for ever.
        let deadline = timeout.and_then(|timeout| now.checked_add(timeout));
        let entries: Vec<Entry> = asked.iter().map(entry).collect();
        let op = Op { fill: Fill::List(list), ..Op::new(EVT_POLL, -1, ahandle) };
        let event = run(queue, op, Limit::Time(None), |queue, key| {
            let service = service()?;
            if let Ok(device) = crate::device::device() {
                device.watch(Box::new(crate::service::changed));
            }
            queue.reserve()?;
            service.add_poll(Poll { entries, to: vec.fds, deadline, queue: queue.clone(), key });
            Ok(Cancel::Poll)
        })?;
        Ok(event.map_or(0, |event| event.length as c_int))
    })
}
