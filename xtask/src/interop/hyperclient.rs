//! Group operations from C and C++: `crates/group-abi/tests/c`, with libhyperclient.so.
//!
//! Each test is a client of three replicas in one process of their own. It is run plainly, with registered memory that
//! peers map, and with AddressSanitizer and UndefinedBehaviorSanitizer. ThreadSanitizer sees the library's allocations
//! but not its locks. The listings of HyperLoop's report are among them, and are compiled with hyperclient.pc from an
//! installation, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::report::{Outcome, Suite};
use crate::run::Program;
use crate::{Options, logs, root, target_dir};

use super::exports;
use super::exs::{ADDRESS, PLAIN, outcome};
use super::sandbox::{Sandbox, copy};
use super::{MIGRATE, at_once, run_beside};

/// How the names of the library's functions begin.
const PREFIX: &[&str] = &["compat_"];
const LIMIT: Duration = Duration::from_secs(130);
const FOLDER: &str = "crates/group-abi/tests/c";
const INCLUDE: &str = "crates/group-abi/include";

/// The command of the replicas; its first line ends with the port.
const SERVE: &str = "group serve --port 0 --replicas 3 --region 65536";

/// What the replicas print of the listings, each its line.
const PRINTED: &str = "48 65 6c 6c 6f 20 57 6f 72 6c 64 2c 20 68 65 6c";

