//! Several threads that sleep in one library: one of them in the completion channel, the others until the thread of the
//! library wakes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use conformance::library;
use exs::protocol::Kind;
use exs::socket::{Event, EventKind, Exs, Options, Queue, Socket, WaitMode};
use rustix::time::{ClockId, clock_gettime};

use super::common::{expect, one, pair};

const ROUNDS: u64 = 200;

fn sleepy(exs: &Exs) -> Arc<Queue> {
    let queue = exs.queue(8).expect("a queue");
    queue.set_waiting(WaitMode::Notify);
    queue
}

/// Send and receive in turns; the first one sends first.
fn play(exs: &Exs, socket: &Socket, first: bool) {
    let (queue, memory) = (sleepy(exs), exs.memory(16).expect("memory"));
    for round in 0..ROUNDS {
        socket.receive(&memory, 0..8, true, &queue, round).expect("a receive");
        let send = || {
            memory.bytes().write(8, &round.to_ne_bytes());
            socket.send(&memory, 8..16, &queue, round).expect("a send");
        };
        let mut left = 2;
        if first {
            send();
        }
        while left > 0 {
            let event = one(&queue);
            assert_eq!((event.handle, event.result), (round, Ok(8)), "{event:?}");
            left -= 1;
            if event.kind == EventKind::Receive {
                let mut bytes = [0; 8];
                memory.bytes().read(0, &mut bytes);
                assert_eq!(u64::from_ne_bytes(bytes), round);
                if !first {
                    send();
                }
            }
        }
    }
}

#[test]
fn every_thread_that_sleeps_is_woken() {
    let exs = Exs::new(&library()).expect("a device");
    for (kind, pairs) in [(Kind::SeqPacket, 1), (Kind::SeqPacket, 4), (Kind::Stream, 4), (Kind::SeqPacket, 1)] {
        let sockets: Vec<_> = (0..pairs).map(|_| pair(&exs, Options::new(kind))).collect();
        std::thread::scope(|scope| {
            for (here, there) in &sockets {
                scope.spawn(|| play(&exs, here, true));
                scope.spawn(|| play(&exs, there, false));
            }
        });
    }
}

#[test]
fn an_event_of_another_thread_ends_the_sleep() {
    let exs = Exs::new(&library()).expect("a device");
    let queue = sleepy(&exs);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..ROUNDS).for_each(|round| drop(expect(&queue, EventKind::Other, round))));
        for round in 0..ROUNDS {
            if round % 16 == 0 {
                // Most likely it sleeps then.
                std::thread::sleep(Duration::from_millis(5));
            }
            while queue.reserve().is_err() {
                std::thread::yield_now();
            }
            queue.put(Event::new(EventKind::Other, round, Ok(0)));
        }
    });
}

#[test]
fn a_thread_that_slept_for_long_leaves_the_wire_to_the_library() {
    let exs = Exs::new(&library()).expect("a device");
    let (here, there) = pair(&exs, Options::new(Kind::SeqPacket));
    let (queue, memory) = (sleepy(&exs), exs.memory(8).expect("memory"));
    for round in 0..10 {
        there.receive(&memory, 0..8, false, &queue, round).expect("a receive");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(10));
                here.send(&memory, 0..4, &queue, 100 + round).expect("a send");
            });
            let (first, second) = (one(&queue), one(&queue));
            let mut handles = [first.handle, second.handle];
            handles.sort_unstable();
            assert_eq!(handles, [round, 100 + round]);
        });
        // The program does not look any more: the thread of the library takes what comes, and rings the bell.
        let (bell, rang) = std::sync::mpsc::channel();
        there.receive(&memory, 0..8, false, &queue, 200 + round).expect("a receive");
        let tell = move |due: bool| {
            if due {
                bell.send(()).expect("the test waits");
            }
        };
        queue.set_bell(2, Some(Box::new(tell)));
        here.send(&memory, 0..4, &queue, 300 + round).expect("a send");
        rang.recv_timeout(conformance::PATIENCE).expect("two events");
        queue.set_bell(1, None);
        assert_eq!(queue.dequeue(4, 0, None).len(), 2);
    }
}

/// The event of the completion channel that ends a sleep is taken from there before the next sleep.
#[test]
fn what_ended_a_sleep_ends_no_other() {
    const LONG: Duration = Duration::from_millis(200);
    let exs = Exs::new(&library()).expect("a device");
    let (here, there) = pair(&exs, Options::new(Kind::SeqPacket));
    let (queue, memory) = (sleepy(&exs), exs.memory(8).expect("memory"));
    let used = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("a time");
    for round in 0..4 {
        there.receive(&memory, 0..8, false, &queue, round).expect("a receive");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(LONG / 8);
                here.send(&memory, 0..4, &sleepy(&exs), 0).expect("a send");
            });
            let before = used();
            // The first wait goes on behind the event.
            let events = queue.dequeue(2, 2, Some(LONG));
            assert_eq!(events.iter().map(|event| event.handle).collect::<Vec<_>>(), [round]);
            assert!(queue.dequeue(1, 1, Some(LONG)).is_empty());
            assert!(used() - before < LONG / 2, "{:?} of two waits of {LONG:?}", used() - before);
        });
    }
}

#[test]
fn memory_may_be_deregistered_with_its_event() {
    let exs = Exs::new(&library()).expect("a device");
    let (here, there) = pair(&exs, Options::new(Kind::SeqPacket));
    let (queue, other, out) = (sleepy(&exs), sleepy(&exs), exs.memory(8192).expect("memory"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Another thread takes the completions.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                other.dequeue(1, 0, None);
            }
        });
        for round in 0..ROUNDS {
            let len = [8, 250, 4096][round as usize % 3];
            let memory = exs.memory(len).expect("memory");
            there.receive(&memory, 0..len, false, &queue, round).expect("a receive");
            here.send(&out, 0..len, &queue, round).expect("a send");
            while one(&queue).kind != EventKind::Receive {}
            if exs.deregister(memory).is_err() {
                over.store(true, Ordering::Relaxed);
                panic!("the memory is in use behind the event of its receive");
            }
            // The event of the send may come last.
            while queue.in_use() > 0 {
                one(&queue);
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}
