//! The surroundings of an engine, divided into traits by kind. Time is no part of them: it is an argument.
//!
//! | trait | what it stands for | where it is |
//! |---|---|---|
//! | [`Memory`] | memory of this process | every process |
//! | [`Entropy`] | random numbers | every process |
//! | [`PacketWire`] | links, and packets on them | every wire that carries packets |
//! | [`SameHost`] | services of processes of one host for each other | the wire of one host; absent by default |
//! | [`Observer`] | captures and faults | middleware; absent by default |
//!
//! An implementation is single-threaded, like the engine itself: the process wraps both in one lock.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::hint::cold_path;
use core::sync::atomic::AtomicU64;

use verbs::{Gid, Qpn, RKey};

use crate::link::{AtomicOp, Fault, LinkCaps, LinkId, Nanos, Path, Payload, SendError, Span};
use crate::packet::Packet;
use crate::same_host::{Export, ExportId, Offer, OneSided, OneSidedDone, OneSidedOp, SingleCopyError, TicketRef};

/// Memory of this process. Every address has been checked against a region.
pub trait Memory {
    /// Copies `dst.len()` bytes from `addr`.
    fn load(&self, addr: u64, guarded: bool, dst: &mut [u8]) -> Result<(), Fault>;
    /// Copies `src` to `addr`.
    fn store(&self, addr: u64, guarded: bool, src: &[u8]) -> Result<(), Fault>;
    /// An atomic operation, atomic also against this process's own processors, on 8 bytes in host byte order; gives the
    /// value before. `addr` is a multiple of 8.
    fn atomic(&self, addr: u64, guarded: bool, op: AtomicOp) -> Result<u64, Fault>;
}

/// Random numbers.
pub trait Entropy {
    /// 64 unguessable bits.
    fn random(&mut self) -> u64;
}

/// Links, and packets on them.
pub trait PacketWire {
    /// Names the payload of the packet being received, until the call into the engine returns.
    type Rx: Copy;

    // ---- links ----

    /// The link to the process that owns this queue pair number behind this GID. It is made if need be, without
    /// waiting. `None` when there is none (yet): the caller behaves as if its packet was lost.
    fn resolve(&mut self, gid: &Gid, qpn: Qpn) -> Option<LinkId>;
    /// The links to all processes that have a queue pair attached to this group, the own one included if it has.
    fn resolve_multicast(&mut self, gid: &Gid, links: &mut Vec<LinkId>);
    /// Announces that this process has (or no longer has) queue pairs attached to this group.
    fn announce_multicast(&mut self, gid: &Gid, attached: bool) -> Result<(), verbs::Errno>;
    /// True if both links lead to the same process: two that connect to each other at once keep a link each.
    fn same_peer(&self, a: LinkId, b: LinkId) -> bool;
    /// The capabilities of this link.
    fn caps(&self, link: LinkId) -> LinkCaps;
    /// The capabilities of this link for a message of `len` bytes. `single_copy` may be `None` where no threshold is so
    /// low: a short message then costs no look at the peer's state.
    #[inline]
    fn caps_for(&self, link: LinkId, len: u32) -> LinkCaps {
        let _ = len;
        self.caps(link)
    }

    // ---- packets ----

