//! A reader of captures, which checks them against the rules of RoCEv2: an implementation of its own, without the
//! crates that write captures.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

/// A packet, from its base transport header on.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The time in nanoseconds.
    pub time: u64,
    /// The number of the process that captured it.
    pub interface: u32,
    /// The UDP source port, which stands for the sender's queue pair.
    pub port: u16,
    pub opcode: u8,
    pub dest: u32,
    pub psn: u32,
    /// The body, without padding and ICRC.
    pub body: Vec<u8>,
    pub icrc_is_right: bool,
    pub comment: Option<String>,
}

const SERVICE: u8 = 0xe0;
const UD: u8 = 0x60;
const UC: u8 = 0x20;
const XRC: u8 = 0xa0;

impl Packet {
    fn operation(&self) -> u8 {
        self.opcode & !SERVICE
    }

    pub fn service(&self) -> u8 {
        self.opcode & SERVICE
    }

    pub fn is_reliable(&self) -> bool {
        ![UC, UD].contains(&self.service())
    }

    /// True for READ responses and acknowledgements.
    pub fn is_response(&self) -> bool {
        (0x0d..=0x12).contains(&self.operation())
    }

    /// True for the last packet of a request.
    pub fn ends_message(&self) -> bool {
        !self.is_response() && ![0x00, 0x01, 0x06, 0x07].contains(&self.operation())
    }

    fn is_read(&self) -> bool {
        self.operation() == 0x0c
    }

    /// The path MTU that the packet shows: first and middle packets are as long as that, neither more nor less (IBTA
    /// vol. 1, 9.2.2).
    fn mtu(&self) -> Option<usize> {
        let extended = if self.service() == XRC && !self.is_response() { 4 } else { 0 };
        let headers = match self.operation() {
            0x00 | 0x01 | 0x07 | 0x0e => 0,
            0x06 => 16,
            0x0d => 4,
            _ => return None,
        };
        self.body.len().checked_sub(headers + extended)
    }

    /// The DMALen of a READ request.
    fn dma_len(&self) -> usize {
        let at = if self.service() == XRC { 16 } else { 12 };
        self.body.get(at..at + 4).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]) as usize)
    }

    /// The syndrome of a response: up to which PSN requests are acknowledged, or that one has to come again.
    fn syndrome(&self) -> Option<u8> {
        match self.operation() {
            0x11 | 0x12 | 0x0d | 0x0f | 0x10 => self.body.first().copied(),
            _ => None,
        }
    }

    /// The attribute and the data of a datagram of communication management (IBTA vol. 1, 13.4.2 and chapter 12),
    /// behind the DETH.
    pub fn managed(&self) -> Option<(u16, &[u8])> {
        let mad = self.body.get(8..264).filter(|mad| self.dest == 1 && self.service() == UD && mad[1] == 7)?;
        Some((u16::from_be_bytes([mad[16], mad[17]]), &mad[24..]))
    }

    fn is_nak(&self) -> bool {
        self.operation() == 0x11 && self.syndrome().is_some_and(|syndrome| syndrome >> 5 != 0)
    }
}

/// All packets of a file.
///
/// # Errors
/// The first error in the file.
pub fn read(path: &Path) -> Result<Vec<Packet>, String> {
    let bytes = fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let word = |at: usize| bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let (mut at, mut packets) = (0, Vec::new());
    while at < bytes.len() {
        let len = word(at + 4) as usize;
        if len < 12 || at + len > bytes.len() || word(at + len - 4) as usize != len {
            return Err(format!("no whole block at byte {at} of {}", bytes.len()));
        }
        if word(at) == 6 {
            let kept = word(at + 20) as usize;
            let time = u64::from(word(at + 12)) << 32 | u64::from(word(at + 16));
            let frame = bytes.get(at + 28..at + 28 + kept).ok_or("a packet is longer than its block")?;
            let comment = comment(&bytes[at + 28 + kept.next_multiple_of(4)..at + len - 4]);
            let parsed = parse(frame, word(at + 24) as usize, time, word(at + 8), comment);
            packets.push(parsed.map_err(|why| format!("packet {}: {why}", packets.len() + 1))?);
        }
        at += len;
    }
    Ok(packets)
}

