//! epoll(7) over connections of which some have shared memory.
//!
//! In the kernel's set such a connection has its socket, edge-triggered, and each link to another process has a bell.
//! Both carry a mark instead of the program's data. What the program gets is worked out here, by the kernel's rules:
//! level-triggered entries are reported while they are ready, edge-triggered ones once for everything new, ONESHOT
//! disarms. Which connections may have something to report is known by [`crate::sets`].

use std::sync::atomic::{AtomicU32, Ordering};

use libc::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, epoll_event, sigset_t};

use crate::gone;
use crate::kernel;
use crate::link::{self, Link};
use crate::next::{self, entries};
use crate::poll;
use crate::process;
use crate::sets::{self, Set};
use crate::spin;
use crate::table::{self, LIMIT, Slot, Tag};
use crate::work::{self, Use, connection};

/// In the upper half of the data of our own entries; the slot's number and which of the two it is in the lower one. A
/// program that uses such data by chance keeps its set away from shared memory.
const MARK: u64 = 0x5052_4E43_0000_0000 ^ 0x8765_0000_0000;
const MARK_MASK: u64 = 0xFFFF_FFFF_0000_0000;
const BELL: u64 = 1 << 16;
const LIFE: u64 = 1 << 17;

/// The set and the events with which a connection without shared memory was registered.
struct Registration {
    set: AtomicU32,
    events: AtomicU32,
    low: AtomicU32,
    high: AtomicU32,
}

static REGISTERED: [Registration; LIMIT] = [const {
    Registration { set: AtomicU32::new(0), events: AtomicU32::new(0), low: AtomicU32::new(0), high: AtomicU32::new(0) }
}; LIMIT];

fn registration(fd: i32) -> Option<&'static Registration> {
    usize::try_from(fd).ok().and_then(|fd| REGISTERED.get(fd))
}

/// A new connection has this number, and is in no set.
pub fn reset(fd: i32) {
    if let Some(registered) = registration(fd) {
        registered.set.store(0, Ordering::SeqCst);
    }
}

/// Whether a connection without shared memory has an entry in a set.
pub fn is_registered(fd: i32) -> bool {
    registration(fd).is_some_and(|registered| registered.set.load(Ordering::SeqCst) != 0)
}

fn control(set: i32, operation: i32, fd: i32, events: u32, data: u64) -> i32 {
    let mut event = epoll_event { events, u64: data };
    // SAFETY: an event that lives until the call returns.
    unsafe { next::epoll_ctl()(set, operation, fd, &raw mut event) }
}

/// What the kernel is asked of a connection's socket.
const WATCHED: u32 = (EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLET) as u32;

fn watch_socket(set: i32, operation: i32, fd: i32, number: usize) -> i32 {
    control(set, operation, fd, WATCHED | EPOLLOUT as u32, MARK | number as u64)
}

fn start(slot: &Slot, entry: &Set, fd: i32, (events, data): (u32, u64), is_disarmed: bool) {
    let watch = &slot.watch;
    watch.fd.store(fd, Ordering::Relaxed);
    watch.events.store(events, Ordering::Relaxed);
    watch.data.store(data, Ordering::Relaxed);
    watch.news.store(1, Ordering::Relaxed);
    watch.told_writable.store(0, Ordering::Relaxed);
    watch.disarmed.store(u32::from(is_disarmed), Ordering::Relaxed);
    watch.entry.store(entry.number() as u32, Ordering::Relaxed);
    watch.set.store(entry.fd() + 1, Ordering::SeqCst);
    entry.mark(slot.index());
}

/// Puts the bell of a connection's link into a set, where it may be already. False: there is none, or no room for it.
fn add_bell(entry: &Set, connection: &Use) -> bool {
    let Some(link) = connection.slot.link() else { return false };
    let Some((bell, fd)) = link.bell_for_set(entry.number(), connection.bells()) else { return false };
    let mark = MARK | BELL | link.number() as u64;
    let added = control(entry.fd(), libc::EPOLL_CTL_ADD, fd, (EPOLLIN | EPOLLET) as u32, mark);
    if added != 0 && next::errno() != libc::EEXIST {
        return false;
    }
    // Nothing is asked of it: its hang-up is told in any case.
    if link.life() >= 0 {
        control(entry.fd(), libc::EPOLL_CTL_ADD, link.life(), EPOLLET as u32, mark | LIFE);
    }
    entry.add_link(link);
    connection.end().incoming.add_bells(1 << bell);
    true
}

