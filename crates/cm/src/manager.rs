//! The connection manager as librdmacm's C ABI calls it: the calls of programs on ids, with the results of the kernel's
//! `rdma_cm`.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use nic::Nic;
use parking_lot::{Mutex, MutexGuard};
use report::Device;
use verbs::{Errno, Gid, LinkLayer, Result};

use crate::channel::{Channel, Got, Queued};
use crate::conn::{self, sidr};
use crate::event::{Ece, Event, EventKind};
use crate::ids::{Phase, State, UD, random_u32};
use crate::links::Links;
use crate::message::Half;
use crate::mpa::State as MpaState;
use crate::names::is_wildcard;
use crate::ports::{self, Ports};
use crate::route::{self, Wire};
use crate::tcp::Tcp;

pub use crate::ids::IdKey;

/// `enum rdma_port_space`.
pub mod port_space {
    #![allow(missing_docs)]
    pub const IPOIB: u16 = 0x0002;
    pub const TCP: u16 = 0x0106;
    pub const UDP: u16 = 0x0111;
    pub const IB: u16 = 0x013f;
}

/// The queue key of datagram services (`RDMA_UDP_QKEY`).
pub const UDP_QKEY: u32 = 0x0123_4567;
/// The options of `rdma_set_option`.
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

/// The parameters of `rdma_connect` and `rdma_accept`.
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

/// The addresses and the connection of an id.
#[derive(Clone, Debug)]
pub struct View {
    /// The id's own address.
    pub src: Option<SocketAddr>,
    /// The peer's address.
    pub dst: Option<SocketAddr>,
    /// The device that the id is on.
    pub device: Option<Device>,
    /// The port's link layer.
    pub link_layer: LinkLayer,
    /// Row of the GID table that stands for `src`.
    pub sgid_index: u8,
    /// That row's GID.
    pub sgid: Gid,
    /// The peer's GID.
    pub dgid: Gid,
    /// True if a route is known.
    pub routed: bool,
    /// The handshake's state and halves, once there is one.
    pub conn: Option<(conn::State, Half, Half)>,
    /// The first sequence number that this side sends; 24 bits.
    pub psn: u32,
    /// Options.
    pub options: Options,
}

/// The connection manager of a process.
pub struct Cm {
    nic: &'static Nic,
    state: Mutex<State>,
}
impl Cm {
    /// Make the manager for the adapter of this process. It has no thread and no socket yet.
    pub fn new(nic: &'static Nic) -> Self {
        let instance = (0..4).fold(0u128, |n, _| n << 32 | u128::from(random_u32()));
        let state = State {
            nic,
            any_user: nic.settings().any_user,
            instance,
            ids: HashMap::new(),
            last_id: random_u32(),
            by_peer: HashMap::new(),
            ports: Ports::default(),
            links: Links::default(),
            tcp: Tcp::default(),
            epoll: None,
            wake: None,
            timers: BTreeSet::new(),
            sleeps_until: u64::MAX,
            unheard: Vec::new(),
        };
        Cm { nic, state: Mutex::new(state) }
    }

    /// Take the lock, if that is possible in time.
    pub(crate) fn try_lock(&self, patience: std::time::Duration) -> Option<MutexGuard<'_, State>> {
        self.state.try_lock_for(patience)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn alive(&self) -> bool {
        self.nic.alive()
    }

    /// Make an id (rdma_create_id(3)). `token` comes back with its events.
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

    /// Set the token that a new id's events bring along.
    pub fn set_token(&self, id: IdKey, token: u64) {
        if let Some(id) = self.lock().ids.get_mut(&id) {
            id.token = token;
        }
    }

    /// Destroy an id: tell the peer, and drop the waiting events. The result is the number of events that the program
    /// has got.
    pub fn destroy_id(&self, id: IdKey) -> Result<u32> {
        self.lock().destroy(id).ok_or(Errno::ENOENT)
    }

    /// Bind an id to an address (rdma_bind_addr(3)).
    ///
    /// # Errors
    /// EINVAL: bound already, or a link-local address without scope; EADDRNOTAVAIL: no address of this host, or the
    /// port is taken for all addresses; EADDRINUSE; EACCES.
    pub fn bind(&'static self, id: IdKey, addr: &SocketAddr) -> Result<()> {
        self.ask_owner(id, addr)?;
        self.prepared(|state, prepared| state.bind(id, addr, prepared))
    }

    /// Ask the process that gives out the port's block, if it is another one, whether the port may be claimed.
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

    /// Listen (rdma_listen(3)).
    ///
    /// # Errors
    /// EINVAL: the id is in another state; EADDRINUSE, EADDRNOTAVAIL: as `names::check` has them.
    pub fn listen(&'static self, id: IdKey, backlog: i32) -> Result<()> {
        self.prepared(|state, prepared| state.listen(id, backlog, prepared))
    }

