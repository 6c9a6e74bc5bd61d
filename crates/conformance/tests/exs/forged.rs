//! A peer that forges messages: the connection ends, and no byte of it reaches the program.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use conformance::{collect, library};
use exs::protocol::{HEADER, HELLO, Hello, Kind, Message, Settings, TOGETHER, VERSION};
use exs::socket::{EventKind, Exs, Options};
use rdma::sys::cma::*;
use rdma::{
    Access, CmId, CmParam, Cq, Data, Errno, EventChannel, Mr, Pd, Qp, QpCap, QpOptions, QpType, RecvWr, SendOp, SendWr,
    Status,
};

use super::common::{expect, local, one};

/// The private data of a peer of this kind, which has no ring.
pub fn hello(kind: Kind) -> [u8; HELLO] {
    let (small, ring) = if kind == Kind::Stream { (0, 4096) } else { (256, 0) };
    let settings = Settings { kind, credits: 4, small, ring };
    Hello { settings, ring: exs::protocol::Remote { addr: 0, rkey: 0 }, windows: false, mapped: false }.emit()
}

/// A peer that knows the protocol and does not keep to it.
pub struct Forger {
    pub qp: Arc<Qp>,
    pub cq: Arc<Cq>,
    pub mr: Arc<Mr>,
    pd: Arc<Pd>,
    id: Arc<CmId>,
}

impl Forger {
    /// Ask for a connection with these private data; [`Forger::finish`] goes on when it was accepted.
    pub fn ask(events: &Arc<EventChannel>, to: SocketAddr, private_data: &[u8]) -> Forger {
        Self::ask_with(events, to, 4096, |_| private_data.to_vec())
    }

    /// As [`Forger::ask`], with so many bytes of memory, which the private data may name.
    pub fn ask_with(
        events: &Arc<EventChannel>,
        to: SocketAddr,
        len: usize,
        private_data: impl FnOnce(&Mr) -> Vec<u8>,
    ) -> Forger {
        let id = events.create_id(0).expect("an id");
        id.resolve_addr(to, 2000).expect("it begins");
        id.expect(RDMA_CM_EVENT_ADDR_RESOLVED).expect("an address");
        id.resolve_route(2000).expect("it begins");
        id.expect(RDMA_CM_EVENT_ROUTE_RESOLVED).expect("a route");
        let context = id.context().expect("a device");
        let pd = context.alloc_pd().expect("a domain");
        let cq = context.create_cq(16, None, 0).expect("a queue");
        let cap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (send_cq, recv_cq) = (Some(&cq), Some(&cq));
        let options = QpOptions { qp_type: QpType::Rc, send_cq, recv_cq, srq: None, xrcd: None, cap, sq_sig_all: true };
        let qp = pd.create_qp(&options).expect("a queue pair");
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE;
        id.init_qp(&qp, remote).expect("INIT");
        let mr = pd.reg_mr(len, Access::LOCAL_WRITE | remote).expect("memory");
        let private_data = &private_data(&mr);
        id.connect(&qp, &CmParam { private_data, ..Self::param() }).expect("it begins");
        Forger { qp, cq, mr, pd, id }
    }

    /// The protection domain of its queue pair.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    fn param() -> CmParam<'static> {
        CmParam { responder_resources: 4, initiator_depth: 4, ..CmParam::default() }
    }

    /// The greeting of the socket.
    pub fn finish(&self) -> Hello {
        let answer = self.id.expect(RDMA_CM_EVENT_CONNECT_RESPONSE).expect("an answer");
        self.id.establish(&self.qp, &Self::param()).expect("RTS");
        Hello::parse(&answer.private_data).expect("a greeting")
    }

    /// End the connection.
    pub fn leave(&self) {
        self.id.disconnect(&self.qp).expect("it is connected");
    }

    pub fn send(&self, bytes: &[u8]) {
        self.post(bytes);
        collect(&self.cq, 1);
    }

    pub fn post(&self, bytes: &[u8]) {
        self.mr.write(0, bytes);
        let data = Data::Sges(&[self.mr.sge(0, bytes.len())]);
        self.qp.post_send(&SendWr::new(1, SendOp::Send, data)).expect("a SEND");
    }
}

