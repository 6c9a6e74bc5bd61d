//! The activity between two reports of a process, per second.

use std::collections::BTreeMap;

use report::facts::{Adapter, Cq, Qp, QpCounters};
use report::{Report, Severity, Situation, rules, text};
use serde::Serialize;

/// Events per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Completed send requests.
    pub messages_out: f64,
    /// Completed receives.
    pub messages_in: f64,
    /// Bytes of messages and RDMA that left.
    pub bytes_out: f64,
    /// Bytes of messages and RDMA that came.
    pub bytes_in: f64,
    /// RNR NAKs, received and sent.
    pub rnr_naks: f64,
    /// Timeouts and sequence NAKs, at which packets are sent again.
    pub retries: f64,
    /// Times that the ring to the peer was full.
    pub ring_full: f64,
    /// Datagrams and messages of UC that were lost, for any reason.
    pub dropped: f64,
    /// Send requests that failed.
    pub errors: f64,
}

impl Rates {
    /// The rates between two readings, `seconds` apart. Counters never go back; if they do, the rates are 0.
    fn between(old: &QpCounters, new: &QpCounters, seconds: f64) -> Rates {
        let rate = |old: u64, new: u64| if seconds > 0.0 { new.saturating_sub(old) as f64 / seconds } else { 0.0 };
        let of = |count: fn(&QpCounters) -> u64| rate(count(old), count(new));
        Rates {
            messages_out: of(|c| c.sent),
            messages_in: of(|c| c.received),
            bytes_out: of(|c| c.sent_bytes),
            bytes_in: of(|c| c.received_bytes),
            rnr_naks: of(|c| c.rnr_naks_in + c.rnr_naks_out),
            retries: of(|c| c.timeouts + c.seq_naks_in),
            ring_full: of(|c| c.ring_full),
            dropped: of(QpCounters::lost),
            errors: of(|c| c.send_errors),
        }
    }
}

/// A queue pair in the table.
#[derive(Clone, Debug, Serialize)]
pub struct QpRow {
    /// Its number.
    pub number: u32,
    /// The type, as in verbs.h.
    pub qp_type: String,
    /// The state, as in verbs.h.
    pub state: String,
    /// The peer's process, if there is a link.
    pub peer: Option<u32>,
    /// The peer's address and port, of a connection of softiw0.
    pub to: Option<String>,
    /// The places of the send queue in use, and their number.
    pub sends: Option<(u32, u32)>,
    /// The receives that wait for a message, and the number of places.
    pub receives: Option<(u32, u32)>,
    /// The rates per second.
    pub rates: Rates,
}

/// A completion queue in the table.
#[derive(Clone, Debug, Serialize)]
pub struct CqRow {
    /// Its handle.
    pub handle: u32,
    /// The completions inside, and the number of places.
    pub inside: (u32, u32),
    /// Completions per second.
    pub completions: f64,
    /// True if a thread polled it between the two reports.
    pub polled: bool,
}

/// The device of a process in the table. Every process has one of its own, with one port.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Device {
    /// Its name, or the names of both.
    pub name: String,
    /// The number of open contexts.
    pub contexts: u32,
    /// The number of memory regions.
    pub mrs: u32,
    /// The bytes in them.
    pub mr_bytes: u64,
    /// The number of queue pairs.
    pub qps: usize,
    /// The number of completion queues.
    pub cqs: usize,
    /// The processes that it is connected to.
    pub peers: Vec<u32>,
    /// True if the program polls and moves its own data; else the NIC thread does.
    pub polled: bool,
}

impl Device {
    fn new(adapter: &Adapter) -> Device {
        let mut peers: Vec<u32> = adapter.links.iter().filter(|l| !l.loopback && l.pid != 0).map(|l| l.pid).collect();
        peers.sort_unstable();
        peers.dedup();
        Device {
            name: text::clean(&adapter.devices.join(" and ")),
            contexts: adapter.contexts,
            mrs: adapter.mrs,
            mr_bytes: adapter.mr_bytes,
            qps: adapter.qps.len(),
            cqs: adapter.cqs.len(),
            peers,
            polled: adapter.polled,
        }
    }
}

/// A process in the table.
#[derive(Clone, Debug, Serialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub program: String,
    /// The reason why there is nothing to show.
    pub silent: Option<String>,
    /// The seconds between the two reports; 0: this is the first.
    pub seconds: f64,
    /// The verdict of `softrnic doctor`.
    pub verdict: &'static str,
    /// The gravest of its findings.
    pub reason: Option<String>,
    /// Its device; `None` if there is nothing to show.
    pub device: Option<Device>,
    /// The rates of all its queue pairs together, with those that are gone included.
    pub rates: Rates,
    /// Its queue pairs, the busiest first.
    pub qps: Vec<QpRow>,
    /// Its completion queues, in the order of their handles.
    pub cqs: Vec<CqRow>,
}

