//! `softrnic exs-blast`: extended sockets between two processes, beside the verbs that they are made of, and beside
//! TCP.
//!
//! Every figure has its limit: the time of as many bytes by verbs or TCP without extended sockets, measured in turns.

mod remote;
mod table;
mod work;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::answer::Job;
use super::case::{Case, Operation, Transport, Waiting};
use super::end::{End, Hello, Room};
use super::plan::Sizes;
use super::stats::{Spread, ratio};
use super::{measure, pin};
use crate::fixture::{DeviceOptions, text};
use crate::link::{Link, Other, Role};
pub use remote::serve;
use work::{Figure, Near};

/// Bytes of a message's header (crates/exs/src/protocol/wire.rs).
const HEADER: usize = 32;

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
    rounds: u32,
    /// Message sizes: few, all (every power of two up to 8M), or a list like 8,4K,1M
    #[arg(long, value_name = "SIZES", default_value = "few", value_parser = Sizes::parse)]
    sizes: Sizes,
    /// Only these ways of transfer
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<Way>,
    /// Leave it to the system which cores the processes use
    #[arg(long)]
    no_pin: bool,
    /// Write the figures as JSON, instead of a table
    #[arg(long)]
    json: bool,
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
            (Way::Immediate | Way::Event, What::Latency) => bytes <= exs::protocol::MAX_SMALL as usize,
            (Way::Immediate | Way::Event | Way::Persistent, What::Throughput) => false,
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

/// The first process.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    let cores = if options.no_pin { None } else { pin::two_cores() };
    let mut verbs = Other::start(Role::Bench, &options.device)?;
    let sizes = options.sizes.list();
    let room = Room::new(sizes.iter().copied().max().unwrap_or(8).max(4096), false);
    verbs.link.send(&Hello { core: cores.map(|(_, theirs)| theirs), room })?;
    let mut other = Other::start(Role::ExsBlast, &options.device)?;
    other.link.send(&cores.map(|(_, theirs)| theirs))?;
    if let Some((ours, _)) = cores {
        pin::pin(ours);
    }
    let end = End::open(&options.device, room, |ours| {
        verbs.link.send(&ours)?;
        verbs.link.receive()
    })?;
    let () = verbs.link.receive()?;
    let mut near = Near::new(&options.device)?;
    let mut rows = Vec::new();
    for what in [What::Latency, What::Throughput] {
        for way in Way::ALL {
            if !options.only.is_empty() && !options.only.contains(&way) {
                continue;
            }
            for bytes in sizes.iter().copied().filter(|bytes| way.takes(what, *bytes)) {
                let task = Task { way, what, bytes };
                let row = measure(options, &task, &end, &mut verbs.link, &mut near, &mut other.link);
                rows.push(row.map_err(|error| format!("{} of {bytes} bytes: {error}", way.name()))?);
            }
        }
    }
    verbs.link.send(&Job::End)?;
    other.link.send(&None::<Task>)?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&rows).map_err(text)?);
    } else {
        table::print(&rows);
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(
    options: &Options,
    task: &Task,
    end: &End,
    verbs: &mut Link,
    near: &mut Near,
    other: &mut Link,
) -> Result<Row, String> {
    let budget = Duration::from_millis(options.time);
    let (mut figures, mut limits, mut cpu, mut direct) = (Vec::new(), Vec::new(), Vec::new(), None);
    let mut name = None;
    for _ in 0..options.rounds {
        if let Some((of, figure)) = limit(task, end, verbs, budget)? {
            name = Some(of);
            limits.push(figure);
        }
        let figure: Figure = near.measure(task, other, budget)?;
        figures.push(figure.value);
        cpu.push(figure.cpu);
        direct = figure.direct;
    }
    let ratio = ratio(&figures, &limits);
    let limit_figure = (!limits.is_empty()).then(|| Spread::of(&limits));
    let (figure, cpu) = (Spread::of(&figures), Spread::of(&cpu).median);
    Ok(Row { task: *task, figure, cpu, direct, limit: name, limit_figure, ratio })
}

/// The time of as many bytes in verbs.
fn limit(task: &Task, end: &End, link: &mut Link, budget: Duration) -> Result<Option<(String, f64)>, String> {
    let mut latency = |operation, bytes, waiting| {
        let case = Case { waiting, ..Case::latency(Transport::Rc, operation, bytes) };
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
        (What::Throughput, Way::Normal | Way::Stream | Way::Late) => {
            let case = Case::bandwidth(Transport::Rc, Operation::Write, bytes);
            let rate = measure::bandwidth(end, link, &case, budget)?;
            ("WRITE".to_owned(), rate.messages as f64 * bytes as f64 / rate.time.as_secs_f64() / 1e6)
        }
        (_, Way::Tcp) | (What::Latency, Way::Late) => return Ok(None),
        (What::Throughput, _) => return Ok(None),
    };
    Ok(Some(found))
}
