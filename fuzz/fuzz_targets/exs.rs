//! A peer of an extended socket that sends what it likes: bytes of any kind, and messages with numbers and lengths near
//! those that are right, between calls of the program.
//!
//! Data go into pending receives only, and come from slots and advertisements that have them; a slot is free once; an
//! operation ends once; there are never more READs than agreed.
#![no_main]

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use exs::protocol::{
    Buffer, Connection, HEADER, Hello, Immediate, Kind, Message, NoticePlaces, Op, Output, Remote, Reset, Settings,
};
use exs::stream::Ack;
use libfuzzer_sys::fuzz_target;

const READS: usize = 2;
const PLACES: usize = 4;
const RING: u32 = 16;

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    /// A number near zero, in both directions; seldom another one.
    fn near(&mut self) -> u32 {
        match self.byte() {
            0xff => u32::from_ne_bytes([self.byte(), self.byte(), self.byte(), self.byte()]),
            byte => u32::from(byte % 16).wrapping_sub(4),
        }
    }
}

#[derive(Default)]
struct World {
    /// Buffers of pending operations.
    receives: HashMap<u64, u64>,
    sends: HashSet<u64>,
    /// Lengths of the data in slots that are in use.
    slots: HashMap<u32, u64>,
    /// Advertised addresses, first and behind the last; for a stream, those of offers and of the ring.
    adverts: Vec<(u64, u64)>,
    reads: VecDeque<u64>,
    /// The sends of WRITEs that are not completed.
    writes: VecDeque<u64>,
    /// The sends of SMALLs whose data the device has not taken.
    smalls: VecDeque<u64>,
    reset: bool,
}

impl World {
    fn writes_to(&self, to: Buffer) {
        let len = self.receives.get(&to.region).expect("a pending receive");
        assert!(to.len > 0 && to.offset.checked_add(to.len).is_some_and(|end| end <= *len));
    }

    fn writes_to_if_any(&self, to: Buffer) {
        if to.len > 0 {
            self.writes_to(to);
        }
    }

