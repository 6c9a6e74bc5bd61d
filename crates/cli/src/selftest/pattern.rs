//! The bytes of messages: the value of any byte shows its place, so a misplaced one is found.

use rdma::Mr;

/// The number of bytes that are compared or written at a time.
const CHUNK: usize = 64 << 10;

/// Eight bytes of the pattern `seed`, from `8 * index` on. A multiplicative hash: neighbours have nothing in common.
fn word(seed: u64, index: u64) -> u64 {
    let mut x = (seed << 40 ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ x >> 32
}

/// Fill `out` with the pattern's bytes from `start` on.
pub fn generate(seed: u64, start: usize, out: &mut [u8]) {
    let mut done = 0;
    while done < out.len() {
        let at = start + done;
        let bytes = word(seed, at as u64 / 8).to_le_bytes();
        let part = &bytes[at % 8..];
        let len = part.len().min(out.len() - done);
        out[done..done + len].copy_from_slice(&part[..len]);
        done += len;
    }
}

/// Write `len` bytes of the pattern, from its byte `start` on, to `offset` in the region.
pub fn fill(mr: &Mr, offset: usize, len: usize, seed: u64, start: usize) {
    let mut buf = vec![0; len.min(CHUNK)];
    let mut done = 0;
    while done < len {
        let part = &mut buf[..(len - done).min(CHUNK)];
        generate(seed, start + done, part);
        mr.write(offset + done, part);
        done += part.len();
    }
}

/// A byte with a wrong value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Its place, counted from the start of the comparison.
    pub at: usize,
    /// The expected value.
    pub expected: u8,
    /// The value that is there.
    pub found: u8,
}

/// Compare `len` bytes at `offset` in the region with the pattern, from its byte `start` on.
pub fn compare(mr: &Mr, offset: usize, len: usize, seed: u64, start: usize) -> Option<Difference> {
    let (mut expected, mut found) = (vec![0; len.min(CHUNK)], vec![0; len.min(CHUNK)]);
    let mut done = 0;
    while done < len {
        let part = (len - done).min(CHUNK);
        generate(seed, start + done, &mut expected[..part]);
        mr.read(offset + done, &mut found[..part]);
        if expected[..part] != found[..part] {
            let i = (0..part).find(|i| expected[*i] != found[*i]).expect("they differ");
            return Some(Difference { at: done + i, expected: expected[i], found: found[i] });
        }
        done += part;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_does_not_depend_on_where_one_starts() {
        let mut whole = [0; 100];
        generate(7, 0, &mut whole);
        for start in 0..100 {
            let mut part = vec![0; 100 - start];
            generate(7, start, &mut part);
            assert_eq!(part, whole[start..]);
        }
    }

    #[test]
    fn seeds_differ() {
        let (mut a, mut b) = ([0; 64], [0; 64]);
        generate(1, 0, &mut a);
        generate(2, 0, &mut b);
        assert!(a.iter().zip(&b).filter(|(a, b)| a == b).count() < 8);
    }
}
