//! Credits of small data, as a peer gets them back.

use conformance::{collect, library};
use exs::protocol::{HEADER, Kind, Message};
use exs::socket::{EventKind, Exs, Options};
use rdma::RecvWr;

use super::common::{expect, local};
use super::forged::{Forger, hello};

/// A message that answers what has come is not delayed by the credits, which go behind it.
#[test]
fn credits_come_back_behind_the_answer() {
    const DATA: usize = 8;
    const SLOTS: usize = 1024;
    let exs = Exs::new(&library()).expect("a device");
    let queue = exs.queue(16).expect("a queue");
    let memory = exs.memory(64).expect("memory");
    let listener = exs.listen(local(), 8, Options::new(Kind::SeqPacket)).expect("an address");
    listener.accept(&queue, 1).expect("a place");
    let events = library().create_event_channel().expect("a channel");
    let peer = Forger::ask(&events, listener.local_addr().expect("it is bound"), &hello(Kind::SeqPacket));
    let slot = HEADER + DATA;
    for number in 0..4 {
        let sges = [peer.mr.sge(SLOTS + number * slot, slot)];
        peer.qp.post_recv(&RecvWr { wr_id: 2, sges: &sges }).expect("a receive");
    }
    peer.finish();
    let socket = expect(&queue, EventKind::Accept, 1).socket.expect("a connection");
    // More than half of its four credits.
    for seq in 0..3 {
        socket.receive(&memory, 0..DATA, false, &queue, 2).expect("a receive");
        let message = Message::Small { seq, len: DATA as u32 };
        peer.send(&[&message.emit()[..], &[seq as u8; DATA]].concat());
        assert_eq!(expect(&queue, EventKind::Receive, 2).result, Ok(DATA as u64));
        let mut bytes = [0; DATA];
        memory.bytes().read(0, &mut bytes);
        assert_eq!(bytes, [seq as u8; DATA]);
    }
    socket.send(&memory, 0..DATA, &queue, 3).expect("a send");
    expect(&queue, EventKind::Send, 3);
    let lens: Vec<u32> = collect(&peer.cq, 2).iter().map(rdma::Wc::byte_len).collect();
    assert_eq!(lens, [slot as u32, HEADER as u32]);
    let message = |number: usize, len: u32| {
        let header: [u8; HEADER] = peer.mr.read_array(SLOTS + number * slot);
        Message::parse(&header, len as usize)
    };
    assert_eq!(message(0, lens[0]), Ok(Message::Small { seq: 0, len: DATA as u32 }));
    assert_eq!(message(1, lens[1]), Ok(Message::Ack { seq: 2 }));
    peer.leave();
    socket.close(&queue, 4).expect("close");
    expect(&queue, EventKind::Close, 4);
}