    fn act(&mut self, connection: &mut Connection, at_most: usize) {
        for _ in 0..at_most {
            let Some(output) = connection.poll() else { return };
            match output {
                Output::Send(message, data) => {
                    assert!(!self.reset);
                    let named = data.is_none_or(|data| match message {
                        Message::Offer { len, .. } => {
                            self.writes_to(data);
                            data.len == u64::from(len)
                        }
                        _ => self.sends.contains(&data.region),
                    });
                    assert!(named, "{message:?}");
                    let names =
                        matches!(message, Message::Small { .. } | Message::Advert { .. } | Message::Offer { .. });
                    assert_eq!(data.is_some(), names);
                    if let (Message::Small { .. }, Some(data)) = (message, data) {
                        self.smalls.push_back(data.region);
                    }
                }
                Output::End(message, _) => assert!(!self.reset && matches!(message, Message::Ack { .. })),
                Output::Read(read) => {
                    assert!(!self.reset);
                    self.writes_to(read.to);
                    let inside = |(first, end): &(u64, u64)| {
                        read.from.addr >= *first && read.from.addr.checked_add(read.to.len).is_some_and(|e| e <= *end)
                    };
                    assert!(self.adverts.iter().any(inside), "{read:?}");
                    self.reads.push_back(read.to.region);
                    assert!(self.reads.len() <= READS);
                }
                Output::Write(write) => {
                    assert!(!self.reset && self.sends.contains(&write.from.region));
                    let inside = |(first, end): &(u64, u64)| {
                        write.to.addr >= *first && write.to.addr.checked_add(write.from.len).is_some_and(|e| e <= *end)
                    };
                    assert!(self.adverts.iter().any(inside), "{write:?}");
                    self.writes.push_back(write.from.region);
                }
                Output::Copy { slot, to } => {
                    self.writes_to(to);
                    assert!(to.len <= self.slots[&slot]);
                }
                Output::CopyRing { at, to } => {
                    self.writes_to(to);
                    assert!(u64::from(at) + to.len <= u64::from(RING));
                }
                Output::Free { slot } => assert!(self.slots.remove(&slot).is_some()),
                Output::Done(done) => {
                    let known = self.sends.remove(&done.op.0) || self.receives.remove(&done.op.0).is_some();
                    assert!(known, "{done:?}");
                    assert!(!self.reads.contains(&done.op.0), "a READ still writes there");
                    assert!(!self.writes.contains(&done.op.0), "a WRITE still reads there");
                }
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let kind = if input.byte() & 1 == 0 { Kind::SeqPacket } else { Kind::Stream };
    let (small, ring) = if kind == Kind::Stream { (0, RING) } else { (8, 0) };
    let ours = Settings { kind, credits: 3, small, ring };
    // What the peer says of itself.
    let theirs = Settings { kind, credits: 2, small: 2 * small, ring: ring * 2 };
    let mapped = input.byte() & 1 == 1;
    let mut hello = Hello { settings: theirs, ring: Remote { addr: 0, rkey: 0 }, windows: false, mapped }.emit();
    let at = usize::from(input.byte()) % 64;
    if let Some(byte) = hello.get_mut(at) {
        *byte = input.byte();
    }
    let Ok(theirs) = Hello::parse(&hello) else { return };
    let Some(mut connection) = Connection::new(ours, theirs, READS, PLACES) else { return };
    let mut world = World::default();
    world.adverts.push((theirs.ring.addr, theirs.ring.addr + u64::from(theirs.settings.ring)));
    // Numbers of the next advertisement, and of the next byte.
    let (mut expected, mut bytes) = (0u32, 0u32);
    let mut phase = 0u16;
    let (mut op, mut slot) = (0, 0);
    while !input.0.is_empty() && !world.reset {
        if let Some(place) = connection.place_of_notice(op as u32) {
            let Settings { ring, credits, .. } = theirs.settings;
            let end = theirs.ring.addr + NoticePlaces::new(ring, credits).end();
            assert!(theirs.mapped && theirs.ring.addr + u64::from(ring) <= place.addr && place.addr + 32 <= end);
        }
        op += 1;
        let len = u64::from(input.near() % 64);
        let buffer = Buffer { region: op, offset: 0, len };
        match input.byte() % 16 {
            0 => {
                if connection.send(Op(op), buffer, input.byte() & 3 == 3).is_ok() {
                    world.sends.insert(op);
                }
            }
            1 | 2 => {
                world.receives.insert(op, len);
                let how = input.byte();
                let begun = match how & 7 {
                    7 => connection.peek(Op(op), buffer),
                    _ => connection.receive(Op(op), buffer, how & 1 == 1),
                };
                if begun.is_err() {
                    world.receives.remove(&op);
                }
            }
            3 => {
                connection.cancel(Op(op.wrapping_sub(u64::from(input.byte() % 8))));
            }
            4 if input.byte() == 7 => connection.shutdown(),
            4 => drop(connection.send_at_once(len)),
            7 if !world.smalls.is_empty() => {
                connection.small_done(Op(world.smalls.pop_front().unwrap_or(0)));
            }
            5 => world.act(&mut connection, 1 + usize::from(input.byte() % 8)),
            6 if !world.reads.is_empty() => {
                world.reads.pop_front();
                connection.transfers_done(1);
            }
            6 if !world.writes.is_empty() => {
                world.writes.pop_front();
                connection.transfers_done(1);
            }
            15 => {
                if input.byte() & 1 == 1 { connection.look() } else { connection.stop_looking() }
            }
            14 => {
                let (second, timeout) = (Duration::from_secs(1), Duration::from_secs(4));
                if let Err(why) = connection.tick(second, timeout, input.byte() & 3 != 0) {
                    assert_eq!(why, Reset::Stopped);
                    connection.reset(why);
                    world.reset = true;
                }
            }
            12 | 13 => {
                let (direct, released) = (input.byte() & 1 == 1, u32::from(input.byte() % 4));
                let near = if input.byte() & 7 == 0 { input.near() } else { 0 };
                let (more, seq) = (input.byte() & 1 == 1, bytes.wrapping_add(near));
                let imm = Immediate { direct, released, more, seq }.emit();
                let len = u32::from(input.byte() % 8);
                let how = input.byte();
                let taken = if kind == Kind::SeqPacket && how & 3 == 0 {
                    connection.noticed(input.near(), len & 1)
                } else if how & 1 == 0 {
                    connection.transferred(imm, len)
                } else if how & 2 == 0 {
                    connection.noticed(imm, len)
                } else {
                    connection.arrived(0, &Message::Data { imm, len }.emit(), HEADER).map(drop)
                };
                match taken {
                    Ok(()) => bytes = bytes.wrapping_add(len),
                    Err(why) => {
                        assert_eq!(why, Reset::Protocol);
                        connection.reset(why);
                        world.reset = true;
                    }
                }
            }
            _ => {
                let seq = match input.byte() % 8 {
                    0 => input.near(),
                    _ => expected,
                };
                let addr = u64::MAX - u64::from(input.byte());
                let mut sent = HEADER;
                let persistent = input.byte() & 7 == 7;
                let (freed, data) = (input.near() % 8, u32::from(input.byte() % 3));
                let ack = Ack { freed, data, late: persistent };
                if input.byte() & 3 == 0 {
                    phase = phase.wrapping_add(2);
                }
                // Packets have the first eight, and the last three.
                let all = input.byte() % if kind == Kind::Stream { 19 } else { 11 };
                let message = match if kind == Kind::SeqPacket && all >= 8 { all + 8 } else { all } {
                    0 | 1 => Message::Advert { seq, addr: addr / 2, rkey: 1, len: len as u32, persistent },
                    2 => Message::Advert { seq, addr, rkey: 1, len: len as u32, persistent },
                    8 => Message::Room(ack),
                    9 => Message::Retract(phase),
                    10 => Message::Retracted(input.near() as u16),
                    11 => Message::Seen(input.near() % 8),
                    12 => Message::Fin { seq: bytes },
                    16 => Message::Looks,
                    17 => Message::Sleeps,
                    18 => Message::Slept,
                    13.. => {
                        let ack = Ack { late: false, ..ack };
                        let (first, wait_all) = (input.byte() & 1 == 1, persistent);
                        let place = Remote { addr: addr / 2, rkey: 1 };
                        Message::Offer { phase, seq: input.near(), first, wait_all, len: len as u32, place, ack }
                    }
                    3 | 4 => Message::Small { seq, len: len as u32 % 12 },
                    5 => Message::Ack { seq: input.near() },
                    6 if persistent => Message::Ping,
                    7 if persistent => Message::Pong,
                    6 => Message::Withdraw { seq: input.near() },
                    _ if input.byte() & 1 == 0 => Message::Fin { seq },
                    _ => Message::Withdrawn { seq: input.near(), dropped: input.byte() & 1 == 0 },
                };
                match message {
                    Message::Advert { addr, len, .. } => world.adverts.push((addr, addr.saturating_add(len.into()))),
                    Message::Offer { place, len, .. } => world.adverts.push((place.addr, place.addr + u64::from(len))),
                    Message::Small { len, .. } => {
                        sent += len as usize;
                        world.slots.insert(slot, len.into());
                    }
                    _ => {}
                }
                let mut header = message.emit();
                if input.byte() == 0xff {
                    header[usize::from(input.byte()) % HEADER] = input.byte();
                    sent = sent.wrapping_add(input.near() as usize % 4);
                }
                if input.byte() & 1 == 1
                    && let Some(taken) = connection.take_at_once(&header, sent)
                {
                    world.writes_to_if_any(taken.to);
                    assert!(taken.to.len <= (sent - HEADER) as u64 && world.receives.remove(&taken.op.0).is_some());
                    world.slots.remove(&slot);
                    (expected, slot) = (expected.wrapping_add(1), slot + 1);
                    continue;
                }
                if Message::may_share(&header) && input.byte() & 7 == 0 {
                    let count = 2 + usize::from(input.byte() % 4);
                    let mut row = header.repeat(count);
                    if input.byte() == 0xff {
                        row.truncate(row.len() - 1);
                    }
                    match connection.arrived_together(slot, &row) {
                        // A byte that was changed may have made DATA of another message.
                        Ok(()) => {}
                        Err(why) => {
                            assert_eq!(why, Reset::Protocol);
                            connection.reset(why);
                            world.reset = true;
                        }
                    }
                    slot += 1;
                    continue;
                }
                match connection.arrived(slot, &header, sent) {
                    Ok(kept) => {
                        if !kept {
                            world.slots.remove(&slot);
                        } else {
                            assert!(world.slots.contains_key(&slot) || header != message.emit());
                            world.slots.insert(slot, (sent - HEADER) as u64);
                        }
                        if matches!(Message::parse(&header, sent), Ok(Message::Advert { .. } | Message::Small { .. })) {
                            expected = expected.wrapping_add(1);
                        }
                        if let Ok(Message::Advert { addr, len, .. }) = Message::parse(&header, sent) {
                            world.adverts.push((addr, addr + u64::from(len)));
                        }
                    }
                    Err(why) => {
                        assert_eq!(why, Reset::Protocol);
                        connection.reset(why);
                        world.reset = true;
                    }
                }
                slot += 1;
            }
        }
    }
    // At the end every operation ends, READs first.
    if !world.reset {
        connection.reset(Reset::Peer);
        world.reset = true;
    }
    world.act(&mut connection, usize::MAX);
    while world.reads.pop_front().is_some() {
        connection.transfers_done(1);
        world.act(&mut connection, usize::MAX);
    }
    while world.writes.pop_front().is_some() {
        connection.transfers_done(1);
        world.act(&mut connection, usize::MAX);
    }
    assert!(world.sends.is_empty() && world.receives.is_empty(), "every operation ends");
});
