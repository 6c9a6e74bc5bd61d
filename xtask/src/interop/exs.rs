//! Extended sockets from C: `crates/exs-abi/tests/c/*.c`, with libexs.so.
//!
//! Each test is run with peers in its own process, with peers in others, and so again where single copies between
//! processes are forbidden; in one process with AddressSanitizer and UndefinedBehaviorSanitizer, and with
//! ThreadSanitizer; and over softiw0. The examples and the program of docs/exs.md are compiled as a user would, and
//! run, also between two hosts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::report::{Outcome, Suite};
use crate::run::{Finished, Program};
use crate::{Options, logs, root};

use super::exports;
use super::net::{Ip, Missing, Net};
use super::pair::Around;
use super::sandbox::{Sandbox, allow, copy};
use super::{SINGLE_COPY_FORBIDDEN, at_once, run_beside};

/// How the names of the library's functions begin.
const PREFIX: &[&str] = &["exs_"];
/// The limit of a program; the test itself gives up before.
const LIMIT: Duration = Duration::from_secs(130);
/// The port of a server of another host.
const PORT: u16 = 7175;

pub(super) const PLAIN: &[&str] = &["-O2"];
pub(super) const ADDRESS: &[&str] = &[
    "-O1",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-static-libasan",
    "-static-libubsan",
];
const THREAD: &[&str] = &["-O1", "-fsanitize=thread", "-static-libtsan"];

/// A way in which the tests are run.
struct Way {
    name: &'static str,
    /// How they are compiled, and the name of that.
    build: (&'static str, &'static [&'static str]),
    /// The place of the peers.
    peers: &'static str,
    indirect: bool,
    /// Options of `softrnic run`.
    options: &'static [&'static str],
}

const IWARP: &[&str] = &["--device", "iwarp"];
/// The tests whose connections are TCP's own, whatever the device is.
const TCP: &[&str] = &["netperf", "tcp"];

const PROCESS: Way = Way { name: "one process", build: ("plain", PLAIN), peers: "one", indirect: false, options: &[] };

const WAYS: &[Way] = &[
    PROCESS,
    Way { name: "processes", peers: "two", ..PROCESS },
    Way { name: "processes, without single copies", peers: "two", indirect: true, ..PROCESS },
    Way { name: "ASan, UBSan", build: ("address", ADDRESS), ..PROCESS },
    Way { name: "TSan", build: ("thread", THREAD), ..PROCESS },
    Way { name: "softiw0, one process", options: IWARP, ..PROCESS },
    Way { name: "softiw0, processes", peers: "two", options: IWARP, ..PROCESS },
    Way { name: "softiw0, TSan", build: ("thread", THREAD), options: IWARP, ..PROCESS },
];

pub fn exs(suite: &mut Suite, options: &Options) {
    if let Err(why) = header().and_then(|header| exports::compare("libsoftrnic_exs.so", &header, PREFIX)) {
        suite.fail("libexs.so exports what sys/exs.h declares", why);
    } else {
        suite.pass("libexs.so exports what sys/exs.h declares");
    }
    let sandboxes = Sandbox::new("exs", &[])
        .and_then(|direct| Ok([direct, Sandbox::new("exs-indirect", &[SINGLE_COPY_FORBIDDEN])?]));
    let sandboxes = match sandboxes {
        Ok(sandboxes) => sandboxes,
        Err(e) => return suite.fail("preparation", e),
    };
    let tests = match names(&root().join("crates/exs-abi/tests/c")) {
        Ok(tests) => tests,
        Err(e) => return suite.fail("preparation", e),
    };
    let ways = WAYS.iter().flat_map(|way| tests.iter().map(move |test| (way, test)));
    let alike = |way: &Way, test: &str| !way.options.is_empty() && TCP.contains(&test);
    let cases: Vec<(&Way, &String)> = ways.filter(|(way, test)| options.wants(test) && !alike(way, test)).collect();
    run_beside(suite, &cases, at_once(), |(way, test)| {
        let (outcome, log) = run(&sandboxes[usize::from(way.indirect)], way, test);
        (format!("{test}: {}", way.name), outcome, log)
    });
    if options.wants("examples") && examples(suite, &sandboxes[0]) {
        hosts(suite, &sandboxes[0]);
    }
}

/// The names of the C files of a folder.
fn names(folder: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let files = entries.flatten().map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "c"));
    let mut found: Vec<String> =
        files.filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned())).collect();
    found.sort();
    if found.is_empty() { Err(format!("no test in {}", folder.display())) } else { Ok(found) }
}

