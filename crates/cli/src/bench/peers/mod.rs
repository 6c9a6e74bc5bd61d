//! Other programs on the same cores: perftest through `softrnic run`, and other ways to move a message between two
//! processes, as far as they are installed.

mod client_server;
mod fabric;
mod perftest;
mod qperf;
mod ucx;

use std::time::Duration;

use super::Options;
use super::case::{Case, Operation, Quantity, Transport, Waiting};
use super::results::{BandwidthRow, LatencyRow, Results};
use super::stats::{Percentiles, Spread};
use super::summary::SMALL;
use client_server::Side;

/// A time much longer than a program takes to start, connect, measure for some tens of milliseconds and end.
const LONG: Duration = Duration::from_secs(2);

/// The greatest number of rounds: more take long, and show little.
const MOST_ROUNDS: u32 = 3;

/// The sizes with which these programs are run, as far as they were measured: each takes a second or two.
const SIZES: [usize; 6] = [8, 64, 512, 4096, 64 << 10, 1 << 20];

/// A figure that a program printed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Figure {
    /// A latency, in microseconds.
    Latency {
        /// The median, or the mean where the program prints no median.
        typical: f64,
        /// The percentiles, where the program prints them.
        percentiles: Option<Percentiles>,
    },
    /// A rate, in messages a second.
    Rate(f64),
}

/// A command to run: two sides, and the parser of the client's output.
struct Trial {
    /// The program, or the software that it stands for.
    by: &'static str,
    /// Its operation, as text.
    what: String,
    /// The transport; `None` for programs without verbs.
    transport: Option<Transport>,
    /// The case that it measures, or that is most like it.
    case: Case,
    server: Side,
    client: Side,
    /// The number of repetitions that it does by itself.
    samples: u64,
    /// The parser of the client's output.
    parse: fn(&str) -> Option<Figure>,
}

/// A trial, and its figures so far.
struct Tried {
    trial: Trial,
    figures: Vec<Figure>,
    /// The reason why there will be no more.
    failed: Option<String>,
}

/// All trials whose programs are installed.
pub struct Peers {
    tried: Vec<Tried>,
    missing: Vec<String>,
}

impl Peers {
    /// The trials that the options ask for, of these sizes.
    pub fn new(options: &Options, sizes: &[usize]) -> Self {
        let sizes: Vec<usize> = SIZES.into_iter().filter(|size| sizes.contains(size)).collect();
        let all = [
            (perftest::PROGRAMS, perftest::trials(options, &sizes)),
            (ucx::PROGRAMS, ucx::trials(&sizes)),
            (fabric::PROGRAMS, fabric::trials(&sizes)),
            (qperf::PROGRAMS, qperf::trials(&sizes)),
        ];
        let mut peers = Peers { tried: Vec::new(), missing: Vec::new() };
        for (programs, trials) in all {
            match programs.iter().find(|program| !client_server::installed(program)) {
                Some(program) => peers.missing.push(format!("{program} is not installed")),
                None => {
                    let wanted = trials.into_iter().filter(|trial| options.wants(trial.case.operation));
                    peers.tried.extend(wanted.map(|trial| Tried { trial, figures: Vec::new(), failed: None }));
                }
            }
        }
        peers
    }

    /// True if the programs take part in a round.
    pub fn join(&self, round: u32) -> bool {
        round < MOST_ROUNDS
    }

    /// The number of runs in a round.
    pub fn in_round(&self) -> usize {
        self.tried.iter().map(|tried| turns(&tried.trial.case)).sum()
    }

    /// The groups of trials that are run one behind the other, in the round in which the device and the limits are
    /// measured. A disturbance of the machine for minutes would else slow down only one of the figures that are
    /// compared.
    pub fn groups(&mut self) -> impl Iterator<Item = Group<'_>> {
        let mut order: Vec<&mut Tried> = self.tried.iter_mut().collect();
        order.sort_by_key(|tried| alike(tried));
        let mut groups: Vec<Group<'_>> = Vec::new();
        for tried in order {
            match groups.last_mut().filter(|group| group.alike == alike(tried)) {
                Some(group) => group.members.push((tried, Vec::new())),
                None => groups.push(Group { alike: alike(tried), members: vec![(tried, Vec::new())] }),
            }
        }
        groups.into_iter()
    }

    /// Add the figures to the results.
    pub fn finish(self, results: &mut Results) {
        results.missing.extend(self.missing);
        for Tried { trial, figures, failed } in self.tried {
            if let Some(error) = failed {
                let size = super::case::Bytes(trial.case.bytes);
                results.missing.push(format!("{} {} of {size}: {error}", trial.by, trial.what));
                continue;
            }
            match trial.case.quantity {
                Quantity::Latency => results.latency.push(latency(results, &trial, &figures)),
                Quantity::Bandwidth => results.bandwidth.push(bandwidth(results, &trial, &figures)),
            }
        }
    }
}

impl Tried {
    /// Run the trial, unless it has failed before.
    fn run(&mut self, cores: Option<[usize; 2]>) -> Option<Figure> {
        if self.failed.is_some() {
            return None;
        }
        let told = client_server::run(cores, &self.trial.server, &self.trial.client);
        let parse = |text: String| (self.trial.parse)(&text).ok_or("its figures are not where they should be".into());
        told.and_then(parse).map_err(|error| self.failed = Some(error)).ok()
    }
}

/// The properties that trials have in common which are compared with each other.
type Alike = (Quantity, Operation, usize);

