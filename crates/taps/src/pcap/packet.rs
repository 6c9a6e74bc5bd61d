//! The bytes of a RoCEv2 packet: Ethernet, IP, UDP, the base and extended transport headers, the invariant CRC (IBTA
//! vol. 1, chapter 9; annex A14 for XRC, A17 for RoCEv2, A19 for FLUSH and ATOMIC WRITE).

use std::net::IpAddr;

use engine::platform::{Packet, PacketOp, packet_flags as flag};
use verbs::{Gid, Psn, QpType, Qpn, limits};

/// RoCEv2's UDP port (annex A17.3.1.1).
const PORT: u16 = 4791;
const ETHERNET: usize = 14;
const UDP: usize = 8;
const BTH: usize = 12;

/// Operations of the base transport header, without the service in the upper three bits (table 35).
mod op {
    pub const SEND_FIRST: u8 = 0x00;
    pub const SEND_MIDDLE: u8 = 0x01;
    pub const SEND_LAST: u8 = 0x02;
    pub const SEND_LAST_IMM: u8 = 0x03;
    pub const SEND_ONLY: u8 = 0x04;
    pub const SEND_ONLY_IMM: u8 = 0x05;
    pub const WRITE_FIRST: u8 = 0x06;
    pub const WRITE_MIDDLE: u8 = 0x07;
    pub const WRITE_LAST: u8 = 0x08;
    pub const WRITE_LAST_IMM: u8 = 0x09;
    pub const WRITE_ONLY: u8 = 0x0a;
    pub const WRITE_ONLY_IMM: u8 = 0x0b;
    pub const READ_REQUEST: u8 = 0x0c;
    pub const READ_RESPONSE_FIRST: u8 = 0x0d;
    pub const READ_RESPONSE_MIDDLE: u8 = 0x0e;
    pub const READ_RESPONSE_LAST: u8 = 0x0f;
    pub const READ_RESPONSE_ONLY: u8 = 0x10;
    pub const ACKNOWLEDGE: u8 = 0x11;
    pub const ATOMIC_ACKNOWLEDGE: u8 = 0x12;
    pub const COMPARE_SWAP: u8 = 0x13;
    pub const FETCH_ADD: u8 = 0x14;
    pub const SEND_LAST_INV: u8 = 0x16;
    pub const SEND_ONLY_INV: u8 = 0x17;
    pub const FLUSH: u8 = 0x1c;
    pub const ATOMIC_WRITE: u8 = 0x1d;
}

/// Where a packet comes from and goes to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub source: Gid,
    pub dest: Gid,
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub flow_label: u32,
    /// The sender's queue pair: each has a UDP source port of its own, as adapters have for the sake of routers. It is
    /// all in a packet that tells the directions of two queue pairs behind one address apart.
    pub from: Qpn,
}

impl Way {
    /// RoCEv2 has one IP header; both ends are IPv4, or both are IPv6.
    fn is_v6(&self) -> bool {
        self.source.ipv4().is_none() || self.dest.ipv4().is_none()
    }

    fn header(&self) -> usize {
        ETHERNET + if self.is_v6() { 40 } else { 20 } + UDP
    }

    fn port(&self) -> u16 {
        // A17.3.1.1: from the dynamic range, the same for all packets of a flow.
        let spread = self.from.get().wrapping_mul(0x9e37_79b1) >> 18;
        0xc000 | spread as u16
    }

    /// Unicast packets have the hop limit of the route, as Linux sets it whatever the address handle says.
    fn hops(&self) -> u8 {
        match self.hop_limit {
            0 | 1 if !self.dest.is_multicast() => 64,
            hops => hops,
        }
    }
}

/// One packet of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub psn: Psn,
    /// Of the message.
    pub first: bool,
    /// Of the message.
    pub last: bool,
    /// Payload bytes.
    pub len: u32,
}

