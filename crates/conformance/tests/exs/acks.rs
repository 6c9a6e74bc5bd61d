//! ACKs of packets as notices in memory, in both directions.

use std::sync::Arc;
use std::time::Instant;

use conformance::{PATIENCE, library};
use exs::protocol::{HEADER, Hello, Kind, Message, NOTICE, Notice, NoticePlaces, ROW, Remote, Settings};
use exs::socket::{Event, EventKind, Exs, Memory, Options, Queue, Socket};
use rdma::{Data, EventChannel, RecvWr, SendOp, SendWr, Status, Wc};

use super::common::{expect, local};
use super::forged::Forger;

/// Receives of the forger, and where they are; in front of them its messages, and its places for notices.
const SLOTS: usize = 8;
const AT: usize = 2048;
const PLACES: usize = 1024;
const LEN: usize = 64;

/// A socket of packets, and a peer that forges and takes no small data.
struct Pair {
    queue: Arc<Queue>,
    memory: Arc<Memory>,
    socket: Arc<Socket>,
    forger: Forger,
    hello: Hello,
    /// Messages that the forger has sent, notices that it has written, and sends of the socket.
    sent: u32,
    written: u32,
    sends: u32,
    looks: bool,
    /// SLEEPS has come, and SLEPT was not sent: notices may go out.
    owes: bool,
    /// What the socket has sent, LOOKS and SLEEPS left out.
    came: Vec<Message>,
    _exs: Exs,
    _events: Arc<EventChannel>,
}

impl Pair {
    /// The forger has so many credits, and places for as many notices.
    fn new(credits: u16) -> Pair {
        let exs = Exs::new(&library()).expect("a device");
        let queue = exs.queue(8).expect("a queue");
        let memory = exs.memory(LEN).expect("memory");
        let options = Options { small: 16, ..Options::new(Kind::SeqPacket) };
        let listener = exs.listen(local(), 8, options).expect("an address");
        listener.accept(&queue, 1).expect("a place");
        let events = library().create_event_channel().expect("a channel");
        let to = listener.local_addr().expect("it is bound");
        let forger = Forger::ask_with(&events, to, AT + SLOTS * ROW, |mr| {
            let settings = Settings { kind: Kind::SeqPacket, credits, small: 0, ring: 0 };
            let ring = Remote { addr: mr.addr() + PLACES as u64, rkey: mr.rkey() };
            Hello { settings, ring, windows: false, mapped: true }.emit().to_vec()
        });
        let hello = forger.finish();
        assert!(hello.mapped && hello.windows);
        let socket = expect(&queue, EventKind::Accept, 1).socket.expect("a connection");
        let (sent, written, sends, looks, owes, came) = (0, 0, 0, false, false, Vec::new());
        let (_exs, _events) = (exs, events);
        let pair =
            Pair { queue, memory, socket, forger, hello, sent, written, sends, looks, owes, came, _exs, _events };
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
                message => self.came.push(message),
            }
        }
    }

    fn send(&mut self, message: Message) {
        self.forger.post(&message.emit());
        self.sent += 1;
    }

    /// Look for an event, and hear the socket, until `done` has a result.
    fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Pair, Option<Event>) -> Option<T>) -> T {
        let since = Instant::now();
        loop {
            self.hear();
            let event = self.queue.dequeue(1, 0, None).pop();
            if let Some(found) = done(self, event) {
                return found;
            }
            assert!(since.elapsed() < PATIENCE, "{what}");
        }
    }

    fn message(&mut self) -> Message {
        self.until("a message", |pair, _| pair.came.pop())
    }

    /// The next event. A socket that sleeps takes notices in with the answer.
    fn ended(&mut self) -> Event {
        self.until("an event", |pair, event| {
            if std::mem::take(&mut pair.owes) {
                pair.send(Message::Slept);
            }
            event
        })
    }

    /// Have the socket send, and the forger get the place of the data.
    fn advertised(&mut self) -> Remote {
        self.socket.send(&self.memory, 0..LEN, &self.queue, 2).expect("a send");
        // An ACK of small data may come with it.
        let place = self.until("an advertisement", |pair, _| {
            let is_it = |message: &mut Message| matches!(message, Message::Advert { .. });
            let Message::Advert { seq, addr, rkey, .. } = pair.came.extract_if(.., is_it).next()? else { return None };
            assert_eq!(seq, pair.sends);
            Some(Remote { addr, rkey })
        });
        self.sends += 1;
        place
    }

    /// Have the socket look at notices. Other work of the machine may have it sleep before.
    fn have_it_look(&mut self) {
        let since = Instant::now();
        while !self.looks {
            assert!(since.elapsed() < PATIENCE, "the program looks again and again");
            self.advertised();
            self.send(Message::Ack { seq: self.sends - 1 });
            assert_eq!(self.ended().result, Ok(LEN as u64));
            self.hear();
        }
    }

    /// An ACK as a notice.
    fn write(&mut self, seq: u32) {
        self.written += 1;
        let notice = Notice { number: self.written, behind: self.sent, imm: seq, len: 0 }.emit();
        self.forger.mr.write(512, &notice);
        let Remote { addr, rkey } = self.hello.ring;
        let addr = addr + NoticePlaces::new(0, self.hello.settings.credits).of(self.written);
        self.post(SendOp::Write { addr, rkey }, 512, NOTICE);
    }

    fn post(&self, op: SendOp<'_>, at: usize, len: usize) {
        let sges = [self.forger.mr.sge(at, len)];
        self.forger.qp.post_send(&SendWr::new(1, op, Data::Sges(&sges))).expect("a request");
    }

    /// The forger's next notice, if it is there.
    fn notice(&self, number: u32) -> Option<Notice> {
        let mut bytes = [0; NOTICE];
        self.forger.mr.read(PLACES + NoticePlaces::new(0, 16).of(number) as usize, &mut bytes);
        Notice::parse(&bytes, number)
    }

    /// A packet of the forger, which the socket READs.
    fn packet(&mut self, seq: u32) {
        self.socket.receive(&self.memory, 0..LEN, false, &self.queue, 3).expect("a receive");
        let (addr, rkey) = (self.forger.mr.addr(), self.forger.mr.rkey());
        self.send(Message::Advert { seq, addr, rkey, len: LEN as u32, persistent: false });
        assert_eq!(self.ended().result, Ok(LEN as u64));
    }
}

