//! Rules about the connection manager's ids.

use super::{NOTABLE, Rule, Said, Severity, Situation, count, duration, verb};
use crate::facts::{CmId, CmState};

pub(super) const RULES: &[Rule<CmId>] = &[
    ("cm-unread", unread),
    ("cm-retrying", retrying),
    ("cm-request", request),
    ("cm-undecided", undecided),
    ("cm-backlog", backlog),
    ("cm-reply", reply),
    ("cm-response", response),
    ("cm-release", release),
];

fn place(address: Option<&String>) -> &str {
    address.map_or("?", String::as_str)
}

fn unread(_: &Situation<'_>, id: &CmId) -> Said {
    let n = id.unread.len() as u64;
    let text = format!(
        "{} {}, and the program has not got {} (rdma_get_cm_event(3)): {}",
        count(n, "event"),
        verb(n, "waits", "wait"),
        verb(n, "it", "them"),
        id.unread.join(", ")
    );
    (n > 0).then_some((Severity::Waits, text))
}

fn retrying(_: &Situation<'_>, id: &CmId) -> Said {
    let left = id.retrying_ns?;
    let text = format!("no program listens at {}: asked again for {} more", place(id.dst.as_ref()), duration(left));
    Some((Severity::Waits, text))
}

fn repetitions(id: &CmId) -> String {
    match id.left_ns {
        Some(left) => format!("; repeated in {}, {} more times", duration(left), id.repeats_left),
        None => String::new(),
    }
}

/// A REQ that is not answered, with the reason, if the listener's process reports it.
fn request(situation: &Situation<'_>, id: &CmId) -> Said {
    let age = id.age_ns.filter(|age| *age >= NOTABLE && id.retrying_ns.is_none())?;
    let what = match id.handshake? {
        CmState::ReqSent => "CONNECT",
        CmState::SidrSent => "SIDR REQ",
        _ => return None,
    };
    let mut text = format!("{what} sent {} ago to {}, no answer", duration(age), place(id.dst.as_ref()));
    let port = |address: Option<&String>| address.and_then(|a| a.rsplit_once(':').map(|(_, port)| port.to_owned()));
    let others = id.pid.and_then(|pid| match pid == situation.report.pid {
        true => Some(situation.report),
        false => situation.others.get(&pid),
    });
    let ids = others.and_then(|report| report.cm.as_ref()).map_or(&[][..], |cm| &cm.ids[..]);
    let listener = ids.iter().find(|l| l.backlog_room.is_some() && port(l.src.as_ref()) == port(id.dst.as_ref()));
    let theirs = ids.iter().find(|other| other.dst.is_some() && other.dst == id.src && other.src == id.dst);
    let pid = id.pid.unwrap_or(0);
    if let Some(listener) = listener.filter(|l| l.backlog_room == Some(0) && l.parked > 0) {
        let n = listener.unread.len() as u64;
        text += &format!(
            "; the listener's backlog is full: {} that process {pid} has not got",
            count(n, "CONNECT_REQUEST event")
        );
    } else if theirs.is_some_and(|other| other.undecided) {
        text += &format!("; process {pid} has got the request, and neither accepted nor rejected it");
    } else if listener.is_some_and(|l| !l.unread.is_empty()) {
        text += &format!("; process {pid} has not got its CONNECT_REQUEST event");
    } else {
        text += &repetitions(id);
    }
    Some((Severity::Stuck, text))
}

fn undecided(_: &Situation<'_>, id: &CmId) -> Said {
    if !id.undecided {
        return None;
    }
    let text = format!("a request from {} was got, and neither accepted nor rejected", place(id.dst.as_ref()));
    Some((Severity::Waits, text))
}

fn backlog(_: &Situation<'_>, id: &CmId) -> Said {
    let n = u64::from(id.parked);
    if id.backlog_room != Some(0) || n == 0 {
        return None;
    }
    let requests = format!("{} {}", count(n, "request"), verb(n, "waits", "wait"));
    Some((Severity::Stuck, format!("its backlog is full: {requests} for room, until rdma_get_cm_event takes one")))
}

fn reply(_: &Situation<'_>, id: &CmId) -> Said {
    let age = id.age_ns.filter(|age| *age >= NOTABLE && id.handshake == Some(CmState::RepSent))?;
    let text = format!(
        "accepted {} ago, and the peer {} has not answered: its program has to call rdma_get_cm_event{}",
        duration(age),
        place(id.dst.as_ref()),
        repetitions(id)
    );
    Some((Severity::Stuck, text))
}

fn response(_: &Situation<'_>, id: &CmId) -> Said {
    if id.handshake != Some(CmState::RepRcvd) || !id.unread.is_empty() {
        return None;
    }
    let text = "CONNECT_RESPONSE was got: rdma_establish (or ibv_modify_qp and rdma_establish) is due";
    Some((Severity::Waits, text.into()))
}

fn release(_: &Situation<'_>, id: &CmId) -> Said {
    match id.handshake? {
        CmState::DreqSent => {
            let age = id.age_ns.filter(|age| *age >= NOTABLE)?;
            let text = format!(
                "DISCONNECT sent {} ago to {}, not answered: its program has to call rdma_disconnect or \
                 rdma_destroy_id",
                duration(age),
                place(id.dst.as_ref())
            );
            Some((Severity::Waits, text))
        }
        CmState::DreqRcvd => {
            let text = format!("the peer {} has disconnected: rdma_disconnect is due", place(id.dst.as_ref()));
            Some((Severity::Note, text))
        }
        _ => None,
    }
}