    /// Appends a packet. It is visible to the peer at once; [`PacketWire::ring_doorbells`] wakes a peer that sleeps.
    fn send(&mut self, link: LinkId, packet: &Packet, payload: Payload<'_>) -> Result<(), SendError>;
    /// Appends a packet for which a peer that sleeps need not be woken: it finds the packet when it wakes anyhow.
    fn send_quietly(&mut self, link: LinkId, packet: &Packet, payload: Payload<'_>) -> Result<(), SendError> {
        self.send(link, packet, payload)
    }
    /// Appends a packet with a payload of at most 8 bytes, in fewer instructions than [`PacketWire::send`], and gives
    /// [`PacketWire::sent_mark`]. `None`: nothing was sent, and `send` says why, or sends it. An engine asks for it on
    /// its fast path only.
    #[inline]
    fn send_short(&mut self, link: LinkId, packet: &Packet, prefix: &[u8]) -> Option<u64> {
        self.send(link, packet, Payload { prefix, spans: &[] }).is_ok().then(|| self.sent_mark(link))
    }
    /// Something will be sent on this link very soon: a hint.
    fn expect_send(&self, _link: LinkId) {}
    /// Rings the doorbells of all sleeping peers that were sent something since the last call.
    fn ring_doorbells(&mut self);
    /// False if [`PacketWire::take_writable`] would certainly give nothing.
    #[inline]
    fn has_full(&self) -> bool {
        true
    }
    /// Links that had been full (see [`SendError::Full`]) and have room again, or died: moved into `links`.
    fn take_writable(&mut self, links: &mut Vec<LinkId>);

    // ---- liveness: what became of packets that were sent ----

    /// A mark for what was sent on this link so far.
    fn sent_mark(&self, link: LinkId) -> u64;
    /// True if the peer has taken everything up to this mark, or if that cannot be known: only then does sending again
    /// make sense.
    fn taken(&self, link: LinkId, mark: u64) -> bool;
    /// A number if packets of the peer have come over this link that have not been taken yet: when
    /// [`PacketWire::read`] has come to it, all that are here now have been taken. The answer that a request waits for
    /// may be among them. `None` also where it cannot be known.
    fn unread(&self, link: LinkId) -> Option<u64>;
    /// How many packets were taken over this link.
    fn read(&self, link: LinkId) -> u64;
    /// True if the peer lives and is not stopped, as far as can be told without waiting. An engine asks when the peer
    /// does not answer.
    fn lives(&self, link: LinkId) -> bool;

    // ---- the packet being received ----

    /// Payload bytes that came with the packet (with `BY_REF`: of the span list).
    fn rx_len(&self, rx: Self::Rx) -> u32;
    /// Copies payload bytes from `offset` on into `dst`; the caller stays within `rx_len`.
    fn rx_fetch(&mut self, rx: Self::Rx, offset: u32, dst: &mut [u8]);
    /// Copies payload bytes from `offset` on to local memory; the caller stays within `rx_len`.
    fn rx_scatter(&mut self, rx: Self::Rx, offset: u32, spans: &[Span]) -> Result<(), Fault>;
}

/// The services of processes of one host for each other. The defaults are those of a wire that leads to other hosts.
///
/// A wire has all of a group or nothing: [`SameHost::is_same_host`], `pull`, `push` and `quiesce`; `offered`,
/// `co_copy`, `has_late_writer` and `wait_for_late_writers`; `publish`, `retract` and `one_sided`. A wire that copies
/// and does not wait in `quiesce` would copy to memory that was given back.
pub trait SameHost {
    /// True if this link leads to a process of this host. Packets by reference, and the NAK codes about them, mean
    /// something on such links only.
    fn is_same_host(&self, _link: LinkId) -> bool {
        false
    }

    // ---- single copies by the target of a request; both lists have the same number of bytes ----
    //
    // Marked as under way from before the look at the ticket until after the copy, so that `quiesce` knows.

    /// Copies from the peer's memory into the own one, if its request lives.
    fn pull(
        &mut self,
        _link: LinkId,
        _ticket: TicketRef,
        _remote: &[Span],
        _local: &[Span],
    ) -> Result<(), SingleCopyError> {
        Err(SingleCopyError::Denied)
    }
    /// Copies from the own memory into the peer's, if its request lives.
    fn push(
        &mut self,
        _link: LinkId,
        _ticket: TicketRef,
        _local: &[Span],
        _remote: &[Span],
    ) -> Result<(), SingleCopyError> {
        Err(SingleCopyError::Denied)
    }
    /// True if peers can map this memory, so that [`SameHost::pull`] is one plain copy there.
    fn peers_map(&self, _span: &Span) -> bool {
        false
    }
    /// Waits until no peer copies under a void ticket. The caller has made the ticket void before. When this returns,
    /// no peer at the other end of this link (`None`: of any link) copies from or to this process's memory under the
    /// ticket's earlier value. The call does not wait for a dead process. It does not wait for ever for a process that
    /// is stopped or lies: the link to that process goes down.
    fn quiesce(&mut self, _link: Option<LinkId>) {}

    // ---- cooperative copies ----

    /// The copy on this link of which this process may make a part.
    fn offered(&self, _link: LinkId) -> Option<Offer> {
        None
    }
    /// Makes a part of this copy, if it is still offered.
    fn co_copy(&mut self, _link: LinkId, _offer: &Offer) {}
    /// True if the peer was to make a part of a copy that came over this link, was not waited for any more, and may
    /// still come to its part: memory that is given back now may be copied to later.
    fn has_late_writer(&mut self, _link: LinkId) -> bool {
        false
    }
    /// Waits for all such peers, as [`SameHost::quiesce`] does.
    fn wait_for_late_writers(&mut self) {}

    // ---- requests that the initiator executes ----

