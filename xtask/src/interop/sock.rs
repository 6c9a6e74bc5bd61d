//! TCP programs under `softrnic sock`: a real server and a real client, with the library in none, one and both of
//! them. `interop/sock/cases.py` runs one case and compares all data.
//!
//! Each case has a network namespace of its own, where that is permitted. The kernel's counters are those of the case
//! alone then, and say whether its connections moved: with both sides preloaded they must, else they must not.

use std::path::PathBuf;
use std::time::Duration;

use crate::report::{Outcome, Suite};
use crate::run::{Finished, Program};
use crate::{Options, logs, root, target_dir};

use super::sandbox::{Sandbox, allow, copy};
use super::{at_once, run_beside};

const CASES: &[&str] = &[
    "redis",
    "http",
    "http11",
    "iperf",
    "iperf3",
    "netpipe",
    "sockperf",
    "socat",
    "nc",
    "nginx",
    "nginx-sendfile",
    "apache",
    "apache-event",
    "memcached",
    "postgres",
    "asyncio",
    "multiprocessing",
    "go",
    "inside-run",
    "shown",
];

/// Who has the library.
const SIDES: &[&str] = &["both", "client", "server", "neither"];

/// The command that runs another one with a network of its own, and ends all that it leaves behind.
const NETWORK: &[&str] =
    &["unshare", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"];

const LIMIT: Duration = Duration::from_secs(120);

/// `cargo xtask sock`.
pub fn sock(suite: &mut Suite, options: &Options) {
    let sandbox = match prepare() {
        Ok(sandbox) => sandbox,
        Err(e) => return suite.fail("preparation", e),
    };
    let own_network = may_have_network();
    let names = CASES.iter().flat_map(|case| SIDES.iter().map(move |sides| (*case, *sides)));
    let wanted: Vec<(&str, &str, String)> = names
        .map(|(case, sides)| (case, sides, format!("{case}, {sides} preloaded")))
        .filter(|(_, sides, name)| options.wants(name) && (!options.quick || ["both", "client"].contains(sides)))
        .collect();
    // In one network all cases would have the same port.
    let at_once = if own_network { at_once() } else { 1 };
    run_beside(suite, &wanted, at_once, |(case, sides, name)| {
        let done = run(&sandbox, own_network, options, &[case, sides]);
        match done {
            Ok(done) => (name.clone(), judge(&done), done.log),
            Err(e) => (name.clone(), Outcome::Failed(e.to_string()), PathBuf::from(name)),
        }
    });
}

fn judge(done: &Finished) -> Outcome {
    if done.ok() {
        return Outcome::Passed;
    }
    // The last line of the standard output says what the case has found; the rest is the programs'.
    let found = done.stdout.lines().last().filter(|_| done.status.is_some());
    Outcome::Failed(found.map_or_else(|| done.verdict(), |line| format!("{line}; {}", done.verdict())))
}

/// Make the folder with the library, the scripts, and the program of Go.
fn prepare() -> Result<Sandbox, String> {
    let sandbox = Sandbox::new("sock", &[])?;
    copy(&target_dir().join("release/libsoftrnic_sock.so"), &sandbox.dir().join("libsoftrnic-sock.so"))?;
    let folder = sandbox.dir().join("sock");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    allow(&folder)?;
    for file in ["cases.py", "peers.py"] {
        copy(&root().join("interop/sock").join(file), &folder.join(file))?;
    }
    let program = folder.join("go-peer");
    let built = Program::new("go", logs().join("sock/go.build"))
        .args(["build".as_ref(), "-o".as_ref(), program.as_os_str(), "peer.go".as_ref()])
        .env("CGO_ENABLED", "0")
        .env("GOCACHE", target_dir().join("interop/go"))
        .env("GOFLAGS", "-mod=mod")
        .dir(root().join("interop/sock"))
        .run(Duration::from_secs(240))
        .map_err(|e| e.to_string())?;
    if !built.ok() {
        return Err(format!("interop/sock/peer.go is not built: {}", built.verdict()));
    }
    allow(&program)?;
    Ok(sandbox)
}

fn may_have_network() -> bool {
    let tried = Program::new(NETWORK[0], logs().join("sock/network")).args(&NETWORK[1..]).args(["true"]);
    tried.run(Duration::from_secs(20)).is_ok_and(|done| done.ok())
}

fn run(sandbox: &Sandbox, own_network: bool, options: &Options, words: &[&str]) -> std::io::Result<Finished> {
    let wrapper = if own_network { NETWORK } else { &["setpriv", "--pdeathsig", "KILL"] };
    Program::new(wrapper[0], logs().join("sock").join(words.join(".")))
        .args(&wrapper[1..])
        .args(sandbox.user())
        .args(["/usr/bin/python3".as_ref(), sandbox.dir().join("sock/cases.py").as_os_str()])
        .args(words)
        .args([sandbox.dir().join("softrnic")])
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", sandbox.home())
        .env("TMPDIR", sandbox.home())
        .env("OWN_NETWORK", if own_network { "1" } else { "0" })
        .without("LD_LIBRARY_PATH")
        .dir(sandbox.home())
        .run(LIMIT * options.patience())
}
