//! The records of a message, and the entries of the rounds on a replica.

use std::sync::Arc;

use rdma::dv::{Count, Managed, QueueMr, Side, Task, allow, field};
use rdma::{
    Access, CompChannel, Context, Cq, Data, Mr, Pd, Qp, QpCap, QpOptions, QpType, RecvWr, SendFlags, SendOp, SendWr,
    Sge, sys,
};

use crate::error::Result;
use crate::setup::{Endpoint, Replica};
use crate::status::HopStatus;

/// Bytes of a replica's record.
pub const RECORD: usize = 62;
/// Bytes of a replica's result.
pub const RESULT: usize = 8;

/// What a record patches into the entry of `own`: operands and the first scatter/gather entry.
const OPERANDS: std::ops::Range<usize> = field::OPERAND.start..field::SGE_LKEY.end;
/// What a record patches into the WRITE of `next`, besides opcode and address.
const PART: std::ops::Range<usize> = field::SGE_ADDR.start..field::SGE_LENGTH.end;

const NOP: u8 = Task::NOP as u8;

/// Bytes of a message to a hop, of a chain of `replicas`; `hop` may be the one behind the last: the client.
pub fn message_len(hop: usize, replicas: usize) -> usize {
    (replicas - hop) * RECORD + replicas * RESULT
}

/// The place of a replica's result in its note.
pub fn result_at(hop: usize, replicas: usize) -> usize {
    (replicas - 1 - hop) * RECORD + hop * RESULT
}

/// Bytes from one note of a hop to the next one.
pub fn note_stride(hop: usize, replicas: usize) -> usize {
    message_len(hop + 1, replicas).next_multiple_of(8)
}

/// The record of one replica. Numbers are in the host's order, as entries are.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// The operation of `own`, and its operands.
    pub own: (u8, u64),
    pub operand: u64,
    pub swap: u64,
    pub local: (u64, u32, u32),
    /// The operation of `next`, the remote address, and the local bytes.
    pub next: (u8, u64),
    pub part: (u64, u32),
}

impl Default for Record {
    fn default() -> Self {
        Record { own: (NOP, 0), operand: 0, swap: 0, local: (0, 0, 0), next: (NOP, 0), part: (0, 0) }
    }
}

impl Record {
    pub fn bytes(&self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        let mut at = 0;
        let mut put = |piece: &[u8]| {
            bytes[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        };
        put(&[self.own.0]);
        put(&self.own.1.to_ne_bytes());
        put(&self.operand.to_ne_bytes());
        put(&self.swap.to_ne_bytes());
        put(&self.local.0.to_ne_bytes());
        put(&self.local.1.to_ne_bytes());
        put(&self.local.2.to_ne_bytes());
        put(&[self.next.0]);
        put(&self.next.1.to_ne_bytes());
        put(&self.part.0.to_ne_bytes());
        put(&self.part.1.to_ne_bytes());
        bytes
    }
}

/// The three queue pairs of a group on a replica. Fields are dropped in this order.
pub struct Rounds {
    pub previous: Arc<Qp>,
    pub own: Arc<Qp>,
    pub next: Arc<Qp>,
    own_entries: Arc<QueueMr>,
    next_entries: Arc<QueueMr>,
    arrivals: Arc<Cq>,
    /// Completions of `own`, counted. Armed for those that failed.
    pub done: Arc<Cq>,
    /// Requests of `next` are not signaled: a completion is a failure.
    pub failures: Arc<Cq>,
    pub channel: Arc<CompChannel>,
    notes: Option<Arc<Mr>>,
    depth: u32,
}

fn qp(pd: &Arc<Pd>, send: &Arc<Cq>, recv: &Arc<Cq>, sizes: (u32, u32), managed: &Managed) -> rdma::Result<Arc<Qp>> {
    let cap =
        QpCap { max_send_wr: sizes.0, max_recv_wr: sizes.1, max_send_sge: 1, max_recv_sge: 7, max_inline_data: 0 };
    let options = QpOptions {
        qp_type: QpType::Rc,
        send_cq: Some(send),
        recv_cq: Some(recv),
        srq: None,
        xrcd: None,
        cap,
        sq_sig_all: false,
    };
    pd.create_managed_qp(&options, managed)
}

fn unsignaled<'a>(op: SendOp<'a>, data: Data<'a>) -> SendWr<'a> {
    SendWr { flags: SendFlags::empty(), ..SendWr::new(0, op, data) }
}

impl Rounds {
    pub fn new(context: &Arc<Context>, pd: &Arc<Pd>, depth: u32) -> Result<Rounds> {
        let arrivals = context.create_counting_cq(2, true)?;
        let channel = context.create_comp_channel()?;
        channel.set_nonblocking()?;
        let done = context.create_counting_cq_with(2, true, &channel)?;
        let failures = context.create_cq(16, Some(&channel), 0)?;
        let unused = context.create_counting_cq(2, true)?;
        let first = field::mask(field::OPCODE) | field::mask(field::ADDR);
        let receives = Managed { recv: true, cyclic_recv: true, ..Managed::default() };
        let sends = Managed { send: true, cyclic_send: true, ..Managed::default() };
        let own_rules = Managed {
            opcodes: allow(sys::IBV_WR_RDMA_READ) | allow(sys::IBV_WR_ATOMIC_CMP_AND_SWP),
            patchable: [first | field::mask(OPERANDS), 0],
            ..sends
        };
        let next_rules = Managed { patchable: [first | field::mask(PART), 0], ..sends };
        let previous = qp(pd, &unused, &arrivals, (1, depth), &receives)?;
        let own = qp(pd, &done, &unused, (2 * depth, 1), &own_rules)?;
        let next = qp(pd, &failures, &unused, (4 * depth, 1), &next_rules)?;
        let own_entries = own.reg_queue(Access::LOCAL_WRITE)?;
        let next_entries = next.reg_queue(Access::LOCAL_WRITE)?;
        failures.arm(false)?;
        done.arm(true)?;
        Ok(Rounds {
            previous,
            own,
            next,
            own_entries,
            next_entries,
            arrivals,
            done,
            failures,
            channel,
            notes: None,
            depth,
        })
    }

