//! The results of a run, from which the tables, the plots, the page and the JSON file are made.
//!
//! The JSON file is [`Results`], field by field; `docs/benchmark.md` describes it, and a test compares the two.

use serde::{Deserialize, Serialize};

use super::case::{Case, Operation, Transport, Waiting};
use super::limits::{Limit, LimitCase};
use super::machine::Machine;
use super::stats::{Percentiles, Spread, ratio};
use super::summary::Goal;

/// The version of the file's format: it goes up when a field changes its meaning or goes away.
pub const SCHEMA: u32 = 1;

/// The name of the device itself, among those that were measured.
pub const SELF: &str = "softrnic";

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of the program.
    pub version: String,
    /// The machine.
    pub machine: Machine,
    /// The way of measurement.
    pub setup: Setup,
    /// The limits of the machine.
    pub limits: Vec<LimitRow>,
    /// Latencies.
    pub latency: Vec<LatencyRow>,
    /// Bandwidths and message rates.
    pub bandwidth: Vec<BandwidthRow>,
    /// The costs of many queue pairs.
    pub queue_pairs: Vec<QueuePairRow>,
    /// The results of many pairs of processes together.
    pub process_pairs: Vec<ProcessPairRow>,
    /// The comparison of the device with its limits.
    pub summary: Vec<Goal>,
    /// The cases that could not be measured, and why.
    pub missing: Vec<String>,
}

/// The way of measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// The device's name.
    pub device: String,
    /// The verbs library.
    pub library: String,
    /// The cores of the two processes, where they were pinned.
    pub cores: Option<[usize; 2]>,
    /// Rounds.
    pub rounds: u32,
    /// The milliseconds of each measurement in each round.
    pub time_ms: u64,
}

/// A limit of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitRow {
    /// The limit.
    pub limit: Limit,
    /// The bytes at a time; 0 where there are none.
    pub bytes: usize,
    /// True if it went through 64 MiB of memory, instead of the same again and again.
    pub walking: bool,
    /// The time in microseconds: one way, or of one copy or call.
    pub microseconds: Spread,
    /// The time of each round, in microseconds.
    pub rounds: Vec<f64>,
    /// The time of each round in which other programs took part, measured once more just before them.
    pub before_others: Vec<f64>,
    /// The rate in 10^9 bytes a second, where there are bytes.
    pub gigabytes_per_second: Option<f64>,
}

/// A figure that stands beside another one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beside {
    /// The name of the figure.
    pub name: String,
    /// The value, in the unit of the other figure.
    pub value: f64,
    /// The other figure over this value: the median of the rounds' ratios.
    pub ratio: f64,
}

/// A limit that a figure is compared with.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// The name of the limit.
    pub name: String,
    /// The microseconds for one message: the median.
    pub microseconds: f64,
    /// The microseconds of each round.
    pub rounds: Vec<f64>,
}

impl Bound {
    /// The comparison with a latency, or with a bandwidth of messages of so many bytes.
    pub fn beside(self, figure: f64, rounds: &[f64], bytes: Option<usize>) -> Beside {
        let of = |microseconds: f64| bytes.map_or(microseconds, |bytes| bytes as f64 / microseconds / 1e3);
        let value = of(self.microseconds);
        let besides: Vec<f64> = self.rounds.into_iter().map(of).collect();
        Beside { name: self.name, value, ratio: ratio(rounds, &besides).unwrap_or(figure / value) }
    }
}

/// A latency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyRow {
    /// The program that was measured: `softrnic`, or another one.
    pub by: String,
    /// The operation, as text.
    pub what: String,
    /// The service; null for programs without verbs.
    pub transport: Option<Transport>,
    /// The operation; null for programs without verbs.
    pub operation: Option<Operation>,
    /// The way of waiting for completions.
    pub waiting: Waiting,
    /// The bytes of a message.
    pub bytes: usize,
    /// True for one way, half of a round trip. False for the time until the answer is there.
    pub one_way: bool,
    /// The time in microseconds: median of the rounds' medians.
    pub microseconds: Spread,
    /// The time of each round, in microseconds.
    pub rounds: Vec<f64>,
    /// The percentiles of all samples; null where another program does not print them.
    pub percentiles: Option<Percentiles>,
    /// The number of samples.
    pub samples: u64,
    /// The limit.
    pub limit: Option<Beside>,
}

