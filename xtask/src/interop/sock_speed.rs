//! `softrnic sock` beside plain TCP, unix sockets and the machine's limits: no test, since the machine has to be quiet.
//!
//! Everything is measured in turns, TCP and the moved connections after each other and in an order that changes, so
//! that a machine that grows slower favours none. What counts is the median over all turns of a figure over that of TCP
//! in the same turn.

mod page;
mod programs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::figures::median;
use crate::run::{Finished, Program, Running};
use crate::{logs, root, target_dir};

use super::sandbox;

/// The limit of one program.
const LIMIT: Duration = Duration::from_secs(60);
const BUILD: Duration = Duration::from_secs(1200);
/// What has the library at one side is to be as fast as TCP, to some percent. Less than two turns may differ, so it is
/// compared so many times, directly behind TCP or before it.
const ROUNDS_OF_SIDES: usize = 16;

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
    /// TCP once more in the turn: how far the ratio of two equal things is from 1 on this machine.
    Again,
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
            Way::Again => "TCP again",
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Row {
    /// Nanoseconds of a round trip of so many bytes; with epoll or blocking.
    Round(usize, &'static str),
    /// Processor time of the client for each of these.
    RoundUsed(usize, &'static str),
    /// MB/s of a stream of writes of so many bytes.
    Stream(usize),
    /// Nanoseconds of processor time of both ends in a second without data; with epoll or blocking.
    Idle(&'static str),
    /// Requests a second of a program.
    Rate(&'static str),
    /// [`Row::Rate`] and [`Row::Used`] of programs that have the library at one side at most.
    Side(&'static str),
    SideUsed(&'static str),
    /// Milliseconds of a file that a program gets.
    Took(&'static str),
    /// Processor time of the server for a request or a file, in nanoseconds.
    Used(&'static str),
}

impl Row {
    fn is_time(self) -> bool {
        !matches!(self, Row::Stream(_) | Row::Rate(_) | Row::Side(_))
    }
}

/// All figures of a row and a way, one for each turn.
type Figures = BTreeMap<(Row, Way), Vec<f64>>;

/// A condition that a figure has to fulfil, or is aimed at.
struct Must {
    what: &'static str,
    row: Row,
    way: Way,
    bound: Bound,
    is_aim: bool,
}

#[derive(Clone, Copy)]
enum Bound {
    /// In the row's unit.
    Absolute(f64),
    /// Over the figure of plain TCP.
    OverTcp(f64),
}

const fn must(what: &'static str, row: Row, way: Way, bound: Bound) -> Must {
    Must { what, row, way, bound, is_aim: false }
}

const fn aim(what: &'static str, row: Row, way: Way, bound: Bound) -> Must {
    Must { what, row, way, bound, is_aim: true }
}

use Bound::{Absolute, OverTcp};
use Way::{Asleep, ClientOnly, Moved, ServerOnly};
use programs::{GET_1, GET_50, NGINX_1K, NGINX_1M, PGBENCH, SET_1, SET_50};

#[rustfmt::skip]
const MUSTS: &[Must] = &[
    must("8 B and back, both in epoll, in ns: 0.6 us one way", Row::Round(8, "epoll"), Moved, Absolute(1200.0)),
    must("8 B and back, blocking, without spinning: the time", Row::Round(8, "block"), Asleep, OverTcp(1.0)),
    must("stream of 64 KiB writes", Row::Stream(65536), Moved, OverTcp(1.5)),
    must(SET_1, Row::Rate(SET_1), Moved, OverTcp(8.0)),
    must(GET_1, Row::Rate(GET_1), Moved, OverTcp(8.0)),
    must(SET_50, Row::Rate(SET_50), Moved, OverTcp(2.2)),
    must(GET_50, Row::Rate(GET_50), Moved, OverTcp(2.2)),
    must("redis SET, 50 connections, without spinning", Row::Rate(SET_50), Asleep, OverTcp(1.7)),
    must("redis GET, 50 connections, without spinning", Row::Rate(GET_50), Asleep, OverTcp(1.7)),
    must("redis SET, 50 connections, library in the client only", Row::Side(SET_50), ClientOnly, OverTcp(0.95)),
    must("redis GET, 50 connections, library in the client only", Row::Side(GET_50), ClientOnly, OverTcp(0.95)),
    must("redis SET, 50 connections, library in the server only", Row::Side(SET_50), ServerOnly, OverTcp(0.95)),
    must("redis GET, 50 connections, library in the server only", Row::Side(GET_50), ServerOnly, OverTcp(0.95)),
    must("nginx, 1 KB, library in the client only", Row::Side(NGINX_1K), ClientOnly, OverTcp(0.95)),
    must("nginx, 1 KB, library in the server only", Row::Side(NGINX_1K), ServerOnly, OverTcp(0.95)),
    must("nginx, 1 MB, library in the client only", Row::Side(NGINX_1M), ClientOnly, OverTcp(0.95)),
    must("nginx, 1 MB, library in the server only", Row::Side(NGINX_1M), ServerOnly, OverTcp(0.95)),
    must("pgbench -S, library in the client only", Row::Side(PGBENCH), ClientOnly, OverTcp(0.95)),
    must("pgbench -S, library in the server only", Row::Side(PGBENCH), ServerOnly, OverTcp(0.95)),
    must("idle in epoll, both ends, ns of processor time in a second", Row::Idle("epoll"), Moved, Absolute(2e5)),
    must("idle in poll, both ends, ns of processor time in a second", Row::Idle("block"), Moved, Absolute(2e5)),
    aim("nginx, 1 KB, keep-alive", Row::Rate(NGINX_1K), Moved, OverTcp(1.5)),
    aim("pgbench -S", Row::Rate(PGBENCH), Moved, OverTcp(1.2)),
];

/// A way's speed over TCP's: the median of the ratios of all turns. A row of one side has the ratio of the means
/// instead, over both measurements of TCP: a difference of few percent is smaller than the noise of single ratios.
fn over_tcp(figures: &Figures, row: Row, way: Way) -> Option<f64> {
    if let Row::Side(_) | Row::SideUsed(_) = row {
        let all = |ways: &[Way]| -> Option<f64> {
            let all: Vec<f64> = ways.iter().filter_map(|way| figures.get(&(row, *way))).flatten().copied().collect();
            (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
        };
        let tcp: &[Way] = if way == Way::Again { &[Way::Tcp] } else { &[Way::Tcp, Way::Again] };
        return Some(all(&[way])? / all(tcp)?);
    }
    let (ours, tcp) = (figures.get(&(row, way))?, figures.get(&(row, Way::Tcp))?);
    let ratios: Vec<f64> = ours.iter().zip(tcp).map(|(ours, tcp)| ours / tcp).collect();
    Some(median(&ratios))
}

impl Must {
    /// The figure, and whether it is as it must be.
    fn judge(&self, figures: &Figures) -> Option<(f64, bool)> {
        let (figure, bound) = match self.bound {
            Absolute(bound) => (median(figures.get(&(self.row, self.way))?), bound),
            OverTcp(bound) => (over_tcp(figures, self.row, self.way)?, bound),
        };
        Some((figure, if self.row.is_time() { figure <= bound } else { figure >= bound }))
    }
}

/// Where things are.
struct Bench {
    /// The command that runs another one as the ordinary user: some servers refuse to be root's.
    user: Vec<String>,
    speed: PathBuf,
    library: PathBuf,
    /// The folder where the user may write, in memory.
    home: PathBuf,
    port: u16,
    quick: bool,
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

impl Bench {
    /// Builds what is measured, and copies it to where every user can read it.
    fn new(quick: bool) -> Result<Bench, String> {
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
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let home = folder.join(format!("softrnic-sock-speed-{}", std::process::id()));
        std::fs::create_dir_all(&home).map_err(|e| format!("{}: {e}", home.display()))?;
        let (speed, library) = (home.join("speed"), home.join("libsoftrnic-sock.so"));
        let user = sandbox::as_user();
        let bench = Bench { user, speed, library, home, port: 21_000, quick };
        let release = target_dir().join("release");
        sandbox::copy(&release.join("examples/speed"), &bench.speed)?;
        sandbox::copy(&release.join("libsoftrnic_sock.so"), &bench.library)?;
        sandbox::allow(&bench.home)?;
        sandbox::give(&bench.home)?;
        Ok(bench)
    }

    fn program(&self, way: Way, is_server: bool, log: &str, words: &[&str]) -> Program {
        let program = Program::new(&self.user[0], logs().join("sock-speed").join(log))
            .args(&self.user[1..])
            .args(words)
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", &self.home)
            .dir(&self.home);
        let has_library = match way {
            Way::Tcp | Way::Unix | Way::Again => false,
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

fn round(bench: &mut Bench, figures: &mut Figures, way: Way, size: usize, how: &'static str) -> Result<(), String> {
    let millis = if bench.quick { "200" } else { "250" };
    let told = bench.ends(way, how, &["round", how, &size.to_string(), millis])?;
    let [time, processor] = told[..] else { return Err(format!("two figures, not {told:?}")) };
    figures.entry((Row::Round(size, how), way)).or_default().push(time);
    figures.entry((Row::RoundUsed(size, how), way)).or_default().push(processor);
    Ok(())
}

fn stream(bench: &mut Bench, figures: &mut Figures, way: Way, size: usize) -> Result<(), String> {
    let millis = if bench.quick { "200" } else { "250" };
    let told = bench.ends(way, "block", &["stream", &size.to_string(), millis])?;
    figures.entry((Row::Stream(size), way)).or_default().push(told.first().copied().unwrap_or(f64::NAN));
    Ok(())
}

fn idle(bench: &mut Bench, figures: &mut Figures, way: Way, how: &'static str) -> Result<(), String> {
    let told = bench.ends(way, how, &["idle", how, "1000"])?;
    figures.entry((Row::Idle(how), way)).or_default().push(told.first().copied().unwrap_or(f64::NAN));
    Ok(())
}

/// The sizes of messages of round trips.
const ROUNDS: [usize; 6] = [1, 8, 64, 1024, 16384, 65536];
/// The sizes of the writes of streams.
const STREAMS: [usize; 7] = [64, 512, 4096, 16384, 65536, 262_144, 1_048_576];

/// The ways in the order of this turn.
fn ordered(ways: &[Way], turn: usize) -> Vec<Way> {
    let mut ways = ways.to_vec();
    let first = turn % ways.len();
    ways.rotate_left(first);
    if turn % 2 == 1 {
        ways.reverse();
    }
    ways
}

/// One turn: each figure once. `turn` says which way comes first.
fn turn(bench: &mut Bench, figures: &mut Figures, turn: usize) -> Result<(), String> {
    let ordered = |ways: &[Way]| ordered(ways, turn);
    let all = [Way::Tcp, Way::Unix, Way::Moved, Way::Asleep];
    for size in if bench.quick { &[8][..] } else { &ROUNDS } {
        for how in ["block", "epoll"] {
            for way in ordered(&all) {
                round(bench, figures, way, *size, how)?;
            }
        }
    }
    for size in if bench.quick { &[65536][..] } else { &STREAMS } {
        for way in ordered(&all) {
            stream(bench, figures, way, *size)?;
        }
    }
    for way in ordered(&[Way::Tcp, Way::Moved, Way::Asleep]) {
        programs::redis(bench, figures, way, 1)?;
    }
    let ways = ordered(&[Way::Tcp, Way::Moved, Way::Asleep]);
    for way in &ways {
        programs::redis(bench, figures, *way, 50)?;
    }
    if bench.quick {
        return Ok(());
    }
    for way in &ways {
        programs::nginx(bench, figures, *way)?;
    }
    for way in &ways {
        programs::pgbench(bench, figures, *way)?;
    }
    for way in ordered(&[Way::Tcp, Way::Moved, Way::Asleep]) {
        programs::apache(bench, figures, way)?;
    }
    for how in ["block", "epoll"] {
        for way in ordered(&[Way::Tcp, Way::Moved]) {
            idle(bench, figures, way, how)?;
        }
    }
    Ok(())
}

/// Measure, print the figures and the ratios, and write the page if there is a path for it. No turn begins that would
/// not end within so many minutes. True if all musts are met.
///
/// # Errors
/// The thing that could not be built or run.
pub fn measure(quick: bool, minutes: Option<u64>, to: Option<&str>) -> Result<bool, String> {
    let mut bench = Bench::new(quick)?;
    if !quick {
        programs::prepare(&bench)?;
    }
    let speed = bench.speed.display().to_string();
    let mut limits: [Vec<f64>; 3] = Default::default();
    let began = Instant::now();
    let (most, enough) = if quick { (7, 90) } else { (5, minutes.unwrap_or(7) * 60) };
    let mut figures = Figures::new();
    let (mut turns, mut longest) = (0, Duration::ZERO);
    while turns < most && began.elapsed() + longest < Duration::from_secs(enough) {
        let start = Instant::now();
        let told = numbers(&ran(bench.program(Way::Tcp, true, "limits", &[&speed, "limits"]))?.stdout)?;
        limits.iter_mut().zip(told).for_each(|(all, one)| all.push(one));
        turn(&mut bench, &mut figures, turns)?;
        turns += 1;
        longest = longest.max(start.elapsed());
    }
    programs::sides(&mut bench, &mut figures, if quick { 8 } else { ROUNDS_OF_SIDES }, quick)?;
    let limits = limits.each_ref().map(|all| median(all));
    let text = page::text(&figures, limits, turns);
    println!("{text}");
    if let Some(path) = to {
        page::write(Path::new(path), &figures, limits, &text)?;
    }
    Ok(MUSTS.iter().filter(|must| !must.is_aim).all(|must| must.judge(&figures).map_or(quick, |(_, met)| met)))
}
