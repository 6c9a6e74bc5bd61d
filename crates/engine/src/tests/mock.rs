//! A network of nodes in one thread.

mod world;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;

use verbs::{
    Access, AhAttr, Completion, CqId, CtxId, Errno, Gid, LKey, Opcode, PdId, QpAttr, QpAttrMask as M, QpCap, QpId,
    QpInit, QpState, QpType, Qpn, RKey, RecvWr, Result, SendBody, SendData, SendFlags, SendWr, Sge, SrqId,
};
use wire::*;

use crate::{CqOpts, Engine, Fast, Notice, Poller};

pub use world::{ALL, Node, World, cap};

pub const BASE: u64 = 0x1_0000;
pub const ARENA: usize = 1 << 21;

#[derive(Clone, PartialEq, Debug)]
pub struct Msg {
    pub packet: Packet,
    pub payload: Vec<u8>,
}

/// The state that all nodes share.
pub struct Net {
    pub memory: Vec<Vec<u8>>,
    pub queues: BTreeMap<(usize, usize), VecDeque<Msg>>,
    /// Number of packets ever put on a link.
    sent: HashMap<(usize, usize), u64>,
    pub writable: Vec<Vec<LinkId>>,
    pub rng: u64,
    /// Of 1000 packets, how many are lost; how many come twice.
    pub lose: u64,
    pub repeat: u64,
    /// Packets that a link holds.
    pub room: usize,
    pub single_copy: bool,
    /// Messages of this length or longer go either way.
    pub either_from: u32,
    /// The links lead to processes of one host.
    pub same_host: bool,
    pub single_copy_above: u32,
    /// As `single_copy_above`, for messages that follow others.
    pub flowing_above: Option<u32>,
    /// As `single_copy_above`, for memory that peers map.
    pub shared_above: Option<u32>,
    /// All memory counts as mapped by peers.
    pub maps: bool,
    /// At every other question no message should go by single copy.
    pub fickle: bool,
    pub segment: u32,
    pub deny_single_copy: bool,
    /// The single copy that a node may help with, and the one that it has helped with.
    pub offer: Option<Offer>,
    pub followed: Option<Offer>,
    /// A peer that was to help may still copy.
    pub late_writer: bool,
    pub groups: HashMap<Gid, Vec<usize>>,
    pub lost: u64,
    /// The exports of each node, and whether other nodes use them.
    pub exported: Vec<HashMap<ExportId, Export>>,
    pub one_sided: bool,
    /// Regions are in shared memory: atomics are executed by initiators too.
    pub shares: bool,
    /// Number of packets that wake no process.
    pub quiet: u64,
    /// Number of requests that initiators tried to execute at another node.
    pub tried: u64,
    /// Number of requests that initiators executed.
    pub executed: u64,
    pub one_sided_bytes: u64,
    /// Lone RDMA requests that were answered, and the time of each.
    pub answered: Vec<(u32, Nanos, bool)>,
    /// Packets arrive over a second link to the same node.
    pub twin: bool,
    /// Nodes that have died without a notice to the others.
    pub dead: Vec<usize>,
    /// Nodes that find no peer.
    pub lonely: Vec<usize>,
    /// Sent packets are there at once, and wait until their receiver takes them.
    pub arrived: bool,
    /// Calls of `quiesce`: the calling node, the peer's node, and how often all tickets had changed by that time.
    pub quiesced: Vec<(usize, Option<usize>, u64)>,
    /// By address: the word, and its first value.
    pub tickets: HashMap<u64, (&'static std::sync::atomic::AtomicU64, u64)>,
}

impl Net {
    fn next(&mut self) -> u64 {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 7;
        self.rng ^= self.rng << 17;
        self.rng
    }
}

fn slice(memory: &mut [u8], addr: u64, len: usize) -> std::result::Result<&mut [u8], Fault> {
    let at = addr.checked_sub(BASE).ok_or(Fault)? as usize;
    memory.get_mut(at..at + len).ok_or(Fault)
}

pub struct Mock {
    pub me: usize,
    pub net: Rc<RefCell<Net>>,
    current: Vec<u8>,
    /// Number of packets taken.
    read: u64,
}

/// Links are numbered by node + 1, their twins by that + `TWIN`; 0 is the loopback.
const TWIN: u32 = 1000;

impl Mock {
    fn node(&self, link: LinkId) -> usize {
        if link == LinkId::LOOPBACK { self.me } else { (link.0 % TWIN) as usize - 1 }
    }
    /// The link over which packets of a node come in.
    fn inward(&self, node: usize) -> LinkId {
        let link = self.link(node);
        if link != LinkId::LOOPBACK && self.net.borrow().twin { LinkId(link.0 + TWIN) } else { link }
    }
    pub fn link(&self, node: usize) -> LinkId {
        if node == self.me { LinkId::LOOPBACK } else { LinkId(node as u32 + 1) }
    }
    fn check_ticket(&self, ticket: TicketRef) -> std::result::Result<(), SingleCopyError> {
        let net = self.net.borrow();
        if net.deny_single_copy {
            return Err(SingleCopyError::Denied);
        }
        // The engines of all nodes live in this process: their tickets are known by address.
        match net.tickets.get(&ticket.addr).map(|(t, _)| t.load(std::sync::atomic::Ordering::SeqCst)) {
            Some(value) if value == ticket.value => Ok(()),
            Some(_) => Err(SingleCopyError::Void),
            None => Err(SingleCopyError::Remote),
        }
    }
    fn gather(&self, spans: &[Span], out: &mut Vec<u8>) -> std::result::Result<(), Fault> {
        let mut net = self.net.borrow_mut();
        for s in spans {
            out.extend_from_slice(slice(&mut net.memory[self.me], s.addr, s.len as usize)?);
        }
        Ok(())
    }
    fn copy(
        &mut self,
        from: usize,
        source: &[Span],
        to: usize,
        target: &[Span],
    ) -> std::result::Result<(), (bool, Fault)> {
        let mut net = self.net.borrow_mut();
        let mut bytes = Vec::new();
        for s in source {
            bytes.extend_from_slice(slice(&mut net.memory[from], s.addr, s.len as usize).map_err(|f| (true, f))?);
        }
        let mut at = 0;
        for s in target {
            let part = &bytes[at..at + s.len as usize];
            slice(&mut net.memory[to], s.addr, s.len as usize).map_err(|f| (false, f))?.copy_from_slice(part);
            at += s.len as usize;
        }
        Ok(())
    }
}

/// Applies the operation, and gives the value before.
fn apply(bytes: &mut [u8], op: AtomicOp) -> u64 {
    let old = u64::from_ne_bytes((&*bytes).try_into().unwrap());
    let new = match op {
        AtomicOp::CompareSwap(compare, swap) if compare == old => swap,
        AtomicOp::CompareSwap(..) => old,
        AtomicOp::FetchAdd(n) => old.wrapping_add(n),
        AtomicOp::Write(n) => n,
    };
    bytes.copy_from_slice(&new.to_ne_bytes());
    old
}

impl Memory for Mock {
    fn load(&self, addr: u64, _: bool, dst: &mut [u8]) -> std::result::Result<(), Fault> {
        let mut net = self.net.borrow_mut();
        dst.copy_from_slice(slice(&mut net.memory[self.me], addr, dst.len())?);
        Ok(())
    }