fn run(sandbox: &Sandbox, way: &Way, test: &str) -> (Outcome, PathBuf) {
    let log = logs().join("exs");
    let source = root().join("crates/exs-abi/tests/c").join(format!("{test}.c"));
    let name = format!("exs-{test}-{}", way.build.0);
    let program = match compile(sandbox, way.build.1, &source, &name) {
        Ok(program) => program,
        Err(why) => return (Outcome::Failed(why), log),
    };
    let done = sandbox
        .program_with(
            Around::Plain,
            way.options,
            &format!("{name}-{}{}", way.peers, way.options.concat()),
            &program,
            &[way.peers],
        )
        .env("ASAN_OPTIONS", "detect_leaks=1:exitcode=99")
        .env("UBSAN_OPTIONS", "print_stacktrace=1:exitcode=99")
        .env("TSAN_OPTIONS", "exitcode=99")
        .run(LIMIT);
    match done {
        Ok(done) => (outcome(&done), done.log),
        Err(e) => (Outcome::Failed(e.to_string()), log),
    }
}

pub(super) fn outcome(done: &Finished) -> Outcome {
    let marks = ["WARNING: ThreadSanitizer", "ERROR: ", "runtime error"];
    match done.stderr.lines().find(|line| marks.iter().any(|mark| line.contains(mark))) {
        _ if done.ok() => Outcome::Passed,
        Some(line) => Outcome::Failed(line.trim().to_owned()),
        None => Outcome::Failed(done.verdict()),
    }
}

/// Compile a program against libexs.so, and bring it and the library to the sandbox.
fn compile(sandbox: &Sandbox, flags: &[&str], source: &Path, name: &str) -> Result<String, String> {
    let library = sandbox.dir().join("libexs.so");
    let binary = sandbox.dir().join(name);
    // Two cases that run at one time may need one program.
    let turn = turn_of(&binary);
    let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
    if !binary.exists() {
        let include = root().join("crates/exs-abi/include");
        let done = Program::new("gcc", logs().join("exs").join(format!("{name}.gcc")))
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-pthread"])
            .args(flags)
            // Not copied: a child of another thread would have it open for writing, and execve(2) would be ETXTBSY.
            .args([Path::new("-I"), &include, source, &library, Path::new("-o"), &binary])
            .args(["-Wl,-rpath,$ORIGIN"])
            .run(Duration::from_secs(60))
            .map_err(|e| e.to_string())?;
        if !done.ok() {
            return Err(format!("does not compile: {}", done.verdict()));
        }
        allow(&binary)?;
    }
    Ok(binary.display().to_string())
}

/// The lock of a program that is compiled when it is wanted first.
fn turn_of(binary: &Path) -> Arc<Mutex<()>> {
    static TURNS: Mutex<BTreeMap<PathBuf, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());
    let mut turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    turns.entry(binary.to_owned()).or_default().clone()
}

fn header() -> Result<String, String> {
    let header = root().join("crates/exs-abi/include/sys/exs.h");
    fs::read_to_string(&header).map_err(|e| format!("{}: {e}", header.display()))
}

