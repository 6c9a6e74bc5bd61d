//! `softrnic exs-blast`: extended sockets between two processes, beside the verbs that they are made of, and beside
//! TCP.
//!
//! Every figure has its limit: the time of as many bytes by verbs or TCP without extended sockets, measured in turns.

mod figures;
mod page;
mod remote;
mod table;
mod work;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::builder::ArgPredicate;
use clap::{Args, ValueEnum};
use rdma::SendOp;
use serde::{Deserialize, Serialize};

use super::answer::Job;
use super::case::{Case, Operation, Transport, Waiting};
use super::end::End;
use super::machine::Machine;
use super::plan::Sizes;
use super::stats::{Spread, ratio};
use super::wait::poll_for;
use super::{measure, pin};
use crate::fixture::{DeviceOptions, text};
use crate::link::{Link, Other, Role};
use figures::{Beside, Must};
pub use remote::serve;
use work::{Figure, Near};

/// What must be reached is measured so many times as often as the other rows of a page.
const PAGE_ROUNDS: u32 = 5;
/// Bytes of a message's header (crates/exs/src/protocol/wire.rs).
const HEADER: usize = 32;
/// Bytes of the WRITEs that the peer copies at a time: so many that neither their end nor a call counts, and no more
/// than a message or the ring of a stream has.
const HANDED_OVER: usize = 512 << 10;
/// The least number of such times, of which the median is taken.
const HANDED_OVER_TIMES: usize = 9;

/// Options of the command.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    device: DeviceOptions,
    /// Time for each measurement in each round, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    time: u64,
    /// Rounds: everything is measured so often, and the median is shown
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    #[arg(default_value_if("figures", ArgPredicate::IsPresent, "9"))]
    rounds: u32,
    /// Message sizes: few, all (every power of two up to 8M), or a list like 8,4K,1M
    #[arg(long, value_name = "SIZES", default_value = "few", value_parser = Sizes::parse)]
    #[arg(default_value_if("page", ArgPredicate::IsPresent, "all"))]
    sizes: Sizes,
    /// Only these ways of transfer
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<Way>,
    /// Leave it to the system which cores the processes use
    #[arg(long)]
    no_pin: bool,
    /// Measure what must be reached, as ratios, and nothing else; sets --rounds 9
    #[arg(long, conflicts_with_all = ["sizes", "only", "page"])]
    figures: bool,
    /// Write a page in Markdown, with what must be reached, and plots beside it; sets --sizes all
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    page: Option<PathBuf>,
    /// Write the figures as JSON, instead of a table
    #[arg(long)]
    json: bool,
}

impl Options {
    /// The rounds of what must be reached: on a page, many beside those of its other rows. The clock of a processor
    /// that is shared may change by half within a second, so a verdict needs more of them than a curve.
    fn rounds_of_musts(&self) -> u32 {
        if self.page.is_some() { self.rounds.saturating_mul(PAGE_ROUNDS) } else { self.rounds }
    }
}

/// A way of transfer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// SEQPACKET; the data come in the advertisement
    Immediate,
    /// As immediate; the program sleeps until an event comes
    Event,
    /// SEQPACKET; the receiver reads what is advertised
    Normal,
    /// SEQPACKET; the receiver reads again and again what stays advertised
    Persistent,
    /// STREAM; both sides post ahead
    Stream,
    /// STREAM; the receiver is late, and the data go through its ring
    Late,
    /// A socket of TCP, over the loopback interface
    Tcp,
}

impl Way {
    /// All ways.
    const ALL: [Way; 7] = [Way::Immediate, Way::Event, Way::Normal, Way::Persistent, Way::Stream, Way::Late, Way::Tcp];

    fn name(self) -> &'static str {
        match self {
            Way::Immediate => "immediate",
            Way::Event => "event",
            Way::Normal => "normal",
            Way::Persistent => "persistent",
            Way::Stream => "stream",
            Way::Late => "late",
            Way::Tcp => "tcp",
        }
    }

    /// True if it is measured with messages of this size.
    fn takes(self, what: What, bytes: usize) -> bool {
        match (self, what) {
            (Way::Event, What::Throughput) => false,
            (Way::Immediate | Way::Event, _) => bytes <= exs::protocol::MAX_SMALL as usize,
            (Way::Late, What::Latency) => false,
            _ => true,
        }
    }
}

/// The quantity that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// Microseconds: one way, or there and back where the receiver fetches.
    Latency,
    /// Megabytes a second.
    Throughput,
}

