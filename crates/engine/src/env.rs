//! What the engine asks of its surroundings: local memory, links to peers, random numbers. Time is an argument.
//!
//! The engine is the only caller. An implementation is single-threaded, like the engine itself; the process wraps both
//! in one lock.

use verbs::{Access, CtxId, Gid, PdId, Psn, QpType, Qpn, RKey};

/// Nanoseconds of a monotonic clock.
pub type Nanos = u64;

/// Bytes of one piece of a message that goes by single copy, by whoever copies it: a fraction of the shortest sensible
/// timeout. A multiple of every MTU.
pub const PIECE: u32 = 1 << 20;

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

/// An access failed: the memory is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// Why a packet could not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The link has no room now. The platform reports it in [`Env::take_writable`] when it has again.
    Full,
    /// The link is dead or unknown.
    Down,
    /// The local memory of the payload is not there.
    Fault,
}

/// Why a single copy between processes failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SingleCopyError {
    /// Our memory is not there.
    Local,
    /// The peer's memory is not there.
    Remote,
    /// The kernel forbids it, or the peer is gone.
    Denied,
    /// The initiator has given its request up: nothing was copied.
    Void,
}

/// A word in the initiator's memory that holds this value for as long as its requests live. A target that was held up
/// and comes to the copy late must not touch memory that the initiator's program has taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TicketRef {
    /// Where the word is; a multiple of 8.
    pub addr: u64,
    /// What it must hold.
    pub value: u64,
}

/// A single copy that the target makes for a request of ours, and of which we may make a part. It is the peer's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The request's.
    pub ticket: TicketRef,
    /// The memory of ours.
    pub span: Span,
    /// It is written (a READ); else it is read.
    pub to_us: bool,
}

/// A path to one peer process (or to ourselves).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u32);

impl LinkId {
    /// The link of a process to itself. Always there.
    pub const LOOPBACK: LinkId = LinkId(0);
}

/// What a link can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkCaps {
    /// Most payload bytes in one packet; a multiple of 4096.
    pub segment: u32,
    /// The target may copy directly from and to the initiator's memory.
    pub single_copy: bool,
    /// Messages longer than this should go by single copy, if they may. It may change from one moment to the next.
    pub single_copy_above: u32,
    /// The same for what follows other messages that are under way.
    pub flowing_above: u32,
    /// From this length on a message goes whichever way turns out to be faster, with both sides at work: by reference,
    /// or as these say.
    pub either_from: u32,
    /// The same for what the initiator has in memory that peers map ([`Env::peers_map`]): never more.
    pub shared_above: u32,
}

/// What a packet is (the names of the base transport header's operations, IBTA vol. 1, 9.2; segmentation is in the
/// flags).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // the names are the specification's
pub enum PacketOp {
    Send = 0,
    Write = 1,
    ReadRequest = 2,
    ReadResponse = 3,
    CompareSwap = 4,
    FetchAdd = 5,
    AtomicWrite = 6,
    AtomicAck = 7,
    Ack = 8,
    Flush = 9,
    /// Datagram; the payload begins with the 16 bytes of the source GID and the 16 of the destination GID.
    Datagram = 10,
}

impl PacketOp {
    /// True for what goes from responder to requester.
    pub const fn is_response(self) -> bool {
        matches!(self, PacketOp::Ack | PacketOp::ReadResponse | PacketOp::AtomicAck)
    }

    /// The operation with this number.
    pub const fn from_raw(raw: u8) -> Option<PacketOp> {
        Some(match raw {
            0 => PacketOp::Send,
            1 => PacketOp::Write,
            2 => PacketOp::ReadRequest,
            3 => PacketOp::ReadResponse,
            4 => PacketOp::CompareSwap,
            5 => PacketOp::FetchAdd,
            6 => PacketOp::AtomicWrite,
            7 => PacketOp::AtomicAck,
            8 => PacketOp::Ack,
            9 => PacketOp::Flush,
            10 => PacketOp::Datagram,
            _ => return None,
        })
    }
}

