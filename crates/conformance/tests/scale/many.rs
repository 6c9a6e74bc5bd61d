//! A thousand connections of two processes; two hundred processes in a ring.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use conformance::{Fixture, Remote, Wire, collect};
use rdma::Status;

use conformance::side::{self, LEN, Place, RECV, Side};

const QPS: usize = 1000;
const PROCESSES: usize = 200;
/// The time limit for the set-up.
const SETUP: Duration = Duration::from_secs(2);

/// Set the queue pairs up together with the other process, then wait for one message on each.
fn thousand(wire: &mut Wire, sends: bool) -> Duration {
    let fixture = Fixture::open();
    let cq = fixture.context.create_cq(2 * QPS as u32, None, 0).expect("ibv_create_cq");
    let mr = side::buffer(&fixture, LEN);
    // The other process has loaded its library when it answers; the time counts from here.
    let () = wire.exchange(&());
    let start = Instant::now();
    let qps: Vec<_> = (0..QPS).map(|_| side::create_qp(&fixture, &cq, 4)).collect();
    let ours: Vec<Place> = qps.iter().map(|qp| side::place(&fixture, qp)).collect();
    let theirs: Vec<Place> = wire.exchange(&ours);
    for (qp, peer) in qps.iter().zip(&theirs) {
        side::up(qp, peer);
    }
    let () = wire.exchange(&());
    let took = start.elapsed();
    if !sends {
        for qp in &qps {
            side::recv(qp, RECV, &[mr.sge(0, LEN)]);
        }
    }
    let () = wire.exchange(&());
    if sends {
        for qp in &qps {
            side::send(qp, 1, &[mr.sge(0, LEN)]);
        }
    }
    let all = collect(&cq, QPS);
    assert!(all.iter().all(|wc| wc.status() == Status::SUCCESS), "a message failed");
    let numbers: HashSet<u32> = all.iter().map(|wc| wc.qp_num()).collect();
    assert_eq!(numbers.len(), QPS, "one message on each");
    let () = wire.exchange(&());
    took
}

pub fn thousand_remote(mut wire: Wire) {
    thousand(&mut wire, false);
}

#[test]
fn a_thousand_connections_are_made_quickly() {
    let mut remote = Remote::start("remote_side", "thousand", &[]);
    let took = thousand(&mut remote.wire, true);
    println!("{QPS} connections in {took:?}");
    assert!(took < SETUP, "{QPS} connections took {took:?}");
    assert!(remote.ended_well());
}

/// One process of the ring, which connects to the one before and the one behind.
pub fn ring_remote(mut wire: Wire) {
    let fixture = Fixture::open();
    let (left, right) = (Side::new(&fixture), Side::new(&fixture));
    wire.tell(&(side::place(&fixture, &left.qp), side::place(&fixture, &right.qp)));
    let (before, behind): (Place, Place) = wire.hear();
    for (side, peer) in [(&left, &before), (&right, &behind)] {
        side::up(&side.qp, peer);
        side::recv(&side.qp, RECV, &[side.mr.sge(LEN, LEN)]);
    }
    // All have posted their receives.
    let () = wire.exchange(&());
    right.send_name();
    left.send_name();
    right.get_name(behind.qpn);
    left.get_name(before.qpn);
    // No process leaves while another still needs an acknowledgement.
    let () = wire.exchange(&());
}

#[test]
fn two_hundred_processes_in_a_ring() {
    let mut remotes: Vec<Remote> = (0..PROCESSES).map(|_| Remote::start("remote_side", "ring", &[])).collect();
    let places: Vec<(Place, Place)> = remotes.iter_mut().map(|remote| remote.wire.hear()).collect();
    for (at, remote) in remotes.iter_mut().enumerate() {
        let before = places[(at + PROCESSES - 1) % PROCESSES].1;
        let behind = places[(at + 1) % PROCESSES].0;
        remote.wire.tell(&(before, behind));
    }
    for _ in 0..2 {
        for remote in &mut remotes {
            let () = remote.wire.hear();
        }
        for remote in &mut remotes {
            remote.wire.tell(&());
        }
    }
    let failed = remotes.iter_mut().filter_map(|remote| (!remote.ended_well()).then(|| remote.pid())).count();
    assert_eq!(failed, 0, "of {PROCESSES} processes");
}
