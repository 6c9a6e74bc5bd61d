//! rdma-core's own Python suite, from the distribution's package, and the table of its results.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::rdmacore::PYTHON;
use crate::report::{Outcome, Suite};
use crate::run::{Finished, Program};
use crate::setup::python_tests;
use crate::{Options, root, target_dir};

use super::conformance::{self, Row};
use super::sandbox::{Sandbox, allow, copy};
use super::{DEVICE, GID, Mode};

/// The modules that concern a channel adapter. The others are about vendors' extensions and hardware flow steering.
pub const MODULES: &[&str] = &[
    "test_addr",
    "test_atomic",
    "test_cq",
    "test_cq_events",
    "test_cqex",
    "test_device",
    "test_fork",
    "test_mr",
    "test_odp",
    "test_parent_domain",
    "test_pd",
    "test_qp",
    "test_qpex",
    "test_rdmacm",
    "test_relaxed_ordering",
    "test_shared_pd",
    "test_srq",
];

/// The tests of this project, for a module that the installed version does not have yet.
const OURS: &[&str] = &["test_srq.py"];

/// The device of iWARP.
const IWARP: &str = "softiw0";

/// The limit of a module, which takes seconds. A test that waits for a completion gives up by itself after ten.
const LIMIT: Duration = Duration::from_secs(120);

/// How often a module is continued behind a test that hung or killed the process.
const RESTARTS: usize = 5;

pub fn run(suite: &mut Suite, sandbox: &Sandbox, options: &Options, mode: Mode) {
    let folder = match lay_out(sandbox) {
        Ok(folder) => folder,
        Err(e) => return suite.fail("the suite's files", e),
    };
    let runner = Runner { sandbox, folder, suite: "pyverbs", variables: Vec::new(), iwarp: None };
    let _pages = HugePages::reserve();
    let mut rows = Vec::new();
    for module in MODULES {
        let names = match runner.list(module) {
            Ok(names) => names,
            Err(e) => {
                suite.fail(mode.name(module), e);
                continue;
            }
        };
        let names: Vec<String> = names.into_iter().filter(|name| options.wants(name)).collect();
        for Ran { row, log, took } in runner.run(module, &names) {
            suite.push_timed(mode.name(&row.name()), row.outcome.clone(), Some(log), took);
            rows.push(row);
        }
    }
    // The table is about the device, not about one way of moving bytes, and a part of it is no table.
    if mode == Mode::Every && options.filter.is_none() {
        publish(suite, options, &rows);
    }
}

/// Write the table beside the logs, and compare the committed one with it.
fn publish(suite: &mut Suite, options: &Options, rows: &[Row]) {
    let version = package_version("python3-pyverbs");
    let made = conformance::page(&version, rows);
    let committed = root().join("docs/conformance.md");
    let built = target_dir().join("interop/conformance.md");
    if let Err(e) = fs::write(&built, &made) {
        return suite.fail("the table", format!("{}: {e}", built.display()));
    }
    let before = fs::read_to_string(&committed).unwrap_or_default();
    let made = conformance::keep_programs(&before, &made);
    if options.bless {
        match fs::write(&committed, &made) {
            Ok(()) => suite.pass("docs/conformance.md is written"),
            Err(e) => suite.fail("docs/conformance.md", e.to_string()),
        }
    } else if let Some(difference) = conformance::difference(&before, &made) {
        let how = "run `cargo xtask pyverbs --bless` and look at what changed";
        suite.fail("docs/conformance.md says what was found", format!("{difference}; {how}"));
    } else {
        suite.pass("docs/conformance.md says what was found");
    }
}

/// Unpack the tests, with this project's beside them, where the ordinary user can read them.
pub fn lay_out(sandbox: &Sandbox) -> Result<PathBuf, String> {
    let source = python_tests(&target_dir().join("interop"))?;
    let folder = sandbox.dir().join("suite");
    let tests = folder.join("tests");
    fs::create_dir_all(&tests).map_err(|e| format!("{}: {e}", tests.display()))?;
    let script = "cp \"$1\"/*.py* \"$2\" && { ls \"$2\"/*.gz >/dev/null 2>&1 || exit 0; gunzip -f \"$2\"/*.gz; }";
    let copied = Command::new("sh").args(["-c", script, "sh"]).arg(&source).arg(&tests).output();
    match copied {
        Ok(out) if out.status.success() => {}
        Ok(out) => {
            return Err(format!("copying the tests: {}", String::from_utf8_lossy(&out.stderr)));
        }
        Err(e) => return Err(format!("copying the tests: {e}")),
    }
    let ours = root().join("interop/pyverbs");
    copy(&ours.join("run.py"), &folder.join("run.py"))?;
    for name in OURS.iter().filter(|name| !tests.join(name).exists()) {
        copy(&ours.join(name), &tests.join(name))?;
    }
    for folder in [&folder, &tests] {
        allow(folder)?;
    }
    let entries = fs::read_dir(&tests).map_err(|e| e.to_string())?;
    entries.flatten().try_for_each(|entry| allow(&entry.path()))?;
    Ok(folder)
}

pub struct Runner<'a> {
    pub sandbox: &'a Sandbox,
    /// The folder of `run.py` and `tests`.
    pub folder: PathBuf,
    /// The first word of the logs' names.
    pub suite: &'a str,
    /// Environment variables by which Python finds pyverbs, if it is not the distribution's.
    pub variables: Vec<(&'a str, PathBuf)>,
    /// The words that run a command on another host, where the device is softiw0. `None`: softrnic0, here.
    pub iwarp: Option<Vec<String>>,
}

