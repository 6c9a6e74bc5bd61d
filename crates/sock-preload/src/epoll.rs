//! epoll(7) over connections of which some have shared memory.
//!
//! In the kernel's set such a connection has its socket, edge-triggered and for reading only (it can always be
//! written to), and its bell. Both carry a mark instead of the program's data. What the program gets is worked out
//! here, by the kernel's rules: level-triggered entries are reported while they are ready, edge-triggered ones once
//! for everything new, ONESHOT disarms.

use std::sync::atomic::{AtomicU32, Ordering};

use libc::{EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, epoll_event, sigset_t};

use crate::kernel;
use crate::next::{self, entries};
use crate::poll;
use crate::process;
use crate::table::{self, LIMIT, SLOTS, Slot, Tag, Watch};
use crate::work::{Use, connection};

/// In the upper half of the data of our own entries; the slot's number and which of the two it is in the lower one. A
/// program that uses such data by chance keeps its set away from shared memory.
const MARK: u64 = 0x5052_4E43_0000_0000 ^ 0x8765_0000_0000;
const MARK_MASK: u64 = 0xFFFF_FFFF_0000_0000;
const BELL: u64 = 1 << 16;

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

fn start(watch: &Watch, set: i32, fd: i32, events: u32, data: u64) {
    watch.fd.store(fd, Ordering::Relaxed);
    watch.events.store(events, Ordering::Relaxed);
    watch.data.store(data, Ordering::Relaxed);
    watch.news.store(1, Ordering::Relaxed);
    watch.told_writable.store(0, Ordering::Relaxed);
    watch.disarmed.store(0, Ordering::Relaxed);
    watch.set.store(set + 1, Ordering::SeqCst);
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
    start(&slot.watch, set, fd, registered.events.load(Ordering::Relaxed), data);
    let bell = slot.bell.load(Ordering::Relaxed);
    let done = watch_socket(set, libc::EPOLL_CTL_MOD, fd, number) == 0
        && control(set, libc::EPOLL_CTL_ADD, bell, (EPOLLIN | EPOLLET) as u32, MARK | BELL | number as u64) == 0;
    if !done {
        // It was taken out behind our back; or there is no room for the bell, and the entry stays as it was.
        slot.watch.set.store(0, Ordering::SeqCst);
        control(set, libc::EPOLL_CTL_MOD, fd, registered.events.load(Ordering::Relaxed), data);
        process::leave_to_tcp(fd);
    }
}

/// A connection's descriptor is closed: the kernel takes it out of the set.
pub fn detach(slot: &Slot, fd: i32) {
    if slot.watch.fd.load(Ordering::Relaxed) == fd {
        let set = slot.watch.set.swap(0, Ordering::SeqCst) - 1;
        if set >= 0 {
            control(set, libc::EPOLL_CTL_DEL, slot.bell.load(Ordering::Relaxed), 0, 0);
        }
    }
}

/// A set is closed.
pub fn forget_set(set: i32) {
    watched_by(set).for_each(|(_, slot)| slot.watch.set.store(0, Ordering::SeqCst));
}

fn watched_by(set: i32) -> impl Iterator<Item = (usize, &'static Slot)> {
    // Each turn begins elsewhere, so that nobody is always the last.
    let turn = TURN.load(Ordering::Relaxed) as usize;
    (turn..turn + SLOTS)
        .map(|number| (number % SLOTS, table::slot(number)))
        .filter(move |(_, slot)| slot.watch.set.load(Ordering::Acquire) == set + 1)
}

/// A set is looked at by another one, or by poll(2), which cannot see what is in rings: its connections go back to
/// TCP.
pub fn nest(set: i32) {
    if !table::change_tag(set, Tag::Set, Tag::Nested) {
        return;
    }
    for (_, slot) in watched_by(set) {
        let (fd, watch) = (slot.watch.fd.load(Ordering::Relaxed), &slot.watch);
        process::leave_to_tcp(fd);
        watch.set.store(0, Ordering::SeqCst);
        control(set, libc::EPOLL_CTL_DEL, slot.bell.load(Ordering::Relaxed), 0, 0);
        control(set, libc::EPOLL_CTL_MOD, fd, watch.events.load(Ordering::Relaxed), watch.data.load(Ordering::Relaxed));
    }
}

