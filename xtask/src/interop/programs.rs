//! Programs of users of RDMA, with the connection manager or without: perftest with `-R`, qperf, fio, libfabric, UCX,
//! Open MPI. And the part of `docs/conformance.md` with their outcomes.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::report::{Outcome, Suite};
use crate::run::Finished;
use crate::{Options, root, target_dir};

use super::client_server::{ClientServer, Ready};
use super::conformance::{self, Program};
use super::rdmacm::{addresses, compile};
use super::sandbox::Sandbox;
use super::{DEVICE, INFINIBAND, at_once, pyverbs, run_beside};

/// The outcomes of each program, by name.
#[derive(Default)]
pub struct Record {
    programs: BTreeMap<String, Vec<(String, Outcome)>>,
}

/// The package of each program; the first word of a case's name is the program.
#[rustfmt::skip]
const PACKAGES: &[(&str, &str)] = &[
    ("rping", "rdmacm-utils"), ("ucmatose", "rdmacm-utils"), ("udaddy", "rdmacm-utils"), ("mckey", "rdmacm-utils"),
    ("cmtime", "rdmacm-utils"), ("rdma_client", "rdmacm-utils"), ("rdma_xclient", "rdmacm-utils"),
    ("ib_", "perftest"), ("qperf", "qperf"), ("fio", "fio"), ("fi_pingpong", "libfabric-bin"),
    ("ucx_", "ucx-utils"), ("mpirun", "openmpi-bin"),
];

impl Record {
    pub fn add(&mut self, case: &str, outcome: &Outcome) {
        let program = case.split(' ').next().unwrap_or_default().to_owned();
        self.programs.entry(program).or_default().push((case.to_owned(), outcome.clone()));
    }

    /// Compare the committed table's rows of these programs with the outcomes, or write them.
    pub fn publish(&self, suite: &mut Suite, options: &Options, part: &str) {
        if options.filter.is_some() {
            return;
        }
        let rows: Vec<Program> = self.programs.iter().map(|(name, cases)| row(name, cases)).collect();
        let path = root().join("docs/conformance.md");
        let page = std::fs::read_to_string(&path).unwrap_or_default();
        let made = conformance::with_programs(&page, part, &rows);
        let name = format!("docs/conformance.md says what was found ({part})");
        let _ = std::fs::write(target_dir().join(format!("interop/conformance-{part}.md")), &made);
        if options.bless {
            match std::fs::write(&path, &made) {
                Ok(()) => suite.pass("docs/conformance.md is written"),
                Err(e) => suite.fail(name, e.to_string()),
            }
        } else if let Some(why) = conformance::programs_differ(&page, part, &rows) {
            suite.fail(name, format!("{why}; run `cargo xtask {part} --bless` and look at what changed"));
        } else {
            suite.pass(name);
        }
    }
}

fn row(name: &str, cases: &[(String, Outcome)]) -> Program {
    let failed: Vec<&str> =
        cases.iter().filter(|(_, o)| matches!(o, Outcome::Failed(_))).map(|(case, _)| case.as_str()).collect();
    let skipped = cases.iter().find_map(|(_, o)| if let Outcome::Skipped(why) = o { Some(why.as_str()) } else { None });
    let passed = cases.iter().any(|(_, o)| *o == Outcome::Passed);
    let result = match (failed.as_slice(), skipped) {
        ([], None) => "passed".to_owned(),
        ([], Some(why)) if passed => format!("passed; some cases skipped: {why}"),
        ([], Some(why)) => format!("skipped: {why}"),
        (failed, _) => format!("**failed**: {}", failed.join("; ")),
    };
    let package = PACKAGES.iter().find(|(prefix, _)| name.starts_with(prefix)).map_or("?", |(_, package)| *package);
    Program { name: name.to_owned(), package: package.to_owned(), version: pyverbs::package_version(package), result }
}

/// Run the cases that are wanted, one after the other, as some programs have no option for a port; those first that may
/// run beside others.
pub fn run_client_servers(
    suite: &mut Suite,
    options: &Options,
    sandbox: &Sandbox,
    record: &mut Record,
    cases: Vec<ClientServer>,
) {
    let wanted = cases.into_iter().filter(|case| options.wants(&case.name));
    let patient = wanted.map(|case| ClientServer { limit: case.limit * options.patience(), ..case });
    let (beside, alone): (Vec<ClientServer>, Vec<ClientServer>) = patient.partition(|case| case.beside);
    let before = suite.cases.len();
    for (cases, at_once) in [(beside, at_once()), (alone, 1)] {
        run_beside(suite, &cases, at_once, |case| {
            let (outcome, log) = case.run(sandbox);
            (case.name.clone(), outcome, log)
        });
    }
    suite.cases[before..].iter().for_each(|case| record.add(&case.name, &case.outcome));
}

/// `cargo xtask programs`.
pub fn programs(suite: &mut Suite, options: &Options) {
    let sandbox = match Sandbox::new("programs", &[]) {
        Ok(sandbox) => sandbox,
        Err(e) => return suite.fail("preparation", e),
    };
    let mut record = Record::default();
    let mut cases = perftest(options.quick);
    cases.extend(qperf(options.quick));
    cases.extend(fio());
    cases.extend(libfabric());
    cases.extend(ucx());
    run_client_servers(suite, options, &sandbox, &mut record, cases);
    mpi(suite, options, &sandbox, &mut record);
    record.publish(suite, options, "programs");
}

