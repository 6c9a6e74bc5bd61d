//! The ports that ids hold. Explicit ports are claimed one by one, ephemeral ones in blocks, so that a thousand
//! outgoing connections do not cost a thousand descriptors.

use std::collections::{HashMap, VecDeque};

use memory::fds::TrackedFd;
use std::net::SocketAddr;
use verbs::{Errno, Result};

use crate::ids::State;
use crate::links::Token;
use crate::message::{Body, Message};
use crate::names::{self, BLOCK_PORTS, Claim};
use crate::prepare::{NewBlock, Prepared, Stop};
use crate::socket;

/// The port of an id.
pub(crate) struct Port {
    pub claim: Claim,
    /// The socket with the claim's name; `None` for a port of a block.
    held: Option<TrackedFd>,
}

/// A block of ephemeral ports.
struct Block {
    /// The ports in use, as bits; those that were in use by other processes when the block was claimed stay set for
    /// ever.
    used: u32,
    /// The socket at which other processes ask for one of the ports.
    socket: TrackedFd,
}

/// The ports of this process.
#[derive(Default)]
pub(crate) struct Ports {
    blocks: HashMap<(u16, u16), Block>,
    serial: u32,
    /// The ports of blocks that are not in use, the longest unused first.
    free: HashMap<u16, VecDeque<u16>>,
    /// The number of ids that hold each port.
    users: HashMap<(u16, u16), u32>,
}

fn sysctl<const N: usize>(path: &str) -> Option<[u16; N]> {
    let text = std::fs::read_to_string(path).ok()?;
    let mut numbers = text.split_whitespace().map(|w| w.parse().ok());
    let mut out = [0; N];
    for n in &mut out {
        *n = numbers.next()??;
    }
    Some(out)
}

/// `net.ipv4.ip_local_port_range`.
pub(crate) fn ephemeral_range() -> (u16, u16) {
    match sysctl::<2>("/proc/sys/net/ipv4/ip_local_port_range") {
        Some([low, high]) if low <= high && low > 0 => (low, high),
        _ => (32768, 60999),
    }
}

/// Check for a well-known port that the user may have it: EACCES (ip(7), `ip_unprivileged_port_start`).
fn permitted(port: u16) -> Result<()> {
    let first = sysctl::<1>("/proc/sys/net/ipv4/ip_unprivileged_port_start").map_or(1024, |[n]| n);
    if port >= first {
        return Ok(());
    }
    let may = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::NET_BIND_SERVICE));
    if may { Ok(()) } else { Err(Errno::EACCES) }
}

impl State {
    /// Claim a port for an id; an ephemeral one for port 0.
    ///
    /// # Errors
    /// EADDRINUSE, EADDRNOTAVAIL ([`names::check`]); EACCES: well-known; EMFILE.
    pub(crate) fn claim_port(
        &mut self,
        port_space: u16,
        mut claim: Claim,
        prepared: &mut Prepared,
    ) -> std::result::Result<Port, Stop> {
        if claim.addr.port() == 0 {
            claim.addr.set_port(self.ephemeral(port_space, prepared)?);
            self.count(port_space, claim.addr.port());
            return Ok(Port { claim, held: None });
        }
        let port = claim.addr.port();
        permitted(port)?;
        // Ids of this process that hold one port of a block leave no name.
        for old in self.held(port_space, port) {
            names::check(&claim, &old)?;
        }
        let text = prepared.names(port_space, port)?;
        for (old, listens) in names::claims_and_kinds(text, port_space).filter(|(old, _)| old.addr.port() == port) {
            match names::check(&claim, &old) {
                Err(_) if listens && self.is_strangers(port_space, &old) => {}
                checked => checked?,
            }
        }
        self.mark_used(port_space, port);
        let held = self.claim_name(port_space, &claim)?;
        self.count(port_space, port);
        Ok(Port { claim, held: Some(held) })
    }

    /// True if only processes of other users listen at a claim's address, and this process may not talk to those.
    fn is_strangers(&self, port_space: u16, claim: &Claim) -> bool {
        let name = names::listener(port_space, &claim.addr, claim.only);
        !self.any_user && socket::connect(&name, false).err() == Some(Errno::EACCES)
    }

    fn count(&mut self, port_space: u16, port: u16) {
        *self.ports.users.entry((port_space, port)).or_default() += 1;
    }

    fn claim_name(&mut self, port_space: u16, claim: &Claim) -> Result<TrackedFd> {
        self.ports.serial = self.ports.serial.wrapping_add(1);
        let name = names::bound(port_space, claim, self.instance, self.ports.serial);
        Ok(TrackedFd::new(socket::claim(&name)?, self.fds()))
    }

    /// Change an id's claim: its address was chosen since, or an option has changed.
    pub(crate) fn change_claim(&mut self, port_space: u16, port: &mut Port, claim: Claim) -> Result<()> {
        if port.claim != claim {
            if port.held.is_some() {
                port.held = Some(self.claim_name(port_space, &claim)?);
            }
            port.claim = claim;
        }
        Ok(())
    }

    /// Take a port out of the ephemeral ones, if it is in a block of this process.
    fn mark_used(&mut self, port_space: u16, port: u16) {
        if let Some(block) = self.ports.blocks.get_mut(&(port_space, port / BLOCK_PORTS)) {
            block.used |= 1 << (port % BLOCK_PORTS);
        }
    }

