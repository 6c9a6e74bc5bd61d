//! `cargo xtask setup`: the packages of the distribution that the tests need.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::interop::siw;
use crate::run::find;
use crate::{miri, rdmacore};

/// A Debian package, the file that shows that it is installed, and the tests that fail without it.
struct Package {
    name: &'static str,
    shows: Shows,
    needed_for: &'static str,
}

enum Shows {
    Tool(&'static str),
    File(&'static str),
}

use Shows::{File, Tool};

#[rustfmt::skip]
const PACKAGES: &[Package] = &[
    Package { name: "gcc",             shows: Tool("gcc"),                                     needed_for: "C tests" },
    Package { name: "g++",             shows: Tool("g++"),                                     needed_for: "fuzz \
        targets (libFuzzer is C++)" },
    Package { name: "libc6-dev",       shows: File("/usr/include/stdio.h"),                    needed_for: "C tests" },
    Package { name: "binutils",        shows: Tool("nm"),                                      needed_for: "symbol \
        table tests" },
    Package { name: "libibverbs-dev",  shows: File("/usr/include/infiniband/verbs.h"),         needed_for: "C tests \
        against the real headers" },
    Package { name: "librdmacm-dev",   shows: File("/usr/include/rdma/rdma_cma.h"),            needed_for: "C tests \
        against the real headers" },
    Package { name: "ibverbs-utils",   shows: Tool("ibv_rc_pingpong"),                         needed_for: "pingpong \
        matrix" },
    Package { name: "perftest",        shows: Tool("ib_send_lat"),                             needed_for: "perftest \
        matrix" },
    Package { name: "rdmacm-utils",    shows: Tool("rping"),                                   needed_for: "programs \
        of librdmacm" },
    Package { name: "qperf",           shows: Tool("qperf"),                                   needed_for: "programs" },
    Package { name: "fio",             shows: Tool("fio"),                                     needed_for: "programs" },
    Package { name: "libfabric-bin",   shows: Tool("fi_pingpong"),                             needed_for: "programs" },
    Package { name: "ucx-utils",       shows: Tool("ucx_perftest"),                            needed_for: "programs" },
    Package { name: "openmpi-bin",     shows: Tool("mpirun"),                                  needed_for: "programs" },
    Package { name: "libopenmpi-dev",  shows: Tool("mpicc"),                                   needed_for: "programs" },
    Package { name: "python3-pyverbs", shows: File("/usr/lib/python3/dist-packages/pyverbs"),  needed_for: "rdma-core's own suite" },
    Package { name: "python3-pip",     shows: File("/usr/lib/python3/dist-packages/pip"),      needed_for: "a newer \
        rdma-core's suite" },
    Package { name: "python3-dev",     shows: File("/usr/bin/python3-config"),                 needed_for: "a newer \
        rdma-core's suite" },
    Package { name: "cython3",         shows: File("/usr/bin/cython3"),                        needed_for: "a newer \
        rdma-core's suite" },
    Package { name: "cmake",           shows: Tool("cmake"),                                   needed_for: "a newer \
        rdma-core's suite" },
    Package { name: "ninja-build",     shows: Tool("ninja"),                                   needed_for: "a newer \
        rdma-core's suite" },
    Package { name: "pkg-config",      shows: Tool("pkg-config"),                              needed_for: "a newer \
        rdma-core's suite" },
    Package { name: "libnl-3-dev",     shows: File("/usr/include/libnl3/netlink/netlink.h"),   needed_for: "a newer \
        rdma-core's suite" },
    Package { name: "libnl-route-3-dev", shows: File("/usr/include/libnl3/netlink/route/route.h"), needed_for: "a \
        newer rdma-core's suite" },
    Package { name: "iproute2",        shows: Tool("ip"),                                      needed_for: "rdma-core's own suite" },
    Package { name: "util-linux",      shows: Tool("setpriv"),                                 needed_for: "running \
        as an ordinary user" },
    Package { name: "gdb",             shows: Tool("gdb"),                                     needed_for: "stacks of \
        programs that hang" },
    Package { name: "strace",          shows: Tool("strace"),                                  needed_for: "tests \
        that count system calls" },
    Package { name: "tshark",          shows: Tool("tshark"),                                  needed_for: "captures" },
    Package { name: "redis-server",    shows: Tool("redis-server"),                            needed_for: "TCP \
        programs" },
    Package { name: "redis-tools",     shows: Tool("redis-benchmark"),                         needed_for: "TCP \
        programs" },
    Package { name: "nginx-light",     shows: Tool("nginx"),                                   needed_for: "TCP \
        programs" },
    Package { name: "apache2-bin",     shows: Tool("apache2"),                                 needed_for: "TCP \
        programs" },
    Package { name: "memcached",       shows: Tool("memcached"),                               needed_for: "TCP \
        programs" },
    Package { name: "postgresql",      shows: Tool("pgbench"),                                 needed_for: "TCP \
        programs" },
    Package { name: "curl",            shows: Tool("curl"),                                    needed_for: "TCP \
        programs" },
    Package { name: "wget",            shows: Tool("wget"),                                    needed_for: "TCP \
        programs" },
    Package { name: "wrk",             shows: Tool("wrk"),                                     needed_for: "TCP \
        programs" },
    Package { name: "iperf",           shows: Tool("iperf"),                                   needed_for: "TCP \
        programs" },
    Package { name: "netpipe-tcp",     shows: Tool("NPtcp"),                                   needed_for: "TCP \
        programs" },
    Package { name: "sockperf",        shows: Tool("sockperf"),                                needed_for: "TCP \
        programs" },
    Package { name: "iperf3",          shows: Tool("iperf3"),                                  needed_for: "TCP \
        programs" },
    Package { name: "socat",           shows: Tool("socat"),                                   needed_for: "TCP \
        programs" },
    Package { name: "netcat-openbsd",  shows: Tool("nc.openbsd"),                              needed_for: "TCP \
        programs" },
    Package { name: "golang-go",       shows: Tool("go"),                                      needed_for: "TCP \
        programs" },
    Package { name: "valgrind",        shows: Tool("valgrind"),                                needed_for: "programs \
        that are watched by it" },
];

impl Package {
    fn is_there(&self) -> bool {
        match self.shows {
            Tool(tool) => find(tool).is_some(),
            File(file) => Path::new(file).exists(),
        }
    }
}

/// Install the packages that are missing: as root or through sudo, miri through rustup.
///
/// # Errors
/// The missing packages, and the commands that would install them.
pub fn setup() -> Result<(), String> {
    let packages = packages();
    // Later steps may have no network. Without the package its suite is left out.
    if let Err(missing) = rdmacore::fetch() {
        println!("setup: a newer rdma-core could not be had: {missing:?}");
    }
    if let Err(missing) = siw::fetch() {
        println!("setup: a guest with Linux's siw could not be had: {missing}");
    }
    match (packages, miri()) {
        (Err(packages), Err(miri)) => Err(format!("{packages}\n{miri}")),
        (packages, miri) => packages.and(miri),
    }
}

fn packages() -> Result<(), String> {
    let missing = missing();
    if missing.is_empty() {
        println!("setup: all {} packages are there", PACKAGES.len());
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|p| p.name).collect();
    for package in &missing {
        println!("setup: {} is missing ({})", package.name, package.needed_for);
    }
    let by_hand = format!("apt-get update && apt-get install --no-install-recommends -y {}", names.join(" "));
    if find("apt-get").is_none() {
        return Err(format!("this is not a Debian system; install what corresponds to: {}", names.join(" ")));
    }
    let prefix: &[&str] = if rustix::process::geteuid().is_root() {
        &[]
    } else if sudo_works() {
        &["sudo", "-n"]
    } else {
        return Err(format!("not root, and sudo asks for a password; run as root:\n    {by_hand}"));
    };
    apt(prefix, &["update"]).map_err(|e| format!("{e}; by hand:\n    {by_hand}"))?;
    let install = [&["install", "--no-install-recommends", "-y"], names.as_slice()].concat();
    apt(prefix, &install).map_err(|e| format!("{e}; by hand:\n    {by_hand}"))?;
    check_packages()
}

/// Install miri, which is a component of nightly toolchains only. The pinned toolchain stays the one that builds.
fn miri() -> Result<(), String> {
    if miri::is_there() {
        println!("setup: miri is there");
        return Ok(());
    }
    let words = ["toolchain", "install", miri::TOOLCHAIN, "--profile", "minimal", "--component", miri::COMPONENTS];
    let by_hand = format!("miri is missing; by hand:\n    rustup {}", words.join(" "));
    println!("setup: rustup {}", words.join(" "));
    let status = Command::new("rustup").args(words).stdin(Stdio::null()).status();
    let installed = status.is_ok_and(|status| status.success()) && miri::is_there();
    if installed { Ok(()) } else { Err(by_hand) }
}

/// # Errors
/// What is not there.
pub fn check() -> Result<(), String> {
    check_packages()?;
    if miri::is_there() { Ok(()) } else { Err("missing: miri".to_owned()) }
}

fn check_packages() -> Result<(), String> {
    let missing: Vec<String> = missing().iter().map(|p| format!("{} ({})", p.name, p.needed_for)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("missing: {}", missing.join(", "))) }
}

fn missing() -> Vec<&'static Package> {
    PACKAGES.iter().filter(|p| !p.is_there()).collect()
}

