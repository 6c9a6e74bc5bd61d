//! Several pairs of processes at the same time. This process starts the first process of each pair, which starts the
//! second, and gives the signal for each measurement.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::answer::Job;
use super::case::{Bytes, Case, Operation, Quantity, Transport};
use super::end::{End, Hello, Room};
use super::results::ProcessPairRow;
use super::stats::{Samples, Spread};
use super::{Options, measure, pin};
use crate::fixture::{DeviceOptions, Endpoint};
use crate::link::{Link, Other, Role};

/// The largest message here, in bytes; each pair has memory for a few.
const LARGEST: usize = 64 << 10;

/// The cases that all pairs measure at the same time.
fn cases() -> [Case; 4] {
    let rc = |operation, bytes| Case::bandwidth(Transport::Rc, operation, bytes);
    [
        Case::latency(Transport::Rc, Operation::Send, 8),
        rc(Operation::Send, 8),
        rc(Operation::Send, LARGEST),
        rc(Operation::Write, LARGEST),
    ]
}

/// The order to the first process of a pair.
#[derive(Serialize, Deserialize)]
struct Order {
    /// The two cores, where the processes are pinned.
    cores: Option<[usize; 2]>,
}

/// The signal for a measurement of all pairs; `None` ends them.
#[derive(Serialize, Deserialize)]
struct Go {
    case: Case,
    rounds: u32,
    milliseconds: u64,
}

/// The result of one pair.
#[derive(Serialize, Deserialize)]
struct Told {
    /// The latency in microseconds, one way.
    latency: Option<f64>,
    /// The rate in messages a second.
    rate: Option<f64>,
}

/// Start `options.pairs` pairs and measure.
pub fn run(options: &Options, cores: Option<[usize; 2]>) -> Result<Vec<(Case, ProcessPairRow)>, String> {
    let pairs = options.pairs as usize;
    let mut firsts = Vec::new();
    for number in 0..pairs {
        let mut first = Other::start(Role::BenchPair, &options.device)?;
        // Half of the first processes are on either core.
        let cores = cores.map(|[a, b]| if number % 2 == 0 { [a, b] } else { [b, a] });
        first.link.send(&Order { cores })?;
        firsts.push(first);
    }
    for first in &mut firsts {
        let () = first.link.receive()?;
    }
    let mut rows = Vec::new();
    for case in cases() {
        let go = Go { case, rounds: options.rounds, milliseconds: options.time };
        for first in &mut firsts {
            first.link.send(&Some(&go))?;
        }
        let told: Result<Vec<Result<Told, String>>, String> =
            firsts.iter_mut().map(|first| first.link.receive()).collect();
        let told: Vec<Told> =
            told?.into_iter().collect::<Result<_, _>>().map_err(|error| format!("{case}: {error}"))?;
        rows.push((case, row(pairs, &case, &told)));
    }
    for first in &mut firsts {
        first.link.send(&None::<Go>)?;
    }
    Ok(rows)
}

fn row(pairs: usize, case: &Case, told: &[Told]) -> ProcessPairRow {
    let latencies: Vec<f64> = told.iter().filter_map(|told| told.latency).collect();
    let rate: f64 = told.iter().filter_map(|told| told.rate).sum();
    let rate = (case.quantity == Quantity::Bandwidth).then_some(rate);
    ProcessPairRow {
        pairs,
        what: format!("{} {}", case.transport.name(), case.operation.name()),
        bytes: case.bytes,
        microseconds: (!latencies.is_empty()).then(|| Spread::of(&latencies)),
        gigabytes_per_second: rate.map(|rate| rate * case.bytes as f64 / 1e9),
        million_messages_per_second: rate.map(|rate| rate / 1e6),
        limit: None,
    }
}

/// Run the first process of a pair.
pub fn first(link: &mut Link, device: &DeviceOptions) -> Result<(), String> {
    let Order { cores } = link.receive()?;
    let mut other = Other::start(Role::Bench, device)?;
    let room = Room::new(LARGEST, false);
    other.link.send(&Hello { core: cores.map(|[_, theirs]| theirs), room })?;
    if let Some([ours, _]) = cores {
        pin::pin(ours);
    }
    let end = End::open(device, room, None, |ours: Vec<Endpoint>| {
        other.link.send(&ours)?;
        other.link.receive()
    })?;
    let () = other.link.receive()?;
    link.send(&())?;
    while let Some(Go { case, rounds, milliseconds }) = link.receive()? {
        let told = one(&end, &mut other.link, &case, rounds, Duration::from_millis(milliseconds));
        link.send(&told)?;
    }
    other.link.send(&Job::End)
}

/// Measure for as long as all rounds take, at one go: rates can be added up only while all pairs are at work.
fn one(end: &End, link: &mut Link, case: &Case, rounds: u32, budget: Duration) -> Result<Told, String> {
    let budget = budget * rounds;
    if case.quantity == Quantity::Latency {
        let mut samples = Samples::new();
        samples.round(&measure::latency(end, link, case, budget)?);
        return Ok(Told { latency: Some(samples.spread(2.0).median), rate: None });
    }
    let rate = measure::bandwidth(end, link, case, budget)?;
    Ok(Told { latency: None, rate: Some(rate.messages as f64 / rate.time.as_secs_f64()) })
}

/// The text for the progress bar.
pub fn about(options: &Options) -> String {
    format!("{} pairs of processes, up to {}", options.pairs, Bytes(LARGEST))
}
