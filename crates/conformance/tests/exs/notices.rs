//! Notices of transfers in memory, to a program that looks for events again and again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use conformance::{PATIENCE, library};
use exs::protocol::{HEADER, Hello, Immediate, Kind, Message, Notice, NoticePlaces, ROW, Remote, Settings, TOGETHER};
use exs::socket::{Event, EventKind, Exs, Memory, Options, Queue, Socket, WaitMode};
use rdma::{Data, EventChannel, RecvWr, SendOp, SendWr, Status, Wc};

use super::common::{expect, local};
use super::forged::Forger;

/// Receives of the forger, behind what it sends.
const SLOTS: usize = 8;
const AT: usize = 1024;

/// A socket whose program posts one receive at a time, and a peer that sends it bytes through the ring: they are those
/// that lie there.
struct Pair {
    exs: Exs,
    queue: Arc<Queue>,
    memory: Arc<Memory>,
    socket: Arc<Socket>,
    forger: Forger,
    hello: Hello,
    /// Messages that the forger has sent, notices that it has written, and bytes that it has told of.
    sent: u32,
    written: u32,
    bytes: u32,
    looks: bool,
    /// SLEEPS has come, and SLEPT was not sent.
    owes: bool,
    _events: Arc<EventChannel>,
}

impl Pair {
    fn new() -> Pair {
        let exs = Exs::new(&library()).expect("a device");
        let queue = exs.queue(8).expect("a queue");
        let memory = exs.memory(1).expect("memory");
        let listener = exs.listen(local(), 8, Options::new(Kind::Stream)).expect("an address");
        listener.accept(&queue, 1).expect("a place");
        let events = library().create_event_channel().expect("a channel");
        let to = listener.local_addr().expect("it is bound");
        let forger = Forger::ask_with(&events, to, AT + SLOTS * ROW, |mr| {
            let settings = Settings { kind: Kind::Stream, credits: 16, small: 0, ring: 1 };
            let ring = Remote { addr: mr.addr(), rkey: mr.rkey() };
            Hello { settings, ring, windows: false, mapped: false }.emit().to_vec()
        });
        let hello = forger.finish();
        assert!(hello.mapped);
        let socket = expect(&queue, EventKind::Accept, 1).socket.expect("a connection");
        let (sent, written, bytes, looks, owes) = (0, 0, 0, false, false);
        let _events = events;
        let pair = Pair { exs, queue, memory, socket, forger, hello, sent, written, bytes, looks, owes, _events };
        (0..SLOTS).for_each(|slot| pair.post_receive(slot));
        pair
    }

    fn post_receive(&self, slot: usize) {
        let sges = [self.forger.mr.sge(AT + slot * ROW, ROW)];
        self.forger.qp.post_recv(&RecvWr { wr_id: 100 + slot as u64, sges: &sges }).expect("a receive");
    }

    /// Take in what the socket has sent.
    fn hear(&mut self) {
        let mut wcs = [Wc::default(); 8];
        let count = self.forger.cq.poll(&mut wcs).expect("a queue");
        for wc in &wcs[..count] {
            assert_eq!(wc.status(), Status::SUCCESS);
            let Some(slot) = wc.wr_id().checked_sub(100) else { continue };
            let mut header = [0; HEADER];
            self.forger.mr.read(AT + slot as usize * ROW, &mut header);
            self.post_receive(slot as usize);
            match Message::parse(&header, HEADER).expect("a message") {
                Message::Looks => assert!(!std::mem::replace(&mut self.looks, true)),
                Message::Sleeps => {
                    assert!(std::mem::take(&mut self.looks));
                    self.owes = true;
                }
                _ => {}
            }
        }
    }

    /// Look for events, and hear the socket, until either is there.
    fn until(&mut self, what: &str, mut done: impl FnMut(&Pair) -> bool) {
        let since = Instant::now();
        while !done(self) {
            self.hear();
            assert!(since.elapsed() < PATIENCE, "{what}");
        }
    }

    fn send(&mut self, message: Message) {
        self.hear();
        self.forger.post(&message.emit());
        self.sent += 1;
    }

