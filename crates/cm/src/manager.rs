//! Ids, and what a program does with them: the calls of librdmacm as the kernel's `rdma_cm` answers them.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;

use memory::fds::{FdSet, TrackedFd};
use nic::Nic;
use parking_lot::{Mutex, MutexGuard};
use verbs::{Errno, Gid, Result};

use crate::channel::{Channel, Got, Queued};
use crate::conn::{self, Conn, Out, reason, sidr};
use crate::event::{Ece, Event, EventKind};
use crate::links::{LinkKey, Links, Token};
use crate::message::{Body, Half, Message, Service};
use crate::names::{self, Claim, is_wildcard};
use crate::ports::{self, Port, Ports, at_port};
use crate::route::{self, Wire};

/// `enum rdma_port_space`.
pub mod port_space {
    #![allow(missing_docs)]
    pub const IPOIB: u16 = 0x0002;
    pub const TCP: u16 = 0x0106;
    pub const UDP: u16 = 0x0111;
    pub const IB: u16 = 0x013f;
}

/// `IBV_QPT_UD`.
const UD: u32 = 4;
/// The queue key of datagram services (`RDMA_UDP_QKEY`).
pub const UDP_QKEY: u32 = 0x0123_4567;
/// Requests that a listener with no backlog of its own keeps (Linux: `net.rdma_ucm.max_backlog`).
const MAX_BACKLOG: u32 = 1024;
/// Requests beyond the backlog that wait at a listener for room, as repetitions of the REQ would.
const MAX_PARKED: usize = 16_384;

/// An id's name: its communication id in messages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct IdKey(pub u32);

/// How far an id has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    Idle,
    Bound,
    AddrResolved,
    RouteResolved,
    Listen,
    Connect,
}

/// What `rdma_set_option` sets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// RDMA_OPTION_ID_TOS.
    pub tos: u8,
    /// RDMA_OPTION_ID_REUSEADDR.
    pub reuse: bool,
    /// RDMA_OPTION_ID_AFONLY; `None`: the system's default.
    pub only: Option<bool>,
    /// RDMA_OPTION_ID_ACK_TIMEOUT: 4.096 us * 2^n.
    pub ack_timeout: Option<u8>,
}

/// What `rdma_connect` and `rdma_accept` are given.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)] // the names are the man page's
pub struct ConnectParams {
    pub qpn: u32,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: bool,
    pub ece: Ece,
    pub data: Vec<u8>,
}

/// What an id knows of its addresses and its connection.
#[derive(Clone, Debug)]
pub struct View {
    /// Our address.
    pub src: Option<SocketAddr>,
    /// The peer's.
    pub dst: Option<SocketAddr>,
    /// The id is bound to the device.
    pub device: bool,
    /// Row of the GID table that stands for `src`.
    pub sgid_index: u8,
    /// That row's GID.
    pub sgid: Gid,
    /// The peer's GID.
    pub dgid: Gid,
    /// A route is known.
    pub routed: bool,
    /// The handshake's state and halves, once there is one.
    pub conn: Option<(conn::State, Half, Half)>,
    /// The first sequence number that we send.
    pub psn: u32,
    /// Options.
    pub options: Options,
}

pub(crate) struct Listener {
    pub socket: TrackedFd,
    room: u32,
    pub parked: VecDeque<(LinkKey, Message)>,
}

pub(crate) struct Id {
    token: u64,
    channel: Arc<Channel>,
    pub port_space: u16,
    qp_type: u32,
    phase: Phase,
    src: Option<SocketAddr>,
    dst: Option<SocketAddr>,
    device: bool,
    wire: Wire,
    options: Options,
    only: bool,
    pub port: Option<Port>,
    pub listener: Option<Listener>,
    conn: Option<Conn>,
    pub link: Option<LinkKey>,
    /// The link was there before the request: its process may have stopped listening.
    link_may_be_stale: bool,
    /// Communication id of the peer; 0: not known yet.
    pub peer: u32,
    psn: u32,
    /// The program knows of it: an id made by a request has no events of its own before it is accepted.
    known: bool,
    /// The listener whose request event has not been got yet.
    awaited_by: Option<IdKey>,
    reported: u32,
    timer: Option<u64>,
}

