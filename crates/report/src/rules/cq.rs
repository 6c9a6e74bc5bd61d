//! Rules about completion queues, channels and shared receive queues.

use super::{Rule, Said, Severity, Situation, count, verb};
use crate::facts::{Armed, Cq, Srq};

pub(super) const RULES: &[Rule<Cq>] = &[
    ("cq-overrun", overrun),
    ("cq-full", full),
    ("cq-solicited", solicited),
    ("cq-armed-late", armed_late),
    ("cq-not-armed", not_armed),
    ("cq-unpolled", unpolled),
    ("cq-event-unread", event_unread),
    ("cq-event-unacked", event_unacked),
];

pub(super) const SRQ_RULES: &[Rule<Srq>] = &[("srq-empty", srq_empty), ("srq-limit", srq_limit)];

/// A queue that overran (IBTA vol. 1, 10.10.2.3).
fn overrun(_: &Situation<'_>, cq: &Cq) -> Said {
    let text = format!(
        "overrun: it was full with {}, and a completion was lost; the queue pairs concerned went to ERR",
        count(u64::from(cq.depth), "completion")
    );
    cq.overrun.then_some((Severity::Stuck, text))
}

fn full(situation: &Situation<'_>, cq: &Cq) -> Said {
    if cq.overrun || cq.overwrites || cq.inside < cq.depth || situation.unpolled(cq) == Some(false) {
        return None;
    }
    let full = count(u64::from(cq.inside), "completion");
    Some((Severity::Waits, format!("full: {full}, no thread polls them, and the next one overruns it")))
}

/// A queue that is armed for solicited completions only (`ibv_req_notify_cq(3)`).
fn solicited(_: &Situation<'_>, cq: &Cq) -> Said {
    if cq.armed != Armed::Solicited || cq.inside == 0 {
        return None;
    }
    let n = u64::from(cq.inside);
    let inside =
        format!("{} inside that {} not, or came before the last event", count(n, "completion"), verb(n, "is", "are"));
    let text = format!(
        "armed for solicited completions only, {inside}: no event comes before a SEND with IBV_SEND_SOLICITED, or an \
         error"
    );
    Some((if cq.channel.is_some() { Severity::Stuck } else { Severity::Note }, text))
}

/// A queue that was armed too late (`ibv_req_notify_cq(3)`): completions before the last event give no other one,
/// though they were not polled.
fn armed_late(situation: &Situation<'_>, cq: &Cq) -> Said {
    if cq.armed != Armed::Any || cq.inside == 0 || situation.unpolled(cq) == Some(false) {
        return None;
    }
    if cq.moderated_ns.is_some() {
        let text = "armed, and its event is held back by moderation (ibv_modify_cq(3))";
        return Some((Severity::Note, text.into()));
    }
    let text = format!(
        "armed, and {} came before the last event: another comes only with the next completion; poll until nothing is \
         left",
        count(u64::from(cq.inside), "completion")
    );
    Some((Severity::Stuck, text))
}

fn not_armed(situation: &Situation<'_>, cq: &Cq) -> Said {
    let channel = cq.channel.as_ref().filter(|channel| channel.waiters > 0 && channel.unread == 0)?;
    if cq.armed != Armed::No {
        return None;
    }
    let wakes = situation.report.adapter.cqs.iter().any(|other| {
        let same = other.channel.as_ref().is_some_and(|c| c.fd == channel.fd);
        same && (other.armed != Armed::No || other.channel.as_ref().is_some_and(|c| c.unread > 0))
    });
    let waiters = format!("{} in ibv_get_cq_event", count(u64::from(channel.waiters), "thread"));
    if cq.inside > 0 {
        let n = u64::from(cq.inside);
        let text = format!(
            "not armed, {} inside, and {waiters}: no event comes for {} (ibv_req_notify_cq(3))",
            count(n, "completion"),
            verb(n, "it", "them")
        );
        return Some((if wakes { Severity::Waits } else { Severity::Stuck }, text));
    }
    (!wakes).then(|| (Severity::Stuck, format!("not armed, and {waiters}: no event will come (ibv_req_notify_cq(3))")))
}

fn unpolled(situation: &Situation<'_>, cq: &Cq) -> Said {
    let resting = cq.inside > 0 && cq.armed == Armed::No && situation.unpolled(cq) == Some(true);
    let waits_for_event = cq.channel.as_ref().is_some_and(|channel| channel.waiters > 0 || channel.unread > 0);
    let only_counts = cq.counts && cq.overwrites;
    if !resting || waits_for_event || only_counts {
        return None;
    }
    let n = u64::from(cq.inside);
    let text = format!("{} {}, and no thread polls", count(n, "completion"), verb(n, "waits", "wait"));
    Some((Severity::Waits, text))
}

fn event_unread(_: &Situation<'_>, cq: &Cq) -> Said {
    let channel = cq.channel.as_ref().filter(|channel| channel.unread > 0)?;
    let n = u64::from(channel.unread);
    let text = format!(
        "{} {} in its completion channel (descriptor {}), and the program has not got {} (ibv_get_cq_event(3))",
        count(n, "event"),
        verb(n, "waits", "wait"),
        channel.fd,
        verb(n, "it", "them")
    );
    Some((Severity::Note, text))
}

/// An event that is not acknowledged (`ibv_destroy_cq(3)`); while a destruction waits it is rule `destroy`.
fn event_unacked(_: &Situation<'_>, cq: &Cq) -> Said {
    let n = u64::from(cq.unacked);
    let text =
        format!("{} got and not acknowledged (ibv_ack_cq_events(3)): ibv_destroy_cq would wait", count(n, "event"));
    (n > 0).then_some((Severity::Note, text))
}

fn srq_empty(_: &Situation<'_>, srq: &Srq) -> Said {
    if srq.posted > 0 || srq.users == 0 {
        return None;
    }
    let users = count(u64::from(srq.users), "queue pair");
    Some((Severity::Note, format!("empty: {users} can receive nothing; {} posted so far", srq.total)))
}

/// A shared receive queue below its limit (`ibv_modify_srq(3)`).
fn srq_limit(_: &Situation<'_>, srq: &Srq) -> Said {
    if srq.limit == 0 || srq.posted >= srq.limit {
        return None;
    }
    let text = format!(
        "below its limit: {} posted, limit {}; IBV_EVENT_SRQ_LIMIT_REACHED comes with the next message",
        srq.posted, srq.limit
    );
    Some((Severity::Note, text))
}
