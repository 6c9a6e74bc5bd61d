//! What is in an epoll set that has connections with shared memory: epoll_ctl(2).
//!
//! In the kernel's set such a connection has its socket, edge-triggered, and each link to another process has a bell.
//! Both carry a mark instead of the program's data. Which connections may have something to report is known by
//! [`crate::sets`], and a wait reports it ([`crate::waits`]).
//!
//! The kernel's set keeps the socket of a connection that the program takes out, where all bytes go by memory: many
//! programs take a connection out and put it back for each request, and no change of that kind then costs a system
//! call.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use libc::{EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, epoll_event};

use crate::kernel;
use crate::link;
use crate::next::{self, fail};
use crate::process;
use crate::sdp;
use crate::sets::{self, Set};
use crate::table::{self, LIMIT, Slot, Tag};
use crate::work::{Use, connection};

/// In the upper half of the data of our own entries; the slot's number and which of the two it is in the lower one. A
/// program that uses such data by chance keeps its set away from shared memory.
pub const MARK: u64 = 0x5052_4E43_0000_0000 ^ 0x8765_0000_0000;
pub const MARK_MASK: u64 = 0xFFFF_FFFF_0000_0000;
pub const BELL: u64 = 1 << 16;
pub const LIFE: u64 = 1 << 17;

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
    watch.fresh.store(1, Ordering::Relaxed);
    watch.told_writable.store(0, Ordering::Relaxed);
    watch.disarmed.store(u32::from(is_disarmed), Ordering::Relaxed);
    watch.entry.store(entry.number() as u32, Ordering::Relaxed);
    watch.kernel.store(entry.fd() + 1, Ordering::Relaxed);
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
    slot.watch.kernel.store(0, Ordering::Relaxed);
    slot.watch.news.store(1, Ordering::Relaxed);
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
        slot.watch.kernel.store(0, Ordering::SeqCst);
        let left = if is_disarmed { events & EPOLLONESHOT as u32 } else { events };
        control(set, libc::EPOLL_CTL_MOD, fd, left, data);
        process::leave_to_tcp(fd);
    }
}

/// A connection's descriptor is closed: the kernel takes it out of the set.
pub fn detach(slot: &Slot, fd: i32) {
    if slot.watch.fd.load(Ordering::Relaxed) == fd {
        evict(slot);
        slot.watch.set.store(0, Ordering::SeqCst);
        slot.watch.kernel.store(0, Ordering::SeqCst);
    }
}

/// A set is closed.
pub fn forget_set(set: i32) {
    for slot in kept_by(set) {
        slot.watch.set.store(0, Ordering::SeqCst);
        slot.watch.kernel.store(0, Ordering::SeqCst);
    }
    if let Some(entry) = sets::find(set) {
        entry.give_back();
    }
}

pub fn watched_by(set: i32) -> impl Iterator<Item = &'static Slot> {
    table::used().map(table::slot).filter(move |slot| slot.watch.set.load(Ordering::Acquire) == set + 1)
}

/// The connections whose sockets are in the kernel's set.
fn kept_by(set: i32) -> impl Iterator<Item = &'static Slot> {
    table::used().map(table::slot).filter(move |slot| slot.watch.kernel.load(Ordering::Acquire) == set + 1)
}

/// Takes a connection out of the kernel's set that the program has taken out before.
pub fn evict(slot: &Slot) {
    if slot.watch.set.load(Ordering::SeqCst) != 0 {
        return;
    }
    let kernel = slot.watch.kernel.swap(0, Ordering::SeqCst) - 1;
    if kernel >= 0 {
        let error = next::errno();
        control(kernel, libc::EPOLL_CTL_DEL, slot.watch.fd.load(Ordering::Relaxed), 0, 0);
        next::set_errno(error);
    }
}

/// A set is looked at by another one, or by poll(2), which cannot see what is in rings: its connections go back to
/// TCP, and those that have no memory yet stay there.
pub fn nest(set: i32) {
    if !table::change_tag(set, Tag::Set, Tag::Nested) {
        return;
    }
    let is_in_it = |fd: &i32| registration(*fd).is_some_and(|there| there.set.load(Ordering::SeqCst) as i32 == set + 1);
    table::all().filter(is_in_it).for_each(|fd| crate::descriptors::untrack(fd, sock::status::State::Epoll));
    for slot in watched_by(set) {
        let (fd, watch) = (slot.watch.fd.load(Ordering::Relaxed), &slot.watch);
        process::leave_to_tcp(fd);
        watch.set.store(0, Ordering::SeqCst);
        watch.kernel.store(0, Ordering::SeqCst);
        control(set, libc::EPOLL_CTL_MOD, fd, watch.events.load(Ordering::Relaxed), watch.data.load(Ordering::Relaxed));
    }
    kept_by(set).for_each(evict);
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
    if crate::status::replace(fd, copy) || sdp::replace(fd, copy) {
        return;
    }
    let listeners = table::used().map(|number| &table::slot(number).listener);
    if let Some(place) = listeners.into_iter().find(|place| place.load(Ordering::Relaxed) == fd)
        && let Some(new) = copy()
    {
        place.store(new, Ordering::SeqCst);
    }
}

