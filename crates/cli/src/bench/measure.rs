//! The process that measures, the initiator.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use quanta::Clock;

use rdma::SendOp;

use super::answer::{Job, wait, watch};
use super::case::{Case, Operation, Quantity, Transport, Waiting};
use super::end::{DEPTH, End, Lane, RECEIVES, Room, walk};
use super::wait::{Watch, poll_for, reap};
use super::{begin, finish};
use crate::fixture::text;
use crate::link::Link;

/// The number of small requests of which one asks for a completion, as programs do that are written for speed.
const BATCH: u64 = 16;
/// The number of round trips that show how many fit into the time.
const WARM_UP: u32 = 30;
/// A number below which it is not worth giving the target a job.
const FEWEST: f64 = 10.0;
/// A number of samples beyond which more show nothing new.
const MOST: f64 = 50_000.0;
/// The bytes under way.
const IN_FLIGHT: usize = 4 << 20;
/// The READs under way: the limit with which the queue pairs were connected.
const READS: u64 = 16;

/// A number of messages in a time.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// The number of messages that arrived.
    pub messages: u64,
    /// The time.
    pub time: Duration,
}

/// A sender of requests of which few ask for a completion.
pub struct Sender {
    total: u64,
    posted: u64,
    done: u64,
}

impl Sender {
    /// A sender of `total` requests.
    pub fn new(total: u32) -> Self {
        Sender { total: total.into(), posted: 0, done: 0 }
    }

    /// Post one request.
    #[inline]
    pub fn post(&mut self, end: &End, lane: &Lane, op: SendOp<'_>, size: usize) -> Result<(), String> {
        self.posted += 1;
        let over = self.posted % BATCH;
        let stands_for = match (over, self.posted == self.total) {
            (0, _) => BATCH,
            (_, true) => over,
            _ => 0,
        };
        end.post(lane, op, Room::SOURCE, size, stands_for as u32)?;
        if stands_for > 0 {
            self.done += reap(&lane.sends)?;
            self.done = poll_for(&lane.sends, self.done, self.posted.saturating_sub(u64::from(DEPTH) / 2))?;
        }
        Ok(())
    }

    /// Wait until all are done: the answer may overtake the completion of the request that it answers.
    pub fn finish(&mut self, lane: &Lane) -> Result<(), String> {
        self.done = poll_for(&lane.sends, self.done, self.posted)?;
        Ok(())
    }
}

/// The byte that the `turn`th WRITE puts last: never the same twice in a row, never 0.
pub fn mark(turn: u32) -> u8 {
    (turn % 255 + 1) as u8
}

/// The times of single messages, there and back, for about `budget`.
pub fn latency(end: &End, link: &mut Link, case: &Case, budget: Duration) -> Result<Vec<Duration>, String> {
    debug_assert_eq!(case.quantity, Quantity::Latency);
    clock(); // calibrated before the measurement
    let began = Instant::now();
    let warm_up = turns(end, link, case, WARM_UP)?;
    let left = budget.saturating_sub(began.elapsed());
    // The median is taken, because the first ones may take long.
    let mut sorted = warm_up.clone();
    sorted.sort_unstable();
    let typical = sorted[sorted.len() / 2].as_secs_f64().max(1e-9);
    // The warm-up has not taken most of the time.
    if left < budget / 2 {
        return Ok(warm_up);
    }
    turns(end, link, case, (left.as_secs_f64() / typical).clamp(FEWEST, MOST) as u32)
}

/// The times of `count` round trips.
fn turns(end: &End, link: &mut Link, case: &Case, count: u32) -> Result<Vec<Duration>, String> {
    let lane = end.lane(case)?;
    let stamps = match case.operation {
        Operation::Send => ping_send(end, link, lane, case, count)?,
        Operation::Write => ping_write(end, link, lane, case, count)?,
        _ => fetch(end, link, lane, case, count)?,
    };
    // Each round trip ends when the next one begins, so there is one reading of the clock for each.
    Ok(stamps.at.windows(2).map(|pair| stamps.clock.delta(pair[0], pair[1])).collect())
}

/// The clock, which is calibrated once; that takes tens of milliseconds.
fn clock() -> Clock {
    static CLOCK: OnceLock<Clock> = OnceLock::new();
    CLOCK.get_or_init(Clock::new).clone()
}

