//! How connections begin: socket(2), bind(2), listen(2), connect(2), accept(2), and the rules that decide for them.

use std::ffi::c_void;
use std::net::SocketAddr;

use sock::rules::{Decision, Family, Role};
use sock::status::State;

use crate::cancel::{point_at, points_always};
use crate::descriptors::{forget, tell};
use crate::kernel::{self, borrow};
use crate::next::{self, AGAIN, entries, entries_before, fail};
use crate::table::{self, Tag};
use crate::{epoll, log, meet, process, rules, sdp, status};

/// AF_INET_SDP of libsdp, for programs that ask.
const AF_INET_SDP: i32 = 27;

fn is_tcp(fd: i32) -> bool {
    kernel::option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
}

/// Begins to count the messages of a new connection, if it may leave TCP.
fn track(fd: i32, family: Family) {
    forget(fd);
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

unsafe extern "C" fn connect_any(fd: i32, address: *const c_void, len: u32) -> i32 {
    let tag = table::tag(fd);
    if tag != Tag::Unknown && tag != Tag::Asked {
        // AF_UNSPEC dissolves a connection; anything else fails, or asks how connecting goes.
        // SAFETY: the kernel reads as much.
        let family = if len >= 2 && !address.is_null() { unsafe { *address.cast::<u16>() } } else { 0 };
        if i32::from(family) == libc::AF_UNSPEC {
            process::leave_to_tcp(fd);
        }
        // SAFETY: the caller's arguments.
        return unsafe { point_at!(connect, fd, address, len) as i32 };
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
        && !prepare(fd, to, decision.family)
    {
        rules::tell(Role::Client, to, decision);
        let what = "refused, for it must use shared memory, and nobody listens there who can";
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

/// Before a client connects. False: it must use memory, and cannot.
fn prepare(fd: i32, to: SocketAddr, family: Family) -> bool {
    let error = next::errno();
    let may_connect = match family {
        Family::Tcp => true,
        Family::Sdp => sdp::announce(fd, to),
        Family::Both => {
            if sdp::asks_for_announcement(to.port()) {
                sdp::announce(fd, to);
            }
            true
        }
    };
    next::set_errno(error);
    may_connect
}

/// The length of the address's place, which has to be there again if accept(2) is called again.
unsafe extern "C" fn place_len(listener: i32, _address: *const c_void, len: *const u32) -> u32 {
    // SAFETY: the caller's promise of accept(2): null, or a length.
    if sdp::may_refuse(listener) { unsafe { len.as_ref() }.copied().unwrap_or(0) } else { 0 }
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
        if family == Family::Sdp && !sdp::is_announced(listener, (local, remote)) {
            let what = "refused, for it must use shared memory, and its client cannot";
            log::say(log::CONNECTION, format_args!("{local} with {remote} {what}"));
            let _ = rustix::net::sockopt::set_socket_linger(borrow(fd), Some(std::time::Duration::ZERO));
            // SAFETY: a connection that the program does not know of.
            unsafe { rustix::io::close(fd) };
            return AGAIN;
        }
    }
    track(fd, family);
    next::set_errno(error);
    fd
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
