//! TCP connections of iWARP in a capture. The kernel's packets are not seen: frames are made of the bytes that this
//! process gives to TCP and gets from it, with the connection's addresses and ports, and numbers that count them.
//!
//! * The side that connects writes down the handshake (SYN, SYN, ACK) before its first byte. The other side does so if
//!   it does not find one in the file.
//! * Each side writes down what it sends, before it sends it. What it receives it writes down if the peer does not: the
//!   peer's bytes would be in the file before they come.
//! * Acknowledgments are those of the frames with data. Others, and what is sent again, are not in the capture.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{SystemTime, UNIX_EPOCH};

use verbs::Gid;
use wire::tcp::flag;
use wire::{ethernet, ipv4, ipv6, tcp};

use super::file::Capture;
use super::packet::station;
use super::{BATCH, Pcap, join, pcapng};

/// Bytes of the addresses and ports of a frame, in its order: source, destination, source port, destination port.
type Key = [u8; 36];

/// The connections whose handshakes are in the file, as far as it has been searched. Each is there for one accepted
/// connection.
#[derive(Debug, Default)]
pub(super) struct Begun {
    keys: HashSet<Key>,
    searched: u64,
}

/// Bytes of an Ethernet frame behind its header, and of TCP's option of timestamps, which its segments leave room for.
const MTU: usize = 1500;
const TIMESTAMPS: usize = 12;

/// The options of a SYN: a segment size (RFC 9293, section 3.7.1), and a window that is never full (RFC 7323, 2.2).
const SYN_WORDS: u8 = 2;
const SCALE: u8 = 14;

/// A TCP connection in a capture.
#[derive(Debug)]
pub struct Conversation {
    local: SocketAddr,
    peer: SocketAddr,
    /// Bytes of data per frame, as on Ethernet: TCP gives longer ones to adapters, which cut them.
    segment: usize,
    /// The next numbers: this side's, and the peer's.
    sent: u32,
    received: u32,
    /// Whether the peer writes to the file, once that is known.
    peer_writes: Option<bool>,
    /// The place in the file behind the handshake.
    begun_at: u64,
    ended: [bool; 2],
}

/// One frame of a conversation.
struct Frame<'a> {
    outbound: bool,
    flags: u8,
    sequence: u32,
    acknowledgment: u32,
    data: &'a [u8],
}

impl Pcap {
    /// Begin a conversation: this side has connected (`active`), or has the first bytes of a connection that it
    /// accepted.
    pub(crate) fn converse(&mut self, local: SocketAddr, peer: SocketAddr, active: bool) -> Conversation {
        let ip = if local.is_ipv4() { ipv4::LEN } else { ipv6::LEN };
        let (ours, theirs) = (first_number(local, peer), first_number(peer, local));
        let mut conversation = Conversation {
            local,
            peer,
            segment: MTU - ip - tcp::LEN - TIMESTAMPS,
            sent: ours.wrapping_add(1),
            received: theirs.wrapping_add(1),
            peer_writes: None,
            begun_at: 0,
            ended: [false; 2],
        };
        if !active && let Some(capture) = &self.capture {
            self.begun.search(capture);
            conversation.peer_writes = Some(self.begun.keys.remove(&key(peer, local)));
        }
        if conversation.peer_writes != Some(true) {
            let (both, syn) = (flag::SYN | flag::ACK, flag::SYN);
            let numbers = if active { (ours, theirs) } else { (theirs, ours) };
            let after = |number: u32| number.wrapping_add(1);
            for (outbound, flags, sequence, acknowledgment) in [
                (active, syn, numbers.0, 0),
                (!active, both, numbers.1, after(numbers.0)),
                (active, flag::ACK, after(numbers.0), after(numbers.1)),
            ] {
                let frame = Frame { outbound, flags, sequence, acknowledgment, data: &[] };
                self.frame(&conversation, &frame, None);
            }
            self.write();
        }
        conversation.begun_at = self.capture.as_ref().map_or(0, Capture::end);
        conversation
    }

