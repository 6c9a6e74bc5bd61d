//! Rules about queue pairs.

use verbs::{QpState, QpType};

use super::{LONG, NOTABLE, PeerView, Rule, Said, Severity, Situation, count, duration, number, verb};
use crate::facts::{Life, Qp, Report};

pub(super) const RULES: &[Rule<Qp>] = &[
    ("state", state),
    ("rnr", rnr),
    ("no-link", no_link),
    ("peer-stopped", peer_stopped),
    ("peer-gone", peer_gone),
    ("ack", ack),
    ("ring-full", ring_full),
    ("reads", reads),
    ("fence", fence),
    ("send-queue-full", send_queue_full),
    ("refused", refused),
    ("dropped", dropped),
    ("dropped-too-long", too_long),
    ("dropped-qkey", wrong_qkey),
    ("dropped-no-room", no_room),
];

/// A state that stops all work (IBTA vol. 1, 10.3.1).
fn state(_: &Situation<'_>, qp: &Qp) -> Said {
    let waiting = qp.sq.as_ref().map_or(0, |sq| u64::from(sq.waiting));
    let text = match qp.state {
        QpState::Reset => "in RESET: nothing can be posted, nothing is received".to_owned(),
        QpState::Init => "in INIT: nothing is received, and what the peer sends is dropped, until it is in RTR".into(),
        QpState::Rtr if qp.qp_type == QpType::XrcTgt => return None,
        QpState::Rtr => "in RTR: it receives; nothing can be sent until it is in RTS".into(),
        QpState::Sqd if waiting > 0 => {
            let requests = count(waiting, "send request");
            let text = format!("in SQD: {requests} that had not begun {} for RTS", verb(waiting, "waits", "wait"));
            return Some((Severity::Waits, text));
        }
        QpState::Sqd => "in SQD: send requests wait until it is in RTS again".into(),
        QpState::Sqe => "in SQE: a send request failed, and sends are flushed until it is in RTS again".into(),
        QpState::Err => "in ERR: whatever is posted is flushed with IBV_WC_WR_FLUSH_ERR, nothing is received".into(),
        QpState::Rts => return None,
    };
    Some((Severity::Note, text))
}

/// Receiver not ready (IBTA vol. 1, 9.7.5.2.8).
fn rnr(situation: &Situation<'_>, qp: &Qp) -> Said {
    let wait = qp.waits.rnr.as_ref()?;
    if wait.age_ns < NOTABLE {
        return None;
    }
    let mut text =
        format!("RNR: the peer has posted no receive for {} ({})", duration(wait.age_ns), count(wait.naks, "RNR NAK"));
    text += &match wait.rnr_retry {
        7 => "; rnr_retry 7: it is tried for ever".to_owned(),
        most => format!("; rnr_retry {} of {most}, then IBV_WC_RNR_RETRY_EXC_ERR", wait.retries),
    };
    if let PeerView::Found(report, peer) = situation.peer(qp) {
        text += "; there, ";
        text += &receives_of(report, peer);
    }
    Some((if wait.age_ns >= LONG { Severity::Stuck } else { Severity::Waits }, text))
}

/// The place of a queue pair's receives.
fn receives_of(report: &Report, qp: &Qp) -> String {
    let mut text = match (qp.srq, &qp.rq) {
        (Some(handle), _) => match report.adapter.srqs.iter().find(|srq| srq.handle == handle) {
            Some(srq) => format!(
                "in process {}, SRQ {handle} holds {}, of {} posted so far",
                report.pid,
                count(u64::from(srq.posted), "receive"),
                srq.total
            ),
            None => format!("in process {}, SRQ {handle}", report.pid),
        },
        (None, Some(rq)) => {
            let posted = count(u64::from(rq.posted), "receive");
            format!("in process {}, the receive queue holds {posted}, of {} posted so far", report.pid, rq.total)
        }
        (None, None) => return format!("in process {}, it has no receive queue", report.pid),
    };
    let cq = qp.recv_cq.and_then(|handle| report.adapter.cqs.iter().find(|cq| cq.handle == handle));
    if let Some(cq) = cq.filter(|cq| cq.inside > 0) {
        let n = u64::from(cq.inside);
        text += &format!("; {} {} in its CQ {}", count(n, "completion"), verb(n, "waits", "wait"), cq.handle);
    }
    text
}

