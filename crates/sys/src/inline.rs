//! The `static inline` functions of the header: jumps through the tables in the structures, so no library exports them.
//!
//! Each has the name, the arguments and the result of the C function; its man page applies. All are unsafe for the same
//! reason: the pointers must be live objects that the verbs library handed out.
#![allow(clippy::missing_safety_doc)]

use crate::*;
use core::mem::{offset_of, size_of};
use libc::{EINVAL, EOPNOTSUPP, EPERM, c_int, c_uint, c_void, size_t};

/// `verbs_get_ctx`: the extended context around this one, or `None` for a library that knows only the basic one.
pub unsafe fn verbs_get_ctx(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: `context` is live.
    (unsafe { (*context).abi_compat } == VERBS_ABI_IS_EXTENDED)
        .then(|| context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast())
}

/// `verbs_get_ctx_op`: the member of the extended context, if the library's context is large enough to have it.
#[macro_export]
macro_rules! verbs_op {
    ($context:expr, $op:ident) => {
        $crate::inline::verbs_get_ctx($context).and_then(|v| {
            let known = (*v).sz
                >= core::mem::size_of::<$crate::verbs_context>() - core::mem::offset_of!($crate::verbs_context, $op);
            if known { (*v).$op } else { None }
        })
    };
}

unsafe fn fail<T>(errno: c_int) -> *mut T {
    // SAFETY: the C library's errno of this thread.
    unsafe { *libc::__errno_location() = errno };
    core::ptr::null_mut()
}

/// Functions that return a pointer: NULL and EOPNOTSUPP where the operation is missing.
macro_rules! pointers {
    ($($name:ident($on:ident: $ty:ty $(, $arg:ident: $argty:ty)*) -> $ret:ty, $ctx:expr, $op:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        pub unsafe fn $name($on: $ty $(, $arg: $argty)*) -> *mut $ret {
            // SAFETY: the caller's pointers are live, see the module.
            unsafe {
                match verbs_op!($ctx, $op) {
                    Some(op) => op($on $(, $arg)*),
                    None => fail(EOPNOTSUPP),
                }
            }
        }
    )*};
}

/// Functions that return an errno: EOPNOTSUPP where the operation is missing.
macro_rules! numbers {
    ($($name:ident($on:ident: $ty:ty $(, $arg:ident: $argty:ty)*), $ctx:expr, $op:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        pub unsafe fn $name($on: $ty $(, $arg: $argty)*) -> c_int {
            // SAFETY: the caller's pointers are live, see the module.
            unsafe {
                match verbs_op!($ctx, $op) {
                    Some(op) => op($on $(, $arg)*),
                    None => EOPNOTSUPP,
                }
            }
        }
    )*};
}

/// Members of an object's own table, which are always there.
macro_rules! own {
    ($($name:ident($on:ident: *mut $ty:ty $(, $arg:ident: $argty:ty)*) $(-> $ret:ty)?, $op:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        #[inline]
        pub unsafe fn $name($on: *mut $ty $(, $arg: $argty)*) $(-> $ret)? {
            // SAFETY: the caller's pointers are live, see the module; the header calls the member without a check, too.
            unsafe { (*$on).$op.unwrap_unchecked()($on $(, $arg)*) }
        }
    )*};
}

/// Members of the basic context's table, which are always there.
macro_rules! basic {
    ($($name:ident($on:ident: $ty:ty $(, $arg:ident: $argty:ty)*) -> $ret:ty, $op:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        #[inline]
        pub unsafe fn $name($on: $ty $(, $arg: $argty)*) -> $ret {
            // SAFETY: the caller's pointers are live, see the module; the header calls the member without a check, too.
            unsafe { (*(*$on).context).ops.$op.unwrap_unchecked()($on $(, $arg)*) }
        }
    )*};
}

basic! {
    ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int, post_send;
    ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int, post_recv;
    ibv_post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int, post_srq_recv;
    ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int, poll_cq;
    ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int, req_notify_cq;
    ibv_alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw, alloc_mw;
    ibv_dealloc_mw(mw: *mut ibv_mw) -> c_int, dealloc_mw;
}

