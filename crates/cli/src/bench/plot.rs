//! The plots, and the lines in each.

use std::path::Path;

use super::case::{Case, Operation, Quantity, Transport, Waiting};
use super::chart::{Chart, Line, Stroke};
use super::limits::{Limit, LimitCase};
use super::results::{Results, SELF};
use super::summary::{PERFTEST, UCX};
use super::{text, write};

/// A plot: the name of its file, its description, and the chart.
pub struct Plot {
    /// The name of the file, without folder.
    pub file: &'static str,
    /// The description, for readers who cannot see the chart.
    pub about: &'static str,
    /// The chart.
    pub chart: Chart,
}

// These colours can be told apart without seeing red and green apart (Okabe and Ito).
pub const BLUE: (u8, u8, u8) = (0, 114, 178);
pub const RED: (u8, u8, u8) = (213, 94, 0);
pub const GREEN: (u8, u8, u8) = (0, 158, 115);
pub const SKY: (u8, u8, u8) = (86, 180, 233);
pub const PINK: (u8, u8, u8) = (204, 121, 167);
pub const AMBER: (u8, u8, u8) = (230, 159, 0);
pub const BLACK: (u8, u8, u8) = (0, 0, 0);
pub const GREY: (u8, u8, u8) = (120, 120, 120);
pub const BROWN: (u8, u8, u8) = (139, 90, 43);

/// The colour of another program's line, the same in all plots: one for SEND, or the case that is most like it, and one
/// for WRITE.
fn color_of(by: &str, operation: Operation) -> (u8, u8, u8) {
    match (by, operation) {
        (PERFTEST, Operation::Send) => SKY,
        (PERFTEST, _) => AMBER,
        (UCX, Operation::Send) => GREEN,
        (UCX, _) => BLACK,
        (by, _) if by.contains("TCP") => GREY,
        _ => PINK,
    }
}

/// All plots that have something to show.
pub fn plots(results: &Results) -> Vec<Plot> {
    let plot = |file, about, chart| Plot { file, about, chart };
    let mut plots = vec![
        plot(
            "latency.svg",
            "Latency over message size: SEND, WRITE and READ beside the limits of the machine",
            chart(results, Quantity::Latency, false),
        ),
        plot(
            "bandwidth.svg",
            "Bandwidth over message size: SEND, WRITE and READ beside the limits of the machine",
            chart(results, Quantity::Bandwidth, false),
        ),
    ];
    plots.push(plot(
        "rate.svg",
        "Messages a second over message size: RC, UC and UD beside the limits of the machine",
        rates(results),
    ));
    if results.latency.iter().any(|row| row.by != SELF) {
        plots.push(plot(
            "latency-others.svg",
            "Latency over message size: the device beside other ways to move a message",
            chart(results, Quantity::Latency, true),
        ));
    }
    if results.bandwidth.iter().any(|row| row.by != SELF) {
        plots.push(plot(
            "bandwidth-others.svg",
            "Bandwidth over message size: the device beside other ways to move a message",
            chart(results, Quantity::Bandwidth, true),
        ));
    }
    plots
}

/// Write all plots into a folder, which is made if there is none. The result is the plots that were written.
pub fn write_all(results: &Results, folder: &Path) -> Result<Vec<Plot>, String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    write_plots(plots(results), folder)
}

/// Write these plots into a folder that exists. The result is those that had something to show.
pub fn write_plots(plots: Vec<Plot>, folder: &Path) -> Result<Vec<Plot>, String> {
    let mut written = Vec::new();
    for plot in plots {
        if let Some(svg) = plot.chart.svg()? {
            write(&folder.join(plot.file), &svg).map_err(text)?;
            written.push(plot);
        }
    }
    Ok(written)
}

fn chart(results: &Results, quantity: Quantity, others: bool) -> Chart {
    let latency = quantity == Quantity::Latency;
    let title = match (latency, others) {
        (true, false) => "softrnic: time for one message, beside the limits of the machine",
        (false, false) => "softrnic: bandwidth, beside the limits of the machine",
        (true, true) => "softrnic beside others: time for one message",
        (false, true) => "softrnic beside others: bandwidth",
    };
    let better = if latency { "lower is better" } else { "higher is better" };
    let mut groups = vec![(format!("softrnic (RC), {better}"), ours(results, quantity, others))];
    if others {
        groups.push(("others, on the same cores".into(), theirs(results, quantity)));
    } else {
        groups.push(("limits of the machine".into(), limits(results, quantity)));
    }
    Chart {
        title: title.into(),
        vertical: if latency { "Microseconds, median" } else { "GB/s (10^9 bytes a second)" }.into(),
        horizontal: None,
        note: results.machine.to_string(),
        groups,
    }
}

