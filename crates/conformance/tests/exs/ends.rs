//! Refusals, ends and the death of a peer: each operation brings one event, or its call fails.

use std::collections::BTreeSet;

use conformance::library;
use exs::protocol::Kind;
use exs::socket::{EventKind, Exs, Options};
use rdma::Errno;

use super::common::{Talk, expect, local, one, some};

#[test]
fn calls_are_refused_with_their_errno() {
    let talk = Talk::new("silent", Kind::SeqPacket, 256);
    let (socket, memory) = (&talk.socket, &talk.memory);
    let end = memory.bytes().len();
    let refused = |result: Result<u64, Errno>, errno: i32| assert_eq!(result, Err(Errno(errno)));
    refused(socket.send(memory, end..end + 1, &talk.queue, 0), libc::EINVAL);
    let small = talk.exs.queue(1).expect("a queue");
    socket.receive(memory, 0..1, false, &small, 1).expect("a receive");
    refused(socket.receive(memory, 0..1, false, &small, 2), libc::EAGAIN);
    assert_eq!(talk.exs.queue(0).err(), Some(Errno(libc::EINVAL)));
    assert_eq!(talk.exs.memory(0).err(), Some(Errno(libc::EINVAL)));
    socket.shutdown().expect("it is connected");
    refused(socket.send(memory, 0..1, &talk.queue, 3), libc::EPIPE);
    socket.close(&talk.queue, 4).expect("close");
    assert_eq!(expect(&small, EventKind::Receive, 1).result, Err(Errno(libc::ECANCELED)));
    expect(&talk.queue, EventKind::Close, 4);
    refused(socket.send(memory, 0..1, &talk.queue, 5), libc::EBADF);
    assert_eq!(socket.close(&talk.queue, 6), Err(Errno(libc::EBADF)));
    assert!(talk.queue.is_empty() && small.is_empty(), "a refused call brings no event");
}

#[test]
fn operations_are_cancelled() {
    let talk = Talk::new("silent", Kind::SeqPacket, 256);
    let (socket, memory) = (&talk.socket, &talk.memory);
    let receive = socket.receive(memory, 0..1, false, &talk.queue, 1).expect("a receive");
    // Advertised, and never taken: the peer gives them back.
    let sends = [300, 4096].map(|len| socket.send(memory, 0..len, &talk.queue, len as u64).expect("a send"));
    assert!(socket.cancel(receive) && socket.cancel(sends[1]) && socket.cancel(sends[0]));
    let mut ended = BTreeSet::new();
    while ended.len() < 3 {
        let event = one(&talk.queue);
        assert_eq!(event.result, Err(Errno(libc::ECANCELED)), "{event:?}");
        assert!(ended.insert(event.handle), "twice: {event:?}");
    }
    assert!(!socket.cancel(receive), "it is over");
}

#[test]
fn a_peer_without_exs_is_refused() {
    let exs = Exs::new(&library()).expect("a device");
    let queue = exs.queue(8).expect("a queue");
    let options = Options::new(Kind::SeqPacket);
    let refused = |to| {
        exs.connect(to, options, &queue, 1).expect("it begins");
        let event = expect(&queue, EventKind::Connect, 1);
        assert_eq!(event.result, Err(Errno(libc::ECONNREFUSED)), "{event:?}");
    };
    // The other kind.
    let listener = exs.listen(local(), 8, Options::new(Kind::Stream)).expect("an address");
    listener.accept(&queue, 2).expect("a place");
    refused(listener.local_addr().expect("it is bound"));
    // Nothing.
    let at = {
        let events = library().create_event_channel().expect("a channel");
        let id = events.create_id(0).expect("an id");
        id.bind(local()).expect("an address");
        id.local_addr().expect("it is bound")
    };
    refused(at);
    assert_eq!(exs.connect(at, Options { credits: 0, ..options }, &queue, 3).err(), Some(Errno(libc::EINVAL)));
}

#[test]
fn the_death_of_the_peer_ends_everything_once() {
    for kind in [Kind::SeqPacket, Kind::Stream] {
        let mut talk = Talk::new("silent", kind, 256);
        for handle in 0..10 {
            let part = 0..if handle % 2 == 0 { 8 } else { 4096 };
            talk.socket.send(&talk.memory, part.clone(), &talk.queue, handle).expect("a send");
            talk.socket.receive(&talk.memory, part, false, &talk.queue, 100 + handle).expect("a receive");
        }
        talk.remote.kill();
        let mut ended = BTreeSet::new();
        while ended.len() < 20 {
            for event in some(&talk.queue, 32) {
                // Bytes of a stream that have reached the peer's ring are sent, and small data in its memory.
                let there = kind == Kind::Stream || event.handle % 2 == 0;
                let sent = there && event.kind == EventKind::Send && event.result.is_ok();
                assert!(sent || event.result == Err(Errno(libc::ECONNRESET)), "{event:?}");
                assert!(ended.insert(event.handle), "twice: {event:?}");
            }
        }
        let refused = talk.socket.send(&talk.memory, 0..1, &talk.queue, 30);
        assert_eq!(refused, Err(Errno(libc::ECONNRESET)));
        talk.socket.close(&talk.queue, 31).expect("close");
        expect(&talk.queue, EventKind::Close, 31);
        assert!(talk.queue.is_empty());
    }
}

#[test]
fn connections_within_one_process() {
    const MANY: u64 = 20;
    let exs = Exs::new(&library()).expect("a device");
    let (here, there) = (exs.queue(64).expect("a queue"), exs.queue(64).expect("a queue"));
    let options = Options::new(Kind::Stream);
    let listener = exs.listen(local(), 64, options).expect("an address");
    let to = listener.local_addr().expect("it is bound");
    let memory = exs.memory(2 * MANY as usize * 8).expect("memory");
    let part = |slot: u64| slot as usize * 8..slot as usize * 8 + 8;
    let sockets: Vec<_> = (0..MANY).map(|n| exs.connect(to, options, &here, n).expect("it begins")).collect();
    for n in 0..MANY {
        listener.accept(&there, n).expect("a place");
    }
    let mut accepted = Vec::new();
    for n in 0..MANY {
        assert_eq!(one(&here).result, Ok(0));
        let socket = one(&there).socket.expect("a connection");
        socket.receive(&memory, part(MANY + n), true, &there, n).expect("a receive");
        accepted.push(socket);
    }
    for (n, socket) in (0..).zip(&sockets) {
        memory.bytes().write(part(n).start, &(n + 1).to_ne_bytes());
        socket.send(&memory, part(n), &here, n).expect("a send");
    }
    for _ in 0..MANY {
        assert_eq!((one(&here).result, one(&there).result), (Ok(8), Ok(8)));
    }
    let mut got: Vec<u64> = (0..MANY)
        .map(|n| {
            let mut bytes = [0; 8];
            memory.bytes().read(part(MANY + n).start, &mut bytes);
            u64::from_ne_bytes(bytes)
        })
        .collect();
    got.sort_unstable();
    assert_eq!(got, (1..=MANY).collect::<Vec<_>>());
}

#[test]
fn a_wait_uses_no_processor() {
    let mut talk = Talk::new("idle", Kind::Stream, 256);
    let used: u64 = talk.remote.wire.hear();
    assert!(used < 50_000, "{used} of 500000 us");
}
