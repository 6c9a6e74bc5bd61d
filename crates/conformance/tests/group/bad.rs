//! Bad input of groups: what is refused, with its words, and what ends a group, with the hop.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use conformance::{Fixture, Remote};
use group::{Client, ClientOptions, Error, Operation, Server, ServerOptions, Wait};
use rdma::dv::{Task, field};
use rdma::{
    Access, Connect, Data, Gid, Mr, Qp, QpCap, QpOptions, QpType, RecvWr, SendFlags, SendOp, SendWr, Status, Wc, sys,
};
use rustix::process::Signal;

use super::{Chain, ENTRY, REGION, client, start};

const OP: Operation = Operation::Write { offset: 0, size: 100 };

/// The longest wait for what comes.
const PATIENCE: Duration = Duration::from_secs(40);

/// Operations until one fails; the text of its error.
fn end(client: &mut Client, how: Wait) -> String {
    let error = (0..).find_map(|_| client.run(&[OP], how).err()).expect("it ends");
    assert!(matches!(error, Error::Broken(_)), "{error}");
    error.to_string()
}

#[test]
fn a_window_is_1_to_2000() {
    let fixture = Fixture::open();
    let chain = Chain::start(&[1]);
    for window in [0, 2001] {
        let buffer = fixture.pd.reg_mr(64, Access::LOCAL_WRITE).expect("ibv_reg_mr");
        let options = ClientOptions { window, ..ClientOptions::default() };
        let refused = Client::connect(&fixture.context, &fixture.pd, chain.first, buffer, &options);
        assert!(matches!(refused.err(), Some(Error::Invalid("a window is 1 to 2000"))));
    }
    let (mut client, _) = client(&fixture, chain.first, 4);
    assert!(matches!(client.run_within(&[OP], 0, Wait::Poll), Err(Error::Invalid("a window is 1 to 2000"))));
}

#[test]
fn a_region_of_another_size_is_refused() {
    let fixture = Fixture::open();
    let last = start(&fixture, 1, None);
    let options =
        ServerOptions { listen: "127.0.0.1:0".parse().expect("an address"), next: Some(last[0].addr()), region: 4096 };
    let first = Server::start(&fixture.context, &options).expect("a server");
    let buffer = fixture.pd.reg_mr(64, Access::LOCAL_WRITE).expect("ibv_reg_mr");
    let refused = Client::connect(&fixture.context, &fixture.pd, first.addr(), buffer, &ClientOptions::default());
    let why = refused.err().expect("an error").to_string();
    assert!(why.ends_with("hop 1 has a region of 65536 bytes, the one before 4096"), "{why}");
}

#[test]
fn a_place_that_is_taken_is_refused() {
    let fixture = Fixture::open();
    let one = start(&fixture, 1, None);
    let options = ServerOptions { listen: one[0].addr(), next: None, region: REGION };
    match Server::start(&fixture.context, &options).err() {
        Some(Error::Io(error)) => assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse),
        other => panic!("{other:?}"),
    }
}

/// A frame of numbers: length and kind, 4 bytes each, then numbers of 8.
fn tell(mut stream: &TcpStream, kind: u32, numbers: &[u64]) {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
    let head = [(bytes.len() as u32).to_le_bytes(), kind.to_le_bytes()].concat();
    stream.write_all(&[head, bytes].concat()).expect("a socket");
}

fn hear(mut stream: &TcpStream) -> (u32, Vec<u8>) {
    let mut head = [0; 8];
    stream.read_exact(&mut head).expect("a frame");
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
    let mut bytes = vec![0; word(0) as usize];
    stream.read_exact(&mut bytes).expect("a frame");
    (word(4), bytes)
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).expect("a server");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream
}

const MAGIC: u64 = u64::from_le_bytes(*b"softgrp\0");
const HELLO: u32 = 1;
const WELCOME: u32 = 2;
const REFUSED: u32 = 3;
const BROKEN: u32 = 6;

