//! Figures over the size of messages: bandwidth beside streams of TCP, and latency beside a busy ping-pong of TCP.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use super::{Tcp, Verbs, iperf, perftest, tcp};
use crate::chart::{self, BLACK, BLUE, GREEN, GREY, Line, bytes};
use crate::figures::{machine, median};
use crate::interop::net::Net;

/// Turns of each size, if there is time for them; the median counts.
const TURNS: usize = 3;
/// No turn begins that would not end within this time.
const ENOUGH: Duration = Duration::from_secs(100);
/// Bytes of each stream, and its messages: at least so many, at most so many.
const STREAM: usize = 256 << 20;
const MESSAGES: [usize; 2] = [50, 20_000];
/// Rounds of each ping-pong.
const ROUNDS: usize = 3000;

/// What is measured over sizes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Bandwidth,
    Latency,
}

impl Kind {
    fn name(self) -> &'static str {
        if self == Kind::Bandwidth { "bandwidth" } else { "latency" }
    }

    fn sizes(self) -> &'static [usize] {
        match self {
            Kind::Bandwidth => &[4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20],
            Kind::Latency => &[8, 64, 512, 4 << 10, 32 << 10, 256 << 10],
        }
    }

    fn unit(self) -> &'static str {
        if self == Kind::Bandwidth { "MiB/s" } else { "us one way" }
    }

    /// The column of the figure in perftest's last line: the average of a bandwidth, the typical latency.
    fn column(self) -> usize {
        if self == Kind::Bandwidth { 3 } else { 4 }
    }

    /// The ways that are compared.
    fn ways(self) -> &'static [Way] {
        if self == Kind::Bandwidth { BANDWIDTH } else { LATENCY }
    }
}

/// Who moves the bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum By {
    /// A stream or a ping-pong of sockets.
    Tcp,
    /// iperf, with its own size of writes.
    Iperf,
    /// This program of perftest, with CRCs or without.
    Perftest(&'static str, bool),
}

/// A line of a chart.
struct Way {
    name: &'static str,
    by: By,
    color: &'static str,
}

const fn way(name: &'static str, by: By, color: &'static str) -> Way {
    Way { name, by, color }
}

const BANDWIDTH: &[Way] = &[
    way("TCP, writes of this size", By::Tcp, GREY),
    way("SEND", By::Perftest("ib_send_bw", false), BLUE),
    way("WRITE", By::Perftest("ib_write_bw", false), GREEN),
    way("SEND, CRC", By::Perftest("ib_send_bw", true), BLUE),
    way("WRITE, CRC", By::Perftest("ib_write_bw", true), GREEN),
    way("one stream of iperf", By::Iperf, BLACK),
];

const LATENCY: &[Way] = &[
    way("TCP, busy", By::Tcp, GREY),
    way("SEND", By::Perftest("ib_send_lat", false), BLUE),
    way("WRITE", By::Perftest("ib_write_lat", false), GREEN),
    way("SEND, CRC", By::Perftest("ib_send_lat", true), BLUE),
    way("WRITE, CRC", By::Perftest("ib_write_lat", true), GREEN),
];

