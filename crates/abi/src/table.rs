//! The tables that the header's inline functions jump through. No member is empty: operations that the device does not
//! have are in [`crate::unsupported`].

use sys::{ibv_context_ops, verbs_context};

use crate::{buf, cq, cq_ex, dm, mr, mw, pd, poll, post, qp, query, srq, unsupported as no, xrcd};

/// Fill all members.
pub fn fill(v: &mut verbs_context) {
    v.context.ops = basic();
    v.free_buf = Some(buf::ibv_free_buf);
    v.alloc_buf = Some(buf::ibv_alloc_buf);
    v.dm_export_dmabuf_fd = Some(no::ibv_dm_export_dmabuf_fd);
    v.reg_mr_ex = Some(mr::ibv_reg_mr_ex);
    v.dealloc_dmah = Some(no::ibv_dealloc_dmah);
    v.alloc_dmah = Some(no::ibv_alloc_dmah);
    v.query_port = Some(query::query_port);
    v.advise_mr = Some(mr::advise_mr);
    v.alloc_null_mr = Some(mr::alloc_null_mr);
    v.read_counters = Some(no::read_counters);
    v.attach_counters_point_flow = Some(no::attach_counters_point_flow);
    v.create_counters = Some(no::create_counters);
    v.destroy_counters = Some(no::destroy_counters);
    v.reg_dm_mr = Some(dm::reg_dm_mr);
    v.alloc_dm = Some(dm::alloc_dm);
    v.free_dm = Some(dm::free_dm);
    v.modify_flow_action_esp = Some(no::modify_flow_action_esp);
    v.destroy_flow_action = Some(no::destroy_flow_action);
    v.create_flow_action_esp = Some(no::create_flow_action_esp);
    v.modify_qp_rate_limit = Some(no::modify_qp_rate_limit);
    v.alloc_parent_domain = Some(pd::alloc_parent_domain);
    v.dealloc_td = Some(pd::dealloc_td);
    v.alloc_td = Some(pd::alloc_td);
    v.modify_cq = Some(cq::modify_cq);
    v.post_srq_ops = Some(no::post_srq_ops);
    v.destroy_rwq_ind_table = Some(no::destroy_rwq_ind_table);
    v.create_rwq_ind_table = Some(no::create_rwq_ind_table);
    v.destroy_wq = Some(no::destroy_wq);
    v.modify_wq = Some(no::modify_wq);
    v.create_wq = Some(no::create_wq);
    v.query_rt_values = Some(query::query_rt_values);
    v.create_cq_ex = Some(cq_ex::create_cq_ex);
    v.query_device_ex = Some(query::query_device_ex);
    v.ibv_destroy_flow = Some(no::destroy_flow);
    v.ABI_placeholder2 = Some(no::placeholder);
    v.ibv_create_flow = Some(no::create_flow);
    v.ABI_placeholder1 = Some(no::placeholder);
    v.open_qp = Some(xrcd::open_qp);
    v.create_qp_ex = Some(qp::create_qp_ex);
    v.get_srq_num = Some(srq::get_srq_num);
    v.create_srq_ex = Some(srq::create_srq_ex);
    v.open_xrcd = Some(xrcd::open_xrcd);
    v.close_xrcd = Some(xrcd::close_xrcd);
    crate::faults::guard(v);
}

fn basic() -> ibv_context_ops {
    ibv_context_ops {
        _compat_query_device: Some(query::ibv_query_device),
        _compat_query_port: Some(query::ibv_query_port),
        _compat_alloc_pd: Some(no::compat),
        _compat_dealloc_pd: Some(no::compat),
        _compat_reg_mr: Some(no::compat),
        _compat_rereg_mr: Some(no::compat),
        _compat_dereg_mr: Some(no::compat),
        alloc_mw: Some(mw::alloc_mw),
        bind_mw: Some(mw::bind_mw),
        dealloc_mw: Some(mw::dealloc_mw),
        _compat_create_cq: Some(no::compat),
        poll_cq: Some(poll::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        _compat_cq_event: Some(no::compat),
        _compat_resize_cq: Some(no::compat),
        _compat_destroy_cq: Some(no::compat),
        _compat_create_srq: Some(no::compat),
        _compat_modify_srq: Some(no::compat),
        _compat_query_srq: Some(no::compat),
        _compat_destroy_srq: Some(no::compat),
        post_srq_recv: Some(post::post_srq_recv),
        _compat_create_qp: Some(no::compat),
        _compat_query_qp: Some(no::compat),
        _compat_modify_qp: Some(no::compat),
        _compat_destroy_qp: Some(no::compat),
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        _compat_create_ah: Some(no::compat),
        _compat_destroy_ah: Some(no::compat),
        _compat_attach_mcast: Some(no::compat),
        _compat_detach_mcast: Some(no::compat),
        _compat_async_event: Some(no::compat),
    }
}
