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
/// Bytes of an entry that is a task: what a record brings of it.
pub const TASK: usize = field::ADDR.end;
/// Bytes of a replica's result.
pub const RESULT: usize = 8;

/// The kind of a round: every second one is full, the first one of all, too. Rounds of 5 and 3 entries of `next` take
/// turns, which fill a circle of a power of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// For any operation.
    Full,
    /// For what a replica does not do on its own memory.
    Short,
}

impl Kind {
    pub fn of(round: u64) -> Kind {
        if round.is_multiple_of(2) { Kind::Full } else { Kind::Short }
    }

    /// Entries of `next`.
    fn entries(self) -> u64 {
        if self == Kind::Full { 5 } else { 3 }
    }

    /// Bytes of a replica's record: the WRITE of `next`; in a full round the heads of its SEND_EN and its WAIT, too.
    pub fn record(self) -> usize {
        if self == Kind::Full { ENTRY + 2 * TASK } else { ENTRY }
    }

    /// Bytes before each record: in a full round the entry of `own` of the same replica. The one before WRITEs it
    /// there.
    pub fn lead(self) -> usize {
        if self == Kind::Full { ENTRY } else { 0 }
    }

    /// Bytes of the results at the end of a message: only operations of full rounds have any.
    pub fn results(self, replicas: usize) -> usize {
        if self == Kind::Full { replicas * RESULT } else { 0 }
    }

    /// Bytes of a message to a hop of a chain, which begins with the record of the hop; `hop` may be the one behind
    /// the last: the client, to which a message of no bytes is the answer. It is the shortest packet, and the client
    /// takes it while it polls. What a gCAS has found is written before it.
    pub fn message_len(self, hop: usize, replicas: usize) -> usize {
        match replicas - hop {
            0 => 0,
            records => records * self.record() + (records - 1) * self.lead() + self.results(replicas),
        }
    }

    /// Bytes of a hop's note: what a message has behind the record of the hop.
    pub fn note_len(self, hop: usize, replicas: usize) -> usize {
        self.message_len(hop, replicas) - self.record()
    }

    /// The place of all results in a hop's note, in a full round; those of the last hop are all of its note.
    pub fn results_at(self, hop: usize, replicas: usize) -> usize {
        self.note_len(hop, replicas) - self.results(replicas)
    }
}

/// The place of something that each round has, in an array for all rounds: `len` says its bytes.
pub fn place(round: u64, len: impl Fn(Kind) -> usize) -> usize {
    let before = if Kind::of(round) == Kind::Full { 0 } else { len(Kind::Full) };
    (round / 2) as usize * (len(Kind::Full) + len(Kind::Short)) + before
}

/// The place of a round's note.
pub fn note_at(round: u64, hop: usize, replicas: usize) -> usize {
    place(round, |kind| kind.note_len(hop, replicas))
}

/// The first bytes of a task in `next`: NOP, or the posted one with a count.
pub fn task(opcode: u32, count: u64) -> [u8; TASK] {
    let mut bytes = [0; TASK];
    bytes[field::OPCODE.start] = opcode as u8;
    bytes[field::ADDR].copy_from_slice(&count.to_ne_bytes());
    bytes
}

/// What a record may change in the entry of `own`, besides opcode and address: operands and the bytes of the replica.
const OPERANDS: std::ops::Range<usize> = field::OPERAND.start..field::SGE_LKEY.end;
/// What a record may change in the WRITE of `next`, besides opcode, address and key of the following replica.
const PART: std::ops::Range<usize> = field::SGE_ADDR.start..field::SGE_LKEY.end;

const NOP: u8 = Task::NOP as u8;

