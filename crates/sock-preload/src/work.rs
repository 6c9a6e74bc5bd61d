//! Working on a connection: who may, the locks, waiting.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use memory::backing::Memfd;
use memory::stream::{Mode, PairWay, Stream};
use sock::end::{End, Writable};
use sock::status::Way;

use crate::cancel::{self, point_at};
use crate::kernel::{self, Tcp};
use crate::link::{Inside, Link};
use crate::status::{self, Count};
use crate::table::{self, Held, Slot, Tag};
use crate::{descriptors, epoll, log, meet, next, orphan, spin};

/// A connection that is being worked on: its memory stays until this is dropped.
pub struct Use {
    pub slot: &'static Slot,
    pub number: usize,
    pub fd: i32,
}

/// The connection behind a descriptor, if it has shared memory.
pub fn connection(fd: i32) -> Option<Use> {
    let Tag::Shared(number) = table::tag(fd) else { return None };
    let slot = table::slot(number);
    slot.users.fetch_add(1, Ordering::SeqCst);
    let connection = Use { slot, number, fd };
    // Between the look and the mark it may have been closed, and the slot given away.
    (table::tag(fd) == Tag::Shared(number)).then_some(connection)
}

/// As [`connection`], for a call that moves bytes: now and then the kernel's socket is looked at.
pub fn using(fd: i32) -> Option<Use> {
    let connection = connection(fd)?;
    connection.check().then_some(connection)
}

impl Use {
    /// Looks at the kernel's socket, if that was not done lately. False: it is another file by now.
    pub fn check(&self) -> bool {
        let slot = self.slot;
        // By TCP the kernel must be asked in any case. By the ring, a wait shows the end, and a proper end is said in
        // memory.
        let end = self.end();
        let often = !end.sends_by_ring() || end.incoming.is_finished() || end.own.has_ended();
        if kernel::is_time(slot, if often { LOOK_OFTEN } else { LOOK_EVERY }) {
            slot.looked.store(kernel::now(), Ordering::Relaxed);
            if kernel::cookie(self.fd) != slot.cookie.load(Ordering::Relaxed) {
                // It was closed by somebody who passed this library by, and the number is another file's now.
                descriptors::forget(self.fd);
                return false;
            }
            self.look();
        }
        true
    }
}

/// How often the kernel's socket is looked at while a connection is used, in nanoseconds.
const LOOK_EVERY: u64 = 1_000_000;
/// How often it is where the other end may have finished, or bytes go by TCP.
const LOOK_OFTEN: u64 = 10_000;
/// How long a thread waits for a lock of senders whose owner does not come on, before it takes the connection off the
/// ring.
const PATIENCE: u64 = 200_000_000;
/// How long a wait may last where several processes wait for one bell, which wakes only one of them for certain.
const SHARED_WAIT: u64 = 20_000_000;
/// How long it may where there is no bell for it.
const DEAF_WAIT: u64 = 1_000_000;
/// How often the kernel is asked whether the other end, which may be a forked child's, is there.
pub const ORPHAN_WAIT: u64 = 100_000_000;
const PEER_GONE: i16 = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;

impl Drop for Use {
    fn drop(&mut self) {
        if self.slot.users.fetch_sub(1, Ordering::SeqCst) == 1 && self.slot.holders.load(Ordering::SeqCst) == 0 {
            descriptors::free(self.slot);
        }
    }
}

