//! One connection, exhaustively: every state that two ends can reach, with the code of [`End`] as the function from
//! one state to the next, over a model of TCP.
//!
//! A state is the shared words and rings, what the holders of each end know, the two kernel sockets with what flies
//! between them, and how far each program is. Rings have two bytes, sockets have room for two more, so everything
//! becomes full. Each end sends a few bytes, and may at any time: become ready, send, receive, look, go back to TCP as
//! a sender or as a receiver, go on without the library then, shut its direction down, and lose a holder. One end has
//! two holders.
//!
//! A step need not be whole. At each of its calls of the kernel and at each access to shared memory the process may
//! die, or somebody else may do a whole step of its own: the other end, the other holder, or the network.
//!
//! After each step the bytes that were received are the first ones of those that were sent, the end of a stream is told
//! behind all of them, and no end takes the other one for hostile. In each state, whatever the survivors have sent
//! arrives if everybody goes on.

use std::cell::{Cell, RefCell};
use std::panic::resume_unwind;

use memory::stream::Words;

use super::super::*;

#[path = "explore_tests.rs"]
mod explore;

/// Bytes of a ring, and of a socket.
const ROOM: usize = 2;

/// One direction of the TCP connection. A byte's value is its place in the stream.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
struct Pipe {
    flying: Vec<u8>,
    queue: Vec<u8>,
    written: u8,
    arrived: u8,
    /// The sender's socket has been shut down, or closed; and with a reset.
    is_shut: bool,
    is_reset: bool,
    has_fin_arrived: bool,
    /// The receiver has read the reset.
    is_told: bool,
    /// The receiver's socket is closed, and its reset has come back.
    is_closed: bool,
    is_broken: bool,
}

/// What the program of one end has done.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
struct Program {
    holders: u8,
    sent: u8,
    /// Bytes of a call whose process has died in it: they may be sent or not.
    maybe_sent: u8,
    got: u8,
    /// Bytes that a call may have taken whose process has died in it.
    maybe_got: u8,
    /// Sent a shutdown.
    is_shut: bool,
    /// Has got the end of the stream, or an error.
    is_over: bool,
    reads_plainly: bool,
    writes_plainly: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    words: [([u64; 5], [u32; 5]); 2],
    rings: [[u8; ROOM]; 2],
    owns: [[u32; 6]; 2],
    pipes: [Pipe; 2],
    programs: [Program; 2],
    /// Bytes that each end sends at most.
    lengths: [u8; 2],
}

/// A step of one of the ends, or of the network towards it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Ready,
    Send(u8),
    Receive(usize),
    Look(usize),
    Serve,
    SendByTcp,
    ReceiveByTcp,
    GoOnPlainly,
    Shut,
    Die,
    Deliver,
}

const STEPS: [Step; 12] = [
    Step::Ready,
    Step::Send(1),
    Step::Send(2),
    Step::Receive(1),
    Step::Receive(3),
    Step::Look(3),
    Step::Serve,
    Step::SendByTcp,
    Step::ReceiveByTcp,
    Step::GoOnPlainly,
    Step::Shut,
    Step::Die,
];

/// What happens in the middle of a step: the process dies, or this step of this end, at this point.
#[derive(Clone, Copy, Debug)]
struct Middle {
    at: u32,
    what: Option<(usize, Step)>,
}

/// The process has died.
struct Died;

/// The memory, the sockets and the programs, while a step is done.
struct World {
    words: [Words; 2],
    rings: [Cell<[u8; ROOM]>; 2],
    owns: [Own; 2],
    pipes: [RefCell<Pipe>; 2],
    programs: [RefCell<Program>; 2],
    points: Cell<u32>,
    /// What is done is no part of a step.
    is_aside: Cell<bool>,
    lengths: [u8; 2],
    middle: Cell<Option<Middle>>,
    /// Something is wrong.
    wrong: RefCell<Option<String>>,
}

