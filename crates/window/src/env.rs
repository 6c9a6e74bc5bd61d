//! The window wire as an engine's environment: its links, and what is asked of all of them.

use std::collections::BTreeMap;
use std::hint::cold_path;
use std::sync::Arc;

use memory::fds::{FdSet, TrackedFd};
use memory::local;
use rustix::event::epoll;
use verbs::{Errno, Gid};
use wire::{AtomicOp, Entropy, Fault, LinkId, Memory, Nanos, Observer, Packet, PacketWire, ShortPacket};

use crate::Config;
use crate::events::Events;
use crate::export_table::Exports;
use crate::identity::Unreached;
use crate::link::{Link, Rx, State};
use crate::multicast::Multicast;
use crate::peers::{self, HalfOpen, Route};
use crate::quiet::Quiet;
use crate::random::RandomBytes;
use crate::shared::SharedMemory;
use crate::socket::errno;

mod packets;
mod same_host;

/// What has passed so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Links that are not dead, the loopback link included.
    pub links: usize,
    /// Packets sent.
    pub sent_packets: u64,
    /// Packets received.
    pub received_packets: u64,
    /// Bytes copied directly, by this process.
    pub single_copy_bytes: u64,
    /// Bytes copied directly by this process where a peer executes its requests: a part of what that one counts.
    pub co_copied_bytes: u64,
    /// Doorbells rung.
    pub rings: u64,
}

/// A place in the table of links.
pub(crate) struct Entry {
    /// The name of the link: the place, and in the upper half a number that tells it from its predecessors there.
    pub id: LinkId,
    pub link: Option<Box<Link>>,
}

/// The wire between processes of one host. Single-threaded: the process wraps it in a lock.
pub struct WindowEnv {
    pub(crate) config: Config,
    /// 128 random bits that name this device.
    pub(crate) instance: [u8; 16],
    /// No process has a number here, as in a PID namespace of its own.
    #[cfg(test)]
    pub(crate) nameless: bool,
    pub(crate) uid: u32,
    /// The uid that stands for users without one, where there are such.
    pub(crate) vague: Option<u32>,
    pub(crate) fds: Arc<FdSet>,
    pub(crate) epoll: Arc<TrackedFd>,
    /// Kept for the moment when descriptors run out, see `peers`.
    pub(crate) spare: Option<TrackedFd>,

    pub(crate) entries: Vec<Entry>,
    /// Links that are not dead, and dead ones until `take_dead_links`.
    pub(crate) live: Vec<LinkId>,
    dirty: Vec<LinkId>,
    /// A peer to which packets were sent since the last ring of the doorbells was seen to sleep.
    urgent: bool,
    pub(crate) full: Vec<LinkId>,
    pub(crate) any_dead: bool,
    /// The sleep is announced on the links.
    pub(crate) asleep: bool,
    /// See [`WindowEnv::set_awaits_events`].
    pub(crate) awaits_events: bool,
    /// Packets may have been sent over the loopback link.
    pub(crate) looped: bool,

    pub(crate) own_blocks: Vec<(u16, TrackedFd)>,
    pub(crate) routes: BTreeMap<u16, Route>,
    pub(crate) half_open: Vec<HalfOpen>,
    pub(crate) unreached: Vec<Unreached>,
    /// No peer is let in until then, for want of descriptors.
    pub(crate) closed_until: Option<Nanos>,
    /// The time at which a message last said that a peer could not come in.
    pub(crate) told_at: Option<Nanos>,
    pub(crate) next_serial: u32,
    pub(crate) next_peer: u64,
    pub(crate) multicast: Multicast,
    pub(crate) export_table: Option<Exports>,
    pub(crate) shared: SharedMemory,
    pub(crate) quiet: Quiet,
    gids: Vec<Gid>,
    pub(crate) diagnose: bool,

    random: RandomBytes,
    pub(crate) stats: Stats,
}

