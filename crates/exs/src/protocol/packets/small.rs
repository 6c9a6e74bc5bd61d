//! Small data: the ends of their sends, the credits of several in one ACK, and what is left at the end of a connection.

use super::{Fin, Incoming, Op, Outcome, Output, Packets, Receive, Refused, Reset, Source};
use crate::protocol::table::{Buffer, Taken};
use crate::protocol::wire::Message;

impl Packets {
    /// See [`super::super::Connection::small_done`].
    pub fn small_done(&mut self, op: Op) {
        if let Some(send) = self.sends.iter_mut().find(|send| send.op == op) {
            send.ended = true;
            self.end_sends();
        }
    }

    /// See [`super::super::Connection::send_at_once`].
    #[inline(always)]
    pub fn send_at_once(&mut self, len: u64) -> Option<Message> {
        let open = self.fin == Fin::No && self.dead.is_none() && self.unacked.len() < usize::from(self.theirs.credits);
        if !open || len > self.small() || !self.sends.is_empty() || !self.outputs.is_empty() {
            return None;
        }
        let seq = self.next_seq;
        self.unacked.push_back(seq);
        self.next_seq = seq.wrapping_add(1);
        // Bounded by `small`.
        Some(Message::Small { seq, len: len as u32 })
    }

    /// See [`super::super::Connection::take_at_once`].
    #[inline(always)]
    pub fn take_at_once(&mut self, seq: u32, len: u32) -> Option<Taken> {
        let idle = self.dead.is_none() && !self.peer_fin && self.leaving.is_none() && self.outputs.is_empty();
        if !idle || seq != self.expected || len > self.ours.small || !self.incoming.is_empty() {
            return None;
        }
        let &Receive { op, buffer, closed: false, .. } = self.receives.front()? else { return None };
        self.receives.pop_front();
        self.expected = seq.wrapping_add(1);
        (self.owed, self.owed_count) = (Some(seq), self.owed_count + 1);
        if self.is_due() {
            self.give_back(None);
        }
        let sent = u64::from(len);
        let to = buffer.part(0, sent.min(buffer.len));
        Some(Taken { op, to, truncated: to.len < sent })
    }

    /// Half of the credits that the peer uses.
    fn half(&self) -> usize {
        usize::from(self.ours.credits.min(self.theirs.credits)) / 2
    }

    /// True if credits are to be given back: one more than [`Packets::give_back_behind`] waits for, or when the peer
    /// can have no other left.
    pub(super) fn is_due(&self) -> bool {
        let credits = usize::from(self.ours.credits.min(self.theirs.credits));
        let owed = usize::from(self.owed_count);
        owed > self.half() + 1 || owed > 0 && owed + self.incoming.len() >= credits
    }

    /// Give back more than half of the credits, behind a message of this end. In front of it they would delay it, and
    /// it is mostly the answer to what has come. True: there is something to do.
    #[inline(always)]
    pub fn give_back_behind(&mut self) -> bool {
        let gives = usize::from(self.owed_count) > self.half();
        if gives {
            self.give_back(None);
        }
        gives
    }

    /// Give back the credits of all that is consumed. The key of the last one is needed no more.
    pub(super) fn give_back(&mut self, key: Option<u32>) {
        if let Some(seq) = self.owed.take() {
            self.owed_count = 0;
            // One that waits for room is taken in by this one.
            let is_ack = |output: &Output| {
                matches!(output, Output::Send(Message::Ack { .. }, _) | Output::End(Message::Ack { .. }, _))
            };
            self.outputs.retain(|output| !is_ack(output));
            let ack = Message::Ack { seq };
            self.outputs.push_back(key.map_or(Output::Send(ack, None), |key| Output::End(ack, key)));
        }
    }

    /// End sends whose data the peer has, in order.
    pub(super) fn end_sends(&mut self) {
        while let Some(send) = self.sends.pop_front_if(|send| send.ended) {
            self.advertised -= 1;
            if let Some(seq) = send.seq.filter(|_| !self.withdrawals.is_empty()) {
                // A WITHDRAW that is under way will be answered; one that is not is needless now.
                let first = self.asked.then(|| self.withdrawals.front().copied()).flatten();
                self.withdrawals.retain(|withdrawn| *withdrawn != seq || Some(*withdrawn) == first);
            }
            self.done(send.op, Outcome::Sent);
        }
    }

    /// A receive after the end of the connection: data in slots, or the end of the data.
    pub(super) fn receive_late(&mut self, op: Op, buffer: Buffer) -> Result<(), Refused> {
        let (slot, sent) = match self.incoming.front() {
            None if self.peer_fin => {
                self.done(op, Outcome::Received { len: 0, truncated: false, end: true });
                return Ok(());
            }
            Some(&Incoming { from: Source::Slot(slot), len, .. }) => (slot, len),
            _ => return Err(Refused::Gone),
        };
        self.incoming.pop_front();
        let len = sent.min(buffer.len);
        if len > 0 {
            self.outputs.push_back(Output::Copy { slot, to: buffer.part(0, len) });
        }
        self.done(op, Outcome::Received { len, truncated: len < sent, end: false });
        Ok(())
    }

    /// The connection has ended. After the peer's last message the packets in slots are still received.
    pub(super) fn keep_packets(&mut self, why: Reset) {
        let goes_on = self.peer_fin && why == Reset::Peer && self.flights.is_empty();
        self.incoming.retain(|incoming| !incoming.closed);
        if !goes_on && !self.incoming.is_empty() {
            self.incoming.clear();
            self.peer_fin = false;
        }
    }
}

#[cfg(test)]
#[path = "small_tests.rs"]
mod tests;
