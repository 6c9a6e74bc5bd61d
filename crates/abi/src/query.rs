//! Attributes of the device and its port: the one place that reports the limits of `verbs::limits` to C.

use core::mem::{offset_of, size_of};

use libc::{c_int, c_void, size_t};
use report::Device;
use sys::*;
use verbs::{Errno, LinkLayer, Result, limits};

use crate::context::Context;
use crate::dm;
use crate::entry::{Zeroed, minus_one, number, output};

fn text<const N: usize>(text: &str) -> [libc::c_char; N] {
    let mut out = [0; N];
    for (to, from) in out.iter_mut().zip(text.bytes().take(N - 1)) {
        *to = from as libc::c_char;
    }
    out
}

fn int(value: u64) -> c_int {
    value.min(c_int::MAX as u64) as c_int
}

const _: () = assert!(
    limits::DEVICE_CAP_FLAGS
        == IBV_DEVICE_CURR_QP_STATE_MOD
        | IBV_DEVICE_SYS_IMAGE_GUID
        | IBV_DEVICE_RC_RNR_NAK_GEN
        | IBV_DEVICE_SRQ_RESIZE
        | IBV_DEVICE_MEM_WINDOW
        | IBV_DEVICE_MEM_WINDOW_TYPE_2B
        | sys::IBV_DEVICE_MEM_MGT_EXTENSIONS // send with invalidate, local invalidate
        | IBV_DEVICE_XRC
);

/// The attributes for [`ibv_query_device`].
fn device_attr(kind: Device, guid: u64) -> ibv_device_attr {
    let rd_atomic = u64::from(limits::MAX_RD_ATOMIC);
    let attr = ibv_device_attr {
        fw_ver: text(env!("CARGO_PKG_VERSION")),
        node_guid: guid.to_be(),
        sys_image_guid: guid.to_be(),
        max_mr_size: limits::MAX_MR_SIZE,
        page_size_cap: 0xffff_f000,
        vendor_id: limits::VENDOR_ID,
        vendor_part_id: limits::VENDOR_PART_ID,
        hw_ver: 1,
        max_qp: int(limits::MAX_QP.into()),
        max_qp_wr: int(limits::MAX_QP_WR.into()),
        device_cap_flags: limits::DEVICE_CAP_FLAGS,
        max_sge: int(limits::MAX_SGE.into()),
        max_sge_rd: int(limits::MAX_SGE_RD.into()),
        max_cq: int(limits::MAX_CQ.into()),
        max_cqe: int(limits::MAX_CQE.into()),
        max_mr: int(limits::MAX_MR.into()),
        max_pd: int(limits::MAX_PD.into()),
        max_qp_rd_atom: int(rd_atomic),
        max_res_rd_atom: int(rd_atomic * u64::from(limits::MAX_QP)),
        max_qp_init_rd_atom: int(rd_atomic),
        atomic_cap: IBV_ATOMIC_HCA,
        max_mw: int(limits::MAX_MW.into()),
        max_mcast_grp: int(limits::MAX_MCAST_GRP.into()),
        max_mcast_qp_attach: int(limits::MAX_MCAST_QP_ATTACH.into()),
        max_total_mcast_qp_attach: int(u64::from(limits::MAX_MCAST_GRP) * u64::from(limits::MAX_MCAST_QP_ATTACH)),
        max_ah: int(limits::MAX_AH.into()),
        max_srq: int(limits::MAX_SRQ.into()),
        max_srq_wr: int(limits::MAX_QP_WR.into()),
        max_srq_sge: int(limits::MAX_SGE.into()),
        max_pkeys: limits::PKEYS,
        phys_port_cnt: 1,
        ..ibv_device_attr::zeroed()
    };
    if !kind.is_iwarp() {
        return attr;
    }
    // What RFC 5040 does not have: atomics, windows, datagrams, XRC.
    ibv_device_attr {
        device_cap_flags: limits::IWARP_CAP_FLAGS,
        max_sge_rd: int(limits::IWARP_MAX_SGE_RD.into()),
        atomic_cap: IBV_ATOMIC_NONE,
        max_mw: 0,
        max_mcast_grp: 0,
        max_mcast_qp_attach: 0,
        max_total_mcast_qp_attach: 0,
        max_ah: 0,
        ..attr
    }
}

