//! Descriptors that come, go and are copied.

use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, Ordering};

use sock::status::State;

use crate::cancel::points;
use crate::kernel::{self, borrow};
use crate::next::{self, entries, fail};
use crate::table::{self, Held, Slot, Tag};
use crate::work::{self, using};
use crate::{epoll, holders, link, log, meet, process, sdp, status};

/// Logs where a connection is from now on.
pub fn tell(fd: i32, state: State) {
    if log::has(log::CONNECTION)
        && let Some((local, remote)) = meet::both_addresses(fd)
    {
        let way = if matches!(state, State::Moved) { "shared memory" } else { "TCP: " };
        let why = if matches!(state, State::Moved) { "" } else { state.text() };
        log::say(log::CONNECTION, format_args!("{local} with {remote} by {way}{why}"));
    }
}

/// Leaves a connection that has no shared memory yet to TCP, and says why.
pub fn untrack(fd: i32, why: State) {
    if leave(fd, why) {
        tell(fd, why);
    }
}

/// False: it has shared memory, or was left to TCP before.
fn leave(fd: i32, why: State) -> bool {
    match table::tag(fd) {
        Tag::Fresh(_) => {
            table::set_tag(fd, Tag::Unknown);
            status::set(fd, Some(why), 0);
        }
        Tag::Waiting(number) => {
            table::set_tag(fd, Tag::Unknown);
            status::set(fd, Some(why), 0);
            let slot = table::slot(number);
            close_own(&slot.listener);
            slot.holders.store(0, Ordering::SeqCst);
        }
        _ => return false,
    }
    true
}

/// The descriptor is closed, or is another file's by now.
pub fn forget(fd: i32) {
    let tag = table::tag(fd);
    holders::leave(fd, matches!(tag, Tag::Fresh(_)));
    forget_tagged(fd, tag);
    table::set_asked(fd, false);
    if tag != Tag::Ours {
        status::set(fd, None, 0);
    }
}

fn forget_tagged(fd: i32, tag: Tag) {
    match tag {
        Tag::Unknown | Tag::Ours => {}
        Tag::Fresh(_) | Tag::Waiting(_) => drop(leave(fd, State::NotMet)),
        Tag::Asked | Tag::Inherited => table::set_tag(fd, Tag::Unknown),
        Tag::Listener(number) => {
            table::set_tag(fd, Tag::Unknown);
            sdp::leave(number);
        }
        Tag::Set | Tag::Nested => {
            epoll::forget_set(fd);
            table::set_tag(fd, Tag::Unknown);
        }
        Tag::Shared(number) => {
            table::set_tag(fd, Tag::Unknown);
            let slot = table::slot(number);
            epoll::detach(slot, fd);
            if slot.holders.fetch_sub(1, Ordering::SeqCst) == 1 && slot.users.load(Ordering::SeqCst) == 0 {
                free(slot);
            }
        }
    }
}

/// Closes a descriptor of this library.
pub fn close_own(fd: &AtomicI32) {
    let number = fd.swap(-1, Ordering::SeqCst);
    if number >= 0 {
        table::set_tag(number, Tag::Unknown);
        // SAFETY: ours, and nobody has its number any more.
        unsafe { rustix::io::close(number) };
    }
}

/// Gives back what a connection has that nobody holds or uses.
pub fn free(slot: &Slot) {
    /// A slot that is being freed cannot be claimed.
    const FREEING: u32 = u32::MAX;
    if slot.holders.compare_exchange(0, FREEING, Ordering::SeqCst, Ordering::SeqCst).is_err() {
        return;
    }
    // SAFETY: no tag names the slot and no thread uses it: nobody has a reference into it.
    drop(unsafe { (*slot.pair.get()).take() });
    let held = slot.held.swap(core::ptr::null_mut::<Held>(), Ordering::SeqCst);
    let mut forked = false;
    if !held.is_null() {
        // SAFETY: the page that was mapped for it, and is given back only below.
        forked = unsafe { &*held }.forked.load(Ordering::Relaxed) != 0;
        // SAFETY: the page that was mapped for it.
        let _ = unsafe { rustix::mm::munmap(held.cast(), 4096) };
    }
    close_own(&slot.listener);
    let link = slot.link.swap(0, Ordering::SeqCst);
    if link > 0 {
        link::leave(link as usize - 1, slot.number.load(Ordering::Relaxed), slot.index(), forked);
    }
    slot.holders.store(0, Ordering::SeqCst);
}