fn ours(results: &Results, quantity: Quantity, others: bool) -> Vec<Line> {
    let line = |name: &str, color, operation, waiting| {
        let rc = |bytes| Case { quantity, waiting, ..Case::latency(Transport::Rc, operation, bytes) };
        let points = sizes(results).filter_map(|bytes| Some((bytes, figure(results, &rc(bytes))?))).collect();
        Line { name: name.into(), color, stroke: Stroke::Solid, points }
    };
    use Operation::{Read, Send, Write};
    let latency = quantity == Quantity::Latency;
    let name = |short: &'static str, long: &'static str| if latency { long } else { short };
    let mut lines = vec![
        line(name("SEND", "SEND, one way"), BLUE, Send, Waiting::Polling),
        line(name("WRITE", "WRITE, one way"), RED, Write, Waiting::Polling),
        line(name("READ", "READ, until it is there"), GREEN, Read, Waiting::Polling),
    ];
    if others {
        // Messages stand beside messages, and the device's fastest operation beside the fastest of the others.
        lines.truncate(2);
    } else if latency {
        lines.push(line("SEND, waking a sleeper", SKY, Send, Waiting::Events));
    }
    lines
}

/// The chart of messages a second, over all services.
fn rates(results: &Results) -> Chart {
    use Operation::{Read, Send, Write};
    use Transport::{Rc, Uc, Ud};
    let lines = [
        ("SEND, RC", BLUE, Rc, Send),
        ("SEND, UC", SKY, Uc, Send),
        ("SEND, UD", AMBER, Ud, Send),
        ("WRITE, RC", RED, Rc, Write),
        ("READ, RC", GREEN, Rc, Read),
    ];
    let ours = lines.map(|(name, color, transport, operation)| {
        let row = |bytes| results.bandwidth_of(SELF, &Case::bandwidth(transport, operation, bytes));
        let points = sizes(results).filter_map(|bytes| Some((bytes, row(bytes)?.million_messages_per_second)));
        Line { name: name.into(), color, stroke: Stroke::Solid, points: points.collect() }
    });
    let limit = |name: &str, color, limit| {
        let rate = |bytes| results.limit(LimitCase::of(limit, bytes)).map(|us| 1.0 / us);
        let points = sizes(results).filter_map(|bytes| Some((bytes, rate(bytes)?))).collect();
        Line { name: name.into(), color, stroke: Stroke::Dashed, points }
    };
    let limits = vec![
        limit("memcpy, one after the other", BLACK, Limit::Memcpy),
        limit("process_vm_writev, one after the other", PINK, Limit::ProcessVmWritev),
    ];
    Chart {
        title: "softrnic: messages a second, beside the limits of the machine".into(),
        vertical: "Millions of messages a second".into(),
        horizontal: None,
        note: results.machine.to_string(),
        groups: vec![("softrnic, higher is better".into(), ours.into()), ("limits of the machine".into(), limits)],
    }
}

/// The sizes that were measured, in order.
fn sizes(results: &Results) -> impl Iterator<Item = usize> + use<> {
    let rows = results.latency.iter().map(|row| row.bytes).chain(results.bandwidth.iter().map(|row| row.bytes));
    rows.collect::<std::collections::BTreeSet<_>>().into_iter()
}

fn figure(results: &Results, case: &Case) -> Option<f64> {
    match case.quantity {
        Quantity::Latency => results.latency_of(SELF, case).map(|row| row.microseconds.median),
        Quantity::Bandwidth => results.bandwidth_of(SELF, case).map(|row| row.gigabytes_per_second.median),
    }
}

