//! Functions that rdma-core's librdmacm borrows from libibverbs, which convert between the kernel's structures and the
//! library's. The kernel's layouts are those of `rdma/ib_user_verbs.h` and `rdma/ib_user_sa.h`.

use sys::{ibv_ah_attr, ibv_gid, ibv_qp_attr};

use crate::entry::silent;

/// `struct ib_uverbs_ah_attr`, its `grh` spelled out.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernAh {
    dgid: [u8; 16],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    reserved_grh: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
    reserved: u8,
}

/// `struct ib_uverbs_qp_attr`.
#[repr(C)]
pub struct KernQp {
    qp_attr_mask: u32,
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    ah_attr: KernAh,
    alt_ah_attr: KernAh,
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    reserved: [u8; 5],
}

/// `struct ib_user_path_rec`.
#[repr(C)]
pub struct KernPath {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: u32,
    flow_label: u32,
    reversible: u32,
    mtu: u32,
    pkey: u16,
    hop_limit: u8,
    traffic_class: u8,
    numb_path: u8,
    sl: u8,
    mtu_selector: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

/// `struct ibv_sa_path_rec` of `infiniband/sa.h`.
#[repr(C)]
pub struct SaPath {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: i32,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
    reversible: i32,
    numb_path: u8,
    pkey: u16,
    sl: u8,
    mtu_selector: u8,
    mtu: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

const _: () = {
    assert!(size_of::<KernAh>() == 32);
    assert!(size_of::<KernQp>() == 144);
    assert!(size_of::<KernPath>() == 64);
    assert!(size_of::<SaPath>() == 64);
};

fn ah(dst: &mut ibv_ah_attr, src: &KernAh) {
    dst.grh.dgid = ibv_gid { raw: src.dgid };
    dst.grh.flow_label = src.flow_label;
    dst.grh.sgid_index = src.sgid_index;
    dst.grh.hop_limit = src.hop_limit;
    dst.grh.traffic_class = src.traffic_class;
    dst.dlid = src.dlid;
    dst.sl = src.sl;
    dst.src_path_bits = src.src_path_bits;
    dst.static_rate = src.static_rate;
    dst.is_global = src.is_global;
    dst.port_num = src.port_num;
}

/// Both sides of a copy, if neither is NULL.
///
/// # Safety
/// Both are NULL or the caller's structures, and not the same.
unsafe fn both<'a, D, S>(dst: *mut D, src: *mut S) -> Option<(&'a mut D, &'a S)> {
    // SAFETY: the caller's promise.
    unsafe { Some((dst.as_mut()?, src.as_ref()?)) }
}

/// Convert the kernel's address vector.
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(dst: *mut ibv_ah_attr, src: *mut KernAh) {
    silent(|| {
        // SAFETY: two structures of the caller's.
        if let Some((dst, src)) = unsafe { both(dst, src) } {
            ah(dst, src);
        }
    });
}

/// Convert the kernel's queue pair attributes. `qp_state` is not among the members that are copied.
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(dst: *mut ibv_qp_attr, src: *mut KernQp) {
    silent(|| {
        // SAFETY: two structures of the caller's.
        let Some((dst, src)) = (unsafe { both(dst, src) }) else { return };
        macro_rules! copy {
            ($($field:ident),*) => { $(dst.$field = src.$field;)* };
        }
        copy!(cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags);
        copy!(pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic);
        copy!(min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout);
        dst.cap.max_send_wr = src.max_send_wr;
        dst.cap.max_recv_wr = src.max_recv_wr;
        dst.cap.max_send_sge = src.max_send_sge;
        dst.cap.max_recv_sge = src.max_recv_sge;
        dst.cap.max_inline_data = src.max_inline_data;
        ah(&mut dst.ah_attr, &src.ah_attr);
        ah(&mut dst.alt_ah_attr, &src.alt_ah_attr);
    });
}

macro_rules! copy_path {
    ($dst:ident, $src:ident) => {
        copy_path!($dst, $src, dgid sgid dlid slid flow_label hop_limit traffic_class numb_path pkey sl);
        copy_path!($dst, $src, mtu_selector rate_selector rate packet_life_time_selector packet_life_time preference);
        // These differ in type.
        $dst.raw_traffic = $src.raw_traffic as _;
        $dst.reversible = $src.reversible as _;
        $dst.mtu = $src.mtu as _;
    };
    ($dst:ident, $src:ident, $($field:ident)*) => { $($dst.$field = $src.$field;)* };
}

/// Convert the kernel's path record.
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(dst: *mut SaPath, src: *mut KernPath) {
    silent(|| {
        // SAFETY: two structures of the caller's.
        if let Some((dst, src)) = unsafe { both(dst, src) } {
            copy_path!(dst, src);
        }
    });
}

/// Convert to the kernel's path record.
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(dst: *mut KernPath, src: *mut SaPath) {
    silent(|| {
        // SAFETY: two structures of the caller's.
        if let Some((dst, src)) = unsafe { both(dst, src) } {
            copy_path!(dst, src);
        }
    });
}
