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
fn remote_side() {
    let Some((part, wire)) = Wire::to_test() else { return };
    match part.as_str() {
        "idle" => idle::remote(wire),
        "thousand" => many::thousand_remote(wire),
        "ring" => many::ring_remote(wire),
        "fork" => fork::parent(wire),
        "mourner" => fork::mourner(),
        "exchange" => conformance::side::exchange_remote(wire),
        other => panic!("no such part: {other}"),
    }
}
