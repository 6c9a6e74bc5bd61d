//! REP: the answer to a REQ (IBTA vol. 1, 12.6.8).

use core::fmt;

use verbs::{Psn, Qpn};

use super::{LEN, put_data};
use crate::Result;
use crate::bytes::{put_u8, put_u24, put_u32, put_u64, u8_at, u24_at, u32_at, u64_at};

/// Offsets in the part of the datagram behind its common header, as the specification's tables count them.
mod field {
    pub const LOCAL_ID: usize = 0;
    pub const REMOTE_ID: usize = 4;
    pub const QKEY: usize = 8;
    pub const QPN: usize = 12;
    pub const VENDOR_HIGH: usize = 15;
    pub const EECN: usize = 16;
    pub const VENDOR_MIDDLE: usize = 19;
    pub const PSN: usize = 20;
    pub const VENDOR_LOW: usize = 23;
    pub const RESPONDER_RESOURCES: usize = 24;
    pub const INITIATOR_DEPTH: usize = 25;
    /// Acknowledgement delay 7-3, failover 2-1, flow control 0.
    pub const ACK_DELAY: usize = 26;
    /// RNR retry count 7-5, shared receive queue 4.
    pub const RNR_RETRY: usize = 27;
    pub const GUID: usize = 28;
    pub const PRIVATE_DATA: usize = 36;
}

/// The attribute of the datagram.
pub const ATTRIBUTE: u16 = 0x13;

message!("REP");
both_ids!();
data!(private_data: field::PRIVATE_DATA, PRIVATE_DATA_LEN = 196, "private data");

/// The fields of a REP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr<'a> {
    /// Communication id of the sender.
    pub local_id: u32,
    /// Communication id of the receiver.
    pub remote_id: u32,
    /// Queue key; reliable datagrams only.
    pub qkey: u32,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// Vendor id of enhanced connection establishment; 24 bits, which lie apart.
    pub vendor_id: u32,
    /// End-to-end context; reliable datagrams only; 24 bits.
    pub eecn: u32,
    /// The first sequence number that the sender will use.
    pub psn: Psn,
    /// READs and atomics that the sender accepts at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender will have outstanding.
    pub initiator_depth: u8,
    /// The sender's longest delay of an acknowledgement: 4.096 us * 2^n.
    pub ack_delay: u8,
    /// Whether the alternate path was accepted; 0 yes.
    pub failover: u8,
    /// The sender has end-to-end flow control.
    pub flow_control: bool,
    /// Retries after RNR NAK that the receiver is to make.
    pub rnr_retry: u8,
    /// The sender has a shared receive queue.
    pub srq: bool,
    /// The sender's node.
    pub guid: u64,
    /// The private data.
    pub private_data: &'a [u8],
}

impl<'a> View<'a> {
    /// Queue key; reliable datagrams only.
    pub fn qkey(&self) -> u32 {
        u32_at(self.0, field::QKEY)
    }

    /// The sender's queue pair.
    pub fn qpn(&self) -> Qpn {
        Qpn::new(u24_at(self.0, field::QPN))
    }

    /// Vendor id of enhanced connection establishment.
    pub fn vendor_id(&self) -> u32 {
        let at = |at| u8_at(self.0, at);
        u32::from_be_bytes([0, at(field::VENDOR_HIGH), at(field::VENDOR_MIDDLE), at(field::VENDOR_LOW)])
    }

    /// End-to-end context; reliable datagrams only; 24 bits.
    pub fn eecn(&self) -> u32 {
        u24_at(self.0, field::EECN)
    }

    /// The first sequence number that the sender will use.
    pub fn psn(&self) -> Psn {
        Psn::new(u24_at(self.0, field::PSN))
    }

    /// READs and atomics that the sender accepts at a time.
    pub fn responder_resources(&self) -> u8 {
        u8_at(self.0, field::RESPONDER_RESOURCES)
    }

    /// READs and atomics that the sender will have outstanding.
    pub fn initiator_depth(&self) -> u8 {
        u8_at(self.0, field::INITIATOR_DEPTH)
    }

