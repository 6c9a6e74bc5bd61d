//! A peer's export table, in which the peer writes anything while this side looks for a row.
//!
//! The input is a list of 10-byte steps: an operation, a place, and 8 bytes.
#![no_main]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libfuzzer_sys::fuzz_target;
use memory::export_table::{ROW, Reader, TableMemory, VALUES, Writer};

const ROWS: usize = 64;

#[derive(Clone)]
struct HeapTable(Arc<Vec<AtomicU64>>);

impl TableMemory for HeapTable {
    const ROWS: usize = ROWS;

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.0[index]
    }
}

fuzz_target!(|input: &[u8]| {
    let table_memory = HeapTable(Arc::new((0..ROWS * ROW).map(|_| AtomicU64::new(0)).collect()));
    let (mut writer, reader) = (Writer::new(table_memory.clone()), Reader::new(table_memory.clone()));
    for step in input.chunks_exact(10) {
        let value = u64::from_le_bytes([step[2], step[3], step[4], step[5], step[6], step[7], step[8], step[9]]);
        let tag = if step[1] & 1 == 0 { value } else { value % 256 };
        match step[0] % 5 {
            0..=1 => {
                let word = (step[0] as usize / 5) << 8 | step[1] as usize;
                table_memory.0[word % table_memory.0.len()].store(value, Ordering::Relaxed);
            }
            2 => _ = writer.publish(tag, &[value; VALUES]),
            3 => _ = writer.retract(tag),
            _ => _ = reader.find(tag),
        }
    }
});