/// How a test is compiled, and whether registered memory is moved.
struct Way {
    name: &'static str,
    build: (&'static str, &'static [&'static str]),
    migrated: bool,
}

const WAYS: &[Way] = &[
    Way { name: "plain", build: ("plain", PLAIN), migrated: false },
    Way { name: "memory that peers map", build: ("plain", PLAIN), migrated: true },
    Way { name: "ASan, UBSan", build: ("address", ADDRESS), migrated: false },
];

/// The tests, and whether the replicas print for them.
const TESTS: &[(&str, bool)] = &[
    ("arguments.c", false),
    ("killed.c", false),
    ("listing_3_23.cpp", true),
    ("listing_3_24.c", true),
    ("operations.c", false),
];

pub fn hyperclient(suite: &mut Suite, options: &Options) {
    match header().and_then(|header| exports::compare("libsoftrnic_hyperclient.so", &header, PREFIX)) {
        Ok(()) => suite.pass("libhyperclient.so exports what its header declares"),
        Err(why) => suite.fail("libhyperclient.so exports what its header declares", why),
    }
    let sandboxes = Sandbox::new("hyperclient", &[])
        .and_then(|plain| Ok([plain, Sandbox::new("hyperclient-migrated", &[MIGRATE])?]));
    let sandboxes = match sandboxes {
        Ok(sandboxes) => sandboxes,
        Err(e) => return suite.fail("preparation", e),
    };
    let ways = WAYS.iter().flat_map(|way| TESTS.iter().map(move |(test, prints)| (way, *test, *prints)));
    let cases: Vec<(&Way, &str, bool)> = ways.filter(|(_, test, _)| options.wants(test)).collect();
    run_beside(suite, &cases, at_once(), |(way, test, prints)| {
        let (outcome, log) = run(&sandboxes[usize::from(way.migrated)], way, test, *prints);
        (format!("{test}: {}", way.name), outcome, log)
    });
    if options.wants("install") {
        installed(suite, &sandboxes[0]);
    }
}

fn run(sandbox: &Sandbox, way: &Way, test: &str, prints: bool) -> (Outcome, PathBuf) {
    let name = format!("{}-{}", test.replace('.', "-"), way.build.0);
    let program = match compile(sandbox, way.build.1, test, &name) {
        Ok(program) => program,
        Err(why) => return (Outcome::Failed(why), logs().join("hyperclient")),
    };
    served(sandbox, &format!("{name}-{}", way.migrated), &program, prints)
}

/// Run a client with replicas of its own.
fn served(sandbox: &Sandbox, name: &str, program: &str, prints: bool) -> (Outcome, PathBuf) {
    // Each replica's line must be there before the client ends: it asks for them, and has waited.
    let look = if prints { format!("; test $(grep -c '{PRINTED}' {name}.said) -ge 3") } else { String::new() };
    let script = format!(
        "{softrnic} {SERVE} >{name}.said & SERVER=$!; export SERVER; trap 'kill $SERVER 2>/dev/null || true' EXIT; \
         for i in $(seq 400); do grep -q port {name}.said && break; sleep 0.1; done; \
         PORT=$(head -n 1 {name}.said); PORT=${{PORT##* }}; set -e; {program} 127.0.0.1:$PORT{look}",
        softrnic = sandbox.dir().join("softrnic").display(),
    );
    let done = sandbox
        .program(name, "sh", &["-c", &script])
        .env("ASAN_OPTIONS", "detect_leaks=1:exitcode=99")
        .env("UBSAN_OPTIONS", "print_stacktrace=1:exitcode=99")
        .run(LIMIT);
    match done {
        Ok(done) => (outcome(&done), done.log),
        Err(e) => (Outcome::Failed(e.to_string()), logs().join("hyperclient")),
    }
}

/// The compiler of a source, and its standard: the report's programs are C++14 and C99.
fn compiler(test: &str) -> [&'static str; 2] {
    if test.ends_with(".cpp") { ["g++", "-std=c++14"] } else { ["gcc", "-std=gnu11"] }
}

/// Compile a program against libhyperclient.so, and bring it to the sandbox.
fn compile(sandbox: &Sandbox, flags: &[&str], test: &str, name: &str) -> Result<String, String> {
    let folder = target_dir().join("interop/hyperclient");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let binary = sandbox.dir().join(name);
    if !binary.exists() {
        let [compiler, standard] = compiler(test);
        let made = folder.join(format!("{name}-{}", sandbox.dir().file_name().unwrap_or_default().to_string_lossy()));
        let done = Program::new(compiler, logs().join("hyperclient").join(format!("{name}.{compiler}")))
            .args([standard, "-Wall", "-Wextra", "-Werror", "-g", "-pthread"])
            .args(flags)
            .args([Path::new("-I"), &root().join(INCLUDE), &root().join(FOLDER).join(test)])
            .args([&sandbox.dir().join("libhyperclient.so"), Path::new("-o"), &made])
            .args(["-Wl,-rpath,$ORIGIN"])
            .run(Duration::from_secs(60))
            .map_err(|e| e.to_string())?;
        if !done.ok() {
            return Err(format!("does not compile: {}", done.verdict()));
        }
        copy(&made, &binary)?;
        let _ = fs::remove_file(&made);
    }
    Ok(binary.display().to_string())
}

fn header() -> Result<String, String> {
    let header = root().join(INCLUDE).join("libhyperclient/hyperclient_compat.h");
    fs::read_to_string(&header).map_err(|e| format!("{}: {e}", header.display()))
}

/// Install, and compile the listings with pkg-config; run them with the installed libraries.
fn installed(suite: &mut Suite, sandbox: &Sandbox) {
    let name = "softrnic install: the library, the headers, hyperclient.pc, the man pages";
    match install(sandbox) {
        Ok(()) => suite.pass(name),
        Err(why) => return suite.fail(name, why),
    }
    for test in ["listing_3_23.cpp", "listing_3_24.c"] {
        let name = format!("installed-{}", test.replace('.', "-"));
        let case = format!("{test}: compiled with hyperclient.pc");
        let [compiler, standard] = compiler(test);
        let script = format!(
            "{compiler} {standard} -Wall -Wextra -Werror \"$1\" -o \"$2\" $(pkg-config --cflags --libs hyperclient) \
             -Wl,-rpath,\"$3\""
        );
        let made = sandbox.home().join(&name);
        let source = root().join(FOLDER).join(test);
        let done = Program::new("sh", logs().join("hyperclient").join(format!("{name}.{compiler}")))
            .args(["-c", &script, "sh"])
            .args([&source, &made, &sandbox.installed().join("lib")])
            .env("PKG_CONFIG_PATH", sandbox.installed().join("lib/pkgconfig"))
            .run(LIMIT);
        match done {
            Ok(done) if done.ok() => {}
            Ok(done) => {
                suite.push(case, Outcome::Failed(done.verdict()), Some(done.log));
                continue;
            }
            Err(e) => {
                suite.fail(case, e.to_string());
                continue;
            }
        }
        let program = sandbox.dir().join(&name);
        if let Err(why) = copy(&made, &program) {
            suite.fail(case, why);
            continue;
        }
        let (outcome, log) = served(sandbox, &name, &program.display().to_string(), true);
        suite.push(case, outcome, Some(log));
    }
}

/// Install, and look for the files.
fn install(sandbox: &Sandbox) -> Result<(), String> {
    let done = sandbox.install("install").run(LIMIT).map_err(|e| e.to_string())?;
    if !done.ok() {
        return Err(done.verdict());
    }
    let files = [
        "lib/libhyperclient.so",
        "lib/pkgconfig/hyperclient.pc",
        "include/libhyperclient/hyperclient.h",
        "include/libhyperclient/hyperclient_compat.h",
        "share/man/man7/hyperclient.7",
    ];
    let mut files: Vec<String> = files.map(String::from).into();
    files.extend(exports::declared(&header()?, PREFIX).iter().map(|name| format!("share/man/man3/{name}.3")));
    let missing: Vec<&String> = files.iter().filter(|file| !sandbox.installed().join(file).is_file()).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("not installed: {missing:?}")) }
}
