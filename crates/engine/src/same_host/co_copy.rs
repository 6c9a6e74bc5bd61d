//! Helping a peer with the single copies that it makes for our requests.
//!
//! A program that waits for a SEND, WRITE or READ by reference mostly has a processor to spare, and the copy takes
//! long: the target offers a part of it to its initiator. The offer is only the target's claim, and is checked against
//! the requests under way. It must name memory that one of them has named, for the operation of that request.

use verbs::{Opcode, QpId, QpState};
use wire::{Env, LinkId, Offer, Span};

use crate::Engine;
use crate::qp::Qp;
use crate::region::NULL_ADDR;

/// Bytes of a list that names one piece of memory, see [`wire::packet_flags::BY_REF`]: only such lists are offered.
pub(crate) const LIST_OF_ONE: usize = 32;
/// After so many looks in vain, in a row, a poll looks for offers as seldom as for other things.
const IN_VAIN: u32 = 1024;

/// Requests by reference with copies that this process may help with.
#[derive(Default)]
pub(crate) struct Lenders {
    /// Queue pairs with such requests; some perhaps have none any more.
    qps: Vec<QpId>,
    /// The links that the requests went over.
    links: Vec<LinkId>,
    /// Place of the queue pair that is checked next for requests of this kind.
    turn: usize,
    /// Looks in vain.
    in_vain: u32,
}

impl<P: Env> Engine<P> {
    /// True if a peer may be copying for requests of ours, so that [`Engine::co_copy`] is worth a call.
    #[inline]
    pub fn lends(&self) -> bool {
        !self.lent.qps.is_empty()
    }

    /// True if [`Engine::co_copy`] is worth a call at every poll.
    #[inline]
    pub fn expects_offers(&self) -> bool {
        self.lends() && self.lent.in_vain < IN_VAIN
    }

    /// Notes a request by reference that this queue pair has sent over this link.
    pub(crate) fn lend(&mut self, qp: &mut Qp, link: LinkId) {
        if link == LinkId::LOOPBACK {
            return;
        }
        self.lent.in_vain = 0;
        if !self.lent.links.contains(&link) {
            self.lent.links.push(link);
        }
        if !std::mem::replace(&mut qp.same_host.lender, true) {
            self.lent.qps.push(qp.id);
        }
    }

    /// Forgets a link that is gone.
    pub(crate) fn lend_no_more(&mut self, link: LinkId) {
        self.lent.links.retain(|id| *id != link);
    }

    /// Makes a part of what peers copy for our requests.
    pub fn co_copy(&mut self) {
        self.forget_one();
        self.lent.in_vain = self.lent.in_vain.saturating_add(1);
        for at in 0..self.lent.links.len() {
            let link = self.lent.links[at];
            let Some(offer) = self.env.offered(link) else { continue };
            let named = |id: &QpId| self.qps.get(*id).is_some_and(|qp| qp.same_host.ticket.name() == offer.ticket);
            if let Some(whose) = self.lent.qps.iter().position(named)
                && self.is_lent(self.lent.qps[whose], link, &offer)
            {
                // The next offer is mostly for the same queue pair.
                self.lent.qps.swap(0, whose);
                self.env.co_copy(link, &offer);
                self.lent.in_vain = 0;
            }
        }
    }

    /// Removes one of the queue pairs, each in its turn, if it has no requests by reference any more.
    fn forget_one(&mut self) {
        self.lent.turn = if self.lent.turn + 1 < self.lent.qps.len() { self.lent.turn + 1 } else { 0 };
        let Some(&id) = self.lent.qps.get(self.lent.turn) else { return };
        let lends = |qp: &Qp| {
            !qp.same_host.no_single_copy && qp.rc.rnr_until.is_none() && qp.inflight.iter().any(|e| e.by_ref && !e.done)
        };
        if self.qps.get(id).is_some_and(lends) {
            return;
        }
        self.lent.qps.swap_remove(self.lent.turn);
        if let Some(qp) = self.qps.get_mut(id) {
            qp.same_host.lender = false;
        }
        if self.lent.qps.is_empty() {
            self.lent.links.clear();
        }
    }

    /// True if a request that is under way on this link lends the peer this memory, for this direction.
    fn is_lent(&mut self, id: QpId, link: LinkId, offer: &Offer) -> bool {
        let Some(qp) = self.qps.get(id) else { return false };
        if qp.link != Some(link) || !matches!(qp.state, QpState::Rts | QpState::Sqd) {
            return false;
        }
        let within = |span: &Span| {
            let offset = offer.span.addr.wrapping_sub(span.addr);
            span.addr != NULL_ADDR && offset.saturating_add(u64::from(offer.span.len)) <= u64::from(span.len)
        };
        let mut spans = std::mem::take(&mut self.spans);
        let lent = qp.inflight.iter().filter(|e| e.by_ref && !e.done && e.error.is_none()).any(|e| {
            spans.clear();
            (e.opcode == Opcode::RdmaRead) == offer.to_us
                && self.mem.local_spans(qp.init.pd, &e.sges, 0, e.len, offer.to_us, &mut spans).is_ok()
                && spans.iter().any(within)
        });
        self.spans = spans;
        lent
    }
}
