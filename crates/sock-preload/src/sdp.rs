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
//! * Whoever likes may connect to a name, and fill it (listen(2), the backlog). A client that finds it full asks the
//!   kernel whose it is, and keeps its own end bound; the server, if its name was full lately, looks for such an end.
//! * A client whose rule is `both` needs not announce itself to most servers. Those that ask for it bind a *gate*, too:
//!   a name with the port alone, which costs others one refused call.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType};

use crate::kernel::{self, borrow};
use crate::table::{self, Tag};
use crate::work::locked;
use crate::{descriptors, diag, log, meet, next, process, rules};

/// Sockets of a process that can be found.
const LISTENERS: usize = 256;
/// Names that a socket may have, one after the other: somebody else may have the first ones.
const NAMES: u32 = 4;
/// Gates that a port may have: sockets of different processes may have one port number, at different addresses, and the
/// one with the first gate may end before the others.
const GATES: u32 = 2;
const CLIENT: &str = "softrnic-client-";
/// Clients that may have announced themselves and are not accepted yet.
const ANNOUNCED: usize = 4095;
/// Clients' ends that are kept because a name was full.
const KEPT: usize = 64;
/// So many clients that come to a name at once may have filled it: the backlog may be as short as this
/// (net.core.somaxconn, listen(2)).
const CROWD: usize = 4;
/// How long a client that has found a name full may take to come to the server, in nanoseconds.
const CROWDED: u64 = 60_000_000_000;
/// After so many accepted connections, what nobody asks for is thrown away.
const MANY: u32 = 64;

/// The clients that have announced themselves: in memory that all processes with the socket share.
#[repr(C)]
struct List {
    lock: AtomicU32,
    next: AtomicU32,
    /// When the name may have been full, in nanoseconds; 0: never.
    crowded: AtomicU64,
    cookies: [AtomicU64; ANNOUNCED],
}

/// A socket that listens.
struct Listener {
    /// 0: free; else how many descriptors of this process it has.
    holders: AtomicU32,
    /// SO_COOKIE.
    cookie: AtomicU64,
    /// The user whose name it is.
    user: AtomicU32,
    /// 1: this very process has waited for its connections, or has put it into an epoll set.
    has_waited: AtomicU32,
    /// 1: it was in a poll, or put into an epoll set.
    polled: AtomicU32,
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
    announced: AtomicPtr<List>,
}

