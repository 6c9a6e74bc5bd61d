//! The table of activity.

use std::fmt::Display;

use report::text;

use super::rates::{Device, Process, Rates};

/// The number of queue pairs of one process that are shown.
const MOST_QPS: usize = 12;

/// The lines of one table.
pub fn lines(processes: &[Process]) -> Vec<String> {
    let mut out = vec![heading()];
    if processes.is_empty() {
        out.push("no process has the device open".into());
    }
    for process in processes {
        if let Some(why) = &process.silent {
            out.push(format!("{:<10}{:<18}{why}", process.pid, clip(&process.program, 17)));
            continue;
        }
        let name = format!("{:<10}{}", process.pid, clip(&process.program, 17));
        out.push(row(&name, "", "", &process.rates, &stalls(&process.rates)));
        if let Some(device) = &process.device {
            out.push(format!("  {}", about(device)));
        }
        if let Some(reason) = &process.reason {
            out.push(format!("    {}: {reason}", process.verdict));
        }
        for qp in process.qps.iter().take(MOST_QPS) {
            let to = qp
                .peer
                .map(|pid| pid.to_string())
                .or_else(|| qp.to.clone())
                .map_or(String::new(), |to| format!(" > {to}"));
            let name = format!("  QP {:#08x} {} {}{to}", qp.number, qp.qp_type, qp.state);
            let queue = |of: Option<(u32, u32)>| of.map_or("-".into(), |(used, depth)| format!("{used}/{depth}"));
            out.push(row(&name, &queue(qp.sends), &queue(qp.receives), &qp.rates, &stalls(&qp.rates)));
        }
        if process.qps.len() > MOST_QPS {
            out.push(format!("  and {} QPs more", process.qps.len() - MOST_QPS));
        }
        for cq in &process.cqs {
            let (inside, depth) = cq.inside;
            let polled = if cq.polled { ", polled" } else { "" };
            let rate = rate(cq.completions);
            out.push(format!("  CQ {:<8} {inside}/{depth} inside, {rate} completions/s{polled}", cq.handle));
        }
    }
    out
}

/// The line of the device.
fn about(device: &Device) -> String {
    let of = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let mrs = format!("{} ({})", of(device.mrs as usize, "MR"), text::bytes(device.mr_bytes));
    let parts = [
        of(device.contexts as usize, "context"),
        of(device.qps, "QP"),
        of(device.cqs, "CQ"),
        mrs,
        of(device.peers.len(), "peer"),
    ];
    let mover = if device.polled { "the program's polls" } else { "the NIC thread" };
    format!("{}: {}; data moved by {mover}", device.name, parts.join(", "))
}

fn heading() -> String {
    let rates = ["MSG/s OUT", "MSG/s IN", "B/s OUT", "B/s IN"];
    cells("PID       PROGRAM", "SENDS", "RECEIVES", &rates.map(str::to_owned), "STALLS")
}

fn row(name: &str, sends: &str, receives: &str, rates: &Rates, stalls: &str) -> String {
    let all = [rates.messages_out, rates.messages_in, rates.bytes_out, rates.bytes_in].map(rate);
    cells(name, sends, receives, &all, stalls)
}

fn cells(name: &str, sends: &str, receives: &str, rates: &[String; 4], stalls: &str) -> String {
    let [a, b, c, d] = rates;
    let line = format!("{name:<36} {sends:>10} {receives:>10} {a:>10} {b:>10} {c:>10} {d:>10}  {stalls}");
    line.trim_end().to_owned()
}

/// The obstacles that were met.
fn stalls(rates: &Rates) -> String {
    let all = [
        (rates.rnr_naks, "RNR"),
        (rates.retries, "retries"),
        (rates.ring_full, "ring full"),
        (rates.dropped, "dropped"),
        (rates.errors, "errors"),
    ];
    let told = all.iter().filter(|(n, _)| *n > 0.0).map(|(n, what)| format!("{what} {}/s", rate(*n)));
    told.collect::<Vec<_>>().join(", ")
}

/// A number of three digits and a unit: 0, 12.3, 456, 1.23k, 45.6M.
fn rate(n: f64) -> String {
    const UNITS: [&str; 5] = ["", "k", "M", "G", "T"];
    let (mut n, mut unit) = (n, 0);
    while n >= 999.5 && unit + 1 < UNITS.len() {
        n /= 1000.0;
        unit += 1;
    }
    let digits: &dyn Display = match n {
        0.0 => &"0",
        n if n < 9.995 => &format!("{n:.2}"),
        n if n < 99.95 => &format!("{n:.1}"),
        n => &format!("{n:.0}"),
    };
    format!("{digits}{}", UNITS[unit])
}

fn clip(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_three_digits() {
        let all =
            [(0.0, "0"), (0.5, "0.50"), (12.34, "12.3"), (999.4, "999"), (999.6, "1.00k"), (45_600_000.0, "45.6M")];
        for (n, text) in all {
            assert_eq!(rate(n), text);
        }
    }

    #[test]
    fn a_device_is_a_line() {
        let device = Device {
            name: "d".into(),
            contexts: 1,
            mrs: 2,
            mr_bytes: 8192,
            qps: 3,
            cqs: 1,
            peers: vec![7],
            polled: true,
        };
        assert_eq!(
            about(&device),
            "d: 1 context, 3 QPs, 1 CQ, 2 MRs (8.0 KiB), 1 peer; data moved by the program's polls"
        );
    }

    #[test]
    fn nobody_and_the_silent_are_shown() {
        assert!(lines(&[])[1].contains("no process"));
        let silent = Process::silent(std::process::id(), "is stopped".into());
        assert!(lines(&[silent])[1].ends_with("is stopped"));
    }
}
