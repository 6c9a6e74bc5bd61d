//! poll(2) and select(2) over connections of which some have shared memory.

use std::ffi::c_void;

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLRDHUP, pollfd, sigset_t, timespec};
use sock::end::Writable;

use crate::cancel::{self, point_at, points_if};
use crate::epoll;
use crate::heap;
use crate::kernel;
use crate::link::{Inside, Link};
use crate::next::{self, fail};
use crate::sdp;
use crate::spin;
use crate::table::{self, Tag};
use crate::work::{self, Use};

const IN: i16 = POLLIN | libc::POLLRDNORM;
const OUT: i16 = POLLOUT | libc::POLLWRNORM;

/// What can be done with a connection, beside what its socket says.
pub fn by_ring(connection: &Use, events: i16) -> i16 {
    connection.serve();
    let end = connection.end();
    let mut found = 0;
    if events & IN != 0 && end.is_readable() != Ok(false) {
        found |= events & IN;
    }
    if events & OUT != 0 && end.writable() == Writable::Yes {
        found |= events & OUT;
    }
    if end.is_broken() || end.own.has_error() { found | POLLERR } else { found }
}

/// Whether the kernel's socket has nothing to say but its end.
pub fn is_ring_only(connection: &Use, events: i16) -> bool {
    let end = connection.end();
    let by_kernel = events & OUT != 0 && end.writable() == Writable::AsKernel;
    let may_end = end.is_at_end() || end.incoming.is_finished();
    end.receives_by_ring() && !end.needs_service() && !by_kernel && !may_end
}

/// What the kernel is asked of the socket of such a connection.
pub fn by_kernel(connection: &Use, events: i16) -> i16 {
    let end = connection.end();
    // The end is always asked for: where bytes come by the ring alone it is what the socket still has to say.
    let asks = events & !OUT | POLLRDHUP | if end.writable() == Writable::AsKernel { events & OUT } else { 0 };
    if end.needs_service() { asks | POLLOUT } else { asks }
}

/// Says that somebody waits for room, if there is none.
pub fn want(connection: &Use, events: i16) {
    let end = connection.end();
    if events & OUT != 0 && end.writable() == Writable::No {
        end.out.announce_want();
    }
}

/// Begins to sleep for all connections: by one bell for each of their links, and whether there is one for all.
fn sleep(connections: &[(usize, Use)], events: &[i16], mut bells: Vec<Inside>) -> (Vec<Inside>, bool) {
    let mut all = true;
    for (n, connection) in connections {
        let link = connection.slot.link();
        let is_theirs = |bell: &&Inside| {
            link.is_some_and(|link| core::ptr::eq(bell.link(), link)) && connection.bells() >> bell.number & 1 != 0
        };
        let there = bells.iter().find(is_theirs);
        match (there, link) {
            (Some(bell), Some(_)) => connection.end().incoming.add_bells(1 << bell.number),
            _ => match connection.sleep(0) {
                Some(bell) => bells.push(bell),
                None => all = false,
            },
        }
        want(connection, events[*n]);
    }
    // A connection's mask may be newer than the announcement of a bell that it has in common with others.
    bells.iter().for_each(|bell| bell.link().mine().announce(bell.number));
    (bells, all)
}

/// Adds the sockets that hang up when the other ends' processes are gone, once each.
fn add_lives(connections: &[(usize, Use)], asked: &mut Vec<pollfd>) {
    let first = asked.len();
    for link in connections.iter().filter(|(_, one)| !one.held().own.has_ended()).filter_map(|(_, one)| one.slot.link())
    {
        if link.life() >= 0 && asked[first..].iter().all(|life| life.fd != link.life()) {
            asked.push(pollfd { fd: link.life(), events: 0, revents: 0 });
        }
    }
}

/// What the kernel has said of a socket, as far as the program has asked, or gets it unasked.
pub fn told(connection: &Use, events: i16, revents: i16) -> i16 {
    if revents & (POLLRDHUP | POLLHUP | POLLERR) != 0 {
        connection.held().own.note_end();
    }
    let out = if connection.end().writable() == Writable::AsKernel { events & OUT } else { 0 };
    revents & (events & !OUT | out | POLLHUP | POLLERR | POLLNVAL)
}

