//! The connection manager: the table of `interop/rdmacm`, its cycles and kills, and the programs that come with
//! librdmacm.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::report::{Outcome, Suite};
use crate::run::Program;
use crate::{Options, logs, root, target_dir};

use super::client_server::{ClientServer, Ready};
use super::programs::{Record, run_client_servers};
use super::sandbox::{Sandbox, copy};

/// Compile every C file of a folder of `interop` into one program, and copy it to where the user can run it.
///
/// # Errors
/// The compiler's first complaint.
pub fn compile(
    sandbox: &Sandbox,
    compiler: &str,
    folder: &str,
    name: &str,
    libraries: &[&str],
) -> Result<String, String> {
    let sources = root().join("interop").join(folder);
    let built = target_dir().join("interop/c");
    fs::create_dir_all(&built).map_err(|e| format!("{}: {e}", built.display()))?;
    let binary = built.join(name);
    let entries = fs::read_dir(&sources).map_err(|e| format!("{}: {e}", sources.display()))?;
    let mut files: Vec<_> =
        entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "c")).collect();
    files.sort();
    let done = Program::new(compiler, logs().join("c").join(format!("{name}.{compiler}")))
        .args(["-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread"])
        .args(files)
        .args([Path::new("-o"), &binary])
        .args(libraries)
        .run(Duration::from_secs(120))
        .map_err(|e| e.to_string())?;
    if !done.ok() {
        return Err(format!("{folder} does not compile: {}", done.verdict()));
    }
    let here = sandbox.dir().join(name);
    copy(&binary, &here)?;
    Ok(here.display().to_string())
}

/// The addresses that programs are run over: loopback, and of an interface that is up the first of each kind. The
/// machine's routing tables show which ones there are.
pub fn addresses() -> Vec<String> {
    let mut found = vec!["127.0.0.1".to_owned(), "::1".to_owned()];
    let out = Command::new("ip").args(["-o", "addr", "show", "up"]).output();
    let text = out.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    let mut have = [false; 3];
    for line in text.lines() {
        // NUMBER: INTERFACE inet|inet6 ADDRESS/PREFIX ...
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, interface, _, address, ..] = words.as_slice() else { continue };
        let address = address.split('/').next().unwrap_or_default();
        let Ok(ip) = address.parse::<IpAddr>() else { continue };
        let (kind, text) = match ip {
            ip if ip.is_loopback() => continue,
            IpAddr::V4(_) => (0, address.to_owned()),
            IpAddr::V6(v6) if is_link_local(v6) => (2, format!("{address}%{interface}")),
            IpAddr::V6(_) => (1, address.to_owned()),
        };
        if !have[kind] {
            have[kind] = true;
            found.push(text);
        }
    }
    found
}

fn is_link_local(ip: Ipv6Addr) -> bool {
    ip.segments()[0] & 0xffc0 == 0xfe80
}

/// `cargo xtask rdmacm`.
pub fn rdmacm(suite: &mut Suite, options: &Options) {
    let sandbox = match Sandbox::new("rdmacm", &[]) {
        Ok(sandbox) => sandbox,
        Err(e) => return suite.fail("preparation", e),
    };
    table(suite, options, &sandbox);
    cycles(suite, options, &sandbox);
    let mut record = Record::default();
    run_client_servers(suite, options, &sandbox, &mut record, cases(options.quick));
    record.publish(suite, options, "rdmacm");
}

/// Run some of it, on a busy machine.
pub fn busy_sample(suite: &mut Suite, options: &Options) {
    match Sandbox::new("rdmacm", &[]) {
        Ok(sandbox) => {
            cycles(suite, options, &sandbox);
            run_client_servers(suite, options, &sandbox, &mut Record::default(), some());
        }
        Err(e) => suite.fail("preparation", e),
    }
}

