//! Two sockets over TCP on this host, each with its thread where both have to run.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use iwarp::rdmap::End;

use crate::{Access, Address, Buffer, Error, Indication, Notify, Options, Receive, Socket, Tag};

/// Long enough for any machine.
fn options() -> Options {
    Options { patience: Duration::from_secs(40), ..Options::default() }
}

/// A connection. The first socket is the one that has connected.
fn pair_with(options: &Options) -> (Socket, Socket) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let accepted = scope.spawn(|| Socket::accept(&listener, options).unwrap());
        (Socket::connect(address, options).unwrap(), accepted.join().unwrap())
    })
}

fn pair() -> (Socket, Socket) {
    pair_with(&options())
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + seed) as u8).collect()
}

/// Post a receive of so many bytes.
fn posted(socket: &mut Socket, len: usize) -> Receive {
    let receive = Receive::new(Buffer::new(len));
    socket.post_recv(&receive).unwrap();
    receive
}

/// The next message: its receive and its bytes.
fn message(socket: &mut Socket) -> (Receive, Vec<u8>) {
    match socket.recv().unwrap() {
        Some(Indication::Message { receive, len, .. }) => {
            let bytes = receive.buffer().get(0..len).unwrap();
            (receive, bytes)
        }
        other => panic!("not a message: {other:?}"),
    }
}

/// A call of one side while the other side waits for what comes.
fn while_serving<T: Send>(server: &mut Socket, call: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        scope.spawn(move || while let Ok(Some(_)) = server.recv() {});
        call()
    })
}

#[test]
fn messages_come_in_the_order_of_the_receives() {
    for crc in [true, false] {
        for markers in [true, false] {
            let (mut a, mut b) = pair_with(&Options { crc, markers, ..options() });
            let sizes = [0, 1, 1448, 100_000];
            let receives: Vec<Receive> = sizes.iter().map(|_| posted(&mut b, 100_000)).collect();
            for (seed, size) in sizes.into_iter().enumerate() {
                a.send(&pattern(size, seed)).unwrap();
            }
            for (seed, size) in sizes.into_iter().enumerate() {
                let (receive, bytes) = message(&mut b);
                assert!(receive.is(&receives[seed]), "{size} bytes");
                assert!(bytes == pattern(size, seed), "{size} bytes");
            }
            a.close().unwrap();
            assert!(b.recv().unwrap().is_none());
        }
    }
}

#[test]
fn a_tagged_message_is_where_its_address_says_when_its_notice_comes() {
    let (mut a, mut b) = pair();
    let buffer = Buffer::new(10_000);
    let tag = b.register(&buffer, Access::WRITE);
    a.write(&pattern(5000, 1), Address { tag, offset: 1000 }, Notify::No).unwrap();
    a.write(&pattern(4000, 2), Address { tag, offset: 6000 }, Notify::Id(u64::MAX)).unwrap();
    a.write(&[], Address { tag, offset: 0 }, Notify::No).unwrap();
    a.write(&[], Address { tag, offset: 0 }, Notify::Id(3)).unwrap();
    for expected in [u64::MAX, 3] {
        match b.recv().unwrap() {
            Some(Indication::Tagged { tag: of, id }) => assert_eq!((of, id), (tag, expected)),
            other => panic!("{other:?}"),
        }
    }
    assert!(buffer.get(0..1000).unwrap().iter().all(|byte| *byte == 0));
    assert!(buffer.get(1000..6000).unwrap() == pattern(5000, 1));
    assert!(buffer.get(6000..10_000).unwrap() == pattern(4000, 2));
}

#[test]
fn a_read_gets_the_bytes_without_the_peers_program() {
    let (mut a, mut b) = pair();
    let source = Buffer::new(200_000);
    source.put(0, &pattern(200_000, 3)).unwrap();
    let from = Address { tag: b.register(&source, Access::READ), offset: 10 };
    let sink = Buffer::new(200_000);
    let to = Address { tag: a.register(&sink, Access::WRITE), offset: 0 };
    while_serving(&mut b, || {
        a.read(from, 150_000, to).unwrap();
        assert!(sink.get(0..150_000).unwrap() == pattern(200_000, 3)[10..150_010]);
        assert!(matches!(a.read(from, 200_001, to), Err(Error::Range)));
        assert!(matches!(a.read(from, 1, Address { tag: Tag(2), offset: 0 }), Err(Error::NoTag)));
        a.read(from, 0, to).unwrap();
        a.close().unwrap();
    });
}

/// RFC 5040, section 4.8: the peer says which error it was.
#[test]
fn an_error_of_a_tag_ends_the_connection_at_both_sides() {
    let reason = |end: &End| match end {
        End::Fault(fault) => fault.reason().to_string(),
        End::Terminated(said) => said.reason.unwrap().to_string(),
        other => panic!("{other:?}"),
    };
    let buffer = Buffer::new(100);
    type Wrong = fn(&mut Socket, Tag);
    let cases: [(Access, Wrong, &str); 5] = [
        (
            Access::WRITE,
            |a, _| a.write(&[1], Address { tag: Tag(77), offset: 0 }, Notify::No).unwrap(),
            "tagged: invalid",
        ),
        (Access::WRITE, |a, tag| a.write(&[1], Address { tag, offset: 100 }, Notify::No).unwrap(), "tagged: out of b"),
        (Access::READ, |a, tag| a.write(&[1], Address { tag, offset: 0 }, Notify::No).unwrap(), "tagged: invalid"),
        (Access::WRITE, |a, tag| read_one(a, Address { tag, offset: 0 }), "READ: no right"),
        (Access::READ, |a, tag| read_one(a, Address { tag, offset: 100 }), "READ: out of bounds"),
    ];
    for (access, wrong, expected) in cases {
        let (mut a, mut b) = pair();
        let tag = b.register(&buffer, access);
        let there = thread::spawn(move || b.recv());
        wrong(&mut a, tag);
        let ended = |result: Result<Option<Indication>, Error>| match result {
            Err(Error::Ended(end)) => reason(&end),
            other => panic!("{expected}: {other:?}"),
        };
        let (here, there) = (ended(a.recv()), ended(there.join().unwrap()));
        assert!(here.starts_with(expected) && there.starts_with(expected), "{here}, {there}: not {expected}");
    }
    assert!(buffer.get(0..100).unwrap() == [0; 100]);
}

