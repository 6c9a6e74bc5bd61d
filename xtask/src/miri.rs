//! Miri: an interpreter that finds undefined behaviour and data races. It runs code that makes no system call, and it
//! is some hundred times slower than the processor. So it runs tests about memory and threads. Tests with much data
//! have smaller sizes under `cfg!(miri)`, or are left out with the reason.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::report::Suite;
use crate::run::Program;
use crate::rust::{listed_tests, take_tests};
use crate::{Options, logs, root, target_dir};

/// A crate, and which of its unit tests miri runs.
struct Package {
    name: &'static str,
    only: Which,
    /// Further flags.
    flags: &'static str,
}

enum Which {
    /// All tests; those that cannot be run are marked in the crate itself.
    All,
    /// These tests. A crate that forbids unsafe code and has no threads is tested for the sake of the libraries that it
    /// uses.
    Sample(&'static [&'static str]),
}

const PACKAGES: &[Package] = &[
    Package { name: "softrnic-verbs", only: Which::All, flags: "" },
    Package { name: "softrnic-memory", only: Which::All, flags: "" },
    Package { name: "softrnic-window", only: Which::All, flags: "" },
    Package {
        name: "softrnic-engine",
        only: Which::Sample(&[
            "tests::errors::completion_queue_overrun",
            "tests::errors::late_target_leaves_dead_requests_alone",
            "tests::recovery::lost_response_of_one_read",
        ]),
        // The tickets of queue pairs stay in memory for as long as the process lives: peers read them.
        flags: "-Zmiri-ignore-leaks",
    },
];

/// The limit of a crate, which takes four minutes on a core of its own. Beside other suites it has to wait for time.
const LIMIT: Duration = Duration::from_secs(1800);

/// The toolchain that miri comes with, of one day. Miri grows stricter, and its findings in a library that this project
/// uses (1.101 in parking_lot_core 0.9.12: the types of the arguments of `syscall`) must not depend on when a machine
/// was set up.
pub const TOOLCHAIN: &str = "nightly-2026-05-20";

/// The names in rustup of the components that miri needs.
pub const COMPONENTS: &str = "miri,rust-src";

/// True if miri can be run through rustup: inside of cargo, `cargo` is the pinned one, which knows no `+nightly`.
pub fn is_there() -> bool {
    let version = Command::new("rustup")
        .args(["run", TOOLCHAIN, "cargo", "miri", "--version"])
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|out| out.status.success());
    let library = Command::new("rustup")
        .args(["run", TOOLCHAIN, "rustc", "--print", "sysroot"])
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|out| {
            let sysroot = String::from_utf8_lossy(&out.stdout);
            Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library").is_dir()
        });
    version && library
}

pub fn run(suite: &mut Suite, options: &Options) {
    if !is_there() {
        let how = format!("rustup toolchain install {TOOLCHAIN} --profile minimal --component {COMPONENTS}");
        return suite.fail("miri", format!("it is not installed: {how}"));
    }
    for package in PACKAGES {
        let log = format!("miri-{}", package.name);
        let mut filter: Vec<&str> = options.test_filter().collect();
        if let Which::Sample(names) = package.only {
            leave_out(suite, package.name, names);
            filter = [&["--exact"], names].concat();
        }
        let program = program(&log, package.flags).args(["--lib", "-p", package.name, "--"]).args(filter);
        take_tests(suite, &log, program, LIMIT);
    }
}

fn program(log: &str, flags: &str) -> Program {
    Program::new("rustup", logs().join("cargo").join(log))
        .dir(root())
        .args(["run", TOOLCHAIN, "cargo", "miri", "test"])
        // Addresses travel through windows and work requests as numbers.
        .env("MIRIFLAGS", format!("-Zmiri-permissive-provenance {flags}"))
        .env("CARGO_TARGET_DIR", target_dir().join("miri"))
}

/// Report the tests that the sample leaves out.
fn leave_out(suite: &mut Suite, package: &str, sample: &[&str]) {
    let log = format!("miri-{package}-list");
    let listed = program(&log, "").args(["--lib", "-p", package, "--", "--list"]).run(LIMIT);
    let names = listed.map(|done| listed_tests(&done.stdout)).unwrap_or_default();
    for name in sample.iter().filter(|name| !names.iter().any(|listed| listed == *name)) {
        suite.fail(format!("{package}: {name}"), "there is no such test");
    }
    for name in names.iter().filter(|name| !sample.contains(&name.as_str())) {
        suite.skip(format!("{package}: {name}"), "too long for miri, and the crate forbids unsafe code");
    }
}