/// A link is given back: a descriptor of it leaves the set.
pub fn remove(entry: &Set, fd: i32) {
    let error = next::errno();
    if entry.fd() >= 0 {
        control(entry.fd(), libc::EPOLL_CTL_DEL, fd, 0, 0);
    }
    next::set_errno(error);
}

/// A connection has news: whoever waits in its set looks at it.
pub fn mark(slot: &Slot) {
    if slot.watch.set.load(Ordering::SeqCst) > 0 {
        sets::set(slot.watch.entry.load(Ordering::Relaxed) as usize).mark(slot.index());
    }
}

/// A connection has got shared memory: its entry in a set changes.
pub fn attach(fd: i32, number: usize) {
    let slot = table::slot(number);
    slot.watch.set.store(0, Ordering::Relaxed);
    let Some(registered) = registration(fd) else { return };
    let set = registered.set.swap(0, Ordering::SeqCst) as i32 - 1;
    if set < 0 || table::tag(set) != Tag::Set {
        return;
    }
    let data =
        u64::from(registered.low.load(Ordering::Relaxed)) | u64::from(registered.high.load(Ordering::Relaxed)) << 32;
    let events = registered.events.load(Ordering::Relaxed);
    // One that has reported, and was not armed since.
    let is_disarmed = events & EPOLLONESHOT as u32 != 0
        && kernel::events_in_set(set, fd).is_some_and(|left| left & !(EPOLLONESHOT | EPOLLET) as u32 == 0);
    let done = sets::claim(set).zip(connection(fd)).is_some_and(|(entry, connection)| {
        start(slot, entry, fd, (events, data), is_disarmed);
        add_bell(entry, &connection) && watch_socket(set, libc::EPOLL_CTL_MOD, fd, number) == 0
    });
    if !done {
        // It was taken out behind our back; or there is no room for the bell, and the entry stays as it was.
        slot.watch.set.store(0, Ordering::SeqCst);
        let left = if is_disarmed { events & EPOLLONESHOT as u32 } else { events };
        control(set, libc::EPOLL_CTL_MOD, fd, left, data);
        process::leave_to_tcp(fd);
    }
}

/// A connection's descriptor is closed: the kernel takes it out of the set.
pub fn detach(slot: &Slot, fd: i32) {
    if slot.watch.fd.load(Ordering::Relaxed) == fd {
        slot.watch.set.store(0, Ordering::SeqCst);
    }
}

/// A set is closed.
pub fn forget_set(set: i32) {
    watched_by(set).for_each(|slot| slot.watch.set.store(0, Ordering::SeqCst));
    if let Some(entry) = sets::find(set) {
        entry.give_back();
    }
}

fn watched_by(set: i32) -> impl Iterator<Item = &'static Slot> {
    table::used().map(table::slot).filter(move |slot| slot.watch.set.load(Ordering::Acquire) == set + 1)
}

/// A set is looked at by another one, or by poll(2), which cannot see what is in rings: its connections go back to
/// TCP.
pub fn nest(set: i32) {
    if !table::change_tag(set, Tag::Set, Tag::Nested) {
        return;
    }
    for slot in watched_by(set) {
        let (fd, watch) = (slot.watch.fd.load(Ordering::Relaxed), &slot.watch);
        process::leave_to_tcp(fd);
        watch.set.store(0, Ordering::SeqCst);
        control(set, libc::EPOLL_CTL_MOD, fd, watch.events.load(Ordering::Relaxed), watch.data.load(Ordering::Relaxed));
    }
    if let Some(entry) = sets::find(set) {
        for link in entry.links() {
            if let Some((_, bell)) = link.bell_for_set(entry.number(), link.bells()) {
                control(set, libc::EPOLL_CTL_DEL, bell, 0, 0);
            }
            control(set, libc::EPOLL_CTL_DEL, link.life(), 0, 0);
        }
        entry.give_back();
    }
}

