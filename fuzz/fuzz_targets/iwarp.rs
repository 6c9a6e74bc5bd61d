//! A peer that speaks iWARP as it likes: frames at the start, then bytes of any kind, or segments of any kind in FPDUs
//! that are valid, in order and early, between messages of our own.
//!
//! Nothing is placed that was not permitted; nothing is placed or delivered after an error; at most one Terminate
//! message is sent.
#![no_main]

use std::ops::Range;

use iwarp::ddp::TagFault;
use iwarp::mpa::send::Sink;
use iwarp::mpa::{Agreed, Initiator, Ready, Responder, Role, Sender, Wishes};
use iwarp::rdmap::{Config, Delivery, Place, Stream, Target, Work};
use libfuzzer_sys::fuzz_target;
use verbs::RKey;
use wire::rdmap::read_request;

/// Bytes of each region and of each receive.
const LEN: u64 = 300;
const BASE: u64 = 0x100;

/// A target that holds every placement against what it has permitted.
#[derive(Default)]
struct Memory {
    /// Permitted places: region, from, to.
    permitted: Vec<(u32, u64, u64)>,
    receives: usize,
    taken: Option<u64>,
    owed: Vec<read_request::Repr>,
    terminated: usize,
    over: bool,
}

impl Memory {
    fn check(&mut self, stag: RKey, offset: u64, len: u32, region: u32) -> Result<(), TagFault> {
        assert!(!self.over && len > 0);
        let end = offset.checked_add(len.into()).ok_or(TagFault::Wrap)?;
        if stag.0 != region {
            return Err(TagFault::Invalid);
        }
        if offset < BASE || end > BASE + LEN {
            return Err(TagFault::Bounds);
        }
        self.permitted.push((stag.0, offset, end));
        Ok(())
    }
}

impl Target for Memory {
    fn check_write(&mut self, stag: RKey, offset: u64, len: u32) -> Result<(), TagFault> {
        self.check(stag, offset, len, 1)
    }

    fn check_sink(&mut self, stag: RKey, offset: u64, len: u32) -> Result<(), TagFault> {
        self.check(stag, offset, len, 2)
    }

    fn check_source(&mut self, stag: RKey, offset: u64, len: u32) -> Result<(), TagFault> {
        self.check(stag, offset, len, 3)
    }

    fn take_receive(&mut self) -> Option<u32> {
        assert!(!self.over);
        self.receives = self.receives.checked_sub(1)?;
        self.taken = Some(LEN);
        Some(LEN as u32)
    }

    fn invalidate(&mut self, stag: RKey) -> Result<(), TagFault> {
        if stag.0 == 1 { Ok(()) } else { Err(TagFault::NotInvalidated) }
    }

    fn place(&mut self, place: Place, bytes: &[u8]) -> Result<(), TagFault> {
        assert!(!self.over && !bytes.is_empty());
        match place {
            Place::Tagged { stag, offset } => {
                let end = offset + bytes.len() as u64;
                let inside = |(region, from, to): &(u32, u64, u64)| *region == stag.0 && *from <= offset && end <= *to;
                assert!(stag.0 != 3 && self.permitted.iter().any(inside), "{stag:?} {offset:#x}");
            }
            Place::Receive { offset } => {
                assert!(u64::from(offset) + bytes.len() as u64 <= self.taken.expect("a receive"));
            }
        }
        Ok(())
    }

    fn deliver(&mut self, delivery: Delivery) {
        assert!(!self.over);
        match delivery {
            Delivery::Send { len, .. } => assert!(u64::from(len) <= self.taken.take().expect("a receive")),
            Delivery::Request { request, .. } => {
                self.owed.push(request);
                assert!(self.owed.len() <= 2, "more than was agreed upon");
            }
            Delivery::Terminated(said) => {
                let _ = said.to_string();
                self.terminated += 1;
                assert_eq!(self.terminated, 1);
            }
            Delivery::Write { .. } | Delivery::Read => {}
        }
    }
}

