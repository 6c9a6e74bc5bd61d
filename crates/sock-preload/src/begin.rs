//! How connections begin: socket(2), bind(2), listen(2), connect(2), accept(2), and the rules that decide for them.

use std::cell::Cell;
use std::ffi::c_void;
use std::net::SocketAddr;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use sock::rules::{Decision, Family, Role};
use sock::status::State;

use crate::cancel::{point_at, points_always};
use crate::descriptors::{forget, tell};
use crate::kernel::{self, borrow};
use crate::next::{self, AGAIN, NO_LENGTH, entries, entries_before, fail};
use crate::sdp::Announced;
use crate::table::{self, Tag};
use crate::{epoll, log, meet, process, rules, sdp, status};

/// AF_INET_SDP of libsdp, for programs that ask.
const AF_INET_SDP: i32 = 27;

fn is_tcp(fd: i32) -> bool {
    kernel::option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
}

/// Begins to count the messages of a new connection, if it may leave TCP.
fn track(fd: i32, family: Family) {
    let is_asked = table::is_asked(fd);
    forget(fd);
    table::set_asked(fd, is_asked);
    status::start();
    if family == Family::Tcp {
        status::set(fd, Some(State::Rule), 0);
        tell(fd, State::Rule);
        return;
    }
    table::reset_inside(fd);
    epoll::reset(fd);
    status::set(fd, Some(State::Young), 0);
    table::set_tag(fd, Tag::Fresh(0));
}

/// AF_INET_SDP as the kernel's own module took it: streams, of protocol 0 or TCP.
#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: i32, kind: i32, protocol: i32) -> i32 {
    let is_asked = domain == AF_INET_SDP;
    if is_asked && kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) != libc::SOCK_STREAM {
        return fail(libc::ESOCKTNOSUPPORT) as i32;
    }
    if is_asked && protocol != 0 && protocol != libc::IPPROTO_TCP {
        return fail(libc::EPROTONOSUPPORT) as i32;
    }
    // SAFETY: the caller's arguments.
    let fd = unsafe { next::socket()(if is_asked { libc::AF_INET } else { domain }, kind, protocol) };
    if fd >= 0 && process::is_own() {
        forget(fd);
        if is_asked {
            table::set_asked(fd, true);
            table::set_tag(fd, Tag::Asked);
        }
    }
    fd
}

/// An address of AF_INET_SDP as the kernel knows it. `None`: it is another one.
unsafe fn plain_address(address: *const c_void, len: u32) -> Option<libc::sockaddr_in> {
    if address.is_null() || (len as usize) < size_of::<libc::sockaddr_in>() {
        return None;
    }
    // SAFETY: the caller's promise of bind(2) and connect(2): so many bytes.
    let mut address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
    (i32::from(address.sin_family) == AF_INET_SDP).then(|| {
        address.sin_family = libc::AF_INET as u16;
        address
    })
}

