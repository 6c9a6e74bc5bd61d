//! Links between processes or hosts: their names, their capabilities, and the payloads on them.

use verbs::{Gid, QpType, Qpn};

/// Nanoseconds of a monotonic clock.
pub type Nanos = u64;

/// A piece of local memory that the engine has checked against a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Span {
    /// Address in this process.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// The pages need not be mapped (ON_DEMAND regions): the access must not fault, it must fail.
    pub guarded: bool,
}

/// A part of what goes into a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// Bytes of the engine.
    Own(&'a [u8]),
    /// Memory of this process.
    Memory(Span),
}

/// An access failed: the memory is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// Why a packet could not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The link has no room now. The platform reports it in [`crate::PacketWire::take_writable`] when it has again.
    Full,
    /// The link is dead or unknown.
    Down,
    /// The local memory of the payload is not there.
    Fault,
}

/// A path to one peer process (or to ourselves).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u32);

impl LinkId {
    /// The link of a process to itself. Always there.
    pub const LOOPBACK: LinkId = LinkId(0);
}

/// The capabilities of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkCaps {
    /// Most payload bytes in one packet; a multiple of 4096.
    pub segment: u32,
    /// `Some` if the target may copy directly from and to the initiator's memory ([`crate::SameHost::pull`]).
    pub single_copy: Option<SingleCopyCaps>,
}

/// When a message should go by single copy. All are lengths in bytes, and may change from one moment to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SingleCopyCaps {
    /// Messages longer than this should go by single copy.
    pub above: u32,
    /// Messages longer than this that follow others under way should go by single copy, too.
    pub flowing_above: u32,
    /// Messages of this length or longer go whichever way turns out to be faster, with both sides at work: by
    /// reference, or as `above` and `flowing_above` say.
    pub either_from: u32,
    /// Messages longer than this should go by single copy, if the initiator has their data in memory that peers map
    /// ([`crate::SameHost::peers_map`]). Never more than `above`.
    pub shared_above: u32,
}

/// The payload of a packet to send: `prefix`, then the bytes of `spans`. Together at most the link's segment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Payload<'a> {
    /// Bytes of the engine's own (inline data, span lists, GIDs).
    pub prefix: &'a [u8],
    /// Pieces of local memory.
    pub spans: &'a [Span],
}

/// Arithmetic of an atomic operation on 8 bytes of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    /// Compare with the first; when equal, store the second.
    CompareSwap(u64, u64),
    /// Add.
    FetchAdd(u64),
    /// Store.
    Write(u64),
}

/// The way of a queue pair's packets, as its attributes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The queue pair, ours.
    pub qpn: Qpn,
    /// Its service.
    pub service: QpType,
    /// The path MTU in bytes: a sequence number for each piece of a message of this size.
    pub mtu: u32,
    /// Our address.
    pub source: Gid,
    /// The peer's. Zero for datagrams, which carry their addresses.
    pub dest: Gid,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
}