/// Install, and compile the examples and the program of docs/exs.md with pkg-config; run them under `softrnic run`, and
/// with the loader's own libibverbs.so.1, which the installation has. False: they could not be compiled.
fn examples(suite: &mut Suite, sandbox: &Sandbox) -> bool {
    match installed(sandbox) {
        Ok(()) => suite.pass("softrnic install: the library, the header, exs.pc, the man pages"),
        Err(why) => {
            suite.fail("softrnic install: the library, the header, exs.pc, the man pages", why);
            return false;
        }
    }
    match foreign(sandbox) {
        Ok(()) => suite.pass("softrnic install: beside another libexs.so"),
        Err(why) => suite.fail("softrnic install: beside another libexs.so", why),
    }
    suite.push("docs/exs.md: its command", page_command(sandbox), None);
    suite.push("exs-blast: softiw0", blast(sandbox), None);
    match build_examples(sandbox) {
        Ok(()) => suite.pass("examples: they compile with exs.pc"),
        Err(why) => {
            suite.fail("examples: they compile with exs.pc", why);
            return false;
        }
    }
    let here = |name: &str| sandbox.dir().join(name).display().to_string();
    let installed = sandbox.installed().join("lib").display().to_string();
    let talk = format!(
        "set -e; {} 1 >port & pid=$!; for i in $(seq 400); do test -s port && break; sleep 0.1; done; \
         {} $(cat port) 'hello, echo'; wait $pid",
        here("echo_server"),
        here("echo_client")
    );
    let file = format!(
        "set -e; head -c 5000000 /dev/urandom >file; {} file 1 >port & pid=$!; \
         for i in $(seq 400); do test -s port && break; sleep 0.1; done; {} $(cat port) >copy; wait $pid; \
         cmp file copy && echo equal",
        here("file_server"),
        here("file_client")
    );
    let page = here("page");
    for (name, script, said) in
        [("echo", &talk, "hello, echo"), ("a file", &file, "equal"), ("docs/exs.md", &page, "hello, exs")]
    {
        for loader in [false, true] {
            let log = format!("example-{}-{loader}", name.replace(['/', ' '], "-"));
            let args = ["-c", script];
            let _ = fs::remove_file(sandbox.home().join("port"));
            let program = if loader { sandbox.alone(&log, "sh", &args) } else { sandbox.program(&log, "sh", &args) };
            let case =
                format!("examples: {name}, {}", if loader { "with the loader's libibverbs" } else { "softrnic run" });
            match program.env("LD_LIBRARY_PATH", &installed).run(LIMIT) {
                Ok(done) if done.ok() && done.stdout.contains(said) => {
                    suite.push(case, Outcome::Passed, Some(done.log))
                }
                Ok(done) => suite.push(case, Outcome::Failed(done.verdict()), Some(done.log)),
                Err(e) => suite.fail(case, e.to_string()),
            }
        }
    }
    true
}

/// Run the examples between two hosts, over softiw0.
fn hosts(suite: &mut Suite, sandbox: &Sandbox) {
    let net = match Net::veth("exs") {
        Ok(net) => net,
        Err(Missing::Forbidden(why)) => return suite.skip("examples: two hosts", why),
        Err(Missing::Broken(why)) => return suite.fail("examples: two hosts", why),
    };
    let text = "a file of more than a MiB, which is mapped\n".repeat(30_000);
    let file = sandbox.dir().join("text");
    if let Err(e) = fs::write(&file, &text).map_err(|e| e.to_string()).and_then(|()| allow(&file)) {
        return suite.fail("examples: two hosts", e);
    }
    let installed = sandbox.installed().join("lib").display().to_string();
    let (dir, file) = (sandbox.dir().display(), file.display());
    for ip in [Ip::V4, Ip::V6] {
        let address = net.address(0, ip);
        for (name, server, client, said) in [
            (
                "echo",
                format!("{dir}/echo_server 1 {address} {PORT}"),
                format!("echo_client {PORT} hello,echo"),
                "hello,echo\n",
            ),
            (
                "a file",
                format!("{dir}/file_server {file} 1 {address} {PORT}"),
                format!("file_client {PORT}"),
                text.as_str(),
            ),
        ] {
            let log = |side: &str| format!("hosts-{}-{ip:?}-{side}", name.replace(' ', "-"));
            let run = |host, side: &str, line: &str| {
                let program = sandbox.elsewhere(&net.words(host), &log(side), IWARP, line);
                program.env("LD_LIBRARY_PATH", &installed)
            };
            let client = run(1, "client", &format!("{dir}/{client} {address}"));
            let outcome = match net.run(run(0, "server", &server), PORT, client, LIMIT) {
                Ok((server, _)) if !server.ok() => Outcome::Failed(server.verdict()),
                Ok((_, client)) if client.stdout != said => Outcome::Failed("other bytes came".to_owned()),
                Ok(_) => Outcome::Passed,
                Err(why) => Outcome::Failed(why),
            };
            suite.push(format!("examples: {name}, two hosts, {ip:?}"), outcome, None);
        }
    }
}

/// Install, and look for the files.
fn installed(sandbox: &Sandbox) -> Result<(), String> {
    let done = sandbox.install("install").run(LIMIT).map_err(|e| e.to_string())?;
    if !done.ok() {
        return Err(done.verdict());
    }
    let mut files: Vec<String> =
        ["lib/libexs.so", "lib/pkgconfig/exs.pc", "include/sys/exs.h", "share/man/man7/exs.7"].map(String::from).into();
    files.extend(exports::declared(&header()?, PREFIX).iter().map(|name| format!("share/man/man3/{name}.3")));
    let missing: Vec<&String> = files.iter().filter(|file| !sandbox.installed().join(file).is_file()).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("not installed: {missing:?}")) }
}

