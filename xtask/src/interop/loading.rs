//! Every way in which a program finds the library: linked to it, or opening it by name or by path, under `softrnic run`
//! or with nothing but `LD_LIBRARY_PATH` set to the directory that `softrnic install` made; and programs that must not
//! find it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::report::{Outcome, Suite};
use crate::run::{Finished, Program};
use crate::{Options, logs, root, target_dir};

use super::pair::Around::{self, Directory, Plain};
use super::pair::Order;
use super::sandbox::{self, Sandbox};
use super::{DEVICE, Mode, perftest, pingpong, run_pairs};

/// A limit that none of the programs reaches, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The exit status of the programs of `interop/loading` if there is no device.
const NO_DEVICE: i32 = 3;

/// A program of `interop/loading`: its name, its source, and the options of its compilation.
const PROGRAMS: &[(&str, &str, &[&str])] = &[
    ("nccl", "nccl.c", &["-ldl"]),
    ("rdmacm", "rdmacm.c", &["-ldl"]),
    ("one", "one.c", &["-libverbs", "-ldl"]),
    ("plugin", "plugin.c", &["-ldl"]),
    ("plugin.so", "plugin.c", &["-DPLUGIN", "-shared", "-fPIC", "-libverbs"]),
    ("runpath", "runpath.c", &["-ldl", "-Wl,-rpath,$ORIGIN/below"]),
    ("runpath.so", "runpath.c", &["-DPLUGIN", "-shared", "-fPIC"]),
    ("hardware", "hardware.c", &["-libverbs", "-ldl"]),
    (
        "adapter.so",
        "adapter.c",
        &["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", "-Wl,--version-script=@adapter.map"],
    ),
    // Static programs: one without libibverbs, one with it; and one that is static only in its libibverbs.
    ("static", "static.c", &["-static"]),
    ("static-verbs", "static.c", &["-DVERBS", "-static", "-l:libibverbs.a", "-lnl-route-3", "-lnl-3", "-lpthread"]),
    ("half-static", "static.c", &["-DVERBS", "-l:libibverbs.a", "-lnl-route-3", "-lnl-3", "-lpthread"]),
];

const FLAGS: &[&str] = &["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-O2", "-pthread"];

/// The expectation of a case: an exit status, words on stderr (none: stderr is empty), and words on stdout.
struct Expected(i32, &'static [&'static str], &'static [&'static str]);

const WORKS: Expected = Expected(0, &[], &[]);
const SEES_NOTHING: Expected = Expected(NO_DEVICE, &["no softrnic0"], &[]);

/// Run the suite.
pub fn loading(suite: &mut Suite, options: &Options) {
    let Some(sandbox) = Mode::Every.sandbox(suite) else { return };
    if let Err(why) = prepare(&sandbox) {
        return suite.fail("preparation", why);
    }
    let mut tests = Tests { suite, sandbox: &sandbox, options };
    tests.install();
    tests.names();
    for around in [Plain, Directory] {
        tests.opened(around);
        tests.programs(around);
    }
    tests.children();
    tests.refusals();
    tests.hardware();
    tests.costs();
    let mut cases = vec![pingpong::one("ibv_rc_pingpong", "-c -s 65536 -n 100", Order::ServerFirst)];
    cases.extend(perftest::some(&["send_lat", "write_bw"], "-s 1024 -n 100"));
    for case in &mut cases {
        case.name = format!("{}, by LD_LIBRARY_PATH", case.name);
        case.around = [Directory; 2];
    }
    cases.retain(|case| options.wants(&case.name));
    run_pairs(suite, &sandbox, Mode::Every, &cases, 1);
}