#[test]
fn a_peer_of_another_version_is_refused() {
    let fixture = Fixture::open();
    let server = start(&fixture, 1, None);
    for (magic, version, why) in
        [(MAGIC, 99, "the peer speaks version 99, this is version 4"), (7, 4, "the peer is no client of this project")]
    {
        let stream = connect(server[0].addr());
        tell(&stream, HELLO, &[magic, version, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        let (kind, text) = hear(&stream);
        assert_eq!((kind, String::from_utf8_lossy(&text).as_ref()), (REFUSED, why));
    }
}

#[test]
fn a_server_of_another_protocol_is_refused() {
    let fixture = Fixture::open();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let to = listener.local_addr().expect("an address");
    let other = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a client");
        let _ = hear(&stream);
        tell(&stream, 77, &[]);
    });
    let buffer = fixture.pd.reg_mr(64, Access::LOCAL_WRITE).expect("ibv_reg_mr");
    let refused = Client::connect(&fixture.context, &fixture.pd, to, buffer, &ClientOptions::default());
    assert!(matches!(refused.err(), Some(Error::Refused(why)) if why == "the peer is no server of this project"));
    other.join().expect("a thread");
}

/// A stopped server is a stopped adapter: the hop before finds that it does not answer.
#[test]
fn a_stopped_server_is_named() {
    for (hop, how) in [(0, Wait::Poll), (1, Wait::Event), (2, Wait::Event)] {
        let fixture = Fixture::open();
        let chain = Chain::start(&[1, 1, 1]);
        let buffer = fixture.pd.reg_mr(REGION, Access::LOCAL_WRITE).expect("ibv_reg_mr");
        // Longer than the queue pairs try: it is their error that is to come.
        let options = ClientOptions { window: 1, timeout: 5 * PATIENCE };
        let client = Client::connect(&fixture.context, &fixture.pd, chain.first, buffer, &options);
        let mut client = client.expect("a group");
        client.run(&[OP], how).expect("a group");
        // The last one of the chain was started first.
        let process = &chain.processes[2 - hop].0;
        process.signal(Signal::STOP);
        let why = end(&mut client, how);
        process.signal(Signal::CONT);
        assert!(why.contains(&format!("hop {hop}")), "{why}");
    }
}

/// The end of a client frees its queues, and other clients go on.
#[test]
fn a_killed_client_leaves_the_others_alone() {
    let fixture = Fixture::open();
    let mut chain = Chain::start(&[1, 1]);
    let (mut other, _) = client(&fixture, chain.first, 1);
    other.run(&[OP], Wait::Poll).expect("a group");
    let alone = chain.look()[0].1[0];
    let mut process = Remote::start(ENTRY, "client", &[]);
    process.wire.tell(&chain.first);
    process.wire.hear::<()>();
    process.wire.tell(&u64::MAX);
    assert_ne!(chain.look()[0].1[0], alone);
    // Stopped in the middle of operations, then killed.
    process.signal(Signal::STOP);
    other.run(&[OP; 20], Wait::Poll).expect("a group");
    process.kill();
    let begun = std::time::Instant::now();
    while chain.look().iter().any(|(_, counts)| counts[0] != alone) {
        assert!(begun.elapsed() < PATIENCE, "the queues of a client that is gone stay");
        std::thread::sleep(Duration::from_millis(10));
    }
    other.run(&[OP; 20], Wait::Event).expect("a group");
}

/// A client that is stopped for longer than queue pairs try keeps no server and no other client from its work. Its own
/// group goes on with it, or has ended in an error that names the hop that could not reach it.
#[test]
fn a_stopped_client_hangs_nothing() {
    let fixture = Fixture::open();
    let chain = Chain::start(&[1, 1]);
    let (mut other, _) = client(&fixture, chain.first, 1);
    let mut process = Remote::start(ENTRY, "client", &[]);
    process.wire.tell(&chain.first);
    process.wire.hear::<()>();
    process.wire.tell(&100u64);
    other.run(&[OP; 20], Wait::Poll).expect("a group");
    process.signal(Signal::STOP);
    // 8 times 4.096 us * 2^18: the timeout and the retries of a group's queue pairs.
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_secs(9) {
        other.run(&[OP; 20], Wait::Event).expect("a group");
        std::thread::sleep(Duration::from_millis(10));
    }
    process.signal(Signal::CONT);
    let failed: Option<String> = process.wire.hear();
    assert!(failed.as_ref().is_none_or(|why| why.contains("hop ")), "{failed:?}");
    other.run(&[OP; 20], Wait::Event).expect("a group");
}