/// An entry, of which a message brings all bytes: one scatter of an aligned entry costs less than one of each member.
/// The bytes that the queue does not allow to be patched are as [`Rounds::start`] has posted them. Numbers are in the
/// host's order, as entries are.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub opcode: u8,
    flags: SendFlags,
    pub addr: u64,
    pub rkey: u32,
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
        QpCap { max_send_wr: sizes.0, max_recv_wr: sizes.1, max_send_sge: 1, max_recv_sge: 4, max_inline_data: 0 };
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
        // A failure flushes the entries behind it: all that `next` has, if it has not gone round.
        let failures = context.create_cq(4 * depth, Some(&channel), 0)?;
        let unused = context.create_counting_cq(2, true)?;
        let first = field::mask(field::OPCODE) | field::mask(field::ADDR);
        let receives = Managed { recv: true, cyclic_recv: true, ..Managed::default() };
        let sends = Managed { send: true, cyclic_send: true, ..Managed::default() };
        let own_rules = Managed {
            opcodes: allow(sys::IBV_WR_ATOMIC_CMP_AND_SWP),
            patchable: [first | field::mask(OPERANDS), 0],
            ..sends
        };
        let part = field::mask(field::RKEY) | field::mask(PART);
        let next_rules = Managed { patchable: [first | part, 0], ..sends };
        let previous = qp(pd, &unused, &arrivals, (1, depth), &receives)?;
        let own = qp(pd, &done, &unused, (depth / 2, 1), &own_rules)?;
        let next = qp(pd, &failures, &unused, (4 * depth, 1), &next_rules)?;
        let own_entries = own.reg_queue(Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
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

    /// Post all rounds of hop `hop` of `replicas`, and enable them for ever but for those of `own`. The queue pairs are
    /// connected.
    pub fn start(
        &mut self,
        pd: &Arc<Pd>,
        region: &Mr,
        hop: usize,
        replicas: usize,
        next: &Option<Replica>,
    ) -> Result<()> {
        let rounds = u64::from(self.depth);
        let notes = pd.reg_mr(note_at(rounds, hop, replicas), Access::LOCAL_WRITE)?;
        let one = [region.sge(0, 0)];
        for _ in 0..rounds / 2 {
            // The remote side of `own` is the replica itself.
            let op = SendOp::Write { addr: region.addr(), rkey: region.rkey() };
            self.own.post_send(&SendWr::new(0, op, Data::Sges(&one)))?;
        }
        let mut entry = 0;
        for n in 0..rounds {
            let kind = Kind::of(n);
            let (at, len) = (note_at(n, hop, replicas), kind.message_len(hop + 1, replicas));
            let all = notes.sge(at, kind.note_len(hop, replicas));
            let rest = [if len > 0 { notes.sge(at + all.length() as usize - len, len) } else { notes.sge(0, 0) }];
            let is_last = hop + 1 == replicas;
            self.next.post_task(&Task::wait(&self.arrivals, Count::Absolute(n + 1)).step(self.depth))?;
            let op = SendOp::Write { addr: 0, rkey: next.map_or(0, |next| next.rkey) };
            let write = || self.next.post_send(&unsignaled(op, Data::Sges(&one)));
            // The last replica WRITEs what all have found, so its own operation is done before.
            if !is_last {
                write()?;
            }
            if kind == Kind::Full {
                self.next.post_task(&Task::enable(&self.own, Side::Send, Count::Absolute(1)))?;
                self.next.post_task(&Task::wait(&self.done, Count::Absolute(1)))?;
            }
            if is_last {
                write()?;
            }
            self.next.post_send(&unsignaled(SendOp::Send, Data::Sges(&rest)))?;

            let entries = &self.next_entries;
            let part = |number, len: usize| Sge::raw(entries.addr(entry + number, 0), len as u32, entries.lkey());
            let post = |into: &[Sge]| self.previous.post_recv(&RecvWr { wr_id: n, sges: into });
            match kind {
                Kind::Full if is_last => post(&[part(3, ENTRY), part(1, TASK), part(2, TASK), all])?,
                // WRITE and SEND_EN lie one behind the other.
                Kind::Full => post(&[part(1, ENTRY + TASK), part(3, TASK), all])?,
                Kind::Short if is_last => post(&[part(1, ENTRY)])?,
                Kind::Short => post(&[part(1, ENTRY), all])?,
            }
            entry += kind.entries();
        }
        let for_ever = Count::Absolute(u64::MAX >> 2);
        self.previous.enable(Side::Recv, for_ever)?;
        self.next.enable(Side::Send, for_ever)?;
        self.notes = Some(notes);
        Ok(())
    }

    /// What the client must know of this replica.
    pub fn replica(&self, region: &Mr) -> Replica {
        let (notes, notes_lkey) = self.notes.as_ref().map_or((0, 0), |notes| (notes.addr(), notes.lkey()));
        let (own, own_rkey) = (self.own_entries.addr(0, 0), self.own_entries.rkey());
        Replica { region: region.addr(), rkey: region.rkey(), lkey: region.lkey(), notes, notes_lkey, own, own_rkey }
    }

    /// `own` as its own peer.
    pub fn own_end(&self, gid: rdma::Gid) -> Endpoint {
        Endpoint { qpn: self.own.number(), gid }
    }

    /// The state of this group on the replica.
    pub fn status(&self) -> Result<HopStatus> {
        // Counted before what came: no operation is done before it has come.
        let begun = self.next.queue(Side::Send)?.begun;
        let both = Kind::Full.entries() + Kind::Short.entries();
        let done = begun / both * 2 + u64::from(begun % both >= Kind::Full.entries());
        let [posted, arrived] = self.counts()?;
        Ok(HopStatus { groups: 1, posted, arrived, done, rounds: self.depth.into() })
    }

    /// Requests that were posted to the three queues, and messages that came.
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
        let it = Replica { region: 0, rkey: 7, lkey: 9, notes: 0, notes_lkey: 0, own: 0, own_rkey: 0 };
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
    fn results_are_behind_the_records_of_the_following_hops() {
        for kind in [Kind::Full, Kind::Short] {
            for replicas in [1, 3, 64] {
                for hop in 0..replicas {
                    let (note, behind) = (kind.note_len(hop, replicas), kind.message_len(hop + 1, replicas));
                    let rest = if hop + 1 < replicas { kind.lead() + behind } else { kind.results(replicas) };
                    assert_eq!(note, rest);
                    assert_eq!(kind.results_at(hop, replicas) + kind.results(replicas), note);
                }
                // All that the last hop has is what its WRITE takes to the client; the answer has no bytes.
                assert_eq!(kind.results_at(replicas - 1, replicas), 0);
                assert_eq!(kind.message_len(replicas, replicas), 0);
            }
        }
    }

    #[test]
    fn the_places_of_rounds_follow_one_another() {
        let len = |kind| if kind == Kind::Full { 10 } else { 3 };
        assert_eq!([0, 1, 2, 3, 4].map(|round| place(round, len)), [0, 10, 13, 23, 26]);
    }
}
