//! REQ: a connection is asked for (IBTA vol. 1, 12.6.5, table 106).

use core::fmt;

use verbs::{Psn, Qpn};

use super::{LEN, path, put_data};
use crate::Result;
use crate::bytes::{array, put, put_u8, put_u16, put_u24, put_u32, put_u64, u8_at, u16_at, u24_at, u32_at, u64_at};

/// Offsets in the part of the datagram behind its common header, as the specification's tables count them.
mod field {
    pub const LOCAL_ID: usize = 0;
    pub const VENDOR_ID: usize = 5;
    pub const SERVICE_ID: usize = 8;
    pub const GUID: usize = 16;
    pub const QKEY: usize = 28;
    pub const QPN: usize = 32;
    pub const RESPONDER_RESOURCES: usize = 35;
    pub const LOCAL_EECN: usize = 36;
    pub const INITIATOR_DEPTH: usize = 39;
    pub const REMOTE_EECN: usize = 40;
    /// Remote response timeout 7-3, transport service 2-1, flow control 0.
    pub const TRANSPORT: usize = 43;
    pub const PSN: usize = 44;
    /// Local response timeout 7-3, retry count 2-0.
    pub const RETRY: usize = 47;
    pub const PKEY: usize = 48;
    /// Path MTU 7-4, RD context exists 3, RNR retry count 2-0.
    pub const MTU: usize = 50;
    /// Repetitions 7-4, shared receive queue 3, extended transport 2-0.
    pub const CM_RETRIES: usize = 51;
    pub const PRIMARY: usize = 52;
    pub const ALTERNATE: usize = 96;
    pub const PRIVATE_DATA: usize = 140;
}

/// The attribute of the datagram.
pub const ATTRIBUTE: u16 = 0x10;

message!("REQ");
data!(
    private_data: field::PRIVATE_DATA,
    PRIVATE_DATA_LEN = 92,
    "private data; of a service of IP it starts with its addresses ([`super::ip_addressing`])"
);

/// The fields of a REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr<'a> {
    /// Communication id of the sender.
    pub local_id: u32,
    /// Vendor id of enhanced connection establishment; 24 bits.
    pub vendor_id: u32,
    /// The service.
    pub service_id: u64,
    /// The sender's node.
    pub guid: u64,
    /// Queue key; reliable datagrams only.
    pub qkey: u32,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// READs and atomics that the sender accepts at a time.
    pub responder_resources: u8,
    /// The sender's end-to-end context; reliable datagrams only; 24 bits.
    pub local_eecn: u32,
    /// READs and atomics that the sender will have outstanding.
    pub initiator_depth: u8,
    /// The receiver's end-to-end context; reliable datagrams only; 24 bits.
    pub remote_eecn: u32,
    /// How long the receiver may take to answer: 4.096 us * 2^n.
    pub remote_timeout: u8,
    /// Transport service: 0 RC, 1 UC, 2 RD, 3 as the extended one says.
    pub transport: u8,
    /// The sender has end-to-end flow control.
    pub flow_control: bool,
    /// The first sequence number that the sender will use.
    pub psn: Psn,
    /// How long the sender may take to answer: 4.096 us * 2^n.
    pub local_timeout: u8,
    /// Retries that the receiver is to make.
    pub retry: u8,
    /// Partition.
    pub pkey: u16,
    /// Path MTU: 1 to 5 for 256 to 4096.
    pub mtu: u8,
    /// The end-to-end context of reliable datagrams exists already.
    pub rd_context: bool,
    /// Retries after RNR NAK that the receiver is to make.
    pub rnr_retry: u8,
    /// Repetitions of messages of connection managers.
    pub cm_retries: u8,
    /// The sender has a shared receive queue.
    pub srq: bool,
    /// Behind transport 3: 1 is XRC.
    pub extended_transport: u8,
    /// The primary path.
    pub primary: path::Repr,
    /// The alternate path; all zero if there is none.
    pub alternate: path::Repr,
    /// The private data; of a service of IP it starts with its addresses ([`super::ip_addressing`]).
    pub private_data: &'a [u8],
}

impl<'a> View<'a> {
    /// Communication id of the sender.
    pub fn local_id(&self) -> u32 {
        u32_at(self.0, field::LOCAL_ID)
    }

    /// Vendor id of enhanced connection establishment; 24 bits.
    pub fn vendor_id(&self) -> u32 {
        u24_at(self.0, field::VENDOR_ID)
    }

    /// The service.
    pub fn service_id(&self) -> u64 {
        u64_at(self.0, field::SERVICE_ID)
    }

