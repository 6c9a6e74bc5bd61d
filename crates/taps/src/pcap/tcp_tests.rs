//! Conversations of two processes that write to one file, or of one that writes alone.

use std::fs;
use std::path::PathBuf;

use super::*;

/// A file that is removed at the end.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("softrnic-pcap-{}-tcp-{name}", std::process::id()));
        let _ = fs::remove_file(&path);
        Temporary(path)
    }

    fn pcap(&self, device: u8) -> Pcap {
        Pcap::new(self.0.clone(), 0, "softiw0", &[device; 16]).unwrap()
    }

    /// The frames: who sends, flags, sequence and acknowledgment number from the SYN on, data. Checksums are verified.
    fn frames(&self) -> Vec<(bool, u8, u32, u32, Vec<u8>)> {
        let reader = self.pcap(99);
        let capture = reader.capture.as_ref().unwrap();
        let mut all = Vec::new();
        let bytes = fs::read(&self.0).unwrap();
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let mut at = 0;
        while at < bytes.len() {
            if word(at) == pcapng::PACKET {
                let frame = &bytes[at + 28..at + 28 + word(at + 20) as usize];
                let is_v4 = frame[12..14] == [8, 0];
                let segment = &frame[if is_v4 { 34 } else { 54 }..];
                let (tcp, rest) = tcp::Repr::read(segment).unwrap();
                let (from, to) = if is_v4 { (26, 30) } else { (22, 38) };
                let len = if is_v4 { 4 } else { 16 };
                let sum = wire::checksum::Sum::default().bytes(&frame[from..from + len]).bytes(&frame[to..to + len]);
                let sum = sum.word(u16::from(tcp::PROTOCOL)).word(segment.len() as u16).bytes(segment);
                assert_eq!(sum.finish(), 0, "a checksum");
                let is_active = tcp.dest == PASSIVE;
                let ends = if is_v4 { ends(false) } else { ends(true) };
                let (ours, theirs) = if is_active { ends } else { (ends.1, ends.0) };
                let relative = |number: u32, first: u32| number.wrapping_sub(first);
                let acknowledged = if tcp.flags & flag::ACK == 0 {
                    0
                } else {
                    relative(tcp.acknowledgment, first_number(theirs, ours))
                };
                let sequence = relative(tcp.sequence, first_number(ours, theirs));
                let data = rest[usize::from(tcp.option_words) * 4..].to_vec();
                all.push((is_active, tcp.flags, sequence, acknowledged, data));
            }
            at += word(at + 4) as usize;
        }
        let mut seen = 0;
        capture.packets(0, |frame| {
            assert!(key_of(frame).is_some());
            seen += 1;
        });
        assert_eq!(seen, all.len(), "the search finds every packet");
        all
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

const PASSIVE: u16 = 7174;

/// The ends: the one that connects, and the one that accepts.
fn ends(v6: bool) -> (SocketAddr, SocketAddr) {
    let ip = |last: u16| if v6 { format!("[fd77::{last}]") } else { format!("10.0.0.{last}") };
    (format!("{}:50000", ip(2)).parse().unwrap(), format!("{}:{PASSIVE}", ip(1)).parse().unwrap())
}

const SYN: u8 = flag::SYN;
const SYN_ACK: u8 = flag::SYN | flag::ACK;
const ACK: u8 = flag::ACK;
const DATA: u8 = flag::ACK | flag::PSH;
const FIN: u8 = flag::ACK | flag::FIN;

/// What both captures of one exchange show.
fn exchange(v6: bool) -> Vec<(bool, u8, u32, u32, Vec<u8>)> {
    let long = vec![7; if v6 { 1428 } else { 1448 }];
    vec![
        (true, SYN, 0, 0, vec![]),
        (false, SYN_ACK, 0, 1, vec![]),
        (true, ACK, 1, 1, vec![]),
        (true, DATA, 1, 1, b"request".to_vec()),
        (false, DATA, 1, 8, b"reply".to_vec()),
        (true, DATA, 8, 6, long.clone()),
        (true, DATA, 8 + long.len() as u32, 6, long.clone()),
        (true, DATA, 8 + 2 * long.len() as u32, 6, vec![7; 3000 - 2 * long.len()]),
        (false, FIN, 6, 3008, vec![]),
        (true, FIN, 3008, 7, vec![]),
    ]
}

/// Runs the exchange; each side has a capture, or none.
fn run(mut active: Option<Pcap>, mut passive: Option<Pcap>, v6: bool) {
    let (a, b) = ends(v6);
    let mut one = active.as_mut().map(|pcap| pcap.converse(a, b, true));
    let mut from_a = |one: &mut Option<Conversation>, two: &mut Option<Conversation>, bytes: &[u8]| {
        if let (Some(pcap), Some(one)) = (&mut active, one) {
            pcap.says(one, bytes, None);
        }
        if let Some(pcap) = &mut passive {
            let two = two.get_or_insert_with(|| pcap.converse(b, a, false));
            pcap.hears(two, bytes);
        }
    };
    let mut two = None;
    from_a(&mut one, &mut two, b"request");
    if let (Some(pcap), Some(two)) = (&mut passive, &mut two) {
        pcap.says(two, b"reply", None);
    }
    if let (Some(pcap), Some(one)) = (&mut active, &mut one) {
        pcap.hears(one, b"reply");
        pcap.says(one, &[7; 3000], None);
    }
    if let (Some(pcap), Some(two)) = (&mut passive, &mut two) {
        pcap.hears(two, &[7; 3000]);
        pcap.hangs_up(two, true, false);
    }
    if let (Some(pcap), Some(one)) = (&mut active, &mut one) {
        pcap.hangs_up(one, false, false);
        pcap.hangs_up(one, true, false);
        pcap.hangs_up(one, true, false);
    }
    if let (Some(pcap), Some(two)) = (&mut passive, &mut two) {
        pcap.hangs_up(two, false, false);
    }
}

#[test]
fn every_byte_is_there_once_whoever_captures() {
    for v6 in [false, true] {
        for (name, sides) in [("both", [1, 2]), ("active", [1, 0]), ("passive", [0, 2])] {
            let file = Temporary::new(&format!("{name}{v6}"));
            let [active, passive] = sides.map(|device| (device > 0).then(|| file.pcap(device)));
            run(active, passive, v6);
            assert_eq!(file.frames(), exchange(v6), "{name}, IPv6: {v6}");
        }
    }
}

#[test]
fn ports_are_used_again() {
    let file = Temporary::new("again");
    let (a, b) = ends(false);
    let mut passive = file.pcap(2);
    // The first peer writes to the file, the second has the same port, and does not.
    let _ = file.pcap(1).converse(a, b, true);
    assert_eq!(passive.converse(b, a, false).peer_writes, Some(true));
    assert_eq!(passive.converse(b, a, false).peer_writes, Some(false));
    let flags: Vec<u8> = file.frames().iter().map(|frame| frame.1).collect();
    assert_eq!(flags, [SYN, SYN_ACK, ACK, SYN, SYN_ACK, ACK]);
}

#[test]
fn a_reset_takes_no_number() {
    let file = Temporary::new("reset");
    let (a, b) = ends(false);
    let mut pcap = file.pcap(1);
    let mut conversation = pcap.converse(a, b, true);
    pcap.hangs_up(&mut conversation, true, true);
    pcap.says(&mut conversation, b"x", Some("why"));
    let frames = file.frames();
    assert_eq!(frames[3], (true, flag::ACK | flag::RST, 1, 1, vec![]));
    assert_eq!(frames[4], (true, DATA, 1, 1, b"x".to_vec()));
}
