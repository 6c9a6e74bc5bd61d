//! The results as tables: for the terminal, and for the page.

use super::case::{Bytes, Waiting};
use super::limits::{Limit, LimitCase};
use super::results::{BandwidthRow, LatencyRow, Results, SELF};
use super::stats::Spread;
use super::summary::digits;
use super::table::Table;
use crate::out::say;

/// The length, in microseconds, from which a round trip is worth a note: a median does not show it.
const NOTABLE: f64 = 100_000.0;

/// A table and the text around it.
pub struct Part {
    /// The heading of the section.
    pub heading: &'static str,
    /// The lines in front of the table.
    pub intro: Vec<String>,
    /// The table.
    pub table: Table,
    /// The lines behind the table.
    pub notes: Vec<String>,
}

/// Print everything.
pub fn print(results: &Results) {
    let setup = &results.setup;
    say!("{} ({}), {}", setup.device, setup.library, place(results));
    say!("{}", results.machine);
    say!("{}\n", method(results));
    for part in parts(results, |_| true) {
        say!("{}", part.heading);
        part.intro.iter().for_each(|line| say!("{line}"));
        part.table.print();
        part.notes.iter().for_each(|line| say!("  {line}"));
        say!("");
    }
    results.missing.iter().for_each(|missing| say!("Not measured: {missing}"));
}

/// The place where the processes ran.
pub fn place(results: &Results) -> String {
    match (results.setup.cores, results.machine.cores) {
        (Some([ours, theirs]), _) => format!("two processes, on cores {ours} and {theirs}"),
        (None, 1) => "two processes, both on the only core there is, which makes them slow".to_owned(),
        (None, _) => "two processes, wherever the system put them".to_owned(),
    }
}

/// The method of measurement.
pub fn method(results: &Results) -> String {
    let setup = &results.setup;
    let Some(rounds) = std::num::NonZero::new(setup.rounds).filter(|rounds| rounds.get() > 1) else {
        return format!("One round of {} ms for each figure.", setup.time_ms);
    };
    format!(
        "Medians of {rounds} rounds of {} ms each; \"spread\" is from the lowest round's to the highest's.",
        setup.time_ms
    )
}

/// All parts that have something to show, with the messages of the wanted sizes.
pub fn parts(results: &Results, wanted: impl Fn(usize) -> bool) -> Vec<Part> {
    let all = [
        calls(results),
        copies(results, &wanted),
        latency(results, &wanted),
        bandwidth(results, &wanted),
        queue_pairs(results),
        process_pairs(results),
        summary(results),
    ];
    all.into_iter().filter(|part| !part.table.is_empty()).collect()
}

fn spread(spread: &Spread) -> String {
    format!("{}-{}", digits(spread.low), digits(spread.high))
}

/// The ratio from which two processors share a core: two cores come to 1.0, two threads of one core to 1.5 to 2.
const SHARED: f64 = 1.25;

fn calls(results: &Results) -> Part {
    let mut table = Table::new(["", "us"]);
    for limit in Limit::PLAIN {
        if let Some(row) = results.limits.iter().find(|row| row.limit == limit) {
            table.cell(limit.name());
            table.cell(digits(row.microseconds.median));
            table.end_row();
        }
    }
    Part {
        heading: "What this machine can do, without any device",
        intro: vec![
            "Microseconds: one way between two cores, of one call, or of a thousand steps of arithmetic.".into(),
        ],
        table,
        notes: shared_core(results).into_iter().collect(),
    }
}

/// A note about a machine whose two processors are not two cores, or are slowed down by others on the same hardware.
fn shared_core(results: &Results) -> Option<String> {
    let of = |limit| results.limits.iter().find(|row| row.limit == limit).map(|row| &row.rounds);
    let ratios: Vec<f64> = of(Limit::WorkBeside)?.iter().zip(of(Limit::Work)?).map(|(both, one)| both / one).collect();
    let shared = ratios.iter().filter(|ratio| **ratio > SHARED).count();
    (shared > 0).then(|| {
        format!(
            "In {shared} of {} rounds the two processors shared a core: with both at work each took up to {} times as \
             long. What two processes do, of any program, takes that much longer than on two cores, and a cache line \
             between them less.",
            ratios.len(),
            digits(ratios.iter().copied().fold(0.0, f64::max))
        )
    })
}

