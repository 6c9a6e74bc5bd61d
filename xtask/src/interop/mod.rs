//! Suites that run real programs through `softrnic run`, as an ordinary user.

mod bench;
mod both_devices;
mod capture;
mod client_server;
mod conformance;
mod ddp;
mod exports;
mod exs;
mod faults;
mod gate;
mod hyperclient;
mod infiniband;
pub mod iwarp;
mod iwarp_ends;
mod iwarp_rdmacm;
mod iwarp_shown;
pub mod iwarp_speed;
mod loading;
mod net;
mod netlink;
mod pair;
mod pcap;
mod pcap_iwarp;
mod perftest;
mod pingpong;
mod programs;
mod pyverbs;
mod rdmacm;
mod rdmacore;
mod sandbox;
mod sanitized;
pub mod siw;
mod siw_device;
mod sock;
pub mod sock_speed;
mod ucx;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::Options;
use crate::report::{Outcome, Suite};
use crate::run::{Finished, Program};
use crate::rust;
pub use bench::bench;
pub use ddp::ddp;
pub use exs::exs;
pub use faults::faults;
pub use hyperclient::hyperclient;
pub use infiniband::infiniband;
pub use loading::loading;
use pair::{Around, Order, Pair};
pub use pcap::pcap;
use perftest::Extent;
pub use programs::programs;
pub use rdmacm::rdmacm;
pub use rdmacore::rdmacore;
use sandbox::Sandbox;
pub use sanitized::sanitized;
pub use sock::sock;
pub use ucx::ucx;

/// The setting that forbids single copies between processes, so that all data goes through the window.
pub const SINGLE_COPY_FORBIDDEN: (&str, &str) = ("SOFTRNIC_SINGLE_COPY", "0");

/// The setting by which large messages go by single copy, also where the machine is quicker with the window.
pub const SINGLE_COPY_ALWAYS: (&str, &str) = ("SOFTRNIC_SINGLE_COPY_ABOVE", "16384");

/// The setting that makes the port one of InfiniBand.
pub const INFINIBAND: (&str, &str) = ("SOFTRNIC_LINK_LAYER", "infiniband");

/// The setting that moves registered memory to where peers map it.
const MIGRATE: (&str, &str) = ("SOFTRNIC_MIGRATE", "1");

/// The device's name, and the index of the GID that the programs use.
const DEVICE: &str = "softrnic0";
const GID: &str = "0";

/// A mode in which the programs are run: with every path allowed, with large messages going by single copy on every
/// machine, with the window as the only way, on a port of InfiniBand, or with registered memory that peers map.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Every,
    SingleCopy,
    Indirect,
    InfiniBand,
    Migrated,
}

impl Mode {
    fn sandbox(self, suite: &mut Suite) -> Option<Sandbox> {
        let sandbox = match self {
            Mode::Every => Sandbox::new("every", &[]),
            Mode::SingleCopy => Sandbox::new("single-copy", &[SINGLE_COPY_ALWAYS]),
            Mode::Indirect => Sandbox::new("indirect", &[SINGLE_COPY_FORBIDDEN]),
            Mode::InfiniBand => Sandbox::new("infiniband", &[INFINIBAND]),
            Mode::Migrated => Sandbox::new("migrated", &[MIGRATE]),
        };
        sandbox.map_err(|e| suite.fail("preparation", e)).ok()
    }

    /// The marked name of a case, which tells it from those of other suites.
    fn name(self, name: &str) -> String {
        match self {
            Mode::Every => name.to_owned(),
            Mode::SingleCopy => format!("{name} (single copy)"),
            Mode::Indirect => format!("{name} (indirect)"),
            Mode::InfiniBand => format!("{name} (InfiniBand)"),
            Mode::Migrated => format!("{name} (migrated)"),
        }
    }
}