/// True if there is something to be sent or answered.
fn has_work(qp: &Qp) -> bool {
    qp.sq.as_ref().is_some_and(|sq| sq.executing + sq.waiting > 0) || qp.waits.link
}

fn no_link(_: &Situation<'_>, qp: &Qp) -> Said {
    let peer = qp.peer.as_ref().filter(|peer| peer.link.is_none() && has_work(qp))?;
    if matches!(qp.state, QpState::Reset | QpState::Init | QpState::Err) {
        return None;
    }
    let name = number(peer.qpn);
    let text = match peer.owned {
        Some(false) => {
            format!(
                "no link to {name} at {}: no process on this host owns this number, or its owner has died",
                peer.gid
            )
        }
        Some(true) => {
            format!(
                "no link to {name} at {}: its owner cannot be reached (another user's, without SOFTRNIC_PEERS=any; or \
                 the address is not this host's)",
                peer.gid
            )
        }
        None => format!("no link to {name} at {}", peer.gid),
    };
    Some((Severity::Stuck, text))
}

/// True if it waits for its peer, in any way.
fn waits_for_peer(qp: &Qp) -> bool {
    has_work(qp) || qp.rq.as_ref().is_some_and(|rq| rq.posted > 0) || qp.srq.is_some()
}

fn peer_stopped(situation: &Situation<'_>, qp: &Qp) -> Said {
    let link = situation.link(qp).filter(|link| link.life == Life::Stopped && waits_for_peer(qp))?;
    let text = format!("the peer, process {}, is stopped (SIGSTOP, or a debugger)", link.pid);
    Some((Severity::Stuck, text))
}

fn peer_gone(situation: &Situation<'_>, qp: &Qp) -> Said {
    let link = situation.link(qp).filter(|link| (link.life == Life::Gone || !link.up) && waits_for_peer(qp))?;
    let text = match link.pid {
        0 => "the peer's process is gone".to_owned(),
        pid => format!("the peer, process {pid}, is gone"),
    };
    Some((Severity::Stuck, text))
}

/// True if the request at the head of the send queue is another than in the report before, or further.
fn moves(situation: &Situation<'_>, qp: &Qp) -> bool {
    let old = situation.before.and_then(|old| old.adapter.qps.iter().find(|old| old.number == qp.number));
    let head = |qp: &Qp| {
        let sq = qp.sq.as_ref()?;
        sq.head.as_ref().map(|head| (sq.unacked_psn, head.wr_id, head.moved))
    };
    match (old.and_then(head), head(qp)) {
        // Fewer bytes than before: a new attempt of the same request.
        (Some((psn, id, moved)), Some((psn_now, id_now, moved_now))) => {
            psn != psn_now || id != id_now || moved_now > moved
        }
        _ => false,
    }
}

