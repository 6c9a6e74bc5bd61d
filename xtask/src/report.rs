//! What a run found: cases in suites, the table at the end, and the one line that CI reads.

use std::path::PathBuf;
use std::time::Duration;

/// How one case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    /// One line that says what was wrong.
    Failed(String),
    /// Why this cannot run here. A skip without a reason does not exist.
    Skipped(String),
}

/// One thing that was tried.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub outcome: Outcome,
    /// Where the output is, if the case ran a program.
    pub log: Option<PathBuf>,
}

/// The cases of one step, in the order in which they ran.
#[derive(Clone, Debug)]
pub struct Suite {
    pub name: String,
    pub cases: Vec<Case>,
    pub took: Duration,
}

impl Suite {
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), cases: Vec::new(), took: Duration::ZERO }
    }

    pub fn pass(&mut self, name: impl Into<String>) {
        self.push(name, Outcome::Passed, None);
    }

    pub fn fail(&mut self, name: impl Into<String>, why: impl Into<String>) {
        self.push(name, Outcome::Failed(why.into()), None);
    }

    pub fn skip(&mut self, name: impl Into<String>, why: impl Into<String>) {
        self.push(name, Outcome::Skipped(why.into()), None);
    }

    /// Adds a case; failures are told at once, so that whoever watches need not wait for the table.
    pub fn push(&mut self, name: impl Into<String>, outcome: Outcome, log: Option<PathBuf>) {
        let name = name.into();
        if let Outcome::Failed(why) = &outcome {
            println!("  FAILED {}: {name}: {why}", self.name);
            if let Some(log) = &log {
                println!("         {}", log.display());
            }
        }
        self.cases.push(Case { name, outcome, log });
    }

    pub fn count(&self) -> Count {
        let mut count = Count::default();
        for case in &self.cases {
            match case.outcome {
                Outcome::Passed => count.passed += 1,
                Outcome::Failed(_) => count.failed += 1,
                Outcome::Skipped(_) => count.skipped += 1,
            }
        }
        count
    }
}

/// Cases by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
}

/// All suites of a run.
#[derive(Debug, Default)]
pub struct Report {
    pub suites: Vec<Suite>,
}

impl Report {
    pub fn total(&self) -> Count {
        self.suites.iter().map(Suite::count).fold(Count::default(), |a, b| Count {
            passed: a.passed + b.passed,
            failed: a.failed + b.failed,
            skipped: a.skipped + b.skipped,
        })
    }

    /// Prints skips with their reasons, failures with their logs, the table, and the closing line.
    pub fn print(&self) {
        self.print_cases("Skipped", |outcome| match outcome {
            Outcome::Skipped(why) => Some(why),
            _ => None,
        });
        self.print_cases("Failed", |outcome| match outcome {
            Outcome::Failed(why) => Some(why),
            _ => None,
        });
        let width = self.suites.iter().map(|s| s.name.len()).max().unwrap_or(0).max(5);
        println!("\n{:width$}  passed  failed  skipped  seconds", "suite");
        for suite in &self.suites {
            let n = suite.count();
            let seconds = suite.took.as_secs_f64();
            println!("{:width$}  {:6}  {:6}  {:7}  {seconds:7.1}", suite.name, n.passed, n.failed, n.skipped);
        }
        println!("\n{}", closing_line(self.total()));
    }

    fn print_cases(&self, title: &str, pick: impl Fn(&Outcome) -> Option<&String>) {
        let mut titled = false;
        for suite in &self.suites {
            for case in &suite.cases {
                let Some(why) = pick(&case.outcome) else {
                    continue;
                };
                if !titled {
                    println!("\n{title}:");
                    titled = true;
                }
                println!("  {}: {}: {why}", suite.name, case.name);
                if let (Outcome::Failed(_), Some(log)) = (&case.outcome, &case.log) {
                    println!("      {}", log.display());
                }
            }
        }
    }
}

/// The form of this line is read by machines: it stands alone and says nothing else.
fn closing_line(n: Count) -> String {
    format!("{} passed, {} failed, {} skipped", n.passed, n.failed, n.skipped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_closing_line() {
        let mut suite = Suite::new("s");
        suite.pass("a");
        suite.skip("b", "no such tool");
        suite.fail("c", "wrong");
        let report = Report { suites: vec![suite] };
        assert_eq!(closing_line(report.total()), "1 passed, 1 failed, 1 skipped");
    }
}
