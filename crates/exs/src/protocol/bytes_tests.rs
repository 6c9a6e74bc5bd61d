//! Two ends of a stream, the memory of both and a wire without loss, by seeded schedules.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::*;
use crate::protocol::{Connection, HEADER, Kind};

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 20) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Where a receive lies for the peer: its number times this. The ring is at 0.
const PLACE: u64 = 1 << 32;

enum OnWire {
    Message(Vec<u8>),
    Write { to: Remote, data: Vec<u8>, imm: u32, ends: bool },
}

struct End {
    connection: Connection,
    slots: u32,
    wire: VecDeque<OnWire>,
    ring: Vec<u8>,
    sends: HashMap<u64, Vec<u8>>,
    receives: HashMap<u64, (Vec<u8>, bool)>,
    /// Receives whose key the peer is done with.
    over: HashSet<u64>,
    /// Bytes that the program has sent, with the number of the send, and that the peer's program does not have.
    sent: VecDeque<(u64, u8)>,
    order: VecDeque<u64>,
    next: u64,
    direct: u64,
    indirect: u64,
    cancelled: u64,
    /// PONGs.
    answers: u64,
    shut: bool,
    saw_end: bool,
    reset: bool,
}

impl End {
    fn send(&mut self, data: Vec<u8>) {
        let op = self.next;
        self.next += 1;
        let buffer = Buffer { region: op, offset: 0, len: data.len() as u64 };
        match self.connection.send(Op(op), buffer, false) {
            Ok(()) => {
                self.sent.extend(data.iter().map(|byte| (op, *byte)));
                self.sends.insert(op, data);
            }
            Err(refused) => assert!(matches!(refused, Refused::Full | Refused::Shut), "{refused:?}"),
        }
    }

    fn receive(&mut self, len: usize, wait_all: bool) {
        let op = self.next;
        self.next += 1;
        let buffer = Buffer { region: op, offset: 0, len: len as u64 };
        self.receives.insert(op, (vec![0; len], wait_all));
        match self.connection.receive(Op(op), buffer, wait_all) {
            Ok(()) => self.order.push_back(op),
            Err(refused) => {
                assert_eq!(refused, Refused::Full);
                self.receives.remove(&op);
            }
        }
    }

    fn write(&mut self, op: u64, offset: usize, data: &[u8]) {
        let (memory, _) = self.receives.get_mut(&op).expect("only a pending receive is written to");
        memory[offset..][..data.len()].copy_from_slice(data);
    }
}