    /// Post all rounds of hop `hop` of `replicas`, and enable them for ever. The queue pairs are connected.
    pub fn start(
        &mut self,
        pd: &Arc<Pd>,
        region: &Mr,
        hop: usize,
        replicas: usize,
        next: &Option<Replica>,
    ) -> Result<()> {
        let (len, stride) = (message_len(hop + 1, replicas), note_stride(hop, replicas));
        let notes = pd.reg_mr(stride * self.depth as usize, Access::LOCAL_WRITE)?;
        for n in 0..u64::from(self.depth) {
            let arrived = Task::wait(&self.arrivals, Count::Absolute(n + 1)).step(self.depth);
            let one = [region.sge(0, 0)];
            self.own.post_task(&arrived)?;
            // The remote side of `own` is the replica itself.
            let op = SendOp::Write { addr: region.addr(), rkey: region.rkey() };
            self.own.post_send(&SendWr::new(0, op, Data::Sges(&one)))?;

            let note = [notes.sge(n as usize * stride, len)];
            self.next.post_task(&arrived)?;
            let op = SendOp::Write { addr: 0, rkey: next.map_or(0, |next| next.rkey) };
            self.next.post_send(&unsignaled(op, Data::Sges(&one)))?;
            self.next.post_task(&Task::wait(&self.done, Count::Absolute(n + 1)).step(self.depth))?;
            self.next.post_send(&unsignaled(SendOp::Send, Data::Sges(&note)))?;

            let (own, write) = (2 * n + 1, 4 * n + 1);
            let into: [Sge; 7] = [
                self.own_entries.sge(own, field::OPCODE),
                self.own_entries.sge(own, field::ADDR),
                self.own_entries.sge(own, OPERANDS),
                self.next_entries.sge(write, field::OPCODE),
                self.next_entries.sge(write, field::ADDR),
                self.next_entries.sge(write, PART),
                note[0],
            ];
            self.previous.post_recv(&RecvWr { wr_id: n, sges: &into })?;
        }
        let for_ever = Count::Absolute(u64::MAX >> 2);
        self.previous.enable(Side::Recv, for_ever)?;
        self.own.enable(Side::Send, for_ever)?;
        self.next.enable(Side::Send, for_ever)?;
        self.notes = Some(notes);
        Ok(())
    }

    /// What the client must know of this replica.
    pub fn replica(&self, region: &Mr) -> Replica {
        let (notes, notes_lkey) = self.notes.as_ref().map_or((0, 0), |notes| (notes.addr(), notes.lkey()));
        Replica { region: region.addr(), rkey: region.rkey(), lkey: region.lkey(), notes, notes_lkey }
    }

    /// `own` as its own peer.
    pub fn own_end(&self, gid: rdma::Gid) -> Endpoint {
        Endpoint { qpn: self.own.number(), gid }
    }

    /// The state of this group on the replica.
    pub fn status(&self) -> Result<HopStatus> {
        // Counted before what came: no operation is done before it has come.
        let done = self.done.count()?;
        let [posted, arrived] = self.counts()?;
        Ok(HopStatus { groups: 1, posted, arrived, done, rounds: self.depth.into() })
    }

    /// Requests that were posted to the three queues, and operations that came.
    pub fn counts(&self) -> Result<[u64; 2]> {
        let posted = self.previous.queue(Side::Recv)?.posted
            + self.own.queue(Side::Send)?.posted
            + self.next.queue(Side::Send)?.posted;
        Ok([posted, self.arrivals.count()?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record is as long as the parts of entries into which it is scattered.
    #[test]
    fn records_fill_the_patched_bytes() {
        let entry = |rest: std::ops::Range<usize>| field::OPCODE.len() + field::ADDR.len() + rest.len();
        assert_eq!(entry(OPERANDS) + entry(PART), RECORD);
        let bytes = Record { own: (1, 2), part: (3, 4), ..Record::default() }.bytes();
        assert_eq!((bytes[0], bytes[1], bytes[41], bytes[50], bytes[58]), (1, 2, NOP, 3, 4));
    }

    #[test]
    fn a_result_is_behind_the_records_of_the_following_hops() {
        for replicas in [1, 3, 64] {
            for hop in 0..replicas {
                assert!(result_at(hop, replicas) + RESULT <= message_len(hop + 1, replicas));
                assert_eq!(message_len(hop, replicas) - RECORD, message_len(hop + 1, replicas));
            }
            assert_eq!(message_len(replicas, replicas), replicas * RESULT);
        }
    }
}
