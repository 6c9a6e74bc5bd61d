//! A run: everything once in every round, so that a disturbance of the machine disturbs all alike.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::answer::Job;
use super::case::{Case, Operation, Quantity, Transport};
use super::end::{End, Hello, Room, WALKED};
use super::limits::{LimitCase, Stand};
use super::machine::Machine;
use super::peers::Peers;
use super::plan::Plan;
use super::results::{BandwidthRow, LatencyRow, LimitRow, QueuePairRow, Results, SCHEMA, SELF, Setup};
use super::stats::{Samples, Spread};
use super::{Options, measure, pairs, pin, summary};
use crate::fixture::Endpoint;
use crate::link::{Link, Other, Role};

/// Room for the small messages that are measured with any options, in bytes.
const MINIMUM: usize = 4096;

/// The figures as they come in.
#[derive(Default)]
struct Figures {
    limits: BTreeMap<LimitCase, Vec<f64>>,
    /// The limits that other programs are compared with, measured just before them.
    before_others: BTreeMap<LimitCase, Vec<f64>>,
    latency: BTreeMap<Case, Samples>,
    /// The rates in messages a second.
    rates: BTreeMap<Case, Vec<f64>>,
    /// The unreliable transports that lost a message of a round trip, with the line for the report.
    lost: BTreeMap<Transport, String>,
}

/// Measure the cases that the options select.
pub fn measure(options: &Options) -> Result<Results, String> {
    // Taken before this process is pinned to one of its cores.
    let machine = Machine::this();
    let (library, device) = options.device.find()?;
    let cores = if options.no_pin { None } else { pin::two_cores() };
    let setup = Setup {
        device: device.name(),
        library: library.path().to_owned(),
        cores: cores.map(|(ours, theirs)| [ours, theirs]),
        rounds: options.rounds,
        time_ms: options.time,
    };
    drop((library, device));
    let mut other = Other::start(Role::Bench, &options.device)?;
    let sizes = options.sizes.list();
    // No more memory than is used: on an adapter registered memory is locked, and that may be scarce.
    let largest = sizes.iter().copied().max().unwrap_or(0).max(MINIMUM);
    let room = Room::new(largest, sizes.contains(&WALKED));
    other.link.send(&Hello { core: cores.map(|(_, theirs)| theirs), room })?;
    if let Some((ours, _)) = cores {
        pin::pin(ours);
    }
    let link = &mut other.link;
    let mut end = open(options, room, link)?;
    let plan = Plan::new(options, &options.sizes, end.atomics, |transport| end.largest(transport));
    if plan.cases.is_empty() {
        return Err(
            "nothing is left to measure: RC knows all operations, UC SEND and WRITE, UD SEND; who looks for a \
            WRITE in his memory has no events"
                .into(),
        );
    }
    let limits = LimitCase::all(&plan.limit_sizes());
    let (ours, theirs) = end.places()?;
    let mut stand = Stand::new(link, ours, theirs)?;

    let mut figures = Figures::default();
    let latencies = plan.cases.iter().filter(|case| case.quantity == Quantity::Latency);
    let mut peers = options.peer.then(|| Peers::new(options, &latencies.map(|case| case.bytes).collect::<Vec<_>>()));
    let mut all = (limits.len() + plan.cases.len() + options.qps.len()) * options.rounds as usize;
    if let Some(peers) = &peers {
        let again = held_again(&limits).len();
        all += (0..options.rounds).filter(|round| peers.join(*round)).count() * (peers.in_round() + again);
    }
    let progress = progress(all as u64);
    for round in 0..options.rounds {
        let mut left = limits.clone();
        let mut limit = |case: LimitCase, link: &mut Link, into: &mut BTreeMap<LimitCase, Vec<f64>>| {
            progress.set_message(case.to_string());
            // Limits are steadier than the device's figures, and need less time.
            if let Some(figure) = stand.measure(link, case, options.budget() / 5)? {
                into.entry(case).or_default().push(figure);
            }
            progress.inc(1);
            Ok::<_, String>(())
        };
        for case in &plan.cases {
            // The limits of the case are measured just before it: a machine that others share changes within seconds.
            // The smallest messages are not in the summary.
            let beside = LimitCase::beside(case).concat();
            for held in left.extract_if(.., |limit| case.bytes >= summary::SMALL && beside.contains(limit)) {
                limit(held, link, &mut figures.limits)?;
            }
            progress.set_message(case.to_string());
            if !figures.lost.contains_key(&case.transport) {
                one(&end, link, case, options.budget(), &mut figures)?;
            }
            progress.inc(1);
        }
        for held in left {
            limit(held, link, &mut figures.limits)?;
        }
        if let Some(peers) = peers.as_mut().filter(|peers| peers.join(round)) {
            let mut left = held_again(&limits);
            for mut group in peers.groups() {
                let beside: Vec<_> = group.cases().flat_map(|case| LimitCase::beside(case).concat()).collect();
                let own: Vec<_> = left.extract_if(.., |limit| beside.contains(limit)).collect();
                let mut told = BTreeMap::new();
                progress.inc_length((own.len() * (group.turns() - 1)) as u64);
                for _ in 0..group.turns() {
                    for held in &own {
                        limit(*held, link, &mut told)?;
                    }
                    link.send(&Job::Rest)?;
                    let start = Instant::now();
                    group.turn(setup.cores, |what| {
                        progress.set_message(what.to_owned());
                        progress.inc(1);
                    });
                    link.send(&())?;
                    if start.elapsed() > group.long() {
                        break;
                    }
                }
                group.end();
                for (held, told) in told {
                    figures.before_others.entry(held).or_default().push(Spread::of(&told).median);
                }
            }
            for held in left {
                limit(held, link, &mut figures.before_others)?;
            }
        }
    }
    let mut results = results(machine, setup, figures, &limits);
    results.queue_pairs = queue_pairs(&mut end, link, options, &progress)?;
    link.send(&Job::End)?;
    // The other processes have the cores to themselves.
    drop((stand, end, other));
    if options.pairs > 1 {
        progress.set_message(pairs::about(options));
        for (case, mut row) in pairs::run(options, results.setup.cores)? {
            let figure = row.microseconds.map(|spread| spread.median).or(row.gigabytes_per_second);
            let bytes = (case.quantity == Quantity::Bandwidth).then_some(case.bytes);
            let bound = results.bound(&case, false);
            row.limit = bound.zip(figure).map(|(bound, figure)| bound.beside(figure, &[], bytes));
            results.process_pairs.push(row);
        }
    }
    if let Some(peers) = peers {
        peers.finish(&mut results);
    }
    progress.finish_and_clear();
    results.summary = summary::goals(&results);
    Ok(results)
}

