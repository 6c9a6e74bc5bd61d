//! What the next SEND will be if all goes on as it has, and where it will go: worked out while a poll has nothing else to do, so that whoever
//! waits for an answer compares two words of it when it is there, and need not ask one by one what makes it the expected one.

use verbs::{Completion, CqId, QpId, WcFlags, WcOpcode};

use super::{Body, Poller, Short, the_long_way};
use crate::Engine;
use crate::platform::{Head, LinkId, Nanos, Platform, ShortPacket, Span};
use crate::receive::received;
use crate::region::NULL_ADDR;

/// Nothing has been worked out since that was forgotten. No short packet's first word, whatever a peer writes: its operation is none of theirs.
const FORGOTTEN: u64 = 1;
/// Nothing can be told. No short packet's first word either.
const VAIN: u64 = 2;

// The other fields are left as they are when it is forgotten, so nothing else tells.
const _: () = assert!(!ShortPacket::is_short(FORGOTTEN) && !ShortPacket::is_short(VAIN));

/// The next SEND to a queue pair, and its receive. It holds for as long as nothing is done to the adapter but to acknowledge requests and
/// to post receives behind others; whatever else is done forgets it ([`Engine::forget`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Foresight {
    /// See [`ShortPacket::is_send`]; or [`FORGOTTEN`], or [`VAIN`].
    words: [u64; 2],
    link: LinkId,
    cq: CqId,
    qp: QpId,
    /// So many bytes fit, here.
    most: u32,
    addr: u64,
    wr_id: u64,
}

impl Foresight {
    pub(crate) const NONE: Foresight = Foresight {
        words: [FORGOTTEN, 0],
        link: LinkId::LOOPBACK,
        cq: CqId { index: 0, generation: 0 },
        qp: QpId { index: 0, generation: 0 },
        most: 0,
        addr: 0,
        wr_id: 0,
    };

    /// It does not hold any more.
    #[inline(always)]
    pub(super) fn forget(&mut self) {
        self.words[0] = FORGOTTEN;
    }
}

impl<P: Platform> Engine<P> {
    /// What was worked out does not hold any more.
    #[inline(always)]
    pub fn forget(&mut self) {
        self.foresight.forget();
    }

    /// True if [`Engine::foresee`] has not been asked since the last [`Engine::forget`].
    #[inline(always)]
    pub fn may_foresee(&self) -> bool {
        self.foresight.words[0] == FORGOTTEN
    }

    /// True if something can be told about the next SEND.
    pub fn foresees(&self) -> bool {
        self.foresight.words[0] > VAIN
    }

    /// Works out what the next SEND to the queue pair will be that took the last one for who polls for one completion.
    #[inline(never)]
    pub fn foresee(&mut self) {
        match self.next_send() {
            Some(foresight) => self.foresight = foresight,
            None => self.foresight.words[0] = VAIN,
        }
    }

    fn next_send(&mut self) -> Option<Foresight> {
        let id = self.took;
        let qp = self.qps.get_mut(id).map(Box::as_mut)?;
        let (link, cq) = (qp.gate_of_sends()?, qp.init.recv_cq?);
        let wqe = qp.rq.wqes.front()?;
        let [sge] = &wqe.sges[..] else { return None };
        let span = self.mem.local_here(qp.init.pd, sge, true).ok()?;
        (span.addr != NULL_ADDR && !span.guarded).then_some(Foresight {
            words: ShortPacket::send(qp.qpn, qp.attr.dest_qp_num, qp.epsn),
            link,
            cq,
            qp: id,
            most: sge.length.min(qp.mtu),
            addr: span.addr,
            wr_id: wqe.wr_id,
        })
    }

    /// [`Engine::receive_send_alone`] of the SEND that was foreseen. [`Short::LongWay`]: it is another.
    #[inline(always)]
    pub fn receive_foreseen(
        &mut self,
        link: LinkId,
        short: ShortPacket,
        now: Nanos,
        polled: CqId,
        poller: &mut impl Poller<P>,
    ) -> Short {
        let Foresight { words, link: from, cq, qp: id, most, addr, wr_id } = self.foresight;
        let len = short.len();
        if !(short.is_send(words) && link == from && polled == cq && len <= most && short.received() == len) {
            return the_long_way();
        }
        debug_assert_eq!(self.next_send(), Some(self.foresight));
        let Some(qp) = self.qps.get_mut(id).map(Box::as_mut) else { return the_long_way() };
        let span = Span { addr, len, guarded: false };
        if !(qp.takes_sends(link) && Body::<P::Rx>::Word(short.payload(), len).put(&mut self.platform, &span)) {
            return the_long_way();
        }
        // Nothing but what it says that it is, so no immediate value.
        let done = Completion { flags: WcFlags::empty(), ..received(qp, short, wr_id, WcOpcode::Recv, len) };
        self.foresight.forget();
        let _sent =
            Self::take_alone(&mut self.platform, (&mut self.ready, self.prompt), qp, short, (done, now), poller);
        let expects = !qp.rq.wqes.is_empty() || qp.expects_sends();
        #[cfg(test)]
        {
            self.count_alone(_sent);
            self.foreseen += 1;
        }
        Short::Completed { expects }
    }
}
