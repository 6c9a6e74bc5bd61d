//! Every structure that a program and the library share has the layout of the installed header. The members below are
//! written once; the test makes a C program of assertions from them and compiles it.
//!
//! Members that came after version 44 are left out: the compiler would not know them.

mod support;

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};

use sys::cma::*;
use sys::*;

/// A member: its name in C, and where it is.
type Members = Vec<(String, usize)>;

struct Struct {
    name: &'static str,
    size: usize,
    members: Members,
}

macro_rules! structs {
    ($($name:ident { $($member:ident)* })*) => {
        vec![$(Struct {
            name: stringify!($name),
            size: size_of::<$name>(),
            members: vec![$((c_name(stringify!($member)), offset_of!($name, $member))),*],
        }),*]
    };
}

/// Rust's names of members that are keywords, or clash with them.
fn c_name(rust: &str) -> String {
    match rust {
        "type_" => "type".into(),
        "priv_" => "priv".into(),
        other => other.into(),
    }
}

/// Members of members, where unions are.
macro_rules! nested {
    ($($name:ident $c:literal = $($path:ident).+;)*) => {
        vec![$((stringify!($name), $c, offset_of!($name, $($path).+))),*]
    };
}

#[rustfmt::skip]
fn all() -> Vec<Struct> {
    structs! {
    verbs_context { query_port advise_mr alloc_null_mr read_counters attach_counters_point_flow create_counters
        destroy_counters reg_dm_mr alloc_dm free_dm modify_flow_action_esp destroy_flow_action
        create_flow_action_esp modify_qp_rate_limit alloc_parent_domain dealloc_td alloc_td modify_cq post_srq_ops
        destroy_rwq_ind_table create_rwq_ind_table destroy_wq modify_wq create_wq query_rt_values create_cq_ex priv_
        query_device_ex ibv_destroy_flow ABI_placeholder2 ibv_create_flow ABI_placeholder1 open_qp create_qp_ex
        get_srq_num create_srq_ex open_xrcd close_xrcd _ABI_placeholder3 sz context }
    ibv_context { device ops cmd_fd async_fd num_comp_vectors mutex abi_compat }
    ibv_context_ops { _compat_query_device _compat_query_port _compat_alloc_pd _compat_dealloc_pd _compat_reg_mr
        _compat_rereg_mr _compat_dereg_mr alloc_mw bind_mw dealloc_mw _compat_create_cq poll_cq req_notify_cq
        _compat_cq_event _compat_resize_cq _compat_destroy_cq _compat_create_srq _compat_modify_srq
        _compat_query_srq _compat_destroy_srq post_srq_recv _compat_create_qp _compat_query_qp _compat_modify_qp
        _compat_destroy_qp post_send post_recv _compat_create_ah _compat_destroy_ah _compat_attach_mcast
        _compat_detach_mcast _compat_async_event }
    ibv_device { _ops node_type transport_type name dev_name dev_path ibdev_path }
    ibv_device_attr { fw_ver node_guid sys_image_guid max_mr_size page_size_cap vendor_id vendor_part_id hw_ver
        max_qp max_qp_wr device_cap_flags max_sge max_sge_rd max_cq max_cqe max_mr max_pd max_qp_rd_atom
        max_ee_rd_atom max_res_rd_atom max_qp_init_rd_atom max_ee_init_rd_atom atomic_cap max_ee max_rdd max_mw
        max_raw_ipv6_qp max_raw_ethy_qp max_mcast_grp max_mcast_qp_attach max_total_mcast_qp_attach max_ah max_fmr
        max_map_per_fmr max_srq max_srq_wr max_srq_sge max_pkeys local_ca_ack_delay phys_port_cnt }
    ibv_device_attr_ex { orig_attr comp_mask odp_caps completion_timestamp_mask hca_core_clock device_cap_flags_ex
        tso_caps rss_caps max_wq_type_rq packet_pacing_caps raw_packet_caps tm_caps cq_mod_caps max_dm_size
        pci_atomic_caps xrc_odp_caps phys_port_cnt_ex }
    ibv_odp_caps { general_caps per_transport_caps }
    ibv_tso_caps { max_tso supported_qpts }
    ibv_rss_caps { supported_qpts max_rwq_indirection_tables max_rwq_indirection_table_size rx_hash_fields_mask
        rx_hash_function }
    ibv_packet_pacing_caps { qp_rate_limit_min qp_rate_limit_max supported_qpts }
    ibv_tm_caps { max_rndv_hdr_size max_num_tags flags max_ops max_sge }
    ibv_cq_moderation_caps { max_cq_count max_cq_period }
    ibv_pci_atomic_caps { fetch_add swap compare_swap }
    ibv_port_attr { state max_mtu active_mtu gid_tbl_len port_cap_flags max_msg_sz bad_pkey_cntr qkey_viol_cntr
        pkey_tbl_len lid sm_lid lmc max_vl_num sm_sl subnet_timeout init_type_reply active_width active_speed
        phys_state link_layer flags port_cap_flags2 }
    ibv_gid_entry { gid gid_index port_num gid_type ndev_ifindex }
    ibv_pd { context handle }
    ibv_td { context }
    ibv_xrcd { context }
    ibv_mr { context pd addr length handle lkey rkey }
    ibv_mw { context pd rkey handle type_ }
    ibv_mw_bind { wr_id send_flags bind_info }
    ibv_mw_bind_info { mr addr length mw_access_flags }
    ibv_dm { context memcpy_to_dm memcpy_from_dm comp_mask handle }
    ibv_alloc_dm_attr { length log_align_req comp_mask }
    ibv_comp_channel { context fd refcnt }
    ibv_cq { context channel cq_context handle cqe mutex cond comp_events_completed async_events_completed }
    ibv_cq_ex { context channel cq_context handle cqe mutex cond comp_events_completed async_events_completed
        comp_mask status wr_id start_poll next_poll end_poll read_opcode read_vendor_err read_byte_len read_imm_data
        read_qp_num read_src_qp read_wc_flags read_slid read_sl read_dlid_path_bits read_completion_ts read_cvlan
        read_flow_tag read_tm_info read_completion_wallclock_ns }
    ibv_cq_init_attr_ex { cqe cq_context channel comp_vector wc_flags comp_mask flags parent_domain }
    ibv_modify_cq_attr { attr_mask moderate }
    ibv_moderate_cq { cq_count cq_period }
    ibv_poll_cq_attr { comp_mask }
    ibv_wc { wr_id status opcode vendor_err byte_len qp_num src_qp wc_flags pkey_index slid sl dlid_path_bits }
    ibv_wc_tm_info { tag priv_ }
    ibv_srq { context srq_context pd handle mutex cond events_completed }
    ibv_srq_attr { max_wr max_sge srq_limit }
    ibv_srq_init_attr { srq_context attr }
    ibv_srq_init_attr_ex { srq_context attr comp_mask srq_type pd xrcd cq tm_cap }
    ibv_qp { context qp_context pd send_cq recv_cq srq handle qp_num state qp_type mutex cond events_completed }
    ibv_qp_ex { qp_base comp_mask wr_id wr_flags wr_atomic_cmp_swp wr_atomic_fetch_add wr_bind_mw wr_local_inv
        wr_rdma_read wr_rdma_write wr_rdma_write_imm wr_send wr_send_imm wr_send_inv wr_send_tso wr_set_ud_addr
        wr_set_xrc_srqn wr_set_inline_data wr_set_inline_data_list wr_set_sge wr_set_sge_list wr_start wr_complete
        wr_abort }
    ibv_qp_cap { max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data }
    ibv_qp_init_attr { qp_context send_cq recv_cq srq cap qp_type sq_sig_all }
    ibv_qp_init_attr_ex { qp_context send_cq recv_cq srq cap qp_type sq_sig_all comp_mask pd xrcd create_flags
        max_tso_header rwq_ind_tbl rx_hash_conf source_qpn send_ops_flags }
    ibv_qp_open_attr { comp_mask qp_num xrcd qp_context qp_type }
    ibv_qp_attr { qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num qp_access_flags cap
        ah_attr alt_ah_attr pkey_index alt_pkey_index en_sqd_async_notify sq_draining max_rd_atomic
        max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt rnr_retry alt_port_num alt_timeout rate_limit }
    ibv_ah { context pd handle }
    ibv_ah_attr { grh dlid sl src_path_bits static_rate is_global port_num }
    ibv_global_route { dgid flow_label sgid_index hop_limit traffic_class }
    ibv_grh { version_tclass_flow paylen next_hdr hop_limit sgid dgid }
    ibv_send_wr { wr_id next sg_list num_sge opcode send_flags }
    ibv_recv_wr { wr_id next sg_list num_sge }
    ibv_sge { addr length lkey }
    ibv_data_buf { addr length }
    ibv_async_event { element event_type }
    ibv_values_ex { comp_mask raw_clock }
    ibv_parent_domain_init_attr { pd td comp_mask alloc free pd_context }
    ibv_td_init_attr { comp_mask }
    ibv_xrcd_init_attr { comp_mask fd oflags }
    ibv_ece { vendor_id options comp_mask }
    ibv_query_device_ex_input { comp_mask }
    ibv_ops_wr { wr_id next opcode flags tm }
    rdma_event_channel { fd }
    rdma_cm_id { verbs channel context qp route ps port_num event send_cq_channel send_cq recv_cq_channel recv_cq srq
        pd qp_type }
    rdma_route { addr path_rec num_paths }
    rdma_ib_addr { sgid dgid pkey }
    rdma_cm_event { id listen_id event status param }
    rdma_conn_param { private_data private_data_len responder_resources initiator_depth flow_control retry_count
        rnr_retry_count srq qp_num }
    rdma_ud_param { private_data private_data_len ah_attr qp_num qkey }
    rdma_addrinfo { ai_flags ai_family ai_qp_type ai_port_space ai_src_len ai_dst_len ai_src_addr ai_dst_addr
        ai_src_canonname ai_dst_canonname ai_route_len ai_route ai_connect_len ai_connect ai_next }
    rdma_cm_join_mc_attr_ex { comp_mask join_flags addr }
    ibv_sa_path_rec { dgid sgid dlid slid raw_traffic flow_label hop_limit traffic_class reversible numb_path pkey sl
        mtu_selector mtu rate_selector rate packet_life_time_selector packet_life_time preference }
    ibv_path_data { flags reserved path }
    }
}

