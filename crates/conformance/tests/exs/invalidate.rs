//! The peer's last message about a transfer takes back its key (SEND with invalidate).

use std::sync::Arc;

use conformance::{collect, library};
use exs::protocol::{HEADER, Kind, Message, ROW};
use exs::socket::{EventKind, Exs, Memory, Options, Queue, Socket};
use rdma::sys::IBV_WC_SEND;
use rdma::{Access, Bind, Data, MwKind, RecvWr, SendOp, SendWr, Status};

use super::common::{expect, local};
use super::forged::{Forger, hello};

const LEN: usize = 2000;

/// A socket without small data, connected to a peer that has posted receives.
fn pair(exs: &Exs, queue: &Arc<Queue>) -> (Arc<Socket>, Forger) {
    pair_with(exs, queue, 4, 4)
}

/// As [`pair`], with so many receives, and so many credits in place of the forger's.
fn pair_with(exs: &Exs, queue: &Arc<Queue>, slots: usize, credits: u8) -> (Arc<Socket>, Forger) {
    let listener = exs.listen(local(), 8, Options { small: 0, ..Options::new(Kind::SeqPacket) }).expect("an address");
    listener.accept(queue, 1).expect("a place");
    let events = library().create_event_channel().expect("a channel");
    let mut hello = hello(Kind::SeqPacket);
    (hello[7], hello[28]) = (credits, 1);
    let forger = Forger::ask(&events, listener.local_addr().expect("it is bound"), &hello);
    for slot in 0..slots {
        let sges = [forger.mr.sge(1024 + slot * HEADER, if slot < 4 { HEADER } else { ROW })];
        forger.qp.post_recv(&RecvWr { wr_id: slot as u64, sges: &sges }).expect("a receive");
    }
    forger.finish();
    (expect(queue, EventKind::Accept, 1).socket.expect("a connection"), forger)
}

/// The message in a receive of the peer.
fn message(forger: &Forger, slot: usize) -> Message {
    let mut bytes = [0; HEADER];
    forger.mr.read(1024 + slot * HEADER, &mut bytes);
    Message::parse(&bytes, HEADER).expect("a message")
}

/// Advertise two sends of the socket; their places.
fn adverts(socket: &Socket, memory: &Arc<Memory>, queue: &Arc<Queue>, forger: &Forger) -> [(u64, u32); 2] {
    for send in 0..2 {
        socket.send(memory, 0..LEN, queue, 10 + send).expect("a send");
    }
    assert!(collect(&forger.cq, 2).iter().all(|wc| wc.status() == Status::SUCCESS));
    [0, 1].map(|slot| match message(forger, slot) {
        Message::Advert { addr, rkey, .. } => (addr, rkey),
        other => panic!("{other:?}"),
    })
}

/// How a READ ends.
fn read(forger: &Forger, (addr, rkey): (u64, u32)) -> Status {
    let sges = [forger.mr.sge(2048, 1024)];
    forger.qp.post_send(&SendWr::new(1, SendOp::Read { addr, rkey }, Data::Sges(&sges))).expect("a READ");
    collect(&forger.cq, 1)[0].status()
}

/// A SEND of an ACK, with the key that it takes back.
fn ack(forger: &Forger, seq: u32, rkey: u32) {
    forger.mr.write(0, &Message::Ack { seq }.emit());
    let sges = [forger.mr.sge(0, HEADER)];
    forger.qp.post_send(&SendWr::new(1, SendOp::SendInv(rkey), Data::Sges(&sges))).expect("a SEND");
    assert_eq!(collect(&forger.cq, 1)[0].status(), Status::SUCCESS);
}

#[test]
fn a_key_that_the_peer_takes_back_is_gone_and_another_one_stays() {
    let exs = Exs::new(&library()).expect("a device");
    let queue = exs.queue(8).expect("a queue");
    let memory = exs.memory(LEN).expect("memory");
    let (socket, forger) = pair(&exs, &queue);
    let [first, second] = adverts(&socket, &memory, &queue, &forger);
    assert_eq!((read(&forger, first), read(&forger, second)), (Status::SUCCESS, Status::SUCCESS));
    ack(&forger, 0, first.1);
    assert_eq!(expect(&queue, EventKind::Send, 10).result, Ok(LEN as u64));
    assert_eq!(read(&forger, second), Status::SUCCESS, "it is another transfer's");
    assert_eq!(read(&forger, first), Status::REMOTE_ACCESS, "its transfer is over");
}