#[test]
fn a_breach_ends_the_connection() {
    let exs = Exs::new(&library()).expect("a device");
    let queue = exs.queue(8).expect("a queue");
    let memory = exs.memory(4096).expect("memory");
    let options = Options { small: 256, ..Options::new(Kind::SeqPacket) };
    let listener = exs.listen(local(), 8, options).expect("an address");
    let to = listener.local_addr().expect("it is bound");
    let events = library().create_event_channel().expect("a channel");
    let hello = hello(Kind::SeqPacket);
    // What is sent, from the forger's memory and key, and how the receive ends.
    type Forge = fn(u64, u32) -> Vec<u8>;
    let cases: [(&str, Forge, i32); 7] = [
        (
            "a key that is not one",
            |addr, rkey| {
                Message::Advert { seq: 0, addr, rkey: rkey ^ 0x5555_5500, len: 64, persistent: false }.emit().to_vec()
            },
            libc::ECONNRESET,
        ),
        (
            "more than the region has",
            |addr, rkey| {
                Message::Advert { seq: 0, addr: addr + 4090, rkey, len: 64, persistent: false }.emit().to_vec()
            },
            libc::ECONNRESET,
        ),
        ("no message", |_, _| vec![0xff; 40], libc::EPROTO),
        ("less than a header", |_, _| vec![2; 8], libc::EPROTO),
        (
            "messages of two types in one SEND",
            |addr, rkey| {
                let advert = Message::Advert { seq: 0, addr, rkey, len: 64, persistent: false };
                [advert.emit(), Message::Small { seq: 1, len: 0 }.emit()].concat()
            },
            libc::EPROTO,
        ),
        (
            "more messages than a SEND may have",
            |addr, rkey| {
                let advert = |seq| Message::Advert { seq, addr, rkey, len: 64, persistent: false }.emit();
                (0..=TOGETHER as u32).flat_map(advert).collect()
            },
            libc::EPROTO,
        ),
        ("SMALL without its data", |_, _| Message::Small { seq: 0, len: 9 }.emit().to_vec(), libc::EPROTO),
    ];
    for (what, forge, errno) in cases {
        listener.accept(&queue, 1).expect("a place");
        let forger = Forger::ask(&events, to, &hello);
        forger.finish();
        let socket = expect(&queue, EventKind::Accept, 1).socket.expect("a connection");
        memory.bytes().write(0, &[9; 64]);
        socket.receive(&memory, 0..64, false, &queue, 2).expect("a receive");
        forger.send(&forge(forger.mr.addr(), forger.mr.rkey()));
        assert_eq!(one(&queue).result, Err(Errno(errno)), "{what}");
        let mut bytes = [0; 64];
        memory.bytes().read(0, &mut bytes);
        assert_eq!(bytes, [9; 64], "{what}");
        assert_eq!(socket.receive(&memory, 0..1, false, &queue, 3), Err(Errno(libc::ECONNRESET)), "{what}");
        // The forger is told before this end closes.
        forger.id.expect(RDMA_CM_EVENT_DISCONNECTED).expect("a DISCONNECTED");
        socket.close(&queue, 4).expect("close");
        expect(&queue, EventKind::Close, 4);
    }
}

/// A peer may ask whether this process runs (PING): the library answers (PONG), and the program has nothing to do.
#[test]
fn a_question_is_answered() {
    for kind in [Kind::SeqPacket, Kind::Stream] {
        let exs = Exs::new(&library()).expect("a device");
        let queue = exs.queue(8).expect("a queue");
        let listener = exs.listen(local(), 8, Options::new(kind)).expect("an address");
        listener.accept(&queue, 1).expect("a place");
        let events = library().create_event_channel().expect("a channel");
        let forger = Forger::ask(&events, listener.local_addr().expect("it is bound"), &hello(kind));
        let answers: u32 = 3;
        for slot in 0..answers {
            let sges = [forger.mr.sge(1024 + slot as usize * HEADER, HEADER)];
            forger.qp.post_recv(&RecvWr { wr_id: 2, sges: &sges }).expect("a receive");
        }
        forger.finish();
        let socket = expect(&queue, EventKind::Accept, 1).socket.expect("a connection");
        for slot in 0..answers {
            forger.post(&Message::Ping.emit());
            // The SEND and the answer.
            collect(&forger.cq, 2);
            let mut bytes = [0; HEADER];
            forger.mr.read(1024 + slot as usize * HEADER, &mut bytes);
            assert_eq!(Message::parse(&bytes, HEADER), Ok(Message::Pong));
        }
        // An answer without a question is a breach.
        let memory = exs.memory(64).expect("memory");
        socket.receive(&memory, 0..64, false, &queue, 2).expect("a receive");
        forger.send(&Message::Pong.emit());
        assert_eq!(expect(&queue, EventKind::Receive, 2).result, Err(Errno(libc::EPROTO)));
        socket.close(&queue, 3).expect("close");
        expect(&queue, EventKind::Close, 3);
    }
}

