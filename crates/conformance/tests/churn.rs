//! Objects of every kind come and go for a long time, connected and used. In the end the process holds the resources of
//! the beginning: memory, mappings, descriptors, threads.
//!
//! `SOFTRNIC_CHURN_SECONDS` says for how long (10).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use conformance::side::{self, LEN, Place, RECV, Side};
use conformance::{Fixture, Footprint, Joined, PORT, Remote, Wire, collect, library, setting};
use rdma::{Access, AhAttr, Bind, Data, MwKind, Qp, QpCap, QpOptions, QpType, SendFlags, SendOp, SendWr, Status};

const SECONDS: u64 = 10;
/// The part of the time after which everything has been used, and the resources that are kept for ever are there.
const WARM: f64 = 0.3;
/// The rounds of one turn: each makes queues of another depth. The first turn warms up, however long it takes on a
/// busy machine, and as many rounds follow at least.
const TURN: u32 = 50;
/// The growth allowed in the end: pages of a heap that is used in another order, and no descriptor, mapping or thread.
const SLACK: Footprint = Footprint { bytes: 512 << 10, mappings: 2, anonymous: 2, descriptors: 0, threads: 0 };

/// Make one object of each kind, and use those that can be used alone.
fn alone(fixture: &Fixture) {
    let context = fixture.context.device().open().expect("ibv_open_device");
    let pd = context.alloc_pd().expect("ibv_alloc_pd");
    let channel = context.create_comp_channel().expect("ibv_create_comp_channel");
    let cq = context.create_cq(64, Some(&channel), 5).expect("ibv_create_cq");
    cq.resize(300).expect("ibv_resize_cq");
    let srq = pd.create_srq(64, 2, 0).expect("ibv_create_srq");
    srq.set_limit(3).expect("ibv_modify_srq");
    let xrcd = context.open_xrcd().expect("ibv_open_xrcd");
    let mr = pd.reg_mr(100_000, Access::LOCAL_WRITE | Access::REMOTE_READ | Access::MW_BIND).expect("ibv_reg_mr");
    let again = pd.reg_mr_again(&mr, Access::empty()).expect("ibv_reg_mr");
    let ah = AhAttr { dgid: fixture.gid, is_global: true, hop_limit: 1, port_num: PORT, ..AhAttr::default() };
    let ah = pd.create_ah(&ah).expect("ibv_create_ah");
    let windows = [MwKind::Type1, MwKind::Type2].map(|kind| pd.alloc_mw(kind).expect("ibv_alloc_mw"));
    let cap = QpCap { max_send_wr: 40, max_recv_wr: 40, max_send_sge: 3, max_recv_sge: 3, max_inline_data: 100 };
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcTgt] {
        let target = qp_type == QpType::XrcTgt;
        let options = QpOptions {
            qp_type,
            send_cq: (!target).then_some(&cq),
            recv_cq: (!target).then_some(&cq),
            srq: (qp_type == QpType::Ud).then_some(&srq),
            xrcd: target.then_some(&xrcd),
            cap,
            sq_sig_all: true,
        };
        let qp = pd.create_qp(&options).expect("ibv_create_qp");
        if qp_type != QpType::Rc {
            continue;
        }
        // The queue pair is connected to itself; there is an event for its completions.
        Joined::default().up(&qp, qp_type, qp.number(), fixture.gid);
        cq.arm(false).expect("ibv_req_notify_cq");
        let bind = Bind { mw: &windows[0], rkey: 0, mr: &mr, offset: 0, len: 4096, access: Access::REMOTE_READ };
        qp.bind_mw(1, SendFlags::SIGNALED, &bind).expect("ibv_bind_mw");
        assert_eq!(channel.event().expect("ibv_get_cq_event"), 5);
        assert_eq!(collect(&cq, 1)[0].status(), Status::SUCCESS);
        side::recv(&qp, RECV, &[mr.sge(0, LEN)]); // no message takes it
    }
    drop((windows, ah, again));
}

