//! Binding, resolving, listening.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use memory::fds::TrackedFd;
use report::Device;
use verbs::{Errno, Result};

use crate::event::{Event, EventKind};
use crate::ids::{IdKey, Listener, Phase, State};
use crate::links::Token;
use crate::manager::port_space;
use crate::names::{Claim, is_wildcard};
use crate::ports::{Port, at_port};
use crate::prepare::{Prepared, Stop};
use crate::route::{self, Wire};

/// Requests that a listener with no backlog of its own keeps (Linux: `net.rdma_ucm.max_backlog`).
const MAX_BACKLOG: u32 = 1024;

/// The result of a call that may first need something prepared.
type Outcome = std::result::Result<(), Stop>;

/// The number of ephemeral ports that are tried.
const TRIES: usize = 256;

impl State {
    /// Bind an id that may listen. An ephemeral port is one that TCP has free, if softiw0 is there.
    pub(crate) fn bind(&mut self, id: IdKey, addr: &SocketAddr, prepared: &mut Prepared) -> Outcome {
        self.bind_as(id, addr, addr.port() == 0, prepared)
    }

    fn bind_as(&mut self, id: IdKey, addr: &SocketAddr, keeps_tcp: bool, prepared: &mut Prepared) -> Outcome {
        let entry = self.id(id)?;
        if entry.phase != Phase::Idle {
            return Err(Errno::EINVAL.into());
        }
        if let SocketAddr::V6(v6) = addr
            && v6.ip().is_unicast_link_local()
            && v6.scope_id() == 0
        {
            return Err(Errno::EINVAL.into());
        }
        let (claim, space) = (entry.claim(addr), entry.port_space);
        let wildcard = is_wildcard(addr);
        let first = self.nic.settings().devices.first();
        let is_inner = first.is_iwarp() && addr.ip().is_loopback();
        if !wildcard && !self.serves(space) {
            return Err(Errno::ENODEV.into());
        }
        if !wildcard && !crate::socket::is_local(addr)? {
            return Err(Errno::EADDRNOTAVAIL.into());
        }
        if !wildcard && nic::faults::is_removed() {
            return Err(Errno::ENODEV.into());
        }
        let (port, kept) = match keeps_tcp {
            true => self.claim_with_tcp(space, &claim, prepared)?,
            false => (self.claim_port(space, claim, prepared)?, None),
        };
        let entry = self.id(id)?;
        entry.kept = kept;
        entry.src = Some(port.claim.addr);
        entry.only = port.claim.only;
        entry.port = Some(port);
        // Linux ties no device of iWARP to `lo`. Programs that look for an address which peers reach (libfabric) take
        // one of the interfaces if the id of a loopback address has no device.
        entry.device = (!wildcard && !is_inner).then_some(first);
        entry.phase = Phase::Bound;
        Ok(())
    }

    /// Claim a port that TCP has free, too. Those that it has not are held meanwhile, so that each try is of another.
    fn claim_with_tcp(
        &mut self,
        space: u16,
        claim: &Claim,
        prepared: &mut Prepared,
    ) -> std::result::Result<(Port, Option<TrackedFd>), Stop> {
        let mut busy = Vec::new();
        let found = loop {
            let port = match self.claim_port(space, claim.clone(), prepared) {
                Ok(port) => port,
                Err(stop) => break Err(stop),
            };
            match self.keep_tcp(space, &port.claim) {
                Ok(kept) => break Ok((port, kept)),
                Err(_) if busy.len() == TRIES => break Ok((port, None)), // rdma_listen tells
                Err(_) => busy.push(port),
            }
        };
        for port in busy {
            self.release_port(space, &port);
        }
        found
    }

    pub(crate) fn change_claim_of(&mut self, id: IdKey, change: impl FnOnce(&mut Claim)) -> Result<()> {
        let entry = self.id(id)?;
        let space = entry.port_space;
        let Some(mut port) = entry.port.take() else { return Ok(()) };
        let mut claim = port.claim.clone();
        change(&mut claim);
        let changed = self.change_claim(space, &mut port, claim);
        self.id(id)?.port = Some(port);
        changed
    }

    pub(crate) fn listen(&mut self, id: IdKey, backlog: i32, prepared: &mut Prepared) -> Outcome {
        if self.id(id)?.phase == Phase::Idle {
            self.bind(id, &SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0), prepared)?;
        }
        let entry = self.id(id)?;
        if entry.phase != Phase::Bound {
            return Err(Errno::EINVAL.into());
        }
        let space = entry.port_space;
        let port = entry.port.take().ok_or(Errno::EINVAL)?;
        let claimed = self.claim_listener(space, &port, prepared);
        let entry = self.id(id)?;
        entry.port = Some(port);
        let socket = claimed?;
        self.watch(&socket, Token::Listener(id))?;
        let tcp = self.listen_tcp(id, backlog)?;
        let room = u32::try_from(backlog).ok().filter(|n| (1..MAX_BACKLOG).contains(n)).unwrap_or(MAX_BACKLOG);
        let entry = self.id(id)?;
        entry.listener = Some(Listener { socket, tcp, room, parked: VecDeque::new() });
        entry.phase = Phase::Listen;
        entry.options.reuse = false;
        Ok(())
    }

    pub(crate) fn resolve_addr(
        &mut self,
        id: IdKey,
        src: Option<&SocketAddr>,
        dst: &SocketAddr,
        prepared: &mut Prepared,
    ) -> Outcome {
        let entry = self.id(id)?;
        if entry.phase == Phase::Idle {
            let any = match dst {
                SocketAddr::V4(_) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
                SocketAddr::V6(_) => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
            };
            self.bind_as(id, src.unwrap_or(&any), false, prepared)?;
        }
        let entry = self.id(id)?;
        let from = entry.src.ok_or(Errno::EINVAL)?;
        if entry.phase != Phase::Bound || from.is_ipv4() != dst.is_ipv4() {
            return Err(Errno::EINVAL.into());
        }
        let route = route::find(&from, dst)?;
        let space = self.id(id)?.port_space;
        if !self.serves(space) {
            self.tell(id, Event::with_status(EventKind::AddrError, -Errno::ENODEV.0));
            return Ok(());
        }
        // softrnic0 reaches this host. What it does not reach is softiw0's, if that is there and has the port space.
        let (device, wire) = match route.wire {
            Wire::Host if self.has(Device::Roce) => (Device::Roce, Wire::Host),
            _ if self.has(Device::Iwarp) && space == port_space::TCP => (Device::Iwarp, Wire::Tcp),
            wire => (Device::Roce, wire),
        };
        if nic::faults::is_removed() {
            // Linux finds this error while it resolves, but for loopback addresses, which need no resolution.
            if route.dst.ip().is_loopback() {
                return Err(Errno::ENODEV.into());
            }
            self.tell(id, Event::with_status(EventKind::AddrError, -Errno::ENODEV.0));
            return Ok(());
        }
        let entry = self.id(id)?;
        entry.kept = None;
        entry.src = Some(at_port(&route.src, from.port()));
        entry.dst = Some(route.dst);
        entry.wire = wire;
        entry.device = Some(device);
        entry.phase = Phase::AddrResolved;
        let src = at_port(&route.src, from.port());
        self.change_claim_of(id, |claim| claim.addr = src)?;
        self.tell(id, Event::new(EventKind::AddrResolved));
        Ok(())
    }
}