pointers! {
    ibv_create_cq_ex(context: *mut ibv_context, attr: *mut ibv_cq_init_attr_ex) -> ibv_cq_ex, context, create_cq_ex;
    ibv_open_xrcd(context: *mut ibv_context, attr: *mut ibv_xrcd_init_attr) -> ibv_xrcd, context, open_xrcd;
    ibv_open_qp(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> ibv_qp, context, open_qp;
    ibv_alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> ibv_td, context, alloc_td;
    ibv_alloc_parent_domain(context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> ibv_pd,
        context, alloc_parent_domain;
    ibv_alloc_dm(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> ibv_dm, context, alloc_dm;
    ibv_alloc_null_mr(pd: *mut ibv_pd) -> ibv_mr, (*pd).context, alloc_null_mr;
    ibv_reg_dm_mr(pd: *mut ibv_pd, dm: *mut ibv_dm, dm_offset: u64, length: size_t, access: c_uint) -> ibv_mr,
        (*pd).context, reg_dm_mr;
}

numbers! {
    ibv_close_xrcd(xrcd: *mut ibv_xrcd), (*xrcd).context, close_xrcd;
    ibv_dealloc_td(td: *mut ibv_td), (*td).context, dealloc_td;
    ibv_free_dm(dm: *mut ibv_dm), (*dm).context, free_dm;
    ibv_modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr), (*cq).context, modify_cq;
    ibv_get_srq_num(srq: *mut ibv_srq, number: *mut u32), (*srq).context, get_srq_num;
    ibv_query_rt_values_ex(context: *mut ibv_context, values: *mut ibv_values_ex), context, query_rt_values;
    ibv_advise_mr(pd: *mut ibv_pd, advice: ibv_advise_mr_advice, flags: u32, sg_list: *mut ibv_sge, num_sge: u32),
        (*pd).context, advise_mr;
}

own! {
    ibv_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int, start_poll;
    ibv_next_poll(cq: *mut ibv_cq_ex) -> c_int, next_poll;
    ibv_end_poll(cq: *mut ibv_cq_ex), end_poll;
    ibv_wc_read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode, read_opcode;
    ibv_wc_read_vendor_err(cq: *mut ibv_cq_ex) -> u32, read_vendor_err;
    ibv_wc_read_byte_len(cq: *mut ibv_cq_ex) -> u32, read_byte_len;
    ibv_wc_read_imm_data(cq: *mut ibv_cq_ex) -> u32, read_imm_data;
    ibv_wc_read_qp_num(cq: *mut ibv_cq_ex) -> u32, read_qp_num;
    ibv_wc_read_src_qp(cq: *mut ibv_cq_ex) -> u32, read_src_qp;
    ibv_wc_read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint, read_wc_flags;
    ibv_wc_read_completion_ts(cq: *mut ibv_cq_ex) -> u64, read_completion_ts;
    ibv_wc_read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64, read_completion_wallclock_ns;
    ibv_wr_start(qp: *mut ibv_qp_ex), wr_start;
    ibv_wr_complete(qp: *mut ibv_qp_ex) -> c_int, wr_complete;
    ibv_wr_abort(qp: *mut ibv_qp_ex), wr_abort;
    ibv_wr_send(qp: *mut ibv_qp_ex), wr_send;
    ibv_wr_send_imm(qp: *mut ibv_qp_ex, imm_data: u32), wr_send_imm;
    ibv_wr_send_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32), wr_send_inv;
    ibv_wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64), wr_rdma_write;
    ibv_wr_rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: u32), wr_rdma_write_imm;
    ibv_wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64), wr_rdma_read;
    ibv_wr_atomic_cmp_swp(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, compare: u64, swap: u64), wr_atomic_cmp_swp;
    ibv_wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64), wr_atomic_fetch_add;
    ibv_wr_atomic_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, value: *const c_void), wr_atomic_write;
    ibv_wr_flush(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, len: size_t, kind: u8, level: u8), wr_flush;
    ibv_wr_local_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32), wr_local_inv;
    ibv_wr_bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info), wr_bind_mw;
    ibv_wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32), wr_set_ud_addr;
    ibv_wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32), wr_set_xrc_srqn;
    ibv_wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32), wr_set_sge;
    ibv_wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: size_t, sg_list: *const ibv_sge), wr_set_sge_list;
    ibv_wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: size_t), wr_set_inline_data;
    ibv_wr_set_inline_data_list(qp: *mut ibv_qp_ex, num_buf: size_t, buf_list: *const ibv_data_buf),
        wr_set_inline_data_list;
}

