//! Rules about queues that wait for others: WAIT, and entries that were not enabled.

use super::{Rule, Said, Severity, Situation, count, number, verb};
use crate::facts::{Qp, Report};

pub(super) const RULES: &[Rule<Qp>] = &[("wait", wait), ("wait-cycle", wait_cycle), ("not-enabled", not_enabled)];

/// True if something that is under way may complete in this queue: a receive for which a message may come, or a request
/// of a queue pair that does not wait itself.
fn may_get_completions(report: &Report, cq: u32) -> bool {
    report.adapter.qps.iter().any(|qp| {
        let receives = qp.srq.is_some() || qp.rq.as_ref().is_some_and(|rq| rq.posted > 0);
        let sends = qp.sq.as_ref().is_some_and(|sq| sq.executing > 0) || goes_on(qp);
        qp.recv_cq == Some(cq) && receives || qp.send_cq == Some(cq) && sends
    })
}

/// True if it has requests that begin without anything else.
fn goes_on(qp: &Qp) -> bool {
    qp.waits.completions.is_none() && !is_held(qp) && qp.sq.as_ref().is_some_and(|sq| sq.waiting > 0)
}

/// True if all that waits in its send queue has to be enabled.
fn is_held(qp: &Qp) -> bool {
    qp.sq.as_ref().is_some_and(|sq| sq.enabled.is_some_and(|enabled| enabled <= sq.begun))
}

/// The WAIT at the head of a send queue.
fn wait(situation: &Situation<'_>, qp: &Qp) -> Said {
    let wait = qp.waits.completions.as_ref()?;
    let n = wait.count.saturating_sub(wait.had);
    let text = format!(
        "a WAIT holds the send queue back: CQ {} has had {}, and {} {} missing until {}",
        wait.cq,
        count(wait.had, "completion"),
        n,
        verb(n, "is", "are"),
        wait.count
    );
    if may_get_completions(situation.report, wait.cq) {
        return Some((Severity::Note, text));
    }
    let why = "nothing that is under way can complete there (unsignaled requests do not; a receive must be posted)";
    Some((Severity::Stuck, format!("{text}; {why}")))
}

/// Send queues that wait for each other's completions.
fn wait_cycle(situation: &Situation<'_>, qp: &Qp) -> Said {
    let mut path = vec![qp];
    let mut text = String::new();
    loop {
        let last = path.last()?;
        let wait = last.waits.completions.as_ref().filter(|wait| !may_get_completions(situation.report, wait.cq))?;
        // Nothing else completes there but requests behind other waits: the first of them is as good as any.
        let next = situation
            .report
            .adapter
            .qps
            .iter()
            .find(|other| other.send_cq == Some(wait.cq) && other.waits.completions.is_some())?;
        text += &format!("{} waits for CQ {}, ", number(last.number), wait.cq);
        if next.number == qp.number {
            let text = format!("{text}which only {} could complete to: a circle of WAITs", number(qp.number));
            return Some((Severity::Stuck, text));
        }
        if path.iter().any(|seen| seen.number == next.number) {
            return None; // a circle that this queue pair only leads to
        }
        text += "which only ";
        text += &format!("{} could complete to; ", number(next.number));
        path.push(next);
    }
}

/// Requests of a managed queue that were never enabled.
fn not_enabled(_: &Situation<'_>, qp: &Qp) -> Said {
    let sq = qp.sq.as_ref().filter(|sq| sq.waiting > 0)?;
    let enabled = sq.enabled.filter(|enabled| *enabled <= sq.begun)?;
    let requests = count(u64::from(sq.waiting), "send request");
    let verb = verb(u64::from(sq.waiting), "waits", "wait");
    Some(match enabled {
        0 => (Severity::Waits, format!("{requests} {verb} for an ENABLE: none was ever enabled")),
        n => (Severity::Note, format!("{requests} {verb} for an ENABLE: {n} were enabled so far")),
    })
}
