//! What the window wire does for processes of one host beside packets: single copies, cooperative copies, export
//! tables.

use memory::{co_copy, local};
use verbs::RKey;
use wire::{
    Export, ExportId, LinkId, Nanos, Offer, OneSided, OneSidedDone, OneSidedOp, PacketWire, SameHost, SingleCopyError,
    Span, TicketRef,
};

use super::WindowEnv;
use crate::export_table::coarse_time;
use crate::link::{Link, Remote};
use crate::quiet::Offence;

impl WindowEnv {
    /// Looks for peers that were to help with a copy of ours, were given up, and may still come to their parts.
    pub(crate) fn wait_for_late_writers_of_links(&mut self) {
        let mut with_late_writers = Vec::new();
        for at in 0..self.live.len() {
            let id = self.live[at];
            if self.link_mut(id).is_some_and(Link::has_late_writer) {
                with_late_writers.push(id);
            }
        }
        if with_late_writers.is_empty() {
            return;
        }
        self.quiesce_those(|_, id| with_late_writers.contains(&id));
        for id in with_late_writers {
            // A follower copies only while it is marked. One that is not has come to its end, whether it says so or
            // not.
            if let Some(link) = self.link_mut(id).filter(|link| link.copied_by_peer().is_none()) {
                link.leader.forget_late_writer();
            }
        }
    }

    /// A single copy has failed: a follower that did not come to its end is not asked again, over whichever link.
    fn follower_failed(&mut self, id: LinkId) {
        if self.link(id).is_some_and(|link| link.leader.has_given_up()) {
            self.remember(id, Offence::Follower);
        }
    }

    /// Rings the peers that are to be rung before a long copy: they must not wait for it.
    fn ring_before(&mut self, spans: &[Span]) {
        if spans.iter().any(|span| span.len >= co_copy::SHORTEST) {
            self.ring_doorbells();
        }
    }

    pub(crate) fn single_copy_done(&mut self, spans: &[Span]) {
        self.stats.single_copy_bytes += spans.iter().map(|s| u64::from(s.len)).sum::<u64>();
    }
}

impl SameHost for WindowEnv {
    fn is_same_host(&self, _link: LinkId) -> bool {
        true
    }

    fn peers_map(&self, span: &Span) -> bool {
        self.is_shared(span)
    }

    fn publish(&mut self, exported: &Export) {
        self.publish_row(exported);
    }

    fn retract(&mut self, id: ExportId) {
        self.retract_row(id);
    }

    #[inline]
    fn one_sided(&mut self, link: LinkId, request: &OneSided<'_>) -> Option<OneSidedDone> {
        self.execute(link, request)
    }

    fn one_sided_together(&mut self, link: LinkId, requests: &[OneSided<'_>]) -> Option<(u64, usize)> {
        self.execute_together(link, requests)
    }

    fn one_sided_here(&mut self, op: OneSidedOp, ours: &[Span], theirs: Span) -> Option<u64> {
        match op {
            OneSidedOp::Write => local::copy(ours, &[theirs]).ok()?,
            OneSidedOp::Read => local::copy(&[theirs], ours).ok()?,
            OneSidedOp::Atomic(op) => return local::atomic(theirs.addr, theirs.guarded, op).ok(),
        }
        Some(0)
    }

    #[inline]
    fn delivers_here(&self) -> bool {
        true
    }

    #[inline]
    fn may_follow(&self, link: LinkId, mark: u64, queues: bool) -> bool {
        // Of a stream the peer does its part. Asking what it has taken would fetch a cache line that it writes to all
        // the time.
        let streams = |link: &Link| link.streams_until != 0 && coarse_time() <= link.streams_until;
        !(queues && self.link(link).is_some_and(streams)) && self.taken(link, mark)
    }

    fn maps_peer(&mut self, link: LinkId) -> bool {
        self.link_mut(link).and_then(|link| link.remote.as_mut()).is_some_and(Remote::shares)
    }

    fn shares(&mut self, link: LinkId, rkey: RKey, addr: u64, len: u32) -> bool {
        self.region_is_shared(link, rkey, addr, len)
    }

    fn answered(&mut self, link: LinkId, len: u32, took: Nanos, refused: bool) {
        self.was_answered(link, len, took, refused);
    }

    fn pull(&mut self, id: LinkId, ticket: TicketRef, remote: &[Span], local: &[Span]) -> Result<(), SingleCopyError> {
        if id == LinkId::LOOPBACK {
            own_ticket(ticket)?;
            let side = |source| {
                if source { SingleCopyError::Remote } else { SingleCopyError::Local }
            };
            local::copy(remote, local).map_err(side)?;
        } else {
            self.ring_before(local);
            self.hear_table(id);
            let link = self.link_mut(id).ok_or(SingleCopyError::Denied)?;
            let copied = link.pull_single_copy(ticket, remote, local);
            copied.inspect_err(|_| self.follower_failed(id))?;
        }
        self.single_copy_done(local);
        Ok(())
    }

    fn push(&mut self, id: LinkId, ticket: TicketRef, local: &[Span], remote: &[Span]) -> Result<(), SingleCopyError> {
        if id == LinkId::LOOPBACK {
            own_ticket(ticket)?;
            let side = |source| {
                if source { SingleCopyError::Local } else { SingleCopyError::Remote }
            };
            local::copy(local, remote).map_err(side)?;
        } else {
            self.ring_before(local);
            self.hear_table(id);
            let link = self.link_mut(id).ok_or(SingleCopyError::Denied)?;
            let copied = link.push_single_copy(ticket, local, remote);
            copied.inspect_err(|_| self.follower_failed(id))?;
        }
        self.single_copy_done(local);
        Ok(())
    }

    fn offered(&self, link: LinkId) -> Option<Offer> {
        let terms = self.link(link)?.offered()?.terms;
        let span = Span { addr: terms.followers, len: terms.len, guarded: true };
        Some(Offer { ticket: terms.ticket, span, to_us: terms.to_follower })
    }

    fn co_copy(&mut self, link: LinkId, offer: &Offer) {
        let Some(link) = self.link_mut(link) else { return };
        // Read once more, and once only: what was agreed to is what is helped with.
        if let Some(copy) = link.offered()
            && let terms = copy.terms
            && terms.ticket == offer.ticket
            && (terms.followers, terms.len, terms.to_follower) == (offer.span.addr, offer.span.len, offer.to_us)
        {
            let bytes = link.co_copy(&copy);
            self.stats.co_copied_bytes += bytes;
        }
    }

    fn has_late_writer(&mut self, link: LinkId) -> bool {
        self.link_mut(link).is_some_and(Link::has_late_writer)
    }

    fn wait_for_late_writers(&mut self) {
        self.wait_for_late_writers_of_links();
    }

    fn quiesce(&mut self, link: Option<LinkId>) {
        // Copies of our own, over the loopback link, are over: the caller holds the lock under which they are made.
        self.quiesce_those(|env, id| link.is_none_or(|link| env.same_peer(link, id)));
    }
}

/// A look at a ticket in our own memory; guarded, because its address comes from a ring, and rings are not trusted.
fn own_ticket(ticket: TicketRef) -> Result<(), SingleCopyError> {
    let mut word = [0u8; 8];
    local::load(ticket.addr, true, &mut word).map_err(|_| SingleCopyError::Remote)?;
    if u64::from_ne_bytes(word) == ticket.value { Ok(()) } else { Err(SingleCopyError::Void) }
}
