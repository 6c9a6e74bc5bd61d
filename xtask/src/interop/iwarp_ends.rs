//! How connections of softiw0 end, and how they do not come about: a program of rdma_cm says which event and which
//! statuses it gets when its peer is killed or stopped, when a link is cut, and under faults. The table of the section
//! "How connections end" in docs/connections.md has what is compared here.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::report::{Outcome, Suite};
use crate::run::{Finished, Program, Running};
use crate::{Options, logs};

use super::iwarp::wants;
use super::net::{Ip, Missing, Net, wait_for_line};
use super::rdmacm::compile;
use super::sandbox::Sandbox;

/// The limit of what ends in seconds.
const LIMIT: Duration = Duration::from_secs(90);

/// The port of the cases.
const PORT: u16 = 7500;

/// An address that the veth pair has no host for.
const NOBODY: &str = "10.77.0.9";

/// What happens to a connection.
enum Act {
    /// Nothing but the fault.
    Nothing,
    /// The process of a host gets this signal.
    Signal(usize, Signal),
    /// The server is stopped, the client reads its memory, and then the server is killed.
    StopReadKill,
    /// The server is stopped until the client has ended.
    StopUntilEnd,
    /// The server is stopped for a second and goes on; then the client ends the connection.
    StopAndGoOn,
    /// The server's side of the link is brought down, and up again when both have ended.
    Down,
    /// The link goes for ever.
    Delete,
}

struct Row {
    name: &'static str,
    mode: &'static str,
    /// Options of `softrnic run` for the client.
    fault: &'static str,
    /// `SOFTRNIC_TCP_TIMEOUT`; empty: not set.
    timeout: &'static str,
    act: Act,
    /// What the client says.
    client: &'static [&'static str],
}

const ENDED: &str = "RDMA_CM_EVENT_DISCONNECTED, status 0";
const FLUSHED: &str = "receives: 4 x Work Request Flushed Error";
const NONE_LEFT: &str = "0 left";
const PLAIN: &[&str] = &[ENDED, FLUSHED, NONE_LEFT];
const READ: &[&str] = &[ENDED, FLUSHED, "requests: 1 x Work Request Flushed Error", NONE_LEFT];
/// TCP has had no room: what waited for it is flushed.
const BUSY: &[&str] = &[ENDED, FLUSHED, " x Work Request Flushed Error\n0 left"];

#[rustfmt::skip]
const ROWS: &[Row] = &[
    Row { name: "the server is killed, idle", mode: "idle", fault: "", timeout: "", act: Act::Signal(0, Signal::KILL), client: PLAIN },
    Row { name: "the client is killed, idle", mode: "idle", fault: "", timeout: "", act: Act::Signal(1, Signal::KILL), client: PLAIN },
    Row { name: "the server is killed, busy", mode: "busy", fault: "", timeout: "", act: Act::Signal(0, Signal::KILL), client: PLAIN },
    Row { name: "the client is killed, busy", mode: "busy", fault: "", timeout: "", act: Act::Signal(1, Signal::KILL), client: PLAIN },
    Row { name: "the server is killed while it owes an answer", mode: "read", fault: "", timeout: "", act: Act::StopReadKill, client: READ },
    Row { name: "the client disconnects", mode: "busy", fault: "", timeout: "", act: Act::Signal(1, Signal::USR2), client: PLAIN },
    Row { name: "the server is stopped for a second", mode: "busy", fault: "", timeout: "", act: Act::StopAndGoOn, client: PLAIN },
    Row { name: "the server is stopped beyond the time", mode: "busy", fault: "", timeout: "2", act: Act::StopUntilEnd, client: BUSY },
    Row { name: "fault corrupt", mode: "busy", fault: "corrupt:n=30,op=write", timeout: "", act: Act::Nothing, client: PLAIN },
    Row { name: "fault reset", mode: "busy", fault: "reset:n=30,op=write", timeout: "", act: Act::Nothing, client: PLAIN },
    Row { name: "fault half-close", mode: "busy", fault: "half-close:n=30,op=write", timeout: "", act: Act::Nothing, client: PLAIN },
    Row { name: "fault qp-error", mode: "busy", fault: "qp-error:n=30,op=write", timeout: "", act: Act::Nothing, client: PLAIN },
    Row { name: "the link goes down, idle", mode: "idle", fault: "", timeout: "2", act: Act::Down, client: PLAIN },
    Row { name: "the link goes down, busy", mode: "busy", fault: "", timeout: "2", act: Act::Down, client: PLAIN },
    Row { name: "the link is deleted, busy", mode: "busy", fault: "", timeout: "2", act: Act::Delete, client: PLAIN },
];

