//! Two hosts: two network namespaces with a link between them, which is a pair of veth devices, or two tun devices and
//! a process that forwards packets as a bad network does. Root makes them; an ordinary user makes them in a user
//! namespace, where the system permits it. They end with the processes that hold them, which end with this one.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::run::{Finished, Program, Running};
use crate::{logs, root};

/// How long each step of making them may take.
const STEP: Duration = Duration::from_secs(60);

/// The addresses of the two hosts.
const ADDRESSES: [[&str; 2]; 2] = [["10.77.0.1", "10.77.0.2"], ["fd77::1", "fd77::2"]];

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ip {
    V4,
    V6,
}

/// A link that loses one packet in `lose`, doubles one in `double`, and delays each by up to so many microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    pub seed: u64,
    pub lose: u32,
    pub double: u32,
    pub delay: u32,
}

/// Why there are no two hosts.
#[derive(Debug)]
pub enum Missing {
    /// The system does not permit it.
    Forbidden(String),
    Broken(String),
}

/// The two hosts. Dropping them ends all their processes.
pub struct Net {
    name: String,
    /// The holders of the two namespaces.
    holders: Vec<Running>,
    /// Options of nsenter(1) besides those that name the namespace.
    enter: &'static [&'static str],
    /// The process that forwards packets.
    forwarder: Option<Running>,
}

impl Net {
    /// Two hosts with a veth pair. `name` is for the logs.
    pub fn veth(name: &str) -> Result<Net, Missing> {
        let net = Net::hosts(name)?;
        let other = net.holders[1].id().to_string();
        net.ip(0, &["link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", &other])?;
        net.up("veth0")?;
        Ok(net)
    }

    /// Two hosts with a bad network between them.
    pub fn forwarded(name: &str, weather: Weather) -> Result<Net, Missing> {
        if !Path::new("/dev/net/tun").exists() {
            return Err(Missing::Forbidden("there is no /dev/net/tun".to_owned()));
        }
        let mut net = Net::hosts(name)?;
        let other = format!("/proc/{}/ns/net", net.holders[1].id());
        let Weather { seed, lose, double, delay } = weather;
        let forwarder = net
            .inside(0, "forwarder", &["python3"])
            .args([root().join("interop/iwarp/forward.py")])
            .args([other, seed.to_string(), lose.to_string(), double.to_string(), delay.to_string()])
            .spawn()
            .map_err(|e| Missing::Broken(e.to_string()))?;
        let mut forwarder = forwarder;
        wait_for_line(&mut forwarder, &net.log("forwarder"), "ready").map_err(Missing::Broken)?;
        net.forwarder = Some(forwarder);
        net.up("tun0")?;
        Ok(net)
    }

    /// Two namespaces without a link.
    fn hosts(name: &str) -> Result<Net, Missing> {
        let is_root = rustix::process::geteuid().is_root();
        let enter: &[&str] = if is_root { &["--net"] } else { &["--user", "--preserve-credentials", "--net"] };
        let mut net = Net { name: name.to_owned(), holders: Vec::new(), enter, forwarder: None };
        let make: &[&str] = if is_root { &["--net"] } else { &["--user", "--map-root-user", "--net"] };
        // The shell tells that the namespace is there.
        let hold = ["sh", "-c", "echo ready && exec sleep infinity"];
        let first = Program::new("setpriv", net.log("host0"))
            .args(["--pdeathsig", "KILL", "unshare", "--kill-child"])
            .args(make)
            .args(["setpriv", "--pdeathsig", "KILL"])
            .args(hold);
        net.hold(first)?;
        // Both namespaces belong to one user namespace, so that a device can move.
        let second = net.inside(0, "host1", &["unshare", "--net"]).args(hold);
        net.hold(second)?;
        Ok(net)
    }

    fn hold(&mut self, holder: Program) -> Result<(), Missing> {
        let log = self.log(&format!("host{}", self.holders.len()));
        let mut running = holder.spawn().map_err(|e| Missing::Broken(e.to_string()))?;
        wait_for_line(&mut running, &log, "ready").map_err(Missing::Forbidden)?;
        self.holders.push(running);
        Ok(())
    }

    /// Gives the device its addresses on both hosts, and brings it up.
    fn up(&self, device: &str) -> Result<(), Missing> {
        for host in 0..2 {
            self.ip(host, &["link", "set", "lo", "up"])?;
            let address = |ip: Ip| self.address(host, ip);
            self.ip(host, &["address", "add", &format!("{}/24", address(Ip::V4)), "dev", device])?;
            // No third host can have the address: there is no need to look for one (RFC 4862, section 5.4).
            self.ip(host, &["address", "add", &format!("{}/64", address(Ip::V6)), "dev", device, "nodad"])?;
            self.ip(host, &["link", "set", device, "up"])?;
        }
        Ok(())
    }

