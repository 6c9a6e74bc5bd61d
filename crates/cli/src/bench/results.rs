//! Everything that was measured: what the tables, the plots, the page and the JSON file are made of.
//!
//! The JSON file is [`Results`], field by field; `docs/benchmark.md` describes it, and a test holds the two together.

use serde::{Deserialize, Serialize};

use super::case::{Case, Operation, Transport, Waiting};
use super::limits::{Limit, LimitCase};
use super::machine::Machine;
use super::stats::{Percentiles, Spread, ratio};
use super::summary::Goal;

/// Version of the file's format: goes up when a field changes its meaning or goes away.
pub const SCHEMA: u32 = 1;

/// The device itself, among those that were measured.
pub const SELF: &str = "softrnic";

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of the program.
    pub version: String,
    /// Where.
    pub machine: Machine,
    /// How.
    pub setup: Setup,
    /// What the machine can do.
    pub limits: Vec<LimitRow>,
    /// Latencies.
    pub latency: Vec<LatencyRow>,
    /// Bandwidths and message rates.
    pub bandwidth: Vec<BandwidthRow>,
    /// What many queue pairs cost.
    pub queue_pairs: Vec<QueuePairRow>,
    /// What many pairs of processes do together.
    pub process_pairs: Vec<ProcessPairRow>,
    /// How near to its limits the device comes.
    pub summary: Vec<Goal>,
    /// What could not be measured, and why.
    pub missing: Vec<String>,
}

/// How it was measured.
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
    /// Milliseconds of each measurement in each round.
    pub time_ms: u64,
}

/// A limit of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitRow {
    /// Which.
    pub limit: Limit,
    /// Bytes at a time; 0 where there are none.
    pub bytes: usize,
    /// Through 64 MiB of memory, instead of the same again and again.
    pub walking: bool,
    /// Microseconds: one way, or of one copy or call.
    pub microseconds: Spread,
    /// Of each round, in microseconds.
    pub rounds: Vec<f64>,
    /// Of each round in which other programs took part, measured once more just before them.
    pub before_others: Vec<f64>,
    /// 10^9 bytes a second, where there are bytes.
    pub gigabytes_per_second: Option<f64>,
}

/// What stands beside a figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Beside {
    /// What it is.
    pub name: String,
    /// In the unit of the figure.
    pub value: f64,
    /// The figure over this value: the median of the rounds' ratios.
    pub ratio: f64,
}

/// What a figure is held against.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// What it is.
    pub name: String,
    /// Microseconds for one message: the median.
    pub microseconds: f64,
    /// Of each round.
    pub rounds: Vec<f64>,
}

impl Bound {
    /// Beside a latency, or a bandwidth of messages of so many bytes.
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
    /// Who was measured: `softrnic`, or another program.
    pub by: String,
    /// What, for people.
    pub what: String,
    /// Service; null for what is not verbs.
    pub transport: Option<Transport>,
    /// Operation; null for what is not verbs.
    pub operation: Option<Operation>,
    /// How completions were waited for.
    pub waiting: Waiting,
    /// Bytes of a message.
    pub bytes: usize,
    /// True: one way, half of a round trip. False: until the answer is there.
    pub one_way: bool,
    /// Microseconds: median of the rounds' medians.
    pub microseconds: Spread,
    /// Of each round, in microseconds.
    pub rounds: Vec<f64>,
    /// Of all samples; null where another program does not tell.
    pub percentiles: Option<Percentiles>,
    /// Samples.
    pub samples: u64,
    /// The limit.
    pub limit: Option<Beside>,
}

/// A bandwidth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BandwidthRow {
    /// Who was measured: `softrnic`, or another program.
    pub by: String,
    /// What, for people.
    pub what: String,
    /// Service; null for what is not verbs.
    pub transport: Option<Transport>,
    /// Operation; null for what is not verbs.
    pub operation: Option<Operation>,
    /// How completions were waited for.
    pub waiting: Waiting,
    /// Through 64 MiB of memory, instead of the same again and again.
    pub walking: bool,
    /// Bytes of a message.
    pub bytes: usize,
    /// 10^9 bytes a second.
    pub gigabytes_per_second: Spread,
    /// Of each round, in 10^9 bytes a second.
    pub rounds: Vec<f64>,
    /// 10^6 messages a second.
    pub million_messages_per_second: f64,
    /// The limit.
    pub limit: Option<Beside>,
}

/// Two processes with many connections between them, of which one works.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueuePairRow {
    /// Idle connections beside the one that works.
    pub idle: usize,
    /// Milliseconds that it took to make and connect them.
    pub connect_ms: f64,
    /// One way of a SEND of 8 bytes, in microseconds.
    pub send_microseconds: Spread,
    /// The same, of each round.
    pub send_rounds: Vec<f64>,
    /// One poll of an empty completion queue, in nanoseconds.
    pub poll_nanoseconds: Spread,
    /// The same, of each round.
    pub poll_rounds: Vec<f64>,
}

/// Several pairs of processes at the same time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessPairRow {
    /// Pairs.
    pub pairs: usize,
    /// What each did.
    pub what: String,
    /// Bytes of a message.
    pub bytes: usize,
    /// Median of the pairs' medians, in microseconds; null where bandwidth was measured.
    pub microseconds: Option<Spread>,
    /// 10^9 bytes a second, of all pairs together; null where latency was measured.
    pub gigabytes_per_second: Option<f64>,
    /// 10^6 messages a second, of all pairs together; null where latency was measured.
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

    /// The least that the machine takes for a case, for one message, and what that is.
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

/// One of everything, for tests.
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
