//! The state that the manager's lock protects: ids, and how their connections, timers and events are handled.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use memory::fds::{FdSet, TrackedFd};
use nic::Nic;
use report::Device;
use verbs::{Errno, Result};

use crate::channel::{Channel, Queued};
use crate::conn::{Conn, Out, reason, sidr};
use crate::event::Event;
use crate::links::{LinkKey, Links, Served};
use crate::manager::Options;
use crate::message::Message;
use crate::mpa::Mpa;
use crate::names::Claim;
use crate::ports::{Port, Ports};
use crate::route::Wire;
use crate::tcp::Tcp;

/// `IBV_QPT_UD`.
pub(crate) const UD: u32 = 4;

/// An id's name: its communication id in messages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct IdKey(pub u32);

/// The progress of an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    Idle,
    Bound,
    AddrResolved,
    RouteResolved,
    Listen,
    Connect,
}

pub(crate) struct Listener {
    pub socket: TrackedFd,
    /// The socket at the port itself, where connections of iWARP come.
    pub tcp: Option<TrackedFd>,
    pub room: u32,
    pub parked: VecDeque<(LinkKey, Message)>,
}

pub(crate) struct Id {
    pub token: u64,
    pub channel: Arc<Channel>,
    pub port_space: u16,
    pub qp_type: u32,
    pub phase: Phase,
    pub src: Option<SocketAddr>,
    pub dst: Option<SocketAddr>,
    /// The device that the id is on.
    pub device: Option<Device>,
    /// True if the device was removed from the id: all calls but its destruction fail.
    pub removed: bool,
    pub wire: Wire,
    pub options: Options,
    pub only: bool,
    pub port: Option<Port>,
    /// The TCP port, until the id listens there.
    pub kept: Option<TrackedFd>,
    pub listener: Option<Listener>,
    pub conn: Option<Conn>,
    /// The connection, in place of `conn`, of a device of iWARP.
    pub mpa: Option<Mpa>,
    pub link: Option<LinkKey>,
    /// The connection that the DREP is about, for captures, if the peer has ended since its DREQ came.
    pub farewell: Option<Served>,
    /// True if the link was there before the request: its process may have stopped listening.
    pub link_may_be_stale: bool,
    /// The repetition of a request for which there is no listener (yet).
    pub retry: Retry,
    /// Communication id of the peer; 0: not known yet.
    pub peer: u32,
    pub psn: u32,
    /// True if the program knows the id: an id made by a request has no events of its own before it is accepted.
    pub known: bool,
    /// The listener, until the program has got its request event.
    pub awaited_by: Option<IdKey>,
    pub reported: u32,
    pub timer: Option<u64>,
}

/// The repetition of a request for which there is no listener, for a moment before that is reported: over a network the
/// request would have travelled, and programs close a port and listen at it again in between.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Retry {
    pub next: Option<u64>,
    pub pause: u64,
    pub until: u64,
}

/// The state that the lock protects.
pub(crate) struct State {
    pub nic: &'static Nic,
    pub any_user: bool,
    pub instance: u128,
    pub ids: HashMap<IdKey, Id>,
    pub last_id: u32,
    /// Ids made by requests, by link and the peer's communication id.
    pub by_peer: HashMap<(LinkKey, u32), IdKey>,
    pub ports: Ports,
    pub links: Links,
    pub tcp: Tcp,
    pub epoll: Option<Arc<TrackedFd>>,
    pub wake: Option<Arc<TrackedFd>>,
    pub timers: BTreeSet<(u64, IdKey)>,
    pub sleeps_until: u64,
    /// Ids whose request no listener took; the thread must look up whether a process listens at the port all the same.
    pub unheard: Vec<IdKey>,
}
pub(crate) fn random_u32() -> u32 {
    let mut bytes = [0u8; 4];
    // Without random numbers the clock is used: uniqueness is checked where it matters.
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(4) => u32::from_ne_bytes(bytes),
        _ => nic::now() as u32,
    }
}
impl Id {
    /// True if the connection is established, and not over yet.
    pub(crate) fn is_connected(&self) -> bool {
        self.conn.as_ref().is_some_and(|conn| conn.state() == crate::conn::State::Established)
            || self.mpa.as_ref().is_some_and(|mpa| mpa.state == crate::mpa::State::Established)
    }

    /// The claim that the id would make at an address.
    pub(crate) fn claim(&self, addr: &SocketAddr) -> Claim {
        let only = self.options.only.unwrap_or_else(|| addr.is_ipv4() || bindv6only());
        Claim { addr: *addr, only, reuse: self.options.reuse }
    }
}

impl State {
    pub(crate) fn fds(&self) -> &Arc<FdSet> {
        self.nic.fd_set()
    }

    pub(crate) fn add_id(&mut self, channel: Arc<Channel>, token: u64, port_space: u16, qp_type: u32) -> IdKey {
        let key = loop {
            self.last_id = self.last_id.wrapping_add(1);
            let key = IdKey(self.last_id);
            if key.0 != 0 && !self.ids.contains_key(&key) {
                break key;
            }
        };
        let id = Id {
            token,
            channel,
            port_space,
            qp_type,
            phase: Phase::Idle,
            src: None,
            dst: None,
            device: None,
            removed: false,
            wire: Wire::None,
            options: Options::default(),
            only: false,
            port: None,
            kept: None,
            listener: None,
            conn: None,
            mpa: None,
            link: None,
            farewell: None,
            link_may_be_stale: false,
            retry: Retry::default(),
            peer: 0,
            psn: random_u32() & 0xff_ffff,
            known: true,
            awaited_by: None,
            reported: 0,
            timer: None,
        };
        self.ids.insert(key, id);
        key
    }

