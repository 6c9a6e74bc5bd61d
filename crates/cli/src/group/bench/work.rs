//! What is measured: things that do one operation for all replicas, and how long each takes.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use group::{Client, Error, Operation};
use limits::{Buffer, Shared, chain};
use rdma::{Cq, Data, Mr, Qp, SendOp, SendWr, Status, Wc};

use super::row::Measured;
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
    turns(work, warm)?;
    turns(work, effort)
}

fn turns(work: &mut dyn Work, effort: Effort) -> Result<Measured, String> {
    let mut took = histogram()?;
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
    let seconds = last.duration_since(start).saturating_sub(paused).as_secs_f64();
    let per_second = if seconds > 0.0 { done as f64 / seconds } else { 0.0 };
    Ok(Measured { operations: done, per_second, microseconds: Times::of(&took) })
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
        while self.client.poll().map_err(text)?.is_some() {
            ended += 1;
        }
        Ok(ended)
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