    /// Capture bytes that are given to TCP. `note`: what a fault has done to them.
    pub(crate) fn says(&mut self, conversation: &mut Conversation, bytes: &[u8], note: Option<&str>) {
        for data in bytes.chunks(conversation.segment) {
            let (sequence, acknowledgment) = (conversation.sent, conversation.received);
            conversation.sent = sequence.wrapping_add(data.len() as u32);
            let frame = Frame { outbound: true, flags: flag::ACK | flag::PSH, sequence, acknowledgment, data };
            self.frame(conversation, &frame, note);
        }
        self.write();
    }

    /// Capture bytes that TCP has given.
    pub(crate) fn hears(&mut self, conversation: &mut Conversation, bytes: &[u8]) {
        let peer_writes = self.peer_writes(conversation);
        for data in bytes.chunks(conversation.segment) {
            let (sequence, acknowledgment) = (conversation.received, conversation.sent);
            conversation.received = sequence.wrapping_add(data.len() as u32);
            if !peer_writes {
                let frame = Frame { outbound: false, flags: flag::ACK | flag::PSH, sequence, acknowledgment, data };
                self.frame(conversation, &frame, None);
            }
        }
        self.write();
    }

    /// Capture the end of one direction: FIN, or RST of both.
    pub(crate) fn hangs_up(&mut self, conversation: &mut Conversation, outbound: bool, reset: bool) {
        let peer_writes = !outbound && self.peer_writes(conversation);
        let ended = &mut conversation.ended[usize::from(outbound)];
        if std::mem::replace(ended, true) {
            return;
        }
        let numbers = (conversation.sent, conversation.received);
        let (sequence, acknowledgment) = if outbound { numbers } else { (numbers.1, numbers.0) };
        let next = if outbound { &mut conversation.sent } else { &mut conversation.received };
        *next = next.wrapping_add(u32::from(!reset)); // FIN takes a number
        if !peer_writes {
            let flags = flag::ACK | if reset { flag::RST } else { flag::FIN };
            let frame = Frame { outbound, flags, sequence, acknowledgment, data: &[] };
            self.frame(conversation, &frame, None);
            self.write();
        }
    }

    /// True if the peer writes down what it sends. The side that has connected knows that when the peer's first bytes
    /// come: then they are in the file, or will never be.
    fn peer_writes(&mut self, conversation: &mut Conversation) -> bool {
        if let Some(known) = conversation.peer_writes {
            return known;
        }
        let wanted = key(conversation.peer, conversation.local);
        let mut found = false;
        if let Some(capture) = &self.capture {
            capture
                .packets(conversation.begun_at, |frame| found |= key_of(frame).is_some_and(|(key, _)| key == wanted));
        }
        *conversation.peer_writes.insert(found)
    }

    fn frame(&mut self, conversation: &Conversation, frame: &Frame<'_>, note: Option<&str>) {
        let Some(capture) = &mut self.capture else { return };
        let missed = capture.take_missed();
        let interface = capture.interface;
        let mut comment = note.map(std::borrow::Cow::Borrowed);
        if missed > 0 {
            join(&mut comment, &format!("{missed} packets before this one were not recorded"));
        }
        let Some(bytes) = emit(conversation, frame) else { return };
        let kept = bytes.get(..bytes.len().min(self.snaplen)).unwrap_or_default();
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let captured = pcapng::Captured {
            interface,
            time,
            bytes: kept,
            length: bytes.len() as u32,
            outbound: frame.outbound,
            comment: comment.as_deref(),
        };
        pcapng::packet(&mut self.batch, &captured);
        self.batched += 1;
        if self.batch.len() > BATCH {
            self.write();
        }
    }
}

impl Begun {
    /// Search what has been added to the file for handshakes.
    fn search(&mut self, capture: &Capture) {
        let keys = &mut self.keys;
        self.searched = capture.packets(self.searched, |frame| {
            if let Some((key, flag::SYN)) = key_of(frame) {
                keys.insert(key);
            }
        });
    }
}

