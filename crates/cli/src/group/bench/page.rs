//! The page about group operations: its figures, and the plots beside it.

use std::path::Path;

use super::row::{Curve, Results, Row, Setting};
use super::{aims, bounds, table};
use crate::bench::chart::{Chart, Line, Stroke};
use crate::bench::plot::{AMBER, BLACK, BLUE, BROWN, GREEN, GREY, PINK, RED, SKY};
use crate::bench::write;

/// The line below which the page is made anew. What is above it was written by hand.
const FIGURES: &str = "<!-- Below this line the page is made by softrnic group bench --page. -->";

/// Write the page, and the plots into the same folder.
pub fn write_page(results: &Results, path: &Path) -> Result<(), String> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let mut shown = Vec::new();
    for (file, about, chart) in charts(results) {
        if let Some(svg) = chart.svg()? {
            write(&folder.join(file), &svg)?;
            shown.push(format!("![{about}]({file})"));
        }
    }
    let old = std::fs::read_to_string(path).unwrap_or_else(|_| "# Group operations\n\n".into());
    write(path, &page(results, &shown, by_hand(&old)))
}

/// The part of the page that was written by hand.
fn by_hand(old: &str) -> &str {
    old.split_once(FIGURES).map_or(old, |(above, _)| above)
}

fn page(results: &Results, plots: &[String], by_hand: &str) -> String {
    let mut lines = vec![format!("{}\n\n{FIGURES}\n\n## Figures\n", by_hand.trim_end())];
    lines.push(format!("- Machine: {}; {} processes wanted to run before it began.", results.machine, results.load));
    lines.push(format!("- softrnic {}. The client polls on {}.", results.version, results.client));
    lines.push(
        "- Every figure has the refill in it: the queues run in a circle, and nothing is posted again. So a gWRITE \
         with\n  refill is as fast as one without (the aim is 0.95 of it), and there is no second figure."
            .into(),
    );
    lines
        .push("- Servers move their regions to where peers map them (--migrate), unless files are the regions.".into());
    lines.push(
        "- CPU on the path: one server has all replicas here, too; an application for each replica sleeps until the\n  \
         one before tells it, gWRITEs to the next replica, and tells the next application.\n- Client fan-out: a WRITE \
         to each replica. On one host it is faster than a chain, for there is no network\n  whose bytes a chain saves."
            .into(),
    );
    lines.push(
        "- Bare chain, spinning: the client copies to the first replica, as the initiator of a WRITE does; one\n  \
         other process copies from replica to replica. Each sees in shared memory that the other is done."
            .into(),
    );
    lines.push(
        "- The two ratios to bare chains: slices of the two ways take turns, 2000 operations each. A round's ratio\n  \
         is the median of its pairs of slices. The process that spins is stopped while the servers are measured."
            .into(),
    );
    lines.push(
        "- gMEMCPY and gCAS: no two operations under way touch the same bytes. At most half a window of them is under \
         way\n  at a time, with empty messages between them."
            .into(),
    );
    lines.push(
        "- Busy processes compute, on the replicas' core. A pause is between operations, in microseconds.".into(),
    );
    lines.push(
        "- Message and answer: a SEND to an ordinary queue pair of another process, which polls, and its SEND back.\n  \
         The loop of ENABLEs is a managed queue of that process that goes round for ever; each ENABLE lets a\n  \
         second queue execute one more entry."
            .into(),
    );
    lines.extend(plots.iter().map(|plot| format!("\n{plot}")));
    lines.push("\n### Ratios\n".into());
    lines.extend(bounds(results).markdown());
    lines.push("\n### Aims\n".into());
    lines.extend(aims::table(results).markdown());
    lines.push(format!("\n{}", results.posted()));
    type Wanted = fn(&Setting) -> bool;
    let parts: [(&str, Wanted); 6] = [
        ("Sizes and windows", |it| plain(it) && !separate(it.curve) && !pair(it.curve) && !own(it.curve)),
        ("gMEMCPY and gCAS", |it| own(it.curve)),
        ("A server for each replica", |it| separate(it.curve)),
        ("Priorities and busy processes", |it| it.load),
        ("A loop of ENABLEs", |it| pair(it.curve)),
        ("Applications", |it| it.applications.is_some()),
    ];
    for (heading, wanted) in parts {
        lines.push(format!("\n### {heading}\n"));
        lines.extend(table(results.rows.iter().filter(|row| wanted(&row.setting))).markdown());
    }
    lines.push(String::new());
    lines.join("\n")
}

fn separate(curve: Curve) -> bool {
    matches!(curve, Curve::NicEach | Curve::BareEach)
}

fn own(curve: Curve) -> bool {
    matches!(curve, Curve::Copy | Curve::Swap)
}

fn pair(curve: Curve) -> bool {
    matches!(curve, Curve::Pair | Curve::PairBeside)
}

fn line(name: &str, color: (u8, u8, u8), stroke: Stroke, points: Vec<(usize, f64)>) -> Line {
    Line { name: name.into(), color, stroke, points }
}