fn limits(results: &Results, quantity: Quantity) -> Vec<Line> {
    let sizes: Vec<usize> = sizes(results).collect();
    let line = |name: &str, color, figure: &dyn Fn(usize) -> Option<f64>| {
        let points = sizes.iter().filter_map(|bytes| Some((*bytes, figure(*bytes)?))).collect();
        Line { name: name.into(), color, stroke: Stroke::Dashed, points }
    };
    let of = |limit| move |bytes| results.limit(LimitCase::of(limit, bytes));
    let rate = |limit| move |bytes| results.limit(LimitCase::of(limit, bytes)).map(|us| bytes as f64 / us / 1e3);
    match quantity {
        Quantity::Latency => vec![
            line("cache line, then memcpy", BLACK, &|bytes| {
                results
                    .bound(&Case::latency(Transport::Rc, Operation::Send, bytes), false)
                    .map(|bound| bound.microseconds)
            }),
            line("process_vm_writev, one call", PINK, &of(Limit::ProcessVmWritev)),
            line("eventfd wakes epoll", SKY, &|_| results.limit(LimitCase::plain(Limit::EventfdEpoll))),
            line("unix socket", BROWN, &of(Limit::UnixSocket)),
            line("TCP loopback", GREY, &of(Limit::TcpLoopback)),
        ],
        Quantity::Bandwidth => vec![
            line("memcpy, one buffer", BLACK, &rate(Limit::Memcpy)),
            line("process_vm_writev, one buffer", PINK, &rate(Limit::ProcessVmWritev)),
        ],
    }
}

fn theirs(results: &Results, quantity: Quantity) -> Vec<Line> {
    let rows: Vec<(&str, &str, Option<Operation>, usize, f64)> = match quantity {
        Quantity::Latency => {
            let others = results.latency.iter().filter(|row| row.by != SELF && row.waiting == Waiting::Polling);
            others.map(|row| (&*row.by, &*row.what, row.operation, row.bytes, row.microseconds.median)).collect()
        }
        Quantity::Bandwidth => {
            let others = results.bandwidth.iter().filter(|row| row.by != SELF);
            others
                .map(|row| (&*row.by, &*row.what, row.operation, row.bytes, row.gigabytes_per_second.median))
                .collect()
        }
    };
    let mut lines: Vec<Line> = Vec::new();
    for (by, what, operation, bytes, figure) in rows {
        // Of other programs the chart has messages, and the fastest operation, as of the device.
        let Some(operation @ (Operation::Send | Operation::Write)) = operation else { continue };
        let name = if by == PERFTEST { format!("perftest on softrnic: {what}") } else { format!("{by}: {what}") };
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push((bytes, figure)),
            None => {
                let color = color_of(by, operation);
                lines.push(Line { name, color, stroke: Stroke::Dotted, points: vec![(bytes, figure)] });
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::sample;

    fn texts(svg: &str) -> Vec<String> {
        let document = roxmltree::Document::parse(svg).expect("well-formed");
        let texts = document.descendants().filter(|node| node.has_tag_name("text"));
        texts.map(|node| node.text().unwrap_or_default().trim().to_owned()).collect()
    }

    #[test]
    fn every_plot_is_well_formed_and_names_its_lines() {
        let results = sample();
        let plots = plots(&results);
        assert_eq!(plots.len(), 5);
        for plot in &plots {
            let svg = plot.chart.svg().unwrap().expect("something to show");
            let texts = texts(&svg);
            let others = plot.file.contains("others");
            let wanted = if others { "UCX (shared memory): SEND" } else { "limits of the machine" };
            for wanted in [wanted, "Bytes of a message", "1 MiB", &results.machine.to_string()] {
                assert!(texts.iter().any(|text| text == wanted), "{}: {wanted}: {texts:?}", plot.file);
            }
            let names: Vec<&String> =
                plot.chart.groups.iter().flat_map(|(_, lines)| lines).map(|line| &line.name).collect();
            assert!(names.len() >= 4 && !names.iter().any(|name| name.contains("FETCH")), "{names:?}");
        }
    }

    #[test]
    fn without_others_there_is_no_plot_of_them() {
        let mut results = sample();
        results.latency.retain(|row| row.by == SELF);
        results.bandwidth.retain(|row| row.by == SELF);
        assert!(plots(&results).iter().all(|plot| !plot.file.contains("others")));
    }
}
