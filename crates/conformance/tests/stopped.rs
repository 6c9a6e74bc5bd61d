//! A process is stopped (SIGSTOP) while a peer waits for it. Beyond the timeouts that is a dead path: RETRY_EXC_ERR,
//! and no byte moves any more, whatever the process does when it goes on. If it goes on before, nothing is lost, and
//! nothing comes twice (IBTA vol. 1, 9.7.5.1.2, 9.9.2.1.3).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use conformance::{Fixture, Joined, Remote, Wire, collect, until};
use rdma::{
    CompChannel, Cq, Data, Errno, Gid, Mr, Qp, QpAttrMask, QpCap, QpOptions, QpState, QpType, RecvWr, SendOp, SendWr,
    Status, Wc,
};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

/// The lengths: in the ring's slot, in its bulk area, and of messages that may be copied directly.
const LENS: [usize; 3] = [16, 5000, 200_000];
const MOST: usize = LENS[2];
/// Messages of one case.
const MESSAGES: usize = 6;
/// Places in both regions: of the bytes of WRITE and READ, of a counter, and of messages.
const WRITTEN: usize = 0;
const READ: usize = MOST;
const COUNTER: usize = 2 * MOST;
const PLACES: usize = 2 * MOST + 8;
const REGION: usize = PLACES + MESSAGES * MOST;

/// The timeout of 17 ms (4.096 us * 2^12) passes twice.
const SHORT: fn() -> Joined = || Joined { timeout: 12, retries: 1, ..Joined::default() };
/// The timeout of 268 ms passes eight times.
const LONG: fn() -> Joined = || Joined { timeout: 16, retries: 7, ..Joined::default() };
/// There is no timeout.
const ENDLESS: fn() -> Joined = || Joined { timeout: 0, ..Joined::default() };

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Waits {
    Polling,
    Events,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Place {
    qpn: u32,
    gid: [u8; 16],
    addr: u64,
    rkey: u32,
}

/// The task of the other process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Task {
    joined: Joined,
    waits: Waits,
    /// True if it begins; otherwise the test does.
    initiates: bool,
    len: usize,
}

struct End {
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    channel: Option<Arc<CompChannel>>,
    mr: Arc<Mr>,
}

