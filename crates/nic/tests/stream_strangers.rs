//! Peers of iWARP connections that send what they must not: each gets the Terminate message that the specifications
//! name (RFC 5040, section 7.2; RFC 5041, section 7.2; RFC 5044, section 8), its connection ends, and others go on.

mod stream_side;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use iwarp::mpa::Role;
use parking_lot::Mutex;
use stream_side::{ALL, LONG, Side, nic};
use verbs::*;

/// The faults of this process.
const FAULTS: Option<&str> = None;

/// One test at a time: they look at what the whole process has.
static ALONE: Mutex<()> = Mutex::new(());

/// Bytes of the region that peers may use.
const LEN: usize = 8;

/// The WRITE of no bytes with which a peer says that it is ready.
const READY: &str = "c140 00000001 0000000000000000";

/// A layer, a type and a code.
type Terminate = (u8, u8, u8);

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// The CRC32c of some bytes, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}

/// The FPDU of a segment (RFC 5044, section 4.1).
fn fpdu(segment: &[u8]) -> Vec<u8> {
    let mut bytes = (segment.len() as u16).to_be_bytes().to_vec();
    bytes.extend(segment);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let crc = crc32c(&bytes);
    bytes.extend(crc.to_le_bytes());
    bytes
}

/// Memory that lives for ever, registered.
fn region(pd: PdId, len: usize, access: Access) -> (MrId, Sge, RKey) {
    let memory = Box::leak(vec![0u8; len].into_boxed_slice());
    let addr = memory.as_ptr().expose_provenance() as u64;
    let (mr, lkey, rkey) = nic().reg_mr(pd, addr, len as u64, addr, access).unwrap();
    (mr, Sge { addr, length: len as u32, lkey }, rkey)
}

/// A connection of which a test has one end, without a device. It has said that it is ready.
fn stranger(side: &Side, crc: bool) -> (QpId, TcpStream) {
    let mut peer = TcpStream::connect(side.listener.local_addr().unwrap()).unwrap();
    let passive = side.listener.accept().unwrap().0;
    let qp = side.one(passive, Role::Responder, crc);
    peer.write_all(&fpdu(&hex(READY))).unwrap();
    peer.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    (qp, peer)
}

/// What comes over the connection until its end, while the device runs.
fn rest(peer: &mut TcpStream) -> Vec<u8> {
    let (mut all, mut bytes, begun) = (Vec::new(), [0; 4096], Instant::now());
    loop {
        match peer.read(&mut bytes) {
            Ok(0) => return all,
            Ok(n) => all.extend(&bytes[..n]),
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => return all, // RST
        }
        assert!(begun.elapsed() < LONG, "the connection does not end: {all:02x?}");
    }
}

/// The Terminate message in a stream of FPDUs (RFC 5040, section 4.8).
fn terminate(mut stream: &[u8]) -> Option<Terminate> {
    while let Some((length, behind)) = stream.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes(*length));
        let segment = behind.get(..length)?;
        if segment.starts_with(&hex("4147 00000000 00000002 00000001 00000000")) {
            return Some((segment[18] >> 4, segment[18] & 15, segment[19]));
        }
        stream = stream.get((2 + length).next_multiple_of(4) + 4..)?;
    }
    None
}

/// Two queue pairs that have nothing to do with strangers.
struct Others {
    pair: [QpId; 2],
    source: Sge,
    target: Sge,
}

impl Others {
    fn new(side: &Side) -> Others {
        let sge = || region(side.pd, 100, ALL).1;
        Others { pair: side.pair(true), source: sge(), target: sge() }
    }

    /// A message goes from one to the other.
    fn go_on(&self, side: &Side, what: &str) {
        side.recv(self.pair[1], 14, self.target);
        side.send(self.pair[0], 15, self.source);
        assert_eq!(side.completions(2), [(14, WcStatus::Success), (15, WcStatus::Success)], "behind {what}");
    }
}

