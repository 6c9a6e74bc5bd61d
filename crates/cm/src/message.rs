//! The messages between two connection managers: those of IBTA vol. 1, chapter 12 (communication management), in this
//! project's own layout.
//!
//! Each message is one packet, little endian:
//!
//! ```text
//!  0  magic "sCM1" u32     4  kind u8     5  0     6  reason, status, port space or errno u16
//!  8  communication id of the sender u32        12  communication id of the receiver u32 (0: not known yet)
//! 16  body (REQ, REP, SIDR REQ, SIDR REP), then private data up to the packet's end
//! ```
//!
//! A packet from a socket is input from outside: [`parse`] takes only what [`emit`] would have written.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::event::Ece;
use crate::names::Claim;

/// Longest private data of a REQ, in bytes (rdma_connect(3): `RDMA_PS_TCP`).
pub const REQ_DATA: usize = 56;
/// Longest private data of a REP, in bytes (rdma_accept(3)).
pub const REP_DATA: usize = 196;
/// Longest private data of a REJ, in bytes (IBTA vol. 1, table 111).
pub const REJ_DATA: usize = 148;
/// Longest private data of a SIDR REQ, in bytes (rdma_connect(3): `RDMA_PS_UDP`).
pub const SIDR_REQ_DATA: usize = 180;
/// Longest private data of a SIDR REP, in bytes (rdma_accept(3)).
pub const SIDR_REP_DATA: usize = 136;

/// Longest packet, in bytes.
pub const MAX_BYTES: usize = HEAD + SERVICE + CONN + SIDR_REQ_DATA + REP_DATA;

const MAGIC: u32 = u32::from_le_bytes(*b"sCM1");
const HEAD: usize = 16;
const ADDR: usize = 24;
const SERVICE: usize = 4 + 2 * ADDR;
const CONN: usize = 24;

/// The service that a request is for, and the address that it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// `enum rdma_port_space`.
    pub port_space: u16,
    /// `enum ibv_qp_type` of the side that asks.
    pub qp_type: u8,
    /// The address of the side that asks.
    pub src: SocketAddr,
    /// The address of the side that is asked; its port names the service.
    pub dst: SocketAddr,
}

/// One side's half of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Half {
    /// The queue pair; 24 bits.
    pub qpn: u32,
    /// The first sequence number that this side will send; 24 bits.
    pub psn: u32,
    /// READs and atomics that the sender of this message accepts at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender of this message will have outstanding.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: u8,
    /// Retries that the receiver shall make; 3 bits; REQ only.
    pub retry_count: u8,
    /// Retries after RNR that the receiver shall make; 3 bits.
    pub rnr_retry_count: u8,
    /// True if this side has a shared receive queue.
    pub srq: bool,
    /// Enhanced connection establishment.
    pub ece: Ece,
}

/// The body of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the specification's
pub enum Body {
    Req {
        service: Service,
        half: Half,
        data: Vec<u8>,
    },
    Rep {
        half: Half,
        data: Vec<u8>,
    },
    Rtu,
    Rej {
        reason: u16,
        data: Vec<u8>,
    },
    Dreq,
    Drep,
    SidrReq {
        service: Service,
        data: Vec<u8>,
    },
    SidrRep {
        status: u16,
        qpn: u32,
        qkey: u32,
        data: Vec<u8>,
    },
    /// A question: may this port of a block of the receiver's be claimed? The specification has no such message.
    Ask {
        port_space: u16,
        claim: Claim,
    },
    /// The answer: 0, or the errno.
    Answer {
        errno: u16,
    },
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Communication id of the sender.
    pub from: u32,
    /// Communication id of the receiver; 0 if not known yet.
    pub to: u32,
    /// The body.
    pub body: Body,
}

/// The error of [`parse`]: the packet is no message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

fn put_addr(out: &mut Vec<u8>, addr: &SocketAddr) {
    let (family, scope, bytes) = match addr {
        SocketAddr::V4(v4) => (4u8, 0, v4.ip().to_ipv6_mapped().octets()),
        SocketAddr::V6(v6) => (6u8, v6.scope_id(), v6.ip().octets()),
    };
    out.extend_from_slice(&[family, 0]);
    out.extend_from_slice(&addr.port().to_le_bytes());
    out.extend_from_slice(&scope.to_le_bytes());
    out.extend_from_slice(&bytes);
}

fn put_service(out: &mut Vec<u8>, s: &Service) {
    out.extend_from_slice(&s.port_space.to_le_bytes());
    out.extend_from_slice(&[s.qp_type, 0]);
    put_addr(out, &s.src);
    put_addr(out, &s.dst);
}

fn put_half(out: &mut Vec<u8>, h: &Half) {
    out.extend_from_slice(&h.qpn.to_le_bytes());
    out.extend_from_slice(&h.psn.to_le_bytes());
    let flags = [h.responder_resources, h.initiator_depth, h.flow_control, h.retry_count, h.rnr_retry_count];
    out.extend_from_slice(&flags);
    out.extend_from_slice(&[u8::from(h.srq), 0, 0]);
    out.extend_from_slice(&h.ece.vendor_id.to_le_bytes());
    out.extend_from_slice(&h.ece.options.to_le_bytes());
}