/// `ibv_query_port(3)`, for all the bytes of [`ibv_port_attr`].
pub unsafe fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: the caller's pointers are live; the legacy function fills the front of the structure.
    unsafe {
        match verbs_op!(context, query_port) {
            Some(op) => op(context, port, attr, size_of::<ibv_port_attr>()),
            None => {
                attr.write_bytes(0, 1);
                crate::ibv_query_port(context, port, attr.cast())
            }
        }
    }
}

/// `ibv_query_device_ex(3)`.
pub unsafe fn ibv_query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
) -> c_int {
    // SAFETY: the caller's pointers are live; the legacy function fills the front of the structure.
    unsafe {
        if !input.is_null() && (*input).comp_mask != 0 {
            return EINVAL;
        }
        if let Some(op) = verbs_op!(context, query_device_ex) {
            let ret = op(context, input, attr, size_of::<ibv_device_attr_ex>());
            if ret != EOPNOTSUPP && ret != libc::ENOSYS {
                return ret;
            }
        }
        attr.write_bytes(0, 1);
        ibv_query_device(context, &raw mut (*attr).orig_attr)
    }
}

/// `ibv_query_gid_ex(3)`.
pub unsafe fn ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
) -> c_int {
    // SAFETY: the caller's pointers are live.
    unsafe { _ibv_query_gid_ex(context, port, index, entry, flags, size_of::<ibv_gid_entry>()) }
}

/// `ibv_create_qp_ex(3)`.
pub unsafe fn ibv_create_qp_ex(context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    // SAFETY: the caller's pointers are live; the extended attributes begin with the basic ones.
    unsafe {
        if (*attr).comp_mask == IBV_QP_INIT_ATTR_PD {
            return ibv_create_qp((*attr).pd, attr.cast());
        }
        match verbs_op!(context, create_qp_ex) {
            Some(op) => op(context, attr),
            None => fail(EOPNOTSUPP),
        }
    }
}

/// `ibv_create_srq_ex(3)`.
pub unsafe fn ibv_create_srq_ex(context: *mut ibv_context, attr: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq {
    // SAFETY: the caller's pointers are live; the extended attributes begin with the basic ones.
    unsafe {
        let mask = (*attr).comp_mask;
        let basic = mask & !(IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE) == 0
            && mask & IBV_SRQ_INIT_ATTR_PD != 0
            && (mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || (*attr).srq_type == IBV_SRQT_BASIC);
        if basic {
            return ibv_create_srq((*attr).pd, attr.cast());
        }
        match verbs_op!(context, create_srq_ex) {
            Some(op) => op(context, attr),
            None => fail(EOPNOTSUPP),
        }
    }
}

/// `ibv_bind_mw(3)`: type 1 windows only.
pub unsafe fn ibv_bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    // SAFETY: the caller's pointers are live; the header calls the member without a check, too.
    unsafe {
        let info = &(*bind).bind_info;
        if (*mw).type_ != IBV_MW_TYPE_1 || (info.mr.is_null() && (info.addr != 0 || info.length != 0)) {
            return EINVAL;
        }
        if !info.mr.is_null() && (*mw).pd != (*info.mr).pd {
            return EPERM;
        }
        (*(*mw).context).ops.bind_mw.unwrap_unchecked()(qp, mw, bind)
    }
}

/// `ibv_memcpy_to_dm(3)`.
pub unsafe fn ibv_memcpy_to_dm(dm: *mut ibv_dm, offset: u64, from: *const c_void, length: size_t) -> c_int {
    // SAFETY: the caller's pointers are live; the header calls the member without a check, too.
    unsafe { (*dm).memcpy_to_dm.unwrap_unchecked()(dm, offset, from, length) }
}

/// `ibv_memcpy_from_dm(3)`.
pub unsafe fn ibv_memcpy_from_dm(to: *mut c_void, dm: *mut ibv_dm, offset: u64, length: size_t) -> c_int {
    // SAFETY: the caller's pointers are live; the header calls the member without a check, too.
    unsafe { (*dm).memcpy_from_dm.unwrap_unchecked()(to, dm, offset, length) }
}

/// `ibv_inc_rkey(3)`: the next key of a type 2 window.
pub const fn ibv_inc_rkey(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}
