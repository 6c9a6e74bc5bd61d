//! softiw0 beside plain TCP over the same link, in turns: no test, since the machine has to be quiet.

mod sizes;

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::figures::{load, machine, median};
use crate::run::Program;
use crate::{root, target_dir};

use sizes::Sizes;

use super::net::{Ip, Missing, Net};
use super::sandbox::Sandbox;

/// Turns of each comparison; the median counts.
const TURNS: usize = 3;
/// The ports of perftest, of plain TCP, and of iperf.
const PORTS: [u16; 3] = [18515, 7175, 5001];
/// The limit of one run.
const LIMIT: Duration = Duration::from_secs(100);
/// The limit of a build with optimisation across all crates.
const BUILD: Duration = Duration::from_secs(1200);

/// A run of perftest.
struct Verbs<'a> {
    /// The program, and its options.
    line: &'a str,
    /// Whether FPDUs have a CRC.
    crc: &'a str,
    /// Bytes of FPDUs; empty: what the device chooses.
    fpdu: &'a str,
    /// The column of the figure in perftest's last line.
    column: usize,
}

/// A run of plain TCP: a stream or a ping-pong, so many writes of so many bytes.
struct Tcp {
    how: &'static str,
    count: usize,
    size: usize,
}

/// A figure of softiw0 over that of plain TCP.
struct Comparison {
    what: &'static str,
    verbs: Verbs<'static>,
    /// What plain TCP does meanwhile.
    tcp: Tcp,
    /// The ratio that has to be met, and the ratio that is aimed at.
    must: f64,
    aim: f64,
}

/// 1000 MiB of a stream.
const STREAMED: Tcp = Tcp { how: "stream", count: 1000, size: 1 << 20 };
/// A ping-pong of 8 bytes.
const PINGED: Tcp = Tcp { how: "pingpong", count: 10_000, size: 8 };

#[rustfmt::skip]
const COMPARISONS: &[Comparison] = &[
    Comparison { what: "SEND of 1 MiB, no CRC", verbs: Verbs { line: "ib_send_bw -R -F -s 1048576 -n 1000", crc: "0", fpdu: "", column: 3 }, tcp: STREAMED, must: 0.8, aim: 1.0 },
    Comparison { what: "WRITE of 1 MiB, no CRC", verbs: Verbs { line: "ib_write_bw -R -F -s 1048576 -n 1000", crc: "0", fpdu: "", column: 3 }, tcp: STREAMED, must: 0.8, aim: 1.0 },
    Comparison { what: "SEND of 1 MiB, CRC", verbs: Verbs { line: "ib_send_bw -R -F -s 1048576 -n 1000", crc: "1", fpdu: "", column: 3 }, tcp: STREAMED, must: 0.6, aim: 0.9 },
    Comparison { what: "WRITE of 1 MiB, CRC", verbs: Verbs { line: "ib_write_bw -R -F -s 1048576 -n 1000", crc: "1", fpdu: "", column: 3 }, tcp: STREAMED, must: 0.6, aim: 0.9 },
    Comparison { what: "SEND of 1 MiB, FPDUs of 1448 bytes", verbs: Verbs { line: "ib_send_bw -R -F -s 1048576 -n 1000", crc: "0", fpdu: "1448", column: 3 }, tcp: STREAMED, must: 0.6, aim: 0.6 },
    Comparison { what: "WRITE of 1 MiB, FPDUs of 1448 bytes", verbs: Verbs { line: "ib_write_bw -R -F -s 1048576 -n 1000", crc: "0", fpdu: "1448", column: 3 }, tcp: STREAMED, must: 0.6, aim: 0.6 },
    Comparison { what: "SEND of 8 B, polling, one way", verbs: Verbs { line: "ib_send_lat -R -F -s 8 -n 10000", crc: "0", fpdu: "", column: 4 }, tcp: PINGED, must: 1.3, aim: 1.1 },
];

/// The page of figures: tables between what has to hold and what does.
fn page(path: &str, rows: &[String], load: &str, turns: usize, sizes: &str) -> String {
    format!(
        "# Figures of iWARP\n\n`cargo xtask iwarp-speed --page {path}` has made this page. \
         [connections.md](connections.md) says what the connections of `softiw0` are.\n\n\
         Medians of {turns} turns on {}; load of the machine {load}. A ratio is the figure of softiw0 over that of \
         plain TCP on the same link in the same turn.\n\n\
         | link | figure | softiw0 | TCP | unit | ratio | must | aim | |\n|---|---|---|---|---|---|---|---|---|\n{}\n\
         {sizes}",
        machine(),
        rows.join("\n")
    )
}

/// Writes the page, and its charts beside it.
fn write(path: &str, rows: &[String], load: &str, turns: usize, sizes: &Sizes) -> Result<(), String> {
    let write = |path: &Path, text: &str| fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()));
    let (text, charts) = sizes.page();
    for (file, chart) in charts {
        write(&Path::new(path).with_file_name(file), &chart)?;
    }
    write(Path::new(path), &page(path, rows, load, turns, &text))
}

