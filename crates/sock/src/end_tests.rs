//! Two ends on a virtual clock, over a model of TCP in which bytes take time to arrive, with seeded schedules.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use memory::backing::Heap;
use memory::stream::{Pair, PairWay};

use super::*;

#[path = "model_tests.rs"]
mod model;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 20) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// One direction of a TCP connection.
#[derive(Default)]
struct Pipe {
    flying: VecDeque<(u64, Vec<u8>)>,
    queue: VecDeque<u8>,
    written: u64,
    arrived: u64,
    /// When the FIN comes.
    fin: Option<u64>,
    reset: bool,
}

const SOCKET_ROOM: usize = 20_000;

#[derive(Default)]
struct Net {
    now: Cell<u64>,
    delay: Cell<u64>,
    pipes: [RefCell<Pipe>; 2],
    rung: [Cell<u64>; 2],
    /// The receiving process of the direction is gone.
    gone: [Cell<bool>; 2],
}

impl Net {
    fn pass(&self, time: u64) {
        self.now.set(self.now.get() + time);
        for pipe in &self.pipes {
            let mut pipe = pipe.borrow_mut();
            while pipe.flying.front().is_some_and(|(at, _)| *at <= self.now.get()) {
                let (_, bytes) = pipe.flying.pop_front().unwrap();
                pipe.arrived += bytes.len() as u64;
                pipe.queue.extend(bytes);
            }
        }
    }
}

/// The socket of the end that sends by pipe `side`.
#[derive(Clone)]
struct Tcp {
    net: Rc<Net>,
    side: usize,
}

impl Kernel for Tcp {
    fn send(&self, from: &[u8]) -> Result<usize, Errno> {
        let mut pipe = self.net.pipes[self.side].borrow_mut();
        if pipe.reset {
            return Err(EPIPE);
        }
        if from.is_empty() {
            return Ok(0);
        }
        let held: usize = pipe.queue.len() + pipe.flying.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        let some = from.len().min(SOCKET_ROOM - held);
        if some == 0 {
            return Err(EAGAIN);
        }
        if self.net.gone[self.side].get() {
            pipe.reset = true;
            return Ok(some);
        }
        pipe.written += some as u64;
        let at = self.net.now.get() + self.net.delay.get();
        pipe.flying.push_back((at, from[..some].to_vec()));
        Ok(some)
    }

    fn recv(&self, to: &mut [u8], peek: bool) -> Result<usize, Errno> {
        let mut pipe = self.net.pipes[1 - self.side].borrow_mut();
        let some = to.len().min(pipe.queue.len());
        if some == 0 && !to.is_empty() {
            let ended = pipe.flying.is_empty() && pipe.fin.is_some_and(|at| at <= self.net.now.get());
            return if ended { Ok(0) } else { Err(EAGAIN) };
        }
        for (to, from) in to.iter_mut().zip(pipe.queue.iter()) {
            *to = *from;
        }
        if !peek {
            pipe.queue.drain(..some);
        }
        Ok(some)
    }

    fn written(&self) -> Option<u64> {
        Some(self.net.pipes[self.side].borrow().written)
    }

    fn arrived(&self) -> Option<(u64, u64)> {
        let pipe = self.net.pipes[1 - self.side].borrow();
        Some((pipe.arrived, pipe.queue.len() as u64))
    }

    fn tell(&self, _bells: u32) {
        let bell = &self.net.rung[1 - self.side];
        bell.set(bell.get() + 1);
    }
}

type Memory = Rc<Pair<Heap>>;

fn end<'a>(memory: &'a Memory, own: &'a Own, net: &Rc<Net>, side: usize) -> End<'a, PairWay<'a, Heap>, Tcp> {
    End {
        out: Stream(memory.way(side == 1)),
        incoming: Stream(memory.way(side == 0)),
        own,
        kernel: Tcp { net: Rc::clone(net), side },
    }
}

fn memory() -> Memory {
    Rc::new(Pair::new(Heap::new(Pair::<Heap>::LEN)).unwrap())
}

