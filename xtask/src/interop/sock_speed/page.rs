//! The page of figures.

use std::fmt::Write;
use std::path::Path;

use super::{Bound, Figures, MUSTS, ROUNDS, Row, STREAMS, Way, over_tcp, programs};
use crate::chart::{self, AMBER, BLACK, BLUE, Bar, GREEN, GREY, Line, RED, bytes};
use crate::figures::{load, machine, median};

/// A number of three digits at least.
fn short(figure: f64) -> String {
    if figure >= 100.0 { format!("{figure:.0}") } else { format!("{figure:.2}") }
}

/// The rows of a table, of those that were measured: a way, its figure, and in brackets that over TCP's.
fn table(figures: &Figures, text: &mut String, title: &str, rows: &[(String, Row, f64)]) {
    let there: Vec<_> = rows.iter().filter(|(_, row, _)| figures.contains_key(&(*row, Way::Tcp))).collect();
    if there.is_empty() {
        return;
    }
    let all = [Way::Tcp, Way::Unix, Way::Moved, Way::Asleep, Way::ServerOnly, Way::ClientOnly, Way::Again];
    let has = |way: &Way| there.iter().any(|(_, row, _)| figures.contains_key(&(*row, *way)));
    let ways: Vec<Way> = all.into_iter().filter(has).collect();
    let names: Vec<&str> = ways.iter().map(|way| way.name()).collect();
    let _ = writeln!(text, "| {title} | {} |\n|---|{}", names.join(" | "), "---|".repeat(ways.len()));
    for (name, row, unit) in there {
        let _ = write!(text, "| {name} |");
        for way in &ways {
            let Some(all) = figures.get(&(*row, *way)) else {
                text.push_str(" |");
                continue;
            };
            let _ = write!(text, " {}", short(median(all) * unit));
            if let Some(ratio) = over_tcp(figures, *row, *way).filter(|_| *way != Way::Tcp) {
                let _ = write!(text, " ({})", short(ratio));
            }
            text.push_str(" |");
        }
        text.push('\n');
    }
    text.push('\n');
}

/// The text of the page.
pub fn text(figures: &Figures, [line, wake, copy]: [f64; 3], turns: usize) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "Medians of {turns} turns on {}; load of the machine {}. In brackets: over TCP's figure of the same turn, the \
         median.\n",
        machine(),
        load()
    );
    text.push_str("## What must hold\n\n| figure | | bound | is | |\n|---|---|---|---|---|\n");
    for must in MUSTS {
        let sign = if must.row.is_time() { "<=" } else { ">=" };
        let (figure, verdict) = match must.judge(figures) {
            Some((figure, true)) => (short(figure), "met"),
            Some((figure, false)) => (short(figure), "**not met**"),
            None => (String::new(), "not measured"),
        };
        let bound = match must.bound {
            Bound::Absolute(bound) => format!("{sign} {bound}"),
            Bound::OverTcp(bound) => format!("{sign} {bound} of TCP's"),
        };
        let kind = if must.is_aim { "aim" } else { "must" };
        let _ = writeln!(text, "| {} | {kind} | {bound} | {figure} | {verdict} |", must.what);
    }
    text.push_str("\n## Round trips\n\n");
    let _ = writeln!(
        text,
        "The machine: a cache line to another thread and back takes {line:.0} ns, eventfds on which two threads sleep \
         in turn {:.1} us, and a copy of 64 KiB runs at {:.1} GB/s.\n",
        wake / 1000.0,
        copy / 1000.0
    );
    let kinds = ROUNDS.into_iter().flat_map(|size| ["block", "epoll"].map(|how| (size, how)));
    let named = |(size, how)| format!("{}, {how}", bytes(size));
    let rounds: Vec<_> = kinds.clone().map(|(n, how)| (named((n, how)), Row::Round(n, how), 1e-3)).collect();
    table(figures, &mut text, "us there and back", &rounds);
    let used: Vec<_> = kinds.map(|(n, how)| (named((n, how)), Row::RoundUsed(n, how), 1e-3)).collect();
    table(figures, &mut text, "us of processor time of one end, each", &used);
    let idle: Vec<_> = ["block", "epoll"]
        .map(|how| (if how == "block" { "in poll" } else { "in epoll" }.to_owned(), Row::Idle(how), 1e-3))
        .to_vec();
    table(figures, &mut text, "us of processor time of both ends in a second without data", &idle);
    text.push_str("## Streams\n\n");
    let streams: Vec<_> = STREAMS.map(|size| (bytes(size), Row::Stream(size), 1e-3)).to_vec();
    table(figures, &mut text, "GB/s with writes of", &streams);
    text.push_str(
        "## Programs\n\nredis-benchmark sends 64 B. nginx has one worker and sendfile, wrk ten connections that stay. \
         pgbench has four clients in two threads. Apache is the prefork one with sendfile. wget gets a file several \
         times by one connection; the start of its process is a part of the time.\n\n",
    );
    let rates: Vec<_> = programs::RATES.map(|name| (name.to_owned(), Row::Rate(name), 1e-3)).to_vec();
    table(figures, &mut text, "thousand requests a second", &rates);
    text.push_str(
        "With the library at one side the connections stay TCP's. These are medians of more rounds, in which all four \
         run directly one behind the other; in brackets: the mean over that of both TCPs. TCP again is plain TCP once \
         more: how far its mean is from that of TCP is the noise of this machine.\n\n",
    );
    let sides: Vec<_> = programs::SIDES.map(|name| (name.to_owned(), Row::Side(name), 1e-3)).to_vec();
    table(figures, &mut text, "thousand requests a second, one side", &sides);
    let took: Vec<_> = programs::FILES.map(|(name, ..)| (name.to_owned(), Row::Took(name), 1.0)).to_vec();
    table(figures, &mut text, "ms a file", &took);
    let used: Vec<_> = programs::USED.map(|name| (name.to_owned(), Row::Used(name), 1e-3)).to_vec();
    table(figures, &mut text, "us of the server's processor time for each", &used);
    let sides = [&programs::REDIS_50].into_iter().chain(&programs::SIDES[2..]);
    let used: Vec<_> = sides.map(|name| (name.to_string(), Row::SideUsed(name), 1e-3)).collect();
    table(figures, &mut text, "us of the server's processor time for each, one side", &used);
    text
}

