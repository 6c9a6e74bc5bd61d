//! The steps that are cargo's: build, format, lints, tests, documentation, models, fuzzing.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::report::{Outcome, Suite};
use crate::run::{Finished, Program};
use crate::{Options, logs, root, target_dir};

/// The limit of a build. On two busy cores it takes minutes; ten times that is a hang. In the background it may have to
/// wait for the longest suites.
const BUILD: Duration = Duration::from_secs(1800);

/// The limit of thousands of kills, which take an hour on a busy machine.
const STRESS: Duration = Duration::from_secs(3 * 3600);
/// The arguments that show the output of tests: it is in their logs, and their counts (`counted: `) are printed.
const SHOWN: [&str; 2] = ["--", "--show-output"];

fn cargo(log: &str) -> Program {
    Program::new(env!("CARGO"), logs().join("cargo").join(log)).dir(root())
}

/// Run one cargo command that either succeeds or does not.
fn one(suite: &mut Suite, name: &str, program: Program, limit: Duration) -> Option<Finished> {
    match program.run(limit) {
        Ok(done) => {
            let outcome = if done.ok() { Outcome::Passed } else { Outcome::Failed(first_error(&done)) };
            suite.push(name, outcome, Some(done.log.clone()));
            Some(done)
        }
        Err(e) => {
            suite.fail(name, e.to_string());
            None
        }
    }
}

/// The first line with an error in it, which tells more than the last one.
fn first_error(done: &Finished) -> String {
    let error = done.stderr.lines().chain(done.stdout.lines()).find(|line| line.starts_with("error"));
    match error {
        Some(line) if done.status.is_some() => line.to_owned(),
        _ => done.verdict(),
    }
}

pub fn build(suite: &mut Suite, _: &Options) {
    one(suite, "cargo build --release", cargo("build").args(["build", "--release"]), BUILD);
    for file in ["softrnic", "libsoftrnic.so"] {
        if target_dir().join("release").join(file).exists() {
            suite.pass(format!("target/release/{file}"));
        } else {
            suite.fail(format!("target/release/{file}"), "was not built");
        }
    }
    without_std(suite);
}

/// The crate `iwarp` in a program that has no std.
fn without_std(suite: &mut Suite) {
    let program = cargo("no-std").dir(root().join("interop/no-std")).args(["build", "--locked"]);
    one(suite, "iwarp without std", program.env("CARGO_TARGET_DIR", target_dir().join("no-std")), BUILD);
}

pub fn fmt(suite: &mut Suite, _: &Options) {
    let program = cargo("fmt").args(["fmt", "--all", "--", "--check"]);
    if let Some(done) = one(suite, "cargo fmt --check", program, BUILD) {
        for line in done.stdout.lines().filter(|line| line.starts_with("Diff in")).take(5) {
            println!("  {line}");
        }
    }
}

/// The folder where lints and documentation are built: cargo lets one command at a time into a folder, and tests are
/// built meanwhile.
fn lints() -> PathBuf {
    target_dir().join("lints")
}

pub fn clippy(suite: &mut Suite, _: &Options) {
    let program =
        cargo("clippy").args(["clippy", "--workspace", "--all-targets", "--keep-going", "--", "-D", "warnings"]);
    one(suite, "cargo clippy -D warnings", program.env("CARGO_TARGET_DIR", lints()), BUILD);
}

pub fn doc(suite: &mut Suite, _: &Options) {
    let program =
        cargo("doc").args(["doc", "--workspace", "--no-deps", "--keep-going"]).env("RUSTDOCFLAGS", "-D warnings");
    let Some(done) = one(suite, "cargo doc", program.env("CARGO_TARGET_DIR", lints()), BUILD) else { return };
    // Some warnings are cargo's own, which no option turns into errors.
    match done.stderr.lines().find(|line| line.starts_with("warning")) {
        Some(line) => suite.push("cargo doc warns of nothing", Outcome::Failed(line.to_owned()), Some(done.log)),
        None => suite.pass("cargo doc warns of nothing"),
    }
}