/// Every program with `-R`, polling and by events.
fn perftest(quick: bool) -> Vec<ClientServer> {
    let mut lines: Vec<String> = Vec::new();
    for program in ["send", "write", "read", "atomic"] {
        for kind in ["lat", "bw"] {
            lines.push(format!("ib_{program}_{kind} -n 500"));
            // A WRITE gives no completion at the other side, so its programs have no -e.
            if program != "write" && !quick {
                lines.push(format!("ib_{program}_{kind} -n 500 -e"));
            }
        }
    }
    lines.extend(
        ["ib_send_bw -n 500 -c UD", "ib_send_lat -n 500 -c UD -e", "ib_write_bw -n 500 -q 4"].map(String::from),
    );
    if !quick {
        let more = [
            "ib_send_bw -n 500 -q 4 --use-srq",
            "ib_read_bw -n 500 -q 4 -b",
            "ib_write_bw -n 500 -z",
            "ib_send_bw -a -n 100",
        ];
        lines.extend(more.map(String::from));
    }
    let mut cases: Vec<ClientServer> =
        lines.iter().enumerate().map(|(n, line)| perftest_case(line, n, "127.0.0.1")).collect();
    // This version of perftest has no IPv6.
    for (n, address) in addresses().iter().enumerate().skip(1).filter(|(_, a)| !a.contains(':')) {
        cases.push(perftest_case("ib_send_bw -n 500", 100 + n, address));
    }
    cases
}

fn perftest_case(line: &str, number: usize, address: &str) -> ClientServer {
    let port = 18600 + u16::try_from(number).unwrap_or(0);
    let server = format!("{line} -R -F -p {port}");
    let mut case =
        ClientServer::new(format!("{line} -R {address}"), &server, format!("{server} {address}"), Ready::Rdma(port));
    case.check = |_, client| figures(client);
    case
}

/// Check for a row of numbers behind the heading.
fn figures(done: &Finished) -> Result<(), String> {
    let numbers = |line: &str| line.split_whitespace().filter(|word| word.parse::<f64>().is_ok()).count() >= 4;
    let found = done.stdout.lines().skip_while(|line| !line.trim_start().starts_with("#bytes")).any(numbers);
    if found { Ok(()) } else { Err("no figures".to_owned()) }
}

/// The cases of qperf: tests that can use the connection manager, with it and without; those of UC and UD only without.
/// There qperf gives no global route, which RoCE demands (checked on Linux's rxe), so it needs a port of InfiniBand.
fn qperf(quick: bool) -> Vec<ClientServer> {
    let rc = [
        "rc_lat",
        "rc_bw",
        "rc_bi_bw",
        "rc_rdma_read_lat",
        "rc_rdma_read_bw",
        "rc_rdma_write_lat",
        "rc_rdma_write_bw",
        "rc_rdma_write_poll_lat",
        "rc_compare_swap_mr",
        "rc_fetch_add_mr",
        "ver_rc_compare_swap",
        "ver_rc_fetch_add",
    ];
    let others = [
        "uc_lat",
        "uc_bw",
        "uc_bi_bw",
        "uc_rdma_write_lat",
        "uc_rdma_write_bw",
        "uc_rdma_write_poll_lat",
        "ud_lat",
        "ud_bw",
        "ud_bi_bw",
    ];
    let keep = |test: &&&str| !quick || test.ends_with("_lat") || test.starts_with("ver");
    let with = rc.iter().filter(keep).map(|test| format!("-cm 1 {test}"));
    let without = rc.iter().chain(&others).filter(keep).map(|test| (*test).to_owned());
    with.chain(without)
        .zip(19600u16..)
        .map(|(test, port)| {
            // The control connection is TCP; each test has a port of its own, because the connection lingers.
            let words: Vec<&str> = test.split(' ').collect();
            let (name, flags) = words.split_last().unwrap_or((&"", &[]));
            let infiniband = flags.is_empty();
            let title = if infiniband { format!("qperf {test}, InfiniBand") } else { format!("qperf {test}") };
            let client = format!("qperf -lp {port} -t 1 {} 127.0.0.1 {name}", flags.join(" "));
            let mut case = ClientServer::new(title, format!("qperf -lp {port}"), client, Ready::Tcp(port));
            case.stays = true;
            case.beside = true;
            if infiniband {
                case.environment = &[INFINIBAND];
            }
            case.check = |_, client| {
                let found = client.stdout.lines().any(|line| line.contains('=') && !line.contains("= 0 "));
                if found { Ok(()) } else { Err(format!("no figures: {}", client.stderr.trim())) }
            };
            case
        })
        .collect()
}

