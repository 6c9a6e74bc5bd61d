//! softiw0 beside plain TCP over the same link, in turns: no test, since the machine has to be quiet.

use std::fs;
use std::time::Duration;

use crate::run::Program;
use crate::{root, target_dir};

use super::net::{Ip, Missing, Net};
use super::sandbox::Sandbox;

/// Turns of each comparison; the median counts.
const TURNS: usize = 5;
/// MiB of a stream: a second or two.
const STREAM: &str = "3000";
/// Rounds of a ping-pong.
const ROUNDS: &str = "20000";
/// The ports of perftest and of plain TCP.
const PORTS: [u16; 2] = [18515, 7175];
/// The limit of one run.
const LIMIT: Duration = Duration::from_secs(100);
/// The limit of a build with optimisation across all crates.
const BUILD: Duration = Duration::from_secs(1200);

/// A figure of softiw0 over that of plain TCP.
struct Comparison {
    what: &'static str,
    /// The program of perftest, and its options.
    program: &'static str,
    crc: &'static str,
    /// Bytes of FPDUs; empty: what the device chooses.
    fpdu: &'static str,
    /// What plain TCP does meanwhile.
    tcp: [&'static str; 2],
    /// The column of the figure in perftest's last line.
    column: usize,
    /// The ratio that has to be met, and the ratio that is aimed at.
    must: f64,
    aim: f64,
}

const STREAMED: [&str; 2] = ["stream", STREAM];

#[rustfmt::skip]
const COMPARISONS: &[Comparison] = &[
    Comparison { what: "SEND of 1 MiB, no CRC", program: "ib_send_bw -R -F -s 1048576 -n 3000", crc: "0", fpdu: "", tcp: STREAMED, column: 3, must: 0.8, aim: 1.0 },
    Comparison { what: "WRITE of 1 MiB, no CRC", program: "ib_write_bw -R -F -s 1048576 -n 3000", crc: "0", fpdu: "", tcp: STREAMED, column: 3, must: 0.8, aim: 1.0 },
    Comparison { what: "SEND of 1 MiB, CRC", program: "ib_send_bw -R -F -s 1048576 -n 3000", crc: "1", fpdu: "", tcp: STREAMED, column: 3, must: 0.6, aim: 0.9 },
    Comparison { what: "WRITE of 1 MiB, CRC", program: "ib_write_bw -R -F -s 1048576 -n 3000", crc: "1", fpdu: "", tcp: STREAMED, column: 3, must: 0.6, aim: 0.9 },
    Comparison { what: "SEND of 1 MiB, FPDUs of 1448 bytes", program: "ib_send_bw -R -F -s 1048576 -n 3000", crc: "0", fpdu: "1448", tcp: STREAMED, column: 3, must: 0.6, aim: 0.6 },
    Comparison { what: "WRITE of 1 MiB, FPDUs of 1448 bytes", program: "ib_write_bw -R -F -s 1048576 -n 3000", crc: "0", fpdu: "1448", tcp: STREAMED, column: 3, must: 0.6, aim: 0.6 },
    Comparison { what: "SEND of 8 B, polling, one way", program: "ib_send_lat -R -F -s 8 -n 20000", crc: "0", fpdu: "", tcp: ["pingpong", ROUNDS], column: 4, must: 1.3, aim: 1.1 },
];

/// The page of figures: tables between what has to hold and what does.
fn page(path: &str, rows: &[String], load: &str) -> String {
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (model, kernel) = (read("/proc/cpuinfo"), read("/proc/sys/kernel/osrelease"));
    let model = model.lines().find_map(|line| line.strip_prefix("model name")?.split(':').nth(1)).unwrap_or("unknown");
    format!(
        "# Figures of iWARP\n\n`cargo xtask iwarp-speed --page {path}` has made this page. \
         [connections.md](connections.md) says what the connections of `softiw0` are.\n\n\
         Medians of {TURNS} turns on {cpus} processors ({}), Linux {}; load of the machine {}. A ratio is the figure \
         of softiw0 over that of plain TCP on the same link in the same turn.\n\n\
         | link | figure | softiw0 | TCP | unit | ratio | must | aim | |\n|---|---|---|---|---|---|---|---|---|\n{}\n",
        model.trim(),
        kernel.trim(),
        load.split_whitespace().next().unwrap_or_default(),
        rows.join("\n")
    )
}

/// The middle one of some figures.
fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Measure, print the ratios, and write the page if there is a path for it. True if all that has to be met is.
///
/// # Errors
/// The thing that could not be built, run or written.
pub fn measure(to: Option<&str>) -> Result<bool, String> {
    for more in [&[][..], &["--package", "softrnic-iwarp", "--example", "tcp"][..]] {
        let done = Program::new(env!("CARGO"), crate::logs().join("iwarp/build"))
            .args(["build", "--release"])
            .args(more)
            .dir(root())
            .run(BUILD)
            .map_err(|e| e.to_string())?;
        if !done.ok() {
            return Err(format!("cargo build: {}", done.verdict()));
        }
    }
    let net = Net::veth("speed").map_err(|missing| match missing {
        Missing::Forbidden(why) | Missing::Broken(why) => why,
    })?;
    let load = || fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let before = load();
    println!("load of the machine (1, 5, 15 minutes) before: {}", before.trim());
    println!("softiw0 over plain TCP, median of {TURNS} turns (and all of them)");
    let (mut met, mut rows) = (true, Vec::new());
    for (link, client) in [("loopback", 0), ("veth", 1)] {
        for comparison in COMPARISONS {
            let (mut ratios, mut ours, mut plain) = (Vec::new(), Vec::new(), Vec::new());
            for turn in 0..TURNS {
                let [figure, tcp] = compare(&net, client, comparison, turn % 2 == 1)?;
                ratios.push(figure / tcp);
                ours.push(figure);
                plain.push(tcp);
            }
            let all: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
            let Comparison { what, must, aim, .. } = comparison;
            let (ratio, is_time) = (median(&ratios), *must > *aim);
            let bound = if is_time { "<=" } else { ">=" };
            let is_met = if is_time { ratio <= *must } else { ratio >= *must };
            met &= is_met;
            let said = if is_met { "" } else { "  NOT MET" };
            println!("{link:8}  {what:36} {ratio:.2} ({}); {bound} {must}, aim {aim}{said}", all.join(" "));
            let (unit, met) = (if is_time { "us" } else { "MiB/s" }, if is_met { "met" } else { "**not met**" });
            let (ours, plain) = (median(&ours), median(&plain));
            rows.push(format!(
                "| {link} | {what} | {ours:.2} | {plain:.2} | {unit} | {ratio:.2} | {bound} {must} | {aim} | {met} |"
            ));
        }
    }
    if let Some(path) = to {
        fs::write(path, page(path, &rows, &before)).map_err(|e| format!("{path}: {e}"))?;
    }
    println!("load of the machine after: {}", load().trim());
    Ok(met)
}

/// One turn: the figure of softiw0 and that of plain TCP, in an order that changes, so that a machine that grows
/// slower favours neither.
fn compare(net: &Net, client: usize, comparison: &Comparison, tcp_first: bool) -> Result<[f64; 2], String> {
    let mut figures = [0.0; 2];
    for which in if tcp_first { [1, 0] } else { [0, 1] } {
        figures[which] = if which == 0 { perftest(net, client, comparison)? } else { tcp(net, client, comparison)? };
    }
    Ok(figures)
}

fn perftest(net: &Net, client: usize, comparison: &Comparison) -> Result<f64, String> {
    // Each run has a new home: nothing of another is there.
    let sandbox =
        Sandbox::new("iwarp-speed", &[("SOFTRNIC_MPA_CRC", comparison.crc), ("SOFTRNIC_MPA_FPDU", comparison.fpdu)])?;
    let program =
        |host: usize, log: &str, line: &str| sandbox.elsewhere(&net.words(host), log, &["--device", "iwarp"], line);
    let server = program(0, "server", comparison.program);
    let line = format!("{} {}", comparison.program, net.address(0, Ip::V4));
    let (_, done) = net.run(server, PORTS[0], program(client, "client", &line), LIMIT)?;
    let figures = done.stdout.lines().skip_while(|line| !line.trim_start().starts_with("#bytes")).nth(1);
    let figure = figures.and_then(|line| line.split_whitespace().nth(comparison.column)?.parse().ok());
    figure.ok_or_else(|| format!("no figures of {}: {}", comparison.program, done.stdout))
}

fn tcp(net: &Net, client: usize, comparison: &Comparison) -> Result<f64, String> {
    let program = target_dir().join("release/examples/tcp");
    let address = format!("{}:{}", net.address(0, Ip::V4), PORTS[1]);
    let [how, count] = comparison.tcp;
    let server = net.inside(0, "tcp-server", &[&program]).args(["serve", &address]);
    let (_, done) =
        net.run(server, PORTS[1], net.inside(client, "tcp-client", &[&program]).args([how, &address, count]), LIMIT)?;
    let figure = done.stdout.split_whitespace().next().and_then(|figure| figure.parse().ok());
    figure.ok_or_else(|| format!("no figure of plain TCP: {}", done.stdout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_its_rows_and_its_load() {
        let text = page("docs/x.md", &["| veth | a | 1 |".to_owned(), "| veth | b | 2 |".to_owned()], "0.25 1 1");
        assert!(text.contains("--page docs/x.md") && text.contains("load of the machine 0.25."), "{text}");
        assert!(text.ends_with("|---|\n| veth | a | 1 |\n| veth | b | 2 |\n"), "{text}");
    }

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(&[5.0, 1.0, 4.0]), 4.0);
        assert!(median(&[]).is_nan());
    }
}
