//! The page of figures: made from one run, with its plots beside it.

use std::fmt::Write as _;
use std::path::Path;

use super::super::case::Bytes;
use super::super::chart::{Chart, Line, Stroke};
use super::super::machine::Machine;
use super::super::page::{BY_HAND, by_hand};
use super::super::plot::{AMBER, BLACK, BLUE, GREEN, GREY, PINK, Plot, RED, SKY, write_plots};
use super::super::table::Table;
use super::super::write;
use super::figures::{self, Met};
use super::{Options, Row, Way, What};

/// The sizes in the tables; the plots have all.
const SIZES: [usize; 7] = [1, 8, 64, 1024, 64 << 10, 1 << 20, 8 << 20];

/// Write the page, and the plots into the same folder.
pub fn write_page(
    options: &Options,
    met: &[Met],
    rows: &[Row],
    machine: &Machine,
    cores: Option<(usize, usize)>,
    path: &Path,
) -> Result<(), String> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let plots = write_plots(plots(rows, machine), folder)?;
    let old = std::fs::read_to_string(path).unwrap_or_default();
    let Options { time, rounds, .. } = options;
    let place = match cores {
        Some((ours, theirs)) => format!("two processes, on cores {ours} and {theirs} and the other way round"),
        None => "two processes, wherever the system put them".to_owned(),
    };
    let how = format!(
        "softrnic {}, {place}. Medians of {rounds} rounds of {time} ms each; of {} where something must be reached",
        env!("CARGO_PKG_VERSION"),
        options.rounds_of_musts()
    );
    write(path, &page(met, rows, &plots, machine, &how, by_hand(&old)))
}

fn page(met: &[Met], rows: &[Row], plots: &[Plot], machine: &Machine, how: &str, by_hand: &str) -> String {
    let mut page = format!(
        "# Figures of EXS\n\n\
         Made from one run of `softrnic exs-blast --page FILE`. Each figure is measured in turns with the one that it\n\
         is compared with, by the same processes and from and into the same memory; a ratio is the median of the\n\
         rounds' ratios, of which the first table shows the lowest and the highest. The target of READ and WRITE\n\
         polls where the peer of an extended socket does. A round on a core that others slowed down by a quarter is\n\
         left out of the first table, unless nearly all are. [exs.md](exs.md) says what the ways of transfer are.\n\n\
         - Machine: {machine}.\n- {how}.\n\n\
         ## What must be reached\n\n"
    );
    let mut line = |text: &str| {
        page.push_str(text);
        page.push('\n');
    };
    figures::table(met).markdown().iter().for_each(|row| line(row));
    for plot in plots {
        line(&format!("\n![{}]({})", plot.about, plot.file));
    }
    for (what, title) in [(What::Latency, "Latency in us"), (What::Throughput, "Throughput in MB/s")] {
        line(&format!("\n## {title}\n"));
        if what == What::Latency {
            line("One way; persistent: one receive.\n");
        }
        table(rows, what).markdown().iter().for_each(|row| line(row));
    }
    let _ = write!(page, "\n{BY_HAND}{by_hand}");
    page
}

fn table(rows: &[Row], what: What) -> Table {
    let mut table = Table::new(["way", "size", "figure", "CPU %", "direct %", "beside", "its figure", "ratio"]);
    for row in rows.iter().filter(|row| row.task.what == what && SIZES.contains(&row.task.bytes)) {
        let number = |number: Option<f64>| number.map(|number| format!("{number:.2}")).unwrap_or_default();
        table.cell(row.task.way.name());
        table.cell(Bytes(row.task.bytes));
        table.cell(format_args!("{:.2}", row.figure.median));
        table.cell(format_args!("{:.0}", row.cpu));
        table.cell(row.direct.map(|direct| format!("{direct:.0}")).unwrap_or_default());
        table.cell(row.limit.as_deref().unwrap_or_default());
        table.cell(number(row.limit_figure.map(|limit| limit.median)));
        table.cell(number(row.ratio));
        table.end_row();
    }
    table
}

