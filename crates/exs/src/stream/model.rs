//! Every state of a sender, a receiver and the wire between them.
//!
//! The ring has 4 bytes, up to 4 receives are pending, and numbers have 3 bits, so that they wrap. The program sends
//! and receives 1 or 2 bytes, with MSG_WAITALL and without, cancels, and ends its data. Messages stay on the wire, and
//! copies under way, as long as they like. The checked code is that of the sockets.

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};

use super::*;

type Place = (u64, u32);

/// A message to the receiver. A transfer knows the number of its first byte, all bits of it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum ToReceiver {
    Data(Transfer<Place>, u32),
    Seen(u32),
    Retracted(u16),
    Fin(u32),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum ToSender {
    Advert(Advert<Place>, Ack),
    Ack(Ack),
    Retract(u16),
}

/// A receive as the program knows it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Pending {
    id: u64,
    len: u32,
    wait_all: bool,
    filled: u32,
    cancelled: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    shape: Shape,
    sender: Sender<Place>,
    receiver: Receiver,
    to_receiver: VecDeque<ToReceiver>,
    to_sender: VecDeque<ToSender>,
    /// Bytes that the program has sent, and that are not handed out.
    waiting: u64,
    fin: bool,
    /// The numbers of the bytes in the ring.
    ring: [u32; 4],
    copy: Option<(u64, u32, u32, u32)>,
    /// In the order in which the program has posted them.
    receives: Vec<Pending>,
    /// The number of the next byte that the program gets.
    got: u32,
}

/// What went wrong.
type Fault = String;

fn sound(result: Result<(), Breach>, what: &str) -> Result<(), Fault> {
    result.map_err(|Breach| format!("the peer keeps to the protocol, and {what} is refused"))
}

/// Bounds of a run.
#[derive(Clone, Copy)]
struct Bounds {
    receives: usize,
    /// Whether they have MSG_WAITALL.
    wait_all: &'static [bool],
    waiting: u64,
    cancels: bool,
    fins: bool,
    relative: bool,
}

impl World {
    fn new(shape: Shape) -> World {
        World {
            shape,
            sender: Sender::new(shape),
            receiver: Receiver::new(shape),
            to_receiver: VecDeque::new(),
            to_sender: VecDeque::new(),
            waiting: 0,
            fin: false,
            ring: [0; 4],
            copy: None,
            receives: Vec::new(),
            got: 0,
        }
    }

    fn seq(&self, seq: u32, len: u32) -> u32 {
        self.shape.seq(seq, len)
    }

    fn pump_sender(&mut self) -> Result<(), Fault> {
        loop {
            let seq = self.sender.seq();
            let Some(transfer) = self.sender.next(self.waiting, self.waiting) else { break };
            self.waiting -= u64::from(transfer.len);
            self.to_receiver.push_back(ToReceiver::Data(transfer, seq));
        }
        if let Some(count) = self.sender.seen() {
            self.to_receiver.push_back(ToReceiver::Seen(count));
        }
        let to_receiver = self.to_receiver.iter().filter(|message| matches!(message, ToReceiver::Seen(_))).count();
        (to_receiver <= 2).then_some(()).ok_or("more than two SEEN are under way".into())
    }

    fn pump_receiver(&mut self) -> Result<(), Fault> {
        while let Some(action) = self.receiver.poll() {
            match action {
                Action::Copy { id, offset, at, len } => self.copy = Some((id, offset, at, len)),
                Action::Advert(advert, ack) => self.to_sender.push_back(ToSender::Advert(advert, ack)),
                Action::Ack(ack) => self.to_sender.push_back(ToSender::Ack(ack)),
                Action::Retract(phase) => self.to_sender.push_back(ToSender::Retract(phase)),
                Action::Ended { id, how } => self.ended(id, how)?,
            }
        }
        let count = |f: fn(&ToSender) -> bool| self.to_sender.iter().filter(|message| f(message)).count() as u32;
        let (adverts, acks) = (count(|m| matches!(m, ToSender::Advert(..))), count(|m| matches!(m, ToSender::Ack(_))));
        if adverts > self.shape.adverts || acks > super::acks(self.shape.data) {
            return Err(format!("{adverts} ADVERT and {acks} ACK are under way"));
        }
        Ok(())
    }

