//! What the rule `sdp` needs: shared memory or nothing. libsdp's `sdp` makes connect(2) fail where the other end has no
//! SDP, and a server that listens by SDP alone gets no connection of TCP.
//!
//! Memory is made later, so both ends are asked for before there is a connection:
//!
//! * A socket that listens, and whose rules are not all `tcp`, has a *name*: an abstract unix socket called by its
//!   SO_COOKIE. A client finds the cookie by the address that it connects to ([`crate::diag`]), and connects there. Who
//!   has bound the name is known by its credentials; names of other users are passed over, and there are several.
//! * The client's own end there is called by the cookie of its socket, and it is there before the client connects by
//!   TCP. A server whose rule is `sdp` finds the cookie of an accepted connection's other end in the kernel, and resets
//!   a connection that was not announced so. Processes that share the socket share the list of what was announced.
//! * A client whose rule is `both` needs not announce itself to most servers. Those that ask for it bind a *gate*, too:
//!   a name with the port alone, which costs others one refused call.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType};

use crate::kernel::{self, borrow};
use crate::table::{self, Tag};
use crate::work::locked;
use crate::{descriptors, diag, meet, next, rules};

/// Sockets of a process that can be found.
const LISTENERS: usize = 256;
/// Names that a socket may have, one after the other: somebody else may have the first ones.
const NAMES: u32 = 4;
const CLIENT: &str = "softrnic-client-";
/// Clients that may have announced themselves and are not accepted yet.
const ANNOUNCED: usize = 4095;
/// After so many accepted connections, what nobody asks for is thrown away.
const MANY: u32 = 64;

/// The clients that have announced themselves: in memory that all processes with the socket share.
#[repr(C)]
struct Announced {
    lock: AtomicU32,
    next: AtomicU32,
    cookies: [AtomicU64; ANNOUNCED],
}

/// A socket that listens.
struct Listener {
    /// 0: free; else how many descriptors of this process it has.
    holders: AtomicU32,
    /// Its name, and its gate; -1.
    name: AtomicI32,
    gate: AtomicI32,
    port: AtomicU32,
    /// 1: of AF_INET_SDP, whatever the rules say.
    is_asked: AtomicU32,
    accepted: AtomicU32,
    /// 1: connections of it may have to be refused.
    refuses: AtomicU32,
    /// Null, or what was announced. It is never given back, for a thread may still look at it: the next socket here
    /// takes it over, and the processes that have it share it from then on.
    announced: AtomicPtr<Announced>,
}

static ALL: [Listener; LISTENERS] = [const {
    Listener {
        holders: AtomicU32::new(0),
        name: AtomicI32::new(-1),
        gate: AtomicI32::new(-1),
        port: AtomicU32::new(0),
        is_asked: AtomicU32::new(0),
        accepted: AtomicU32::new(0),
        refuses: AtomicU32::new(0),
        announced: AtomicPtr::new(core::ptr::null_mut()),
    }
}; LISTENERS];

fn of(fd: i32) -> Option<&'static Listener> {
    match table::tag(fd) {
        Tag::Listener(number) => ALL.get(number),
        _ => None,
    }
}

fn name(cookie: u64, number: u32) -> Option<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("softrnic-listen-{cookie:x}-{number}").as_bytes()).ok()
}

/// The name of a client's end: by the cookie of its socket.
fn client_name(cookie: u64, number: u32) -> Option<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("{CLIENT}{cookie:x}-{number}").as_bytes()).ok()
}

/// The cookie in such a name.
fn announced_by(name: &SocketAddrAny) -> Option<u64> {
    let name = SocketAddrUnix::try_from(name.clone()).ok()?;
    let text = core::str::from_utf8(name.abstract_name()?).ok()?.strip_prefix(CLIENT)?;
    u64::from_str_radix(text.split('-').next()?, 16).ok()
}

fn gate(port: u16) -> Option<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("softrnic-sdp-{port}").as_bytes()).ok()
}

fn datagrams() -> Option<std::os::fd::OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).ok()
}

/// The local address of a TCP socket.
fn own_address(fd: i32) -> Option<SocketAddr> {
    let is_tcp = kernel::option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP);
    is_tcp.then(|| SocketAddr::try_from(rustix::net::getsockname(borrow(fd)).ok()?).ok()).flatten()
}

