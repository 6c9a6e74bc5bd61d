//! One peer process (or this one itself, over the heap).

use std::hint::cold_path;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memory::backing::{Backing, Heap};
use memory::co_copy::{self, Failed, Follower, Leader, Offer, Terms};
use memory::copying::{Copier, UnderWay, under_way};
use memory::export_table::Reader;
use memory::fds::TrackedFd;
use memory::ring::{Broken, Consumer, Place, Producer};
use memory::{Half, PeerTable, arena, single_copy};
use rustix::event::{PollFd, PollFlags, Timespec};
use verbs::Errno;
use wire::{Fault, Packet, ShortPacket, SingleCopyError, Span, TicketRef};

use crate::codec;
use crate::identity::Identity;
use crate::known::Known;
use crate::peers::Who;
use crate::quiet::Offence;
use crate::rendezvous::{Message, NONCE};
use crate::socket;
use crate::stream_detector::StreamDetector;

/// Names the payload of the packet that [`crate::WindowEnv::peek`] gave, until it is released.
///
/// Two words, so that it travels in registers, also as an `Option`: a structure of smaller members goes through memory,
/// and is read from there by wider loads than it was written, which wait for all stores before them.
#[derive(Clone, Copy, Debug)]
pub struct Rx {
    /// From this byte on, `BULK` if that is in the bulk area, and `ANY`.
    place: NonZeroU64,
    /// The link, and above it 32 bits of length.
    link_len: u64,
}

impl Rx {
    const BULK: u64 = 1 << 32;
    const ANY: NonZeroU64 = NonZeroU64::new(1 << 63).unwrap();

    #[inline]
    fn new(link: wire::LinkId, place: Place, len: u32) -> Rx {
        let place = match place {
            Place::Body(at) => u64::from(at),
            Place::Bulk(at) => u64::from(at) | Self::BULK,
        };
        Rx { place: Self::ANY | place, link_len: u64::from(link.0) | u64::from(len) << 32 }
    }

    #[inline]
    pub(crate) fn link(self) -> wire::LinkId {
        wire::LinkId(self.link_len as u32)
    }

    #[inline]
    pub(crate) fn len(self) -> u32 {
        (self.link_len >> 32) as u32
    }

    #[inline]
    fn place(self) -> Place {
        let at = self.place.get() as u32;
        if self.place.get() & Self::BULK == 0 { Place::Body(at) } else { Place::Bulk(at) }
    }
}

/// Parts of a peer's copy that are helped with before others have their turn.
const PARTS_AT_ONCE: u32 = 2;
/// The number of looks at a follower's progress before the leader yields its processor, and the number of such yields
/// between two looks at the follower's life.
const FOLLOWER_SPINS: u32 = 4096;
const FOLLOWER_LOOKS: u32 = 16;
/// So many of these looks in a row must find it stopped.
const FOLLOWER_STOPPED: u32 = 10;
/// A follower that was waited for so long has lost its processor, or is slow on purpose: it is asked less and less
/// often.
const FOLLOWER_SLOW: Duration = Duration::from_millis(1);
/// The longest time that a follower that lives may take for its part: it is waited for under the lock.
const FOLLOWER_PATIENCE: Duration = Duration::from_millis(20);

/// The stage of a link's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Packets go both ways.
    Up,
    /// It is not known yet whether the peer is of our user: nothing comes or goes.
    Held,
    /// The peer is gone. What it had sent is still taken, at most so many packets more (one that only closed its
    /// socket could go on writing forever).
    Draining(u32),
    /// Nothing comes or goes any more.
    Dead,
}

