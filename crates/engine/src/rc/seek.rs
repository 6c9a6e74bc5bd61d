//! Queue pairs with a peer that cannot be reached: packets that were lost for want of a link go out again when there is
//! one.
//!
//! With a timeout the acknowledgement timer does that, and in the end gives up. Without one (`timeout` 0), and for a
//! responder, nothing would ever try again; so the queue pair looks for its peer now and then.

use verbs::{QpState, QpType};
use wire::{Env, LinkId, Nanos};

use crate::Engine;
use crate::modify::timeout_nanos;
use crate::qp::Qp;
use crate::rc::refused::{NAK, NAK_SEQUENCE};
use crate::rc::state::Response;

/// Pauses between looks, in nanoseconds: the first, doubled each time up to the last.
const FIRST: Nanos = 10_000_000;
const LAST: Nanos = 1_000_000_000;

impl<P: Env> Engine<P> {
    /// Looks for the peer later.
    pub(crate) fn seek(&mut self, qp: &mut Qp, now: Nanos) {
        if qp.seek_at.is_none() {
            let at = now + qp.seek_pause.max(FIRST);
            qp.seek_at = Some(at);
            self.arm_timer(qp, at);
        }
    }

    /// Looks for the peer later, after a request was lost for want of a link.
    pub(crate) fn seek_without_timer(&mut self, qp: &mut Qp, now: Nanos) {
        if retransmits_by_link(qp) {
            self.seek(qp, now);
        }
    }

    /// Looks for the requester later, after a request that cannot be answered. The requester is asked for it again when
    /// that is possible.
    pub(crate) fn seek_requester(&mut self, qp: &mut Qp, now: Nanos) {
        if !matches!(qp.init.qp_type, QpType::Rc | QpType::XrcTgt) {
            return;
        }
        if !qp.rc.nak_sent {
            qp.rc.nak_sent = true;
            let (psn, msn) = (qp.rc.epsn, qp.rc.msn);
            qp.rc.responses.push_back(Response::Nak { psn, syndrome: NAK | NAK_SEQUENCE, msn });
        }
        self.seek(qp, now);
    }

    /// Looks for the peer, if the time has come.
    pub(crate) fn seek_timer(&mut self, qp: &mut Qp, now: Nanos) {
        let Some(at) = qp.seek_at else { return };
        if at > now {
            self.rearm_timer(qp, at);
            return;
        }
        qp.seek_at = None;
        let connected = matches!(qp.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        if !connected || (qp.inflight.is_empty() && qp.rc.responses.is_empty()) {
            return;
        }
        self.find_link(qp);
        if qp.link.is_none() {
            qp.seek_pause = (qp.seek_pause * 2).clamp(FIRST, LAST);
            self.seek(qp, now);
            return;
        }
        qp.seek_pause = 0;
        if retransmits_by_link(qp) && qp.rc.rnr_until.is_none() {
            self.retransmit(qp);
        }
    }

    /// Handles a link that is gone, after all its packets have been received. A queue pair that used it finds another,
    /// perhaps to a new process with the same number. A queue pair that waited for room on it finds out by trying.
    /// `other` leads to the same process: packets that the process sent before it died may still come over it.
    pub fn link_down(&mut self, link: LinkId, other: Option<LinkId>) {
        let uses = |qp: &Qp| [qp.link, qp.from].contains(&Some(link));
        let users: Vec<_> = self.qps.iter().filter(|(_, qp)| uses(qp)).map(|(id, _)| id).collect();
        for id in users {
            let Some(mut qp) = self.checkout_qp(id) else { continue };
            if qp.from == Some(link) {
                qp.from = qp.link.filter(|own| *own != link).or(other); // the id may be another's some day
            }
            // Packets that are left in the peer's own link are still received.
            if qp.link == Some(link) {
                qp.link = None;
                qp.unreliable.astray = qp.init.qp_type == QpType::Uc;
                qp.rc.responses.clear(); // the responses count as lost
                if retransmits_by_link(&qp) && qp.rc.rnr_until.is_none() {
                    self.retransmit(&mut qp);
                }
                self.schedule(&mut qp);
            }
            self.qps.put_back(id, qp);
        }
        self.copy_policies.retain(|(id, _)| *id != link);
        self.lend_no_more(link);
        for id in self.parked.remove(&link).unwrap_or_default() {
            if let Some(qp) = self.qps.get_mut(id) {
                (qp.parked, qp.queued) = (false, true);
                self.ready.push_back(id);
            }
        }
    }
}

/// True for a requester without a timer: requests that are lost with a link are sent again with the next.
fn retransmits_by_link(qp: &Qp) -> bool {
    matches!(qp.init.qp_type, QpType::Rc | QpType::XrcIni)
        && matches!(qp.state, QpState::Rts | QpState::Sqd)
        && timeout_nanos(qp.attr.timeout).is_none()
}
