//! Small packets in three words of registers.

use verbs::{Psn, Qpn};

use crate::packet::{Head, Packet, PacketOp, packet_flags};

/// A small SEND or an acknowledgement, with a payload of at most 8 bytes. Its words are few enough to stay in registers
/// if the receiver takes the packet at once. A [`Packet`] is written to memory member by member, and read by wider
/// loads than the stores were.
///
/// ```text
/// 0  op:8 flags:8 syndrome:8 dst:24       1  src:24 psn:24 mtu:16       2  imm:32 len:32      (lowest bits first)
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ShortPacket {
    words: [u64; 3],
    received: u32,
    payload: u64,
}

impl ShortPacket {
    /// The packet with this header, and the bytes of payload that came with it, at most 8 (what lies behind them means
    /// nothing). `None` if it is no SEND and no acknowledgement.
    #[inline(always)]
    pub fn new(words: [u64; 3], received: u32, payload: u64) -> Option<ShortPacket> {
        Self::is_short(words[0]).then_some(ShortPacket { words, received, payload })
    }

    /// True for the first word of a SEND or of an acknowledgement.
    #[inline(always)]
    pub const fn is_short(word: u64) -> bool {
        let op = word as u8;
        op == PacketOp::Send as u8 || op == PacketOp::Ack as u8
    }

    /// True for an acknowledgement; the others are SENDs.
    #[inline(always)]
    pub fn is_ack(&self) -> bool {
        self.words[0] as u8 == PacketOp::Ack as u8
    }

    /// True if the packet asks for an acknowledgement.
    #[inline(always)]
    pub fn asks_for_ack(&self) -> bool {
        (self.words[0] >> 8) as u8 & packet_flags::ACK_REQ != 0
    }

    /// True if `self` and the other packet are of one kind, and have the same source and destination queue pair.
    #[inline(always)]
    pub fn follows(&self, other: &ShortPacket) -> bool {
        const KIND_AND_DST: u64 = 0xffff_ff00_00ff;
        (self.words[0] ^ other.words[0]) & KIND_AND_DST | (self.words[1] ^ other.words[1]) & 0xff_ffff == 0
    }

    /// Destination queue pair.
    #[inline(always)]
    pub fn dst(&self) -> Qpn {
        Qpn::new((self.words[0] >> 24) as u32)
    }

    /// Payload bytes that came with the packet.
    #[inline(always)]
    pub fn received(&self) -> u32 {
        self.received
    }

    /// The payload's bytes, in the order of memory.
    #[inline(always)]
    pub fn payload(&self) -> u64 {
        self.payload
    }

    /// This packet with all its members.
    pub fn packet(&self) -> Packet {
        let op = if self.is_ack() { PacketOp::Ack } else { PacketOp::Send };
        Packet {
            flags: Head::flags(*self),
            syndrome: Head::syndrome(*self),
            imm: Head::imm(*self),
            len: Head::len(*self),
            mtu: Head::mtu(*self),
            ..Packet::new(op, self.dst(), Head::src(*self), Head::psn(*self))
        }
    }
}

impl Head for ShortPacket {
    #[inline(always)]
    fn flags(self) -> u8 {
        (self.words[0] >> 8) as u8
    }
    #[inline(always)]
    fn syndrome(self) -> u8 {
        (self.words[0] >> 16) as u8
    }
    #[inline(always)]
    fn src(self) -> Qpn {
        Qpn::new(self.words[1] as u32)
    }
    #[inline(always)]
    fn psn(self) -> Psn {
        Psn::new((self.words[1] >> 24) as u32)
    }
    #[inline(always)]
    fn imm(self) -> u32 {
        self.words[2] as u32
    }
    #[inline(always)]
    fn len(self) -> u32 {
        (self.words[2] >> 32) as u32
    }
    #[inline(always)]
    fn mtu(self) -> u32 {
        (self.words[1] >> 48) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_is_of_the_same_kind_from_the_same_to_the_same() {
        let short = |op: PacketOp, dst: u64, src: u64, rest: u64| {
            ShortPacket::new([op as u64 | rest << 8 | dst << 24, src | rest << 24, rest], 8, rest).unwrap()
        };
        let first = short(PacketOp::Send, 5, 7, 0);
        assert!(short(PacketOp::Send, 5, 7, 0xffff).follows(&first));
        for other in [(PacketOp::Ack, 5, 7), (PacketOp::Send, 1 << 23 | 5, 7), (PacketOp::Send, 5, 1 << 23 | 7)] {
            assert!(!short(other.0, other.1, other.2, 0).follows(&first), "{other:?}");
        }
    }
}