impl WindowEnv {
    /// A device without blocks and peers. No thread, no socket yet; one epoll instance, one eventfd.
    ///
    /// # Errors
    /// `EMFILE`, `ENOMEM`, or what getrandom(2) says.
    pub fn new(config: Config) -> Result<Self, Errno> {
        let random = RandomBytes::new().inspect_err(|error| {
            let why = std::io::Error::from_raw_os_error(error.0);
            report::log(format_args!("no device: getrandom(2) gives no random numbers for keys: {why}"));
        })?;
        let fds = FdSet::new();
        let epoll = Arc::new(TrackedFd::new(epoll::create(epoll::CreateFlags::CLOEXEC).map_err(errno)?, &fds));
        let spare = peers::spare_fd(&fds);
        let mut env = WindowEnv {
            config,
            instance: [0; 16],
            #[cfg(test)]
            nameless: false,
            uid: rustix::process::geteuid().as_raw(),
            vague: peers::vague_uid(),
            epoll,
            spare,
            entries: vec![Entry { id: LinkId::LOOPBACK, link: Some(Box::new(Link::loopback()?)) }],
            live: vec![LinkId::LOOPBACK],
            dirty: Vec::new(),
            urgent: false,
            full: Vec::new(),
            any_dead: false,
            asleep: false,
            awaits_events: false,
            looped: false,
            own_blocks: Vec::new(),
            routes: BTreeMap::new(),
            half_open: Vec::new(),
            unreached: Vec::new(),
            closed_until: None,
            told_at: None,
            next_serial: 0,
            next_peer: 0,
            multicast: Multicast::default(),
            export_table: None,
            shared: SharedMemory::default(),
            quiet: Quiet::default(),
            gids: Vec::new(),
            diagnose: false,
            random,
            stats: Stats::default(),
            fds,
        };
        let mut instance = [0; 16];
        env.fill_random(&mut instance);
        env.instance = instance;
        Ok(env)
    }

    /// Sets whether an obstacle to a connection is told on standard error.
    pub fn set_diagnostics(&mut self, on: bool) {
        self.diagnose = on;
    }

    /// The addresses of this host: only QPs behind one of them, or behind a loopback address, can be reached.
    pub fn set_local_gids(&mut self, gids: Vec<Gid>) {
        self.gids = gids;
    }

    fn is_local(&self, gid: &Gid) -> bool {
        gid.ip().is_loopback() || self.gids.contains(gid)
    }

    // ---- links ----

    #[inline]
    pub(crate) fn link(&self, id: LinkId) -> Option<&Link> {
        match self.entries.get((id.0 & 0xffff) as usize) {
            Some(Entry { id: current, link: Some(link) }) if *current == id => Some(link),
            _ => {
                cold_path();
                None
            }
        }
    }

