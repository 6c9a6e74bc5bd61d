//! Development commands: `cargo xtask help`.

mod arrows;
mod busy;
mod ctests;
mod interop;
#[cfg(test)]
mod links;
mod miri;
mod rdmacore;
mod report;
mod run;
mod rust;
mod setup;
mod taps_cost;
mod words;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use report::{Report, Suite};

const HELP: &str = "cargo xtask setup                 install the Debian packages and the miri that the tests need
cargo xtask test [OPTIONS]        install what is missing, then run every suite
cargo xtask SUITE... [OPTIONS]    run these suites only; `cargo xtask list` names them
cargo xtask quick                 format, arrows, clippy, unit tests, selftest and a pingpong: no root, no packages, \
minutes
cargo xtask list                  the suites, in the order in which they run
cargo xtask stress                the long form of two tests: 5,000 peers killed, objects that come and go for ten \
minutes
cargo xtask taps-cost             no test: what captures and faults cost who does not use them; minutes, on a quiet \
machine

Options:
  --quick         fewer cases and shorter runs: a few minutes
  --filter TEXT   only cases whose name contains TEXT
  --no-setup      do not install anything; what is missing fails
  --minutes N     the whole of `test` may take that long; at the end, what has not run has failed. 75 if not given
  --busy          two runnable threads per core in the background; programs may take longer
  --bless         write docs/conformance.md (docs/faults.md) instead of comparing it

Logs of every program are kept in target/interop/logs. The last line is `N passed, N failed, N skipped`.";

/// One suite: its name, what it is, whether `--quick` leaves it out, and what runs it.
struct Step {
    name: &'static str,
    about: &'static str,
    slow: bool,
    run: fn(&mut Suite, &Options),
}

/// What `test` runs, in this order: cheap checks first, one program at a time, never two benchmarks at once.
#[rustfmt::skip]
const STEPS: &[Step] = &[
    Step { name: "build",      slow: false, run: rust::build,         about: "cargo build --release: the program and, \
        beside it, the library" },
    Step { name: "fmt",        slow: false, run: rust::fmt,           about: "cargo fmt --check" },
    Step { name: "arrows",     slow: false, run: arrows_step,         about: "the declared dependencies between the \
        crates" },
    Step { name: "clippy",     slow: false, run: rust::clippy,        about: "cargo clippy -D warnings" },
    Step { name: "unit",       slow: false, run: rust::test,          about: "cargo test --workspace" },
    Step { name: "doc",        slow: false, run: rust::doc,           about: "cargo doc without warnings" },
    Step { name: "c",          slow: false, run: ctests::plain,       about: "the C tests against libibverbs-dev's \
        headers" },
    Step { name: "sanitizers", slow: true,  run: ctests::sanitized,   about: "the C tests with AddressSanitizer and \
        UndefinedBehaviorSanitizer" },
    Step { name: "sanitized",  slow: false, run: interop::sanitized,  about: "programs with a sanitizer's shared \
        runtime, under softrnic run" },
    Step { name: "devices",    slow: false, run: interop::devices,    about: "ibv_devices, ibv_devinfo -v, rdma, \
        softrnic devinfo" },
    Step { name: "loading",    slow: false, run: interop::loading,    about: "every way in which programs find the \
        library" },
    Step { name: "selftest",   slow: false, run: interop::selftest,   about: "softrnic selftest" },
    Step { name: "bench",      slow: false, run: interop::bench,      about: "softrnic bench: what it measures and \
        writes, not how fast" },
    Step { name: "pingpong",   slow: false, run: interop::pingpong,   about: "libibverbs' pingpong programs" },
    Step { name: "perftest",   slow: false, run: interop::perftest,   about: "the perftest matrix" },
    Step { name: "pyverbs",    slow: false, run: interop::pyverbs,    about: "rdma-core's own suite; holds \
        docs/conformance.md" },
    Step { name: "rdmacore",   slow: true,  run: interop::rdmacore,   about: "the Python tests of a newer rdma-core \
        than the distribution's" },
    Step { name: "rdmacm",     slow: false, run: interop::rdmacm,     about: "librdmacm: every function in a table, \
        cycles and kills, its programs" },
    Step { name: "programs",   slow: false, run: interop::programs,   about: "perftest -R, qperf, fio, libfabric, \
        UCX, Open MPI" },
    Step { name: "ucx",        slow: false, run: interop::ucx,        about: "ucx_perftest: every test of UCP over RC \
        and UD, polling and asleep" },
    Step { name: "infiniband", slow: false, run: interop::infiniband, about: "programs that know LIDs only, on a port \
        of InfiniBand" },
    Step { name: "migrated",    slow: false, run: interop::migrated,    about: "selftest, pingpong, perftest, \
        rdma-core's own suite, load and killed peers with registered memory that peers map" },
    Step { name: "pcap",       slow: false, run: interop::pcap,       about: "captures of pingpong and perftest, as \
        tshark and the specification have it" },
    Step { name: "faults",     slow: false, run: interop::faults,     about: "faults on purpose, and what programs \
        see of them; holds docs/faults.md" },
    Step { name: "surroundings", slow: false, run: interop::surroundings, about: "programs in other namespaces, \
        without process_vm_readv, and visited by another user" },
    Step { name: "busy",       slow: true,  run: busy::busy,          about: "a sample of pingpong, perftest and \
        rdmacm, and load, with two runnable threads per core beside" },
    Step { name: "indirect",   slow: true,  run: indirect,            about: "unit, selftest, pingpong, perftest, \
        pyverbs with single copies between processes forbidden" },
    Step { name: "loom",       slow: true,  run: rust::loom,          about: "models of the rings, doorbells, export \
        tables, copies and the lock" },
    Step { name: "fuzz",       slow: true,  run: rust::fuzz,          about: "a short run of every fuzz target" },
    Step { name: "miri",       slow: true,  run: miri::run,           about: "miri on the crates that it can run" },
];