/// Connections that do not come about, in many seconds.
pub struct Late {
    _net: Net,
    _mute: Running,
    cases: Vec<(&'static str, &'static str, Running)>,
}

/// Begin what takes many seconds, beside other cases.
pub fn begin(options: &Options, sandbox: &Sandbox, program: &str) -> Result<Option<Late>, String> {
    if !options.wants("ends: no answer") {
        return Ok(None);
    }
    let net = match Net::veth("late") {
        Ok(net) => net,
        Err(Missing::Forbidden(_)) => return Ok(None), // the other cases say so
        Err(Missing::Broken(why)) => return Err(why),
    };
    let text = |e: std::io::Error| e.to_string();
    let port = PORT.to_string();
    let (words, ours) = (net.words(1), net.address(0, Ip::V4));
    let mute = net.inside(0, "mute", &[program, "mute", ours, &port]).spawn().map_err(text)?;
    let begun = Instant::now();
    while !net.listens(0, PORT) {
        if begun.elapsed() > LIMIT {
            return Err("`ends mute` does not listen".to_owned());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // TCP packets to this address go to no host.
    let somewhere = ["neighbour", "add", NOBODY, "lladdr", "02:00:00:00:00:09", "dev", "veth0"];
    net.ip(1, &somewhere).map_err(|e| format!("{e:?}"))?;
    let connect = |log: &str, address: &str| {
        let line = format!("{program} connect {address} {PORT}");
        sandbox.elsewhere(&words, log, &["--device", "iwarp"], &line).spawn().map_err(text)
    };
    let cases = vec![
        ("no answer to the request: 10 s", "RDMA_CM_EVENT_UNREACHABLE, status -110", connect("ends-mute", ours)?),
        ("no answer of TCP: 20 s", "RDMA_CM_EVENT_UNREACHABLE, status -110", connect("ends-nobody", NOBODY)?),
    ];
    Ok(Some(Late { _net: net, _mute: mute, cases }))
}

impl Late {
    /// Wait for the ends.
    pub fn finish(self, suite: &mut Suite) {
        for (name, wanted, mut running) in self.cases {
            let outcome = running
                .wait(Instant::now() + LIMIT)
                .and_then(|_| running.finish())
                .map_err(|e| e.to_string())
                .and_then(|done| wants(&done.stdout, wanted));
            push(suite, name, outcome);
        }
    }
}

/// Compile `interop/iwarp-ends`.
pub fn program(sandbox: &Sandbox) -> Result<String, String> {
    compile(sandbox, "gcc", "iwarp-ends", "ends", &["-lrdmacm", "-libverbs"])
}

fn push(suite: &mut Suite, name: &str, outcome: Result<(), String>) {
    suite.push(format!("ends: {name}"), outcome.map_or_else(Outcome::Failed, |()| Outcome::Passed), None);
}

/// Run the cases, and peers that are killed again and again.
pub fn ends(suite: &mut Suite, options: &Options, sandbox: &Sandbox, program: &str) {
    let net = match Net::veth("ends") {
        Ok(net) => net,
        Err(Missing::Forbidden(why)) => return suite.skip("how connections end", why),
        Err(Missing::Broken(why)) => return suite.fail("how connections end", why),
    };
    kills(suite, options, sandbox, &net);
    for row in ROWS {
        if options.wants(&format!("ends: {}", row.name)) {
            push(suite, row.name, one(&net, sandbox, program, row));
        }
        if matches!(row.act, Act::Down) && row.mode == "idle" {
            cut(suite, options, sandbox, &net, program);
        }
    }
}

/// `interop/rdmacm-cycles`: what outlives peers that are killed has lost nothing. `SOFTRNIC_CYCLE_KILLS` asks for more.
fn kills(suite: &mut Suite, options: &Options, sandbox: &Sandbox, net: &Net) {
    if !options.wants("ends: cycles") {
        return;
    }
    let number = |key: &str, short: &str| std::env::var(key).unwrap_or_else(|_| short.to_owned());
    let (count, seed) = (number("SOFTRNIC_CYCLE_KILLS", "20"), number("SOFTRNIC_CYCLE_SEED", "1"));
    let outcome = compile(sandbox, "gcc", "rdmacm-cycles", "cycles", &["-lrdmacm", "-libverbs"]).and_then(|program| {
        for what in ["connect", "kill"] {
            let line = format!("{program} {what} {count} {seed} {}", net.address(0, Ip::V4));
            let done = sandbox
                .elsewhere(&net.words(0), &format!("cycles-{what}"), &["--device", "iwarp"], &line)
                .run(Duration::from_secs(600))
                .map_err(|e| e.to_string())?;
            if !done.ok() {
                return Err(format!("{what}: {}", done.verdict()));
            }
        }
        Ok(())
    });
    push(suite, "cycles, and peers that are killed", outcome);
}

fn signal(process: &Running, signal: Signal) {
    if let Some(pid) = i32::try_from(process.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Stops a process. Each of its threads stops by itself, some time after the signal was sent: until then it answers.
fn stop(process: &Running) -> Result<(), String> {
    signal(process, Signal::STOP);
    let begun = Instant::now();
    let is_stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // proc_pid_stat(5): the state is behind the name, which is in parentheses.
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['T', 't']))
    };
    let folder = format!("/proc/{}/task", process.id());
    while !std::fs::read_dir(&folder).map_err(|e| e.to_string())?.flatten().all(is_stopped) {
        if begun.elapsed() > LIMIT {
            return Err("the process does not stop".to_owned());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Waits for the end of a program that ends by itself.
fn ended(mut process: Running) -> Result<Finished, String> {
    process.wait(Instant::now() + LIMIT).map_err(|e| e.to_string())?;
    let done = process.finish().map_err(|e| e.to_string())?;
    if done.ok() { Ok(done) } else { Err(done.verdict()) }
}

fn one(net: &Net, sandbox: &Sandbox, program: &str, row: &Row) -> Result<(), String> {
    let address = net.address(0, Ip::V4);
    let file = format!("ends-{}", row.name.replace([' ', ','], "_"));
    let log = |side: &str| logs().join("iwarp").join(format!("{file}.{side}"));
    let start = |host: usize, side: &str, how: &str| -> Result<Running, String> {
        let mut options = vec!["--device", "iwarp"];
        if how == "connect" && !row.fault.is_empty() {
            options.extend(["--fault", row.fault]);
        }
        let line = format!("{program} {how} {address} {PORT} {}", row.mode);
        let mut made: Program = sandbox.elsewhere(&net.words(host), &format!("{file}.{side}"), &options, &line);
        if !row.timeout.is_empty() {
            made = made.env("SOFTRNIC_TCP_TIMEOUT", row.timeout);
        }
        made.spawn().map_err(|e| e.to_string())
    };
    let mut server = start(0, "server", "listen")?;
    let begun = Instant::now();
    while !net.listens(0, PORT) {
        if server.ended().map_err(|e| e.to_string())? || begun.elapsed() > LIMIT {
            return Err("the server does not listen".to_owned());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut client = start(1, "client", "connect")?;
    if !matches!(row.act, Act::Nothing) {
        wait_for_line(&mut server, &log("server"), "established")?;
        wait_for_line(&mut client, &log("client"), if row.mode == "busy" { "busy" } else { "established" })?;
    }
    let check = |done: &Finished, all: &[&str]| all.iter().try_for_each(|text| wants(&done.stdout, text));
    match row.act {
        Act::Signal(0, Signal::KILL) => {
            signal(&server, Signal::KILL);
            check(&ended(client)?, row.client)
        }
        Act::Signal(_, Signal::KILL) => {
            signal(&client, Signal::KILL);
            check(&ended(server)?, row.client)
        }
        Act::StopReadKill => {
            stop(&server)?;
            signal(&client, Signal::USR2);
            wait_for_line(&mut client, &log("client"), "posted")?;
            signal(&server, Signal::KILL);
            check(&ended(client)?, row.client)
        }
        Act::StopUntilEnd => {
            stop(&server)?;
            let done = ended(client);
            signal(&server, Signal::CONT);
            check(&done?, row.client)?;
            check(&ended(server)?, PLAIN)
        }
        Act::StopAndGoOn => {
            stop(&server)?;
            std::thread::sleep(Duration::from_secs(1));
            signal(&server, Signal::CONT);
            signal(&client, Signal::USR2);
            both(server, client, |done| check(done, row.client))
        }
        Act::Signal(_, one) => {
            signal(&client, one);
            both(server, client, |done| check(done, row.client))
        }
        Act::Nothing => both(server, client, |done| check(done, row.client)),
        Act::Down => {
            net.ip(0, &["link", "set", "veth0", "down"]).map_err(|e| format!("{e:?}"))?;
            let outcome = both(server, client, |done| check(done, row.client));
            up(net, program).and(outcome)
        }
        Act::Delete => {
            net.ip(0, &["link", "delete", "veth0"]).map_err(|e| format!("{e:?}"))?;
            both(server, client, |done| check(done, row.client))
        }
    }
}

/// Brings the link up, and waits until packets come through.
fn up(net: &Net, program: &str) -> Result<(), String> {
    net.ip(0, &["link", "set", "veth0", "up"]).map_err(|e| format!("{e:?}"))?;
    let port = PORT.to_string();
    let reach = net.inside(1, "reach", &[program, "reach", net.address(0, Ip::V4), &port]).run(LIMIT);
    reach.map_err(|e| e.to_string()).and_then(|done| if done.ok() { Ok(()) } else { Err(done.verdict()) })
}

/// The client says what `check` looks for, and the server that its connection has ended.
fn both(server: Running, client: Running, check: impl Fn(&Finished) -> Result<(), String>) -> Result<(), String> {
    let (client, server) = (ended(client), ended(server));
    check(&client.map_err(|why| format!("client: {why}"))?).map_err(|why| format!("client: {why}"))?;
    let server = server.map_err(|why| format!("server: {why}"))?;
    PLAIN.iter().try_for_each(|text| wants(&server.stdout, text)).map_err(|why| format!("server: {why}"))
}

/// Connections that are asked for while the link is down, which is up afterwards.
fn cut(suite: &mut Suite, options: &Options, sandbox: &Sandbox, net: &Net, program: &str) {
    let cases: [(&str, usize, &str); 2] = [
        ("connect over a link that the peer has cut", 1, "RDMA_CM_EVENT_CONNECT_ERROR, status -113"),
        ("connect without a way", 0, "rdma_resolve_addr: Network is unreachable"),
    ];
    if let Err(why) = net.ip(0, &["link", "set", "veth0", "down"]) {
        return suite.fail("the link goes down", format!("{why:?}"));
    }
    for (name, host, wanted) in cases {
        if options.wants(&format!("ends: {name}")) {
            let line = format!("{program} connect {} {PORT}", net.address(1 - host, Ip::V4));
            let log = format!("ends-{}", name.replace(' ', "_"));
            let outcome = sandbox
                .elsewhere(&net.words(host), &log, &["--device", "iwarp"], &line)
                .run(LIMIT)
                .map_err(|e| e.to_string())
                .and_then(|done| wants(&done.stdout, wanted));
            push(suite, name, outcome);
        }
    }
    if let Err(why) = up(net, program) {
        suite.fail("the link is up again", why);
    }
}