/// Transport timer (IBTA vol. 1, 9.7.6.1.3).
fn ack(situation: &Situation<'_>, qp: &Qp) -> Said {
    let wait = qp.waits.ack.as_ref().filter(|wait| wait.age_ns >= NOTABLE || wait.retries > 0)?;
    if moves(situation, qp) {
        return None;
    }
    let mut text = format!("waits for an acknowledgement since {}", duration(wait.age_ns));
    text += &match wait.timeout_ns {
        Some(timeout) => {
            format!("; retry {} of {}, timeout {}", wait.retries, wait.retry_cnt, duration(timeout))
        }
        None => "; timeout 0: it waits for ever".into(),
    };
    if wait.untaken {
        text += "; the peer has not taken it from the ring";
    }
    let mut severity = if wait.age_ns >= LONG { Severity::Stuck } else { Severity::Waits };
    let peer = qp.peer.as_ref();
    match situation.peer(qp) {
        PeerView::Unknown => {}
        PeerView::Missing => {
            let pid = situation.link(qp).map_or(0, |link| link.pid);
            text += &format!("; process {pid} has no {}", number(peer.map_or(0, |peer| peer.qpn)));
            severity = Severity::Stuck;
        }
        PeerView::Found(report, other) => {
            if let Some(why) = deaf(qp, report, other) {
                text += &format!("; in process {}, {why}", report.pid);
                severity = Severity::Stuck;
            }
        }
    }
    Some((severity, text))
}

/// The reason why the peer's queue pair will never answer, if there is one.
fn deaf(qp: &Qp, _: &Report, other: &Qp) -> Option<String> {
    let name = number(other.number);
    if matches!(other.state, QpState::Reset | QpState::Init | QpState::Err) {
        return Some(format!("{name} is in {} and receives nothing", crate::text::word(&other.state)));
    }
    if other.qp_type.is_reliable() != qp.qp_type.is_reliable() || other.qp_type == QpType::Ud {
        return Some(format!("{name} is of type {}", crate::text::word(&other.qp_type)));
    }
    let connected_to = other.peer.as_ref()?.qpn;
    if connected_to != qp.number {
        return Some(format!("{name} is connected to {}, not to us", number(connected_to)));
    }
    // Both numbers have 24 bits; the responder may be ahead of what has been acknowledged, never behind it.
    let (sent, expected) = (qp.sq.as_ref()?, other.rq.as_ref()?);
    let ahead = sent.unacked_psn.wrapping_sub(expected.expected_psn) & 0xff_ffff;
    let never = qp.peer.as_ref().is_some_and(|peer| !peer.answered);
    if never && ahead != 0 {
        return Some(format!(
            "{name} expects sequence number {}, and the oldest that is sent is {}: sq_psn here and rq_psn there differ",
            expected.expected_psn, sent.unacked_psn
        ));
    }
    None
}

fn ring_full(situation: &Situation<'_>, qp: &Qp) -> Said {
    let stream = situation.report.adapter.streams.iter().find(|stream| stream.qpn == qp.number);
    if !qp.waits.room || stream.is_some() {
        let full = stream?.full_ns.filter(|full| *full >= NOTABLE)?;
        let (unsent, peer) = (crate::text::bytes(stream?.unsent), crate::text::clean(&stream?.peer));
        let text = format!(
            "TCP has taken nothing for {}, and {unsent} wait: {peer} does not read, or is not reached",
            duration(full)
        );
        return Some((Severity::Stuck, text));
    }
    // Under load the ring is full now and then; that tells something only when nothing has been sent since the report
    // before.
    let old = situation.before?.adapter.qps.iter().find(|old| old.number == qp.number)?;
    let still = old.waits.room && old.counters.sent == qp.counters.sent;
    let pid = situation.link(qp).map_or(0, |link| link.pid);
    still.then(|| {
        let text = format!(
            "the ring to process {pid} is full: no thread takes packets there (no poll, NIC thread not running)"
        );
        (Severity::Stuck, text)
    })
}

/// True if the request at the head is older than one under way should be.
fn head_is_old(qp: &Qp) -> bool {
    let head = qp.sq.as_ref().and_then(|sq| sq.head.as_ref());
    head.and_then(|head| head.age_ns).is_some_and(|age| age >= NOTABLE)
}