/// The other process, as the kernel names it.
pub(crate) struct Remote {
    /// Its socket: closes when it dies.
    pub socket: TrackedFd,
    /// Process and user.
    pub who: Who,
    /// It has connected to us, not we to it.
    pub visits: bool,
    /// The number of the process: links to one process have the same number, whatever process number it has or had.
    pub peer: u64,
    /// The name that the peer gives its device, once it has said so.
    pub instance: Option<[u8; 16]>,
    /// What its links say about its identity.
    pub identity: Identity,
    /// Becomes readable when the process is dead. Tells so even if a forked child of it keeps the socket open.
    pub pidfd: Option<TrackedFd>,
    /// What it has done to us.
    pub offence: Option<Offence>,
    /// What it has to read from our memory, until it has answered; `None` for another user's process.
    pub nonce: Option<Box<[u8; NONCE]>>,
    /// It has read that: it may trace us.
    pub proved: bool,
    /// It does not refuse single copies.
    pub single_copy: bool,
    /// It has given us what it gives to those that may trace it.
    pub given: bool,
    /// Our eventfd that this peer alone rings. Only for a peer that has proved that it may trace us: a process that
    /// holds an eventfd can read the rings of others, and make writing to it block.
    pub bell: Option<TrackedFd>,
    /// The eventfd that wakes it, under the same condition; else it is rung by the socket.
    pub doorbell: Option<Arc<TrackedFd>>,
    /// We have sent HELLO and wait for WELCOME.
    pub awaits_welcome: bool,
    /// We can copy directly from and to its memory: it has seen our proof, and neither side refuses.
    pub we_permitted: bool,
    /// It can copy directly from and to ours: it has proved so, and neither side refuses.
    pub it_permitted: bool,
    /// Where we may choose, large messages should go through the window.
    pub favours_window: bool,
    /// What it shows, so that we execute requests by ourselves.
    pub export_table: Option<Reader<PeerTable>>,
    /// What earlier requests found there.
    pub known: Known,
    /// Its memory that we have mapped.
    pub arena: Option<arena::Peer>,
    /// It has one that cannot be mapped.
    pub arena_failed: bool,
    /// When it was last known to live.
    pub alive_at: wire::Nanos,
    /// When it was last known not to be stopped.
    pub ran_at: wire::Nanos,
}

fn readable(fd: &TrackedFd, flags: PollFlags) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), flags)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|n| n > 0)
}

/// True if the process of this pidfd is dead.
pub(crate) fn is_dead(pidfd: &TrackedFd) -> bool {
    readable(pidfd, PollFlags::IN)
}

impl Remote {
    /// True if the process is dead, or has closed our socket.
    pub fn gone(&self) -> bool {
        match &self.pidfd {
            Some(pidfd) => is_dead(pidfd),
            // No flags: only POLLHUP and POLLERR.
            None => readable(&self.socket, PollFlags::empty()),
        }
    }
}

impl Remote {
    /// True if the peer may help with a single copy.
    fn may_follow(&self, leader: &mut Leader) -> bool {
        self.it_permitted && self.offence.is_none() && leader.asks()
    }

    /// True if the process is stopped (SIGSTOP, a debugger): it does not wait for its turn on a processor.
    /// False if it cannot be told.
    pub fn is_stopped(&self) -> bool {
        let stat = memory::files::contents(&format!("/proc/{}/stat", self.who.pid));
        // proc_pid_stat(5): the state is the third field; the second, in parentheses, may contain anything.
        let state = stat.iter().rposition(|b| *b == b')').and_then(|at| stat.get(at + 2));
        matches!(state, Some(b'T' | b't'))
    }
}

/// A source and a target of one piece each, long enough to be copied by two.
fn alone(from: &[Span], to: &[Span]) -> Option<(Span, Span)> {
    let ([from], [to]) = (from, to) else { return None };
    ((co_copy::SHORTEST..=co_copy::LONGEST).contains(&from.len) && from.len == to.len).then_some((*from, *to))
}

fn part_of(span: Span, at: u32, len: u32) -> Span {
    Span { addr: span.addr.wrapping_add(u64::from(at)), len, ..span }
}

/// Leads a copy. A copy that the peer holds up is given up.
fn lead(
    leader: &mut Leader,
    words: &co_copy::Words<'_>,
    terms: &Terms,
    copy: impl FnMut(u32, u32) -> Result<(), SingleCopyError>,
    remote: &Remote,
) -> Result<(), SingleCopyError> {
    let (mut began, mut stopped) = (None, 0);
    let waits = |turn: u32| {
        // A part takes some microseconds, unless its follower has to wait for a processor.
        if turn < FOLLOWER_SPINS {
            std::hint::spin_loop();
            return true;
        }
        if !turn.is_multiple_of(FOLLOWER_LOOKS) {
            std::thread::yield_now();
            return true;
        }
        let since = *began.get_or_insert_with(Instant::now);
        std::thread::sleep(Duration::from_micros(50));
        // One look tells nothing: a process under a tracer of system calls stops at each of them.
        stopped = if remote.is_stopped() { stopped + 1 } else { 0 };
        !remote.gone() && stopped < FOLLOWER_STOPPED && since.elapsed() < FOLLOWER_PATIENCE
    };
    let led = leader.lead(words, terms, copy, waits);
    if began.is_some_and(|began| began.elapsed() > FOLLOWER_SLOW) {
        leader.avoid();
    }
    led.map_err(|failed| match failed {
        Failed::Copy(error) => error,
        // The initiator sends the data themselves, when it goes on: behind what it does for this copy.
        Failed::Stalled => SingleCopyError::Denied,
    })
}

