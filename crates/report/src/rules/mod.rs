//! Why something does not go on: one function for each reason, in tables.
//!
//! A rule looks at facts and finds nothing, or says in one sentence what is the matter. Rules know no process, no
//! socket and no clock; what a process cannot know of its peer comes from the peer's own report, where there is one.

mod cm;
mod cq;
mod qp;
mod whole;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::facts::{Cq, Link, Qp, Report, Srq};

/// What takes longer does not look like work under way: 1 s.
const LONG: u64 = 1_000_000_000;
/// What takes longer is worth a word: 50 ms.
const NOTABLE: u64 = 50_000_000;

/// How much a finding explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing; stops nothing by itself.
    Note,
    /// Something waits for what may still come.
    Waits,
    /// Something has waited for long, or for what cannot come.
    Stuck,
}

/// One reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The rule's name.
    pub rule: String,
    /// What it is about, for instance `QP 0x001007`.
    pub object: String,
    /// How much it explains.
    pub severity: Severity,
    /// Why, in a sentence.
    pub text: String,
}

/// What the rules look at.
pub struct Situation<'a> {
    /// The process in question.
    pub report: &'a Report,
    /// Others by process number: its peers, as far as they could be asked.
    pub others: &'a BTreeMap<u32, Report>,
    /// The same process a moment before: shows what moves.
    pub before: Option<&'a Report>,
}

/// What a rule says.
type Said = Option<(Severity, String)>;

/// A rule and its name.
type Rule<T> = (&'static str, fn(&Situation<'_>, &T) -> Said);

/// All findings about a process, the gravest first.
pub fn findings(situation: &Situation<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let adapter = &situation.report.adapter;
    apply(whole::RULES, situation, [situation.report], |_| "process".into(), &mut found);
    apply(qp::RULES, situation, &adapter.qps, qp_name, &mut found);
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

/// `QP 0x001007`.
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

/// What is known of the other end of a connection.
enum PeerView<'a> {
    /// Its process was not asked, or did not answer.
    Unknown,
    /// Its process has no such queue pair.
    Missing,
    /// Here it is.
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

    /// Nobody has polled a completion queue since the look before; `None`: there was none.
    fn unpolled(&self, cq: &Cq) -> Option<bool> {
        let before = self.before?.adapter.cqs.iter().find(|old| old.handle == cq.handle)?;
        Some(before.polls == cq.polls)
    }
}

/// A duration for people: two digits or three.
pub fn duration(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{} us", ns / 1_000),
        10_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        1_000_000_000..100_000_000_000 => format!("{:.1} s", ns as f64 / 1e9),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}

/// `one completion`, `3 completions`.
fn count(n: u64, what: &str) -> String {
    if n == 1 { format!("one {what}") } else { format!("{n} {what}s") }
}

/// `waits` for one, `wait` for others.
fn verb(n: u64, one: &'static str, many: &'static str) -> &'static str {
    if n == 1 { one } else { many }
}

#[cfg(test)]
mod tests;
