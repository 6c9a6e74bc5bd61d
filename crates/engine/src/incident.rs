//! Incidents that strike a device from outside: queue pairs that break, ports that go down, the device itself (IBTA
//! vol. 1, 11.6.3).

use verbs::{EventKind, EventSource, QpId, QpState, Qpn};
use wire::{Env, Nanos};

use crate::Engine;

impl<P: Env> Engine<P> {
    /// Breaks a queue pair as by an error of the adapter's own: the affiliated event QP_FATAL, the error state,
    /// everything that is posted flushed (11.6.3.2). A queue pair in RESET, in INIT or in error stays as it is.
    pub fn fail_qp(&mut self, qpn: Qpn, now: Nanos) {
        if let Some(id) = self.qpns.find(qpn) {
            self.break_qp(id, true, now);
            self.wake_due();
        }
    }

    /// Breaks every queue pair. Without `tell` no event is raised for each: a broken device raises one.
    pub fn fail_qps(&mut self, tell: bool, now: Nanos) {
        let all: Vec<QpId> = self.qps.iter().map(|(id, _)| id).collect();
        for id in all {
            self.break_qp(id, tell, now);
        }
        self.wake_due();
    }

    fn break_qp(&mut self, id: QpId, tell: bool, now: Nanos) {
        let Some(mut qp) = self.checkout_qp(id) else { return };
        if !matches!(qp.state, QpState::Reset | QpState::Init | QpState::Err) {
            if tell {
                self.done.async_event(qp.ctx, EventKind::QpFatal, EventSource::Qp(id), qp.user);
            }
            self.enter_error(&mut qp, now);
        } else if qp.state == QpState::Init && !tell {
            self.enter_error(&mut qp, now); // receives may be posted
        }
        self.qps.put_back(id, qp);
    }

    /// Tells every context of an incident at the port or the device.
    pub fn tell_all(&mut self, kind: EventKind, source: EventSource) {
        for (ctx, _) in self.ctxs.iter() {
            self.done.async_event(ctx, kind, source, 0);
        }
    }
}