pub fn test(suite: &mut Suite, options: &Options) {
    // `cargo test` alone does not build a library that only C programs load.
    if one(suite, "cargo build", cargo("build-dev").args(["build", "--workspace"]), BUILD).is_none() {
        return;
    }
    let mut words = vec!["test", "--workspace", "--no-fail-fast"];
    words.extend(options.test_filter());
    words.extend(SHOWN);
    let (key, value) = crate::interop::SINGLE_COPY_ALWAYS;
    tests(suite, "test", cargo("test").args(words).env(key, value));
}

/// Run the tests inside the crates: those that start no program and need no package.
pub fn test_units(suite: &mut Suite, options: &Options) {
    let mut words = vec!["test", "--workspace", "--lib", "--bins", "--no-fail-fast"];
    words.extend(options.test_filter());
    words.extend(SHOWN);
    tests(suite, "test-units", cargo("test-units").args(words));
}

/// The one test of a property that only single copies have.
const NEEDS_SINGLE_COPY: &str = "who_only_watches_its_memory_is_reached";

/// The crates whose tests cannot differ when single copies are forbidden, and which are tested once. Only
/// `softrnic-window` uses that setting. It is not among the dependencies of these crates, and their tests start no
/// program of this project and load none of its libraries.
const KNOW_NO_WINDOW: &[&str] = &[
    "softrnic-verbs",
    "softrnic-wire",
    "softrnic-exs",
    "softrnic-trial",
    "softrnic-iwarp",
    "softrnic-ddp",
    "softrnic-sock",
    "softrnic-sock-preload",
    "softrnic-report",
    "softrnic-sys",
    "softrnic-engine",
    "softrnic-memory",
    "softrnic-ask",
    "softrnic-taps",
    "softrnic-view",
    "softrnic-netlink",
    "softrnic-hooks",
    "softrnic-dropin",
    "softrnic-limits",
    "softrnic-exs",
    "xtask",
];

/// Run the tests that can differ, with single copies between processes forbidden: everything goes through the window.
pub fn test_indirect(suite: &mut Suite, options: &Options) {
    // `cargo test` alone does not build the library that they load.
    if one(suite, "cargo build", cargo("build-dev").args(["build", "--workspace"]), BUILD).is_none() {
        return;
    }
    let mut words = vec!["test", "--workspace", "--no-fail-fast"];
    words.extend(KNOW_NO_WINDOW.iter().flat_map(|name| ["--exclude", name]));
    words.extend(options.test_filter());
    words.extend(SHOWN);
    words.extend(["--skip", NEEDS_SINGLE_COPY]);
    suite.skip(NEEDS_SINGLE_COPY, "without single copies a process that stands still is not reached");
    let (key, value) = crate::interop::SINGLE_COPY_FORBIDDEN;
    // Tests that take long do both by themselves, or do not depend on it.
    let shorter = [
        ("SOFTRNIC_KILL_ROUNDS", "30"),
        ("SOFTRNIC_CHURN_SECONDS", "3"),
        ("SOFTRNIC_SWEEP_STEP", "5"),
        ("SOFTRNIC_ADVERSARY_ROUNDS", "10"),
    ];
    let program =
        shorter.into_iter().fold(cargo("test-indirect").args(words), |program, (key, value)| program.env(key, value));
    tests(suite, "test-indirect", program.env(key, value));
}

/// Run the conformance tests about load and about peers that die or stand still, in a short form.
pub fn test_load(suite: &mut Suite, options: &Options, name: &str, (key, value): (&str, &str)) {
    // `cargo test` alone does not build the library that they load.
    if one(suite, "cargo build", cargo("build-dev").args(["build", "--workspace"]), BUILD).is_none() {
        return;
    }
    let mut words = vec!["test", "-p", "softrnic-conformance", "--no-fail-fast"];
    for test in ["load", "churn", "kill", "stopped", "rules"] {
        words.extend(["--test", test]);
    }
    words.extend(options.test_filter());
    words.extend(SHOWN);
    let program = cargo(name).args(words).env(key, value);
    let program = program.env("SOFTRNIC_KILL_ROUNDS", "60").env("SOFTRNIC_CHURN_SECONDS", "5");
    // A filter is about more than these tests.
    if !take_any_tests(suite, name, program, BUILD) && options.filter.is_none() {
        suite.fail(name, "no test was run");
    }
}