impl End {
    fn new(fixture: &Fixture, waits: Waits) -> End {
        let events = waits == Waits::Events;
        let channel = events.then(|| fixture.context.create_comp_channel().expect("ibv_create_comp_channel"));
        let cq = fixture.context.create_cq(64, channel.as_ref(), 0).expect("ibv_create_cq");
        let options = QpOptions {
            qp_type: QpType::Rc,
            send_cq: Some(&cq),
            recv_cq: Some(&cq),
            srq: None,
            xrcd: None,
            cap: QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 },
            sq_sig_all: true,
        };
        let qp = fixture.pd.create_qp(&options).expect("ibv_create_qp");
        let mr =
            fixture.pd.reg_mr(REGION, rdma::Access::from_bits_retain(Joined::default().access)).expect("ibv_reg_mr");
        End { qp, cq, channel, mr }
    }

    fn connect(&self, fixture: &Fixture, wire: &mut Wire, joined: &Joined, len: usize) -> Place {
        let place = Place { qpn: self.qp.number(), gid: fixture.gid.0, addr: self.mr.addr(), rkey: self.mr.rkey() };
        let peer: Place = wire.exchange(&place);
        joined.up(&self.qp, QpType::Rc, peer.qpn, Gid(peer.gid));
        self.post_receives(len);
        let () = wire.exchange(&());
        peer
    }

    fn post_receives(&self, len: usize) {
        for at in 0..MESSAGES {
            let sges = [self.mr.sge(PLACES + at * MOST, len)];
            self.qp.post_recv(&RecvWr { wr_id: RECEIVE + at as u64, sges: &sges }).expect("ibv_post_recv");
        }
    }

    /// The next completions, by this end's way of waiting.
    fn completions(&self, count: usize) -> Vec<(u64, Status)> {
        let mut found = Vec::new();
        let mut out = [Wc::default(); 16];
        while let (Some(channel), true) = (&self.channel, found.len() < count) {
            self.cq.arm(false).expect("ibv_req_notify_cq");
            let room = out.len().min(count - found.len());
            match self.cq.poll(&mut out[..room]).expect("ibv_poll_cq") {
                0 => drop(channel.event().map_err(|error| assert_eq!(error.errno, Errno::EINTR))),
                n => found.extend_from_slice(&out[..n]),
            }
        }
        if self.channel.is_none() {
            found = collect(&self.cq, count);
        }
        found.iter().map(|wc| (wc.wr_id(), wc.status())).collect()
    }

    fn fill(&self, at: usize, len: usize, with: u8) {
        self.mr.write(at, &vec![with; len]);
    }

    /// The value that all bytes have, if they have one.
    fn all(&self, at: usize, len: usize) -> Option<u8> {
        let mut bytes = vec![0; len];
        self.mr.read(at, &mut bytes);
        bytes.iter().all(|byte| *byte == bytes[0]).then_some(bytes[0])
    }

    /// The values that occur.
    fn bytes(&self, at: usize, len: usize) -> BTreeSet<u8> {
        let mut bytes = vec![0; len];
        self.mr.read(at, &mut bytes);
        bytes.into_iter().collect()
    }

    fn state(&self) -> QpState {
        self.qp.query(QpAttrMask::STATE).expect("ibv_query_qp").state
    }

    /// Post one request of everything at once: messages of `BYTE`, an atomic, a WRITE and a READ, and more messages.
    fn begin(&self, peer: &Place, len: usize) {
        self.fill(PLACES, len, BYTE);
        let Place { addr, rkey, .. } = *peer;
        let at = |offset: usize| addr + offset as u64;
        let message = [self.mr.sge(PLACES, len)];
        let counter = [self.mr.sge(COUNTER, 8)];
        let read = [self.mr.sge(READ, len)];
        let send = (SendOp::Send, &message);
        let ops = [
            send,
            (SendOp::FetchAdd { addr: at(COUNTER), rkey, add: 1 }, &counter),
            (SendOp::Write { addr: at(WRITTEN), rkey }, &message),
            (SendOp::Read { addr: at(READ), rkey }, &read),
            send,
            send,
            send,
            send,
            send,
        ];
        assert_eq!(ops.len(), REQUESTS);
        let wrs: Vec<SendWr<'_>> =
            (1..).zip(&ops).map(|(id, (op, list))| SendWr::new(id, *op, Data::Sges(&list[..]))).collect();
        self.qp.post_sends(&wrs).expect("ibv_post_send");
    }

    /// Check that all requests were done, once and in order.
    fn all_done(&self, len: usize, what: &str) {
        let wanted: Vec<(u64, Status)> = (1..=REQUESTS as u64).map(|id| (id, Status::SUCCESS)).collect();
        assert_eq!(self.completions(REQUESTS), wanted, "{what}");
        assert_eq!(self.all(READ, len), Some(OTHER), "{what}: what was read");
        assert_eq!(self.state(), QpState::Rts, "{what}");
    }

    /// Check that all requests of the peer have come, once and in order.
    fn all_came(&self, len: usize, what: &str) {
        let wanted: Vec<(u64, Status)> = (0..MESSAGES as u64).map(|at| (RECEIVE + at, Status::SUCCESS)).collect();
        assert_eq!(self.completions(MESSAGES), wanted, "{what}");
        for at in (0..MESSAGES).map(|at| PLACES + at * MOST).chain([WRITTEN]) {
            assert_eq!(self.all(at, len), Some(BYTE), "{what}: at {at}");
        }
        assert_eq!(self.mr.word(COUNTER).load(std::sync::atomic::Ordering::Acquire), 1, "{what}: the counter");
    }
}

const RECEIVE: u64 = 1 << 32;
const REQUESTS: usize = MESSAGES + 3;
/// The byte of messages and WRITEs, the byte in the memory that READs read, and the byte that comes into the buffers
/// too late.
const BYTE: u8 = 0x11;
const OTHER: u8 = 0x22;
const LATER: u8 = 0x33;

/// The values that occur at the target after all, in the places of messages and of the WRITE.
type Seen = Vec<BTreeSet<u8>>;

#[test]
#[ignore = "started by the other tests, as their second process"]
fn remote_side() {
    let Some((_, mut wire)) = Wire::to_test() else { return };
    let fixture = Fixture::open();
    while let Some(Task { joined, waits, initiates, len }) = wire.hear::<Option<Task>>() {
        let end = End::new(&fixture, waits);
        end.fill(READ, len, OTHER);
        let peer = end.connect(&fixture, &mut wire, &joined, len);
        if initiates {
            end.begin(&peer, len);
            wire.tell(&());
            // Only its NIC thread works for it meanwhile.
            let () = wire.hear();
            end.all_done(len, "in the other process");
        } else if let Some(true) = wire.try_hear::<bool>() {
            end.all_came(len, "in the other process");
        }
        wire.tell(&());
        let () = wire.hear();
        let seen = (0..MESSAGES).map(|at| PLACES + at * MOST).chain([WRITTEN]).map(|at| end.bytes(at, len));
        wire.tell(&seen.collect::<Seen>());
        let () = wire.hear();
    }
}

fn stop(remote: &Remote) {
    remote.signal(Signal::STOP);
    until("the other process to be stopped", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", remote.pid())).expect("/proc/PID/stat");
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')).then_some(())
    });
}