fn reads(_: &Situation<'_>, qp: &Qp) -> Said {
    let (out, most) = qp.waits.reads.filter(|_| head_is_old(qp))?;
    let waiting = count(qp.sq.as_ref().map_or(0, |sq| u64::from(sq.waiting)), "send request");
    let verb = if waiting.starts_with("one") { "waits" } else { "wait" };
    Some((
        Severity::Waits,
        format!("{waiting} {verb}: {out} READs or atomics are outstanding, and max_rd_atomic is {most}"),
    ))
}

fn fence(_: &Situation<'_>, qp: &Qp) -> Said {
    if !qp.waits.fence || !head_is_old(qp) {
        return None;
    }
    Some((Severity::Waits, "the next send request is fenced: it waits for the READs and atomics before it".into()))
}

/// A full send queue (`ibv_post_send(3)`): a place is free again when a completion of its request, or of one behind it,
/// is polled.
fn send_queue_full(situation: &Situation<'_>, qp: &Qp) -> Said {
    let sq = qp.sq.as_ref().filter(|sq| sq.depth > 0 && sq.held >= sq.depth && !sq.cyclic)?;
    if sq.held_signaled == 0 {
        let text = format!(
            "send queue full: {} unsignaled, none signaled: no completion can ever free it (ibv_post_send(3)); signal \
             at least one request in {}",
            sq.held, sq.depth
        );
        return Some((Severity::Stuck, text));
    }
    if sq.executing + sq.waiting > 0 {
        return None; // another rule explains what it waits for
    }
    let handle = qp.send_cq?;
    let cq = situation.report.adapter.cqs.iter().find(|cq| cq.handle == handle)?;
    if situation.unpolled(cq) == Some(false) {
        return None;
    }
    let text = format!(
        "send queue full: all {} requests are complete, and their completions wait in CQ {handle}: polling it frees \
         the places",
        sq.held
    );
    Some((Severity::Waits, text))
}

/// A receiver that refuses messages; the peer's view of it is rule `rnr`.
fn refused(situation: &Situation<'_>, qp: &Qp) -> Said {
    let n = qp.counters.rnr_naks_out;
    let empty = match (qp.srq, &qp.rq) {
        (Some(handle), _) => situation.report.adapter.srqs.iter().any(|srq| srq.handle == handle && srq.posted == 0),
        (None, Some(rq)) => rq.posted == 0,
        (None, None) => false,
    };
    if n == 0 || !empty || qp.state == QpState::Err {
        return None;
    }
    let refused = format!("{} refused with an RNR NAK", count(n, "message"));
    let at = receives_of(situation.report, qp);
    let at = at.split_once(", ").map_or(at.as_str(), |(_, rest)| rest);
    Some((Severity::Waits, format!("no receive is posted: {refused}; {at}")))
}

/// Messages of UC and UD that were dropped: these have no RNR NAK (IBTA vol. 1, 9.8.2.2, 9.8.3).
fn dropped(_: &Situation<'_>, qp: &Qp) -> Said {
    lost(qp.counters.dropped, "message", "lost: no receive was posted")
}

/// Messages that were too long (9.8.3, 9.9.3, class D): they are dropped silently, and no receive is taken.
fn too_long(_: &Situation<'_>, qp: &Qp) -> Said {
    lost(qp.counters.too_long, "datagram", "lost: longer than the receive, of which the first 40 bytes are the GRH's")
}

/// Datagrams with a wrong Q_Key (9.6.1.4).
fn wrong_qkey(_: &Situation<'_>, qp: &Qp) -> Said {
    lost(qp.counters.wrong_qkey, "datagram", "lost: the Q_Key is not this queue pair's")
}

/// Messages that found no room: an unreliable service waits for room for a while only.
fn no_room(_: &Situation<'_>, qp: &Qp) -> Said {
    lost(qp.counters.no_room, "message", "not sent: the ring to the peer was full for too long")
}

fn lost(n: u64, what: &str, why: &str) -> Said {
    (n > 0).then(|| (Severity::Note, format!("{} {} {why}", count(n, what), verb(n, "was", "were"))))
}
