//! Random numbers of the process: keys and secrets are made of them.

use std::hash::{DefaultHasher, Hasher};

use rustix::io::Errno as Sys;
use verbs::Errno;

use crate::socket::errno;

/// Bytes that are never given out: a key for the case that the kernel gives no more.
const KEY: usize = 32;

/// Bytes from getrandom(2), fetched some at a time.
pub(crate) struct RandomBytes {
    bytes: [u8; 256],
    /// Those that have not been given out, the key included.
    left: usize,
}

impl RandomBytes {
    /// The first bytes.
    ///
    /// # Errors
    /// getrandom(2)'s: `ENOSYS` or `EPERM` where a filter forbids the call (seccomp(2)).
    pub fn new() -> Result<Self, Errno> {
        let mut random = RandomBytes { bytes: [0; 256], left: 0 };
        random.draw()?;
        Ok(random)
    }

    /// Fills `out`. Bytes that were given out are forgotten.
    pub fn fill(&mut self, out: &mut [u8]) {
        for byte in out {
            if self.left <= KEY && self.draw().is_err() {
                self.stretch();
            }
            self.left -= 1;
            *byte = std::mem::take(&mut self.bytes[self.left]);
        }
    }

    fn draw(&mut self) -> Result<(), Errno> {
        let mut fresh = [0; 256];
        let mut filled = 0;
        while filled < fresh.len() {
            match rustix::rand::getrandom(&mut fresh[filled..], rustix::rand::GetRandomFlags::empty()) {
                Ok(n) => filled += n,
                Err(Sys::INTR) => {}
                Err(error) => return Err(errno(error)),
            }
        }
        (self.bytes, self.left) = (fresh, fresh.len());
        Ok(())
    }

    /// Makes more bytes of the key, where the program has forbidden the call after the first bytes were drawn: a keyed
    /// hash (SipHash) of a counter, and a new key. No peer knows the key.
    fn stretch(&mut self) {
        let mut fresh = [0; 256];
        for (counter, part) in fresh.chunks_mut(8).enumerate() {
            let mut hash = DefaultHasher::new();
            hash.write(&self.bytes[..KEY]);
            hash.write_usize(counter);
            part.copy_from_slice(&hash.finish().to_ne_bytes());
        }
        (self.bytes, self.left) = (fresh, fresh.len());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn numbers(random: &mut RandomBytes, count: usize) -> HashSet<[u8; 16]> {
        let mut one = || {
            let mut number = [0; 16];
            random.fill(&mut number);
            number
        };
        (0..count).map(|_| one()).collect()
    }

    #[test]
    #[cfg_attr(miri, ignore = "system calls")]
    fn numbers_differ_also_when_the_kernel_gives_no_more() {
        let mut random = RandomBytes::new().unwrap();
        assert_eq!(numbers(&mut random, 100).len(), 100);
        let mut all = HashSet::new();
        for _ in 0..20 {
            random.stretch();
            all.extend(numbers(&mut random, 14));
        }
        assert_eq!(all.len(), 280);
        assert!(!all.contains(&[0; 16]));
    }
}
