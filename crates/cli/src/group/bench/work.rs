//! What is measured: things that do one operation for all replicas, and how long each takes.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use group::{Client, Error, Operation};
use hdrhistogram::Histogram;
use limits::{Buffer, Shared, chain};
use rdma::{Cq, Data, Mr, Qp, SendOp, SendWr, Status, Wc};

use super::row::Measured;
use crate::bench::stats::Spread;
use crate::fixture::{PATIENCE, text};
use crate::group::client::{Times, histogram};

/// A way to bring bytes to all replicas.
pub trait Work {
    /// Begin an operation; false: not now.
    fn begin(&mut self) -> Result<bool, String>;
    /// The number of operations that ended since the last call; they end in order.
    fn ended(&mut self) -> Result<u64, String>;
}

/// How long to measure, and how.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Operations under way.
    pub window: u32,
    /// Time between an operation and the next one, for a window of 1.
    pub pause: Duration,
    /// The time, and the fewest operations: both are reached, unless that takes longer than `most`.
    pub time: Duration,
    pub least: u64,
    pub most: Duration,
}

/// Do operations until the time is over.
pub fn measure(work: &mut dyn Work, effort: Effort) -> Result<Measured, String> {
    let warm = Effort { time: effort.time / 10, least: 1, ..effort };
    let (mut sum, mut took) = (Sum::new()?, histogram()?);
    turns(work, warm, &mut took)?;
    sum.take(work, effort, &mut took)?;
    Ok(sum.measured())
}

/// Operations of a slice that are measured, and those before them, which are not.
const SLICE: u64 = 2000;
const WARM: u64 = 200;
/// The fewest pairs of slices.
const PAIRS: usize = 5;

/// The figures of two ways, and the ratio of their medians.
pub struct Pairs {
    pub ways: [Measured; 2],
    pub ratio: f64,
}

/// Measure two ways by turns, in slices of as many operations. The machine's speed changes by half from one tenth of a
/// second to the next, and both slices of a pair are to have one speed. The ratio is the median of all pairs' ratios.
/// `before` is called with the number of a way before each of its slices; `time` is for each way.
pub fn by_turns(
    [first, second]: [&mut dyn Work; 2],
    time: Duration,
    mut before: impl FnMut(usize) -> Result<(), String>,
) -> Result<Pairs, String> {
    let (mut sums, mut took) = ([Sum::new()?, Sum::new()?], histogram()?);
    let some = |least| Effort { window: 1, pause: Duration::ZERO, time: Duration::ZERO, least, most: PATIENCE };
    let mut ratios = Vec::new();
    let start = Instant::now();
    while ratios.len() < PAIRS || start.elapsed() < 2 * time {
        let mut p50 = [0.0; 2];
        for (i, sum) in sums.iter_mut().enumerate() {
            let way = if i == 0 { &mut *first } else { &mut *second };
            before(i)?;
            turns(way, some(WARM), &mut took)?;
            sum.take(way, some(SLICE), &mut took)?;
            p50[i] = took.value_at_quantile(0.5) as f64;
        }
        ratios.push(p50[0] / p50[1]);
    }
    Ok(Pairs { ways: sums.map(|sum| sum.measured()), ratio: Spread::of(&ratios).median })
}

/// All slices of a way.
struct Sum {
    took: Histogram<u64>,
    seconds: f64,
}

impl Sum {
    fn new() -> Result<Sum, String> {
        Ok(Sum { took: histogram()?, seconds: 0.0 })
    }

    /// Measure one more; its times are in `took`.
    fn take(&mut self, work: &mut dyn Work, effort: Effort, took: &mut Histogram<u64>) -> Result<(), String> {
        self.seconds += turns(work, effort, took)?;
        self.took.add(&*took).map_err(text)
    }

    fn measured(&self) -> Measured {
        let operations = self.took.len();
        let per_second = if self.seconds > 0.0 { operations as f64 / self.seconds } else { 0.0 };
        Measured { operations, per_second, microseconds: Times::of(&self.took) }
    }
}

/// The seconds that it took, without pauses. What is in `took` goes.
fn turns(work: &mut dyn Work, effort: Effort, took: &mut Histogram<u64>) -> Result<f64, String> {
    took.reset();
    let mut begun = VecDeque::with_capacity(effort.window as usize);
    let (mut done, mut idle) = (0u64, 0u32);
    let start = Instant::now();
    let mut last = start;
    let mut over = false;
    let mut paused = Duration::ZERO;
    loop {
        while !over && begun.len() < effort.window as usize {
            let now = Instant::now();
            if !work.begin()? {
                break;
            }
            begun.push_back(now);
        }
        let ended = work.ended()?;
        if ended > 0 {
            last = Instant::now();
            for _ in 0..ended {
                let begun = begun.pop_front().ok_or("an operation ended that was not begun")?;
                took.saturating_record(last.duration_since(begun).as_nanos() as u64);
            }
            done += ended;
            let elapsed = last.duration_since(start);
            over = elapsed >= effort.time && (done >= effort.least || elapsed > effort.most);
            if !effort.pause.is_zero() && begun.is_empty() && !over {
                std::thread::sleep(effort.pause);
                paused += last.elapsed();
                last = Instant::now();
            }
            continue;
        }
        if over && begun.is_empty() {
            break;
        }
        idle += 1;
        if idle.is_multiple_of(1024) && last.elapsed() > 2 * PATIENCE {
            return Err(format!("no operation ended within {} s", 2 * PATIENCE.as_secs()));
        }
    }
    Ok(last.duration_since(start).saturating_sub(paused).as_secs_f64())
}

