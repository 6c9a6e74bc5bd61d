//! Sockets to the connection managers of other processes. One socket carries the handshakes of all ids that two
//! processes have in common; its closing tells that the other process is gone.
//!
//! A link is opened by connecting to a listener's name, and kept for the next request to that listener. Should the
//! listener have moved to another process in the meantime, its old process answers "invalid service", and the name is
//! looked up anew.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::AsFd;

use memory::deferred_close;
use memory::fds::TrackedFd;
use report::Device;
use rustix::event::epoll::{self, EventData, EventFlags};
use verbs::{Errno, Result};

use crate::conn::{self, Conn};
use crate::ids::{IdKey, State};
use crate::mad::{self, Ends, service_id};
use crate::message::{Body, Message, Service, emit};
use crate::names;
use crate::route::gid_of;
use crate::socket::{self, Received, errno};
use crate::tcp::TcpKey;

/// A link's name in this process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LinkKey(pub u32);

/// The greatest number of messages that wait for room in a socket. A link to a peer that has not read for so long is
/// closed.
const MAX_WAITING: usize = 65_536;
/// A number of messages that no socket holds: the kernel counts 768 bytes and more for each, and
/// `net.core.wmem_default` is 208 KiB, or some MiB on hosts that were tuned.
const MAX_IN_SOCKET: usize = 16_384;
/// The number of listeners whose links are remembered.
const MAX_NAMES: usize = 4096;
/// Messages read from one link before the others get their turn.
const TURN: usize = 256;

pub(crate) struct Link {
    socket: TrackedFd,
    waiting: VecDeque<Vec<u8>>,
    /// The connection that the last message was about.
    last: Option<Served>,
    /// True if the other side is gone, while the messages that it had sent are being read.
    ends: bool,
}

/// The connection or service that a message is about, for captures.
#[derive(Clone, Copy)]
pub(crate) struct Served {
    src: SocketAddr,
    dst: SocketAddr,
    service: u64,
    /// True if this side asked for it.
    asked: bool,
}

/// All links.
#[derive(Default)]
pub(crate) struct Links {
    by_key: HashMap<LinkKey, Link>,
    by_name: HashMap<String, LinkKey>,
    by_pid: HashMap<u32, LinkKey>,
    last: u32,
}

impl Links {
    /// The process at the other end.
    pub fn pid(&self, link: LinkKey) -> Option<u32> {
        let (pid, _) = memory::fds::peer_credentials(&self.by_key.get(&link)?.socket).ok()?;
        (pid != 0).then_some(pid)
    }
}

/// The subject of an epoll event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Token {
    Wake,
    Listener(IdKey),
    Link(LinkKey),
    /// Port space and number of a block of ephemeral ports.
    Block(u16, u16),
    /// The TCP socket of a listener.
    TcpListener(IdKey),
    /// A TCP connection that is being made.
    Tcp(TcpKey),
    /// Ends of connections that queue pairs had.
    Ends,
}

impl Token {
    pub fn pack(self) -> EventData {
        EventData::new_u64(match self {
            Token::Wake => 0,
            Token::Listener(id) => 1 << 32 | u64::from(id.0),
            Token::Link(key) => 2 << 32 | u64::from(key.0),
            Token::Block(port_space, block) => 3 << 32 | u64::from(port_space) << 16 | u64::from(block),
            Token::TcpListener(id) => 4 << 32 | u64::from(id.0),
            Token::Tcp(key) => 5 << 32 | u64::from(key.0),
            Token::Ends => 6 << 32,
        })
    }

    pub fn unpack(raw: u64) -> Token {
        match raw >> 32 {
            1 => Token::Listener(IdKey(raw as u32)),
            2 => Token::Link(LinkKey(raw as u32)),
            3 => Token::Block((raw >> 16) as u16, raw as u16),
            4 => Token::TcpListener(IdKey(raw as u32)),
            5 => Token::Tcp(TcpKey(raw as u32)),
            6 => Token::Ends,
            _ => Token::Wake,
        }
    }
}

impl State {
    pub(crate) fn watch(&self, fd: impl AsFd, token: Token) -> Result<()> {
        let epoll = self.epoll.as_ref().ok_or(Errno::EIO)?;
        epoll::add(epoll.as_fd(), fd, token.pack(), EventFlags::IN).map_err(errno)
    }

    pub(crate) fn unwatch(&self, fd: impl AsFd) {
        // Closing alone does not remove the socket from epoll if a forked child still has the descriptor.
        if let Some(epoll) = &self.epoll {
            let _ = epoll::delete(epoll.as_fd(), fd);
        }
    }

