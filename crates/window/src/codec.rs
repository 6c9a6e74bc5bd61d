//! A packet as the header words of a ring record.
//!
//! ```text
//! 0  op:8 flags:8 syndrome:8 dst:24       3  rkey:32 dma_len:32
//! 1  src:24 psn:24 mtu:16                 4  remote_addr:64
//! 2  imm:32 len:32                        5  swap:64   6  compare:64      (lowest bits first)
//! ```
//!
//! Words at the end that are 0 are left out, in the steps that the ring knows: 3 (SEND, ACK), 4 (datagrams), 5 (WRITE,
//! READ), 7 (atomics, XRC). So an 8-byte SEND or WRITE with its data is one cache line.

use memory::ring::Short;
use verbs::{Psn, Qpn};
use wire::{Packet, PacketOp, ShortPacket};

/// The header of a packet: the first so many of these words.
#[inline(always)]
pub(crate) fn encode(p: &Packet) -> ([u64; 7], usize) {
    let words = [
        p.op as u64 | u64::from(p.flags) << 8 | u64::from(p.syndrome) << 16 | u64::from(p.dst.get()) << 24,
        u64::from(p.src.get()) | u64::from(p.psn.get()) << 24 | u64::from(p.mtu) << 48,
        u64::from(p.imm) | u64::from(p.len) << 32,
        u64::from(p.rkey) | u64::from(p.dma_len) << 32,
        p.remote_addr,
        p.swap,
        p.compare,
    ];
    let used = if words[5] | words[6] != 0 {
        7
    } else if words[4] != 0 {
        5
    } else if words[3] != 0 {
        4
    } else {
        3
    };
    (words, used)
}

/// Encodes a header of 3 or 4 words, and behind it a payload of at most 8 bytes. The flag tells that the header has 4
/// words. `None` if the header is longer.
#[inline(always)]
pub(crate) fn encode_short(p: &Packet, payload: u64) -> Option<([u64; 5], bool)> {
    if p.remote_addr | p.swap | p.compare != 0 {
        return None;
    }
    let ([w0, w1, w2, w3, ..], _) = encode(p);
    Some(if w3 != 0 { ([w0, w1, w2, w3, payload], true) } else { ([w0, w1, w2, payload, 0], false) })
}

/// The packet of a short record. `None` if the record is no such packet.
#[inline(always)]
pub(crate) fn decode_short(short: &Short) -> Option<ShortPacket> {
    let [w0, w1, w2, w3, w4] = short.words;
    // A fourth word of the header is the length of the whole message, which is that of the packet.
    ShortPacket::new([w0, w1, w2], short.len, if short.four { w4 } else { w3 })
}

/// Writes the packet with a header of the first `words` of these to `packet`. A packet is large, and so is made where
/// it stays. False if there is no such operation.
#[inline(always)]
pub(crate) fn decode(body: &[u64; 7], words: usize, packet: &mut Packet) -> bool {
    let Some(op) = PacketOp::from_raw(body[0] as u8) else { return false };
    // What lies behind the header is payload.
    let word = |i: usize| if i < words { body[i] } else { 0 };
    let w3 = word(3);
    packet.op = op;
    packet.flags = (body[0] >> 8) as u8;
    packet.syndrome = (body[0] >> 16) as u8;
    packet.dst = Qpn::new((body[0] >> 24) as u32);
    packet.src = Qpn::new(body[1] as u32);
    packet.psn = Psn::new((body[1] >> 24) as u32);
    packet.mtu = (body[1] >> 48) as u32;
    packet.imm = body[2] as u32;
    packet.len = (body[2] >> 32) as u32;
    packet.rkey = w3 as u32;
    packet.dma_len = (w3 >> 32) as u32;
    packet.remote_addr = word(4);
    packet.swap = word(5);
    packet.compare = word(6);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(words: &[u64; 7], n: usize) -> Option<Packet> {
        let mut packet = Packet::NONE;
        super::decode(words, n, &mut packet).then_some(packet)
    }

    #[test]
    fn every_field_survives() {
        let mut p = Packet::new(PacketOp::CompareSwap, Qpn::new(0xabcdef), Qpn::new(0x123456), Psn::new(0xfedcba));
        assert_eq!(encode(&p).1, 3);
        (p.flags, p.syndrome, p.imm, p.len, p.mtu) = (0xa5, 0x7f, 0xdead_beef, u32::MAX, 4096);
        assert_eq!(encode(&p).1, 3);
        (p.rkey, p.dma_len) = (u32::MAX, 0x8000_0001);
        assert_eq!(encode(&p).1, 4);
        p.remote_addr = u64::MAX - 3;
        assert_eq!(encode(&p).1, 5);
        (p.swap, p.compare) = (1, 0x8000_0000_0000_0002);
        assert_eq!(encode(&p).1, 7);
        let (words, n) = encode(&p);
        assert_eq!(decode(&words, n), Some(p));
    }

    #[test]
    fn a_short_record_is_the_same() {
        let mut p = Packet::new(PacketOp::Send, Qpn::new(4096), Qpn::new(8192), Psn::new(7));
        (p.flags, p.syndrome, p.imm, p.len, p.mtu) = (0xa5, 0x7f, 0xdead_beef, u32::MAX, 4096);
        for (op, dma_len) in [(PacketOp::Send, 0), (PacketOp::Send, 8), (PacketOp::Ack, 0)] {
            (p.op, p.dma_len) = (op, dma_len);
            let (words, used) = encode(&p);
            let (short, four) = encode_short(&p, 0xabcd).unwrap();
            assert_eq!((four, &short[..used], short[used]), (used == 4, &words[..used], 0xabcd));
            let back = decode_short(&Short { four, len: 2, words: short }).unwrap();
            assert_eq!((back.packet(), back.received(), back.payload()), (Packet { dma_len: 0, ..p }, 2, 0xabcd));
        }
        for field in [|p: &mut Packet| p.remote_addr = 1, |p: &mut Packet| p.swap = 1, |p: &mut Packet| p.compare = 1] {
            let mut long = p;
            field(&mut long);
            assert!(encode_short(&long, 0).is_none());
        }
    }

    #[test]
    fn what_is_left_out_is_zero() {
        let mut p = Packet::new(PacketOp::Write, Qpn::new(4096), Qpn::new(8192), Psn::new(7));
        for step in 0..4 {
            match step {
                1 => p.dma_len = 9,
                2 => p.remote_addr = 10,
                3 => p.compare = 11,
                _ => {}
            }
            let (words, n) = encode(&p);
            assert_eq!(decode(&words, n), Some(p));
        }
    }

    #[test]
    fn an_unknown_operation_is_none() {
        for op in 0..=255u64 {
            assert_eq!(decode(&[op, 0, 0, 0, 0, 0, 0], 3).is_some(), op <= 10);
            let short = Short { four: false, len: 0, words: [op, 0, 0, 0, 0] };
            assert_eq!(decode_short(&short).is_some(), op == PacketOp::Send as u64 || op == PacketOp::Ack as u64);
        }
    }
}
