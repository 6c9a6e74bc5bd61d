//! Work completions.

use crate::{Qpn, WcFlags};

/// Outcome of a work request (`enum ibv_wc_status`; IBTA vol. 1, 11.6.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
#[allow(missing_docs)] // the names are the specification's
pub enum WcStatus {
    #[default]
    Success = 0,
    LocLenErr = 1,
    LocQpOpErr = 2,
    LocEecOpErr = 3,
    LocProtErr = 4,
    WrFlushErr = 5,
    MwBindErr = 6,
    BadRespErr = 7,
    LocAccessErr = 8,
    RemInvReqErr = 9,
    RemAccessErr = 10,
    RemOpErr = 11,
    RetryExcErr = 12,
    RnrRetryExcErr = 13,
    LocRddViolErr = 14,
    RemInvRdReqErr = 15,
    RemAbortErr = 16,
    InvEecnErr = 17,
    InvEecStateErr = 18,
    FatalErr = 19,
    RespTimeoutErr = 20,
    GeneralErr = 21,
}

/// The operation that completed (`enum ibv_wc_opcode`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
#[allow(missing_docs)] // the names are the verbs'
pub enum WcOpcode {
    #[default]
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    Flush = 8,
    AtomicWrite = 9,
    Recv = 128,
    RecvRdmaWithImm = 129,
    /// `IBV_WC_DRIVER1`: NOP, WAIT, SEND_EN, RECV_EN.
    Task = 135,
}

/// One completion. Which fields are valid depends on status and opcode, as `ibv_poll_cq(3)` says: after an error only
/// `wr_id`, `status`, `qp_num` and `vendor_err`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Completion {
    /// The request's own number.
    pub wr_id: u64,
    /// Outcome.
    pub status: WcStatus,
    /// The operation that completed.
    pub opcode: WcOpcode,
    /// The number of the rule that was broken, for the log; 0 on success.
    pub vendor_err: u32,
    /// Bytes received or read (for datagrams, the 40 of the GRH included).
    pub byte_len: u32,
    /// The immediate value in network byte order, or the invalidated rkey in host order.
    pub imm_or_rkey: u32,
    /// The local queue pair.
    pub qp_num: Qpn,
    /// The peer's queue pair (datagrams and XRC).
    pub src_qp: Qpn,
    /// Flags.
    pub flags: WcFlags,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// The LID that a datagram came from; 0 on Ethernet.
    pub slid: u16,
    /// The service level. For datagrams of RoCE v2 it is 9 when the 40 bytes in front of the data are an IPv6 header,
    /// 10 when they end in an IPv4 header.
    pub sl: u8,
    /// The time at which the completion was made: nanoseconds of CLOCK_MONOTONIC.
    pub timestamp: u64,
}