fn comment(mut options: &[u8]) -> Option<String> {
    while let [a, b, c, d, rest @ ..] = options {
        let (code, len) = (u16::from_le_bytes([*a, *b]), usize::from(u16::from_le_bytes([*c, *d])));
        if code == 1 {
            return Some(String::from_utf8_lossy(rest.get(..len)?).into_owned());
        }
        options = rest.get(len.next_multiple_of(4)..)?;
    }
    None
}

fn parse(frame: &[u8], length: usize, time: u64, interface: u32, comment: Option<String>) -> Result<Packet, String> {
    if frame.len() != length {
        return Err("it is cut".to_owned());
    }
    let ip = frame.get(14..).ok_or("too short")?;
    let header = match frame[12..14] {
        [0x08, 0x00] => 20,
        [0x86, 0xdd] => 40,
        _ => return Err("neither IPv4 nor IPv6".to_owned()),
    };
    let udp = ip.get(header..).filter(|udp| udp.len() >= 24).ok_or("too short")?;
    if udp[2..4] != 4791u16.to_be_bytes() || usize::from(u16::from_be_bytes([udp[4], udp[5]])) != udp.len() {
        return Err("the UDP header is wrong".to_owned());
    }
    let (front, crc) = ip.split_at(ip.len() - 4);
    let padding = usize::from(udp[9] >> 4 & 3);
    let three = |at: usize| u32::from_be_bytes([0, udp[at], udp[at + 1], udp[at + 2]]);
    let body = udp.get(20..udp.len() - 4 - padding).ok_or("too short")?;
    Ok(Packet {
        time,
        interface,
        port: u16::from_be_bytes([udp[0], udp[1]]),
        opcode: udp[8],
        dest: three(13),
        psn: three(17),
        body: body.to_vec(),
        icrc_is_right: icrc(front, header).to_le_bytes() == crc,
        comment,
    })
}

/// The polynomial of Ethernet, for each byte.
const CRC: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The ICRC of a packet (IBTA annex A17.3.3): the fields that routers change count as ones.
fn icrc(ip: &[u8], header: usize) -> u32 {
    let changes: &[usize] = if header == 20 { &[1, 8, 10, 11] } else { &[1, 2, 3, 7] };
    let mut crc = u32::MAX;
    let masked = ip.iter().enumerate().map(|(at, byte)| match at {
        _ if changes.contains(&at) || [header + 6, header + 7, header + 12].contains(&at) => 0xff,
        0 if header == 40 => byte | 0x0f,
        _ => *byte,
    });
    for byte in [0xff; 8].into_iter().chain(masked) {
        crc = CRC[(crc as u8 ^ byte) as usize] ^ crc >> 8;
    }
    !crc
}

/// The contents of a capture.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// The requests, each counted once however often it was sent.
    pub messages: usize,
    /// The packets that were sent again.
    pub again: usize,
}

/// The shortest timeout of the programs, 4.096 us << 14: a packet that is sent again sooner was asked for.
const TIMEOUT: u64 = 4096 << 14;

/// The requests of one queue pair to another.
#[derive(Default)]
struct Flow {
    /// The number behind the highest sequence number so far.
    next: Option<u32>,
    /// The number behind the last packet: lower than `next` while packets come again.
    cursor: u32,
    /// The time at which each sequence number was last seen.
    seen: HashMap<u32, u64>,
    /// The sequence numbers from which on the responder asks for everything again.
    asked: Vec<u32>,
    /// The ends of the last message, and of the one before it.
    ends: [Option<u32>; 2],
    reliable: bool,
}