/// Byte number `n` of the stream that `side` sends.
fn byte(side: usize, n: u64) -> u8 {
    (n.wrapping_mul(31).wrapping_add(n >> 8) as u8) ^ (side as u8 * 0x5A)
}

/// What one end's program has done so far.
#[derive(Default)]
struct Program {
    sent: u64,
    received: u64,
    fin: bool,
    ended: bool,
    /// It reads by plain TCP from now on, as one does who does not know of the ring.
    reads_plainly: bool,
    /// It writes so.
    writes_plainly: bool,
}

fn schedule(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let net = Rc::new(Net::default());
    net.delay.set(random.below(4) * 10);
    let memory = memory();
    let owns = [Own::default(), Own::default()];
    let ends = [end(&memory, &owns[0], &net, 0), end(&memory, &owns[1], &net, 1)];
    let mut programs = [Program::default(), Program::default()];
    let mut buffer = vec![0u8; 70_000];
    // Some schedules are one-way streams that are never idle.
    let one_way = random.one_in(3);
    let steps = 400;
    let (mut rings_used, mut wants_plainly) = (0, [false; 2]);
    for step in 0..100_000 {
        net.pass(random.below(8));
        let side = random.below(2) as usize;
        let (me, ending) = (&ends[side], step > steps);
        let (theirs, finished) = (programs[1 - side].sent, programs[1 - side].fin);
        let program = &mut programs[side];
        if me.needs_service() {
            me.serve();
        }
        if wants_plainly[side] && me.is_received_by_tcp() == Some(true) {
            program.reads_plainly = true;
        }
        let most = if random.one_in(4) { buffer.len() as u64 - 1 } else { 900 };
        let length = 1 + random.below(most) as usize;
        match random.below(if ending { 6 } else { 60 }) {
            0..6 if ending && !program.fin => {
                program.fin = true;
                owns[side].shut(false, true);
                // A program that still has bytes to be taken back sends its FIN behind them.
                while me.needs_service() {
                    me.serve();
                    net.pass(1);
                    drain(&ends[1 - side], &mut programs[1 - side], 1 - side, &mut buffer);
                }
                net.pipes[side].borrow_mut().fin = Some(net.now.get() + net.delay.get());
            }
            6 if !ending => me.set_ready(),
            7 if !ending && random.one_in(6) => {
                program.writes_plainly = me.send_by_tcp() && random.one_in(2);
            }
            8 if !ending && random.one_in(6) => {
                me.receive_by_tcp();
                wants_plainly[side] = random.one_in(2);
            }
            9..30 if !(program.fin || one_way && side == 1) => {
                let data: Vec<u8> = (0..length as u64).map(|n| byte(side, program.sent + n)).collect();
                let sent =
                    if program.writes_plainly { me.kernel.send(&data) } else { me.send(&data, !random.one_in(5)) };
                match sent {
                    Ok(some) => program.sent += some as u64,
                    Err(error) => assert_eq!(error, EAGAIN, "seed {seed}"),
                }
                rings_used += u32::from(me.sends_by_ring());
            }
            _ if !program.ended => {
                let peek = random.one_in(10);
                let readable = !program.reads_plainly && me.is_readable().unwrap();
                let got = match program.reads_plainly {
                    true => me.kernel.recv(&mut buffer[..length], peek),
                    false => me.receive(&mut buffer[..length], peek, true),
                };
                match got {
                    Ok(0) => {
                        program.ended = true;
                        assert!(program.received == theirs && finished, "seed {seed}: bytes are missing at the end");
                    }
                    Ok(some) => {
                        for (n, got) in buffer[..some].iter().enumerate() {
                            let at = program.received + n as u64;
                            assert_eq!(*got, byte(1 - side, at), "seed {seed}: byte {at} of side {}", 1 - side);
                        }
                        program.received += if peek { 0 } else { some as u64 };
                    }
                    Err(error) => assert!(error == EAGAIN && !readable, "seed {seed}: {error:?}"),
                }
            }
            _ => {}
        }
        if programs.iter().all(|program| program.ended) {
            break;
        }
    }
    for program in &programs {
        assert!(program.ended, "seed {seed}: it never ended");
    }
    USED.with(|used| used.set(used.get() + u64::from(rings_used > 0)));
}