/// The figures of each link, kind, way and size, one of each turn.
#[derive(Default)]
pub struct Sizes(BTreeMap<(&'static str, Kind, By, usize), Vec<f64>>);

const LINKS: [(&str, usize); 2] = [("loopback", 0), ("veth", 1)];
const KINDS: [Kind; 2] = [Kind::Bandwidth, Kind::Latency];

/// Measure all sizes, as many turns as there is time for, with `quick` only one.
///
/// # Errors
/// The program that does not run.
pub fn measure(net: &Net, quick: bool) -> Result<Sizes, String> {
    let (mut sizes, began, mut longest) = (Sizes::default(), Instant::now(), Duration::ZERO);
    let mut turns = 0;
    while turns < if quick { 1 } else { TURNS } && (turns == 0 || began.elapsed() + longest < ENOUGH) {
        let start = Instant::now();
        for (link, client) in LINKS {
            for kind in KINDS {
                for size in kind.sizes() {
                    sizes.turn(net, (link, client), kind, *size, turns)?;
                }
            }
        }
        turns += 1;
        longest = longest.max(start.elapsed());
    }
    println!("sizes: {turns} turns in {:.0} s", began.elapsed().as_secs_f64());
    Ok(sizes)
}

impl Sizes {
    /// One figure of each way, in an order that changes from turn to turn.
    fn turn(
        &mut self,
        net: &Net,
        (link, client): (&'static str, usize),
        kind: Kind,
        size: usize,
        turn: usize,
    ) -> Result<(), String> {
        let mut ways: Vec<&Way> = kind.ways().iter().collect();
        let first = turn % ways.len();
        ways.rotate_left(first);
        for way in ways {
            let figure = match way.by {
                // iperf has its own size: one run is a line.
                By::Iperf if size != kind.sizes()[0] => continue,
                By::Iperf => iperf(net, client)?,
                By::Tcp => tcp(net, client, &plain(kind, size))?,
                By::Perftest(program, crc) => {
                    let count = if kind == Kind::Latency { ROUNDS } else { messages(size) };
                    let line = format!("{program} -R -F -s {size} -n {count}");
                    let crc = if crc { "1" } else { "0" };
                    perftest(net, client, &Verbs { line: &line, crc, fpdu: "", column: kind.column() })?
                }
            };
            self.0.entry((link, kind, way.by, size)).or_default().push(figure);
        }
        Ok(())
    }

    /// The figure of a way at a size. That of iperf is one for all sizes.
    fn figure(&self, link: &'static str, kind: Kind, by: By, size: usize) -> Option<f64> {
        let size = if by == By::Iperf { kind.sizes()[0] } else { size };
        self.0.get(&(link, kind, by, size)).map(|all| median(all))
    }

    /// The tables, and the charts: the name of a file, and what is in it.
    pub fn page(&self) -> (String, Vec<(String, String)>) {
        let (mut text, mut charts) = (String::new(), Vec::new());
        for kind in KINDS {
            let _ = writeln!(text, "\n## The {} over the size of messages", kind.name());
            if matches!(kind, Kind::Latency) {
                text += WAKES;
            }
            for (link, _) in LINKS {
                let ways = kind.ways();
                if let Some(chart) = self.chart(link, kind) {
                    let file = format!("iwarp-{link}-{}.svg", kind.name());
                    let name = kind.name();
                    let _ = writeln!(text, "\n![The {name} over {link}, by the size of messages]({file})");
                    charts.push((file, chart));
                }
                let names: Vec<&str> = ways.iter().map(|way| way.name).collect();
                let _ = writeln!(text, "\n| {link}, {} | {} |", kind.unit(), names.join(" | "));
                let _ = writeln!(text, "|---|{}", "---|".repeat(names.len()));
                for size in kind.sizes() {
                    let figure = |way: &Way| self.figure(link, kind, way.by, *size).unwrap_or(f64::NAN);
                    let cells: Vec<String> = ways.iter().map(|way| format!("{:.1}", figure(way))).collect();
                    let _ = writeln!(text, "| {} | {} |", bytes(*size), cells.join(" | "));
                }
            }
        }
        (text, charts)
    }

    fn chart(&self, link: &'static str, kind: Kind) -> Option<String> {
        let line = |way: &Way| {
            let point = |size: &usize| Some((*size, self.figure(link, kind, way.by, *size)?));
            Line {
                name: way.name.to_owned(),
                color: way.color,
                is_limit: way.by == By::Iperf,
                is_thin: matches!(way.by, By::Iperf | By::Perftest(_, true)),
                points: kind.sizes().iter().filter_map(point).collect(),
            }
        };
        let (what, unit) = match kind {
            Kind::Bandwidth => ("Bandwidth", "MiB/s"),
            Kind::Latency => ("Latency", "Microseconds one way"),
        };
        let lines: Vec<Line> = kind.ways().iter().map(line).collect();
        chart::lines(&format!("{what} over {link}"), ["Bytes of a message", unit], &machine(), &lines)
    }
}

/// Why a WRITE takes longer than a SEND.
const WAKES: &str = "\n`ib_send_lat` polls a completion queue, and by that moves what has come. `ib_write_lat` looks \
                     at memory and asks the device nothing meanwhile: the device's thread is woken for each message.\n";

/// How many messages of a size a stream has.
fn messages(size: usize) -> usize {
    (STREAM / size).clamp(MESSAGES[0], MESSAGES[1])
}

/// What plain TCP does at a size.
fn plain(kind: Kind, size: usize) -> Tcp {
    match kind {
        Kind::Bandwidth => Tcp { how: "stream", count: messages(size), size },
        Kind::Latency => Tcp { how: "pingpong", count: ROUNDS, size },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chart_has_each_line_and_the_page_names_it() {
        let mut sizes = Sizes::default();
        for (link, _) in LINKS {
            for kind in KINDS {
                for (size, way) in kind.sizes().iter().flat_map(|size| kind.ways().iter().map(move |way| (size, way))) {
                    sizes.0.insert((link, kind, way.by, *size), vec![3.0, 1.0, *size as f64]);
                }
            }
        }
        let (text, charts) = sizes.page();
        assert_eq!(charts.len(), 4);
        for (file, chart) in &charts {
            assert!(text.contains(&format!("({file})")), "{text}");
            let lines = chart.matches("<polyline").count();
            assert_eq!(lines, if file.contains("bandwidth") { BANDWIDTH.len() } else { LATENCY.len() }, "{file}");
            assert!(chart.contains("Bytes of a message"), "{chart}");
        }
        assert!(text.contains("| 4 KiB | 3.0 | 3.0 | 3.0 | 3.0 | 3.0 | 3.0 |"), "{text}");
    }

    #[test]
    fn a_stream_has_enough_messages_and_not_too_many() {
        assert_eq!([4 << 10, 1 << 20, 8 << 20].map(messages), [20_000, 256, 50]);
    }
}