/// Run the table-driven test, which prints one line per case.
fn table(suite: &mut Suite, options: &Options, sandbox: &Sandbox) {
    let program = match compile(sandbox, "gcc", "rdmacm", "cmtest", &["-lrdmacm", "-libverbs"]) {
        Ok(program) => program,
        Err(e) => return suite.fail("cmtest", e),
    };
    let limit = Duration::from_secs(600);
    let done = match sandbox
        .program("cmtest", &program, &[] as &[&str])
        .env("CMTEST_STACKS", "1")
        .env("CMTEST_TIMES", "1")
        .run(limit)
    {
        Ok(done) => done,
        Err(e) => return suite.fail("cmtest", e.to_string()),
    };
    let before = suite.cases.len();
    let mut lines = done.stdout.lines().peekable();
    while let Some(line) = lines.next() {
        let (outcome, rest) = if let Some(rest) = line.strip_prefix("ok ") {
            (Outcome::Passed, rest)
        } else if let Some(rest) = line.strip_prefix("not ok ") {
            (Outcome::Failed(rest.split_once(": ").map_or("", |(_, why)| why).to_owned()), rest)
        } else if let Some(rest) = line.strip_prefix("skip ") {
            (Outcome::Skipped(rest.split_once(": ").map_or("", |(_, why)| why).to_owned()), rest)
        } else {
            continue;
        };
        // The address behind the `@` may have colons, but no space.
        let name = rest.split(' ').next().unwrap_or_default().trim_end_matches(':');
        // `CMTEST_TIMES` has a line behind each case: `# 12 ms`.
        let time = lines.peek().and_then(|line| line.strip_prefix("# ")?.strip_suffix(" ms")?.parse().ok());
        let took = Duration::from_millis(time.unwrap_or(0));
        if options.wants(name) {
            suite.push_timed(name, outcome, Some(done.log.clone()), took);
        }
    }
    if suite.cases.len() == before && options.filter.is_none() {
        suite.fail("cmtest", done.verdict());
    }
}

/// Connections that come and go, and peers that are killed at random moments. `SOFTRNIC_CYCLES` and
/// `SOFTRNIC_CYCLE_KILLS` ask for more, `SOFTRNIC_CYCLE_SEED` repeats a failure.
fn cycles(suite: &mut Suite, options: &Options, sandbox: &Sandbox) {
    if !options.wants("cycles") {
        return;
    }
    let program = match compile(sandbox, "gcc", "rdmacm-cycles", "cycles", &["-lrdmacm", "-libverbs"]) {
        Ok(program) => program,
        Err(e) => return suite.fail("cycles", e),
    };
    let number = |key: &str, short: &str| std::env::var(key).unwrap_or_else(|_| short.to_owned());
    let cycles = number("SOFTRNIC_CYCLES", if options.quick { "1000" } else { "10000" });
    let kills = number("SOFTRNIC_CYCLE_KILLS", if options.quick { "40" } else { "200" });
    let seed = number("SOFTRNIC_CYCLE_SEED", "1");
    for (what, count) in [("connect", &cycles), ("kill", &kills)] {
        let done = sandbox.program(&format!("cycles-{what}"), &program, &[what, count, &seed]);
        match done.run(Duration::from_secs(1800)) {
            Ok(done) => {
                let outcome = if done.ok() { Outcome::Passed } else { Outcome::Failed(done.verdict()) };
                if done.ok() {
                    println!("   cycles {what}: {}", done.stdout.lines().last().unwrap_or_default());
                }
                suite.push(format!("cycles {what}"), outcome, Some(done.log));
            }
            Err(e) => suite.fail(format!("cycles {what}"), e.to_string()),
        }
    }
}

/// The first of the ports that no other suite uses; programs without an option for the port use 7471 or 7174.
const PORT: u16 = 17471;

fn cases(quick: bool) -> Vec<ClientServer> {
    let mut cases = Vec::new();
    for address in addresses() {
        let v6 = address.contains(':');
        cases.extend(rping(&address, quick));
        cases.extend(ucmatose(&address, v6, quick));
        cases.extend(datagrams(&address, quick));
        cases.push(client_server(
            &format!("cmtime {address}"),
            &format!("cmtime -p {PORT} -b {address} -c 100"),
            &format!("cmtime -p {PORT} -s {address} -c 100"),
            PORT,
            true,
        ));
        // These programs have no option for the address family; their servers bind the first address of getaddrinfo.
        cases.push(client_server(
            &format!("rdma_client {address}"),
            &format!("rdma_server -s {address} -p {PORT}"),
            &format!("rdma_client -s {address} -p {PORT}"),
            PORT,
            false,
        ));
    }
    // The server has no option for the address, and takes the first wildcard of getaddrinfo: IPv4's.
    for address in addresses().iter().filter(|address| !address.contains(':')) {
        for kind in ["r", "x"] {
            cases.push(client_server(
                &format!("rdma_xclient -c {kind} {address}"),
                &format!("rdma_xserver -p {PORT} -c {kind}"),
                &format!("rdma_xclient -s {address} -p {PORT} -c {kind}"),
                PORT,
                false,
            ));
        }
    }
    cases
}

/// The first case of every program.
pub fn some() -> Vec<ClientServer> {
    let mut first = std::collections::BTreeMap::new();
    for case in cases(true) {
        first.entry(case.name.split(' ').next().unwrap_or_default().to_owned()).or_insert(case);
    }
    first.into_values().collect()
}

