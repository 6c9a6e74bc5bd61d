//! The network's headers of a datagram: on the way in two words of its packet, and at its end in the 40 bytes in front
//! of the data and in the completion.

use verbs::{AhAttr, Gid, LinkLayer};
use wire::{Packet, packet_flags as flag};

/// Bit of the first word that says that there is no GRH. The lowest bytes of that word are service level, traffic class
/// and hop limit. Bits 32 to 47 are the source LID.
const NO_GRH: u64 = 1 << 24;

/// The words `swap` and `compare` of a datagram sent from a port with this LID.
pub(crate) fn pack(to: &AhAttr, lid: u16) -> (u64, u64) {
    let mut first = u64::from(to.sl) | u64::from(to.traffic_class) << 8 | u64::from(to.hop_limit) << 16;
    if !to.is_global {
        first |= NO_GRH;
    }
    (first | u64::from(lid) << 32, u64::from(to.flow_label))
}

/// The network's headers as the receiver gets them.
pub(crate) struct Network {
    /// The 40 bytes in front of the data; `None` when there is no GRH.
    pub header: Option<[u8; 40]>,
    /// Service level in the completion.
    pub sl: u8,
    /// Source LID in the completion.
    pub slid: u16,
}

/// Reads the words of [`pack`], or any words that a foreign process sent, for a port of this link layer.
pub(crate) fn network(link_layer: LinkLayer, packet: &Packet, source: &Gid, dest: &Gid) -> Network {
    match link_layer {
        LinkLayer::Ethernet => {
            let (header, kind) = route_header(packet, source, dest);
            Network { header: Some(header), sl: kind as u8, slid: 0 }
        }
        LinkLayer::InfiniBand { .. } => {
            // BTH, DETH, immediate, data padded to 4, ICRC
            let header = || ipv6(packet, GRH_NEXT_IBA, transport_len(packet), source, dest);
            Network {
                header: (packet.swap & NO_GRH == 0).then(header),
                sl: packet.swap as u8 & 0xf,
                slid: (packet.swap >> 32) as u16,
            }
        }
    }
}

/// `NxtHdr` of a GRH in front of a BTH (IBTA vol. 1, 8.3).
const GRH_NEXT_IBA: u8 = 0x1b;
/// The protocol number of UDP.
const UDP: u8 = 17;

/// The kind of header in front of the data. Annex A17.4.5.1 wants the completion to tell the kind, and names no field.
/// There is no service level on Ethernet, and ConnectX adapters tell the kind in `sl`: bit 3 for RoCE v2, then 1 for
/// IPv6 and 2 for IPv4. Programs rely on that (UCX).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Header {
    Ipv6 = 0x9,
    Ipv4 = 0xa,
}

/// Bytes from BTH to ICRC: with an immediate, and the data padded to 4.
fn transport_len(packet: &Packet) -> u16 {
    let immediate = if packet.has(flag::IMM) { 4 } else { 0 };
    (12 + 8 + immediate + packet.len.next_multiple_of(4) + 4) as u16
}

/// The 40 bytes in front of received data: an IPv6 header, or 20 unused bytes and an IPv4 header (annex A17.4.5.2).
fn route_header(packet: &Packet, source: &Gid, dest: &Gid) -> ([u8; 40], Header) {
    let udp = 8 + transport_len(packet);
    let (Some(from), Some(to)) = (source.ipv4(), dest.ipv4()) else {
        return (ipv6(packet, UDP, udp, source, dest), Header::Ipv6);
    };
    let mut header = [0u8; 40];
    let ip = &mut header[20..];
    ip[0] = 0x45;
    ip[1] = (packet.swap >> 8) as u8;
    ip[2..4].copy_from_slice(&(udp + 20).to_be_bytes());
    ip[6] = 0x40; // do not fragment
    ip[8] = (packet.swap >> 16) as u8;
    ip[9] = UDP;
    ip[12..16].copy_from_slice(&from.octets());
    ip[16..20].copy_from_slice(&to.octets());
    let sum: u32 = ip.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    (header, Header::Ipv4)
}

/// A GRH, which is laid out as an IPv6 header (IBTA vol. 1, 8.3), with `len` bytes behind it.
fn ipv6(packet: &Packet, next: u8, len: u16, source: &Gid, dest: &Gid) -> [u8; 40] {
    let mut header = [0u8; 40];
    let class = (packet.swap >> 8) as u8;
    let first = 6 << 28 | u32::from(class) << 20 | (packet.compare as u32 & 0xf_ffff);
    header[..4].copy_from_slice(&first.to_be_bytes());
    header[4..6].copy_from_slice(&len.to_be_bytes());
    header[6] = next;
    header[7] = (packet.swap >> 16) as u8;
    header[8..24].copy_from_slice(&source.0);
    header[24..40].copy_from_slice(&dest.0);
    header
}
