//! Packets through [`Tapped`] into a file.

use std::fs;

use wire::prelude::*;
use wire::{LinkCaps, SendError};

use super::*;
use crate::mock_wire::MockWire;
use crate::{Tapped, Taps};

const LINK: LinkId = LinkId(3);
const OURS: Qpn = Qpn::new(0x1000);
const THEIRS: Qpn = Qpn::new(0x2000);
const OWN_DEVICE: [u8; 16] = [1; 16];

/// A wire with a capture, and its file, which is removed at the end.
struct Bench {
    wire: Tapped<MockWire>,
    file: PathBuf,
}

/// A frame of the file, from its base transport header on to its payload's end, and the other members of its block.
#[derive(Debug, PartialEq)]
struct Seen {
    opcode: u8,
    psn: u32,
    rest: Vec<u8>,
    outbound: bool,
    comment: bool,
}

impl Bench {
    fn new(name: &str) -> Self {
        let file = std::env::temp_dir().join(format!("softrnic-pcap-{}-bench-{name}", std::process::id()));
        let _ = fs::remove_file(&file);
        let pcap = Pcap::new(file.clone(), 0, "softrnic0", &OWN_DEVICE).unwrap();
        let memory: Vec<u8> = (0..=255).cycle().take(8192).collect();
        let mock_wire = MockWire { memory: memory.into(), ..MockWire::default() };
        Bench { wire: Tapped::new(mock_wire, Some(Taps { faults: None, pcap: Some(pcap) })), file }
    }

    /// Connect the local queue pair.
    fn connect(&mut self, service: QpType, mtu: u32) {
        let gid = |last| Gid::from_ip(std::net::Ipv4Addr::new(10, 0, 0, last).into());
        let path = Path {
            qpn: OURS,
            service,
            mtu,
            source: gid(1),
            dest: gid(2),
            traffic_class: 0,
            hop_limit: 1,
            flow_label: 0,
        };
        self.wire.routed(&path);
    }

    fn seen(&self) -> Vec<Seen> {
        let bytes = fs::read(&self.file).unwrap();
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let (mut at, mut seen) = (0, Vec::new());
        while at < bytes.len() {
            if word(at) == 6 {
                let kept = word(at + 20) as usize;
                let frame = &bytes[at + 28..at + 28 + kept];
                let options = at + 28 + kept.next_multiple_of(4);
                if kept == word(at + 24) as usize {
                    wire::roce::Repr::read(frame).expect("a frame that a receiver takes");
                }
                let bth = &frame[14 + 20 + 8..];
                let pad = usize::from(bth[1] >> 4 & 3);
                seen.push(Seen {
                    opcode: bth[0],
                    psn: u32::from_be_bytes([0, bth[9], bth[10], bth[11]]),
                    rest: bth[12..bth.len() - 4 - pad].to_vec(),
                    outbound: word(options + 4) == 2,
                    comment: word(options + 8) != 0,
                });
            }
            at += word(at + 4) as usize;
        }
        seen
    }

    fn shapes(&self) -> Vec<(u8, u32, usize)> {
        self.seen().iter().map(|seen| (seen.opcode, seen.psn, seen.rest.len())).collect()
    }

    fn send(&mut self, packet: &Packet, prefix: &[u8], spans: &[Span]) {
        assert_eq!(self.wire.send(LINK, packet, Payload { prefix, spans }), Ok(()));
    }

