//! `softrnic top` shows what moves.

use std::sync::atomic::{AtomicBool, Ordering};

use conformance::{collect, softrnic};
use serde_json::Value;

use crate::place::{Wish, pair};

#[test]
fn top_shows_what_moves() {
    let (a, b) = pair(&conformance::Joint::default(), &Wish::default());
    let stop = AtomicBool::new(false);
    let pid = std::process::id().to_string();
    let (status, text) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                b.recv();
                a.send();
                collect(&a.sends, 1);
                collect(&b.receives, 1);
            }
        });
        let shown = softrnic(&["top", "--once", "--json", "--interval", "0.5", &pid]);
        stop.store(true, Ordering::Relaxed);
        shown
    });
    assert_eq!(status, 0, "{text}");
    let look: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let process = &look[0];
    assert_eq!(process["pid"].to_string(), pid);
    let rate = |of: &Value, name: &str| of["rates"][name].as_f64().unwrap_or_else(|| panic!("{name}: {text}"));
    let row = |qpn: u32| {
        let rows = process["qps"].as_array().into_iter().flatten();
        rows.into_iter().find(|row| row["number"] == qpn).unwrap_or_else(|| panic!("QP {qpn}: {text}"))
    };
    let (out, into) = (row(a.qp.number()), row(b.qp.number()));
    // 8 bytes a message, one way.
    let messages = rate(out, "messages_out");
    assert!(messages > 0.0 && rate(out, "messages_in") == 0.0, "{text}");
    // Numbers lose a bit when they are read.
    assert!((rate(out, "bytes_out") / messages - 8.0).abs() < 1e-9, "{text}");
    assert!(rate(into, "messages_in") > 0.0 && rate(into, "messages_out") == 0.0, "{text}");
    assert!(rate(process, "messages_out") >= messages, "{text}");
    assert!(process["cqs"].as_array().into_iter().flatten().any(|cq| cq["polled"] == true), "{text}");
}