impl What {
    /// The mean of figures, one at least; of rates it is the harmonic one, as if as many bytes went at each.
    fn mean(self, figures: impl ExactSizeIterator<Item = f64>) -> f64 {
        let count = figures.len() as f64;
        match self {
            What::Latency => figures.sum::<f64>() / count,
            What::Throughput => count / figures.map(f64::recip).sum::<f64>(),
        }
    }
}

/// One measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Task {
    /// The way.
    pub way: Way,
    /// The quantity.
    pub what: What,
    /// The size of the messages.
    pub bytes: usize,
}

/// The first message to the other process.
#[derive(Serialize, Deserialize)]
struct Hello {
    /// The core that the process is pinned to.
    core: Option<usize>,
    /// Whether verbs are measured, too: a device of iWARP has no queue pair without a connection of rdma_cm.
    verbs: bool,
}

/// What the other process has to do next.
#[derive(Serialize, Deserialize)]
enum Order {
    /// Answer extended sockets, or TCP.
    Measure(Task),
    /// Answer verbs, until the end of those jobs.
    Verbs,
    /// Copy so many bytes of what WRITEs have brought, and tell the time.
    Copy(usize),
    /// Run on this core from now on.
    Pin(usize),
    /// Tell the pace of this process's core.
    Pace,
    /// End.
    End,
}

/// A figure beside its limit.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    task: Task,
    /// Microseconds or megabytes a second.
    figure: Spread,
    /// Processor time of this process, in percent of one core.
    cpu: f64,
    /// The share of bytes that went directly into receives, in percent; of streams.
    direct: Option<f64>,
    /// The name of the limit, and its figure.
    limit: Option<String>,
    limit_figure: Option<Spread>,
    /// The median of the rounds' ratios of the two.
    ratio: Option<f64>,
}

/// The pace of either core: microseconds for a fixed piece of arithmetic. Where the processes are not pinned, it is the
/// pace of either process.
type Paces = [f64; 2];

/// Both processes, and what is measured with them.
struct Bench<'a> {
    options: &'a Options,
    budget: Duration,
    /// The queue pairs of verbs alone, upon the memory of `near`. None: they are not measured.
    verbs: Option<End>,
    /// The process that answers.
    other: &'a mut Link,
    near: Near,
    /// The cores of this process and of the other one. None: they are not pinned.
    cores: Option<(usize, usize)>,
    /// The two processes run the other way round now.
    exchanged: bool,
    /// The best pace of either core until now ([`work::pace`]).
    best: Paces,
}