fn read_one(socket: &mut Socket, from: Address) {
    let tag = socket.register(&Buffer::new(1), Access::WRITE);
    assert!(matches!(socket.read(from, 1, Address { tag, offset: 0 }), Err(Error::Ended(End::Terminated(_)))));
}

#[test]
fn a_receive_on_two_sockets_is_taken_once() {
    let ((mut a, mut b), (mut c, mut d)) = (pair(), pair());
    let both = Receive::new(Buffer::new(10));
    for socket in [&mut b, &mut d] {
        socket.post_recv(&both).unwrap();
    }
    let only = posted(&mut d, 10);
    a.send(b"first").unwrap();
    let (receive, bytes) = message(&mut b);
    assert!(receive.is(&both) && bytes == b"first");
    // The other socket has what was posted next.
    c.send(b"second").unwrap();
    let (receive, bytes) = message(&mut d);
    assert!(receive.is(&only) && bytes == b"second");
    assert!(both.buffer().get(0..5).unwrap() == b"first");
    // Posted again, it takes a message again.
    d.post_recv(&both).unwrap();
    c.send(b"third").unwrap();
    let (receive, bytes) = message(&mut d);
    assert!(receive.is(&both) && bytes == b"third");
}

#[test]
fn a_message_without_a_receive_or_too_long_for_it_ends_the_connection() {
    for (posts, expected) in [(false, "untagged: no buffer"), (true, "untagged: message too long")] {
        let (mut a, mut b) = pair();
        let receive = posts.then(|| posted(&mut b, 10));
        a.send(&[1; 11]).unwrap();
        match b.recv() {
            Err(Error::Ended(End::Fault(fault))) => assert!(fault.reason().to_string().starts_with(expected)),
            other => panic!("{other:?}"),
        }
        match a.recv() {
            Err(Error::Ended(End::Terminated(said))) => {
                assert!(said.reason.unwrap().to_string().starts_with(expected));
            }
            other => panic!("{other:?}"),
        }
        // A socket that has gone keeps no receive.
        drop(b);
        let (_c, mut d) = pair();
        if let Some(receive) = receive {
            d.post_recv(&receive).unwrap();
        }
    }
}

#[test]
fn a_message_of_one_segment_is_one_segment() {
    let (a, _b) = pair();
    let sizes = a.max_sizes();
    // FPDUs of 1448 bytes: length, CRC, and the headers of untagged and tagged segments (RFC 5041, section 4).
    assert_eq!((sizes.untagged, sizes.tagged), (1448 - 6 - 18, 1448 - 6 - 14));
}

#[test]
fn both_sides_may_send_more_than_tcp_holds() {
    const SIZE: usize = 12 << 20;
    let (mut a, mut b) = pair();
    // The side that has accepted sends when it has heard of the other one.
    let run = |mut socket: Socket| {
        move || {
            let own = posted(&mut socket, SIZE);
            socket.send(&pattern(SIZE, 1)).unwrap();
            let (receive, bytes) = message(&mut socket);
            assert!(receive.is(&own) && bytes == pattern(SIZE, 1));
            socket
        }
    };
    posted(&mut a, 1);
    posted(&mut b, 1);
    a.send(b"a").unwrap();
    message(&mut b);
    b.send(b"b").unwrap();
    message(&mut a);
    let barrier = std::sync::Barrier::new(2);
    thread::scope(|scope| {
        for socket in [a, b] {
            let barrier = &barrier;
            let run = run(socket);
            scope.spawn(move || {
                barrier.wait();
                let socket = run();
                barrier.wait();
                drop(socket);
            });
        }
    });
}

#[test]
fn a_flood_of_notices_ends_the_connection() {
    let (mut a, mut b) = pair();
    let tag = b.register(&Buffer::new(1), Access::BOTH);
    let to = Address { tag, offset: 0 };
    // The peer does not answer: nothing takes the notices.
    let reads = thread::spawn(move || b.read(to, 1, to));
    while a.write(&[], to, Notify::Id(0)).is_ok() {}
    assert!(matches!(reads.join().unwrap(), Err(Error::Ended(End::Fault(iwarp::rdmap::Fault::Local)))));
}

#[test]
fn parts_are_the_same_memory() {
    let whole = Buffer::new(10);
    let part = whole.part(2..8).unwrap();
    part.part(1..3).unwrap().put(0, b"ab").unwrap();
    assert_eq!(whole.get(0..10).unwrap(), b"\0\0\0ab\0\0\0\0\0");
    assert!(matches!(part.get(0..7), Err(Error::Range)));
    assert!(matches!(part.part(6..7), Err(Error::Range)));
    assert!(matches!(part.put(6, b"x"), Err(Error::Range)));
    assert!(matches!(part.put(usize::MAX, b"x"), Err(Error::Range)));
}
