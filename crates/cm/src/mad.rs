//! What connection managers say to each other as it would be on a network: management datagrams (IBTA vol. 1, 13.4.2) of the
//! class of communication management (chapter 12), between the queue pairs 1 of two ports. For captures.

use std::net::{IpAddr, SocketAddr};

use verbs::Gid;

use crate::conn::{ACK_TIMEOUT, REPEATS};
use crate::message::{Body, Half, Message, Service};

/// Every management datagram's length.
pub const BYTES: usize = 256;

/// Bytes of the header that all classes have.
const HEAD: usize = 24;
/// Of the header in front of the private data of a REQ or a SIDR REQ for an address of IP (annex A11).
const IP_HEAD: usize = 36;
/// 4.096 us * 2^20: how long an answer of the other side may take, as Linux says it (`CMA_CM_RESPONSE_TIMEOUT`).
const RESPONSE_TIMEOUT: u8 = 20;
/// The code of 4096 bytes.
const MTU: u8 = 5;
/// The code of 100 Gb/s, which is what the port says it has.
const RATE: u8 = 16;
const HOP_LIMIT: u8 = 64;
const PKEY: u16 = 0xffff;

/// Who sends to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Our GID.
    pub source: Gid,
    /// The peer's.
    pub dest: Gid,
    /// Our node.
    pub guid: u64,
    /// The peer's queue pair, if it is known: what a DREQ is about.
    pub remote_qpn: u32,
    /// What the connection, or the datagram service, was asked for by.
    pub service: u64,
    /// True if this side asked for it: its id numbers the transaction.
    pub asked: bool,
}

/// The service's number: annex A11.6.
pub fn service_id(space: u16, port: u16) -> u64 {
    u64::from(space) << 16 | u64::from(port)
}

/// The management datagram that says the same. `None` for what the specification does not have.
pub fn emit(message: &Message, ends: &Ends) -> Option<[u8; BYTES]> {
    let attribute: u16 = match &message.body {
        Body::Req { .. } => 0x10,
        Body::Rej { .. } => 0x12,
        Body::Rep { .. } => 0x13,
        Body::Rtu => 0x14,
        Body::Dreq => 0x15,
        Body::Drep => 0x16,
        Body::SidrReq { .. } => 0x17,
        Body::SidrRep { .. } => 0x18,
        Body::Ask { .. } | Body::Answer { .. } => return None,
    };
    let mut mad = [0u8; BYTES];
    // Base version, class of communication management, its version, method Send.
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    // All messages of a handshake have the number of its REQ, all of a release that of its DREQ (12.6.5).
    let (asker, release) = match &message.body {
        Body::Dreq => (message.from, 1),
        Body::Drep => (message.to, 1),
        _ if ends.asked => (message.from, 0),
        _ => (message.to, 0),
    };
    mad[8..16].copy_from_slice(&(release << 32 | u64::from(asker)).to_be_bytes());
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    if let Body::Req { half, .. } | Body::Rep { half, .. } = &message.body {
        // The attribute modifier: options of enhanced connection establishment.
        mad[20..24].copy_from_slice(&half.ece.options.to_be_bytes());
    }
    let mut out = Fields(&mut mad[HEAD..]);
    match &message.body {
        Body::Req { service, half, data } => request(&mut out, message, ends, service, half, data),
        Body::Rep { half, data } => {
            out.ids(message);
            out.u24(12, half.qpn);
            out.u24(20, half.psn);
            out.put(24, &[half.responder_resources, half.initiator_depth]);
            out.put(26, &[u8::from(half.flow_control != 0), half.rnr_retry_count << 5 | u8::from(half.srq) << 4]);
            out.put(28, &ends.guid.to_be_bytes());
            let [_, high, middle, low] = half.ece.vendor_id.to_be_bytes();
            [(15, high), (19, middle), (23, low)].into_iter().for_each(|(at, byte)| out.put(at, &[byte]));
            out.put(36, data);
        }
        Body::Rej { reason, data } => {
            out.ids(message);
            // What is refused: 0 a REQ, 1 a REP, 2 nothing that was said.
            let refused: u8 = match ends.asked {
                true if ends.remote_qpn == 0 => 2,
                asked => u8::from(asked),
            };
            out.put(8, &[refused << 6]);
            out.put(10, &reason.to_be_bytes());
            out.put(84, data);
        }
        Body::Dreq => {
            out.ids(message);
            out.u24(8, ends.remote_qpn);
        }
        Body::SidrReq { service, data } => {
            out.put(0, &message.from.to_be_bytes());
            out.put(4, &PKEY.to_be_bytes());
            out.put(8, &service_id(service.port_space, service.dst.port()).to_be_bytes());
            out.for_ip(16, service, data);
        }
        Body::SidrRep { status, qpn, qkey, data } => {
            out.put(0, &message.to.to_be_bytes());
            out.put(4, &[*status as u8]);
            out.u24(8, *qpn);
            out.put(12, &ends.service.to_be_bytes());
            out.put(20, &qkey.to_be_bytes());
            out.put(96, data);
        }
        Body::Rtu | Body::Drep | Body::Ask { .. } | Body::Answer { .. } => out.ids(message),
    }
    Some(mad)
}

