//! What tests have in common.

pub(crate) mod memory;
pub(crate) mod world;
mod world_tests;

use core::ops::Range;
use std::vec::Vec;

use crate::mpa::send::{Sender, Sink};
use crate::mpa::{Agreed, Role};

/// The bytes that hexadecimal digits stand for; everything else in the text is left out.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Random numbers that a seed repeats (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.number() % end.max(1) as u64) as usize
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.number() as u8).collect()
    }
}

/// Runs a test with many seeds; the seed of one that fails is printed.
pub(crate) fn seeds(count: u64, test: impl Fn(u64) + std::panic::RefUnwindSafe) {
    for seed in 0..count {
        if let Err(e) = std::panic::catch_unwind(|| test(seed)) {
            std::eprintln!("seed {seed}");
            std::panic::resume_unwind(e);
        }
    }
}

/// The agreement of an initiator: markers and CRCs in both directions, or not.
pub(crate) fn agreed(markers: bool, crc: bool) -> Agreed {
    Agreed {
        role: Role::Initiator,
        crc,
        markers_in: markers,
        markers_out: markers,
        ird: 4,
        ord: 4,
        ready: None,
        awaits_ready: false,
        unmet: None,
    }
}

/// Gathers what a message is sent as.
pub(crate) struct Gather<'a> {
    pub(crate) stream: &'a mut Vec<u8>,
    pub(crate) payload: &'a [u8],
}

impl Sink for Gather<'_> {
    fn own(&mut self, bytes: &[u8]) {
        self.stream.extend_from_slice(bytes);
    }

    fn payload(&mut self, range: Range<usize>) {
        self.stream.extend_from_slice(&self.payload[range]);
    }
}

/// Sends one segment.
pub(crate) fn frame(sender: &mut Sender, headers: &[u8], payload: &[u8], stream: &mut Vec<u8>) {
    let before = stream.len();
    sender.frame(headers, payload, 0..payload.len(), &mut Gather { stream, payload }).expect("a short segment");
    assert!(stream.len() > before);
}
