//! The message of an operation: the records of all replicas, and room for their results.

use rdma::dv::{Task, field};
use rdma::sys;

use crate::operation::Operation;
use crate::rounds::{ENTRY, Entry, Kind, RESULT, note_at, task};
use crate::setup::Replica;

/// Where in a group an operation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Its round, of those that the queues have.
    pub round: u64,
    /// Of an operation of `own`: the number of those before it, and of the entries of `own`.
    pub before: u64,
    pub places: u64,
    /// Where the last replica writes the results of a gCAS: address at the client, and key.
    pub results: (u64, u32),
}

/// The place of an operation in `own` of a replica.
pub fn own_place(it: &Replica, turn: Turn) -> u64 {
    it.own + turn.before % turn.places * ENTRY as u64
}

/// Makes the message of an operation in `out`, or of none. Before it is the entry of `own` of the first replica, if the
/// round is a full one; an operation of `own` needs such a round.
pub fn put(replicas: &[Replica], turn: Turn, op: Option<&Operation>, out: &mut Vec<u8>) {
    let (count, kind) = (replicas.len(), Kind::of(turn.round));
    out.clear();
    for (i, it) in replicas.iter().enumerate() {
        let note = it.notes + note_at(turn.round, i, count) as u64;
        let results = note + kind.results_at(i, count) as u64;
        let behind = replicas.get(i + 1);
        let (mut own, mut write) = (Entry::own(it), Entry::next(it, behind));
        match op {
            Some(&Operation::Write { offset, size }) => {
                if let Some(next) = behind {
                    (write.opcode, write.addr) = (sys::IBV_WR_RDMA_WRITE as u8, next.region + offset);
                    (write.local.0, write.local.1) = (it.region + offset, size as u32);
                }
            }
            Some(&Operation::Copy { from, to, size }) => {
                (own.opcode, own.addr) = (sys::IBV_WR_RDMA_WRITE as u8, it.region + to);
                own.local = (it.region + from, size as u32, it.lkey);
            }
            Some(&Operation::CompareSwap { offset, old, new, execute }) if execute >> i & 1 != 0 => {
                (own.opcode, own.addr) = (sys::IBV_WR_ATOMIC_CMP_AND_SWP as u8, it.region + offset);
                (own.operand, own.swap) = (old, new);
                own.local = (results + (i * RESULT) as u64, RESULT as u32, it.notes_lkey);
            }
            // This message goes on when everything before it is in memory.
            None | Some(Operation::CompareSwap { .. } | Operation::Flush { .. }) => {}
        }
        let uses_own = op.is_some_and(Operation::uses_own);
        debug_assert!(!uses_own || kind == Kind::Full, "a short round has no entry for it");
        if uses_own && let Some(next) = behind {
            (write.opcode, write.addr) = (sys::IBV_WR_RDMA_WRITE as u8, own_place(next, turn));
            write.rkey = next.own_rkey;
            write.local = (note, kind.lead() as u32, it.notes_lkey);
        }
        if behind.is_none() && matches!(op, Some(Operation::CompareSwap { .. })) {
            write.opcode = sys::IBV_WR_RDMA_WRITE as u8;
            (write.addr, write.rkey) = turn.results;
            write.local = (results, kind.results(count) as u32, it.notes_lkey);
        }
        if kind == Kind::Short {
            out.extend(write.bytes());
            continue;
        }
        let (enable, wait) = if uses_own { (Task::SEND_EN, Task::WAIT) } else { (Task::NOP, Task::NOP) };
        let most = if uses_own { turn.before + 1 } else { 0 };
        out.extend(own.bytes());
        out.extend(write.bytes());
        out.extend(task(enable, most));
        out.extend(task(wait, most));
    }
    out.resize(out.len() + kind.results(count), 0);
}

/// Gives `put` the words in which the messages of two gWRITEs in one round differ, and their values. Most operations
/// are gWRITEs, and the rest of the message stays.
#[inline]
pub fn write_words(replicas: &[Replica], kind: Kind, offset: u64, size: u64, mut put: impl FnMut(usize, u64)) {
    let mut at = kind.lead();
    for [this, next] in replicas.array_windows() {
        let length_and_key = size | u64::from(this.lkey) << 32;
        put(at + field::ADDR.start, next.region + offset);
        put(at + field::SGE_ADDR.start, this.region + offset);
        put(at + field::SGE_LENGTH.start, length_and_key);
        at += kind.record() + kind.lead();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_messages_of_two_writes_differ_in_few_words() {
        for count in [1, 2, 3, 16] {
            let replica = |i: u64| Replica {
                region: i << 32,
                rkey: 7 * i as u32,
                lkey: !(i as u32),
                notes: i << 40,
                notes_lkey: 11 + i as u32,
                own: i << 20,
                own_rkey: 13 + i as u32,
            };
            let replicas: Vec<Replica> = (0..count).map(replica).collect();
            for round in [2, 3] {
                let made = |offset, size| {
                    let mut bytes = vec![9; 5];
                    let turn = Turn { round, before: 0, places: 2, results: (0, 0) };
                    put(&replicas, turn, Some(&Operation::Write { offset, size }), &mut bytes);
                    bytes
                };
                let (kind, mut bytes) = (Kind::of(round), made(0x1000, 64));
                write_words(&replicas, kind, 0x77, (1 << 31) - 1, |at, value| {
                    bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
                });
                assert_eq!(bytes, made(0x77, (1 << 31) - 1));
                assert_eq!(bytes.len(), kind.lead() + kind.message_len(0, count as usize));
            }
        }
    }
}