    /// Runs ip(8) on a host.
    pub fn ip(&self, host: usize, words: &[&str]) -> Result<(), Missing> {
        let done = self.inside(host, "ip", &["ip"]).args(words).run(STEP);
        match done {
            Ok(done) if done.ok() => Ok(()),
            Ok(done) if done.stderr.contains("not permitted") => Err(Missing::Forbidden(done.verdict())),
            Ok(done) => Err(Missing::Broken(format!("ip {}: {}", words.join(" "), done.verdict()))),
            Err(e) => Err(Missing::Broken(e.to_string())),
        }
    }

    fn log(&self, name: &str) -> std::path::PathBuf {
        logs().join("iwarp").join(format!("{}.{name}", self.name))
    }

    /// The address of a host.
    pub fn address(&self, host: usize, ip: Ip) -> &'static str {
        ADDRESSES[usize::from(ip == Ip::V6)][host]
    }

    /// The words that run a command on a host, and end it when this process ends.
    pub fn words(&self, host: usize) -> Vec<String> {
        let holder = self.holders[host].id().to_string();
        let words = ["nsenter", "--target", &holder].into_iter().chain(self.enter.iter().copied());
        // Other credentials in another user namespace would take the signal away, so it is asked for inside.
        words.chain(["setpriv", "--pdeathsig", "KILL"]).map(str::to_owned).collect()
    }

    /// A command on a host, with the rights of this process.
    pub fn inside<S: AsRef<OsStr>>(&self, host: usize, log: &str, command: &[S]) -> Program {
        let words = self.words(host);
        Program::new(&words[0], self.log(log)).args(&words[1..]).args(command)
    }

    /// True if a process of the host listens on this TCP port.
    pub fn listens(&self, host: usize, port: u16) -> bool {
        let table = |name: &str| fs::read_to_string(format!("/proc/{}/net/{name}", self.holders[host].id()));
        let port = format!(":{port:04X}");
        ["tcp", "tcp6"].iter().any(|name| {
            table(name).unwrap_or_default().lines().any(|line| {
                let mut words = line.split_whitespace().skip(1);
                // The state 0A is LISTEN.
                words.next().is_some_and(|local| local.ends_with(&port)) && words.nth(1) == Some("0A")
            })
        })
    }

    /// Runs a server on host 0 and, when it listens, a client on host 1. A client that fails ends the server, too.
    pub fn run(
        &self,
        server: Program,
        port: u16,
        client: Program,
        limit: Duration,
    ) -> Result<(Finished, Finished), String> {
        let (mut server, client) = self.start(server, port, client, limit)?;
        server.wait(Instant::now() + STEP).map_err(|e| e.to_string())?;
        Ok((server.finish().map_err(|e| e.to_string())?, client))
    }

    /// [`Net::run`] for a server that does not end by itself.
    pub fn run_beside(
        &self,
        server: Program,
        port: u16,
        client: Program,
        limit: Duration,
    ) -> Result<(Finished, Finished), String> {
        let (server, client) = self.start(server, port, client, limit)?;
        Ok((server.stop().map_err(|e| e.to_string())?, client))
    }

    /// Runs the client to its end without an error, and leaves the server.
    fn start(
        &self,
        server: Program,
        port: u16,
        client: Program,
        limit: Duration,
    ) -> Result<(Running, Finished), String> {
        let mut server = server.spawn().map_err(|e| e.to_string())?;
        let started = Instant::now();
        while !self.listens(0, port) {
            if server.ended().map_err(|e| e.to_string())? || started.elapsed() > STEP {
                let server = server.finish().map_err(|e| e.to_string())?;
                return Err(format!("the server does not listen: {}", server.verdict()));
            }
            sleep(Duration::from_millis(5));
        }
        let client = client.run(limit).map_err(|e| e.to_string())?;
        if client.ok() {
            return Ok((server, client));
        }
        server.wait(Instant::now() + Duration::from_secs(1)).map_err(|e| e.to_string())?;
        let server = server.finish().map_err(|e| e.to_string())?;
        Err(format!("client: {}; server: {}", client.verdict(), server.verdict()))
    }
}

/// Waits until a program has printed a line.
pub fn wait_for_line(program: &mut Running, log: &Path, line: &str) -> Result<(), String> {
    let started = Instant::now();
    let read = |ending: &str| fs::read_to_string(crate::run::with(log, ending)).unwrap_or_default();
    while !read("out").lines().any(|said| said == line) {
        if program.ended().map_err(|e| e.to_string())? {
            return Err(read("err").lines().last().unwrap_or("it ended").to_owned());
        }
        if started.elapsed() > STEP {
            return Err(format!("{}: no `{line}`", log.display()));
        }
        sleep(Duration::from_millis(5));
    }
    Ok(())
}
