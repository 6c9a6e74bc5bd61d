//! An open device, and how two ends are joined.

use std::sync::Arc;

use rdma::{Access, AhAttr, Context, Gid, Pd, Qp, QpAttr, QpAttrMask as M, QpState, QpType};
use serde::{Deserialize, Serialize};

use crate::library::library;

/// The device has one port.
pub const PORT: u8 = 1;

/// An open device.
pub struct Fixture {
    /// The context.
    pub context: Arc<Context>,
    /// A domain for everything.
    pub pd: Arc<Pd>,
    /// The device's address at index 0.
    pub gid: Gid,
}

/// The attributes that two ends of a connection agree on, or that a test wants otherwise.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Joined {
    /// The access of the peer through this end (`enum ibv_access_flags`).
    pub access: u32,
    /// `max_rd_atomic`.
    pub reads: u8,
    /// `max_dest_rd_atomic`.
    pub dest_reads: u8,
    /// Acknowledgement timeout: 4.096 us * 2^n.
    pub timeout: u8,
    /// Retries after timeouts.
    pub retries: u8,
    /// Retries after RNR NAKs; 7 is for ever.
    pub rnr_retries: u8,
    /// Index of the RNR timer; 1 is 10 us.
    pub rnr_timer: u8,
    /// `enum ibv_mtu`.
    pub mtu: u8,
}

impl Default for Joined {
    fn default() -> Self {
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        // More than a second until a retry: on a busy machine the peer may not run for a while.
        Joined {
            access: all.bits(),
            reads: 16,
            dest_reads: 16,
            timeout: 18,
            retries: 7,
            rnr_retries: 7,
            rnr_timer: 1,
            mtu: 3,
        }
    }
}

impl Fixture {
    /// Open the device of the library under test.
    ///
    /// # Panics
    /// If that is not possible.
    pub fn open() -> Fixture {
        let device = library().devices().expect("devices").into_iter().next().expect("a device");
        let context = device.open().expect("ibv_open_device");
        let pd = context.alloc_pd().expect("ibv_alloc_pd");
        let gid = context.query_gid(PORT, 0).expect("ibv_query_gid").expect("an address").gid;
        Fixture { context, pd, gid }
    }
}

impl Joined {
    /// Move from RESET to INIT.
    ///
    /// # Panics
    /// If it is refused.
    pub fn init(&self, qp: &Qp, qp_type: QpType) {
        qp.init(qp_type, PORT, Access::from_bits_retain(self.access), QKEY).expect("RESET to INIT");
    }

    /// The attributes of a connection to `qpn` at `gid`. Sequence numbers start at that of the receiving side.
    pub fn attr(&self, qpn: u32, own: u32, gid: Gid) -> QpAttr {
        QpAttr {
            path_mtu: self.mtu,
            dest_qp_num: qpn,
            rq_psn: own & 0xff_ffff,
            sq_psn: qpn & 0xff_ffff,
            ah: AhAttr { dgid: gid, hop_limit: 64, is_global: true, port_num: PORT, ..AhAttr::default() },
            access: Access::from_bits_retain(self.access),
            max_rd_atomic: self.reads,
            max_dest_rd_atomic: self.dest_reads,
            min_rnr_timer: self.rnr_timer,
            timeout: self.timeout,
            retry_cnt: self.retries,
            rnr_retry: self.rnr_retries,
            port_num: PORT,
            qkey: QKEY,
            ..QpAttr::default()
        }
    }

    /// Move from INIT to RTR.
    ///
    /// # Errors
    /// Those of `ibv_modify_qp`.
    pub fn rtr(&self, qp: &Qp, qp_type: QpType, qpn: u32, gid: Gid) -> rdma::Result<()> {
        let attr = QpAttr { state: QpState::Rtr, ..self.attr(qpn, qp.number(), gid) };
        qp.modify(&attr, M::STATE | required(qp_type, QpState::Init, QpState::Rtr))
    }

    /// Move from RTR to RTS.
    ///
    /// # Errors
    /// Those of `ibv_modify_qp`.
    pub fn rts(&self, qp: &Qp, qp_type: QpType, qpn: u32, gid: Gid) -> rdma::Result<()> {
        let attr = QpAttr { state: QpState::Rts, ..self.attr(qpn, qp.number(), gid) };
        qp.modify(&attr, M::STATE | required(qp_type, QpState::Rtr, QpState::Rts))
    }

    /// Move from RESET to RTS.
    ///
    /// # Panics
    /// If it is refused.
    pub fn up(&self, qp: &Qp, qp_type: QpType, qpn: u32, gid: Gid) {
        self.init(qp, qp_type);
        self.rtr(qp, qp_type, qpn, gid).expect("INIT to RTR");
        self.rts(qp, qp_type, qpn, gid).expect("RTR to RTS");
    }
}

/// The Q_Key of all datagrams here.
const QKEY: u32 = 0x1111_1111;

fn required(qp_type: QpType, from: QpState, to: QpState) -> M {
    verbs::state::transition(qp_type, from, to).expect("a row of the table").0
}