    #[inline]
    pub(crate) fn link_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        match self.entries.get_mut((id.0 & 0xffff) as usize) {
            Some(Entry { id: current, link: Some(link) }) if *current == id => Some(link),
            _ => {
                cold_path();
                None
            }
        }
    }

    /// Takes a new link into the table.
    pub(crate) fn add_link(&mut self, mut link: Link) -> Result<LinkId, Errno> {
        let free = self.entries.iter().position(|e| e.link.is_none());
        let index = match free {
            Some(index) => index,
            None if self.entries.len() < peers::MAX_LINKS => {
                self.entries.push(Entry { id: LinkId(self.entries.len() as u32), link: None });
                self.entries.len() - 1
            }
            None => return Err(Errno::ENOSPC),
        };
        if self.asleep {
            link.consumer.announce_sleep();
        }
        link.producer.call_for_room(self.asleep);
        let entry = &mut self.entries[index];
        entry.link = Some(Box::new(link));
        self.live.push(entry.id);
        Ok(entry.id)
    }

    /// The links to poll with [`WindowEnv::peek`], the loopback link first. The list only shrinks in
    /// [`WindowEnv::take_dead_links`], so it may be walked by index meanwhile.
    #[inline]
    pub fn links(&self) -> &[LinkId] {
        &self.live
    }

    /// The next packet of a link; the same one again until [`WindowEnv::release`].
    pub fn peek(&mut self, id: LinkId) -> Option<(Packet, Rx)> {
        let mut packet = Packet::NONE;
        self.peek_into(id, &mut packet).map(|rx| (packet, rx))
    }

    /// Writes the next packet of a link to `packet`, and names its payload.
    #[inline(always)]
    pub fn peek_into(&mut self, id: LinkId, packet: &mut Packet) -> Option<Rx> {
        match self.link_mut(id)?.peek(id, packet) {
            Ok(found) => found,
            Err(_) => {
                cold_path();
                self.bury(id);
                None
            }
        }
    }

    /// The next packet of a link, if it is there and short, and nothing is out of the ordinary. Then, and only then,
    /// [`WindowEnv::release_short`] may follow. `prompt`: the poll goes on with the acknowledgement, and the cache line
    /// for that is fetched.
    #[inline(always)]
    pub fn peek_short(&self, id: LinkId, prompt: bool) -> Option<ShortPacket> {
        self.link(id)?.peek_short(prompt)
    }

    /// Gives back what [`WindowEnv::peek_short`] gave on this link.
    #[inline(always)]
    pub fn release_short(&mut self, id: LinkId) {
        let Some(link) = self.link_mut(id) else { return };
        link.release_short();
        self.stats.received_packets += 1;
    }

    /// Gives back what [`WindowEnv::peek`] gave on this link.
    // Inlined always: taps call it too, and would otherwise cost a process without taps a call.
    #[inline(always)]
    pub fn release(&mut self, id: LinkId) {
        let Some(link) = self.link_mut(id) else { return };
        if link.consumer.peeked().is_none() {
            return;
        }
        let alive = link.release();
        self.stats.received_packets += 1;
        if !alive {
            cold_path();
            self.bury(id);
        }
    }

    /// True if something was sent for which peers may have to be rung ([`PacketWire::ring_doorbells`]).
    #[inline]
    pub fn owes_ring(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// True if one of them is known to sleep, so that it should be rung now. That this says no proves nothing: a peer
    /// that was falling asleep while we sent is only found by [`PacketWire::ring_doorbells`], behind its fence. A
    /// caller that puts that off for the fence's sake must come back to it.
    #[inline]
    pub fn must_ring_now(&self) -> bool {
        self.urgent
    }

    /// True if a packet is there on any link. One load per link, and none for the loopback link before it is used.
    #[inline(always)]
    pub fn any_ready(&self) -> bool {
        self.any_ready_of(|_| true)
    }

    /// True if a link other than this one has a packet.
    #[inline(always)]
    pub fn any_ready_but(&self, but: LinkId) -> bool {
        self.any_ready_of(|id| id != but)
    }

    /// True if a link is on its way out: [`WindowEnv::peek`] and [`WindowEnv::take_dead_links`] bring it there.
    pub fn has_ending_links(&self) -> bool {
        let ends = |link: &Link| matches!(link.state, State::Draining(_) | State::Dead);
        self.any_dead || self.live.iter().any(|&id| self.link(id).is_some_and(ends))
    }

    #[inline(always)]
    fn any_ready_of(&self, of: impl Fn(LinkId) -> bool) -> bool {
        let used = if self.looped { &self.live[..] } else { self.live.get(1..).unwrap_or_default() };
        // This loop uses no function of an iterator, which would be called.
        for &id in used {
            if of(id) && self.link(id).is_some_and(Link::ready) {
                return true;
            }
        }
        false
    }

    /// Ends this link: nothing comes or goes on it any more. The peer notices by the socket.
    pub(crate) fn bury(&mut self, id: LinkId) {
        let Some(link) = self.link_mut(id) else {
            return;
        };
        if link.state == State::Dead {
            return;
        }
        link.state = State::Dead;
        if let Some(remote) = &link.remote {
            let _ = rustix::net::shutdown(&remote.socket, rustix::net::Shutdown::Both);
        }
        self.any_dead = true;
    }

    /// Appends to `dead` the links that died since the last call, if all of their packets have been taken. With each
    /// goes another link to the same process, over which more of what it sent may come. The ids of the dead links are
    /// not valid any more. Must not be called between [`WindowEnv::peek`] and [`WindowEnv::release`].
    pub fn take_dead_links(&mut self, dead: &mut Vec<(LinkId, Option<LinkId>)>) {
        if !std::mem::take(&mut self.any_dead) {
            return;
        }
        let before = dead.len();
        let live = std::mem::take(&mut self.live);
        for id in live {
            // The loopback link stays: it can only die by a stray write of the program, and has no successor.
            if id != LinkId::LOOPBACK && self.link(id).is_some_and(|l| l.state == State::Dead) {
                dead.push((id, None));
            } else {
                self.live.push(id);
            }
        }
        for (id, other) in &mut dead[before..] {
            *other = self.live.iter().copied().find(|other| self.same_peer(*id, *other));
        }
        for (id, _) in &dead[before..] {
            let Some(entry) = self.entries.get_mut((id.0 & 0xffff) as usize) else {
                continue;
            };
            entry.id = LinkId(entry.id.0.wrapping_add(1 << 16));
            if let Some(remote) = entry.link.take().and_then(|link| link.remote) {
                remote.unwatch(&self.epoll);
            }
        }
        let gone = &dead[before..];
        self.routes.retain(|_, route| !matches!(route, Route::Link(id) if gone.iter().any(|(dead, _)| dead == id)));
    }

    /// Drains the epoll instance without waiting: new peers, messages of known ones, deaths, doorbells. Packets are
    /// left for [`WindowEnv::peek`].
    pub fn handle_events(&mut self, now: Nanos) {
        self.handle_events_of(&mut Events::default(), now);
    }

    /// When [`WindowEnv::handle_events`] has to be called even if nothing happens.
    pub fn deadline(&self) -> Option<Nanos> {
        let links_back = self.unreached.iter().map(|one| one.at);
        self.half_open.iter().map(|h| h.deadline).chain(self.closed_until).chain(links_back).min()
    }

    /// Closes every descriptor, in a forked child: the child must not speak in its parent's name, nor hide its death.
    /// Async-signal-safe. This value must not be used or dropped in the child, where its windows are not mapped.
    pub fn close_after_fork(&self) {
        self.fds.close_all();
    }

    /// The list behind [`WindowEnv::close_after_fork`], for a fork handler that cannot take the device's lock.
    pub fn fd_set(&self) -> Arc<FdSet> {
        Arc::clone(&self.fds)
    }

    /// What has passed so far.
    pub fn stats(&self) -> Stats {
        let links = self.live.iter().filter(|&&id| self.link(id).is_some_and(|l| l.state != State::Dead)).count();
        Stats { links, ..self.stats }
    }

    pub(crate) fn fill_random(&mut self, out: &mut [u8]) {
        self.random.fill(out);
    }
}

impl Memory for WindowEnv {
    #[inline]
    fn load(&self, addr: u64, guarded: bool, dst: &mut [u8]) -> Result<(), Fault> {
        local::load(addr, guarded, dst)
    }

    #[inline]
    fn store(&self, addr: u64, guarded: bool, src: &[u8]) -> Result<(), Fault> {
        local::store(addr, guarded, src)
    }

    fn atomic(&self, addr: u64, guarded: bool, op: AtomicOp) -> Result<u64, Fault> {
        local::atomic(addr, guarded, op)
    }
}

impl Entropy for WindowEnv {
    fn random(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.fill_random(&mut bytes);
        u64::from_ne_bytes(bytes)
    }
}

impl Observer for WindowEnv {}