/// The packet of a message.
pub fn emit(message: &Message) -> Vec<u8> {
    let mut out = Vec::with_capacity(MAX_BYTES);
    let (kind, code) = match &message.body {
        Body::Req { .. } => (1u8, 0),
        Body::Rep { .. } => (2, 0),
        Body::Rtu => (3, 0),
        Body::Rej { reason, .. } => (4, *reason),
        Body::Dreq => (5, 0),
        Body::Drep => (6, 0),
        Body::SidrReq { .. } => (7, 0),
        Body::SidrRep { status, .. } => (8, *status),
        Body::Ask { port_space, .. } => (9, *port_space),
        Body::Answer { errno } => (10, *errno),
    };
    out.extend_from_slice(&MAGIC.to_le_bytes());
    out.extend_from_slice(&[kind, 0]);
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&message.from.to_le_bytes());
    out.extend_from_slice(&message.to.to_le_bytes());
    match &message.body {
        Body::Req { service, half, data } => {
            put_service(&mut out, service);
            put_half(&mut out, half);
            out.extend_from_slice(data);
        }
        Body::Rep { half, data } => {
            put_half(&mut out, half);
            out.extend_from_slice(data);
        }
        Body::Rej { data, .. } => out.extend_from_slice(data),
        Body::SidrReq { service, data } => {
            put_service(&mut out, service);
            out.extend_from_slice(data);
        }
        Body::SidrRep { qpn, qkey, data, .. } => {
            out.extend_from_slice(&qpn.to_le_bytes());
            out.extend_from_slice(&qkey.to_le_bytes());
            out.extend_from_slice(data);
        }
        Body::Ask { claim, .. } => {
            put_addr(&mut out, &claim.addr);
            out.extend_from_slice(&[u8::from(claim.only), u8::from(claim.reuse)]);
        }
        Body::Rtu | Body::Dreq | Body::Drep | Body::Answer { .. } => {}
    }
    out
}

/// A reader of the rest of a packet, in order.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.take::<1>().map(|[b]| b)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }

    fn u24(&mut self) -> Result<u32, Malformed> {
        self.u32().and_then(|n| if n < 1 << 24 { Ok(n) } else { Err(Malformed) })
    }

    fn zero<const N: usize>(&mut self) -> Result<(), Malformed> {
        if self.take::<N>()? == [0; N] { Ok(()) } else { Err(Malformed) }
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    fn three_bits(&mut self) -> Result<u8, Malformed> {
        self.u8().and_then(|n| if n < 8 { Ok(n) } else { Err(Malformed) })
    }

    fn addr(&mut self) -> Result<SocketAddr, Malformed> {
        let family = self.u8()?;
        self.zero::<1>()?;
        let port = self.u16()?;
        let scope = self.u32()?;
        let ip = Ipv6Addr::from(self.take::<16>()?);
        match (family, scope) {
            (4, 0) => Ok(SocketAddr::new(IpAddr::V4(ip.to_ipv4_mapped().ok_or(Malformed)?), port)),
            (6, _) => Ok(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope))),
            _ => Err(Malformed),
        }
    }

    fn service(&mut self) -> Result<Service, Malformed> {
        let port_space = self.u16()?;
        let qp_type = self.u8()?;
        self.zero::<1>()?;
        Ok(Service { port_space, qp_type, src: self.addr()?, dst: self.addr()? })
    }

    fn half(&mut self) -> Result<Half, Malformed> {
        let (qpn, psn) = (self.u24()?, self.u24()?);
        let [responder_resources, initiator_depth, flow_control] = self.take()?;
        let (retry_count, rnr_retry_count) = (self.three_bits()?, self.three_bits()?);
        let srq = self.flag()?;
        self.zero::<2>()?;
        let ece = Ece { vendor_id: self.u32()?, options: self.u32()? };
        Ok(Half {
            qpn,
            psn,
            responder_resources,
            initiator_depth,
            flow_control,
            retry_count,
            rnr_retry_count,
            srq,
            ece,
        })
    }

    fn data(self, most: usize) -> Result<Vec<u8>, Malformed> {
        if self.0.len() > most { Err(Malformed) } else { Ok(self.0.to_vec()) }
    }

    fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

/// Parse a packet. The check is exact: the right length, no unknown flags, zeros where zeros belong.
///
/// # Errors
/// [`Malformed`]: the packet is no message.
pub fn parse(bytes: &[u8]) -> Result<Message, Malformed> {
    let mut r = Reader(bytes);
    if r.u32()? != MAGIC {
        return Err(Malformed);
    }
    let kind = r.u8()?;
    r.zero::<1>()?;
    let code = r.u16()?;
    let (from, to) = (r.u32()?, r.u32()?);
    if code != 0 && !matches!(kind, 4 | 8..=10) {
        return Err(Malformed);
    }
    let body = match kind {
        1 => {
            let (service, half) = (r.service()?, r.half()?);
            Body::Req { service, half, data: r.data(REQ_DATA)? }
        }
        2 => {
            let half = r.half()?;
            Body::Rep { half, data: r.data(REP_DATA)? }
        }
        3 => r.end().map(|()| Body::Rtu)?,
        4 => Body::Rej { reason: code, data: r.data(REJ_DATA)? },
        5 => r.end().map(|()| Body::Dreq)?,
        6 => r.end().map(|()| Body::Drep)?,
        7 => {
            let service = r.service()?;
            Body::SidrReq { service, data: r.data(SIDR_REQ_DATA)? }
        }
        8 => {
            let (qpn, qkey) = (r.u24()?, r.u32()?);
            Body::SidrRep { status: code, qpn, qkey, data: r.data(SIDR_REP_DATA)? }
        }
        9 => {
            let claim = Claim { addr: r.addr()?, only: r.flag()?, reuse: r.flag()? };
            r.end().map(|()| Body::Ask { port_space: code, claim })?
        }
        10 => r.end().map(|()| Body::Answer { errno: code })?,
        _ => return Err(Malformed),
    };
    Ok(Message { from, to, body })
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