fn alike(tried: &Tried) -> Alike {
    let case = tried.trial.case;
    (case.quantity, case.operation, case.bytes)
}

/// Programs that measure the same case, and their figures in a round.
pub struct Group<'a> {
    alike: Alike,
    members: Vec<(&'a mut Tried, Vec<Figure>)>,
}

impl Group<'_> {
    /// The cases that they measure.
    pub fn cases(&self) -> impl Iterator<Item = &Case> {
        self.members.iter().map(|(tried, _)| &tried.trial.case)
    }

    /// The number of turns that they take.
    pub fn turns(&self) -> usize {
        self.cases().map(turns).max().unwrap_or(0)
    }

    /// The length of a turn that is the last in its round: a long run is exact enough by itself. (Beside other programs
    /// a ping-pong makes a step per turn of the scheduler.)
    pub fn long(&self) -> Duration {
        LONG * self.members.len() as u32
    }

    /// Run each of them once.
    pub fn turn(&mut self, cores: Option<[usize; 2]>, mut progress: impl FnMut(&str)) {
        for (tried, told) in &mut self.members {
            progress(&format!("{} {}", tried.trial.by, tried.trial.what));
            told.extend(tried.run(cores));
        }
    }

    /// End the round, and take its figures.
    pub fn end(self) {
        for (tried, told) in self.members {
            tried.figures.extend(middle(told));
        }
    }
}

/// The number of runs in a round, by turns with the runs that are compared. With small messages a run takes tens of
/// milliseconds: a disturbance of a second would else slow down one of the two only.
fn turns(case: &Case) -> usize {
    let short = match case.quantity {
        Quantity::Latency => case.bytes == SMALL,
        Quantity::Bandwidth => case.bytes <= 64,
    };
    if short { 3 } else { 1 }
}

/// The middle one of several rates.
fn middle(mut figures: Vec<Figure>) -> Option<Figure> {
    let rate = |figure: &Figure| match figure {
        Figure::Rate(rate) => *rate,
        Figure::Latency { typical, .. } => *typical,
    };
    figures.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
    let middle = figures.len() / 2;
    (!figures.is_empty()).then(|| figures.swap_remove(middle))
}

fn latency(results: &Results, trial: &Trial, figures: &[Figure]) -> LatencyRow {
    let typical = figures.iter().filter_map(|figure| match figure {
        Figure::Latency { typical, .. } => Some(*typical),
        Figure::Rate(_) => None,
    });
    let rounds: Vec<f64> = typical.collect();
    let microseconds = Spread::of(&rounds);
    let limit = results.bound(&trial.case, true).map(|bound| bound.beside(microseconds.median, &rounds, None));
    // The percentiles are those of the round in the middle.
    let percentiles = figures.iter().find_map(|figure| match figure {
        Figure::Latency { typical, percentiles } if *typical == microseconds.median => *percentiles,
        _ => None,
    });
    LatencyRow {
        by: trial.by.into(),
        what: trial.what.clone(),
        transport: trial.transport,
        operation: Some(trial.case.operation),
        waiting: trial.case.waiting,
        bytes: trial.case.bytes,
        one_way: trial.case.operation.one_way(),
        microseconds,
        percentiles,
        samples: trial.samples * figures.len() as u64,
        rounds,
        limit,
    }
}

fn bandwidth(results: &Results, trial: &Trial, figures: &[Figure]) -> BandwidthRow {
    let bytes = trial.case.bytes;
    let rates: Vec<f64> = figures
        .iter()
        .filter_map(|figure| match figure {
            Figure::Rate(rate) => Some(*rate),
            Figure::Latency { .. } => None,
        })
        .collect();
    let gigabytes: Vec<f64> = rates.iter().map(|rate| rate * bytes as f64 / 1e9).collect();
    let gigabytes_per_second = Spread::of(&gigabytes);
    let limit = results.bound(&trial.case, true);
    let limit = limit.map(|bound| bound.beside(gigabytes_per_second.median, &gigabytes, Some(bytes)));
    BandwidthRow {
        by: trial.by.into(),
        what: trial.what.clone(),
        transport: trial.transport,
        operation: Some(trial.case.operation),
        waiting: trial.case.waiting,
        walking: false,
        bytes,
        gigabytes_per_second,
        rounds: gigabytes,
        million_messages_per_second: Spread::of(&rates).median / 1e6,
        limit,
    }
}

/// The number of iterations, so that every size takes about as long.
fn iterations(quantity: Quantity, bytes: usize) -> u64 {
    let small = match quantity {
        Quantity::Latency => 20_000,
        // About 25 ms: in a fifth of that, one turn of the scheduler decides.
        _ if bytes <= 64 => 500_000,
        _ => 100_000,
    };
    (small / (1 + bytes as u64 / 8192)).max(500)
}

/// The case that a program's SEND is most like.
fn send(quantity: Quantity, bytes: usize) -> Case {
    Case { quantity, waiting: Waiting::Polling, ..Case::latency(Transport::Rc, Operation::Send, bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_in_the_middle() {
        let rates = |rates: &[f64]| middle(rates.iter().map(|rate| Figure::Rate(*rate)).collect());
        assert_eq!(rates(&[3.0, 1.0, 2.0]), Some(Figure::Rate(2.0)));
        assert_eq!(rates(&[7.0]), Some(Figure::Rate(7.0)));
        assert_eq!(rates(&[]), None);
    }
}
