//! A process that only watches its memory. It is stopped (SIGSTOP), so none of its threads can do anything, and RDMA
//! reads and writes its memory all the same, with any length and service, as on an adapter.

use std::sync::Arc;
use std::time::Duration;

use conformance::{Fixture, Joined, Remote, Wire, collect, is_stopped, until};
use rdma::{Cq, Data, Gid, Mr, Qp, QpCap, QpOptions, QpType, SendOp, SendWr, Status};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

const MIB: usize = 1 << 20;
/// Lengths beyond a piece: one and a bit, and several.
const LONG: [usize; 2] = [MIB + 1, 3 * MIB];
const SHORT: usize = 8;
/// Places in both regions: of the bytes that are read and written, and of a few bytes of each service.
const WRITTEN: usize = 0;
const READ: usize = 3 * MIB;
const SMALL: usize = 6 * MIB;
const REGION: usize = SMALL + 4096;
const SERVICES: [QpType; 3] = [QpType::Rc, QpType::Uc, QpType::XrcIni];

/// The timeout of 67 ms passes eight times: a request that waits for the other process fails.
const JOINED: fn() -> Joined = || Joined { timeout: 14, retries: 7, ..Joined::default() };

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Place {
    /// The queue pair of each service.
    qpns: [u32; 3],
    gid: [u8; 16],
    addr: u64,
    rkey: u32,
}

struct End {
    qps: Vec<Arc<Qp>>,
    cq: Arc<Cq>,
    mr: Arc<Mr>,
}

/// A pattern whose first bytes are not 0.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 4096 + i * 3 + seed + 1) as u8).collect()
}

impl End {
    /// Make queue pairs of all services; of XRC, an initiator or a target.
    fn new(fixture: &Fixture, initiates: bool) -> End {
        let cq = fixture.context.create_cq(64, None, 0).expect("ibv_create_cq");
        let xrcd = fixture.context.open_xrcd().expect("ibv_open_xrcd");
        let create = |service: QpType| {
            let target = service == QpType::XrcIni && !initiates;
            let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
            let options = QpOptions {
                qp_type: if target { QpType::XrcTgt } else { service },
                send_cq: (!target).then_some(&cq),
                recv_cq: (service != QpType::XrcIni).then_some(&cq),
                srq: None,
                xrcd: target.then_some(&xrcd),
                cap,
                sq_sig_all: true,
            };
            fixture.pd.create_qp(&options).expect("ibv_create_qp_ex")
        };
        let qps = SERVICES.map(create).to_vec();
        let mr =
            fixture.pd.reg_mr(REGION, rdma::Access::from_bits_retain(Joined::default().access)).expect("ibv_reg_mr");
        End { qps, cq, mr }
    }

    fn connect(&self, fixture: &Fixture, wire: &mut Wire, initiates: bool) -> Place {
        let qpns = [0, 1, 2].map(|at: usize| self.qps[at].number());
        let place = Place { qpns, gid: fixture.gid.0, addr: self.mr.addr(), rkey: self.mr.rkey() };
        let peer: Place = wire.exchange(&place);
        for ((qp, service), qpn) in self.qps.iter().zip(SERVICES).zip(peer.qpns) {
            let target = service == QpType::XrcIni && !initiates;
            JOINED().up(qp, if target { QpType::XrcTgt } else { service }, qpn, Gid(peer.gid));
        }
        let () = wire.exchange(&());
        peer
    }

    /// Post a request and wait for its end.
    fn done(&self, service: QpType, op: SendOp<'_>, at: usize, len: usize) {
        let sges = [self.mr.sge(at, len)];
        let qp = SERVICES.iter().position(|of| *of == service).expect("one of them");
        self.qps[qp].post_send(&SendWr::new(len as u64, op, Data::Sges(&sges))).expect("ibv_post_send");
        let done = collect(&self.cq, 1);
        assert_eq!((done[0].wr_id(), done[0].status()), (len as u64, Status::SUCCESS), "{service:?}, {len} bytes");
    }

