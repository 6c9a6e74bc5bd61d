//! The report of this process, put together from the facts of the engine, the wire, the channels and the connection
//! manager.

use std::time::Duration;

use ::verbs::{EventKind, Qpn};
use report::facts::{Adapter, Cm, Destroy, Port, VERSION};
use report::{Report, Situation, rules, text};

use crate::context::Object;
use crate::core::Core;
use crate::{Nic, now};

/// How long a report waits for a lock: a thread that holds it longer is part of the answer.
const PATIENCE: Duration = Duration::from_millis(300);

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

fn name(object: Object) -> String {
    match object {
        Object::Qp(_) => "a QP".into(),
        Object::Cq(cq) => format!("CQ {}", cq.index),
        Object::Srq(srq) => format!("SRQ {}", srq.index),
    }
}
