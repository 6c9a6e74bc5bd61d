//! Captures: every packet as RoCEv2 or TCP would carry it, in a pcapng file that Wireshark reads.
//!
//! The engine's packets are larger than those of a network: up to a segment of 16 KiB, or any length by reference. A
//! capture shows the packets that an adapter would send for them, of at most the path MTU. The engine numbers its
//! packets so that each of these has its sequence number.
//!
//! * The sender captures a packet before the receiver can see it. So with several processes writing to one file each
//!   packet is there once, and behind the packet that it answers.
//! * The receiver captures a packet of a process that does not write to the same file.
//!
//! Connections of iWARP are shown as what they are: TCP connections (`pcap/tcp.rs`).

mod file;
mod packet;
mod pcapng;
mod stream;
mod tcp;

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use verbs::{Gid, Psn, QpType, Qpn};
use wire::{LinkId, Memory, Packet, PacketOp, Path, Payload, Span, packet_flags as flag};

use crate::Wire;

pub use file::{Prepared, prepare};
pub use stream::Stream;
pub use tcp::Conversation;

use file::Capture;
use packet::{Piece, Way};

/// More bytes than any packet has: headers, 4096 bytes of payload, ICRC.
pub const SNAPLEN: u32 = 65535;

/// The number of bytes of blocks that are written together.
const BATCH: usize = 256 << 10;

/// Most bytes of a message that one packet by reference stands for (`engine::rc::requester`).
const LONGEST_REFERENCE: u32 = 1 << 20;

/// Bytes in front of a datagram's data: source and destination GID.
const GIDS: u32 = 32;

/// The queue pair of the general services (IBTA vol. 1, 3.9.4), and its Q_Key (10.2.5).
const GSI: Qpn = Qpn::new(1);
const GSI_QKEY: u32 = 0x8001_0000;
/// The MTU of that queue pair: no shorter than a management datagram.
const GSI_MTU: u32 = 256;

/// NAK codes that only the window has (`engine::rc::responder`).
const NAK: u8 = 3 << 5;
const NAK_SOURCE_FAULT: u8 = NAK | 30;
const NAK_SINGLE_COPY: u8 = NAK | 31;
/// The code that a network would have in their place.
const NAK_SEQUENCE: u8 = NAK;
const NAK_REMOTE_OPERATIONAL: u8 = NAK | 3;

/// A capture that packets are written to.
#[derive(Debug)]
pub struct Pcap {
    /// `None` once the file could not be written.
    capture: Option<Capture>,
    path: PathBuf,
    snaplen: usize,
    paths: HashMap<Qpn, Path>,
    /// The memory from which data were last put directly into a peer's memory: the data of the READ response that
    /// follows.
    pushed: Vec<Span>,
    /// The memory to which data were last copied directly from a peer's: the data of the packet being received.
    pulled: Vec<Span>,
    /// The datagram to a group that was last sent: it is sent to each member, and through a network only once.
    to_group: Option<(Qpn, Psn)>,
    /// Whether peers, by their devices' names, write to this file, too.
    writes_too: HashMap<u64, bool>,
    batch: Vec<u8>,
    batched: u64,
    bytes: Vec<u8>,
    /// The sequence number of the next management datagram.
    mad: Psn,
    /// The TCP connections that peers have begun in the file.
    begun: tcp::Begun,
}

/// A function that copies bytes of a packet's payload, from an offset on; false if they cannot be had.
type Data<'a> = &'a mut dyn FnMut(u32, &mut [u8]) -> bool;

impl Pcap {
    /// The capture that the settings ask for, if they do. `device`: 128 random bits that name this process's device.
    ///
    /// # Errors
    /// The reason why there is none, for the user.
    pub fn of(settings: &report::Settings, device: &[u8; 16]) -> Result<Option<Pcap>, String> {
        let Some(path) = &settings.pcap else { return Ok(None) };
        Self::new(path.clone(), settings.pcap_snaplen.clone()?, &settings.devices.names(), device).map(Some)
    }

    fn new(path: PathBuf, snaplen: u32, shown: &str, device: &[u8; 16]) -> Result<Pcap, String> {
        let snaplen = if snaplen == 0 { SNAPLEN } else { snaplen.min(SNAPLEN) };
        let pid = std::process::id();
        let program = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        let name = format!("{}[{pid}]", program.trim());
        let description = format!("{shown} of process {pid}");
        let capture = Capture::join(&path, &name, &description, name_of(device), snaplen)
            .map_err(|error| format!("cannot write packets to {}: {error}", path.display()))?;
        Ok(Pcap {
            capture: Some(capture),
            path,
            snaplen: snaplen as usize,
            paths: HashMap::new(),
            pushed: Vec::new(),
            pulled: Vec::new(),
            to_group: None,
            writes_too: HashMap::new(),
            batch: Vec::new(),
            batched: 0,
            bytes: Vec::new(),
            mad: Psn::new(0),
            begun: tcp::Begun::default(),
        })
    }