    fn store(&self, addr: u64, _: bool, src: &[u8]) -> std::result::Result<(), Fault> {
        slice(&mut self.net.borrow_mut().memory[self.me], addr, src.len())?.copy_from_slice(src);
        Ok(())
    }

    fn atomic(&self, addr: u64, _: bool, op: AtomicOp) -> std::result::Result<u64, Fault> {
        let mut net = self.net.borrow_mut();
        Ok(apply(slice(&mut net.memory[self.me], addr, 8)?, op))
    }
}

impl Entropy for Mock {
    fn random(&mut self) -> u64 {
        self.net.borrow_mut().next()
    }
}

impl PacketWire for Mock {
    type Rx = ();

    fn resolve(&mut self, gid: &Gid, qpn: Qpn) -> Option<LinkId> {
        let node = (qpn.get() / crate::QPN_BLOCK).checked_sub(1)? as usize;
        if self.net.borrow().lonely.contains(&self.me) {
            return None;
        }
        (gid.0[15] == 1 && node < self.net.borrow().memory.len()).then(|| self.link(node))
    }

    fn resolve_multicast(&mut self, gid: &Gid, links: &mut Vec<LinkId>) {
        let nodes = self.net.borrow().groups.get(gid).cloned().unwrap_or_default();
        links.extend(nodes.into_iter().map(|n| self.link(n)));
    }

