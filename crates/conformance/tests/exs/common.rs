//! The other process, which sends back what it gets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use conformance::{PATIENCE, Remote, Wire, library};
use exs::protocol::Kind;
use exs::socket::{Event, EventKind, Exs, Memory, Options, Queue, Socket};
use rdma::Errno;
use rustix::time::{ClockId, clock_gettime};

/// Receives that the other process has posted, and the bytes of each.
pub const SLOTS: usize = 8;
pub const SLOT: usize = 1 << 20;

#[test]
#[ignore = "the other process"]
fn part() {
    let Some((part, mut wire)) = Wire::to_test() else { return };
    let (stream, small): (bool, u32) = wire.hear();
    let kind = if stream { Kind::Stream } else { Kind::SeqPacket };
    let options = Options { small, ..Options::new(kind) };
    let exs = Exs::new(&library()).expect("a device");
    let listener = exs.listen(local(), 8, options).expect("an address");
    let queue = exs.queue(64).expect("a queue");
    listener.accept(&queue, 0).expect("a place");
    wire.tell(&listener.local_addr().expect("it is bound").to_string());
    let socket = one(&queue).socket.expect("an ACCEPT brings a connection");
    match part.as_str() {
        "echo" => echo(&exs, &queue, &socket),
        "idle" => wire.tell(&idle(&exs, &queue, &socket)),
        _ => {
            // Connected, and silent until the test ends it.
            let _: Option<bool> = wire.try_hear();
        }
    }
}

pub fn local() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Wait half a second for what does not come; the processor time of the whole process, in microseconds.
fn idle(exs: &Exs, queue: &Queue, socket: &Socket) -> u64 {
    let memory = exs.memory(8).expect("memory");
    socket.receive(&memory, 0..8, false, &exs.queue(1).expect("a queue"), 1).expect("a receive");
    let used = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).expect("a time");
    let (before, since) = (used(), Instant::now());
    assert!(queue.dequeue(1, 1, Some(Duration::from_millis(500))).is_empty());
    assert!(since.elapsed() >= Duration::from_millis(500), "{:?}", since.elapsed());
    (used() - before).as_micros() as u64
}

/// Send back all that comes, until its end.
fn echo(exs: &Exs, queue: &Arc<Queue>, socket: &Socket) {
    let memory = exs.memory(SLOTS * SLOT).expect("memory");
    let part = |slot: u64, len: usize| slot as usize * SLOT..slot as usize * SLOT + len;
    for slot in 0..SLOTS as u64 {
        socket.receive(&memory, part(slot, SLOT), false, queue, slot).expect("a receive");
    }
    let mut ended = false;
    let mut sends = 0;
    while !ended || sends > 0 {
        for event in some(queue, 16) {
            match (event.kind, event.result) {
                (EventKind::Receive, _) if event.end => ended = true,
                (EventKind::Receive, Ok(len)) => {
                    socket.send(&memory, part(event.handle, len as usize), queue, event.handle).expect("a send");
                    sends += 1;
                }
                (EventKind::Send, Ok(_)) => {
                    sends -= 1;
                    socket.receive(&memory, part(event.handle, SLOT), false, queue, event.handle).expect("a receive");
                }
                other => panic!("{other:?}"),
            }
        }
    }
    socket.close(queue, 1000).expect("close");
    while one(queue).kind != EventKind::Close {}
}

/// At least one event.
pub fn some(queue: &Queue, most: usize) -> Vec<Event> {
    let events = queue.dequeue(most, 1, Some(PATIENCE));
    assert!(!events.is_empty(), "nothing comes");
    events
}

/// The next event.
pub fn one(queue: &Queue) -> Event {
    some(queue, 1).remove(0)
}

/// The next event, which has to be of this kind and number.
pub fn expect(queue: &Queue, kind: EventKind, handle: u64) -> Event {
    let event = one(queue);
    assert_eq!((event.kind, event.handle), (kind, handle), "{event:?}");
    event
}

/// Two ends of a connection within this process.
pub fn pair(exs: &Exs, options: Options) -> (Arc<Socket>, Arc<Socket>) {
    let queue = exs.queue(2).expect("a queue");
    let listener = exs.listen(local(), 8, options).expect("an address");
    listener.accept(&queue, 0).expect("a place");
    let to = listener.local_addr().expect("it is bound");
    let here = exs.connect(to, options, &queue, 1).expect("it begins");
    let events = queue.dequeue(2, 2, Some(PATIENCE));
    let there = events.into_iter().find_map(|event| event.socket).expect("a connection");
    (here, there)
}

/// This process's end of a connection to the other one.
pub struct Talk {
    pub socket: Arc<Socket>,
    pub queue: Arc<Queue>,
    pub memory: Arc<Memory>,
    pub exs: Exs,
    pub remote: Remote,
}

impl Talk {
    pub fn new(part: &str, kind: Kind, small: u32) -> Talk {
        let mut remote = Remote::start("common::part", part, &[]);
        remote.wire.tell(&(kind == Kind::Stream, small));
        let addr: String = remote.wire.hear();
        let exs = Exs::new(&library()).expect("a device");
        let queue = exs.queue(64).expect("a queue");
        let options = Options { small, ..Options::new(kind) };
        let to = addr.parse().expect("an address");
        let socket = exs.connect(to, options, &queue, 7).expect("it begins");
        assert_eq!(expect(&queue, EventKind::Connect, 7).result, Ok(0));
        let memory = exs.memory(4 * SLOT).expect("memory");
        Talk { socket, queue, memory, exs, remote }
    }

    /// End the data, take the ends of so many operations that are pending, close. The peer's end ends the receives.
    pub fn finish_with(&self, mut pending: usize) {
        self.socket.shutdown().expect("it is connected");
        while pending > 0 {
            for event in some(&self.queue, 16) {
                let cancelled = event.result == Err(Errno(libc::ECANCELED));
                assert!(event.result.is_ok() || cancelled, "{event:?}");
                pending -= 1;
            }
        }
        self.socket.close(&self.queue, 99).expect("close");
        expect(&self.queue, EventKind::Close, 99);
    }

    /// End the data, see the peer's end, close.
    pub fn finish(mut self) {
        self.socket.shutdown().expect("it is connected");
        self.socket.receive(&self.memory, 0..1, false, &self.queue, 90).expect("a receive");
        let event = expect(&self.queue, EventKind::Receive, 90);
        assert!(event.end && event.result == Ok(0), "{event:?}");
        self.socket.close(&self.queue, 91).expect("close");
        assert_eq!(expect(&self.queue, EventKind::Close, 91).result, Ok(0));
        assert!(self.queue.dequeue(1, 1, Some(Duration::from_millis(20))).is_empty(), "an event too many");
        assert!(self.remote.ended_well(), "the other process failed");
    }
}