    /// The value that says that the next byte is in the ring.
    fn imm(&mut self) -> u32 {
        let seq = self.bytes;
        self.bytes += 1;
        Immediate { direct: false, released: 0, more: false, seq }.emit()
    }

    fn write(&mut self, behind: u32, imm: u32) {
        self.write_of(behind, imm, 1);
    }

    fn write_of(&mut self, behind: u32, imm: u32, len: u32) {
        self.hear();
        self.written += 1;
        let notice = Notice { number: self.written, behind, imm, len }.emit();
        // Several may be under way.
        let from = 512 + self.written as usize % SLOTS * notice.len();
        self.forger.mr.write(from, &notice);
        let Remote { addr, rkey } = self.hello.ring;
        let Settings { ring, credits, .. } = self.hello.settings;
        let addr = addr + NoticePlaces::new(ring, credits).of(self.written);
        let sges = [self.forger.mr.sge(from, notice.len())];
        self.forger.qp.post_send(&SendWr::new(1, SendOp::Write { addr, rkey }, Data::Sges(&sges))).expect("a WRITE");
    }

    fn receive(&self) {
        self.socket.receive(&self.memory, 0..1, false, &self.queue, 2).expect("a receive");
    }

    /// What there is, after one look.
    fn look(&self) -> Option<Event> {
        self.queue.dequeue(1, 0, None).pop()
    }

    /// Wait for the end of the receive, by looks alone.
    fn look_for_byte(&mut self) {
        self.until("a byte", |pair| pair.look().is_some_and(|event| event.result == Ok(1)));
    }

    /// Have the socket look at notices. Other work of the machine may have it sleep before.
    fn have_it_look(&mut self) {
        let since = Instant::now();
        while !self.looks {
            assert!(since.elapsed() < PATIENCE, "the program looks again and again");
            if std::mem::take(&mut self.owes) {
                self.send(Message::Slept);
            }
            self.receive();
            let imm = self.imm();
            self.send(Message::Data { imm, len: 1 });
            self.look_for_byte();
            self.hear();
        }
    }

    /// Answer that no notice follows.
    fn answer(&mut self) {
        self.until("the socket sleeps", |pair| !pair.looks);
        if std::mem::take(&mut self.owes) {
            self.send(Message::Slept);
        }
    }

    /// Has the socket take a byte in that a notice tells of: by a look, whose event is the result, or with the answer
    /// to its message that it sleeps.
    fn take_byte(&mut self) -> Option<Event> {
        let mut event = None;
        self.until("a notice, or the socket sleeps", |pair| {
            event = pair.look();
            event.is_some() || !pair.looks
        });
        if event.is_none() {
            self.answer();
            self.look_for_byte();
        }
        event
    }
}

#[test]
fn a_program_that_looks_finds_notices() {
    let mut pair = Pair::new();
    // A program that is kept from looking for a millisecond sleeps.
    let found = (0..1000).any(|_| {
        pair.have_it_look();
        pair.receive();
        let imm = pair.imm();
        pair.write(pair.sent, imm);
        let event = pair.take_byte();
        event.is_some_and(|event| event.result == Ok(1)) && pair.looks
    });
    assert!(found, "no notice was found by a look");
}

#[test]
fn a_notice_waits_for_the_messages_in_front_of_it() {
    let mut pair = Pair::new();
    pair.have_it_look();
    pair.receive();
    let imm = pair.imm();
    pair.write(pair.sent + 1, imm);
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(20) {
        pair.hear();
        assert!(pair.look().is_none(), "a message is in front of it");
    }
    pair.send(Message::Ping);
    pair.take_byte();
}

#[test]
fn a_program_that_sleeps_says_so_and_is_woken() {
    let mut pair = Pair::new();
    pair.have_it_look();
    pair.receive();
    pair.queue.set_waiting(WaitMode::Notify);
    assert!(pair.queue.dequeue(1, 1, Some(Duration::from_millis(20))).is_empty());
    pair.until("the socket sleeps", |pair| !pair.looks);
    let imm = pair.imm();
    // It crosses the message.
    pair.write(pair.sent, imm);
    assert!(pair.queue.dequeue(1, 1, Some(Duration::from_millis(20))).is_empty(), "nothing wakes it");
    let queue = pair.queue.clone();
    let sleeper = std::thread::spawn(move || queue.dequeue(1, 1, Some(PATIENCE)));
    std::thread::sleep(Duration::from_millis(5));
    pair.answer();
    let events = sleeper.join().expect("no panic");
    assert_eq!(events[0].result, Ok(1));
    pair.queue.set_waiting(WaitMode::Adaptive);
    pair.have_it_look();
}