/// Flags of a packet, one bit each.
pub mod packet_flags {
    /// First packet of its message.
    pub const FIRST: u8 = 1;
    /// Last packet of its message.
    pub const LAST: u8 = 1 << 1;
    /// `imm` is an immediate value. RDMA WRITE has it in all packets of the message, and what it says counts in the
    /// last.
    pub const IMM: u8 = 1 << 2;
    /// `imm` is an rkey to invalidate.
    pub const INV: u8 = 1 << 3;
    /// The receive completion is solicited.
    pub const SOLICITED: u8 = 1 << 4;
    /// An acknowledgement is wanted.
    pub const ACK_REQ: u8 = 1 << 5;
    /// The payload is not the data but 16-byte entries, little endian. The first is the ticket: the address of a word
    /// of the initiator and the value that it holds for as long as the request lives. The others (address u64, length
    /// u32, 0 u32) say where the data lie in the initiator. READ responses with this flag carry nothing: the data have
    /// been put there.
    pub const BY_REF: u8 = 1 << 6;
    /// The initiator uses XRC: `srqn` is valid.
    pub const XRC: u8 = 1 << 7;
}

/// Everything about a packet but its payload. Fields that an operation does not use are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// What it is.
    pub op: PacketOp,
    /// [`packet_flags`].
    pub flags: u8,
    /// AETH syndrome of responses (IBTA vol. 1, 9.7.5.2): ACK, RNR NAK with timer, NAK code. For FLUSH: placement in
    /// bits 0-1, level in bit 4.
    pub syndrome: u8,
    /// Destination queue pair.
    pub dst: Qpn,
    /// Source queue pair.
    pub src: Qpn,
    /// Sequence number; of a message by reference: its first.
    pub psn: Psn,
    /// Immediate value, rkey to invalidate, or (responses) the message sequence number.
    pub imm: u32,
    /// Data bytes of the *message* part that this packet stands for: its payload length, or with `BY_REF` the length of
    /// the referenced data. Of an AtomicAck: 8 if there is a value before the operation, 0 for ATOMIC WRITE and FLUSH.
    pub len: u32,
    /// Bytes of each packet but the last into which the sender would cut the message on a wire (its path MTU), or 0: it
    /// would be one packet. SENDs, WRITEs and READ responses.
    pub mtu: u32,
    /// Remote address of RDMA and atomics. READ responses: byte offset in the message.
    pub remote_addr: u64,
    /// Remote key of RDMA and atomics; Q_Key of datagrams.
    pub rkey: u32,
    /// Bytes of the whole message (DMALen of the RETH).
    pub dma_len: u32,
    /// Swap or add operand; the original value in an AtomicAck; the SRQ number of XRC sends and writes.
    pub swap: u64,
    /// Compare operand. Sends by XRC carry none.
    pub compare: u64,
}

impl Packet {
    /// Room for one.
    pub const NONE: Packet = Packet::new(PacketOp::Ack, Qpn::new(0), Qpn::new(0), Psn::new(0));

    /// A packet with nothing but its addresses.
    pub const fn new(op: PacketOp, dst: Qpn, src: Qpn, psn: Psn) -> Self {
        Packet {
            op,
            flags: 0,
            syndrome: 0,
            dst,
            src,
            psn,
            imm: 0,
            len: 0,
            mtu: 0,
            remote_addr: 0,
            rkey: 0,
            dma_len: 0,
            swap: 0,
            compare: 0,
        }
    }

    /// True if this flag is set.
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// True if the message comes in packets of the lengths that a queue pair with this path MTU expects: first and
    /// middle ones are as long as that (IBTA vol. 1, 9.7.4.1.6, 9.7.5.1.6), and what is one packet is not longer. A
    /// message that is one packet for both sides shows no difference.
    pub const fn is_cut_by(&self, mtu: u32) -> bool {
        const WHOLE: u8 = packet_flags::FIRST | packet_flags::LAST;
        self.mtu == mtu || self.mtu == 0 && self.flags & WHOLE == WHOLE && self.len <= mtu
    }
}

/// What small SENDs and acknowledgements say in their headers. See [`Packet`] for what it means.
#[allow(missing_docs)]
pub(crate) trait Head: Copy {
    fn flags(self) -> u8;
    fn syndrome(self) -> u8;
    fn src(self) -> Qpn;
    fn psn(self) -> Psn;
    fn imm(self) -> u32;
    fn len(self) -> u32;
    /// [`Packet::mtu`]
    fn mtu(self) -> u32;
    #[inline(always)]
    fn has(self, flag: u8) -> bool {
        self.flags() & flag != 0
    }
}