/// Make a connection with the other process: a message in each direction, a large WRITE and a large READ.
fn together(fixture: &Fixture, wire: &mut Wire, depth: u32) {
    const LARGE: usize = 200_000;
    let side = Side::new(fixture);
    side.exchange(fixture, wire);
    let mr = side::buffer(fixture, 2 * LARGE);
    let (addr, rkey): (u64, u32) = wire.exchange(&(mr.addr(), mr.rkey()));
    for op in [SendOp::Write { addr, rkey }, SendOp::Read { addr, rkey }] {
        let sges = [mr.sge(LARGE, LARGE)];
        side.qp.post_send(&SendWr::new(1, op, Data::Sges(&sges))).expect("ibv_post_send");
        assert_eq!(collect(&side.cq, 1)[0].status(), Status::SUCCESS);
    }
    let () = wire.exchange(&());
    // Some queue pairs are connected and never used, and one has a request that never completes.
    let idle: Vec<Arc<Qp>> = (0..3).map(|_| side::create_qp(fixture, &side.cq, depth)).collect();
    let ours: Vec<Place> = idle.iter().map(|qp| side::place(fixture, qp)).collect();
    let theirs: Vec<Place> = wire.exchange(&ours);
    for (qp, peer) in idle.iter().zip(&theirs) {
        side::up(qp, peer);
    }
    side::send(&idle[0], 1, &[side.mr.sge(0, LEN)]); // no receive is posted for it
    let () = wire.exchange(&());
}

/// The times of rounds after warming up: of the first ones, and the last ones. The others are not kept, for they would
/// be growth themselves.
#[derive(Default)]
struct Took {
    rounds: u64,
    first: Vec<Duration>,
    last: VecDeque<Duration>,
}

impl Took {
    const KEPT: usize = 500;

    fn add(&mut self, round: Duration) {
        self.rounds += 1;
        if self.first.len() < Self::KEPT {
            self.first.push(round);
        }
        if self.last.len() == Self::KEPT {
            self.last.pop_front();
        }
        self.last.push_back(round);
    }

    /// The medians.
    fn ends(&mut self) -> [Duration; 2] {
        [&mut self.first[..], self.last.make_contiguous()].map(|times| {
            times.sort_unstable();
            times.get(times.len() / 2).copied().unwrap_or_default()
        })
    }
}

/// Run both processes' part until the test says that it is enough. The result is the time that it took, and the growth,
/// or why that is too much.
fn churn(wire: &mut Wire, mut go_on: impl FnMut(&mut Wire) -> (bool, bool)) -> (Took, Result<Footprint, String>) {
    let fixture = Fixture::open();
    let (mut rounds, mut warm, mut took) = (0, None, Took::default());
    loop {
        let (on, is_warm) = go_on(wire);
        if is_warm && warm.is_none() {
            warm = Some(Footprint::own());
        }
        if !on {
            break;
        }
        let start = Instant::now();
        alone(&fixture);
        together(&fixture, wire, 1 + rounds % TURN);
        rounds += 1;
        if is_warm {
            took.add(start.elapsed());
        }
    }
    (took, Footprint::settled(&warm.unwrap_or_default(), &SLACK))
}

#[test]
#[ignore = "started by the other tests, as their second process"]
fn remote_side() {
    let Some((_, mut wire)) = Wire::to_test() else { return };
    let (_, grown) = churn(&mut wire, Wire::hear);
    wire.tell(&grown);
    let () = wire.hear();
}

#[test]
fn objects_come_and_go() {
    assert!(library().devices().is_ok());
    let time = Duration::from_secs(setting("SOFTRNIC_CHURN_SECONDS").unwrap_or(SECONDS));
    let start = Instant::now();
    let mut remote = Remote::start("remote_side", "churn", &[]);
    let mut round = 0;
    let (mut took, near) = churn(&mut remote.wire, |wire| {
        let now = (start.elapsed() < time || round < 2 * TURN, start.elapsed() > time.mul_f64(WARM) && round >= TURN);
        round += 1;
        wire.tell(&now);
        now
    });
    let there: Result<Footprint, String> = remote.wire.hear();
    remote.wire.tell(&());
    // The times of the first and the last rounds are printed for the reader: a test does not judge times.
    let [first, last] = took.ends();
    println!(
        "counted: {} rounds after {:?}, until {:?}: 17 objects alone, 14 with a peer in each; medians of the first {} \
         {first:?}, of as many at the end {last:?}",
        took.rounds,
        time.mul_f64(WARM),
        start.elapsed(),
        took.first.len(),
    );
    let said = |grown: &Result<Footprint, String>| grown.as_ref().map_or_else(String::clone, Footprint::to_string);
    println!("counted: grown here by {}; there by {}", said(&near), said(&there));
    near.unwrap_or_else(|error| panic!("here: {error}"));
    there.unwrap_or_else(|error| panic!("there: {error}"));
    assert!(remote.ended_well());
}
