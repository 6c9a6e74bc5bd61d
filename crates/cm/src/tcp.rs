//! The carrier of iWARP's connection manager: TCP sockets, from connect(2) or accept(2) to the end of MPA's start.
//! Then a socket belongs to its queue pair ([`nic::Nic::attach_stream`]). None of these calls waits.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use iwarp::mpa::{Initiator, Responder};
use memory::fds::TrackedFd;
use nic::StreamTap;
use rustix::event::epoll::{self, EventFlags};
use rustix::fd::AsFd;
use rustix::io::Errno as Os;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use verbs::{Errno, Result};

use crate::ids::{IdKey, State};
use crate::links::Token;
use crate::socket::errno;

/// Connection reset by peer; `verbs::Errno` has no name for it.
pub(crate) const ECONNRESET: Errno = Errno(104);

/// The name of a connection that is being made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct TcpKey(pub u32);

/// Connections of one listener that have not sent their whole request.
const MAX_STRANGERS: usize = 4096;
/// Connections that are accepted in one turn.
const TURN: usize = 64;
/// Room for a frame of MPA, and to see that there is more.
const FRAME: usize = 1024;
/// How long TCP may take to connect, in nanoseconds.
const CONNECT_TIME: u64 = 20_000_000_000;

/// The progress of a connection's start.
pub(crate) enum Side {
    /// TCP connects; then this request is sent.
    Connecting(Box<Initiator>),
    /// The reply is awaited.
    Asking(Box<Initiator>),
    /// This listener's request is awaited.
    Waiting(IdKey, Box<Responder>),
    /// The program has the request.
    Asked(Box<Responder>),
}

/// A connection that is being made.
pub(crate) struct Starting {
    pub socket: TrackedFd,
    pub side: Side,
    /// The id; none before the request is whole.
    pub id: Option<IdKey>,
    pub local: SocketAddr,
    pub peer: SocketAddr,
    /// When it is given up.
    until: u64,
    /// For a capture, or faults.
    pub tap: Option<Box<StreamTap>>,
}

/// All connections that are being made, and those that ids have.
#[derive(Default)]
pub(crate) struct Tcp {
    pub starting: HashMap<TcpKey, Starting>,
    last: u32,
    pub timers: BTreeSet<(u64, TcpKey)>,
    /// Ids by the names of their queue pairs' connections.
    pub by_stream: HashMap<u64, IdKey>,
}

/// The result of a read.
pub(crate) enum Read {
    Bytes(usize),
    Nothing,
    Closed(Errno),
}

fn tcp_socket(addr: &SocketAddr) -> Result<rustix::fd::OwnedFd> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None).map_err(errno)
}

/// A socket with this address. `only`: an IPv6 wildcard takes no connections of IPv4. `shared`: connections that were,
/// and wait for their packets' end, do not keep the port. Then another program that asks for the same (SO_REUSEADDR)
/// can take the port, too, until this one listens (socket(7)).
///
/// # Errors
/// EADDRINUSE: a TCP program has the port; as socket(2), bind(2).
pub(crate) fn bind(addr: &SocketAddr, only: bool, shared: bool) -> Result<rustix::fd::OwnedFd> {
    let socket = tcp_socket(addr)?;
    sockopt::set_socket_reuseaddr(&socket, shared).map_err(errno)?;
    if addr.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, only).map_err(errno)?;
    }
    rustix::net::bind(&socket, addr).map_err(errno)?;
    Ok(socket)
}

/// Listen. The connections will not keep the port from a later listener, once they have ended: a socket that was kept
/// for itself shares its port from here on, which no other program can take from a listener.
///
/// # Errors
/// EADDRINUSE: another program listens at the port; as listen(2).
pub(crate) fn listen(socket: &TrackedFd, backlog: i32) -> Result<()> {
    rustix::net::listen(socket, backlog).map_err(errno)?;
    sockopt::set_socket_reuseaddr(socket, true).map_err(errno)
}

