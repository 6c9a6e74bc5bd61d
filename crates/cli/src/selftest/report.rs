//! The results of the cases.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use super::case::{Case, Operation};
use super::plan::Row;
use crate::out::say;

/// The numbers of cases that passed and failed.
#[derive(Clone, Copy, Default)]
struct Count {
    passed: usize,
    failed: usize,
}

/// The results of all cases.
pub struct Report {
    verbose: bool,
    start: Instant,
    counts: BTreeMap<Row, BTreeMap<Operation, Count>>,
    failures: Vec<String>,
    skipped: BTreeMap<&'static str, usize>,
}

impl Report {
    /// A report without results.
    pub fn new(verbose: bool) -> Self {
        Report {
            verbose,
            start: Instant::now(),
            counts: BTreeMap::new(),
            failures: Vec::new(),
            skipped: BTreeMap::new(),
        }
    }

    fn count(&mut self, row: Row, operation: Operation) -> &mut Count {
        self.counts.entry(row).or_default().entry(operation).or_default()
    }

    /// Count a case that passed.
    pub fn pass(&mut self, row: Row, case: &Case) {
        if self.verbose {
            say!("  ok    {row}: {case}");
        }
        self.count(row, case.operation).passed += 1;
    }

    /// Count a case that failed, or a row that could not be begun.
    pub fn fail(&mut self, row: Row, case: Option<&Case>, error: &str) {
        let text = match case {
            Some(case) => format!("{row}: {case} (case {}): {error}", case.number),
            None => format!("{row}: {error}"),
        };
        say!("  FAIL  {text}");
        self.count(row, case.map_or(Operation::Send, |case| case.operation)).failed += 1;
        self.failures.push(text);
    }

    /// Count cases that were left out.
    pub fn skip(&mut self, reason: &'static str, count: usize) {
        *self.skipped.entry(reason).or_default() += count;
    }

    /// Print the table. The exit status shows whether all cases passed.
    pub fn finish(self) -> ExitCode {
        let rows: Vec<(String, Vec<String>)> = self
            .counts
            .iter()
            .map(|(row, counts)| {
                let cells = Operation::ALL.iter().map(|operation| match counts.get(operation) {
                    None => String::new(),
                    Some(Count { passed, failed: 0 }) => passed.to_string(),
                    Some(Count { passed, failed }) => format!("{passed}/{} FAIL", passed + failed),
                });
                (row.to_string(), cells.collect())
            })
            .collect();
        let first = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        let widths: Vec<usize> = Operation::ALL
            .iter()
            .enumerate()
            .map(|(i, operation)| {
                rows.iter().map(|(_, cells)| cells[i].len()).max().unwrap_or(0).max(operation.name().len())
            })
            .collect();
        let line = |name: &str, cells: &[&str]| {
            let cells: Vec<String> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
            say!("{name:<first$}  {}", cells.join("  "));
        };
        say!("");
        line("cases passed", &Operation::ALL.map(Operation::name));
        for (name, cells) in &rows {
            line(name, &cells.iter().map(String::as_str).collect::<Vec<_>>());
        }
        let total = self.counts.values().flat_map(|counts| counts.values());
        let (passed, failed) =
            total.fold((0, 0), |(passed, failed), count| (passed + count.passed, failed + count.failed));
        let skipped: usize = self.skipped.values().sum();
        if !self.skipped.is_empty() {
            say!("\nskipped");
            for (reason, count) in &self.skipped {
                say!("  {count:>4}  {reason}");
            }
        }
        if !self.failures.is_empty() {
            say!("\nfailed");
            for failure in &self.failures {
                say!("  {failure}");
            }
        }
        say!("\n{passed} passed, {failed} failed, {skipped} skipped, in {:.1} s", self.start.elapsed().as_secs_f32());
        if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
