//! Claiming blocks, connecting to peers, accepting them, and noticing their deaths.

use std::fmt::Display;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use memory::backing::{Backing, Memfd};
use memory::fds::{FdSet, TrackedFd, peer_credentials};
use memory::files::contents;
use memory::{Half, deferred_close, names, single_copy};
use report::{Matter, log_once};
use rustix::event::epoll;
use verbs::Errno;
use wire::{LinkId, Nanos};

use crate::WindowEnv;
use crate::events::{Token, watch};
use crate::link::{Link, Remote, Side, State};
use crate::rendezvous::{self, BLOCK_QPNS, BLOCKS, Message, SECRET};
use crate::socket::{self, Received};

/// Links of one process, dead ones that wait to be taken included.
pub(crate) const MAX_LINKS: usize = 8192;
/// Connections that have not said HELLO. Beyond that the oldest is dropped.
const MAX_HALF_OPEN: usize = 64;
/// Links that one process may make to us: it needs one, and has another one for as long as it has not noticed that the
/// first has ended.
const MAX_LINKS_EACH: usize = 4;
/// Most links to all processes of one user together that have no number here (another PID namespace).
const MAX_LINKS_UNNAMED: usize = 256;
/// Of the descriptors that this process may have, peers leave so many to its program, or the fourth part if that is
/// less.
const HEADROOM: u64 = 64;
/// The longest time that a connection may take to say HELLO.
const HELLO_TIMEOUT: Nanos = 5_000_000_000;
/// The time for which no visitor is let in where there is no descriptor even for turning one away, in nanoseconds.
const CLOSED: Nanos = 100_000_000;
/// The shortest time between two messages that peers could not come in, in nanoseconds.
const TELL_AGAIN: Nanos = 1_000_000_000;
/// Connections accepted, and messages of one peer read, before others have their turn.
pub(crate) const TURN: usize = 64;
/// Blocks that are tried before those that other users hold are passed over.
const PLAIN_TRIES: u32 = 256;
/// Pauses between attempts to connect to a block for which no process answers.
const RETRY_FIRST: Nanos = 1_000_000;
const RETRY_LAST: Nanos = 50_000_000;

/// The advice on peers of other users.
const ONE_USER: &str = "Run both programs as one user, or both with SOFTRNIC_PEERS=any";

/// The way to reach a block.
pub(crate) enum Route {
    Link(LinkId),
    /// It could not be reached: not to be tried again before `at`; the pause after that.
    Retry {
        at: Nanos,
        pause: Nanos,
        /// There was a link once: the process has ended.
        met: bool,
    },
}

/// A connection that has not said HELLO.
pub(crate) struct HalfOpen {
    serial: u32,
    /// The block that it has come to.
    at: u16,
    socket: TrackedFd,
    who: Who,
    pub deadline: Nanos,
}

/// The user to which a peer's process belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Of our user.
    Same,
    /// Of our user, as far as its number tells; but that number stands for all users that have none in our user
    /// namespace. The kernel lets us trace it, and until it has proved that it may trace us nothing is taken from it.
    Unsure,
    /// Of another user.
    Other,
}

/// A peer, as the kernel names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    /// In our PID namespace; 0 if it has no number there.
    pub pid: u32,
    pub uid: u32,
    pub standing: Standing,
}

/// The uid that stands for all users that have none in our user namespace, if there are such (user_namespaces(7)).
pub(crate) fn vague_uid() -> Option<u32> {
    let text = |path| String::from_utf8(contents(path)).ok().filter(|text| !text.is_empty());
    let overflow = text("/proc/sys/kernel/overflowuid")?;
    if covers_all(&text("/proc/self/uid_map").unwrap_or_default()) { None } else { overflow.trim().parse().ok() }
}

/// True if each user has a number by this map: those are all numbers but the last, which stands for none.
fn covers_all(map: &str) -> bool {
    let count = |line: &str| line.split_ascii_whitespace().nth(2).and_then(|count| count.parse::<u64>().ok());
    map.lines().filter_map(count).sum::<u64>() >= u64::from(u32::MAX)
}

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

