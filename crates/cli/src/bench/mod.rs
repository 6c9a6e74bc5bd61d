//! `softrnic bench`: two processes, a reliable connection, and the time it takes.

mod end;
mod initiator;
mod pin;
mod table;
mod target;

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::bed::{DeviceOptions, Endpoint, text};
use crate::link::{Link, Other, Role};
use crate::out::say;
use end::{End, Hello, Job};
use initiator::{Bandwidth, Latency, Operation};
use table::Table;

/// Options of the command.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    device: DeviceOptions,
    /// Time for each measurement, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    time: u64,
    /// Only these columns: SEND, WRITE, READ, READ*, FETCH_ADD, CMP_SWAP, FETCH_ADD*
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Leave it to the system which cores the processes use
    #[arg(long)]
    no_pin: bool,
}

/// Message sizes of the latency table.
const LATENCY_SIZES: [usize; 6] = [8, 64, 512, 4096, 65536, 1 << 20];
/// Message sizes of the bandwidth table.
const BANDWIDTH_SIZES: [usize; 7] = [8, 64, 512, 4096, 16384, 65536, 1 << 20];

/// The initiator's process.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    let (library, device) = options.device.find()?;
    let (cores, where_) = match options.no_pin {
        true => (None, "wherever the system puts them".to_owned()),
        false => match pin::two_cores() {
            Some((a, b)) => (Some((a, b)), format!("on cores {a} and {b}")),
            None => (None, "both on the only core there is, which makes them slow".to_owned()),
        },
    };
    say!("{} ({}), RC, two processes {where_}\n", device.name(), library.path());
    let mut other = Other::start(Role::Bench, &options.device)?;
    if let Some((ours, theirs)) = cores {
        other.link.send(&Hello { core: Some(theirs) })?;
        pin::pin(ours);
    } else {
        other.link.send(&Hello { core: None })?;
    }
    let end = End::open(&options.device)?;
    other.link.send(&end.endpoint()?)?;
    let peer: Endpoint = other.link.receive()?;
    end.connect(&peer)?;
    let () = other.link.receive()?;

    let budget = Duration::from_millis(options.time);
    let mut bench = Bench { end, peer, link: &mut other.link, budget, only: &options.only };
    bench.latency()?;
    bench.bandwidth()?;
    bench.link.send(&Job::End)?;
    Ok(ExitCode::SUCCESS)
}

/// The target's process.
pub fn peer(link: &mut Link, device: &DeviceOptions) -> Result<(), String> {
    let Hello { core } = link.receive()?;
    if let Some(core) = core {
        pin::pin(core);
    }
    let end = End::open(device)?;
    let peer: Endpoint = link.receive()?;
    link.send(&end.endpoint()?)?;
    end.connect(&peer)?;
    link.send(&())?;
    target::serve(&end, &peer, link)
}

/// A round trip longer than this is worth a word: a median does not show it.
const NOTABLE: Duration = Duration::from_millis(100);

struct Bench<'a> {
    end: End,
    peer: Endpoint,
    link: &'a mut Link,
    budget: Duration,
    only: &'a [String],
}

impl Bench<'_> {
    /// Those of `operations` that are wanted and that the device has.
    fn wanted(&self, operations: &[Operation]) -> Vec<Operation> {
        let wanted =
            |operation: &&Operation| self.only.is_empty() || self.only.iter().any(|name| name == operation.name());
        let possible = |operation: &&Operation| self.end.atomics || !operation.is_atomic();
        operations.iter().filter(wanted).filter(possible).copied().collect()
    }

    fn latency(&mut self) -> Result<(), String> {
        let operations = self.wanted(&[Operation::Send, Operation::Write, Operation::Read, Operation::ReadIdle]);
        let atomics = self.wanted(&[Operation::FetchAdd, Operation::CompareSwap, Operation::FetchAddIdle]);
        say!(
            "Latency in microseconds: median, 99th percentile. SEND and WRITE: one way. READ and atomics: there and back."
        );
        self.latency_table(&operations, &LATENCY_SIZES)?;
        self.latency_table(&atomics, &[8])?;
        say!("* the target's program sleeps; otherwise it polls its completion queue, or its memory for WRITE.\n");
        Ok(())
    }

    fn latency_table(&mut self, operations: &[Operation], sizes: &[usize]) -> Result<(), String> {
        if operations.is_empty() {
            return Ok(());
        }
        let columns = operations.iter().flat_map(|operation| [operation.name(), "p99"]);
        let mut table = Table::new(std::iter::once("bytes").chain(columns));
        let mut notes = Vec::new();
        for size in sizes {
            table.cell(size);
            for operation in operations {
                let Latency { median, p99, longest } =
                    initiator::latency(&self.end, &self.peer, self.link, *operation, *size, self.budget)
                        .map_err(|error| format!("{} of {size} bytes: {error}", operation.name()))?;
                table.cell(format_args!("{:.2}", median.as_secs_f64() * 1e6));
                table.cell(format_args!("{:.2}", p99.as_secs_f64() * 1e6));
                if longest > NOTABLE {
                    notes.push(format!("  {} of {size} bytes: one took {} ms", operation.name(), longest.as_millis()));
                }
            }
            table.end_row();
        }
        table.print();
        notes.iter().for_each(|note| say!("{note}"));
        Ok(())
    }

    fn bandwidth(&mut self) -> Result<(), String> {
        let operations = self.wanted(&[Operation::Send, Operation::Write, Operation::Read]);
        if operations.is_empty() {
            return Ok(());
        }
        say!("Bandwidth: GB/s (10^9 bytes), millions of messages a second; one direction, one buffer on each side.");
        let columns = operations.iter().flat_map(|operation| [operation.name(), "M/s"]);
        let mut table = Table::new(std::iter::once("bytes").chain(columns));
        for size in BANDWIDTH_SIZES {
            table.cell(size);
            for operation in &operations {
                let Bandwidth { messages, time } =
                    initiator::bandwidth(&self.end, &self.peer, self.link, *operation, size, self.budget)
                        .map_err(|error| format!("{} of {size} bytes: {error}", operation.name()))?;
                let rate = messages as f64 / time.as_secs_f64();
                table.cell(format_args!("{:.2}", rate * size as f64 / 1e9));
                table.cell(format_args!("{:.3}", rate / 1e6));
            }
            table.end_row();
        }
        table.print();
        Ok(())
    }
}

/// Tells the target what to do, and waits until it is ready for it.
fn begin(link: &mut Link, job: &Job) -> Result<(), String> {
    link.send(job)?;
    link.receive::<()>()
}

/// Waits until the target has done its part.
fn finish(link: &mut Link) -> Result<(), String> {
    link.receive::<Result<(), String>>()?.map_err(|error| format!("the other process: {error}"))
}

impl End {
    fn connect(&self, peer: &Endpoint) -> Result<(), String> {
        self.qp.connect(rdma::QpType::Rc, &self.bed.connect(end::PSN, peer)).map_err(text)
    }
}