/// A descriptor of this library stands where the program wants another one: it gets a new number.
pub fn move_own(fd: i32) {
    let copy = || {
        let new = rustix::io::fcntl_dupfd_cloexec(kernel::borrow(fd), fd + 1).ok()?;
        let new = std::os::fd::IntoRawFd::into_raw_fd(new);
        table::set_tag(new, Tag::Ours);
        table::set_tag(fd, Tag::Unknown);
        Some(new)
    };
    if link::all().any(|link| link.replace(fd, copy)) {
        return;
    }
    if crate::status::replace(fd, copy) {
        return;
    }
    let listeners = table::used().map(|number| &table::slot(number).listener);
    if let Some(place) = listeners.into_iter().find(|place| place.load(Ordering::Relaxed) == fd)
        && let Some(new) = copy()
    {
        place.store(new, Ordering::SeqCst);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(set: i32, operation: i32, fd: i32, event: *mut epoll_event) -> i32 {
    // SAFETY: the caller's event, or null.
    let asked = unsafe { event.as_ref() }.map(|event| (event.events, event.u64));
    // SAFETY: the caller's arguments.
    let plain = || unsafe { next::epoll_ctl()(set, operation, fd, event) };
    if !process::is_own() {
        return plain();
    }
    if asked.is_some_and(|(_, data)| data & MARK_MASK == MARK) {
        nest_for_good(set);
    }
    match table::tag(fd) {
        Tag::Set => nest(fd),
        Tag::Fresh(_) | Tag::Waiting(_) => {
            let result = plain();
            if result == 0 {
                register(set, operation, fd, asked);
            }
            return result;
        }
        Tag::Shared(_) => {
            if let Some(connection) = connection(fd) {
                return control_shared(&connection, set, operation, asked, plain);
            }
        }
        _ => {}
    }
    plain()
}

fn nest_for_good(set: i32) {
    if table::tag(set) == Tag::Unknown {
        table::set_tag(set, Tag::Nested);
    }
    nest(set);
}

/// Remembers how a connection without shared memory was registered.
fn register(set: i32, operation: i32, fd: i32, asked: Option<(u32, u64)>) {
    let Some(registered) = registration(fd) else { return };
    let before = registered.set.load(Ordering::SeqCst) as i32 - 1;
    match (operation, asked) {
        (libc::EPOLL_CTL_DEL, _) if before == set => registered.set.store(0, Ordering::SeqCst),
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some((events, data))) => {
            const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
            let elsewhere =
                operation == libc::EPOLL_CTL_ADD && before >= 0 && before != set && table::tag(before) == Tag::Set;
            if elsewhere || table::tag(set) == Tag::Nested || events & EXCLUSIVE != 0 {
                // Two sets, or one in another, or threads of which only one is to be woken.
                crate::descriptors::untrack(fd, sock::status::State::Epoll);
                return;
            }
            if table::tag(set) == Tag::Unknown {
                table::set_tag(set, Tag::Set);
            }
            registered.events.store(events, Ordering::Relaxed);
            registered.low.store(data as u32, Ordering::Relaxed);
            registered.high.store((data >> 32) as u32, Ordering::Relaxed);
            registered.set.store((set + 1).cast_unsigned(), Ordering::SeqCst);
        }
        _ => {}
    }
}

/// A change of the entry of a connection with shared memory.
fn control_shared(
    connection: &Use,
    set: i32,
    operation: i32,
    asked: Option<(u32, u64)>,
    plain: impl Fn() -> i32,
) -> i32 {
    let (slot, fd) = (connection.slot, connection.fd);
    let watch = &slot.watch;
    let is_here = watch.set.load(Ordering::SeqCst) == set + 1 && watch.fd.load(Ordering::Relaxed) == fd;
    match (operation, asked) {
        (libc::EPOLL_CTL_ADD, Some((events, data))) if !is_here => {
            let free = watch.set.load(Ordering::SeqCst) == 0 && table::tag(set) != Tag::Nested;
            if !free || events & libc::EPOLLEXCLUSIVE as u32 != 0 {
                connection.demote(true, true, true);
                return plain();
            }
            let result = watch_socket(set, operation, fd, connection.number);
            if result != 0 {
                return result;
            }
            if table::tag(set) == Tag::Unknown {
                table::set_tag(set, Tag::Set);
            }
            let Some(entry) = sets::claim(set).filter(|entry| add_bell(entry, connection)) else {
                connection.demote(true, true, true);
                control(set, libc::EPOLL_CTL_DEL, fd, 0, 0);
                return plain();
            };
            start(slot, entry, fd, (events, data), false);
            connection.look_again();
            0
        }
        (libc::EPOLL_CTL_MOD, Some((events, data))) if is_here => {
            let result = watch_socket(set, operation, fd, connection.number);
            if result == 0
                && let Some(entry) = sets::find(set)
            {
                start(slot, entry, fd, (events, data), false);
                if entry.waiters.load(Ordering::SeqCst) > 0 {
                    connection.look_again();
                }
            }
            result
        }
        (libc::EPOLL_CTL_DEL, _) if is_here => {
            watch.set.store(0, Ordering::SeqCst);
            plain()
        }
        _ => plain(),
    }
}

/// What the program is to be told of a connection.
fn report(connection: &Use) -> Option<epoll_event> {
    let watch = &connection.slot.watch;
    if watch.disarmed.load(Ordering::Relaxed) != 0 {
        connection.serve();
        return None;
    }
    let events = watch.events.load(Ordering::Relaxed);
    let asked = events as i16;
    let news = watch.news.swap(0, Ordering::Relaxed) != 0;
    poll::want(connection, asked);
    let by_ring = poll::by_ring(connection, asked);
    // Events of epoll and of poll have the same numbers.
    // The kernel tells of a change once; what it said lasts only where bytes go by TCP.
    let by_kernel = match news || !poll::is_ring_only(connection, asked) {
        true => poll::told(connection, asked, connection.ask(poll::by_kernel(connection, asked))),
        false => 0,
    };
    let mut found = (by_ring | by_kernel) as u32;
    if events & EPOLLET as u32 != 0 {
        let came = connection.end().incoming.written();
        let seen = watch.seen.swap(came, Ordering::Relaxed);
        let writable = found & EPOLLOUT as u32 != 0;
        let told = watch.told_writable.swap(u32::from(writable), Ordering::Relaxed) != 0;
        if !(news || came != seen || writable && !told) {
            found = 0;
        }
    }
    if found == 0 {
        return None;
    }
    if events & EPOLLONESHOT as u32 != 0 {
        watch.disarmed.store(1, Ordering::Relaxed);
    }
    Some(epoll_event { events: found, u64: watch.data.load(Ordering::Relaxed) })
}

/// Looks at a connection whose bit is set. The bit stays while a level-triggered connection has something to report.
fn look(entry: &Set, number: usize) -> Option<epoll_event> {
    let slot = table::slot(number);
    let here = || slot.watch.set.load(Ordering::SeqCst) == entry.fd() + 1;
    let there = here().then(|| connection(slot.watch.fd.load(Ordering::Relaxed))).flatten();
    let Some(connection) = there.filter(|connection| connection.number == number && here()) else {
        entry.unmark(number);
        return None;
    };
    if slot.watch.events.load(Ordering::Relaxed) & (EPOLLET | EPOLLONESHOT) as u32 != 0 {
        // Only one thread is told.
        return if entry.unmark(number) { report(&connection) } else { None };
    }
    if let Some(event) = report(&connection) {
        return Some(event);
    }
    entry.unmark(number);
    // Something may have come just before.
    let event = report(&connection);
    if event.is_some() {
        entry.mark(number);
    }
    event
}

/// Writes what the connections have to report; how much it was.
fn reap(entry: &Set, events: &mut [epoll_event]) -> usize {
    if entry.scans.load(Ordering::Relaxed) != 0 {
        watched_by(entry.fd()).for_each(|slot| entry.mark(slot.index()));
    }
    entry.take_news();
    let mut found = 0;
    if !events.is_empty() {
        entry.for_each_marked(|number| {
            if let (Some(event), Some(place)) = (look(entry, number), events.get_mut(found)) {
                *place = event;
                found += 1;
            }
            found < events.len()
        });
    }
    found
}

/// Takes our own entries out of what the kernel has reported, and notes what they tell. Second: a bell was rung.
fn without_ours(events: &mut [epoll_event]) -> (usize, bool) {
    let (mut kept, mut rung) = (0, false);
    for n in 0..events.len() {
        let event = events[n];
        let data = event.u64;
        if data & MARK_MASK != MARK {
            events[kept] = event;
            kept += 1;
        } else if data & LIFE != 0 {
            gone::end_all(link::link((data & 0xFFFF) as usize));
        } else if data & BELL != 0 {
            // A bell needs not be emptied: each ring of it is an edge. What it is about is told by the link.
            rung = true;
        } else {
            let slot = table::slot((data & 0xFFFF) as usize);
            slot.watch.news.store(1, Ordering::Relaxed);
            mark(slot);
        }
    }
    (kept, rung)
}

/// How often the kernel is asked while there are always news by rings, in nanoseconds.
const ASK_EVERY: u64 = 20_000;
/// How long a wait may last where a forked process may take the news.
const SHARED_WAIT: u64 = 20_000_000;

unsafe fn wait(set: i32, events: *mut epoll_event, most: i32, until: Option<u64>, mask: *const sigset_t) -> i32 {
    // SAFETY: the caller's promise of epoll_wait(2): room for so many events, which are written before they are read.
    let events = unsafe { core::slice::from_raw_parts_mut(events, most as usize) };
    let ask = |events: &mut [epoll_event], time: i32| {
        let most = events.len() as i32;
        // SAFETY: room for so many events, and the caller's mask.
        let got = next::uncancelled(|| unsafe { next::epoll_pwait()(set, events.as_mut_ptr(), most, time, mask) });
        let got = usize::try_from(got).map_err(|_| got)?;
        Ok::<(usize, bool), i32>(without_ours(&mut events[..got]))
    };
    let mut announced = false;
    loop {
        let entry = sets::find(set);
        let now = kernel::now();
        let mut found = 0;
        if let Some(entry) = entry {
            let is_due = now.saturating_sub(entry.asked.load(Ordering::Relaxed)) > ASK_EVERY;
            if is_due {
                gone::look_for_orphans(entry, now);
            }
            if entry.kernel_first.load(Ordering::Relaxed) != 0 {
                entry.kernel_first.store(0, Ordering::Relaxed);
                entry.asked.store(now, Ordering::Relaxed);
                // An error is met again where nothing else is to be told.
                found = ask(events, 0).map_or(0, |(some, _)| some);
            }
            found += reap(entry, &mut events[found..]);
            if found > 0 {
                if announced {
                    entry.waiters.fetch_sub(1, Ordering::SeqCst);
                }
                if is_due && found < events.len() {
                    entry.asked.store(now, Ordering::Relaxed);
                    found += ask(&mut events[found..], 0).map_or(0, |(some, _)| some);
                } else if is_due {
                    // The connections have left no room. Next time the kernel comes first.
                    entry.kernel_first.store(1, Ordering::Relaxed);
                }
                wake_others(entry);
                return found as i32;
            }
        }
        let is_over = until.is_some_and(|until| now >= until);
        if let Some(entry) = entry.filter(|_| !is_over && !announced) {
            if !spin::look(|| entry.may_have_some()) {
                entry.waiters.fetch_add(1, Ordering::SeqCst);
                entry.announce();
                announced = true;
            }
            continue;
        }
        let scans = |entry: &Set| entry.scans.load(Ordering::Relaxed) != 0;
        let longest = entry.and_then(|entry| match scans(entry) {
            true => Some(SHARED_WAIT),
            false => gone::may_have_orphans(entry).then_some(work::ORPHAN_WAIT),
        });
        let left = until.map(|until| until.saturating_sub(now));
        let time = match (left, longest) {
            (Some(left), Some(most)) => left.min(most),
            (None, None) => u64::MAX,
            (left, most) => left.or(most).unwrap_or(u64::MAX),
        };
        // Rounded up: a wait that is too short would be followed by empty ones.
        let millis = if time == u64::MAX { -1 } else { time.div_ceil(1_000_000).min(i32::MAX as u64) as i32 };
        let got = ask(events, millis);
        if let Some(entry) = entry {
            if announced {
                entry.waiters.fetch_sub(1, Ordering::SeqCst);
                announced = false;
            }
            let woken = kernel::now();
            entry.asked.store(woken, Ordering::Relaxed);
            if matches!(got, Ok((_, true))) {
                spin::slept(woken - now);
            }
        }
        match got {
            // The kernel may have told something of a connection.
            Ok((0, _)) if is_over => return entry.map_or(0, |entry| reap(entry, events)) as i32,
            Ok((0, _)) => {}
            Ok((some, _)) => {
                let more = entry.map_or(0, |entry| reap(entry, &mut events[some..]));
                return (some + more) as i32;
            }
            Err(error) => return error,
        }
    }
}

/// A thread leaves with some events. If others sleep on, the next news must wake one of them, and so must what is left.
fn wake_others(entry: &Set) {
    if entry.waiters.load(Ordering::SeqCst) > 0 {
        entry.announce();
        if entry.links().any(|link| link.mine().has_news()) {
            entry.links().for_each(Link::ring_sets);
        }
    }
}

unsafe extern "C" fn epoll_wait_known(set: i32, events: *mut epoll_event, most: i32, time: i32) -> i32 {
    if table::tag(set) != Tag::Set || most <= 0 || events.is_null() {
        // SAFETY: the caller's arguments.
        return next::uncancelled(|| unsafe { next::epoll_wait()(set, events, most, time) });
    }
    let until = u64::try_from(time).ok().map(|millis| kernel::now() + millis * 1_000_000);
    // SAFETY: the caller's arguments.
    unsafe { wait(set, events, most, until, core::ptr::null()) }
}

unsafe extern "C" fn epoll_pwait_known(
    set: i32,
    events: *mut epoll_event,
    most: i32,
    time: i32,
    mask: *const sigset_t,
) -> i32 {
    if table::tag(set) != Tag::Set || most <= 0 || events.is_null() {
        // SAFETY: the caller's arguments.
        return next::uncancelled(|| unsafe { next::epoll_pwait()(set, events, most, time, mask) });
    }
    let until = u64::try_from(time).ok().map(|millis| kernel::now() + millis * 1_000_000);
    // SAFETY: the caller's arguments.
    unsafe { wait(set, events, most, until, mask) }
}

unsafe extern "C" fn epoll_pwait2_known(
    set: i32,
    events: *mut epoll_event,
    most: i32,
    time: *const libc::timespec,
    mask: *const sigset_t,
) -> i32 {
    if table::tag(set) != Tag::Set || most <= 0 || events.is_null() {
        // SAFETY: the caller's arguments.
        return next::uncancelled(|| unsafe { next::epoll_pwait2()(set, events, most, time, mask) });
    }
    // SAFETY: the caller's arguments.
    unsafe { wait(set, events, most, poll::until_timespec(time), mask) }
}

entries! {
    epoll_wait epoll_wait epoll_wait_known;
    epoll_pwait epoll_pwait epoll_pwait_known;
    epoll_pwait2 epoll_pwait2 epoll_pwait2_known;
}

const _: () = assert!(EPOLLIN as i16 == libc::POLLIN && EPOLLOUT as i16 == libc::POLLOUT);
const _: () = assert!(EPOLLRDHUP as i16 == libc::POLLRDHUP && EPOLLHUP as i16 == libc::POLLHUP);
const _: () = assert!(EPOLLERR as i16 == libc::POLLERR && EPOLLPRI as i16 == libc::POLLPRI);