/// A descriptor of this library stands where the program wants another one: it gets a new number.
pub fn move_own(fd: i32) {
    for number in 0..SLOTS {
        let slot = table::slot(number);
        for place in [&slot.bell, &slot.their_bell, &slot.listener] {
            if place.load(Ordering::Relaxed) == fd
                && let Ok(new) = rustix::io::fcntl_dupfd_cloexec(kernel::borrow(fd), fd + 1)
            {
                let new = std::os::fd::IntoRawFd::into_raw_fd(new);
                table::set_tag(new, Tag::Ours);
                place.store(new, Ordering::SeqCst);
                table::set_tag(fd, Tag::Unknown);
            }
        }
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
                crate::descriptors::untrack(fd);
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
            let bell = MARK | BELL | connection.number as u64;
            let bell = control(set, operation, slot.bell.load(Ordering::Relaxed), (EPOLLIN | EPOLLET) as u32, bell);
            if bell != 0 {
                connection.demote(true, true, true);
                control(set, libc::EPOLL_CTL_DEL, fd, 0, 0);
                return plain();
            }
            start(watch, set, fd, events, data);
            0
        }
        (libc::EPOLL_CTL_MOD, Some((events, data))) if is_here => {
            let result = watch_socket(set, operation, fd, connection.number);
            if result == 0 {
                start(watch, set, fd, events, data);
                // Whoever waits in the set looks again.
                let bell = slot.bell.load(Ordering::Relaxed);
                let _ = rustix::io::write(kernel::borrow(bell), &1u64.to_ne_bytes());
            }
            result
        }
        (libc::EPOLL_CTL_DEL, _) if is_here => {
            watch.set.store(0, Ordering::SeqCst);
            control(set, libc::EPOLL_CTL_DEL, slot.bell.load(Ordering::Relaxed), 0, 0);
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
    let by_ring = poll::by_ring(connection, asked);
    // Events of epoll and of poll have the same numbers.
    // The kernel tells of a change once; what it said lasts only where bytes go by TCP.
    let by_kernel = match news || !poll::is_ring_only(connection, asked) {
        true => poll::told(connection, asked, kernel::look(connection.fd, poll::by_kernel(connection, asked))),
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

/// Takes our own entries out of what the kernel has reported, and notes what they tell.
fn without_ours(events: &mut [epoll_event]) -> usize {
    let mut kept = 0;
    for n in 0..events.len() {
        let event = events[n];
        let data = event.u64;
        if data & MARK_MASK == MARK {
            let slot = table::slot((data & 0xFFFF) as usize);
            // A bell needs not be emptied: each ring of it is an edge.
            if data & BELL == 0 {
                slot.watch.news.store(1, Ordering::Relaxed);
            }
        } else {
            events[kept] = event;
            kept += 1;
        }
    }
    kept
}

/// Threads that wait in a set: a count for each, or for a few that share one.
fn waiters_of(set: i32) -> &'static AtomicU32 {
    static WAITERS: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];
    &WAITERS[set.unsigned_abs() as usize % 64]
}

/// Whether a thread waits in a set.
pub fn is_waited_for(set: i32) -> bool {
    set >= 0 && waiters_of(set).load(Ordering::SeqCst) > 0
}

/// Turns of all waits: the kernel's events and ours come first by turns, so that neither keeps the other out.
static TURN: AtomicU32 = AtomicU32::new(0);

unsafe fn wait(set: i32, events: *mut epoll_event, most: i32, until: Option<u64>, mask: *const sigset_t) -> i32 {
    // SAFETY: the caller's promise of epoll_wait(2): room for so many events, which are written before they are read.
    let events = unsafe { core::slice::from_raw_parts_mut(events, most as usize) };
    let ask = |events: &mut [epoll_event], time: i32| {
        let most = events.len() as i32;
        // SAFETY: room for so many events, and the caller's mask.
        let got = next::uncancelled(|| unsafe { next::epoll_pwait()(set, events.as_mut_ptr(), most, time, mask) });
        let got = usize::try_from(got).map_err(|_| got)?;
        Ok::<usize, i32>(without_ours(&mut events[..got]))
    };
    let mut announced = false;
    loop {
        let mut found = 0;
        let kernel_first = TURN.fetch_add(1, Ordering::Relaxed) % 2 == 1;
        if kernel_first {
            match ask(events, 0) {
                Ok(some) => found = some,
                Err(error) => return error,
            }
        }
        let others = waiters_of(set).load(Ordering::SeqCst);
        let (mut watched, mut longest) = (0, None);
        for (_, slot) in watched_by(set) {
            let Some(connection) = connection(slot.watch.fd.load(Ordering::Relaxed)) else { continue };
            watched += 1;
            if found < events.len()
                && let Some(event) = report(&connection)
            {
                events[found] = event;
                found += 1;
            }
            longest = longest.or(connection.longest_wait(others > 0));
        }
        if found == events.len() {
            return found as i32;
        }
        if found > 0 || until.is_some_and(|until| kernel::now() >= until) {
            if !kernel_first {
                match ask(&mut events[found..], 0) {
                    Ok(some) => found += some,
                    Err(error) if found == 0 => return error,
                    Err(_) => {}
                }
            }
            // A bell may be all that there was.
            return found as i32;
        }
        if watched > 0 && !announced {
            for (_, slot) in watched_by(set) {
                if let Some(connection) = connection(slot.watch.fd.load(Ordering::Relaxed)) {
                    poll::announce(&connection, slot.watch.events.load(Ordering::Relaxed) as i16);
                }
            }
            announced = true;
            continue;
        }
        let left = until.map(|until| until.saturating_sub(kernel::now()));
        let time = match (left, longest) {
            (Some(left), Some(most)) => left.min(most),
            (None, None) => u64::MAX,
            (left, most) => left.or(most).unwrap_or(u64::MAX),
        };
        // Rounded up: a wait that is too short would be followed by empty ones.
        let millis = if time == u64::MAX { -1 } else { time.div_ceil(1_000_000).min(i32::MAX as u64) as i32 };
        let waiters = waiters_of(set);
        waiters.fetch_add(1, Ordering::SeqCst);
        let got = ask(events, millis);
        if waiters.fetch_sub(1, Ordering::SeqCst) == 1 && announced {
            // Nobody has to be woken while this thread is awake.
            for (_, slot) in watched_by(set) {
                if let Some(connection) = connection(slot.watch.fd.load(Ordering::Relaxed)) {
                    connection.end().incoming.withdraw_sleep();
                }
            }
        }
        match got {
            Ok(0) => announced = false,
            Ok(some) => return some as i32,
            Err(error) => return error,
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