    fn ended(&mut self, id: u64, how: Ended) -> Result<(), Fault> {
        let at = self.receives.iter().position(|receive| receive.id == id).ok_or("a receive ends twice")?;
        let receive = self.receives.remove(at);
        match how {
            Ended::Cancelled if receive.filled > 0 || !receive.cancelled => Err("a receive with bytes is cancelled")?,
            Ended::Cancelled => return Ok(()),
            Ended::Bytes(_) if at > 0 => Err("receives end in order")?,
            Ended::Bytes(len) if len != receive.filled => Err("a receive ends with bytes that it does not have")?,
            Ended::Bytes(_) => {}
        }
        let over = self.fin && self.got == self.sender.seq();
        if receive.filled < receive.len && !over && (receive.wait_all || receive.filled == 0) {
            Err("a receive ends too early")?;
        }
        Ok(())
    }

    /// Bytes reach the memory of a receive.
    fn write(&mut self, id: u64, offset: u32, seq: u32, len: u32) -> Result<(), Fault> {
        let Some(receive) = self.receives.first_mut().filter(|receive| receive.id == id) else {
            return Err(format!("bytes are written to receive {id}, which is not the first that is pending"));
        };
        if receive.filled != offset || offset + len > receive.len {
            return Err(format!("{len} bytes are written at {offset} of {receive:?}"));
        }
        if seq != self.got {
            return Err(format!("byte {seq} comes where byte {} is due", self.got));
        }
        receive.filled += len;
        self.got = self.seq(seq, len);
        Ok(())
    }

    fn deliver_to_receiver(&mut self) -> Result<bool, Fault> {
        let Some(message) = self.to_receiver.pop_front() else { return Ok(false) };
        match message {
            ToReceiver::Data(Transfer { direct: Some((place, skip)), len, seq, released, .. }, number) => {
                self.write(place.0, place.1 + skip, number, len)?;
                sound(self.receiver.direct(len, seq, released), "a direct transfer")?;
            }
            ToReceiver::Data(Transfer { at, len, more, seq, released, .. }, number) => {
                if let Some((_, _, from, count)) = self.copy
                    && (from..from + count).any(|byte| (at..at + len).contains(&byte))
                {
                    return Err("the ring is overwritten under a copy".into());
                }
                for i in 0..len {
                    self.ring[(at + i) as usize] = self.seq(number, i);
                }
                sound(self.receiver.indirect(len, seq, released, more), "a transfer into the ring")?;
            }
            ToReceiver::Seen(count) => sound(self.receiver.seen(count), "a SEEN")?,
            ToReceiver::Retracted(phase) => sound(self.receiver.retracted(phase), "a RETRACTED")?,
            ToReceiver::Fin(seq) => sound(self.receiver.fin(seq), "a FIN")?,
        }
        self.pump_receiver()?;
        Ok(true)
    }

    fn deliver_to_sender(&mut self) -> Result<bool, Fault> {
        let Some(message) = self.to_sender.pop_front() else { return Ok(false) };
        match message {
            ToSender::Advert(advert, ack) => {
                sound(self.sender.ack(ack), "an ACK with an ADVERT")?;
                sound(self.sender.advert(advert), "an ADVERT")?;
            }
            ToSender::Ack(ack) => sound(self.sender.ack(ack), "an ACK")?,
            ToSender::Retract(phase) => {
                sound(self.sender.retract(phase), "a RETRACT")?;
                self.to_receiver.push_back(ToReceiver::Retracted(phase));
            }
        }
        self.pump_sender()?;
        Ok(true)
    }

    fn end_copy(&mut self) -> Result<bool, Fault> {
        let Some((id, offset, at, len)) = self.copy.take() else { return Ok(false) };
        for i in 0..len {
            self.write(id, offset + i, self.ring[(at + i) as usize], 1)?;
        }
        // What is left in the ring means nothing.
        self.ring[at as usize..(at + len) as usize].fill(0);
        self.receiver.copied();
        self.pump_receiver()?;
        Ok(true)
    }