/// The connections of a poll, what the kernel is asked, and what the program has asked.
type Lists = (Vec<(usize, Use)>, Vec<pollfd>, Vec<i16>);

/// The lists, with all the room that a poll needs. `None`: there is no memory for them.
fn lists(fds: &[pollfd]) -> Option<Lists> {
    let connections =
        heap::collect(|| fds.iter().enumerate().filter_map(|(n, fd)| Some((n, work::connection(fd.fd)?))))?;
    let mut asked = heap::list(fds.len() + 2 * connections.len())?;
    asked.extend_from_slice(fds);
    let mut events = heap::list(fds.len())?;
    events.extend(fds.iter().map(|fd| fd.events));
    Some((connections, asked, events))
}

/// Polls. `until`: when the time is over; `None`: never.
unsafe fn wait(fds: &mut [pollfd], until: Option<u64>, mask: *const sigset_t) -> i32 {
    let Some((connections, mut asked, events)) = lists(fds) else { return fail(libc::ENOMEM) as i32 };
    let is_ready = || connections.iter().any(|(n, connection)| by_ring(connection, events[*n]) != 0);
    let mut bells: Option<(Vec<Inside>, bool)> = None;
    loop {
        let ready = is_ready();
        let now = kernel::now();
        let left = until.map(|until| until.saturating_sub(now));
        let has_time = left != Some(0) && !ready;
        if has_time && bells.is_none() {
            if connections.iter().all(|(n, connection)| is_ring_only(connection, events[*n])) && spin::look(is_ready) {
                continue;
            }
            // The first time round, sleep is only announced.
            let Some(room) = heap::list(connections.len()) else { return fail(libc::ENOMEM) as i32 };
            bells = Some(sleep(&connections, &events, room));
            continue;
        }
        let sleeps = bells.as_ref().filter(|_| has_time);
        let most =
            connections.iter().find_map(|(_, connection)| connection.longest_wait(sleeps.is_none_or(|(_, all)| *all)));
        let time = match (left, most) {
            _ if !has_time => Some(0),
            (Some(left), Some(most)) => Some(left.min(most)),
            (left, most) => left.or(most),
        };
        for (n, connection) in &connections {
            asked[*n].events = by_kernel(connection, events[*n]);
        }
        asked.truncate(fds.len());
        asked.extend(bells.iter().flat_map(|(bells, _)| bells).map(|bell| pollfd {
            fd: bell.fd(),
            events: POLLIN,
            revents: 0,
        }));
        let bells_there = asked.len();
        add_lives(&connections, &mut asked);
        let time = time.map(work::timespec);
        let time = time.as_ref().map_or(core::ptr::null(), |time| &raw const *time);
        // Where there is something to report, a signal that the mask lets through waits (do_poll of Linux).
        let mask = if ready { core::ptr::null() } else { mask };
        // SAFETY: an array of so many elements, a time that lives until the call returns, and the caller's mask.
        let mut result = unsafe { point_at!(ppoll, asked.as_mut_ptr(), asked.len() as u64, time, mask) as i32 };
        let error = next::errno();
        if ready && result < 0 && error == libc::EINTR && !cancel::is_caught() {
            asked.iter_mut().for_each(|fd| fd.revents = 0);
            result = 0;
        }
        let (program, rung) = asked.split_at(fds.len());
        let (rung, lives) = rung.split_at(bells_there - fds.len());
        for (bell, rung) in bells.take().into_iter().flat_map(|(bells, _)| bells).zip(rung) {
            let rung = result > 0 && rung.revents != 0;
            bell.leave(rung);
            if rung {
                spin::slept(kernel::now() - now);
            }
        }
        if result < 0 {
            next::set_errno(error);
            return result;
        }
        for (fd, asked) in fds.iter_mut().zip(program) {
            fd.revents = asked.revents;
        }
        for (n, connection) in &connections {
            let life = connection.slot.link().map_or(-1, Link::life);
            if lives.iter().any(|told| told.fd == life && told.revents & POLLHUP != 0) {
                connection.held().own.note_end();
            }
            connection.look_for_orphan();
            let fd = &mut fds[*n];
            fd.revents = told(connection, fd.events, fd.revents) | by_ring(connection, fd.events);
        }
        let count = fds.iter().filter(|fd| fd.revents != 0).count() as i32;
        if count > 0 || until.is_some_and(|until| kernel::now() >= until) {
            return count;
        }
    }
}

