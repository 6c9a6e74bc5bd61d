//! A packet of the engine as a RoCEv2 frame (IBTA vol. 1, chapter 9; annex A14 for XRC, A17 for RoCEv2, A19 for FLUSH
//! and ATOMIC WRITE). The layout of the headers is that of the crate `wire`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use verbs::{Gid, Psn, QpType, Qpn, RKey, limits};
use wire::opcode::{Extension, Opcode, Operation, Service};
use wire::{Packet, PacketOp, packet_flags as flag};
use wire::{aeth, atomic_ack_eth, atomic_eth, bth, deth, ethernet, feth, ieth, imm_dt, ipv4, ipv6, reth, roce};
use wire::{transport, udp, xrceth};

/// The source and the destination of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub source: Gid,
    pub dest: Gid,
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub flow_label: u32,
    /// The sender's queue pair. Each has a UDP source port of its own, as adapters have for the sake of routers. In a
    /// packet only that port tells the directions of two queue pairs behind one address apart.
    pub from: Qpn,
}

impl Way {
    /// True for IPv6. RoCEv2 has one IP header; both ends are IPv4, or both are IPv6.
    fn is_v6(&self) -> bool {
        self.source.ipv4().is_none() || self.dest.ipv4().is_none()
    }

    fn port(&self) -> u16 {
        // A17.3.1.1: from the dynamic range, the same for all packets of a flow.
        let spread = self.from.get().wrapping_mul(0x9e37_79b1) >> 18;
        0xc000 | spread as u16
    }

    /// The IP header. Its length is set when the frame is emitted.
    fn ip(&self) -> roce::Ip {
        if self.is_v6() {
            return roce::Ip::V6(ipv6::Repr {
                traffic_class: self.traffic_class,
                flow_label: self.flow_label,
                payload_len: 0,
                next_header: udp::PROTOCOL,
                hop_limit: self.hops(),
                source: Ipv6Addr::from(self.source.0),
                dest: Ipv6Addr::from(self.dest.0),
            });
        }
        roce::Ip::V4(ipv4::Repr {
            type_of_service: self.traffic_class,
            payload_len: 0,
            identification: 0,
            dont_fragment: true,
            time_to_live: self.hops(),
            protocol: udp::PROTOCOL,
            source: self.source.ipv4().unwrap_or(Ipv4Addr::UNSPECIFIED),
            dest: self.dest.ipv4().unwrap_or(Ipv4Addr::UNSPECIFIED),
        })
    }

    /// The hop limit. Unicast packets have that of the route, as Linux sets it whatever the address handle says.
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
    /// True for the first packet of the message.
    pub first: bool,
    /// True for the last packet of the message.
    pub last: bool,
    /// The number of payload bytes.
    pub len: u32,
}

/// The headers of the frame that this packet is on a network.
pub(super) fn frame(way: &Way, service: QpType, packet: &Packet, piece: &Piece) -> roce::Repr {
    roce::Repr {
        ethernet: ethernet::Repr { dest: station(&way.dest), source: station(&way.source), ethertype: 0 },
        ip: way.ip(),
        source_port: way.port(),
        transport: transport(service, packet, piece),
    }
}