pub fn devices(suite: &mut Suite, _: &Options) {
    let Some(sandbox) = Mode::Every.sandbox(suite) else {
        return;
    };
    let guid = r"0000:0000:0000:0000";
    check_one(suite, &sandbox, "ibv_devices", &[], |out| (out.contains(DEVICE), format!("{DEVICE} is not listed")));
    check_one(suite, &sandbox, "ibv_devinfo", &["-v"], |out| {
        for want in [DEVICE, "PORT_ACTIVE", "Ethernet", "GID[  0]", "RoCE v2"] {
            if !out.contains(want) {
                return (false, format!("the output has no `{want}`"));
            }
        }
        let no_guid = out.lines().any(|line| line.contains("node_guid") && line.contains(guid));
        (!no_guid, "the node GUID is zero".to_owned())
    });
    check_one(suite, &sandbox, "ibv_devinfo", &["-l"], |out| (out.contains(DEVICE), format!("{DEVICE} is not listed")));
    netlink::cases(suite, &sandbox);
    let done = sandbox.softrnic("devinfo", &["devinfo"]).run(Duration::from_secs(20));
    record(suite, "softrnic devinfo", done, |out| (out.contains(DEVICE), format!("{DEVICE} is not listed")));
    match Sandbox::new("devices-iwarp", &[("SOFTRNIC_DEVICE", "iwarp")]) {
        Ok(sandbox) => {
            check_one(suite, &sandbox, "ibv_devinfo", &["-v", "-d", "softiw0"], |out| {
                let row = |name: &str| out.lines().find(|line| line.contains(name)).unwrap_or_default();
                let good = row("transport:").contains("iWARP (1)") && row("gid_tbl_len").ends_with("\t1");
                (good, format!("no device of iWARP with one GID: {}", row("gid_tbl_len")))
            });
            // As Linux's drivers of iWARP have it: a hardware address and ten zero bytes.
            check_one(suite, &sandbox, "cat", &["/sys/class/infiniband/softiw0/ports/1/gids/0"], |out| {
                let gid = out.trim();
                let is_mac = gid.ends_with(":0000:0000:0000:0000:0000") && !gid.starts_with("0000:0000:0000");
                (is_mac, format!("no hardware address: {gid}"))
            });
        }
        Err(e) => suite.fail("devices of iWARP", e),
    }
    match Sandbox::new("devices-all", &[("SOFTRNIC_DEVICE", "all")]) {
        Ok(sandbox) => {
            // softrnic0 first: programs that are not told otherwise take the first one.
            check_one(suite, &sandbox, "ibv_devices", &[], |out| {
                let names: Vec<&str> = out.lines().skip(2).filter_map(|line| line.split_whitespace().next()).collect();
                (names == [DEVICE, "softiw0"], format!("devices: {names:?}"))
            });
            check_one(suite, &sandbox, "ls", &["/sys/class/infiniband", "/dev/infiniband"], |out| {
                let wanted = [DEVICE, "softiw0", "uverbs0", "uverbs1", "rdma_cm"];
                (wanted.iter().all(|name| out.lines().any(|line| line == *name)), format!("not all there: {out}"))
            });
            netlink::both(suite, &sandbox);
        }
        Err(e) => suite.fail("both devices", e),
    }
}

pub fn selftest(suite: &mut Suite, options: &Options) {
    selftest_in(suite, options, Mode::Every);
}

fn selftest_in(suite: &mut Suite, _: &Options, mode: Mode) {
    let Some(sandbox) = mode.sandbox(suite) else {
        return;
    };
    let done = sandbox.softrnic("selftest", &["selftest"]).run(Duration::from_secs(300));
    record(suite, &mode.name("softrnic selftest"), done, |_| (true, String::new()));
}

pub fn pingpong(suite: &mut Suite, options: &Options) {
    pairs(suite, options, Mode::Every, pingpong::cases(options.quick));
}

/// Run a pair of programs that were written for adapters, where the distribution's package is installed.
pub fn one_pingpong(suite: &mut Suite, options: &Options) {
    const PROGRAM: &str = "ibv_rc_pingpong";
    if crate::run::find(PROGRAM).is_none() {
        return suite.skip(PROGRAM, "the package ibverbs-utils is not installed");
    }
    pairs(suite, options, Mode::Every, vec![pingpong::one(PROGRAM, "-c", Order::ServerFirst)]);
}