/// Whether one of them has shared memory. A set of epoll that is polled leaves its connections to TCP.
fn any_shared(fds: &[pollfd]) -> bool {
    let mut shared = false;
    for fd in fds.iter().filter(|fd| fd.fd >= 0) {
        match table::tag(fd.fd) {
            Tag::Shared(_) => shared = true,
            Tag::Set => epoll::nest(fd.fd),
            // A connection whose bytes are only waited for comes to its memory by the calls that move them.
            _ => {}
        }
    }
    shared
}

/// Before a poll: sockets that listen are known, and what they tell may be of a connection that is refused.
fn listeners(fds: &[pollfd]) {
    let is_one = |fd: &&pollfd| matches!(table::tag(fd.fd), Tag::Listener(_) | Tag::Inherited | Tag::Asked);
    fds.iter().filter(|fd| fd.events & IN != 0).filter(is_one).for_each(|fd| sdp::waits(fd.fd, true));
}

/// Marks that this thread is inside the kernel with those that have no shared memory yet.
fn enter(fds: &[pollfd], enter: bool) {
    for fd in fds.iter().filter(|fd| fd.fd >= 0) {
        if matches!(table::tag(fd.fd), Tag::Fresh(_) | Tag::Waiting(_)) || !enter {
            table::enter(fd.fd, enter);
        }
    }
}

/// Those that have no shared memory yet. `None`: there is no memory for the list.
fn without_memory(fds: &[pollfd]) -> Option<Vec<pollfd>> {
    let is_one = |fd: &&pollfd| fd.fd >= 0 && matches!(table::tag(fd.fd), Tag::Fresh(_) | Tag::Waiting(_));
    heap::collect(|| fds.iter().filter(is_one).copied())
}

/// A poll by the kernel, unless one of the descriptors has shared memory.
unsafe fn either(
    fds: *mut pollfd,
    count: u64,
    until: impl FnOnce() -> Option<u64>,
    mask: *const sigset_t,
    plain: impl Fn() -> i32,
) -> i32 {
    if fds.is_null() || count == 0 || count > table::LIMIT as u64 {
        return plain();
    }
    // SAFETY: the caller's promise of poll(2): so many elements, which the call may write.
    let fds = unsafe { core::slice::from_raw_parts_mut(fds, count as usize) };
    if fds.iter().all(|fd| table::tag(fd.fd) == Tag::Unknown) {
        return plain();
    }
    listeners(fds);
    if !any_shared(fds) {
        let Some(unknown) = without_memory(fds) else { return fail(libc::ENOMEM) as i32 };
        enter(&unknown, true);
        let result = if any_shared(fds) { None } else { Some(plain()) };
        enter(&unknown, false);
        if let Some(result) = result {
            return result;
        }
    }
    // SAFETY: the caller's mask.
    unsafe { wait(fds, until(), mask) }
}

fn until_millis(time: i32) -> Option<u64> {
    u64::try_from(time).ok().map(|millis| kernel::now() + millis * 1_000_000)
}

/// When a time is over, in the clock's nanoseconds.
pub fn until_timespec(time: *const timespec) -> Option<u64> {
    // SAFETY: a time of the caller, or null.
    let time = unsafe { time.as_ref() }?;
    let nanos = time.tv_sec.max(0).cast_unsigned().saturating_mul(1_000_000_000);
    Some(kernel::now().saturating_add(nanos.saturating_add(time.tv_nsec.max(0).cast_unsigned())))
}

unsafe extern "C" fn poll_known(fds: *mut pollfd, count: u64, time: i32) -> i32 {
    // SAFETY: the caller's arguments.
    let plain = || unsafe { point_at!(poll, fds, count, time) as i32 };
    // SAFETY: as before.
    unsafe { either(fds, count, || until_millis(time), core::ptr::null(), plain) }
}

