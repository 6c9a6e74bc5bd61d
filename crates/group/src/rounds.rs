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

/// Bytes of an entry, without the rest of a list that has more than one part.
pub const ENTRY: usize = field::SGE_LKEY.end;
/// Bytes of a replica's record: the entry of `own`, and the one of `next`.
pub const RECORD: usize = 2 * ENTRY;
/// Bytes of a replica's result.
pub const RESULT: usize = 8;

/// What a record may change in the entry of `own`, besides opcode and address: operands and the bytes of the replica.
const OPERANDS: std::ops::Range<usize> = field::OPERAND.start..field::SGE_LKEY.end;
/// What a record may change in the WRITE of `next`, besides opcode and address.
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

/// An entry, of which a message brings all bytes: one scatter of an aligned entry costs less than one of each member.
/// The bytes that the queue does not allow to be patched are as [`Rounds::start`] has posted them. Numbers are in the
/// host's order, as entries are.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub opcode: u8,
    flags: SendFlags,
    pub addr: u64,
    rkey: u32,
    pub operand: u64,
    pub swap: u64,
    /// Address, length and key of the replica's bytes.
    pub local: (u64, u32, u32),
}

impl Entry {
    /// The operation of `own`: none. The remote side of `own` is the replica itself.
    pub fn own(it: &Replica) -> Entry {
        let (flags, rkey, local) = (SendFlags::SIGNALED, it.rkey, (0, 0, 0));
        Entry { opcode: NOP, flags, addr: 0, rkey, operand: 0, swap: 0, local }
    }

    /// The WRITE of `next`: none. The last replica has none behind it.
    pub fn next(it: &Replica, behind: Option<&Replica>) -> Entry {
        let (flags, rkey) = (SendFlags::empty(), behind.map_or(0, |next| next.rkey));
        Entry { opcode: NOP, flags, addr: 0, rkey, operand: 0, swap: 0, local: (0, 0, it.lkey) }
    }

    pub fn bytes(&self) -> [u8; ENTRY] {
        const LIST_OF_ONE: u64 = 1 << (8 * field::NUM_SGE.start);
        let first = u64::from(self.opcode) | u64::from(self.flags.bits() as u8) << 8 | LIST_OF_ONE;
        let (addr, len, key) = self.local;
        let list = [addr, u64::from(len) | u64::from(key) << 32];
        let words = [first, 0, self.addr, self.rkey.into(), self.operand, self.swap, list[0], list[1]];
        let mut bytes = [0; ENTRY];
        for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *place = word.to_ne_bytes();
        }
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
        QpCap { max_send_wr: sizes.0, max_recv_wr: sizes.1, max_send_sge: 1, max_recv_sge: 3, max_inline_data: 0 };
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
            let into: [Sge; 3] = [self.own_entries.sge(own, 0..ENTRY), self.next_entries.sge(write, 0..ENTRY), note[0]];
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

    #[test]
    fn an_entry_has_its_members_in_their_places() {
        let it = Replica { region: 0, rkey: 7, lkey: 9, notes: 0, notes_lkey: 0 };
        let own = Entry { opcode: 1, addr: 2, operand: 3, swap: 4, local: (5, 6, 8), ..Entry::own(&it) }.bytes();
        let number = |range: std::ops::Range<usize>| {
            let mut bytes = [0; 8];
            bytes[..range.len()].copy_from_slice(&own[range]);
            u64::from_ne_bytes(bytes)
        };
        let members = [field::OPCODE, field::ADDR, field::OPERAND, field::SWAP, field::SGE_ADDR, field::SGE_LENGTH];
        assert_eq!(members.map(number), [1, 2, 3, 4, 5, 6]);
        let rest = [field::FLAGS, field::NUM_SGE, field::RKEY, field::SGE_LKEY];
        assert_eq!(rest.map(number), [SendFlags::SIGNALED.bits().into(), 1, 7, 8]);
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