/// Not one of them: it takes as long as all of them.
const STRESS: Step =
    Step { name: "stress", slow: true, run: rust::stress, about: "peers killed and objects made, for a long time" };

/// What `quick` runs after a change, before all the rest: it needs neither root nor the distribution's packages.
#[rustfmt::skip]
const QUICK: &[Step] = &[
    Step { name: "build",      slow: false, run: rust::build,         about: "cargo build --release" },
    Step { name: "fmt",        slow: false, run: rust::fmt,           about: "cargo fmt --check" },
    Step { name: "arrows",     slow: false, run: arrows_step,         about: "the declared dependencies between the \
        crates" },
    Step { name: "clippy",     slow: false, run: rust::clippy,        about: "cargo clippy -D warnings" },
    Step { name: "unit",       slow: false, run: rust::test_units,    about: "cargo test --workspace --lib --bins" },
    Step { name: "selftest",   slow: false, run: interop::selftest,   about: "softrnic selftest" },
    Step { name: "pingpong",   slow: false, run: interop::one_pingpong, about: "ibv_rc_pingpong, if it is installed" },
];

/// What the command line said.
#[derive(Debug, Default)]
pub struct Options {
    quick: bool,
    filter: Option<String>,
    no_setup: bool,
    bless: bool,
    busy: bool,
    minutes: Option<u64>,
}

/// How long all suites together may take if `--minutes` does not say it. They are held to an hour on two cores; CI ends
/// a run after an hour and a half without a report.
const MINUTES: u64 = 75;

impl Options {
    /// True if a case of this name is wanted.
    fn wants(&self, case: &str) -> bool {
        self.filter.as_ref().is_none_or(|text| case.contains(text.as_str()))
    }

    /// How many times longer than on a quiet machine a program may take. Pairs that poll for each other's messages wait
    /// for a time slice of the scheduler's at each.
    fn patience(&self) -> u32 {
        if self.busy { 4 } else { 1 }
    }

    /// The filter as arguments for `cargo test`.
    fn test_filter(&self) -> impl Iterator<Item = &str> {
        self.filter.as_deref().into_iter()
    }
}