struct World {
    ends: [End; 2],
    random: Random,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let settings: [Settings; 2] = std::array::from_fn(|_| Settings {
            kind: Kind::Stream,
            credits: 1 + [random.below(5), random.below(20)][random.below(2) as usize] as u16,
            small: 0,
            ring: [1, 7, 64, 300][random.below(4) as usize],
        });
        let ends = [0, 1].map(|i| {
            let (ours, theirs) = (settings[i], settings[1 - i]);
            // As the peer hears them.
            let hello = Hello { settings: theirs, ring: Remote { addr: 0, rkey: 0 }, windows: false, mapped: true };
            let theirs = Hello::parse(&hello.emit()).expect("a greeting");
            let places = 1 + [random.below(6), random.below(20)][random.below(2) as usize] as usize;
            End {
                connection: Connection::new(ours, theirs, 1, places).expect("one kind"),
                slots: Connection::slots(&ours, ours.credits),
                wire: VecDeque::new(),
                ring: vec![0; ours.ring as usize],
                sends: HashMap::new(),
                receives: HashMap::new(),
                over: HashSet::new(),
                sent: VecDeque::new(),
                order: VecDeque::new(),
                next: 1,
                direct: 0,
                indirect: 0,
                cancelled: 0,
                answers: 0,
                shut: false,
                saw_end: false,
                reset: false,
            }
        });
        World { ends, random }
    }

    /// Do one output of an end; false if there is none.
    fn output(&mut self, i: usize) -> bool {
        let Some(output) = self.ends[i].connection.poll() else { return false };
        let end = &mut self.ends[i];
        match output {
            Output::Send(message, buffer) => {
                assert_eq!(buffer.is_some(), matches!(message, Message::Offer { .. }));
                let place = buffer.map(|buffer| Remote { addr: buffer.region * PLACE + buffer.offset, rkey: 1 });
                let message = place.map_or(message, |place| message.named(place));
                end.answers += u64::from(message == Message::Pong);
                end.wire.push_back(OnWire::Message(message.emit().to_vec()));
            }
            Output::Write(Write { from, to, imm, ends, .. }) => {
                let data = end.sends[&from.region][from.offset as usize..][..from.len as usize].to_vec();
                if Immediate::parse(imm).direct {
                    end.direct += from.len
                } else {
                    end.indirect += from.len
                }
                end.wire.push_back(OnWire::Write { to, data, imm, ends });
            }
            Output::CopyRing { at, to } => {
                let data = end.ring[at as usize..][..to.len as usize].to_vec();
                end.write(to.region, to.offset as usize, &data);
            }
            Output::Done(done) => self.done(i, done),
            other => panic!("{other:?} is not for a stream"),
        }
        let peer_slots = self.ends[1 - i].slots;
        assert!(self.ends[i].wire.len() as u32 <= peer_slots, "a message always finds a receive");
        true
    }

    fn done(&mut self, i: usize, Done { op: Op(op), outcome }: Done) {
        let (end, peer) = {
            let [a, b] = &mut self.ends;
            if i == 0 { (a, b) } else { (b, a) }
        };
        match outcome {
            Outcome::Sent => assert!(end.sends.remove(&op).is_some(), "one event for each operation"),
            Outcome::Cancelled if end.sends.contains_key(&op) => {
                let len = end.sends.remove(&op).expect("it is there").len();
                let before = end.sent.len();
                end.sent.retain(|(of, _)| *of != op);
                assert_eq!(end.sent.len() + len, before, "no byte of a cancelled send is transferred");
                end.cancelled += 1;
            }
            Outcome::Cancelled => {
                assert!(end.receives.remove(&op).is_some());
                end.order.retain(|other| *other != op);
                end.cancelled += 1;
            }
            Outcome::Received { len, truncated, end: at_end } => {
                assert_eq!(end.order.pop_front(), Some(op), "receives end in order");
                let (data, wait_all) = end.receives.remove(&op).expect("one event for each operation");
                assert!(!truncated && (len > 0) != at_end);
                end.over.remove(&op);
                if at_end {
                    assert!(peer.shut && peer.sent.is_empty(), "the end comes after all data");
                    end.saw_end = true;
                }
                assert!(!wait_all || len == data.len() as u64 || peer.shut, "MSG_WAITALL");
                for byte in &data[..len as usize] {
                    assert_eq!(peer.sent.pop_front().map(|(_, byte)| byte), Some(*byte));
                }
            }
            Outcome::Failed(_) => {
                assert!(end.reset, "no end of the connection was asked for");
                let known = end.sends.remove(&op).is_some() || end.receives.remove(&op).is_some();
                assert!(known, "one event for each operation");
            }
        }
    }

    /// Deliver the oldest message of an end's wire to its peer.
    fn deliver(&mut self, i: usize) -> bool {
        let Some(message) = self.ends[i].wire.pop_front() else { return false };
        let peer = &mut self.ends[1 - i];
        match message {
            OnWire::Message(bytes) => {
                let header = bytes.first_chunk::<HEADER>().expect("a header");
                let kept = peer.connection.arrived(0, header, bytes.len()).expect("the protocol is kept");
                assert!(!kept);
            }
            OnWire::Write { to, data, imm, ends } => {
                assert!(Immediate::parse(imm).direct || !ends, "the key of the ring stays");
                if Immediate::parse(imm).direct {
                    let fresh =
                        if ends { peer.over.insert(to.addr / PLACE) } else { !peer.over.contains(&(to.addr / PLACE)) };
                    assert!(fresh, "a key is used after its end");
                    peer.write(to.addr / PLACE, (to.addr % PLACE) as usize, &data);
                } else {
                    peer.ring[to.addr as usize..][..data.len()].copy_from_slice(&data);
                }
                peer.connection.transferred(imm, data.len() as u32).expect("the protocol is kept");
                self.ends[i].connection.transfers_done(1);
            }
        }
        true
    }

    fn step(&mut self, may_shut: bool) {
        let i = self.random.below(2) as usize;
        match self.random.below(16) {
            0..=2 => {
                let len = 1 + [self.random.below(9), self.random.below(400)][self.random.below(2) as usize];
                let data = (0..len).map(|_| self.random.below(256) as u8).collect();
                self.ends[i].send(data);
            }
            3..=5 => {
                let len = 1 + self.random.below(200);
                let wait_all = self.random.one_in(3);
                self.ends[i].receive(len as usize, wait_all);
            }
            6 if self.random.one_in(2) => {
                let end = &mut self.ends[i];
                let mut pending: Vec<u64> = end.sends.keys().chain(end.receives.keys()).copied().collect();
                pending.sort_unstable();
                if !pending.is_empty() {
                    let op = pending[self.random.below(pending.len() as u64) as usize];
                    end.connection.cancel(Op(op));
                }
            }
            7 if may_shut && self.random.one_in(50) => {
                self.ends[i].connection.shutdown();
                self.ends[i].shut = true;
            }
            7..=10 => {
                self.deliver(i);
            }
            11 => {
                // Whether an end runs is the pulse's test; here a peer may be slow.
                let (second, timeout) = (Duration::from_secs(1), Duration::from_secs(4));
                let _ = self.ends[i].connection.tick(second, timeout, true);
            }
            12 if self.random.one_in(2) => {
                // The wire is the same for notices: they are taken in where they were written.
                let connection = &mut self.ends[i].connection;
                if self.random.one_in(2) { connection.look() } else { connection.stop_looking() }
            }
            _ => {
                self.output(i);
            }
        }
    }

    /// Do everything that can be done without the programs.
    fn settle(&mut self) {
        loop {
            let mut moved = false;
            for i in [0, 1] {
                moved |= self.output(i) || self.deliver(i);
            }
            if !moved {
                return;
            }
        }
    }
}

