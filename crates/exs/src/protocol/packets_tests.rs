//! Two ends, the memory of both and a wire without loss, by seeded schedules.

use std::collections::{HashMap, HashSet};

use super::*;
use crate::protocol::wire::HEADER;
use crate::protocol::{Hello, Kind, Malformed, Taken};

#[path = "packets/read_tests.rs"]
mod reads;

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

/// Where a send lies for the peer: its number times this.
const PLACE: u64 = 1 << 32;

struct Sending {
    data: Vec<u8>,
    cancelled: bool,
}

struct Receiving {
    data: Vec<u8>,
}

struct End {
    connection: Packets,
    slots: Vec<Option<Vec<u8>>>,
    /// Slots that are posted, which messages take in this order.
    posted: VecDeque<u32>,
    wire: VecDeque<Vec<u8>>,
    reads: VecDeque<Read>,
    /// SMALLs whose data the device has not taken yet.
    smalls: VecDeque<Op>,
    /// Sends that were over with their call.
    at_once: u64,
    /// Keys of the peer that this end is done with.
    over: HashSet<u32>,
    sends: HashMap<u64, Sending>,
    receives: HashMap<u64, Receiving>,
    /// What is promised to the peer: the data of sends that were not cancelled, in order.
    sent: VecDeque<(u64, Vec<u8>)>,
    /// The order in which receives must end.
    order: VecDeque<u64>,
    next: u64,
    cancelled: u64,
    shut: bool,
    saw_end: bool,
    reset: bool,
}