    /// The id, for a call that changes it. ENXIO: its device was removed (Linux: `ucma_get_ctx`).
    pub(crate) fn id(&mut self, id: IdKey) -> Result<&mut Id> {
        let entry = self.ids.get_mut(&id).ok_or(Errno::ENOENT)?;
        if entry.removed { Err(Errno::ENXIO) } else { Ok(entry) }
    }

    /// Queue an event for the program.
    pub(crate) fn tell(&mut self, id: IdKey, event: Event) {
        let Some(entry) = self.ids.get(&id) else { return };
        if entry.known {
            entry.channel.push(Queued { id, child: None, event });
        }
    }

    /// Call a function on a connection, then send and queue what it has put out.
    pub(crate) fn with_conn<T>(
        &mut self,
        id: IdKey,
        work: impl FnOnce(&mut Conn, u64, &mut Vec<Out>) -> T,
    ) -> Option<T> {
        let mut out = Vec::new();
        let conn = self.ids.get_mut(&id)?.conn.as_mut()?;
        let result = work(conn, nic::now(), &mut out);
        self.mind(id);
        for out in out {
            match out {
                Out::Send(body) => self.send_body(id, body),
                Out::Tell(event) => self.tell(id, event),
            }
        }
        Some(result)
    }

    pub(crate) fn with_result(
        &mut self,
        id: IdKey,
        work: impl FnOnce(&mut Conn, u64, &mut Vec<Out>) -> Result<()>,
    ) -> Result<()> {
        self.id(id)?;
        self.with_conn(id, work).unwrap_or(Err(Errno::EINVAL))
    }

    /// Set the id's timer to the next time at which something is to be done about it.
    pub(crate) fn mind(&mut self, id: IdKey) {
        let Some(entry) = self.ids.get(&id) else { return };
        let deadline = entry.conn.as_ref().and_then(Conn::deadline);
        let next = [deadline, entry.retry.next].into_iter().flatten().min();
        self.set_timer(id, next);
    }

    fn set_timer(&mut self, id: IdKey, deadline: Option<u64>) {
        let Some(entry) = self.ids.get_mut(&id) else { return };
        if entry.timer == deadline {
            return;
        }
        if let Some(old) = std::mem::replace(&mut entry.timer, deadline) {
            self.timers.remove(&(old, id));
        }
        if let Some(at) = deadline {
            self.timers.insert((at, id));
            if at < self.sleeps_until {
                self.sleeps_until = at;
                self.wake();
            }
        }
    }

    /// Wake the thread.
    pub(crate) fn wake(&self) {
        if let Some(wake) = &self.wake {
            let _ = rustix::io::write(wake.as_fd(), &1u64.to_ne_bytes());
        }
    }

    /// The time until which the thread may sleep.
    pub(crate) fn sleep(&mut self) -> u64 {
        let ids = self.timers.first().map_or(u64::MAX, |(at, _)| *at);
        let tcp = self.tcp.timers.first().map_or(u64::MAX, |(at, _)| *at);
        self.sleeps_until = ids.min(tcp);
        self.sleeps_until
    }

    pub(crate) fn timeouts(&mut self, now: u64) {
        while let Some(&(at, id)) = self.timers.first() {
            if at > now {
                return;
            }
            self.timers.pop_first();
            let Some(entry) = self.ids.get_mut(&id) else { continue };
            entry.timer = None;
            if entry.retry.next.is_some_and(|at| at <= now) {
                entry.retry.next = None;
                self.ask_again(id);
            }
            self.with_conn(id, |conn, now, out| conn.timeout(now, out));
        }
    }

    pub(crate) fn destroy(&mut self, id: IdKey) -> Option<u32> {
        self.with_conn(id, |conn, _, out| conn.destroy(out));
        self.leave_mpa(id);
        let entry = self.ids.remove(&id)?;
        if let Some(at) = entry.timer {
            self.timers.remove(&(at, id));
        }
        if let Some(port) = &entry.port {
            self.release_port(entry.port_space, port);
        }
        if let Some(link) = entry.link {
            self.by_peer.remove(&(link, entry.peer));
        }
        // Requests that the program has not got yet are destroyed with their listener.
        let children: Vec<IdKey> =
            entry.channel.take_out(|q| q.id == id).into_iter().filter_map(|queued| queued.child).collect();
        if let Some(listener) = entry.listener {
            self.unwatch(&listener.socket);
            if let Some(tcp) = &listener.tcp {
                self.unwatch(tcp);
            }
            self.forget_requests(id);
            for child in children {
                self.destroy(child);
            }
            for (link, message) in listener.parked {
                self.refuse(link, &message, reason::INVALID_SERVICE_ID, sidr::UNSUPPORTED);
            }
            // A process that connected to the socket and was not accepted yet sees it close.
            crate::socket::close_listener(listener.socket, self.fds());
        }
        Some(entry.reported)
    }
}

/// `net.ipv6.bindv6only`.
fn bindv6only() -> bool {
    std::fs::read("/proc/sys/net/ipv6/bindv6only").is_ok_and(|b| b.first() == Some(&b'1'))
}