impl Head for &Packet {
    #[inline(always)]
    fn flags(self) -> u8 {
        self.flags
    }
    #[inline(always)]
    fn syndrome(self) -> u8 {
        self.syndrome
    }
    #[inline(always)]
    fn src(self) -> Qpn {
        self.src
    }
    #[inline(always)]
    fn psn(self) -> Psn {
        self.psn
    }
    #[inline(always)]
    fn imm(self) -> u32 {
        self.imm
    }
    #[inline(always)]
    fn len(self) -> u32 {
        self.len
    }
    #[inline(always)]
    fn mtu(self) -> u32 {
        self.mtu
    }
}

/// A small SEND or an acknowledgement, with a payload of at most 8 bytes: few enough words to be kept in registers by
/// who takes it at once, where a [`Packet`] is written to memory member by member, and read by wider loads than it was
/// written.
///
/// ```text
/// 0  op:8 flags:8 syndrome:8 dst:24       1  src:24 psn:24 mtu:16       2  imm:32 len:32      (lowest bits first)
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ShortPacket {
    words: [u64; 3],
    received: u32,
    payload: u64,
}

impl ShortPacket {
    /// The packet with this header, and the bytes of payload that came with it, at most 8 (what lies behind them means
    /// nothing). `None` if it is no SEND and no acknowledgement.
    #[inline(always)]
    pub fn new(words: [u64; 3], received: u32, payload: u64) -> Option<ShortPacket> {
        Self::is_short(words[0]).then_some(ShortPacket { words, received, payload })
    }

    /// True for the first word of a SEND or of an acknowledgement.
    #[inline(always)]
    pub(crate) const fn is_short(word: u64) -> bool {
        let op = word as u8;
        op == PacketOp::Send as u8 || op == PacketOp::Ack as u8
    }

    /// True for an acknowledgement; the others are SENDs.
    #[inline(always)]
    pub fn is_ack(&self) -> bool {
        self.words[0] as u8 == PacketOp::Ack as u8
    }

    /// True if it asks for an acknowledgement.
    #[inline(always)]
    pub fn asks_for_ack(&self) -> bool {
        (self.words[0] >> 8) as u8 & packet_flags::ACK_REQ != 0
    }

    /// True if it comes to the same queue pair as this one, from the same, and is of the same kind.
    #[inline(always)]
    pub(crate) fn follows(&self, other: &ShortPacket) -> bool {
        const KIND_AND_DST: u64 = 0xffff_ff00_00ff;
        (self.words[0] ^ other.words[0]) & KIND_AND_DST | (self.words[1] ^ other.words[1]) & 0xff_ffff == 0
    }

    /// Destination queue pair.
    #[inline(always)]
    pub fn dst(&self) -> Qpn {
        Qpn::new((self.words[0] >> 24) as u32)
    }

    /// Payload bytes that came with it.
    #[inline(always)]
    pub fn received(&self) -> u32 {
        self.received
    }

    /// They, in the order of memory.
    #[inline(always)]
    pub fn payload(&self) -> u64 {
        self.payload
    }

    /// The same as a packet.
    pub fn packet(&self) -> Packet {
        let op = if self.is_ack() { PacketOp::Ack } else { PacketOp::Send };
        Packet {
            flags: Head::flags(*self),
            syndrome: Head::syndrome(*self),
            imm: Head::imm(*self),
            len: Head::len(*self),
            mtu: Head::mtu(*self),
            ..Packet::new(op, self.dst(), Head::src(*self), Head::psn(*self))
        }
    }
}

impl Head for ShortPacket {
    #[inline(always)]
    fn flags(self) -> u8 {
        (self.words[0] >> 8) as u8
    }
    #[inline(always)]
    fn syndrome(self) -> u8 {
        (self.words[0] >> 16) as u8
    }
    #[inline(always)]
    fn src(self) -> Qpn {
        Qpn::new(self.words[1] as u32)
    }
    #[inline(always)]
    fn psn(self) -> Psn {
        Psn::new((self.words[1] >> 24) as u32)
    }
    #[inline(always)]
    fn imm(self) -> u32 {
        self.words[2] as u32
    }
    #[inline(always)]
    fn len(self) -> u32 {
        (self.words[2] >> 32) as u32
    }
    #[inline(always)]
    fn mtu(self) -> u32 {
        (self.words[1] >> 48) as u32
    }
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

/// What peers of the same user may know, so that they can execute RDMA requests by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Export {
    /// A region with remote rights.
    Region {
        /// Its rkey.
        key: u32,
        /// Its context.
        ctx: CtxId,
        /// Its protection domain.
        pd: PdId,
        /// Its rights.
        access: Access,
        /// Start in this process.
        addr: u64,
        /// Bytes.
        length: u64,
        /// Start in the space of the key.
        iova: u64,
    },
    /// A connected queue pair that takes requests.
    Qp {
        /// Its number.
        qpn: Qpn,
        /// Its service.
        service: QpType,
        /// Whom it is connected to.
        peer: Qpn,
        /// Its context.
        ctx: CtxId,
        /// Its protection domain. An XRC target has none and reaches the regions of its context.
        pd: Option<PdId>,
        /// What it lets its peer do.
        access: Access,
        /// Its path MTU in bytes.
        mtu: u32,
        /// Differs between this connection and earlier ones of the same number.
        epoch: u64,
    },
}

