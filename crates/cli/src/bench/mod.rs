//! `softrnic bench`: the time of messages between two processes, beside the limits of the machine.

mod answer;
mod case;
pub mod chart;
mod end;
pub mod exs;
mod limits;
pub mod machine;
mod measure;
mod page;
mod pairs;
mod peers;
pub mod pin;
mod plan;
pub mod plot;
mod report;
mod results;
mod run;
pub mod stats;
mod summary;
pub mod table;
mod wait;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::builder::ArgPredicate;

use crate::fixture::{DeviceOptions, text};
use crate::link::Link;
use answer::Job;
use case::{Operation, Transport, Waiting};
use end::{End, Hello};
use plan::Sizes;

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
    #[arg(default_value_if("page", ArgPredicate::IsPresent, "5"))]
    rounds: u32,
    /// Message sizes: few, all (every power of two up to 8M), or a list like 8,4K,1M
    #[arg(long, value_name = "SIZES", default_value = "few", value_parser = Sizes::parse)]
    #[arg(default_value_if("page", ArgPredicate::IsPresent, "all"))]
    sizes: Sizes,
    /// Only these operations
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<Operation>,
    /// Only these transport services
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    transports: Vec<Transport>,
    /// Only programs that wait in this way; both otherwise
    #[arg(long, value_name = "HOW")]
    waiting: Option<Waiting>,
    /// Numbers of queue pairs to compare: one that works, the others connected and idle beside it
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,100,1000",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    qps: Vec<u32>,
    /// Write all results to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write plots into this folder, as SVG
    #[arg(long, value_name = "DIR")]
    plot: Option<PathBuf>,
    /// Write a page in Markdown, and plots beside it; sets --sizes all, --rounds 5, --pairs 4 and --peer
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Run other programs as well, as far as they are installed: perftest, UCX, libfabric, qperf
    #[arg(long, default_value_if("page", ArgPredicate::IsPresent, "true"))]
    peer: bool,
    /// Run so many pairs of processes at the same time, besides
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    #[arg(default_value_if("page", ArgPredicate::IsPresent, "4"))]
    pairs: u32,
    /// Leave it to the system which cores the processes use
    #[arg(long)]
    no_pin: bool,
    /// End with status 1 if a figure is not what it should be
    #[arg(long)]
    check: bool,
}