/// Run a check for many seeds; a failure names the seed.
fn seeds(count: u64, check: impl Fn(u64)) {
    struct Named(u64);
    impl Drop for Named {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("seed {}", self.0);
            }
        }
    }
    for seed in 1..=count {
        let _named = Named(seed);
        check(seed);
    }
}

#[test]
fn bytes_arrive_once_and_in_order() {
    let total = std::cell::Cell::new([0u64; 4]);
    seeds(400, |seed| {
        let mut world = World::new(seed);
        for _ in 0..4000 {
            world.step(true);
        }
        for i in [0, 1] {
            world.ends[i].connection.shutdown();
            world.ends[i].shut = true;
        }
        for _ in 0..10_000 {
            world.settle();
            for end in &mut world.ends {
                if !end.saw_end {
                    end.receive(64, false);
                }
            }
            if world.ends.iter().all(|end| end.saw_end) {
                break;
            }
        }
        world.settle();
        for end in &world.ends {
            assert!(end.saw_end && end.sent.is_empty() && end.sends.is_empty(), "all bytes arrive");
            assert!(end.receives.is_empty() && end.order.is_empty(), "every operation has its event");
            assert!(end.connection.is_flushed());
        }
        let [a, b, c, d] = total.get();
        let sum = |f: fn(&End) -> u64| world.ends.iter().map(f).sum::<u64>();
        let (direct, indirect) = (sum(|end| end.direct), sum(|end| end.indirect));
        total.set([a + direct, b + indirect, c + sum(|end| end.cancelled), d + sum(|end| end.answers)]);
    });
    // The schedules reach every way.
    assert!(total.get().iter().all(|count| *count > 1000), "{:?}", total.get());
}

