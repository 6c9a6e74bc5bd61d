//! Requests that the initiator executes: the rows that this process shows its peers, and the use of those that they
//! show.
//!
//! A region's row has a second one beside it if it lies in the process's arena: which addresses do, and where. The
//! arena's places are shown by themselves too, for messages that go by single copy, which name addresses and no keys.

use memory::export_table::{Reader, VALUES, Writer};
use memory::fds::TrackedFd;
use memory::{OwnTable, PeerTable, arena, co_copy, single_copy};
use verbs::{Access, CtxId, PdId, QpType, Qpn, RKey};
use wire::{
    Export, ExportId, LinkId, Nanos, OneSided, OneSidedDone, OneSidedOp, PIECE, Span, TOGETHER, check_one_sided,
};

use crate::WindowEnv;
use crate::known::{Found, Known, within};
use crate::link::{Link, Remote, State};
use crate::peers::monotonic;
use crate::shared::{PLACES, Place};

/// Up to so many bytes, a peer that polls takes a request from the ring in less time than a system call needs.
pub(crate) const SMALL: u32 = 1024;
/// The time for which the last look at a peer's life holds. A process number does not come round again so soon.
const LIFE_HOLDS: Nanos = 8_000_000;
/// The engine's times of one event, and of others, differ by that much: it does not read the clock for each.
const SAME: Nanos = 20_000;
/// The rows that this process shows.
pub(crate) struct Exports {
    writer: Writer<OwnTable>,
    /// For peers.
    pub fd: TrackedFd,
}

const REGION: u64 = 1 << 32;
const QP: u64 = 2 << 32;
/// Beside a region's row: the addresses that are in the arena (first, bytes), and where the first one is there.
const SHARED: u64 = 3 << 32;
/// The arena: its descriptor and inode, and how many places of it are to be looked at.
const ARENA: u64 = 4 << 32;
/// A place in the arena, by its number: as [`SHARED`].
const PLACE: u64 = 5 << 32;