/// Begin to connect. The address of this side has the id's port, if TCP has it free.
pub(crate) fn connect(from: &SocketAddr, to: &SocketAddr) -> Result<rustix::fd::OwnedFd> {
    let socket = tcp_socket(to)?;
    sockopt::set_socket_reuseaddr(&socket, true).map_err(errno)?;
    let mut any_port = *from;
    any_port.set_port(0);
    let begin = |at: &SocketAddr| match rustix::net::bind(&socket, at) {
        Ok(()) => match rustix::net::connect(&socket, to) {
            Ok(()) | Err(Os::INPROGRESS) => Ok(()),
            Err(e) => Err(e),
        },
        Err(e) => Err(e),
    };
    match begin(from) {
        Err(Os::ADDRINUSE | Os::ADDRNOTAVAIL) => {}
        result => return result.map(|()| socket).map_err(errno),
    }
    let socket = tcp_socket(to)?;
    rustix::net::bind(&socket, &any_port).map_err(errno)?;
    match rustix::net::connect(&socket, to) {
        Ok(()) | Err(Os::INPROGRESS) => Ok(socket),
        Err(e) => Err(errno(e)),
    }
}

/// Set the options of a connected socket. `timeout`: seconds after which it ends if the peer acknowledges nothing:
/// data, probes of a closed window, or probes of an idle connection (tcp(7), TCP_USER_TIMEOUT and SO_KEEPALIVE).
fn prepare(socket: &TrackedFd, timeout: Option<u32>) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
    let Some(seconds) = timeout else { return };
    let _ = sockopt::set_tcp_user_timeout(socket, seconds.saturating_mul(1000));
    // Some probes fit into the time, whose limits are TCP's.
    let pause = Duration::from_secs(u64::from(seconds / 3).clamp(1, 32_767));
    let _ = sockopt::set_tcp_keepidle(socket, pause);
    let _ = sockopt::set_tcp_keepintvl(socket, pause);
    let _ = sockopt::set_socket_keepalive(socket, true);
}

/// An IPv4 address that came over an IPv6 socket, as what it is.
fn plain(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(v4.into(), v6.port()),
            None => addr,
        },
        SocketAddr::V4(_) => addr,
    }
}

/// The two ends of a connected socket.
fn ends(socket: &TrackedFd) -> Result<(SocketAddr, SocketAddr)> {
    let local = rustix::net::getsockname(socket).and_then(SocketAddr::try_from).map_err(errno)?;
    let peer = rustix::net::getpeername(socket).map_err(errno)?.ok_or(Errno(107))?;
    Ok((plain(local), plain(SocketAddr::try_from(peer).map_err(errno)?)))
}

pub(crate) fn read(socket: &TrackedFd, bytes: &mut [u8; FRAME]) -> Read {
    match rustix::net::recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
        Ok((0, _)) => Read::Closed(ECONNRESET),
        Ok((n, _)) => Read::Bytes(n),
        Err(Os::AGAIN | Os::INTR) => Read::Nothing,
        Err(e) => Read::Closed(errno(e)),
    }
}

/// Room for [`read`].
pub(crate) const fn room() -> [u8; FRAME] {
    [0; FRAME]
}

/// Send a whole frame: a new connection has room for it.
pub(crate) fn send(socket: &TrackedFd, bytes: &[u8]) -> Result<()> {
    match rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(n) if n == bytes.len() => Ok(()),
        Ok(_) => Err(Errno::EIO),
        Err(e) => Err(errno(e)),
    }
}

impl State {
    /// Watch over a connection until its start is done.
    pub(crate) fn add_starting(
        &mut self,
        socket: TrackedFd,
        side: Side,
        id: Option<IdKey>,
        (local, peer): (SocketAddr, SocketAddr),
        until: u64,
    ) -> Result<TcpKey> {
        self.tcp.last = self.tcp.last.wrapping_add(1);
        let key = TcpKey(self.tcp.last);
        // A socket that connects is ready when it can be written.
        let ready = if matches!(side, Side::Connecting(_)) { EventFlags::OUT } else { EventFlags::IN };
        let epoll = self.epoll.as_ref().ok_or(Errno::EIO)?;
        epoll::add(epoll.as_fd(), &socket, Token::Tcp(key).pack(), ready).map_err(errno)?;
        self.tcp.starting.insert(key, Starting { socket, side, id, local, peer, until: u64::MAX, tap: None });
        self.give_up_at(key, until);
        Ok(key)
    }

    pub(crate) fn connect_until(now: u64) -> u64 {
        now + CONNECT_TIME
    }

