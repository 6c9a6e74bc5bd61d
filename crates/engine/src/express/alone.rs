//! Short packets for who polls for one completion: straight on, with nothing that would be counted or prepared for a next one.

use std::collections::VecDeque;

use verbs::{Completion, CqId, QpId, WcOpcode};

use super::{Body, Poller, Short, the_long_way};
use crate::Engine;
use crate::platform::{Head, LinkId, Nanos, Platform, ShortPacket, packet_flags as flag};
use crate::qp::Qp;
use crate::receive::received;
use crate::region::NULL_ADDR;

impl<P: Platform> Engine<P> {
    /// [`Engine::receive_short`] of a SEND, for who wants one completion: straight on, so that it stays in registers. [`Short::LongWay`]:
    /// [`Engine::receive_short`] is to be asked.
    #[inline(always)]
    pub fn receive_send_alone(
        &mut self,
        link: LinkId,
        short: ShortPacket,
        now: Nanos,
        polled: CqId,
        poller: &mut impl Poller<P>,
    ) -> Short {
        debug_assert!(self.has_express && self.hands_over(polled) && !short.is_ack());
        let Some(id) = self.arrives(link, &short) else { return the_long_way() };
        let Some(qp) = self.qps.get_mut(id).map(Box::as_mut) else { return the_long_way() };
        let len = short.len();
        let fits = qp.takes_sends(link)
            && qp.init.recv_cq == Some(polled)
            && short.src().get() == qp.attr.dest_qp_num
            && short.flags() & !(flag::ACK_REQ | flag::SOLICITED | flag::IMM) == flag::FIRST | flag::LAST
            && short.psn() == qp.epsn
            && len <= qp.mtu
            && short.received() == len;
        let Some(wqe) = qp.rq.wqes.front().filter(|_| fits) else { return the_long_way() };
        let [sge] = &wqe.sges[..] else { return the_long_way() };
        if sge.length < len {
            return the_long_way();
        }
        let Ok(mut span) = self.mem.local_here(qp.init.pd, sge, true) else { return the_long_way() };
        span.len = len;
        if span.addr == NULL_ADDR || !Body::<P::Rx>::Word(short.payload(), len).put(&mut self.platform, &span) {
            return the_long_way();
        }
        let done = received(qp, short, wqe.wr_id, WcOpcode::Recv, len);
        let _sent =
            Self::take_alone(&mut self.platform, (&mut self.ready, self.prompt), qp, short, (done, now), poller);
        let expects = !qp.rq.wqes.is_empty() || qp.expects_sends();
        #[cfg(test)]
        self.count_alone(_sent);
        Short::Completed { expects }
    }

    /// What a SEND means whose payload is where it belongs. True if it was acknowledged.
    #[inline(always)]
    pub(super) fn take_alone(
        platform: &mut P,
        (ready, prompt): (&mut VecDeque<QpId>, bool),
        qp: &mut Qp,
        short: ShortPacket,
        (done, now): (Completion, Nanos),
        poller: &mut impl Poller<P>,
    ) -> bool {
        qp.epsn = short.psn().plus(1);
        qp.msn = qp.msn.wrapping_add(1) & 0xff_ffff;
        // At once, before the completion is made of it: who sends one message after the other waits for this.
        let sent = short.has(flag::ACK_REQ) && Self::answer(platform, ready, prompt, qp, (short.psn(), qp.msn));
        poller.completed(&Completion { timestamp: now, ..done });
        qp.rq.wqes.drop_first();
        qp.rq.held = qp.rq.held.saturating_sub(1);
        qp.fed_at = Some(now);
        qp.nak_sent = false;
        qp.tally.received_bytes(1, u64::from(short.len()));
        qp.handed.receives += 1;
        poller.taken(platform, short);
        sent
    }

    #[cfg(test)]
    pub(super) fn count_alone(&mut self, sent: bool) {
        self.short_ways[1] += 1;
        self.short_ways[3] += u64::from(sent);
    }

    /// [`Engine::receive_short`] of an acknowledgement, for who wants one completion.
    #[inline(always)]
    pub fn receive_ack_alone(
        &mut self,
        link: LinkId,
        short: ShortPacket,
        now: Nanos,
        polled: CqId,
        poller: &mut impl Poller<P>,
    ) -> Short {
        debug_assert!(self.has_express && self.hands_over(polled) && short.is_ack());
        let Some(id) = self.arrives(link, &short) else { return the_long_way() };
        let outcome = self.express_ack_in(id, link, short, now, Some(polled), poller);
        if outcome != Short::LongWay {
            poller.taken(&mut self.platform, short);
        }
        outcome
    }
}