pub(crate) struct Link {
    pub state: State,
    pub producer: Producer<Half>,
    pub consumer: Consumer<Half>,
    /// `None` for the loopback link.
    pub remote: Option<Remote>,
    /// Marks our single copies for the peer.
    pub copier: Copier,
    /// Those that the peer may help with.
    pub leader: Leader,
    /// Those of the peer that we help with.
    pub follower: Follower,
    /// The link is in the list of links to ring.
    pub dirty: bool,
    /// The link is in the list of links without room.
    pub full: bool,
    /// The pace of the requests that are executed here by a system call.
    pub stream_detector: StreamDetector,
    /// The requests were a stream when last seen. Until this time, a request with nothing in front of it is part of
    /// that stream. 0: they were no stream.
    pub streams_until: wire::Nanos,
    /// Whether the peer is soon done with its part of a stream.
    pub shares: crate::stream_detector::Small,
    /// When it was last given one; 0: its answer has come.
    pub shared_at: wire::Nanos,
    /// Whether small requests are taken from the ring soon.
    pub small: crate::stream_detector::Small,
    /// Whether long ones are.
    pub long: crate::stream_detector::Long,
}

/// The side of a window that this process has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// We made the window.
    Maker,
    /// The peer did.
    Taker,
}

impl Link {
    pub(crate) fn new(window: Arc<dyn Backing>, side: Side, remote: Remote) -> Result<Self, Errno> {
        let (ours, theirs) = if side == Side::Maker { (0, 1) } else { (1, 0) };
        let (out, inward) = (Half::new(&window, ours)?, Half::new(&window, theirs)?);
        Ok(Self::over(out, inward, Some(remote)))
    }

    /// The link of this process to itself: one ring with both ends here.
    pub(crate) fn loopback() -> Result<Self, Errno> {
        let heap: Arc<dyn Backing> = Arc::new(Heap::new(Half::BYTES));
        let half = Half::new(&heap, 0)?;
        Ok(Self::over(half.clone(), half, None))
    }

    fn over(out: Half, inward: Half, remote: Option<Remote>) -> Self {
        Link {
            state: State::Up,
            producer: Producer::new(out),
            consumer: Consumer::new(inward),
            remote,
            copier: Copier::default(),
            leader: Leader::default(),
            follower: Follower::default(),
            dirty: false,
            full: false,
            stream_detector: StreamDetector::default(),
            streams_until: 0,
            shares: crate::stream_detector::Small::default(),
            shared_at: 0,
            small: crate::stream_detector::Small::default(),
            long: crate::stream_detector::Long::default(),
        }
    }

    /// Goes from up to draining, at most once.
    pub(crate) fn drain(&mut self) {
        if self.state == State::Up {
            self.state = State::Draining(<Half as memory::ring::RingMemory>::SLOTS);
        }
    }

    /// The next packet, written to `packet`. `Err` if there will be no more on this link.
    #[inline(always)]
    pub(crate) fn peek(&mut self, id: wire::LinkId, packet: &mut Packet) -> Result<Option<Rx>, Broken> {
        if self.state != State::Up {
            cold_path();
            match self.state {
                State::Dead => return Err(Broken),
                State::Held => return Ok(None),
                State::Up | State::Draining(_) => {}
            }
        }
        match self.consumer.peek()? {
            Some(record) => {
                let known = codec::decode(&record.body, usize::from(record.header_words), packet);
                if !known {
                    cold_path();
                    return Err(Broken);
                }
                Ok(Some(Rx::new(id, record.place, record.len)))
            }
            None if self.state == State::Up => Ok(None),
            None => Err(Broken),
        }
    }

    /// The next packet, if it is there and short, and nothing about the link is out of the ordinary.
    #[inline(always)]
    pub(crate) fn peek_short(&self, prompt: bool) -> Option<ShortPacket> {
        if self.state != State::Up {
            cold_path();
            return None;
        }
        let short = codec::decode_short(&self.consumer.peek_short()?)?;
        // The line behind an acknowledgement, for the answer to what it acknowledges, is not fetched. So early it would
        // be taken from the peer, which is about to write it.
        if prompt && short.asks_for_ack() {
            self.producer.expect_push();
        }
        Some(short)
    }