impl End {
    fn new(connection: Packets, slots: u32) -> End {
        End {
            connection,
            slots: (0..slots).map(|_| None).collect(),
            posted: (0..slots).collect(),
            wire: VecDeque::new(),
            reads: VecDeque::new(),
            smalls: VecDeque::new(),
            at_once: 0,
            over: HashSet::new(),
            sends: HashMap::new(),
            receives: HashMap::new(),
            sent: VecDeque::new(),
            order: VecDeque::new(),
            next: 1,
            cancelled: 0,
            shut: false,
            saw_end: false,
            reset: false,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn send(&mut self, data: Vec<u8>, at_once: bool) {
        let op = self.number();
        if at_once && let Some(message) = self.connection.send_at_once(data.len() as u64) {
            self.wire.push_back([&message.emit()[..], &data].concat());
            self.sent.push_back((op, data));
            self.at_once += 1;
            return;
        }
        let buffer = Buffer { region: op, offset: 0, len: data.len() as u64 };
        match self.connection.send(Op(op), buffer, false) {
            Ok(()) => {
                self.sent.push_back((op, data.clone()));
                self.sends.insert(op, Sending { data, cancelled: false });
            }
            Err(refused) => assert!(matches!(refused, Refused::Full | Refused::Shut), "{refused:?}"),
        }
    }

    fn receive(&mut self, len: usize) {
        let op = self.number();
        let buffer = Buffer { region: op, offset: 0, len: len as u64 };
        // What comes at once must find the receive.
        self.receives.insert(op, Receiving { data: vec![0; len] });
        match self.connection.receive(Op(op), buffer) {
            Ok(()) => self.order.push_back(op),
            Err(refused) => {
                assert_eq!(refused, Refused::Full);
                self.receives.remove(&op);
            }
        }
    }

    fn write(&mut self, to: Buffer, data: &[u8]) {
        let receive = self.receives.get_mut(&to.region).expect("only a pending receive is written to");
        assert_eq!(to.len, data.len() as u64);
        receive.data[to.offset as usize..][..data.len()].copy_from_slice(data);
    }
}

/// Give an end the bytes of a SEND.
fn arrive(connection: &mut Packets, slot: u32, bytes: &[u8]) -> Result<bool, Reset> {
    let message = Message::parse(bytes.first_chunk().expect("a header"), bytes.len());
    connection.arrived(slot, message.map_err(|Malformed| Reset::Protocol)?)
}

struct World {
    ends: [End; 2],
    random: Random,
    received: u64,
    smalls: u64,
    taken: u64,
    read: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let kind = Kind::SeqPacket;
        let settings: [Settings; 2] = std::array::from_fn(|_| Settings {
            kind,
            credits: 1 + random.below(9) as u16,
            small: [0, 8, 40][random.below(3) as usize],
            ring: 0,
        });
        let ends = [0, 1].map(|i| {
            let (ours, theirs) = (settings[i], settings[1 - i]);
            // As the peer hears them.
            let hello = Hello { settings: theirs, ring: Remote { addr: 0, rkey: 0 }, windows: false, mapped: false };
            let theirs = Hello::parse(&hello.emit()).expect("a greeting").settings;
            let (reads, places) = (1 + random.below(3) as usize, 1 + random.below(12) as usize);
            let mut connection = Packets::new(ours, theirs, reads, places);
            // Numbers wrap early.
            connection.next_seq = u32::MAX - 20;
            connection.expected = u32::MAX - 20;
            End::new(connection, crate::protocol::Connection::slots(&ours, theirs.credits))
        });
        World { ends, random, received: 0, smalls: 0, taken: 0, read: 0 }
    }

    /// Do one output of an end; false if there is none.
    fn output(&mut self, i: usize) -> bool {
        let Some(output) = self.ends[i].connection.outputs.pop_front() else { return false };
        if let Output::Send(Message::Withdrawn { seq, dropped: true }, _) = output {
            // From here on, receives of this end pass it over.
            let peer = &mut self.ends[1 - i];
            let at = peer.connection.outstanding(seq).expect("it is outstanding");
            let op = peer.connection.sends[at].op.0;
            peer.sent.retain(|(sent, _)| *sent != op);
        }
        let end = &mut self.ends[i];
        match output {
            Output::Send(message, data) => {
                let place = data.map(|buffer| Remote { addr: buffer.region * PLACE, rkey: buffer.region as u32 });
                let named = place.map_or(message, |place| message.named(place));
                let mut bytes = named.emit().to_vec();
                if let (Message::Small { .. }, Some(buffer)) = (message, data) {
                    self.smalls += 1;
                    bytes.extend_from_slice(&end.sends[&buffer.region].data);
                    end.smalls.push_back(Op(buffer.region));
                }
                end.wire.push_back(bytes);
            }
            Output::End(message, key) => {
                let reads = |read: &Read| read.from.rkey == key;
                assert!(!end.reads.iter().any(reads), "a key ends before its READ");
                assert!(end.over.insert(key), "a key ends once");
                end.wire.push_back(message.emit().to_vec());
            }
            Output::Read(read) => {
                assert!(!end.over.contains(&read.from.rkey), "a key is used after its end");
                end.reads.push_back(read);
                assert!(end.reads.len() <= end.connection.reads, "more READs than agreed");
            }
            Output::Copy { slot, to } => {
                let message = end.slots[slot as usize].clone().expect("the slot is in use");
                end.write(to, &message[HEADER..][..to.len as usize]);
            }
            Output::Free { slot } => {
                assert!(end.slots[slot as usize].take().is_some(), "the slot is in use");
                end.posted.push_back(slot);
            }
            Output::Done(done) => self.done(i, done),
            other => panic!("{other:?} is for a stream"),
        }
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
                assert!(end.sends[&op].cancelled);
                end.sends.remove(&op);
                end.sent.retain(|(sent, _)| *sent != op);
                end.cancelled += 1;
            }
            Outcome::Cancelled => {
                assert!(end.receives.remove(&op).is_some());
                end.order.retain(|o| *o != op);
                end.cancelled += 1;
            }
            Outcome::Received { len, truncated, end: at_end } => {
                assert_eq!(end.order.pop_front(), Some(op), "receives end in order");
                let receive = end.receives.remove(&op).expect("one event for each operation");
                let data = &receive.data[..len as usize];
                self.received += len;
                if at_end {
                    assert!(len == 0 && peer.shut && peer.sent.is_empty(), "the end comes after all data");
                    end.saw_end = true;
                } else {
                    let (_, packet) = peer.sent.pop_front().expect("a packet was sent");
                    assert_eq!(data, &packet[..packet.len().min(receive.data.len())]);
                    assert_eq!(truncated, packet.len() > receive.data.len());
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
        let Some(bytes) = self.ends[i].wire.pop_front() else { return false };
        let peer = &mut self.ends[1 - i];
        let slot = peer.posted.pop_front().expect("a message always finds a receive");
        peer.slots[slot as usize] = Some(bytes.clone());
        if self.random.one_in(2)
            && let Some((seq, len)) = Message::parse_small(bytes.first_chunk().expect("a header"), bytes.len())
            && let Some(Taken { op, to, truncated }) = peer.connection.take_at_once(seq, len)
        {
            peer.write(to, &bytes[HEADER..][..to.len as usize]);
            peer.slots[slot as usize] = None;
            peer.posted.push_back(slot);
            self.taken += 1;
            self.done(1 - i, Done { op, outcome: Outcome::Received { len: to.len, truncated, end: false } });
            return true;
        }
        if !arrive(&mut peer.connection, slot, &bytes).expect("the protocol is kept") {
            peer.slots[slot as usize] = None;
            peer.posted.push_back(slot);
        }
        true
    }

    /// Execute and complete the oldest READ of an end.
    fn read(&mut self, i: usize) -> bool {
        let Some(Read { from, to }) = self.ends[i].reads.pop_front() else { return false };
        let (op, offset) = (from.addr / PLACE, (from.addr % PLACE) as usize);
        let send = self.ends[1 - i].sends.get(&op).expect("only the memory of a pending send is read");
        assert_eq!(from.rkey, op as u32);
        let data = send.data[offset..][..to.len as usize].to_vec();
        self.ends[i].write(to, &data);
        self.ends[i].connection.reads_done(1);
        self.read += 1;
        true
    }

    /// The device has taken the data of the oldest SMALL of an end.
    fn small(&mut self, i: usize) -> bool {
        let end = &mut self.ends[i];
        let taken = end.smalls.pop_front();
        if let Some(op) = taken {
            end.connection.small_done(op);
        }
        taken.is_some()
    }

    fn step(&mut self, may_shut: bool) {
        let i = self.random.below(2) as usize;
        let least = 0;
        match self.random.below(16) {
            0..=2 => {
                let len = least + [self.random.below(9), self.random.below(100)][self.random.below(2) as usize];
                let data = (0..len).map(|_| self.random.below(256) as u8).collect();
                let at_once = self.random.one_in(2);
                // As the sockets do before they try it.
                while at_once && self.output(i) {}
                self.ends[i].send(data, at_once);
            }
            3..=5 => {
                let len = least + self.random.below(100);
                self.ends[i].receive(len as usize);
            }
            6 if self.random.one_in(2) => {
                let end = &mut self.ends[i];
                let mut pending: Vec<u64> = end.sends.keys().chain(end.receives.keys()).copied().collect();
                pending.sort_unstable();
                if !pending.is_empty() {
                    let op = pending[self.random.below(pending.len() as u64) as usize];
                    let asked = end.connection.cancel(Op(op));
                    if let Some(send) = end.sends.get_mut(&op) {
                        // It may have ended already, and its event waits.
                        send.cancelled |= asked;
                    }
                }
            }
            7 if may_shut && self.random.one_in(50) => {
                self.ends[i].connection.shutdown();
                self.ends[i].shut = true;
            }
            7..=9 => {
                self.deliver(i);
            }
            10..=11 => {
                self.read(i);
                self.small(i);
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
                moved |= self.output(i) || self.deliver(i) || self.read(i) || self.small(i);
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
fn data_arrive_once_and_in_order() {
    let total = std::cell::Cell::new([0u64; 6]);
    seeds(400, |seed| {
        let mut world = World::new(seed);
        for _ in 0..4000 {
            world.step(true);
        }
        // Everything that was sent is received at last, and the end is seen.
        for i in [0, 1] {
            world.ends[i].connection.shutdown();
            world.ends[i].shut = true;
        }
        for _ in 0..10_000 {
            world.settle();
            for end in &mut world.ends {
                if !end.saw_end {
                    end.receive(64);
                }
            }
            if world.ends.iter().all(|end| end.saw_end) {
                break;
            }
        }
        world.settle();
        for end in &mut world.ends {
            assert!(end.saw_end && end.sent.is_empty() && end.sends.is_empty(), "all data arrive");
            assert!(end.receives.is_empty() && end.order.is_empty(), "every operation has its event");
            assert!(end.connection.is_flushed() && end.connection.withdrawals.is_empty());
            assert_eq!(end.posted.len(), end.slots.len(), "every slot is posted again");
        }
        let [a, b, c, d, e, f] = total.get();
        let cancelled = world.ends.iter().map(|end| end.cancelled).sum::<u64>();
        let at_once = world.ends.iter().map(|end| end.at_once).sum::<u64>();
        total.set([a + world.received, b + world.smalls, c + world.read, d + cancelled, e + at_once, f + world.taken]);
    });
    // The schedules reach every way.
    assert!(total.get().iter().all(|count| *count > 500), "{:?}", total.get());
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
            end.wire.clear();
            end.smalls.clear();
        }
        for i in [0, 1] {
            // READs that are under way end, with success or without, before the receives do.
            while world.output(i) {}
            for _ in world.ends[i].reads.drain(..).collect::<Vec<_>>() {
                assert!(!world.ends[i].receives.is_empty(), "a READ still writes to its receive");
                world.ends[i].connection.reads_done(1);
                while world.output(i) {}
            }
        }
        for end in &mut world.ends {
            assert!(end.sends.is_empty() && end.receives.is_empty(), "every operation has its event");
            let buffer = Buffer { region: 0, offset: 0, len: 1 };
            let refused = end.connection.send(Op(0), buffer, false);
            assert_eq!(refused, Err(Refused::Gone));
            assert_eq!(end.connection.receive(Op(0), buffer), Err(Refused::Gone));
            assert_eq!(end.connection.outputs.pop_front(), None);
        }
    });
}

/// An end of SEQPACKET with two credits in each direction and 8 bytes of small data.
fn end() -> Packets {
    let settings = Settings { kind: Kind::SeqPacket, credits: 2, small: 8, ring: 0 };
    Packets::new(settings, settings, 1, 4)
}

fn buffer(len: u64) -> Buffer {
    Buffer { region: 0, offset: 0, len }
}

#[test]
fn a_hostile_peer_is_found_out() {
    let small = |seq, len: u32| [&Message::Small { seq, len }.emit()[..], &vec![0; len as usize]].concat();
    let advert = |seq, addr| Message::Advert { seq, addr, rkey: 1, len: 100, persistent: false }.emit().to_vec();
    // What comes in front, then what is refused.
    type Bytes = Vec<u8>;
    let cases: [(&str, Vec<Bytes>, Bytes); 12] = [
        ("a number in advance", vec![], advert(1, 0)),
        ("a number twice", vec![advert(0, 0)], advert(0, 0)),
        ("more than the credits", vec![advert(0, 0), small(1, 1)], advert(2, 0)),
        ("more small data than agreed", vec![], small(0, 9)),
        ("an address that wraps", vec![], advert(0, u64::MAX - 50)),
        ("ACK for nothing", vec![], Message::Ack { seq: 5 }.emit().to_vec()),
        ("ACK twice", vec![Message::Ack { seq: 0 }.emit().to_vec()], Message::Ack { seq: 0 }.emit().to_vec()),
        ("WITHDRAWN unasked", vec![], Message::Withdrawn { seq: 0, dropped: true }.emit().to_vec()),
        (
            "a second WITHDRAW before the answer",
            vec![Message::Withdraw { seq: 0 }.emit().to_vec()],
            Message::Withdraw { seq: 0 }.emit().to_vec(),
        ),
        ("FIN with a wrong number", vec![advert(0, 0)], Message::Fin { seq: 0 }.emit().to_vec()),
        ("FIN twice", vec![Message::Fin { seq: 0 }.emit().to_vec()], Message::Fin { seq: 0 }.emit().to_vec()),
        ("data after FIN", vec![Message::Fin { seq: 0 }.emit().to_vec()], advert(0, 0)),
    ];
    for (what, before, last) in cases {
        let mut connection = end();
        connection.send(Op(1), buffer(100), false).expect("room");
        for message in before {
            arrive(&mut connection, 0, &message).expect(what);
        }
        assert_eq!(arrive(&mut connection, 1, &last), Err(Reset::Protocol), "{what}");
    }
}

#[test]
fn calls_are_refused_by_their_reason() {
    let mut connection = end();
    for op in 0..4 {
        connection.send(Op(op), buffer(9), false).expect("room");
    }
    assert_eq!(connection.receive(Op(3), buffer(1)), Err(Refused::Twice));
    assert_eq!(connection.send(Op(4), buffer(9), false), Err(Refused::Full));
    // Two credits: two advertisements, and nothing else.
    let adverts = std::iter::from_fn(|| connection.outputs.pop_front()).collect::<Vec<_>>();
    assert!(matches!(adverts[..], [Output::Send(Message::Advert { seq: 0, .. }, Some(_)), Output::Send(..)]));
    connection.shutdown();
    assert_eq!(connection.outputs.pop_front(), None, "FIN comes after the data");
    assert_eq!(connection.send(Op(5), buffer(9), false), Err(Refused::Shut));
    arrive(&mut connection, 0, &Message::Ack { seq: 1 }.emit()).expect("an ACK");
    let fin = std::iter::from_fn(|| connection.outputs.pop_front()).last();
    assert_eq!(fin, Some(Output::Send(Message::Fin { seq: 4 }, None)));
}

/// What an end sends when it does all that it can.
fn messages(connection: &mut Packets) -> Vec<Message> {
    let outputs = std::iter::from_fn(|| connection.outputs.pop_front());
    let message = |output| match output {
        Output::Send(message, _) | Output::End(message, _) => Some(message),
        _ => None,
    };
    outputs.filter_map(message).collect()
}

#[test]
fn every_slot_can_be_needed() {
    let settings = Settings { kind: Kind::SeqPacket, credits: 1, small: 0, ring: 0 };
    let mut connection = Packets::new(settings, settings, 1, 4);
    // The peer has advertised, wants it back, and takes nothing in: all this is under way to it.
    connection.send(Op(1), buffer(9), false).expect("room");
    connection.cancel(Op(1));
    connection.shutdown();
    connection.receive(Op(2), buffer(9)).expect("room");
    arrive(&mut connection, 0, &Message::Advert { seq: 0, addr: 0, rkey: 1, len: 9, persistent: false }.emit())
        .expect("an advertisement");
    connection.reads_done(1);
    arrive(&mut connection, 0, &Message::Withdraw { seq: 0 }.emit()).expect("a WITHDRAW");
    let sent = messages(&mut connection);
    // Besides PING, PONG, LOOKS, SLEEPS and SLEPT.
    assert_eq!(sent.len() as u32 + 5, crate::protocol::Connection::slots(&settings, settings.credits), "{sent:?}");
}

#[test]
fn a_persistent_send_is_read_again_and_again() {
    let mut connection = end();
    let advert = |seq| Message::Advert { seq, addr: 0x1000, rkey: 1, len: 9, persistent: seq == 0 }.emit();
    arrive(&mut connection, 0, &advert(0)).expect("a persistent advertisement");
    arrive(&mut connection, 0, &advert(1)).expect("another one");
    for op in 1..=3 {
        connection.receive(Op(op), buffer(4)).expect("room");
        let from = Remote { addr: 0x1000, rkey: 1 };
        assert_eq!(connection.outputs.pop_front(), Some(Output::Read(Read { from, to: buffer(4) })));
        connection.reads_done(1);
        let outcome = Outcome::Received { len: 4, truncated: true, end: false };
        assert_eq!(connection.outputs.pop_front(), Some(Output::Done(Done { op: Op(op), outcome })));
        assert_eq!(connection.outputs.pop_front(), None, "no ACK");
    }
    // It is given back when the READ under way has ended, and the next one is served.
    connection.receive(Op(4), buffer(9)).expect("room");
    arrive(&mut connection, 0, &Message::Withdraw { seq: 0 }.emit()).expect("a WITHDRAW");
    assert_eq!(messages(&mut connection), []);
    let twice = arrive(&mut connection, 0, &Message::Withdraw { seq: 0 }.emit());
    assert_eq!(twice, Err(Reset::Protocol), "one question at a time");
    connection.reads_done(1);
    assert_eq!(messages(&mut connection), [Message::Withdrawn { seq: 0, dropped: true }]);
    connection.receive(Op(5), buffer(9)).expect("room");
    connection.reads_done(1);
    assert_eq!(messages(&mut connection), [Message::Ack { seq: 1 }]);
}

#[test]
fn a_persistent_send_ends_when_it_is_given_back() {
    let mut connection = end();
    connection.send(Op(1), buffer(1), true).expect("room");
    connection.send(Op(2), buffer(1), false).expect("room");
    let sent = messages(&mut connection);
    assert!(matches!(sent[..], [Message::Advert { persistent: true, .. }, Message::Small { .. }]), "{sent:?}");
    let ack = |seq| Message::Ack { seq }.emit();
    assert!(connection.cancel(Op(1)));
    assert_eq!(messages(&mut connection), [Message::Withdraw { seq: 0 }]);
    arrive(&mut connection, 0, &Message::Withdrawn { seq: 0, dropped: true }.emit()).expect("the answer");
    let outcome = Outcome::Cancelled;
    assert_eq!(connection.outputs.pop_front(), Some(Output::Done(Done { op: Op(1), outcome })));
    arrive(&mut connection, 0, &ack(1)).expect("an ACK");
    for seq in 0..2 {
        let mut connection = end();
        connection.send(Op(1), buffer(1), true).expect("room");
        connection.send(Op(2), buffer(1), false).expect("room");
        assert_eq!(arrive(&mut connection, 0, &ack(seq)), Err(Reset::Protocol), "ACK {seq} with a persistent send");
    }
}
