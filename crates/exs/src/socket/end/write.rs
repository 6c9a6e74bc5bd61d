//! The transfers: WRITEs of a stream, and READs.
//!
//! While the completion of an earlier WRITE is to come, those behind it wait for each other, as the words about them do
//! ([`super::word`]), and are posted as one list: a device may execute it by one copy.

use rdma::{Data, SendOp, SendWr, Sge};

use super::{End, LATER, NO_SLOT, READ, WRITE};
use crate::protocol::{Immediate, Message, Read, Remote, Reset, TOGETHER, Write};

/// Up to so many bytes, a READ of a list completes with those behind it: the first receives end when the last does.
const FEW_BYTES: u32 = 64 << 10;

/// A WRITE or READ that waits.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    pub remote: Remote,
    pub local: Sge,
}

impl End {
    /// WRITE, and tell the peer, at once or later.
    pub(super) fn write(&mut self, write: Write) -> rdma::Result<()> {
        let Write { from, to, imm, ends, late } = write;
        let Some(sge) = self.sge(from) else { return Ok(()) };
        self.send_row()?;
        let slowly = !Immediate::parse(imm).direct && !self.asks && (self.imm_into_ring || !late);
        if from.len < self.imm_below || slowly {
            // The peer hears of transfers in their order.
            self.tell()?;
            let op = SendOp::WriteImm { addr: to.addr, rkey: to.rkey, imm };
            self.words.wrote();
            return self.post(WRITE | NO_SLOT, op, Data::Sges(&[sge])).inspect_err(|_| self.words.dropped(1));
        }
        let op = SendOp::Write { addr: to.addr, rkey: to.rkey };
        if self.words.awaits() && self.peer_looks() {
            self.writes.push(Waiting { remote: to, local: sge });
        } else {
            // Sends end in the order of their WRITEs.
            self.post_writes()?;
            // The request that tells the peer of it may complete behind it.
            let later = if self.words.awaits() { LATER } else { 0 };
            debug_assert!(self.writes.is_empty(), "the event of a send would come before its WRITE");
            self.words.wrote();
            self.post(WRITE | NO_SLOT | later, op, Data::Sges(&[sge])).inspect_err(|_| self.words.dropped(1))?;
        }
        // Bounded by MAX_LEN.
        let len = from.len as u32;
        let due = self.words.hold(Message::Data { imm, len }, len, ends.then_some(to.rkey), self.writes.len());
        if (due || self.asks) && self.tell().is_err() {
            // The WRITE is posted, and ends by its completion, or waits.
            self.reset(Reset::Peer);
        }
        Ok(())
    }

    /// READ, with others that are handed out at once.
    pub(super) fn read(&mut self, Read { from, to }: Read) -> rdma::Result<()> {
        if !self.serves(to) {
            if let Some(protocol) = &mut self.protocol {
                protocol.transfers_done(1);
            }
            return Ok(());
        }
        let Some(local) = self.sge(to) else { return Ok(()) };
        self.reads.push(Waiting { remote: from, local });
        if self.reads.len() == TOGETHER { self.post_reads() } else { Ok(()) }
    }

    /// Post the WRITEs that wait. Their words are behind them, and complete.
    pub(super) fn post_writes(&mut self) -> rdma::Result<()> {
        let mut writes = std::mem::take(&mut self.writes);
        let posted = self.post_waiting(&mut writes, false);
        self.writes = writes;
        posted
    }

    /// Post the READs that were handed out.
    pub(super) fn post_reads(&mut self) -> rdma::Result<()> {
        let mut reads = std::mem::take(&mut self.reads);
        let posted = self.post_waiting(&mut reads, true);
        self.reads = reads;
        posted
    }

    /// Post these by one list. Those that are not posted stay.
    fn post_waiting(&mut self, waiting: &mut Vec<Waiting>, reads: bool) -> rdma::Result<()> {
        let count = waiting.len().min(TOGETHER);
        if count == 0 {
            return Ok(());
        }
        let sges: [[Sge; 1]; TOGETHER] = std::array::from_fn(|at| [waiting[at.min(count - 1)].local]);
        let mut wrs = [SendWr::new(0, SendOp::Send, Data::Sges(&[])); TOGETHER];
        for at in 0..count {
            let Remote { addr, rkey } = waiting[at].remote;
            let (kind, op) =
                if reads { (READ, SendOp::Read { addr, rkey }) } else { (WRITE, SendOp::Write { addr, rkey }) };
            // The last READ, or the request that tells the peer of the WRITEs, completes behind them.
            let completes = reads && (at + 1 == count || sges[at][0].length() > FEW_BYTES);
            self.words.wrote();
            let (wr_id, flags) = self.number(kind | NO_SLOT | if completes { 0 } else { LATER });
            wrs[at] = SendWr { flags, ..SendWr::new(wr_id, op, Data::Sges(&sges[at])) };
            self.count(flags);
        }
        let posted = self.qp.post_sends(&wrs[..count]);
        let done = posted.as_ref().map_or_else(|(at, _)| *at, |()| count);
        waiting.drain(..done);
        posted.map_err(|(_, error)| {
            self.posted -= count - done;
            self.words.dropped((count - done) as u16);
            error
        })
    }
}