    /// The sender's node.
    pub fn guid(&self) -> u64 {
        u64_at(self.0, field::GUID)
    }

    /// Queue key; reliable datagrams only.
    pub fn qkey(&self) -> u32 {
        u32_at(self.0, field::QKEY)
    }

    /// The sender's queue pair.
    pub fn qpn(&self) -> Qpn {
        Qpn::new(u24_at(self.0, field::QPN))
    }

    /// READs and atomics that the sender accepts at a time.
    pub fn responder_resources(&self) -> u8 {
        u8_at(self.0, field::RESPONDER_RESOURCES)
    }

    /// The sender's end-to-end context; reliable datagrams only; 24 bits.
    pub fn local_eecn(&self) -> u32 {
        u24_at(self.0, field::LOCAL_EECN)
    }

    /// READs and atomics that the sender will have outstanding.
    pub fn initiator_depth(&self) -> u8 {
        u8_at(self.0, field::INITIATOR_DEPTH)
    }

    /// The receiver's end-to-end context; reliable datagrams only; 24 bits.
    pub fn remote_eecn(&self) -> u32 {
        u24_at(self.0, field::REMOTE_EECN)
    }

    /// How long the receiver may take to answer: 4.096 us * 2^n.
    pub fn remote_timeout(&self) -> u8 {
        u8_at(self.0, field::TRANSPORT) >> 3
    }

    /// Transport service: 0 RC, 1 UC, 2 RD, 3 as the extended one says.
    pub fn transport(&self) -> u8 {
        u8_at(self.0, field::TRANSPORT) >> 1 & 0x03
    }

    /// The sender has end-to-end flow control.
    pub fn flow_control(&self) -> bool {
        u8_at(self.0, field::TRANSPORT) & 0x01 != 0
    }

    /// The first sequence number that the sender will use.
    pub fn psn(&self) -> Psn {
        Psn::new(u24_at(self.0, field::PSN))
    }

    /// How long the sender may take to answer: 4.096 us * 2^n.
    pub fn local_timeout(&self) -> u8 {
        u8_at(self.0, field::RETRY) >> 3
    }

    /// Retries that the receiver is to make.
    pub fn retry(&self) -> u8 {
        u8_at(self.0, field::RETRY) & 0x07
    }

    /// Partition.
    pub fn pkey(&self) -> u16 {
        u16_at(self.0, field::PKEY)
    }

    /// Path MTU: 1 to 5 for 256 to 4096.
    pub fn mtu(&self) -> u8 {
        u8_at(self.0, field::MTU) >> 4
    }

    /// The end-to-end context of reliable datagrams exists already.
    pub fn rd_context(&self) -> bool {
        u8_at(self.0, field::MTU) & 0x08 != 0
    }

    /// Retries after RNR NAK that the receiver is to make.
    pub fn rnr_retry(&self) -> u8 {
        u8_at(self.0, field::MTU) & 0x07
    }

    /// Repetitions of messages of connection managers.
    pub fn cm_retries(&self) -> u8 {
        u8_at(self.0, field::CM_RETRIES) >> 4
    }

    /// The sender has a shared receive queue.
    pub fn srq(&self) -> bool {
        u8_at(self.0, field::CM_RETRIES) & 0x08 != 0
    }

    /// Behind transport 3: 1 is XRC.
    pub fn extended_transport(&self) -> u8 {
        u8_at(self.0, field::CM_RETRIES) & 0x07
    }

    /// The primary path.
    pub fn primary(&self) -> [u8; path::LEN] {
        array(self.0, field::PRIMARY)
    }

    /// The alternate path; all zero if there is none.
    pub fn alternate(&self) -> [u8; path::LEN] {
        array(self.0, field::ALTERNATE)
    }
}