    pub(crate) fn give_up_at(&mut self, key: TcpKey, until: u64) {
        let Some(starting) = self.tcp.starting.get_mut(&key) else { return };
        let before = std::mem::replace(&mut starting.until, until);
        self.tcp.timers.remove(&(before, key));
        if until != u64::MAX {
            self.tcp.timers.insert((until, key));
            if until < self.sleeps_until {
                self.sleeps_until = until;
                self.wake();
            }
        }
    }

    /// Take a connection out: its start is over, well or not.
    pub(crate) fn take_starting(&mut self, key: TcpKey) -> Option<Starting> {
        let starting = self.tcp.starting.remove(&key)?;
        self.tcp.timers.remove(&(starting.until, key));
        self.unwatch(&starting.socket);
        Some(starting)
    }

    /// Accept connections at a listener's TCP socket. False if they go on waiting, since there are no descriptors, or
    /// no memory.
    #[must_use]
    pub(crate) fn accept_tcp(&mut self, listener: IdKey) -> bool {
        for _ in 0..TURN {
            let socket = self.ids.get(&listener).and_then(|id| id.listener.as_ref()).and_then(|l| l.tcp.as_ref());
            let Some(socket) = socket else { return true };
            let socket = match crate::socket::accept(socket) {
                Ok(socket) => TrackedFd::new(socket, self.fds()),
                Err(Errno::EINTR | Errno(103)) => continue, // the connection is gone already
                Err(Errno::EAGAIN) => return true,
                Err(_) => return false,
            };
            let waits = |s: &&Starting| matches!(s.side, Side::Waiting(id, _) if id == listener);
            if self.tcp.starting.values().filter(waits).count() >= MAX_STRANGERS {
                continue; // closed: a peer that connects that often without a request is not served
            }
            prepare(&socket, self.nic.settings().tcp_timeout);
            let Ok(ends) = ends(&socket) else { continue };
            let now = nic::now();
            let responder = Responder::new(self.wishes_of_responder(), now);
            let until = responder.deadline().unwrap_or(u64::MAX);
            let side = Side::Waiting(listener, Box::new(responder));
            let _ = self.add_starting(socket, side, None, ends, until);
        }
        true
    }

    /// Handle that a connection that is being made is ready.
    pub(crate) fn tcp_event(&mut self, key: TcpKey) {
        let Some(starting) = self.tcp.starting.get_mut(&key) else { return };
        match &mut starting.side {
            Side::Connecting(_) => self.connected(key),
            Side::Asking(_) => self.reply_came(key),
            Side::Waiting(..) => self.request_came(key),
            // The peer has closed, or sent what it must not.
            Side::Asked(_) => {
                if let Read::Closed(_) | Read::Bytes(_) = read(&starting.socket, &mut room()) {
                    self.withdrawn(key);
                }
            }
        }
    }

    /// TCP has connected, or has not.
    fn connected(&mut self, key: TcpKey) {
        let Some(starting) = self.tcp.starting.get_mut(&key) else { return };
        match sockopt::socket_error(&starting.socket) {
            Ok(Ok(())) => {}
            Ok(Err(e)) | Err(e) => return self.start_failed(key, errno(e)),
        }
        prepare(&starting.socket, self.nic.settings().tcp_timeout);
        if let Ok((local, _)) = ends(&starting.socket) {
            starting.local = local;
        }
        let Side::Connecting(initiator) = &mut starting.side else { return };
        starting.tap = self.nic.tap_stream((starting.local, starting.peer), true);
        self.nic.tap_says(&mut starting.tap, initiator.output());
        if let Err(e) = send(&starting.socket, initiator.output()) {
            return self.start_failed(key, e);
        }
        let mut initiator = initiator.clone();
        initiator.sent(initiator.output().len());
        let until = initiator.deadline().unwrap_or(u64::MAX);
        starting.side = Side::Asking(initiator);
        if let Some(epoll) = &self.epoll {
            let _ = epoll::modify(epoll.as_fd(), &starting.socket, Token::Tcp(key).pack(), EventFlags::IN);
        }
        self.give_up_at(key, until);
    }

    /// End the starts whose time is over.
    pub(crate) fn tcp_timeouts(&mut self, now: u64) {
        while let Some(&(at, key)) = self.tcp.timers.first() {
            if at > now {
                return;
            }
            self.tcp.timers.pop_first();
            self.start_failed(key, Errno::ETIMEDOUT);
        }
    }
}