pub fn perftest(suite: &mut Suite, options: &Options) {
    let extent = if options.quick { Extent::Quick } else { Extent::Full };
    pairs(suite, options, Mode::Every, perftest::cases(extent));
    // By default the machine decides how large messages go; the window alone is for `indirect`.
    let mut single_copy = perftest::some(&["send_bw", "write_bw", "read_bw"], "-a -n 100");
    single_copy.extend(perftest::some(&["send_bw", "send_lat"], "-s 1048576 -n 200 -e"));
    single_copy.extend(perftest::some(&["send_lat", "write_lat", "read_lat"], "-s 65536 -n 1000"));
    single_copy.extend(perftest::some(&["send_bw"], "-s 65536 -n 500 -q 16 -b"));
    pairs(suite, options, Mode::SingleCopy, single_copy);
}

pub fn pyverbs(suite: &mut Suite, options: &Options) {
    let Some(sandbox) = Mode::Every.sandbox(suite) else {
        return;
    };
    pyverbs::run(suite, &sandbox, options, Mode::Every);
}

/// Run with registered memory that peers map: initiators execute WRITE, READ and atomics by plain stores and loads.
pub fn migrated(suite: &mut Suite, options: &Options) {
    selftest_in(suite, options, Mode::Migrated);
    pairs(suite, options, Mode::Migrated, pingpong::cases(true));
    pairs(suite, options, Mode::Migrated, perftest::cases(Extent::Quick));
    let Some(sandbox) = Mode::Migrated.sandbox(suite) else {
        return;
    };
    pyverbs::run(suite, &sandbox, options, Mode::Migrated);
    rust::test_load(suite, options, "test-migrated", ("SOFTRNIC_MIGRATE", "1"));
}

/// Run all of it with the window as the only way.
pub fn indirect(suite: &mut Suite, options: &Options) {
    selftest_in(suite, options, Mode::Indirect);
    pairs(suite, options, Mode::Indirect, pingpong::cases(options.quick));
    let extent = if options.quick { Extent::Quick } else { Extent::OneOrder };
    pairs(suite, options, Mode::Indirect, perftest::cases(extent));
    let Some(sandbox) = Mode::Indirect.sandbox(suite) else {
        return;
    };
    pyverbs::run(suite, &sandbox, options, Mode::Indirect);
}

/// Run a sample on a busy machine: something of every kind, both ways of waiting, and programs that have hung on such a
/// machine before.
pub fn busy_sample(suite: &mut Suite, options: &Options) {
    let mut cases: Vec<Pair> = [
        ("ibv_rc_pingpong", "-s 4096 -n 1000 -c"),
        ("ibv_rc_pingpong", "-s 1048576 -n 60 -e -c"),
        ("ibv_uc_pingpong", "-s 4096 -n 1000 -e -c"),
        ("ibv_ud_pingpong", "-s 1000 -n 1000 -c"),
        ("ibv_srq_pingpong", "-s 65536 -n 75 -e -c"),
        ("ibv_xsrq_pingpong", "-s 1048576 -e"),
    ]
    .into_iter()
    .map(|(program, options)| pingpong::one(program, options, Order::ServerFirst))
    .collect();
    cases.extend(perftest::some(&["send_bw", "write_bw", "read_bw"], "-n 1000"));
    cases.extend(perftest::some(&["send_lat", "write_lat", "read_lat"], "-n 200"));
    cases.extend(perftest::some(&["send_bw", "send_lat"], "-n 1000 -e"));
    cases.extend(perftest::some(&["send_bw"], "-n 500 -q 16 -s 65536"));
    let cases = cases.into_iter().map(Pair::on_quick_clock).collect();
    pairs(suite, options, Mode::Every, cases);
    rdmacm::busy_sample(suite, options);
}