/// A peer that takes PING and does not answer is taken for stopped.
#[test]
fn a_peer_that_does_not_answer_is_given_up() {
    let exs = Exs::new(&library()).expect("a device");
    let queue = exs.queue(8).expect("a queue");
    let memory = exs.memory(64).expect("memory");
    let listener = exs.listen(local(), 8, Options::new(Kind::SeqPacket)).expect("an address");
    listener.accept(&queue, 1).expect("a place");
    let events = library().create_event_channel().expect("a channel");
    let to = listener.local_addr().expect("it is bound");
    let forger = Forger::ask(&events, to, &hello(Kind::SeqPacket));
    for slot in 0..4 {
        let sges = [forger.mr.sge(1024 + slot * HEADER, HEADER)];
        forger.qp.post_recv(&RecvWr { wr_id: 2, sges: &sges }).expect("a receive");
    }
    forger.finish();
    let socket = expect(&queue, EventKind::Accept, 1).socket.expect("a connection");
    socket.receive(&memory, 0..64, false, &queue, 2).expect("a receive");
    socket.set_timeout(Duration::from_millis(400));
    assert_eq!(collect(&forger.cq, 1)[0].status(), Status::SUCCESS);
    let mut bytes = [0; HEADER];
    forger.mr.read(1024, &mut bytes);
    assert_eq!(Message::parse(&bytes, HEADER), Ok(Message::Ping), "it asks");
    assert_eq!(expect(&queue, EventKind::Receive, 2).result, Err(Errno(libc::ETIMEDOUT)));
    forger.id.expect(RDMA_CM_EVENT_DISCONNECTED).expect("a DISCONNECTED");
    socket.close(&queue, 3).expect("close");
    expect(&queue, EventKind::Close, 3);
}

#[test]
fn a_peer_that_posts_no_receive_blocks_nothing() {
    let exs = Exs::new(&library()).expect("a device");
    let queue = exs.queue(8).expect("a queue");
    let memory = exs.memory(4096).expect("memory");
    let listener = exs.listen(local(), 8, Options::new(Kind::Stream)).expect("an address");
    listener.accept(&queue, 1).expect("a place");
    let events = library().create_event_channel().expect("a channel");
    let hello = hello(Kind::Stream);
    let forger = Forger::ask(&events, listener.local_addr().expect("it is bound"), &hello);
    forger.finish();
    let socket = expect(&queue, EventKind::Accept, 1).socket.expect("a connection");
    socket.send(&memory, 0..8, &queue, 2).expect("a send");
    assert_eq!(expect(&queue, EventKind::Send, 2).result, Err(Errno(libc::ECONNRESET)));
    socket.close(&queue, 3).expect("close");
    expect(&queue, EventKind::Close, 3);
}

#[test]
fn a_listener_closes() {
    let exs = Exs::new(&library()).expect("a device");
    let queue = exs.queue(8).expect("a queue");
    let options = Options::new(Kind::Stream);
    let listener = exs.listen(local(), 8, options).expect("an address");
    let to = listener.local_addr().expect("it is bound");
    listener.accept(&queue, 1).expect("a place");
    listener.close().expect("it is open");
    assert_eq!(expect(&queue, EventKind::Accept, 1).result, Err(Errno(libc::ECANCELED)));
    assert_eq!(listener.accept(&queue, 2), Err(Errno(libc::EBADF)));
    assert_eq!(listener.close(), Err(Errno(libc::EBADF)));
    exs.connect(to, options, &queue, 3).expect("it begins");
    assert_eq!(expect(&queue, EventKind::Connect, 3).result, Err(Errno(libc::ECONNREFUSED)));
    exs.listen(to, 8, options).expect("the address is free again");
}

#[test]
fn strangers_are_refused_at_once() {
    let exs = Exs::new(&library()).expect("a device");
    let listener = exs.listen(local(), 8, Options::new(Kind::Stream)).expect("an address");
    let to = listener.local_addr().expect("it is bound");
    let events = library().create_event_channel().expect("a channel");
    let mut other = hello(Kind::Stream);
    other[4] = VERSION + 1;
    // No accept waits: the refusal comes from the private data alone.
    for private_data in [&b""[..], b"hello, this is something else", &other] {
        let forger = Forger::ask(&events, to, private_data);
        let refused = forger.id.expect(RDMA_CM_EVENT_CONNECT_RESPONSE).err().map(|error| error.errno);
        assert_eq!(refused, Some(Errno(libc::ECONNREFUSED)), "{private_data:?}");
    }
}
