//! `softrnic doctor`: what programs wait for.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use std::time::Duration;

use ask::{ask, processes, state};
use clap::Args;
use report::{Finding, Report, Severity, Situation, rules, text};
use serde::Serialize;

use crate::out::say;
use crate::sockets::{self, Connection};

/// The exit statuses beside 0, which means that no obstacle was found.
const FOUND: u8 = 1;
const NO_ANSWER: u8 = 2;

/// The time between the two reports that show what moves.
const PAUSE: Duration = Duration::from_millis(200);

/// Options of `softrnic doctor`.
#[derive(Args)]
pub struct Options {
    /// The processes; without any: all of this user that have the device open
    #[arg(value_name = "PID")]
    pids: Vec<u32>,
    /// Print JSON: the facts, and the findings
    #[arg(long)]
    json: bool,
}

/// A process that was examined.
#[derive(Serialize)]
struct Case {
    verdict: &'static str,
    findings: Vec<Finding>,
    report: Report,
}

/// A process in JSON: what was examined, if it has the device open, and its TCP connections under `softrnic sock`.
#[derive(Serialize)]
struct Entry<'a> {
    #[serde(flatten)]
    case: Option<&'a Case>,
    pid: u32,
    connections: Vec<&'a Connection>,
}

/// The processes that have the device open, and then those that only have connections.
fn entries<'a>(cases: &'a [Case], connections: &'a [Connection]) -> Vec<Entry<'a>> {
    let of = |pid: u32| connections.iter().filter(|one| one.pid == pid).collect();
    let open = |case: &'a Case| Entry { case: Some(case), pid: case.report.pid, connections: of(case.report.pid) };
    let others: BTreeSet<u32> = connections.iter().map(|one| one.pid).collect();
    let others = others.into_iter().filter(|pid| cases.iter().all(|case| case.report.pid != *pid));
    cases.iter().map(open).chain(others.map(|pid| Entry { case: None, pid, connections: of(pid) })).collect()
}

/// Examine processes.
pub fn run(options: &Options) -> ExitCode {
    let all = options.pids.is_empty();
    let pids = if all { processes() } else { options.pids.clone() };
    let connections = sockets::all(&options.pids);
    let (mut cases, mut failed) = (Vec::new(), Vec::new());
    for (pid, case) in examine(&pids) {
        match case {
            Ok(case) => cases.push(case),
            // Among all processes, those that cannot be asked are other users', or have ended meanwhile.
            Err(_) if all && !is_ours(pid) => {}
            // It has no device, and its connections are what there is to tell.
            Err(_) if connections.iter().any(|one| one.pid == pid) && !processes().contains(&pid) => {}
            Err(error) => failed.push(error),
        }
    }
    if options.json {
        let text =
            serde_json::to_string_pretty(&entries(&cases, &connections)).unwrap_or_else(|error| error.to_string());
        say!("{text}");
    } else if all {
        for case in &cases {
            say!("{}: {}", text::summary(&case.report), case.verdict);
            for finding in case.findings.iter().filter(|finding| finding.severity > Severity::Note) {
                say!("   {}: {}", finding.object, text::clean(&finding.text));
            }
        }
        sockets::findings(&connections).iter().for_each(|line| say!("{line}"));
        if cases.is_empty() && failed.is_empty() && connections.is_empty() {
            say!("no process has the device open");
        }
    } else {
        for case in &cases {
            say!("{}", text::render(&case.report, &case.findings).trim_end());
            if case.report.locked.is_some() {
                // One of the threads holds the lock; its stack (gdb -p) shows where.
                threads(case.report.pid).iter().for_each(|line| say!("{line}"));
            }
        }
        sockets::findings(&connections).iter().for_each(|line| say!("{line}"));
    }
    for error in &failed {
        eprintln!("softrnic: {error}");
    }
    let found = cases.iter().flat_map(|case| &case.findings).any(|finding| finding.severity > Severity::Note);
    match (found, failed.is_empty()) {
        (true, _) => ExitCode::from(FOUND),
        (false, false) => ExitCode::from(NO_ANSWER),
        (false, true) => ExitCode::SUCCESS,
    }
}

/// The threads of a process as the kernel shows them: number, name, state, and where in the kernel they wait.
fn threads(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut lines: Vec<String> = tasks
        .filter_map(|task| {
            let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let number = task.file_name().into_string().ok()?;
            let state = read("stat").rsplit_once(')')?.1.trim_start().chars().next()?;
            let waits = match read("wchan").as_str() {
                "" | "0" => String::new(),
                place => format!(", in {place}"),
            };
            Some(text::clean(&format!("thread {number} ({}): {state}{waits}", read("comm").trim_end())))
        })
        .collect();
    lines.sort();
    lines
}

/// True for a living process of this user; for root, of any user.
fn is_ours(pid: u32) -> bool {
    let us = rustix::process::geteuid();
    let owner = std::fs::metadata(format!("/proc/{pid}")).map(|meta| meta.uid());
    owner.is_ok_and(|uid| us.is_root() || uid == us.as_raw()) && state(pid) != Some('Z')
}

/// Ask processes twice, and their peers once.
fn examine(pids: &[u32]) -> Vec<(u32, Result<Case, String>)> {
    let before: Vec<Result<Report, String>> = pids.iter().map(|pid| ask(*pid)).collect();
    if before.iter().any(Result::is_ok) {
        std::thread::sleep(PAUSE);
    }
    let mut others = BTreeMap::new();
    let mut now = Vec::new();
    for (pid, before) in pids.iter().zip(before) {
        let both = before.and_then(|before| Ok((before, ask(*pid)?)));
        if let Ok((_, report)) = &both {
            others.insert(*pid, report.clone());
        }
        now.push((*pid, both));
    }
    let peers: Vec<u32> = now.iter().filter_map(|(_, both)| both.as_ref().ok()).flat_map(|(_, r)| peers(r)).collect();
    for pid in peers {
        // For a process that does not answer, the links of the others tell its state.
        if !others.contains_key(&pid)
            && !matches!(state(pid), Some('T' | 't') | None)
            && let Ok(report) = ask(pid)
        {
            others.insert(pid, report);
        }
    }
    let judge = |before: Report, report: Report| {
        let findings = rules::findings(&Situation { report: &report, others: &others, before: Some(&before) });
        Case { verdict: text::verdict(&findings), findings, report }
    };
    now.into_iter().map(|(pid, both)| (pid, both.map(|(before, report)| judge(before, report)))).collect()
}

/// The processes that a process is connected to.
fn peers(report: &Report) -> Vec<u32> {
    let links = report.adapter.links.iter().filter(|link| !link.loopback).map(|link| link.pid);
    let ids = report.cm.iter().flat_map(|cm| &cm.ids).filter_map(|id| id.pid);
    let mut all: Vec<u32> = links.chain(ids).filter(|pid| *pid != 0 && *pid != report.pid).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_shown_with_name_and_state() {
        let found = threads(std::process::id());
        assert!(found.iter().any(|line| line.starts_with("thread ") && line.contains("): R")), "{found:?}");
        assert!(threads(u32::MAX).is_empty());
    }
}