/// Run the initiator's process.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    // The files are tested now, not after minutes of measurement.
    [&options.json, &options.page].into_iter().flatten().try_for_each(|path| writable(path))?;
    if let Some(folder) = &options.plot {
        std::fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        let probe = folder.join(".softrnic");
        write(&probe, "")?;
        let _ = std::fs::remove_file(probe);
    }
    let results = run::measure(options)?;
    report::print(&results);
    if let Some(path) = &options.json {
        let json = serde_json::to_string_pretty(&results).map_err(text)?;
        write(path, &json)?;
    }
    if let Some(folder) = &options.plot {
        plot::write_all(&results, folder)?;
    }
    if let Some(path) = &options.page {
        page::write_page(&results, path)?;
    }
    let missed = results.summary.iter().filter(|goal| !goal.met()).count();
    if options.check && missed > 0 {
        eprintln!("{missed} of {} figures are not what they should be", results.summary.len());
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Check that the file can be written; its content stays.
fn writable(path: &Path) -> Result<(), String> {
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map(drop).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// True if the programs' registered memory lies where peers map it.
fn migrated() -> bool {
    ::report::Settings::of_process().migrate
}

/// Write a file.
pub fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Run the target's process.
pub fn peer(link: &mut Link, device: &DeviceOptions) -> Result<(), String> {
    let Hello { core, room } = link.receive()?;
    if let Some(core) = core {
        pin::pin(core);
    }
    let mut end = End::open(device, room, None, |ours| {
        let theirs = link.receive()?;
        link.send(&ours)?;
        Ok(theirs)
    })?;
    link.send(&())?;
    answer::serve(&mut end, link)
}

/// Run the first process of one of several pairs.
pub fn pair(link: &mut Link, device: &DeviceOptions) -> Result<(), String> {
    pairs::first(link, device)
}

/// Give the target a job, and wait until it is ready for it.
fn begin(link: &mut Link, job: &Job) -> Result<(), String> {
    link.send(job)?;
    link.receive::<()>()
}

/// Wait until the target has done its part. The result is what it counted.
fn finish(link: &mut Link) -> Result<u64, String> {
    link.receive::<Result<u64, String>>()?.map_err(|error| format!("the other process: {error}"))
}

impl Options {
    /// True if the operation is to be measured.
    fn wants(&self, operation: Operation) -> bool {
        self.only.is_empty() || self.only.contains(&operation)
    }

    fn budget(&self) -> Duration {
        Duration::from_millis(self.time)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn options(line: &str) -> Options {
        Line::try_parse_from(std::iter::once("bench").chain(line.split_whitespace())).expect(line).options
    }

    #[test]
    fn a_page_is_thorough_unless_told_otherwise() {
        let plain = options("");
        assert_eq!((plain.sizes, plain.rounds, plain.peer), (Sizes::Few, 3, false));
        let page = options("--page x.md");
        assert_eq!((page.sizes, page.rounds, page.peer, page.pairs), (Sizes::All, 5, true, 4));
        let page = options("--page x.md --sizes 8 --rounds 1");
        assert_eq!((page.sizes, page.rounds, page.peer), (Sizes::These(vec![8]), 1, true));
    }

    #[test]
    fn only_what_is_wanted_is_planned() {
        let cases = |line: &str, atomics| {
            let options = options(line);
            let datagram = |transport| if transport == Transport::Ud { 4096 } else { end::LARGEST };
            plan::Plan::new(&options, &options.sizes, atomics, datagram).cases
        };
        let all = cases("", true);
        assert!(Transport::ALL.iter().all(|transport| all.iter().any(|case| case.transport == *transport)));
        assert!(Operation::ALL.iter().all(|operation| all.iter().any(|case| case.operation == *operation)));
        assert!(all.iter().any(|case| case.waiting == Waiting::Events) && all.iter().any(|case| case.walking));
        assert!(all.iter().all(|case| case.transport != Transport::Ud || case.bytes <= 4096));
        assert!(cases("", false).iter().all(|case| !case.operation.is_atomic()));
        assert!(cases("--only READ,SEND", true).iter().all(|case| ["READ", "SEND"].contains(&case.operation.name())));
        assert!(cases("--transports uc", true).iter().all(|case| case.transport == Transport::Uc));
        assert!(cases("--waiting events", true).iter().all(|case| case.waiting == Waiting::Events));
        assert_eq!(cases("--only FETCH_ADD --waiting polling --sizes 1M,8M", true).len(), 1, "atomics have one size");
    }

    #[test]
    fn events_are_waited_for_wherever_there_are_any() {
        let cases = |line: &str| {
            let options = options(line);
            plan::Plan::new(&options, &options.sizes, true, |_| end::LARGEST).cases
        };
        let events = cases("--sizes 8 --waiting events");
        assert!(events.iter().all(|case| !case.walking));
        // The cases are SEND over three services, READ, two atomics; the bandwidth of SEND over three, WRITE over two,
        // READ.
        assert_eq!(events.len(), 3 + 1 + 2 + 3 + 2 + 1);
        assert_eq!(cases("--sizes 8").len(), cases("--sizes 8 --waiting polling").len() + events.len());
    }

    #[test]
    fn every_planned_case_has_queue_pairs() {
        let options = options("--sizes all");
        for case in plan::Plan::new(&options, &options.sizes, true, |_| end::LARGEST).cases {
            assert!(end::Use::of(&case).is_some(), "{case}");
        }
    }
}
