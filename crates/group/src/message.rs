//! The message of an operation: the records of all replicas, and room for their results.

use rdma::dv::field;
use rdma::sys;

use crate::operation::Operation;
use crate::rounds::{ENTRY, Entry, RECORD, RESULT, note_stride, result_at};
use crate::setup::Replica;

/// Makes the message of an operation in round `turn`, in `out`.
pub fn put(replicas: &[Replica], turn: u64, op: &Operation, out: &mut Vec<u8>) {
    let count = replicas.len();
    out.clear();
    for (i, it) in replicas.iter().enumerate() {
        let note = it.notes + turn * note_stride(i, count) as u64;
        let result = note + result_at(i, count) as u64;
        let behind = replicas.get(i + 1);
        let (mut own, mut write) = (Entry::own(it), Entry::next(it, behind));
        match *op {
            Operation::Write { offset, size } => {
                if let Some(next) = behind {
                    (write.opcode, write.addr) = (sys::IBV_WR_RDMA_WRITE as u8, next.region + offset);
                    (write.local.0, write.local.1) = (it.region + offset, size as u32);
                }
            }
            Operation::Copy { from, to, size } => {
                (own.opcode, own.addr) = (sys::IBV_WR_RDMA_WRITE as u8, it.region + to);
                own.local = (it.region + from, size as u32, it.lkey);
            }
            Operation::CompareSwap { offset, old, new, execute } => {
                if execute >> i & 1 != 0 {
                    (own.opcode, own.addr) = (sys::IBV_WR_ATOMIC_CMP_AND_SWP as u8, it.region + offset);
                    (own.operand, own.swap) = (old, new);
                    own.local = (result, RESULT as u32, it.notes_lkey);
                }
            }
            Operation::Flush { offset, size } => {
                (own.opcode, own.addr) = (sys::IBV_WR_RDMA_READ as u8, it.region + offset);
                own.local = (result, size.min(RESULT as u64) as u32, it.notes_lkey);
            }
        }
        out.extend(own.bytes());
        out.extend(write.bytes());
    }
    out.resize(out.len() + count * RESULT, 0);
}

/// The words in which the messages of two gWRITEs in one round differ, and their values: most operations are gWRITEs,
/// and the rest of the message stays.
pub fn write_words(replicas: &[Replica], offset: u64, size: u64) -> impl Iterator<Item = (usize, u64)> {
    replicas.windows(2).enumerate().flat_map(move |(i, pair)| {
        let at = i * RECORD + ENTRY;
        let (from, to) = (pair[0].region + offset, pair[1].region + offset);
        let length_and_key = size | u64::from(pair[0].lkey) << 32;
        [
            (at + field::ADDR.start, to),
            (at + field::SGE_ADDR.start, from),
            (at + field::SGE_LENGTH.start, length_and_key),
        ]
    })
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
            };
            let replicas: Vec<Replica> = (0..count).map(replica).collect();
            let made = |offset, size| {
                let mut bytes = vec![9; 5];
                put(&replicas, 3, &Operation::Write { offset, size }, &mut bytes);
                bytes
            };
            let mut bytes = made(0x1000, 64);
            for (at, value) in write_words(&replicas, 0x77, (1 << 31) - 1) {
                bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
            }
            assert_eq!(bytes, made(0x77, (1 << 31) - 1));
        }
    }
}
