//! The cost of captures and faults for programs that do not use them. SEND of 8 bytes is measured with this build's
//! library, and with one from which the tests for taps have been left out (`--cfg without_taps`), in turns. Measured
//! are the instructions of a message, which valgrind counts, and the time, which the compiler's layout of two libraries
//! changes by more than such a test takes.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::run::Program;
use crate::{logs, root, target_dir};

/// Runs of each.
const TURNS: usize = 40;
/// The number of runs under valgrind of each, of so many messages, of which the least are taken: work that depends on
/// time, the checks of the NIC thread above all, only ever adds.
const COUNTS: usize = 7;
const MESSAGES: [u64; 2] = [10_000, 110_000];
/// The limit of a build with optimisation across all crates, which takes a minute or two.
const BUILD: Duration = Duration::from_secs(1200);
/// The limit of a run, which takes three seconds.
const RUN: Duration = Duration::from_secs(120);

/// Measure, and print the ratio of every turn's medians.
///
/// # Errors
/// The thing that could not be built, run or read.
pub fn measure() -> Result<(), String> {
    let usual = target_dir().join("release");
    let without = target_dir().join("without-taps");
    build("build", &target_dir(), "")?;
    build("build-without-taps", &without, "--cfg without_taps")?;
    let libraries = [usual.join("libsoftrnic.so"), without.join("release/libsoftrnic.so")];
    let [asks, not] = instructions(&libraries)?;
    println!("instructions of a SEND of 8 B, from post to both completions, within one process:");
    println!("as it is {asks:.0}, without the question {not:.0}; ratio {:.4}", asks / not);
    let mut ratios = Vec::with_capacity(TURNS);
    let mut best = [f64::INFINITY; 2];
    println!("SEND of 8 B, one way, us: as it is, without the question, ratio");
    for turn in 0..TURNS {
        // The order changes, so that a machine that grows slower or faster favours neither.
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
    // Other work on the machine only ever adds.
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

/// Instructions of one message, those of the test program included, with each library.
fn instructions(libraries: &[PathBuf; 2]) -> Result<[f64; 2], String> {
    let source = root().join("interop/taps-cost/one_process.c");
    let program = target_dir().join("taps-cost-one-process");
    let done = Program::new("gcc", logs().join("taps-cost/gcc"))
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([program.as_os_str(), source.as_os_str(), OsStr::new("-libverbs")])
        .run(BUILD)
        .map_err(|e| format!("gcc: {e}"))?;
    if !done.ok() {
        return Err(format!("{}: {}", source.display(), done.verdict()));
    }
    let mut least = [[u64::MAX; 2]; 2];
    for _ in 0..COUNTS {
        for (least, library) in least.iter_mut().zip(libraries) {
            for (least, messages) in least.iter_mut().zip(MESSAGES) {
                *least = count(&program, library, messages)?.min(*least);
            }
        }
    }
    Ok(least.map(|[few, many]| many.saturating_sub(few) as f64 / (MESSAGES[1] - MESSAGES[0]) as f64))
}

/// Instructions of the program's thread.
fn count(program: &Path, library: &Path, messages: u64) -> Result<u64, String> {
    let counts = target_dir().join("taps-cost.callgrind");
    let done = Program::new("valgrind", logs().join("taps-cost/valgrind"))
        .args(["--tool=callgrind", "--separate-threads=yes"])
        .args([format!("--callgrind-out-file={}", counts.display())])
        .args([program.as_os_str(), OsStr::new(&messages.to_string())])
        .env("LD_PRELOAD", library)
        .run(RUN)
        .map_err(|e| format!("valgrind: {e}"))?;
    if !done.ok() {
        return Err(format!("valgrind: {}", done.verdict()));
    }
    // The counts of the first thread are in a file of their own.
    let file = counts.with_extension("callgrind-01");
    let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    text.lines()
        .find_map(|line| line.strip_prefix("summary: ")?.trim().parse().ok())
        .ok_or_else(|| format!("{}: no summary", file.display()))
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