fn copies(results: &Results, wanted: &impl Fn(usize) -> bool) -> Part {
    let mut sizes: Vec<usize> =
        results.limits.iter().map(|row| row.bytes).filter(|bytes| *bytes > 0 && wanted(*bytes)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let heads = sizes.iter().map(|size| Bytes(*size).to_string());
    let mut table =
        Table::new(std::iter::once(String::new()).chain(heads).chain(["GB/s, 1 MiB".into(), "GB/s, walking".into()]));
    for limit in Limit::SIZED {
        if !results.limits.iter().any(|row| row.limit == limit) {
            continue;
        }
        table.cell(limit.name());
        for size in &sizes {
            table.cell(results.limit(LimitCase::of(limit, *size)).map_or("-".into(), digits));
        }
        for walking in [false, true] {
            let mebibyte = LimitCase { limit, bytes: 1 << 20, walking };
            table.cell(results.limit(mebibyte).map_or("-".into(), |us| digits(f64::from(1 << 20) / us / 1e3)));
        }
        table.end_row();
    }
    Part {
        heading: "What it takes this machine to move bytes, without any device",
        intro: vec![
            "Microseconds, of a copy or one way. memcpy is within a process, the others from one process to the other."
                .into(),
        ],
        table,
        notes: vec![
            "walking: 1 MiB at a time through 64 MiB of memory; all others use one buffer again and again.".into(),
        ],
    }
}

fn latency(results: &Results, wanted: &impl Fn(usize) -> bool) -> Part {
    let mut table = Table::new(["", "bytes", "median", "spread", "p99", "p99.9", "max", "limit", "", "ratio"]);
    let rows = || results.latency.iter().filter(|row| wanted(row.bytes));
    rows().for_each(|row| latency_row(&mut table, row));
    let long = rows().filter_map(|row| {
        let longest = row.percentiles.filter(|percentiles| percentiles.max > NOTABLE)?.max;
        let title = title(&row.by, &row.what, row.waiting);
        Some(format!("{title} of {}: one took {} ms", Bytes(row.bytes), digits(longest / 1e3)))
    });
    Part {
        heading: "Latency: one message at a time",
        intro: vec![
            "Microseconds. SEND, WRITE: one way, to a program that polls its completion queue, or its memory for \
             WRITE."
                .into(),
            "READ, atomics: until the answer is there; the other program sleeps. \"events\": who waits sleeps until \
             an event comes."
                .into(),
            "\"ratio\" is the time over the limit's, the median of the rounds' ratios: 1 is the best that this \
             machine could do by that means."
                .into(),
        ],
        notes: long.collect(),
        table,
    }
}

/// The title of a row: the program, its operation, and its way of waiting.
fn title(by: &str, what: &str, waiting: Waiting) -> String {
    let events = if waiting == Waiting::Events { ", events" } else { "" };
    if by == SELF { format!("{what}{events}") } else { format!("{by}: {what}{events}") }
}

fn latency_row(table: &mut Table, row: &LatencyRow) {
    table.cell(title(&row.by, &row.what, row.waiting));
    table.cell(row.bytes);
    table.cell(digits(row.microseconds.median));
    table.cell(spread(&row.microseconds));
    match row.percentiles {
        Some(p) => [p.p99, p.p99_9, p.max].into_iter().for_each(|part| table.cell(digits(part))),
        None => (0..3).for_each(|_| table.cell("-")),
    }
    if let Some(limit) = &row.limit {
        table.cell(digits(limit.value));
        table.cell(&limit.name);
        table.cell(digits(limit.ratio));
    }
    table.end_row();
}

fn bandwidth(results: &Results, wanted: &impl Fn(usize) -> bool) -> Part {
    let mut table = Table::new(["", "bytes", "GB/s", "spread", "M/s", "limit", "", "ratio"]);
    results.bandwidth.iter().filter(|row| wanted(row.bytes)).for_each(|row| bandwidth_row(&mut table, row));
    Part {
        heading: "Bandwidth: as many messages as there is room for, in one direction",
        intro: vec![
            "GB/s (10^9 bytes a second), and millions of messages a second (M/s); one buffer on either side, or 64 \
             MiB of them."
                .into(),
            "Who waits for completions polls, or sleeps until an event comes (\"events\"): of SEND both programs; of \
             WRITE and READ one, the other sleeps."
                .into(),
            "\"ratio\" is GB/s over the limit: more than 1 is faster than the kernel's copy from process to process."
                .into(),
        ],
        table,
        notes: Vec::new(),
    }
}

fn bandwidth_row(table: &mut Table, row: &BandwidthRow) {
    let walking = if row.walking { ", 64 MiB" } else { "" };
    table.cell(format!("{}{walking}", title(&row.by, &row.what, row.waiting)));
    table.cell(row.bytes);
    table.cell(digits(row.gigabytes_per_second.median));
    table.cell(spread(&row.gigabytes_per_second));
    table.cell(digits(row.million_messages_per_second));
    if let Some(limit) = &row.limit {
        table.cell(digits(limit.value));
        table.cell(&limit.name);
        table.cell(digits(limit.ratio));
    }
    table.end_row();
}

fn queue_pairs(results: &Results) -> Part {
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
    Part {
        heading: "Many connections between two processes",
        intro: vec!["One works, so many are connected and idle beside it. An empty poll finds no completion.".into()],
        table,
        notes: Vec::new(),
    }
}

fn process_pairs(results: &Results) -> Part {
    let mut table = Table::new(["", "pairs", "bytes", "us", "GB/s", "M/s", "limit", "", "ratio"]);
    for row in &results.process_pairs {
        let cell = |figure: Option<f64>| figure.map_or("-".to_owned(), digits);
        table.cell(&row.what);
        table.cell(row.pairs);
        table.cell(row.bytes);
        table.cell(cell(row.microseconds.map(|spread| spread.median)));
        table.cell(cell(row.gigabytes_per_second));
        table.cell(cell(row.million_messages_per_second));
        if let Some(limit) = &row.limit {
            table.cell(digits(limit.value));
            table.cell(&limit.name);
            table.cell(digits(limit.ratio));
        }
        table.end_row();
    }
    Part {
        heading: "Several pairs of processes at the same time",
        intro: vec![
            "Latency is the median of the pairs'; bandwidth and messages are those of all together. The limit is what \
             one pair"
                .into(),
            "could do, with the cores to itself; the pairs share them.".into(),
        ],
        table,
        notes: Vec::new(),
    }
}

fn summary(results: &Results) -> Part {
    let mut table = Table::new(["", "figure", "over", "", "ratio", "should be", ""]);
    for goal in &results.summary {
        let by = if goal.by == SELF { String::new() } else { format!(" ({})", goal.by) };
        table.cell(format!("{}{by}", goal.what));
        table.cell(format!("{} {}", digits(goal.value), goal.unit.name()));
        table.cell(format!("{} {}", digits(goal.beside_value), goal.unit.name()));
        table.cell(&goal.beside);
        table.cell(digits(goal.ratio));
        table.cell(goal.bounds());
        table.cell(goal.verdict());
        table.end_row();
    }
    Part {
        heading: "How near to its limits the device comes",
        intro: vec![
            "Each figure over what it is held against: the ratio (the median of the rounds' ratios), and what \
            it should be."
                .into(),
        ],
        table,
        notes: Vec::new(),
    }
}
