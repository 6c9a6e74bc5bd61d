//! Work requests, as a program posts them.

use crate::{Access, AhId, CqId, LKey, MrId, MwId, QpId, Qpn, RKey, SendFlags};

/// Operation of a send work request (`enum ibv_wr_opcode`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[repr(u8)]
#[allow(missing_docs)] // the names are the verbs'
pub enum Opcode {
    RdmaWrite = 0,
    RdmaWriteWithImm = 1,
    Send = 2,
    SendWithImm = 3,
    RdmaRead = 4,
    CmpAndSwp = 5,
    FetchAndAdd = 6,
    LocalInv = 7,
    BindMw = 8,
    SendWithInv = 9,
    Flush = 14,
    AtomicWrite = 15,
    Nop = 0x80,
    Wait = 0x81,
    SendEn = 0x82,
    RecvEn = 0x83,
}

impl Opcode {
    /// The operation with this number of `enum ibv_wr_opcode`, if this device knows it.
    pub const fn from_raw(raw: u32) -> Option<Opcode> {
        Some(match raw {
            0 => Opcode::RdmaWrite,
            1 => Opcode::RdmaWriteWithImm,
            2 => Opcode::Send,
            3 => Opcode::SendWithImm,
            4 => Opcode::RdmaRead,
            5 => Opcode::CmpAndSwp,
            6 => Opcode::FetchAndAdd,
            7 => Opcode::LocalInv,
            8 => Opcode::BindMw,
            9 => Opcode::SendWithInv,
            14 => Opcode::Flush,
            15 => Opcode::AtomicWrite,
            _ => return None,
        })
    }

    /// The operation of an entry of a send queue: one of [`Opcode::from_raw`], or a task. Tasks have numbers that no
    /// `enum ibv_wr_opcode` has.
    pub const fn from_entry(raw: u8) -> Option<Opcode> {
        Some(match raw {
            0x80 => Opcode::Nop,
            0x81 => Opcode::Wait,
            0x82 => Opcode::SendEn,
            0x83 => Opcode::RecvEn,
            other => return Opcode::from_raw(other as u32),
        })
    }

    /// True for operations on the queues of the device itself, which send nothing: NOP, WAIT, SEND_EN, RECV_EN.
    pub const fn is_task(self) -> bool {
        matches!(self, Opcode::Nop | Opcode::Wait | Opcode::SendEn | Opcode::RecvEn)
    }

    /// The bit of the operation in a set of operations.
    pub const fn bit(self) -> u64 {
        let raw = self as u32;
        1 << if raw < 0x80 { raw } else { raw - 0x80 + 48 }
    }
}

/// The count that a WAIT or an ENABLE names. Counts of completions and of entries have 64 bits, and never wrap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// So many from the count on that the last request with `last` left behind. All requests since then begin at one
    /// place; one with `last` moves that place on to the greatest of their counts.
    Relative {
        /// How many. An ENABLE of 0 enables all that is posted.
        count: u32,
        /// Whether the place moves on.
        last: bool,
    },
    /// This count since the object was made, or since the queue pair was last reset.
    Absolute(u64),
}

/// A scatter/gather entry. `length` counts bytes; 0 means 0 here (the C ABI has replaced the special cases).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Sge {
    /// Address in the space of the region (its iova).
    pub addr: u64,
    /// The number of bytes.
    pub length: u32,
    /// The region.
    pub lkey: LKey,
}

/// The part of a send request that depends on its operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendBody {
    /// No further members: SEND, SEND_WITH_IMM, SEND_WITH_INV, LOCAL_INV on a connected queue pair.
    Plain,
    /// RDMA WRITE, READ and ATOMIC WRITE, with the place in the peer's memory.
    Rdma {
        /// Address in the space of the peer's region.
        remote_addr: u64,
        /// The peer's key.
        rkey: RKey,
    },
    /// Compare and swap, fetch and add.
    Atomic {
        /// Address in the space of the peer's region; a multiple of 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: RKey,
        /// The value to compare with, or to add.
        compare_add: u64,
        /// The value to store when equal.
        swap: u64,
    },
    /// SEND on a datagram queue pair.
    Datagram {
        /// The handle of the destination's port.
        ah: AhId,
        /// The destination's queue pair.
        remote_qpn: Qpn,
        /// The Q_Key; the high bit means the queue pair's own.
        remote_qkey: u32,
    },
    /// Bind a window.
    BindMw {
        /// The window.
        mw: MwId,
        /// The key that it gets.
        rkey: RKey,
        /// The region below it; `None` with length 0 unbinds.
        mr: Option<MrId>,
        /// The start, in the space of the region.
        addr: u64,
        /// The number of bytes; 0 unbinds a type 1 window.
        length: u64,
        /// The rights.
        access: Access,
    },
    /// FLUSH (IBTA vol. 1 release 1.5, annex A19).
    Flush {
        /// Address in the space of the peer's region.
        remote_addr: u64,
        /// The peer's key.
        rkey: RKey,
        /// The number of bytes; ignored at level MR.
        length: u32,
        /// Bit 0: global visibility; bit 1: persistence.
        placement: u8,
        /// 0: the range; 1: the whole region.
        level: u8,
    },
    /// Hold back the entries behind this one until a completion queue has had so many completions.
    Wait {
        /// The completion queue.
        cq: CqId,
        /// The count.
        count: Count,
        /// Added to the count in the entry whenever the entry has been executed: for queues that run in a circle.
        step: u32,
    },
    /// Enable the entries of a managed queue up to a count.
    Enable {
        /// The queue pair.
        qp: QpId,
        /// The count.
        count: Count,
        /// As for [`SendBody::Wait`].
        step: u32,
    },
}

/// The place of a send request's data.
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// In registered memory.
    Sges(&'a [Sge]),
    /// In the request (the flag INLINE): pieces, copied before the post returns.
    Inline(&'a [&'a [u8]]),
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// The program's number for the request.
    pub wr_id: u64,
    /// Operation.
    pub opcode: Opcode,
    /// Flags.
    pub flags: SendFlags,
    /// The immediate value in network byte order, or the rkey to invalidate in host order.
    pub imm_or_rkey: u32,
    /// The shared receive queue's number at the target (XRC only).
    pub remote_srqn: u32,
    /// The members that the operation needs.
    pub body: &'a SendBody,
    /// The data.
    pub data: SendData<'a>,
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// The program's number for the request.
    pub wr_id: u64,
    /// The memory for the data.
    pub sges: &'a [Sge],
}