    /// True if a packet is there.
    #[inline(always)]
    pub(crate) fn ready(&self) -> bool {
        !matches!(self.state, State::Dead | State::Held) && self.consumer.ready()
    }

    /// Gives the place of what [`Link::peek_short`] gave back, and rings if the peer waits for it.
    #[inline(always)]
    pub(crate) fn release_short(&mut self) {
        if self.consumer.release_short() {
            cold_path();
            self.ring();
        }
    }

    /// Gives the peeked packet's place back, and rings if the peer waits for it. False if the link's life is over.
    #[inline]
    pub(crate) fn release(&mut self) -> bool {
        if self.consumer.release() {
            cold_path();
            self.ring();
        }
        match self.state {
            State::Up => true,
            State::Draining(left) => {
                cold_path();
                self.state = State::Draining(left.saturating_sub(1));
                left > 1
            }
            State::Dead | State::Held => false,
        }
    }

    /// Wakes the peer.
    pub(crate) fn ring(&self) {
        let Some(remote) = &self.remote else { return };
        // Whatever goes wrong: if the peer is gone its socket tells so, and a full counter or socket wakes it anyway.
        match &remote.doorbell {
            Some(doorbell) => drop(rustix::io::write(doorbell, &1u64.to_ne_bytes())),
            None => drop(socket::send(&remote.socket, &Message::Ring, &[])),
        }
    }

    /// Copies payload bytes of the peeked packet.
    pub(crate) fn fetch(&self, rx: Rx, offset: u32, dst: &mut [u8]) {
        match rx.place() {
            Place::Bulk(at) => self.consumer.memory().fetch(at.saturating_add(offset), dst),
            Place::Body(at) => self.fetch_body(at.saturating_add(offset) as usize, dst),
        }
    }

    /// Copies from the peeked record's body. Mostly the first payload bytes, which begin at a word: those are copied
    /// by words, as they came (a wider load would wait for the stores of the words).
    #[inline]
    fn fetch_body(&self, from: usize, dst: &mut [u8]) {
        let Some(record) = self.consumer.peeked() else { return };
        if from.is_multiple_of(8) {
            for (to, word) in dst.chunks_mut(8).zip(record.body.iter().skip(from / 8)) {
                to.copy_from_slice(&word.to_ne_bytes()[..to.len()]);
            }
        } else {
            let bytes = self.body();
            let bytes = bytes.get(from..).unwrap_or(&[]);
            let n = dst.len().min(bytes.len());
            dst[..n].copy_from_slice(&bytes[..n]);
        }
    }

    /// Copies payload bytes of the peeked packet to local memory.
    #[inline(always)]
    pub(crate) fn scatter(&self, rx: Rx, offset: u32, spans: &[Span]) -> Result<(), Fault> {
        // Most of what is small is a word, and mostly of one entry.
        if let Place::Body(at) = rx.place()
            && let [Span { addr, len: 8, guarded }] = *spans
            && let at = at.saturating_add(offset) as usize
            && at.is_multiple_of(8)
            && let Some(word) = self.consumer.peeked().and_then(|record| record.body.get(at / 8))
        {
            return memory::local::store(addr, guarded, &word.to_ne_bytes());
        }
        self.scatter_any(rx, offset, spans)
    }

    #[inline(never)]
    fn scatter_any(&self, rx: Rx, offset: u32, spans: &[Span]) -> Result<(), Fault> {
        match rx.place() {
            Place::Bulk(at) => self.consumer.memory().scatter(at.saturating_add(offset), spans),
            Place::Body(at) => {
                let at = at.saturating_add(offset) as usize;
                let bytes = self.body();
                let mut from = bytes.get(at..).unwrap_or(&[]);
                for span in spans {
                    let (now, rest) = from.split_at(from.len().min(span.len as usize));
                    memory::local::store(span.addr, span.guarded, now)?;
                    from = rest;
                }
                Ok(())
            }
        }
    }

    /// The peeked record's body as bytes.
    fn body(&self) -> [u8; 56] {
        let mut bytes = [0u8; 56];
        if let Some(record) = self.consumer.peeked() {
            for (to, word) in bytes.chunks_exact_mut(8).zip(record.body) {
                to.copy_from_slice(&word.to_ne_bytes());
            }
        }
        bytes
    }