impl WindowEnv {
    /// Claims a block of 4096 QP numbers for this process; gives the first.
    ///
    /// # Errors
    /// `ENOSPC` if all blocks of the host are claimed; else the kernel's errno (`EMFILE`).
    pub fn claim_block(&mut self) -> Result<u32, Errno> {
        let count = u32::from(BLOCKS.end() - BLOCKS.start()) + 1;
        let mut seed = [0; 4];
        self.fill_random(&mut seed);
        let seed = u32::from_ne_bytes(seed);
        // The first tries are for blocks that no process holds. Numbers of another user's process are given out only
        // where strangers hold what can be looked through at once.
        let tries = (0..PLAIN_TRIES).map(|i| (i, false)).chain((0..count).map(|i| (i, true)));
        for (i, over_strangers) in tries {
            // Every block once: a random start, and a step that has no factor in common with their number (4094 =
            // 2 * 23 * 89), so that processes which start alike do not meet at every step.
            let block = BLOCKS.start() + ((seed.wrapping_add(i.wrapping_mul(1013)) % count) as u16);
            let listener = match names::claim(&rendezvous::block_name(block), 4096, over_strangers) {
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
        let (mut pause, mut met) = (RETRY_FIRST, false);
        match self.routes.get(&block) {
            Some(&Route::Link(id)) if self.is_up(id) => return Some(id),
            Some(Route::Link(_)) => met = true,
            Some(&Route::Retry { at, pause: next, met: once }) => {
                if monotonic() < at {
                    return None;
                }
                (pause, met) = (next, once);
            }
            None => {}
        }
        let found = self.connect(block);
        if let Err(errno) = found {
            let first = u32::from(block) * BLOCK_QPNS;
            match errno {
                Errno::EACCES => log_once(
                    Matter::OtherUser,
                    format_args!(
                        "no connection to the process of QP {first:#08x} and following: it is another user's. \
                         {ONE_USER}"
                    ),
                ),
                // Not at once: QP numbers travel, and the process may still be on its way.
                Errno::ECONNREFUSED if pause == RETRY_LAST && !met => log_once(
                    Matter::NoPeer,
                    format_args!(
                        "no process has QP {first:#08x} and following: it has ended, or runs in another network \
                         namespace or without the library (softrnic run)"
                    ),
                ),
                _ => {}
            }
            self.tell_obstacle(format_args!("no connection to the process of QP {first:#08x} and following"), errno);
        }
        let route = match found {
            Ok(id) => Route::Link(id),
            Err(_) => Route::Retry { at: monotonic() + pause, pause: (pause * 2).min(RETRY_LAST), met },
        };
        self.routes.insert(block, route);
        if found.is_ok() {
            self.return_secrets();
        }
        found.ok()
    }

    /// Says why a connection is not made, if it is for want of something here: the program sees a peer that does not
    /// answer.
    fn tell_obstacle(&self, what: impl Display, errno: Errno) {
        // No process is there, or it has too many visitors.
        let peers = [Errno::ECONNREFUSED, Errno::EAGAIN];
        if self.diagnose && !peers.contains(&errno) {
            let why = std::io::Error::from_raw_os_error(errno.0);
            report::log(format_args!("{what}: {why}"));
        } else if matches!(errno, Errno::EMFILE | Errno(23)) {
            log_once(
                Matter::NoDescriptors,
                format_args!("{what}: no descriptors are left. Raise the limit of open files (ulimit -n)"),
            );
        }
    }

    /// [`WindowEnv::tell_obstacle`] where peers decide how often: once in a second.
    pub(crate) fn tell_visitors(&mut self, what: impl Display) {
        if self.may_tell() {
            self.tell_obstacle(what, Errno::EMFILE);
        }
    }

    /// Logs which peer the limit of links has kept out, once in a second, to a program that asks for diagnostics.
    fn tell_turned_away(&mut self, what: impl Display) {
        if self.diagnose && self.may_tell() {
            report::log(format_args!("{what}"));
        }
    }

    /// True once in a second: peers decide how often there is something to say.
    fn may_tell(&mut self) -> bool {
        let now = monotonic();
        let may = self.told_at.is_none_or(|at| now.saturating_sub(at) >= TELL_AGAIN);
        if may {
            self.told_at = Some(now);
        }
        may
    }

    /// Hears visitors from now on, or none for a while: a visitor that waits and cannot be let in would keep the
    /// epoll instance readable.
    pub(crate) fn listen(&mut self, open: bool, now: Nanos) {
        let flags = if open { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        for (block, listener) in &self.own_blocks {
            let data = epoll::EventData::new_u64(Token::Listener(*block).pack());
            let _ = epoll::modify(&self.epoll, listener, data, flags);
        }
        self.closed_until = (!open).then_some(now + CLOSED);
    }

    /// True if a peer has come so far into the program's descriptors that no more are let in: the kernel gives the
    /// lowest number that is free.
    fn is_crowded(fd: &OwnedFd) -> bool {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        u64::try_from(fd.as_raw_fd()).is_ok_and(|fd| fd >= limit - HEADROOM.min(limit / 4))
    }

    /// True if this process has made as many links as one may. This process itself, which tests let be its own peer,
    /// may make as many as it likes.
    fn has_enough(&self, who: Who) -> bool {
        let Who { pid, uid, .. } = who;
        let most = if pid == 0 { MAX_LINKS_UNNAMED } else { MAX_LINKS_EACH };
        let its = |id: &&LinkId| {
            let remote = self.link(**id).filter(|link| link.state != State::Dead).and_then(|link| link.remote.as_ref());
            remote.is_some_and(|remote| remote.visits && remote.who.pid == pid && (pid != 0 || remote.who.uid == uid))
        };
        pid != std::process::id() && self.live.iter().filter(its).count() >= most
    }

    /// The link to the process that holds this block, if there is one.
    pub(crate) fn route_to(&self, block: u16) -> Option<LinkId> {
        match self.routes.get(&block) {
            Some(&Route::Link(id)) => Some(id),
            _ => None,
        }
    }

    fn is_up(&self, id: LinkId) -> bool {
        self.link(id).is_some_and(|link| link.state == State::Up)
    }

    /// Connects to the process behind a block: makes a window and offers it, or finds that there is a link already.
    fn connect(&mut self, block: u16) -> Result<LinkId, Errno> {
        match self.connect_once(block) {
            Err(Errno::EMFILE | Errno(23)) if self.spare.take().is_some() => {
                // The spare descriptor is enough to ask which process is there. It may be one that we have a link to.
                let found = self.connect_once(block);
                self.spare = spare_fd(&self.fds);
                found
            }
            found => found,
        }
    }

    fn connect_once(&mut self, block: u16) -> Result<LinkId, Errno> {
        let (socket, ..) = names::seek(&rendezvous::block_name(block), self.config.any_user)?;
        let socket = TrackedFd::connection(socket, &self.fds);
        let who = self.who(&socket)?;
        let pid = who.pid;
        // The kernel's word for the process that listens, not the peer's: no process can draw another's packets to
        // itself by naming blocks that it does not hold.
        if pid != 0 && pid != std::process::id() && who.standing != Standing::Other {
            let known = self.live.iter().copied().find_map(|id| {
                let link = self.link(id).filter(|link| matches!(link.state, State::Up | State::Held))?;
                let remote = link.remote.as_ref()?;
                let same = remote.who.pid == pid && remote.who.standing != Standing::Other && !remote.gone();
                same.then_some((id, link.state))
            });
            match known {
                Some((id, State::Up)) => return Ok(id),
                // It has yet to prove its identity.
                Some(_) => return Err(Errno::EAGAIN),
                None => {}
            }
        }
        let (window, memfd) = Memfd::create(Half::WINDOW)?;
        let mut remote = self.remote(socket, who);
        remote.awaits_welcome = true;
        let mut secret = [0; SECRET];
        self.fill_random(&mut secret);
        remote.identity.own = Some((secret, block));
        socket::send(&remote.socket, &Message::Hello(self.greeting(&remote)), &[memfd.as_fd()])?;
        let id = self.install(Arc::new(window), Side::Maker, remote)?;
        if self.is_up(id) { Ok(id) } else { Err(Errno::EAGAIN) }
    }

    /// The process at the other end of a socket, by the kernel's word: before anything is taken from it.
    ///
    /// # Errors
    /// EACCES: none that this process talks to.
    fn who(&self, socket: &TrackedFd) -> Result<Who, Errno> {
        let (pid, uid) = peer_credentials(socket)?;
        #[cfg(test)]
        let pid = if self.nameless { 0 } else { pid };
        let standing = match uid == self.uid {
            true if self.vague != Some(uid) => Standing::Same,
            true if pid != 0 && single_copy::may_trace(pid) => Standing::Unsure,
            _ if self.config.any_user => Standing::Other,
            _ => return Err(Errno::EACCES),
        };
        Ok(Who { pid, uid, standing })
    }

    /// The number of the process that the kernel calls `pid` now: that of a living link to it, or a new one.
    pub(crate) fn peer_number(&mut self, pid: u32) -> u64 {
        let known = self.live.iter().find_map(|&id| {
            let remote = self.link(id)?.remote.as_ref()?;
            (pid != 0 && remote.who.pid == pid && !remote.gone()).then_some(remote.peer)
        });
        known.unwrap_or_else(|| {
            self.next_peer += 1;
            self.next_peer
        })
    }

    pub(crate) fn install(&mut self, window: Arc<dyn Backing>, side: Side, remote: Remote) -> Result<LinkId, Errno> {
        let held = remote.is_held();
        let mut link = Link::new(window, side, remote)?;
        if held {
            link.state = State::Held;
        }
        let id = self.add_link(link)?;
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

    /// The peer of this link is gone, or has broken the rules of the socket.
    pub(crate) fn lose(&mut self, id: LinkId) {
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
        let held = link.state == State::Held;
        link.drain();
        if let Some(remote) = &link.remote {
            // Level-triggered: it would be reported for ever.
            remote.unwatch(epoll);
        }
        if held {
            // Nothing was taken from it, and nothing is.
            self.bury(id);
        }
    }

    pub(crate) fn accept(&mut self, block: u16, now: Nanos) {
        for _ in 0..TURN {
            if !deferred_close::has_room() {
                return self.listen(false, now);
            }
            let Some((_, listener)) = self.own_blocks.iter().find(|(own, _)| *own == block) else {
                return;
            };
            match socket::accept(listener) {
                Ok(fd) => {
                    let crowded = Self::is_crowded(&fd);
                    let socket = TrackedFd::connection(fd, &self.fds);
                    if crowded {
                        // Its maker tries again later.
                        self.tell_visitors("a peer's connection was turned away");
                        continue;
                    }
                    self.admit(socket, block, now);
                }
                Err(Errno::EINTR | Errno(103)) => {}
                Err(Errno::EMFILE | Errno(23)) => {
                    // Out of descriptors: with the spare one, turn the connection away. Its maker tries again later.
                    self.tell_visitors("a peer's connection was turned away");
                    self.spare = None;
                    let listener = self.own_blocks.iter().find(|(own, _)| *own == block);
                    let found = listener.and_then(|(_, listener)| socket::accept(listener).ok());
                    let turned_away = found.map(|fd| TrackedFd::connection(fd, &self.fds)).is_some();
                    self.spare = spare_fd(&self.fds);
                    if !turned_away {
                        // The limit was lowered: the spare one does not count either.
                        self.listen(false, now);
                    }
                    return;
                }
                Err(Errno::EAGAIN) => return,
                // Whatever is missing, the visitor stays in the queue, and would be looked at again at once.
                Err(_) => return self.listen(false, now),
            }
        }
    }

    /// A new connection: HELLO is usually there already.
    fn admit(&mut self, socket: TrackedFd, at: u16, now: Nanos) {
        let Ok(who) = self.who(&socket) else {
            if let Ok((pid, uid)) = peer_credentials(&socket) {
                let who =
                    format_args!("process {pid} of user {uid} wanted to connect, and was turned away. {ONE_USER}");
                log_once(Matter::OtherUser, who);
            }
            return;
        };
        if self.has_enough(who) {
            let Who { pid, uid, .. } = who;
            return self.tell_turned_away(format_args!(
                "process {pid} of user {uid} wanted to connect once more, and was turned away: it has as many links \
                 as one process may have"
            ));
        }
        match socket::receive(&socket) {
            Received::Message(Message::Hello(hello), fds) => self.welcome(socket, who, at, &hello, fds),
            Received::Nothing => {
                if self.half_open.len() >= MAX_HALF_OPEN {
                    let oldest = self.half_open.remove(0);
                    unwatch(&self.epoll, &oldest.socket);
                }
                self.next_serial = self.next_serial.wrapping_add(1);
                let serial = self.next_serial;
                if watch(&self.epoll, &socket, Token::HalfOpen(serial)).is_ok() {
                    let deadline = now.saturating_add(HELLO_TIMEOUT);
                    self.half_open.push(HalfOpen { serial, at, socket, who, deadline });
                }
            }
            Received::Cut(_) => self.tell_visitors("a peer's descriptors could not be taken"),
            _ => {}
        }
    }

    /// Drop the connections that have not said HELLO in time.
    pub(crate) fn drop_late(&mut self, now: Nanos) {
        let epoll = &self.epoll;
        self.half_open.retain(|half| {
            let keep = half.deadline > now;
            if !keep {
                unwatch(epoll, &half.socket);
            }
            keep
        });
    }

    pub(crate) fn hear_half_open(&mut self, serial: u32) {
        let Some(index) = self.half_open.iter().position(|half| half.serial == serial) else {
            return;
        };
        match socket::receive(&self.half_open[index].socket) {
            Received::Nothing => {}
            heard => {
                let half = self.half_open.remove(index);
                unwatch(&self.epoll, &half.socket);
                match heard {
                    // Others of the same process may have got links since this one connected.
                    Received::Message(Message::Hello(hello), fds) if !self.has_enough(half.who) => {
                        self.welcome(half.socket, half.who, half.at, &hello, fds);
                    }
                    Received::Cut(_) => self.tell_visitors("a peer's descriptors could not be taken"),
                    _ => {}
                }
            }
        }
    }
}

#[cfg(all(test, not(miri)))]
#[path = "peers_tests.rs"]
mod tests;
