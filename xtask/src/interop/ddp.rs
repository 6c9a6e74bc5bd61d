//! Direct data placement from C: `crates/ddp-abi/tests/c`, with libsoftrnic-ddp.so.
//!
//! A test is a list of cases, each with two processes of its own that talk over loopback. It is run plainly, and with
//! AddressSanitizer and UndefinedBehaviorSanitizer. The program of docs/ddp.md is compiled as a user would, and run.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::report::{Outcome, Suite};
use crate::run::Program;
use crate::{Options, logs, root, target_dir};

use super::exports;
use super::exs::{ADDRESS, PLAIN, outcome};
use super::sandbox::{Sandbox, copy};
use super::{at_once, run_beside};

/// How the names of the library's functions begin.
const PREFIXES: &[&str] = &["ddp_", "softrnic_rdma_"];
const LIMIT: Duration = Duration::from_secs(130);
const FOLDER: &str = "crates/ddp-abi/tests/c";
const INCLUDE: &str = "crates/ddp-abi/include";

const TESTS: &[&str] = &["arguments", "faults", "killed", "messages", "tagged"];
const BUILDS: &[(&str, &[&str])] = &[("plain", PLAIN), ("ASan, UBSan", ADDRESS)];

pub fn ddp(suite: &mut Suite, options: &Options) {
    match header().and_then(|header| exports::compare("libsoftrnic_ddp.so", &header, PREFIXES)) {
        Ok(()) => suite.pass("libsoftrnic-ddp.so exports what its header declares"),
        Err(why) => suite.fail("libsoftrnic-ddp.so exports what its header declares", why),
    }
    let sandbox = match Sandbox::new("ddp", &[]) {
        Ok(sandbox) => sandbox,
        Err(e) => return suite.fail("preparation", e),
    };
    let builds = BUILDS.iter().flat_map(|build| TESTS.iter().map(move |test| (build, *test)));
    let cases: Vec<(&(&str, &[&str]), &str)> = builds.filter(|(_, test)| options.wants(test)).collect();
    run_beside(suite, &cases, at_once(), |((build, flags), test)| {
        let (outcome, log) = run(&sandbox, build, flags, test);
        (format!("{test}: {build}"), outcome, log)
    });
    if options.wants("install") {
        installed(suite, &sandbox);
    }
}

fn run(sandbox: &Sandbox, build: &str, flags: &[&str], test: &str) -> (Outcome, PathBuf) {
    let name = format!("{test}-{}", if build == "plain" { "plain" } else { "address" });
    let program = match compile(sandbox, flags, test, &name) {
        Ok(program) => program,
        Err(why) => return (Outcome::Failed(why), logs().join("ddp")),
    };
    let done = sandbox
        .alone::<&str>(&name, &program, &[])
        .env("ASAN_OPTIONS", "detect_leaks=1:exitcode=99")
        .env("UBSAN_OPTIONS", "print_stacktrace=1:exitcode=99")
        .run(LIMIT);
    match done {
        Ok(done) => (outcome(&done), done.log),
        Err(e) => (Outcome::Failed(e.to_string()), logs().join("ddp")),
    }
}

/// Compile a test against libsoftrnic-ddp.so, and bring it to the sandbox.
fn compile(sandbox: &Sandbox, flags: &[&str], test: &str, name: &str) -> Result<String, String> {
    let folder = target_dir().join("interop/ddp");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let made = folder.join(name);
    let done = Program::new("gcc", logs().join("ddp").join(format!("{name}.gcc")))
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g"])
        .args(flags)
        .args([Path::new("-I"), &root().join(INCLUDE), &root().join(FOLDER).join(format!("{test}.c"))])
        .args([&sandbox.dir().join("libsoftrnic-ddp.so"), Path::new("-o"), &made])
        .args(["-Wl,-rpath,$ORIGIN"])
        .run(Duration::from_secs(60))
        .map_err(|e| e.to_string())?;
    if !done.ok() {
        return Err(format!("does not compile: {}", done.verdict()));
    }
    let binary = sandbox.dir().join(name);
    copy(&made, &binary)?;
    Ok(binary.display().to_string())
}

fn header() -> Result<String, String> {
    let header = root().join(INCLUDE).join("softrnic/ddp.h");
    fs::read_to_string(&header).map_err(|e| format!("{}: {e}", header.display()))
}

/// Install, and compile and run the program of docs/ddp.md with the installed files.
fn installed(suite: &mut Suite, sandbox: &Sandbox) {
    let name = "softrnic install: the library, the header, softrnic-ddp.pc, the man pages";
    match install(sandbox) {
        Ok(()) => suite.pass(name),
        Err(why) => return suite.fail(name, why),
    }
    let name = "docs/ddp.md: its program, with softrnic-ddp.pc";
    match page(sandbox) {
        Ok((outcome, log)) => suite.push(name, outcome, Some(log)),
        Err(why) => suite.fail(name, why),
    }
}

/// Install, and look for the files.
fn install(sandbox: &Sandbox) -> Result<(), String> {
    let done = sandbox.install("install").run(LIMIT).map_err(|e| e.to_string())?;
    if !done.ok() {
        return Err(done.verdict());
    }
    let files = [
        "lib/libsoftrnic-ddp.so",
        "lib/pkgconfig/softrnic-ddp.pc",
        "include/softrnic/ddp.h",
        "share/man/man7/softrnic-ddp.7",
    ];
    let mut files: Vec<String> = files.map(String::from).into();
    files.extend(exports::declared(&header()?, PREFIXES).iter().map(|name| format!("share/man/man3/{name}.3")));
    let missing: Vec<&String> = files.iter().filter(|file| !sandbox.installed().join(file).is_file()).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("not installed: {missing:?}")) }
}

fn page(sandbox: &Sandbox) -> Result<(Outcome, PathBuf), String> {
    let page = fs::read_to_string(root().join("docs/ddp.md")).map_err(|e| format!("docs/ddp.md: {e}"))?;
    let program = page.split("```c\n").nth(1).and_then(|rest| rest.split("```").next());
    let source = sandbox.dir().join("page.c");
    fs::write(&source, program.ok_or("docs/ddp.md has no program")?).map_err(|e| e.to_string())?;
    let made = target_dir().join("interop/ddp/page");
    let script = "gcc -Wall -Wextra -Werror \"$1\" -o \"$2\" $(pkg-config --cflags --libs softrnic-ddp)";
    let done = Program::new("sh", logs().join("ddp").join("page.gcc"))
        .args(["-c", script, "sh"])
        .args([&source, &made])
        .env("PKG_CONFIG_PATH", sandbox.installed().join("lib/pkgconfig"))
        .run(LIMIT)
        .map_err(|e| e.to_string())?;
    if !done.ok() {
        return Err(format!("does not compile: {}", done.verdict()));
    }
    let binary = sandbox.dir().join("page");
    copy(&made, &binary)?;
    let done = sandbox
        .alone::<&str>("page", &binary.display().to_string(), &[])
        .env("LD_LIBRARY_PATH", sandbox.installed().join("lib"))
        .run(LIMIT)
        .map_err(|e| e.to_string())?;
    let outcome = match done.stdout.trim() {
        "notice 7: hello, ddp" => outcome(&done),
        said => Outcome::Failed(format!("said {said:?}: {}", done.verdict())),
    };
    Ok((outcome, done.log))
}