#[test]
fn a_program_that_looks_finds_acks_as_notices() {
    let mut pair = Pair::new(16);
    // A program that is kept from looking for a millisecond sleeps, and takes it in with the answer.
    for _ in 0..100 {
        pair.have_it_look();
        pair.advertised();
        pair.write(pair.sends - 1);
        assert_eq!(pair.ended().result, Ok(LEN as u64));
    }
}

/// Small data that end a receive at once are a message, too.
#[test]
fn a_notice_comes_behind_small_data() {
    let mut pair = Pair::new(16);
    pair.have_it_look();
    pair.socket.receive(&pair.memory, 0..LEN, false, &pair.queue, 3).expect("a receive");
    pair.forger.post(&[&Message::Small { seq: 0, len: 4 }.emit()[..], &[1; 4]].concat());
    pair.sent += 1;
    assert_eq!(pair.ended().result, Ok(4));
    pair.have_it_look();
    pair.advertised();
    pair.write(pair.sends - 1);
    assert_eq!(pair.ended().result, Ok(LEN as u64));
}

/// The ACK of a notice invalidates no key, so the owner does before the send ends.
#[test]
fn a_key_is_over_with_its_send() {
    let mut pair = Pair::new(16);
    pair.have_it_look();
    let Remote { addr, rkey } = pair.advertised();
    pair.write(pair.sends - 1);
    assert_eq!(pair.ended().result, Ok(LEN as u64));
    pair.post(SendOp::Read { addr, rkey }, 512, LEN);
    let since = Instant::now();
    let mut wc = [Wc::default()];
    while pair.forger.cq.poll(&mut wc).expect("a queue") == 0 || wc[0].status() == Status::SUCCESS {
        assert!(since.elapsed() < PATIENCE, "the READ fails");
    }
    assert_eq!(wc[0].status(), Status::REMOTE_ACCESS);
}

#[test]
fn a_notice_that_is_no_ack_ends_the_connection() {
    for (what, off) in [("of what was not sent", 1), ("of what has its ACK", u32::MAX)] {
        let mut pair = Pair::new(16);
        pair.have_it_look();
        pair.advertised();
        pair.write((pair.sends - 1).wrapping_add(off));
        assert_eq!(pair.ended().result.map_err(|errno| errno.0), Err(libc::EPROTO), "{what}");
    }
}

#[test]
fn acks_are_notices_while_the_peer_looks() {
    let mut pair = Pair::new(16);
    pair.packet(0);
    assert_eq!(pair.message(), Message::Ack { seq: 0 });
    // Messages of the socket, as the forger has counted them.
    let behind = 1;
    pair.send(Message::Looks);
    for number in 1..=40 {
        pair.packet(number);
        let notice = pair.until("a notice", |pair, _| pair.notice(number));
        assert_eq!(notice, Notice { number, behind, imm: number, len: 0 });
        assert_eq!(pair.came, [], "no message");
    }
    pair.send(Message::Sleeps);
    assert_eq!(pair.message(), Message::Slept);
    pair.packet(41);
    assert_eq!(pair.message(), Message::Ack { seq: 41 });
    assert_eq!(pair.notice(41), None);
}

