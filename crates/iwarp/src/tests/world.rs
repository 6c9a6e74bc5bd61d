//! Two endpoints, a TCP between them that loses, delays, doubles and reorders, and a clock.

use std::collections::{BTreeMap, VecDeque};
use std::vec::Vec;

use verbs::RKey;
use wire::rdmap::read_request;

use super::memory::{Memory, Region};
use super::{Gather, Random};
use crate::Nanos;
use crate::mpa::initiator::Answer;
use crate::mpa::{Agreed, Failure, Initiator, Responder, Wishes};
use crate::rdmap::{Config, Delivery, Refused, Stream, Work};

/// The region that the peer writes, from offset [`BASE`] on.
pub(crate) const WRITTEN: u32 = 0x7700;
/// The region that the peer reads.
pub(crate) const SOURCE: u32 = 0x3300;
/// The region into which READs go.
pub(crate) const SINK: u32 = 0x1100;
/// The first offset of each region.
pub(crate) const BASE: u64 = 0x10_0000;

/// A request that a program posts. Places are offsets from [`BASE`].
#[derive(Clone, Debug)]
pub(crate) enum Post {
    Send { bytes: Vec<u8>, solicited: bool },
    Write { at: u64, bytes: Vec<u8> },
    Read { sink: u64, source: u64, len: u32 },
}

/// How TCP treats what it is given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Net {
    /// One in so many segments is lost and comes again later; 0: none.
    pub(crate) lose: usize,
    /// One in so many segments comes twice.
    pub(crate) double: usize,
    /// The longest delay; those of segments differ.
    pub(crate) delay: Nanos,
    /// Segments start where FPDUs start; else they are cut anywhere.
    pub(crate) aligned: bool,
    pub(crate) emss: usize,
    /// The receiver is shown segments that came early.
    pub(crate) shows_early: bool,
    /// The receiver's TCP forgets what has been placed early.
    pub(crate) forgets: bool,
}

enum Phase {
    Asks(Initiator),
    Answers(Responder),
    Open(Stream),
    Failed(Failure),
}

/// One side.
pub(crate) struct Side {
    phase: Phase,
    config: Config,
    pub(crate) agreed: Option<Agreed>,
    pub(crate) memory: Memory,
    pub(crate) todo: VecDeque<Post>,
    owed: VecDeque<read_request::Repr>,
    payload: Vec<u8>,
    /// Deliveries that have been looked at.
    seen: usize,
    /// Bytes that TCP has, and which of them have come.
    inbound: Vec<u8>,
    got: Vec<bool>,
    contiguous: usize,
    /// Where full operation starts in the incoming stream.
    base: usize,
    sent: usize,
}

pub(crate) struct World {
    pub(crate) sides: [Side; 2],
    pub(crate) now: Nanos,
    net: Net,
    random: Random,
    /// Segments on their way: the receiving side, and the first byte of each.
    flying: BTreeMap<(Nanos, usize), (usize, usize, Vec<u8>)>,
    count: usize,
    /// Changes the segment with this number on its way.
    pub(crate) spoil: Option<usize>,
}

fn memory(random: &mut Random, len: usize) -> Memory {
    let region = |stag, bytes, writable, readable| Region { stag: RKey(stag), base: BASE, bytes, writable, readable };
    let mut memory = Memory::default();
    memory.regions.push(region(WRITTEN, std::vec![0; len], true, false));
    memory.regions.push(region(SOURCE, random.bytes(len), false, true));
    memory.regions.push(region(SINK, std::vec![0; len], false, false));
    memory
}

impl Side {
    fn new(phase: Phase, config: Config, random: &mut Random, len: usize) -> Side {
        Side {
            phase,
            config,
            agreed: None,
            memory: memory(random, len),
            todo: VecDeque::new(),
            owed: VecDeque::new(),
            payload: Vec::new(),
            seen: 0,
            inbound: Vec::new(),
            got: Vec::new(),
            contiguous: 0,
            base: 0,
            sent: 0,
        }
    }

    pub(crate) fn stream(&self) -> &Stream {
        match &self.phase {
            Phase::Open(stream) => stream,
            Phase::Failed(failure) => panic!("{failure}"),
            _ => panic!("not open"),
        }
    }

    pub(crate) fn stream_mut(&mut self) -> Option<&mut Stream> {
        match &mut self.phase {
            Phase::Open(stream) => Some(stream),
            _ => None,
        }
    }