/// Compile the programs and copy them to the ordinary user.
fn prepare(sandbox: &Sandbox) -> Result<(), String> {
    let folder = target_dir().join("interop/loading");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let sources = root().join("interop/loading");
    for (name, source, flags) in PROGRAMS {
        let built = folder.join(name);
        let done = Program::new("gcc", logs().join("loading").join(format!("{name}.gcc")))
            .args(FLAGS)
            .args([&sources.join(source), Path::new("-o"), &built])
            .args(flags.iter().map(|flag| flag.replace('@', &format!("{}/", sources.display()))))
            .run(LIMIT)
            .map_err(|e| e.to_string())?;
        if !done.ok() {
            return Err(format!("{name} does not compile: {}", done.verdict()));
        }
        sandbox::copy(&built, &sandbox.dir().join(name))?;
    }
    let below = sandbox.dir().join("below");
    fs::create_dir_all(&below).map_err(|e| format!("{}: {e}", below.display()))?;
    sandbox::allow(&below)?;
    sandbox::copy(&folder.join("runpath.so"), &below.join("libonly-here.so"))?;
    let adapter = adapter_folder(sandbox);
    fs::create_dir_all(&adapter).map_err(|e| format!("{}: {e}", adapter.display()))?;
    sandbox::allow(&adapter)?;
    sandbox::copy(&folder.join("adapter.so"), &adapter.join("libibverbs.so.1"))?;
    sandbox::copy(&sources.join("load.py"), &sandbox.dir().join("load.py"))?;
    let script = sandbox.dir().join("static-script");
    fs::write(&script, format!("#!{}\n", sandbox.dir().join("static").display())).map_err(|e| e.to_string())?;
    sandbox::allow(&script)
}

/// The place of the library that stands in for rdma-core's on a machine with an adapter.
fn adapter_folder(sandbox: &Sandbox) -> PathBuf {
    sandbox.dir().join("adapter")
}

struct Tests<'a> {
    suite: &'a mut Suite,
    sandbox: &'a Sandbox,
    options: &'a Options,
}

