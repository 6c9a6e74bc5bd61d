//! Choices by a seed.

use super::mock::BASE;

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// 0, small, an address, 32 bits, anything.
    pub fn any(&mut self) -> u64 {
        match self.below(5) {
            0 => 0,
            1 => self.below(100),
            2 => BASE + 8 * self.below(1 << 17),
            3 => self.next() >> 32,
            _ => self.next(),
        }
    }
}