    fn deadline(&self) -> Option<Nanos> {
        match &self.phase {
            Phase::Asks(side) => side.deadline(),
            Phase::Answers(side) => side.deadline(),
            Phase::Open(stream) => stream.deadline(),
            Phase::Failed(_) => None,
        }
    }

    fn open(&mut self, agreed: &Agreed, now: Nanos) {
        self.agreed = Some(*agreed);
        self.base = self.contiguous;
        self.phase = Phase::Open(Stream::new(agreed, &self.config, now));
    }

    /// A TCP segment.
    fn segment(&mut self, at: usize, bytes: &[u8], net: &Net) {
        let end = at + bytes.len();
        if self.inbound.len() < end {
            self.inbound.resize(end, 0);
            self.got.resize(end, false);
        }
        for (place, byte) in (at..end).zip(bytes) {
            if !self.got[place] {
                self.inbound[place] = *byte;
                self.got[place] = true;
            }
        }
        while self.got.get(self.contiguous) == Some(&true) {
            self.contiguous += 1;
        }
        if let Phase::Open(stream) = &mut self.phase
            && at > self.contiguous
            && net.shows_early
        {
            stream.input((at - self.base) as u64, bytes, &mut self.memory);
            if net.forgets {
                for placed in stream.placed() {
                    self.inbound[self.base + placed.start as usize..self.base + placed.end as usize].fill(0xee);
                }
            }
        }
    }

    /// Takes the bytes that are there in order.
    fn take(&mut self, now: Nanos, random: &mut Random) {
        match &mut self.phase {
            Phase::Asks(side) => {
                let bytes = &self.inbound[self.base..self.contiguous];
                self.base = self.contiguous;
                match side.input(bytes) {
                    Ok(Answer::Accepted(agreed)) => self.open(&agreed, now),
                    Ok(_) => {}
                    Err(failure) => self.phase = Phase::Failed(failure),
                }
            }
            Phase::Answers(side) => {
                let bytes = &self.inbound[self.base..self.contiguous];
                self.base = self.contiguous;
                match side.input(bytes) {
                    Ok(Some(_)) => {
                        self.agreed = side.accept(4, 4, b"welcome").expect("short");
                        assert!(self.agreed.is_some());
                    }
                    Ok(None) => {}
                    Err(failure) => self.phase = Phase::Failed(failure),
                }
            }
            Phase::Open(stream) => {
                while stream.end().is_none() {
                    let from = stream.position() as usize + self.base;
                    if from >= self.contiguous {
                        break;
                    }
                    if let Some((place, len)) = stream.direct()
                        && random.one_in(2)
                    {
                        let bytes = &self.inbound[from..self.contiguous.min(from + len)];
                        crate::rdmap::Target::place(&mut self.memory, place, bytes).expect("its place");
                        stream.pass(bytes.len(), |crc| crc.bytes(bytes));
                        continue;
                    }
                    let some = from + 1 + random.below(self.contiguous - from);
                    stream.input((from - self.base) as u64, &self.inbound[from..some], &mut self.memory);
                    if stream.position() as usize + self.base == from {
                        let all = &self.inbound[from..self.contiguous];
                        stream.input((from - self.base) as u64, all, &mut self.memory);
                        if stream.position() as usize + self.base == from {
                            break;
                        }
                    }
                }
            }
            Phase::Failed(_) => {}
        }
        for (delivery, _) in &self.memory.delivered[self.seen..] {
            if let Delivery::Request { request, .. } = delivery {
                self.owed.push_back(*request);
            }
        }
        self.seen = self.memory.delivered.len();
    }

    /// The output that can be sent now; each item is one frame or FPDU.
    fn output(&mut self, now: Nanos) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        match &mut self.phase {
            Phase::Asks(side) => {
                out.push(side.output().to_vec());
                side.sent(usize::MAX / 2);
            }
            Phase::Answers(side) => {
                out.push(side.output().to_vec());
                side.sent(usize::MAX / 2);
                if let Some(agreed) = self.agreed {
                    self.open(&agreed, now);
                }
            }
            _ => {}
        }
        if let Phase::Open(stream) = &mut self.phase {
            loop {
                let mut fpdu = Vec::new();
                if stream.urgent(&mut Gather { stream: &mut fpdu, payload: &[] }) {
                    out.push(fpdu);
                    continue;
                }
                if !stream.is_sending()
                    && !next(stream, &mut self.owed, &mut self.todo, &self.memory, &mut self.payload)
                {
                    break;
                }
                let payload = &self.payload[..];
                if stream.send(payload, &mut Gather { stream: &mut fpdu, payload }).is_none() {
                    break;
                }
                out.push(fpdu);
            }
        }
        out.retain(|bytes| !bytes.is_empty());
        out
    }

    pub(crate) fn is_done(&self) -> bool {
        self.todo.is_empty() && self.owed.is_empty()
    }
}

