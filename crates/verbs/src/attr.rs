//! Attributes of queue pairs and of the calls that create objects.

use crate::{Access, CqId, Gid, PdId, Qpn, SrqId, XrcdId};

/// Transport service (`enum ibv_qp_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[repr(u32)]
pub enum QpType {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Extended reliable connection, initiator.
    XrcIni = 9,
    /// Extended reliable connection, target.
    XrcTgt = 10,
}

impl QpType {
    /// All of them.
    pub const ALL: [QpType; 5] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcIni, QpType::XrcTgt];

    /// The type with this number, if this device has it.
    pub const fn from_raw(raw: u32) -> Option<QpType> {
        Some(match raw {
            2 => QpType::Rc,
            3 => QpType::Uc,
            4 => QpType::Ud,
            9 => QpType::XrcIni,
            10 => QpType::XrcTgt,
            _ => return None,
        })
    }

    /// True for RC and both sides of XRC, whose packets are acknowledged.
    pub const fn is_reliable(self) -> bool {
        matches!(self, QpType::Rc | QpType::XrcIni | QpType::XrcTgt)
    }

    /// True if it has a send queue.
    pub const fn sends(self) -> bool {
        !matches!(self, QpType::XrcTgt)
    }

    /// True if it has a receive queue of its own or a shared one named at creation.
    pub const fn receives(self) -> bool {
        matches!(self, QpType::Rc | QpType::Uc | QpType::Ud)
    }
}

/// State of a queue pair (`enum ibv_qp_state`; IBTA vol. 1, 10.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[repr(u32)]
#[allow(missing_docs)] // the names are the specification's
pub enum QpState {
    #[default]
    Reset = 0,
    Init = 1,
    Rtr = 2,
    Rts = 3,
    Sqd = 4,
    Sqe = 5,
    Err = 6,
}

impl QpState {
    /// All of them.
    pub const ALL: [QpState; 7] =
        [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];

    /// The state with this number.
    pub const fn from_raw(raw: u32) -> Option<QpState> {
        Some(match raw {
            0 => QpState::Reset,
            1 => QpState::Init,
            2 => QpState::Rtr,
            3 => QpState::Rts,
            4 => QpState::Sqd,
            5 => QpState::Sqe,
            6 => QpState::Err,
            _ => return None,
        })
    }
}

/// An address vector (`struct ibv_ah_attr`). On Ethernet it always has a GRH.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AhAttr {
    /// Destination.
    pub dgid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Index of the source GID.
    pub sgid_index: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Destination LID, in host byte order; unused on Ethernet, reported back.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Source path bits.
    pub src_path_bits: u8,
    /// Static rate.
    pub static_rate: u8,
    /// True when the GRH is present. A port on Ethernet demands it.
    pub is_global: bool,
    /// Port, from 1.
    pub port_num: u8,
}

/// Sizes of a queue pair (`struct ibv_qp_cap`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // the names are the ABI's
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// Attributes of a queue pair (`struct ibv_qp_attr`), in the ABI's units.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpAttr {
    /// The state to go to, or (query) the present one.
    pub state: QpState,
    /// The state that the caller takes for the present one.
    pub cur_state: QpState,
    /// 1..5: 256, 512, 1024, 2048, 4096 bytes (`enum ibv_mtu`).
    pub path_mtu: u8,
    /// 0 migrated, 1 rearm, 2 armed.
    pub path_mig_state: u8,
    /// Key of datagrams.
    pub qkey: u32,
    /// First expected sequence number.
    pub rq_psn: u32,
    /// First sequence number to send.
    pub sq_psn: u32,
    /// The peer.
    pub dest_qp_num: u32,
    /// The access of peers through this queue pair.
    pub access: Access,
    /// Sizes.
    pub cap: QpCap,
    /// Primary path.
    pub ah: AhAttr,
    /// Alternate path.
    pub alt_ah: AhAttr,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// Index of the partition key of the alternate path.
    pub alt_pkey_index: u16,
    /// True to ask for the SQ_DRAINED event.
    pub en_sqd_async_notify: bool,
    /// True while the queue pair is draining.
    pub sq_draining: bool,
    /// Outstanding READs and atomics as initiator.
    pub max_rd_atomic: u8,
    /// Outstanding READs and atomics as target.
    pub max_dest_rd_atomic: u8,
    /// RNR NAK timer, an index of table 45 (IBTA vol. 1, 9.7.5.2.8), 0..31.
    pub min_rnr_timer: u8,
    /// Port, from 1.
    pub port_num: u8,
    /// Acknowledgement timeout: 4.096 us * 2^n; 0 means for ever; 0..31.
    pub timeout: u8,
    /// Retries after timeouts and sequence errors, 0..7.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs, 0..7; 7 means for ever.
    pub rnr_retry: u8,
    /// Port of the alternate path.
    pub alt_port_num: u8,
    /// Timeout of the alternate path.
    pub alt_timeout: u8,
    /// kb/s; 0 means unlimited.
    pub rate_limit: u32,
}

/// The attributes with which a queue pair is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpInit {
    /// Protection domain; an XRC target has none.
    pub pd: Option<PdId>,
    /// Transport service.
    pub qp_type: QpType,
    /// The queue for completions of sends; an XRC target has none.
    pub send_cq: Option<CqId>,
    /// The queue for completions of receives; XRC has none.
    pub recv_cq: Option<CqId>,
    /// Shared receive queue.
    pub srq: Option<SrqId>,
    /// XRC domain of a target.
    pub xrcd: Option<XrcdId>,
    /// Sizes asked for.
    pub cap: QpCap,
    /// True if every send request is signaled.
    pub sq_sig_all: bool,
}

/// The attributes with which a shared receive queue is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SrqInit {
    /// Protection domain.
    pub pd: PdId,
    /// The number of requests that it holds.
    pub max_wr: u32,
    /// The number of entries of one request.
    pub max_sge: u32,
    /// Event limit; 0 means disarmed. Ignored at creation by the basic verb (`ibv_create_srq(3)`).
    pub limit: u32,
    /// For XRC: the domain and the completion queue.
    pub xrc: Option<(XrcdId, CqId)>,
}

/// `struct ibv_srq_attr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // the names are the ABI's
pub struct SrqAttr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub limit: u32,
}

/// The identity that a queue pair was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpCreated {
    /// Its number.
    pub qpn: Qpn,
    /// The sizes that it really has, at least those asked for.
    pub cap: QpCap,
}
