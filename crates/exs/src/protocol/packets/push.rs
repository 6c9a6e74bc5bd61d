//! Data that the sender WRITEs because the recipient asks for them: PUSH and PUSHED.
//!
//! A device may make the copy of a READ in the thread that posts it, and that of a WRITE too. So while the recipient
//! READs some packets, the sender WRITEs others, and both processors copy. The recipient decides: it asks only for a
//! long packet that has a receive, while it READs another one itself.

use std::collections::VecDeque;

use super::{Flight, Op, Outcome, Output, Packets, Remote, Reset};
use crate::protocol::table::Buffer;
use crate::protocol::wire::Message;

/// From so many bytes on the peer may be asked to WRITE. The peer may also have so many bytes more to WRITE than this
/// end has to READ, so that it need not wait for the next PUSH.
const LARGE: u64 = 64 << 10;

/// Long packets that have come to an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LongPackets {
    /// How many.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many of them the peer has WRITTEN.
    pub pushed: u64,
}

/// WRITEs that an end asks for, and those that it is asked for.
#[derive(Debug, Default)]
pub(in crate::protocol) struct Pushes {
    /// Both ends take PUSH.
    allowed: bool,
    /// [`LARGE`].
    pub(super) large: u64,
    /// What the peer is to WRITE, and its bytes.
    pub(super) asked: VecDeque<(Flight, Buffer)>,
    bytes: u64,
    /// See [`super::super::Connection::ask_for_pushes`].
    asks: bool,
    /// See [`super::super::Connection::long_packets`].
    moved: LongPackets,
    /// Sends whose WRITE is not completed.
    pub(super) writes: VecDeque<Op>,
}

impl Pushes {
    pub fn new(allowed: bool) -> Pushes {
        Pushes { allowed, large: LARGE, asks: allowed, ..Pushes::default() }
    }

    /// True if the peer is to be asked for the next packet. `reading`: bytes that this end READs meanwhile.
    pub(super) fn asks(&self, len: u64, reading: u64) -> bool {
        self.asks && len >= self.large && reading > 0 && self.bytes + len <= reading + self.large
    }

    /// A packet has landed.
    pub(super) fn landed(&mut self, len: u64) {
        if len >= self.large {
            self.moved.count += 1;
            self.moved.bytes += len;
        }
    }
}

impl Packets {
    /// Ask the peer for the data of an advertisement.
    pub(super) fn ask(&mut self, seq: u32, op: Op, to: Buffer) {
        self.push.asked.push_back((Flight { seq, op, len: to.len }, to));
        self.push.bytes += to.len;
        // Bounded by MAX_LEN.
        let push = Message::Push { seq, addr: 0, rkey: 0, len: to.len as u32 };
        // The peer copies while this end READs.
        let at = self.outputs.iter().position(|output| matches!(output, Output::Read(_)));
        self.outputs.insert(at.unwrap_or(self.outputs.len()), Output::Send(push, Some(to)));
    }

    /// See [`super::super::Connection::places_of_pushes`].
    pub fn places_of_pushes(&self) -> impl Iterator<Item = Buffer> {
        self.push.asked.iter().map(|(_, to)| *to)
    }

    /// See [`super::super::Connection::ask_for_pushes`].
    pub fn ask_for_pushes(&mut self, asks: bool) {
        self.push.asks = asks && self.push.allowed;
    }

    /// See [`super::super::Connection::long_packets`].
    pub fn long_packets(&self) -> LongPackets {
        self.push.moved
    }

    /// The peer says that its WRITE is done.
    pub(super) fn pushed(&mut self, seq: u32) -> Result<(), Reset> {
        let (flight, _) = self.push.asked.pop_front_if(|(flight, _)| flight.seq == seq).ok_or(Reset::Protocol)?;
        self.push.bytes -= flight.len;
        self.push.moved.pushed += 1;
        self.land(flight.op, flight.seq, flight.len);
        self.settle();
        self.transfer();
        Ok(())
    }

    /// WRITE the data of a send to the peer, which asks for them.
    pub(super) fn push(&mut self, seq: u32, to: Remote, len: u32) -> Result<(), Reset> {
        let at = self.outstanding(seq).filter(|_| self.push.allowed).ok_or(Reset::Protocol)?;
        let send = &mut self.sends[at];
        let inside = len > 0 && u64::from(len) <= send.buffer.len && to.addr.checked_add(len.into()).is_some();
        if !inside || send.small || send.persistent || send.pushed || send.ended {
            return Err(Reset::Protocol);
        }
        (send.pushed, send.writing) = (true, true);
        let (op, from) = (send.op, send.buffer.part(0, len.into()));
        self.push.writes.push_back(op);
        // A WRITE waits for no other WRITE, but for the answer to a message.
        let is_last = |output: &&Output| matches!(output, Output::End(Message::Pushed { .. }, _));
        let told = self.outputs.iter().rev().take_while(is_last).count();
        self.outputs.insert(self.outputs.len() - told, Output::Push { from, to });
        self.outputs.push_back(Output::End(Message::Pushed { seq }, to.rkey));
        Ok(())
    }

    /// The oldest WRITE is completed.
    pub fn write_done(&mut self) {
        let op = self.push.writes.pop_front();
        self.written(op);
    }

    /// The newest WRITE that was handed out was not posted.
    pub fn write_dropped(&mut self) {
        let op = self.push.writes.pop_back();
        self.written(op);
    }

    /// The WRITE of this send is not under way any more.
    fn written(&mut self, op: Option<Op>) {
        if let Some(op) = op
            && let Some(send) = self.sends.iter_mut().find(|send| send.op == op)
        {
            send.writing = false;
            if self.dead.is_some() { self.fail_sends() } else { self.end_sends() }
        }
    }

    /// After a reset: the peer WRITEs nothing more, and no WRITE is made that the caller has not seen.
    pub(super) fn forget_pushes(&mut self) {
        self.push.asked.clear();
        let unseen = self.outputs.iter().filter(|output| matches!(output, Output::Push { .. })).count();
        for op in self.push.writes.drain(self.push.writes.len() - unseen..) {
            if let Some(send) = self.sends.iter_mut().find(|send| send.op == op) {
                send.writing = false;
            }
        }
    }

    /// After a reset: sends end in order, behind their WRITEs.
    pub(super) fn fail_sends(&mut self) {
        let Some(why) = self.dead else { return };
        while let Some(send) = self.sends.pop_front_if(|send| !send.writing) {
            self.done(send.op, Outcome::Failed(why));
        }
    }
}

#[cfg(test)]
#[path = "push_tests.rs"]
mod tests;
