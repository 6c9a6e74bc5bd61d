//! What a peer may reach: the bytes of a transfer, until it ends.

use std::time::Duration;

use conformance::library;
use exs::protocol::Kind;
use exs::socket::{EventKind, Exs, Options};
use rdma::Errno;

use super::common::{expect, local, one, pair};

#[test]
fn a_persistent_send_is_read_as_it_is_each_time() {
    let exs = Exs::new(&library()).expect("a device");
    let (from, to) = pair(&exs, Options::new(Kind::SeqPacket));
    let (here, there) = (exs.queue(8).expect("a queue"), exs.queue(8).expect("a queue"));
    let memory = exs.memory(8192).expect("memory");
    let send = from.send_persistent(&memory, 0..3000, &here, 1).expect("a send");
    from.send(&memory, 0..5, &here, 2).expect("a send behind it");
    for round in 1..=20u8 {
        memory.bytes().write(0, &[round; 3000]);
        to.receive(&memory, 4096..4096 + 4000, false, &there, round.into()).expect("a receive");
        assert_eq!(expect(&there, EventKind::Receive, round.into()).result, Ok(3000));
        let mut bytes = [0; 3000];
        memory.bytes().read(4096, &mut bytes);
        assert_eq!(bytes, [round; 3000]);
    }
    assert!(here.is_empty(), "it stays");
    assert!(from.cancel(send));
    assert_eq!(expect(&here, EventKind::Send, 1).result, Err(Errno(libc::ECANCELED)));
    to.receive(&memory, 4096..4096 + 4000, false, &there, 21).expect("a receive");
    assert_eq!(expect(&there, EventKind::Receive, 21).result, Ok(5), "the one behind it");
    assert_eq!(expect(&here, EventKind::Send, 2).result, Ok(5));
    let (stream, _) = pair(&exs, Options::new(Kind::Stream));
    let refused = stream.send_persistent(&memory, 0..1, &here, 3);
    assert_eq!(refused, Err(Errno(libc::EOPNOTSUPP)));
}

#[test]
fn both_sides_posting_ahead_transfer_directly() {
    const LEN: usize = 64 << 10;
    let exs = Exs::new(&library()).expect("a device");
    let (from, to) = pair(&exs, Options::new(Kind::Stream));
    let (here, there) = (exs.queue(64).expect("a queue"), exs.queue(64).expect("a queue"));
    let memory = exs.memory(2 * LEN).expect("memory");
    // The first receives are there before the first send, and none ends before the next one is posted.
    for round in 0..4 {
        to.receive(&memory, LEN..2 * LEN, true, &there, round).expect("a receive");
    }
    // What has come to the first end is not seen from outside, so it is asked in the other direction.
    to.send(&memory, 0..1, &there, 100).expect("a send");
    from.receive(&memory, 0..1, false, &here, 100).expect("a receive");
    expect(&here, EventKind::Receive, 100);
    expect(&there, EventKind::Send, 100);
    for round in 0..100 {
        from.send(&memory, 0..LEN, &here, round).expect("a send");
        expect(&there, EventKind::Receive, round);
        to.receive(&memory, LEN..2 * LEN, true, &there, round + 4).expect("a receive");
        expect(&here, EventKind::Send, round);
    }
    let ways = from.transferred();
    assert_eq!((ways.direct, ways.indirect), (100 * LEN as u64, 0));
}

/// The peer hears of several transfers together, also from a program that looks for no event behind them.
#[test]
fn transfers_are_heard_of_without_a_look_of_their_sender() {
    const LEN: usize = 64 << 10;
    let [near, far] = [0, 1].map(|_| Exs::new(&library()).expect("a device"));
    let (here, there) = (near.queue(64).expect("a queue"), far.queue(64).expect("a queue"));
    // No PING takes what waits with it.
    let options = Options { timeout: Duration::ZERO, ..Options::new(Kind::Stream) };
    let listener = far.listen(local(), 8, options).expect("an address");
    listener.accept(&there, 0).expect("a place");
    let from = near.connect(listener.local_addr().expect("it is bound"), options, &here, 0).expect("it begins");
    expect(&here, EventKind::Connect, 0);
    let to = one(&there).socket.expect("a connection");
    let [source, sink] = [&near, &far].map(|exs| exs.memory(3 * LEN).expect("memory"));
    for round in 0..20u8 {
        let part = |at: usize| at * LEN..(at + 1) * LEN;
        for at in 0..3 {
            to.receive(&sink, part(at), true, &there, at as u64).expect("a receive");
        }
        // The receives are offered: what the peer has sent behind them has come.
        to.send(&sink, 0..1, &there, 100).expect("a send");
        from.receive(&source, 0..1, false, &here, 100).expect("a receive");
        expect(&here, EventKind::Receive, 100);
        expect(&there, EventKind::Send, 100);
        source.bytes().write(0, &vec![round; 3 * LEN]);
        for at in 0..3 {
            from.send(&source, part(at), &here, at as u64).expect("a send");
        }
        for at in 0..3 {
            assert_eq!(expect(&there, EventKind::Receive, at).result, Ok(LEN as u64));
        }
        let mut bytes = vec![0; 3 * LEN];
        sink.bytes().read(0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == round), "round {round}");
        (0..3).for_each(|at| drop(expect(&here, EventKind::Send, at)));
    }
}

#[test]
fn sends_end_without_a_receive_as_far_as_the_ring_goes() {
    let exs = Exs::new(&library()).expect("a device");
    let (from, to) = pair(&exs, Options { ring: 4096, ..Options::new(Kind::Stream) });
    let (here, there) = (exs.queue(8).expect("a queue"), exs.queue(8).expect("a queue"));
    let memory = exs.memory(8192).expect("memory");
    memory.bytes().write(0, &[7; 4096]);
    from.send(&memory, 0..4096, &here, 1).expect("a send");
    assert_eq!(expect(&here, EventKind::Send, 1).result, Ok(4096));
    let last = from.send(&memory, 0..1, &here, 2).expect("a send that waits");
    assert!(from.cancel(last), "nothing of it has left");
    assert_eq!(one(&here).result, Err(Errno(libc::ECANCELED)));
    // The peer closes: what is in the ring is received all the same.
    from.shutdown().expect("it is connected");
    from.close(&here, 3).expect("close");
    expect(&here, EventKind::Close, 3);
    to.receive(&memory, 4096..8192, true, &there, 1).expect("a receive");
    assert_eq!(expect(&there, EventKind::Receive, 1).result, Ok(4096));
    let mut bytes = [0; 4096];
    memory.bytes().read(4096, &mut bytes);
    assert_eq!(bytes, [7; 4096]);
    to.receive(&memory, 4096..8192, true, &there, 2).expect("a receive");
    assert!(expect(&there, EventKind::Receive, 2).end);
}