    /// Note the path of a queue pair that can send from now on.
    pub(crate) fn routed(&mut self, path: &Path) {
        self.paths.insert(path.qpn, *path);
    }

    /// Note memory from which data were put directly into a peer's memory.
    pub(crate) fn pushed(&mut self, local: &[Span]) {
        self.pushed.clear();
        self.pushed.extend_from_slice(local);
    }

    /// Note memory to which data were copied directly from a peer's memory.
    pub(crate) fn pulled(&mut self, local: &[Span]) {
        self.pulled.clear();
        self.pulled.extend_from_slice(local);
    }

    /// Capture a packet that is being sent.
    pub(crate) fn sent<P: Memory>(&mut self, memory: &P, packet: &Packet, payload: Payload<'_>, note: Option<&str>) {
        if self.capture.is_none() {
            return;
        }
        if packet.op == PacketOp::Datagram && packet.dst == Qpn::MULTICAST {
            let this = Some((packet.src, packet.psn));
            if std::mem::replace(&mut self.to_group, this) == this {
                return;
            }
        }
        let mut listed = Vec::new();
        let (prefix, spans) = match packet.op {
            PacketOp::ReadResponse if packet.has(flag::BY_REF) => {
                listed.append(&mut self.pushed);
                (&[][..], &listed[..])
            }
            PacketOp::Send | PacketOp::Write if packet.has(flag::BY_REF) => {
                listed.extend(references(payload.prefix));
                (&[][..], &listed[..])
            }
            PacketOp::Datagram => (payload.prefix.get(GIDS as usize..).unwrap_or_default(), payload.spans),
            _ => (payload.prefix, payload.spans),
        };
        let ends = addresses(payload.prefix);
        let mut data = |offset: u32, to: &mut [u8]| load(memory, prefix, spans, offset, to);
        let way = self.way(packet, true, ends);
        self.record(&way, packet, note, true, &mut data);
    }

    /// Capture a management datagram that is being sent: from the port's queue pair 1 to the peer's (IBTA vol. 1,
    /// 13.5.1).
    pub(crate) fn managed(&mut self, source: &Gid, dest: &Gid, mad: &[u8]) {
        let psn = self.mad;
        self.mad = psn.plus(1);
        let packet = Packet {
            flags: flag::FIRST | flag::LAST,
            rkey: GSI_QKEY,
            len: mad.len() as u32,
            ..Packet::new(PacketOp::Datagram, GSI, GSI, psn)
        };
        let way = Way { source: *source, dest: *dest, traffic_class: 0, hop_limit: 64, flow_label: 0, from: GSI };
        let mut data = |offset: u32, to: &mut [u8]| match mad.get(offset as usize..offset as usize + to.len()) {
            Some(bytes) => {
                to.copy_from_slice(bytes);
                true
            }
            None => false,
        };
        self.record(&(way, QpType::Ud, GSI_MTU), &packet, None, true, &mut data);
    }

    /// Capture a packet that was received, if its sender does not capture it.
    pub(crate) fn received<W: Wire>(&mut self, wire: &mut W, link: LinkId, packet: &Packet, rx: W::Rx) {
        let pulled = std::mem::take(&mut self.pulled);
        // A process that has not named its device writes to this file itself: the others name theirs first.
        let (Some(capture), Some(peer)) = (&mut self.capture, wire.peer_device(link)) else { return };
        let peer = name_of(&peer);
        // The peer has joined the file before it sent its first packet, or never will.
        if *self.writes_too.entry(peer).or_insert_with(|| capture.has(peer)) {
            return;
        }
        let mut packet = *packet;
        let carried = wire.rx_len(rx);
        let (mut ends, mut skip) = (None, 0);
        if packet.op == PacketOp::Datagram && carried >= GIDS {
            let mut prefix = [0u8; GIDS as usize];
            wire.rx_fetch(rx, 0, &mut prefix);
            (ends, skip) = (addresses(&prefix), GIDS);
        }
        let by_ref = packet.has(flag::BY_REF);
        // The length in the packet is not trusted: it costs room in the file.
        if is_segmented(packet.op) {
            packet.len = packet.len.min(if by_ref { LONGEST_REFERENCE } else { carried - skip });
        }
        let mut data = |offset: u32, to: &mut [u8]| {
            if by_ref {
                // The packet does not say where data lie that a target has put into this process's memory.
                return load(wire, &[], &pulled, offset, to);
            }
            let fits = u64::from(skip) + u64::from(offset) + to.len() as u64 <= u64::from(carried);
            if fits && !to.is_empty() {
                wire.rx_fetch(rx, skip + offset, to);
            }
            fits || to.is_empty()
        };
        let way = self.way(&packet, false, ends);
        self.record(&way, &packet, None, false, &mut data);
    }