/// A bandwidth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BandwidthRow {
    /// The program that was measured: `softrnic`, or another one.
    pub by: String,
    /// The operation, as text.
    pub what: String,
    /// The service; null for programs without verbs.
    pub transport: Option<Transport>,
    /// The operation; null for programs without verbs.
    pub operation: Option<Operation>,
    /// The way of waiting for completions.
    pub waiting: Waiting,
    /// True if it went through 64 MiB of memory, instead of the same again and again.
    pub walking: bool,
    /// The bytes of a message.
    pub bytes: usize,
    /// The rate in 10^9 bytes a second.
    pub gigabytes_per_second: Spread,
    /// The rate of each round, in 10^9 bytes a second.
    pub rounds: Vec<f64>,
    /// The rate in 10^6 messages a second.
    pub million_messages_per_second: f64,
    /// The limit.
    pub limit: Option<Beside>,
}

/// Two processes with many connections between them, of which one works.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueuePairRow {
    /// The number of idle connections beside the one that works.
    pub idle: usize,
    /// The milliseconds that it took to make and connect them.
    pub connect_ms: f64,
    /// One way of a SEND of 8 bytes, in microseconds.
    pub send_microseconds: Spread,
    /// One way of that SEND in each round, in microseconds.
    pub send_rounds: Vec<f64>,
    /// One poll of an empty completion queue, in nanoseconds.
    pub poll_nanoseconds: Spread,
    /// One such poll in each round, in nanoseconds.
    pub poll_rounds: Vec<f64>,
}

/// Several pairs of processes at the same time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessPairRow {
    /// The number of pairs.
    pub pairs: usize,
    /// The operation of each.
    pub what: String,
    /// The bytes of a message.
    pub bytes: usize,
    /// The median of the pairs' medians, in microseconds; null where bandwidth was measured.
    pub microseconds: Option<Spread>,
    /// The rate of all pairs together, in 10^9 bytes a second; null where latency was measured.
    pub gigabytes_per_second: Option<f64>,
    /// The rate of all pairs together, in 10^6 messages a second; null where latency was measured.
    pub million_messages_per_second: Option<f64>,
    /// The limit, of one pair.
    pub limit: Option<Beside>,
}

impl Results {
    fn limit_row(&self, case: LimitCase) -> Option<&LimitRow> {
        let LimitCase { limit, bytes, walking } = case;
        self.limits.iter().find(|row| row.limit == limit && row.bytes == bytes && row.walking == walking)
    }

    /// A limit's median in microseconds.
    pub fn limit(&self, case: LimitCase) -> Option<f64> {
        self.limit_row(case).map(|row| row.microseconds.median)
    }

    /// A limit; `others`: as it was just before other programs were measured.
    pub fn limit_beside(&self, case: LimitCase, others: bool) -> Option<Bound> {
        let (row, limit) = (self.limit_row(case)?, case.limit);
        let rounds = if others { &row.before_others } else { &row.rounds };
        Some(Bound { name: limit.name().into(), microseconds: row.microseconds.median, rounds: rounds.clone() })
    }

    /// The least time that the machine takes for one message of a case, and the limit that sets it.
    pub fn bound(&self, case: &Case, others: bool) -> Option<Bound> {
        LimitCase::beside(case).into_iter().find_map(|choice| {
            let mut parts = choice.iter().map(|part| self.limit_beside(*part, others));
            let mut bound = parts.next()??;
            for part in parts {
                let part = part?;
                bound.microseconds += part.microseconds;
                bound.rounds = bound.rounds.iter().zip(&part.rounds).map(|(a, b)| a + b).collect();
            }
            bound.name = match choice.as_slice() {
                [LimitCase { limit: Limit::CacheLine, .. }] => "cache line".into(),
                [LimitCase { limit: Limit::CacheLine, .. }, ..] => "cache line + memcpy".into(),
                _ => bound.name,
            };
            Some(bound)
        })
    }