/// The bytes of a stranger behind its first FPDU, and what it gets.
struct Case {
    what: &'static str,
    bytes: Vec<u8>,
    answer: Option<Terminate>,
    /// The receive that is posted is done before.
    received: bool,
}

/// Each thing that a stranger may say wrongly, about the regions of the device.
fn cases(side: &Side) -> Vec<Case> {
    let other_pd = nic().lock().alloc_pd(side.context.id).unwrap();
    let (_, open, key) = region(side.pd, LEN, ALL);
    let (_, closed, closed_key) = region(side.pd, LEN, Access::LOCAL_WRITE);
    let (_, foreign, foreign_key) = region(other_pd, LEN, ALL);
    let (gone, old, old_key) = region(side.pd, LEN, ALL);
    nic().dereg_mr(gone).unwrap();
    let mut all = Vec::new();
    let mut case = |what, segments: &[String], answer: Terminate, received| {
        let bytes = segments.iter().flat_map(|segment| fpdu(&hex(segment))).collect();
        all.push(Case { what, bytes, answer: Some(answer), received });
    };
    let write = |key: RKey, at: u64| vec![format!("c140 {:08x} {at:016x} 6162636465666768", key.0)];
    case("WRITE, a guessed STag", &write(RKey(0xdead_be00), open.addr), (1, 1, 0), false);
    case("WRITE, the STag with another key", &write(RKey(key.0 ^ 1), open.addr), (1, 1, 0), false);
    case("WRITE, a stale STag", &write(old_key, old.addr), (1, 1, 0), false);
    case("WRITE, a STag of another domain", &write(foreign_key, foreign.addr), (1, 1, 2), false);
    case("WRITE, no right", &write(closed_key, closed.addr), (1, 1, 0), false);
    case("WRITE, beyond the end by one", &write(key, open.addr + 1), (1, 1, 1), false);
    case("WRITE, before the start by one", &write(key, open.addr - 1), (1, 1, 1), false);
    case("WRITE, an offset that wraps", &write(key, u64::MAX - 3), (1, 1, 3), false);
    let read = |key: RKey, at: u64, len: u32| {
        let sink = "00000011 0000000000000022";
        vec![format!("4141 00000000 00000001 00000001 00000000 {sink} {len:08x} {:08x} {at:016x}", key.0)]
    };
    case("READ, a guessed STag", &read(RKey(0xdead_be00), open.addr, 8), (0, 1, 0), false);
    case("READ, a stale STag", &read(old_key, old.addr, 8), (0, 1, 0), false);
    case("READ, beyond the end by one", &read(key, open.addr, 9), (0, 1, 1), false);
    case("READ, no right", &read(closed_key, closed.addr, 8), (0, 1, 2), false);
    case("READ, a STag of another domain", &read(foreign_key, foreign.addr, 8), (0, 1, 3), false);
    case("READ, an offset that wraps", &read(key, u64::MAX - 3, 8), (0, 1, 4), false);
    let send = |rest: &str| vec![format!("4143 00000000 {rest}")];
    case("SEND, a queue that is not there", &send("00000007 00000001 00000000 61"), (1, 2, 1), false);
    case("SEND, the next but one", &send("00000000 00000002 00000000 61"), (1, 2, 3), false);
    case("SEND, an offset", &send("00000000 00000001 00000001 61"), (1, 2, 4), false);
    case("SEND, too long by one", &send("00000000 00000001 00000000 616263646566676869"), (1, 2, 5), false);
    let two = [send("00000000 00000001 00000000 61"), send("00000000 00000002 00000000 61")].concat();
    case("SEND without a receive", &two, (1, 2, 2), true);
    let invalidate = |key: RKey| vec![format!("4144 {:08x} 00000000 00000001 00000000 61", key.0)];
    case("SEND, invalidation of a guessed STag", &invalidate(RKey(0xdead_be00)), (0, 1, 9), false);
    case("SEND, invalidation of a STag of another domain", &invalidate(foreign_key), (0, 1, 9), false);
    let version = |ddp: &str, rest: &str| vec![format!("{ddp} {rest}")];
    case("tagged, another DDP", &version("c240", "00000077 0000000000001000 61"), (1, 1, 4), false);
    case("untagged, another DDP", &version("4043", "00000000 00000000 00000001 00000000 61"), (1, 2, 6), false);
    case("another RDMAP", &version("c180", "00000077 0000000000001000 61"), (0, 2, 5), false);
    case("an unknown opcode", &version("414f", "00000000 00000000 00000001 00000000 61"), (0, 2, 6), false);
    case("an answer to no READ", &version("c142", "00000011 0000000000000022 61"), (0, 2, 6), false);
    case("a segment without a header", &["41".to_owned()], (1, 0, 0), false);
    case("a segment of no bytes", &[String::new()], (1, 0, 0), false);
    // Lengths that lie: with CRCs, the bytes at the place of the CRC are others.
    let good = || fpdu(&hex(&write(key, open.addr)[0]));
    let mut wrong = |what, at: usize, bit: u8| {
        let mut bytes = [good(), good()].concat();
        bytes[at] ^= bit;
        all.push(Case { what, bytes, answer: Some((2, 0, 2)), received: false });
    };
    wrong("a wrong bit of the payload", 20, 1);
    wrong("a wrong bit of the CRC", good().len() - 1, 0x80);
    wrong("a length that is too short", 1, 0x10);
    wrong("a length that is too long", 1, 0x08);
    all.push(Case { what: "the start of an FPDU", bytes: good()[..13].to_vec(), answer: None, received: false });
    all
}