impl Bench<'_> {
    /// Measure on the cores that were chosen, and the other way round, for half the time each. A WRITE copies on the
    /// core of one process, and the READ of a message on the other's: if others slow one core down, each of the two
    /// must have been there in every round. Without cores that were chosen, this measures once.
    fn on_both_cores<T>(&mut self, mut measure: impl FnMut(&mut Self) -> Result<T, String>) -> Result<Vec<T>, String> {
        let Some((a, b)) = self.cores else { return Ok(vec![measure(self)?]) };
        let whole = self.budget;
        self.budget /= 2;
        let found = [(a, b), (b, a)].into_iter().map(|(ours, theirs)| {
            self.exchanged = ours != a;
            self.other.send(&Order::Pin(theirs))?;
            pin::pin_all(ours);
            let () = self.other.receive()?;
            measure(self)
        });
        let found = found.collect();
        self.budget = whole;
        found
    }

    /// The paces of the two cores now. Each is looked at while the other process waits.
    fn paces(&mut self) -> Result<Paces, String> {
        let ours = work::pace();
        self.other.send(&Order::Pace)?;
        let theirs = self.other.receive()?;
        let paces = if self.exchanged { [theirs, ours] } else { [ours, theirs] };
        self.best = std::array::from_fn(|core| self.best[core].min(paces[core]));
        Ok(paces)
    }

    /// A figure of extended sockets, or of TCP.
    fn figure(&mut self, task: &Task) -> Result<Figure, String> {
        let figure = self.near.measure(task, self.other, self.budget);
        figure.map_err(|error| format!("{} of {} bytes: {error}", task.way.name(), task.bytes))
    }

    /// The figure that something must be compared with, and its name.
    fn beside(&mut self, must: &Must) -> Result<(String, f64), String> {
        let Task { what, bytes, .. } = must.task;
        if must.beside == Beside::Tcp {
            let figure = self.figure(&Task { way: Way::Tcp, what, bytes })?;
            return Ok(("TCP".into(), figure.value));
        }
        if must.beside == Beside::VerbsAndCopy {
            return Ok(("WRITE, then the peer's copy".into(), self.write_and_copy(bytes)?));
        }
        self.verbs(&must.task)?.ok_or_else(|| "nothing to compare with".into())
    }

    /// Messages of this size by WRITE, each of which the peer copies, in megabytes a second.
    ///
    /// The peer has to make the copy. A WRITE to memory that no other processor reads, and a copy of bytes that no
    /// other processor has written, stay in the cache of one processor each. Their time does not depend on how near the
    /// other processor is, and that of a late receiver does.
    fn write_and_copy(&mut self, bytes: usize) -> Result<f64, String> {
        let end = self.verbs.as_ref().ok_or("nothing to compare with")?;
        let lane = end.lane(&Case::bandwidth(Transport::Rc, Operation::Write, bytes))?;
        let count = (HANDED_OVER / bytes).max(1);
        let (mut times, began) = (Vec::new(), Instant::now());
        while times.len() < HANDED_OVER_TIMES || began.elapsed() < self.budget {
            let start = Instant::now();
            for place in work::sink(count * bytes).step_by(bytes) {
                let op = SendOp::Write { addr: lane.peer.addr + place as u64, rkey: lane.peer.rkey };
                end.post(lane, op, work::source(bytes).start, bytes, 1)?;
            }
            poll_for(&lane.sends, 0, count as u64)?;
            let written = start.elapsed();
            self.other.send(&Order::Copy(count * bytes))?;
            times.push(written + self.other.receive::<Duration>()?);
        }
        times.sort_unstable();
        Ok((count * bytes) as f64 / times[times.len() / 2].as_secs_f64() / 1e6)
    }

    /// As many bytes by verbs.
    fn verbs(&mut self, task: &Task) -> Result<Option<(String, f64)>, String> {
        let Some(end) = &self.verbs else { return Ok(None) };
        self.other.send(&Order::Verbs)?;
        let limit = limit(task, end, self.other, self.budget)?;
        self.other.send(&Job::End)?;
        Ok(limit)
    }

    /// All ways and sizes.
    fn rows(&mut self) -> Result<Vec<Row>, String> {
        let mut rows = Vec::new();
        let only = &self.options.only;
        for what in [What::Latency, What::Throughput] {
            for way in Way::ALL.into_iter().filter(|way| only.is_empty() || only.contains(way)) {
                for bytes in self.options.sizes.list().into_iter().filter(|bytes| way.takes(what, *bytes)) {
                    rows.push(self.row(&Task { way, what, bytes })?);
                }
            }
        }
        Ok(rows)
    }

    fn row(&mut self, task: &Task) -> Result<Row, String> {
        let (mut figures, mut limits, mut cpu, mut direct) = (Vec::new(), Vec::new(), Vec::new(), None);
        let mut name = None;
        for _ in 0..self.options.rounds {
            let found = self.on_both_cores(|bench| Ok((bench.verbs(task)?, bench.figure(task)?)))?;
            let (of, figure): (Vec<_>, Vec<Figure>) = found.into_iter().unzip();
            let of: Vec<_> = of.into_iter().flatten().collect();
            if let Some((last, _)) = of.last() {
                name = Some(last.clone());
                limits.push(task.what.mean(of.iter().map(|(_, figure)| *figure)));
            }
            figures.push(task.what.mean(figure.iter().map(|figure| figure.value)));
            cpu.push(figure.iter().map(|figure| figure.cpu).sum::<f64>() / figure.len() as f64);
            direct = figure.iter().filter_map(|figure| figure.direct).reduce(f64::min);
        }
        let ratio = ratio(&figures, &limits);
        let limit_figure = (!limits.is_empty()).then(|| Spread::of(&limits));
        let (figure, cpu) = (Spread::of(&figures), Spread::of(&cpu).median);
        Ok(Row { task: *task, figure, cpu, direct, limit: name, limit_figure, ratio })
    }
}