    /// Answer another process that wants a port of a block of this process.
    pub(crate) fn answer(&mut self, port_space: u16, claim: &Claim) -> Result<()> {
        for old in self.held(port_space, claim.addr.port()) {
            names::check(claim, &old)?;
        }
        self.mark_used(port_space, claim.addr.port());
        Ok(())
    }

    /// True if the port's block is this process's, so that no other process need be asked.
    pub(crate) fn is_own_block(&self, port_space: u16, port: u16) -> bool {
        self.ports.blocks.contains_key(&(port_space, port / BLOCK_PORTS))
    }

    /// The claim of a listener, made of the claim of a bound id.
    pub(crate) fn claim_listener(
        &self,
        port_space: u16,
        port: &Port,
        prepared: &Prepared,
    ) -> std::result::Result<TrackedFd, Stop> {
        let addr = &port.claim.addr;
        let text = prepared.names(port_space, addr.port())?;
        if port.claim.reuse {
            // A listener does not share; the id's own claim is in the text once.
            let alone = Claim { reuse: false, ..port.claim.clone() };
            let others = names::claims(text, port_space).filter(|old| old.addr.port() == addr.port());
            let mut own = port.held.is_some();
            for old in others {
                if old == port.claim && std::mem::take(&mut own) {
                    continue;
                }
                names::check(&alone, &old)?;
            }
        }
        let socket = socket::listen(&names::listener(port_space, addr, port.claim.only), true)?;
        Ok(TrackedFd::new(socket, self.fds()))
    }

    /// Release the id's port.
    pub(crate) fn release_port(&mut self, port_space: u16, port: &Port) {
        let number = port.claim.addr.port();
        let key = (port_space, number);
        let Some(users) = self.ports.users.get_mut(&key) else { return };
        *users -= 1;
        if *users > 0 {
            return;
        }
        self.ports.users.remove(&key);
        if let Some(block) = self.ports.blocks.get_mut(&(port_space, number / BLOCK_PORTS)) {
            block.used &= !(1 << (number % BLOCK_PORTS));
            self.ports.free.entry(port_space).or_default().push_back(number);
        }
    }

    /// An ephemeral port. The ports are used in turn: a peer that still remembers a port that was released must not
    /// reach another program there.
    fn ephemeral(&mut self, port_space: u16, prepared: &mut Prepared) -> std::result::Result<u16, Stop> {
        loop {
            let free = self.ports.free.entry(port_space).or_default();
            let Some(port) = free.pop_front() else {
                self.add_block(prepared.take_block(port_space)?)?;
                continue;
            };
            // Another id may have claimed it by its number in the meantime.
            let Some(block) = self.ports.blocks.get_mut(&(port_space, port / BLOCK_PORTS)) else { continue };
            let bit = 1 << (port % BLOCK_PORTS);
            if block.used & bit == 0 {
                block.used |= bit;
                return Ok(port);
            }
        }
    }

    /// Give out the ports of a block from now on.
    fn add_block(&mut self, block: NewBlock) -> Result<()> {
        let NewBlock { port_space, number, socket, used, free } = block;
        self.watch(&socket, Token::Block(port_space, number))?;
        self.ports.blocks.insert((port_space, number), Block { used, socket });
        self.ports.free.entry(port_space).or_default().extend(free);
        Ok(())
    }

    /// The socket of a block.
    pub(crate) fn block_socket(&self, port_space: u16, block: u16) -> Option<&TrackedFd> {
        self.ports.blocks.get(&(port_space, block)).map(|b| &b.socket)
    }

    /// The claims of this process's ids at a port.
    fn held(&self, port_space: u16, port: u16) -> Vec<Claim> {
        let ids = self.ids.values().filter(|id| id.port_space == port_space);
        ids.filter_map(|id| id.port.as_ref()).map(|p| &p.claim).filter(|c| c.addr.port() == port).cloned().collect()
    }
}

/// Ask the process that gives out the ports of a block, if there is one, whether a port may be claimed. The caller must
/// not hold the lock: that process might ask this one at the same time.
pub(crate) fn ask_owner(port_space: u16, claim: &Claim, any_user: bool) -> Result<()> {
    let ask = Message { from: 0, to: 0, body: Body::Ask { port_space, claim: claim.clone() } };
    match socket::ask(&names::block(port_space, claim.addr.port() / BLOCK_PORTS), &ask, any_user) {
        Ok(Some(Body::Answer { errno: 0 })) | Err(Errno::ECONNREFUSED) => Ok(()),
        Ok(Some(Body::Answer { errno })) => Err(Errno(errno.into())),
        // The owner is another user's process, or does not answer: the port may be in use.
        _ => Err(Errno::EADDRINUSE),
    }
}

/// True if the names show a listener at the port, for whatever address.
pub(crate) fn has_listener(text: &str, port_space: u16, port: u16) -> bool {
    let prefix = names::port_prefix(port_space, port);
    text.lines().any(|line| names::is_listener(line) && line.contains(&prefix) && names::listens(line))
}

/// An address with another port.
pub(crate) fn at_port(addr: &SocketAddr, port: u16) -> SocketAddr {
    let mut addr = *addr;
    addr.set_port(port);
    addr
}
