//! Reasons why something does not go on: one function for each, in tables.
//!
//! A rule looks at facts and finds nothing, or explains the obstacle in one sentence. Rules know no process, no socket
//! and no clock. Facts that a process cannot know of its peer come from the peer's own report, where there is one.

mod cm;
mod cq;
mod managed;
mod qp;
mod whole;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::facts::{Cq, Link, Qp, Report, Srq};

/// The age, in nanoseconds, beyond which a wait does not look like work under way: 1 s.
const LONG: u64 = 1_000_000_000;
/// The age, in nanoseconds, beyond which a wait is worth a note: 50 ms.
const NOTABLE: u64 = 50_000_000;

/// How much a finding explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing; stops nothing by itself.
    Note,
    /// It waits for an event that may still come.
    Waits,
    /// It has waited for long, or for an event that cannot come.
    Stuck,
}

/// One reason why something does not go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The rule's name.
    pub rule: String,
    /// The object that it is about, for instance `QP 0x001007`.
    pub object: String,
    /// How much it explains.
    pub severity: Severity,
    /// The explanation, in a sentence.
    pub text: String,
}

/// The facts that the rules look at.
pub struct Situation<'a> {
    /// The process in question.
    pub report: &'a Report,
    /// The reports of other processes by process number: its peers, as far as they answered.
    pub others: &'a BTreeMap<u32, Report>,
    /// The report of the same process a moment before: it shows what moves.
    pub before: Option<&'a Report>,
}

/// The finding of a rule.
type Said = Option<(Severity, String)>;

/// A rule's name and function.
type Rule<T> = (&'static str, fn(&Situation<'_>, &T) -> Said);

/// All findings about a process, the gravest first.
pub fn findings(situation: &Situation<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let adapter = &situation.report.adapter;
    apply(whole::RULES, situation, [situation.report], |_| "process".into(), &mut found);
    apply(qp::RULES, situation, &adapter.qps, qp_name, &mut found);
    apply(managed::RULES, situation, &adapter.qps, qp_name, &mut found);
    apply(cq::RULES, situation, &adapter.cqs, cq_name, &mut found);
    apply(cq::SRQ_RULES, situation, &adapter.srqs, srq_name, &mut found);
    let ids = situation.report.cm.iter().flat_map(|cm| &cm.ids);
    apply(cm::RULES, situation, ids, |id| format!("cm_id {}", id.number), &mut found);
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity)); // stable: objects stay in their order
    found
}

fn apply<'a, T: 'a>(
    rules: &[Rule<T>],
    situation: &Situation<'_>,
    objects: impl IntoIterator<Item = &'a T>,
    name: impl Fn(&T) -> String,
    found: &mut Vec<Finding>,
) {
    for object in objects {
        for (rule, look) in rules {
            if let Some((severity, text)) = look(situation, object) {
                found.push(Finding { rule: (*rule).into(), object: name(object), severity, text });
            }
        }
    }
}

/// The name of a queue pair, for instance `QP 0x001007`.
pub fn qp_name(qp: &Qp) -> String {
    number(qp.number)
}

fn number(qpn: u32) -> String {
    format!("QP {qpn:#08x}")
}

fn cq_name(cq: &Cq) -> String {
    format!("CQ {}", cq.handle)
}

fn srq_name(srq: &Srq) -> String {
    format!("SRQ {}", srq.handle)
}

/// The knowledge of the other end of a connection.
enum PeerView<'a> {
    /// Its process was not asked, or did not answer.
    Unknown,
    /// Its process has no such queue pair.
    Missing,
    /// Its process's report has this queue pair.
    Found(&'a Report, &'a Qp),
}

impl<'a> Situation<'a> {
    fn link(&self, qp: &Qp) -> Option<&'a Link> {
        let id = qp.peer.as_ref()?.link?;
        self.report.adapter.links.iter().find(|link| link.id == id)
    }

    fn peer(&self, qp: &Qp) -> PeerView<'a> {
        let (Some(peer), Some(link)) = (&qp.peer, self.link(qp)) else { return PeerView::Unknown };
        let report = if link.loopback { Some(self.report) } else { self.others.get(&link.pid) };
        match report.filter(|report| report.locked.is_none()) {
            None => PeerView::Unknown,
            Some(report) => match report.adapter.qps.iter().find(|other| other.number == peer.qpn) {
                Some(other) => PeerView::Found(report, other),
                None => PeerView::Missing,
            },
        }
    }

    /// True if no thread has polled a completion queue since the report before; `None`: there was none.
    fn unpolled(&self, cq: &Cq) -> Option<bool> {
        let before = self.before?.adapter.cqs.iter().find(|old| old.handle == cq.handle)?;
        Some(before.polls == cq.polls)
    }
}

/// A duration as text, with two or three digits.
pub fn duration(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{} us", ns / 1_000),
        10_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        1_000_000_000..100_000_000_000 => format!("{:.1} s", ns as f64 / 1e9),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}

/// A number with its noun: `one completion`, `3 completions`.
fn count(n: u64, what: &str) -> String {
    if n == 1 { format!("one {what}") } else { format!("{n} {what}s") }
}

/// The form of a verb: `waits` for one, `wait` for more.
fn verb(n: u64, one: &'static str, many: &'static str) -> &'static str {
    if n == 1 { one } else { many }
}

#[cfg(test)]
mod tests;