    /// Find the way to an address (rdma_resolve_addr(3)); the event follows.
    ///
    /// # Errors
    /// EINVAL: the id is in another state, or the families differ; ENETUNREACH, EHOSTUNREACH: no way; as
    /// [`Cm::bind`].
    pub fn resolve_addr(&'static self, id: IdKey, src: Option<&SocketAddr>, dst: &SocketAddr) -> Result<()> {
        if let Some(src) = src {
            self.ask_owner(id, src)?;
        }
        self.prepared(|state, prepared| state.resolve_addr(id, src, dst, prepared))
    }

    /// Take a resolved address back, whose device the id cannot have: the id is bound again, to the device that it has
    /// (Linux: `addr_handler` goes from RDMA_CM_ADDR_RESOLVED to RDMA_CM_ADDR_BOUND).
    pub fn unresolve(&self, id: IdKey, device: Option<Device>) {
        if let Ok(entry) = self.lock().id(id)
            && entry.phase == Phase::AddrResolved
        {
            (entry.phase, entry.device, entry.wire, entry.dst) = (Phase::Bound, device, Wire::Host, None);
        }
    }

    /// Find the route (rdma_resolve_route(3)); the event follows.
    ///
    /// # Errors
    /// EINVAL: no address was resolved.
    pub fn resolve_route(&self, id: IdKey) -> Result<()> {
        let mut state = self.lock();
        let entry = state.id(id)?;
        if entry.phase != Phase::AddrResolved {
            return Err(Errno::EINVAL);
        }
        entry.phase = Phase::RouteResolved;
        state.tell(id, Event::new(EventKind::RouteResolved));
        Ok(())
    }

    /// Ask for a connection, or for a datagram service (rdma_connect(3)); the event follows.
    ///
    /// # Errors
    /// EINVAL: no route, too much private data.
    pub fn connect(&'static self, id: IdKey, params: ConnectParams) -> Result<()> {
        let mut state = self.lock();
        self.run(&mut state)?;
        state.connect(id, params)
    }

    /// Accept a request (rdma_accept(3)).
    ///
    /// # Errors
    /// EINVAL: there is no request (any more), too much private data; the request is then rejected.
    pub fn accept(&self, id: IdKey, params: ConnectParams) -> Result<()> {
        self.lock().accept(id, params)
    }

    /// Note that the queue pair is ready, on the active side whose queue pair is not the id's (rdma_establish(3)).
    ///
    /// # Errors
    /// EINVAL: no response has come.
    pub fn established(&self, id: IdKey) -> Result<()> {
        let mut state = self.lock();
        if let Some(mpa) = &state.id(id)?.mpa {
            // There is no third message: the reply has ended the start, and the queue pair sends since.
            return if mpa.state == MpaState::Established { Ok(()) } else { Err(Errno::EINVAL) };
        }
        state.with_result(id, |conn, _, out| conn.ready(out))
    }

    /// Reject a request or a response (rdma_reject(3)).
    ///
    /// # Errors
    /// EINVAL: nothing to reject, too much private data.
    pub fn reject(&self, id: IdKey, reason: u16, data: Vec<u8>) -> Result<()> {
        let mut state = self.lock();
        let entry = state.id(id)?;
        if entry.mpa.is_some() {
            return state.reject_mpa(id, &data);
        }
        let datagram = entry.qp_type == UD;
        state.with_result(id, |conn, now, out| {
            if datagram { conn.answer(sidr::REJECT, 0, 0, data, out) } else { conn.reject(reason, data, now, out) }
        })
    }

    /// End the connection, or agree that it has ended (rdma_disconnect(3)).
    ///
    /// # Errors
    /// EINVAL: there never was a connection.
    pub fn disconnect(&self, id: IdKey) -> Result<()> {
        let mut state = self.lock();
        if state.id(id)?.mpa.is_some() {
            return state.disconnect_mpa(id);
        }
        state.with_result(id, |conn, now, out| {
            conn.disconnect(now, out);
            Ok(())
        })
    }

    /// Note that data came before the last message of the handshake (rdma_notify(3)).
    ///
    /// # Errors
    /// EISCONN: established already; EINVAL: the id does not wait for that message.
    pub fn data_came(&self, id: IdKey) -> Result<()> {
        self.lock().with_result(id, |conn, _, out| conn.data_came(out))
    }

    /// Move an id and its waiting events to another channel (rdma_migrate_id(3)). The result is the number of events
    /// that the program has got so far.
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

    /// Set options that can be set at any time (rdma_set_option(3)).
    ///
    /// # Errors
    /// ENOENT: no such id.
    pub fn set_options(&self, id: IdKey, change: impl FnOnce(&mut Options)) -> Result<()> {
        change(&mut self.lock().id(id)?.options);
        Ok(())
    }

    /// Set whether the port may be shared (`rdma_set_reuseaddr` of Linux).
    ///
    /// # Errors
    /// EINVAL: the id listens, or `reuse` is taken back after binding.
    pub fn set_reuse(&self, id: IdKey, reuse: bool) -> Result<()> {
        let mut state = self.lock();
        let entry = state.id(id)?;
        if entry.phase == Phase::Idle || reuse && entry.phase != Phase::Listen {
            entry.options.reuse = reuse;
            return state.change_claim_of(id, |claim| claim.reuse = reuse);
        }
        Err(Errno::EINVAL)
    }

