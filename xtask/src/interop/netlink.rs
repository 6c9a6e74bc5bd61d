//! iproute2's `rdma`: the device, its port, and the objects of programs.

use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::report::Suite;
use crate::run::{Program, Running};

use super::net::{Missing, Net};
use super::sandbox::Sandbox;
use super::{DEVICE, GID, record};

const LIMIT: Duration = Duration::from_secs(40);

/// How long `rdma` may take while a process with the device is stopped.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where the cases run: in a network namespace of their own, so that they see no programs but theirs.
struct Place<'a> {
    sandbox: &'a Sandbox,
    /// None: on the host.
    net: Option<Net>,
}

impl Place<'_> {
    fn program(&self, log: &str, program: &str, args: &[&str]) -> Program {
        match &self.net {
            Some(net) => {
                let line = format!("{program} {}", args.join(" "));
                self.sandbox.elsewhere(&net.words(0), log, &[], &line)
            }
            None => self.sandbox.program(log, program, args),
        }
    }
}

/// Make the place. Where the system permits no namespace, the host is the place if `is_host_good`.
fn place<'a>(suite: &mut Suite, sandbox: &'a Sandbox, name: &str, is_host_good: bool) -> Option<Place<'a>> {
    match Net::veth(name) {
        Ok(net) => return Some(Place { sandbox, net: Some(net) }),
        Err(Missing::Forbidden(_)) if is_host_good => return Some(Place { sandbox, net: None }),
        Err(Missing::Forbidden(why)) => suite.skip(name, why),
        Err(Missing::Broken(why)) => suite.fail(name, why),
    }
    None
}

/// The cases of softrnic0 alone.
pub fn cases(suite: &mut Suite, sandbox: &Sandbox) {
    let Some(place) = &place(suite, sandbox, "rdma", true) else { return };
    let link = ["link", "show", "-j"];
    show(suite, place, &link, &[&format!("\"ifname\":\"{DEVICE}\""), "\"state\":\"ACTIVE\"", "\"netdev\""]);
    show(suite, place, &["dev", "show", DEVICE, "-d"], &["node_type ca", "node_guid", "MEM_WINDOW_TYPE_2B"]);
    show(suite, place, &["statistic", "show", "link", &format!("{DEVICE}/1")], &["sent_pkts"]);
    // The program has made its objects, and waits for a client.
    let args = ["-d", DEVICE, "-g", GID, "-p", "18799"];
    let mut server = match place.program("rdma-server", "ibv_rc_pingpong", &args).spawn() {
        Ok(server) => server,
        Err(e) => return suite.fail("ibv_rc_pingpong", e.to_string()),
    };
    if let Err(why) = wait_for_queue_pair(place, &mut server) {
        return suite.fail("ibv_rc_pingpong", why);
    }
    let comm = "comm ibv_rc_pingpong";
    show(suite, place, &["resource", "show", DEVICE], &["pd 1 cq 1 qp 1 cm_id 0 mr 1 ctx 1"]);
    show(suite, place, &["resource", "show", "qp"], &["type RC state INIT", comm]);
    show(suite, place, &["resource", "show", "cq"], &["cqe ", comm]);
    show(suite, place, &["resource", "show", "mr"], &["mrlen 4096", comm]);
    show(suite, place, &["resource", "show", "pd"], &["users 2", comm]);
    show(suite, place, &["resource", "show", "cm_id"], &[]);
    let group = i32::try_from(server.id()).ok().and_then(Pid::from_raw);
    if let Some(pid) = group.filter(|pid| kill_process(*pid, Signal::STOP).is_ok()) {
        let started = Instant::now();
        show(suite, place, &["resource", "show", "qp", "link", DEVICE], &[]);
        let took = started.elapsed();
        let _ = kill_process(pid, Signal::CONT);
        match took < PATIENCE {
            true => suite.pass("rdma does not wait for a process that is stopped"),
            false => suite.fail("rdma does not wait for a process that is stopped", format!("{took:?}")),
        }
    }
    let _ = server.stop();
}

/// The cases of a sandbox with both devices: each lists its own objects.
pub fn both(suite: &mut Suite, sandbox: &Sandbox) {
    let Some(place) = &place(suite, sandbox, "rdma-both", false) else { return };
    let devices: &[&str] = &["0: softrnic0: node_type ca", "1: softiw0: node_type rnic"];
    show(suite, place, &["dev", "show"], devices);
    show(suite, place, &["link", "show"], &["link softrnic0/1 state ACTIVE", "link softiw0/1 state ACTIVE"]);
    // The server has a context, a domain, a queue and a listener on the first device, and none on the second.
    let args = ["-d", DEVICE, "-g", GID, "-p", "18799"];
    let mut server = match place.program("rdma-both-server", "ibv_rc_pingpong", &args).spawn() {
        Ok(server) => server,
        Err(e) => return suite.fail("ibv_rc_pingpong", e.to_string()),
    };
    if let Err(why) = wait_for_queue_pair(place, &mut server) {
        return suite.fail("ibv_rc_pingpong", why);
    }
    let first = format!("0: {DEVICE}: pd 1 cq 1 qp 1 cm_id 0 mr 1 ctx 1");
    show(suite, place, &["resource", "show"], &[&first, "1: softiw0: pd 0 cq 0 qp 0 cm_id 0 mr 0 ctx 0"]);
    show(suite, place, &["resource", "show", "qp", "link", &format!("{DEVICE}/1")], &["comm ibv_rc_pingpong"]);
    let _ = server.stop();
}

/// Check that the output of `rdma ARGS` has all of this.
fn show(suite: &mut Suite, place: &Place, args: &[&str], want: &[&str]) {
    let name = format!("rdma {}", args.join(" "));
    let done = place.program(&name.replace([' ', '/'], ""), "rdma", args).run(LIMIT);
    record(suite, &name, done, |out| match want.iter().find(|text| !out.contains(**text)) {
        Some(text) => (false, format!("the output has no `{text}`")),
        None => (true, String::new()),
    });
}

/// Wait until there is a queue pair.
fn wait_for_queue_pair(place: &Place, server: &mut Running) -> Result<(), String> {
    wait_for(place, server, &["resource", "show", "qp"], "state INIT")
}

/// Wait until the output of `rdma ARGS` has this text.
fn wait_for(place: &Place, server: &mut Running, args: &[&str], text: &str) -> Result<(), String> {
    let until = Instant::now() + LIMIT;
    loop {
        let shown = place.program("rdma-waits", "rdma", args).run(LIMIT);
        if shown.is_ok_and(|shown| shown.stdout.contains(text)) {
            return Ok(());
        }
        if Instant::now() > until || server.ended().map_err(|e| e.to_string())? {
            return Err(format!("rdma {} has no `{text}`", args.join(" ")));
        }
        sleep(Duration::from_millis(50));
    }
}