impl Process {
    /// The activity of a process between two reports; `others`: the reports of its peers.
    pub fn new(now: &Report, before: Option<&Report>, others: &BTreeMap<u32, Report>) -> Process {
        let seconds = before.map_or(0.0, |old| now.now_ns.saturating_sub(old.now_ns) as f64 / 1e9);
        let found = rules::findings(&Situation { report: now, others, before });
        let reason = found.first().filter(|finding| finding.severity > Severity::Note);
        let total = |report: &Report| report.adapter.port.qps;
        let mut qps: Vec<QpRow> = now.adapter.qps.iter().map(|qp| qp_row(now, before, qp, seconds)).collect();
        qps.sort_by(|a, b| {
            let work = |row: &QpRow| row.rates.bytes_out + row.rates.bytes_in;
            work(b).total_cmp(&work(a)).then(a.number.cmp(&b.number))
        });
        Process {
            pid: now.pid,
            program: text::clean(&now.program),
            silent: None,
            seconds,
            verdict: text::verdict(&found),
            reason: reason.map(|finding| text::clean(&format!("{}: {}", finding.object, finding.text))),
            device: Some(Device::new(&now.adapter)),
            // Without a report before, the counts since the process began tell nothing about now.
            rates: before.map_or(Rates::default(), |old| Rates::between(&total(old), &total(now), seconds)),
            qps,
            cqs: now.adapter.cqs.iter().map(|cq| cq_row(before, cq, seconds)).collect(),
        }
    }

    /// A process that does not answer.
    pub fn silent(pid: u32, why: String) -> Process {
        Process {
            pid,
            program: text::clean(std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end()),
            silent: Some(why),
            seconds: 0.0,
            verdict: "silent",
            reason: None,
            device: None,
            rates: Rates::default(),
            qps: Vec::new(),
            cqs: Vec::new(),
        }
    }
}

fn qp_row(now: &Report, before: Option<&Report>, qp: &Qp, seconds: f64) -> QpRow {
    // A new queue pair began with zero; before the first report nothing is known.
    let zero = QpCounters::default();
    let old = match before {
        None => &qp.counters,
        Some(before) => {
            let known = before.adapter.qps.iter().find(|old| old.number == qp.number);
            known.map_or(&zero, |old| &old.counters)
        }
    };
    let link = qp.peer.as_ref().and_then(|peer| peer.link);
    QpRow {
        number: qp.number,
        qp_type: text::word(&qp.qp_type),
        state: text::word(&qp.state),
        peer: now.adapter.links.iter().find(|l| Some(l.id) == link && l.pid != 0).map(|link| link.pid),
        to: now.adapter.streams.iter().find(|stream| stream.qpn == qp.number).map(|stream| text::clean(&stream.peer)),
        sends: qp.sq.as_ref().map(|sq| (sq.held, sq.depth)),
        receives: qp.rq.as_ref().filter(|_| qp.srq.is_none()).map(|rq| (rq.posted, rq.depth)),
        rates: Rates::between(old, &qp.counters, seconds),
    }
}

fn cq_row(before: Option<&Report>, cq: &Cq, seconds: f64) -> CqRow {
    let known = before.and_then(|before| before.adapter.cqs.iter().find(|old| old.handle == cq.handle));
    let rate = |of: fn(&Cq) -> u64| match known {
        Some(old) if seconds > 0.0 => of(cq).saturating_sub(of(old)) as f64 / seconds,
        _ => 0.0,
    };
    CqRow {
        handle: cq.handle,
        inside: (cq.inside, cq.depth),
        completions: rate(|cq| cq.pushed),
        polled: known.is_some_and(|old| old.polls != cq.polls),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(now_ns: u64, sent: u64) -> Report {
        let counters = QpCounters { sent, sent_bytes: sent * 100, timeouts: sent / 10, ..QpCounters::default() };
        let mut report = Report { pid: 5, now_ns, ..Report::default() };
        report.adapter.port.qps = counters;
        report
    }

    #[test]
    fn rates_are_per_second() {
        let others = BTreeMap::new();
        let (old, new) = (report(1_000_000_000, 50), report(3_000_000_000, 250));
        let process = Process::new(&new, Some(&old), &others);
        assert_eq!(process.seconds, 2.0);
        let expected = Rates { messages_out: 100.0, bytes_out: 10_000.0, retries: 10.0, ..Rates::default() };
        assert_eq!(process.rates, expected);
        // The first report has nothing to compare with; neither has one of the same time, nor one of another process.
        assert_eq!(Process::new(&new, None, &others).rates, Rates::default());
        assert_eq!(Process::new(&new, Some(&new), &others).rates, Rates::default());
        assert_eq!(Process::new(&old, Some(&new), &others).rates, Rates::default());
    }

    #[test]
    fn both_devices_have_their_names() {
        let mut report = report(1, 0);
        report.adapter.devices = vec!["softrnic0".into(), "softiw0".into()];
        let process = Process::new(&report, None, &BTreeMap::new());
        assert_eq!(process.device.map(|device| device.name).as_deref(), Some("softrnic0 and softiw0"));
    }
}
