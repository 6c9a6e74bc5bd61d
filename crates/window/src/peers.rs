//! Claiming blocks, connecting to peers, accepting them, and noticing their deaths.

use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use engine::platform::{LinkId, Nanos};
use memory::apart;
use memory::backing::{Backing, Memfd};
use memory::board::Reader;
use memory::fds::{FdSet, TrackedFd, peer_credentials};
use memory::straight;
use memory::{ForeignSheet, Half};
use rustix::event::{Timespec, epoll};
use rustix::io::IoSliceMut;
use verbs::Errno;

use crate::WindowPlatform;
use crate::link::{Link, Remote, Side, State};
use crate::paths;
use crate::rendezvous::{self, BLOCK_QPNS, BLOCKS, Greeting, Message};
use crate::socket::{self, Received, errno};

/// Links of one process, dead ones that wait to be taken included.
pub(crate) const MAX_LINKS: usize = 8192;
/// Connections that have not said HELLO. Beyond that the oldest is dropped.
const MAX_HALF_OPEN: usize = 64;
/// How long a connection may take to say HELLO.
const HELLO_TIMEOUT: Nanos = 5_000_000_000;
/// How long nobody is let in where there is no descriptor even for turning him away, in nanoseconds.
const CLOSED: Nanos = 100_000_000;
/// How often it is told at most that peers could not come in, in nanoseconds.
const TELL_AGAIN: Nanos = 1_000_000_000;
/// Connections accepted, and messages of one peer read, before others have their turn.
const TURN: usize = 64;
/// Pauses between attempts to connect to a block that nobody answers for.
const RETRY_FIRST: Nanos = 1_000_000;
const RETRY_LAST: Nanos = 50_000_000;

/// How to reach a block.
pub(crate) enum Route {
    Link(LinkId),
    /// It could not be reached: not to be tried again before `at`; the pause after that.
    Retry {
        at: Nanos,
        pause: Nanos,
    },
}

/// A connection that has not said HELLO.
pub(crate) struct HalfOpen {
    serial: u32,
    socket: TrackedFd,
    pid: u32,
    same_user: bool,
    pub deadline: Nanos,
}

/// What an epoll event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Doorbell,
    Listener(u16),
    HalfOpen(u32),
    Socket(LinkId),
    Process(LinkId),
}

impl Token {
    fn pack(self) -> u64 {
        let (kind, value) = match self {
            Token::Doorbell => (0, 0),
            Token::Listener(block) => (1, u32::from(block)),
            Token::HalfOpen(serial) => (2, serial),
            Token::Socket(id) => (3, id.0),
            Token::Process(id) => (4, id.0),
        };
        kind << 32 | u64::from(value)
    }

    fn unpack(raw: u64) -> Option<Token> {
        let value = raw as u32;
        Some(match raw >> 32 {
            0 => Token::Doorbell,
            1 => Token::Listener(value as u16),
            2 => Token::HalfOpen(value),
            3 => Token::Socket(LinkId(value)),
            4 => Token::Process(LinkId(value)),
            _ => return None,
        })
    }
}

pub(crate) fn watch(epoll: &TrackedFd, fd: impl AsFd, token: Token) -> Result<(), Errno> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(token.pack()), epoll::EventFlags::IN).map_err(errno)
}

/// A doorbell and a board.
type Gifts = (Option<OwnedFd>, Option<OwnedFd>);

/// Takes a descriptor out of the epoll instance. Closing it alone would not do if a forked child still has it.
pub(crate) fn unwatch(epoll: &TrackedFd, fd: impl AsFd) {
    let _ = epoll::delete(epoll, fd);
}

/// A descriptor to give up when there are no more, so that a connection can be accepted and closed: otherwise it would
/// keep the epoll instance readable for ever.
pub(crate) fn spare_fd(fds: &Arc<FdSet>) -> Option<TrackedFd> {
    let flags = rustix::event::EventfdFlags::CLOEXEC;
    rustix::event::eventfd(0, flags).ok().map(|fd| TrackedFd::new(fd, fds))
}