    /// Set whether the id keeps to its address family (`rdma_set_afonly` of Linux).
    ///
    /// # Errors
    /// EINVAL: the id is bound or further.
    pub fn set_only(&self, id: IdKey, only: bool) -> Result<()> {
        let mut state = self.lock();
        let entry = state.id(id)?;
        if !matches!(entry.phase, Phase::Idle | Phase::Bound) {
            return Err(Errno::EINVAL);
        }
        // A socket of IPv6 that is bound cannot be changed (ipv6(7)): another one takes its place.
        let changes = entry.only != only && entry.src.is_some_and(|src| src.is_ipv6());
        let replaced = if changes { entry.kept.take() } else { None };
        (entry.options.only, entry.only) = (Some(only), only);
        state.change_claim_of(id, |claim| claim.only = only)?;
        if replaced.is_some() {
            drop(replaced);
            let entry = state.id(id)?;
            let (space, claim) = (entry.port_space, entry.port.as_ref().map(|port| port.claim.clone()));
            let kept = claim.and_then(|claim| state.keep_tcp(space, &claim).ok().flatten());
            state.id(id)?.kept = kept;
        }
        Ok(())
    }

    /// The addresses and the connection of an id.
    pub fn view(&self, id: IdKey) -> Result<View> {
        let state = self.lock();
        let entry = state.ids.get(&id).ok_or(Errno::ENOENT)?;
        let device = entry.device.unwrap_or(state.nic.settings().devices.first());
        let gids = state.nic.gids(device);
        let gid = |addr: Option<SocketAddr>| match addr {
            Some(addr) if !is_wildcard(&addr) => route::gid_of(gids, &addr),
            _ => (0, Gid::ZERO),
        };
        let (sgid_index, sgid) = gid(entry.src);
        Ok(View {
            src: entry.src,
            dst: entry.dst,
            device: entry.device,
            link_layer: state.nic.link_layer(device),
            sgid_index,
            sgid,
            // The GID of a peer of iWARP is its hardware address, which this side does not know.
            dgid: if device.is_iwarp() { Gid::ZERO } else { gid(entry.dst).1 },
            routed: matches!(entry.phase, Phase::RouteResolved | Phase::Connect),
            conn: match &entry.mpa {
                Some(mpa) => Some((mpa.state(), mpa.local.clone(), mpa.remote.clone())),
                None => entry.conn.as_ref().map(|c| (c.state(), c.local.clone(), c.remote.clone())),
            },
            psn: entry.psn,
            options: entry.options,
        })
    }

    /// Check that the id may join groups (`rdma_join_multicast` of Linux: it is bound or resolved).
    ///
    /// # Errors
    /// EINVAL: it is not.
    pub fn may_join(&self, id: IdKey) -> Result<()> {
        let mut state = self.lock();
        let entry = state.id(id)?;
        let phase = matches!(entry.phase, Phase::Bound | Phase::AddrResolved | Phase::RouteResolved);
        if phase && entry.qp_type == UD && entry.device.is_some() { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Put an event that the library or the program made into the id's channel.
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

    /// Drop the waiting events of an id that the test selects.
    pub fn drop_events(&self, id: IdKey, which: impl Fn(&Event) -> bool) {
        let state = self.lock();
        if let Some(entry) = state.ids.get(&id) {
            entry.channel.take_out(|q| q.id == id && which(&q.event));
        }
    }

    /// Wait for an event (rdma_get_cm_event(3)). The program must acknowledge it.
    ///
    /// # Errors
    /// EAGAIN: O_NONBLOCK is set and no event waits; EINTR: a signal handler ran.
    pub fn get_event(&self, channel: &Channel) -> Result<Got> {
        loop {
            channel.bell.wait()?;
            if let Some(got) = self.take_event(channel) {
                return Ok(got);
            }
        }
    }

    /// Take the next event of a channel whose descriptor the caller has read. `None`: the event went with its id in the
    /// meantime.
    pub fn take_event(&self, channel: &Channel) -> Option<Got> {
        let mut state = self.lock();
        let queued = channel.take()?;
        let id = state.ids.get_mut(&queued.id)?;
        id.reported += 1;
        let token = id.token;
        if let Some(child) = queued.child {
            if let Some(child) = state.ids.get_mut(&child) {
                child.awaited_by = None;
            }
            state.make_room(queued.id);
        }
        Some(Got { id: queued.id, token, child: queued.child, event: queued.event })
    }

    /// Put an event back that is not to be handed out yet: it is the channel's next one again. Requests cannot be put
    /// back: they have made room for others. False: the id has been destroyed in the meantime. That waits for this
    /// event, so the caller acknowledges it.
    #[must_use]
    pub fn give_back(&self, channel: &Channel, got: Got) -> bool {
        let mut state = self.lock();
        let Some(id) = state.ids.get_mut(&got.id) else { return false };
        id.reported -= 1;
        channel.push_front(Queued { id: got.id, child: got.child, event: got.event });
        true
    }
}