    /// The states that follow without the program, then those that it may bring about.
    fn next(&self, bounds: Bounds) -> Result<(Vec<World>, Vec<World>), Fault> {
        let (mut internal, mut external) = (Vec::new(), Vec::new());
        for step in [World::deliver_to_receiver, World::deliver_to_sender, World::end_copy] {
            let mut world = self.clone();
            if step(&mut world)? {
                internal.push(world);
            }
        }
        for len in 1..=bounds.waiting {
            if !self.fin && self.waiting == 0 {
                let mut world = self.clone();
                world.waiting += len;
                world.pump_sender()?;
                external.push(world);
            }
        }
        if bounds.fins && !self.fin && self.waiting == 0 {
            let mut world = self.clone();
            world.fin = true;
            world.to_receiver.push_back(ToReceiver::Fin(self.sender.seq()));
            external.push(world);
        }
        for wait_all in bounds.wait_all.iter().copied() {
            let len = 2;
            if self.receives.len() < bounds.receives {
                let mut world = self.clone();
                let id = self.receives.iter().map(|receive| receive.id + 1).max().unwrap_or(0);
                world.receives.push(Pending { id, len, wait_all, filled: 0, cancelled: false });
                world.receiver.post(id, len, wait_all);
                world.pump_receiver()?;
                external.push(world);
            }
        }
        for at in 0..self.receives.len() {
            if !bounds.cancels || self.receives.iter().any(|receive| receive.cancelled) {
                break;
            }
            let mut world = self.clone();
            world.receives[at].cancelled = world.receiver.cancel(self.receives[at].id);
            world.pump_receiver()?;
            external.push(world);
        }
        Ok((internal, external))
    }

    /// The state with numbers counted from that of the next byte that the program gets, phases from that of the
    /// receiver, and receives numbered in their order. The code adds to numbers and phases, and compares differences,
    /// so what follows from one such state follows from all.
    fn relative(mut self) -> World {
        let shape = self.shape;
        let (got, even) = (self.got, self.receiver.phase & !1);
        let seq = |seq: u32| seq.wrapping_sub(got) & shape.seq_mask;
        let phase = |phase: u16| phase.wrapping_sub(even) & shape.phase_mask;
        let order: Vec<u64> = self.receives.iter().map(|receive| receive.id).collect();
        // All that are over are one.
        let id = |id: u64| order.iter().position(|other| *other == id).unwrap_or(order.len()) as u64;
        let advert = |advert: &mut Advert<Place>| {
            (advert.phase, advert.seq, advert.place.0) = (phase(advert.phase), seq(advert.seq), id(advert.place.0));
        };
        self.sender.seq = seq(self.sender.seq);
        self.sender.phase = phase(self.sender.phase);
        self.sender.open.iter_mut().for_each(advert);
        self.receiver.seq = seq(self.receiver.seq);
        self.receiver.phase = phase(self.receiver.phase);
        self.receiver.retract = self.receiver.retract.map(|(of, handed)| (phase(of), handed));
        self.receiver.receives.iter_mut().for_each(|receive| receive.id = id(receive.id));
        self.copy = self.copy.map(|(of, offset, at, len)| (id(of), offset, at, len));
        for message in &mut self.to_sender {
            match message {
                ToSender::Advert(of, _) => advert(of),
                ToSender::Retract(of) => *of = phase(*of),
                ToSender::Ack(_) => {}
            }
        }
        for message in &mut self.to_receiver {
            match message {
                ToReceiver::Data(transfer, number) => {
                    (transfer.seq, *number) = (seq(transfer.seq), seq(*number));
                    transfer.direct = transfer.direct.map(|((of, offset), skip)| ((id(of), offset), skip));
                }
                ToReceiver::Retracted(of) => *of = phase(*of),
                ToReceiver::Fin(of) => *of = seq(*of),
                ToReceiver::Seen(_) => {}
            }
        }
        let held = |at: u32| (at + 4 - self.receiver.at) % 4 < self.receiver.used;
        for at in (0..4).filter(|at| held(*at)) {
            self.ring[at as usize] = seq(self.ring[at as usize]);
        }
        for at in (0..4).filter(|at| !held(*at)) {
            self.ring[at as usize] = 0;
        }
        for (n, receive) in (0..).zip(&mut self.receives) {
            receive.id = n;
        }
        self.got = 0;
        self
    }

