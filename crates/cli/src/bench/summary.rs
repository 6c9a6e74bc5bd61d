//! The comparison of the device with its limits: ratios within one run, each with its bounds.

use serde::{Deserialize, Serialize};

use super::case::{Case, Operation, Transport};
use super::end::WALKED;
use super::limits::{Limit, LimitCase};
use super::results::{Results, SELF};
use super::stats::ratio;

/// A ratio, and its bounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goal {
    /// The case that was measured.
    pub what: String,
    /// The program that was measured: `softrnic`, or another one.
    pub by: String,
    /// The figure.
    pub value: f64,
    /// The unit of both figures.
    pub unit: Unit,
    /// The name of the figure that stands beside it.
    pub beside: String,
    /// The value of that figure.
    pub beside_value: f64,
    /// The first figure over the second: the median of the rounds' ratios.
    pub ratio: f64,
    /// True if the ratio should be small, as for times; false if it should be large, as for rates.
    pub smaller_is_better: bool,
    /// The bound that the ratio has to keep.
    pub must: f64,
    /// The bound that the ratio is hoped to keep.
    pub aim: f64,
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Microseconds.
    #[serde(rename = "us")]
    Microseconds,
    /// Nanoseconds.
    #[serde(rename = "ns")]
    Nanoseconds,
    /// 10^9 bytes a second.
    #[serde(rename = "GB/s")]
    Gigabytes,
    /// 10^6 messages a second.
    #[serde(rename = "M/s")]
    Millions,
}

impl Unit {
    /// The name of the unit.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Microseconds => "us",
            Unit::Nanoseconds => "ns",
            Unit::Gigabytes => "GB/s",
            Unit::Millions => "M/s",
        }
    }
}

impl Goal {
    fn meets(&self, bound: f64) -> bool {
        if self.smaller_is_better { self.ratio <= bound } else { self.ratio >= bound }
    }

    /// True if the ratio keeps its bound.
    pub fn met(&self) -> bool {
        self.meets(self.must)
    }

    /// The verdict in a word or two.
    pub fn verdict(&self) -> &'static str {
        match (self.met(), self.meets(self.aim)) {
            (_, true) => "aim met",
            (true, _) => "met",
            _ => "missed",
        }
    }

    /// The bounds as text.
    pub fn bounds(&self) -> String {
        let word = if self.smaller_is_better { "<=" } else { ">=" };
        format!("{word} {} (aim {})", self.must, self.aim)
    }
}

/// The bounds of a ratio.
struct Bounds {
    smaller_is_better: bool,
    must: f64,
    aim: f64,
}

const fn at_most(must: f64, aim: f64) -> Bounds {
    Bounds { smaller_is_better: true, must, aim }
}

const fn at_least(must: f64, aim: f64) -> Bounds {
    Bounds { smaller_is_better: false, must, aim }
}

/// UCX, as `peers` names it.
pub const UCX: &str = "UCX (shared memory)";
/// perftest through `softrnic run`, as `peers` names it.
pub const PERFTEST: &str = "perftest";

/// The smallest message that is compared, in bytes.
pub const SMALL: usize = 8;
const MEDIUM: usize = 64 << 10;
const LARGE: usize = 1 << 20;

/// All ratios for which both figures were measured.
pub fn goals(results: &Results) -> Vec<Goal> {
    let mut goals = Vec::new();
    for by in [SELF, PERFTEST] {
        latencies(results, by, &mut goals);
        bandwidths(results, by, &mut goals);
    }
    queue_pairs(results, &mut goals);
    goals
}

/// A goal from two figures. `figures`: the medians; `ratio`: if there are rounds to compare.
fn goal(
    what: &str,
    by: &str,
    figures: (f64, f64),
    ratio: Option<f64>,
    unit: Unit,
    beside: &str,
    bounds: &Bounds,
) -> Goal {
    let (value, beside_value) = figures;
    Goal {
        what: what.into(),
        by: by.into(),
        value,
        unit,
        beside: beside.into(),
        beside_value,
        ratio: ratio.unwrap_or(value / beside_value),
        smaller_is_better: bounds.smaller_is_better,
        must: bounds.must,
        aim: bounds.aim,
    }
}