/// A socket listens now: makes it known. False: its rule is `sdp`, and that is impossible.
pub fn listens(fd: i32) -> bool {
    if of(fd).is_some() {
        return true;
    }
    let Some(address) = own_address(fd) else { return true };
    let is_asked = table::tag(fd) == Tag::Asked;
    let rules = rules::of_listener(address);
    let must = is_asked || rules.may_refuse;
    if !must && !rules.may_move {
        return true;
    }
    make_known(fd, address.port(), is_asked, must).is_some() || !must
}

fn make_known(fd: i32, port: u16, is_asked: bool, must: bool) -> Option<()> {
    let cookie = kernel::cookie(fd);
    let socket = meet::unix_socket()?;
    let is_bound = |number| name(cookie, number).is_some_and(|name| rustix::net::bind(&socket, &name).is_ok());
    (0..NAMES).find(|number| is_bound(*number))?;
    rustix::net::listen(&socket, i32::MAX).ok()?;
    let claim = |one: &Listener| one.holders.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    let number = ALL.iter().position(claim)?;
    let one = &ALL[number];
    let made = (|| {
        if must && one.announced.load(Ordering::Relaxed).is_null() {
            one.announced.store(announced()?, Ordering::Relaxed);
        }
        meet::out_of_the_way(socket)
    })();
    let Some(name) = made else {
        one.holders.store(0, Ordering::SeqCst);
        return None;
    };
    one.name.store(name, Ordering::Relaxed);
    one.gate.store(-1, Ordering::Relaxed);
    one.port.store(u32::from(port), Ordering::Relaxed);
    one.is_asked.store(u32::from(is_asked), Ordering::Relaxed);
    one.accepted.store(0, Ordering::Relaxed);
    one.refuses.store(u32::from(must), Ordering::Relaxed);
    one.open_gate();
    table::set_tag(fd, Tag::Listener(number));
    Some(())
}

fn announced() -> Option<*mut Announced> {
    let (all, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
    let memory = unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), size_of::<Announced>(), all, shared) };
    memory.ok().map(|memory| memory.cast())
}

/// A descriptor of a socket that listens has been copied.
pub fn copied(number: usize, to: i32) {
    if let Some(one) = ALL.get(number) {
        one.holders.fetch_add(1, Ordering::SeqCst);
        table::set_tag(to, Tag::Listener(number));
    }
}