fn main() -> ExitCode {
    let mut options = Options::default();
    let mut words = Vec::new();
    let mut args = env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => options.quick = true,
            "--no-setup" => options.no_setup = true,
            "--bless" => options.bless = true,
            "--busy" => options.busy = true,
            "--filter" => options.filter = args.next(),
            "--minutes" => match args.next().and_then(|n| n.parse().ok()) {
                Some(minutes) => options.minutes = Some(minutes),
                None => return usage("--minutes wants a number"),
            },
            "-h" | "--help" => words.push("help".to_owned()),
            option if option.starts_with('-') => return usage(&format!("unknown option {option}")),
            _ => words.push(arg),
        }
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] | ["help"] => {
            println!("{HELP}");
            ExitCode::SUCCESS
        }
        ["list"] => {
            for step in STEPS {
                println!("{:13} {}{}", step.name, step.about, if step.slow { " (not with --quick)" } else { "" });
            }
            ExitCode::SUCCESS
        }
        ["setup"] => match setup::setup() {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("{e}");
                ExitCode::FAILURE
            }
        },
        ["quick"] => test_with(Report::default(), QUICK.iter(), &options),
        ["stress"] => test([STRESS].iter(), &options),
        ["taps-cost"] => match taps_cost::measure() {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("{e}");
                ExitCode::FAILURE
            }
        },
        ["test"] => {
            let minutes = options.minutes.unwrap_or(MINUTES * u64::from(options.patience()));
            run::end_at(Instant::now() + Duration::from_secs(minutes * 60));
            test(STEPS.iter().filter(|step| !(options.quick && step.slow)), &options)
        }
        names => match names.iter().find(|name| STEPS.iter().all(|step| step.name != **name)) {
            Some(name) => usage(&format!("no suite {name}")),
            None => test(STEPS.iter().filter(|step| names.contains(&step.name)), &options),
        },
    }
}

fn usage(problem: &str) -> ExitCode {
    eprintln!("{problem}\n\n{HELP}");
    ExitCode::FAILURE
}

/// Runs the steps and prints the report. A missing tool is a failure: a suite that did not run has not passed.
fn test<'a>(steps: impl Iterator<Item = &'a Step>, options: &Options) -> ExitCode {
    let mut report = Report::default();
    let started = Instant::now();
    let mut setup = Suite::new("setup");
    match if options.no_setup { setup::check() } else { setup::setup() } {
        Ok(()) => setup.pass("packages and tools"),
        Err(e) => setup.fail("packages and tools", e),
    }
    setup.took = started.elapsed();
    report.suites.push(setup);
    test_with(report, steps, options)
}

/// Runs the steps, and prints a report of them behind what this one has already.
fn test_with<'a>(mut report: Report, steps: impl Iterator<Item = &'a Step>, options: &Options) -> ExitCode {
    let _busy = options.busy.then(busy::Busy::start);
    for step in steps {
        println!("== {}: {}", step.name, step.about);
        let mut suite = Suite::new(step.name);
        let started = Instant::now();
        if run::is_over() {
            suite.fail(step.name, run::OVER);
        } else {
            (step.run)(&mut suite, options);
        }
        suite.took = started.elapsed();
        let n = suite.count();
        println!(
            "   {} passed, {} failed, {} skipped in {:.1} s",
            n.passed,
            n.failed,
            n.skipped,
            suite.took.as_secs_f64()
        );
        report.suites.push(suite);
    }
    report.print();
    let total = report.total();
    if total.failed == 0 && total.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn arrows_step(suite: &mut Suite, _: &Options) {
    match arrows::check() {
        Ok(()) => suite.pass("arrows between the crates"),
        Err(e) => suite.fail("arrows between the crates", e),
    }
}

/// The suites again, each case's name marked, with the window as the only way.
fn indirect(suite: &mut Suite, options: &Options) {
    rust::test_indirect(suite, options);
    interop::indirect(suite, options);
}

/// The workspace's folder.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// Where cargo builds.
pub fn target_dir() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Where the output of every program goes.
pub fn logs() -> PathBuf {
    target_dir().join("interop/logs")
}