thread_local! {
    static USED: Cell<u64> = const { Cell::new(0) };
}

/// Reads whatever there is.
fn drain(end: &End<'_, PairWay<'_, Heap>, Tcp>, program: &mut Program, side: usize, buffer: &mut [u8]) {
    while let Ok(some @ 1..) = end.receive(buffer, false, true) {
        for got in &buffer[..some] {
            assert_eq!(*got, byte(1 - side, program.received));
            program.received += 1;
        }
    }
}

#[test]
fn every_byte_comes_once_and_in_order_whatever_the_schedule() {
    const SEEDS: u64 = 200;
    for seed in 1..=SEEDS {
        schedule(seed);
    }
    USED.with(|used| assert!(used.get() > SEEDS / 2, "the ring was hardly ever used: {}", used.get()));
}

/// A pair of ends that send by ring, after 5 bytes by TCP that are still on their way.
fn moved(delay: u64, test: impl Fn(&Rc<Net>, [&End<'_, PairWay<'_, Heap>, Tcp>; 2])) {
    let net = Rc::new(Net::default());
    net.delay.set(delay);
    let memory = memory();
    let owns = [Own::default(), Own::default()];
    let ends = [end(&memory, &owns[0], &net, 0), end(&memory, &owns[1], &net, 1)];
    assert_eq!(ends[0].send(b"first", true), Ok(5));
    assert!(!ends[0].sends_by_ring());
    ends[1].set_ready();
    ends[0].set_ready();
    assert_eq!(ends[0].send(b"second", true), Ok(6));
    assert_eq!(ends[1].send(b"back", true), Ok(4));
    assert!(ends[0].sends_by_ring() && ends[1].sends_by_ring());
    test(&net, [&ends[0], &ends[1]]);
}

#[test]
fn the_ring_waits_for_bytes_that_are_on_their_way_by_tcp() {
    moved(10, |net, [_, receiver]| {
        let mut to = [0; 20];
        assert_eq!(receiver.is_readable(), Ok(false));
        assert_eq!(receiver.receive(&mut to, false, true), Err(EAGAIN));
        net.pass(10);
        assert_eq!(receiver.is_readable(), Ok(false));
        assert_eq!((receiver.receive(&mut to, false, true), &to[..5]), (Ok(5), &b"first"[..]));
        assert_eq!(receiver.is_readable(), Ok(true));
        assert_eq!((receiver.receive(&mut to, false, true), &to[..6]), (Ok(6), &b"second"[..]));
        assert_eq!(receiver.receive(&mut to, false, true), Err(EAGAIN));
    });
}

#[test]
fn an_end_that_stays_and_one_that_is_not_ready_are_not_switched() {
    let net = Rc::new(Net::default());
    let memory = memory();
    let owns = [Own::default(), Own::default()];
    let ends = [end(&memory, &owns[0], &net, 0), end(&memory, &owns[1], &net, 1)];
    owns[1].stay();
    ends[1].set_ready();
    assert_eq!((ends[0].send(b"x", true), ends[0].sends_by_ring()), (Ok(1), false));
    ends[0].set_ready();
    assert_eq!((ends[1].send(b"x", true), ends[1].sends_by_ring()), (Ok(1), false));
    assert_eq!((ends[0].writable(), net.pipes[0].borrow().written), (Writable::AsKernel, 1));
}

#[test]
fn after_the_others_end_one_write_succeeds_and_the_next_is_a_broken_pipe() {
    moved(0, |net, [a, b]| {
        // The process of `b` is killed.
        net.pipes[1].borrow_mut().fin = Some(0);
        net.gone[0].set(true);
        net.pass(1);
        let mut to = [0; 20];
        assert_eq!((a.receive(&mut to, false, true), &to[..4]), (Ok(4), &b"back"[..]));
        assert_eq!(a.receive(&mut to, false, true), Ok(0));
        assert_eq!(a.writable(), Writable::Yes);
        assert_eq!(a.send(b"more", true), Ok(4));
        assert_eq!(a.send(b"more", true), Err(EPIPE));
        assert!(!b.is_broken());
    });
}