/// Run in surroundings that forbid single copies without this project's setting: other namespaces, and a filter on the
/// system calls. One side is surrounded, or both; the other way may still be allowed. One case has no room in /dev/shm,
/// where the library has no file.
pub fn surroundings(suite: &mut Suite, options: &Options) {
    use Around::{FullShm, Namespaces, NoProcessVm, Plain};
    let places = [
        ([Namespaces, Plain], "server in other namespaces"),
        ([Plain, Namespaces], "client in other namespaces"),
        ([NoProcessVm, Plain], "server without process_vm"),
        ([Plain, NoProcessVm], "client without process_vm"),
        ([NoProcessVm, NoProcessVm], "both without process_vm"),
        ([FullShm, FullShm], "both with a full /dev/shm"),
    ];
    let Some(sandbox) = Mode::Every.sandbox(suite) else {
        return;
    };
    let (namespaces, full) = (sandbox.may_have_namespaces(), sandbox.may_fill_shm());
    let mut cases = Vec::new();
    for (around, place) in places {
        let mut some = vec![pingpong::one("ibv_rc_pingpong", "-c -s 1048576 -n 60", Order::ServerFirst)];
        some.extend(perftest::some(&["send_bw", "write_bw", "read_bw"], "-a -n 100"));
        some.extend(perftest::some(&["send_lat"], "-s 65536 -n 1000"));
        for mut case in some.into_iter().map(Pair::on_quick_clock) {
            case.name = format!("{}, {place}", case.name);
            case.around = around;
            let check = case.check;
            case.check = Box::new(move |side, done| check(side, &without_what_is_told(done)?));
            if !namespaces && around.contains(&Namespaces) || !full && around.contains(&FullShm) {
                suite
                    .skip(case.name, "an ordinary user may not make these namespaces here (chroot, container, sysctl)");
            } else {
                cases.push(case);
            }
        }
    }
    pairs(suite, options, Mode::Every, cases);
    strangers(suite, options, &sandbox);
}

/// The output of a program without the library's line about copies that the kernel forbids, which may come once.
fn without_what_is_told(done: &Finished) -> Result<Finished, String> {
    let told = |line: &&str| line.starts_with("softrnic[") && line.contains("the kernel forbids this process to copy");
    match done.stderr.lines().filter(told).count() {
        0 | 1 => {}
        often => return Err(format!("told {often} times that copies are forbidden")),
    }
    let others: Vec<&str> = done.stderr.lines().filter(|line| !told(line)).collect();
    Ok(Finished { status: done.status, stdout: done.stdout.clone(), stderr: others.join("\n"), log: done.log.clone() })
}

/// Run programs while another user sends messages to their sockets.
fn strangers(suite: &mut Suite, options: &Options, sandbox: &Sandbox) {
    const NAME: &str = "ib_send_lat -R -D 4, and another user's visits";
    if !options.wants(NAME) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return suite.skip(NAME, "only root can be another user than the programs'");
    }
    let visit = crate::root().join("interop/strangers/visit.py");
    let done = Program::new("python3", crate::logs().join("every/strangers"))
        .args([visit.as_os_str(), sandbox.dir().join("softrnic").as_os_str(), "24331".as_ref()])
        .args(sandbox.user())
        .run(Duration::from_secs(100) * options.patience());
    record(suite, NAME, done, |_| (true, String::new()));
}

fn pairs(suite: &mut Suite, options: &Options, mode: Mode, cases: Vec<Pair>) {
    let Some(sandbox) = mode.sandbox(suite) else {
        return;
    };
    let patience = options.patience();
    let wanted = cases
        .into_iter()
        .filter(|case| options.wants(&mode.name(&case.name)))
        .map(|case| Pair { limit: case.limit * patience, ..case })
        .map(|case| if mode == Mode::Every { case } else { case.on_quick_clock() });
    pairs_on(suite, &sandbox, mode, wanted);
}