    /// The ends of a packet, its service, and its MTU.
    fn way(&self, packet: &Packet, outbound: bool, ends: Option<(Gid, Gid)>) -> (Way, QpType, u32) {
        let own = if outbound { packet.src } else { packet.dst };
        let path = self.paths.get(&own);
        let mut way = Way {
            source: path.map(|path| path.source).unwrap_or_default(),
            dest: path.map(|path| path.dest).unwrap_or_default(),
            traffic_class: path.map_or(0, |path| path.traffic_class),
            hop_limit: path.map_or(0, |path| path.hop_limit),
            flow_label: path.map_or(0, |path| path.flow_label),
            from: packet.src,
        };
        if !outbound {
            (way.source, way.dest) = (way.dest, way.source);
        }
        if packet.op == PacketOp::Datagram {
            (way.source, way.dest) = ends.unwrap_or_default();
            if way.dest == Gid::ZERO {
                way.dest = way.source; // a path without GIDs, by a LID (link layer InfiniBand): the LID is this host's
            }
            way.traffic_class = (packet.swap >> 8) as u8;
            way.hop_limit = (packet.swap >> 16) as u8;
            way.flow_label = packet.compare as u32;
        }
        (way, path.map_or(QpType::Rc, |path| path.service), path.map_or(4096, |path| path.mtu))
    }

    /// Capture a packet of the engine: the packets that a network would see.
    fn record(
        &mut self,
        (way, service, mtu): &(Way, QpType, u32),
        packet: &Packet,
        note: Option<&str>,
        outbound: bool,
        data: Data<'_>,
    ) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let (packet, told) = as_on_a_network(packet);
        let mut comment = told.map(Cow::Borrowed);
        if let Some(note) = note {
            join(&mut comment, note);
        }
        if let Some(missed) = self.capture.as_mut().map(Capture::take_missed).filter(|missed| *missed > 0) {
            let missed = format!("{missed} packets before this one were not recorded: another process held the file");
            join(&mut comment, &missed);
        }
        let len = payload_len(&packet);
        let pieces = if packet.op == PacketOp::Datagram { 1 } else { len.div_ceil(*mtu).max(1) };
        for number in 0..pieces {
            let offset = number * mtu;
            let piece = Piece {
                psn: packet.psn.plus(number),
                first: number == 0 && packet.has(flag::FIRST),
                last: number + 1 == pieces && packet.has(flag::LAST) || !is_segmented(packet.op),
                len: if pieces == 1 { len } else { (len - offset).min(*mtu) },
            };
            self.one(way, *service, &packet, &piece, offset, time, outbound, comment.as_deref(), data);
            if self.batch.len() > BATCH {
                self.write();
            }
        }
        self.write();
    }

    #[allow(clippy::too_many_arguments)] // what a packet is made of
    fn one(
        &mut self,
        way: &Way,
        service: QpType,
        packet: &Packet,
        piece: &Piece,
        offset: u32,
        time: u64,
        outbound: bool,
        comment: Option<&str>,
        data: Data<'_>,
    ) {
        let Some(capture) = &self.capture else { return };
        let frame = packet::frame(way, service, packet, piece);
        let payload_len = piece.len as usize;
        // A length beyond IP's is only a peer's claim: no queue pair sends such a packet.
        let Ok((frame_len, at)) = frame.frame_len(payload_len) else { return };
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        bytes.resize(frame_len, 0);
        let mut comment = comment.map(Cow::Borrowed);
        let payload = &mut bytes[at..at + payload_len];
        if packet.op == PacketOp::AtomicWrite {
            payload.copy_from_slice(&packet.swap.to_ne_bytes()); // memory as it is
        } else if !data(offset, payload) {
            // The payload is not cut off: Wireshark shows nothing of the transport headers of packets that are.
            payload.fill(0);
            join(&mut comment, "the payload could not be read; zeros are in its place");
        }
        if frame.emit(payload_len, &mut bytes).is_err() {
            self.bytes = bytes;
            return;
        }
        let kept = bytes.len().min(self.snaplen);
        let captured = pcapng::Captured {
            interface: capture.interface,
            time,
            bytes: &bytes[..kept],
            length: bytes.len() as u32,
            outbound,
            comment: comment.as_deref(),
        };
        pcapng::packet(&mut self.batch, &captured);
        self.batched += 1;
        self.bytes = bytes;
    }

    fn write(&mut self) {
        let Some(capture) = &mut self.capture else { return };
        if let Err(error) = capture.add(&self.batch, self.batched) {
            report::log(format_args!("no more packets of this process go to {}: {error}", self.path.display()));
            self.capture = None;
        }
        self.batch.clear();
        self.batched = 0;
    }
}