    fn announce_multicast(&mut self, gid: &Gid, attached: bool) -> std::result::Result<(), Errno> {
        let me = self.me;
        let mut net = self.net.borrow_mut();
        let nodes = net.groups.entry(*gid).or_default();
        nodes.retain(|n| *n != me);
        if attached {
            nodes.push(me);
        }
        Ok(())
    }

    fn same_peer(&self, a: LinkId, b: LinkId) -> bool {
        self.node(a) == self.node(b)
    }

    fn caps(&self, _: LinkId) -> LinkCaps {
        let mut net = self.net.borrow_mut();
        let away = net.fickle && net.next() & 1 == 0;
        LinkCaps {
            segment: net.segment,
            single_copy: net.single_copy.then(|| SingleCopyCaps {
                above: if away { u32::MAX } else { net.single_copy_above },
                flowing_above: if away { u32::MAX } else { net.flowing_above.unwrap_or(net.single_copy_above) },
                either_from: net.either_from,
                shared_above: net.shared_above.unwrap_or(net.single_copy_above),
            }),
        }
    }

    fn send_quietly(
        &mut self,
        link: LinkId,
        packet: &Packet,
        payload: Payload<'_>,
    ) -> std::result::Result<(), SendError> {
        self.send(link, packet, payload)?;
        self.net.borrow_mut().quiet += 1;
        Ok(())
    }

    fn send(&mut self, link: LinkId, packet: &Packet, payload: Payload<'_>) -> std::result::Result<(), SendError> {
        assert!(link.0 < TWIN, "packets go out over one link, in order");
        let to = self.node(link);
        let mut bytes = payload.prefix.to_vec();
        self.gather(payload.spans, &mut bytes).map_err(|_| SendError::Fault)?;
        let me = self.me;
        let mut net = self.net.borrow_mut();
        let room = net.room;
        let queue = net.queues.entry((me, to)).or_default();
        if queue.len() >= room {
            return Err(SendError::Full);
        }
        let msg = Msg { packet: *packet, payload: bytes };
        let dice = net.next() % 1000;
        if dice < net.lose {
            net.lost += 1;
            return Ok(());
        }
        let twice = net.next() % 1000 < net.repeat;
        *net.sent.entry((me, to)).or_default() += 1 + u64::from(twice);
        let queue = net.queues.entry((me, to)).or_default();
        if twice {
            queue.push_back(msg.clone());
        }
        queue.push_back(msg);
        Ok(())
    }

    fn ring_doorbells(&mut self) {}

    fn sent_mark(&self, link: LinkId) -> u64 {
        self.net.borrow().sent.get(&(self.me, self.node(link))).copied().unwrap_or(0)
    }

    fn taken(&self, link: LinkId, mark: u64) -> bool {
        let waiting = self.net.borrow().queues.get(&(self.me, self.node(link))).map_or(0, |q| q.len() as u64);
        self.sent_mark(link) - waiting >= mark
    }

    fn unread(&self, link: LinkId) -> Option<u64> {
        // Otherwise the packets in the queue are still on their way.
        let net = self.net.borrow();
        let here = net.arrived && link == self.inward(self.node(link));
        let waiting = net.queues.get(&(self.node(link), self.me)).map_or(0, |queue| queue.len() as u64);
        (here && waiting > 0).then(|| self.read + waiting)
    }

    fn read(&self, _: LinkId) -> u64 {
        self.read
    }

    fn lives(&self, link: LinkId) -> bool {
        !self.net.borrow().dead.contains(&self.node(link))
    }

    fn take_writable(&mut self, links: &mut Vec<LinkId>) {
        links.append(&mut self.net.borrow_mut().writable[self.me]);
    }

    fn rx_len(&self, (): ()) -> u32 {
        self.current.len() as u32
    }

    fn rx_fetch(&mut self, (): (), offset: u32, dst: &mut [u8]) {
        let at = offset as usize;
        dst.copy_from_slice(&self.current[at..at + dst.len()]);
    }