struct Bytes(Vec<u8>);

impl Sink for Bytes {
    fn own(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn payload(&mut self, range: Range<usize>) {
        self.0.resize(self.0.len() + range.len(), 7);
    }
}

/// Takes bytes off the front.
fn take<'a>(input: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (now, later) = input.split_at(len.min(input.len()));
    *input = later;
    now
}

fn byte(input: &mut &[u8]) -> u8 {
    take(input, 1).first().copied().unwrap_or_default()
}

fuzz_target!(|input: &[u8]| {
    let mut input = input;
    let flags = byte(&mut input);
    if flags & 1 == 0 {
        start(flags, input);
    } else {
        stream(flags, input);
    }
});

/// The first bytes of a connection, cut anywhere.
fn start(flags: u8, mut input: &[u8]) {
    let mut initiator = Initiator::new(Wishes::new(Role::Initiator, 2), b"data", 0).expect("short");
    initiator.sent(usize::from(flags) * 4);
    let mut responder = Responder::new(Wishes::new(Role::Responder, 2), 0);
    let key: &[u8] = if flags & 2 == 0 { b"" } else { b"MPA ID Req Frame" };
    let key: &[u8] = if flags & 4 == 0 { key } else { b"MPA ID Rep Frame" };
    let mut all = vec![key];
    while !input.is_empty() {
        let len = byte(&mut input);
        all.push(take(&mut input, len.into()));
    }
    for piece in all {
        let _ = initiator.input(piece);
        if let Ok(Some(_)) = responder.input(piece) {
            let _ = responder.accept(1, 1, responder.private_data().to_vec().get(..300).unwrap_or_default());
            assert!(!responder.output().is_empty());
        }
        assert!(initiator.private_data().len() <= 512 && responder.private_data().len() <= 512);
    }
}

/// A connection in full operation, and the peer's next bytes.
struct Connection {
    stream: Stream,
    memory: Memory,
    /// Frames what the peer sends.
    peer: Sender,
    /// What the peer has sent.
    sent: Vec<u8>,
    terminates: usize,
}

impl Connection {
    fn note(&mut self) {
        self.memory.over = self.stream.end().is_some();
        let mut out = Bytes(Vec::new());
        let ready = self.stream.sent() == 0 && self.stream.end().is_none();
        if self.stream.urgent(&mut out) && !ready {
            self.terminates += 1;
            assert!(self.terminates == 1 && self.stream.end().is_some() && self.stream.may_send());
        }
        assert!(out.0.len() <= 2 + 18 + 54 + 3 + 4 + 8);
        assert!(self.stream.placed().count() <= 3);
    }

    /// Gives what is there in order, `some` bytes at first.
    fn give(&mut self, some: usize) {
        let Ok(from) = usize::try_from(self.stream.position()) else { return };
        let Some(rest) = self.sent.get(from..) else { return };
        if let Some((place, len)) = self.stream.direct() {
            let bytes = &rest[..len.min(some).min(rest.len())];
            if !bytes.is_empty() {
                let _ = self.memory.place(place, bytes);
                self.stream.pass(bytes.len(), |crc| crc.bytes(bytes));
            }
        } else {
            self.stream.input(from as u64, &rest[..some.min(rest.len())], &mut self.memory);
        }
        self.note();
    }
}