impl Runner<'_> {
    fn program(&self, log: &str, events: &Path, names: &[String]) -> Program {
        let paths = [&self.folder.join("run.py"), &events.to_path_buf(), &self.folder].map(|p| p.display().to_string());
        let mut args = paths.to_vec();
        let device = if self.iwarp.is_some() { IWARP } else { DEVICE };
        args.extend([device.to_owned(), GID.to_owned()]);
        args.extend_from_slice(names);
        let program = match &self.iwarp {
            Some(words) => {
                let line = format!("{PYTHON} {}", args.join(" "));
                self.sandbox.elsewhere(words, log, &["--device", "iwarp"], &line)
            }
            None => self.sandbox.program(log, PYTHON, &args),
        };
        self.variables.iter().fold(program, |program, (name, value)| program.env(name, value))
    }

    /// List the names of a module's tests, without running any.
    pub fn list(&self, module: &str) -> Result<Vec<String>, String> {
        let events = self.sandbox.home().join(format!("{module}.list"));
        let names = ["--list".to_owned(), module.to_owned()];
        let done = self.program(&format!("{}-{module}-list", self.suite), &events, &names).run(LIMIT);
        let done = done.map_err(|e| e.to_string())?;
        let names: Vec<String> = read(&events).into_iter().map(|event| event.test).collect();
        if names.is_empty() { Err(format!("no tests found: {}", done.verdict())) } else { Ok(names) }
    }

    /// Run the tests in one process, as their own runner does. Behind a test that ends or blocks the process, the rest
    /// is run in a new one.
    pub fn run(&self, module: &str, names: &[String]) -> Vec<Ran> {
        let mut rows = Vec::new();
        let mut left: Vec<String> = names.to_vec();
        for attempt in 0..=RESTARTS {
            if left.is_empty() {
                break;
            }
            let events = self.sandbox.home().join(format!("{module}.{attempt}"));
            let log = format!("{}-{module}-{attempt}", self.suite);
            let done = match self.program(&log, &events, &left).run(LIMIT) {
                Ok(done) => done,
                Err(e) => {
                    rows.push(Ran::untimed(Row::new(module, Outcome::Failed(e.to_string())), log));
                    return rows;
                }
            };
            let found = outcomes(&read(&events), &done);
            let known: BTreeSet<&str> = found.iter().map(|(row, _)| row.test.as_str()).collect();
            left.retain(|name| !known.contains(name.as_str()));
            let stuck = found.is_empty();
            rows.extend(found.into_iter().map(|(row, took)| Ran { row, log: done.log.clone(), took }));
            if stuck {
                rows.push(Ran::untimed(Row::new(module, Outcome::Failed(done.verdict())), done.log));
                return rows;
            }
        }
        let why = "not run: the process had to be started too often".to_owned();
        rows.extend(left.iter().map(|name| Ran::untimed(Row::new(name, Outcome::Failed(why.clone())), module)));
        rows
    }
}

/// A test that was run.
pub struct Ran {
    pub row: Row,
    pub log: PathBuf,
    pub took: Duration,
}

impl Ran {
    fn untimed(row: Row, log: impl Into<PathBuf>) -> Self {
        Self { row, log: log.into(), took: Duration::ZERO }
    }
}

/// A few huge pages for the tests that need some, if this process may reserve them; given back at the end.
pub struct HugePages {
    before: String,
}

const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

impl HugePages {
    pub fn reserve() -> Option<Self> {
        let before = fs::read_to_string(HUGE_PAGES).ok()?;
        if before.trim() != "0" {
            return None;
        }
        fs::write(HUGE_PAGES, "16").ok()?;
        Some(Self { before })
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = fs::write(HUGE_PAGES, &self.before);
    }
}

struct Event {
    test: String,
    what: String,
    why: String,
    took: Duration,
}

fn read(path: &Path) -> Vec<Event> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let word = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    text.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .map(|v| {
            let took =
                v["took"].as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default();
            Event { test: word(&v, "test"), what: word(&v, "what"), why: word(&v, "why"), took }
        })
        .collect()
}

/// The outcome of each test, and its time. A test that started and did not end has ended the process, or blocked it.
fn outcomes(events: &[Event], done: &Finished) -> Vec<(Row, Duration)> {
    let mut rows = Vec::new();
    let mut open: Option<&str> = None;
    for event in events {
        let why = event.why.lines().next().unwrap_or_default().to_owned();
        let outcome = match event.what.as_str() {
            "start" => {
                open = Some(&event.test);
                continue;
            }
            "pass" => Outcome::Passed,
            "skip" => Outcome::Skipped(why),
            "fail" => Outcome::Failed(why),
            _ => continue,
        };
        open = None;
        rows.push((Row::new(&event.test, outcome), event.took));
    }
    if let Some(test) = open {
        rows.push((Row::new(test, Outcome::Failed(format!("the process {}", done.verdict()))), Duration::ZERO));
    }
    rows
}

/// The version that is installed; `?` if none is.
pub fn package_version(package: &str) -> String {
    let out = Command::new("dpkg-query").args(["-W", "-f=${Version}", package]).output();
    out.ok().map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).filter(|v| !v.is_empty()).unwrap_or("?".into())
}