impl Flow {
    /// Take in a request of `takes` sequence numbers. True if it has not been there before.
    fn take(&mut self, packet: &Packet, takes: u32) -> Result<bool, String> {
        let psn = packet.psn;
        let next = *self.next.get_or_insert(psn);
        if self.seen.is_empty() {
            self.cursor = psn;
        }
        if before(next, psn) {
            return Err(format!("the sequence number is {psn}, {next} was never seen"));
        }
        if before(psn, self.cursor) {
            let nak = self.asked.iter().position(|asked| *asked == psn);
            let waited = self.seen.get(&psn).is_none_or(|seen| packet.time.saturating_sub(*seen) >= TIMEOUT);
            match nak {
                Some(nak) => drop(self.asked.drain(..=nak)),
                None if waited => {}
                None => return Err("it is sent again, and nothing asked for it".to_owned()),
            }
        }
        self.cursor = psn.wrapping_add(takes) & 0xff_ffff;
        if before(next, self.cursor) {
            self.next = Some(self.cursor);
        }
        self.seen.insert(psn, packet.time);
        // The start may be one that was never seen: a READ comes again from where its answers ended.
        Ok(psn == next)
    }

    /// The highest sequence number so far.
    fn last(&self) -> u32 {
        self.next.map_or(0, |next| next.wrapping_sub(1) & 0xff_ffff)
    }
}

/// True if `a` is before `b` in the circle of 24-bit numbers.
fn before(a: u32, b: u32) -> bool {
    a != b && b.wrapping_sub(a) & 0xff_ffff < 1 << 23
}

/// Check the CRCs; that the sequence numbers of each direction have no gap; that packets are sent again only when that
/// was asked for, or after a timeout; that every reliable request is acknowledged; and that there is nothing to comment
/// on.
///
/// `leaves`: the programs do not wait for their last messages to be acknowledged.
///
/// # Errors
/// The first rule that is broken.
pub fn check(packets: &[Packet], leaves: bool) -> Result<Findings, String> {
    let mtu = packets.iter().filter_map(Packet::mtu).max().unwrap_or(4096);
    if let Some(odd) = packets.iter().filter_map(Packet::mtu).find(|len| *len != mtu) {
        return Err(format!("a packet in the middle of a message has {odd} bytes, others {mtu}"));
    }
    let mut flows: BTreeMap<(u16, u32, u32), Flow> = BTreeMap::new();
    // The highest acknowledged number by the sender of the acknowledgement and its destination.
    let mut acknowledged: HashMap<(u16, u32), u32> = HashMap::new();
    let mut found = Findings::default();
    for (number, packet) in packets.iter().enumerate() {
        let wrong = |what: &str| Err(format!("packet {}: {what}", number + 1));
        if !packet.icrc_is_right {
            return wrong("the ICRC is wrong");
        }
        if packet.is_response() {
            if let Some(comment) = &packet.comment {
                return wrong(comment);
            }
            if packet.is_nak() {
                for flow in flows.iter_mut().filter(|((port, ..), _)| *port == port_of(packet.dest)) {
                    flow.1.asked.push(packet.psn);
                }
            } else {
                let last = acknowledged.entry((packet.port, packet.dest)).or_insert(packet.psn);
                if before(*last, packet.psn) {
                    *last = packet.psn;
                }
            }
            continue;
        }
        // Datagrams are numbered by their sender, whatever their destination.
        let to = if packet.service() == UD { 0 } else { packet.dest };
        // Every process has a queue pair 1.
        let of = if packet.managed().is_some() { packet.interface + 1 } else { 0 };
        let flow = flows.entry((packet.port, to, of)).or_default();
        flow.reliable = packet.is_reliable();
        let takes = if packet.is_read() { packet.dma_len().div_ceil(mtu).max(1) as u32 } else { 1 };
        match flow.take(packet, takes) {
            Ok(true) => {
                // The data of a packet that comes again, and that was copied directly the first time, may be missing.
                if let Some(comment) = &packet.comment {
                    return wrong(comment);
                }
                if packet.ends_message() {
                    found.messages += 1;
                    flow.ends = [Some(flow.last()), flow.ends[0]];
                }
            }
            Ok(false) => found.again += 1,
            Err(why) => return wrong(&why),
        }
    }
    for ((port, dest, _), flow) in flows.iter().filter(|(_, flow)| flow.reliable) {
        let Some(last) = flow.ends[usize::from(leaves)] else { continue };
        // The acknowledgements come from `dest` and go to the queue pair behind `port`.
        let ack = acknowledged.iter().find(|((from, to), _)| *from == port_of(*dest) && port_of(*to) == *port);
        match ack {
            None => return Err(format!("nothing to QP {dest:#x} is acknowledged")),
            Some((_, ack)) if before(*ack, last) => {
                return Err(format!("to QP {dest:#x} {ack} is acknowledged, and {last} was sent"));
            }
            Some(_) => {}
        }
    }
    Ok(found)
}