#[rustfmt::skip]
fn inner() -> Vec<(&'static str, &'static str, usize)> {
    nested! {
        ibv_send_wr "imm_data" = anon_1.imm_data;
        ibv_send_wr "invalidate_rkey" = anon_1.invalidate_rkey;
        ibv_send_wr "wr.rdma.remote_addr" = wr.rdma.remote_addr;
        ibv_send_wr "wr.rdma.rkey" = wr.rdma.rkey;
        ibv_send_wr "wr.atomic.remote_addr" = wr.atomic.remote_addr;
        ibv_send_wr "wr.atomic.compare_add" = wr.atomic.compare_add;
        ibv_send_wr "wr.atomic.swap" = wr.atomic.swap;
        ibv_send_wr "wr.atomic.rkey" = wr.atomic.rkey;
        ibv_send_wr "wr.ud.ah" = wr.ud.ah;
        ibv_send_wr "wr.ud.remote_qpn" = wr.ud.remote_qpn;
        ibv_send_wr "wr.ud.remote_qkey" = wr.ud.remote_qkey;
        ibv_send_wr "qp_type.xrc.remote_srqn" = qp_type.xrc.remote_srqn;
        ibv_send_wr "bind_mw.mw" = anon_2.bind_mw.mw;
        ibv_send_wr "bind_mw.rkey" = anon_2.bind_mw.rkey;
        ibv_send_wr "bind_mw.bind_info" = anon_2.bind_mw.bind_info;
        ibv_send_wr "tso.hdr" = anon_2.tso.hdr;
        ibv_wc "imm_data" = anon_1.imm_data;
        ibv_wc "invalidated_rkey" = anon_1.invalidated_rkey;
        ibv_ops_wr "tm.unexpected_cnt" = tm.unexpected_cnt;
        ibv_ops_wr "tm.add.recv_wr_id" = tm.add.recv_wr_id;
        ibv_ops_wr "tm.add.tag" = tm.add.tag;
        rdma_addr "src_addr" = src;
        rdma_addr "dst_addr" = dst;
        rdma_addr "addr.ibaddr" = ibaddr;
        rdma_cm_event "param.conn" = param.conn;
        rdma_cm_event "param.ud" = param.ud;
    }
}