impl<'a> Repr<'a> {
    /// Parses a message.
    ///
    /// # Errors
    /// None: what a value without meaning is answered with is the connection manager's to say.
    pub fn parse(view: &View<'a>) -> Result<Repr<'a>> {
        Ok(Repr {
            local_id: view.local_id(),
            vendor_id: view.vendor_id(),
            service_id: view.service_id(),
            guid: view.guid(),
            qkey: view.qkey(),
            qpn: view.qpn(),
            responder_resources: view.responder_resources(),
            local_eecn: view.local_eecn(),
            initiator_depth: view.initiator_depth(),
            remote_eecn: view.remote_eecn(),
            remote_timeout: view.remote_timeout(),
            transport: view.transport(),
            flow_control: view.flow_control(),
            psn: view.psn(),
            local_timeout: view.local_timeout(),
            retry: view.retry(),
            pkey: view.pkey(),
            mtu: view.mtu(),
            rd_context: view.rd_context(),
            rnr_retry: view.rnr_retry(),
            cm_retries: view.cm_retries(),
            srq: view.srq(),
            extended_transport: view.extended_transport(),
            primary: path::Repr::read(&view.primary())?.0,
            alternate: path::Repr::read(&view.alternate())?.0,
            private_data: view.private_data(),
        })
    }

    /// The bytes.
    ///
    /// # Errors
    /// [`Error::Length`](crate::Error::Length) for private data or other data that do not fit.
    pub fn emit(&self) -> Result<[u8; LEN]> {
        let mut out = [0; LEN];
        put_u32(&mut out, field::LOCAL_ID, self.local_id);
        put_u24(&mut out, field::VENDOR_ID, self.vendor_id);
        put_u64(&mut out, field::SERVICE_ID, self.service_id);
        put_u64(&mut out, field::GUID, self.guid);
        put_u32(&mut out, field::QKEY, self.qkey);
        put_u24(&mut out, field::QPN, self.qpn.get());
        put_u8(&mut out, field::RESPONDER_RESOURCES, self.responder_resources);
        put_u24(&mut out, field::LOCAL_EECN, self.local_eecn);
        put_u8(&mut out, field::INITIATOR_DEPTH, self.initiator_depth);
        put_u24(&mut out, field::REMOTE_EECN, self.remote_eecn);
        put_u8(
            &mut out,
            field::TRANSPORT,
            (self.remote_timeout & 0x1f) << 3 | (self.transport & 0x03) << 1 | u8::from(self.flow_control),
        );
        put_u24(&mut out, field::PSN, self.psn.get());
        put_u8(&mut out, field::RETRY, (self.local_timeout & 0x1f) << 3 | (self.retry & 0x07));
        put_u16(&mut out, field::PKEY, self.pkey);
        put_u8(&mut out, field::MTU, (self.mtu & 0x0f) << 4 | u8::from(self.rd_context) << 3 | (self.rnr_retry & 0x07));
        put_u8(
            &mut out,
            field::CM_RETRIES,
            (self.cm_retries & 0x0f) << 4 | u8::from(self.srq) << 3 | (self.extended_transport & 0x07),
        );
        put(&mut out, field::PRIMARY, &self.primary.emit());
        put(&mut out, field::ALTERNATE, &self.alternate.emit());
        put_data::<{ PRIVATE_DATA_LEN }>(&mut out, field::PRIVATE_DATA, self.private_data)?;
        Ok(out)
    }
}

impl fmt::Display for Repr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Repr { local_id, service_id, qpn, psn, .. } = self;
        write!(f, "REQ {local_id:#x} service={service_id:#x} qpn={:#x} psn={:#x}", qpn.get(), psn.get())
    }
}

#[cfg(test)]
mod tests {
    use verbs::Gid;

    use super::*;

    #[test]
    fn literal_bytes() {
        let primary = path::Repr {
            local_lid: path::PERMISSIVE_LID,
            remote_lid: path::PERMISSIVE_LID,
            local_gid: Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
            ..path::Repr::default()
        };
        let message = Repr {
            local_id: 0x0a0b_0c0d,
            vendor_id: 0x02_c903,
            service_id: 0x0106_4853,
            guid: 0x1122_3344_5566_7788,
            qkey: 0x0102_0304,
            qpn: Qpn::new(0xabcdef),
            responder_resources: 16,
            local_eecn: 0x112233,
            initiator_depth: 4,
            remote_eecn: 0x445566,
            remote_timeout: 20,
            transport: 3,
            flow_control: true,
            psn: Psn::new(0x123456),
            local_timeout: 19,
            retry: 7,
            pkey: 0xffff,
            mtu: 5,
            rd_context: true,
            rnr_retry: 6,
            cm_retries: 15,
            srq: true,
            extended_transport: 1,
            primary,
            alternate: path::Repr::default(),
            private_data: b"hello",
        };
        assert_message!(
            message,
            [
                (0, "0a0b0c0d 00 02c903 0000000001064853 1122334455667788 00000000 01020304 abcdef 10"),
                (36, "112233 04 445566 a7 123456 9f ffff 5e f9 ffff ffff fe80"),
                (139, "00 68656c6c6f 00")
            ]
        );
        assert_eq!(std::format!("{message}"), "REQ 0xa0b0c0d service=0x1064853 qpn=0xabcdef psn=0x123456");
    }
}