/// The words of [`Own`].
fn own_words(own: &Own) -> [&AtomicU32; 6] {
    [&own.stay, &own.write_shut, &own.read_shut, &own.ended, &own.error, &own.broken]
}

impl World {
    fn new(state: &State) -> World {
        let own = |values: &[u32; 6]| {
            let own = Own::default();
            own_words(&own).into_iter().zip(values).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
            own
        };
        World {
            words: state.words.map(Words::with),
            rings: state.rings.map(Cell::new),
            owns: [own(&state.owns[0]), own(&state.owns[1])],
            pipes: state.pipes.clone().map(RefCell::new),
            programs: state.programs.clone().map(RefCell::new),
            points: Cell::new(0),
            is_aside: Cell::new(false),
            lengths: state.lengths,
            middle: Cell::new(None),
            wrong: RefCell::new(None),
        }
    }

    fn state(&self) -> State {
        let mut state = self.whole_state();
        for side in [0, 1] {
            // What a dead process knew makes no difference any more.
            let Program { holders, sent, maybe_sent, .. } = state.programs[side];
            if holders == 0 {
                state.programs[side] = Program { sent, maybe_sent, ..Program::default() };
                state.owns[side] = [0; 6];
                let Pipe { written, is_broken, .. } = state.pipes[1 - side];
                state.pipes[1 - side] = Pipe { written, is_broken, is_closed: true, ..Pipe::default() };
            }
        }
        state
    }

    fn whole_state(&self) -> State {
        State {
            words: self.words.each_ref().map(Words::values),
            rings: self.rings.each_ref().map(Cell::get),
            owns: self.owns.each_ref().map(|own| own_words(own).map(|word| word.load(Ordering::Relaxed))),
            pipes: self.pipes.each_ref().map(|pipe| pipe.borrow().clone()),
            programs: self.programs.each_ref().map(|program| program.borrow().clone()),
            lengths: self.lengths,
        }
    }

    /// A point in a step at which something else may happen.
    fn point(&self) {
        if self.is_aside.get() {
            return;
        }
        let now = self.points.get();
        self.points.set(now + 1);
        if let Some(Middle { at, what }) = self.middle.get()
            && at == now
        {
            self.middle.set(None);
            match what {
                None => resume_unwind(Box::new(Died)),
                Some((side, step)) => self.whole(side, step),
            }
        }
    }

    fn check(&self, is_right: bool, what: &str) {
        if !is_right {
            self.wrong.borrow_mut().get_or_insert_with(|| what.to_owned());
        }
    }

