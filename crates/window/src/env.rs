//! The window wire as the engine's platform.

use std::collections::HashMap;
use std::hint::cold_path;
use std::sync::Arc;

use memory::fds::{FdSet, TrackedFd};
use memory::local;
use memory::ring::{PushError, wake_fence};
use memory::{Half, co_copy};
use rustix::event::epoll;
use verbs::{Errno, Gid, Qpn, RKey};
use wire::{
    AtomicOp, Entropy, Export, ExportId, Fault, LinkCaps, LinkId, Memory, Nanos, Observer, Offer, OneSided,
    OneSidedDone, Packet, PacketWire, Payload, SameHost, SendError, ShortPacket, SingleCopyError, Span, TicketRef,
};

use crate::Config;
use crate::codec;
use crate::export_table::Exports;
use crate::identity::Unreached;
use crate::link::{Link, Rx, State};
use crate::multicast::Multicast;
use crate::peers::{self, HalfOpen, Route};
use crate::quiet::{Offence, Quiet};
use crate::shared::SharedMemory;
use crate::socket::errno;

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
    /// Its name: the place, and in the upper half what tells it from its predecessors there.
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
    pub(crate) epoll: TrackedFd,
    /// Kept for the moment when descriptors run out, see `peers`.
    pub(crate) spare: Option<TrackedFd>,

    pub(crate) entries: Vec<Entry>,
    /// Links that are not dead, and dead ones until `take_dead_links`.
    pub(crate) live: Vec<LinkId>,
    dirty: Vec<LinkId>,
    /// One of those on which packets were sent since the last ring of the doorbell was seen to sleep.
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
    pub(crate) routes: HashMap<u16, Route>,
    pub(crate) half_open: Vec<HalfOpen>,
    pub(crate) unreached: Vec<Unreached>,
    /// Nobody is let in until then, for want of descriptors.
    pub(crate) closed_until: Option<Nanos>,
    /// When it was last told that somebody could not come in.
    pub(crate) told_at: Option<Nanos>,
    pub(crate) next_serial: u32,
    pub(crate) next_peer: u64,
    pub(crate) multicast: Multicast,
    pub(crate) export_table: Option<Exports>,
    pub(crate) shared: SharedMemory,
    pub(crate) quiet: Quiet,
    gids: Vec<Gid>,
    pub(crate) diagnose: bool,

    entropy: [u8; 256],
    entropy_left: usize,
    pub(crate) stats: Stats,
}

