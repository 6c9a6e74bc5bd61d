//! The side that measures.

use std::time::{Duration, Instant};

use rdma::SendOp;

use super::end::{DEPTH, End, Job, SINK, SOURCE, Tally, WORD, Watch, percentiles};
use super::{begin, finish};
use crate::bed::Endpoint;
use crate::link::Link;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// SEND into a posted receive.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ, while the target polls.
    Read,
    /// RDMA READ, while the target sleeps.
    ReadIdle,
    /// Fetch and add, while the target polls.
    FetchAdd,
    /// Fetch and add, while the target sleeps.
    FetchAddIdle,
    /// Compare and swap, while the target polls.
    CompareSwap,
}

impl Operation {
    /// The name of its column.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Send => "SEND",
            Operation::Write => "WRITE",
            Operation::Read => "READ",
            Operation::ReadIdle => "READ*",
            Operation::FetchAdd => "FETCH_ADD",
            Operation::FetchAddIdle => "FETCH_ADD*",
            Operation::CompareSwap => "CMP_SWAP",
        }
    }

    /// True for those that a device may lack.
    pub fn is_atomic(self) -> bool {
        matches!(self, Operation::FetchAdd | Operation::FetchAddIdle | Operation::CompareSwap)
    }
}

/// A latency.
pub struct Latency {
    /// Half of all are shorter.
    pub median: Duration,
    /// One of a hundred is longer.
    pub p99: Duration,
    /// The longest of all, there and back.
    pub longest: Duration,
}

/// A bandwidth.
pub struct Bandwidth {
    /// Messages.
    pub messages: u64,
    /// In this time.
    pub time: Duration,
}

/// Round trips to find out how many fit into the time.
const WARM_UP: u32 = 100;
/// Fewer at a time are not worth telling the target.
const FEWEST: f64 = 10.0;
/// More samples than this tell nothing new.
const MOST: usize = 100_000;
/// Bytes under way.
const IN_FLIGHT: usize = 4 << 20;
/// READs under way: what the queue pairs were connected with.
const READS: u64 = 16;

/// Measures a latency for about `budget`.
pub fn latency(
    end: &End,
    peer: &Endpoint,
    link: &mut Link,
    operation: Operation,
    size: usize,
    budget: Duration,
) -> Result<Latency, String> {
    let began = Instant::now();
    let mut samples: Vec<Duration> = Vec::new();
    let mut count = WARM_UP;
    loop {
        let round = round(end, peer, link, operation, size, count)?;
        let mean = round.iter().sum::<Duration>().as_secs_f64() / f64::from(count);
        let left = budget.saturating_sub(began.elapsed());
        // The first round warms up, unless it has taken most of the time.
        if count != WARM_UP || left < budget / 2 {
            samples.extend(round);
        }
        if left.is_zero() || samples.len() >= MOST {
            break;
        }
        let fitting = (left.as_secs_f64() / mean.max(1e-9)).clamp(FEWEST, MOST as f64) as u32;
        count = if fitting == WARM_UP { WARM_UP + 1 } else { fitting };
    }
    let (median, p99) = percentiles(&mut samples);
    let longest = samples.last().copied().unwrap_or_default();
    let ways = if matches!(operation, Operation::Send | Operation::Write) { 2 } else { 1 };
    Ok(Latency { median: median / ways, p99: p99 / ways, longest })
}