/// The number of a direction's SYN. Both sides know it: it follows from the addresses.
fn first_number(from: SocketAddr, to: SocketAddr) -> u32 {
    // FNV-1a.
    key(from, to).iter().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

fn key(from: SocketAddr, to: SocketAddr) -> Key {
    let mut key = [0; 36];
    key[..16].copy_from_slice(&Gid::from_ip(from.ip()).0);
    key[16..32].copy_from_slice(&Gid::from_ip(to.ip()).0);
    key[32..34].copy_from_slice(&from.port().to_be_bytes());
    key[34..].copy_from_slice(&to.port().to_be_bytes());
    key
}

/// The ends of a frame of TCP, and its flags.
fn key_of(frame: &[u8]) -> Option<(Key, u8)> {
    let (ethernet, packet) = ethernet::Repr::read(frame).ok()?;
    let (source, dest, protocol, rest): (IpAddr, IpAddr, u8, &[u8]) = match ethernet.ethertype {
        ethernet::IPV4 => {
            let (ip, rest) = ipv4::Repr::read(packet).ok()?;
            (ip.source.into(), ip.dest.into(), ip.protocol, rest)
        }
        ethernet::IPV6 => {
            let (ip, rest) = ipv6::Repr::read(packet).ok()?;
            (ip.source.into(), ip.dest.into(), ip.next_header, rest)
        }
        _ => return None,
    };
    let (tcp, _) = tcp::Repr::read(rest).ok().filter(|_| protocol == tcp::PROTOCOL)?;
    let end = |ip, port| SocketAddr::new(ip, port);
    Some((key(end(source, tcp.source), end(dest, tcp.dest)), tcp.flags))
}

/// The bytes of a frame. `None`: it is longer than IP allows, or its ends are of two families.
fn emit(conversation: &Conversation, frame: &Frame<'_>) -> Option<Vec<u8>> {
    let ends = (conversation.local, conversation.peer);
    let (from, to) = if frame.outbound { ends } else { (ends.1, ends.0) };
    let is_syn = frame.flags & flag::SYN != 0;
    let option_words = if is_syn { SYN_WORDS } else { 0 };
    let len = u16::try_from(tcp::LEN + usize::from(option_words) * 4 + frame.data.len()).ok()?;
    let mut header = tcp::Repr {
        source: from.port(),
        dest: to.port(),
        sequence: frame.sequence,
        acknowledgment: frame.acknowledgment,
        option_words,
        flags: frame.flags,
        window: u16::MAX,
        checksum: 0,
    };
    let [high, low] = (conversation.segment as u16).to_be_bytes();
    let options = [2, 4, high, low, 1, 3, 3, SCALE];
    let options = options.get(..usize::from(option_words) * 4).unwrap_or_default();
    let hops = 64;
    let (ethertype, ip, sum) = match (from.ip(), to.ip()) {
        (IpAddr::V4(source), IpAddr::V4(dest)) => {
            let ip = ipv4::Repr {
                type_of_service: 0,
                payload_len: len,
                identification: 0,
                dont_fragment: true,
                time_to_live: hops,
                protocol: tcp::PROTOCOL,
                source,
                dest,
            };
            (ethernet::IPV4, ip.emit().to_vec(), ip.pseudo_header(len))
        }
        (IpAddr::V6(source), IpAddr::V6(dest)) => {
            let ip = ipv6::Repr {
                traffic_class: 0,
                flow_label: 0,
                payload_len: len,
                next_header: tcp::PROTOCOL,
                hop_limit: hops,
                source,
                dest,
            };
            (ethernet::IPV6, ip.emit().to_vec(), ip.pseudo_header(len))
        }
        _ => return None,
    };
    header.checksum = sum.bytes(&header.emit()).bytes(options).bytes(frame.data).finish();
    let stations = [to, from].map(|end| station(&Gid::from_ip(end.ip())));
    let ethernet = ethernet::Repr { dest: stations[0], source: stations[1], ethertype };
    Some([&ethernet.emit()[..], &ip, &header.emit(), options, frame.data].concat())
}

#[cfg(test)]
#[path = "tcp_tests.rs"]
mod tests;