/// Run the long form of the tests about peers that are killed, objects that come and go, and load; it is not in `test`.
/// The variables can be set to other numbers.
pub fn stress(suite: &mut Suite, options: &Options) {
    if one(suite, "cargo build", cargo("build-dev").args(["build", "--workspace"]), BUILD).is_none() {
        return;
    }
    let long = [("SOFTRNIC_KILL_ROUNDS", "5000"), ("SOFTRNIC_CHURN_SECONDS", "600"), ("SOFTRNIC_LOAD_FACTOR", "20")];
    for test in ["kill", "churn", "load"] {
        let mut words = vec!["test", "-p", "softrnic-conformance", "--test", test];
        words.extend(options.test_filter());
        words.extend(SHOWN);
        let log = format!("stress-{test}");
        let program = long.into_iter().fold(cargo(&log).args(words), |program, (key, value)| {
            program.env(key, std::env::var(key).unwrap_or_else(|_| value.to_owned()))
        });
        take_tests(suite, &log, program, STRESS);
    }
}

/// Run random programs of socket calls on TCP and with the library of softrnic sock.
pub fn sock_programs(suite: &mut Suite, options: &Options) {
    if one(suite, "cargo build", cargo("build-sock").args(["build", "-p", "softrnic-sock-preload"]), BUILD).is_none() {
        return;
    }
    let (programs, seed) = (options.programs.unwrap_or(20_000), options.seed.unwrap_or(0));
    let mut words = vec!["test", "-p", "softrnic-sock-preload", "--test", "differential"];
    words.extend(SHOWN);
    let program = cargo("sock-programs").args(words);
    let program = program.env("SOFTRNIC_SOCK_PROGRAMS", programs.to_string());
    take_tests(suite, "sock-programs", program.env("SOFTRNIC_SOCK_SEED", seed.to_string()), STRESS);
}

fn tests(suite: &mut Suite, name: &str, program: Program) {
    take_tests(suite, name, program, BUILD);
}

/// Run `cargo test` and take every test as a case. It is a failure if there is none.
pub fn take_tests(suite: &mut Suite, name: &str, program: Program, limit: Duration) {
    if !take_any_tests(suite, name, program, limit) {
        suite.fail(name, "no test was run");
    }
}

/// Run `cargo test` and take every test as a case; false if there was none.
fn take_any_tests(suite: &mut Suite, name: &str, program: Program, limit: Duration) -> bool {
    let cases = suite.cases.len();
    let begun = Instant::now();
    let done = match program.run(limit) {
        Ok(done) => done,
        Err(e) => {
            suite.fail(name, e.to_string());
            return true;
        }
    };
    let (whole, times) = (begun.elapsed(), binary_times(&done.stderr, &done.stdout));
    // Under miri programs have a clock of their own, which does not show real time.
    match whole.checked_sub(times.iter().map(|(_, took)| took).sum()) {
        Some(building) => {
            times.into_iter().for_each(|(binary, took)| suite.part(format!("{name}: {binary}"), took));
            suite.part(format!("{name}: cargo's own time, mostly builds"), building);
        }
        None => suite.part(name, whole),
    }
    let before = suite.count().failed;
    for (test, outcome) in test_lines(&done.stdout) {
        let outcome = match outcome {
            Outcome::Failed(_) => Outcome::Failed(panic_of(&done.stdout, &test)),
            other => other,
        };
        suite.push_timed(test, outcome, Some(done.log.clone()), Duration::ZERO);
    }
    for counted in done.stdout.lines().filter_map(|line| line.strip_prefix("counted: ")) {
        println!("   {counted}");
    }
    if suite.count().failed > before {
        // What programs that tests start have said: a test sees no more of them than that they failed.
        said_by_programs(&done.stderr).for_each(|line| println!("         {line}"));
    } else if !done.ok() {
        suite.push(name, Outcome::Failed(first_error(&done)), Some(done.log));
    }
    suite.cases.len() > cases
}