    fn holds(&self, at: usize, what: &[u8]) -> bool {
        let mut bytes = vec![0; what.len()];
        self.mr.read(at, &mut bytes);
        bytes == what
    }
}

/// The bytes that are written at the end, and those that each service writes beside them.
const LAST: usize = 77;

#[test]
#[ignore = "started by the other test, as its second process"]
fn remote_side() {
    let Some((_, mut wire)) = Wire::to_test() else { return };
    let fixture = Fixture::open();
    let end = End::new(&fixture, false);
    end.mr.write(READ, &pattern(LONG[1], 5));
    end.connect(&fixture, &mut wire, false);
    // The process watches its memory and makes no call.
    let () = wire.hear();
    let small = (0..SERVICES.len()).all(|at| end.holds(SMALL + 64 * at, &pattern(SHORT, at)));
    wire.tell(&(end.holds(WRITTEN, &pattern(LONG[1], LAST)), small));
    let () = wire.hear();
}

#[test]
fn who_only_watches_its_memory_is_reached() {
    let fixture = Fixture::open();
    let mut remote = Remote::start("remote_side", "passive", &[("SOFTRNIC_SINGLE_COPY", "1")]);
    let end = End::new(&fixture, true);
    let peer = end.connect(&fixture, &mut remote.wire, true);
    let at = |offset: usize| (peer.addr + offset as u64, peer.rkey);
    let write = |offset| {
        let (addr, rkey) = at(offset);
        SendOp::Write { addr, rkey }
    };
    let read = |offset| {
        let (addr, rkey) = at(offset);
        SendOp::Read { addr, rkey }
    };
    // The first request of a connection needs an answer.
    for service in [QpType::Rc, QpType::XrcIni] {
        end.done(service, write(SMALL + 2048), SMALL + 2048, SHORT);
    }
    // The NIC thread rests again.
    std::thread::sleep(Duration::from_millis(100));
    remote.signal(Signal::STOP);
    until("the other process to be stopped", || is_stopped(remote.pid()).then_some(()));
    for (seed, len) in (1..).zip(LONG) {
        for service in SERVICES {
            let what = pattern(len, seed);
            end.mr.write(WRITTEN, &what);
            end.done(service, write(WRITTEN), WRITTEN, len);
            end.mr.write(WRITTEN, &vec![0; len]);
            // Only the two requests have changed it.
            end.done(QpType::Rc, read(WRITTEN), WRITTEN, len);
            assert!(end.holds(WRITTEN, &what), "{service:?}, WRITE of {len} bytes");
        }
        for service in [QpType::Rc, QpType::XrcIni] {
            end.mr.write(READ, &vec![0; len]);
            end.done(service, read(READ), READ, len);
            assert!(end.holds(READ, &pattern(len, 5)), "{service:?}, READ of {len} bytes");
        }
    }
    for (n, service) in SERVICES.into_iter().enumerate() {
        let place = SMALL + 64 * n;
        end.mr.write(place, &pattern(SHORT, n));
        end.done(service, write(place), place, SHORT);
        end.mr.write(place, &[0; SHORT]);
    }
    end.done(QpType::Rc, read(SMALL), SMALL, REGION - SMALL);
    let came = |n: usize| end.holds(SMALL + 64 * n, &pattern(SHORT, n));
    assert!((0..SERVICES.len()).all(came), "WRITE of {SHORT} bytes");
    end.mr.write(WRITTEN, &pattern(LONG[1], LAST));
    end.done(QpType::Uc, write(WRITTEN), WRITTEN, LONG[1]);
    assert!(is_stopped(remote.pid()));
    remote.signal(Signal::CONT);
    remote.wire.tell(&());
    assert_eq!(remote.wire.hear::<(bool, bool)>(), (true, true), "long ones, and those of {SHORT} bytes");
    remote.wire.tell(&());
    assert!(remote.ended_well());
}