/// Begins a packet: all headers, with lengths and sums still to come.
pub(super) fn begin(out: &mut Vec<u8>, way: &Way, service: QpType, packet: &Packet, piece: &Piece) {
    out.clear();
    out.extend_from_slice(&station(&way.dest));
    out.extend_from_slice(&station(&way.source));
    if way.is_v6() {
        out.extend_from_slice(&0x86ddu16.to_be_bytes());
        let first = 6 << 28 | u32::from(way.traffic_class) << 20 | way.flow_label & 0xf_ffff;
        out.extend_from_slice(&first.to_be_bytes());
        out.extend_from_slice(&[0, 0, 17, way.hops()]);
        out.extend_from_slice(&way.source.0);
        out.extend_from_slice(&way.dest.0);
    } else {
        out.extend_from_slice(&0x0800u16.to_be_bytes());
        // Do not fragment, and so no identification (RFC 6864).
        out.extend_from_slice(&[0x45, way.traffic_class, 0, 0, 0, 0, 0x40, 0, way.hops(), 17, 0, 0]);
        out.extend_from_slice(&way.source.0[12..]);
        out.extend_from_slice(&way.dest.0[12..]);
    }
    out.extend_from_slice(&way.port().to_be_bytes());
    out.extend_from_slice(&PORT.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    transport(out, service, packet, piece);
}

/// Ends a packet behind its payload: padding, ICRC, lengths, sums.
pub(super) fn end(out: &mut Vec<u8>, way: &Way) {
    out.resize((out.len() - way.header()).next_multiple_of(4) + way.header(), 0);
    let v6 = way.is_v6();
    let udp = way.header() - UDP;
    let len = (out.len() + 4 - udp) as u16;
    out[udp + 4..udp + 6].copy_from_slice(&len.to_be_bytes());
    let ip = &mut out[ETHERNET..udp];
    if v6 {
        ip[4..6].copy_from_slice(&len.to_be_bytes());
    } else {
        ip[2..4].copy_from_slice(&(len + 20).to_be_bytes());
        let sum = fold(add(0, ip));
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let icrc = invariant_crc(&out[ETHERNET..], v6);
    out.extend_from_slice(&icrc.to_le_bytes());
    // A17.3.1: none over IPv4. IPv6 knows no datagram without one (RFC 8200, 8.1).
    if v6 {
        let pseudo = add(u32::from(len) + 17, &out[ETHERNET + 8..udp]);
        let sum = match fold(add(pseudo, &out[udp..])) {
            0 => 0xffff,
            sum => sum,
        };
        out[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
    }
}

/// The CRC over everything that routers leave as it is (annex A17.3.3), of a packet from its IP header on.
fn invariant_crc(ip: &[u8], v6: bool) -> u32 {
    let udp = if v6 { 40 } else { 20 };
    let mut head = [0u8; 40 + UDP + BTH];
    let head = &mut head[..udp + UDP + BTH];
    head.copy_from_slice(&ip[..udp + UDP + BTH]);
    if v6 {
        head[0] |= 0x0f; // traffic class and flow label
        head[1..4].fill(0xff);
        head[7] = 0xff; // hop limit
    } else {
        head[1] = 0xff; // type of service
        head[8] = 0xff; // time to live
        head[10..12].fill(0xff); // header checksum
    }
    head[udp + 6..udp + 8].fill(0xff); // UDP's checksum
    head[udp + UDP + 4] = 0xff; // FECN, BECN and reserved bits
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[0xff; 8]); // where InfiniBand has its local route header
    crc.update(head);
    crc.update(&ip[head.len()..]);
    crc.finalize()
}

/// Base and extended transport headers; of ATOMIC WRITE also the payload.
fn transport(out: &mut Vec<u8>, service: QpType, packet: &Packet, piece: &Piece) {
    let xrc = matches!(service, QpType::XrcIni | QpType::XrcTgt);
    let class = match service {
        _ if packet.op == PacketOp::Datagram => 0x60,
        QpType::Uc => 0x20,
        QpType::Ud => 0x60,
        QpType::Rc => 0,
        QpType::XrcIni | QpType::XrcTgt => 0xa0,
    };
    let code = operation(packet, piece);
    let flags = u8::from(piece.last && packet.has(flag::SOLICITED)) << 7
        | 1 << 6 // migrated: the path is the primary one
        | ((piece.len.wrapping_neg() & 3) as u8) << 4;
    let ack = u32::from(piece.last && packet.has(flag::ACK_REQ) && !packet.op.is_response());
    out.extend_from_slice(&[class | code, flags]);
    out.extend_from_slice(&limits::DEFAULT_PKEY.to_be_bytes());
    out.extend_from_slice(&packet.dst.get().to_be_bytes());
    out.extend_from_slice(&(ack << 31 | piece.psn.get()).to_be_bytes());
    if xrc && !packet.op.is_response() {
        let srqn = if matches!(packet.op, PacketOp::Send | PacketOp::Write) { packet.swap as u32 } else { 0 };
        out.extend_from_slice(&(srqn & 0xff_ffff).to_be_bytes());
    }
    match code {
        _ if packet.op == PacketOp::Datagram => {
            out.extend_from_slice(&packet.rkey.to_be_bytes());
            out.extend_from_slice(&packet.src.get().to_be_bytes());
        }
        op::WRITE_FIRST | op::WRITE_ONLY | op::WRITE_ONLY_IMM | op::READ_REQUEST => {
            remote(out, packet, packet.dma_len);
        }
        op::ATOMIC_WRITE => {
            remote(out, packet, 8);
            out.extend_from_slice(&packet.swap.to_ne_bytes());
        }
        op::FLUSH => {
            out.extend_from_slice(&u32::from(packet.syndrome & 0x3f).to_be_bytes());
            remote(out, packet, packet.dma_len);
        }
        op::COMPARE_SWAP | op::FETCH_ADD => {
            out.extend_from_slice(&packet.remote_addr.to_be_bytes());
            out.extend_from_slice(&packet.rkey.to_be_bytes());
            out.extend_from_slice(&packet.swap.to_be_bytes());
            out.extend_from_slice(&packet.compare.to_be_bytes());
        }
        op::ACKNOWLEDGE
        | op::ATOMIC_ACKNOWLEDGE
        | op::READ_RESPONSE_FIRST
        | op::READ_RESPONSE_LAST
        | op::READ_RESPONSE_ONLY => {
            out.extend_from_slice(&(u32::from(packet.syndrome) << 24 | packet.imm & 0xff_ffff).to_be_bytes());
            if code == op::ATOMIC_ACKNOWLEDGE {
                out.extend_from_slice(&packet.swap.to_be_bytes());
            }
        }
        _ => {}
    }
    if piece.last && packet.has(flag::INV) {
        out.extend_from_slice(&packet.imm.to_be_bytes());
    } else if piece.last && packet.has(flag::IMM) {
        // The program's own four bytes, in network byte order as it has put them there.
        out.extend_from_slice(&packet.imm.to_ne_bytes());
    }
}

/// The RETH.
fn remote(out: &mut Vec<u8>, packet: &Packet, len: u32) {
    out.extend_from_slice(&packet.remote_addr.to_be_bytes());
    out.extend_from_slice(&packet.rkey.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
}

fn operation(packet: &Packet, piece: &Piece) -> u8 {
    let shape = |first, middle, last, only| match (piece.first, piece.last) {
        (true, false) => first,
        (false, false) => middle,
        (false, true) => last,
        (true, true) => only,
    };
    match packet.op {
        PacketOp::Send if packet.has(flag::INV) => {
            shape(op::SEND_FIRST, op::SEND_MIDDLE, op::SEND_LAST_INV, op::SEND_ONLY_INV)
        }
        PacketOp::Send if packet.has(flag::IMM) => {
            shape(op::SEND_FIRST, op::SEND_MIDDLE, op::SEND_LAST_IMM, op::SEND_ONLY_IMM)
        }
        PacketOp::Send => shape(op::SEND_FIRST, op::SEND_MIDDLE, op::SEND_LAST, op::SEND_ONLY),
        PacketOp::Write if packet.has(flag::IMM) => {
            shape(op::WRITE_FIRST, op::WRITE_MIDDLE, op::WRITE_LAST_IMM, op::WRITE_ONLY_IMM)
        }
        PacketOp::Write => shape(op::WRITE_FIRST, op::WRITE_MIDDLE, op::WRITE_LAST, op::WRITE_ONLY),
        PacketOp::ReadRequest => op::READ_REQUEST,
        PacketOp::ReadResponse => {
            shape(op::READ_RESPONSE_FIRST, op::READ_RESPONSE_MIDDLE, op::READ_RESPONSE_LAST, op::READ_RESPONSE_ONLY)
        }
        PacketOp::CompareSwap => op::COMPARE_SWAP,
        PacketOp::FetchAdd => op::FETCH_ADD,
        PacketOp::AtomicWrite => op::ATOMIC_WRITE,
        PacketOp::Flush => op::FLUSH,
        // A19.4: ATOMIC WRITE and FLUSH are answered like a READ of no bytes.
        PacketOp::AtomicAck if packet.len == 0 => op::READ_RESPONSE_ONLY,
        PacketOp::AtomicAck => op::ATOMIC_ACKNOWLEDGE,
        PacketOp::Ack => op::ACKNOWLEDGE,
        PacketOp::Datagram if packet.has(flag::IMM) => op::SEND_ONLY_IMM,
        PacketOp::Datagram => op::SEND_ONLY,
    }
}

/// An Ethernet address for a GID: of a group the one that IP has for it (RFC 1112, 6.4; RFC 2464, 7), else a locally
/// administered one.
fn station(gid: &Gid) -> [u8; 6] {
    let [.., b, c, d, e] = gid.0;
    match (gid.is_multicast(), gid.ip()) {
        (true, IpAddr::V4(_)) => [0x01, 0x00, 0x5e, c & 0x7f, d, e],
        (true, IpAddr::V6(_)) => [0x33, 0x33, b, c, d, e],
        (false, _) => [0x02, 0x00, b, c, d, e],
    }
}

/// Adds 16-bit words (RFC 1071).
fn add(sum: u32, bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low)));
    words.fold(sum, |sum, word| sum + word)
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
#[path = "packet_tests.rs"]
mod tests;