/// The times at which round trips ended. The clock is the processor's counter, where it runs evenly, as perftest's is:
/// reading it is quicker than reading the system's, and does not wait for other work.
struct Stamps {
    clock: Clock,
    at: Vec<u64>,
}

impl Stamps {
    fn new(count: u32) -> Self {
        // Written before it is needed, so that its pages are there.
        let mut at: Vec<u64> = (0..=u64::from(count)).collect();
        at.clear();
        Stamps { clock: clock(), at }
    }

    #[inline]
    fn now(&mut self) {
        self.at.push(self.clock.raw());
    }
}

fn ping_send(end: &End, link: &mut Link, lane: &Lane, case: &Case, count: u32) -> Result<Stamps, String> {
    end.fill(lane, RECEIVES)?;
    if case.waiting == Waiting::Events {
        lane.receives.arm(false).map_err(text)?;
    }
    begin(link, &Job::Pong { case: *case, count })?;
    let mut stamps = Stamps::new(count);
    let mut sender = Sender::new(count);
    let mut received = 0;
    let mut all = || {
        stamps.now();
        for turn in 1..=u64::from(count) {
            sender.post(end, lane, SendOp::Send, case.bytes)?;
            // This is done while the message travels.
            end.fill(lane, RECEIVES)?;
            received = wait(lane, case, received, turn, count.into())?;
            stamps.now();
        }
        sender.finish(lane)
    };
    both(all(), link)?;
    Ok(stamps)
}

/// The result of this side, when the other one has come to an end as well: also where a message was lost.
fn both(ours: Result<(), String>, link: &mut Link) -> Result<u64, String> {
    let theirs = finish(link);
    ours.and(theirs)
}

fn ping_write(end: &End, link: &mut Link, lane: &Lane, case: &Case, count: u32) -> Result<Stamps, String> {
    let last = end.room.sink() + case.bytes - 1;
    end.mr.store(last, 0);
    begin(link, &Job::Pong { case: *case, count })?;
    let op = SendOp::Write { addr: lane.peer.addr + end.room.sink() as u64, rkey: lane.peer.rkey };
    let mut stamps = Stamps::new(count);
    let mut sender = Sender::new(count);
    let mut all = || {
        stamps.now();
        for turn in 0..count {
            let mark = mark(turn);
            end.mr.store(Room::SOURCE + case.bytes - 1, mark);
            sender.post(end, lane, op, case.bytes)?;
            watch(end, last, mark)?;
            stamps.now();
        }
        sender.finish(lane)
    };
    both(all(), link)?;
    Ok(stamps)
}

/// Measure READs and atomics.
fn fetch(end: &End, link: &mut Link, lane: &Lane, case: &Case, count: u32) -> Result<Stamps, String> {
    let sleeps = case.waiting == Waiting::Events;
    if sleeps {
        lane.sends.arm(false).map_err(text)?;
    }
    begin(link, &Job::Idle { awake: case.awake })?;
    let rkey = lane.peer.rkey;
    let (addr, word) = (lane.peer.addr + end.room.sink() as u64, lane.peer.addr + end.room.word() as u64);
    let mut stamps = Stamps::new(count);
    stamps.now();
    for turn in 1..=u64::from(count) {
        let op = match case.operation {
            Operation::FetchAdd => SendOp::FetchAdd { addr: word, rkey, add: 1 },
            Operation::CompareSwap => SendOp::CompareSwap { addr: word, rkey, compare: turn, swap: turn + 1 },
            _ => SendOp::Read { addr, rkey },
        };
        end.post(lane, op, Room::SOURCE, case.bytes, 1)?;
        if sleeps {
            lane.sleep_for_sends(turn == u64::from(count), 0, 1)?;
        } else {
            poll_for(&lane.sends, 0, 1)?;
        }
        stamps.now();
    }
    link.send(&())?;
    finish(link)?;
    Ok(stamps)
}

