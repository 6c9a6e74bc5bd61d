//! A server and its clients whose command lines need not resemble each other, as for the connection manager's programs,
//! fio, qperf and others. The servers also differ in how they show that they listen.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::report::Outcome;
use crate::run::{Finished, Running};

use super::sandbox::Sandbox;

/// The sign by which the clients may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// A process listens on this port of the connection manager.
    Rdma(u16),
    /// A process listens on this TCP port.
    Tcp(u16),
    /// The server sleeps. This is for servers that show nothing else; a busy one counts as ready after a while.
    Settled,
}

/// A check of the outputs of the server and of a client, which returns what is wrong.
pub type Check = fn(server: &Finished, client: &Finished) -> Result<(), String>;

pub struct ClientServer {
    pub name: String,
    /// The program with its arguments, separated by spaces.
    pub server: String,
    pub client: String,
    /// The number of clients, one after the other: rping's persistent server mixes up requests that come while it
    /// handles one.
    pub clients: usize,
    pub ready: Ready,
    /// True if the server does not end by itself.
    pub stays: bool,
    /// True if others may run at the same time: its port is its own, and it sleeps more than it computes.
    pub beside: bool,
    pub environment: &'static [(&'static str, &'static str)],
    pub limit: Duration,
    pub check: Check,
}

/// How long the server may take to end behind its clients.
const GRACE: Duration = Duration::from_secs(15);

/// How long a server may take until it listens.
const START: Duration = Duration::from_secs(15);

impl ClientServer {
    pub fn new(name: impl Into<String>, server: impl Into<String>, client: impl Into<String>, ready: Ready) -> Self {
        Self {
            name: name.into(),
            server: server.into(),
            client: client.into(),
            clients: 1,
            ready,
            stays: false,
            beside: false,
            environment: &[],
            limit: Duration::from_secs(60),
            check: |_, _| Ok(()),
        }
    }

    /// Run the case. The result has the server's log; the clients' lie beside it.
    pub fn run(&self, sandbox: &Sandbox) -> (Outcome, PathBuf) {
        let log = self.name.replace([' ', '/', ':'], "_");
        match self.try_run(sandbox, &log) {
            Ok((server, clients)) => (self.judge(&server, &clients), server.log),
            Err(e) => (Outcome::Failed(e.to_string()), PathBuf::from(log)),
        }
    }

    fn try_run(&self, sandbox: &Sandbox, log: &str) -> io::Result<(Finished, Vec<Finished>)> {
        let start = |log: String, line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let mut program = sandbox.program(&log, words[0], &words[1..]);
            for (key, value) in self.environment {
                program = program.env(key, value);
            }
            program.spawn()
        };
        let mut server = start(format!("{log}.server"), &self.server)?;
        self.ready.wait(&mut server)?;
        let deadline = Instant::now() + self.limit;
        let number = |n: usize| if n == 0 { String::new() } else { n.to_string() };
        let mut finished = Vec::new();
        for n in 0..self.clients {
            let mut client = start(format!("{log}.client{}", number(n)), &self.client)?;
            client.wait(deadline)?;
            finished.push(client.finish()?);
        }
        if self.stays {
            return Ok((server.stop()?, finished));
        }
        server.wait(Instant::now() + GRACE)?;
        Ok((server.finish()?, finished))
    }

    fn judge(&self, server: &Finished, clients: &[Finished]) -> Outcome {
        let mut problems = Vec::new();
        for client in clients {
            if !client.ok() {
                problems.push(format!("client: {}", client.verdict()));
            } else if let Err(why) = (self.check)(server, client) {
                problems.push(why);
            }
        }
        if !self.stays && !server.ok() {
            problems.push(format!("server: {}", server.verdict()));
        }
        if problems.is_empty() { Outcome::Passed } else { Outcome::Failed(problems.join("; ")) }
    }
}

impl Ready {
    pub fn wait(self, server: &mut Running) -> io::Result<()> {
        let deadline = Instant::now() + START;
        let mut quiet = 0;
        let mut before = None;
        while Instant::now() < deadline && !server.ended()? {
            let ready = match self {
                Ready::Rdma(port) => listens_rdma(port),
                Ready::Tcp(port) => super::pair::listens(port),
                Ready::Settled => {
                    let now = ticks(server.id());
                    quiet = if now == before && now.is_some() { quiet + 1 } else { 0 };
                    before = now;
                    quiet >= 4
                }
            };
            if ready {
                break;
            }
            sleep(Duration::from_millis(if self == Ready::Settled { 60 } else { 4 }));
        }
        Ok(())
    }
}

/// True if a process listens: ports are claimed by names of unix sockets (`crates/cm/src/names.rs`).
fn listens_rdma(port: u16) -> bool {
    let port = format!("/{port:04x}/");
    fs::read("/proc/net/unix").is_ok_and(|text| {
        String::from_utf8_lossy(&text)
            .lines()
            .any(|line| line.contains("softrnic/1/cm/") && line.contains(&port) && line.ends_with("/listen"))
    })
}

/// The processor time that a sleeping process has had; `None` if it runs, or is another program still.
fn ticks(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (front, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let sleeps = *fields.first()? == "S" && !front.ends_with("softrnic") && !front.ends_with("setpriv");
    sleeps.then(|| fields.get(11)?.parse::<u64>().ok()?.checked_add(fields.get(12)?.parse().ok()?))?
}
