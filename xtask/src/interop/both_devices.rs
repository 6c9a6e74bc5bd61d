//! `softrnic run --device all`: a process with both devices, and peers on its own host and on another one, which is a
//! network namespace.

use std::fs;
use std::time::{Duration, Instant};

use crate::report::{Outcome, Suite};
use crate::run::{Program, Running};
use crate::{Options, logs, root, target_dir};

use super::net::{Ip, Net};
use super::sandbox::{Sandbox, copy};

/// The limit of a case, which takes a second.
const LIMIT: Duration = Duration::from_secs(100);

/// The port of the test program.
const PORT: u16 = 7300;

/// A server with both devices, and a client: on the server's host or on the other one, with these devices. `@` is the
/// server's address.
struct Case {
    server: &'static str,
    client: &'static str,
    port: u16,
    host: usize,
    devices: &'static str,
    wants: &'static str,
}

#[rustfmt::skip]
const CASES: &[Case] = &[
    Case { server: "rping -s -a @ -p 7174 -v", client: "rping -c -a @ -p 7174 -V -v -C 5", port: 7174, host: 1, devices: "all", wants: "ping data: rdma-ping-4" },
    Case { server: "rping -s -p 7174 -v", client: "rping -c -a @ -p 7174 -V -v -C 5", port: 7174, host: 1, devices: "iwarp", wants: "ping data: rdma-ping-4" },
    Case { server: "rping -s -a @ -p 7174 -v", client: "rping -c -a @ -p 7174 -V -v -C 5", port: 7174, host: 0, devices: "all", wants: "ping data: rdma-ping-4" },
    Case { server: "rping -s -a @ -p 7174 -v", client: "rping -c -a @ -p 7174 -V -v -C 5", port: 7174, host: 0, devices: "roce", wants: "ping data: rdma-ping-4" },
    Case { server: "ib_send_bw -R -d softiw0 -s 65536 -n 50 -F", client: "ib_send_bw -R -d softiw0 -s 65536 -n 50 -F @", port: 18515, host: 1, devices: "all", wants: " 65536 " },
    Case { server: "ibv_rc_pingpong -d softrnic0 -g 0", client: "ibv_rc_pingpong -d softrnic0 -g 0 @", port: 18515, host: 0, devices: "all", wants: "1000 iters" },
];

/// The cases of a pair of hosts.
pub fn cases(suite: &mut Suite, options: &Options, sandbox: &Sandbox, net: &Net) {
    let name = "both devices: one listener, a client on its host and one on another host";
    if options.wants(name) {
        let outcome = one_listener(sandbox, net);
        suite.push(name, outcome.map_or_else(Outcome::Failed, |()| Outcome::Passed), None);
    }
    for case in CASES {
        let address = net.address(0, Ip::V4);
        let place = if case.host == 0 { "this host" } else { "another host" };
        let name = format!("both devices: {}, {place}, {}", case.client.replace('@', address), case.devices);
        if !options.wants(&name) {
            continue;
        }
        let outcome = pair(sandbox, net, case);
        suite.push(name, outcome.map_or_else(Outcome::Failed, |()| Outcome::Passed), None);
    }
}

fn program(sandbox: &Sandbox, net: &Net, host: usize, log: &str, devices: &str, line: &str) -> Program {
    let line = line.replace('@', net.address(0, Ip::V4));
    sandbox.elsewhere(&net.words(host), &format!("both-{log}"), &["--device", devices], &line)
}

fn pair(sandbox: &Sandbox, net: &Net, case: &Case) -> Result<(), String> {
    let name = case.client.split(' ').next().unwrap_or_default();
    let log = |side: &str| format!("{name}-{}-{}.{side}", case.host, case.devices);
    let server = program(sandbox, net, 0, &log("server"), "all", case.server);
    let client = program(sandbox, net, case.host, &log("client"), case.devices, case.client);
    let (server, client) = net.run(server, case.port, client, LIMIT)?;
    if !client.stdout.contains(case.wants) {
        return Err(format!("no `{}`: {}", case.wants, client.verdict()));
    }
    // rping counts the end that the client makes as an error in some versions.
    if server.status.is_some() { Ok(()) } else { Err(format!("server: {}", server.verdict())) }
}

/// The two requests are of two devices, and both connections are there at the same time.
fn one_listener(sandbox: &Sandbox, net: &Net) -> Result<(), String> {
    let test = compile(sandbox)?;
    let connect = format!("{test} connect @ {PORT}");
    let listen = format!("{test} listen @ {PORT} 2");
    let started = Instant::now();
    let mut server = program(sandbox, net, 0, "server", "all", &listen).spawn().map_err(|e| e.to_string())?;
    while !net.listens(0, PORT) {
        if server.ended().map_err(|e| e.to_string())? || started.elapsed() > LIMIT {
            return Err(format!("server: {}", ended(server)?.1));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let near = program(sandbox, net, 0, "near", "all", &connect).spawn().map_err(|e| e.to_string())?;
    let far = program(sandbox, net, 1, "far", "all", &connect).spawn().map_err(|e| e.to_string())?;
    let ends = [("far client", far), ("near client", near), ("server", server)].map(|(who, one)| (who, ended(one)));
    let mut said = Vec::new();
    for (who, end) in ends {
        let (out, verdict) = end?;
        let out = out.ok_or(format!("{who}: {verdict}"))?;
        said.push(out);
    }
    let wanted = [
        (0, "connected on softiw0"),
        (1, "connected on softrnic0"),
        (2, "listening on softrnic0"),
        (2, "request on softiw0"),
        (2, "request on softrnic0"),
    ];
    match wanted.iter().find(|(who, line)| !said.get(*who).is_some_and(|said| said.lines().any(|l| l == *line))) {
        Some((_, line)) => Err(format!("no `{line}` in {said:?}")),
        None => Ok(()),
    }
}

/// Waits for the end of a program. Gives its output, if it has ended well, and how it has ended.
fn ended(mut program: Running) -> Result<(Option<String>, String), String> {
    program.wait(Instant::now() + LIMIT).map_err(|e| e.to_string())?;
    let done = program.finish().map_err(|e| e.to_string())?;
    let verdict = done.verdict();
    Ok((done.ok().then_some(done.stdout), verdict))
}

/// Builds the program, and brings it to the sandbox.
fn compile(sandbox: &Sandbox) -> Result<String, String> {
    let folder = target_dir().join("interop/iwarp");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let made = folder.join("devices");
    let source = root().join("crates/abi/tests/c/devices.c");
    let done = Program::new("gcc", logs().join("iwarp").join("devices.gcc"))
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g"])
        .args([source.as_path(), "-o".as_ref(), &made])
        .args(["-libverbs", "-lrdmacm"])
        .run(LIMIT)
        .map_err(|e| e.to_string())?;
    if !done.ok() {
        return Err(format!("does not compile: {}", done.verdict()));
    }
    let binary = sandbox.dir().join("devices");
    copy(&made, &binary)?;
    Ok(binary.display().to_string())
}