    /// Publishes something for peers, in place of what was published under this name.
    fn publish(&mut self, _exported: &Export) {}
    /// Retracts it. When this returns, no peer acts on it, or those that did are dead.
    fn retract(&mut self, _id: ExportId) {}
    /// Executes a request, if the peer's side exports that all of it is allowed and this way is worth while. `None`
    /// when the request has to be sent: then the peer decides, and nothing that a second try would not repeat has
    /// happened.
    fn one_sided(&mut self, _link: LinkId, _request: &OneSided<'_>) -> Option<OneSidedDone> {
        None
    }
    /// Executes several requests of one connection, 2 to [`crate::TOGETHER`] WRITEs or READs, by one copy, under the
    /// conditions of [`SameHost::one_sided`] for each. None of them is a piece. The result is the connection's epoch,
    /// and how many are executed, from the first on: not all, if memory of the next one is not there. `None`: none is.
    fn one_sided_together(&mut self, _link: LinkId, _requests: &[OneSided<'_>]) -> Option<(u64, usize)> {
        None
    }
    /// Executes a request of this process to itself, whose memory was checked on both sides: the value before an atomic
    /// operation, else 0. `None` when the request has to be sent, as for [`SameHost::one_sided`].
    fn one_sided_here(&mut self, _op: OneSidedOp, _local: &[Span], _remote: Span) -> Option<u64> {
        None
    }
    /// True if a message of this process to itself may come to its receive without a packet.
    fn delivers_here(&self) -> bool {
        false
    }
    /// True if the peer has taken all that was sent on this link up to this mark, so that a request of an unreliable
    /// connection may be executed behind it ([`PacketWire::taken`]). It may be false where [`SameHost::one_sided`]
    /// would refuse the request anyway. `queues`: as in [`OneSided::queues`].
    fn may_follow(&self, _link: LinkId, _mark: u64, _queues: bool) -> bool {
        false
    }
    /// True if this process maps memory of the peer, or can: atomic operations are executed there only.
    fn maps_peer(&mut self, _link: LinkId) -> bool {
        false
    }
    /// True if [`SameHost::one_sided`] is by far the best way to these bytes of the peer's region with this key, so
    /// that it is worth while to wait until it can be taken.
    fn shares(&mut self, _link: LinkId, _rkey: RKey, _addr: u64, _len: u32) -> bool {
        false
    }
    /// Takes note of the time after which a lone RDMA WRITE or READ of so many bytes, sent as packets, was answered.
    /// The time says how quick that way is at the moment. The engine tells it for requests shorter than
    /// [`crate::SHORTEST`], and for requests longer than [`crate::same_host::PIECE`]. `refused`: nothing was under way
    /// when it began either, and [`SameHost::one_sided`] refused to execute it.
    fn answered(&mut self, _link: LinkId, _len: u32, _took: Nanos, _refused: bool) {}
}

/// What captures and faults are told, and decide.
pub trait Observer {
    /// A queue pair can send packets from now on, on this path. Captures write its addresses.
    fn routed(&mut self, _path: &Path) {}
    /// True if a reliable queue pair shall find no receive for this message, for a test of its peer's patience. A
    /// reliable queue pair asks when it is about to take a receive. An engine asks for every message only without the
    /// fast path.
    fn withholds_receive(&mut self, _packet: &Packet) -> bool {
        false
    }
}

/// Memory for the entries of a managed queue: words that programs and peers may read and write at any time, through
/// regions upon them. The memory stays where it is, and stays mapped, while the value lives.
// No trait: the words are looked up for each entry.
#[derive(Clone)]
pub struct EntryArray(Words);

#[derive(Clone)]
enum Words {
    Mapped(&'static [AtomicU64], #[expect(dead_code, reason = "keeps the words")] Arc<dyn Any + Send + Sync>),
    Own(Arc<[AtomicU64]>),
}

impl EntryArray {
    /// Words, a multiple of 8 of them, that are there as long as `owner` is. The first is at the beginning of a page.
    /// They are handed out for no longer than this value, or a copy of it, lives.
    pub fn mapped(words: &'static [AtomicU64], owner: Arc<dyn Any + Send + Sync>) -> Self {
        EntryArray(Words::Mapped(words, owner))
    }

    /// Words that no region need be upon.
    pub fn own(words: Arc<[AtomicU64]>) -> Self {
        EntryArray(Words::Own(words))
    }

    /// The words.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        match &self.0 {
            Words::Mapped(words, _) => words,
            Words::Own(words) => {
                cold_path(); // no region is upon them
                words
            }
        }
    }

    /// The address of the first word in this process.
    pub fn addr(&self) -> u64 {
        self.words().as_ptr().expose_provenance() as u64
    }
}

/// All that an engine asks of its surroundings.
pub trait Env: Memory + Entropy + PacketWire + SameHost + Observer {}

impl<E: Memory + Entropy + PacketWire + SameHost + Observer> Env for E {}
