//! `softrnic top` shows what moves.

use std::sync::atomic::{AtomicBool, Ordering};

use conformance::{collect, softrnic};
use serde_json::Value;

use crate::place::{Wish, pair};

#[test]
fn top_shows_what_moves() {
    let (a, b) = pair(&conformance::Joined::default(), &Wish::default());
    let stop = AtomicBool::new(false);
    let pid = std::process::id().to_string();
    let ((status, text), (_, table)) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                b.recv();
                a.send();
                collect(&a.sends, 1);
                collect(&b.receives, 1);
            }
        });
        let shown = softrnic(&["top", "--once", "--json", "--interval", "0.5", &pid]);
        let table = softrnic(&["top", "--once", "--interval", "0.5", &pid]);
        stop.store(true, Ordering::Relaxed);
        (shown, table)
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
    // A message has 8 bytes, one way.
    let messages = rate(out, "messages_out");
    assert!(messages > 0.0 && rate(out, "messages_in") == 0.0, "{text}");
    // Numbers lose a bit when they are parsed.
    assert!((rate(out, "bytes_out") / messages - 8.0).abs() < 1e-9, "{text}");
    assert!(rate(into, "messages_in") > 0.0 && rate(into, "messages_out") == 0.0, "{text}");
    assert!(rate(process, "messages_out") >= messages, "{text}");
    let device = &process["device"];
    // (Other tests of this process have their own contexts beside.)
    assert!(device["name"] == "softrnic0" && device["contexts"].as_u64() >= Some(2), "{text}");
    assert_eq!(device["qps"], process["qps"].as_array().map_or(0, Vec::len), "{text}");
    // The table has these facts, too: the process, its device, and both queue pairs with their rates.
    let line = |with: &str| table.lines().find(|line| line.contains(with)).unwrap_or_else(|| panic!("{with}: {table}"));
    assert!(line(&pid).split_whitespace().nth(2).is_some_and(|rate| rate != "0"), "{table}");
    assert!(line("softrnic0: ").contains(" contexts, ") && line("PID").contains("STALLS"), "{table}");
    for (qp, moves) in [(&a.qp, 6), (&b.qp, 7)] {
        let row = line(&format!("QP {:#08x} RC RTS", qp.number()));
        let cells: Vec<&str> = row.split_whitespace().skip(1).filter(|word| !word.starts_with('>')).collect();
        assert_ne!(cells[moves], "0", "{row}");
    }
    assert!(process["cqs"].as_array().into_iter().flatten().any(|cq| cq["polled"] == true), "{text}");
}
