//! Data that a sender WRITEs because the recipient asks for them, with a peer that knows the protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use conformance::{collect, library};
use exs::protocol::{HEADER, Hello, Kind, Message, Remote, Settings};
use exs::socket::{EventKind, Exs, Memory, Options, Queue, Socket};
use rdma::{Data, Errno, EventChannel, RecvWr, SendOp, SendWr, Status};

use super::common::{expect, local, one};
use super::forged::Forger;

const LEN: usize = 64 << 10;
/// Where the forger has its received messages, and its data.
const SLOTS: usize = 1024;
const BYTES: usize = 4096;

/// A socket, its peer, and what both need.
struct Talk {
    exs: Exs,
    socket: Arc<Socket>,
    queue: Arc<Queue>,
    forger: Forger,
    _events: Arc<EventChannel>,
    /// Messages that the forger has received.
    heard: usize,
}

impl Talk {
    fn new(pushes: bool) -> Talk {
        let exs = Exs::new(&library()).expect("a device");
        let queue = exs.queue(8).expect("a queue");
        let options = Options { small: 256, ..Options::new(Kind::SeqPacket) };
        let listener = exs.listen(local(), 8, options).expect("an address");
        listener.accept(&queue, 1).expect("a place");
        let events = library().create_event_channel().expect("a channel");
        let to = listener.local_addr().expect("it is bound");
        let settings = Settings { kind: Kind::SeqPacket, credits: 4, small: 256, ring: 0 };
        let ring = Remote { addr: 0, rkey: 0 };
        let hello = Hello { settings, ring, windows: false, mapped: false, pushes };
        let forger = Forger::ask_with(&events, to, BYTES + 2 * LEN, |_| hello.emit().to_vec());
        for slot in 0..6 {
            let sges = [forger.mr.sge(SLOTS + slot * HEADER, HEADER)];
            forger.qp.post_recv(&RecvWr { wr_id: 2, sges: &sges }).expect("a receive");
        }
        assert!(forger.finish().pushes, "the device makes the copies");
        let socket = expect(&queue, EventKind::Accept, 1).socket.expect("a connection");
        Talk { exs, socket, queue, forger, _events: events, heard: 0 }
    }

    /// The next message of the socket, if its completion was taken.
    fn message(&mut self) -> Message {
        let mut header = [0; HEADER];
        self.forger.mr.read(SLOTS + self.heard * HEADER, &mut header);
        self.heard += 1;
        Message::parse(&header, HEADER).expect("a message")
    }

    /// Two receives of the socket, and two advertisements: the socket READs the first and asks for the second. Gives
    /// the place for it.
    fn asked(&mut self, memory: &Arc<Memory>) -> Remote {
        self.forger.mr.write(BYTES, &[1; LEN]);
        self.forger.mr.write(BYTES + LEN, &[2; LEN]);
        for at in 0..2 {
            self.socket.receive(memory, at * LEN..(at + 1) * LEN, false, &self.queue, at as u64).expect("a receive");
        }
        let (addr, rkey) = (self.forger.mr.addr() + BYTES as u64, self.forger.mr.rkey());
        let advert = |seq: u32| {
            let addr = addr + u64::from(seq) * LEN as u64;
            Message::Advert { seq, addr, rkey, len: LEN as u32, persistent: false }.emit()
        };
        self.forger.post(&[advert(0), advert(1)].concat());
        // The SEND, PUSH, and the ACK of the first.
        collect(&self.forger.cq, 3);
        let Message::Push { seq: 1, addr, rkey, len } = self.message() else { panic!("no PUSH") };
        assert_eq!((len as usize, self.message()), (LEN, Message::Ack { seq: 0 }));
        assert_eq!(expect(&self.queue, EventKind::Receive, 0).result, Ok(LEN as u64));
        Remote { addr, rkey }
    }

    /// WRITE the data of the second advertisement; how it ends.
    fn write(&self, to: Remote) -> Status {
        let data = Data::Sges(&[self.forger.mr.sge(BYTES + LEN, LEN)]);
        let op = SendOp::Write { addr: to.addr, rkey: to.rkey };
        self.forger.qp.post_send(&SendWr::new(3, op, data)).expect("a WRITE");
        collect(&self.forger.cq, 1)[0].status()
    }

    fn finish(self) {
        self.socket.close(&self.queue, 9).expect("close");
        while one(&self.queue).kind != EventKind::Close {}
    }
}

