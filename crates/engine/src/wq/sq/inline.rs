//! Inline data in a send queue's entries. A managed queue takes none ([`SendQueue::new_managed`]).

use std::sync::atomic::{AtomicU64, Ordering};

use super::{HEAD, SendQueue, WORDS};

/// Bytes of data in a request's first entry. So few are copied without a look at the entry's length.
const FIRST: usize = 8 * WORDS - HEAD;

impl SendQueue {
    /// The places of a request's data: the end of its first entry, then its other entries.
    fn data_places(&self, number: u64) -> impl Iterator<Item = &[AtomicU64]> {
        let at = self.base(number) / WORDS;
        let entries = self.entries.get(at..at + self.stride).unwrap_or_default();
        let (first, others) = entries.split_at(entries.len().min(1));
        first.iter().map(|entry| &entry.0[HEAD / 8..]).chain(others.iter().map(|entry| &entry.0[..]))
    }

    /// Writes inline data of the request with this number; their bytes.
    pub(super) fn put_inline(&self, number: u64, pieces: &[&[u8]]) -> u32 {
        if let [piece] = pieces {
            if piece.len() <= FIRST {
                let mut bytes = [0u8; FIRST];
                bytes[..piece.len()].copy_from_slice(piece);
                let words = self.first(number).iter().skip(HEAD / 8);
                for (place, word) in words.zip(bytes.as_chunks::<8>().0) {
                    place.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
                }
                return piece.len() as u32;
            }
            let (these, others) = piece.split_at(FIRST);
            let words = self.first(number).iter().skip(HEAD / 8);
            for (place, word) in words.zip(these.as_chunks::<8>().0) {
                place.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
            }
            let at = self.base(number) / WORDS;
            let entries = self.entries.get(at + 1..at + self.stride).unwrap_or_default();
            for (entry, these) in entries.iter().zip(others.chunks(8 * WORDS)) {
                let (words, rest) = these.as_chunks::<8>();
                for (place, word) in entry.0.iter().zip(words) {
                    place.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
                }
                if let Some(place) = entry.0.get(words.len()).filter(|_| !rest.is_empty()) {
                    let mut word = [0u8; 8];
                    word[..rest.len()].copy_from_slice(rest);
                    place.store(u64::from_ne_bytes(word), Ordering::Relaxed);
                }
            }
            return piece.len() as u32;
        }
        let at = self.base(number) + HEAD / 8;
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
        if offset > 0 {
            return self.inline_bytes_behind(number, offset, out);
        }
        if out.len() <= FIRST {
            let mut bytes = [0u8; FIRST];
            let words = self.first(number).iter().skip(HEAD / 8);
            for (place, word) in words.zip(bytes.as_chunks_mut::<8>().0) {
                *word = place.load(Ordering::Relaxed).to_ne_bytes();
            }
            return out.copy_from_slice(&bytes[..out.len()]);
        }
        let mut left = out;
        for places in self.data_places(number) {
            let (these, others) = left.split_at_mut(left.len().min(8 * places.len()));
            let (words, rest) = these.as_chunks_mut::<8>();
            for (place, word) in places.iter().zip(words.iter_mut()) {
                *word = place.load(Ordering::Relaxed).to_ne_bytes();
            }
            if let Some(place) = places.get(words.len()).filter(|_| !rest.is_empty()) {
                rest.copy_from_slice(&place.load(Ordering::Relaxed).to_ne_bytes()[..rest.len()]);
            }
            left = others;
            if left.is_empty() {
                break;
            }
        }
    }

    #[cold]
    fn inline_bytes_behind(&self, number: u64, offset: u32, out: &mut [u8]) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_data_of_any_length_come_back_from_any_offset() {
        const MOST: u32 = 256;
        let mut queue = SendQueue::new(4, 2, MOST).unwrap();
        queue.posted = 3; // the last entry: a word behind its place would be outside of the array
        let data: Vec<u8> = (1..=MOST).map(|i| (i % 251) as u8).collect();
        for len in 0..=data.len() {
            let (one, two) = (&data[..len], [&data[..len / 3], &data[len / 3..len]]);
            for pieces in [&[one][..], &two[..]] {
                assert_eq!(queue.put_inline(3, &[&[0xff; MOST as usize]]), MOST);
                assert_eq!(queue.put_inline(3, pieces), len as u32);
                for offset in 0..=len {
                    let mut out = vec![0; len - offset];
                    queue.inline_bytes(3, offset as u32, &mut out);
                    assert_eq!(out, one[offset..], "{len} bytes from {offset} on, {} pieces", pieces.len());
                }
            }
        }
    }
}
