//! What a connected pair of processes costs.

use conformance::side::Side;
use conformance::{Bed, Far, Footprint, Wire};
use rdma::Status;

const MIB: u64 = 1 << 20;
/// The most that two processes may need to be connected: a window with every page of its rings used, and export tables.
const PAIR: u64 = 2 * MIB;
/// Messages that go through the window, so that all of its pages have been used.
const MESSAGES: usize = 200;
const LARGE: usize = 16 << 10;

/// One connection, used in both directions; gives the growth for it.
fn play(wire: &mut Wire) -> Footprint {
    let bed = Bed::open();
    // What the first queue pair brings along is not the connection's: one to itself.
    let (a, b) = (Side::new(&bed), Side::new(&bed));
    conformance::side::up(&a.qp, &conformance::side::place(&bed, &b.qp));
    conformance::side::up(&b.qp, &conformance::side::place(&bed, &a.qp));
    let own = Side::new(&bed);
    let mr = conformance::side::buffer(&bed, 2 * LARGE);
    mr.write(0, &vec![1; 2 * LARGE]);
    let () = wire.exchange(&());
    let before = Footprint::own();
    let () = wire.exchange(&());
    own.exchange(&bed, wire);
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

pub fn far(mut wire: Wire) {
    let grown = play(&mut wire);
    wire.tell(&grown);
}

#[test]
fn a_connected_pair_of_processes_is_small() {
    let _alone = crate::alone();
    let mut far = Far::start("far_side", "pair", &[]);
    let near = play(&mut far.wire);
    let there: Footprint = far.wire.hear();
    let bytes = near.bytes + there.bytes;
    println!("counted: a connected pair of processes needs {} KiB: here {near}; there {there}", bytes / 1024);
    assert!(bytes < PAIR, "{bytes} bytes");
    // The socket, a doorbell for each direction, the peer's life; twice, if both began to connect at the same time; and
    // once the export table.
    assert!(near.descriptors <= 9 && there.descriptors <= 9, "here {near}; there {there}");
    assert!(far.ended_well());
}