/// Calls for descriptors of which nothing is known go on, unless the data of the event are like those of our entries.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn epoll_ctl(set: i32, operation: i32, fd: i32, event: *mut epoll_event) -> i32 {
    core::arch::naked_asm!(
        "cmp edx, {limit}", "jae 3f",
        "mov r10d, edx", "lea r11, [rip + {tags}]", "cmp dword ptr [r11 + r10 * 4], 0", "jne 3f",
        // The kernel reads no event for EPOLL_CTL_DEL, and refuses one that is nowhere.
        "cmp esi, {del}", "je 2f",
        "cmp rcx, {lowest}", "jb 2f",
        "cmp dword ptr [rcx + 8], {mark}", "je 3f",
        "2: mov r11, [rip + {next} + {offset}]", "test r11, r11", "je 3f", "jmp r11",
        "3: jmp {function}",
        limit = const LIMIT,
        tags = sym table::TAGS,
        del = const libc::EPOLL_CTL_DEL,
        lowest = const 4096,
        mark = const (MARK >> 32) as i32,
        next = sym next::NEXT,
        offset = const next::offset::epoll_ctl,
        function = sym control_known,
    )
}

unsafe extern "C" fn control_known(set: i32, operation: i32, fd: i32, event: *mut epoll_event) -> i32 {
    // SAFETY: the caller's event, or null.
    let asked = unsafe { event.as_ref() }.map(|event| (event.events, event.u64));
    // SAFETY: the caller's arguments.
    let plain = || unsafe { next::epoll_ctl()(set, operation, fd, event) };
    if !process::has_tables() {
        return plain();
    }
    if asked.is_some_and(|(_, data)| data & MARK_MASK == MARK) {
        nest_for_good(set);
    }
    match table::tag(fd) {
        Tag::Set => nest(fd),
        // The program has no such descriptor.
        Tag::Ours => return fail(libc::EBADF) as i32,
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
        Tag::Listener(_) | Tag::Inherited | Tag::Asked if operation != libc::EPOLL_CTL_DEL => sdp::waits(fd, true),
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
            registered.set.store((set + 1).cast_unsigned(), Ordering::Release);
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
    let is_in_kernel = watch.kernel.load(Ordering::SeqCst) == set + 1 && watch.fd.load(Ordering::Relaxed) == fd;
    let is_here = is_in_kernel && watch.set.load(Ordering::SeqCst) == set + 1;
    // The kernel needs not know of a change where its socket has nothing to say, and no other process has the set.
    let end = connection.end();
    let by_memory = end.sends_by_ring_alone() && end.receives_by_ring();
    let entry = sets::find(set).filter(|entry| by_memory && entry.scans.load(Ordering::Relaxed) == 0);
    match (operation, asked) {
        (libc::EPOLL_CTL_ADD, Some((events, data))) if !is_here => {
            let free = watch.set.load(Ordering::SeqCst) == 0 && table::tag(set) != Tag::Nested;
            if !free || events & libc::EPOLLEXCLUSIVE as u32 != 0 {
                evict(slot);
                connection.demote(true, true, false);
                return plain();
            }
            if is_in_kernel && let Some(entry) = entry {
                arm(connection, entry, (events, data));
                return 0;
            }
            evict(slot);
            watch.news.store(1, Ordering::Relaxed);
            // A thread that sleeps in the set is told of our entry at once, and looks then whether there is one.
            let is_new = sets::find(set).is_none();
            let Some(entry) = sets::claim(set) else {
                connection.demote(true, true, false);
                return plain();
            };
            let result = watch_socket(set, operation, fd, connection.number);
            if result != 0 {
                if is_new && [libc::EBADF, libc::EINVAL, libc::EPERM].contains(&next::errno()) {
                    // It is no set.
                    entry.give_back();
                }
                return result;
            }
            if table::tag(set) == Tag::Unknown {
                table::set_tag(set, Tag::Set);
            }
            if !add_bell(entry, connection) {
                connection.demote(true, true, false);
                control(set, libc::EPOLL_CTL_DEL, fd, 0, 0);
                return plain();
            }
            arm(connection, entry, (events, data));
            0
        }
        (libc::EPOLL_CTL_MOD, Some((events, data))) if is_here => {
            if entry.is_none() {
                watch.news.store(1, Ordering::Relaxed);
                let result = watch_socket(set, operation, fd, connection.number);
                if result != 0 {
                    return result;
                }
            }
            if let Some(entry) = entry.or_else(|| sets::find(set)) {
                arm(connection, entry, (events, data));
            }
            0
        }
        (libc::EPOLL_CTL_DEL, _) if is_here => {
            watch.set.store(0, Ordering::SeqCst);
            if entry.is_some() {
                return 0;
            }
            watch.kernel.store(0, Ordering::SeqCst);
            plain()
        }
        // The program knows nothing of what the kernel's set still has.
        (libc::EPOLL_CTL_MOD, Some(_)) | (libc::EPOLL_CTL_DEL, _) if is_in_kernel => fail(libc::ENOENT) as i32,
        _ => plain(),
    }
}

/// Begins to watch a connection whose socket is in the kernel's set already. Threads that sleep look at it.
fn arm(connection: &Use, entry: &Set, asked: (u32, u64)) {
    start(connection.slot, entry, connection.fd, asked, false);
    fence(Ordering::SeqCst);
    if entry.has_sleepers() {
        connection.look_again();
    }
}