#[test]
fn each_error_has_its_terminate_message() {
    let _alone = ALONE.lock();
    let side = Side::new();
    let others = Others::new(&side);
    let target = region(side.pd, LEN, ALL).1;
    for Case { what, bytes, answer, received } in cases(&side) {
        let (qp, mut peer) = stranger(&side, true);
        side.recv(qp, 1, target);
        peer.write_all(&bytes).unwrap();
        if answer.is_none() {
            peer.shutdown(Shutdown::Write).unwrap();
        }
        let said = rest(&mut peer);
        assert_eq!(terminate(&said), answer, "{what}: {said:02x?}");
        let status = if received { WcStatus::Success } else { WcStatus::WrFlushErr };
        assert_eq!(side.completions(1), [(1, status)], "{what}");
        others.go_on(&side, what);
    }
}

/// Set when this goes, so that a thread that waits for it ends with a test that fails, too.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A peer that sends messages of no bytes without end takes its turns only: messages of others go meanwhile.
#[test]
fn a_flood_of_empty_messages() {
    const MESSAGES: usize = 30;
    let _alone = ALONE.lock();
    let side = Side::new();
    let others = Others::new(&side);
    let (_qp, mut peer) = stranger(&side, true);
    peer.set_write_timeout(Some(LONG)).unwrap();
    let port = peer.local_addr().unwrap().to_string();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        scope.spawn(|| {
            let flood = fpdu(&hex(READY)).repeat(1000);
            while !is_over.load(Ordering::Relaxed) {
                peer.write_all(&flood).unwrap();
            }
            drop(peer);
        });
        let come = || {
            let streams = nic().report().adapter.streams;
            streams.iter().find(|stream| stream.peer == port).map_or(0, |stream| stream.fpdus_in)
        };
        let begun = Instant::now();
        while come() < 1000 {
            nic().poll_cq(side.cq, 1, |_, _| ());
            assert!(begun.elapsed() < LONG);
        }
        let before = come();
        let mut worst = Duration::ZERO;
        let (mut messages, begun) = (0, Instant::now());
        // The thread that floods may not run for a while: messages go until more of the flood has come.
        while messages < MESSAGES || come() == before {
            let sent = Instant::now();
            others.go_on(&side, "a flood");
            worst = worst.max(sent.elapsed());
            messages += 1;
            assert!(begun.elapsed() < LONG, "the flood does not go on");
        }
        println!("the longest of {messages} took {worst:?}; {} empty ones came", come() - before);
        drop(over);
        let begun = Instant::now();
        // The peer's thread may wait for TCP to have room.
        while !nic().report().adapter.streams.iter().all(|stream| stream.peer != port) {
            nic().poll_cq(side.cq, 1, |_, _| ());
            assert!(begun.elapsed() < LONG);
        }
    });
}

