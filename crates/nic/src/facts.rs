//! The report of this process, put together from the facts of the engine, the wire, the channels and the connection
//! manager.

use std::net::SocketAddr;
use std::time::Duration;

use ::verbs::{EventKind, QpId, Qpn};
use report::facts::{Adapter, Cm, Destroy, Port, VERSION};
use report::streams::{Ended, Stream};
use report::{Report, Situation, rules, text};

use crate::context::Object;
use crate::core::Core;
use crate::streams::Conn;
use crate::{Nic, now};

/// How long a report waits for a lock: a thread that holds it longer is part of the answer.
const PATIENCE: Duration = Duration::from_millis(300);

/// The number of ended connections that a report names.
const MOST_ENDED: usize = 16;

/// The facts of the connection manager; its owner gives the function to [`Nic::add_facts`].
pub(crate) type CmFactsOf = Box<dyn Fn(Duration) -> Cm + Send + Sync>;

impl Nic {
    /// Make the connection manager's ids part of reports. The function gets the longest time that it may wait for a
    /// lock.
    pub fn add_facts(&self, cm: impl Fn(Duration) -> Cm + Send + Sync + 'static) {
        let _ = self.doctor.cm.set(Box::new(cm));
    }

    /// The report. It waits for no lock longer than a moment, and changes nothing.
    pub fn report(&self) -> Report {
        let mut report = Report {
            version: VERSION,
            pid: std::process::id(),
            program: std::fs::read_to_string("/proc/self/comm").unwrap_or_default().trim_end().to_owned(),
            now_ns: now(),
            faults: crate::faults::told(),
            told: report::logged(),
            ..Report::default()
        };
        // `Nic::lock` is not used: the release of its guard runs the engine.
        match self.core.try_lock_for(PATIENCE) {
            Some(mut core) => report.adapter = core.facts(now()),
            None => {
                let why = "a thread of the program holds the device's lock, and does not let go: it is in the middle \
                    of a verb, or was stopped or ended there";
                report.locked = Some(why.into());
            }
        }
        if let Some(unacked) = self.unacked.try_lock_for(PATIENCE) {
            for cq in &mut report.adapter.cqs {
                let of = |(id, n): (&::verbs::CqId, &u32)| if id.index == cq.handle { *n } else { 0 };
                cq.unacked = unacked.cqs.iter().map(of).sum();
            }
            report.adapter.destroys = unacked
                .destroys
                .iter()
                .map(|object| Destroy { object: name(*object), unacked: unacked.of(*object) })
                .collect();
        }
        let devices = self.settings.devices.list();
        report.adapter.devices = devices.iter().map(|device| device.name().to_owned()).collect();
        report.cm = self.doctor.cm.get().map(|facts| facts(PATIENCE));
        for peer in report.adapter.qps.iter_mut().filter_map(|qp| qp.peer.as_mut()).filter(|peer| peer.link.is_none()) {
            peer.owned = Some(window::is_owned(Qpn::new(peer.qpn)));
        }
        report
    }

    /// The report as text, with only what this process knows by itself.
    pub(crate) fn report_text(&self) -> String {
        let report = self.report();
        let others = Default::default();
        let findings = rules::findings(&Situation { report: &report, others: &others, before: None });
        text::render(&report, &findings)
    }
}

impl Core {
    fn facts(&mut self, now: u64) -> Adapter {
        let mut adapter = self.engine.facts(now);
        let env = self.engine.env();
        for link in &mut adapter.links {
            env.link_facts(link);
        }
        let stats = env.stats();
        adapter.port = Port {
            packets_out: stats.sent_packets,
            packets_in: stats.received_packets,
            doorbells: stats.rings,
            single_copy_bytes: stats.single_copy_bytes,
            co_copied_bytes: stats.co_copied_bytes,
            ..adapter.port
        };
        adapter.streams = self.streams_facts(now);
        adapter.ended = self.streams.ended.iter().cloned().collect();
        adapter.polled = self.mode == crate::core::Mode::Polled;
        for cq in &mut adapter.cqs {
            let channel = self.channels.iter().find(|(id, _)| id.index == cq.handle);
            cq.channel = channel.map(|(id, channel)| channel.facts(*id));
        }
        let unread = self.contexts.values().flat_map(|context| context.unread());
        adapter.unread_events =
            unread.map(|kind: EventKind| format!("IBV_EVENT_{}", text::screaming(&format!("{kind:?}")))).collect();
        adapter
    }
}

impl Core {
    fn streams_facts(&self, now: u64) -> Vec<Stream> {
        let with_addresses = |conn: &Conn| {
            let (stream, _) = self.engine.stream_facts(conn.qp?)?;
            let [local, peer] =
                [rustix::net::getsockname(&conn.socket).ok(), rustix::net::getpeername(&conn.socket).ok().flatten()]
                    .map(|end| {
                        end.and_then(|end| SocketAddr::try_from(end).ok()).map_or("?".to_owned(), |end| end.to_string())
                    });
            let full_ns = (conn.full_since != 0).then(|| now.saturating_sub(conn.full_since));
            Some(Stream { local, peer, full_ns, ..stream })
        };
        self.streams.conns.values().filter_map(with_addresses).collect()
    }

    /// Keeps the end of a connection for reports, if an error has brought it.
    pub(crate) fn note_end(&mut self, qp: QpId, now: u64) {
        if let Some((_, Some(ended))) = self.engine.stream_facts(qp) {
            let all = &mut self.streams.ended;
            if all.len() >= MOST_ENDED {
                all.pop_front();
            }
            all.push_back(Ended { at_ns: now, ..ended });
        }
    }
}

fn name(object: Object) -> String {
    match object {
        Object::Qp(_) => "a QP".into(),
        Object::Cq(cq) => format!("CQ {}", cq.index),
        Object::Srq(srq) => format!("SRQ {}", srq.index),
    }
}
