//! What captures and faults cost whoever does not use them: SEND of 8 bytes with this build's library, and with one from
//! which the questions after them have been left out (`--cfg without_taps`), in turns.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::run::Program;
use crate::{logs, root, target_dir};

/// Runs of each.
const TURNS: usize = 40;
/// A build with optimisation across all crates takes a minute or two.
const BUILD: Duration = Duration::from_secs(1200);
/// A run takes three seconds.
const RUN: Duration = Duration::from_secs(120);

/// Measures, and prints the ratio of every turn's medians.
///
/// # Errors
/// What could not be built, run or read.
pub fn measure() -> Result<(), String> {
    let usual = target_dir().join("release");
    let without = target_dir().join("without-taps");
    build("build", &target_dir(), "")?;
    build("build-without-taps", &without, "--cfg without_taps")?;
    let libraries = [usual.join("libsoftrnic.so"), without.join("release/libsoftrnic.so")];
    let mut ratios = Vec::with_capacity(TURNS);
    let mut best = [f64::INFINITY; 2];
    println!("SEND of 8 B, one way, us: as it is, without the question, ratio");
    for turn in 0..TURNS {
        // Who comes first changes, so that a machine that grows slower or faster favours neither.
        let [first, second] = if turn % 2 == 0 { [0, 1] } else { [1, 0] };
        let mut took = [0.0; 2];
        for which in [first, second] {
            took[which] = one_way(&usual.join("softrnic"), &libraries[which])?;
        }
        let ratio = took[0] / took[1];
        best = [best[0].min(took[0]), best[1].min(took[1])];
        println!("{turn:3}: {:.3} {:.3} {ratio:.3}", took[0], took[1]);
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    let at = |part: usize| ratios[(TURNS - 1) * part / 4];
    println!("ratio: median {:.4}, quartiles {:.4} and {:.4}; should be <= 1.01", at(2), at(1), at(3));
    // What else runs on the machine only ever adds.
    println!("ratio of the fastest runs: {:.4} ({:.3} and {:.3} us)", best[0] / best[1], best[0], best[1]);
    Ok(())
}

fn build(log: &str, target: &Path, flags: &str) -> Result<(), String> {
    let done = Program::new(env!("CARGO"), logs().join("taps-cost").join(log))
        .dir(root())
        .args(["build", "--release", "--target-dir"])
        .args([target])
        .env("RUSTFLAGS", flags)
        .run(BUILD)
        .map_err(|e| e.to_string())?;
    if done.ok() { Ok(()) } else { Err(format!("cargo build: {}", done.verdict())) }
}

/// The median of one run, in microseconds.
fn one_way(bench: &Path, library: &Path) -> Result<f64, String> {
    let json: PathBuf = target_dir().join("taps-cost.json");
    let done = Program::new(bench, logs().join("taps-cost/bench"))
        .args(["bench", "--only", "SEND", "--transports", "RC", "--waiting", "polling", "--sizes", "8", "--qps", "1"])
        .args(["--rounds", "5"])
        .args([OsStr::new("--json"), json.as_os_str(), OsStr::new("--lib"), library.as_os_str()])
        .run(RUN)
        .map_err(|e| e.to_string())?;
    if !done.ok() {
        return Err(format!("softrnic bench: {}", done.verdict()));
    }
    let text = fs::read_to_string(&json).map_err(|e| format!("{}: {e}", json.display()))?;
    let results: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    results["latency"][0]["microseconds"]["median"].as_f64().ok_or_else(|| "no latency in the results".to_owned())
}