#[test]
fn a_reset_ends_every_operation_once() {
    seeds(400, |seed| {
        let mut world = World::new(seed);
        for _ in 0..seed * 3 {
            world.step(false);
        }
        for end in &mut world.ends {
            end.connection.reset(Reset::Peer);
            end.reset = true;
        }
        for i in [0, 1] {
            while world.output(i) {}
            // WRITEs that are under way end, with success or without, before their sends do.
            let writes = world.ends[i].wire.drain(..).filter(|on_wire| matches!(on_wire, OnWire::Write { .. })).count();
            for _ in 0..writes {
                assert!(!world.ends[i].sends.is_empty(), "a WRITE still reads its send");
                world.ends[i].connection.transfers_done(1);
                while world.output(i) {}
            }
        }
        for end in &mut world.ends {
            assert!(end.sends.is_empty() && end.receives.is_empty(), "every operation has its event");
            let buffer = Buffer { region: 0, offset: 0, len: 1 };
            assert_eq!(end.connection.send(Op(0), buffer, false), Err(Refused::Gone));
            assert_eq!(end.connection.receive(Op(0), buffer, false), Err(Refused::Gone));
            assert_eq!(end.connection.poll(), None);
        }
    });
}

fn end() -> Connection {
    let settings = Settings { kind: Kind::Stream, credits: 2, small: 0, ring: 16 };
    let ring = Remote { addr: 0x1000, rkey: 7 };
    Connection::new(settings, Hello { settings, ring, windows: false, mapped: false }, 1, 4).expect("one kind")
}

fn buffer(len: u64) -> Buffer {
    Buffer { region: 0, offset: 0, len }
}

#[test]
fn a_send_waits_for_its_writes_when_one_behind_it_is_not_posted() {
    let mut connection = end();
    for op in [1, 2, 3] {
        connection.send(Op(op), Buffer { region: op, offset: 0, len: 4 }, false).expect("room");
    }
    let write = |output| if let Some(Output::Write(write)) = output { write.from.region } else { 0 };
    assert_eq!([write(connection.poll()), write(connection.poll())], [1, 2]);
    // The memory of the second one is gone; the third one stays with the protocol.
    connection.reset(Reset::Memory);
    connection.write_dropped();
    assert_eq!(connection.poll(), None, "the WRITE of the first send is under way");
    connection.transfers_done(1);
    let failed = |op| Some(Output::Done(Done { op: Op(op), outcome: Outcome::Failed(Reset::Memory) }));
    assert_eq!([1, 2, 3].map(|_| connection.poll()), [1, 2, 3].map(failed));
    assert_eq!(connection.poll(), None);
}

#[test]
fn the_last_question_is_behind_the_last_byte() {
    let answered = |connection: &mut Connection| connection.arrived(0, &Message::Pong.emit(), HEADER).expect("PONG");
    let outputs = |connection: &mut Connection| std::iter::from_fn(|| connection.poll()).collect::<Vec<_>>();
    let (ping, fin) = (Output::Send(Message::Ping, None), Output::Send(Message::Fin { seq: 4 }, None));
    let timeout = Duration::from_secs(4);
    for asked in [false, true] {
        let mut connection = end();
        connection.send(Op(1), buffer(4), false).expect("room");
        if asked {
            for _ in 0..3 {
                connection.tick(timeout / 4, timeout, true).expect("time is left");
            }
        }
        connection.shutdown();
        connection.ask_for_all();
        let before = outputs(&mut connection);
        assert!(before.contains(&fin) && before.contains(&ping) == asked, "{before:?}");
        connection.transfers_done(1);
        connection.ask_for_all();
        if asked {
            // The answer to the other question comes first, and says nothing of FIN.
            assert!(!outputs(&mut connection).contains(&ping));
            answered(&mut connection);
            assert!(!connection.has_all() && connection.asks_for_all());
            connection.ask_for_all();
        }
        assert_eq!(outputs(&mut connection).last(), Some(&ping));
        connection.ask_for_all();
        assert!(outputs(&mut connection).is_empty() && !connection.has_all() && connection.asks_for_all());
        answered(&mut connection);
        assert!(connection.has_all() && !connection.asks_for_all());
    }
}