unsafe extern "C" fn ppoll_known(fds: *mut pollfd, count: u64, time: *const timespec, mask: *const sigset_t) -> i32 {
    // SAFETY: the caller's arguments.
    let plain = || unsafe { point_at!(ppoll, fds, count, time, mask) as i32 };
    // SAFETY: as before.
    unsafe { either(fds, count, || until_timespec(time), mask, plain) }
}

unsafe extern "C" fn poll_chk_known(fds: *mut pollfd, count: u64, time: i32, size: usize) -> i32 {
    if size / size_of::<pollfd>() < count as usize {
        std::process::abort();
    }
    // SAFETY: the caller's arguments.
    unsafe { poll_known(fds, count, time) }
}

unsafe extern "C" fn ppoll_chk_known(
    fds: *mut pollfd,
    count: u64,
    time: *const timespec,
    mask: *const sigset_t,
    size: usize,
) -> i32 {
    if size / size_of::<pollfd>() < count as usize {
        std::process::abort();
    }
    // SAFETY: the caller's arguments.
    unsafe { ppoll_known(fds, count, time, mask) }
}

/// A set of select(2): one bit for each descriptor, in words.
#[derive(Clone, Copy)]
struct Set(*mut u64);

impl Set {
    fn has(self, fd: usize) -> bool {
        // SAFETY: the caller's promise of select(2): a set of as many bits as it says.
        !self.0.is_null() && unsafe { *self.0.add(fd / 64) } >> (fd % 64) & 1 != 0
    }

    fn put(self, fd: usize, there: bool) {
        if !self.0.is_null() {
            // SAFETY: as in `has`.
            let word = unsafe { &mut *self.0.add(fd / 64) };
            *word = *word & !(1 << (fd % 64)) | u64::from(there) << (fd % 64);
        }
    }
}

/// What the sets ask for. The bits are those of `POLLIN_SET` and its like in Linux's `fs/select.c`.
fn polls(count: i32, [read, write, except]: [Set; 3]) -> Option<Vec<pollfd>> {
    let wants = |fd: usize| {
        let part = |set: Set, events: i16| if set.has(fd) { events } else { 0 };
        part(read, IN) | part(write, OUT) | part(except, libc::POLLPRI)
    };
    let all = || (0..count.max(0).cast_unsigned() as usize).filter(|fd| wants(*fd) != 0);
    heap::collect(|| all().map(|fd| pollfd { fd: fd as i32, events: wants(fd), revents: 0 }))
}

/// Writes the answer into the sets.
fn answer(fds: &[pollfd], [read, write, except]: [Set; 3]) -> isize {
    if fds.iter().any(|fd| fd.revents & POLLNVAL != 0) {
        return fail(libc::EBADF);
    }
    let mut count = 0;
    for fd in fds {
        let number = fd.fd as usize;
        for (set, asked, bits) in [
            (read, IN, IN | libc::POLLRDBAND | POLLHUP | POLLERR),
            (write, OUT, OUT | libc::POLLWRBAND | POLLERR),
            (except, libc::POLLPRI, libc::POLLPRI),
        ] {
            let there = fd.events & asked != 0 && fd.revents & bits != 0;
            set.put(number, there);
            count += isize::from(there);
        }
    }
    count
}

/// A select over connections of which one has shared memory; else `plain`.
unsafe fn selected(
    count: i32,
    sets: [*mut c_void; 3],
    until: impl FnOnce() -> Option<u64>,
    mask: *const sigset_t,
    plain: impl Fn() -> i32,
) -> Option<i32> {
    let sets = sets.map(|set| Set(set.cast()));
    if count <= 0 || count as usize > table::LIMIT {
        return Some(plain());
    }
    let Some(mut fds) = polls(count, sets) else { return Some(fail(libc::ENOMEM) as i32) };
    if fds.iter().all(|fd| table::tag(fd.fd) == Tag::Unknown) {
        return Some(plain());
    }
    listeners(&fds);
    if !any_shared(&fds) {
        let Some(fresh) = without_memory(&fds) else { return Some(fail(libc::ENOMEM) as i32) };
        enter(&fresh, true);
        let result = if any_shared(&fds) { None } else { Some(plain()) };
        enter(&fresh, false);
        if result.is_some() {
            return result;
        }
    }
    let until = until();
    // SAFETY: the caller's mask.
    let result = unsafe { wait(&mut fds, until, mask) };
    (result < 0).then_some(result).or_else(|| Some(answer(&fds, sets) as i32))
}

