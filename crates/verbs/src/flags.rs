//! Bit sets of the C ABI.

bitflags::bitflags! {
    /// Access rights of a region, a window or a queue pair (`enum ibv_access_flags`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Access: u32 {
        /// The local adapter may write.
        const LOCAL_WRITE = 1;
        /// A peer may write.
        const REMOTE_WRITE = 1 << 1;
        /// A peer may read.
        const REMOTE_READ = 1 << 2;
        /// A peer may run atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// A window may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Remote addresses count from the region's start.
        const ZERO_BASED = 1 << 5;
        /// Pages need not be present.
        const ON_DEMAND = 1 << 6;
        /// The memory lies in huge pages.
        const HUGETLB = 1 << 7;
        /// FLUSH with placement type global visibility is allowed.
        const FLUSH_GLOBAL = 1 << 8;
        /// FLUSH with placement type persistence is allowed.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Writes may be reordered.
        const RELAXED_ORDERING = 1 << 20;
    }

    /// Flags of a send work request (`enum ibv_send_flags`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct SendFlags: u32 {
        /// Wait until earlier reads and atomics are done.
        const FENCE = 1;
        /// Give a completion.
        const SIGNALED = 1 << 1;
        /// The receiver's completion is solicited.
        const SOLICITED = 1 << 2;
        /// The data are in the request itself.
        const INLINE = 1 << 3;
        /// Compute the IP checksum (raw packets only; not supported here).
        const IP_CSUM = 1 << 4;
    }

    /// Flags of a completion (`enum ibv_wc_flags`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct WcFlags: u32 {
        /// 40 bytes of GRH precede the data.
        const GRH = 1;
        /// The immediate value is valid.
        const WITH_IMM = 1 << 1;
        /// The IP checksum is right.
        const IP_CSUM_OK = 1 << 2;
        /// The invalidated rkey is valid.
        const WITH_INV = 1 << 3;
    }

    /// Which attributes `modify_qp` sets (`enum ibv_qp_attr_mask`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct QpAttrMask: u32 {
        /// `qp_state`.
        const STATE = 1;
        /// `cur_qp_state`.
        const CUR_STATE = 1 << 1;
        /// `en_sqd_async_notify`.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `qp_access_flags`.
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        const PKEY_INDEX = 1 << 4;
        /// `port_num`.
        const PORT = 1 << 5;
        /// `qkey`.
        const QKEY = 1 << 6;
        /// `ah_attr`.
        const AV = 1 << 7;
        /// `path_mtu`.
        const PATH_MTU = 1 << 8;
        /// `timeout`.
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// `alt_ah_attr`, `alt_pkey_index`, `alt_port_num`, `alt_timeout`.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `path_mig_state`.
        const PATH_MIG_STATE = 1 << 18;
        /// `cap`.
        const CAP = 1 << 19;
        /// `dest_qp_num`.
        const DEST_QPN = 1 << 20;
        /// `rate_limit`.
        const RATE_LIMIT = 1 << 25;
    }
}