/// What has to be done before the kernel closes a connection.
fn before_close(fd: i32) {
    let Some(connection) = using(fd) else { return };
    let is_last = connection.slot.holders.load(Ordering::SeqCst) == 1;
    if !is_last || connection.held().forked.load(Ordering::Relaxed) != 0 {
        return;
    }
    finish_retracting(&connection);
    connection.end().out.set_finished();
    // RFC 1122, 4.2.2.13: a close with data unread resets the connection. The kernel sees its own only.
    if connection.end().unread() > 0 {
        let _ = rustix::net::sockopt::set_socket_linger(borrow(fd), Some(std::time::Duration::ZERO));
    } else {
        // What the other end sends from now on is answered by a reset (RFC 9293, 3.6.1), which only its kernel can
        // see: the FIN may be behind bytes that the other end does not read while it waits for room in the ring.
        connection.end().receive_by_tcp();
    }
}

/// Bytes that the other end has asked for by TCP go before the FIN. Waits a second for room.
fn finish_retracting(connection: &work::Use) {
    let until = kernel::now() + 1_000_000_000;
    while connection.end().needs_service() && kernel::now() < until {
        connection.serve();
        if connection.end().needs_service() {
            work::nap();
        }
    }
}

unsafe extern "C" fn close_known(fd: i32) -> i32 {
    if process::is_own() {
        match table::tag(fd) {
            // The program does not know of it, and closes whatever may be open.
            Tag::Ours => return fail(libc::EBADF) as i32,
            Tag::Shared(_) => before_close(fd),
            _ => {}
        }
        forget(fd);
    }
    // SAFETY: the caller's arguments.
    next::uncancelled(|| unsafe { next::close()(fd) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn close_range(first: u32, last: u32, flags: i32) -> i32 {
    /// CLOSE_RANGE_CLOEXEC of `linux/close_range.h`: closes nothing now.
    const LATER: i32 = 4;
    if flags & LATER != 0 || !process::is_own() || first > last {
        // SAFETY: the caller's arguments.
        return unsafe { next::close_range()(first, last, flags) };
    }
    let mut from = first;
    let known = table::all().filter(|fd| (first..=last).contains(&fd.cast_unsigned()));
    for fd in known {
        match table::tag(fd) {
            Tag::Unknown => {}
            // What lies before it is closed, and it stays.
            Tag::Ours => {
                let fd = fd.cast_unsigned();
                if from < fd {
                    // SAFETY: a part of the caller's range.
                    unsafe { next::close_range()(from, fd - 1, flags) };
                }
                from = fd + 1;
            }
            _ => {
                before_close(fd);
                forget(fd);
            }
        }
    }
    if from > last {
        return 0;
    }
    // SAFETY: the rest of the caller's range.
    unsafe { next::close_range()(from, last, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn closefrom(first: i32) {
    // SAFETY: as closefrom(3) does it.
    unsafe { close_range(first.max(0).cast_unsigned(), u32::MAX, 0) };
}

unsafe extern "C" fn shutdown_known(fd: i32, how: i32) -> i32 {
    let connection = using(fd);
    if let Some(connection) = &connection {
        let (read, write) =
            (how == libc::SHUT_RD || how == libc::SHUT_RDWR, how == libc::SHUT_WR || how == libc::SHUT_RDWR);
        if write {
            finish_retracting(connection);
        }
        connection.as_sender(|| {
            connection.held().own.shut(read, write);
            if write {
                connection.end().out.set_finished();
            }
        });
    }
    // SAFETY: the caller's arguments.
    let result = unsafe { next::shutdown()(fd, how) };
    if let Some(connection) = connection {
        connection.look_again();
    }
    result
}

/// A copy of a descriptor was made.
fn copied(from: i32, to: i32) {
    if to < 0 || from == to {
        return;
    }
    if table::is_asked(from) && process::is_own() {
        table::set_asked(to, true);
    }
    match table::tag(from) {
        tag @ (Tag::Asked | Tag::Inherited) if process::is_own() => table::set_tag(to, tag),
        Tag::Listener(number) if process::is_own() => sdp::copied(number, to),
        _ => {}
    }
    if let Some(connection) = using(from) {
        if to <= 2 || !process::is_own() {
            // The C library's streams, or a program that is about to be started, know nothing of the ring.
            connection.demote(true, true, true);
        } else {
            connection.slot.holders.fetch_add(1, Ordering::SeqCst);
            table::set_tag(to, Tag::Shared(connection.number));
            status::set(to, Some(State::Moved), connection.number);
        }
    }
}

unsafe extern "C" fn dup_known(fd: i32) -> i32 {
    untrack(fd, State::Copied);
    // SAFETY: the caller's arguments.
    let to = unsafe { next::dup()(fd) };
    copied(fd, to);
    to
}

/// Makes room for a descriptor that is about to be replaced. A call that will fail closes nothing (dup(2)).
fn replaced(from: i32, to: i32, flags: i32) {
    let fails = from < 0 || from == to || flags & !libc::O_CLOEXEC != 0;
    if fails || !process::is_own() || rustix::io::fcntl_getfd(borrow(from)).is_err() {
        return;
    }
    match table::tag(to) {
        Tag::Ours => epoll::move_own(to),
        Tag::Unknown => {}
        _ => {
            before_close(to);
            forget(to);
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup2(from: i32, to: i32) -> i32 {
    untrack(from, State::Copied);
    replaced(from, to, 0);
    // SAFETY: the caller's arguments.
    let result = unsafe { next::dup2()(from, to) };
    copied(from, result);
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dup3(from: i32, to: i32, flags: i32) -> i32 {
    untrack(from, State::Copied);
    replaced(from, to, flags);
    // SAFETY: the caller's arguments.
    let result = unsafe { next::dup3()(from, to, flags) };
    copied(from, result);
    result
}

/// pidfd_getfd(2): a copy of a descriptor, by its process. The process may be this one, or one that has come from it by
/// fork(2): then both have the connection, under one number.
#[unsafe(no_mangle)]
unsafe extern "C" fn pidfd_getfd(process: i32, fd: i32, flags: u32) -> i32 {
    // SAFETY: the caller's arguments.
    let to = unsafe { next::pidfd_getfd()(process, fd, flags) };
    if to >= 0 && table::tag(fd) != Tag::Unknown && process::is_own() {
        let error = next::errno();
        let cookie = kernel::cookie(fd);
        if cookie != 0 && cookie == kernel::cookie(to) {
            untrack(fd, State::Copied);
            copied(fd, to);
        }
        next::set_errno(error);
    }
    to
}

/// What was remembered of a connection's flags and options is asked for again.
fn options_changed(fd: i32) {
    let error = next::errno();
    if let Some(connection) = work::connection(fd) {
        connection.forget_options();
    }
    next::set_errno(error);
}

unsafe extern "C" fn fcntl_known(fd: i32, command: i32, argument: usize) -> i32 {
    /// `linux/fcntl.h`.
    const F_SETSIG: i32 = 10;
    let copies = command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC;
    if copies {
        untrack(fd, State::Copied);
    }
    if command == libc::F_SETFL && argument as i32 & libc::O_ASYNC != 0 || command == F_SETSIG {
        process::leave_to_tcp(fd);
    }
    // SAFETY: the caller's arguments.
    let result = next::uncancelled(|| unsafe { next::fcntl()(fd, command, argument) });
    if command == libc::F_SETFL {
        options_changed(fd);
    }
    if copies {
        copied(fd, result);
    }
    result
}

unsafe extern "C" fn ioctl_known(fd: i32, request: u64, argument: usize) -> i32 {
    const FIOASYNC: u64 = 0x5452;
    if request == FIOASYNC {
        process::leave_to_tcp(fd);
    }
    // SAFETY: the caller's arguments.
    let result = unsafe { next::ioctl()(fd, request, argument) };
    if request == libc::FIONBIO {
        options_changed(fd);
    }
    if result == 0
        && let Some(connection) = using(fd)
    {
        if request == u64::from(kernel::SIOCATMARK) && connection.end().unread() > 0 && argument != 0 {
            // What is in the ring comes before the mark.
            // SAFETY: the kernel has just written an int there.
            unsafe { *(argument as *mut i32) = 0 };
        }
        let more = match request {
            libc::FIONREAD => connection.end().unread(),
            libc::TIOCOUTQ => connection.end().unsent(),
            _ => 0,
        };
        if more > 0 && argument != 0 {
            // SAFETY: the kernel has just written an int there.
            unsafe { *(argument as *mut i32) += more as i32 };
        }
    }
    result
}

/// sockatmark(3), which in the C library is a call of ioctl(2) that does not come by here.
#[unsafe(no_mangle)]
unsafe extern "C" fn sockatmark(fd: i32) -> i32 {
    let mut mark = 0i32;
    let at = (&raw mut mark).expose_provenance();
    let request = u64::from(kernel::SIOCATMARK);
    let result = match table::tag(fd) {
        // SAFETY: the kernel writes an int, to a live local.
        Tag::Unknown => unsafe { next::ioctl()(fd, request, at) },
        // SAFETY: as before.
        _ => unsafe { ioctl_known(fd, request, at) },
    };
    if result == 0 { mark } else { result }
}

unsafe extern "C" fn setsockopt_known(fd: i32, level: i32, name: i32, value: *const c_void, len: u32) -> i32 {
    const TCP_REPAIR: i32 = 19;
    const TCP_ULP: i32 = 31;
    const SO_PEEK_OFF: i32 = 42;
    const SO_ZEROCOPY: i32 = 60;
    let changes = match level {
        libc::SOL_SOCKET => [libc::SO_RCVLOWAT, SO_PEEK_OFF, SO_ZEROCOPY].contains(&name),
        libc::IPPROTO_TCP => [TCP_REPAIR, TCP_ULP].contains(&name),
        _ => false,
    };
    if changes {
        process::leave_to_tcp(fd);
    }
    // SAFETY: the caller's arguments.
    let result = unsafe { next::setsockopt()(fd, level, name, value, len) };
    options_changed(fd);
    result
}

unsafe extern "C" fn getsockopt_known(fd: i32, level: i32, name: i32, value: *mut c_void, len: *mut u32) -> i32 {
    // SAFETY: the caller's arguments.
    let result = unsafe { next::getsockopt()(fd, level, name, value, len) };
    // The kernel's socket tells an error once, and may have told it to this library.
    if result == 0 && (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
        // SAFETY: the kernel has written as many bytes there as it says.
        let told = unsafe { (*len as usize >= size_of::<i32>()).then(|| value.cast::<i32>().read_unaligned()) };
        if told == Some(0)
            && let Some(error) = work::connection(fd).and_then(|connection| connection.held().own.take_error())
        {
            // SAFETY: as above.
            unsafe { value.cast::<i32>().write_unaligned(error.0) };
        }
    }
    result
}

points! {
    close close close_known;
    __close close close_known;
}

entries! {
    shutdown shutdown shutdown_known;
    dup dup dup_known;
    fcntl fcntl fcntl_known;
    fcntl64 fcntl fcntl_known;
    __fcntl fcntl fcntl_known;
    ioctl ioctl ioctl_known;
    setsockopt setsockopt setsockopt_known;
    getsockopt getsockopt getsockopt_known;
}