/// The time, to some milliseconds, at a fraction of the price.
pub(crate) fn coarse_time() -> Nanos {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

impl Remote {
    /// True if we have its arena, or can have it now.
    #[inline]
    pub(crate) fn shares(&mut self) -> bool {
        self.arena.is_some() || self.finds_arena()
    }

    /// Copies from addresses of the peer to ours through its arena, if all of them are there: the caller marks it.
    pub(crate) fn pull_shared(&mut self, theirs: &[Span], ours: &[Span]) -> Option<()> {
        if !self.shares() {
            return None;
        }
        let (arena, export_table, pidfd) = (self.arena.as_mut()?, self.export_table.as_ref()?, self.pidfd.as_ref()?);
        let count = export_table.find(ARENA)?[2].min(PLACES as u64);
        let place = |span: &Span| {
            (0..count).find_map(|i| {
                let row = export_table.find(PLACE | i)?;
                Some((row, within(row, span.addr, span.len)?))
            })
        };
        for span in theirs {
            let (row, _) = place(span)?;
            arena.attach(pidfd, row[2], row[1]).ok()?;
        }
        arena.gather(theirs.iter().map(|span| Some((place(span)?.1, span.len))), ours).ok()
    }

    fn finds_arena(&mut self) -> bool {
        let named =
            self.export_table.as_ref().filter(|_| !self.arena_failed && self.we_permitted).and_then(|b| b.find(ARENA));
        let Some([number, inode, ..]) = named else { return false };
        // Whether the arena can be had is found out when it is needed.
        self.arena = arena::Peer::new(number, inode).ok().filter(|_| self.pidfd.is_some());
        self.arena_failed = self.arena.is_none();
        !self.arena_failed
    }
}

fn tag(id: ExportId) -> u64 {
    match id {
        ExportId::Region(key) => REGION | u64::from(key),
        ExportId::Qp(qpn) => QP | u64::from(qpn.get()),
    }
}

/// Beside a region's rights: bits 32-55 are the number of the only queue pair through which it may be reached.
const THROUGH: u64 = 1 << 63;

/// Beside a region's rights: it has no place in the arena, and none is looked for. A process of an earlier version
/// leaves it out; then one is looked for.
const UNPLACED: u64 = 1 << 62;

/// The domain of a queue pair that has none.
const NO_PD: u64 = u64::MAX;

fn handle(index: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(index)
}

fn pd(word: u64) -> PdId {
    PdId { index: word as u32, generation: (word >> 32) as u32 }
}

fn ctx(word: u64) -> CtxId {
    CtxId { index: word as u32, generation: (word >> 32) as u32 }
}

/// A queue pair's rights, and its service above them.
fn service_word(service: QpType, access: Access) -> u64 {
    u64::from(service as u32) << 32 | u64::from(access.bits())
}

fn row(exported: &Export) -> [u64; VALUES] {
    match *exported {
        Export::Region { key: _, through, ctx, pd, access, addr, length, iova } => {
            let (pd, ctx) = (handle(pd.index, pd.generation), handle(ctx.index, ctx.generation));
            let through = through.map_or(0, |qpn| THROUGH | u64::from(qpn.get()) << 32);
            [pd, u64::from(access.bits()) | through, addr, length, iova, ctx]
        }
        Export::Qp { qpn: _, service, peer, ctx, pd, access, mtu, epoch } => {
            let pd = pd.map_or(NO_PD, |pd| handle(pd.index, pd.generation));
            let ctx = handle(ctx.index, ctx.generation);
            [pd, service_word(service, access), u64::from(peer.get()), epoch, ctx, u64::from(mtu)]
        }
    }
}

fn region(key: u32, row: [u64; VALUES]) -> Export {
    let [domain, rights, addr, length, iova, owner] = row;
    let access = Access::from_bits_truncate(rights as u32);
    let through = (rights & THROUGH != 0).then(|| Qpn::new((rights >> 32) as u32));
    Export::Region { key, through, ctx: ctx(owner), pd: pd(domain), access, addr, length, iova }
}

/// `None` for a service that there is not.
fn queue_pair(qpn: Qpn, row: [u64; VALUES]) -> Option<Export> {
    let [domain, access, peer, epoch, owner, mtu] = row;
    let service = QpType::from_raw((access >> 32) as u32)?;
    let access = Access::from_bits_truncate(access as u32);
    let pd = (domain != NO_PD).then(|| pd(domain));
    Some(Export::Qp { qpn, service, peer: Qpn::new(peer as u32), ctx: ctx(owner), pd, access, mtu: mtu as u32, epoch })
}

impl WindowEnv {
    /// Makes the export table, unless single copies are refused. Without one peers send their requests, as they do to a
    /// process that has too much to show.
    pub(crate) fn make_exports(&mut self) {
        if self.export_table.is_none() && self.config.single_copy {
            self.export_table = OwnTable::create().ok().map(|(table_memory, fd)| Exports {
                writer: Writer::new(table_memory),
                fd: TrackedFd::new(fd, &self.fds),
            });
        }
    }

    pub(crate) fn publish_row(&mut self, exported: &Export) {
        self.make_exports();
        let place = match *exported {
            // What lies at the addresses of an ON_DEMAND region may be something else at any time.
            Export::Region { key, access, addr, length, .. } if !access.contains(Access::ON_DEMAND) => {
                self.shared.find(addr, length).map(|place| (key, place))
            }
            _ => None,
        };
        let Some(export_table) = &mut self.export_table else { return };
        let mut values = row(exported);
        match (place, exported) {
            (Some((key, Place { addr, len, at })), _) => {
                export_table.writer.publish(SHARED | u64::from(key), &[addr, len, at, 0, 0, 0]);
            }
            (None, Export::Region { .. }) => values[1] |= UNPLACED,
            (None, Export::Qp { .. }) => {}
        }
        export_table.writer.publish(tag(exported.id()), &values);
    }

    pub(crate) fn retract_row(&mut self, id: ExportId) {
        // The wait is also for memory that is not shown, such as that of a receive.
        self.wait_for_late_writers_of_links();
        let Some(export_table) = &mut self.export_table else { return };
        let exported = export_table.writer.retract(tag(id));
        if let ExportId::Region(key) = id {
            export_table.writer.retract(SHARED | u64::from(key));
        }
        if !exported {
            return;
        }
        // A peer that was never permitted to copy cannot be copying, whatever its mark says. A copy by another key
        // neither reads nor writes what this key was for.
        self.quiesce_those(|env, link| {
            let link = env.link(link).filter(|link| link.remote.as_ref().is_some_and(|remote| remote.we_permitted));
            link.and_then(Link::copied_by_peer).is_some_and(|copy| match id {
                ExportId::Region(key) => copy.concerns(key),
                ExportId::Qp(_) => true,
            })
        });
    }

    /// Shows a place of the arena, or takes back what was shown under its number.
    pub(crate) fn publish_place(&mut self, number: usize, place: Option<Place>) {
        self.make_exports();
        let (arena, count) = (self.shared.name(), self.shared.count());
        let (Some(export_table), Some((fd, inode))) = (&mut self.export_table, arena) else { return };
        match place {
            Some(Place { addr, len, at }) => {
                export_table.writer.publish(PLACE | number as u64, &[addr, len, at, 0, 0, 0]);
            }
            None => {
                export_table.writer.retract(PLACE | number as u64);
            }
        }
        export_table.writer.publish(ARENA, &[fd, inode, count as u64, 0, 0, 0]);
    }

    /// Executes a request here, or a piece of it, if the peer shows that it is allowed.
    pub(crate) fn execute(&mut self, id: LinkId, request: &OneSided<'_>) -> Option<OneSidedDone> {
        if request.before > 0 || request.after > 0 {
            return self.execute_piece(id, request);
        }
        let link = self.link_mut(id)?;
        // A sender without answers does not see when its packets are taken: for a while it takes a stream to last.
        let goes_on = request.queues
            && !request.service.is_reliable()
            && link.streams_until != 0
            && coarse_time() <= link.streams_until;
        // The peer does its part of a stream.
        let shared = goes_on || request.queues && self.streams(id, request.len);
        let answers = Answers { taken: self.stats.received_packets, shares: self.shared.count() > 0 };
        let link = self.link_mut(id)?;
        if !goes_on {
            link.streams_until = if shared { coarse_time() + LIFE_HOLDS } else { 0 };
        }
        let reached = act(link, request, shared, answers)?;
        self.single_copy_done(&[Span { addr: 0, len: request.len, guarded: false }]);
        Some(reached)
    }

    /// Executes several requests here by one copy, if the peer shows that all are allowed.
    pub(crate) fn execute_together(&mut self, id: LinkId, requests: &[OneSided<'_>]) -> Option<(u64, usize)> {
        let first = requests.first()?;
        // Each by itself where the peer does its part of a stream.
        if self.link(id)?.streams_until != 0 || first.queues && self.streams(id, first.len) {
            return None;
        }
        let done = act_together(self.link_mut(id)?, requests)?;
        for request in &requests[..done.1] {
            self.single_copy_done(request.local.spans);
        }
        Some(done)
    }

    /// A piece of a long request. The first decides about the others.
    fn execute_piece(&mut self, id: LinkId, request: &OneSided<'_>) -> Option<OneSidedDone> {
        let link = self.link_mut(id)?;
        let sends = request.before == 0
            && if request.service.is_reliable() {
                link.long.are_sent(request.queues, coarse_time)
            } else {
                request.queues // no answer tells how soon they are taken
            };
        if sends && self.runs(id) {
            return None;
        }
        let began = monotonic();
        let link = self.link_mut(id)?;
        let reached = act(link, request, false, Answers::default())?;
        link.long.executed(request.len, monotonic().saturating_sub(began));
        self.single_copy_done(&[Span { addr: 0, len: request.len, guarded: false }]);
        Some(reached)
    }

    /// True if what is executed here by system calls is a stream that the window moves faster.
    fn streams(&mut self, id: LinkId, len: u32) -> bool {
        let Some(link) = self.link_mut(id) else { return false };
        // What goes by single copy, too, is copied by both.
        if !link.stream_detector.streams(len, monotonic)
            || (len < co_copy::SHORTEST
                && self.caps_of(id).single_copy.is_some_and(|copies| len > copies.flowing_above))
        {
            return false;
        }
        if !self.runs(id) {
            return false;
        }
        let Some(link) = self.link_mut(id).filter(|link| !link.shares.are_late(coarse_time)) else { return false };
        link.shared_at = monotonic();
        true
    }

    /// True unless the peer is stopped: then it would not answer, and the requests would fail.
    fn runs(&mut self, id: LinkId) -> bool {
        let Some(remote) = self.link_mut(id).and_then(|link| link.remote.as_mut()) else { return false };
        let now = coarse_time();
        if now.saturating_sub(remote.ran_at) > LIFE_HOLDS {
            if remote.is_stopped() {
                return false;
            }
            remote.ran_at = now;
        }
        true
    }

    /// A lone request of this length that was sent has been answered.
    pub(crate) fn was_answered(&mut self, id: LinkId, len: u32, took: Nanos, refused: bool) {
        let Some(link) = self.link_mut(id) else { return };
        if len <= SMALL {
            link.small.answered(took, coarse_time);
        } else if len > PIECE {
            link.long.answered(len, took, coarse_time);
        } else if refused
            && let (now, shared_at) = (monotonic(), std::mem::take(&mut link.shared_at))
            && now.saturating_sub(took) <= shared_at.saturating_add(SAME)
        {
            // It is the one that the peer was given last. A call takes as long as all of it.
            let in_time = now.saturating_sub(shared_at) <= link.stream_detector.call() * 3 / 2;
            link.shares.are_in_time(in_time, coarse_time);
        }
    }

    /// True if the peer shows a region with this key that is in an arena which we have.
    pub(crate) fn region_is_shared(&mut self, id: LinkId, rkey: RKey, addr: u64, len: u32) -> bool {
        let Some(link) = self.link_mut(id).filter(|link| link.state == State::Up) else { return false };
        let Some(remote) = link.remote.as_mut().filter(|remote| remote.it_permitted) else { return false };
        if !remote.shares() {
            return false;
        }
        let place = || {
            let export_table = remote.export_table.as_ref()?;
            let exported = region(rkey.0, export_table.find(tag(ExportId::Region(rkey.0)))?);
            let Export::Region { addr: start, iova, .. } = exported else { return None };
            let row = export_table.find(SHARED | u64::from(rkey.0))?;
            within(row, start.wrapping_add(addr.wrapping_sub(iova)), len)
        };
        place().is_some()
    }
}

/// Whether the way is worth while for a request of this length, if it has to be a system call.
fn worth_a_call(link: &Link, request: &OneSided<'_>) -> bool {
    // A last piece is worth what the others were; and a sender without answers does not see whether its packets are
    // late.
    let anyhow = request.len > SMALL || request.before > 0 || !request.service.is_reliable();
    !matches!(request.op, OneSidedOp::Atomic(_))
        && (anyhow || link.producer.peer_sleeps() || link.small.are_late(coarse_time))
}

/// How an answer of the peer's may come that takes it no system call.
#[derive(Clone, Copy, Default)]
struct Answers {
    /// Packets that have been taken from all peers.
    taken: u64,
    /// The peer can map memory of this process.
    shares: bool,
}

/// Checks a request against the rows, and keeps what they say for the next one.
#[inline(never)] // where all is known, it takes no registers
fn look(peer: &Reader<PeerTable>, request: &OneSided<'_>, known: &mut Known) -> Option<Found> {
    let (qp_row, values) = peer.find_seen(tag(ExportId::Qp(request.dst)))?;
    let qp = queue_pair(request.dst, values)?;
    let (region_row, values) = peer.find_seen(tag(ExportId::Region(request.rkey.0)))?;
    let region = region(request.rkey.0, values);
    let (addr, epoch) = check_one_sided(qp, region, request)?;
    if values[1] & UNPLACED != 0 {
        return Some(Found { epoch, addr, place: None });
    }
    let place = peer.find_seen(SHARED | u64::from(request.rkey.0)).and_then(|(place_row, values)| {
        let at = within(values, addr, request.len)?;
        known.keep(request, &qp, &region, [qp_row, region_row, place_row], values);
        Some((at, values))
    });
    Some(Found { epoch, addr, place })
}

/// Executes a request. `by_memory`: only as a copy in memory, not by a system call.
fn act(link: &mut Link, request: &OneSided<'_>, by_memory: bool, answers: Answers) -> Option<OneSidedDone> {
    if link.state != State::Up {
        return None;
    }
    let by_call = !by_memory && worth_a_call(link, request);
    let remote = link.remote.as_mut()?;
    if remote.export_table.is_none() || !remote.it_permitted || !(remote.shares() || by_call) {
        return None;
    }
    if !is_alive(remote) {
        return None;
    }
    let peer = remote.export_table.as_ref()?;
    link.copier.marked_by(link.producer.memory().copying(), request.rkey.0, || {
        let prefix = request.local.prefix;
        let own = [Span { addr: prefix.as_ptr().expose_provenance() as u64, len: request.len, guarded: false }];
        let ours = if prefix.is_empty() { request.local.spans } else { &own[..] };
        let known = remote.known.find(peer, request);
        let Found { epoch, addr, place } = known.or_else(|| look(peer, request, &mut remote.known))?;
        let mapped = remote.arena.as_mut().zip(remote.pidfd.as_ref()).and_then(|(arena, pidfd)| {
            let (at, row) = place?;
            arena.attach(pidfd, row[2], row[1]).ok()?;
            Some((arena, at))
        });
        if let Some((arena, at)) = mapped {
            let mut before = 0;
            match request.op {
                OneSidedOp::Write => arena.write(at, request.len, ours).ok()?,
                OneSidedOp::Read => arena.read(at, request.len, ours).ok()?,
                OneSidedOp::Atomic(op) => before = arena.atomic(at, op).ok()?,
            }
            return Some(OneSidedDone { epoch, before });
        }
        if !by_call {
            return None;
        }
        let theirs = [Span { addr, len: request.len, guarded: true }];
        // The pieces of one request are no stream, and what is no queue is none either.
        let detected = request.queues && request.before == 0 && request.after == 0;
        if detected {
            link.stream_detector.begins(request.len, monotonic);
        }
        let copied = match request.op {
            OneSidedOp::Write => single_copy::push(remote.who.pid, ours, &theirs),
            _ => single_copy::pull(remote.who.pid, &theirs, ours),
        };
        if detected {
            link.stream_detector.ends(answers.taken, answers.shares, monotonic);
        }
        copied.ok().map(|()| OneSidedDone { epoch, before: 0 })
    })
}

/// As [`act`], for requests that are all system calls: one copy. The others are left to that.
fn act_together(link: &mut Link, requests: &[OneSided<'_>]) -> Option<(u64, usize)> {
    let worth = requests.len() <= TOGETHER && requests.iter().all(|request| worth_a_call(link, request));
    if link.state != State::Up || !worth {
        return None;
    }
    let remote = link.remote.as_mut()?;
    if remote.export_table.is_none() || !remote.it_permitted || !is_alive(remote) {
        return None;
    }
    let (peer, reads) = (remote.export_table.as_ref()?, requests.first()?.op == OneSidedOp::Read);
    // By several keys: the mark concerns every one.
    link.copier.marked(link.producer.memory().copying(), || {
        let (mut ours, mut theirs) = ([Span::default(); TOGETHER], [Span::default(); TOGETHER]);
        let mut connection = None;
        for (request, (ours, theirs)) in requests.iter().zip(ours.iter_mut().zip(&mut theirs)) {
            let known = remote.known.find(peer, request);
            let Found { epoch, addr, place } = known.or_else(|| look(peer, request, &mut remote.known))?;
            let ([span], None) = (request.local.spans, place) else { return None };
            if *connection.get_or_insert(epoch) != epoch || (request.op == OneSidedOp::Read) != reads {
                return None;
            }
            (*ours, *theirs) = (*span, Span { addr, len: request.len, guarded: true });
        }
        let (ours, theirs) = (&ours[..requests.len()], &theirs[..requests.len()]);
        let count = single_copy::whole_spans(remote.who.pid, !reads, ours, theirs);
        connection.filter(|_| count > 0).map(|epoch| (epoch, count))
    })
}

/// True unless the peer is gone. A look some milliseconds ago still holds.
fn is_alive(remote: &mut Remote) -> bool {
    // Not the engine's time, which may be old: a process that was stopped in between must not take it for the present.
    let now = coarse_time();
    if now.saturating_sub(remote.alive_at) > LIFE_HOLDS {
        if remote.gone() {
            return false;
        }
        remote.alive_at = now;
    }
    true
}

/// True if the peer's row of a region says that it has no place in the arena. `None`: there is no such row.
#[cfg(test)]
pub(crate) fn is_unplaced(remote: &Remote, key: u32) -> Option<bool> {
    let row = remote.export_table.as_ref()?.find(tag(ExportId::Region(key)))?;
    Some(row[1] & UNPLACED != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_say_what_is_shown() {
        let (pd, ctx) = (PdId { index: 7, generation: 9 }, CtxId { index: 3, generation: 4 });
        let access = Access::REMOTE_READ | Access::LOCAL_WRITE;
        for through in [None, Some(Qpn::new(0)), Some(Qpn::new(0xff_ffff))] {
            let (key, addr, length, iova) = (0x1234_5678, 1 << 40, u64::MAX, 3);
            let exported = Export::Region { key, through, ctx, pd, access, addr, length, iova };
            assert_eq!(region(key, row(&exported)), exported);
        }
        let (qpn, peer) = (Qpn::new(0x12_3456), Qpn::new(0x65_4321));
        for (service, pd) in [(QpType::Rc, Some(pd)), (QpType::Uc, Some(pd)), (QpType::XrcTgt, None)] {
            let exported = Export::Qp { qpn, service, peer, ctx, pd, access, mtu: 2048, epoch: u64::MAX };
            assert_eq!(queue_pair(qpn, row(&exported)), Some(exported));
        }
        assert_eq!(queue_pair(qpn, [0; VALUES]), None, "no service");
        assert_ne!(tag(ExportId::Region(5)), tag(ExportId::Qp(Qpn::new(5))));
    }
}