/// The structures that grew since version 44: the number of bytes in front and behind.
fn grown(name: &str) -> Option<(usize, usize)> {
    match name {
        // The library states its own size in `sz`; programs count backwards from `context`.
        "verbs_context" => Some((offset_of!(verbs_context, query_port), 0)),
        "ibv_qp_ex" => Some((0, size_of::<ibv_qp_ex>() - offset_of!(ibv_qp_ex, wr_atomic_write))),
        "ibv_port_attr" => Some((0, size_of::<ibv_port_attr>() - offset_of!(ibv_port_attr, active_speed_ex))),
        _ => None,
    }
}

/// A program that compiles only if the layouts agree.
fn program() -> String {
    let mut c = String::from(
        "#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n#include <stddef.h>\nint main(void) { return 0; \
         }\n",
    );
    let mut assert = |what: &str, condition: String| {
        writeln!(c, "_Static_assert({condition}, \"{what}\");").expect("writing to a string");
    };
    for s in all() {
        let (name, size) = (s.name, s.size);
        let (front, behind) = grown(name).unwrap_or((0, 0));
        let smallest = size - front - behind;
        let condition = if front + behind == 0 {
            format!("sizeof(struct {name}) == {size}")
        } else {
            format!("sizeof(struct {name}) >= {smallest}")
        };
        assert(&format!("size of {name}"), condition);
        for (member, offset) in s.members {
            let what = format!("{name}.{member}");
            let condition = if front == 0 {
                format!("offsetof(struct {name}, {member}) == {offset}")
            } else {
                let from_end = size - offset;
                format!("sizeof(struct {name}) - offsetof(struct {name}, {member}) == {from_end}")
            };
            assert(&what, condition);
        }
    }
    for (name, member, offset) in inner() {
        assert(&format!("{name}.{member}"), format!("offsetof(struct {name}, {member}) == {offset}"));
    }
    c
}

#[test]
fn layouts_are_those_of_the_installed_header() {
    let Some(compiler) = support::compiler("layouts_are_those_of_the_installed_header") else { return };
    let source = support::folder().join("layout.c");
    std::fs::write(&source, program()).expect("write the program");
    compiler.compile(&source, &support::folder().join("layout"), &[]);
}
