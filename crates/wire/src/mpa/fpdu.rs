//! FPDU: one DDP segment in the TCP stream (RFC 5044, section 4.1): its length, the segment, padding to a multiple of
//! four bytes, a CRC. The CRC's bytes are always there, and have no meaning unless a side asked for CRCs.

use core::fmt;

use crate::bytes::{put_u16, u16_at};
use crate::{Error, Result};

mod field {
    pub const SEGMENT_LEN: usize = 0;
}

header!("header of an FPDU", 2);

/// Bytes of the CRC.
pub const CRC_LEN: usize = 4;

/// CRC32c, as iSCSI has it (RFC 5044, section 4.4), by tables. Sixteen of them: a step takes 16 bytes.
#[cfg(any(test, not(feature = "std")))]
mod tables {
    type Table = crc::Table<16>;
    static CRC32C: crc::Crc<u32, Table> = crc::Crc::<u32, Table>::new(&crc::CRC_32_ISCSI);

    /// The CRC of what this is the CRC of, and of these bytes behind it.
    pub(super) fn append(before: u32, bytes: &[u8]) -> u32 {
        // A digest starts with the register. The CRC is the complement of the register, whose bits the algorithm has in
        // the other order.
        let mut digest = CRC32C.digest_with_initial((!before).reverse_bits());
        digest.update(bytes);
        digest.finalize()
    }
}

#[cfg(feature = "std")]
use crc32c::crc32c_append as append;
#[cfg(not(feature = "std"))]
use tables::append;

/// The fields of the header of an FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Bytes of the DDP segment: without this header, padding, CRC and markers.
    pub segment_len: u16,
}

impl View<'_> {
    /// Bytes of the DDP segment.
    pub fn segment_len(&self) -> u16 {
        u16_at(self.0, field::SEGMENT_LEN)
    }
}

impl Repr {
    /// Parses a header.
    ///
    /// # Errors
    /// None: what is too short for DDP is an error of DDP.
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        Ok(Repr { segment_len: view.segment_len() })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u16(&mut out, field::SEGMENT_LEN, self.segment_len);
        out
    }

    /// Bytes of padding, which are zero: header, segment and padding are a multiple of four.
    pub const fn pad(&self) -> usize {
        (LEN + self.segment_len as usize).wrapping_neg() & 3
    }

    /// Bytes of the whole FPDU without markers.
    pub const fn fpdu_len(&self) -> usize {
        LEN + self.segment_len as usize + self.pad() + CRC_LEN
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FPDU segment={}", self.segment_len)
    }
}

/// The CRC of an FPDU: over its header, segment, padding and every marker inside, in the order of the stream. A marker
/// in front of the FPDU is part of it (RFC 5044, section 4.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crc(u32);

impl Crc {
    /// The CRC of no bytes.
    pub const fn new() -> Crc {
        Crc(0)
    }

    /// Takes in what follows.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Crc {
        Crc(append(self.0, bytes))
    }

    /// The bytes at the end of the FPDU. They are little-endian: the bit order of iSCSI (RFC 5044, section 4.4).
    pub fn finish(self) -> [u8; CRC_LEN] {
        self.0.to_le_bytes()
    }
}

/// The FPDU at the start of a stream without markers: its segment, and what follows it.
///
/// # Errors
/// [`Error::Truncated`] if more bytes are to come; [`Error::Checksum`] if `checked` and the CRC is wrong.
pub fn read(bytes: &[u8], checked: bool) -> Result<(&[u8], &[u8])> {
    let (header, after) = Repr::read(bytes)?;
    let (fpdu, rest) = bytes.split_at_checked(header.fpdu_len()).ok_or(Error::Truncated)?;
    let (covered, crc) = fpdu.split_last_chunk::<CRC_LEN>().ok_or(Error::Truncated)?;
    if checked && Crc::new().bytes(covered).finish() != *crc {
        return Err(Error::Checksum);
    }
    Ok((after.get(..usize::from(header.segment_len)).ok_or(Error::Truncated)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::hex;

    #[test]
    fn literal_bytes() {
        assert_wire!(Repr { segment_len: 42 }, "002a");
        assert_eq!(std::format!("{}", Repr { segment_len: 42 }), "FPDU segment=42");
    }

    #[test]
    fn lengths_are_those_of_the_messages() {
        // A WRITE of no bytes (tagged header), a READ request (untagged header, 28 bytes), a WRITE of 8 bytes.
        assert_eq!([14, 18 + 28, 14 + 8].map(|segment_len| Repr { segment_len }.fpdu_len()), [20, 52, 28]);
        assert_eq!([0, 1, 2, 3, 4].map(|segment_len| Repr { segment_len }.pad()), [2, 1, 0, 3, 2]);
        assert_eq!(Repr { segment_len: u16::MAX }.fpdu_len(), 2 + 65535 + 3 + 4);
    }

    #[test]
    fn the_crc_is_that_of_the_figures_of_rfc_5044() {
        // Figure 5: a marker in front.
        let fpdu = hex(&std::format!("00000000 002a4143 {} 00000001 {}", "00".repeat(8), "00".repeat(28)));
        assert_eq!(Crc::new().bytes(&fpdu).finish(), [0x52, 0x23, 0x99, 0x83]);
        // Figure 6: the marker inside.
        let fpdu = hex(&std::format!("002a4143 {} 00000002 00000000 00000014 {}", "00".repeat(8), "00".repeat(24)));
        let halves = fpdu.split_at(7);
        assert_eq!(Crc::new().bytes(halves.0).bytes(halves.1).finish(), [0x84, 0x92, 0x58, 0x98]);
    }

    #[test]
    fn instructions_and_tables_give_one_crc() {
        let bytes: std::vec::Vec<u8> = (0..70_000u32).map(|n| (n.wrapping_mul(n) / 7) as u8).collect();
        for (start, len) in (0..9).flat_map(|start| (0..300).chain([1023, 4099, 65_535]).map(move |len| (start, len))) {
            let (first, second) = bytes[start..start + len].split_at(len / 3);
            let by_tables = tables::append(tables::append(0, first), second);
            assert_eq!(Crc::new().bytes(first).bytes(second), Crc(by_tables), "{len} bytes from {start} on");
        }
    }

    #[test]
    fn an_fpdu_is_taken_from_the_stream_when_it_is_whole() {
        let mut stream = hex("0003 aabbcc 000000");
        let crc = Crc::new().bytes(&stream).finish();
        stream.extend_from_slice(&crc);
        stream.push(0x77);
        assert_eq!(read(&stream, true), Ok((&hex("aabbcc")[..], &[0x77][..])));
        for short in 0..12 {
            assert_eq!(read(&stream[..short], true), Err(Error::Truncated));
        }
        stream[2] ^= 1;
        assert_eq!(read(&stream, true), Err(Error::Checksum));
        assert_eq!(read(&stream, false), Ok((&hex("abbbcc")[..], &[0x77][..])));
    }
}
