//! A thousand connections of two processes; two hundred processes in a ring.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use conformance::{Bed, Far, Wire, collect};
use rdma::Status;

use conformance::side::{self, LEN, Place, RECV, Side};

const QPS: usize = 1000;
const PROCESSES: usize = 200;
/// Acceptance 9 of the device.
const SETUP: Duration = Duration::from_secs(2);

/// Sets the queue pairs up together with the other process, then waits for one message on each.
fn thousand(wire: &mut Wire, sends: bool) -> Duration {
    let bed = Bed::open();
    let cq = bed.context.create_cq(2 * QPS as u32, None, 0).expect("ibv_create_cq");
    let mr = side::buffer(&bed, LEN);
    // The program that answers has loaded its library; from here on it counts.
    let () = wire.exchange(&());
    let start = Instant::now();
    let qps: Vec<_> = (0..QPS).map(|_| side::create_qp(&bed, &cq, 4)).collect();
    let ours: Vec<Place> = qps.iter().map(|qp| side::place(&bed, qp)).collect();
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

pub fn thousand_far(mut wire: Wire) {
    thousand(&mut wire, false);
}

#[test]
fn a_thousand_connections_are_made_quickly() {
    let mut far = Far::start("far_side", "thousand", &[]);
    let took = thousand(&mut far.wire, true);
    println!("{QPS} connections in {took:?}");
    assert!(took < SETUP, "{QPS} connections took {took:?}");
    assert!(far.ended_well());
}

/// One process of the ring: it connects to the one before and the one behind.
pub fn ring_far(mut wire: Wire) {
    let bed = Bed::open();
    let (left, right) = (Side::new(&bed), Side::new(&bed));
    wire.tell(&(side::place(&bed, &left.qp), side::place(&bed, &right.qp)));
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
    // Nobody leaves while another still needs an acknowledgement.
    let () = wire.exchange(&());
}

#[test]
fn two_hundred_processes_in_a_ring() {
    let mut fars: Vec<Far> = (0..PROCESSES).map(|_| Far::start("far_side", "ring", &[])).collect();
    let places: Vec<(Place, Place)> = fars.iter_mut().map(|far| far.wire.hear()).collect();
    for (at, far) in fars.iter_mut().enumerate() {
        let before = places[(at + PROCESSES - 1) % PROCESSES].1;
        let behind = places[(at + 1) % PROCESSES].0;
        far.wire.tell(&(before, behind));
    }
    for _ in 0..2 {
        for far in &mut fars {
            let () = far.wire.hear();
        }
        for far in &mut fars {
            far.wire.tell(&());
        }
    }
    let failed = fars.iter_mut().filter_map(|far| (!far.ended_well()).then(|| far.pid())).count();
    assert_eq!(failed, 0, "of {PROCESSES} processes");
}