/// Measure, print the ratios, and write the page and its charts if there is a path for it; with `quick` one turn of
/// each. True if all that has to be met is.
///
/// # Errors
/// The thing that could not be built, run or written.
pub fn measure(quick: bool, to: Option<&str>) -> Result<bool, String> {
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
    let (before, turns) = (load(), if quick { 1 } else { TURNS });
    println!("load of the machine before: {before}");
    println!("softiw0 over plain TCP, median of {turns} turns (and all of them)");
    let (mut met, mut rows) = (true, Vec::new());
    for (link, client) in [("loopback", 0), ("veth", 1)] {
        for comparison in COMPARISONS {
            let (mut ratios, mut ours, mut plain) = (Vec::new(), Vec::new(), Vec::new());
            for turn in 0..turns {
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
        write(path, &rows, &before, turns, &sizes::measure(&net, quick)?)?;
    }
    println!("load of the machine after: {}", load());
    Ok(met)
}

/// One turn: the figure of softiw0 and that of plain TCP, in an order that changes, so that a machine that grows
/// slower favours neither.
fn compare(net: &Net, client: usize, comparison: &Comparison, tcp_first: bool) -> Result<[f64; 2], String> {
    let mut figures = [0.0; 2];
    for which in if tcp_first { [1, 0] } else { [0, 1] } {
        figures[which] = match which {
            0 => perftest(net, client, &comparison.verbs)?,
            _ => tcp(net, client, &comparison.tcp)?,
        };
    }
    Ok(figures)
}

fn perftest(net: &Net, client: usize, verbs: &Verbs) -> Result<f64, String> {
    // Each run has a new home: nothing of another is there.
    let sandbox = Sandbox::new("iwarp-speed", &[("SOFTRNIC_MPA_CRC", verbs.crc), ("SOFTRNIC_MPA_FPDU", verbs.fpdu)])?;
    let program =
        |host: usize, log: &str, line: &str| sandbox.elsewhere(&net.words(host), log, &["--device", "iwarp"], line);
    let server = program(0, "server", verbs.line);
    let line = format!("{} {}", verbs.line, net.address(0, Ip::V4));
    let (_, done) = net.run(server, PORTS[0], program(client, "client", &line), LIMIT)?;
    let figures = done.stdout.lines().skip_while(|line| !line.trim_start().starts_with("#bytes")).nth(1);
    let figure = figures.and_then(|line| line.split_whitespace().nth(verbs.column)?.parse().ok());
    figure.ok_or_else(|| format!("no figures of {}: {}", verbs.line, done.stdout))
}

fn tcp(net: &Net, client: usize, Tcp { how, count, size }: &Tcp) -> Result<f64, String> {
    let program = target_dir().join("release/examples/tcp");
    let address = format!("{}:{}", net.address(0, Ip::V4), PORTS[1]);
    let server = net.inside(0, "tcp-server", &[&program]).args(["serve", &address]);
    let words = [how, address.as_str(), &count.to_string(), &size.to_string()];
    let (_, done) = net.run(server, PORTS[1], net.inside(client, "tcp-client", &[&program]).args(words), LIMIT)?;
    let figure = done.stdout.split_whitespace().next().and_then(|figure| figure.parse().ok());
    figure.ok_or_else(|| format!("no figure of plain TCP: {}", done.stdout))
}

/// The MiB/s of one stream of iperf, which runs for a second.
fn iperf(net: &Net, client: usize) -> Result<f64, String> {
    let address = net.address(0, Ip::V4);
    let server = net.inside(0, "iperf-server", &["iperf"]).args(["-s", "-B", address]);
    // -y C: one line, in which the bits a second are the last of the values that commas separate.
    let words = ["-c", address, "-t", "1", "-y", "C"];
    let (_, done) = net.run_beside(server, PORTS[2], net.inside(client, "iperf", &["iperf"]).args(words), LIMIT)?;
    let bits: Option<f64> = done.stdout.lines().last().and_then(|line| line.rsplit(',').next()?.trim().parse().ok());
    bits.map(|bits| bits / 8.0 / f64::from(1 << 20)).ok_or_else(|| format!("no figure of iperf: {}", done.stdout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_its_rows_and_its_load() {
        let rows = ["| veth | a | 1 |".to_owned(), "| veth | b | 2 |".to_owned()];
        let text = page("docs/x.md", &rows, "0.25", 3, "\n## Sizes\n");
        assert!(text.contains("--page docs/x.md") && text.contains("load of the machine 0.25."), "{text}");
        assert!(text.ends_with("|---|\n| veth | a | 1 |\n| veth | b | 2 |\n\n## Sizes\n"), "{text}");
    }
}
