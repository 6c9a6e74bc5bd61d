//! What extended sockets must reach, each as a ratio of two figures that are measured in turns.

use serde::Serialize;

use super::super::case::Bytes;
use super::super::stats::{Spread, ratios};
use super::super::table::Table;
use super::{Bench, Paces, Task, Way, What};

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
    /// Others slowed a core down in nearly all rounds, so that all count.
    pub slowed: bool,
    pub bound: String,
    /// The share of bytes that went directly into receives, in percent.
    pub direct: Option<f64>,
    pub met: bool,
}

/// A round does not count in which a core was slower than at its best by this factor, if others do. A virtual processor
/// shares its core with those of other machines, and runs at half its pace while they use it. A copy is hardly slower
/// then, and a line of cache not at all: the ratio of the two is not that of this machine.
const SLOWED: f64 = 1.25;
/// Rounds are measured again at most so often, in multiples of the rounds that were asked for.
const AGAIN: u32 = 2;

/// A round: the means of its halves, on the two cores as they were chosen and the other way round.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Round {
    figure: f64,
    beside: f64,
    /// See [`Met::direct`]: the lower one of the two.
    direct: Option<f64>,
    /// The slowest paces.
    paces: Paces,
}

impl Round {
    /// True if no core was slowed down.
    fn is_calm(&self, best: &Paces) -> bool {
        self.paces.iter().zip(best).all(|(pace, best)| *pace <= best * SLOWED)
    }
}

/// The rounds that count, and whether slow ones are among them: all count where fewer than a third of those asked for
/// are calm.
fn counted(rounds: &[Round], asked: u32, best: &Paces) -> (Vec<Round>, bool) {
    let calm: Vec<_> = rounds.iter().filter(|round| round.is_calm(best)).copied().collect();
    let slowed = calm.len() < (asked as usize).div_ceil(3);
    (if slowed { rounds.to_vec() } else { calm }, slowed)
}

/// Measure one.
pub fn measure(bench: &mut Bench<'_>, must: &Must) -> Result<Met, String> {
    let (mut rounds, mut beside) = (Vec::<Round>::new(), String::new());
    let (what, asked) = (must.task.what, bench.options.rounds_of_musts());
    for number in 0..asked.saturating_mul(1 + AGAIN) {
        if rounds.iter().filter(|round| round.is_calm(&bench.best)).count() >= asked as usize {
            break;
        }
        let (mut figures, mut besides, mut paces) = (Vec::new(), Vec::new(), Paces::default());
        bench.on_both_cores(|bench| {
            let mut look = |bench: &mut Bench<'_>| {
                let now = bench.paces()?;
                paces = std::array::from_fn(|core| paces[core].max(now[core]));
                Ok::<_, String>(())
            };
            look(bench)?;
            // Each of the two is the first one in every second round.
            for is_ours in [number % 2 == 1, number % 2 == 0] {
                if is_ours {
                    figures.push(bench.figure(&must.task)?);
                } else {
                    let (name, value) = bench.beside(must)?;
                    besides.push(value);
                    beside = name;
                }
            }
            look(bench)
        })?;
        rounds.push(Round {
            figure: what.mean(figures.iter().map(|figure| figure.value)),
            beside: what.mean(besides.into_iter()),
            direct: figures.iter().filter_map(|figure| figure.direct).reduce(f64::min),
            paces,
        });
    }
    let (counted, slowed) = counted(&rounds, asked, &bench.best);
    let left_out = rounds.len() - counted.len();
    let (figures, besides): (Vec<f64>, Vec<f64>) = counted.iter().map(|round| (round.figure, round.beside)).unzip();
    let direct: Vec<f64> = counted.iter().filter_map(|round| round.direct).collect();
    let ratio = ratios(&figures, &besides);
    let direct = (must.task.way == Way::Stream).then(|| Spread::of(&direct).median);
    let met =
        must.bound.holds(ratio.median) && must.direct.is_none_or(|least| direct.is_some_and(|share| share >= least));
    let (figure, beside_figure, bound) = (Spread::of(&figures), Spread::of(&besides), must.bound.to_string());
    Ok(Met { task: must.task, figure, beside, beside_figure, ratio, left_out, slowed, bound, direct, met })
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
        let note = match (met.left_out, met.slowed) {
            (_, true) => ", on slow cores".to_owned(),
            (0, _) => String::new(),
            (count, _) => format!(", {count} left out"),
        };
        table.cell(format_args!("{:.2} to {:.2}{note}", met.ratio.low, met.ratio.high));
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
        let round = |paces| Round { figure: 1.0, beside: 1.0, direct: None, paces };
        // The second core is slower at its best than the first one while others use it.
        let rounds = [[4.0, 9.0], [5.0, 9.0], [5.1, 9.0], [4.0, 12.0], [8.0, 9.0]].map(round);
        let best = [4.0, 9.0];
        assert_eq!(counted(&rounds, 3, &best), (rounds[..2].to_vec(), false));
        assert_eq!(counted(&rounds, 6, &best), (rounds[..2].to_vec(), false));
        assert_eq!(counted(&rounds, 7, &best), (rounds.to_vec(), true));
    }

    #[test]
    fn a_bound_is_of_one_side() {
        assert!(Bound::AtMost(1.5).holds(1.5) && !Bound::AtMost(1.5).holds(1.51));
        assert!(Bound::AtLeast(0.9).holds(0.9) && !Bound::AtLeast(0.9).holds(0.89));
        assert_eq!(Bound::AtMost(1.5).to_string(), "<= 1.5");
    }
}