#[test]
fn a_packet_is_asked_for_while_another_is_read() {
    let mut talk = Talk::new(true);
    let memory = talk.exs.memory(2 * LEN).expect("memory");
    let to = talk.asked(&memory);
    assert_eq!(talk.write(to), Status::SUCCESS);
    talk.forger.post(&Message::Pushed { seq: 1 }.emit());
    collect(&talk.forger.cq, 2);
    assert_eq!(talk.message(), Message::Ack { seq: 1 });
    assert_eq!(expect(&talk.queue, EventKind::Receive, 1).result, Ok(LEN as u64));
    let mut bytes = vec![0; 2 * LEN];
    memory.bytes().read(0, &mut bytes);
    assert!(bytes[..LEN] == [1; LEN] && bytes[LEN..] == [2; LEN]);
    assert_ne!(talk.write(to), Status::SUCCESS, "the place is the program's again");
    talk.finish();
}

#[test]
fn a_peer_that_keeps_to_no_push_ends_the_connection() {
    for number in [0, 2] {
        let mut talk = Talk::new(true);
        let memory = talk.exs.memory(2 * LEN).expect("memory");
        talk.asked(&memory);
        talk.forger.post(&Message::Pushed { seq: number }.emit());
        assert_eq!(expect(&talk.queue, EventKind::Receive, 1).result, Err(Errno(libc::EPROTO)), "{number}");
        talk.finish();
    }
}

#[test]
fn a_peer_that_goes_ends_what_it_was_asked_for() {
    static THERE: AtomicBool = AtomicBool::new(true);
    for there in [true, false] {
        let mut talk = Talk::new(true);
        let own = talk.exs.memory(2 * LEN).expect("memory");
        let mr = talk.exs.domain().reg_mr(2 * LEN, talk.exs.access()).expect("memory");
        let memory = Memory::adopt(mr, None, |_, _| THERE.load(Ordering::Relaxed), true);
        let memory = if there { own } else { memory };
        talk.asked(&memory);
        THERE.store(there, Ordering::Relaxed);
        talk.forger.leave();
        // A WRITE to memory that is gone breaks the connection, and nothing else says so here.
        let errno = if there { libc::ECONNRESET } else { libc::EFAULT };
        assert_eq!(expect(&talk.queue, EventKind::Receive, 1).result, Err(Errno(errno)));
        talk.finish();
    }
}

#[test]
fn a_sender_writes_what_it_is_asked_for() {
    // The length that is asked for, the bits that the key has wrong, whether both ends take PUSH, how the send ends.
    let cases = [
        (LEN, 0, true, Ok(LEN as u64)),
        (LEN - 1, 0, true, Ok(LEN as u64)),
        (LEN + 1, 0, true, Err(Errno(libc::EPROTO))),
        (LEN, 0x5555_5500, true, Err(Errno(libc::ECONNRESET))),
        (LEN, 0, false, Err(Errno(libc::EPROTO))),
    ];
    for (len, wrong, pushes, outcome) in cases {
        let mut talk = Talk::new(pushes);
        let memory = talk.exs.memory(LEN).expect("memory");
        memory.bytes().write(0, &[3; LEN]);
        talk.socket.send(&memory, 0..LEN, &talk.queue, 2).expect("a send");
        collect(&talk.forger.cq, 1);
        assert!(matches!(talk.message(), Message::Advert { seq: 0, .. }));
        let (addr, rkey) = (talk.forger.mr.addr() + BYTES as u64, talk.forger.mr.rkey() ^ wrong);
        talk.forger.post(&Message::Push { seq: 0, addr, rkey, len: len as u32 }.emit());
        if outcome.is_ok() {
            collect(&talk.forger.cq, 2);
            assert_eq!(talk.message(), Message::Pushed { seq: 0 });
            let mut bytes = vec![0; LEN];
            talk.forger.mr.read(BYTES, &mut bytes);
            assert!(bytes[..len] == vec![3; len] && bytes[len..].iter().all(|byte| *byte == 0), "{len}");
            assert!(talk.queue.dequeue(1, 0, None).is_empty(), "it ends by the ACK");
            talk.forger.post(&Message::Ack { seq: 0 }.emit());
        }
        assert_eq!(expect(&talk.queue, EventKind::Send, 2).result, outcome, "{len}, {wrong:x}, {pushes}");
        talk.finish();
    }
}
