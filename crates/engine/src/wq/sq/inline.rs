//! Inline data in a send queue's entries.

use super::{HEAD, SendQueue};

impl SendQueue {
    /// Writes inline data from this word on; their bytes.
    pub(super) fn put_inline(&self, at: usize, pieces: &[&[u8]]) -> u32 {
        if let [piece] = pieces {
            let (words, rest) = piece.as_chunks::<8>();
            for (i, word) in words.iter().enumerate() {
                self.put(at + i, u64::from_ne_bytes(*word));
            }
            if !rest.is_empty() {
                let mut word = [0u8; 8];
                word[..rest.len()].copy_from_slice(rest);
                self.put(at + words.len(), u64::from_ne_bytes(word));
            }
            return piece.len() as u32;
        }
        let (mut word, mut filled, mut total) = ([0u8; 8], 0, 0usize);
        for &byte in pieces.iter().copied().flatten() {
            word[filled] = byte;
            filled += 1;
            if filled == 8 {
                self.put(at + total / 8, u64::from_ne_bytes(word));
                filled = 0;
            }
            total += 1;
        }
        if filled > 0 {
            self.put(at + total / 8, u64::from_ne_bytes(word));
        }
        total as u32
    }

    /// Copies inline data of a fetched request from `offset` on.
    pub fn inline_bytes(&self, number: u64, offset: u32, out: &mut [u8]) {
        let at = self.base(number) + HEAD / 8;
        let (first, skip) = (at + offset as usize / 8, offset as usize % 8);
        let (head, rest) = out.split_at_mut(out.len().min((8 - skip) % 8));
        head.copy_from_slice(&self.get(first).to_ne_bytes()[skip % 8..][..head.len()]);
        let first = first + usize::from(skip != 0);
        for (i, bytes) in rest.chunks_mut(8).enumerate() {
            bytes.copy_from_slice(&self.get(first + i).to_ne_bytes()[..bytes.len()]);
        }
    }
}
