//! Polls for one completion, on the short way.

use ::verbs::{Completion, CqId};
use engine::Short;
use engine::platform::ShortPacket;

use crate::core::Core;
use crate::progress::{Polled, Taker};

/// What a poll for one completion found, as [`Polled`]; small, so that it comes back in a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Alone {
    /// [`Polled::Nothing`]
    Nothing,
    /// [`Polled::Packets`]
    Packets,
    /// A completion, and more can be expected for sure.
    One,
    /// A completion.
    Last,
}

impl Alone {
    #[inline(always)]
    fn completed(more: bool) -> Alone {
        if more { Alone::One } else { Alone::Last }
    }
}

impl Core {
    /// [`Core::poll_short`] for who wants one completion, which the next packet mostly brings. Without a loop, and apart: what one prepares
    /// for its next turn, and what others need, would be written to the stack and read again.
    #[inline(never)]
    pub(crate) fn poll_alone(&mut self, cq: CqId, out: &mut impl FnMut(usize, &Completion)) -> Alone {
        let first = self.turns.first(self.engine.platform().links().len());
        let Some(&link) = self.engine.platform().links().get(first) else { return Alone::Packets };
        let mut found = self.engine.platform().peek_short(link, true);
        if found.is_none() {
            if !self.engine.platform().any_ready() {
                self.polls += 1;
                self.engine.count_poll(cq);
                return Alone::Nothing;
            }
            // A third of what comes to a program that waits for it comes between the two looks.
            found = self.engine.platform().peek_short(link, true);
        }
        let Some(short) = found else { return Alone::Packets };
        if self.clock_uses == 0 {
            return Alone::Packets;
        }
        self.engine.set_prompt(true);
        if short.is_ack() {
            return self.poll_ack(cq, first, short, out);
        }
        let now = self.use_time();
        let mut taker = Taker { link, out: &mut *out, n: 0 };
        match self.engine.receive_send_alone(link, short, now, cq, &mut taker) {
            Short::Completed { expects } => self.found(first, expects),
            _ => self.poll_else(cq, first, short, out),
        }
    }

    /// The same of an acknowledgement.
    #[inline(never)]
    fn poll_ack(
        &mut self,
        cq: CqId,
        first: usize,
        short: ShortPacket,
        out: &mut impl FnMut(usize, &Completion),
    ) -> Alone {
        let Some(&link) = self.engine.platform().links().get(first) else { return Alone::Packets };
        let now = self.use_time();
        let outcome = self.engine.receive_ack_alone(link, short, now, cq, &mut Taker { link, out: &mut *out, n: 0 });
        self.came(outcome, cq, first, out)
    }

    /// The same of a SEND that completes elsewhere, or is for none of the short ways.
    #[inline(never)]
    fn poll_else(
        &mut self,
        cq: CqId,
        first: usize,
        short: ShortPacket,
        out: &mut impl FnMut(usize, &Completion),
    ) -> Alone {
        let Some(&link) = self.engine.platform().links().get(first) else { return Alone::Packets };
        let now = self.clock;
        let outcome = self.engine.receive_short(link, short, now, (cq, 1), &mut Taker { link, out: &mut *out, n: 0 });
        self.came(outcome, cq, first, out)
    }

    /// What a packet of the first link has come to.
    #[inline(always)]
    fn came(&mut self, outcome: Short, cq: CqId, first: usize, out: &mut impl FnMut(usize, &Completion)) -> Alone {
        match outcome {
            Short::Completed { expects } => self.found(first, expects),
            Short::Taken => self.poll_on(cq, first, out),
            Short::LongWay => Alone::Packets,
        }
    }

    /// A packet of the first link brought the completion.
    #[inline(always)]
    fn found(&mut self, first: usize, expects: bool) -> Alone {
        self.polls += 1;
        self.turns.took(first);
        self.empty_polls = 0;
        Alone::completed(expects)
    }

    /// Goes on behind a packet of the first link that brought this poll nothing.
    #[inline(never)]
    fn poll_on(&mut self, cq: CqId, first: usize, out: &mut impl FnMut(usize, &Completion)) -> Alone {
        if self.engine.hands_over(cq) {
            // Behind an acknowledgement the answer is mostly there already.
            let link = self.engine.platform().links().get(first).copied();
            if let Some(link) = link
                && self.clock_uses > 0
                && let Some(short) = self.engine.platform().peek_short(link, true)
                && !short.is_ack()
            {
                let (now, mut taker) = (self.clock, Taker { link, out: &mut *out, n: 0 });
                let outcome = self.engine.receive_send_alone(link, short, now, cq, &mut taker);
                if let Short::Completed { expects } = outcome {
                    self.use_time();
                    return self.found(first, expects);
                }
            }
            return match self.poll_short(cq, 1, out) {
                Polled::Packets => Alone::Packets,
                Polled::Completions { n: 1.., more } => Alone::completed(more),
                Polled::Nothing | Polled::Completions { .. } => Alone::Nothing,
            };
        }
        // Not handed over, but put in.
        let n = self.engine.poll(cq, 1, out);
        self.polls += 1;
        self.turns.took(first);
        self.empty_polls = 0;
        if n > 0 { Alone::Last } else { Alone::Nothing }
    }
}
