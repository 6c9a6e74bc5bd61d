//! What extended sockets must reach, each as a ratio of two figures that are measured in turns.

use serde::Serialize;

use super::super::case::Bytes;
use super::super::stats::{Spread, ratios};
use super::super::table::Table;
use super::{Bench, Figure, Task, Way, What};

/// What a figure is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beside {
    /// As many bytes by verbs alone.
    Verbs,
    /// As many bytes by verbs, and a copy of them by the peer.
    VerbsAndCopy,
    /// As many bytes by a TCP socket of the loopback interface.
    Tcp,
}

/// The bound of a ratio.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    fn holds(self, ratio: f64) -> bool {
        match self {
            Bound::AtMost(most) => ratio <= most,
            Bound::AtLeast(least) => ratio >= least,
        }
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bound::AtMost(most) => write!(f, "<= {most}"),
            Bound::AtLeast(least) => write!(f, ">= {least}"),
        }
    }
}

/// One thing that is to be reached.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Must {
    pub task: Task,
    pub beside: Beside,
    pub bound: Bound,
    /// The least share of the bytes of a stream that go directly, in percent.
    pub direct: Option<f64>,
}

/// All of them, for these sizes where there is a choice: 8 bytes for small ones, and large ones.
pub fn musts() -> Vec<Must> {
    use Bound::{AtLeast, AtMost};
    let must = |way, what, bytes, beside, bound| Must { task: Task { way, what, bytes }, beside, bound, direct: None };
    let latency = |way, bytes, beside, bound| must(way, What::Latency, bytes, beside, AtMost(bound));
    let rate = |way, bytes, beside, bound| must(way, What::Throughput, bytes, beside, AtLeast(bound));
    let mut all = vec![latency(Way::Immediate, 8, Beside::Verbs, 1.5)];
    for bytes in [8, LARGE] {
        all.push(latency(Way::Normal, bytes, Beside::Verbs, 1.5));
        all.push(latency(Way::Persistent, bytes, Beside::Verbs, 1.3));
    }
    all.push(latency(Way::Event, 8, Beside::Verbs, 1.3));
    for bytes in [LARGE, LARGER, LARGEST] {
        all.push(Must { direct: Some(95.0), ..rate(Way::Stream, bytes, Beside::Verbs, 0.9) });
        all.push(rate(Way::Normal, bytes, Beside::Verbs, 0.9));
        if bytes < LARGEST {
            all.push(rate(Way::Late, bytes, Beside::VerbsAndCopy, 0.8));
        }
    }
    all.push(latency(Way::Immediate, 8, Beside::Tcp, 0.2));
    all.push(rate(Way::Stream, LARGE, Beside::Tcp, 2.0));
    all
}

/// Large messages begin here.
const LARGE: usize = 64 << 10;
const LARGER: usize = 1 << 20;
/// Those beyond the ring of a stream are not late: their receives are there in time for the rest.
const LARGEST: usize = 8 << 20;

/// A result.
#[derive(Serialize)]
pub struct Met {
    #[serde(flatten)]
    pub task: Task,
    /// Microseconds or megabytes a second.
    pub figure: Spread,
    pub beside: String,
    pub beside_figure: Spread,
    /// The ratios of the rounds.
    pub ratio: Spread,
    /// The rounds that do not count: others slowed a core down.
    pub left_out: usize,
    pub bound: String,
    /// The share of bytes that went directly into receives, in percent.
    pub direct: Option<f64>,
    pub met: bool,
}

/// A round on a core that is slower than at its best by this factor does not count, if others do. A virtual processor
/// shares its core with those of other machines, and runs at half its pace while they use it. A copy hardly does, and a
/// line of cache is not slower at all, so that no ratio of the two is the one of this machine.
const SLOWED: f64 = 1.25;
/// Rounds are measured again at most so often, in multiples of the rounds that were asked for.
const AGAIN: u32 = 2;

/// A round.
#[derive(Clone, Copy)]
struct Round {
    figure: f64,
    beside: f64,
    /// See [`Bench::pace`]: the slowest.
    pace: f64,
}

/// The rounds that count: those at the best pace, or all if these are fewer than a third of those asked for.
fn calm(rounds: &[Round], asked: u32, best_pace: f64) -> Vec<Round> {
    let calm: Vec<_> = rounds.iter().filter(|round| round.pace <= best_pace * SLOWED).copied().collect();
    if calm.len() < (asked as usize).div_ceil(3) { rounds.to_vec() } else { calm }
}

