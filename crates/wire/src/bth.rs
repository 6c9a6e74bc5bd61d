//! Base transport header (IBTA vol. 1, 9.2). Every packet has one.

use core::fmt;

use verbs::{Psn, Qpn};

use crate::bytes::{put_u8, put_u16, put_u24, u8_at, u16_at, u24_at};
use crate::opcode::Opcode;
use crate::{Error, Result};

mod field {
    pub const OPCODE: usize = 0;
    /// Solicited event 7, migration 6, pad count 5-4, version 3-0.
    pub const FLAGS: usize = 1;
    pub const PKEY: usize = 2;
    /// FECN 7, BECN 6 (A17.9.2), reserved.
    pub const CONGESTION: usize = 4;
    pub const DEST_QPN: usize = 5;
    /// Acknowledge request 7, reserved.
    pub const ACK_REQ: usize = 8;
    pub const PSN: usize = 9;
}

header!("base transport header", 12);

/// The only version of the transport (9.2.5).
const VERSION: u8 = 0;

/// The fields of a base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// The kind of the packet.
    pub opcode: Opcode,
    /// The receive completion is solicited.
    pub solicited: bool,
    /// Migration state "migrated": the packet goes over the primary path.
    pub migrated: bool,
    /// Bytes of padding between payload and ICRC, 0 to 3.
    pub pad: u8,
    /// Partition.
    pub pkey: u16,
    /// Forward congestion notification: routers on the way were congested.
    pub fecn: bool,
    /// Backward congestion notification: packets in the other direction were marked.
    pub becn: bool,
    /// Destination queue pair.
    pub dest: Qpn,
    /// An acknowledgement is wanted.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl View<'_> {
    /// The opcode, unchecked.
    pub fn opcode(&self) -> u8 {
        u8_at(self.0, field::OPCODE)
    }

    /// The bit of a solicited event.
    pub fn solicited(&self) -> bool {
        u8_at(self.0, field::FLAGS) & 0x80 != 0
    }

    /// The bit of the migration state.
    pub fn migrated(&self) -> bool {
        u8_at(self.0, field::FLAGS) & 0x40 != 0
    }

    /// Bytes of padding.
    pub fn pad(&self) -> u8 {
        u8_at(self.0, field::FLAGS) >> 4 & 3
    }

    /// Version of the transport.
    pub fn version(&self) -> u8 {
        u8_at(self.0, field::FLAGS) & 0x0f
    }

    /// The partition key.
    pub fn pkey(&self) -> u16 {
        u16_at(self.0, field::PKEY)
    }

    /// The bit of forward congestion notification.
    pub fn fecn(&self) -> bool {
        u8_at(self.0, field::CONGESTION) & 0x80 != 0
    }

    /// The bit of backward congestion notification.
    pub fn becn(&self) -> bool {
        u8_at(self.0, field::CONGESTION) & 0x40 != 0
    }

    /// The destination queue pair.
    pub fn dest(&self) -> Qpn {
        Qpn::new(u24_at(self.0, field::DEST_QPN))
    }

    /// The bit that asks for an acknowledgement.
    pub fn ack_req(&self) -> bool {
        u8_at(self.0, field::ACK_REQ) & 0x80 != 0
    }

    /// The sequence number.
    pub fn psn(&self) -> Psn {
        Psn::new(u24_at(self.0, field::PSN))
    }
}

impl Repr {
    /// Parses a header.
    ///
    /// # Errors
    /// A receiver drops packets of another version and of a reserved opcode (9.6.1): [`Error::Version`],
    /// [`Error::Opcode`].
    pub fn parse(view: &View<'_>) -> Result<Repr> {
        if view.version() != VERSION {
            return Err(Error::Version);
        }
        Ok(Repr {
            opcode: Opcode::parse(view.opcode())?,
            solicited: view.solicited(),
            migrated: view.migrated(),
            pad: view.pad(),
            pkey: view.pkey(),
            fecn: view.fecn(),
            becn: view.becn(),
            dest: view.dest(),
            ack_req: view.ack_req(),
            psn: view.psn(),
        })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put_u8(&mut out, field::OPCODE, self.opcode.emit());
        let flags = u8::from(self.solicited) << 7 | u8::from(self.migrated) << 6 | (self.pad & 3) << 4 | VERSION;
        put_u8(&mut out, field::FLAGS, flags);
        put_u16(&mut out, field::PKEY, self.pkey);
        put_u8(&mut out, field::CONGESTION, u8::from(self.fecn) << 7 | u8::from(self.becn) << 6);
        put_u24(&mut out, field::DEST_QPN, self.dest.get());
        put_u8(&mut out, field::ACK_REQ, u8::from(self.ack_req) << 7);
        put_u24(&mut out, field::PSN, self.psn.get());
        out
    }
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} dest={:#x} psn={:#x} pad={}", self.opcode, self.dest.get(), self.psn.get(), self.pad)?;
        let flags = [
            (self.solicited, " SE"),
            (self.migrated, " M"),
            (self.ack_req, " A"),
            (self.fecn, " FECN"),
            (self.becn, " BECN"),
        ];
        flags.iter().filter(|(set, _)| *set).try_for_each(|(_, name)| f.write_str(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::hex;
    use crate::opcode::{Operation, Service};

    const SEND: Repr = Repr {
        opcode: Opcode::Transport(Service::Rc, Operation::SendLast),
        solicited: true,
        migrated: true,
        pad: 3,
        pkey: 0xffff,
        fecn: false,
        becn: false,
        dest: Qpn::new(0x0a0b0c),
        ack_req: true,
        psn: Psn::new(0x123456),
    };

    #[test]
    fn literal_bytes() {
        assert_wire!(SEND, "02 f0 ffff 00 0a0b0c 80 123456");
        // A congestion notification that a ConnectX-4 Lx sent (from scapy's tests of RoCE).
        let cnp = Repr {
            opcode: Opcode::CongestionNotification,
            solicited: false,
            migrated: false,
            pad: 0,
            becn: true,
            dest: Qpn::new(0x000118),
            ack_req: false,
            psn: Psn::new(0),
            ..SEND
        };
        assert_wire!(cnp, "81 00 ffff 40 000118 00 000000");
    }

    #[test]
    fn reserved_bits_are_ignored() {
        assert_eq!(Repr::read(&hex("02 f0 ffff 3f 0a0b0c ff 123456")), Ok((SEND, &[][..])));
    }

    #[test]
    fn other_versions_and_opcodes_are_refused() {
        assert_eq!(Repr::read(&hex("02 f1 ffff 00 0a0b0c 80 123456")), Err(Error::Version));
        assert_eq!(Repr::read(&hex("44 f0 ffff 00 0a0b0c 80 123456")), Err(Error::Opcode));
    }

    #[test]
    fn one_line() {
        assert_eq!(std::format!("{SEND}"), "Rc SendLast dest=0xa0b0c psn=0x123456 pad=3 SE M A");
    }
}
