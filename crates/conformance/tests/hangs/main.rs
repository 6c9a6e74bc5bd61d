//! Programs that hang, each in its way, and the sentence of `softrnic doctor` about each; rude connections; and the
//! output of `softrnic top` about a program that works.

mod cases;
mod hostile;
mod place;
mod signal;
mod top;

use conformance::Wire;

/// The other processes of these tests.
#[test]
#[ignore = "started by the other tests, as their second process"]
fn remote_side() {
    let Some((part, wire)) = Wire::to_test() else { return };
    match part.as_str() {
        "peer" => place::peer(wire),
        "silent" => place::silent(wire),
        "waiter" => cases::waiter(wire),
        "destroyer" => cases::destroyer(wire),
        "signalled" => signal::remote(wire),
        other => panic!("no such part: {other}"),
    }
}
