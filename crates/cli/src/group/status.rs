//! `softrnic group status`: what the servers of a chain say, and how long it takes to go along it.

use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use group::{Client, ClientOptions, Error, HopStatus, Operation, Wait};
use rdma::Access;

use super::client::{Times, histogram};
use super::resolve;
use crate::bench::table::Table;
use crate::fixture::{DeviceOptions, text};
use crate::out::say;

/// Options of the question.
#[derive(Args)]
pub struct Options {
    /// The replica that was started last
    #[arg(short, long, value_name = "HOST:PORT")]
    connect: String,
    /// The number of gFLUSHes that are timed; 0 needs no device
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    probes: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: DeviceOptions,
}

/// Ask, and show the answers.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    let to = resolve(&options.connect)?;
    let told = |error: Error| format!("{}: {error}", options.connect);
    // Before the gFLUSHes, which are a group of their own.
    let hops = group::status(to).map_err(told)?;
    let mut times = None;
    if options.probes > 0 {
        let fixture = options.device.open()?;
        let buffer = fixture.pd.reg_mr(8, Access::LOCAL_WRITE).map_err(text)?;
        let settings = ClientOptions::default();
        let mut client = Client::connect(&fixture.context, &fixture.pd, to, buffer, &settings).map_err(told)?;
        let mut took = histogram()?;
        for _ in 0..options.probes {
            let begun = Instant::now();
            client.run(&[Operation::Flush { offset: 0, size: 8 }], Wait::Poll).map_err(told)?;
            took.saturating_record(begun.elapsed().as_nanos() as u64);
        }
        times = Some(Times::of(&took));
    }
    // Nothing is before the first hop.
    let lag = |i: usize| i.checked_sub(1).map_or(0, |before| hops[i].lag(&hops[before]));
    if options.json {
        let one = |(i, hop): (usize, &HopStatus)| {
            let HopStatus { groups, posted, arrived, done, rounds } = *hop;
            serde_json::json!({
                "hop": i, "groups": groups, "arrived": arrived, "done": done, "lag": lag(i), "rounds": rounds,
                "rounds_left": hop.left(), "posted": posted,
            })
        };
        let all: Vec<_> = hops.iter().enumerate().map(one).collect();
        say!("{}", serde_json::json!({"hops": all, "microseconds": times}));
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(["hop", "groups", "arrived", "lag", "rounds left", "of", "posted"]);
    for (i, hop) in hops.iter().enumerate() {
        table.cell(i);
        [hop.groups, hop.arrived, lag(i), hop.left(), hop.rounds, hop.posted].iter().for_each(|it| table.cell(it));
        table.end_row();
    }
    table.lines().iter().for_each(|line| say!("{line}"));
    if let Some(Times { p50, p99, .. }) = times {
        say!("a gFLUSH along the chain, us: p50 {p50:.1}, p99 {p99:.1}, of {}", options.probes);
    }
    Ok(ExitCode::SUCCESS)
}