/// Append a text to a comment.
fn join(comment: &mut Option<Cow<'_, str>>, more: &str) {
    let text = match comment.take() {
        Some(before) => format!("{before}; {more}"),
        None => more.to_owned(),
    };
    *comment = Some(Cow::Owned(text));
}

/// A name for a device that another process cannot use to pass itself off as it.
fn name_of(device: &[u8; 16]) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hash = DefaultHasher::new();
    hash.write(device);
    // An EUI-64 (RFC 4291, appendix A) that is locally administered, and no group.
    hash.finish() & !(3 << 56) | 2 << 56
}

/// The packet with codes that only the window knows replaced by a network's, and the name of the original.
fn as_on_a_network(packet: &Packet) -> (Packet, Option<&'static str>) {
    let mut shown = *packet;
    let told = match (packet.op, packet.syndrome) {
        (PacketOp::Ack, NAK_SINGLE_COPY) => {
            shown.syndrome = NAK_SEQUENCE;
            Some("the data are to be sent again, through shared memory: the responder cannot reach the requester's")
        }
        (PacketOp::Ack, NAK_SOURCE_FAULT) => {
            shown.syndrome = NAK_REMOTE_OPERATIONAL;
            Some("the requester's own memory is not there, or no longer meant")
        }
        (PacketOp::Flush, _) => Some("FLUSH"),
        (PacketOp::AtomicWrite, _) => Some("ATOMIC WRITE"),
        _ => None,
    };
    (shown, told)
}

/// True for messages that may take several packets; the others are always first and last.
fn is_segmented(op: PacketOp) -> bool {
    matches!(op, PacketOp::Send | PacketOp::Write | PacketOp::ReadResponse | PacketOp::Datagram)
}

/// The payload bytes of a packet, as a network would carry it.
fn payload_len(packet: &Packet) -> u32 {
    match packet.op {
        PacketOp::Send | PacketOp::Write | PacketOp::ReadResponse | PacketOp::Datagram => packet.len,
        PacketOp::AtomicWrite => 8,
        _ => 0,
    }
}

/// The addresses in front of a datagram.
fn addresses(prefix: &[u8]) -> Option<(Gid, Gid)> {
    let (source, rest) = prefix.split_first_chunk::<16>()?;
    let (dest, _) = rest.split_first_chunk::<16>()?;
    Some((Gid(*source), Gid(*dest)))
}

/// The local memory that a packet by reference names ([`flag::BY_REF`]); the first entry is the ticket.
fn references(list: &[u8]) -> impl Iterator<Item = Span> {
    list.chunks_exact(16).skip(1).map(|entry| {
        let (addr, rest) = entry.split_at(8);
        let mut bytes = ([0u8; 8], [0u8; 4]);
        bytes.0.copy_from_slice(addr);
        bytes.1.copy_from_slice(&rest[..4]);
        Span { addr: u64::from_le_bytes(bytes.0), len: u32::from_le_bytes(bytes.1), guarded: true }
    })
}

/// Copy bytes of a payload to send. A capture never trusts memory to be there.
fn load<P: Memory>(memory: &P, prefix: &[u8], spans: &[Span], offset: u32, mut to: &mut [u8]) -> bool {
    let mut skip = offset as usize;
    if let Some(own) = prefix.get(skip..) {
        let n = own.len().min(to.len());
        to[..n].copy_from_slice(&own[..n]);
        to = &mut to[n..];
    }
    skip = skip.saturating_sub(prefix.len());
    for span in spans {
        let len = span.len as usize;
        if skip >= len {
            skip -= len;
            continue;
        }
        let n = (len - skip).min(to.len());
        let (now, rest) = to.split_at_mut(n);
        if n > 0 && memory.load(span.addr.wrapping_add(skip as u64), true, now).is_err() {
            return false;
        }
        (to, skip) = (rest, 0);
    }
    to.is_empty()
}

#[cfg(test)]
#[path = "pcap/tests.rs"]
mod tests;
