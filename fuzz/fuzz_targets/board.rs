//! A peer's board, on which it writes anything while we look for a row.
//!
//! The input is a list of 10-byte steps: what to do, where, and 8 bytes.
#![no_main]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libfuzzer_sys::fuzz_target;
use memory::board::{BoardMemory, ROW, Reader, VALUES, Writer};

const ROWS: usize = 64;

#[derive(Clone)]
struct Sheet(Arc<Vec<AtomicU64>>);

impl BoardMemory for Sheet {
    const ROWS: usize = ROWS;

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.0[index]
    }
}

fuzz_target!(|input: &[u8]| {
    let sheet = Sheet(Arc::new((0..ROWS * ROW).map(|_| AtomicU64::new(0)).collect()));
    let (mut writer, reader) = (Writer::new(sheet.clone()), Reader::new(sheet.clone()));
    for step in input.chunks_exact(10) {
        let value = u64::from_le_bytes([step[2], step[3], step[4], step[5], step[6], step[7], step[8], step[9]]);
        let tag = if step[1] & 1 == 0 { value } else { value % 256 };
        match step[0] % 5 {
            0..=1 => {
                let word = (step[0] as usize / 5) << 8 | step[1] as usize;
                sheet.0[word % sheet.0.len()].store(value, Ordering::Relaxed);
            }
            2 => _ = writer.show(tag, &[value; VALUES]),
            3 => _ = writer.take_back(tag),
            _ => _ = reader.find(tag),
        }
    }
});
