//! What a READ request has behind its untagged header (RFC 5040, section 4.4).

use core::fmt;

use verbs::RKey;

use crate::Result;
use crate::bytes::{put_u32, put_u64, u32_at, u64_at};

mod field {
    pub const SINK_STAG: usize = 0;
    pub const SINK_OFFSET: usize = 4;
    pub const SIZE: usize = 12;
    pub const SOURCE_STAG: usize = 16;
    pub const SOURCE_OFFSET: usize = 20;
}

header!("READ request header", 28);

/// The fields of a READ request header. The memory of a request of no bytes is not checked: RFC 5040, section 5.2.1 at
/// the responder, RFC 5041, section 5.2 at the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The requester's memory, which the response is to name.
    pub sink_stag: RKey,
    /// The offset in that memory.
    pub sink_offset: u64,
    /// Bytes to read.
    pub size: u32,
    /// The responder's memory.
    pub source_stag: RKey,
    /// The offset in that memory.
    pub source_offset: u64,
}

impl View<'_> {
    /// The requester's steering tag.
    pub fn sink_stag(&self) -> RKey {
        RKey(u32_at(self.0, field::SINK_STAG))
    }

    /// The requester's tagged offset.
    pub fn sink_offset(&self) -> u64 {
        u64_at(self.0, field::SINK_OFFSET)
    }

    /// Bytes to read.
    pub fn size(&self) -> u32 {
        u32_at(self.0, field::SIZE)
    }

    /// The responder's steering tag.
    pub fn source_stag(&self) -> RKey {
        RKey(u32_at(self.0, field::SOURCE_STAG))
    }

    /// The responder's tagged offset.
    pub fn source_offset(&self) -> u64 {
        u64_at(self.0, field::SOURCE_OFFSET)
    }
}

impl Repr {
    /// Parses a header.
    ///
    /// # Errors
    /// None: every value has a meaning.
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        Ok(Repr {
            sink_stag: view.sink_stag(),
            sink_offset: view.sink_offset(),
            size: view.size(),
            source_stag: view.source_stag(),
            source_offset: view.source_offset(),
        })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u32(&mut out, field::SINK_STAG, self.sink_stag.0);
        put_u64(&mut out, field::SINK_OFFSET, self.sink_offset);
        put_u32(&mut out, field::SIZE, self.size);
        put_u32(&mut out, field::SOURCE_STAG, self.source_stag.0);
        put_u64(&mut out, field::SOURCE_OFFSET, self.source_offset);
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Repr { sink_stag, sink_offset, size, source_stag, source_offset } = self;
        write!(f, "{size} bytes of {:#x}+{source_offset:#x} to {:#x}+{sink_offset:#x}", source_stag.0, sink_stag.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let header = Repr {
            sink_stag: RKey(0x0102_0304),
            sink_offset: 0x1112_1314_1516_1718,
            size: 0x2122_2324,
            source_stag: RKey(0x3132_3334),
            source_offset: 0x4142_4344_4546_4748,
        };
        assert_wire!(header, "01020304 1112131415161718 21222324 31323334 4142434445464748");
        let line = "555885348 bytes of 0x31323334+0x4142434445464748 to 0x1020304+0x1112131415161718";
        assert_eq!(std::format!("{header}"), line);
    }
}