/// The name of a plot's file, what it shows, and the plot.
type Plot = (&'static str, &'static str, String);

fn plots(figures: &Figures, [line, wake, copy]: [f64; 3]) -> Vec<Plot> {
    let note = machine();
    let points = |sizes: &[usize], row: &dyn Fn(usize) -> Row, way: Way, unit: f64| {
        let figure = |size: usize| Some((size, median(figures.get(&(row(size), way))?) * unit));
        sizes.iter().filter_map(|size| figure(*size)).collect::<Vec<_>>()
    };
    let ways = [(Way::Tcp, GREY), (Way::Unix, GREEN), (Way::Moved, BLUE), (Way::Asleep, RED)];
    let limit = |name: &str, color, sizes: &[usize], figure: f64| Line {
        name: name.to_owned(),
        color,
        is_limit: true,
        is_thin: true,
        points: sizes.iter().map(|size| (*size, figure)).collect(),
    };
    let mut rounds: Vec<Line> = ["epoll", "block"]
        .into_iter()
        .flat_map(|how| ways.map(|(way, color)| (how, way, color)))
        .map(|(how, way, color)| Line {
            name: format!("{}, {how}", way.name()),
            color,
            is_limit: false,
            is_thin: how == "block",
            points: points(&ROUNDS, &|size| Row::Round(size, how), way, 1e-3),
        })
        .collect();
    rounds.push(limit("limit: a cache line and back", BLACK, &ROUNDS, line / 1e3));
    rounds.push(limit("limit: eventfds, asleep", AMBER, &ROUNDS, wake / 1e3));
    let mut streams: Vec<Line> = ways
        .map(|(way, color)| Line {
            name: way.name().to_owned(),
            color,
            is_limit: false,
            is_thin: false,
            points: points(&STREAMS, &Row::Stream, way, 1e-3),
        })
        .into();
    streams.push(limit("limit: a copy of 64 KiB", BLACK, &STREAMS, copy / 1e3));
    let shown = [(Way::Moved, BLUE), (Way::Asleep, RED), (Way::ServerOnly, AMBER), (Way::ClientOnly, GREEN)];
    let rows = programs::RATES.map(|name| (name, Row::Rate(name)));
    let files = programs::FILES.map(|(name, ..)| (name, Row::Took(name)));
    let groups: Vec<Vec<Bar>> = rows
        .into_iter()
        .chain(files)
        .map(|(name, row)| {
            let ratio = |way| match (way, row) {
                (Way::ServerOnly | Way::ClientOnly, Row::Rate(name)) => over_tcp(figures, Row::Side(name), way),
                _ => over_tcp(figures, row, way),
            };
            let gain = |way| ratio(way).map(|ratio| if row.is_time() { 1.0 / ratio } else { ratio });
            let bar = |(way, color)| Some(Bar { name: name.to_owned(), color, figure: gain(way)? });
            shown.into_iter().filter_map(bar).collect()
        })
        .filter(|group: &Vec<Bar>| !group.is_empty())
        .collect();
    let legend = shown.map(|(way, color)| (way.name(), color));
    let speed = "Programs: how much faster than plain TCP";
    let all = [
        (
            "sock-round.svg",
            "Round trips over size: TCP, unix sockets and moved connections beside the limits of the machine",
            chart::lines("Round trips", ["Bytes of a message", "Microseconds there and back"], &note, &rounds),
        ),
        (
            "sock-stream.svg",
            "Streams over the size of writes: TCP, unix sockets and moved connections beside a copy in memory",
            chart::lines("Streams", ["Bytes of a write", "GB/s (10^9 bytes a second)"], &note, &streams),
        ),
        ("sock-programs.svg", speed, chart::bars(speed, "times plain TCP", &note, &legend, &groups)),
    ];
    all.into_iter().filter_map(|(file, about, svg)| Some((file, about, svg?))).collect()
}

/// Writes the page, and its plots into the same folder.
///
/// # Errors
/// The file that cannot be written.
pub fn write(path: &Path, figures: &Figures, limits: [f64; 3], text: &str) -> Result<(), String> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let write = |path: &Path, text: &str| std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()));
    let mut page = "# Figures of moved TCP connections\n\n`cargo xtask sock-speed --page FILE` has made this page. \
                    [sockets.md](sockets.md) says what moved connections are.\n\n"
        .to_owned();
    let (head, rest) = text.split_once("## Round trips").unwrap_or((text, ""));
    page.push_str(head);
    for (file, about, svg) in plots(figures, limits) {
        write(&folder.join(file), &svg)?;
        let _ = writeln!(page, "![{about}]({file})\n");
    }
    write(path, &format!("{page}## Round trips{rest}"))
}