fn charts(results: &Results) -> Vec<(&'static str, &'static str, Chart)> {
    let wide = results.rows.iter().filter(|row| row.setting.size != 1024).map(|row| row.setting.window).max();
    let wide = wide.unwrap_or(1);
    let p50 = |row: &Row| row.measured.microseconds.p50;
    let rate = |row: &Row| row.measured.per_second;
    let by_size = |curve, replicas, window, value: &dyn Fn(&Row) -> f64| -> Vec<(usize, f64)> {
        let wanted = move |it: &Setting| it.replicas == replicas && it.window == window && plain(it);
        results.of(curve, wanted).map(|row| (row.setting.size, value(row))).collect()
    };
    let chart = |title: &str, vertical: &str, horizontal: Option<&str>, groups| Chart {
        title: title.into(),
        vertical: vertical.into(),
        horizontal: horizontal.map(str::to_owned),
        note: results.machine.to_string(),
        groups,
    };
    let latency = |replicas| {
        vec![
            line("NIC only", BLUE, Stroke::Solid, by_size(Curve::Nic, replicas, 1, &p50)),
            line("CPU on the path", RED, Stroke::Solid, by_size(Curve::OnPath, replicas, 1, &p50)),
            line("client fan-out", GREEN, Stroke::Solid, by_size(Curve::FanOut, replicas, 1, &p50)),
            line("bare chain, spinning", BLACK, Stroke::Dashed, by_size(Curve::BareOne, replicas, 1, &p50)),
            line("plain copies", GREY, Stroke::Dashed, by_size(Curve::Copies, replicas, 1, &p50)),
        ]
    };
    let rates = vec![
        line("NIC only", BLUE, Stroke::Solid, by_size(Curve::Nic, 3, wide, &rate)),
        line("CPU on the path", RED, Stroke::Solid, by_size(Curve::OnPath, 3, wide, &rate)),
        line("client fan-out", GREEN, Stroke::Solid, by_size(Curve::FanOut, 3, wide, &rate)),
        line("plain copies", GREY, Stroke::Dashed, by_size(Curve::Copies, 3, wide, &rate)),
    ];
    let by_window = |curve| -> Vec<(usize, f64)> {
        let wanted = |it: &Setting| it.replicas == 3 && it.size == 1024 && plain(it);
        let mut points: Vec<_> =
            results.of(curve, wanted).map(|row| (row.setting.window as usize, rate(row))).collect();
        points.sort_by_key(|point| point.0);
        points
    };
    let windows = vec![
        line("NIC only", BLUE, Stroke::Solid, by_window(Curve::Nic)),
        line("CPU on the path", RED, Stroke::Solid, by_window(Curve::OnPath)),
        line("client fan-out", GREEN, Stroke::Solid, by_window(Curve::FanOut)),
        line("plain copies", GREY, Stroke::Dashed, by_window(Curve::Copies)),
    ];
    let groups = vec![
        ("3 replicas, lower is better".to_owned(), latency(3)),
        ("5 replicas".to_owned(), {
            let mut lines = latency(5);
            let colors = [SKY, AMBER, PINK, BROWN, BROWN];
            lines.truncate(3);
            lines.iter_mut().zip(colors).for_each(|(line, color)| (line.color, line.stroke) = (color, Stroke::Dotted));
            lines
        }),
    ];
    vec![
        (
            "group-latency.svg",
            "Time of a gWRITE over its size, one at a time",
            chart("gWRITE, one at a time", "Microseconds, median", None, groups),
        ),
        (
            "group-rate.svg",
            "gWRITEs a second over their size, many at a time",
            chart(
                &format!("gWRITEs to 3 replicas, {wide} at a time"),
                "Operations a second",
                None,
                vec![("higher is better".into(), rates)],
            ),
        ),
        (
            "group-window.svg",
            "gWRITEs a second over the window",
            chart(
                "gWRITEs of 1 KiB to 3 replicas",
                "Operations a second",
                Some("Window: operations under way"),
                vec![("higher is better".into(), windows)],
            ),
        ),
        (
            "group-tail.svg",
            "Tail of the time of a gWRITE, with busy processes on the replicas' core",
            chart(
                "gWRITE of 1 KiB to 3 replicas, one at a time: the tail",
                "Microseconds",
                Some("One of so many operations takes at least that long"),
                tails(results),
            ),
        ),
    ]
}

fn plain(setting: &Setting) -> bool {
    !setting.load && setting.applications.is_none()
}

/// The quantiles of rows with and without busy processes.
fn tails(results: &Results) -> Vec<(String, Vec<Line>)> {
    let colors = [BLUE, SKY, GREEN, AMBER];
    let most = results.rows.iter().map(|row| row.setting.busy).max().unwrap_or(0);
    let points = |row: &Row| {
        let times = row.measured.microseconds;
        vec![(2, times.p50), (20, times.p95), (100, times.p99), (1000, times.p99_9)]
    };
    let group = |busy: u32, stroke| {
        let wanted = |it: &Setting| it.load && it.busy == busy && it.pause == 0;
        let ours = results.of(Curve::Nic, wanted).zip(colors);
        let mut lines: Vec<Line> =
            ours.map(|(row, color)| line(&row.setting.place, color, stroke, points(row))).collect();
        let theirs = results.of(Curve::OnPath, wanted).next();
        lines.extend(theirs.map(|row| line("CPU on the path", RED, stroke, points(row))));
        lines
    };
    vec![
        (format!("{most} busy processes"), group(most, Stroke::Solid)),
        ("none busy".to_owned(), group(0, Stroke::Dotted)),
    ]
}