/// The cases in the output of Rust's test harness: `test NAME ... ok`.
fn test_lines(stdout: &str) -> Vec<(String, Outcome)> {
    let mut cases = Vec::new();
    for line in stdout.lines() {
        let Some((name, result)) = line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... ")) else {
            continue;
        };
        let name = name.trim_end_matches(" - should panic").to_owned();
        let outcome = match result.split_once(", ").map_or((result, None), |(r, why)| (r, Some(why))) {
            ("ok", _) => Outcome::Passed,
            ("ignored", why) => Outcome::Skipped(why.unwrap_or("ignored without a reason").to_owned()),
            _ => Outcome::Failed("the test failed".to_owned()),
        };
        cases.push((name, outcome));
    }
    cases
}

/// Where and why a test panicked: the line behind `thread 'NAME' (1) panicked at FILE:1:2:` has the message.
fn panic_of(stdout: &str, test: &str) -> String {
    let heading = format!("\n---- {test} stdout ----\n");
    let mut said = stdout.split(&heading).skip(1).filter_map(|block| {
        let (_, panicked) = block.split("\n---- ").next()?.split_once("panicked at ")?;
        let lines = panicked.lines().take_while(|line| !line.is_empty() && !line.starts_with("stack backtrace"));
        Some(lines.take(6).collect::<Vec<_>>().join(" "))
    });
    said.next().unwrap_or_else(|| "the test failed".to_owned())
}

/// The last lines on stderr that are not cargo's.
fn said_by_programs(stderr: &str) -> impl Iterator<Item = &str> {
    // `   Compiling softrnic v0.1.0`: cargo's word ends at column 12, or begins the line.
    let is_cargos = |line: &str| {
        let word = line.trim_start();
        line.len() - word.len() + word.find(' ').unwrap_or(0) == 12
            || ["warning:", "error:", "note:"].iter().any(|start| word.starts_with(start))
    };
    let lines: Vec<&str> = stderr.lines().filter(|line| !line.trim().is_empty() && !is_cargos(line)).collect();
    let first = lines.len().saturating_sub(12);
    lines.into_iter().skip(first)
}

/// How long each program of tests ran. Its name is in cargo's messages (stderr), its time in its own (stdout), in the
/// same order. Rust's test harness does not print the time of a single test.
fn binary_times(stderr: &str, stdout: &str) -> Vec<(String, Duration)> {
    let names = stderr.lines().filter_map(|line| {
        if let Some(documented) = line.trim().strip_prefix("Doc-tests ") {
            return Some(format!("examples of {documented}"));
        }
        // Running tests/load/main.rs (target/debug/deps/load-0123456789abcdef)
        let path = line.trim().strip_prefix("Running ")?.rsplit_once('(')?.1.strip_suffix(')')?;
        let file = path.rsplit('/').next()?;
        Some(file.rsplit_once('-').map_or(file, |(name, _)| name).to_owned())
    });
    let times = stdout.lines().filter_map(|line| {
        let seconds = line.strip_prefix("test result: ")?.rsplit_once("finished in ")?.1.strip_suffix('s')?;
        Some(Duration::from_secs_f64(seconds.parse().ok()?))
    });
    names.zip(times).collect()
}

