//! `softrnic bench` itself: whether it measures everything that it is asked for, and the files that it writes. The
//! figures are not judged.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::sandbox::Sandbox;
use super::{Mode, record};
use crate::Options;
use crate::report::Suite;

/// The longest time of a run; most take some seconds.
const PATIENCE: Duration = Duration::from_secs(180);

/// A check of the files that a run has written into the folder.
type Check = fn(&Path) -> Result<(), String>;

pub fn bench(suite: &mut Suite, options: &Options) {
    let Some(sandbox) = Mode::Every.sandbox(suite) else {
        return;
    };
    let runs: [(&str, &str, Check); 3] = [
        ("softrnic bench --json --plot", "--sizes 8,64K,1M --pairs 3 --json HOME/all.json --plot HOME/plots", all),
        (
            "softrnic bench --transports UD --waiting polling",
            "--sizes 1,4K,8K --transports UD --waiting polling --json HOME/ud.json",
            ud,
        ),
        ("softrnic bench --page", "--sizes 8 --rounds 1 --page HOME/page.md --json HOME/page.json", page),
    ];
    for (name, line, check) in runs {
        if options.wants(name) {
            run(suite, &sandbox, name, line, check);
        }
    }
}

fn run(suite: &mut Suite, sandbox: &Sandbox, name: &str, line: &str, check: Check) {
    let home = sandbox.home();
    let line = line.replace("HOME", &home.display().to_string());
    let mut args = vec!["bench", "--time", "2"];
    for option in ["--rounds 2", "--qps 1,20"] {
        if !line.contains(option.split(' ').next().unwrap_or_default()) {
            args.extend(option.split(' '));
        }
    }
    args.extend(line.split(' '));
    let log = name.replace([' ', '-', ','], "");
    let done = sandbox.softrnic(&log, &args).run(PATIENCE);
    record(suite, name, done, |_| match check(&home) {
        Ok(()) => (true, String::new()),
        Err(why) => (false, why),
    });
}

fn json(path: &Path) -> Result<Value, String> {
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}

fn rows<'a>(results: &'a Value, name: &str) -> Result<&'a Vec<Value>, String> {
    let rows = results[name].as_array().ok_or_else(|| format!("{name} is no list"))?;
    if rows.is_empty() { Err(format!("{name} is empty")) } else { Ok(rows) }
}

/// Check that every figure is one, and stands beside a limit.
fn figures(results: &Value) -> Result<(), String> {
    for (name, place) in [("latency", "/microseconds/median"), ("bandwidth", "/gigabytes_per_second/median")] {
        for row in rows(results, name)? {
            for place in [place, "/limit/value", "/limit/ratio"] {
                if row.pointer(place).and_then(Value::as_f64).is_none_or(|figure| figure <= 0.0) {
                    return Err(format!("{name}: no {place} in {row}"));
                }
            }
        }
    }
    Ok(())
}

fn count(results: &Value, name: &str, which: impl Fn(&Value) -> bool) -> usize {
    results[name].as_array().into_iter().flatten().filter(|row| which(row)).count()
}

fn expect(what: &str, found: usize, wanted: usize) -> Result<(), String> {
    if found == wanted { Ok(()) } else { Err(format!("{what}: {found}, not {wanted}")) }
}

fn svg(path: &Path) -> Result<(), String> {
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let whole = text.trim_start().starts_with("<svg") && text.trim_end().ends_with("</svg>");
    if whole { Ok(()) } else { Err(format!("{} is no SVG", path.display())) }
}

fn all(home: &Path) -> Result<(), String> {
    let results = json(&home.join("all.json"))?;
    figures(&results)?;
    for name in ["limits", "queue_pairs", "process_pairs", "summary"] {
        rows(&results, name)?;
    }
    let (polling, events) = (|row: &Value| row["waiting"] == "polling", |row: &Value| row["waiting"] == "events");
    // The cases are three sizes of SEND, WRITE, READ over RC, two atomics, SEND and WRITE over UC, one datagram; those
    // by events are without WRITE.
    expect("latencies", count(&results, "latency", polling), 3 * 3 + 2 + 2 * 3 + 1)?;
    expect("latencies by events", count(&results, "latency", events), 2 * 3 + 2 + 3 + 1)?;
    // The bandwidths have no atomics, and three that walk.
    expect("bandwidths", count(&results, "bandwidth", polling), 3 * 3 + 2 * 3 + 1 + 3)?;
    expect("bandwidths by events", count(&results, "bandwidth", events), 3 * 3 + 2 * 3 + 1)?;
    expect("walking", count(&results, "bandwidth", |row| row["walking"] == true), 3)?;
    let beside = |row: &Value| row["pairs"] == 3 && row["limit"]["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0);
    expect("pairs of processes", count(&results, "process_pairs", beside), 4)?;
    expect("idle connections", count(&results, "queue_pairs", |row| row["idle"] == 19), 1)?;
    ["latency.svg", "bandwidth.svg", "rate.svg"].iter().try_for_each(|file| svg(&home.join("plots").join(file)))
}

fn ud(home: &Path) -> Result<(), String> {
    let results = json(&home.join("ud.json"))?;
    figures(&results)?;
    // 8 KiB are more than a datagram can have.
    expect("latencies", count(&results, "latency", |row| row["transport"] == "UD"), 2)?;
    expect("others", count(&results, "latency", |row| row["transport"] != "UD"), 0)
}

fn page(home: &Path) -> Result<(), String> {
    let results = json(&home.join("page.json"))?;
    figures(&results)?;
    let missing = &results["missing"];
    if missing.as_array().is_none_or(|missing| !missing.is_empty()) {
        return Err(format!("not measured: {missing}"));
    }
    for by in ["softrnic", "perftest", "UCX (shared memory)", "libfabric (shared memory)", "qperf (TCP)"] {
        if count(&results, "latency", |row| row["by"] == by) == 0 {
            return Err(format!("no latency by {by}"));
        }
    }
    ["latency.svg", "bandwidth.svg", "rate.svg", "latency-others.svg", "bandwidth-others.svg"]
        .iter()
        .try_for_each(|file| svg(&home.join(file)))?;
    let text = fs::read_to_string(home.join("page.md")).map_err(|e| e.to_string())?;
    let wanted =
        ["# Performance", "bandwidth-others.svg", "How near to its limits the device comes", "perftest: RC SEND"];
    match wanted.iter().find(|wanted| !text.contains(*wanted)) {
        Some(wanted) => Err(format!("the page has no `{wanted}`")),
        None => Ok(()),
    }
}