    fn end(&self, side: usize) -> End<'_, Way<'_>, Tcp<'_>> {
        End {
            out: Stream(Way { world: self, side }),
            incoming: Stream(Way { world: self, side: 1 - side }),
            own: &self.owns[side],
            kernel: Tcp { world: self, side },
        }
    }

    /// Looks at something without a point in which something happens.
    fn aside<R>(&self, look: impl FnOnce() -> R) -> R {
        let before = self.is_aside.replace(true);
        let found = look();
        self.is_aside.set(before);
        found
    }

    /// Whether a step may be done at all.
    fn may(&self, side: usize, step: Step) -> bool {
        let program = self.programs[side].borrow();
        let end = self.end(side);
        let lives = program.holders > 0;
        let by_library = !program.reads_plainly;
        // A direction without bytes stays as it is, but for its end.
        let receives = self.lengths[1 - side] > 0;
        match step {
            Step::Ready => receives && lives && by_library && !end.incoming.is_ready() && !self.owns[side].stays(),
            Step::Send(some) => {
                // After a death in a send nobody knows which byte would be the next one.
                lives && !program.is_shut && program.maybe_sent == 0 && program.sent + some <= self.lengths[side]
            }
            Step::Receive(_) | Step::Look(_) => lives && !program.is_over,
            Step::Serve => lives && end.needs_service(),
            Step::SendByTcp => self.lengths[side] > 0 && lives && !self.owns[side].stays(),
            Step::ReceiveByTcp => receives && lives && !end.incoming.is_asked_to_retract(),
            Step::GoOnPlainly => {
                let reads = by_library && end.incoming.is_asked_to_retract() && end.is_received_by_tcp() == Some(true);
                lives && (reads || !program.writes_plainly && end.sends_by_tcp_for_good())
            }
            Step::Shut => lives && !program.is_shut && !end.needs_service(),
            Step::Die => lives,
            Step::Deliver => {
                let pipe = self.pipes[1 - side].borrow();
                lives && (!pipe.flying.is_empty() || (pipe.is_shut || pipe.is_reset) && !pipe.has_fin_arrived)
            }
        }
    }

    /// The kernel closes the socket of an end that nobody has any more.
    fn lose_holder(&self, side: usize) {
        let mut program = self.programs[side].borrow_mut();
        program.holders -= 1;
        if program.holders == 0 {
            let is_unread = !self.pipes[1 - side].borrow().queue.is_empty();
            let mut pipe = self.pipes[side].borrow_mut();
            pipe.is_shut = true;
            pipe.is_reset |= is_unread;
            self.pipes[1 - side].borrow_mut().is_closed = true;
        }
    }

    /// A step with nothing in its middle.
    fn whole(&self, side: usize, step: Step) {
        if !self.aside(|| self.may(side, step)) {
            return;
        }
        let end = self.end(side);
        match step {
            Step::Ready => end.set_ready(),
            Step::Send(some) => self.send(side, some),
            Step::Receive(most) => self.receive(side, most, false),
            Step::Look(most) => self.receive(side, most, true),
            Step::Serve => end.serve(),
            Step::SendByTcp => {
                end.send_by_tcp();
            }
            Step::ReceiveByTcp => end.receive_by_tcp(),
            Step::GoOnPlainly => {
                let (reads, writes) = self.aside(|| {
                    let reads = end.incoming.is_asked_to_retract() && end.is_received_by_tcp() == Some(true);
                    (reads, end.sends_by_tcp_for_good())
                });
                let mut program = self.programs[side].borrow_mut();
                program.reads_plainly |= reads;
                program.writes_plainly |= writes;
            }
            Step::Shut => {
                self.owns[side].shut(false, true);
                end.out.set_finished();
                self.point();
                self.pipes[side].borrow_mut().is_shut = true;
                self.programs[side].borrow_mut().is_shut = true;
            }
            Step::Die => self.lose_holder(side),
            Step::Deliver => {
                let mut pipe = self.pipes[1 - side].borrow_mut();
                if pipe.flying.is_empty() {
                    pipe.has_fin_arrived = true;
                } else {
                    let byte = pipe.flying.remove(0);
                    pipe.queue.push(byte);
                    pipe.arrived += 1;
                }
            }
        }
        self.check(!self.end(0).is_broken() && !self.end(1).is_broken(), "an end is taken for hostile");
    }

    fn send(&self, side: usize, some: u8) {
        let (from, plainly) = {
            let mut program = self.programs[side].borrow_mut();
            program.maybe_sent += some;
            (program.sent, program.writes_plainly)
        };
        let bytes: Vec<u8> = (from..from + some).collect();
        let end = self.end(side);
        let sent = if plainly { end.kernel.send(&bytes) } else { end.send(&bytes, true) };
        let mut program = self.programs[side].borrow_mut();
        program.maybe_sent -= some;
        match sent {
            Ok(went) => program.sent += went as u8,
            Err(EAGAIN) => {}
            Err(_) => {
                let is_gone = self.programs[1 - side].borrow().holders == 0;
                self.check(is_gone || self.owns[side].write_shut.load(Ordering::Relaxed) != 0, "a send failed");
            }
        }
    }

    fn receive(&self, side: usize, most: usize, peek: bool) {
        let mut to = vec![0; most];
        let plainly = {
            let mut program = self.programs[side].borrow_mut();
            program.maybe_got += if peek { 0 } else { most as u8 };
            program.reads_plainly
        };
        let end = self.end(side);
        let got = if plainly { end.kernel.recv(&mut to, peek) } else { end.receive(&mut to, peek, true) };
        let mut program = self.programs[side].borrow_mut();
        program.maybe_got -= if peek { 0 } else { most as u8 };
        let other = self.programs[1 - side].borrow();
        match got {
            Ok(0) => {
                let is_all = program.got + program.maybe_got >= other.sent;
                // Who reads without the library cannot be told that the sender has died while it took bytes back.
                let mode = self.aside(|| self.end(side).incoming.mode());
                let is_untold = plainly && other.holders == 0 && mode == Mode::Retracting;
                self.check(is_all || is_untold, "bytes are missing at the end");
                self.check(self.pipes[1 - side].borrow().is_shut, "the end of a stream that goes on");
                program.is_over = true;
            }
            Ok(some) => {
                let first = to[0];
                let is_next = (program.got..=program.got + program.maybe_got).contains(&first);
                let is_row = to[..some].iter().zip(first..).all(|(byte, at)| *byte == at);
                self.check(is_next && is_row, "other bytes than were sent");
                self.check(first + some as u8 <= other.sent + other.maybe_sent, "bytes that were not sent");
                if !peek {
                    program.maybe_got = 0;
                    program.got = first + some as u8;
                }
            }
            Err(EAGAIN) => {}
            Err(_) => {
                self.check(other.holders == 0, "a receive failed");
                program.is_over = true;
            }
        }
    }
}