/// Measure one.
pub fn measure(bench: &mut Bench<'_>, must: &Must) -> Result<Met, String> {
    let (mut rounds, mut direct, mut beside): (Vec<Round>, _, _) = (Vec::new(), Vec::new(), String::new());
    let (what, asked) = (must.task.what, bench.options.rounds_of_musts());
    for round in 0..asked.saturating_mul(1 + AGAIN) {
        let at_best = rounds.iter().filter(|round| round.pace <= bench.best_pace * SLOWED).count();
        if at_best >= asked as usize {
            break;
        }
        let (mut ours, mut other, mut pace) = (Vec::new(), Vec::new(), 0.0);
        bench.on_both_cores(|bench| {
            pace = bench.pace()?.max(pace);
            // Each of the two is the first one in every second round.
            for first in [round % 2 == 1, round % 2 == 0] {
                if first {
                    let Figure { value, direct: share, .. } = bench.figure(&must.task)?;
                    ours.push(value);
                    direct.extend(share);
                } else {
                    let (name, value) = bench.beside(must)?;
                    other.push(value);
                    beside = name;
                }
            }
            pace = bench.pace()?.max(pace);
            Ok(())
        })?;
        let (figure, beside) = (what.mean(ours.into_iter()), what.mean(other.into_iter()));
        rounds.push(Round { figure, beside, pace });
    }
    let count = calm(&rounds, asked, bench.best_pace);
    let left_out = rounds.len() - count.len();
    let (figures, besides): (Vec<f64>, Vec<f64>) = count.iter().map(|round| (round.figure, round.beside)).unzip();
    let ratio = ratios(&figures, &besides);
    let direct = (must.task.way == Way::Stream).then(|| Spread::of(&direct).median);
    let met =
        must.bound.holds(ratio.median) && must.direct.is_none_or(|least| direct.is_some_and(|share| share >= least));
    let (figure, beside_figure, bound) = (Spread::of(&figures), Spread::of(&besides), must.bound.to_string());
    Ok(Met { task: must.task, figure, beside, beside_figure, ratio, left_out, bound, direct, met })
}

/// The results as a table.
pub fn table(all: &[Met]) -> Table {
    let mut table =
        Table::new(["way", "what", "size", "figure", "beside", "its figure", "ratio", "must be", "met", "rounds"]);
    for met in all {
        let unit = if met.task.what == What::Latency { "us" } else { "MB/s" };
        table.cell(met.task.way.name());
        table.cell(if met.task.what == What::Latency { "latency" } else { "throughput" });
        table.cell(Bytes(met.task.bytes));
        table.cell(format_args!("{:.2} {unit}", met.figure.median));
        table.cell(&met.beside);
        table.cell(format_args!("{:.2} {unit}", met.beside_figure.median));
        table.cell(format_args!("{:.2}", met.ratio.median));
        let direct = met.direct.map(|share| format!(", {share:.0} % direct")).unwrap_or_default();
        table.cell(format_args!("{}{direct}", met.bound));
        table.cell(if met.met { "yes" } else { "no" });
        let left_out = if met.left_out > 0 { format!(", {} left out", met.left_out) } else { String::new() };
        table.cell(format_args!("{:.2} to {:.2}{left_out}", met.ratio.low, met.ratio.high));
        table.end_row();
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_must_reach_something_and_is_measured_at_that_size() {
        let musts = musts();
        for way in Way::ALL.into_iter().filter(|way| *way != Way::Tcp) {
            assert!(musts.iter().any(|must| must.task.way == way), "{way:?}");
        }
        for must in musts {
            assert!(must.task.way.takes(must.task.what, must.task.bytes), "{must:?}");
        }
    }

    #[test]
    fn rounds_on_a_slow_core_count_only_where_there_are_hardly_others() {
        let round = |pace| Round { figure: pace, beside: 1.0, pace };
        let paces =
            |rounds: &[Round], asked| calm(rounds, asked, 4.0).iter().map(|round| round.pace).collect::<Vec<_>>();
        let rounds = [round(4.0), round(5.0), round(5.1), round(9.0), round(8.0)];
        assert_eq!(paces(&rounds, 3), [4.0, 5.0]);
        assert_eq!(paces(&rounds, 6), [4.0, 5.0]);
        assert_eq!(paces(&rounds, 7), [4.0, 5.0, 5.1, 9.0, 8.0]);
    }

    #[test]
    fn a_bound_is_of_one_side() {
        assert!(Bound::AtMost(1.5).holds(1.5) && !Bound::AtMost(1.5).holds(1.51));
        assert!(Bound::AtLeast(0.9).holds(0.9) && !Bound::AtLeast(0.9).holds(0.89));
        assert_eq!(Bound::AtMost(1.5).to_string(), "<= 1.5");
    }
}