fn pairs_on(suite: &mut Suite, sandbox: &Sandbox, mode: Mode, wanted: impl Iterator<Item = Pair>) {
    let (alone, together): (Vec<Pair>, Vec<Pair>) = wanted.partition(|case| case.alone);
    for (cases, at_once) in [(together, at_once()), (alone, 1)] {
        run_pairs(suite, sandbox, mode, &cases, at_once);
    }
}

/// Run so many pairs at a time.
fn run_pairs(suite: &mut Suite, sandbox: &Sandbox, mode: Mode, cases: &[Pair], at_once: usize) {
    run_beside(suite, cases, at_once, |case| {
        let (outcome, log) = case.run(sandbox);
        (mode.name(&case.name), outcome, log)
    });
}

/// Run so many cases at a time. The function that runs one returns its name, its outcome, and the place of its output.
fn run_beside<T: Sync>(
    suite: &mut Suite,
    cases: &[T],
    at_once: usize,
    run: impl Fn(&T) -> (String, Outcome, PathBuf) + Sync,
) {
    let next = AtomicUsize::new(0);
    let (done, results) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..at_once {
            let (done, next, run) = (done.clone(), &next, &run);
            // The thread lives until all cases are over: programs die with the thread that started them.
            scope.spawn(move || {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let begun = Instant::now();
                    let result = run(case);
                    let _ = done.send((result, begun.elapsed()));
                }
            });
        }
        drop(done);
        for ((name, outcome, log), took) in results {
            suite.push_timed(name, outcome, Some(log), took);
        }
    });
}

/// The number of cases that run at the same time. Programs wait for each other, and for time to pass; two pairs keep
/// two cores busy meanwhile. Their figures are only checked for sanity.
fn at_once() -> usize {
    thread::available_parallelism().map_or(2, usize::from).clamp(2, 4)
}

/// The place where the C tests run.
pub struct Place {
    sandbox: Sandbox,
}

/// # Errors
/// Why there is none.
pub fn place() -> Result<Place, String> {
    Ok(Place { sandbox: Sandbox::new("every", &[])? })
}

impl Place {
    /// The library, as the programs find it.
    pub fn library(&self) -> String {
        self.sandbox.dir().join("libsoftrnic.so").display().to_string()
    }

    /// Copy a program to where the ordinary user can run it.
    ///
    /// # Errors
    /// Why it cannot be copied.
    pub fn bring(&self, binary: &Path) -> Result<Brought<'_>, String> {
        let here = self.sandbox.dir().join(binary.file_name().unwrap_or_default());
        sandbox::copy(binary, &here)?;
        Ok(Brought { sandbox: &self.sandbox, path: here.display().to_string() })
    }
}

/// A program that was copied to the ordinary user.
pub struct Brought<'a> {
    sandbox: &'a Sandbox,
    path: String,
}

impl Brought<'_> {
    /// The program with these arguments, through `softrnic run` or alone.
    pub fn program(&self, log: &str, args: &[String], alone: bool) -> Program {
        if alone { self.sandbox.alone(log, &self.path, args) } else { self.sandbox.program(log, &self.path, args) }
    }
}

fn check_one(
    suite: &mut Suite,
    sandbox: &Sandbox,
    program: &str,
    args: &[&str],
    check: impl Fn(&str) -> (bool, String),
) {
    let name = [&[program], args].concat().join(" ");
    let done = sandbox.program(&name.replace(' ', ""), program, args).run(Duration::from_secs(20));
    record(suite, &name, done, check);
}

fn record(suite: &mut Suite, name: &str, done: std::io::Result<Finished>, check: impl Fn(&str) -> (bool, String)) {
    match done {
        Ok(done) => {
            let outcome = match check(&done.stdout) {
                _ if !done.ok() => Outcome::Failed(done.verdict()),
                (true, _) => Outcome::Passed,
                (false, why) => Outcome::Failed(why),
            };
            suite.push(name, outcome, Some(done.log));
        }
        Err(e) => suite.fail(name, e.to_string()),
    }
}