/// Check that a libexs.so of another project is not replaced.
fn foreign(sandbox: &Sandbox) -> Result<(), String> {
    let prefix = sandbox.home().join("another");
    fs::create_dir_all(prefix.join("lib")).map_err(|e| e.to_string())?;
    copy(Path::new("/bin/true"), &prefix.join("lib/libexs.so"))?;
    let text = prefix.display().to_string();
    let done = sandbox.softrnic("install-another", &["install", "--prefix", &text]).run(LIMIT);
    let done = done.map_err(|e| e.to_string())?;
    match done.stderr.contains("is not softrnic's") && !done.ok() {
        true => Ok(()),
        false => Err(done.verdict()),
    }
}

/// The first block of docs/exs.md that begins so.
fn page_block(begins: &str) -> Result<String, String> {
    let page = fs::read_to_string(root().join("docs/exs.md")).map_err(|e| format!("docs/exs.md: {e}"))?;
    let block = page.split_once(begins).and_then(|(_, rest)| rest.split("```").next());
    block.map(str::to_owned).ok_or(format!("docs/exs.md has no {begins:?}"))
}

/// The program of docs/exs.md, compiled and run by the page's command.
fn page_command(sandbox: &Sandbox) -> Outcome {
    let script = || {
        let (program, command) = (page_block("```c\n")?, page_block("```text\ncc hello.c")?);
        let place = sandbox.home().join("hello.c");
        fs::write(&place, program).map_err(|e| e.to_string())?;
        allow(&place)?;
        Ok::<_, String>(format!("PATH=$BIN:$PATH; cc hello.c{command}"))
    };
    let done = script().and_then(|script| {
        let program = sandbox.alone("page-command", "sh", &["-c", &script]);
        let program = program.env("BIN", sandbox.installed().join("bin"));
        let done = program.env("PKG_CONFIG_PATH", sandbox.installed().join("lib/pkgconfig")).run(LIMIT);
        done.map_err(|e| e.to_string())
    });
    match done {
        Ok(done) if done.ok() && done.stdout == "hello, exs\n" => Outcome::Passed,
        Ok(done) => Outcome::Failed(done.verdict()),
        Err(why) => Outcome::Failed(why),
    }
}

/// Measure over softiw0: each way has a figure.
fn blast(sandbox: &Sandbox) -> Outcome {
    let softrnic = sandbox.dir().join("softrnic").display().to_string();
    let args = ["exs-blast", "--sizes", "8", "--rounds", "1", "--time", "5", "--json"];
    match sandbox.program_with(Around::Plain, IWARP, "exs-blast", &softrnic, &args).run(LIMIT) {
        // Six ways have a latency, and six a throughput.
        Ok(done) if done.ok() && done.stdout.matches("\"figure\"").count() == 12 => Outcome::Passed,
        Ok(done) => Outcome::Failed(done.verdict()),
        Err(e) => Outcome::Failed(e.to_string()),
    }
}

fn build_examples(sandbox: &Sandbox) -> Result<(), String> {
    let folder = root().join("crates/exs-abi/examples");
    let mut sources: Vec<PathBuf> = names(&folder)?.into_iter().map(|name| folder.join(format!("{name}.c"))).collect();
    let written = sandbox.dir().join("page.c");
    fs::write(&written, page_block("```c\n")?).map_err(|e| e.to_string())?;
    sources.push(written);
    let script = "gcc -std=gnu11 -Wall -Wextra -Werror \"$1\" -o \"$2\" $(pkg-config --cflags --libs exs)";
    for source in sources {
        let name = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let made = sandbox.home().join(&name);
        let (from, to) = (source.display().to_string(), made.display().to_string());
        let done = Program::new("sh", logs().join("exs").join(format!("example-{name}.gcc")))
            .args(["-c", script, "sh", &from, &to])
            .env("PKG_CONFIG_PATH", sandbox.installed().join("lib/pkgconfig"))
            .run(LIMIT)
            .map_err(|e| e.to_string())?;
        if !done.ok() {
            return Err(format!("{name}: {}", done.verdict()));
        }
        copy(&made, &sandbox.dir().join(&name))?;
    }
    Ok(())
}
