//! Many queue pairs, processes and threads; an idle one that costs nothing; events; forked children.

mod events;
mod fork;
mod idle;
mod many;
mod threads;

use conformance::Wire;

/// The other processes of these tests.
#[test]
#[ignore = "started by the other tests, as their second process"]
fn far_side() {
    let Some((part, wire)) = Wire::to_test() else { return };
    match part.as_str() {
        "idle" => idle::far(wire),
        "thousand" => many::thousand_far(wire),
        "ring" => many::ring_far(wire),
        "fork" => fork::parent(wire),
        "mourner" => fork::mourner(),
        "exchange" => conformance::side::exchange_far(wire),
        other => panic!("no such part: {other}"),
    }
}