/// The transport headers. Those that the opcode does not have are not emitted.
fn transport(service: QpType, packet: &Packet, piece: &Piece) -> transport::Repr {
    let service = match service {
        _ if packet.op == PacketOp::Datagram => Service::Ud,
        QpType::Uc => Service::Uc,
        QpType::Ud => Service::Ud,
        QpType::Rc => Service::Rc,
        QpType::XrcIni | QpType::XrcTgt => Service::Xrc,
    };
    let opcode = Opcode::Transport(service, operation(packet, piece));
    let mut headers = transport::Repr::new(bth::Repr {
        opcode,
        solicited: piece.last && packet.has(flag::SOLICITED),
        migrated: true, // the path is the primary one
        pad: (piece.len.wrapping_neg() & 3) as u8,
        pkey: limits::DEFAULT_PKEY,
        fecn: false,
        becn: false,
        dest: packet.dst,
        ack_req: piece.last && packet.has(flag::ACK_REQ) && !packet.op.is_response(),
        psn: piece.psn,
    });
    let (remote_addr, rkey) = (packet.remote_addr, RKey(packet.rkey));
    for extension in opcode.extensions() {
        match extension {
            Extension::Xrceth => {
                let named = matches!(packet.op, PacketOp::Send | PacketOp::Write);
                headers.xrceth = Some(xrceth::Repr { srqn: if named { packet.swap as u32 } else { 0 } });
            }
            Extension::Deth => headers.deth = Some(deth::Repr { qkey: packet.rkey, source: packet.src }),
            Extension::Feth => {
                let (placement, selectivity) = (packet.syndrome & 0x0f, packet.syndrome >> 4 & 3);
                headers.feth = Some(feth::Repr { placement, selectivity });
            }
            Extension::Reth => {
                let dma_len = if packet.op == PacketOp::AtomicWrite { 8 } else { packet.dma_len };
                headers.reth = Some(reth::Repr { remote_addr, rkey, dma_len });
            }
            Extension::AtomicEth => {
                let (swap_add, compare) = (packet.swap, packet.compare);
                headers.atomic_eth = Some(atomic_eth::Repr { remote_addr, rkey, swap_add, compare });
            }
            Extension::Aeth => headers.aeth = Some(aeth::Repr { syndrome: packet.syndrome, msn: packet.imm }),
            Extension::AtomicAckEth => {
                headers.atomic_ack_eth = Some(atomic_ack_eth::Repr { original: packet.swap });
            }
            // The program's own four bytes, in the network byte order in which the program has put them there.
            Extension::ImmDt => headers.imm_dt = Some(imm_dt::Repr { data: packet.imm.to_ne_bytes() }),
            Extension::Ieth => headers.ieth = Some(ieth::Repr { rkey: RKey(packet.imm) }),
        }
    }
    headers
}

fn operation(packet: &Packet, piece: &Piece) -> Operation {
    let shape = |first, middle, last, only| match (piece.first, piece.last) {
        (true, false) => first,
        (false, false) => middle,
        (false, true) => last,
        (true, true) => only,
    };
    match packet.op {
        PacketOp::Send if packet.has(flag::INV) => shape(
            Operation::SendFirst,
            Operation::SendMiddle,
            Operation::SendLastInvalidate,
            Operation::SendOnlyInvalidate,
        ),
        PacketOp::Send if packet.has(flag::IMM) => {
            shape(Operation::SendFirst, Operation::SendMiddle, Operation::SendLastImm, Operation::SendOnlyImm)
        }
        PacketOp::Send => shape(Operation::SendFirst, Operation::SendMiddle, Operation::SendLast, Operation::SendOnly),
        PacketOp::Write if packet.has(flag::IMM) => {
            shape(Operation::WriteFirst, Operation::WriteMiddle, Operation::WriteLastImm, Operation::WriteOnlyImm)
        }
        PacketOp::Write => {
            shape(Operation::WriteFirst, Operation::WriteMiddle, Operation::WriteLast, Operation::WriteOnly)
        }
        PacketOp::ReadRequest => Operation::ReadRequest,
        PacketOp::ReadResponse => shape(
            Operation::ReadResponseFirst,
            Operation::ReadResponseMiddle,
            Operation::ReadResponseLast,
            Operation::ReadResponseOnly,
        ),
        PacketOp::CompareSwap => Operation::CompareSwap,
        PacketOp::FetchAdd => Operation::FetchAdd,
        PacketOp::AtomicWrite => Operation::AtomicWrite,
        PacketOp::Flush => Operation::Flush,
        // A19.4: ATOMIC WRITE and FLUSH are answered like a READ of no bytes.
        PacketOp::AtomicAck if packet.len == 0 => Operation::ReadResponseOnly,
        PacketOp::AtomicAck => Operation::AtomicAcknowledge,
        PacketOp::Ack => Operation::Acknowledge,
        PacketOp::Datagram if packet.has(flag::IMM) => Operation::SendOnlyImm,
        PacketOp::Datagram => Operation::SendOnly,
    }
}

/// An Ethernet address for a GID: for a group the one that IP has for it (RFC 1112, 6.4; RFC 2464, 7), else a locally
/// administered one.
pub(super) fn station(gid: &Gid) -> [u8; 6] {
    let [.., b, c, d, e] = gid.0;
    match (gid.is_multicast(), gid.ip()) {
        (true, IpAddr::V4(_)) => [0x01, 0x00, 0x5e, c & 0x7f, d, e],
        (true, IpAddr::V6(_)) => [0x33, 0x33, b, c, d, e],
        (false, _) => [0x02, 0x00, b, c, d, e],
    }
}

#[cfg(test)]
#[path = "packet_tests.rs"]
mod tests;
