//! Polls of a completion queue on the fast path: the polling thread takes short packets of one link.

use ::verbs::{Completion, CqId};
use engine::{Fast, Poller};
use taps::{Tapped, Wire};
use wire::{LinkId, ShortPacket};

use crate::core::{Core, Mode};
use crate::progress::BUDGET;

/// The state of a completion queue at the start of a poll, before the links are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Finds {
    /// The queue has completions.
    Completions,
    /// The queue has no completions, no event is asked for, and the only thing to do is to look for packets, which may
    /// bring some.
    Nothing,
    /// The queue has no completions, and there may be something else to do.
    Work,
}

/// The result of a poll on the fast path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Polled {
    /// No completions, and no packets are left: there were none, or all were taken.
    Nothing,
    /// There are packets, some of which may have been taken, but no completions.
    Packets,
    /// `n` completions.
    Completions {
        n: usize,
        /// True if more completions can be expected for sure.
        more: bool,
    },
}

/// The receiver of completions in a poll that takes packets from this link, and the number of those it got.
struct Taker<'a, O> {
    link: LinkId,
    out: &'a mut O,
    n: usize,
}

impl<W: Wire, O: FnMut(usize, &Completion)> Poller<Tapped<W>> for Taker<'_, O> {
    #[inline(always)]
    fn completed(&mut self, completion: &Completion) {
        (self.out)(self.n, completion);
        self.n += 1;
    }

    #[inline(always)]
    fn taken(&mut self, env: &mut Tapped<W>) {
        env.release_short(self.link);
    }

    #[inline(always)]
    fn next(&mut self, env: &Tapped<W>) -> Option<ShortPacket> {
        env.peek_short(self.link, false)
    }
}

impl Core {
    /// The state of this queue at the start of a poll.
    #[inline(always)]
    pub(crate) fn finds(&self, cq: CqId) -> Finds {
        if !self.engine.hands_over(cq) {
            return if self.engine.cq_is_empty(cq) { Finds::Work } else { Finds::Completions };
        }
        let ordinary = self.mode == Mode::Polled
            && self.polls + 1 < self.full_check_at
            && !self.engine.has_ready()
            && !self.engine.is_parked()
            // Completions that came with an invalidation wait for the copies of peers, which `Guard` waits for.
            && !self.engine.env().is_unquiet()
            && !self.exact_time; // the clock is read for what comes; nor is there any tap
        if ordinary { Finds::Nothing } else { Finds::Work }
    }

    /// The fast path of a poll that found [`Finds::Nothing`]. It takes short packets from the link that is first in
    /// turn, and hands at most `most` completions that they bring to this queue to `out`, with their numbers. It ends
    /// at the first packet that is out of the ordinary.
    ///
    /// One completion (`ONE`), which the next packet mostly brings, has a function of its own: the state of a poll for
    /// several would be written to the stack and read again.
    #[inline(never)]
    pub(crate) fn poll_fast<const ONE: bool, O>(&mut self, cq: CqId, most: usize, out: &mut O) -> Polled
    where
        O: FnMut(usize, &Completion),
    {
        let most = if ONE { 1 } else { most };
        let first = self.round_robin.first(self.engine.env().links().len());
        let Some(&link) = self.engine.env().links().get(first) else { return Polled::Packets };
        let mut taker = Taker { link, out: &mut *out, n: 0 };
        let (mut more, mut taken, mut left) = (false, false, BUDGET as usize);
        while left > 0 {
            // Read in each turn, so that it stays in registers.
            let mut found = self.engine.env().peek_short(link, most == 1);
            if found.is_none() && !taken {
                if !self.engine.env().any_ready() {
                    self.polls += 1;
                    self.engine.count_poll(cq);
                    return Polled::Nothing;
                }
                // The packet may have come between the two looks, as it often does for a program that waits for it.
                found = self.engine.env().peek_short(link, most == 1);
            }
            let Some(short) = found else { break };
            if !taken && (self.clock_uses == 0 || most == 0) {
                return Polled::Packets;
            }
            self.engine.set_prompt(most == 1);
            let before = taker.n;
            let wanted = if most == 1 { 1 } else { (most - before).min(left) };
            let outcome = self.engine.receive_short(link, short, self.clock, (cq, wanted), &mut taker);
            if outcome == Fast::Refused {
                break;
            }
            taken = true;
            more = outcome == Fast::Completed { expects: true };
            left -= (taker.n - before).max(1);
            if taker.n == most {
                break;
            }
        }
        if !taken {
            return Polled::Packets;
        }
        self.use_time();
        let mut n = taker.n;
        if n < most && !self.engine.cq_is_empty(cq) {
            // The queue holds completions that did not come through `out`. A poll that gets fewer than asked for may
            // take the queue for empty (verbs.h).
            n += self.engine.poll(cq, most - n, |i, completion| out(n + i, completion));
            more = false;
        }
        if n == 0 && self.engine.env().any_ready() {
            return Polled::Packets;
        }
        if n > 0 && n < most && self.engine.env().any_ready_but(link) {
            self.round_robin.next_is_anothers();
        }
        self.polls += 1;
        if n == 0 {
            self.engine.count_poll(cq);
            return Polled::Nothing;
        }
        self.round_robin.took(first);
        self.empty_polls = 0;
        Polled::Completions { n, more }
    }
}