    fn add_link(&mut self, socket: TrackedFd) -> Result<LinkKey> {
        self.links.last = self.links.last.wrapping_add(1);
        let key = LinkKey(self.links.last);
        self.watch(&socket, Token::Link(key))?;
        self.links.by_key.insert(key, Link { socket, waiting: VecDeque::new(), last: None, ends: false });
        Ok(key)
    }

    /// The link to the listener for this address, and whether it was there before. `None`: no process listens.
    ///
    /// # Errors
    /// EAGAIN: too many connections wait at the listener's socket. EACCES: it is another user's. EMFILE: no
    /// descriptor.
    pub(crate) fn link_to(&mut self, port_space: u16, dst: &SocketAddr) -> Result<Option<(LinkKey, bool)>> {
        let mut why = None;
        for name in names::listeners(port_space, dst) {
            let ends = |key: &LinkKey| self.links.by_key.get(key).is_none_or(|link| link.ends);
            if let Some(&key) = self.links.by_name.get(&name).filter(|key| !ends(key)) {
                return Ok(Some((key, true)));
            }
            match socket::connect(&name, self.any_user) {
                Ok((socket, pid)) => {
                    let socket = TrackedFd::connection(socket, self.fds());
                    // One link to a process is enough, however many ports it listens at.
                    let known = self.links.by_pid.get(&pid).copied().filter(|key| !ends(key));
                    let key = match known {
                        Some(key) => key,
                        None => self.add_link(socket)?,
                    };
                    if self.links.by_name.len() >= MAX_NAMES {
                        self.links.by_name.clear();
                    }
                    self.links.by_name.insert(name, key);
                    if pid != 0 {
                        self.links.by_pid.insert(pid, key);
                    }
                    return Ok(Some((key, known.is_some())));
                }
                Err(Errno::ECONNREFUSED) => {}
                // A listener of this user may be found by one of the other names.
                Err(Errno::EACCES) => why = Some(Errno::EACCES),
                Err(e) => return Err(e),
            }
        }
        why.map_or(Ok(None), Err)
    }

    /// Forget the names of a link whose process does not listen any more.
    pub(crate) fn forget_name(&mut self, key: LinkKey) {
        self.links.by_name.retain(|_, k| *k != key);
    }

    /// Send a message, or keep it until there is room. False: the link is dead, and has been removed.
    pub(crate) fn send(&mut self, key: LinkKey, message: &Message) -> bool {
        if self.nic.captures() {
            self.capture(key, message);
        }
        let Some(link) = self.links.by_key.get_mut(&key).filter(|link| !link.ends) else { return false };
        let bytes = emit(message);
        if link.waiting.is_empty() {
            match socket::send(&link.socket, &bytes) {
                Ok(()) => return true,
                Err(Errno::EAGAIN) => {}
                Err(_) => {
                    self.link_gone(key);
                    return false;
                }
            }
        }
        if link.waiting.len() >= MAX_WAITING {
            self.link_gone(key);
            return false;
        }
        let first = link.waiting.is_empty();
        link.waiting.push_back(bytes);
        if first {
            self.want_room(key, true);
        }
        true
    }

    /// Capture a message as a network would carry it, before the peer can see it.
    fn capture(&mut self, key: LinkKey, message: &Message) {
        let about = self.about(key, IdKey(message.from));
        let Some(link) = self.links.by_key.get_mut(&key) else { return };
        // A refusal is not about an id; it answers the last request over the link.
        let Some(served) = about.or(link.last) else { return };
        link.last = Some(served);
        self.write_down(served, message);
    }

    /// The connection or service that messages of an id are about.
    fn about(&self, link: LinkKey, id: IdKey) -> Option<Served> {
        let entry = self.ids.get(&id)?;
        let (src, dst) = (entry.src?, entry.dst?);
        let passive = self.by_peer.get(&(link, entry.peer)) == Some(&id);
        let service = service_id(entry.port_space, if passive { src.port() } else { dst.port() });
        Some(Served { src, dst, service, asked: !passive })
    }

    fn write_down(&self, Served { src, dst, service, asked }: Served, message: &Message) {
        let entry = self.ids.get(&IdKey(message.from));
        let gids = self.nic.gids(Device::Roce);
        let ends = Ends {
            source: gid_of(gids, &src).1,
            dest: gid_of(gids, &dst).1,
            guid: self.nic.guid(Device::Roce),
            remote_qpn: entry.and_then(|id| id.conn.as_ref()).map_or(0, |conn| conn.remote.qpn),
            service,
            asked: asked && entry.is_some(),
        };
        if let Some(mad) = mad::emit(message, &ends) {
            self.nic.capture_mad(&ends.source, &ends.dest, &mad);
        }
    }

