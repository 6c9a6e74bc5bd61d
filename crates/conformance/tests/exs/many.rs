//! Many connections, threads and deaths: no event is lost or doubled, and nothing is left over.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use conformance::{PATIENCE, Remote, Wire, library};
use exs::protocol::Kind;
use exs::socket::{EventKind, Exs, Options, Queue, Socket};
use rdma::Errno;

use super::common::{Talk, expect, local, some};

/// Operations of one end that are pending at a time.
const DEEP: usize = 4;

/// `connections` connections within this process, half of each kind.
fn connect(exs: &Exs, connections: usize) -> Vec<[Arc<Socket>; 2]> {
    let mut pairs = Vec::new();
    for kind in [Kind::SeqPacket, Kind::Stream] {
        let options = Options { ring: 4096, ..Options::new(kind) };
        let listener = exs.listen(local(), 64, options).expect("an address");
        let to = listener.local_addr().expect("it is bound");
        let queue = exs.queue(2).expect("a queue");
        for _ in 0..connections / 2 {
            listener.accept(&queue, 0).expect("a place");
            let here = exs.connect(to, options, &queue, 1).expect("it begins");
            let events = queue.dequeue(2, 2, Some(PATIENCE));
            let there = events.into_iter().find_map(|event| event.socket).expect("a connection");
            pairs.push([here, there]);
        }
    }
    pairs
}

/// Threads that share queues send and receive `rounds` times on each connection.
fn run(connections: usize, threads: usize, rounds: usize) {
    const QUEUES: usize = 4;
    const LEN: usize = 8;
    let exs = Exs::new(&library()).expect("a device");
    let pairs = connect(&exs, connections);
    let memory = exs.memory(connections * 2 * LEN).expect("memory");
    let queues: Vec<Arc<Queue>> = (0..QUEUES).map(|_| exs.queue(connections * 2 * DEEP).expect("a queue")).collect();
    // By end: 2 * connection, and 1 more for the receiving one.
    let ends = 2 * connections;
    let seen: Vec<AtomicU8> = (0..ends * rounds).map(|_| AtomicU8::new(0)).collect();
    let posted: Vec<AtomicUsize> = (0..ends).map(|_| AtomicUsize::new(0)).collect();
    let done = AtomicUsize::new(0);
    let post = |end: usize| {
        let round = posted[end].fetch_add(1, Ordering::Relaxed);
        if round >= rounds {
            return;
        }
        let (queue, handle) = (&queues[end % QUEUES], (end * rounds + round) as u64);
        let part = end * LEN..(end + 1) * LEN;
        let [from, to] = &pairs[end / 2];
        let begun = if end.is_multiple_of(2) {
            from.send(&memory, part, queue, handle)
        } else {
            to.receive(&memory, part, true, queue, handle)
        };
        begun.expect("there is a place");
    };
    (0..ends).for_each(|end| (0..DEEP).for_each(|_| post(end)));
    let since = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (queues, seen, done, post) = (&queues, &seen, &done, &post);
            scope.spawn(move || {
                while done.load(Ordering::Relaxed) < ends * rounds && since.elapsed() < PATIENCE * 4 {
                    for event in queues[thread % QUEUES].dequeue(16, 1, Some(Duration::from_millis(20))) {
                        assert_eq!(event.result, Ok(LEN as u64), "{event:?}");
                        let handle = event.handle as usize;
                        assert_eq!(seen[handle].fetch_add(1, Ordering::Relaxed), 0, "twice: {event:?}");
                        done.fetch_add(1, Ordering::Relaxed);
                        post(handle / rounds);
                    }
                }
            });
        }
    });
    assert_eq!(done.load(Ordering::Relaxed), ends * rounds, "an event was lost");
    assert!(queues.iter().all(|queue| queue.in_use() == 0), "an event too many");
    // All of them close.
    for (n, pair) in pairs.iter().enumerate() {
        for socket in pair {
            socket.close(&queues[0], n as u64).expect("close");
            expect(&queues[0], EventKind::Close, n as u64);
        }
    }
}

#[test]
fn two_hundred_connections_and_twenty_threads() {
    run(200, 20, 20);
}

#[test]
#[ignore = "the full length: 10^5 operations"]
fn two_hundred_connections_and_1e5_operations() {
    run(200, 20, 250);
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

/// A peer dies with operations of both ends pending, again and again.
fn deaths(count: usize) {
    let mut before = None;
    for round in 0..count {
        // Streams first: the memory that peers map stays.
        let kind = if round % 2 == 0 { Kind::Stream } else { Kind::SeqPacket };
        let mut talk = Talk::new("echo", kind, 256);
        for handle in 0..10 {
            let part = 0..if handle % 3 == 0 { 100_000 } else { 100 };
            talk.socket.send(&talk.memory, part.clone(), &talk.queue, handle).expect("a send");
            talk.socket.receive(&talk.memory, part, true, &talk.queue, 100 + handle).expect("a receive");
        }
        talk.remote.kill();
        let mut ended = BTreeSet::new();
        while ended.len() < 20 {
            for event in some(&talk.queue, 32) {
                assert!(event.result.is_ok() || event.result == Err(Errno(libc::ECONNRESET)), "{event:?}");
                assert!(ended.insert(event.handle), "twice: {event:?}");
            }
        }
        talk.socket.close(&talk.queue, 31).expect("close");
        expect(&talk.queue, EventKind::Close, 31);
        assert_eq!(talk.queue.in_use(), 0);
        drop(talk);
        // The first round opens what stays.
        before.get_or_insert_with(descriptors);
    }
    // The device closes what belonged to a peer in a thread of its own.
    let since = Instant::now();
    while Some(descriptors()) > before {
        assert!(since.elapsed() < PATIENCE, "{} descriptors after {before:?}", descriptors());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Descriptors are those of a process, so the deaths have one of their own.
#[test]
#[ignore = "the other process"]
fn part() {
    let Some((_, mut wire)) = Wire::to_test() else { return };
    deaths(wire.hear());
    wire.tell(&true);
}

fn deaths_apart(count: usize) {
    let mut remote = Remote::start("many::part", "deaths", &[]);
    remote.wire.tell(&count);
    assert!(remote.wire.hear::<bool>());
}

#[test]
fn peers_are_killed() {
    deaths_apart(10);
}

#[test]
#[ignore = "the full length: 200 deaths"]
fn two_hundred_peers_are_killed() {
    deaths_apart(200);
}
