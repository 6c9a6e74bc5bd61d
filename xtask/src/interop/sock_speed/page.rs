//! The page of figures.

use std::fmt::Write;

use super::{Figures, MUSTS, Row, Way, median, over_tcp, programs};

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
    let all = [Way::Tcp, Way::Unix, Way::Moved, Way::Asleep, Way::ServerOnly, Way::ClientOnly];
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

fn bytes(size: usize) -> String {
    match size {
        size if size >= 1 << 20 => format!("{} MiB", size >> 20),
        size if size >= 1 << 10 => format!("{} KiB", size >> 10),
        size => format!("{size} B"),
    }
}

/// The page.
pub fn text(figures: &Figures, [line, wake, copy]: [f64; 3], turns: usize) -> String {
    let mut text = String::new();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let model = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model.lines().find_map(|line| line.strip_prefix("model name")?.split(':').nth(1)).unwrap_or("unknown");
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let _ = writeln!(
        text,
        "Medians of {turns} turns on {cpus} processors ({}), Linux {}; load of the machine {}. In brackets: over TCP's \
         figure of the same turn, the median.\n",
        model.trim(),
        kernel.trim(),
        load.split_whitespace().next().unwrap_or_default()
    );
    text.push_str("## What must hold\n\n| figure | must | is | |\n|---|---|---|---|\n");
    for must in MUSTS {
        let sign = if must.row.is_time() { "<=" } else { ">=" };
        let (figure, verdict) = match must.judge(figures) {
            Some((figure, true)) => (short(figure), "met"),
            Some((figure, false)) => (short(figure), "**not met**"),
            None => ("".to_owned(), "not measured"),
        };
        let _ = writeln!(text, "| {} | {sign} {} | {figure} | {verdict} |", must.what, must.bound);
    }
    text.push_str("\n## Round trips\n\n");
    let _ = writeln!(
        text,
        "The machine: a cache line to another thread and back takes {line:.0} ns, eventfds on which two threads sleep \
         in turn {:.1} us, and a copy of 64 KiB runs at {:.1} GB/s.\n",
        wake / 1000.0,
        copy / 1000.0
    );
    let kinds = [1, 8].into_iter().flat_map(|size| ["block", "epoll"].map(|how| (size, how)));
    let rounds: Vec<_> = kinds.clone().map(|(n, how)| (format!("{n} B, {how}"), Row::Round(n, how), 1e-3)).collect();
    table(figures, &mut text, "us there and back", &rounds);
    let used: Vec<_> = kinds.map(|(n, how)| (format!("{n} B, {how}"), Row::RoundUsed(n, how), 1e-3)).collect();
    table(figures, &mut text, "us of processor time of one end, each", &used);
    text.push_str("## Streams\n\n");
    let sizes = (0..=20).map(|power| 1usize << power);
    let streams: Vec<_> = sizes.map(|size| (bytes(size), Row::Stream(size), 1e-3)).collect();
    table(figures, &mut text, "GB/s with writes of", &streams);
    text.push_str("## redis-server and redis-benchmark, 64 B\n\n");
    let kinds = [1, 50].into_iter().flat_map(|count| ["SET", "GET"].map(|what| (what, count)));
    let redis: Vec<_> =
        kinds.map(|(what, count)| (format!("{what}, {count} connections"), Row::Redis(what, count), 1e-3)).collect();
    table(figures, &mut text, "thousand requests a second", &redis);
    let used: Vec<_> = [1, 50].map(|count| (format!("{count} connections"), Row::RedisUsed(count), 1e-3)).to_vec();
    table(figures, &mut text, "us of the server's processor time for a request", &used);
    if figures.contains_key(&(Row::Other(0), Way::Tcp)) {
        text.push_str("## Other programs\n\n");
        let others: Vec<_> =
            programs::NAMES.iter().enumerate().map(|(n, name)| ((*name).to_owned(), Row::Other(n), 1.0)).collect();
        table(figures, &mut text, "", &others);
    }
    text
}

/// Writes the page.
///
/// # Errors
/// The file that cannot be written.
pub fn write(path: &str, _figures: &Figures, text: &str) -> Result<(), String> {
    let page = format!(
        "# Figures of moved TCP connections\n\n`cargo xtask sock-speed --page {path}` has made this page. \
         [sockets.md](sockets.md) says what moved connections are.\n\n{text}"
    );
    std::fs::write(path, page).map_err(|e| format!("{path}: {e}"))
}
