//! Names and locks of ports, which calls get without the connection manager's lock.
//!
//! The names of all processes are one text, `/proc/net/unix`. The kernel takes long to write it where a process has
//! bound tens of thousands of names, and any user may. Another process may hold a port's lock at the same time. So a
//! call that needs the text or a port's lock releases the connection manager's lock, gets what it needs, and begins
//! again.

use std::sync::Arc;
use std::time::Duration;

use memory::fds::{FdSet, TrackedFd};
use verbs::{Errno, Result};

use crate::ids::State;
use crate::manager::Cm;
use crate::names::{self, BLOCK_PORTS};
use crate::{ports, socket};

/// The number of attempts to take a port's lock, every 50 us, before the port is called taken.
const LOCK_TRIES: u32 = 20_000;
/// The greatest number of times that a call begins: each time it has what it lacked before.
const ATTEMPTS: u32 = 16;

/// The reason why a call cannot go on.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The call has failed.
    Failed(Errno),
    /// The call needs this first.
    Needs(Need),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Stop::Failed(errno)
    }
}

/// A thing that takes long to get.
#[derive(Debug)]
pub(crate) enum Need {
    /// The names, and the lock of this port of a port space.
    Port(u16, u16),
    /// A block of ephemeral ports of this port space.
    Block(u16),
}

/// The names, together with a port's lock: no other process claims the port while it is held.
pub(crate) struct PortNames {
    port_space: u16,
    port: u16,
    text: String,
    _lock: TrackedFd,
}

/// A block that this process has claimed, with the ports of it that can be given out.
pub(crate) struct NewBlock {
    pub port_space: u16,
    pub number: u16,
    pub socket: TrackedFd,
    /// The ports that other processes hold, as bits.
    pub used: u32,
    pub free: Vec<u16>,
}

/// The things that a call has got so far.
#[derive(Default)]
pub(crate) struct Prepared {
    names: Option<PortNames>,
    block: Option<NewBlock>,
}

impl Prepared {
    /// The names, with the port's lock held.
    pub(crate) fn names(&self, port_space: u16, port: u16) -> std::result::Result<&str, Stop> {
        match &self.names {
            Some(names) if (names.port_space, names.port) == (port_space, port) => Ok(&names.text),
            _ => Err(Stop::Needs(Need::Port(port_space, port))),
        }
    }

    /// Take the block of this port space; the caller has it from now on.
    pub(crate) fn take_block(&mut self, port_space: u16) -> std::result::Result<NewBlock, Stop> {
        self.block.take_if(|block| block.port_space == port_space).ok_or(Stop::Needs(Need::Block(port_space)))
    }

    /// Get what is needed. No other call waits for the caller meanwhile.
    fn get(&mut self, need: Need, fds: &Arc<FdSet>) -> Result<()> {
        match need {
            Need::Port(port_space, port) => {
                // Never two locks: the holder of each could wait for the other.
                self.names = None;
                let _lock = lock_port(port_space, port, fds)?;
                self.names = Some(PortNames { port_space, port, text: text(), _lock });
            }
            Need::Block(port_space) => self.block = Some(claim_block(port_space, fds)?),
        }
        Ok(())
    }
}

/// The names of the network namespace's sockets.
pub(crate) fn text() -> String {
    #[cfg(test)]
    tests::reads();
    std::fs::read("/proc/net/unix").map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default()
}

/// Take the port's lock: names can be looked at and claimed without other processes in between.
fn lock_port(port_space: u16, port: u16, fds: &Arc<FdSet>) -> Result<TrackedFd> {
    let name = names::lock(port_space, port);
    for _ in 0..LOCK_TRIES {
        match socket::listen(&name, true) {
            Ok(fd) => return Ok(TrackedFd::new(fd, fds)),
            Err(Errno::EADDRINUSE) => std::thread::sleep(Duration::from_micros(50)),
            Err(e) => return Err(e),
        }
    }
    Err(Errno::EADDRINUSE)
}