fn stream(flags: u8, mut input: &[u8]) {
    let more = byte(&mut input);
    let terms = Agreed {
        role: if flags & 2 == 0 { Role::Initiator } else { Role::Responder },
        crc: flags & 4 != 0,
        markers_in: flags & 8 != 0,
        markers_out: flags & 16 != 0,
        ird: 2,
        ord: 2,
        ready: [None, Some(Ready::Send), Some(Ready::Write), Some(Ready::Read)][usize::from(more & 3)]
            .filter(|_| flags & 2 == 0),
        awaits_ready: flags & 2 != 0 && more & 4 != 0,
        unmet: None,
    };
    let early_from = [0, 40, u32::MAX, u32::MAX][usize::from(more >> 3 & 3)];
    let config = Config { emss: 600, early_from, early_fpdus: 3 };
    let peer = Agreed { markers_out: terms.markers_in, ..terms };
    let mut side = Connection {
        stream: Stream::new(&terms, &config, 0),
        memory: Memory { receives: 4, ..Memory::default() },
        peer: Sender::new(&peer, 600),
        sent: Vec::new(),
        terminates: 0,
    };
    side.note();
    while !input.is_empty() {
        let (what, len) = (byte(&mut input), usize::from(byte(&mut input)));
        match what & 7 {
            // Bytes of any kind.
            0 => side.sent.extend_from_slice(take(&mut input, len)),
            // A segment of any kind in a valid FPDU.
            1 => {
                let segment = take(&mut input, len);
                segment_of(&mut side, segment, 0);
            }
            // A tagged segment to a region, and an untagged one to a queue.
            2 | 3 => {
                let (upper, place) = (0x40 | what >> 4, byte(&mut input));
                let mut segment = if what & 7 == 2 {
                    let header = [0xc1 & !(place & 0x40), upper, 0, 0, 0, 1 + (place & 3), 0, 0, 0, 0, 0, 0, 1];
                    [&header[..], &[place >> 2]].concat()
                } else {
                    let header = [0x41 & !(place & 0x40), upper, 0, 0, 0, 1, 0, 0, 0, place & 3, 0, 0, 0];
                    [&header[..], &[1 + (place >> 3 & 3), 0, 0, 0, 0]].concat()
                };
                segment.extend_from_slice(take(&mut input, len));
                segment_of(&mut side, &segment, usize::from(what >> 3 & 1) * len);
            }
            4 => side.give(len),
            5 => side.give(usize::MAX),
            // What was sent last comes early, or again.
            6 => {
                let from = side.sent.len().saturating_sub(len * 4);
                let bytes = side.sent[from..].to_vec();
                side.stream.input(from as u64, &bytes, &mut side.memory);
                side.note();
            }
            // A message of our own.
            _ => {
                let request = read_request::Repr {
                    sink_stag: RKey(2),
                    sink_offset: BASE,
                    size: len as u32,
                    source_stag: RKey(1),
                    source_offset: 0,
                };
                let owed = side.memory.owed.first().copied();
                let work = match (what >> 3 & 3, owed) {
                    (0, _) => Work::Read(request),
                    (1, Some(request)) => Work::Response(request),
                    (2, _) => Work::Write { stag: RKey(9), offset: len as u64, len: len as u32 },
                    _ => Work::Send { len: len as u32, solicited: true, invalidate: None },
                };
                if side.stream.start(work).is_ok() {
                    if let Work::Response(_) = work {
                        side.memory.owed.remove(0);
                    }
                    let payload = [7; LEN as usize + 300];
                    let mut out = Bytes(Vec::new());
                    while side.stream.send(&payload[..], &mut out) == Some(false) {}
                }
                side.note();
            }
        }
    }
    side.give(usize::MAX);
    side.give(usize::MAX);
    side.stream.timeout(u64::MAX);
    side.stream.closed(0);
    assert!(side.stream.end().is_some());
}

/// Sends a segment as the peer does, with so many bytes of zeros behind it.
fn segment_of(side: &mut Connection, segment: &[u8], zeros: usize) {
    // The peer's own stream is behind if bytes of any kind were sent: from then on nothing is valid.
    let mut out = Bytes(Vec::new());
    let whole = [segment, &vec![0; zeros]].concat();
    if side.peer.frame(&whole, &[][..], 0..0, &mut out).is_ok() {
        side.sent.append(&mut out.0);
    }
}
