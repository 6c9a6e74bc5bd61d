//! Operations that this device does not have: flow steering, raw work queues, counters, tag matching, packet pacing,
//! dma-buf, enhanced connection establishment. Each has a function that fails with EOPNOTSUPP in its own convention.

use core::ffi::c_void;

use libc::{c_int, size_t};
use sys::*;
use verbs::Errno;

use crate::entry::{minus_one, pointer};

/// Define functions that return the errno.
macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident($($ty:ty),*);)*) => {$(
        $(#[$doc])*
        pub unsafe extern "C" fn $name($(_: $ty),*) -> c_int {
            libc::EOPNOTSUPP
        }
    )*};
}

/// Define functions that return NULL and set errno.
macro_rules! pointers {
    ($($(#[$doc:meta])* $name:ident($($ty:ty),*) -> $ret:ty;)*) => {$(
        $(#[$doc])*
        pub unsafe extern "C" fn $name($(_: $ty),*) -> *mut $ret {
            pointer(|| Err(Errno::EOPNOTSUPP))
        }
    )*};
}

numbers! {
    /// `ibv_set_ece(3)`: the device has no options to agree on.
    ibv_set_ece(*mut ibv_qp, *mut ibv_ece);
    /// `ibv_query_ece(3)`.
    ibv_query_ece(*mut ibv_qp, *mut ibv_ece);
    /// `ibv_dealloc_dmah(3)`: TLP processing hints are for PCI.
    ibv_dealloc_dmah(*mut ibv_dmah);
    /// `ibv_query_comp_cntr_caps(3)`.
    _ibv_query_comp_cntr_caps(*mut ibv_context, *mut ibv_comp_cntr_caps, size_t);
    /// `ibv_destroy_comp_cntr(3)`.
    ibv_destroy_comp_cntr(*mut ibv_comp_cntr);
    /// `ibv_inc_comp_cntr(3)`.
    ibv_inc_comp_cntr(*mut ibv_comp_cntr, u64);
    /// `ibv_inc_err_comp_cntr(3)`.
    ibv_inc_err_comp_cntr(*mut ibv_comp_cntr, u64);
    /// `ibv_qp_attach_comp_cntr(3)`.
    ibv_qp_attach_comp_cntr(*mut ibv_qp, *mut ibv_comp_cntr, *mut ibv_qp_attach_comp_cntr_attr);
    /// `ibv_read_comp_cntr(3)`.
    ibv_read_comp_cntr(*mut ibv_comp_cntr, *mut u64);
    /// `ibv_read_err_comp_cntr(3)`.
    ibv_read_err_comp_cntr(*mut ibv_comp_cntr, *mut u64);
    /// `ibv_set_comp_cntr(3)`.
    ibv_set_comp_cntr(*mut ibv_comp_cntr, u64);
    /// `ibv_set_err_comp_cntr(3)`.
    ibv_set_err_comp_cntr(*mut ibv_comp_cntr, u64);
    /// `ibv_read_counters(3)`.
    read_counters(*mut ibv_counters, *mut u64, u32, u32);
    /// `ibv_attach_counters_point_flow(3)`.
    attach_counters_point_flow(*mut ibv_counters, *mut ibv_counter_attach_attr, *mut ibv_flow);
    /// `ibv_destroy_counters(3)`.
    destroy_counters(*mut ibv_counters);
    /// `ibv_modify_flow_action_esp(3)`.
    modify_flow_action_esp(*mut ibv_flow_action, *mut ibv_flow_action_esp_attr);
    /// `ibv_destroy_flow_action(3)`.
    destroy_flow_action(*mut ibv_flow_action);
    /// `ibv_modify_qp_rate_limit(3)`.
    modify_qp_rate_limit(*mut ibv_qp, *mut ibv_qp_rate_limit_attr);
    /// `ibv_destroy_rwq_ind_table(3)`.
    destroy_rwq_ind_table(*mut ibv_rwq_ind_table);
    /// `ibv_destroy_wq(3)`.
    destroy_wq(*mut ibv_wq);
    /// `ibv_modify_wq(3)`.
    modify_wq(*mut ibv_wq, *mut ibv_wq_attr);
    /// `ibv_destroy_flow(3)`.
    destroy_flow(*mut ibv_flow);
}

pointers! {
    /// `ibv_reg_dmabuf_mr(3)`.
    ibv_reg_dmabuf_mr(*mut ibv_pd, u64, size_t, u64, c_int, c_int) -> ibv_mr;
    /// `ibv_alloc_dmah(3)`.
    ibv_alloc_dmah(*mut ibv_context, *mut ibv_dmah_init_attr) -> ibv_dmah;
    /// `ibv_create_comp_cntr(3)`.
    ibv_create_comp_cntr(*mut ibv_context, *mut ibv_comp_cntr_init_attr) -> ibv_comp_cntr;
    /// `ibv_create_counters(3)`.
    create_counters(*mut ibv_context, *mut ibv_counters_init_attr) -> ibv_counters;
    /// `ibv_create_flow_action_esp(3)`.
    create_flow_action_esp(*mut ibv_context, *mut ibv_flow_action_esp_attr) -> ibv_flow_action;
    /// `ibv_create_rwq_ind_table(3)`.
    create_rwq_ind_table(*mut ibv_context, *mut ibv_rwq_ind_table_init_attr) -> ibv_rwq_ind_table;
    /// `ibv_create_wq(3)`.
    create_wq(*mut ibv_context, *mut ibv_wq_init_attr) -> ibv_wq;
    /// `ibv_create_flow(3)`.
    create_flow(*mut ibv_qp, *mut ibv_flow_attr) -> ibv_flow;
    /// Members of `ibv_context_ops` that no program calls any more.
    compat() -> c_void;
}

/// `ibv_dm_export_dmabuf_fd(3)`.
pub unsafe extern "C" fn ibv_dm_export_dmabuf_fd(_: *mut ibv_dm) -> c_int {
    minus_one(|| Err(Errno::EOPNOTSUPP))
}

/// `ibv_post_srq_ops(3)`: tag matching.
pub unsafe extern "C" fn post_srq_ops(_: *mut ibv_srq, op: *mut ibv_ops_wr, bad: *mut *mut ibv_ops_wr) -> c_int {
    if !bad.is_null() {
        // SAFETY: the caller's variable.
        unsafe { *bad = op };
    }
    libc::EOPNOTSUPP
}

/// Two members of `verbs_context` that only hold a place.
pub unsafe extern "C" fn placeholder() {}
