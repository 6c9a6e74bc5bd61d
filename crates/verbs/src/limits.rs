//! The limits of the device, in the units of `ibv_query_device`. One table: the engine enforces it, the C ABI reports
//! it.

/// Regions and windows of one process together: their number is bounded by the 24-bit index of a key.
pub const MAX_MR: u32 = 1 << 20;
/// Largest region, in bytes.
pub const MAX_MR_SIZE: u64 = u64::MAX;
/// Queue pairs of one process.
pub const MAX_QP: u32 = 1 << 16;
/// Work requests of one send, receive or shared receive queue.
pub const MAX_QP_WR: u32 = 1 << 15;
/// Scatter/gather entries of one send or receive request.
pub const MAX_SGE: u32 = 32;
/// Scatter/gather entries of one RDMA READ.
pub const MAX_SGE_RD: u32 = 32;
/// Scatter/gather entries of one RDMA READ of iWARP: the sink is one region.
pub const IWARP_MAX_SGE_RD: u32 = 1;
/// Further abilities of the device of iWARP: CURR_QP_STATE_MOD, SYS_IMAGE_GUID, SRQ_RESIZE.
pub const IWARP_CAP_FLAGS: u32 = 1 << 7 | 1 << 11 | 1 << 13;
/// Inline bytes of one send request.
pub const MAX_INLINE: u32 = 1024;
/// Completion queues of one process.
pub const MAX_CQ: u32 = 1 << 16;
/// Entries of one completion queue.
pub const MAX_CQE: u32 = 1 << 22;
/// Protection domains of one process.
pub const MAX_PD: u32 = 1 << 16;
/// Outstanding RDMA READs and atomics of one queue pair, as initiator and as target.
pub const MAX_RD_ATOMIC: u8 = 128;
/// Shared receive queues of one process.
pub const MAX_SRQ: u32 = 1 << 16;
/// Memory windows of one process.
pub const MAX_MW: u32 = 1 << 20;
/// Address handles of one process.
pub const MAX_AH: u32 = 1 << 20;
/// XRC domains of one process.
pub const MAX_XRCD: u32 = 1 << 16;
/// Multicast groups of one process.
pub const MAX_MCAST_GRP: u32 = 1 << 12;
/// Queue pairs attached to one multicast group.
pub const MAX_MCAST_QP_ATTACH: u32 = 1 << 12;
/// Largest message: 1 GiB.
pub const MAX_MSG: u32 = 1 << 30;
/// Bytes of the global route header in front of a datagram's data (IBTA vol. 1, 11.4.1.2).
pub const GRH_BYTES: u32 = 40;
/// Largest datagram: the port's MTU.
pub const MAX_DATAGRAM: u32 = 4096;
/// Entries of the port's partition key table.
pub const PKEYS: u16 = 1;
/// The default partition key, full member (IBTA vol. 1, 10.9.1.2).
pub const DEFAULT_PKEY: u16 = 0xffff;
/// The mask of timestamps: nanoseconds fit in 64 bits.
pub const TIMESTAMP_MASK: u64 = u64::MAX;
/// `hca_core_clock` in kHz: timestamps count nanoseconds.
pub const CORE_CLOCK_KHZ: u64 = 1_000_000;
/// The vendor id that the device reports: no program knows it, so that none assumes a real adapter's peculiarities.
pub const VENDOR_ID: u32 = 0x00_5F_12;
/// The part id that the device reports. perftest lets a device send inline and post through `ibv_wr_*` only if it knows
/// this number, whatever the vendor id beside it; this one is known and brings no special case. Programs that have
/// special cases look at the vendor id first.
pub const VENDOR_PART_ID: u32 = 0xefa0;
/// Further abilities of the device (`enum ibv_device_cap_flags`): CURR_QP_STATE_MOD, SYS_IMAGE_GUID, RC_RNR_NAK_GEN,
/// SRQ_RESIZE, MEM_WINDOW, XRC, MEM_MGT_EXTENSIONS, MEM_WINDOW_TYPE_2B.
pub const DEVICE_CAP_FLAGS: u32 = 1 << 7 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 17 | 1 << 20 | 1 << 21 | 1 << 24;