fn offer(phase: u16, seq: u32, addr: u64, ack: crate::stream::Ack) -> Message {
    let (first, wait_all, len) = (true, false, 8);
    Message::Offer { phase, seq, first, wait_all, len, place: Remote { addr, rkey: 1 }, ack }
}

#[test]
fn a_hostile_peer_is_found_out() {
    let nothing = crate::stream::Ack::default();
    let free = |freed, data| crate::stream::Ack { freed, data, late: false };
    let place = Remote { addr: 0, rkey: 1 };
    let second = Message::Offer { phase: 2, seq: 8, first: false, wait_all: false, len: 8, place, ack: nothing };
    let cases: [(&str, Vec<Message>, Message); 12] = [
        ("an address that wraps", vec![], offer(2, 0, u64::MAX - 3, nothing)),
        ("an odd phase", vec![], offer(3, 0, 0, nothing)),
        ("a phase twice", vec![offer(2, 0, 0, nothing)], offer(2, 0, 0, nothing)),
        ("more offers than credits", vec![offer(2, 0, 0, nothing), second], second),
        ("room that was not taken", vec![], Message::Room(free(1, 0))),
        ("transfers that were not made", vec![], Message::Room(free(0, 1))),
        ("SEEN for nothing", vec![], Message::Seen(1)),
        ("RETRACTED unasked", vec![], Message::Retracted(2)),
        ("FIN with a wrong number", vec![], Message::Fin { seq: 1 }),
        ("a message of the other kind", vec![], Message::Ack { seq: 0 }),
        ("PING before the answer to the last one", vec![Message::Ping], Message::Ping),
        ("PONG unasked", vec![], Message::Pong),
    ];
    for (what, before, last) in cases {
        let mut connection = end();
        for message in before {
            connection.arrived(0, &message.emit(), HEADER).expect(what);
        }
        assert_eq!(connection.arrived(0, &last.emit(), HEADER), Err(Reset::Protocol), "{what}");
    }
}

#[test]
fn a_hostile_transfer_is_found_out() {
    let imm = |direct, released, seq| Immediate { direct, released, more: false, seq }.emit();
    let cases = [
        ("no byte", imm(false, 0, 0), 0),
        ("another number", imm(false, 0, 1), 4),
        ("more than a transfer has", imm(false, 0, 0), 5),
        ("into an offer that was not made", imm(true, 0, 0), 4),
        ("an offer that was not made is done with", imm(false, 1, 0), 4),
    ];
    for (what, imm, len) in cases {
        assert_eq!(end().transferred(imm, len), Err(Reset::Protocol), "{what}");
        let data = Message::Data { imm, len }.emit();
        assert_eq!(end().arrived(0, &data, HEADER), Err(Reset::Protocol), "{what}, as DATA");
    }
    let mut connection = end();
    connection.receive(Op(1), buffer(8), false).expect("room");
    assert_eq!(connection.transferred(imm(true, 1, 0), 9), Err(Reset::Protocol), "more than the receive has");
    let mut connection = end();
    for seq in [0, 4] {
        connection.transferred(imm(false, 0, seq), 4).expect("room");
    }
    // The ROOM for the first two has not gone out for their bytes, but for their arrival.
    for seq in [8, 12] {
        connection.transferred(imm(false, 0, seq), 4).expect("room");
    }
    assert_eq!(connection.transferred(imm(false, 0, 16), 1), Err(Reset::Protocol), "more than the ring has");
    let packets = Settings { kind: Kind::SeqPacket, credits: 2, small: 8, ring: 0 };
    let hello = Hello { settings: packets, ring: Remote { addr: 0, rkey: 0 }, windows: false, mapped: false };
    let mut other = Connection::new(packets, hello, 1, 1).expect("one kind");
    assert_eq!(other.transferred(imm(false, 0, 0), 1), Err(Reset::Protocol), "SEQPACKET has no transfers");
}

