//! Random numbers by a seed.

/// xorshift64*
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    /// The next 64 bits.
    #[allow(clippy::should_implement_trait)] // it never ends
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// One of two values.
    pub fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    /// A number of any size: 0, small, 32 bits, all ones, anything.
    pub fn any(&mut self) -> u64 {
        match self.below(6) {
            0 => 0,
            1 => self.below(100),
            2 => self.next() >> 32,
            3 => u64::MAX - self.below(3),
            4 => 1 << self.below(64),
            _ => self.next(),
        }
    }

    /// Bytes of any value.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}
