//! Numbers of rdma/rdma_netlink.h, as Linux 6.1 and later have them.

/// `RDMA_NL_NLDEV`, the client that answers about devices; a message's type is this in its upper bits and the command.
pub const NLDEV: u16 = 5;

macro_rules! numbers {
    ($(#[$meta:meta])* $name:ident: $ty:ty { $($(#[$doc:meta])* $item:ident = $value:expr,)* }) => {
        $(#[$meta])*
        #[allow(missing_docs)] // the header's names say it
        pub mod $name {
            $($(#[$doc])* pub const $item: $ty = $value;)*
        }
    };
}

numbers! {
    /// `RDMA_NLDEV_CMD_*`.
    cmd: u16 {
        GET = 1,
        SET = 2,
        NEWLINK = 3,
        DELLINK = 4,
        PORT_GET = 5,
        SYS_GET = 6,
        SYS_SET = 7,
        RES_GET = 9,
        RES_QP_GET = 10,
        RES_CM_ID_GET = 11,
        RES_CQ_GET = 12,
        RES_MR_GET = 13,
        RES_PD_GET = 14,
        GET_CHARDEV = 15,
        STAT_SET = 16,
        STAT_GET = 17,
        STAT_DEL = 18,
        RES_CTX_GET = 22,
        RES_SRQ_GET = 23,
        STAT_GET_STATUS = 24,
    }
}

numbers! {
    /// `RDMA_NLDEV_ATTR_*`.
    attr: u16 {
        DEV_INDEX = 1,
        DEV_NAME = 2,
        PORT_INDEX = 3,
        CAP_FLAGS = 4,
        FW_VERSION = 5,
        NODE_GUID = 6,
        SYS_IMAGE_GUID = 7,
        SUBNET_PREFIX = 8,
        LID = 9,
        SM_LID = 10,
        LMC = 11,
        PORT_STATE = 12,
        PORT_PHYS_STATE = 13,
        DEV_NODE_TYPE = 14,
        RES_SUMMARY = 15,
        RES_SUMMARY_ENTRY = 16,
        RES_SUMMARY_ENTRY_NAME = 17,
        RES_SUMMARY_ENTRY_CURR = 18,
        RES_QP = 19,
        RES_QP_ENTRY = 20,
        RES_LQPN = 21,
        RES_RQPN = 22,
        RES_RQ_PSN = 23,
        RES_SQ_PSN = 24,
        RES_PATH_MIG_STATE = 25,
        RES_TYPE = 26,
        RES_STATE = 27,
        RES_PID = 28,
        RES_CM_ID = 30,
        RES_CM_ID_ENTRY = 31,
        RES_PS = 32,
        RES_SRC_ADDR = 33,
        RES_DST_ADDR = 34,
        RES_CQ = 35,
        RES_CQ_ENTRY = 36,
        RES_CQE = 37,
        RES_USECNT = 38,
        RES_MR = 40,
        RES_MR_ENTRY = 41,
        RES_MRLEN = 45,
        RES_PD = 46,
        RES_PD_ENTRY = 47,
        NDEV_INDEX = 50,
        NDEV_NAME = 51,
        RES_PDN = 60,
        RES_CQN = 61,
        RES_MRN = 62,
        RES_CM_IDN = 63,
        RES_CTXN = 64,
        SYS_NETNS_MODE = 66,
        DEV_PROTOCOL = 67,
        CHARDEV_TYPE = 69,
        CHARDEV_NAME = 70,
        CHARDEV_ABI = 71,
        CHARDEV = 72,
        STAT_MODE = 74,
        STAT_RES = 75,
        STAT_AUTO_MODE_MASK = 76,
        STAT_COUNTER = 77,
        STAT_HWCOUNTERS = 80,
        STAT_HWCOUNTER_ENTRY = 81,
        STAT_HWCOUNTER_ENTRY_NAME = 82,
        STAT_HWCOUNTER_ENTRY_VALUE = 83,
        DEV_DIM = 84,
        RES_CTX = 86,
        RES_CTX_ENTRY = 87,
        RES_SRQ = 88,
        RES_SRQ_ENTRY = 89,
        RES_SRQN = 90,
    }
}