/// Names what is [`Export`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExportId {
    /// By rkey.
    Region(u32),
    /// By number.
    Qp(Qpn),
}

impl Export {
    /// Its name.
    pub const fn id(&self) -> ExportId {
        match self {
            Export::Region { key, .. } => ExportId::Region(*key),
            Export::Qp { qpn, .. } => ExportId::Qp(*qpn),
        }
    }
}

/// What the initiator is to execute by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OneSidedOp {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// An atomic operation on 8 bytes.
    Atomic(AtomicOp),
}

/// The initiator has executed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OneSidedDone {
    /// The connection's epoch.
    pub epoch: u64,
    /// What was there before an atomic operation; else 0.
    pub before: u64,
}

/// A request to be executed by the initiator.
#[derive(Clone, Copy, Debug)]
pub struct OneSided<'a> {
    /// Our queue pair's service.
    pub service: QpType,
    /// Our queue pair.
    pub src: Qpn,
    /// The peer's.
    pub dst: Qpn,
    /// The connection, as [`Env::one_sided`] gave it the last time; `None` where the peer would take packets of an
    /// earlier one, too.
    pub epoch: Option<u64>,
    /// Which.
    pub op: OneSidedOp,
    /// Remote key.
    pub rkey: RKey,
    /// Remote address.
    pub addr: u64,
    /// Bytes; not 0, and at most [`PIECE`].
    pub len: u32,
    /// Bytes of the request in front of these, which have been executed.
    pub before: u32,
    /// Bytes of the request behind these. They must be allowed, too: a request is refused as a whole, as far as that is
    /// known beforehand.
    pub after: u32,
    /// Our queue pair's path MTU in bytes.
    pub mtu: u32,
    /// Posted behind several whose completions nobody has polled: perhaps the program waits for none of them.
    pub queues: bool,
    /// Local memory of `len` bytes: the spans, or (WRITE) the prefix alone. An atomic's result is the caller's to
    /// place.
    pub local: Payload<'a>,
}

