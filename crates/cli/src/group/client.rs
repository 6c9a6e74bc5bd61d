//! `softrnic group client`: gWRITEs along a chain.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use group::{Client, ClientOptions, Error, MOST_WINDOW, Operation, Wait};
use hdrhistogram::Histogram;
use rdma::Access;
use serde::{Deserialize, Serialize};

use super::resolve;
use crate::fixture::{DeviceOptions, text};
use crate::out::say;

/// Options of the client.
#[derive(Args)]
pub struct Options {
    /// The replica that was started last
    #[arg(short, long, value_name = "HOST:PORT")]
    connect: String,
    /// Bytes of a gWRITE
    #[arg(short, long, value_name = "BYTES", default_value_t = 1024)]
    size: u64,
    /// The number of gWRITEs
    #[arg(short, long, value_name = "COUNT", default_value_t = 5000)]
    number: u64,
    /// Operations under way at most, up to 2000
    #[arg(short, long, value_name = "COUNT", default_value_t = 1)]
    window: u32,
    /// Wait by events instead of polling
    #[arg(long)]
    use_notify: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: DeviceOptions,
}

/// How long operations took, submission to completion, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Times {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    #[serde(rename = "p99.9")]
    pub p99_9: f64,
    pub max: f64,
}

impl Times {
    pub fn of(took: &Histogram<u64>) -> Times {
        let at = |quantile: f64| took.value_at_quantile(quantile) as f64 / 1000.0;
        let [p50, p95, p99, p99_9] = [0.5, 0.95, 0.99, 0.999].map(at);
        Times { p50, p95, p99, p99_9, max: took.max() as f64 / 1000.0 }
    }
}

/// A histogram of nanoseconds.
pub fn histogram() -> Result<Histogram<u64>, String> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).map_err(text)
}

/// Measure gWRITEs.
pub fn run(options: &Options) -> Result<ExitCode, String> {
    let window = options.window.clamp(1, MOST_WINDOW);
    if window != options.window {
        eprintln!("softrnic: the window is {window}, not {}", options.window);
    }
    if options.size == 0 {
        return Err("a gWRITE has at least 1 byte".into());
    }
    let fixture = options.device.open()?;
    let buffer = fixture.pd.reg_mr(options.size as usize, Access::LOCAL_WRITE).map_err(text)?;
    let told = |error: Error| format!("{}: {error}", options.connect);
    let settings = ClientOptions { window, ..ClientOptions::default() };
    let to = resolve(&options.connect)?;
    let mut client = Client::connect(&fixture.context, &fixture.pd, to, buffer, &settings).map_err(told)?;
    let how = if options.use_notify { Wait::Event } else { Wait::Poll };
    let op = Operation::Write { offset: 0, size: options.size };
    let mut took = histogram()?;
    let mut begun = vec![Instant::now(); window as usize];
    let (mut sent, mut done) = (0u64, 0u64);
    // Drawn now and then only, and not at all where no terminal shows it.
    let shown = std::io::stderr().is_terminal() && !options.json;
    let bar = if shown { indicatif::ProgressBar::new(options.number) } else { indicatif::ProgressBar::hidden() };
    let start = Instant::now();
    while done < options.number {
        if sent < options.number {
            let now = Instant::now();
            match client.submit(&op) {
                Ok(ticket) => {
                    begun[(ticket % u64::from(window)) as usize] = now;
                    sent += 1;
                    continue;
                }
                Err(Error::Full) => {}
                Err(error) => return Err(told(error)),
            }
        }
        // The window is full of requests that are done, but whose places are not free yet.
        if client.under_way() == 0 {
            continue;
        }
        let ticket = client.wait(how).map_err(told)?.ticket;
        took.saturating_record(begun[(ticket % u64::from(window)) as usize].elapsed().as_nanos() as u64);
        done += 1;
        if shown && done.is_multiple_of(1024) {
            bar.set_position(done);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let rate = if seconds > 0.0 { done as f64 / seconds } else { 0.0 };
    let times = Times::of(&took);
    let (replicas, size) = (client.replicas(), options.size);
    if options.json {
        say!(
            "{}",
            serde_json::json!({
                "replicas": replicas, "size": size, "window": window, "operations": done, "seconds": seconds,
                "operations_per_second": rate, "microseconds": times,
            })
        );
    } else {
        let Times { p50, p95, p99, p99_9, max } = times;
        say!("{done} gWRITEs of {size} bytes to {replicas} replicas, {window} at a time: {seconds:.3} s, {rate:.0}/s");
        say!("submission to completion, us: p50 {p50:.1}, p95 {p95:.1}, p99 {p99:.1}, p99.9 {p99_9:.1}, max {max:.1}");
    }
    Ok(ExitCode::SUCCESS)
}