fn device_attr_ex(kind: Device, guid: u64) -> ibv_device_attr_ex {
    let both = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
    let reliable = both
        | IBV_ODP_SUPPORT_WRITE
        | IBV_ODP_SUPPORT_READ
        | IBV_ODP_SUPPORT_ATOMIC
        | IBV_ODP_SUPPORT_FLUSH
        | IBV_ODP_SUPPORT_ATOMIC_WRITE;
    let orig_attr = device_attr(kind, guid);
    let mut attr = ibv_device_attr_ex {
        orig_attr,
        completion_timestamp_mask: limits::TIMESTAMP_MASK,
        hca_core_clock: limits::CORE_CLOCK_KHZ,
        device_cap_flags_ex: orig_attr.device_cap_flags.into(),
        max_dm_size: dm::MAX_SIZE as u64,
        xrc_odp_caps: reliable,
        phys_port_cnt_ex: 1,
        ..ibv_device_attr_ex::zeroed()
    };
    if kind.is_iwarp() {
        (attr.max_dm_size, attr.cq_mod_caps.max_cq_count, attr.cq_mod_caps.max_cq_period) = (0, u16::MAX, u16::MAX);
        return attr;
    }
    attr.odp_caps.general_caps = (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT).into();
    attr.odp_caps.per_transport_caps.rc_odp_caps = reliable;
    attr.odp_caps.per_transport_caps.uc_odp_caps = both | IBV_ODP_SUPPORT_WRITE;
    attr.odp_caps.per_transport_caps.ud_odp_caps = both;
    attr.cq_mod_caps.max_cq_count = u16::MAX;
    attr.cq_mod_caps.max_cq_period = u16::MAX;
    attr
}

/// `ibv_query_device(3)`.
pub unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let context = unsafe { Context::of(context) }?;
        let kind = context.kind();
        // SAFETY: the caller's structure or NULL.
        *unsafe { output(attr) }? = device_attr(kind, context.facts().guid(kind));
        Ok(())
    })
}

/// `ibv_query_device_ex(3)`: as many bytes as the caller's header has.
pub unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: size_t,
) -> c_int {
    number(|| {
        // SAFETY: the caller's structure or NULL.
        if unsafe { input.as_ref() }.is_some_and(|i| i.comp_mask != 0) {
            return Err(Errno::EINVAL);
        }
        if attr.is_null() || size < offset_of!(ibv_device_attr_ex, comp_mask) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: live or NULL (man page).
        let context = unsafe { Context::of(context) }?;
        let kind = context.kind();
        let all = device_attr_ex(kind, context.facts().guid(kind));
        // SAFETY: the caller has `size` bytes there.
        unsafe { copy_out(&all, attr.cast(), size) };
        Ok(())
    })
}

/// Copy the part of `value` that a caller with `size` bytes knows, and zeros behind the end of `value`.
///
/// # Safety
/// `to` has `size` bytes.
unsafe fn copy_out<T>(value: &T, to: *mut c_void, size: usize) {
    let known = size.min(size_of::<T>());
    // SAFETY: both sides have `known` bytes; the rest is the caller's too.
    unsafe {
        to.copy_from_nonoverlapping(core::ptr::from_ref(value).cast(), known);
        to.byte_add(known).write_bytes(0, size - known);
    }
}

/// Port numbers start at 1, and there is one.
pub fn check_port(port: u32) -> Result<()> {
    if port == 1 { Ok(()) } else { Err(Errno::EINVAL) }
}

/// `enum ib_port_phys_state`, LinkUp (IBTA vol. 1, 14.2.5.6).
const PHYS_LINK_UP: u8 = 5;
/// Disabled in that enumeration: the state of a RoCE adapter's port whose cable is out.
const PHYS_DISABLED: u8 = 3;
/// 4X, `PortInfo:LinkWidthActive`.
const WIDTH_4X: u8 = 2;
/// EDR, 25.78125 Gb/s a lane, `PortInfo:LinkSpeedActive`.
const SPEED_EDR: u8 = 32;
/// The rate of that width and speed together, in Mb/s.
const MBPS: u64 = 100_000;