/// The thread of the sockets says so for a program that has stopped to look.
#[test]
fn a_program_that_looks_no_more_is_served() {
    let mut pair = Pair::new();
    pair.have_it_look();
    pair.receive();
    let imm = pair.imm();
    pair.write(pair.sent, imm);
    pair.answer();
    pair.receive();
    let imm = pair.imm();
    pair.send(Message::Data { imm, len: 1 });
    pair.look_for_byte();
    pair.look_for_byte();
    drop(pair.exs);
}

#[test]
fn a_notice_that_is_no_transfer_ends_the_connection() {
    let value = Immediate { direct: false, released: 0, more: false, seq: 0 };
    for (what, wrong, len) in [
        ("not the next byte", Immediate { seq: 1, ..value }, 1),
        ("no bytes", value, 0),
        ("more than the ring has", value, u32::MAX),
        ("more than its receive takes", Immediate { direct: true, ..value }, 2),
        ("offers that were not made", Immediate { released: 1000, ..value }, 1),
    ] {
        let mut pair = Pair::new();
        pair.have_it_look();
        pair.receive();
        let imm = Immediate { seq: wrong.seq + pair.bytes, ..wrong }.emit();
        pair.write_of(pair.sent, imm, len);
        // It is taken in with a message at the latest.
        pair.send(Message::Ping);
        let mut event = None;
        pair.until(what, |pair| {
            event = pair.look();
            event.is_some()
        });
        assert_eq!(event.expect("an event").result.map_err(|errno| errno.0), Err(libc::EPROTO), "{what}");
    }
}

#[test]
fn a_look_leaves_notices_to_the_next_one() {
    const MANY: usize = 6;
    const TRIES: usize = 20;
    let mut pair = Pair::new();
    let (mut tried, mut left) = (0, 0);
    while tried < TRIES {
        pair.have_it_look();
        (0..MANY).for_each(|_| pair.receive());
        for _ in 0..MANY {
            let imm = pair.imm();
            pair.write(pair.sent, imm);
        }
        std::thread::sleep(Duration::from_micros(50));
        let first = pair.queue.dequeue(8, 0, None).len();
        pair.hear();
        // A socket that sleeps meanwhile is told of all at once.
        if pair.looks {
            tried += 1;
            left += usize::from(first <= TOGETHER);
        }
        for _ in first..MANY {
            let mut came = false;
            pair.until("a notice, or the socket sleeps", |pair| {
                came = pair.look().is_some();
                came || !pair.looks
            });
            if !came {
                pair.answer();
                pair.look_for_byte();
            }
        }
    }
    assert!(left > TRIES / 2, "{left} of {TRIES} looks left some");
}

#[test]
fn what_a_notice_tells_is_not_lost_with_the_peer() {
    let mut pair = Pair::new();
    pair.have_it_look();
    pair.receive();
    pair.receive();
    // No look finds it, and the answer does not come.
    pair.until("the socket sleeps", |pair| !pair.looks);
    let imm = pair.imm();
    pair.write(pair.sent, imm);
    pair.forger.leave();
    let mut events = Vec::new();
    while events.len() < 2 {
        events.extend(pair.queue.dequeue(2, 1, Some(PATIENCE)));
    }
    let results: Vec<_> = events.into_iter().map(|event| event.result.map_err(|errno| errno.0)).collect();
    assert_eq!(results, [Ok(1), Err(libc::ECONNRESET)]);
}

#[test]
fn an_end_without_a_mapped_ring_is_not_looked_for() {
    let mut pair = Pair::new();
    pair.receive();
    pair.send(Message::Looks);
    let mut event = None;
    pair.until("an end", |pair| {
        event = pair.look();
        event.is_some()
    });
    assert_eq!(event.expect("an event").result.map_err(|errno| errno.0), Err(libc::EPROTO));
}