/// The times of `count` round trips.
fn round(
    end: &End,
    peer: &Endpoint,
    link: &mut Link,
    operation: Operation,
    size: usize,
    count: u32,
) -> Result<Vec<Duration>, String> {
    let mut tally = Tally::default();
    let mut samples = Vec::with_capacity(count as usize);
    let mut timed = |step: &mut dyn FnMut(u32) -> Result<(), String>| -> Result<(), String> {
        for i in 0..count {
            let start = Instant::now();
            step(i)?;
            samples.push(start.elapsed());
        }
        Ok(())
    };
    let addr = peer.addr + SINK as u64;
    let rkey = peer.rkey;
    match operation {
        Operation::Send => {
            end.post_receive(size)?;
            begin(link, &Job::PongSend { size, count })?;
            timed(&mut |i| {
                let expected = tally.received + 1;
                end.post(SendOp::Send, SOURCE, size, 1)?;
                tally.wait(&end.cq, |tally| tally.received == expected)?;
                if i + 1 < count { end.post_receive(size) } else { Ok(()) }
            })?;
        }
        Operation::Write => {
            end.mr.store(SINK + size - 1, 0);
            begin(link, &Job::PongWrite { size, count })?;
            timed(&mut |i| {
                let mark = mark(i);
                end.mr.store(SOURCE + size - 1, mark);
                end.post(SendOp::Write { addr, rkey }, SOURCE, size, 1)?;
                tally.wait(&end.cq, |_| end.mr.load(SINK + size - 1) == mark)
            })?;
        }
        _ => {
            let idle = matches!(operation, Operation::ReadIdle | Operation::FetchAddIdle);
            let job = if idle { Job::Sleep } else { Job::Serve { size } };
            begin(link, &job)?;
            let word = peer.addr + WORD as u64;
            let op = |i: u32| match operation {
                Operation::Read | Operation::ReadIdle => SendOp::Read { addr, rkey },
                Operation::FetchAdd | Operation::FetchAddIdle => SendOp::FetchAdd { addr: word, rkey, add: 1 },
                _ => SendOp::CompareSwap { addr: word, rkey, compare: u64::from(i), swap: u64::from(i) + 1 },
            };
            timed(&mut |i| {
                let expected = tally.sent + 1;
                end.post(op(i), SOURCE, size, 1)?;
                tally.wait(&end.cq, |tally| tally.sent == expected)
            })?;
            if idle {
                link.send(&())?;
            } else {
                say_end(end, peer, &mut tally)?;
            }
            finish(link)?;
            return Ok(samples);
        }
    }
    finish(link)?;
    // The answer may overtake the completion of what it answers.
    tally.wait(&end.cq, |tally| tally.sent == u64::from(count))?;
    Ok(samples)
}

/// The byte that the `i`th WRITE puts last: never the same twice in a row, never 0.
pub fn mark(i: u32) -> u8 {
    (i % 255 + 1) as u8
}

/// Tells a polling target that it was the last one: an immediate value without data.
fn say_end(end: &End, peer: &Endpoint, tally: &mut Tally) -> Result<(), String> {
    let expected = tally.sent + 1;
    let op = SendOp::WriteImm { addr: peer.addr + SINK as u64, rkey: peer.rkey, imm: 1 };
    end.post(op, SOURCE, 0, 1)?;
    tally.wait(&end.cq, |tally| tally.sent == expected)
}

/// Measures a bandwidth for about `budget`.
pub fn bandwidth(
    end: &End,
    peer: &Endpoint,
    link: &mut Link,
    operation: Operation,
    size: usize,
    budget: Duration,
) -> Result<Bandwidth, String> {
    begin(link, &Job::Serve { size })?;
    let (addr, rkey) = (peer.addr + SINK as u64, peer.rkey);
    let op = match operation {
        Operation::Send => SendOp::Send,
        Operation::Read => SendOp::Read { addr, rkey },
        _ => SendOp::Write { addr, rkey },
    };
    // A completion for every 16th of small messages, as programs do that care.
    let (batch, depth) = match (operation, size) {
        (Operation::Read, _) => (1, READS),
        (_, 0..4096) => (16, u64::from(DEPTH)),
        _ => (1, (IN_FLIGHT / size).clamp(4, 64) as u64),
    };
    let mut tally = Tally::default();
    let mut posted = 0u64;
    // The first ones wake the target and fill the rings.
    let warm_up = 2 * depth;
    let mut start = Instant::now();
    let mut measured_from = None;
    let mut watch = Watch::new();
    loop {
        if measured_from.is_none() && (tally.sent >= warm_up || start.elapsed() > budget) {
            measured_from = Some(tally.sent);
            start = Instant::now();
        }
        // The clock after every window's worth, not after every message.
        if posted.is_multiple_of(depth) && measured_from.is_some() && start.elapsed() >= budget {
            break;
        }
        for _ in 0..batch {
            posted += 1;
            let stands_for = if posted.is_multiple_of(batch) { batch as u32 } else { 0 };
            end.post(op, SOURCE, size, stands_for)?;
        }
        while posted + batch - tally.sent > depth {
            tally.poll(&end.cq)?;
            watch.tick()?;
        }
        watch = Watch::new();
    }
    tally.wait(&end.cq, |tally| tally.sent == posted)?;
    let time = start.elapsed();
    say_end(end, peer, &mut tally)?;
    finish(link)?;
    Ok(Bandwidth { messages: posted - measured_from.unwrap_or(0), time })
}