    /// Nothing is under way: what must hold now.
    fn rest(&self) -> Result<(), Fault> {
        if self.waiting > 0 && self.sender.room > 0 && self.sender.credits > 0 {
            return Err("bytes wait, and the ring has room".into());
        }
        if self.receives.is_empty() {
            return Ok(());
        }
        if self.fin {
            return Err("the data have ended, and a receive has not".into());
        }
        if self.waiting > 0 {
            return Err("bytes wait, a receive is pending, and nothing moves".into());
        }
        if !self.sender.is_direct() {
            return Err("the next transfer would not be direct".into());
        }
        if self.receives.iter().any(|receive| receive.cancelled && receive.filled == 0) {
            return Err("a receive was cancelled, and has not ended".into());
        }
        Ok(())
    }
}

/// 128 bits that tell states apart.
struct Wide(u64, u64);

impl Wide {
    fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.1 = (self.1.rotate_left(29) ^ word).wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ self.0 >> 32;
    }
}

impl Hasher for Wide {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.mix(u64::from(*byte));
        }
    }

    fn write_u16(&mut self, word: u16) {
        self.mix(word.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.mix(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.mix(word as u64);
    }
}

/// Visit every state. The result is their number.
fn explore(shape: Shape, bounds: Bounds) -> Result<usize, Fault> {
    let key = |world: &World| {
        let mut hash = Wide(0, 0);
        world.hash(&mut hash);
        u128::from(hash.0) << 64 | u128::from(hash.1)
    };
    let start = World::new(shape);
    let mut numbers = HashMap::from([(key(&start), 0u32)]);
    let mut todo = VecDeque::from([(0u32, start)]);
    // Steps without the program, by their ends.
    let mut edges: Vec<(u32, u32)> = Vec::new();
    while let Some((number, world)) = todo.pop_front() {
        let found = |fault: Fault| format!("{fault}, in {world:#?}");
        let (internal, external) = world.next(bounds).map_err(found)?;
        if internal.is_empty() {
            world.rest().map_err(found)?;
        }
        for (inside, next) in
            internal.into_iter().map(|next| (true, next)).chain(external.into_iter().map(|next| (false, next)))
        {
            let next = if bounds.relative { next.relative() } else { next };
            let fresh = numbers.len() as u32;
            let to = *numbers.entry(key(&next)).or_insert(fresh);
            if to == fresh {
                todo.push_back((to, next));
            }
            if inside {
                edges.push((number, to));
            }
        }
    }
    ends(numbers.len(), &edges)?;
    Ok(numbers.len())
}

/// From each state, the steps without the program come to an end: they have no circle.
fn ends(count: usize, edges: &[(u32, u32)]) -> Result<(), Fault> {
    let mut into = vec![0u32; count];
    let mut first = vec![0u32; count + 1];
    for (from, to) in edges {
        into[*to as usize] += 1;
        first[*from as usize + 1] += 1;
    }
    for i in 0..count {
        first[i + 1] += first[i];
    }
    let mut at = first.clone();
    let mut sorted = vec![0u32; edges.len()];
    for (from, to) in edges {
        sorted[at[*from as usize] as usize] = *to;
        at[*from as usize] += 1;
    }
    let mut ready: Vec<u32> = (0..count as u32).filter(|state| into[*state as usize] == 0).collect();
    let mut done = 0;
    while let Some(state) = ready.pop() {
        done += 1;
        for to in &sorted[first[state as usize] as usize..first[state as usize + 1] as usize] {
            into[*to as usize] -= 1;
            if into[*to as usize] == 0 {
                ready.push(*to);
            }
        }
    }
    if done == count { Ok(()) } else { Err("steps without the program go round for ever".into()) }
}

fn shape(mutant: Option<Mutant>) -> Shape {
    Shape { ring: 4, chunk: 2, data: 2, adverts: 4, keep: 2, row: 2, large: 2, seq_mask: 7, phase_mask: 7, mutant }
}

/// Every state that bounds allow has been visited.
fn holds(bounds: Bounds, shape: Shape) -> usize {
    explore(shape, bounds).unwrap_or_else(|fault| panic!("{fault}"))
}

const SMALL: Bounds =
    Bounds { receives: 2, wait_all: &[false, true], waiting: 2, cancels: false, fins: true, relative: true };

#[test]
fn four_receives_and_a_ring_of_four_bytes() {
    // The end of the data, cancels and a mixture of both kinds have runs of their own: the product takes minutes.
    for wait_all in [&[false], &[true]] {
        let states = holds(Bounds { receives: 4, wait_all, fins: false, ..SMALL }, shape(None));
        assert!(states > 100_000, "{states} states");
        eprintln!("{states}");
    }
}

#[test]
fn data_end_in_every_state() {
    let states = holds(SMALL, shape(None));
    assert!(states > 500_000, "{states} states");
}

#[test]
fn receives_are_cancelled_in_every_state() {
    let states = holds(Bounds { cancels: true, receives: 1, ..SMALL }, shape(None));
    assert!(states > 100_000, "{states} states");
}

#[test]
fn transfers_into_the_ring_say_that_more_follow() {
    // More bytes wait than one transfer takes.
    for wait_all in [&[false], &[true]] {
        let states = holds(Bounds { waiting: 5, wait_all, ..SMALL }, shape(None));
        assert!(states > 200_000, "{states} states");
    }
}

/// As sockets have them: as many adverts as transfers, down to one.
#[test]
fn one_credit_or_two_are_enough() {
    for credits in [1, 2] {
        let shape = Shape { data: credits, adverts: credits, ..shape(None) };
        let states = holds(SMALL, shape);
        assert!(states > 50_000, "{states} states with {credits}");
    }
}

#[test]
fn numbers_wrap() {
    // Not counted from the next byte: every number and every phase comes at every place.
    let bounds = Bounds { receives: 1, waiting: 1, fins: false, ..SMALL };
    let (all, relative) = (holds(Bounds { relative: false, ..bounds }, shape(None)), holds(bounds, shape(None)));
    assert!(all > 20 * relative, "{all} states for {relative}");
}

/// The bytes cross the adverts, and the copy out of the ring is over before the SEEN for those adverts arrives. Both
/// ends could go on in that step for as long as the program has receives and bytes.
#[test]
fn bytes_do_not_cross_adverts_for_ever() {
    let mut world = World::new(shape(None));
    let post = |world: &mut World| {
        let id = world.receives.last().map_or(0, |last| last.id + 1);
        world.receives.push(Pending { id, len: 2, wait_all: true, filled: 0, cancelled: false });
        world.receiver.post(id, 2, true);
        world.pump_receiver().unwrap();
    };
    (0..4).for_each(|_| post(&mut world));
    world.waiting = 100;
    world.pump_sender().unwrap();
    assert!(!world.sender.is_direct() && world.to_sender.len() == 4, "the first bytes cross the adverts");
    for _ in 0..3 {
        while world.deliver_to_sender().unwrap() {}
        world.deliver_to_receiver().unwrap();
        world.end_copy().unwrap();
        while world.deliver_to_sender().unwrap() {}
        while let Some(ToReceiver::Seen(_)) = world.to_receiver.front() {
            world.deliver_to_receiver().unwrap();
        }
        while world.receives.len() < 4 {
            post(&mut world);
        }
    }
    while world.deliver_to_sender().unwrap() {}
    assert!(world.sender.phase.is_multiple_of(2), "the bytes still go through the ring");
}

#[test]
#[ignore = "minutes: two receives with cancels, four of both kinds with the end of the data"]
fn more_receives_with_cancels() {
    println!("{} states", holds(Bounds { cancels: true, ..SMALL }, shape(None)));
    println!("{} states", holds(Bounds { receives: 4, ..SMALL }, shape(None)));
}

/// A rule is left out, and the model finds what follows.
fn found(mutant: Mutant, what: &str) {
    let fault = explore(shape(Some(mutant)), SMALL).expect_err("a rule is missing");
    let fault = fault.lines().next().unwrap_or_default();
    assert!(fault.contains(what), "{fault}");
}

#[test]
fn the_number_of_an_advert_is_needed() {
    found(Mutant::AnyNumber, "");
}

#[test]
fn adverts_must_become_void() {
    found(Mutant::KeepAdverts, "");
}

#[test]
fn an_advert_must_wait_for_copies() {
    found(Mutant::AdvertBeforeCopy, "");
}

#[test]
fn bytes_are_free_after_their_copy() {
    found(Mutant::AckBeforeCopy, "");
}