/// The first process.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    if let Some(path) = &options.page {
        super::writable(path)?;
    }
    // Before this process is pinned to one of its processors.
    let machine = Machine::this();
    let cores = if options.no_pin { None } else { pin::two_cores() };
    let musts = options.figures || options.page.is_some();
    let iwarp = options.device.find()?.1.is_iwarp();
    if iwarp && musts {
        return Err(
            "over iWARP there are no figures that must be reached: they are ratios to queue pairs without rdma_cm"
                .into(),
        );
    }
    let mut other = Other::start(Role::ExsBlast, &options.device)?;
    other.link.send(&Hello { core: cores.map(|(_, theirs)| theirs), verbs: !iwarp })?;
    if let Some((ours, _)) = cores {
        pin::pin(ours);
    }
    let near = Near::new(&options.device)?;
    let open = || {
        End::open(&options.device, work::room(), Some(near.memory()), |ours| {
            other.link.send(&ours)?;
            other.link.receive()
        })
    };
    let verbs = (!iwarp).then(open).transpose()?;
    let () = other.link.receive()?;
    let budget = Duration::from_millis(options.time);
    let best = [f64::INFINITY; 2];
    let mut bench = Bench { options, budget, verbs, other: &mut other.link, near, cores, exchanged: false, best };
    let measure = |must: &Must| figures::measure(&mut bench, must);
    let met = if musts { figures::musts().iter().map(measure).collect::<Result<_, _>>()? } else { Vec::new() };
    let rows = if options.figures { Vec::new() } else { bench.rows()? };
    other.link.send(&Order::End)?;
    match (&options.page, options.json) {
        (Some(path), _) => page::write_page(options, &met, &rows, &machine, cores, path)?,
        (_, true) if options.figures => println!("{}", serde_json::to_string_pretty(&met).map_err(text)?),
        (_, true) => println!("{}", serde_json::to_string_pretty(&rows).map_err(text)?),
        _ if options.figures => figures::table(&met).print(),
        _ => table::print(&rows),
    }
    Ok(ExitCode::SUCCESS)
}

/// The time of as many bytes in verbs. The target polls where the peer of an extended socket does.
fn limit(task: &Task, end: &End, link: &mut Link, budget: Duration) -> Result<Option<(String, f64)>, String> {
    let awake = task.way != Way::Persistent;
    let mut latency = |operation, bytes, waiting| {
        let case = Case { waiting, awake, ..Case::latency(Transport::Rc, operation, bytes) };
        let mut times = measure::latency(end, link, &case, budget / 3)?;
        times.sort_unstable();
        let typical = times.get(times.len() / 2).ok_or("no sample")?.as_secs_f64() * 1e6;
        Ok::<f64, String>(if operation.one_way() { typical / 2.0 } else { typical })
    };
    let (poll, bytes) = (Waiting::Polling, task.bytes);
    let found = match (task.what, task.way) {
        (What::Latency, Way::Immediate) => {
            ("SEND with a header".to_owned(), latency(Operation::Send, bytes + HEADER, poll)?)
        }
        (What::Latency, Way::Event) => {
            ("SEND with a header, by events".to_owned(), latency(Operation::Send, bytes + HEADER, Waiting::Events)?)
        }
        (What::Latency, Way::Normal) => {
            let message = latency(Operation::Send, HEADER, poll)?;
            ("SEND + READ + SEND".to_owned(), 2.0 * message + latency(Operation::Read, bytes, poll)?)
        }
        (What::Latency, Way::Persistent) => ("READ".to_owned(), latency(Operation::Read, bytes, poll)?),
        (What::Latency, Way::Stream) => ("SEND".to_owned(), latency(Operation::Send, bytes, poll)?),
        (_, Way::Tcp) | (What::Latency, Way::Late) | (What::Throughput, Way::Event) => return Ok(None),
        (What::Throughput, way) => {
            let (name, operation) =
                if way == Way::Persistent { ("READ", Operation::Read) } else { ("WRITE", Operation::Write) };
            let case = Case { awake, ..Case::bandwidth(Transport::Rc, operation, bytes) };
            let rate = measure::bandwidth(end, link, &case, budget)?;
            (name.to_owned(), rate.messages as f64 * bytes as f64 / rate.time.as_secs_f64() / 1e6)
        }
    };
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2 s and 4 s for as many bytes: 3 s in the mean, whether times are told or rates.
    #[test]
    fn means_are_of_times() {
        assert_eq!(What::Latency.mean([2.0, 4.0].into_iter()), 3.0);
        assert_eq!(What::Throughput.mean([12.0 / 2.0, 12.0 / 4.0].into_iter()), 12.0 / 3.0);
    }
}
