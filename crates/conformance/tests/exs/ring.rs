//! The ring of a stream in memory that peers map.

use conformance::{collect, library};
use exs::protocol::{HEADER, Hello, Kind, Message, Remote, Settings};
use exs::socket::{EventKind, Exs, Options};
use exs::stream::Ack;
use rdma::sys::IBV_WC_RECV_RDMA_WITH_IMM;
use rdma::{RecvWr, Status};

use super::common::{expect, local};
use super::forged::{Forger, hello};

/// The ring of the forger, behind its messages.
const AT: usize = 4096;
const RING: usize = 256 << 10;
/// One transfer.
const LEN: usize = 64 << 10;

/// A large transfer into a ring that peers map, of a peer that is late, is a WRITE, which the device may execute at
/// once, and DATA. Into any other ring it is a WRITE with an immediate value.
#[test]
fn a_large_transfer_goes_into_the_ring_as_the_ring_wants_it() {
    for (mapped, late) in [(true, true), (true, false), (false, true)] {
        let at_once = mapped && late;
        let exs = Exs::new(&library()).expect("a device");
        let queue = exs.queue(8).expect("a queue");
        let memory = exs.memory(LEN).expect("memory");
        let bytes: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
        memory.bytes().write(0, &bytes);
        let listener = exs.listen(local(), 8, Options::new(Kind::Stream)).expect("an address");
        listener.accept(&queue, 1).expect("a place");
        let events = library().create_event_channel().expect("a channel");
        let to = listener.local_addr().expect("it is bound");
        let forger = Forger::ask_with(&events, to, AT + RING, |mr| {
            let settings = Settings { kind: Kind::Stream, credits: 4, small: 0, ring: RING as u32 };
            let ring = Remote { addr: mr.addr() + AT as u64, rkey: mr.rkey() };
            Hello { settings, ring, windows: false, mapped }.emit().to_vec()
        });
        let receive = |at| forger.qp.post_recv(&RecvWr { wr_id: 2, sges: &[forger.mr.sge(at, HEADER)] });
        receive(1024).expect("a receive");
        forger.finish();
        let socket = expect(&queue, EventKind::Accept, 1).socket.expect("a connection");
        if late {
            forger.send(&Message::Room(Ack { late, ..Ack::default() }).emit());
            // The answer says that this has been taken in.
            forger.send(&Message::Ping.emit());
            assert_eq!(collect(&forger.cq, 1)[0].status(), Status::SUCCESS);
            receive(1024).expect("a receive");
        }
        socket.send(&memory, 0..LEN, &queue, 2).expect("a send");
        let wc = collect(&forger.cq, 1)[0];
        assert_eq!(wc.status(), Status::SUCCESS);
        assert_eq!(wc.opcode() == IBV_WC_RECV_RDMA_WITH_IMM, !at_once);
        if at_once {
            let mut header = [0; HEADER];
            forger.mr.read(1024, &mut header);
            let message = Message::parse(&header, HEADER);
            assert!(matches!(message, Ok(Message::Data { len, .. }) if len as usize == LEN), "{message:?}");
        }
        let mut got = vec![0; LEN];
        forger.mr.read(AT, &mut got);
        assert!(got == bytes, "the bytes are in the ring before the word");
        assert_eq!(expect(&queue, EventKind::Send, 2).result, Ok(LEN as u64));
    }
}

/// The first rings lie in memory that peers map; a place that is given back is used again.
#[test]
fn so_many_rings_lie_in_memory_that_peers_map() {
    let exs = Exs::new(&library()).expect("a device");
    let queue = exs.queue(64).expect("a queue");
    let listener = exs.listen(local(), 64, Options::new(Kind::Stream)).expect("an address");
    let events = library().create_event_channel().expect("a channel");
    let connect = || {
        listener.accept(&queue, 1).expect("a place");
        let forger = Forger::ask(&events, listener.local_addr().expect("it is bound"), &hello(Kind::Stream));
        let mapped = forger.finish().mapped;
        (mapped, forger, expect(&queue, EventKind::Accept, 1).socket.expect("a connection"))
    };
    let mut all: Vec<_> = (0..34).map(|_| connect()).collect();
    assert_eq!(all.iter().map(|(mapped, ..)| usize::from(*mapped)).sum::<usize>(), 32);
    assert!(all[0].0 && !all[33].0, "the first ones");
    let (_, forger, socket) = all.swap_remove(0);
    drop(forger);
    socket.close(&queue, 2).expect("close");
    expect(&queue, EventKind::Close, 2);
    drop(socket);
    assert!(connect().0, "a place is free");
}

/// Packets have only places for notices there, and leave half of all to streams.
#[test]
fn packets_leave_half_of_the_places_to_streams() {
    let exs = Exs::new(&library()).expect("a device");
    let queue = exs.queue(64).expect("a queue");
    let events = library().create_event_channel().expect("a channel");
    let connect = |kind, count| {
        let listener = exs.listen(local(), 64, Options::new(kind)).expect("an address");
        let one = |_| {
            listener.accept(&queue, 1).expect("a place");
            let forger = Forger::ask(&events, listener.local_addr().expect("it is bound"), &hello(kind));
            (forger.finish().mapped, forger, expect(&queue, EventKind::Accept, 1).socket.expect("a connection"))
        };
        (0..count).map(one).collect::<Vec<_>>()
    };
    let (packets, streams) = (connect(Kind::SeqPacket, 18), connect(Kind::Stream, 18));
    for all in [packets, streams] {
        assert_eq!(all.iter().map(|(mapped, ..)| usize::from(*mapped)).sum::<usize>(), 16);
    }
}
