//! The results as tables on the terminal.

use super::case::{Bytes, Waiting};
use super::limits::{Limit, LimitCase};
use super::results::{BandwidthRow, LatencyRow, Results, SELF};
use super::stats::Spread;
use super::summary::digits;
use super::table::Table;
use crate::out::say;

/// Round trips longer than this are worth a word, in microseconds: a median does not show them.
const NOTABLE: f64 = 100_000.0;

/// Prints everything.
pub fn print(results: &Results) {
    let setup = &results.setup;
    let place = match setup.cores {
        Some([ours, theirs]) => format!("on cores {ours} and {theirs}"),
        None => "wherever the system puts them".to_owned(),
    };
    say!("{} ({}), two processes {place}", setup.device, setup.library);
    say!("{}", results.machine);
    say!(
        "Medians of {} rounds of {} ms each; `spread` is how far the rounds lie apart.\n",
        setup.rounds,
        setup.time_ms
    );
    limits(results);
    latency(results);
    bandwidth(results);
    queue_pairs(results);
    process_pairs(results);
    summary(results);
    for missing in &results.missing {
        say!("Not measured: {missing}");
    }
}

fn spread(spread: &Spread) -> String {
    format!("{}-{}", digits(spread.low), digits(spread.high))
}

fn limits(results: &Results) {
    say!("What this machine can do, without any device: microseconds, one way or of one copy or call.");
    let mut sizes: Vec<usize> = results.limits.iter().map(|row| row.bytes).filter(|bytes| *bytes > 0).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut table = Table::new([""]);
    for limit in Limit::PLAIN {
        if let Some(row) = results.limits.iter().find(|row| row.limit == limit) {
            table.cell(limit.name());
            table.cell(digits(row.microseconds.median));
            table.end_row();
        }
    }
    table.print_rows();
    let walking = |limit| results.limits.iter().find(|row| row.limit == limit && row.walking);
    let mut table = Table::new(
        std::iter::once(String::new())
            .chain(sizes.iter().map(|size| Bytes(*size).to_string()))
            .chain(["GB/s*".into(), "GB/s**".into()]),
    );
    for limit in Limit::SIZED {
        table.cell(limit.name());
        for size in &sizes {
            table.cell(results.limit(LimitCase::of(limit, *size)).map_or("-".into(), digits));
        }
        let largest = results.limits.iter().filter(|row| row.limit == limit && !row.walking && row.bytes == 1 << 20);
        table.cell(largest.last().and_then(|row| row.gigabytes_per_second).map_or("-".into(), digits));
        table.cell(walking(limit).and_then(|row| row.gigabytes_per_second).map_or("-".into(), digits));
        table.end_row();
    }
    table.print();
    say!("  * 1 MiB, the same buffer again and again; ** 1 MiB at a time through 64 MiB of memory.\n");
}

fn latency(results: &Results) {
    if results.latency.is_empty() {
        return;
    }
    say!(
        "Latency in microseconds, one message at a time. SEND, WRITE: one way. READ, atomics: until the answer is there."
    );
    say!("`ratio`: over the limit, so 1 is the best that this machine could do.");
    let mut table = Table::new(["", "bytes", "median", "spread", "p99", "p99.9", "max", "limit", "", "ratio"]);
    for row in &results.latency {
        latency_row(&mut table, row);
    }
    table.print();
    for row in results.latency.iter().filter(|row| row.percentiles.is_some_and(|p| p.max > NOTABLE)) {
        let longest = row.percentiles.map_or(0.0, |percentiles| percentiles.max);
        say!("  {} of {}: one took {} ms", row.what, Bytes(row.bytes), digits(longest / 1e3));
    }
    say!("");
}

/// Who, what and how.
fn title(by: &str, what: &str, waiting: Waiting) -> String {
    let events = if waiting == Waiting::Events { ", events" } else { "" };
    if by == SELF { format!("{what}{events}") } else { format!("{by} {what}{events}") }
}

