//! A server and a client of one program, in either order, with a limit on the time.
//!
//! The programs exchange their QP numbers over TCP. Their clients give up at once when no server listens, so "client
//! first" needs help: the client connects to a relay of this suite, which starts the server only then.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::report::Outcome;
use crate::run::{Finished, Running};

use super::client_server::Ready;
use super::sandbox::Sandbox;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    ServerFirst,
    ClientFirst,
}

/// Surroundings that forbid something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Around {
    Plain,
    /// Another user namespace, and another process namespace: its process numbers mean nothing to the peer.
    Namespaces,
    /// `/dev/shm` is full.
    FullShm,
    /// No copies between processes: a seccomp filter, as in some containers.
    NoProcessVm,
    /// No `softrnic run`: LD_LIBRARY_PATH names the directory that `softrnic install` made ([`Sandbox::install`]).
    Directory,
}

/// The side whose output is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Server,
    Client,
}

/// A check of one side's output, which returns what is wrong with it.
pub type Check = Box<dyn Fn(Side, &Finished) -> Result<(), String> + Send + Sync>;

/// A check of the files that were left behind.
pub type After = Box<dyn Fn(&Sandbox) -> Result<(), String> + Send + Sync>;

pub struct Pair {
    pub name: String,
    pub program: String,
    /// The arguments of both sides; the port and the host are added.
    pub args: Vec<String>,
    /// The arguments of the server alone.
    pub server_args: Vec<String>,
    pub clients: usize,
    /// The surroundings of the server and of the clients.
    pub around: [Around; 2],
    /// True if both sides have a clock that runs faster ([`Sandbox::quick_clock`]).
    pub quick_clock: bool,
    /// The capture files of the server and of the clients.
    pub captures: [Option<String>; 2],
    /// The check after a success.
    pub after: Option<After>,
    pub order: Order,
    pub limit: Duration,
    /// True if nothing else may run beside it. This is for exchanges between two programs that poll: with more pollers
    /// than cores, each message waits for a time slice of the scheduler.
    pub alone: bool,
    pub check: Check,
}

/// How long the side that is left may take to notice that the other one is gone.
const GRACE: Duration = Duration::from_secs(10);

/// How long a program may take until it listens.
const START: Duration = Duration::from_secs(15);

impl Pair {
    /// The pair on a quick clock, for repetitions of perftest under another setting: its figures are known from the
    /// first time.
    pub fn on_quick_clock(self) -> Self {
        let quick_clock = self.quick_clock || self.program.starts_with("ib_");
        Self { quick_clock, ..self }
    }

    /// Run both sides. The log is the server's; the client's lies beside it.
    pub fn run(&self, sandbox: &Sandbox) -> (Outcome, PathBuf) {
        let log = self.name.replace([' ', '/'], "_");
        match self.try_run(sandbox, &log) {
            Ok((server, clients)) => {
                let mut outcome = self.judge(&server, &clients);
                if let (Outcome::Passed, Some(after)) = (&outcome, &self.after) {
                    outcome = after(sandbox).map_or_else(Outcome::Failed, |()| Outcome::Passed);
                }
                (outcome, server.log)
            }
            Err(e) => (Outcome::Failed(e.to_string()), PathBuf::from(log)),
        }
    }

    fn judge(&self, server: &Finished, clients: &[Finished]) -> Outcome {
        let mut problems = Vec::new();
        let clients = clients.iter().map(|done| (Side::Client, done));
        for (side, done) in clients.chain([(Side::Server, server)]) {
            let who = if side == Side::Client { "client" } else { "server" };
            if !done.ok() {
                problems.push(format!("{who}: {}", done.verdict()));
            } else if let Err(why) = (self.check)(side, done) {
                problems.push(format!("{who}: {why}"));
            }
        }
        if problems.is_empty() { Outcome::Passed } else { Outcome::Failed(problems.join("; ")) }
    }

    /// The sign that the server listens. No connection is made to test that: the servers accept one connection only.
    fn ready(&self, port: u16) -> Ready {
        if self.args.iter().any(|arg| arg == "-R") { Ready::Rdma(port) } else { Ready::Tcp(port) }
    }

    /// The options of `softrnic run`, on the server's side (0) or on the clients' (1).
    fn options(&self, side: usize) -> Vec<&str> {
        self.captures[side].iter().flat_map(|file| ["--pcap", file]).collect()
    }

    /// The program on the server's side (0) or on a client's (1).
    fn program(&self, sandbox: &Sandbox, side: usize, log: &str, args: &[String]) -> io::Result<Running> {
        let program = sandbox.program_with(self.around[side], &self.options(side), log, &self.program, args);
        if self.quick_clock { program.env("LD_PRELOAD", sandbox.quick_clock()?).spawn() } else { program.spawn() }
    }

