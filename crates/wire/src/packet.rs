//! A packet between two queue pairs, as it is before a wire has given it a layout.

use verbs::{Psn, Qpn};

/// The operation of a packet (the names of the base transport header's operations, IBTA vol. 1, 9.2; segmentation is in
/// the flags).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // the names are the specification's
pub enum PacketOp {
    Send = 0,
    Write = 1,
    ReadRequest = 2,
    ReadResponse = 3,
    CompareSwap = 4,
    FetchAdd = 5,
    AtomicWrite = 6,
    AtomicAck = 7,
    Ack = 8,
    Flush = 9,
    /// Datagram; the payload begins with the 16 bytes of the source GID and the 16 of the destination GID.
    Datagram = 10,
}

impl PacketOp {
    /// True for what goes from responder to requester.
    pub const fn is_response(self) -> bool {
        matches!(self, PacketOp::Ack | PacketOp::ReadResponse | PacketOp::AtomicAck)
    }

    /// The operation with this number.
    pub const fn from_raw(raw: u8) -> Option<PacketOp> {
        Some(match raw {
            0 => PacketOp::Send,
            1 => PacketOp::Write,
            2 => PacketOp::ReadRequest,
            3 => PacketOp::ReadResponse,
            4 => PacketOp::CompareSwap,
            5 => PacketOp::FetchAdd,
            6 => PacketOp::AtomicWrite,
            7 => PacketOp::AtomicAck,
            8 => PacketOp::Ack,
            9 => PacketOp::Flush,
            10 => PacketOp::Datagram,
            _ => return None,
        })
    }
}

/// Flags of a packet, one bit each.
pub mod packet_flags {
    /// First packet of its message.
    pub const FIRST: u8 = 1;
    /// Last packet of its message.
    pub const LAST: u8 = 1 << 1;
    /// `imm` is an immediate value. RDMA WRITE has it in all packets of the message, and its value counts in the last.
    pub const IMM: u8 = 1 << 2;
    /// `imm` is an rkey to invalidate.
    pub const INV: u8 = 1 << 3;
    /// The receive completion is solicited.
    pub const SOLICITED: u8 = 1 << 4;
    /// An acknowledgement is wanted at once. That of a last packet of a SEND or WRITE without this flag wakes no
    /// process.
    pub const ACK_REQ: u8 = 1 << 5;
    /// The payload is not the data but 16-byte entries, little endian. The first is the ticket: the address of a word
    /// of the initiator and the value that it holds for as long as the request lives. The others (address u64, length
    /// u32, 0 u32) say where the data lie in the initiator. READ responses with this flag carry nothing: the data have
    /// been put there.
    pub const BY_REF: u8 = 1 << 6;
    /// The initiator uses XRC: `srqn` is valid.
    pub const XRC: u8 = 1 << 7;
}

/// Everything about a packet but its payload. Fields that an operation does not use are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The operation.
    pub op: PacketOp,
    /// [`packet_flags`].
    pub flags: u8,
    /// AETH syndrome of responses (IBTA vol. 1, 9.7.5.2): ACK, RNR NAK with timer, NAK code. For FLUSH: placement in
    /// bits 0-1, level in bit 4.
    pub syndrome: u8,
    /// Destination queue pair.
    pub dst: Qpn,
    /// Source queue pair.
    pub src: Qpn,
    /// Sequence number; of a message by reference: its first.
    pub psn: Psn,
    /// Immediate value, rkey to invalidate, or (responses) the message sequence number.
    pub imm: u32,
    /// Data bytes of the *message* part that this packet stands for: its payload length, or with `BY_REF` the length of
    /// the referenced data. Of an AtomicAck: 8 if there is a value before the operation, 0 for ATOMIC WRITE and FLUSH.
    pub len: u32,
    /// Bytes of each packet but the last into which the sender would cut the message on a wire (its path MTU), or 0: it
    /// would be one packet. SENDs, WRITEs and READ responses.
    pub mtu: u32,
    /// Remote address of RDMA and atomics. READ responses: byte offset in the message.
    pub remote_addr: u64,
    /// Remote key of RDMA and atomics; Q_Key of datagrams.
    pub rkey: u32,
    /// Bytes of the whole message (DMALen of the RETH).
    pub dma_len: u32,
    /// Swap or add operand; the original value in an AtomicAck; the SRQ number of XRC sends and writes.
    pub swap: u64,
    /// Compare operand. Sends by XRC carry none.
    pub compare: u64,
}

impl Packet {
    /// Room for one.
    pub const NONE: Packet = Packet::new(PacketOp::Ack, Qpn::new(0), Qpn::new(0), Psn::new(0));

    /// A packet with nothing but its addresses.
    pub const fn new(op: PacketOp, dst: Qpn, src: Qpn, psn: Psn) -> Self {
        Packet {
            op,
            flags: 0,
            syndrome: 0,
            dst,
            src,
            psn,
            imm: 0,
            len: 0,
            mtu: 0,
            remote_addr: 0,
            rkey: 0,
            dma_len: 0,
            swap: 0,
            compare: 0,
        }
    }

    /// True if this flag is set.
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// True if the message comes in packets of the lengths that a queue pair with this path MTU expects: first and
    /// middle ones are as long as that (IBTA vol. 1, 9.7.4.1.6, 9.7.5.1.6), and what is one packet is not longer. A
    /// message that is one packet for both sides shows no difference.
    pub const fn is_cut_by(&self, mtu: u32) -> bool {
        const WHOLE: u8 = packet_flags::FIRST | packet_flags::LAST;
        self.mtu == mtu || self.mtu == 0 && self.flags & WHOLE == WHOLE && self.len <= mtu
    }
}

/// The header fields of small SENDs and acknowledgements. [`Packet`] has the meaning of each field.
#[allow(missing_docs)]
#[allow(clippy::len_without_is_empty)] // a field of the header, not a container
pub trait Head: Copy {
    fn flags(self) -> u8;
    fn syndrome(self) -> u8;
    fn src(self) -> Qpn;
    fn psn(self) -> Psn;
    fn imm(self) -> u32;
    fn len(self) -> u32;
    /// [`Packet::mtu`]
    fn mtu(self) -> u32;
    #[inline(always)]
    fn has(self, flag: u8) -> bool {
        self.flags() & flag != 0
    }
}

impl Head for &Packet {
    #[inline(always)]
    fn flags(self) -> u8 {
        self.flags
    }
    #[inline(always)]
    fn syndrome(self) -> u8 {
        self.syndrome
    }
    #[inline(always)]
    fn src(self) -> Qpn {
        self.src
    }
    #[inline(always)]
    fn psn(self) -> Psn {
        self.psn
    }
    #[inline(always)]
    fn imm(self) -> u32 {
        self.imm
    }
    #[inline(always)]
    fn len(self) -> u32 {
        self.len
    }
    #[inline(always)]
    fn mtu(self) -> u32 {
        self.mtu
    }
}