/// The exponent n of the time that a datagram may take through the subnet, 4.096 us * 2^n (`PortInfo:SubnetTimeOut`,
/// the usual value).
const SUBNET_TIMEOUT: u8 = 18;

fn port_attr(context: &Context) -> ibv_port_attr {
    let down = nic::faults::port_is_down();
    let link_layer = context.facts().link_layer(context.kind());
    let attr = ibv_port_attr {
        state: if down { IBV_PORT_DOWN } else { IBV_PORT_ACTIVE },
        max_mtu: IBV_MTU_4096,
        active_mtu: IBV_MTU_4096,
        gid_tbl_len: crate::gid::table_len(context) as c_int,
        port_cap_flags: IBV_PORT_CM_SUP,
        max_msg_sz: limits::MAX_MSG,
        pkey_tbl_len: limits::PKEYS,
        max_vl_num: 1,
        active_width: WIDTH_4X,
        active_speed: SPEED_EDR,
        active_speed_ex: SPEED_EDR.into(),
        phys_state: if down { PHYS_DISABLED } else { PHYS_LINK_UP },
        ..ibv_port_attr::zeroed()
    };
    match link_layer {
        LinkLayer::Ethernet => ibv_port_attr {
            port_cap_flags: attr.port_cap_flags | IBV_PORT_IP_BASED_GIDS,
            link_layer: IBV_LINK_LAYER_ETHERNET as u8,
            flags: IBV_QPF_GRH_REQUIRED,
            ..attr
        },
        LinkLayer::InfiniBand { lid } => ibv_port_attr {
            link_layer: IBV_LINK_LAYER_INFINIBAND as u8,
            lid,
            sm_lid: view::port::SM_LID,
            subnet_timeout: SUBNET_TIMEOUT,
            ..attr
        },
    }
}

/// `ibv_query_port(3)`: as many bytes as the caller's header has.
pub unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: size_t,
) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let context = unsafe { Context::of(context) }?;
        check_port(port.into())?;
        if attr.is_null() {
            return Err(Errno::EINVAL);
        }
        let all = port_attr(context);
        // SAFETY: the caller has `size` bytes there.
        unsafe { copy_out(&all, attr.cast(), size) };
        Ok(())
    })
}

/// `ibv_query_port(3)` for programs built before the structure could grow: it ended before `port_cap_flags2`.
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    // SAFETY: the caller has that many bytes there.
    unsafe { query_port(context, port, attr.cast(), offset_of!(ibv_port_attr, port_cap_flags2)) }
}

/// `ibv_query_port_speed(3)`: in units of 100 Mb/s.
pub unsafe extern "C" fn ibv_query_port_speed(context: *mut ibv_context, port: u32, speed: *mut u64) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        unsafe { Context::of(context) }?;
        check_port(port)?;
        // SAFETY: the caller's variable or NULL.
        *unsafe { output(speed) }? = MBPS / 100;
        Ok(())
    })
}

/// `ibv_query_pkey(3)`.
pub unsafe extern "C" fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, pkey: *mut u16) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL (man page).
        unsafe { Context::of(context) }?;
        check_port(port.into())?;
        if !(0..c_int::from(limits::PKEYS)).contains(&index) {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller's variable or NULL.
        *unsafe { output(pkey) }? = limits::DEFAULT_PKEY.to_be();
        Ok(0)
    })
}

/// `ibv_get_pkey_index(3)`: -1 when no entry has this key.
pub unsafe extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL (man page).
        unsafe { Context::of(context) }?;
        check_port(port.into())?;
        if u16::from_be(pkey) == limits::DEFAULT_PKEY { Ok(0) } else { Err(Errno::ENOENT) }
    })
}

/// `ibv_query_rt_values_ex(3)`: the clock of completion timestamps.
pub unsafe extern "C" fn query_rt_values(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        unsafe { Context::of(context) }?;
        // SAFETY: the caller's structure or NULL.
        let values = unsafe { output(values) }?;
        let asked = values.comp_mask;
        values.comp_mask = 0;
        if asked & IBV_VALUES_MASK_RAW_CLOCK != 0 {
            // SAFETY: a structure to fill in.
            unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut values.raw_clock) };
            values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
        }
        Ok(())
    })
}