    fn receive(&mut self, packet: Packet, payload: &[u8]) {
        self.wire.coming.push_back((packet, payload.to_vec()));
        assert!(self.wire.peek(LINK).is_some());
        self.wire.release(LINK);
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

fn packet(op: PacketOp, flags: u8, len: u32) -> Packet {
    Packet { flags, len, dma_len: len, ..Packet::new(op, THEIRS, OURS, Psn::new(0xff_ffff)) }
}

fn span(addr: u64, len: u32) -> Span {
    Span { addr, len, guarded: false }
}

/// The payload of a packet by reference, for these pieces.
fn list(spans: &[Span]) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    for span in spans {
        bytes.extend(span.addr.to_le_bytes());
        bytes.extend(span.len.to_le_bytes());
        bytes.extend([0; 4]);
    }
    bytes
}

const WHOLE: u8 = flag::FIRST | flag::LAST;

#[test]
fn messages_are_cut_into_packets_of_the_mtu() {
    let mut bench = Bench::new("mtu");
    bench.connect(QpType::Rc, 256);
    // The payload begins with bytes of its own, then has two pieces of memory.
    bench.send(&packet(PacketOp::Send, WHOLE, 600), &[7; 100], &[span(0, 250), span(1000, 250)]);
    assert_eq!(bench.shapes(), [(0, 0xff_ffff, 256), (1, 0, 256), (2, 1, 88)]);
    let whole: Vec<u8> = bench.seen().into_iter().flat_map(|seen| seen.rest).collect();
    let memory = bench.wire.memory.borrow().clone();
    assert_eq!(whole, [&[7; 100], &memory[..250], &memory[1000..1250]].concat());
}

#[test]
fn segments_of_a_message_are_its_parts() {
    let mut bench = Bench::new("segments");
    bench.connect(QpType::Uc, 1024);
    bench.send(&packet(PacketOp::Write, flag::FIRST, 2048), &[], &[span(0, 2048)]);
    let mut last = packet(PacketOp::Write, flag::LAST | flag::IMM, 1);
    last.psn = Psn::new(1);
    bench.send(&last, &[], &[span(0, 1)]);
    assert_eq!(bench.shapes(), [(0x26, 0xff_ffff, 1040), (0x27, 0, 1024), (0x29, 1, 5)]);
}

#[test]
fn data_by_reference_are_there() {
    let mut bench = Bench::new("reference");
    bench.connect(QpType::Rc, 4096);
    let spans = [span(10, 20), span(100, 30)];
    bench.send(&packet(PacketOp::Send, WHOLE | flag::BY_REF, 50), &list(&spans), &[]);
    // A READ response whose data were put to their place just before.
    let ticket = wire::TicketRef { addr: 0, value: 0 };
    bench.wire.push(LINK, ticket, &spans, &[]).unwrap();
    bench.send(&packet(PacketOp::ReadResponse, WHOLE | flag::BY_REF, 50), &[], &[]);
    let memory = bench.wire.memory.borrow().clone();
    let data = [&memory[10..30], &memory[100..130]].concat();
    let seen = bench.seen();
    assert_eq!(seen[0].rest, data);
    assert_eq!((seen[1].opcode, &seen[1].rest[4..]), (0x10, &data[..]));
    assert!(seen.iter().all(|seen| seen.outbound && !seen.comment));
}

#[test]
fn memory_that_is_not_there_is_zeros() {
    let mut bench = Bench::new("fault");
    bench.connect(QpType::Rc, 4096);
    bench.send(&packet(PacketOp::Send, WHOLE | flag::BY_REF, 8), &list(&[span(1 << 40, 8)]), &[]);
    let seen = bench.seen();
    assert_eq!((&seen[0].rest[..], seen[0].comment), (&[0; 8][..], true));
}

#[test]
fn a_datagram_to_a_group_is_there_once() {
    let mut bench = Bench::new("group");
    bench.connect(QpType::Ud, 4096);
    let mut group = packet(PacketOp::Datagram, WHOLE, 2);
    group.dst = Qpn::MULTICAST;
    let gids: Vec<u8> =
        [1, 2].iter().flat_map(|n| Gid::from_ip(std::net::Ipv4Addr::new(224, 0, 0, *n).into()).0).collect();
    let payload = [&gids[..], b"ab"].concat();
    for _ in 0..3 {
        bench.send(&group, &payload, &[]);
    }
    group.psn = Psn::new(0);
    bench.send(&group, &payload, &[]);
    assert_eq!(bench.shapes(), [(0x64, 0xff_ffff, 10), (0x64, 0, 10)]);
    assert_eq!(&bench.seen()[0].rest[8..], b"ab");
    assert_eq!(bench.wire.sent.len(), 4);
}

#[test]
fn what_finds_no_room_is_not_there() {
    let mut bench = Bench::new("full");
    bench.connect(QpType::Rc, 4096);
    bench.wire.room = Some(0);
    let sent = bench.wire.send(LINK, &packet(PacketOp::Send, WHOLE, 0), Payload::default());
    assert_eq!(sent, Err(SendError::Full));
    assert_eq!(bench.seen(), []);
}

#[test]
fn what_the_sender_does_not_write_down_the_receiver_does() {
    let mut bench = Bench::new("received");
    bench.connect(QpType::Rc, 256);
    let mut coming = packet(PacketOp::Send, WHOLE, 300);
    (coming.src, coming.dst) = (THEIRS, OURS);
    // A packet of this process, and one of a process that has not named its device: the sender captures them.
    for peer in [Some(OWN_DEVICE), None] {
        bench.wire.peer = peer;
        bench.receive(coming, &[5; 300]);
    }
    assert_eq!(bench.seen(), []);
    bench.wire.peer = Some([9; 16]);
    bench.receive(coming, &[5; 300]);
    assert_eq!(bench.shapes(), [(0, 0xff_ffff, 256), (2, 0, 44)]);
    assert!(bench.seen().iter().all(|seen| !seen.outbound && seen.rest.iter().all(|byte| *byte == 5)));
    // An atomic's result has no payload, and a length.
    let mut result = packet(PacketOp::AtomicAck, WHOLE, 8);
    (result.src, result.dst) = (THEIRS, OURS);
    bench.receive(result, &[]);
    assert_eq!(bench.shapes()[2], (0x12, 0xff_ffff, 12));
}

#[test]
fn what_a_stranger_says_of_lengths_is_not_believed() {
    let mut bench = Bench::new("hostile");
    bench.connect(QpType::Rc, 256);
    bench.wire.peer = Some([9; 16]);
    for op in 0..=10 {
        let op = PacketOp::from_raw(op).unwrap();
        for flags in [WHOLE, WHOLE | flag::BY_REF, flag::XRC | flag::INV | flag::IMM, 0xff] {
            let mut coming = packet(op, flags, u32::MAX);
            (coming.src, coming.dst, coming.dma_len, coming.syndrome) = (THEIRS, OURS, u32::MAX, 0xff);
            for len in [0, 1, 31, 33] {
                let before = fs::metadata(&bench.file).unwrap().len();
                bench.receive(coming, &vec![0; len]);
                let more = fs::metadata(&bench.file).unwrap().len() - before;
                assert!(more < 3 * u64::from(LONGEST_REFERENCE), "{op:?} {flags:#x} {len}: {more} bytes");
            }
        }
    }
}

#[test]
fn single_copies_stay_as_they_are() {
    let bench = Bench::new("caps");
    assert!(matches!(bench.wire.caps(LINK), LinkCaps { single_copy: Some(_), .. }));
}