/// Run a test with each combination.
fn each(test: impl Fn(&Fixture, &mut Remote, Waits, usize, &str)) {
    let fixture = Fixture::open();
    let mut cases = 0;
    for single_copy in ["1", "0"] {
        let mut remote = Remote::start("remote_side", "stopped", &[("SOFTRNIC_SINGLE_COPY", single_copy)]);
        for waits in [Waits::Polling, Waits::Events] {
            for len in LENS {
                test(&fixture, &mut remote, waits, len, &format!("single copy {single_copy}, {waits:?}, {len} bytes"));
                cases += 1;
            }
        }
        remote.wire.tell(&None::<Task>);
        assert!(remote.ended_well());
    }
    println!("counted: {cases} cases of a stopped peer");
}

/// The end of a case: the values that the other process sees in its memory.
fn seen(remote: &mut Remote) -> Seen {
    let () = remote.wire.hear();
    remote.wire.tell(&());
    let seen = remote.wire.hear();
    remote.wire.tell(&());
    seen
}

#[test]
fn beyond_the_timeouts_it_is_a_dead_path() {
    each(|fixture, remote, waits, len, what| {
        remote.wire.tell(&Some(Task { joined: SHORT(), waits, initiates: false, len }));
        let end = End::new(fixture, waits);
        let peer = end.connect(fixture, &mut remote.wire, &SHORT(), len);
        stop(remote);
        let start = Instant::now();
        end.begin(&peer, len);
        let got = end.completions(REQUESTS + MESSAGES);
        let took = start.elapsed();
        let flushed = |id| (id, Status::FLUSHED);
        let mut wanted: Vec<(u64, Status)> = (1..=REQUESTS as u64).map(flushed).collect();
        wanted[0].1 = Status::RETRIES;
        wanted.extend((0..MESSAGES as u64).map(|at| flushed(RECEIVE + at)));
        assert_eq!(got, wanted, "{what}");
        assert_eq!(end.state(), QpState::Err, "{what}");
        // Both timeouts have passed.
        assert!(took >= Duration::from_micros(2 * 4096 * (1 << 12) / 1000), "{what}: given up after {took:?}");
        // The buffers are the program's again: bytes that it puts there now may not arrive at the peer, and no byte may
        // be written there.
        for at in [PLACES, READ, COUNTER] {
            end.fill(at, if at == COUNTER { 8 } else { len }, LATER);
        }
        remote.signal(Signal::CONT);
        remote.wire.tell(&false);
        // Packets that it had before it was stopped are taken in by the time it has answered and served another queue
        // pair.
        let there = seen(remote);
        for (at, bytes) in there.iter().enumerate() {
            // Any byte of a failed request may have come, but no byte that was not sent.
            assert!(bytes.is_subset(&BTreeSet::from([0, BYTE])), "{what}: {bytes:02x?} at {at}: a copy after the end");
        }
        again(fixture, remote, waits, len, what);
        for at in [PLACES, READ] {
            assert_eq!(end.all(at, len), Some(LATER), "{what}: the buffer of a request that was over");
        }
    });
}

/// Test two queue pairs of the same processes, at once after.
fn again(fixture: &Fixture, remote: &mut Remote, waits: Waits, len: usize, what: &str) {
    remote.wire.tell(&Some(Task { joined: LONG(), waits, initiates: false, len }));
    let end = End::new(fixture, waits);
    let peer = end.connect(fixture, &mut remote.wire, &LONG(), len);
    end.begin(&peer, len);
    remote.wire.tell(&true);
    end.all_done(len, &format!("{what}, again"));
    seen(remote);
}

#[test]
fn who_goes_on_in_time_has_lost_nothing() {
    // The pause is longer than a timeout or two, and in the second case there is no timeout.
    for (joined, pause) in [(LONG(), Duration::from_millis(290)), (ENDLESS(), Duration::from_millis(40))] {
        each(|fixture, remote, waits, len, what| {
            remote.wire.tell(&Some(Task { joined, waits, initiates: false, len }));
            let end = End::new(fixture, waits);
            let peer = end.connect(fixture, &mut remote.wire, &joined, len);
            stop(remote);
            end.begin(&peer, len);
            std::thread::sleep(pause);
            remote.signal(Signal::CONT);
            remote.wire.tell(&true);
            end.all_done(len, what);
            seen(remote);
        });
    }
}

/// A process that was stopped itself takes in the packets of the meantime before it counts the time: its peer was there
/// all along.
#[test]
fn whoever_was_stopped_itself_goes_on() {
    each(|fixture, remote, waits, len, what| {
        remote.wire.tell(&Some(Task { joined: SHORT(), waits, initiates: true, len }));
        let end = End::new(fixture, waits);
        end.fill(READ, len, OTHER);
        end.connect(fixture, &mut remote.wire, &SHORT(), len);
        let () = remote.wire.hear();
        stop(remote);
        std::thread::sleep(Duration::from_millis(60));
        remote.signal(Signal::CONT);
        remote.wire.tell(&());
        end.all_came(len, what);
        seen(remote);
    });
}