    fn rx_scatter(&mut self, (): (), offset: u32, spans: &[Span]) -> std::result::Result<(), Fault> {
        let mut at = offset as usize;
        for s in spans {
            let part = self.current[at..at + s.len as usize].to_vec();
            self.store(s.addr, s.guarded, &part)?;
            at += s.len as usize;
        }
        Ok(())
    }
}

impl SameHost for Mock {
    fn is_same_host(&self, _: LinkId) -> bool {
        self.net.borrow().same_host
    }

    fn offered(&self, _: LinkId) -> Option<Offer> {
        self.net.borrow().offer
    }

    fn has_late_writer(&mut self, _: LinkId) -> bool {
        self.net.borrow().late_writer
    }

    fn co_copy(&mut self, _: LinkId, offer: &Offer) {
        self.net.borrow_mut().followed = Some(*offer);
    }

    fn publish(&mut self, exported: &Export) {
        self.net.borrow_mut().exported[self.me].insert(exported.id(), *exported);
    }

    fn retract(&mut self, id: ExportId) {
        self.net.borrow_mut().exported[self.me].remove(&id);
    }

    fn one_sided(&mut self, link: LinkId, r: &OneSided<'_>) -> Option<OneSidedDone> {
        let peer = self.node(link);
        self.net.borrow_mut().tried += 1;
        let found = {
            let net = self.net.borrow();
            let look = |id| net.exported[peer].get(&id).filter(|_| net.one_sided && peer != self.me).copied();
            check_one_sided(look(ExportId::Qp(r.dst))?, look(ExportId::Region(r.rkey.0))?, r)?
        };
        let theirs = [Span { addr: found.0, len: r.len, guarded: true }];
        let me = self.me;
        let mut before = 0;
        if let OneSidedOp::Atomic(op) = r.op {
            if !self.net.borrow().shares {
                return None;
            }
            let mut net = self.net.borrow_mut();
            before = apply(slice(&mut net.memory[peer], found.0, 8).ok()?, op);
        } else if r.op == OneSidedOp::Read {
            self.copy(peer, &theirs, me, r.local.spans).ok()?;
        } else if r.local.prefix.is_empty() {
            self.copy(me, r.local.spans, peer, &theirs).ok()?;
        } else {
            let mut net = self.net.borrow_mut();
            slice(&mut net.memory[peer], found.0, r.len as usize).ok()?.copy_from_slice(r.local.prefix);
        }
        let mut net = self.net.borrow_mut();
        net.executed += 1;
        net.one_sided_bytes += u64::from(r.len);
        drop(net);
        Some(OneSidedDone { epoch: found.1, before })
    }