static ALL: [Listener; LISTENERS] = [const {
    Listener {
        holders: AtomicU32::new(0),
        cookie: AtomicU64::new(0),
        user: AtomicU32::new(0),
        has_waited: AtomicU32::new(0),
        polled: AtomicU32::new(0),
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

fn gate(port: u16, number: u32) -> Option<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(format!("softrnic-sdp-{port}-{number}").as_bytes()).ok()
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

static LOCK: AtomicU32 = AtomicU32::new(0);

/// In the child of fork(2): the lock's holder has not come along, and the child may never accept.
pub fn in_child() {
    LOCK.store(0, Ordering::SeqCst);
    ALL.iter().for_each(|one| one.has_waited.store(0, Ordering::Relaxed));
}

/// A socket listens now: makes it known. False: its rule is `sdp`, and that is impossible.
pub fn listens(fd: i32) -> bool {
    if of(fd).is_some() {
        return true;
    }
    let Some(address) = own_address(fd) else { return true };
    let is_asked = table::is_asked(fd);
    let rules = rules::of_listener(address);
    let must = is_asked || rules.may_refuse;
    if !must && !rules.may_move {
        return true;
    }
    let make = || if of(fd).is_some() { Some(()) } else { make_known(fd, address, is_asked, must) };
    locked(&LOCK, || {}, make).is_some() || !must
}

fn make_known(fd: i32, address: SocketAddr, is_asked: bool, must: bool) -> Option<()> {
    let cookie = kernel::cookie(fd);
    // A copy of the descriptor may have been made before the socket listened.
    let is_it = |one: &Listener| one.holders.load(Ordering::SeqCst) > 0 && one.cookie.load(Ordering::Relaxed) == cookie;
    if let Some(number) = ALL.iter().position(is_it) {
        copied(number, fd);
        return Some(());
    }
    if must && !diag::says(address) {
        let what = "cannot listen for shared memory: the kernel does not say who connects (NETLINK_SOCK_DIAG)";
        log::say(log::ERROR, format_args!("{address} {what}"));
        return None;
    }
    let socket = meet::unix_socket()?;
    let is_bound = |number| name(cookie, number).is_some_and(|name| rustix::net::bind(&socket, &name).is_ok());
    (0..NAMES).find(|number| is_bound(*number))?;
    let user = rustix::process::geteuid().as_raw();
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
    one.cookie.store(cookie, Ordering::Relaxed);
    one.user.store(user, Ordering::Relaxed);
    one.has_waited.store(0, Ordering::Relaxed);
    one.polled.store(0, Ordering::Relaxed);
    one.gate.store(-1, Ordering::Relaxed);
    one.port.store(u32::from(address.port()), Ordering::Relaxed);
    one.is_asked.store(u32::from(is_asked), Ordering::Relaxed);
    one.accepted.store(0, Ordering::Relaxed);
    one.refuses.store(u32::from(must), Ordering::Relaxed);
    one.open_gate();
    table::set_tag(fd, Tag::Listener(number));
    Some(())
}

/// Whether a socket waits for connections.
fn is_listening(fd: i32) -> bool {
    kernel::option(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Some(1)
}

/// When the program begins: finds the sockets that listen already. They are made known when the program waits for their
/// connections: until then they may be meant for another program.
pub fn inherit() {
    let folder = std::fs::read_dir("/proc/self/fd");
    let named = folder.into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let found: Vec<i32> = named.collect();
    for fd in found {
        if is_listening(fd) && own_address(fd).is_some() {
            table::set_tag(fd, Tag::Inherited);
        }
    }
}

/// Before fork(2): children share what is known of a socket, and each of them may wait at it.
pub fn before_fork() {
    for fd in table::all().filter(|fd| table::tag(*fd) == Tag::Inherited && process::is_own()) {
        make_sure(fd);
    }
}

/// Makes a socket known if it listens. What cannot be known is not asked for each time: connections of it are refused
/// as they come.
fn make_sure(fd: i32) {
    if own_address(fd).is_some() && is_listening(fd) {
        listens(fd);
    }
    table::change_tag(fd, Tag::Inherited, Tag::Unknown);
}

/// Before the program waits for connections of a socket, maybe by poll(2), select(2) or epoll(7).
pub fn waits(fd: i32, by_poll: bool) {
    let tag = table::tag(fd);
    // A poll costs as little as it can: what may have changed since is looked at by accept(2), too.
    let is_known = |one: &Listener| [&one.polled, &one.has_waited].iter().all(|word| word.load(Ordering::Relaxed) != 0);
    if by_poll && of(fd).is_some_and(is_known)
        || !matches!(tag, Tag::Listener(_) | Tag::Inherited | Tag::Asked | Tag::Unknown)
        || !process::is_own()
    {
        return;
    }
    let error = next::errno();
    if !matches!(tag, Tag::Listener(_)) {
        make_sure(fd);
    }
    if let Some(one) = of(fd) {
        one.has_waited.store(1, Ordering::Relaxed);
        if by_poll {
            one.polled.store(1, Ordering::Relaxed);
        }
        one.follow_user();
        one.open_gate();
    }
    next::set_errno(error);
}

/// Whether a poll or an epoll set may have told of a connection that is refused.
pub fn is_polled(fd: i32) -> bool {
    of(fd).is_some_and(|one| one.polled.load(Ordering::Relaxed) != 0)
}

/// The process has another user from now on. The names that others wait at stay as they are: a child that gives its
/// privileges up has its parent's sockets, too.
fn user_changed() {
    if process::is_own() {
        let error = next::errno();
        let is_own = |one: &&Listener| one.has_waited.load(Ordering::Relaxed) != 0;
        let all = ALL.iter().filter(|one| one.holders.load(Ordering::SeqCst) > 0).filter(is_own);
        all.for_each(Listener::follow_user);
        next::set_errno(error);
    }
}

macro_rules! users {
    ($($name:ident ($($user:ident),*);)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($user: u32),*) -> i32 {
            // SAFETY: the caller's arguments.
            let result = unsafe { next::$name()($($user),*) };
            if result == 0 {
                user_changed();
            }
            result
        }
    )* };
}

users! {
    setuid(user);
    seteuid(user);
    setreuid(real, effective);
    setresuid(real, effective, saved);
}

fn announced() -> Option<*mut List> {
    let (all, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping at an address of the kernel's choice; it replaces nothing.
    let memory = unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), size_of::<List>(), all, shared) };
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
        let had_gate = one.gate.load(Ordering::Relaxed) >= 0;
        descriptors::close_own(&one.name);
        descriptors::close_own(&one.gate);
        one.holders.store(0, Ordering::SeqCst);
        let port = one.port.load(Ordering::Relaxed);
        // Another socket of the port has no gate, perhaps, because this one had it.
        let is_other = |one: &&Listener| one.port.load(Ordering::Relaxed) == port;
        let others = ALL.iter().filter(|one| had_gate && one.holders.load(Ordering::SeqCst) > 0);
        others.filter(is_other).for_each(Listener::open_gate);
    } else {
        one.holders.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A descriptor of the library's has a new number.
pub fn replace(fd: i32, new: impl FnOnce() -> Option<i32>) -> bool {
    let places = ALL.iter().flat_map(|one| [&one.name, &one.gate]).chain(ENDS.iter().map(|kept| &kept.end));
    let mut places = places.into_iter();
    let Some(place) = places.find(|place| place.load(Ordering::Relaxed) == fd) else { return false };
    if let Some(new) = new() {
        place.store(new, Ordering::SeqCst);
    }
    true
}

impl Listener {
    /// The name's credentials are those of its last listen(2) (unix(7), SO_PEERCRED): clients compare them.
    fn follow_user(&self) {
        let user = rustix::process::geteuid().as_raw();
        let name = self.name.load(Ordering::Relaxed);
        if self.user.load(Ordering::Relaxed) != user && name >= 0 && rustix::net::listen(borrow(name), i32::MAX).is_ok()
        {
            self.user.store(user, Ordering::Relaxed);
        }
    }

    /// Says to clients whose rule is `both` that they have to announce themselves. Another socket of the port, or
    /// somebody who wants no such thing, may have the name now: it is tried again with each connection.
    fn open_gate(&self) {
        if self.refuses.load(Ordering::Relaxed) == 0 || self.gate.load(Ordering::Relaxed) >= 0 {
            return;
        }
        let port = self.port.load(Ordering::Relaxed) as u16;
        let Some(socket) = datagrams() else { return };
        let is_bound = |number| gate(port, number).is_some_and(|name| rustix::net::bind(&socket, &name).is_ok());
        if (0..GATES).any(is_bound)
            && let Some(gate) = meet::out_of_the_way(socket)
        {
            self.gate.store(gate, Ordering::SeqCst);
        }
    }

    /// Takes what clients have announced. True: the name may have been full.
    fn take(&self, mut each: impl FnMut(u64)) -> bool {
        let (mut count, mut strangers) = (0, 0);
        for _ in 0..=ANNOUNCED {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(client) = rustix::net::accept_with(borrow(self.name.load(Ordering::Relaxed)), flags) else { break };
            // The name came with the connection, and stays when the client has closed it.
            let cookie = rustix::net::getpeername(&client).ok().flatten().and_then(|name| announced_by(&name));
            count += 1;
            match cookie.filter(|_| meet::process_of_this_user(client.as_fd()).is_some()) {
                Some(cookie) => each(cookie),
                None => strangers += 1,
            }
        }
        strangers > 0 || count >= CROWD
    }

    /// Whether a client has announced itself. It is forgotten.
    fn has_announced(&self, cookie: u64) -> bool {
        // SAFETY: null, or a mapping of `announced`, of zeroes and atomics, which is never given back.
        let Some(all) = (unsafe { self.announced.load(Ordering::Relaxed).as_ref() }) else { return false };
        locked(
            &all.lock,
            || {},
            || {
                let is_crowded = self.take(|cookie| {
                    let at = all.next.fetch_add(1, Ordering::Relaxed) as usize % ANNOUNCED;
                    all.cookies[at].store(cookie, Ordering::Relaxed);
                });
                if is_crowded {
                    all.crowded.store(kernel::now(), Ordering::Relaxed);
                }
                let is_it = |one: &&AtomicU64| one.load(Ordering::Relaxed) == cookie;
                let crowded = all.crowded.load(Ordering::Relaxed);
                all.cookies.iter().find(is_it).map(|one| one.store(0, Ordering::Relaxed)).is_some()
                    || crowded > 0 && kernel::now().saturating_sub(crowded) < CROWDED && has_kept(cookie)
            },
        )
    }
}

/// Whether a socket that listens is of AF_INET_SDP.
pub fn is_asked(listener: i32) -> bool {
    table::is_asked(listener) || of(listener).is_some_and(|one| one.is_asked.load(Ordering::Relaxed) != 0)
}

/// A connection was accepted, whatever its rule.
pub fn accepted(listener: i32) {
    if let Some(one) = of(listener)
        && one.refuses.load(Ordering::Relaxed) == 0
        && one.accepted.fetch_add(1, Ordering::Relaxed) % MANY == MANY - 1
    {
        let _ = one.take(|_| {});
    }
}

/// Whether the other end of an accepted connection has announced itself: it has the library, and rules that let it
/// move.
pub fn is_announced(listener: i32, (local, remote): (SocketAddr, SocketAddr)) -> Announced {
    let Some(one) = of(listener) else { return Announced::Nobody };
    let Some(client) = diag::socket(remote, local) else { return Announced::NoAnswer };
    match client.filter(|found| !found.listens) {
        Some(client) if one.has_announced(client.cookie) => Announced::Told,
        _ => Announced::Nobody,
    }
}

/// Whether a server at this port may refuse those who do not announce themselves.
pub fn asks_for_announcement(port: u16) -> bool {
    let error = next::errno();
    // Any user may have the name: a client that announces itself in vain has lost some microseconds.
    let asks = datagrams().is_none_or(|socket| {
        let connect = |number| Some(rustix::net::connect(&socket, &gate(port, number)?));
        (0..GATES).any(|number| connect(number) != Some(Err(rustix::io::Errno::CONNREFUSED)))
    });
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

/// Whether a socket of this user has this name.
fn is_of_this_user(name: &SocketAddrUnix) -> bool {
    name.abstract_name().and_then(diag::maker) == Some(rustix::process::geteuid().as_raw())
}

/// Whether a client of this user keeps its end.
fn has_kept(cookie: u64) -> bool {
    (0..NAMES).filter_map(|number| client_name(cookie, number)).any(|name| is_of_this_user(&name))
}

/// A client's end that is there as long as the connection, for its server may look for it.
struct Kept {
    /// The connection's descriptor, and SO_COOKIE; 0: free.
    fd: AtomicI32,
    cookie: AtomicU64,
    end: AtomicI32,
}

static ENDS: [Kept; KEPT] =
    [const { Kept { fd: AtomicI32::new(-1), cookie: AtomicU64::new(0), end: AtomicI32::new(-1) } }; KEPT];

/// Keeps a client's end. False: too many are kept.
fn keep(fd: i32, end: std::os::fd::OwnedFd) -> bool {
    let keep = || {
        for kept in &ENDS {
            let cookie = kept.cookie.load(Ordering::Relaxed);
            if cookie != 0 && kernel::cookie(kept.fd.load(Ordering::Relaxed)) != cookie {
                descriptors::close_own(&kept.end);
                kept.cookie.store(0, Ordering::Relaxed);
            }
        }
        let free = ENDS.iter().find(|kept| kept.cookie.load(Ordering::Relaxed) == 0);
        free.zip(meet::out_of_the_way(end)).map(|(kept, end)| {
            kept.fd.store(fd, Ordering::Relaxed);
            kept.end.store(end, Ordering::Relaxed);
            kept.cookie.store(kernel::cookie(fd), Ordering::Relaxed);
        })
    };
    locked(&LOCK, || {}, keep).is_some()
}

/// What became of an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced {
    /// Somebody listens there who has the library, and rules that let the connection move.
    Told,
    /// Nobody does.
    Nobody,
    /// The kernel does not tell who listens.
    NoAnswer,
}

/// Before a client connects: announces its socket to all those that listen there.
pub fn announce(fd: i32, address: SocketAddr) -> Announced {
    let address = match address.ip() {
        // ip(7), ipv6(7): connecting to no address means this machine.
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port()),
        IpAddr::V6(ip) if ip.is_unspecified() => SocketAddr::new(Ipv6Addr::LOCALHOST.into(), address.port()),
        IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some() => sock::hello::canonical(address),
        // The scope of an address of IPv6 stays: without it one of a link is nobody's.
        _ => address,
    };
    if !is_here(address) {
        return Announced::Nobody;
    }
    let own = kernel::cookie(fd);
    let has_kept = Cell::new(false);
    let keep_once = |end| has_kept.get() || keep(fd, end) && !has_kept.replace(true);
    let tell = |cookie, number| {
        let (socket, name) = (meet::unix_socket()?, name(cookie, number)?);
        let is_bound = |number| client_name(own, number).is_some_and(|name| rustix::net::bind(&socket, &name).is_ok());
        (0..NAMES).find(|number| is_bound(*number))?;
        match rustix::net::connect(&socket, &name) {
            Ok(()) => meet::process_of_this_user(socket.as_fd()).map(drop),
            Err(rustix::io::Errno::AGAIN) => (is_of_this_user(&name) && keep_once(socket)).then_some(()),
            Err(_) => None,
        }
    };
    let mut told = 0;
    // Several processes may have got a socket in different ways, each with a name of its own.
    let asked = diag::listeners(address, |cookie| told += (0..NAMES).filter_map(|number| tell(cookie, number)).count());
    match asked {
        None => Announced::NoAnswer,
        Some(()) if told > 0 => Announced::Told,
        Some(()) => Announced::Nobody,
    }
}