impl Use {
    /// What this process shares with its forked children.
    pub fn held(&self) -> &'static Held {
        // SAFETY: set before the tag was, to a page that is unmapped when there is no user left; zeroes and atomics
        // only.
        unsafe { &*self.slot.held.load(Ordering::Relaxed) }
    }

    /// The state machine.
    pub fn end(&self) -> End<'_, PairWay<'_, Memfd>, Tcp> {
        // SAFETY: written before the tag was set, and taken away when there is no user left; we are one.
        let pair = unsafe { &*self.slot.pair.get() }.as_ref().expect("shared connections have memory");
        let first = self.slot.first.load(Ordering::Relaxed) != 0;
        End {
            out: Stream(pair.way(!first)),
            incoming: Stream(pair.way(first)),
            own: &self.held().own,
            kernel: Tcp { fd: self.fd, slot: self.slot },
        }
    }

    /// Looks whether the other end has finished, or is gone.
    fn look(&self) {
        if self.ask(libc::POLLRDHUP) & PEER_GONE != 0 {
            self.held().own.note_end();
        }
        self.look_for_orphan();
    }

    /// What poll(2) says of the socket now. Looks whether the other end's process is gone, too.
    pub fn ask(&self, events: i16) -> i16 {
        let life = self.slot.link().map_or(-1, Link::life);
        if life < 0 {
            return kernel::look(self.fd, events);
        }
        let (revents, is_gone) = kernel::look_at_both(self.fd, events, life);
        if is_gone {
            self.held().own.note_end();
        }
        revents
    }

    /// Where there is no room, and the other end may be a forked child's, which the link does not tell of: whether
    /// that child has ended, too. The kernel is asked now and then only.
    pub fn look_for_orphan(&self) -> bool {
        if !self.may_be_orphaned() {
            return false;
        }
        let (now, asked) = (kernel::now(), &self.slot.asked);
        if now.saturating_sub(asked.load(Ordering::Relaxed)) < ORPHAN_WAIT {
            return false;
        }
        asked.store(now, Ordering::Relaxed);
        let is_orphan = meet::both_addresses(self.fd).is_some_and(|(local, remote)| orphan::is_orphan(local, remote));
        if is_orphan {
            self.held().own.note_end();
        }
        is_orphan
    }

    /// Whether there is no room, and the other end may be a forked child's that has died alone.
    pub fn may_be_orphaned(&self) -> bool {
        let has_forked = self.slot.link().is_some_and(|link| link.mine().has_forked());
        has_forked && self.end().sends_by_ring() && self.end().writable() == Writable::No
    }

    /// Before bytes are sent: whether the descriptor is still this connection, and the other end is there. An
    /// end that has taken bytes out of the ring since the last look was there.
    pub fn check_before_sending(&self) -> bool {
        let end = self.end();
        if end.sends_by_ring_alone() {
            let taken = end.out.taken();
            if self.slot.taken.swap(taken, Ordering::Relaxed) != taken {
                return true;
            }
        }
        self.check()
    }

    /// Sends some bytes without waiting.
    pub fn send(&self, from: &[u8]) -> Result<usize, verbs::Errno> {
        let sent = self.send_some(from);
        self.tell_broken(sent);
        sent
    }

    /// The other end wrote to the shared memory what makes no sense: the log says so, once.
    fn tell_broken(&self, outcome: Result<usize, verbs::Errno>) {
        if outcome == Err(sock::end::ECONNRESET)
            && self.end().is_broken()
            && self.held().told_broken.swap(1, Ordering::Relaxed) == 0
        {
            let what = "the other end wrote counts to the shared memory that make no sense";
            match meet::both_addresses(self.fd) {
                Some((local, remote)) => log::say(log::ERROR, format_args!("{local} with {remote}: {what}")),
                None => log::say(log::ERROR, format_args!("descriptor {}: {what}", self.fd)),
            }
        }
    }

    fn send_some(&self, from: &[u8]) -> Result<usize, verbs::Errno> {
        let end = self.end();
        if end.sends_by_ring_alone() {
            match locked_lightly(&self.held().send, || end.leave_ring(), || end.send_by_ring(from)) {
                Ok(0) if !from.is_empty() => {}
                outcome => {
                    status::add(self.number, Count::Sent, outcome.unwrap_or(0) as u64);
                    return outcome;
                }
            }
        }
        let sent = self.as_sender(|| self.end().send(from, table::nobody_inside(self.fd)));
        if let Ok(some) = sent
            && end.sends_by_ring()
        {
            status::add(self.number, Count::Sent, some as u64);
        }
        self.tell_ways();
        if sent == Err(verbs::Errno::EAGAIN) {
            status::add(self.number, Count::Stalls, 1);
            self.slot.watch.told_writable.store(0, Ordering::Relaxed);
        }
        sent
    }

    /// Receives some bytes without waiting.
    pub fn receive(&self, to: &mut [u8], peek: bool, look: bool) -> Result<usize, verbs::Errno> {
        let got = self.receive_some(to, peek, look);
        self.tell_broken(got);
        got
    }

    fn receive_some(&self, to: &mut [u8], peek: bool, look: bool) -> Result<usize, verbs::Errno> {
        let end = self.end();
        if !end.incoming.is_ready() && table::nobody_inside(self.fd) {
            end.set_ready();
        }
        let was_by_ring = end.receives_by_ring();
        let got = match end.incoming.is_drained() {
            true => end.receive(to, peek, look),
            false => locked(&self.held().receive, || {}, || end.receive(to, peek, look)),
        };
        if end.receives_by_ring() {
            status::add(self.number, Count::Received, if peek { 0 } else { got.unwrap_or(0) as u64 });
        }
        if !was_by_ring {
            self.tell_ways();
        }
        got
    }

    /// Tells by which ways bytes go.
    pub fn tell_ways(&self) {
        let end = self.end();
        let way = |mode| match mode {
            Mode::Before => Way::Before,
            Mode::Ring => Way::Memory,
            Mode::Retracting | Mode::After => Way::After,
        };
        status::ways(self.number, way(end.out.mode()), way(end.incoming.mode()));
    }

    /// Runs something under the lock of this end's senders, with all signals blocked.
    pub fn as_sender<R>(&self, work: impl FnOnce() -> R) -> R {
        locked(&self.held().send, || self.end().leave_ring(), work)
    }

    /// Does what the other end asks for.
    pub fn serve(&self) {
        let end = self.end();
        if end.needs_service() {
            self.as_sender(|| end.serve());
        }
    }

    /// Leaves memory for TCP, in the directions that are said. Waits for the other end up to a second. With `given`
    /// somebody will use the socket who does not know of the ring.
    pub fn demote(&self, sends: bool, receives: bool, given: bool) {
        epoll::evict(self.slot);
        let end = self.end();
        if receives {
            end.receive_by_tcp();
        }
        let until = kernel::now() + 1_000_000_000;
        loop {
            let sent = !sends || self.as_sender(|| end.send_by_tcp());
            let received = if receives { end.is_received_by_tcp() } else { Some(true) };
            // Behind the last byte of a stream that has ended the kernel reports the end, and this library reads the
            // ring before it.
            let stays = received == Some(false) && !given && end.incoming.mode() == Mode::Ring;
            if received == Some(false) && !stays {
                // What is left in the ring cannot be had by TCP: an error is better than a stream with a hole.
                let _ = rustix::net::shutdown(kernel::borrow(self.fd), rustix::net::Shutdown::Both);
                return;
            }
            if sent && (received == Some(true) || stays) || kernel::now() > until {
                self.tell_ways();
                return;
            }
            nap();
        }
    }

    /// Whether a call may wait.
    pub fn blocks(&self) -> bool {
        const BLOCKS: u32 = 1;
        const BLOCKS_NOT: u32 = 2;
        let known = &self.held().blocking;
        match known.load(Ordering::Relaxed) {
            BLOCKS => true,
            BLOCKS_NOT => false,
            _ => {
                let flags = rustix::fs::fcntl_getfl(kernel::borrow(self.fd));
                let blocks = !flags.is_ok_and(|flags| flags.contains(rustix::fs::OFlags::NONBLOCK));
                known.store(if blocks { BLOCKS } else { BLOCKS_NOT }, Ordering::Relaxed);
                blocks
            }
        }
    }

    /// How long a call may wait, in nanoseconds, as SO_RCVTIMEO or SO_SNDTIMEO say.
    pub fn most_wait(&self, for_reading: bool) -> Option<u64> {
        let (known, option) = match for_reading {
            true => (&self.held().receive_timeout, libc::SO_RCVTIMEO),
            false => (&self.held().send_timeout, libc::SO_SNDTIMEO),
        };
        match known.load(Ordering::Relaxed) {
            0 => {
                let most = kernel::timeout(self.fd, option);
                known.store(most.unwrap_or(0).saturating_add(1), Ordering::Relaxed);
                most
            }
            1 => None,
            more => Some(more - 1),
        }
    }

    /// Before a call that only looks at bytes looks for more of them: false if none come, or it must not wait.
    pub fn waits_for_more(&self, until: &mut Option<u64>) -> bool {
        if !self.blocks() {
            return false;
        }
        if until.is_none() {
            *until = self.most_wait(true).map(|most| kernel::now() + most);
        }
        self.look();
        let is_over = until.is_some_and(|until| kernel::now() >= until);
        // Nothing rings for bytes behind others that are there.
        if self.end().is_at_end() || is_over {
            return false;
        }
        nap();
        true
    }

    /// Takes the error that SO_ERROR tells.
    pub fn take_error(&self) -> Option<verbs::Errno> {
        let by_kernel = kernel::option(self.fd, libc::SOL_SOCKET, libc::SO_ERROR).filter(|error| *error != 0);
        by_kernel.map(verbs::Errno).or_else(|| self.held().own.take_error())
    }

    /// The program changes flags or options: they are asked for again.
    pub fn forget_options(&self) {
        let held = self.held();
        held.blocking.store(0, Ordering::Relaxed);
        held.receive_timeout.store(0, Ordering::Relaxed);
        held.send_timeout.store(0, Ordering::Relaxed);
    }

    /// Most nanoseconds that a wait may last without a look; `None`: as long as it likes.
    pub fn longest_wait(&self, has_bell: bool) -> Option<u64> {
        let is_shared = self.held().forked.load(Ordering::Relaxed) != 0;
        match has_bell {
            false => Some(DEAF_WAIT),
            true if is_shared => Some(SHARED_WAIT),
            true => self.may_be_orphaned().then_some(ORPHAN_WAIT),
        }
    }

    /// Something has changed at this end: those who wait for it look again.
    pub fn look_again(&self) {
        epoll::mark(self.slot);
        if let Some(link) = self.slot.link() {
            link.ring_own(self.end().incoming.bells());
        }
    }

    /// The bells by which the other end can wake this one.
    pub fn bells(&self) -> u32 {
        self.slot.link().map_or(0, |link| link.usable(self.slot.bells.load(Ordering::Relaxed)))
    }

    /// Begins to sleep by a bell, and announces it. `None`: there is no bell for calls; to be done once for each link.
    pub fn sleep(&self, preferred: usize) -> Option<Inside> {
        let inside = self.slot.link()?.enter(preferred, self.bells())?;
        self.end().incoming.add_bells(1 << inside.number);
        inside.link().mine().announce(inside.number);
        Some(inside)
    }

    /// Waits until there may be something to read, or room to write. False: the time is over.
    ///
    /// # Errors
    /// EINTR, if the call must end with it.
    pub fn wait(&self, for_reading: bool, until: Option<u64>) -> Result<bool, i32> {
        let end = self.end();
        if for_reading && end.receives_by_ring() {
            // Bytes may have come since the caller has looked.
            if spin::look(|| end.unread() > 0 || end.needs_service()) {
                self.serve();
                return Ok(true);
            }
        }
        // A reader is also woken to serve its own direction.
        let inside = self.sleep(self.number);
        let there = if for_reading {
            end.is_readable() != Ok(false)
        } else {
            end.out.announce_want();
            end.writable() == Writable::Yes
        };
        if there || end.needs_service() && end.out.mode() == Mode::Ring {
            self.serve();
            return Ok(true);
        }
        let by_kernel = if for_reading { end.needs_service() } else { end.writable() == Writable::AsKernel };
        let mut events = if for_reading { libc::POLLIN } else { libc::POLLRDHUP };
        events |= if by_kernel { libc::POLLOUT } else { 0 };
        let bell = inside.as_ref().map_or(-1, Inside::fd);
        let life = self.slot.link().map_or(-1, Link::life);
        let mut fds = [
            libc::pollfd { fd: self.fd, events, revents: 0 },
            libc::pollfd { fd: bell, events: libc::POLLIN, revents: 0 },
            // Its hang-up is told unasked.
            libc::pollfd { fd: if end.own.has_ended() { -1 } else { life }, events: 0, revents: 0 },
        ];
        let now = kernel::now();
        let left = until.map(|until| until.saturating_sub(now));
        let most = match (left, self.longest_wait(inside.is_some())) {
            (Some(left), Some(most)) => Some(left.min(most)),
            (left, most) => left.or(most),
        };
        let time = most.map(timespec);
        let time = time.as_ref().map_or(core::ptr::null(), |time| &raw const *time);
        status::add(self.number, Count::Sleeps, 1);
        // SAFETY: the array and the time live until the call returns; no mask.
        let n = unsafe { point_at!(ppoll, fds.as_mut_ptr(), 3, time, 0) as i32 };
        let error = next::errno();
        let rung = n > 0 && fds[1].revents != 0;
        if let Some(inside) = inside {
            inside.leave(rung);
        }
        if rung {
            spin::slept(kernel::now() - now);
        }
        if n < 0 {
            let restart = error == libc::EINTR && until.is_none() && handlers_restart();
            return if restart { Ok(true) } else { Err(error) };
        }
        if fds[0].revents & PEER_GONE != 0 || fds[2].revents & PEER_GONE != 0 {
            self.held().own.note_end();
        }
        self.look_for_orphan();
        self.serve();
        Ok(n > 0 || until.is_none_or(|until| kernel::now() < until))
    }
}