/// The names in the output of `cargo test -- --list`: `NAME: test`.
pub fn listed_tests(stdout: &str) -> Vec<String> {
    stdout.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// The release profile without options that take long to build and change no result: optimization over the bounds of
/// crates.
fn quick_profile(program: Program) -> Program {
    program.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
}

/// Run the models of the lock-free code: every crate that has a `cfg(loom)` in it. They are built separately, because
/// the flag changes every crate.
pub fn loom(suite: &mut Suite, _: &Options) {
    let crates = crates_with("cfg(loom)");
    if crates.is_empty() {
        return suite.fail("loom", "no crate has a model: `cfg(loom)` occurs nowhere");
    }
    for name in crates {
        let log = format!("loom-{name}");
        let program = cargo(&log)
            .args(["test", "--release", "--lib", "--tests", "--no-fail-fast", "-p", &name, "loom"])
            .env("RUSTFLAGS", "--cfg loom")
            .env("CARGO_TARGET_DIR", target_dir().join("loom"));
        let program = quick_profile(program);
        tests(suite, &log, program);
    }
}

/// The number of inputs of each fuzz target: about as many as it takes in fifteen seconds on a core of its own. It is a
/// number and no time, because the suite runs in the time that others leave.
const FUZZ_RUNS: &[(&str, u32)] = &[
    ("ring_consumer", 50_000),
    ("rendezvous", 3_000_000),
    ("packets", 60_000),
    ("cm_messages", 3_000_000),
    ("export_table", 2_500_000),
    ("wire", 1_000_000),
    ("iwarp", 300_000),
    ("exs", 300_000),
    ("entries", 20_000),
];

/// Run every fuzz target in `fuzz/` for a short time. libFuzzer needs the coverage instrumentation, which the pinned
/// compiler has; no nightly and no cargo-fuzz is needed for that. `--locked`: a test must not change a file that git
/// knows.
pub fn fuzz(suite: &mut Suite, options: &Options) {
    let folder = root().join("fuzz");
    let targets = fuzz_targets(&folder);
    if targets.is_empty() {
        return suite.fail("fuzz", "no fuzz target found in fuzz/");
    }
    let built = target_dir().join("fuzz");
    const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
        -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks";
    let program = cargo("fuzz-build")
        .dir(&folder)
        .args(["build", "--release", "--locked", "--target", HOST])
        .env("RUSTFLAGS", COVERAGE)
        .env("CARGO_TARGET_DIR", &built);
    match one(suite, "build the fuzz targets", program, BUILD) {
        Some(done) if done.ok() => {}
        _ => return,
    }
    for target in targets {
        let Some((_, runs)) = FUZZ_RUNS.iter().find(|(name, _)| *name == target) else {
            suite.fail(target, "FUZZ_RUNS in xtask/src/rust.rs does not say how many inputs it gets");
            continue;
        };
        let runs = if options.quick { runs / 3 } else { *runs };
        let corpus = built.join("corpus").join(&target);
        let crashes = logs().join("cargo").join(format!("crash-{target}-"));
        if let Err(e) = fs::create_dir_all(&corpus) {
            suite.fail(target, e.to_string());
            continue;
        }
        // An input takes far less than a millisecond. The limit is in seconds of the wall clock, of which other suites
        // may take most.
        let program = Program::new(built.join(HOST).join("release").join(&target), logs().join("cargo").join(&target))
            .args([format!("-runs={runs}"), "-timeout=60".into(), "-rss_limit_mb=2048".into()])
            .args([format!("-artifact_prefix={}", crashes.display())])
            .args([corpus]);
        one(suite, &target, program, BUILD);
    }
}

const HOST: &str = "x86_64-unknown-linux-gnu";

/// The names of the binaries that `fuzz/Cargo.toml` declares, in its order.
fn fuzz_targets(folder: &Path) -> Vec<String> {
    let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml")) else {
        return Vec::new();
    };
    let mut in_bin = false;
    let mut targets = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            in_bin = line == "[[bin]]";
        } else if let Some(value) = line.strip_prefix("name").and_then(|rest| rest.trim().strip_prefix('='))
            && in_bin
        {
            targets.push(value.trim().trim_matches('"').to_owned());
        }
    }
    targets
}

/// The packages under `crates/` whose sources contain `needle`.
fn crates_with(needle: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(root().join("crates")) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| contains(&entry.path(), needle))
        .filter_map(|entry| package_name(&entry.path().join("Cargo.toml")))
        .collect();
    names.sort();
    names
}

fn package_name(manifest: &PathBuf) -> Option<String> {
    let text = fs::read_to_string(manifest).ok()?;
    let line = text.lines().find(|line| line.starts_with("name"))?;
    Some(line.split('"').nth(1)?.to_owned())
}

fn contains(path: &Path, needle: &str) -> bool {
    if path.is_dir() {
        let Ok(entries) = fs::read_dir(path) else {
            return false;
        };
        return entries.flatten().any(|entry| contains(&entry.path(), needle));
    }
    path.extension().is_some_and(|e| e == "rs") && fs::read_to_string(path).is_ok_and(|text| text.contains(needle))
}