    /// The peer to copy directly from or to, if that is possible now. A process number may be another's as soon as
    /// the peer is dead, so this asks.
    pub(crate) fn single_copy_pid(&self) -> Option<u32> {
        let remote = self.remote.as_ref()?;
        (remote.we_permitted && self.state == State::Up && !remote.gone()).then_some(remote.who.pid)
    }

    /// Copies from the peer's memory for its request, marked, and if its ticket is good.
    ///
    /// Whether the peer lives is not asked: should its process number be another's by now, that one does not have
    /// the ticket where it should be, and what was copied is thrown away.
    pub(crate) fn pull_single_copy(
        &mut self,
        ticket: TicketRef,
        theirs: &[Span],
        ours: &[Span],
    ) -> Result<(), SingleCopyError> {
        let remote = self.remote.as_mut().filter(|remote| remote.we_permitted && self.state == State::Up);
        let remote = remote.ok_or(SingleCopyError::Denied)?;
        self.copier.marked(self.producer.memory().copying(), || {
            // Not in one call with the copy: the bytes would be here before the word has been looked at.
            single_copy::is_good(remote.who.pid, ticket)?;
            if remote.pull_shared(theirs, ours).is_some() {
                return Ok(());
            }
            let (leader, words) = (&mut self.leader, self.producer.memory().co_copy());
            if let Some((from, to)) = alone(theirs, ours)
                && remote.may_follow(leader)
            {
                let terms = Terms { ticket, followers: from.addr, leaders: to.addr, len: from.len, to_follower: false };
                let part =
                    |at, len| single_copy::pull(remote.who.pid, &[part_of(from, at, len)], &[part_of(to, at, len)]);
                return lead(leader, &words, &terms, part, remote);
            }
            single_copy::pull(remote.who.pid, theirs, ours)
        })
    }

    /// Copies to the peer's memory for its request, marked, and if its ticket is good.
    pub(crate) fn push_single_copy(
        &mut self,
        ticket: TicketRef,
        ours: &[Span],
        theirs: &[Span],
    ) -> Result<(), SingleCopyError> {
        let pid = self.single_copy_pid().ok_or(SingleCopyError::Denied)?;
        let remote = self.remote.as_ref().ok_or(SingleCopyError::Denied)?;
        self.copier.marked(self.producer.memory().copying(), || {
            single_copy::is_good(pid, ticket)?;
            let (leader, words) = (&mut self.leader, self.producer.memory().co_copy());
            if let Some((from, to)) = alone(ours, theirs)
                && remote.may_follow(leader)
            {
                let terms = Terms { ticket, followers: to.addr, leaders: from.addr, len: from.len, to_follower: true };
                let part = |at, len| single_copy::push(pid, &[part_of(from, at, len)], &[part_of(to, at, len)]);
                return lead(leader, &words, &terms, part, remote);
            }
            single_copy::push(pid, ours, theirs)
        })
    }

    /// What the peer copies for a request of ours, if we may help.
    pub(crate) fn offered(&self) -> Option<Offer> {
        let remote = self.remote.as_ref().filter(|_| self.state == State::Up)?;
        Follower::offer(&self.consumer.memory().co_copy()).filter(|_| remote.we_permitted)
    }

    /// Helps with it, marked. Gives the bytes.
    pub(crate) fn co_copy(&mut self, offer: &Offer) -> u64 {
        let Some(pid) = self.single_copy_pid() else { return 0 };
        let Terms { followers, leaders, to_follower, .. } = offer.terms;
        let (follower, words) = (&mut self.follower, self.consumer.memory().co_copy());
        self.copier.marked(self.producer.memory().copying(), || {
            follower.follow(&words, offer, PARTS_AT_ONCE, |at, len| {
                let span = |addr: u64| [Span { addr: addr.wrapping_add(u64::from(at)), len, guarded: true }];
                match to_follower {
                    true => single_copy::pull(pid, &span(leaders), &span(followers)),
                    false => single_copy::push(pid, &span(followers), &span(leaders)),
                }
            })
        })
    }

    /// True while the peer may be copying to or from our memory for a copy that we have given up
    /// ([`Leader::is_stalled`]).
    pub(crate) fn has_late_writer(&mut self) -> bool {
        self.state == State::Up && self.leader.is_stalled(&self.producer.memory().co_copy())
    }

    /// The single copy that the peer has under way.
    pub(crate) fn copied_by_peer(&self) -> Option<UnderWay> {
        self.remote.as_ref()?;
        under_way(self.consumer.memory().copying())
    }
}