fn latency_row(table: &mut Table, row: &LatencyRow) {
    table.cell(title(&row.by, &row.what, row.waiting));
    table.cell(row.bytes);
    table.cell(digits(row.microseconds.median));
    table.cell(spread(&row.microseconds));
    for part in row.percentiles.map(|p| [p.p99, p.p99_9, p.max]).into_iter().flatten() {
        table.cell(digits(part));
    }
    if row.percentiles.is_none() {
        (0..3).for_each(|_| table.cell("-"));
    }
    if let Some(limit) = &row.limit {
        table.cell(digits(limit.value));
        table.cell(&limit.name);
        table.cell(digits(limit.ratio));
    }
    table.end_row();
}

fn bandwidth(results: &Results) {
    if results.bandwidth.is_empty() {
        return;
    }
    say!("Bandwidth in GB/s (10^9 bytes), and millions of messages a second; one direction.");
    say!("`ratio`: over the limit, so more than 1 is faster than the kernel's copy from process to process.");
    let mut table = Table::new(["", "bytes", "GB/s", "spread", "M/s", "limit", "", "ratio"]);
    for row in &results.bandwidth {
        bandwidth_row(&mut table, row);
    }
    table.print();
    say!("");
}

fn bandwidth_row(table: &mut Table, row: &BandwidthRow) {
    let walking = if row.walking { ", 64 MiB" } else { "" };
    table.cell(format!("{}{walking}", title(&row.by, &row.what, Waiting::Polling)));
    table.cell(row.bytes);
    table.cell(digits(row.gigabytes_per_second.median));
    table.cell(spread(&row.gigabytes_per_second));
    table.cell(match row.million_messages_per_second {
        rate if rate < 0.1 => format!("{rate:.4}"),
        rate => digits(rate),
    });
    if let Some(limit) = &row.limit {
        table.cell(digits(limit.value));
        table.cell(&limit.name);
        table.cell(digits(limit.ratio));
    }
    table.end_row();
}

fn queue_pairs(results: &Results) {
    if results.queue_pairs.is_empty() {
        return;
    }
    say!("Many connections between the two processes, of which one works.");
    let mut table = Table::new(["idle", "made in ms", "SEND of 8 B, us", "spread", "empty poll, ns", "spread"]);
    for row in &results.queue_pairs {
        table.cell(row.idle);
        table.cell(digits(row.connect_ms));
        table.cell(digits(row.send_microseconds.median));
        table.cell(spread(&row.send_microseconds));
        table.cell(digits(row.poll_nanoseconds.median));
        table.cell(spread(&row.poll_nanoseconds));
        table.end_row();
    }
    table.print();
    say!("");
}

fn process_pairs(results: &Results) {
    if results.process_pairs.is_empty() {
        return;
    }
    say!("Several pairs of processes at the same time: latency of one, bandwidth and messages of all together.");
    let mut table = Table::new(["pairs", "", "bytes", "us", "GB/s", "M/s"]);
    for row in &results.process_pairs {
        let cell = |figure: Option<f64>| figure.map_or("-".to_owned(), digits);
        table.cell(row.pairs);
        table.cell(&row.what);
        table.cell(row.bytes);
        table.cell(cell(row.microseconds.map(|spread| spread.median)));
        table.cell(cell(row.gigabytes_per_second));
        table.cell(cell(row.million_messages_per_second));
        table.end_row();
    }
    table.print();
    say!("");
}

fn summary(results: &Results) {
    if results.summary.is_empty() {
        return;
    }
    say!(
        "How near to its limits the device comes: each figure, what it is held against, and what the ratio should be."
    );
    let mut table = Table::new(["", "figure", "", "beside", "", "ratio", "should be", ""]);
    for goal in &results.summary {
        let by = if goal.by == SELF { String::new() } else { format!(" ({})", goal.by) };
        table.cell(format!("{}{by}", goal.what));
        table.cell(format!("{} {}", digits(goal.value), goal.unit.name()));
        table.cell("over");
        table.cell(format!("{} {}", digits(goal.beside_value), goal.unit.name()));
        table.cell(&goal.beside);
        table.cell(digits(goal.ratio));
        table.cell(goal.bounds());
        table.cell(goal.verdict());
        table.end_row();
    }
    table.print();
}