fn latencies(results: &Results, by: &str, goals: &mut Vec<Goal>) {
    let rc = |operation| Case::latency(Transport::Rc, operation, SMALL);
    let line = LimitCase::plain(Limit::CacheLine);
    let (read, write) = (LimitCase::of(Limit::ProcessVmReadv, SMALL), LimitCase::of(Limit::ProcessVmWritev, SMALL));
    let event = LimitCase::plain(Limit::EventfdEpoll);
    let rows = [
        ("SEND of 8 B, one way", rc(Operation::Send), line, "a cache line", at_most(3.0, 2.0)),
        ("WRITE of 8 B seen in memory, one way", rc(Operation::Write), write, "process_vm_writev", at_most(1.4, 0.3)),
        ("READ of 8 B, target asleep", rc(Operation::Read), read, "process_vm_readv", at_most(2.0, 0.5)),
        ("fetch and add, target asleep", rc(Operation::FetchAdd), read, "process_vm_readv", at_most(2.0, 0.5)),
        ("compare and swap, target asleep", rc(Operation::CompareSwap), read, "process_vm_readv", at_most(2.0, 0.5)),
        (
            "SEND of 8 B by events, one way",
            rc(Operation::Send).by_events(),
            event,
            "eventfd + epoll",
            at_most(2.0, 1.3),
        ),
    ];
    for (what, case, limit, beside, bounds) in rows {
        if let (Some(row), Some(limit)) = (results.latency_of(by, &case), results.limit_beside(limit, by != SELF)) {
            let figures = (row.microseconds.median, limit.microseconds);
            let ratio = ratio(&row.rounds, &limit.rounds);
            goals.push(goal(what, by, figures, ratio, Unit::Microseconds, beside, &bounds));
        }
    }
}

fn bandwidths(results: &Results, by: &str, goals: &mut Vec<Goal>) {
    for walking in [false, true] {
        let limit = LimitCase { limit: Limit::ProcessVmWritev, bytes: LARGE, walking };
        for operation in [Operation::Send, Operation::Write, Operation::Read] {
            let case = Case { walking, ..Case::bandwidth(Transport::Rc, operation, LARGE) };
            if let (Some(row), Some(limit)) = (results.bandwidth_of(by, &case), results.limit_beside(limit, by != SELF))
            {
                let how = if walking { "through 64 MiB" } else { "same buffer" };
                let what = format!("{} of 1 MiB, {how}", operation.name());
                let value = row.gigabytes_per_second.median;
                let beside = limit.beside(value, &row.rounds, Some(LARGE));
                let figures = (value, beside.value);
                let must = at_least(0.9, 1.2);
                goals.push(goal(&what, by, figures, Some(beside.ratio), Unit::Gigabytes, "process_vm_writev", &must));
            }
        }
    }
    let ucx = |bytes: usize| {
        results
            .bandwidth
            .iter()
            .find(|row| row.by == UCX && row.bytes == bytes && row.operation == Some(Operation::Send))
    };
    let ours = |bytes| results.bandwidth_of(by, &Case::bandwidth(Transport::Rc, Operation::Send, bytes));
    if let (Some(ours), Some(ucx)) = (ours(MEDIUM), ucx(MEDIUM)) {
        let figures = (ours.gigabytes_per_second.median, ucx.gigabytes_per_second.median);
        let ratio = ratio(&ours.rounds, &ucx.rounds);
        goals.push(goal(
            "SEND of 64 KiB",
            by,
            figures,
            ratio,
            Unit::Gigabytes,
            "UCX, tagged send",
            &at_least(0.8, 1.2),
        ));
    }
    if let (Some(ours), Some(ucx)) = (ours(SMALL), ucx(SMALL)) {
        let figures = (ours.million_messages_per_second, ucx.million_messages_per_second);
        goals.push(goal(
            "SENDs of 8 B in a second",
            by,
            figures,
            ratio(&ours.rounds, &ucx.rounds),
            Unit::Millions,
            "UCX, tagged send",
            &at_least(0.6, 1.0),
        ));
    }
}

fn queue_pairs(results: &Results, goals: &mut Vec<Goal>) {
    let Some((alone, many)) = results.queue_pairs.split_first().filter(|(first, _)| first.idle == 0) else { return };
    for many in many {
        let what = format!("SEND of 8 B beside {} idle QPs", many.idle);
        let figures = (many.send_microseconds.median, alone.send_microseconds.median);
        let ratios = ratio(&many.send_rounds, &alone.send_rounds);
        goals.push(goal(&what, SELF, figures, ratios, Unit::Microseconds, "the same alone", &at_most(1.2, 1.05)));
        let what = format!("poll of an empty CQ beside {} idle QPs", many.idle);
        let figures = (many.poll_nanoseconds.median, alone.poll_nanoseconds.median);
        let ratios = ratio(&many.poll_rounds, &alone.poll_rounds);
        goals.push(goal(&what, SELF, figures, ratios, Unit::Nanoseconds, "the same alone", &at_most(1.2, 1.05)));
    }
}

// The rows compared above were measured with these sizes.
const _: () = assert!(WALKED == LARGE);

/// The sizes that the ratios need.
pub const SIZES: [usize; 3] = [SMALL, MEDIUM, LARGE];

/// A figure with three significant digits.
pub fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.0995 || v == 0.0 => format!("{value:.2}"),
        v if v >= 0.00995 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}