/// A client that forges messages.
struct Forger {
    stream: TcpStream,
    requests: std::sync::Arc<Qp>,
    sent: std::sync::Arc<rdma::Cq>,
    bytes: std::sync::Arc<Mr>,
    /// The replica's key for peers, and its own.
    keys: [u64; 2],
    /// The entries for operations on the replica's own memory: address, and key.
    own: [u64; 2],
    _answers: std::sync::Arc<Qp>,
    _acks: std::sync::Arc<rdma::Cq>,
}

impl Forger {
    /// Join a chain of one replica, with so many rounds.
    fn join(fixture: &Fixture, to: SocketAddr, rounds: u64) -> Forger {
        let cq = || fixture.context.create_cq(16, None, 0).expect("ibv_create_cq");
        let (sent, acks) = (cq(), cq());
        let qp = |cq| {
            let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
            let (send_cq, recv_cq) = (Some(cq), Some(cq));
            let options =
                QpOptions { qp_type: QpType::Rc, send_cq, recv_cq, srq: None, xrcd: None, cap, sq_sig_all: false };
            fixture.pd.create_qp(&options).expect("ibv_create_qp")
        };
        let (requests, answers) = (qp(&sent), qp(&acks));
        let gid = fixture.context.gids(1).expect("gids")[0].gid;
        let half = |at: usize| u64::from_le_bytes(gid.0[at..at + 8].try_into().expect("8 bytes"));
        let end = |qp: &Qp| [u64::from(qp.number()), half(0), half(8)];
        let stream = connect(to);
        let head = [MAGIC, 4, rounds, 0, 0];
        tell(&stream, HELLO, &[&head[..], &end(&requests), &end(&answers)].concat());
        let (kind, bytes) = hear(&stream);
        assert_eq!(kind, WELCOME);
        let number = |at: usize| u64::from_le_bytes(bytes[8 * at..8 * at + 8].try_into().expect("8 bytes"));
        for (qp, at) in [(&requests, 1), (&answers, 4)] {
            let gid =
                Gid([number(at + 1).to_le_bytes(), number(at + 2).to_le_bytes()].concat().try_into().expect("16"));
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            qp.init(QpType::Rc, 1, access, 0).expect("INIT");
            let with = Connect {
                qpn: number(at) as u32,
                gid,
                lid: 0,
                rq_psn: qp.number(),
                sq_psn: number(at) as u32,
                sgid_index: 0,
                port: 1,
                mtu: 3,
                access,
                rd_atomic: 1,
                timeout: 18,
                rnr_retry: 7,
            };
            qp.connect(QpType::Rc, &with).expect("RTS");
        }
        let (keys, own) = ([number(9), number(10)], [number(13), number(14)]);
        let bytes = fixture.pd.reg_mr(4096, Access::LOCAL_WRITE).expect("ibv_reg_mr");
        let into = [bytes.sge(2048, 8)];
        answers.post_recv(&RecvWr { wr_id: 0, sges: &into }).expect("ibv_post_recv");
        Forger { stream, requests, sent, bytes, keys, own, _answers: answers, _acks: acks }
    }