impl Tests<'_> {
    /// The path of a file of the sandbox.
    fn at(&self, name: &str) -> String {
        self.sandbox.dir().join(name).display().to_string()
    }

    fn run(&mut self, name: &str, program: Program, expected: &Expected) -> Option<Finished> {
        match program.run(LIMIT) {
            Ok(done) => {
                self.suite.push(name, judge(&done, expected), Some(done.log.clone()));
                Some(done)
            }
            Err(e) => {
                self.suite.fail(name, e.to_string());
                None
            }
        }
    }

    /// Run one program, in one of the two ways.
    fn case(&mut self, around: Around, name: &str, program: &str, args: &[&str], expected: &Expected) {
        let way = if around == Directory { "LD_LIBRARY_PATH" } else { "softrnic run" };
        let name = format!("{way}: {name}");
        if self.options.wants(&name) {
            let log = format!("loading-{}", name.replace([' ', '/', ':', ','], "_"));
            self.run(&name, self.sandbox.program_in(around, &log, program, args), expected);
        }
    }

    /// Install twice: the second time, everything is there.
    fn install(&mut self) {
        let made = Expected(0, &[], &["libibverbs.so.1 has the private names of", "librdmacm.so.1"]);
        self.run("softrnic install", self.sandbox.install("install"), &made);
        let again = Expected(0, &[], &["were there already"]);
        self.run("softrnic install, again", self.sandbox.install("install-again"), &again);
        let system = Expected(1, &["/opt/softrnic"], &[]);
        self.run(
            "softrnic install into /usr",
            self.sandbox.softrnic("install-usr", &["install", "--prefix", "/usr"]),
            &system,
        );
        let forbidden = Expected(1, &["cannot write", "~/.local/softrnic"], &[]);
        let program = self.sandbox.softrnic("install-root", &["install", "--prefix", "/var/softrnic-test"]);
        if rustix::process::geteuid().is_root() {
            self.run("softrnic install where one may not", program, &forbidden);
        }
        let foreign = self.sandbox.home().join("foreign/lib");
        let copied = fs::create_dir_all(&foreign).and_then(|()| fs::copy("/bin/true", foreign.join("libibverbs.so.1")));
        match copied {
            Ok(_) => {
                let not_ours = Expected(1, &["not softrnic's"], &[]);
                let prefix = self.sandbox.home().join("foreign").display().to_string();
                let _ = sandbox::give(&self.sandbox.home().join("foreign"));
                let _ = sandbox::give(&foreign);
                let program = self.sandbox.softrnic("install-foreign", &["install", "--prefix", &prefix]);
                self.run("softrnic install beside another's library", program, &not_ours);
            }
            Err(e) => self.suite.fail("softrnic install beside another's library", e.to_string()),
        }
    }

    /// Check that the drop-in libraries export rdma-core's names, by the same versions, whether old or default.
    fn names(&mut self) {
        for (name, node) in [("libibverbs.so.1", "IBVERBS_"), ("librdmacm.so.1", "RDMACM_")] {
            let case = format!("{name} exports what rdma-core's does");
            let out = Command::new("gcc").arg(format!("-print-file-name={}", name.trim_end_matches(".1"))).output();
            let theirs = out.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default();
            let ours = exported(&self.sandbox.installed().join("lib").join(name));
            match (exported(Path::new(&theirs)), ours) {
                (Ok(theirs), Ok(ours)) => {
                    let missing: Vec<&String> = theirs.difference(&ours).collect();
                    // Functions that rdma-core added later have later nodes, never an old one.
                    let nodes: BTreeSet<&str> =
                        theirs.iter().filter_map(|name| Some(name.rsplit_once('@')?.1)).collect();
                    let wrong: Vec<&String> = ours
                        .difference(&theirs)
                        .filter(|name| {
                            name.rsplit_once('@').is_none_or(|(_, v)| nodes.contains(v) || !v.starts_with(node))
                        })
                        .collect();
                    match missing.is_empty() && wrong.is_empty() && theirs.len() > 50 {
                        true => self.suite.pass(case),
                        false => self.suite.fail(case, format!("missing {missing:?}, too many {wrong:?}")),
                    }
                }
                (Err(why), _) | (_, Err(why)) => self.suite.fail(case, why),
            }
        }
    }

    /// Run programs that open the library themselves.
    fn opened(&mut self, around: Around) {
        let nccl = self.at("nccl");
        let names = ["libibverbs.so", "libibverbs.so.1"];
        for flags in ["now", "lazy", "now,global", "now,deepbind"] {
            self.case(around, &format!("as NCCL, {flags}"), &nccl, &[&[flags], &names[..]].concat(), &WORKS);
        }
        self.case(around, "as NCCL, the second name", &nccl, &["now", "libno-such.so", "libibverbs.so.1"], &WORKS);
        let cm = self.at("rdmacm");
        for flags in ["now", "lazy,global,deepbind"] {
            let args = [flags, "libibverbs.so.1", "librdmacm.so", "librdmacm.so.1"];
            self.case(around, &format!("librdmacm as NCCL would, {flags}"), &cm, &args, &WORKS);
        }
        let script = self.at("load.py");
        for name in names {
            self.case(around, &format!("ctypes, {name}"), "/usr/bin/python3", &[&script, name], &WORKS);
        }
        let one = self.at("one");
        let installed = self.sandbox.installed().join("lib/libibverbs.so.1").display().to_string();
        self.case(
            around,
            "one device",
            &one,
            &["libibverbs.so", "libibverbs.so.1", "librdmacm.so.1", &installed],
            &WORKS,
        );
        let (host, plugin) = (self.at("plugin"), self.at("plugin.so"));
        self.case(around, "a plugin", &host, &["now", &plugin], &WORKS);
        // The libraries of this directory come first, whatever is preloaded: documented.
        let deep = if around == Directory { WORKS } else { Expected(NO_DEVICE, &[], &[]) };
        self.case(around, "a plugin, deepbind", &host, &["now,deepbind", &plugin], &deep);
        if let Ok(path) = fs::canonicalize(system_library()) {
            let path = path.display().to_string();
            // A path names its file, unless the library's dlopen is called.
            let expected = if around == Directory { SEES_NOTHING } else { WORKS };
            self.case(around, "the system's library, by path", &nccl, &["now", &path], &expected);
        }
        // Other libraries are found as ever: dlopen sees which object called it, and whose DT_RUNPATH counts.
        let runpath = self.at("runpath");
        self.case(around, "a library in the caller's DT_RUNPATH", &runpath, &["libonly-here.so"], &WORKS);
        let both = Expected(0, &[], &[]);
        let library_path = format!("LD_LIBRARY_PATH={}", self.sandbox.installed().join("lib").display());
        if around == Plain {
            let args = [&library_path, &one, "libibverbs.so", "librdmacm.so", &installed];
            self.case(around, "one device, LD_LIBRARY_PATH set, too", "env", &args, &both);
        }
    }

    /// Run programs of the distribution. perftest's are linked BIND_NOW to vendors' libraries.
    fn programs(&mut self, around: Around) {
        let lists = Expected(0, &[], &[DEVICE]);
        self.case(around, "ibv_devices", "ibv_devices", &[], &lists);
        self.case(around, "ibv_devinfo -v", "ibv_devinfo", &["-v"], &lists);
        let code = "import pyverbs.device as d\nc = d.Context(name='softrnic0')\nprint(c.name, c.query_gid(1, 0))\n";
        self.case(around, "pyverbs", "/usr/bin/python3", &["-c", code], &lists);
        self.case(
            around,
            "BIND_NOW and vendors' libraries",
            "env",
            &["LD_BIND_NOW=1", "ib_send_lat", "--version"],
            &Expected(1, &[], &["Version"]),
        );
    }

    /// Check that children have the library, and children with an empty environment do not.
    fn children(&mut self) {
        let (nccl, script) = (self.at("nccl"), self.at("load.py"));
        let shell = format!("exec sh -c '{nccl} now libibverbs.so.1; exit $?'");
        let names = ["now", "libibverbs.so.1"];
        for around in [Plain, Directory] {
            self.case(around, "through shells", "sh", &["-c", &shell], &WORKS);
            self.case(around, "through Python", "/usr/bin/python3", &[&script, "--child", "libibverbs.so.1"], &WORKS);
            self.case(around, "env -i", "env", &[&["-i", &nccl], &names[..]].concat(), &SEES_NOTHING);
        }
        // valgrind runs the program on a processor of its own, with other functions for memory and for time.
        let watched = ["-q", "--error-exitcode=9", &nccl];
        self.case(Plain, "under valgrind", "valgrind", &[&watched[..], &names[..]].concat(), &WORKS);
        let tool = self.at("softrnic");
        self.case(Plain, "softrnic run in softrnic run", &tool, &[&["run", "--", &nccl], &names[..]].concat(), &WORKS);
    }

    /// Check that adapters are there for programs that ask, and that their functions are their library's.
    fn hardware(&mut self) {
        let program = self.at("hardware");
        let library_path = format!("LD_LIBRARY_PATH={}", adapter_folder(self.sandbox).display());
        let asked = "SOFTRNIC_WITH_HARDWARE=1";
        self.case(Plain, "an adapter, asked for", "env", &[&library_path, asked, &program, "2"], &WORKS);
        self.case(Plain, "an adapter, not asked for", "env", &[&library_path, &program, "1"], &WORKS);
        for around in [Plain, Directory] {
            self.case(around, "no adapter, asked for", "env", &[asked, &program, "1"], &WORKS);
        }
        let name = "softrnic run --with-hardware";
        if self.options.wants(name) {
            let args = ["run", "--with-hardware", "--", &program, "2"];
            let run = self
                .sandbox
                .softrnic("loading-with-hardware", &args)
                .env("LD_LIBRARY_PATH", adapter_folder(self.sandbox));
            self.run(name, run, &WORKS);
        }
    }

    /// Check the messages about programs that cannot be served.
    fn refusals(&mut self) {
        let refused: [(&str, &'static [&'static str]); 3] = [
            ("static", &["statically linked", "without -static"]),
            ("static-verbs", &["statically linked", "its own copy of libibverbs", "-libverbs"]),
            ("static-script", &["the interpreter of", "statically linked", "another interpreter"]),
        ];
        for (name, words) in refused {
            let program = self.at(name);
            self.case(Plain, name, &program, &[], &Expected(125, words, &[]));
        }
        let half = self.at("half-static");
        self.case(
            Plain,
            "half-static",
            &half,
            &[],
            &Expected(NO_DEVICE, &["warning", "its own copy of libibverbs"], &[]),
        );
    }

    /// Check that loading the library makes no socket, no thread, no shared memory, and sends no signal.
    fn costs(&mut self) {
        const CALLS: &str = "trace=%network,clone,clone3,fork,vfork,eventfd,eventfd2,memfd_create,epoll_create1,\
                             timerfd_create,prctl,rt_sigaction,kill,process_vm_readv";
        let trace = self.sandbox.home().join("trace");
        let library = format!("LD_PRELOAD={}", self.at("libsoftrnic.so"));
        for (name, program) in [
            ("true", &["/bin/true"][..]),
            ("a shell", &["/bin/sh", "-c", ":"]),
            ("Python", &["/usr/bin/python3", "-c", "pass"]),
        ] {
            let mut found = Vec::new();
            for preload in [None, Some(library.as_str())] {
                let file = trace.display().to_string();
                let mut args = vec!["-f", "-q", "-e", CALLS, "-o", &file];
                args.extend(preload.iter().flat_map(|setting| ["-E", *setting]));
                args.extend(program);
                let done = self.sandbox.alone(&format!("loading-cost-{name}"), "strace", &args).run(LIMIT);
                // The calls are compared without their arguments: addresses differ from run to run.
                let text = fs::read_to_string(&trace).unwrap_or_default();
                let calls: Vec<String> = text
                    .lines()
                    .filter_map(|line| line.split_whitespace().nth(1)?.split_once('('))
                    .map(|(call, _)| call.to_owned())
                    .collect();
                found.push((done.is_ok_and(|done| done.ok() && text.contains("exited with 0")), calls));
            }
            let case = format!("being loaded costs {name} nothing");
            match (&found[0], &found[1]) {
                ((true, without), (true, with)) if without == with => self.suite.pass(case),
                (without, with) => self.suite.fail(case, format!("without {without:?}, with {with:?}")),
            }
        }
    }
}