/// Starts the next message, if one may be sent: owed answers and posted work in turn.
fn next(
    stream: &mut Stream,
    owed: &mut VecDeque<read_request::Repr>,
    todo: &mut VecDeque<Post>,
    memory: &Memory,
    payload: &mut Vec<u8>,
) -> bool {
    if let Some(request) = owed.front().copied()
        && stream.start(Work::Response(request)).is_ok()
    {
        owed.pop_front();
        let from = request.source_offset.wrapping_sub(BASE) as usize;
        *payload = match request.size {
            0 => Vec::new(),
            size => memory.bytes(SOURCE)[from..from + size as usize].to_vec(),
        };
        return true;
    }
    let Some(post) = todo.front() else { return false };
    let (work, bytes) = match post {
        Post::Send { bytes, solicited } => {
            (Work::Send { len: bytes.len() as u32, solicited: *solicited, invalidate: None }, &bytes[..])
        }
        Post::Write { at, bytes } => {
            (Work::Write { stag: RKey(WRITTEN), offset: BASE + at, len: bytes.len() as u32 }, &bytes[..])
        }
        Post::Read { sink, source, len } => {
            let request = read_request::Repr {
                sink_stag: RKey(SINK),
                sink_offset: BASE + sink,
                size: *len,
                source_stag: RKey(SOURCE),
                source_offset: BASE + source,
            };
            (Work::Read(request), &[][..])
        }
    };
    match stream.start(work) {
        Ok(()) => {
            *payload = bytes.to_vec();
            todo.pop_front();
            true
        }
        Err(Refused::NotYet | Refused::Depth | Refused::Over) => false,
        Err(other) => panic!("{other:?}"),
    }
}

impl World {
    /// Two sides with regions of so many bytes.
    pub(crate) fn new(wishes: [Wishes; 2], configs: [Config; 2], net: Net, len: usize, mut random: Random) -> World {
        let [ours, theirs] = wishes;
        let asks = Phase::Asks(Initiator::new(ours, b"hello", 0).expect("short"));
        let answers = Phase::Answers(Responder::new(theirs, 0));
        let sides = [Side::new(asks, configs[0], &mut random, len), Side::new(answers, configs[1], &mut random, len)];
        World { sides, now: 0, net, random, flying: BTreeMap::new(), count: 0, spoil: None }
    }

    /// Runs until nothing is on its way.
    pub(crate) fn run(&mut self) {
        loop {
            for from in 0..2 {
                for bytes in self.sides[from].output(self.now) {
                    self.send(from, &bytes);
                }
            }
            let Some(((at, _), (to, seq, bytes))) = self.flying.pop_first() else { return };
            self.now = at;
            let side = &mut self.sides[to];
            assert!(side.deadline().is_none_or(|deadline| deadline > at), "a side has waited too long");
            side.segment(seq, &bytes, &self.net);
            side.take(self.now, &mut self.random);
        }
    }

    fn send(&mut self, from: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let most = if self.net.aligned { self.net.emss } else { 1 + self.random.below(self.net.emss) };
            let (now, later) = bytes.split_at(most.min(bytes.len()));
            let (to, seq) = (1 - from, self.sides[from].sent);
            let mut segment = now.to_vec();
            self.count += 1;
            if self.spoil == Some(self.count) {
                let at = self.random.below(segment.len());
                segment[at] ^= 1 << self.random.below(8);
            }
            let net = self.net;
            let mut arrives = self.now + 1 + self.random.number() % net.delay.max(1);
            if net.lose > 0 && self.random.one_in(net.lose) {
                arrives += 20 * net.delay;
            }
            if net.double > 0 && self.random.one_in(net.double) {
                let again = arrives + self.random.number() % net.delay.max(1);
                self.fly(again, to, seq, segment.clone());
            }
            self.fly(arrives, to, seq, segment);
            self.sides[from].sent += now.len();
            bytes = later;
        }
    }

    fn fly(&mut self, arrives: Nanos, to: usize, seq: usize, segment: Vec<u8>) {
        let id = self.flying.len() + self.count * 1000;
        self.flying.insert((arrives, id), (to, seq, segment));
    }
}
