//! RDMA extended transport header (IBTA vol. 1, 9.3.3): which remote memory.

use core::fmt;

use verbs::RKey;

use crate::Result;
use crate::bytes::{put_u32, put_u64, u32_at, u64_at};

mod field {
    pub const REMOTE_ADDR: usize = 0;
    pub const RKEY: usize = 8;
    pub const DMA_LEN: usize = 12;
}

header!("RDMA extended transport header", 16);

/// The fields of an RDMA extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Virtual address in the responder.
    pub remote_addr: u64,
    /// Key of the region or window.
    pub rkey: RKey,
    /// Bytes of the whole message. What is more than 2^31 is an invalid request (9.4.3, 9.4.4), which the responder
    /// answers with a NAK: it is not refused here.
    pub dma_len: u32,
}

impl View<'_> {
    /// The virtual address.
    pub fn remote_addr(&self) -> u64 {
        u64_at(self.0, field::REMOTE_ADDR)
    }

    /// The remote key.
    pub fn rkey(&self) -> RKey {
        RKey(u32_at(self.0, field::RKEY))
    }

    /// Bytes of the whole message.
    pub fn dma_len(&self) -> u32 {
        u32_at(self.0, field::DMA_LEN)
    }
}

impl Repr {
    /// Parses a header.
    ///
    /// # Errors
    /// None: every value has a meaning.
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        Ok(Repr { remote_addr: view.remote_addr(), rkey: view.rkey(), dma_len: view.dma_len() })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u64(&mut out, field::REMOTE_ADDR, self.remote_addr);
        put_u32(&mut out, field::RKEY, self.rkey.0);
        put_u32(&mut out, field::DMA_LEN, self.dma_len);
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "addr={:#x} rkey={:#x} len={}", self.remote_addr, self.rkey.0, self.dma_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let reth = Repr { remote_addr: 0x1122_3344_5566_7788, rkey: RKey(0x99aa_bbcc), dma_len: 0x0102_0304 };
        assert_wire!(reth, "1122334455667788 99aabbcc 01020304");
        assert_eq!(std::format!("{reth}"), "addr=0x1122334455667788 rkey=0x99aabbcc len=16909060");
    }
}