/// A descriptor of it is closed.
pub fn leave(number: usize) {
    let Some(one) = ALL.get(number) else { return };
    if one.holders.load(Ordering::SeqCst) == 1 {
        descriptors::close_own(&one.name);
        descriptors::close_own(&one.gate);
        one.holders.store(0, Ordering::SeqCst);
    } else {
        one.holders.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A descriptor of the library's has a new number.
pub fn replace(fd: i32, new: impl FnOnce() -> Option<i32>) -> bool {
    let places = ALL.iter().flat_map(|one| [&one.name, &one.gate]);
    let Some(place) = places.into_iter().find(|place| place.load(Ordering::Relaxed) == fd) else { return false };
    if let Some(new) = new() {
        place.store(new, Ordering::SeqCst);
    }
    true
}

impl Listener {
    /// Says to clients whose rule is `both` that they have to announce themselves. Another socket of the port, or
    /// somebody who wants no such thing, may have the name now: it is tried again with each connection.
    fn open_gate(&self) {
        if self.refuses.load(Ordering::Relaxed) == 0 || self.gate.load(Ordering::Relaxed) >= 0 {
            return;
        }
        let port = self.port.load(Ordering::Relaxed) as u16;
        let bound = datagrams().zip(gate(port)).filter(|(socket, name)| rustix::net::bind(socket, name).is_ok());
        if let Some(gate) = bound.and_then(|(socket, _)| meet::out_of_the_way(socket)) {
            self.gate.store(gate, Ordering::SeqCst);
        }
    }

    /// Takes what clients have announced.
    fn take(&self, mut each: impl FnMut(u64)) {
        for _ in 0..=ANNOUNCED {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(client) = rustix::net::accept_with(borrow(self.name.load(Ordering::Relaxed)), flags) else { break };
            // The name came with the connection, and stays when the client has closed it.
            let cookie = rustix::net::getpeername(&client).ok().flatten().and_then(|name| announced_by(&name));
            if let Some(cookie) = cookie.filter(|_| meet::process_of_this_user(client.as_fd()).is_some()) {
                each(cookie);
            }
        }
    }

    /// Whether a client has announced itself. It is forgotten.
    fn has_announced(&self, cookie: u64) -> bool {
        // SAFETY: null, or a mapping of `announced`, of zeroes and atomics, which is never given back.
        let Some(all) = (unsafe { self.announced.load(Ordering::Relaxed).as_ref() }) else { return false };
        locked(
            &all.lock,
            || {},
            || {
                self.take(|cookie| {
                    let at = all.next.fetch_add(1, Ordering::Relaxed) as usize % ANNOUNCED;
                    all.cookies[at].store(cookie, Ordering::Relaxed);
                });
                let is_it = |one: &&AtomicU64| one.load(Ordering::Relaxed) == cookie;
                all.cookies.iter().find(is_it).map(|one| one.store(0, Ordering::Relaxed)).is_some()
            },
        )
    }
}

/// Whether a socket that listens is of AF_INET_SDP.
pub fn is_asked(listener: i32) -> bool {
    of(listener).is_some_and(|one| one.is_asked.load(Ordering::Relaxed) != 0)
}

/// Whether connections of a socket may have to be refused.
pub fn may_refuse(listener: i32) -> bool {
    of(listener).is_some_and(|one| one.refuses.load(Ordering::Relaxed) != 0)
}

/// A connection was accepted, whatever its rule.
pub fn accepted(listener: i32) {
    if table::tag(listener) == Tag::Unknown {
        // It was inherited, or came from another process.
        listens(listener);
    }
    if let Some(one) = of(listener) {
        if one.refuses.load(Ordering::Relaxed) == 0 {
            if one.accepted.fetch_add(1, Ordering::Relaxed) % MANY == MANY - 1 {
                one.take(|_| {});
            }
        } else {
            one.open_gate();
        }
    }
}

/// Whether the other end of an accepted connection has announced itself: it has the library, and rules that let it
/// move.
pub fn is_announced(listener: i32, (local, remote): (SocketAddr, SocketAddr)) -> bool {
    let Some(one) = of(listener) else { return false };
    let client = diag::socket(remote, local).flatten().filter(|found| !found.listens);
    client.is_some_and(|client| one.has_announced(client.cookie))
}

/// Whether a server at this port may refuse those who do not announce themselves.
pub fn asks_for_announcement(port: u16) -> bool {
    let error = next::errno();
    let connect = |socket: std::os::fd::OwnedFd| Some(rustix::net::connect(&socket, &gate(port)?));
    // Any user may have the name: a client that announces itself in vain has lost some microseconds.
    let asks = datagrams().and_then(connect) != Some(Err(rustix::io::Errno::CONNREFUSED));
    next::set_errno(error);
    asks
}

/// Whether an address is one of this machine's, as far as this network namespace has it.
fn is_here(address: SocketAddr) -> bool {
    let any_port = match address {
        SocketAddr::V4(_) => SocketAddr::new(address.ip(), 0),
        SocketAddr::V6(mut address) => {
            address.set_port(0);
            address.into()
        }
    };
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    socket.is_ok_and(|socket| rustix::net::bind(&socket, &any_port).is_ok())
}

/// Before a client connects: announces its socket to the one that listens there. False: nobody listens there who has
/// the library and rules that let the connection move.
pub fn announce(fd: i32, address: SocketAddr) -> bool {
    let address = match address.ip() {
        // ip(7), ipv6(7): connecting to no address means this machine.
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port()),
        IpAddr::V6(ip) if ip.is_unspecified() => SocketAddr::new(Ipv6Addr::LOCALHOST.into(), address.port()),
        _ => sock::hello::canonical(address),
    };
    let Some(there) = is_here(address).then(|| diag::listener(address)).flatten() else { return false };
    let own = kernel::cookie(fd);
    let tell = |number| {
        let (socket, name) = (meet::unix_socket()?, name(there.cookie, number)?);
        let is_bound = |number| client_name(own, number).is_some_and(|name| rustix::net::bind(&socket, &name).is_ok());
        (0..NAMES).find(|number| is_bound(*number))?;
        rustix::net::connect(&socket, &name).ok()?;
        meet::process_of_this_user(socket.as_fd())
    };
    // Several processes may have got the socket in different ways, each with a name of its own.
    (0..NAMES).filter_map(tell).count() > 0
}