    /// Note that a request has come: an answer to it that no id sends is about its service.
    pub(crate) fn served(&mut self, key: LinkKey, service: &Service) {
        if let Some(link) = self.links.by_key.get_mut(&key) {
            let number = service_id(service.port_space, service.dst.port());
            link.last = Some(Served { src: service.dst, dst: service.src, service: number, asked: false });
        }
    }

    fn want_room(&self, key: LinkKey, want: bool) {
        let (Some(epoll), Some(link)) = (&self.epoll, self.links.by_key.get(&key)) else { return };
        let flags = if want { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        let _ = epoll::modify(epoll.as_fd(), &link.socket, Token::Link(key).pack(), flags);
    }

    /// Send messages that waited: there is room again.
    fn flush(&mut self, key: LinkKey) {
        let Some(link) = self.links.by_key.get_mut(&key) else { return };
        while let Some(bytes) = link.waiting.front() {
            match socket::send(&link.socket, bytes) {
                Ok(()) => drop(link.waiting.pop_front()),
                Err(Errno::EAGAIN) => return,
                Err(_) => return self.link_gone(key),
            }
        }
        self.want_room(key, false);
    }

    /// Handle an event of a link: a message has come, or there is room.
    pub(crate) fn link_event(&mut self, key: LinkKey, flags: EventFlags) {
        if flags.contains(EventFlags::OUT) {
            self.flush(key);
        }
        for _ in 0..TURN {
            let Some(link) = self.links.by_key.get(&key) else { return };
            match socket::receive(&link.socket) {
                Received::Message(message) => self.received(key, message),
                Received::Nothing => return,
                Received::Closed => return self.link_gone(key),
            }
        }
    }

    /// Accept connections at a listener's or a block's socket. False if they go on waiting, since there are no
    /// descriptors, or no memory.
    #[must_use]
    pub(crate) fn accept_links(&mut self, at: Token) -> bool {
        for _ in 0..TURN {
            if !deferred_close::has_room() {
                return false;
            }
            let socket = match at {
                Token::Listener(id) => self.ids.get(&id).and_then(|id| id.listener.as_ref()).map(|l| &l.socket),
                Token::Block(port_space, block) => self.block_socket(port_space, block),
                _ => None,
            };
            let accepted = match socket.map(socket::accept) {
                Some(Ok(accepted)) => accepted,
                Some(Err(Errno::EINTR | Errno(103))) => continue, // the connection is gone already
                None | Some(Err(Errno::EAGAIN)) => return true,
                Some(Err(_)) => return false,
            };
            let accepted = TrackedFd::connection(accepted, self.fds());
            if socket::peer(&accepted, self.any_user).is_some() {
                let _ = self.add_link(accepted);
            }
        }
        true
    }

    /// Handle the end of the other process, or of a link that is not worth keeping.
    pub(crate) fn link_gone(&mut self, key: LinkKey) {
        // Its messages are handled first, as over a network.
        for turn in 0..MAX_IN_SOCKET {
            let Some(link) = self.links.by_key.get_mut(&key) else { return };
            if turn == 0 && std::mem::replace(&mut link.ends, true) {
                return; // the answer to one of them has removed the link
            }
            let Received::Message(message) = socket::receive(&link.socket) else { break };
            self.received(key, message);
        }
        let Some(link) = self.links.by_key.remove(&key) else { return };
        self.unwatch(&link.socket);
        drop(link);
        self.forget_name(key);
        self.links.by_pid.retain(|_, k| *k != key);
        let lost: Vec<IdKey> = self.ids.iter().filter(|(_, id)| id.link == Some(key)).map(|(&k, _)| k).collect();
        for id in lost {
            let asked =
                self.ids.get(&id).and_then(|id| id.conn.as_ref()).map(Conn::state) == Some(conn::State::DreqRcvd);
            let farewell = self.about(key, id).filter(|_| asked);
            self.with_conn(id, |conn, now, out| conn.peer_gone(now, out));
            if let Some(id) = self.ids.get_mut(&id) {
                id.link = None;
                id.farewell = farewell;
            }
        }
        self.by_peer.retain(|(k, _), _| *k != key);
        for id in self.ids.values_mut() {
            if let Some(listener) = &mut id.listener {
                listener.parked.retain(|(k, _)| *k != key);
            }
        }
    }

    /// Send the body of an id's message to its peer.
    pub(crate) fn send_body(&mut self, id: IdKey, body: Body) {
        let Some(entry) = self.ids.get_mut(&id) else { return };
        let message = Message { from: id.0, to: entry.peer, body };
        match entry.link {
            Some(link) => {
                self.send(link, &message);
            }
            // Over a network the answer to a DREQ would go out although the peer has ended since.
            None if message.body == Body::Drep && self.nic.captures() => {
                if let Some(served) = entry.farewell.take() {
                    self.write_down(served, &message);
                }
            }
            None => {}
        }
    }
}