/// Each end says how many places it has, and the peer uses them all, whatever its own credits are.
#[test]
fn notices_come_where_credits_differ() {
    const LEN: usize = 64 << 10;
    const COUNT: u64 = 300;
    let [near, far] = [0, 1].map(|_| Exs::new(&library()).expect("a device"));
    let [source, sink] = [&near, &far].map(|exs| exs.memory(LEN).expect("memory"));
    for kind in [Kind::SeqPacket, Kind::Stream] {
        for (ours, theirs) in [(16, 1), (16, 8), (8, 16), (1, 16), (12, 4), (4, 12)] {
            let (here, there) = (near.queue(64).expect("a queue"), far.queue(64).expect("a queue"));
            let options = |credits| Options { credits, small: 0, ..Options::new(kind) };
            let listener = far.listen(local(), 8, options(theirs)).expect("an address");
            listener.accept(&there, 0).expect("a place");
            let to = listener.local_addr().expect("it is bound");
            let from = near.connect(to, options(ours), &here, 0).expect("it begins");
            expect(&here, EventKind::Connect, 0);
            let to = expect(&there, EventKind::Accept, 0).socket.expect("a connection");
            // Both programs look again and again.
            let (mut posted, mut sent, mut received) = (0, 0, 0);
            let since = Instant::now();
            while sent < COUNT || received < COUNT {
                while posted < COUNT && posted < sent.min(received) + 8 {
                    to.receive(&sink, 0..LEN, true, &there, posted).expect("a receive");
                    from.send(&source, 0..LEN, &here, posted).expect("a send");
                    posted += 1;
                }
                for (queue, ended) in [(&here, &mut sent), (&there, &mut received)] {
                    for event in queue.dequeue(8, 0, None) {
                        assert_eq!((event.result, event.handle), (Ok(LEN as u64), *ended), "{kind:?} {ours} {theirs}");
                        *ended += 1;
                    }
                }
                assert!(since.elapsed() < PATIENCE, "{kind:?} {ours} {theirs}: {sent} sent, {received} received");
            }
        }
    }
}

#[test]
fn an_ack_ends_all_sends_in_front_of_it() {
    let mut pair = Pair::new(16);
    pair.have_it_look();
    for _ in 0..3 {
        pair.advertised();
    }
    pair.write(pair.sends - 1);
    for _ in 0..3 {
        assert_eq!(pair.ended().result, Ok(LEN as u64));
    }
}

/// The SEND was acknowledged in front of the small data, so its event comes first.
#[test]
fn a_notice_is_taken_before_the_message_behind_it() {
    const TRIES: usize = 50;
    let mut pair = Pair::new(16);
    for seq in 0..TRIES as u32 {
        pair.have_it_look();
        pair.socket.receive(&pair.memory, 0..LEN, false, &pair.queue, 3).expect("a receive");
        pair.advertised();
        pair.write(pair.sends - 1);
        pair.forger.post(&[&Message::Small { seq, len: 4 }.emit()[..], &[1; 4]].concat());
        pair.sent += 1;
        // Both are there when it looks.
        std::thread::sleep(std::time::Duration::from_micros(50));
        let kinds = [0, 1].map(|_| pair.ended().kind);
        assert_eq!(kinds, [EventKind::Send, EventKind::Receive], "{seq}");
    }
}

#[test]
fn a_notice_is_not_lost_with_the_peer() {
    let mut pair = Pair::new(16);
    pair.have_it_look();
    pair.advertised();
    pair.advertised();
    // No look finds it, and the answer does not come.
    let since = Instant::now();
    while pair.looks {
        let mut wcs = [Wc::default(); 8];
        let count = pair.forger.cq.poll(&mut wcs).expect("a queue");
        pair.looks = !wcs[..count].iter().any(|wc| wc.wr_id() >= 100);
        assert!(since.elapsed() < PATIENCE, "the socket sleeps");
    }
    pair.write(pair.sends - 2);
    pair.forger.leave();
    let results = [0, 1].map(|_| {
        let event = pair.queue.dequeue(1, 1, Some(PATIENCE)).pop().expect("an event");
        event.result.map_err(|errno| errno.0)
    });
    assert_eq!(results, [Ok(LEN as u64), Err(libc::ECONNRESET)]);
}