/// A time as ppoll(2) takes it.
pub fn timespec(nanos: u64) -> libc::timespec {
    libc::timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 }
}

/// Whether a call goes on after a signal's handler has run: signal(7), SA_RESTART. Which signal it was cannot be
/// known; where handlers differ, the call ends.
pub fn handlers_restart() -> bool {
    if cancel::is_caught() {
        return false;
    }
    (1..=64).all(|signal| {
        // SAFETY: only zeroes and a query into a live local; numbers that are none fail.
        let action = unsafe {
            let mut action: libc::sigaction = core::mem::zeroed();
            if libc::sigaction(signal, core::ptr::null(), &raw mut action) != 0 {
                return true;
            }
            action
        };
        let handled = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
        let is_fault = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP].contains(&signal);
        !handled || is_fault || action.sa_flags & libc::SA_RESTART != 0
    })
}

/// A short sleep, for what happens hardly ever.
pub fn nap() {
    let time = rustix::time::Timespec { tv_sec: 0, tv_nsec: 200_000 };
    let _ = rustix::thread::nanosleep(&time);
}

thread_local! {
    /// This thread's number; 0: not asked for yet. It is initialized statically and has no destructor, and a library
    /// that is preloaded has its place in every thread from the start: a signal's handler may look at it.
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

fn thread() -> u32 {
    THREAD.with(|number| {
        if number.get() == 0 {
            number.set(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
        }
        number.get()
    })
}

/// The child of fork(2) has the parent's memory, but is another thread.
pub fn forget_thread() {
    THREAD.with(|number| number.set(0));
}

/// In a lock's word: what its owner does may be overtaken.
const LIGHT: u32 = 1 << 31;

/// Runs something under a lock, with signals as they are, so without a system call. It must be such that it can be
/// left at any instruction: a signal's handler may use the same lock, or leave by longjmp(3). `overtake` makes that
/// what others run under this lock in the same way comes to nothing.
fn locked_lightly<R>(lock: &AtomicU32, overtake: impl Fn(), work: impl FnOnce() -> R) -> R {
    let id = thread() | LIGHT;
    if lock.compare_exchange(0, id, Ordering::Acquire, Ordering::Relaxed).is_err() {
        take(lock, id, overtake);
    }
    let result = work();
    // What has overtaken this has taken the lock, too.
    let _ = lock.compare_exchange(id, 0, Ordering::Release, Ordering::Relaxed);
    result
}

/// Takes a lock. That of a thread that is gone is taken over; as is a light one that this very thread has, in a frame
/// that a signal's handler has interrupted or left; and a light one whose owner does not come on.
#[cold]
fn take(lock: &AtomicU32, id: u32, overtake: impl Fn()) {
    let (mut tries, mut until) = (0u32, u64::MAX);
    while let Err(owner) = lock.compare_exchange(0, id, Ordering::Acquire, Ordering::Relaxed) {
        let owned_by = owner & !LIGHT;
        let is_light = owner & LIGHT != 0;
        if is_light && (owned_by == id & !LIGHT || kernel::now() > until) {
            overtake();
            if lock.compare_exchange(owner, id, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
        }
        tries += 1;
        if tries.is_multiple_of(64) {
            let gone = rustix::process::Pid::from_raw(owned_by.cast_signed())
                .is_some_and(|owner| rustix::process::test_kill_process(owner) == Err(rustix::io::Errno::SRCH));
            if gone && lock.compare_exchange(owner, id, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
            until = until.min(kernel::now() + PATIENCE);
        }
        rustix::thread::sched_yield();
    }
}

/// Runs something under a lock, with all signals blocked.
pub fn locked<R>(lock: &AtomicU32, overtake: impl Fn(), work: impl FnOnce() -> R) -> R {
    // SAFETY: both sets are live locals, and the old one is put back below.
    let old = unsafe {
        let mut all: libc::sigset_t = core::mem::zeroed();
        let mut old: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        old
    };
    take(lock, thread(), overtake);
    let result = work();
    lock.store(0, Ordering::Release);
    // SAFETY: the set that was there before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, core::ptr::null_mut()) };
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_light_lock_is_overtaken_by_its_own_thread_and_by_one_that_has_waited_long() {
        let lock = AtomicU32::new(0);
        let overtaken = Cell::new(0);
        let overtake = || overtaken.set(overtaken.get() + 1);
        // As a signal's handler does that interrupts the lock's owner, with a light lock and with one of the other.
        locked_lightly(&lock, overtake, || locked_lightly(&lock, overtake, || ()));
        assert_eq!((overtaken.get(), lock.load(Ordering::Relaxed)), (1, 0));
        locked_lightly(&lock, overtake, || locked(&lock, overtake, || ()));
        assert_eq!((overtaken.get(), lock.load(Ordering::Relaxed)), (2, 0));
        // As if a handler had left the frame of another thread that is still there.
        lock.store(1 | LIGHT, Ordering::Relaxed);
        assert_eq!(locked_lightly(&lock, overtake, || 7), 7);
        assert_eq!((overtaken.get(), lock.load(Ordering::Relaxed)), (3, 0));
        // No thread has this number: what it may have begun is not looked for.
        lock.store(0x3FFF_FFFF, Ordering::Relaxed);
        assert_eq!(locked(&lock, || unreachable!(), || 8), 8);
    }
}
