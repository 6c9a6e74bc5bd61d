//! Rules that show when nothing fails: order, fences, the bytes that a post copies, datagrams, atomicity, events.

#[path = "../errors/pair.rs"]
#[allow(dead_code)] // made for other tests too
mod pair;

mod datagrams;
mod events;
mod log;
mod mtu;
mod order;
mod windows;
mod words;

/// The other process of these tests.
#[test]
#[ignore = "started by the other tests, as their second process"]
fn remote_side() {
    let Some((part, wire)) = conformance::Wire::to_test() else { return };
    match part.as_str() {
        "log" => log::remote(wire),
        other => panic!("no such part: {other}"),
    }
}