fn plots(rows: &[Row], machine: &Machine) -> Vec<Plot> {
    let plot = |file, about, what, title: &str, vertical: &str, figure: fn(&Row) -> f64| {
        let line = |way: Way| {
            let of_way = rows.iter().filter(|row| row.task.way == way && row.task.what == what);
            let stroke = if way == Way::Tcp { Stroke::Dotted } else { Stroke::Solid };
            let points = of_way.map(|row| (row.task.bytes, figure(row))).collect();
            Line { name: way.name().into(), color: color(way), stroke, points }
        };
        let (tcp, ours): (Vec<Line>, Vec<Line>) =
            Way::ALL.into_iter().map(line).partition(|line| line.stroke == Stroke::Dotted);
        let groups = vec![("extended sockets".to_owned(), ours), ("the loopback interface".to_owned(), tcp)];
        let (title, vertical, note) = (title.to_owned(), vertical.to_owned(), machine.to_string());
        Plot { file, about, chart: Chart { title, vertical, horizontal: None, note, groups } }
    };
    let mut plots = vec![
        plot(
            "exs-latency.svg",
            "Latency over message size: ways of extended sockets beside verbs and TCP",
            What::Latency,
            "extended sockets: time for one message, one way",
            "Microseconds, median",
            |row| row.figure.median,
        ),
        plot(
            "exs-throughput.svg",
            "Throughput over message size: ways of extended sockets beside verbs and TCP",
            What::Throughput,
            "extended sockets: throughput",
            "GB/s (10^9 bytes a second)",
            |row| row.figure.median / 1e3,
        ),
        plot(
            "exs-cpu.svg",
            "Use of the processor over message size, while throughput is measured",
            What::Throughput,
            "extended sockets: processor time of the process that measures throughput",
            "Percent of one core",
            |row| row.cpu,
        ),
    ];
    // The CPU time of verbs is that of a program which polls: all of one core.
    for (plot, what, unit) in [(0, What::Latency, 1.0), (1, What::Throughput, 1e3)] {
        let verbs = |name: &str, way: Way, color| {
            let of_way = rows.iter().filter(|row| row.task.way == way && row.task.what == what);
            let limits = of_way.filter_map(|row| Some((row.task.bytes, row.limit_figure?.median / unit)));
            Line { name: name.into(), color, stroke: Stroke::Dashed, points: limits.collect() }
        };
        let lines = match what {
            What::Latency => vec![
                verbs("SEND with a header", Way::Immediate, BLACK),
                verbs("SEND + READ + SEND", Way::Normal, GREEN),
                verbs("READ", Way::Persistent, RED),
            ],
            What::Throughput => vec![verbs("WRITE", Way::Stream, BLACK), verbs("READ", Way::Persistent, RED)],
        };
        plots[plot].chart.groups.insert(1, ("verbs alone".to_owned(), lines));
    }
    plots
}

fn color(way: Way) -> (u8, u8, u8) {
    match way {
        Way::Immediate => BLUE,
        Way::Event => SKY,
        Way::Normal => GREEN,
        Way::Persistent => RED,
        Way::Stream => AMBER,
        Way::Late => PINK,
        Way::Tcp => GREY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::exs::Task;
    use crate::bench::stats::Spread;

    fn rows() -> Vec<Row> {
        let mut rows = Vec::new();
        for what in [What::Latency, What::Throughput] {
            for way in Way::ALL {
                for bytes in [8, 64 << 10, 8 << 20] {
                    if way.takes(what, bytes) {
                        let (figure, limit_figure) = (Spread::of(&[2.0]), Some(Spread::of(&[1.0])));
                        let (task, limit) = (Task { way, what, bytes }, Some("WRITE".to_owned()));
                        rows.push(Row { task, figure, cpu: 50.0, direct: None, limit, limit_figure, ratio: Some(2.0) });
                    }
                }
            }
        }
        rows
    }

    #[test]
    fn every_plot_names_its_ways_and_is_on_the_page() {
        let (rows, machine) = (rows(), Machine::this());
        let plots = plots(&rows, &machine);
        for (plot, wanted) in plots.iter().zip(["persistent", "late", "tcp"]) {
            let svg = plot.chart.svg().unwrap().expect("something to show");
            let document = roxmltree::Document::parse(&svg).unwrap();
            let mut texts =
                document.descendants().filter(|node| node.has_tag_name("text")).filter_map(|node| node.text());
            assert!(texts.any(|text| text.trim() == wanted), "{}: {wanted}", plot.file);
        }
        let page = page(&[], &rows, &plots, &machine, "So", "\nBy hand.\n");
        for wanted in ["exs-latency.svg", "exs-throughput.svg", "exs-cpu.svg", "| immediate | 8 B | 2.00 |", "By hand."]
        {
            assert!(page.contains(wanted), "{wanted}: {page}");
        }
    }
}
