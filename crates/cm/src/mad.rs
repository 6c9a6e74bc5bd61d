//! The messages of connection managers as they would be on a network: management datagrams (IBTA vol. 1, 13.4.2) of the
//! class of communication management (chapter 12), between the queue pairs 1 of two ports. For captures.

use verbs::{Gid, Psn, Qpn};
use wire::mad::cm::{self, Datagram, drep, dreq, ip_addressing, path, rej, rep, req, rtu, sidr_rep, sidr_req};

use crate::conn::{ACK_TIMEOUT, REPEATS};
use crate::message::{Body, Half, Message, SIDR_REQ_DATA, Service};

pub use wire::mad::DATAGRAM_LEN as BYTES;
pub use wire::mad::cm::ip_addressing::service_id;

/// How long an answer of the other side may take: 4.096 us * 2^20, as Linux has it (`CMA_CM_RESPONSE_TIMEOUT`).
const RESPONSE_TIMEOUT: u8 = 20;
/// The code of 4096 bytes.
const MTU: u8 = 5;
/// The code of 100 Gb/s, the rate of the port.
const RATE: u8 = 16;
const HOP_LIMIT: u8 = 64;
const PKEY: u16 = 0xffff;

/// The two ends of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The sender's GID.
    pub source: Gid,
    /// The receiver's GID.
    pub dest: Gid,
    /// The sender's node GUID.
    pub guid: u64,
    /// The peer's queue pair, if it is known: what a DREQ is about.
    pub remote_qpn: u32,
    /// The service ID by which the connection, or the datagram service, was asked for.
    pub service: u64,
    /// True if the sender asked for it: its id numbers the transaction.
    pub asked: bool,
}

/// The management datagram of the message. `None` for messages that the specification does not have.
pub fn emit(message: &Message, ends: &Ends) -> Option<[u8; BYTES]> {
    // Room for the private data behind the addresses of IP.
    let mut room = [0; ip_addressing::LEN + SIDR_REQ_DATA];
    let (local_id, remote_id) = (message.from, message.to);
    let said = match &message.body {
        Body::Req { service, half, data } => {
            cm::Message::Req(request(local_id, ends, service, half, for_ip(service, data, &mut room)?))
        }
        Body::Rep { half, data } => cm::Message::Rep(rep::Repr {
            local_id,
            remote_id,
            qkey: 0,
            qpn: Qpn::new(half.qpn),
            vendor_id: half.ece.vendor_id,
            eecn: 0,
            psn: Psn::new(half.psn),
            responder_resources: half.responder_resources,
            initiator_depth: half.initiator_depth,
            ack_delay: 0,
            failover: 0,
            flow_control: half.flow_control != 0,
            rnr_retry: half.rnr_retry_count,
            srq: half.srq,
            guid: ends.guid,
            private_data: data,
        }),
        Body::Rej { reason, data } => {
            // The message that is refused: 0 a REQ, 1 a REP, 2 no message.
            let refused = match ends.asked {
                true if ends.remote_qpn == 0 => 2,
                asked => u8::from(asked),
            };
            let (message, reason) = (refused, *reason);
            cm::Message::Rej(rej::Repr {
                local_id,
                remote_id,
                message,
                info_len: 0,
                reason,
                info: &[],
                private_data: data,
            })
        }
        Body::Rtu => cm::Message::Rtu(rtu::Repr { local_id, remote_id, private_data: &[] }),
        Body::Dreq => {
            let remote_qpn = Qpn::new(ends.remote_qpn);
            cm::Message::Dreq(dreq::Repr { local_id, remote_id, remote_qpn, private_data: &[] })
        }
        Body::Drep => cm::Message::Drep(drep::Repr { local_id, remote_id, private_data: &[] }),
        Body::SidrReq { service, data } => cm::Message::SidrReq(sidr_req::Repr {
            request_id: local_id,
            pkey: PKEY,
            service_id: service_id(service.port_space, service.dst.port()),
            private_data: for_ip(service, data, &mut room)?,
        }),
        Body::SidrRep { status, qpn, qkey, data } => cm::Message::SidrRep(sidr_rep::Repr {
            request_id: remote_id,
            status: *status as u8,
            info_len: 0,
            qpn: Qpn::new(*qpn),
            service_id: ends.service,
            qkey: *qkey,
            info: &[],
            private_data: data,
        }),
        Body::Ask { .. } | Body::Answer { .. } => return None,
    };
    // All messages of a handshake have the number of its REQ, all of a release that of its DREQ (12.6.5).
    let (asker, release) = match &message.body {
        Body::Dreq => (message.from, 1),
        Body::Drep => (message.to, 1),
        _ if ends.asked => (message.from, 0),
        _ => (message.to, 0),
    };
    let modifier = match &message.body {
        // Options of enhanced connection establishment.
        Body::Req { half, .. } | Body::Rep { half, .. } => half.ece.options,
        _ => 0,
    };
    // A message that is too long was refused long before.
    Datagram { transaction: release << 32 | u64::from(asker), modifier, message: said }.emit().ok()
}

fn request<'a>(local_id: u32, ends: &Ends, service: &Service, half: &Half, private_data: &'a [u8]) -> req::Repr<'a> {
    // Transport service type, and the extended one behind type 3: 1 is XRC.
    let (transport, extended_transport) = match service.qp_type {
        3 => (1, 0),
        9 | 10 => (3, 1),
        _ => (0, 0),
    };
    let primary = path::Repr {
        // As Linux has it where there are routers.
        local_lid: path::PERMISSIVE_LID,
        remote_lid: path::PERMISSIVE_LID,
        local_gid: ends.source,
        remote_gid: ends.dest,
        rate: RATE,
        hop_limit: HOP_LIMIT,
        ack_timeout: ACK_TIMEOUT,
        ..path::Repr::default()
    };
    req::Repr {
        local_id,
        vendor_id: half.ece.vendor_id,
        service_id: service_id(service.port_space, service.dst.port()),
        guid: ends.guid,
        qkey: 0,
        qpn: Qpn::new(half.qpn),
        responder_resources: half.responder_resources,
        local_eecn: 0,
        initiator_depth: half.initiator_depth,
        remote_eecn: 0,
        remote_timeout: RESPONSE_TIMEOUT,
        transport,
        flow_control: half.flow_control != 0,
        psn: Psn::new(half.psn),
        local_timeout: RESPONSE_TIMEOUT,
        retry: half.retry_count,
        pkey: PKEY,
        mtu: MTU,
        rd_context: false,
        rnr_retry: half.rnr_retry_count,
        cm_retries: REPEATS,
        srq: half.srq,
        extended_transport,
        primary,
        alternate: path::Repr::default(),
        private_data,
    }
}

/// The private data behind the addresses, which are IP's whatever the port space is (annex A11.4). `None` if they are
/// too long.
fn for_ip<'a>(service: &Service, data: &[u8], room: &'a mut [u8]) -> Option<&'a [u8]> {
    let header =
        ip_addressing::Repr { source_port: service.src.port(), source: service.src.ip(), dest: service.dst.ip() };
    let room = room.get_mut(..ip_addressing::LEN + data.len())?;
    let (first, rest) = room.split_at_mut(ip_addressing::LEN);
    first.copy_from_slice(&header.emit());
    rest.copy_from_slice(data);
    Some(room)
}

#[cfg(test)]
#[path = "mad_tests.rs"]
mod tests;
