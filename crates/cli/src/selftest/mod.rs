//! `softrnic selftest`: every operation, on every kind of queue pair, in many sizes and shapes, and every byte
//! compared.

mod case;
mod pattern;
mod plan;
mod refuse;
mod remote;
mod report;
mod shape;
mod side;

use std::process::ExitCode;
use std::rc::Rc;

use clap::Args;

use crate::fixture::{DeviceOptions, Fixture};
use crate::link::{Link, Other};
use crate::out::say;
use case::Case;
use plan::{Plan, Row};
use remote::{Pair, Place};
use report::Report;

/// The number of entries of the largest scatter/gather list that is tried.
pub const MOST_ENTRIES: usize = 32;

/// Options of the command.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    device: DeviceOptions,
    /// Fewer sizes and shapes
    #[arg(long)]
    quick: bool,
    /// Only what has this in its name, for instance "two processes, RC" or "WRITE of 4097"
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Name every case
    #[arg(short, long)]
    verbose: bool,
}

/// Run all cases.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    let (library, device) = options.device.find()?;
    let fixture = Rc::new(options.device.open()?);
    say!("{} ({}), address {} ({})", device.name(), library.path(), fixture.gid_index, fixture.gid.ip());
    let caps = side::caps(&fixture)?;
    let mut report = Report::new(options.verbose);
    for row in plan::rows() {
        let plan = Plan { row, caps, quick: options.quick };
        if let Some(reason) = plan.impossible() {
            report.skip(reason, 1);
            continue;
        }
        run_row(&fixture, &plan, options, &mut report)?;
    }
    Ok(report.finish())
}

/// Run the far side's process.
pub fn peer(link: &mut Link, device: &DeviceOptions) -> Result<(), String> {
    remote::serve(link, device)
}

/// Run the cases of one row, on pairs that are made anew where one was broken.
fn run_row(fixture: &Rc<Fixture>, plan: &Plan, options: &Options, report: &mut Report) -> Result<(), String> {
    let Row { place, spec, .. } = plan.row;
    let mut other: Option<Other> = None;
    let mut cases: Option<std::vec::IntoIter<Case>> = None;
    let mut broken = 0;
    loop {
        if place == Place::Process && other.is_none() {
            other = Some(remote::start(&options.device)?);
        }
        let mut pair = match Pair::build(fixture, spec, place, other.as_mut()) {
            Ok(pair) => pair,
            Err(error) => {
                report.fail(plan.row, None, &format!("cannot make or connect the queue pairs: {error}"));
                return Ok(());
            }
        };
        // The number of inline bytes is known once there is a queue pair.
        let cases = cases.get_or_insert_with(|| {
            let wanted = |case: &Case| {
                let filter = options.filter.as_deref().unwrap_or("");
                format!("{}: {case}", plan.row).contains(filter)
            };
            let all = plan.cases(pair.near.inline, |reason, count| report.skip(reason, count));
            all.into_iter().filter(wanted).collect::<Vec<_>>().into_iter()
        });
        let mut failed = false;
        loop {
            let Some(case) = cases.next() else { return Ok(()) };
            match case.run(&mut pair) {
                Ok(()) => report.pass(plan.row, &case),
                Err(error) => {
                    report.fail(plan.row, Some(&case), &error);
                    failed = true;
                }
            }
            if failed || case.breaks() {
                break;
            }
        }
        drop(pair);
        if failed {
            // The state of the other process is not known.
            other = None;
            broken += 1;
            if broken == MOST_FAILURES {
                report.skip("rows given up after many failures", cases.len());
                return Ok(());
            }
        }
    }
}

/// A number of failures in a row of the report after which the rest would take long and show nothing new.
const MOST_FAILURES: usize = 20;