/// Checks a request against what the peer shows of its queue pair and of its region, as the peer itself would (IBTA
/// vol. 1, 9.7.4.1.5, 10.6.3.2). Gives the address in the peer, and the connection's epoch. `None`: not plainly
/// allowed.
pub fn check_one_sided(qp: Export, region: Export, request: &OneSided<'_>) -> Option<(u64, u64)> {
    let Export::Qp { qpn, service, peer, ctx, pd, access: may, mtu, epoch } = qp else { return None };
    let Export::Region { key, ctx: owner, pd: of, access, addr, length, iova } = region else { return None };
    let need = match request.op {
        OneSidedOp::Write => Access::REMOTE_WRITE,
        OneSidedOp::Read => Access::REMOTE_READ,
        // 9.4.5: naturally aligned, by the address that the request names
        OneSidedOp::Atomic(_) if request.addr.is_multiple_of(8) => Access::REMOTE_ATOMIC,
        OneSidedOp::Atomic(_) => return None,
    };
    let fits = match request.service {
        QpType::XrcIni => service == QpType::XrcTgt,
        ours => service == ours,
    };
    let whole = u64::from(request.before) + u64::from(request.len) + u64::from(request.after);
    let right = fits
        && qpn == request.dst
        && peer == request.src
        && key == request.rkey.0
        && pd.map_or(ctx == owner, |pd| pd == of)
        && may.contains(need)
        && access.contains(need)
        // 9.7.4.1.6, 9.7.5.1.6: both cut it into the same packets
        && (mtu == request.mtu || whole <= u64::from(mtu.min(request.mtu)))
        && request.epoch.is_none_or(|known| known == epoch);
    let offset = request.addr.checked_sub(iova).filter(|_| right)?;
    let end = offset.checked_add(u64::from(request.len) + u64::from(request.after))?;
    (end <= length).then_some((addr.wrapping_add(offset), epoch))
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

/// What the engine stands on.
pub trait Env {
    /// Names the payload of the packet being received, until the call into the engine returns.
    type Rx: Copy;

    /// 64 unguessable bits.
    fn random(&mut self) -> u64;

    // ---- local memory; every address has been checked against a region ----

    /// Copies `dst.len()` bytes from `addr`.
    fn load(&self, addr: u64, guarded: bool, dst: &mut [u8]) -> Result<(), Fault>;
    /// Copies `src` to `addr`.
    fn store(&self, addr: u64, guarded: bool, src: &[u8]) -> Result<(), Fault>;
    /// An atomic operation, atomic also against this process's own processors, on 8 bytes in host byte order; gives
    /// the value before. `addr` is a multiple of 8.
    fn atomic(&self, addr: u64, guarded: bool, op: AtomicOp) -> Result<u64, Fault>;

    // ---- links ----

    /// The link to the process that owns this queue pair number behind this GID; connects if need be, without waiting.
    /// `None` when there is none (yet): the caller behaves as if its packet was lost.
    fn resolve(&mut self, gid: &Gid, qpn: Qpn) -> Option<LinkId>;
    /// The links to all processes that have a queue pair attached to this group, ourselves included if so.
    fn resolve_multicast(&mut self, gid: &Gid, links: &mut Vec<LinkId>);
    /// Announces that this process has (or no longer has) queue pairs attached to this group.
    fn announce_multicast(&mut self, gid: &Gid, attached: bool) -> Result<(), verbs::Errno>;
    /// A queue pair can send packets from now on, this way. For those who look at packets; others need not know.
    fn routed(&mut self, _path: &Path) {}
    /// True if both links lead to the same process: two that connect to each other at once keep a link each.
    fn same_peer(&self, a: LinkId, b: LinkId) -> bool;
    /// What this link can do.
    fn caps(&self, link: LinkId) -> LinkCaps;
    /// Appends a packet. It is visible to the peer at once; a sleeping peer is woken by [`Env::ring_doorbells`].
    fn send(&mut self, link: LinkId, packet: &Packet, payload: Payload<'_>) -> Result<(), SendError>;
    /// The same, quicker, with a payload of at most 8 bytes that lies here. Gives [`Env::sent_mark`]; `None`: nothing
    /// was sent, and [`Env::send`] says why, or sends it. Only on the fast path ([`crate::Engine::set_fast_path`]).
    #[inline]
    fn send_short(&mut self, link: LinkId, packet: &Packet, prefix: &[u8]) -> Option<u64> {
        self.send(link, packet, Payload { prefix, spans: &[] }).is_ok().then(|| self.sent_mark(link))
    }
    /// Something will be sent on this link very soon: a hint.
    fn expect_send(&self, _link: LinkId) {}
    /// Rings the doorbells of all sleeping peers that were sent something since the last call.
    fn ring_doorbells(&mut self);
    /// A mark for what was sent on this link so far.
    fn sent_mark(&self, link: LinkId) -> u64;
    /// True if the peer has taken everything up to this mark: only then does sending again make sense.
    fn taken(&self, link: LinkId, mark: u64) -> bool;
    /// If packets of the peer have come over this link that we have not taken yet: when [`Env::read`] has come to this
    /// number, all that are here now have been taken. What we wait for may be among them.
    fn unread(&self, link: LinkId) -> Option<u64>;
    /// How many packets we have taken over this link.
    fn read(&self, link: LinkId) -> u64;
    /// True if the peer lives and is not stopped, as far as can be told without waiting: asked when it does not answer.
    fn lives(&self, link: LinkId) -> bool;
    /// False if [`Env::take_writable`] would certainly give nothing.
    #[inline]
    fn has_full(&self) -> bool {
        true
    }
    /// Links that had been full (see [`SendError::Full`]) and have room again, or died: moved into `links`.
    fn take_writable(&mut self, links: &mut Vec<LinkId>);

    // ---- the packet being received ----

    /// Payload bytes that came with the packet (for `BY_REF`: of the span list).
    fn rx_len(&self, rx: Self::Rx) -> u32;
    /// Copies payload bytes from `offset` on into `dst`; the caller stays within `rx_len`.
    fn rx_fetch(&mut self, rx: Self::Rx, offset: u32, dst: &mut [u8]);
    /// Copies payload bytes from `offset` on to local memory; the caller stays within `rx_len`.
    fn rx_scatter(&mut self, rx: Self::Rx, offset: u32, spans: &[Span]) -> Result<(), Fault>;

    // ---- single copies by the target of a request; both lists have the same number of bytes ----
    //
    // Marked as under way from before the look at the ticket until after the copy, so that `quiesce` knows.

    /// Copies from the peer's memory into ours, if its request lives.
    fn pull(&mut self, link: LinkId, ticket: TicketRef, remote: &[Span], local: &[Span])
    -> Result<(), SingleCopyError>;
    /// Copies from our memory into the peer's, if its request lives.
    fn push(&mut self, link: LinkId, ticket: TicketRef, local: &[Span], remote: &[Span])
    -> Result<(), SingleCopyError>;
    /// The copy on this link of which we may make a part.
    fn offered(&self, _link: LinkId) -> Option<Offer> {
        None
    }
    /// Makes a part of this copy, if it is still offered.
    fn co_copy(&mut self, _link: LinkId, _offer: &Offer) {}
    /// True if the peer was to help with a copy that came over this link, was not waited for any more, and may still
    /// come to its part: memory that is given back now may be copied to later.
    fn has_late_writer(&mut self, _link: LinkId) -> bool {
        false
    }
    /// Waits for all such peers, as [`Env::quiesce`] does.
    fn wait_for_late_writers(&mut self) {}
    /// True if peers can map this memory of ours, so that [`Env::pull`] is one plain copy there.
    fn peers_map(&self, _span: &Span) -> bool {
        false
    }
    /// To be called after a ticket was made void: returns when no peer at the other end of this link (`None`: of any
    /// link) is copying from or to our memory on the strength of what the ticket was before. It does not wait for the
    /// dead, and not for ever for one that is stopped or lies: that one's link goes down.
    fn quiesce(&mut self, link: Option<LinkId>);

    /// Asked when a reliable queue pair is about to take a receive for this message: true if it shall find none, for a
    /// test of its peer's patience. Asked of every message only without the fast path
    /// ([`crate::Engine::set_fast_path`]).
    fn withholds_receive(&mut self, _packet: &Packet) -> bool {
        false
    }

    // ---- requests that the initiator executes; a platform without them leaves these as they are ----

    /// Shows something to peers, in place of what was shown under this name.
    fn publish(&mut self, _exported: &Export) {}
    /// Shows it no longer. When this returns, no peer acts on it, or those that did are dead.
    fn retract(&mut self, _id: ExportId) {}
    /// Executes a request, if the peer's side shows that all of it is allowed and this way is worth while. `None` when
    /// the request has to be sent: then the peer decides, and nothing that a second try would not repeat has happened.
    fn one_sided(&mut self, _link: LinkId, _request: &OneSided<'_>) -> Option<OneSidedDone> {
        None
    }
    /// True if [`Env::one_sided`] is by far the best way to these bytes of the peer's region with this key, so that it
    /// is worth while to wait until it can be taken.
    fn shares(&mut self, _link: LinkId, _rkey: RKey, _addr: u64, _len: u32) -> bool {
        false
    }
    /// A lone RDMA WRITE or READ of so many bytes that was sent as packets has been answered, after this time: so
    /// quick, or so slow, is that way at the moment. Told of small ones, and of those longer than [`PIECE`].
    fn answered(&mut self, _link: LinkId, _len: u32, _took: Nanos) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_is_of_the_same_kind_from_the_same_to_the_same() {
        let short = |op: PacketOp, dst: u64, src: u64, rest: u64| {
            ShortPacket::new([op as u64 | rest << 8 | dst << 24, src | rest << 24, rest], 8, rest).unwrap()
        };
        let first = short(PacketOp::Send, 5, 7, 0);
        assert!(short(PacketOp::Send, 5, 7, 0xffff).follows(&first));
        for other in [(PacketOp::Ack, 5, 7), (PacketOp::Send, 1 << 23 | 5, 7), (PacketOp::Send, 5, 1 << 23 | 7)] {
            assert!(!short(other.0, other.1, other.2, 0).follows(&first), "{other:?}");
        }
    }
}