struct Tcp<'a> {
    world: &'a World,
    side: usize,
}

impl Kernel for Tcp<'_> {
    fn send(&self, from: &[u8]) -> Result<usize, Errno> {
        self.world.point();
        let mut pipe = self.world.pipes[self.side].borrow_mut();
        if pipe.is_shut || pipe.is_broken {
            return Err(EPIPE);
        }
        if from.is_empty() {
            return Ok(0);
        }
        if pipe.is_closed {
            pipe.is_broken = true;
            return Ok(from.len());
        }
        let some = from.len().min(ROOM - (pipe.queue.len() + pipe.flying.len()).min(ROOM));
        if some == 0 {
            return Err(EAGAIN);
        }
        pipe.written += some as u8;
        pipe.flying.extend(&from[..some]);
        Ok(some)
    }

    fn recv(&self, to: &mut [u8], peek: bool) -> Result<usize, Errno> {
        self.world.point();
        let mut pipe = self.world.pipes[1 - self.side].borrow_mut();
        let some = to.len().min(pipe.queue.len());
        if some == 0 && !to.is_empty() {
            return match pipe.has_fin_arrived {
                true if pipe.is_reset && !pipe.is_told => {
                    pipe.is_told = true;
                    Err(ECONNRESET)
                }
                true => Ok(0),
                false => Err(EAGAIN),
            };
        }
        to[..some].copy_from_slice(&pipe.queue[..some]);
        if !peek {
            pipe.queue.drain(..some);
        }
        Ok(some)
    }

    fn written(&self) -> Option<u64> {
        self.world.point();
        Some(u64::from(self.world.pipes[self.side].borrow().written))
    }

    fn arrived(&self) -> Option<(u64, u64)> {
        self.world.point();
        let pipe = self.world.pipes[1 - self.side].borrow();
        Some((u64::from(pipe.arrived), pipe.queue.len() as u64))
    }

    fn tell(&self, _bells: u32) {}
}

struct Way<'a> {
    world: &'a World,
    side: usize,
}

impl StreamMemory for Way<'_> {
    const ROOM: u64 = ROOM as u64;

    fn words(&self) -> &Words {
        self.world.point();
        &self.world.words[self.side]
    }

    fn load(&self, at: usize, to: &mut [u8]) {
        to.copy_from_slice(&self.world.rings[self.side].get()[at..at + to.len()]);
    }

    fn store(&self, at: usize, from: &[u8]) {
        let mut ring = self.world.rings[self.side].get();
        ring[at..at + from.len()].copy_from_slice(from);
        self.world.rings[self.side].set(ring);
    }
}