    /// The device's own latency.
    pub fn latency_of(&self, by: &str, case: &Case) -> Option<&LatencyRow> {
        self.latency.iter().find(|row| {
            row.by == by
                && row.transport == Some(case.transport)
                && row.operation == Some(case.operation)
                && row.waiting == case.waiting
                && row.bytes == case.bytes
        })
    }

    /// The device's own bandwidth.
    pub fn bandwidth_of(&self, by: &str, case: &Case) -> Option<&BandwidthRow> {
        self.bandwidth.iter().find(|row| {
            row.by == by
                && row.transport == Some(case.transport)
                && row.operation == Some(case.operation)
                && row.waiting == case.waiting
                && row.walking == case.walking
                && row.bytes == case.bytes
        })
    }
}

/// Results with one of everything, for tests.
#[cfg(test)]
pub fn sample() -> Results {
    use super::summary;
    let spread = |median: f64| Spread { median, low: median * 0.9, high: median * 1.1 };
    let limits: Vec<LimitRow> = LimitCase::all(&[8, 65536, 1 << 20])
        .into_iter()
        .map(|LimitCase { limit, bytes, walking }| LimitRow {
            limit,
            bytes,
            walking,
            microseconds: spread(0.5 + bytes as f64 / 1e4),
            rounds: vec![0.5 + bytes as f64 / 1e4],
            before_others: vec![0.5 + bytes as f64 / 1e4],
            gigabytes_per_second: (bytes > 0).then_some(1.0),
        })
        .collect();
    let beside = || Some(Beside { name: "a limit".into(), value: 1.0, ratio: 2.0 });
    let mut results = Results {
        schema: SCHEMA,
        version: "1.2.3".into(),
        machine: Machine {
            processor: "A processor".into(),
            cores: 2,
            memory_gib: 4.0,
            system: "Linux 6.1 x86_64".into(),
            virtual_machine: false,
        },
        setup: Setup {
            device: "softrnic0".into(),
            library: "/somewhere/libsoftrnic.so".into(),
            cores: Some([0, 1]),
            rounds: 3,
            time_ms: 50,
        },
        limits,
        latency: Vec::new(),
        bandwidth: Vec::new(),
        queue_pairs: [0, 99]
            .map(|idle| QueuePairRow {
                idle,
                connect_ms: 1.0,
                send_microseconds: spread(0.5),
                send_rounds: vec![0.5],
                poll_nanoseconds: spread(50.0),
                poll_rounds: vec![50.0],
            })
            .into(),
        process_pairs: vec![ProcessPairRow {
            pairs: 4,
            what: "RC SEND".into(),
            bytes: 8,
            microseconds: Some(spread(1.0)),
            gigabytes_per_second: None,
            million_messages_per_second: None,
            limit: beside(),
        }],
        summary: Vec::new(),
        missing: vec!["something is not installed".into()],
    };
    for (by, transport) in [(SELF, Some(Transport::Rc)), (summary::UCX, None)] {
        for operation in Operation::ALL {
            for bytes in [8, 65536, 1 << 20] {
                results.latency.push(LatencyRow {
                    by: by.into(),
                    what: operation.name().into(),
                    transport,
                    operation: Some(operation),
                    waiting: Waiting::Polling,
                    bytes,
                    one_way: operation.one_way(),
                    microseconds: spread(1.0 + bytes as f64 / 1e4),
                    rounds: vec![1.0 + bytes as f64 / 1e4],
                    percentiles: transport.map(|_| Percentiles { p99: 2.0, p99_9: 3.0, max: 4.0 }),
                    samples: 1000,
                    limit: beside(),
                });
                results.bandwidth.push(BandwidthRow {
                    by: by.into(),
                    what: operation.name().into(),
                    transport,
                    operation: Some(operation),
                    waiting: Waiting::Polling,
                    walking: false,
                    bytes,
                    gigabytes_per_second: spread(bytes as f64 / 1e5),
                    rounds: vec![bytes as f64 / 1e5],
                    million_messages_per_second: 1.0,
                    limit: beside(),
                });
            }
        }
    }
    results.summary = summary::goals(&results);
    results
}

#[cfg(test)]
#[path = "results_tests.rs"]
mod tests;