/// gWRITEs along a chain of servers.
pub struct Nic {
    pub client: Client,
    pub op: Operation,
}

impl Work for Nic {
    fn begin(&mut self) -> Result<bool, String> {
        match self.client.submit(&self.op) {
            Ok(_) => Ok(true),
            Err(Error::Full) => Ok(false),
            Err(error) => Err(text(error)),
        }
    }

    fn ended(&mut self) -> Result<u64, String> {
        let mut ended = 0;
        // Where nothing is left, one more poll would count as a part of the operation that has ended.
        while self.client.under_way() > 0 && self.client.poll().map_err(text)?.is_some() {
            ended += 1;
        }
        Ok(ended)
    }
}

/// Operations of the replicas on their own memory: the one of each number.
pub struct Own {
    pub nic: Nic,
    pub op: fn(u64) -> Operation,
    pub begun: u64,
}

impl Work for Own {
    fn begin(&mut self) -> Result<bool, String> {
        self.nic.op = (self.op)(self.begun);
        let begins = self.nic.begin()?;
        self.begun += u64::from(begins);
        Ok(begins)
    }

    fn ended(&mut self) -> Result<u64, String> {
        self.nic.ended()
    }
}

/// gWRITEs to one server after the other; each server's application tells the next one.
pub struct OnPath {
    pub first: Nic,
    pub size: u64,
    /// The first application, and the last one.
    pub to: UnixStream,
    pub from: UnixStream,
}

/// What an application is told: so many operations, of so many bytes.
pub type Note = [u8; 16];

/// Make a note.
pub fn note(count: u64, size: u64) -> Note {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&count.to_ne_bytes());
    bytes[8..].copy_from_slice(&size.to_ne_bytes());
    bytes
}

/// The numbers of a note.
pub fn numbers(note: &Note) -> [u64; 2] {
    let half = |at: usize| u64::from_ne_bytes(note[at..at + 8].try_into().unwrap_or_default());
    [half(0), half(8)]
}

impl Work for OnPath {
    fn begin(&mut self) -> Result<bool, String> {
        self.first.begin()
    }

    fn ended(&mut self) -> Result<u64, String> {
        let landed = self.first.ended()?;
        if landed > 0 {
            self.to.write_all(&note(landed, self.size)).map_err(text)?;
        }
        let mut told = Note::default();
        match self.from.read(&mut told) {
            Ok(0) => Err("an application ended".into()),
            // Notes are written whole, and the socket splits none so small.
            Ok(_) => Ok(numbers(&told)[0]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(text(error)),
        }
    }
}

/// WRITEs from the client to every replica.
pub struct FanOut {
    pub qps: Vec<Arc<Qp>>,
    pub cq: Arc<Cq>,
    pub buffer: Arc<Mr>,
    /// Address and key of each replica.
    pub places: Vec<(u64, u32)>,
    pub size: usize,
    /// Completions of each queue pair, and operations that all have completed.
    pub completed: Vec<u64>,
    pub done: u64,
}

impl Work for FanOut {
    fn begin(&mut self) -> Result<bool, String> {
        for (i, (qp, (addr, rkey))) in self.qps.iter().zip(&self.places).enumerate() {
            let data = [self.buffer.sge(0, self.size)];
            let op = SendOp::Write { addr: *addr, rkey: *rkey };
            qp.post_send(&SendWr::new(i as u64, op, Data::Sges(&data))).map_err(text)?;
        }
        Ok(true)
    }

    fn ended(&mut self) -> Result<u64, String> {
        let mut found = [Wc::default(); 16];
        let count = self.cq.poll(&mut found).map_err(text)?;
        for wc in &found[..count] {
            if wc.status() != Status::SUCCESS {
                return Err(format!("a WRITE failed: {}", wc.status()));
            }
            self.completed[wc.wr_id() as usize] += 1;
        }
        let done = self.completed.iter().copied().min().unwrap_or(0);
        Ok(done - std::mem::replace(&mut self.done, done))
    }
}

/// memcpy to every replica, by the client itself.
pub struct Copies {
    pub from: Buffer,
    pub to: Vec<Buffer>,
    pub size: usize,
    pub done: u64,
}

impl Work for Copies {
    fn begin(&mut self) -> Result<bool, String> {
        self.to.iter().for_each(|to| self.from.copy_to(to, 0, self.size));
        self.done += 1;
        Ok(true)
    }

    fn ended(&mut self) -> Result<u64, String> {
        Ok(std::mem::take(&mut self.done))
    }
}

/// A chain without any device, one operation at a time.
pub enum Bare {
    /// One process that spins, and copies from replica to replica what the client has written to the first one.
    One { shared: Shared, size: usize, asked: u64, ended: u64 },
    /// A process for each replica, which sleeps: the first one's eventfd, and the client's.
    Each { to: OwnedFd, from: OwnedFd, ended: u64 },
}

impl Work for Bare {
    fn begin(&mut self) -> Result<bool, String> {
        match self {
            Bare::One { shared, size, asked, ended } => {
                *asked += 1;
                *ended += 1;
                chain::ask(shared, *size, *asked).map_err(text)?;
            }
            Bare::Each { to, from, ended } => {
                *ended += 1;
                chain::ring(&*to).and_then(|()| chain::heard(&*from)).map_err(text)?;
            }
        }
        Ok(true)
    }

    fn ended(&mut self) -> Result<u64, String> {
        match self {
            Bare::One { ended, .. } | Bare::Each { ended, .. } => Ok(std::mem::take(ended)),
        }
    }
}