/// The sender could not use an offer: the next bytes are on their way into the ring.
#[test]
fn nothing_is_offered_while_more_is_on_its_way_into_the_ring() {
    for more in [true, false] {
        let mut connection = end();
        connection.transferred(Immediate { direct: false, released: 0, more, seq: 0 }.emit(), 4).expect("room");
        connection.receive(Op(1), buffer(8), true).expect("room");
        let messages = |connection: &mut Connection| {
            let outputs = std::iter::from_fn(|| connection.poll());
            outputs.filter(|output| matches!(output, Output::Send(Message::Offer { .. }, _))).count()
        };
        assert_eq!(messages(&mut connection), usize::from(!more), "the rest of the receive");
        if more {
            connection
                .transferred(Immediate { direct: false, released: 0, more: false, seq: 4 }.emit(), 2)
                .expect("room");
            assert_eq!(messages(&mut connection), 1, "no more is on its way");
        }
    }
}

#[test]
fn calls_are_refused_by_their_reason() {
    let mut connection = end();
    assert_eq!(connection.send(Op(1), buffer(0), false), Err(Refused::Empty));
    assert_eq!(connection.send(Op(1), buffer(1), true), Err(Refused::NotSupported));
    assert_eq!(connection.receive(Op(1), buffer((1 << 31) + 1), false), Err(Refused::Long));
    for op in 0..4 {
        connection.send(Op(op), buffer(9), false).expect("room");
    }
    assert_eq!(connection.receive(Op(3), buffer(1), false), Err(Refused::Twice));
    assert_eq!(connection.send(Op(4), buffer(9), false), Err(Refused::Full));
    connection.shutdown();
    assert_eq!(connection.send(Op(5), buffer(9), false), Err(Refused::Shut));
}

#[test]
fn bytes_of_a_peer_that_has_closed_are_still_received() {
    let mut connection = end();
    connection.transferred(Immediate { direct: false, released: 0, more: false, seq: 0 }.emit(), 4).expect("room");
    connection.arrived(0, &Message::Fin { seq: 4 }.emit(), HEADER).expect("FIN");
    connection.reset(Reset::Peer);
    for (op, len, end) in [(1, 3, false), (2, 1, false), (3, 0, true)] {
        connection.receive(Op(op), buffer(3), false).expect("all bytes are here");
        let outcome = Outcome::Received { len, truncated: false, end };
        let done = std::iter::from_fn(|| connection.poll()).find(|output| matches!(output, Output::Done(_)));
        assert_eq!(done, Some(Output::Done(Done { op: Op(op), outcome })));
    }
}

#[test]
fn both_sides_posting_ahead_transfer_directly() {
    let mut world = World::new(7);
    let mut direct = 0;
    for round in 0..200 {
        for end in &mut world.ends {
            end.receive(50, round % 2 == 0);
        }
        world.settle();
        for end in &mut world.ends {
            end.send(vec![round as u8; 50]);
            direct += 50;
        }
        world.settle();
    }
    assert_eq!(world.ends.iter().map(|end| end.direct).sum::<u64>(), direct);
    assert_eq!(world.ends.iter().map(|end| end.indirect).sum::<u64>(), 0);
}