    fn one_sided_together(&mut self, link: LinkId, requests: &[OneSided<'_>]) -> Option<(u64, usize)> {
        let peer = self.node(link);
        {
            let net = self.net.borrow();
            let look = |id| net.exported[peer].get(&id).filter(|_| net.one_sided && peer != self.me).copied();
            for r in requests {
                check_one_sided(look(ExportId::Qp(r.dst))?, look(ExportId::Region(r.rkey.0))?, r)?;
            }
        }
        let epochs = requests.iter().map_while(|request| Some(self.one_sided(link, request)?.epoch));
        let epochs: Vec<u64> = epochs.collect();
        Some((*epochs.first()?, epochs.len()))
    }

    fn one_sided_here(&mut self, op: OneSidedOp, local: &[Span], remote: Span) -> Option<u64> {
        let me = self.me;
        if !self.net.borrow().one_sided {
            return None;
        }
        let mut before = 0;
        match op {
            OneSidedOp::Write => self.copy(me, local, me, &[remote]).ok()?,
            OneSidedOp::Read => self.copy(me, &[remote], me, local).ok()?,
            OneSidedOp::Atomic(op) => {
                before = apply(slice(&mut self.net.borrow_mut().memory[me], remote.addr, 8).ok()?, op)
            }
        }
        self.net.borrow_mut().executed += 1;
        Some(before)
    }

    fn delivers_here(&self) -> bool {
        self.net.borrow().one_sided
    }

    fn may_follow(&self, link: LinkId, mark: u64, _: bool) -> bool {
        self.taken(link, mark)
    }

    fn maps_peer(&mut self, _: LinkId) -> bool {
        true
    }

    fn shares(&mut self, _: LinkId, _: RKey, _: u64, _: u32) -> bool {
        self.net.borrow().shares
    }

    fn answered(&mut self, _: LinkId, len: u32, took: Nanos, refused: bool) {
        self.net.borrow_mut().answered.push((len, took, refused));
    }

    fn pull(
        &mut self,
        link: LinkId,
        ticket: TicketRef,
        remote: &[Span],
        local: &[Span],
    ) -> std::result::Result<(), SingleCopyError> {
        self.check_ticket(ticket)?;
        let (peer, me) = (self.node(link), self.me);
        self.copy(peer, remote, me, local)
            .map_err(|(source, _)| if source { SingleCopyError::Remote } else { SingleCopyError::Local })
    }

    fn push(
        &mut self,
        link: LinkId,
        ticket: TicketRef,
        local: &[Span],
        remote: &[Span],
    ) -> std::result::Result<(), SingleCopyError> {
        self.check_ticket(ticket)?;
        let (peer, me) = (self.node(link), self.me);
        self.copy(me, local, peer, remote)
            .map_err(|(source, _)| if source { SingleCopyError::Local } else { SingleCopyError::Remote })
    }

    fn peers_map(&self, _: &Span) -> bool {
        self.net.borrow().maps
    }

    fn quiesce(&mut self, link: Option<LinkId>) {
        let node = link.map(|link| self.node(link));
        let me = self.me;
        let mut net = self.net.borrow_mut();
        let tickets = net.tickets.values().map(|(t, first)| t.load(std::sync::atomic::Ordering::SeqCst) - first).sum();
        net.quiesced.push((me, node, tickets));
    }
}

impl Observer for Mock {}

/// A poll that takes the packets of a link.
struct Polls {
    net: Rc<RefCell<Net>>,
    ends: (usize, usize),
    /// The sender's way to the poller.
    back: LinkId,
    found: Vec<Completion>,
    /// Number of packets under way the other way when the last packet was.
    answers: usize,
    /// Packets dealt with. The first has left its queue before.
    taken: usize,
}

impl Polls {
    fn new(world: &World, from: usize, to: usize) -> Polls {
        let back = world.nodes[from].engine.env().link(to);
        Polls { net: world.net.clone(), ends: (from, to), back, found: Vec::new(), answers: 0, taken: 0 }
    }
}

impl Net {
    /// Takes the next packet from one node to another over `link`, which is not full any more then.
    fn pop(&mut self, from: usize, to: usize, link: LinkId) -> Option<Msg> {
        let room = self.room;
        let queue = self.queues.get_mut(&(from, to))?;
        let full = queue.len() >= room;
        let msg = queue.pop_front()?;
        if full {
            self.writable[from].push(link);
        }
        Some(msg)
    }
}

impl Poller<Mock> for Polls {
    fn completed(&mut self, completion: &Completion) {
        self.found.push(*completion);
        let (from, to) = self.ends;
        self.answers = self.net.borrow().queues.get(&(to, from)).map_or(0, VecDeque::len);
    }

    fn taken(&mut self, env: &mut Mock) {
        if self.taken > 0 {
            let msg = self.net.borrow_mut().pop(self.ends.0, self.ends.1, self.back).unwrap();
            assert_eq!(msg.packet.op, PacketOp::Send, "what is taken behind another");
            env.read += 1;
        }
        self.taken += 1;
    }

    fn next(&mut self, _env: &Mock) -> Option<ShortPacket> {
        let net = self.net.borrow();
        net.queues.get(&self.ends)?.front().and_then(|msg| short_packet(&msg.packet, &msg.payload))
    }
}

/// The packet, if it can be a short one.
fn short_packet(p: &Packet, payload: &[u8]) -> Option<ShortPacket> {
    let mut word = [0xcc; 8];
    word.get_mut(..payload.len())?.copy_from_slice(payload);
    let words = [
        p.op as u64 | u64::from(p.flags) << 8 | u64::from(p.syndrome) << 16 | u64::from(p.dst.get()) << 24,
        u64::from(p.src.get()) | u64::from(p.psn.get()) << 24,
        u64::from(p.imm) | u64::from(p.len) << 32,
    ];
    ShortPacket::new(words, payload.len() as u32, u64::from_ne_bytes(word))
}

impl Engine<Mock> {
    fn ticket(&self, qp: QpId) -> &'static std::sync::atomic::AtomicU64 {
        self.qps.get(qp).unwrap().same_host.ticket.word()
    }
}