unsafe extern "C" fn bind_known(fd: i32, address: *const c_void, len: u32) -> i32 {
    // SAFETY: the caller's arguments.
    let plain = if table::tag(fd) == Tag::Asked { unsafe { plain_address(address, len) } } else { None };
    match plain {
        // SAFETY: an address that lives until the call returns.
        Some(plain) => unsafe { next::bind()(fd, (&raw const plain).cast(), size_of_val(&plain) as u32) },
        // SAFETY: the caller's arguments.
        None => unsafe { next::bind()(fd, address, len) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn listen(fd: i32, backlog: i32) -> i32 {
    // SAFETY: the caller's arguments.
    let result = unsafe { next::listen()(fd, backlog) };
    if result == 0 && process::is_own() {
        let error = next::errno();
        if !sdp::listens(fd) {
            // It must not accept what cannot be told from a plain client. shutdown(2) ends listening.
            let _ = rustix::net::shutdown(borrow(fd), rustix::net::Shutdown::Both);
            return fail(libc::ENOBUFS) as i32;
        }
        next::set_errno(error);
    }
    result
}

/// A socket is as it was before it was connected.
fn become_new(fd: i32, is_asked: bool) -> Tag {
    table::set_asked(fd, is_asked);
    let tag = if is_asked { Tag::Asked } else { Tag::Unknown };
    table::set_tag(fd, tag);
    tag
}

unsafe extern "C" fn connect_any(fd: i32, address: *const c_void, len: u32) -> i32 {
    let mut tag = table::tag(fd);
    let is_asked = table::is_asked(fd);
    if matches!(tag, Tag::Fresh(_)) && process::is_own() && kernel::is_closed(fd) {
        // An attempt without waiting has failed: this one is as the first.
        forget(fd);
        tag = become_new(fd, is_asked);
    }
    if tag != Tag::Unknown && tag != Tag::Asked {
        // AF_UNSPEC dissolves a connection; anything else fails, or asks how connecting goes.
        // SAFETY: the kernel reads as much.
        let family = if len >= 2 && !address.is_null() { unsafe { *address.cast::<u16>() } } else { 0 };
        let dissolves = i32::from(family) == libc::AF_UNSPEC;
        if dissolves {
            process::leave_to_tcp(fd);
        }
        // SAFETY: the caller's arguments.
        let result = unsafe { point_at!(connect, fd, address, len) as i32 };
        if dissolves && result == 0 && process::is_own() {
            // What it connects to next is another connection.
            let error = next::errno();
            forget(fd);
            become_new(fd, is_asked);
            next::set_errno(error);
        }
        return result;
    }
    // SAFETY: the caller's arguments.
    let plain = if tag == Tag::Asked { unsafe { plain_address(address, len) } } else { None };
    let (address, len) = match &plain {
        Some(plain) => ((&raw const *plain).cast(), size_of_val(plain) as u32),
        None => (address, len),
    };
    // SAFETY: the caller's arguments.
    let to = if address.is_null() { None } else { unsafe { kernel::ip_address(address, len) } };
    let to = to.filter(|_| process::is_own() && is_tcp(fd));
    let decided = to.map(|to| (to, decide(Role::Client, to, tag == Tag::Asked)));
    if let Some((to, decision)) = decided
        && let Err(why) = prepare(fd, to, decision.family)
    {
        rules::tell(Role::Client, to, decision);
        let what = format_args!("refused, for it must use shared memory, and {why}");
        log::say(log::CONNECTION, format_args!("connection to {to} {what}"));
        return fail(libc::ECONNREFUSED) as i32;
    }
    // SAFETY: the caller's arguments, or the address above.
    let result = unsafe { point_at!(connect, fd, address, len) as i32 };
    let error = next::errno();
    if result == 0 || error == libc::EINPROGRESS {
        match decided {
            Some((to, decision)) => {
                rules::tell(Role::Client, to, decision);
                track(fd, decision.family);
            }
            None => forget(fd),
        }
        next::set_errno(error);
    }
    result
}

fn decide(role: Role, address: SocketAddr, is_asked: bool) -> Decision {
    if is_asked { Decision { family: Family::Sdp, line: None } } else { rules::decide(role, address) }
}

/// Before a client connects. An error: it must use memory, and cannot, and why.
fn prepare(fd: i32, to: SocketAddr, family: Family) -> Result<(), &'static str> {
    let error = next::errno();
    let may_connect = match family {
        Family::Tcp => Ok(()),
        Family::Sdp => match sdp::announce(fd, to) {
            Announced::Told => Ok(()),
            Announced::Nobody => Err("nobody listens there who can"),
            Announced::NoAnswer => Err("the kernel does not say who listens (NETLINK_SOCK_DIAG)"),
        },
        Family::Both => {
            if sdp::asks_for_announcement(to.port()) {
                sdp::announce(fd, to);
            }
            Ok(())
        }
    };
    next::set_errno(error);
    may_connect
}

thread_local! {
    /// When this thread's last accept(2) began. Initialized statically and without a destructor.
    static BEGAN: Cell<u64> = const { Cell::new(0) };
}

/// Before accept(2): the length of the address's place, if it has to be there again when accept(2) is called again.
unsafe extern "C" fn place_len(listener: i32, address: *const c_void, len: *const u32) -> i64 {
    sdp::waits(listener, false);
    if !rules::any() && !sdp::is_asked(listener) {
        return NO_LENGTH;
    }
    BEGAN.set(kernel::now());
    // accept(2): without an address, nobody looks at the length.
    // SAFETY: the caller's promise of accept(2): null, or a length.
    if address.is_null() { NO_LENGTH } else { unsafe { len.as_ref() }.map_or(NO_LENGTH, |len| i64::from(*len)) }
}

unsafe extern "C" fn accepted(fd: i32, listener: i32) -> i32 {
    if fd < 0 {
        return fd;
    }
    let error = next::errno();
    forget(fd);
    if !is_tcp(fd) || !process::is_own() {
        return fd;
    }
    sdp::accepted(listener);
    let mut family = Family::Both;
    if (rules::any() || sdp::is_asked(listener))
        && let Some((local, remote)) = meet::both_addresses(fd)
    {
        let decision = decide(Role::Server, local, sdp::is_asked(listener));
        rules::tell(Role::Server, local, decision);
        family = decision.family;
        let announced =
            if family == Family::Sdp { sdp::is_announced(listener, (local, remote)) } else { Announced::Told };
        if announced != Announced::Told {
            let why = match announced {
                Announced::NoAnswer => "the kernel does not say who connects (NETLINK_SOCK_DIAG)",
                _ => "its client cannot",
            };
            let what = format_args!("refused, for it must use shared memory, and {why}");
            log::say(log::CONNECTION, format_args!("{local} with {remote} {what}"));
            let _ = rustix::net::sockopt::set_socket_linger(borrow(fd), Some(std::time::Duration::ZERO));
            // SAFETY: a connection that the program does not know of.
            unsafe { rustix::io::close(fd) };
            return refused(listener);
        }
    }
    track(fd, family);
    next::set_errno(error);
    fd
}

/// Behind a connection that was refused: what accept(2) does if there is no other one.
fn refused(listener: i32) -> i32 {
    let flags = rustix::fs::fcntl_getfl(borrow(listener)).unwrap_or(OFlags::empty());
    if flags.contains(OFlags::NONBLOCK) || kernel::look(listener, libc::POLLIN) != 0 {
        return AGAIN;
    }
    if sdp::is_polled(listener) {
        // poll(2) may have told of this connection, and the program does not expect to wait. The error is that of a
        // connection which its client has ended before accept(2) (accept(2)).
        return fail(libc::ECONNABORTED) as i32;
    }
    let Some(most) = kernel::timeout(listener, libc::SO_RCVTIMEO) else { return AGAIN };
    // socket(7): the time is that of the whole call.
    let left = (BEGAN.get() + most).saturating_sub(kernel::now());
    let fd = borrow(listener);
    let mut asked = [PollFd::new(&fd, PollFlags::IN)];
    let left = Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 };
    match rustix::event::poll(&mut asked, Some(&left)) {
        Ok(0) => fail(libc::EAGAIN) as i32,
        Ok(_) => AGAIN,
        Err(error) => fail(error.raw_os_error()) as i32,
    }
}

entries_before! {
    accept accept place_len, accepted;
    accept4 accept4 place_len, accepted;
}

entries! {
    bind bind bind_known;
}

points_always! {
    connect connect_any;
    __connect connect_any;
}
