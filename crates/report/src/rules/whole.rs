//! Rules about the process as a whole.

use super::{Rule, Said, Severity, Situation, count};
use crate::facts::Report;

pub(super) const RULES: &[Rule<Report>] = &[
    ("faults", faults),
    ("told", told),
    ("locked", locked),
    ("destroy", destroy),
    ("async-unread", async_unread),
    ("strangers", strangers),
];

/// Deliberate faults, which are to be named before any other reason.
fn faults(_: &Situation<'_>, report: &Report) -> Said {
    let spec = report.faults.as_ref()?;
    Some((Severity::Note, format!("the device misbehaves on purpose, by SOFTRNIC_FAULT: {spec}")))
}

/// The obstacles that the process has met so far; they may be gone by now.
fn told(_: &Situation<'_>, report: &Report) -> Said {
    (!report.told.is_empty()).then(|| (Severity::Note, format!("told on standard error: {}", report.told.join("; "))))
}

fn locked(_: &Situation<'_>, report: &Report) -> Said {
    report.locked.as_ref().map(|why| (Severity::Stuck, why.clone()))
}

/// Destructions that wait (`ibv_get_async_event(3)`, `ibv_destroy_cq(3)`).
fn destroy(_: &Situation<'_>, report: &Report) -> Said {
    let waits: Vec<String> = report
        .adapter
        .destroys
        .iter()
        .map(|destroy| {
            let events = count(u64::from(destroy.unacked), "event");
            format!("the destruction of {} waits: {events} got and not acknowledged", destroy.object)
        })
        .collect();
    (!waits.is_empty()).then(|| (Severity::Stuck, waits.join("; ")))
}

fn async_unread(_: &Situation<'_>, report: &Report) -> Said {
    let events = &report.adapter.unread_events;
    let text =
        format!("asynchronous events that the program has not got (ibv_get_async_event(3)): {}", events.join(", "));
    (!events.is_empty()).then_some((Severity::Note, text))
}

fn strangers(_: &Situation<'_>, report: &Report) -> Said {
    let n = report.adapter.strangers;
    let packets = count(n, "packet");
    let text = format!("{packets} dropped: from another process than the peer of the connection");
    (n > 0).then_some((Severity::Note, text))
}