/// A peer may take back the key of another transfer: that one loses its key before its end, and nothing else happens.
#[test]
fn a_wrong_key_that_the_peer_takes_back_harms_the_peer_alone() {
    let exs = Exs::new(&library()).expect("a device");
    let queue = exs.queue(8).expect("a queue");
    let memory = exs.memory(LEN).expect("memory");
    let (socket, forger) = pair(&exs, &queue);
    let [first, second] = adverts(&socket, &memory, &queue, &forger);
    ack(&forger, 0, second.1);
    assert_eq!(expect(&queue, EventKind::Send, 10).result, Ok(LEN as u64));
    forger.send(&Message::Ack { seq: 1 }.emit());
    assert_eq!(expect(&queue, EventKind::Send, 11).result, Ok(LEN as u64));
    assert_eq!(read(&forger, first), Status::REMOTE_ACCESS, "the socket took it back before the event");
}

/// An ACK of the socket takes a key back from a peer that says that its keys are those of windows.
#[test]
fn an_ack_takes_back_the_key_of_the_peer() {
    let exs = Exs::new(&library()).expect("a device");
    let queue = exs.queue(8).expect("a queue");
    let memory = exs.memory(LEN).expect("memory");
    let (socket, forger) = pair(&exs, &queue);
    let pd = forger.pd();
    let mr = pd.reg_mr(LEN, Access::LOCAL_WRITE | Access::MW_BIND).expect("memory");
    let mw = pd.alloc_mw(MwKind::Type2).expect("a window");
    let (rkey, access) = (mw.rkey() & !0xff | 7, Access::REMOTE_READ);
    let bind = Bind { mw: &mw, rkey, mr: &mr, offset: 0, len: LEN as u64, access };
    forger.qp.post_send(&SendWr::new(1, SendOp::BindMw(bind), Data::Sges(&[]))).expect("a bind");
    assert_eq!(collect(&forger.cq, 1)[0].status(), Status::SUCCESS);
    mr.write(0, &[7; LEN]);
    socket.receive(&memory, 0..LEN, false, &queue, 2).expect("a receive");
    let (addr, len) = (mr.addr(), LEN as u32);
    forger.post(&Message::Advert { seq: 0, addr, rkey, len, persistent: false }.emit());
    // The SEND, and the answer.
    let wcs = collect(&forger.cq, 2);
    let answer = wcs.iter().find(|wc| wc.opcode() != IBV_WC_SEND).expect("an answer");
    assert_eq!(message(&forger, 0), Message::Ack { seq: 0 });
    assert_eq!(answer.invalidated_rkey(), Some(rkey));
    assert_eq!(expect(&queue, EventKind::Receive, 2).result, Ok(LEN as u64));
}

/// Advertisements beyond those that the peer needs for now share a SEND. Its ACK takes back one key; the socket takes
/// the others before the events.
#[test]
fn advertisements_share_a_send() {
    let exs = Exs::new(&library()).expect("a device");
    let queue = exs.queue(16).expect("a queue");
    let memory = exs.memory(LEN).expect("memory");
    let (socket, forger) = pair_with(&exs, &queue, 5, 16);
    for send in 0..8 {
        socket.send(&memory, 0..LEN, &queue, 10 + send).expect("a send");
    }
    let lens: Vec<u32> = collect(&forger.cq, 5).iter().map(|wc| wc.byte_len()).collect();
    assert_eq!(lens, [HEADER, HEADER, HEADER, HEADER, ROW].map(|len| len as u32));
    let places: Vec<(u64, u32)> = (0..8)
        .map(|slot| match message(&forger, slot) {
            Message::Advert { seq, addr, rkey, .. } if seq == slot as u32 => (addr, rkey),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(read(&forger, places[6]), Status::SUCCESS);
    ack(&forger, 7, places[7].1);
    for send in 0..8 {
        assert_eq!(expect(&queue, EventKind::Send, 10 + send).result, Ok(LEN as u64));
    }
    assert_eq!(read(&forger, places[6]), Status::REMOTE_ACCESS, "its transfer is over");
}