/// Nanoseconds of CLOCK_MONOTONIC, for pauses between attempts.
pub(crate) fn monotonic() -> Nanos {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl WindowPlatform {
    /// Claims a block of 4096 QP numbers for this process; gives the first.
    ///
    /// # Errors
    /// `ENOSPC` if all blocks of the host are claimed; else the kernel's errno (`EMFILE`).
    pub fn claim_block(&mut self) -> Result<u32, Errno> {
        let count = u32::from(BLOCKS.end() - BLOCKS.start()) + 1;
        let mut seed = [0; 4];
        self.fill_random(&mut seed);
        let seed = u32::from_ne_bytes(seed);
        for i in 0..count {
            // Every block once: a random start, and a stride that has no factor in common with their number (4094 =
            // 2 * 23 * 89), so that processes which start alike do not meet at every step.
            let block = BLOCKS.start() + ((seed.wrapping_add(i.wrapping_mul(1013)) % count) as u16);
            let listener = match socket::bind(&rendezvous::block_name(block), 4096) {
                Ok(listener) => TrackedFd::new(listener, &self.fds),
                Err(Errno::EADDRINUSE) => continue,
                Err(e) => return Err(e),
            };
            watch(&self.epoll, &listener, Token::Listener(block))?;
            self.own_blocks.push((block, listener));
            // It may have been another's when we last looked.
            self.routes.remove(&block);
            return Ok(u32::from(block) * BLOCK_QPNS);
        }
        Err(Errno::ENOSPC)
    }

    /// The link to the process that has claimed this block.
    pub(crate) fn resolve_block(&mut self, block: u16) -> Option<LinkId> {
        if !BLOCKS.contains(&block) {
            return None;
        }
        if self.own_blocks.iter().any(|(own, _)| *own == block) {
            self.looped = true;
            return Some(LinkId::LOOPBACK);
        }
        let mut pause = RETRY_FIRST;
        match self.routes.get(&block) {
            Some(&Route::Link(id)) if self.is_up(id) => return Some(id),
            Some(&Route::Retry { at, pause: next }) => {
                if monotonic() < at {
                    return None;
                }
                pause = next;
            }
            _ => {}
        }
        let found = self.connect(block);
        if let Err(errno) = found {
            let first = u32::from(block) * BLOCK_QPNS;
            self.tell_obstacle(format_args!("no connection to the process of QP {first:#08x} and following"), errno);
        }
        let route = match found {
            Ok(id) => Route::Link(id),
            Err(_) => Route::Retry { at: monotonic() + pause, pause: (pause * 2).min(RETRY_LAST) },
        };
        self.routes.insert(block, route);
        found.ok()
    }

    /// Says why a connection is not made, if it is for want of something here: the program sees a peer that does not
    /// answer.
    fn tell_obstacle(&self, what: impl Display, errno: Errno) {
        // Nobody is there, or he has too many visitors.
        let peers = [Errno::ECONNREFUSED, Errno::EAGAIN];
        if self.diagnose && !peers.contains(&errno) {
            let why = std::io::Error::from_raw_os_error(errno.0);
            report::say(format_args!("{what}: {why}"));
        }
    }

    /// [`WindowPlatform::tell_obstacle`] where peers decide how often: once in a second.
    fn tell_visitors(&mut self, what: impl Display) {
        let now = monotonic();
        if self.told_at.is_none_or(|at| now.saturating_sub(at) >= TELL_AGAIN) {
            self.told_at = Some(now);
            self.tell_obstacle(what, Errno::EMFILE);
        }
    }

    /// Hears those who come from now on, or nobody for a while: who waits at the door and cannot be let in would
    /// keep the epoll instance readable.
    fn listen(&mut self, open: bool, now: Nanos) {
        let flags = if open { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        for (block, listener) in &self.own_blocks {
            let data = epoll::EventData::new_u64(Token::Listener(*block).pack());
            let _ = epoll::modify(&self.epoll, listener, data, flags);
        }
        self.closed_until = (!open).then_some(now + CLOSED);
    }

    fn is_up(&self, id: LinkId) -> bool {
        self.link(id).is_some_and(|link| link.state == State::Up)
    }

    /// Connects to the process behind a block: makes a window and offers it, or finds that there is a link already.
    fn connect(&mut self, block: u16) -> Result<LinkId, Errno> {
        match self.connect_once(block) {
            Err(Errno::EMFILE | Errno(23)) if self.spare.take().is_some() => {
                // The spare descriptor does for asking who is there, and it may be a process that we have a link to.
                let found = self.connect_once(block);
                self.spare = spare_fd(&self.fds);
                found
            }
            found => found,
        }
    }

    fn connect_once(&mut self, block: u16) -> Result<LinkId, Errno> {
        let socket = TrackedFd::connection(socket::connect(&rendezvous::block_name(block))?, &self.fds, self.uid);
        let (pid, uid) = peer_credentials(&socket)?;
        let same_user = uid == self.uid;
        if !same_user && !self.config.any_user {
            return Err(Errno::EACCES);
        }
        // The kernel's word for who listens, not the peer's: nobody can draw another's packets to himself by naming
        // blocks that are not his.
        if pid != 0 && pid != std::process::id() && same_user {
            let known = self.live.iter().copied().find(|&id| {
                let remote = self.link(id).filter(|l| l.state == State::Up).and_then(|l| l.remote.as_ref());
                remote.is_some_and(|r| r.pid == pid && r.same_user && !r.gone())
            });
            if let Some(id) = known {
                return Ok(id);
            }
        }
        let (window, memfd) = Memfd::create(Half::WINDOW)?;
        self.make_board();
        let hello = Message::Hello(self.greeting(same_user));
        let (fds, count) = self.own_fds(same_user);
        let mut all = vec![memfd.as_fd()];
        all.extend_from_slice(&fds[..count]);
        socket::send(&socket, &hello, &all)?;
        let remote = self.remote(socket, pid, same_user, true);
        self.install(Arc::new(window), Side::Maker, remote)
    }

    /// What a peer gets from us, beside a window: the doorbell and the board, if it is of our user.
    fn own_fds(&self, same_user: bool) -> ([BorrowedFd<'_>; 2], usize) {
        let doorbell = self.doorbell.as_fd();
        match &self.board {
            _ if !same_user => ([doorbell; 2], 0),
            Some(board) => ([doorbell, board.fd.as_fd()], 2),
            None => ([doorbell; 2], 1),
        }
    }

    fn greeting(&self, same_user: bool) -> Greeting {
        Greeting {
            instance: self.instance,
            cookie_addr: self.cookie.as_ptr().expose_provenance() as u64,
            cookie: *self.cookie,
            straight: self.config.straight,
            board: same_user && self.board.is_some(),
        }
    }

    fn remote(&mut self, socket: TrackedFd, pid: u32, same_user: bool, awaits_welcome: bool) -> Remote {
        let pidfd = i32::try_from(pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw)
            .and_then(|pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok())
            .map(|fd| TrackedFd::new(fd, &self.fds));
        Remote {
            socket,
            pid,
            peer: self.peer_number(pid),
            instance: None,
            same_user,
            pidfd,
            doorbell: None,
            awaits_welcome,
            we_permitted: false,
            it_permitted: false,
            favours_window: false,
            board: None,
            arena: None,
            arena_failed: false,
            alive_at: 0,
            ran_at: 0,
        }
    }

    /// The number of the process that the kernel calls `pid` now: that of a living link to it, or a new one.
    fn peer_number(&mut self, pid: u32) -> u64 {
        let known = self.live.iter().find_map(|&id| {
            let remote = self.link(id)?.remote.as_ref()?;
            (pid != 0 && remote.pid == pid && !remote.gone()).then_some(remote.peer)
        });
        known.unwrap_or_else(|| {
            self.next_peer += 1;
            self.next_peer
        })
    }

    fn install(&mut self, window: Arc<dyn Backing>, side: Side, remote: Remote) -> Result<LinkId, Errno> {
        let id = self.add_link(Link::new(window, side, remote)?)?;
        let watched = match self.link(id).and_then(|l| l.remote.as_ref()) {
            Some(remote) => {
                // A process that cannot be watched is noticed by its socket all the same.
                if let Some(pidfd) = &remote.pidfd {
                    let _ = watch(&self.epoll, pidfd, Token::Process(id));
                }
                watch(&self.epoll, &remote.socket, Token::Socket(id))
            }
            None => Ok(()),
        };
        if let Err(e) = watched {
            self.bury(id);
            return Err(e);
        }
        Ok(id)
    }

    // ---- events ----

    pub(crate) fn poll_events(&mut self, now: Nanos) {
        if self.closed_until.is_some_and(|at| at <= now) {
            self.listen(true, now);
        }
        // A few rounds at most, so that a peer that never stops cannot keep us here.
        for _ in 0..4 {
            let mut events =
                [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 64];
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            let n = rustix::event::epoll::wait(&self.epoll, &mut events, Some(&zero)).unwrap_or(0);
            for event in &events[..n] {
                let (data, flags) = (event.data, event.flags);
                match Token::unpack(data.u64()) {
                    Some(Token::Doorbell) => self.drain_doorbell(),
                    Some(Token::Listener(block)) => self.accept(block, now),
                    Some(Token::HalfOpen(serial)) => self.hear_half_open(serial),
                    Some(Token::Socket(id)) => self.hear(id, flags),
                    Some(Token::Process(id)) => self.lose(id),
                    None => {}
                }
            }
            if n < events.len() {
                break;
            }
        }
        let epoll = &self.epoll;
        self.half_open.retain(|half| {
            let keep = half.deadline > now;
            if !keep {
                unwatch(epoll, &half.socket);
            }
            keep
        });
    }

    fn drain_doorbell(&self) {
        let mut count = [0u8; 8];
        // NOWAIT: a peer holds this eventfd too, and could have cleared its O_NONBLOCK.
        let mut into = [IoSliceMut::new(&mut count)];
        let read = rustix::io::preadv2(&self.doorbell, &mut into, u64::MAX, rustix::io::ReadWriteFlags::NOWAIT);
        if matches!(read, Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS | rustix::io::Errno::SPIPE)) {
            let _ = rustix::io::read(&self.doorbell, &mut count);
        }
    }

    /// The peer of this link is gone, or has broken the rules of the socket.
    fn lose(&mut self, id: LinkId) {
        let epoll = &self.epoll;
        let Some(entry) = self.entries.get_mut((id.0 & 0xffff) as usize) else {
            return;
        };
        if entry.id != id {
            return;
        }
        let Some(link) = entry.link.as_deref_mut() else {
            return;
        };
        link.drain();
        if let Some(remote) = &link.remote {
            // Level-triggered: it would be reported for ever.
            unwatch(epoll, &remote.socket);
            if let Some(pidfd) = &remote.pidfd {
                unwatch(epoll, pidfd);
            }
        }
    }

    fn accept(&mut self, block: u16, now: Nanos) {
        for _ in 0..TURN {
            if !apart::has_room() {
                return self.listen(false, now);
            }
            let Some((_, listener)) = self.own_blocks.iter().find(|(own, _)| *own == block) else {
                return;
            };
            match socket::accept(listener) {
                Ok(fd) => {
                    let socket = TrackedFd::connection(fd, &self.fds, self.uid);
                    self.admit(socket, now);
                }
                Err(Errno::EINTR | Errno(103)) => {}
                Err(Errno::EMFILE | Errno(23)) => {
                    // Out of descriptors: with the spare one, turn the connection away. Its maker tries again later.
                    self.tell_visitors("a peer's connection was turned away");
                    self.spare = None;
                    let listener = self.own_blocks.iter().find(|(own, _)| *own == block);
                    let found = listener.and_then(|(_, listener)| socket::accept(listener).ok());
                    let turned_away = found.map(|fd| TrackedFd::connection(fd, &self.fds, self.uid)).is_some();
                    self.spare = spare_fd(&self.fds);
                    if !turned_away {
                        // The limit was lowered: the spare one does not count either.
                        self.listen(false, now);
                    }
                    return;
                }
                Err(Errno::EAGAIN) => return,
                // Whatever is missing: who is at the door stays there, and would be looked at again at once.
                Err(_) => return self.listen(false, now),
            }
        }
    }

    /// A new connection: HELLO is usually there already.
    fn admit(&mut self, socket: TrackedFd, now: Nanos) {
        let Ok((pid, uid)) = peer_credentials(&socket) else {
            return;
        };
        let same_user = uid == self.uid;
        if !same_user && !self.config.any_user {
            return;
        }
        match socket::receive(&socket) {
            Received::Message(Message::Hello(hello), fds) => self.welcome(socket, pid, same_user, &hello, fds),
            Received::Nothing => {
                if self.half_open.len() >= MAX_HALF_OPEN {
                    let oldest = self.half_open.remove(0);
                    unwatch(&self.epoll, &oldest.socket);
                }
                self.next_serial = self.next_serial.wrapping_add(1);
                let serial = self.next_serial;
                if watch(&self.epoll, &socket, Token::HalfOpen(serial)).is_ok() {
                    let deadline = now.saturating_add(HELLO_TIMEOUT);
                    self.half_open.push(HalfOpen { serial, socket, pid, same_user, deadline });
                }
            }
            Received::Cut(_) => self.tell_visitors("a peer's descriptors could not be taken"),
            _ => {}
        }
    }

    fn hear_half_open(&mut self, serial: u32) {
        let Some(index) = self.half_open.iter().position(|half| half.serial == serial) else {
            return;
        };
        match socket::receive(&self.half_open[index].socket) {
            Received::Nothing => {}
            heard => {
                let half = self.half_open.remove(index);
                unwatch(&self.epoll, &half.socket);
                match heard {
                    Received::Message(Message::Hello(hello), fds) => {
                        self.welcome(half.socket, half.pid, half.same_user, &hello, fds);
                    }
                    Received::Cut(_) => self.tell_visitors("a peer's descriptors could not be taken"),
                    _ => {}
                }
            }
        }
    }

    /// Takes the window that a peer offers. Whatever is wrong with the offer: the connection is dropped.
    fn welcome(&mut self, socket: TrackedFd, pid: u32, same_user: bool, hello: &Greeting, fds: Vec<OwnedFd>) {
        let mut fds = fds.into_iter();
        let Some(memfd) = fds.next() else { return };
        let Some((doorbell, board)) = Self::gifts(fds, same_user, hello) else { return };
        let Ok(window) = Memfd::adopt(&memfd, Half::WINDOW) else {
            return;
        };
        let mut remote = self.remote(socket, pid, same_user, false);
        self.make_board();
        let answer = Message::Welcome(self.greeting(same_user));
        let (own, count) = self.own_fds(same_user);
        // A peer that is gone already is taken in all the same: what it has sent lies in the window.
        let _ = socket::send(&remote.socket, &answer, &own[..count]);
        self.meet(&mut remote, hello, doorbell, board);
        let _ = self.install(Arc::new(window), Side::Taker, remote);
    }

    /// The doorbell and the board that come with a greeting; `None` if they are not as they must be.
    fn gifts(mut fds: impl Iterator<Item = OwnedFd>, same_user: bool, greeting: &Greeting) -> Option<Gifts> {
        let doorbell = fds.next();
        let board = if greeting.board { Some(fds.next()?) } else { None };
        (doorbell.is_some() == same_user && fds.next().is_none()).then_some((doorbell, board))
    }

    /// What both sides do with the other's greeting: keep its doorbell and board, find out about straight copies and
    /// say so.
    fn meet(&self, remote: &mut Remote, greeting: &Greeting, doorbell: Option<OwnedFd>, board: Option<OwnedFd>) {
        remote.instance = Some(greeting.instance);
        remote.doorbell = doorbell
            .filter(|fd| socket::is_eventfd(fd) && rustix::io::ioctl_fionbio(fd, true).is_ok())
            .map(|fd| TrackedFd::new(fd, &self.fds));
        remote.we_permitted = self.config.straight
            && greeting.straight
            && remote.same_user
            && remote.pid != 0
            && straight::permitted(remote.pid, greeting.cookie_addr, &greeting.cookie);
        if remote.we_permitted {
            remote.favours_window = self.config.straight_above.is_none() && paths::window_is_quicker();
            // A board that is not as it must be is none: then requests are sent.
            remote.board = board.and_then(|fd| ForeignSheet::adopt(fd).ok()).map(Reader::new);
        }
        // If it does not get through, the peer never sends by reference. Nothing else depends on it.
        let _ = socket::send(&remote.socket, &Message::Probed(remote.we_permitted), &[]);
    }

    /// Takes the answer to our HELLO, if it is there, before its turn has come.
    pub(crate) fn hear_greeting(&mut self, id: LinkId) {
        if self.link(id).and_then(|link| link.remote.as_ref()).is_some_and(|remote| remote.awaits_welcome) {
            self.hear(id, epoll::EventFlags::empty());
        }
    }

    /// Messages of a peer that we have a link to.
    fn hear(&mut self, id: LinkId, flags: epoll::EventFlags) {
        for _ in 0..TURN {
            let Some(remote) = self.link(id).and_then(|l| l.remote.as_ref()) else {
                return;
            };
            match socket::receive(&remote.socket) {
                Received::Nothing if flags.contains(epoll::EventFlags::HUP) => {
                    return self.lose(id);
                }
                Received::Nothing => return,
                Received::Message(message, fds) => {
                    if !self.obey(id, &message, fds) {
                        return self.lose(id);
                    }
                }
                Received::Cut(message) => {
                    self.tell_visitors("a peer's descriptors could not be taken");
                    // The window is there already, and may have been used: the link goes on without the rest. The peer
                    // is rung by the socket then.
                    if !matches!(&message, Some(Message::Welcome(greeting)) if self.welcomed(id, greeting, Some((None, None))))
                    {
                        return self.lose(id);
                    }
                }
                Received::Closed | Received::Garbage => return self.lose(id),
            }
        }
    }

    /// Does what a message says. False if it has no place here.
    fn obey(&mut self, id: LinkId, message: &Message, fds: Vec<OwnedFd>) -> bool {
        match message {
            Message::Ring => fds.is_empty(),
            Message::Probed(ok) => {
                let Some(remote) = self.link_mut(id).and_then(|l| l.remote.as_mut()) else {
                    return false;
                };
                remote.it_permitted = *ok;
                fds.is_empty()
            }
            Message::Welcome(greeting) => {
                let Some(same_user) = self.link(id).and_then(|l| l.remote.as_ref()).map(|remote| remote.same_user)
                else {
                    return false;
                };
                self.welcomed(id, greeting, Self::gifts(fds.into_iter(), same_user, greeting))
            }
            Message::Hello(_) => false,
        }
    }

    /// The peer has taken our window. False if it had done so before, or its gifts are not as they must be.
    fn welcomed(&mut self, id: LinkId, greeting: &Greeting, gifts: Option<Gifts>) -> bool {
        // Out of its link for a moment: the greeting is answered with what is the platform's.
        let Some(mut remote) = self.link_mut(id).and_then(|l| l.remote.take()) else {
            return false;
        };
        let gifts = gifts.filter(|_| std::mem::take(&mut remote.awaits_welcome));
        let expected = gifts.is_some();
        if let Some((doorbell, board)) = gifts {
            self.meet(&mut remote, greeting, doorbell, board);
        }
        if let Some(link) = self.link_mut(id) {
            link.remote = Some(remote);
        }
        expected
    }
}

#[cfg(all(test, not(miri)))]
#[path = "peers_tests.rs"]
mod tests;
