//! Helping a peer with the straight copies that it makes for our requests.
//!
//! Who waits for a SEND, WRITE or READ by reference has a processor to spare, mostly, and the copy takes long: the target offers a part of
//! it to its initiator. What it offers is its word, and is held against the requests that are under way: only memory that one of them has
//! named, for what that one does with it.

use verbs::{Opcode, QpState};

use crate::Engine;
use crate::platform::{Offer, Platform};
use crate::qp::Qp;

impl<P: Platform> Engine<P> {
    /// True if a peer may be copying for requests of ours, so that [`Engine::help`] is worth a call.
    #[inline]
    pub fn lends(&self) -> bool {
        !self.lenders.is_empty()
    }

    /// This queue pair has a request by reference.
    pub(crate) fn lend(&mut self, qp: &mut Qp) {
        if !std::mem::replace(&mut qp.lender, true) {
            self.lenders.push(qp.id);
        }
    }

    /// Makes a part of what peers copy for our requests.
    pub fn help(&mut self) {
        let mut at = 0;
        while let Some(&id) = self.lenders.get(at) {
            let lends = self.qps.get(id).is_some_and(|qp| qp.inflight.iter().any(|e| e.by_ref && !e.done));
            if !lends {
                self.lenders.swap_remove(at);
                if let Some(qp) = self.qps.get_mut(id) {
                    qp.lender = false;
                }
                continue;
            }
            at += 1;
            if let Some(link) = self.qps.get(id).and_then(|qp| qp.link)
                && let Some(offer) = self.platform.offered(link)
                && self.is_lent(id, &offer)
            {
                self.platform.help(link, &offer);
            }
        }
    }

    /// True if a request that is under way lends the peer this memory, for this.
    fn is_lent(&mut self, id: verbs::QpId, offer: &Offer) -> bool {
        let Some(qp) = self.qps.get(id).filter(|qp| matches!(qp.state, QpState::Rts | QpState::Sqd)) else {
            return false;
        };
        if qp.ticket.name() != offer.ticket {
            return false;
        }
        let mut spans = std::mem::take(&mut self.spans);
        let within = |spans: &[crate::platform::Span]| {
            spans.iter().any(|span| {
                let offset = offer.span.addr.wrapping_sub(span.addr);
                offset.saturating_add(u64::from(offer.span.len)) <= u64::from(span.len)
            })
        };
        let lent = qp.inflight.iter().filter(|e| e.by_ref && !e.done && e.error.is_none()).any(|e| {
            spans.clear();
            (e.opcode == Opcode::RdmaRead) == offer.to_us
                && self.mem.local_spans(qp.init.pd, &e.sges, 0, e.len, offer.to_us, &mut spans).is_ok()
                && within(&spans)
        });
        self.spans = spans;
        lent
    }
}