/// The UDP source port of a queue pair: 14 bits of a hash (docs/captures.md).
fn port_of(qpn: u32) -> u16 {
    0xc000 | (qpn.wrapping_mul(0x9e37_79b1) >> 18) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(port: u16, dest: u32, opcode: u8, psn: u32, time: u64) -> Packet {
        let body = if opcode == 0x11 { vec![0x1f, 0, 0, 1] } else { vec![7; 4] };
        Packet { time, interface: 0, port, opcode, dest, psn, body, icrc_is_right: true, comment: None }
    }

    /// SENDs from QP 1 to QP 2 with these sequence numbers, and an acknowledgement of the last.
    fn sends(psns: &[u32], ack: u32) -> Vec<Packet> {
        let mut all: Vec<Packet> = psns.iter().map(|psn| packet(port_of(1), 2, 0x04, *psn, 0)).collect();
        all.push(packet(port_of(2), 1, 0x11, ack, 1));
        all
    }

    #[test]
    fn a_right_sequence_passes() {
        let found = check(&sends(&[0xff_fffe, 0xff_ffff, 0, 1], 1), false).unwrap();
        assert_eq!(found, Findings { messages: 4, again: 0 });
    }

    #[test]
    fn what_is_wrong_is_found() {
        assert!(check(&sends(&[1, 2, 4], 4), false).unwrap_err().contains("was never seen"));
        assert!(check(&sends(&[1, 2, 3], 2), false).unwrap_err().contains("is acknowledged"));
        assert!(check(&sends(&[1, 2, 2], 2), false).unwrap_err().contains("nothing asked"));
        let mut bad = sends(&[1], 1);
        bad[0].icrc_is_right = false;
        assert!(check(&bad, false).unwrap_err().contains("ICRC"));
    }

    #[test]
    fn a_read_that_comes_again_in_part_is_no_other() {
        let mut flow = Flow::default();
        let read = |psn, time| Packet { time, ..packet(port_of(1), 2, 0x0c, psn, 0) };
        assert_eq!(flow.take(&read(10, 0), 16), Ok(true));
        assert_eq!(flow.take(&read(26, 1), 16), Ok(true));
        assert_eq!(flow.take(&read(14, TIMEOUT + 1), 12), Ok(false));
        assert_eq!(flow.take(&read(26, TIMEOUT + 2), 16), Ok(false));
        assert_eq!(flow.take(&read(42, TIMEOUT + 3), 16), Ok(true));
    }

    #[test]
    fn what_was_asked_for_may_come_again() {
        let mut all = sends(&[1, 2], 0);
        let nak = all.last_mut().unwrap();
        (nak.psn, nak.body[0]) = (1, 0x20); // RNR
        all.extend(sends(&[1, 2], 2));
        assert_eq!(check(&all, false).unwrap(), Findings { messages: 2, again: 2 });
    }

    #[test]
    fn the_crc_is_that_of_an_adapter() {
        // A congestion notification of a ConnectX-4 Lx, from its IP header on (scapy's tests have it).
        let mut ip = vec![0x45, 0xc2, 0, 0x3c, 0x71, 0x8c, 0x40, 0, 0x40, 0x11, 0x91, 0x61, 10, 0, 17, 1, 10, 0, 18, 1];
        ip.extend([0, 0, 0x12, 0xb7, 0, 0x28, 0, 0, 0x81, 0, 0xff, 0xff, 0x40, 0, 1, 0x18]);
        ip.extend([0; 20]);
        assert_eq!(icrc(&ip, 20).to_le_bytes(), [0x82, 0xfd, 0, 0x2a]);
    }
}