    /// The sender's longest delay of an acknowledgement: 4.096 us * 2^n.
    pub fn ack_delay(&self) -> u8 {
        u8_at(self.0, field::ACK_DELAY) >> 3
    }

    /// Whether the alternate path was accepted; 0 yes.
    pub fn failover(&self) -> u8 {
        u8_at(self.0, field::ACK_DELAY) >> 1 & 0x03
    }

    /// The sender has end-to-end flow control.
    pub fn flow_control(&self) -> bool {
        u8_at(self.0, field::ACK_DELAY) & 0x01 != 0
    }

    /// Retries after RNR NAK that the receiver is to make.
    pub fn rnr_retry(&self) -> u8 {
        u8_at(self.0, field::RNR_RETRY) >> 5
    }

    /// The sender has a shared receive queue.
    pub fn srq(&self) -> bool {
        u8_at(self.0, field::RNR_RETRY) & 0x10 != 0
    }

    /// The sender's node.
    pub fn guid(&self) -> u64 {
        u64_at(self.0, field::GUID)
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
            remote_id: view.remote_id(),
            qkey: view.qkey(),
            qpn: view.qpn(),
            vendor_id: view.vendor_id(),
            eecn: view.eecn(),
            psn: view.psn(),
            responder_resources: view.responder_resources(),
            initiator_depth: view.initiator_depth(),
            ack_delay: view.ack_delay(),
            failover: view.failover(),
            flow_control: view.flow_control(),
            rnr_retry: view.rnr_retry(),
            srq: view.srq(),
            guid: view.guid(),
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
        put_u32(&mut out, field::REMOTE_ID, self.remote_id);
        put_u32(&mut out, field::QKEY, self.qkey);
        put_u24(&mut out, field::QPN, self.qpn.get());
        let [_, high, middle, low] = self.vendor_id.to_be_bytes();
        put_u8(&mut out, field::VENDOR_HIGH, high);
        put_u8(&mut out, field::VENDOR_MIDDLE, middle);
        put_u8(&mut out, field::VENDOR_LOW, low);
        put_u24(&mut out, field::EECN, self.eecn);
        put_u24(&mut out, field::PSN, self.psn.get());
        put_u8(&mut out, field::RESPONDER_RESOURCES, self.responder_resources);
        put_u8(&mut out, field::INITIATOR_DEPTH, self.initiator_depth);
        put_u8(
            &mut out,
            field::ACK_DELAY,
            (self.ack_delay & 0x1f) << 3 | (self.failover & 0x03) << 1 | u8::from(self.flow_control),
        );
        put_u8(&mut out, field::RNR_RETRY, (self.rnr_retry & 0x07) << 5 | u8::from(self.srq) << 4);
        put_u64(&mut out, field::GUID, self.guid);
        put_data::<{ PRIVATE_DATA_LEN }>(&mut out, field::PRIVATE_DATA, self.private_data)?;
        Ok(out)
    }
}

impl fmt::Display for Repr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Repr { local_id, remote_id, qpn, psn, .. } = self;
        write!(f, "REP {local_id:#x} > {remote_id:#x} qpn={:#x} psn={:#x}", qpn.get(), psn.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes() {
        let message = Repr {
            local_id: 9,
            remote_id: 5,
            qkey: 0x0102_0304,
            qpn: Qpn::new(0xabcdef),
            vendor_id: 0x02_c903,
            eecn: 0x112233,
            psn: Psn::new(0x123456),
            responder_resources: 16,
            initiator_depth: 4,
            ack_delay: 15,
            failover: 1,
            flow_control: true,
            rnr_retry: 6,
            srq: true,
            guid: 0x1122_3344_5566_7788,
            private_data: b"yes",
        };
        assert_message!(
            message,
            [(0, "00000009 00000005 01020304 abcdef 02 112233 c9 123456 03 10 04 7b d0 1122334455667788 796573 00")]
        );
        assert_eq!(std::format!("{message}"), "REP 0x9 > 0x5 qpn=0xabcdef psn=0x123456");
    }
}