    /// Send the message of a full round: an entry for the replica itself, then one for what is behind it, with these
    /// opcodes, and the heads of a SEND_EN and a WAIT for the first one. One byte of all of these is changed.
    fn send(&self, own: u8, next: u8, changed: Option<usize>) {
        let [rkey, lkey] = self.keys;
        let one = 1 << (8 * field::NUM_SGE.start);
        let flags = u64::from(SendFlags::SIGNALED.bits()) << (8 * field::FLAGS.start);
        let words = [u64::from(own) | flags | one, 0, 0, rkey, 0, 0, 0, 0]
            .into_iter()
            .chain([u64::from(next) | one, 0, 0, 0, 0, 0, 0, lkey << 32])
            .chain([Task::SEND_EN.into(), 0, 1, Task::WAIT.into(), 0, 1])
            .chain([0]);
        let mut message: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
        if let Some(at) = changed {
            message[at] ^= 1;
        }
        self.bytes.write(0, &message);
        let [addr, rkey] = self.own;
        let (entry, from) = ([self.bytes.sge(0, 64)], [self.bytes.sge(64, message.len() - 64)]);
        let wr = SendWr::new(0, SendOp::Write { addr, rkey: rkey as u32 }, Data::Sges(&entry));
        self.requests.post_send(&SendWr { flags: SendFlags::empty(), ..wr }).expect("ibv_post_send");
        let wr = SendWr::new(0, SendOp::Send, Data::Sges(&from));
        self.requests.post_send(&SendWr { flags: SendFlags::SIGNALED, ..wr }).expect("ibv_post_send");
        let mut wc = [Wc::default()];
        let begun = std::time::Instant::now();
        while self.sent.poll(&mut wc).expect("ibv_poll_cq") == 0 {
            assert!(begun.elapsed() < PATIENCE, "the SEND does not complete");
            std::thread::yield_now();
        }
        assert_eq!(wc[0].status(), Status::SUCCESS);
    }
}

/// A message whose entries break the rules of their queues ends its own group, with the replica and the reason.
#[test]
fn a_patch_beside_the_rules_is_named() {
    let fixture = Fixture::open();
    let mut chain = Chain::start(&[1]);
    let (mut other, _) = client(&fixture, chain.first, 1);
    let nop = Task::NOP as u8;
    let beside = "a request that was patched beside the rules of its queue (opcode, bytes)";
    let (itself, behind) = ("of the replica itself", "to hop 1");
    for (own, next, changed, of) in [
        (sys::IBV_WR_SEND as u8, nop, None, itself),
        (0xee, nop, None, itself),
        (nop, sys::IBV_WR_RDMA_READ as u8, None, behind),
        (nop, nop, Some(field::FLAGS.start), itself),
        (nop, nop, Some(field::RKEY.start), itself),
        (nop, nop, Some(64 + field::WR_ID.start), behind),
        (nop, nop, Some(64 + field::NUM_SGE.start), behind),
        (nop, nop, Some(128 + field::WR_ID.start), behind),
        (nop, nop, Some(152 + field::FLAGS.start), behind),
    ] {
        let forger = Forger::join(&fixture, chain.first, 2);
        forger.send(own, next, changed);
        let (kind, text) = hear(&forger.stream);
        let expected = format!("hop 0: {beside} {of} failed: IBV_WC_LOC_QP_OP_ERR");
        assert_eq!((kind, String::from_utf8_lossy(&text).into_owned()), (BROKEN, expected));
        other.run(&[OP; 10], Wait::Poll).expect("another group");
    }
    assert_eq!(chain.look().len(), 1);
}

/// A queue that fails before it has gone round once flushes all its entries. Their completions overrun no queue, and
/// the first one says what has failed.
#[test]
fn a_failure_in_the_first_circle_overruns_no_queue() {
    let fixture = Fixture::open();
    fixture.context.set_nonblocking().expect("fcntl");
    let servers = start(&fixture, 1, None);
    let forger = Forger::join(&fixture, servers[0].addr(), 256);
    forger.send(Task::NOP as u8, sys::IBV_WR_RDMA_READ as u8, None);
    let (kind, text) = hear(&forger.stream);
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(kind == BROKEN && text.ends_with("to hop 1 failed: IBV_WC_LOC_QP_OP_ERR"), "{kind}: {text}");
    while let Ok(event) = fixture.context.async_event() {
        assert_ne!(event.kind, sys::IBV_EVENT_CQ_ERR, "{event:?}");
    }
}