/// What the lock protects.
pub(crate) struct State {
    nic: &'static Nic,
    pub any_user: bool,
    pub instance: u128,
    pub ids: HashMap<IdKey, Id>,
    last_id: u32,
    /// Ids made by requests, by link and the peer's communication id.
    pub by_peer: HashMap<(LinkKey, u32), IdKey>,
    pub ports: Ports,
    pub links: Links,
    pub epoll: Option<Arc<TrackedFd>>,
    pub wake: Option<Arc<TrackedFd>>,
    timers: BTreeSet<(u64, IdKey)>,
    sleeps_until: u64,
    log: bool,
}

/// The connection manager of a process.
pub struct Cm {
    nic: &'static Nic,
    state: Mutex<State>,
}

pub(crate) fn random_u32() -> u32 {
    let mut bytes = [0u8; 4];
    // Without random numbers the clock has to do: uniqueness is checked where it matters.
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(4) => u32::from_ne_bytes(bytes),
        _ => nic::now() as u32,
    }
}

impl Cm {
    /// For the adapter of this process. Does nothing yet: no thread, no socket.
    pub fn new(nic: &'static Nic) -> Self {
        let log = std::env::var("SOFTRNIC_LOG").unwrap_or_default();
        let instance = (0..4).fold(0u128, |n, _| n << 32 | u128::from(random_u32()));
        let state = State {
            nic,
            any_user: std::env::var("SOFTRNIC_PEERS").is_ok_and(|v| v == "any"),
            instance,
            ids: HashMap::new(),
            last_id: random_u32(),
            by_peer: HashMap::new(),
            ports: Ports::default(),
            links: Links::default(),
            epoll: None,
            wake: None,
            timers: BTreeSet::new(),
            sleeps_until: u64::MAX,
            log: !matches!(log.as_str(), "" | "0" | "off"),
        };
        Cm { nic, state: Mutex::new(state) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn alive(&self) -> bool {
        self.nic.alive()
    }

    /// Makes an id (rdma_create_id(3)). `token` comes back with its events.
    ///
    /// # Errors
    /// EINVAL: no such port space.
    pub fn create_id(&self, channel: &Arc<Channel>, token: u64, port_space: u32, qp_type: u32) -> Result<IdKey> {
        let space = u16::try_from(port_space).map_err(|_| Errno::EINVAL)?;
        let qp_type = match space {
            port_space::TCP => 2,
            port_space::UDP | port_space::IPOIB => UD,
            port_space::IB => qp_type,
            _ => return Err(Errno::EINVAL),
        };
        Ok(self.lock().add_id(channel.clone(), token, space, qp_type))
    }

    /// Names the structure that a new id's events shall bring along.
    pub fn set_token(&self, id: IdKey, token: u64) {
        if let Some(id) = self.lock().ids.get_mut(&id) {
            id.token = token;
        }
    }

    /// Destroys an id: the peer is told, waiting events are dropped. Gives how many events the program has got.
    pub fn destroy_id(&self, id: IdKey) -> Result<u32> {
        self.lock().destroy(id).ok_or(Errno::ENOENT)
    }

    /// Binds to an address (rdma_bind_addr(3)).
    ///
    /// # Errors
    /// EINVAL: bound already, or a link-local address without scope; EADDRNOTAVAIL: no address of this host, or the
    /// port is taken for all addresses; EADDRINUSE; EACCES.
    pub fn bind(&'static self, id: IdKey, addr: &SocketAddr) -> Result<()> {
        self.ask_owner(id, addr)?;
        let mut state = self.lock();
        self.run(&mut state)?;
        state.bind(id, addr)
    }

    /// If another process gives out the port's block: whether it may be claimed.
    fn ask_owner(&self, id: IdKey, addr: &SocketAddr) -> Result<()> {
        let state = self.lock();
        let entry = state.ids.get(&id).ok_or(Errno::ENOENT)?;
        if addr.port() == 0 || entry.phase != Phase::Idle || state.is_own_block(entry.port_space, addr.port()) {
            return Ok(());
        }
        let (space, any_user) = (entry.port_space, state.any_user);
        let claim = entry.claim(addr);
        drop(state);
        ports::ask_owner(space, &claim, any_user)
    }

    /// Listens (rdma_listen(3)).
    ///
    /// # Errors
    /// EINVAL: not in a state to; EADDRINUSE, EADDRNOTAVAIL.
    pub fn listen(&'static self, id: IdKey, backlog: i32) -> Result<()> {
        let mut state = self.lock();
        self.run(&mut state)?;
        state.listen(id, backlog)
    }

    /// Finds the way to an address (rdma_resolve_addr(3)); the event follows.
    ///
    /// # Errors
    /// EINVAL: not in a state to, families that differ; ENETUNREACH and its like; as [`Cm::bind`].
    pub fn resolve_addr(&'static self, id: IdKey, src: Option<&SocketAddr>, dst: &SocketAddr) -> Result<()> {
        if let Some(src) = src {
            self.ask_owner(id, src)?;
        }
        let mut state = self.lock();
        self.run(&mut state)?;
        state.resolve_addr(id, src, dst)
    }

    /// Finds the route (rdma_resolve_route(3)); the event follows.
    ///
    /// # Errors
    /// EINVAL: no address was resolved.
    pub fn resolve_route(&self, id: IdKey) -> Result<()> {
        let mut state = self.lock();
        let entry = state.ids.get_mut(&id).ok_or(Errno::ENOENT)?;
        if entry.phase != Phase::AddrResolved {
            return Err(Errno::EINVAL);
        }
        entry.phase = Phase::RouteResolved;
        state.tell(id, Event::new(EventKind::RouteResolved));
        Ok(())
    }

    /// Asks for a connection, or for a datagram service (rdma_connect(3)); the event follows.
    ///
    /// # Errors
    /// EINVAL: no route, too much private data.
    pub fn connect(&'static self, id: IdKey, params: ConnectParams) -> Result<()> {
        let mut state = self.lock();
        self.run(&mut state)?;
        state.connect(id, params)
    }

    /// Accepts a request (rdma_accept(3)).
    ///
    /// # Errors
    /// EINVAL: there is no request (any more), too much private data; the request is then rejected.
    pub fn accept(&self, id: IdKey, params: ConnectParams) -> Result<()> {
        self.lock().accept(id, params)
    }

    /// Active side without a queue pair of the id's: it is ready (rdma_establish(3)).
    ///
    /// # Errors
    /// EINVAL: no response has come.
    pub fn established(&self, id: IdKey) -> Result<()> {
        self.lock().with_result(id, |conn, _, out| conn.ready(out))
    }

    /// Rejects (rdma_reject(3)).
    ///
    /// # Errors
    /// EINVAL: nothing to reject, too much private data.
    pub fn reject(&self, id: IdKey, reason: u16, data: Vec<u8>) -> Result<()> {
        let mut state = self.lock();
        let datagram = state.ids.get(&id).ok_or(Errno::ENOENT)?.qp_type == UD;
        state.with_result(id, |conn, now, out| {
            if datagram { conn.answer(sidr::REJECT, 0, 0, data, out) } else { conn.reject(reason, data, now, out) }
        })
    }

    /// Ends the connection, or agrees that it has ended (rdma_disconnect(3)).
    ///
    /// # Errors
    /// EINVAL: there never was one.
    pub fn disconnect(&self, id: IdKey) -> Result<()> {
        self.lock().with_result(id, |conn, now, out| {
            conn.disconnect(now, out);
            Ok(())
        })
    }

    /// Data came before the last message of the handshake (rdma_notify(3)).
    ///
    /// # Errors
    /// EISCONN: established already; EINVAL: not waiting for it.
    pub fn data_came(&self, id: IdKey) -> Result<()> {
        self.lock().with_result(id, |conn, _, out| conn.data_came(out))
    }

    /// Moves an id and its waiting events to another channel (rdma_migrate_id(3)). Gives how many events the program
    /// has got so far.
    pub fn migrate(&self, id: IdKey, to: &Arc<Channel>) -> Result<u32> {
        let mut state = self.lock();
        let entry = state.ids.get_mut(&id).ok_or(Errno::ENOENT)?;
        let from = std::mem::replace(&mut entry.channel, to.clone());
        let reported = entry.reported;
        if !Arc::ptr_eq(&from, to) {
            for queued in from.take_out(|q| q.id == id) {
                to.push(queued);
            }
        }
        Ok(reported)
    }

    /// Sets options that can be set at any time (rdma_set_option(3)).
    ///
    /// # Errors
    /// ENOENT: no such id.
    pub fn set_options(&self, id: IdKey, change: impl FnOnce(&mut Options)) -> Result<()> {
        change(&mut self.lock().id(id)?.options);
        Ok(())
    }

    /// Whether the port may be shared (`rdma_set_reuseaddr` of Linux).
    ///
    /// # Errors
    /// EINVAL: listening; or taken back after binding.
    pub fn set_reuse(&self, id: IdKey, reuse: bool) -> Result<()> {
        let mut state = self.lock();
        let entry = state.id(id)?;
        if entry.phase == Phase::Idle || reuse && entry.phase != Phase::Listen {
            entry.options.reuse = reuse;
            return state.change_claim_of(id, |claim| claim.reuse = reuse);
        }
        Err(Errno::EINVAL)
    }

    /// Whether the id keeps to its address family (`rdma_set_afonly` of Linux).
    ///
    /// # Errors
    /// EINVAL: past binding.
    pub fn set_only(&self, id: IdKey, only: bool) -> Result<()> {
        let mut state = self.lock();
        let entry = state.id(id)?;
        if !matches!(entry.phase, Phase::Idle | Phase::Bound) {
            return Err(Errno::EINVAL);
        }
        (entry.options.only, entry.only) = (Some(only), only);
        state.change_claim_of(id, |claim| claim.only = only)
    }

    /// What is known of an id.
    pub fn view(&self, id: IdKey) -> Result<View> {
        let state = self.lock();
        let entry = state.ids.get(&id).ok_or(Errno::ENOENT)?;
        let gids = state.nic.gids();
        let gid = |addr: Option<SocketAddr>| match addr {
            Some(addr) if !is_wildcard(&addr) => route::gid_of(gids, &addr),
            _ => (0, Gid::ZERO),
        };
        let (sgid_index, sgid) = gid(entry.src);
        Ok(View {
            src: entry.src,
            dst: entry.dst,
            device: entry.device,
            sgid_index,
            sgid,
            dgid: gid(entry.dst).1,
            routed: matches!(entry.phase, Phase::RouteResolved | Phase::Connect),
            conn: entry.conn.as_ref().map(|c| (c.state(), c.local.clone(), c.remote.clone())),
            psn: entry.psn,
            options: entry.options,
        })
    }

    /// The id may join groups (`rdma_join_multicast` of Linux: bound or resolved).
    ///
    /// # Errors
    /// EINVAL.
    pub fn may_join(&self, id: IdKey) -> Result<()> {
        let state = self.lock();
        let entry = state.ids.get(&id).ok_or(Errno::ENOENT)?;
        let phase = matches!(entry.phase, Phase::Bound | Phase::AddrResolved | Phase::RouteResolved);
        if phase && entry.qp_type == UD && entry.device { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Puts an event of the library's or the program's own making into the id's channel.
    ///
    /// # Errors
    /// ENOENT: no such id.
    pub fn write_event(&self, id: IdKey, event: Event) -> Result<()> {
        let mut state = self.lock();
        if !state.ids.contains_key(&id) {
            return Err(Errno::ENOENT);
        }
        state.tell(id, event);
        Ok(())
    }

    /// Drops waiting events of an id that the test names.
    pub fn drop_events(&self, id: IdKey, which: impl Fn(&Event) -> bool) {
        let state = self.lock();
        if let Some(entry) = state.ids.get(&id) {
            entry.channel.take_out(|q| q.id == id && which(&q.event));
        }
    }

    /// Waits for an event (rdma_get_cm_event(3)). It must be acknowledged.
    ///
    /// # Errors
    /// EAGAIN when O_NONBLOCK is set and nothing waits; EINTR.
    pub fn get_event(&self, channel: &Channel) -> Result<Got> {
        loop {
            channel.bell.wait()?;
            let mut state = self.lock();
            let Some(queued) = channel.queue.lock().pop_front() else {
                drop(state);
                // The event went with its id, between the ring and the lock.
                if channel.bell.nonblocking() {
                    return Err(Errno::EAGAIN);
                }
                continue;
            };
            let Some(id) = state.ids.get_mut(&queued.id) else { continue };
            id.reported += 1;
            let token = id.token;
            if let Some(child) = queued.child {
                if let Some(child) = state.ids.get_mut(&child) {
                    child.awaited_by = None;
                }
                state.make_room(queued.id);
            }
            return Ok(Got { token, child: queued.child, event: queued.event });
        }
    }
}

impl Id {
    /// What the id would claim at an address.
    fn claim(&self, addr: &SocketAddr) -> Claim {
        let only = self.options.only.unwrap_or_else(|| addr.is_ipv4() || bindv6only());
        Claim { addr: *addr, only, reuse: self.options.reuse }
    }
}

impl State {
    pub(crate) fn fds(&self) -> &Arc<FdSet> {
        self.nic.fd_set()
    }

    fn add_id(&mut self, channel: Arc<Channel>, token: u64, port_space: u16, qp_type: u32) -> IdKey {
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
            device: false,
            wire: Wire::None,
            options: Options::default(),
            only: false,
            port: None,
            listener: None,
            conn: None,
            link: None,
            link_may_be_stale: false,
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

    fn id(&mut self, id: IdKey) -> Result<&mut Id> {
        self.ids.get_mut(&id).ok_or(Errno::ENOENT)
    }

    /// An event for the program.
    fn tell(&mut self, id: IdKey, event: Event) {
        let Some(entry) = self.ids.get(&id) else { return };
        if entry.known {
            entry.channel.push(Queued { id, child: None, event });
        }
    }

    /// Does something with a connection, and what follows from it.
    pub(crate) fn with_conn<T>(
        &mut self,
        id: IdKey,
        work: impl FnOnce(&mut Conn, u64, &mut Vec<Out>) -> T,
    ) -> Option<T> {
        let mut out = Vec::new();
        let conn = self.ids.get_mut(&id)?.conn.as_mut()?;
        let result = work(conn, nic::now(), &mut out);
        let deadline = conn.deadline();
        self.set_timer(id, deadline);
        for out in out {
            match out {
                Out::Send(body) => self.send_body(id, body),
                Out::Tell(event) => self.tell(id, event),
            }
        }
        Some(result)
    }

    fn with_result(&mut self, id: IdKey, work: impl FnOnce(&mut Conn, u64, &mut Vec<Out>) -> Result<()>) -> Result<()> {
        if !self.ids.contains_key(&id) {
            return Err(Errno::ENOENT);
        }
        self.with_conn(id, work).unwrap_or(Err(Errno::EINVAL))
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
                if let Some(wake) = &self.wake {
                    let _ = rustix::io::write(wake.as_fd(), &1u64.to_ne_bytes());
                }
            }
        }
    }

    /// Until when the thread may sleep.
    pub(crate) fn sleep(&mut self) -> u64 {
        self.sleeps_until = self.timers.first().map_or(u64::MAX, |(at, _)| *at);
        self.sleeps_until
    }

    pub(crate) fn timeouts(&mut self, now: u64) {
        while let Some(&(at, id)) = self.timers.first() {
            if at > now {
                return;
            }
            self.timers.pop_first();
            if let Some(entry) = self.ids.get_mut(&id) {
                entry.timer = None;
            }
            self.with_conn(id, |conn, now, out| conn.timeout(now, out));
        }
    }

    fn destroy(&mut self, id: IdKey) -> Option<u32> {
        self.with_conn(id, |conn, _, out| conn.destroy(out));
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
        // Requests that the program has not heard of go with their listener.
        let children: Vec<IdKey> =
            entry.channel.take_out(|q| q.id == id).into_iter().filter_map(|queued| queued.child).collect();
        if let Some(listener) = entry.listener {
            self.unwatch(&listener.socket);
            for child in children {
                self.destroy(child);
            }
            for (link, message) in listener.parked {
                self.refuse(link, &message, reason::INVALID_SERVICE_ID, sidr::UNSUPPORTED);
            }
            // Who connected to the socket and was not accepted yet sees it close.
        }
        Some(entry.reported)
    }

    fn bind(&mut self, id: IdKey, addr: &SocketAddr) -> Result<()> {
        let entry = self.id(id)?;
        if entry.phase != Phase::Idle {
            return Err(Errno::EINVAL);
        }
        if let SocketAddr::V6(v6) = addr
            && v6.ip().is_unicast_link_local()
            && v6.scope_id() == 0
        {
            return Err(Errno::EINVAL);
        }
        let (claim, space) = (entry.claim(addr), entry.port_space);
        let wildcard = is_wildcard(addr);
        if !wildcard && !crate::socket::is_local(addr)? {
            return Err(Errno::EADDRNOTAVAIL);
        }
        let port = self.claim_port(space, claim)?;
        let entry = self.id(id)?;
        entry.src = Some(port.claim.addr);
        entry.only = port.claim.only;
        entry.port = Some(port);
        entry.device = !wildcard;
        entry.phase = Phase::Bound;
        Ok(())
    }

    fn change_claim_of(&mut self, id: IdKey, change: impl FnOnce(&mut Claim)) -> Result<()> {
        let entry = self.id(id)?;
        let space = entry.port_space;
        let Some(mut port) = entry.port.take() else { return Ok(()) };
        let mut claim = port.claim.clone();
        change(&mut claim);
        let changed = self.change_claim(space, &mut port, claim);
        self.id(id)?.port = Some(port);
        changed
    }

    fn listen(&mut self, id: IdKey, backlog: i32) -> Result<()> {
        if self.id(id)?.phase == Phase::Idle {
            self.bind(id, &SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
        }
        let entry = self.id(id)?;
        if entry.phase != Phase::Bound {
            return Err(Errno::EINVAL);
        }
        let space = entry.port_space;
        let port = entry.port.take().ok_or(Errno::EINVAL)?;
        let claimed = self.claim_listener(space, &port);
        let entry = self.id(id)?;
        entry.port = Some(port);
        let socket = claimed?;
        self.watch(&socket, Token::Listener(id))?;
        let room = u32::try_from(backlog).ok().filter(|n| (1..MAX_BACKLOG).contains(n)).unwrap_or(MAX_BACKLOG);
        let entry = self.id(id)?;
        entry.listener = Some(Listener { socket, room, parked: VecDeque::new() });
        entry.phase = Phase::Listen;
        entry.options.reuse = false;
        Ok(())
    }

    fn resolve_addr(&mut self, id: IdKey, src: Option<&SocketAddr>, dst: &SocketAddr) -> Result<()> {
        let entry = self.id(id)?;
        if entry.phase == Phase::Idle {
            let any = match dst {
                SocketAddr::V4(_) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
                SocketAddr::V6(_) => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
            };
            self.bind(id, src.unwrap_or(&any))?;
        }
        let entry = self.id(id)?;
        let from = entry.src.ok_or(Errno::EINVAL)?;
        if entry.phase != Phase::Bound || from.is_ipv4() != dst.is_ipv4() {
            return Err(Errno::EINVAL);
        }
        let route = route::find(&from, dst)?;
        let entry = self.id(id)?;
        entry.src = Some(at_port(&route.src, from.port()));
        entry.dst = Some(route.dst);
        entry.wire = route.wire;
        entry.device = true;
        entry.phase = Phase::AddrResolved;
        let src = at_port(&route.src, from.port());
        self.change_claim_of(id, |claim| claim.addr = src)?;
        self.tell(id, Event::new(EventKind::AddrResolved));
        Ok(())
    }

    fn connect(&mut self, id: IdKey, params: ConnectParams) -> Result<()> {
        let entry = self.id(id)?;
        let (Some(src), Some(dst), Phase::RouteResolved) = (entry.src, entry.dst, entry.phase) else {
            return Err(Errno::EINVAL);
        };
        let service = Service { port_space: entry.port_space, qp_type: entry.qp_type as u8, src, dst };
        let (wire, space, datagram, psn) = (entry.wire, entry.port_space, entry.qp_type == UD, entry.psn);
        let mut conn = Conn::default();
        let mut out = Vec::new();
        let now = nic::now();
        if datagram {
            conn.look_up(service, params.data, now, &mut out)?;
        } else {
            let (half, data) = half(params, psn);
            conn.connect(service, half, data, now, &mut out)?;
        }
        let entry = self.id(id)?;
        entry.conn = Some(conn);
        entry.phase = Phase::Connect;
        if wire == Wire::None {
            if self.log {
                let pid = std::process::id();
                eprintln!(
                    "softrnic[{pid}]: rdma_connect to {dst}: not an address of this host, and no wire leads there"
                );
            }
            self.with_conn(id, |conn, _, out| conn.unreachable(out));
            return Ok(());
        }
        let Some(Out::Send(body)) = out.pop() else { return Err(Errno::EIO) };
        self.ask(id, space, &dst, body);
        let deadline = self.id(id)?.conn.as_ref().and_then(Conn::deadline);
        self.set_timer(id, deadline);
        Ok(())
    }

    /// Sends a request to whoever listens.
    fn ask(&mut self, id: IdKey, space: u16, dst: &SocketAddr, body: Body) {
        // A second try when the process that a kept link leads to has just died.
        for _ in 0..2 {
            match self.link_to(space, dst) {
                Ok(Some((link, old))) => {
                    if !self.send(link, &Message { from: id.0, to: 0, body: body.clone() }) {
                        continue;
                    }
                    if let Some(entry) = self.ids.get_mut(&id) {
                        (entry.link, entry.link_may_be_stale) = (Some(link), old);
                    }
                    return;
                }
                Ok(None) | Err(Errno::EACCES) => break,
                // The repetition of the request tries again.
                Err(_) => return,
            }
        }
        // The service is known, and says no, if somebody listens at the port for another address (Linux).
        let (status, reason) = match ports::has_listener(space, dst.port()) {
            true => (sidr::REJECT, reason::CONSUMER),
            false => (sidr::UNSUPPORTED, reason::INVALID_SERVICE_ID),
        };
        let nobody = match body {
            Body::SidrReq { .. } => Body::SidrRep { status, qpn: 0, qkey: 0, data: Vec::new() },
            _ => Body::Rej { reason, data: Vec::new() },
        };
        self.with_conn(id, |conn, now, out| conn.receive(nobody, now, out));
    }

    fn accept(&mut self, id: IdKey, params: ConnectParams) -> Result<()> {
        let entry = self.id(id)?;
        let (datagram, psn) = (entry.qp_type == UD, entry.psn);
        let result = self.with_result(id, |conn, now, out| {
            if datagram {
                conn.answer(sidr::SUCCESS, params.qpn, UDP_QKEY, params.data, out)
            } else {
                let (half, data) = half(params, psn);
                conn.accept(half, data, now, out)
            }
        });
        match result {
            Ok(()) => self.id(id)?.known = true,
            Err(_) => {
                let _ = self.with_result(id, |conn, now, out| conn.reject(reason::CONSUMER, Vec::new(), now, out));
            }
        }
        result
    }

    /// A message came over a link.
    pub(crate) fn received(&mut self, link: LinkKey, message: Message) {
        if matches!(message.body, Body::Req { .. } | Body::SidrReq { .. }) {
            if let Some(&id) = self.by_peer.get(&(link, message.from)) {
                self.with_conn(id, |conn, now, out| conn.receive(message.body, now, out));
            } else {
                self.request(link, message);
            }
            return;
        }
        if let Body::Ask { port_space, claim } = &message.body {
            let errno = self.answer(*port_space, claim).err().map_or(0, |e| e.0 as u16);
            self.send(link, &Message { from: message.to, to: message.from, body: Body::Answer { errno } });
            return;
        }
        // Who gives up before an answer came does not know our number.
        let id = match message.to {
            0 => {
                self.forget_parked(link, message.from);
                self.by_peer.get(&(link, message.from)).copied().unwrap_or(IdKey(0))
            }
            to => IdKey(to),
        };
        let expected =
            self.ids.get(&id).is_some_and(|e| e.link == Some(link) && (e.peer == 0 || e.peer == message.from));
        if !expected {
            if message.body == Body::Dreq {
                self.send(link, &Message { from: message.to, to: message.from, body: Body::Drep });
            }
            return;
        }
        let nobody = matches!(message.body, Body::Rej { reason: reason::INVALID_SERVICE_ID, .. })
            || matches!(message.body, Body::SidrRep { status: sidr::UNSUPPORTED, .. });
        let Some(entry) = self.ids.get_mut(&id) else { return };
        if nobody
            && std::mem::take(&mut entry.link_may_be_stale)
            && let (Some(dst), Some(body)) = (entry.dst, entry.conn.as_ref().and_then(Conn::request))
        {
            let space = entry.port_space;
            entry.link = None;
            self.forget_name(link);
            self.ask(id, space, &dst, body);
            if let Some(entry) = self.ids.get_mut(&id) {
                // Looked up just now: what the next answer says is final.
                entry.link_may_be_stale = false;
            }
            return;
        }
        entry.peer = message.from;
        self.with_conn(id, |conn, now, out| conn.receive(message.body, now, out));
    }

    /// A request that waits for room in a backlog is withdrawn.
    fn forget_parked(&mut self, link: LinkKey, peer: u32) {
        for listener in self.ids.values_mut().filter_map(|id| id.listener.as_mut()) {
            listener.parked.retain(|(l, m)| *l != link || m.from != peer);
        }
    }

    /// A request: finds its listener.
    fn request(&mut self, link: LinkKey, message: Message) {
        let service = match &message.body {
            Body::Req { service, .. } | Body::SidrReq { service, .. } => service,
            _ => return,
        };
        let hears = |entry: &Id| {
            entry.phase == Phase::Listen
                && entry.port_space == service.port_space
                && entry
                    .src
                    .is_some_and(|src| src.port() == service.dst.port() && names::hears(&src, entry.only, &service.dst))
        };
        // The most specific one.
        let found = self.ids.iter().filter(|(_, entry)| hears(entry));
        let listener = found.min_by_key(|(_, entry)| entry.src.is_none_or(|src| is_wildcard(&src))).map(|(&k, _)| k);
        let Some(listener) = listener else {
            return self.refuse(link, &message, reason::INVALID_SERVICE_ID, sidr::UNSUPPORTED);
        };
        self.offer(listener, link, message);
    }

    fn refuse(&mut self, link: LinkKey, message: &Message, reason: u16, status: u16) {
        let body = match message.body {
            Body::SidrReq { .. } => Body::SidrRep { status, qpn: 0, qkey: 0, data: Vec::new() },
            _ => Body::Rej { reason, data: Vec::new() },
        };
        self.send(link, &Message { from: 0, to: message.from, body });
    }

    /// Gives a request to its listener, or lets it wait for room in the backlog.
    fn offer(&mut self, listener: IdKey, link: LinkKey, message: Message) {
        let Some(entry) = self.ids.get_mut(&listener) else { return };
        let (space, qp_type, channel, options) =
            (entry.port_space, entry.qp_type, entry.channel.clone(), entry.options);
        let Some(waiting) = &mut entry.listener else { return };
        let service = match &message.body {
            Body::Req { service, .. } | Body::SidrReq { service, .. } => service.clone(),
            _ => return,
        };
        let asked_for = match (&message.body, service.qp_type) {
            (Body::SidrReq { .. }, _) => UD,
            (_, 9) => 10, // an XRC initiator asks for a target
            (_, other) => other.into(),
        };
        if asked_for != qp_type {
            return self.refuse(link, &message, reason::CONSUMER, sidr::REJECT);
        }
        if waiting.room == 0 {
            let again = waiting.parked.iter().any(|(l, m)| *l == link && m.from == message.from);
            if !again && waiting.parked.len() < MAX_PARKED {
                waiting.parked.push_back((link, message));
            }
            return;
        }
        waiting.room -= 1;
        let from = message.from;
        let Some((conn, event)) = Conn::requested(message.body) else { return };
        let child = self.add_id(channel.clone(), 0, space, qp_type);
        if let Some(entry) = self.ids.get_mut(&child) {
            entry.phase = Phase::Connect;
            (entry.src, entry.dst) = (Some(service.dst), Some(service.src));
            (entry.device, entry.wire) = (true, Wire::Host);
            entry.options = Options { reuse: false, ..options };
            entry.conn = Some(conn);
            (entry.link, entry.peer) = (Some(link), from);
            entry.known = false;
            entry.awaited_by = Some(listener);
        }
        self.by_peer.insert((link, from), child);
        channel.push(Queued { id: listener, child: Some(child), event });
    }

    /// The program has got a request: the next one that waits has room.
    fn make_room(&mut self, listener: IdKey) {
        let Some(waiting) = self.ids.get_mut(&listener).and_then(|e| e.listener.as_mut()) else { return };
        waiting.room += 1;
        if let Some((link, message)) = waiting.parked.pop_front() {
            self.offer(listener, link, message);
        }
    }
}

/// `net.ipv6.bindv6only`.
fn bindv6only() -> bool {
    std::fs::read("/proc/sys/net/ipv6/bindv6only").is_ok_and(|b| b.first() == Some(&b'1'))
}

fn half(params: ConnectParams, psn: u32) -> (Half, Vec<u8>) {
    let half = Half {
        qpn: params.qpn & 0xff_ffff,
        psn,
        responder_resources: params.responder_resources,
        initiator_depth: params.initiator_depth,
        flow_control: params.flow_control,
        retry_count: params.retry_count.min(7),
        rnr_retry_count: params.rnr_retry_count.min(7),
        srq: params.srq,
        ece: params.ece,
    };
    (half, params.data)
}