/// Claim a block that has at least one free port.
fn claim_block(port_space: u16, fds: &Arc<FdSet>) -> Result<NewBlock> {
    let (low, high) = ports::ephemeral_range();
    let (first, last) = (low / BLOCK_PORTS, high / BLOCK_PORTS);
    let count = u32::from(last - first) + 1;
    let start = crate::ids::random_u32();
    for (i, over_strangers) in (0..count).map(|i| (i, false)).chain((0..count).map(|i| (i, true))) {
        let number = first + (start.wrapping_add(i) % count) as u16;
        let socket = match socket::listen(&names::block(port_space, number), over_strangers) {
            Ok(fd) => TrackedFd::new(fd, fds),
            Err(Errno::EADDRINUSE) => continue,
            Err(e) => return Err(e),
        };
        // A process that claims one of these ports from now on asks the block's holder first, and waits for the answer.
        let mut used = 0u32;
        for other in names::claims(&text(), port_space) {
            if other.addr.port() / BLOCK_PORTS == number {
                used |= 1 << (other.addr.port() % BLOCK_PORTS);
            }
        }
        let ports = (0..BLOCK_PORTS).map(|i| number * BLOCK_PORTS + i);
        let free: Vec<u16> = ports.filter(|p| (low..=high).contains(p) && used & 1 << (p % BLOCK_PORTS) == 0).collect();
        if !free.is_empty() {
            return Ok(NewBlock { port_space, number, socket, used, free });
        }
    }
    Err(Errno::EADDRNOTAVAIL)
}

impl Cm {
    /// Call a function that may need what takes long to get; it has changed nothing when it says so.
    pub(crate) fn prepared<T>(
        &'static self,
        mut attempt: impl FnMut(&mut State, &mut Prepared) -> std::result::Result<T, Stop>,
    ) -> Result<T> {
        let mut prepared = Prepared::default();
        for _ in 0..ATTEMPTS {
            let mut state = self.lock();
            self.run(&mut state)?;
            let need = match attempt(&mut state, &mut prepared) {
                Ok(done) => return Ok(done),
                Err(Stop::Failed(errno)) => return Err(errno),
                Err(Stop::Needs(need)) => need,
            };
            let fds = Arc::clone(state.fds());
            drop(state);
            prepared.get(need, &fds)?;
        }
        Err(Errno::EADDRINUSE)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;
    use crate::manager::port_space;
    use crate::{Channel, ConnectParams};

    type Look = Box<dyn FnMut() + Send>;
    /// The function that runs while the names are read.
    static LOOK: Mutex<Option<Look>> = Mutex::new(None);

    pub(super) fn reads() {
        if let Some(look) = LOOK.lock().unwrap().as_mut() {
            look();
        }
    }

    /// Calls that need the names read them, and no thread has the lock meanwhile.
    #[test]
    fn the_lock_is_free_while_names_are_read() {
        let nic = nic::Nic::get().expect("an adapter");
        let cm: &'static Cm = Box::leak(Box::new(Cm::new(nic)));
        let (sender, reads) = std::sync::mpsc::channel();
        *LOOK.lock().unwrap() = Some(Box::new(move || {
            let free = cm.try_lock(Duration::from_secs(20)).is_some();
            let _ = sender.send(free);
        }));
        let channel = Channel::new().expect("a channel");
        let id = || cm.create_id(&channel, 0, port_space::TCP.into(), 2).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        // The cases: an ephemeral port, the port of a listener that shares it, and a port by its number.
        let (first, second) = (id(), id());
        cm.set_reuse(first, true).unwrap();
        cm.bind(first, &any).unwrap();
        assert!(reads.recv().unwrap(), "a block's ports");
        cm.listen(first, 1).unwrap();
        assert!(reads.recv().unwrap(), "a listener's port");
        let port = (20_000..30_000).find(|port| cm.bind(second, &SocketAddr::new(any.ip(), *port)).is_ok());
        assert!(reads.recv().unwrap(), "a port by its number");
        // No process listens there.
        let third = id();
        let there = SocketAddr::new(any.ip(), port.unwrap());
        cm.resolve_addr(third, None, &there).unwrap();
        cm.resolve_route(third).unwrap();
        while reads.try_recv().is_ok() {}
        cm.connect(third, ConnectParams::default()).unwrap();
        assert!(reads.recv_timeout(Duration::from_secs(20)).unwrap(), "a listener that is looked for");
        *LOOK.lock().unwrap() = None;
    }
}
