//! The costs of a connected pair of processes.

use conformance::side::Side;
use conformance::{Fixture, Footprint, Remote, Wire};
use rdma::Status;

const MIB: u64 = 1 << 20;
/// The most that two processes may need to be connected: a window with every page of its rings used, and export tables.
const PAIR: u64 = 2 * MIB;
/// Messages that go through the window, so that all of its pages have been used.
const MESSAGES: usize = 200;
const LARGE: usize = 16 << 10;

/// Use one connection in both directions; the result is its growth.
fn play(wire: &mut Wire) -> Footprint {
    let fixture = Fixture::open();
    // A queue pair that is connected to itself first: the costs of the first queue pair are not the connection's.
    let (a, b) = (Side::new(&fixture), Side::new(&fixture));
    conformance::side::up(&a.qp, &conformance::side::place(&fixture, &b.qp));
    conformance::side::up(&b.qp, &conformance::side::place(&fixture, &a.qp));
    let own = Side::new(&fixture);
    let mr = conformance::side::buffer(&fixture, 2 * LARGE);
    mr.write(0, &vec![1; 2 * LARGE]);
    let () = wire.exchange(&());
    let before = Footprint::own();
    let () = wire.exchange(&());
    own.exchange(&fixture, wire);
    for _ in 0..MESSAGES {
        conformance::side::recv(&own.qp, 2, &[mr.sge(LARGE, LARGE)]);
        let () = wire.exchange(&());
        conformance::side::send(&own.qp, 1, &[mr.sge(0, LARGE)]);
        let all = conformance::collect(&own.cq, 2);
        assert!(all.iter().all(|wc| wc.status() == Status::SUCCESS), "{all:?}");
    }
    let () = wire.exchange(&());
    let grown = Footprint::own().since(&before);
    let () = wire.exchange(&());
    grown
}

pub fn remote(mut wire: Wire) {
    let grown = play(&mut wire);
    wire.tell(&grown);
}

#[test]
fn a_connected_pair_of_processes_is_small() {
    let _alone = crate::alone();
    let mut remote = Remote::start("remote_side", "pair", &[]);
    let near = play(&mut remote.wire);
    let there: Footprint = remote.wire.hear();
    let bytes = near.bytes + there.bytes;
    println!("counted: a connected pair of processes needs {} KiB: here {near}; there {there}", bytes / 1024);
    assert!(bytes < PAIR, "{bytes} bytes");
    // The socket, a doorbell for each direction, the peer's life; twice, if both began to connect at the same time; and
    // once the export table.
    assert!(near.descriptors <= 9 && there.descriptors <= 9, "here {near}; there {there}");
    assert!(remote.ended_well());
}
