//! The Internet checksum (RFC 1071).

/// A running sum of 16-bit words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// Adds bytes. Only the last ones of a sum may be an odd number.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Sum {
        let words = bytes.chunks(2).map(|pair| match *pair {
            [high, low] => u64::from(high) << 8 | u64::from(low),
            [high, ..] => u64::from(high) << 8,
            [] => 0,
        });
        Sum(self.0 + words.sum::<u64>())
    }

    /// Adds a word.
    #[must_use]
    pub fn word(self, word: u16) -> Sum {
        Sum(self.0 + u64::from(word))
    }

    /// The checksum: 0 if the bytes contained their own.
    pub fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_1071() {
        // Section 3: the words 0001 f203 f4f5 f6f7 add up to ddf2.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::default().bytes(&bytes).finish(), !0xddf2);
        assert_eq!(Sum::default().bytes(&bytes).word(!0xddf2).finish(), 0);
        assert_eq!(Sum::default().bytes(&[1]).finish(), !0x0100);
    }
}