#[cfg(test)]
mod tests_of_parsing {
    use super::*;

    #[test]
    fn harness_lines() {
        let out = "running 4 tests\ntest a::b ... ok\ntest c ... FAILED\ntest d ... ignored, needs root\n\
            test e - should panic ... ok\ntest result: FAILED. 2 passed; 1 failed\n";
        let cases = test_lines(out);
        assert_eq!(cases.len(), 4);
        assert_eq!(cases[0], ("a::b".into(), Outcome::Passed));
        assert_eq!(cases[1].1, Outcome::Failed("the test failed".into()));
        assert_eq!(cases[2].1, Outcome::Skipped("needs root".into()));
        assert_eq!(cases[3].0, "e");
    }

    #[test]
    fn reasons_of_failures() {
        let out = "\nsuccesses:\n\n---- other stdout ----\npanicked at nothing\n\n\
            failures:\n\n---- a::b stdout ----\n\n\
            thread 'a::b' (12) panicked at tests/calls.rs:61:9:\nexclusive, client true: exit status: 1\n\
            stack backtrace:\n   0: rust_begin_unwind\n\n\nfailures:\n    a::b\n";
        assert_eq!(panic_of(out, "a::b"), "tests/calls.rs:61:9: exclusive, client true: exit status: 1");
        assert_eq!(panic_of(out, "b"), "the test failed");
        let err = "   Compiling softrnic v0.1.0 (/x)\n     Running tests/calls.rs (target/debug/deps/calls-0a)\n\
            pair.h:137: moves (errno 88)\n\nerror: test failed, to rerun pass `-p x`\n   Doc-tests softrnic_x\n";
        assert_eq!(said_by_programs(err).collect::<Vec<_>>(), ["pair.h:137: moves (errno 88)"]);
    }

    #[test]
    fn times_of_programs() {
        let cargo = "   Compiling softrnic-x v0.1.0 (/x)\n\
            \x20    Running unittests src/lib.rs (target/debug/deps/softrnic_x-0a1b)\n\
            \x20    Running tests/load/main.rs (target/debug/deps/load-0123)\n   Doc-tests softrnic_x\n";
        let tests = "\nrunning 0 tests\n\ntest result: ok. 0 passed; 0 failed; finished in 0.00s\n\n\
            test result: FAILED. 3 passed; 1 failed; finished in 12.50s\n\n\
            test result: ok. 1 passed; finished in 1.25s\n";
        let times = binary_times(cargo, tests);
        let times: Vec<(&str, f64)> = times.iter().map(|(name, took)| (name.as_str(), took.as_secs_f64())).collect();
        assert_eq!(times, [("softrnic_x", 0.0), ("load", 12.5), ("examples of softrnic_x", 1.25)]);
    }

    #[test]
    fn every_fuzz_target_has_its_number_of_inputs() {
        let mut targets = fuzz_targets(&root().join("fuzz"));
        let mut numbered: Vec<&str> = FUZZ_RUNS.iter().map(|(name, _)| *name).collect();
        targets.sort();
        numbered.sort();
        assert_eq!(targets, numbered);
    }

    #[test]
    fn who_is_tested_once_knows_no_window() {
        for name in KNOW_NO_WINDOW {
            assert!(!crate::arrows::reaches(name, "softrnic-window"), "{name}");
            let folder = root().join("crates").join(name.trim_start_matches("softrnic-"));
            let (setting, _) = crate::interop::SINGLE_COPY_FORBIDDEN;
            // The crate that reads the environment into `Settings` knows the variable; the field is used elsewhere.
            let knows = *name != "softrnic-report" && contains(&folder, setting);
            let uses = contains(&folder, "settings.single_copy") || contains(&folder, "of_process().single_copy");
            assert!(*name == "xtask" || folder.is_dir() && !knows && !uses, "{name}");
        }
    }

    #[test]
    fn lists() {
        assert_eq!(listed_tests("a::b: test\nc: benchmark\nd: test\n\n2 tests, 1 benchmark\n"), ["a::b", "d"]);
    }
}
