//! Sizes and offsets on 64-bit x86, as the header gives them to a C compiler. The C ABI's own test
//! (`crates/abi/tests/c/layout.c`) compares every member with the installed header; this one needs no header.
#![cfg(target_arch = "x86_64")]

use core::mem::{offset_of, size_of};
use sys::*;

#[test]
fn contexts() {
    assert_eq!(size_of::<verbs_context>(), 696);
    assert_eq!(offset_of!(verbs_context, sz), 360);
    assert_eq!(offset_of!(verbs_context, context), 368);
    assert_eq!(size_of::<ibv_context>(), 328);
    assert_eq!(offset_of!(ibv_context, ops) + offset_of!(ibv_context_ops, poll_cq), 96);
    assert_eq!(offset_of!(ibv_context, ops) + offset_of!(ibv_context_ops, post_send), 208);
    assert_eq!(offset_of!(ibv_context, cmd_fd), 264);
    assert_eq!(offset_of!(ibv_context, async_fd), 268);
    assert_eq!(offset_of!(ibv_context, abi_compat), 320);
}

#[test]
fn objects() {
    assert_eq!(size_of::<ibv_device>(), 664);
    assert_eq!(size_of::<ibv_cq>(), 128);
    assert_eq!(size_of::<ibv_cq_ex>(), 288);
    assert_eq!(offset_of!(ibv_cq_ex, status), 132);
    assert_eq!(offset_of!(ibv_cq_ex, wr_id), 136);
    assert_eq!(offset_of!(ibv_cq_ex, start_poll), 144);
    assert_eq!(size_of::<ibv_qp>(), 160);
    assert_eq!(size_of::<ibv_qp_ex>(), 360);
    assert_eq!(offset_of!(ibv_qp_ex, comp_mask), 160);
    assert_eq!(offset_of!(ibv_qp_ex, wr_id), 168);
    assert_eq!(offset_of!(ibv_qp_ex, wr_flags), 176);
    assert_eq!(offset_of!(ibv_qp_ex, wr_atomic_cmp_swp), 184);
    assert_eq!(offset_of!(ibv_qp_ex, wr_start), 320);
}

#[test]
fn arguments() {
    assert_eq!(size_of::<ibv_port_attr>(), 56);
    assert_eq!(size_of::<ibv_wc>(), 48);
    assert_eq!(size_of::<ibv_send_wr>(), 128);
    assert_eq!(size_of::<ibv_recv_wr>(), 32);
    assert_eq!(size_of::<ibv_sge>(), 16);
    assert_eq!(size_of::<ibv_device_attr_ex>(), 400);
    assert_eq!(size_of::<ibv_gid_entry>(), 32);
}