/// A peer that reads memory again and again and does not take the answers: what waits for it is bounded, and one READ
/// more than agreed upon ends the connection (RFC 5040, section 6.1).
#[test]
fn answers_that_are_not_taken() {
    const LARGE: usize = 16 << 20;
    let _alone = ALONE.lock();
    let side = Side::new();
    let others = Others::new(&side);
    let (_, sge, key) = region(side.pd, LARGE, ALL);
    let target = region(side.pd, LEN, ALL).1;
    let (qp, mut peer) = stranger(&side, false);
    side.recv(qp, 1, target);
    let port = peer.local_addr().unwrap().to_string();
    let read = |message: u32| {
        let (sink, at) = ("00000011 0000000000000022", sge.addr);
        let text = format!("4141 00000000 00000001 {message:08x} 00000000 {sink} {LARGE:08x} {:08x} {at:016x}", key.0);
        fpdu(&hex(&text))
    };
    peer.write_all(&read(1)).unwrap();
    let begun = Instant::now();
    loop {
        nic().poll_cq(side.cq, 1, |_, wc| panic!("{wc:?}"));
        let streams = nic().report().adapter.streams;
        let stream = streams.iter().find(|stream| stream.peer == port).expect("the connection");
        assert!(stream.unsent <= 512 << 10, "{stream:?}");
        if stream.full_ns.is_some_and(|full| full > 50_000_000) {
            break;
        }
        assert!(begun.elapsed() < LONG, "{stream:?}");
    }
    others.go_on(&side, "answers that are not taken");
    peer.write_all(&read(2)).unwrap();
    assert_eq!(side.completions(1), [(1, WcStatus::WrFlushErr)]);
    others.go_on(&side, "one READ too many");
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix("kB")).unwrap();
    line.trim().parse::<u64>().unwrap() << 10
}

/// Peers that send the most of an FPDU and not the end of it: each costs less than an idle connection may.
#[test]
fn many_fpdus_that_do_not_end() {
    const PEERS: usize = 100;
    const SENT: usize = 60_000;
    let _alone = ALONE.lock();
    let side = Side::new();
    let others = Others::new(&side);
    others.go_on(&side, "nothing");
    let (_, sge, key) = region(side.pd, 1 << 16, ALL);
    let segment = hex(&format!("c140 {:08x} {:016x}", key.0, sge.addr));
    let mut start = u16::MAX.to_be_bytes().to_vec();
    start.extend(segment);
    start.resize(SENT, 7);
    let before = resident();
    let mut peers = Vec::new();
    for _ in 0..PEERS {
        let (_, mut peer) = stranger(&side, true);
        peer.write_all(&start).unwrap();
        peers.push(peer);
    }
    let ports: Vec<String> = peers.iter().map(|peer| peer.local_addr().unwrap().to_string()).collect();
    let begun = Instant::now();
    let all_came = || {
        let streams = nic().report().adapter.streams;
        let come = |port: &String| streams.iter().any(|s| s.peer == *port && s.bytes_in >= SENT as u64);
        ports.iter().all(come)
    };
    while !all_came() {
        nic().poll_cq(side.cq, 1, |_, _| ());
        assert!(begun.elapsed() < LONG, "the bytes do not come");
    }
    others.go_on(&side, "FPDUs that do not end");
    let each = resident().saturating_sub(before) / PEERS as u64;
    println!("{each} bytes for each");
    assert!(each < 64 << 10, "{each} bytes for each");
}
