//! `softrnic sock` beside plain TCP, unix sockets and the machine's limits: no test, since the machine has to be quiet.
//!
//! Everything is measured in turns, TCP and the moved connections after each other and in an order that changes, so
//! that a machine that grows slower favours none. What counts is the median over all turns of a figure over that of TCP
//! in the same turn.

mod page;
mod programs;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::run::{Finished, Program, Running};
use crate::{logs, root, target_dir};

/// The limit of one program.
const LIMIT: Duration = Duration::from_secs(60);
const BUILD: Duration = Duration::from_secs(1200);

/// Who has the library, and whether it may look at memory before it sleeps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Way {
    Tcp,
    Unix,
    Moved,
    /// Moved, and never looks.
    Asleep,
    ServerOnly,
    ClientOnly,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Tcp => "TCP",
            Way::Unix => "unix socket",
            Way::Moved => "moved",
            Way::Asleep => "moved, no spinning",
            Way::ServerOnly => "TCP, library in the server",
            Way::ClientOnly => "TCP, library in the client",
        }
    }
}

/// What is measured: a group of rows in the page, a name, and whether a smaller figure is better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Row {
    /// Nanoseconds of a round trip of so many bytes; with epoll or blocking.
    Round(usize, &'static str),
    /// Processor time of the client for each of these.
    RoundUsed(usize, &'static str),
    /// MB/s of a stream of writes of so many bytes.
    Stream(usize),
    /// Requests a second of redis with so many connections.
    Redis(&'static str, usize),
    /// Processor time of redis-server for a request, in nanoseconds.
    RedisUsed(usize),
    /// What another program measures, by its number in [`programs::NAMES`].
    Other(usize),
}

impl Row {
    fn is_time(self) -> bool {
        matches!(self, Row::Round(..) | Row::RoundUsed(..) | Row::RedisUsed(_))
    }
}

/// All figures of a row and a way, one for each turn.
type Figures = BTreeMap<(Row, Way), Vec<f64>>;

/// A condition that the acceptance has.
struct Must {
    what: &'static str,
    row: Row,
    way: Way,
    /// Over TCP's, or, with `is_absolute`, in the row's unit.
    bound: f64,
    is_absolute: bool,
}

#[rustfmt::skip]
const MUSTS: &[Must] = &[
    Must { what: "8 B and back, both in epoll, in ns: 0.6 us one way", row: Row::Round(8, "epoll"), way: Way::Moved, bound: 1200.0, is_absolute: true },
    Must { what: "8 B and back, blocking, without spinning, over TCP's time", row: Row::Round(8, "block"), way: Way::Asleep, bound: 1.0, is_absolute: false },
    Must { what: "stream of 64 KiB writes", row: Row::Stream(65536), way: Way::Moved, bound: 1.5, is_absolute: false },
    Must { what: "redis SET, 1 connection", row: Row::Redis("SET", 1), way: Way::Moved, bound: 8.0, is_absolute: false },
    Must { what: "redis GET, 1 connection", row: Row::Redis("GET", 1), way: Way::Moved, bound: 8.0, is_absolute: false },
    Must { what: "redis SET, 50 connections", row: Row::Redis("SET", 50), way: Way::Moved, bound: 2.2, is_absolute: false },
    Must { what: "redis GET, 50 connections", row: Row::Redis("GET", 50), way: Way::Moved, bound: 2.2, is_absolute: false },
    Must { what: "redis SET, 50 connections, without spinning", row: Row::Redis("SET", 50), way: Way::Asleep, bound: 1.7, is_absolute: false },
    Must { what: "redis GET, 50 connections, without spinning", row: Row::Redis("GET", 50), way: Way::Asleep, bound: 1.7, is_absolute: false },
    Must { what: "redis SET, 50 connections, library in the client only", row: Row::Redis("SET", 50), way: Way::ClientOnly, bound: 0.95, is_absolute: false },
    Must { what: "redis GET, 50 connections, library in the client only", row: Row::Redis("GET", 50), way: Way::ClientOnly, bound: 0.95, is_absolute: false },
    Must { what: "redis SET, 50 connections, library in the server only", row: Row::Redis("SET", 50), way: Way::ServerOnly, bound: 0.95, is_absolute: false },
    Must { what: "redis GET, 50 connections, library in the server only", row: Row::Redis("GET", 50), way: Way::ServerOnly, bound: 0.95, is_absolute: false },
];

/// One number of all the turns.
fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The median of a way's figures over those of TCP in the same turns.
fn over_tcp(figures: &Figures, row: Row, way: Way) -> Option<f64> {
    let (ours, tcp) = (figures.get(&(row, way))?, figures.get(&(row, Way::Tcp))?);
    let ratios: Vec<f64> = ours.iter().zip(tcp).map(|(ours, tcp)| ours / tcp).collect();
    Some(median(&ratios))
}

impl Must {
    /// The figure, and whether it is as it must be.
    fn judge(&self, figures: &Figures) -> Option<(f64, bool)> {
        let figure = match self.is_absolute {
            true => median(figures.get(&(self.row, self.way))?),
            false => over_tcp(figures, self.row, self.way)?,
        };
        Some((figure, if self.row.is_time() { figure <= self.bound } else { figure >= self.bound }))
    }
}

/// Where things are.
struct Bench {
    speed: PathBuf,
    library: PathBuf,
    home: PathBuf,
    port: u16,
    quick: bool,
}

impl Bench {
    fn program(&mut self, way: Way, is_server: bool, log: &str, words: &[&str]) -> Program {
        let program = Program::new(words[0], logs().join("sock-speed").join(log)).args(&words[1..]).dir(&self.home);
        let has_library = match way {
            Way::Tcp | Way::Unix => false,
            Way::Moved | Way::Asleep => true,
            Way::ServerOnly => is_server,
            Way::ClientOnly => !is_server,
        };
        let program = if has_library { program.env("LD_PRELOAD", &self.library) } else { program };
        if way == Way::Asleep { program.env("SOFTRNIC_SOCK_SPIN", "0") } else { program }
    }

    /// A port that is free.
    fn next_port(&mut self) -> Result<u16, String> {
        for _ in 0..1000 {
            self.port = if self.port >= 31_000 { 21_000 } else { self.port + 1 };
            if std::net::TcpListener::bind(("127.0.0.1", self.port)).is_ok() {
                return Ok(self.port);
            }
        }
        Err("no port is free".to_owned())
    }

    /// Two ends of [`crate`]'s example `speed`: what the client prints.
    fn ends(&mut self, way: Way, how: &str, client: &[&str]) -> Result<Vec<f64>, String> {
        let speed = self.speed.display().to_string();
        let (family, address) = match way {
            Way::Unix => ("unix", self.home.join("speed.socket").display().to_string()),
            _ => ("tcp", format!("127.0.0.1:{}", self.next_port()?)),
        };
        let _ = std::fs::remove_file(&address);
        let server = self.program(way, true, "speed-server", &[&speed, "serve", family, &address, how]);
        let _server = server.spawn().map_err(|e| e.to_string())?;
        let words = [&[&speed, client[0], family, &address], &client[1..]].concat();
        numbers(&ran(self.program(way, false, "speed-client", &words))?.stdout)
    }
}

/// Runs a program to its end.
fn ran(program: Program) -> Result<Finished, String> {
    let done = program.run(LIMIT).map_err(|e| e.to_string())?;
    if done.ok() { Ok(done) } else { Err(format!("{}: {}", done.log.display(), done.verdict())) }
}

fn numbers(text: &str) -> Result<Vec<f64>, String> {
    text.split_whitespace().map(|word| word.parse().map_err(|_| format!("no number: {text}"))).collect()
}

/// Waits until a server listens.
fn wait_for(port: u16, server: &mut Running) -> Result<(), String> {
    let until = Instant::now() + LIMIT;
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        if server.ended().map_err(|e| e.to_string())? || Instant::now() > until {
            return Err(format!("the server does not listen on port {port}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Nanoseconds that a process's first thread has run (proc(5), `/proc/PID/schedstat`).
fn used(pid: u32) -> f64 {
    let told = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    told.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(f64::NAN)
}

fn redis(bench: &mut Bench, figures: &mut Figures, way: Way, connections: usize) -> Result<(), String> {
    let port = bench.next_port()?;
    let text = port.to_string();
    let mut server = bench
        .program(way, true, "redis-server", &["redis-server", "--port", &text, "--save", "", "--appendonly", "no"])
        .spawn()
        .map_err(|e| e.to_string())?;
    wait_for(port, &mut server)?;
    let requests = match (way, connections) {
        (Way::Moved | Way::Asleep, 1) => 150_000,
        (Way::Moved | Way::Asleep, _) => 300_000,
        (_, 1) => 10_000,
        _ => 50_000,
    };
    let requests = if way == Way::Asleep && connections == 1 { 15_000 } else { requests };
    let (clients, count) = (connections.to_string(), requests.to_string());
    let words = ["redis-benchmark", "-p", &text, "--csv", "-t", "set,get", "-d", "64", "-n", &count, "-c", &clients];
    let before = used(server.id());
    let done = ran(bench.program(way, false, "redis-benchmark", &words))?;
    let each = (used(server.id()) - before) / f64::from(2 * requests);
    figures.entry((Row::RedisUsed(connections), way)).or_default().push(each);
    for what in ["SET", "GET"] {
        // "SET","123456.78",...
        let line = done.stdout.lines().find_map(|line| line.strip_prefix(&format!("\"{what}\",\"")));
        let figure = line.and_then(|line| line.split('"').next()?.parse().ok());
        let figure = figure.ok_or_else(|| format!("no figure of {what}: {}", done.stdout))?;
        figures.entry((Row::Redis(what, connections), way)).or_default().push(figure);
    }
    Ok(())
}

fn round(bench: &mut Bench, figures: &mut Figures, way: Way, size: usize, how: &'static str) -> Result<(), String> {
    let millis = if bench.quick { "200" } else { "400" };
    let told = bench.ends(way, how, &["round", how, &size.to_string(), millis])?;
    let [time, processor] = told[..] else { return Err(format!("two figures, not {told:?}")) };
    figures.entry((Row::Round(size, how), way)).or_default().push(time);
    figures.entry((Row::RoundUsed(size, how), way)).or_default().push(processor);
    Ok(())
}

fn stream(bench: &mut Bench, figures: &mut Figures, way: Way, size: usize) -> Result<(), String> {
    let millis = if bench.quick { "200" } else { "400" };
    let told = bench.ends(way, "block", &["stream", &size.to_string(), millis])?;
    figures.entry((Row::Stream(size), way)).or_default().push(told.first().copied().unwrap_or(f64::NAN));
    Ok(())
}

/// One turn: each figure once. `turn` says which way comes first.
fn turn(bench: &mut Bench, figures: &mut Figures, turn: usize) -> Result<(), String> {
    let ordered = |ways: &[Way]| {
        let mut ways = ways.to_vec();
        let first = turn % ways.len();
        ways.rotate_left(first);
        ways
    };
    let all = [Way::Tcp, Way::Unix, Way::Moved, Way::Asleep];
    for size in if bench.quick { &[8][..] } else { &[1, 8] } {
        for how in ["block", "epoll"] {
            for way in ordered(&all) {
                round(bench, figures, way, *size, how)?;
            }
        }
    }
    let sizes: &[usize] = if bench.quick { &[65536] } else { &[64, 512, 4096, 16384, 65536, 262_144, 1_048_576] };
    for size in sizes {
        for way in ordered(&all) {
            stream(bench, figures, way, *size)?;
        }
    }
    for way in ordered(&[Way::Tcp, Way::Moved, Way::Asleep]) {
        redis(bench, figures, way, 1)?;
    }
    for way in ordered(&[Way::Tcp, Way::ClientOnly, Way::Moved, Way::ServerOnly, Way::Asleep]) {
        redis(bench, figures, way, 50)?;
    }
    if !bench.quick {
        for (number, _) in programs::NAMES.iter().enumerate() {
            for way in ordered(&[Way::Tcp, Way::Moved]) {
                let figure = programs::run(bench, way, number)?;
                figures.entry((Row::Other(number), way)).or_default().push(figure);
            }
        }
    }
    Ok(())
}

/// Measure, print the figures and the ratios, and write the page if there is a path for it. After so many minutes no
/// further turn begins. True if all musts are met.
///
/// # Errors
/// The thing that could not be built or run.
pub fn measure(quick: bool, minutes: Option<u64>, to: Option<&str>) -> Result<bool, String> {
    for kind in [&["--lib"][..], &["--example", "speed"]] {
        let build = Program::new(env!("CARGO"), logs().join("sock-speed/build"))
            .args(["build", "--release", "--package", "softrnic-sock-preload"])
            .args(kind)
            .dir(root());
        let done = build.run(BUILD).map_err(|e| e.to_string())?;
        if !done.ok() {
            return Err(format!("cargo build: {}", done.verdict()));
        }
    }
    let home = target_dir().join("interop/sock-speed");
    let _ = std::fs::remove_dir_all(&home);
    std::fs::create_dir_all(&home).map_err(|e| format!("{}: {e}", home.display()))?;
    let release = target_dir().join("release");
    let (speed, library) = (release.join("examples/speed"), release.join("libsoftrnic_sock.so"));
    let mut bench = Bench { speed, library, home, port: 21_000, quick };
    let speed = bench.speed.display().to_string();
    let mut limits: [Vec<f64>; 3] = Default::default();
    let began = Instant::now();
    let (most, enough) = if quick { (7, 70) } else { (5, minutes.unwrap_or(10) * 60) };
    let mut figures = Figures::new();
    let mut turns = 0;
    while turns < most && began.elapsed() < Duration::from_secs(enough) {
        let told = numbers(&ran(bench.program(Way::Tcp, true, "limits", &[&speed, "limits"]))?.stdout)?;
        limits.iter_mut().zip(told).for_each(|(all, one)| all.push(one));
        turn(&mut bench, &mut figures, turns)?;
        turns += 1;
    }
    let text = page::text(&figures, limits.each_ref().map(|all| median(all)), turns);
    println!("{text}");
    if let Some(path) = to {
        page::write(path, &figures, &text)?;
    }
    Ok(MUSTS.iter().all(|must| must.judge(&figures).is_some_and(|(_, met)| met)))
}