/// Table 106. Bits are counted from the highest one.
fn request(out: &mut Fields<'_>, message: &Message, ends: &Ends, service: &Service, half: &Half, data: &[u8]) {
    // Transport service type, and the extended one behind type 3: 1 is XRC.
    let (transport, extended) = match service.qp_type {
        3 => (1, 0),
        9 | 10 => (3, 1),
        _ => (0, 0),
    };
    out.put(0, &message.from.to_be_bytes());
    out.u24(5, half.ece.vendor_id);
    out.put(8, &service_id(service.port_space, service.dst.port()).to_be_bytes());
    out.put(16, &ends.guid.to_be_bytes());
    out.u24(32, half.qpn);
    out.put(35, &[half.responder_resources]);
    out.put(39, &[half.initiator_depth]);
    out.put(43, &[RESPONSE_TIMEOUT << 3 | transport << 1 | u8::from(half.flow_control != 0)]);
    out.u24(44, half.psn);
    out.put(47, &[RESPONSE_TIMEOUT << 3 | half.retry_count & 7]);
    out.put(48, &PKEY.to_be_bytes());
    out.put(50, &[MTU << 4 | half.rnr_retry_count & 7, REPEATS << 4 | u8::from(half.srq) << 3 | extended]);
    // No LIDs: the permissive one, as Linux says it where there are routers.
    out.put(52, &[0xff; 4]);
    out.put(56, &ends.source.0);
    out.put(72, &ends.dest.0);
    out.put(91, &[RATE, 0, HOP_LIMIT]);
    out.put(95, &[ACK_TIMEOUT << 3]);
    out.for_ip(140, service, data);
}

/// The part of a management datagram that is its class's own. What was not written is zero.
struct Fields<'a>(&'a mut [u8]);

impl Fields<'_> {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        // What is too long has been refused long before; here it is cut.
        let room = self.0.get_mut(at..).unwrap_or_default();
        let n = room.len().min(bytes.len());
        room[..n].copy_from_slice(&bytes[..n]);
    }

    fn u24(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_be_bytes()[1..]);
    }

    /// The communication ids of both sides.
    fn ids(&mut self, message: &Message) {
        self.put(0, &message.from.to_be_bytes());
        self.put(4, &message.to.to_be_bytes());
    }

    /// Private data behind the addresses, which are IP's whatever the port space is (annex A11.4: version 0, the version of IP in
    /// the upper half of the next byte, the source port, both addresses).
    fn for_ip(&mut self, at: usize, service: &Service, data: &[u8]) {
        let address = |addr: &SocketAddr| match addr.ip() {
            IpAddr::V4(v4) => u128::from(v4.to_bits()).to_be_bytes(),
            IpAddr::V6(v6) => v6.octets(),
        };
        self.put(at, &[0, if service.src.is_ipv4() { 4 << 4 } else { 6 << 4 }]);
        self.put(at + 2, &service.src.port().to_be_bytes());
        self.put(at + 4, &address(&service.src));
        self.put(at + 20, &address(&service.dst));
        self.put(at + IP_HEAD, data);
    }
}

#[cfg(test)]
#[path = "mad_tests.rs"]
mod tests;
