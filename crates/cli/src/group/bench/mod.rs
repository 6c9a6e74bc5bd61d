//! `softrnic group bench`: the time of group operations, beside chains with the processor on the path.

mod aims;
mod beside;
mod page;
mod parts;
mod plan;
mod row;
mod stand;
mod work;

pub use parts::{PartOptions, part};

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::bench::table::Table;
use crate::fixture::DeviceOptions;
use crate::out::say;
use row::{Results, Row};

/// Ratios that have a bound are measured so many times as often on a page.
const PAGE_ROUNDS: u32 = 5;

/// Options of the command.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    device: DeviceOptions,
    /// Time for each measurement, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    time: u64,
    /// Rounds of the ratios: both sides of a ratio are measured one after the other in each. A page has five times as
    /// many for ratios to bare chains and of applications
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Measure few sizes, windows and loads
    #[arg(long)]
    quick: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "page")]
    json: bool,
    /// Write a page in Markdown, and its plots beside it; what is written by hand on the page stays
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

impl Options {
    /// The rounds of ratios that a change of the processor's clock within a second would decide otherwise.
    fn rounds_of_bounds(&self) -> u32 {
        if self.page.is_some() { self.rounds.saturating_mul(PAGE_ROUNDS) } else { self.rounds }
    }
}

/// Measure, and show it.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    let results = plan::run(options)?;
    if options.json {
        say!("{}", serde_json::to_string(&results).map_err(crate::fixture::text)?);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(path) = &options.page {
        page::write_page(&results, path)?;
        say!("written: {}", path.display());
        return Ok(ExitCode::SUCCESS);
    }
    say!("{}; load {}", results.machine, results.load);
    table(results.rows.iter()).lines().iter().for_each(|line| say!("{line}"));
    bounds(&results).lines().iter().for_each(|line| say!("{line}"));
    aims::table(&results).lines().iter().for_each(|line| say!("{line}"));
    say!("{}", results.posted());
    Ok(ExitCode::SUCCESS)
}

/// A table of figures.
fn table<'a>(rows: impl Iterator<Item = &'a Row>) -> Table {
    let mut table = Table::new([
        "what",
        "bytes",
        "replicas",
        "window",
        "busy",
        "pause",
        "core and priority",
        "p50 us",
        "p95",
        "p99",
        "p99.9",
        "max",
        "op/s",
    ]);
    for Row { setting, measured } in rows {
        let name = match &setting.applications {
            Some(applications) => format!("{}, applications {applications}", setting.curve.name()),
            None => setting.curve.name().to_owned(),
        };
        table.cell(name);
        [setting.size, setting.replicas, setting.window as usize, setting.busy as usize, setting.pause as usize]
            .iter()
            .for_each(|number| table.cell(number));
        table.cell(&setting.place);
        let times = measured.microseconds;
        [times.p50, times.p95, times.p99, times.p99_9, times.max].iter().for_each(|time| table.cell(figure(*time)));
        table.cell(format!("{:.0}", measured.per_second));
        table.end_row();
    }
    table
}

/// Three digits.
fn figure(value: f64) -> String {
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$}")
}

/// A table of the ratios that have bounds.
fn bounds(results: &Results) -> Table {
    let mut table = Table::new(["ratio", "found", "bound", "lowest and highest round"]);
    for bound in &results.bounds {
        table.cell(&bound.what);
        // Small ratios are shown as parts of one.
        let shown = |ratio: f64| if ratio < 0.1 { format!("1/{:.0}", 1.0 / ratio) } else { figure(ratio) };
        table.cell(shown(bound.ratio));
        table.cell(shown(bound.bound));
        let low = bound.rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let high = bound.rounds.iter().copied().fold(0.0, f64::max);
        table.cell(format!("{} to {}", shown(low), shown(high)));
        table.end_row();
    }
    table
}