fn judge(done: &Finished, Expected(status, said, printed): &Expected) -> Outcome {
    if done.status.and_then(|s| s.code()) != Some(*status) {
        return Outcome::Failed(format!("{} (expected {status})", done.verdict()));
    }
    let line = done.stderr.lines().find(|line| !line.trim().is_empty());
    // Where no output is expected, there must be none, also none of the loader.
    if let (true, Some(line)) = (said.is_empty(), line) {
        return Outcome::Failed(format!("on stderr: {line}"));
    }
    if let Some(word) = said.iter().find(|word| !done.stderr.contains(**word)) {
        return Outcome::Failed(format!("stderr has no `{word}`: {}", done.stderr.trim()));
    }
    if let Some(word) = printed.iter().find(|word| !done.stdout.contains(**word)) {
        return Outcome::Failed(format!("the output has no `{word}`"));
    }
    Outcome::Passed
}

/// rdma-core's libibverbs, as the linker finds it.
fn system_library() -> String {
    let out = Command::new("gcc").arg("-print-file-name=libibverbs.so").output();
    out.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned()).unwrap_or_default()
}

/// The functions that a library exports, with their versions.
fn exported(library: &Path) -> Result<BTreeSet<String>, String> {
    let out = Command::new("nm").args(["-D", "--defined-only", "--with-symbol-versions"]).arg(library).output();
    let out = out.map_err(|e| format!("nm: {e}"))?;
    if !out.status.success() {
        return Err(format!("nm {}: {}", library.display(), String::from_utf8_lossy(&out.stderr).trim()));
    }
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let names = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace().rev();
        let (name, kind) = (words.next()?, words.next()?);
        (kind != "A").then(|| name.to_owned())
    });
    Ok(names.collect())
}
