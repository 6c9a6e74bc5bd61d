//! Development commands: `cargo xtask help`.

mod arrows;
mod busy;
mod chart;
mod circles;
mod citations;
mod ctests;
mod environment;
mod figures;
mod interop;
#[cfg(test)]
mod links;
mod miri;
mod rdmacore;
mod report;
mod run;
mod rust;
mod setup;
mod steps;
mod taps_cost;
mod words;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use report::{Report, Suite};
use steps::{QUICK, SOCK_PROGRAMS, STEPS, STRESS, Step};

const HELP: &str = "cargo xtask setup                 install the Debian packages and the miri that the tests need
cargo xtask test [OPTIONS]        install what is missing, then run every suite
cargo xtask SUITE... [OPTIONS]    run these suites only; `cargo xtask list` names them
cargo xtask quick                 format, arrows, clippy, unit tests, selftest and a pingpong: no root, no packages, \
minutes
cargo xtask list                  the suites, in the order in which they run
cargo xtask stress                the long form of two tests: 5,000 peers killed, objects that come and go for ten \
minutes
cargo xtask sock-programs         random programs of socket calls on TCP and with softrnic sock: --programs N \
--seed S
cargo xtask taps-cost             no test: what captures and faults cost who does not use them; minutes, on a quiet \
machine
cargo xtask sock-speed            no test: softrnic sock beside plain TCP, in turns; ten minutes, or two with --quick
cargo xtask iwarp-speed           no test: softiw0 beside plain TCP, in turns; minutes, on a quiet machine; one turn \
with --quick

Options:
  --quick         fewer cases and shorter runs: a few minutes
  --filter TEXT   only cases whose name contains TEXT
  --no-setup      do not install anything; what is missing fails
  --programs N    of sock-programs: how many; 20,000 if not given
  --seed S        of sock-programs: the first one's seed
  --minutes N     the whole of `test` may take that long; at the end, what has not run has failed. 75 if not given
  --busy          two runnable threads per core in the background; programs may take longer
  --page FILE     of sock-speed and iwarp-speed: write the page of figures
  --bless         write docs/conformance.md (docs/faults.md) instead of comparing it

Logs of every program are kept in target/interop/logs. The last line is `N passed, N failed, N skipped`.";

/// The options of the command line.
#[derive(Debug, Default)]
pub struct Options {
    quick: bool,
    filter: Option<String>,
    no_setup: bool,
    bless: bool,
    busy: bool,
    minutes: Option<u64>,
    programs: Option<u64>,
    seed: Option<u64>,
    page: Option<String>,
}

/// How long all suites together may take, in minutes, without `--minutes`. They should take half an hour on two cores;
/// CI ends a run after an hour and a half without a report.
const MINUTES: u64 = 75;

impl Options {
    /// True if a case of this name is wanted.
    fn wants(&self, case: &str) -> bool {
        self.filter.as_ref().is_none_or(|text| case.contains(text.as_str()))
    }

    /// The factor by which a program may take longer than on a quiet machine. Pairs that poll for each other's messages
    /// wait for a time slice of the scheduler at each.
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
            "--page" => options.page = args.next(),
            "--filter" => options.filter = args.next(),
            "--programs" | "--seed" => match (arg.as_str(), args.next().and_then(|n| n.parse().ok())) {
                ("--seed", Some(seed)) => options.seed = Some(seed),
                (_, Some(programs)) => options.programs = Some(programs),
                _ => return usage(&format!("{arg} wants a number")),
            },
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
        ["quick"] => steps::run_all(Report::default(), QUICK.iter(), &options),
        ["stress"] => test([STRESS].iter(), &options),
        ["sock-programs"] => test([SOCK_PROGRAMS].iter(), &options),
        ["taps-cost"] => match taps_cost::measure() {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("{e}");
                ExitCode::FAILURE
            }
        },
        ["iwarp-speed"] => match interop::iwarp_speed::measure(options.quick, options.page.as_deref()) {
            Ok(met) => ExitCode::from(u8::from(!met)),
            Err(e) => {
                eprintln!("{e}");
                ExitCode::FAILURE
            }
        },
        ["sock-speed"] => match interop::sock_speed::measure(options.quick, options.minutes, options.page.as_deref()) {
            Ok(met) => ExitCode::from(u8::from(!met)),
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

/// Run the steps and print the report. A missing tool is a failure: a suite that did not run has not passed.
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
    steps::run_all(report, steps, options)
}

/// The folder of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// The folder where cargo builds.
pub fn target_dir() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// The folder for the output of every program.
pub fn logs() -> PathBuf {
    target_dir().join("interop/logs")
}