unsafe extern "C" fn select_known(
    count: i32,
    read: *mut c_void,
    write: *mut c_void,
    except: *mut c_void,
    time: *mut libc::timeval,
) -> i32 {
    // SAFETY: the caller's arguments.
    let plain = || unsafe { point_at!(select, count, read, write, except, time) as i32 };
    // SAFETY: the caller's time, or null.
    let asked = unsafe { time.as_ref() }.map(|time| {
        let (seconds, micros) = (time.tv_sec.max(0).cast_unsigned(), time.tv_usec.max(0).cast_unsigned());
        seconds.saturating_mul(1_000_000_000).saturating_add(micros.saturating_mul(1000))
    });
    let began = kernel::now();
    let until = asked.map(|asked| began.saturating_add(asked));
    let mut by_kernel = false;
    let flag = std::cell::Cell::new(false);
    let plain = || {
        flag.set(true);
        plain()
    };
    // SAFETY: as before.
    let result = unsafe { selected(count, [read, write, except], || until, core::ptr::null(), plain) };
    by_kernel |= flag.get();
    if !by_kernel && let Some(until) = until {
        // Linux's select writes back what is left of the time.
        let left = until.saturating_sub(kernel::now());
        // SAFETY: the caller's time, which it lets us write; `until` says that it is there.
        unsafe {
            (*time).tv_sec = (left / 1_000_000_000) as i64;
            (*time).tv_usec = (left % 1_000_000_000 / 1000) as i64;
        }
    }
    result.unwrap_or(-1)
}

unsafe extern "C" fn pselect_known(
    count: i32,
    read: *mut c_void,
    write: *mut c_void,
    except: *mut c_void,
    time: *const timespec,
    mask: *const sigset_t,
) -> i32 {
    // SAFETY: the caller's arguments.
    let plain = || unsafe { point_at!(pselect, count, read, write, except, time, mask) as i32 };
    let until = until_timespec(time);
    // SAFETY: as before.
    unsafe { selected(count, [read, write, except], || until, mask, plain) }.unwrap_or(-1)
}

/// Whether a poll has a descriptor in it that the table knows.
unsafe extern "C" fn poll_needs_us(fds: *const pollfd, count: u64) -> i32 {
    if fds.is_null() || count == 0 || count > table::LIMIT as u64 {
        return 0;
    }
    // SAFETY: the caller's promise of poll(2): so many elements.
    let fds = unsafe { core::slice::from_raw_parts(fds, count as usize) };
    i32::from(fds.iter().any(|fd| table::tag(fd.fd) != Tag::Unknown))
}

/// Whether a select has a descriptor in it that the table knows.
unsafe extern "C" fn select_needs_us(count: i32, read: *mut u64, write: *mut u64, except: *mut u64) -> i32 {
    let sets = [Set(read), Set(write), Set(except)];
    let known = |fd: usize| table::tag(fd as i32) != Tag::Unknown && sets.iter().any(|set| set.has(fd));
    let count = usize::try_from(count).unwrap_or(0);
    i32::from(count <= table::LIMIT && (0..count).any(known))
}

points_if! {
    poll poll poll_needs_us, poll_known;
    __poll poll poll_needs_us, poll_known;
    ppoll ppoll poll_needs_us, ppoll_known;
    __poll_chk poll_chk poll_needs_us, poll_chk_known;
    __ppoll_chk ppoll_chk poll_needs_us, ppoll_chk_known;
    select select select_needs_us, select_known;
    __select select select_needs_us, select_known;
    pselect pselect select_needs_us, pselect_known;
}