/// Open the device and connect with the other process.
pub fn open(options: &Options, room: Room, link: &mut Link) -> Result<End, String> {
    let end = End::open(&options.device, room, None, |ours: Vec<Endpoint>| {
        link.send(&ours)?;
        link.receive()
    })?;
    let () = link.receive()?;
    Ok(end)
}

/// The limits that other programs are compared with, measured once more beside them.
fn held_again(limits: &[LimitCase]) -> Vec<LimitCase> {
    let held = |limit: &&LimitCase| summary::SIZES.contains(&limit.bytes) || limit.bytes == 0;
    limits.iter().filter(held).copied().collect()
}

/// A progress bar, on a terminal only.
fn progress(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {percent:>3}%  {eta:>4} left  {msg}");
    ProgressBar::new(steps).with_style(style.expect("a template that is right"))
}

fn one(end: &End, link: &mut Link, case: &Case, budget: Duration, figures: &mut Figures) -> Result<(), String> {
    match case.quantity {
        Quantity::Latency => {
            let samples = match measure::latency(end, link, case, budget) {
                Ok(samples) => samples,
                // A message was lost; if it comes late, it would be taken for another one.
                Err(error) if case.transport != Transport::Rc => {
                    let name = case.transport.name();
                    figures.lost.insert(case.transport, format!("{case}: {error}; no more of {name} was measured"));
                    return Ok(());
                }
                Err(error) => return Err(format!("latency of {case}: {error}")),
            };
            figures.latency.entry(*case).or_insert_with(Samples::new).round(&samples);
        }
        Quantity::Bandwidth => {
            let rate = measure::bandwidth(end, link, case, budget);
            let rate = rate.map_err(|error| format!("bandwidth of {case}: {error}"))?;
            let rate = rate.messages as f64 / rate.time.as_secs_f64();
            figures.rates.entry(*case).or_default().push(rate);
        }
    }
    Ok(())
}