    fn try_run(&self, sandbox: &Sandbox, log: &str) -> io::Result<(Finished, Vec<Finished>)> {
        let port = free_port()?;
        let server = || {
            let mut args = [self.args.clone(), self.server_args.clone()].concat();
            args.extend(["-p".to_owned(), port.to_string()]);
            self.program(sandbox, 0, &format!("{log}.server"), &args)
        };
        let clients = |port: u16| {
            let mut args = self.args.clone();
            args.extend(["-p".to_owned(), port.to_string(), "127.0.0.1".to_owned()]);
            let start = |number: usize| {
                let number = if number == 0 { String::new() } else { number.to_string() };
                self.program(sandbox, 1, &format!("{log}.client{number}"), &args)
            };
            (0..self.clients).map(start).collect::<io::Result<Vec<Running>>>()
        };
        let deadline = Instant::now() + self.limit;
        match self.order {
            Order::ServerFirst => {
                let mut server = server()?;
                self.ready(port).wait(&mut server)?;
                wait_for_all(server, clients(port)?, deadline)
            }
            Order::ClientFirst => {
                let relay = Relay::new(port)?;
                let mut clients = clients(relay.port)?;
                relay.wait_for_client(&mut clients[0])?;
                let mut server = server()?;
                self.ready(port).wait(&mut server)?;
                relay.open();
                wait_for_all(server, clients, deadline)
            }
        }
    }
}

/// Wait until all have ended, or one side has and the other has had its grace.
fn wait_for_all(
    mut server: Running,
    mut clients: Vec<Running>,
    deadline: Instant,
) -> io::Result<(Finished, Vec<Finished>)> {
    let mut first_end = None;
    loop {
        let server_ended = server.ended()?;
        let mut clients_ended = true;
        for client in &mut clients {
            clients_ended &= client.ended()?;
        }
        if server_ended && clients_ended {
            break;
        }
        let now = Instant::now();
        if server_ended || clients_ended {
            let since = *first_end.get_or_insert(now);
            if now > since + GRACE {
                break;
            }
        }
        if now > deadline {
            break;
        }
        sleep(Duration::from_millis(4));
    }
    Ok((server.finish()?, clients.into_iter().map(Running::finish).collect::<io::Result<_>>()?))
}

/// A port that no process uses at the moment. Two cases never get the same, and none gets a port that the kernel gives
/// to outgoing connections (`net.ipv4.ip_local_port_range`, from 32768 on), which might take it before the server does.
fn free_port() -> io::Result<u16> {
    const PORTS: Range<u32> = 12_000..32_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in PORTS {
        // Another run at the same time starts elsewhere.
        let turn = std::process::id().wrapping_mul(997).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = (PORTS.start + turn % (PORTS.end - PORTS.start)) as u16;
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(io::Error::from(io::ErrorKind::AddrNotAvailable))
}

/// True if a process listens on this TCP port.
pub fn listens(port: u16) -> bool {
    let local = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        fs::read_to_string(table).is_ok_and(|text| {
            text.lines().any(|line| {
                let mut words = line.split_whitespace().skip(1);
                let at = words.next().is_some_and(|address| address.ends_with(&local));
                // The state behind the remote address; 0A is LISTEN.
                at && words.nth(1) == Some("0A")
            })
        })
    })
}

/// A relay that accepts a client's connections before its server runs, and passes the bytes on once it does.
struct Relay {
    port: u16,
    seen: Arc<AtomicBool>,
    opened: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
}

impl Relay {
    fn new(server: u16) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let [seen, opened, over] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        let flags = (Arc::clone(&seen), Arc::clone(&opened), Arc::clone(&over));
        thread::spawn(move || {
            let (seen, opened, over) = flags;
            while !over.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((client, _)) => {
                        seen.store(true, Ordering::Relaxed);
                        let (opened, over) = (Arc::clone(&opened), Arc::clone(&over));
                        thread::spawn(move || splice(client, server, &opened, &over));
                    }
                    Err(_) => sleep(Duration::from_millis(2)),
                }
            }
        });
        Ok(Self { port, seen, opened, over })
    }

    fn wait_for_client(&self, client: &mut Running) -> io::Result<()> {
        let deadline = Instant::now() + START;
        while !self.seen.load(Ordering::Relaxed) && !client.ended()? && Instant::now() < deadline {
            sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn open(&self) {
        self.opened.store(true, Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

fn splice(client: TcpStream, server: u16, opened: &AtomicBool, over: &AtomicBool) {
    while !opened.load(Ordering::Relaxed) {
        if over.load(Ordering::Relaxed) {
            return;
        }
        sleep(Duration::from_millis(2));
    }
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else {
        return;
    };
    let _ = (client.set_nonblocking(false), client.set_nodelay(true), server.set_nodelay(true));
    let (Ok(from_client), Ok(to_server)) = (client.try_clone(), server.try_clone()) else {
        return;
    };
    let forward = thread::spawn(move || copy(from_client, to_server));
    copy(server, client);
    let _ = forward.join();
}

/// Copy until the end, and pass the end on.
pub fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(n) = from.read(&mut buffer) {
        if n == 0 || to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