impl WindowEnv {
    /// A device without blocks and peers. No thread, no socket yet; one epoll instance, one eventfd.
    ///
    /// # Errors
    /// `EMFILE` or `ENOMEM`.
    pub fn new(config: Config) -> Result<Self, Errno> {
        let fds = FdSet::new();
        let epoll = TrackedFd::new(epoll::create(epoll::CreateFlags::CLOEXEC).map_err(errno)?, &fds);
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
            routes: HashMap::new(),
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
            entropy: [0; 256],
            entropy_left: 0,
            stats: Stats::default(),
            fds,
        };
        let mut instance = [0; 16];
        env.fill_random(&mut instance);
        env.instance = instance;
        Ok(env)
    }

    /// Whether what keeps a connection from being made is told on standard error.
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

    /// The next packet of a link, if it is there and short, and nothing is out of the ordinary: then, and only then,
    /// there may follow [`WindowEnv::release_short`]. `prompt`: who polls goes on with the acknowledgement, and the
    /// place of that is fetched.
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
    // Always: taps call it too, and would otherwise cost those who have none a call.
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
    /// that was falling asleep while we sent is only found by [`PacketWire::ring_doorbells`], behind its fence. Who
    /// puts that off for the fence's sake must come back to it.
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
        // No iterator's function, which would be called.
        for &id in used {
            if of(id) && self.link(id).is_some_and(Link::ready) {
                return true;
            }
        }
        false
    }

    /// Nothing comes or goes on this link any more. The peer notices by the socket.
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

    /// The links that died since the last call, all of whose packets have been taken: appended to `dead`, each with
    /// another link to the same process, over which more of what it sent may come. The dead ones' ids are not valid any
    /// more. Must not be called between [`WindowEnv::peek`] and [`WindowEnv::release`].
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
        self.poll_events(now);
    }

    /// When [`WindowEnv::handle_events`] has to be called even if nothing happens.
    pub fn deadline(&self) -> Option<Nanos> {
        let links_back = self.unreached.iter().map(|one| one.at);
        self.half_open.iter().map(|h| h.deadline).chain(self.closed_until).chain(links_back).min()
    }

    /// Closes every descriptor, in a forked child: the child must not speak in its parent's name, nor hide its death.
    /// Async-signal-safe. The platform must not be used or dropped in the child; its windows are not mapped there.
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
        for byte in out {
            if self.entropy_left == 0 {
                let mut filled = 0;
                while filled < self.entropy.len() {
                    let flags = rustix::rand::GetRandomFlags::empty();
                    // Fails only when interrupted, or before the kernel has any randomness at all.
                    filled += rustix::rand::getrandom(&mut self.entropy[filled..], flags).unwrap_or(0);
                }
                self.entropy_left = self.entropy.len();
            }
            self.entropy_left -= 1;
            // Taken bytes are forgotten: keys are made of them.
            *byte = std::mem::take(&mut self.entropy[self.entropy_left]);
        }
    }

    /// Looks for peers that were to help with a copy of ours, were given up, and may still come to their parts.
    pub(crate) fn wait_for_late_writers_of_links(&mut self) {
        let mut with_late_writers = Vec::new();
        for at in 0..self.live.len() {
            let id = self.live[at];
            if self.link_mut(id).is_some_and(Link::has_late_writer) {
                with_late_writers.push(id);
            }
        }
        if with_late_writers.is_empty() {
            return;
        }
        self.quiesce_those(|_, id| with_late_writers.contains(&id));
        for id in with_late_writers {
            // A follower copies only while it is marked. One that is not has come to its end, whether it says so or
            // not.
            if let Some(link) = self.link_mut(id).filter(|link| link.copied_by_peer().is_none()) {
                link.leader.forget_late_writer();
            }
        }
    }

    /// A single copy has failed: a follower that did not come to its end is not asked again, over whichever link.
    fn follower_failed(&mut self, id: LinkId) {
        if self.link(id).is_some_and(|link| link.leader.has_given_up()) {
            self.remember(id, Offence::Follower);
        }
    }

    /// Who is to be rung must not wait for a long copy.
    fn ring_before(&mut self, spans: &[Span]) {
        if spans.iter().any(|span| span.len >= co_copy::SHORTEST) {
            self.ring_doorbells();
        }
    }

    pub(crate) fn single_copy_done(&mut self, spans: &[Span]) {
        self.stats.single_copy_bytes += spans.iter().map(|s| u64::from(s.len)).sum::<u64>();
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

impl PacketWire for WindowEnv {
    type Rx = Rx;

    fn resolve(&mut self, gid: &Gid, qpn: Qpn) -> Option<LinkId> {
        if self.is_local(gid) {
            return self.resolve_block((qpn.get() >> 12) as u16);
        }
        report::log_once(
            report::Matter::OtherHost,
            format_args!(
                "no way to {}: it is no address of this network namespace. softrnic connects processes of one host \
                 that share a network namespace (for containers: the host's, or one of a pod)",
                gid.ip()
            ),
        );
        None
    }

    fn resolve_multicast(&mut self, gid: &Gid, links: &mut Vec<LinkId>) {
        self.find_members(gid, links);
    }

    fn announce_multicast(&mut self, gid: &Gid, attached: bool) -> Result<(), Errno> {
        self.announce_member(gid, attached)
    }

    fn same_peer(&self, a: LinkId, b: LinkId) -> bool {
        let remote = |id| self.link(id).and_then(|link| link.remote.as_ref());
        a == b || matches!((remote(a), remote(b)), (Some(a), Some(b)) if a.is_same(b))
    }

    fn caps(&self, link: LinkId) -> LinkCaps {
        self.caps_of(link)
    }

    #[inline]
    fn send(&mut self, id: LinkId, packet: &Packet, payload: Payload<'_>) -> Result<(), SendError> {
        if id == LinkId::LOOPBACK {
            self.looped = true;
        }
        let link = self.link_mut(id).ok_or(SendError::Down)?;
        if link.state != State::Up {
            return Err(SendError::Down);
        }
        let (words, used) = codec::encode(packet);
        match link.producer.push(&words, used, &payload) {
            Ok(_) => {
                let (clean, sleeps) = (!std::mem::replace(&mut link.dirty, true), link.producer.peer_sleeps());
                if clean {
                    self.dirty.push(id);
                }
                self.urgent |= sleeps;
                self.stats.sent_packets += 1;
                Ok(())
            }
            Err(PushError::Full) => {
                if !std::mem::replace(&mut link.full, true) {
                    self.full.push(id);
                }
                Err(SendError::Full)
            }
            Err(PushError::Broken) => {
                self.bury(id);
                Err(SendError::Down)
            }
            Err(PushError::Fault | PushError::Length) => Err(SendError::Fault),
        }
    }

    // Always: what is constant in the packet costs nothing then. And the packet is given to nobody else, who would have
    // to see it in memory: it is made in registers. (In memory it would be written by words of 4 bytes and read by
    // words of 8, which wait for all stores before them, also for those to the ring.)
    #[inline(always)]
    fn send_short(&mut self, id: LinkId, packet: &Packet, prefix: &[u8]) -> Option<u64> {
        if prefix.len() <= 8
            && let Some((words, four)) = codec::encode_short(packet, word_of(prefix))
            && let Some(link) = self.link_mut(id).filter(|link| link.state == State::Up)
            && link.producer.push_short(&words, four, prefix.len() as u32)
        {
            let (clean, sleeps) = (!std::mem::replace(&mut link.dirty, true), link.producer.peer_sleeps());
            let mark = link.producer.count();
            if clean {
                self.dirty.push(id);
            }
            self.urgent |= sleeps;
            self.stats.sent_packets += 1;
            return Some(mark);
        }
        cold_path();
        None
    }

    #[inline(always)]
    fn expect_send(&self, id: LinkId) {
        if let Some(link) = self.link(id) {
            link.producer.expect_push();
        }
    }

    #[inline]
    fn ring_doorbells(&mut self) {
        if self.dirty.is_empty() {
            return;
        }
        wake_fence();
        for at in 0..self.dirty.len() {
            let Some(link) = self.link_mut(self.dirty[at]) else {
                continue;
            };
            link.dirty = false;
            if link.remote.is_some() && link.producer.must_ring() {
                link.ring();
                self.stats.rings += 1;
            }
        }
        self.dirty.clear();
        self.urgent = false;
    }

    #[inline]
    fn sent_mark(&self, link: LinkId) -> u64 {
        self.link(link).map_or(0, |l| l.producer.count())
    }

    fn taken(&self, link: LinkId, mark: u64) -> bool {
        // On a dead link nothing will ever be taken, but sending again makes sense: it finds that out.
        self.link(link).is_none_or(|l| l.state != State::Up || l.producer.taken(mark))
    }

    fn unread(&self, link: LinkId) -> Option<u64> {
        let link = self.link(link).filter(|link| link.ready())?;
        Some(link.consumer.count() + u64::from(<Half as memory::ring::RingMemory>::SLOTS))
    }

    fn read(&self, link: LinkId) -> u64 {
        self.link(link).map_or(u64::MAX, |link| link.consumer.count())
    }

    fn lives(&self, link: LinkId) -> bool {
        let up = self.link(link).filter(|link| link.state == State::Up);
        up.is_some_and(|link| link.remote.as_ref().is_none_or(|remote| !remote.gone() && !remote.is_stopped()))
    }

    #[inline]
    fn has_full(&self) -> bool {
        !self.full.is_empty()
    }

    fn take_writable(&mut self, links: &mut Vec<LinkId>) {
        let mut i = 0;
        while let Some(&id) = self.full.get(i) {
            let room = match self.link_mut(id) {
                Some(link) if link.state == State::Up => link.producer.has_room(),
                _ => Ok(true),
            };
            match room {
                Ok(false) => i += 1,
                room => {
                    if room.is_err() {
                        self.bury(id);
                    }
                    if let Some(link) = self.link_mut(id) {
                        link.full = false;
                    }
                    self.full.swap_remove(i);
                    links.push(id);
                }
            }
        }
    }

    #[inline]
    fn rx_len(&self, rx: Rx) -> u32 {
        rx.len()
    }

    fn rx_fetch(&mut self, rx: Rx, offset: u32, dst: &mut [u8]) {
        if let Some(link) = self.link(rx.link()) {
            link.fetch(rx, offset, dst);
        }
    }

    #[inline]
    fn rx_scatter(&mut self, rx: Rx, offset: u32, spans: &[Span]) -> Result<(), Fault> {
        self.link(rx.link()).map_or(Err(Fault), |link| link.scatter(rx, offset, spans))
    }
}

impl SameHost for WindowEnv {
    fn is_same_host(&self, _link: LinkId) -> bool {
        true
    }

    fn peers_map(&self, span: &Span) -> bool {
        self.is_shared(span)
    }

    fn publish(&mut self, exported: &Export) {
        self.publish_row(exported);
    }

    fn retract(&mut self, id: ExportId) {
        self.retract_row(id);
    }

    #[inline]
    fn one_sided(&mut self, link: LinkId, request: &OneSided<'_>) -> Option<OneSidedDone> {
        self.execute(link, request)
    }

    #[inline]
    fn shares(&mut self, link: LinkId, rkey: RKey, addr: u64, len: u32) -> bool {
        self.region_is_shared(link, rkey, addr, len)
    }

    fn answered(&mut self, link: LinkId, len: u32, took: Nanos) {
        self.was_answered(link, len, took);
    }

    fn pull(&mut self, id: LinkId, ticket: TicketRef, remote: &[Span], local: &[Span]) -> Result<(), SingleCopyError> {
        if id == LinkId::LOOPBACK {
            own_ticket(ticket)?;
            let side = |source| {
                if source { SingleCopyError::Remote } else { SingleCopyError::Local }
            };
            local::copy(remote, local).map_err(side)?;
        } else {
            self.ring_before(local);
            self.hear_table(id);
            let link = self.link_mut(id).ok_or(SingleCopyError::Denied)?;
            let copied = link.pull_single_copy(ticket, remote, local);
            copied.inspect_err(|_| self.follower_failed(id))?;
        }
        self.single_copy_done(local);
        Ok(())
    }

    fn push(&mut self, id: LinkId, ticket: TicketRef, local: &[Span], remote: &[Span]) -> Result<(), SingleCopyError> {
        if id == LinkId::LOOPBACK {
            own_ticket(ticket)?;
            let side = |source| {
                if source { SingleCopyError::Local } else { SingleCopyError::Remote }
            };
            local::copy(local, remote).map_err(side)?;
        } else {
            self.ring_before(local);
            self.hear_table(id);
            let link = self.link_mut(id).ok_or(SingleCopyError::Denied)?;
            let copied = link.push_single_copy(ticket, local, remote);
            copied.inspect_err(|_| self.follower_failed(id))?;
        }
        self.single_copy_done(local);
        Ok(())
    }

    fn offered(&self, link: LinkId) -> Option<Offer> {
        let terms = self.link(link)?.offered()?.terms;
        let span = Span { addr: terms.followers, len: terms.len, guarded: true };
        Some(Offer { ticket: terms.ticket, span, to_us: terms.to_follower })
    }

    fn co_copy(&mut self, link: LinkId, offer: &Offer) {
        let Some(link) = self.link_mut(link) else { return };
        // Read once more, and once only: what was agreed to is what is helped with.
        if let Some(copy) = link.offered()
            && let terms = copy.terms
            && terms.ticket == offer.ticket
            && (terms.followers, terms.len, terms.to_follower) == (offer.span.addr, offer.span.len, offer.to_us)
        {
            let bytes = link.co_copy(&copy);
            self.stats.co_copied_bytes += bytes;
        }
    }

    fn has_late_writer(&mut self, link: LinkId) -> bool {
        self.link_mut(link).is_some_and(Link::has_late_writer)
    }

    fn wait_for_late_writers(&mut self) {
        self.wait_for_late_writers_of_links();
    }

    fn quiesce(&mut self, link: Option<LinkId>) {
        // Copies of our own, over the loopback link, are over: whoever calls holds the lock under which they are made.
        self.quiesce_those(|env, id| link.is_none_or(|link| env.same_peer(link, id)));
    }
}

impl Observer for WindowEnv {}

/// A look at a ticket in our own memory; guarded, because its address comes from a ring, and rings are not trusted.
fn own_ticket(ticket: TicketRef) -> Result<(), SingleCopyError> {
    let mut word = [0u8; 8];
    local::load(ticket.addr, true, &mut word).map_err(|_| SingleCopyError::Remote)?;
    if u64::from_ne_bytes(word) == ticket.value { Ok(()) } else { Err(SingleCopyError::Void) }
}

/// At most 8 bytes, as a word.
#[inline]
fn word_of(bytes: &[u8]) -> u64 {
    if let Some(whole) = bytes.as_array::<8>() {
        return u64::from_ne_bytes(*whole);
    }
    let mut word = [0u8; 8];
    for (to, from) in word.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_ne_bytes(word)
}

impl taps::Wire for WindowEnv {
    #[inline(always)]
    fn peek_short(&self, link: LinkId, prompt: bool) -> Option<ShortPacket> {
        WindowEnv::peek_short(self, link, prompt)
    }

    #[inline(always)]
    fn release_short(&mut self, link: LinkId) {
        WindowEnv::release_short(self, link);
    }

    #[inline]
    fn peek_into(&mut self, link: LinkId, packet: &mut Packet) -> Option<Rx> {
        WindowEnv::peek_into(self, link, packet)
    }

    #[inline]
    fn release(&mut self, link: LinkId) {
        WindowEnv::release(self, link);
    }

    fn device(&self) -> [u8; 16] {
        self.instance
    }

    fn peer_device(&mut self, link: LinkId) -> Option<[u8; 16]> {
        let known = |env: &Self| match &env.link(link)?.remote {
            Some(remote) => remote.instance,
            None => Some(env.instance),
        };
        known(self).or_else(|| {
            // WELCOME lies in the socket: it is sent before anything is put into the window, but whoever polls looks
            // into the window more often.
            self.hear_greeting(link);
            known(self)
        })
    }

    fn room(&mut self, id: LinkId) -> Result<(), SendError> {
        let link = self.link_mut(id).filter(|link| link.state == State::Up).ok_or(SendError::Down)?;
        match link.producer.has_room() {
            Ok(true) => Ok(()),
            Ok(false) => {
                if !std::mem::replace(&mut link.full, true) {
                    self.full.push(id);
                }
                Err(SendError::Full)
            }
            Err(_) => {
                self.bury(id);
                Err(SendError::Down)
            }
        }
    }
}