/// Measure with so many idle connections beside the one that works, by turns: a machine that others share changes its
/// speed in between.
fn queue_pairs(
    end: &mut End,
    link: &mut Link,
    options: &Options,
    progress: &ProgressBar,
) -> Result<Vec<QueuePairRow>, String> {
    let mut counts = options.qps.clone();
    counts.sort_unstable();
    let case = Case::latency(Transport::Rc, Operation::Send, 8);
    let mut figures: Vec<_> = counts.iter().map(|_| (Vec::new(), Samples::new(), Vec::new())).collect();
    for _ in 0..options.rounds {
        for (count, (connects, samples, polls)) in counts.iter().zip(&mut figures) {
            progress.set_message(format!("{count} queue pairs"));
            connects.extend(idle(end, link, *count as usize - 1)?.map(|time| time.as_secs_f64() * 1e3));
            samples.round(&measure::latency(end, link, &case, options.budget())?);
            polls.push(measure::empty_poll(end, link, options.budget() / 5)?.as_secs_f64() * 1e9);
            progress.inc(1);
        }
    }
    let row = |(count, (connects, samples, polls)): (&u32, (Vec<f64>, Samples, Vec<f64>))| QueuePairRow {
        idle: *count as usize - 1,
        connect_ms: Spread::of(&connects).median,
        send_microseconds: samples.spread(2.0),
        send_rounds: samples.rounds(2.0),
        poll_nanoseconds: Spread::of(&polls),
        poll_rounds: polls,
    };
    Ok(counts.iter().zip(figures).map(row).collect())
}

/// Make so many idle connections, or leave so many. The result is the time that it took to make those that were not
/// there yet.
fn idle(end: &mut End, link: &mut Link, count: usize) -> Result<Option<Duration>, String> {
    let leaves = end.idle_count() > count;
    let start = Instant::now();
    link.send(&Job::MakeIdle(count))?;
    let ours = end.make_idle(count)?;
    let theirs: Vec<Endpoint> = link.receive()?;
    link.send(&Job::ConnectIdle(ours))?;
    end.connect_idle(&theirs)?;
    let () = link.receive()?;
    Ok((!leaves).then(|| start.elapsed()))
}

fn results(machine: Machine, setup: Setup, figures: Figures, limits: &[LimitCase]) -> Results {
    let mut results = Results {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        machine,
        setup,
        limits: Vec::new(),
        latency: Vec::new(),
        bandwidth: Vec::new(),
        queue_pairs: Vec::new(),
        process_pairs: Vec::new(),
        summary: Vec::new(),
        missing: figures.lost.into_values().collect(),
    };
    for case in limits {
        let Some(rounds) = figures.limits.get(case).cloned() else {
            results.missing.push(format!("{case}: the system does not permit it"));
            continue;
        };
        let before_others = figures.before_others.get(case).cloned().unwrap_or_default();
        let microseconds = Spread::of(&rounds);
        let gigabytes_per_second = (case.bytes > 0).then(|| case.bytes as f64 / microseconds.median / 1e3);
        let LimitCase { limit, bytes, walking } = *case;
        let row = LimitRow { limit, bytes, walking, microseconds, rounds, before_others, gigabytes_per_second };
        results.limits.push(row);
    }
    for (case, samples) in &figures.latency {
        let ways = if case.operation.one_way() { 2.0 } else { 1.0 };
        let microseconds = samples.spread(ways);
        let rounds = samples.rounds(ways);
        let limit = results.bound(case, false).map(|bound| bound.beside(microseconds.median, &rounds, None));
        results.latency.push(LatencyRow {
            by: SELF.into(),
            what: format!("{} {}", case.transport.name(), case.operation.name()),
            transport: Some(case.transport),
            operation: Some(case.operation),
            waiting: case.waiting,
            bytes: case.bytes,
            one_way: case.operation.one_way(),
            microseconds,
            rounds,
            percentiles: Some(samples.percentiles(ways)),
            samples: samples.count(),
            limit,
        });
    }
    for (case, rates) in &figures.rates {
        let row = bandwidth_row(&results, case, rates);
        results.bandwidth.push(row);
    }
    results
}

fn bandwidth_row(results: &Results, case: &Case, rates: &[f64]) -> BandwidthRow {
    let gigabytes: Vec<f64> = rates.iter().map(|rate| rate * case.bytes as f64 / 1e9).collect();
    let gigabytes_per_second = Spread::of(&gigabytes);
    let limit = results.bound(case, false);
    let limit = limit.map(|bound| bound.beside(gigabytes_per_second.median, &gigabytes, Some(case.bytes)));
    BandwidthRow {
        by: SELF.into(),
        what: format!("{} {}", case.transport.name(), case.operation.name()),
        transport: Some(case.transport),
        operation: Some(case.operation),
        waiting: case.waiting,
        walking: case.walking,
        bytes: case.bytes,
        gigabytes_per_second,
        rounds: gigabytes,
        million_messages_per_second: Spread::of(rates).median / 1e6,
        limit,
    }
}