fn client_server(name: &str, server: &str, client: &str, port: u16, stays: bool) -> ClientServer {
    ClientServer { stays, ..ClientServer::new(name, server, client, Ready::Rdma(port)) }
}

fn rping(address: &str, quick: bool) -> Vec<ClientServer> {
    let mut cases = Vec::new();
    let mut options = vec!["-C 20 -V -v", "-C 20 -V -S 65535", "-C 10 -V -q -S 4096"];
    if address == "127.0.0.1" && !quick {
        options.extend(["-C 5 -V -d", "-C 5 -S 23", "-C 1", "-C 200 -V -S 1000"]);
    }
    for option in options {
        cases.push(client_server(
            &format!("rping {option} {address}"),
            &format!("rping -s -a {address} -p {PORT} {option}"),
            &format!("rping -c -a {address} -p {PORT} {option}"),
            PORT,
            false,
        ));
    }
    // One case has a source address; one has one server for several clients at once.
    cases.push(client_server(
        &format!("rping -I {address}"),
        &format!("rping -s -a {address} -p {PORT} -C 10"),
        &format!("rping -c -a {address} -I {address} -p {PORT} -C 10"),
        PORT,
        false,
    ));
    let mut persistent = client_server(
        &format!("rping -P {address}, 8 clients"),
        &format!("rping -s -P -a {address} -p {PORT}"),
        &format!("rping -c -a {address} -p {PORT} -C 50 -V -S 2000"),
        PORT,
        true,
    );
    persistent.clients = 8;
    cases.push(persistent);
    cases
}

/// The port of ucmatose, which has no option for it.
const UCMATOSE_PORT: u16 = 7471;

fn ucmatose(address: &str, v6: bool, quick: bool) -> Vec<ClientServer> {
    let family = if v6 { "-f ip6" } else { "-f ip" };
    let mut options = vec!["", "-c 200 -C 2", "-c 50 -m -C 5 -S 1000", "-c 10 -C 20 -S 65536 -t 8 -a 16"];
    if address == "127.0.0.1" && !quick {
        options.extend(["-P ib", "-c 500 -m -C 1", "-C 0"]);
    }
    options
        .into_iter()
        .map(|option| {
            let bind = format!("ucmatose {family} -b {address} {option}");
            let mut case = client_server(
                &format!("ucmatose {option} {address}").replace("  ", " "),
                &bind,
                &format!("ucmatose {family} -s {address} {option}"),
                UCMATOSE_PORT,
                false,
            );
            case.check =
                |server, client| says(server, "return status 0").and_then(|()| says(client, "return status 0"));
            case
        })
        .collect()
}

fn says(done: &crate::run::Finished, what: &str) -> Result<(), String> {
    if done.stdout.contains(what) { Ok(()) } else { Err(format!("the output has no `{what}`")) }
}

/// udaddy, and mckey where there are groups: not on loopback addresses.
fn datagrams(address: &str, quick: bool) -> Vec<ClientServer> {
    const UDADDY_PORT: u16 = 7174;
    let mut cases = Vec::new();
    let options: &[&str] = if quick { &[""] } else { &["", "-c 20 -C 10 -S 1000 -t 8"] };
    for option in options {
        let mut case = client_server(
            &format!("udaddy {option} {address}").replace("  ", " "),
            &format!("udaddy -b {address} {option}"),
            &format!("udaddy -s {address} {option}"),
            UDADDY_PORT,
            false,
        );
        case.check = |server, client| says(server, "return status 0").and_then(|()| says(client, "return status 0"));
        cases.push(case);
    }
    if address == "127.0.0.1" || address == "::1" {
        return cases;
    }
    // Each case has a group of its own, so they may run side by side. The sender sleeps for three seconds first.
    let place = addresses().iter().position(|other| other == address).unwrap_or(0);
    for (n, option) in ["", "-c 3 -C 20 -S 500"].into_iter().enumerate() {
        let number = 11 + 2 * place + n;
        let group = if address.contains(':') { format!("ff0e::47{number}") } else { format!("239.47.11.{number}") };
        let mut case = client_server(
            &format!("mckey {option} {address}").replace("  ", " "),
            &format!("mckey -m {group} -b {address} {option}"),
            &format!("mckey -m {group} -b {address} -s {option}"),
            0,
            false,
        );
        case.beside = true;
        case.ready = Ready::Settled;
        case.check = |server, client| says(server, "return status 0").and_then(|()| says(client, "return status 0"));
        cases.push(case);
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_addresses_begin_with_loopback() {
        assert_eq!(addresses()[..2], ["127.0.0.1", "::1"]);
        let mut names: Vec<String> = cases(false).into_iter().map(|case| case.name).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
