//! The findings of a run: cases in suites, the table at the end, and the one line that CI reads.

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The outcome of one case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    /// It failed, with one line about the reason.
    Failed(String),
    /// It cannot run here, with the reason. A skip without a reason does not exist.
    Skipped(String),
}

/// One test case.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub outcome: Outcome,
    /// The place of the output, if the case ran a program.
    pub log: Option<PathBuf>,
    /// The time that it took; zero if that was not measured.
    pub took: Duration,
}

/// The cases of one step, in the order in which they ran.
#[derive(Clone, Debug)]
pub struct Suite {
    pub name: String,
    pub cases: Vec<Case>,
    pub took: Duration,
    /// The times of parts that are no case by themselves, such as a build, or a program with many cases.
    parts: Vec<(String, Duration)>,
    /// The time at which the last case ended.
    last: Instant,
}

impl Suite {
    pub fn new(name: &str) -> Self {
        let (cases, parts) = (Vec::new(), Vec::new());
        Self { name: name.to_owned(), cases, took: Duration::ZERO, parts, last: Instant::now() }
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

    /// Add a case that began when the one before it ended.
    pub fn push(&mut self, name: impl Into<String>, outcome: Outcome, log: Option<PathBuf>) {
        self.push_timed(name, outcome, log, self.last.elapsed());
    }

    /// Add a case. A failure is printed at once, so that it shows before the table.
    pub fn push_timed(&mut self, name: impl Into<String>, outcome: Outcome, log: Option<PathBuf>, took: Duration) {
        let name = name.into();
        self.last = Instant::now();
        if let Outcome::Failed(why) = &outcome {
            println!("  FAILED {}: {name}: {why}", self.name);
            if let Some(log) = &log {
                println!("         {}", log.display());
            }
        }
        self.cases.push(Case { name, outcome, log, took });
    }

    /// Add the time of a part that is no case by itself.
    pub fn part(&mut self, name: impl Into<String>, took: Duration) {
        self.parts.push((name.into(), took));
        self.last = Instant::now();
    }

    /// The cases and parts that took longest, the longest one first, if they took a second at least.
    fn slowest(&self) -> Vec<(&str, Duration)> {
        let cases = self.cases.iter().map(|case| (case.name.as_str(), case.took));
        let parts = self.parts.iter().map(|(name, took)| (name.as_str(), *took));
        let mut all: Vec<(&str, Duration)> = cases.chain(parts).filter(|(_, took)| took.as_secs() >= 1).collect();
        all.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
        all.truncate(SLOWEST);
        all
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

/// The number of a suite's cases that stand in the table of times.
const SLOWEST: usize = 5;

/// The numbers of cases by outcome.
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

    /// Print skips with their reasons, failures with their logs, the table, and the closing line.
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
        self.print_times();
        println!("\n{}", closing_line(self.total()));
    }

    /// Print the longest times: the suites by their times, and of each the slowest cases.
    fn print_times(&self) {
        let mut suites: Vec<&Suite> = self.suites.iter().collect();
        suites.sort_by_key(|suite| std::cmp::Reverse(suite.took));
        println!("\nThe slowest, in seconds:");
        for suite in suites {
            println!("{:7.1}  {}", suite.took.as_secs_f64(), suite.name);
            for (name, took) in suite.slowest() {
                println!("         {:7.1}  {name}", took.as_secs_f64());
            }
        }
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

/// The closing line. Machines read its form: it stands alone and has nothing else.
fn closing_line(n: Count) -> String {
    format!("{} passed, {} failed, {} skipped", n.passed, n.failed, n.skipped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowest_cases_and_parts() {
        let mut suite = Suite::new("s");
        suite.push_timed("quick", Outcome::Passed, None, Duration::from_millis(20));
        suite.push_timed("slow", Outcome::Passed, None, Duration::from_secs(3));
        suite.part("slower", Duration::from_secs(4));
        assert_eq!(suite.slowest(), [("slower", Duration::from_secs(4)), ("slow", Duration::from_secs(3))]);
        (1..9).for_each(|n| suite.part("part", Duration::from_secs(n)));
        assert_eq!(suite.slowest().len(), SLOWEST);
        assert_eq!(suite.slowest()[0].1, Duration::from_secs(8));
    }

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