fn sudo_works() -> bool {
    find("sudo").is_some()
        && Command::new("sudo").args(["-n", "true"]).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

/// The variable with which invoke-rc.d(8) takes the machine for one in single-user mode, and starts no daemon: packages
/// of servers would start theirs.
const NO_DAEMONS: &str = "RUNLEVEL=1";

fn apt(prefix: &[&str], args: &[&str]) -> Result<(), String> {
    let words = [prefix, &["env", "DEBIAN_FRONTEND=noninteractive", NO_DAEMONS, "apt-get", "-q"], args].concat();
    println!("setup: {}", words.join(" "));
    let status = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).status();
    match status {
        Ok(s) if s.success() => Ok(()),
        Ok(s) => Err(format!("apt-get {} failed: {s}", args[0])),
        Err(e) => Err(format!("apt-get could not be run: {e}")),
    }
}

/// rdma-core's Python tests: where the package put them, or, on images that leave `/usr/share/doc` out, unpacked from
/// the package itself into `scratch`.
///
/// # Errors
/// The reason why they cannot be had.
/// Why they cannot be had.
pub fn python_tests(scratch: &Path) -> Result<PathBuf, String> {
    const TESTS: &str = "usr/share/doc/rdma-core/tests";
    let installed = Path::new("/").join(TESTS);
    if has_tests(&installed) {
        return Ok(installed);
    }
    let unpacked = scratch.join("python3-pyverbs");
    if has_tests(&unpacked.join(TESTS)) {
        return Ok(unpacked.join(TESTS));
    }
    fs::create_dir_all(&unpacked).map_err(|e| format!("{}: {e}", unpacked.display()))?;
    let script = "apt-get -q download python3-pyverbs && dpkg-deb --extract python3-pyverbs_*.deb .";
    let done = Command::new("sh").args(["-c", script]).current_dir(&unpacked).stdin(Stdio::null()).output();
    match done {
        Ok(out) if out.status.success() && has_tests(&unpacked.join(TESTS)) => Ok(unpacked.join(TESTS)),
        Ok(out) => {
            Err(format!("no tests in /{TESTS}, and `{script}` failed: {}", String::from_utf8_lossy(&out.stderr)))
        }
        Err(e) => Err(format!("no tests in /{TESTS}, and sh could not be run: {e}")),
    }
}

fn has_tests(folder: &Path) -> bool {
    folder.join("test_addr.py").exists() || folder.join("test_addr.py.gz").exists()
}