/// The verbs of fio's engine. The client writes, whatever the verb; the blocks of SENDs are checked where they arrive.
/// The engine asks for no RNR retries (it leaves `rnr_retry_count` 0), so there are receives for all of them from the
/// start.
fn fio() -> Vec<ClientServer> {
    const PORT: u16 = 19921;
    let common = format!("fio --name=x --ioengine=rdma --port={PORT} --bs=64k --size=4m --iodepth=64 --thread");
    ["write", "read", "send"]
        .into_iter()
        .map(|verb| {
            let check = if verb == "send" { "--verify=crc32c" } else { "" };
            let server = format!("{common} --rw=read {check}");
            let client = format!("{common} --hostname=127.0.0.1 --verb={verb} --rw=write {check} --do_verify=0");
            let mut case = ClientServer::new(format!("fio {verb}"), server, client, Ready::Rdma(PORT));
            case.check = |server, client| {
                let bad = [server, client].into_iter().find(|done| !done.stdout.contains("err= 0"));
                bad.map_or(Ok(()), |done| Err(format!("no `err= 0`: {}", done.verdict())))
            };
            case
        })
        .collect()
}

fn libfabric() -> Vec<ClientServer> {
    const PORT: u16 = 19931;
    ["msg", "rdm"]
        .into_iter()
        .map(|kind| {
            let line = format!("fi_pingpong -p verbs -d {DEVICE} -e {kind} -c -I 100");
            let mut case = ClientServer::new(
                format!("fi_pingpong -e {kind}"),
                format!("{line} -B {PORT}"),
                format!("{line} -P {PORT} 127.0.0.1"),
                Ready::Tcp(PORT),
            );
            case.check = |_, client| {
                if client.stdout.contains("MB/sec") { Ok(()) } else { Err("no figures".to_owned()) }
            };
            case
        })
        .collect()
}

const UCX_RC: &[(&str, &str)] =
    &[("UCX_NET_DEVICES", "softrnic0:1"), ("UCX_TLS", "rc_v,ud_v,self"), ("UCX_LOG_LEVEL", "info")];
const UCX_UD: &[(&str, &str)] =
    &[("UCX_NET_DEVICES", "softrnic0:1"), ("UCX_TLS", "ud_v,self"), ("UCX_LOG_LEVEL", "info")];

fn ucx() -> Vec<ClientServer> {
    const PORT: u16 = 19941;
    let mut cases = Vec::new();
    for (transport, environment) in [("rc_v", UCX_RC), ("ud_v", UCX_UD)] {
        for test in [
            "tag_lat -s 8 -n 2000",
            "tag_bw -s 1000000 -n 100",
            "ucp_put_lat -s 4096 -n 1000",
            "ucp_get -s 100000 -n 100",
            "ucp_fadd -s 8 -n 500",
            "am_bw -s 4096 -n 1000",
        ] {
            let test = test.replace("am_bw", "ucp_am_bw");
            let mut case = ClientServer::new(
                format!("ucx_perftest {transport} {test}"),
                format!("ucx_perftest -p {PORT}"),
                format!("ucx_perftest -p {PORT} -t {test} -w 10 -f 127.0.0.1"),
                Ready::Tcp(PORT),
            );
            case.environment = environment;
            case.check = |_, client| on_device(client);
            cases.push(case);
        }
    }
    cases
}

/// Check in UCX's output that each endpoint runs over the device.
fn on_device(done: &Finished) -> Result<(), String> {
    let all = format!("{}{}", done.stdout, done.stderr);
    if all.contains("verbs/softrnic0:1") { Ok(()) } else { Err("UCX does not say that it uses softrnic0:1".to_owned()) }
}

/// Run four ranks of Open MPI over UCX over the device; their data are checked.
fn mpi(suite: &mut Suite, options: &Options, sandbox: &Sandbox, record: &mut Record) {
    if !options.wants("mpirun alltoall, 4 ranks") {
        return;
    }
    let program = match compile(sandbox, "mpicc", "mpi", "alltoall", &[]) {
        Ok(program) => program,
        Err(e) => return suite.fail("mpirun", e),
    };
    let args = [
        "--oversubscribe",
        "-n",
        "4",
        "--mca",
        "pml",
        "ucx",
        "--mca",
        "osc",
        "ucx",
        "--mca",
        "btl",
        "^openib,ofi",
        &program,
    ];
    let name = "mpirun alltoall, 4 ranks";
    let mut run = sandbox.program("mpirun", "mpirun", &args);
    for (key, value) in UCX_RC {
        run = run.env(key, value);
    }
    match run.run(Duration::from_secs(180)) {
        Ok(done) => {
            let right = if done.stdout.contains("all right: 4 ranks") { on_device(&done) } else { Err(done.verdict()) };
            let outcome = match right {
                _ if !done.ok() => Outcome::Failed(done.verdict()),
                Ok(()) => Outcome::Passed,
                Err(why) => Outcome::Failed(why),
            };
            record.add(name, &outcome);
            suite.push(name, outcome, Some(done.log));
        }
        Err(e) => suite.fail(name, e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let all = [perftest(false), qperf(false), fio(), libfabric(), ucx()];
        let mut names: Vec<String> = all.into_iter().flatten().map(|case| case.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(names.iter().all(|name| PACKAGES.iter().any(|(prefix, _)| name.starts_with(prefix))));
    }
}
