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
            /// Parses the header at the start of these bytes. Gives its fields, and the bytes behind it.
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

/// A header of bytes for the receiver's program, to which the transport gives no byte order: what `header!` defines,
/// and the rest of the file.
macro_rules! immediate {
    ($name:literal, $len:literal) => {
        mod field {
            pub const DATA: usize = 0;
        }

        header!($name, $len);

        #[doc = concat!("What a ", $name, " says.")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Repr {
            /// The bytes as the sender's program has put them.
            pub data: [u8; LEN],
        }

        impl View<'_> {
            /// The bytes.
            pub fn data(&self) -> [u8; LEN] {
                crate::bytes::array(self.0, field::DATA)
            }
        }

        impl Repr {
            /// Parses a header.
            ///
            /// # Errors
            /// None: every value has a meaning.
            pub fn parse(view: &View<'_>) -> crate::Result<Repr> {
                Ok(Repr { data: view.data() })
            }

            /// The bytes.
            pub fn emit(&self) -> [u8; LEN] {
                let mut out = [0; LEN];
                crate::bytes::put(&mut out, field::DATA, &self.data);
                out
            }
        }

        impl core::fmt::Display for Repr {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str("imm=0x")?;
                self.data.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
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
