//! Advertisements that the program wants back: WITHDRAW and its answer.

use super::{Incoming, Outcome, Output, Packets, Reset, Source};
use crate::protocol::wire::Message;

impl Packets {
    /// Ask for the first advertisement that the program wants back, unless one is asked for.
    pub(super) fn withdraw(&mut self) {
        if let (false, Some(seq)) = (self.asked, self.withdrawals.front()) {
            self.outputs.push_back(Output::Send(Message::Withdraw { seq: *seq }, None));
            self.asked = true;
        }
    }

    pub(super) fn given_back(&mut self, seq: u32, dropped: bool) -> Result<(), Reset> {
        if !self.asked || self.withdrawals.front() != Some(&seq) {
            return Err(Reset::Protocol);
        }
        self.asked = false;
        self.withdrawals.pop_front();
        if dropped {
            let at = self.outstanding(seq).ok_or(Reset::Protocol)?;
            self.unacked.retain(|unacked| *unacked != seq);
            self.advertised -= 1;
            if let Some(send) = self.sends.remove(at) {
                self.done(send.op, Outcome::Cancelled);
            }
            self.end_sends();
            self.advertise();
        }
        self.withdraw();
        Ok(())
    }

    /// The peer wants an advertisement back: it is dropped if nothing of it is taken.
    pub(super) fn asked_back(&mut self, seq: u32) -> Result<(), Reset> {
        // The peer asks once at a time, so it has had the answer to its last question.
        let answers = self.outputs.iter().any(|output| matches!(output, Output::Send(Message::Withdrawn { .. }, _)));
        if answers || self.leaving.is_some() {
            return Err(Reset::Protocol);
        }
        let free = |incoming: &Incoming| {
            incoming.seq == seq && !incoming.closed && (incoming.persistent || incoming.assigned == 0)
        };
        let Some(at) = self.incoming.iter().position(free) else {
            self.outputs.push_back(Output::Send(Message::Withdrawn { seq, dropped: false }, None));
            return Ok(());
        };
        self.incoming[at].closed = true;
        self.leaving = Some(seq);
        self.transfer();
        Ok(())
    }

    /// Answer a WITHDRAW when no READ of its advertisement is under way.
    pub(super) fn leave(&mut self) {
        let Some(seq) = self.leaving else { return };
        let Some(at) = self.incoming.iter().position(|incoming| incoming.seq == seq) else { return };
        if self.incoming[at].landed < self.incoming[at].assigned {
            return;
        }
        if let Some(Incoming { from: Source::Slot(slot), .. }) = self.incoming.remove(at) {
            self.outputs.push_back(Output::Free { slot });
        }
        self.leaving = None;
        self.outputs.push_back(Output::Send(Message::Withdrawn { seq, dropped: true }, None));
    }
}
