//! Layouts of a message in memory.

use serde::{Deserialize, Serialize};

/// The number of bytes between two pieces, which no operation may change.
pub const GAP: usize = 24;

/// Scatter/gather lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Shape {
    /// One entry.
    One,
    /// Two entries, of a third and the rest.
    Two,
    /// Three entries, the middle one empty.
    Three,
    /// This many entries, as equal as can be.
    Many(usize),
}

/// An entry: its place, and its number of bytes.
pub type Piece = (usize, usize);

impl Shape {
    /// The number of entries that it needs.
    pub fn entries(self) -> usize {
        match self {
            Shape::One => 1,
            Shape::Two => 2,
            Shape::Three => 3,
            Shape::Many(count) => count,
        }
    }

    /// The lengths of the pieces of a message.
    fn lengths(self, len: usize) -> Vec<usize> {
        match self {
            Shape::One => vec![len],
            Shape::Two => vec![len / 3, len - len / 3],
            Shape::Three => vec![len / 2, 0, len - len / 2],
            Shape::Many(count) => (0..count).map(|i| (len + i) / count).collect(),
        }
    }

    /// The pieces of a message of `len` bytes, from `base` on, with gaps between them.
    pub fn lay_out(self, len: usize, base: usize) -> Vec<Piece> {
        let mut at = base;
        let mut pieces = Vec::new();
        for len in self.lengths(len) {
            pieces.push((at, len));
            at += len + GAP;
        }
        pieces
    }
}

/// The number of bytes from `base` to behind the last gap of a message of `len` bytes in at most `entries` pieces.
pub fn span(len: usize, entries: usize) -> usize {
    len + (entries + 1) * GAP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_has_all_bytes() {
        for shape in [Shape::One, Shape::Two, Shape::Three, Shape::Many(32)] {
            for len in [0, 1, 7, 31, 32, 33, 4097] {
                let pieces = shape.lay_out(len, 100);
                assert_eq!(pieces.len(), shape.entries());
                assert_eq!(pieces.iter().map(|(_, len)| len).sum::<usize>(), len);
                for pair in pieces.windows(2) {
                    assert_eq!(pair[0].0 + pair[0].1 + GAP, pair[1].0);
                }
                let (last, rest) = *pieces.last().unwrap();
                assert!(last + rest + GAP <= 100 + span(len, pieces.len()));
            }
        }
    }
}