/// Measure as many messages as go in about `budget`.
pub fn bandwidth(end: &End, link: &mut Link, case: &Case, budget: Duration) -> Result<Rate, String> {
    debug_assert_eq!(case.quantity, Quantity::Bandwidth);
    let lane = end.lane(case)?;
    let send = case.operation == Operation::Send;
    let sleeps = case.waiting == Waiting::Events;
    if sleeps {
        lane.sends.arm(false).map_err(text)?;
    }
    begin(link, &if send { Job::Sink(*case) } else { Job::Idle { awake: case.awake } })?;
    // One of 16 small messages asks for a completion.
    let (batch, depth) = match (case.operation, case.bytes) {
        (Operation::Read, _) => (1, READS),
        (_, 0..4096) => (BATCH, u64::from(DEPTH)),
        (_, bytes) => (1, (IN_FLIGHT / bytes).clamp(4, 64) as u64),
    };
    let (mut posted, mut done) = (0u64, 0u64);
    // The first messages wake the target and fill the rings.
    let warm_up = 2 * depth;
    let mut start = Instant::now();
    let mut measured_from = None;
    let mut watch = Watch::new();
    loop {
        if measured_from.is_none() && (done >= warm_up || start.elapsed() > budget) {
            measured_from = Some(done);
            start = Instant::now();
        }
        // The clock is read after a full window of messages, not after every message.
        if posted.is_multiple_of(depth) && measured_from.is_some() && start.elapsed() >= budget {
            break;
        }
        for _ in 0..batch {
            let offset = if case.walking { walk(posted) } else { 0 };
            let (addr, rkey) = (lane.peer.addr + (end.room.sink() + offset) as u64, lane.peer.rkey);
            let op = match case.operation {
                Operation::Send => SendOp::Send,
                Operation::Read => SendOp::Read { addr, rkey },
                _ => SendOp::Write { addr, rkey },
            };
            posted += 1;
            let stands_for = if posted.is_multiple_of(batch) { batch as u32 } else { 0 };
            end.post(lane, op, Room::SOURCE + offset, case.bytes, stands_for)?;
        }
        if sleeps {
            done = lane.sleep_for_sends(false, done, (posted + batch).saturating_sub(depth))?;
        }
        while posted + batch - done > depth {
            done += reap(&lane.sends)?;
            watch.tick()?;
        }
        watch = Watch::new();
    }
    if sleeps {
        lane.sleep_for_sends(true, done, posted)?;
    } else {
        poll_for(&lane.sends, done, posted)?;
    }
    let time = start.elapsed();
    let arrived = match send {
        true => {
            say_over(end, case)?;
            finish(link)?
        }
        false => {
            link.send(&())?;
            finish(link)?;
            posted
        }
    };
    let before = measured_from.unwrap_or(0);
    // The part that an unreliable transport lost is taken to be the same in warming up.
    let arrived = if arrived == posted { posted - before } else { arrived * (posted - before) / posted.max(1) };
    Ok(Rate { messages: arrived, time })
}

/// The case that brings the last message to a target that sleeps: it arrives, whatever was measured.
pub const LAST: Case = Case {
    quantity: Quantity::Bandwidth,
    transport: Transport::Rc,
    operation: Operation::Send,
    waiting: Waiting::Events,
    walking: false,
    awake: false,
    bytes: 1,
};

/// Tell a target that it was the last message, over the reliable connection: a target that polls by a byte in its
/// memory, one that sleeps by a message.
fn say_over(end: &End, case: &Case) -> Result<(), String> {
    if case.waiting == Waiting::Events {
        let lane = end.lane(&LAST)?;
        end.post(lane, SendOp::SendImm(0), Room::SOURCE, LAST.bytes, 1)?;
        return poll_for(&lane.sends, 0, 1).map(|_| ());
    }
    let lane = end.lane(&Case::latency(Transport::Rc, Operation::Write, case.bytes))?;
    let over = end.room.over();
    end.mr.store(over, 1);
    let op = SendOp::Write { addr: lane.peer.addr + over as u64, rkey: lane.peer.rkey };
    end.post(lane, op, over, 1, 1)?;
    poll_for(&lane.sends, 0, 1)?;
    end.mr.store(over, 0);
    Ok(())
}

/// Measure one poll of an empty completion queue.
pub fn empty_poll(end: &End, link: &mut Link, budget: Duration) -> Result<Duration, String> {
    const POLLS: u32 = 1000;
    begin(link, &Job::Idle { awake: false })?;
    let [sends, receives] = end.polled();
    let began = Instant::now();
    let mut figures = Vec::new();
    while began.elapsed() < budget || figures.is_empty() {
        let start = Instant::now();
        for _ in 0..POLLS / 2 {
            let found = reap(sends)? + reap(receives)?;
            debug_assert_eq!(found, 0);
        }
        figures.push(start.elapsed() / POLLS);
    }
    link.send(&())?;
    finish(link)?;
    figures.sort_unstable();
    Ok(figures[figures.len() / 2])
}