#[test]
fn a_half_closed_connection_goes_on_in_the_other_direction() {
    moved(0, |net, [a, b]| {
        net.pass(1);
        a.own.shut(false, true);
        net.pipes[0].borrow_mut().fin = Some(0);
        assert_eq!(a.send(b"x", true), Err(EPIPE));
        let mut to = [0; 20];
        assert_eq!(b.receive(&mut to, false, true), Ok(5));
        assert_eq!(b.receive(&mut to, false, true), Ok(6));
        assert_eq!(b.receive(&mut to, false, true), Ok(0));
        // By TCP again, behind what is in the ring.
        assert_eq!(b.send(b"answer", true), Ok(6));
        assert!(!b.sends_by_ring());
        net.pass(1);
        for expected in [&b"back"[..], b"answer"] {
            let got = a.receive(&mut to, false, true).unwrap();
            assert_eq!(&to[..got], expected);
        }
    });
}

#[test]
fn a_ring_that_has_ended_is_read_by_whoever_asks_for_tcp_too_late() {
    moved(0, |net, [a, b]| {
        net.pass(1);
        a.own.shut(false, true);
        a.out.set_finished();
        net.pipes[0].borrow_mut().fin = Some(0);
        b.receive_by_tcp();
        assert_eq!((a.needs_service(), b.is_received_by_tcp()), (false, Some(false)));
        a.serve();
        let mut to = [0; 20];
        assert_eq!((b.receive(&mut to, false, true), &to[..5]), (Ok(5), &b"first"[..]));
        assert_eq!((b.receive(&mut to, false, true), &to[..6]), (Ok(6), &b"second"[..]));
        assert_eq!((b.is_received_by_tcp(), b.receive(&mut to, false, true)), (Some(true), Ok(0)));
    });
}

#[test]
fn a_full_ring_says_so_until_a_quarter_is_free() {
    moved(0, |net, [a, b]| {
        net.pass(1);
        let data = vec![7; 300_000];
        assert_eq!(a.send(&data, true), Ok((256 << 10) - 6));
        assert_eq!((a.send(&data, true), a.writable()), (Err(EAGAIN), Writable::No));
        let before = net.rung[0].get();
        let mut to = vec![0; 60_000];
        assert_eq!(b.receive(&mut to, false, true), Ok(5));
        assert_eq!(b.receive(&mut to, false, true), Ok(60_000));
        assert_eq!((a.writable(), net.rung[0].get()), (Writable::No, before));
        assert_eq!(b.receive(&mut to, false, true), Ok(60_000));
        assert_eq!((a.writable(), net.rung[0].get()), (Writable::Yes, before + 1));
    });
}

#[test]
fn bytes_by_tcp_that_nobody_announced_break_the_connection() {
    moved(0, |net, [a, _]| {
        net.pass(1);
        let mut to = [0; 20];
        assert_eq!(a.receive(&mut to, false, true), Ok(4));
        net.pipes[1].borrow_mut().queue.extend(b"forged");
        assert_eq!(a.receive(&mut to, false, true), Err(ECONNRESET));
        assert_eq!(a.send(b"x", true), Err(ECONNRESET));
        assert!(a.is_broken());
    });
}

#[test]
fn a_sender_that_dies_while_it_takes_bytes_back_does_not_end_the_stream_properly() {
    moved(0, |net, [a, b]| {
        net.pass(1);
        let mut to = vec![0; 100];
        assert_eq!(b.receive(&mut to, false, true), Ok(5));
        assert_eq!(a.send(&vec![1; 50_000], true), Ok(50_000));
        b.receive_by_tcp();
        assert!(a.needs_service());
        a.serve();
        assert!(a.needs_service());
        net.pipes[0].borrow_mut().fin = Some(0);
        net.pass(1);
        loop {
            match b.receive(&mut to, false, true) {
                Ok(1..) => {}
                end => break assert_eq!(end, Err(ECONNRESET)),
            }
        }
    });
}
