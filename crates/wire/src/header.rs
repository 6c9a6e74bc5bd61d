//! What the files of headers have in common.

/// The parts of a header of fixed length that are alike in all files: `LEN`, `View` with its check of the length, and
/// `Repr::read`. The file itself defines `Repr` with `parse(&View) -> Result<Repr>` and `emit(&self) -> [u8; LEN]`.
macro_rules! header {
    ($name:literal, $len:expr) => {
        /// Bytes of the header.
        pub const LEN: usize = $len;

        #[doc = concat!("A ", $name, " in place.")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct View<'a>(&'a [u8; LEN]);

        impl<'a> View<'a> {
            /// The header at the start of these bytes, and what follows it.
            ///
            /// # Errors
            /// [`Error::Truncated`](crate::Error::Truncated)
            pub fn new(bytes: &'a [u8]) -> crate::Result<(Self, &'a [u8])> {
                let (header, rest) = bytes.split_first_chunk().ok_or(crate::Error::Truncated)?;
                Ok((View(header), rest))
            }
        }

        impl Repr {
            /// What the header at the start of these bytes means, and what follows it.
            ///
            /// # Errors
            /// [`Error::Truncated`](crate::Error::Truncated), and those of [`Repr::parse`].
            pub fn read(bytes: &[u8]) -> crate::Result<(Self, &[u8])> {
                let (view, rest) = View::new(bytes)?;
                Ok((Repr::parse(&view)?, rest))
            }
        }
    };
}

/// Holds a `Repr` against literal bytes, in both directions, and has every shorter input refused.
#[cfg(test)]
macro_rules! assert_wire {
    ($repr:expr, $hex:expr) => {{
        let (repr, bytes) = ($repr, crate::header::hex($hex));
        assert_eq!(repr.emit()[..], bytes[..], "emitted: {:02x?}", repr.emit());
        assert_eq!(Repr::read(&bytes), Ok((repr, &[][..])));
        for short in 0..bytes.len() {
            assert_eq!(Repr::read(&bytes[..short]), Err(crate::Error::Truncated));
        }
    }};
}

/// The bytes that hexadecimal digits stand for; everything else in the text is left out.
#[cfg(test)]
pub(crate) fn hex(text: &str) -> std::vec::Vec<u8> {
    let digits: std::vec::Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}
